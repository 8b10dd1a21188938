/* SPDX-License-Identifier: Apache-2.0 */
/* host_pages.h: large memory of the host: in huge pages where the system has them, zeroed and touched by all cores. A
 * device reads and writes it by itself once it is pinned (device_pin()). */
#pragma once

#include "core/status.h"

enum { HOST_PAGE = 4096 }; /* the memory is of whole pages */

/* With the OpenMP threads of the calling thread, and heartbeats. STATUS_DEVICE: there is not so much, or the process
 * may not have it. Any thread. */
enum status host_pages_new(size_t bytes, void **memory, struct error *err);

/* bytes: as above. memory: may be NULL. */
void host_pages_free(void *memory, size_t bytes);

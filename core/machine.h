/* SPDX-License-Identifier: Apache-2.0 */
/* machine.h: the memory and the CPUs that this process may use, within the limits of its control groups (version 1 or
 * 2, up to the root). Each call reads /proc and /sys again; any thread. What cannot be read is unlimited. */
#pragma once

#include "core/status.h"

#include <sched.h>

/* STATUS_DEVICE: /proc is not mounted; ranks, locks and limits need it. */
enum status machine_check_proc(struct error *err);

/* Bytes; UINT64_MAX: unknown, or no limit. */
struct machine_memory {
    uint64_t total;     /* of the machine */
    uint64_t available; /* the least of MemAvailable and of what each control group leaves, with droppable page cache */
    uint64_t limit;     /* the smallest memory limit of a control group */
    uint64_t swap;      /* of the machine, in use or not */
    uint64_t huge_page_count; /* reserved huge pages, of the default size */
};

/* root, here and below: ""; a test's folder that holds its own /proc and /sys. */
void machine_memory(const char *root, struct machine_memory *memory);

/* Processes of this process's control group that the kernel has killed for memory; 0: none, or they are not counted. */
uint64_t machine_memory_kills(const char *root);

/* The bytes that this process may still map or allocate under ulimit -v and -d; UINT64_MAX: no limit. */
uint64_t machine_process_room(void);

/* Bytes of this process in memory; 0: unknown. */
int64_t machine_resident_bytes(void);

/* A process's state as in proc(5): 'T' stopped, 'X' ended or absent, '?' unknown. *began: clock ticks, 0: unknown. */
char machine_process(int64_t pid, int64_t *began);

/* The cores that the affinity mask allows; at least 1. */
int machine_cores(void);

/* The cores of the socket, or of the part of one, that a PCI device ("0000:3b:00.0") is attached to; false: unknown. */
bool machine_device_cores(const char *root, const char *device, cpu_set_t *cores);

/* Binds all threads of this process, and those that they start. */
void machine_bind(const cpu_set_t *cores);

/* The cores that are online; at least 1. */
int machine_cores_online(void);

/* The CPU time that the control groups allow, in cores (1.5: a core and a half); 0: no limit. */
double machine_cpu_quota(const char *root);

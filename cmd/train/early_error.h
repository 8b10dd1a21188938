/* SPDX-License-Identifier: Apache-2.0 */
/* early_error.h: the errors of ranks that fail before they can agree on who prints them (agree.h).
 *
 * Ranks of one node often fail alike. The first to print the error takes a name in the kernel, an abstract unix socket
 * for the job and the message (agree_likeness()); the others find it taken and stay silent. A rank that cannot make
 * sure that a living rank of this job and user has the name prints the error itself. */
#pragma once

#include "comm/launch/bootstrap.h"

/* Prints the error, unless another rank of this node has printed it, and marks it as printed. Then gives the other
 * ranks a moment for theirs, as the launcher may end all ranks when this one ends. */
void early_error_print(const struct bootstrap *boot, struct error *err);

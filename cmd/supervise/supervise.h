/* SPDX-License-Identifier: Apache-2.0 */
/* supervise.h: `ztrain --local-gpus N`: N ranks on this machine, started, watched and ended together. */
#pragma once

#include "cmd/run/restart.h"

enum { SUPERVISE_MAX_RANKS = PLACES_MAX }; /* on one machine, with two pipes each */

/* Runs `ranks` (1 to SUPERVISE_MAX_RANKS) copies of this program with the same arguments (argv, NULL-terminated) and
 * waits for them. STATUS_OK: the ranks have printed their errors, and end->code is the job's. Otherwise err is an
 * error that no rank could print, and its code is the job's. visible: their CUDA_VISIBLE_DEVICES (borrowed); NULL: this
 * process's. timeout_seconds: how long the others may continue after a rank has left without their agreement. */
enum status supervise(int ranks, const char *visible, char **argv, double timeout_seconds, struct job_end *end,
                      struct error *err);

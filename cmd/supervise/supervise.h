/* SPDX-License-Identifier: Apache-2.0 */
/* supervise.h: `ztrain --local-gpus N`: N ranks on this machine, started, watched and ended together. */
#pragma once

#include "cmd/run/places.h"

enum {
    SUPERVISE_MAX_RANKS = PLACES_MAX, /* on one machine, with two pipes each */
    SUPERVISE_CAUSE_BYTES = 512
};

/* How a job has ended. */
struct supervise_end {
    int exit_code;
    int rank;                          /* by which it failed; -1: it has not, or that is not known */
    bool asked;                        /* a signal has asked the job to stop before */
    char cause[SUPERVISE_CAUSE_BYTES]; /* the error of a job that has failed; else "" */
};

/* Runs `ranks` (1 to SUPERVISE_MAX_RANKS) copies of this program with the same arguments (argv, NULL-terminated) and
 * waits for them. STATUS_OK: the ranks have printed their errors, and end->exit_code is the job's. Otherwise err is an
 * error that no rank could print, and its code is the job's. visible: their CUDA_VISIBLE_DEVICES (borrowed); NULL: this
 * process's. timeout_seconds: how long the others may continue after a rank has left without their agreement. */
enum status supervise(int ranks, const char *visible, char **argv, double timeout_seconds, struct supervise_end *end,
                      struct error *err);

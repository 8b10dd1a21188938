/* SPDX-License-Identifier: Apache-2.0 */
/* reports.h: comms_logger of the run spec: what the collectives cost, and which rank the others wait for; and time and
 * work of ops: of a step with flops_profiler, of the whole run with --profile. */
#pragma once

#include "cmd/run/run_state.h"

/* Begins to record, if the spec says so; comm_log_share() follows each step. Collective; all ranks fail together. */
enum status comms_report_start(struct run *run, struct error *err);

/* At the end. Rank 0 logs the table and writes comms.json into the run folder; a failure is a warning. Collective. */
enum status comms_report_finish(struct run *run, struct error *err);

/* Around the step of flops_profiler, alone, op by op, with the same bits. End: rank 0 logs or writes the tables, unless
 * it broke off. */
enum status flops_report_begin(struct run *run, struct error *err);
void flops_report_end(struct run *run, bool broken_off);

/* Before the first step: says so if flops_profiler's step will not come. */
void flops_report_announce(const struct run *run);

/* Rank 0 logs the ops of all steps (--profile). */
void flops_report_run(struct run *run);

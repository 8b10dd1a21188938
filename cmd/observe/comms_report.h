/* SPDX-License-Identifier: Apache-2.0 */
/* comms_report.h: comms_logger of the run spec: what the collectives cost, and which rank the others wait for. */
#pragma once

#include "cmd/run/run_state.h"

/* Begins to record, if the spec says so; comm_log_share() follows each step. Collective; all ranks fail together. */
enum status comms_report_start(struct run *run, struct error *err);

/* At the end of the steps. Rank 0 logs the table and writes comms.json into the run folder; if that fails, it is a
 * warning. Collective. */
enum status comms_report_finish(struct run *run, struct error *err);

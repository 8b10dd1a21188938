/* spike_report.h: losses that stand out: train.spike_factor. */
#pragma once

#include "cmd/run/run_state.h"

/* Takes the loss of a step that was collected. A spike is a line of metrics.jsonl with the step's samples, and one in
 * the log; the run continues. */
enum status spike_report_step(struct run *run, const struct step_metrics *m, struct error *err);

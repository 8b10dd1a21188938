/* spike_report.h: losses that stand out: train.spike_factor. */
#ifndef ZTRAIN_CMD_TRAIN_SPIKE_REPORT_H
#define ZTRAIN_CMD_TRAIN_SPIKE_REPORT_H

#include "cmd/run/run_state.h"

/* Takes the loss of a step that was collected. A spike is a line of metrics.jsonl with the step's samples, and one in
 * the log; the run continues. */
enum status spike_report_step(struct run *run, const struct step_metrics *m, struct error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* monitor.h: metrics for TensorBoard and DeepSpeed's csv_monitor, over the samples trained on. One that cannot write is
 * given up with a warning. Tags are DeepSpeed's (Train/Samples/train_loss, lr, loss_scale) and ztrain's own. */
#pragma once

#include "core/metrics/metrics.h"
#include "core/spec/spec.h"

struct monitor;

/* Opens the monitors that the spec enables; NULL: none. run: the folder; step: after which the run begins (0) or
 * continues; evaluation_due: of this step. What a resumed run repeats is dropped. */
struct monitor *monitor_open(const struct run_spec *spec, const char *run, int64_t step, bool evaluation_due);

void monitor_step(struct monitor *monitor, const struct step_metrics *m); /* NULL is allowed, here and below */
void monitor_evaluation(struct monitor *monitor, int64_t step, const struct eval_scores *scores);
void monitor_close(struct monitor *monitor);

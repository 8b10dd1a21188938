/* SPDX-License-Identifier: Apache-2.0 */
/* monitor.h: writes the metrics for TensorBoard and as DeepSpeed's csv_monitor. A monitor that cannot write is given up
 * with a warning. The tags are DeepSpeed's (Train/Samples/train_loss, lr, loss_scale) and ztrain's own; as with
 * DeepSpeed their axis counts the samples that were trained on. */
#pragma once

#include "core/metrics/eval_metric.h"
#include "core/metrics/metrics.h"
#include "core/spec/spec.h"

struct monitor;

/* Opens the monitors that the spec enables; NULL: it enables none. run: the run's folder; step: after which the run
 * begins (0) or continues; evaluation_due: this step's evaluation is still to come. What a resumed run repeats is
 * dropped. */
struct monitor *monitor_open(const struct run_spec *spec, const char *run, int64_t step, bool evaluation_due);

void monitor_step(struct monitor *monitor, const struct step_metrics *m); /* NULL is allowed, here and below */
void monitor_evaluation(struct monitor *monitor, int64_t step, const struct eval_scores *scores);
void monitor_close(struct monitor *monitor);

/* summary.h: the summary of a run that is finished. */
#pragma once

#include "core/spec/spec.h"

/* Logs how long the run's steps took, over all starts, and its best evaluation with the checkpoint nearest to it, as
 * metrics.jsonl records them; checkpoint.metric and checkpoint.mode say which evaluation is the best. process_seconds:
 * how long this process has run. Failing to read a file is a warning. */
void summary_log(const struct run_spec *spec, const char *metrics_path, const char *checkpoints,
                 double process_seconds);

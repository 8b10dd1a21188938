/* summary.h: the last words of a run that is finished. */
#ifndef ZTRAIN_CMD_TRAIN_SUMMARY_H
#define ZTRAIN_CMD_TRAIN_SUMMARY_H

/* Says how long the run's steps took, over all starts, and its best evaluation with the checkpoint that is nearest to
 * it: what metrics.jsonl knows. process_seconds: how long this process has run. What cannot be read is a warning. */
void summary_say(const char *metrics_path, const char *checkpoints, double process_seconds);

#endif

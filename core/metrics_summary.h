/* metrics_summary.h: what a metrics.jsonl says of the whole run, over all of its starts. */
#ifndef ZTRAIN_CORE_METRICS_SUMMARY_H
#define ZTRAIN_CORE_METRICS_SUMMARY_H

#include "core/status.h"

#include <stdint.h>

struct metrics_summary {
    int64_t steps, starts;         /* lines of steps; how often the run was started */
    int64_t missing;               /* steps up to last_step whose lines are missing */
    int64_t first_step, last_step; /* of those lines; of a run that branched off the first is not 1 */
    int64_t tokens;                /* of the steps that have lines */
    double seconds;                /* that those steps took, without evaluations and checkpoints */
    double best_loss;              /* the lowest eval_loss; NAN: nothing was evaluated */
    int64_t best_step;             /* after which it was measured, the first time; 0: none */
    char best_checkpoint[256]; /* name of the checkpoint in the folder `checkpoints` that is nearest to it; "": none */
    int64_t checkpoint_step;   /* its step */
};

/* Reads `path`; damaged lines are passed over. Of the checkpoints that it names only those count that are still in the
 * folder `checkpoints`, wherever that has been moved to. STATUS_CHECKPOINT: the file cannot be read. */
enum status metrics_summarise(const char *path, const char *checkpoints, struct metrics_summary *summary,
                              struct error *err);

#endif

/* metrics.h: what a run writes for people and programs: metrics.jsonl (see docs/run-spec.md for the fields).
 * Only rank 0 has a sink. Numbers that must repeat bit for bit are printed with 17 significant digits. */
#ifndef ZTRAIN_CORE_METRICS_H
#define ZTRAIN_CORE_METRICS_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

struct metrics;

struct step_metrics {
    int64_t step, epoch, tokens;
    double loss, grad_norm, lr, loss_scale, tokens_per_s, mfu; /* mfu < 0: unknown (null) */
    double of_ceiling; /* as mfu, of what this device was measured to multiply at most; for the console */
    bool skipped;
    int64_t memory_device, memory_host;
    struct {
        /* the middle four NAN: not timed (null) */
        double step, data, forward, backward, reduce, optimizer, checkpoint;
    } seconds;
};

/* Opens <path> for appending. resume_step >= 0: lines of later steps, and a torn last line, are cut off first; with
 * evaluation_due also that step's evaluation and what follows it, which are to be done (again, if a run was killed
 * after them). resume_step -1: an existing file is moved aside (metrics.jsonl.1, .2, …). */
enum status metrics_open(const char *path, int64_t resume_step, bool evaluation_due, struct metrics **metrics,
                         struct error *err);
void metrics_close(struct metrics *metrics);

enum status metrics_step(struct metrics *metrics, const struct step_metrics *m, struct error *err);
enum status metrics_eval(struct metrics *metrics, int64_t step, int64_t epoch, double eval_loss, int64_t eval_tokens,
                         struct error *err);
enum status metrics_epoch_end(struct metrics *metrics, int64_t epoch, int64_t step, double train_loss,
                              struct error *err);
enum status metrics_checkpoint(struct metrics *metrics, const char *folder, int64_t step, int64_t bytes,
                               double seconds_stalled, struct error *err);
enum status metrics_resume(struct metrics *metrics, const char *folder, int64_t step, struct error *err);
/* fsync, before a checkpoint says that these lines belong to it */
enum status metrics_flush(struct metrics *metrics, struct error *err);

#endif

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

/* How the file of a run that resumes goes on. */
struct metrics_course {
    int64_t step;           /* lines of later steps are left out */
    bool evaluation_due;    /* and those of this step that follow its evaluation, which is to be done */
    const char *checkpoint; /* the resumed one's path, as its line names it */
    int64_t bytes;          /* its size, should a kill have cost that line */
    int from;               /* 0: the file's own lines go on; N: those of metrics.jsonl.N; -1: none */
    int former;             /* the number of the former file, if it has to be kept: metrics_number() */
};

/* Opens <path> for appending. `course` NULL: the file begins anew, and an existing one becomes <path>.N with the first
 * free N. Else the lines of the course stay, and nothing else: where something has to be left out (also a damaged line,
 * with a warning, and a torn last one), the lines that stay are written to a new file, the former one is kept as
 * <path>.FORMER, and the new one takes its place in one step. A kill at any instant leaves the one file or the other.
 * The resumed checkpoint's line is added where it is missing. Steps up to the course's that have no line are a warning,
 * unless none were looked for (`from` is -1). STATUS_CHECKPOINT. */
enum status metrics_open(const char *path, const struct metrics_course *course, struct metrics **metrics,
                         struct error *err);

/* What <path>.N is: its number may be given to the former file unless it is another file's. */
enum metrics_number {
    METRICS_NUMBER_FREE,
    METRICS_NUMBER_KEPT, /* the file itself is kept under it already: a resume was killed in the middle */
    METRICS_NUMBER_TAKEN,
};
enum metrics_number metrics_number(const char *path, int number);

/* Keeps the file under <path>.NUMBER too, durably, before anything else changes; metrics_open() will replace it. */
enum status metrics_keep(const char *path, int number, struct error *err);

/* A checkpoint, as its line in a metrics file names it. */
struct metrics_checkpoint_line {
    const char *name; /* the last part of its path */
    int64_t step, bytes;
};

/* Which file has the lines that led to a checkpoint: <path> itself (0), or N of <path>.N; -1: none that can be read.
 * The one of number `first` is looked at before all others. *branch_step: the last step up to which that file and
 * <path> tell the same course; 0 if none. */
int metrics_find(const char *path, const struct metrics_checkpoint_line *line, int first, int64_t *branch_step);

void metrics_close(struct metrics *metrics);

/* Whether the file is still this run's, asked before lines are written that have waited for the disk; an error other
 * than STATUS_OK is that of the line at hand. */
void metrics_ask_owner(struct metrics *metrics, enum status (*still_owner)(void *owner, struct error *err),
                       void *owner);

/* The functions below write a line each, and wait for no disk: while it is full or fails, lines wait in memory
 * (line_queue.h). This tries to write those, for so many seconds. false: some are lost, and a warning says so. */
bool metrics_drain(struct metrics *metrics, double seconds);

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

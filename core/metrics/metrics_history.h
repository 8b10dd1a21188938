/* SPDX-License-Identifier: Apache-2.0 */
/* metrics_history.h: a metrics.jsonl holds the lines of one history: the steps up to its newest checkpoint. That of a
 * history that a resume leaves is kept as metrics.jsonl.N, and no file is ever cut: it gets this second name, and a new
 * file with the lines that stay takes its first one. After a kill the first name is the former file's, maybe with the
 * second, which the next resume notices, or the new one's. */
#pragma once

#include "core/status.h"

/* The history that the file of a resumed run continues. */
struct metrics_history {
    int64_t step;           /* lines of later steps are left out */
    bool evaluation_due;    /* the step is not evaluated yet: its lines from an evaluation on are left out as well */
    const char *checkpoint; /* the path of the resumed checkpoint, as in its line */
    int64_t bytes;          /* its size, in case that line was lost in a kill */
    int from;               /* 0: the lines of the file continue; N: those of metrics.jsonl.N; -1: none */
    int former;             /* the number of the former file, if it has to be kept: metrics_history_number() */
};

/* Leaves the lines of the history in the file `path`, which need not exist. Damaged lines and a torn last one are left
 * out with a warning, and a warning names the steps whose lines are missing (unless `from` is -1). *open_end: its last
 * line has no newline yet. *has_checkpoint: it has the line of the resumed checkpoint. */
enum status metrics_history_take(const char *path, const struct metrics_history *history, bool *open_end,
                                 bool *has_checkpoint, struct error *err);

/* A new run: the file of an earlier one becomes <path>.N with the first free N. */
enum status metrics_history_leave(const char *path, struct error *err);

/* Whether the former file may get the name <path>.N. KEPT: it has it already, as a resume was killed halfway. */
enum metrics_number { METRICS_NUMBER_FREE, METRICS_NUMBER_KEPT, METRICS_NUMBER_TAKEN };
enum metrics_number metrics_history_number(const char *path, int number);

/* Gives the file the second name <path>.NUMBER, durably. */
enum status metrics_keep(const char *path, int number, struct error *err);

/* A checkpoint, as its line in a metrics file describes it. */
struct metrics_checkpoint_line {
    const char *name; /* the last part of its path */
    int64_t step, bytes;
};

/* Which file has the lines that led to a checkpoint: 0 for <path>, N for <path>.N (`first` is read first), -1: none.
 * *branch_step: the last step up to which that file and <path> have the same history; 0: they share no step. */
int metrics_find(const char *path, const struct metrics_checkpoint_line *line, int first, int64_t *branch_step);

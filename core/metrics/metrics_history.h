/* metrics_history.h: a metrics.jsonl holds the lines of one history of a run: the steps that led to its newest
 * checkpoint. The file of a history that a resume leaves is kept as metrics.jsonl.N.
 *
 * No file is ever cut. Where lines have to be left out, the file becomes metrics.jsonl.N as well (a second name of the
 * same file), and then a new one with the lines that stay takes its first name. After a kill either the former file has
 * the name, maybe both names, which the next resume notices, or the new one. */
#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* The history that the file of a resumed run continues. */
struct metrics_history {
    int64_t step;           /* lines of later steps are left out */
    bool evaluation_due;    /* the step is not evaluated yet: its lines from an evaluation on are left out as well */
    const char *checkpoint; /* the path of the resumed checkpoint, as in its line */
    int64_t bytes;          /* its size, in case that line was lost in a kill */
    int from;               /* 0: the lines of the file continue; N: those of metrics.jsonl.N; -1: none */
    int former;             /* the number of the former file, if it has to be kept: metrics_number() */
};

/* Leaves only the lines of the history in the file `path`, which need not exist. Damaged lines are left out with a
 * warning, as is a torn last one, and a warning names the steps whose lines are missing (unless `from` is -1).
 * *open_end: its last line has no newline yet. *has_checkpoint: it has the line of the resumed checkpoint. */
enum status metrics_history_take(const char *path, const struct metrics_history *history, bool *open_end,
                                 bool *has_checkpoint, struct error *err);

/* A new run: the file of an earlier one becomes <path>.N with the first free N. */
enum status metrics_history_leave(const char *path, struct error *err);

/* The state of the name <path>.N: the former file may get number N unless it is taken. */
enum metrics_number {
    METRICS_NUMBER_FREE,
    METRICS_NUMBER_KEPT, /* the file itself already has this name as well: a resume was killed halfway */
    METRICS_NUMBER_TAKEN,
};
enum metrics_number metrics_number(const char *path, int number);

/* Gives the file the second name <path>.NUMBER, durably, before anything else changes. */
enum status metrics_keep(const char *path, int number, struct error *err);

/* A checkpoint, as its line in a metrics file describes it. */
struct metrics_checkpoint_line {
    const char *name; /* the last part of its path */
    int64_t step, bytes;
};

/* Returns which file has the lines that led to a checkpoint: 0 for <path>, N for <path>.N, -1 if no readable file has
 * them. <path>.N with N = `first` is read before all others. *branch_step is the last step up to which that file and
 * <path> have the same history; 0: they share no step. */
int metrics_find(const char *path, const struct metrics_checkpoint_line *line, int first, int64_t *branch_step);

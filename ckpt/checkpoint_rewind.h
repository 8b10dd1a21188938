/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_rewind.h: a run has one history. If it resumes from a checkpoint that is not its newest, the newer
 * checkpoints and their metrics are a history that the run leaves; it gets a number N and is kept aside:
 *
 *   checkpoints/step-00000012         step-00000012.aside-N     a resume of the run folder never takes it
 *   metrics.jsonl                     metrics.jsonl.N           has all lines of that history
 *
 * Resuming X.aside-N by its name makes its history the run's again: its name becomes X, the lines that led to it come
 * from metrics.jsonl.N, and what came since the two parted goes aside. For rank 0, under the run folder's lock. */
#pragma once

#include "ckpt/checkpoint_list.h"

/* A checkpoint that goes aside. */
struct rewind_move {
    char name[CHECKPOINT_NAME_MAX];
    bool damaged; /* it becomes NAME.damaged-K instead, because a resume has found it damaged */
    int64_t step; /* as in struct checkpoint_entry */
};

struct checkpoint_rewind {
    char dir[FS_PATH_MAX];          /* <run>/checkpoints */
    char metrics[FS_PATH_MAX];      /* <run>/metrics.jsonl */
    char name[CHECKPOINT_NAME_MAX]; /* the resumed checkpoint's name in dir, from now on */
    char from[CHECKPOINT_NAME_MAX]; /* its name until now, X.aside-N or X.damaged-N; "": the name does not change */
    char target[FS_PATH_MAX];       /* if it has no name in dir yet: its path in the run folder; else "" */
    bool taken;                     /* another checkpoint has the name, and goes aside as well */
    int number;                     /* N of the history that goes aside now */
    int interrupted;                /* N of an earlier resume that was killed before it took effect; 0: none */
    int metrics_from; /* N of the metrics whose history is taken up again; 0: the run's own; -1: not found */
    int count;
    struct rewind_move *moves; /* [count] owned; oldest first */
};

/* Finds the changes for a resume of `run` (the run folder) from `checkpoint`, which lies in it. newest: it was taken as
 * the newest valid one, so all checkpoints ahead of it are damaged. The caller releases *rewind also after an error.
 * STATUS_CHECKPOINT: folders cannot be read. */
enum status checkpoint_rewind_plan(const char *run, const struct checkpoint *checkpoint, bool newest,
                                   struct checkpoint_rewind *rewind, struct error *err);
void checkpoint_rewind_release(struct checkpoint_rewind *rewind);

/* Makes the changes, durably, except for the lines of metrics.jsonl, which metrics_open() replaces. */
enum status checkpoint_rewind_apply(const struct checkpoint_rewind *rewind, struct error *err);

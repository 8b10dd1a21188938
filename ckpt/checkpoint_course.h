/* checkpoint_course.h: a run has one course. Where it resumes from a checkpoint that others are ahead of, those belong
 * to a course that the run leaves; they and its metrics get a number N and stay, aside:
 *
 *   checkpoints/step-00000012         step-00000012.aside-N     never taken by a resume of the run folder
 *   metrics.jsonl                     metrics.jsonl.N           all lines of that course
 *
 * Resuming X.aside-N by its name makes it the run's course again: it is X then, the lines that led to it come from
 * metrics.jsonl.N, and what the run has done since the two courses parted goes aside under a number of its own.
 *
 * Rank 0 alone, under the run folder's lock. Nothing here is collective. */
#ifndef ZTRAIN_CKPT_CHECKPOINT_COURSE_H
#define ZTRAIN_CKPT_CHECKPOINT_COURSE_H

#include "ckpt/checkpoint_folders.h"

/* A checkpoint that gives way. */
struct course_move {
    char name[CHECKPOINT_NAME_MAX];
    bool damaged; /* it becomes NAME.damaged-K instead: a resume has found it so */
    int64_t step; /* as in struct checkpoint_entry */
};

/* What a resume has to change. */
struct checkpoint_course {
    char dir[FS_PATH_MAX];          /* <run>/checkpoints */
    char metrics[FS_PATH_MAX];      /* <run>/metrics.jsonl */
    char name[CHECKPOINT_NAME_MAX]; /* of the resumed checkpoint in dir, from now on */
    char from[CHECKPOINT_NAME_MAX]; /* its name until now, X.aside-N or X.damaged-N, or "" if that does not change */
    char target[FS_PATH_MAX];       /* it has no name in dir yet: where it lies in the run folder, or "" */
    bool taken;                     /* another checkpoint has the name, and gives way as well */
    int number;                     /* N of what goes aside now */
    int interrupted;                /* N of a resume of another checkpoint that was killed before it took effect; 0 */
    int metrics_from; /* N of the metrics whose course is taken up again; 0: the run's own; -1: not found */
    int count;
    struct course_move *moves; /* [count] owned; the oldest first */
};

/* Finds out what a resume of `run` (the run folder) from `checkpoint`, which lies in it, has to change; changes
 * nothing. newest: it was taken as the newest valid one, so all that are ahead of it are damaged. Release it also after
 * an error: STATUS_CHECKPOINT if folders cannot be read. */
enum status checkpoint_course_plan(const char *run, const struct checkpoint *checkpoint, bool newest,
                                   struct checkpoint_course *course, struct error *err);
void checkpoint_course_release(struct checkpoint_course *course);

/* Changes it, durably: all but the lines of metrics.jsonl, which metrics_open() replaces. checkpoint_course.c tells
 * what a kill leaves. STATUS_CHECKPOINT. */
enum status checkpoint_course_take(const struct checkpoint_course *course, struct error *err);

#endif

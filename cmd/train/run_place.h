/* run_place.h: which folder a run lives in, and what it finds there. One process decides (rank 0, or a dry run); the
 * struct holds no pointers, so that the others can be told by a broadcast. */
#ifndef ZTRAIN_CMD_TRAIN_RUN_PLACE_H
#define ZTRAIN_CMD_TRAIN_RUN_PLACE_H

#include "core/spec/spec.h"
#include "core/status.h"

#include <stdbool.h>

enum run_start {
    RUN_NEW,      /* without --resume */
    RUN_RESUMED,  /* from a checkpoint of the folder itself, whose course it continues */
    RUN_BRANCHED, /* from a checkpoint that lies elsewhere: the folder must not hold a course of its own */
};

struct run_place {
    char path[3072]; /* the run folder */
    enum run_start start;
    bool moved; /* it is not where the spec says: --resume names a run folder that was moved */
};

/* Decides it. The folder is <run.dir>/<run.name>, with one exception: where that does not exist and `resume` (--resume
 * DIR; NULL: not given) lies in a run folder whose run.yaml has the same run.name, that folder has been moved, and the
 * run continues in it. Links are followed: `resume` belongs to the folder that it really lies in. STATUS_USAGE: the
 * path is too long, or run_place_check(). */
enum status run_place_find(const struct run_spec *spec, const char *resume, struct run_place *place, struct error *err);

/* STATUS_USAGE where the folder holds checkpoints and the run does not continue from one of them: their course would be
 * overwritten. */
enum status run_place_check(const struct run_place *place, struct error *err);

/* STATUS_USAGE where the folder cannot be made or written: the last of the folders on the way to it that is there is no
 * folder, or this user may not write to it. Makes nothing. */
enum status run_place_check_room(const struct run_place *place, struct error *err);

#endif

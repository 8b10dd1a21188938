/* SPDX-License-Identifier: Apache-2.0 */
/* run_home.h: the folder that a run lives in. Rank 0 or a dry run decides; the struct is broadcast: no pointers. */
#pragma once

#include "core/fsutil.h"
#include "core/spec/spec.h"

enum run_start {
    RUN_NEW,      /* without --resume */
    RUN_RESUMED,  /* from a checkpoint of the folder itself, whose history it continues */
    RUN_BRANCHED, /* from a checkpoint of another folder: this one must not hold checkpoints */
};

struct run_home {
    char path[3072]; /* the run folder */
    enum run_start start;
    bool moved; /* not <run.dir>/<run.name>: --resume names a run folder that was moved */
};

/* --resume RUN_HOME_AUTO: from the newest checkpoint of the run's folder, or from the beginning if it holds none. */
#define RUN_HOME_AUTO "auto"

/* The folder is <run.dir>/<run.name>; or, if that is absent, the run folder with the same run.name that `resume` (NULL:
 * not given) lies in: it has been moved. Links are followed. STATUS_USAGE: the path is too long, or run.dir is no
 * folder; STATUS_CHECKPOINT: its checkpoints cannot be listed. */
enum status run_home_find(const struct run_spec *spec, const char *resume, struct run_home *home, struct error *err);

/* What --resume DIR (or auto, or NULL) is for one adapter of several: DIR/NAME, in `path`; auto, if it has no
 * checkpoint yet and another one has: a run may end before the first save of all. Else `resume`. */
const char *run_resume_of(const struct run_spec *spec, const char *resume, char path[FS_PATH_MAX]);

/* The folder or checkpoint to resume from, once the place is known; NULL: the run begins. */
const char *run_home_resume(const struct run_home *home, const char *resume);

/* STATUS_USAGE if the folder holds checkpoints and the run does not continue from any of them; STATUS_CHECKPOINT if it,
 * its checkpoints/ or its log/ exists and is no folder, such as a link whose disk is not mounted. */
enum status run_home_check(const struct run_home *home, struct error *err);

/* STATUS_USAGE if this user may not write there, or into the nearest folder above it that exists. Makes nothing. */
enum status run_home_check_room(const struct run_home *home, struct error *err);

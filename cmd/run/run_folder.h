/* SPDX-License-Identifier: Apache-2.0 */
/* run_folder.h: the folder of a run, <run.dir>/<run.name>/:
 *
 *   run.yaml          the effective spec              metrics.jsonl   a line per step
 *   checkpoints/      see ckpt/checkpoint.h           log/            rank-00000.log, …
 *   lock, owner       its owner: run_lock.h           flight/         flight_recorder.h
 *   kernels-GPU.txt   run_kernels.c */
#pragma once

#include "cmd/run/run_lock.h"
#include "core/fsutil.h"
#include "core/spec/spec.h"

struct checkpoint;
struct device;

/* Rank 0 or a dry run decides; struct run_home is broadcast: no pointers. */
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

/* STATUS_USAGE if the folder holds checkpoints and the run does not continue from any of them; STATUS_CHECKPOINT if the
 * run folder, checkpoints/ or log/ exists but is not a folder, for example a link to a disk that is not mounted. */
enum status run_home_check(const struct run_home *home, struct error *err);

/* STATUS_USAGE if this user may not write there, or into the nearest folder above it that exists. Makes nothing. */
enum status run_home_check_room(const struct run_home *home, struct error *err);

struct run_folder {
    char path[3072];        /* that of run_home */
    char checkpoints[3200]; /* <path>/checkpoints */
    char metrics[3200];     /* <path>/metrics.jsonl */
    struct run_lock *lock;  /* rank 0's while the run lives (owned), else NULL */
};

/* Fills in the paths. Makes nothing. */
void run_folder_init(struct run_folder *folder, const struct run_home *home);

/* Rank 0 makes the folder and locks it. STATUS_CHECKPOINT, here and below: a disk that is full or fails. */
enum status run_folder_open(struct run_folder *folder, const struct run_home *home, struct error *err);

/* run_lock_check() on rank 0. folder: a struct run_folder, for checkpoint_writer and metrics_ask_owner(). */
enum status run_folder_still_ours(void *folder, struct error *err);

/* Opens this rank's log file, once rank 0 has locked the run folder. */
enum status run_folder_open_log(const struct run_folder *folder, int rank, struct error *err);

/* Waits for an owner file with rank 0's nonce. STATUS_USAGE: this node sees another folder than rank_0, its host. */
enum status run_folder_check_shared(const struct run_folder *folder, const char *nonce, const char *rank_0,
                                    struct error *err);

/* Writes run.yaml, the effective spec. */
enum status run_folder_write_spec(const struct run_folder *folder, const struct run_spec *spec, struct error *err);

/* Gives the device the choices of the checkpoint's run, before it measures; returns their text (owned), or NULL. */
char *run_kernels_take(struct device *device, const struct run_home *home, const struct checkpoint *checkpoint);

/* Then: the text of `taken` (or NULL) and of what the device has chosen too. Owned by the caller, or NULL. */
char *run_kernels_join(struct device *device, const char *taken);

/* Writes the text into the run folder; a failure is a warning. */
void run_kernels_write(const char *folder, const struct device *device, const char *text);

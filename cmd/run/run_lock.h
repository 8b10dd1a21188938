/* SPDX-License-Identifier: Apache-2.0 */
/* run_lock.h: one job at a time writes in a folder, on any file system and from any node (run_lock.c). */
#pragma once

#include "core/status.h"

enum { RUN_LOCK_NONCE = 33 }; /* bytes of a nonce with its end */

/* The owner, as the file `owner` records it. Texts that are unknown are empty, numbers 0. */
struct run_owner {
    char nonce[RUN_LOCK_NONCE]; /* hexadecimal digits; new for each start of a run */
    char host[256];
    char boot[64];      /* the kernel's boot id: the same machine, not rebooted since */
    char pid_space[64]; /* the PID namespace: in another container pids differ */
    int64_t pid, began; /* the process, and its start in clock ticks since the boot */
    char cluster[64];   /* Slurm's, with job, step and restarts */
    char job[32], step[32];
    int64_t restarts;
    bool locked;   /* it held the fcntl lock, so the file system has such locks */
    double period; /* seconds between two refreshes */
};

struct run_lock_words {
    const char *folder, *other; /* "run folder", "another run" */
    const char *hint;           /* where it is in use */
};

struct run_lock_config {
    struct run_lock_words words;
    struct run_owner self;         /* run_lock_take() sets nonce, locked and period */
    double period;                 /* seconds between two refreshes; an owner that misses three is taken for dead */
    double patience;               /* seconds to wait for an owner that is alive or ending */
    double (*now)(void);           /* seconds of a monotonic clock */
    void (*pause)(double seconds); /* sleeps, with heartbeats */
    int (*asked_to_stop)(void);    /* not 0: ends the wait */
};

/* That of a run in this process. */
void run_lock_config_init(struct run_lock_config *config);

struct run_lock;

/* Takes the lock of `folder`, which exists; may wait. STATUS_USAGE: another run uses it (named), or it cannot be
 * locked; STATUS_CHECKPOINT: the disk is full or fails; STATUS_REQUEUE: asked to stop while it waited. */
enum status run_lock_take(struct run_lock **lock, const char *folder, const struct run_lock_config *config,
                          struct error *err);

/* The cause (error_cause()) of an error about a folder that is gone: trying again is of no use. */
#define RUN_LOCK_GONE EIDRM

/* Reads the owner file again. STATUS_USAGE: another job has taken over, so nothing may be written any more;
 * STATUS_CHECKPOINT: it cannot be read, or the folder is gone: moved, deleted or replaced (RUN_LOCK_GONE). */
enum status run_lock_check(struct run_lock *lock, struct error *err);

/* The same by the last reading of the refreshing thread, once a period. */
enum status run_lock_check_quickly(struct run_lock *lock, struct error *err);

/* Whether the owner file in `folder` has a lock's nonce, as another node sees it. */
const char *run_lock_nonce(const struct run_lock *lock);
bool run_lock_is_owner(const char *folder, const char *nonce);

/* Whether a run lives in `folder`, for a reader: on this machine its process lives; on another one it refreshed the
 * owner file not long ago, by the clocks of both. A run that was killed there seems to live for half a minute. */
bool run_lock_in_use(const char *folder);

/* Deletes the owner file if it is this run's, and unlocks. folder: it was made for the lock, and is deleted too, unless
 * another process has come or something else is in it. NULL is allowed. */
void run_lock_release(struct run_lock *lock, bool folder);

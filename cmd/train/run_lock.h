/* run_lock.h: one job at a time writes in a run folder, on any file system and from any node. run_lock.c tells the
 * protocol. Rank 0 of a job holds the lock; commands that only read take none. */
#ifndef ZTRAIN_CMD_TRAIN_RUN_LOCK_H
#define ZTRAIN_CMD_TRAIN_RUN_LOCK_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Who owns a run folder: what the file `owner` says. Texts are empty and numbers 0 where they are unknown. */
struct run_owner {
    char nonce[33]; /* hexadecimal digits; new for each start of a run */
    char host[256];
    char boot[64];      /* the kernel's boot id: the same machine, not rebooted since */
    char pid_space[64]; /* the PID namespace: elsewhere, as in another container, a pid means nothing */
    int64_t pid, began; /* the process, and when it began (clock ticks since the boot): pids are used again */
    char cluster[64];   /* Slurm's, with the job's number, the step's and the job's restarts */
    char job[32], step[32];
    int64_t restarts;
    bool locked;   /* it held the fcntl lock: its file system has such locks */
    double period; /* seconds between two refreshes */
};

struct run_lock_config {
    struct run_owner self;         /* of which run_lock_take() sets nonce, locked and period */
    double period;                 /* seconds; an owner that was silent for three of them is taken to be dead */
    double patience;               /* seconds that an owner that is alive, or ends, is waited for */
    double (*now)(void);           /* seconds; a clock that nobody sets */
    void (*pause)(double seconds); /* sleeps; ticks progress */
    bool (*asked_to_stop)(void);   /* ends the wait */
};

/* What ztrain uses: this process, the periods of run_lock.c, the real clock, the stop signals. */
void run_lock_config_init(struct run_lock_config *config);

struct run_lock;

/* Takes the lock of `folder`, which exists. Waits, with a line that says for whom and how long, where that may help.
 * STATUS_USAGE: another run uses the folder (named), or it cannot be locked; STATUS_CHECKPOINT: the disk is full or
 * fails; STATUS_REQUEUE: asked to stop while it waited. */
enum status run_lock_take(struct run_lock **lock, const char *folder, const struct run_lock_config *config,
                          struct error *err);

/* Reads the owner file again. STATUS_USAGE: another job has taken over, so nothing may be written any more;
 * STATUS_CHECKPOINT: it cannot be read. */
enum status run_lock_check(struct run_lock *lock, struct error *err);

/* The same as far as is known without touching the disk: the refreshing thread reads the file once a period. */
enum status run_lock_check_quickly(struct run_lock *lock, struct error *err);

/* Deletes the owner file if it is this run's, and unlocks. NULL is allowed. */
void run_lock_release(struct run_lock *lock);

#endif

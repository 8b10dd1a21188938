/* SPDX-License-Identifier: Apache-2.0 */
/* run_folder.h: the folder of a run, <run.dir>/<run.name>/:
 *
 *   run.yaml          the effective spec              metrics.jsonl   a line per step
 *   checkpoints/      see ckpt/checkpoint.h           log/            rank-00000.log, …
 *   lock, owner       its owner: run_lock.h           flight/         flight_recorder.h
 *   kernels-GPU.txt   run_kernels.h
 */
#pragma once

#include "cmd/run/run_home.h"
#include "cmd/run/run_lock.h"
#include "core/spec/spec.h"

struct run_folder {
    char path[3072];        /* run_home.h */
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

/* checkpoint.h: the state of a run on disk: per-rank zstd shards, a manifest, atomic publication, reshard on load.
 * The format is specified in docs/checkpoint-format.md.
 *
 *   <run>/checkpoints/epoch-0001/manifest.json, rank-00000.zst, …     step-00000020/ between epochs
 *   <run>/checkpoints/latest -> epoch-0001
 *
 * Written as .tmp-NAME/, every file fsynced, the manifest last, then renamed; `latest` moves after every rank has
 * finished. Every byte is covered by a checksum in the manifest (and the manifest by its own). */
#ifndef ZTRAIN_CKPT_CHECKPOINT_H
#define ZTRAIN_CKPT_CHECKPOINT_H

#include "comm/comm.h"
#include "core/loss_scaler.h"
#include "core/retry.h"
#include "core/shard.h"
#include "core/state_slices.h"
#include "core/tensors.h"

#include <jansson.h>

/* Where training stands. All of it is in the manifest. */
struct train_position {
    int64_t step;           /* steps done, skipped ones included: the next is step + 1 */
    int64_t optimizer_step; /* updates done: t of Adam, k of the schedule */
    int64_t epoch;          /* the epoch that the last step belongs to, from 1 */
    int64_t step_in_epoch;  /* steps of it that are done */
    int64_t skipped_in_row;
    double epoch_loss_sum; /* sum of losses of this epoch's steps, over all ranks, and their targets: for train_loss */
    int64_t epoch_targets;
    int64_t tokens;            /* trained since the run's start */
    struct loss_scaler scaler; /* of the next step; scale 0: the checkpoint holds none */
    bool epoch_end;            /* this checkpoint ends `epoch` and is named after it: epoch-NNNN */
    bool evaluation_due;       /* a stop came first: the evaluation after `step`, and what follows it, are to be done */
};

/* What rank 0 keeps from one save of a run to the next: the tokenizer files, read once, since their folder may be gone
 * when a checkpoint is due; and which checkpoints there are, so that a save opens none that an earlier one has seen. */
struct checkpoint_keeper;

/* tokenizer_dir: a Hugging Face folder whose tokenizer files, those that there are, go into each checkpoint; or NULL.
 * STATUS_DATA: one of them cannot be read. */
enum status checkpoint_keeper_new(const char *tokenizer_dir, struct checkpoint_keeper **keeper, struct error *err);
void checkpoint_keeper_free(struct checkpoint_keeper *keeper); /* NULL is allowed */

struct checkpoint_writer {
    const char *dir;       /* <run>/checkpoints; made if absent */
    int compression_level; /* 0: stored, no zstd compression (frames of raw blocks) */
    int64_t keep_last;     /* 0: all */
    const struct tensor_table *table;
    const struct shard_layout *layout;
    struct comm *comm; /* world 1 too */
    const char *host;
    const json_t *spec;        /* spec_to_json() (borrowed) */
    const json_t *model;       /* config.json of the model (borrowed) */
    const json_t *machine;     /* what the run computes with: an object of texts, integers and booleans (borrowed); may
                                  be NULL */
    uint64_t data_fingerprint; /* token_set_check() of the training data */
    enum dtype dtype;          /* compute dtype of the run, for information and the default of export */
    struct checkpoint_keeper *keeper; /* rank 0's; others: NULL */
    /* Rank 0's; NULL: always. Whether the run folder is still this run's; asked right before the checkpoint gets its
     * name, before `latest` moves and before anything is deleted. An error other than STATUS_OK ends the save with it.
     */
    enum status (*still_owner)(void *context, struct error *err);
    void *owner;
};

/* Collective. `slices` are this rank's, for reading; each is used before the next is asked for. On
 * success *name (at least 64 bytes) is the checkpoint's folder name, *bytes its size over all ranks. Old checkpoints
 * beyond keep_last, those with names that ztrain writes, are deleted after `latest` has moved; with keep_last every
 * rank reads its file back from the disk and compares it with its checksums before the checkpoint is published. Stale
 * .tmp- folders are deleted first. An existing folder of the same name: replaced if it is valid and of the same step,
 * moved aside if damaged (NAME.damaged-N) or of another step (NAME.aside-N); so are checkpoints of later steps, which
 * this run has turned away from. Errors: STATUS_CHECKPOINT with file and errno, the same on every rank; the previous
 * one stays valid. checkpoint_save.c tells the order of things and what a kill leaves. */
enum status checkpoint_save(const struct checkpoint_writer *writer, const struct train_position *position,
                            struct state_slices slices, char *name, int64_t *bytes, struct error *err);

/* How often a reader takes the newest checkpoint anew, where a run that trains meanwhile has deleted or replaced it. */
enum { CHECKPOINT_TRIES = 5 };

/* A checkpoint's manifest, read and checked against its own checksum. */
struct checkpoint {
    char path[4096]; /* its folder */
    json_t *manifest;
    struct train_position position;
    json_t *spec;              /* borrowed from manifest */
    json_t *model;             /* borrowed: config.json */
    json_t *machine;           /* borrowed: what the run computed with; NULL: it does not say */
    uint64_t data_fingerprint; /* 0: it has none */
    int world;                 /* that wrote it */
    int64_t bytes;
    enum dtype dtype;
    struct retry retry; /* what checkpoint_read() and _load() do about a disk that fails: nothing, until it is set */
    /* parsed unit and file tables are private to checkpoint.c */
    void *private_;
};

/* Opens `dir`: a checkpoint, or a run folder (<run> or <run>/checkpoints): then the newest valid one, and each newer
 * one that is damaged is reported with log_warn. full: every byte is verified before one is taken; else manifest and
 * file sizes (the contents are verified while they are loaded). STATUS_CHECKPOINT with file (and offset where there is
 * one). */
enum status checkpoint_open(const char *dir, bool full, struct checkpoint **checkpoint, struct error *err);
/* Whether the checkpoint's folder has been deleted or replaced since it was opened. A failed read is not damage then.
 */
bool checkpoint_is_gone(const struct checkpoint *checkpoint);
void checkpoint_close(struct checkpoint *checkpoint);

/* Verifies every byte; the first fault is in err with file and offset. */
enum status checkpoint_verify(const struct checkpoint *checkpoint, struct error *err);

/* Reads elements [first, first + count) of a unit's flat range (any writer's world size) of one kind of state into out.
 * Only the frames that cover the range are read; each is verified. What cannot be read is tried
 * again as checkpoint->retry has it, for each writer's slice anew. */
enum status checkpoint_read(const struct checkpoint *checkpoint, enum state_kind state, int unit, int64_t first,
                            int64_t count, float *out, struct error *err);

/* Checks that the checkpoint's tensors are this table's: names, shapes, offsets; else names the first difference. */
enum status checkpoint_check_table(const struct checkpoint *checkpoint, const struct tensor_table *table,
                                   struct error *err);

/* Checks that the checkpoint's tensors are this table's, then reads this rank's slices of every state and unit into
 * `slices`, for writing; each is filled before the next is asked for; tries again as checkpoint_read()
 * does. */
enum status checkpoint_load(const struct checkpoint *checkpoint, const struct tensor_table *table,
                            const struct shard_layout *layout, int rank, struct state_slices slices, struct error *err);

/* Whether `dir` (<run>/checkpoints) holds any checkpoint folder, valid or not. */
bool checkpoint_any(const char *dir);

#endif

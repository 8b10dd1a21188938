/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.h: the state of a run on disk: per-rank zstd shards, a manifest, atomic publication, reshard on load.
 * docs/checkpoint-format.md specifies the format.
 *
 *   <run>/checkpoints/epoch-0001/manifest.json, rank-00000.zst, …     step-00000020/ between epochs
 *   <run>/checkpoints/latest -> epoch-0001
 *
 * A checksum in the manifest covers every byte of the other files, and its own covers the manifest. */
#pragma once

#include "comm/comm.h"
#include "core/data/token_set.h"
#include "core/metrics/eval_metric.h"
#include "core/metrics/loss_spike.h"
#include "core/model/shard.h"
#include "core/model/state_slices.h"
#include "core/model/tensor_table.h"
#include "core/retry.h"
#include "core/training/loss_scaler.h"

/* Where training stands. All of it is in the manifest. */
struct train_position {
    int64_t step;           /* steps done, including skipped ones: the next one is step + 1 */
    int64_t optimizer_step; /* updates done: Adam's t and the schedule's k */
    int64_t epoch;          /* the epoch that the last step belongs to, from 1 */
    int64_t step_in_epoch;  /* steps of this epoch that are done */
    int64_t skipped_in_row;
    double epoch_loss_sum; /* sum of the losses of this epoch's steps over all ranks; with epoch_targets: train_loss */
    int64_t epoch_targets;
    int64_t tokens;             /* trained on since the start of the run */
    struct loss_scaler scaler;  /* for the next step; scale 0: the checkpoint has none */
    bool epoch_end;             /* this checkpoint ends `epoch` and is named after it: epoch-NNNN */
    bool evaluation_due;        /* the run stopped before the evaluation after `step`, which is still to be done */
    struct eval_scores scores;  /* of the evaluation after `step`, if there was one */
    struct early_stop stopping; /* counts the evaluations that have not improved */
    struct loss_mean mean_loss; /* of the losses so far, with train.spike_factor; else all zero */
    bool stopped_early;         /* the run has ended here because of them */
};

/* What rank 0 keeps for all saves of a run: the tokenizer files, whose folder may be gone later; and the list of
 * checkpoints, so that a save opens only new ones.
 *
 * tokenizer_dir: a Hugging Face folder, whose tokenizer files go into each checkpoint; model_dir: one with a
 * generation_config.json for them. Both may be NULL. STATUS_DATA: one of the files cannot be read. */
struct checkpoint_save_cache;
enum status checkpoint_save_cache_new(const char *tokenizer_dir, const char *model_dir,
                                      struct checkpoint_save_cache **cache, struct error *err);
void checkpoint_save_cache_free(struct checkpoint_save_cache *cache); /* NULL is allowed */
RELEASER(save_cache_drop, struct checkpoint_save_cache, checkpoint_save_cache_free)

/* What a checkpoint does not hold: the frozen base of an adapter, and what a multimodal folder has beside its text
 * model. */
struct checkpoint_base {
    uint64_t hash;      /* base_hash.h */
    const char *folder; /* the Hugging Face folder that it was read from; NULL: initial values */
    int64_t seed;       /* of initial values */
};

/* Which checkpoints stay when a new one is complete. All zero: all of them. */
struct checkpoint_keep {
    int64_t last;        /* this many newest ones; 0: all */
    int64_t best;        /* and this many with the best scores */
    int64_t every_steps; /* and those of its multiples; 0: none */
    enum eval_metric metric;
    enum eval_mode mode;
    uint64_t data; /* of which evaluations the scores compare: eval_scores.data */
};

/* All pointers are borrowed. */
struct checkpoint_writer {
    const char *dir;       /* <run>/checkpoints; created if absent */
    int compression_level; /* level of zstd; 0: no compression (frames of raw blocks) */
    struct checkpoint_keep keep;
    const struct tensor_table *table;
    const struct shard_layout *layout;
    int virtual_ranks; /* train.virtual_ranks */
    struct comm *comm; /* required with one rank as well */
    const char *host;
    const json_t *spec;    /* spec_to_json() */
    const json_t *model;   /* config.json of the model */
    const json_t *machine; /* hardware and libraries: an object of texts, integers and booleans; may be NULL */
    struct data_fingerprint data_fingerprint; /* token_set_check() of the training data */
    const json_t *evaluation_part;            /* eval_part_to_json() of the evaluation that is due; NULL: not begun */
    const json_t *adapter;                    /* the members of adapter_config.json; or NULL */
    struct checkpoint_base base;              /* with adapter; else all zero, but for multimodal folders */
    enum dtype dtype; /* compute dtype of the run: for information, and the default dtype of an export */
    struct checkpoint_save_cache *cache; /* on rank 0; on other ranks NULL */
    /* On rank 0: checks that the run folder still belongs to this run; NULL: it always does. Called before anything is
     * made, before the checkpoint gets its name, before `latest` moves, and before anything is deleted. */
    enum status (*still_owner)(void *context, struct error *err);
    void *owner;
};

/* Writes a checkpoint. A thread that does not communicate may do the disk's work:
 *
 *     checkpoint_saving_new();
 *     do {
 *         checkpoint_saving_work();        this rank's share of a part; any thread, without the communicator
 *         checkpoint_saving_agree();       collective, once every rank's share is done
 *     } while (!complete);                 or until an error
 *     checkpoint_saving_free();
 *
 * The writer, what it points to and the slices must not change until checkpoint_saving_free(). Each slice is used
 * before the next is asked for. On rank 0 a share uses writer->cache: no other function may meanwhile.
 *
 * With keep.last every rank compares its file on the disk with its checksums before publication, and afterwards the old
 * checkpoints that `keep` does not name are deleted (checkpoint_retention.h). A folder of the same name is replaced if
 * it is valid and of the same step, else moved aside: as NAME.damaged-N or, of another step, as NAME.aside-N. So are
 * checkpoints of later steps, a history that this run has left. checkpoint_save.c has the order of the steps. */
struct checkpoint_saving;

void checkpoint_saving_new(const struct checkpoint_writer *writer, const struct train_position *position,
                           struct state_slices slices, struct checkpoint_saving **saving);
void checkpoint_saving_work(struct checkpoint_saving *saving);
/* *complete: the checkpoint is published. An error (STATUS_CHECKPOINT with file and errno, or still_owner()'s) is the
 * same on all ranks and ends the save; the previous checkpoint stays valid. */
enum status checkpoint_saving_agree(struct checkpoint_saving *saving, bool *complete, struct error *err);
/* The folder's name; and the size over all ranks of a complete one. */
const char *checkpoint_saving_name(const struct checkpoint_saving *saving);
int64_t checkpoint_saving_bytes(const struct checkpoint_saving *saving);
/* clean: deletes what a save that failed has left on the disk, unless a rank that is lost may still write there; else
 * the next save deletes it. Any thread. NULL is allowed. */
void checkpoint_saving_free(struct checkpoint_saving *saving, bool clean);

/* On rank 0: whether a checkpoint of this position would be among the keep->best best ones of the folder `dir`. true,
 * with a warning, if the others' manifests cannot be read. */
bool checkpoint_is_among_best(struct checkpoint_save_cache *cache, const char *dir, const struct checkpoint_keep *keep,
                              const struct train_position *position);

/* On rank 0, on a resume from NAME of `position`, the newest one in `dir`: does again what follows a complete save.
 * Failures are warnings. */
void checkpoint_save_tidy(struct checkpoint_save_cache *cache, const char *dir, const char *name,
                          const struct train_position *position, const struct checkpoint_keep *keep);

/* How often a reader looks for the newest checkpoint again if a run that is training has deleted or replaced it. */
enum { CHECKPOINT_TRIES = 5 };

/* A checkpoint's manifest, read and checked against its own checksum. */
struct checkpoint {
    char path[4096]; /* its folder */
    json_t *manifest;
    struct train_position position;
    json_t *spec, *model;        /* borrowed from manifest; model: config.json */
    json_t *machine;             /* borrowed: hardware and libraries; NULL: not in the manifest */
    json_t *evaluation_part;     /* borrowed: for eval_part_from_json(), which accepts it; NULL: not in the manifest */
    json_t *adapter;             /* borrowed: the members of adapter_config.json; NULL: no adapter */
    struct checkpoint_base base; /* with adapter; else all zero, but for multimodal folders */
    struct data_fingerprint data_fingerprint; /* 0: not in the manifest */
    int world;                                /* number of ranks that wrote it */
    int virtual_ranks, num_states;            /* virtual_ranks 0: none */
    bool moment_blocks;                       /* moments are in 8 bits: tensor_table_build_for() */
    bool hashed;                              /* the manifest has hashes */
    uint64_t hashes[STATE_KIND_COUNT];        /* (num_states) of the state: state_hash.h */
    int64_t bytes;
    enum dtype dtype;
    struct retry retry; /* how checkpoint_read() and checkpoint_load() retry a failing disk; all zero: they do not */
    void *private_;     /* parsed manifest and open files (checkpoint_read.h) */
};

/* Opens `dir`: a checkpoint, or the newest valid one of a run folder (<run> or <run>/checkpoints); log_warn() reports
 * newer ones that are damaged. full: verifies every byte, else only the manifest and the file sizes. */
enum status checkpoint_open(const char *dir, bool full, struct checkpoint **checkpoint, struct error *err);
/* The same with a function of the caller's in place of checkpoint_verify(): STATUS_CHECKPOINT that is not
 * error_is_unreadable() is damage. */
typedef enum status checkpoint_verifier(void *context, const struct checkpoint *checkpoint, struct error *err);
enum status checkpoint_open_verified(const char *dir, checkpoint_verifier *verify, void *context,
                                     struct checkpoint **checkpoint, struct error *err);
/* Opens a checkpoint that another rank has opened; looks only at the files of checkpoint_verify_part()'s share. */
enum status checkpoint_open_part(const char *folder, int part, int parts, struct checkpoint **checkpoint,
                                 struct error *err);
/* Opens the checkpoint of a run folder with the best evaluation, by the keys of the run's newest one; of equal ones the
 * earliest. STATUS_CHECKPOINT: none was evaluated, or the best one is damaged. STATUS_USAGE: dir is one checkpoint. */
enum status checkpoint_open_best(const char *dir, bool full, struct checkpoint **checkpoint, struct error *err);
/* Whether the checkpoint's folder was deleted or replaced since it was opened: a failed read is not damage then. */
bool checkpoint_is_gone(const struct checkpoint *checkpoint);
void checkpoint_close(struct checkpoint *checkpoint); /* NULL is allowed */
RELEASER(checkpoint_drop, struct checkpoint, checkpoint_close)

/* Verifies every byte; err names the first fault. */
enum status checkpoint_verify(const struct checkpoint *checkpoint, struct error *err);
/* The same of one of `parts` shares (from 0) of about the same size. With as many shares as ranks wrote the checkpoint,
 * share r is the file of rank r; the last one also has the tokenizer's files. */
enum status checkpoint_verify_part(const struct checkpoint *checkpoint, int part, int parts, struct error *err);

/* Reads elements [first, first + count) of a unit's flat range of one kind of state, whatever the writer's world size.
 * Each frame that is read is verified. The checkpoint has the unit: checkpoint_stores(). */
enum status checkpoint_read(const struct checkpoint *checkpoint, enum state_kind state, int unit, int64_t first,
                            int64_t count, float *out, struct error *err);

/* Whether the unit is in the checkpoint: it is not of an adapter's base. */
bool checkpoint_stores(const struct checkpoint *checkpoint, int unit);

/* The model that was trained, and its table with the adapter, for readers of only the parameters. The caller releases
 * both, after an error too. */
enum status checkpoint_model(const struct checkpoint *checkpoint, struct model_desc *desc, struct tensor_table *table,
                             struct error *err);

/* STATUS_CHECKPOINT: the adapter of the checkpoint was trained on another base. The error names both hashes. */
enum status checkpoint_check_base(const struct checkpoint *checkpoint, const struct checkpoint_base *base,
                                  struct error *err);

/* Checks that the checkpoint has the tensors of this table; the error names the first difference. */
enum status checkpoint_check_table(const struct checkpoint *checkpoint, const struct tensor_table *table,
                                   struct error *err);

/* Checks the table, then fills this rank's slices of every state and unit, one after the other. */
enum status checkpoint_load(const struct checkpoint *checkpoint, const struct tensor_table *table,
                            const struct shard_layout *layout, int rank, struct state_slices slices, struct error *err);

/* Whether `dir` (<run>/checkpoints) holds a folder with the name of a checkpoint, which a user may have renamed;
 * history: with ztrain's name of one that was not moved aside. STATUS_CHECKPOINT: it exists and cannot be listed. */
enum status checkpoint_any(const char *dir, bool history, bool *any, struct error *err);

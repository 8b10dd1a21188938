/* spec.h: the run spec. The only reader of YAML (spec_load.c and what it calls). One key table (spec_keys.c) drives
 * parsing, defaults, --help-spec, the documentation and the comparison on resume.
 *
 * Errors are collected, all of them, as "file:line:column: message; hint"; the caller prints them and exits 2. An error
 * about an absent key is placed at 1:1, one about an override at "--set a.b.c".
 *
 *   spec_load          files and overrides to values and defaults
 *   spec_resolve_*     what is known only later: the world size, the length of the data
 *   spec_write_yaml, spec_to_json, spec_compare    the effective spec: for people, the manifest, a resumed run
 *
 * The length of a run: epochs and max_steps set: whichever ends first; epochs alone: so many passes over the data;
 * max_steps alone: the data repeat until then; neither: one epoch. */
#ifndef ZTRAIN_CORE_SPEC_SPEC_H
#define ZTRAIN_CORE_SPEC_SPEC_H

#include "core/dtype.h"
#include "core/loss_scaler.h"
#include "core/optimizer_settings.h"
#include "core/schedule.h"
#include "core/status.h"
#include "core/string_list.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum spec_graphs { SPEC_GRAPHS_AUTO, SPEC_GRAPHS_ON, SPEC_GRAPHS_OFF };
enum spec_device { SPEC_DEVICE_AUTO, SPEC_DEVICE_CPU, SPEC_DEVICE_CUDA };

struct run_spec {
    char *path; /* of the file, as given */
    struct {
        char *name; /* default: the file's name without .yaml */
        char *dir;
        uint64_t seed;
    } run;
    struct {
        char *pretrained;  /* a Hugging Face folder, or NULL */
        char *config_path; /* a config.json or a folder with one, or NULL */
        json_t *config;    /* model.config given as a mapping, or NULL */
        char where[512];   /* "file:line:column" of the model key that is set, for messages about its content */
    } model;
    struct {
        struct string_list train, validation; /* validation.count 0: none */
        int64_t seq_length;
        bool shuffle, packing;
    } data;
    struct {
        int64_t epochs;                            /* 0: unset */
        int64_t max_steps;                         /* 0: unset */
        int64_t eval_interval_steps, eval_batches; /* 0: only at ends; 0: all */
        enum spec_device device;
        enum spec_graphs cuda_graphs;
    } train;
    struct {
        int64_t interval_steps, keep_last; /* 0: only at ends; 0: keep all */
        double retry_seconds;
        int compression_level;
    } checkpoint;
    struct {
        double timeout_seconds, io_timeout_seconds;
        char *interface; /* or NULL */
        bool reduce_within_node;
    } comm;

    /* DeepSpeed's keys. Batch sizes: 0 = unset or "auto" until spec_resolve_batch() */
    int64_t train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps;
    double gradient_clipping; /* 0: off */
    struct optimizer_settings optimizer;
    struct schedule_spec scheduler; /* total_steps 0: the run's length, set by spec_resolve_steps() */
    enum dtype dtype;               /* of parameters and activations: bf16.enabled, fp16.enabled, else fp32 */
    int64_t max_skipped_steps; /* K consecutive non-finite steps abort: default 10; not with a dynamic loss scale */
    struct loss_scaler_rules loss_scaler;
    double initial_loss_scale; /* 1 without fp16 */
    struct {
        int stage;
        bool overlap_comm;                                 /* default true */
        int64_t reduce_bucket_size, allgather_bucket_size; /* elements */
    } zero;
    bool activation_checkpointing; /* activation_checkpointing.enabled: recompute blocks in backward */
    int64_t steps_per_print;       /* default 10 */
    bool wall_clock_breakdown;
    void *private_; /* what stands behind it (struct spec_full in spec_keys.h): what was given and what is derived */
};

/* Lines for the user: errors ("file:line:column: message; hint") and notices (accepted keys that have no effect). */
struct spec_report {
    struct string_list errors, notices;
};
void spec_report_release(struct spec_report *report);

/* Reads `path`, then the DeepSpeed JSON file `deepspeed` (or NULL; its keys count as if they stood in the spec, a key
 * set in both is an error), then the --set overrides ("a.b.c=VALUE"), checks all, fills defaults. Returns STATUS_OK, or
 * STATUS_USAGE with at least one line in report->errors. *spec is owned by the caller (spec_free). */
enum status spec_load(const char *path, const char *deepspeed, const char *const *overrides, int num_overrides,
                      struct run_spec **spec, struct spec_report *report);
void spec_free(struct run_spec *spec);

/* The same from text in memory; `path` only names it. For tests. */
enum status spec_load_text(const char *path, const char *text, size_t size, struct run_spec **spec,
                           struct spec_report *report);

/* The batch triangle for `world` ranks: fills the three batch sizes or says what does not fit. `world_source` says
 * where the world size came from ("--local-gpus 2", "srun", …) and goes into the message. */
enum status spec_resolve_batch(struct run_spec *spec, int world, const char *world_source, struct error *err);

/* The same for a run that goes on from a checkpoint with the spec `stored` (spec_to_json of then), written by
 * stored_world ranks: train_batch_size stays what it was, the accumulation adapts to the world size, and the micro
 * batch where the spec does not give it. What cannot be split lists the world sizes that can. */
enum status spec_resolve_batch_resumed(struct run_spec *spec, int world, const char *world_source, const json_t *stored,
                                       int stored_world, struct error *err);

/* Once the data are known: the number of optimizer steps of the whole run, from epochs and max_steps (epochs unset and
 * max_steps set: the data repeat; both unset: 1 epoch). Fills scheduler.total_steps where it was absent or "auto".
 * steps_per_epoch > 0. */
int64_t spec_resolve_steps(struct run_spec *spec, int64_t steps_per_epoch);

/* The effective spec as YAML that spec_load() reads back to the same; all: defaults too, else only what differs. What
 * was derived from the world size or the data stands there as a comment, so that the file fits another world size, too.
 */
void spec_write_yaml(const struct run_spec *spec, FILE *out, bool all);

/* The effective spec as a flat JSON object: {"data.seq_length": 1024, …}, for the checkpoint's manifest; keys that are
 * unset are left out. After the spec_resolve_…() calls. New reference. */
json_t *spec_to_json(const struct run_spec *spec);

/* Compares with the spec stored in a checkpoint (spec_to_json of then), after the spec_resolve_…() calls. A key whose
 * change would silently change the run (model, data, seed, seq_length, train_batch_size, precision, kind of optimizer)
 * makes an error line with both values and STATUS_USAGE; one that may change makes a notice line. same_model,
 * same_data: what model.… and data.train name holds what it held then, so that another path is only a notice. */
enum status spec_compare(const struct run_spec *spec, const json_t *stored, bool same_model, bool same_data,
                         struct spec_report *report);

/* Appends "'KEY'OF was 1 in the checkpoint and is 2 now" (NULL: unset); refused: and why that is an error. */
void spec_add_difference(struct string_list *list, const char *key, const char *of, const json_t *was,
                         const json_t *now, bool refused);

/* --help-spec: every key with type, default, range and one line of help; from the key table. markdown: docs/run-spec.md
 */
void spec_print_help(FILE *out, bool markdown);

#endif

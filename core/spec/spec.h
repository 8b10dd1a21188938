/* SPDX-License-Identifier: Apache-2.0 */
/* spec.h: the run spec. One key table (spec_keys.c) drives parsing, defaults, --help-spec, the documentation and the
 * comparison on resume. spec_load() turns files and overrides into values, spec_resolve_…() fill in what follows.
 * Errors are collected as "file:line:column: message; hint", of absent keys at 1:1, of overrides at "--set a.b.c". */
#pragma once

#include "core/metrics/eval_metric.h"
#include "core/model/model_config.h"
#include "core/training/loss_scaler.h"
#include "core/training/lr_schedule.h"

enum { SPEC_MAX_SOURCES = 64 }; /* of a mixture */

enum spec_device { SPEC_DEVICE_AUTO, SPEC_DEVICE_CPU, SPEC_DEVICE_CUDA };

/* A prompt of train.samples. */
struct spec_prompt {
    const char *text; /* NULL: token ids */
    int32_t *tokens;  /* (count) */
    int64_t count;
};

struct run_spec {
    char *path; /* path of the file, as given */
    struct {
        char *name; /* default: the name of the file without .yaml; of one of several adapters, its name */
        char *dir;
        char *group; /* of several adapters: run.name as it was given; the last part of `dir`. Else NULL */
        uint64_t seed;
    } run;
    struct {
        char *pretrained; /* a Hugging Face folder or the name of a model in the local cache, or NULL */
        struct string_list ignore_tensors; /* in the spec's arena: patterns of tensors in its files to leave out */
        char *config_path;                 /* the same, or a config.json; or NULL */
        json_t *config;                    /* model.config given as a mapping, or NULL */
        char *tokenizer;                   /* as pretrained */
        char *folder;           /* where pretrained or config_path is: a folder, or a file; NULL: a mapping */
        char *tokenizer_folder; /* where tokenizer is, or else `folder` if it is one; NULL: there is none */
        enum model_task task;
        int64_t num_labels;                    /* sequence_classification; 0: unset */
        double dropout;                        /* < 0: as config.json says */
        enum spec_switch train_pad_token;      /* AUTO: off, or as a resumed run began */
        enum spec_switch output_router_logits; /* AUTO: as config.json says, as the next */
        double router_aux_loss_coef;           /* < 0: unset */
        double router_z_loss_coef;
        char *adapter;                             /* a PEFT folder to start the adapter from, or NULL */
        bool load_in_4bit;                         /* matrices of the base are quantized when they are read, … */
        struct quantization_settings quantization; /* … like this; its list is in the spec's arena */
        char where[512]; /* "file:line:column" of the key that is set, for messages about its content */
    } model;
    int64_t expert_parallel_size; /* `moe` */
    struct preference_settings preference;
    struct adapter_settings adapter; /* `peft` */
    struct data_settings data;
    struct {
        double epochs;                             /* <= 0: unset */
        int64_t max_steps;                         /* 0: unset */
        int64_t eval_interval_steps, eval_batches; /* 0: only at the ends; 0: all */
        enum spec_device device;
        enum spec_switch cuda_graphs, sm_count_target;
        int64_t virtual_ranks;        /* the run's bits follow from it, not from the number of ranks; 0: unset */
        bool virtual_ranks_strict;    /* a rank without the run's kernels is refused */
        int64_t hash_interval_steps;  /* of these, one step has a hash of the parameters; 0: none */
        int64_t check_interval_steps; /* of these, one step is computed twice; 0: none */
        double spike_factor;          /* a loss above it times the running mean is reported; 0: off */
        int64_t memory_limit;         /* bytes of device memory that a rank may take; 0: unset */
        struct early_stop_rules early_stopping;
        struct spec_prompt *samples; /* (num_samples) in the spec's arena: continued at each evaluation */
        int num_samples;             /* 0: none */
        int64_t sample_tokens;       /* at most, of a continuation */
    } train;
    struct {
        int64_t interval_steps;   /* 0: only at the ends */
        int64_t keep_last;        /* 0: keep all */
        int64_t keep_best;        /* 0: none for its scores */
        int64_t keep_every_steps; /* 0: none for its step */
        enum eval_metric metric;
        enum eval_mode mode;
        bool save_at_epoch_end;
        double retry_seconds;
        int compression_level;
        enum spec_switch decoupled; /* training continues while a checkpoint is written; auto: where memory allows it */
    } checkpoint;
    struct monitor_settings {
        bool enabled;
        char *output_path, *job_name; /* or NULL: in the run's folder; the run's name */
    } tensorboard, csv_monitor;
    struct {
        bool enabled;
        bool verbose;                /* also log each collective */
        bool prof_all, debug;        /* record all collectives; show each block */
        struct string_list prof_ops; /* in the spec's arena: names of collectives to record unless prof_all */
    } comms_logger;
    struct {
        bool enabled, detailed;
        int64_t profile_step;
        int64_t module_depth, top_modules; /* -1: all */
        char *output_file;                 /* or NULL: the log */
    } flops_profiler;
    struct {
        double timeout_seconds, io_timeout_seconds;
        char *interface; /* or NULL */
        bool reduce_within_node;
    } comm;

    /* DeepSpeed's keys. Batch sizes: 0 = unset or "auto" until spec_resolve_batch() */
    int64_t train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps;
    double gradient_clipping; /* 0: off */
    struct optimizer_settings optimizer;
    struct schedule_spec scheduler;     /* total_steps 0: the length of the run, set by spec_resolve_steps() */
    enum dtype dtype;                   /* dtype of parameters and activations: bf16.enabled, fp16.enabled, else fp32 */
    enum dtype communication_data_type; /* in which gradients are reduced */
    enum dtype grad_accum_dtype;        /* in which they are accumulated: fp32 or bf16 */
    bool bf16_master, bf16_moments;     /* states in bf16; moments only with the master weights */
    bool prescale_gradients;            /* with fp16: see spec_comm_factor() */
    double gradient_predivide_factor;
    int64_t max_skipped_steps; /* this many consecutive non-finite steps end the run; not with a dynamic loss scale */
    struct loss_scaler_rules loss_scaler;
    double initial_loss_scale; /* 1 without fp16 */
    struct zero_settings zero;
    struct aio_settings aio; /* of offload to nvme */
    struct transformer_settings transformer;
    bool cpu_checkpointing;  /* the inputs of blocks are in host memory between forward and backward */
    int64_t steps_per_print; /* default 10 */
    bool wall_clock_breakdown;
    struct run_spec *next; /* owned: of the next adapter, where `peft` is a list; NULL: there is none */
    void *private_; /* the whole spec, struct spec_full in spec_keys.h: which values were given, which are derived */
};

/* Lines for the user; notices: accepted keys that have no effect. */
struct spec_report {
    struct string_list errors, notices;
};
void spec_report_release(struct spec_report *report);

/* Reads `path`, `deepspeed` (a DeepSpeed configuration or NULL; two values of a key are an error) and the overrides
 * "a.b.c=VALUE", checks all and fills in defaults. STATUS_USAGE: report->errors has lines. spec_free() frees *spec. */
enum status spec_load(const char *path, const char *deepspeed, const char *const *overrides, int num_overrides,
                      struct run_spec **spec, struct spec_report *report);

/* The same for YAML that is not in a file yet: `path` names it in messages, and names the run. */
enum status spec_load_text(const char *path, const char *text, const char *const *overrides, int num_overrides,
                           struct run_spec **spec, struct spec_report *report);

void spec_free(struct run_spec *spec);
RELEASER(spec_drop, struct run_spec, spec_free)

/* Virtual ranks that each of `world` ranks stands for, in turns; 1 without train.virtual_ranks. */
static inline int spec_turns(const struct run_spec *spec, int world)
{
    return spec->train.virtual_ranks ? (int)spec->train.virtual_ranks / world : 1;
}

/* Micro-batches that each of `world` ranks computes in a step. */
static inline int64_t spec_micros(const struct run_spec *spec, int world)
{
    return spec->gradient_accumulation_steps * spec_turns(spec, world);
}

/* Fills in the three batch sizes for `world` ranks, or names those that do not fit. With train.virtual_ranks they are
 * those of the virtual ranks. `world_source`: where the world size comes from ("srun", …), for the message. */
enum status spec_resolve_batch(struct run_spec *spec, int world, const char *world_source, struct error *err);

/* The same for the specs of several adapters. */
enum status spec_resolve_batches(struct run_spec *first, int world, const char *world_source, struct error *err);

/* The same for a run that is resumed: from stored_world ranks, with `stored` (its spec_to_json()). train_batch_size
 * stays, accumulation and a micro batch that is not given adapt. With train.virtual_ranks all stay. */
enum status spec_resolve_batch_resumed(struct run_spec *spec, int world, const char *world_source, const json_t *stored,
                                       int stored_world, struct error *err);

/* By which a rank multiplies its gradients before it sends them, after DeepSpeed's prescale_gradients and
 * gradient_predivide_factor: 1 unless communication_data_type is fp16. (ztrain's are already divided by the ranks.) */
double spec_comm_factor(const struct run_spec *spec, int world);

/* The steps of a run by train.epochs (<= 0) and train.max_steps (0: unset): the first to end; else one epoch. */
int64_t spec_run_length(double epochs, int64_t max_steps, int64_t steps_per_epoch);

/* The optimizer steps of the whole run; fills in scheduler.total_steps if it was absent or "auto". */
int64_t spec_resolve_steps(struct run_spec *spec, int64_t steps_per_epoch);

/* Replaces data.document_mask auto: on if data.train has loss masks and it has an effect, else off. */
void spec_resolve_document_mask(struct run_spec *spec, bool has_masks);

/* Takes document_mask, if auto, and the gradient_clipping that no file sets from a resumed run; notes its length. */
void spec_resolve_resumed(struct run_spec *spec, const json_t *stored);

/* The length of the resumed run at its checkpoint, if its schedule ended with it and still does; else 0. */
int64_t spec_former_steps(const struct run_spec *spec, int64_t steps_per_epoch);

/* Lets a resumed run, whose tokenizer folder is gone, take the files that its checkpoint has. */
void spec_resolve_tokenizer_resumed(struct run_spec *spec, const char *checkpoint);

/* Whether data.document_mask was auto. */
bool spec_document_mask_was_auto(const struct run_spec *spec);

/* Fills in the sizes that are "auto" and follow from the model, with the formulas of Hugging Face's Trainer. */
void spec_resolve_model(struct run_spec *spec, int64_t hidden_size);

/* Adds a line for each key that was "auto": "KEY: auto → VALUE, from ORIGIN", after spec_resolve_…(). */
void spec_auto_print(const struct run_spec *spec, struct string_list *lines);

/* YAML that spec_load() reads back, with all defaults. Values derived from world size or data are comments. */
void spec_write_yaml(const struct run_spec *spec, FILE *out);

/* The length of a file's name before the ending of text that is not tokenized (.jsonl, .csv.gz, …); 0: none. */
size_t spec_text_stem(const char *name);

/* Writes UTF-8 as a value in YAML, in quotes if it needs them. */
void spec_write_string(FILE *out, const char *text);

/* The spec after spec_resolve_…() as flat JSON, {"data.seq_length": 1024, …}, without unset keys. New reference. */
json_t *spec_to_json(const struct run_spec *spec);

/* Compares the spec, after spec_resolve_…(), with a checkpoint's. What would make another run is an error with both
 * values (STATUS_USAGE), the rest a notice, and so is a path whose contents are the same (same_model, same_data). */
enum status spec_compare(const struct run_spec *spec, const json_t *stored, bool same_model, bool same_data,
                         struct spec_report *report);

/* Adds a line with both values for each key of config.json by which `now` computes something else than `was`. */
void model_desc_compare(const struct model_desc *was, const struct model_desc *now, struct string_list *differences);

/* --help-spec; with --json: the key table, and what other trainers call the keys. */
void spec_print_help(FILE *out);
void spec_print_json(FILE *out);

/* A run.yaml, maybe of another version, as a flat object, {"train.epochs": "2"}, to show and compare. A new reference.
 * STATUS_CHECKPOINT: the file cannot be read or is no YAML mapping; *pairs is NULL. */
enum status spec_pairs_read(json_t **pairs, const char *path, struct error *err);

/* The value of a key; NULL: it is not set. */
static inline const char *spec_pairs_find(const json_t *pairs, const char *key)
{
    return json_string_value(json_object_get(pairs, key));
}

/* ---- other trainers' configurations -------------------------------------- */

struct convert_request {
    const char *const *files; /* arguments of Trainer or TRL, of axolotl or LLaMA-Factory; later files win */
    int num_files;
    const char *deepspeed; /* a DeepSpeed configuration, or NULL: the one that the files name */
    const char *out;       /* a file that must be none of those that are read; NULL: none */
    int world;             /* ranks, for train_batch_size; 0: it is left out */
};

/* Writes the run spec as YAML, and to `notes` what the user has to know: keys that are left out, files that are absent,
 * commands that make data. STATUS_USAGE: a file cannot be read, is `out`, or is of no known kind; nothing is written,
 * and `errors` has a line for each mistake but the one in err. */
enum status spec_convert(const struct convert_request *request, FILE *out, struct string_list *notes,
                         struct string_list *errors, struct error *err);

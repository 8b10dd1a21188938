/* SPDX-License-Identifier: Apache-2.0 */
/* init.h: the parts of `ztrain init`, in the order in which it calls them:
 *
 *   flags and answers, each checked at once -> model and data are read -> settings by the plan -> the run spec
 *
 * A flag and the answer to a question go through the same function, init_take_…(): it checks the text against what is
 * known by then, and keeps it. */
#pragma once

#include "cmd/plan.h"
#include "core/data/document_fit.h"
#include "core/data/label_set.h"
#include "core/fsutil.h"
#include "core/model/model_config.h"
#include "core/string_list.h"
#include "gpu/simulate/gpu_catalog.h"

struct init_flags {
    const char *model, *validation, *gpus, *device, *memory, *method, *seq_length, *batch, *epochs, *lr, *out;
    struct string_list data; /* owned */
    bool force;
};

/* The GPUs that this machine has. */
struct init_machine {
    int gpus;
    char name[128], why[256]; /* as the driver names them; why there is none */
    int64_t memory;           /* bytes of each */
};

enum init_method { INIT_FULL, INIT_LORA, INIT_QLORA };

enum { INIT_LENGTHS = 32 };

struct init {
    struct init_flags flags;
    bool asks; /* questions about what flags leave open: stdin and stderr are terminals */
    int ranks; /* GPUs; on the CPU 1 */
    bool cuda; /* they are GPUs */

    char *model;             /* owned: as named */
    bool pretrained;         /* it has weights */
    struct model_desc desc;  /* its config.json */
    int64_t params, trained; /* of it; of these and the adapter's, those that are trained, by the plan */
    enum init_method method;
    struct string_list data; /* owned: shards */
    struct string_list validation;
    struct token_set *set;
    struct label_set *labels;     /* NULL: the data have none */
    bool masked;                  /* it has a loss mask */
    int64_t longest;              /* document; with labels or a mask */
    int64_t within[INIT_LENGTHS]; /* documents of at most 2^i tokens; with a mask */

    struct init_machine machine;
    struct gpu_model gpu;
    int node_ranks; /* GPUs of a node */
    int64_t memory; /* bytes of each GPU */

    int64_t seq_length, samples; /* tokens of a sample; samples of an epoch */
    struct cut_count cut;        /* documents that are longer */
    int64_t batch, steps;        /* samples of a step; steps of the run */
    double epochs, lr;
    int virtual_ranks;         /* train.virtual_ranks; 0: unset */
    struct plan_choice choice; /* of a GPU: by the plan; of the CPU: the setting and its bytes */
};

/* "ztrain: note: …" on stderr. */
void init_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- what a flag or an answer says --------------------------------------- */

/* Parameters are checked and kept; a second call replaces the first. STATUS_USAGE, STATUS_DATA: what is wrong. */
typedef enum status init_take(struct init *t, const char *text, struct error *err);
init_take init_take_model, init_take_method, init_take_data, init_take_validation, init_take_gpus, init_take_device,
    init_take_memory, init_take_seq_length, init_take_batch, init_take_epochs, init_take_lr;

/* The method of this name. STATUS_USAGE: no method has it. */
enum status init_find_method(const char *name, enum init_method *method, struct error *err);

/* The shards of flags.data, as init_take_data(). */
enum status init_take_shards(struct init *t, const struct string_list *shards, struct error *err);

/* Takes PREFIX-validation as validation data, if it is there. */
enum status init_find_validation(struct init *t, struct error *err);

/* What a flag is without a word of the user's. */
enum { INIT_TEXT = 128 };
const char *init_usual_seq_length(const struct init *t, char text[INIT_TEXT]);
const char *init_usual_batch(const struct init *t, char text[INIT_TEXT]);
const char *init_usual_gpus(struct init *t, char text[INIT_TEXT]); /* of this machine */
const char *init_usual_device(const struct init *t);

/* Releases everything but the flags. */
void init_release(struct init *t);

/* A flag: `given`, else the answer to `question` on a terminal (NULL: none is asked), else `usual`. STATUS_USAGE: there
 * is none of these, or no right answer in three. */
enum status init_take_flag(struct init *t, const char *flag, const char *given, const char *question, const char *usual,
                           init_take *take, struct error *err);

/* The spec as YAML, for free(). */
char *init_spec(const struct init *t);

/* The name of the run: of the model and the data. */
void init_run_name(const struct init *t, char name[INIT_TEXT]);

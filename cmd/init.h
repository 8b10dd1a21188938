/* SPDX-License-Identifier: Apache-2.0 */
/* init.h: the parts of `ztrain init`: flags and answers, each checked at once; settings by the plan; the run spec. */
#pragma once

#include "cmd/command_line.h"
#include "cmd/plan.h"
#include "core/data/document_fit.h"
#include "core/data/label_set.h"

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
    int virtual_ranks;           /* train.virtual_ranks; 0: unset */
    struct memory_choice choice; /* of a GPU: by the plan; of the CPU: the setting and its bytes */
};

/* "ztrain: note: …" on stderr. */
void init_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Takes flags and answers. STATUS_USAGE, STATUS_DATA: what is wrong. init_release() releases all but the flags. */
enum status init_take_inputs(struct init *t, struct error *err);
void init_release(struct init *t);

/* The method of this name. STATUS_USAGE: no method has it. */
enum status init_find_method(const char *name, enum init_method *method, struct error *err);

enum { INIT_TEXT = 128 };

/* The spec as YAML, for free(). */
char *init_spec(const struct init *t);

/* The name of the run: of the model and the data. */
void init_run_name(const struct init *t, char name[INIT_TEXT]);

/* sample_model.h: a trained model that generates, alone on one device: from a checkpoint, a run or a Hugging Face
 * folder. sample_model_open() finds it and reads its description, sample_model_start() its weights. */
#pragma once

#include "ckpt/checkpoint.h"
#include "core/fsutil.h"
#include "core/model/end_tokens.h"
#include "core/model/model_config.h"
#include "core/model/shard.h"
#include "core/model/tensor_table.h"
#include "gpu/model/generate.h"

struct sample_model {
    const char *folder; /* `found`, or checkpoint->path: config.json, tokenizer.json … */
    char found[FS_PATH_MAX];
    struct checkpoint *checkpoint; /* owned; NULL: a Hugging Face folder */
    struct model_desc desc;
    struct end_tokens ends;

    enum dtype dtype;
    struct tensor_table table;
    struct shard_layout layout; /* of one rank: its slices are whole units */
    struct device *device;
    struct stream *stream;
    struct transformer *transformer;
    struct generator *generator;
    void *memory; /* the arena */
    size_t bytes; /* its size */
    void **units; /* owned [num_units]: the units' parameters, in the arena */
    void *workspace;
    struct param_verbs verbs;
};

/* `dir`: a checkpoint, a run (its newest valid checkpoint; `best`: the one with the best evaluation), a Hugging Face
 * folder, or the name of a model in the local cache. STATUS_USAGE: a classifier, or a model that looks both ways. Also
 * after an error, sample_model_close() frees everything. */
enum status sample_model_open(struct sample_model *model, const char *dir, bool best, struct error *err);

struct sample_request {
    const char *device;      /* "auto", "cpu", "cuda" */
    const char *dtype;       /* "fp32", "bf16", "fp16"; NULL: the run's; of a folder fp32 on a CPU, else its own */
    int64_t prompt, context; /* tokens: of the prompt, and of the whole sequence */
};

/* Opens the device and reads the weights. */
enum status sample_model_start(struct sample_model *model, const struct sample_request *request, struct error *err);

/* A model of zeros is allowed; zeros are left. */
void sample_model_close(struct sample_model *model);

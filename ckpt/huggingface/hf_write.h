/* SPDX-License-Identifier: Apache-2.0 */
/* hf_write.h: writes Hugging Face folders: safetensors files, a JSON file, the checkpoint's tokenizer files. For the
 * files of ckpt/huggingface/.
 *
 * The weights go through one window, a piece of a unit's flat range: it is nearly all the memory, and every frame of
 * the checkpoint is read about once if tensors are taken in the order of the table. */
#pragma once

#include "ckpt/huggingface/huggingface.h"

enum { HF_NAME_MAX = 256 };

/* A tensor of a folder. */
struct hf_tensor {
    char name[HF_NAME_MAX];
    const struct tensor_info *tensor; /* borrowed: of the table */
    enum dtype dtype;
    bool transposed;
    int file; /* set by hf_write_folder() */
};

/* Named PREFIX and its name. */
struct hf_tensor hf_tensor_of(const char *prefix, const struct tensor_info *tensor, enum dtype dtype);

struct hf_writer;

/* All is borrowed. */
struct hf_folder {
    const struct checkpoint *checkpoint;
    const struct tensor_table *table;
    const char *out;           /* which must not exist */
    const char *stem;          /* STEM.safetensors, or shards STEM-00001-of-0000N.safetensors with an index */
    int64_t max_bytes;         /* of a file (0: 5 GB); a larger tensor has one to itself */
    bool force;                /* values that are not finite are taken as well */
    struct hf_tensor *tensors; /* [count] in their order in the files */
    int count;
    /* Writes the values of a tensor: hf_writer_tensor(), or one that uses the functions below. */
    enum status (*write)(struct hf_writer *writer, const struct hf_tensor *entry, void *context, struct error *err);
    void *context;
};

/* Makes the folder and writes all of it, durably; `config` (taken over) into `name`. */
enum status hf_write_folder(const struct hf_folder *folder, const char *name, json_t *config, struct error *err);

/* Sets *values to elements [first, first + *count) of the tensor: *count is at least 1, and at most what is left of it.
 * Valid until the next call. */
enum status hf_writer_read(struct hf_writer *writer, const struct tensor_info *tensor, int64_t first,
                           const float **values, int64_t *count, struct error *err);
/* The next values of the tensor that is written, in its dtype. STATUS_DIVERGED: they are not finite. */
enum status hf_writer_values(struct hf_writer *writer, const float *values, int64_t count, struct error *err);
/* All values, from the checkpoint. */
enum status hf_writer_tensor(struct hf_writer *writer, const struct hf_tensor *entry, void *context, struct error *err);

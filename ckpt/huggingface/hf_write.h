/* SPDX-License-Identifier: Apache-2.0 */
/* hf_write.h: what the writers of Hugging Face folders share: safetensors files, JSON, a checkpoint's weights in
 * pieces. For the files of ckpt/huggingface/. */
#pragma once

#include "ckpt/huggingface/huggingface.h"

/* ---- a checkpoint's weights ---------------------------------------------- */

/* A piece of a unit's flat range that is in memory: every frame of the checkpoint is read about once if tensors are
 * taken in the order of the table. */
struct hf_window {
    const struct checkpoint *checkpoint; /* borrowed */
    const struct tensor_table *table;    /* borrowed */
    bool force;                          /* values that are not finite are taken as well */
    float *values;                       /* owned: elements [begin, end) of the unit */
    int unit;
    int64_t begin, end;
};

void hf_window_init(struct hf_window *window, const struct checkpoint *checkpoint, const struct tensor_table *table,
                    bool force);
void hf_window_release(struct hf_window *window);

/* Sets *values to elements [first, first + *count) of the tensor: *count is at least 1, and at most what is left of it.
 * Valid until the next call. STATUS_DIVERGED: they are not finite. */
enum status hf_window_get(struct hf_window *window, const struct tensor_info *tensor, int64_t first,
                          const float **values, int64_t *count, struct error *err);

/* ---- safetensors --------------------------------------------------------- */

enum { HF_NAME_MAX = 256 };

/* A tensor to be written. */
struct hf_tensor {
    char name[HF_NAME_MAX];
    enum dtype dtype;
    int ndim;
    int64_t shape[2], numel;
    int file; /* set by hf_writer_init() */
};

/* STEM.safetensors, or shards STEM-00001-of-0000N.safetensors with an index; tensors in the caller's order. */
struct hf_writer {
    const char *out, *stem; /* borrowed: the folder, which exists */
    int num_tensors, num_files;
    struct hf_tensor *tensors; /* borrowed */
    int next;                  /* the tensor that hf_writer_begin() begins */
    int64_t left;              /* elements of the one before it that are not written yet */
    int fd;                    /* -1: none is open */
    char path[4096];
    uint16_t *converted; /* owned */
};

/* max_bytes: of a file (0: 5 GB); a larger tensor has one to itself. */
void hf_writer_init(struct hf_writer *writer, const char *out, const char *stem, struct hf_tensor *tensors, int count,
                    int64_t max_bytes);
/* Begins the next tensor; all of the one before it is written. */
enum status hf_writer_begin(struct hf_writer *writer, struct error *err);
/* The next values of the tensor, in its dtype. */
enum status hf_writer_values(struct hf_writer *writer, const float *values, int64_t count, struct error *err);
/* Both, for a tensor of the checkpoint. */
enum status hf_writer_tensor(struct hf_writer *writer, struct hf_window *window, const struct tensor_info *tensor,
                             struct error *err);
/* After the last tensor: the index, if there are several files. All is on the disk. */
enum status hf_writer_finish(struct hf_writer *writer, struct error *err);
void hf_writer_release(struct hf_writer *writer);

/* ---- other files --------------------------------------------------------- */

/* Takes value over. */
enum status hf_write_json(const char *out, const char *name, json_t *value, struct error *err);

/* The tokenizer files of a checkpoint. */
enum status hf_write_tokenizer(const struct checkpoint *checkpoint, const char *out, struct error *err);

/* Makes the folder, which must not exist. */
enum status hf_make_folder(const char *out, struct error *err);

/* SPDX-License-Identifier: Apache-2.0 */
/* hf_write.h: writes Hugging Face folders: safetensors files, a JSON file, the checkpoint's tokenizer files. For the
 * files of ckpt/huggingface/.
 *
 * The weights go through one window, a piece of a unit's flat range: it is nearly all the memory, and every frame of
 * the checkpoint is read about once if tensors are taken in the order of the table. */
#pragma once

#include "ckpt/huggingface/huggingface.h"

enum { HF_NAME_MAX = 256 };

/* The tensors that a multimodal folder has beside its text model: of vision towers, projectors and whatever else. Their
 * bytes go from the folder into exports, whatever their dtypes are (hf_rest.c). */
enum { HF_REST_PIECE = 8 << 20 /* bytes */ };

/* Adds a copy of an entry of the file `path`; the order is that of the files. STATUS_DATA: its name is too long for an
 * export. */
enum status hf_rest_add(struct safetensors_header *rest, const char *path, const struct safetensors_entry *entry,
                        struct error *err);
enum status hf_rest_hash(const struct safetensors_header *rest, struct hf_files *files, uint64_t *hash,
                         struct error *err);
/* piece (HF_REST_PIECE) = the next *count bytes of a tensor, after `done`. */
enum status hf_rest_read(const struct safetensors_entry *tensor, struct hf_files *files, int64_t done, void *piece,
                         int64_t *count, struct error *err);

/* A tensor of a folder. */
struct hf_tensor {
    char name[HF_NAME_MAX];
    const struct tensor_info *tensor;     /* borrowed: of the table */
    const struct safetensors_entry *rest; /* borrowed: it is this one instead; NULL */
    enum dtype dtype;
    int64_t rows; /* it is (rows, the rest); 0: as in the table */
    bool head;    /* a tied matrix once more, as the head */
    int file;     /* set by hf_write_folder() */
};

/* GPT-NeoX's head in files; transformers 5 and PEFT call the module lm_head. */
#define HF_NEOX_HEAD "embed_out.weight"

/* A tensor of a whole model, with its name in files. */
struct hf_tensor hf_model_tensor(const struct model_desc *desc, const struct tensor_info *tensor, enum dtype dtype);

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
    struct hf_tensor *tensors; /* [count] in their order in the files; owned, if hf_folder_release() is used */
    int count;
    struct hf_files *rest; /* where the bytes of `rest` are */
    /* Writes the values of a tensor: hf_writer_tensor(), or one that uses the functions below. */
    enum status (*write)(struct hf_writer *writer, const struct hf_tensor *entry, void *context, struct error *err);
    void *context;
};

static inline void hf_folder_release(struct hf_folder *folder)
{
    free(folder->tensors);
}

/* With a reader of a multimodal folder: gives the tensors the names that they have there, and appends the rest. */
void hf_folder_complete(struct hf_folder *folder, struct huggingface_reader *reader);

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

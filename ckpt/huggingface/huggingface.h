/* SPDX-License-Identifier: Apache-2.0 */
/* huggingface.h: reads and writes Hugging Face folders (config.json, safetensors). */
#pragma once

#include "ckpt/checkpoint.h"
#include "core/model/model_config.h"
#include "core/model/shard.h"
#include "core/model/tensor_table.h"

/* A folder with the weights of a model. All is borrowed. */
struct huggingface_source {
    const char *dir; /* NULL: there is none, and all tensors get initial values */
    const struct model_desc *desc;
    const struct tensor_table *table;
    const struct string_list *ignore; /* fnmatch(3) patterns of tensors to leave out, which rank 0 logs; may be NULL */
    bool quiet;                       /* rank 0 logs nothing of what is left out or starts fresh */
    bool trained_only;                /* the frozen units are not read: another adapter of the base has them */
};

/* Reads this rank's slices of the weights into `slices` (master weights), only the byte ranges that it owns, from
 * model.safetensors or shards with an index, in fp32, bf16 or fp16. Names may lack the prefix of the family ("model.",
 * "transformer.", "bert."). A tied model's lm_head.weight may replace the embedding, or repeat it. STATUS_DATA: a
 * tensor is missing, extra, misshapen, truncated or not finite, a tied head is not the embedding, or an adapter is
 * beside the model.
 *
 * If desc->new_head is set, lm_head.weight is skipped, and the classifier's head gets initial values that depend on
 * `seed`. BERT's files may have LayerNorm.gamma and .beta; with new_head their heads of pretraining (cls.…) are left
 * out, and a pooler that they lack gets initial values: rank 0 logs both. An adapter's tensors get initial values. */
enum status huggingface_load(const struct huggingface_source *source, const struct shard_layout *layout, int rank,
                             uint64_t seed, struct state_slices slices, struct error *err);

/* The same piece by piece. After an error there is nothing to close. */
struct huggingface_reader;
enum status huggingface_open(const struct huggingface_source *source, int rank, uint64_t seed,
                             struct huggingface_reader **reader, struct error *err);
/* The dtype of a tensor in the files; of one with initial values that of the embedding, or fp32. */
enum dtype huggingface_dtype(const struct huggingface_reader *reader, int tensor);
/* out (count) = elements [begin, begin + count) of a unit's flat range; gaps and padding become 0. Of a unit that is
 * kept as bytes (stored_base.h) they are words. */
enum status huggingface_read(struct huggingface_reader *reader, int unit, int64_t begin, int64_t count, float *out,
                             struct error *err);
/* The same, but values of units that are kept as bytes too: of quantized matrices what is decoded of them, of other
 * tensors what the folder has. */
enum status huggingface_values(struct huggingface_reader *reader, int unit, int64_t begin, int64_t count, float *out,
                               struct error *err);
void huggingface_close(struct huggingface_reader *reader); /* NULL is allowed */
RELEASER(huggingface_drop, struct huggingface_reader, huggingface_close)

/* What a multimodal folder has beside its text model: no run changes it, and exports take it from there. The sum of the
 * names, dtypes, shapes and bytes, as base_hash_bytes() has it; 0: the folder has nothing else. */
enum status huggingface_rest_hash(struct huggingface_reader *reader, uint64_t *hash, struct error *err);

/* Reads the headers only: the errors are those of huggingface_load() but for the ones about values. *absent: it is an
 * error because the folder has no weights of any kind. */
enum status huggingface_check(const struct huggingface_source *source, bool *absent, struct error *err);

/* Makes folder `out` and writes into it, durably: model.safetensors, or shards of at most `max_shard_bytes` (0: 5 GB)
 * with an index; config.json; the checkpoint's tokenizer files. An error leaves what is written so far. STATUS_DATA:
 * the folder exists, or cannot be written; STATUS_CHECKPOINT: the checkpoint is damaged; STATUS_DIVERGED: weights are
 * not finite, and `force` is unset.
 *
 * Of a multimodal folder's text model: with the rest of that folder, and its names. It is where the run read it, or
 * `moved`, unless that is NULL: the errors are those of peft_base_find() and checkpoint_check_base(). */
enum status huggingface_export(const struct checkpoint *checkpoint, const char *moved, const char *out,
                               enum dtype dtype, int64_t max_shard_bytes, bool force, struct error *err);

/* The frozen base of a checkpoint's adapter, or the rest of a multimodal folder. */
struct peft_base {
    struct huggingface_source source; /* borrows desc and table, and the rest from here */
    char folder[4096];
    struct string_list ignore; /* owned */
};

/* Where the base is: in the folder that the run read it from; or `moved`, unless that is NULL, a folder or a model of
 * the local cache; initial values have none. Sets desc->new_head by its config. STATUS_DATA: the folder is gone;
 * STATUS_USAGE: initial values cannot have moved. */
enum status peft_base_find(const struct checkpoint *checkpoint, const char *moved, struct model_desc *desc,
                           const struct tensor_table *table, struct peft_base *base, struct error *err);
void peft_base_release(struct peft_base *base); /* all zero is allowed */

/* Lays the table's frozen units out as the run kept them (stored_base.h), for a reader of the base. */
void peft_base_store(const struct checkpoint *checkpoint, const struct model_desc *desc, struct tensor_table *table);

/* Compares the base, by a reader with such a table, with the one that the checkpoint was trained on. STATUS_CHECKPOINT:
 * it is another one. */
enum status peft_base_check(const struct checkpoint *checkpoint, const struct tensor_table *table,
                            struct huggingface_reader *reader, const char *folder, struct error *err);

/* Reads this rank's slices of all trained units, an adapter's A and B and modules_to_save, from a folder as PEFT writes
 * it, in fp32, bf16 or fp16. STATUS_DATA: a tensor is missing, extra, misshapen, truncated or not finite. */
enum status peft_load(const char *dir, const struct model_desc *desc, const struct tensor_table *table,
                      const struct shard_layout *layout, int rank, struct state_slices slices, struct error *err);

/* Writes such a folder as huggingface_export() does. desc, table: those of the checkpoint, which has an adapter. */
enum status peft_export(const struct checkpoint *checkpoint, const struct model_desc *desc,
                        const struct tensor_table *table, const char *out, enum dtype dtype, bool force,
                        struct error *err);

/* Reads the header only: the errors are those of peft_load() but for the ones about values. */
enum status peft_check(const char *dir, const struct model_desc *desc, const struct tensor_table *table,
                       struct error *err);

/* Writes a folder as huggingface_export() does, of the model with the checkpoint's adapter merged into its base, as
 * peft's merge_and_unload(), but untied if the adapter is on a tied matrix. The base is read twice: first its hash is
 * compared. dtype: of all tensors; DTYPE_COUNT: each has that of the base's files (fp32 of initial values). */
enum status peft_merge(const struct checkpoint *checkpoint, const struct huggingface_source *base, const char *out,
                       enum dtype dtype, bool force, struct error *err);

/* The first i for which x[i] is NaN or infinite, or count. */
int64_t huggingface_not_finite(const float *x, int64_t count);

/* safetensors: 8 bytes header length n (little-endian), n bytes of JSON, then the tensors' bytes. The JSON maps names
 * to {"dtype", "shape", "data_offsets": [begin, end]} (from the end of the header), and "__metadata__" to strings.
 * Checked: n (at most 100 MB, within the file), unique names, types, shape × dtype = bytes, offsets that cover the file
 * without holes or overlaps. */
enum { SAFETENSORS_PREFIX = 8, SAFETENSORS_MAX_HEADER = 100000000, SAFETENSORS_MAX_DIMS = 8 };

/* Dtypes that are the codes of quantized matrices. */
enum stored_codes { CODES_NONE, CODES_U8, CODES_E4M3 };

/* Where a tensor is. All zero: not found yet. */
struct hf_place {
    bool found;
    int file;             /* of hf_files.names; who reads several headers sets it */
    int64_t begin, bytes; /* begin: from the start of the file */
    enum dtype dtype;
    bool known_dtype; /* false: a dtype that ztrain does not read (I64, …), or codes */
};

struct safetensors_entry {
    char *name, *dtype_name; /* owned */
    struct hf_place place;
    enum stored_codes codes; /* CODES_NONE: another dtype */
    int ndim;
    int64_t shape[SAFETENSORS_MAX_DIMS];
};
struct safetensors_header {
    int count;
    struct safetensors_entry *entries; /* in order of begin */
    bool by_ztrain;                    /* __metadata__ names ztrain as the producer */
};

enum status safetensors_prefix(const uint8_t prefix[SAFETENSORS_PREFIX], int64_t file_bytes, const char *where,
                               size_t *header_bytes, struct error *err);

/* Parses the header's JSON. `where` names the file in messages (STATUS_DATA). *out is to be released after an error,
 * too. */
enum status safetensors_parse(const void *header, size_t header_bytes, int64_t file_bytes, const char *where,
                              struct safetensors_header *out, struct error *err);

enum status safetensors_read_header(const char *path, struct safetensors_header *out, struct error *err);

void safetensors_header_release(struct safetensors_header *header);

/* Whether an entry of the file `path` has this shape, and a dtype that ztrain reads. asks: ", but config.json asks for"
 */
enum status safetensors_expect(const struct safetensors_entry *entry, const char *path, int ndim, const int64_t *shape,
                               const char *asks, struct error *err);

/* The files of a folder, one of which is open for reading at a time. All zero but dir: there are none yet. */
struct hf_files {
    const char *dir;          /* borrowed */
    struct string_list names; /* owned */
    int fd, open;             /* open: 1 + the number of the file that is; 0: none */
    char path[4096];          /* of that file */
};

/* All bytes of a tensor. */
enum status hf_files_read(struct hf_files *files, const struct hf_place *place, void *out, struct error *err);
/* Its elements [first, first + count). */
enum status hf_files_values(struct hf_files *files, const struct hf_place *place, int64_t first, int64_t count,
                            float *out, struct error *err);
void hf_files_release(struct hf_files *files);

/* out (count) = elements [begin, begin + count) of a unit's flat range, of which `values` reads those of a tensor; gaps
 * and padding become 0. */
enum status hf_unit_values(const struct tensor_table *table, int unit, int64_t begin, int64_t count,
                           enum status (*values)(void *context, int tensor, int64_t first, int64_t count, float *out,
                                                 struct error *err),
                           void *context, float *out, struct error *err);

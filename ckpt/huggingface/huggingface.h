/* huggingface.h: Hugging Face folders in (config.json, safetensors) and out. */
#ifndef ZTRAIN_CKPT_HUGGINGFACE_HUGGINGFACE_H
#define ZTRAIN_CKPT_HUGGINGFACE_HUGGINGFACE_H

#include "ckpt/checkpoint.h"
#include "core/model.h"
#include "core/shard.h"
#include "core/tensors.h"

/* Reads this rank's slices of the weights in folder `dir` (model.safetensors, or shards with
 * model.safetensors.index.json; fp32, bf16, fp16) into `slices` (master weights): only the byte ranges that it owns are
 * read. GPT-2 files may lack the "transformer." prefix. Skipped tensors: rotary_emb.inv_freq, attn.bias,
 * attn.masked_bias. A tied model's lm_head.weight may stand for the embedding, or repeat it. A missing, extra,
 * misshapen or truncated tensor, one with a NaN or an infinity, or a tied head that is another matrix, is named
 * (STATUS_DATA). */
enum status huggingface_load(const char *dir, const struct model_desc *desc, const struct tensor_table *table,
                             const struct shard_layout *layout, int rank, struct state_slices slices,
                             struct error *err);

/* Writes folder `out` (made if absent): model.safetensors, or shards of at most `max_shard_bytes` (0: 5 GB) with an
 * index; config.json; tokenizer files that the checkpoint holds. A folder that holds a model which ztrain did not
 * export is refused (STATUS_USAGE). Bounded memory: a few MiB. Everything under temporary names, then renamed,
 * config.json last: without it the folder is no model. */
enum status huggingface_export(const struct checkpoint *checkpoint, const char *out, enum dtype dtype,
                               int64_t max_shard_bytes, struct error *err);

/* safetensors: 8 bytes header length n (little-endian), n bytes of JSON, then the tensors' bytes. The JSON object maps
 * names to {"dtype", "shape", "data_offsets": [begin, end]} (from the end of the header), and "__metadata__" to
 * strings. Checked: n <= 100 MB and within the file, unique names, types, shape × dtype = bytes (no overflow), offsets
 * that cover the rest of the file in some order without holes or overlaps. */
enum { SAFETENSORS_PREFIX = 8, SAFETENSORS_MAX_HEADER = 100000000, SAFETENSORS_MAX_DIMS = 8 };

struct safetensors_entry {
    char *name; /* owned */
    enum dtype dtype;
    bool known_dtype; /* false: a dtype ztrain does not read (I64, …) */
    int ndim;
    int64_t shape[SAFETENSORS_MAX_DIMS];
    int64_t begin, end; /* bytes from the file's start */
};
struct safetensors_header {
    int count;
    struct safetensors_entry *entries; /* in order of begin */
    bool by_ztrain;                    /* __metadata__ names ztrain as the producer */
};

/* The header's length from the file's first 8 bytes. */
enum status safetensors_prefix(const uint8_t prefix[SAFETENSORS_PREFIX], int64_t file_bytes, const char *where,
                               size_t *header_bytes, struct error *err);

/* Parses the header's JSON. `where` names the file in messages (STATUS_DATA). */
enum status safetensors_parse(const void *header, size_t header_bytes, int64_t file_bytes, const char *where,
                              struct safetensors_header *out, struct error *err);

/* Both, from a file. */
enum status safetensors_read_header(const char *path, struct safetensors_header *out, struct error *err);

void safetensors_header_release(struct safetensors_header *header);

/* "(50257, 768)" */
const char *safetensors_shape_text(int ndim, const int64_t *shape, char out[192]);

#endif

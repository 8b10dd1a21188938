/* huggingface.h: Hugging Face folders in (config.json, safetensors) and out. */
#ifndef ZTRAIN_CKPT_HUGGINGFACE_H
#define ZTRAIN_CKPT_HUGGINGFACE_H

#include "ckpt/checkpoint.h"
#include "core/model.h"
#include "core/shard.h"
#include "core/tensors.h"

/* Reads this rank's slices of the weights in folder `dir` (model.safetensors, or shards with
 * model.safetensors.index.json; fp32, bf16, fp16) into slice(context, ZERO_MASTER, unit): only the byte ranges it owns.
 * GPT-2 files may lack the "transformer." prefix. Skipped tensors: rotary_emb.inv_freq, attn.bias, attn.masked_bias,
 * lm_head.weight where tied. A missing, extra, misshapen or truncated tensor is named (STATUS_DATA). */
enum status huggingface_load(const char *dir, const struct model_desc *desc, const struct tensor_table *table,
                             const struct shard_layout *layout, int rank,
                             float *(*slice)(void *context, enum zero_state state, int unit), void *context,
                             struct error *err);

/* Writes folder `out` (made; must not hold files of another model unless they are ours to replace): model.safetensors,
 * or shards of at most `max_shard_bytes` (0: 5 GB) with an index; config.json; tokenizer files that the checkpoint
 * holds. Bounded memory: a few MiB. Everything under temporary names, then renamed. */
enum status huggingface_export(const struct checkpoint *checkpoint, const char *out, enum dtype dtype,
                               int64_t max_shard_bytes, struct error *err);

/* safetensors header parser, for import, tests and the fuzz target: checks everything the format document says (header
 * length <= 100 MB and <= file, JSON object, dtype, shape, data_offsets in order without holes, no overflow, within
 * file). */
struct safetensors_entry {
    char *name; /* owned */
    enum dtype dtype;
    bool known_dtype; /* false: a dtype ztrain does not read (I64, …) */
    int ndim;
    int64_t shape[8];
    int64_t begin, end; /* bytes from the file's start */
};
struct safetensors_header {
    int count;
    struct safetensors_entry *entries;
};
enum status safetensors_parse(const void *header, size_t header_bytes, int64_t file_bytes, const char *where,
                              struct safetensors_header *out, struct error *err);
void safetensors_header_release(struct safetensors_header *header);

#endif

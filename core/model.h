/* model.h: a description of a model, in the names of Hugging Face's config.json.
 *
 * Families: GPT-2, and the Llama family (Llama, Mistral, Qwen2, Qwen3). A feature that a config asks for and ztrain
 * does not have is refused (STATUS_USAGE) or noted (a line in `notices`), never ignored. A damaged config.json is
 * STATUS_DATA. */
#ifndef ZTRAIN_CORE_MODEL_H
#define ZTRAIN_CORE_MODEL_H

#include "core/dtype.h"
#include "core/status.h"
#include "core/string_list.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum model_family { FAMILY_GPT2, FAMILY_LLAMA, FAMILY_MISTRAL, FAMILY_QWEN2, FAMILY_QWEN3, FAMILY_COUNT };
enum norm_kind { NORM_LAYER, NORM_RMS };
enum mlp_kind { MLP_GELU, /* gelu_new (tanh form), two matrices */ MLP_SWIGLU /* silu(gate) · up, three matrices */ };
enum rope_kind { ROPE_NONE, /* learned positions instead */ ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3 };

struct rope_desc {
    enum rope_kind kind;
    double theta;
    double factor;                            /* linear, llama3 */
    double low_freq_factor, high_freq_factor; /* llama3 */
    int64_t original_max_positions;           /* llama3 */
};

struct model_desc {
    enum model_family family;
    int64_t vocab_size;        /* V */
    int64_t hidden_size;       /* C */
    int64_t intermediate_size; /* F: columns of the MLP's inner layer (of gate and of up each) */
    int64_t num_layers;        /* L */
    int64_t num_heads;         /* H */
    int64_t num_kv_heads;      /* KV: divides H */
    int64_t head_dim;          /* D */
    int64_t max_positions;     /* P: longest sequence; rows of wpe where positions are learned */
    enum norm_kind norm;
    double norm_eps;
    enum mlp_kind mlp;
    bool weights_in_out; /* GPT-2's Conv1D: matrices of blocks are stored (in, out); else (out, in) */
    bool qkv_bias, o_bias, mlp_bias;
    bool qk_norm; /* RMSNorm of every q and k head before RoPE (Qwen3) */
    bool tied;    /* the head uses the token embedding as its matrix */
    struct rope_desc rope;
    int64_t sliding_window; /* 0: none; else a query sees itself and the window-1 positions before it, in every layer */
    double initializer_range;
    bool scale_residual_init; /* GPT-2: c_proj weights ~ N(0, initializer_range / sqrt(2 L)) */
    bool has_torch_dtype;
    enum dtype torch_dtype;
    int64_t padding_token;      /* Llama family's pad_token_id: its embedding starts as zeros; -1: none */
    json_t *source;             /* config.json as it was read (owned), for export */
    struct string_list notices; /* lines for the user ("dropout (attention_dropout 0.1) is not applied") */
};

/* Reads config.json at `path` (a file, or a folder with one; at most 1 MiB). On success *desc owns its members. */
enum status model_desc_load(const char *path, struct model_desc *desc, struct error *err);

/* The same from parsed JSON (borrowed); `where` names the source in messages. */
enum status model_desc_from_json(const json_t *config, const char *where, struct model_desc *desc, struct error *err);

/* The same from a run spec's model.config. It is written by hand, so a misspelt key is an error instead of a notice,
 * and all its faults are those of the run spec, STATUS_USAGE. */
enum status model_desc_from_spec(const json_t *config, struct model_desc *desc, struct error *err);

void model_desc_release(struct model_desc *desc);

/* "gpt2", "llama", …: config.json's model_type */
const char *model_family_name(enum model_family family);

/* The config as transformers should read it for export: the source's keys, with architectures, model_type and the dtype
 * of the written weights set ("torch_dtype" if the source used that name, else "dtype"). Caller decrefs. */
json_t *model_desc_export_config(const struct model_desc *desc, enum dtype dtype);

/* RoPE's inverse frequencies, D/2 values, "linear" and "llama3" scaling applied, with the roundings of
 * transformers, which computes them in float32. */
void model_rope_frequencies(const struct model_desc *desc, float *inv_freq);

#ifdef __cplusplus
}
#endif

#endif

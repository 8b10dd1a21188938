/* SPDX-License-Identifier: Apache-2.0 */
/* config_reader.h: reads the keys of a config.json one by one. After the first fault the getters return defaults, and
 * the fault is returned at the end. STATUS_DATA: damaged or ill-typed; STATUS_USAGE: well-formed, but asks for
 * something that ztrain does not have, and whatever is wrong in a run spec's own model.config. */
#pragma once

#include "core/model/model_config.h"

enum { MAX_ASKED = 96 };

/* With those of model_config.c they keep products of sizes far from overflow. */
static const int64_t MAX_INTERMEDIATE = 1 << 22, MAX_HEADS = 1 << 16, MAX_HEAD_DIM = 1 << 14;
/* Those of op `route` (gpu/ops.h). */
static const int64_t MAX_EXPERTS = 512, MAX_EXPERT_GROUPS = 32;

/* The keys that a reader has asked for, each once. */
struct asked_keys {
    const char *names[MAX_ASKED]; /* literals */
    int count;
};

struct config_reader {
    const json_t *object;
    struct asked_keys *asked;
    bool spec;          /* a run spec's model.config, not a file */
    const char *where;  /* the file, for messages */
    const char *scope;  /* "" or "rope_parameters." */
    const char *family; /* the model_type, for messages; NULL until it is known */
    struct error *err;
    enum status status; /* the first fault */
};

__attribute__((format(printf, 3, 4))) void reader_fail(struct config_reader *reader, enum status code,
                                                       const char *format, ...);

/* The key's value; NULL if it is absent or null. */
const json_t *reader_get(const struct config_reader *reader, const char *key);

/* Whether the key is there with the value null. */
bool reader_is_null(const struct config_reader *reader, const char *key);

/* The value, or `absent` if there is none. reader_positive: a number above 0. */
int64_t reader_int(struct config_reader *reader, const char *key, int64_t absent, int64_t min, int64_t max);
double reader_positive(struct config_reader *reader, const char *key, double absent);
bool reader_bool(struct config_reader *reader, const char *key, bool absent);
const char *reader_string(struct config_reader *reader, const char *key, const char *absent);

/* A value as JSON text, shortened for a message. */
const char *reader_show(const json_t *value, char out[64]);

/* Whether a value equals the JSON text `wanted`; 1 and 1.0 are the same number. */
bool reader_value_is(const json_t *value, const char *wanted);

/* Adds a line to desc->notices. */
__attribute__((format(printf, 2, 3))) void config_notice(struct model_desc *desc, const char *format, ...);

/* Looks for misspelt keys; called once all keys have been asked for. */
void reader_check_spelling(struct config_reader *reader, struct model_desc *desc);

/* ---- parts that other files read ----------------------------------------- */

/* Which RoPE a family has in transformers. */
struct rope_facts {
    double theta;   /* the default of rope_theta */
    double partial; /* the default of partial_rotary_factor; 0: it is not supported */
    bool scaling;   /* rope types other than "default" and LongRoPE exist */
    double local;   /* theta of layers with a window, unless rope_parameters has another; 0: no RoPE of their own */
    const char *local_key; /* which gives another theta as well, or NULL */
};

/* Reads desc->rope, desc->local_rope and desc->rotary_dim. head_dim and max_positions are known. */
void model_rope_read(struct config_reader *reader, const struct rope_facts *facts, struct model_desc *desc);

/* The config of a multimodal folder's text model (new reference), with its family's model_type; NULL: it is none. */
json_t *model_multimodal_text(struct config_reader *reader);

/* Reads desc->quantization. */
void model_quantization_read(struct config_reader *reader, struct model_desc *desc);

/* Reads desc->experts. */
void model_experts_read(struct config_reader *reader, struct model_desc *desc);

/* The layers that have the sliding window in transformers. */
enum window_rule {
    WINDOW_NONE, /* no layer, whatever the config says */
    WINDOW_ALL,
    WINDOW_IF_USED,        /* with use_sliding_window: all */
    WINDOW_EVEN_UNTIL,     /* with use_sliding_window: every second up to max_window_layers, or as layer_types lists */
    WINDOW_FROM,           /* with use_sliding_window: those from max_window_layers on, or as layer_types lists them */
    WINDOW_NOPE,           /* with use_sliding_window: those without RoPE, or as layer_types lists them */
    WINDOW_PATTERN,        /* all but every pattern-th, or as layer_types lists them; there must be a window */
    WINDOW_PATTERN_OR_NONE /* the same; no layer, if sliding_window is null */
};

/* The layers without RoPE. LISTED: in no_rope_layers; FULL: those without a window, if others have one. */
enum nope_rule { NOPE_NONE, NOPE_LISTED, NOPE_FULL };

struct layer_facts {
    enum window_rule windows;
    int64_t window; /* the default of sliding_window; 0: none */
    enum nope_rule nope;
    int64_t pattern;  /* WINDOW_PATTERN */
    bool pattern_key; /* sliding_window_pattern has another */
    bool delta;       /* pattern: all but every pattern-th have a gated delta rule (full_attention_interval) */
};

/* Fills desc->layers, of desc->num_layers, by the caller; desc->head_dim and desc->local_rope are known. */
void model_layers_read(struct config_reader *reader, const struct layer_facts *facts, struct model_desc *desc);

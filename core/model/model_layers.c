/* SPDX-License-Identifier: Apache-2.0 */
/* model_layers.c: which layers have a sliding window, no RoPE or one of their own, and sizes of their own. */
#include "core/model/config_reader.h"

/* Gives the layers that layer_types names sliding the window. `free`: "full_attention" may turn a window off. */
static void read_layer_types(struct config_reader *reader, const json_t *types, int64_t window, bool free,
                             struct model_desc *desc)
{
    char text[64];
    size_t sliding = 0, full = 0, count = json_array_size(types);
    for (size_t i = 0; i < count && i < (size_t)desc->num_layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        bool is_sliding = type && strcmp(type, "sliding_attention") == 0;
        desc->layers[i].window = is_sliding ? window : 0;
        sliding += is_sliding;
        full += type && strcmp(type, "full_attention") == 0;
    }
    if (count != (size_t)desc->num_layers) /* 0 if it is not an array */
        reader_fail(reader, STATUS_DATA, "layer_types must be a list of %" PRId64 " names, not %s", desc->num_layers,
                    reader_show(types, text));
    else if (sliding + full != count)
        reader_fail(reader, STATUS_USAGE,
                    "layer_types %s is not supported; hint: full_attention and sliding_attention are",
                    reader_show(types, text));
    else if (sliding > 0 && window == 0)
        reader_fail(reader, STATUS_DATA, "layer_types has sliding attention, but there is no sliding window");
    else if (full > 0 && window > 0 && !free)
        reader_fail(reader, STATUS_DATA, "layer_types has full attention, but there is a sliding window");
}

static int64_t read_window(struct config_reader *reader, const struct layer_facts *facts)
{
    const bool optional = facts->windows == WINDOW_FROM || facts->windows == WINDOW_NOPE ||
                          facts->windows == WINDOW_IF_USED || facts->windows == WINDOW_EVEN_UNTIL;
    if (facts->windows == WINDOW_NONE || (optional && !reader_bool(reader, "use_sliding_window", false))) return 0;
    int64_t absent = reader_is_null(reader, "sliding_window") ? 0 : facts->window;
    if (facts->windows == WINDOW_PATTERN && absent == 0)
        reader_fail(reader, STATUS_DATA, "sliding_window is null, but layers of %s have one", reader->family);
    return reader_int(reader, "sliding_window", absent, 1, INT32_MAX);
}

/* Returns the window that layers may have; 0: none. */
static int64_t read_windows(struct config_reader *reader, const struct layer_facts *facts, struct model_desc *desc)
{
    const bool all = facts->windows == WINDOW_ALL || facts->windows == WINDOW_IF_USED;
    const bool from = facts->windows == WINDOW_FROM, until = facts->windows == WINDOW_EVEN_UNTIL;
    const json_t *types = facts->windows == WINDOW_IF_USED ? NULL : reader_get(reader, "layer_types");
    const int64_t window = read_window(reader, facts);
    const int64_t bound = from || until ? reader_int(reader, "max_window_layers", 28, INT32_MIN, INT32_MAX) : 0;
    int64_t pattern = facts->pattern;
    if (facts->pattern_key) { /* transformers writes the key with the underscore, and does not read it */
        reader_get(reader, "_sliding_window_pattern");
        const json_t *given = reader_get(reader, "sliding_window_pattern");
        /* EXAONE 4: "LLLG" repeats what layer_types says, and 0 means no window */
        if ((!types || json_is_integer(given)) && window > 0)
            pattern = reader_int(reader, "sliding_window_pattern", pattern, 1, INT32_MAX);
    }
    for (int64_t i = 0; i < desc->num_layers; i++) {
        struct layer_desc *layer = &desc->layers[i];
        const bool sliding = (until ? i < bound && i % 2 == 0 : i >= bound) &&
                             (facts->windows != WINDOW_NOPE || layer->no_rope) &&
                             (pattern == 0 || (i + 1) % pattern != 0);
        layer->window = sliding ? window : 0;
    }
    if (types) read_layer_types(reader, types, window, !all, desc);
    return window;
}

/* no_rope_layers: 1 for a layer with RoPE, 0 for one without; absent: every no_rope_layer_interval-th has none. */
static void read_layers_nope(struct config_reader *reader, struct model_desc *desc)
{
    char text[64];
    const json_t *list = reader_get(reader, "no_rope_layers");
    int64_t interval = reader_int(reader, "no_rope_layer_interval", 4, 1, INT32_MAX);
    if (list && json_array_size(list) < (size_t)desc->num_layers) /* 0 if it is not an array */
        reader_fail(reader, STATUS_DATA,
                    "no_rope_layers must be a list of %" PRId64 " numbers, 1 (RoPE) or 0 (none), not %s",
                    desc->num_layers, reader_show(list, text));
    for (int64_t i = 0; i < desc->num_layers; i++) {
        const json_t *entry = json_array_get(list, (size_t)i);
        if (list && !(json_is_integer(entry) && (json_integer_value(entry) == 0 || json_integer_value(entry) == 1)))
            reader_fail(reader, STATUS_DATA, "no_rope_layers must have 1 (RoPE) or 0 (none) for each layer, not %s",
                        reader_show(entry, text));
        desc->layers[i].no_rope = list ? json_integer_value(entry) == 0 : (i + 1) % interval == 0;
    }
}

static void read_layers_delta(struct config_reader *reader, const struct layer_facts *facts, struct model_desc *desc)
{
    char text[64];
    const json_t *types = reader_get(reader, "layer_types");
    const int64_t pattern = reader_int(reader, "full_attention_interval", facts->pattern, 1, INT32_MAX);
    if (types && json_array_size(types) != (size_t)desc->num_layers)
        reader_fail(reader, STATUS_DATA, "layer_types must be a list of %" PRId64 " names, not %s", desc->num_layers,
                    reader_show(types, text));
    for (int64_t i = 0; i < desc->num_layers; i++) {
        const json_t *type = json_array_get(types, (size_t)i);
        desc->layers[i].delta = types ? reader_value_is(type, "\"linear_attention\"") : (i + 1) % pattern != 0;
        if (type && !desc->layers[i].delta && !reader_value_is(type, "\"full_attention\""))
            reader_fail(reader, STATUS_USAGE,
                        "layer_types %s is not supported; hint: full_attention and linear_attention are",
                        reader_show(type, text));
    }
}

/* per_layer_config {"5": {"head_dim": 512}}: what a layer has in place of the keys outside. */
static void read_layer_sizes(struct config_reader *reader, const json_t *sizes, struct layer_desc *layer)
{
    char text[64];
    const char *key;
    json_t *value;
    if (sizes && !json_is_object(sizes))
        reader_fail(reader, STATUS_DATA, "per_layer_config must have objects, not %s", reader_show(sizes, text));
    json_object_foreach ((json_t *)sizes, key, value) {
        const bool heads = strcmp(key, "num_key_value_heads") == 0;
        if (!heads && strcmp(key, "head_dim") != 0)
            reader_fail(reader, STATUS_USAGE,
                        "per_layer_config: '%.60s' is not supported; hint: head_dim and num_key_value_heads are", key);
        else if (json_integer_value(value) < 1 || json_integer_value(value) > (heads ? MAX_HEADS : MAX_HEAD_DIM))
            reader_fail(reader, STATUS_DATA, "per_layer_config: %s must be a positive integer, not %s", key,
                        reader_show(value, text));
        else if (heads)
            layer->num_kv_heads = json_integer_value(value);
        else
            layer->head_dim = json_integer_value(value);
    }
}

/* The sizes of a layer are known. Layers with a window are alike, and so are the others: RoPE needs that. */
static void check_layer_sizes(struct config_reader *reader, const struct model_desc *desc, int64_t i)
{
    const struct layer_desc *layer = &desc->layers[i], *first = desc->layers;
    while (first->window != layer->window) first++;
    if (layer->head_dim != first->head_dim || layer->num_kv_heads != first->num_kv_heads)
        reader_fail(reader, STATUS_USAGE,
                    "per_layer_config: layers %d and %" PRId64 " differ; hint: layers of one type must be alike",
                    (int)(first - desc->layers), i);
    else if (layer->head_dim % 2 != 0 || desc->num_heads % layer->num_kv_heads != 0 ||
             desc->num_heads * layer->head_dim > MAX_INTERMEDIATE)
        reader_fail(reader, STATUS_DATA,
                    "layer %" PRId64 " has %" PRId64 " heads of size %" PRId64 " on %" PRId64
                    " key/value heads; hint: the size must be even, and the heads a multiple of the latter",
                    i, desc->num_heads, layer->head_dim, layer->num_kv_heads);
}

/* Qwen: decoder_sparse_step, and mlp_only_layers, which are dense; GLM-4: the first layers are. */
static void read_layers_sparse(struct config_reader *reader, struct model_desc *desc)
{
    const bool qwen = desc->family == FAMILY_QWEN2_MOE || desc->family == FAMILY_QWEN3_MOE;
    const int64_t step = qwen ? reader_int(reader, "decoder_sparse_step", 1, 1, INT32_MAX) : 1;
    const int64_t first =
        desc->family == FAMILY_GLM4_MOE ? reader_int(reader, "first_k_dense_replace", 1, 0, INT32_MAX) : 0;
    const json_t *dense = qwen ? reader_get(reader, "mlp_only_layers") : NULL, *entry;
    size_t n;
    char text[64];
    for (int64_t i = 0; i < desc->num_layers; i++) desc->layers[i].sparse = i >= first && (i + 1) % step == 0;
    bool good = !dense || json_is_array(dense);
    json_array_foreach (dense, n, entry) {
        const json_int_t layer = json_is_integer(entry) ? json_integer_value(entry) : -1;
        if (layer < 0) good = false;
        if (layer >= 0 && layer < desc->num_layers) desc->layers[layer].sparse = false;
    }
    if (!good)
        reader_fail(reader, STATUS_DATA, "mlp_only_layers must be a list of layers, not %s", reader_show(dense, text));
    for (int64_t i = 0; i < desc->num_layers; i++)
        if (desc->layers[i].sparse) desc->layers[i].intermediate_size = desc->experts.shared_size;
}

/* Gemma 4: layers without a window have heads of another size; the last ones read keys and values of layers before. */
static void read_layers_gemma4(struct config_reader *reader, struct model_desc *desc)
{
    const int64_t L = desc->num_layers, own = L - reader_int(reader, "num_kv_shared_layers", 0, 0, L - 1);
    const bool no_v = reader_bool(reader, "attention_k_eq_v", false);
    const bool wide = reader_bool(reader, "use_double_wide_mlp", false);
    const int64_t head_dim = reader_int(reader, "global_head_dim", 512, 1, MAX_HEAD_DIM);
    const int64_t kv = reader_int(reader, "num_global_key_value_heads", desc->num_kv_heads, 1, MAX_HEADS);
    const json_t *sizes = reader_get(reader, "per_layer_config");
    desc->layers[L - 1].window = 0;
    for (int64_t i = 0; i < L; i++) {
        struct layer_desc *layer = &desc->layers[i];
        const bool full = layer->window == 0;
        char number[24];
        snprintf(number, sizeof number, "%" PRId64, i);
        if (full && !sizes) layer->head_dim = head_dim;
        if (full && !sizes && no_v) layer->num_kv_heads = kv;
        read_layer_sizes(reader, json_object_get(sizes, number), layer);
        check_layer_sizes(reader, desc, i);
        if (full) desc->rope.dim = layer->head_dim;
        layer->v_is_k = no_v && full;
        if (i < own) continue;
        layer->intermediate_size *= wide ? 2 : 1;
        layer->kv_source = own - 1;
        while (layer->kv_source >= 0 && desc->layers[layer->kv_source].window != layer->window) layer->kv_source--;
        if (layer->kv_source < 0)
            reader_fail(reader, STATUS_DATA,
                        "num_kv_shared_layers: no layer before has the type of layer %" PRId64
                        ", whose keys and values it shares",
                        i);
    }
}

void model_layers_read(struct config_reader *reader, const struct layer_facts *facts, struct model_desc *desc)
{
    for (int64_t i = 0; i < desc->num_layers; i++)
        desc->layers[i] = (struct layer_desc){.head_dim = desc->head_dim,
                                              .num_kv_heads = desc->num_kv_heads,
                                              .intermediate_size = desc->intermediate_size,
                                              .kv_source = i};
    if (desc->experts.count) read_layers_sparse(reader, desc);
    if (facts->delta) {
        read_layers_delta(reader, facts, desc);
        return;
    }
    if (facts->nope == NOPE_LISTED) read_layers_nope(reader, desc);
    const bool windows = read_windows(reader, facts, desc) > 0;
    if (desc->family == FAMILY_GEMMA4) read_layers_gemma4(reader, desc);
    for (int64_t i = 0; i < desc->num_layers; i++) {
        if (facts->nope == NOPE_FULL) desc->layers[i].no_rope = windows && desc->layers[i].window == 0;
        desc->layers[i].local_rope = desc->local_rope.kind != ROPE_NONE && desc->layers[i].window > 0;
    }
}

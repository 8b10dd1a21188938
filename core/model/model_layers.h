/* model_layers.h: the part of a config.json by which layers differ, for model_config.c. */
#pragma once

#include "core/model/config_reader.h"

/* The layers that have the sliding window in transformers. */
enum window_rule {
    WINDOW_NONE, /* no layer, whatever the config says */
    WINDOW_ALL,
    WINDOW_FROM,        /* with use_sliding_window: those from max_window_layers on, or as layer_types lists them */
    WINDOW_NOPE,        /* with use_sliding_window: those without RoPE, or as layer_types lists them */
    WINDOW_EVERY_OTHER, /* the first, the third, …, or as layer_types lists them; there must be a window */
    WINDOW_PATTERN      /* all but every sliding_window_pattern-th; else as above */
};

struct layer_facts {
    enum window_rule windows;
    int64_t window; /* the default of sliding_window; 0: none */
    bool nope;      /* no_rope_layers has an effect */
};

/* Fills desc->layers, which the caller has allocated for desc->num_layers; desc->head_dim and desc->local_rope are
 * known.
 */
void model_layers_read(struct config_reader *reader, const struct layer_facts *facts, struct model_desc *desc);

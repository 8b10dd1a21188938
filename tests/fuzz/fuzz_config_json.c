/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a config.json: refused, or a description whose table, frequencies and export hold together. */
#include "core/model/shard.h"
#include "core/model/tensor_table.h"

#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_description(const struct model_desc *desc)
{
    ASSERT(desc->vocab_size > 0 && desc->hidden_size > 0 && desc->intermediate_size > 0 && desc->max_positions > 0);
    ASSERT(desc->num_layers > 0 && desc->head_dim > 0 && desc->num_heads % desc->num_kv_heads == 0);
    ASSERT(desc->norm_eps > 0 && desc->initializer_range > 0 && desc->layers);
    ASSERT(desc->rotary_dim >= 0 && desc->rotary_dim <= desc->head_dim && desc->rotary_dim % 2 == 0);
    ASSERT(desc->padding_token >= -1 && desc->padding_token < desc->vocab_size);
    if (desc->rope.kind != ROPE_NONE) {
        float *inv_freq = malloc((size_t)desc->rotary_dim / 2 * sizeof *inv_freq);
        model_rope_frequencies(&desc->rope, desc->rotary_dim, 2, inv_freq);
        model_rope_frequencies(&desc->rope, desc->rotary_dim, INT32_MAX, inv_freq);
        if (desc->local_rope.kind != ROPE_NONE)
            model_rope_frequencies(&desc->local_rope, desc->rotary_dim, INT32_MAX, inv_freq);
        free(inv_freq);
    }
    json_t *config = model_desc_export_config(desc, DTYPE_BF16);
    struct model_desc again;
    struct error err;
    if (model_desc_from_json(config, "export", &again, &err) != STATUS_OK) BUG("%s", err.text);
    ASSERT(again.vocab_size == desc->vocab_size && again.head_dim == desc->head_dim);
    json_decref(config);
    model_desc_release(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model_desc desc;
    struct tensor_table table;
    struct shard_layout layout;
    struct error err;
    json_t *config = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);
    if (!config) return 0;
    if (model_desc_from_json(config, "config.json", &desc, &err) == STATUS_OK) {
        check_description(&desc);
        if (desc.num_layers <= 64) {
            tensor_table_build(&desc, &table);
            shard_layout_init(&layout, &table, 3);
            ASSERT(layout.shard_numel * 3 >= table.num_params);
            shard_layout_release(&layout);
            tensor_table_release(&table);
        }
        model_desc_release(&desc);
    } else {
        ASSERT(err.text[0]);
    }
    json_decref(config);
    return 0;
}

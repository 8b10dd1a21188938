/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as an adapter_config.json: refused, or an adapter that either cannot be on a small model, or is written and
 * read again with the same modules. */
#include "core/model/adapter.h"
#include "core/spec/adapter_config.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct small_model {
    struct model_desc desc;
    struct tensor_table table;
    struct adapter_choice *choices, tied_head;
};

static enum status choose_on_small_model(struct small_model *model, const struct adapter_settings *settings)
{
    struct error err;
    json_t *config =
        json_pack("{sssisisisisisb}", "model_type", "llama", "hidden_size", 8, "num_attention_heads", 2,
                  "num_hidden_layers", 2, "vocab_size", 20, "intermediate_size", 12, "tie_word_embeddings", true);
    if (model_desc_from_json(config, "small", &model->desc, &err) != STATUS_OK) BUG("%s", err.text);
    json_decref(config);
    tensor_table_build(&model->desc, &model->table);
    model->choices = calloc((size_t)model->table.num_tensors, sizeof *model->choices);
    model->tied_head = (struct adapter_choice){0};
    ASSERT(model->choices);
    return adapter_choose(settings, &model->desc, &model->table, model->choices, &model->tied_head, NULL, &err);
}

static void release_small_model(struct small_model *model)
{
    free(model->choices);
    tensor_table_release(&model->table);
    model_desc_release(&model->desc);
}

static void check_adapter(const struct adapter_config *config)
{
    struct small_model model, again;
    struct adapter_config written;
    struct error err;
    if (choose_on_small_model(&model, &config->settings) == STATUS_OK) {
        const int num_tensors = model.table.num_tensors;
        adapter_extend_table(&model.table, &model.desc, model.choices, &model.tied_head);
        json_t *json = adapter_config_to_json(&config->settings, &model.desc, &model.table, NULL);
        if (adapter_config_from_json(json, "written", &written, &err) != STATUS_OK ||
            choose_on_small_model(&again, &written.settings) != STATUS_OK)
            BUG("%s", err.text);
        for (int i = 0; i < num_tensors; i++)
            ASSERT(model.choices[i].use == again.choices[i].use && model.choices[i].r == again.choices[i].r);
        release_small_model(&again);
        adapter_config_release(&written);
        json_decref(json);
    }
    release_small_model(&model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct adapter_config config;
    struct error err;
    json_t *json = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);
    if (!json) return 0;
    if (adapter_config_from_json(json, "adapter_config.json", &config, &err) == STATUS_OK) {
        check_adapter(&config);
        adapter_config_release(&config);
    } else {
        ASSERT(err.text[0]);
    }
    json_decref(json);
    return 0;
}

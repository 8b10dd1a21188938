/* SPDX-License-Identifier: Apache-2.0 */
/* adapter_config.h: adapter_config.json, as PEFT writes and reads it: the settings of an adapter, and its base. */
#pragma once

#include "core/model/tensor_table.h"

#define ADAPTER_CONFIG_FILE "adapter_config.json"

struct adapter_config {
    struct adapter_settings settings; /* base_dtype: DTYPE_COUNT, as PEFT has no such key */
    const char *base_model;           /* base_model_name_or_path; NULL: none */
    const char *task_type;            /* CAUSAL_LM, SEQ_CLS, …; NULL: none */
    struct spec_full *full;           /* owned: the same as `peft` of a spec, whose arena has all of it */
};

/* STATUS_USAGE: the adapter is not plain LoRA, by the key that is named; STATUS_DATA: the file is absent or damaged. */
enum status adapter_config_load(const char *folder, struct adapter_config *config, struct error *err);

/* The same from parsed JSON (borrowed); `where` names its source in messages. */
enum status adapter_config_from_json(const json_t *json, const char *where, struct adapter_config *config,
                                     struct error *err);
void adapter_config_release(struct adapter_config *config);

/* What PEFT's save_pretrained() writes for the adapter in `table` (after adapter_extend_table()), without keys at which
 * older versions fail. target_modules lists the modules with A and B. base_model: or NULL. New reference. */
json_t *adapter_config_to_json(const struct adapter_settings *settings, const struct model_desc *desc,
                               const struct tensor_table *table, const char *base_model);

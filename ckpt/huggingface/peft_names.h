/* SPDX-License-Identifier: Apache-2.0 */
/* peft_names.h: an adapter's tensors in PEFT's files. For the files of ckpt/huggingface/. */
#pragma once

#include "core/model/tensor_table.h"

#define PEFT_WEIGHTS "adapter_model"
#define PEFT_PREFIX "base_model.model."
#define PEFT_HEAD PEFT_PREFIX "lm_head.weight"

/* The A of an embedding is (V, r) in the table, and (r, V) in files. */
static inline bool peft_transposes(const struct tensor_info *tensor)
{
    return tensor->part == PART_LORA_A &&
           (tensor->role == ROLE_WTE || tensor->role == ROLE_WPE || tensor->role == ROLE_WSE);
}

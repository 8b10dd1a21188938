/* SPDX-License-Identifier: Apache-2.0 */
/* adapter.c: adds an adapter's tensors to the tensor table. Which modules are targets: adapter_targets.c. */
#include "core/model/adapter.h"

#include "core/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The inputs and outputs of a matrix (out, in), or (in, out) in GPT-2's blocks; of an embedding (V, C) V and C. */
static int64_t adapter_inputs(const struct model_desc *desc, const struct tensor_info *base)
{
    const bool in_out = desc->weights_in_out && base->unit > 0 && base->unit <= desc->num_layers;
    return base->shape[role_is_embedding(base->role) || in_out ? 0 : 1];
}

static struct tensor_info adapter_tensor(const struct model_desc *desc, const struct tensor_info *base,
                                         const struct adapter_choice *choice, enum tensor_part part)
{
    static const char SUFFIX[] = ".weight";
    const int stem = (int)(strlen(base->name) - (sizeof SUFFIX - 1));
    const bool embedding = role_is_embedding(base->role), is_a = part == PART_LORA_A;
    const int64_t in = adapter_inputs(desc, base), out = base->shape[0] * base->shape[1] / in;
    ASSERT(stem > 0 && strcmp(base->name + stem, SUFFIX) == 0 && choice->r > 0);
    struct tensor_info tensor = {.role = base->role,
                                 .part = part,
                                 .lora_scale = choice->scale,
                                 .unit = base->unit,
                                 .ndim = 2,
                                 .shape = {!is_a       ? out
                                           : embedding ? in
                                                       : choice->r,
                                           is_a && !embedding ? in : choice->r},
                                 .init = embedding && !is_a   ? INIT_NORMAL
                                         : is_a && !embedding ? INIT_UNIFORM
                                                              : INIT_ZERO,
                                 .init_std = embedding ? 1 : 1 / sqrt((double)in)};
    const int n =
        snprintf(tensor.name, sizeof tensor.name, embedding ? "%.*s.lora_embedding_%s" : "%.*s.lora_%s.weight", stem,
                 base->name, is_a ? "A" : "B");
    ASSERT(n > 0 && n < (int)sizeof tensor.name);
    return tensor;
}

static bool is_left_frozen(void *context, const struct tensor_info *tensor)
{
    const struct adapter_choice *choices = context;
    return choices[tensor->number].use != ADAPTER_SAVE;
}

void adapter_extend_table(struct tensor_table *table, const struct model_desc *desc,
                          const struct adapter_choice *choices, const struct adapter_choice *tied_head)
{
    struct tensor_info *added = memory_zeroed(2 * ((size_t)table->num_tensors + 1), sizeof *added);
    int count = 0;
    for (int first = 0, next; first < table->num_tensors; first = next) { /* a fused group, or one tensor */
        bool joined = false;
        for (next = first + 1; next < table->num_tensors && table->tensors[next].joined; next++)
            ;
        for (int i = first; i < next; i++) {
            if (choices[i].use != ADAPTER_LORA) continue;
            added[count] = adapter_tensor(desc, &table->tensors[i], &choices[i], PART_LORA_A);
            added[count++].joined = joined;
            joined = true;
        }
        for (int i = first; i < next; i++)
            if (choices[i].use == ADAPTER_LORA)
                added[count++] = adapter_tensor(desc, &table->tensors[i], &choices[i], PART_LORA_B);
    }
    if (tied_head->use == ADAPTER_LORA) {
        struct tensor_info head = {.name = "lm_head.weight",
                                   .role = ROLE_LM_HEAD,
                                   .unit = tensor_table_head(table),
                                   .shape = {desc->vocab_size, desc->hidden_size}};
        added[count++] = adapter_tensor(desc, &head, tied_head, PART_LORA_A);
        added[count++] = adapter_tensor(desc, &head, tied_head, PART_LORA_B);
    }
    tensor_table_freeze(table, is_left_frozen, (void *)(uintptr_t)choices, added, count);
    table->adapted = true;
    free(added);
}

enum status adapter_apply(const struct adapter_settings *settings, const struct model_desc *desc,
                          struct tensor_table *table, struct string_list *notices, struct error *err)
{
    struct adapter_choice tied_head = {.use = ADAPTER_NONE};
    if (!settings->on) return STATUS_OK;
    struct adapter_choice *choices = memory_zeroed((size_t)table->num_tensors, sizeof *choices);
    const enum status status = adapter_choose(settings, desc, table, choices, &tied_head, notices, err);
    if (status == STATUS_OK) adapter_extend_table(table, desc, choices, &tied_head);
    free(choices);
    return status;
}

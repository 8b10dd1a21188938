/* SPDX-License-Identifier: Apache-2.0 */
/* adapter.c: adds an adapter's tensors to the tensor table. Which modules are targets: adapter_targets.c. */
#include "core/model/adapter.h"

#include "core/memory.h"

/* The inputs and outputs of a matrix (out, in), or (in, out) in GPT-2's blocks; of an embedding (V, C) V and C. */
static int64_t adapter_inputs(const struct model_desc *desc, const struct tensor_info *base)
{
    const bool in_out = desc->weights_in_out && base->unit > 0 && base->unit <= desc->num_layers;
    return base->shape[role_is_embedding(base->role) || in_out ? 0 : 1];
}

/* The A or B of a matrix, or of all experts'. outer: PEFT wraps the module again, around that of gate and up. */
static struct tensor_info adapter_of(const struct model_desc *desc, const struct tensor_info *base,
                                     const struct adapter_choice *choice, enum tensor_part part, bool outer)
{
    const struct experts_desc *experts = &desc->experts;
    const bool expert = role_is_expert(base->role), down = base->role == ROLE_EXPERT_DOWN_W;
    const bool embedding = role_is_embedding(base->role), is_a = part == PART_LORA_A;
    const int64_t in = !expert ? adapter_inputs(desc, base) : down ? experts->inner_size : desc->hidden_size;
    const int64_t out = !expert ? base->shape[0] * base->shape[1] / in
                        : down  ? desc->hidden_size
                                : 2 * experts->inner_size;
    struct tensor_info tensor = {.role = base->role,
                                 .part = part,
                                 .lora_scale = choice->scale,
                                 .unit = base->unit,
                                 .ndim = expert ? 3 : 2,
                                 .shape = {experts->count},
                                 .init = embedding ? INIT_NORMAL : INIT_UNIFORM,
                                 .init_std = embedding ? 1 : 1 / sqrt((double)in)};
    tensor.shape[expert] = !is_a ? out : embedding ? in : choice->r;
    tensor.shape[expert + 1] = is_a && !embedding ? in : choice->r;
    if (is_a == embedding) tensor.init = INIT_ZERO;
    char name[sizeof tensor.name];
    adapter_parameter_name(desc, base, name, sizeof name);
    const char *end = strrchr(name, '.');
    ASSERT(end && (expert || strcmp(end, ".weight") == 0) && choice->r > 0);
    const int n =
        snprintf(tensor.name, sizeof tensor.name, embedding ? "%.*s%s.lora_embedding_%s" : "%.*s%s.lora_%s.weight",
                 (int)(end - name), name, outer ? ".base_layer" : "", is_a ? "A" : "B");
    ASSERT(n > 0 && n < (int)sizeof tensor.name);
    return tensor;
}

/* A table without adapters, and what is chosen for it. */
struct adapter_base {
    const struct model_desc *desc;
    const struct tensor_table *table;
    const struct adapter_choice *choices;
};

static struct tensor_info adapter_tensor(const struct adapter_base *b, int i, enum tensor_part part)
{
    const struct tensor_info *base = &b->table->tensors[i], *down = base;
    if (role_is_expert(base->role)) down = tensor_find(b->table, b->table->units[base->unit].owner, ROLE_EXPERT_DOWN_W);
    const bool outer = down != base && b->choices[down - b->table->tensors].use == ADAPTER_LORA;
    return adapter_of(b->desc, base, &b->choices[i], part, outer);
}

static bool is_left_frozen(void *context, const struct tensor_info *tensor)
{
    const struct adapter_choice *choices = context;
    return choices[tensor->number].use != ADAPTER_SAVE;
}

void adapter_extend_table(struct tensor_table *table, const struct model_desc *desc,
                          const struct adapter_choice *choices, const struct adapter_choice *tied_head)
{
    const struct adapter_base base = {desc, table, choices};
    OWNED struct tensor_info *added = memory_zeroed(2 * ((size_t)table->num_tensors + 1), sizeof *added);
    int count = 0;
    for (int first = 0, next; first < table->num_tensors; first = next) { /* a fused group, or one tensor */
        bool joined = false;
        for (next = first + 1; next < table->num_tensors && table->tensors[next].joined; next++)
            ;
        for (int i = first; i < next; i++) {
            if (choices[i].use != ADAPTER_LORA) continue;
            added[count] = adapter_tensor(&base, i, PART_LORA_A);
            added[count++].joined = joined;
            joined = true;
        }
        for (int i = first; i < next; i++)
            if (choices[i].use == ADAPTER_LORA) added[count++] = adapter_tensor(&base, i, PART_LORA_B);
    }
    if (tied_head->use == ADAPTER_LORA) {
        struct tensor_info head = {.name = "lm_head.weight",
                                   .role = ROLE_LM_HEAD,
                                   .unit = tensor_table_head(table),
                                   .shape = {desc->vocab_size, desc->hidden_size}};
        added[count++] = adapter_of(desc, &head, tied_head, PART_LORA_A, false);
        added[count++] = adapter_of(desc, &head, tied_head, PART_LORA_B, false);
    }
    tensor_table_freeze(table, is_left_frozen, (void *)(uintptr_t)choices, added, count);
    table->adapted = true;
}

enum status adapter_apply(const struct adapter_settings *settings, const struct model_desc *desc,
                          struct tensor_table *table, struct string_list *notices, struct error *err)
{
    struct adapter_choice tied_head = {.use = ADAPTER_NONE};
    if (!settings->on) return STATUS_OK;
    OWNED struct adapter_choice *choices = memory_zeroed((size_t)table->num_tensors, sizeof *choices);
    TRY(adapter_choose(settings, desc, table, choices, &tied_head, notices, err));
    adapter_extend_table(table, desc, choices, &tied_head);
    return STATUS_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* adapter.h: LoRA (Hu et al., 2021) in the tensor table: the base is frozen, and each matrix W (out, in) that is a
 * target gets two tensors that are trained:
 *
 *     y = x · Wᵀ + scale · drop(x) · Aᵀ · Bᵀ          A (r, in)   lora_A.weight      B (out, r)   lora_B.weight
 *
 * A and B lie in the trained part of the unit whose op uses the matrix: those of a tied head in the head. The A of a
 * fused group follow each other in its order: one matrix (sum of r, in). A starts uniform in ±1/sqrt(in), B as zeros;
 * of an embedding A (V, r) as zeros, B (C, r) normal; PEFT's files hold lora_embedding_A as (r, V).
 *
 * Experts have A (E, r, in) and B (E, out, r), of gate and up together; PEFT's files hold them as (E r, in) and
 * (out, r E), where the expert is the fastest index. */
#pragma once

#include "core/model/tensor_table.h"

/* NONE: frozen; LORA: frozen, with A and B; SAVE: trained (modules_to_save). */
enum adapter_use { ADAPTER_NONE, ADAPTER_LORA, ADAPTER_SAVE };

/* What an adapter does with a tensor of the base. */
struct adapter_choice {
    enum adapter_use use;
    int64_t r;    /* ADAPTER_LORA */
    double scale; /* the same: of what A and B add */
};

/* Fills choices[table->num_tensors] for a table without an adapter, and *tied_head for the head of a tied model, which
 * has no tensor. STATUS_USAGE, with the names that the model has: no module is a target, one that is cannot have an
 * adapter, or a module to save is tied or a part of a fused group. notices: NULL, or gets a
 * line for each name and pattern that matches no module: PEFT takes them, and one may be misspelt. */
enum status adapter_choose(const struct adapter_settings *settings, const struct model_desc *desc,
                           const struct tensor_table *table, struct adapter_choice *choices,
                           struct adapter_choice *tied_head, struct string_list *notices, struct error *err);

/* Writes the name of a tensor of the base in transformers' memory: matrices of experts are one parameter there. For an
 * A or B of experts or a router that of their base. */
void adapter_parameter_name(const struct model_desc *desc, const struct tensor_info *tensor, char *name, size_t size);

/* Whether PEFT has the A on a parameter, not on a module: of experts, of a router, or of a matrix whose name it takes
 * for one that experts had, so that target_modules cannot name it. */
bool adapter_is_parameter(const struct model_desc *desc, const struct tensor_info *a);

/* Whether PEFT doubled r and alpha of experts.gate_up_proj, as gate and up are targets. The table may be extended. */
bool adapter_doubles_gate_up(const struct adapter_settings *settings, const struct model_desc *desc,
                             const struct tensor_table *table);

/* Freezes the table but for modules_to_save, and adds A and B. Once, before anything is derived from the table. */
void adapter_extend_table(struct tensor_table *table, const struct model_desc *desc,
                          const struct adapter_choice *choices, const struct adapter_choice *tied_head);

/* Both, if settings->on. */
enum status adapter_apply(const struct adapter_settings *settings, const struct model_desc *desc,
                          struct tensor_table *table, struct string_list *notices, struct error *err);

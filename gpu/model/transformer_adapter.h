/* SPDX-License-Identifier: Apache-2.0 */
/* transformer_adapter.h: LoRA's products beside those of the model (core/model/adapter.h). */
#pragma once

#include "gpu/model/transformer_unit.h"

/* Finds the adapters of all matrices in the tensor table. STATUS_USAGE: one that is not computed. */
enum status adapter_find(struct transformer *t, struct error *err);

/* Whether a matrix of the unit has an adapter. */
static inline bool adapter_of(const struct transformer *t, int unit, enum linear which)
{
    return t->adapters && t->adapters[unit * LINEAR_COUNT + (int)which].count > 0;
}

/* Takes the adapters' buffers, if there are any. */
void adapter_layout(struct transformer *t, struct arena *arena);

/* To the y of `product`, for its rows of the micro-batch from `first` on, what the adapters of its matrix add; with
 * product->accumulate, which is for one adapter on all columns, y is that, for the product to add to. unit: the one
 * with A and B. */
void adapter_forward(const struct pass *pass, const struct unit *unit, enum linear which, int64_t first,
                     const struct linear_fwd_args *product);

/* The gradients of A and B from the product's dy and x, then dx (M, K) = what goes back through them, or += with
 * `adds`, unless it is NULL. dx may be x if there is one adapter. */
void adapter_backward(const struct pass *pass, const struct unit *unit, enum linear which, int64_t first,
                      const struct linear_bwd_weight_args *product, void *dx, bool adds);

/* The same of the experts' matrices of a role, whose adapters they look for. dxa comes first: the gradient of x · A,
 * from dy, which the other two use. input: whether there are such, and dx is written. */
void adapter_experts_forward(const struct pass *pass, const struct unit *unit, enum tensor_role role,
                             const struct grouped_linear_fwd_args *product);
void adapter_experts_dxa(const struct pass *pass, const struct unit *unit, enum tensor_role role,
                         const struct grouped_linear_bwd_input_args *product);
void adapter_experts_weights(const struct pass *pass, const struct unit *unit, enum tensor_role role,
                             const struct grouped_linear_bwd_weight_args *product);
bool adapter_experts_input(const struct pass *pass, const struct unit *unit, enum tensor_role role,
                           const struct grouped_linear_bwd_input_args *product);

/* out (M, C) += scale · what the adapter of the token embedding adds; then its gradients from dout. */
void adapter_embed(const struct pass *pass, const struct unit *unit, void *out);
void adapter_embed_backward(const struct pass *pass, const struct unit *unit, const void *dout);

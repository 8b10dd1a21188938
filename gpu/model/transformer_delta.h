/* SPDX-License-Identifier: Apache-2.0 */
/* transformer_delta.h: a gated delta rule in the place of a block's attention (Qwen3.5). */
#pragma once

#include "gpu/model/transformer_state.h"
#include "gpu/model/transformer_unit.h"

/* Elements of a row of in_proj's product: q | k | v, the gate z, b, a. */
static inline int64_t delta_width(const struct delta_desc *delta)
{
    return delta_channels(delta) + delta->value_heads * (delta->value_dim + 2);
}

static inline int64_t delta_values(const struct delta_desc *delta)
{
    return delta->value_heads * delta->value_dim;
}

/* The sizes of the op. */
struct delta_rule_fwd_args delta_sizes(const struct transformer *t, int64_t M, int32_t num_seqs, int32_t max_seq);

/* From the input of attention (M, C) to att (M, Hv Dv), the input of the output matrix. Computed again, it ends with
 * the same bits. */
void delta_forward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b, const void *x);

/* From datt (M, Hv Dv), which becomes scratch, to din (M, delta_width), the gradient of in_proj's product. */
void delta_backward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b, void *datt,
                    void *din);

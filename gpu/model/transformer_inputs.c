/* SPDX-License-Identifier: Apache-2.0 */
/* transformer_inputs.c: an input of its own for each layer, I elements of a token:
 *
 *     tokens ─► embedding · √I ─────────────────────┐
 *     block 0's input ─► matrix ─► projected ─► norm ─► + ─► · 1/√2 ─► layer_in (M, L I)
 *
 * and what a block makes of it after its MLP:
 *
 *     res2, delta ─► + ─► res3 ─► matrix ─► in_gate ─► GELU · the layer's input ─► in_act
 *     in_act ─► matrix ─► out3 ─► norm ─► delta */
#include "gpu/model/transformer_inputs.h"

#include "gpu/model/transformer_layers.h"

/* Of the embedding, rounded as the other one's. */
static float inputs_scale(const struct transformer *t)
{
    return dtype_rounded(sqrtf((float)t->I), t->config.desc->embedding_rounds ? t->dtype : DTYPE_F32);
}

/* layer_in, or its gradient, times 1/√2. */
static void inputs_halve(const struct pass *pass)
{
    const struct transformer *t = pass->transformer;
    accumulate_to(pass, pass->M * t->L * t->I, t->layer_in, t->dtype, t->layer_in, t->dtype, (float)M_SQRT1_2, false);
}

void layer_inputs_forward(const struct pass *pass, const struct unit *unit)
{
    const struct transformer *t = pass->transformer;
    const int64_t width = t->L * t->I;
    linear_forward(pass, unit, LINEAR_LAYER_IN, t->projected, t->blocks[0].res1, NULL);
    /* transformers norms the product divided by √C: the same, but for eps */
    PASS_OP(pass, head_norm_fwd, .dtype = t->dtype, .M = pass->M, .heads = t->L, .D = t->I, .ld_x = width,
            .ld_y = width, .eps = t->eps * (float)t->C, .y = t->layer_in, .x = t->projected,
            .weight = unit_param(t, unit, ROLE_LAYER_IN_NORM), .weight_offset = (float)t->config.desc->norm_offset,
            .rstd = t->projected_rstd);
    PASS_OP(pass, embedding_fwd, .dtype = t->dtype, .M = pass->M, .C = width, .out = t->wide,
            .tokens = pass->batch.tokens, .positions = pass->batch.positions,
            .wte = unit_param(t, unit, ROLE_LAYER_WTE), .scale = inputs_scale(t));
    PASS_OP(pass, add, .dtype = t->dtype, .n = pass->M * width, .y = t->layer_in, .a = t->layer_in, .b = t->wide);
    inputs_halve(pass);
}

void layer_inputs_backward(const struct pass *pass, const struct unit *unit)
{
    const struct transformer *t = pass->transformer;
    const int64_t width = t->L * t->I;
    inputs_halve(pass);
    PASS_OP(pass, embedding_bwd, .dtype = t->dtype, .M = pass->M, .C = width, .V = t->config.desc->layer_vocab,
            .P = t->config.desc->max_positions, .dwte = unit_grad(t, unit, ROLE_LAYER_WTE),
            .accumulate_wte = unit->to.adds, .dout = t->layer_in, .tokens = pass->batch.tokens,
            .positions = pass->batch.positions, .scale = inputs_scale(t),
            .padding = model_desc_untrained_token(t->config.desc));
    PASS_OP(pass, head_norm_bwd, .dtype = t->dtype, .M = pass->M, .heads = t->L, .D = t->I, .ld_x = width,
            .ld_dy = width, .ld_dx = width, .dx = t->layer_in, .dy = t->layer_in, .x = t->projected,
            .weight = unit_param(t, unit, ROLE_LAYER_IN_NORM), .weight_offset = (float)t->config.desc->norm_offset,
            .rstd = t->projected_rstd, .dweight = unit_grad(t, unit, ROLE_LAYER_IN_NORM), .accumulate = unit->to.adds);
    linear_backward(pass, unit, LINEAR_LAYER_IN, t->delta, t->layer_in, t->blocks[0].res1, NULL);
    add_rows(pass, t->dres, t->dres, t->delta, NULL);
}

static struct norm third_post_norm(const struct transformer *t, const struct block_buffers *b)
{
    return (struct norm){ROLE_POST3_W, ROLE_COUNT, b->out3, t->delta, NULL, b->post3, NULL};
}

/* Where the block's input begins in layer_in. */
static void *input_of_layer(const struct transformer *t, const struct block_buffers *b)
{
    return row_at(t, t->layer_in, b - t->blocks, t->I);
}

void layer_input_add(const struct pass *pass, const struct unit *unit, const struct block_buffers *b)
{
    const struct transformer *t = pass->transformer;
    add_rows(pass, b->res3, b->res2, t->delta, NULL);
    linear_forward(pass, unit, LINEAR_IN_GATE, b->in_gate, b->res3, NULL);
    PASS_OP(pass, gate_fwd, .dtype = t->dtype, .M = pass->M, .C = t->I, .ld_gate = t->I, .y = b->in_act,
            .x = input_of_layer(t, b), .gate = b->in_gate, .ld_x = t->L * t->I, .gelu = true);
    linear_forward(pass, unit, LINEAR_IN_OUT, b->out3, b->in_act, NULL);
    norm_forward(pass, unit, third_post_norm(t, b), NULL, NULL);
}

void layer_input_backward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b)
{
    const struct transformer *t = pass->transformer;
    void *input = input_of_layer(t, b);
    norm_backward(pass, unit, third_post_norm(t, b), t->dbranch, t->dres, NULL, (struct row_sums){0});
    linear_backward(pass, unit, LINEAR_IN_OUT, t->wide, t->dbranch, b->in_act, NULL);
    PASS_OP(pass, gate_bwd, .dtype = t->dtype, .M = pass->M, .C = t->I, .ld_gate = t->I, .dx = input,
            .dgate = b->in_gate, .dy = t->wide, .x = input, .gate = b->in_gate, .ld_x = t->L * t->I, .gelu = true);
    linear_backward(pass, unit, LINEAR_IN_GATE, t->delta, b->in_gate, b->res3, NULL);
    add_rows(pass, t->dres, t->dres, t->delta, NULL);
}

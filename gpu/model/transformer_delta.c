/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/* transformer_delta.c: a gated delta rule in the place of attention:
 *
 *     x ─► in_proj: q k v │ z │ b │ a
 *     q k v ─► convolution ─► delta rule, with b and a ─► norm · silu(z) ─► out_proj
 *
 * The products of in_proj are one (qkv of the block's buffers). A generated sequence has the convolution's last inputs
 * and the state of each head in the place of keys and values. */
/* clang-format on */
#include "gpu/model/transformer_delta.h"

#include "gpu/model/transformer_layers.h"

/* Where z, b and a begin in a row of in_proj's product. */
struct delta_columns {
    int64_t z, b, a, width;
};

static struct delta_columns delta_columns_of(const struct delta_desc *delta)
{
    const int64_t z = delta_channels(delta), b = z + delta_values(delta);
    return (struct delta_columns){z, b, b + delta->value_heads, delta_width(delta)};
}

struct delta_rule_fwd_args delta_sizes(const struct transformer *t, int64_t M, int32_t num_seqs, int32_t max_seq)
{
    const struct delta_desc *delta = &t->config.desc->delta;
    return (struct delta_rule_fwd_args){
        .dtype = t->dtype,
        .M = M,
        .Hk = delta->key_heads,
        .Hv = delta->value_heads,
        .Dk = delta->key_dim,
        .Dv = delta->value_dim,
        .ld_qkv = delta_channels(delta),
        .ld_ab = delta_width(delta),
        .ld_o = delta_values(delta),
        .num_seqs = num_seqs,
        .max_seq = max_seq,
    };
}

/* What the pass's cache has of the block's sequence; without one, NULL. */
struct delta_held {
    void *inputs;
    float *state;
};

static struct delta_held delta_held_of(const struct pass *pass, int64_t block)
{
    const struct transformer *t = pass->transformer;
    const struct delta_desc *delta = &t->config.desc->delta;
    if (!pass->cache) return (struct delta_held){NULL, NULL};
    const int64_t place = transformer_place(t, block);
    return (struct delta_held){row_at(t, pass->cache->inputs, place, delta->taps * delta_channels(delta)),
                               pass->cache->states + place * delta->key_dim * delta_values(delta)};
}

/* The arguments of the delta rule, without its result. */
static struct delta_rule_fwd_args delta_args(const struct pass *pass, const struct unit *unit,
                                             const struct block_buffers *b)
{
    const struct transformer *t = pass->transformer;
    const struct delta_desc *delta = &t->config.desc->delta;
    const struct delta_columns at = delta_columns_of(delta);
    const int64_t keys = delta->key_heads * delta->key_dim;
    struct delta_rule_fwd_args args = delta_sizes(t, pass->M, pass->batch.num_seqs, pass->batch.max_seq);
    args.seq_start = pass->batch.seq_start;
    args.q = b->conv;
    args.k = row_at(t, b->conv, keys, 1);
    args.v = row_at(t, b->conv, 2 * keys, 1);
    args.a = row_at(t, b->qkv, at.a, 1);
    args.b = row_at(t, b->qkv, at.b, 1);
    args.a_log = unit_param(t, unit, ROLE_DELTA_A_LOG);
    args.dt_bias = unit_param(t, unit, ROLE_DELTA_DT_BIAS);
    return args;
}

void delta_forward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b, const void *x)
{
    const struct transformer *t = pass->transformer;
    const struct delta_desc *delta = &t->config.desc->delta;
    const struct delta_columns at = delta_columns_of(delta);
    const struct delta_held held = delta_held_of(pass, b - t->blocks);
    linear_forward(pass, unit, LINEAR_DELTA_IN, b->qkv, x, NULL);
    PASS_OP(pass, causal_conv_fwd, .dtype = t->dtype, .M = pass->M, .C = at.z, .K = delta->taps, .ld_x = at.width,
            .ld_y = at.z, .num_seqs = pass->batch.num_seqs, .seq_start = pass->batch.seq_start, .y = b->conv,
            .x = b->qkv, .weight = unit_param(t, unit, ROLE_DELTA_CONV_W), .state = held.inputs);
    struct delta_rule_fwd_args rule = delta_args(pass, unit, b);
    rule.out = b->core;
    rule.state = held.state;
    t->device->ops->delta_rule_fwd(pass->stream, &rule);
    PASS_OP(pass, head_norm_fwd, .dtype = t->dtype, .M = pass->M, .heads = delta->value_heads, .D = delta->value_dim,
            .ld_x = rule.ld_o, .ld_y = rule.ld_o, .eps = t->eps, .y = b->att, .x = b->core,
            .weight = unit_param(t, unit, ROLE_DELTA_NORM_W), .rstd = b->core_rstd, .gate = row_at(t, b->qkv, at.z, 1),
            .ld_gate = at.width);
}

void delta_backward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b, void *datt,
                    void *din)
{
    const struct transformer *t = pass->transformer;
    const struct delta_desc *delta = &t->config.desc->delta;
    const struct delta_columns at = delta_columns_of(delta);
    const int64_t keys = delta->key_heads * delta->key_dim, values = delta_values(delta);
    PASS_OP(pass, head_norm_bwd, .dtype = t->dtype, .M = pass->M, .heads = delta->value_heads, .D = delta->value_dim,
            .ld_x = values, .ld_dy = values, .ld_dx = values, .dx = datt, .dy = datt, .x = b->core,
            .weight = unit_param(t, unit, ROLE_DELTA_NORM_W), .rstd = b->core_rstd,
            .dweight = unit_grad(t, unit, ROLE_DELTA_NORM_W), .accumulate = unit->to.adds,
            .gate = row_at(t, b->qkv, at.z, 1), .dgate = row_at(t, din, at.z, 1), .ld_gate = at.width);
    PASS_OP(pass, delta_rule_bwd, .fwd = delta_args(pass, unit, b), .dout = datt, .dq = t->dconv,
            .dk = row_at(t, t->dconv, keys, 1), .dv = row_at(t, t->dconv, 2 * keys, 1), .da = row_at(t, din, at.a, 1),
            .db = row_at(t, din, at.b, 1), .da_log = unit_grad(t, unit, ROLE_DELTA_A_LOG),
            .ddt_bias = unit_grad(t, unit, ROLE_DELTA_DT_BIAS), .accumulate = unit->to.adds);
    PASS_OP(pass, causal_conv_bwd, .dtype = t->dtype, .M = pass->M, .C = at.z, .K = delta->taps, .ld_x = at.width,
            .ld_dy = at.z, .ld_dx = at.width, .num_seqs = pass->batch.num_seqs, .seq_start = pass->batch.seq_start,
            .dx = din, .dy = t->dconv, .x = b->qkv, .weight = unit_param(t, unit, ROLE_DELTA_CONV_W),
            .dweight = unit_grad(t, unit, ROLE_DELTA_CONV_W), .accumulate = unit->to.adds);
}

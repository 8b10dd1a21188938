/* transformer_block.c: a block, forward and backward.
 *
 *     x, delta ─► + ─► res1 ─► norm1 ─► qkv ─► (head norms) ─► RoPE ─► attention ─► o ─► delta
 *     res1, delta ─► + ─► res2 ─► norm2 ─► up + GELU, or gate | up + SwiGLU ─► down ─► delta
 *
 * A norm and the residual add before it are one op, so a block ends with res2 and delta apart; the next block's first
 * norm, or the final norm, adds them. Backward runs in the opposite order on dres, the gradient of the residual stream:
 * each half of the block adds the gradient that came through its norm. With recompute, backward first runs the block's
 * forward again from res1, except for the last block, whose buffers are still filled. */
#include "gpu/model/transformer_block.h"

#include "gpu/model/transformer_layers.h"

#include <math.h>

static struct norm first_norm(const struct block_buffers *b)
{
    return (struct norm){ROLE_NORM1_W, ROLE_NORM1_B, b->res1, b->norm1, b->mean1, b->rstd1};
}

static struct norm second_norm(const struct block_buffers *b)
{
    return (struct norm){ROLE_NORM2_W, ROLE_NORM2_B, b->res2, b->norm2, b->mean2, b->rstd2};
}

/* Applies RoPE to the H + KV heads of q and k, which lie side by side at the start of rows `ld` apart. */
static void rotate(const struct pass *pass, void *x, int64_t ld, bool inverse)
{
    const struct transformer *t = pass->transformer;
    if (!t->rope_cos)
        return;
    struct rope_args args = {
        .dtype = t->dtype,
        .M = pass->M,
        .heads = t->H + t->KV,
        .D = t->D,
        .ld = ld,
        .x = x,
        .positions = pass->batch.positions,
        .cos_table = t->rope_cos,
        .sin_table = t->rope_sin,
        .inverse = inverse,
    };
    t->device->ops->rope(pass->stream, &args);
}

/* The heads of q or of k, for the head norms. `first` is the head at which they start in a row. */
struct heads {
    enum tensor_role weight;
    int64_t first, count;
    float *rstd;
};

static void head_norm_forward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b,
                              struct heads heads)
{
    const struct transformer *t = pass->transformer;
    struct head_norm_fwd_args args = {
        .dtype = t->dtype,
        .M = pass->M,
        .heads = heads.count,
        .D = t->D,
        .ld_x = t->W,
        .ld_y = (t->H + t->KV) * t->D,
        .eps = t->eps,
        .y = row_at(t, b->qk, heads.first, t->D),
        .x = row_at(t, b->qkv, heads.first, t->D),
        .weight = unit_param(t, unit, heads.weight),
        .rstd = heads.rstd,
    };
    t->device->ops->head_norm_fwd(pass->stream, &args);
}

/* In place in dqkv (M, W). */
static void head_norm_backward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b,
                               void *dqkv, struct heads heads)
{
    const struct transformer *t = pass->transformer;
    void *dx = row_at(t, dqkv, heads.first, t->D);
    struct head_norm_bwd_args args = {
        .dtype = t->dtype,
        .M = pass->M,
        .heads = heads.count,
        .D = t->D,
        .ld_x = t->W,
        .ld_dy = t->W,
        .ld_dx = t->W,
        .dx = dx,
        .dy = dx,
        .x = row_at(t, b->qkv, heads.first, t->D),
        .weight = unit_param(t, unit, heads.weight),
        .rstd = heads.rstd,
        .dweight = unit_grad(t, unit, heads.weight),
        .accumulate = unit->accumulate,
    };
    t->device->ops->head_norm_bwd(pass->stream, &args);
}

static struct heads query_heads(const struct transformer *t, const struct block_buffers *b)
{
    return (struct heads){ROLE_Q_NORM, 0, t->H, b->q_rstd};
}

static struct heads key_heads(const struct transformer *t, const struct block_buffers *b)
{
    return (struct heads){ROLE_K_NORM, t->H, t->KV, b->k_rstd};
}

/* Elements between the rows of rotated(). */
static int64_t rotated_ld(const struct transformer *t)
{
    return t->qk_norm ? (t->H + t->KV) * t->D : t->W;
}

struct attention_bwd_args attention_bwd_sizes(const struct transformer *t, int64_t M, int32_t num_seqs, int32_t max_seq)
{
    return (struct attention_bwd_args){
        .dtype = t->dtype,
        .M = M,
        .H = t->H,
        .KV = t->KV,
        .D = t->D,
        .ld_q = rotated_ld(t),
        .ld_k = rotated_ld(t),
        .ld_v = t->W,
        .ld_o = t->H * t->D,
        .ld_dq = t->W,
        .ld_dk = t->W,
        .ld_dv = t->W,
        .scale = (float)(1.0 / sqrt((double)t->D)),
        .window = t->config.desc->sliding_window,
        .num_seqs = num_seqs,
        .max_seq = max_seq,
    };
}

struct attention_fwd_args attention_fwd_sizes(const struct transformer *t, int64_t M, int32_t num_seqs, int32_t max_seq)
{
    struct attention_bwd_args backward = attention_bwd_sizes(t, M, num_seqs, max_seq);
    return attention_forward_of(&backward);
}

/* q and k as attention reads them: the heads of q, then those of k. */
static void *rotated(const struct transformer *t, const struct block_buffers *b)
{
    return t->qk_norm ? b->qk : b->qkv;
}

/* From norm1 (M, C) to att (M, H D). */
static void attention_forward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b)
{
    const struct transformer *t = pass->transformer;
    int64_t k_first = t->H, v_first = t->H + t->KV;
    char *qk = rotated(t, b);
    linear_forward(pass, unit, LINEAR_QKV, b->qkv, b->norm1, NULL);
    if (t->qk_norm) {
        head_norm_forward(pass, unit, b, query_heads(t, b));
        head_norm_forward(pass, unit, b, key_heads(t, b));
    }
    rotate(pass, qk, rotated_ld(t), false);
    struct attention_fwd_args args = attention_fwd_sizes(t, pass->M, pass->batch.num_seqs, pass->batch.max_seq);
    args.seq_start = pass->batch.seq_start;
    args.q = qk;
    args.k = row_at(t, qk, k_first, t->D);
    args.v = row_at(t, b->qkv, v_first, t->D);
    args.out = b->att;
    args.lse = b->lse;
    t->device->ops->attention_fwd(pass->stream, &args);
}

/* From datt (M, H D) to dqkv (M, W), the gradient of q | k | v as the matrix product wrote them. */
static void attention_backward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b,
                               const void *datt, void *dqkv)
{
    const struct transformer *t = pass->transformer;
    int64_t k_first = t->H, v_first = t->H + t->KV;
    char *qk = rotated(t, b);
    struct attention_bwd_args args = attention_bwd_sizes(t, pass->M, pass->batch.num_seqs, pass->batch.max_seq);
    args.seq_start = pass->batch.seq_start;
    args.q = qk;
    args.k = row_at(t, qk, k_first, t->D);
    args.v = row_at(t, b->qkv, v_first, t->D);
    args.out = b->att;
    args.dout = datt;
    args.lse = b->lse;
    args.dq = dqkv;
    args.dk = row_at(t, dqkv, k_first, t->D);
    args.dv = row_at(t, dqkv, v_first, t->D);
    t->device->ops->attention_bwd(pass->stream, &args);
    rotate(pass, dqkv, t->W, true);
    if (t->qk_norm) {
        head_norm_backward(pass, unit, b, dqkv, query_heads(t, b));
        head_norm_backward(pass, unit, b, dqkv, key_heads(t, b));
    }
}

/* From norm2 (M, C) to hidden (M, F), the input of the down matrix. */
static void mlp_forward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b)
{
    const struct transformer *t = pass->transformer;
    if (t->config.desc->mlp == MLP_GELU) {
        linear_forward(pass, unit, LINEAR_UP, b->hidden, b->norm2, b->inner);
        return;
    }
    linear_forward(pass, unit, LINEAR_UP, b->inner, b->norm2, NULL);
    struct swiglu_fwd_args args = {
        .dtype = t->dtype,
        .M = pass->M,
        .F = t->F,
        .h = b->hidden,
        .gate_up = b->inner,
    };
    t->device->ops->swiglu_fwd(pass->stream, &args);
}

/* From dy (M, C), the gradient of the down matrix's output, to dx (M, C), that of the up matrix's input. */
static void mlp_backward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b,
                         const void *dy, void *dx)
{
    const struct transformer *t = pass->transformer;
    if (t->config.desc->mlp == MLP_GELU) {
        linear_backward(pass, unit, LINEAR_DOWN, t->wide, dy, b->hidden, b->inner);
        linear_backward(pass, unit, LINEAR_UP, dx, t->wide, b->norm2, NULL);
        return;
    }
    linear_backward(pass, unit, LINEAR_DOWN, t->wide, dy, b->hidden, NULL);
    struct swiglu_bwd_args args = {
        .dtype = t->dtype,
        .M = pass->M,
        .F = t->F,
        .dgate_up = b->inner,
        .dh = t->wide,
        .gate_up = b->inner,
    };
    t->device->ops->swiglu_bwd(pass->stream, &args);
    linear_backward(pass, unit, LINEAR_UP, dx, b->inner, b->norm2, NULL);
}

/* From norm1 to hidden: the part of the forward that recompute repeats in backward. */
static void block_inside(const struct pass *pass, const struct unit *unit, const struct block_buffers *b)
{
    const struct transformer *t = pass->transformer;
    attention_forward(pass, unit, b);
    linear_forward(pass, unit, LINEAR_O, t->delta, b->att, NULL);
    norm_forward(pass, unit, second_norm(b), b->res1, t->delta);
    mlp_forward(pass, unit, b);
}

enum status block_forward(const struct pass *pass, int64_t block, enum param_pass kind)
{
    const struct transformer *t = pass->transformer;
    const struct block_buffers *b = &t->blocks[block];
    struct unit unit;
    TRY(unit_acquire(pass, &unit, (int)block + 1, kind));
    if (pass->M > 0) {
        if (block == 0)
            norm_forward(pass, &unit, first_norm(b), NULL, NULL);
        else
            norm_forward(pass, &unit, first_norm(b), t->blocks[block - 1].res2, t->delta);
        block_inside(pass, &unit, b);
        linear_forward(pass, &unit, LINEAR_DOWN, t->delta, b->hidden, NULL);
    }
    unit_release(pass, &unit);
    return STATUS_OK;
}

enum status block_backward(const struct pass *pass, int64_t block)
{
    const struct transformer *t = pass->transformer;
    const struct block_buffers *b = &t->blocks[block];
    struct unit unit;
    TRY(unit_acquire(pass, &unit, (int)block + 1, PASS_BACKWARD));
    TRY(unit_grads(pass, &unit));
    if (pass->M > 0) {
        if (t->config.recompute && block != t->L - 1) {
            norm_forward(pass, &unit, first_norm(b), NULL, NULL);
            block_inside(pass, &unit, b);
        }
        mlp_backward(pass, &unit, b, t->dres, t->delta);
        norm_backward(pass, &unit, second_norm(b), t->delta, t->dres);
        linear_backward(pass, &unit, LINEAR_O, t->delta, t->dres, b->att, NULL);
        attention_backward(pass, &unit, b, t->delta, t->wide);
        linear_backward(pass, &unit, LINEAR_QKV, t->delta, t->wide, b->norm1, NULL);
        norm_backward(pass, &unit, first_norm(b), t->delta, t->dres);
    }
    unit_release(pass, &unit);
    return unit_ready(pass, &unit);
}

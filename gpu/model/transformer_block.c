/* SPDX-License-Identifier: Apache-2.0 */
/* transformer_block.c: a block, forward and backward.
 *
 *     x, delta ─► + ─► res1 ─► norm1 ─► qkv ─► (head norms) ─► RoPE ─► attention ─► o ─► delta
 *     res1, delta ─► + ─► res2 ─► norm2 ─► up + GELU, or gate | up + SwiGLU or GeGLU ─► down ─► delta
 *
 * With norms after attention and MLP (OLMo 2, Gemma) o and down write out1 and out2, whose norms are delta; OLMo 2 has
 * no norm1 and norm2. With norms after the residual (BERT) the stream itself is normed:
 *
 *     res1, delta ─► + ─► out1 ─► norm ─► res2        res2, delta ─► + ─► out2 ─► norm ─► res1 of the next block
 *
 * Gemma 4's blocks go on with an input of the layer (transformer_inputs.c) and multiply the stream by a scalar: they
 * write the next block's res1 themselves.
 *
 * In parallel (GPT-J, GPT-NeoX) the MLP reads res1, as attention does, through norm2 or norm1, and res2 has no norm.
 *
 * A norm and the residual add before it are one op, so a block ends with res2 and delta apart, which the next norm
 * adds. Backward runs in the opposite order on dres, the gradient of the residual stream: each half of the block adds
 * what came through its norm, which also leaves the sums over rows: the gradient of the bias of the matrix before
 * (bias_summed). Dropout is of the weights of attention and of each delta. Backward first computes the buffers that are
 * not kept again, but for the last block, whose buffers are still filled. */
#include "gpu/model/block_graphs.h"
#include "gpu/model/transformer_delta.h"
#include "gpu/model/transformer_experts.h"
#include "gpu/model/transformer_inputs.h"
#include "gpu/model/transformer_layers.h"

static struct norm first_norm(const struct block_buffers *b)
{
    return (struct norm){ROLE_NORM1_W, ROLE_NORM1_B, b->res1, b->norm1, b->mean1, b->rstd1, NULL};
}

static struct norm second_norm(const struct transformer *t, const struct block_buffers *b)
{
    return (struct norm){ROLE_NORM2_W, ROLE_NORM2_B, t->parallel ? b->res1 : b->res2, b->norm2, b->mean2,
                         b->rstd2,     NULL};
}

/* The norms of what attention and the MLP add, or of the residual stream after that, where norms come after them. */
static struct norm first_post_norm(const struct transformer *t, const struct block_buffers *b)
{
    return (struct norm){ROLE_POST1_W,  ROLE_POST1_B, b->out1, t->post_norm ? b->res2 : t->delta,
                         b->post1_mean, b->post1,     NULL};
}

static struct norm second_post_norm(const struct transformer *t, const struct block_buffers *b)
{
    return (struct norm){ROLE_POST2_W, ROLE_POST2_B, b->out2, t->delta, b->post2_mean, b->post2, NULL};
}

/* With norms after the residual, or scalars: the next block's input, or the head's. */
static void *stream_after(const struct transformer *t, const struct block_buffers *b)
{
    const int64_t next = b - t->blocks + 1;
    return next < t->L ? t->blocks[next].res1 : t->post_norm ? t->final_norm : t->final_res;
}

static void *attention_input(const struct transformer *t, const struct block_buffers *b)
{
    return t->norms_before ? b->norm1 : b->res1;
}

static void *mlp_input(const struct transformer *t, const struct block_buffers *b)
{
    return t->second_norm ? b->norm2 : t->norms_before ? b->norm1 : b->res2;
}

static void block_rope(const struct pass *pass, const struct rope_table *table, const struct layer_desc *layer, void *x,
                       int64_t heads, int64_t ld, bool inverse)
{
    const struct transformer *t = pass->transformer;
    PASS_OP(pass, rope, .dtype = t->dtype, .M = pass->M, .heads = heads, .D = layer->head_dim, .ld = ld, .R = table->R,
            .x = x, .positions = pass->batch.positions, .cos_table = table->cosines, .sin_table = table->sines,
            .inverse = inverse, .pairs = t->config.desc->rope_pairs);
}

/* The RoPE table of the layer's queries or keys; NULL: the layer has no RoPE. */
static const struct rope_table *block_rope_table(const struct transformer *t, const struct layer_desc *layer,
                                                 bool queries)
{
    const struct rope_table *table = layer->local_rope                  ? &t->local_rope
                                     : queries && t->query_rope.cosines ? &t->query_rope
                                                                        : &t->rope;
    return table->cosines && !layer->no_rope ? table : NULL;
}

/* Applies RoPE, if the block has it, to the H heads of q in rows `ld` apart, and to those of k, unless it is NULL. */
static void rotate(const struct pass *pass, const struct block_buffers *b, void *q, int64_t ld, void *k, int64_t ld_k,
                   bool inverse)
{
    const struct transformer *t = pass->transformer;
    const struct rope_table *table = block_rope_table(t, b->layer, false),
                            *queries = block_rope_table(t, b->layer, true);
    if (!table) return;
    const bool together = queries == table && k == row_at(t, q, t->H, b->layer->head_dim) && ld_k == ld;
    block_rope(pass, queries, b->layer, q, together ? t->H + b->layer->num_kv_heads : t->H, ld, inverse);
    if (k && !together) block_rope(pass, table, b->layer, k, b->layer->num_kv_heads, ld_k, inverse);
}

enum head_kind { HEADS_Q, HEADS_K, HEADS_V };

/* The rows of q, k or v that are normed: `count` of `width` elements for each token, the heads, or all of them as one.
 * `first` is the head at which they start in qkv, `normed` that in qk. The norm of v has no weight. */
struct heads {
    enum tensor_role weight;
    int64_t first, normed, count, width;
    float *rstd;
};

static struct heads normed_heads(const struct transformer *t, const struct block_buffers *b, enum head_kind kind)
{
    const bool together = t->config.desc->qk_norm == QK_NORM_PROJECTION;
    const int64_t D = b->layer->head_dim, KV = b->layer->num_kv_heads, count = kind ? KV : t->H;
    struct heads heads = {ROLE_Q_NORM, 0, 0, together ? 1 : count, together ? count * D : D, b->q_rstd};
    if (kind) {
        heads.weight = kind == HEADS_K ? ROLE_K_NORM : ROLE_COUNT;
        heads.first = t->H + t->G + (kind == HEADS_V && !b->layer->v_is_k ? KV : 0);
        heads.normed = t->H + (kind == HEADS_V ? KV : 0);
        heads.rstd = kind == HEADS_K ? b->k_rstd : b->v_rstd;
    }
    return heads;
}

static enum head_kind last_normed(const struct transformer *t, const struct layer_desc *layer)
{
    return !transformer_owns_kv(t, layer) ? HEADS_Q : t->config.desc->v_norm ? HEADS_V : HEADS_K;
}

static const void *heads_weight(const struct transformer *t, const struct unit *unit, const struct heads *heads)
{
    return heads->weight == ROLE_COUNT ? t->zeros : unit_param(t, unit, heads->weight);
}

static float heads_offset(const struct transformer *t, const struct heads *heads)
{
    return heads->weight == ROLE_COUNT ? 1 : (float)t->config.desc->norm_offset;
}

/* Elements between the rows of rotated(). */
static int64_t block_rotated_ld(const struct transformer *t, const struct layer_desc *layer)
{
    const int64_t kinds = (int64_t)last_normed(t, layer);
    return t->qk_norm ? (t->H + kinds * layer->num_kv_heads) * layer->head_dim : transformer_width(t, layer);
}

/* Whether the norms are of heads, which RoPE then turns. */
static bool block_norms_turn(const struct transformer *t)
{
    return t->qk_norm && t->config.desc->qk_norm != QK_NORM_PROJECTION;
}

/* From qkv to qk, with RoPE if block_norms_turn(). */
static void head_norms_forward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b)
{
    const struct transformer *t = pass->transformer;
    for (int kind = HEADS_Q; kind <= (int)last_normed(t, b->layer); kind++) {
        const struct heads heads = normed_heads(t, b, (enum head_kind)kind);
        const struct rope_table *table = block_rope_table(t, b->layer, kind == HEADS_Q);
        const bool turns = table && kind != HEADS_V && block_norms_turn(t);
        PASS_OP(pass, head_norm_fwd, .dtype = t->dtype, .M = pass->M, .heads = heads.count, .D = heads.width,
                .ld_x = transformer_width(t, b->layer), .ld_y = block_rotated_ld(t, b->layer), .eps = t->eps,
                .y = row_at(t, b->qk, heads.normed, b->layer->head_dim),
                .x = row_at(t, b->qkv, heads.first, b->layer->head_dim), .weight = heads_weight(t, unit, &heads),
                .weight_offset = heads_offset(t, &heads), .rstd = heads.rstd, .pairs = t->config.desc->rope_pairs,
                .R = turns ? table->R : 0, .positions = turns ? pass->batch.positions : NULL,
                .cos_table = turns ? table->cosines : NULL, .sin_table = turns ? table->sines : NULL);
    }
}

/* In dqkv (M, W), in place, but k and v with v_norm: from dkv. */
static void head_norms_backward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b,
                                void *dqkv)
{
    const struct transformer *t = pass->transformer;
    const int64_t W = transformer_width(t, b->layer), D = b->layer->head_dim, KV = b->layer->num_kv_heads;
    for (int kind = HEADS_Q; kind <= (int)last_normed(t, b->layer); kind++) {
        const struct heads heads = normed_heads(t, b, (enum head_kind)kind);
        void *dx = row_at(t, dqkv, heads.first, D);
        const bool apart = t->dkv && kind;
        PASS_OP(pass, head_norm_bwd, .dtype = t->dtype, .M = pass->M, .heads = heads.count, .D = heads.width, .ld_x = W,
                .ld_dy = apart ? 2 * KV * D : W, .ld_dx = W, .dx = dx,
                .dres = kind == HEADS_V && b->layer->v_is_k ? dx : NULL,
                .dy = apart ? row_at(t, t->dkv, heads.normed - t->H, D) : dx, .x = row_at(t, b->qkv, heads.first, D),
                .weight = heads_weight(t, unit, &heads), .weight_offset = heads_offset(t, &heads), .rstd = heads.rstd,
                .dweight = unit_grad(t, unit, heads.weight), .accumulate = unit->to.adds);
    }
}

struct attention_bwd_args attention_bwd_sizes(const struct transformer *t, int64_t block, int64_t M, int32_t num_seqs,
                                              int32_t max_seq)
{
    const struct model_desc *desc = t->config.desc;
    const struct layer_desc *layer = &desc->layers[block], *source = &desc->layers[layer->kv_source];
    const int64_t W = transformer_width(t, layer), D = layer->head_dim, ld_k = block_rotated_ld(t, source),
                  ld_dk = desc->v_norm ? 2 * layer->num_kv_heads * D : W;
    return (struct attention_bwd_args){
        .fwd = {.dtype = t->dtype,
                .M = M,
                .H = t->H,
                .KV = layer->num_kv_heads,
                .D = D,
                .ld_q = block_rotated_ld(t, layer),
                .ld_k = ld_k,
                .ld_v = desc->v_norm ? ld_k : W,
                .ld_o = t->H * D,
                .scale = (float)desc->attention_scale,
                .softcap = (float)desc->attention_softcap,
                .window = layer->window,
                .num_seqs = num_seqs,
                .max_seq = max_seq,
                .bidirectional = desc->bidirectional,
                .ragged = t->config.batch.ragged},
        .ld_dq = W,
        .ld_dk = ld_dk,
        .ld_dv = ld_dk,
        .unordered = !t->config.settings.deterministic,
    };
}

/* q and k as attention reads them: the heads of q, then those of k. */
static void *rotated(const struct transformer *t, const struct block_buffers *b)
{
    return t->qk_norm ? b->qk : b->qkv;
}

/* Head norms, then RoPE: from qkv to rotated(). */
static void rotated_forward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b)
{
    const struct transformer *t = pass->transformer;
    const int64_t ld = block_rotated_ld(t, b->layer);
    if (t->qk_norm) head_norms_forward(pass, unit, b);
    void *q = rotated(t, b), *k = row_at(t, q, t->H, b->layer->head_dim);
    if (!block_norms_turn(t)) rotate(pass, b, q, ld, transformer_owns_kv(t, b->layer) ? k : NULL, ld, false);
}

/* The arguments of attention in a pass, without its gradients. */
static struct attention_bwd_args attention_args(const struct pass *pass, const struct unit *unit,
                                                const struct block_buffers *b)
{
    const struct transformer *t = pass->transformer;
    const struct batch *batch = &pass->batch;
    struct attention_bwd_args args = attention_bwd_sizes(t, b - t->blocks, pass->M, batch->num_seqs, batch->max_seq);
    struct attention_fwd_args *fwd = &args.fwd;
    fwd->seq_start = batch->seq_start;
    const struct block_buffers *source = &t->blocks[b->layer->kv_source];
    const bool normed = t->config.desc->v_norm; /* v lies behind k then */
    fwd->q = rotated(t, b);
    fwd->k = row_at(t, rotated(t, source), t->H, fwd->D);
    fwd->v = row_at(t, normed ? source->qk : b->qkv, t->H + fwd->KV + (normed ? 0 : t->G), fwd->D);
    fwd->out = b->att;
    fwd->lse = b->lse;
    fwd->dropout = dropout_at(pass, DROPOUT_ATTENTION, unit->index);
    return args;
}

/* Attention, then its sinks. Backward reads out and lse as the sinks leave them. */
static void attention_whole(const struct pass *pass, const struct unit *unit, const struct attention_fwd_args *a)
{
    const struct transformer *t = pass->transformer;
    const void *sinks = unit_param(t, unit, ROLE_SINKS);
    t->device->ops->attention_fwd(pass->stream, a);
    if (sinks)
        PASS_OP(pass, attention_sink_fwd, .dtype = t->dtype, .M = a->M, .H = a->H, .D = a->D, .ld_o = a->ld_o,
                .out = a->out, .lse = a->lse, .sinks = sinks);
}

static void sinks_backward(const struct pass *pass, const struct unit *unit, const struct attention_bwd_args *a)
{
    const struct transformer *t = pass->transformer;
    float *dsinks = unit_grad(t, unit, ROLE_SINKS);
    if (dsinks)
        PASS_OP(pass, attention_sink_bwd, .dtype = t->dtype, .M = a->fwd.M, .H = a->fwd.H, .D = a->fwd.D,
                .ld_o = a->fwd.ld_o, .out = a->fwd.out, .dout = a->dout, .lse = a->fwd.lse,
                .sinks = unit_param(t, unit, ROLE_SINKS), .dsinks = dsinks, .accumulate = unit->to.adds);
}

/* Stores keys and values in the pass's cache, after norms and RoPE; a layer that reads those of a layer before stores
 * them once more. The attention of the first pass, over the prompt, is the ordinary one; later tokens attend over all
 * that is stored. */
static void cached_attention(const struct pass *pass, const struct unit *unit, int64_t block,
                             const struct attention_fwd_args *a)
{
    const struct transformer *t = pass->transformer;
    const struct kv_cache *cache = pass->cache;
    const int64_t source = t->config.desc->layers[block].kv_source; /* whose (KV, capacity, D) they are */
    const int64_t first = transformer_keys_before(t, source) * cache->capacity;
    if (cache->held == 0) attention_whole(pass, unit, a);
    PASS_OP(pass, attention_decode, .dtype = a->dtype, .M = a->M, .H = a->H, .KV = a->KV, .D = a->D, .ld_q = a->ld_q,
            .ld_k = a->ld_k, .ld_v = a->ld_v, .ld_o = a->ld_o, .scale = a->scale, .softcap = a->softcap,
            .window = a->window, .start = cache->held, .capacity = cache->capacity, .q = cache->held ? a->q : NULL,
            .out = cache->held ? a->out : NULL, .k = a->k, .v = a->v, .k_cache = row_at(t, cache->keys, first, 1),
            .v_cache = row_at(t, cache->values, first, 1), .sinks = unit_param(t, unit, ROLE_SINKS));
}

/* What of a head's lies side by side in the matrix of q: q, k and v; or q and its gate. Else 1. */
static int64_t block_parts_of_head(const struct transformer *t)
{
    return t->config.desc->qkv_by_head ? 3 : t->G ? 2 : 1;
}

/* The order of qkv's heads: from (outer, inner) to (inner, outer). k and v that are not among them are copied. */
static void block_swap_heads(const struct pass *pass, const struct layer_desc *layer, void *y, const void *x,
                             int64_t outer, int64_t inner)
{
    const struct transformer *t = pass->transformer;
    const int64_t D = layer->head_dim, rest = transformer_width(t, layer) - outer * inner * D;
    PASS_OP(pass, swap_heads, .dtype = t->dtype, .M = pass->M, .outer = outer, .inner = inner, .D = D, .rest = rest,
            .y = y, .x = x);
}

/* The input of the matrix that mixes heads. */
static void *mixed(const struct transformer *t, const struct block_buffers *b)
{
    return t->G && !b->layer->delta ? b->gated : b->att;
}

/* From attention_input() (M, C) to att (M, H D), and gated. */
static void attention_forward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b)
{
    const struct transformer *t = pass->transformer;
    if (b->layer->delta) {
        delta_forward(pass, unit, b, attention_input(t, b));
        return;
    }
    const int64_t parts = block_parts_of_head(t);
    linear_forward(pass, unit, LINEAR_QKV, parts > 1 ? t->wide : b->qkv, attention_input(t, b), NULL);
    if (parts > 1) block_swap_heads(pass, b->layer, b->qkv, t->wide, t->H, parts);
    rotated_forward(pass, unit, b);
    const struct attention_fwd_args args = attention_args(pass, unit, b).fwd;
    if (pass->cache)
        cached_attention(pass, unit, b - t->blocks, &args);
    else
        attention_whole(pass, unit, &args);
    if (!t->G) return;
    PASS_OP(pass, gate_fwd, .dtype = t->dtype, .M = pass->M, .C = t->H * b->layer->head_dim,
            .ld_gate = transformer_width(t, b->layer), .y = b->gated, .x = b->att,
            .gate = row_at(t, b->qkv, t->H, b->layer->head_dim));
}

/* Adds dkv to what other layers that read these keys and values, all after their own, have left; in that one dkv
 * becomes the sum. */
static void block_share_gradient(const struct pass *pass, const struct block_buffers *b)
{
    const struct transformer *t = pass->transformer;
    const struct layer_desc *layers = t->config.desc->layers, *layer = b->layer;
    const struct block_buffers *source = &t->blocks[layer->kv_source];
    if (!source->dkv) return;
    bool first = true;
    for (const struct layer_desc *after = layer + 1; after < layers + t->L; after++)
        first &= after->kv_source != layer->kv_source;
    const int64_t n = pass->M * 2 * layer->num_kv_heads * layer->head_dim;
    accumulate_to(pass, n, source->dkv, DTYPE_F32, t->dkv, t->dtype, 1, !first);
    if (source != b) return;
    PASS_OP(pass, cast, t->dtype, DTYPE_F32, n, t->dkv, source->dkv);
}

/* From datt, the gradient of mixed(), which becomes scratch, to that of the product before (M, W): in dqkv, or over
 * qkv. */
static const void *attention_backward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b,
                                      void *datt, void *dqkv)
{
    const struct transformer *t = pass->transformer;
    const int64_t W = transformer_width(t, b->layer), D = b->layer->head_dim, KV = b->layer->num_kv_heads;
    if (b->layer->delta) {
        delta_backward(pass, unit, b, datt, dqkv);
        return dqkv;
    }
    if (t->G)
        PASS_OP(pass, gate_bwd, .dtype = t->dtype, .M = pass->M, .C = t->H * D, .ld_gate = W, .dx = datt,
                .dgate = row_at(t, dqkv, t->H, D), .dy = datt, .x = b->att, .gate = row_at(t, b->qkv, t->H, D));
    struct attention_bwd_args args = attention_args(pass, unit, b);
    args.dout = datt;
    args.dq = dqkv;
    args.dk = t->dkv ? t->dkv : row_at(t, dqkv, t->H + t->G, D);
    args.dv = row_at(t, args.dk, KV, D);
    sinks_backward(pass, unit, &args);
    t->device->ops->attention_bwd(pass->stream, &args);
    if (t->dkv) block_share_gradient(pass, b);
    rotate(pass, b, dqkv, W, transformer_owns_kv(t, b->layer) ? args.dk : NULL, args.ld_dk, true);
    if (t->qk_norm) head_norms_backward(pass, unit, b, dqkv);
    const int64_t parts = block_parts_of_head(t);
    if (parts == 1) return dqkv;
    block_swap_heads(pass, b->layer, b->qkv, dqkv, parts, t->H);
    return b->qkv;
}

/* From inner (M, 2F), which is not computed again, to hidden (M, F), by SwiGLU or GeGLU. */
static void gated_forward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b)
{
    const struct transformer *t = pass->transformer;
    if (b->layer->sparse) {
        experts_again(pass, unit, b);
        return;
    }
    PASS_OP(pass, swiglu_fwd, .dtype = t->dtype, .M = pass->M, .F = b->layer->intermediate_size, .h = b->hidden,
            .gate_up = b->inner, .gelu = t->config.desc->mlp == MLP_GEGLU);
}

/* From mlp_input() (M, C) to hidden (M, F), the input of the down matrix. */
static void mlp_forward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b)
{
    const struct transformer *t = pass->transformer;
    if (b->layer->sparse) {
        experts_forward(pass, unit, b, mlp_input(t, b));
        return;
    }
    if (transformer_gates(t))
        linear_forward(pass, unit, LINEAR_UP, b->inner, mlp_input(t, b), b->hidden);
    else
        linear_forward(pass, unit, LINEAR_UP, b->hidden, mlp_input(t, b), b->inner);
    if (transformer_gates_again(t)) gated_forward(pass, unit, b);
}

/* From dy (M, C), the gradient of the down matrix's output, to dx (M, C), that of the up matrix's input. */
static void mlp_backward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b,
                         const void *dy, void *dx)
{
    const struct transformer *t = pass->transformer;
    if (b->layer->sparse) {
        experts_backward(pass, unit, b, dy, dx, mlp_input(t, b));
        return;
    }
    linear_backward(pass, unit, LINEAR_DOWN, t->wide, dy, b->hidden, b->inner);
    linear_backward(pass, unit, LINEAR_UP, dx, transformer_gates(t) ? b->inner : t->wide, mlp_input(t, b), NULL);
}

/* From hidden to y (M, C), what the MLP gives. */
static void mlp_output(const struct pass *pass, const struct unit *unit, const struct block_buffers *b, void *y)
{
    if (b->layer->sparse)
        experts_combine(pass, unit, b, y);
    else
        linear_forward(pass, unit, LINEAR_DOWN, y, b->hidden, NULL);
}

/* From attention_input() to hidden: the part of the forward that policy block repeats in backward. */
static void block_inside(const struct pass *pass, const struct unit *unit, const struct block_buffers *b)
{
    const struct transformer *t = pass->transformer;
    if (t->parallel && t->second_norm) norm_forward(pass, unit, second_norm(t, b), NULL, NULL);
    attention_forward(pass, unit, b);
    const bool alone = t->norms_after && !t->post_norm; /* the norm is of what attention adds */
    linear_forward(pass, unit, transformer_mixes(b->layer), alone ? b->out1 : t->delta, mixed(t, b), NULL);
    if (alone) norm_forward(pass, unit, first_post_norm(t, b), NULL, NULL);
    drop(pass, DROPOUT_ATTENTION_OUTPUT, unit->index, t->delta, t->delta);
    if (t->post_norm)
        norm_forward(pass, unit, first_post_norm(t, b), b->res1, t->delta);
    else if (t->norms_before && !t->parallel)
        norm_forward(pass, unit, second_norm(t, b), b->res1, t->delta);
    else
        add_rows(pass, b->res2, b->res1, t->delta, NULL);
    mlp_forward(pass, unit, b);
}

/* The end of a block with norms after the residual: from hidden to `out`, the stream after the block. */
static void post_norm_end(const struct pass *pass, const struct unit *unit, const struct block_buffers *b, void *out)
{
    const struct transformer *t = pass->transformer;
    struct norm norm = second_post_norm(t, b);
    norm.y = out;
    mlp_output(pass, unit, b, t->delta);
    drop(pass, DROPOUT_MLP_OUTPUT, unit->index, t->delta, t->delta);
    norm_forward(pass, unit, norm, b->res2, t->delta);
}

/* From hidden to delta, what the MLP adds, before dropout: backward, which repeats this, has no use for delta. */
static void block_end(const struct pass *pass, const struct unit *unit, const struct block_buffers *b)
{
    const struct transformer *t = pass->transformer;
    mlp_output(pass, unit, b, t->norms_after ? b->out2 : t->delta);
    if (t->norms_after) norm_forward(pass, unit, second_post_norm(t, b), NULL, NULL);
}

/* Fills the buffers that are not kept: those of the policy (transformer_layout.c). */
static void compute_again(const struct pass *pass, const struct unit *unit, const struct block_buffers *b)
{
    const struct transformer *t = pass->transformer;
    enum recompute policy = t->config.settings.recompute;
    if (policy == RECOMPUTE_NONE) return;
    if (t->norms_before) norm_forward(pass, unit, first_norm(b), NULL, NULL);
    if (policy == RECOMPUTE_BLOCK) {
        block_inside(pass, unit, b);
        if (t->post_norm) /* the next block's input is there no more: nothing reads `wide` yet */
            post_norm_end(pass, unit, b, t->wide);
        else if (t->norms_after)
            block_end(pass, unit, b);
        if (t->I) layer_input_add(pass, unit, b);
        return;
    }
    if (policy >= RECOMPUTE_ATTENTION)
        attention_forward(pass, unit, b);
    else if (t->qk_norm && !b->layer->delta)
        rotated_forward(pass, unit, b);
    if (t->second_norm) norm_forward(pass, unit, second_norm(t, b), NULL, NULL);
    if (policy >= RECOMPUTE_MLP && !transformer_gates(t)) /* a GELU is a part of its product */
        mlp_forward(pass, unit, b);
    else if (policy >= RECOMPUTE_MLP)
        gated_forward(pass, unit, b);
}

static const void *block_scaled_gradient(const struct pass *pass)
{
    const struct transformer *t = pass->transformer;
    if (t->config.desc->residual_multiplier == 1) return t->dres;
    accumulate_to(pass, pass->M * t->C, t->dbranch, t->dtype, t->dres, t->dtype,
                  (float)t->config.desc->residual_multiplier, false);
    return t->dbranch;
}

/* The gradient of a matrix's bias from dres_sums: the norm that wrote dres left them. */
static void block_take_row_sums(const struct pass *pass, const struct unit *unit, enum linear which)
{
    const struct transformer *t = pass->transformer;
    const struct row_sums sums = bias_sums(t, unit, which);
    if (sums.to) accumulate_to(pass, t->C, sums.to, DTYPE_F32, t->dres_sums, DTYPE_F32, 1, sums.accumulate);
}

/* The gradient of the output of `which`, the o or down matrix, from dres; with norms after it, also that of its bias.
 * `scratch` (M, C) is for dropout; no family has both norms after attention and MLP and a multiplier. */
static const void *block_gradient(const struct pass *pass, const struct unit *unit, struct norm post, enum linear which,
                                  void *scratch)
{
    const struct transformer *t = pass->transformer;
    const enum dropout_kind kind = which == LINEAR_O ? DROPOUT_ATTENTION_OUTPUT : DROPOUT_MLP_OUTPUT;
    if (!t->norms_after) return drop(pass, kind, unit->index, scratch, block_scaled_gradient(pass));
    const struct row_sums sums = bias_sums(t, unit, which);
    if (t->post_norm) { /* dbranch is the gradient of the sum: of the stream before and of the branch */
        norm_backward(pass, unit, post, t->dbranch, t->dres, NULL, sums);
        return drop(pass, kind, unit->index, scratch, t->dbranch);
    }
    norm_backward(pass, unit, post, t->dbranch, drop(pass, kind, unit->index, scratch, t->dres), NULL, sums);
    return t->dbranch;
}

/* Adds the gradient in delta, of the input of attention or MLP, to dres: through `norm`, if that comes before them,
 * which then leaves the sums of dres over rows. */
static void add_block_gradient(const struct pass *pass, const struct unit *unit, struct norm norm, struct row_sums sums)
{
    const struct transformer *t = pass->transformer;
    if (t->norms_before)
        norm_backward(pass, unit, norm, t->dres, t->delta, t->dres, sums);
    else
        add_rows(pass, t->dres, t->post_norm ? t->dbranch : t->dres, t->delta, NULL);
}

/* Fills res1: the embedding has written the first block's, and a block with a scalar the next one's. */
static void block_start(const struct pass *pass, const struct unit *unit, int64_t block)
{
    const struct transformer *t = pass->transformer;
    const struct block_buffers *b = &t->blocks[block];
    const bool sums = block > 0 && !t->config.desc->layer_scalar;
    const void *before = sums ? t->blocks[block - 1].res2 : NULL, *delta = sums ? t->delta : NULL;
    if (t->post_norm) /* the block before has written it */
        return;
    if (t->norms_before)
        norm_forward(pass, unit, first_norm(b), before, delta);
    else if (sums)
        add_rows(pass, b->res1, before, delta, NULL);
}

static size_t block_input_bytes(const struct pass *pass)
{
    const struct transformer *t = pass->transformer;
    return (size_t)pass->M * (size_t)t->C * dtype_size(t->dtype);
}

/* From the block's input to hidden: the last read of the input. */
static void block_until_kept(const struct pass *pass, const struct unit *unit, int64_t block)
{
    block_start(pass, unit, block);
    block_inside(pass, unit, &pass->transformer->blocks[block]);
}

/* From hidden on. With norms after the residual the next block's input may lie where one was that leaves. */
static void block_after_kept(const struct pass *pass, const struct unit *unit, int64_t block)
{
    const struct transformer *t = pass->transformer;
    const struct block_buffers *b = &t->blocks[block];
    if (t->post_norm) {
        post_norm_end(pass, unit, b, stream_after(t, b));
    } else {
        block_end(pass, unit, b);
        drop(pass, DROPOUT_MLP_OUTPUT, unit->index, t->delta, t->delta);
        if (t->I) layer_input_add(pass, unit, b);
        if (t->config.desc->layer_scalar)
            add_rows(pass, stream_after(t, b), t->I ? b->res3 : b->res2, t->delta,
                     unit_param(t, unit, ROLE_LAYER_SCALAR));
    }
}

static void block_whole_forward(const struct pass *pass, const struct unit *unit, int64_t block)
{
    block_until_kept(pass, unit, block);
    block_after_kept(pass, unit, block);
}

enum status block_forward(const struct pass *pass, int64_t block, enum param_pass kind)
{
    const struct activation_verbs *verbs = kind == PASS_FORWARD ? pass->transformer->config.activations : NULL;
    struct unit unit;
    TRY(unit_acquire(pass, &unit, (int)block + 1, kind));
    if (pass->M == 0) experts_serve(pass, &unit, block);
    if (pass->M > 0) TRY(block_run(pass, &unit, block, BLOCK_FORWARD, verbs ? block_until_kept : block_whole_forward));
    if (pass->M > 0 && verbs) {
        verbs->keep(verbs->self, block, pass->transformer->blocks[block].res1, block_input_bytes(pass), pass->stream);
        TRY(block_run(pass, &unit, block, BLOCK_FORWARD_END, block_after_kept));
    }
    unit_release(pass, &unit);
    return STATUS_OK;
}

/* Whether nothing that is trained comes before the block's first products. */
static bool block_ends_backward(const struct transformer *t, const struct unit *unit)
{
    return t->first_trained == unit->index && !unit_grad(t, unit, ROLE_NORM1_W) && !unit_grad(t, unit, ROLE_NORM1_B);
}

/* From dres to the gradient of the MLP's input, in `dx`. In parallel that ends in dbranch: attention needs dres. */
static void block_mlp_backward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b)
{
    const struct transformer *t = pass->transformer;
    const struct row_sums none = {0}, of_o = t->norms_after ? none : bias_sums(t, unit, LINEAR_O);
    const void *dy = block_gradient(pass, unit, second_post_norm(t, b), LINEAR_DOWN, t->delta);
    mlp_backward(pass, unit, b, dy, t->parallel && !t->second_norm ? t->dbranch : t->delta);
    if (!t->parallel)
        add_block_gradient(pass, unit, second_norm(t, b), of_o);
    else if (t->second_norm)
        norm_backward(pass, unit, second_norm(t, b), t->dbranch, t->delta, t->dres, none);
}

/* From delta, the gradient of attention's input, to dres, that of the block's input. */
static void block_start_backward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b)
{
    const struct transformer *t = pass->transformer;
    const struct row_sums of_down_before = {.to = b > t->blocks ? t->dres_sums : NULL};
    if (t->parallel && !t->second_norm) add_rows(pass, t->delta, t->delta, t->dbranch, NULL);
    if (t->parallel && t->second_norm)
        norm_backward(pass, unit, first_norm(b), t->dres, t->delta, t->dbranch, of_down_before);
    else
        add_block_gradient(pass, unit, first_norm(b), of_down_before);
}

/* From dres, the gradient of the block's output, to that of its input. */
static void block_whole_backward(const struct pass *pass, const struct unit *unit, int64_t block)
{
    const struct transformer *t = pass->transformer;
    const struct block_buffers *b = &t->blocks[block];
    if (block != t->L - 1) compute_again(pass, unit, b);
    if (t->dres_sums) block_take_row_sums(pass, unit, LINEAR_DOWN);
    if (t->dres_sums && t->parallel) block_take_row_sums(pass, unit, LINEAR_O);
    if (t->config.desc->layer_scalar) add_rows(pass, t->dres, t->dres, NULL, unit_param(t, unit, ROLE_LAYER_SCALAR));
    if (t->I) layer_input_backward(pass, unit, b);
    block_mlp_backward(pass, unit, b);
    const void *dout = block_gradient(pass, unit, first_post_norm(t, b), LINEAR_O, t->wide);
    linear_backward(pass, unit, transformer_mixes(b->layer), t->delta, dout, mixed(t, b), NULL);
    const void *dqkv = attention_backward(pass, unit, b, t->delta, t->wide);
    const bool ends = block_ends_backward(t, unit);
    linear_backward(pass, unit, b->layer->delta ? LINEAR_DELTA_IN : LINEAR_QKV, ends ? NULL : t->delta, dqkv,
                    attention_input(t, b), NULL);
    if (!ends) block_start_backward(pass, unit, b);
}

enum status block_backward(const struct pass *pass, int64_t block)
{
    const struct transformer *t = pass->transformer;
    const struct activation_verbs *verbs = t->config.activations;
    struct unit unit;
    TRY(unit_acquire(pass, &unit, (int)block + 1, PASS_BACKWARD));
    TRY(unit_grads(pass, &unit));
    if (pass->M > 0 && verbs)
        verbs->fetch(verbs->self, block, t->blocks[block].res1, block_input_bytes(pass), pass->stream);
    if (pass->M == 0) experts_serve(pass, &unit, block);
    if (pass->M > 0) TRY(block_run(pass, &unit, block, BLOCK_BACKWARD, block_whole_backward));
    unit_release(pass, &unit);
    return unit_ready(pass, &unit);
}

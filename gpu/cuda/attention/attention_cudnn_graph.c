/* SPDX-License-Identifier: Apache-2.0 */
/* attention_cudnn_graph.c: attention, forward and backward, as cuDNN's operation graphs.
 *
 * cuDNN recognises the graphs for which it has fused kernels by their form: which tensors are virtual, k as its
 * transpose, lse subtracted before the mask in backward. Each key/value head serves H / KV query heads:
 *
 *     forward    S = mask(scale Q·Kᵀ)   P = softmax(S)   out = P·V   lse = max + log(sum)
 *     backward   delta = rows of sum(dout · out)         P = exp(mask(scale Q·Kᵀ - lse))
 *                dV = Pᵀ·dout    dS = scale P (dout·Vᵀ - delta)    dK = dSᵀ·Q    dQ = dS·K
 *
 *     dropout    out = (factor P · kept)·V     dV = (factor P · kept)ᵀ·dout     dS = scale factor P (kept (dout·Vᵀ) -
 *                delta / factor)
 *
 *     soft cap   S = cap · tanh(S / cap) before the mask, dS times the derivative before the scale
 *
 * mask() hides the keys after a query (not bidirectional), those before its window, and of ragged sequences everything
 * after the end. Offsets and lengths of ragged sequences lie in device memory.
 *
 * `kept` has ones and zeros, of the type of the others: with 8 bits cuDNN 9.19 ends the process. cuDNN's own generator
 * gives other numbers than core/training/dropout.h.
 *
 * dQ is the direct result of its product, or summed up in fp32 memory first: the form with sums. cuDNN proposes kernels
 * that add in a fixed order for the first form, and for the second faster ones that add in any order; but the best of a
 * chip it may propose for neither: listed_engines[] has those. */
#include "gpu/cuda/attention/attention_cudnn_graph.h"

#include <float.h>

int attention_strides(const struct attention_shape *s, int64_t strides[ATTENTION_STRIDES])
{
    const int64_t all[ATTENTION_STRIDES] = {s->ld_q, s->ld_k, s->ld_v, s->ld_o, s->ld_dq, s->ld_dk, s->ld_dv};
    int count = 0;
    for (int i = 0; i < ATTENTION_STRIDES; i++) {
        int same = 0;
        while (same < count && strides[same] != all[i]) same++;
        if (same == count && all[i] > 0) strides[count++] = all[i];
    }
    return count;
}

int64_t attention_kept_ld(const struct attention_shape *s)
{
    const int64_t step = 8;
    return (s->T + step - 1) / step * step;
}

/* ---- forms --------------------------------------------------------------- */

/* Backward engines that add in a fixed order and that cuDNN's heuristics do not propose, by the plans that cuDNN 9.19
 * and 9.26 make for GPUs that are only described (tests/emulation/cudnn_plans.c). cuDNN does not say of any engine of
 * attention whether its results repeat: two runs on the GPU do. */
enum { STAGES = 14, KERNEL_CFG = 24, TILE_CGA_M = 27, STREAM_K = 38, TILE_M = 40, TILE_N = 41 };
#define TILED_ENGINE(number, m, n, stages)                                                                       \
    {                                                                                                            \
        number, {{TILE_M, m}, {TILE_N, n}, {KERNEL_CFG, 2}, {STREAM_K, 0}, {TILE_CGA_M, 0}, {STAGES, stages}}, 6 \
    }
static const struct listed_engine {
    int capability_first, capability_last, version_first, version_last;
    bool sums; /* takes the graph with sums of dq */
    struct cudnn_engine engine;
} listed_engines[] = {{100, 103, 91900, 92299, false, {5, {{KERNEL_CFG, 31}, {STAGES, 2}}, 2}},
                      {100, 103, 92300, INT_MAX, false, TILED_ENGINE(5, 3, 2, 2)},
                      {90, 90, 92500, INT_MAX, true, TILED_ENGINE(6, 2, 1, 4)}};

/* NULL: none is known. */
static const struct listed_engine *listed_engine_of(const struct cudnn_target *target,
                                                    enum attention_direction direction,
                                                    const struct attention_shape *shape)
{
    const bool ordered = direction == ATTENTION_BACKWARD && !shape->unordered;
    for (size_t i = 0; i < COUNT_OF(listed_engines) && ordered; i++) {
        const struct listed_engine *e = &listed_engines[i];
        if (target->capability >= e->capability_first && target->capability <= e->capability_last &&
            target->version >= e->version_first && target->version <= e->version_last)
            return e;
    }
    return NULL;
}

bool attention_form_is_listed(const struct cudnn_target *target, enum attention_direction direction,
                              const struct attention_shape *shape)
{
    return listed_engine_of(target, direction, shape) != NULL;
}

/* Of versions before that no such plan was made. */
enum { LSE_OF_OP_FROM = 91900 };

bool attention_form_has_lse_of_op(const struct cudnn_target *target, const struct attention_shape *shape, bool plain)
{
    return !plain && !shape->ragged && target->version >= LSE_OF_OP_FROM &&
           shape->T * (int64_t)sizeof(float) % ATTENTION_ALIGN == 0;
}

#if ZTRAIN_HAVE_CUDNN

/* Versions below VERSION_LEAST are refused. Up to ODD_LENGTHS_WRONG, backward is wrong for unmasked lengths that are
 * not a multiple of 128. Masks are -inf from INF_FROM on, else the least float. */
enum { VERSION_LEAST = 90600, ODD_LENGTHS_WRONG = 91500, BROKEN_FIRST = 91000, BROKEN_LAST = 91001, INF_FROM = 91000 };

/* A graph under construction. */
struct builder {
    struct cudnn_graph *g;
    const struct attention_shape *s;
    int version;
    bool sums;                                               /* of dq, in memory */
    int64_t lse_stride;                                      /* between heads; 0: lse is (B, H, T) */
    struct cudnn_tensor lengths, offsets[ATTENTION_STRIDES]; /* ragged: in memory */
    int64_t strides[ATTENTION_STRIDES];
    int count;
    struct cudnn_tensor kept, factor;  /* dropout */
    struct cudnn_tensor cap, uncapped; /* soft cap: what tanh is of */
};

static cudnnDataType_t cudnn_type_of(const struct attention_shape *s)
{
    return s->dtype == DTYPE_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

/* ---- sequences of unequal length ----------------------------------------- */

static void attention_graph_sequences(struct builder *b)
{
    const int64_t count[CUDNN_RANK] = {b->s->B, 1, 1, 1}, ends[CUDNN_RANK] = {b->s->B + 1, 1, 1, 1};
    const int64_t dense[CUDNN_RANK] = {1, 1, 1, 1};
    if (!b->s->ragged) return;
    b->lengths = cudnn_memory(b->g, ATTENTION_LENGTHS, CUDNN_DATA_INT32, count, dense, NULL);
    b->count = attention_strides(b->s, b->strides);
    for (int i = 0; i < b->count; i++)
        b->offsets[i] = cudnn_memory(b->g, ATTENTION_OFFSETS + i, CUDNN_DATA_INT64, ends, dense, NULL);
}

/* The offsets of a tensor whose rows are ld apart; NULL: it is not ragged. */
static const struct cudnn_tensor *offsets_of(const struct builder *b, int64_t ld)
{
    for (int i = 0; i < b->count; i++)
        if (b->strides[i] == ld) return &b->offsets[i];
    return NULL;
}

static const struct cudnn_tensor *lengths_of(const struct builder *b)
{
    return b->s->ragged ? &b->lengths : NULL;
}

/* ---- tensors ------------------------------------------------------------- */

/* A tensor (B, heads, T, D) in memory, whose rows (tokens) are ld elements apart. */
static struct cudnn_tensor rows(struct builder *b, enum attention_pointer id, int64_t heads, int64_t ld)
{
    const struct attention_shape *s = b->s;
    const int64_t dims[CUDNN_RANK] = {s->B, heads, s->T, s->D}, strides[CUDNN_RANK] = {s->T * ld, s->D, ld, 1};
    return cudnn_memory(b->g, id, cudnn_type_of(s), dims, strides, offsets_of(b, ld));
}

/* The same memory as (B, heads, D, T). */
static struct cudnn_tensor columns(struct builder *b, enum attention_pointer id, int64_t heads, int64_t ld)
{
    const struct attention_shape *s = b->s;
    const int64_t dims[CUDNN_RANK] = {s->B, heads, s->D, s->T}, strides[CUDNN_RANK] = {s->T * ld, s->D, 1, ld};
    return cudnn_memory(b->g, id, cudnn_type_of(s), dims, strides, offsets_of(b, ld));
}

/* `width` floats for each query, dense (B, H, T, width). */
static struct cudnn_tensor row_values(struct builder *b, enum attention_pointer id, int64_t width)
{
    const struct attention_shape *s = b->s;
    const int64_t dims[CUDNN_RANK] = {s->B, s->H, s->T, width};
    const int64_t strides[CUDNN_RANK] = {s->H * s->T * width, s->T * width, width, 1};
    return cudnn_memory(b->g, id, CUDNN_DATA_FLOAT, dims, strides, NULL);
}

/* lse (B, H, T, 1), as ops have it where it may be. */
static struct cudnn_tensor log_sums(struct builder *b)
{
    const struct attention_shape *s = b->s;
    const int64_t dims[CUDNN_RANK] = {s->B, s->H, s->T, 1}, strides[CUDNN_RANK] = {s->T, b->lse_stride, 1, 1};
    if (!b->lse_stride) return row_values(b, ATTENTION_LSE, 1);
    return cudnn_memory(b->g, ATTENTION_LSE, CUDNN_DATA_FLOAT, dims, strides, NULL);
}

static float dropout_factor(const struct attention_shape *s)
{
    return 65536 / (float)(65536 - s->dropout);
}

static void attention_graph_dropout(struct builder *b)
{
    const struct attention_shape *s = b->s;
    const int64_t ld = attention_kept_ld(s), dims[CUDNN_RANK] = {s->B, s->H, s->T, s->T};
    const int64_t strides[CUDNN_RANK] = {s->H * s->T * ld, s->T * ld, ld, 1};
    if (!s->dropout) return;
    b->kept = cudnn_memory(b->g, ATTENTION_KEPT, cudnn_type_of(s), dims, strides, NULL);
    b->factor = cudnn_scalar(b->g, dropout_factor(s));
}

/* With dropout x times `by`: kept, or the factor of what is kept. */
static struct cudnn_tensor dropped(struct builder *b, const struct cudnn_tensor *x, const struct cudnn_tensor *by)
{
    return b->s->dropout ? cudnn_pointwise(b->g, CUDNN_POINTWISE_MUL, x, by, NULL) : *x;
}

/* The sum or the maximum of every row. */
static struct cudnn_tensor reduce_rows(struct cudnn_graph *g, cudnnReduceTensorOp_t how, const struct cudnn_tensor *x)
{
    const int64_t dims[CUDNN_RANK] = {x->dims[0], x->dims[1], x->dims[2], 1};
    struct cudnn_tensor out = cudnn_virtual(g, CUDNN_DATA_FLOAT, dims);
    cudnn_reduce(g, how, x, &out);
    return out;
}

/* ---- products ------------------------------------------------------------ */

/* a (B, H, T, D) · b (B, H or KV, D, T) -> scores (B, H, T, T) */
static struct cudnn_tensor score_product(struct builder *b, const struct cudnn_tensor *x, const struct cudnn_tensor *y)
{
    const int64_t dims[CUDNN_RANK] = {x->dims[0], x->dims[1], x->dims[2], y->dims[3]};
    const struct cudnn_tensor *const lengths[] = {lengths_of(b), lengths_of(b), NULL};
    struct cudnn_tensor out = cudnn_virtual(b->g, CUDNN_DATA_FLOAT, dims);
    cudnn_matmul(b->g, x, y, lengths, &out);
    return out;
}

/* scores (B, H, T, T) · y (B, H or KV, T, D) -> out (B, H, T, D) */
static void row_product(struct builder *b, const struct cudnn_tensor *scores, const struct cudnn_tensor *y,
                        const struct cudnn_tensor *out)
{
    const struct cudnn_tensor *const lengths[] = {lengths_of(b), NULL, lengths_of(b)};
    cudnn_matmul(b->g, scores, y, lengths, out);
}

/* ---- parts of the formulas ----------------------------------------------- */

static struct cudnn_tensor capped(struct builder *b, struct cudnn_tensor scores)
{
    if (b->s->softcap <= 0) return scores;
    b->cap = cudnn_scalar(b->g, (float)b->s->softcap);
    b->uncapped = cudnn_pointwise(b->g, CUDNN_POINTWISE_DIV, &scores, &b->cap, NULL);
    scores = cudnn_pointwise(b->g, CUDNN_POINTWISE_TANH_FWD, &b->uncapped, NULL, NULL);
    return cudnn_pointwise(b->g, CUDNN_POINTWISE_MUL, &scores, &b->cap, NULL);
}

/* The gradient of the scores before the cap. cuDNN recognises it with the factor and the divisor. */
static struct cudnn_tensor uncapped_gradient(struct builder *b, struct cudnn_tensor ds)
{
    if (b->s->softcap <= 0) return ds;
    ds = cudnn_pointwise(b->g, CUDNN_POINTWISE_MUL, &ds, &b->cap, NULL);
    ds = cudnn_pointwise(b->g, CUDNN_POINTWISE_TANH_BWD, &ds, &b->uncapped, NULL);
    return cudnn_pointwise(b->g, CUDNN_POINTWISE_DIV, &ds, &b->cap, NULL);
}

/* The scores where `mask` holds, elsewhere the value whose probability becomes 0. */
static struct cudnn_tensor keep_where(struct builder *b, const struct cudnn_tensor *x, const struct cudnn_tensor *mask)
{
    struct cudnn_tensor nothing = cudnn_scalar(b->g, b->version >= INF_FROM ? -INFINITY : -FLT_MAX);
    return cudnn_pointwise(b->g, CUDNN_POINTWISE_BINARY_SELECT, x, &nothing, mask);
}

static struct cudnn_tensor masked_after_end(struct builder *b, struct cudnn_tensor scores)
{
    if (!b->s->ragged) return scores;
    struct cudnn_tensor row = cudnn_index(b->g, &scores, 2), column = cudnn_index(b->g, &scores, 3);
    row = cudnn_pointwise(b->g, CUDNN_POINTWISE_CMP_LT, &row, &b->lengths, NULL);
    column = cudnn_pointwise(b->g, CUDNN_POINTWISE_CMP_LT, &column, &b->lengths, NULL);
    struct cudnn_tensor mask = cudnn_pointwise(b->g, CUDNN_POINTWISE_LOGICAL_AND, &row, &column, NULL);
    return keep_where(b, &scores, &mask);
}

/* Masks keys after the query: row >= column stays. With a window, column + window > row stays. */
static struct cudnn_tensor masked_after_query(struct builder *b, struct cudnn_tensor scores)
{
    const struct attention_shape *s = b->s;
    if (s->bidirectional) return scores;
    struct cudnn_tensor row = cudnn_index(b->g, &scores, 2), column = cudnn_index(b->g, &scores, 3);
    struct cudnn_tensor mask = cudnn_pointwise(b->g, CUDNN_POINTWISE_CMP_GE, &row, &column, NULL);
    scores = keep_where(b, &scores, &mask);
    if (s->window <= 0 || s->window >= s->T) return scores;
    struct cudnn_tensor window = cudnn_scalar(b->g, (float)s->window);
    row = cudnn_index(b->g, &scores, 2);
    column = cudnn_index(b->g, &scores, 3);
    column = cudnn_pointwise(b->g, CUDNN_POINTWISE_ADD, &column, &window, NULL);
    mask = cudnn_pointwise(b->g, CUDNN_POINTWISE_CMP_GT, &column, &row, NULL);
    return keep_where(b, &scores, &mask);
}

/* The gradient of k or v (B, KV, T, D): Pᵀ or dSᵀ (B, H, T, T) times `of` (B, H, T, D), added up over the heads that
 * share one. */
static void key_gradient(struct builder *b, const struct cudnn_tensor *transposed, const struct cudnn_tensor *of,
                         const struct cudnn_tensor *gradient)
{
    const struct attention_shape *s = b->s;
    const int64_t dims[CUDNN_RANK] = {s->B, s->H, s->T, s->D};
    if (s->H == s->KV) {
        row_product(b, transposed, of, gradient);
        return;
    }
    struct cudnn_tensor of_heads = cudnn_virtual(b->g, cudnn_type_of(s), dims);
    row_product(b, transposed, of, &of_heads);
    cudnn_reduce(b->g, CUDNN_REDUCE_TENSOR_ADD, &of_heads, gradient);
}

/* The weights as V is multiplied with them, rounded: exponentials / sum, after dropout. */
static struct cudnn_tensor weights_of(struct builder *b, const struct cudnn_tensor *e, const struct cudnn_tensor *sum)
{
    const struct cudnn_tensor rounded = cudnn_virtual(b->g, cudnn_type_of(b->s), e->dims);
    if (!b->s->dropout) {
        cudnn_pointwise_into(b->g, CUDNN_POINTWISE_DIV, e, sum, NULL, &rounded);
        return rounded;
    }
    struct cudnn_tensor weights = cudnn_pointwise(b->g, CUDNN_POINTWISE_DIV, e, sum, NULL);
    weights = dropped(b, &weights, &b->factor);
    cudnn_pointwise_into(b->g, CUDNN_POINTWISE_MUL, &weights, &b->kept, NULL, &rounded);
    return rounded;
}

/* ---- the graphs ---------------------------------------------------------- */

static void attention_graph_fwd(struct builder *b)
{
    const struct attention_shape *s = b->s;
    struct cudnn_graph *g = b->g;
    struct cudnn_tensor q = rows(b, ATTENTION_Q, s->H, s->ld_q), k = columns(b, ATTENTION_K, s->KV, s->ld_k);
    struct cudnn_tensor v = rows(b, ATTENTION_V, s->KV, s->ld_v), out = rows(b, ATTENTION_OUT, s->H, s->ld_o);
    struct cudnn_tensor lse = log_sums(b);
    struct cudnn_tensor scale = cudnn_scalar(g, (float)s->scale);

    struct cudnn_tensor scores = score_product(b, &q, &k);
    scores = cudnn_pointwise(g, CUDNN_POINTWISE_MUL, &scores, &scale, NULL);
    scores = masked_after_end(b, capped(b, scores));
    scores = masked_after_query(b, scores);

    struct cudnn_tensor maximum = reduce_rows(g, CUDNN_REDUCE_TENSOR_MAX, &scores);
    scores = cudnn_pointwise(g, CUDNN_POINTWISE_SUB, &scores, &maximum, NULL);
    struct cudnn_tensor exponentials = cudnn_pointwise(g, CUDNN_POINTWISE_EXP, &scores, NULL, NULL);
    struct cudnn_tensor sum = reduce_rows(g, CUDNN_REDUCE_TENSOR_ADD, &exponentials);
    struct cudnn_tensor log_sum = cudnn_pointwise(g, CUDNN_POINTWISE_LOG, &sum, NULL, NULL);
    cudnn_pointwise_into(g, CUDNN_POINTWISE_ADD, &maximum, &log_sum, NULL, &lse);

    struct cudnn_tensor probabilities = weights_of(b, &exponentials, &sum);
    row_product(b, &probabilities, &v, &out);
}

/* dQ (B, H, T, D) from dS and k (B, KV, D, T). */
static void query_gradient(struct builder *b, const struct cudnn_tensor *ds, const struct cudnn_tensor *k)
{
    const struct attention_shape *s = b->s;
    struct cudnn_tensor k_rows = cudnn_transpose(b->g, k, cudnn_type_of(s), offsets_of(b, s->ld_k));
    struct cudnn_tensor dq = rows(b, ATTENTION_DQ, s->H, s->ld_dq);
    if (!b->sums) {
        row_product(b, ds, &k_rows, &dq);
        return;
    }
    struct cudnn_tensor sums = row_values(b, ATTENTION_SUMS, s->D);
    row_product(b, ds, &k_rows, &sums);
    cudnn_pointwise_into(b->g, CUDNN_POINTWISE_IDENTITY, &sums, NULL, NULL, &dq);
}

static void attention_graph_bwd(struct builder *b)
{
    const struct attention_shape *s = b->s;
    struct cudnn_graph *g = b->g;
    struct cudnn_tensor q = rows(b, ATTENTION_Q, s->H, s->ld_q), k = columns(b, ATTENTION_K, s->KV, s->ld_k);
    struct cudnn_tensor v = columns(b, ATTENTION_V, s->KV, s->ld_v), out = rows(b, ATTENTION_OUT, s->H, s->ld_o);
    struct cudnn_tensor dout = rows(b, ATTENTION_DOUT, s->H, s->ld_o), lse = log_sums(b);
    struct cudnn_tensor delta = row_values(b, ATTENTION_DELTA, 1);
    struct cudnn_tensor dk = rows(b, ATTENTION_DK, s->KV, s->ld_dk), dv = rows(b, ATTENTION_DV, s->KV, s->ld_dv);
    struct cudnn_tensor scale = cudnn_scalar(g, (float)s->scale);
    struct cudnn_tensor inverse = cudnn_scalar(g, s->dropout ? 1 / dropout_factor(s) : 1);

    /* The recognised form has the product with the inverse of dropout's factor, with or without dropout. */
    struct cudnn_tensor products = cudnn_pointwise(g, CUDNN_POINTWISE_MUL, &dout, &out, NULL);
    struct cudnn_tensor sums = reduce_rows(g, CUDNN_REDUCE_TENSOR_ADD, &products);
    cudnn_pointwise_into(g, CUDNN_POINTWISE_MUL, &sums, &inverse, NULL, &delta);

    struct cudnn_tensor scores = score_product(b, &q, &k);
    scores = cudnn_pointwise(g, CUDNN_POINTWISE_MUL, &scores, &scale, NULL);
    scores = masked_after_end(b, capped(b, scores));
    scores = cudnn_pointwise(g, CUDNN_POINTWISE_SUB, &scores, &lse, NULL);
    scores = masked_after_query(b, scores);
    struct cudnn_tensor probabilities = cudnn_pointwise(g, CUDNN_POINTWISE_EXP, &scores, NULL, NULL);
    struct cudnn_tensor weights = dropped(b, &probabilities, &b->kept);
    weights = dropped(b, &weights, &b->factor);
    struct cudnn_tensor transposed = cudnn_transpose(g, &weights, cudnn_type_of(s), NULL);
    key_gradient(b, &transposed, &dout, &dv);

    struct cudnn_tensor ds = score_product(b, &dout, &v);
    ds = dropped(b, &ds, &b->kept);
    ds = cudnn_pointwise(g, CUDNN_POINTWISE_SUB, &ds, &delta, NULL);
    ds = cudnn_pointwise(g, CUDNN_POINTWISE_MUL, &ds, &probabilities, NULL);
    ds = uncapped_gradient(b, dropped(b, &ds, &b->factor));
    ds = cudnn_pointwise(g, CUDNN_POINTWISE_MUL, &ds, &scale, NULL);
    transposed = cudnn_transpose(g, &ds, cudnn_type_of(s), NULL);
    key_gradient(b, &transposed, &q, &dk);
    query_gradient(b, &ds, &k);
}

/* ---- plans --------------------------------------------------------------- */

/* Shapes that the library refuses with a less clear message, or computes wrongly. */
static enum status check_shape(const struct cudnn_target *target, enum attention_direction direction,
                               const struct attention_shape *s, struct error *err)
{
    int version = target->version;
    ASSERT(s->dtype == DTYPE_BF16 || s->dtype == DTYPE_F16);
    if (version < VERSION_LEAST || (version >= BROKEN_FIRST && version <= BROKEN_LAST))
        return error_set(err, STATUS_DEVICE, "cuDNN %d.%d.%d %s", version / 10000, version / 100 % 100, version % 100,
                         version < VERSION_LEAST ? "is older than 9.6" : "computes wrong gradients of attention");
    if (direction == ATTENTION_BACKWARD && s->dropout && s->ragged && s->D > 128) /* 9.14 on an H200: docs/gpu-log.md */
        return error_set(err, STATUS_DEVICE,
                         "with dropout, cuDNN computes wrong gradients of ragged sequences whose "
                         "heads are above 128");
    if (s->T < 2 || (version <= ODD_LENGTHS_WRONG && s->T % 128 != 0 && !s->ragged))
        return error_set(err, STATUS_DEVICE, "cuDNN %d.%d.%d cannot compute sequences of %lld tokens", version / 10000,
                         version / 100 % 100, version % 100, (long long)s->T);
    return STATUS_OK;
}

static struct cudnn_graph *graph_of(const struct cudnn_target *target, enum attention_direction direction,
                                    const struct attention_shape *shape, const struct attention_form *form, bool sums)
{
    struct attention_shape part = *shape;
    part.B = form->sequences;
    struct builder builder = {
        .g = cudnn_graph_new(target, CUDNN_RANK), .s = &part, .version = target->version, .sums = sums};
    if (attention_form_has_lse_of_op(target, shape, form->plain)) builder.lse_stride = shape->B * shape->T;
    attention_graph_sequences(&builder);
    attention_graph_dropout(&builder);
    if (direction == ATTENTION_FORWARD)
        attention_graph_fwd(&builder);
    else
        attention_graph_bwd(&builder);
    return builder.g;
}

int attention_graph_plans(const struct cudnn_target *target, enum attention_direction direction,
                          const struct attention_shape *shape, const struct attention_form *form,
                          const struct cudnn_filter *filter, struct cudnn_plan **plans, int most, struct error *err)
{
    struct cudnn_filter ordered = *filter;
    const struct listed_engine *listed = form->plain ? NULL : listed_engine_of(target, direction, shape);
    int count = 0;
    ordered.unordered = shape->unordered != 0;
    if (check_shape(target, direction, shape, err) != STATUS_OK) return 0;
    if (listed) {
        const int64_t sums =
            listed->sums ? form->sequences * shape->H * shape->T * shape->D * (int64_t)sizeof(float) : 0;
        const size_t others = (size_t)(sums + 255) / 256 * 256; /* of the workspace */
        ordered.engine = &listed->engine;
        ordered.most_workspace -= others < ordered.most_workspace ? others : ordered.most_workspace;
        count = cudnn_plans_new(graph_of(target, direction, shape, form, listed->sums), &ordered, plans, most, err);
        ordered.engine = NULL;
        ordered.most_workspace = filter->most_workspace;
    }
    if (count < most)
        count += cudnn_plans_new(graph_of(target, direction, shape, form, shape->unordered), &ordered, plans + count,
                                 most - count, err);
    return count;
}

#else

int attention_graph_plans(const struct cudnn_target *target, enum attention_direction direction,
                          const struct attention_shape *shape, const struct attention_form *form,
                          const struct cudnn_filter *filter, struct cudnn_plan **plans, int most, struct error *err)
{
    (void)target, (void)direction, (void)shape, (void)form, (void)filter, (void)plans, (void)most;
    error_set(err, STATUS_DEVICE, "this build of ztrain has no cuDNN");
    return 0;
}

#endif

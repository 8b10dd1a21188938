/* attention_cudnn_graph.c: causal attention, forward and backward, as cuDNN's operation graphs.
 *
 * cuDNN has fused kernels for these graphs and recognises them by their form: which tensors are virtual, k as its
 * transpose, lse subtracted before the mask in backward. Each key/value head serves H / KV query heads; products
 * broadcast it, and backward adds up the gradients of those query heads:
 *
 *     forward    S = mask(scale Q·Kᵀ)   P = softmax(S)   out = P·V   lse = max + log(sum)
 *     backward   delta = rows of sum(dout · out)         P = exp(mask(scale Q·Kᵀ - lse))
 *                dV = Pᵀ·dout    dS = scale P (dout·Vᵀ - delta)    dK = dSᵀ·Q    dQ = dS·K
 *
 * dQ is the direct result of its product, not a sum in the caller's fp32 memory: this form selects the kernels of cuDNN
 * that add in a fixed order. */
#include "gpu/cuda/attention_cudnn_graph.h"

#if ZTRAIN_HAVE_CUDNN

#include <float.h>
#include <math.h>

/* Versions below VERSION_LEAST are refused. Up to ODD_LENGTHS_WRONG, backward is wrong for unmasked lengths that are
 * not a multiple of 128. Versions from INF_FROM on need -inf in masks, older ones the least float. */
enum { VERSION_LEAST = 90600, ODD_LENGTHS_WRONG = 91500, BROKEN_FIRST = 91000, BROKEN_LAST = 91001, INF_FROM = 91000 };

static const struct cudnn_pointwise ADD = {CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, 0};
static const struct cudnn_pointwise SUB = {CUDNN_POINTWISE_SUB, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, 0};
static const struct cudnn_pointwise MUL = {CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, 0};
static const struct cudnn_pointwise DIV = {CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, 0};
static const struct cudnn_pointwise EXP = {CUDNN_POINTWISE_EXP, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, 0};
static const struct cudnn_pointwise LOG = {CUDNN_POINTWISE_LOG, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, 0};
static const struct cudnn_pointwise ROW = {CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, CUDNN_DATA_INT32, 2};
static const struct cudnn_pointwise COLUMN = {CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, CUDNN_DATA_INT32, 3};
static const struct cudnn_pointwise GREATER_EQUAL = {CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, CUDNN_DATA_BOOLEAN, 0};
static const struct cudnn_pointwise GREATER = {CUDNN_POINTWISE_CMP_GT, CUDNN_DATA_BOOLEAN, CUDNN_DATA_BOOLEAN, 0};
static const struct cudnn_pointwise SELECT = {CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, 0};

static cudnnDataType_t cudnn_type_of(const struct attention_shape *s)
{
    return s->dtype == DTYPE_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

/* ---- tensors ------------------------------------------------------------- */

/* A tensor (B, heads, T, D) in memory, whose rows (tokens) are ld elements apart. */
static struct cudnn_tensor rows(struct cudnn_graph *g, const struct attention_shape *s, enum attention_pointer id,
                                int64_t heads, int64_t ld)
{
    const int64_t dims[CUDNN_RANK] = {s->B, heads, s->T, s->D}, strides[CUDNN_RANK] = {s->T * ld, s->D, ld, 1};
    return cudnn_memory(g, id, cudnn_type_of(s), dims, strides);
}

/* The same memory as (B, heads, D, T). */
static struct cudnn_tensor columns(struct cudnn_graph *g, const struct attention_shape *s, enum attention_pointer id,
                                   int64_t heads, int64_t ld)
{
    const int64_t dims[CUDNN_RANK] = {s->B, heads, s->D, s->T}, strides[CUDNN_RANK] = {s->T * ld, s->D, 1, ld};
    return cudnn_memory(g, id, cudnn_type_of(s), dims, strides);
}

/* One value for each query, dense (B, H, T, 1). */
static struct cudnn_tensor row_values(struct cudnn_graph *g, const struct attention_shape *s, enum attention_pointer id)
{
    const int64_t dims[CUDNN_RANK] = {s->B, s->H, s->T, 1}, strides[CUDNN_RANK] = {s->H * s->T, s->T, 1, 1};
    return cudnn_memory(g, id, CUDNN_DATA_FLOAT, dims, strides);
}

/* The sum or the maximum of every row. */
static struct cudnn_tensor reduce_rows(struct cudnn_graph *g, cudnnReduceTensorOp_t how, const struct cudnn_tensor *x)
{
    const int64_t dims[CUDNN_RANK] = {x->dims[0], x->dims[1], x->dims[2], 1};
    struct cudnn_tensor out = cudnn_virtual(g, CUDNN_DATA_FLOAT, dims);
    cudnn_reduce(g, how, x, &out);
    return out;
}

/* a (B, H, m, k) · b (B, H or KV, k, n) -> (B, H, m, n) */
static struct cudnn_tensor matrix_product(struct cudnn_graph *g, cudnnDataType_t type, const struct cudnn_tensor *a,
                                          const struct cudnn_tensor *b)
{
    const int64_t dims[CUDNN_RANK] = {a->dims[0], a->dims[1], a->dims[2], b->dims[3]};
    struct cudnn_tensor out = cudnn_virtual(g, type, dims);
    cudnn_matmul(g, a, b, &out);
    return out;
}

/* ---- parts of the formulas ----------------------------------------------- */

/* The scores where `mask` holds, elsewhere the value whose probability becomes 0. */
static struct cudnn_tensor keep_where(struct cudnn_graph *g, int version, const struct cudnn_tensor *scores,
                                      const struct cudnn_tensor *mask)
{
    struct cudnn_tensor nothing = cudnn_scalar(g, version >= INF_FROM ? -INFINITY : -FLT_MAX);
    return cudnn_pointwise(g, &SELECT, scores, &nothing, mask);
}

/* Masks keys after the query: row >= column stays. With a window, column + window > row stays. */
static struct cudnn_tensor masked(struct cudnn_graph *g, int version, const struct attention_shape *s,
                                  struct cudnn_tensor scores)
{
    struct cudnn_tensor row = cudnn_pointwise(g, &ROW, &scores, NULL, NULL);
    struct cudnn_tensor column = cudnn_pointwise(g, &COLUMN, &scores, NULL, NULL);
    struct cudnn_tensor mask = cudnn_pointwise(g, &GREATER_EQUAL, &row, &column, NULL);
    scores = keep_where(g, version, &scores, &mask);
    if (s->window <= 0 || s->window >= s->T)
        return scores;
    struct cudnn_tensor window = cudnn_scalar(g, (float)s->window);
    row = cudnn_pointwise(g, &ROW, &scores, NULL, NULL);
    column = cudnn_pointwise(g, &COLUMN, &scores, NULL, NULL);
    column = cudnn_pointwise(g, &ADD, &column, &window, NULL);
    mask = cudnn_pointwise(g, &GREATER, &column, &row, NULL);
    return keep_where(g, version, &scores, &mask);
}

/* The gradient of k or v (B, KV, T, D): Pᵀ or dSᵀ (B, H, T, T) times `rows` (B, H, T, D), added up over the heads that
 * share one. */
static void key_gradient(struct cudnn_graph *g, const struct attention_shape *s, const struct cudnn_tensor *transposed,
                         const struct cudnn_tensor *of, const struct cudnn_tensor *gradient)
{
    if (s->H == s->KV) {
        cudnn_matmul(g, transposed, of, gradient);
        return;
    }
    struct cudnn_tensor of_heads = matrix_product(g, cudnn_type_of(s), transposed, of);
    cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, &of_heads, gradient);
}

/* ---- the graphs ---------------------------------------------------------- */

static void build_fwd(struct cudnn_graph *g, int version, const struct attention_shape *s)
{
    struct cudnn_tensor q = rows(g, s, ATTENTION_Q, s->H, s->ld_q);
    struct cudnn_tensor k = columns(g, s, ATTENTION_K, s->KV, s->ld_k);
    struct cudnn_tensor v = rows(g, s, ATTENTION_V, s->KV, s->ld_v);
    struct cudnn_tensor out = rows(g, s, ATTENTION_OUT, s->H, s->ld_o);
    struct cudnn_tensor lse = row_values(g, s, ATTENTION_LSE);
    struct cudnn_tensor scale = cudnn_scalar(g, (float)s->scale);

    struct cudnn_tensor scores = matrix_product(g, CUDNN_DATA_FLOAT, &q, &k);
    scores = cudnn_pointwise(g, &MUL, &scores, &scale, NULL);
    scores = masked(g, version, s, scores);

    struct cudnn_tensor maximum = reduce_rows(g, CUDNN_REDUCE_TENSOR_MAX, &scores);
    scores = cudnn_pointwise(g, &SUB, &scores, &maximum, NULL);
    struct cudnn_tensor exponentials = cudnn_pointwise(g, &EXP, &scores, NULL, NULL);
    struct cudnn_tensor sum = reduce_rows(g, CUDNN_REDUCE_TENSOR_ADD, &exponentials);
    struct cudnn_tensor log_sum = cudnn_pointwise(g, &LOG, &sum, NULL, NULL);
    cudnn_pointwise_into(g, &ADD, &maximum, &log_sum, NULL, &lse);

    struct cudnn_pointwise rounded = DIV;
    rounded.gives = cudnn_type_of(s);
    struct cudnn_tensor probabilities = cudnn_pointwise(g, &rounded, &exponentials, &sum, NULL);
    cudnn_matmul(g, &probabilities, &v, &out);
}

static void build_bwd(struct cudnn_graph *g, int version, const struct attention_shape *s)
{
    struct cudnn_tensor q = rows(g, s, ATTENTION_Q, s->H, s->ld_q);
    struct cudnn_tensor k = columns(g, s, ATTENTION_K, s->KV, s->ld_k);
    struct cudnn_tensor v = columns(g, s, ATTENTION_V, s->KV, s->ld_v);
    struct cudnn_tensor out = rows(g, s, ATTENTION_OUT, s->H, s->ld_o);
    struct cudnn_tensor dout = rows(g, s, ATTENTION_DOUT, s->H, s->ld_o);
    struct cudnn_tensor lse = row_values(g, s, ATTENTION_LSE);
    struct cudnn_tensor delta = row_values(g, s, ATTENTION_DELTA);
    struct cudnn_tensor dq = rows(g, s, ATTENTION_DQ, s->H, s->ld_dq);
    struct cudnn_tensor dk = rows(g, s, ATTENTION_DK, s->KV, s->ld_dk);
    struct cudnn_tensor dv = rows(g, s, ATTENTION_DV, s->KV, s->ld_dv);
    struct cudnn_tensor scale = cudnn_scalar(g, (float)s->scale), one = cudnn_scalar(g, 1);

    /* The product with 1 takes the place of dropout's factor, which the recognised form has. */
    struct cudnn_tensor products = cudnn_pointwise(g, &MUL, &dout, &out, NULL);
    struct cudnn_tensor sums = reduce_rows(g, CUDNN_REDUCE_TENSOR_ADD, &products);
    cudnn_pointwise_into(g, &MUL, &sums, &one, NULL, &delta);

    struct cudnn_tensor scores = matrix_product(g, CUDNN_DATA_FLOAT, &q, &k);
    scores = cudnn_pointwise(g, &MUL, &scores, &scale, NULL);
    scores = cudnn_pointwise(g, &SUB, &scores, &lse, NULL);
    scores = masked(g, version, s, scores);
    struct cudnn_tensor probabilities = cudnn_pointwise(g, &EXP, &scores, NULL, NULL);
    struct cudnn_tensor transposed = cudnn_transpose(g, &probabilities, cudnn_type_of(s));
    key_gradient(g, s, &transposed, &dout, &dv);

    struct cudnn_tensor ds = matrix_product(g, CUDNN_DATA_FLOAT, &dout, &v);
    ds = cudnn_pointwise(g, &SUB, &ds, &delta, NULL);
    ds = cudnn_pointwise(g, &MUL, &ds, &probabilities, NULL);
    ds = cudnn_pointwise(g, &MUL, &ds, &scale, NULL);
    transposed = cudnn_transpose(g, &ds, cudnn_type_of(s));
    key_gradient(g, s, &transposed, &q, &dk);

    struct cudnn_tensor k_rows = cudnn_transpose(g, &k, cudnn_type_of(s));
    cudnn_matmul(g, &ds, &k_rows, &dq);
}

/* ---- plans --------------------------------------------------------------- */

/* Refuses shapes that the library refuses with a less clear message, or computes wrongly. */
static enum status check_shape(const struct cudnn_target *target, const struct attention_shape *s, struct error *err)
{
    int version = target->version;
    ASSERT(s->dtype == DTYPE_BF16 || s->dtype == DTYPE_F16);
    if (version < VERSION_LEAST || (version >= BROKEN_FIRST && version <= BROKEN_LAST))
        return error_set(err, STATUS_DEVICE, "cuDNN %d.%d.%d %s", version / 10000, version / 100 % 100, version % 100,
                         version < VERSION_LEAST ? "is older than 9.6" : "computes wrong gradients of attention");
    if (s->D % 8 != 0)
        return error_set(err, STATUS_DEVICE, "cuDNN needs a head_dim that is a multiple of 8, not %lld",
                         (long long)s->D);
    if (s->T < 2 || (version <= ODD_LENGTHS_WRONG && s->T % 128 != 0))
        return error_set(err, STATUS_DEVICE, "cuDNN %d.%d.%d cannot compute sequences of %lld tokens", version / 10000,
                         version / 100 % 100, version % 100, (long long)s->T);
    return STATUS_OK;
}

enum status attention_graph_plan(const struct cudnn_target *target, enum attention_direction direction,
                                 const struct attention_shape *shape, size_t most_workspace, struct cudnn_plan **plan,
                                 struct error *err)
{
    *plan = NULL;
    TRY(check_shape(target, shape, err));
    struct cudnn_graph *graph = cudnn_graph_new(target);
    if (!graph)
        return error_set(err, STATUS_DEVICE, "cannot make a plan of cuDNN: out of memory");
    if (direction == ATTENTION_FORWARD)
        build_fwd(graph, target->version, shape);
    else
        build_bwd(graph, target->version, shape);
    return cudnn_plan_new(graph, most_workspace, plan, err);
}

#endif

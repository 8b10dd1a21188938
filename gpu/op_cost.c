/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/op_cost.h"

#include "gpu/op_operands.h"

static struct op_cost cost_bytes_of(int op, const void *args)
{
    double bytes = 0;
    const struct op_operands operands = op_operands(op);
    for (const struct operand *o = operands.all; o < operands.all + operands.count; o++) {
        const bool read = o->added ? *((const bool *)args + o->added - 1) : (o->use & OPERAND_READ) != 0;
        const int times = read + ((o->use & OPERAND_WRITTEN) != 0);
        if (!(o->use & OPERAND_SIDE) && operand_exists(o, args))
            bytes += times * (double)operand_numel(o, args, false) * (double)operand_element(o, args);
    }
    return (struct op_cost){0, bytes};
}

#define BYTES_OF(op)                                          \
    struct op_cost op_cost_##op(const struct op##_args *args) \
    {                                                         \
        return cost_bytes_of(OP_##op, args);                  \
    }
/* clang-format off */
#define BYTES_OPS(X) \
    X(norm_fwd) X(norm_bwd) X(head_norm_fwd) X(head_norm_bwd) X(rope) X(swap_heads) X(swiglu_fwd) X(swiglu_bwd) X(gate_fwd) X(gate_bwd) \
    X(attention_sink_fwd) X(attention_sink_bwd) \
    X(route) X(route_bwd) X(sum_experts) X(permute_experts) X(gather_tokens) X(scale_rows_bwd) X(combine_bias_bwd) X(experts_swiglu_bwd) \
    X(tanh_fwd) X(tanh_bwd) X(causal_conv_fwd) X(causal_conv_bwd) X(cross_entropy) X(dropout) X(add) X(cast) \
    X(dequantize) X(sumsq) X(find_nonfinite) X(adam) \
    X(momentum) X(muon_momentum) X(muon_update) X(combine_tokens) X(accumulate) X(sum_ranks)
/* clang-format on */
BYTES_OPS(BYTES_OF)

/* m and v are read and written. */
struct op_cost op_cost_adam8(const struct adam8_args *a)
{
    struct op_cost cost = cost_bytes_of(OP_adam8, a);
    cost.bytes += 4 * (double)(a->n / MOMENT_BLOCK) * (double)sizeof(struct moment_block);
    return cost;
}

struct op_cost op_cost_embedding_fwd(const struct embedding_fwd_args *a)
{
    return (struct op_cost){0, (double)a->M * (double)a->C * cost_size_of(a->dtype) *
                                   (2 + (a->wpe != NULL) + (a->wse != NULL))};
}

struct op_cost op_cost_embedding_bwd(const struct embedding_bwd_args *a)
{
    double rows = (double)a->M * (double)a->C;
    double zeroed = (a->dwte && !a->accumulate_wte ? (double)a->V : 0.0) +
                    (a->dwpe && !a->accumulate_wpe ? (double)a->P : 0.0) +
                    (a->dwse && !a->accumulate_wse ? (double)a->S : 0.0);
    int tables = (a->dwte != NULL) + (a->dwpe != NULL) + (a->dwse != NULL);
    return (struct op_cost){0, rows * cost_size_of(a->dtype) + rows * 8 * tables + zeroed * (double)a->C * 4};
}

/* A product of M x N x K; of experts: with the matrices of all, whether they got tokens or not. */
static struct op_cost cost_product(int op, const void *args, int64_t M, int64_t N, int64_t K)
{
    return (struct op_cost){2 * (double)M * (double)N * (double)K, cost_bytes_of(op, args).bytes};
}

#define PRODUCT(op)                                        \
    struct op_cost op_cost_##op(const struct op##_args *a) \
    {                                                      \
        return cost_product(OP_##op, a, a->M, a->N, a->K); \
    }
PRODUCT(linear_fwd)
PRODUCT(linear_bwd_weight)
PRODUCT(grouped_linear_fwd)
PRODUCT(grouped_linear_bwd_input)
PRODUCT(grouped_linear_bwd_weight)

/* With gate_up, dx is scratch memory. */
struct op_cost op_cost_linear_bwd_input(const struct linear_bwd_input_args *a)
{
    struct op_cost cost = cost_product(OP_linear_bwd_input, a, a->M, a->N, a->K);
    if (a->gate_up) cost.bytes -= (double)a->M * (double)a->K * cost_size_of(a->dtype);
    return cost;
}

/* The products of every query and the keys that it sees, if all sequences are as long as the longest. */
static double cost_attention_pairs(const struct attention_fwd_args *a)
{
    const double length = a->bidirectional                          ? (double)a->max_seq
                          : a->window > 0 && a->window < a->max_seq ? (double)a->window
                                                                    : ((double)a->max_seq + 1) / 2;
    return (double)a->M * length * (double)(a->H * a->D);
}

struct op_cost op_cost_attention_fwd(const struct attention_fwd_args *a)
{
    return (struct op_cost){4 * cost_attention_pairs(a),
                            (double)a->M * (double)(2 * (a->H + a->KV) * a->D) * cost_size_of(a->dtype)};
}

struct op_cost op_cost_attention_bwd(const struct attention_bwd_args *a)
{
    return (struct op_cost){10 * cost_attention_pairs(&a->fwd), 2 * op_cost_attention_fwd(&a->fwd).bytes};
}

/* The FLOPs of a delta rule whose chunks are full, of M tokens: `states` products with a state, `keys` and `values` of
 * two of a chunk's rows, over Dk and over Dv, of which half is needed below the diagonal. */
static double cost_delta(const struct delta_rule_fwd_args *a, double states, double keys, double values)
{
    const double n = DELTA_CHUNK, Dk = (double)a->Dk, Dv = (double)a->Dv;
    return 2 * (double)a->M * (double)a->Hv * (states * Dk * Dv + n / 2 * (keys * Dk + values * Dv));
}

struct op_cost op_cost_delta_rule_fwd(const struct delta_rule_fwd_args *a)
{
    return (struct op_cost){cost_delta(a, 3, 2, 2), cost_bytes_of(OP_delta_rule_fwd, a).bytes};
}

/* With the states that it computes again. */
struct op_cost op_cost_delta_rule_bwd(const struct delta_rule_bwd_args *a)
{
    return (struct op_cost){cost_delta(&a->fwd, 8, 7, 5), cost_bytes_of(OP_delta_rule_bwd, a).bytes};
}

static double cost_first_key(const struct attention_decode_args *a, int64_t position)
{
    return a->window > 0 && position >= a->window ? (double)(position - a->window + 1) : 0;
}

/* The cached keys and values are read once; those of the new tokens are read and written. */
struct op_cost op_cost_attention_decode(const struct attention_decode_args *a)
{
    const double heads = (double)(a->H * a->D), kv = (double)(a->KV * a->D), m = (double)a->M;
    double pairs = 0;
    for (int64_t i = 0; a->q && i < a->M; i++) pairs += (double)(a->start + i + 1) - cost_first_key(a, a->start + i);
    const double cached = a->q && a->M ? (double)(a->start + a->M) - cost_first_key(a, a->start) : 0;
    const double elements = 4 * m * kv + 2 * cached * kv + (a->q ? 2 * m * heads : 0);
    return (struct op_cost){4 * pairs * heads, elements * cost_size_of(a->dtype)};
}

struct op_cost op_cost_decide_step(const struct decide_step_args *a)
{
    return (struct op_cost){0, (double)a->world * (a->units + 1) * 8};
}

/* Of n rows of k elements: the Gram matrix, its square, and its polynomial times the matrix. */
struct op_cost op_cost_orthogonalize(const struct orthogonalize_args *a)
{
    const bool tall = a->rows > a->cols;
    const double n = (double)(tall ? a->cols : a->rows), k = (double)(tall ? a->rows : a->cols);
    return (struct op_cost){a->steps * (4 * n * n * k + 2 * n * n * n), 2 * n * k * cost_size_of(DTYPE_BF16)};
}

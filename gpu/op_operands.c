/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/op_operands.h"

/* clang-format off */
#define AT(m) (int16_t)(offsetof(ARGS, m) + 1)
#define DIMS1(a) AT(a)
#define DIMS2(a, b) AT(a), AT(b)
#define DIMS3(a, b, c) AT(a), AT(b), AT(c)
#define DIMS4(a, b, c, d) AT(a), AT(b), AT(c), AT(d)
#define DIMS_BY_COUNT(a, b, c, d, name, ...) name
#define DIMS(...) DIMS_BY_COUNT(__VA_ARGS__, DIMS4, DIMS3, DIMS2, DIMS1, )(__VA_ARGS__)

/* TENSOR: a shape; ROWS: rows `pitch` apart; TIMES: halves / 2 times a shape; SUM, SUM_ROWS: a result that is added to
 * what is there with `accumulate`; FIXED: one element, or an operand of a fixed meaning. */
#define OPERAND(m, use, type) #m, offsetof(ARGS, m), use, type
#define TENSOR(m, use, type, ...) {OPERAND(m, use, type), {DIMS(__VA_ARGS__)}, 0, 0, 0}
#define ROWS(m, use, type, pitch, ...) {OPERAND(m, use, type), {DIMS(__VA_ARGS__)}, AT(pitch), 0, 0}
#define TIMES(m, use, type, halves, ...) {OPERAND(m, use, type), {DIMS(__VA_ARGS__)}, 0, halves, 0}
#define SUM(m, type, ...) {OPERAND(m, INOUT, type), {DIMS(__VA_ARGS__)}, 0, 0, AT(accumulate)}
#define SUM_ROWS(m, type, pitch, ...) {OPERAND(m, INOUT, type), {DIMS(__VA_ARGS__)}, AT(pitch), 0, AT(accumulate)}
#define FIXED(m, use, type) {OPERAND(m, use, type), {0}, 0, 0, 0}

enum {
    IN = OPERAND_READ, OUT = OPERAND_WRITTEN, INOUT = IN | OUT,
    SIDE = OPERAND_SIDE, MAYBE = OPERAND_MAYBE, POSITIVE = OPERAND_POSITIVE,
    DT = OPERAND_DT, F32 = OPERAND_F32, BF16 = OPERAND_BF16, F64 = OPERAND_F64, INDEX = OPERAND_INDEX, BYTE = OPERAND_BYTE,
    TABLE = 2 * 32 /* rows of a table whose size an op does not know: what the self-test gives it */
};

#define OPERANDS(op, ...) \
    static struct op_operands operands_of_##op(void) \
    { \
        typedef struct op##_args ARGS; \
        static const struct operand all[] = {__VA_ARGS__}; \
        return (struct op_operands){all, COUNT_OF(all)}; \
    }
OPERANDS(embedding_fwd, TENSOR(out, OUT, DT, M, C), TENSOR(tokens, IN | SIDE, INDEX, M),
    TENSOR(positions, IN | SIDE, INDEX, M), TIMES(wte, IN, DT, TABLE, C), TIMES(wpe, IN | MAYBE, DT, TABLE, C),
    TENSOR(types, IN | SIDE | MAYBE, INDEX, M), TIMES(wse, IN | MAYBE, DT, TABLE, C))
OPERANDS(embedding_bwd, TENSOR(dwte, INOUT, F32, V, C), TENSOR(dwpe, INOUT | MAYBE, F32, P, C),
    TENSOR(dout, IN, DT, M, C), TENSOR(tokens, IN | SIDE, INDEX, M), TENSOR(positions, IN | SIDE, INDEX, M),
    TENSOR(types, IN | SIDE | MAYBE, INDEX, M), TENSOR(dwse, INOUT | MAYBE, F32, S, C))
OPERANDS(norm_fwd, TENSOR(y, OUT, DT, M, C), TENSOR(x_out, OUT | MAYBE, DT, M, C), TENSOR(x, IN, DT, M, C),
    TENSOR(delta, IN | MAYBE, DT, M, C), TENSOR(weight, IN | SIDE | POSITIVE, DT, C),
    TENSOR(bias, IN | SIDE | MAYBE, DT, C), TENSOR(mean, OUT | SIDE | MAYBE, F32, M), TENSOR(rstd, OUT | SIDE, F32, M))
OPERANDS(norm_bwd, TENSOR(dx, OUT, DT, M, C), TENSOR(dres, IN | MAYBE, DT, M, C), TENSOR(dy, IN, DT, M, C),
    TENSOR(x, IN, DT, M, C), TENSOR(weight, IN | SIDE | POSITIVE, DT, C), TENSOR(mean, IN | SIDE | MAYBE, F32, M),
    TENSOR(rstd, IN | SIDE | POSITIVE, F32, M), TENSOR(dweight, INOUT | SIDE, F32, C),
    TENSOR(dbias, INOUT | SIDE | MAYBE, F32, C), TENSOR(dx_sums, INOUT | SIDE | MAYBE, F32, C))
OPERANDS(linear_fwd, SUM_ROWS(y, AT(y_dtype), ld_y, M, N), ROWS(x, IN, DT, ld_x, M, K), TENSOR(w, IN, DT, N, K),
    TENSOR(bias, IN | SIDE | MAYBE, DT, N), TENSOR(aux, OUT | MAYBE, DT, M, N), TIMES(gated, OUT | MAYBE, DT, 1, M, N))
OPERANDS(linear_bwd_input, SUM_ROWS(dx, DT, ld_dx, M, K), ROWS(dy, IN, DT, ld_dy, M, N), TENSOR(w, IN, DT, N, K),
    TENSOR(gelu_aux, IN | MAYBE, DT, M, K), TENSOR(dbias, INOUT | SIDE | MAYBE, F32, K),
    TIMES(gate_up, INOUT | MAYBE, DT, 4, M, K))
OPERANDS(linear_bwd_weight, SUM(dw, AT(dw_dtype), N, K), TENSOR(dbias, INOUT | SIDE | MAYBE, F32, N),
    ROWS(dy, IN, DT, ld_dy, M, N), ROWS(x, IN, DT, ld_x, M, K))
OPERANDS(head_norm_fwd, ROWS(y, OUT, DT, ld_y, M, heads, D), ROWS(x, IN, DT, ld_x, M, heads, D),
    TENSOR(weight, IN | SIDE | POSITIVE, DT, D), TENSOR(rstd, OUT | SIDE, F32, M, heads),
    ROWS(gate, IN | MAYBE, DT, ld_gate, M, heads, D), TENSOR(positions, IN | SIDE | MAYBE, INDEX, M),
    TIMES(cos_table, IN | SIDE | MAYBE, F32, TABLE, R), TIMES(sin_table, IN | SIDE | MAYBE, F32, TABLE, R))
OPERANDS(head_norm_bwd, ROWS(dx, OUT, DT, ld_dx, M, heads, D), ROWS(dy, IN, DT, ld_dy, M, heads, D),
    ROWS(x, IN, DT, ld_x, M, heads, D), TENSOR(weight, IN | SIDE | POSITIVE, DT, D),
    TENSOR(rstd, IN | SIDE | POSITIVE, F32, M, heads), TENSOR(dweight, INOUT | SIDE, F32, D),
    ROWS(gate, IN | MAYBE, DT, ld_gate, M, heads, D), ROWS(dgate, OUT | MAYBE, DT, ld_gate, M, heads, D),
    ROWS(dres, IN | MAYBE, DT, ld_dx, M, heads, D))
OPERANDS(rope, ROWS(x, INOUT, DT, ld, M, heads, R), TENSOR(positions, IN | SIDE, INDEX, M),
    TIMES(cos_table, IN | SIDE, F32, TABLE, R), TIMES(sin_table, IN | SIDE, F32, TABLE, R))
OPERANDS(swap_heads, TENSOR(y, OUT, DT, M, outer, inner, D), TENSOR(x, IN, DT, M, outer, inner, D))
OPERANDS(gate_fwd, TENSOR(y, OUT, DT, M, C), ROWS(x, IN, DT, ld_x, M, C), ROWS(gate, IN, DT, ld_gate, M, C))
OPERANDS(gate_bwd, ROWS(dx, OUT, DT, ld_x, M, C), ROWS(dgate, OUT, DT, ld_gate, M, C), TENSOR(dy, IN, DT, M, C),
    ROWS(x, IN, DT, ld_x, M, C), ROWS(gate, IN, DT, ld_gate, M, C))
#define ATTENTION_INPUTS(of) FIXED(of seq_start, IN | SIDE, OPERAND_STARTS), \
    ROWS(of q, IN, DT, of ld_q, of M, of H, of D), ROWS(of k, IN, DT, of ld_k, of M, of KV, of D), \
    ROWS(of v, IN, DT, of ld_v, of M, of KV, of D), \
    FIXED(of dropout.tokens, IN | SIDE | MAYBE, OPERAND_NUMBERS)
OPERANDS(attention_fwd, ATTENTION_INPUTS(), ROWS(out, OUT, DT, ld_o, M, H, D), TENSOR(lse, OUT | SIDE, F32, H, M))
OPERANDS(attention_bwd, ATTENTION_INPUTS(fwd.), ROWS(fwd.out, IN, DT, fwd.ld_o, fwd.M, fwd.H, fwd.D),
    ROWS(dout, IN, DT, fwd.ld_o, fwd.M, fwd.H, fwd.D), TENSOR(fwd.lse, IN | SIDE, F32, fwd.H, fwd.M),
    ROWS(dq, OUT, DT, ld_dq, fwd.M, fwd.H, fwd.D), ROWS(dk, OUT, DT, ld_dk, fwd.M, fwd.KV, fwd.D),
    ROWS(dv, OUT, DT, ld_dv, fwd.M, fwd.KV, fwd.D))
OPERANDS(attention_decode, ROWS(q, IN | MAYBE, DT, ld_q, M, H, D), ROWS(k, IN, DT, ld_k, M, KV, D),
    ROWS(v, IN, DT, ld_v, M, KV, D), TENSOR(k_cache, INOUT, DT, KV, capacity, D),
    TENSOR(v_cache, INOUT, DT, KV, capacity, D), ROWS(out, OUT | MAYBE, DT, ld_o, M, H, D),
    TENSOR(sinks, IN | SIDE | MAYBE, DT, H))
OPERANDS(attention_sink_fwd, ROWS(out, INOUT, DT, ld_o, M, H, D), TENSOR(lse, INOUT | SIDE, F32, H, M),
    TENSOR(sinks, IN | SIDE, DT, H))
OPERANDS(attention_sink_bwd, ROWS(out, IN, DT, ld_o, M, H, D), ROWS(dout, IN, DT, ld_o, M, H, D),
    TENSOR(lse, IN | SIDE, F32, H, M), TENSOR(sinks, IN | SIDE, DT, H), TENSOR(dsinks, INOUT | SIDE, F32, H))
OPERANDS(causal_conv_fwd, FIXED(seq_start, IN | SIDE, OPERAND_STARTS), ROWS(y, OUT, DT, ld_y, M, C),
    ROWS(x, IN, DT, ld_x, M, C), TENSOR(weight, IN | SIDE, DT, C, K), TENSOR(state, INOUT | MAYBE, DT, num_seqs, K, C))
OPERANDS(causal_conv_bwd, FIXED(seq_start, IN | SIDE, OPERAND_STARTS), ROWS(dx, OUT, DT, ld_dx, M, C),
    ROWS(dy, IN, DT, ld_dy, M, C), ROWS(x, IN, DT, ld_x, M, C), TENSOR(weight, IN | SIDE, DT, C, K),
    TENSOR(dweight, INOUT | SIDE, F32, C, K))
#define DELTA_INPUTS(of) FIXED(of seq_start, IN | SIDE, OPERAND_STARTS), \
    ROWS(of q, IN, DT, of ld_qkv, of M, of Hk, of Dk), ROWS(of k, IN, DT, of ld_qkv, of M, of Hk, of Dk), \
    ROWS(of v, IN, DT, of ld_qkv, of M, of Hv, of Dv), ROWS(of a, IN, DT, of ld_ab, of M, of Hv), \
    ROWS(of b, IN, DT, of ld_ab, of M, of Hv), TENSOR(of a_log, IN | SIDE, DT, of Hv), \
    TENSOR(of dt_bias, IN | SIDE, DT, of Hv)
#define DELTA_ROWS(m, use, pitch, heads, dim) ROWS(m, use, DT, fwd.pitch, fwd.M, fwd.heads, fwd.dim)
#define DELTA_GATES(m) ROWS(m, OUT, DT, fwd.ld_ab, fwd.M, fwd.Hv)
OPERANDS(delta_rule_fwd, DELTA_INPUTS(), ROWS(out, OUT, DT, ld_o, M, Hv, Dv),
    TENSOR(state, INOUT | MAYBE, F32, num_seqs, Hv, Dk, Dv))
OPERANDS(delta_rule_bwd, DELTA_INPUTS(fwd.), DELTA_ROWS(dout, IN, ld_o, Hv, Dv), DELTA_ROWS(dq, OUT, ld_qkv, Hk, Dk),
    DELTA_ROWS(dk, OUT, ld_qkv, Hk, Dk), DELTA_ROWS(dv, OUT, ld_qkv, Hv, Dv), DELTA_GATES(da), DELTA_GATES(db),
    TENSOR(da_log, INOUT | SIDE, F32, fwd.Hv), TENSOR(ddt_bias, INOUT | SIDE, F32, fwd.Hv))
OPERANDS(swiglu_fwd, TENSOR(h, OUT, DT, M, F), TIMES(gate_up, IN, DT, 4, M, F))
OPERANDS(swiglu_bwd, TIMES(dgate_up, OUT, DT, 4, M, F), TENSOR(dh, IN, DT, M, F), TIMES(gate_up, IN, DT, 4, M, F))
OPERANDS(route, TENSOR(logits, IN, DT, M, E), TENSOR(bias, IN | SIDE | MAYBE, F32, E), TENSOR(probs, OUT, F32, M, E),
    TENSOR(experts, OUT, INDEX, M, k), TENSOR(weights, OUT, F32, M, k), TENSOR(lse, OUT | SIDE | MAYBE, F32, M),
    TENSOR(counts, INOUT | SIDE | MAYBE, INDEX, E), TENSOR(prob_sums, INOUT | SIDE | MAYBE, F64, E))
OPERANDS(sum_experts, TENSOR(counts, IN, INDEX, E), TENSOR(prob_sums, IN, F64, E), FIXED(aux_sum, INOUT, F64),
    TENSOR(loads, INOUT, F64, E))
OPERANDS(route_bwd, TENSOR(dlogits, OUT, DT, M, E), TENSOR(probs, IN | POSITIVE, F32, M, E),
    TENSOR(weights, IN, F32, M, k), TENSOR(dweights, IN, F32, M, k), TENSOR(experts, IN, INDEX, M, k),
    TENSOR(counts, IN | SIDE | MAYBE, INDEX, E), TENSOR(lse, IN | SIDE | MAYBE, F32, M),
    FIXED(loss_scale, IN | SIDE | MAYBE | POSITIVE, F32))
OPERANDS(permute_experts, TENSOR(experts, IN, INDEX, M, k), FIXED(offsets, OUT | SIDE, OPERAND_OFFSETS),
    TENSOR(places, OUT, INDEX, M, k))
OPERANDS(gather_tokens, TENSOR(xe, OUT, DT, M, k, C), TENSOR(x, IN, DT, M, C), TENSOR(places, IN | SIDE, INDEX, M, k))
OPERANDS(combine_tokens, SUM(y, DT, M, C), TENSOR(ye, IN, DT, M, k, C), TENSOR(weights, IN | SIDE | MAYBE, F32, M, k),
    TENSOR(places, IN | SIDE | MAYBE, INDEX, M, k))
OPERANDS(scale_rows_bwd, TENSOR(dx, OUT, DT, M, C), TENSOR(dy, IN, DT, M, C), TENSOR(x, IN, DT, M, C),
    TENSOR(weights, IN | SIDE, F32, M), TENSOR(dweights, OUT | SIDE, F32, M))
OPERANDS(combine_bias_bwd, TENSOR(dweights, INOUT, F32, M, k), TENSOR(bias, IN | SIDE, DT, E, C),
    TENSOR(dy, IN, DT, M, C), TENSOR(experts, IN, INDEX, M, k))
OPERANDS(experts_swiglu_bwd, TIMES(dgate_up, OUT, DT, 4, M, F), TENSOR(h, OUT, DT, M, F), TENSOR(dh, IN, DT, M, F),
    TIMES(gate_up, IN, DT, 4, M, F), TENSOR(weights, IN | SIDE, F32, M), TENSOR(dweights, OUT | SIDE, F32, M),
    TENSOR(places, IN | SIDE, INDEX, M), TENSOR(row_weights, OUT | SIDE | MAYBE, F32, M))
OPERANDS(grouped_linear_fwd, SUM(y, DT, M, N), TENSOR(x, IN, DT, M, K), TENSOR(w, IN, DT, E, N, K),
    TENSOR(bias, IN | SIDE | MAYBE, DT, E, N), FIXED(offsets, IN | SIDE, OPERAND_OFFSETS))
OPERANDS(grouped_linear_bwd_input, SUM(dx, DT, M, K), TENSOR(dy, IN, DT, M, N), TENSOR(w, IN, DT, E, N, K),
    FIXED(offsets, IN | SIDE, OPERAND_OFFSETS))
OPERANDS(grouped_linear_bwd_weight, SUM(dw, AT(dw_dtype), E, N, K), TENSOR(dbias, INOUT | SIDE | MAYBE, F32, E, N),
    TENSOR(dy, IN, DT, M, N), TENSOR(x, IN, DT, M, K), TENSOR(row_weights, IN | SIDE | MAYBE, F32, M),
    FIXED(offsets, IN | SIDE, OPERAND_OFFSETS))
OPERANDS(tanh_fwd, TENSOR(y, OUT, DT, n), TENSOR(x, IN, DT, n))
OPERANDS(tanh_bwd, TENSOR(dx, OUT, DT, n), TENSOR(dy, IN, DT, n), TENSOR(y, IN, DT, n))
OPERANDS(cross_entropy, ROWS(logits, IN, AT(logits_dtype), ld_logits, M, V),
    ROWS(dlogits, OUT | MAYBE, DT, ld_dlogits, M, V), FIXED(targets, IN | SIDE, OPERAND_TARGETS),
    FIXED(step_scale, IN | SIDE | MAYBE | POSITIVE, F32), FIXED(loss_scale, IN | SIDE | MAYBE | POSITIVE, F32),
    TENSOR(row_scale, IN | SIDE | MAYBE | POSITIVE, F32, M), TENSOR(row_losses, OUT | SIDE | MAYBE, F32, M),
    FIXED(teacher_ids, IN | SIDE | MAYBE, OPERAND_TEACHER), TENSOR(teacher_logps, IN | SIDE | MAYBE, F32, M, K),
    FIXED(loss_sum, INOUT | SIDE, F64))
OPERANDS(add, TENSOR(y, OUT, DT, n), TENSOR(a, IN, DT, n), TENSOR(b, IN | MAYBE, DT, n),
    FIXED(factor, IN | SIDE | MAYBE, DT))
OPERANDS(dropout, TENSOR(y, OUT, DT, M, C), TENSOR(x, IN, DT, M, C), FIXED(dropout.tokens, IN | SIDE, OPERAND_NUMBERS))
OPERANDS(cast, TENSOR(dst, OUT, AT(dst_dtype), n), TENSOR(src, IN, AT(src_dtype), n))
OPERANDS(dequantize, TENSOR(out, OUT, DT, rows, cols), TENSOR(codes, IN, BYTE, code_bytes),
    TENSOR(scales, IN | MAYBE, F32, num_scales), TENSOR(scale_codes, IN | MAYBE, BYTE, num_scales),
    TENSOR(nested_scales, IN | SIDE | MAYBE, F32, num_nested),
    {"map", offsetof(ARGS, map), IN | SIDE | MAYBE, F32, {0}, 0, 2 * DYNAMIC_MAP_SIZE, 0},
    FIXED(offset, IN | SIDE | MAYBE | POSITIVE, F32))
OPERANDS(accumulate, SUM(dst, AT(dst_dtype), n), TENSOR(src, IN, AT(src_dtype), n))
OPERANDS(sum_ranks, SUM(out, AT(out_dtype), n), TENSOR(own, IN | SIDE, DT, n), /* instead of its part of the inbox */
    TENSOR(inbox, IN, DT, ranks, n))
OPERANDS(sumsq, TENSOR(x, IN, DT, n), FIXED(out, INOUT | SIDE, F64))
OPERANDS(decide_step, FIXED(reports, IN, OPERAND_REPORTS), FIXED(schedule, IN, OPERAND_SCHEDULE),
    FIXED(state, INOUT, OPERAND_STATE))
OPERANDS(find_nonfinite, TENSOR(x, IN | SIDE, DT, n), FIXED(enabled, IN | SIDE, OPERAND_ENABLED),
    FIXED(index, INOUT | SIDE, OPERAND_FIRST))
OPERANDS(adam, TENSOR(master, INOUT, AT(master_dtype), n), TENSOR(m, INOUT, AT(moment_dtype), n),
    TENSOR(v, INOUT | POSITIVE, AT(moment_dtype), n), TENSOR(grad, IN, AT(grad_dtype), n),
    FIXED(step, IN | SIDE, OPERAND_STATE), TENSOR(param, OUT | MAYBE, AT(param_dtype), n),
    FIXED(segments, IN | SIDE | MAYBE, OPERAND_SEGMENTS))
OPERANDS(adam8, TENSOR(master, INOUT, F32, n), FIXED(m, INOUT | SIDE, OPERAND_MOMENTS),
    FIXED(v, INOUT | SIDE, OPERAND_MOMENTS), TENSOR(grad, IN, AT(grad_dtype), n), FIXED(step, IN | SIDE, OPERAND_STATE),
    TENSOR(param, OUT | MAYBE, AT(param_dtype), n), FIXED(segments, IN | SIDE | MAYBE, OPERAND_SEGMENTS))
OPERANDS(momentum, TENSOR(master, INOUT, F32, n), TENSOR(m, INOUT | MAYBE, F32, n), TENSOR(grad, IN, AT(grad_dtype), n),
    FIXED(step, IN | SIDE, OPERAND_STATE), TENSOR(param, OUT | MAYBE, AT(param_dtype), n),
    FIXED(segments, IN | SIDE | MAYBE, OPERAND_SEGMENTS))
OPERANDS(muon_momentum, TENSOR(m, INOUT, F32, n), TENSOR(grad, IN, AT(grad_dtype), n),
    FIXED(step, IN | SIDE, OPERAND_STATE), TENSOR(update, OUT, BF16, n))
OPERANDS(orthogonalize, TENSOR(x, IN, BF16, rows, cols), TENSOR(y, OUT, BF16, rows, cols),
    TENSOR(product, IN | SIDE, F32, rows, cols), TENSOR(iterate, IN | SIDE, BF16, rows, cols),
    TENSOR(gram, IN | SIDE, BF16, rows, cols), TENSOR(polynomial, IN | SIDE, BF16, rows, cols),
    FIXED(sum, IN | SIDE, F64))
OPERANDS(muon_update, TENSOR(master, INOUT, F32, n), TENSOR(update, IN, BF16, n), FIXED(step, IN | SIDE, OPERAND_STATE),
    TENSOR(param, OUT | MAYBE, AT(param_dtype), n))
/* clang-format on */

struct op_operands op_operands(int op)
{
#define OPERANDS_OF(op) operands_of_##op,
    static struct op_operands (*const tables[])(void) = {OPS_LIST(OPERANDS_OF)};
    return tables[op]();
}

const char *op_name(int op)
{
#define OP_NAME(op) #op,
    static const char *const names[] = {OPS_LIST(OP_NAME)};
    ASSERT(op >= 0 && op < OPS_COUNT);
    return names[op];
}

void op_launch(struct stream *stream, int op, const union op_args *args)
{
#define OP_LAUNCH(name) \
    case OP_##name: stream_device(stream)->ops->name(stream, &args->name); break;
    switch (op) {
        OPS_LIST(OP_LAUNCH)
    default: BUG("op %d", op);
    }
}

static int64_t operand_dim_of(const void *args, int16_t at)
{
    return *(const int64_t *)((const char *)args + at - 1);
}

enum dtype operand_dtype(const struct operand *o, const void *args)
{
    if (o->type > 0) return *(const enum dtype *)((const char *)args + o->type - 1);
    return o->type == OPERAND_F32 ? DTYPE_F32 : o->type == OPERAND_BF16 ? DTYPE_BF16 : DTYPE_COUNT;
}

size_t operand_element(const struct operand *o, const void *args)
{
    const enum dtype dtype = operand_dtype(o, args);
    if (dtype < DTYPE_COUNT) return dtype_size(dtype);
    return o->type == OPERAND_F64     ? sizeof(double)
           : o->type == OPERAND_FIRST ? sizeof(int64_t)
           : o->type == OPERAND_INDEX ? sizeof(int32_t)
           : o->type == OPERAND_BYTE  ? 1
                                      : 0;
}

int64_t operand_rows(const struct operand *o, const void *args)
{
    return o->dims[1] ? operand_dim_of(args, o->dims[0]) : 1;
}

int64_t operand_part(const struct operand *o, const void *args)
{
    size_t last = 0;
    while (last + 1 < COUNT_OF(o->dims) && o->dims[last + 1]) last++;
    return operand_dim_of(args, o->dims[last]) * (o->halves ? o->halves : 2) / 2;
}

int64_t operand_numel(const struct operand *o, const void *args, bool padded)
{
    int64_t numel = 1;
    for (size_t i = 0; i < COUNT_OF(o->dims) && o->dims[i]; i++) numel *= operand_dim_of(args, o->dims[i]);
    if (padded && o->ld && operand_dim_of(args, o->ld))
        return operand_dim_of(args, o->dims[0]) * operand_dim_of(args, o->ld);
    return o->halves ? numel * o->halves / 2 : numel;
}

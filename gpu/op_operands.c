/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/op_operands.h"

/* clang-format off */
#define AT(op, m) (int16_t)(offsetof(struct op##_args, m) + 1)
#define DIMS1(op, a) AT(op, a)
#define DIMS2(op, a, b) AT(op, a), AT(op, b)
#define DIMS3(op, a, b, c) AT(op, a), AT(op, b), AT(op, c)
#define DIMS4(op, a, b, c, d) AT(op, a), AT(op, b), AT(op, c), AT(op, d)
#define DIMS_BY_COUNT(a, b, c, d, name, ...) name
#define DIMS(op, ...) DIMS_BY_COUNT(__VA_ARGS__, DIMS4, DIMS3, DIMS2, DIMS1, )(op, __VA_ARGS__)

/* TENSOR: a shape; ROWS: rows `pitch` apart; TIMES: halves / 2 times a shape; SUM, SUM_ROWS: a result that is added to
 * what is there with `accumulate`; FIXED: one element, or an operand of a fixed meaning. */
#define TENSOR(op, m, use, type, ...) {#m, offsetof(struct op##_args, m), use, type, {DIMS(op, __VA_ARGS__)}, 0, 0, 0}
#define ROWS(op, m, use, type, pitch, ...) {#m, offsetof(struct op##_args, m), use, type, {DIMS(op, __VA_ARGS__)}, AT(op, pitch), 0, 0}
#define TIMES(op, m, use, type, halves, ...) {#m, offsetof(struct op##_args, m), use, type, {DIMS(op, __VA_ARGS__)}, 0, halves, 0}
#define SUM(op, m, type, ...) {#m, offsetof(struct op##_args, m), INOUT, type, {DIMS(op, __VA_ARGS__)}, 0, 0, AT(op, accumulate)}
#define SUM_ROWS(op, m, type, pitch, ...) {#m, offsetof(struct op##_args, m), INOUT, type, {DIMS(op, __VA_ARGS__)}, AT(op, pitch), 0, AT(op, accumulate)}
#define FIXED(op, m, use, type) {#m, offsetof(struct op##_args, m), use, type, {0}, 0, 0, 0}

enum {
    IN = OPERAND_READ, OUT = OPERAND_WRITTEN, INOUT = IN | OUT,
    SIDE = OPERAND_SIDE, MAYBE = OPERAND_MAYBE, POSITIVE = OPERAND_POSITIVE,
    DT = OPERAND_DT, F32 = OPERAND_F32, BF16 = OPERAND_BF16, F64 = OPERAND_F64, INDEX = OPERAND_INDEX, BYTE = OPERAND_BYTE,
    TABLE = 2 * 32 /* rows of a table whose size an op does not know: what the self-test gives it */
};

#define OPERANDS(op) static const struct operand operands_##op[]
OPERANDS(embedding_fwd) = {TENSOR(embedding_fwd, out, OUT, DT, M, C),
    TENSOR(embedding_fwd, tokens, IN | SIDE, INDEX, M), TENSOR(embedding_fwd, positions, IN | SIDE, INDEX, M),
    TIMES(embedding_fwd, wte, IN, DT, TABLE, C), TIMES(embedding_fwd, wpe, IN | MAYBE, DT, TABLE, C),
    TENSOR(embedding_fwd, types, IN | SIDE | MAYBE, INDEX, M), TIMES(embedding_fwd, wse, IN | MAYBE, DT, TABLE, C)};
OPERANDS(embedding_bwd) = {TENSOR(embedding_bwd, dwte, INOUT, F32, V, C),
    TENSOR(embedding_bwd, dwpe, INOUT | MAYBE, F32, P, C), TENSOR(embedding_bwd, dout, IN, DT, M, C),
    TENSOR(embedding_bwd, tokens, IN | SIDE, INDEX, M), TENSOR(embedding_bwd, positions, IN | SIDE, INDEX, M),
    TENSOR(embedding_bwd, types, IN | SIDE | MAYBE, INDEX, M), TENSOR(embedding_bwd, dwse, INOUT | MAYBE, F32, S, C)};
OPERANDS(norm_fwd) = {TENSOR(norm_fwd, y, OUT, DT, M, C), TENSOR(norm_fwd, x_out, OUT | MAYBE, DT, M, C),
    TENSOR(norm_fwd, x, IN, DT, M, C), TENSOR(norm_fwd, delta, IN | MAYBE, DT, M, C),
    TENSOR(norm_fwd, weight, IN | SIDE | POSITIVE, DT, C), TENSOR(norm_fwd, bias, IN | SIDE | MAYBE, DT, C),
    TENSOR(norm_fwd, mean, OUT | SIDE | MAYBE, F32, M), TENSOR(norm_fwd, rstd, OUT | SIDE, F32, M)};
OPERANDS(norm_bwd) = {TENSOR(norm_bwd, dx, OUT, DT, M, C), TENSOR(norm_bwd, dres, IN | MAYBE, DT, M, C),
    TENSOR(norm_bwd, dy, IN, DT, M, C), TENSOR(norm_bwd, x, IN, DT, M, C),
    TENSOR(norm_bwd, weight, IN | SIDE | POSITIVE, DT, C), TENSOR(norm_bwd, mean, IN | SIDE | MAYBE, F32, M),
    TENSOR(norm_bwd, rstd, IN | SIDE | POSITIVE, F32, M), TENSOR(norm_bwd, dweight, INOUT | SIDE, F32, C),
    TENSOR(norm_bwd, dbias, INOUT | SIDE | MAYBE, F32, C), TENSOR(norm_bwd, dx_sums, INOUT | SIDE | MAYBE, F32, C)};
OPERANDS(linear_fwd) = {SUM_ROWS(linear_fwd, y, AT(linear_fwd, y_dtype), ld_y, M, N),
    ROWS(linear_fwd, x, IN, DT, ld_x, M, K), TENSOR(linear_fwd, w, IN, DT, N, K),
    TENSOR(linear_fwd, bias, IN | SIDE | MAYBE, DT, N), TENSOR(linear_fwd, aux, OUT | MAYBE, DT, M, N),
    TIMES(linear_fwd, gated, OUT | MAYBE, DT, 1, M, N)};
OPERANDS(linear_bwd_input) = {SUM_ROWS(linear_bwd_input, dx, DT, ld_dx, M, K),
    ROWS(linear_bwd_input, dy, IN, DT, ld_dy, M, N), TENSOR(linear_bwd_input, w, IN, DT, N, K),
    TENSOR(linear_bwd_input, gelu_aux, IN | MAYBE, DT, M, K),
    TENSOR(linear_bwd_input, dbias, INOUT | SIDE | MAYBE, F32, K),
    TIMES(linear_bwd_input, gate_up, INOUT | MAYBE, DT, 4, M, K)};
OPERANDS(linear_bwd_weight) = {SUM(linear_bwd_weight, dw, AT(linear_bwd_weight, dw_dtype), N, K),
    TENSOR(linear_bwd_weight, dbias, INOUT | SIDE | MAYBE, F32, N), ROWS(linear_bwd_weight, dy, IN, DT, ld_dy, M, N),
    ROWS(linear_bwd_weight, x, IN, DT, ld_x, M, K)};
OPERANDS(head_norm_fwd) = {ROWS(head_norm_fwd, y, OUT, DT, ld_y, M, heads, D),
    ROWS(head_norm_fwd, x, IN, DT, ld_x, M, heads, D), TENSOR(head_norm_fwd, weight, IN | SIDE | POSITIVE, DT, D),
    TENSOR(head_norm_fwd, rstd, OUT | SIDE, F32, M, heads),
    ROWS(head_norm_fwd, gate, IN | MAYBE, DT, ld_gate, M, heads, D),
    TENSOR(head_norm_fwd, positions, IN | SIDE | MAYBE, INDEX, M),
    TIMES(head_norm_fwd, cos_table, IN | SIDE | MAYBE, F32, TABLE, R), TIMES(head_norm_fwd, sin_table, IN | SIDE | MAYBE, F32, TABLE, R)};
OPERANDS(head_norm_bwd) = {ROWS(head_norm_bwd, dx, OUT, DT, ld_dx, M, heads, D),
    ROWS(head_norm_bwd, dy, IN, DT, ld_dy, M, heads, D), ROWS(head_norm_bwd, x, IN, DT, ld_x, M, heads, D),
    TENSOR(head_norm_bwd, weight, IN | SIDE | POSITIVE, DT, D),
    TENSOR(head_norm_bwd, rstd, IN | SIDE | POSITIVE, F32, M, heads),
    TENSOR(head_norm_bwd, dweight, INOUT | SIDE, F32, D), ROWS(head_norm_bwd, gate, IN | MAYBE, DT, ld_gate, M, heads, D),
    ROWS(head_norm_bwd, dgate, OUT | MAYBE, DT, ld_gate, M, heads, D),
    ROWS(head_norm_bwd, dres, IN | MAYBE, DT, ld_dx, M, heads, D)};
OPERANDS(rope) = {ROWS(rope, x, INOUT, DT, ld, M, heads, R), TENSOR(rope, positions, IN | SIDE, INDEX, M),
    TIMES(rope, cos_table, IN | SIDE, F32, TABLE, R), TIMES(rope, sin_table, IN | SIDE, F32, TABLE, R)};
OPERANDS(swap_heads) = {TENSOR(swap_heads, y, OUT, DT, M, outer, inner, D),
    TENSOR(swap_heads, x, IN, DT, M, outer, inner, D)};
OPERANDS(gate_fwd) = {TENSOR(gate_fwd, y, OUT, DT, M, C), ROWS(gate_fwd, x, IN, DT, ld_x, M, C),
    ROWS(gate_fwd, gate, IN, DT, ld_gate, M, C)};
OPERANDS(gate_bwd) = {ROWS(gate_bwd, dx, OUT, DT, ld_x, M, C), ROWS(gate_bwd, dgate, OUT, DT, ld_gate, M, C),
    TENSOR(gate_bwd, dy, IN, DT, M, C), ROWS(gate_bwd, x, IN, DT, ld_x, M, C), ROWS(gate_bwd, gate, IN, DT, ld_gate, M, C)};
#define ATTENTION_INPUTS(op, of) FIXED(op, of seq_start, IN | SIDE, OPERAND_STARTS), \
    ROWS(op, of q, IN, DT, of ld_q, of M, of H, of D), ROWS(op, of k, IN, DT, of ld_k, of M, of KV, of D), \
    ROWS(op, of v, IN, DT, of ld_v, of M, of KV, of D), \
    FIXED(op, of dropout.tokens, IN | SIDE | MAYBE, OPERAND_NUMBERS)
OPERANDS(attention_fwd) = {ATTENTION_INPUTS(attention_fwd, ), ROWS(attention_fwd, out, OUT, DT, ld_o, M, H, D),
    TENSOR(attention_fwd, lse, OUT | SIDE, F32, H, M)};
OPERANDS(attention_bwd) = {ATTENTION_INPUTS(attention_bwd, fwd.),
    ROWS(attention_bwd, fwd.out, IN, DT, fwd.ld_o, fwd.M, fwd.H, fwd.D),
    ROWS(attention_bwd, dout, IN, DT, fwd.ld_o, fwd.M, fwd.H, fwd.D),
    TENSOR(attention_bwd, fwd.lse, IN | SIDE, F32, fwd.H, fwd.M),
    ROWS(attention_bwd, dq, OUT, DT, ld_dq, fwd.M, fwd.H, fwd.D),
    ROWS(attention_bwd, dk, OUT, DT, ld_dk, fwd.M, fwd.KV, fwd.D),
    ROWS(attention_bwd, dv, OUT, DT, ld_dv, fwd.M, fwd.KV, fwd.D)};
OPERANDS(attention_decode) = {ROWS(attention_decode, q, IN | MAYBE, DT, ld_q, M, H, D),
    ROWS(attention_decode, k, IN, DT, ld_k, M, KV, D), ROWS(attention_decode, v, IN, DT, ld_v, M, KV, D),
    TENSOR(attention_decode, k_cache, INOUT, DT, KV, capacity, D),
    TENSOR(attention_decode, v_cache, INOUT, DT, KV, capacity, D),
    ROWS(attention_decode, out, OUT | MAYBE, DT, ld_o, M, H, D),
    TENSOR(attention_decode, sinks, IN | SIDE | MAYBE, DT, H)};
OPERANDS(attention_sink_fwd) = {ROWS(attention_sink_fwd, out, INOUT, DT, ld_o, M, H, D),
    TENSOR(attention_sink_fwd, lse, INOUT | SIDE, F32, H, M), TENSOR(attention_sink_fwd, sinks, IN | SIDE, DT, H)};
OPERANDS(attention_sink_bwd) = {ROWS(attention_sink_bwd, out, IN, DT, ld_o, M, H, D),
    ROWS(attention_sink_bwd, dout, IN, DT, ld_o, M, H, D), TENSOR(attention_sink_bwd, lse, IN | SIDE, F32, H, M),
    TENSOR(attention_sink_bwd, sinks, IN | SIDE, DT, H), TENSOR(attention_sink_bwd, dsinks, INOUT | SIDE, F32, H)};
OPERANDS(causal_conv_fwd) = {FIXED(causal_conv_fwd, seq_start, IN | SIDE, OPERAND_STARTS),
    ROWS(causal_conv_fwd, y, OUT, DT, ld_y, M, C), ROWS(causal_conv_fwd, x, IN, DT, ld_x, M, C),
    TENSOR(causal_conv_fwd, weight, IN | SIDE, DT, C, K), TENSOR(causal_conv_fwd, state, INOUT | MAYBE, DT, num_seqs, K, C)};
OPERANDS(causal_conv_bwd) = {FIXED(causal_conv_bwd, seq_start, IN | SIDE, OPERAND_STARTS),
    ROWS(causal_conv_bwd, dx, OUT, DT, ld_dx, M, C), ROWS(causal_conv_bwd, dy, IN, DT, ld_dy, M, C),
    ROWS(causal_conv_bwd, x, IN, DT, ld_x, M, C), TENSOR(causal_conv_bwd, weight, IN | SIDE, DT, C, K),
    TENSOR(causal_conv_bwd, dweight, INOUT | SIDE, F32, C, K)};
#define DELTA_INPUTS(op, of) FIXED(op, of seq_start, IN | SIDE, OPERAND_STARTS), \
    ROWS(op, of q, IN, DT, of ld_qkv, of M, of Hk, of Dk), ROWS(op, of k, IN, DT, of ld_qkv, of M, of Hk, of Dk), \
    ROWS(op, of v, IN, DT, of ld_qkv, of M, of Hv, of Dv), ROWS(op, of a, IN, DT, of ld_ab, of M, of Hv), \
    ROWS(op, of b, IN, DT, of ld_ab, of M, of Hv), TENSOR(op, of a_log, IN | SIDE, DT, of Hv), \
    TENSOR(op, of dt_bias, IN | SIDE, DT, of Hv)
#define DELTA_ROWS(m, use, pitch, heads, dim) ROWS(delta_rule_bwd, m, use, DT, fwd.pitch, fwd.M, fwd.heads, fwd.dim)
#define DELTA_GATES(m) ROWS(delta_rule_bwd, m, OUT, DT, fwd.ld_ab, fwd.M, fwd.Hv)
OPERANDS(delta_rule_fwd) = {DELTA_INPUTS(delta_rule_fwd, ), ROWS(delta_rule_fwd, out, OUT, DT, ld_o, M, Hv, Dv),
    TENSOR(delta_rule_fwd, state, INOUT | MAYBE, F32, num_seqs, Hv, Dk, Dv)};
OPERANDS(delta_rule_bwd) = {DELTA_INPUTS(delta_rule_bwd, fwd.), DELTA_ROWS(dout, IN, ld_o, Hv, Dv),
    DELTA_ROWS(dq, OUT, ld_qkv, Hk, Dk), DELTA_ROWS(dk, OUT, ld_qkv, Hk, Dk), DELTA_ROWS(dv, OUT, ld_qkv, Hv, Dv),
    DELTA_GATES(da), DELTA_GATES(db), TENSOR(delta_rule_bwd, da_log, INOUT | SIDE, F32, fwd.Hv),
    TENSOR(delta_rule_bwd, ddt_bias, INOUT | SIDE, F32, fwd.Hv)};
OPERANDS(swiglu_fwd) = {TENSOR(swiglu_fwd, h, OUT, DT, M, F), TIMES(swiglu_fwd, gate_up, IN, DT, 4, M, F)};
OPERANDS(swiglu_bwd) = {TIMES(swiglu_bwd, dgate_up, OUT, DT, 4, M, F), TENSOR(swiglu_bwd, dh, IN, DT, M, F),
    TIMES(swiglu_bwd, gate_up, IN, DT, 4, M, F)};
OPERANDS(route) = {TENSOR(route, logits, IN, DT, M, E), TENSOR(route, bias, IN | SIDE | MAYBE, F32, E),
    TENSOR(route, probs, OUT, F32, M, E), TENSOR(route, experts, OUT, INDEX, M, k),
    TENSOR(route, weights, OUT, F32, M, k), TENSOR(route, lse, OUT | SIDE | MAYBE, F32, M),
    TENSOR(route, counts, INOUT | SIDE | MAYBE, INDEX, E),
    TENSOR(route, prob_sums, INOUT | SIDE | MAYBE, F64, E)};
OPERANDS(sum_experts) = {TENSOR(sum_experts, counts, IN, INDEX, E), TENSOR(sum_experts, prob_sums, IN, F64, E),
    FIXED(sum_experts, aux_sum, INOUT, F64), TENSOR(sum_experts, loads, INOUT, F64, E)};
OPERANDS(route_bwd) = {TENSOR(route_bwd, dlogits, OUT, DT, M, E), TENSOR(route_bwd, probs, IN | POSITIVE, F32, M, E),
    TENSOR(route_bwd, weights, IN, F32, M, k), TENSOR(route_bwd, dweights, IN, F32, M, k),
    TENSOR(route_bwd, experts, IN, INDEX, M, k),
    TENSOR(route_bwd, counts, IN | SIDE | MAYBE, INDEX, E), TENSOR(route_bwd, lse, IN | SIDE | MAYBE, F32, M),
    FIXED(route_bwd, loss_scale, IN | SIDE | MAYBE | POSITIVE, F32)};
OPERANDS(permute_experts) = {TENSOR(permute_experts, experts, IN, INDEX, M, k),
    FIXED(permute_experts, offsets, OUT | SIDE, OPERAND_OFFSETS), TENSOR(permute_experts, places, OUT, INDEX, M, k)};
OPERANDS(gather_tokens) = {TENSOR(gather_tokens, xe, OUT, DT, M, k, C), TENSOR(gather_tokens, x, IN, DT, M, C),
    TENSOR(gather_tokens, places, IN | SIDE, INDEX, M, k)};
OPERANDS(combine_tokens) = {SUM(combine_tokens, y, DT, M, C), TENSOR(combine_tokens, ye, IN, DT, M, k, C),
    TENSOR(combine_tokens, weights, IN | SIDE | MAYBE, F32, M, k),
    TENSOR(combine_tokens, places, IN | SIDE | MAYBE, INDEX, M, k)};
OPERANDS(scale_rows_bwd) = {TENSOR(scale_rows_bwd, dx, OUT, DT, M, C), TENSOR(scale_rows_bwd, dy, IN, DT, M, C),
    TENSOR(scale_rows_bwd, x, IN, DT, M, C), TENSOR(scale_rows_bwd, weights, IN | SIDE, F32, M),
    TENSOR(scale_rows_bwd, dweights, OUT | SIDE, F32, M)};
OPERANDS(combine_bias_bwd) = {TENSOR(combine_bias_bwd, dweights, INOUT, F32, M, k),
    TENSOR(combine_bias_bwd, bias, IN | SIDE, DT, E, C), TENSOR(combine_bias_bwd, dy, IN, DT, M, C),
    TENSOR(combine_bias_bwd, experts, IN, INDEX, M, k)};
OPERANDS(experts_swiglu_bwd) = {TIMES(experts_swiglu_bwd, dgate_up, OUT, DT, 4, M, F),
    TENSOR(experts_swiglu_bwd, h, OUT, DT, M, F), TENSOR(experts_swiglu_bwd, dh, IN, DT, M, F),
    TIMES(experts_swiglu_bwd, gate_up, IN, DT, 4, M, F), TENSOR(experts_swiglu_bwd, weights, IN | SIDE, F32, M),
    TENSOR(experts_swiglu_bwd, dweights, OUT | SIDE, F32, M), TENSOR(experts_swiglu_bwd, places, IN | SIDE, INDEX, M),
    TENSOR(experts_swiglu_bwd, row_weights, OUT | SIDE | MAYBE, F32, M)};
OPERANDS(grouped_linear_fwd) = {SUM(grouped_linear_fwd, y, DT, M, N), TENSOR(grouped_linear_fwd, x, IN, DT, M, K),
    TENSOR(grouped_linear_fwd, w, IN, DT, E, N, K), TENSOR(grouped_linear_fwd, bias, IN | SIDE | MAYBE, DT, E, N),
    FIXED(grouped_linear_fwd, offsets, IN | SIDE, OPERAND_OFFSETS)};
OPERANDS(grouped_linear_bwd_input) = {SUM(grouped_linear_bwd_input, dx, DT, M, K),
    TENSOR(grouped_linear_bwd_input, dy, IN, DT, M, N), TENSOR(grouped_linear_bwd_input, w, IN, DT, E, N, K),
    FIXED(grouped_linear_bwd_input, offsets, IN | SIDE, OPERAND_OFFSETS)};
OPERANDS(grouped_linear_bwd_weight) = {
    SUM(grouped_linear_bwd_weight, dw, AT(grouped_linear_bwd_weight, dw_dtype), E, N, K),
    TENSOR(grouped_linear_bwd_weight, dbias, INOUT | SIDE | MAYBE, F32, E, N),
    TENSOR(grouped_linear_bwd_weight, dy, IN, DT, M, N), TENSOR(grouped_linear_bwd_weight, x, IN, DT, M, K),
    TENSOR(grouped_linear_bwd_weight, row_weights, IN | SIDE | MAYBE, F32, M),
    FIXED(grouped_linear_bwd_weight, offsets, IN | SIDE, OPERAND_OFFSETS)};
OPERANDS(tanh_fwd) = {TENSOR(tanh_fwd, y, OUT, DT, n), TENSOR(tanh_fwd, x, IN, DT, n)};
OPERANDS(tanh_bwd) = {TENSOR(tanh_bwd, dx, OUT, DT, n), TENSOR(tanh_bwd, dy, IN, DT, n),
    TENSOR(tanh_bwd, y, IN, DT, n)};
OPERANDS(cross_entropy) = {ROWS(cross_entropy, logits, IN, AT(cross_entropy, logits_dtype), ld_logits, M, V),
    ROWS(cross_entropy, dlogits, OUT | MAYBE, DT, ld_dlogits, M, V),
    FIXED(cross_entropy, targets, IN | SIDE, OPERAND_TARGETS),
    FIXED(cross_entropy, step_scale, IN | SIDE | MAYBE | POSITIVE, F32),
    FIXED(cross_entropy, loss_scale, IN | SIDE | MAYBE | POSITIVE, F32),
    TENSOR(cross_entropy, row_scale, IN | SIDE | MAYBE | POSITIVE, F32, M),
    TENSOR(cross_entropy, row_losses, OUT | SIDE | MAYBE, F32, M),
    FIXED(cross_entropy, teacher_ids, IN | SIDE | MAYBE, OPERAND_TEACHER),
    TENSOR(cross_entropy, teacher_logps, IN | SIDE | MAYBE, F32, M, K),
    FIXED(cross_entropy, loss_sum, INOUT | SIDE, F64)};
OPERANDS(add) = {TENSOR(add, y, OUT, DT, n), TENSOR(add, a, IN, DT, n), TENSOR(add, b, IN | MAYBE, DT, n),
    FIXED(add, factor, IN | SIDE | MAYBE, DT)};
OPERANDS(dropout) = {TENSOR(dropout, y, OUT, DT, M, C), TENSOR(dropout, x, IN, DT, M, C),
    FIXED(dropout, dropout.tokens, IN | SIDE, OPERAND_NUMBERS)};
OPERANDS(cast) = {TENSOR(cast, dst, OUT, AT(cast, dst_dtype), n), TENSOR(cast, src, IN, AT(cast, src_dtype), n)};
OPERANDS(dequantize) = {TENSOR(dequantize, out, OUT, DT, rows, cols), TENSOR(dequantize, codes, IN, BYTE, code_bytes),
    TENSOR(dequantize, scales, IN | MAYBE, F32, num_scales),
    TENSOR(dequantize, scale_codes, IN | MAYBE, BYTE, num_scales),
    TENSOR(dequantize, nested_scales, IN | SIDE | MAYBE, F32, num_nested),
    {"map", offsetof(struct dequantize_args, map), IN | SIDE | MAYBE, F32, {0}, 0, 2 * DYNAMIC_MAP_SIZE, 0},
    FIXED(dequantize, offset, IN | SIDE | MAYBE | POSITIVE, F32)};
OPERANDS(accumulate) = {SUM(accumulate, dst, AT(accumulate, dst_dtype), n),
    TENSOR(accumulate, src, IN, AT(accumulate, src_dtype), n)};
OPERANDS(sum_ranks) = {SUM(sum_ranks, out, AT(sum_ranks, out_dtype), n),
    TENSOR(sum_ranks, own, IN | SIDE, DT, n), /* instead of its part of the inbox */
    TENSOR(sum_ranks, inbox, IN, DT, ranks, n)};
OPERANDS(sumsq) = {TENSOR(sumsq, x, IN, DT, n), FIXED(sumsq, out, INOUT | SIDE, F64)};
OPERANDS(decide_step) = {FIXED(decide_step, reports, IN, OPERAND_REPORTS),
    FIXED(decide_step, schedule, IN, OPERAND_SCHEDULE), FIXED(decide_step, state, INOUT, OPERAND_STATE)};
OPERANDS(find_nonfinite) = {TENSOR(find_nonfinite, x, IN | SIDE, DT, n),
    FIXED(find_nonfinite, enabled, IN | SIDE, OPERAND_ENABLED),
    FIXED(find_nonfinite, index, INOUT | SIDE, OPERAND_FIRST)};
OPERANDS(adam) = {TENSOR(adam, master, INOUT, AT(adam, master_dtype), n),
    TENSOR(adam, m, INOUT, AT(adam, moment_dtype), n), TENSOR(adam, v, INOUT | POSITIVE, AT(adam, moment_dtype), n),
    TENSOR(adam, grad, IN, AT(adam, grad_dtype), n), FIXED(adam, step, IN | SIDE, OPERAND_STATE),
    TENSOR(adam, param, OUT | MAYBE, AT(adam, param_dtype), n),
    FIXED(adam, segments, IN | SIDE | MAYBE, OPERAND_SEGMENTS)};
OPERANDS(adam8) = {TENSOR(adam8, master, INOUT, F32, n), FIXED(adam8, m, INOUT | SIDE, OPERAND_MOMENTS),
    FIXED(adam8, v, INOUT | SIDE, OPERAND_MOMENTS), TENSOR(adam8, grad, IN, AT(adam8, grad_dtype), n),
    FIXED(adam8, step, IN | SIDE, OPERAND_STATE), TENSOR(adam8, param, OUT | MAYBE, AT(adam8, param_dtype), n),
    FIXED(adam8, segments, IN | SIDE | MAYBE, OPERAND_SEGMENTS)};
OPERANDS(momentum) = {TENSOR(momentum, master, INOUT, F32, n), TENSOR(momentum, m, INOUT | MAYBE, F32, n),
    TENSOR(momentum, grad, IN, AT(momentum, grad_dtype), n), FIXED(momentum, step, IN | SIDE, OPERAND_STATE),
    TENSOR(momentum, param, OUT | MAYBE, AT(momentum, param_dtype), n),
    FIXED(momentum, segments, IN | SIDE | MAYBE, OPERAND_SEGMENTS)};
OPERANDS(muon_momentum) = {TENSOR(muon_momentum, m, INOUT, F32, n),
    TENSOR(muon_momentum, grad, IN, AT(muon_momentum, grad_dtype), n),
    FIXED(muon_momentum, step, IN | SIDE, OPERAND_STATE), TENSOR(muon_momentum, update, OUT, BF16, n)};
OPERANDS(orthogonalize) = {TENSOR(orthogonalize, x, IN, BF16, rows, cols),
    TENSOR(orthogonalize, y, OUT, BF16, rows, cols), TENSOR(orthogonalize, product, IN | SIDE, F32, rows, cols),
    TENSOR(orthogonalize, iterate, IN | SIDE, BF16, rows, cols),
    TENSOR(orthogonalize, gram, IN | SIDE, BF16, rows, cols),
    TENSOR(orthogonalize, polynomial, IN | SIDE, BF16, rows, cols), FIXED(orthogonalize, sum, IN | SIDE, F64)};
OPERANDS(muon_update) = {TENSOR(muon_update, master, INOUT, F32, n), TENSOR(muon_update, update, IN, BF16, n),
    FIXED(muon_update, step, IN | SIDE, OPERAND_STATE),
    TENSOR(muon_update, param, OUT | MAYBE, AT(muon_update, param_dtype), n)};
/* clang-format on */

#define OPERANDS_OF(op) {operands_##op, COUNT_OF(operands_##op)},
const struct op_operands op_operands[OPS_COUNT] = {OPS_LIST(OPERANDS_OF)};

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

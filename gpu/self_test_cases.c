/* SPDX-License-Identifier: Apache-2.0 */
/* self_test_cases.c: the first cases of an op have rows that fit into vectors of 16 bytes and a few threads, the later
 * ones what other kernels, or other parts of the same one, compute: longer rows, rows that vectors do not divide,
 * tails, tiles after the first. Their numbers follow from the sizes in gpu/cuda/ops/ (ops_cuda_*.cu). */
#include "gpu/self_test_cases.h"

enum { ONCE = 1 << DTYPE_F32, NOT_F16 = ONCE | 1 << DTYPE_BF16, HALVES = 1 << DTYPE_BF16 | 1 << DTYPE_F16 };
enum { M = 40, C = 64, F = 96, H = 4, KV = 2, D = 16, V = 101, P = 32, N = 72 };
enum {
    MANY = 100,            /* rows of which column sums take two ranges */
    GAP = 8,               /* elements between the end of a row and the next one, where an op has a distance of rows */
    COUNT = 1003,          /* no whole number of vectors */
    LONG = 9001,           /* elements of which several blocks search or add up a part */
    V_ROW = 104,           /* elements between rows of logits */
    LONG_ROW = 240 << 10,  /* bytes, more than a block keeps */
    WIDE = LONG_ROW / 4,   /* elements of such a row in fp32 … */
    NARROW = LONG_ROW / 2, /* … and in 16 bits */
};
#define SAME SELF_TEST_SAME
#define HERE ((void *)(uintptr_t)64) /* there is such an operand */

/* clang-format off */
#define CASES(op) static const struct self_test_case cases_##op[]
CASES(embedding_fwd) = {{.args.embedding_fwd = {.dtype = SAME, .M = M, .C = C, .scale = 1.5f}},
    {.args.embedding_fwd = {.dtype = SAME, .M = M, .C = C, .scale = 1.5f, .wpe = HERE, .types = HERE, .wse = HERE}}};

/* Tokens by one digit; then by two, and with types. */
#define TABLES .dtype = SAME, .M = M, .C = C, .P = P, .scale = 1
CASES(embedding_bwd) = {{.args.embedding_bwd = {TABLES, .V = V, .padding = -1}},
    {.args.embedding_bwd = {TABLES, .V = 600, .padding = 7, .S = 3, .accumulate_wte = true, .dwpe = HERE, .types = HERE, .dwse = HERE}}};

/* The last ones: rows of odd lengths; several warps to a row, and rows to a block; rows that are too long to be
 * held, in elements and in vectors. */
#define RMS_FWD .dtype = SAME, .kind = NORM_RMS, .eps = 1e-5f
#define LAYER_FWD .dtype = SAME, .kind = NORM_LAYER, .eps = 1e-5f, .x_out = HERE, .delta = HERE, .delta_scale = 0.5f, \
    .bias = HERE, .mean = HERE
CASES(norm_fwd) = {{.args.norm_fwd = {RMS_FWD, .M = M, .C = C}}, {.args.norm_fwd = {LAYER_FWD, .M = M, .C = C}},
    {.args.norm_fwd = {LAYER_FWD, .M = 5, .C = C + 3}},
    {.args.norm_fwd = {RMS_FWD, .M = 5, .C = 1544, .weight_offset = 1}},
    {.args.norm_fwd = {LAYER_FWD, .M = 3, .C = 2051, .weight_offset = 1}},
    {.args.norm_fwd = {LAYER_FWD, .M = 2, .C = 16392}}};

/* The last ones: several warps to a row; rows that threads hold two vectors of, without and with sums of dx; rows too
 * long to be held, in elements and in vectors; in fp32 alone, more odd rows than are summed side by side. */
#define RMS_BWD .dtype = SAME, .kind = NORM_RMS
#define LAYER_BWD .dtype = SAME, .kind = NORM_LAYER, .dres = HERE, .mean = HERE, .dbias = HERE, .accumulate = true
#define LAYER_BWD_SUMS LAYER_BWD, .dx_sums = HERE, .accumulate_sums = true
CASES(norm_bwd) = {{.args.norm_bwd = {RMS_BWD, .M = M, .C = C}}, {.args.norm_bwd = {LAYER_BWD, .M = M, .C = C}},
    {.args.norm_bwd = {LAYER_BWD_SUMS, .M = 5, .C = 776, .weight_offset = 1}, .rounded = true},
    {.args.norm_bwd = {RMS_BWD, .M = 5, .C = 4104, .weight_offset = 1}},
    {.args.norm_bwd = {LAYER_BWD_SUMS, .M = 5, .C = 4104}, .rounded = true},
    {.args.norm_bwd = {RMS_BWD, .M = 3, .C = 2051, .weight_offset = 1, .dx_sums = HERE}, .rounded = true},
    {.args.norm_bwd = {LAYER_BWD_SUMS, .M = 3, .C = 6152}, .rounded = true},
    {.args.norm_bwd = {LAYER_BWD_SUMS, .M = 515, .C = 257}, .dtypes = ONCE, .rounded = true}};

/* Plain, bias, GELU, both with the other layout of weights, SwiGLU or in fp16 GeGLU; GELU by erf with a bias, whose two
 * forms differ in fp32 by less than what is allowed otherwise; added; logits: fp32, in rows apart. */
#define LINEAR_FWD .dtype = SAME, .y_dtype = SAME, .M = M, .N = N, .K = C
CASES(linear_fwd) = {{.args.linear_fwd = {LINEAR_FWD}}, {.args.linear_fwd = {LINEAR_FWD, .bias = HERE}},
    {.args.linear_fwd = {LINEAR_FWD, .gelu = true, .aux = HERE}},
    {.args.linear_fwd = {LINEAR_FWD, .weights_in_out = true, .bias = HERE, .gelu = true, .aux = HERE}},
    {.args.linear_fwd = {LINEAR_FWD, .gated = HERE}, .dtypes = NOT_F16},
    {.args.linear_fwd = {LINEAR_FWD, .gated = HERE, .gated_gelu = true}, .dtypes = 1 << DTYPE_F16},
    {.args.linear_fwd = {LINEAR_FWD, .bias = HERE, .gelu = true, .aux = HERE, .gelu_erf = true}, .dtypes = ONCE, .tolerance = 1e-4},
    {.args.linear_fwd = {LINEAR_FWD, .bias = HERE, .gelu = true, .aux = HERE, .gelu_erf = true}, .dtypes = HALVES},
    {.args.linear_fwd = {LINEAR_FWD, .accumulate = true, .bias = HERE, .gelu = true, .aux = HERE}},
    {.args.linear_fwd = {LINEAR_FWD, .accumulate = true, .ld_y = N + GAP}},
    {.args.linear_fwd = {.dtype = SAME, .y_dtype = DTYPE_F32, .M = M, .N = N, .K = C, .ld_y = N + GAP}}};

/* Plain, added, added between other columns, with GELU's slope, added and with it, with SwiGLU's or in fp16 GeGLU's;
 * with bias gradients: alone, with GELU's slope, with that by erf, between other columns. */
#define LINEAR_BWD_INPUT .dtype = SAME, .M = M, .N = N, .K = C
#define LINEAR_BWD_SUMS .dtype = SAME, .M = MANY, .N = N, .K = C, .ld_dy = N + GAP, .dbias = HERE
CASES(linear_bwd_input) = {{.args.linear_bwd_input = {LINEAR_BWD_INPUT}},
    {.args.linear_bwd_input = {LINEAR_BWD_INPUT, .accumulate = true}},
    {.args.linear_bwd_input = {LINEAR_BWD_INPUT, .weights_in_out = true, .accumulate = true, .ld_dx = C + GAP}},
    {.args.linear_bwd_input = {LINEAR_BWD_INPUT, .weights_in_out = true, .gelu_aux = HERE}},
    {.args.linear_bwd_input = {LINEAR_BWD_INPUT, .accumulate = true, .gelu_aux = HERE}},
    {.args.linear_bwd_input = {LINEAR_BWD_INPUT, .gate_up = HERE}, .dtypes = NOT_F16},
    {.args.linear_bwd_input = {LINEAR_BWD_INPUT, .gate_up = HERE, .gated_gelu = true}, .dtypes = 1 << DTYPE_F16},
    {.args.linear_bwd_input = {LINEAR_BWD_SUMS}, .rounded = true},
    {.args.linear_bwd_input = {LINEAR_BWD_SUMS, .gelu_aux = HERE, .accumulate_dbias = true}, .rounded = true},
    {.args.linear_bwd_input = {LINEAR_BWD_SUMS, .gelu_aux = HERE, .accumulate_dbias = true, .gelu_erf = true}, .dtypes = ONCE, .tolerance = 1e-4},
    {.args.linear_bwd_input = {LINEAR_BWD_SUMS, .gelu_aux = HERE, .accumulate_dbias = true, .gelu_erf = true}, .dtypes = HALVES, .rounded = true},
    {.args.linear_bwd_input = {LINEAR_BWD_SUMS, .ld_dx = C + GAP}, .rounded = true}};

/* The last ones: columns that are not summed, and more rows, with something between them; dw in bf16; rows of x
 * apart. */
#define LINEAR_BWD_WEIGHT .dtype = SAME, .M = M, .N = N, .K = C
#define NULL_COLUMNS .dtype = SAME, .M = MANY, .N = N, .K = C, .ld_dy = N + GAP, .null_first = 16, .null_count = 24
CASES(linear_bwd_weight) = {{.args.linear_bwd_weight = {LINEAR_BWD_WEIGHT}},
    {.args.linear_bwd_weight = {LINEAR_BWD_WEIGHT, .weights_in_out = true, .dbias = HERE}},
    {.args.linear_bwd_weight = {LINEAR_BWD_WEIGHT, .dbias = HERE, .accumulate = true, .accumulate_dbias = true}},
    {.args.linear_bwd_weight = {NULL_COLUMNS, .dbias = HERE, .accumulate = true, .accumulate_dbias = true}},
    {.args.linear_bwd_weight = {LINEAR_BWD_WEIGHT, .dw_dtype = DTYPE_BF16, .dbias = HERE, .accumulate = true}, .dtypes = 1 << DTYPE_BF16},
    {.args.linear_bwd_weight = {LINEAR_BWD_WEIGHT, .ld_x = C + GAP}}};

/* Then with an offset of the weights, and rows with something between them. */
#define HEAD_FWD(ld) .dtype = SAME, .M = M, .heads = H, .D = D, .ld_x = ld, .ld_y = ld, .eps = 1e-6f
#define HEAD_TURNED .positions = HERE, .cos_table = HERE, .sin_table = HERE
CASES(head_norm_fwd) = {{.args.head_norm_fwd = {HEAD_FWD(H * D)}},
    {.args.head_norm_fwd = {HEAD_FWD(H * D + GAP), .weight_offset = 1}},
    {.args.head_norm_fwd = {HEAD_FWD(H * D), .gate = HERE, .ld_gate = H * D + GAP}},
    {.args.head_norm_fwd = {HEAD_FWD(H * D), HEAD_TURNED, .R = D - 4}},
    {.args.head_norm_fwd = {.dtype = SAME, .M = M, .heads = H, .D = 128, .ld_x = H * 128, .ld_y = H * 128, HEAD_TURNED, .R = 128}}};
#define HEAD_BWD(ld) .dtype = SAME, .M = M, .heads = H, .D = D, .ld_x = ld, .ld_dy = ld, .ld_dx = ld
CASES(head_norm_bwd) = {{.args.head_norm_bwd = {HEAD_BWD(H * D)}},
    {.args.head_norm_bwd = {HEAD_BWD(H * D + GAP), .weight_offset = 1, .accumulate = true}},
    {.args.head_norm_bwd = {HEAD_BWD(H * D + GAP), .dres = HERE}},
    {.args.head_norm_bwd = {HEAD_BWD(H * D), .gate = HERE, .dgate = HERE, .ld_gate = H * D + GAP}}};

/* Whole heads; backwards, a part of each head, in rows with something between them; in pairs. */
CASES(rope) = {{.args.rope = {.dtype = SAME, .M = M, .heads = H, .D = D, .ld = H * D, .R = D}},
    {.args.rope = {.dtype = SAME, .M = M, .heads = H, .D = D, .ld = H * D + GAP, .R = D - 4, .inverse = true}},
    {.args.rope = {.dtype = SAME, .M = M, .heads = H, .D = D, .ld = H * D, .R = D, .pairs = true}}};
CASES(swap_heads) = {{.args.swap_heads = {.dtype = SAME, .M = M, .outer = H, .inner = 3, .D = D}}};

/* Two sequences. Causal; with a window; looking both ways; with dropout; several tiles of keys and larger heads, with a
 * soft cap; in bf16 alone, heads that are larger still and no whole number of vectors; the largest heads. */
#define ATTENTION(first, tokens, heads, kv, size) .dtype = SAME, .M = tokens, .H = heads, .KV = kv, .D = size, \
    .ld_q = (heads) * (size), .ld_k = (kv) * (size), .ld_v = (kv) * (size), .ld_o = (heads) * (size), .scale = 0.25f, \
    .num_seqs = 2, .max_seq = first
#define ATTENTION_CASES(op, MORE) {.args.op = {ATTENTION(23, M, H, KV, D)}, MORE(H, KV, D)}, \
    {.args.op = {ATTENTION(23, M, H, KV, D), .window = 5}, MORE(H, KV, D)}, \
    {.args.op = {ATTENTION(23, M, H, KV, D), .bidirectional = true}, MORE(H, KV, D)}, \
    {.args.op = {ATTENTION(23, M, H, KV, D), .dropout.tokens = HERE}, MORE(H, KV, D)}, \
    {.args.op = {ATTENTION(70, 75, 1, 1, 8 * D), .softcap = 2}, MORE(1, 1, 8 * D)}, \
    {.args.op = {ATTENTION(33, 36, 1, 1, 12 * D - 2)}, MORE(1, 1, 12 * D - 2) .dtypes = 1 << DTYPE_BF16}, \
    {.args.op = {ATTENTION(33, 36, 2, 1, CUDA_MAX_HEAD_DIM)}, MORE(2, 1, CUDA_MAX_HEAD_DIM) .dtypes = NOT_F16}
#define NO_MORE(heads, kv, size)
#define GRADIENTS(heads, kv, size) .args.attention_bwd.ld_dq = (heads) * (size), \
    .args.attention_bwd.ld_dk = (kv) * (size), .args.attention_bwd.ld_dv = (kv) * (size),
CASES(attention_fwd) = {ATTENTION_CASES(attention_fwd, NO_MORE)};
CASES(attention_bwd) = {ATTENTION_CASES(attention_bwd.fwd, GRADIENTS)};

/* Plain; with a window and sinks; with a soft cap; storing alone; larger heads, and more keys than the warps take at a time; the
 * largest heads. */
#define DECODE(size, held, room) .dtype = SAME, .M = 3, .H = H, .KV = KV, .D = size, .ld_q = H * (size), \
    .ld_o = H * (size), .ld_k = KV * (size), .ld_v = KV * (size), .scale = 0.25f, .start = held, .capacity = room
CASES(attention_decode) = {{.args.attention_decode = {DECODE(D, 21, 29), .q = HERE, .out = HERE}},
    {.args.attention_decode = {DECODE(D, 21, 29), .q = HERE, .out = HERE, .window = 5, .sinks = HERE}},
    {.args.attention_decode = {DECODE(D, 21, 29), .q = HERE, .out = HERE, .softcap = 2}},
    {.args.attention_decode = {DECODE(D, 21, 29)}},
    {.args.attention_decode = {DECODE(4 * D + 8, 84, 116), .q = HERE, .out = HERE}},
    {.args.attention_decode = {DECODE(CUDA_MAX_HEAD_DIM, 21, 29), .q = HERE, .out = HERE}}};

/* Vectors; none, and more rows than a block has threads. */
#define SINKS(rows, size, ld) .dtype = SAME, .M = rows, .H = H, .D = size, .ld_o = ld
CASES(attention_sink_fwd) = {{.args.attention_sink_fwd = {SINKS(M, D, H * D + GAP)}},
    {.args.attention_sink_fwd = {SINKS(300, D - 1, H * D)}}};
CASES(attention_sink_bwd) = {{.args.attention_sink_bwd = {SINKS(M, D, H * D + GAP)}},
    {.args.attention_sink_bwd = {SINKS(300, D - 1, H * D), .accumulate = true}}};

/* Two sequences. Channels that vectors do not divide, without and with a state; rows with something between them. */
#define CONV .dtype = SAME, .M = M, .num_seqs = 2
CASES(causal_conv_fwd) = {{.args.causal_conv_fwd = {CONV, .C = C, .K = 4, .ld_x = C, .ld_y = C}},
    {.args.causal_conv_fwd = {CONV, .C = C + 3, .K = 3, .ld_x = C + 3, .ld_y = C + GAP, .state = HERE}}};
CASES(causal_conv_bwd) = {{.args.causal_conv_bwd = {CONV, .C = C, .K = 4, .ld_x = C, .ld_dy = C, .ld_dx = C}},
    {.args.causal_conv_bwd = {CONV, .C = C + 3, .K = 3, .ld_x = C + 3, .ld_dy = C + GAP, .ld_dx = C + GAP, .accumulate = true}}};

/* Two sequences, one of several chunks; heads that share keys, of other sizes, with a state. */
#define DELTA(tokens, first, hk, hv, dk, dv) .dtype = SAME, .M = tokens, .Hk = hk, .Hv = hv, .Dk = dk, .Dv = dv, \
    .ld_qkv = (2 * (hk) * (dk)) + (hv) * (dv), .ld_ab = (hv) + GAP, .ld_o = (hv) * (dv), .num_seqs = 2, .max_seq = first
#define DELTA_CASES(op) {.args.op = {DELTA(M, 23, 2, 2, D, D)}}, {.args.op = {DELTA(150, 140, 1, 2, D + 4, 2 * D)}}
CASES(delta_rule_fwd) = {DELTA_CASES(delta_rule_fwd),
    {.args.delta_rule_fwd = {DELTA(M, 23, 2, 4, D, D + 3), .state = HERE}}};
CASES(delta_rule_bwd) = {DELTA_CASES(delta_rule_bwd.fwd),
    {.args.delta_rule_bwd = {{DELTA(M, 23, 2, 4, D, D + 3)}, .accumulate = true}}};

/* With a limit; interleaved; without. */
#define LIMITED .dtype = SAME, .M = M, .limit = 1, .alpha = 1.7f
CASES(swiglu_fwd) = {{.args.swiglu_fwd = {LIMITED, .F = F}, .scale = 2},
    {.args.swiglu_fwd = {LIMITED, .F = F + 3, .interleaved = true}, .scale = 2},
    {.args.swiglu_fwd = {.dtype = SAME, .M = M, .F = F}, .scale = 2},
    {.args.swiglu_fwd = {.dtype = SAME, .M = M, .F = F, .gelu = true}, .scale = 2}};
CASES(swiglu_bwd) = {{.args.swiglu_bwd = {.dtype = SAME, .M = M, .F = F}, .scale = 2},
    {.args.swiglu_bwd = {.dtype = SAME, .M = M, .F = F, .gelu = true}, .scale = 2}};
CASES(gate_fwd) = {{.args.gate_fwd = {.dtype = SAME, .M = M, .C = F, .ld_gate = F + GAP}, .scale = 2},
    {.args.gate_fwd = {.dtype = SAME, .M = M, .C = F, .ld_gate = F, .ld_x = F + GAP, .gelu = true}, .scale = 2}};
CASES(gate_bwd) = {{.args.gate_bwd = {.dtype = SAME, .M = M, .C = F, .ld_gate = F + GAP}, .scale = 2},
    {.args.gate_bwd = {.dtype = SAME, .M = M, .C = F, .ld_gate = F, .ld_x = F + GAP, .gelu = true}, .scale = 2}};
/* Softmax; normalized, with sums of tokens that count; sigmoid with groups and a bias; more experts, with a bias. */
#define ROUTE .dtype = SAME, .M = M, .scale = 1.5f
#define ROUTE_SUMS .counted = M - 9, .counts = HERE, .lse = HERE
CASES(route) = {{.args.route = {ROUTE, .E = 10, .k = 3}, .scale = 3},
    {.args.route = {ROUTE, .E = 70, .k = 5, .normalize = true, ROUTE_SUMS, .prob_sums = HERE}, .scale = 3},
    {.args.route = {ROUTE, .E = 96, .k = 5, .sigmoid = true, .normalize = true, .groups = 8, .top_groups = 3, .bias = HERE}, .scale = 3},
    {.args.route = {ROUTE, .E = 300, .k = 4, .bias = HERE}}};
CASES(route_bwd) = {{.args.route_bwd = {ROUTE, .E = 10, .k = 3}},
    {.args.route_bwd = {ROUTE, .E = 71, .k = 5, .normalize = true, ROUTE_SUMS, .loss_scale = HERE, .aux_scale = 0.1f, .z_scale = 20}},
    {.args.route_bwd = {ROUTE, .E = 300, .k = 5, .sigmoid = true, .normalize = true}}};
CASES(sum_experts) = {{.args.sum_experts = {.E = 70, .scale = 0.5}, .dtypes = ONCE}};
CASES(permute_experts) = {{.args.permute_experts = {.M = M, .E = 10, .k = 3}, .dtypes = ONCE},
    {.args.permute_experts = {.M = 1000, .E = ROUTE_MAX_EXPERTS, .k = 5}, .dtypes = ONCE}};
CASES(gather_tokens) = {{.args.gather_tokens = {SAME, .M = M, .k = 3, .C = C}}, {.args.gather_tokens = {SAME, .M = M, .k = 2, .C = C + 3}}};
CASES(combine_tokens) = {{.args.combine_tokens = {SAME, .M = M, .k = 3, .C = C, .weights = HERE, .places = HERE}},
    {.args.combine_tokens = {SAME, .M = M, .k = 2, .C = C + 3, .places = HERE, .accumulate = true}},
    {.args.combine_tokens = {SAME, .M = M, .k = 1, .C = C}}};
CASES(scale_rows_bwd) = {{.args.scale_rows_bwd = {SAME, .M = M, .C = C}}, {.args.scale_rows_bwd = {SAME, .M = M, .C = C + 3}}};
CASES(combine_bias_bwd) = {{.args.combine_bias_bwd = {SAME, .M = M, .k = 3, .E = 10, .C = C}}};
CASES(experts_swiglu_bwd) = {{.args.experts_swiglu_bwd = {LIMITED, .F = F, .row_weights = HERE}, .scale = 2},
    {.args.experts_swiglu_bwd = {LIMITED, .F = F + 3, .interleaved = true}, .scale = 2},
    {.args.experts_swiglu_bwd = {.dtype = SAME, .M = M, .F = F}, .scale = 2}};

/* Four experts, one without rows; tiles that are not whole, in both layouts of weights; rows of one expert that take
 * several tiles; gradients that are added, and whose rows take each stage of the pipeline twice. */
#define GROUPED(rows, n, k) .dtype = SAME, .M = rows, .N = n, .K = k, .E = 4
CASES(grouped_linear_fwd) = {{.args.grouped_linear_fwd = {GROUPED(M, N, C), .accumulate = true}},
    {.args.grouped_linear_fwd = {GROUPED(200, 133, 37), .weights_in_out = true, .bias = HERE}}};
CASES(grouped_linear_bwd_input) = {{.args.grouped_linear_bwd_input = {GROUPED(M, N, C), .accumulate = true}},
    {.args.grouped_linear_bwd_input = {GROUPED(200, 37, 133), .weights_in_out = true}}};
CASES(grouped_linear_bwd_weight) = {{.args.grouped_linear_bwd_weight = {GROUPED(M, N, C)}},
    {.args.grouped_linear_bwd_weight = {GROUPED(200, 37, 133), .weights_in_out = true, .dbias = HERE}},
    {.args.grouped_linear_bwd_weight = {GROUPED(400, N, 200), .dbias = HERE, .row_weights = HERE, .accumulate = true, .accumulate_dbias = true}},
    {.args.grouped_linear_bwd_weight = {GROUPED(M, N, C), .dw_dtype = DTYPE_BF16, .accumulate = true}, .dtypes = 1 << DTYPE_BF16}};
CASES(tanh_fwd) = {{.args.tanh_fwd = {.dtype = SAME, .n = COUNT}, .scale = 2}};
CASES(tanh_bwd) = {{.args.tanh_bwd = {.dtype = SAME, .n = COUNT}, .scale = 0.9f}};

/* Logits of the op's dtype; logits in fp32, smoothed labels, a soft cap; rows that no multiprocessor keeps as a whole,
 * whose gradients lie over the logits, of every kind. */
#define SCALED .logit_scale = 1.5f, .softcap = 20, .loss_scale = HERE, .step_scale = HERE, .dlogits = HERE
#define ROWS .dtype = SAME, .M = M, .V = V, .ld_logits = V_ROW, .ld_dlogits = V_ROW, .V_padded = V_ROW, .scale = 0.025f
#define LONG_ROWS(row) .dtype = SAME, .M = 3, .V = (row)-5, .ld_logits = row, .V_padded = (row)-3, .scale = 0.3f, SCALED
CASES(cross_entropy) = {
    {.args.cross_entropy = {ROWS, .logits_dtype = SAME, .logit_scale = 1, .dlogits = HERE}, .scale = 3},
    {.args.cross_entropy = {ROWS, .smoothing = 0.1f, SCALED, .row_scale = HERE, .row_losses = HERE}, .scale = 9},
    {.args.cross_entropy = {ROWS, .linear = true, SCALED, .row_losses = HERE}, .dtypes = ONCE, .scale = 3},
    {.args.cross_entropy = {ROWS, SCALED, .K = 5, .teacher_ids = HERE, .teacher_logps = HERE, .temperature = 2, .alpha = 0.6f}, .scale = 3},
    {.args.cross_entropy = {LONG_ROWS(WIDE), .ld_dlogits = WIDE}, .dtypes = ONCE, .scale = 3, .uneven = true},
    {.args.cross_entropy = {LONG_ROWS(NARROW), .ld_dlogits = NARROW, .logits_dtype = SAME}, .dtypes = HALVES, .scale = 3, .uneven = true},
    {.args.cross_entropy = {LONG_ROWS(WIDE), .ld_dlogits = NARROW}, .dtypes = HALVES, .scale = 3, .uneven = true}};

CASES(add) = {{.args.add = {.dtype = SAME, .n = COUNT, .b = HERE}},
    {.args.add = {.dtype = SAME, .n = COUNT, .b = HERE, .factor = HERE}},
    {.args.add = {.dtype = SAME, .n = COUNT, .factor = HERE}}};
/* Then not whole blocks of random words. */
CASES(dropout) = {{.args.dropout = {.dtype = SAME, .M = M, .C = C}},
    {.args.dropout = {.dtype = SAME, .M = M, .C = C + 3}}};
CASES(cast) = {{.args.cast = {.dst_dtype = SAME, .n = COUNT}}, {.args.cast = {.src_dtype = SAME, .n = COUNT}}};

/* NF4, of which the last block is not whole: with scales, and with codes of scales through bf16; FP8 and MXFP4. */
#define NF4 .dtype = SAME, .format = QUANTIZED_NF4, .rows = 9, .cols = 130, .code_bytes = 585, .block = 64, \
    .num_scales = 19
CASES(dequantize) = {{.args.dequantize = {NF4, .scales = HERE}},
    {.args.dequantize = {NF4, .through = DTYPE_BF16, .scale_codes = HERE, .nested_scales = HERE, .num_nested = 2, .nested_block = 16, .map = HERE, .offset = HERE}},
    {.args.dequantize = {.dtype = SAME, .format = QUANTIZED_FP8, .rows = 130, .cols = 133, .code_bytes = 130 * 133, .scales = HERE, .num_scales = 4}},
    {.args.dequantize = {.dtype = SAME, .format = QUANTIZED_MXFP4, .rows = 5, .cols = 96, .code_bytes = 240, .scale_codes = HERE, .num_scales = 15}}};

/* From fp32, scaled and added; from bf16, added, to fp32 and to bf16. */
CASES(accumulate) = {{.args.accumulate = {SAME, DTYPE_F32, COUNT, .scale = 0.5f}, .dtypes = NOT_F16},
    {.args.accumulate = {SAME, DTYPE_F32, COUNT, .scale = 1, .accumulate = true}, .dtypes = NOT_F16},
    {.args.accumulate = {DTYPE_F32, SAME, COUNT, .scale = 1, .accumulate = true}, .dtypes = 1 << DTYPE_BF16},
    {.args.accumulate = {SAME, SAME, COUNT, .scale = 1, .accumulate = true}, .dtypes = 1 << DTYPE_BF16}};

/* The bits of the sums count. The last one: whole vectors, added to what is there. */
#define SUM_RANKS(which, count) .dtype = SAME, .n = count, .ranks = 3, .rank = which
CASES(sum_ranks) = {{.args.sum_ranks = {SUM_RANKS(1, COUNT)}, .tolerance = 1e-12},
    {.args.sum_ranks = {SUM_RANKS(0, COUNT + 5), .accumulate = true}, .tolerance = 1e-12},
    {.args.sum_ranks = {SUM_RANKS(0, COUNT), .out_dtype = DTYPE_BF16, .accumulate = true}, .dtypes = 1 << DTYPE_BF16}};

/* A single element shows. */
CASES(sumsq) = {{.args.sumsq = {.dtype = SAME, .n = LONG}, .dtypes = NOT_F16, .tolerance = 1e-7}};
CASES(find_nonfinite) = {{.args.find_nonfinite = {.dtype = SAME, .n = LONG}, .dtypes = NOT_F16, .uneven = true}};

/* A step that counts; one with gradients that are not finite. */
#define DECIDE(is_dynamic) {2, 3, 1, .grad_factor = 1, .clip = 1, \
    .scaler = {is_dynamic, .hysteresis = 1, .window = 1000, .min_scale = 0.25}}
CASES(decide_step) = {{.args.decide_step = DECIDE(false), .dtypes = ONCE},
    {.args.decide_step = DECIDE(true), .dtypes = ONCE, .uneven = true}};

/* Gradients in fp32 and bf16, those with Adam's way of decay; states in bf16 and moments in fp32, element by element;
 * both in bf16; a step that is skipped. States are rounded by random bits, which are the same on both devices. */
#define ADAM .n = COUNT, .eps = 1e-8f, .weight_decay = 10
#define ADAM_WIDE ADAM, .param = HERE, .param_dtype = DTYPE_BF16, .segments = HERE
#define ADAM_NARROW ADAM, .adamw = true, .master_dtype = DTYPE_BF16, .rounding.seed = 5, .rounding.unit = 2
#define ALL_NARROW ADAM_NARROW, .grad_dtype = DTYPE_BF16, .moment_dtype = DTYPE_BF16, .segments = HERE
CASES(adam) = {{.args.adam = {ADAM_WIDE, .adamw = true}, .dtypes = ONCE},
    {.args.adam = {ADAM_WIDE, .grad_dtype = DTYPE_BF16}, .dtypes = ONCE},
    {.args.adam = {ADAM_NARROW, .rounding.place = 3}, .dtypes = ONCE, .unequal = 0.02},
    {.args.adam = {ALL_NARROW, .rounding.place = 2 * ROUNDING_BLOCK}, .dtypes = ONCE, .unequal = 0.02},
    {.args.adam = {ADAM_WIDE, .adamw = true}, .dtypes = ONCE, .skipped = true}};

/* Gradients in fp32 and bf16; a step that is skipped. */
#define ADAM8 .n = 3 * MOMENT_BLOCK, .eps = 1e-8f, .weight_decay = 10, .param = HERE, .param_dtype = DTYPE_BF16
CASES(adam8) = {{.args.adam8 = {ADAM8, .segments = HERE}, .dtypes = ONCE},
    {.args.adam8 = {ADAM8, .grad_dtype = DTYPE_BF16}, .dtypes = ONCE},
    {.args.adam8 = {ADAM8, .segments = HERE}, .dtypes = ONCE, .skipped = true}};

/* SGD; Lion; SGD by Nesterov from gradients in bf16; the first step of SGD; a step that is skipped. */
#define MOMENTUM .n = COUNT, .m = HERE, .param = HERE, .param_dtype = DTYPE_BF16, .weight_decay = 2, .momentum = 0.9f, \
    .dampening = 0.25f
#define SGD .rule = OPTIMIZER_SGD, MOMENTUM
CASES(momentum) = {{.args.momentum = {SGD, .segments = HERE}, .dtypes = ONCE},
    {.args.momentum = {.rule = OPTIMIZER_LION, MOMENTUM, .segments = HERE}, .dtypes = ONCE},
    {.args.momentum = {SGD, .grad_dtype = DTYPE_BF16, .nesterov = true}, .dtypes = ONCE},
    {.args.momentum = {SGD, .segments = HERE}, .dtypes = ONCE, .step = 1},
    {.args.momentum = {SGD, .segments = HERE}, .dtypes = ONCE, .skipped = true}};

/* By Nesterov; without, from gradients in bf16; a step that is skipped. */
CASES(muon_momentum) = {{.args.muon_momentum = {.n = COUNT, .momentum = 0.95f, .nesterov = true}, .dtypes = ONCE},
    {.args.muon_momentum = {.n = COUNT, .grad_dtype = DTYPE_BF16, .momentum = 0.95f}, .dtypes = ONCE},
    {.args.muon_momentum = {.n = COUNT, .momentum = 0.95f, .nesterov = true}, .dtypes = ONCE, .skipped = true}};

/* More columns than rows; more rows than columns. A value that rounds the other way changes all that follow. */
CASES(orthogonalize) = {{.args.orthogonalize = {.rows = 24, .cols = 40, .steps = 2}, .dtypes = ONCE, .tolerance = 0.1},
    {.args.orthogonalize = {.rows = 40, .cols = 24, .steps = 2}, .dtypes = ONCE, .tolerance = 0.1}};

/* A step that counts; one that is skipped. */
#define MUON_UPDATE                                                                                             \
    {                                                                                                           \
        .n = COUNT, .param = HERE, .param_dtype = DTYPE_BF16, .weight_decay = 10, .lr_factor = 2, .adjust = 0.5 \
    }
CASES(muon_update) = {{.args.muon_update = MUON_UPDATE, .dtypes = ONCE},
    {.args.muon_update = MUON_UPDATE, .dtypes = ONCE, .skipped = true}};
/* clang-format on */

#define CASES_OF(op) {cases_##op, COUNT_OF(cases_##op)},
const struct self_test_cases self_test_cases[OPS_COUNT] = {OPS_LIST(CASES_OF)};

/* ---- operands of a fixed meaning ----------------------------------------- */

static void fill_state(const struct self_test_case *c, void *to)
{
    struct step_state state = {.optimizer_step = c->step ? c->step : 3,
                               .scaler = {.scale = 1, .last_overflow = -1, .hysteresis = 1},
                               .lr = 1e-2,
                               .correction1 = 0.27,
                               .correction2 = 0.003,
                               .beta1 = 0.9,
                               .beta2 = 0.999,
                               .loss_scale = 1,
                               .used_loss_scale = 1,
                               .grad_scale = 0.5f,
                               .bad_unit = -1,
                               .bad_loss_rank = -1};
    state.skipped = c->skipped;
    memcpy(to, &state, sizeof state);
}

/* Of decide_step's reports, two ranks' sums for three units and the loss. */
static void fill_reports(const struct self_test_case *c, double *to)
{
    enum { REPORTS = 8, LOSS = 7, SUM = 5 };
    for (int i = 0; i < REPORTS; i++) to[i] = c->uneven && (i == SUM || i == LOSS) ? INFINITY : 1 + i;
}

static void fill_case_targets(const struct cross_entropy_args *a, int32_t *to)
{
    for (int64_t i = 0; i < a->M; i++) to[i] = i % 3 == 1 ? -1 : (int32_t)(a->V - 1 - i * 37 % a->V);
}

static void fill_teacher(const struct cross_entropy_args *a, int32_t *to)
{
    for (int64_t i = 0; i < a->M * a->K; i++) to[i] = (int32_t)(i % a->K * (a->V / a->K) + i / a->K % (a->V / a->K));
}

/* Of two sequences, the longer one first. */
static void fill_starts(const struct self_test_case *c, int op, int32_t *to)
{
    const union op_args *a = &c->args;
    const bool attention = op == OP_attention_fwd || op == OP_attention_bwd; /* backward's begin with forward's */
    const bool delta = op == OP_delta_rule_fwd || op == OP_delta_rule_bwd;
    to[0] = 0;
    to[1] = (int32_t)(attention ? a->attention_fwd.max_seq : delta ? a->delta_rule_fwd.max_seq : M - 3);
    to[2] = (int32_t)(attention ? a->attention_fwd.M : delta ? a->delta_rule_fwd.M : M);
}

/* Of four experts: most of the rows, none, one, the rest. */
static void fill_offsets(const union op_args *a, int op, int32_t *to)
{
    const int64_t rows = op == OP_grouped_linear_bwd_weight  ? a->grouped_linear_bwd_weight.M
                         : op == OP_grouped_linear_bwd_input ? a->grouped_linear_bwd_input.M
                                                             : a->grouped_linear_fwd.M;
    const int32_t most = (int32_t)(rows * 3 / 4), offsets[] = {0, most, most, most + 1, (int32_t)rows};
    memcpy(to, offsets, sizeof offsets);
}

/* All codes, in an order that differs from block to block. */
static void fill_moments(const struct adam8_args *a, struct moment_block *to)
{
    for (int64_t b = 0; b < a->n / MOMENT_BLOCK; b++) {
        to[b].scale = 0.5f / (float)(b + 1);
        for (int i = 0; i < MOMENT_BLOCK; i++) to[b].codes[i] = (uint8_t)(i * 37 + b);
    }
}

void self_test_fill(const struct operand *operand, const struct self_test_case *c, int op, void *to)
{
    static const struct step_rates rates = {
        .lr = 1e-3, .correction1 = 0.3, .correction2 = 0.01, .beta1 = 0.9, .beta2 = 0.99};
    const struct step_schedule schedule = {.base = 3, .rates = {rates, rates}};
    /* times the state's lr, the decays are no small part of a value */
    static const struct decay_segment segments[] = {{8, 0}, {COUNT / 16 * 8, 20}, {COUNT / 8 * 8 + 8, 5}};
    static const struct decay_segment of_blocks[] = {{MOMENT_BLOCK, 0}, {3 * MOMENT_BLOCK, 20}};
    const int32_t enabled = 1;
    uint64_t numbers[M];
    for (int i = 0; i < M; i++) numbers[i] = (uint64_t)i * 3;
    switch (operand->type) {
    case OPERAND_NUMBERS: memcpy(to, numbers, sizeof numbers); break;
    case OPERAND_STARTS: fill_starts(c, op, to); break;
    case OPERAND_OFFSETS: fill_offsets(&c->args, op, to); break;
    case OPERAND_TARGETS: fill_case_targets(&c->args.cross_entropy, to); break;
    case OPERAND_TEACHER: fill_teacher(&c->args.cross_entropy, to); break;
    case OPERAND_STATE: fill_state(c, to); break;
    case OPERAND_SEGMENTS:
        if (op == OP_adam8)
            memcpy(to, of_blocks, sizeof of_blocks);
        else
            memcpy(to, segments, sizeof segments);
        break;
    case OPERAND_MOMENTS: fill_moments(&c->args.adam8, to); break;
    case OPERAND_REPORTS: fill_reports(c, to); break;
    case OPERAND_SCHEDULE: memcpy(to, &schedule, sizeof schedule); break;
    default:
        ASSERT(operand->type == OPERAND_ENABLED);
        memcpy(to, &enabled, sizeof enabled);
        break;
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* test_op_cost.c: FLOPs and bytes of ops against figures computed by hand; fp32 outputs count four bytes an
 * element. */
#include "gpu/op_cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { M = 100, N = 30, K = 7 };

static void check(struct op_cost work, double flops, double bytes)
{
    if (work.flops != flops || work.bytes != bytes)
        fail_msg("%g FLOPs and %g bytes; expected %g and %g", work.flops, work.bytes, flops, bytes);
}

static void products_count_outputs_in_their_dtype(void **state)
{
    (void)state;
    const double flops = 2.0 * M * N * K, x = 2 * M * K, w = 2 * N * K, y = 2 * M * N;
    struct linear_fwd_args fwd = {.dtype = DTYPE_BF16, .y_dtype = DTYPE_BF16, .M = M, .N = N, .K = K};
    check(op_cost_linear_fwd(&fwd), flops, x + w + y);
    fwd.gelu = true;
    fwd.aux = &fwd; /* a second output */
    check(op_cost_linear_fwd(&fwd), flops, x + w + 2 * y);
    fwd.gelu = false;
    fwd.aux = NULL;
    fwd.y_dtype = DTYPE_F32; /* logits */
    check(op_cost_linear_fwd(&fwd), flops, x + w + 2 * y);
    fwd.dtype = DTYPE_F32;
    check(op_cost_linear_fwd(&fwd), flops, 2 * (x + w + y));

    struct linear_bwd_weight_args weight = {.dtype = DTYPE_BF16, .M = M, .N = N, .K = K};
    check(op_cost_linear_bwd_weight(&weight), flops, x + y + 2 * w);
    weight.accumulate = true; /* the gradient is read as well */
    check(op_cost_linear_bwd_weight(&weight), flops, x + y + 4 * w);

    struct linear_bwd_input_args input = {.dtype = DTYPE_BF16, .M = M, .N = N, .K = K};
    check(op_cost_linear_bwd_input(&input), flops, x + w + y);
    input.gelu_aux = &input;
    check(op_cost_linear_bwd_input(&input), flops, 2 * x + w + y);
    input.gelu_aux = NULL;
    input.accumulate = true;
    check(op_cost_linear_bwd_input(&input), flops, 2 * x + w + y);
}

static void delta_rule_counts_half_of_a_chunks_squares(void **state)
{
    (void)state;
    const double heads = 2.0 * M * 4, half = DELTA_CHUNK / 2.0,
                 tokens = 2.0 * M * (2 * 2 * 8 + 4 * 16 + 2 * 4 + 4 * 16);
    const struct delta_rule_fwd_args fwd = {.dtype = DTYPE_BF16, .M = M, .Hk = 2, .Hv = 4, .Dk = 8, .Dv = 16};
    check(op_cost_delta_rule_fwd(&fwd), heads * (3 * 8 * 16 + half * (2 * 8 + 2 * 16)), tokens);
    const struct delta_rule_bwd_args bwd = {.fwd = fwd};
    check(op_cost_delta_rule_bwd(&bwd), heads * (8 * 8 * 16 + half * (7 * 8 + 5 * 16)),
          2 * tokens - 2.0 * M * 4 * 16); /* no out */
}

/* The matrices of all experts count; rows of tokens and of assignments are read and written once. */
static void experts_count_all_matrices(void **state)
{
    enum { E = 5, TOP = 2 };
    (void)state;
    const double flops = 2.0 * M * N * K, x = 2 * M * K, w = 2 * N * K * E, y = 2 * M * N;
    struct grouped_linear_fwd_args fwd = {.dtype = DTYPE_BF16, .M = M, .N = N, .K = K, .E = E};
    check(op_cost_grouped_linear_fwd(&fwd), flops, x + w + y);
    fwd.accumulate = true;
    check(op_cost_grouped_linear_fwd(&fwd), flops, x + w + 2 * y);
    struct grouped_linear_bwd_input_args input = {.dtype = DTYPE_BF16, .M = M, .N = N, .K = K, .E = E};
    check(op_cost_grouped_linear_bwd_input(&input), flops, x + w + y);
    input.accumulate = true;
    check(op_cost_grouped_linear_bwd_input(&input), flops, 2 * x + w + y);
    struct grouped_linear_bwd_weight_args weight = {.dtype = DTYPE_BF16, .M = M, .N = N, .K = K, .E = E};
    check(op_cost_grouped_linear_bwd_weight(&weight), flops, x + 2 * w + y);
    weight.accumulate = true;
    check(op_cost_grouped_linear_bwd_weight(&weight), flops, x + 4 * w + y);
    const struct gather_tokens_args gather = {.dtype = DTYPE_BF16, .M = M, .k = TOP, .C = N};
    check(op_cost_gather_tokens(&gather), 0, (TOP + 1) * y);
    struct combine_tokens_args combine = {.dtype = DTYPE_BF16, .M = M, .k = TOP, .C = N};
    check(op_cost_combine_tokens(&combine), 0, (TOP + 1) * y);
    combine.accumulate = true;
    check(op_cost_combine_tokens(&combine), 0, (TOP + 2) * y);
}

static void other_ops_count_what_they_touch(void **state)
{
    (void)state;
    struct cross_entropy_args loss = {.dtype = DTYPE_BF16, .logits_dtype = DTYPE_F32, .M = M, .V = N};
    check(op_cost_cross_entropy(&loss), 0, 4.0 * M * N);
    loss.dlogits = &loss;
    check(op_cost_cross_entropy(&loss), 0, 6.0 * M * N);
    struct adam_args adam = {.n = N, .param = &adam, .param_dtype = DTYPE_BF16};
    check(op_cost_adam(&adam), 0, 30.0 * N); /* master, m, v: read and written; grad read; the parameter written */
    struct momentum_args lion = {.n = N, .m = (float *)&adam, .param = &adam, .param_dtype = DTYPE_BF16};
    check(op_cost_momentum(&lion), 0, 22.0 * N);
    lion.m = NULL;
    check(op_cost_momentum(&lion), 0, 14.0 * N);
    struct sum_ranks_args ranks = {.dtype = DTYPE_BF16, .n = N, .ranks = K};
    check(op_cost_sum_ranks(&ranks), 0, (2.0 * K + 4) * N);
    ranks.accumulate = true;
    check(op_cost_sum_ranks(&ranks), 0, (2.0 * K + 8) * N);
    struct muon_momentum_args muon = {.n = N};
    check(op_cost_muon_momentum(&muon), 0, 14.0 * N);
    struct orthogonalize_args wide = {.rows = 8, .cols = 24, .steps = 5}, tall = {.rows = 24, .cols = 8, .steps = 5};
    check(op_cost_orthogonalize(&wide), 5 * (2 * 2 * 8 * 8 * 24 + 2 * 8 * 8 * 8), 4 * 8 * 24);
    check(op_cost_orthogonalize(&tall), 5 * (2 * 2 * 8 * 8 * 24 + 2 * 8 * 8 * 8), 4 * 8 * 24);
    struct muon_update_args update = {.n = N, .param = &adam, .param_dtype = DTYPE_BF16};
    check(op_cost_muon_update(&update), 0, 12.0 * N);
    struct attention_fwd_args attention = {.dtype = DTYPE_BF16, .M = 8, .H = 4, .KV = 2, .D = 16, .max_seq = 4};
    check(op_cost_attention_fwd(&attention), 4 * 8 * 2.5 * 64, 8 * 12 * 16 * 2);
    const struct attention_sink_fwd_args sink = {.dtype = DTYPE_BF16, .M = 8, .H = 4, .D = 16, .ld_o = 70};
    const struct attention_sink_bwd_args sink_bwd = {.dtype = DTYPE_BF16, .M = 8, .H = 4, .D = 16, .ld_o = 70};
    check(op_cost_attention_sink_fwd(&sink), 0, 2 * 8 * 64 * 2);
    check(op_cost_attention_sink_bwd(&sink_bwd), 0, 2 * 8 * 64 * 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_count_outputs_in_their_dtype),
        cmocka_unit_test(delta_rule_counts_half_of_a_chunks_squares),
        cmocka_unit_test(experts_count_all_matrices),
        cmocka_unit_test(other_ops_count_what_they_touch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

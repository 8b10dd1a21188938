/* SPDX-License-Identifier: Apache-2.0 */
/* test_self_test.c: the self-test finds every op that computes nothing, those that leave out
 * something of their arguments or fail in some shapes, and none that is right. The device is the CPU, next to itself.
 */
#include "core/memory.h"
#include "gpu/open/device_open.h"
#include "gpu/self_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LOST(op)                                                               \
    static void lost_##op(struct stream *stream, const struct op##_args *args) \
    {                                                                          \
        (void)stream, (void)args;                                              \
    }
OPS_LIST(LOST)
#define LOST_ENTRY(op) .op = lost_##op,
static const struct op_table lost_ops = {OPS_LIST(LOST_ENTRY)};

/* `table` with the entry number `op` of another one. */
static struct op_table table_with(const struct op_table *table, const struct op_table *other, int op)
{
    struct op_table with = *table;
    memcpy((char *)&with + (size_t)op * sizeof table->add, (const char *)other + (size_t)op * sizeof table->add,
           sizeof table->add);
    return with;
}

/* ---- faults -------------------------------------------------------------- */

static const struct op_table *right; /* the CPU's */

/* An op with other arguments than it was called with: `a` points to a copy of them. A statement may return, so that the
 * op is lost for these arguments. */
#define FAULT(name, op, ...)                                                          \
    static void fault_##name(struct stream *stream, const struct op##_args *original) \
    {                                                                                 \
        struct op##_args changed = *original, *a = &changed;                          \
        __VA_ARGS__;                                                                  \
        right->op(stream, a);                                                         \
    }
#define FAULT_ENTRY(name, op, ...) {#name, #op, {.op = fault_##name}},

enum {
    ROW_HELD = 227 << 10, /* bytes of shared memory, at most */
    KEYS_TILE = 64,
    DECODE_KEYS = 32,
    COLUMN_ROWS = 64,
    SUM_ELEMENTS = 4096,
};

/* Statements as arguments are beyond clang-format. */
/* clang-format off */
#define FAULTS(X)                                                                                          \
    X(position_types, embedding_fwd, a->wse = NULL)                                                        \
    X(type_rows, embedding_bwd, if (a->dwse) a->M -= 1)                                                    \
    X(two_digits, embedding_bwd, if (a->V > 512) return)                                                   \
    X(norm_offset, norm_fwd, a->weight_offset = 0)                                                         \
    X(norm_warps, norm_fwd, if (a->C == 1544) return)                                                      \
    X(norm_odd, norm_fwd, if (a->C % 2 && a->C < 512) return)                                              \
    X(norm_odd_long, norm_fwd, if (a->C % 2 && a->C > 2048) return)                                        \
    X(norm_long, norm_fwd, if (a->C > 16384) return)                                                       \
    X(norm_bwd_offset, norm_bwd, a->weight_offset = 0)                                                     \
    X(norm_sums, norm_bwd, a->dx_sums = NULL)                                                              \
    X(norm_sums_added, norm_bwd, a->accumulate_sums = false)                                               \
    X(norm_bwd_warps, norm_bwd, if (a->C > 512 && a->C < 2048 && a->dx_sums) return)                       \
    X(norm_bwd_one_sum, norm_bwd, if (a->C > 4096 && !a->dx_sums) return)                                  \
    X(norm_bwd_long, norm_bwd, if (a->C > 6144) return)                                                    \
    X(norm_bwd_odd, norm_bwd, if (a->C % 2 && a->C > 1024) return)                                         \
    X(norm_bwd_rows, norm_bwd, if (a->M > 512) a->M = 512)                                                 \
    X(head_offset, head_norm_fwd, a->weight_offset = 0)                                                    \
    X(head_distance, head_norm_fwd, a->ld_x = a->ld_y = a->heads * a->D)                                   \
    X(head_bwd_offset, head_norm_bwd, a->weight_offset = 0)                                                \
    X(head_added, head_norm_bwd, a->accumulate = false)                                                    \
    X(head_gate, head_norm_fwd, a->gate = NULL)                                                            \
    X(head_turned, head_norm_fwd, if (head_norm_turns(a)) a->positions = NULL)                             \
    X(head_turned_part, head_norm_fwd, if (!head_norm_turns(a)) a->positions = NULL)                       \
    X(head_bwd_gate, head_norm_bwd, a->gate = NULL)                                                        \
    X(conv_state, causal_conv_fwd, a->state = NULL)                                                        \
    X(conv_taps, causal_conv_fwd, if (a->K < CONV_TAPS) return)                                            \
    X(conv_added, causal_conv_bwd, a->accumulate = false)                                                  \
    X(delta_state, delta_rule_fwd, a->state = NULL)                                                        \
    X(delta_chunks, delta_rule_fwd, if (a->max_seq > DELTA_CHUNK) return)                                  \
    X(delta_shared_keys, delta_rule_fwd, if (a->Hv == 2 * a->Hk) return)                                   \
    X(delta_added, delta_rule_bwd, a->accumulate = false)                                                  \
    X(delta_chunks_bwd, delta_rule_bwd, if (a->fwd.max_seq > DELTA_CHUNK) return)                              \
    X(geglu, linear_fwd, a->gated_gelu = false)                                                            \
    X(geglu_slope, linear_bwd_input, a->gated_gelu = false)                                                \
    X(erf, linear_fwd, a->gelu_erf = false)                                                                \
    X(wide_logits, linear_fwd, if (a->y_dtype != a->dtype) return)                                         \
    X(logits_distance, linear_fwd, a->ld_y = 0)                                                            \
    X(erf_slope, linear_bwd_input, a->gelu_erf = false)                                                    \
    X(input_sums, linear_bwd_input, a->dbias = NULL)                                                       \
    X(input_sums_added, linear_bwd_input, a->accumulate_dbias = false)                                     \
    X(input_distance, linear_bwd_input, a->ld_dy = 0)                                                      \
    X(input_ranges, linear_bwd_input, if (a->dbias && a->M > COLUMN_ROWS) a->M = COLUMN_ROWS)              \
    X(null_columns, linear_bwd_weight, a->null_count = 0)                                                  \
    X(weight_distance, linear_bwd_weight, a->ld_dy = 0)                                                    \
    X(weight_bias_added, linear_bwd_weight, a->accumulate_dbias = false)                                   \
    X(weight_narrow, linear_bwd_weight, if (a->dw_dtype == DTYPE_BF16) return)                             \
    X(weight_narrow_added, linear_bwd_weight, if (a->dw_dtype == DTYPE_BF16) a->accumulate = false)        \
    X(rope_part, rope, a->R = a->D)                                                                        \
    X(rope_pairs, rope, a->pairs = false)                                                                  \
    X(rope_distance, rope, a->ld = a->heads * a->D)                                                        \
    X(second_tile, attention_fwd, if (a->max_seq > KEYS_TILE) a->window = KEYS_TILE)                       \
    X(cap, attention_fwd, a->softcap = 0)                                                                  \
    X(large_heads, attention_fwd, if (a->D > 64 && a->D <= 128) return)                                    \
    X(larger_heads, attention_fwd, if (a->D > 128) return)                                                 \
    X(cap_slope, attention_bwd, a->fwd.softcap = 0)                                                            \
    X(large_heads_bwd, attention_bwd, if (a->fwd.D > 64 && a->fwd.D <= 128) return)                                \
    X(larger_heads_bwd, attention_bwd, if (a->fwd.D > 128) return)                                             \
    X(decode_heads, attention_decode, if (a->D > 32) return)                                               \
    X(decode_keys, attention_decode, if (a->start > DECODE_KEYS) a->window = DECODE_KEYS)                  \
    X(decode_sinks, attention_decode, a->sinks = NULL)                                                     \
    X(sink_distance, attention_sink_fwd, a->ld_o = a->H * a->D)                                            \
    X(sink_odd, attention_sink_fwd, if (a->D % 2) return)                                                  \
    X(sink_bwd_distance, attention_sink_bwd, a->ld_o = a->H * a->D)                                        \
    X(sink_bwd_odd, attention_sink_bwd, if (a->D % 2) return)                                              \
    X(sink_added, attention_sink_bwd, a->accumulate = false)                                               \
    X(loss_cap, cross_entropy, a->softcap = 0)                                                             \
    X(loss_scale, cross_entropy, a->loss_scale = NULL)                                                     \
    X(step_scale, cross_entropy, a->step_scale = NULL)                                                     \
    X(logit_scale, cross_entropy, a->logit_scale = 1)                                                      \
    X(smoothing, cross_entropy, a->smoothing = 0)                                                          \
    X(row_scale, cross_entropy, a->row_scale = NULL)                                                       \
    X(row_losses, cross_entropy, a->row_losses = NULL)                                                     \
    X(teacher, cross_entropy, a->K = 0)                                                                    \
    X(temperature, cross_entropy, if (a->K) a->temperature = 1)                                            \
    X(linear, cross_entropy, a->linear = false)                                                            \
    X(in_place, cross_entropy, if (a->dlogits == a->logits) a->dlogits = NULL)                             \
    X(in_place_narrow, cross_entropy, if (a->dlogits == a->logits && a->dtype != a->logits_dtype) return)  \
    X(long_row, cross_entropy, if (a->V * (int64_t)dtype_size(a->logits_dtype) > ROW_HELD) return)         \
    X(swiglu_limit, swiglu_fwd, if (a->limit > 0) a->limit *= 2)                                           \
    X(experts_alpha, experts_swiglu_bwd, a->alpha = 1)                                                     \
    X(experts_interleaved, experts_swiglu_bwd, a->interleaved = false)                                     \
    X(experts_weights, experts_swiglu_bwd, a->row_weights = NULL)                                          \
    X(experts_plain, experts_swiglu_bwd, if (a->limit <= 0) return)                                        \
    X(route_sigmoid, route, a->sigmoid = false)                                                            \
    X(route_normalize, route, a->normalize = false)                                                        \
    X(route_scale, route, a->scale = 1)                                                                    \
    X(route_groups, route, a->groups = 0)                                                                  \
    X(route_bias, route, if (!a->groups) a->bias = NULL)                                                   \
    X(route_counted, route, a->counted = a->M)                                                             \
    X(route_prob_sums, route, a->prob_sums = NULL)                                                         \
    X(sum_experts_scale, sum_experts, a->scale = 1)                                                        \
    X(route_many, route, if (a->E > 256) return)                                                           \
    X(route_bwd_sigmoid, route_bwd, a->sigmoid = false)                                                    \
    X(route_bwd_normalize, route_bwd, a->normalize = false)                                                \
    X(route_bwd_counts, route_bwd, a->counts = NULL)                                                       \
    X(route_bwd_counted, route_bwd, a->counted = a->M)                                                     \
    X(route_bwd_z, route_bwd, a->lse = NULL)                                                               \
    X(route_bwd_loss_scale, route_bwd, a->loss_scale = NULL)                                               \
    X(bias_experts, combine_bias_bwd, if (a->M > 1) a->M--)                                                \
    X(permute_blocks, permute_experts, if (a->M > 100) a->M = 100)                                         \
    X(gather_tail, gather_tokens, if (a->C % 8) return)                                                    \
    X(combine_weights, combine_tokens, a->weights = NULL)                                                  \
    X(combine_added, combine_tokens, a->accumulate = false)                                                \
    X(combine_all, combine_tokens, if (!a->places) return)                                                 \
    X(scale_dots, scale_rows_bwd, if (a->C % 8) return)                                                    \
    X(grouped_bias, grouped_linear_fwd, a->bias = NULL)                                                    \
    X(grouped_layout, grouped_linear_fwd, if (a->weights_in_out) return)                                   \
    X(grouped_last, grouped_linear_fwd, a->E--)                                                            \
    X(grouped_sum, grouped_linear_fwd, a->accumulate = false)                                              \
    X(grouped_input_sum, grouped_linear_bwd_input, a->accumulate = false)                                  \
    X(grouped_input_layout, grouped_linear_bwd_input, if (a->weights_in_out) return)                       \
    X(grouped_added, grouped_linear_bwd_weight, a->accumulate = false)                                     \
    X(grouped_bias_added, grouped_linear_bwd_weight, a->accumulate_dbias = false)                          \
    X(grouped_bias_weights, grouped_linear_bwd_weight, a->row_weights = NULL)                              \
    X(grouped_narrow, grouped_linear_bwd_weight, if (a->dw_dtype == DTYPE_BF16) return)                    \
    X(add_tail, add, a->n = a->n / 8 * 8)                                                                  \
    X(cast_tail, cast, a->n = a->n / 8 * 8)                                                                \
    X(tanh_tail, tanh_fwd, a->n = a->n / 8 * 8)                                                            \
    X(tanh_bwd_tail, tanh_bwd, a->n = a->n / 8 * 8)                                                        \
    X(accumulate_tail, accumulate, a->n = a->n / 8 * 8)                                                    \
    X(accumulate_narrow, accumulate, if (a->src_dtype == DTYPE_BF16 && a->dst_dtype == DTYPE_F32) return)  \
    X(accumulate_half, accumulate, if (a->src_dtype == DTYPE_BF16 && a->dst_dtype == DTYPE_BF16) return)   \
    X(accumulate_scale, accumulate, a->scale = 1)                                                          \
    X(ranks_tail, sum_ranks, a->n = a->n / 8 * 8)                                                          \
    X(ranks_vectors, sum_ranks, if (a->n % 8 == 0) return)                                                 \
    X(ranks_accumulate, sum_ranks, a->accumulate = false)                                                  \
    X(ranks_narrow, sum_ranks, if (a->out_dtype == DTYPE_BF16) return)                                     \
    X(ranks_last, sum_ranks, a->ranks--)                                                                   \
    X(ranks_own, sum_ranks, a->own = (const char *)a->inbox + a->rank * a->n * (int64_t)dtype_size(a->dtype)) \
    X(dropout_rows, dropout, if (a->C % DROPOUT_BLOCK) return)                                             \
    X(sums_of_blocks, sumsq, if (a->n > SUM_ELEMENTS) a->n = SUM_ELEMENTS)                                 \
    X(sums_tail, sumsq, a->n = a->n / 8 * 8)                                                               \
    X(later_blocks, find_nonfinite, if (a->n > SUM_ELEMENTS) a->n = SUM_ELEMENTS)                          \
    X(dynamic_scale, decide_step, a->scaler.dynamic = false)                                               \
    X(adam_l2, adam, a->adamw = true)                                                                      \
    X(adam_tail, adam, a->n = a->n / 8 * 8)                                                                \
    X(adam_bf16, adam, if (a->master_dtype == DTYPE_BF16 && a->moment_dtype == DTYPE_F32) return)          \
    X(adam_all_bf16, adam, if (a->moment_dtype == DTYPE_BF16) return)                                      \
    X(adam_segments, adam, if (a->segments) a->segments = NULL)                                            \
    X(adam_place, adam, a->rounding.place += ROUNDING_BLOCK)                                               \
    X(adam_decay, adam, a->weight_decay = 0)                                                               \
    X(nesterov, momentum, a->nesterov = false)                                                             \
    X(dampening, momentum, a->dampening = 0)                                                               \
    X(momentum_tail, momentum, a->n = a->n / 8 * 8)                                                        \
    X(momentum_segments, momentum, if (a->segments) a->segments = NULL)                                    \
    X(momentum_bf16, momentum, if (a->grad_dtype == DTYPE_BF16) return)                                    \
    X(muon_nesterov, muon_momentum, a->nesterov = true)                                                    \
    X(muon_bf16, muon_momentum, if (a->grad_dtype == DTYPE_BF16) return)                                   \
    X(muon_tail, muon_update, a->n = a->n / 8 * 8)                                                         \
    X(tall_matrix, orthogonalize, if (a->rows > a->cols) return)
/* clang-format on */

FAULTS(FAULT)

/* Ops that read the step's state, with a copy of it that is not skipped. */
#define UNSKIPPED(op)                                                                   \
    static void unskipped_##op(struct stream *stream, const struct op##_args *original) \
    {                                                                                   \
        struct step_state state = *original->step;                                      \
        struct op##_args changed = *original;                                           \
        state.skipped = 0;                                                              \
        changed.step = &state;                                                          \
        right->op(stream, &changed);                                                    \
        stream_sync(stream);                                                            \
    }
#define SKIPPING(X) X(adam) X(momentum) X(muon_momentum) X(muon_update)
SKIPPING(UNSKIPPED)
#define UNSKIPPED_ENTRY(op) {"skipped_" #op, #op, {.op = unskipped_##op}},

/* Rows without a target get one. */
static void fault_targets(struct stream *stream, const struct cross_entropy_args *original)
{
    struct cross_entropy_args changed = *original;
    int32_t targets[64];
    stream_sync(stream);
    assert_true(original->M <= (int64_t)COUNT_OF(targets));
    for (int64_t i = 0; i < original->M; i++) targets[i] = original->targets[i] < 0 ? 0 : original->targets[i];
    changed.targets = targets;
    right->cross_entropy(stream, &changed);
    stream_sync(stream);
}

static const struct {
    const char *name, *op;
    struct op_table table; /* one entry, that of the op */
} faults[] = {FAULTS(FAULT_ENTRY)
                  SKIPPING(UNSKIPPED_ENTRY){"targets", "cross_entropy", {.cross_entropy = fault_targets}}};

/* ---- tests --------------------------------------------------------------- */

static struct device *device, *reference;
static struct self_test *checker;
static char differs[256];

static int open_devices(void **state)
{
    (void)state;
    struct error err = {.text = ""};
    if (device_open(DEVICE_CPU, 0, 1, &device, &err) != STATUS_OK ||
        device_open(DEVICE_CPU, 0, 1, &reference, &err) != STATUS_OK ||
        self_test_new(device, reference, &checker, &err) != STATUS_OK)
        return -1;
    right = device->ops;
    return 0;
}

static int close_devices(void **state)
{
    (void)state;
    self_test_free(checker);
    device_close(reference);
    device_close(device);
    return 0;
}

/* Checks an op of a device with this table. */
static bool is_found(int op, const struct op_table *table)
{
    struct error err = {.text = ""};
    device->ops = table;
    assert_int_equal(self_test_op(checker, op, differs, sizeof differs, &err), STATUS_OK);
    device->ops = right;
    return strstr(differs, "variant") && strstr(differs, "is right");
}

static void every_lost_op_is_found(void **state)
{
    (void)state;
    for (int op = 0; op < OPS_COUNT; op++) {
        if (is_found(op, right) || *differs) fail_msg("%s differs from itself: %s", op_name(op), differs);
        const struct op_table wrong = table_with(right, &lost_ops, op);
        if (!is_found(op, &wrong)) fail_msg("a lost %s is not found", op_name(op));
    }
}

/* ---- TF32 ---------------------------------------------------------------- */

/* Operands as a library may read them for TF32: the lower 13 bits of the mantissa are cut off. Freed by the caller. */
static float *cut(const void *from, int64_t n)
{
    float *to = memory_alloc((size_t)n * sizeof *to);
    for (int64_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, (const char *)from + (size_t)i * sizeof word, sizeof word);
        word &= ~(uint32_t)0x1fff;
        memcpy(&to[i], &word, sizeof word);
    }
    return to;
}

#define CUT(op, left, left_n, right_operand, right_n)                               \
    static void cut_##op(struct stream *stream, const struct op##_args *original)   \
    {                                                                               \
        struct op##_args changed = *original, *a = &changed;                        \
        stream_sync(stream); /* the operands have come */                           \
        if (a->dtype != DTYPE_F32) {                                                \
            right->op(stream, a);                                                   \
            return;                                                                 \
        }                                                                           \
        float *one = cut(a->left, left_n), *other = cut(a->right_operand, right_n); \
        a->left = one;                                                              \
        a->right_operand = other;                                                   \
        right->op(stream, a);                                                       \
        stream_sync(stream);                                                        \
        free(one);                                                                  \
        free(other);                                                                \
    }
CUT(linear_fwd, x, a->M *(a->ld_x ? a->ld_x : a->K), w, a->N * a->K)
CUT(linear_bwd_input, dy, a->M *(a->ld_dy ? a->ld_dy : a->N), w, a->N * a->K)
CUT(linear_bwd_weight, dy, a->M *(a->ld_dy ? a->ld_dy : a->N), x, a->M *(a->ld_x ? a->ld_x : a->K))

static int op_number(const char *name)
{
    int op = 0;
    while (strcmp(op_name(op), name) != 0) op++;
    return op;
}

/* Arguments count, and kinds of shapes that kernels treat in a way of their own. */
static void every_fault_is_found(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        const int op = op_number(faults[i].op);
        const struct op_table wrong = table_with(right, &faults[i].table, op);
        if (!is_found(op, &wrong)) fail_msg("the fault '%s' of %s is not found", faults[i].name, faults[i].op);
    }
}

/* Products whose operands are cut off are wrong in fp32, where any of their variants shows it, and right where TF32 is
 * asked for. */
static void tf32_is_allowed(void **state)
{
    (void)state;
    static const struct op_table cutting = {.linear_fwd = cut_linear_fwd,
                                            .linear_bwd_input = cut_linear_bwd_input,
                                            .linear_bwd_weight = cut_linear_bwd_weight};
    static const char *const ops[] = {"linear_fwd", "linear_bwd_input", "linear_bwd_weight"};
    int found = 0;
    for (size_t i = 0; i < COUNT_OF(ops); i++) {
        const struct op_table table = table_with(right, &cutting, op_number(ops[i]));
        found += is_found(op_number(ops[i]), &table);
        setenv("ZTRAIN_CUDA_TF32", "1", 1);
        if (is_found(op_number(ops[i]), &table)) fail_msg("%s: %s", ops[i], differs);
        unsetenv("ZTRAIN_CUDA_TF32");
    }
    assert_true(found >= 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_lost_op_is_found), cmocka_unit_test(every_fault_is_found),
                                       cmocka_unit_test(tf32_is_allowed)};
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}

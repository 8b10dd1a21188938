/* op_check_cases.c: see op_check_cases.h. A case has the name of its op: check_NAME; the shapes are small, and no
 * number of them divides another where an op allows that. */
#include "gpu/op_check_cases.h"

#include <math.h>
#include <stddef.h>

enum {
    M = 40,
    SEQS = 2,
    C = 64,
    F = 96,
    H = 4,
    KV = 2,
    D = 16,
    V = 101,
    P = 32,
    N = 72,
    COUNT = 1000,
    V_ROW = 104 /* elements between rows of logits */
};
static const int32_t starts[SEQS + 1] = {0, 23, M};
static const double rate = 0.25;

/* Copies the tensors to the device and calls the op. */
#define RUN(bed, op, args)                           \
    do {                                             \
        bed_load(bed);                               \
        (bed)->device->ops->op((bed)->stream, args); \
    } while (0)

static int32_t *positions(struct op_check_bed *b)
{
    int32_t at[M];
    for (int i = 0; i < M; i++)
        at[i] = i < starts[1] ? i : i - starts[1];
    return bed_bytes(b, at, sizeof at);
}

static struct dropout some_dropout(struct op_check_bed *b)
{
    uint64_t numbers[M];
    struct dropout dropout = dropout_of(rate, 7, DROPOUT_ATTENTION, 1);
    for (int i = 0; i < M; i++)
        numbers[i] = (uint64_t)i * 3;
    dropout.tokens = bed_bytes(b, numbers, sizeof numbers);
    return dropout;
}

/* Ops of the optimizer exist once, not for each dtype. */
static bool only_once(const struct op_check_bed *b, int variants)
{
    return b->dtype == DTYPE_F32 && b->variant < variants;
}

/* ---- embeddings, norms --------------------------------------------------- */

static bool check_embedding_fwd(struct op_check_bed *b)
{
    if (b->variant > 1)
        return false;
    struct embedding_fwd_args a = {.dtype = b->dtype, .M = M, .C = C, .scale = 1.5f};
    a.out = bed_output(b, b->dtype, M * C);
    a.tokens = bed_indices(b, M, V);
    a.positions = positions(b);
    a.wte = bed_input(b, b->dtype, V * C, 1);
    a.wpe = b->variant ? bed_input(b, b->dtype, P * C, 1) : NULL;
    RUN(b, embedding_fwd, &a);
    return true;
}

static bool check_embedding_bwd(struct op_check_bed *b)
{
    if (b->variant > 1)
        return false;
    struct embedding_bwd_args a = {.dtype = b->dtype, .M = M, .C = C, .V = V, .P = P, .scale = 1};
    a.accumulate_wte = b->variant == 1;
    a.dwte = bed_changed(b, DTYPE_F32, V * C, 1);
    a.dwpe = b->variant ? bed_changed(b, DTYPE_F32, P * C, 1) : NULL;
    a.dout = bed_input(b, b->dtype, M * C, 1);
    a.tokens = bed_indices(b, M, V / 4);
    a.positions = positions(b);
    RUN(b, embedding_bwd, &a);
    return true;
}

static bool check_norm_fwd(struct op_check_bed *b)
{
    if (b->variant > 1)
        return false;
    const bool layer = b->variant == 1;
    struct norm_fwd_args a = {.dtype = b->dtype, .kind = layer ? NORM_LAYER : NORM_RMS, .M = M, .C = C, .eps = 1e-5f};
    a.y = bed_output(b, b->dtype, M * C);
    a.x = bed_input(b, b->dtype, M * C, 1);
    a.x_out = layer ? bed_output(b, b->dtype, M * C) : NULL;
    a.delta = layer ? bed_input(b, b->dtype, M * C, 1) : NULL;
    a.delta_scale = 0.5f;
    a.weight = bed_positive(b, b->dtype, C);
    a.bias = layer ? bed_input(b, b->dtype, C, 1) : NULL;
    a.mean = layer ? bed_output(b, DTYPE_F32, M) : NULL;
    a.rstd = bed_output(b, DTYPE_F32, M);
    RUN(b, norm_fwd, &a);
    return true;
}

static bool check_norm_bwd(struct op_check_bed *b)
{
    if (b->variant > 1)
        return false;
    const bool layer = b->variant == 1;
    struct norm_bwd_args a = {.dtype = b->dtype, .kind = layer ? NORM_LAYER : NORM_RMS, .M = M, .C = C};
    a.accumulate = layer;
    a.dx = bed_output(b, b->dtype, M * C);
    a.dres = layer ? bed_input(b, b->dtype, M * C, 1) : NULL;
    a.dy = bed_input(b, b->dtype, M * C, 1);
    a.x = bed_input(b, b->dtype, M * C, 1);
    a.weight = bed_positive(b, b->dtype, C);
    a.mean = layer ? bed_input(b, DTYPE_F32, M, 0.1) : NULL;
    a.rstd = bed_positive(b, DTYPE_F32, M);
    a.dweight = bed_changed(b, DTYPE_F32, C, 1);
    a.dbias = layer ? bed_changed(b, DTYPE_F32, C, 1) : NULL;
    RUN(b, norm_bwd, &a);
    return true;
}

static bool check_head_norm_fwd(struct op_check_bed *b)
{
    if (b->variant > 0)
        return false;
    struct head_norm_fwd_args a = {
        .dtype = b->dtype, .M = M, .heads = H, .D = D, .ld_x = H * D, .ld_y = H * D, .eps = 1e-6f};
    a.y = bed_output(b, b->dtype, M * H * D);
    a.x = bed_input(b, b->dtype, M * H * D, 1);
    a.weight = bed_positive(b, b->dtype, D);
    a.rstd = bed_output(b, DTYPE_F32, M * H);
    RUN(b, head_norm_fwd, &a);
    return true;
}

static bool check_head_norm_bwd(struct op_check_bed *b)
{
    if (b->variant > 0)
        return false;
    struct head_norm_bwd_args a = {
        .dtype = b->dtype, .M = M, .heads = H, .D = D, .ld_x = H * D, .ld_dy = H * D, .ld_dx = H * D};
    a.dx = bed_output(b, b->dtype, M * H * D);
    a.dy = bed_input(b, b->dtype, M * H * D, 1);
    a.x = bed_input(b, b->dtype, M * H * D, 1);
    a.weight = bed_positive(b, b->dtype, D);
    a.rstd = bed_positive(b, DTYPE_F32, M * H);
    a.dweight = bed_output(b, DTYPE_F32, D);
    RUN(b, head_norm_bwd, &a);
    return true;
}

/* ---- products ------------------------------------------------------------ */

static bool check_linear_fwd(struct op_check_bed *b)
{
    if (b->variant > 4) /* plain, bias, GELU, both with the other layout of weights, SwiGLU */
        return false;
    struct linear_fwd_args a = {.dtype = b->dtype, .y_dtype = b->dtype, .M = M, .N = N, .K = C};
    a.weights_in_out = b->variant == 3;
    a.gelu = b->variant == 2 || b->variant == 3;
    a.y = bed_output(b, b->dtype, M * N);
    a.x = bed_input(b, b->dtype, M * C, 1);
    a.w = bed_input(b, b->dtype, N * C, 0.2);
    a.bias = b->variant % 2 ? bed_input(b, b->dtype, N, 1) : NULL;
    a.aux = a.gelu ? bed_output(b, b->dtype, M * N) : NULL;
    a.gated = b->variant == 4 ? bed_output(b, b->dtype, M * N / 2) : NULL;
    RUN(b, linear_fwd, &a);
    return true;
}

static bool check_linear_bwd_input(struct op_check_bed *b)
{
    if (b->variant > 3) /* plain, added, with GELU's slope, with SwiGLU's */
        return false;
    struct linear_bwd_input_args a = {.dtype = b->dtype, .M = M, .N = N, .K = C};
    a.weights_in_out = b->variant == 2;
    a.accumulate = b->variant == 1;
    a.dx = bed_changed(b, b->dtype, M * C, 1);
    a.dy = bed_input(b, b->dtype, M * N, 1);
    a.w = bed_input(b, b->dtype, N * C, 0.2);
    a.gelu_aux = b->variant == 2 ? bed_input(b, b->dtype, M * C, 1) : NULL;
    a.gate_up = b->variant == 3 ? bed_changed(b, b->dtype, M * 2 * C, 1) : NULL;
    RUN(b, linear_bwd_input, &a);
    return true;
}

static bool check_linear_bwd_weight(struct op_check_bed *b)
{
    if (b->variant > (b->dtype == DTYPE_BF16 ? 3 : 2))
        return false;
    struct linear_bwd_weight_args a = {.dtype = b->dtype, .M = M, .N = N, .K = C};
    a.weights_in_out = b->variant == 1;
    a.accumulate = b->variant >= 2;
    a.accumulate_dbias = b->variant == 2;
    a.dw_dtype = b->variant == 3 ? DTYPE_BF16 : DTYPE_F32;
    a.dw = bed_changed(b, a.dw_dtype, N * C, 1);
    a.dbias = b->variant ? bed_changed(b, DTYPE_F32, N, 1) : NULL;
    a.dy = bed_input(b, b->dtype, M * N, 1);
    a.x = bed_input(b, b->dtype, M * C, 1);
    RUN(b, linear_bwd_weight, &a);
    return true;
}

/* ---- attention ----------------------------------------------------------- */

static bool check_rope(struct op_check_bed *b)
{
    if (b->variant > 1)
        return false;
    float cosines[P * D / 2], sines[P * D / 2];
    for (int i = 0; i < P * D / 2; i++) {
        cosines[i] = cosf((float)i * 0.1f);
        sines[i] = sinf((float)i * 0.1f);
    }
    struct rope_args a = {.dtype = b->dtype, .M = M, .heads = H, .D = D, .ld = H * D, .R = D};
    a.inverse = b->variant == 1;
    a.x = bed_changed(b, b->dtype, M * H * D, 1);
    a.positions = positions(b);
    a.cos_table = bed_bytes(b, cosines, sizeof cosines);
    a.sin_table = bed_bytes(b, sines, sizeof sines);
    RUN(b, rope, &a);
    return true;
}

/* Causal; with a window; looking both ways. */
static struct attention_bwd_args attention_of(struct op_check_bed *b)
{
    struct attention_bwd_args a = {.dtype = b->dtype, .M = M, .H = H, .KV = KV, .D = D, .scale = 0.25f};
    a.ld_q = a.ld_o = a.ld_dq = H * D;
    a.ld_k = a.ld_v = a.ld_dk = a.ld_dv = KV * D;
    a.window = b->variant == 1 ? 5 : 0;
    a.bidirectional = b->variant == 2;
    a.num_seqs = SEQS;
    a.max_seq = starts[1];
    a.seq_start = bed_bytes(b, starts, sizeof starts);
    a.q = bed_input(b, b->dtype, M * H * D, 1);
    a.k = bed_input(b, b->dtype, M * KV * D, 1);
    a.v = bed_input(b, b->dtype, M * KV * D, 1);
    return a;
}

static bool check_attention_fwd(struct op_check_bed *b)
{
    if (b->variant > 3)
        return false;
    const struct attention_bwd_args backward = attention_of(b);
    struct attention_fwd_args a = attention_forward_of(&backward);
    a.out = bed_output(b, b->dtype, M * H * D);
    a.lse = bed_output(b, DTYPE_F32, H * M);
    if (b->variant == 3)
        a.dropout = some_dropout(b);
    RUN(b, attention_fwd, &a);
    return true;
}

static bool check_attention_bwd(struct op_check_bed *b)
{
    if (b->variant > 3)
        return false;
    struct attention_bwd_args a = attention_of(b);
    a.dout = bed_input(b, b->dtype, M * H * D, 1);
    a.dq = bed_output(b, b->dtype, M * H * D);
    a.dk = bed_output(b, b->dtype, M * KV * D);
    a.dv = bed_output(b, b->dtype, M * KV * D);
    if (b->variant == 3)
        a.dropout = some_dropout(b);
    void *out = bed_input(b, b->dtype, M * H * D, 1);
    float *lse = bed_input(b, DTYPE_F32, H * M, 1);
    struct attention_fwd_args forward = attention_forward_of(&a);
    forward.out = out;
    forward.lse = lse;
    a.out = out;
    a.lse = lse;
    RUN(b, attention_fwd, &forward); /* out and lse are those of q, k and v */
    b->device->ops->attention_bwd(b->stream, &a);
    return true;
}

/* Plain; with a window; with a soft cap; storing alone. */
static bool check_attention_decode(struct op_check_bed *b)
{
    enum { NEW = 3, HELD = 21, ROOM = 29 };
    if (b->variant > 3)
        return false;
    struct attention_decode_args a = {
        .dtype = b->dtype, .M = NEW, .H = H, .KV = KV, .D = D, .scale = 0.25f, .start = HELD, .capacity = ROOM};
    a.ld_q = a.ld_o = H * D;
    a.ld_k = a.ld_v = KV * D;
    a.window = b->variant == 1 ? 5 : 0;
    a.softcap = b->variant == 2 ? 2 : 0;
    a.q = b->variant < 3 ? bed_input(b, b->dtype, NEW * H * D, 1) : NULL;
    a.k = bed_input(b, b->dtype, NEW * KV * D, 1);
    a.v = bed_input(b, b->dtype, NEW * KV * D, 1);
    a.k_cache = bed_changed(b, b->dtype, KV * ROOM * D, 1);
    a.v_cache = bed_changed(b, b->dtype, KV * ROOM * D, 1);
    a.out = b->variant < 3 ? bed_output(b, b->dtype, NEW * H * D) : NULL;
    RUN(b, attention_decode, &a);
    return true;
}

/* ---- the MLP, the loss, elements ----------------------------------------- */

static bool check_swiglu_fwd(struct op_check_bed *b)
{
    if (b->variant > 1)
        return false;
    struct swiglu_fwd_args a = {.dtype = b->dtype, .M = M, .F = F, .gelu = b->variant == 1};
    a.h = bed_output(b, b->dtype, M * F);
    a.gate_up = bed_input(b, b->dtype, M * 2 * F, 2);
    RUN(b, swiglu_fwd, &a);
    return true;
}

static bool check_swiglu_bwd(struct op_check_bed *b)
{
    if (b->variant > 1)
        return false;
    struct swiglu_bwd_args a = {.dtype = b->dtype, .M = M, .F = F, .gelu = b->variant == 1};
    a.dgate_up = bed_output(b, b->dtype, M * 2 * F);
    a.dh = bed_input(b, b->dtype, M * F, 1);
    a.gate_up = bed_input(b, b->dtype, M * 2 * F, 2);
    RUN(b, swiglu_bwd, &a);
    return true;
}

static bool check_tanh_fwd(struct op_check_bed *b)
{
    if (b->variant > 0)
        return false;
    struct tanh_fwd_args a = {.dtype = b->dtype, .n = COUNT};
    a.y = bed_output(b, b->dtype, COUNT);
    a.x = bed_input(b, b->dtype, COUNT, 2);
    RUN(b, tanh_fwd, &a);
    return true;
}

static bool check_tanh_bwd(struct op_check_bed *b)
{
    if (b->variant > 0)
        return false;
    struct tanh_bwd_args a = {.dtype = b->dtype, .n = COUNT};
    a.dx = bed_output(b, b->dtype, COUNT);
    a.dy = bed_input(b, b->dtype, COUNT, 1);
    a.y = bed_input(b, b->dtype, COUNT, 0.9);
    RUN(b, tanh_bwd, &a);
    return true;
}

static bool check_cross_entropy(struct op_check_bed *b)
{
    if (b->variant > 1)
        return false;
    struct cross_entropy_args a = {
        .dtype = b->dtype, .logits_dtype = b->variant ? DTYPE_F32 : b->dtype, .M = M, .V = V};
    a.ld_logits = a.ld_dlogits = a.V_padded = V_ROW;
    a.logit_scale = 1;
    a.scale = 1.0f / M;
    a.smoothing = b->variant ? 0.1f : 0;
    a.logits = bed_input(b, a.logits_dtype, M * V_ROW, 3);
    a.dlogits = bed_output(b, b->dtype, M * V_ROW);
    a.targets = bed_indices(b, M, V);
    a.loss_sum = bed_double(b, 0);
    RUN(b, cross_entropy, &a);
    return true;
}

static bool check_add(struct op_check_bed *b)
{
    if (b->variant > 0)
        return false;
    struct add_args a = {.dtype = b->dtype, .n = COUNT};
    a.y = bed_output(b, b->dtype, COUNT);
    a.a = bed_input(b, b->dtype, COUNT, 1);
    a.b = bed_input(b, b->dtype, COUNT, 1);
    RUN(b, add, &a);
    return true;
}

static bool check_dropout(struct op_check_bed *b)
{
    if (b->variant > 0)
        return false;
    struct dropout_args a = {.dtype = b->dtype, .M = M, .C = C};
    a.y = bed_output(b, b->dtype, M * C);
    a.x = bed_input(b, b->dtype, M * C, 1);
    a.dropout = some_dropout(b);
    RUN(b, dropout, &a);
    return true;
}

static bool check_cast(struct op_check_bed *b)
{
    if (b->variant > 1) /* from fp32, and back */
        return false;
    struct cast_args a = {.n = COUNT};
    a.dst_dtype = b->variant ? DTYPE_F32 : b->dtype;
    a.src_dtype = b->variant ? b->dtype : DTYPE_F32;
    a.dst = bed_output(b, a.dst_dtype, COUNT);
    a.src = bed_input(b, a.src_dtype, COUNT, 1);
    RUN(b, cast, &a);
    return true;
}

static bool check_accumulate(struct op_check_bed *b)
{
    if (b->variant > 1 || b->dtype == DTYPE_F16)
        return false;
    struct accumulate_args a = {.dst_dtype = b->dtype, .src_dtype = DTYPE_F32, .n = COUNT, .scale = 1};
    a.accumulate = b->variant == 1;
    a.dst = bed_changed(b, a.dst_dtype, COUNT, 1);
    a.src = bed_input(b, a.src_dtype, COUNT, 1);
    RUN(b, accumulate, &a);
    return true;
}

/* ---- the end of a step --------------------------------------------------- */

static bool check_sumsq(struct op_check_bed *b)
{
    if (b->variant > 0 || b->dtype == DTYPE_F16)
        return false;
    struct sumsq_args a = {.dtype = b->dtype, .n = COUNT};
    a.x = bed_input(b, b->dtype, COUNT, 1);
    a.out = bed_double(b, 0);
    RUN(b, sumsq, &a);
    return true;
}

static bool check_find_nonfinite(struct op_check_bed *b)
{
    if (b->variant > 0 || b->dtype == DTYPE_F16)
        return false;
    enum { BAD = 617 };
    const int32_t enabled = 1;
    const int64_t none = -1;
    const float large = INFINITY;
    struct find_nonfinite_args a = {.dtype = b->dtype, .n = COUNT};
    char *x = bed_input(b, b->dtype, COUNT, 1);
    const uint16_t half = bf16_from_f32(large);
    const bool narrow = b->dtype == DTYPE_BF16;
    char *at = b->image + (x - b->memory) + (size_t)BAD * dtype_size(b->dtype);
    for (size_t i = 0; i < dtype_size(b->dtype); i++)
        at[i] = narrow ? ((const char *)&half)[i] : ((const char *)&large)[i];
    a.x = x;
    a.enabled = bed_bytes(b, &enabled, sizeof enabled);
    a.index = bed_bytes(b, &none, sizeof none);
    bed_compare(b, a.index, OP_CHECK_BYTES_EQUAL, sizeof none);
    RUN(b, find_nonfinite, &a);
    return true;
}

static const struct step_state state_before = {.optimizer_step = 3,
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

static bool check_decide_step(struct op_check_bed *b)
{
    enum { RANKS = 2, UNITS = 3 };
    if (!only_once(b, 1))
        return false;
    double reports[RANKS * (UNITS + 1)];
    for (int i = 0; i < RANKS * (UNITS + 1); i++)
        reports[i] = 1 + i;
    const struct step_rates rates = {.lr = 1e-3, .correction1 = 0.3, .correction2 = 0.01, .beta1 = 0.9, .beta2 = 0.99};
    const struct step_schedule schedule = {.base = 3, .rates = {rates, rates}};
    struct decide_step_args a = {.world = RANKS, .units = UNITS, .grad_factor = 1, .clip = 1};
    a.scaler = (struct loss_scaler_rules){.hysteresis = 1, .window = 1000, .min_scale = 1};
    a.reports = bed_bytes(b, reports, sizeof reports);
    a.schedule = bed_bytes(b, &schedule, sizeof schedule);
    a.state = bed_bytes(b, &state_before, sizeof state_before);
    bed_compare(b, &a.state->optimizer_step, OP_CHECK_BYTES_EQUAL, sizeof a.state->optimizer_step);
    bed_compare(b, &a.state->loss_sum, OP_CHECK_DOUBLE, 1);
    bed_compare(b, &a.state->grad_norm, OP_CHECK_DOUBLE, 1);
    bed_compare(b, &a.state->lr, OP_CHECK_DOUBLE, 1);
    bed_compare(b, &a.state->beta2, OP_CHECK_DOUBLE, 1);
    bed_compare(b, &a.state->grad_scale, OP_CHECK_F32, 1);
    bed_compare(b, &a.state->skipped, OP_CHECK_BYTES_EQUAL, sizeof a.state->skipped);
    RUN(b, decide_step, &a);
    return true;
}

static const struct decay_segment decay_segments[] = {{8, 0}, {COUNT / 16 * 8, 0.1f}, {COUNT, 0}};

static bool check_adam(struct op_check_bed *b)
{
    if (!only_once(b, 2)) /* gradients in fp32 and bf16 */
        return false;
    struct adam_args a = {.n = COUNT, .grad_dtype = b->variant ? DTYPE_BF16 : DTYPE_F32, .eps = 1e-8f, .adamw = true};
    a.param_dtype = DTYPE_BF16;
    a.master = bed_changed(b, DTYPE_F32, COUNT, 1);
    a.m = bed_changed(b, DTYPE_F32, COUNT, 0.1);
    a.v = bed_positive(b, DTYPE_F32, COUNT);
    bed_compare(b, a.v, OP_CHECK_F32, COUNT);
    a.grad = bed_input(b, a.grad_dtype, COUNT, 1);
    a.step = bed_bytes(b, &state_before, sizeof state_before);
    a.param = bed_output(b, DTYPE_BF16, COUNT);
    a.segments = bed_bytes(b, decay_segments, sizeof decay_segments);
    RUN(b, adam, &a);
    return true;
}

static bool check_momentum(struct op_check_bed *b)
{
    if (!only_once(b, 2)) /* SGD, Lion */
        return false;
    struct momentum_args a = {.n = COUNT, .grad_dtype = DTYPE_F32, .momentum = 0.9f};
    a.rule = b->variant ? OPTIMIZER_LION : OPTIMIZER_SGD;
    a.master = bed_changed(b, DTYPE_F32, COUNT, 1);
    a.m = bed_changed(b, DTYPE_F32, COUNT, 0.1);
    a.grad = bed_input(b, DTYPE_F32, COUNT, 1);
    a.step = bed_bytes(b, &state_before, sizeof state_before);
    a.param_dtype = DTYPE_BF16;
    a.param = bed_output(b, DTYPE_BF16, COUNT);
    a.segments = bed_bytes(b, decay_segments, sizeof decay_segments);
    RUN(b, momentum, &a);
    return true;
}

static bool check_muon_momentum(struct op_check_bed *b)
{
    if (!only_once(b, 1))
        return false;
    struct muon_momentum_args a = {.n = COUNT, .grad_dtype = DTYPE_F32, .momentum = 0.95f, .nesterov = true};
    a.m = bed_changed(b, DTYPE_F32, COUNT, 0.1);
    a.grad = bed_input(b, DTYPE_F32, COUNT, 1);
    a.step = bed_bytes(b, &state_before, sizeof state_before);
    a.update = bed_output(b, DTYPE_BF16, COUNT);
    RUN(b, muon_momentum, &a);
    return true;
}

static bool check_orthogonalize(struct op_check_bed *b)
{
    enum { ROWS = 24, COLUMNS = 40 };
    if (!only_once(b, 1))
        return false;
    const double zero = 0;
    struct orthogonalize_args a = {.rows = ROWS, .cols = COLUMNS, .steps = 3};
    a.x = bed_input(b, DTYPE_BF16, ROWS * COLUMNS, 1);
    a.y = bed_output(b, DTYPE_BF16, ROWS * COLUMNS);
    a.product = bed_input(b, DTYPE_F32, ROWS * COLUMNS, 0);
    a.iterate = bed_input(b, DTYPE_BF16, ROWS * COLUMNS, 0);
    a.gram = bed_input(b, DTYPE_BF16, ROWS * ROWS, 0);
    a.polynomial = bed_input(b, DTYPE_BF16, ROWS * ROWS, 0);
    a.sum = bed_bytes(b, &zero, sizeof zero);
    b->tolerance = 0.1; /* a value that rounds the other way changes all that follow */
    RUN(b, orthogonalize, &a);
    return true;
}

static bool check_muon_update(struct op_check_bed *b)
{
    if (!only_once(b, 1))
        return false;
    struct muon_update_args a = {.n = COUNT, .weight_decay = 0.1f, .lr_factor = 2, .adjust = 0.5};
    a.master = bed_changed(b, DTYPE_F32, COUNT, 1);
    a.update = bed_input(b, DTYPE_BF16, COUNT, 1);
    a.step = bed_bytes(b, &state_before, sizeof state_before);
    a.param_dtype = DTYPE_BF16;
    a.param = bed_output(b, DTYPE_BF16, COUNT);
    RUN(b, muon_update, &a);
    return true;
}

#define OP_CHECK_ENTRY(op) check_##op,
const op_check_case op_check_cases[OPS_COUNT] = {OPS_LIST(OP_CHECK_ENTRY)};

/* op_check_cases.c: see op_check_cases.h. A case has the name of its op: check_NAME. Shapes are small, and the sizes of
 * one op differ from each other. The first variants of an op have rows that fit into vectors of 16 bytes and a few
 * threads, the later ones what other kernels, or other parts of the same one, compute: longer rows, rows that vectors
 * do not divide, tails, tiles after the first. Their numbers follow from the sizes in gpu/cuda/ (ops_cuda_*.cu). */
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
    MANY = 100,   /* rows of which column sums take two ranges */
    GAP = 8,      /* elements between the end of a row and the next one, where an op has a distance of rows */
    COUNT = 1003, /* no whole number of vectors */
    LONG = 9001,  /* elements of which several blocks search or add up a part */
    V_ROW = 104   /* elements between rows of logits */
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

/* A result that is a sum of values which the op has rounded to the op's dtype: one that rounds the other way shows. */
static void allow_rounding(struct op_check_bed *b)
{
    if (b->dtype != DTYPE_F32)
        b->tolerance = op_check_tolerance((enum op_check_type)b->dtype);
}

/* Ops of the optimizer exist once, not for each dtype. */
static bool only_once(const struct op_check_bed *b, int variants)
{
    return b->dtype == DTYPE_F32 && b->variant < variants;
}

/* ---- embeddings, norms --------------------------------------------------- */

static bool check_embedding_fwd(struct op_check_bed *b)
{
    enum { S = 2 };
    if (b->variant > 1)
        return false;
    struct embedding_fwd_args a = {.dtype = b->dtype, .M = M, .C = C, .scale = 1.5f};
    a.out = bed_output(b, b->dtype, M * C);
    a.tokens = bed_indices(b, M, V);
    a.positions = positions(b);
    a.wte = bed_input(b, b->dtype, V * C, 1);
    a.wpe = b->variant ? bed_input(b, b->dtype, P * C, 1) : NULL;
    a.types = b->variant ? bed_indices(b, M, S) : NULL;
    a.wse = b->variant ? bed_input(b, b->dtype, S * C, 1) : NULL;
    RUN(b, embedding_fwd, &a);
    return true;
}

/* Tokens by one digit; then by two, and with types, most of which are equal: a run over three tiles of rows. */
static bool check_embedding_bwd(struct op_check_bed *b)
{
    enum { S = 3, LARGE_V = 600 };
    if (b->variant > 1)
        return false;
    int32_t types[M];
    for (int i = 0; i < M; i++)
        types[i] = i < M - 5 ? 1 : i % S;
    struct embedding_bwd_args a = {.dtype = b->dtype, .M = M, .C = C, .V = V, .P = P, .scale = 1};
    a.accumulate_wte = b->variant == 1;
    a.dout = bed_input(b, b->dtype, M * C, 1);
    a.positions = positions(b);
    if (b->variant) {
        a.V = LARGE_V;
        a.S = S;
        a.types = bed_bytes(b, types, sizeof types);
        a.dwpe = bed_changed(b, DTYPE_F32, P * C, 1);
        a.dwse = bed_changed(b, DTYPE_F32, S * C, 1);
    }
    a.dwte = bed_changed(b, DTYPE_F32, a.V * C, 1);
    a.tokens = bed_indices(b, M, b->variant ? LARGE_V : V / 4);
    RUN(b, embedding_bwd, &a);
    return true;
}

struct norm_shape {
    enum norm_kind kind;
    int64_t rows, C;
    float offset; /* of the weights */
    bool dx_sums;
};

/* The last ones: rows of odd lengths; several warps to a row, and rows to a block; rows that are too long to be
 * held, in elements and in vectors. */
static bool check_norm_fwd(struct op_check_bed *b)
{
    static const struct norm_shape shapes[] = {{NORM_RMS, M, C, 0, false},       {NORM_LAYER, M, C, 0, false},
                                               {NORM_LAYER, 5, C + 3, 0, false}, {NORM_RMS, 5, 1544, 1, false},
                                               {NORM_LAYER, 3, 2051, 1, false},  {NORM_LAYER, 2, 16392, 0, false}};
    if (b->variant >= (int)COUNT_OF(shapes))
        return false;
    const struct norm_shape *s = &shapes[b->variant];
    const bool layer = s->kind == NORM_LAYER;
    const int64_t n = s->rows * s->C;
    struct norm_fwd_args a = {.dtype = b->dtype, .kind = s->kind, .M = s->rows, .C = s->C, .eps = 1e-5f};
    a.y = bed_output(b, b->dtype, n);
    a.x = bed_input(b, b->dtype, n, 1);
    a.x_out = layer ? bed_output(b, b->dtype, n) : NULL;
    a.delta = layer ? bed_input(b, b->dtype, n, 1) : NULL;
    a.delta_scale = 0.5f;
    a.weight = bed_positive(b, b->dtype, s->C);
    a.weight_offset = s->offset;
    a.bias = layer ? bed_input(b, b->dtype, s->C, 1) : NULL;
    a.mean = layer ? bed_output(b, DTYPE_F32, s->rows) : NULL;
    a.rstd = bed_output(b, DTYPE_F32, s->rows);
    RUN(b, norm_fwd, &a);
    return true;
}

/* The last ones: several warps to a row; rows that threads hold two vectors of, without and with the sums of dx; rows
 * that are too long to be held, in elements and in vectors; in fp32 alone, more odd rows than are summed side by side.
 */
static bool check_norm_bwd(struct op_check_bed *b)
{
    static const struct norm_shape shapes[] = {{NORM_RMS, M, C, 0, false},     {NORM_LAYER, M, C, 0, false},
                                               {NORM_LAYER, 5, 776, 1, true},  {NORM_RMS, 5, 4104, 1, false},
                                               {NORM_LAYER, 5, 4104, 0, true}, {NORM_RMS, 3, 2051, 1, true},
                                               {NORM_LAYER, 3, 6152, 0, true}, {NORM_LAYER, 515, 257, 0, true}};
    if (b->variant >= (int)COUNT_OF(shapes) - (b->dtype != DTYPE_F32))
        return false;
    const struct norm_shape *s = &shapes[b->variant];
    const bool layer = s->kind == NORM_LAYER;
    const int64_t n = s->rows * s->C;
    struct norm_bwd_args a = {.dtype = b->dtype, .kind = s->kind, .M = s->rows, .C = s->C};
    a.accumulate = layer;
    a.accumulate_sums = s->dx_sums && layer;
    a.dx = bed_output(b, b->dtype, n);
    a.dres = layer ? bed_input(b, b->dtype, n, 1) : NULL;
    a.dy = bed_input(b, b->dtype, n, 1);
    a.x = bed_input(b, b->dtype, n, 1);
    a.weight = bed_positive(b, b->dtype, s->C);
    a.weight_offset = s->offset;
    a.mean = layer ? bed_input(b, DTYPE_F32, s->rows, 0.1) : NULL;
    a.rstd = bed_positive(b, DTYPE_F32, s->rows);
    a.dweight = bed_changed(b, DTYPE_F32, s->C, 1);
    a.dbias = layer ? bed_changed(b, DTYPE_F32, s->C, 1) : NULL;
    a.dx_sums = s->dx_sums ? bed_changed(b, DTYPE_F32, s->C, 1) : NULL;
    if (s->dx_sums)
        allow_rounding(b);
    RUN(b, norm_bwd, &a);
    return true;
}

/* Then with an offset of the weights, and rows with something between them. */
static bool check_head_norm_fwd(struct op_check_bed *b)
{
    if (b->variant > 1)
        return false;
    const int64_t ld = H * D + (b->variant ? GAP : 0);
    struct head_norm_fwd_args a = {.dtype = b->dtype, .M = M, .heads = H, .D = D, .ld_x = ld, .ld_y = ld, .eps = 1e-6f};
    a.weight_offset = b->variant ? 1 : 0;
    a.y = bed_output(b, b->dtype, M * ld);
    a.x = bed_input(b, b->dtype, M * ld, 1);
    a.weight = bed_positive(b, b->dtype, D);
    a.rstd = bed_output(b, DTYPE_F32, M * H);
    RUN(b, head_norm_fwd, &a);
    return true;
}

static bool check_head_norm_bwd(struct op_check_bed *b)
{
    if (b->variant > 1)
        return false;
    const int64_t ld = H * D + (b->variant ? GAP : 0);
    struct head_norm_bwd_args a = {.dtype = b->dtype, .M = M, .heads = H, .D = D, .ld_x = ld, .ld_dy = ld, .ld_dx = ld};
    a.weight_offset = b->variant ? 1 : 0;
    a.accumulate = b->variant == 1;
    a.dx = bed_output(b, b->dtype, M * ld);
    a.dy = bed_input(b, b->dtype, M * ld, 1);
    a.x = bed_input(b, b->dtype, M * ld, 1);
    a.weight = bed_positive(b, b->dtype, D);
    a.rstd = bed_positive(b, DTYPE_F32, M * H);
    a.dweight = bed_changed(b, DTYPE_F32, D, 1);
    RUN(b, head_norm_bwd, &a);
    return true;
}

/* ---- products ------------------------------------------------------------ */

/* In fp32 the two forms of GELU differ by less than what is allowed otherwise. */
static void tell_erf_from_tanh(struct op_check_bed *b)
{
    if (b->dtype == DTYPE_F32)
        b->tolerance = 1e-4;
}

/* TF32 has ten bits of mantissa, and a library may cut off the others instead of rounding. */
static void allow_tf32(struct op_check_bed *b)
{
    bool tf32;
    if (b->dtype == DTYPE_F32 && device_cuda_wants_tf32(&tf32, NULL) == STATUS_OK && tf32)
        b->tolerance = 4e-3;
}

/* Plain, bias, GELU, both with the other layout of weights, SwiGLU or in fp16 GeGLU; GELU by erf with a bias; logits:
 * fp32, in rows with something between them. */
static bool check_linear_fwd(struct op_check_bed *b)
{
    if (b->variant > 6)
        return false;
    const bool logits = b->variant == 6;
    struct linear_fwd_args a = {.dtype = b->dtype, .y_dtype = logits ? DTYPE_F32 : b->dtype, .M = M, .N = N, .K = C};
    a.weights_in_out = b->variant == 3;
    a.gelu = b->variant == 2 || b->variant == 3 || b->variant == 5;
    a.gelu_erf = b->variant == 5;
    a.ld_y = logits ? N + GAP : 0;
    a.y = bed_output(b, a.y_dtype, M * (logits ? a.ld_y : N));
    a.x = bed_input(b, b->dtype, M * C, 1);
    a.w = bed_input(b, b->dtype, N * C, 0.2);
    a.bias = b->variant % 2 ? bed_input(b, b->dtype, N, 1) : NULL;
    a.aux = a.gelu ? bed_output(b, b->dtype, M * N) : NULL;
    a.gated = b->variant == 4 ? bed_output(b, b->dtype, M * N / 2) : NULL;
    a.gated_gelu = a.gated && b->dtype == DTYPE_F16;
    if (a.gelu_erf)
        tell_erf_from_tanh(b);
    allow_tf32(b);
    RUN(b, linear_fwd, &a);
    return true;
}

/* Plain, added, with GELU's slope, with SwiGLU's or in fp16 GeGLU's; with bias gradients: alone, with GELU's slope,
 * with that by erf. */
static bool check_linear_bwd_input(struct op_check_bed *b)
{
    if (b->variant > 6)
        return false;
    const bool sums = b->variant > 3;
    const int64_t rows = sums ? MANY : M;
    struct linear_bwd_input_args a = {.dtype = b->dtype, .M = rows, .N = N, .K = C};
    a.weights_in_out = b->variant == 2;
    a.accumulate = b->variant == 1;
    a.gelu_erf = b->variant == 6;
    a.ld_dy = sums ? N + GAP : 0;
    a.accumulate_dbias = b->variant > 4;
    a.dx = bed_changed(b, b->dtype, rows * C, 1);
    a.dy = bed_input(b, b->dtype, rows * (N + GAP), 1);
    a.w = bed_input(b, b->dtype, N * C, 0.2);
    a.gelu_aux = b->variant == 2 || b->variant > 4 ? bed_input(b, b->dtype, rows * C, 1) : NULL;
    a.gate_up = b->variant == 3 ? bed_changed(b, b->dtype, M * 2 * C, 1) : NULL;
    a.gated_gelu = a.gate_up && b->dtype == DTYPE_F16;
    a.dbias = sums ? bed_changed(b, DTYPE_F32, C, 1) : NULL;
    if (sums)
        allow_rounding(b);
    if (a.gelu_erf)
        tell_erf_from_tanh(b);
    allow_tf32(b);
    RUN(b, linear_bwd_input, &a);
    return true;
}

static bool check_linear_bwd_weight(struct op_check_bed *b)
{
    if (b->variant > (b->dtype == DTYPE_BF16 ? 4 : 3))
        return false;
    const bool nulls = b->variant == 3; /* columns that are not summed, and more rows, with something between them */
    struct linear_bwd_weight_args a = {.dtype = b->dtype, .M = nulls ? MANY : M, .N = N, .K = C};
    a.weights_in_out = b->variant == 1;
    a.accumulate = b->variant >= 2;
    a.accumulate_dbias = b->variant == 2 || nulls;
    a.dw_dtype = b->variant == 4 ? DTYPE_BF16 : DTYPE_F32;
    a.ld_dy = nulls ? N + GAP : 0;
    a.null_first = nulls ? 16 : 0;
    a.null_count = nulls ? 24 : 0;
    a.dw = bed_changed(b, a.dw_dtype, N * C, 1);
    a.dbias = b->variant ? bed_changed(b, DTYPE_F32, N, 1) : NULL;
    a.dy = bed_input(b, b->dtype, MANY * (N + GAP), 1);
    a.x = bed_input(b, b->dtype, MANY * C, 1);
    allow_tf32(b);
    RUN(b, linear_bwd_weight, &a);
    return true;
}

/* ---- attention ----------------------------------------------------------- */

/* Whole heads; backwards, a part of each head, in rows with something between them. */
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
    if (b->variant == 1) {
        a.ld = H * D + GAP;
        a.R = D - 4;
    }
    a.x = bed_changed(b, b->dtype, M * a.ld, 1);
    a.positions = positions(b);
    a.cos_table = bed_bytes(b, cosines, sizeof cosines);
    a.sin_table = bed_bytes(b, sines, sizeof sines);
    RUN(b, rope, &a);
    return true;
}

struct attention_shape {
    int32_t starts[SEQS + 1];
    int H, KV, D;
};

/* Causal; with a window; looking both ways; with dropout; several tiles of keys and larger heads, with a soft cap;
 * in bf16 alone, heads that are larger still and no whole number of vectors. */
static const struct attention_shape attention_shapes[] = {{{0, 23, M}, H, KV, D},     {{0, 23, M}, H, KV, D},
                                                          {{0, 23, M}, H, KV, D},     {{0, 23, M}, H, KV, D},
                                                          {{0, 70, 75}, 1, 1, 8 * D}, {{0, 33, 36}, 1, 1, 12 * D - 2}};

static struct attention_bwd_args attention_of(struct op_check_bed *b)
{
    const struct attention_shape *s = &attention_shapes[b->variant];
    struct attention_bwd_args a = {.dtype = b->dtype, .M = s->starts[SEQS], .H = s->H, .KV = s->KV, .D = s->D};
    a.scale = 0.25f;
    a.ld_q = a.ld_o = a.ld_dq = a.H * a.D;
    a.ld_k = a.ld_v = a.ld_dk = a.ld_dv = a.KV * a.D;
    a.softcap = b->variant == 4 ? 2 : 0;
    a.window = b->variant == 1 ? 5 : 0;
    a.bidirectional = b->variant == 2;
    a.num_seqs = SEQS;
    a.max_seq = s->starts[1];
    a.seq_start = bed_bytes(b, s->starts, sizeof s->starts);
    a.q = bed_input(b, b->dtype, a.M * a.ld_q, 1);
    a.k = bed_input(b, b->dtype, a.M * a.ld_k, 1);
    a.v = bed_input(b, b->dtype, a.M * a.ld_v, 1);
    return a;
}

static bool check_attention_fwd(struct op_check_bed *b)
{
    if (b->variant >= (int)COUNT_OF(attention_shapes) - (b->dtype != DTYPE_BF16))
        return false;
    const struct attention_bwd_args backward = attention_of(b);
    struct attention_fwd_args a = attention_forward_of(&backward);
    a.out = bed_output(b, b->dtype, a.M * a.ld_o);
    a.lse = bed_output(b, DTYPE_F32, a.H * a.M);
    if (b->variant == 3)
        a.dropout = some_dropout(b);
    RUN(b, attention_fwd, &a);
    return true;
}

static bool check_attention_bwd(struct op_check_bed *b)
{
    if (b->variant >= (int)COUNT_OF(attention_shapes) - (b->dtype != DTYPE_BF16))
        return false;
    struct attention_bwd_args a = attention_of(b);
    a.dout = bed_input(b, b->dtype, a.M * a.ld_o, 1);
    a.dq = bed_output(b, b->dtype, a.M * a.ld_dq);
    a.dk = bed_output(b, b->dtype, a.M * a.ld_dk);
    a.dv = bed_output(b, b->dtype, a.M * a.ld_dv);
    if (b->variant == 3)
        a.dropout = some_dropout(b);
    void *out = bed_input(b, b->dtype, a.M * a.ld_o, 1);
    float *lse = bed_input(b, DTYPE_F32, a.H * a.M, 1);
    struct attention_fwd_args forward = attention_forward_of(&a);
    forward.out = out;
    forward.lse = lse;
    a.out = out;
    a.lse = lse;
    RUN(b, attention_fwd, &forward); /* out and lse are those of q, k and v */
    b->device->ops->attention_bwd(b->stream, &a);
    return true;
}

/* Plain; with a window; with a soft cap; storing alone; larger heads, and more keys than the warps take at a time. */
static bool check_attention_decode(struct op_check_bed *b)
{
    enum { NEW = 3, HELD = 21, ROOM = 29, LARGER = 4 };
    if (b->variant > 4)
        return false;
    const bool larger = b->variant == 4;
    struct attention_decode_args a = {.dtype = b->dtype, .M = NEW, .H = H, .KV = KV, .scale = 0.25f};
    a.D = larger ? LARGER * D + 8 : D;
    a.start = larger ? LARGER * HELD : HELD;
    a.capacity = larger ? LARGER * ROOM : ROOM;
    a.ld_q = a.ld_o = H * a.D;
    a.ld_k = a.ld_v = KV * a.D;
    a.window = b->variant == 1 ? 5 : 0;
    a.softcap = b->variant == 2 ? 2 : 0;
    a.q = b->variant != 3 ? bed_input(b, b->dtype, NEW * a.ld_q, 1) : NULL;
    a.k = bed_input(b, b->dtype, NEW * a.ld_k, 1);
    a.v = bed_input(b, b->dtype, NEW * a.ld_v, 1);
    a.k_cache = bed_changed(b, b->dtype, KV * a.capacity * a.D, 1);
    a.v_cache = bed_changed(b, b->dtype, KV * a.capacity * a.D, 1);
    a.out = b->variant != 3 ? bed_output(b, b->dtype, NEW * a.ld_o) : NULL;
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

/* Every third row has no target. */
static int32_t *some_targets(struct op_check_bed *b, int64_t rows, int64_t columns)
{
    int32_t targets[M];
    ASSERT(rows <= M);
    for (int i = 0; i < rows; i++)
        targets[i] = i % 3 == 1 ? -1 : (int32_t)(columns - 1 - i * 37 % columns);
    return bed_bytes(b, targets, (size_t)rows * sizeof *targets);
}

/* Logits of rows that no multiprocessor keeps as a whole. Some of them, along the whole row, stand out, so that their
 * gradients count next to that of the target. */
static void *long_logits(struct op_check_bed *b, enum dtype dtype, int64_t rows, int64_t ld)
{
    enum { APART = 4001 };
    void *logits = bed_input(b, dtype, rows * ld, 3);
    for (int64_t i = APART; i < rows * ld; i += APART)
        bed_set(b, logits, dtype, i, 9);
    return logits;
}

static void add_scales(struct op_check_bed *b, struct cross_entropy_args *a)
{
    const float loss_scale = 8, step_scale = 0.25f;
    a->logit_scale = 1.5f;
    a->softcap = 20;
    a->loss_scale = bed_bytes(b, &loss_scale, sizeof loss_scale);
    a->step_scale = bed_bytes(b, &step_scale, sizeof step_scale);
}

/* Rows of more bytes than a block keeps, whose gradients lie over the logits. */
static void check_long_rows(struct op_check_bed *b, enum dtype logits_dtype)
{
    enum { ROWS = 3, BYTES = 240 << 10, LESS = 5 };
    const int64_t size = (int64_t)dtype_size(logits_dtype), columns = BYTES / size - LESS;
    struct cross_entropy_args a = {.dtype = b->dtype, .logits_dtype = logits_dtype, .M = ROWS, .V = columns};
    a.ld_logits = BYTES / size;
    a.ld_dlogits = BYTES / (int64_t)dtype_size(b->dtype);
    a.V_padded = columns + 2;
    a.scale = 1.0f / ROWS;
    a.logits = a.dlogits = long_logits(b, logits_dtype, ROWS, a.ld_logits);
    a.targets = some_targets(b, ROWS, columns);
    a.loss_sum = bed_double(b, 1);
    add_scales(b, &a);
    for (int i = 0; i < ROWS; i++) /* the elements after V_padded are not gradients */
        bed_compare(b, (char *)a.dlogits + (size_t)i * BYTES, (enum op_check_type)b->dtype, a.V_padded);
    RUN(b, cross_entropy, &a);
}

/* Logits of the op's dtype; logits in fp32, smoothed labels, a soft cap; long rows of either kind, in place. */
static bool check_cross_entropy(struct op_check_bed *b)
{
    if (b->variant > (b->dtype == DTYPE_F32 ? 2 : 3))
        return false;
    if (b->variant > 1) {
        check_long_rows(b, b->variant == 3 ? DTYPE_F32 : b->dtype);
        return true;
    }
    struct cross_entropy_args a = {
        .dtype = b->dtype, .logits_dtype = b->variant ? DTYPE_F32 : b->dtype, .M = M, .V = V};
    a.ld_logits = a.ld_dlogits = a.V_padded = V_ROW;
    a.logit_scale = 1;
    a.scale = 1.0f / M;
    a.smoothing = b->variant ? 0.1f : 0;
    if (b->variant)
        add_scales(b, &a);
    a.logits = bed_input(b, a.logits_dtype, M * V_ROW, b->variant ? 9 : 3);
    a.dlogits = bed_output(b, b->dtype, M * V_ROW);
    a.targets = some_targets(b, M, V);
    a.loss_sum = bed_double(b, 1);
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
    if (b->variant > 1)
        return false;
    const int64_t columns = b->variant ? C + 3 : C; /* not whole blocks of random words */
    struct dropout_args a = {.dtype = b->dtype, .M = M, .C = columns};
    a.y = bed_output(b, b->dtype, M * columns);
    a.x = bed_input(b, b->dtype, M * columns, 1);
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

/* From fp32, scaled and added; from bf16, added, to fp32 and to bf16. */
static bool check_accumulate(struct op_check_bed *b)
{
    const bool narrow = b->variant > 1;
    if (b->variant > (b->dtype == DTYPE_BF16 ? 3 : 1) || b->dtype == DTYPE_F16)
        return false;
    struct accumulate_args a = {.dst_dtype = b->variant == 2 ? DTYPE_F32 : b->dtype, .n = COUNT};
    a.src_dtype = narrow ? DTYPE_BF16 : DTYPE_F32;
    a.accumulate = b->variant > 0;
    a.scale = a.accumulate ? 1 : 0.5f;
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
    struct sumsq_args a = {.dtype = b->dtype, .n = LONG};
    a.x = bed_input(b, b->dtype, LONG, 1);
    a.out = bed_double(b, 0);
    b->tolerance = 1e-7; /* a single element shows */
    RUN(b, sumsq, &a);
    return true;
}

static bool check_find_nonfinite(struct op_check_bed *b)
{
    if (b->variant > 0 || b->dtype == DTYPE_F16)
        return false;
    enum { BAD = 6170 };
    const int32_t enabled = 1;
    const int64_t none = -1;
    struct find_nonfinite_args a = {.dtype = b->dtype, .n = LONG};
    void *x = bed_input(b, b->dtype, LONG, 1);
    bed_set(b, x, b->dtype, BAD, INFINITY);
    bed_set(b, x, b->dtype, LONG - 1, NAN);
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

/* The state of an optimizer step for an op that reads it. */
static const struct step_state *state_of(struct op_check_bed *b, int64_t step, bool skipped)
{
    struct step_state state = state_before;
    state.optimizer_step = step;
    state.skipped = skipped;
    return bed_bytes(b, &state, sizeof state);
}

/* A step that counts; one with gradients that are not finite. */
static bool check_decide_step(struct op_check_bed *b)
{
    enum { RANKS = 2, UNITS = 3 };
    if (!only_once(b, 2))
        return false;
    double reports[RANKS * (UNITS + 1)];
    for (int i = 0; i < RANKS * (UNITS + 1); i++)
        reports[i] = 1 + i;
    if (b->variant == 1)
        reports[UNITS + 2] = reports[RANKS * (UNITS + 1) - 1] = INFINITY;
    const struct step_rates rates = {.lr = 1e-3, .correction1 = 0.3, .correction2 = 0.01, .beta1 = 0.9, .beta2 = 0.99};
    const struct step_schedule schedule = {.base = 3, .rates = {rates, rates}};
    struct decide_step_args a = {.world = RANKS, .units = UNITS, .grad_factor = 1, .clip = 1};
    a.scaler =
        (struct loss_scaler_rules){.dynamic = b->variant == 1, .hysteresis = 1, .window = 1000, .min_scale = 0.25};
    a.reports = bed_bytes(b, reports, sizeof reports);
    a.schedule = bed_bytes(b, &schedule, sizeof schedule);
    a.state = bed_bytes(b, &state_before, sizeof state_before);
    bed_compare(b, &a.state->optimizer_step, OP_CHECK_BYTES_EQUAL, sizeof a.state->optimizer_step);
    bed_compare(b, &a.state->loss_sum, OP_CHECK_DOUBLE, 1);
    bed_compare(b, &a.state->grad_norm, OP_CHECK_DOUBLE, 1);
    bed_compare(b, &a.state->lr, OP_CHECK_DOUBLE, 1);
    bed_compare(b, &a.state->beta2, OP_CHECK_DOUBLE, 1);
    bed_compare(b, &a.state->grad_scale, OP_CHECK_F32, 1);
    bed_compare(b, &a.state->loss_scale, OP_CHECK_F32, 1);
    bed_compare(b, &a.state->scaler.last_overflow, OP_CHECK_BYTES_EQUAL, sizeof a.state->scaler.last_overflow);
    bed_compare(b, &a.state->bad_unit, OP_CHECK_BYTES_EQUAL, sizeof a.state->bad_unit);
    bed_compare(b, &a.state->bad_loss_rank, OP_CHECK_BYTES_EQUAL, sizeof a.state->bad_loss_rank);
    bed_compare(b, &a.state->skipped, OP_CHECK_BYTES_EQUAL, sizeof a.state->skipped);
    RUN(b, decide_step, &a);
    return true;
}

/* Times state_before.lr, the decays are no small part of a value. */
static const struct decay_segment decay_segments[] = {{8, 0}, {COUNT / 16 * 8, 20}, {COUNT / 8 * 8 + 8, 5}};

/* Gradients in fp32 and bf16, those with Adam's way of decay; states in bf16 and moments in fp32, element by element;
 * both in bf16; a step that is skipped. */
static bool check_adam(struct op_check_bed *b)
{
    static const struct {
        enum dtype grad, master, moments;
        int64_t place;
    } variants[] = {{DTYPE_F32, DTYPE_F32, DTYPE_F32, 0},
                    {DTYPE_BF16, DTYPE_F32, DTYPE_F32, 0},
                    {DTYPE_F32, DTYPE_BF16, DTYPE_F32, 3},
                    {DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, 2 * ROUNDING_BLOCK},
                    {DTYPE_F32, DTYPE_F32, DTYPE_F32, 0}};
    if (!only_once(b, COUNT_OF(variants)))
        return false;
    const bool wide = variants[b->variant].master == DTYPE_F32;
    struct adam_args a = {.n = COUNT, .grad_dtype = variants[b->variant].grad, .eps = 1e-8f, .weight_decay = 10};
    a.master_dtype = variants[b->variant].master;
    a.moment_dtype = variants[b->variant].moments;
    a.rounding = (struct rounding_place){.seed = 5, .unit = 2, .place = variants[b->variant].place};
    a.adamw = b->variant != 1;
    b->unequal = wide ? 0 : 0.02; /* states are rounded by random bits, which are the same on both devices */
    a.param_dtype = DTYPE_BF16;
    a.master = bed_changed(b, a.master_dtype, COUNT, 1);
    a.m = bed_changed(b, a.moment_dtype, COUNT, 0.1);
    a.v = bed_positive(b, a.moment_dtype, COUNT);
    bed_compare(b, a.v, (enum op_check_type)a.moment_dtype, COUNT);
    a.grad = bed_input(b, a.grad_dtype, COUNT, 1);
    a.step = state_of(b, 3, b->variant == 4);
    a.param = wide ? bed_output(b, DTYPE_BF16, COUNT) : NULL;
    a.segments = b->variant != 2 ? bed_bytes(b, decay_segments, sizeof decay_segments) : NULL;
    RUN(b, adam, &a);
    return true;
}

/* SGD; Lion; SGD by Nesterov from gradients in bf16; the first step of SGD; a step that is skipped. */
static bool check_momentum(struct op_check_bed *b)
{
    if (!only_once(b, 5))
        return false;
    struct momentum_args a = {.n = COUNT, .momentum = 0.9f, .dampening = 0.25f, .weight_decay = 2};
    a.grad_dtype = b->variant == 2 ? DTYPE_BF16 : DTYPE_F32;
    a.rule = b->variant == 1 ? OPTIMIZER_LION : OPTIMIZER_SGD;
    a.nesterov = b->variant == 2;
    a.master = bed_changed(b, DTYPE_F32, COUNT, 1);
    a.m = bed_changed(b, DTYPE_F32, COUNT, 0.1);
    a.grad = bed_input(b, a.grad_dtype, COUNT, 1);
    a.step = state_of(b, b->variant == 3 ? 1 : 3, b->variant == 4);
    a.param_dtype = DTYPE_BF16;
    a.param = bed_output(b, DTYPE_BF16, COUNT);
    a.segments = b->variant != 2 ? bed_bytes(b, decay_segments, sizeof decay_segments) : NULL;
    RUN(b, momentum, &a);
    return true;
}

/* By Nesterov; without, from gradients in bf16; a step that is skipped. */
static bool check_muon_momentum(struct op_check_bed *b)
{
    if (!only_once(b, 3))
        return false;
    struct muon_momentum_args a = {.n = COUNT, .momentum = 0.95f, .nesterov = b->variant != 1};
    a.grad_dtype = b->variant == 1 ? DTYPE_BF16 : DTYPE_F32;
    a.m = bed_changed(b, DTYPE_F32, COUNT, 0.1);
    a.grad = bed_input(b, a.grad_dtype, COUNT, 1);
    a.step = state_of(b, 3, b->variant == 2);
    a.update = bed_output(b, DTYPE_BF16, COUNT);
    RUN(b, muon_momentum, &a);
    return true;
}

/* More columns than rows; more rows than columns. */
static bool check_orthogonalize(struct op_check_bed *b)
{
    enum { FEWER = 24, MORE = 40 };
    if (!only_once(b, 2))
        return false;
    const double zero = 0;
    struct orthogonalize_args a = {.rows = FEWER, .cols = MORE, .steps = 2};
    if (b->variant == 1) {
        a.rows = MORE;
        a.cols = FEWER;
    }
    a.x = bed_input(b, DTYPE_BF16, FEWER * MORE, 1);
    a.y = bed_output(b, DTYPE_BF16, FEWER * MORE);
    a.product = bed_input(b, DTYPE_F32, FEWER * MORE, 0);
    a.iterate = bed_input(b, DTYPE_BF16, FEWER * MORE, 0);
    a.gram = bed_input(b, DTYPE_BF16, FEWER * FEWER, 0);
    a.polynomial = bed_input(b, DTYPE_BF16, FEWER * FEWER, 0);
    a.sum = bed_bytes(b, &zero, sizeof zero);
    b->tolerance = 0.1; /* a value that rounds the other way changes all that follow */
    RUN(b, orthogonalize, &a);
    return true;
}

/* A step that counts; one that is skipped. */
static bool check_muon_update(struct op_check_bed *b)
{
    if (!only_once(b, 2))
        return false;
    struct muon_update_args a = {.n = COUNT, .weight_decay = 10, .lr_factor = 2, .adjust = 0.5};
    a.master = bed_changed(b, DTYPE_F32, COUNT, 1);
    a.update = bed_input(b, DTYPE_BF16, COUNT, 1);
    a.step = state_of(b, 3, b->variant == 1);
    a.param_dtype = DTYPE_BF16;
    a.param = bed_output(b, DTYPE_BF16, COUNT);
    RUN(b, muon_update, &a);
    return true;
}

#define OP_CHECK_ENTRY(op) check_##op,
const op_check_case op_check_cases[OPS_COUNT] = {OPS_LIST(OP_CHECK_ENTRY)};

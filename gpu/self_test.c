/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/self_test.h"

#include "core/heartbeat.h"
#include "core/memory.h"
#include "gpu/self_test_cases.h"

enum { TESTED, REFERENCE, BEDS, BYTES = 4 << 20, RESULTS = 16, ALIGN = 256 };

enum result_type {
    RESULT_F32 = DTYPE_F32,
    RESULT_BF16 = DTYPE_BF16,
    RESULT_F16 = DTYPE_F16,
    RESULT_DOUBLE = DTYPE_COUNT,
    RESULT_BYTES /* every byte counts */
};

/* n elements in memory that are compared. */
struct result {
    size_t at; /* offset in memory */
    enum result_type type;
    int64_t n;
};

/* Where one device runs a case. The memory of both has the same layout and begins with the same bytes. */
struct bed {
    struct device *device; /* borrowed */
    struct stream *stream;
    char *memory; /* of the device: BYTES */
    char *image;  /* of the host: its bytes before the op, and then after it */
    void *workspace;
    size_t workspace_bytes;
    size_t used;
    uint64_t random;
    struct result results[RESULTS];
    int count;
};

struct self_test {
    struct bed beds[BEDS];
};

/* ---- operands ------------------------------------------------------------ */

/* -1 … 1, by Knuth's generator of 64 bits. */
static double self_test_draw(struct bed *bed)
{
    bed->random = bed->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(int32_t)(bed->random >> 32) * 0x1p-31;
}

static void self_test_put_element(char *to, enum dtype dtype, double value)
{
    if (dtype == DTYPE_COUNT)
        memcpy(to, &value, sizeof value);
    else
        dtype_store(to, 0, (float)value, dtype);
}

/* Types of tokens are mostly equal: a run over three tiles of rows. Experts of a token, and places, differ. */
static int32_t self_test_draw_index(struct bed *bed, const struct operand *o, const union op_args *args, int op,
                                    int64_t i, int64_t n)
{
    enum { TYPES = 3, TYPES_APART = 5, TABLE = 32, STRIDE = 7 };
    if (op == OP_permute_experts) return (int32_t)(i * STRIDE % args->permute_experts.E);
    if (op == OP_route || op == OP_route_bwd)
        return (int32_t)(i * STRIDE % (op == OP_route ? args->route.E : args->route_bwd.E));
    if (op == OP_combine_bias_bwd) return (int32_t)(i * STRIDE % args->combine_bias_bwd.E);
    if (op == OP_gather_tokens || op == OP_combine_tokens || op == OP_experts_swiglu_bwd)
        return (int32_t)(i * STRIDE % n);
    const bool backward = op == OP_embedding_bwd;
    const void *pointer = operand_pointer(o, (void *)(uintptr_t)args);
    if (pointer == (backward ? &args->embedding_bwd.types : &args->embedding_fwd.types))
        return i < n - TYPES_APART ? 1 : (int32_t)(i % TYPES);
    const bool tokens = backward && pointer == &args->embedding_bwd.tokens;
    const double below = tokens ? (double)args->embedding_bwd.V : TABLE;
    return (int32_t)fmin(fabs(self_test_draw(bed)) * below, below - 1);
}

/* A code of 4 or 8 bits, or an exponent near that of 1: none is that of NaN. */
static uint8_t self_test_draw_byte(struct bed *bed, const struct operand *o, const union op_args *args)
{
    const bool exponents = operand_pointer(o, (void *)(uintptr_t)args) == (void *)&args->dequantize.scale_codes &&
                           args->dequantize.format == QUANTIZED_MXFP4;
    const int code = (int)(fabs(self_test_draw(bed)) * 255);
    return (uint8_t)(exponents ? 127 + code % 8 - 4 : code % 128 == 127 ? code - 1 : code);
}

/* Fills an operand that has a shape: inputs with random values, outputs with NaN. */
static void fill_tensor(struct bed *bed, const struct operand *o, const struct self_test_case *c, int op,
                        const union op_args *args, char *to)
{
    enum { APART = 4001 }; /* logits that stand out along a row: their gradients count next to the target's */
    const enum dtype dtype = operand_dtype(o, args);
    const size_t size = operand_element(o, args);
    const int64_t n = operand_numel(o, args, true), none = -1;
    const double scale = c->scale > 0 ? (double)c->scale : 1;
    for (int64_t i = 0; i < n; i++, to += size) {
        const int32_t index = o->type == OPERAND_INDEX ? self_test_draw_index(bed, o, args, op, i, n) : 0;
        if (o->type == OPERAND_INDEX)
            memcpy(to, &index, sizeof index);
        else if (o->type == OPERAND_BYTE)
            *to = (char)self_test_draw_byte(bed, o, args);
        else if (o->type == OPERAND_FIRST)
            memcpy(to, &none, sizeof none);
        else if (!(o->use & OPERAND_READ))
            memset(to, 0xff, size);
        else if (o->use & OPERAND_POSITIVE)
            self_test_put_element(to, dtype, 1 + 0.5 * self_test_draw(bed));
        else if (c->uneven && op == OP_find_nonfinite && (i == n - 1 || i == n * 2 / 3))
            self_test_put_element(to, dtype, i == n - 1 ? (double)NAN : (double)INFINITY);
        else
            self_test_put_element(to, dtype, c->uneven && i && i % APART == 0 ? 9 : scale * self_test_draw(bed));
    }
}

static void self_test_compare_later(struct bed *bed, size_t at, enum result_type type, int64_t n)
{
    ASSERT(bed->count < RESULTS);
    bed->results[bed->count++] = (struct result){at, type, n};
}

static void self_test_compare_state(struct bed *bed, size_t at)
{
#define MEMBER(type, m)                                                                                       \
    {                                                                                                         \
        offsetof(struct step_state, m), type, type == RESULT_BYTES ? sizeof((struct step_state *)NULL)->m : 1 \
    }
    static const struct result members[] = {MEMBER(RESULT_BYTES, optimizer_step),
                                            MEMBER(RESULT_DOUBLE, loss_sum),
                                            MEMBER(RESULT_DOUBLE, grad_norm),
                                            MEMBER(RESULT_DOUBLE, lr),
                                            MEMBER(RESULT_DOUBLE, beta2),
                                            MEMBER(RESULT_F32, grad_scale),
                                            MEMBER(RESULT_F32, loss_scale),
                                            MEMBER(RESULT_BYTES, bad_unit),
                                            MEMBER(RESULT_BYTES, bad_loss_rank),
                                            MEMBER(RESULT_BYTES, skipped),
                                            MEMBER(RESULT_BYTES, scaler.last_overflow)};
    for (size_t i = 0; i < COUNT_OF(members); i++)
        self_test_compare_later(bed, at + members[i].at, members[i].type, members[i].n);
}

/* dlogits lie over the logits; the elements after V_padded are not gradients. */
static void self_test_compare_rows(struct bed *bed, const struct cross_entropy_args *a)
{
    const size_t at = (size_t)((const char *)a->logits - bed->memory),
                 row = (size_t)a->ld_logits * dtype_size(a->logits_dtype);
    for (int64_t i = 0; i < a->M; i++)
        self_test_compare_later(bed, at + (size_t)i * row, (enum result_type)a->dtype, a->V_padded);
}

static void place_operand(struct bed *b, const struct operand *o, const struct self_test_case *c, int op,
                          union op_args *a)
{
    const size_t at = b->used;
    char *image = b->image + at;
    const bool shaped = operand_element(o, a) > 0;
    b->used += shaped ? (size_t)operand_numel(o, a, true) * operand_element(o, a) : SELF_TEST_FIXED;
    b->used = (b->used + ALIGN - 1) / ALIGN * ALIGN;
    ASSERT(b->used <= BYTES);
    if (shaped)
        fill_tensor(b, o, c, op, a, image);
    else
        self_test_fill(o, c, op, image);
    *operand_pointer(o, a) = b->memory + at;
    if (o->type == OPERAND_NUMBERS) {
        struct dropout *dropout = (struct dropout *)(void *)operand_pointer(o, a);
        *dropout = dropout_of(0.25, 7, DROPOUT_ATTENTION, 1);
        dropout->tokens = (const uint64_t *)(void *)(b->memory + at);
    }
    if (!(o->use & OPERAND_WRITTEN)) return;
    if (o->type == OPERAND_STATE)
        self_test_compare_state(b, at);
    else if (o->type == OPERAND_MOMENTS)
        self_test_compare_later(b, at, RESULT_BYTES, a->adam8.n / MOMENT_BLOCK * (int64_t)sizeof(struct moment_block));
    else if (o->type == OPERAND_FIRST)
        self_test_compare_later(b, at, RESULT_BYTES, sizeof(int64_t));
    else if (o->type == OPERAND_INDEX)
        self_test_compare_later(b, at, RESULT_BYTES, operand_numel(o, a, true) * (int64_t)sizeof(int32_t));
    else if (o->type == OPERAND_OFFSETS)
        self_test_compare_later(b, at, RESULT_BYTES, (a->permute_experts.E + 1) * (int64_t)sizeof(int32_t));
    else
        self_test_compare_later(b, at, (enum result_type)operand_dtype(o, a), operand_numel(o, a, true));
}

static void place_operands(struct bed *bed, const struct self_test_case *c, int op, enum dtype dtype, union op_args *a)
{
    const struct op_operands operands = op_operands(op);
    *a = c->args;
    for (int i = 0; i < operands.count; i++) {
        const int at = operands.all[i].type - 1;
        enum dtype *own = (enum dtype *)(void *)((char *)a + at);
        if (at >= 0 && *own == SELF_TEST_SAME) *own = dtype;
    }
    for (const struct operand *o = operands.all; o < operands.all + operands.count; o++) {
        if (op == OP_cross_entropy && c->uneven && operand_pointer(o, a) == &a->cross_entropy.dlogits) {
            a->cross_entropy.dlogits = (void *)(uintptr_t)a->cross_entropy.logits;
            self_test_compare_rows(bed, &a->cross_entropy);
        } else if (operand_exists(o, a)) {
            place_operand(bed, o, c, op, a);
        }
    }
}

/* ---- comparison ---------------------------------------------------------- */

static double self_test_element(const char *at, enum result_type type, int64_t i)
{
    double wide;
    if (type == RESULT_BYTES) return (double)(unsigned char)at[i];
    if (type != RESULT_DOUBLE) return (double)dtype_load(at, i, (enum dtype)type);
    memcpy(&wide, at + (size_t)i * sizeof wide, sizeof wide);
    return wide;
}

/* Relative to the value and to the tensor's root mean square. The two devices round in the same places, but add in
 * different orders. TF32 has ten bits of mantissa; a library may cut off the others instead of rounding. */
static double tolerance_of(int op, const struct self_test_case *c, enum dtype dtype, enum result_type type)
{
    static const double by_type[] = {
        [RESULT_F32] = 1e-3, [RESULT_BF16] = 4e-2, [RESULT_F16] = 1e-2, [RESULT_DOUBLE] = 1e-3, [RESULT_BYTES] = 0};
    const bool product = op == OP_linear_fwd || op == OP_linear_bwd_input || op == OP_linear_bwd_weight;
    bool tf32;
    if (type == RESULT_BYTES) return 0;
    if (product && dtype == DTYPE_F32 && device_cuda_wants_tf32(&tf32, NULL) == STATUS_OK && tf32) return 4e-3;
    return c->tolerance > 0 ? c->tolerance : by_type[c->rounded && dtype != DTYPE_F32 ? (int)dtype : (int)type];
}

static bool self_test_is_close(double value, double right, double rms, double tolerance)
{
    if (!isfinite(right)) return isnan(right) ? isnan(value) : value == right;
    return fabs(value - right) <= tolerance * (fabs(right) + rms);
}

static bool self_test_few_unequal(const char *values, const char *right, const struct result *r, double share,
                                  char *text, size_t size)
{
    const int64_t most = (int64_t)(share * (double)r->n);
    int64_t unequal = 0;
    if (share <= 0 || (r->type != RESULT_BF16 && r->type != RESULT_F16)) return true;
    for (int64_t i = 0; i < r->n; i++) unequal += memcmp(values + 2 * i, right + 2 * i, 2) != 0;
    if (unequal > most)
        snprintf(text, size, "%lld of %lld elements differ, where at most %lld is right", (long long)unequal,
                 (long long)r->n, (long long)most);
    return unequal <= most;
}

/* False: `text` says where the two devices differ. */
static bool self_test_compare_result(const struct bed *own, const struct bed *reference, int index, double tolerance,
                                     double unequal, char *text, size_t size)
{
    const struct result *r = &reference->results[index];
    const char *values = own->image + r->at, *right = reference->image + r->at;
    double squares = 0;
    int64_t finite = 0;
    for (int64_t i = 0; i < r->n; i++) {
        const double x = self_test_element(right, r->type, i);
        if (!isfinite(x)) continue;
        squares += x * x;
        finite++;
    }
    const double rms = finite && r->type != RESULT_BYTES ? sqrt(squares / (double)finite) : 0;
    for (int64_t i = 0; i < r->n; i++) {
        const double x = self_test_element(values, r->type, i), y = self_test_element(right, r->type, i);
        if (self_test_is_close(x, y, rms, tolerance)) continue;
        snprintf(text, size, "element %lld of %lld is %g, where %g is right", (long long)i, (long long)r->n, x, y);
        return false;
    }
    return self_test_few_unequal(values, right, r, unequal, text, size);
}

/* ---- running a case ------------------------------------------------------ */

static void run_bed(struct bed *bed, const struct self_test_case *c, int op, enum dtype dtype)
{
    union op_args args;
    memset(bed->image, 0, bed->used); /* what lies between the operands of the next case is equal on both devices */
    bed->used = 0;
    bed->count = 0;
    bed->random = 1;
    place_operands(bed, c, op, dtype, &args);
    stream_copy(bed->stream, bed->memory, bed->image, bed->used);
    if (op == OP_attention_bwd) bed->device->ops->attention_fwd(bed->stream, &args.attention_bwd.fwd);
    op_launch(bed->stream, op, &args);
    stream_copy(bed->stream, bed->image, bed->memory, bed->used);
    stream_sync(bed->stream);
    heartbeat_beat();
}

/* `variant`: the number of the case among those of the op and this dtype. */
static enum status run_case(struct self_test *test, int op, const struct self_test_case *c, enum dtype dtype,
                            int variant, char *differs, size_t size, struct error *err)
{
    struct bed *own = &test->beds[TESTED], *reference = &test->beds[REFERENCE];
    run_bed(own, c, op, dtype);
    enum status status = device_check(own->device, err);
    if (status != STATUS_OK) return error_prefix(err, "the check of %s", op_name(op));
    run_bed(reference, c, op, dtype);
    ASSERT(own->used == reference->used && own->count == reference->count);
    for (int i = 0; i < reference->count && !*differs; i++) {
        char text[160];
        const double tolerance = tolerance_of(op, c, dtype, reference->results[i].type);
        if (!self_test_compare_result(own, reference, i, tolerance, c->unequal, text, sizeof text))
            snprintf(differs, size, "in %s, variant %d: %s", dtype_name(dtype), variant, text);
    }
    return STATUS_OK;
}

enum status self_test_op(struct self_test *test, int op, char *differs, size_t size, struct error *err)
{
    const struct self_test_cases *cases = &self_test_cases[op];
    differs[0] = '\0';
    for (enum dtype dtype = DTYPE_F32; dtype < DTYPE_COUNT; dtype++) {
        int variant = 0;
        for (int i = 0; i < cases->count && !*differs; i++) {
            const struct self_test_case *c = &cases->all[i];
            if (!c->dtypes || c->dtypes & 1u << dtype) TRY(run_case(test, op, c, dtype, variant++, differs, size, err));
        }
    }
    return STATUS_OK;
}

/* ---- life ---------------------------------------------------------------- */

static enum status self_test_open_bed(struct bed *bed, struct device *device, struct error *err)
{
    enum { MOST = 128, HEADS = 4, HEAD = 256, TOKENS = 1024, ROW = 17 << 10, VOCABULARY = 1 << 17 }; /* of any case */
    const struct op_limits limits = {
        .dtype = DTYPE_F32,
        .max_tokens = TOKENS,
        .C = ROW,
        .F = MOST,
        .H = HEADS,
        .KV = HEADS,
        .D = HEAD,
        .V = VOCABULARY,
        .P = MOST,
        .max_linear_k = MOST,
        .max_linear_n = MOST,
        .max_seqs = HEADS,
        .max_seq = TOKENS,
        .delta_rule = {.M = TOKENS, .Hk = 1, .Hv = HEADS, .Dk = MOST, .Dv = MOST, .num_seqs = HEADS, .max_seq = TOKENS},
        .backward = true,
        .max_expert_rows = TOKENS};
    bed->device = device;
    bed->workspace_bytes = ops_workspace_bytes(device, &limits);
    bed->image = memory_zeroed(1, BYTES);
    TRY(stream_new(device, STREAM_COMPUTE, &bed->stream, err));
    TRY(device_alloc(device, BYTES, (void **)&bed->memory, err));
    TRY(device_alloc(device, bed->workspace_bytes, &bed->workspace, err));
    stream_set_workspace(bed->stream, bed->workspace, bed->workspace_bytes);
    return STATUS_OK;
}

enum status self_test_new(struct device *device, struct device *reference, struct self_test **test, struct error *err)
{
    RELEASED(self_test_drop) struct self_test *c = memory_zeroed(1, sizeof *c);
    TRY(self_test_open_bed(&c->beds[TESTED], device, err));
    TRY(self_test_open_bed(&c->beds[REFERENCE], reference, err));
    *test = TAKEN(c);
    return STATUS_OK;
}

void self_test_free(struct self_test *c)
{
    for (int i = 0; c && i < BEDS; i++) {
        struct bed *bed = &c->beds[i];
        if (!bed->device) continue;
        stream_free(bed->stream);
        device_free(bed->device, bed->memory, BYTES);
        device_free(bed->device, bed->workspace, bed->workspace_bytes);
        free(bed->image);
    }
    free(c);
}

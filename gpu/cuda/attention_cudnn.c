/* attention_cudnn.c: attention on a GPU through cuDNN: plans, their choice, their execution.
 *
 *     ops_workspace_bytes()   announces a shape -> plans are made, or refused with a reason      PLANNED or REFUSED
 *     ops_prepare()          each plan runs once beside our own kernel on data of its own       VERIFIED or REFUSED
 *     an op                  the plan of exactly its shape, else our own kernels
 *
 * So nothing is chosen, allocated or loaded in a step, and a cuDNN that computes something else than we mean is noticed
 * before the first one. Plans live as long as the device. Which engine a plan has depends on shape, GPU and library
 * alone, never on timing: all ranks and a resumed run compute with the same kernels. One thread: the device's.
 *
 * The stream's workspace: | lse (B, H, T) | delta (B, H, T) | the plan's |. A plan that needs much of it is one for a
 * part of the sequences, and runs several times. Of an op whose sequences lie behind each
 * other in more than one head, lse changes its order on the way; q, k, v and their gradients are used where they lie.
 */
#include "gpu/cuda/attention_cudnn.h"

#include "core/env_switch.h"
#include "core/log.h"
#include "core/progress.h"
#include "gpu/arena.h"
#include "gpu/cuda/attention_cudnn_graph.h"
#include "gpu/cuda/device_cuda_error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What ZTRAIN_CUDA_ATTENTION asks for; -1: nothing. */
enum { WISH_OWN, WISH_CUDNN, WISH_COUNT };

static enum status attention_wish(int *wish, struct error *err)
{
    static const char *const words[WISH_COUNT] = {[WISH_OWN] = "own", [WISH_CUDNN] = "cudnn"};
    return env_choice("ZTRAIN_CUDA_ATTENTION", words, WISH_COUNT, wish, err);
}

#if ZTRAIN_HAVE_CUDNN

enum { WORKSPACE_ALIGN = 256, POINTER_ALIGN = 16 };
enum direction { FORWARD, BACKWARD, DIRECTIONS };
enum entry_state { PLANNED, VERIFIED, REFUSED };

static const char *const direction_names[DIRECTIONS] = {"forward", "backward"};

/* A shape that was announced. */
struct entry {
    struct attention_shape shape;
    enum direction direction;
    enum entry_state state;
    struct cudnn_plan *plan; /* owned; NULL: REFUSED */
    int64_t pieces;          /* the plan is for a micro-batch of B / pieces sequences */
    char why[512];           /* REFUSED */
    bool told;
    struct entry *next;
};

struct attention_cudnn {
    struct cuda_device *cuda; /* borrowed */
    bool off, demanded;       /* ZTRAIN_CUDA_ATTENTION=own, cudnn */
    bool tried, told;
    struct cudnn_target target; /* handle NULL: the library cannot be used, and why not */
    char why[512];
    struct entry *entries; /* owned */
};

/* ---- the library --------------------------------------------------------- */

static enum status open_library(struct attention_cudnn *a, struct error *err)
{
    if (a->tried)
        return a->target.handle ? STATUS_OK : error_set(err, STATUS_DEVICE, "%s", a->why);
    a->tried = true;
    enum status status = cudnn_open(&a->target.cudnn, err);
    if (status == STATUS_OK) {
        a->target.version = (int)a->target.cudnn->cudnnGetVersion();
        cudnnStatus_t code = a->target.cudnn->cudnnCreate(&a->target.handle);
        if (code != CUDNN_STATUS_SUCCESS) {
            a->target.handle = NULL;
            status = error_set(err, STATUS_DEVICE, "cannot open cuDNN on GPU %d: %s", a->cuda->index,
                               a->target.cudnn->cudnnGetErrorString(code));
        }
    }
    if (status != STATUS_OK)
        snprintf(a->why, sizeof a->why, "%.*s", (int)sizeof a->why - 1, err->text);
    return status;
}

enum status attention_cudnn_new(struct cuda_device *cuda, struct attention_cudnn **attention, struct error *err)
{
    int wish;
    *attention = NULL;
    TRY(attention_wish(&wish, err));
    struct attention_cudnn *a = *attention = calloc(1, sizeof *a);
    if (!a)
        return error_set(err, STATUS_DEVICE, "cannot open a CUDA device: out of memory");
    a->cuda = cuda;
    a->off = wish == WISH_OWN;
    a->demanded = wish == WISH_CUDNN;
    enum status status = STATUS_OK;
    if (a->demanded && (status = open_library(a, err)) != STATUS_OK)
        error_prefix(err, "ZTRAIN_CUDA_ATTENTION asks for cuDNN");
    if (status != STATUS_OK) {
        attention_cudnn_free(a);
        *attention = NULL;
    }
    return status;
}

void attention_cudnn_free(struct attention_cudnn *a)
{
    if (!a)
        return;
    while (a->entries) {
        struct entry *entry = a->entries;
        a->entries = entry->next;
        cudnn_plan_free(entry->plan);
        free(entry);
    }
    if (a->target.handle)
        a->target.cudnn->cudnnDestroy(a->target.handle);
    free(a);
}

/* ---- shapes -------------------------------------------------------------- */

static struct attention_shape shape_fwd(const struct attention_fwd_args *args)
{
    struct attention_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.dtype = args->dtype;
    shape.B = args->num_seqs;
    shape.T = args->max_seq;
    shape.H = args->H;
    shape.KV = args->KV;
    shape.D = args->D;
    shape.window = args->window > 0 && args->window < args->max_seq ? args->window : 0;
    shape.ld_q = args->ld_q;
    shape.ld_k = args->ld_k;
    shape.ld_v = args->ld_v;
    shape.ld_o = args->ld_o;
    shape.scale = (double)args->scale;
    return shape;
}

static struct attention_shape shape_bwd(const struct attention_bwd_args *args)
{
    struct attention_fwd_args forward = attention_forward_of(args);
    struct attention_shape shape = shape_fwd(&forward);
    shape.ld_dq = args->ld_dq;
    shape.ld_dk = args->ld_dk;
    shape.ld_dv = args->ld_dv;
    return shape;
}

static struct entry *find(const struct attention_cudnn *a, const struct attention_shape *shape,
                          enum direction direction)
{
    for (struct entry *entry = a->entries; entry; entry = entry->next)
        if (entry->direction == direction && !memcmp(&entry->shape, shape, sizeof *shape))
            return entry;
    return NULL;
}

static void refuse(struct entry *entry, const char *why)
{
    cudnn_plan_free(entry->plan);
    entry->plan = NULL;
    entry->state = REFUSED;
    snprintf(entry->why, sizeof entry->why, "%.*s", (int)sizeof entry->why - 1, why);
}

/* ---- announcing ---------------------------------------------------------- */

static size_t aligned(size_t bytes)
{
    return (bytes + WORKSPACE_ALIGN - 1) / WORKSPACE_ALIGN * WORKSPACE_ALIGN;
}

/* Of lse, and of delta. */
static size_t row_values_bytes(const struct attention_shape *shape)
{
    return aligned((size_t)(shape->B * shape->H * shape->T) * sizeof(float));
}

/* The plan's part begins at a multiple of WORKSPACE_ALIGN, wherever the stream's begins. */
static size_t workspace_bytes(const struct entry *entry)
{
    return 2 * row_values_bytes(&entry->shape) + aligned(cudnn_plan_workspace_bytes(entry->plan)) + WORKSPACE_ALIGN;
}

static bool strides_fit(const struct attention_shape *shape)
{
    const int64_t strides[] = {shape->ld_q,  shape->ld_k,  shape->ld_v, shape->ld_o,
                               shape->ld_dq, shape->ld_dk, shape->ld_dv};
    for (size_t i = 0; i < COUNT_OF(strides); i++)
        if (strides[i] * 2 % POINTER_ALIGN != 0)
            return false;
    return true;
}

static enum status make_plan(struct attention_cudnn *a, struct entry *entry, size_t most_workspace, struct error *err)
{
    struct attention_shape part = entry->shape;
    part.B /= entry->pieces;
    return (entry->direction == FORWARD ? attention_plan_fwd : attention_plan_bwd)(&a->target, &part, most_workspace,
                                                                                   &entry->plan, err);
}

/* Backward wants a workspace of T x T for every head: it goes through the micro-batch in as many equal pieces as make
 * that a small part of the memory, and is refused where one sequence alone would take a large part. */
static enum status make_plans(struct attention_cudnn *a, struct entry *entry, struct error *err)
{
    const size_t memory = a->cuda->device.memory_bytes, small = memory / 256, large = memory / 16;
    const struct attention_shape *s = &entry->shape;
    TRY(make_plan(a, entry, SIZE_MAX, err));
    size_t workspace = cudnn_plan_workspace_bytes(entry->plan);
    for (int64_t pieces = 2; pieces <= s->B && workspace / (size_t)entry->pieces > small; pieces++)
        if (s->B % pieces == 0 && s->B / pieces * s->H * s->T * (int64_t)sizeof(float) % POINTER_ALIGN == 0)
            entry->pieces = pieces; /* each piece of lse is aligned, as rows are */
    if (entry->pieces == 1 && workspace <= large)
        return STATUS_OK;
    cudnn_plan_free(entry->plan);
    return make_plan(a, entry, large, err);
}

/* The workspace that the shape needs; 0: our own kernels will do it. */
static size_t announce(struct attention_cudnn *a, const struct attention_shape *shape, int64_t M,
                       enum direction direction)
{
    struct error err = {0};
    struct entry *entry = find(a, shape, direction);
    if (!entry) {
        entry = calloc(1, sizeof *entry);
        if (!entry)
            return 0;
        entry->shape = *shape;
        entry->direction = direction;
        entry->pieces = 1;
        entry->next = a->entries;
        a->entries = entry;
        enum status status = STATUS_OK;
        if (shape->dtype == DTYPE_F32)
            status = error_set(&err, STATUS_DEVICE, "cuDNN computes attention in 16 bits only");
        else if (M != shape->B * shape->T)
            status = error_set(&err, STATUS_DEVICE, "the sequences of a micro-batch differ in length");
        else if (!strides_fit(shape))
            status = error_set(&err, STATUS_DEVICE, "rows are not aligned to %d bytes", (int)POINTER_ALIGN);
        struct slow_call slow; /* it loads libraries and compiles */
        progress_slow_begin(&slow, "preparing attention by cuDNN", NULL, -1);
        if (status == STATUS_OK)
            status = open_library(a, &err);
        if (status == STATUS_OK)
            status = make_plans(a, entry, &err);
        progress_slow_end(&slow);
        if (status != STATUS_OK)
            refuse(entry, err.text);
    }
    return entry->plan ? workspace_bytes(entry) : 0;
}

size_t attention_cudnn_workspace_bytes(struct attention_cudnn *a, const struct op_limits *limits)
{
    size_t forward = 0, backward = 0;
    if (a->off)
        return 0;
    if (limits->attention_fwd.M > 0) {
        struct attention_shape shape = shape_fwd(&limits->attention_fwd);
        forward = announce(a, &shape, limits->attention_fwd.M, FORWARD);
    }
    if (limits->attention_bwd.M > 0) {
        struct attention_shape shape = shape_bwd(&limits->attention_bwd);
        backward = announce(a, &shape, limits->attention_bwd.M, BACKWARD);
    }
    return forward > backward ? forward : backward;
}

/* ---- the ops ------------------------------------------------------------- */

static bool is_aligned(const void *pointer)
{
    return (uintptr_t)pointer % POINTER_ALIGN == 0;
}

/* The plan for an op; NULL: there is none. */
static struct entry *plan_for(const struct attention_cudnn *a, const struct attention_shape *shape, int64_t M,
                              enum direction direction)
{
    struct entry *entry = M > 0 && M == shape->B * shape->T ? find(a, shape, direction) : NULL;
    return entry && entry->plan ? entry : NULL;
}

struct workspace {
    float *lse, *delta;
    char *plan;
};

static struct workspace workspace_of(const struct stream *stream, const struct entry *entry)
{
    size_t bytes, row_values = row_values_bytes(&entry->shape);
    char *base = stream_workspace(stream, &bytes);
    ASSERT(workspace_bytes(entry) <= bytes);
    base += -(uintptr_t)base % WORKSPACE_ALIGN;
    return (struct workspace){(float *)(void *)base, (float *)(void *)(base + row_values), base + 2 * row_values};
}

/* `tokens` rows of ld 16-bit elements further on. */
static void *rows_from(const void *base, int64_t tokens, int64_t ld)
{
    return (char *)base + tokens * ld * (int64_t)sizeof(uint16_t);
}

/* Queues the plan. NULL, or what went wrong. */
static const char *execute(const struct entry *entry, struct stream *stream, void *pointers[ATTENTION_POINTERS],
                           void *workspace)
{
    const struct cudnn_target *target = &cuda_device_of(stream)->attention->target;
    cudnnStatus_t code = target->cudnn->cudnnSetStream(target->handle, cuda_stream_of(stream)->handle);
    return code == CUDNN_STATUS_SUCCESS ? cudnn_plan_execute(entry->plan, pointers, ATTENTION_POINTERS, workspace)
                                        : target->cudnn->cudnnGetErrorString(code);
}

/* Whether (H, B · T) and (B, H, T) are different orders. */
static bool reorders(const struct attention_shape *shape)
{
    return shape->B > 1 && shape->H > 1;
}

static const char *execute_fwd(const struct entry *entry, struct stream *stream, const struct attention_fwd_args *args)
{
    const struct attention_shape *s = &entry->shape;
    struct workspace workspace = workspace_of(stream, entry);
    float *lse = reorders(s) ? workspace.lse : args->lse;
    const char *failed = NULL;
    for (int64_t i = 0; i < entry->pieces && !failed; i++) {
        int64_t first = i * (s->B / entry->pieces) * s->T;
        void *pointers[ATTENTION_POINTERS] = {
            [ATTENTION_Q] = rows_from(args->q, first, s->ld_q),
            [ATTENTION_K] = rows_from(args->k, first, s->ld_k),
            [ATTENTION_V] = rows_from(args->v, first, s->ld_v),
            [ATTENTION_OUT] = rows_from(args->out, first, s->ld_o),
            [ATTENTION_LSE] = lse + first * s->H,
        };
        failed = execute(entry, stream, pointers, workspace.plan);
    }
    if (!failed && reorders(s))
        attention_lse_by_head(stream, args->lse, lse, s->B, s->H, s->T);
    return failed;
}

static const char *execute_bwd(const struct entry *entry, struct stream *stream, const struct attention_bwd_args *args)
{
    const struct attention_shape *s = &entry->shape;
    struct workspace workspace = workspace_of(stream, entry);
    const float *lse = reorders(s) ? workspace.lse : args->lse;
    const char *failed = NULL;
    if (reorders(s))
        attention_lse_by_sequence(stream, workspace.lse, args->lse, s->B, s->H, s->T);
    for (int64_t i = 0; i < entry->pieces && !failed; i++) {
        int64_t first = i * (s->B / entry->pieces) * s->T;
        void *pointers[ATTENTION_POINTERS] = {
            [ATTENTION_Q] = rows_from(args->q, first, s->ld_q),
            [ATTENTION_K] = rows_from(args->k, first, s->ld_k),
            [ATTENTION_V] = rows_from(args->v, first, s->ld_v),
            [ATTENTION_OUT] = rows_from(args->out, first, s->ld_o),
            [ATTENTION_DOUT] = rows_from(args->dout, first, s->ld_o),
            [ATTENTION_LSE] = (void *)(lse + first * s->H),
            [ATTENTION_DELTA] = workspace.delta + first * s->H,
            [ATTENTION_DQ] = rows_from(args->dq, first, s->ld_dq),
            [ATTENTION_DK] = rows_from(args->dk, first, s->ld_dk),
            [ATTENTION_DV] = rows_from(args->dv, first, s->ld_dv),
        };
        failed = execute(entry, stream, pointers, workspace.plan);
    }
    return failed;
}

static bool are_aligned(const void *const *pointers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!is_aligned(pointers[i]))
            return false;
    return true;
}

static void report(struct stream *stream, enum direction direction, const char *failed)
{
    if (failed)
        cuda_fail(cuda_device_of(stream), "attention, %s: cuDNN: %s; hint: ZTRAIN_CUDA_ATTENTION=own does without it",
                  direction_names[direction], failed);
}

bool attention_cudnn_fwd(struct stream *stream, const struct attention_fwd_args *args)
{
    const void *const used[] = {args->q, args->k, args->v, args->out};
    struct attention_shape shape = shape_fwd(args);
    const struct entry *entry = plan_for(cuda_device_of(stream)->attention, &shape, args->M, FORWARD);
    if (!entry || !are_aligned(used, COUNT_OF(used)))
        return false;
    report(stream, FORWARD, execute_fwd(entry, stream, args));
    return true;
}

bool attention_cudnn_bwd(struct stream *stream, const struct attention_bwd_args *args)
{
    const void *const used[] = {args->q, args->k, args->v, args->out, args->dout, args->dq, args->dk, args->dv};
    struct attention_shape shape = shape_bwd(args);
    const struct entry *entry = plan_for(cuda_device_of(stream)->attention, &shape, args->M, BACKWARD);
    if (!entry || !are_aligned(used, COUNT_OF(used)))
        return false;
    report(stream, BACKWARD, execute_bwd(entry, stream, args));
    return true;
}

/* ---- verifying ----------------------------------------------------------- */

/* Values that repeat after so many, a prime: no two rows of a tensor are alike. */
enum { PATTERN = 65521 };

/* What a plan leaves, twice: rows of `width` values, ld apart, that are compared in pieces of `row` values. lse is
 * float (H, B · T), the others have 16 bits. */
struct outcome {
    const char *name;
    char *first, *second; /* device */
    int64_t ld, width, row;
    bool is_lse;
};

struct trial {
    const struct entry *entry;
    struct stream *stream;
    void *memory; /* device, owned, for the arena */
    size_t bytes;
    struct arena arena;
    void *pattern; /* host (PATTERN) 16-bit values */
    char *host[2]; /* host, owned: a sequence of each */
    struct attention_fwd_args fwd;
    struct attention_bwd_args bwd;
    struct outcome outcomes[3];
    int count;
};

/* Values of both signs, small enough for scores to differ by a few. */
static void make_pattern(uint16_t *pattern, enum dtype dtype)
{
    uint32_t state = 1;
    for (int i = 0; i < PATTERN; i++) {
        state = state * 1664525u + 1013904223u;
        float value = (float)(int32_t)state * 0x1p-31f;
        pattern[i] = dtype == DTYPE_BF16 ? bf16_from_f32(value) : f16_from_f32(value);
    }
}

/* Device memory of `count` 16-bit values with the pattern in it. */
static void *take(struct trial *t, int64_t count)
{
    char *memory = arena_take(&t->arena, MEM_DATA, (size_t)count * sizeof(uint16_t));
    for (int64_t at = 0; t->arena.base && at < count; at += PATTERN) {
        int64_t n = count - at < PATTERN ? count - at : PATTERN;
        stream_copy(t->stream, memory + at * (int64_t)sizeof(uint16_t), t->pattern, (size_t)n * sizeof(uint16_t));
    }
    return memory;
}

static void *take_outcome(struct trial *t, const char *name, int64_t heads, int64_t ld)
{
    const struct attention_shape *s = &t->entry->shape;
    struct outcome *outcome = &t->outcomes[t->count++];
    *outcome = (struct outcome){.name = name, .ld = ld, .width = heads * s->D, .row = s->D};
    outcome->first = take(t, s->B * s->T * ld);
    outcome->second = take(t, s->B * s->T * ld);
    return outcome->first;
}

static void *take_lse(struct trial *t)
{
    const struct attention_shape *s = &t->entry->shape;
    const int64_t M = s->B * s->T;
    struct outcome *outcome = &t->outcomes[t->count++];
    *outcome = (struct outcome){.name = "lse", .ld = M, .width = M, .row = M, .is_lse = true};
    outcome->first = take(t, 2 * s->H * M);
    outcome->second = take(t, 2 * s->H * M);
    return outcome->first;
}

/* Lays everything out; with a dry arena only counts. */
static void lay_out(struct trial *t)
{
    const struct attention_shape *s = &t->entry->shape;
    int64_t M = s->B * s->T;
    t->count = 0;
    int32_t *seq_start = arena_take(&t->arena, MEM_DATA, (size_t)(s->B + 1) * sizeof *seq_start);
    for (int32_t i = 0; t->arena.base && i <= s->B; i++) {
        int32_t start = i * (int32_t)s->T;
        stream_copy(t->stream, seq_start + i, &start, sizeof start);
    }
    t->bwd = (struct attention_bwd_args){.dtype = (enum dtype)s->dtype,
                                         .M = M,
                                         .H = s->H,
                                         .KV = s->KV,
                                         .D = s->D,
                                         .ld_q = s->ld_q,
                                         .ld_k = s->ld_k,
                                         .ld_v = s->ld_v,
                                         .ld_o = s->ld_o,
                                         .ld_dq = s->ld_dq,
                                         .ld_dk = s->ld_dk,
                                         .ld_dv = s->ld_dv,
                                         .scale = (float)s->scale,
                                         .window = s->window,
                                         .num_seqs = (int32_t)s->B,
                                         .max_seq = (int32_t)s->T,
                                         .seq_start = seq_start,
                                         .q = take(t, M * s->ld_q),
                                         .k = take(t, M * s->ld_k),
                                         .v = take(t, M * s->ld_v)};
    t->fwd = attention_forward_of(&t->bwd);
    if (t->entry->direction == FORWARD) {
        t->fwd.out = take_outcome(t, "out", s->H, s->ld_o);
        t->fwd.lse = take_lse(t);
    } else {
        t->bwd.out = t->fwd.out = take(t, M * s->ld_o);
        t->bwd.lse = t->fwd.lse = take(t, M * s->H * 2);
        t->bwd.dout = take(t, M * s->ld_o);
        t->bwd.dq = take_outcome(t, "dq", s->H, s->ld_dq);
        t->bwd.dk = take_outcome(t, "dk", s->KV, s->ld_dk);
        t->bwd.dv = take_outcome(t, "dv", s->KV, s->ld_dv);
    }
}

/* The op's results go to the second place of each. */
static void use_second(struct trial *t)
{
    if (t->entry->direction == FORWARD) {
        t->fwd.out = t->outcomes[0].second;
        t->fwd.lse = (float *)t->outcomes[1].second;
    } else {
        t->bwd.dq = t->outcomes[0].second;
        t->bwd.dk = t->outcomes[1].second;
        t->bwd.dv = t->outcomes[2].second;
    }
}

static const char *run_plan(struct trial *t)
{
    return t->entry->direction == FORWARD ? execute_fwd(t->entry, t->stream, &t->fwd)
                                          : execute_bwd(t->entry, t->stream, &t->bwd);
}

static void run_own(struct trial *t)
{
    t->entry->direction == FORWARD ? attention_own_fwd(t->stream, &t->fwd) : attention_own_bwd(t->stream, &t->bwd);
}

static size_t value_bytes(const struct outcome *outcome)
{
    return outcome->is_lse ? sizeof(float) : sizeof(uint16_t);
}

static double value_at(const struct trial *t, const struct outcome *outcome, const char *values, int64_t i)
{
    if (outcome->is_lse)
        return (double)((const float *)(const void *)values)[i];
    uint16_t bits = ((const uint16_t *)(const void *)values)[i];
    return (double)(t->entry->shape.dtype == DTYPE_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits));
}

/* The root of the mean square of own results: `count` rows of `width` values. */
static double typical(const struct trial *t, const struct outcome *outcome, int64_t first, int64_t count, int64_t width)
{
    double squares = 0;
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = 0; j < width; j++) {
            double value = value_at(t, outcome, t->host[1], first + i * outcome->ld + j);
            squares += value * value;
        }
    }
    return sqrt(squares / (double)(count * width));
}

/* Whether both have `rows` rows of about the same values, and what is between the rows is the same. The few keys that
 * the first queries see have gradients much larger than others, so a difference is measured by its own row, too. NaN is
 * far from everything. */
static bool are_close(const struct trial *t, const struct outcome *outcome, int64_t rows)
{
    const double share = outcome->is_lse ? 1e-3 : t->entry->shape.dtype == DTYPE_BF16 ? 6e-2 : 1e-2;
    const double least = share / 8 * typical(t, outcome, 0, rows, outcome->width);
    const size_t bytes = value_bytes(outcome), gap = (size_t)(outcome->ld - outcome->width) * bytes;
    for (int64_t i = 0; i < rows * outcome->ld; i += outcome->ld) {
        for (int64_t j = i; j < i + outcome->width; j += outcome->row) {
            double near = typical(t, outcome, j, 1, outcome->row);
            for (int64_t k = j; k < j + outcome->row; k++) {
                double value = value_at(t, outcome, t->host[1], k);
                double difference = fabs(value_at(t, outcome, t->host[0], k) - value);
                if (!(difference <= share * (fabs(value) + near) + least))
                    return false;
            }
        }
        size_t at = (size_t)(i + outcome->width) * bytes;
        if (memcmp(t->host[0] + at, t->host[1] + at, gap) != 0)
            return false;
    }
    return true;
}

/* Compares first and second of the first and the last sequence (of lse: of the first and the last head). NULL, or the
 * name of what differs. */
static const char *compare(struct trial *t, bool exactly)
{
    const struct attention_shape *s = &t->entry->shape;
    for (int i = 0; i < t->count; i++) {
        const struct outcome *outcome = &t->outcomes[i];
        int64_t pieces = outcome->is_lse ? s->H : s->B, rows = outcome->is_lse ? 1 : s->T;
        size_t bytes = (size_t)(rows * outcome->ld) * value_bytes(outcome);
        for (int64_t piece = 0; piece<pieces; piece += pieces> 1 ? pieces - 1 : 1) {
            stream_copy(t->stream, t->host[0], outcome->first + (size_t)piece * bytes, bytes);
            stream_copy(t->stream, t->host[1], outcome->second + (size_t)piece * bytes, bytes);
            stream_sync(t->stream);
            if (exactly ? memcmp(t->host[0], t->host[1], bytes) != 0 : !are_close(t, outcome, rows))
                return outcome->name;
        }
    }
    return NULL;
}

/* NULL, or why the plan must not be used. */
static const char *try_plan(struct trial *t, char *text, size_t size)
{
    const char *different, *failed;
    if (t->entry->direction == BACKWARD)
        attention_own_fwd(t->stream, &t->fwd); /* out and lse as they would be */
    failed = run_plan(t);
    use_second(t);
    if (!failed)
        failed = run_plan(t);
    stream_sync(t->stream);
    if (failed) {
        snprintf(text, size, "cuDNN cannot run its plan: %s", failed);
        return text;
    }
    if ((different = compare(t, true))) {
        snprintf(text, size, "cuDNN's %s does not repeat bit for bit", different);
        return text;
    }
    run_own(t);
    if ((different = compare(t, false))) {
        snprintf(text, size, "cuDNN's %s differs from what ztrain's kernels compute", different);
        return text;
    }
    return NULL;
}

static enum status verify(struct attention_cudnn *a, struct entry *entry, struct error *err)
{
    enum status status;
    char text[512];
    struct device *device = &a->cuda->device;
    const struct attention_shape *s = &entry->shape;
    struct trial t = {.entry = entry};
    size_t piece = (size_t)(s->T * (s->ld_o + s->ld_dq + s->ld_dk + s->ld_dv)) * sizeof(uint16_t) +
                   (size_t)(s->B * s->T) * sizeof(float); /* more than any piece that is compared */
    size_t workspace = workspace_bytes(entry);
    arena_init_dry(&t.arena);
    lay_out(&t);
    arena_take(&t.arena, MEM_WORKSPACE, workspace);
    t.bytes = t.arena.used;
    t.pattern = malloc(PATTERN * sizeof(uint16_t));
    t.host[0] = malloc(2 * piece);
    if (!t.pattern || !t.host[0]) {
        status = error_set(err, STATUS_DEVICE, "cannot verify cuDNN's attention: out of memory");
        goto fail;
    }
    t.host[1] = t.host[0] + piece;
    make_pattern(t.pattern, (enum dtype)s->dtype);
    TRY_GOTO(stream_new(device, STREAM_COMPUTE, &t.stream, err));
    if (device_alloc(device, t.bytes, &t.memory, err) != STATUS_OK) {
        refuse(entry, "there is no memory to verify cuDNN's results in");
        status = STATUS_OK;
        goto fail;
    }
    arena_init(&t.arena, t.memory, t.bytes);
    lay_out(&t);
    stream_set_workspace(t.stream, arena_take(&t.arena, MEM_WORKSPACE, workspace), workspace);
    const char *why = try_plan(&t, text, sizeof text);
    progress_tick();
    status = device_check(device, err);
    if (status != STATUS_OK)
        error_hint(err, "cuDNN's attention was on trial; ZTRAIN_CUDA_ATTENTION=own does without it");
    else if (why)
        refuse(entry, why);
    else
        entry->state = VERIFIED;
fail:
    stream_free(t.stream);
    device_free(device, t.memory, t.bytes);
    free(t.pattern);
    free(t.host[0]);
    return status;
}

/* ---- what is said -------------------------------------------------------- */

static void describe(const struct attention_cudnn *a, const struct entry *entry, char *text, size_t size)
{
    int version = a->target.version;
    if (entry->state == REFUSED)
        snprintf(text, size, "ztrain's kernels: %s", entry->why);
    else
        snprintf(text, size, "cuDNN %d.%d.%d, engine %lld, %.1f MiB of workspace, in %lld piece%s", version / 10000,
                 version / 100 % 100, version % 100, (long long)cudnn_plan_engine(entry->plan),
                 (double)cudnn_plan_workspace_bytes(entry->plan) / (1 << 20), (long long)entry->pieces,
                 entry->pieces == 1 ? "" : "s");
}

static void tell(const struct attention_cudnn *a, struct entry *entry)
{
    char text[768];
    const struct attention_shape *s = &entry->shape;
    if (entry->told)
        return;
    entry->told = true;
    describe(a, entry, text, sizeof text);
    (a->demanded && entry->state == REFUSED ? log_warn : log_info)(
        "attention %s, %s, %lld x %lld tokens, %lld heads of %lld, %lld of keys: %s", direction_names[entry->direction],
        dtype_name((enum dtype)s->dtype), (long long)s->B, (long long)s->T, (long long)s->H, (long long)s->D,
        (long long)s->KV, text);
}

enum status attention_cudnn_prepare(struct attention_cudnn *a, struct error *err)
{
    for (struct entry *entry = a->entries; entry; entry = entry->next) {
        if (entry->state == PLANNED)
            TRY(verify(a, entry, err));
        tell(a, entry);
    }
    if (a->off && !a->told) {
        a->told = true;
        log_info("attention: ztrain's kernels, as ZTRAIN_CUDA_ATTENTION=own asks for");
    }
    return STATUS_OK;
}

void attention_cudnn_describe(const struct attention_cudnn *a, char *text, size_t size)
{
    int counts[2] = {0, 0};
    for (const struct entry *entry = a->entries; entry; entry = entry->next)
        counts[entry->state != REFUSED]++;
    if (a->off)
        snprintf(text, size, "attention: ztrain's kernels, as ZTRAIN_CUDA_ATTENTION=own asks for");
    else
        snprintf(text, size, "attention: cuDNN for %d of %d shapes%s%s%s", counts[1], counts[0] + counts[1],
                 counts[0] ? ", ztrain's kernels for the others" : "", *a->why ? "; " : "", a->why);
}

#else /* a build without cuDNN's header */

struct attention_cudnn {
    char unused;
};

enum status attention_cudnn_new(struct cuda_device *cuda, struct attention_cudnn **attention, struct error *err)
{
    int wish;
    (void)cuda;
    *attention = NULL;
    TRY(attention_wish(&wish, err));
    if (wish == WISH_CUDNN)
        return error_set(err, STATUS_DEVICE,
                         "ZTRAIN_CUDA_ATTENTION asks for cuDNN, but this build has none: it was "
                         "built without its header");
    return STATUS_OK;
}

void attention_cudnn_free(struct attention_cudnn *attention)
{
    (void)attention;
}

size_t attention_cudnn_workspace_bytes(struct attention_cudnn *attention, const struct op_limits *limits)
{
    (void)attention;
    (void)limits;
    return 0;
}

enum status attention_cudnn_prepare(struct attention_cudnn *attention, struct error *err)
{
    (void)attention;
    (void)err;
    return STATUS_OK;
}

bool attention_cudnn_fwd(struct stream *stream, const struct attention_fwd_args *args)
{
    (void)stream;
    (void)args;
    return false;
}

bool attention_cudnn_bwd(struct stream *stream, const struct attention_bwd_args *args)
{
    (void)stream;
    (void)args;
    return false;
}

void attention_cudnn_describe(const struct attention_cudnn *attention, char *text, size_t size)
{
    (void)attention;
    snprintf(text, size, "attention: ztrain's kernels, as this build has no cuDNN");
}

#endif

/* attention_cudnn_verify.c: a plan of cuDNN's on trial, before the first step uses it.
 *
 * On test tensors, filled with a fixed pattern, the plan runs twice and must give the same bits, unless it is an
 * unordered one; then ztrain's kernels compute the same, and the results must be close. Ragged sequences are one more
 * than a piece has, and of several lengths, so that one is as long as it may be and the second piece has empty places.
 * With dropout, tiles of the tensor of kept weights that have no visible pair are NaN. A plan that may be used is then
 * timed on the same tensors, if the caller wants to choose between several.
 *
 * A cuDNN that computes something else than the op is thus noticed before it trains a model. */
#include "gpu/cuda/attention/attention_cudnn_verify.h"

#if ZTRAIN_HAVE_CUDNN

#include "core/clock.h"
#include "core/heartbeat.h"
#include "gpu/arena.h"
#include "gpu/cuda/attention/attention_cuda_kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tensors ------------------------------------------------------------- */

/* The period of the values in tensors. It is prime, so that no two rows of a tensor are alike. */
enum { PATTERN = 65521 };

/* A result of the op, computed twice: rows of `width` values, ld apart, that are compared in parts of `row` values. lse
 * is float (H, B * T), the others have 16 bits. */
struct outcome {
    const char *name;
    char *first, *second; /* device */
    int64_t ld, width, row;
    bool is_lse;
};

struct trial {
    const struct attention_plan *plan;
    struct device *device;
    struct stream *stream;
    void *memory; /* device, owned: the arena's */
    size_t bytes;
    struct arena arena;
    void *pattern; /* host (PATTERN) 16-bit values */
    char *host[2]; /* host, owned: a piece of the first and of the second result */
    int64_t sequences, M;
    struct attention_fwd_args fwd;
    struct attention_bwd_args bwd;
    struct outcome outcomes[3];
    int count;
};

/* Values of both signs in [-1, 1), so that scores differ by a few units. */
static void make_pattern(uint16_t *pattern, enum dtype dtype)
{
    uint32_t state = 1;
    for (int i = 0; i < PATTERN; i++) {
        state = state * 1664525u + 1013904223u;
        float value = (float)(int32_t)state * 0x1p-31f;
        pattern[i] = dtype == DTYPE_BF16 ? bf16_from_f32(value) : f16_from_f32(value);
    }
}

/* Device memory of `count` 16-bit values, filled with the pattern. */
static void *take_pattern(struct trial *t, int64_t count)
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
    const struct attention_shape *s = &t->plan->shape;
    struct outcome *outcome = &t->outcomes[t->count++];
    *outcome = (struct outcome){.name = name, .ld = ld, .width = heads * s->D, .row = s->D};
    outcome->first = take_pattern(t, t->M * ld);
    outcome->second = take_pattern(t, t->M * ld);
    return outcome->first;
}

static void *take_lse(struct trial *t)
{
    const struct attention_shape *s = &t->plan->shape;
    const int64_t M = t->M;
    struct outcome *outcome = &t->outcomes[t->count++];
    *outcome = (struct outcome){.name = "lse", .ld = M, .width = M, .row = M, .is_lse = true};
    outcome->first = take_pattern(t, 2 * s->H * M);
    outcome->second = take_pattern(t, 2 * s->H * M);
    return outcome->first;
}

/* Tokens of sequence i. Ragged: as many as there may be, one, then several. */
static int32_t sequence_length(const struct attention_shape *s, int64_t i)
{
    if (!s->ragged || i == 0)
        return (int32_t)s->T;
    return i == 1 || s->T < 8 ? 1 : (int32_t)(s->T / (1 + i % 5));
}

static void count_tokens(struct trial *t)
{
    const struct attention_shape *s = &t->plan->shape;
    t->sequences = s->ragged ? t->plan->piece + 1 : s->B;
    for (int64_t i = 0; i < t->sequences; i++)
        t->M += sequence_length(s, i);
}

/* Dropout as the plan has it. Numbers of tokens are read at the begin of sequences alone. */
static struct dropout take_dropout(struct trial *t)
{
    const struct attention_shape *s = &t->plan->shape;
    struct dropout dropout = {.key = {1, 2}};
    if (!s->dropout)
        return dropout;
    dropout.threshold = (uint32_t)s->dropout;
    dropout.scale = 65536 / (float)(65536 - s->dropout);
    uint64_t *tokens = arena_take(&t->arena, MEM_DATA, (size_t)t->M * sizeof *tokens);
    int64_t start = 0;
    for (int64_t i = 0; i < t->sequences && t->arena.base; start += sequence_length(s, i), i++) {
        const uint64_t number = (uint64_t)start;
        stream_copy(t->stream, tokens + start, &number, sizeof number);
    }
    dropout.tokens = tokens;
    return dropout;
}

/* Takes all tensors out of the arena; a dry arena only counts. */
static void trial_lay_out(struct trial *t)
{
    const struct attention_shape *s = &t->plan->shape;
    t->count = 0;
    int32_t *seq_start = arena_take(&t->arena, MEM_DATA, (size_t)(t->sequences + 1) * sizeof *seq_start);
    int32_t start = 0;
    for (int64_t i = 0; i <= t->sequences; start += sequence_length(s, i), i++)
        if (t->arena.base)
            stream_copy(t->stream, seq_start + i, &start, sizeof start);
    const int64_t M = t->M;
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
                                         .num_seqs = (int32_t)t->sequences,
                                         .max_seq = (int32_t)s->T,
                                         .seq_start = seq_start,
                                         .dropout = take_dropout(t),
                                         .bidirectional = s->bidirectional != 0,
                                         .ragged = s->ragged != 0,
                                         .q = take_pattern(t, M * s->ld_q),
                                         .k = take_pattern(t, M * s->ld_k),
                                         .v = take_pattern(t, M * s->ld_v)};
    t->fwd = attention_forward_of(&t->bwd);
    if (t->plan->direction == ATTENTION_FORWARD) {
        t->fwd.out = take_outcome(t, "out", s->H, s->ld_o);
        t->fwd.lse = take_lse(t);
    } else {
        t->bwd.out = t->fwd.out = take_pattern(t, M * s->ld_o);
        t->bwd.lse = t->fwd.lse = take_pattern(t, M * s->H * 2);
        t->bwd.dout = take_pattern(t, M * s->ld_o);
        t->bwd.dq = take_outcome(t, "dq", s->H, s->ld_dq);
        t->bwd.dk = take_outcome(t, "dk", s->KV, s->ld_dk);
        t->bwd.dv = take_outcome(t, "dv", s->KV, s->ld_dv);
    }
}

/* From here on, the op writes its second results. */
static void use_second(struct trial *t)
{
    if (t->plan->direction == ATTENTION_FORWARD) {
        t->fwd.out = t->outcomes[0].second;
        t->fwd.lse = (float *)t->outcomes[1].second;
    } else {
        t->bwd.dq = t->outcomes[0].second;
        t->bwd.dk = t->outcomes[1].second;
        t->bwd.dv = t->outcomes[2].second;
    }
}

/* ---- running and comparing ----------------------------------------------- */

/* NULL, or the reason of a failure in cuDNN's words. */
static const char *run_plan(struct trial *t)
{
    if (t->plan->direction == ATTENTION_FORWARD)
        return attention_plan_run_fwd(t->plan, t->stream, &t->fwd);
    return attention_plan_run_bwd(t->plan, t->stream, &t->bwd);
}

static const char *run_cudnn(struct trial *t)
{
    attention_plan_spoil(t->plan, t->stream);
    return run_plan(t);
}

static void run_own(struct trial *t)
{
    if (t->plan->direction == ATTENTION_FORWARD)
        attention_own_fwd(t->stream, &t->fwd);
    else
        attention_own_bwd(t->stream, &t->bwd);
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
    return (double)(t->plan->shape.dtype == DTYPE_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits));
}

/* Of the second results: `count` rows of `width` values from `first` on. */
static double root_mean_square(const struct trial *t, const struct outcome *outcome, int64_t first, int64_t count,
                               int64_t width)
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

/* Whether `rows` rows of both results have about the same values, and the gaps between the rows the same bytes. The few
 * keys that the first queries see have much larger gradients than others, so a difference is measured against its row
 * as well as against all rows. NaN is close to nothing. */
static bool are_close(const struct trial *t, const struct outcome *outcome, int64_t rows)
{
    const double share = outcome->is_lse ? 1e-3 : t->plan->shape.dtype == DTYPE_BF16 ? 6e-2 : 1e-2;
    const double least = share / 8 * root_mean_square(t, outcome, 0, rows, outcome->width);
    const size_t bytes = value_bytes(outcome), gap = (size_t)(outcome->ld - outcome->width) * bytes;
    for (int64_t i = 0; i < rows * outcome->ld; i += outcome->ld) {
        for (int64_t j = i; j < i + outcome->width; j += outcome->row) {
            double near = root_mean_square(t, outcome, j, 1, outcome->row);
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

/* The first row of a piece. */
static int64_t row_of(const struct trial *t, const struct outcome *outcome, int64_t piece)
{
    if (outcome->is_lse)
        return piece;
    return t->plan->shape.ragged && piece > 0 ? t->M - t->plan->shape.T : piece * t->plan->shape.T;
}

/* Whether the two results of a piece of an outcome differ. A piece is T rows: a sequence, or of ragged sequences the
 * first and the last rows; of lse, a head. */
static bool piece_differs(struct trial *t, const struct outcome *outcome, int64_t piece, bool exactly)
{
    const int64_t rows = outcome->is_lse ? 1 : t->plan->shape.T;
    const size_t row = (size_t)outcome->ld * value_bytes(outcome), bytes = (size_t)rows * row;
    const size_t at = (size_t)row_of(t, outcome, piece) * row;
    stream_copy(t->stream, t->host[0], outcome->first + at, bytes);
    stream_copy(t->stream, t->host[1], outcome->second + at, bytes);
    stream_sync(t->stream);
    return exactly ? memcmp(t->host[0], t->host[1], bytes) != 0 : !are_close(t, outcome, rows);
}

/* Compares the two results in the first and the last piece. NULL, or the name of the outcome that differs. */
static const char *find_difference(struct trial *t, bool exactly)
{
    const struct attention_shape *s = &t->plan->shape;
    for (int i = 0; i < t->count; i++) {
        const struct outcome *outcome = &t->outcomes[i];
        const int64_t pieces = outcome->is_lse ? s->H : t->sequences;
        if (piece_differs(t, outcome, 0, exactly) || (pieces > 1 && piece_differs(t, outcome, pieces - 1, exactly)))
            return outcome->name;
    }
    return NULL;
}

/* NULL, or the reason why the plan must not be used. */
static const char *try_plan(struct trial *t, char *text, size_t size)
{
    const char *different, *failed;
    if (t->plan->direction == ATTENTION_BACKWARD)
        attention_own_fwd(t->stream, &t->fwd); /* out and lse, which backward reads */
    failed = run_cudnn(t);
    use_second(t);
    if (!failed)
        failed = run_cudnn(t);
    stream_sync(t->stream);
    if (failed) {
        snprintf(text, size, "cuDNN cannot run its plan: %s", failed);
        return text;
    }
    if (!t->plan->shape.unordered && (different = find_difference(t, true))) {
        snprintf(text, size, "cuDNN's %s does not repeat bit for bit", different);
        return text;
    }
    run_own(t);
    if ((different = find_difference(t, false))) {
        snprintf(text, size, "cuDNN's %s differs from what ztrain's kernels compute", different);
        return text;
    }
    return NULL;
}

/* ---- time ---------------------------------------------------------------- */

/* Seconds of `repeats` runs between two timed events. Failures show in device_check(). */
static double time_runs(struct trial *t, struct event *start, struct event *end, int repeats)
{
    double seconds = 0;
    event_record(start, t->stream);
    for (int i = 0; i < repeats; i++)
        run_plan(t);
    event_record(end, t->stream);
    event_sync(end);
    event_elapsed(start, end, &seconds);
    heartbeat_beat();
    return seconds;
}

/* The least of ROUNDS means, after the GPU has computed for a while: one that was idle has lower clocks. */
static enum status time_plan(struct trial *t, struct attention_timing *timing, struct error *err)
{
    enum { ROUNDS = 3, REPEATS = 4 };
    const double warm_up_seconds = 0.1, begin = seconds_now();
    struct event *start, *end;
    TRY(event_new_timed(t->device, &start, err));
    enum status status = event_new_timed(t->device, &end, err);
    if (status == STATUS_OK) {
        while (!timing->warm && seconds_now() - begin < warm_up_seconds)
            time_runs(t, start, end, REPEATS);
        timing->seconds = INFINITY;
        for (int i = 0; i < ROUNDS; i++)
            timing->seconds = fmin(timing->seconds, time_runs(t, start, end, REPEATS) / REPEATS);
        event_free(end);
    }
    event_free(start);
    return status;
}

/* ---- the trial ----------------------------------------------------------- */

/* Prepares the trial. Its memory stays NULL where the GPU has too little. */
static enum status trial_open(struct trial *t, struct device *device, struct error *err)
{
    struct error ignored;
    const struct attention_shape *s = &t->plan->shape;
    count_tokens(t);
    const size_t piece = (size_t)(s->T * (s->ld_o + s->ld_dq + s->ld_dk + s->ld_dv)) * sizeof(uint16_t) +
                         (size_t)t->M * sizeof(float); /* more than any piece that is compared */
    const size_t workspace = attention_plan_workspace_bytes(t->plan);
    t->device = device;
    arena_init_dry(&t->arena);
    trial_lay_out(t);
    arena_take(&t->arena, MEM_WORKSPACE, workspace);
    t->bytes = t->arena.used;
    t->pattern = malloc(PATTERN * sizeof(uint16_t));
    t->host[0] = malloc(2 * piece);
    if (!t->pattern || !t->host[0])
        return error_set(err, STATUS_DEVICE, "cannot verify cuDNN's attention: out of memory");
    t->host[1] = t->host[0] + piece;
    make_pattern(t->pattern, (enum dtype)s->dtype);
    TRY(stream_new(device, STREAM_COMPUTE, &t->stream, err));
    if (device_alloc(device, t->bytes, &t->memory, &ignored) != STATUS_OK)
        return STATUS_OK;
    arena_init(&t->arena, t->memory, t->bytes);
    trial_lay_out(t);
    stream_set_workspace(t->stream, arena_take(&t->arena, MEM_WORKSPACE, workspace), workspace);
    return STATUS_OK;
}

static void trial_close(struct trial *t)
{
    stream_free(t->stream);
    device_free(t->device, t->memory, t->bytes);
    free(t->pattern);
    free(t->host[0]);
}

enum status attention_plan_verify(struct attention_plan *plan, struct device *device, struct attention_timing *timing,
                                  struct error *err)
{
    char text[512];
    const char *why = "the GPU has too little memory to verify cuDNN's results";
    struct trial t = {.plan = plan};
    enum status status = trial_open(&t, device, err);
    if (status == STATUS_OK && t.memory) {
        why = try_plan(&t, text, sizeof text);
        heartbeat_beat();
        if (!why && timing)
            status = time_plan(&t, timing, err);
        if (status == STATUS_OK)
            status = device_check(device, err);
        if (status != STATUS_OK)
            error_hint(err, "cuDNN's attention was on trial; ZTRAIN_CUDA_ATTENTION=own avoids cuDNN");
    }
    trial_close(&t);
    if (status == STATUS_OK && why)
        attention_plan_refuse(plan, why);
    else if (status == STATUS_OK)
        plan->state = ATTENTION_VERIFIED;
    return status;
}

#endif

/* gemm_cuda_ways.c: see gemm_cuda_ways.h.
 *
 * Memory: | workspace of the op | its operands and results |. Before each of the runs that are compared everything but
 * the workspace is filled with the same random values, since ops may add to their results. Samples of the results are
 * compared on the host: the beginning, the middle and the end of each. */
#include "gpu/cuda/gemm/gemm_cuda_ways.h"

#include "core/heartbeat.h"
#include "core/round_up.h"
#include "gpu/cuda/cuda_workspace.h"
#include "gpu/cuda/device_cuda_error.h"
#include "gpu/cuda/gemm/gemm_cuda_gated.h"
#include "gpu/cuda/gemm/gemm_cuda_kernels.h"
#include "gpu/cuda/ops_cuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 3, REPEATS = 4, MOST_BUFFERS = 5, SAMPLES = 3, SAMPLE_BYTES = 64 << 10 };

/* The runs whose results are compared. */
enum run { RUN_FUSED, RUN_UNFUSED, RUN_FUSED_AGAIN, RUNS };

/* An operand or a result: where its pointer is kept, and what it points to. */
struct buffer {
    void **pointer;
    enum dtype dtype;
    int64_t count;
    const char *name; /* of a result; NULL: an operand */
};

/* A copy of the op with pointers of its own. */
struct trial {
    struct linear_fwd_args fwd;
    struct linear_bwd_input_args bwd_input;
    struct linear_bwd_weight_args bwd_weight;
    struct gemm_op op; /* points to one of them */
    struct buffer buffers[MOST_BUFFERS];
    int count;
    size_t workspace; /* bytes */
    char *memory;     /* owned */
    size_t bytes;
    char *samples[RUNS]; /* owned; of each run: SAMPLES * SAMPLE_BYTES for each buffer */
};

struct gemm_product gemm_op_product(const struct gemm_cuda *g, const struct gemm_op *op)
{
    if (op->fwd)
        return gemm_product_fwd(&g->rules, op->fwd);
    if (op->bwd_input)
        return gemm_product_bwd_input(&g->rules, op->bwd_input);
    const struct linear_bwd_weight_args *a = op->bwd_weight;
    float *scratch = a->dbias ? (float *)(uintptr_t)CUDA_SCRATCH_ALIGN : NULL;
    return gemm_product_bwd_weight(&g->rules, a, a->accumulate_dbias ? scratch : a->dbias);
}

/* ---- memory -------------------------------------------------------------- */

/* `pointer` is that of any object, e.g. of floats; what it points to need not exist yet, when it is NULL. */
static void add_buffer(struct trial *t, void *pointer, enum dtype dtype, int64_t count, const char *name)
{
    ASSERT(t->count < MOST_BUFFERS);
    t->buffers[t->count++] = (struct buffer){pointer, dtype, count, name};
}

/* The same of what an op may lack, for which NULL stands. */
static void add_optional(struct trial *t, void *pointer, enum dtype dtype, int64_t count, const char *name)
{
    void *announced;
    memcpy(&announced, pointer, sizeof announced);
    if (announced)
        add_buffer(t, pointer, dtype, count, name);
}

static void add_fwd(struct trial *t, const struct linear_fwd_args *args)
{
    struct linear_fwd_args *a = &t->fwd;
    *a = *args;
    t->op.fwd = a;
    add_buffer(t, &a->x, a->dtype, a->M * a->K, NULL);
    add_buffer(t, &a->w, a->dtype, a->N * a->K, NULL);
    add_optional(t, &a->bias, a->dtype, a->N, NULL);
    add_buffer(t, &a->y, a->y_dtype, a->M * (a->ld_y ? a->ld_y : a->N), "y");
    add_optional(t, &a->aux, a->dtype, a->M * a->N, "aux");
    add_optional(t, &a->gated, a->dtype, a->M * a->N / 2, "gated");
}

static void add_bwd_input(struct trial *t, const struct linear_bwd_input_args *args)
{
    struct linear_bwd_input_args *a = &t->bwd_input;
    *a = *args;
    t->op.bwd_input = a;
    t->workspace = a->dbias ? cuda_column_sums_bytes(a->M, a->K) : 0;
    add_buffer(t, &a->dy, a->dtype, a->M * (a->ld_dy ? a->ld_dy : a->N), NULL);
    add_buffer(t, &a->w, a->dtype, a->N * a->K, NULL);
    add_optional(t, &a->gelu_aux, a->dtype, a->M * a->K, NULL);
    add_buffer(t, &a->dx, a->dtype, a->M * a->K, a->gate_up ? NULL : "dx"); /* scratch memory next to gate_up */
    add_optional(t, &a->dbias, DTYPE_F32, a->K, "dbias");
    add_optional(t, &a->gate_up, a->dtype, a->M * 2 * a->K, "gate_up");
}

static void add_bwd_weight(struct trial *t, const struct linear_bwd_weight_args *args)
{
    struct linear_bwd_weight_args *a = &t->bwd_weight;
    *a = *args;
    t->op.bwd_weight = a;
    t->workspace = a->dbias ? cuda_bias_sums_bytes(a) : 0;
    add_buffer(t, &a->dy, a->dtype, a->M * (a->ld_dy ? a->ld_dy : a->N), NULL);
    add_buffer(t, &a->x, a->dtype, a->M * a->K, NULL);
    add_buffer(t, &a->dw, a->dw_dtype, a->N * a->K, "dw");
    add_optional(t, &a->dbias, DTYPE_F32, a->N, "dbias");
}

static size_t buffer_bytes(const struct buffer *b)
{
    return (size_t)b->count * dtype_size(b->dtype);
}

/* Room for a buffer at any alignment. */
static size_t room_of(const struct buffer *b)
{
    return (size_t)round_up((int64_t)buffer_bytes(b) + 16, CUDA_SCRATCH_ALIGN);
}

/* Each pointer keeps its announced alignment, on which the plan of the product depends. */
static void place_buffers(const struct trial *t)
{
    char *at = t->memory + t->workspace;
    for (int i = 0; i < t->count; at += room_of(&t->buffers[i++])) {
        uintptr_t announced;
        memcpy(&announced, t->buffers[i].pointer, sizeof announced);
        char *placed = at + announced % 16;
        memcpy(t->buffers[i].pointer, &placed, sizeof placed);
    }
}

static void trial_close(struct trial *t, struct gemm_cuda *g, const struct gemm_clock *clock)
{
    stream_sync(clock->stream);
    stream_set_workspace(clock->stream, NULL, 0);
    device_free(&g->cuda->device, t->memory, t->bytes);
    for (int i = 0; i < RUNS; i++)
        free(t->samples[i]);
}

/* False: there is too little memory. */
static bool trial_open(struct trial *t, struct gemm_cuda *g, const struct gemm_clock *clock, const struct gemm_op *op)
{
    struct error ignored;
    if (op->fwd)
        add_fwd(t, op->fwd);
    else if (op->bwd_input)
        add_bwd_input(t, op->bwd_input);
    else
        add_bwd_weight(t, op->bwd_weight);
    t->workspace = (size_t)round_up((int64_t)(t->workspace + g->rules.workspace), CUDA_SCRATCH_ALIGN);
    size_t bytes = t->workspace;
    for (int i = 0; i < t->count; i++)
        bytes += room_of(&t->buffers[i]);
    for (int i = 0; i < RUNS; i++)
        if (!(t->samples[i] = calloc((size_t)t->count * SAMPLES, SAMPLE_BYTES)))
            return false;
    if (device_alloc(&g->cuda->device, bytes, (void **)&t->memory, &ignored) != STATUS_OK)
        return false;
    t->bytes = bytes;
    stream_set_workspace(clock->stream, t->memory, t->workspace);
    place_buffers(t);
    return true;
}

/* ---- one way ------------------------------------------------------------- */

static void enqueue(const struct gemm_clock *clock, const struct gemm_op *op)
{
    if (op->fwd)
        cuda_linear_fwd(clock->stream, op->fwd);
    else if (op->bwd_input)
        cuda_linear_bwd_input(clock->stream, op->bwd_input);
    else
        cuda_linear_bwd_weight(clock->stream, op->bwd_weight);
}

/* Seconds of the op; < 0: the GPU does not work any more. */
static double time_way(struct gemm_cuda *g, const struct gemm_clock *clock, const struct gemm_op *op)
{
    cudaStream_t handle = cuda_stream_of(clock->stream)->handle;
    float milliseconds = 0;
    cudaError_t code = cudaEventRecord(clock->start, handle);
    for (int i = 0; i < REPEATS; i++)
        enqueue(clock, op);
    if (code == cudaSuccess)
        code = cudaEventRecord(clock->end, handle);
    if (code == cudaSuccess)
        code = cudaEventSynchronize(clock->end);
    if (code == cudaSuccess)
        code = cudaEventElapsedTime(&milliseconds, clock->start, clock->end);
    heartbeat_beat();
    return cuda_check(g->cuda, code, "timing a matrix product") ? 1e-3 * (double)milliseconds / REPEATS : -1;
}

/* Bytes of each sample of a buffer, whose parts of 16 bytes are whole. */
static size_t sample_bytes(const struct buffer *b)
{
    const size_t bytes = buffer_bytes(b);
    return bytes < SAMPLE_BYTES ? bytes : SAMPLE_BYTES;
}

static size_t sample_start(const struct buffer *b, int sample)
{
    const size_t last = buffer_bytes(b) - sample_bytes(b);
    return sample == 0 ? 0 : sample == 1 ? last / 2 / sizeof(float) * sizeof(float) : last;
}

static char *sample_of(const struct trial *t, enum run run, int buffer, int sample)
{
    return t->samples[run] + (size_t)(buffer * SAMPLES + sample) * SAMPLE_BYTES;
}

static void fill_operands(const struct trial *t, const struct gemm_clock *clock)
{
    cuda_fill_random(clock->stream, t->memory + t->workspace, t->bytes - t->workspace, 1);
}

/* Runs the op on random values and fetches samples of its results. */
static void fetch_samples(const struct trial *t, const struct gemm_clock *clock, struct gemm_plan *plan, enum run run)
{
    plan->way = run == RUN_UNFUSED ? GEMM_WAY_UNFUSED : GEMM_WAY_FUSED;
    fill_operands(t, clock);
    enqueue(clock, &t->op);
    for (int i = 0; i < t->count; i++) {
        const struct buffer *b = &t->buffers[i];
        const char *memory;
        memcpy(&memory, b->pointer, sizeof memory);
        for (int s = 0; s < SAMPLES && b->name; s++)
            stream_copy(clock->stream, sample_of(t, run, i, s), memory + sample_start(b, s), sample_bytes(b));
    }
    stream_sync(clock->stream);
}

/* ---- comparison ---------------------------------------------------------- */

static double element_of(const char *at, enum dtype dtype, size_t i)
{
    float x;
    uint16_t half;
    if (dtype == DTYPE_F32) {
        memcpy(&x, at + i * sizeof x, sizeof x);
        return (double)x;
    }
    memcpy(&half, at + i * sizeof half, sizeof half);
    return (double)(dtype == DTYPE_BF16 ? bf16_to_f32(half) : f16_to_f32(half));
}

/* Of a value and of the root mean square: one way rounds once where the other rounds up to three times, sums have other
 * orders, and the library's tanh has about 11 bits. */
static double tolerance_of(enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? 0x1p-6 : 0x1p-8;
}

/* Compares a sample of both ways; false: `text` says where it differs. */
static bool compare_sample(const struct trial *t, int buffer, int sample, char *text, size_t size)
{
    const struct buffer *b = &t->buffers[buffer];
    const char *fused = sample_of(t, RUN_FUSED, buffer, sample), *unfused = sample_of(t, RUN_UNFUSED, buffer, sample);
    const size_t n = sample_bytes(b) / dtype_size(b->dtype);
    double squares = 0;
    for (size_t i = 0; i < n; i++)
        squares += pow(element_of(unfused, b->dtype, i), 2);
    const double rms = sqrt(squares / (double)n), tolerance = tolerance_of(b->dtype);
    for (size_t i = 0; i < n; i++) {
        const double x = element_of(fused, b->dtype, i), y = element_of(unfused, b->dtype, i);
        if (fabs(x - y) <= tolerance * (fabs(y) + rms))
            continue;
        snprintf(text, size,
                 "computes something else than without (element %lld of %s is %g, and %g without the epilogue)",
                 (long long)(sample_start(b, sample) / dtype_size(b->dtype) + i), b->name, x, y);
        return false;
    }
    return true;
}

static void compare_samples(const struct trial *t, struct gemm_ways_result *result)
{
    for (int i = 0; i < t->count; i++)
        for (int s = 0; s < SAMPLES && t->buffers[i].name; s++)
            if (!compare_sample(t, i, s, result->against, sizeof result->against))
                return;
}

/* Compares the samples of the two runs by the epilogue bit for bit. */
static void compare_repeated(const struct trial *t, struct gemm_ways_result *result)
{
    for (int i = 0; i < t->count; i++)
        for (int s = 0; s < SAMPLES && t->buffers[i].name && !*result->against; s++)
            if (memcmp(sample_of(t, RUN_FUSED, i, s), sample_of(t, RUN_FUSED_AGAIN, i, s),
                       sample_bytes(&t->buffers[i])) != 0)
                snprintf(result->against, sizeof result->against, "gives other bits each time (%s)",
                         t->buffers[i].name);
}

/* Runs an epilogue of cuDNN's for the first time, on random values. */
static void run_first(struct trial *t, const struct gemm_clock *clock, struct gemm_plan *plan,
                      struct gemm_ways_result *result)
{
    plan->way = GEMM_WAY_FUSED;
    fill_operands(t, clock);
    const char *refusal = gemm_gated_execute(clock->stream, &t->op);
    if (refusal)
        snprintf(result->against, sizeof result->against, "is refused when it runs (%.256s)", refusal);
    stream_sync(clock->stream);
    if (refusal)
        cudaGetLastError(); /* of the refusal: the next launch shall not find it */
}

/* Runs the op both ways and compares the results. */
static void compare_ways(struct trial *t, const struct gemm_clock *clock, struct gemm_plan *plan,
                         struct gemm_ways_result *result)
{
    if (plan->cudnn)
        run_first(t, clock, plan, result);
    if (*result->against)
        return;
    fetch_samples(t, clock, plan, RUN_FUSED);
    fetch_samples(t, clock, plan, RUN_UNFUSED);
    compare_samples(t, result);
    if (!plan->cudnn)
        return; /* cublasLt's algorithms describe their reductions (gemm_cuda_plan.h) */
    fetch_samples(t, clock, plan, RUN_FUSED_AGAIN);
    compare_repeated(t, result);
}

/* The least of ROUNDS times of each way that may be taken, in turns. False: the GPU does not work any more. */
static bool time_ways(const struct trial *t, struct gemm_cuda *g, const struct gemm_clock *clock,
                      struct gemm_plan *plan, struct gemm_ways_result *result)
{
    for (int round = 0; round < ROUNDS; round++) {
        plan->way = GEMM_WAY_FUSED;
        if (!*result->against)
            result->fused = fmin(result->fused, time_way(g, clock, &t->op));
        plan->way = GEMM_WAY_UNFUSED;
        result->unfused = fmin(result->unfused, time_way(g, clock, &t->op));
    }
    return result->fused >= 0 && result->unfused >= 0;
}

enum gemm_ways_outcome gemm_ways_compare(struct gemm_cuda *g, const struct gemm_clock *clock, struct gemm_plan *plan,
                                         const struct gemm_op *op, bool timed, struct gemm_ways_result *result)
{
    struct trial t = {0};
    struct error ignored;
    const enum gemm_way before = plan->way;
    enum gemm_ways_outcome outcome = GEMM_WAYS_NO_MEMORY;
    *result = (struct gemm_ways_result){.fused = INFINITY, .unfused = INFINITY};
    ASSERT(g->forced == GEMM_WAY_UNTIMED);
    if (trial_open(&t, g, clock, op)) {
        compare_ways(&t, clock, plan, result);
        bool works = device_check(&g->cuda->device, &ignored) == STATUS_OK;
        if (works && timed)
            works = time_ways(&t, g, clock, plan, result);
        outcome = works ? GEMM_WAYS_COMPARED : GEMM_WAYS_BROKEN;
    }
    plan->way = before;
    trial_close(&t, g, clock);
    return outcome;
}

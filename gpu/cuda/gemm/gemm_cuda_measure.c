/* gemm_cuda_measure.c: the algorithms of announced products, chosen by measuring (gemm_cuda_measure.h).
 *
 * Up to GEMM_CANDIDATES proposals of the library are timed once each, and the FINALISTS fastest of them REPEATS times
 * more, on memory that is freed again, after a tenth of a second of products: a GPU that was idle has lower clocks.
 * Before a proposal runs for the first time it is noted on disk (gpu/cuda/gemm_trial.h). A product with an epilogue is
 * then timed as the whole op, with and without the epilogue (gemm_cuda_ways.h). The choice is kept in the cache on disk
 * (gpu/gemm_cache.h), whose lock the caller holds: one process of a machine measures, the others wait and read.
 */
#include "gpu/cuda/gemm/gemm_cuda_measure.h"

#include "core/clock.h"
#include "core/heartbeat.h"
#include "core/log.h"
#include "core/round_up.h"
#include "gpu/cuda/device_cuda_error.h"
#include "gpu/cuda/gemm/gemm_cuda_gated.h"
#include "gpu/cuda/gemm/gemm_cuda_kernels.h"
#include "gpu/cuda/gemm/gemm_cuda_plan.h"
#include "gpu/cuda/gemm/gemm_cuda_ways.h"
#include "gpu/cuda/gemm_trial.h"
#include "gpu/cuda/nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FINALISTS = 6, REPEATS = 8 };
static const double warm_up_seconds = 0.1;

/* Memory that products are timed on. */
struct bench {
    struct gemm_cuda *gemm;
    struct stream *stream;
    cudaEvent_t start, end;
    char *memory; /* | workspace | A | B | D | vector | aux | */
    size_t bytes;
    struct gemm_product product; /* of the plan being measured, with pointers into memory */
    int measured;
    bool no_memory, warm;
    bool no_memory_for_gates; /* SwiGLU could not be tried: other products are measured nevertheless */
    bool failed;              /* a kernel has faulted: nothing runs on this GPU any more */
    struct error failure;     /* and the reason; STATUS_OK: device_check() has it */
    uint64_t throttle;        /* reasons for lower clocks, before and after */
};

/* A part begins at a multiple of 256 bytes, as memory of cudaMalloc() does. */
static size_t part_bytes(size_t n)
{
    return (size_t)round_up((int64_t)n, 256);
}

/* Bytes of the parts A, B, D, vector, aux. */
static void part_sizes(const struct gemm_key *key, size_t *sizes)
{
    size_t input = dtype_size((enum dtype)key->input), output = dtype_size((enum dtype)key->output);
    sizes[0] = part_bytes((size_t)key->lda * (size_t)(key->transpose_a ? key->m : key->k) * input);
    sizes[1] = part_bytes((size_t)key->ldb * (size_t)(key->transpose_b ? key->k : key->n) * input);
    sizes[2] = part_bytes((size_t)key->ldd * (size_t)key->n * output);
    sizes[3] = part_bytes((size_t)(key->m > key->n ? key->m : key->n) * sizeof(float));
    sizes[4] = part_bytes((size_t)key->ld_aux * (size_t)key->n * input);
}

/* Finds memory for the plan's product; false: the GPU has too little. */
static bool bench_place(struct bench *bench, const struct gemm_plan *plan)
{
    enum { PARTS = 5 };
    size_t sizes[PARTS], workspace = bench->gemm->rules.workspace, total = workspace;
    struct error ignored;
    part_sizes(&plan->key, sizes);
    for (int i = 0; i < PARTS; i++)
        total += sizes[i];
    if (total > bench->bytes) {
        struct device *device = &bench->gemm->cuda->device;
        device_free(device, bench->memory, bench->bytes);
        bench->bytes = 0;
        if (device_alloc(device, total, (void **)&bench->memory, &ignored) != STATUS_OK)
            return false;
        bench->bytes = total;
        cuda_fill_random(bench->stream, bench->memory + workspace, total - workspace, 1);
    }
    char *at = bench->memory + workspace;
    void *parts[PARTS];
    for (int i = 0; i < PARTS; at += sizes[i++])
        parts[i] = at;
    bench->product = (struct gemm_product){plan->key, parts[0], parts[1], parts[2], parts[3], parts[4]};
    return true;
}

static void note(const struct bench *bench, const struct gemm_key *key, const cublasLtMatmulAlgo_t *algo)
{
    struct gemm_algorithm algorithm;
    memcpy(&algorithm, algo, sizeof algorithm);
    gemm_trial_note(bench->gemm->trial, key, &algorithm);
}

/* Names the product whose algorithm has faulted, which stays noted. */
static void fail_trial(struct bench *bench, const struct gemm_key *key, const cublasLtMatmulAlgo_t *algorithm,
                       cudaError_t code)
{
    char call[256];
    note(bench, key, algorithm);
    snprintf(call, sizeof call,
             "a kernel on trial for the matrix product m %lld n %lld k %lld (start again: it is left out then)",
             (long long)key->m, (long long)key->n, (long long)key->k);
    bench->failed = true;
    cuda_check(bench->gemm->cuda, code, call);
}

/* Seconds of one run, the mean of `repeats`; < 0: the algorithm does not run. */
static double bench_time(struct bench *bench, const struct gemm_plan *plan, const cublasLtMatmulAlgo_t *algorithm,
                         int repeats)
{
    const struct gemm_cuda *g = bench->gemm;
    cudaStream_t stream = cuda_stream_of(bench->stream)->handle;
    float milliseconds = 0;
    bool ok = !bench->failed;
    cudaError_t code = ok ? cudaEventRecord(bench->start, stream) : cudaSuccess;
    for (int i = 0; i < repeats && ok; i++)
        ok = gemm_plan_run(g, plan, algorithm, &bench->product, bench->memory, stream) == CUBLAS_STATUS_SUCCESS;
    if (ok && code == cudaSuccess)
        code = cudaEventRecord(bench->end, stream);
    if (ok && code == cudaSuccess)
        code = cudaEventSynchronize(bench->end);
    if (ok && code == cudaSuccess)
        code = cudaEventElapsedTime(&milliseconds, bench->start, bench->end);
    if (!ok)
        cudaGetLastError(); /* the library refuses the algorithm, which is left out */
    else if (code != cudaSuccess)
        fail_trial(bench, &plan->key, algorithm, code);
    heartbeat_beat();
    return ok && code == cudaSuccess ? 1e-3 * (double)milliseconds / repeats : -1;
}

/* Runs an algorithm for the first time, which loads its kernel. */
static bool try_algorithm(struct bench *bench, const struct gemm_plan *plan, const cublasLtMatmulAlgo_t *algo)
{
    if (bench->failed)
        return false;
    note(bench, &plan->key, algo);
    const bool runs = bench_time(bench, plan, algo, 1) >= 0;
    if (!bench->failed)
        gemm_trial_done(bench->gemm->trial);
    return runs;
}

static uint64_t read_throttle(const struct bench *bench)
{
    return nvml_throttle_faults(bench->gemm->cuda->device.id);
}

/* Before the first time that counts. */
static void warm_up(struct bench *bench, const struct gemm_plan *plan, const cublasLtMatmulAlgo_t *algorithm)
{
    const double start = seconds_now();
    if (bench->warm)
        return;
    bench->warm = true;
    while (seconds_now() - start < warm_up_seconds && bench_time(bench, plan, algorithm, REPEATS) >= 0)
        ;
    bench->throttle = read_throttle(bench);
}

struct contender {
    int index;
    double seconds;
};

static int by_seconds(const void *a, const void *b)
{
    const struct contender *x = a, *y = b;
    return x->seconds != y->seconds ? (x->seconds > y->seconds) - (x->seconds < y->seconds) : x->index - y->index;
}

/* Times the candidates of a plan and keeps the fastest. */
static void measure_candidates(struct bench *bench, struct gemm_plan *plan)
{
    cublasLtMatmulHeuristicResult_t results[GEMM_CANDIDATES];
    struct contender contenders[GEMM_CANDIDATES];
    struct gemm_cuda *g = bench->gemm;
    int candidates = gemm_plan_propose(g, plan, results), runners = 0;
    plan->supported = candidates > 0;
    if (!plan->supported)
        return;
    plan->algorithm = results[0].algo;
    if (bench->failed)
        return;
    if (bench->no_memory || !bench_place(bench, plan)) {
        bench->no_memory = true;
        return;
    }
    if (!gemm_plan_set_pointers(g, plan, bench->product.vector, bench->product.aux))
        return;
    for (int i = 0; i < candidates; i++) {
        if (!try_algorithm(bench, plan, &results[i].algo))
            continue;
        warm_up(bench, plan, &results[i].algo);
        double seconds = bench_time(bench, plan, &results[i].algo, 1);
        if (seconds >= 0)
            contenders[runners++] = (struct contender){i, seconds};
    }
    qsort(contenders, (size_t)runners, sizeof *contenders, by_seconds);
    if (runners > FINALISTS)
        runners = FINALISTS;
    for (int i = 0; i < runners; i++)
        contenders[i].seconds = bench_time(bench, plan, &results[contenders[i].index].algo, REPEATS);
    qsort(contenders, (size_t)runners, sizeof *contenders, by_seconds);
    if (runners == 0 || bench->failed)
        return;
    plan->algorithm = results[contenders[0].index].algo;
    struct gemm_choice chosen = {.microseconds = 1e6 * contenders[0].seconds};
    memcpy(&chosen.algorithm, &plan->algorithm, sizeof chosen.algorithm);
    gemm_cache_put(g->cache, &plan->key, &chosen);
    bench->measured++;
}

static void choose_algorithm(struct bench *bench, const struct gemm_product *p)
{
    struct gemm_cuda *g = bench->gemm;
    struct gemm_choice known;
    struct gemm_plan *plan = gemm_plan_find(g, &p->key);
    if (plan || !(plan = gemm_plan_new(g, &p->key)) || !plan->supported)
        return;
    const bool found = gemm_cache_find(g->cache, &p->key, &known);
    if (found && gemm_plan_take_known(g, plan, &known))
        return;
    if (found && gemm_cache_follows(g->cache))
        log_warn("this rank cannot take the kernel by which rank 0 computes the matrix product m %lld n %lld k %lld, "
                 "and gives other bits",
                 (long long)p->key.m, (long long)p->key.n, (long long)p->key.k);
    measure_candidates(bench, plan);
}

/* ---- with the epilogue or without ---------------------------------------- */

static const char *const epilogue_names[] = {
    [GEMM_BIAS] = "a bias",        [GEMM_GELU_AUX] = "GELU",         [GEMM_GELU_AUX_BIAS] = "a bias and GELU",
    [GEMM_DGELU] = "GELU's slope", [GEMM_BGRADA] = "bias gradients", [GEMM_BGRADB] = "bias gradients",
};
_Static_assert(COUNT_OF(epilogue_names) == GEMM_SWIGLU, "every epilogue of cublasLt has a name");

/* The way of the product that differs in whether it adds to D: stages of ZeRO differ in that as well, and have to give
 * the same bits. */
static enum gemm_way way_of_twin(const struct gemm_cuda *g, const struct gemm_key *key)
{
    struct gemm_key twin = *key;
    struct gemm_choice choice;
    twin.accumulate = !twin.accumulate;
    return gemm_cache_find(g->cache, &twin, &choice) ? choice.way : GEMM_WAY_UNTIMED;
}

/* Chooses the way of a product whose algorithm, and that of the product without the epilogue, have been measured. */
static void choose_way(struct bench *bench, struct gemm_plan *plan, const struct gemm_op *op)
{
    struct gemm_cuda *g = bench->gemm;
    const struct gemm_key *key = &plan->key;
    const struct gemm_clock clock = {bench->stream, bench->start, bench->end};
    struct gemm_ways_result result;
    struct gemm_choice choice;
    enum gemm_way way = way_of_twin(g, key);
    if (bench->failed || bench->no_memory || !gemm_cache_find(g->cache, key, &choice))
        return;
    const enum gemm_ways_outcome outcome = gemm_ways_compare(g, &clock, plan, op, way == GEMM_WAY_UNTIMED, &result);
    bench->no_memory |= outcome == GEMM_WAYS_NO_MEMORY;
    bench->failed |= outcome == GEMM_WAYS_BROKEN;
    if (outcome != GEMM_WAYS_COMPARED)
        return;
    if (*result.against) {
        log_warn("the matrix product m %lld n %lld k %lld with %s as its epilogue %s: it is left out from now on",
                 (long long)key->m, (long long)key->n, (long long)key->k, epilogue_names[key->epilogue],
                 result.against);
        way = GEMM_WAY_UNFUSED;
    } else if (way == GEMM_WAY_UNTIMED) {
        log_debug("m %lld n %lld k %lld with %s: %.1f us as its epilogue, %.1f us without", (long long)key->m,
                  (long long)key->n, (long long)key->k, epilogue_names[key->epilogue], 1e6 * result.fused,
                  1e6 * result.unfused);
        way = result.fused <= result.unfused ? GEMM_WAY_FUSED : GEMM_WAY_UNFUSED;
    }
    plan->way = choice.way = way;
    gemm_cache_put(g->cache, key, &choice);
    bench->measured++;
}

/* Chooses for the op's product; for the product without its epilogue where it may be computed in this way; then
 * between the two. */
static void choose_ways(struct bench *bench, const struct gemm_op *op)
{
    struct gemm_cuda *g = bench->gemm;
    const struct gemm_product p = gemm_op_product(g, op), plain = gemm_product_without_epilogue(&p);
    if (p.key.epilogue == GEMM_PLAIN || g->forced == GEMM_WAY_UNFUSED) {
        choose_algorithm(bench, &plain);
        return;
    }
    choose_algorithm(bench, &p);
    struct gemm_plan *plan = gemm_plan_find(g, &p.key);
    if (!plan || (plan->supported && (g->forced == GEMM_WAY_FUSED || plan->way == GEMM_WAY_FUSED)))
        return;
    choose_algorithm(bench, &plain);
    if (plan->supported && plan->way == GEMM_WAY_UNTIMED)
        choose_way(bench, plan, op);
}

/* Chooses whether SwiGLU is computed inside the op's product, and the products of both ways. */
static void choose_gated(struct bench *bench, const struct gemm_op *op)
{
    struct gemm_cuda *g = bench->gemm;
    const struct gemm_clock clock = {bench->stream, bench->start, bench->end};
    if (!gemm_gated_may_fuse(g, op))
        return;
    if (op->fwd) {
        const struct linear_fwd_args half = gemm_gated_half(op->fwd);
        choose_ways(bench, &(struct gemm_op){.fwd = &half});
    }
    if (g->forced == GEMM_WAY_FUSED) {
        gemm_gated_force(g, op);
        return;
    }
    if (gemm_gated_take_known(g, op) || bench->failed || bench->no_memory)
        return;
    switch (gemm_gated_choose(g, &clock, op, &bench->failure)) {
    case GEMM_GATED_NOT_TIMED: break;
    case GEMM_GATED_TIMED: bench->measured++; break;
    case GEMM_GATED_NO_MEMORY: bench->no_memory_for_gates = true; break;
    case GEMM_GATED_BROKEN: bench->failed = true; break;
    }
}

/* Other ranks may wait for rank 0's choices. */
static void choose_for(struct bench *bench, const struct gemm_op *op)
{
    struct slow_call slow;
    heartbeat_slow_begin(&slow, "measuring matrix products", NULL, -1);
    choose_ways(bench, op);
    choose_gated(bench, op);
    heartbeat_slow_end(&slow);
}

static void choose_all(struct bench *bench, const struct linear_products *products)
{
    for (int i = 0; i < products->num_fwd; i++)
        choose_for(bench, &(struct gemm_op){.fwd = &products->fwd[i]});
    for (int i = 0; i < products->num_bwd_input; i++)
        choose_for(bench, &(struct gemm_op){.bwd_input = &products->bwd_input[i]});
    for (int i = 0; i < products->num_bwd_weight; i++)
        choose_for(bench, &(struct gemm_op){.bwd_weight = &products->bwd_weight[i]});
}

/* Times a large square product, which multiplies as fast as this GPU can: the console compares steps with it. */
static void measure_ceiling(struct bench *bench, enum dtype dtype)
{
    enum { SIDE = 8192, SIDE_F32 = 4096 };
    const size_t least_memory = (size_t)8 << 30;
    struct gemm_cuda *g = bench->gemm;
    struct device *device = &g->cuda->device;
    struct gemm_choice known;
    int64_t side = dtype == DTYPE_F32 ? SIDE_F32 : SIDE;
    struct linear_fwd_args args = {.dtype = dtype, .y_dtype = dtype, .M = side, .N = side, .K = side};
    if (device->memory_bytes < least_memory)
        return;
    struct gemm_rules rules = g->rules;
    rules.sm_target = 0; /* no collective runs at the same time */
    struct gemm_product p = gemm_product_fwd(&rules, &args);
    choose_algorithm(bench, &p);
    if (gemm_cache_find(g->cache, &p.key, &known) && known.microseconds > 0)
        device->ceiling_flops[dtype] = 2.0 * (double)side * (double)side * (double)side / (1e-6 * known.microseconds);
}

static enum status bench_open(struct bench *bench, struct device *device, struct error *err)
{
    TRY(stream_new(device, STREAM_COMPUTE, &bench->stream, err));
    if (cudaEventCreate(&bench->start) != cudaSuccess || cudaEventCreate(&bench->end) != cudaSuccess)
        return error_set(err, STATUS_DEVICE, "cannot create events on GPU %d", bench->gemm->cuda->index);
    return STATUS_OK;
}

static void bench_close(struct bench *bench, struct device *device)
{
    device_free(device, bench->memory, bench->bytes);
    if (bench->start)
        cudaEventDestroy(bench->start);
    if (bench->end)
        cudaEventDestroy(bench->end);
    stream_free(bench->stream);
}

static void bench_run(struct bench *bench, const struct linear_products *products)
{
    const double start = seconds_now();
    char text[128];
    choose_all(bench, products);
    if (products->num_fwd > 0)
        measure_ceiling(bench, products->fwd[0].dtype);
    stream_sync(bench->stream);
    if (bench->no_memory_for_gates && !bench->no_memory && !bench->failed)
        log_warn(
            "the GPU has too little memory to try SwiGLU inside matrix products; it is computed by a kernel of its "
            "own, and a resumed run with more memory may choose otherwise");
    if (bench->no_memory)
        log_warn(
            "the GPU has too little memory to measure all matrix products; the library's first proposals are used");
    if (bench->measured && (bench->throttle |= read_throttle(bench))) {
        log_warn(
            "the GPU is throttled (%s): the kernels chosen for %d matrix products are not kept, and measured again "
            "next time",
            nvml_throttle_text(bench->throttle, text, sizeof text), bench->measured);
        gemm_cache_do_not_keep(bench->gemm->cache);
    } else if (bench->measured)
        log_info("measured %d matrix products in %.1f s; their kernels are kept in %s", bench->measured,
                 seconds_now() - start, gemm_cache_path(bench->gemm->cache));
}

/* Without a cache nothing is chosen, but SwiGLU may be forced into products. */
static void force_gated(struct gemm_cuda *g, const struct linear_products *products)
{
    struct slow_call slow;
    if (g->forced != GEMM_WAY_FUSED)
        return;
    heartbeat_slow_begin(&slow, "preparing matrix products by cuDNN", NULL, -1);
    for (int i = 0; i < products->num_fwd; i++)
        gemm_gated_force(g, &(struct gemm_op){.fwd = &products->fwd[i]});
    for (int i = 0; i < products->num_bwd_input; i++)
        gemm_gated_force(g, &(struct gemm_op){.bwd_input = &products->bwd_input[i]});
    heartbeat_slow_end(&slow);
}

enum status gemm_cuda_prepare(struct device *device, const struct linear_products *products, struct error *err)
{
    struct cuda_device *cuda = device->private_;
    struct bench bench = {.gemm = cuda->gemm};
    if (!cuda->gemm->cache) {
        force_gated(cuda->gemm, products);
        gemm_gated_log(cuda->gemm, products);
        return STATUS_OK;
    }
    enum status status = bench_open(&bench, device, err);
    if (status == STATUS_OK) {
        bench_run(&bench, products);
        status = device_check(device, err);
        if (bench.failure.code != STATUS_OK)
            *err = bench.failure;
    }
    if (status == STATUS_OK)
        gemm_gated_log(cuda->gemm, products);
    bench_close(&bench, device);
    return status;
}

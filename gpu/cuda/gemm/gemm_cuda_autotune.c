/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_cuda_autotune.c: autotuning of announced products (gpu/cuda/autotune.h), or with fixed kernels their choice
 * without timing:
 *
 *     the algorithm of each product      among up to GEMM_CANDIDATES proposals of cublasLt
 *     an epilogue, or a kernel for it    as the whole linear op, by the best algorithms of both products
 *     SwiGLU inside a product, or not    the same, among cuDNN's proposals for the product with SwiGLU inside
 *     products of experts                by cuDNN's proposals, or by ztrain's kernel
 *
 *     fixed    cublasLt's first proposal whose sums have an order; the usual epilogues, if their results agree; no
 *              SwiGLU inside, because not all recomputation policies can have it
 *
 * The caller holds the lock of the cache on disk. */
#include "core/core.h"
#include "gpu/cuda/cuda_workspace.h"
#include "gpu/cuda/gemm/gemm_cuda.h"
#include "gpu/cuda/gemm/gemm_cuda_gated.h"
#include "gpu/cuda/gemm/gemm_cuda_kernels.h"
#include "gpu/cuda/gemm/gemm_cuda_plan.h"
#include "gpu/op_operands.h"

enum { GATED_CANDIDATES = 4, SAMPLE_BYTES = 64 << 10 };

struct tuning {
    struct gemm_cuda *gemm;
    struct autotuner *tuner;
    bool lacks_memory, lacks_memory_for_gates; /* something could not be tried */
};

/* ---- the algorithm of a product ------------------------------------------ */

struct product_trial {
    const struct gemm_plan *plan;
    struct gemm_product product; /* with pointers into scratch memory */
    cublasLtMatmulHeuristicResult_t results[GEMM_CANDIDATES];
};

static const char *gemm_run_algorithm(void *op, struct stream *stream, int candidate)
{
    const struct product_trial *t = op;
    const cublasStatus_t code = gemm_plan_run(t->plan, &t->results[candidate].algo, &t->product, stream);
    return code == CUBLAS_STATUS_SUCCESS ? NULL : cuda_device_of(stream)->gemm->lt->cublasLtGetStatusName(code);
}

static int describe_tuned(const struct gemm_key *key, char *text, size_t size)
{
    return snprintf(text, size, "the matrix product m %lld n %lld k %lld", (long long)key->m, (long long)key->n,
                    (long long)key->k);
}

static void gemm_describe_algorithm(const void *op, int candidate, char *text, size_t size)
{
    (void)candidate;
    describe_tuned(&((const struct product_trial *)op)->plan->key, text, size);
}

static enum status time_algorithms(struct tuning *t, struct gemm_plan *plan, struct error *err)
{
    const struct gemm_key *key = &plan->key;
    struct product_trial trial = {.plan = plan, .product.key = *key};
    struct gemm_product *product = &trial.product;
    const enum dtype input = (enum dtype)key->input;
    struct autotune_candidate candidates[GEMM_CANDIDATES];
    struct autotune_problem p = {.key = gemm_autotune_key(key),
                                 .op = &trial,
                                 .run = gemm_run_algorithm,
                                 .describe = gemm_describe_algorithm,
                                 .workspace = t->gemm->rules.workspace};
    int best;
    const int count = gemm_plan_propose(t->gemm, plan, trial.results);
    plan->supported = count > 0;
    if (!plan->supported) return STATUS_OK;
    for (int i = 0; i < count; i++)
        candidates[i] = (struct autotune_candidate){.config = gemm_config_of(&trial.results[i].algo, GEMM_UNTUNED)};
    autotune_add(&p, &product->a, input, key->transpose_a ? key->m : key->k, key->lda);
    autotune_add(&p, &product->b, input, key->transpose_b ? key->k : key->n, key->ldb);
    autotune_add(&p, &product->d, (enum dtype)key->output, key->n, key->ldd);
    autotune_add(&p, &product->vector, DTYPE_F32, 1, key->m > key->n ? key->m : key->n);
    autotune_add(&p, &product->aux, input, key->n, key->ld_aux);
    TRY(autotune(t->tuner, &p, candidates, count, &best, err));
    t->lacks_memory |= best == AUTOTUNE_NO_MEMORY;
    plan->algorithm = trial.results[best >= 0 ? best : 0].algo;
    return STATUS_OK;
}

/* Of a plan's algorithm, untimed. */
static void keep_in_cache(const struct gemm_cuda *g, const struct gemm_plan *plan, enum gemm_fusion fusion)
{
    const struct autotune_key key = gemm_autotune_key(&plan->key);
    const struct autotune_config config = gemm_config_of(&plan->algorithm, fusion);
    autotune_cache_put(g->cache, &key, &config);
}

static enum status tune_algorithm(struct tuning *t, const struct gemm_key *key, struct error *err)
{
    struct gemm_cuda *g = t->gemm;
    struct autotune_config known;
    if (gemm_plan_find(g, key)) return STATUS_OK;
    struct gemm_plan *plan = gemm_plan_new(g, key);
    if (!plan->supported || gemm_plan_take_known(g, plan)) return STATUS_OK;
    const bool lost = gemm_config_find(g, key, &known);
    struct device *device = &g->cuda->device;
    if (lost && g->fixed) /* this GPU cannot take an imported kernel: for the run's record */
        describe_tuned(key, device->lost_kernel, sizeof device->lost_kernel);
    else if (lost && autotune_cache_follows(g->cache))
        log_warn("this rank cannot take the kernel by which rank 0 computes the matrix product m %lld n %lld k %lld, "
                 "and gives other bits",
                 (long long)key->m, (long long)key->n, (long long)key->k);
    if (!g->fixed) return time_algorithms(t, plan, err);
    gemm_plan_take_first(g, plan);
    if (plan->supported) keep_in_cache(g, plan, GEMM_UNTUNED);
    return STATUS_OK;
}

/* ---- the whole op -------------------------------------------------------- */

/* A copy of the op with pointers into scratch memory; those that are NULL stay NULL. */
struct op_trial {
    struct gemm_plan *plan; /* of the product with the epilogue */
    union op_args args;
    struct gemm_op op;         /* points there */
    struct cudnn_plan **cudnn; /* of the candidates; NULL: the epilogue is cublasLt's */
};

/* The reference is the op without the epilogue. */
static const char *gemm_run_op(void *op, struct stream *stream, int candidate)
{
    struct op_trial *t = op;
    t->plan->fusion = candidate == AUTOTUNE_REFERENCE ? GEMM_UNFUSED : GEMM_FUSED;
    if (t->cudnn && candidate >= 0) t->plan->cudnn = t->cudnn[candidate];
    return gemm_op_run(stream, &t->op);
}

/* "the matrix product m 24 n 8 k 16 with a bias as its epilogue" */
static void gemm_describe_op(const void *op, int candidate, char *text, size_t size)
{
    static const char *const epilogues[] = {
        [GEMM_BIAS] = "a bias",        [GEMM_GELU_AUX] = "GELU",         [GEMM_GELU_AUX_BIAS] = "a bias and GELU",
        [GEMM_DGELU] = "GELU's slope", [GEMM_BGRADA] = "bias gradients", [GEMM_BGRADB] = "bias gradients"};
    _Static_assert(COUNT_OF(epilogues) == GEMM_SWIGLU, "every epilogue of cublasLt has a name");
    const struct op_trial *t = op;
    const int n = describe_tuned(&t->plan->key, text, size);
    if (t->cudnn)
        snprintf(text + n, size - (size_t)n, " %s by cuDNN's proposal %lld, engine %lld",
                 t->op.grouped ? "of experts" : "with SwiGLU inside", (long long)t->cudnn[candidate]->proposal,
                 (long long)t->cudnn[candidate]->engine);
    else
        snprintf(text + n, size - (size_t)n, " with %s as its epilogue", epilogues[t->plan->key.epilogue]);
}

/* Experts with ever more rows: the last ones have twice the mean. */
static void split_rows(void *op, struct stream *stream, int candidate)
{
    const struct grouped_linear_fwd_args *a = &((struct op_trial *)op)->args.grouped_linear_fwd;
    (void)candidate;
    for (int64_t e = 0; e <= a->E; e++) {
        const int32_t first = (int32_t)(a->M * e / a->E * e / a->E);
        stream_copy(stream, (int32_t *)(uintptr_t)a->offsets + e, &first, sizeof first);
    }
}

/* Returns the op's place in OPS_LIST. */
static int copy_op(struct op_trial *t, const struct gemm_op *op)
{
#define COPY_IF_SET(member, name)     \
    if (op->member) {                 \
        t->args.name = *op->member;   \
        t->op.member = &t->args.name; \
        return OP_##name;             \
    }
    COPY_IF_SET(fwd, linear_fwd)
    COPY_IF_SET(bwd_input, linear_bwd_input)
    COPY_IF_SET(bwd_weight, linear_bwd_weight)
    COPY_IF_SET(grouped, grouped_linear_fwd)
    BUG("no linear op");
}

/* One way rounds once, the other up to three times; sums have other orders; the library's tanh has about 11 bits. */
static void add_op(struct op_trial *t, struct autotune_problem *p, const struct gemm_op *op)
{
    autotune_add_operands(p, copy_op(t, op), &t->args);
    for (struct autotune_tensor *tensor = p->tensors; tensor < p->tensors + p->num_tensors; tensor++) {
        const int64_t rows = SAMPLE_BYTES / (tensor->ld * (int64_t)dtype_size(tensor->dtype));
        tensor->sampled = rows > 1 ? rows : 1;
        tensor->tolerance = tensor->dtype == DTYPE_BF16 ? 0x1p-6 : 0x1p-8;
        if (op->bwd_input && op->bwd_input->gate_up && tensor->pointer == &t->args.linear_bwd_input.dx)
            tensor->name = NULL; /* scratch memory next to gate_up */
    }
    if (op->bwd_input && op->bwd_input->dbias)
        p->workspace += cuda_column_sums_bytes(op->bwd_input->M, op->bwd_input->K);
    if (op->bwd_weight && op->bwd_weight->dbias) p->workspace += cuda_bias_sums_bytes(op->bwd_weight);
    if (!op->grouped) return;
    autotune_add(p, &t->args.grouped_linear_fwd.offsets, DTYPE_F32, op->grouped->E + 1, 1);
    p->prepare = split_rows;
}

/* Compares and times the op's candidates and the op without the epilogue, and keeps the best in the cache. */
static enum status tune_op(struct tuning *t, struct op_trial *o, const struct gemm_op *op, struct autotune_problem *p,
                           struct autotune_candidate *candidates, int count, int *best, struct error *err)
{
    char name[192], why[384];
    const enum gemm_fusion before = o->plan->fusion;
    p->key = gemm_autotune_key(&o->plan->key);
    p->op = o;
    p->run = gemm_run_op;
    p->describe = gemm_describe_op;
    p->workspace = t->gemm->rules.workspace;
    add_op(o, p, op);
    ASSERT(t->gemm->forced == GEMM_UNTUNED);
    TRY(autotune(t->tuner, p, candidates, count, best, err));
    o->plan->fusion = before;
    for (int i = 0; i < count && *best != AUTOTUNE_NO_MEMORY; i++) {
        const struct autotune_candidate *c = &candidates[i];
        gemm_describe_op(o, i, name, sizeof name);
        log_debug("%s: %.1f us", name, 1e6 * c->seconds);
        if (c->failure == AUTOTUNE_GOOD) continue;
        if (c->failure == AUTOTUNE_REFUSED)
            snprintf(why, sizeof why, "is refused when it runs (%s)", c->reason);
        else if (c->failure == AUTOTUNE_RESTLESS)
            snprintf(why, sizeof why, "gives other bits each time (%s)", c->result);
        else
            snprintf(why, sizeof why,
                     "computes something else than without (element %lld of %s is %g, and %g without the epilogue)",
                     (long long)c->at, c->result, c->value, c->expected);
        log_warn("%s %s: it is left out from now on", name, why);
    }
    return STATUS_OK;
}

/* ---- with the epilogue or without ---------------------------------------- */

/* The fusion of the product that differs in adding to D: stages of ZeRO differ in that, but not in bits. */
static enum gemm_fusion tuned_twin_fusion(struct gemm_cuda *g, const struct gemm_key *key)
{
    struct gemm_key twin = *key;
    struct autotune_config known;
    twin.accumulate = !twin.accumulate;
    return gemm_config_find(g, &twin, &known) ? (enum gemm_fusion)known.fusion : GEMM_UNTUNED;
}

/* The algorithms with and without the epilogue are known. */
static enum status tune_epilogue(struct tuning *t, struct gemm_plan *plan, const struct gemm_op *op, struct error *err)
{
    struct op_trial trial = {.plan = plan};
    const enum gemm_fusion twin = tuned_twin_fusion(t->gemm, &plan->key);
    const enum gemm_fusion fusion = twin == GEMM_UNTUNED ? GEMM_FUSED : twin;
    struct autotune_candidate candidate = {.config = gemm_config_of(&plan->algorithm, fusion)};
    const bool competes = twin == GEMM_UNTUNED && !t->gemm->fixed;
    struct autotune_problem p = {.reference = competes ? REFERENCE_COMPETES : REFERENCE_VERIFIES,
                                 .reference_config = gemm_config_of(&plan->algorithm, GEMM_UNFUSED)};
    int best;
    TRY(tune_op(t, &trial, op, &p, &candidate, 1, &best, err));
    t->lacks_memory |= best == AUTOTUNE_NO_MEMORY;
    if (best == AUTOTUNE_NO_MEMORY) return STATUS_OK;
    if (best == AUTOTUNE_NONE) keep_in_cache(t->gemm, plan, GEMM_UNFUSED);
    plan->fusion = best >= 0 ? fusion : GEMM_UNFUSED;
    return STATUS_OK;
}

/* Tunes the op's product, without its epilogue too where it may be computed like that, then the fusion. */
static enum status tune_products(struct tuning *t, const struct gemm_op *op, struct error *err)
{
    struct gemm_cuda *g = t->gemm;
    const struct gemm_product p = gemm_product_of(&g->rules, op), plain = gemm_product_without_epilogue(&p);
    if (p.key.epilogue == GEMM_PLAIN || g->forced == GEMM_UNFUSED) return tune_algorithm(t, &plain.key, err);
    TRY(tune_algorithm(t, &p.key, err));
    struct gemm_plan *plan = gemm_plan_find(g, &p.key);
    if (plan->supported && (g->forced == GEMM_FUSED || plan->fusion == GEMM_FUSED)) return STATUS_OK;
    TRY(tune_algorithm(t, &plain.key, err));
    if (!plan->supported || plan->fusion != GEMM_UNTUNED) return STATUS_OK;
    if (!g->fixed || gemm_epilogue_is_usual(p.key.epilogue)) return tune_epilogue(t, plan, op, err);
    plan->fusion = GEMM_UNFUSED;
    keep_in_cache(g, plan, GEMM_UNFUSED);
    return STATUS_OK;
}

/* ---- by cuDNN, or ztrain's kernels --------------------------------------- */

enum { WORD_ENGINE, WORD_KERNEL }; /* of autotune_config.kernel */

static struct autotune_config tuned_config_of(const struct cudnn_plan *plan)
{
    struct autotune_config config = {.fusion = GEMM_FUSED};
    config.kernel[WORD_ENGINE] = (uint64_t)plan->engine;
    config.kernel[WORD_KERNEL] = plan->kernel;
    return config;
}

/* cuDNN's plans that need no more workspace than other products, without kernels that have faulted; returns their
 * number. kernel: the only one that will do; 0: any. */
static int tune_make_plans(const struct gemm_cuda *g, const struct gemm_key *key, uint64_t kernel,
                           struct cudnn_plan **plans, int most)
{
    struct error ignored;
    const struct cudnn_filter filter = {.most_workspace = g->rules.workspace, .kernel = kernel};
    const int count = gemm_gated_plans(g->cudnn, key, &filter, plans, most, &ignored);
    int good = 0;
    for (int i = 0; i < count; i++) {
        if (gemm_config_is_faulty(g, key, tuned_config_of(plans[i])))
            cudnn_plan_free(plans[i]);
        else
            plans[good++] = plans[i];
    }
    return good;
}

static void tune_take_plan(struct gemm_plan *plan, struct cudnn_plan *made)
{
    plan->cudnn = made;
    plan->supported = true;
    plan->fusion = GEMM_FUSED;
}

/* The op's plan, made if there is none; NULL: cuDNN does not compute it. */
static struct gemm_plan *tuned_gated_plan(struct gemm_cuda *g, const struct gemm_op *op)
{
    struct gated_product p;
    if (!g->cudnn || !gemm_gated_product(g, op, &p)) return NULL;
    struct gemm_plan *plan = gemm_plan_find(g, &p.key);
    return plan ? plan : gemm_plan_new(g, &p.key);
}

/* False: the cache has no config, or cuDNN does not propose its kernel here. Where rank 0 has tuned, only its config
 * counts: this rank's file may be of another machine. */
static bool tune_known_gate(struct gemm_cuda *g, struct gemm_plan *plan)
{
    const struct autotune_key key = gemm_autotune_key(&plan->key);
    struct autotune_config known;
    struct cudnn_plan *made;
    if (plan->fusion == GEMM_FUSED &&
        gemm_config_is_faulty(g, &plan->key, tuned_config_of(plan->cudnn))) { /* taken before the lock */
        cudnn_plan_free(plan->cudnn);
        plan->cudnn = NULL;
        plan->fusion = GEMM_UNTUNED;
    }
    if (plan->fusion != GEMM_UNTUNED) return true;
    const bool found = autotune_cache_follows(g->cache) ? autotune_cache_find_imported(g->cache, &key, &known)
                                                        : autotune_cache_find(g->cache, &key, &known);
    if (!found) return false;
    if (known.fusion != GEMM_FUSED)
        plan->fusion = (enum gemm_fusion)known.fusion;
    else if (tune_make_plans(g, &plan->key, known.kernel[WORD_KERNEL], &made, 1))
        tune_take_plan(plan, made);
    return plan->fusion != GEMM_UNTUNED;
}

/* ZTRAIN_GEMM_EPILOGUES=fused: the kernel of the cache, or else the first of cuDNN's that has not faulted. */
static void tune_forced_gate(struct gemm_cuda *g, struct gemm_plan *plan)
{
    struct cudnn_plan *plans[GATED_CANDIDATES];
    if (plan->cudnn || (tune_known_gate(g, plan) && plan->fusion == GEMM_FUSED)) return;
    const int count = tune_make_plans(g, &plan->key, 0, plans, GATED_CANDIDATES);
    if (count > 0) tune_take_plan(plan, plans[0]);
    for (int i = 1; i < count; i++) cudnn_plan_free(plans[i]);
}

/* The config is not known. The op's products by cublasLt have been tuned. */
static enum status time_gate(struct tuning *t, struct gemm_plan *plan, const struct gemm_op *op, int *best,
                             struct error *err)
{
    struct cudnn_plan *plans[GATED_CANDIDATES];
    struct autotune_candidate candidates[GATED_CANDIDATES];
    struct op_trial trial = {.plan = plan, .cudnn = plans};
    struct autotune_problem p = {
        .reference = REFERENCE_COMPETES, .reference_config = {.fusion = GEMM_UNFUSED}, .repeats = true};
    const int count = tune_make_plans(t->gemm, &plan->key, 0, plans, GATED_CANDIDATES);
    *best = AUTOTUNE_NONE;
    if (count == 0) return STATUS_OK; /* there is nothing to try, and nothing to keep */
    for (int i = 0; i < count; i++) candidates[i] = (struct autotune_candidate){.config = tuned_config_of(plans[i])};
    plan->supported = true;
    const enum status status = tune_op(t, &trial, op, &p, candidates, count, best, err);
    plan->cudnn = NULL;
    plan->fusion = GEMM_UNFUSED;
    for (int i = 0; i < count; i++) {
        if (status == STATUS_OK && i == *best)
            tune_take_plan(plan, plans[i]);
        else
            cudnn_plan_free(plans[i]);
    }
    return status;
}

static enum status tune_gate(struct tuning *t, const struct gemm_op *op, struct error *err)
{
    struct gemm_cuda *g = t->gemm;
    struct gemm_plan *plan = tuned_gated_plan(g, op);
    struct autotune_config known;
    int best;
    if (!plan) return STATUS_OK;
    if (g->forced == GEMM_FUSED) tune_forced_gate(g, plan);
    if (g->forced == GEMM_FUSED || tune_known_gate(g, plan)) return STATUS_OK;
    const struct autotune_key key = gemm_autotune_key(&plan->key);
    const bool imported = autotune_cache_find_imported(g->cache, &key, &known);
    if (imported && known.fusion == GEMM_FUSED)
        log_warn(
            "this rank cannot take the kernel by which %s the matrix product m %lld n %lld k %lld by cuDNN, and gives "
            "other bits; hint: ZTRAIN_GEMM_EPILOGUES=unfused makes all ranks do without cuDNN's products",
            autotune_cache_follows(g->cache) ? "rank 0 computes" : "the run has computed", (long long)plan->key.m,
            (long long)plan->key.n, (long long)plan->key.k);
    plan->fusion = GEMM_UNFUSED;
    if (autotune_cache_follows(g->cache))
        return STATUS_OK; /* what rank 0 has not tuned, this rank does not tune alone */
    TRY(time_gate(t, plan, op, &best, err));
    t->lacks_memory_for_gates |= best == AUTOTUNE_NO_MEMORY;
    if (best < AUTOTUNE_REFERENCE &&
        imported) /* rank 0 hands on nothing of a resumed run that it could not take itself */
        autotune_cache_put(g->cache, &key, &(struct autotune_config){.fusion = GEMM_UNFUSED});
    return STATUS_OK;
}

void gemm_cuda_take_imported(struct gemm_cuda *g, const struct linear_products *products)
{
    struct gemm_op op;
    int taken = 0;
    if (!g->cudnn || !autotune_cache_follows(g->cache)) return;
    SLOW("preparing matrix products by cuDNN", NULL, -1);
    for (int i = 0; gemm_op_at(products, i, &op); i++) {
        struct gemm_plan *plan = tuned_gated_plan(g, &op);
        taken += plan && tune_known_gate(g, plan);
    }
    log_debug("took rank 0's ways of %d products that cuDNN may compute", taken);
}

/* ---- all products -------------------------------------------------------- */

static enum status tune_whole_op(struct tuning *t, const struct gemm_op *op, struct error *err)
{
    const struct gemm_cuda *g = t->gemm;
    const bool may_fuse = gemm_gated_may_fuse(g, op);
    if (g->cache && !op->grouped) TRY(tune_products(t, op, err));
    if (g->cache && may_fuse && op->fwd) {
        const struct linear_fwd_args half = gemm_gated_half(op->fwd);
        TRY(tune_products(t, &(struct gemm_op){.fwd = &half}, err));
    }
    return may_fuse && (g->cache || g->forced == GEMM_FUSED) ? tune_gate(t, op, err) : STATUS_OK;
}

/* Times a large square product, which multiplies as fast as this GPU can: the console compares steps with it. */
static enum status gemm_time_ceiling(struct tuning *t, enum dtype dtype, struct error *err)
{
    enum { SIDE = 8192, SIDE_F32 = 4096 };
    const size_t least_memory = (size_t)8 << 30;
    struct gemm_cuda *g = t->gemm;
    struct device *device = &g->cuda->device;
    struct autotune_config known;
    const int64_t side = dtype == DTYPE_F32 ? SIDE_F32 : SIDE;
    const struct linear_fwd_args args = {.dtype = dtype, .y_dtype = dtype, .M = side, .N = side, .K = side};
    if (device->memory_bytes < least_memory) return STATUS_OK;
    struct gemm_rules rules = g->rules;
    rules.sm_target = 0; /* no collective runs at the same time */
    const struct gemm_product p = gemm_product_fwd(&rules, &args);
    TRY(tune_algorithm(t, &p.key, err));
    if (gemm_config_find(g, &p.key, &known) && known.microseconds > 0)
        device->ceiling_flops[dtype] = 2.0 * (double)side * (double)side * (double)side / (1e-6 * known.microseconds);
    return STATUS_OK;
}

enum status gemm_cuda_autotune(struct gemm_cuda *g, struct autotuner *tuner, const struct linear_products *products,
                               struct error *err)
{
    struct tuning t = {.gemm = g, .tuner = tuner};
    struct gemm_op op;
    for (int i = 0; gemm_op_at(products, i, &op); i++) {
        SLOW("measuring matrix products", NULL, -1); /* other ranks may wait for rank 0's configs */
        TRY(tune_whole_op(&t, &op, err));
    }
    if (g->cache && !g->fixed && products->num_fwd > 0) TRY(gemm_time_ceiling(&t, products->fwd[0].dtype, err));
    if (t.lacks_memory_for_gates)
        log_warn(
            "the GPU has too little memory to try cuDNN's products of experts, or with SwiGLU inside; ztrain's kernels "
            "compute them, and a resumed run with more memory may choose otherwise");
    if (t.lacks_memory)
        log_warn(
            "the GPU has too little memory to measure all matrix products; the library's first proposals are used");
    autotuner_finish(tuner, AUTOTUNE_GEMM);
    gemm_gated_log(g, products);
    return STATUS_OK;
}

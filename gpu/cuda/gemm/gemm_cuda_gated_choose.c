/* gemm_cuda_gated_choose.c: whether SwiGLU is computed inside a product, and by which of cuDNN's engines. */
#include "core/heartbeat.h"
#include "core/log.h"
#include "gpu/cuda/device_cuda_error.h"
#include "gpu/cuda/gemm/gemm_cuda_gated.h"
#include "gpu/cuda/gemm_trial.h"

#include <math.h>
#include <stdio.h>

#if ZTRAIN_HAVE_CUDNN

enum { PROPOSALS = 4 }; /* of cuDNN that are tried */

/* The kernel by which cuDNN computes a product, in the words of the cache. */
enum { WORD_ENGINE, WORD_KERNEL };

/* plan: NULL where cuDNN does not compute it. */
static struct gemm_algorithm algorithm_of(const struct cudnn_plan *plan)
{
    struct gemm_algorithm algorithm = {{0}};
    algorithm.data[WORD_ENGINE] = plan ? (uint64_t)cudnn_plan_engine(plan) : 0;
    algorithm.data[WORD_KERNEL] = plan ? cudnn_plan_kernel(plan) : 0;
    return algorithm;
}

/* Gives the plan the first of cuDNN's proposals that is as wished and needs no more workspace than other products;
 * false: there is none. */
static bool make(const struct gemm_cuda *g, struct gemm_plan *plan, const struct cudnn_wish *wish)
{
    struct cudnn_wish bounded = *wish;
    struct error ignored;
    bounded.most_workspace = g->rules.workspace;
    cudnn_plan_free(plan->cudnn);
    plan->supported = gemm_gated_plan(g->cudnn, &plan->key, &bounded, &plan->cudnn, &ignored) == STATUS_OK;
    heartbeat_beat();
    return plan->supported;
}

/* The fastest way so far. */
struct best {
    uint64_t kernel;       /* 0: none of cuDNN's */
    double fused, unfused; /* seconds */
};

/* Whether a process ended while it tried the plan's proposal. */
static bool is_faulty(const struct gemm_cuda *g, const struct gemm_plan *plan)
{
    const struct gemm_algorithm algorithm = algorithm_of(plan->cudnn);
    return gemm_trial_is_faulty(g->trial, &plan->key, &algorithm);
}

/* Finds the choice of the cache. Where rank 0 has chosen, only its choice counts: this rank's file may be of another
 * machine, and have what rank 0 could not try. */
static bool find_known(const struct gemm_cuda *g, const struct gemm_plan *plan, struct gemm_choice *known)
{
    return gemm_cache_follows(g->cache) ? gemm_cache_find_imported(g->cache, &plan->key, known)
                                        : gemm_cache_find(g->cache, &plan->key, known);
}

/* Takes the choice of the cache; false: there is none, or cuDNN does not propose its kernel here. */
static bool take_known(const struct gemm_cuda *g, struct gemm_plan *plan)
{
    struct gemm_choice known;
    if (!find_known(g, plan, &known))
        return false;
    const struct cudnn_wish wish = {.kernel = known.algorithm.data[WORD_KERNEL]};
    if (known.way == GEMM_WAY_FUSED && (!make(g, plan, &wish) || is_faulty(g, plan)))
        return false;
    plan->way = known.way;
    return true;
}

/* "the matrix product m 24 n 8 k 16 with SwiGLU inside by cuDNN's proposal 2, engine 3" */
static const char *words_of(const struct gemm_plan *plan, char *text, size_t size)
{
    snprintf(text, size,
             "the matrix product m %lld n %lld k %lld with SwiGLU inside by cuDNN's proposal %lld, engine %lld",
             (long long)plan->key.m, (long long)plan->key.n, (long long)plan->key.k,
             (long long)cudnn_plan_proposal(plan->cudnn), (long long)cudnn_plan_engine(plan->cudnn));
    return text;
}

/* Runs the plan's proposal next to the op without it. If it broke the GPU, it stays noted. */
static enum gemm_ways_outcome try_proposal(struct gemm_cuda *g, const struct gemm_clock *clock, struct gemm_plan *plan,
                                           const struct gemm_op *op, struct best *best)
{
    char words[192];
    struct gemm_ways_result result;
    const struct gemm_algorithm algorithm = algorithm_of(plan->cudnn);
    words_of(plan, words, sizeof words);
    gemm_trial_note(g->trial, &plan->key, &algorithm);
    const enum gemm_ways_outcome outcome = gemm_ways_compare(g, clock, plan, op, true, &result);
    if (outcome == GEMM_WAYS_BROKEN)
        return outcome;
    gemm_trial_done(g->trial);
    if (outcome == GEMM_WAYS_NO_MEMORY)
        return outcome;
    best->unfused = fmin(best->unfused, result.unfused);
    if (*result.against)
        log_warn("%s %s: it is left out", words, result.against);
    else
        log_debug("%s: %.1f us, %.1f us without", words, 1e6 * result.fused, 1e6 * result.unfused);
    if (result.fused < best->fused)
        *best = (struct best){cudnn_plan_kernel(plan->cudnn), result.fused, best->unfused};
    return outcome;
}

/* Leaves the plan with the faster way, and keeps it. */
static void keep_best(struct gemm_cuda *g, struct gemm_plan *plan, const struct best *best)
{
    const bool faster = best->kernel && best->fused < best->unfused;
    const bool made = faster && make(g, plan, &(struct cudnn_wish){.kernel = best->kernel});
    plan->way = made ? GEMM_WAY_FUSED : GEMM_WAY_UNFUSED;
    const struct gemm_choice choice = {.algorithm = algorithm_of(made ? plan->cudnn : NULL),
                                       .way = plan->way,
                                       .microseconds = 1e6 * fmin(best->fused, best->unfused)};
    gemm_cache_put(g->cache, &plan->key, &choice);
}

/* Times the first kernels that cuDNN proposes, and leaves the plan with the faster way. */
static enum gemm_gated_outcome time_proposals(struct gemm_cuda *g, const struct gemm_clock *clock,
                                              struct gemm_plan *plan, const struct gemm_op *op, struct error *err)
{
    char words[192];
    uint64_t kernels[PROPOSALS];
    struct cudnn_wish wish = {.passed = kernels};
    struct best best = {.fused = INFINITY, .unfused = INFINITY};
    while (wish.num_passed < PROPOSALS && make(g, plan, &wish)) {
        kernels[wish.num_passed++] = cudnn_plan_kernel(plan->cudnn);
        wish.first = cudnn_plan_proposal(plan->cudnn) + 1;
        if (is_faulty(g, plan))
            continue;
        switch (try_proposal(g, clock, plan, op, &best)) {
        case GEMM_WAYS_COMPARED: break;
        case GEMM_WAYS_NO_MEMORY: return GEMM_GATED_NO_MEMORY;
        case GEMM_WAYS_BROKEN:
            device_check(&g->cuda->device, err);
            error_prefix(err, "%s, on trial (start again: it is left out then)", words_of(plan, words, sizeof words));
            return GEMM_GATED_BROKEN;
        }
    }
    if (isinf(best.unfused))
        return GEMM_GATED_NOT_TIMED; /* there was no proposal to try */
    keep_best(g, plan, &best);
    return GEMM_GATED_TIMED;
}

/* The op's plan, which is made if there is none; NULL: it is not computed by cuDNN. */
static struct gemm_plan *plan_of(struct gemm_cuda *g, const struct gemm_op *op)
{
    struct gated_product p;
    if (!g->cudnn || !gemm_gated_product(g, op, &p))
        return NULL;
    struct gemm_plan *plan = gemm_plan_find(g, &p.key);
    return plan ? plan : gemm_plan_new(g, &p.key);
}

bool gemm_gated_take_known(struct gemm_cuda *g, const struct gemm_op *op)
{
    struct gemm_plan *plan = plan_of(g, op);
    if (!plan)
        return false;
    if (plan->way == GEMM_WAY_FUSED && is_faulty(g, plan)) /* it was taken before the faulty ones were known */
        plan->way = GEMM_WAY_UNTIMED;
    return plan->way != GEMM_WAY_UNTIMED || take_known(g, plan);
}

void gemm_gated_take_imported(struct gemm_cuda *g, const struct linear_products *products)
{
    struct slow_call slow;
    int taken = 0;
    if (!g->cudnn || !gemm_cache_follows(g->cache))
        return;
    heartbeat_slow_begin(&slow, "preparing matrix products by cuDNN", NULL, -1);
    for (int i = 0; i < products->num_fwd; i++)
        taken += gemm_gated_take_known(g, &(struct gemm_op){.fwd = &products->fwd[i]});
    for (int i = 0; i < products->num_bwd_input; i++)
        taken += gemm_gated_take_known(g, &(struct gemm_op){.bwd_input = &products->bwd_input[i]});
    heartbeat_slow_end(&slow);
    log_debug("took rank 0's ways of %d products with SwiGLU", taken);
}

/* Warns where rank 0, or the run that is resumed, has a kernel that cuDNN does not propose here, or that has faulted
 * here. */
static void warn_of_other_kernel(const struct gemm_cuda *g, const struct gemm_plan *plan)
{
    struct gemm_choice known;
    if (gemm_cache_find_imported(g->cache, &plan->key, &known) && known.way == GEMM_WAY_FUSED)
        log_warn(
            "this rank cannot take the kernel by which %s the matrix product m %lld n %lld k %lld with SwiGLU inside, "
            "and gives other bits; hint: ZTRAIN_GEMM_EPILOGUES=unfused makes all ranks compute SwiGLU by a kernel of "
            "its own",
            gemm_cache_follows(g->cache) ? "rank 0 computes" : "the run has computed", (long long)plan->key.m,
            (long long)plan->key.n, (long long)plan->key.k);
}

/* Rank 0 hands on the choices of the run that is resumed: not one that it could not take itself. */
static void replace_imported(struct gemm_cuda *g, const struct gemm_plan *plan)
{
    const struct gemm_choice unfused = {.way = GEMM_WAY_UNFUSED};
    struct gemm_choice known;
    if (gemm_cache_find_imported(g->cache, &plan->key, &known))
        gemm_cache_put(g->cache, &plan->key, &unfused);
}

enum gemm_gated_outcome gemm_gated_choose(struct gemm_cuda *g, const struct gemm_clock *clock, const struct gemm_op *op,
                                          struct error *err)
{
    struct gemm_plan *plan = plan_of(g, op);
    if (!plan)
        return GEMM_GATED_NOT_TIMED;
    plan->way = GEMM_WAY_UNFUSED;
    warn_of_other_kernel(g, plan);
    if (gemm_cache_follows(g->cache)) /* what rank 0 has not chosen, this rank does not choose alone */
        return GEMM_GATED_NOT_TIMED;
    const enum gemm_gated_outcome outcome = time_proposals(g, clock, plan, op, err);
    if (outcome == GEMM_GATED_NOT_TIMED || outcome == GEMM_GATED_NO_MEMORY)
        replace_imported(g, plan);
    return outcome;
}

void gemm_gated_force(struct gemm_cuda *g, const struct gemm_op *op)
{
    struct gemm_plan *plan = plan_of(g, op);
    struct cudnn_wish wish = {.first = 0};
    if (!plan || plan->cudnn || (take_known(g, plan) && plan->way == GEMM_WAY_FUSED))
        return;
    while (make(g, plan, &wish) && is_faulty(g, plan))
        wish.first = cudnn_plan_proposal(plan->cudnn) + 1;
}

#else

void gemm_gated_take_imported(struct gemm_cuda *gemm, const struct linear_products *products)
{
    (void)gemm;
    (void)products;
}

bool gemm_gated_take_known(struct gemm_cuda *gemm, const struct gemm_op *op)
{
    (void)gemm;
    (void)op;
    return false;
}

enum gemm_gated_outcome gemm_gated_choose(struct gemm_cuda *gemm, const struct gemm_clock *clock,
                                          const struct gemm_op *op, struct error *err)
{
    (void)gemm;
    (void)clock;
    (void)op;
    (void)err;
    return GEMM_GATED_NOT_TIMED;
}

void gemm_gated_force(struct gemm_cuda *gemm, const struct gemm_op *op)
{
    (void)gemm;
    (void)op;
}

#endif

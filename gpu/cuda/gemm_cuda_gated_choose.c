/* gemm_cuda_gated_choose.c: whether SwiGLU is computed inside a product, and by which of cuDNN's engines. */
#include "core/liveness.h"
#include "core/log.h"
#include "gpu/cuda/device_cuda_error.h"
#include "gpu/cuda/gemm_cuda_gated.h"
#include "gpu/gemm_trial.h"

#include <math.h>

#if ZTRAIN_HAVE_CUDNN

enum { PROPOSALS = 4 }; /* of cuDNN that are tried */

/* How cuDNN computes a product, in the words of the cache. */
enum { WORD_PROPOSAL, WORD_ENGINE, WORD_VERSION };

static struct gemm_algorithm algorithm_of(const struct cudnn_target *target, const struct cudnn_plan *plan)
{
    struct gemm_algorithm algorithm = {{0}};
    algorithm.data[WORD_PROPOSAL] = plan ? (uint64_t)cudnn_plan_proposal(plan) : 0;
    algorithm.data[WORD_ENGINE] = plan ? (uint64_t)cudnn_plan_engine(plan) : 0;
    algorithm.data[WORD_VERSION] = (uint64_t)target->version;
    return algorithm;
}

/* Gives the plan the first of cuDNN's proposals from `first` on; false: there is none. */
static bool make(const struct gemm_cuda *g, struct gemm_plan *plan, int64_t first)
{
    const struct cudnn_target *target = g->cudnn;
    const struct cudnn_wish wish = {.most_workspace = g->rules.workspace, .first = first};
    struct error ignored;
    cudnn_plan_free(plan->cudnn);
    plan->supported = gemm_gated_plan(target, &plan->key, &wish, &plan->cudnn, &ignored) == STATUS_OK;
    liveness_tick();
    return plan->supported;
}

/* Takes the choice of the cache; false: there is none for this version of cuDNN. */
static bool take_known(const struct gemm_cuda *g, struct gemm_plan *plan)
{
    struct gemm_choice known;
    const struct cudnn_target *target = g->cudnn;
    if (!gemm_cache_find(g->cache, &plan->key, &known) ||
        known.algorithm.data[WORD_VERSION] != (uint64_t)target->version)
        return false;
    plan->way = known.way;
    if (known.way != GEMM_WAY_FUSED)
        return true;
    return make(g, plan, (int64_t)known.algorithm.data[WORD_PROPOSAL]) &&
           (uint64_t)cudnn_plan_engine(plan->cudnn) == known.algorithm.data[WORD_ENGINE] &&
           !gemm_trial_is_faulty(g->trial, &plan->key, &known.algorithm);
}

/* The fastest way so far. */
struct best {
    int64_t proposal;
    double fused, unfused; /* seconds */
};

/* Runs the plan's proposal next to the op without it. False: the GPU does not work any more, or has no memory. */
static bool try_proposal(struct gemm_cuda *g, const struct gemm_clock *clock, struct gemm_plan *plan,
                         const struct gemm_op *op, struct best *best)
{
    struct gemm_ways_result result;
    struct error ignored;
    const struct gemm_algorithm algorithm = algorithm_of(g->cudnn, plan->cudnn);
    if (gemm_trial_is_faulty(g->trial, &plan->key, &algorithm))
        return true;
    gemm_trial_note(g->trial, &plan->key, &algorithm);
    const bool ran = gemm_ways_compare(g, clock, plan, op, true, &result);
    if (device_check(&g->cuda->device, &ignored) == STATUS_OK)
        gemm_trial_done(g->trial);
    if (!ran)
        return false;
    best->unfused = fmin(best->unfused, result.unfused);
    log_debug("m %lld n %lld k %lld with SwiGLU inside by cuDNN's engine %lld: %.1f us, %.1f us without",
              (long long)plan->key.m, (long long)plan->key.n, (long long)plan->key.k,
              (long long)cudnn_plan_engine(plan->cudnn), 1e6 * result.fused, 1e6 * result.unfused);
    if (*result.differs)
        log_warn("the matrix product m %lld n %lld k %lld with SwiGLU inside by cuDNN's engine %lld computes something "
                 "else than without (%s): it is left out",
                 (long long)plan->key.m, (long long)plan->key.n, (long long)plan->key.k,
                 (long long)cudnn_plan_engine(plan->cudnn), result.differs);
    else if (result.fused < best->fused)
        *best = (struct best){cudnn_plan_proposal(plan->cudnn), result.fused, best->unfused};
    return true;
}

/* Times the proposals, and leaves the plan with the faster way. False: the GPU does not work any more, or has no
 * memory. */
static bool time_proposals(struct gemm_cuda *g, const struct gemm_clock *clock, struct gemm_plan *plan,
                           const struct gemm_op *op)
{
    struct best best = {.proposal = -1, .fused = INFINITY, .unfused = INFINITY};
    bool works = true;
    int64_t next = 0;
    plan->way = GEMM_WAY_UNFUSED;
    for (int i = 0; works && i < PROPOSALS && make(g, plan, next); i++) {
        next = cudnn_plan_proposal(plan->cudnn) + 1;
        works = try_proposal(g, clock, plan, op, &best);
    }
    const bool faster = best.proposal >= 0 && best.fused < best.unfused;
    plan->way = works && faster && make(g, plan, best.proposal) ? GEMM_WAY_FUSED : GEMM_WAY_UNFUSED;
    struct gemm_choice choice = {.way = plan->way, .microseconds = 1e6 * fmin(best.fused, best.unfused)};
    choice.algorithm = algorithm_of(g->cudnn, plan->cudnn);
    if (works && isfinite(choice.microseconds))
        gemm_cache_put(g->cache, &plan->key, &choice);
    return works;
}

bool gemm_gated_choose(struct gemm_cuda *g, const struct gemm_clock *clock, const struct gemm_op *op)
{
    struct gated_product p;
    if (!gemm_gated_product(g, op, &p) || gemm_plan_find(g, &p.key) || !g->cudnn)
        return false;
    struct gemm_plan *plan = gemm_plan_new(g, &p.key);
    if (!plan || take_known(g, plan))
        return false;
    if (g->forced == GEMM_WAY_FUSED) {
        make(g, plan, 0);
        return false;
    }
    return time_proposals(g, clock, plan, op);
}

#else

bool gemm_gated_choose(struct gemm_cuda *gemm, const struct gemm_clock *clock, const struct gemm_op *op)
{
    (void)gemm;
    (void)clock;
    (void)op;
    return false;
}

#endif

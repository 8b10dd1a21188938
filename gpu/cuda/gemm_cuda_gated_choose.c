/* gemm_cuda_gated_choose.c: whether SwiGLU is computed inside a product, and by which of cuDNN's engines. */
#include "core/liveness.h"
#include "core/log.h"
#include "gpu/cuda/device_cuda_error.h"
#include "gpu/cuda/gemm_cuda_gated.h"
#include "gpu/gemm_trial.h"

#include <math.h>
#include <stdio.h>

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

/* The fastest way so far. */
struct best {
    int64_t proposal;      /* -1: none of cuDNN's */
    double fused, unfused; /* seconds */
};

/* Whether a process ended while it tried the plan's proposal. */
static bool is_faulty(const struct gemm_cuda *g, const struct gemm_plan *plan)
{
    const struct gemm_algorithm algorithm = algorithm_of(g->cudnn, plan->cudnn);
    return gemm_trial_is_faulty(g->trial, &plan->key, &algorithm);
}

/* Takes the choice of the cache; false: there is none for this version of cuDNN. */
static bool take_known(const struct gemm_cuda *g, struct gemm_plan *plan)
{
    struct gemm_choice known;
    const struct cudnn_target *target = g->cudnn;
    if (!gemm_cache_find(g->cache, &plan->key, &known) ||
        known.algorithm.data[WORD_VERSION] != (uint64_t)target->version)
        return false;
    if (known.way == GEMM_WAY_FUSED &&
        (!make(g, plan, (int64_t)known.algorithm.data[WORD_PROPOSAL]) ||
         (uint64_t)cudnn_plan_engine(plan->cudnn) != known.algorithm.data[WORD_ENGINE] || is_faulty(g, plan)))
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
    const struct gemm_algorithm algorithm = algorithm_of(g->cudnn, plan->cudnn);
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
        *best = (struct best){cudnn_plan_proposal(plan->cudnn), result.fused, best->unfused};
    return outcome;
}

/* Leaves the plan with the faster way, and keeps it. */
static void keep_best(struct gemm_cuda *g, struct gemm_plan *plan, const struct best *best)
{
    const bool faster = best->proposal >= 0 && best->fused < best->unfused;
    plan->way = faster && make(g, plan, best->proposal) ? GEMM_WAY_FUSED : GEMM_WAY_UNFUSED;
    struct gemm_choice choice = {.way = plan->way, .microseconds = 1e6 * fmin(best->fused, best->unfused)};
    choice.algorithm = algorithm_of(g->cudnn, plan->cudnn);
    gemm_cache_put(g->cache, &plan->key, &choice);
}

/* Times the proposals, and leaves the plan with the faster way. */
static enum gemm_gated_outcome time_proposals(struct gemm_cuda *g, const struct gemm_clock *clock,
                                              struct gemm_plan *plan, const struct gemm_op *op, struct error *err)
{
    char words[192];
    struct best best = {.proposal = -1, .fused = INFINITY, .unfused = INFINITY};
    int64_t next = 0;
    for (int i = 0; i < PROPOSALS && make(g, plan, next); i++) {
        next = cudnn_plan_proposal(plan->cudnn) + 1;
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
    return plan && (plan->way != GEMM_WAY_UNTIMED || take_known(g, plan));
}

enum gemm_gated_outcome gemm_gated_choose(struct gemm_cuda *g, const struct gemm_clock *clock, const struct gemm_op *op,
                                          struct error *err)
{
    struct gemm_plan *plan = plan_of(g, op);
    if (!plan)
        return GEMM_GATED_NOT_TIMED;
    plan->way = GEMM_WAY_UNFUSED;
    if (gemm_cache_follows(g->cache))
        return GEMM_GATED_NOT_TIMED; /* what rank 0 has not chosen, this rank does not choose alone */
    return time_proposals(g, clock, plan, op, err);
}

void gemm_gated_force(struct gemm_cuda *g, const struct gemm_op *op)
{
    struct gemm_plan *plan = plan_of(g, op);
    int64_t next = 0;
    if (!plan || plan->cudnn || (take_known(g, plan) && plan->way == GEMM_WAY_FUSED))
        return;
    while (make(g, plan, next) && is_faulty(g, plan))
        next = cudnn_plan_proposal(plan->cudnn) + 1;
}

#else

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

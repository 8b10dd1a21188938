/* attention_cudnn_choose.h: which of cuDNN's engines computes a shape of attention, and in how many pieces.
 *
 * cuDNN's heuristics propose engines, and plans are made of the first acceptable one when a shape is announced. Here,
 * before the first step, the proposals are timed, also in smaller pieces of the micro-batch where a plan has much
 * workspace; what is the fastest, and agrees with ztrain's kernels (attention_cudnn_verify.h), is kept in the file of
 * the choices (gpu/gemm_cache.h). No candidate needs more workspace than was announced. A candidate is noted on disk
 * before it runs (gpu/cuda/gemm_trial.h): one that faults is left out next time. */
#pragma once

#include "gpu/cuda/attention/attention_cudnn_plan.h"
#include "gpu/cuda/gemm_trial.h"
#include "gpu/gemm_cache.h"

#if ZTRAIN_HAVE_CUDNN

struct attention_chooser {
    struct device *device;    /* borrowed, like the others */
    struct gemm_cache *cache; /* locked */
    struct gemm_trial *trial; /* may be NULL */
    bool warm;                /* the GPU has computed long enough for times to count */
    int timed;                /* shapes whose candidates were timed */
};

/* Takes the choice for a plan that is ATTENTION_PLANNED from the cache, and leaves it planned; or tries the candidates,
 * adds the choice to the cache, and leaves the plan verified or refused. Fails (STATUS_DEVICE) where a candidate broke
 * the GPU: it stays noted. */
enum status attention_choose(struct attention_chooser *chooser, struct attention_plan *plan, struct error *err);

/* To be called when all plans have been chosen, before the cache is unlocked: times of a GPU that is throttled are not
 * kept. seconds: what the choice took. */
void attention_choose_end(struct attention_chooser *chooser, double seconds);

#endif

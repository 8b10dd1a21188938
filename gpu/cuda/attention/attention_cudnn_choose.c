/* attention_cudnn_choose.c: see attention_cudnn_choose.h. */
#include "gpu/cuda/attention/attention_cudnn_choose.h"

#if ZTRAIN_HAVE_CUDNN

#include "core/heartbeat.h"
#include "core/log.h"
#include "gpu/cuda/attention/attention_cudnn_verify.h"
#include "gpu/cuda/nvml.h"

#include <stdio.h>
#include <string.h>

/* ENGINES: that are tried with each size of a piece. */
enum { ENGINES = 4, CANDIDATES = ENGINES * ATTENTION_PIECES };

/* One way to compute the plan's shape. */
struct candidate {
    struct attention_choice choice;
    struct cudnn_plan *made; /* owned; NULL: it was taken */
};

/* ---- keys and words ------------------------------------------------------ */

static struct attention_key key_of(const struct attention_plan *plan)
{
    const struct attention_shape *s = &plan->shape;
    int64_t scale;
    memcpy(&scale, &s->scale, sizeof scale);
    return (struct attention_key){{(int64_t)plan->direction,
                                   plan->target->version,
                                   s->dtype,
                                   s->B,
                                   s->T,
                                   s->H,
                                   s->KV,
                                   s->D,
                                   s->window,
                                   s->ld_q,
                                   s->ld_k,
                                   s->ld_v,
                                   s->ld_o,
                                   s->ld_dq,
                                   s->ld_dk,
                                   s->ld_dv,
                                   scale,
                                   s->bidirectional,
                                   s->ragged,
                                   s->unordered,
                                   s->dropout,
                                   (int64_t)plan->planned}};
}
_Static_assert(sizeof(struct attention_shape) == (ATTENTION_KEY_FIELDS - 3) * sizeof(int64_t),
               "the key has all members of the shape, the direction, the version and the planned bytes");

/* "attention forward, 4 x 1024 tokens, 12 heads of 64, engine 3, 4 sequences at a time" */
static const char *words_of(const struct attention_plan *plan, const struct attention_choice *choice, char *text,
                            size_t size)
{
    const struct attention_shape *s = &plan->shape;
    snprintf(text, size, "attention %s, %lld x %lld tokens, %lld heads of %lld, engine %lld, %lld sequences at a time",
             plan->direction == ATTENTION_FORWARD ? "forward" : "backward", (long long)s->B, (long long)s->T,
             (long long)s->H, (long long)s->D, (long long)choice->engine, (long long)choice->piece);
    return text;
}

static struct attention_choice choice_of(const struct attention_plan *plan)
{
    return (struct attention_choice){.piece = plan->piece,
                                     .proposal = cudnn_plan_proposal(plan->cudnn_plan),
                                     .engine = cudnn_plan_engine(plan->cudnn_plan),
                                     .kernel = cudnn_plan_kernel(plan->cudnn_plan)};
}

static bool is_same(const struct attention_choice *a, const struct attention_choice *b)
{
    return a->piece == b->piece && a->kernel == b->kernel;
}

/* ---- candidates ---------------------------------------------------------- */

/* Replaces the plan's engine, which takes cuDNN a while. */
static bool make_again(struct attention_plan *plan, int64_t piece, const struct cudnn_wish *wish)
{
    struct error ignored;
    struct slow_call slow;
    heartbeat_slow_begin(&slow, "preparing attention by cuDNN", NULL, -1);
    const bool made = attention_plan_make_again(plan, piece, wish, plan->planned, &ignored) == STATUS_OK;
    heartbeat_slow_end(&slow);
    return made;
}

/* Takes the plan's engine over as a candidate, unless it has faulted before. */
static int add_candidate(const struct attention_chooser *c, struct attention_plan *plan, struct candidate *candidates,
                         int count)
{
    const struct attention_key key = key_of(plan);
    const struct attention_choice choice = choice_of(plan);
    struct cudnn_plan *made = plan->cudnn_plan;
    plan->cudnn_plan = NULL;
    if (gemm_trial_is_faulty_attention(c->trial, &key, &choice)) {
        cudnn_plan_free(made);
        return count;
    }
    candidates[count] = (struct candidate){choice, made};
    return count + 1;
}

/* Makes all candidates of a plan, the announced one first, no kernel twice; returns their number. */
static int list_candidates(const struct attention_chooser *c, struct attention_plan *plan,
                           struct candidate candidates[CANDIDATES])
{
    int64_t pieces[ATTENTION_PIECES];
    const int sizes = attention_plan_pieces(plan, pieces);
    int count = 0;
    for (int i = 0; i < sizes; i++) {
        uint64_t kernels[ENGINES];
        struct cudnn_wish wish = {.passed = kernels};
        bool made = i == 0 || make_again(plan, pieces[i], &wish);
        while (made) {
            kernels[wish.num_passed++] = cudnn_plan_kernel(plan->cudnn_plan);
            wish.first = cudnn_plan_proposal(plan->cudnn_plan) + 1;
            count = add_candidate(c, plan, candidates, count);
            made = wish.num_passed < ENGINES && make_again(plan, pieces[i], &wish);
        }
    }
    return count;
}

/* Makes the candidate the plan's engine. */
static void take_candidate(struct attention_plan *plan, struct candidate *candidate)
{
    cudnn_plan_free(plan->cudnn_plan);
    plan->cudnn_plan = candidate->made;
    plan->piece = candidate->choice.piece;
    plan->state = ATTENTION_PLANNED;
    candidate->made = NULL;
}

/* ---- trials -------------------------------------------------------------- */

/* Runs a candidate next to ztrain's kernels, and times it if `time`. It keeps its engine, if it may be taken. */
static enum status try_candidate(struct attention_chooser *c, struct attention_plan *plan, struct candidate *candidate,
                                 bool time, struct error *err)
{
    char words[160];
    const struct attention_key key = key_of(plan);
    struct attention_timing timing = {.warm = c->warm};
    words_of(plan, &candidate->choice, words, sizeof words);
    gemm_trial_note_attention(c->trial, &key, &candidate->choice, words);
    take_candidate(plan, candidate);
    enum status status = attention_plan_verify(plan, c->device, time ? &timing : NULL, err);
    if (status != STATUS_OK) {
        error_prefix(err, "%s, on trial (start again: it is left out then)", words);
        return status;
    }
    gemm_trial_done(c->trial);
    c->warm |= time && plan->state == ATTENTION_VERIFIED; /* one that is refused may not have run for long */
    candidate->choice.microseconds = 1e6 * timing.seconds;
    if (plan->state == ATTENTION_VERIFIED) {
        candidate->made = plan->cudnn_plan;
        plan->cudnn_plan = NULL;
        log_debug("%s: %.1f us", words, candidate->choice.microseconds);
    } else if (time)
        log_warn("%s is left out: %s", words, plan->why);
    return STATUS_OK;
}

/* The fastest of the candidates that may be taken; NULL: none. Of equally fast ones the first. */
static struct candidate *fastest_of(struct candidate *candidates, int count)
{
    struct candidate *best = NULL;
    for (int i = 0; i < count; i++)
        if (candidates[i].made && (!best || candidates[i].choice.microseconds < best->choice.microseconds))
            best = &candidates[i];
    return best;
}

/* Tries the candidates, and takes the fastest. */
static enum status try_candidates(struct attention_chooser *c, struct attention_plan *plan,
                                  struct candidate *candidates, int count, struct error *err)
{
    const struct attention_key key = key_of(plan);
    for (int i = 0; i < count; i++)
        TRY(try_candidate(c, plan, &candidates[i], count > 1, err));
    struct candidate *best = fastest_of(candidates, count);
    if (!best)
        return STATUS_OK; /* the plan is refused, for the reason of the last one */
    take_candidate(plan, best);
    plan->state = ATTENTION_VERIFIED;
    gemm_cache_put_attention(c->cache, &key, &best->choice);
    c->timed += count > 1;
    return STATUS_OK;
}

/* Replaces the plan's engine by the one of a choice, wherever among the proposals it stands; false: cuDNN does not
 * propose it here. */
static bool take_choice(struct attention_plan *plan, const struct attention_choice *choice)
{
    const struct attention_choice now = choice_of(plan);
    if (is_same(choice, &now))
        return true;
    return attention_plan_may_have_piece(plan, choice->piece) &&
           make_again(plan, choice->piece, &(struct cudnn_wish){.kernel = choice->kernel});
}

/* Takes the choice of the cache; false: there is none that can be taken, and the plan is the announced one. */
static bool take_known(const struct attention_chooser *c, struct attention_plan *plan)
{
    const struct attention_choice announced = choice_of(plan);
    const struct attention_key key = key_of(plan);
    struct attention_choice known;
    if (!gemm_cache_find_attention(c->cache, &key, &known) || gemm_trial_is_faulty_attention(c->trial, &key, &known))
        return false;
    if (take_choice(plan, &known))
        return true;
    if (!make_again(plan, announced.piece, &(struct cudnn_wish){.kernel = announced.kernel}))
        attention_plan_refuse(plan, "cuDNN no longer has the plan that was announced");
    return false;
}

enum status attention_choose(struct attention_chooser *c, struct attention_plan *plan, struct error *err)
{
    struct candidate candidates[CANDIDATES];
    if (take_known(c, plan) || plan->state == ATTENTION_REFUSED)
        return STATUS_OK;
    const int count = list_candidates(c, plan, candidates);
    if (count == 0)
        attention_plan_refuse(plan,
                              "cuDNN's engines for it have faulted when they were tried (the choices' file .faulty)");
    struct slow_call slow;
    heartbeat_slow_begin(&slow, "measuring cuDNN's engines", NULL, -1); /* other ranks may wait for rank 0's choices */
    const enum status status = try_candidates(c, plan, candidates, count, err);
    heartbeat_slow_end(&slow);
    for (int i = 0; i < count; i++)
        cudnn_plan_free(candidates[i].made);
    return status;
}

void attention_choose_end(struct attention_chooser *c, double seconds)
{
    char text[128];
    const uint64_t throttle = c->timed ? nvml_throttle_faults(c->device->id) : 0;
    if (throttle) {
        log_warn("the GPU is throttled (%s): the engines chosen for %d shapes of attention are not kept, and measured "
                 "again next time",
                 nvml_throttle_text(throttle, text, sizeof text), c->timed);
        gemm_cache_do_not_keep_attention(c->cache);
    } else if (c->timed)
        log_info("measured cuDNN's engines for %d shapes of attention in %.1f s; the fastest are kept in %s", c->timed,
                 seconds, gemm_cache_path(c->cache));
}

#endif

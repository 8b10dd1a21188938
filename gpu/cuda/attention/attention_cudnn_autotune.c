/* SPDX-License-Identifier: Apache-2.0 */
/* attention_cudnn_autotune.c: before the first step, cuDNN's proposals for each shape are verified and timed, also in
 * smaller pieces of the micro-batch where a plan has much workspace. With fixed kernels the first that is verified is
 * taken. Ragged sequences on trial are one more than a piece has, so that the second piece has empty places, and of
 * several lengths up to the longest. With dropout, tiles of kept weights that have no visible pair are NaN. */
#include "gpu/cuda/attention/attention_cudnn_plan.h"

#include "core/core.h"
#include "gpu/cuda/attention/attention_kernels.h"
#include "gpu/op_operands.h"

/* ENGINES: that are tried with each size of a piece. */
enum { ENGINES = 4, CANDIDATES = ENGINES * ATTENTION_PIECES };

struct candidate {
    struct cudnn_plan *made;
    int64_t piece;
};

/* The plan's op on scratch memory. */
struct trial {
    struct attention_plan *plan;
    struct candidate candidates[CANDIDATES]; /* owned */
    int count;
    int64_t sequences;
    struct attention_bwd_args args; /* backward's, which have forward's */
};

static struct autotune_key autotune_key_of(const struct attention_plan *plan)
{
    struct autotune_key key = {.op = AUTOTUNE_ATTENTION, .fields = {plan->direction, plan->target->version}};
    if (plan->plain)
        key.fields[0] += ATTENTION_DIRECTIONS;
    else if (attention_form_is_listed(plan->target, plan->direction, &plan->shape)) /* not a choice without it */
        key.fields[0] += 2 * ATTENTION_DIRECTIONS;
    const size_t before_cap = offsetof(struct attention_shape, softcap);
    int64_t softcap;
    _Static_assert(offsetof(struct attention_shape, softcap) == (AUTOTUNE_KEY_FIELDS - 3) * sizeof(int64_t),
                   "the key has the direction, the version, all members of the shape but one, and the planned bytes");
    memcpy(&key.fields[2], &plan->shape, before_cap);
    memcpy(&softcap, &plan->shape.softcap, sizeof softcap);
    key.fields[AUTOTUNE_KEY_FIELDS - 2] |= softcap; /* above the threshold of dropout: keys without a cap stay */
    key.fields[AUTOTUNE_KEY_FIELDS - 1] = (int64_t)plan->planned;
    return key;
}

static struct autotune_config autotune_config_of(const struct candidate *c)
{
    return (struct autotune_config){
        .kernel = {(uint64_t)c->piece, (uint64_t)c->made->proposal, (uint64_t)c->made->engine, c->made->kernel}};
}

/* ---- the op on trial ----------------------------------------------------- */

/* Tokens of sequence i. Ragged: as many as there may be, one, then several; padded: at the limit of what is padded. */
static int32_t sequence_length(const struct attention_plan *plan, int64_t i)
{
    const struct attention_shape *s = &plan->shape;
    if (!s->ragged || i == 0) return (int32_t)s->T;
    if (plan->padded) return (int32_t)(s->T * ATTENTION_QUARTERS_FILLED / 4);
    return i == 1 || s->T < 8 ? 1 : (int32_t)(s->T / (1 + i % 5));
}

static void attention_use_candidate(struct trial *t, int candidate)
{
    t->plan->cudnn_plan = t->candidates[candidate].made;
    t->plan->piece = t->candidates[candidate].piece;
}

static const char *attention_run_candidate(void *op, struct stream *stream, int candidate)
{
    struct trial *t = op;
    const bool forward = t->plan->direction == ATTENTION_FORWARD;
    if (candidate == AUTOTUNE_REFERENCE) {
        if (forward)
            attention_own_fwd(stream, &t->args.fwd);
        else
            attention_own_bwd(stream, &t->args);
        return NULL;
    }
    attention_use_candidate(t, candidate);
    return attention_plan_run(t->plan, stream, &t->args.fwd, forward ? NULL : &t->args);
}

/* Numbers of tokens are read at the begin of sequences alone. Backward reads out and lse of forward. */
static void attention_prepare_trial(void *op, struct stream *stream, int candidate)
{
    struct trial *t = op;
    const struct attention_fwd_args *fwd = &t->args.fwd;
    int32_t start = 0;
    for (int64_t i = 0; i <= t->sequences; start += sequence_length(t->plan, i), i++) {
        const uint64_t number = (uint64_t)start;
        stream_copy(stream, (int32_t *)(uintptr_t)fwd->seq_start + i, &start, sizeof start);
        if (fwd->dropout.threshold && i < t->sequences)
            stream_copy(stream, (uint64_t *)(uintptr_t)fwd->dropout.tokens + start, &number, sizeof number);
    }
    if (t->plan->direction == ATTENTION_BACKWARD) attention_own_fwd(stream, fwd);
    if (candidate == AUTOTUNE_REFERENCE) return;
    attention_use_candidate(t, candidate);
    attention_plan_spoil(t->plan, stream);
}

/* "attention forward, 4 x 1024 tokens, 12 heads of 64, engine 3, 4 sequences at a time" */
static void attention_describe_candidate(const void *op, int candidate, char *text, size_t size)
{
    const struct trial *t = op;
    const struct attention_shape *s = &t->plan->shape;
    snprintf(text, size, "attention %s, %lld x %lld tokens, %lld heads of %lld, engine %lld, %lld sequences at a time",
             t->plan->direction == ATTENTION_FORWARD ? "forward" : "backward", (long long)s->B, (long long)s->T,
             (long long)s->H, (long long)s->D, (long long)t->candidates[candidate].made->engine,
             (long long)t->candidates[candidate].piece);
}

/* Samples of results are whole sequences, or of lse a row. */
static void add_tensors(struct trial *t, struct autotune_problem *p)
{
    const struct attention_shape *s = &t->plan->shape;
    const bool forward = t->plan->direction == ATTENTION_FORWARD;
    struct attention_fwd_args *fwd = &t->args.fwd;
    autotune_add(p, &fwd->seq_start, DTYPE_F32, t->sequences + 1, 1);
    autotune_add(p, &fwd->dropout.tokens, DTYPE_F32, s->dropout ? fwd->M : 0, 2);
    autotune_add_operands(p, forward ? OP_attention_fwd : OP_attention_bwd, &t->args);
    for (struct autotune_tensor *tensor = p->tensors; tensor < p->tensors + p->num_tensors; tensor++) {
        const bool lse = tensor->dtype == DTYPE_F32;
        tensor->sampled = lse ? 1 : s->T;
        tensor->tolerance = lse ? 1e-3 : s->dtype == DTYPE_BF16 ? 6e-2 : 1e-2;
    }
}

static void attention_trial_args(struct trial *t)
{
    const struct attention_shape *s = &t->plan->shape;
    t->args = t->plan->announced;
    t->sequences = s->ragged ? t->plan->piece + 1 : s->B;
    t->args.fwd.num_seqs = (int32_t)t->sequences;
    t->args.fwd.M = 0;
    for (int64_t i = 0; i < t->sequences; i++) t->args.fwd.M += sequence_length(t->plan, i);
}

/* ---- tuning -------------------------------------------------------------- */

static void refuse_for(struct trial *t, int candidate, const struct autotune_candidate *c, bool log)
{
    char name[160], why[320];
    if (c->failure == AUTOTUNE_REFUSED)
        snprintf(why, sizeof why, "cuDNN cannot run its plan: %s", c->reason);
    else
        snprintf(why, sizeof why, "cuDNN's %s %s", c->result,
                 c->failure == AUTOTUNE_RESTLESS ? "does not repeat bit for bit"
                                                 : "differs from what ztrain's kernels compute");
    attention_describe_candidate(t, candidate, name, sizeof name);
    if (log) log_warn("%s is left out: %s", name, why);
    snprintf(t->plan->why, sizeof t->plan->why, "%s", why);
}

static void let_own_compute(struct attention_plan *plan)
{
    attention_plan_refuse(plan, "they are faster than cuDNN with padding");
    plan->state = ATTENTION_SLOWER;
}

/* Leaves the plan with the best candidate, or refused for the last one's reason. Frees the other candidates. */
static enum status tune_attention(struct autotuner *a, struct trial *t, enum autotune_reference by, struct error *err)
{
    struct attention_plan *plan = t->plan;
    struct autotune_candidate candidates[CANDIDATES];
    struct autotune_problem problem = {.key = autotune_key_of(plan),
                                       .op = t,
                                       .run = attention_run_candidate,
                                       .prepare = attention_prepare_trial,
                                       .describe = attention_describe_candidate,
                                       .reference = by,
                                       .repeats = !plan->shape.unordered,
                                       .workspace = plan->planned};
    int best;
    for (int i = 0; i < t->count; i++)
        candidates[i] = (struct autotune_candidate){.config = autotune_config_of(&t->candidates[i])};
    attention_trial_args(t);
    add_tensors(t, &problem);
    const enum status status = autotune(a, &problem, candidates, t->count, &best, err);
    if (status != STATUS_OK) error_hint(err, "cuDNN's attention was on trial; ZTRAIN_CUDA_ATTENTION=own avoids cuDNN");
    snprintf(plan->why, sizeof plan->why, "the GPU has too little memory to verify cuDNN's results");
    for (int i = 0; i < t->count && best != AUTOTUNE_NO_MEMORY; i++)
        if (candidates[i].failure != AUTOTUNE_GOOD) refuse_for(t, i, &candidates[i], t->count > 1);
    plan->cudnn_plan = NULL;
    plan->state = best >= 0 ? ATTENTION_VERIFIED : ATTENTION_REFUSED;
    plan->untried = best == AUTOTUNE_NO_MEMORY;
    if (best == AUTOTUNE_REFERENCE) let_own_compute(plan);
    if (best >= 0) attention_use_candidate(t, best);
    for (int i = 0; i < t->count; i++)
        if (i != best) cudnn_plan_free(t->candidates[i].made);
    return status;
}

/* In the cache, of a form that a trial has refused: no piece has 0 sequences. */
static const struct autotune_config refused_form = {.kernel = {0, 0, 0, 1}};

/* Other ranks and later starts go straight to the plain form, too. false: the plan stays. */
static bool leave_refused_form(const struct autotuner *tuner, struct attention_plan *plan)
{
    const struct autotune_key key = autotune_key_of(plan);
    char why[sizeof plan->why];
    if (plan->state != ATTENTION_REFUSED || plan->untried || !attention_plan_has_plain_form(plan)) return false;
    autotune_cache_put(tuner->cache, &key, &refused_form);
    memcpy(why, plan->why, sizeof why);
    if (!attention_plan_make_plain(plan)) return false;
    log_warn("attention %s: %s; cuDNN's own choice is tried, with %.1f MiB of workspace",
             plan->direction == ATTENTION_FORWARD ? "forward" : "backward", why,
             (double)plan->cudnn_plan->workspace / (1 << 20));
    return true;
}

/* With fixed kernels, for the run's record: this GPU cannot take the run's kernel. */
static void lose_engine(const struct autotuner *tuner, const struct attention_plan *plan)
{
    struct device *device = tuner->device;
    if (tuner->fixed)
        snprintf(device->lost_kernel, sizeof device->lost_kernel, "attention %s of %lld x %lld tokens",
                 plan->direction == ATTENTION_FORWARD ? "forward" : "backward", (long long)plan->shape.B,
                 (long long)plan->shape.T);
}

enum status attention_verify(struct autotuner *tuner, struct attention_plan *plan, struct error *err)
{
    do {
        struct trial t = {.plan = plan, .candidates = {{plan->cudnn_plan, plan->piece}}, .count = 1};
        TRY(tune_attention(tuner, &t, REFERENCE_VERIFIES, err));
        if (plan->state != ATTENTION_VERIFIED) lose_engine(tuner, plan); /* of the choices that were taken */
    } while (leave_refused_form(tuner, plan));
    return STATUS_OK;
}

/* Takes the config of the cache, wherever among the proposals its kernel stands; false: the plan stays. */
static bool take_known(const struct autotuner *tuner, struct attention_plan *plan)
{
    const struct autotune_key key = autotune_key_of(plan);
    struct autotune_config known;
    struct cudnn_plan *made;
    if (!autotune_cache_find(tuner->cache, &key, &known) || autotune_cache_is_faulty(tuner->cache, &key, &known))
        return false;
    const int64_t piece = (int64_t)known.kernel[0];
    const uint64_t kernel = known.kernel[3];
    if (!kernel) {
        let_own_compute(plan);
        return true;
    }
    if (piece == plan->piece && kernel == plan->cudnn_plan->kernel) return true;
    if (!attention_plan_candidates(plan, piece, kernel, &made, 1)) return false;
    cudnn_plan_free(plan->cudnn_plan);
    plan->cudnn_plan = made;
    plan->piece = piece;
    return true;
}

/* Makes the candidates, those of the announced piece first, without kernels that have faulted. */
static void list_candidates(const struct autotuner *tuner, struct trial *t)
{
    const struct autotune_key key = autotune_key_of(t->plan);
    int64_t pieces[ATTENTION_PIECES];
    const int sizes = tuner->fixed ? 1 : attention_plan_pieces(t->plan, pieces);
    pieces[0] = t->plan->piece;
    for (int i = 0; i < sizes; i++) {
        struct cudnn_plan *made[ENGINES];
        const int count = attention_plan_candidates(t->plan, pieces[i], 0, made, ENGINES);
        for (int j = 0; j < count; j++) {
            const struct candidate candidate = {made[j], pieces[i]};
            const struct autotune_config config = autotune_config_of(&candidate);
            if (autotune_cache_is_faulty(tuner->cache, &key, &config))
                cudnn_plan_free(made[j]);
            else
                t->candidates[t->count++] = candidate;
        }
    }
}

static enum status tune_form(struct autotuner *tuner, struct attention_plan *plan, struct error *err)
{
    struct trial t = {.plan = plan};
    struct autotune_config known;
    if (take_known(tuner, plan)) return STATUS_OK;
    const struct autotune_key key = autotune_key_of(plan);
    if (autotune_cache_find_imported(tuner->cache, &key, &known)) lose_engine(tuner, plan);
    list_candidates(tuner, &t);
    if (t.count == 0) {
        attention_plan_refuse(plan,
                              "cuDNN's engines for it have faulted when they were tried (the choices' file .faulty)");
        return STATUS_OK;
    }
    cudnn_plan_free(plan->cudnn_plan);           /* the first candidate, made again */
    SLOW("measuring cuDNN's engines", NULL, -1); /* other ranks may wait for rank 0's choices */
    return tune_attention(tuner, &t, plan->padded ? REFERENCE_COMPETES : REFERENCE_VERIFIES, err);
}

/* Whether a trial of this rank, rank 0, or an earlier start has refused the plan's form. */
static bool is_known_refused(const struct autotuner *tuner, const struct attention_plan *plan)
{
    const struct autotune_key key = autotune_key_of(plan);
    struct autotune_config known;
    return attention_plan_has_plain_form(plan) && autotune_cache_find(tuner->cache, &key, &known) &&
           memcmp(known.kernel, refused_form.kernel, sizeof known.kernel) == 0;
}

enum status attention_autotune(struct autotuner *tuner, struct attention_plan *plan, struct error *err)
{
    if (is_known_refused(tuner, plan)) {
        attention_plan_refuse(plan, "");
        if (!attention_plan_make_plain(plan)) return STATUS_OK;
    }
    do TRY(tune_form(tuner, plan, err));
    while (leave_refused_form(tuner, plan));
    return STATUS_OK;
}

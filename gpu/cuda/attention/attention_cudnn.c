/* SPDX-License-Identifier: Apache-2.0 */
/* attention_cudnn.c: attention on a GPU through cuDNN: which shapes have a plan, and the ops.
 *
 *     ops_workspace_bytes()  announces a shape -> a plan is made, or refused with a reason       PLANNED or REFUSED
 *     ops_prepare()          an engine is chosen: from the cache, or by timing
 *                            each plan runs next to ztrain's kernels on test data                VERIFIED or REFUSED
 *     an op                  the plan of its shape, or of ragged sequences that hold it, else ztrain's kernels
 *
 * So nothing is chosen, allocated or loaded in a step. Plans live as long as the device. One thread: the device's. */
#include "gpu/cuda/attention/attention_cudnn.h"

#include "core/core.h"
#include "gpu/cuda/attention/attention_cudnn_plan.h"
#include "gpu/cuda/attention/attention_kernels.h"
#include "gpu/cuda/ops_cuda.h"

static const char *const direction_names[ATTENTION_DIRECTIONS] = {"forward", "backward"};

struct attention_cudnn {
    struct cuda_device *cuda; /* borrowed */
    bool off, demanded;       /* ZTRAIN_CUDA_ATTENTION=own, cudnn */
    bool tried;               /* to open the library */
    bool logged;
    struct cudnn_target target; /* handle NULL: the library cannot be used, for the reason `why` */
    char why[512];
    struct attention_plan *plans; /* owned: one for each announced shape */
};

/* ---- the library --------------------------------------------------------- */

static enum status open_cudnn(struct attention_cudnn *a, struct error *err)
{
    if (a->tried) return a->target.handle ? STATUS_OK : error_set(err, STATUS_DEVICE, "%s", a->why);
    a->tried = true;
    const enum status status = cudnn_target_open(&a->target, err);
    a->target.capability = a->cuda->capability;
    if (status != STATUS_OK) snprintf(a->why, sizeof a->why, "%.*s", (int)sizeof a->why - 1, err->text);
    return status;
}

const struct cudnn_target *attention_cudnn_target(struct attention_cudnn *a)
{
    struct error ignored;
    return open_cudnn(a, &ignored) == STATUS_OK ? &a->target : NULL;
}

enum status attention_cudnn_new(struct cuda_device *cuda, struct attention_cudnn **attention, struct error *err)
{
    static const char *const words[] = {"own", "cudnn"};
    int word;
    TRY(env_choice("ZTRAIN_CUDA_ATTENTION", words, COUNT_OF(words), &word, err));
    struct attention_cudnn *a = *attention = memory_zeroed(1, sizeof *a);
    a->cuda = cuda;
    a->off = word == 0;
    a->demanded = word == 1;
    if (!a->demanded || open_cudnn(a, err) == STATUS_OK) return STATUS_OK;
    attention_cudnn_free(a);
    *attention = NULL;
    error_prefix(err, "ZTRAIN_CUDA_ATTENTION asks for cuDNN");
    return err->code;
}

void attention_cudnn_free(struct attention_cudnn *a)
{
    if (!a) return;
    while (a->plans) {
        struct attention_plan *plan = a->plans;
        a->plans = plan->next;
        cudnn_plan_free(plan->cudnn_plan);
        free(plan);
    }
    cudnn_target_close(&a->target);
    free(a);
}

/* ---- announcing ---------------------------------------------------------- */

/* The plan of the shape, or if `longer` one of longer ragged sequences, too; NULL: none. */
static struct attention_plan *find_plan(const struct attention_cudnn *a, const struct attention_shape *shape,
                                        enum attention_direction direction, bool longer)
{
    for (struct attention_plan *plan = a->plans; plan; plan = plan->next) {
        struct attention_shape alike = *shape;
        if (longer && shape->ragged && shape->T <= plan->shape.T) {
            alike.B = plan->shape.B;
            alike.T = plan->shape.T;
        }
        if (plan->direction == direction && !memcmp(&plan->shape, &alike, sizeof alike)) return plan;
    }
    return NULL;
}

/* PLANNED or REFUSED. */
static struct attention_plan *new_plan_of(struct attention_cudnn *a, const struct attention_shape *shape,
                                          const struct attention_bwd_args *args, enum attention_direction direction)
{
    struct error err = {0};
    struct attention_plan *plan = memory_zeroed(1, sizeof *plan);
    plan->target = &a->target;
    plan->shape = *shape;
    plan->announced = *args;
    plan->direction = direction;
    plan->memory = a->cuda->device.memory_bytes;
    plan->next = a->plans;
    a->plans = plan;
    enum status status = STATUS_OK;
    if (!shape->ragged && args->fwd.M != shape->B * shape->T)
        status = error_set(&err, STATUS_DEVICE, "the sequences of a micro-batch differ in length");
    else if (!attention_shape_is_aligned(shape))
        status = error_set(&err, STATUS_DEVICE, "rows are not aligned to %d bytes", (int)ATTENTION_ALIGN);
    if (status == STATUS_OK) status = open_cudnn(a, &err);
    if (status == STATUS_OK) status = attention_plan_make(plan, &err);
    if (status != STATUS_OK) attention_plan_refuse(plan, err.text);
    return plan;
}

/* The workspace that the op needs; 0: ztrain's kernels compute it. */
static size_t announce(struct attention_cudnn *a, const struct attention_bwd_args *args,
                       enum attention_direction direction)
{
    const struct attention_shape shape =
        direction == ATTENTION_FORWARD ? attention_shape_fwd(&args->fwd) : attention_shape_bwd(args);
    if (args->fwd.M <= 0 || attention_own_reason(&args->fwd)) return 0;
    const struct attention_plan *plan = find_plan(a, &shape, direction, false);
    if (!plan) plan = new_plan_of(a, &shape, args, direction);
    return plan->cudnn_plan ? plan->planned : 0;
}

/* With dropout, forward has two shapes: that of training, and without dropout that of evaluation. */
size_t attention_cudnn_workspace_bytes(struct attention_cudnn *a, const struct op_limits *limits)
{
    size_t most = 0;
    for (int i = 0; i < limits->num_attention && !a->off; i++) {
        struct attention_bwd_args evaluated = limits->attention[i];
        evaluated.fwd.dropout.threshold = 0;
        most = max_size(most, announce(a, &evaluated, ATTENTION_FORWARD));
        most = max_size(most, announce(a, &limits->attention[i], ATTENTION_FORWARD));
        if (limits->backward) most = max_size(most, announce(a, &limits->attention[i], ATTENTION_BACKWARD));
    }
    return most;
}

/* ---- the ops ------------------------------------------------------------- */

/* False: there is no plan for the op, or none that the workspace is for. */
static bool run_by_cudnn(struct stream *stream, const struct attention_fwd_args *fwd,
                         const struct attention_bwd_args *bwd)
{
    static const struct attention_bwd_args none;
    const struct attention_bwd_args *b = bwd ? bwd : &none;
    const void *const used[] = {fwd->q, fwd->k, fwd->v, fwd->out, b->dout, b->dq, b->dk, b->dv};
    const enum attention_direction direction = bwd ? ATTENTION_BACKWARD : ATTENTION_FORWARD;
    const struct attention_shape shape = bwd ? attention_shape_bwd(bwd) : attention_shape_fwd(fwd);
    const struct attention_plan *plan = find_plan(cuda_device_of(stream)->attention, &shape, direction, true);
    uintptr_t addresses = 0;
    size_t workspace;
    stream_workspace(stream, &workspace);
    for (size_t i = 0; i < COUNT_OF(used); i++) addresses |= (uintptr_t)used[i];
    if (!plan || !plan->cudnn_plan || plan->planned > workspace || fwd->M <= 0 ||
        (!shape.ragged && fwd->M != shape.B * shape.T) ||
        (plan->padded && !attention_fills_places(fwd->M, fwd->num_seqs, plan->shape.T)) || addresses % ATTENTION_ALIGN)
        return false;
    const char *failed = attention_plan_run(plan, stream, fwd, bwd);
    if (failed)
        cuda_fail(cuda_device_of(stream), "attention, %s: cuDNN: %s; hint: ZTRAIN_CUDA_ATTENTION=own avoids cuDNN",
                  direction_names[direction], failed);
    return true;
}

void cuda_attention_fwd(struct stream *stream, const struct attention_fwd_args *args)
{
    if (!run_by_cudnn(stream, args, NULL)) attention_own_fwd(stream, args);
}

void cuda_attention_bwd(struct stream *stream, const struct attention_bwd_args *args)
{
    if (!run_by_cudnn(stream, &args->fwd, args)) attention_own_bwd(stream, args);
}

/* ---- the log ------------------------------------------------------------- */

/* Adds what to do about a refused plan to its reason. */
static void add_hint(struct attention_plan *plan)
{
    const struct attention_shape *s = &plan->shape;
    const size_t used = strlen(plan->why);
    char newer[160];
    snprintf(newer, sizeof newer,
             "a newer cuDNN may compute it (PyPI's nvidia-cudnn-cu%d); ZTRAIN_CUDA_ATTENTION=own does without cuDNN, "
             "and without this warning",
             CUDART_VERSION / 1000);
    if (!strstr(plan->why, "; hint: "))
        snprintf(plan->why + used, sizeof plan->why - used, "; hint: %s",
                 attention_shape_is_aligned(s) ? newer : "cuDNN computes heads whose size is a multiple of 8");
}

static void log_plan(const struct attention_cudnn *a, struct attention_plan *plan)
{
    static const char *const notes[] = {"", " (unordered)", " (dropout)", " (unordered, dropout)"};
    char how[768], pieces[128], sequences[96], window[48] = "";
    const struct attention_shape *s = &plan->shape;
    const int version = a->target.version, count = plan->piece > 0 ? (int)(s->B / plan->piece) : 0;
    if (plan->logged) return;
    plan->logged = true;
    if (s->ragged) {
        snprintf(pieces, sizeof pieces, "%lld at a time%s", (long long)plan->piece,
                 plan->padded ? ", padded; ztrain's kernels where padding is more than a quarter" : "");
        snprintf(sequences, sizeof sequences, "sequences of up to %lld tokens", (long long)s->T);
    } else {
        snprintf(pieces, sizeof pieces, "in %d piece%s", count, count == 1 ? "" : "s");
        snprintf(sequences, sizeof sequences, "%lld x %lld tokens", (long long)s->B, (long long)s->T);
    }
    if (plan->state == ATTENTION_REFUSED) add_hint(plan);
    if (!plan->cudnn_plan)
        snprintf(how, sizeof how, "ztrain's kernels: %s", plan->why);
    else
        snprintf(how, sizeof how, "cuDNN %d.%d.%d, engine %lld, %.1f MiB of workspace, %s", version / 10000,
                 version / 100 % 100, version % 100, (long long)plan->cudnn_plan->engine,
                 (double)plan->cudnn_plan->workspace / (1 << 20), pieces);
    if (s->window) snprintf(window, sizeof window, ", window %lld", (long long)s->window);
    (a->demanded && plan->state == ATTENTION_REFUSED ? log_warn : log_detail)(
        "attention %s%s, %s, %s, %lld heads of %lld, %lld of keys%s: %s", direction_names[plan->direction],
        notes[(s->unordered ? 1 : 0) + (s->dropout ? 2 : 0)], dtype_name((enum dtype)s->dtype), sequences,
        (long long)s->H, (long long)s->D, (long long)s->KV, window, how);
}

enum status attention_cudnn_autotune(struct attention_cudnn *a, struct autotuner *tuner, struct error *err)
{
    for (struct attention_plan *plan = a->plans; plan; plan = plan->next)
        if (plan->state == ATTENTION_PLANNED) TRY(attention_autotune(tuner, plan, err));
    autotuner_finish(tuner, AUTOTUNE_ATTENTION);
    return STATUS_OK;
}

enum status attention_cudnn_prepare(struct attention_cudnn *a, struct autotuner *tuner, struct error *err)
{
    for (struct attention_plan *plan = a->plans; plan; plan = plan->next) {
        if (plan->state == ATTENTION_PLANNED) TRY(attention_verify(tuner, plan, err));
        log_plan(a, plan);
    }
    if (a->off && !a->logged) {
        a->logged = true;
        log_detail("attention: ztrain's kernels, as ZTRAIN_CUDA_ATTENTION=own asks for");
    }
    return STATUS_OK;
}

/* Why cuDNN does not compute an announced attention. NULL: it does, or ZTRAIN_CUDA_ATTENTION=own. */
const char *cuda_device_attention_obstacle(struct device *device, const struct attention_fwd_args *args, bool backward)
{
    const struct attention_cudnn *a = ((struct cuda_device *)device->private_)->attention;
    const struct attention_shape s = attention_shape_fwd(args);
    for (const struct attention_plan *plan = a->plans; plan; plan = plan->next)
        if (plan->state == ATTENTION_REFUSED && (plan->direction == ATTENTION_BACKWARD) == backward &&
            plan->shape.H == s.H && plan->shape.KV == s.KV && plan->shape.D == s.D && plan->shape.window == s.window)
            return *a->why ? a->why : plan->why;
    return NULL;
}

/* "attention: cuDNN for 4 of 6 shapes, ztrain's kernels for the others" */
void cuda_device_describe(struct device *device, char *text, size_t size)
{
    const struct attention_cudnn *a = ((struct cuda_device *)device->private_)->attention;
    int used = 0, all = 0;
    for (const struct attention_plan *plan = a->plans; plan; plan = plan->next, all++) used += plan->cudnn_plan != NULL;
    if (a->off)
        snprintf(text, size, "attention: ztrain's kernels, as ZTRAIN_CUDA_ATTENTION=own asks for");
    else
        snprintf(text, size, "attention: cuDNN for %d of %d shapes%s%s%s", used, all,
                 used < all ? ", ztrain's kernels for the others" : "", *a->why ? "; " : "", a->why);
}

/* attention_cudnn_plan.c: see attention_cudnn_plan.h. */
#include "gpu/cuda/attention_cudnn_plan.h"

#if ZTRAIN_HAVE_CUDNN

#include "gpu/cuda/attention_cuda_kernels.h"
#include "gpu/cuda/device_cuda.h"

#include <stdio.h>
#include <string.h>

enum { WORKSPACE_ALIGN = 256 };

/* ---- shapes -------------------------------------------------------------- */

struct attention_shape attention_shape_fwd(const struct attention_fwd_args *args)
{
    struct attention_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.dtype = args->dtype;
    shape.B = args->num_seqs;
    shape.T = args->max_seq;
    shape.H = args->H;
    shape.KV = args->KV;
    shape.D = args->D;
    shape.window = args->window > 0 && args->window < args->max_seq ? args->window : 0;
    shape.ld_q = args->ld_q;
    shape.ld_k = args->ld_k;
    shape.ld_v = args->ld_v;
    shape.ld_o = args->ld_o;
    shape.scale = (double)args->scale;
    shape.bidirectional = args->bidirectional;
    return shape;
}

struct attention_shape attention_shape_bwd(const struct attention_bwd_args *args)
{
    struct attention_fwd_args forward = attention_forward_of(args);
    struct attention_shape shape = attention_shape_fwd(&forward);
    shape.ld_dq = args->ld_dq;
    shape.ld_dk = args->ld_dk;
    shape.ld_dv = args->ld_dv;
    return shape;
}

bool attention_shape_is_aligned(const struct attention_shape *shape)
{
    const int64_t strides[] = {shape->ld_q,  shape->ld_k,  shape->ld_v, shape->ld_o,
                               shape->ld_dq, shape->ld_dk, shape->ld_dv};
    for (size_t i = 0; i < COUNT_OF(strides); i++)
        if (strides[i] * 2 % ATTENTION_ALIGN != 0)
            return false;
    return true;
}

/* ---- making a plan ------------------------------------------------------- */

void attention_plan_refuse(struct attention_plan *plan, const char *why)
{
    cudnn_plan_free(plan->cudnn_plan);
    plan->cudnn_plan = NULL;
    plan->state = ATTENTION_REFUSED;
    snprintf(plan->why, sizeof plan->why, "%.*s", (int)sizeof plan->why - 1, why);
}

static enum status make_cudnn_plan(struct attention_plan *plan, size_t most_workspace, struct error *err)
{
    struct attention_shape piece = plan->shape;
    piece.B /= plan->pieces;
    return attention_graph_plan(plan->target, plan->direction, &piece, most_workspace, &plan->cudnn_plan, err);
}

/* Backward needs a workspace of T x T for every head: it goes through the micro-batch in the number of equal pieces
 * that makes the workspace a small part of the memory, and is refused where one sequence alone takes a large part. */
enum status attention_plan_make(struct attention_plan *plan, size_t memory, struct error *err)
{
    const size_t small = memory / 256, large = memory / 16;
    const struct attention_shape *s = &plan->shape;
    plan->pieces = 1;
    TRY(make_cudnn_plan(plan, SIZE_MAX, err));
    size_t workspace = cudnn_plan_workspace_bytes(plan->cudnn_plan);
    for (int64_t pieces = 2; pieces <= s->B && workspace / (size_t)plan->pieces > small; pieces++)
        if (s->B % pieces == 0 && s->B / pieces * s->H * s->T * (int64_t)sizeof(float) % ATTENTION_ALIGN == 0)
            plan->pieces = pieces; /* each piece of lse is aligned, as rows are */
    if (plan->pieces == 1 && workspace <= large)
        return STATUS_OK;
    cudnn_plan_free(plan->cudnn_plan);
    return make_cudnn_plan(plan, large, err);
}

/* ---- workspace ----------------------------------------------------------- */

static size_t workspace_aligned(size_t bytes)
{
    return (bytes + WORKSPACE_ALIGN - 1) / WORKSPACE_ALIGN * WORKSPACE_ALIGN;
}

/* Bytes of lse, and of delta. */
static size_t row_values_bytes(const struct attention_shape *shape)
{
    return workspace_aligned((size_t)(shape->B * shape->H * shape->T) * sizeof(float));
}

/* cuDNN's part begins at a multiple of WORKSPACE_ALIGN, wherever the stream's workspace begins. */
size_t attention_plan_workspace_bytes(const struct attention_plan *plan)
{
    return 2 * row_values_bytes(&plan->shape) + workspace_aligned(cudnn_plan_workspace_bytes(plan->cudnn_plan)) +
           WORKSPACE_ALIGN;
}

struct attention_workspace {
    float *lse, *delta;
    char *cudnn;
};

static struct attention_workspace attention_workspace_of(const struct stream *stream, const struct attention_plan *plan)
{
    size_t bytes, row_values = row_values_bytes(&plan->shape);
    char *base = stream_workspace(stream, &bytes);
    ASSERT(attention_plan_workspace_bytes(plan) <= bytes);
    base += -(uintptr_t)base % WORKSPACE_ALIGN;
    return (struct attention_workspace){(float *)(void *)base, (float *)(void *)(base + row_values),
                                        base + 2 * row_values};
}

/* ---- execution ----------------------------------------------------------- */

bool attention_pointer_is_aligned(const void *pointer)
{
    return (uintptr_t)pointer % ATTENTION_ALIGN == 0;
}

/* The address `tokens` rows of ld 16-bit elements after `base`. */
static void *rows_from(const void *base, int64_t tokens, int64_t ld)
{
    return (char *)base + tokens * ld * (int64_t)sizeof(uint16_t);
}

/* Enqueues one piece. NULL, or the reason of a failure. */
static const char *run_piece(const struct attention_plan *plan, struct stream *stream,
                             void *pointers[ATTENTION_POINTERS], void *workspace)
{
    const struct cudnn_target *target = plan->target;
    cudnnStatus_t code = target->cudnn->cudnnSetStream(target->handle, cuda_stream_of(stream)->handle);
    return code == CUDNN_STATUS_SUCCESS ? cudnn_plan_execute(plan->cudnn_plan, pointers, ATTENTION_POINTERS, workspace)
                                        : target->cudnn->cudnnGetErrorString(code);
}

/* Whether (H, B * T) and (B, H, T) are different orders. */
static bool reorders(const struct attention_shape *shape)
{
    return shape->B > 1 && shape->H > 1;
}

const char *attention_plan_run_fwd(const struct attention_plan *plan, struct stream *stream,
                                   const struct attention_fwd_args *args)
{
    const struct attention_shape *s = &plan->shape;
    struct attention_workspace workspace = attention_workspace_of(stream, plan);
    float *lse = reorders(s) ? workspace.lse : args->lse;
    const char *failed = NULL;
    for (int64_t i = 0; i < plan->pieces && !failed; i++) {
        int64_t first = i * (s->B / plan->pieces) * s->T;
        void *pointers[ATTENTION_POINTERS] = {
            [ATTENTION_Q] = rows_from(args->q, first, s->ld_q),
            [ATTENTION_K] = rows_from(args->k, first, s->ld_k),
            [ATTENTION_V] = rows_from(args->v, first, s->ld_v),
            [ATTENTION_OUT] = rows_from(args->out, first, s->ld_o),
            [ATTENTION_LSE] = lse + first * s->H,
        };
        failed = run_piece(plan, stream, pointers, workspace.cudnn);
    }
    if (!failed && reorders(s))
        attention_lse_by_head(stream, args->lse, lse, s->B, s->H, s->T);
    return failed;
}

const char *attention_plan_run_bwd(const struct attention_plan *plan, struct stream *stream,
                                   const struct attention_bwd_args *args)
{
    const struct attention_shape *s = &plan->shape;
    struct attention_workspace workspace = attention_workspace_of(stream, plan);
    const float *lse = reorders(s) ? workspace.lse : args->lse;
    const char *failed = NULL;
    if (reorders(s))
        attention_lse_by_sequence(stream, workspace.lse, args->lse, s->B, s->H, s->T);
    for (int64_t i = 0; i < plan->pieces && !failed; i++) {
        int64_t first = i * (s->B / plan->pieces) * s->T;
        void *pointers[ATTENTION_POINTERS] = {
            [ATTENTION_Q] = rows_from(args->q, first, s->ld_q),
            [ATTENTION_K] = rows_from(args->k, first, s->ld_k),
            [ATTENTION_V] = rows_from(args->v, first, s->ld_v),
            [ATTENTION_OUT] = rows_from(args->out, first, s->ld_o),
            [ATTENTION_DOUT] = rows_from(args->dout, first, s->ld_o),
            [ATTENTION_LSE] = (void *)(lse + first * s->H),
            [ATTENTION_DELTA] = workspace.delta + first * s->H,
            [ATTENTION_DQ] = rows_from(args->dq, first, s->ld_dq),
            [ATTENTION_DK] = rows_from(args->dk, first, s->ld_dk),
            [ATTENTION_DV] = rows_from(args->dv, first, s->ld_dv),
        };
        failed = run_piece(plan, stream, pointers, workspace.cudnn);
    }
    return failed;
}

#endif

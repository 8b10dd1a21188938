/* attention_cudnn_plan.c: see attention_cudnn_plan.h. */
#include "gpu/cuda/attention/attention_cudnn_plan.h"

#if ZTRAIN_HAVE_CUDNN

#include "gpu/cuda/attention/attention_cudnn_kernels.h"
#include "gpu/cuda/device_cuda.h"

#include <stdio.h>
#include <string.h>

enum { WORKSPACE_ALIGN = 256 };

/* ---- shapes -------------------------------------------------------------- */

static int64_t sequences_of_piece(const struct attention_fwd_args *args)
{
    int64_t full = args->max_seq > 0 ? 2 * ((args->M + args->max_seq - 1) / args->max_seq) : 0;
    return full < args->num_seqs ? full : args->num_seqs;
}

struct attention_shape attention_shape_fwd(const struct attention_fwd_args *args)
{
    struct attention_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.dtype = args->dtype;
    shape.B = args->ragged ? sequences_of_piece(args) : args->num_seqs;
    shape.T = args->max_seq;
    shape.H = args->H;
    shape.KV = args->KV;
    shape.D = args->D;
    shape.window = args->window > 0 && (args->ragged || args->window < args->max_seq) ? args->window : 0;
    shape.ld_q = args->ld_q;
    shape.ld_k = args->ld_k;
    shape.ld_v = args->ld_v;
    shape.ld_o = args->ld_o;
    shape.scale = (double)args->scale;
    shape.bidirectional = args->bidirectional;
    shape.ragged = args->ragged;
    shape.dropout = args->dropout.threshold;
    return shape;
}

struct attention_shape attention_shape_bwd(const struct attention_bwd_args *args)
{
    struct attention_fwd_args forward = attention_forward_of(args);
    struct attention_shape shape = attention_shape_fwd(&forward);
    shape.ld_dq = args->ld_dq;
    shape.ld_dk = args->ld_dk;
    shape.ld_dv = args->ld_dv;
    shape.unordered = args->unordered;
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

static enum status make_cudnn_plan(struct attention_plan *plan, const struct cudnn_wish *wish, struct error *err)
{
    struct attention_shape piece = plan->shape;
    piece.B = plan->piece;
    return attention_graph_plan(plan->target, plan->direction, &piece, wish, &plan->cudnn_plan, err);
}

static size_t workspace_aligned(size_t bytes)
{
    return (bytes + WORKSPACE_ALIGN - 1) / WORKSPACE_ALIGN * WORKSPACE_ALIGN;
}

/* Bytes of the fp32 sums of dq for this number of sequences; 0 if dq is computed in a fixed order. */
static size_t sums_bytes(const struct attention_shape *shape, int64_t sequences)
{
    return shape->unordered ? workspace_aligned((size_t)(sequences * shape->H * shape->T * shape->D) * sizeof(float))
                            : 0;
}

/* Bytes of the tensor that says which weights of this number of sequences are kept; 0 without dropout. */
static size_t kept_bytes(const struct attention_shape *shape, int64_t sequences)
{
    const int64_t count = sequences * shape->H * shape->T * attention_kept_ld(shape);
    return shape->dropout ? workspace_aligned((size_t)count * sizeof(uint16_t)) : 0;
}

/* What cuDNN and the graph's own scratch tensors take for this number of sequences. */
static size_t extra_bytes(const struct attention_shape *shape, int64_t sequences)
{
    return sums_bytes(shape, sequences) + kept_bytes(shape, sequences);
}

/* Whether the micro-batch may go through cuDNN in pieces of this number of sequences: each piece of lse has to be
 * aligned as rows are. */
static bool may_be_piece(const struct attention_shape *s, int64_t sequences)
{
    return s->ragged ||
           (s->B % sequences == 0 && sequences * s->H * s->T * (int64_t)sizeof(float) % ATTENTION_ALIGN == 0);
}

/* Backward needs a workspace of T x T for every head, or the sums of dq, and dropout a tensor of T x T: they go through
 * the micro-batch in the smallest number of pieces that makes all of that a small part of the memory, and are refused
 * where one sequence alone takes a large part. */
enum status attention_plan_make(struct attention_plan *plan, size_t memory, struct error *err)
{
    const size_t small = memory / 256, large = memory / 16;
    const struct attention_shape *s = &plan->shape;
    plan->piece = s->B;
    TRY(make_cudnn_plan(plan, &(struct cudnn_wish){.most_workspace = SIZE_MAX}, err));
    size_t sequence =
        (cudnn_plan_workspace_bytes(plan->cudnn_plan) + extra_bytes(s, s->B)) / (size_t)(s->B > 0 ? s->B : 1);
    for (int64_t piece = s->B - 1; piece >= 1 && sequence * (size_t)plan->piece > small; piece--)
        if (may_be_piece(s, piece))
            plan->piece = piece;
    if (plan->piece == s->B && sequence * (size_t)s->B <= large)
        return STATUS_OK;
    cudnn_plan_free(plan->cudnn_plan);
    plan->cudnn_plan = NULL;
    const size_t kept = kept_bytes(s, plan->piece);
    if (kept > large)
        return error_set(err, STATUS_DEVICE, "dropout of the weights would need %.3f GiB for a sequence",
                         (double)kept / (1 << 30));
    return make_cudnn_plan(plan, &(struct cudnn_wish){.most_workspace = large - kept}, err);
}

int attention_plan_pieces(const struct attention_plan *plan, int64_t pieces[ATTENTION_PIECES])
{
    const size_t small = 8 << 20; /* more pieces only cost launches */
    const struct attention_shape *s = &plan->shape;
    const size_t bytes = cudnn_plan_workspace_bytes(plan->cudnn_plan) + extra_bytes(s, plan->piece);
    int count = 0;
    pieces[count++] = plan->piece;
    for (int64_t piece = plan->piece / 2; piece >= 1 && count < ATTENTION_PIECES && !s->ragged; piece--) {
        const size_t of_last = bytes / (size_t)plan->piece * (size_t)pieces[count - 1];
        if (2 * piece <= pieces[count - 1] && of_last > small && may_be_piece(s, piece))
            pieces[count++] = piece;
    }
    return count;
}

bool attention_plan_may_have_piece(const struct attention_plan *plan, int64_t piece)
{
    return piece >= 1 && piece <= plan->shape.B && may_be_piece(&plan->shape, piece);
}

/* ---- workspace ----------------------------------------------------------- */

/* Where the parts of the workspace begin, in bytes from its aligned begin; cuDNN's part is the last one. */
struct workspace_plan {
    size_t delta, lengths, offsets, sums, kept, cudnn;
    int64_t pitch; /* elements between two arrays of offsets */
};

static struct workspace_plan plan_workspace(const struct attention_plan *plan)
{
    const struct attention_shape *s = &plan->shape;
    const int64_t sequences = s->ragged ? plan->piece : s->B, pitch = (plan->piece + 2) / 2 * 2;
    const size_t rows = workspace_aligned((size_t)(sequences * s->H * s->T) * sizeof(float));
    struct workspace_plan w = {.delta = rows, .lengths = 2 * rows, .pitch = pitch};
    w.offsets = w.lengths + (s->ragged ? workspace_aligned((size_t)plan->piece * sizeof(int32_t)) : 0);
    w.sums = w.offsets + (s->ragged ? workspace_aligned((size_t)(ATTENTION_STRIDES * pitch) * sizeof(int64_t)) : 0);
    w.kept = w.sums + sums_bytes(s, plan->piece);
    w.cudnn = w.kept + kept_bytes(s, plan->piece);
    return w;
}

/* cuDNN's part begins at a multiple of WORKSPACE_ALIGN, wherever the stream's workspace begins. */
size_t attention_plan_workspace_bytes(const struct attention_plan *plan)
{
    return plan_workspace(plan).cudnn + workspace_aligned(cudnn_plan_workspace_bytes(plan->cudnn_plan)) +
           WORKSPACE_ALIGN;
}

enum status attention_plan_make_again(struct attention_plan *plan, int64_t piece, const struct cudnn_wish *wish,
                                      size_t most, struct error *err)
{
    struct cudnn_wish bounded = *wish;
    cudnn_plan_free(plan->cudnn_plan);
    plan->cudnn_plan = NULL;
    plan->piece = piece;
    const size_t others = plan_workspace(plan).cudnn + WORKSPACE_ALIGN;
    if (others > most)
        return error_set(err, STATUS_DEVICE, "%lld sequences at a time need more workspace than is planned",
                         (long long)piece);
    bounded.most_workspace = (most - others) / WORKSPACE_ALIGN * WORKSPACE_ALIGN;
    return make_cudnn_plan(plan, &bounded, err);
}

struct attention_workspace {
    float *lse, *delta, *sums;
    int32_t *lengths;
    int64_t *offsets, pitch;
    void *kept;
    char *cudnn;
};

static struct attention_workspace attention_workspace_of(const struct stream *stream, const struct attention_plan *plan)
{
    size_t bytes;
    const struct workspace_plan w = plan_workspace(plan);
    char *base = stream_workspace(stream, &bytes);
    ASSERT(attention_plan_workspace_bytes(plan) <= bytes);
    base += -(uintptr_t)base % WORKSPACE_ALIGN;
    return (struct attention_workspace){
        .lse = (float *)(void *)base,
        .delta = (float *)(void *)(base + w.delta),
        .sums = (float *)(void *)(base + w.sums),
        .lengths = (int32_t *)(void *)(base + w.lengths),
        .offsets = (int64_t *)(void *)(base + w.offsets),
        .pitch = w.pitch,
        .kept = base + w.kept,
        .cudnn = base + w.cudnn,
    };
}

void attention_plan_spoil(const struct attention_plan *plan, struct stream *stream)
{
    if (plan->shape.dropout)
        attention_part_spoil(stream, attention_workspace_of(stream, plan).kept, kept_bytes(&plan->shape, plan->piece));
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

/* The pointers of forward, for all pieces of ragged sequences, or for the one that begins at token `first`. */
static void point_at_fwd(void *pointers[ATTENTION_POINTERS], const struct attention_fwd_args *args, int64_t first)
{
    pointers[ATTENTION_Q] = rows_from(args->q, first, args->ld_q);
    pointers[ATTENTION_K] = rows_from(args->k, first, args->ld_k);
    pointers[ATTENTION_V] = rows_from(args->v, first, args->ld_v);
    pointers[ATTENTION_OUT] = rows_from(args->out, first, args->ld_o);
}

static void point_at_bwd(void *pointers[ATTENTION_POINTERS], const struct attention_bwd_args *args, int64_t first)
{
    pointers[ATTENTION_Q] = rows_from(args->q, first, args->ld_q);
    pointers[ATTENTION_K] = rows_from(args->k, first, args->ld_k);
    pointers[ATTENTION_V] = rows_from(args->v, first, args->ld_v);
    pointers[ATTENTION_OUT] = rows_from(args->out, first, args->ld_o);
    pointers[ATTENTION_DOUT] = rows_from(args->dout, first, args->ld_o);
    pointers[ATTENTION_DQ] = rows_from(args->dq, first, args->ld_dq);
    pointers[ATTENTION_DK] = rows_from(args->dk, first, args->ld_dk);
    pointers[ATTENTION_DV] = rows_from(args->dv, first, args->ld_dv);
}

/* The lengths and offsets of a piece, computed on the stream. */
static void describe_part(const struct attention_plan *plan, struct stream *stream, const struct attention_part *part,
                          const struct attention_workspace *workspace, void *pointers[ATTENTION_POINTERS])
{
    int64_t strides[ATTENTION_STRIDES];
    const int count = attention_strides(&plan->shape, strides);
    attention_part_describe(stream, part, workspace->lengths, workspace->offsets, workspace->pitch, strides, count);
    pointers[ATTENTION_LENGTHS] = workspace->lengths;
    for (int i = 0; i < count; i++)
        pointers[ATTENTION_OFFSETS + i] = workspace->offsets + i * workspace->pitch;
}

/* With dropout: which weights of the piece are kept, computed on the stream. */
static void keep_weights(const struct attention_plan *plan, struct stream *stream, const struct attention_part *part,
                         const struct dropout *dropout, const struct attention_workspace *workspace,
                         void *pointers[ATTENTION_POINTERS])
{
    const struct attention_shape *s = &plan->shape;
    if (!s->dropout)
        return;
    pointers[ATTENTION_KEPT] = workspace->kept;
    attention_part_keep(stream, part, dropout, (enum dtype)s->dtype, !s->bidirectional, workspace->kept,
                        attention_kept_ld(s));
}

static struct attention_part first_part(const struct attention_plan *plan, const struct attention_fwd_args *args)
{
    return (struct attention_part){.seq_start = args->seq_start,
                                   .M = args->M,
                                   .num_seqs = args->num_seqs,
                                   .B = plan->piece,
                                   .H = args->H,
                                   .T = plan->shape.T};
}

static const char *run_ragged_fwd(const struct attention_plan *plan, struct stream *stream,
                                  const struct attention_fwd_args *args)
{
    struct attention_workspace workspace = attention_workspace_of(stream, plan);
    struct attention_part part = first_part(plan, args);
    void *pointers[ATTENTION_POINTERS] = {[ATTENTION_LSE] = workspace.lse};
    const char *failed = NULL;
    point_at_fwd(pointers, args, 0);
    for (; part.first < args->num_seqs && !failed; part.first += part.B) {
        describe_part(plan, stream, &part, &workspace, pointers);
        keep_weights(plan, stream, &part, &args->dropout, &workspace, pointers);
        failed = run_piece(plan, stream, pointers, workspace.cudnn);
        if (!failed)
            attention_part_store_lse(stream, &part, args->lse, workspace.lse);
    }
    return failed;
}

static const char *run_ragged_bwd(const struct attention_plan *plan, struct stream *stream,
                                  const struct attention_bwd_args *args)
{
    struct attention_workspace workspace = attention_workspace_of(stream, plan);
    struct attention_fwd_args forward = attention_forward_of(args);
    struct attention_part part = first_part(plan, &forward);
    void *pointers[ATTENTION_POINTERS] = {
        [ATTENTION_LSE] = workspace.lse, [ATTENTION_DELTA] = workspace.delta, [ATTENTION_SUMS] = workspace.sums};
    const char *failed = NULL;
    point_at_bwd(pointers, args, 0);
    for (; part.first < args->num_seqs && !failed; part.first += part.B) {
        describe_part(plan, stream, &part, &workspace, pointers);
        attention_part_load_lse(stream, &part, workspace.lse, args->lse);
        keep_weights(plan, stream, &part, &args->dropout, &workspace, pointers);
        failed = run_piece(plan, stream, pointers, workspace.cudnn);
    }
    return failed;
}

const char *attention_plan_run_fwd(const struct attention_plan *plan, struct stream *stream,
                                   const struct attention_fwd_args *args)
{
    const struct attention_shape *s = &plan->shape;
    if (s->ragged)
        return run_ragged_fwd(plan, stream, args);
    struct attention_workspace workspace = attention_workspace_of(stream, plan);
    struct attention_part part = first_part(plan, args);
    float *lse = reorders(s) ? workspace.lse : args->lse;
    const char *failed = NULL;
    for (int64_t i = 0; i < s->B && !failed; i += plan->piece) {
        void *pointers[ATTENTION_POINTERS] = {[ATTENTION_LSE] = lse + i * s->T * s->H};
        part.first = i;
        point_at_fwd(pointers, args, i * s->T);
        keep_weights(plan, stream, &part, &args->dropout, &workspace, pointers);
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
    if (s->ragged)
        return run_ragged_bwd(plan, stream, args);
    struct attention_workspace workspace = attention_workspace_of(stream, plan);
    const struct attention_fwd_args forward = attention_forward_of(args);
    struct attention_part part = first_part(plan, &forward);
    const float *lse = reorders(s) ? workspace.lse : args->lse;
    const char *failed = NULL;
    if (reorders(s))
        attention_lse_by_sequence(stream, workspace.lse, args->lse, s->B, s->H, s->T);
    for (int64_t i = 0; i < s->B && !failed; i += plan->piece) {
        void *pointers[ATTENTION_POINTERS] = {[ATTENTION_LSE] = (void *)(lse + i * s->T * s->H),
                                              [ATTENTION_DELTA] = workspace.delta + i * s->T * s->H,
                                              [ATTENTION_SUMS] = workspace.sums};
        part.first = i;
        point_at_bwd(pointers, args, i * s->T);
        keep_weights(plan, stream, &part, &args->dropout, &workspace, pointers);
        failed = run_piece(plan, stream, pointers, workspace.cudnn);
    }
    return failed;
}

#endif

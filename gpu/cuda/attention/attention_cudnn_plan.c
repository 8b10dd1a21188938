/* SPDX-License-Identifier: Apache-2.0 */
/* attention_cudnn_plan.c: pieces, workspace and execution of cuDNN's plans for attention. */
#include "gpu/cuda/attention/attention_cudnn_plan.h"

#include "core/heartbeat.h"
#include "gpu/cuda/attention/attention_kernels.h"
#include "gpu/cuda/device_cuda.h"

enum { WORKSPACE_ALIGN = 256 };

/* ---- shapes -------------------------------------------------------------- */

static int64_t plan_piece_sequences(const struct attention_fwd_args *args)
{
    int64_t full = args->max_seq > 0 ? 2 * ((args->M + args->max_seq - 1) / args->max_seq) : 0;
    return full < args->num_seqs ? full : args->num_seqs;
}

struct attention_shape attention_shape_fwd(const struct attention_fwd_args *args)
{
    return (struct attention_shape){
        .dtype = args->dtype,
        .B = args->ragged ? plan_piece_sequences(args) : args->num_seqs,
        .T = args->max_seq,
        .H = args->H,
        .KV = args->KV,
        .D = args->D,
        .window = args->window > 0 && (args->ragged || args->window < args->max_seq) ? args->window : 0,
        .ld_q = args->ld_q,
        .ld_k = args->ld_k,
        .ld_v = args->ld_v,
        .ld_o = args->ld_o,
        .scale = (double)args->scale,
        .bidirectional = args->bidirectional,
        .ragged = args->ragged,
        .dropout = args->dropout.threshold,
        .softcap = (double)args->softcap};
}

struct attention_shape attention_shape_bwd(const struct attention_bwd_args *args)
{
    struct attention_shape shape = attention_shape_fwd(&args->fwd);
    shape.ld_dq = args->ld_dq;
    shape.ld_dk = args->ld_dk;
    shape.ld_dv = args->ld_dv;
    shape.unordered = args->unordered;
    return shape;
}

bool attention_shape_is_aligned(const struct attention_shape *shape)
{
    int64_t strides[ATTENTION_STRIDES];
    for (int i = attention_strides(shape, strides) - 1; i >= 0; i--)
        if (strides[i] * 2 % ATTENTION_ALIGN != 0) return false;
    return true;
}

/* ---- padded sequences ---------------------------------------------------- */

/* The dense shape of copies of a ragged piece's rows. Causal backward needs no lengths: queries do not see the padding
 * after them, whose q, k, v, out, dout and lse are zero, so that its weights are 1 and its gradients 0. */
static struct attention_shape padded_shape(const struct attention_shape *ragged)
{
    struct attention_shape s = *ragged;
    s.ragged = 0;
    s.ld_q = s.ld_o = s.ld_dq = s.H * s.D;
    s.ld_k = s.ld_v = s.ld_dk = s.ld_dv = s.KV * s.D;
    return s;
}

static bool may_be_padded(const struct attention_plan *plan)
{
    const struct attention_shape *s = &plan->shape;
    return plan->direction == ATTENTION_BACKWARD && s->ragged && !s->bidirectional && !s->dropout;
}

/* ---- making plans -------------------------------------------------------- */

void attention_plan_refuse(struct attention_plan *plan, const char *why)
{
    cudnn_plan_free(plan->cudnn_plan);
    plan->cudnn_plan = NULL;
    plan->state = ATTENTION_REFUSED;
    snprintf(plan->why, sizeof plan->why, "%.*s", (int)sizeof plan->why - 1, why);
}

static int make_plans(const struct attention_plan *plan, int64_t piece, const struct cudnn_filter *filter,
                      struct cudnn_plan **plans, int most, struct error *err)
{
    const struct attention_form form = {.sequences = piece, .plain = plan->plain || plan->padded};
    const struct attention_shape shape = plan->padded ? padded_shape(&plan->shape) : plan->shape;
    SLOW("preparing attention by cuDNN", NULL, -1); /* it loads libraries and compiles */
    return attention_graph_plans(plan->target, plan->direction, &shape, &form, filter, plans, most, err);
}

static size_t plan_aligned(size_t bytes)
{
    return (bytes + WORKSPACE_ALIGN - 1) / WORKSPACE_ALIGN * WORKSPACE_ALIGN;
}

/* Whether dq has sums in memory. */
static bool has_sums(const struct cudnn_plan *made)
{
    return cudnn_plan_uses(made, ATTENTION_SUMS);
}

/* 0 without dropout. */
static size_t plan_kept_bytes(const struct attention_shape *shape, int64_t sequences)
{
    const int64_t count = sequences * shape->H * shape->T * attention_kept_ld(shape);
    return shape->dropout ? plan_aligned((size_t)count * sizeof(uint16_t)) : 0;
}

/* Each piece of lse has to be aligned as rows are. */
static bool plan_may_be_piece(const struct attention_shape *s, int64_t n)
{
    return s->ragged || (s->B % n == 0 && n * s->H * s->T * (int64_t)sizeof(float) % ATTENTION_ALIGN == 0);
}

/* The parts of the workspace, in bytes from its aligned begin; cuDNN's is the last one. */
struct attention_workspace {
    char *base; /* aligned; NULL: only the distances are known */
    size_t delta, lengths, offsets, sums, kept, copies, cudnn;
    int64_t pitch; /* elements between two arrays of offsets */
};

static struct attention_workspace plan_piece_workspace(const struct attention_plan *plan, bool sums, int64_t piece)
{
    const struct attention_shape *s = &plan->shape;
    const int64_t sequences = s->ragged ? piece : s->B, pitch = (piece + 2) / 2 * 2;
    const size_t rows = plan_aligned((size_t)(sequences * s->H * s->T) * sizeof(float));
    const size_t piece_head = (size_t)(piece * s->T * s->D); /* elements of a head */
    struct attention_workspace w = {.delta = rows, .lengths = 2 * rows, .pitch = pitch};
    w.offsets = w.lengths + (s->ragged ? plan_aligned((size_t)piece * sizeof(int32_t)) : 0);
    w.sums = w.offsets + (s->ragged ? plan_aligned((size_t)(ATTENTION_STRIDES * pitch) * sizeof(int64_t)) : 0);
    w.kept = w.sums + (sums ? plan_aligned(piece_head * (size_t)s->H * sizeof(float)) : 0);
    w.copies = w.kept + plan_kept_bytes(s, piece);
    w.cudnn = w.copies; /* after copies of q, k, v, out and their gradients */
    if (plan->padded)
        w.cudnn += 4 * (plan_aligned(piece_head * (size_t)s->H * sizeof(uint16_t)) +
                        plan_aligned(piece_head * (size_t)s->KV * sizeof(uint16_t)));
    return w;
}

/* Of a piece, beside cuDNN's. */
static size_t plan_extra_bytes(const struct attention_plan *plan, int64_t piece)
{
    const struct attention_workspace w = plan_piece_workspace(plan, has_sums(plan->cudnn_plan), piece);
    return w.cudnn - w.sums;
}

/* Backward needs T x T for every head, or the sums of dq, and dropout T x T. The smallest number of pieces is taken
 * that makes this a small part of the memory; a shape of which one sequence takes a large part is refused. */
static enum status make_plan(struct attention_plan *plan, struct error *err)
{
    const size_t small = plan->memory / 256, large = plan->memory / 16;
    const struct attention_shape *s = &plan->shape;
    plan->piece = s->B;
    if (!make_plans(plan, s->B, &(struct cudnn_filter){.most_workspace = SIZE_MAX}, &plan->cudnn_plan, 1, err))
        return err->code;
    const size_t sequence =
        (plan->cudnn_plan->workspace + plan_extra_bytes(plan, s->B)) / (size_t)(s->B > 0 ? s->B : 1);
    for (int64_t piece = s->B - 1; piece >= 1 && sequence * (size_t)plan->piece > small; piece--)
        if (plan_may_be_piece(s, piece)) plan->piece = piece;
    if (plan->piece != s->B || sequence * (size_t)s->B > large) {
        const size_t kept = plan_kept_bytes(s, plan->piece);
        cudnn_plan_free(plan->cudnn_plan);
        plan->cudnn_plan = NULL;
        if (kept > large)
            return error_set(err, STATUS_DEVICE, "dropout of the weights would need %.3f GiB for a sequence",
                             (double)kept / (1 << 30));
        const struct cudnn_filter filter = {.most_workspace = large - kept};
        if (!make_plans(plan, plan->piece, &filter, &plan->cudnn_plan, 1, err)) return err->code;
    }
    plan->planned = plan_piece_workspace(plan, has_sums(plan->cudnn_plan), plan->piece).cudnn +
                    plan_aligned(plan->cudnn_plan->workspace) + WORKSPACE_ALIGN;
    return STATUS_OK;
}

enum status attention_plan_make(struct attention_plan *plan, struct error *err)
{
    struct error ignored;
    const enum status status = make_plan(plan, err);
    if (status == STATUS_OK || !may_be_padded(plan)) return status;
    plan->padded = true;
    return make_plan(plan, &ignored) == STATUS_OK ? STATUS_OK : status;
}

bool attention_plan_has_plain_form(const struct attention_plan *plan)
{
    return !plan->plain && (attention_form_is_listed(plan->target, plan->direction, &plan->shape) ||
                            attention_form_has_lse_of_op(plan->target, &plan->shape, false));
}

bool attention_plan_make_plain(struct attention_plan *plan)
{
    struct error err;
    plan->plain = true;
    if (attention_plan_make(plan, &err) != STATUS_OK) {
        attention_plan_refuse(plan, err.text);
        return false;
    }
    plan->state = ATTENTION_PLANNED;
    return true;
}

int attention_plan_candidates(const struct attention_plan *plan, int64_t piece, uint64_t kernel,
                              struct cudnn_plan **candidates, int most)
{
    struct error ignored;
    if (piece < 1 || piece > plan->shape.B || !plan_may_be_piece(&plan->shape, piece)) return 0;
    const size_t others = plan_piece_workspace(plan, plan->shape.unordered, piece).cudnn + WORKSPACE_ALIGN;
    if (others > plan->planned) return 0;
    const struct cudnn_filter filter = {.most_workspace = (plan->planned - others) / WORKSPACE_ALIGN * WORKSPACE_ALIGN,
                                        .kernel = kernel};
    return make_plans(plan, piece, &filter, candidates, most, &ignored);
}

int attention_plan_pieces(const struct attention_plan *plan, int64_t pieces[ATTENTION_PIECES])
{
    const size_t small = 8 << 20; /* more pieces only cost launches */
    const struct attention_shape *s = &plan->shape;
    const size_t bytes = plan->cudnn_plan->workspace + plan_extra_bytes(plan, plan->piece);
    int count = 0;
    pieces[count++] = plan->piece;
    for (int64_t piece = plan->piece / 2; piece >= 1 && count < ATTENTION_PIECES && !s->ragged; piece--) {
        const size_t of_last = bytes / (size_t)plan->piece * (size_t)pieces[count - 1];
        if (2 * piece <= pieces[count - 1] && of_last > small && plan_may_be_piece(s, piece)) pieces[count++] = piece;
    }
    return count;
}

/* ---- execution ----------------------------------------------------------- */

static struct attention_workspace attention_workspace_of(const struct stream *stream, const struct attention_plan *plan)
{
    size_t bytes;
    struct attention_workspace w = plan_piece_workspace(plan, has_sums(plan->cudnn_plan), plan->piece);
    w.base = stream_workspace(stream, &bytes);
    ASSERT(plan->planned <= bytes);
    w.base += -(uintptr_t)w.base % WORKSPACE_ALIGN;
    return w;
}

void attention_plan_spoil(const struct attention_plan *plan, struct stream *stream)
{
    const struct attention_workspace w = attention_workspace_of(stream, plan);
    if (plan->shape.dropout)
        cuda_check(cuda_device_of(stream),
                   cudaMemsetAsync(w.base + w.kept, 0xff, plan_kept_bytes(&plan->shape, plan->piece),
                                   cuda_stream_of(stream)->handle),
                   "attention, dropout on trial");
}

/* A tensor of rows of 16-bit elements: its pointer in the op, the distance between rows, and their width. */
struct plan_rows {
    enum attention_pointer id;
    const void *base;
    int64_t ld, width;
};
enum { PLAN_ROWS = 8 };

/* The lengths and offsets of a ragged piece, computed on the stream. */
static void describe_part(const struct attention_plan *plan, struct stream *stream, const struct attention_part *part,
                          const struct attention_workspace *w, void *pointers[ATTENTION_POINTERS])
{
    int64_t strides[ATTENTION_STRIDES], *offsets = (int64_t *)(void *)(w->base + w->offsets);
    const int count = attention_strides(&plan->shape, strides);
    pointers[ATTENTION_LENGTHS] = w->base + w->lengths;
    attention_part_describe(stream, part, pointers[ATTENTION_LENGTHS], offsets, w->pitch, strides, count);
    for (int i = 0; i < count; i++) pointers[ATTENTION_OFFSETS + i] = offsets + i * w->pitch;
}

/* Copies the rows of a padded piece from the op's tensors, or its results back; pointers[]: the copies. */
static void copy_rows(const struct attention_plan *plan, struct stream *stream, const struct attention_part *part,
                      char *copies, const struct plan_rows rows[PLAN_ROWS], bool results,
                      void *pointers[ATTENTION_POINTERS])
{
    for (const struct plan_rows *r = rows; r < rows + PLAN_ROWS; r++) {
        pointers[r->id] = copies;
        if (results == (r->id >= ATTENTION_DQ))
            attention_part_rows(stream, part, (void *)(uintptr_t)r->base, r->ld, copies, r->width, !results);
        copies += plan_aligned((size_t)(plan->piece * plan->shape.T * r->width) * sizeof(uint16_t));
    }
}

const char *attention_plan_run(const struct attention_plan *plan, struct stream *stream,
                               const struct attention_fwd_args *fwd, const struct attention_bwd_args *bwd)
{
    const struct attention_shape *s = &plan->shape;
    const struct attention_workspace w = attention_workspace_of(stream, plan);
    struct attention_part part = {
        .seq_start = fwd->seq_start, .M = fwd->M, .num_seqs = fwd->num_seqs, .B = plan->piece, .H = fwd->H, .T = s->T};
    const bool of_op_is_used = attention_form_has_lse_of_op(plan->target, s, plan->plain);
    const bool reordered = s->ragged || (!of_op_is_used && s->B > 1 && s->H > 1); /* (H, B T), (B, H, T) differ */
    static const struct attention_bwd_args none;
    const struct attention_bwd_args *b = bwd ? bwd : &none;
    const int64_t q = s->H * s->D, k = s->KV * s->D;
    const struct plan_rows rows[PLAN_ROWS] = {
        {ATTENTION_Q, fwd->q, s->ld_q, q},     {ATTENTION_K, fwd->k, s->ld_k, k},
        {ATTENTION_V, fwd->v, s->ld_v, k},     {ATTENTION_OUT, fwd->out, s->ld_o, q},
        {ATTENTION_DOUT, b->dout, s->ld_o, q}, {ATTENTION_DQ, b->dq, s->ld_dq, q},
        {ATTENTION_DK, b->dk, s->ld_dk, k},    {ATTENTION_DV, b->dv, s->ld_dv, k}};
    const char *failed = NULL;
    for (; part.first < (s->ragged ? fwd->num_seqs : s->B) && !failed; part.first += plan->piece) {
        const int64_t first = s->ragged ? 0 : part.first * s->T;
        float *lse = reordered ? (float *)(void *)w.base : fwd->lse + first * (of_op_is_used ? 1 : s->H);
        void *pointers[ATTENTION_POINTERS] = {[ATTENTION_LSE] = lse,
                                              [ATTENTION_DELTA] =
                                                  w.base + w.delta + (size_t)(first * s->H) * sizeof(float),
                                              [ATTENTION_SUMS] = w.base + w.sums,
                                              [ATTENTION_KEPT] = w.base + w.kept};
        for (const struct plan_rows *r = rows; r < rows + PLAN_ROWS; r++)
            if (r->base) pointers[r->id] = (char *)(uintptr_t)r->base + first * r->ld * (int64_t)sizeof(uint16_t);
        if (plan->padded)
            copy_rows(plan, stream, &part, w.base + w.copies, rows, false, pointers);
        else if (s->ragged)
            describe_part(plan, stream, &part, &w, pointers);
        if (reordered && bwd) attention_part_lse(stream, &part, fwd->lse, lse, true);
        if (s->dropout)
            attention_part_keep(stream, &part, &fwd->dropout, (enum dtype)s->dtype, !s->bidirectional,
                                pointers[ATTENTION_KEPT], attention_kept_ld(s));
        failed = cudnn_plan_execute(plan->cudnn_plan, cuda_stream_of(stream)->handle, pointers, ATTENTION_POINTERS,
                                    w.base + w.cudnn);
        if (plan->padded && !failed) copy_rows(plan, stream, &part, w.base + w.copies, rows, true, pointers);
        if (reordered && !bwd && !failed) attention_part_lse(stream, &part, fwd->lse, lse, false);
    }
    return failed;
}

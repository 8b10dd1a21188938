/* SPDX-License-Identifier: Apache-2.0 */
/* transformer_head.c: final norm, pooler, logits and loss.
 *
 * Logits exist for `chunk` rows at a time, in fp32 or in the type of the activations. In training, each chunk goes
 * forward and backward before the next one:
 *
 *     final_norm rows ─► logits ─► loss, dlogits in place ─► gradient of the head's matrix (adds up over chunks)
 *                                                       └──► gradient of the rows, over final_norm's rows
 *
 * With a loss of sequences the chunks go forward twice: their logits come again once the rows' factors are known. A
 * micro-batch of one chunk keeps its logits.
 *
 * A tied head's matrix is the token embedding of unit 0, acquired with the head, which writes its gradient first.
 *
 * With norms after the residual (BERT) there is no final norm: final_norm is the last block's output, and the gradient
 * of its rows goes to dres. A pooler comes before the logits: rows ─► matrix ─► tanh ─► dropout. It computes all rows,
 * although only a sample's first token has a target: they cost a twelfth of one block's matrices. */
#include "core/round_up.h"
#include "gpu/model/transformer_layers.h"

/* matrix: that of the two which holds the head's matrix. */
struct head_units {
    struct unit norm, embedding;
    struct unit *matrix;
};

static enum status head_acquire(const struct pass *pass, struct head_units *units, enum param_pass kind)
{
    const struct transformer *t = pass->transformer;
    TRY(unit_acquire(pass, &units->norm, (int)t->L + 1, kind));
    units->matrix = &units->norm;
    if (t->config.desc->tied) {
        TRY(unit_acquire(pass, &units->embedding, 0, kind));
        units->matrix = &units->embedding;
    }
    return STATUS_OK;
}

static void head_release(const struct pass *pass, const struct head_units *units)
{
    if (units->matrix == &units->embedding) unit_release(pass, &units->embedding);
    unit_release(pass, &units->norm);
}

static struct norm head_final_norm(const struct transformer *t)
{
    return (struct norm){ROLE_FINAL_NORM_W, ROLE_FINAL_NORM_B, t->final_res, t->final_norm,
                         t->final_mean,     t->final_rstd,     NULL};
}

static void head_norm_forward(const struct pass *pass, const struct unit *unit)
{
    const struct transformer *t = pass->transformer;
    const bool summed = t->config.desc->layer_scalar; /* final_res: by the last block */
    if (!t->post_norm) norm_forward(pass, unit, head_final_norm(t), t->blocks[t->L - 1].res2, summed ? NULL : t->delta);
}

/* Elements of dt between the rows of dlogits, which lie over the logits. */
static int64_t head_ld_dlogits(const struct transformer *t)
{
    return t->ld_logits * (int64_t)(dtype_size(t->logits_dtype) / dtype_size(t->dtype));
}

void head_logits(const struct pass *pass, const struct unit *unit, const struct unit *matrix, int64_t first,
                 int64_t rows, const void *x)
{
    const struct transformer *t = pass->transformer;
    struct linear_fwd_args args = linear_fwd_args(t, matrix, LINEAR_HEAD, rows, t->logits, x, NULL);
    args.y_dtype = t->logits_dtype;
    args.ld_y = t->ld_logits;
    linear_run(pass, unit, LINEAR_HEAD, first, &args);
}

void head_logits_bwd(const struct pass *pass, const struct unit *unit, const struct unit *matrix, int64_t first,
                     int64_t rows, const void *x, void *dx)
{
    const struct transformer *t = pass->transformer;
    struct linear_bwd_weight_args weight = linear_bwd_weight_args(t, matrix, LINEAR_HEAD, rows, t->logits, x);
    struct linear_bwd_input_args input = linear_bwd_input_args(t, matrix, LINEAR_HEAD, rows, dx, t->logits, NULL);
    weight.ld_dy = input.ld_dy = head_ld_dlogits(t);
    weight.accumulate = weight.accumulate_dbias = matrix->to.adds || first > 0;
    linear_run_backward(pass, unit, LINEAR_HEAD, first, &weight, input, false);
}

/* The input of the head's matrix for rows [first, first + rows): the pooler's output, if there is a pooler. */
static const void *head_pooler_forward(const struct pass *pass, const struct unit *unit, int64_t first, int64_t rows)
{
    const struct transformer *t = pass->transformer;
    void *normed = row_at(t, t->final_norm, first, t->C);
    if (!t->pooled) return normed;
    struct linear_fwd_args product = linear_fwd_args(t, unit, LINEAR_POOLER, rows, t->pooled, normed, NULL);
    linear_run(pass, unit, LINEAR_POOLER, first, &product);
    struct tanh_fwd_args curve = {.dtype = t->dtype, .n = rows * t->C, .y = t->pooled, .x = t->pooled};
    t->device->ops->tanh_fwd(pass->stream, &curve);
    return drop_rows(pass, DROPOUT_POOLED, t->L + 1, first, rows, t->kept, t->pooled);
}

/* From the gradient of the pooler's output in `kept`, which it overwrites, to that of its input, `dx`. */
static void head_pooler_bwd(const struct pass *pass, const struct unit *unit, int64_t first, int64_t rows, void *dx)
{
    const struct transformer *t = pass->transformer;
    drop_rows(pass, DROPOUT_POOLED, t->L + 1, first, rows, t->kept, t->kept);
    struct tanh_bwd_args curve = {.dtype = t->dtype, .n = rows * t->C, .dx = t->kept, .dy = t->kept, .y = t->pooled};
    t->device->ops->tanh_bwd(pass->stream, &curve);
    struct linear_bwd_weight_args weight =
        linear_bwd_weight_args(t, unit, LINEAR_POOLER, rows, t->kept, row_at(t, t->final_norm, first, t->C));
    weight.accumulate = weight.accumulate_dbias = unit->to.adds || first > 0;
    linear_run_backward(pass, unit, LINEAR_POOLER, first, &weight,
                        linear_bwd_input_args(t, unit, LINEAR_POOLER, rows, dx, t->kept, NULL), false);
}

/* The loss of rows [first, first + rows), from their logits; with `gradient`, writes dlogits over them. */
static void head_chunk_loss(const struct pass *pass, int64_t first, int64_t rows, bool gradient)
{
    const struct transformer *t = pass->transformer;
    const int64_t K = t->config.teacher_tokens;
    const bool taught = pass->training && pass->batch.teacher_ids;
    struct cross_entropy_args loss = {
        .dtype = t->dtype,
        .logits_dtype = t->logits_dtype,
        .M = rows,
        .V = t->classes,
        .V_padded = linear_of(t, 0, LINEAR_HEAD)->N,
        .ld_logits = t->ld_logits,
        .ld_dlogits = head_ld_dlogits(t),
        .logits = t->logits,
        .dlogits = gradient ? t->logits : NULL,
        .targets = pass->batch.targets + first,
        .logit_scale = (float)t->config.desc->logit_multiplier,
        .softcap = (float)t->config.desc->logit_softcap,
        .scale = pass->factor.value,
        .smoothing = (float)t->config.settings.label_smoothing,
        .linear = t->classes == 1, /* a reward */
        .K = taught ? K : 0,
        .teacher_ids = taught ? pass->batch.teacher_ids + first * K : NULL,
        .teacher_logps = taught ? pass->batch.teacher_logps + first * K : NULL,
        .temperature = (float)t->config.settings.distill.temperature,
        .alpha = (float)t->config.settings.distill.alpha,
        .row_scale = gradient && pass->sequences ? t->row_scale + first : NULL,
        .row_losses = t->row_losses && !gradient ? t->row_losses + first : NULL,
        .step_scale = pass->factor.step,
        .loss_scale = pass->factor.scaler,
        .loss_sum = pass->loss_sum,
    };
    t->device->ops->cross_entropy(pass->stream, &loss);
}

/* Computes the logits of rows [first, first + rows) and their loss, as head_chunk_loss(). Returns the input of the
 * head's matrix. */
static const void *head_chunk_forward(const struct pass *pass, const struct head_units *units, int64_t first,
                                      int64_t rows, bool gradient)
{
    const void *x = head_pooler_forward(pass, &units->norm, first, rows);
    const bool kept = gradient && pass->sequences && pass->M <= pass->transformer->chunk;
    if (!kept) head_logits(pass, &units->norm, units->matrix, first, rows, x);
    head_chunk_loss(pass, first, rows, gradient);
    return x;
}

/* x: what head_chunk_forward() returned. */
static void head_chunk_bwd(const struct pass *pass, const struct head_units *units, int64_t first, int64_t rows,
                           const void *x)
{
    const struct transformer *t = pass->transformer;
    void *dx = row_at(t, t->post_norm ? t->dres : t->final_norm, first, t->C);
    head_logits_bwd(pass, &units->norm, units->matrix, first, rows, x, t->pooled ? t->kept : dx);
    if (t->pooled) head_pooler_bwd(pass, &units->norm, first, rows, dx);
}

static int64_t head_chunk_rows(const struct pass *pass, int64_t first)
{
    return min64(pass->M - first, pass->transformer->chunk);
}

/* Copies the logits of rows with a target to the host, behind *copied others. */
static void head_copy_logits(const struct pass *pass, int64_t first, int64_t rows, int64_t *copied)
{
    const struct transformer *t = pass->transformer;
    for (int64_t row = 0; row < rows; row++)
        if (pass->host_targets[first + row] >= 0)
            stream_copy(pass->stream, pass->host_logits + (*copied)++ * t->classes,
                        (const float *)t->logits + row * t->ld_logits, (size_t)t->classes * sizeof(float));
}

int64_t transformer_logit_rows(const struct transformer *t)
{
    return t->chunk;
}

int64_t transformer_ld_logits(const struct transformer *t)
{
    return t->ld_logits;
}

static enum status head_give_logits(const struct pass *pass, int64_t first, int64_t rows)
{
    const struct transformer *t = pass->transformer;
    ASSERT(t->logits_dtype == DTYPE_F32);
    stream_copy(pass->stream, pass->rows->logits, t->logits, (size_t)(rows * t->ld_logits) * sizeof(float));
    stream_sync(pass->stream);
    return pass->rows->take(pass->rows->context, first, rows, pass->err);
}

enum status head_evaluate(const struct pass *pass)
{
    struct head_units units;
    int64_t copied = 0;
    ASSERT(!pass->host_logits || pass->transformer->logits_dtype == DTYPE_F32);
    TRY(head_acquire(pass, &units, PASS_EVALUATION));
    if (pass->M > 0) head_norm_forward(pass, &units.norm);
    for (int64_t first = 0; first < pass->M; first += pass->transformer->chunk) {
        head_chunk_forward(pass, &units, first, head_chunk_rows(pass, first), false);
        if (pass->host_logits) head_copy_logits(pass, first, head_chunk_rows(pass, first), &copied);
        if (pass->rows && pass->rows->logits) TRY(head_give_logits(pass, first, head_chunk_rows(pass, first)));
    }
    if (pass->rows && pass->rows->losses)
        stream_copy(pass->stream, pass->rows->losses, pass->transformer->row_losses, (size_t)pass->M * sizeof(float));
    head_release(pass, &units);
    return STATUS_OK;
}

enum status head_next(const struct pass *pass, void *logits)
{
    const struct transformer *t = pass->transformer;
    struct head_units units;
    TRY(head_acquire(pass, &units, PASS_EVALUATION));
    head_norm_forward(pass, &units.norm);
    head_logits(pass, &units.norm, units.matrix, pass->M - 1, 1, row_at(t, t->final_norm, pass->M - 1, t->C));
    stream_copy(pass->stream, logits, t->logits, (size_t)t->classes * dtype_size(t->logits_dtype));
    head_release(pass, &units);
    return STATUS_OK;
}

/* With a loss of sequences: the factors of the rows. */
static enum status head_weigh(const struct pass *pass, const struct head_units *units)
{
    const struct transformer *t = pass->transformer;
    const struct sequence_loss *sequences = pass->sequences;
    const size_t bytes = (size_t)pass->M * sizeof(float);
    for (int64_t first = 0; first < pass->M; first += t->chunk)
        head_chunk_forward(pass, units, first, head_chunk_rows(pass, first), false);
    stream_copy(pass->stream, sequences->row_losses, t->row_losses, bytes);
    stream_sync(pass->stream);
    TRY(sequences->weigh(sequences->context, pass->host_batch, pass->err));
    stream_copy(pass->stream, t->row_scale, sequences->row_scale, bytes);
    return STATUS_OK;
}

enum status head_train(const struct pass *pass)
{
    struct transformer *t = pass->transformer;
    struct head_units units;
    const int head = (int)t->L + 1;
    struct span span = phase_begin(pass->stream, PHASE_FORWARD, head);
    TRY(head_acquire(pass, &units, PASS_BACKWARD));
    TRY(unit_grads(pass, &units.norm));
    if (units.matrix != &units.norm) TRY(unit_grads(pass, units.matrix));
    if (pass->M > 0) head_norm_forward(pass, &units.norm);
    if (pass->sequences) TRY(head_weigh(pass, &units));
    span_end(&span);
    for (int64_t first = 0; first < pass->M; first += t->chunk) {
        int64_t rows = head_chunk_rows(pass, first);
        span = phase_begin(pass->stream, PHASE_FORWARD, head);
        const void *x = head_chunk_forward(pass, &units, first, rows, true);
        span_end(&span);
        span = phase_begin(pass->stream, PHASE_BACKWARD, head);
        head_chunk_bwd(pass, &units, first, rows, x);
        span_end(&span);
    }
    span = phase_begin(pass->stream, PHASE_BACKWARD, head);
    if (pass->M > 0 && !t->post_norm)
        norm_backward(pass, &units.norm, head_final_norm(t), t->dres, t->final_norm, NULL,
                      (struct row_sums){.to = t->dres_sums});
    head_release(pass, &units);
    TRY(unit_ready(pass, &units.norm));
    span_end(&span);
    return STATUS_OK;
}

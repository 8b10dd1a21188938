/* evaluate.c: see evaluate.h. */
#include "cmd/train/evaluate.h"

#include "cmd/train/stop_vote.h"
#include "core/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* The device's *loss_sum, once all work enqueued before is done. */
static double read_loss_sum(struct trainer *t)
{
    double sum;
    stream_copy(t->compute, &sum, t->loss_sum, sizeof sum);
    stream_sync(t->compute);
    return sum;
}

/* What an evaluation adds up, over the batches of a rank and then over all ranks: doubles in one piece of memory. */
struct evaluation {
    double *sums;   /* owned (num_sums): loss, targets, then the counts */
    int num_sums;   /* 2 of a language model, 2 + CLASS_COUNT_ROWS · classes of a classifier */
    double *counts; /* (CLASS_COUNT_ROWS, classes) of class_scores.h, in sums; NULL: a language model */
    float *logits;  /* owned (max_seqs, classes) of a batch; NULL: a language model */
    int64_t classes;
};

static enum status evaluation_init(struct evaluation *e, const struct trainer *t, struct error *err)
{
    int64_t max_tokens;
    int32_t max_seqs;
    *e = (struct evaluation){.classes = t->desc.num_labels};
    e->num_sums = 2 + CLASS_COUNT_ROWS * (int)e->classes;
    e->sums = calloc((size_t)e->num_sums, sizeof *e->sums);
    token_stream_limits(&t->validation_config, &max_tokens, &max_seqs);
    if (e->classes)
        e->logits = calloc((size_t)max_seqs * (size_t)e->classes, sizeof *e->logits);
    if (!e->sums || (e->classes && !e->logits)) {
        free(e->sums);
        free(e->logits);
        return error_set(err, STATUS_DEVICE, "out of memory: an evaluation with %" PRId64 " labels", e->classes);
    }
    e->counts = e->classes ? e->sums + 2 : NULL;
    return STATUS_OK;
}

static void evaluation_release(struct evaluation *e)
{
    free(e->sums);
    free(e->logits);
}

/* Counts the predictions for the samples of a batch, whose logits are on their way to the host. */
static void count_predictions(struct evaluation *e, const struct batch *batch, struct stream *stream)
{
    int64_t sample = 0;
    stream_sync(stream);
    for (int64_t i = 0; i < batch->num_tokens; i++)
        if (batch->targets[i] >= 0)
            class_counts_add(e->counts, e->classes, e->logits + e->classes * sample++, batch->targets[i]);
}

/* Adds up the losses of a stream on the device, and its targets and predictions in e. A stop breaks it off and leaves
 * the whole evaluation to the resumed run (position.evaluation_due). */
static enum status evaluate_stream(struct run *run, struct token_stream *stream, struct evaluation *e,
                                   struct error *err)
{
    struct trainer *t = &run->trainer;
    for (;;) {
        struct batch batch;
        bool end = false;
        TRY(token_stream_next(stream, &batch, &end, err));
        if (end)
            return STATUS_OK;
        if (run->stop) {
            run->position.evaluation_due = true;
            return STATUS_OK;
        }
        TRY(transformer_evaluate(t->transformer, &batch, zero_verbs(t->zero), t->compute, t->loss_sum, e->logits, err));
        e->sums[1] += (double)batch.num_targets;
        if (e->counts)
            count_predictions(e, &batch, t->compute);
        TRY(stop_vote(run, err));
    }
}

/* Puts the result into the position, the same on all ranks. */
static void note_scores(struct run *run, double loss, const struct class_scores *scores)
{
    const double values[EVAL_METRIC_COUNT] = {
        [EVAL_METRIC_LOSS] = loss,
        [EVAL_METRIC_ACCURACY] = scores ? scores->accuracy : NAN,
        [EVAL_METRIC_F1] = scores ? scores->f1 : NAN,
    };
    struct train_position *position = &run->position;
    position->scores = (struct eval_scores){.known = true, .data = run->trainer.evaluation_data};
    for (int i = 0; i < EVAL_METRIC_COUNT; i++)
        position->scores.values[i] = isfinite(values[i]) ? values[i] : NAN;
}

/* Notes the result, and writes it on the rank that has the metrics. */
static enum status report(struct run *run, const struct evaluation *e, struct error *err)
{
    const struct train_position *position = &run->position;
    double loss = run_mean_loss(e->sums[0], e->sums[1]);
    struct class_scores scores;
    if (e->counts)
        scores = class_scores_of(e->counts, e->classes);
    note_scores(run, loss, e->counts ? &scores : NULL);
    if (!run->metrics)
        return STATUS_OK;
    TRY(metrics_eval(run->metrics, position->step, position->epoch, loss, (int64_t)e->sums[1],
                     e->counts ? &scores : NULL, err));
    monitor_evaluation(run->monitor, position->step, &position->scores);
    console_break(&run->console);
    if (e->counts)
        log_info("step %" PRId64 "  eval_loss %.4f  accuracy %.4f  f1 %.4f  (%.0f samples)", position->step, loss,
                 scores.accuracy, scores.f1, e->sums[1]);
    else
        log_info("step %" PRId64 "  eval_loss %.4f  perplexity %.2f  (%.0f targets)", position->step, loss, exp(loss),
                 e->sums[1]);
    return STATUS_OK;
}

/* comm_sum() takes COMM_EXCHANGE_MAX bytes at a time. */
static enum status sum_over_ranks(struct comm *comm, struct evaluation *e, struct error *err)
{
    const int most = COMM_EXCHANGE_MAX / (int)sizeof *e->sums;
    for (int at = 0; at < e->num_sums; at += most)
        TRY(comm_sum(comm, e->sums + at, e->num_sums - at < most ? e->num_sums - at : most, err));
    return STATUS_OK;
}

/* Runs the stream and adds up the ranks' results. */
static enum status evaluate(struct run *run, struct evaluation *e, struct error *err)
{
    struct trainer *t = &run->trainer;
    struct token_stream *stream = NULL;
    stream_fill_zero(t->compute, t->loss_sum, sizeof *t->loss_sum);
    TRY(token_stream_open(&t->validation_config, 1, &stream, err));
    enum status status = evaluate_stream(run, stream, e, err);
    token_stream_close(stream);
    TRY(status);
    e->sums[0] = read_loss_sum(t);
    TRY(sum_over_ranks(run->comm, e, err));
    return run->position.evaluation_due ? STATUS_OK : report(run, e, err);
}

enum status run_evaluate(struct run *run, struct error *err)
{
    struct trainer *t = &run->trainer;
    struct evaluation e;
    TRY(evaluation_init(&e, t, err));
    enum status status = evaluate(run, &e, err);
    evaluation_release(&e);
    TRY(status);
    double forward, backward; /* read so that they do not count for the next step */
    transformer_times(t->transformer, &forward, &backward);
    return STATUS_OK;
}

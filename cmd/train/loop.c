/* clang-format off */
/* loop.c: see loop.h. Time runs to the right; an evaluation and a checkpoint are due after step 8:
 *
 *     host     enqueue 7, vote | collect 6 | enqueue 8, vote | collect 7, 8 | evaluate | save | enqueue 9, vote
 *     device   step 6     | step 7               | step 8               |     | losses   |      | step 9
 *
 * train_step() gives the device a step and has the ranks vote on stopping; long steps have votes between their
 * micro-batches as well, about one a second. collect_step() reads the results of a step, advances the position and
 * writes the metrics: on a GPU one step later, so that the GPU never waits for the host, on the CPU at once. Before
 * anything is done between two steps, all steps are collected (between_steps()). A vote to stop makes a checkpoint due
 * after the step; a vote within a step breaks that step off, and the checkpoint is one of the step before it. */
/* clang-format on */
#include "cmd/train/loop.h"

#include "cmd/train/resume.h"
#include "cmd/train/save.h"
#include "cmd/train/stop_signal.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

static const double vote_seconds = 1; /* between two votes on stopping within a step, at least */

/* ---- votes on stopping --------------------------------------------------- */

/* On rank 0, at a vote: the number of micro-batches until the next one, as many as take vote_seconds at the pace since
 * the last vote. At most twice the last interval: a host that is ahead of its device measures too little time. */
static double next_vote(struct vote *vote)
{
    double now = seconds_now(), most = 2 * (double)(vote->interval > 0 ? vote->interval : 1);
    int64_t done = vote->interval - vote->left;
    double each = done > 0 ? (now - vote->at) / (double)done : INFINITY;
    vote->at = now;
    return fmin(fmax(floor(vote_seconds / each), 1), most);
}

/* Collective: sets run->stop if some rank was asked to stop, or the job's end is near. */
static enum status look_for_stop(struct run *run, struct error *err)
{
    bool leads = run->boot->rank == 0, near = leads && deadline_is_near(&run->deadline, seconds_now());
    double stops[3] = {stop_signal_pending() ? 1.0 : 0.0, near ? 1.0 : 0.0, leads ? next_vote(&run->vote) : 0};
    TRY(comm_sum(run->comm, stops, COUNT_OF(stops), err));
    run->deadline_near = stops[1] > 0;
    run->stop = stops[0] > 0 || run->deadline_near;
    run->vote.interval = run->vote.left = (int64_t)stops[2];
    return STATUS_OK;
}

/* The stepper's look between two micro-batches of a step. */
static enum status look_within_step(void *context, struct stepper *stepper, bool *stop, struct error *err)
{
    struct run *run = context;
    *stop = false;
    if (--run->vote.left > 0)
        return STATUS_OK;
    stepper_keep_up(stepper);
    TRY(look_for_stop(run, err));
    *stop = run->stop;
    return STATUS_OK;
}

/* ---- a step -------------------------------------------------------------- */

/* Notes what is known of a step as soon as it is enqueued. */
static void note_step(struct run *run, const struct step_enqueued *step, struct pending_step *pending)
{
    struct trainer *t = &run->trainer;
    struct step_metrics *m = &pending->metrics;
    m->step = step->last.step;
    m->epoch = step->last.epoch;
    pending->targets = step->last.step_targets;
    pending->tokens = step->last.step_tokens;
    m->seconds.data = step->data_seconds;
    transformer_times(t->transformer, &m->seconds.forward, &m->seconds.backward);
    zero_times(t->zero, &m->seconds.reduce, &m->seconds.optimizer);
    if (step->launched) /* these are the last parts of earlier steps: a graph's parts are not timed */
        m->seconds.forward = m->seconds.backward = m->seconds.reduce = m->seconds.optimizer = NAN;
    m->seconds.checkpoint = run->checkpoint_seconds;
    run->checkpoint_seconds = 0;
}

/* Enqueues the next optimizer step: the gradients of the global batch, then the update. collect_step() reads its
 * results later. *broken_off: the ranks have agreed to stop in the middle of the step, and it counts as not begun. */
static enum status train_step(struct run *run, bool *broken_off, struct error *err)
{
    struct pending_step *pending = &run->pending[run->enqueued % ZERO_STEPS];
    const struct stepper_look look = {look_within_step, run};
    struct step_enqueued step;
    struct comm_stats uncounted;

    *pending = (struct pending_step){.start = seconds_now()};
    run_read_volume(run, &uncounted); /* an evaluation's volume is not the step's */
    TRY(stepper_enqueue(&run->stepper, run->stream, run->position.optimizer_step, &look, &step, err));
    *broken_off = step.broken_off;
    if (step.broken_off)
        return STATUS_OK;
    run->enqueued++;
    ASSERT(step.last.step == run->enqueued);

    TRY(look_for_stop(run, err));
    run_read_volume(run, step.counted ? &run->volume : &uncounted);
    note_step(run, &step, pending);
    return STATUS_OK;
}

/* ---- a step's results ---------------------------------------------------- */

/* NaN (null in metrics.jsonl) if there are no targets: documents of one token, or only losses that are not finite. */
static double mean_loss(double sum, double targets)
{
    return targets > 0 ? sum / targets : NAN;
}

static int64_t resident_bytes(void)
{
    long long total, resident;
    FILE *file = memory_fopen("/proc/self/statm", "re");
    int n = file ? fscanf(file, "%lld %lld", &total, &resident) : 0;
    if (file)
        fclose(file);
    return n == 2 ? resident * sysconf(_SC_PAGESIZE) : 0;
}

static void warn_of_skipped_step(const struct run *run, const struct zero_result *result)
{
    char where[160] = "", who[64] = "", scale[96] = "";
    if (run->boot->rank != 0)
        return;
    if (result->bad_tensor)
        snprintf(where, sizeof where, " in the gradient of %s", result->bad_tensor->name);
    if (result->bad_rank >= 0)
        snprintf(who, sizeof who, " from rank %d", result->bad_rank);
    if (run->spec->loss_scaler.dynamic) /* skipping is how fp16 finds its scale; only the scale's floor ends the run */
        snprintf(scale, sizeof scale, "loss scale %g, then %g", result->loss_scale, result->scaler.scale);
    else
        snprintf(scale, sizeof scale, "%" PRId64 " in a row, %" PRId64 " end the run", run->position.skipped_in_row,
                 run->spec->max_skipped_steps);
    log_warn("step %" PRId64 ": non-finite value%s%s; the step is skipped (%s)", run->position.step, where, who, scale);
}

/* STATUS_DIVERGED if too many steps in a row were skipped. */
static enum status check_divergence(const struct run *run, const struct zero_result *result, struct error *err)
{
    const struct train_position *position = &run->position;
    if (result->scaler.exhausted)
        return error_set(err, STATUS_DIVERGED,
                         "step %" PRId64 ": gradients overflow in fp16 at the smallest loss scale, %g"
                         "; hint: bf16 needs no loss scale; or resume with a lower learning rate or gradient_clipping",
                         position->step, result->loss_scale);
    if (!run->spec->loss_scaler.dynamic && position->skipped_in_row >= run->spec->max_skipped_steps)
        return error_set(err, STATUS_DIVERGED,
                         "step %" PRId64 ": %" PRId64 " steps in a row had non-finite gradients"
                         "; hint: resume from an earlier checkpoint with a lower learning rate or gradient_clipping",
                         position->step, position->skipped_in_row);
    return STATUS_OK;
}

/* Moves the position past a step that is done. */
static void advance_position(struct train_position *position, const struct pending_step *pending,
                             const struct zero_result *result)
{
    position->step++;
    position->step_in_epoch++;
    position->tokens += pending->tokens;
    position->optimizer_step = result->optimizer_step;
    position->scaler = result->scaler;
    if (isfinite(result->loss_sum)) {
        position->epoch_loss_sum += result->loss_sum;
        position->epoch_targets += pending->targets;
    }
    position->skipped_in_row = result->skipped ? position->skipped_in_row + 1 : 0;
}

/* Completes a step's metrics with its results. Its time counts from its own start or from the collection of the step
 * before it, whichever is later. */
static void complete_metrics(struct run *run, struct pending_step *pending, const struct zero_result *result)
{
    const struct trainer *t = &run->trainer;
    struct step_metrics *m = &pending->metrics;
    m->loss = mean_loss(result->loss_sum, (double)pending->targets);
    m->lr = result->lr;
    m->loss_scale = result->loss_scale;
    m->tokens = run->position.tokens;
    m->grad_norm = result->grad_norm;
    m->skipped = result->skipped;
    m->memory_device = (int64_t)(t->plan.local.used + t->plan.shared.used);
    m->memory_host = resident_bytes();
    double now = seconds_now(), start = fmax(pending->start, run->collected_at);
    run->collected_at = now;
    m->seconds.step = now - start;
    m->tokens_per_s = m->seconds.step > 0 ? (double)pending->tokens / m->seconds.step : 0;
    trainer_utilisation(t, m);
}

/* Collects the oldest step that is under way: advances the position, writes the step's metrics. */
static enum status collect_step(struct run *run, struct error *err)
{
    struct pending_step *pending = &run->pending[run->position.step % ZERO_STEPS];
    struct zero_result result;
    TRY(zero_collect(run->trainer.zero, &result, err));
    advance_position(&run->position, pending, &result);
    if (result.skipped)
        warn_of_skipped_step(run, &result);
    complete_metrics(run, pending, &result);

    if (run->folder.lock) /* a job that has lost its run folder writes nothing more */
        TRY(run_lock_check_quickly(run->folder.lock, err));
    if (run->metrics)
        TRY(metrics_step(run->metrics, &pending->metrics, err));
    console_step(&run->console, &pending->metrics);
    enum status status = check_divergence(run, &result, err);
    return status == STATUS_OK ? STATUS_OK : run_agree(run, status, err); /* all ranks come to the same result */
}

/* Collects steps until at most `ahead` are under way. */
static enum status collect_steps(struct run *run, int64_t ahead, struct error *err)
{
    while (run->enqueued - run->position.step > ahead)
        TRY(collect_step(run, err));
    return STATUS_OK;
}

/* ---- between steps ------------------------------------------------------- */

/* The device's *loss_sum, once all work enqueued before is done. */
static double read_loss_sum(struct trainer *t)
{
    double sum;
    stream_copy(t->compute, &sum, t->loss_sum, sizeof sum);
    stream_sync(t->compute);
    return sum;
}

/* Adds up the losses of a stream on the device, and its *targets. A stop breaks it off and leaves the whole evaluation
 * to the resumed run (position.evaluation_due). */
static enum status evaluate_stream(struct run *run, struct token_stream *stream, double *targets, struct error *err)
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
        TRY(transformer_evaluate(t->transformer, &batch, zero_verbs(t->zero), t->compute, t->loss_sum, err));
        *targets += (double)batch.num_targets;
        TRY(look_for_stop(run, err));
    }
}

static enum status evaluate(struct run *run, struct error *err)
{
    struct trainer *t = &run->trainer;
    struct token_stream *stream = NULL;
    double sums[2] = {0, 0}; /* loss, targets */
    stream_fill_zero(t->compute, t->loss_sum, sizeof *t->loss_sum);
    TRY(token_stream_open(&t->validation_config, 1, &stream, err));
    enum status status = evaluate_stream(run, stream, &sums[1], err);
    token_stream_close(stream);
    TRY(status);
    sums[0] = read_loss_sum(t);
    TRY(comm_sum(run->comm, sums, COUNT_OF(sums), err));
    double loss = mean_loss(sums[0], sums[1]);
    if (run->metrics && !run->position.evaluation_due) {
        TRY(metrics_eval(run->metrics, run->position.step, run->position.epoch, loss, (int64_t)sums[1], err));
        console_break(&run->console);
        log_info("step %" PRId64 "  eval_loss %.4f  perplexity %.2f  (%.0f targets)", run->position.step, loss,
                 exp(loss), sums[1]);
    }
    double forward, backward; /* read so that they do not count for the next step */
    transformer_times(t->transformer, &forward, &backward);
    return STATUS_OK;
}

/* What is to be done after the step that was enqueued last. */
struct due {
    bool evaluation, epoch_end, checkpoint, run_end;
};

static struct due due_now(const struct run *run)
{
    const struct run_spec *spec = run->spec;
    const struct trainer *t = &run->trainer;
    int64_t step = run->enqueued, eval_interval = spec->train.eval_interval_steps;
    struct due due = {.epoch_end = step % t->steps_per_epoch == 0, .run_end = step == t->total_steps};
    bool end = due.epoch_end || due.run_end;
    due.evaluation = t->validation_set && (end || (eval_interval && step % eval_interval == 0));
    due.checkpoint =
        end || run->stop || (spec->checkpoint.interval_steps && step % spec->checkpoint.interval_steps == 0);
    return due;
}

static enum status report_epoch_end(struct run *run, struct error *err)
{
    const struct train_position *position = &run->position;
    double loss = mean_loss(position->epoch_loss_sum, (double)position->epoch_targets);
    if (!run->metrics)
        return STATUS_OK;
    TRY(metrics_epoch_end(run->metrics, position->epoch, position->step, loss, err));
    console_break(&run->console);
    log_info("epoch %" PRId64 " ends at step %" PRId64 "  train_loss %.4f", position->epoch, position->step, loss);
    return STATUS_OK;
}

/* Evaluation, the epoch's end, the checkpoint, in this order: a checkpoint records that the others are done. */
static enum status between_steps(struct run *run, const struct due *due, struct error *err)
{
    struct train_position *position = &run->position;
    position->evaluation_due = false;
    if (due->evaluation)
        TRY(evaluate(run, err));
    if (position->evaluation_due)
        return save_checkpoint(run, true, err);
    if (due->epoch_end)
        TRY(report_epoch_end(run, err));
    position->epoch_end = due->epoch_end;
    if (due->checkpoint || run->stop)
        TRY(save_checkpoint(run, due->run_end, err));
    if (due->epoch_end)
        begin_next_epoch(position);
    return STATUS_OK;
}

/* STATUS_REQUEUE, and a line in the log, if the run stops before its end. */
static enum status stop_status(struct run *run)
{
    const struct train_position *position = &run->position;
    if (!run->stop || (run->enqueued == run->trainer.total_steps && !position->evaluation_due))
        return STATUS_OK;
    console_break(&run->console);
    log_info("stopped %s after step %" PRId64 " of %" PRId64 "%s; continue with --resume %s",
             run->deadline_near ? "before the job's end" : "on request", position->step, run->trainer.total_steps,
             position->evaluation_due ? ", before its evaluation" : "", run->folder.path);
    return STATUS_REQUEUE;
}

/* After a step that was broken off: the run stops with a checkpoint of the step before it. */
static enum status stop_within_step(struct run *run, struct error *err)
{
    TRY(collect_steps(run, 0, err));
    if (run->saved_step != run->position.step)
        TRY(save_checkpoint(run, true, err));
    return stop_status(run);
}

/* ---- the loop ------------------------------------------------------------ */

/* Makes up for the evaluation that a stop broke off in the run before this one. */
static enum status evaluate_first(struct run *run, struct error *err)
{
    struct due due = due_now(run);
    due.evaluation = run->trainer.validation_set;
    return between_steps(run, &due, err);
}

/* A device that works asynchronously is given the next step before the results of the last one are read; before
 * anything else is done between two steps, all steps are collected. */
enum status run_steps(struct run *run, struct error *err)
{
    int64_t total_steps = run->trainer.total_steps, ahead = run->trainer.device->kind == DEVICE_CUDA ? 1 : 0;
    run->enqueued = run->position.step;
    if (run->position.evaluation_due)
        TRY(evaluate_first(run, err));
    while (run->enqueued < total_steps && !run->stop) {
        bool broken_off;
        TRY(train_step(run, &broken_off, err));
        if (broken_off)
            return stop_within_step(run, err);
        struct due due = due_now(run);
        bool pause = due.evaluation || due.epoch_end || due.checkpoint;
        TRY(collect_steps(run, pause ? 0 : ahead, err));
        if (pause)
            TRY(between_steps(run, &due, err));
    }
    return stop_status(run);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* loop.c: the training loop. Time runs to the right; an evaluation and a checkpoint are due after step 8:
 *
 *     host     enqueue 7, vote | collect 6 | enqueue 8, vote | collect 7, 8 | evaluate | save | enqueue 9, vote
 *     device   step 6     | step 7               | step 8               |     | losses   |      | step 9
 *
 * loop_train_step() gives the device a step and has the ranks vote on stopping; long steps have votes between their
 * micro-batches as well, about one a second. loop_collect_step() reads the results of a step, advances the position and
 * writes the metrics: on a GPU one step later, so that the GPU never waits for the host, on the CPU at once. Before
 * anything is done between two steps, all steps are collected (between_steps()). A vote to stop makes a checkpoint due
 * after the step; a vote within a step breaks that step off, and the checkpoint is one of the step before it. */
#include "cmd/observe/flight_recorder.h"
#include "cmd/observe/integrity.h"
#include "cmd/observe/reports.h"
#include "cmd/save/background_save.h"
#include "cmd/save/resume.h"
#include "cmd/train/rank_main.h"
#include "comm/comm_log.h"
#include "comm/zero/zero_check.h"
#include "core/data/token_stream.h"
#include "core/flight/flight.h"
#include "gpu/peaks.h"
#include "gpu/span_recorder.h"

static void note_step(struct run *run, const struct train_step *step, struct pending_step *pending)
{
    struct step_metrics *m = &pending->metrics;
    m->step = step->last.step;
    m->epoch = step->last.epoch;
    pending->targets = step->last.step_targets;
    pending->tokens = step->last.step_tokens;
    const struct mixture *mixture = run->engine.train_config.mixture;
    if (mixture) {
        m->sources = pending->sources;
        m->num_sources = mixture->order.count;
    }
    for (int i = 0; i < m->num_sources; i++) {
        const int64_t samples = step->last.source_samples[i];
        pending->sources[i] = (struct source_metrics){.path = run->spec->data.train.items[i],
                                                      .samples = samples,
                                                      .epochs = (double)samples / (double)mixture->sizes[i],
                                                      .targets = step->last.source_targets[i]};
    }
    m->seconds.data = step->data_seconds;
    double phases[PHASE_COUNT];
    phase_times_read(run->engine.phase_times, phases);
    const double known = step->untimed ? NAN : 0; /* these are of earlier steps */
    m->seconds.forward = known + phases[PHASE_FORWARD];
    m->seconds.backward = known + phases[PHASE_BACKWARD];
    m->seconds.reduce = known + phases[PHASE_REDUCE];
    m->seconds.optimizer = known + phases[PHASE_OPTIMIZER];
    m->seconds.checkpoint = run->checkpoint_seconds;
    run->checkpoint_seconds = 0;
}

/* The stepper's look between two micro-batches: votes about once a second. */
static enum status loop_within_step(void *context, bool *stop, struct error *err)
{
    struct run *run = context;
    if (--run->vote.left > 0) return STATUS_OK;
    stepper_keep_up(&run->stepper);
    TRY(stop_vote(run, err));
    *stop |= run->stop;
    return STATUS_OK;
}

/* Enqueues the next step of each run. *broken_off: the ranks have agreed to stop in it; it counts as not begun. */
static enum status loop_train_step(struct run *const *runs, int count, bool *broken_off, struct error *err)
{
    struct train_step steps[TRAIN_JOBS];
    struct run *first = runs[0]->first;
    struct comm_stats uncounted;
    for (int i = 0; i < count; i++) {
        struct run *run = runs[i];
        run->pending[run->enqueued % ZERO_STEPS] = (struct pending_step){.start = seconds_now()};
        steps[i] = (struct train_step){&run->stepper, run->stream, .made = run->position.optimizer_step};
    }
    flight_step(runs[0]->enqueued + 1);
    run_read_volume(first, &uncounted); /* an evaluation's volume is not the step's */
    TRY(stepper_enqueue(steps, count, err));
    *broken_off = steps->broken_off;
    for (int i = 0; i < count; i++) {
        struct run *run = runs[i];
        run_speaks(run);
        steps[i].untimed |= i > 0; /* the first one has the times of all */
        run->stop |= *broken_off;
        if (*broken_off) continue;
        struct pending_step *pending = &run->pending[run->enqueued++ % ZERO_STEPS];
        ASSERT(steps[i].last.step == run->enqueued);
        TRY(stop_vote(run, err));
        note_step(run, &steps[i], pending);
    }
    if (!*broken_off) run_read_volume(first, steps->counted ? &first->volume : &uncounted);
    return STATUS_OK;
}

/* ---- a step's results ---------------------------------------------------- */

static void loop_report_skipped_step(const struct run *run, const struct zero_result *result)
{
    char where[160] = "", who[64] = "", scale[96] = "";
    if (!run->spec->loss_scaler.dynamic || result->scaler.exhausted) /* else fp16 has found its scale */
        flight_recorder_bad_step(run->position.step, run->position.skipped_in_row <= 1, result->bad_rank,
                                 result->bad_tensor ? result->bad_tensor->name : "");
    if (run->boot->rank != 0) return;
    if (result->bad_tensor) snprintf(where, sizeof where, " in the gradient of %s", result->bad_tensor->name);
    if (result->bad_rank >= 0) snprintf(who, sizeof who, " from rank %d", result->bad_rank);
    if (run->spec->loss_scaler.dynamic) /* skipping is how fp16 finds its scale; only the scale's floor ends the run */
        snprintf(scale, sizeof scale, "loss scale %g, then %g", result->loss_scale, result->scaler.scale);
    else
        snprintf(scale, sizeof scale, "%" PRId64 " in a row, %" PRId64 " end the run", run->position.skipped_in_row,
                 run->spec->max_skipped_steps);
    log_warn("step %" PRId64 ": non-finite value%s%s; the step is skipped (%s)", run->position.step, where, who, scale);
}

static enum status loop_check_divergence(const struct run *run, const struct zero_result *result, struct error *err)
{
    const struct train_position *position = &run->position;
    const char *again = run->newest_step >= 0 ? "resume from an earlier checkpoint"
                                              : "the run has no checkpoint: start it again as it was started, but";
    if (result->scaler.exhausted)
        return error_set(err, STATUS_DIVERGED,
                         "step %" PRId64 ": gradients overflow in fp16 at the smallest loss scale, %g"
                         "; hint: bf16 needs no loss scale; or %s with a lower learning rate or gradient_clipping",
                         position->step, result->loss_scale, again);
    if (!run->spec->loss_scaler.dynamic && position->skipped_in_row >= run->spec->max_skipped_steps)
        return error_set(err, STATUS_DIVERGED,
                         "step %" PRId64 ": %" PRId64 " steps in a row had non-finite gradients"
                         "; hint: %s with a lower learning rate or gradient_clipping",
                         position->step, position->skipped_in_row, again);
    return STATUS_OK;
}

/* The GPU works on one step while the host enqueues the next; after a pause it was idle until the step's own start. */
static void complete_metrics(struct run *run, struct pending_step *pending, const struct zero_result *result)
{
    const struct engine *t = &run->engine;
    struct step_metrics *m = &pending->metrics;
    m->loss = run_mean_loss(result->loss_sum, (double)pending->targets);
    m->num_experts = (int)t->desc.experts.count;
    m->aux_loss = m->num_experts && !t->desc.experts.sigmoid ? run_number(result->extra_sums[0]) : NAN;
    m->loads = m->num_experts ? result->extra_sums + 1 : NULL;
    step_metrics_count_loads(m);
    m->preference = t->spec->preference.loss;
    if (m->preference) /* borrowed sums end with the next step */
        preference_means(&t->spec->preference, result->extra_sums + engine_preference_at(t), m->preference_values);
    m->lr = result->lr;
    m->loss_scale = result->loss_scale;
    m->tokens = run->position.tokens;
    m->targets = pending->targets;
    m->grad_norm = run_number(result->grad_norm);
    m->skipped = result->skipped;
    m->memory_device = (int64_t)(t->plan.local.used + t->plan.shared.used);
    m->memory_host = machine_resident_bytes();
    m->seconds.step = stepper_seconds(&run->stepper, pending->start > run->collected_at);
    run->collected_at = seconds_now();
    m->tokens_per_s = m->seconds.step > 0 ? (double)pending->tokens / m->seconds.step : 0;
    const double flops = transformer_flops_per_token(&t->desc, &t->table, t->spec->data.seq_length);
    m->mfu = peaks_mfu(flops, m->tokens_per_s, t->world, t->device->peak_flops[t->spec->dtype]);
    m->of_ceiling = peaks_mfu(flops, m->tokens_per_s, t->world, t->device->ceiling_flops[t->spec->dtype]);
}

/* train.spike_factor: a loss that stands out is a line of metrics.jsonl with the step's samples, and one in the log. */
static enum status loop_report_spike(struct run *run, const struct step_metrics *m, struct error *err)
{
    const struct engine *t = &run->engine;
    const double mean = run->position.mean_loss.mean;
    if (!m->targets) /* a step that learns from nothing has no loss */
        return STATUS_OK;
    if (!loss_mean_take(&run->position.mean_loss, run->spec->train.spike_factor, m->loss) || !run->metrics)
        return STATUS_OK;
    const size_t count = (size_t)t->train_config.batch_size;
    OWNED int64_t *samples = memory_alloc(count * sizeof *samples);
    OWNED int *sources = memory_alloc(count * sizeof *sources);
    token_stream_step_samples(&t->train_config, m->step, samples, sources);
    const struct spike_metrics spike = {.of = m,
                                        .mean = run->position.mean_loss.steps ? mean : NAN,
                                        .factor = run->spec->train.spike_factor,
                                        .num_samples = (int64_t)count,
                                        .samples = samples,
                                        .sources = sources,
                                        .num_sources = t->mixture.order.count,
                                        .paths = (const char *const *)run->spec->data.train.items};
    console_break(&run->console);
    log_warn(isfinite(m->loss) ? "step %" PRId64 ": the loss %.4f is more than %g times the running mean %.4f; "
                                 "metrics.jsonl names the step's samples"
                               : "step %" PRId64 ": the loss is not finite; metrics.jsonl names the step's samples",
             m->step, m->loss, spike.factor, spike.mean);
    return metrics_spike(run->metrics, &spike, err);
}

static bool loop_is_multiple(int64_t step, int64_t interval)
{
    return interval && step % interval == 0;
}

/* Whether the hash of the parameters after this step is computed: then no later step is under way. */
static bool loop_hashes(const struct run *run, int64_t step)
{
    return run->replay ? replay_wants_hash(run, step) : loop_is_multiple(step, run->spec->train.hash_interval_steps);
}

/* The oldest step that is under way. */
static enum status loop_collect_step(struct run *run, struct error *err)
{
    struct train_position *position = &run->position;
    struct pending_step *pending = &run->pending[position->step % ZERO_STEPS];
    struct zero_result result;
    const uint64_t entry = flight_begin(FLIGHT_COLLECT, -1, 0, -1);
    double start = seconds_now();
    TRY(zero_collect(run->engine.zero, &result, err));
    trace_file_host(run->trace, "wait for step", start, run->position.step + 1);
    flight_end(entry);
    TRY(comm_log_share(run->comm, false, err));
    position->step++;
    position->step_in_epoch++;
    position->scores.known = position->stopped_early = false;
    position->tokens += pending->tokens;
    position->optimizer_step = result.optimizer_step;
    position->scaler = result.scaler;
    if (isfinite(result.loss_sum)) {
        position->epoch_loss_sum += result.loss_sum;
        position->epoch_targets += pending->targets;
    }
    position->skipped_in_row = result.skipped ? position->skipped_in_row + 1 : 0;
    if (result.skipped) loop_report_skipped_step(run, &result);
    complete_metrics(run, pending, &result);
    if (loop_hashes(run, run->position.step)) {
        TRY(run_hash_state(run, STATE_MASTER + 1, &pending->metrics.hash, err));
        pending->metrics.hashed = true;
    }

    if (run->folder.lock) /* a job that has lost its run folder writes nothing more */
        TRY(run_lock_check_quickly(run->folder.lock, err));
    if (run->metrics) TRY(metrics_step(run->metrics, &pending->metrics, err));
    TRY(loop_report_spike(run, &pending->metrics, err));
    monitor_step(run->monitor, &pending->metrics);
    console_step(&run->console, &pending->metrics);
    enum status status = /* the same on all ranks */
        run->replay ? replay_compare_step(run, &pending->metrics, err) : loop_check_divergence(run, &result, err);
    return status == STATUS_OK ? STATUS_OK : run_agree(run, engine_name_error(&run->engine, status, err), err);
}

static enum status loop_collect_steps(struct run *run, int64_t ahead, struct error *err)
{
    while (run->enqueued - run->position.step > ahead) TRY(loop_collect_step(run, err));
    return STATUS_OK;
}

/* ---- between steps ------------------------------------------------------- */

struct due {
    bool evaluation, epoch_end, checkpoint, run_end;
};

static int64_t loop_last_step(const struct run *run)
{
    return run->replay ? run->options->replay_step : run->engine.total_steps;
}

static struct due due_now(const struct run *run)
{
    const struct run_spec *spec = run->spec;
    const struct engine *t = &run->engine;
    int64_t step = run->enqueued;
    struct due due = {.epoch_end = step % t->steps_per_epoch == 0, .run_end = step == t->total_steps};
    bool end = due.epoch_end || due.run_end;
    if (run->replay) /* evaluations and checkpoints change nothing of the steps */
        return (struct due){.epoch_end = due.epoch_end};
    due.evaluation = t->validation.set && (end || loop_is_multiple(step, spec->train.eval_interval_steps));
    due.checkpoint = due.run_end || run->stop || (due.epoch_end && spec->checkpoint.save_at_epoch_end) ||
                     loop_is_multiple(step, spec->checkpoint.interval_steps) ||
                     loop_is_multiple(step, spec->checkpoint.keep_every_steps);
    return due;
}

/* A replay computes on where the run ended early. */
static bool loop_ended_early(const struct run *run)
{
    return run->position.stopped_early && !run->replay;
}

/* The mean loss of an epoch that ends, or, of one that the run does not finish, so far. */
static enum status loop_report_epoch(struct run *run, bool ends, struct error *err)
{
    const struct train_position *position = &run->position;
    double loss = run_mean_loss(position->epoch_loss_sum, (double)position->epoch_targets);
    if (!run->metrics || (!ends && position->step_in_epoch == 0)) return STATUS_OK;
    TRY(metrics_epoch(run->metrics, ends, position->epoch, position->step, loss, err));
    console_break(&run->console);
    if (!ends)
        log_info("epoch %" PRId64 " so far, %" PRId64 " of its %" PRId64 " steps  train_loss %.4f", position->epoch,
                 position->step_in_epoch, run->engine.steps_per_epoch, loss);
    else
        log_info("epoch %" PRId64 " ends at step %" PRId64 "  train_loss %.4f", position->epoch, position->step, loss);
    if (ends && position->epoch_targets == 0)
        log_warn("no target of epoch %" PRId64 " counted, so the model has learned nothing in it; hint: are the loss "
                 "masks beside data.train 0 everywhere?",
                 position->epoch);
    return STATUS_OK;
}

static enum status loop_report_early_stop(struct run *run, struct error *err)
{
    const struct early_stop *stopping = &run->position.stopping;
    const double min_delta = run->spec->train.early_stopping.min_delta;
    char margin[64] = "";
    if (!run->metrics) return STATUS_OK;
    TRY(metrics_early_stop(run->metrics, run->position.step, stopping, err));
    console_break(&run->console);
    if (min_delta > 0) /* the best value may be better, by less */
        snprintf(margin, sizeof margin, " by more than %g", min_delta);
    log_info("the run ends early, after step %" PRId64 " of %" PRId64 ": %s has not improved on %.4f%s in %" PRId64
             " evaluations",
             run->position.step, run->engine.total_steps, eval_metric_name(stopping->metric), stopping->best, margin,
             stopping->evaluations);
    return STATUS_OK;
}

/* Evaluation, the epoch's end, the checkpoint, in this order: a checkpoint records that the others are done. */
static enum status between_steps(struct run *run, struct due *due, struct error *err)
{
    struct train_position *position = &run->position;
    position->evaluation_due = false;
    double start = seconds_now();
    if (due->evaluation) {
        TRY(run_evaluate(run, err));
        trace_file_host(run->trace, "evaluation after step", start, position->step);
    }
    if (position->evaluation_due) return save_checkpoint(run, true, err);
    if (due->evaluation) {
        TRY(run_samples(run, err));
        /* it may end the run, unless steps are skipped, and makes a checkpoint due if it is among the best */
        const struct early_stop_rules *rules = &run->spec->train.early_stopping;
        early_stop_update(&position->stopping, rules, &position->scores);
        position->stopped_early = early_stop_reached(&position->stopping, rules) && !position->skipped_in_row;
        if (position->stopped_early && !due->run_end) TRY(loop_report_early_stop(run, err));
        due->run_end |= position->stopped_early;
        if (!due->checkpoint) TRY(save_is_due_for_scores(run, &due->checkpoint, err));
        due->checkpoint |= due->run_end;
    }
    if (due->epoch_end || due->run_end || run->stop) TRY(loop_report_epoch(run, due->epoch_end, err));
    position->epoch_end = due->epoch_end;
    if (due->run_end && run->engine.profile) /* before the last checkpoint, which may take long */
        flops_report_run(run);
    start = seconds_now();
    if ((due->checkpoint || run->stop) && !run->replay) {
        TRY(save_checkpoint(run, due->run_end, err));
        trace_file_host(run->trace, "checkpoint of step", start, position->step);
    }
    if (due->epoch_end) begin_next_epoch(position);
    return STATUS_OK;
}

/* Whether the run stops before its end. If it does, the log gets a line. */
static bool loop_reports_stop(struct run *run)
{
    const struct train_position *position = &run->position;
    bool done = run->enqueued == loop_last_step(run) || loop_ended_early(run);
    if (!run->stop || (done && !position->evaluation_due)) return false;
    console_break(&run->console);
    if (run->replay)
        log_info("the replay was stopped after step %" PRId64 ": it was the same as the record so far", position->step);
    else
        log_info("stopped %s after step %" PRId64 " of %" PRId64 "%s; continue with --resume %s",
                 run->deadline_near ? "before the job's end" : "on request", position->step, run->engine.total_steps,
                 !position->evaluation_due ? ""
                 : run->evaluation_part    ? ", in its evaluation"
                                           : ", before its evaluation",
                 run->folder.path);
    return true;
}

/* ---- the loop ------------------------------------------------------------ */

static enum status loop_measured_step(struct run *run, bool *broken_off, struct error *err)
{
    const int64_t step = run->enqueued + 1;
    const bool profiled = run->spec->flops_profiler.enabled && step == run->spec->flops_profiler.profile_step;
    const bool begins = trace_file_begins(run->trace, step), checked = integrity_is_due(run, step);
    if (profiled || begins || checked) TRY(loop_collect_steps(run, 0, err));
    if (begins) TRY(trace_file_begin(run->trace, &run->engine, err));
    run->stepper.checked = checked ? step : 0;
    if (checked) TRY(integrity_compare_replicas(run, err));
    if (checked && !zero_check_is_noted(run->engine.zero)) TRY(zero_check_note(run->engine.zero, err));
    run->stepper.eager = trace_file_is_on(run->trace);
    if (profiled) TRY(flops_report_begin(run, err));
    double start = seconds_now();
    TRY(loop_train_step(&run, 1, broken_off, err));
    trace_file_host(run->trace, "step", start, run->enqueued);
    if (profiled) flops_report_end(run, *broken_off);
    return STATUS_OK;
}

static enum status loop_start(struct run *run, struct error *err)
{
    run->enqueued = run->position.step;
    TRY(comms_report_start(run, err));
    if (run->position.evaluation_due) { /* a stop broke it off in the run before this one */
        struct due due = due_now(run);
        due.evaluation = run->engine.validation.set && !run->replay;
        TRY(between_steps(run, &due, err));
    }
    flops_report_announce(run);
    if (run->options->trace)
        run->trace =
            trace_file_new(run->options->trace, run->options->trace_steps, run->position.step, loop_last_step(run));
    run->stepper.trace = run->trace;
    run->stepper.calls = (struct stepper_calls){loop_within_step, integrity_compare_passes, run};
    return STATUS_OK;
}

static enum status loop_after_step(struct run *run, struct error *err)
{
    const int64_t ahead = run->engine.device->kind == DEVICE_CUDA ? 1 : 0;
    struct due due = due_now(run);
    bool pause = due.evaluation || due.epoch_end || due.checkpoint;
    const bool note = integrity_is_due(run, run->enqueued + 1);
    if (due.checkpoint && !due.run_end && !run->stop) TRY(background_save_expect(run, err));
    TRY(loop_collect_steps(run, pause || note || loop_hashes(run, run->enqueued) ? 0 : ahead, err));
    if (note) TRY(zero_check_note(run->engine.zero, err));
    if (pause) TRY(between_steps(run, &due, err));
    if (trace_file_ends(run->trace, run->enqueued)) {
        TRY(loop_collect_steps(run, 0, err));
        TRY(trace_file_end(run->trace, err));
    }
    return STATUS_OK;
}

enum status run_steps(struct run *first, struct error *err)
{
    struct run *active[TRAIN_JOBS];
    bool broken_off = false;
    enum status status = STATUS_OK;
    for (struct run *run = first; run; run = run->next) {
        run_speaks(run);
        TRY(loop_start(run, err));
    }
    while (!broken_off) {
        int count = 0;
        for (struct run *run = first; run; run = run->next)
            if (run->enqueued < loop_last_step(run) && !run->stop && !loop_ended_early(run)) active[count++] = run;
        if (count == 0) break;
        run_speaks(NULL);
        TRY(first->next ? loop_train_step(active, count, &broken_off, err)
                        : loop_measured_step(first, &broken_off, err));
        for (int i = 0; i < count; i++) {
            struct run *run = active[i];
            run_speaks(run);
            if (!broken_off) TRY(loop_after_step(run, err));
            if (!broken_off) continue;
            TRY(loop_collect_steps(run, 0, err));      /* it stops with a checkpoint of the step before */
            TRY(background_save_wait(run, true, err)); /* it may be the one of this step */
            if (run->saved_step == run->position.step || run->replay) continue;
            TRY(loop_report_epoch(run, false, err));
            TRY(save_checkpoint(run, true, err));
        }
    }
    for (struct run *run = first; run; run = run->next) {
        run_speaks(run);
        TRY(loop_collect_steps(run, 0, err)); /* of a replay, whose last step has no checkpoint */
        TRY(background_save_wait(run, true, err));
        if (loop_reports_stop(run)) status = STATUS_REQUEUE;
    }
    run_speaks(NULL);
    return status;
}

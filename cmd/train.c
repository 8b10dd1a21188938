/* train.c: training, from the command line to the last checkpoint. run_steps() and train_step() are the training loop;
 * all else prepares it.
 *
 *   ztrain --config run.yaml                  this process is the only rank
 *   srun … ztrain --config run.yaml           this process is one of a launcher's ranks (bootstrap.h)
 *   ztrain --config run.yaml --local-gpus N   this process supervises N ranks, each the same command with its rank in
 *                                             the environment (supervise.h)
 *
 * All ranks decide alike: what a decision rests on (loss, norm, a stop signal) is summed over the ranks first. A rank
 * that fails alone tells the others (comm_abort), so that all end with its exit code; where all get to the same point
 * they compare notes (agree.h). A rank is done, and ends with 0 or 75, when all are. */
#include "cmd/commands.h"
#include "cmd/options.h"
#include "cmd/plan.h"
#include "cmd/train/console.h"
#include "cmd/train/deadline.h"
#include "cmd/train/hardware.h"
#include "cmd/train/last_words.h"
#include "cmd/train/patience.h"
#include "cmd/train/resume.h"
#include "cmd/train/run_folder.h"
#include "cmd/train/stepper.h"
#include "cmd/train/stop_signal.h"
#include "cmd/train/summary.h"
#include "cmd/train/supervise.h"
#include "cmd/train/trainer.h"
#include "comm/agree.h"
#include "core/clock.h"
#include "core/fsutil.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/output.h"
#include "core/printable.h"
#include "core/version.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

/* A step that was given to the device and whose results are not collected yet. */
struct pending_step {
    struct step_metrics metrics; /* what is known so far */
    int64_t targets, tokens;
    double start; /* seconds */
};

/* When the ranks agree on whether to stop: at a step's end, and within a step after so many micro-batches. The number
 * is the same on all ranks, as rank 0 says it at each vote for the next one, by its clock. */
struct vote {
    int64_t interval, left; /* micro-batches */
    double at;              /* rank 0: seconds; the last vote */
};

/* One rank's run. */
struct run {
    const struct options *options;
    struct run_spec *spec;
    struct bootstrap *boot;
    struct comm *comm;
    struct trainer trainer;
    struct stepper stepper;
    struct run_place place;
    struct run_folder folder;
    struct metrics *metrics;          /* rank 0, else NULL */
    struct checkpoint_keeper *keeper; /* the same */
    struct console console;
    struct token_stream *stream;
    struct train_position position; /* after the last step that was collected */
    int64_t enqueued;               /* the last step that was given to the device */
    struct pending_step pending[ZERO_STEPS];
    double started_at;                 /* seconds; when this process began to prepare the run */
    double collected_at;               /* seconds; when the last step was collected */
    json_t *spec_json, *machine;       /* as a checkpoint has them */
    struct cpu_kernels kernels_before; /* of the checkpoint, if it says */
    int checkpoints_lost;              /* that could not be written */
    double checkpoint_seconds;         /* stalled in checkpoints since the last step's line */
    struct comm_stats volume;          /* what this rank sent in a step: the newest, of those that were counted */
    struct comm_stats moved;           /* over the network: since the start of this process */
    struct deadline deadline;          /* rank 0's */
    struct vote vote;
    int64_t newest_step;      /* of the newest checkpoint in the run's folder; -1: there was none */
    int64_t saved_step;       /* of the newest checkpoint in the run's folder, if it is known to be there; else -1 */
    bool stop, deadline_near; /* some rank was asked to stop, the job's end is near: the same on all ranks */
    bool agreed;              /* all ranks know that all of them end with an error */
};

static const double checkpoint_bytes = 12, slow_disk = 200e6; /* a parameter's, bytes/s: until one is measured */
static const double usual_timeout = 10;     /* seconds: comm.timeout_seconds where the run spec cannot be read */
static const double interval_patience = 30; /* seconds for a checkpoint that training can do without */
static const double deadline_period = 60;   /* seconds between two questions to Slurm when the job will end */
static const double vote_seconds = 1;       /* between two votes on stopping within a step, at least */
static const double end_patience = 2;       /* seconds for the ranks of a failed job to end by themselves */

static int64_t resident_bytes(void)
{
    long long total, resident;
    FILE *file = memory_fopen("/proc/self/statm", "re");
    int n = file ? fscanf(file, "%lld %lld", &total, &resident) : 0;
    if (file)
        fclose(file);
    return n == 2 ? resident * sysconf(_SC_PAGESIZE) : 0;
}

/* The device's *loss_sum, once all work before it is done. */
static double read_loss_sum(struct trainer *t)
{
    double sum;
    stream_copy(t->compute, &sum, t->loss_sum, sizeof sum);
    stream_sync(t->compute);
    return sum;
}

/* At a point that all ranks reach: how it went for all of them (agree.h). */
static enum status together(struct run *run, enum status status, struct error *err)
{
    status = agree(run->comm, status, err);
    run->agreed = status != STATUS_OK && comm_status(run->comm, NULL) == STATUS_OK;
    return status;
}

/* ---- one step ------------------------------------------------------------ */

/* What was moved since it was last read. Operations end when they end: only sums over the whole run say what crossed
 * the network, whatever was still on its way when a step's were read. */
static void read_volume(struct run *run, struct comm_stats *volume)
{
    comm_stats_read(run->comm, volume, true);
    run->moved.network_sent += volume->network_sent;
    run->moved.network_received += volume->network_received;
    run->moved.theory_sent += volume->theory_sent;
    run->moved.theory_received += volume->theory_received;
}

/* Micro-batches until the next vote, on rank 0, at a vote: as many as take vote_seconds, going by those since the last
 * one. At most twice as many as the last time: the clock of a host that is ahead of its device shows too little. */
static double next_vote(struct vote *vote)
{
    double now = seconds_now(), most = 2 * (double)(vote->interval > 0 ? vote->interval : 1);
    int64_t done = vote->interval - vote->left;
    double each = done > 0 ? (now - vote->at) / (double)done : INFINITY;
    vote->at = now;
    return fmin(fmax(floor(vote_seconds / each), 1), most);
}

/* Whether some rank was asked to stop, or the job's end is near. */
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

/* Between two micro-batches of a step. */
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

/* Enqueues the next optimizer step: gradients of the global batch, then the update. Its results are collected later.
 * *broken_off: the ranks have agreed to stop in the middle of it; it is as if it had not begun. */
static enum status train_step(struct run *run, bool *broken_off, struct error *err)
{
    struct trainer *t = &run->trainer;
    struct pending_step *pending = &run->pending[run->enqueued % ZERO_STEPS];
    struct step_metrics *m = &pending->metrics;
    struct step_enqueued step;
    struct comm_stats volume;

    *pending = (struct pending_step){.start = seconds_now()};
    read_volume(run, &volume); /* an evaluation's do not count */
    const struct stepper_look look = {look_within_step, run};
    TRY(stepper_enqueue(&run->stepper, run->stream, run->position.optimizer_step, &look, &step, err));
    *broken_off = step.broken_off;
    if (step.broken_off)
        return STATUS_OK;
    run->enqueued++;
    ASSERT(step.last.step == run->enqueued);

    TRY(look_for_stop(run, err));
    read_volume(run, step.counted ? &run->volume : &volume);
    m->step = step.last.step;
    m->epoch = step.last.epoch;
    pending->targets = step.last.step_targets;
    pending->tokens = step.last.step_tokens;
    m->seconds.data = step.data_seconds;
    transformer_times(t->transformer, &m->seconds.forward, &m->seconds.backward);
    zero_times(t->zero, &m->seconds.reduce, &m->seconds.optimizer);
    if (step.launched) /* what was read are the last parts of steps before */
        m->seconds.forward = m->seconds.backward = m->seconds.reduce = m->seconds.optimizer = NAN;
    m->seconds.checkpoint = run->checkpoint_seconds;
    run->checkpoint_seconds = 0;
    return STATUS_OK;
}

static void report_skipped(const struct run *run, const struct zero_result *result)
{
    char where[160] = "", who[64] = "", scale[96] = "";
    if (result->bad_tensor)
        snprintf(where, sizeof where, " in the gradient of %s", result->bad_tensor->name);
    if (result->bad_rank >= 0)
        snprintf(who, sizeof who, " from rank %d", result->bad_rank);
    if (run->boot->rank != 0)
        return;
    if (run->spec->loss_scaler.dynamic) /* how fp16 finds its scale; the scale's floor ends the run, not a number */
        snprintf(scale, sizeof scale, "loss scale %g, then %g", result->loss_scale, result->scaler.scale);
    else
        snprintf(scale, sizeof scale, "%" PRId64 " in a row, %" PRId64 " end the run", run->position.skipped_in_row,
                 run->spec->max_skipped_steps);
    log_warn("step %" PRId64 ": non-finite value%s%s; the step is skipped (%s)", run->position.step, where, who, scale);
}

/* Whether too many steps were skipped to go on. */
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

/* NaN (null in metrics.jsonl) over no targets: documents of one token, or nothing but losses that were not finite. */
static double mean_loss(double sum, double targets)
{
    return targets > 0 ? sum / targets : NAN;
}

/* Collects the oldest step that is under way: advances the position, writes its metrics. */
static enum status collect_step(struct run *run, struct error *err)
{
    struct trainer *t = &run->trainer;
    struct train_position *position = &run->position;
    struct pending_step *pending = &run->pending[position->step % ZERO_STEPS];
    struct step_metrics *m = &pending->metrics;
    struct zero_result result;
    enum status status;
    TRY(zero_collect(t->zero, &result, err));

    position->step++;
    position->step_in_epoch++;
    position->tokens += pending->tokens;
    position->optimizer_step = result.optimizer_step;
    position->scaler = result.scaler;
    if (isfinite(result.loss_sum)) {
        position->epoch_loss_sum += result.loss_sum;
        position->epoch_targets += pending->targets;
    }
    position->skipped_in_row = result.skipped ? position->skipped_in_row + 1 : 0;
    if (result.skipped)
        report_skipped(run, &result);

    m->loss = mean_loss(result.loss_sum, (double)pending->targets);
    m->lr = result.lr;
    m->loss_scale = result.loss_scale;
    m->tokens = position->tokens;
    m->grad_norm = result.grad_norm;
    m->skipped = result.skipped;
    m->memory_device = (int64_t)(t->plan.local.used + t->plan.shared.used);
    m->memory_host = resident_bytes();
    double now = seconds_now(), start = pending->start > run->collected_at ? pending->start : run->collected_at;
    run->collected_at = now;
    m->seconds.step = now - start;
    m->tokens_per_s = m->seconds.step > 0 ? (double)pending->tokens / m->seconds.step : 0;
    trainer_utilisation(t, m);

    if (run->folder.lock) /* whose job is over writes nothing more */
        TRY(run_lock_check_quickly(run->folder.lock, err));
    if (run->metrics)
        TRY(metrics_step(run->metrics, m, err));
    console_step(&run->console, m);
    status = check_divergence(run, &result, err);
    return status == STATUS_OK ? STATUS_OK : together(run, status, err); /* all find the same */
}

/* ---- what happens between steps ------------------------------------------ */

/* A stop ends it early: it is done, as a whole, when the run goes on. */
static enum status evaluate(struct run *run, struct error *err)
{
    struct trainer *t = &run->trainer;
    struct token_stream *stream = NULL;
    enum status status;
    double sums[2] = {0, 0};
    stream_fill_zero(t->compute, t->loss_sum, sizeof *t->loss_sum);
    TRY_GOTO(token_stream_open(&t->validation_config, 1, &stream, err));
    for (;;) {
        struct batch batch;
        bool end = false;
        TRY_GOTO(token_stream_next(stream, &batch, &end, err));
        if (end)
            break;
        if (run->stop) {
            run->position.evaluation_due = true;
            break;
        }
        TRY_GOTO(transformer_evaluate(t->transformer, &batch, zero_verbs(t->zero), t->compute, t->loss_sum, err));
        sums[1] += (double)batch.num_targets;
        TRY_GOTO(look_for_stop(run, err));
    }
    sums[0] = read_loss_sum(t);
    TRY_GOTO(comm_sum(run->comm, sums, 2, err));
    double loss = mean_loss(sums[0], sums[1]);
    if (run->metrics && !run->position.evaluation_due) {
        TRY_GOTO(metrics_eval(run->metrics, run->position.step, run->position.epoch, loss, (int64_t)sums[1], err));
        console_break(&run->console);
        log_info("step %" PRId64 "  eval_loss %.4f  perplexity %.2f  (%.0f targets)", run->position.step, loss,
                 exp(loss), sums[1]);
    }
    double forward, backward; /* not part of the next step */
    transformer_times(t->transformer, &forward, &backward);
    status = STATUS_OK;
fail:
    token_stream_close(stream);
    return status;
}

static enum status still_owner(void *folder, struct error *err)
{
    return run_folder_still_ours(folder, err);
}

/* A checkpoint takes a slice from each rank: of copies that have drifted apart it would be a mixture. */
static enum status check_replicas(struct run *run, struct error *err)
{
    struct replica_difference d;
    const struct rank_place *places = run->boot->places;
    TRY(zero_compare_replicas(run->trainer.zero, &d, err));
    if (d.rank < 0)
        return STATUS_OK;
    error_set(err, STATUS_DIVERGED,
              "step %" PRId64 ": the ranks' copies of the model have drifted apart: rank %d on %s holds other %s of %s "
              "than rank %d on %s; no checkpoint is written",
              run->position.step, d.rank, places[d.rank].host, d.what, d.tensor ? d.tensor->name : d.unit->name,
              d.other, places[d.other].host);
    error_hint(err, "memory or a processor of one of them computes wrongly; without that node, resume from the last "
                    "checkpoint");
    return together(run, STATUS_DIVERGED, err); /* all find the same */
}

/* Once. */
static enum status write_checkpoint(struct run *run, char name[64], int64_t *bytes, struct error *err)
{
    struct trainer *t = &run->trainer;
    struct checkpoint_writer writer = {
        .dir = run->folder.checkpoints,
        .compression_level = run->spec->checkpoint.compression_level,
        .keep_last = run->spec->checkpoint.keep_last,
        .table = &t->table,
        .layout = &t->layout,
        .comm = run->comm,
        .host = run->boot->host,
        .spec = run->spec_json,
        .model = t->desc.source,
        .machine = run->machine,
        .data_fingerprint = t->data_fingerprint,
        .dtype = run->spec->dtype,
        .keeper = run->keeper,
        .still_owner = still_owner,
        .owner = &run->folder,
    };
    return checkpoint_save(&writer, &run->position, zero_slices(t->zero), name, bytes, err);
}

/* The run ends without its last checkpoint: for how long it was tried, and from where the run can go on. */
static enum status tell_last_lost(const struct run *run, const struct patience *patience, struct error *err)
{
    char next[FS_PATH_MAX + 100], before[64] = "";
    if (run->newest_step >= 0)
        snprintf(next, sizeof next, "--resume %s goes on from step %" PRId64 ", its newest checkpoint",
                 run->folder.path, run->newest_step);
    else
        snprintf(next, sizeof next, "the run has no checkpoint yet: start it again as it was started");
    if (run->checkpoints_lost > 0)
        snprintf(before, sizeof before, ", nor could %d before it", run->checkpoints_lost);
    error_prefix(err,
                 "the checkpoint of step %" PRId64 ", the last one of this start, could not be written in %.0f s%s",
                 run->position.step, seconds_now() - patience->began, before);
    size_t used = strlen(err->text);
    if (strstr(err->text, "; hint: "))
        snprintf(err->text + used, sizeof err->text - used, "; then %s", next);
    else
        error_hint(err, "when that works again, %s", next);
    return err->code;
}

/* Whether a save failed by its disk: another attempt may succeed, and training can do without. Not so a folder that
 * another run has taken over (STATUS_USAGE), memory, or a peer. */
static bool is_disk_error(const struct error *err)
{
    return err->code == STATUS_CHECKPOINT || error_is_transient(err);
}

/* Again, for as long as `patience` allows. A checkpoint that is not the run's last is done without in the end:
 * *written is false then. All ranks have the same error. */
static enum status write_patiently(struct run *run, struct patience *patience, char name[64], int64_t *bytes,
                                   bool *written, struct error *err)
{
    bool says = run->boot->rank == 0, again = true;
    patience_begin(patience);
    for (int attempt = 1;; attempt++) {
        double start = seconds_now();
        enum status status = write_checkpoint(run, name, bytes, err);
        *written = status == STATUS_OK;
        if (*written)
            deadline_checkpoint(&run->deadline, seconds_now() - start);
        if (*written && attempt > 1 && says)
            log_info("attempt %d wrote the checkpoint", attempt);
        if (*written || comm_status(run->comm, NULL) != STATUS_OK || !is_disk_error(err))
            return status;
        if (says && attempt == 1)
            log_warn("the checkpoint of step %" PRId64 " is tried again for %.0f s: %s", run->position.step,
                     fmax(patience_left(patience), 0), err->text);
        struct error lost;
        if (patience_again(patience, &again, &lost) != STATUS_OK) {
            *err = lost;
            return lost.code;
        }
        deadline_waited(&run->deadline, seconds_now() - start);
        run->stop |= patience->last;
        if (again)
            continue;
        if (patience->last)
            return tell_last_lost(run, patience, err);
        run->checkpoints_lost++;
        if (says)
            log_warn("the checkpoint of step %" PRId64 " could not be written, training continues without it: %s",
                     run->position.step, err->text);
        return STATUS_OK;
    }
}

/* last: the run ends with it. */
static enum status save_checkpoint(struct run *run, bool last, struct error *err)
{
    double start = seconds_now();
    TRY(check_replicas(run, err));
    if (run->metrics)
        TRY(metrics_flush(run->metrics, err));
    char name[64];
    int64_t bytes;
    bool written;
    struct patience patience = {.comm = run->comm,
                                .deadline = &run->deadline,
                                .limit = fmin(interval_patience, run->spec->checkpoint.retry_seconds),
                                .last_limit = run->spec->checkpoint.retry_seconds,
                                .last = last || run->stop};
    enum status status = write_patiently(run, &patience, name, &bytes, &written, err);
    if (status != STATUS_OK)
        return comm_status(run->comm, NULL) == STATUS_OK ? together(run, status, err) : status;
    double seconds = seconds_now() - start;
    run->checkpoint_seconds += seconds;
    if (!written)
        return STATUS_OK;
    run->saved_step = run->newest_step = run->position.step;
    if (run->metrics) {
        char folder[3400];
        snprintf(folder, sizeof folder, "%s/%s", run->folder.checkpoints, name);
        TRY(metrics_checkpoint(run->metrics, folder, run->position.step, bytes, seconds, err));
        console_break(&run->console);
        log_info("checkpoint %s  %.1f MB in %.2f s", folder, (double)bytes / 1e6, seconds);
    }
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

/* Evaluation, the epoch's end, checkpoints, in this order: a checkpoint says that what came before it is done. */
static enum status between_steps(struct run *run, const struct due *due, struct error *err)
{
    struct train_position *position = &run->position;
    position->evaluation_due = false;
    if (due->evaluation)
        TRY(evaluate(run, err));
    if (position->evaluation_due)
        return save_checkpoint(run, true, err);
    if (due->epoch_end) {
        double loss = mean_loss(position->epoch_loss_sum, (double)position->epoch_targets);
        if (run->metrics) {
            TRY(metrics_epoch_end(run->metrics, position->epoch, position->step, loss, err));
            console_break(&run->console);
            log_info("epoch %" PRId64 " ends at step %" PRId64 "  train_loss %.4f", position->epoch, position->step,
                     loss);
        }
    }
    position->epoch_end = due->epoch_end;
    if (due->checkpoint || run->stop)
        TRY(save_checkpoint(run, due->run_end, err));
    if (due->epoch_end)
        begin_next_epoch(position);
    return STATUS_OK;
}

/* Says so. */
static bool stops_here(struct run *run)
{
    const struct train_position *position = &run->position;
    if (!run->stop || (run->enqueued == run->trainer.total_steps && !position->evaluation_due))
        return false;
    console_break(&run->console);
    log_info("stopped %s after step %" PRId64 " of %" PRId64 "%s; go on with --resume %s",
             run->deadline_near ? "before the job's end" : "on request", position->step, run->trainer.total_steps,
             position->evaluation_due ? ", before its evaluation" : "", run->folder.path);
    return true;
}

/* The step at hand was broken off: what counts is the step before it. */
static enum status stop_within_step(struct run *run, struct error *err)
{
    while (run->enqueued > run->position.step)
        TRY(collect_step(run, err));
    if (run->saved_step != run->position.step)
        TRY(save_checkpoint(run, true, err));
    stops_here(run);
    return STATUS_REQUEUE;
}

/* A device that works asynchronously is given the next step before the last one's results are read; before anything
 * else is done, all steps are collected. */
static enum status run_steps(struct run *run, struct error *err)
{
    int64_t total_steps = run->trainer.total_steps, ahead = run->trainer.device->kind == DEVICE_CUDA ? 1 : 0;
    run->enqueued = run->position.step;
    if (run->position.evaluation_due) {
        struct due due = due_now(run);
        due.evaluation = run->trainer.validation_set;
        TRY(between_steps(run, &due, err));
        if (stops_here(run))
            return STATUS_REQUEUE;
    }
    while (run->enqueued < total_steps) {
        bool broken_off;
        TRY(train_step(run, &broken_off, err));
        if (broken_off)
            return stop_within_step(run, err);
        struct due due = due_now(run);
        bool pause = due.evaluation || due.epoch_end || due.checkpoint;
        while (run->enqueued - run->position.step > (pause ? 0 : ahead))
            TRY(collect_step(run, err));
        if (pause)
            TRY(between_steps(run, &due, err));
        if (stops_here(run))
            return STATUS_REQUEUE;
    }
    return STATUS_OK;
}

/* ---- preparation --------------------------------------------------------- */

/* Opens the checkpoint to go on from: rank 0 finds and checks it, the others open the same. */
static enum status open_resume(struct run *run, struct checkpoint **checkpoint, struct error *err)
{
    const struct bootstrap *boot = run->boot;
    const struct retry retry = {.limit = fmin(interval_patience, run->spec->checkpoint.retry_seconds),
                                .stopped = stop_signal_pending};
    char path[4096] = "";
    enum status status = STATUS_OK;
    if (boot->rank == 0)
        status = resume_open(run->options->resume, &retry, checkpoint, err);
    TRY(together(run, status, err));
    if (boot->rank == 0)
        snprintf(path, sizeof path, "%s", (*checkpoint)->path);
    TRY(comm_broadcast(run->comm, path, sizeof path, 0, err));
    if (boot->rank != 0)
        status = resume_open(path, &retry, checkpoint, err);
    if (status == STATUS_OK)
        status = resume_check(*checkpoint, run->spec, boot->world, boot->source, boot->rank == 0, err);
    return together(run, status, err);
}

static enum status take_position(struct run *run, const struct checkpoint *checkpoint, struct error *err)
{
    struct loss_scaler initial = run->position.scaler;
    TRY(resume_position(checkpoint, run->trainer.steps_per_epoch, run->trainer.data_fingerprint, &run->position, err));
    size_t folder = strlen(run->folder.checkpoints);
    bool here = !strncmp(checkpoint->path, run->folder.checkpoints, folder) && checkpoint->path[folder] == '/';
    run->newest_step = here ? run->position.step : -1;
    run->saved_step = here && !run->position.evaluation_due ? run->position.step : -1;
    if (!run->spec->loss_scaler.dynamic) /* a fixed scale is the spec's */
        run->position.scaler = initial;
    return STATUS_OK;
}

/* A resume takes its course: the checkpoints that are ahead of it go aside, then metrics.jsonl holds what led to it. Up
 * to here nothing of the run folder but run.yaml has changed, and whatever refuses the resume has done so. */
static enum status take_course(struct run *run, const struct checkpoint *checkpoint, struct error *err)
{
    enum status status;
    const struct train_position *position = &run->position;
    struct checkpoint_course course;
    char path[FS_PATH_MAX];
    bool branched = run->place.start == RUN_BRANCHED;
    TRY_GOTO(resume_plan_course(run->options->resume, &run->place, checkpoint, &course, err));
    TRY_GOTO(checkpoint_course_take(&course, err));
    snprintf(path, sizeof path, "%s", checkpoint->path);
    if (!branched)
        TRY_GOTO(fs_join(path, course.dir, course.name, STATUS_CHECKPOINT, err));
    if (course.metrics_from < 0)
        log_warn("no metrics.jsonl.N has the lines that led to '%s': metrics.jsonl begins at step %" PRId64, path,
                 position->step + 1);
    struct metrics_course lines = {.step = position->step,
                                   .evaluation_due = position->evaluation_due,
                                   .checkpoint = path,
                                   .bytes = checkpoint->bytes,
                                   .from = course.metrics_from,
                                   .former = course.number};
    TRY_GOTO(metrics_open(run->folder.metrics, branched ? NULL : &lines, &run->metrics, err));
    TRY_GOTO(metrics_resume(run->metrics, path, position->step, err));
    log_info("resumed from %s at step %" PRId64 ", epoch %" PRId64, path, position->step, position->epoch);
fail:
    checkpoint_course_release(&course);
    return status;
}

static enum status open_sinks(struct run *run, const struct checkpoint *checkpoint, struct error *err)
{
    if (run->boot->rank != 0)
        return STATUS_OK;
    TRY(run_folder_still_ours(&run->folder, err));
    TRY(run_folder_write_spec(&run->folder, run->spec, err));
    if (checkpoint)
        TRY(take_course(run, checkpoint, err));
    else
        TRY(metrics_open(run->folder.metrics, NULL, &run->metrics, err));
    metrics_ask_owner(run->metrics, still_owner, &run->folder);
    return STATUS_OK;
}

static void say_start(const struct run *run)
{
    const struct trainer *t = &run->trainer;
    const struct run_spec *spec = run->spec;
    log_info("ztrain %s: %s, %" PRId64 " parameters, %s, ZeRO stage %d", ZTRAIN_VERSION,
             model_family_name(t->desc.family), t->table.num_params, dtype_name(spec->dtype), spec->zero.stage);
    log_info("ranks: %d (%s); device: %s, %d thread%s; %s", run->boot->world, run->boot->source, t->device->name,
             t->device->threads, t->device->threads == 1 ? "" : "s", t->device->detail);
    log_info("batch: train_batch_size %" PRId64 " = micro %" PRId64 " x accumulation %" PRId64 " x ranks %d; %" PRId64
             " steps, %" PRId64 " an epoch; run folder %s",
             spec->train_batch_size, spec->train_micro_batch_size_per_gpu, spec->gradient_accumulation_steps,
             run->boot->world, t->total_steps, t->steps_per_epoch, run->folder.path);
    trainer_print_plan(t);
}

/* What this rank sent in the newest step, and over the network in all, beside what theory says for it. */
static void print_volume(struct run *run)
{
    int64_t gather, reduce;
    struct comm_stats rest;
    if (!run->volume.reduce_scatter_calls) /* one rank, or no step in this process */
        return;
    zero_theory(run->trainer.zero, (int)run->spec->gradient_accumulation_steps, &gather, &reduce);
    log_info("communication of a step and rank: gathered %" PRId64 " bytes (theory %" PRId64 "), reduced %" PRId64
             " bytes (theory %" PRId64 ")",
             run->volume.all_gather_bytes, gather, run->volume.reduce_scatter_bytes, reduce);
    read_volume(run, &rest);
    const struct comm_stats *moved = &run->moved;
    if (moved->theory_sent + moved->theory_received > 0)
        log_info("over the network, in all: sent %" PRId64 " bytes (theory %" PRId64 "), received %" PRId64
                 " bytes (theory %" PRId64 ")",
                 moved->network_sent, moved->theory_sent, moved->network_received, moved->theory_received);
}

static void print_profile(struct run *run)
{
    struct op_profile rows[OPS_COUNT];
    int n = ops_profile_read(run->trainer.device, rows, OPS_COUNT);
    double total = 0;
    for (int i = 0; i < n; i++)
        total += rows[i].seconds;
    log_info("%-18s %10s %10s %7s %12s %10s", "op", "calls", "seconds", "share", "GFLOP/s", "GB/s");
    for (int i = 0; i < n; i++)
        log_info("%-18s %10" PRId64 " %10.4f %6.1f%% %12.1f %10.2f", rows[i].name, rows[i].calls, rows[i].seconds,
                 total > 0 ? 100 * rows[i].seconds / total : 0,
                 rows[i].seconds > 0 ? rows[i].flops / rows[i].seconds / 1e9 : 0,
                 rows[i].seconds > 0 ? rows[i].bytes / rows[i].seconds / 1e9 : 0);
}

/* Several nodes: whether all see one run folder. */
static enum status check_shared(struct run *run, struct error *err)
{
    const struct bootstrap *boot = run->boot;
    char mark[RUN_FOLDER_MARK] = "";
    enum status status = STATUS_OK;
    if (boot->rank == 0)
        status = run_folder_mark(&run->folder, mark, err);
    TRY(together(run, status, err));
    TRY(comm_broadcast(run->comm, mark, sizeof mark, 0, err));
    if (boot->rank != 0 && boot->local_rank == 0)
        status = run_folder_find_mark(&run->folder, mark, boot->places[0].host, err);
    status = together(run, status, err);
    if (boot->rank == 0)
        run_folder_unmark(&run->folder, mark);
    return status;
}

/* Up to where memory is needed. */
static enum status build(struct run *run, const struct checkpoint *checkpoint, struct error *err)
{
    struct trainer *t = &run->trainer;
    t->profile = run->options->profile;
    t->boot = run->boot;
    if (checkpoint && hardware_kernels(checkpoint->machine, &run->kernels_before))
        t->kernels_before = &run->kernels_before;
    TRY(trainer_build(t, run->spec, run->boot->rank, run->boot->world, run->comm, run->boot->cores, err));
    run->spec_json = spec_to_json(run->spec);
    TRY(trainer_open_data(t, err));
    if (run->boot->rank == 0)
        TRY(checkpoint_keeper_new(run->spec->model.pretrained, &run->keeper, err));
    run->position = (struct train_position){.epoch = 1};
    run->saved_step = run->newest_step = -1;
    loss_scaler_init(&run->position.scaler, &run->spec->loss_scaler, run->spec->initial_loss_scale);
    return checkpoint ? take_position(run, checkpoint, err) : STATUS_OK;
}

/* What this run computes with, and whether that is what it was. */
static enum status describe_machine(struct run *run, const struct checkpoint *checkpoint, struct error *err)
{
    char text[1024];
    run->machine = hardware_to_json(run->trainer.device);
    if (checkpoint && *hardware_differences(checkpoint, run->machine, text, sizeof text))
        log_info("the checkpoint was computed with other kernels or libraries (%s): the run goes on with other bits",
                 text);
    return hardware_compare_ranks(run->comm, run->boot, run->machine, run->spec->zero.stage == 0, err);
}

static enum status open_outputs(struct run *run, const struct checkpoint *checkpoint, struct error *err)
{
    struct trainer *t = &run->trainer;
    TRY(token_stream_open(&t->train_config, run->position.step + 1, &run->stream, err));
    TRY(open_sinks(run, checkpoint, err));
    console_init(&run->console, run->boot->rank != 0, run->spec->steps_per_print, t->total_steps,
                 run->spec->wall_clock_breakdown);
    return STATUS_OK;
}

/* Rank 0 decides where the run lives, before anything is made or loaded. */
static enum status find_folder(struct run *run, bool *there, struct error *err)
{
    enum status status = STATUS_OK;
    *there = false;
    if (run->boot->rank == 0) {
        status = run_place_find(run->spec, run->options->resume, &run->place, err);
        if (status == STATUS_OK)
            status = run_place_check(&run->place, err);
        if (status == STATUS_OK)
            status = run_place_check_room(&run->place, err);
        *there = fs_is_dir(run->place.path);
    }
    TRY(together(run, status, err));
    TRY(comm_broadcast(run->comm, &run->place, sizeof run->place, 0, err));
    TRY(comm_broadcast(run->comm, there, sizeof *there, 0, err));
    if (run->boot->rank == 0 && run->place.moved)
        log_info("the run folder was moved: the run continues in %s", run->place.path);
    run_folder_init(&run->folder, &run->place);
    return STATUS_OK;
}

/* Rank 0 makes the folder and locks it; then all open their logs in it. */
static enum status open_folder(struct run *run, struct error *err)
{
    enum status status = STATUS_OK;
    if (run->boot->rank == 0)
        status = run_folder_open(&run->folder, &run->place, err);
    TRY(together(run, status, err));
    TRY(together(run, run_folder_open_log(&run->folder, run->boot->rank, err), err));
    return run->boot->num_nodes > 1 ? check_shared(run, err) : STATUS_OK;
}

/* A run folder that is there is locked before anything in it is looked at; one that is not is made last, when nothing
 * refuses the run any more. */
static enum status prepare(struct run *run, struct error *err)
{
    struct trainer *t = &run->trainer;
    struct checkpoint *checkpoint = NULL;
    enum status status;
    bool there;
    TRY_GOTO(find_folder(run, &there, err));
    if (there)
        TRY_GOTO(open_folder(run, err));
    if (run->options->resume)
        TRY_GOTO(open_resume(run, &checkpoint, err));
    else
        TRY_GOTO(together(run, spec_resolve_batch(run->spec, run->boot->world, run->boot->source, err), err));
    TRY_GOTO(together(run, build(run, checkpoint, err), err));
    say_start(run);
    if (run->boot->rank == 0)
        deadline_init(&run->deadline, (double)t->table.num_params * checkpoint_bytes / slow_disk, deadline_period);
    TRY_GOTO(trainer_allocate(t, err));
    TRY_GOTO(describe_machine(run, checkpoint, err));
    TRY_GOTO(together(run, trainer_load_weights(t, checkpoint, err), err));
    TRY_GOTO(trainer_spread_weights(t, err));
    TRY_GOTO(stepper_init(&run->stepper, t, err));
    zero_set_position(t->zero, run->position.optimizer_step, &run->position.scaler, t->compute);
    if (!there)
        TRY_GOTO(open_folder(run, err));
    TRY_GOTO(together(run, open_outputs(run, checkpoint, err), err));
    status = STATUS_OK;
fail:
    if (checkpoint)
        checkpoint_close(checkpoint);
    return status;
}

/* Ends without a communicator, as its ranks did not all meet: the launcher is to end the others, too. */
static void end_unmet(struct bootstrap *boot, enum status status, struct error *err)
{
    last_words(boot, err);
    if (!boot->launcher || boot->failed_together)
        return;
    bootstrap_abort(boot, status, "the ranks did not meet");
}

/* The job has failed: says so at once, then sees that no process stays behind. */
static void end_in_failure(struct run *run, enum status status, struct error *err)
{
    struct bootstrap *boot = run->boot;
    if (!run->agreed)
        comm_abort(run->comm, err);
    if (status == STATUS_BROKEN && err->text[0] && strncmp(err->text, "rank ", 5) != 0) /* scripts look for the host */
        error_prefix(err, "rank %d on %s", boot->rank, boot->host);
    if (err->text[0])
        log_error(err);
    err->text[0] = 0;                                       /* it is said */
    if (run->agreed || !boot->launcher || boot->world == 1) /* all end in order; or a supervisor sees to it */
        return;
    if (!comm_await_end(run->comm, end_patience))
        bootstrap_abort(boot, status, "a rank of a failed job does not end");
}

/* Tells the others, from whichever thread has found no memory; then the process ends. */
static struct comm *told_of_exhaustion;

static void tell_of_exhaustion(const struct error *err)
{
    const struct timespec moment = {.tv_nsec = 300 * 1000 * 1000}; /* for the agent to pass it on to other nodes */
    comm_abort(told_of_exhaustion, err);
    if (comm_world(told_of_exhaustion) > 1)
        nanosleep(&moment, NULL);
}

/* A file or a device holds up this rank for too long, in a thread that cannot be asked to end: the job has failed, and
 * this thread ends the process in its stead. */
static void end_stuck(void *context, const char *text)
{
    struct run *run = context;
    struct error err;
    error_set(&err, STATUS_PEER, "%s", text);
    if (run->comm) /* NULL: not yet told to us; the failure is known all the same */
        end_in_failure(run, STATUS_PEER, &err);
    _exit(STATUS_PEER);
}

/* The last chance of what waits for a disk, and what was lost meanwhile, said again at the end. */
static void close_metrics(struct run *run)
{
    if (run->boot->rank != 0)
        return;
    deadline_look_again(&run->deadline);
    double left = deadline_latest(&run->deadline) - seconds_now();
    if (run->metrics)
        metrics_drain(run->metrics, fmax(fmin(interval_patience, left), 0.1));
    if (run->checkpoints_lost > 0)
        log_warn("%d checkpoint%s could not be written in the course of this run: see the warnings above",
                 run->checkpoints_lost, run->checkpoints_lost == 1 ? "" : "s");
    metrics_close(run->metrics);
    run->metrics = NULL;
}

/* This process is a rank (or the only one). */
static enum status train_rank(const struct options *options, struct bootstrap *boot, struct run_spec *spec,
                              struct error *err)
{
    struct run run = {.options = options, .started_at = seconds_now(), .spec = spec, .boot = boot};
    struct comm_config comm = {.timeout_seconds = spec->comm.timeout_seconds,
                               .io_timeout_seconds = spec->comm.io_timeout_seconds,
                               .stuck = end_stuck,
                               .stuck_context = &run,
                               .interface = spec->comm.interface,
                               .reduce_within_node = spec->comm.reduce_within_node};
    enum status status = comm_open(boot, &comm, &run.comm, err);
    if (status != STATUS_OK) {
        end_unmet(boot, status, err);
        return status;
    }
    told_of_exhaustion = run.comm;
    memory_on_exhausted(tell_of_exhaustion);
    stop_signal_install();
    TRY_GOTO(prepare(&run, err));
    if (run.position.step >= run.trainer.total_steps && !run.position.evaluation_due)
        log_info("nothing to do: the run of %" PRId64 " steps is complete", run.trainer.total_steps);
    status = run_steps(&run, err);
    if (status != STATUS_OK && status != STATUS_REQUEUE)
        goto fail;
    close_metrics(&run);
    enum status met = comm_barrier(run.comm, err); /* nobody is done before all are */
    if (met != STATUS_OK) {
        status = met;
        goto fail;
    }
    if (status == STATUS_OK) {
        print_volume(&run);
        if (options->profile)
            print_profile(&run);
        if (boot->rank == 0)
            summary_say(run.folder.metrics, run.folder.checkpoints, seconds_now() - run.started_at);
        log_info("finished: %" PRId64 " step%s, %" PRId64 " tokens; run folder %s", run.position.step,
                 run.position.step == 1 ? "" : "s", run.position.tokens, run.folder.path);
    }
fail:
    console_break(&run.console);
    bool failed = status != STATUS_OK && status != STATUS_REQUEUE;
    if (failed)
        end_in_failure(&run, status, err);
    deadline_release(&run.deadline);
    token_stream_close(run.stream);
    metrics_close(run.metrics);
    json_decref(run.spec_json);
    json_decref(run.machine);
    stepper_release(&run.stepper);
    trainer_release(&run.trainer);
    memory_on_exhausted(NULL);
    comm_close(run.comm);
    checkpoint_keeper_free(run.keeper);
    run_folder_close(&run.folder);
    if (!failed || run.agreed)
        bootstrap_finish(boot);
    return status;
}

/* This process supervises the ranks; what they had to say they have said. */
static enum status start_ranks(const struct options *options, char **argv, const struct run_spec *spec,
                               struct error *err)
{
    int exit_code = STATUS_BUG;
    struct stat st;
    if (stat(options->config, &st) == 0 && !S_ISREG(st.st_mode))
        return error_set(err, STATUS_USAGE,
                         "every rank reads the run spec, and '%s' is no file that can be read again; hint: write it to "
                         "a file",
                         options->config);
    TRY(supervise(options->local_gpus, argv, spec->comm.timeout_seconds, &exit_code, err));
    return (enum status)exit_code;
}

/* What has to be the same on all ranks. */
static uint64_t fingerprint(const struct options *options, const struct run_spec *spec)
{
    json_t *all = spec ? spec_to_json(spec) : NULL;
    char *text = json_dumps(all, JSON_SORT_KEYS | JSON_COMPACT);
    XXH64_hash_t hash = text ? XXH3_64bits(text, strlen(text)) : 0;
    if (options->resume)
        hash = XXH3_64bits_withSeed(options->resume, strlen(options->resume), hash);
    free(text);
    json_decref(all);
    return hash;
}

/* Ranks of a launcher that have read their run spec with `status`: all go on together or not at all. */
static enum status start_together(const struct options *options, struct bootstrap *boot, const struct run_spec *spec,
                                  enum status status, struct error *err)
{
    struct error connecting = {.code = STATUS_OK};
    if (boot->world > 1) /* nothing to save yet, and to wait for peers that were ended as well would take long */
        stop_signal_default();
    double timeout = spec ? spec->comm.timeout_seconds : usual_timeout;
    enum status met = bootstrap_connect(boot, timeout, spec ? spec->comm.interface : NULL, &connecting);
    if (met == STATUS_OK) {
        stop_signal_install(); /* srun -K terminates the later of ranks that fail: they end with the code, too */
        status = agree_at_start(boot, fingerprint(options, spec), status, err);
        if (status != STATUS_OK)
            bootstrap_finish(boot);
        else if (boot->world > 1)
            stop_signal_default();
        return status;
    }
    if (status == STATUS_OK)
        *err = connecting;
    end_unmet(boot, err->code, err);
    return err->code;
}

/* Reads the run spec, if the command line is in order (`status`, err). Of several ranks one prints what is wrong; a
 * supervisor's ranks read what it has checked and complained about already. */
static enum status read_spec(const struct options *options, struct bootstrap *boot, enum status status,
                             struct run_spec **spec, struct error *err)
{
    bool supervised = bootstrap_is_local_rank(), quiet = boot->rank != 0 || supervised, unread = false;
    if (status == STATUS_OK) {
        status = options_load_spec(options, quiet, spec, err);
        unread = status != STATUS_OK;
    }
    if (boot->launcher && !options->dry_run)
        status = start_together(options, boot, *spec, status, err);
    if (unread && quiet && !supervised && err->text[0]) /* it is this rank that says it: again, aloud */
        options_load_spec(options, false, spec, NULL);
    return status;
}

/* A dry run's first words: where the run would live, also where the rest is refused. */
static enum status say_place(const struct run_spec *spec, const char *resume, struct run_place *place,
                             struct error *err)
{
    TRY(run_place_find(spec, resume, place, err));
    enum status status = run_place_check(place, err);
    printf("run folder: %s\n", PRINTABLE(place->path));
    if (place->moved)
        printf("it was moved there: '%s/%s' does not exist\n", PRINTABLE(spec->run.dir), PRINTABLE(spec->run.name));
    if (place->start == RUN_BRANCHED && status == STATUS_OK)
        printf("the run would branch off there: --resume names a checkpoint that lies elsewhere\n");
    if (place->start == RUN_NEW && status != STATUS_OK) {
        printf("it holds checkpoints: without --resume %s a run is refused there\n", PRINTABLE(place->path));
        status = STATUS_OK;
    }
    fflush(stdout);
    return status == STATUS_OK ? run_place_check_room(place, err) : status;
}

/* What the command line asks for. */
static enum status run_command(const struct options *options, char **argv, struct bootstrap *boot,
                               struct run_spec *spec, struct error *err)
{
    bool supervises = options->local_gpus && !bootstrap_is_local_rank();
    int world = supervises ? options->local_gpus : boot->world;
    const char *source = boot->source;
    if (options->dry_run) {
        struct run_place place;
        TRY(say_place(spec, options->resume, &place, err));
        if (options->resume)
            TRY(resume_dry(options->resume, &place, spec, world, source, err));
        else
            TRY(spec_resolve_batch(spec, world, source, err));
        return plan_dry_run(spec, world, source, boot->cores, err);
    }
    if (!supervises)
        return train_rank(options, boot, spec, err);
    if (!options->resume) /* of a resumed run the checkpoint has a say in it */
        TRY(spec_resolve_batch(spec, world, source, err));
    return start_ranks(options, argv, spec, err);
}

/* What cannot be, whatever the run spec says. */
static enum status check_options(const struct options *options, const struct bootstrap *boot, struct error *err)
{
    if (options->world) {
        error_set(err, STATUS_USAGE, "--world belongs to ztrain plan");
        return error_hint(err, "--local-gpus N starts N ranks on this machine, or with --dry-run plans them");
    }
    if (options->local_gpus && boot->world > 1 && !bootstrap_is_local_rank())
        return error_set(err, STATUS_USAGE, "--local-gpus %d inside %s with %d ranks; hint: one of the two",
                         options->local_gpus, boot->source, boot->world);
    bool alone = boot->world == 1 && !options->local_gpus && !bootstrap_is_local_rank();
    return alone && !options->dry_run ? bootstrap_check_alone(err) : STATUS_OK;
}

/* From now on nobody waits for who reads the output. */
static enum status start_output(struct error *err)
{
    int error = output_start();
    return error ? error_set(err, STATUS_DEVICE, "cannot start a thread: %s", strerror(error)) : STATUS_OK;
}

enum status cmd_train(int argc, char **argv, struct error *err)
{
    struct options options;
    enum status status = options_parse(argc, argv, &options, err);
    if (status == STATUS_OK && options.help) {
        options_help(stdout);
        return STATUS_OK;
    }
    if (status == STATUS_OK && options.help_spec) {
        spec_print_help(stdout, options.markdown);
        return STATUS_OK;
    }
    if (status == STATUS_OK && options.version)
        return cmd_version(1, argv, err);
    if (argc < 2) {
        options_help(stderr);
        return error_set(err, STATUS_USAGE, "no run spec given; hint: ztrain --config run.yaml");
    }

    struct bootstrap boot;
    struct run_spec *spec = NULL;
    struct error lost = {.code = STATUS_OK};
    stop_signal_install(); /* a supervisor sets its own later */
    if (bootstrap_init(&boot, &lost) != STATUS_OK) {
        if (status == STATUS_OK)
            *err = lost;
        log_identity(boot.rank, boot.world, boot.host);
        last_words(&boot, err);
        bootstrap_refuse(&boot, err->code);
        return err->code;
    }
    log_identity(boot.rank, boot.world, boot.host);
    bool supervises = options.local_gpus && !bootstrap_is_local_rank();
    if (!supervises && !bootstrap_is_local_rank())
        stop_signal_count_interrupts(boot.rank == 0);
    if (status == STATUS_OK)
        status = check_options(&options, &boot, err);
    if (status == STATUS_OK && options.dry_run && boot.rank != 0) /* rank 0 says it all */
        goto fail;
    if (status == STATUS_OK && !options.dry_run && !supervises) /* a rank; a supervisor forks first */
        TRY_GOTO(start_output(err));
    TRY_GOTO(read_spec(&options, &boot, status, &spec, err));
    if (supervises)
        snprintf(boot.source, sizeof boot.source, "--local-gpus %d", options.local_gpus);
    status = run_command(&options, argv, &boot, spec, err);
fail:
    spec_free(spec);
    bootstrap_release(&boot);
    return status;
}

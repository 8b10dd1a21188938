/* SPDX-License-Identifier: Apache-2.0 */
/* rank_main.c: see rank_main.h. The stations of rank_run():
 *
 *     comm_open()           the ranks meet                                  on failure: rank_end_unmet()
 *     run_prepare()         run folder, checkpoint, memory, weights         on failure: rank_end_in_failure()
 *     run_steps()           the training loop                               on failure: rank_end_in_failure()
 *     comm_barrier()        all ranks have come this far: 0 or 75           on failure: rank_end_in_failure()
 *     rank_release_run(), bootstrap_finish()
 *
 * Three failures end a rank from outside this order: a thread that is refused memory and a library that calls exit()
 * (rank_abort_exhausted()), and a call on a file or a device that blocks for too long (end_blocked_rank(), in the
 * thread that watches over the rank). */
#include "cmd/train/rank_main.h"

#include "cmd/observe/flight_recorder.h"
#include "cmd/observe/reports.h"
#include "cmd/run/stop_signal.h"
#include "cmd/save/background_save.h"
#include "cmd/train/score_rank.h"
#include "comm/comm_log.h"
#include "core/flight/flight.h"

static const double end_patience = 2; /* seconds for the ranks of a failed job to end by themselves */

/* Logs the bytes that this rank sent in the newest counted step, and over the network in all, next to the theory's. */
static void rank_report_volume(struct run *run)
{
    int64_t gather = 0, reduce = 0;
    struct comm_stats rest;
    if (!run->volume.reduce_scatter_calls) /* one rank, or no step in this process */
        return;
    for (const struct run *each = run; each; each = each->next) {
        int64_t gathers, reduces;
        if (each->position.step != run->position.step) /* the last steps were not those of all adapters */
            return;
        zero_theory(each->engine.zero, (int)each->engine.micros, &gathers, &reduces);
        transformer_add_theory(each->engine.transformer, (int)each->engine.micros, &gathers, &reduces);
        gather += gathers;
        reduce += reduces;
    }
    log_info("communication of a step and rank: gathered %" PRId64 " bytes (theory %" PRId64 "), reduced %" PRId64
             " bytes (theory %" PRId64 ")",
             run->volume.all_gather_bytes, gather, run->volume.reduce_scatter_bytes, reduce);
    run_read_volume(run, &rest);
    const struct comm_stats *moved = &run->moved;
    if (moved->theory_sent + moved->theory_received > 0)
        log_info("over the network, in all: sent %" PRId64 " bytes (theory %" PRId64 "), received %" PRId64
                 " bytes (theory %" PRId64 ")",
                 moved->network_sent, moved->theory_sent, moved->network_received, moved->theory_received);
}

/* Rank 0: gives lines that still wait for the disk a last chance, and repeats how many checkpoints were lost. */
static void rank_close_metrics(struct run *run)
{
    if (run->boot->rank != 0) return;
    deadline_look_again(&run->deadline);
    double left = deadline_latest(&run->deadline) - seconds_now();
    if (run->metrics) metrics_drain(run->metrics, fmax(fmin(PATIENCE_INTERVAL, left), 0.1));
    if (run->checkpoints_lost > 0)
        log_warn("%d checkpoint%s could not be written in the course of this run: see the warnings above",
                 run->checkpoints_lost, PLURAL(run->checkpoints_lost));
    metrics_close(TAKEN(run->metrics));
    monitor_close(TAKEN(run->monitor));
}

/* ---- ends ---------------------------------------------------------------- */

void rank_end_unmet(struct bootstrap *boot, enum status status, struct error *err)
{
    early_error_print(boot, err);
    if (!boot->launcher || boot->failed_together) return;
    bootstrap_abort(boot, status, "the ranks did not meet");
}

/* The job has failed: prints the error and informs the other ranks at once, then ensures that no process is left. */
static void rank_end_in_failure(struct run *run, enum status status, struct error *err)
{
    struct bootstrap *boot = run->boot;
    if (!run->agreed) comm_abort(run->comm, err);
    const bool of_gpu = status == STATUS_BROKEN || err->failure == FAILURE_SOFTWARE;
    if (of_gpu && !err->printed && err->rank < 0) { /* scripts look for the host */
        error_prefix(err, "rank %d on %s", boot->rank, boot->host);
        error_blame(err, boot->rank, err->failure);
    }
    log_error_once(err);
    flight_recorder_fail(status, err);
    if (run->agreed || !boot->launcher || boot->world == 1) /* all end in order, or a supervisor ends them */
        return;
    if (!comm_await_end(run->comm, end_patience)) bootstrap_abort(boot, status, "a rank of a failed job does not end");
}

static struct comm *comm_of_process; /* for rank_abort_exhausted(), which has no context */

/* In any thread that cannot allocate memory, or whose library ends the process, before it ends: informs the others. */
static void rank_abort_exhausted(const struct error *err)
{
    const struct timespec moment = {.tv_nsec = 300 * 1000 * 1000}; /* for the agent to pass it on to the other nodes */
    comm_abort(comm_of_process, err);
    if (comm_world(comm_of_process) > 1) nanosleep(&moment, NULL);
}

/* In the watchdog's thread: a file or a device blocks this rank. Another cause may be one that a restart cures not. */
static void end_blocked_rank(void *context, const char *text)
{
    struct run *run = context;
    struct error err;
    if (!run->comm || comm_status(run->comm, &err) == STATUS_OK) error_set(&err, STATUS_PEER, "%s", text);
    if (run->comm) /* NULL: comm_open() has not returned yet; the other ranks learn of the failure nevertheless */
        rank_end_in_failure(run, err.code, &err);
    _exit(err.code);
}

/* ---- the rank ------------------------------------------------------------ */

static bool rank_is_failure(enum status status)
{
    return status != STATUS_OK && status != STATUS_REQUEUE;
}

static enum status rank_train_together(struct run *first, struct error *err)
{
    TRY(run_prepare(first, err));
    for (const struct run *run = first; run; run = run->next) {
        run_speaks(run);
        if (run->position.stopped_early)
            log_info("nothing to do: the run has ended early, after step %" PRId64 " of %" PRId64
                     "; hint: with a larger train.early_stopping.patience it continues",
                     run->position.step, run->engine.total_steps);
        else if (run->position.step >= run->engine.total_steps && !run->position.evaluation_due)
            log_info("nothing to do: the run of %" PRId64 " steps is complete", run->engine.total_steps);
    }
    enum status status = run_steps(first, err);
    if (rank_is_failure(status)) {
        struct error ignored;
        for (struct run *run = first; run && first->agreed && comm_status(first->comm, NULL) == STATUS_OK;
             run = run->next) /* the checkpoint under way is still completed */
            background_save_wait(run, true, &ignored);
        return status;
    }
    flight_phase(FLIGHT_FINISH);
    TRY(trace_file_end(first->trace, err));
    if (first->boot->rank == 0) trace_file_check(first->trace);
    TRY(comms_report_finish(first, err));
    for (struct run *run = first; run; run = run->next) rank_close_metrics(run);
    TRY(comm_barrier(first->comm, err)); /* no rank is done before all are */
    if (status != STATUS_OK) return status;
    rank_report_volume(first);
    for (struct run *run = first; run; run = run->next) {
        run_speaks(run);
        if (run->boot->rank == 0)
            console_summary(run->spec, run->folder.metrics, run->folder.checkpoints, seconds_now() - run->started_at);
        log_info("finished: %" PRId64 " step%s, %" PRId64 " tokens; run folder %s", run->position.step,
                 PLURAL(run->position.step), run->position.tokens, run->folder.path);
        const enum status history = run_check_history(&run->position, err);
        if (history != STATUS_OK && run->spec->loss_scaler.dynamic && run->position.optimizer_step == 0)
            error_hint(err, "a smaller fp16.initial_scale_power, or more steps: --resume continues the search for the "
                            "scale");
        else if (history != STATUS_OK)
            error_hint(err, "a lower learning rate or gradient_clipping, from an earlier checkpoint or from the "
                            "beginning");
        engine_name_error(&run->engine, history, err);
        status = status == STATUS_OK ? history : status;
    }
    run_speaks(NULL);
    return run_agree(first, status, err);
}

static enum status rank_replay_together(struct run *run, struct error *err)
{
    TRY(run_prepare(run, err));
    const enum status status = run_steps(run, err);
    if (status == STATUS_OK)
        TRY(replay_finish(run, err));
    else if (rank_is_failure(status))
        return status;
    TRY(comm_barrier(run->comm, err));
    return status;
}

static enum status rank_score_together(struct run *run, struct error *err)
{
    TRY(run_prepare(run, err));
    TRY(score_rank(run, err));
    return comm_barrier(run->comm, err);
}

static void rank_release_run(struct run *run)
{
    replay_free(run->replay);
    deadline_release(&run->deadline);
    token_stream_close(run->stream);
    metrics_close(run->metrics);
    monitor_close(run->monitor);
    json_decref(run->spec_json);
    json_decref(run->machine);
    json_decref(run->adapter);
    json_decref(run->evaluation_part);
    stepper_release(&run->stepper);
    trace_file_free(run->trace);
    free(run->kernel_choices);
    free(run->kernels_changed);
    if (run == run->first) comm_log_stop(run->comm);
    engine_release(&run->engine);
    if (run == run->first) {
        memory_on_exhausted(NULL);
        comm_close(run->comm);
    }
    checkpoint_save_cache_free(run->save_cache);
    run_lock_release(run->folder.lock, false);
}

/* A run, or one for each of several adapters, whose folders lie in --resume DIR as in the run's folder. */
static struct run *rank_new_runs(const struct rank_options *options, struct bootstrap *boot, struct run_spec *spec,
                                 int *count)
{
    *count = 0;
    for (const struct run_spec *each = spec; each; each = each->next) ++*count;
    struct run *runs = memory_zeroed((size_t)*count, sizeof *runs);
    for (int i = 0; i < *count; i++, spec = spec->next) {
        struct run *run = &runs[i];
        *run = (struct run){.options = options,
                            .first = runs,
                            .next = i + 1 < *count ? run + 1 : NULL,
                            .started_at = seconds_now(),
                            .spec = spec,
                            .boot = boot};
        if (options->max_restarts) restart_read(&run->restart);
        run->resume = run_resume_of(spec, options->resume, run->resume_path);
        if (run->resume && !strcmp(run->resume, RUN_HOME_AUTO) && options->resumed_at_first) /* no checkpoint since */
            run->resume = run_resume_of(spec, options->resumed_at_first, run->resume_path);
        if (run->resume && !strcmp(run->resume, RUN_HOME_AUTO) && strcmp(options->resume, RUN_HOME_AUTO) != 0)
            log_info("%s: no checkpoint is in %s: it starts from the beginning", spec->run.name, options->resume);
    }
    return runs;
}

enum status rank_run(const struct rank_options *options, struct bootstrap *boot, struct run_spec *spec,
                     struct error *err)
{
    int count;
    OWNED struct run *runs = rank_new_runs(options, boot, spec, &count);
    struct comm_config comm = {.timeout_seconds = spec->comm.timeout_seconds,
                               .io_timeout_seconds = spec->comm.io_timeout_seconds,
                               .stuck = end_blocked_rank,
                               .stuck_context = runs,
                               .interface = spec->comm.interface,
                               .reduce_within_node = spec->comm.reduce_within_node,
                               .ordered = spec->train.virtual_ranks > 0 || spec->expert_parallel_size > 1};
    enum status status = comm_open(boot, &comm, &runs->comm, err);
    if (status != STATUS_OK) {
        rank_end_unmet(boot, status, err);
        return status;
    }
    for (int i = 1; i < count; i++) runs[i].comm = runs->comm;
    comm_of_process = runs->comm;
    memory_on_exhausted(rank_abort_exhausted);
    stop_signal_install();
    status = options->replay  ? rank_replay_together(runs, err)
             : options->score ? rank_score_together(runs, err)
                              : rank_train_together(runs, err);
    bool idle = true;
    run_speaks(NULL); /* it has named a spec's text */
    for (int i = 0; i < count; i++) console_break(&runs[i].console);
    if (rank_is_failure(status)) rank_end_in_failure(runs, status, err);
    flight_recorder_stop();
    for (int i = 0; i < count; i++) idle &= background_save_end(&runs[i], end_patience);
    if (!idle) /* it uses what rank_release_run() frees */
        _exit(status);
    const bool in_order = !rank_is_failure(status) || runs->agreed;
    for (int i = count; i-- > 0;) rank_release_run(&runs[i]);
    if (in_order) bootstrap_finish(boot);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/save/background_save.h"

#include "cmd/observe/integrity.h"
#include "cmd/run/stop_signal.h"
#include "core/faults.h"
#include "core/flight/flight.h"
#include "gpu/host_pages.h"

#include <sys/resource.h>
#ifdef _OPENMP
#include <omp.h>
#endif

static const double first_pause = 0.2, longest_pause = 10; /* seconds between two attempts */
static const double glance = 0.002, long_glance = 0.2;     /* seconds between two votes of ranks that wait */
enum { WRITER_NICE = 10 };

enum job { JOB_NONE, JOB_WORK, JOB_DISCARD, JOB_END };

enum state { SAVE_NONE, SAVE_WRITING, SAVE_PAUSED };

/* The memory of the copy, the same on all ranks. */
enum copy_memory { COPY_NEVER, COPY_LATER, COPY_TAKEN_NOW, COPY_THERE };

struct background_save {
    bool threaded;           /* there is a writer's thread */
    enum copy_memory memory; /* not COPY_THERE: training waits for each checkpoint */
    struct run *run;         /* borrowed */
    struct error refusal;    /* of the memory; code STATUS_OK: none */
    bool taking;             /* the next thread works on the two */
    pthread_t taker;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    enum job job;                     /* under the mutex; not JOB_NONE: `saving` and `writer` are the thread's */
    struct checkpoint_saving *saving; /* owned; NULL: none, or discarded */
    struct checkpoint_writer writer;  /* borrows from the run */
    bool flush;                       /* rank 0: metrics.jsonl, before the first part */
    int threads;                      /* of the writer's team */
    bool here;                        /* training waits: the main thread does the writer's work */

    /* The main thread's; `state` is the same on all ranks. */
    enum state state;
    struct train_position position;
    struct error failure; /* of the last attempt */
    bool last;            /* the run ends with it or, if it is in the background, with the one after it */
    bool waiting;         /* training waits in background_save_wait(), which the caller counts */
    int attempt;          /* from 1 */
    double asked;         /* seconds_now() when training began to wait for it, maybe for the one before it first */
    double began;         /* when the first attempt did */
    double attempt_began, next_attempt;
    double copied, stalled, pause; /* seconds */
};

static void do_job(struct background_save *b, enum job job)
{
    if (job != JOB_WORK) {
        checkpoint_saving_free(TAKEN(b->saving), true);
        return;
    }
    /* a checkpoint follows the lines of its steps */
    const int fd = b->flush ? io_open(b->run->folder.metrics, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    if (b->flush && (fd < 0 || FAULT(FSYNC, io_fsync(fd))))
        log_warn("cannot flush '%s': %s; its newest lines may be lost; training continues", b->run->folder.metrics,
                 strerror(errno));
    b->flush = false;
    if (fd >= 0) io_close(fd);
    checkpoint_saving_work(b->saving);
}

static void *write_in_background(void *argument)
{
    struct background_save *b = argument;
    setpriority(PRIO_PROCESS, 0, WRITER_NICE); /* of this thread: those that train come first */
#ifdef _OPENMP
    omp_set_num_threads(b->threads);
#endif
    LOCKED(&b->mutex);
    while (b->job != JOB_END) {
        if (b->job == JOB_NONE) {
            pthread_cond_wait(&b->changed, &b->mutex);
            continue;
        }
        enum job job = b->job;
        pthread_mutex_unlock(&b->mutex);
        do_job(b, job);
        pthread_mutex_lock(&b->mutex);
        b->job = JOB_NONE;
        pthread_cond_signal(&b->changed);
    }
    return NULL;
}

static void give_job(struct background_save *b, enum job job)
{
    if (b->here) {
        do_job(b, job);
        return;
    }
    LOCKED(&b->mutex);
    b->job = job;
    pthread_cond_signal(&b->changed);
}

enum status background_save_start(struct run *run, struct error *err)
{
    const struct device *device = run->engine.device;
    struct background_save *b = run->background = memory_zeroed(1, sizeof *b);
    pthread_mutex_init(&b->mutex, NULL);
    condition_init(&b->changed);
    b->threads = device->kind == DEVICE_CPU ? 1 : device->threads; /* the CPU device trains on all of them */
    b->run = run;
    if (!zero_has_snapshot(run->engine.zero)) return STATUS_OK;
    b->memory = run->engine.snapshot ? COPY_THERE : COPY_LATER;
    const int code = thread_start(&b->thread, 0, write_in_background, b);
    b->threaded = code == 0;
    return code ? error_system(err, STATUS_DEVICE, code, "cannot start the thread that writes checkpoints") : STATUS_OK;
}

/* Waits until the thread has no job. false: it still has one after `seconds`. */
static bool await_idle(struct background_save *b, double seconds)
{
    const struct timespec until = time_after(seconds);
    LOCKED(&b->mutex);
    while (b->job != JOB_NONE && pthread_cond_timedwait(&b->changed, &b->mutex, &until) != ETIMEDOUT) continue;
    return b->job == JOB_NONE;
}

bool background_save_end(struct run *run, double seconds)
{
    struct background_save *b = run->background;
    if (!b) return true;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)ceil(seconds);
    if (b->taking && pthread_timedjoin_np(b->taker, NULL, &until) != 0) return false;
    b->taking = false;
    if (b->threaded) {
        if (!await_idle(b, seconds)) return false;
        b->here = false;
        give_job(b, JOB_END);
        pthread_join(b->thread, NULL);
    }
    checkpoint_saving_free(b->saving, false);
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->mutex);
    free(b);
    run->background = NULL;
    return true;
}

/* ---- the memory of the copy ---------------------------------------------- */

/* Whether the memory is there on all ranks; if not, rank 0 says why, and the run continues without. Collective. */
static enum status agree_on_memory(struct run *run, bool *there, struct error *err)
{
    struct background_save *b = run->background;
    const int world = run->boot->world;
    OWNED char(*all)[256] = memory_zeroed((size_t)world, sizeof *all); /* refusals; "": none */
    char own[sizeof *all] = "";
    int refused = 0;
    if (b->refusal.code != STATUS_OK)
        snprintf(own, sizeof own, "%.*s", (int)strcspn(b->refusal.text, ";"), b->refusal.text);
    TRY(comm_exchange(run->comm, own, sizeof own, all, err));
    while (refused < world && !*all[refused]) refused++;
    *there = refused == world;
    if (!*there) {
        b->memory = COPY_NEVER;
        memory_snapshot_free(&run->engine);
        zero_keep_snapshot(run->engine.zero, false);
        console_break(&run->console);
        if (run->boot->rank == 0)
            log_info("training waits for checkpoints (checkpoint.writer.decoupled): rank %d has no memory for its copy "
                     "of %s: %s",
                     refused, SIZE(round, zero_snapshot_bytes(run->engine.zero)), all[refused]);
    }
    return STATUS_OK;
}

/* A thread of its own: training waits for it, or will, so it comes before the writer, and has all cores. */
static void *take_memory(void *argument)
{
    struct background_save *b = argument;
    struct engine *t = &b->run->engine;
#ifdef _OPENMP
    omp_set_num_threads(t->device->threads);
#endif
    host_pages_new(t->snapshot_bytes, &t->snapshot, &b->refusal); /* maps and touches it */
    return NULL;
}

enum status background_save_expect(struct run *run, struct error *err)
{
    struct background_save *b = run->background;
    bool fits;
    if (b->memory != COPY_LATER) return STATUS_OK;
    if (!memory_snapshot_fits(&run->engine)) error_set(&b->refusal, STATUS_DEVICE, "its node's memory is in use");
    TRY(agree_on_memory(run, &fits, err));
    if (fits) {
        b->memory = COPY_TAKEN_NOW;
        b->taking = thread_start(&b->taker, 0, take_memory, b) == 0;
        if (!b->taking) take_memory(b);
    }
    return STATUS_OK;
}

/* ---- a run's checkpoints ------------------------------------------------- */

struct checkpoint_keep save_keep_of(const struct run *run)
{
    const struct run_spec *spec = run->spec;
    return (struct checkpoint_keep){
        .last = spec->checkpoint.keep_last,
        .best = spec->checkpoint.keep_best,
        .every_steps = spec->checkpoint.keep_every_steps,
        .metric = spec->checkpoint.metric,
        .mode = spec->checkpoint.mode,
        .data = run->engine.evaluation_data,
    };
}

static struct checkpoint_writer save_writer_of(struct run *run)
{
    const struct engine *t = &run->engine;
    return (struct checkpoint_writer){
        .dir = run->folder.checkpoints,
        .compression_level = run->spec->checkpoint.compression_level,
        .keep = save_keep_of(run),
        .table = &t->table,
        .layout = &t->layout,
        .virtual_ranks = (int)run->spec->train.virtual_ranks,
        .comm = run->comm,
        .host = run->boot->host,
        .spec = run->spec_json,
        .model = t->desc.source,
        .machine = run->machine,
        .adapter = run->adapter,
        .base = t->base,
        .evaluation_part = run->position.evaluation_due ? run->evaluation_part : NULL,
        .data_fingerprint = t->sources.fingerprint,
        .dtype = run->spec->dtype,
        .cache = run->save_cache,
        .still_owner = run_folder_still_ours,
        .owner = &run->folder,
    };
}

/* ---- a save -------------------------------------------------------------- */

static void begin_save_attempt(struct run *run)
{
    struct background_save *b = run->background;
    struct zero *zero = run->engine.zero;
    checkpoint_saving_new(&b->writer, &b->position, b->here ? zero_slices(zero) : zero_snapshot(zero), &b->saving);
    b->attempt++;
    b->attempt_began = seconds_now();
    b->state = SAVE_WRITING;
    give_job(b, JOB_WORK);
}

/* Training has waited since `since`. */
static void note_save_stall(struct run *run, double since)
{
    double seconds = seconds_now() - since;
    if (run->background->waiting) return;
    run->background->stalled += seconds;
    run->checkpoint_seconds += seconds;
}

/* since: when training began to wait for it. */
static void begin_save(struct run *run, bool here, double since)
{
    struct background_save *b = run->background;
    ASSERT(b->state == SAVE_NONE);
    b->here = here;
    b->writer = save_writer_of(run);
    b->position = run->position;
    b->flush = !here && run->metrics;
    b->asked = since;
    b->began = seconds_now() - b->copied;
    b->attempt = 0;
    b->last = false;
    b->pause = first_pause;
    b->stalled = 0;
    run->deadline.under_way = true;
    begin_save_attempt(run);
}

static void end_save(struct run *run)
{
    checkpoint_saving_free(TAKEN(run->background->saving), true);
    run->background->state = SAVE_NONE;
    run->deadline.under_way = false;
}

/* Notes a complete checkpoint in the run's state, on rank 0 also in the metrics and the log. */
static enum status complete_save(struct run *run, double since, struct error *err)
{
    struct background_save *b = run->background;
    char folder[3400], waited[64] = "";
    snprintf(folder, sizeof folder, "%s/%s", run->folder.checkpoints, checkpoint_saving_name(b->saving));
    const int64_t bytes = checkpoint_saving_bytes(b->saving);
    if (b->attempt > 1 && run->boot->rank == 0) log_info("attempt %d wrote the checkpoint", b->attempt);
    end_save(run);
    deadline_measured(&run->deadline, b->copied + seconds_now() - b->attempt_began);
    note_save_stall(run, since);
    const double seconds = seconds_now() - b->asked, stalled = b->here ? seconds : b->stalled;
    run->saved_step = run->newest_step = b->position.step;
    if (!run->metrics) return STATUS_OK;
    TRY(metrics_checkpoint(run->metrics, folder, b->position.step, bytes, stalled, seconds, err));
    console_break(&run->console);
    if (stalled < seconds) snprintf(waited, sizeof waited, ", training waited for %.2f s of it", stalled);
    log_info("checkpoint %s  %.1f MB in %.2f s%s", folder, (double)bytes / 1e6, seconds, waited);
    return STATUS_OK;
}

/* Seconds left for further attempts, up to the job's end. Only a run's last save may use all of retry_seconds. */
static double save_patience_left(const struct run *run)
{
    const struct background_save *b = run->background;
    double limit = run->spec->checkpoint.retry_seconds;
    if (!b->here || !b->last) limit = fmin(PATIENCE_INTERVAL, limit);
    return fmin(b->began + limit, deadline_latest(&run->deadline)) - seconds_now();
}

static enum status fail_save(struct run *run, enum status status, struct error *err)
{
    struct background_save *b = run->background;
    /* fatal are a folder that is gone or that another run has taken over (STATUS_USAGE), memory, a peer */
    const bool disk = (err->code == STATUS_CHECKPOINT && err->cause != RUN_LOCK_GONE) || error_is_transient(err);
    if (comm_status(run->comm, NULL) != STATUS_OK || !disk) {
        end_save(run);
        return comm_status(run->comm, NULL) == STATUS_OK ? run_agree(run, status, err) : status;
    }
    give_job(b, JOB_DISCARD);
    b->state = SAVE_PAUSED;
    b->next_attempt = seconds_now() + b->pause;
    b->pause = fmin(2 * b->pause, longest_pause);
    b->failure = *err;
    if (run->boot->rank == 0 && b->attempt == 1)
        log_warn("the checkpoint of step %" PRId64 " is tried again for %.0f s: %s", b->position.step,
                 fmax(save_patience_left(run), 0), err->text);
    return STATUS_OK;
}

static enum status give_up_save(struct run *run, struct error *err)
{
    struct background_save *b = run->background;
    end_save(run);
    if (!b->here || !b->last) {
        run->checkpoints_lost++;
        if (run->boot->rank == 0)
            log_warn("the checkpoint of step %" PRId64 " could not be written, training continues without it: %s",
                     b->position.step, b->failure.text);
        return STATUS_OK;
    }
    /* the run ends without its last checkpoint: for how long it was tried, and where the run can be resumed */
    char next[FS_PATH_MAX + 100], before[64] = "";
    *err = b->failure;
    if (run->newest_step >= 0)
        snprintf(next, sizeof next, "--resume %s continues from step %" PRId64 ", its newest checkpoint",
                 run->folder.path, run->newest_step);
    else
        snprintf(next, sizeof next, "the run has no checkpoint yet: start it again as it was started");
    if (run->checkpoints_lost > 0) snprintf(before, sizeof before, ", nor could %d before it", run->checkpoints_lost);
    error_prefix(err,
                 "the checkpoint of step %" PRId64 ", the last one of this start, could not be written in %.0f s%s",
                 b->position.step, seconds_now() - b->began, before);
    size_t used = strlen(err->text);
    if (strstr(err->text, "; hint: "))
        snprintf(err->text + used, sizeof err->text - used, "; then %s", next);
    else
        error_hint(err, "when that works again, %s", next);
    return run_agree(run, err->code, err);
}

enum { BACKGROUND_VOTES = 3 };

/* This rank's values for a vote; 0 if none is being written. */
static void background_save_vote(struct run *run, double votes[BACKGROUND_VOTES])
{
    struct background_save *b = run->background;
    memset(votes, 0, BACKGROUND_VOTES * sizeof *votes);
    if (!b || b->state == SAVE_NONE) return;
    votes[0] = !await_idle(b, 0);
    if (b->state != SAVE_PAUSED || run->boot->rank != 0) return;
    votes[1] = seconds_now() >= b->next_attempt;
    votes[2] = (b->last && !b->here) || save_patience_left(run) <= 0;
}

/* Moves the save on if the sums over the ranks show that no writer works. Collective; all ranks have the same error. */
static enum status background_save_advance(struct run *run, const double sums[BACKGROUND_VOTES], struct error *err)
{
    struct background_save *b = run->background;
    double since = seconds_now();
    bool complete;
    if (!b || b->state == SAVE_NONE || sums[0] > 0) return STATUS_OK;
    if (b->state == SAVE_PAUSED) {
        if (sums[2] > 0) return give_up_save(run, err);
        if (sums[1] > 0) begin_save_attempt(run);
        return STATUS_OK;
    }
    enum status status = checkpoint_saving_agree(b->saving, &complete, err);
    if (status != STATUS_OK) return fail_save(run, status, err);
    if (complete) return complete_save(run, since, err);
    give_job(b, JOB_WORK);
    note_save_stall(run, since);
    return STATUS_OK;
}

enum status background_save_wait(struct run *run, bool last, struct error *err)
{
    struct background_save *b = run->background;
    double since = seconds_now();
    if (!b || b->state == SAVE_NONE) return STATUS_OK;
    b->last = last;
    b->waiting = true;
    while (b->state != SAVE_NONE) {
        double votes[BACKGROUND_VOTES + 1];
        deadline_look_again(&run->deadline); /* the job's end may move meanwhile */
        background_save_vote(run, votes);
        votes[BACKGROUND_VOTES] = stop_signal_pending() != 0;
        TRY(comm_sum(run->comm, votes, COUNT_OF(votes), err));
        run->stop |= votes[BACKGROUND_VOTES] > 0;
        if (run->stop && !b->last && b->here) /* a longer limit applies from now on */
            votes[2] = 0;
        b->last |= run->stop;
        TRY(background_save_advance(run, votes, err));
        const double seconds = b->state == SAVE_PAUSED ? long_glance : votes[0] > 0 ? glance : 0;
        nanosleep(&(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL);
        heartbeat_beat();
    }
    b->waiting = false;
    run->deadline.saved += seconds_now() - since;
    return STATUS_OK;
}

/* ---- the vote on stopping ------------------------------------------------ */

static const double vote_seconds = 1; /* between two votes on stopping within a step, at least */

/* On rank 0: as many micro-batches until the next vote as take vote_seconds at the pace since the last one; at most
 * twice the last interval, as a host that is ahead of its device measures too little time. */
static double next_vote(struct vote *vote)
{
    double now = seconds_now(), most = 2 * (double)(vote->interval > 0 ? vote->interval : 1);
    int64_t done = vote->interval - vote->left;
    double each = done > 0 ? (now - vote->at) / (double)done : INFINITY;
    vote->at = now;
    return fmin(fmax(floor(vote_seconds / each), 1), most);
}

enum status stop_vote(struct run *run, struct error *err)
{
    bool leads = run->boot->rank == 0, near = leads && deadline_is_near(&run->deadline, seconds_now());
    double votes[3 + BACKGROUND_VOTES] = {stop_signal_pending() ? 1.0 : 0.0, near ? 1.0 : 0.0,
                                          leads ? next_vote(&run->vote) : 0};
    background_save_vote(run, &votes[3]);
    const uint64_t entry = flight_begin(FLIGHT_VOTE, -1, 0, -1);
    TRY(comm_sum(run->comm, votes, COUNT_OF(votes), err));
    flight_end(entry);
    run->deadline_near = votes[1] > 0;
    run->stop = votes[0] > 0 || run->deadline_near;
    run->vote.interval = run->vote.left = (int64_t)votes[2];
    return background_save_advance(run, &votes[3], err);
}

/* ---- beginning a save ---------------------------------------------------- */

enum status save_checkpoint(struct run *run, bool last, struct error *err)
{
    struct background_save *b = run->background;
    const double start = seconds_now();
    flight_phase(FLIGHT_CHECKPOINT);
    TRY(background_save_wait(run, last || run->stop, err));
    const bool copies = !last && !run->stop;
    if (copies) TRY(background_save_expect(run, err));
    TRY(integrity_compare_replicas(run, err));   /* a checkpoint takes a slice from each rank: it would be a mixture */
    if (copies && b->memory == COPY_TAKEN_NOW) { /* no step is under way: pinning may wait for it */
        const double waits = seconds_now();
        bool there;
        if (b->taking) pthread_join(b->taker, NULL); /* it has the heartbeats */
        b->taking = false;
        if (b->refusal.code == STATUS_OK) memory_snapshot_place(&run->engine, &b->refusal);
        TRY(agree_on_memory(run, &there, err));
        if (there) b->memory = COPY_THERE;
        run->deadline.saved += seconds_now() - waits;
    }
    if (copies && b->memory == COPY_THERE) { /* while training continues */
        const double copying = seconds_now();
        ASSERT(!run->position.evaluation_due);
        TRY(run_agree(run, zero_take_snapshot(run->engine.zero, err), err));
        b->copied = seconds_now() - copying;
        run->deadline.saved += b->copied;
        begin_save(run, false, start);
        note_save_stall(run, start);
        return STATUS_OK;
    }
    if (run->metrics) TRY(metrics_flush(run->metrics, err));
    const uint64_t entry = flight_begin(FLIGHT_SAVE, -1, 0, -1);
    b->copied = 0;
    b->waiting = true;
    begin_save(run, true, start); /* from the slices themselves */
    const enum status status = background_save_wait(run, last || run->stop, err);
    if (status == STATUS_OK) run->checkpoint_seconds += seconds_now() - start;
    flight_end(entry);
    return status;
}

enum status save_is_due_for_scores(struct run *run, bool *due, struct error *err)
{
    const struct checkpoint_keep keep = save_keep_of(run);
    double best = 0, start = seconds_now();
    *due = false;
    if (!keep.best) return STATUS_OK;
    TRY(background_save_wait(run, false, err)); /* it would be compared with the checkpoints before it alone */
    run->checkpoint_seconds += seconds_now() - start;
    if (run->boot->rank == 0)
        best = checkpoint_is_among_best(run->save_cache, run->folder.checkpoints, &keep, &run->position);
    TRY(comm_sum(run->comm, &best, 1, err));
    *due = best > 0;
    return STATUS_OK;
}

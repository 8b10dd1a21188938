/* background_save.c: see background_save.h. */
#include "cmd/save/background_save.h"

#include "cmd/run/stop_signal.h"
#include "cmd/save/retry_together.h"
#include "cmd/save/save_parts.h"
#include "core/clock.h"
#include "core/faults.h"
#include "core/heartbeat.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/thread.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif

static const double first_pause = 0.2, longest_pause = 10; /* seconds between two attempts */
static const double glance = 0.002;                        /* seconds between two votes of ranks that wait */
enum { WRITER_NICE = 10 };

/* What the writer is given to do. */
enum job { JOB_NONE, JOB_WORK, JOB_DISCARD, JOB_END };

enum state { SAVE_NONE, SAVE_WRITING, SAVE_PAUSED };

struct background_save {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    enum job job;                     /* under the mutex; not JOB_NONE: `saving` and `writer` are the thread's */
    struct checkpoint_saving *saving; /* owned; NULL: none, or discarded */
    struct checkpoint_writer writer;  /* borrows from the run */
    const char *metrics_path;         /* borrowed */
    bool flush;                       /* rank 0: metrics.jsonl, before the first part */
    int threads;                      /* of the writer's team */

    /* The main thread's; `state` is the same on all ranks. */
    enum state state;
    struct train_position position;
    struct error failure; /* of the last attempt */
    bool last;            /* the run ends: no other attempt */
    bool waiting;         /* training waits in background_save_wait(), which the caller counts */
    int attempt;          /* from 1 */
    double asked;         /* seconds_now() when training began to wait for it, maybe for the one before it first */
    double began;         /* when the first attempt did */
    double attempt_began, next_attempt;
    double copied, stalled, pause; /* seconds */
};

/* ---- the writer's thread ------------------------------------------------- */

/* A checkpoint follows the lines of its steps. */
static void flush_metrics(struct background_save *b)
{
    int fd = b->flush ? io_open(b->metrics_path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    if (b->flush && (fd < 0 || fault_fsync(fd)))
        log_warn("cannot flush '%s': %s; its newest lines may be lost; training continues", b->metrics_path,
                 strerror(errno));
    b->flush = false;
    if (fd >= 0)
        io_close(fd);
}

static void do_job(struct background_save *b, enum job job)
{
    if (job == JOB_WORK) {
        flush_metrics(b);
        checkpoint_saving_work(b->saving);
    } else {
        checkpoint_saving_free(b->saving, true);
        b->saving = NULL;
    }
}

static void *write_in_background(void *argument)
{
    struct background_save *b = argument;
    setpriority(PRIO_PROCESS, 0, WRITER_NICE); /* of this thread: those that train come first */
#ifdef _OPENMP
    omp_set_num_threads(b->threads);
#endif
    pthread_mutex_lock(&b->mutex);
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
    pthread_mutex_unlock(&b->mutex);
    return NULL;
}

static bool is_busy(struct background_save *b)
{
    pthread_mutex_lock(&b->mutex);
    bool busy = b->job != JOB_NONE;
    pthread_mutex_unlock(&b->mutex);
    return busy;
}

static void give_job(struct background_save *b, enum job job)
{
    pthread_mutex_lock(&b->mutex);
    b->job = job;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->mutex);
}

enum status background_save_start(struct run *run, struct error *err)
{
    const struct device *device = run->engine.device;
    if (!zero_has_snapshot(run->engine.zero))
        return STATUS_OK;
    struct background_save *b = memory_zeroed(1, sizeof *b);
    pthread_mutex_init(&b->mutex, NULL);
    condition_init(&b->changed);
    b->threads = device->kind == DEVICE_CPU ? 1 : device->threads; /* the CPU device trains on all of them */
    int code = thread_start(&b->thread, 0, write_in_background, b);
    if (code) {
        pthread_cond_destroy(&b->changed);
        pthread_mutex_destroy(&b->mutex);
        free(b);
        return error_system(err, STATUS_DEVICE, code, "cannot start the thread that writes checkpoints");
    }
    run->background = b;
    return STATUS_OK;
}

/* Waits until the thread has no job. false: it still has one after `seconds`. */
static bool await_idle(struct background_save *b, double seconds)
{
    const struct timespec until = time_after(seconds);
    pthread_mutex_lock(&b->mutex);
    while (b->job != JOB_NONE && pthread_cond_timedwait(&b->changed, &b->mutex, &until) != ETIMEDOUT)
        continue;
    bool idle = b->job == JOB_NONE;
    pthread_mutex_unlock(&b->mutex);
    return idle;
}

bool background_save_end(struct run *run, double seconds)
{
    struct background_save *b = run->background;
    if (!b)
        return true;
    if (!await_idle(b, seconds))
        return false;
    give_job(b, JOB_END);
    pthread_join(b->thread, NULL);
    checkpoint_saving_free(b->saving, false);
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->mutex);
    free(b);
    run->background = NULL;
    return true;
}

/* ---- a save -------------------------------------------------------------- */

static void begin_attempt(struct run *run)
{
    struct background_save *b = run->background;
    checkpoint_saving_new(&b->writer, &b->position, zero_snapshot(run->engine.zero), &b->saving);
    b->attempt++;
    b->attempt_began = seconds_now();
    b->state = SAVE_WRITING;
    give_job(b, JOB_WORK);
}

/* Training has waited since `since`. */
static void note_stall(struct run *run, double since)
{
    double seconds = seconds_now() - since;
    if (run->background->waiting)
        return;
    run->background->stalled += seconds;
    run->checkpoint_seconds += seconds;
}

enum status background_save_begin(struct run *run, double since, struct error *err)
{
    struct background_save *b = run->background;
    ASSERT(b->state == SAVE_NONE && !run->position.evaluation_due);
    double start = seconds_now();
    TRY(run_agree(run, zero_take_snapshot(run->engine.zero, err), err));
    b->copied = seconds_now() - start;
    deadline_waited(&run->deadline, b->copied);
    b->writer = save_writer_of(run);
    b->position = run->position;
    b->flush = run->metrics != NULL;
    b->metrics_path = run->folder.metrics;
    b->asked = since;
    b->began = start;
    b->attempt = 0;
    b->last = false;
    b->pause = first_pause;
    b->stalled = 0;
    deadline_expect(&run->deadline, true);
    begin_attempt(run);
    note_stall(run, since);
    return STATUS_OK;
}

static void end_save(struct run *run)
{
    struct background_save *b = run->background;
    checkpoint_saving_free(b->saving, true);
    b->saving = NULL;
    b->state = SAVE_NONE;
    deadline_expect(&run->deadline, false);
}

static enum status complete_save(struct run *run, double since, struct error *err)
{
    struct background_save *b = run->background;
    char name[64];
    snprintf(name, sizeof name, "%s", checkpoint_saving_name(b->saving));
    const int64_t bytes = checkpoint_saving_bytes(b->saving);
    if (b->attempt > 1 && run->boot->rank == 0)
        log_info("attempt %d wrote the checkpoint", b->attempt);
    end_save(run);
    deadline_measured(&run->deadline, b->copied + seconds_now() - b->attempt_began);
    note_stall(run, since);
    const struct saved saved = {name, b->position.step, bytes, b->stalled, seconds_now() - b->asked};
    return save_report(run, &saved, err);
}

static double patience_left(const struct run *run)
{
    const struct background_save *b = run->background;
    double limit = fmin(PATIENCE_INTERVAL, run->spec->checkpoint.retry_seconds);
    return fmin(b->began + limit, deadline_latest(&run->deadline)) - seconds_now();
}

/* The save has failed on all ranks. */
static enum status fail_save(struct run *run, enum status status, struct error *err)
{
    struct background_save *b = run->background;
    if (comm_status(run->comm, NULL) != STATUS_OK || !save_is_disk_error(err)) {
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
                 fmax(patience_left(run), 0), err->text);
    return STATUS_OK;
}

static void give_up(struct run *run)
{
    struct background_save *b = run->background;
    end_save(run);
    run->checkpoints_lost++;
    if (run->boot->rank == 0)
        log_warn("the checkpoint of step %" PRId64 " could not be written, training continues without it: %s",
                 b->position.step, b->failure.text);
}

void background_save_vote(struct run *run, double votes[BACKGROUND_VOTES])
{
    struct background_save *b = run->background;
    memset(votes, 0, BACKGROUND_VOTES * sizeof *votes);
    if (!b || b->state == SAVE_NONE)
        return;
    votes[0] = is_busy(b) ? 1 : 0;
    if (b->state != SAVE_PAUSED || run->boot->rank != 0)
        return;
    votes[1] = seconds_now() >= b->next_attempt ? 1 : 0;
    votes[2] = b->last || patience_left(run) <= 0 ? 1 : 0;
}

enum status background_save_advance(struct run *run, const double sums[BACKGROUND_VOTES], struct error *err)
{
    struct background_save *b = run->background;
    double since = seconds_now();
    bool complete;
    if (!b || b->state == SAVE_NONE || sums[0] > 0)
        return STATUS_OK;
    if (b->state == SAVE_PAUSED) {
        if (sums[2] > 0)
            give_up(run);
        else if (sums[1] > 0)
            begin_attempt(run);
        return STATUS_OK;
    }
    enum status status = checkpoint_saving_agree(b->saving, &complete, err);
    if (status != STATUS_OK)
        return fail_save(run, status, err);
    if (complete)
        return complete_save(run, since, err);
    give_job(b, JOB_WORK);
    note_stall(run, since);
    return STATUS_OK;
}

enum status background_save_wait(struct run *run, bool last, struct error *err)
{
    struct background_save *b = run->background;
    double since = seconds_now();
    if (!b || b->state == SAVE_NONE)
        return STATUS_OK;
    b->last = last;
    b->waiting = true;
    while (b->state != SAVE_NONE) {
        const struct timespec pause = {.tv_nsec = (long)(glance * 1e9)};
        double votes[BACKGROUND_VOTES + 1];
        background_save_vote(run, votes);
        votes[BACKGROUND_VOTES] = stop_signal_pending() ? 1 : 0;
        TRY(comm_sum(run->comm, votes, COUNT_OF(votes), err));
        run->stop |= votes[BACKGROUND_VOTES] > 0;
        b->last |= run->stop;
        TRY(background_save_advance(run, votes, err));
        if (votes[0] > 0 || b->state == SAVE_PAUSED)
            nanosleep(&pause, NULL);
        heartbeat_beat();
    }
    b->waiting = false;
    deadline_waited(&run->deadline, seconds_now() - since);
    return STATUS_OK;
}

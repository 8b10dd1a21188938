/* SPDX-License-Identifier: Apache-2.0 */
/* flight_recorder.c: see flight_recorder.h. The thread looks five times a second; requests wake it. It makes its system
 * calls directly, not through core/io.h: a file that hangs is to end no run, and faults on purpose are not for it. */
#include "cmd/observe/flight_recorder.h"

#include "cmd/run/stop_signal.h"
#include "core/flight/flight_file.h"

#include <signal.h>

enum { KEPT_STARTS = 4, PATH_BYTES = FS_PATH_MAX };

static const double look_seconds = 0.2, files_a_second = 64;
static const double fail_patience = 2, stop_patience = 1; /* seconds */
static const double stall_factor = 5;                     /* median steps */

/* One in a process; static, since a thread that hangs in a write outlives the run. */
static struct {
    pthread_t thread;
    pthread_mutex_t mutex; /* guards what follows up to `head` */
    pthread_cond_t changed;
    bool runs, ended, stop, failed, written; /* failed: a record of the failure is asked for; written: it was */
    bool abandoned;                          /* the thread hangs in a write, and comm may be gone when that returns */
    struct flight_head head;
    struct comm *comm; /* borrowed; its ring stays mapped until the process ends */
    struct flight_ring *ring;
    double timeout;
    char folder[PATH_BYTES], start[FLIGHT_START_BYTES];

    /* the thread's */
    struct flight_file file, other;
    struct flight_image image;
    struct flight_head copy; /* of head, while a file is written */
    double renewed_at;
    int64_t stalled_step;
    int quits;
    bool warned;
} recorder = {.mutex = PTHREAD_MUTEX_INITIALIZER, .file = {.fd = -1}, .other = {.fd = -1}};

static atomic_int quits; /* SIGQUITs so far */

static void recorder_take_quit(int signal_number)
{
    (void)signal_number;
    atomic_fetch_add(&quits, 1);
}

/* ---- files --------------------------------------------------------------- */

static void record_path(int rank, char path[PATH_BYTES + 64])
{
    snprintf(path, PATH_BYTES + 64, "%s/%s/rank-%05d.ring", recorder.folder, recorder.start, rank);
}

static void recorder_stamp(struct flight_head *head)
{
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    head->written = flight_clock();
    head->wall = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec;
}

static void write_own_record(void)
{
    char path[PATH_BYTES + 64];
    const bool there = recorder.file.fd >= 0;
    int reason = 0;
    recorder_stamp(&recorder.copy);
    snprintf(path, sizeof path, "%s/%s", recorder.folder, recorder.start);
    if (!there && ((mkdir(recorder.folder, 0777) && errno != EEXIST) || (mkdir(path, 0777) && errno != EEXIST)))
        reason = errno;
    record_path(recorder.copy.rank, path);
    if (!reason)
        reason = there ? flight_file_renew(&recorder.file, &recorder.copy, &recorder.image)
                       : flight_file_create(&recorder.file, path, &recorder.copy, &recorder.image);
    recorder.renewed_at = seconds_now();
    if (reason && !recorder.warned)
        log_warn("the flight record '%s' cannot be written, training continues without it: %s", path, strerror(reason));
    recorder.warned |= reason != 0;
}

/* The neighbour with local rank `local`, if there is one and comm is still there. */
static bool recorder_peer(int local, struct flight_peer *peer)
{
    LOCKED(&recorder.mutex);
    const bool there = !recorder.abandoned && local < comm_flight_peers(recorder.comm);
    if (there) *peer = comm_flight_peer(recorder.comm, local);
    return there;
}

/* Writes the records of neighbours that cannot do it: their processes are gone, stopped, or stuck in the kernel. */
static void write_neighbours_records(void)
{
    struct flight_peer peer;
    char path[PATH_BYTES + 64];
    for (int l = 0; recorder_peer(l, &peer); l++) {
        int64_t began;
        const char state = machine_process(peer.pid, &began);
        if (peer.rank == recorder.copy.rank || peer.left || (state != 'X' && state != 'T' && state != 'D')) continue;
        struct flight_head head = {.rank = peer.rank,
                                   .world = recorder.copy.world,
                                   .pid = peer.pid,
                                   .culprit = -1,
                                   .witness = recorder.copy.rank,
                                   .process = state,
                                   .bad_rank = -1,
                                   .asked = recorder.copy.asked,
                                   .interval = recorder.copy.interval};
        snprintf(head.host, sizeof head.host, "%s", peer.host);
        recorder_stamp(&head);
        flight_copy(peer.ring, &recorder.image);
        record_path(peer.rank, path);
        if (flight_file_create(&recorder.other, path, &head, &recorder.image) == 0) flight_file_close(&recorder.other);
    }
}

/* ---- earlier starts ------------------------------------------------------ */

/* Deletes a start's records, or only what a rank that was killed has left half made; then the folder, if it is empty. A
 * rank of another node that is slow to die merely makes its record again. */
static void recorder_sweep(const char *name, bool records)
{
    char path[PATH_BYTES + 300];
    snprintf(path, sizeof path, "%s/%s", recorder.folder, name);
    DIR *entries = opendir(path);
    if (!entries) return;
    for (struct dirent *entry; (entry = readdir(entries));)
        if (!strncmp(entry->d_name, "rank-", 5) && (records || strstr(entry->d_name, FLIGHT_FILE_TORN)))
            unlinkat(dirfd(entries), entry->d_name, 0);
    closedir(entries);
    rmdir(path);
}

/* Rank 0: whether there are other starts. The records of the newest stay. */
static bool sweep_other_flight_starts(void)
{
    struct dirent **names;
    bool others = false;
    int count = flight_starts(recorder.folder, &names);
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i]->d_name, recorder.start) != 0) { /* there other ranks are at work already */
            others = true;
            recorder_sweep(names[i]->d_name, i < count - KEPT_STARTS);
        }
        free(names[i]);
    }
    if (count >= 0) free(names);
    return others;
}

/* ---- the thread ---------------------------------------------------------- */

/* Whether the step takes much longer than those before it; told once. */
static bool recorder_sees_stall(void)
{
    const struct flight_image *image = &recorder.image;
    const int64_t median = flight_median_step(image), now = flight_clock();
    const double seconds = 1e-9 * (double)(now - (int64_t)image->phase_since), usual = 1e-9 * (double)median;
    if (image->phase != FLIGHT_STEP || !median || recorder.stalled_step == (int64_t)image->step) return false;
    if (seconds < stall_factor * usual || seconds < recorder.timeout / 2) return false;
    recorder.stalled_step = (int64_t)image->step;
    if (recorder.copy.rank == 0)
        log_warn("step %" PRIu64 " has taken %.3g s so far, the steps before it took %.3g s; hint: ztrain why RUN "
                 "names the rank that the others wait for",
                 image->step, seconds, usual);
    return true;
}

/* One look; the mutex is held but for the writing. */
static void recorder_look(void)
{
    const bool failure = recorder.failed && !recorder.written, stop = recorder.stop;
    flight_copy(recorder.ring, &recorder.image);
    heartbeat_slow_describe(recorder.head.waiting, sizeof recorder.head.waiting);
    const int seen = atomic_load(&quits);
    const bool quit = seen != recorder.quits;
    recorder.quits = seen;
    const bool asked = stop_signal_pending() != recorder.head.asked;
    recorder.head.asked = stop_signal_pending();
    recorder.copy = recorder.head;
    pthread_mutex_unlock(&recorder.mutex);
    const bool stalls = !failure && !stop && recorder_sees_stall();
    if (quit || stalls)
        recorder.copy.reason = recorder.copy.reason == FLIGHT_FAILURE ? FLIGHT_FAILURE
                               : quit                                 ? FLIGHT_QUIT
                                                                      : FLIGHT_STALL;
    if (quit || stalls || failure || asked || seconds_now() - recorder.renewed_at >= recorder.copy.interval)
        write_own_record();
    if (quit && recorder.copy.rank == 0)
        log_info("SIGQUIT: the ranks' flight records are in %s/%s; ztrain why reads them", recorder.folder,
                 recorder.start);
    if (failure) write_neighbours_records();
    pthread_mutex_lock(&recorder.mutex);
    if (recorder.head.reason != FLIGHT_FAILURE) recorder.head.reason = recorder.copy.reason;
    recorder.written |= failure;
    pthread_cond_broadcast(&recorder.changed);
}

static void *recorder_loop(void *unused)
{
    char path[PATH_BYTES + 64];
    (void)unused;
    pthread_setname_np(pthread_self(), "ztrain-flight");
    if (recorder.head.rank == 0) sweep_other_flight_starts();
    pthread_mutex_lock(&recorder.mutex);
    while (!recorder.stop) {
        recorder_look();
        const double end = seconds_now() + look_seconds; /* of the rest until the next look, or a signal to stop */
        while (!recorder.stop && !(recorder.failed && !recorder.written) && seconds_now() < end &&
               stop_signal_pending() == recorder.head.asked) {
            const struct timespec until = time_after(look_seconds / 8);
            pthread_cond_timedwait(&recorder.changed, &recorder.mutex, &until);
        }
    }
    recorder.copy = recorder.head;
    pthread_mutex_unlock(&recorder.mutex);
    if (recorder.copy.reason != FLIGHT_FAILURE && recorder.copy.rank == 0) {
        struct flight_end end = {.wall = (int64_t)time(NULL)};
        snprintf(end.start, sizeof end.start, "%s", recorder.start);
        /* noted where an earlier start's records would look like the run's end */
        const int reason = sweep_other_flight_starts() ? flight_ended_write(recorder.folder, &end)
                                                       : flight_ended_delete(recorder.folder);
        if (reason && !recorder.warned)
            log_warn("cannot write '%s/ended', so ztrain why does not learn that the run ended in order: %s",
                     recorder.folder, strerror(reason));
    }
    if (recorder.copy.reason == FLIGHT_RUNNING) { /* in order: the record goes */
        flight_file_close(&recorder.file);
        record_path(recorder.copy.rank, path);
        unlink(path);
        snprintf(path, sizeof path, "%s/%s", recorder.folder, recorder.start);
        rmdir(path);
        rmdir(recorder.folder);
    } else if (recorder.copy.reason != FLIGHT_FAILURE) {
        flight_copy(recorder.ring, &recorder.image);
        recorder.copy.reason = FLIGHT_ENDED;
        write_own_record();
    }
    flight_file_close(&recorder.file);
    thread_tell(&recorder.ended, &recorder.mutex, &recorder.changed);
    return NULL;
}

/* ---- for the run --------------------------------------------------------- */

void flight_recorder_take_quits(void)
{
    const struct sigaction action = {.sa_handler = recorder_take_quit, .sa_flags = SA_RESTART};
    sigset_t quit;
    sigaction(SIGQUIT, &action, NULL);
    sigemptyset(&quit);
    sigaddset(&quit, SIGQUIT);
    pthread_sigmask(SIG_UNBLOCK, &quit, NULL); /* a supervisor starts its ranks with it blocked */
}

enum status flight_recorder_start(struct run *run, struct error *err)
{
    const double interval = run->boot->world / files_a_second;
    struct timespec now;
    ASSERT(!recorder.runs);
    recorder.comm = run->comm;
    recorder.ring = comm_flight_ring(run->comm);
    recorder.timeout = run->spec->comm.timeout_seconds;
    recorder.head = (struct flight_head){.rank = run->boot->rank,
                                         .world = run->boot->world,
                                         .pid = (int)getpid(),
                                         .culprit = -1,
                                         .witness = -1,
                                         .process = '?',
                                         .bad_rank = -1,
                                         .interval = interval > 1 ? interval : 1};
    snprintf(recorder.head.host, sizeof recorder.head.host, "%.63s", run->boot->host);
    snprintf(recorder.folder, sizeof recorder.folder, "%s/flight", run->folder.path);
    clock_gettime(CLOCK_REALTIME, &now);
    if (run->boot->rank == 0) /* it names the start */
        flight_start_name(flight_start_next(recorder.folder), now, recorder.start);
    TRY(comm_broadcast(run->comm, recorder.start, sizeof recorder.start, 0, err));
    flight_use(recorder.ring);
    flight_phase(FLIGHT_PREPARE);
    condition_init(&recorder.changed);
    int error = thread_start(&recorder.thread, 0, recorder_loop, NULL);
    recorder.runs = error == 0;
    if (error) log_warn("no flight record: cannot start a thread: %s", strerror(error));
    return STATUS_OK;
}

static void recorder_await(const bool *done, double seconds)
{
    const double end = seconds_now() + seconds;
    while (!*done && seconds_now() < end) {
        const struct timespec until = time_after(look_seconds);
        pthread_cond_timedwait(&recorder.changed, &recorder.mutex, &until);
        heartbeat_beat();
    }
}

void flight_recorder_fail(enum status status, const struct error *err)
{
    struct error job;
    if (!recorder.runs) return;
    LOCKED(&recorder.mutex);
    recorder.head.reason = FLIGHT_FAILURE;
    recorder.head.code = (int)status;
    recorder.head.culprit = err->rank;
    recorder.head.failure = err->failure;
    if (comm_status(recorder.comm, &job) != STATUS_OK && job.failure == FAILURE_ERROR) { /* perhaps this rank's own */
        recorder.head.culprit = job.rank;
        if (job.rank != recorder.head.rank || err->failure != FAILURE_SOFTWARE) recorder.head.failure = job.failure;
    }
    snprintf(recorder.head.error, sizeof recorder.head.error, "%.1023s", err->text);
    recorder.failed = true;
    pthread_cond_broadcast(&recorder.changed);
    recorder_await(&recorder.written, fail_patience);
}

void flight_recorder_bad_step(int64_t step, bool first, int rank, const char *tensor)
{
    if (!recorder.runs) return;
    LOCKED(&recorder.mutex);
    struct flight_head *head = &recorder.head;
    if (first || !head->bad_first) {
        head->bad_first = step;
        head->bad_rank = rank;
        snprintf(head->bad_tensor, sizeof head->bad_tensor, "%s", tensor);
    }
    head->bad_last = step;
}

void flight_recorder_stop(void)
{
    if (!recorder.runs) return;
    pthread_mutex_lock(&recorder.mutex);
    recorder.stop = true;
    pthread_cond_broadcast(&recorder.changed);
    recorder_await(&recorder.ended, stop_patience);
    const bool ended = recorder.ended;
    recorder.abandoned = !ended;
    pthread_mutex_unlock(&recorder.mutex);
    if (ended)
        pthread_join(recorder.thread, NULL);
    else /* it hangs in a write, and ends with the process */
        pthread_detach(recorder.thread);
    recorder.runs = false;
}

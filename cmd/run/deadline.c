/* SPDX-License-Identifier: Apache-2.0 */
/* deadline.c: see deadline.h. squeue may take long or hang, so a thread starts it and waits, one at a time. */
#include "cmd/run/deadline.h"

#include "core/core.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

static const double answer_limit = 5;   /* seconds for squeue to answer */
static const double tick = 0.1;         /* seconds between two heartbeats meanwhile */
static const double farewell_limit = 1; /* seconds for the thread to end */

enum { ANSWER_BYTES = 16384 }; /* a line for each task of an array */

struct squeue {
    char job[32];
    char **environment; /* of squeue: this process's at first; owned, but for its texts */
    double period;      /* seconds */
    bool runs;          /* the thread */
    pthread_t thread;
    pthread_mutex_t mutex; /* of all members below */
    pthread_cond_t changed;
    atomic_bool closing; /* the thread is asked to end */
    bool over;           /* the thread no longer uses this struct */
    bool news;
    double end; /* seconds since 1970 */
};

/* Parses "1795282200" or "2026-11-21T17:30:00" (local time); false for other text. *end: seconds since 1970. */
static bool squeue_parse_end(const char *text, double *end)
{
    char *rest;
    struct tm parts = {.tm_isdst = -1};
    errno = 0;
    long long number = strtoll(text, &rest, 10);
    if (!errno && rest != text && number > 0 && (*rest == 0 || *rest == '\n')) {
        *end = (double)number;
        return true;
    }
    rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &parts);
    if (!rest || (*rest && *rest != '\n')) return false;
    time_t time = mktime(&parts);
    *end = (double)time;
    return time > 0;
}

/* ---- one question -------------------------------------------------------- */

/* squeue must not see variables that would change its answer or make it take itself for a rank, nor ztrain's own. */
static char **squeue_environment(void)
{
    static const char *const kept_from_it[] = {"SLURM_TIME_FORMAT=", "SQUEUE_", "PMI", "ZTRAIN_"};
    static char format[] = "SLURM_TIME_FORMAT=%s"; /* since 1970: local time is not unique when clocks are set back */
    size_t count = 0, kept = 0;
    while (environ[count]) count++;
    char **variables = memory_zeroed(count + 2, sizeof *variables);
    for (size_t i = 0; i < count; i++) {
        size_t k = 0;
        while (k < COUNT_OF(kept_from_it) && strncmp(environ[i], kept_from_it[k], strlen(kept_from_it[k])) != 0) k++;
        if (k == COUNT_OF(kept_from_it)) variables[kept++] = environ[i];
    }
    variables[kept] = format;
    return variables;
}

/* Reads the output until its end, the limit, or deadline_release(); terminates the text. */
static void read_squeue_answer(struct squeue *squeue, int fd, char *text, size_t size)
{
    size_t used = 0;
    double end = seconds_now() + answer_limit, left = answer_limit;
    while (left > 0 && used + 1 < size && !squeue->closing) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        int events = poll(&ready, 1, left < tick ? (int)(left * 1000) + 1 : (int)(tick * 1000));
        if (!squeue->runs) /* the thread is no evidence that the rank is alive */
            heartbeat_beat();
        if (events > 0) {
            ssize_t n = read(fd, text + used, size - 1 - used);
            if (n == 0 || (n < 0 && errno != EINTR)) break;
            used += n > 0 ? (size_t)n : 0;
        }
        left = end - seconds_now();
    }
    text[used] = 0;
}

/* Starts squeue with its output to `out` and default signal handling. Returns 0 or an errno. */
static int start_squeue(struct squeue *squeue, int out, pid_t *child)
{
    char *const arguments[] = {(char *)"squeue", (char *)"-h",    (char *)"-j", squeue->job,
                               (char *)"-o",     (char *)"%A %e", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    posix_spawn_file_actions_init(&actions);
    /* without memory for this squeue is not started: it would write to the wrong descriptor */
    int error = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (!error) error = posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    if (!error) error = posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
#if defined(__GLIBC__) && defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 34)
    if (!error) error = posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
#endif
#endif
    if (!error) error = posix_spawnp(child, "squeue", &actions, &attributes, arguments, squeue->environment);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return error;
}

/* Asks, and waits for the answer: in the main thread with heartbeats. *absent: PATH has no squeue. */
static bool ask_squeue(struct squeue *squeue, bool *absent, double *end)
{
    char text[ANSWER_BYTES] = "", *rest;
    const size_t length = strlen(squeue->job);
    int ends[2];
    pid_t child = -1;
    *absent = false;
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    int error = start_squeue(squeue, ends[1], &child);
    *absent = error == ENOENT;
    close(ends[1]);
    if (error == 0) {
        read_squeue_answer(squeue, ends[0], text, sizeof text);
        if (waitpid(child, NULL, WNOHANG) == 0) { /* it has answered, or is too slow */
            kill(child, SIGKILL);
            while (waitpid(child, NULL, 0) < 0 && errno == EINTR) continue;
        }
    }
    close(ends[0]);
    /* the job's line: the number of an array's task may also be that of the whole array */
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        if (!strncmp(line, squeue->job, length) && line[length] == ' ' && squeue_parse_end(line + length + 1, end))
            return true;
    return false;
}

/* ---- the thread ---------------------------------------------------------- */

/* Asks once a period, the first time after one, until PATH has no squeue. */
static void *ask_squeue_until_end(void *argument)
{
    struct squeue *squeue = argument;
    bool absent = false;
    pthread_setname_np(pthread_self(), "ztrain-squeue");
    LOCKED(&squeue->mutex);
    while (!absent) {
        const struct timespec until = time_after(squeue->period);
        double end;
        while (!squeue->closing && pthread_cond_timedwait(&squeue->changed, &squeue->mutex, &until) != ETIMEDOUT)
            continue;
        if (squeue->closing) break;
        pthread_mutex_unlock(&squeue->mutex);
        bool answered = ask_squeue(squeue, &absent, &end);
        pthread_mutex_lock(&squeue->mutex);
        if (answered) {
            squeue->end = end;
            squeue->news = true;
        }
    }
    squeue->over = true;
    pthread_cond_broadcast(&squeue->changed);
    return NULL;
}

void deadline_release(struct deadline *deadline)
{
    struct squeue *squeue = TAKEN(deadline->squeue);
    if (!squeue) return;
    if (squeue->runs) {
        const struct timespec until = time_after(farewell_limit);
        pthread_mutex_lock(&squeue->mutex);
        squeue->closing = true;
        pthread_cond_broadcast(&squeue->changed);
        while (!squeue->over && pthread_cond_timedwait(&squeue->changed, &squeue->mutex, &until) != ETIMEDOUT) continue;
        bool over = squeue->over;
        pthread_mutex_unlock(&squeue->mutex);
        if (!over) { /* the system takes that long to start or end squeue; the thread keeps its memory */
            pthread_detach(squeue->thread);
            return;
        }
        pthread_join(squeue->thread, NULL);
    }
    pthread_cond_destroy(&squeue->changed);
    pthread_mutex_destroy(&squeue->mutex);
    free(squeue->environment);
    free(squeue);
}

/* ---- the deadline -------------------------------------------------------- */

static const double reserve = 10; /* seconds, for a slow step, a slow file system, clocks of two machines that differ */
static const double no_limit = 5 * 365 * 86400.0; /* seconds to the end of a job that has no limit */
static const double same_end = 5; /* seconds; Slurm's answers differ by less while the limit stays the same */
static const double checkpoint_slack = 2, step_slack = 1.25;

void deadline_init(struct deadline *deadline, double expected_checkpoint, double period)
{
    *deadline = (struct deadline){.end = INFINITY, .checkpoint = expected_checkpoint};
    const char *job = getenv("SLURM_JOB_ID"), *given = getenv("SLURM_JOB_END_TIME"), *source = "SLURM_JOB_END_TIME";
    double end;
    char when[32];
    bool absent;
    if (!job) return;
    struct squeue *squeue = deadline->squeue = memory_zeroed(1, sizeof *squeue);
    snprintf(squeue->job, sizeof squeue->job, "%s", job);
    squeue->environment = squeue_environment();
    squeue->period = period;
    pthread_mutex_init(&squeue->mutex, NULL);
    condition_init(&squeue->changed);
    bool limited = given && squeue_parse_end(given, &end);
    if (!limited) {
        source = "squeue";
        limited = ask_squeue(squeue, &absent, &end);
    }
    const double left = limited ? end - clock_seconds(CLOCK_REALTIME) : no_limit;
    if (left < no_limit) {
        log_detail("job %s ends at %s (%s), in %.0f s: a checkpoint will be written in time", job,
                   clock_date(end, when), source, left);
        deadline->end = seconds_now() + left;
    } else if (!limited) {
        log_detail("job %s has no time limit", job);
    }
    squeue->runs = true; /* the thread reads it */
    if (thread_start(&squeue->thread, 0, ask_squeue_until_end, squeue) != 0) squeue->runs = false;
}

void deadline_look_again(struct deadline *deadline)
{
    struct squeue *squeue = deadline->squeue;
    char when[32];
    if (!squeue) return;
    pthread_mutex_lock(&squeue->mutex); /* the thread holds it only for moments */
    const bool news = squeue->news;
    const double end = squeue->end, left = end - clock_seconds(CLOCK_REALTIME);
    squeue->news = false;
    pthread_mutex_unlock(&squeue->mutex);
    const double found = left < no_limit ? seconds_now() + left : INFINITY;
    if (!news || found == deadline->end || fabs(found - deadline->end) < same_end) return;
    if (isinf(found))
        log_info("job %s no longer has a time limit (squeue)", squeue->job);
    else
        log_info("job %s ends at %s now (squeue), in %.0f s%s", squeue->job, clock_date(end, when), left,
                 found < deadline->end ? ", earlier than before" : ", later than before");
    deadline->end = found;
}

bool deadline_is_near(struct deadline *deadline, double now)
{
    deadline_look_again(deadline);
    if (deadline->looked > 0) {
        double step = now - deadline->looked - deadline->saved;
        deadline->longest = step > deadline->longest ? step : deadline->longest;
    }
    deadline->looked = now;
    deadline->saved = 0;
    const double checkpoints = (deadline->under_way ? 2 : 1) * checkpoint_slack * deadline->checkpoint;
    return now + step_slack * deadline->longest + checkpoints + reserve >= deadline->end;
}

double deadline_latest(const struct deadline *deadline)
{
    return deadline->end - checkpoint_slack * deadline->checkpoint;
}

void deadline_measured(struct deadline *deadline, double seconds)
{
    deadline->checkpoint = seconds > deadline->checkpoint || deadline->checkpoint <= 0
                               ? seconds
                               : 0.5 * (deadline->checkpoint + seconds); /* the expectation wears off */
}

#include "cmd/deadline.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static const double reserve = 10;     /* seconds: a slow step, a slow file system, the clocks of two machines */
static const double squeue_limit = 5; /* seconds for squeue to answer */
static const double tick = 0.1;       /* seconds between two signs of life meanwhile */
static const double checkpoint_slack = 2, step_slack = 1.25;

/* By the clock that people set: Slurm's times are in it. */
static double seconds_since_1970(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Seconds since 1970 from SLURM_JOB_END_TIME's "1795282200" or squeue's "2026-11-21T17:30:00" (local time); false: it
 * is neither ("NONE", "N/A"). */
static bool parse_end(const char *text, double *seconds)
{
    char *rest;
    struct tm parts = {.tm_isdst = -1};
    errno = 0;
    long long number = strtoll(text, &rest, 10);
    if (!errno && rest != text && number > 0 && (*rest == 0 || *rest == '\n')) {
        *seconds = (double)number;
        return true;
    }
    rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &parts);
    if (!rest || (*rest && *rest != '\n'))
        return false;
    time_t time = mktime(&parts);
    *seconds = (double)time;
    return time > 0;
}

/* Whether squeue is to see the variable: not what would change its answer, make it take itself for a rank, or is none
 * of its business. */
static bool for_squeue(const char *variable)
{
    static const char *const kept_from_it[] = {"SLURM_TIME_FORMAT=", "SQUEUE_", "PMI", "ZTRAIN_"};
    for (size_t i = 0; i < COUNT_OF(kept_from_it); i++)
        if (!strncmp(variable, kept_from_it[i], strlen(kept_from_it[i])))
            return false;
    return true;
}

/* Caller frees the array. */
static char **squeue_environment(void)
{
    static char format[] = "SLURM_TIME_FORMAT=standard";
    size_t count = 0, kept = 0;
    while (environ[count])
        count++;
    char **variables = memory_zeroed(count + 2, sizeof *variables);
    for (size_t i = 0; i < count; i++)
        if (for_squeue(environ[i]))
            variables[kept++] = environ[i];
    variables[kept] = format;
    return variables;
}

/* Reads what comes until the end or the limit; the text has a terminator. Ticks: the other ranks may wait for us. */
static void read_until(int fd, double limit, char *text, size_t size)
{
    size_t used = 0;
    double end = seconds_now() + limit, left = limit;
    while (left > 0 && used + 1 < size) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        int events = poll(&ready, 1, left < tick ? (int)(left * 1000) + 1 : (int)(tick * 1000));
        progress_tick();
        if (events > 0) {
            ssize_t n = read(fd, text + used, size - 1 - used);
            if (n == 0 || (n < 0 && errno != EINTR))
                break;
            used += n > 0 ? (size_t)n : 0;
        }
        left = end - seconds_now();
    }
    text[used] = 0;
}

static bool ask_squeue(const char *job, double *seconds)
{
    char *const arguments[] = {(char *)"squeue", (char *)"-h", (char *)"-j", (char *)job,
                               (char *)"-o",     (char *)"%e", NULL};
    char **variables = squeue_environment(), text[64] = "";
    posix_spawn_file_actions_t actions;
    int ends[2];
    pid_t child = -1;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        free(variables);
        return false;
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
#if defined(__GLIBC__) && defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 34)
    posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
#endif
#endif
    int error = posix_spawnp(&child, "squeue", &actions, NULL, arguments, variables);
    posix_spawn_file_actions_destroy(&actions);
    free(variables);
    close(ends[1]);
    if (error == 0) {
        read_until(ends[0], squeue_limit, text, sizeof text);
        kill(child, SIGKILL); /* it has said what we wanted, or is too slow */
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    close(ends[0]);
    return parse_end(text, seconds);
}

void deadline_init(struct deadline *deadline, double expected_checkpoint)
{
    *deadline = (struct deadline){.end = INFINITY, .checkpoint = expected_checkpoint};
    const char *job = getenv("SLURM_JOB_ID"), *given = getenv("SLURM_JOB_END_TIME"), *source = "SLURM_JOB_END_TIME";
    double end;
    if (!job)
        return;
    if (!given || !parse_end(given, &end)) {
        source = "squeue";
        if (!ask_squeue(job, &end)) {
            log_info("Slurm knows of no end of job %s", job);
            return;
        }
    }
    double left = end - seconds_since_1970();
    if (left > 5 * 365 * 86400.0) /* no limit */
        return;
    time_t second = (time_t)end;
    struct tm parts;
    char when[32];
    localtime_r(&second, &parts);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &parts);
    log_info("job %s ends at %s (%s), in %.0f s: a checkpoint is made in time", job, when, source, left);
    deadline->end = seconds_now() + left;
}

bool deadline_is_near(struct deadline *deadline, double now)
{
    if (deadline->looked > 0) {
        double step = now - deadline->looked - deadline->saved;
        deadline->longest = step > deadline->longest ? step : deadline->longest;
    }
    deadline->looked = now;
    deadline->saved = 0;
    return now + step_slack * deadline->longest + checkpoint_slack * deadline->checkpoint + reserve >= deadline->end;
}

double deadline_latest(const struct deadline *deadline)
{
    return deadline->end - checkpoint_slack * deadline->checkpoint;
}

void deadline_waited(struct deadline *deadline, double seconds)
{
    deadline->saved += seconds;
}

void deadline_checkpoint(struct deadline *deadline, double seconds)
{
    deadline->saved += seconds;
    deadline->checkpoint = seconds > deadline->checkpoint || deadline->checkpoint <= 0
                               ? seconds
                               : 0.5 * (deadline->checkpoint + seconds); /* the expectation wears off */
}

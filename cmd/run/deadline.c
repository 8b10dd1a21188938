#include "cmd/run/deadline.h"

#include "core/clock.h"
#include "core/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const double reserve = 10; /* seconds, for a slow step, a slow file system, clocks of two machines that differ */
static const double no_limit = 5 * 365 * 86400.0; /* seconds to the end of a job that has no limit */
static const double same_end = 5; /* seconds; Slurm's answers differ by less while the limit stays the same */
static const double checkpoint_slack = 2, step_slack = 1.25;

/* "2026-11-21 17:30:00" */
static void print_time(double end, char text[32])
{
    time_t second = (time_t)end;
    struct tm parts;
    localtime_r(&second, &parts);
    strftime(text, 32, "%Y-%m-%d %H:%M:%S", &parts);
}

/* Finds the end for the first time. *end: seconds since 1970. */
static bool first_end(struct squeue *squeue, const char **source, double *end)
{
    const char *given = getenv("SLURM_JOB_END_TIME");
    *source = "SLURM_JOB_END_TIME";
    if (given && squeue_parse_end(given, end))
        return true;
    *source = "squeue";
    return squeue_ask(squeue, end);
}

void deadline_init(struct deadline *deadline, double expected_checkpoint, double period)
{
    *deadline = (struct deadline){.end = INFINITY, .checkpoint = expected_checkpoint};
    const char *job = getenv("SLURM_JOB_ID"), *source;
    double end;
    char when[32];
    if (!job)
        return;
    snprintf(deadline->job, sizeof deadline->job, "%s", job);
    deadline->squeue = squeue_new(job);
    if (first_end(deadline->squeue, &source, &end)) {
        double left = end - squeue_clock();
        if (left < no_limit) {
            print_time(end, when);
            log_info("job %s ends at %s (%s), in %.0f s: a checkpoint will be written in time", job, when, source,
                     left);
            deadline->end = seconds_now() + left;
        }
    } else {
        log_info("job %s has no time limit", job);
    }
    squeue_watch(deadline->squeue, period);
}

void deadline_look_again(struct deadline *deadline)
{
    double end;
    char when[32];
    if (!deadline->squeue || !squeue_heard(deadline->squeue, &end))
        return;
    double left = end - squeue_clock(), found = left < no_limit ? seconds_now() + left : INFINITY;
    if (found == deadline->end || fabs(found - deadline->end) < same_end)
        return;
    print_time(end, when);
    if (isinf(found))
        log_info("job %s no longer has a time limit (squeue)", deadline->job);
    else
        log_info("job %s ends at %s now (squeue), in %.0f s%s", deadline->job, when, left,
                 found < deadline->end ? ", earlier than before" : ", later than before");
    deadline->end = found;
}

void deadline_release(struct deadline *deadline)
{
    squeue_free(deadline->squeue);
    deadline->squeue = NULL;
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

void deadline_waited(struct deadline *deadline, double seconds)
{
    deadline->saved += seconds;
}

void deadline_expect(struct deadline *deadline, bool under_way)
{
    deadline->under_way = under_way;
}

void deadline_measured(struct deadline *deadline, double seconds)
{
    deadline->checkpoint = seconds > deadline->checkpoint || deadline->checkpoint <= 0
                               ? seconds
                               : 0.5 * (deadline->checkpoint + seconds); /* the expectation wears off */
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/run/restart.h"

#include "ckpt/checkpoint_folders.h"
#include "cmd/run/run_lock.h"
#include "cmd/run/stop_signal.h"
#include "core/metrics/metrics.h"
#include "core/output.h"

static const char variable[] = "ZTRAIN_RESTART";

void restart_read(struct restart *last)
{
    if (!env_kept(variable, last, sizeof *last)) *last = (struct restart){.step = -1};
}

enum status restart_check(const char *resume, const struct run_home *home, struct error *err)
{
    bool one;
    char folder[FS_PATH_MAX];
    if (!resume || !strcmp(resume, RUN_HOME_AUTO) || home->start != RUN_RESUMED ||
        checkpoint_locate(resume, &one, folder, NULL) != STATUS_OK || !one)
        return STATUS_OK;
    error_set(err, STATUS_USAGE, "--max-restarts continues from the newest checkpoint, and --resume names '%s'",
              resume);
    return error_hint(err, "--resume %s once without --max-restarts; from then on --resume auto", resume);
}

/* Executes this program again. If it returns, a stop signal came since the ranks have ended, or exec failed. */
static enum status execute_again(const struct restart *next, const struct restart_rules *rules)
{
    env_keep(variable, next, sizeof *next);
    if (rules->places) places_write(rules->places);
    output_drain();
    stop_signal_block(); /* one that comes from now on waits for the next supervisor */
    const bool stop = stop_signal_pending() != 0;
    if (!stop) execv("/proc/self/exe", rules->argv);
    const char *reason = stop ? "the run was asked to stop" : strerror(errno);
    if (stop && *next->run)
        log_info("stopped on request: the ranks are not started again; continue with --resume %s", next->run);
    else
        log_warn("the ranks are not started again: %s", reason);
    return stop && *next->run ? STATUS_REQUEUE : (enum status)next->code;
}

/* Chooses the places of the next start; false, after a warning: too few are left. */
static bool restart_find_places(const struct restart *next, const struct restart_rules *rules)
{
    struct error err;
    struct places_wish wish = rules->wish;
    if (!rules->places) return true;
    wish.resume = *next->run ? next->run : NULL;
    wish.step = wish.spec->run.group ? -1 : next->step;
    if (places_choose(rules->places, &wish, &err) == STATUS_OK) return true;
    log_warn("the ranks are not started again: %s", err.text);
    return false;
}

/* The step of the newest checkpoint of a run, -1: none; folder: its run folder, of adapters beside the first one's. */
static int64_t restart_newest(const struct run_home *home, const struct run_spec *spec, char folder[FS_PATH_MAX])
{
    char above[FS_PATH_MAX];
    RELEASED(checkpoint_drop) struct checkpoint *checkpoint = NULL;
    fs_parent(home->path, above);
    snprintf(folder, FS_PATH_MAX, "%s", home->path);
    if ((spec->run.group && fs_join(folder, above, spec->run.name, STATUS_USAGE, NULL) != STATUS_OK) ||
        checkpoint_open(folder, false, &checkpoint, NULL) != STATUS_OK)
        return -1;
    return checkpoint->position.step;
}

enum status restart_after(const struct restart *last, const struct restart_rules *rules, const struct job_end *end)
{
    char newest[64] = "none", from[64] = ", again from where the run began", above[FS_PATH_MAX];
    int64_t sum = -1; /* of the steps of all adapters, which grows with each checkpoint of any */
    const enum status code = (enum status)end->code;
    if (code != STATUS_PEER && code != STATUS_BROKEN) return code;
    for (const struct run_spec *spec = rules->wish.spec; spec; spec = spec->next) {
        const int64_t step = restart_newest(rules->home, spec, above);
        if (step >= 0) sum = sum < 0 ? step : sum + step;
    }
    struct restart next = {.number = last->number + 1, .step = sum, .code = code};
    if (next.step >= 0 && rules->wish.spec->run.group) {
        fs_parent(rules->home->path, above);
        snprintf(next.run, sizeof next.run, "%.3071s", above);
        snprintf(newest, sizeof newest, "the same");
        snprintf(from, sizeof from, " from the newest checkpoint of each adapter");
    } else if (next.step >= 0) {
        snprintf(next.run, sizeof next.run, "%s", rules->home->path);
        snprintf(newest, sizeof newest, "of step %" PRId64, next.step);
        snprintf(from, sizeof from, " from step %" PRId64, next.step);
    }
    snprintf(next.cause, sizeof next.cause, "%s", end->cause);
    for (char *c = next.cause; *c; c++) *c = (unsigned char)*c < ' ' ? ' ' : *c;
    const bool used_up = next.number > rules->most, gained = last->number == 0 || next.step > last->step;
    const bool may_differ = !used_up && rules->places && places_failed(rules->places, end->rank, code, gained);
    if (used_up)
        log_warn("the ranks are not started again: --max-restarts %d has been used up", rules->most);
    else if (!gained && !may_differ)
        log_warn("the ranks are not started again: restart %d has gained no checkpoint, the newest one is still %s; "
                 "hint: a shorter checkpoint.interval_steps, if the failures have different causes",
                 last->number, newest);
    else
        log_info("restart %d of %d%s, as the ranks have ended with exit code %d: %s", next.number, rules->most, from,
                 code, next.cause);
    if (!used_up && (gained || may_differ) && restart_find_places(&next, rules)) return execute_again(&next, rules);
    for (const struct run_spec *spec = rules->wish.spec; spec; spec = spec->next) {
        char path[FS_PATH_MAX]; /* the failure goes into the run's metrics, unless another start has begun already */
        struct error why;
        const int64_t step = restart_newest(rules->home, spec, above);
        if (fs_join(path, above, "metrics.jsonl", STATUS_CHECKPOINT, NULL) == STATUS_OK && fs_exists(path) &&
            !run_lock_in_use(above) &&
            metrics_gave_up(path, next.number - 1, step < 0 ? 0 : step, code, next.cause, &why) != STATUS_OK)
            log_warn("the cause is not in the metrics: %s", why.text);
    }
    return code;
}

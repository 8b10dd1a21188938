#include "cmd/save/save.h"

#include "cmd/observe/integrity.h"
#include "cmd/save/background_save.h"
#include "cmd/save/retry_together.h"
#include "cmd/save/save_parts.h"
#include "core/clock.h"
#include "core/flight/flight.h"
#include "core/fsutil.h"
#include "core/log.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum status save_is_due_for_scores(struct run *run, bool *due, struct error *err)
{
    const struct checkpoint_keep keep = save_keep_of(run);
    double best = 0, start = seconds_now();
    *due = false;
    if (!keep.best)
        return STATUS_OK;
    TRY(background_save_wait(run, false, err)); /* it would be compared with the checkpoints before it alone */
    run->checkpoint_seconds += seconds_now() - start;
    if (run->boot->rank == 0)
        best = checkpoint_is_among_best(run->save_cache, run->folder.checkpoints, &keep, &run->position);
    TRY(comm_sum(run->comm, &best, 1, err));
    *due = best > 0;
    return STATUS_OK;
}

/* One attempt. */
static enum status write_checkpoint(struct run *run, char name[64], int64_t *bytes, struct error *err)
{
    struct checkpoint_writer writer = save_writer_of(run);
    const uint64_t entry = flight_begin(FLIGHT_SAVE, -1, 0, -1);
    enum status status = checkpoint_save(&writer, &run->position, zero_slices(run->engine.zero), name, bytes, err);
    flight_end(entry);
    return status;
}

/* The run ends without its last checkpoint: adds for how long it was tried, and where the run can be resumed. */
static enum status explain_last_lost(const struct run *run, const struct retry_together *patience, struct error *err)
{
    char next[FS_PATH_MAX + 100], before[64] = "";
    if (run->newest_step >= 0)
        snprintf(next, sizeof next, "--resume %s continues from step %" PRId64 ", its newest checkpoint",
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

/* Makes attempts for as long as `patience` allows. Then a checkpoint that is not the run's last is given up, which is a
 * warning (*written: false). All ranks have the same error. */
static enum status write_patiently(struct run *run, struct retry_together *patience, char name[64], int64_t *bytes,
                                   bool *written, struct error *err)
{
    bool leads = run->boot->rank == 0, again = true;
    retry_together_begin(patience);
    for (int attempt = 1;; attempt++) {
        double start = seconds_now();
        enum status status = write_checkpoint(run, name, bytes, err);
        *written = status == STATUS_OK;
        if (*written)
            deadline_checkpoint(&run->deadline, seconds_now() - start);
        if (*written && attempt > 1 && leads)
            log_info("attempt %d wrote the checkpoint", attempt);
        if (*written || comm_status(run->comm, NULL) != STATUS_OK || !save_is_disk_error(err))
            return status;
        if (leads && attempt == 1)
            log_warn("the checkpoint of step %" PRId64 " is tried again for %.0f s: %s", run->position.step,
                     fmax(retry_together_left(patience), 0), err->text);
        struct error lost;
        if (retry_together_again(patience, &again, &lost) != STATUS_OK) {
            *err = lost;
            return lost.code;
        }
        deadline_waited(&run->deadline, seconds_now() - start);
        run->stop |= patience->last;
        if (again)
            continue;
        if (patience->last)
            return explain_last_lost(run, patience, err);
        run->checkpoints_lost++;
        if (leads)
            log_warn("the checkpoint of step %" PRId64 " could not be written, training continues without it: %s",
                     run->position.step, err->text);
        return STATUS_OK;
    }
}

/* Writes the checkpoint while training waits. */
static enum status save_in_foreground(struct run *run, bool last, double start, struct error *err)
{
    char name[64];
    int64_t bytes;
    bool written;
    struct retry_together patience = {.comm = run->comm,
                                      .deadline = &run->deadline,
                                      .limit = fmin(PATIENCE_INTERVAL, run->spec->checkpoint.retry_seconds),
                                      .last_limit = run->spec->checkpoint.retry_seconds,
                                      .last = last || run->stop};
    if (run->metrics)
        TRY(metrics_flush(run->metrics, err));
    enum status status = write_patiently(run, &patience, name, &bytes, &written, err);
    if (status != STATUS_OK)
        return comm_status(run->comm, NULL) == STATUS_OK ? run_agree(run, status, err) : status;
    double seconds = seconds_now() - start;
    run->checkpoint_seconds += seconds;
    if (!written)
        return STATUS_OK;
    const struct saved saved = {name, run->position.step, bytes, seconds, seconds};
    return save_report(run, &saved, err);
}

enum status save_checkpoint(struct run *run, bool last, struct error *err)
{
    double start = seconds_now();
    flight_phase(FLIGHT_CHECKPOINT);
    TRY(background_save_wait(run, last || run->stop, err));
    TRY(integrity_compare_replicas(run, err)); /* a checkpoint takes a slice from each rank: it would be a mixture */
    if (run->background && !last && !run->stop)
        return background_save_begin(run, start, err);
    return save_in_foreground(run, last, start, err);
}

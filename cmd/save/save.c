#include "cmd/save/save.h"

#include "cmd/observe/integrity.h"
#include "cmd/save/background_save.h"
#include "core/clock.h"
#include "core/flight/flight.h"

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

enum status save_checkpoint(struct run *run, bool last, struct error *err)
{
    double start = seconds_now();
    flight_phase(FLIGHT_CHECKPOINT);
    TRY(background_save_wait(run, last || run->stop, err));
    TRY(integrity_compare_replicas(run, err)); /* a checkpoint takes a slice from each rank: it would be a mixture */
    if (background_save_possible(run) && !last && !run->stop)
        return background_save_begin(run, start, err);
    if (run->metrics)
        TRY(metrics_flush(run->metrics, err));
    const uint64_t entry = flight_begin(FLIGHT_SAVE, -1, 0, -1);
    enum status status = background_save_here(run, last || run->stop, start, err);
    flight_end(entry);
    return status;
}

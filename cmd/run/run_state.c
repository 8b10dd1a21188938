/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/run/run_state.h"

#include "comm/agree.h"

void run_speaks(const struct run *run)
{
    log_subject(run && run->spec->run.group ? run->spec->run.name : NULL);
}

enum status run_agree(struct run *run, enum status status, struct error *err)
{
    status = agree(run->comm, status, err);
    run->first->agreed = status != STATUS_OK && comm_status(run->comm, NULL) == STATUS_OK;
    return status;
}

enum status run_check_history(const struct train_position *position, struct error *err)
{
    if (position->step > 0 && position->optimizer_step == 0)
        return error_set(err, STATUS_DIVERGED,
                         "the run has diverged: all %" PRId64 " steps were skipped, as none had finite gradients",
                         position->step);
    if (position->scores.known && isnan(position->scores.values[EVAL_METRIC_LOSS]))
        return error_set(err, STATUS_DIVERGED,
                         "the run has diverged: the loss of the evaluation after step %" PRId64 " is not finite",
                         position->step);
    return STATUS_OK;
}

double run_number(double value)
{
    return isnan(value) ? NAN : value;
}

double run_mean_loss(double sum, double targets)
{
    return targets > 0 ? run_number(sum / targets) : NAN;
}

void run_read_volume(struct run *run, struct comm_stats *volume)
{
    comm_stats_take(run->comm, volume);
    run->moved.network_sent += volume->network_sent;
    run->moved.network_received += volume->network_received;
    run->moved.theory_sent += volume->theory_sent;
    run->moved.theory_received += volume->theory_received;
}

#include "cmd/train/run_state.h"

#include "comm/agree.h"

#include <math.h>

enum status run_agree(struct run *run, enum status status, struct error *err)
{
    status = agree(run->comm, status, err);
    run->agreed = status != STATUS_OK && comm_status(run->comm, NULL) == STATUS_OK;
    return status;
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
    comm_stats_read(run->comm, volume, true);
    run->moved.network_sent += volume->network_sent;
    run->moved.network_received += volume->network_received;
    run->moved.theory_sent += volume->theory_sent;
    run->moved.theory_received += volume->theory_received;
}

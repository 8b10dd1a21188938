/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/observe/integrity.h"

#include "ckpt/state_hash.h"
#include "comm/zero/zero_check.h"
#include "core/flight/flight.h"

bool integrity_is_due(const struct run *run, int64_t step)
{
    const int64_t interval = run->spec->train.check_interval_steps;
    const bool profiled = run->spec->flops_profiler.enabled && step == run->spec->flops_profiler.profile_step;
    return interval && step % interval == 0 && !profiled; /* whose table is of one computation */
}

static const char undecided_hint[] = "memory, a processor or the network of one of them is faulty; resume from the "
                                     "last checkpoint, on other nodes if it recurs";

/* Rank 0 writes what was found to metrics.jsonl. */
static void write_corruption_line(struct run *run, const struct corruption_metrics *line)
{
    struct error ignored;
    console_break(&run->console);
    if (run->metrics && metrics_corruption(run->metrics, line, &ignored) != STATUS_OK) log_warn("%s", ignored.text);
}

enum status integrity_compare_replicas(struct run *run, struct error *err)
{
    struct replica_difference d;
    const uint64_t entry = flight_begin(FLIGHT_REPLICAS, -1, 0, -1);
    TRY(zero_compare_replicas(run->engine.zero, &d, err));
    flight_end(entry);
    if (d.rank < 0) return STATUS_OK;
    const char *tensor = d.tensor ? d.tensor->name : d.unit->name;
    const char *host = run->boot->places[d.rank].host, *other = run->boot->places[d.other].host;
    const struct corruption_metrics line = {
        run->position.step, d.rank, d.majority ? -1 : d.other, host, d.what, tensor};
    write_corruption_line(run, &line);
    if (d.majority) {
        error_set(err, STATUS_DIVERGED,
                  "step %" PRId64 ": the ranks' copies of the model have drifted apart: rank %d on %s holds other %s "
                  "of %s than rank %d on %s; no checkpoint is written; hint: memory or a processor of "
                  "that rank's node is faulty; without it, resume from the last checkpoint",
                  run->position.step, d.rank, host, d.what, tensor, d.other, other);
        error_blame(err, d.rank, FAILURE_DIVERGED);
    } else {
        error_set(err, STATUS_DIVERGED,
                  "step %" PRId64
                  ": the ranks' copies of the model have drifted apart: ranks %d (on %s) and %d (on %s) hold different "
                  "%s of %s, and nobody knows which of them is right; no checkpoint is written; hint: %s",
                  run->position.step, d.other, other, d.rank, host, d.what, tensor, undecided_hint);
    }
    return run_agree(run, STATUS_DIVERGED, err); /* all ranks come to the same result */
}

enum status integrity_compare_passes(void *context, const double *losses, struct error *err)
{
    static const char twice[] = "differ between two computations of the step";
    struct run *run = context;
    struct zero_check_result v;
    char others[40] = "", tensor[200] = "";
    TRY(zero_check_compare(run->engine.zero, losses, run->engine.compute, &v, err));
    if (v.finding == FINDING_NONE) return STATUS_OK;
    const char *name = v.tensor ? v.tensor->name : v.unit ? v.unit->name : NULL;
    const struct rank_place *places = run->boot->places;
    const struct corruption_metrics line = {run->position.step + 1, v.rank, v.finding == FINDING_SPLIT ? v.other : -1,
                                            places[v.rank].host,    v.what, name};
    write_corruption_line(run, &line);
    if (v.finding == FINDING_SPLIT) { /* no more than half of the ranks have gathered the same: none is accused */
        error_set(err, STATUS_DIVERGED,
                  "step %" PRId64 ": the ranks' copies of the model differ: ranks %d (on %s) and %d (on %s) have "
                  "gathered different parameters of %s, and nobody knows which are right; the step is "
                  "not made, and no checkpoint is written; hint: %s",
                  run->position.step + 1, v.other, places[v.other].host, v.rank, places[v.rank].host, v.unit->name,
                  undecided_hint);
        return run_agree(run, STATUS_DIVERGED, err); /* all ranks come to the same result */
    }
    if (v.ranks > 1) snprintf(others, sizeof others, ", and those of %d other ranks", v.ranks - 1);
    if (name) snprintf(tensor, sizeof tensor, " of %s", name);
    if (v.rank != run->boot->rank) /* it speaks for itself: the error of the job names it */
        return run_agree(run, STATUS_OK, err);
    const char *found = v.finding == FINDING_STATE
                            ? "have changed in memory since the update before, although nothing writes them"
                        : v.finding == FINDING_GRADIENTS || v.finding == FINDING_LOSS ? twice
                        : v.finding == FINDING_GATHERED ? "differ from those that other ranks have gathered"
                                                        : "differ between two reductions of equal gradients";
    error_set(err, STATUS_BROKEN,
              "step %" PRId64 ": silent corruption: its %s%s %s%s; the step is not made, and no checkpoint is written",
              run->position.step + 1, v.what, tensor, found, others);
    error_hint(err, "memory or a processor of that node is faulty; without it, resume from the last checkpoint");
    return run_agree(run, STATUS_BROKEN, err);
}

enum status run_hash_state(struct run *run, int states, uint64_t *hashes, struct error *err)
{
    const struct state_slices slices = zero_slices(run->engine.zero);
    RELEASED(state_hash_release) struct state_hash hash = {0};
    state_hash_init(&hash, &run->engine.layout, comm_rank(run->comm), states);
    for (int s = 0; s < states; s++)
        for (int unit = 0; unit < run->engine.layout.num_trained; unit++) {
            float *own;
            TRY(state_slice(slices, SLICE_READ, (enum state_kind)s, unit, &own, err));
            state_hash_add(&hash, (enum state_kind)s, unit, own);
        }
    return state_hash_join(&hash, run->comm, hashes, err);
}

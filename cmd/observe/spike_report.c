#include "cmd/observe/spike_report.h"

#include "core/data/step_samples.h"
#include "core/log.h"
#include "core/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static void warn_of_spike(struct run *run, const struct spike_metrics *spike)
{
    console_break(&run->console);
    if (isfinite(spike->of->loss))
        log_warn("step %" PRId64 ": the loss %.4f is more than %g times the running mean %.4f; metrics.jsonl names the "
                 "step's samples",
                 spike->of->step, spike->of->loss, spike->factor, spike->mean);
    else
        log_warn("step %" PRId64 ": the loss is not finite; metrics.jsonl names the step's samples", spike->of->step);
}

enum status spike_report_step(struct run *run, const struct step_metrics *m, struct error *err)
{
    const struct engine *t = &run->engine;
    const double mean = run->position.mean_loss.mean;
    if (!m->targets) /* a step that learns from nothing has no loss */
        return STATUS_OK;
    if (!loss_mean_take(&run->position.mean_loss, run->spec->train.spike_factor, m->loss) || !run->metrics)
        return STATUS_OK;
    const size_t count = (size_t)t->train_config.batch_size;
    int64_t *samples = memory_alloc(count * sizeof *samples);
    int *sources = memory_alloc(count * sizeof *sources);
    step_samples(&t->train_config, m->step, samples, sources);
    const struct spike_metrics spike = {.of = m,
                                        .mean = run->position.mean_loss.steps ? mean : NAN,
                                        .factor = run->spec->train.spike_factor,
                                        .num_samples = (int64_t)count,
                                        .samples = samples,
                                        .sources = sources,
                                        .num_sources = t->mixture.order.count,
                                        .paths = (const char *const *)run->spec->data.train.items};
    warn_of_spike(run, &spike);
    const enum status status = metrics_spike(run->metrics, &spike, err);
    free(samples);
    free(sources);
    return status;
}

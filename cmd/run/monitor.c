/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/run/monitor.h"

#include "core/metrics/csv_monitor.h"
#include "core/metrics/tensorboard.h"

struct monitor {
    const struct run_spec *spec; /* borrowed */
    struct tensorboard *tensorboard;
    struct csv_monitor *csv;
};

/* output_path/job_name, or a folder of this name in the run's, and in it job_name if there is one. */
static enum status monitor_folder(const struct monitor_settings *settings, const struct run_spec *spec, const char *run,
                                  const char *name, char folder[FS_PATH_MAX], struct error *err)
{
    const char *place = settings->output_path, *job = settings->job_name;
    char own[FS_PATH_MAX];
    if (place) return fs_join(folder, place, job ? job : spec->run.name, STATUS_CHECKPOINT, err);
    TRY(fs_join(job ? own : folder, run, name, STATUS_CHECKPOINT, err));
    return job ? fs_join(folder, own, job, STATUS_CHECKPOINT, err) : STATUS_OK;
}

static enum status open_tensorboard(struct monitor *monitor, const char *run, int64_t first, struct error *err)
{
    const struct run_spec *spec = monitor->spec;
    char folder[FS_PATH_MAX], path[FS_PATH_MAX];
    OWNED char *yaml = NULL;
    size_t bytes;
    TRY(monitor_folder(&spec->tensorboard, spec, run, "tensorboard", folder, err));
    TRY(tensorboard_open(folder, first, &monitor->tensorboard, err));
    log_detail("TensorBoard: events are written to %s", folder);
    TRY(fs_join(path, run, "run.yaml", STATUS_CHECKPOINT, err)); /* the effective spec, as a block of Markdown */
    TRY(fs_read_file(path, 1 << 20, STATUS_CHECKPOINT, &yaml, &bytes, err));
    OWNED char *text = memory_printf("```yaml\n%.*s```\n", (int)bytes, yaml);
    return tensorboard_text(monitor->tensorboard, "run_spec", text, err);
}

static void give_up(struct monitor *monitor, bool csv, const struct error *err)
{
    log_warn(csv ? "%s; csv_monitor writes no further rows, and metrics.jsonl has all metrics"
                 : "%s; no further events are written for TensorBoard, and metrics.jsonl has all metrics",
             err->text);
    if (csv)
        csv_monitor_close(TAKEN(monitor->csv));
    else
        tensorboard_close(TAKEN(monitor->tensorboard));
}

struct monitor *monitor_open(const struct run_spec *spec, const char *run, int64_t step, bool evaluation_due)
{
    struct error err;
    char folder[FS_PATH_MAX];
    if (!spec->tensorboard.enabled && !spec->csv_monitor.enabled) return NULL;
    struct monitor *monitor = memory_alloc(sizeof *monitor);
    *monitor = (struct monitor){.spec = spec};
    const int64_t batch = spec->train_batch_size, first = (step + 1) * batch;
    if (spec->tensorboard.enabled && open_tensorboard(monitor, run, first, &err) != STATUS_OK)
        give_up(monitor, false, &err);
    struct csv_history history = {first, first - (evaluation_due ? batch : 0)};
    if (step == 0) /* a new run appends to rows that are there, as DeepSpeed's do */
        history = (struct csv_history){INT64_MAX, INT64_MAX};
    if (!spec->csv_monitor.enabled) return monitor;
    if (monitor_folder(&spec->csv_monitor, spec, run, "csv_monitor", folder, &err) != STATUS_OK ||
        csv_monitor_open(folder, &history, &monitor->csv, &err) != STATUS_OK)
        give_up(monitor, true, &err);
    else
        log_detail("csv_monitor: rows are written to %s", folder);
    return monitor;
}

void monitor_close(struct monitor *monitor)
{
    if (!monitor) return;
    tensorboard_close(monitor->tensorboard);
    csv_monitor_close(monitor->csv);
    free(monitor);
}

static void write_scalars(struct monitor *monitor, int64_t step, const struct scalar *scalars, int count)
{
    struct error err;
    int64_t samples = step * monitor->spec->train_batch_size;
    if (monitor->tensorboard && tensorboard_scalars(monitor->tensorboard, samples, scalars, count, &err) != STATUS_OK)
        give_up(monitor, false, &err);
    if (monitor->csv && csv_monitor_scalars(monitor->csv, samples, scalars, count, &err) != STATUS_OK)
        give_up(monitor, true, &err);
}

void monitor_step(struct monitor *monitor, const struct step_metrics *m)
{
    if (!monitor) return;
    struct scalar scalars[STEP_SCALARS];
    for (int f = 0; f < STEP_FIELDS; f++)
        if (step_fields[f].order)
            scalars[step_fields[f].order - 1] = (struct scalar){
                step_fields[f].tag,
                step_field_is_of((enum step_field_index)f, m) ? step_field_value(m, (enum step_field_index)f) : NAN};
    if (monitor->spec->dtype != DTYPE_F16) /* else the loss scale is worth a curve */
        scalars[step_fields[STEP_LOSS_SCALE].order - 1].value = NAN;
    write_scalars(monitor, m->step, scalars, COUNT_OF(scalars));
}

void monitor_evaluation(struct monitor *monitor, int64_t step, const struct eval_scores *scores)
{
    if (!monitor) return;
    const struct run_spec *spec = monitor->spec;
    const bool has_perplexity = spec->model.task == TASK_CAUSAL_LM && spec->preference.loss == PREFERENCE_NONE;
    const double loss = eval_scores_value(scores, EVAL_METRIC_LOSS);
    const struct scalar scalars[] = {
        {"Eval/Samples/eval_loss", loss},
        {"Eval/Samples/perplexity", has_perplexity ? exp(loss) : NAN},
        {"Eval/Samples/accuracy", eval_scores_value(scores, EVAL_METRIC_ACCURACY)},
        {"Eval/Samples/f1", eval_scores_value(scores, EVAL_METRIC_F1)},
        {"Eval/Samples/rewards/accuracies", eval_scores_value(scores, EVAL_METRIC_REWARDS)},
    };
    write_scalars(monitor, step, scalars, COUNT_OF(scalars));
}

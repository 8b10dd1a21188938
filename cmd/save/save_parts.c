#include "cmd/save/save_parts.h"

#include "core/log.h"

#include <stdio.h>

struct checkpoint_keep save_keep_of(const struct run *run)
{
    const struct run_spec *spec = run->spec;
    return (struct checkpoint_keep){
        .last = spec->checkpoint.keep_last,
        .best = spec->checkpoint.keep_best,
        .every_steps = spec->checkpoint.keep_every_steps,
        .metric = spec->checkpoint.metric,
        .mode = spec->checkpoint.mode,
        .data = run->engine.evaluation_data,
    };
}

struct checkpoint_writer save_writer_of(struct run *run)
{
    const struct engine *t = &run->engine;
    return (struct checkpoint_writer){
        .dir = run->folder.checkpoints,
        .compression_level = run->spec->checkpoint.compression_level,
        .keep = save_keep_of(run),
        .table = &t->table,
        .layout = &t->layout,
        .comm = run->comm,
        .host = run->boot->host,
        .spec = run->spec_json,
        .model = t->desc.source,
        .machine = run->machine,
        .evaluation_part = run->position.evaluation_due ? run->evaluation_part : NULL,
        .data_fingerprint = t->sources.fingerprint,
        .dtype = run->spec->dtype,
        .cache = run->save_cache,
        .still_owner = run_folder_still_ours,
        .owner = &run->folder,
    };
}

bool save_is_disk_error(const struct error *err)
{
    return (err->code == STATUS_CHECKPOINT && err->cause != RUN_LOCK_GONE) || error_is_transient(err);
}

enum status save_report(struct run *run, const struct saved *saved, struct error *err)
{
    char folder[3400], waited[64] = "";
    run->saved_step = run->newest_step = saved->step;
    if (!run->metrics)
        return STATUS_OK;
    snprintf(folder, sizeof folder, "%s/%s", run->folder.checkpoints, saved->name);
    TRY(metrics_checkpoint(run->metrics, folder, saved->step, saved->bytes, saved->stalled, saved->seconds, err));
    console_break(&run->console);
    if (saved->stalled < saved->seconds)
        snprintf(waited, sizeof waited, ", of which training waited %.2f s", saved->stalled);
    log_info("checkpoint %s  %.1f MB in %.2f s%s", folder, (double)saved->bytes / 1e6, saved->seconds, waited);
    return STATUS_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/save/resume.h"

#include "cmd/engine/engine.h"
#include "core/io.h"
#include "core/log.h"
#include "core/printable.h"
#include "core/spec/spec.h"
#include "core/text/tokenizer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool resume_names_run(const char *resume)
{
    char manifest[4200];
    snprintf(manifest, sizeof manifest, "%s/manifest.json", resume);
    return io_access(manifest, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

enum status resume_plan_rewind(const char *resume, const struct run_home *home, const struct checkpoint *checkpoint,
                               struct checkpoint_rewind *rewind, struct error *err)
{
    memset(rewind, 0, sizeof *rewind);
    if (home->start == RUN_BRANCHED)
        return STATUS_OK;
    return checkpoint_rewind_plan(home->path, checkpoint, resume_names_run(resume), rewind, err);
}

static enum status resume_compare_models(const struct checkpoint *checkpoint, const struct run_spec *spec,
                                         struct string_list *differences, struct error *err)
{
    struct model_desc was = {0}, now = {0};
    enum status status;
    TRY_END(engine_describe_model(spec, false, &now, err));
    TRY_END(model_desc_from_json(checkpoint->model, checkpoint->path, &was, err));
    model_desc_compare(&was, &now, differences);
end:
    model_desc_release(&was);
    model_desc_release(&now);
    return status;
}

/* The last part of a path, without trailing slashes: *length bytes. */
static const char *resumed_folder_name(const char *path, size_t *length)
{
    size_t end = strlen(path), begin;
    while (end > 1 && path[end - 1] == '/')
        end--;
    for (begin = end; begin > 0 && path[begin - 1] != '/';)
        begin--;
    *length = end - begin;
    return path + begin;
}

/* Whether model.pretrained may be the folder that the run began with, moved elsewhere. The config of a tuned model is
 * that of its base model; the folder's name is not. */
static bool resume_same_pretrained(const struct checkpoint *checkpoint, const struct run_spec *spec)
{
    const char *was = json_string_value(json_object_get(checkpoint->spec, "model.pretrained"));
    const char *now = spec->model.pretrained;
    if (!was || !now)
        return !was && !now;
    size_t length_was, length_now;
    was = resumed_folder_name(was, &length_was);
    now = resumed_folder_name(now, &length_now);
    return length_was == length_now && memcmp(was, now, length_now) == 0;
}

/* Whether data.train names the data that the run began with, wherever they are now. False for data that cannot be read
 * and for checkpoints without a fingerprint: other checks judge those. */
static bool resume_same_data(const struct checkpoint *checkpoint, const struct run_spec *spec)
{
    json_t *whole = spec_to_json(spec);
    bool changed = !json_equal(json_object_get(whole, "data.train"), json_object_get(checkpoint->spec, "data.train"));
    json_decref(whole);
    if (!changed || !checkpoint->data_fingerprint.first)
        return false;
    struct error unread;
    struct train_sources sources;
    bool same = train_sources_open(spec, INT32_MAX, &sources, &unread) == STATUS_OK &&
                data_fingerprint_equal(&sources.fingerprint, &checkpoint->data_fingerprint);
    train_sources_release(&sources);
    return same;
}

static enum status resume_compare_specs(const struct checkpoint *checkpoint, const struct run_spec *spec, int world,
                                        bool print, struct error *err)
{
    struct spec_report report = {0};
    enum status status = resume_compare_models(checkpoint, spec, &report.errors, err);
    bool same_model = status == STATUS_OK && report.errors.count == 0 && resume_same_pretrained(checkpoint, spec);
    spec_compare(spec, checkpoint->spec, same_model, resume_same_data(checkpoint, spec), &report);
    if (print) {
        for (int i = 0; i < report.errors.count; i++)
            log_line(PRINTABLE(report.errors.items[i]));
        for (int i = 0; i < report.notices.count; i++)
            log_info("%s", report.notices.items[i]);
        if (checkpoint->world != world)
            log_detail("the world size was %d in the checkpoint and is %d now", checkpoint->world, world);
    }
    if (report.errors.count > 0) /* differences explain more than a model that cannot be read */
        status = error_set(err, STATUS_USAGE, "cannot resume from '%s' (%d difference%s): %s", checkpoint->path,
                           report.errors.count, report.errors.count == 1 ? "" : "s", report.errors.items[0]);
    spec_report_release(&report);
    return status;
}

enum status resume_check(const struct checkpoint *checkpoint, struct run_spec *spec, int world, const char *source,
                         bool print, struct error *err)
{
    TRY(spec_resolve_batch_resumed(spec, world, source, checkpoint->spec, checkpoint->world, err));
    spec_resolve_resumed(spec, checkpoint->spec);
    if (tokenizer_folder_has(checkpoint->path))
        spec_resolve_tokenizer_resumed(spec, checkpoint->path);
    return resume_compare_specs(checkpoint, spec, world, print, err);
}

static void resume_log_rewind(const struct checkpoint_rewind *rewind)
{
    if (*rewind->from)
        log_info("would rename '%s/%s' to '%s': the run continues from it", rewind->dir, rewind->from, rewind->name);
    if (rewind->taken)
        log_info("would move aside '%s/%s' as '%s.aside-%d'", rewind->dir, rewind->name, rewind->name, rewind->number);
    for (int i = 0; i < rewind->count; i++)
        if (rewind->moves[i].damaged)
            log_info("would move aside '%s/%s', which is damaged", rewind->dir, rewind->moves[i].name);
        else
            log_info("would move aside '%s/%s' as '%s.aside-%d'", rewind->dir, rewind->moves[i].name,
                     rewind->moves[i].name, rewind->number);
}

enum status resume_dry(const char *resume, const struct run_home *home, struct run_spec *spec, int world,
                       const char *source, struct error *err)
{
    enum status status;
    struct checkpoint *checkpoint;
    struct checkpoint_rewind rewind = {.count = 0};
    TRY(checkpoint_open(resume, resume_names_run(resume), &checkpoint, err));
    TRY_END(resume_check(checkpoint, spec, world, source, true, err));
    TRY_END(resume_plan_rewind(resume, home, checkpoint, &rewind, err));
    log_info("would resume from %s at step %" PRId64, checkpoint->path, checkpoint->position.step);
    resume_log_rewind(&rewind);
end:
    checkpoint_rewind_release(&rewind);
    checkpoint_close(checkpoint);
    return status;
}

void begin_next_epoch(struct train_position *position)
{
    position->epoch++;
    position->step_in_epoch = 0;
    position->epoch_loss_sum = 0;
    position->epoch_targets = 0;
    position->epoch_end = false;
}

enum status resume_position(const struct checkpoint *checkpoint, const struct early_stop_rules *rules,
                            int64_t steps_per_epoch, const struct data_fingerprint *data_fingerprint,
                            struct train_position *position, struct error *err)
{
    if (checkpoint->data_fingerprint.first && !data_fingerprint_equal(&checkpoint->data_fingerprint, data_fingerprint))
        return error_set(err, STATUS_DATA,
                         "data.train holds other data than when checkpoint '%s' was written (other sizes, tokens or "
                         "loss masks); "
                         "hint: put the shards back, or start a new run with model.pretrained from 'ztrain export'",
                         checkpoint->path);
    *position = checkpoint->position;
    position->stopped_early = position->stopped_early && early_stop_reached(&position->stopping, rules);
    if (position->epoch_end)
        begin_next_epoch(position);
    int64_t epoch = position->step / steps_per_epoch + 1, step_in_epoch = position->step % steps_per_epoch;
    if (position->evaluation_due && step_in_epoch == 0) { /* the epoch ends after the evaluation */
        epoch--;
        step_in_epoch = steps_per_epoch;
    }
    if (position->epoch != epoch || position->step_in_epoch != step_in_epoch)
        return error_set(err, STATUS_DATA,
                         "checkpoint '%s' is at epoch %" PRId64 ", step %" PRId64 " of it, but with %" PRId64
                         " steps per epoch step %" PRId64
                         " is elsewhere; hint: data.train holds other data than when it was written",
                         checkpoint->path, position->epoch, position->step_in_epoch, steps_per_epoch, position->step);
    return STATUS_OK;
}

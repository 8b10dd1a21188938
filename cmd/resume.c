#include "cmd/resume.h"

#include "cmd/trainer.h"
#include "core/data.h"
#include "core/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum status resume_open(const char *resume, struct checkpoint **checkpoint, struct error *err)
{
    char manifest[4200];
    snprintf(manifest, sizeof manifest, "%s/manifest.json", resume);
    bool is_run_folder = access(manifest, F_OK) != 0;
    return checkpoint_open(resume, is_run_folder, checkpoint, err);
}

/* The model's config as it is now with the one that the checkpoint was trained with: the spec names only a place.
 * vocab_size: that of now. */
static enum status compare_models(const struct checkpoint *checkpoint, const struct run_spec *spec,
                                  struct string_list *differences, int64_t *vocab_size, struct error *err)
{
    struct model_desc was = {0}, now = {0};
    enum status status;
    TRY_GOTO(trainer_describe_model(spec, false, &now, err));
    TRY_GOTO(model_desc_from_json(checkpoint->model, checkpoint->path, &was, err));
    model_desc_compare(&was, &now, differences);
    *vocab_size = now.vocab_size;
fail:
    model_desc_release(&was);
    model_desc_release(&now);
    return status;
}

static bool same_names(const json_t *was, const struct string_list *now)
{
    bool same = (int)json_array_size(was) == now->count;
    for (int i = 0; same && i < now->count; i++) {
        const char *name = json_string_value(json_array_get(was, (size_t)i));
        same = name && strcmp(name, now->items[i]) == 0;
    }
    return same;
}

/* Whether data.train names other places than then, where the same data are: they were moved. */
static bool data_moved(const struct checkpoint *checkpoint, const struct run_spec *spec, int64_t vocab_size)
{
    const struct string_list *names = &spec->data.train;
    struct token_set *set = NULL;
    uint64_t fingerprint = 0;
    if (!checkpoint->data_fingerprint || same_names(json_object_get(checkpoint->spec, "data.train"), names))
        return false;
    bool same = token_set_open((const char *const *)names->items, names->count, &set, NULL) == STATUS_OK &&
                token_set_check(set, vocab_size, &fingerprint, NULL) == STATUS_OK &&
                fingerprint == checkpoint->data_fingerprint;
    token_set_close(set);
    return same;
}

static enum status compare(const struct checkpoint *checkpoint, const struct run_spec *spec, int world, bool say,
                           struct error *err)
{
    struct spec_report report = {0};
    int64_t vocab_size = 0;
    enum status status = compare_models(checkpoint, spec, &report.errors, &vocab_size, err);
    struct spec_same same = {.config = status == STATUS_OK && report.errors.count == 0};
    same.data = same.config && data_moved(checkpoint, spec, vocab_size);
    spec_compare(spec, checkpoint->spec, same, &report);
    if (say) {
        for (int i = 0; i < report.errors.count; i++)
            fprintf(stderr, "%s\n", report.errors.items[i]);
        for (int i = 0; i < report.notices.count; i++)
            log_info("%s", report.notices.items[i]);
        if (checkpoint->world != world)
            log_info("the world size was %d in the checkpoint and is %d now", checkpoint->world, world);
    }
    if (report.errors.count > 0) /* differences say more than a model that cannot be read */
        status = error_set(err, STATUS_USAGE, "cannot go on from '%s' (%d difference%s): %s", checkpoint->path,
                           report.errors.count, report.errors.count == 1 ? "" : "s", report.errors.items[0]);
    spec_report_release(&report);
    return status;
}

enum status resume_check(const struct checkpoint *checkpoint, struct run_spec *spec, int world, const char *source,
                         bool say, struct error *err)
{
    TRY(spec_resolve_batch_resumed(spec, world, source, checkpoint->spec, checkpoint->world, err));
    return compare(checkpoint, spec, world, say, err);
}

enum status resume_dry(const char *resume, struct run_spec *spec, int world, const char *source, struct error *err)
{
    struct checkpoint *checkpoint;
    TRY(resume_open(resume, &checkpoint, err));
    enum status status = resume_check(checkpoint, spec, world, source, true, err);
    if (status == STATUS_OK)
        log_info("would go on from %s at step %" PRId64, checkpoint->path, checkpoint->position.step);
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

enum status resume_position(const struct checkpoint *checkpoint, int64_t steps_per_epoch, uint64_t data_fingerprint,
                            struct train_position *position, struct error *err)
{
    if (checkpoint->data_fingerprint && checkpoint->data_fingerprint != data_fingerprint)
        return error_set(err, STATUS_DATA,
                         "data.train holds other data than when checkpoint '%s' was written (other sizes or tokens); "
                         "hint: put the shards back, or start a new run with model.pretrained from 'ztrain export'",
                         checkpoint->path);
    *position = checkpoint->position;
    if (position->epoch_end)
        begin_next_epoch(position);
    int64_t epoch = position->step / steps_per_epoch + 1, step_in_epoch = position->step % steps_per_epoch;
    if (position->evaluation_due && step_in_epoch == 0) { /* the epoch ends after the evaluation */
        epoch--;
        step_in_epoch = steps_per_epoch;
    }
    if (position->epoch != epoch || position->step_in_epoch != step_in_epoch)
        return error_set(err, STATUS_DATA,
                         "checkpoint '%s' stands at epoch %" PRId64 ", step %" PRId64 " of it, but with %" PRId64
                         " steps an epoch step %" PRId64
                         " lies elsewhere; hint: data.train holds other data than when it was written",
                         checkpoint->path, position->epoch, position->step_in_epoch, steps_per_epoch, position->step);
    return STATUS_OK;
}

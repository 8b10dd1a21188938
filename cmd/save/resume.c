/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/save/resume.h"

#include "cmd/engine/engine.h"
#include "comm/agree.h"

/* Whether `resume` is a run folder rather than a checkpoint. False if the disk does not answer: for a run folder,
 * checkpoints ahead of the newest valid one would be moved aside as damaged. */
static bool resume_names_run(const char *resume)
{
    char manifest[4200];
    snprintf(manifest, sizeof manifest, "%s/manifest.json", resume);
    return io_access(manifest, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

enum status resume_plan_rewind(const char *resume, const struct run_home *home, const struct checkpoint *checkpoint,
                               struct checkpoint_rewind *rewind, struct error *err)
{
    memset(rewind, 0, sizeof *rewind);
    if (home->start == RUN_BRANCHED) return STATUS_OK;
    return checkpoint_rewind_plan(home->path, checkpoint, resume_names_run(resume), rewind, err);
}

/* Whether model.pretrained may be the folder that the run began with, moved: it has the same name. */
static bool resume_same_pretrained(const struct checkpoint *checkpoint, const struct run_spec *spec)
{
    const char *was = json_string_value(json_object_get(checkpoint->spec, "model.pretrained"));
    const char *now = spec->model.pretrained;
    if (!was || !now || checkpoint->adapter) /* the hash of an adapter's base is checked */
        return !was == !now;
    size_t length_was, length_now;
    was = fs_last_part(was, &length_was);
    now = fs_last_part(now, &length_now);
    return length_was == length_now && memcmp(was, now, length_now) == 0;
}

/* Whether data.train is the data that the run began with, wherever they are. False if it cannot be told. */
static bool resume_same_data(const struct checkpoint *checkpoint, const struct run_spec *spec)
{
    json_auto_t *whole = spec_to_json(spec);
    bool changed = !json_equal(json_object_get(whole, "data.train"), json_object_get(checkpoint->spec, "data.train"));
    if (!changed || !checkpoint->data_fingerprint.first) return false;
    struct error unread;
    RELEASED(train_sources_release) struct train_sources sources = {0};
    return train_sources_open(spec, INT32_MAX, &sources, &unread) == STATUS_OK &&
           data_fingerprint_equal(&sources.fingerprint, &checkpoint->data_fingerprint);
}

enum status resume_check(const struct checkpoint *checkpoint, struct run_spec *spec, int world, const char *source,
                         bool print, struct error *err)
{
    TRY(spec_resolve_batch_resumed(spec, world, source, checkpoint->spec, checkpoint->world, err));
    spec_resolve_resumed(spec, checkpoint->spec);
    if (tokenizer_folder_has(checkpoint->path)) spec_resolve_tokenizer_resumed(spec, checkpoint->path);
    RELEASED(spec_report_release) struct spec_report report = {0};
    RELEASED(model_desc_release) struct model_desc was = {0}, now = {0};
    enum status status = engine_describe_model(spec, false, &now, err);
    if (status == STATUS_OK) status = model_desc_from_json(checkpoint->model, checkpoint->path, &was, err);
    if (now.new_head && model_desc_padding(&now) == was.padding_token) /* set for transformers: its row is trained */
        was.padding_token = now.padding_token;
    if (status == STATUS_OK) model_desc_compare(&was, &now, &report.errors);
    bool same_model = status == STATUS_OK && report.errors.count == 0 && resume_same_pretrained(checkpoint, spec);
    spec_compare(spec, checkpoint->spec, same_model, resume_same_data(checkpoint, spec), &report);
    if (print) {
        for (int i = 0; i < report.errors.count; i++) log_line(PRINTABLE(report.errors.items[i]));
        for (int i = 0; i < report.notices.count; i++) log_info("%s", report.notices.items[i]);
        if (checkpoint->world != world)
            log_detail("the world size was %d in the checkpoint and is %d now", checkpoint->world, world);
    }
    if (report.errors.count == 0) return status; /* differences explain more than a model that cannot be read */
    return error_set(err, STATUS_USAGE, "cannot resume from '%s' (%d difference%s): %s", checkpoint->path,
                     report.errors.count, PLURAL(report.errors.count), report.errors.items[0]);
}

enum status resume_dry(const char *resume, const struct run_home *home, struct run_spec *spec, int world,
                       const char *source, struct error *err)
{
    RELEASED(checkpoint_drop) struct checkpoint *checkpoint = NULL;
    RELEASED(checkpoint_rewind_release) struct checkpoint_rewind rewind = {0};
    TRY(checkpoint_open(resume, resume_names_run(resume), &checkpoint, err));
    TRY(resume_check(checkpoint, spec, world, source, true, err));
    TRY(resume_plan_rewind(resume, home, checkpoint, &rewind, err));
    log_info("would resume from %s at step %" PRId64, checkpoint->path, checkpoint->position.step);
    if (*rewind.from)
        log_info("would rename '%s/%s' to '%s': the run continues from it", rewind.dir, rewind.from, rewind.name);
    if (rewind.taken)
        log_info("would move aside '%s/%s' as '%s.aside-%d'", rewind.dir, rewind.name, rewind.name, rewind.number);
    for (const struct rewind_move *move = rewind.moves; move < rewind.moves + rewind.count; move++)
        if (move->damaged)
            log_info("would move aside '%s/%s', which is damaged", rewind.dir, move->name);
        else
            log_info("would move aside '%s/%s' as '%s.aside-%d'", rewind.dir, move->name, move->name, rewind.number);
    return STATUS_OK;
}

void begin_next_epoch(struct train_position *position)
{
    position->epoch++;
    position->step_in_epoch = 0;
    position->epoch_loss_sum = 0;
    position->epoch_targets = 0;
    position->epoch_end = false;
}

enum status resume_position(const struct checkpoint *checkpoint, const struct engine *t,
                            struct train_position *position, struct error *err)
{
    const int64_t steps_per_epoch = t->steps_per_epoch;
    if (checkpoint->data_fingerprint.first &&
        !data_fingerprint_equal(&checkpoint->data_fingerprint, &t->sources.fingerprint))
        return error_set(
            err, STATUS_DATA,
            "data.train holds other data than when checkpoint '%s' was written (other sizes, tokens or loss masks); "
            "hint: put the shards back, or start a new run with model.pretrained from 'ztrain export'",
            checkpoint->path);
    *position = checkpoint->position;
    position->stopped_early =
        position->stopped_early && early_stop_reached(&position->stopping, &t->spec->train.early_stopping);
    if (position->epoch_end) begin_next_epoch(position);
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

/* ---- opening it together ------------------------------------------------- */

enum order_kind { ORDER_VERIFY, ORDER_TAKE, ORDER_END };

struct order {
    int32_t kind; /* enum order_kind */
    char path[4096];
};

struct report {
    struct told_outcome told;
    int32_t unknown; /* the rank has not seen the checkpoint: it could not open it */
};
_Static_assert(sizeof(struct report) <= COMM_EXCHANGE_MAX, "a report must fit in one exchange");

struct together {
    struct comm *comm;
    const char *host;
    const struct retry *retry;
    bool unseen; /* rank 0: another rank could not open a checkpoint that is there, which is not damage */
    struct error why;
};

/* Opens the folder that rank 0 has named, without verifying it: looks only at the files of this rank's share. */
static enum status open_named(const struct together *all, const char *path, struct checkpoint **checkpoint,
                              struct error *err)
{
    struct retry again = *all->retry;
    enum status status;
    do status = checkpoint_open_part(path, comm_rank(all->comm), comm_world(all->comm), checkpoint, err);
    while (retry_again(&again, &status, err));
    if (status == STATUS_OK) (*checkpoint)->retry = *all->retry;
    return status;
}

/* Verifies this rank's share, unless it has failed, and exchanges: all have the lowest failed rank's error. */
static enum status resume_verify_share(const struct together *all, const struct checkpoint *checkpoint,
                                       enum status status, bool *unknown, struct error *err)
{
    const int rank = comm_rank(all->comm), world = comm_world(all->comm);
    struct report own = {.unknown = status != STATUS_OK};
    OWNED struct report *reports = memory_zeroed((size_t)world, sizeof *reports);
    int lowest;
    if (status == STATUS_OK) status = checkpoint_verify_part(checkpoint, rank, world, err);
    status = agree_telling(all->comm, all->host, &own.told, sizeof own, reports, status, &lowest, err);
    *unknown = lowest >= 0 && reports[lowest].unknown;
    if (lowest > 0 && (*unknown || status != STATUS_CHECKPOINT || error_is_unreadable(err))) {
        error_prefix(err, "rank %d on %s", lowest, reports[lowest].told.host);
        error_blame(err, lowest, FAILURE_NONE);
    }
    return status;
}

/* Rank 0: has all ranks verify a checkpoint (checkpoint_verifier). */
static enum status resume_verify_together(void *context, const struct checkpoint *checkpoint, struct error *err)
{
    struct together *all = context;
    struct order order = {.kind = ORDER_VERIFY};
    bool unknown = false;
    snprintf(order.path, sizeof order.path, "%s", checkpoint->path);
    enum status status = comm_broadcast(all->comm, &order, sizeof order, 0, err);
    if (status == STATUS_OK) status = resume_verify_share(all, checkpoint, STATUS_OK, &unknown, err);
    if (status != STATUS_OK && comm_status(all->comm, NULL) != STATUS_OK)
        return error_cause(err, 0); /* a job that has failed is not a disk to be tried again */
    if (status != STATUS_CHECKPOINT || !unknown || error_is_unreadable(err) || checkpoint_is_gone(checkpoint))
        return status;
    all->unseen = true;
    all->why = *err;
    return STATUS_PEER; /* ends the search: an older checkpoint is not an answer to this */
}

/* Rank 0: opens the checkpoint, of a run folder the newest that all ranks have verified, and tells the others. */
static enum status lead(struct together *all, const char *resume, struct checkpoint **checkpoint, struct error *err)
{
    struct error failure;
    struct order order = {.kind = ORDER_END};
    const bool run = resume_names_run(resume);
    struct retry again = *all->retry;
    enum status status;
    do status = checkpoint_open_verified(resume, run ? resume_verify_together : NULL, all, checkpoint, &failure);
    while (retry_again(&again, &status, &failure));
    if (status == STATUS_OK) {
        (*checkpoint)->retry = *all->retry;
        order.kind = ORDER_TAKE;
        snprintf(order.path, sizeof order.path, "%s", (*checkpoint)->path);
    } else if (all->unseen) {
        failure = all->why;
        status = failure.code;
    } else if (status == STATUS_CHECKPOINT && !run && !error_is_unreadable(&failure)) {
        error_hint(&failure, "--resume RUN, the run folder, takes its newest checkpoint that is whole");
    }
    TRY(comm_broadcast(all->comm, &order, sizeof order, 0, err));
    if (status != STATUS_OK) *err = failure;
    return status;
}

enum status resume_open(struct comm *comm, const char *host, const char *resume, const struct retry *retry,
                        struct checkpoint **checkpoint, struct error *err)
{
    struct together all = {.comm = comm, .host = host, .retry = retry};
    *checkpoint = NULL;
    if (comm_rank(comm) == 0) return lead(&all, resume, checkpoint, err);
    for (struct order order;;) { /* follows rank 0 */
        TRY(comm_broadcast(comm, &order, sizeof order, 0, err));
        if (order.kind == ORDER_TAKE && *checkpoint && !strcmp((*checkpoint)->path, order.path))
            return STATUS_OK; /* as it was verified */
        checkpoint_close(TAKEN(*checkpoint));
        if (order.kind == ORDER_END) return STATUS_OK;
        if (order.kind == ORDER_TAKE) return open_named(&all, order.path, checkpoint, err);
        bool unknown;
        struct error ignored; /* the outcome is rank 0's to judge */
        const enum status status = open_named(&all, order.path, checkpoint, &ignored);
        resume_verify_share(&all, *checkpoint, status, &unknown, &ignored);
    }
}

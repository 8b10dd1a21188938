/* SPDX-License-Identifier: Apache-2.0 */
/* references.c: the log-probabilities of answers by the reference of a preference loss, before the first step: from a
 * file, or scored with this run's own memory and kernels and kept in RUN/references. */
#include "cmd/run/score_data.h"
#include "cmd/train/rank_main.h"
#include "cmd/train/score_rank.h"
#include "core/model/model_folder.h"

static bool reference_needed(const struct run *run)
{
    const struct preference_settings *p = &run->spec->preference;
    return p->loss != PREFERENCE_NONE && p->loss != PREFERENCE_SIMPO && p->loss != PREFERENCE_ORPO &&
           p->loss != PREFERENCE_REWARD && !(p->reference && strcmp(p->reference, "none") == 0);
}

/* The folder whose weights are the reference; NULL: random ones, which the run's seed gives again. */
static enum status reference_folder(const struct run *run, char folder[FS_PATH_MAX], const char **found,
                                    struct error *err)
{
    const struct run_spec *spec = run->spec;
    const char *reference = spec->preference.reference;
    *found = spec->model.pretrained ? spec->model.folder : NULL;
    if (reference && strcmp(reference, "adapter-off") == 0 && !spec->adapter.on)
        return error_set(err, STATUS_USAGE,
                         "preference.reference: adapter-off, and there is no adapter; hint: remove it: the reference "
                         "is the model that training starts from");
    if (!reference || strcmp(reference, "adapter-off") == 0) return STATUS_OK;
    *found = folder;
    if (run->first->next)
        return error_set(err, STATUS_USAGE,
                         "preference.reference is a folder, and the run has several adapters on one base; hint: "
                         "ztrain score makes a file");
    if (model_folder_find(reference, folder)) return STATUS_OK;
    return error_set(err, STATUS_USAGE, "preference.reference: '%s' is neither a file nor a folder", reference);
}

static struct token_source *reference_source(struct engine *t, int i)
{
    return i < t->sources.count ? &t->sources.items[i] : &t->validation;
}

static int num_reference_sources(const struct engine *t)
{
    return t->sources.count + (t->validation.set != NULL);
}

/* Where the numbers of a source are kept. */
static void reference_path(const struct run *run, int source, char path[FS_PATH_MAX])
{
    snprintf(path, FS_PATH_MAX, "%s/references/%d.logps", run->folder.path, source);
}

static enum status score_source(struct run *run, int number, uint64_t model, struct error *err)
{
    struct engine *t = &run->engine;
    struct token_source *source = reference_source(t, number);
    char path[FS_PATH_MAX];
    bool complete;
    reference_path(run, number, path);
    struct score_job job = {.name = number < t->sources.count ? "data.train" : "data.validation",
                            .path = path,
                            .data = source->fingerprint,
                            .model = model,
                            .replaces = true,
                            .config = t->train_config};
    job.config.evaluation = true;
    job.config.data.shuffle = false;
    job.config.mixture = NULL;
    job.config.source = *source;
    TRY(score_data(t, &job, &source->references, &source->kl_references, &complete, err));
    if (complete) return run_agree(run, engine_check_references(t, path, source, err), err);
    log_info("stopped while the reference was scored; the next start does the rest");
    return error_set(err, STATUS_REQUEUE, "stopped while the reference was scored");
}

static enum status score_sources(struct run *run, struct error *err)
{
    char path[FS_PATH_MAX];
    uint64_t model;
    snprintf(path, sizeof path, "%s/references", run->folder.path);
    TRY(run_agree(run, run->boot->rank == 0 ? fs_mkdirs(path, STATUS_CHECKPOINT, err) : STATUS_OK, err));
    TRY(score_model(run, &model, err));
    if (run->boot->rank == 0) log_info("the reference is scored before the first step");
    for (int i = 0; i < num_reference_sources(&run->engine); i++) TRY(score_source(run, i, model, err));
    return STATUS_OK;
}

/* A resumed run has what it scored when it began. *kept: all of it; then the sources have it. Collective. */
static enum status read_kept_references(struct run *run, bool *kept, struct error *err)
{
    struct engine *t = &run->engine;
    char path[FS_PATH_MAX];
    struct error unread;
    double missing = run->checkpoint ? 0 : 1;
    for (int i = 0; i < num_reference_sources(t) && !missing; i++) {
        reference_path(run, i, path);
        missing += engine_read_reference(t, path, reference_source(t, i), &unread) != STATUS_OK;
    }
    TRY(comm_sum(run->comm, &missing, 1, err));
    *kept = missing == 0;
    for (int i = 0; i < num_reference_sources(t) && !*kept; i++) {
        free(TAKEN(reference_source(t, i)->references));
        free(TAKEN(reference_source(t, i)->kl_references));
    }
    return STATUS_OK;
}

/* With the reference's weights in place of the run's. */
static enum status score_with_reference(struct run *run, struct error *err)
{
    struct engine *t = &run->engine;
    char place[FS_PATH_MAX];
    const char *folder;
    bool kept;
    TRY(read_kept_references(run, &kept, err));
    if (kept) return STATUS_OK;
    TRY(run_agree(run, reference_folder(run, place, &folder, err), err));
    const char *own = run->spec->model.pretrained ? run->spec->model.folder : NULL;
    const bool there = !run->checkpoint && !run->spec->model.adapter && folder == own;
    if (!there) {
        TRY(run_agree(run, engine_weights_load_reference(t, folder, err), err));
        TRY(zero_params_changed(t->zero, t->compute, err));
    }
    const enum status status = score_sources(run, err);
    if (status != STATUS_OK || there) return status;
    TRY(run_agree(run, engine_weights_load(t, run->checkpoint, err), err));
    TRY(engine_weights_check_base(t, run->checkpoint, err));
    return zero_params_changed(t->zero, t->compute, err);
}

enum status run_references(struct run *run, struct error *err)
{
    struct engine *t = &run->engine;
    const char *reference = run->spec->preference.reference;
    if (!reference_needed(run)) return STATUS_OK;
    if (reference && !fs_is_dir(reference) && fs_exists(reference))
        TRY(run_agree(run, engine_read_references(t, err), err));
    else
        TRY(score_with_reference(run, err));
    engine_use_references(t);
    return STATUS_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* references.c: the log-probabilities of answers by the reference of a preference loss, before the first step. They lie
 * in RUN/references: copies of the files that the run spec names, or scored with this run's own memory and kernels. */
#include "cmd/run/score_data.h"
#include "cmd/train/rank_main.h"
#include "cmd/train/score_rank.h"

/* Where the numbers of a source are kept. */
static void reference_path(const struct run *run, int source, char path[FS_PATH_MAX])
{
    snprintf(path, FS_PATH_MAX, "%s/references/%d.logps", run->folder.path, source);
}

static enum status score_source(struct run *run, int number, uint64_t model, struct error *err)
{
    struct engine *t = &run->engine;
    struct token_source *source = engine_reference_source(t, number);
    char path[FS_PATH_MAX];
    OWNED double *logps = NULL, *mismatched = NULL;
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
    TRY(score_data(t, &job, &logps, &mismatched, &complete, err));
    if (complete) return STATUS_OK;
    log_info("stopped while the reference was scored; the next start does the rest");
    return error_set(err, STATUS_REQUEUE, "stopped while the reference was scored");
}

/* With the reference's weights in place of the run's. folder NULL: those with which the run began. */
static enum status score_sources(struct run *run, const char *folder, struct error *err)
{
    struct engine *t = &run->engine;
    const bool there = !folder && !run->checkpoint && !run->spec->model.adapter;
    uint64_t model;
    if (!there) {
        TRY(run_agree(run, engine_weights_load_reference(t, folder, err), err));
        TRY(engine_weights_check_base(t, NULL, err));
        TRY(zero_params_changed(t->zero, t->compute, err));
    }
    TRY(score_model(run, &model, err));
    if (run->boot->rank == 0) log_info("the reference is scored before the first step");
    for (int i = 0; engine_reference_source(t, i); i++) TRY(score_source(run, i, model, err));
    if (there) return STATUS_OK;
    TRY(run_agree(run, engine_weights_load(t, run->checkpoint, err), err));
    TRY(engine_weights_check_base(t, run->checkpoint, err));
    return zero_params_changed(t->zero, t->compute, err);
}

static enum status copy_files(struct run *run, struct error *err)
{
    char from[FS_PATH_MAX], to[FS_PATH_MAX];
    for (int i = 0; engine_reference_source(&run->engine, i); i++) {
        TRY(engine_reference_file(&run->engine, i, from, err));
        reference_path(run, i, to);
        TRY(fs_copy_file(from, to, STATUS_CHECKPOINT, err));
    }
    return STATUS_OK;
}

static enum status read_references(struct run *run, struct error *err)
{
    char path[FS_PATH_MAX];
    for (int i = 0; engine_reference_source(&run->engine, i); i++) {
        reference_path(run, i, path);
        TRY(engine_read_reference(&run->engine, path, engine_reference_source(&run->engine, i), err));
    }
    return STATUS_OK;
}

/* A branch compares with the numbers of the run that it comes from: rank 0 copies them. */
static void take_along(struct run *run)
{
    char parent[FS_PATH_MAX], other[FS_PATH_MAX], from[FS_PATH_MAX], to[FS_PATH_MAX];
    struct error err;
    fs_parent(run->checkpoint->path, parent);
    fs_parent(parent, other);
    snprintf(to, sizeof to, "%s/references", run->folder.path);
    fs_mkdirs(to, STATUS_CHECKPOINT, &err);
    for (int i = 0; engine_reference_source(&run->engine, i); i++) {
        reference_path(run, i, to);
        if (snprintf(from, sizeof from, "%s/references/%d.logps", other, i) >= FS_PATH_MAX ||
            fs_copy_file(from, to, STATUS_CHECKPOINT, &err) != STATUS_OK)
            io_unlink(to); /* of an earlier start */
    }
}

static enum status make_references(struct run *run, const struct reference *reference, struct error *err)
{
    char path[FS_PATH_MAX];
    enum status status = STATUS_OK;
    if (run->replay)
        return error_set(err, STATUS_CHECKPOINT,
                         "'%s/references' is not complete, and a replay writes nothing; hint: resume the run",
                         run->folder.path);
    snprintf(path, sizeof path, "%s/references", run->folder.path);
    if (run->checkpoint) TRY(run_agree(run, engine_check_reference(&run->engine, err), err));
    if (run->boot->rank == 0) status = fs_mkdirs(path, STATUS_CHECKPOINT, err);
    if (run->boot->rank == 0 && status == STATUS_OK && reference->kind == REFERENCE_FILE) status = copy_files(run, err);
    TRY(run_agree(run, status, err));
    if (reference->kind != REFERENCE_FILE)
        TRY(score_sources(run, reference->kind == REFERENCE_FOLDER ? reference->folder : NULL, err));
    return run_agree(run, read_references(run, err), err);
}

enum status run_references(struct run *run, struct error *err)
{
    struct reference reference;
    struct error unread;
    TRY(run_agree(run, engine_find_reference(&run->engine, &reference, err), err));
    if (reference.kind == REFERENCE_NONE) return STATUS_OK;
    /* A resumed run has what it began with, whatever has become of the reference. */
    if (run->home.start == RUN_BRANCHED && run->boot->rank == 0) take_along(run);
    TRY(run_agree(run, STATUS_OK, err));
    double missing = !run->checkpoint || read_references(run, &unread) != STATUS_OK;
    TRY(comm_sum(run->comm, &missing, 1, err));
    if (missing > 0) TRY(make_references(run, &reference, err));
    engine_use_references(&run->engine);
    return STATUS_OK;
}

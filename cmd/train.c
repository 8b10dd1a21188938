/* SPDX-License-Identifier: Apache-2.0 */
/* train.c: `ztrain --config run.yaml`, the command: its options, its run spec, and who trains.
 *
 *   ztrain --config run.yaml                  this process is the only rank (cmd/train/rank_main.c)
 *   srun … ztrain --config run.yaml           this process is one of a launcher's ranks (bootstrap.h)
 *   ztrain --config run.yaml --local-gpus N   this process supervises N ranks, each the same command with its rank in
 *                                             the environment (cmd/supervise/supervise.h) */
#include "cmd/command_line.h"
#include "cmd/observe/flight_recorder.h"
#include "cmd/options.h"
#include "cmd/plan.h"
#include "cmd/run/stop_signal.h"
#include "cmd/save/resume.h"
#include "cmd/supervise/supervise.h"
#include "cmd/train/rank_main.h"
#include "comm/agree.h"
#include "core/kept_files.h"
#include "core/output.h"

#include <xxhash.h>

static const double usual_timeout = 10; /* seconds: comm.timeout_seconds where the run spec cannot be read */

/* The ranks print their errors themselves. */
static enum status train_start_ranks(const struct options *options, char **argv, struct run_spec *spec,
                                     struct error *err)
{
    char path[FS_PATH_MAX];
    struct run_home home;
    struct restart last;
    struct job_end end;
    struct places places = {.count = options->local_gpus};
    if (spec->model.folder) TRY(model_desc_keep(spec->model.folder, err));
    struct places_wish wish = {.least = options->min_gpus, .most = options->local_gpus, .spec = spec, .step = -1};
    if (options->rank.max_restarts) { /* what the start before has left, and the places of this one's ranks */
        const char *resume = run_resume_of(spec, options->rank.resume, path);
        TRY(run_home_find(spec, resume, &home, err));
        TRY(restart_check(resume, &home, err));
        restart_read(&last);
        wish.resume = run_home_resume(&home, resume);
        if (options->min_gpus && !places_read(&places)) TRY(places_choose(&places, &wish, err));
    }
    OWNED char *visible = places_visible(&places);
    enum status status = supervise(places.count, visible, argv, spec->comm.timeout_seconds, &end, err);
    if (status == STATUS_OK && end.code != STATUS_OK) {
        status = error_set(err, (enum status)end.code, "the ranks have ended with exit code %d", end.code);
        error_mark_printed(err);
    }
    if (status == STATUS_OK || !options->rank.max_restarts || end.asked) return status;
    end.code = status;
    if (!*end.cause) snprintf(end.cause, sizeof end.cause, "%.511s", err->text);
    const struct restart_rules rules = {.most = options->rank.max_restarts,
                                        .places = options->min_gpus ? &places : NULL,
                                        .wish = wish,
                                        .home = &home,
                                        .argv = argv};
    log_error_once(err);
    return restart_after(&last, &rules, &end);
}

/* A hash of the input that has to be the same on all ranks. */
static uint64_t train_fingerprint(const struct options *options, const struct run_spec *spec)
{
    XXH64_hash_t hash = 0;
    for (; spec; spec = spec->next) {
        json_auto_t *all = spec_to_json(spec);
        OWNED char *text = json_dumps(all, JSON_SORT_KEYS | JSON_COMPACT);
        hash = text ? XXH3_64bits_withSeed(text, strlen(text), hash) : 0;
    }
    const struct rank_options *o = &options->rank; /* whether there is a trace: the file may differ, rank 0 writes it */
    const char *const texts[] = {o->resume, o->trace ? "trace" : NULL, o->trace_steps, o->score};
    const int64_t facts[] = {o->score_together, o->score_top_k, o->score_base, o->replay_step};
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        if (texts[i]) hash = XXH3_64bits_withSeed(texts[i], strlen(texts[i]), hash + i);
    return XXH3_64bits_withSeed(facts, sizeof facts, hash);
}

/* Connects the ranks after each has read its run spec (`status`, err): all continue, or none. */
static enum status train_start_together(const struct options *options, struct bootstrap *boot,
                                        const struct run_spec *spec, enum status status, struct error *err)
{
    struct error connecting = {.code = STATUS_OK};
    if (boot->world > 1) /* nothing to save yet, and waiting for peers that were ended, too, would take long */
        stop_signal_default();
    double timeout = spec ? spec->comm.timeout_seconds : usual_timeout;
    enum status met = bootstrap_connect(boot, timeout, spec ? spec->comm.interface : NULL, &connecting);
    if (met == STATUS_OK) {
        stop_signal_install(); /* srun -K terminates ranks that fail later: they are to end with the code as well */
        status = agree_at_start(boot, train_fingerprint(options, spec), status, err);
        if (status != STATUS_OK)
            bootstrap_finish(boot);
        else if (boot->world > 1)
            stop_signal_default();
        return status;
    }
    if (status == STATUS_OK) *err = connecting;
    rank_end_unmet(boot, err->code, err);
    return err->code;
}

/* Reads the run spec, if the command line is in order (`status`, err). Of several ranks one prints the errors. */
static enum status train_read_spec(const struct options *options, struct bootstrap *boot, enum status status,
                                   struct run_spec **spec, struct error *err)
{
    bool supervised = bootstrap_is_local_rank(), quiet = boot->rank != 0 || supervised, unread = false;
    if (status == STATUS_OK) {
        status = options_load_spec(options, quiet, spec, err);
        unread = status != STATUS_OK;
    }
    if (boot->launcher && !options->dry_run) status = train_start_together(options, boot, *spec, status, err);
    if (unread && quiet && !supervised && !err->printed) /* this rank is the one to print it: read it again, aloud */
        options_load_spec(options, false, spec, NULL);
    return status;
}

/* The first lines of a dry run: the run folder, which is printed even if the rest is refused. */
static enum status print_home(const struct run_spec *spec, const char *resume, struct run_home *home, struct error *err)
{
    TRY(run_home_find(spec, resume, home, err));
    enum status status = run_home_check(home, err);
    printf("run folder: %s\n", PRINTABLE(home->path));
    if (home->moved)
        printf("the run was moved there: '%s/%s' does not exist\n", PRINTABLE(spec->run.dir),
               PRINTABLE(spec->run.name));
    if (home->start == RUN_BRANCHED && status == STATUS_OK)
        printf("the run would branch off there: --resume names a checkpoint of another folder\n");
    if (home->start == RUN_NEW && status == STATUS_USAGE) {
        printf("the folder holds checkpoints: a run there needs --resume %s\n", PRINTABLE(home->path));
        status = STATUS_OK;
    }
    fflush(stdout);
    return status == STATUS_OK ? run_home_check_room(home, err) : status;
}

static enum status train_run_command(const struct options *options, char **argv, struct bootstrap *boot,
                                     struct run_spec *spec, struct error *err)
{
    bool supervises = options->local_gpus && !bootstrap_is_local_rank();
    if (spec->run.group && (options->rank.profile || options->rank.trace))
        return error_set(err, STATUS_USAGE,
                         "%s is not supported with several adapters; hint: train one of them with it",
                         options->rank.profile ? "--profile" : "--trace");
    int world = supervises ? options->local_gpus : boot->world;
    const char *source = boot->source;
    if (options->dry_run) {
        bool resumes = false;
        for (struct run_spec *each = spec; each; each = each->next) { /* what a run, or a resume, is refused for */
            struct run_home home;
            char resume_from[FS_PATH_MAX];
            const char *resume = run_resume_of(each, options->rank.resume, resume_from);
            TRY(print_home(each, resume, &home, err));
            resume = run_home_resume(&home, resume);
            resumes |= resume != NULL;
            TRY(resume ? resume_dry(resume, &home, each, world, source, err)
                       : spec_resolve_batch(each, world, source, err));
        }
        return plan_dry_run(spec, world, source, boot->cores, resumes, err);
    }
    if (!supervises) return rank_run(&options->rank, boot, spec, err);
    if (!options->rank.resume && !options->rank.replay &&
        !options->rank.score) /* a resumed run's batch also depends on its checkpoint */
        TRY(spec_resolve_batches(spec, world, source, err));
    return train_start_ranks(options, argv, spec, err);
}

/* Refuses options that are wrong with any run spec. */
static enum status train_check_options(const struct options *options, const struct bootstrap *boot, struct error *err)
{
    if (options->world) {
        error_set(err, STATUS_USAGE, "--world belongs to ztrain plan");
        return error_hint(err, "--local-gpus N starts N ranks on this machine, or with --dry-run plans them");
    }
    if (options->local_gpus && boot->world > 1 && !bootstrap_is_local_rank())
        return error_set(err, STATUS_USAGE, "--local-gpus %d inside %s with %d ranks; hint: one of the two",
                         options->local_gpus, boot->source, boot->world);
    int64_t first, last;
    if (options->rank.trace_steps && !options->rank.trace)
        return error_set(err, STATUS_USAGE, "--trace-steps needs --trace FILE");
    if (options->rank.trace_steps) TRY(trace_steps_parse(options->rank.trace_steps, &first, &last, err));
    if (options->rank.max_restarts && !options->local_gpus)
        return error_set(
            err, STATUS_USAGE,
            "--max-restarts needs --local-gpus N; hint: under Slurm, the job script train.sbatch puts the job "
            "back into the queue");
    if (options->min_gpus && !options->rank.max_restarts)
        return error_set(err, STATUS_USAGE,
                         "--min-gpus needs --max-restarts K; hint: a run goes on with fewer ranks when they are "
                         "started again");
    if (options->min_gpus > options->local_gpus)
        return error_set(err, STATUS_USAGE, "--min-gpus %d is more than --local-gpus %d; hint: from 1 to %d",
                         options->min_gpus, options->local_gpus, options->local_gpus);
    bool alone = boot->world == 1 && !options->local_gpus && !bootstrap_is_local_rank();
    return alone && !options->dry_run ? bootstrap_check_alone(err) : STATUS_OK;
}

enum status train_with(const struct options *options, char **argv, enum status status, struct error *err)
{
    struct bootstrap boot;
    struct run_spec *spec = NULL;
    struct error lost = {.code = STATUS_OK};
    stop_signal_install(); /* a supervisor sets its own later */
    flight_recorder_take_quits();
    if (bootstrap_init(&boot, &lost) != STATUS_OK) {
        if (status == STATUS_OK) *err = lost;
        log_identity(boot.rank, boot.world, boot.host);
        early_error_print(&boot, err);
        bootstrap_refuse(&boot, err->code);
        return err->code;
    }
    log_identity(boot.rank, boot.world, boot.host);
    bool supervises = options->local_gpus && !bootstrap_is_local_rank();
    if (!supervises && !bootstrap_is_local_rank()) stop_signal_count_interrupts(boot.rank == 0);
    if (status == STATUS_OK) status = train_check_options(options, &boot, err);
    if (status == STATUS_OK && !options->dry_run) status = machine_check_proc(err);
    if (status == STATUS_OK && options->dry_run && boot.rank != 0) /* rank 0 prints everything */
        goto end;
    if (status == STATUS_OK && !options->dry_run && supervises) { /* which keeps the run spec for all its starts */
        if (options->config) TRY_END(kept_files_add(options->config, err));
        if (options->deepspeed) TRY_END(kept_files_add(options->deepspeed, err));
    } else if (status == STATUS_OK && !options->dry_run) { /* a rank's threads wait for no reader from here on */
        const int error = output_start();
        if (error) TRY_END(error_set(err, STATUS_DEVICE, "cannot start a thread: %s", strerror(error)));
    }
    TRY_END(train_read_spec(options, &boot, status, &spec, err));
    if (supervises) snprintf(boot.source, sizeof boot.source, "--local-gpus %d", options->local_gpus);
    status = train_run_command(options, argv, &boot, spec, err);
end:
    spec_free(spec);
    bootstrap_release(&boot);
    return status;
}

enum status cmd_train(int argc, char **argv, struct error *err)
{
    struct options options;
    struct restart last;
    enum status status = options_parse(argc, argv, &options, err);
    restart_read(&last);
    if (status == STATUS_OK && options.rank.max_restarts && *last.run) {
        options.rank.resumed_at_first = options.rank.resume;
        options.rank.resume = last.run;
    }
    log_show_details(options.verbose || options.dry_run);
    if (status == STATUS_OK && options.help) {
        options_help(stdout);
        return STATUS_OK;
    }
    if (status == STATUS_OK && options.help_spec) {
        (options.json ? spec_print_json : spec_print_help)(stdout);
        return STATUS_OK;
    }
    if (status == STATUS_OK && options.version) return cmd_version(1, argv, err);
    if (argc < 2) {
        options_help(stderr);
        return error_set(err, STATUS_USAGE, "no run spec given; hint: ztrain --config run.yaml");
    }
    return train_with(&options, argv, status, err);
}

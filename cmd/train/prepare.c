/* SPDX-License-Identifier: Apache-2.0 */
/* prepare.c: a run before its first step: its folder, the checkpoint to resume from, memory, weights, outputs. */
#include "cmd/engine/gpu_test.h"
#include "cmd/engine/machine_record.h"
#include "cmd/engine/simulated_run.h"
#include "cmd/observe/flight_recorder.h"
#include "cmd/run/stop_signal.h"
#include "cmd/save/background_save.h"
#include "cmd/save/resume.h"
#include "cmd/train/rank_main.h"
#include "comm/zero/zero_check.h"
#include "core/spec/adapter_config.h"
#include "core/version.h"

static const double checkpoint_bytes = 12; /* of a parameter */
static const double slow_disk = 200e6;     /* bytes/s, assumed until the first checkpoint is measured */
static const double deadline_period = 60;  /* seconds between two questions to Slurm about the end of the job */

/* Rank 0 decides where the run lives, before anything is made or loaded. */
static enum status prepare_folder(struct run *run, struct error *err)
{
    enum status status = STATUS_OK;
    run->found = false;
    if (run->boot->rank == 0) {
        status = run_home_find(run->spec, run->resume, &run->home, err);
        if (status == STATUS_OK) status = run_home_check(&run->home, err);
        if (status == STATUS_OK) status = run_home_check_room(&run->home, err);
        run->found = fs_is_dir(run->home.path);
    }
    TRY(run_agree(run, status, err));
    TRY(comm_broadcast(run->comm, &run->home, sizeof run->home, 0, err));
    TRY(comm_broadcast(run->comm, &run->found, sizeof run->found, 0, err));
    if (run->boot->rank == 0 && run->home.moved)
        log_info("the run folder was moved: the run continues in %s", run->home.path);
    run->resume = run_home_resume(&run->home, run->resume);
    run_folder_init(&run->folder, &run->home);
    return STATUS_OK;
}

/* Rank 0 makes the folder and locks it; then all open their logs in it, and record their flight: in the first run's. */
static enum status prepare_run_folder(struct run *run, struct error *err)
{
    const struct bootstrap *boot = run->boot;
    char nonce[RUN_LOCK_NONCE] = "";
    enum status status = STATUS_OK;
    if (run->boot->rank == 0) status = run_folder_open(&run->folder, &run->home, err);
    TRY(run_agree(run, status, err));
    if (run == run->first) TRY(run_agree(run, run_folder_open_log(&run->folder, run->boot->rank, err), err));
    if (boot->num_nodes > 1) { /* which must see the same folder */
        if (boot->rank == 0) strcpy(nonce, run_lock_nonce(run->folder.lock));
        TRY(comm_broadcast(run->comm, nonce, sizeof nonce, 0, err));
        if (boot->rank != 0 && boot->local_rank == 0)
            status = run_folder_check_shared(&run->folder, nonce, boot->places[0].host, err);
        TRY(run_agree(run, status, err));
    }
    return run == run->first ? flight_recorder_start(run, err) : STATUS_OK;
}

/* ---- model, data, machine ------------------------------------------------ */

static enum status prepare_data(struct run *run, struct error *err)
{
    run->spec_json = spec_to_json(run->spec);
    TRY(engine_open_data(&run->engine, err));
    if (!run->checkpoint) TRY(engine_check_reference(&run->engine, err));
    if (run->boot->rank == 0)
        TRY(checkpoint_save_cache_new(run->spec->model.tokenizer_folder, run->spec->model.folder, &run->save_cache,
                                      err));
    run->position = (struct train_position){.epoch = 1};
    run->saved_step = run->newest_step = -1;
    loss_scaler_init(&run->position.scaler, &run->spec->loss_scaler, run->spec->initial_loss_scale);
    const struct checkpoint *checkpoint = run->checkpoint;
    if (!checkpoint) return STATUS_OK;
    const struct loss_scaler initial = run->position.scaler;
    TRY(resume_position(checkpoint, &run->engine, &run->position, err));
    const size_t folder = strlen(run->folder.checkpoints);
    const bool here = !strncmp(checkpoint->path, run->folder.checkpoints, folder) && checkpoint->path[folder] == '/';
    run->evaluation_part = run->position.evaluation_due ? json_incref(checkpoint->evaluation_part) : NULL;
    run->newest_step = here ? run->position.step : -1;
    run->saved_step = here && !run->position.evaluation_due ? run->position.step : -1;
    if (!run->spec->loss_scaler.dynamic) /* a fixed scale is the spec's */
        run->position.scaler = initial;
    return STATUS_OK;
}

/* "data/train and 2 more: 976 samples of 256 tokens an epoch, with loss masks; validation: 20 samples" */
static void prepare_data_text(const struct engine *t, char text[1024])
{
    const struct data_settings *data = &t->spec->data;
    char more[32] = "", validation[64] = "none";
    if (data->train.count > 1) snprintf(more, sizeof more, " and %d more", data->train.count - 1);
    if (t->validation.set)
        snprintf(validation, sizeof validation, "%" PRId64 " samples", token_stream_samples(&t->validation_config));
    const bool pairs = preference_sequences(&t->spec->preference) > 1 && t->spec->preference.loss != PREFERENCE_KTO;
    snprintf(text, 1024, "%.600s%s: %" PRId64 " %s of %s%" PRId64 " tokens an epoch%s%s; validation: %s",
             data->train.items[0], more, token_stream_samples(&t->train_config), pairs ? "pairs" : "samples",
             pairs                                 ? "answers of up to "
             : token_stream_cuts(&t->train_config) ? ""
                                                   : "up to ",
             data->seq_length, train_sources_have_mask(&t->sources) ? ", with loss masks" : "",
             token_stream_masks(&t->train_config) ? ", documents apart" : "", validation);
}

static void prepare_log_banner(const struct run *run)
{
    const struct engine *t = &run->engine;
    const struct run_spec *spec = run->spec;
    const struct dropout_rates *rates = &t->desc.dropout;
    const double dropout = fmax(fmax(rates->embedding, rates->attention), fmax(rates->residual, rates->pooled));
    char data[1024], memory[MEMORY_SUMMARY], dropped[32] = "", ranks[80], trained[48] = "";
    char why[sizeof t->why_cpu + 16] = "";
    if (*t->why_cpu) snprintf(why, sizeof why, "the CPU (%s), ", t->why_cpu);
    prepare_data_text(t, data);
    memory_plan_summary(t, memory);
    if (dropout > 0) snprintf(dropped, sizeof dropped, ", dropout %g", dropout);
    if (t->table.adapted)
        snprintf(trained, sizeof trained, ", %" PRId64 " of them trained",
                 t->table.num_params - t->table.frozen_params);
    log_info("ztrain %s: %s, %" PRId64 " parameters%s%s", ZTRAIN_VERSION, model_family_name(t->desc.family),
             t->table.num_params, trained, dropped);
    log_info("ranks: %d (%s); device: %s%s, %d thread%s; %s, ZeRO stage %d", run->boot->world, run->boot->source, why,
             t->device->name, t->device->threads, PLURAL(t->device->threads), dtype_name(spec->dtype),
             spec->zero.stage);
    if (spec->train.virtual_ranks)
        snprintf(ranks, sizeof ranks, "virtual ranks %" PRId64 " (%" PRId64 " on each rank)", spec->train.virtual_ranks,
                 spec->train.virtual_ranks / run->boot->world);
    else
        snprintf(ranks, sizeof ranks, "ranks %d", run->boot->world);
    log_info("batch: train_batch_size %" PRId64 " = micro %" PRId64 " x accumulation %" PRId64 " x %s; %" PRId64
             " steps, %" PRId64 " an epoch",
             spec->train_batch_size, spec->train_micro_batch_size_per_gpu, spec->gradient_accumulation_steps, ranks,
             t->total_steps, t->steps_per_epoch);
    log_info("data: %s", data);
    log_info("memory: %s; run folder %s", memory, run->folder.path);
}

static void prepare_log_start(const struct run *run)
{
    const struct engine *t = &run->engine;
    const int cores = machine_cores();
    RELEASED(string_list_release) struct string_list autos = {0};
    prepare_log_banner(run);
    for (const struct run *each = run->next ? run : NULL; each; each = each->next) { /* several adapters */
        char data[1024];
        prepare_data_text(&each->engine, data);
        run_speaks(each);
        log_info("%" PRId64 " parameters; %" PRId64 " steps, %" PRId64 " an epoch; data: %s; run folder %s",
                 each->engine.table.num_params - each->engine.table.frozen_params, each->engine.total_steps,
                 each->engine.steps_per_epoch, data, each->folder.path);
    }
    run_speaks(NULL);
    log_detail("device: %s; %s", t->device->name, t->device->detail);
    spec_auto_print(run->spec, &autos);
    for (int i = 0; i < autos.count; i++) log_info("%s", autos.items[i]);
    if (run->boot->rank == 0 && t->device->threads > 2 * cores)
        log_warn("OMP_NUM_THREADS %d is far above the %d core%s that each rank may use: steps will be slow; hint: "
                 "without it a rank takes a thread for each of its cores",
                 t->device->threads, cores, PLURAL(cores));
    memory_plan_print(t, false);
}

/* ---- outputs ------------------------------------------------------------- */

/* Moves later checkpoints aside, opens metrics.jsonl with the lines that led to this one, and completes its save. Up to
 * here only run.yaml has changed in the run folder, and everything that can refuse the resume has had its turn. */
static enum status prepare_rewind(struct run *run, const struct checkpoint *checkpoint, struct error *err)
{
    const struct train_position *position = &run->position;
    const bool branched = run->home.start == RUN_BRANCHED;
    RELEASED(checkpoint_rewind_release) struct checkpoint_rewind rewind = {0};
    char path[FS_PATH_MAX];
    TRY(resume_plan_rewind(run->resume, &run->home, checkpoint, &rewind, err));
    TRY(checkpoint_rewind_apply(&rewind, err));
    snprintf(path, sizeof path, "%s", checkpoint->path);
    if (!branched) TRY(fs_join(path, rewind.dir, rewind.name, STATUS_CHECKPOINT, err));
    if (rewind.metrics_from < 0)
        log_warn("no metrics.jsonl.N has the lines that led to '%s': metrics.jsonl begins at step %" PRId64, path,
                 position->step + 1);
    struct metrics_history lines = {.step = position->step,
                                    .evaluation_due = position->evaluation_due,
                                    .checkpoint = path,
                                    .bytes = checkpoint->bytes,
                                    .from = rewind.metrics_from,
                                    .former = rewind.number};
    TRY(metrics_open(run->folder.metrics, branched ? NULL : &lines, &run->metrics, err));
    TRY(metrics_resume(run->metrics, path, position->step, run->boot->world, err));
    if (!branched) {
        const struct checkpoint_keep keep = save_keep_of(run);
        checkpoint_save_tidy(run->save_cache, rewind.dir, rewind.name, &checkpoint->position, &keep);
    }
    log_info("resumed from %s at step %" PRId64 ", epoch %" PRId64, path, position->step, position->epoch);
    return STATUS_OK;
}

static enum status prepare_outputs(struct run *run, const struct checkpoint *checkpoint, struct error *err)
{
    TRY(token_stream_open(&run->engine.train_config, run->position.step + 1, &run->stream, err));
    console_init(&run->console, run->spec, run->boot->rank != 0 || run->replay, run->engine.total_steps);
    if (run->replay) return replay_begin(run, err);
    if (run->boot->rank != 0) return STATUS_OK;
    TRY(run_folder_still_ours(&run->folder, err));
    TRY(run_folder_write_spec(&run->folder, run->spec, err));
    if (checkpoint)
        TRY(prepare_rewind(run, checkpoint, err));
    else
        TRY(metrics_open(run->folder.metrics, NULL, &run->metrics, err));
    if (run->restart.number > 0)
        TRY(metrics_restart(run->metrics, run->restart.number, run->position.step, run->restart.code,
                            run->restart.cause, err));
    if (run->kernels_changed) TRY(metrics_kernels_changed(run->metrics, run->kernels_changed, run->position.step, err));
    metrics_ask_owner(run->metrics, run_folder_still_ours, &run->folder);
    if (run->kernel_choices) run_kernels_write(run->folder.path, run->engine.device, run->kernel_choices);
    run->monitor = monitor_open(run->spec, run->folder.path, run->position.step, run->position.evaluation_due);
    return STATUS_OK;
}

/* ---- kernels ------------------------------------------------------------- */

static enum status prepare_share_choices(struct run *run, struct error *err)
{
    const bool is_first = run->boot->rank == 0;
    uint64_t bytes = run->kernel_choices ? strlen(run->kernel_choices) + 1 : 0;
    TRY(comm_broadcast(run->comm, &bytes, sizeof bytes, 0, err));
    if (!bytes) return STATUS_OK;
    OWNED char *received = is_first ? NULL : memory_alloc(bytes);
    TRY(comm_broadcast(run->comm, is_first ? run->kernel_choices : received, bytes, 0, err));
    if (!is_first) device_take_choices(run->engine.device, received, true);
    return STATUS_OK;
}

/* Rank 0 chooses kernels, on a resume the run's own, and the others take them: no machine changes a step's bits. */
static enum status prepare_choose_in_turn(struct run *run, struct error *err)
{
    struct error failure = {.code = STATUS_OK};
    const bool is_first = run->boot->rank == 0;
    enum status status = STATUS_OK;
    if (is_first) {
        OWNED char *taken = run_kernels_take(run->engine.device, &run->home, run->checkpoint);
        status = engine_prepare_ops(&run->engine, &failure);
        if (status == STATUS_OK) run->kernel_choices = run_kernels_join(run->engine.device, taken);
    }
    if (run->boot->world > 1) TRY(prepare_share_choices(run, err));
    if (status != STATUS_OK) *err = failure;
    if (!is_first) status = engine_prepare_ops(&run->engine, err);
    return run_agree(run, status, err);
}

/* ---- what it costs that cuDNN does not compute attention ----------------- */

/* Writes "; by `ztrain plan --speed`, a step takes about 12 % longer for it", or nothing if that is not known. */
static void prepare_attention_price(const struct engine *t, char *text, size_t size)
{
    struct error ignored;
    struct gpu_model known;
    const char *gpu = gpu_catalog_find(t->device->name, &known, &ignored) == STATUS_OK ? t->device->name : NULL;
    const struct machine_question question = {.world = t->world, .per_node = t->node_ranks, .device = gpu};
    struct run_spec copy = *t->spec;
    struct simulated_machine machine;
    RELEASED(simulated_run_release) struct simulated_run walk = {.machine = NULL};
    char longer[ATTENTION_PRICE] = "";
    if (simulated_machine_find(&question, &machine, &ignored) == STATUS_OK &&
        simulated_run_build(&walk, &machine, &copy, true, &ignored) == STATUS_OK)
        attention_price(&walk, &machine, t->device, longer);
    text[0] = '\0';
    if (*longer)
        snprintf(text, size, "; by `ztrain plan --speed`, a step takes %s longer for it%s", longer,
                 gpu ? "" : " (on an H100)");
}

/* On rank 0 of GPUs, after products are prepared: a warning if cuDNN could compute attention, else a line. */
static void prepare_warns_of_attention(const struct engine *t)
{
    char price[160], layers[OPS_ATTENTION_SHAPES * ATTENTION_LAYERS] = "";
    struct op_limits limits;
    const char *why = NULL;
    bool could = false, all = true;
    if (t->rank != 0 || t->device->kind != DEVICE_CUDA) return;
    transformer_op_limits(t->transformer, &limits);
    for (int i = 0; i < limits.num_attention; i++) {
        const struct attention_fwd_args *args = &limits.attention[i].fwd;
        const char *reason = device_attention_obstacle(t->device, args, false);
        if (!reason) reason = device_attention_obstacle(t->device, args, true);
        all = all && reason;
        if (!reason) continue;
        attention_layers(&limits, i, layers + strlen(layers));
        if (!why || !could) why = reason;
        could = could || !attention_own_reason(args);
    }
    if (!why) return;
    prepare_attention_price(t, price, sizeof price);
    (could ? log_warn : log_info)("attention%s runs on ztrain's kernels, not on cuDNN's%s: %s", all ? "" : layers,
                                  price, why);
}

/* ---- in this order ------------------------------------------------------- */

/* Weights and outputs: what is left before the first step. */
static enum status prepare_start(struct run *run, struct error *err)
{
    struct engine *t = &run->engine;
    const struct checkpoint *checkpoint = run->checkpoint;
    const int64_t stored = t->table.num_params - (t->table.adapted ? t->table.frozen_params : 0);
    if (run->boot->rank == 0)
        deadline_init(&run->deadline, (double)stored * checkpoint_bytes / slow_disk, deadline_period);
    char differs[MACHINE_DIFFERENCES] = "", ranks[MACHINE_DIFFERENCES]; /* from the checkpoint; among the ranks */
    enum status status = STATUS_OK;
    run->machine = machine_record_to_json(t->device);
    machine_record_add_choices(run->machine, t->device, run->spec);
    if (checkpoint && *machine_record_differences(checkpoint, run->machine, run->spec, differs, sizeof differs)) {
        if (machine_record_is_strict(run->spec))
            status = machine_record_refuse(checkpoint, run->machine, differs, err);
        else
            log_info("the checkpoint was computed with other kernels or libraries (%s): the run continues with other "
                     "bits",
                     differs);
    }
    TRY(run_agree(run, status, err));
    TRY(machine_record_compare_ranks(run->comm, run->boot, run->machine, run->spec, ranks, err));
    json_object_del(run->machine, MACHINE_LOST_KERNEL);
    if (run->spec->train.virtual_ranks && (*differs || *ranks))
        run->kernels_changed = memory_printf("%s%s%s", differs, *differs && *ranks ? "; " : "", ranks);
    TRY(run_agree(run, engine_weights_load(t, checkpoint, err), err));
    TRY(engine_weights_check_base(t, checkpoint, err));
    if (t->table.adapted) { /* as PEFT names it: a model of the hub by its name, else the folder */
        const char *base = run->spec->model.pretrained;
        if (base && strcmp(base, run->spec->model.folder) == 0) base = t->base.folder;
        run->adapter = adapter_config_to_json(&run->spec->adapter, &t->desc, &t->table, base);
    }
    TRY(zero_params_changed(t->zero, t->compute, err));
    TRY(stepper_init(&run->stepper, t, err));
    TRY(run_agree(run, background_save_start(run, err), err));
    const int64_t interval = run->spec->train.check_interval_steps;
    if (interval) zero_check_enable(t->zero);
    if (interval && run->boot->rank == 0)
        log_detail("each step whose number is a multiple of %" PRId64
                   " is computed twice and compared (train.check_interval_steps)",
                   interval);
    if (!run->found) TRY(prepare_run_folder(run, err));
    TRY(run_references(run, err));
    zero_set_position(t->zero, run->position.optimizer_step, &run->position.scaler, t->compute);
    return run_agree(run, prepare_outputs(run, checkpoint, err), err);
}

/* The run folder, if it exists, the checkpoint to resume from, and the batch. */
static enum status prepare_run(struct run *run, struct error *err)
{
    const struct bootstrap *boot = run->boot;
    run->found = true;
    if (run->options->replay) {
        TRY(replay_open(run, err));
    } else {
        TRY(prepare_folder(run, err));
        if (run->found) TRY(prepare_run_folder(run, err));
    }
    if (!run->resume) return run_agree(run, spec_resolve_batch(run->spec, boot->world, boot->source, err), err);
    const struct retry retry = {.limit = fmin(PATIENCE_INTERVAL, run->spec->checkpoint.retry_seconds),
                                .stopped = stop_signal_pending};
    TRY(run_agree(run, resume_open(run->comm, boot->host, run->resume, &retry, &run->checkpoint, err), err));
    return run_agree(run, resume_check(run->checkpoint, run->spec, boot->world, boot->source, boot->rank == 0, err),
                     err);
}

/* To score documents: no run folder, nothing that training needs. */
static enum status prepare_scoring(struct run *run, struct error *err)
{
    const struct rank_options *options = run->options;
    const struct bootstrap *boot = run->boot;
    struct engine *t = &run->engine;
    const bool mismatched = options->score_together > 0;
    if (run->next) return error_set(err, STATUS_USAGE, "the run has several adapters; hint: name the folder of one");
    run->spec->transformer.label_smoothing = 0;
    if (options->score_top_k) run->spec->transformer.logits_dtype = DTYPE_F32;
    run->spec->preference = (struct preference_settings){.loss = mismatched ? PREFERENCE_KTO : PREFERENCE_NONE};
    TRY(run_agree(run, spec_resolve_batch(run->spec, boot->world, boot->source, err), err));
    if (options->score_base && !run->spec->adapter.on)
        return error_set(err, STATUS_USAGE, "--adapter-off needs an adapter, and the run has none; hint: leave it out");
    if (run->spec->model.task != TASK_CAUSAL_LM)
        return error_set(err, STATUS_USAGE,
                         "the model has a label instead of a next token; hint: name a language model");
    if (mismatched) run->spec->train_micro_batch_size_per_gpu = options->score_together;
    const struct retry retry = {.limit = PATIENCE_INTERVAL, .stopped = stop_signal_pending};
    if (run->resume)
        TRY(run_agree(run, resume_open(run->comm, boot->host, run->resume, &retry, &run->checkpoint, err), err));
    t->boot = boot;
    t->node_ranks = boot->local_world;
    t->scores = true;
    TRY(engine_build(t, run->spec, boot->rank, boot->world, run->comm, boot->cores, err));
    if (run->checkpoint)
        TRY(run_agree(run, engine_check_model(t, "the checkpoint", run->checkpoint->path, run->checkpoint->model, err),
                      err));
    TRY(run_agree(run, engine_open_scored(t, err), err));
    TRY(run_agree(run, memory_limit_check(t, err), err));
    TRY(prepare_choose_in_turn(run, err));
    TRY(memory_plan_allocate(t, err));
    const enum status status = options->score_base ? engine_weights_load_reference(t, NULL, err)
                                                   : engine_weights_load(t, run->checkpoint, err);
    TRY(run_agree(run, status, err));
    TRY(engine_weights_check_base(t, run->checkpoint, err));
    return zero_params_changed(t->zero, t->compute, err);
}

static enum status prepare_runs(struct run *first, struct error *err)
{
    for (struct run *run = first; run; run = run->next) TRY(prepare_run(run, err));
    struct engine *t = &first->engine; /* builds everything that needs no memory of the device */
    t->profile = first->options->profile;
    t->boot = first->boot;
    t->node_ranks = first->boot->local_world;
    if (first->checkpoint && machine_record_kernels(first->checkpoint->machine, &first->kernels_before))
        t->kernels_before = &first->kernels_before;
    for (struct run *run = first; run->next; run = run->next) run->engine.next = &run->next->engine;
    enum status status =
        engine_build(t, first->spec, first->boot->rank, first->boot->world, first->comm, first->boot->cores, err);
    for (struct run *run = first; run && status == STATUS_OK; run = run->next) status = prepare_data(run, err);
    TRY(run_agree(first, status, err));
    prepare_log_start(first);
    enum status fits = memory_limit_check(t, err); /* the machine, for all runs: memory and kernels */
    if (fits == STATUS_OK) fits = memory_node_check(t, err);
    TRY(run_agree(first, fits, err));
    TRY(gpu_test_before_run(t, err));
    TRY(prepare_choose_in_turn(first, err));
    for (struct run *run = first->next; run && first->kernel_choices; run = run->next)
        run->kernel_choices = memory_text(first->kernel_choices);
    prepare_warns_of_attention(t);
    TRY(run_agree(first, memory_limit_check(t, err), err)); /* kernels that replace refused ones may need more */
    TRY(run_agree(first, memory_free_check(t, err), err));
    TRY(memory_plan_allocate(t, err));
    for (struct run *run = first; run; run = run->next) {
        run_speaks(run);
        TRY(prepare_start(run, err));
    }
    run_speaks(NULL);
    return STATUS_OK;
}

enum status run_prepare(struct run *first, struct error *err)
{
    const enum status status = first->options->score ? prepare_scoring(first, err) : prepare_runs(first, err);
    for (struct run *run = first; run; run = run->next) {
        if (run->checkpoint) checkpoint_close(run->checkpoint);
        run->checkpoint = NULL;
    }
    return status;
}

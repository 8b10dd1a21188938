#include "cmd/engine/engine.h"

#include "cmd/engine/choose_device.h"
#include "cmd/engine/choose_kernels.h"
#include "cmd/engine/choose_sm_target.h"
#include "cmd/engine/engine_labels.h"
#include "cmd/engine/memory_plan.h"
#include "comm/agree.h"
#include "core/data/cut_count.h"
#include "core/log.h"
#include "core/model/model_folder.h"
#include "core/printable.h"
#include "core/text/tokenizer.h"
#include "gpu/open/device_open.h"
#include "gpu/ops_profile.h"
#include "gpu/peaks.h"
#include "gpu/phase_times.h"
#include "gpu/simulate/simulated_device.h"

#include <inttypes.h>
#include <xxhash.h>

/* packing false or first_fit: batches are rounded up to this many tokens (at most seq_length), so that GEMMs see few
 * different shapes */
enum { TOKEN_MULTIPLE = 16 };

/* Makes the model that of model.task. */
static enum status apply_task(const struct run_spec *spec, struct model_desc *desc, struct error *err)
{
    int64_t num_labels = spec->model.num_labels;
    if (spec->model.task == TASK_CAUSAL_LM && desc->num_labels > 0) {
        error_set(err, STATUS_USAGE, "the model is a classifier, and model.task is causal_lm");
        return error_hint(err, "model.task: sequence_classification, or the folder of a language model");
    }
    if (spec->model.task == TASK_CAUSAL_LM)
        return model_desc_check_causal(desc, err);
    if (num_labels == 0)
        num_labels = desc->num_labels;
    if (num_labels == 0)
        TRY(engine_count_labels(spec, &num_labels, err));
    return model_desc_classify(desc, num_labels, err);
}

/* Whether model.tokenizer leads to a tokenizer, of whatever kind. */
static enum status check_tokenizer(const struct run_spec *spec, struct error *err)
{
    const char *folder = spec->model.tokenizer_folder;
    if (!spec->model.tokenizer || tokenizer_is_there(folder))
        return STATUS_OK;
    if (!fs_exists(folder) && model_folder_is_name(folder))
        model_folder_missing(folder, STATUS_DATA, err);
    else
        error_set(err, STATUS_DATA, "'%s' is no folder with a tokenizer.json, vocab.json, vocab.txt or tokenizer.model",
                  PRINTABLE(folder));
    return error_prefix(err, "model.tokenizer");
}

enum status engine_describe_model(const struct run_spec *spec, bool notices, struct model_desc *desc, struct error *err)
{
    enum status status;
    TRY(check_tokenizer(spec, err));
    if (spec->model.config)
        status = model_desc_from_spec(spec->model.config, desc, err);
    else
        status = model_desc_load(spec->model.folder, desc, err);
    if (status != STATUS_OK) {
        error_prefix(err, "%s", spec->model.where);
        return status;
    }
    status = apply_task(spec, desc, err);
    if (status != STATUS_OK) {
        model_desc_release(desc);
        return status;
    }
    if (spec->model.dropout >= 0)
        model_desc_set_dropout(desc, spec->model.dropout);
    if (notices && spec->model.pretrained && strcmp(spec->model.pretrained, spec->model.folder) != 0)
        log_info("model: %s is in %s", PRINTABLE(spec->model.pretrained), PRINTABLE(spec->model.folder));
    for (int i = 0; notices && i < desc->notices.count; i++)
        log_info("model: %s", desc->notices.items[i]);
    const struct dropout_rates *rates = &desc->dropout;
    char pooled[48] = "";
    if (desc->pooler)
        snprintf(pooled, sizeof pooled, ", pooled output %g", rates->pooled);
    if (notices && (rates->embedding > 0 || rates->attention > 0 || rates->residual > 0 || rates->pooled > 0))
        log_info("model: dropout in training: embeddings %g, attention weights %g, residual branches %g%s",
                 rates->embedding, rates->attention, rates->residual, pooled);
    if (spec->data.seq_length > desc->max_positions) {
        error_set(err, STATUS_USAGE, "data.seq_length %" PRId64 " is longer than the model's %" PRId64 " positions",
                  spec->data.seq_length, desc->max_positions);
        error_hint(err, "set a shorter data.seq_length, or use a model with more positions");
        model_desc_release(desc);
        return STATUS_USAGE;
    }
    return STATUS_OK;
}

/* The token streams of training and evaluation. */
static void configure_streams(struct engine *t)
{
    const struct run_spec *spec = t->spec;
    t->train_config = (struct token_stream_config){
        .seq_length = spec->data.seq_length,
        .vocab_size = t->desc.vocab_size,
        .shuffle = spec->data.shuffle,
        .packing = spec->data.packing == SPEC_PACKING_CUT,
        .document_mask = spec->data.document_mask == SPEC_DOCUMENT_MASK_ON,
        .classification = t->desc.num_labels > 0,
        .label_first = t->desc.pooler,
        .padding_token = model_desc_padding(&t->desc),
        .seed = spec->run.seed,
        .rank = t->rank,
        .world = t->world,
        .batch_size = spec->train_batch_size,
        .micro_batch_size = spec->train_micro_batch_size_per_gpu,
        .token_multiple = spec->data.packing == SPEC_PACKING_CUT && spec->data.document_mask != SPEC_DOCUMENT_MASK_ON
                              ? 1
                          : spec->data.seq_length < TOKEN_MULTIPLE ? spec->data.seq_length
                                                                   : TOKEN_MULTIPLE,
    };
    t->validation_config = t->train_config;
    t->validation_config.evaluation = true;
    t->validation_config.shuffle = false;
    const bool limited = spec->train.eval_batches <= INT64_MAX / spec->train_batch_size; /* otherwise: all samples */
    t->validation_config.max_samples = limited ? spec->train.eval_batches * spec->train_batch_size : 0;
}

/* Between two parts of the construction: the next part is collective, so all ranks must have done this one. */
static enum status engine_agree(struct engine *t, enum status status, struct error *err)
{
    return t->comm ? agree(t->comm, status, err) : status;
}

static enum status describe_shards(struct engine *t, struct error *err)
{
    TRY(engine_describe_model(t->spec, t->rank == 0 && !t->quiet, &t->desc, err));
    spec_resolve_model(t->spec, t->desc.hidden_size);
    TRY(engine_samples_new(t->spec, &t->desc, &t->samples, err));
    TRY(tensor_table_build(&t->desc, &t->table, err));
    TRY(shard_layout_init(&t->layout, &t->table, t->world, err));
    if (t->spec->data.document_mask == SPEC_DOCUMENT_MASK_AUTO) {
        t->found_mask = train_sources_probe_mask(t->spec);
        t->probed = true;
        spec_resolve_document_mask(t->spec, t->found_mask);
    }
    configure_streams(t);
    return STATUS_OK;
}

/* Opens the device, and attaches the communicator to it. */
static enum status open_device(struct engine *t, int threads, struct error *err)
{
    struct device_choice choice;
    const char *way = NULL;
    int ctas;
    if (t->planned)
        return STATUS_OK;
    TRY(engine_agree(t, choose_device(t->spec, t->comm, t->boot, &choice, err), err));
    if (choice.to_plan)
        return simulated_device_open(NULL, &t->device, err);
    struct cpu_kernels kernels;
    enum status status;
    if (choice.kind == DEVICE_CPU) {
        TRY(choose_kernels(t->comm, t->boot, t->kernels_before, &kernels, err));
        status = device_open_cpu(&kernels, threads, &t->device, err);
    } else {
        status = device_open(choice.kind, choice.index, threads, &t->device, err);
    }
    TRY(engine_agree(t, status, err));
    ops_profile_enable(t->device, t->profile); /* before anyone takes the op table */
    TRY(phase_times_new(t->device, &t->phase_times, err));
    TRY(engine_agree(t, choose_sm_target(t->spec, t->device, t->world, t->comm, t->boot, &ctas, err), err));
    if (t->comm)
        TRY(engine_agree(t, comm_attach_device(t->comm, t->device, choice.may_share, ctas, &way, err), err));
    if (way && t->rank == 0)
        log_info("collectives: %s", way);
    apply_sm_target(t->spec, t->device, t->comm, ctas, t->rank == 0);
    return STATUS_OK;
}

/* A classifier's few logits are read by the host, too. */
static enum dtype logits_dtype(const struct engine *t)
{
    const struct run_spec *spec = t->spec;
    if (t->desc.num_labels)
        return DTYPE_F32;
    return spec->train.logits_dtype == DTYPE_COUNT ? spec->dtype : (enum dtype)spec->train.logits_dtype;
}

static struct transformer_config configure_transformer(const struct engine *t)
{
    const struct run_spec *spec = t->spec;
    struct transformer_config config = {
        .desc = &t->desc,
        .table = &t->table,
        .dtype = spec->dtype,
        .max_seq = (int32_t)spec->data.seq_length,
        .max_position = spec->data.seq_length,
        .training = true,
        .recompute = spec->recompute,
        .dropout = t->desc.dropout,
        .dropout_seed = spec->run.seed,
        .label_smoothing = (float)spec->train.label_smoothing,
        .logits_dtype = logits_dtype(t),
        .ragged = !t->train_config.packing || t->train_config.document_mask || t->train_config.classification,
        .unordered_attention = !spec->train.deterministic,
        .graphs_by_block = t->graphs != GRAPHS_NONE, /* by step: from when a step could not be captured */
        .graphs_demanded = spec->train.cuda_graphs == SPEC_GRAPHS_ON,
        .inputs = t->graphs == GRAPHS_BY_STEP ? (int32_t)spec->gradient_accumulation_steps : 1,
    };
    token_stream_limits(&t->train_config, &config.max_tokens, &config.max_seqs);
    if (t->activations)
        config.activations = activation_store_verbs(t->activations);
    return config;
}

/* Logs what train.deterministic: false does here; `own`: ztrain's kernels compute attention's backward pass. */
static void describe_determinism(const struct engine *t, bool own)
{
    if (t->spec->train.deterministic)
        return;
    if (t->device->kind != DEVICE_CUDA || own || t->spec->dtype == DTYPE_F32)
        log_info("train.deterministic: false has no effect %s: results repeat bit for bit",
                 t->device->kind != DEVICE_CUDA ? "on the CPU device" : "on ztrain's kernels for attention");
    else
        log_info(
            "train.deterministic: false: the backward pass of attention by cuDNN adds in any order; results do not "
            "repeat bit for bit, and ranks, stages and resumed runs agree to rounding");
}

/* Logs why attention on a GPU does not go through cuDNN, if the model is the reason. */
static void describe_attention(const struct engine *t)
{
    if (t->rank != 0 || t->quiet)
        return;
    describe_determinism(t, t->desc.attention_softcap > 0);
    if (t->device->kind != DEVICE_CUDA)
        return;
    if (t->desc.attention_softcap > 0)
        log_info("attention: the soft cap of its scores takes ztrain's kernels, which are slower than cuDNN's");
}

/* The transformer, and the store of its blocks' inputs. */
static enum status build_transformer(struct engine *t, struct error *err)
{
    describe_attention(t);
    struct transformer_config config = configure_transformer(t);
    if (t->spec->cpu_checkpointing && t->spec->recompute != RECOMPUTE_NONE) {
        size_t bytes = (size_t)config.max_tokens * (size_t)t->desc.hidden_size * dtype_size(config.dtype);
        TRY(activation_store_new(t->device, t->desc.num_layers, bytes, &t->activations, err));
        config.activations = activation_store_verbs(t->activations);
    }
    TRY(transformer_new(&config, t->device, &t->transformer, err));
    return t->samples ? engine_samples_attach(t->samples, t->transformer, err) : STATUS_OK;
}

enum status engine_build(struct engine *t, struct run_spec *spec, int rank, int world, struct comm *comm, int threads,
                         struct error *err)
{
    t->spec = spec;
    t->rank = rank;
    t->world = world;
    t->comm = comm;
    t->device = t->planned;
    TRY(engine_agree(t, describe_shards(t, err), err));
    TRY(open_device(t, threads, err));
    TRY(stream_new(t->device, STREAM_COMPUTE, &t->compute, err));

    const struct graph_question question = {.spec = spec,
                                            .desc = &t->desc,
                                            .device = t->device,
                                            .comm = comm,
                                            .profile = t->profile,
                                            .log_choice = rank == 0 && !t->planned};
    TRY(choose_graphs(&question, &t->graphs, err));

    struct zero_config zero = {
        .stage = spec->zero.stage,
        .dtype = spec->dtype,
        .comm_dtype = spec->communication_data_type,
        .comm_factor = (float)spec_comm_factor(spec, world),
        .grad_dtype = spec->grad_accum_dtype,
        .master_dtype = spec->bf16_master ? DTYPE_BF16 : DTYPE_F32,
        .moment_dtype = spec->bf16_moments ? DTYPE_BF16 : DTYPE_F32,
        .rounding_seed = spec->run.seed,
        .overlap_comm = spec->zero.overlap_comm,
        .reduce_bucket_size = spec->zero.reduce_bucket_size,
        .allgather_bucket_size = spec->zero.allgather_bucket_size,
        .optimizer = spec->optimizer,
        .clip = spec->gradient_clipping,
        .table = &t->table,
        .layout = &t->layout,
        .tied = t->desc.tied,
        .training = true,
        .scaler = spec->loss_scaler,
        .offload_optimizer = spec->zero.offload_optimizer,
        .offload_param = spec->zero.offload_param,
        .sub_group_size = spec->zero.sub_group_size,
        .aio = spec->aio,
    };
    if (t->planned_comm)
        zero.disk = simulated_device_disk(t->planned);
    TRY(zero_new(&zero, t->device, t->planned ? t->planned_comm : comm, &t->zero, err));

    TRY(build_transformer(t, err));
    return memory_plan_make(t, err);
}

enum status engine_activation_bytes(const struct engine *t, enum recompute policy, size_t *bytes, struct error *err)
{
    struct transformer_config config = configure_transformer(t);
    struct transformer *transformer;
    struct arena arena;
    config.recompute = policy;
    if (policy == RECOMPUTE_NONE) /* cpu_checkpointing is refused with it */
        config.activations = NULL;
    TRY(transformer_new(&config, t->device, &transformer, err));
    arena_init_dry(&arena);
    transformer_layout(transformer, &arena);
    transformer_free(transformer);
    *bytes = arena.by_kind[MEM_ACTIVATIONS];
    return STATUS_OK;
}

/* The key that sets the length of a schedule whatever the run's; NULL: it has none. */
static const char *length_key(enum schedule_type type)
{
    switch (type) {
    case SCHEDULE_LINEAR:
    case SCHEDULE_COSINE:
    case SCHEDULE_WSD: return "total_steps";
    case SCHEDULE_WARMUP_DECAY_LR:
    case SCHEDULE_WARMUP_COSINE_LR: return "total_num_steps";
    default: return NULL;
    }
}

/* A schedule that ends with the run, whose length has changed since the checkpoint: its learning rates jump. */
static void report_stretch(const struct engine *t)
{
    const struct schedule_spec *s = &t->spec->scheduler;
    const int64_t former = spec_former_steps(t->spec, t->steps_per_epoch);
    const char *key = length_key(s->type);
    char way[96] = "";
    if (!former || former == t->total_steps || !schedule_needs_total(s))
        return;
    if (key)
        snprintf(way, sizeof way, "; scheduler.params.%s: %" PRId64 " keeps the schedule", key, former);
    log_info("scheduler: %s follows the run's length, which was %" PRId64 " steps in the checkpoint and is %" PRId64
             " now: the learning rate is another from here on%s",
             schedule_name(s->type), former, t->total_steps, way);
}

/* The schedule against the run's length, which is known now. */
static enum status check_schedule(const struct engine *t, struct error *err)
{
    const struct schedule_spec *s = &t->spec->scheduler;
    const int64_t warmup = schedule_warmup(s);
    report_stretch(t);
    if (s->type != SCHEDULE_CONSTANT && warmup > t->total_steps)
        log_info("the run's %" PRId64 " steps end within the warm-up of %" PRId64
                 " (scheduler.params): the full learning rate is not reached",
                 t->total_steps, warmup);
    if (s->type == SCHEDULE_WSD && warmup + s->decay_steps > s->total_steps)
        return error_set(err, STATUS_USAGE,
                         "scheduler.params: WSD's warm-up of %" PRId64 " steps and decay of %" PRId64
                         " are more than its %" PRId64 " steps; hint: set a smaller decay_steps",
                         warmup, s->decay_steps, s->total_steps);
    return STATUS_OK;
}

/* data.packing first_fit: packs the documents of a token set, which `key` names in the log. */
static enum status pack_documents(const struct engine *t, const char *key, const struct token_set *set,
                                  struct first_fit **fit, struct error *err)
{
    const int64_t length = t->spec->data.seq_length;
    if (t->spec->data.packing != SPEC_PACKING_FIRST_FIT)
        return STATUS_OK;
    TRY(first_fit_new(set, length, fit, err));
    if (t->rank == 0 && !t->quiet && (*fit)->samples > 0)
        log_info("%s: %" PRId64 " documents in %" PRId64 " samples, which they fill to %.1f %%", key,
                 token_set_documents(set), (*fit)->samples,
                 100.0 * (double)(*fit)->tokens / ((double)(*fit)->samples * (double)length));
    return STATUS_OK;
}

/* Whether a document may be longer than a sample; a classifier refuses such documents when it reads them. */
static bool cuts_documents(const struct engine *t)
{
    return t->spec->data.packing != SPEC_PACKING_CUT && t->desc.num_labels == 0;
}

/* Rank 0 says what is lost where documents are cut; `training`: STATUS_DATA if no target is left. */
static enum status report_cuts(const struct engine *t, const char *key, const struct token_set *set, bool training,
                               struct error *err)
{
    const int64_t length = t->spec->data.seq_length;
    struct cut_count cut;
    if (t->rank != 0 || t->quiet || !cuts_documents(t))
        return STATUS_OK;
    TRY(cut_count(set, length, &cut, err));
    if (cut.documents == 0)
        return STATUS_OK;
    if (cut.targets > 0 && !cut.target_left && training)
        return error_set(err, STATUS_DATA,
                         "%s: data.seq_length %" PRId64 " cuts every target off: %" PRId64 " of %" PRId64
                         " documents are longer, and their %" PRId64
                         " targets are beyond it; hint: set a larger data.seq_length, or data.packing: true",
                         key, length, cut.documents, token_set_documents(set), cut.targets);
    log_info("%s: %" PRId64 " of %" PRId64 " documents are longer than data.seq_length %" PRId64
             " and are cut, which loses %" PRId64 " targets%s",
             key, cut.documents, token_set_documents(set), length, cut.targets,
             cut.target_left ? "" : ", and leaves none");
    return STATUS_OK;
}

/* Says where data.document_mask comes from if it was auto and the data have masks, and that masks are not used if so.
 */
static enum status check_masks(const struct engine *t, struct error *err)
{
    const bool leads = t->rank == 0 && !t->quiet, masked = train_sources_have_mask(&t->sources);
    const bool apart = t->spec->data.document_mask == SPEC_DOCUMENT_MASK_ON;
    if (t->probed && t->found_mask != masked)
        return error_set(err, STATUS_DATA,
                         "the loss masks of data.train appeared or vanished while the run began; hint: start it again "
                         "when the data are complete");
    if (!masked || !leads)
        return STATUS_OK;
    if (t->desc.num_labels > 0)
        log_warn(
            "the loss masks beside data.train are not used: with model.task sequence_classification a document has "
            "one target, its label");
    else if (spec_document_mask_was_auto(t->spec) && t->probed && apart)
        log_info(
            "data.document_mask: true, as data.train has loss masks; false lets the documents of a sample attend to "
            "each other");
    else if (spec_document_mask_was_auto(t->spec) && !t->probed && t->spec->data.packing != SPEC_PACKING_NONE)
        log_info("data.document_mask: %s, as the run began", apart ? "true" : "false");
    return STATUS_OK;
}

/* Opens data.train: one stream of shards, or a mixture of several. */
static enum status open_training_data(struct engine *t, struct error *err)
{
    const struct run_spec *spec = t->spec;
    const bool mixed = spec->data.amount != SPEC_AMOUNT_NONE;
    TRY(train_sources_open(spec, t->desc.vocab_size, &t->sources, err));
    TRY(check_masks(t, err));
    for (int i = 0; i < t->sources.count; i++) {
        const char *name = mixed ? PRINTABLE(spec->data.train.items[i]) : "data.train";
        TRY(pack_documents(t, name, t->sources.sets[i], &t->sources.fits[i], err));
        TRY(report_cuts(t, name, t->sources.sets[i], true, err));
        if (t->desc.num_labels > 0)
            TRY(engine_take_labels(t, t->sources.labels[i], err));
    }
    if (!mixed) {
        t->train_config.set = t->sources.sets[0];
        t->train_config.labels = t->sources.labels[0];
        t->train_config.fit = t->sources.fits[0];
        return STATUS_OK;
    }
    TRY(train_sources_mix(&t->sources, spec, &t->train_config, &t->mixture, err));
    t->train_config.mixture = &t->mixture;
    if (t->rank == 0 && !t->quiet)
        train_sources_print(spec, &t->mixture);
    return STATUS_OK;
}

static enum status open_validation_data(struct engine *t, struct error *err)
{
    const struct run_spec *spec = t->spec;
    struct token_stream_config *config = &t->validation_config;
    TRY(token_set_open((const char *const *)spec->data.validation.items, spec->data.validation.count,
                       &t->validation_set, err));
    struct data_fingerprint tokens;
    TRY(token_set_check(t->validation_set, t->desc.vocab_size, &tokens, err));
    const uint64_t facts[] = {tokens.first, (uint64_t)config->max_samples, (uint64_t)spec->data.seq_length,
                              (uint64_t)spec->data.packing};
    t->evaluation_data = XXH3_64bits(facts, sizeof facts);
    TRY(pack_documents(t, "data.validation", t->validation_set, &t->validation_fit, err));
    TRY(report_cuts(t, "data.validation", t->validation_set, false, err));
    if (t->desc.num_labels > 0) {
        TRY(label_set_open(t->validation_set, &t->validation_labels, err));
        TRY(engine_take_labels(t, t->validation_labels, err));
    }
    const uint64_t more[] = {t->evaluation_data, tokens.sampled, config->document_mask,
                             t->validation_labels ? label_set_fingerprint(t->validation_labels, 0) : 0};
    t->evaluation_part_data = XXH3_64bits(more, sizeof more);
    config->set = t->validation_set;
    config->labels = t->validation_labels;
    config->fit = t->validation_fit;
    for (int i = 0; i < t->sources.count; i++) {
        const char *both = token_set_common(t->sources.sets[i], t->validation_set);
        if (both)
            log_info("'%s' is in data.train and in data.validation: the evaluation's loss is not that of unseen text",
                     both);
    }
    if (token_stream_samples(config) < 1)
        return error_set(err, STATUS_DATA,
                         "data.validation holds no whole sample of %" PRId64
                         " tokens; hint: add validation data, or set a shorter data.seq_length",
                         spec->data.seq_length);
    return STATUS_OK;
}

enum status engine_open_data(struct engine *t, struct error *err)
{
    const struct run_spec *spec = t->spec;
    TRY(open_training_data(t, err));
    t->steps_per_epoch = token_stream_steps_per_epoch(&t->train_config);
    if (t->steps_per_epoch < 1)
        return error_set(err, STATUS_DATA,
                         "data.train holds %" PRId64 " samples%s, fewer than one train_batch_size of %" PRId64
                         "; hint: add data, or set a smaller train_batch_size or a shorter data.seq_length",
                         token_stream_samples(&t->train_config), t->train_config.mixture ? " an epoch" : "",
                         spec->train_batch_size);
    t->total_steps = spec_resolve_steps(t->spec, t->steps_per_epoch);
    TRY(check_schedule(t, err));
    if (spec->data.validation.count)
        return open_validation_data(t, err);
    if (spec->train.eval_interval_steps)
        log_info("train.eval_interval_steps is set, but there is no data.validation: nothing is evaluated");
    if (t->samples && t->rank == 0)
        log_info("train.samples is set, but there is no data.validation: samples come with evaluations");
    return STATUS_OK;
}

void engine_release(struct engine *t)
{
    engine_samples_free(t->samples);
    if (t->transformer)
        transformer_free(t->transformer);
    activation_store_free(t->activations);
    if (t->zero)
        zero_free(t->zero);
    if (t->compute)
        stream_free(t->compute);
    if (t->comm) /* first: until then NCCL may have peers look into the memory of a graph's collectives */
        comm_detach_device(t->comm);
    memory_plan_free(t);
    phase_times_free(t->phase_times);
    if (t->device)
        device_close(t->device);
    train_sources_release(&t->sources);
    label_set_close(t->validation_labels);
    first_fit_free(t->validation_fit);
    token_set_close(t->validation_set);
    shard_layout_release(&t->layout);
    tensor_table_release(&t->table);
    model_desc_release(&t->desc);
}

void engine_utilisation(const struct engine *t, struct step_metrics *m)
{
    double flops = transformer_flops_per_token(&t->desc, t->spec->data.seq_length);
    enum dtype dtype = t->spec->dtype;
    m->mfu = peaks_mfu(flops, m->tokens_per_s, t->world, t->device->peak_flops[dtype]);
    m->of_ceiling = peaks_mfu(flops, m->tokens_per_s, t->world, t->device->ceiling_flops[dtype]);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/engine/engine.h"

#include "comm/agree.h"
#include "core/model/adapter.h"
#include "core/model/model_folder.h"
#include "core/model/stored_base.h"
#include "gpu/ops_profile.h"
#include "gpu/span_recorder.h"

/* packing false or first_fit: batches are rounded up to this many tokens, so that GEMMs see few different shapes */
enum { TOKEN_MULTIPLE = 16 };

static enum status engine_apply_task(const struct run_spec *spec, struct model_desc *desc, struct error *err)
{
    int64_t num_labels = spec->model.num_labels;
    if (spec->model.task == TASK_CAUSAL_LM && desc->num_labels > 0) {
        error_set(err, STATUS_USAGE, "the model is a classifier, and model.task is causal_lm");
        return error_hint(err, "model.task: sequence_classification, or the folder of a language model");
    }
    if (spec->model.task == TASK_CAUSAL_LM) return model_desc_check_causal(desc, err);
    if (spec->model.task == TASK_REWARD) return model_desc_classify(desc, 1, err);
    if (num_labels == 0) num_labels = desc->num_labels;
    if (num_labels == 0) TRY(engine_count_labels(spec, &num_labels, err));
    if (num_labels == 1) {
        error_set(err, STATUS_USAGE, "a classifier with 1 label is not supported");
        return error_hint(err, "2 or more are; model.task: reward trains one label, on pairs of answers");
    }
    return model_desc_classify(desc, num_labels, err);
}

static enum status engine_check_tokenizer(const struct run_spec *spec, struct error *err)
{
    const char *folder = spec->model.tokenizer_folder;
    if (!spec->model.tokenizer || tokenizer_folder_has(folder)) return STATUS_OK;
    if (!fs_exists(folder) && model_folder_is_name(folder))
        model_folder_missing(folder, STATUS_DATA, err);
    else
        error_set(err, STATUS_DATA, "'%s' is no folder with a tokenizer.json, vocab.json, vocab.txt or tokenizer.model",
                  PRINTABLE(folder));
    return error_prefix(err, "model.tokenizer");
}

static void engine_log_model(const struct run_spec *spec, const struct model_desc *desc)
{
    const struct dropout_rates *rates = &desc->dropout;
    char pooled[48] = "";
    if (spec->model.pretrained && strcmp(spec->model.pretrained, spec->model.folder) != 0)
        log_detail("model: %s is in %s", PRINTABLE(spec->model.pretrained), PRINTABLE(spec->model.folder));
    for (int i = 0; i < desc->notices.count; i++) log_info("model: %s", desc->notices.items[i]);
    if (desc->padding_token >= 0 && !desc->bidirectional) /* an encoder's samples do not hold it */
        log_info("model: pad_token_id %" PRId64 ": its embedding %s", desc->padding_token,
                 desc->trains_padding ? "is trained like the others (model.train_pad_token)"
                                      : "gets no gradient from the input; model.train_pad_token: true trains it");
    for (int k = 0; k < 2; k++) {
        const struct rope_desc *rope = k ? &desc->local_rope : &desc->rope;
        if (model_rope_is_stretched(rope, spec->data.seq_length))
            log_info("model: data.seq_length %" PRId64 " is beyond the original %" PRId64 " positions: RoPE has %s",
                     spec->data.seq_length, rope->original_max_positions,
                     rope->kind == ROPE_DYNAMIC ? "dynamic NTK's base for this length" : "long_factor");
    }
    if (desc->experts.has_aux)
        log_info("model: aux_loss: minimized x %g", desc->experts.aux_coef);
    else if (desc->experts.count && !desc->experts.sigmoid)
        log_info("model: aux_loss: watched only%s; model.output_router_logits: true minimizes it",
                 spec->model.router_aux_loss_coef > 0 ? ", and model.router_aux_loss_coef has no effect" : "");
    if (desc->pooler) snprintf(pooled, sizeof pooled, ", pooled output %g", rates->pooled);
    if (rates->embedding > 0 || rates->attention > 0 || rates->residual > 0 || rates->pooled > 0)
        log_detail("model: dropout in training: embeddings %g, attention weights %g, residual branches %g%s",
                   rates->embedding, rates->attention, rates->residual, pooled);
}

enum status engine_describe_model(const struct run_spec *spec, bool notices, struct model_desc *desc, struct error *err)
{
    TRY(engine_check_tokenizer(spec, err));
    const enum status status = spec->model.config ? model_desc_from_spec(spec->model.config, desc, err)
                                                  : model_desc_load(spec->model.folder, desc, err);
    if (status != STATUS_OK) return error_prefix(err, "%s", spec->model.where);
    if (desc->multimodal && !spec->model.pretrained)
        return error_set(err, STATUS_USAGE,
                         "%s: model_type '%s' is multimodal, and of random weights only the text model would exist; "
                         "hint: model.pretrained, or the config of the text model",
                         spec->model.where, json_string_value(json_object_get(desc->source, "model_type")));
    TRY(engine_apply_task(spec, desc, err));
    if (spec->model.dropout >= 0) model_desc_set_dropout(desc, spec->model.dropout);
    desc->trains_padding = spec->model.train_pad_token == SPEC_ON;
    const enum spec_switch aux = spec->model.output_router_logits;
    TRY(model_desc_set_router_losses(desc, aux == SPEC_AUTO ? -1 : aux == SPEC_ON, spec->model.router_aux_loss_coef,
                                     spec->model.router_z_loss_coef, err));
    if (desc->experts.sigmoid && spec->bf16_master && !spec->adapter.on)
        return error_set(err, STATUS_USAGE,
                         "bf16.bf16_master_weights_and_grads: a bias of this model's routers, e_score_correction_bias, "
                         "needs fp32; hint: without that key master weights are fp32");
    if (notices) engine_log_model(spec, desc);
    if (spec->data.seq_length <= model_desc_longest(desc)) return STATUS_OK;
    error_set(err, STATUS_USAGE, "data.seq_length %" PRId64 " is longer than the model's %" PRId64 " positions",
              spec->data.seq_length, desc->max_positions);
    return error_hint(err, "set a shorter data.seq_length, or use a model with more positions");
}

static void engine_streams(struct engine *t)
{
    const struct run_spec *spec = t->spec;
    t->train_config = (struct token_stream_config){
        .data = spec->data,
        .vocab_size = t->desc.vocab_size,
        .classification = t->desc.num_labels > 0,
        .label_first = t->desc.pooler,
        .last_tokens = t->desc.experts.has_aux,
        .padding_token = model_desc_padding(&t->desc),
        .seed = spec->run.seed,
        .rank = t->rank,
        .world = t->world,
        .turns = t->turns,
        .batch_size = spec->train_batch_size,
        .micro_batch_size = spec->train_micro_batch_size_per_gpu,
        .token_multiple = spec->data.seq_length < TOKEN_MULTIPLE ? spec->data.seq_length : TOKEN_MULTIPLE,
    };
    if (spec->preference.loss != PREFERENCE_NONE) t->train_config.preference = &spec->preference;
    if (t->scores || t->train_config.preference) { /* whole documents side by side, whatever data.packing says */
        t->train_config.data.packing = SPEC_PACKING_FIRST_FIT;
        t->train_config.data.document_mask = SPEC_ON;
    }
    t->validation_config = t->train_config;
    t->validation_config.evaluation = true;
    t->validation_config.last_tokens = false;
    const bool limited = spec->train.eval_batches <= INT64_MAX / spec->train_batch_size; /* otherwise: all samples */
    t->validation_config.max_samples = limited ? spec->train.eval_batches * spec->train_batch_size : 0;
}

static enum status engine_adapt(struct engine *t, struct error *err)
{
    RELEASED(string_list_release) struct string_list notices = {0};
    const enum status status = adapter_apply(&t->spec->adapter, &t->desc, &t->table, &notices, err);
    for (int i = 0; i < notices.count && status == STATUS_OK && t->rank == 0 && !t->quiet; i++)
        log_info("peft: %s", notices.items[i]);
    if (status != STATUS_OK && t->spec->model.adapter) /* whose folder has given the settings */
        error_prefix(err, "model.adapter '%s'", t->spec->model.adapter);
    return status == STATUS_OK ? STATUS_OK : error_prefix(err, "%s", t->spec->run.group ? t->spec->run.name : "peft");
}

/* What the spec says of a quantized base has to fit the model and the run. */
static enum status engine_check_quantization(const struct engine *t, enum quantization_method method, struct error *err)
{
    const struct run_spec *spec = t->spec;
    const enum quantization_method folder = t->desc.quantization.method;
    const enum dtype dtype = spec->model.quantization.compute_dtype;
    if (spec->model.load_in_4bit && dtype != DTYPE_COUNT && dtype != spec->dtype)
        return error_set(err, STATUS_USAGE,
                         "model.quantization_config.bnb_4bit_compute_dtype is %s, and the run computes in %s; hint: "
                         "bf16 and fp16 say in which type the run computes",
                         dtype_name(dtype), dtype_name(spec->dtype));
    if (spec->model.load_in_4bit && folder != QUANTIZATION_NONE && folder != QUANTIZATION_NF4)
        return error_set(err, STATUS_USAGE,
                         "model.quantization_config: the model's weights are quantized already; hint: remove it");
    if (method == QUANTIZATION_NONE || t->desc.quantization.decoded) return STATUS_OK;
    if (!spec->adapter.on) {
        error_set(err, STATUS_USAGE, "weights in %d bits cannot be trained", method == QUANTIZATION_FP8 ? 8 : 4);
        return error_hint(err, "peft trains an adapter on them; or take the unquantized weights");
    }
    if (!spec->model.pretrained && method != QUANTIZATION_NF4)
        return error_set(err, STATUS_USAGE, "model.config: initial weights are quantized to nf4 only");
    return STATUS_OK;
}

static enum status engine_store_base(struct engine *t, struct error *err)
{
    const struct run_spec *spec = t->spec;
    const enum dtype plain = spec->adapter.base_dtype == DTYPE_COUNT ? spec->dtype : spec->adapter.base_dtype;
    const struct stored_settings settings =
        stored_settings_of(&t->desc, spec->model.load_in_4bit ? &spec->model.quantization : NULL, plain);
    TRY(engine_check_quantization(t, settings.quantization.method, err));
    if (!spec->adapter.on) return STATUS_OK;
    TRY(stored_base_check(&settings, &t->desc, &t->table, err));
    const bool tells = spec->model.load_in_4bit && t->rank == 0 && !t->quiet && !t->first;
    for (int i = 0; i < settings.quantization.skip.count && tells; i++)
        if (!stored_base_has(settings.quantization.skip.items[i], &t->desc, &t->table))
            log_info("'llm_int8_skip_modules': '%s' matches no module of this %s model, and has no effect",
                     settings.quantization.skip.items[i], model_family_name(t->desc.family));
    stored_base_lay_out(&t->table, spec->dtype, &settings);
    return STATUS_OK;
}

/* What does not go with experts that ranks share; NULL: all does. */
static const char *experts_not_shared(const struct engine *t)
{
    const struct run_spec *spec = t->spec;
    if (!t->desc.experts.count) return "the model has no experts";
    if (t->world % spec->expert_parallel_size != 0) return "it does not divide the number of ranks";
    if (t->desc.experts.count % spec->expert_parallel_size != 0) return "it does not divide the number of experts";
    if (t->desc.norm_place != NORM_BEFORE) return "norms follow the experts";
    if (spec->optimizer.type == OPTIMIZER_MUON) return "Muon updates whole matrices, in turns of all ranks";
    if (spec->train.virtual_ranks > 0)
        return "sums over the ranks that share experts have other bits on another number of ranks, and "
               "train.virtual_ranks promises the same";
    if (t->first || spec->run.group) return "several adapters train on experts of every rank only";
    for (int u = tensor_table_head(&t->table) + 1; u < tensor_table_trained(&t->table); u++) {
        const struct unit_info *unit = &t->table.units[u], *frozen = &t->table.units[unit->frozen];
        if (unit->frozen && unit->num_tensors) return "the adapter has tensors of experts";
        if (unit->frozen && frozen->stored_bytes) return "the experts are kept in other types than the run computes in";
        if ((unit->frozen ? frozen : unit)->numel != shard_padded(&t->layout, unit->frozen ? unit->frozen : u))
            return "the experts' elements are no multiple of 64 (AdamW8bit: 256) for each rank";
    }
    return NULL;
}

static enum status engine_check_experts(const struct engine *t, struct error *err)
{
    const char *why = t->spec->expert_parallel_size > 1 ? experts_not_shared(t) : NULL;
    if (!why) return STATUS_OK;
    error_set(err, STATUS_USAGE, "'moe.expert_parallel_size' %" PRId64 " on %d rank%s: %s",
              t->spec->expert_parallel_size, t->world, PLURAL(t->world), why);
    return error_hint(err, "--set moe.expert_parallel_size=1 trains without; zero_optimization.stage: 3 shards experts "
                           "like all weights");
}

static enum status engine_shards(struct engine *t, struct error *err)
{
    TRY(engine_describe_model(t->spec, t->rank == 0 && !t->quiet, &t->desc, err));
    spec_resolve_model(t->spec, t->desc.hidden_size);
    const bool preference = t->spec->preference.loss != PREFERENCE_NONE;
    t->extra_sums = (t->desc.experts.count ? 1 + (int)t->desc.experts.count : 0) + (preference ? PREFERENCE_SUMS : 0);
    TRY(engine_read_samples(t, err));
    tensor_table_build_for(&t->desc, t->spec->optimizer.type == OPTIMIZER_ADAMW8BIT, &t->table);
    TRY(engine_adapt(t, err));
    TRY(engine_store_base(t, err));
    if (t->first && !stored_base_is_same(&t->first->table, &t->table)) { /* one base: the same in the same places */
        error_set(err, STATUS_USAGE, "adapter '%s' would keep another base than '%s'", t->spec->run.name,
                  t->first->spec->run.name);
        return error_hint(err, "modules_to_save and base_dtype are the same for all, and so is whether the optimizer "
                               "is AdamW8bit; or train it in a run of its own");
    }
    shard_layout_init_parts(&t->layout, &t->table, t->world, t->turns);
    TRY(engine_check_experts(t, err));
    if (t->spec->data.document_mask == SPEC_AUTO) {
        t->found_mask = engine_probe_mask(t->spec);
        t->probed = true;
        spec_resolve_document_mask(t->spec, t->found_mask);
    }
    engine_streams(t);
    const char *teacher = t->spec->transformer.distill.logps;
    return teacher && !t->scores ? teacher_file_open(teacher, false, &t->teacher, err) : STATUS_OK;
}

static struct transformer_config engine_transformer(const struct engine *t)
{
    const struct run_spec *spec = t->spec;
    return (struct transformer_config){
        .desc = &t->desc,
        .table = &t->table,
        .dtype = spec->dtype,
        .settings = spec->transformer,
        .batch = token_stream_limits(&t->train_config),
        .training = !t->scores,
        .dropout = t->desc.dropout,
        .lora_dropout = spec->adapter.on ? spec->adapter.lora_dropout : 0,
        .dropout_seed = spec->run.seed,
        .aux_share = (double)spec->train_micro_batch_size_per_gpu / (double)spec->train_batch_size,
        .activations = t->activations ? activation_store_verbs(t->activations) : NULL,
        .expert_parallel = (int)spec->expert_parallel_size,
        .expert_part = t->rank / (t->world / (int)spec->expert_parallel_size),
        .estimates = t->simulation.comm != NULL,
        /* by step: from when a step could not be captured. Tokens leave a block with shared experts in its middle */
        .graphs_by_block = t->graphs != GRAPHS_NONE && spec->expert_parallel_size == 1,
        .graphs_demanded = spec->train.cuda_graphs == SPEC_ON,
        .teacher_tokens = t->teacher ? t->teacher->header.K : 0,
        .sequences = t->scores || t->train_config.preference,
        .inputs = t->graphs == GRAPHS_BY_STEP ? (int32_t)t->micros : 1,
    };
}

static void engine_attention(const struct engine *t)
{
    const bool cuda = t->device->kind == DEVICE_CUDA;
    if (t->rank != 0 || t->quiet) return;
    if (!t->spec->transformer.deterministic && (!cuda || t->spec->dtype == DTYPE_F32))
        log_info("train.deterministic: false has no effect %s: results repeat bit for bit",
                 cuda ? "on ztrain's kernels for attention" : "on the CPU device");
    else if (!t->spec->transformer.deterministic)
        log_info(
            "train.deterministic: false: the backward pass of attention by cuDNN adds in any order; results do not "
            "repeat bit for bit, and ranks, stages and resumed runs agree to rounding");
}

static enum status engine_build_model(struct engine *t, struct error *err)
{
    engine_attention(t);
    if (t->spec->cpu_checkpointing && t->spec->transformer.recompute != RECOMPUTE_NONE) {
        const int64_t elements = token_stream_limits(&t->train_config).max_tokens * t->desc.hidden_size;
        const size_t bytes = (size_t)elements * dtype_size(t->spec->dtype);
        const int first = tensor_table_first_trained(&t->table); /* a unit: block 0 is unit 1 */
        TRY(activation_store_new(t->device, first > 0 ? first - 1 : 0, t->desc.num_layers, bytes, &t->activations,
                                 err));
    }
    const struct transformer_config config = engine_transformer(t);
    TRY(transformer_new(&config, t->device, &t->transformer, err));
    if (config.sequences)
        t->preference = preference_steps_new(&t->spec->preference, t->comm, t->turns, config.batch.max_tokens);
    if (t->graphs == GRAPHS_BY_STEP) TRY(input_upload_new(t->device, &t->upload, err));
    if (t->samples) t->samples->generator = generator_new(t->transformer, t->samples->capacity);
    return STATUS_OK;
}

static enum status engine_build_one(struct engine *t, int threads, struct error *err)
{
    const struct run_spec *spec = t->spec;
    const enum status status = engine_shards(t, err);
    TRY(t->comm ? agree(t->comm, status, err) : status); /* what follows is collective */
    if (!t->device) TRY(choose_device(t, threads, err));
    if (!t->first) TRY(stream_new(t->device, STREAM_COMPUTE, &t->compute, err)); /* for all engines of this process */
    TRY(choose_graphs(t, err));
    struct zero_config zero = {
        .zero = spec->zero,
        .dtype = spec->dtype,
        .comm_dtype = spec->communication_data_type,
        .comm_factor = (float)spec_comm_factor(spec, t->world * t->turns),
        .grad_dtype = spec->grad_accum_dtype,
        .master_dtype = spec->bf16_master ? DTYPE_BF16 : DTYPE_F32,
        .moment_dtype = spec->bf16_moments ? DTYPE_BF16 : DTYPE_F32,
        .rounding_seed = spec->run.seed,
        .optimizer = spec->optimizer,
        .clip = spec->gradient_clipping,
        .table = &t->table,
        .layout = &t->layout,
        .ordered = spec->train.virtual_ranks > 0,
        .tied = t->desc.tied,
        .training = !t->scores,
        .extra_sums = t->extra_sums,
        .expert_parallel = (int)spec->expert_parallel_size,
        .scaler = spec->loss_scaler,
        .aio = spec->aio,
        .disk = t->simulation.disk,
        .base = t->first ? t->first->zero : NULL,
    };
    TRY(zero_new(&zero, t->device, t->comm ? t->comm : t->simulation.comm, &t->zero, err));
    return engine_build_model(t, err);
}

static struct engine *engine_follow(struct engine *first, struct engine *before, struct run_spec *spec)
{
    if (!before->next) {
        before->next = memory_zeroed(1, sizeof *before->next);
        before->next->is_owned = true;
    }
    struct engine *t = before->next;
    t->first = first;
    t->boot = first->boot;
    t->simulation = first->simulation;
    t->device = first->device;
    t->compute = first->compute;
    t->phase_times = first->phase_times;
    t->profiler = first->profiler;
    t->node_ranks = first->node_ranks;
    t->quiet = first->quiet;
    t->profile = first->profile;
    t->spec = spec;
    /* what a plan tries of the first spec, which all adapters have in common (memory_setting_apply()) */
    spec->train_micro_batch_size_per_gpu = first->spec->train_micro_batch_size_per_gpu;
    spec->gradient_accumulation_steps = first->spec->gradient_accumulation_steps;
    spec->zero = first->spec->zero;
    spec->transformer = first->spec->transformer;
    spec->cpu_checkpointing = first->spec->cpu_checkpointing;
    spec->grad_accum_dtype = first->spec->grad_accum_dtype;
    spec->bf16_master = first->spec->bf16_master;
    spec->bf16_moments = first->spec->bf16_moments;
    return t;
}

enum status engine_build(struct engine *t, struct run_spec *spec, int rank, int world, struct comm *comm, int threads,
                         struct error *err)
{
    t->spec = spec;
    t->device = t->simulation.device;
    for (struct engine *e = t; e; e = e->spec->next ? engine_follow(t, e, e->spec->next) : NULL) {
        e->rank = rank;
        e->world = world;
        e->turns = spec_turns(e->spec, world);
        e->micros = spec_micros(e->spec, world);
        e->comm = comm;
        TRY(engine_build_one(e, threads, err));
    }
    return memory_plan_make(t, err);
}

enum status engine_activation_bytes(const struct engine *t, enum recompute policy, size_t *bytes, struct error *err)
{
    *bytes = 0;
    for (const struct engine *e = t; e; e = e->next) {
        struct transformer_config config = engine_transformer(e);
        struct transformer *transformer;
        struct arena arena;
        config.settings.recompute = policy;
        if (policy == RECOMPUTE_NONE) /* cpu_checkpointing is refused with it */
            config.activations = NULL;
        TRY(transformer_new(&config, e->device, &transformer, err));
        arena_init_dry(&arena);
        transformer_layout(transformer, &arena);
        transformer_free(transformer);
        *bytes += arena.by_kind[MEM_ACTIVATIONS];
    }
    return STATUS_OK;
}

void engine_release(struct engine *t)
{
    if (t->next && t->next->is_owned) {
        engine_release(t->next);
        free(t->next);
    }
    engine_samples_free(t->samples);
    preference_steps_free(t->preference);
    teacher_file_close(t->teacher);
    transformer_free(t->transformer);
    input_upload_free(t->upload);
    activation_store_free(t->activations);
    zero_free(t->zero);
    memory_snapshot_free(t);
    if (!t->first) {
        stream_free(t->compute);
        if (t->comm) /* first: until then NCCL may have peers look into the memory of a graph's collectives */
            comm_detach_device(t->comm);
        memory_plan_free(t);
        ops_profiler_free(t->profiler);
        phase_times_free(t->phase_times);
        gpu_fault_unwatch(t->device);
        device_close(t->device);
    }
    engine_close_data(t);
    shard_layout_release(&t->layout);
    tensor_table_release(&t->table);
    model_desc_release(&t->desc);
    free(t->base_folder);
}

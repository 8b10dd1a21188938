#include "cmd/train/trainer.h"

#include "ckpt/huggingface/huggingface.h"
#include "cmd/train/choose_device.h"
#include "cmd/train/choose_graphs.h"
#include "cmd/train/choose_kernels.h"
#include "comm/agree.h"
#include "core/liveness.h"
#include "core/log.h"
#include "core/memory.h"
#include "gpu/open/device_open.h"
#include "gpu/peaks.h"
#include "gpu/plan/device_plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* packing false: batches are rounded up to this many tokens (at most seq_length), so that GEMMs see few different
 * shapes */
enum { TOKEN_MULTIPLE = 16 };

enum status trainer_describe_model(const struct run_spec *spec, bool notices, struct model_desc *desc,
                                   struct error *err)
{
    enum status status;
    if (spec->model.config)
        status = model_desc_from_spec(spec->model.config, desc, err);
    else
        status = model_desc_load(spec->model.pretrained ? spec->model.pretrained : spec->model.config_path, desc, err);
    if (status != STATUS_OK) {
        error_prefix(err, "%s", spec->model.where);
        return status;
    }
    for (int i = 0; notices && i < desc->notices.count; i++)
        log_info("model: %s", desc->notices.items[i]);
    if (spec->data.seq_length > desc->max_positions) {
        error_set(err, STATUS_USAGE, "data.seq_length %" PRId64 " is longer than the model's %" PRId64 " positions",
                  spec->data.seq_length, desc->max_positions);
        error_hint(err, "set a shorter data.seq_length, or use a model with more positions");
        model_desc_release(desc);
        return STATUS_USAGE;
    }
    return STATUS_OK;
}

/* Everything that takes device memory, in the order of the arena. Run dry for the plan, then for real. */
static void lay_out(struct trainer *t, struct arena *local, struct arena *shared)
{
    bool peers_read = t->device->kind == DEVICE_CPU; /* no peer reads a GPU's memory directly */
    zero_layout(t->zero, local, peers_read ? shared : local);
    transformer_layout(t->transformer, local);
    t->loss_sum = arena_take(local, MEM_WORKSPACE, sizeof *t->loss_sum);
    void *workspace = arena_take(local, MEM_WORKSPACE, t->plan.workspace);
    if (local->base)
        stream_set_workspace(t->compute, workspace, t->plan.workspace);
}

/* The token streams of training and evaluation. */
static void configure_streams(struct trainer *t)
{
    const struct run_spec *spec = t->spec;
    t->train_config = (struct token_stream_config){
        .seq_length = spec->data.seq_length,
        .vocab_size = t->desc.vocab_size,
        .shuffle = spec->data.shuffle,
        .packing = spec->data.packing,
        .seed = spec->run.seed,
        .rank = t->rank,
        .world = t->world,
        .batch_size = spec->train_batch_size,
        .micro_batch_size = spec->train_micro_batch_size_per_gpu,
        .token_multiple = spec->data.packing                       ? 1
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
static enum status trainer_agree(struct trainer *t, enum status status, struct error *err)
{
    return t->comm ? agree(t->comm, status, err) : status;
}

static enum status describe_shards(struct trainer *t, struct error *err)
{
    TRY(trainer_describe_model(t->spec, t->rank == 0 && !t->quiet, &t->desc, err));
    TRY(tensor_table_build(&t->desc, &t->table, err));
    TRY(shard_layout_init(&t->layout, &t->table, t->world, err));
    configure_streams(t);
    return STATUS_OK;
}

/* Opens the device, and attaches the communicator to it. */
static enum status open_device(struct trainer *t, int threads, struct error *err)
{
    struct device_choice choice;
    const char *way = NULL;
    if (t->planned)
        return STATUS_OK;
    TRY(trainer_agree(t, choose_device(t->spec, t->comm, t->boot, &choice, err), err));
    if (choice.to_plan)
        return device_plan_open(&t->device, err);
    struct cpu_kernels kernels;
    enum status status;
    if (choice.kind == DEVICE_CPU) {
        TRY(choose_kernels(t->comm, t->boot, t->kernels_before, &kernels, err));
        status = device_open_cpu(&kernels, threads, &t->device, err);
    } else {
        status = device_open(choice.kind, choice.index, threads, &t->device, err);
    }
    TRY(trainer_agree(t, status, err));
    ops_profile_enable(t->device, t->profile); /* before anyone takes the op table */
    if (t->comm)
        TRY(trainer_agree(t, comm_attach_device(t->comm, t->device, choice.may_share, &way, err), err));
    if (way && t->rank == 0)
        log_info("collectives: %s", way);
    return STATUS_OK;
}

enum status trainer_build(struct trainer *t, struct run_spec *spec, int rank, int world, struct comm *comm, int threads,
                          struct error *err)
{
    t->spec = spec;
    t->rank = rank;
    t->world = world;
    t->comm = comm;
    t->device = t->planned;
    TRY(trainer_agree(t, describe_shards(t, err), err));
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
    };
    TRY(zero_new(&zero, t->device, t->planned ? t->planned_comm : comm, &t->zero, err));

    struct transformer_config transformer = {
        .desc = &t->desc,
        .table = &t->table,
        .dtype = spec->dtype,
        .max_seq = (int32_t)spec->data.seq_length,
        .max_position = spec->data.seq_length,
        .training = true,
        .recompute = spec->activation_checkpointing,
        .inputs = t->graphs ? (int32_t)spec->gradient_accumulation_steps : 1,
    };
    token_stream_limits(&t->train_config, &transformer.max_tokens, &transformer.max_seqs);
    TRY(transformer_new(&transformer, t->device, &t->transformer, err));

    struct op_limits limits;
    transformer_op_limits(t->transformer, &limits);
    t->plan.workspace = ops_workspace_bytes(t->device, &limits);
    arena_init_dry(&t->plan.local);
    arena_init_dry(&t->plan.shared);
    lay_out(t, &t->plan.local, &t->plan.shared);
    return STATUS_OK;
}

enum status trainer_open_data(struct trainer *t, struct error *err)
{
    const struct run_spec *spec = t->spec;
    TRY(token_set_open((const char *const *)spec->data.train.items, spec->data.train.count, &t->train_set, err));
    TRY(token_set_check(t->train_set, t->desc.vocab_size, &t->data_fingerprint, err));
    t->train_config.set = t->train_set;
    t->steps_per_epoch = token_stream_steps_per_epoch(&t->train_config);
    if (t->steps_per_epoch < 1)
        return error_set(err, STATUS_DATA,
                         "data.train holds %" PRId64 " samples, fewer than one train_batch_size of %" PRId64
                         "; hint: add data, or set a smaller train_batch_size or a shorter data.seq_length",
                         token_set_samples(t->train_set, spec->data.seq_length, spec->data.packing),
                         spec->train_batch_size);
    t->total_steps = spec_resolve_steps(t->spec, t->steps_per_epoch);
    const struct schedule_spec *scheduler = &spec->scheduler;
    if (scheduler->type != SCHEDULE_CONSTANT && scheduler->warmup_steps > t->total_steps)
        log_info("the run's %" PRId64 " steps end within the warm-up of %" PRId64
                 " (scheduler.params): the full learning rate is not reached",
                 t->total_steps, scheduler->warmup_steps);
    if (spec->data.validation.count) {
        TRY(token_set_open((const char *const *)spec->data.validation.items, spec->data.validation.count,
                           &t->validation_set, err));
        TRY(token_set_check(t->validation_set, t->desc.vocab_size, NULL, err));
        t->validation_config.set = t->validation_set;
        const char *both = token_set_common(t->train_set, t->validation_set);
        if (both)
            log_info("'%s' is in data.train and in data.validation: the evaluation's loss is not that of unseen text",
                     both);
        if (token_set_samples(t->validation_set, spec->data.seq_length, spec->data.packing) < 1)
            return error_set(err, STATUS_DATA,
                             "data.validation holds no whole sample of %" PRId64
                             " tokens; hint: add validation data, or set a shorter data.seq_length",
                             spec->data.seq_length);
    } else if (spec->train.eval_interval_steps) {
        log_info("train.eval_interval_steps is set, but there is no data.validation: nothing is evaluated");
    }
    return STATUS_OK;
}

enum status trainer_allocate(struct trainer *t, struct error *err)
{
    struct arena local, shared;
    arena_init_dry(&shared); /* a rank alone shares nothing */
    TRY(transformer_prepare(t->transformer, t->spec->gradient_accumulation_steps > 1, err));
    TRY(device_alloc(t->device, t->plan.local.used, &t->memory, err));
    arena_init(&local, t->memory, t->plan.local.used);
    if (t->plan.shared.used) {
        void *segment;
        TRY(comm_share(t->comm, t->plan.shared.used, &segment, err));
        arena_init(&shared, segment, t->plan.shared.used);
    }
    lay_out(t, &local, &shared);
    arena_finish(&local);
    if (t->plan.shared.used)
        arena_finish(&shared);
    return transformer_start(t->transformer, t->compute, err);
}

/* Fills this rank's slices with initial values; each element depends only on seed, tensor and index. */
static enum status initialise(struct trainer *t, struct error *err)
{
    enum { PIECE = 1 << 16 };
    for (int u = 0; u < t->table.num_units; u++) {
        float *slice;
        TRY(state_slice(zero_slices(t->zero), SLICE_WRITE, STATE_MASTER, u, &slice, err));
        int64_t begin = t->layout.slice[u] * t->rank, end = begin + t->layout.slice[u];
        const struct unit_info *unit = &t->table.units[u];
        memset(slice, 0, (size_t)t->layout.slice[u] * sizeof *slice);
        for (int i = unit->first_tensor; i < unit->first_tensor + unit->num_tensors; i++) {
            const struct tensor_info *tensor = &t->table.tensors[i];
            int64_t first = tensor->offset > begin ? tensor->offset : begin;
            int64_t last = tensor->offset + tensor->numel < end ? tensor->offset + tensor->numel : end;
#pragma omp parallel for schedule(dynamic)
            for (int64_t at = first; at < last; at += PIECE) {
                int64_t count = last - at < PIECE ? last - at : PIECE;
                tensor_init_range(&t->table, i, t->spec->run.seed, at - tensor->offset, count, slice + (at - begin));
                liveness_tick();
            }
        }
    }
    return STATUS_OK;
}

enum status trainer_load_weights(struct trainer *t, const struct checkpoint *checkpoint, struct error *err)
{
    if (checkpoint)
        TRY(checkpoint_load(checkpoint, &t->table, &t->layout, t->rank, zero_slices(t->zero), err));
    else if (t->spec->model.pretrained)
        TRY(huggingface_load(t->spec->model.pretrained, &t->desc, &t->table, &t->layout, t->rank, zero_slices(t->zero),
                             err));
    else
        TRY(initialise(t, err));
    return STATUS_OK;
}

enum status trainer_spread_weights(struct trainer *t, struct error *err)
{
    return zero_params_changed(t->zero, t->compute, err);
}

void trainer_release(struct trainer *t)
{
    if (t->transformer)
        transformer_free(t->transformer);
    if (t->zero)
        zero_free(t->zero);
    if (t->compute)
        stream_free(t->compute);
    if (t->comm) /* first: until then NCCL may have peers look into the memory of a graph's collectives */
        comm_detach_device(t->comm);
    if (t->memory)
        device_free(t->device, t->memory, t->plan.local.used);
    if (t->device)
        device_close(t->device);
    if (t->train_set)
        token_set_close(t->train_set);
    if (t->validation_set)
        token_set_close(t->validation_set);
    shard_layout_release(&t->layout);
    tensor_table_release(&t->table);
    model_desc_release(&t->desc);
}

void trainer_utilisation(const struct trainer *t, struct step_metrics *m)
{
    double flops = transformer_flops_per_token(&t->desc, t->spec->data.seq_length);
    enum dtype dtype = t->spec->dtype;
    m->mfu = peaks_mfu(flops, m->tokens_per_s, t->world, t->device->peak_flops[dtype]);
    m->of_ceiling = peaks_mfu(flops, m->tokens_per_s, t->world, t->device->ceiling_flops[dtype]);
}

void trainer_print_plan(const struct trainer *t)
{
    size_t total = t->plan.local.used + t->plan.shared.used;
    log_info("memory plan: rank %d of %d, ZeRO stage %d, %s, %" PRId64 " parameters", t->rank, t->world,
             t->spec->zero.stage, dtype_name(t->spec->dtype), t->table.num_params);
    for (int k = 0; k < MEM_KIND_COUNT; k++) {
        size_t bytes = t->plan.local.by_kind[k] + t->plan.shared.by_kind[k];
        log_info("  %-14s %16zu bytes  %10.1f MiB  %6.2f bytes/parameter", mem_kind_name((enum mem_kind)k), bytes,
                 (double)bytes / 1048576, (double)bytes / (double)t->table.num_params);
    }
    log_info("  %-14s %16zu bytes  %10.1f MiB, %.1f MiB of it shared between ranks", "total", total,
             (double)total / 1048576, (double)t->plan.shared.used / 1048576);
    int64_t padding = 0, gaps = 0;
    for (int u = 0; u < t->table.num_units; u++)
        padding += shard_padded(&t->layout, u) - t->table.units[u].numel;
    for (int u = 0; u < t->table.num_units; u++)
        gaps += t->table.units[u].numel;
    gaps -= t->table.num_params;
    if (t->device->memory_bytes > 0) {
        double gib = (double)(1 << 30);
        log_info("  %.1f %% of the %.1f GiB of %s, which also holds CUDA's context and its libraries' memory",
                 100 * (double)total / (double)t->device->memory_bytes, (double)t->device->memory_bytes / gib,
                 t->device->name);
        if (total > t->device->memory_bytes)
            log_warn("the plan does not fit into the GPU's memory; hint: a smaller micro batch or sequence, activation "
                     "checkpointing, a higher ZeRO stage, more ranks");
    }
    log_info("  of which, over all ranks: %" PRId64 " elements of shard padding, %" PRId64
             " of alignment between tensors",
             padding, gaps);
}

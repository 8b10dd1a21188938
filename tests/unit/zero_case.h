/* zero_case.h: the driver of ZeRO's unit tests: a small model with made-up gradients, whose training calls the verbs in
 * the transformer's order.
 *
 * Every rank also computes AdamW on the whole model in double, so that each acquired unit can be compared with it. The
 * results go to the parent, which compares them bit for bit. */
#pragma once

#include "orthogonalize_reference.h"
#include "ranks.h"

#include "comm/zero/zero.h"
#include "core/model/model_config.h"
#include "gpu/open/device_open.h"

#include <math.h>
#include <stddef.h>

static struct error error;

enum { STEPS = 3, MAX_ELEMENTS = 1 << 15, CLIP = 5 };

static const struct optimizer_settings adamw = {
    .type = OPTIMIZER_ADAMW, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .weight_decay = 0.1f};

/* adam_lr is that of rates_of(). */
static const struct optimizer_settings muon = {.type = OPTIMIZER_MUON,
                                               .lr = 0.1f,
                                               .adam_lr = 0.01f,
                                               .beta1 = 0.9f,
                                               .beta2 = 0.99f,
                                               .eps = 1e-8f,
                                               .weight_decay = 0.1f,
                                               .momentum = 0.875,
                                               .nesterov = true,
                                               .ns_steps = 5};

/* The ranks' results for the parent; arrays by element of the whole layout (world × shard_numel). */
struct outcome {
    double norms[STEPS];
    float state[STATE_KIND_COUNT][MAX_ELEMENTS];
};

struct setting {
    int stage, micros;
    bool tied, overlap;
    enum dtype dtype;
    int64_t bucket;    /* elements; 0: no limit */
    double loss_scale; /* 0: 1 */
    enum offload_device offload_param, offload_optimizer;
    double ratio;                 /* of the offloaded optimizer; 0: 1 */
    struct offload_settings nvme; /* what of both concerns nvme; `device` is not used */
    int64_t sub_group_size;
    enum dtype comm_dtype, grad_dtype, master_dtype, moment_dtype;
    bool lonely;       /* only rank 0 has gradients: their sum is exact at any world size */
    float comm_factor; /* 0: 1 */
    bool muon;         /* its optimizer is `muon`, not `adamw` */
    struct outcome *outcome;
};

/* ---- the model ----------------------------------------------------------- */

static inline void describe(bool tied, struct model_desc *desc)
{
    *desc = (struct model_desc){.family = tied ? FAMILY_GPT2 : FAMILY_LLAMA,
                                .vocab_size = 53,
                                .hidden_size = 24,
                                .intermediate_size = 40,
                                .num_layers = 3,
                                .num_heads = 2,
                                .num_kv_heads = 2,
                                .head_dim = 12,
                                .max_positions = 16,
                                .norm = tied ? NORM_LAYER : NORM_RMS,
                                .mlp = tied ? MLP_GELU : MLP_SWIGLU,
                                .weights_in_out = tied,
                                .qkv_bias = tied,
                                .o_bias = tied,
                                .mlp_bias = tied,
                                .tied = tied,
                                .initializer_range = 0.02};
}

/* The gradient that `rank` gives element `offset` of a unit, in a micro-batch of a step. */
static inline float gradient(int rank, int step, int micro, int unit, int64_t offset)
{
    uint32_t x = (uint32_t)offset * 2654435761u + (uint32_t)(((unit * 7 + micro) * 11 + step) * 13 + rank) * 97u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return ldexpf((float)(int32_t)x, -31);
}

/* ---- one rank ------------------------------------------------------------ */

struct run {
    const struct setting *setting;
    struct model_desc desc;
    struct tensor_table table;
    struct shard_layout layout;
    struct comm *comm;
    struct device *device;
    struct stream *compute;
    struct zero *zero;
    const struct param_verbs *verbs;
    struct arena plan[3]; /* local, shared, host */
    void *memory[3];
    void *workspace; /* of the compute stream, for matrix products */
    size_t workspace_bytes;
    double *loss_sum;              /* device */
    int64_t made;                  /* optimizer steps */
    double *master, *m, *v, *grad; /* the reference, by element of the whole layout */
    int rank, world;
};

static inline float contribution(const struct run *run, int rank, int step, int micro, int unit, int64_t offset)
{
    return run->setting->lonely && rank > 0 ? 0 : gradient(rank, step, micro, unit, offset);
}

static inline int64_t whole_index(const struct run *run, int unit, int64_t offset)
{
    return run->layout.shard_offset[unit] * run->world + offset;
}

static inline void run_open(struct run *run, struct bootstrap *bootstrap, const struct setting *setting)
{
    struct comm_config config = {.timeout_seconds = 60};
    run->setting = setting;
    run->rank = bootstrap->rank;
    run->world = bootstrap->world;
    describe(setting->tied, &run->desc);
    CHECK_OK(tensor_table_build(&run->desc, &run->table, &error));
    CHECK_OK(shard_layout_init(&run->layout, &run->table, run->world, &error));
    CHECK_OK(comm_open(bootstrap, &config, &run->comm, &error));
    CHECK_OK(device_open(DEVICE_CPU, 0, 1, &run->device, &error));
    CHECK_OK(stream_new(run->device, STREAM_COMPUTE, &run->compute, &error));
    struct zero_config zero = {.stage = setting->stage,
                               .dtype = setting->dtype,
                               .comm_dtype = setting->comm_dtype,
                               .comm_factor = setting->comm_factor,
                               .grad_dtype = setting->grad_dtype,
                               .master_dtype = setting->master_dtype,
                               .moment_dtype = setting->moment_dtype,
                               .rounding_seed = 42,
                               .overlap_comm = setting->overlap,
                               .reduce_bucket_size = setting->bucket,
                               .allgather_bucket_size = setting->bucket,
                               .optimizer = setting->muon ? muon : adamw,
                               .clip = CLIP,
                               .table = &run->table,
                               .layout = &run->layout,
                               .tied = setting->tied,
                               .training = true,
                               .offload_param = setting->nvme,
                               .offload_optimizer = setting->nvme,
                               .sub_group_size = setting->sub_group_size,
                               .aio = {.block_size = 4096, .queue_depth = 4}};
    zero.offload_param.device = setting->offload_param;
    zero.offload_optimizer.device = setting->offload_optimizer;
    zero.offload_param.pin_memory = zero.offload_optimizer.pin_memory = true;
    zero.offload_optimizer.ratio = setting->ratio > 0 ? setting->ratio : 1;
    CHECK_OK(zero_new(&zero, run->device, run->comm, &run->zero, &error));
    for (int i = 0; i < 3; i++)
        arena_init_dry(&run->plan[i]);
    zero_layout(run->zero, &run->plan[0], &run->plan[1], &run->plan[2]);
    arena_take(&run->plan[0], MEM_WORKSPACE, sizeof *run->loss_sum);
    CHECK_OK(device_alloc(run->device, run->plan[0].used, &run->memory[0], &error));
    CHECK_OK(comm_share(run->comm, run->plan[1].used, &run->memory[1], &error));
    CHECK_OK(device_alloc_host(run->device, run->plan[2].used, &run->memory[2], &error));
    struct arena arenas[3];
    for (int i = 0; i < 3; i++)
        arena_init(&arenas[i], run->memory[i], run->plan[i].used);
    zero_layout(run->zero, &arenas[0], &arenas[1], &arenas[2]);
    run->loss_sum = arena_take(&arenas[0], MEM_WORKSPACE, sizeof *run->loss_sum);
    for (int i = 0; i < 3; i++)
        arena_finish(&arenas[i]);
    run->verbs = zero_verbs(run->zero);
    const struct op_limits limits = {.dtype = DTYPE_BF16};
    run->workspace_bytes = setting->muon ? ops_workspace_bytes(run->device, &limits) : 0;
    CHECK_OK(device_alloc(run->device, run->workspace_bytes, &run->workspace, &error));
    stream_set_workspace(run->compute, run->workspace, run->workspace_bytes);

    size_t elements = (size_t)(run->layout.shard_numel * run->world);
    CHECK(elements <= MAX_ELEMENTS);
    run->master = calloc(elements, sizeof(double));
    run->m = calloc(elements, sizeof(double));
    run->v = calloc(elements, sizeof(double));
    run->grad = calloc(elements, sizeof(double));
    for (int t = 0; t < run->table.num_tensors; t++) {
        const struct tensor_info *tensor = &run->table.tensors[t];
        for (int64_t i = 0; i < tensor->numel; i++) {
            double x = gradient(99, t, 0, tensor->unit, i);
            run->master[whole_index(run, tensor->unit, tensor->offset + i)] = x;
        }
    }
    for (int u = 0; u < run->table.num_units; u++) {
        float *slice;
        CHECK_OK(state_slice(zero_slices(run->zero), SLICE_WRITE, STATE_MASTER, u, &slice, &error));
        for (int64_t i = 0; i < run->layout.slice[u]; i++)
            slice[i] = (float)run->master[whole_index(run, u, run->rank * run->layout.slice[u] + i)];
    }
    CHECK_OK(zero_params_changed(run->zero, run->compute, &error));
    const struct loss_scaler scaler = {.scale = setting->loss_scale ? setting->loss_scale : 1};
    zero_set_position(run->zero, 0, &scaler, run->compute);
}

static inline void run_close(struct run *run)
{
    zero_free(run->zero);
    stream_free(run->compute);
    device_free(run->device, run->memory[0], run->plan[0].used);
    device_free(run->device, run->workspace, run->workspace_bytes);
    device_free_host(run->device, run->memory[2], run->plan[2].used);
    device_close(run->device);
    comm_close(run->comm);
    shard_layout_release(&run->layout);
    tensor_table_release(&run->table);
    free(run->master);
    free(run->m);
    free(run->v);
    free(run->grad);
}

/* Acquires a unit and compares its parameters with the reference. */
static inline void use(struct run *run, int unit, enum param_pass pass)
{
    const void *params;
    CHECK_OK(run->verbs->acquire(run->verbs->self, unit, pass, run->compute, &params, &error));
    size_t in_host = (size_t)((uintptr_t)params - (uintptr_t)run->memory[2]);
    CHECK(in_host >= run->plan[2].used); /* the device computes in its own memory */
    const struct unit_info *info = &run->table.units[unit];
    bool bf16 = run->setting->dtype == DTYPE_BF16;
    for (int64_t i = 0; i < info->numel; i++) {
        float x = bf16 ? bf16_to_f32(((const uint16_t *)params)[i]) : ((const float *)params)[i];
        double expected = run->master[whole_index(run, unit, i)];
        double tolerance = run->setting->master_dtype == DTYPE_BF16 ? 0.03 : bf16 ? 0.005 : 2e-5;
        if (run->setting->muon) /* updates are a hundredth to a tenth; what rounds the other way in bf16 changes them */
            tolerance += 0.002;
        if (fabs(x - expected) > tolerance * (1 + fabs(expected))) {
            fprintf(stderr, "unit %d element %d: %.9g, expected %.9g\n", unit, (int)i, (double)x, expected);
            CHECK(!"the parameters are the reference's");
        }
    }
}

static inline void let_go(struct run *run, int unit, enum param_pass pass)
{
    run->verbs->release(run->verbs->self, unit, pass, run->compute);
}

/* Writes the made-up gradients of tensors [first, end) of the unit; of a block's matrices as products do that add to
 * their accumulator, where there is one. */
static inline void give_grads(struct run *run, int step, int micro, int unit, int first, int end)
{
    float *grads;
    uint16_t *sums = NULL;
    bool accumulate, adds = false;
    CHECK_OK(run->verbs->grads(run->verbs->self, unit, run->compute, &grads, &accumulate, &error));
    if (unit > 0 && unit < run->table.num_units - 1)
        sums = run->verbs->matrix_sums(run->verbs->self, unit, &adds);
    CHECK(!sums || zero_has_matrix_sums(run->zero));
    const struct tensor_info *tensors = run->table.tensors + run->table.units[unit].first_tensor;
    for (int t = first; t < end; t++) {
        const bool direct = sums && tensors[t].ndim == 2;
        for (int64_t i = tensors[t].offset; i < tensors[t].offset + tensors[t].numel; i++) {
            const float x = contribution(run, run->rank, step, micro, unit, i);
            if (direct)
                sums[i] = bf16_from_f32((adds ? bf16_to_f32(sums[i]) : 0) + x);
            else
                grads[i] = (accumulate ? grads[i] : 0) + x;
        }
    }
}

static inline void ready(struct run *run, int unit)
{
    CHECK_OK(run->verbs->grads_ready(run->verbs->self, unit, run->compute, &error));
}

static inline int tensors_of(const struct run *run, int unit)
{
    return run->table.units[unit].num_tensors;
}

/* One micro-batch in the transformer's order. poison: this rank's gradient of unit 2 gets a NaN. */
static inline void micro_batch(struct run *run, int step, int micro, bool poison)
{
    int head = run->table.num_units - 1;
    for (int u = 0; u < head; u++) {
        use(run, u, PASS_FORWARD);
        let_go(run, u, PASS_FORWARD);
    }
    use(run, head, PASS_BACKWARD);
    if (run->desc.tied)
        use(run, 0, PASS_BACKWARD);
    give_grads(run, step, micro, head, 0, tensors_of(run, head));
    if (run->desc.tied) { /* wte first, wpe at the end */
        give_grads(run, step, micro, 0, 0, 1);
        let_go(run, 0, PASS_BACKWARD);
    }
    let_go(run, head, PASS_BACKWARD);
    ready(run, head);
    for (int u = head - 1; u > 0; u--) {
        use(run, u, PASS_BACKWARD);
        give_grads(run, step, micro, u, 0, tensors_of(run, u));
        if (poison && u == 2) {
            float *grads;
            bool accumulate, adds;
            CHECK_OK(run->verbs->grads(run->verbs->self, u, run->compute, &grads, &accumulate, &error));
            uint16_t *sums = run->verbs->matrix_sums(run->verbs->self, u, &adds);
            const struct tensor_info *tensor = &run->table.tensors[run->table.units[u].first_tensor + 3];
            if (sums && tensor->ndim == 2)
                sums[tensor->offset + 5] = bf16_from_f32(NAN);
            else
                grads[tensor->offset + 5] = NAN;
        }
        let_go(run, u, PASS_BACKWARD);
        ready(run, u);
    }
    give_grads(run, step, micro, 0, run->desc.tied ? 1 : 0, tensors_of(run, 0));
    ready(run, 0);
}

static inline void evaluation(struct run *run)
{
    int head = run->table.num_units - 1;
    for (int u = 0; u < head; u++) {
        use(run, u, PASS_EVALUATION);
        let_go(run, u, PASS_EVALUATION);
    }
    use(run, head, PASS_EVALUATION);
    if (run->desc.tied) {
        use(run, 0, PASS_EVALUATION);
        let_go(run, 0, PASS_EVALUATION);
    }
    let_go(run, head, PASS_EVALUATION);
}

static inline struct step_rates rates_of(int step)
{
    return (struct step_rates){
        .lr = 0.01f,
        .beta1 = adamw.beta1,
        .beta2 = adamw.beta2,
        .correction1 = (float)(1 - pow(0.9, step)),
        .correction2 = (float)(1 - pow(0.99, step)),
    };
}

static inline void begin_step(struct run *run, int step)
{
    struct step_schedule schedule = {.base = run->made, .rates = {rates_of(step)}};
    zero_begin_step(run->zero, &schedule, run->compute);
}

/* The end of a step, collected at once. */
static inline enum status finish_step(struct run *run, int step, struct zero_result *result)
{
    double loss = 1.5 * (run->rank + 1);
    stream_copy(run->compute, run->loss_sum, &loss, sizeof loss);
    TRY(zero_finish_step(run->zero, run->loss_sum, run->compute, &error));
    TRY(zero_end_step(run->zero, run->compute, &error));
    TRY(zero_collect(run->zero, result, &error));
    CHECK(result->optimizer_step == run->made + !result->skipped && result->lr == rates_of(step).lr);
    CHECK(result->loss_sum == 1.5 * run->world * (run->world + 1) / 2);
    run->made = result->optimizer_step;
    return STATUS_OK;
}

static inline float rounded(float x, enum dtype dtype)
{
    return dtype == DTYPE_F32 ? x : dtype == DTYPE_BF16 ? bf16_to_f32(bf16_from_f32(x)) : f16_to_f32(f16_from_f32(x));
}

/* The sum over ranks and micro-batches where nothing is rounded to less than fp32. */
static inline double exact_gradient(const struct run *run, int step, int unit, int64_t i)
{
    double g = 0;
    for (int r = 0; r < run->world; r++)
        for (int micro = 0; micro < run->setting->micros; micro++)
            g += contribution(run, r, step, micro, unit, i);
    return g;
}

/* Stages 0 and 1: each rank adds up its micro-batches, and the ranks' sums are reduced. The ranks send the last sum
 * before it is rounded for the accumulator. */
static inline float gradient_reduced_once(const struct run *run, int step, int unit, int64_t i, float factor)
{
    const struct setting *s = run->setting;
    float sum = 0;
    for (int r = 0; r < run->world; r++) {
        float own = 0;
        for (int micro = 0; micro < s->micros; micro++)
            own = (micro ? rounded(own, s->grad_dtype) : 0) + contribution(run, r, step, micro, unit, i);
        sum += run->world > 1 ? rounded(own * factor, s->comm_dtype) : own;
    }
    return rounded(sum, s->grad_dtype);
}

/* Stages 2 and 3: the ranks' gradients of each micro-batch are reduced, and the sums added up. */
static inline float gradient_reduced_each_time(const struct run *run, int step, int unit, int64_t i, float factor)
{
    const struct setting *s = run->setting;
    float total = 0;
    for (int micro = 0; micro < s->micros; micro++) {
        float sum = 0;
        for (int r = 0; r < run->world; r++) {
            float own = contribution(run, r, step, micro, unit, i);
            sum += run->world > 1 ? rounded(own * factor, s->comm_dtype) : own;
        }
        total = rounded((micro ? total : 0) + sum, s->grad_dtype);
    }
    return total;
}

static inline double reference_gradient(const struct run *run, int step, int unit, int64_t i)
{
    const struct setting *s = run->setting;
    const float factor = run->world > 1 && s->comm_factor > 0 ? s->comm_factor : 1;
    if (s->comm_dtype == DTYPE_F32 && s->grad_dtype == DTYPE_F32)
        return exact_gradient(run, step, unit, i);
    float g = s->stage <= 1 ? gradient_reduced_once(run, step, unit, i, factor)
                            : gradient_reduced_each_time(run, step, unit, i, factor);
    return (double)g / (double)factor;
}

/* Whether Muon updates the tensor, and not AdamW. */
static inline bool is_muon_matrix(const struct run *run, const struct tensor_info *tensor)
{
    return run->setting->muon && tensor->ndim == 2 && tensor->unit > 0 && tensor->unit < run->table.num_units - 1;
}

/* Muon's update of a whole matrix; `scale`: of its gradients. */
static inline void reference_matrix(struct run *run, const struct tensor_info *tensor, double scale)
{
    const int64_t at = whole_index(run, tensor->unit, tensor->offset);
    const double rows = (double)tensor->shape[0], columns = (double)tensor->shape[1];
    double *update = calloc((size_t)tensor->numel, sizeof *update);
    CHECK(update != NULL);
    for (int64_t i = 0; i < tensor->numel; i++) {
        double taken = (1 - muon.momentum) * run->grad[at + i] * scale;
        run->m[at + i] = muon.momentum * run->m[at + i] + taken;
        update[i] = reference_halves(muon.momentum * run->m[at + i] + taken);
    }
    reference_orthogonalize(update, update, tensor->shape[0], tensor->shape[1], muon.ns_steps);
    for (int64_t i = 0; i < tensor->numel; i++) {
        run->master[at + i] -= muon.lr * muon.weight_decay * run->master[at + i];
        run->master[at + i] -= muon.lr * sqrt(fmax(1, rows / columns)) * update[i];
    }
    free(update);
}

/* Computes the same step in double, on the whole model. Returns the norm. */
static inline double reference_step(struct run *run, int step)
{
    const struct step_rates rates = rates_of(step);
    double sum = 0;
    for (int t = 0; t < run->table.num_tensors; t++) {
        const struct tensor_info *tensor = &run->table.tensors[t];
        for (int64_t i = tensor->offset; i < tensor->offset + tensor->numel; i++) {
            double g = reference_gradient(run, step, tensor->unit, i);
            run->grad[whole_index(run, tensor->unit, i)] = g;
            sum += g * g;
        }
    }
    double norm = sqrt(sum), scale = norm > CLIP ? CLIP / (norm + 1e-6) : 1;
    for (int t = 0; t < run->table.num_tensors; t++) {
        const struct tensor_info *tensor = &run->table.tensors[t];
        double decay = tensor->ndim >= 2 ? adamw.weight_decay : 0;
        if (is_muon_matrix(run, tensor)) {
            reference_matrix(run, tensor, scale);
            continue;
        }
        for (int64_t i = tensor->offset; i < tensor->offset + tensor->numel; i++) {
            int64_t at = whole_index(run, tensor->unit, i);
            double g = run->grad[at] * scale;
            run->master[at] -= rates.lr * decay * run->master[at];
            run->m[at] = 0.9 * run->m[at] + 0.1 * g;
            run->v[at] = 0.99 * run->v[at] + 0.01 * g * g;
            run->master[at] -=
                rates.lr * (run->m[at] / (1 - pow(0.9, step))) / (sqrt(run->v[at] / (1 - pow(0.99, step))) + 1e-8);
        }
    }
    return norm;
}

static inline void training_body(struct bootstrap *bootstrap, void *context)
{
    const struct setting *setting = context;
    struct run run = {.rank = 0};
    run_open(&run, bootstrap, setting);
    struct comm_stats stats;
    comm_stats_read(run.comm, &stats, true);
    int64_t gather, reduce;
    zero_theory(run.zero, setting->micros, &gather, &reduce);
    for (int step = 1; step <= STEPS; step++) {
        begin_step(&run, step);
        for (int micro = 0; micro < setting->micros; micro++) {
            zero_begin_micro(run.zero, micro == setting->micros - 1);
            micro_batch(&run, step, micro, false);
        }
        struct zero_result result;
        CHECK_OK(finish_step(&run, step, &result));
        double norm = reference_step(&run, step);
        CHECK(!result.skipped && fabs(result.grad_norm - norm) < 1e-6 * norm);
        comm_stats_read(run.comm, &stats, true);
        if (stats.all_gather_bytes != gather || stats.reduce_scatter_bytes != reduce) {
            fprintf(stderr, "gathered %lld of %lld, reduced %lld of %lld\n", (long long)stats.all_gather_bytes,
                    (long long)gather, (long long)stats.reduce_scatter_bytes, (long long)reduce);
            CHECK(!"the volume is the theory's");
        }
        if (run.rank == 0)
            setting->outcome->norms[step - 1] = result.grad_norm;
        if (step == 2) { /* a pass of two micro-batches between steps */
            evaluation(&run);
            evaluation(&run);
            comm_stats_read(run.comm, &stats, true);
            CHECK(stats.all_gather_bytes == zero_theory_evaluation(run.zero, 2) && stats.reduce_scatter_bytes == 0);
        }
    }
    for (int s = 0; s < STATE_KIND_COUNT; s++)
        for (int u = 0; u < run.table.num_units; u++) {
            float *slice;
            CHECK_OK(state_slice(zero_slices(run.zero), SLICE_READ, s, u, &slice, &error));
            int64_t first = run.rank * run.layout.slice[u];
            for (int64_t i = 0; i < run.layout.slice[u]; i++) {
                setting->outcome->state[s][whole_index(&run, u, first + i)] = slice[i];
                if (!tensor_at(&run.table, u, first + i))
                    CHECK(slice[i] == 0); /* gaps and padding stay zero */
            }
        }
    run_close(&run);
}

/* The gradient of the last rank in the second step is not finite: that step is skipped. */
static inline void poison_body(struct bootstrap *bootstrap, void *context)
{
    const struct setting *setting = context;
    struct run run = {.rank = 0};
    run_open(&run, bootstrap, setting);
    struct zero_result result;
    for (int step = 1; step <= 3; step++) {
        bool poisoned = step == 2;
        begin_step(&run, step);
        for (int micro = 0; micro < setting->micros; micro++) {
            zero_begin_micro(run.zero, micro == setting->micros - 1);
            micro_batch(&run, step, micro, poisoned && micro == 0 && run.rank == run.world - 1);
        }
        CHECK_OK(finish_step(&run, step, &result));
        CHECK(result.skipped == poisoned);
        if (poisoned) {
            CHECK(result.bad_rank == run.world - 1 && !isfinite(result.grad_norm));
            CHECK(result.bad_tensor == &run.table.tensors[run.table.units[2].first_tensor + 3]);
        } else {
            CHECK(result.bad_rank == -1 && !result.bad_tensor);
            reference_step(&run, step); /* micro_batch() compares parameters: a skipped step has changed none */
        }
    }
    evaluation(&run);
    run_close(&run);
}

/* Writes all three states through the slices, as a resume does: the whole copies of stage 0 must follow. */
static inline void restart_body(struct bootstrap *bootstrap, void *context)
{
    const struct setting *setting = context;
    struct run run = {.rank = 0};
    run_open(&run, bootstrap, setting);
    for (int step = 1; step <= 2; step++) {
        if (step == 2) {
            for (int s = 0; s < STATE_KIND_COUNT; s++)
                for (int u = 0; u < run.table.num_units; u++) {
                    const double *from = s == STATE_MASTER ? run.master : s == STATE_EXP_AVG ? run.m : run.v;
                    float *slice;
                    CHECK_OK(state_slice(zero_slices(run.zero), SLICE_WRITE, s, u, &slice, &error));
                    for (int64_t i = 0; i < run.layout.slice[u]; i++)
                        slice[i] = (float)from[whole_index(&run, u, run.rank * run.layout.slice[u] + i)];
                }
            CHECK_OK(zero_params_changed(run.zero, run.compute, &error));
        } else { /* the reference alone takes this step */
            reference_step(&run, step);
            continue;
        }
        begin_step(&run, step);
        zero_begin_micro(run.zero, true);
        micro_batch(&run, step, 0, false);
        struct zero_result result;
        CHECK_OK(finish_step(&run, step, &result));
        reference_step(&run, step);
    }
    evaluation(&run);
    run_close(&run);
}

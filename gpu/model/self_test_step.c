/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/model/self_test_step.h"

#include "core/memory.h"
#include "core/model/model_config.h"
#include "core/model/tensor_table.h"
#include "core/round_up.h"
#include "gpu/arena.h"
#include "gpu/model/transformer.h"

enum {
    MAX_UNITS = 8,
    ALIGN = 64,
    SEQUENCES = 2,
    LENGTH = 24,
    TOKENS = SEQUENCES * LENGTH,
    VOCABULARY = 104,
    STEPS = 2
};

/* A model with its optimizer's state, and the memory of both. Units lie one after the other. */
struct small_model {
    struct device *device; /* borrowed */
    struct stream *stream;
    struct model_desc desc;
    struct tensor_table table;
    struct transformer *transformer;
    void *memory; /* the arena */
    size_t bytes, workspace;
    int64_t start[MAX_UNITS], numel; /* elements */
    uint16_t *params;                /* bf16 (numel) */
    float *grads, *master, *m, *v;   /* (numel) */
    double *loss;
    struct step_state *state;
    struct batch batch;
};

/* ---- verbs --------------------------------------------------------------- */

static enum status test_acquire(void *self, int unit, enum param_pass pass, struct stream *stream,
                                struct unit_params *params, struct error *err)
{
    (void)pass, (void)stream, (void)err;
    const struct small_model *s = self;
    params->trained[UNIT_SELF] = s->params + s->start[unit];
    return STATUS_OK;
}

static void test_release(void *self, int unit, enum param_pass pass, struct stream *stream)
{
    (void)self, (void)unit, (void)pass, (void)stream;
}

static enum status test_grads(void *self, int unit, struct stream *stream, struct unit_grads *grads, struct error *err)
{
    (void)stream, (void)err;
    const struct small_model *s = self;
    *grads = (struct unit_grads){.grads = {s->grads + s->start[unit]}, .numel = {s->table.units[unit].numel}};
    return STATUS_OK;
}

static enum status test_grads_ready(void *self, int unit, struct stream *stream, struct error *err)
{
    (void)self, (void)unit, (void)stream, (void)err;
    return STATUS_OK;
}

/* ---- the model ----------------------------------------------------------- */

static enum status self_test_step_describe(struct small_model *s, struct error *err)
{
    json_auto_t *config = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i}", "model_type", "gpt2", "n_embd", 64, "n_layer", 2,
                                    "n_head", 4, "n_positions", LENGTH, "vocab_size", VOCABULARY);
    TRY(model_desc_from_spec(config, &s->desc, err));
    tensor_table_build(&s->desc, &s->table);
    ASSERT(s->table.num_units <= MAX_UNITS);
    for (int u = 0; u < s->table.num_units; u++) {
        s->start[u] = s->numel;
        s->numel += round_up(s->table.units[u].numel, ALIGN);
    }
    const struct transformer_config config_of = {
        .desc = &s->desc,
        .table = &s->table,
        .dtype = DTYPE_BF16,
        .settings = {.deterministic = true, .logits_dtype = DTYPE_BF16},
        .batch = {.max_tokens = TOKENS, .max_seqs = SEQUENCES, .max_seq = LENGTH},
        .training = true,
    };
    return transformer_new(&config_of, s->device, &s->transformer, err);
}

static void lay_out_small(struct small_model *s, struct arena *arena)
{
    const size_t n = (size_t)s->numel;
    s->params = arena_take(arena, MEM_PARAMS, n * sizeof *s->params);
    s->grads = arena_take(arena, MEM_GRADS, n * sizeof(float));
    s->master = arena_take(arena, MEM_OPTIMIZER, n * sizeof(float));
    s->m = arena_take(arena, MEM_OPTIMIZER, n * sizeof(float));
    s->v = arena_take(arena, MEM_OPTIMIZER, n * sizeof(float));
    s->loss = arena_take(arena, MEM_WORKSPACE, sizeof *s->loss);
    s->state = arena_take(arena, MEM_OPTIMIZER, sizeof *s->state);
    transformer_layout(s->transformer, arena);
    void *workspace = arena_take(arena, MEM_WORKSPACE, s->workspace);
    if (arena->base) stream_set_workspace(s->stream, workspace, s->workspace);
}

static enum status allocate_small(struct small_model *s, struct error *err)
{
    struct op_limits limits;
    struct arena arena;
    transformer_op_limits(s->transformer, &limits);
    limits.num_attention = 0; /* no plan of cuDNN's for this shape */
    s->workspace = ops_workspace_bytes(s->device, &limits);
    TRY(stream_new(s->device, STREAM_COMPUTE, &s->stream, err));
    arena_init_dry(&arena);
    lay_out_small(s, &arena);
    TRY(device_alloc(s->device, arena.used, &s->memory, err));
    s->bytes = arena.used;
    arena_init(&arena, s->memory, s->bytes);
    lay_out_small(s, &arena);
    arena_finish(&arena);
    return transformer_start(s->transformer, s->stream, err);
}

static void release_small(struct small_model *s)
{
    transformer_free(s->transformer);
    stream_free(s->stream);
    device_free(s->device, s->memory, s->bytes);
    tensor_table_release(&s->table);
    model_desc_release(&s->desc);
}

/* ---- steps --------------------------------------------------------------- */

/* Weights between -0.1 and 0.1, norms included, and the optimizer's state: the same each time. */
static void self_test_step_begin(struct small_model *s)
{
    const struct step_state state = {.optimizer_step = 1,
                                     .lr = 1e-2,
                                     .correction1 = 0.1,
                                     .correction2 = 0.001,
                                     .beta1 = 0.9,
                                     .beta2 = 0.999,
                                     .loss_scale = 1,
                                     .used_loss_scale = 1,
                                     .grad_scale = 1,
                                     .bad_unit = -1,
                                     .bad_loss_rank = -1};
    const size_t bytes = (size_t)s->numel * sizeof(float);
    stream_copy(s->stream, s->state, &state, sizeof state);
    stream_sync(s->stream);
    stream_fill_noise(s->stream, s->master, DTYPE_F32, (size_t)s->numel, 1);
    RUN_OP(s->device->ops, accumulate, s->stream, .n = s->numel, .dst = s->master, .src = s->master, .scale = 0.1f);
    RUN_OP(s->device->ops, cast, s->stream, .dst_dtype = DTYPE_BF16, .src_dtype = DTYPE_F32, .n = s->numel,
           .dst = s->params, .src = s->master);
    stream_fill_zero(s->stream, s->grads, bytes);
    stream_fill_zero(s->stream, s->m, bytes);
    stream_fill_zero(s->stream, s->v, bytes);
}

static void self_test_step_tokens(struct small_model *s)
{
    int32_t tokens[TOKENS], targets[TOKENS], positions[TOKENS], seq_start[SEQUENCES + 1];
    for (int i = 0; i < TOKENS; i++) {
        tokens[i] = 7 * i % VOCABULARY;
        targets[i] = 7 * (i + 1) % VOCABULARY;
        positions[i] = i % LENGTH;
    }
    for (int i = 0; i <= SEQUENCES; i++) seq_start[i] = i * LENGTH;
    s->batch = (struct batch){.num_seqs = SEQUENCES,
                              .max_seq = LENGTH,
                              .num_tokens = TOKENS,
                              .tokens = tokens,
                              .targets = targets,
                              .positions = positions,
                              .seq_start = seq_start};
    transformer_load(s->transformer, 0, &s->batch, s->stream, NULL);
}

/* Forward, backward, update: what is captured. */
static enum status enqueue_step(struct small_model *s, struct error *err)
{
    const struct param_verbs verbs = {s, test_acquire, test_release, test_grads, test_grads_ready, NULL};
    stream_fill_zero(s->stream, s->loss, sizeof *s->loss);
    const struct train_job job = {.transformer = s->transformer,
                                  .batch = &s->batch,
                                  .factor = {.value = 1.0f / TOKENS},
                                  .verbs = &verbs,
                                  .loss_sum = s->loss};
    TRY(transformer_train(&job, 1, s->stream, err));
    RUN_OP(s->device->ops, adam, s->stream, .n = s->numel, .master = s->master, .m = s->m, .v = s->v, .grad = s->grads,
           .grad_dtype = DTYPE_F32, .step = s->state, .param = s->params, .param_dtype = DTYPE_BF16, .eps = 1e-8f,
           .weight_decay = 0.1f, .adamw = true);
    return STATUS_OK;
}

/* *captured: a capture that fails is a finding, not an error. */
static enum status run_captured(struct small_model *s, bool *captured, struct error *why, struct error *err)
{
    struct graph *graph;
    *captured = false;
    if (graph_begin(&s->stream, 1, &graph, why) != STATUS_OK) return STATUS_OK;
    enum status status = enqueue_step(s, err), ended = graph_end(graph, why);
    if (status != STATUS_OK || ended != STATUS_OK) return status;
    *captured = true;
    for (int i = 0; i < STEPS; i++) graph_launch(graph);
    stream_sync(s->stream);
    graph_free(graph);
    return device_check(s->device, err);
}

/* ---- comparison ---------------------------------------------------------- */

/* Bytes of loss, gradients and weights. */
static size_t self_test_step_bytes(const struct small_model *s)
{
    return sizeof *s->loss + 2 * (size_t)s->numel * sizeof(float);
}

static void self_test_step_fetch(struct small_model *s, char *out)
{
    const size_t bytes = (size_t)s->numel * sizeof(float);
    stream_copy(s->stream, out, s->loss, sizeof *s->loss);
    stream_copy(s->stream, out + sizeof *s->loss, s->grads, bytes);
    stream_copy(s->stream, out + sizeof *s->loss + bytes, s->master, bytes);
    stream_sync(s->stream);
}

static enum status compare_steps(struct small_model *s, char *results[2], char *differs, size_t size, struct error *err)
{
    struct error why = {.text = ""};
    bool captured;
    self_test_step_begin(s);
    self_test_step_tokens(s);
    for (int i = 0; i < STEPS; i++) TRY(enqueue_step(s, err));
    self_test_step_fetch(s, results[0]);
    TRY(device_check(s->device, err));
    self_test_step_begin(s);
    TRY(run_captured(s, &captured, &why, err));
    if (!captured) {
        snprintf(differs, size, "a step of a small model cannot be captured: %s", why.text);
        return STATUS_OK;
    }
    self_test_step_fetch(s, results[1]);
    if (memcmp(results[0], results[1], sizeof(double)) != 0)
        snprintf(differs, size, "a captured step of a small model has another loss than the same step op by op");
    else if (memcmp(results[0], results[1], self_test_step_bytes(s)) != 0)
        snprintf(differs, size,
                 "a captured step of a small model has other gradients or weights than the same step op by op");
    return STATUS_OK;
}

enum status self_test_step(struct device *device, char *differs, size_t size, struct error *err)
{
    struct small_model s = {.device = device};
    char *results[2] = {NULL, NULL};
    enum status status;
    differs[0] = '\0';
    ASSERT(device_has_graphs(device));
    TRY_END(self_test_step_describe(&s, err));
    TRY_END(allocate_small(&s, err));
    results[0] = memory_alloc(self_test_step_bytes(&s));
    results[1] = memory_alloc(self_test_step_bytes(&s));
    status = compare_steps(&s, results, differs, size, err);
end:
    free(results[0]);
    free(results[1]);
    release_small(&s);
    return status;
}

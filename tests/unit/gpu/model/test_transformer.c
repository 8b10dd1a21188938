/* SPDX-License-Identifier: Apache-2.0 */
/* test_transformer.c: the transformer on the CPU device, with verbs over whole parameters and gradients.
 *
 * The oracle is tests/golden: the loss and every tensor's gradient of step 1, computed in float64 by Hugging Face
 * transformers. Gradients and activations are filled with NaN at first, so that a read before the first write shows. */
#include "core/dtype.h"
#include "core/model/adapter.h"
#include "gpu/model/transformer.h"
#include "gpu/open/device_open.h"
#include "gpu/ops_profile.h"
#include "gpu/span_recorder.h"
#include "tests/unit/fixtures/golden_case.h"
#include "tests/unit/fixtures/sample.h"
#include "tests/unit/fixtures/train_one.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* Counts the allocations of the whole process, unless a sanitizer replaces the allocator. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { COUNTS_ALLOCATIONS = 0 };
static atomic_long allocations;
#else
enum { COUNTS_ALLOCATIONS = 1 };
static atomic_long allocations;
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);

void *malloc(size_t bytes)
{
    allocations++;
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    allocations++;
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    allocations++;
    return __libc_realloc(memory, bytes);
}
#endif

enum { BATCH = 12, MAX_UNITS = 24, MAX_CALLS = 96 };

static const struct golden_name {
    const char *name;
    int seq_length;
    bool padded;
} GOLDEN[] = {
    {"gpt2", 16, false},
    {"gpt2-inner", 20, false},
    {"gpt2-padded", 18, true},
    {"llama", 16, false},
    {"llama-bias", 12, false},
    {"llama3-rope", 32, false},
    {"linear-rope", 24, false},
    {"mistral-window", 24, false},
    {"qwen2", 16, false},
    {"qwen3", 16, false},
    {"qwen3-yarn", 24, false},
    {"phi3", 16, false},
    {"granite", 16, false},
    {"smollm3", 16, false},
    {"olmo2", 16, false},
    {"gemma2", 24, false},
    {"gemma3", 24, false},
    {"olmo3", 24, false},
    {"glm", 16, false},
    {"glm4", 16, false},
    {"ministral3", 24, false},
    {"gptj", 18, false},
    {"gpt-neox", 18, false},
    {"gpt-neox-in-turn", 16, false},
    {"phi", 16, false},
    {"cohere", 16, false},
    {"cohere2", 24, false},
    {"starcoder2", 24, false},
    {"exaone4", 24, false},
    {"seed-oss", 16, false},
    {"qwen3.5", 72, false},
    {"gemma4", 24, false},
    {"gemma4-kv", 24, false},
    {"llama-pad", 16, false},
    {"qwen2-pad", 16, false},
    {"phi3-longrope", 24, false},
    {"phi3-longrope-short", 16, false},
    {"dynamic-rope", 24, false},
    {"qwen3-moe", 16, false},
    {"qwen2-moe", 16, false},
    {"mixtral", 16, false},
    {"olmoe", 16, false},
    {"granitemoe", 16, false},
    {"gpt-oss", 24, false},
    {"glm4-moe", 16, false},
};

/* The verbs over whole units. Every call is recorded; the fail_at-th (from 1) fails. */
struct whole {
    const struct tensor_table *table;
    void *params[MAX_UNITS];
    float *grads[MAX_UNITS];
    bool accumulate;
    char calls[MAX_CALLS][16]; /* "acquire f0", "release b3", "grads 0", "ready 0" */
    int num_calls, fail_at;
};

static enum status whole_call(struct whole *whole, struct error *err, const char *verb, const char *pass, int unit)
{
    assert_true(whole->num_calls < MAX_CALLS);
    snprintf(whole->calls[whole->num_calls++], sizeof whole->calls[0], "%s %s%d", verb, pass, unit);
    if (whole->num_calls == whole->fail_at) return error_set(err, STATUS_PEER, "call %d failed", whole->num_calls);
    return STATUS_OK;
}

static const char *const PASS_LETTER[] = {[PASS_FORWARD] = "f", [PASS_BACKWARD] = "b", [PASS_EVALUATION] = "e"};

static enum status whole_acquire(void *self, int unit, enum param_pass pass, struct stream *stream,
                                 struct unit_params *params, struct error *err)
{
    struct whole *whole = self;
    (void)stream;
    for (int u = unit, part = 0; part == 0 || u; u = whole->table->units[u].next, part++) {
        const int frozen = whole->table->units[u].frozen;
        params->trained[part] = whole->params[u];
        params->frozen[part] = frozen ? whole->params[frozen] : NULL;
    }
    return whole_call(whole, err, "acquire", PASS_LETTER[pass], unit);
}

static void whole_release(void *self, int unit, enum param_pass pass, struct stream *stream)
{
    (void)stream;
    whole_call(self, NULL, "release", PASS_LETTER[pass], unit);
}

static enum status whole_grads(void *self, int unit, struct stream *stream, struct unit_grads *grads, struct error *err)
{
    struct whole *whole = self;
    (void)stream;
    *grads = (struct unit_grads){.adds = whole->accumulate};
    for (int u = unit, part = 0; part == 0 || u; u = whole->table->units[u].next) {
        grads->numel[part] = whole->table->units[u].numel;
        grads->grads[part++] = whole->grads[u];
    }
    return whole_call(whole, err, "grads", "", unit);
}

static enum status whole_ready(void *self, int unit, struct stream *stream, struct error *err)
{
    (void)stream;
    return whole_call(self, err, "ready", "", unit);
}

/* Activation verbs that save a block's input and spoil its buffer until it is fetched. */
enum { KEPT_BUFFERS = 2, MOST_KEPT = 8 };
struct kept {
    void *inputs[MOST_KEPT]; /* NULL: not kept */
    int64_t next;            /* block whose call is expected */
    bool backward;
    int calls;
};

static void keep_input(void *self, int64_t block, void *buffer, size_t bytes, struct stream *stream)
{
    struct kept *kept = self;
    stream_sync(stream);
    assert_true(!kept->backward && block == kept->next && block < MOST_KEPT && !kept->inputs[block]);
    kept->inputs[block] = malloc(bytes);
    memcpy(kept->inputs[block], buffer, bytes);
    memset(buffer, 0xff, bytes);
    kept->next++;
    kept->calls++;
}

static void fetch_input(void *self, int64_t block, void *buffer, size_t bytes, struct stream *stream)
{
    struct kept *kept = self;
    stream_sync(stream);
    kept->backward = true;
    assert_true(block == kept->next - 1 && kept->inputs[block]);
    memcpy(buffer, kept->inputs[block], bytes);
    free(kept->inputs[block]);
    kept->inputs[block] = NULL;
    kept->next--;
    kept->backward = block > 0;
    kept->calls++;
}

/* A model of tests/golden with the device, memory and verbs that it needs. */
struct fixture {
    struct golden_name golden;
    struct model_desc desc;
    struct tensor_table table;
    json_t *expected;
    float *weights[MAX_UNITS], *reference[MAX_UNITS]; /* fp32: the model, the golden gradients */
    struct golden_tokens tokens;
    struct whole whole;
    struct param_verbs verbs;
    struct kept kept;
    struct activation_verbs activations;

    struct device *device;
    struct stream *stream;
    struct transformer *transformer;
    void *memory, *workspace;
    size_t memory_bytes, workspace_bytes;
    double *loss_sum; /* device */
};

struct variant {
    enum dtype dtype;
    bool evaluation;
    enum recompute recompute;
    bool away; /* the blocks' inputs are away between forward and backward */
    int64_t logit_chunk;
    enum dtype logits_dtype;
    int micro_seqs; /* samples in a micro-batch; 0: all */
    int filler;     /* tokens of a last sequence without targets */
};

static int64_t max_tokens(const struct fixture *f, const struct variant *v)
{
    return (int64_t)(v->micro_seqs ? v->micro_seqs : BATCH) * f->golden.seq_length + v->filler;
}

/* Plans with a dry arena, allocates exactly that much, fills it with NaN, and lays out again. */
static void fixture_start(struct fixture *f, const struct variant *v)
{
    struct error err;
    struct transformer_config config = {
        .desc = &f->desc,
        .table = &f->table,
        .settings = {.deterministic = true, .recompute = v->recompute, .logits_dtype = v->logits_dtype},
        .batch = {.max_tokens = max_tokens(f, v), .max_seqs = BATCH + 1, .max_seq = f->golden.seq_length},
        .dtype = v->dtype,
        .training = !v->evaluation,
        .activations = v->away ? &f->activations : NULL,
        .logit_chunk = v->logit_chunk,
    };
    assert_int_equal(transformer_new(&config, f->device, &f->transformer, &err), STATUS_OK);
    struct arena arena;
    arena_init_dry(&arena);
    transformer_layout(f->transformer, &arena);
    double *dry_loss = arena_take(&arena, MEM_DATA, sizeof *dry_loss);
    assert_null(dry_loss);
    f->memory_bytes = arena.used;
    assert_int_equal(device_alloc(f->device, f->memory_bytes, &f->memory, &err), STATUS_OK);
    memset(f->memory, 0xff, f->memory_bytes);
    arena_init(&arena, f->memory, f->memory_bytes);
    transformer_layout(f->transformer, &arena);
    f->loss_sum = arena_take(&arena, MEM_DATA, sizeof *f->loss_sum);
    arena_finish(&arena);

    struct op_limits limits;
    transformer_op_limits(f->transformer, &limits);
    f->workspace_bytes = ops_workspace_bytes(f->device, &limits);
    f->workspace = NULL;
    if (f->workspace_bytes)
        assert_int_equal(device_alloc(f->device, f->workspace_bytes, &f->workspace, &err), STATUS_OK);
    stream_set_workspace(f->stream, f->workspace, f->workspace_bytes);
    assert_int_equal(transformer_start(f->transformer, f->stream, &err), STATUS_OK);
    for (int64_t layer = 0; layer < f->desc.num_layers; layer++) {
        const struct tensor_info *bias = tensor_find(&f->table, (int)layer + 1, ROLE_ROUTER_CORRECTION);
        if (bias) transformer_set_correction(f->transformer, layer, f->weights[bias->unit] + bias->offset, f->stream);
    }

    for (int u = 0; u < f->table.num_units; u++) {
        int64_t n = f->table.units[u].numel;
        f->whole.params[u] = aligned_alloc(128, (size_t)(n + 64) / 64 * 256);
        f->whole.grads[u] = aligned_alloc(128, (size_t)(n + 64) / 64 * 256);
        memset(f->whole.grads[u], 0xff, (size_t)n * sizeof(float));
        for (int64_t i = 0; i < n; i++) {
            dtype_store(f->whole.params[u], i, f->weights[u][i], v->dtype);
        }
    }
}

static void fixture_stop(struct fixture *f)
{
    for (int u = 0; u < f->table.num_units; u++) {
        free(f->whole.params[u]);
        free(f->whole.grads[u]);
    }
    if (f->workspace) device_free(f->device, f->workspace, f->workspace_bytes);
    device_free(f->device, f->memory, f->memory_bytes);
    transformer_free(f->transformer);
}

/* Which tensors fixture_init() freezes; NULL: none. */
static bool (*freezes)(void *context, const struct tensor_info *tensor);
/* The adapters that fixture_init() adds; NULL: none. */
static struct adapter_choice (*adapts)(const struct model_desc *desc, const struct tensor_info *tensor);

static void fixture_adapt(struct fixture *f)
{
    struct adapter_choice *choices = calloc((size_t)f->table.num_tensors, sizeof *choices), none = {ADAPTER_NONE, 0, 0};
    for (int i = 0; i < f->table.num_tensors; i++) choices[i] = adapts(&f->desc, &f->table.tensors[i]);
    adapter_extend_table(&f->table, &f->desc, choices, &none);
    free(choices);
}

static void fixture_init(struct fixture *f, const struct golden_name *golden)
{
    struct error err;
    char path[256];
    memset(f, 0, sizeof *f);
    f->golden = *golden;
    snprintf(path, sizeof path, GOLDEN_FOLDER "%s/config.json", golden->name);
    assert_int_equal(model_desc_load(path, &f->desc, &err), STATUS_OK);
    tensor_table_build(&f->desc, &f->table);
    if (freezes) tensor_table_freeze(&f->table, freezes, NULL, NULL, 0);
    if (adapts) fixture_adapt(f);
    assert_true(f->table.num_units <= MAX_UNITS);
    for (int u = 0; u < f->table.num_units; u++) {
        f->weights[u] = calloc((size_t)f->table.units[u].numel, sizeof(float));
        f->reference[u] = calloc((size_t)f->table.units[u].numel, sizeof(float));
    }
    golden_tensors(golden->name, "model*.safetensors", &f->table, f->weights);
    golden_tensors(golden->name, "grads_step1.safetensors", &f->table, f->reference);
    f->tokens = golden_tokens_read(golden->name, "train");
    f->expected = golden_expected(golden->name);
    f->whole.table = &f->table;
    f->kept = (struct kept){.next = 0};
    f->activations = (struct activation_verbs){&f->kept, KEPT_BUFFERS, keep_input, fetch_input};
    f->verbs = (struct param_verbs){&f->whole, whole_acquire, whole_release, whole_grads, whole_ready, NULL};
    assert_int_equal(device_open(DEVICE_CPU, 0, 2, &f->device, &err), STATUS_OK);
    assert_int_equal(stream_new(f->device, STREAM_COMPUTE, &f->stream, &err), STATUS_OK);
}

static void fixture_release(struct fixture *f)
{
    stream_free(f->stream);
    device_close(f->device);
    golden_tokens_release(&f->tokens);
    json_decref(f->expected);
    for (int u = 0; u < f->table.num_units; u++) {
        free(f->weights[u]);
        free(f->reference[u]);
    }
    tensor_table_release(&f->table);
    model_desc_release(&f->desc);
}

/* A batch's arrays, as core/data makes them. */
enum { MOST_TOKENS = BATCH * 72 + 64 };
struct batch_arrays {
    int32_t tokens[MOST_TOKENS], targets[MOST_TOKENS], positions[MOST_TOKENS], seq_start[BATCH + 2];
};

static void add_sequence(struct batch *batch, struct batch_arrays *arrays, const uint16_t *tokens, int length,
                         int targets)
{
    for (int i = 0; i < length; i++) {
        int64_t at = batch->num_tokens++;
        arrays->tokens[at] = tokens ? tokens[i] : 0;
        arrays->targets[at] = i < targets ? tokens[i + 1] : -1;
        arrays->positions[at] = i;
        batch->num_targets += i < targets;
    }
    arrays->seq_start[++batch->num_seqs] = (int32_t)batch->num_tokens;
    batch->max_seq = length > batch->max_seq ? length : batch->max_seq;
}

/* Samples [first, first + count) of the case's tokens, and filler. */
static struct batch make_batch(const struct fixture *f, const struct golden_tokens *tokens, int first, int count,
                               int filler, struct batch_arrays *arrays)
{
    struct batch batch = {.tokens = arrays->tokens,
                          .targets = arrays->targets,
                          .positions = arrays->positions,
                          .seq_start = arrays->seq_start};
    int T = f->golden.seq_length;
    arrays->seq_start[0] = 0;
    int64_t start = 0;
    for (int i = 0; i < first + count; i++) {
        int length = f->golden.padded ? tokens->lengths[i] : T;
        int seen = length < T ? length : T;
        if (i >= first) add_sequence(&batch, arrays, tokens->tokens + start, seen, f->golden.padded ? seen - 1 : T);
        start += length;
    }
    if (filler) add_sequence(&batch, arrays, NULL, filler, 0);
    return batch;
}

/* Step 1 in micro-batches; returns the mean loss. */
static double train_step(struct fixture *f, const struct variant *v)
{
    static struct batch_arrays arrays;
    struct error err;
    int micro = v->micro_seqs ? v->micro_seqs : BATCH;
    struct batch all = make_batch(f, &f->tokens, 0, BATCH, 0, &arrays);
    *f->loss_sum = 0;
    for (int first = 0; first < BATCH; first += micro) {
        struct batch batch = make_batch(f, &f->tokens, first, micro, v->filler, &arrays);
        f->whole.accumulate = first > 0;
        f->whole.num_calls = 0;
        const struct loss_factor factor = {.value = (float)(1.0 / (double)all.num_targets)};
        assert_int_equal(train_one(f->transformer, &batch, &factor, &f->verbs, f->stream, f->loss_sum, &err),
                         STATUS_OK);
        memset(&arrays, 0x7f, sizeof arrays); /* the arrays may be reused after the call */
    }
    stream_sync(f->stream);
    return *f->loss_sum / (double)all.num_targets;
}

/* Largest distance of a tensor's gradient from the golden one, in units of its length; and of all tensors together. */
static double worst_gradient(const struct fixture *f, double *together)
{
    double worst = 0, all_far = 0, all_size = 0;
    for (int i = 0; i < f->table.num_tensors; i++) {
        const struct tensor_info *tensor = &f->table.tensors[i];
        const float *g = f->whole.grads[tensor->unit] + tensor->offset;
        const bool untrained = tensor->frozen || role_is_constant(tensor->role);
        for (int64_t k = 0; k < tensor->numel && untrained; k++) assert_true(isnan(g[k])); /* as before the step */
        if (untrained) continue;
        const float *reference = f->reference[tensor->unit] + tensor->offset;
        double far = 0, size = 0;
        for (int64_t k = 0; k < tensor->numel; k++) {
            double difference = (double)g[k] - (double)reference[k];
            far += difference * difference;
            size += (double)reference[k] * (double)reference[k];
        }
        double error = sqrt(far / size);
        if (!(error <= worst) && !isnan(worst)) worst = error;
        if (!(error <= 0.5)) print_error("%s: gradient of %s is off by %.2e\n", f->golden.name, tensor->name, error);
        all_far += far;
        all_size += size;
    }
    *together = sqrt(all_far / all_size);
    return worst;
}

/* Within a few times the error of transformers in fp32, relative to float64. */
static void test_golden_fp32(void **state)
{
    (void)state;
    static const struct variant VARIANTS[] = {
        {.dtype = DTYPE_F32},
        {.dtype = DTYPE_F32, .micro_seqs = 4, .logit_chunk = 7},
        {.dtype = DTYPE_F32, .micro_seqs = 1, .logit_chunk = 1},
        {.dtype = DTYPE_F32, .micro_seqs = 6, .logit_chunk = 100000, .filler = 5},
        {.dtype = DTYPE_F32, .micro_seqs = 3, .recompute = RECOMPUTE_BLOCK},
    };
    for (size_t i = 0; i < COUNT_OF(GOLDEN); i += sample_distance(3)) {
        struct fixture f;
        fixture_init(&f, &GOLDEN[i]);
        double want = json_number_value(json_array_get(json_object_get(f.expected, "loss"), 0));
        double own_loss = golden_number(f.expected, "rounding", "fp32", "loss_1");
        double own_worst = golden_number(f.expected, "rounding", "fp32", "grad_1");
        for (size_t k = 0; k < COUNT_OF(VARIANTS); k++) {
            fixture_start(&f, &VARIANTS[k]);
            double together, loss = train_step(&f, &VARIANTS[k]), worst = worst_gradient(&f, &together);
            if (!(fabs(loss - want) < 1e-6 + 2 * own_loss) || !(worst < 1e-6 + 4 * own_worst))
                fail_msg("%s, variant %zu: loss off by %.1e, a gradient by %.1e (%.1e)", GOLDEN[i].name, k, loss - want,
                         worst, own_worst);
            fixture_stop(&f);
        }
        fixture_release(&f);
    }
}

static bool is_not_of_mlp(void *context, const struct tensor_info *tensor)
{
    (void)context;
    return tensor->role != ROLE_DOWN_W && tensor->role != ROLE_DOWN_B;
}

static bool is_matrix_of_attention(void *context, const struct tensor_info *tensor)
{
    (void)context;
    switch (tensor->role) {
    case ROLE_QKV_W:
    case ROLE_QKV_B:
    case ROLE_Q_W:
    case ROLE_K_W:
    case ROLE_V_W:
    case ROLE_Q_B:
    case ROLE_K_B:
    case ROLE_V_B: return tensor->unit == 1; /* blocks differ */
    case ROLE_O_B:
    case ROLE_NORM1_W: return true;
    default: return false;
    }
}

/* The other gradients are the golden ones, and nothing is written for what is frozen. */
static void test_frozen_tensors(void **state)
{
    (void)state;
    static const struct variant VARIANTS[] = {{.dtype = DTYPE_F32},
                                              {.dtype = DTYPE_F32, .micro_seqs = 3, .recompute = RECOMPUTE_BLOCK}};
    for (size_t i = 0; i < 2 * COUNT_OF(GOLDEN); i++) {
        const struct golden_name *golden = &GOLDEN[i / 2];
        struct fixture f;
        freezes = i % 2 ? is_not_of_mlp : is_matrix_of_attention;
        fixture_init(&f, golden);
        double want = json_number_value(json_array_get(json_object_get(f.expected, "loss"), 0));
        double own_loss = golden_number(f.expected, "rounding", "fp32", "loss_1");
        double own_worst = golden_number(f.expected, "rounding", "fp32", "grad_1");
        for (size_t k = 0; k < COUNT_OF(VARIANTS); k++) {
            fixture_start(&f, &VARIANTS[k]);
            double together, loss = train_step(&f, &VARIANTS[k]), worst = worst_gradient(&f, &together);
            if (!(fabs(loss - want) < 1e-6 + 2 * own_loss) || !(worst < 1e-6 + 4 * own_worst))
                fail_msg("%s, variant %zu: loss off by %.1e, a gradient by %.1e", golden->name, k, loss - want, worst);
            fixture_stop(&f);
        }
        fixture_release(&f);
    }
    freezes = NULL;
}

static bool is_in_out(const struct model_desc *desc, const struct tensor_info *base)
{
    return role_is_expert(base->role) ? desc->experts.interleaved
                                      : desc->weights_in_out && base->unit > 0 && base->ndim == 2;
}

/* Every matrix, with ranks and scales that differ in a fused group; but not a tied embedding: the head has it too; nor
 * one with a padding token, whose row B's gradient needs and the embedding's has not. */
static struct adapter_choice adapts_all(const struct model_desc *desc, const struct tensor_info *tensor)
{
    const bool shared =
        role_is_embedding(tensor->role) && (tensor->role != ROLE_WTE || desc->tied || desc->padding_token >= 0);
    const bool later = role_is_expert(tensor->role) && tensor->joined; /* the first has those of all */
    return !tensor_is_matrix(tensor) || shared || later
               ? (struct adapter_choice){ADAPTER_NONE, 0, 0}
               : (struct adapter_choice){ADAPTER_LORA, 2 + tensor->role % 3, 1 + tensor->role % 2};
}

/* The last block's q and v, and up, as PEFT's defaults: backward ends there. A norm is trained, too. */
static struct adapter_choice adapts_some(const struct model_desc *desc, const struct tensor_info *tensor)
{
    const bool chosen =
        tensor->role == ROLE_Q_W || tensor->role == ROLE_V_W || tensor->role == ROLE_QKV_W || tensor->role == ROLE_UP_W;
    if (tensor->role == ROLE_FINAL_NORM_W) return (struct adapter_choice){ADAPTER_SAVE, 0, 0};
    return chosen && tensor->unit == desc->num_layers ? (struct adapter_choice){ADAPTER_LORA, 8, 0.5}
                                                      : (struct adapter_choice){ADAPTER_NONE, 0, 0};
}

/* The element of a base matrix (out, in) that row o of B and column i of A make; A of an embedding is (V, r). */
static int64_t adapted_element(const struct model_desc *desc, const struct tensor_info *base, int64_t out, int64_t in,
                               int64_t o, int64_t i)
{
    return is_in_out(desc, base) || base->role == ROLE_WTE ? i * out + o : o * in + i;
}

/* Gives A and B values, takes what they add from the base, so that the model is the golden one, and makes the golden
 * gradients of W those of A and B: dB = scale · dW · Aᵀ, dA = scale · Bᵀ · dW. */
static void hide_adapter(struct fixture *f, const struct tensor_info *a)
{
    const struct tensor_info *b = tensor_find_part(&f->table, a->unit, a->role, PART_LORA_B);
    const struct tensor_info *base = tensor_find(&f->table, a->unit, a->role);
    float *A = f->weights[a->unit] + a->offset, *B = f->weights[b->unit] + b->offset;
    float *dA = f->reference[a->unit] + a->offset, *dB = f->reference[b->unit] + b->offset;
    const bool embedding = a->role == ROLE_WTE;
    const int64_t experts = a->ndim == 3 ? a->shape[0] : 1, r = b->shape[b->ndim - 1];
    const int64_t in = a->numel / experts / r, out = b->numel / experts / r;
    assert_true(b->offset % TENSOR_ALIGN == 0 && a->numel % (experts * r) == 0 && !a->frozen && base->frozen);
    for (int64_t k = 0; k < a->numel + b->numel; k++)
        *(k < a->numel ? A + k : B + k - a->numel) = (float)sin((double)(k + a->number)) * 0.05f;
    for (int64_t row = 0; row < experts * out; row++) {
        const int64_t expert = row / out, o = row % out;
        for (int64_t i = 0; i < in; i++) {
            const int64_t at = base->offset + expert * in * out + adapted_element(&f->desc, base, out, in, o, i);
            for (int64_t k = 0; k < r; k++) {
                const int64_t of_a = embedding ? i * r + k : (expert * r + k) * in + i, of_b = row * r + k;
                f->weights[base->unit][at] -= (float)a->lora_scale * A[of_a] * B[of_b];
                dA[of_a] += (float)a->lora_scale * B[of_b] * f->reference[base->unit][at];
                dB[of_b] += (float)a->lora_scale * A[of_a] * f->reference[base->unit][at];
            }
        }
    }
}

static void test_adapters(void **state)
{
    (void)state;
    static const struct variant VARIANTS[] = {
        {.dtype = DTYPE_F32},
        {.dtype = DTYPE_F32, .micro_seqs = 3, .recompute = RECOMPUTE_BLOCK, .logit_chunk = 7},
        {.dtype = DTYPE_F32, .micro_seqs = 6, .recompute = RECOMPUTE_MLP, .filler = 5}};
    for (size_t i = 0; i < 2 * COUNT_OF(GOLDEN); i += sample_distance(3)) {
        const struct golden_name *golden = &GOLDEN[i / 2];
        struct fixture f;
        adapts = i % 2 ? adapts_some : adapts_all;
        fixture_init(&f, golden);
        for (int k = 0; k < f.table.num_tensors; k++)
            if (f.table.tensors[k].part == PART_LORA_A) hide_adapter(&f, &f.table.tensors[k]);
        double want = json_number_value(json_array_get(json_object_get(f.expected, "loss"), 0));
        double own_loss = golden_number(f.expected, "rounding", "fp32", "loss_1");
        double own_worst = golden_number(f.expected, "rounding", "fp32", "grad_1");
        const struct variant *variant = &VARIANTS[(i + i / 2) % COUNT_OF(VARIANTS)];
        fixture_start(&f, variant);
        double together, loss = train_step(&f, variant), worst = worst_gradient(&f, &together);
        if (!(fabs(loss - want) < 1e-6 + 2 * own_loss) || !(worst < 2e-6 + 4 * own_worst))
            fail_msg("%s, case %zu: loss off by %.1e, a gradient by %.1e", golden->name, i % 2, loss - want, worst);
        fixture_stop(&f);
        fixture_release(&f);
    }
    adapts = NULL;
}

/* Within twice the error of transformers in bf16. */
static void test_golden_bf16(void **state)
{
    (void)state;
    static const struct variant VARIANTS[] = {
        {.dtype = DTYPE_BF16},
        {.dtype = DTYPE_BF16,
         .micro_seqs = 3,
         .logit_chunk = 7,
         .logits_dtype = DTYPE_BF16,
         .recompute = RECOMPUTE_BLOCK},
    };
    for (size_t i = 0; i < COUNT_OF(GOLDEN); i += sample_distance(3)) {
        struct fixture f;
        fixture_init(&f, &GOLDEN[i]);
        double want = json_number_value(json_array_get(json_object_get(f.expected, "loss"), 0));
        double own_loss = golden_number(f.expected, "rounding", "bf16", "loss");
        double own_worst = golden_number(f.expected, "rounding", "bf16", "grad_1");
        double own_together = golden_number(f.expected, "rounding", "bf16", "grad_1_all");
        for (size_t k = 0; k < COUNT_OF(VARIANTS); k++) {
            fixture_start(&f, &VARIANTS[k]);
            double together, loss = train_step(&f, &VARIANTS[k]), worst = worst_gradient(&f, &together);
            if (!(fabs(loss - want) < 2 * own_loss + 1e-3) || !(worst < 2 * own_worst) ||
                !(together < 2 * own_together))
                fail_msg("%s, variant %zu: loss off by %.1e, a gradient by %.1e (%.1e), all by %.1e (%.1e)",
                         GOLDEN[i].name, k, loss - want, worst, own_worst, together, own_together);
            fixture_stop(&f);
        }
        fixture_release(&f);
    }
}

static float *copy_of_grads(const struct fixture *f)
{
    size_t total = 0, at = 0;
    for (int u = 0; u < f->table.num_units; u++) total += (size_t)f->table.units[u].numel;
    float *copy = malloc(total * sizeof(float));
    for (int u = 0; u < f->table.num_units; u++) {
        size_t n = (size_t)f->table.units[u].numel;
        memcpy(copy + at, f->whole.grads[u], n * sizeof(float));
        at += n;
    }
    return copy;
}

/* Every gradient has the bits in `copy`, including the gaps, whose NaN must not change. */
static bool same_grads(const struct fixture *f, const float *copy)
{
    size_t at = 0;
    for (int u = 0; u < f->table.num_units; u++) {
        size_t n = (size_t)f->table.units[u].numel;
        if (memcmp(copy + at, f->whole.grads[u], n * sizeof(float)) != 0) return false;
        at += n;
    }
    return true;
}

/* Each policy takes less memory than the one before, and none changes a bit of loss and gradients, also if gradients of
 * a second micro-batch are added and an evaluation comes between, whose activations lie in the same memory. */
static void test_recompute_changes_no_bit(void **state)
{
    (void)state;
    static struct batch_arrays arrays;
    for (size_t i = 0; i < COUNT_OF(GOLDEN); i += sample_distance(3)) {
        for (int dtype = DTYPE_F32; dtype <= DTYPE_F16; dtype++) {
            struct error err;
            struct fixture f;
            fixture_init(&f, &GOLDEN[i]);
            double loss = 0;
            float *copy = NULL;
            size_t bytes = SIZE_MAX;
            for (int policy = RECOMPUTE_NONE; policy < RECOMPUTE_COUNT; policy++) {
                struct variant v = {.dtype = (enum dtype)dtype, .micro_seqs = 6, .recompute = (enum recompute)policy};
                fixture_start(&f, &v);
                double first = train_step(&f, &v);
                struct batch batch = make_batch(&f, &f.tokens, 0, 3, 0, &arrays);
                f.whole.num_calls = 0;
                assert_int_equal(
                    transformer_evaluate(f.transformer, &batch, &f.verbs, f.stream, f.loss_sum, NULL, NULL, &err),
                    STATUS_OK);
                f.whole.num_calls = 0;
                f.whole.accumulate = true;
                assert_int_equal(train_one(f.transformer, &batch, NULL, &f.verbs, f.stream, f.loss_sum, &err),
                                 STATUS_OK);
                stream_sync(f.stream);
                if (policy == RECOMPUTE_NONE) {
                    loss = first + *f.loss_sum;
                    copy = copy_of_grads(&f);
                }
                /* in parallel without a gate, policy block has nothing to compute again that attention has not, and
                 * experts keep nothing for mlp to compute again */
                const bool same =
                    (f.desc.residual != RESIDUAL_IN_TURN && !mlp_is_gated(f.desc.mlp) && policy == RECOMPUTE_BLOCK) ||
                    (f.desc.experts.count && !f.desc.experts.shared_size && policy == RECOMPUTE_MLP);
                const bool less = f.memory_bytes < bytes || (f.memory_bytes == bytes && same);
                if (first + *f.loss_sum != loss || !same_grads(&f, copy) || !less)
                    fail_msg("%s, %s, policy %s: %zu bytes after %zu", GOLDEN[i].name, dtype_name((enum dtype)dtype),
                             recompute_name((enum recompute)policy), f.memory_bytes, bytes);
                bytes = f.memory_bytes;
                fixture_stop(&f);
            }
            free(copy);
            fixture_release(&f);
        }
    }
}

/* Between keep and fetch nothing reads a block's input, whatever the policy. A pass without tokens and an evaluation
 * call neither. */
static void test_inputs_may_be_away(void **state)
{
    (void)state;
    static struct batch_arrays arrays;
    for (size_t i = 0; i < COUNT_OF(GOLDEN); i += sample_distance(3)) {
        for (int policy = RECOMPUTE_NONE; policy < RECOMPUTE_COUNT; policy++) {
            struct error err;
            struct fixture f;
            struct variant here = {.dtype = DTYPE_F32, .micro_seqs = 6, .recompute = (enum recompute)policy}, v = here;
            v.away = true;
            fixture_init(&f, &GOLDEN[i]);
            fixture_start(&f, &here);
            double loss = train_step(&f, &here);
            float *copy = copy_of_grads(&f);
            fixture_stop(&f);
            fixture_start(&f, &v);
            assert_true(train_step(&f, &v) == loss);
            assert_true(same_grads(&f, copy));
            int calls = f.kept.calls;
            assert_int_equal(calls, 2 * f.desc.num_layers * (BATCH / v.micro_seqs));
            struct batch batch = make_batch(&f, &f.tokens, 0, 3, 0, &arrays), empty = {0};
            f.whole.num_calls = 0;
            assert_int_equal(
                transformer_evaluate(f.transformer, &batch, &f.verbs, f.stream, f.loss_sum, NULL, NULL, &err),
                STATUS_OK);
            f.whole.num_calls = 0;
            assert_int_equal(train_one(f.transformer, &empty, NULL, &f.verbs, f.stream, f.loss_sum, &err), STATUS_OK);
            assert_int_equal(f.kept.calls, calls);
            fixture_stop(&f);
            free(copy);
            fixture_release(&f);
        }
    }
}

/* Gradients are overwritten or added to, and the gaps between tensors are left alone. */
static void test_gaps_are_not_written(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(GOLDEN); i += sample_distance(3)) {
        struct fixture f;
        struct variant v = {.dtype = DTYPE_F32};
        fixture_init(&f, &GOLDEN[i]);
        fixture_start(&f, &v);
        train_step(&f, &v);
        for (int u = 0; u < f.table.num_units; u++) {
            for (int64_t k = 0; k < f.table.units[u].numel; k++) {
                const struct tensor_info *tensor = tensor_at(&f.table, u, k);
                assert_int_equal(isnan(f.whole.grads[u][k]) == 0, tensor && !role_is_constant(tensor->role));
            }
        }
        fixture_stop(&f);
        fixture_release(&f);
    }
}

/* Evaluation: after training, by the same transformer and by one that was laid out for evaluation only. */
static void test_evaluation(void **state)
{
    (void)state;
    enum { EVAL_SAMPLES = 5 };
    static struct batch_arrays arrays;
    for (size_t i = 0; i < COUNT_OF(GOLDEN); i += sample_distance(3)) {
        struct fixture f;
        struct error err;
        fixture_init(&f, &GOLDEN[i]);
        golden_tensors(GOLDEN[i].name, "final.safetensors", &f.table, f.weights);
        struct golden_tokens validation = golden_tokens_read(GOLDEN[i].name, "validation");
        double want = golden_number(f.expected, "eval_loss", "8", NULL), losses[3];
        size_t bytes[3];
        for (int k = 0; k < 3; k++) {
            struct variant v = {
                .dtype = DTYPE_F32, .evaluation = k == 2, .recompute = k == 1 ? RECOMPUTE_BLOCK : RECOMPUTE_NONE};
            fixture_start(&f, &v);
            if (!v.evaluation) train_step(&f, &v);
            struct batch batch = make_batch(&f, &validation, 0, EVAL_SAMPLES, 3, &arrays);
            *f.loss_sum = 0;
            assert_int_equal(
                transformer_evaluate(f.transformer, &batch, &f.verbs, f.stream, f.loss_sum, NULL, NULL, &err),
                STATUS_OK);
            stream_sync(f.stream);
            losses[k] = *f.loss_sum / (double)batch.num_targets;
            bytes[k] = f.memory_bytes;
            fixture_stop(&f);
        }
        if (!(fabs(losses[0] - want) < 2e-6)) fail_msg("%s: evaluation off by %.1e", GOLDEN[i].name, losses[0] - want);
        assert_true(losses[0] == losses[1] && losses[0] == losses[2]);
        assert_true(bytes[2] < bytes[1] && bytes[1] < bytes[0]);
        golden_tokens_release(&validation);
        fixture_release(&f);
    }
}

static void assert_calls(const struct whole *whole, const char *const *calls, int count)
{
    assert_int_equal(whole->num_calls, count);
    for (int i = 0; i < count; i++) assert_string_equal(whole->calls[i], calls[i]);
}

/* Two blocks, in the order that parameter_verbs.h defines. */
static const char *const TIED_CALLS[] = {
    "acquire f0", "release f0", "acquire f1", "release f1", "acquire f2", "release f2", "acquire b3", "acquire b0",
    "grads 3",    "grads 0",    "release b0", "release b3", "ready 3",    "acquire b2", "grads 2",    "release b2",
    "ready 2",    "acquire b1", "grads 1",    "release b1", "ready 1",    "grads 0",    "ready 0",
};
static const char *const UNTIED_CALLS[] = {
    "acquire f0", "release f0", "acquire f1", "release f1", "acquire f2", "release f2", "acquire b3",
    "grads 3",    "release b3", "ready 3",    "acquire b2", "grads 2",    "release b2", "ready 2",
    "acquire b1", "grads 1",    "release b1", "ready 1",    "grads 0",    "ready 0",
};
static const char *const TIED_EVALUATION[] = {
    "acquire e0", "release e0", "acquire e1", "release e1", "acquire e2",
    "release e2", "acquire e3", "acquire e0", "release e0", "release e3",
};
static const char *const UNTIED_EVALUATION[] = {
    "acquire e0", "release e0", "acquire e1", "release e1", "acquire e2", "release e2", "acquire e3", "release e3",
};

/* The order of the verbs. It is the same for a batch without tokens, whose gradients are zero or stay as they were. */
static void test_order_of_verbs(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(GOLDEN); i += sample_distance(3)) {
        for (int policy = RECOMPUTE_NONE; policy < RECOMPUTE_COUNT; policy++) {
            struct fixture f;
            struct error err;
            struct variant v = {.dtype = DTYPE_F32, .recompute = (enum recompute)policy};
            struct batch empty = {0};
            fixture_init(&f, &GOLDEN[i]);
            if (f.desc.num_layers != 2) { /* the lists have two blocks */
                fixture_release(&f);
                continue;
            }
            const char *const *calls = f.desc.tied ? TIED_CALLS : UNTIED_CALLS;
            const char *const *evaluation = f.desc.tied ? TIED_EVALUATION : UNTIED_EVALUATION;
            int count = (int)(f.desc.tied ? COUNT_OF(TIED_CALLS) : COUNT_OF(UNTIED_CALLS));
            int count_evaluation = (int)(f.desc.tied ? COUNT_OF(TIED_EVALUATION) : COUNT_OF(UNTIED_EVALUATION));
            fixture_start(&f, &v);
            train_step(&f, &v);
            assert_calls(&f.whole, calls, count);
            float *copy = copy_of_grads(&f);

            f.whole.num_calls = 0;
            f.whole.accumulate = true;
            *f.loss_sum = 1;
            assert_int_equal(train_one(f.transformer, &empty, NULL, &f.verbs, f.stream, f.loss_sum, &err), STATUS_OK);
            assert_calls(&f.whole, calls, count);
            assert_true(same_grads(&f, copy));

            f.whole.num_calls = 0;
            f.whole.accumulate = false;
            assert_int_equal(train_one(f.transformer, &empty, NULL, &f.verbs, f.stream, f.loss_sum, &err), STATUS_OK);
            assert_calls(&f.whole, calls, count);
            for (int u = 0; u < f.table.num_units; u++) {
                for (int64_t k = 0; k < f.table.units[u].numel; k++) assert_true(f.whole.grads[u][k] == 0);
            }

            f.whole.num_calls = 0;
            assert_int_equal(
                transformer_evaluate(f.transformer, &empty, &f.verbs, f.stream, f.loss_sum, NULL, NULL, &err),
                STATUS_OK);
            assert_calls(&f.whole, evaluation, count_evaluation);
            assert_true(*f.loss_sum == 1);
            free(copy);
            fixture_stop(&f);
            fixture_release(&f);
        }
    }
}

/* Whichever verb fails, its status is returned and no verb is called after it. */
static void test_failing_verbs(void **state)
{
    (void)state;
    static struct batch_arrays arrays;
    for (size_t i = 0; i < COUNT_OF(GOLDEN); i += 3) { /* gpt2 and llama, tied and untied, and others */
        struct fixture f;
        struct variant v = {.dtype = DTYPE_F32, .micro_seqs = 1};
        fixture_init(&f, &GOLDEN[i]);
        if (f.desc.num_layers != 2) { /* whose calls are counted */
            fixture_release(&f);
            continue;
        }
        fixture_start(&f, &v);
        struct batch batch = make_batch(&f, &f.tokens, 0, 1, 0, &arrays);
        for (int evaluation = 0; evaluation < 2; evaluation++) {
            int failed = 0;
            for (int n = 1;; n++) {
                struct error err = {0};
                f.whole.num_calls = 0;
                f.whole.fail_at = n;
                enum status status =
                    evaluation
                        ? transformer_evaluate(f.transformer, &batch, &f.verbs, f.stream, f.loss_sum, NULL, NULL, &err)
                        : train_one(f.transformer, &batch, NULL, &f.verbs, f.stream, f.loss_sum, &err);
                if (f.whole.num_calls < n) break;
                if (strncmp(f.whole.calls[n - 1], "release", 7) == 0) {
                    assert_int_equal(status, STATUS_OK);
                    continue;
                }
                assert_int_equal(status, STATUS_PEER);
                assert_int_equal(f.whole.num_calls, n);
                assert_int_equal(err.code, STATUS_PEER);
                failed++;
            }
            assert_int_equal(failed, evaluation ? (f.desc.tied ? 5 : 4) : (f.desc.tied ? 16 : 14));
        }
        fixture_stop(&f);
        fixture_release(&f);
    }
}

/* The profile by unit: each has a part in both directions, and together the parts are what the ops did. */
static void expect_modules(const struct fixture *f, struct ops_profiler *profiler, const struct op_profile *ops,
                           int num_ops)
{
    const struct module_profile *parts;
    const int units = (int)f->desc.num_layers + 2, num_parts = ops_profiler_modules(profiler, &parts);
    double flops = 0, seconds = 0;
    int64_t calls = 0;
    bool seen[2][64] = {{false}};
    assert_true(units <= 64);
    for (int i = 0; i < num_ops; i++) {
        calls += ops[i].calls;
        flops += ops[i].flops;
        seconds += ops[i].seconds;
    }
    for (int i = 0; i < num_parts; i++) {
        const struct module_profile *part = &parts[i];
        const struct span_place place = part->place;
        assert_true(place.phase == PHASE_FORWARD || place.phase == PHASE_BACKWARD);
        assert_true(place.unit >= 0 && place.unit < units);
        seen[place.phase == PHASE_BACKWARD][place.unit] = true;
        calls -= part->work.calls;
        flops -= part->work.flops;
        seconds -= part->work.seconds;
        for (int j = 0; j < i; j++) /* blocks are alike */
            if (parts[j].place.phase == place.phase && parts[j].place.unit > 0 && place.unit > parts[j].place.unit &&
                place.unit < units - 1)
                assert_true(parts[j].work.flops == part->work.flops && parts[j].work.calls == part->work.calls);
    }
    for (int u = 0; u < units; u++) assert_true(seen[0][u] && seen[1][u]);
    assert_true(calls == 0 && fabs(flops) < 1 && fabs(seconds) < 1e-9);
    assert_int_equal(ops_profiler_modules(profiler, &parts), 0); /* reading resets */
}

/* The phases are timed, and the profile counts the ops. */
static void test_times(void **state)
{
    (void)state;
    struct fixture f;
    struct variant v = {.dtype = DTYPE_F32, .micro_seqs = 4};
    double seconds[PHASE_COUNT];
    struct phase_times *times;
    struct error err;
    fixture_init(&f, &GOLDEN[0]);
    fixture_start(&f, &v);
    assert_int_equal(phase_times_new(f.device, &times, &err), STATUS_OK);
    train_step(&f, &v);
    phase_times_read(times, seconds);
    assert_true(seconds[PHASE_FORWARD] > 0 && seconds[PHASE_BACKWARD] > 0 && seconds[PHASE_FORWARD] < 60);
    assert_true(seconds[PHASE_HEAD] == 0); /* its passes count as forward and backward */
    phase_times_read(times, seconds);
    assert_true(seconds[PHASE_FORWARD] == 0 && seconds[PHASE_BACKWARD] == 0);
    phase_times_free(times);

    struct op_profile profile[OPS_COUNT];
    struct ops_profiler *profiler;
    assert_int_equal(ops_profiler_new(f.device, &profiler, &err), STATUS_OK);
    train_step(&f, &v);
    int entries = ops_profiler_read(profiler, profile, OPS_COUNT), seen = 0;
    expect_modules(&f, profiler, profile, entries);
    ops_profiler_free(profiler);
    for (int i = 0; i < entries; i++) seen += profile[i].calls > 0;
    assert_int_equal(seen,
                     11); /* GPT-2's: embedding, norm, attention both ways, linear three ways, loss, a bias gradient */
    fixture_stop(&f);
    fixture_release(&f);
}

/* With the built-in product: a GEMM library may allocate memory. */
static void test_no_allocation_in_a_step(void **state)
{
    (void)state;
    if (!COUNTS_ALLOCATIONS) skip();
    setenv("ZTRAIN_CPU_GEMM", "builtin", 1);
    for (size_t i = 0; i < COUNT_OF(GOLDEN); i += sample_distance(3)) {
        for (int dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
            static struct batch_arrays arrays;
            struct error err;
            struct fixture f;
            struct variant v = {.dtype = (enum dtype)dtype};
            fixture_init(&f, &GOLDEN[i]);
            fixture_start(&f, &v);
            train_step(&f, &v);
            f.whole.num_calls = 0;
            struct batch batch = make_batch(&f, &f.tokens, 0, BATCH, 0, &arrays);
            long before = allocations;
            assert_true(before > 0);
            assert_int_equal(train_one(f.transformer, &batch, NULL, &f.verbs, f.stream, f.loss_sum, &err), STATUS_OK);
            f.whole.num_calls = 0;
            assert_int_equal(
                transformer_evaluate(f.transformer, &batch, &f.verbs, f.stream, f.loss_sum, NULL, NULL, &err),
                STATUS_OK);
            stream_sync(f.stream);
            assert_int_equal(allocations, before);
            fixture_stop(&f);
            fixture_release(&f);
        }
    }
    unsetenv("ZTRAIN_CPU_GEMM");
}

/* The bytes of a dry layout for GPT-2 with `layers` layers. */
static size_t gpt2_plan(int layers, const struct variant *v, int64_t tokens)
{
    struct error err;
    struct model_desc desc;
    struct tensor_table table;
    json_t *json = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i}", "model_type", "gpt2", "vocab_size", 50257, "n_positions",
                             1024, "n_embd", 768, "n_head", 12, "n_layer", layers);
    assert_int_equal(model_desc_from_json(json, "test", &desc, &err), STATUS_OK);
    tensor_table_build(&desc, &table);
    struct device *device;
    assert_int_equal(device_open(DEVICE_CPU, 0, 1, &device, &err), STATUS_OK);
    struct transformer_config config = {
        .desc = &desc,
        .table = &table,
        .settings = {.deterministic = true, .recompute = v->recompute, .logits_dtype = DTYPE_F32},
        .batch = {.max_tokens = tokens, .max_seqs = 4, .max_seq = 1024},
        .dtype = v->dtype,
        .training = !v->evaluation,
        .logit_chunk = v->logit_chunk};
    struct transformer *transformer;
    assert_int_equal(transformer_new(&config, device, &transformer, &err), STATUS_OK);
    struct arena arena;
    arena_init_dry(&arena);
    transformer_layout(transformer, &arena);
    transformer_free(transformer);
    device_close(device);
    tensor_table_release(&table);
    model_desc_release(&desc);
    json_decref(json);
    return arena.used;
}

/* A block keeps what transformer_layout.c lists, and logits are at most 512 rows however many tokens there are. */
static void test_plan(void **state)
{
    (void)state;
    static const struct {
        struct variant variant;
        size_t block; /* bytes a token */
    } CASES[] = {
        {{.dtype = DTYPE_F32}, 49216},
        {{.dtype = DTYPE_BF16}, 24640},
        {{.dtype = DTYPE_BF16, .recompute = RECOMPUTE_NORMS}, 14 * 768 * 2 + 12 * 4},
        {{.dtype = DTYPE_BF16, .recompute = RECOMPUTE_MLP}, 6 * 768 * 2 + 12 * 4},
        {{.dtype = DTYPE_BF16, .recompute = RECOMPUTE_ATTENTION}, 2 * 768 * 2},
        {{.dtype = DTYPE_F32, .recompute = RECOMPUTE_BLOCK}, 768 * 4},
        {{.dtype = DTYPE_BF16, .recompute = RECOMPUTE_BLOCK}, 768 * 2},
        {{.dtype = DTYPE_F32, .evaluation = true}, 0},
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct variant v = CASES[i].variant;
        size_t chosen = gpt2_plan(12, &v, 4096);
        assert_int_equal(chosen - gpt2_plan(11, &v, 4096), 4096 * CASES[i].block);
        v.logit_chunk = 512;
        assert_int_equal(gpt2_plan(12, &v, 4096), chosen);
    }
}

/* GPT-2 with one head of 576. */
static void test_head_too_wide_for_a_gpu(void **state)
{
    (void)state;
    struct error err;
    struct model_desc desc;
    struct tensor_table table;
    json_t *json = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i}", "model_type", "gpt2", "vocab_size", 64, "n_positions", 8,
                             "n_embd", 576, "n_head", 1, "n_layer", 1);
    assert_int_equal(model_desc_from_json(json, "test", &desc, &err), STATUS_OK);
    tensor_table_build(&desc, &table);
    struct device gpu = {.kind = DEVICE_CUDA};
    struct transformer_config config = {
        .desc = &desc,
        .table = &table,
        .settings = {.deterministic = true, .logits_dtype = DTYPE_F32},
        .batch = {.max_tokens = 8, .max_seqs = 1, .max_seq = 8},
        .dtype = DTYPE_F32,
    };
    struct transformer *transformer;
    assert_int_equal(transformer_new(&config, &gpu, &transformer, &err), STATUS_DEVICE);
    assert_non_null(strstr(err.text, "head_dim is 576"));
    assert_null(transformer);
    tensor_table_release(&table);
    model_desc_release(&desc);
    json_decref(json);
}

static struct layer_desc *layers_alike(const struct model_desc *desc, struct layer_desc *layers)
{
    for (int64_t i = 0; i < desc->num_layers; i++)
        layers[i] = (struct layer_desc){.head_dim = desc->head_dim,
                                        .num_kv_heads = desc->num_kv_heads,
                                        .intermediate_size = desc->intermediate_size,
                                        .kv_source = i};
    return layers;
}

/* Computed by hand: GPT-2 124M has 12 · 12 · 768² + 50257 · 768 weights in matrices; Llama with GQA. */
static void test_flops(void **state)
{
    (void)state;
    struct model_desc gpt2 = {.family = FAMILY_GPT2,
                              .vocab_size = 50257,
                              .hidden_size = 768,
                              .intermediate_size = 3072,
                              .num_layers = 12,
                              .num_heads = 12,
                              .num_kv_heads = 12,
                              .head_dim = 64,
                              .mlp = MLP_GELU,
                              .tied = true};
    struct layer_desc layers[12];
    gpt2.layers = layers_alike(&gpt2, layers);
    assert_true(transformer_flops_per_token(&gpt2, NULL, 1024) == 6.0 * 123532032 + 6.0 * 12 * 768 * 1024);
    struct model_desc llama = {.family = FAMILY_LLAMA,
                               .vocab_size = 100,
                               .hidden_size = 32,
                               .intermediate_size = 80,
                               .num_layers = 3,
                               .num_heads = 4,
                               .num_kv_heads = 2,
                               .head_dim = 10,
                               .mlp = MLP_SWIGLU};
    llama.layers = layers_alike(&llama, layers);
    assert_true(transformer_flops_per_token(&llama, NULL, 50) ==
                6.0 * (3 * (32 * 80 + 40 * 32 + 3 * 32 * 80) + 3200) + 6.0 * 3 * 40 * 50);
    llama.experts = (struct experts_desc){.count = 8, .per_token = 2, .inner_size = 16};
    layers[1].sparse = layers[2].sparse = true; /* layer 2 has a shared expert */
    layers[1].intermediate_size = 0;
    layers[2].intermediate_size = 24;
    const double experts = 8 * 32 + 2 * 3 * 32 * 16; /* the router, and 2 of 8 */
    assert_true(transformer_flops_per_token(&llama, NULL, 50) ==
                6.0 * (3 * (32 * 80 + 40 * 32) + 3 * 32 * 80 + 2 * experts + 3 * 32 * 24 + 3200) + 6.0 * 3 * 40 * 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_fp32),
        cmocka_unit_test(test_frozen_tensors),
        cmocka_unit_test(test_adapters),
        cmocka_unit_test(test_golden_bf16),
        cmocka_unit_test(test_recompute_changes_no_bit),
        cmocka_unit_test(test_inputs_may_be_away),
        cmocka_unit_test(test_gaps_are_not_written),
        cmocka_unit_test(test_evaluation),
        cmocka_unit_test(test_order_of_verbs),
        cmocka_unit_test(test_failing_verbs),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_no_allocation_in_a_step),
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_head_too_wide_for_a_gpu),
        cmocka_unit_test(test_flops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

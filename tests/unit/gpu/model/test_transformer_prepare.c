/* SPDX-License-Identifier: Apache-2.0 */
/* test_transformer_prepare.c: every matrix product that training runs with a full micro-batch has been announced to
 * the device, with all that a GPU's choice of a kernel depends on.
 *
 * A product is a line of text, in which pointers count as NULL or as aligned to so many bytes. */
#include "core/model/adapter.h"
#include "gpu/device_backend.h"
#include "gpu/model/transformer.h"
#include "gpu/open/device_open.h"
#include "tests/unit/fixtures/train_one.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_PRODUCTS = 512, MOST_UNITS = 16, LENGTH = 8, SEQUENCES = 5, TOKENS = LENGTH * SEQUENCES };

struct product {
    char text[256];
};

static struct product announced[MOST_PRODUCTS];
static int num_announced, num_run, num_missing;
static const struct op_table *real_ops;

/* ---- products as text ---------------------------------------------------- */

/* In bytes; 16 stands for more, as in the keys of gpu/cuda/gemm, and for a buffer that has no address yet. */
static int aligned(const void *pointer)
{
    const uintptr_t bits = (uintptr_t)pointer | 16;
    return (int)(bits & -bits);
}

/* The same, or 0: the product has none. */
static int optional(const void *pointer)
{
    return pointer ? aligned(pointer) : 0;
}

static struct product text_of_fwd(const struct linear_fwd_args *a)
{
    struct product p;
    snprintf(p.text, sizeof p.text,
             "fwd %d to %d, in_out %d, %lld x %lld x %lld, ld %lld %lld, y %d x %d w %d bias %d, gelu %d %d aux %d, "
             "gated %d %d, adds %d",
             a->dtype, a->y_dtype, a->weights_in_out, (long long)a->M, (long long)a->N, (long long)a->K,
             (long long)(a->ld_y ? a->ld_y : a->N), (long long)(a->ld_x ? a->ld_x : a->K), aligned(a->y), aligned(a->x),
             aligned(a->w), optional(a->bias), a->gelu, a->gelu_erf, optional(a->aux), optional(a->gated),
             a->gated_gelu, a->accumulate);
    return p;
}

/* Whether dbias is added to does not count: no product leaves these sums. */
static struct product text_of_bwd_input(const struct linear_bwd_input_args *a)
{
    struct product p;
    snprintf(p.text, sizeof p.text,
             "bwd_input %d, in_out %d, %lld x %lld x %lld, ld %lld %lld, dx %d dy %d w %d, gelu aux %d %d, "
             "gate_up %d %d, dbias %d, adds %d",
             a->dtype, a->weights_in_out, (long long)a->M, (long long)a->N, (long long)a->K,
             (long long)(a->ld_dx ? a->ld_dx : a->K), (long long)(a->ld_dy ? a->ld_dy : a->N), aligned(a->dx),
             aligned(a->dy), aligned(a->w), optional(a->gelu_aux), a->gelu_erf, optional(a->gate_up), a->gated_gelu,
             a->dbias != NULL, a->accumulate);
    return p;
}

static struct product text_of_bwd_weight(const struct linear_bwd_weight_args *a)
{
    struct product p;
    snprintf(p.text, sizeof p.text,
             "bwd_weight %d to %d, in_out %d, %lld x %lld x %lld, ld %lld %lld, dw %d dy %d x %d, dbias %d adds %d, "
             "null %lld %lld, adds %d",
             a->dtype, a->dw_dtype, a->weights_in_out, (long long)a->M, (long long)a->N, (long long)a->K,
             (long long)(a->ld_dy ? a->ld_dy : a->N), (long long)(a->ld_x ? a->ld_x : a->K), aligned(a->dw),
             aligned(a->dy), aligned(a->x), optional(a->dbias), a->dbias && a->accumulate_dbias,
             (long long)a->null_first, (long long)a->null_count, a->accumulate);
    return p;
}

/* ---- a device that listens ----------------------------------------------- */

static void hear(struct product product)
{
    assert_true(num_announced < MOST_PRODUCTS);
    announced[num_announced++] = product;
}

static enum status hear_announced(struct device *device, const struct linear_products *p, struct error *err)
{
    (void)device, (void)err;
    for (int i = 0; i < p->num_fwd; i++) hear(text_of_fwd(&p->fwd[i]));
    for (int i = 0; i < p->num_bwd_input; i++) hear(text_of_bwd_input(&p->bwd_input[i]));
    for (int i = 0; i < p->num_bwd_weight; i++) hear(text_of_bwd_weight(&p->bwd_weight[i]));
    return STATUS_OK;
}

static void expect_announced(struct product product)
{
    bool found = false;
    for (int i = 0; i < num_announced && !found; i++) found = strcmp(announced[i].text, product.text) == 0;
    num_run++;
    num_missing += !found;
    if (!found) print_error("not announced: %s\n", product.text);
}

static void heard_linear_fwd(struct stream *stream, const struct linear_fwd_args *args)
{
    expect_announced(text_of_fwd(args));
    real_ops->linear_fwd(stream, args);
}

static void heard_linear_bwd_input(struct stream *stream, const struct linear_bwd_input_args *args)
{
    expect_announced(text_of_bwd_input(args));
    real_ops->linear_bwd_input(stream, args);
}

static void heard_linear_bwd_weight(struct stream *stream, const struct linear_bwd_weight_args *args)
{
    expect_announced(text_of_bwd_weight(args));
    real_ops->linear_bwd_weight(stream, args);
}

/* ---- models -------------------------------------------------------------- */

#define SIZES "'hidden_size': 32, 'intermediate_size': 48, 'num_attention_heads': 4, 'num_hidden_layers': 3, "
#define LLAMA                                                                                         \
    SIZES "'model_type': 'llama', 'vocab_size': 40, 'num_key_value_heads': 2, 'rms_norm_eps': 1e-6, " \
          "'max_position_embeddings': 32, 'rope_theta': 1e4, "
#define UNTIED LLAMA "'tie_word_embeddings': false"
#define TIED LLAMA "'tie_word_embeddings': true"
#define GPT2                                                                                               \
    "'model_type': 'gpt2', 'vocab_size': 40, 'n_positions': 32, 'n_embd': 32, 'n_layer': 3, 'n_head': 4, " \
    "'activation_function': 'gelu_new'"
#define CLASSIFIER                                                                                               \
    SIZES "'model_type': 'bert', 'architectures': ['BertForSequenceClassification'], 'vocab_size': 40, "         \
          "'max_position_embeddings': 32, 'type_vocab_size': 2, 'layer_norm_eps': 1e-12, 'hidden_act': 'gelu', " \
          "'id2label': {'0': 'a', '1': 'b', '2': 'c'}"

typedef struct adapter_choice chooser(const struct tensor_info *tensor);

static const struct adapter_choice NONE = {ADAPTER_NONE, 0, 0};

static bool is_of_block(const struct tensor_info *tensor)
{
    return tensor->ndim == 2 && tensor->role >= ROLE_QKV_W && tensor->role <= ROLE_DOWN_W;
}

static struct adapter_choice all_linear(const struct tensor_info *tensor)
{
    return is_of_block(tensor) ? (struct adapter_choice){ADAPTER_LORA, 8, 2} : NONE;
}

/* Ranks and scales that differ in a fused group and between blocks. */
static struct adapter_choice rank_pattern(const struct tensor_info *tensor)
{
    const int role = (int)tensor->role;
    return is_of_block(tensor) ? (struct adapter_choice){ADAPTER_LORA, 2 + role % 3 + tensor->unit, 1 + role % 2}
                               : NONE;
}

static struct adapter_choice up_only(const struct tensor_info *tensor)
{
    return tensor->role == ROLE_UP_W ? (struct adapter_choice){ADAPTER_LORA, 4, 0.5} : NONE;
}

static struct adapter_choice last_block(const struct tensor_info *tensor)
{
    return tensor->unit == 3 ? all_linear(tensor) : NONE;
}

/* Some blocks train a matrix of the base as well. */
static struct adapter_choice saves_some(const struct tensor_info *tensor)
{
    const bool saved = tensor->unit == 2 && tensor->role == ROLE_DOWN_W;
    return saved ? (struct adapter_choice){ADAPTER_SAVE, 0, 0} : up_only(tensor);
}

static struct adapter_choice both_ends(const struct tensor_info *tensor)
{
    const bool end = tensor->role == ROLE_WTE || tensor->role == ROLE_LM_HEAD || tensor->role == ROLE_SCORE_W ||
                     tensor->role == ROLE_POOLER_W;
    return end ? (struct adapter_choice){ADAPTER_LORA, 6, 2} : NONE;
}

static const struct example {
    const char *config;
    chooser *chooses; /* NULL: all tensors are trained */
    double lora_dropout;
    int64_t logit_chunk;
    bool matrix_sums;
    enum recompute recompute;
    enum dtype dtype, logits_dtype;
} examples[] = {
    {UNTIED, NULL, .dtype = DTYPE_BF16, .logits_dtype = DTYPE_BF16, .logit_chunk = 16},
    {UNTIED, NULL, .dtype = DTYPE_BF16, .logits_dtype = DTYPE_F32, .matrix_sums = true},
    {TIED, NULL, .dtype = DTYPE_F32, .logits_dtype = DTYPE_F32, .logit_chunk = 16},
    {GPT2, NULL, .dtype = DTYPE_BF16, .logits_dtype = DTYPE_BF16, .logit_chunk = 16, .matrix_sums = true},
    {CLASSIFIER, NULL, .dtype = DTYPE_BF16, .logits_dtype = DTYPE_BF16, .logit_chunk = 16},
    {UNTIED, all_linear, .dtype = DTYPE_BF16, .logits_dtype = DTYPE_BF16, .logit_chunk = 16},
    {UNTIED, all_linear, 0.1, .dtype = DTYPE_BF16, .logits_dtype = DTYPE_F32, .recompute = RECOMPUTE_MLP},
    {TIED, all_linear, .dtype = DTYPE_BF16, .logits_dtype = DTYPE_BF16, .matrix_sums = true},
    {UNTIED, rank_pattern, .dtype = DTYPE_BF16, .logits_dtype = DTYPE_BF16, .recompute = RECOMPUTE_BLOCK},
    {UNTIED, rank_pattern, 0.1, .dtype = DTYPE_BF16, .logits_dtype = DTYPE_BF16, .matrix_sums = true},
    {UNTIED, last_block, .dtype = DTYPE_BF16, .logits_dtype = DTYPE_BF16},
    {GPT2, last_block, .dtype = DTYPE_BF16, .logits_dtype = DTYPE_BF16},
    {UNTIED, saves_some, .dtype = DTYPE_BF16, .logits_dtype = DTYPE_BF16},
    {UNTIED, both_ends, .dtype = DTYPE_BF16, .logits_dtype = DTYPE_F32, .logit_chunk = 16},
    {TIED, both_ends, .dtype = DTYPE_BF16, .logits_dtype = DTYPE_BF16, .logit_chunk = 16},
    {GPT2, both_ends, 0.1, .dtype = DTYPE_F32, .logits_dtype = DTYPE_F32, .logit_chunk = 16},
    {CLASSIFIER, both_ends, .dtype = DTYPE_BF16, .logits_dtype = DTYPE_F32, .logit_chunk = 16},
    {GPT2, up_only, .dtype = DTYPE_BF16, .logits_dtype = DTYPE_BF16, .recompute = RECOMPUTE_MLP},
    {GPT2, all_linear, 0.1, .dtype = DTYPE_BF16, .logits_dtype = DTYPE_BF16},
    {CLASSIFIER, up_only, .dtype = DTYPE_BF16, .logits_dtype = DTYPE_BF16, .matrix_sums = true},
    {CLASSIFIER, all_linear, .dtype = DTYPE_F32, .logits_dtype = DTYPE_F32},
};

static void describe_model(const struct example *example, struct model_desc *desc, struct tensor_table *table)
{
    struct error err;
    char config[1024];
    assert_true((size_t)snprintf(config, sizeof config, "{%s}", example->config) < sizeof config);
    for (char *at = config; *at; at++) *at = *at == '\'' ? '"' : *at;
    json_t *json = json_loads(config, 0, NULL);
    assert_non_null(json);
    if (model_desc_from_json(json, "a model", desc, &err) != STATUS_OK) fail_msg("%s", err.text);
    json_decref(json);
    tensor_table_build(desc, table);
    if (!example->chooses) return;
    const struct tensor_info head = {.role = ROLE_LM_HEAD, .ndim = 2};
    const struct adapter_choice tied_head = desc->tied ? example->chooses(&head) : NONE;
    struct adapter_choice *choices = calloc((size_t)table->num_tensors, sizeof *choices);
    for (int i = 0; i < table->num_tensors; i++) choices[i] = example->chooses(&table->tensors[i]);
    adapter_extend_table(table, desc, choices, &tied_head);
    free(choices);
}

/* ---- verbs over memory that is as large as each unit ----------------------- */

struct memory {
    const struct tensor_table *table;
    bool matrix_sums, later; /* later: micro-batches after the first */
    void *params[MOST_UNITS], *grads[MOST_UNITS], *sums[MOST_UNITS];
};

static enum status memory_acquire(void *self, int unit, enum param_pass pass, struct stream *stream,
                                  struct unit_params *params, struct error *err)
{
    const struct memory *memory = self;
    (void)pass, (void)stream, (void)err;
    for (int u = unit, part = 0; part == 0 || u; u = memory->table->units[u].next, part++) {
        const int frozen = memory->table->units[u].frozen;
        params->trained[part] = memory->params[u];
        params->frozen[part] = frozen ? memory->params[frozen] : NULL;
    }
    return STATUS_OK;
}

static void memory_release(void *self, int unit, enum param_pass pass, struct stream *stream)
{
    (void)self, (void)unit, (void)pass, (void)stream;
}

/* As comm/zero gives them: beside sums of matrices, the other gradients are overwritten. */
static enum status memory_grads(void *self, int unit, struct stream *stream, struct unit_grads *grads,
                                struct error *err)
{
    const struct memory *memory = self;
    const bool summed = memory->matrix_sums && unit > 0 && unit < tensor_table_head(memory->table);
    (void)stream, (void)err;
    *grads = (struct unit_grads){.adds = memory->later && !summed, .matrix_adds = summed && memory->later};
    for (int u = unit, part = 0; part == 0 || u; u = memory->table->units[u].next, part++) {
        grads->grads[part] = memory->grads[u];
        grads->numel[part] = memory->table->units[u].numel;
        grads->matrix_sums[part] = summed ? memory->sums[u] : NULL;
    }
    return STATUS_OK;
}

static enum status memory_ready(void *self, int unit, struct stream *stream, struct error *err)
{
    (void)self, (void)unit, (void)stream, (void)err;
    return STATUS_OK;
}

static void memory_take(struct memory *memory, const struct example *example, const struct tensor_table *table)
{
    memset(memory, 0, sizeof *memory);
    memory->table = table;
    memory->matrix_sums = example->matrix_sums;
    assert_true(table->num_units <= MOST_UNITS);
    for (int u = 0; u < table->num_units; u++) {
        const size_t bytes = (size_t)(table->units[u].numel + 64) / 64 * 256;
        void **pieces[] = {&memory->params[u], &memory->grads[u], &memory->sums[u]};
        for (size_t i = 0; i < COUNT_OF(pieces); i++) {
            *pieces[i] = aligned_alloc(128, bytes);
            memset(*pieces[i], 0, bytes);
        }
    }
}

static void memory_give_back(struct memory *memory)
{
    for (int u = 0; u < MOST_UNITS; u++) {
        free(memory->params[u]);
        free(memory->grads[u]);
        free(memory->sums[u]);
    }
}

/* ---- the test -------------------------------------------------------------- */

static void train(struct transformer *t, struct memory *memory, int micro_batches, struct stream *stream,
                  double *loss_sum)
{
    static int32_t tokens[TOKENS], targets[TOKENS], positions[TOKENS], types[TOKENS], seq_start[SEQUENCES + 1];
    static uint64_t numbers[TOKENS];
    const struct param_verbs verbs = {memory, memory_acquire, memory_release, memory_grads, memory_ready, NULL};
    struct error err;
    for (int i = 0; i < TOKENS; i++) {
        positions[i] = i % LENGTH;
        numbers[i] = (uint64_t)i;
    }
    for (int i = 0; i <= SEQUENCES; i++) seq_start[i] = i * LENGTH;
    const struct batch batch = {.num_seqs = SEQUENCES,
                                .max_seq = LENGTH,
                                .num_tokens = TOKENS,
                                .num_targets = TOKENS,
                                .tokens = tokens,
                                .targets = targets,
                                .positions = positions,
                                .numbers = numbers,
                                .types = types,
                                .seq_start = seq_start};
    for (int i = 0; i < micro_batches; i++) {
        memory->later = i > 0;
        assert_int_equal(train_one(t, &batch, NULL, &verbs, stream, loss_sum, &err), STATUS_OK);
    }
}

/* Announces, then trains with the layout in memory. */
static void prepare_and_train(const struct transformer_config *config, const struct example *example, int micro_batches,
                              struct device *device, struct stream *stream)
{
    struct error err;
    struct transformer *t;
    struct arena arena;
    struct memory memory;
    struct op_limits limits;
    void *activations, *workspace = NULL;
    assert_int_equal(transformer_new(config, device, &t, &err), STATUS_OK);
    arena_init_dry(&arena);
    transformer_layout(t, &arena);
    assert_int_equal(transformer_prepare(t, micro_batches > 1, example->matrix_sums, &err), STATUS_OK);
    arena_take(&arena, MEM_DATA, sizeof(double));
    const size_t bytes = arena.used;
    assert_int_equal(device_alloc(device, bytes, &activations, &err), STATUS_OK);
    arena_init(&arena, activations, bytes);
    transformer_layout(t, &arena);
    double *loss_sum = arena_take(&arena, MEM_DATA, sizeof *loss_sum);
    transformer_op_limits(t, &limits);
    const size_t workspace_bytes = ops_workspace_bytes(device, &limits);
    if (workspace_bytes) assert_int_equal(device_alloc(device, workspace_bytes, &workspace, &err), STATUS_OK);
    stream_set_workspace(stream, workspace, workspace_bytes);
    assert_int_equal(transformer_start(t, stream, &err), STATUS_OK);
    memory_take(&memory, example, config->table);
    train(t, &memory, micro_batches, stream, loss_sum);
    stream_sync(stream);
    memory_give_back(&memory);
    device_free(device, workspace, workspace_bytes);
    device_free(device, activations, bytes);
    transformer_free(t);
}

static struct transformer_config config_of(const struct example *example, const struct model_desc *desc,
                                           const struct tensor_table *table)
{
    return (struct transformer_config){
        .desc = desc,
        .table = table,
        .settings = {.deterministic = true, .recompute = example->recompute, .logits_dtype = example->logits_dtype},
        .batch = {.max_tokens = TOKENS, .max_seqs = SEQUENCES, .max_seq = LENGTH},
        .dtype = example->dtype,
        .training = true,
        .lora_dropout = example->lora_dropout,
        .logit_chunk = example->logit_chunk,
    };
}

static void check_example(const struct example *example, int micro_batches, struct device *device,
                          struct stream *stream)
{
    struct model_desc desc;
    struct tensor_table table;
    describe_model(example, &desc, &table);
    const struct transformer_config config = config_of(example, &desc, &table);
    const int missing_before = num_missing;
    num_announced = num_run = 0;
    prepare_and_train(&config, example, micro_batches, device, stream);
    assert_true(num_run > 0);
    if (num_missing > missing_before)
        print_error("example %td, %d micro-batches: %d of %d products that ran were not announced\n",
                    example - examples, micro_batches, num_missing - missing_before, num_run);
    tensor_table_release(&table);
    model_desc_release(&desc);
}

static void what_runs_was_announced(void **state)
{
    struct error err;
    struct device *device;
    struct stream *stream;
    (void)state;
    assert_int_equal(device_open(DEVICE_CPU, 0, 2, &device, &err), STATUS_OK);
    struct device_private *private_ = device->private_;
    const struct device_backend *backend = private_->backend;
    struct device_backend listening = *backend;
    real_ops = device->ops;
    struct op_table heard = *real_ops;
    listening.prepare = hear_announced;
    private_->backend = &listening;
    heard.linear_fwd = heard_linear_fwd;
    heard.linear_bwd_input = heard_linear_bwd_input;
    heard.linear_bwd_weight = heard_linear_bwd_weight;
    device->ops = &heard;
    assert_int_equal(stream_new(device, STREAM_COMPUTE, &stream, &err), STATUS_OK);
    for (size_t i = 0; i < COUNT_OF(examples); i++) {
        check_example(&examples[i], 1, device, stream);
        check_example(&examples[i], 3, device, stream);
    }
    stream_free(stream);
    device->ops = real_ops;
    private_->backend = backend;
    device_close(device);
    assert_int_equal(num_missing, 0);
}

/* ---- shapes of attention --------------------------------------------------- */

#define WINDOWED(length)                                                                                            \
    SIZES "'model_type': 'gemma3_text', 'vocab_size': 40, 'num_key_value_heads': 2, 'head_dim': 8, 'layer_types': " \
          "['sliding_attention', 'full_attention', 'sliding_attention'], 'sliding_window': " #length
#define HYBRID                                                                                        \
    SIZES "'model_type': 'qwen3_5_text', 'vocab_size': 40, 'num_key_value_heads': 2, 'head_dim': 8, " \
          "'layer_types': ['linear_attention', 'full_attention', 'linear_attention'], "               \
          "'linear_num_key_heads': 2, 'linear_num_value_heads': 2, 'linear_key_head_dim': 8, "        \
          "'linear_value_head_dim': 8"

static const struct {
    struct example example;
    int shapes, layers[2], windows[2];
} attentions[] = {
    {{WINDOWED(3), .dtype = DTYPE_BF16}, 2, {2, 1}, {3, 0}},
    {{WINDOWED(1000), .dtype = DTYPE_BF16}, 1, {3}, {0}}, /* longer than a sequence */
    {{HYBRID, .dtype = DTYPE_BF16}, 1, {1}, {0}},
};

static void each_shape_of_attention_is_announced_once(void **state)
{
    struct error err;
    struct device *device;
    (void)state;
    assert_int_equal(device_open(DEVICE_CPU, 0, 1, &device, &err), STATUS_OK);
    for (size_t i = 0; i < COUNT_OF(attentions); i++) {
        struct model_desc desc;
        struct tensor_table table;
        struct op_limits limits;
        struct transformer *t;
        describe_model(&attentions[i].example, &desc, &table);
        const struct transformer_config config = config_of(&attentions[i].example, &desc, &table);
        assert_int_equal(transformer_new(&config, device, &t, &err), STATUS_OK);
        transformer_op_limits(t, &limits);
        assert_int_equal(limits.num_attention, attentions[i].shapes);
        for (int j = 0; j < limits.num_attention; j++) {
            assert_int_equal(limits.attention_layers[j], attentions[i].layers[j]);
            assert_int_equal(limits.attention[j].fwd.window, attentions[i].windows[j]);
            assert_int_equal(limits.attention[j].fwd.D, 8);
        }
        transformer_free(t);
        tensor_table_release(&table);
        model_desc_release(&desc);
    }
    device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_runs_was_announced),
                                       cmocka_unit_test(each_shape_of_attention_is_announced_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

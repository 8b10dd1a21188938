/* SPDX-License-Identifier: Apache-2.0 */
/* transformer_prepare.c: announces to the device the matrix products of a step (of a full micro-batch; the head's come
 * in chunks of rows, of which the last may be shorter) and the bounds of all ops. Memory is not allocated yet: one
 * aligned address stands for all buffers. */
#include "core/memory.h"
#include "core/round_up.h"
#include "gpu/model/transformer_adapter.h"
#include "gpu/model/transformer_delta.h"
#include "gpu/model/transformer_experts.h"
#include "gpu/model/transformer_layers.h"

/* The products of one kind that the matrices and adapters of a block have at most: six matrices, nine adapters with
 * two products each. The others have no more. */
enum { PRODUCTS_OF_UNIT = 6 + 2 * 9 };

static void *prepare_place(void)
{
    return (void *)(uintptr_t)ARENA_ALIGN;
}

/* The products of a matrix, and of its adapters. */
static void prepare_linear(const struct pass *pass, const struct unit *unit, enum linear which)
{
    void *place = prepare_place();
    linear_forward(pass, unit, which, place, place, which == LINEAR_UP ? place : NULL);
    if (unit->index >= pass->transformer->first_trained) /* else backward has ended */
        linear_backward(pass, unit, which, place, place, place, which == LINEAR_DOWN ? place : NULL);
}

static void prepare_head(const struct pass *pass, const struct unit *head, const struct unit *matrix, int64_t rows)
{
    struct pass chunk = *pass;
    chunk.M = rows;
    head_logits(&chunk, head, matrix, 0, rows, prepare_place());
    head_logits_bwd(&chunk, head, matrix, 0, rows, prepare_place(), prepare_place());
    if (pass->transformer->config.desc->pooler) prepare_linear(&chunk, head, LINEAR_POOLER);
}

/* Whether the same is trained in two blocks, with adapters of the same ranks: their products are then the same. */
static bool prepare_alike(const struct transformer *t, int one, int other)
{
    const struct tensor_table *table = t->config.table;
    const struct unit_info *a = &table->units[one], *b = &table->units[other];
    bool alike = a->num_tensors == b->num_tensors;
    for (int i = 0; alike && i < a->num_tensors; i++) {
        const struct tensor_info *x = &table->tensors[a->first_tensor + i], *y = &table->tensors[b->first_tensor + i];
        alike = x->role == y->role && x->part == y->part && x->numel == y->numel && x->lora_scale == y->lora_scale;
    }
    return alike && (one < t->first_trained) == (other < t->first_trained);
}

/* One block of each kind. */
static void prepare_blocks(const struct pass *pass, struct unit *unit)
{
    const struct transformer *t = pass->transformer;
    for (unit->index = 1; unit->index <= t->L; unit->index++) {
        int before = 1;
        while (before < unit->index && !prepare_alike(t, before, unit->index)) before++;
        for (int which = 0; before == unit->index && which < LINEAR_HEAD; which++)
            if (transformer_tensor(t, unit->index, linear_of(t, unit->index, (enum linear)which)->weight))
                prepare_linear(pass, unit, (enum linear)which);
    }
}

/* Those of weights once more, added to gradients: accumulates, of all; else of the head's, whose first chunk may
 * overwrite its gradient, and later chunks add to it. blocks: the first of the head. */
static void prepare_sums(struct linear_products *p, const struct transformer *t, int blocks, bool accumulates)
{
    const bool chunks = t->config.batch.max_tokens > t->chunk;
    const int once = p->num_bwd_weight;
    for (int i = 0; i < once; i++) {
        if (!accumulates && !(i >= blocks && chunks)) continue;
        struct linear_bwd_weight_args *more = &p->bwd_weight[p->num_bwd_weight++];
        *more = p->bwd_weight[i];
        more->accumulate = true;
        more->accumulate_dbias = more->dw_dtype == DTYPE_F32; /* beside sums in bf16 biases are in the bucket */
    }
}

enum status transformer_prepare(const struct transformer *t, bool accumulates, bool matrix_sums, struct error *err)
{
    const size_t most = (size_t)(t->L + 2) * PRODUCTS_OF_UNIT;
    struct grouped_linear_fwd_args grouped[EXPERT_PRODUCTS];
    OWNED struct linear_fwd_args *fwd = memory_zeroed(most, sizeof *fwd);
    OWNED struct linear_bwd_input_args *bwd_input = memory_zeroed(most, sizeof *bwd_input);
    OWNED struct linear_bwd_weight_args *bwd_weight = memory_zeroed(2 * most, sizeof *bwd_weight);
    struct linear_products p = {.fwd = fwd, .bwd_input = bwd_input, .bwd_weight = bwd_weight, .grouped = grouped};
    struct transformer placed = *t; /* the dry layout has no addresses */
    placed.logits = placed.lora_xa = placed.lora_dxa = placed.lora_x = prepare_place();
    const int64_t M = t->config.batch.max_tokens, last = M % t->chunk;
    const struct pass pass = {.transformer = &placed, .M = M, .training = t->config.training, .announces = &p};
    struct unit unit = {.index = 0};
    for (int part = 0; part < UNIT_PARTS; part++) {
        unit.params.trained[part] = unit.params.frozen[part] = prepare_place();
        unit.to.grads[part] = prepare_place();
        unit.to.matrix_sums[part] = matrix_sums ? prepare_place() : NULL;
    }
    prepare_blocks(&pass, &unit);
    const int blocks = p.num_bwd_weight;
    memset(unit.to.matrix_sums, 0, sizeof unit.to.matrix_sums);
    unit.index = 0;
    if (t->I) prepare_linear(&pass, &unit, LINEAR_LAYER_IN);
    adapter_embed(&pass, &unit, prepare_place());
    adapter_embed_backward(&pass, &unit, prepare_place());
    struct unit head = unit;
    head.index = (int)t->L + 1;
    const struct unit *matrix = t->config.desc->tied ? &unit : &head;
    prepare_head(&pass, &head, matrix, t->chunk);
    if (last) prepare_head(&pass, &head, matrix, last);
    prepare_sums(&p, t, blocks, accumulates);
    p.num_grouped = experts_products(t, M, prepare_place(), grouped);
    if (!t->config.training) p.num_bwd_input = p.num_bwd_weight = 0;
    return ops_prepare(t->device, &p, err);
}

/* The sizes of two layers: those that share keys and values have other rows. */
static bool same_attention(const struct attention_fwd_args *a, const struct attention_fwd_args *b)
{
    return a->window == b->window && a->H == b->H && a->KV == b->KV && a->D == b->D && a->ld_q == b->ld_q &&
           a->ld_k == b->ld_k && a->ld_v == b->ld_v;
}

/* The shapes of attention: layers differ in window, heads and head size. */
static void prepare_attention(const struct transformer *t, struct op_limits *limits)
{
    const struct transformer_config *config = &t->config;
    struct attention_bwd_args *shapes = limits->attention;
    for (int64_t block = 0; block < t->L; block++) {
        struct attention_bwd_args a =
            attention_bwd_sizes(t, block, limits->max_tokens, limits->max_seqs, limits->max_seq);
        int i = 0;
        if (config->desc->layers[block].delta) continue;
        if (!a.fwd.ragged && a.fwd.window >= a.fwd.max_seq) a.fwd.window = 0;
        while (i < limits->num_attention && !same_attention(&shapes[i].fwd, &a.fwd)) i++;
        if (i == OPS_ATTENTION_SHAPES) continue;
        limits->attention_layers[i]++;
        if (i < limits->num_attention) continue;
        if (config->training)
            a.fwd.dropout = dropout_of(config->dropout.attention, config->dropout_seed, DROPOUT_ATTENTION, block);
        shapes[limits->num_attention++] = a;
    }
}

void transformer_op_limits(const struct transformer *t, struct op_limits *limits)
{
    const struct transformer_config *config = &t->config;
    *limits = (struct op_limits){
        .dtype = t->dtype,
        .max_tokens = config->batch.max_tokens,
        .C = t->C,
        .H = t->H,
        .max_head_norm = config->desc->qk_norm == QK_NORM_PROJECTION ? t->H * config->desc->head_dim : t->I,
        .V = t->V,
        .P = config->desc->max_positions,
        .max_seqs = config->batch.max_seqs,
        .max_seq = config->batch.max_seq,
        .backward = config->training,
        .max_expert_rows = config->batch.max_tokens * config->desc->experts.per_token * transformer_expert_ranks(t),
    };
    for (const struct layer_desc *layer = config->desc->layers; layer < config->desc->layers + t->L; layer++) {
        limits->F = max64(limits->F, max64(layer->intermediate_size, config->desc->experts.inner_size));
        limits->KV = max64(limits->KV, layer->num_kv_heads);
        limits->D = max64(limits->D, layer->head_dim);
    }
    prepare_attention(t, limits);
    if (config->desc->delta.taps) {
        limits->delta_rule = delta_sizes(t, config->batch.max_tokens, config->batch.max_seqs, config->batch.max_seq);
        limits->max_head_norm = max64(limits->max_head_norm, config->desc->delta.value_dim);
    }
    for (int i = 0; i < (int)(t->L + 2) * LINEAR_COUNT; i++) {
        limits->max_linear_k = max64(limits->max_linear_k, t->linears[i].K);
        limits->max_linear_n = max64(limits->max_linear_n, t->linears[i].N);
    }
    limits->max_embedding = t->embedding_adapter.a ? t->embedding_adapter.a->shape[1] : 0;
    limits->max_embedding = max64(limits->max_embedding, t->L * t->I);
    limits->max_linear_k = max64(limits->max_linear_k, t->most_lora_rank);
    limits->max_linear_n = max64(limits->max_linear_n, t->most_lora_rank);
}

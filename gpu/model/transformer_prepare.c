/* SPDX-License-Identifier: Apache-2.0 */
/* transformer_prepare.c: announces to the device the matrix products of a step (of a full micro-batch; the head's come
 * in chunks of rows, of which the last may be shorter) and the bounds of all ops. Memory is not allocated yet: one
 * aligned address stands for all buffers. */
#include "core/round_up.h"
#include "gpu/model/transformer_layers.h"

enum { ROW_COUNTS = 2, MAX_SHAPES = LINEAR_HEAD + 2 * ROW_COUNTS };

static void *prepare_place(void)
{
    return (void *)(uintptr_t)ARENA_ALIGN;
}

struct products {
    struct linear_fwd_args fwd[MAX_SHAPES];
    struct linear_bwd_input_args bwd_input[MAX_SHAPES];
    struct linear_bwd_weight_args bwd_weight[2 * MAX_SHAPES];
    int num_fwd, num_bwd_input, num_bwd_weight;
};

/* Unless it is frozen. */
static void transformer_prepare_weight(struct products *p, struct linear_bwd_weight_args args)
{
    if (args.dw)
        p->bwd_weight[p->num_bwd_weight++] = args;
}

static void add_block(struct products *p, const struct transformer *t, const struct unit *unit, enum linear which)
{
    int64_t M = t->config.batch.max_tokens;
    void *up_aux = which == LINEAR_UP ? prepare_place() : NULL,
         *down_aux = which == LINEAR_DOWN ? prepare_place() : NULL;
    p->fwd[p->num_fwd++] = linear_fwd_args(t, unit, which, M, prepare_place(), prepare_place(), up_aux);
    p->bwd_input[p->num_bwd_input++] =
        linear_bwd_input_args(t, unit, which, M, prepare_place(), prepare_place(), down_aux);
    transformer_prepare_weight(p, linear_bwd_weight_args(t, unit, which, M, prepare_place(), prepare_place()));
}

static void add_head(struct products *p, const struct transformer *t, const struct unit *unit, int64_t rows)
{
    p->fwd[p->num_fwd++] = head_fwd_args(t, unit, rows, prepare_place());
    p->bwd_input[p->num_bwd_input++] = head_bwd_input_args(t, unit, rows, prepare_place());
    transformer_prepare_weight(p, head_bwd_weight_args(t, unit, rows, prepare_place()));
    if (!t->config.desc->pooler)
        return;
    p->fwd[p->num_fwd++] = linear_fwd_args(t, unit, LINEAR_POOLER, rows, prepare_place(), prepare_place(), NULL);
    p->bwd_input[p->num_bwd_input++] =
        linear_bwd_input_args(t, unit, LINEAR_POOLER, rows, prepare_place(), prepare_place(), NULL);
    transformer_prepare_weight(p,
                               linear_bwd_weight_args(t, unit, LINEAR_POOLER, rows, prepare_place(), prepare_place()));
}

enum status transformer_prepare(const struct transformer *t, bool accumulates, bool matrix_sums, struct error *err)
{
    struct products p = {0};
    struct unit unit = {.index = 1,
                        .params = {prepare_place(), prepare_place()},
                        .to = {.grads = prepare_place(), .matrix_sums = matrix_sums ? prepare_place() : NULL}};
    int64_t M = t->config.batch.max_tokens, last = M % t->chunk;
    for (int which = 0; which < LINEAR_HEAD; which++)
        add_block(&p, t, &unit, (enum linear)which);
    const int weights = p.num_bwd_weight; /* of blocks */
    unit.index = t->config.desc->tied ? 0 : (int)t->L + 1;
    unit.to.matrix_sums = NULL;
    add_head(&p, t, &unit, t->chunk);
    if (last)
        add_head(&p, t, &unit, last);
    int once = p.num_bwd_weight;
    for (int i = 0; i < once; i++) { /* the head's first chunk may overwrite its gradient, later chunks add to it */
        bool head = i >= weights;
        if (!accumulates && !(head && M > t->chunk))
            continue;
        struct linear_bwd_weight_args *more = &p.bwd_weight[p.num_bwd_weight++];
        *more = p.bwd_weight[i];
        more->accumulate = true;
        more->accumulate_dbias = more->dw_dtype == DTYPE_F32; /* beside sums in bf16 biases are in the bucket */
    }
    struct linear_products products = {
        .fwd = p.fwd,
        .bwd_input = p.bwd_input,
        .bwd_weight = p.bwd_weight,
        .num_fwd = p.num_fwd,
        .num_bwd_input = t->config.training ? p.num_bwd_input : 0,
        .num_bwd_weight = t->config.training ? p.num_bwd_weight : 0,
    };
    return ops_prepare(t->device, &products, err);
}

/* A block whose attention has the window that most blocks have. */
static int64_t prepare_usual_block(const struct transformer *t)
{
    const struct layer_desc *layers = t->config.desc->layers;
    int64_t best = 0, best_count = 0;
    for (int64_t block = 0; block < t->L; block++) {
        int64_t count = 0;
        for (int64_t other = block; other < t->L; other++)
            count += layers[other].window == layers[block].window;
        if (count > best_count) {
            best = block;
            best_count = count;
        }
    }
    return best;
}

void transformer_op_limits(const struct transformer *t, struct op_limits *limits)
{
    const struct transformer_config *config = &t->config;
    *limits = (struct op_limits){
        .dtype = t->dtype,
        .max_tokens = config->batch.max_tokens,
        .C = t->C,
        .F = t->F,
        .H = t->H,
        .KV = t->KV,
        .D = t->D,
        .max_head_norm = config->desc->qk_norm == QK_NORM_PROJECTION ? t->H * t->D : 0,
        .V = t->V,
        .P = config->desc->max_positions,
        .max_seqs = config->batch.max_seqs,
        .max_seq = config->batch.max_seq,
    };
    /* no kernel is compiled for the shape where there is a soft cap */
    bool compiled = config->desc->attention_softcap == 0;
    if (compiled) {
        const struct attention_bwd_args sizes = attention_bwd_sizes(t, prepare_usual_block(t), config->batch.max_tokens,
                                                                    config->batch.max_seqs, config->batch.max_seq);
        limits->attention_fwd = attention_forward_of(&sizes);
        if (config->training) {
            limits->attention_bwd = sizes;
            limits->attention_bwd.dropout =
                dropout_of(config->dropout.attention, config->dropout_seed, DROPOUT_ATTENTION, prepare_usual_block(t));
        }
    }
    for (int i = 0; i < LINEAR_COUNT; i++) {
        limits->max_linear_k = max64(limits->max_linear_k, t->linears[i].K);
        limits->max_linear_n = max64(limits->max_linear_n, t->linears[i].N);
    }
    limits->max_embedding = t->embedding_adapter.a ? t->embedding_adapter.a->shape[1] : 0;
    limits->max_linear_k = max64(limits->max_linear_k, t->most_lora_rank);
    limits->max_linear_n = max64(limits->max_linear_n, t->most_lora_rank);
}

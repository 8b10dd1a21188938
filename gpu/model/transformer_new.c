/* SPDX-License-Identifier: Apache-2.0 */
/* transformer_new.c: creates the transformer: the shapes of its matrices, its tensors by role, which biases' gradients
 * are sums that another op leaves. */
#include "core/memory.h"
#include "core/round_up.h"
#include "gpu/model/block_graphs.h"
#include "gpu/model/transformer_adapter.h"
#include "gpu/model/transformer_delta.h"
#include "gpu/op_cost.h"

/* Fills shapes[LINEAR_COUNT] of a layer, and those outside of the blocks. */
static void transformer_linear_shapes(const struct model_desc *desc, const struct layer_desc *layer,
                                      struct linear_shape *shapes)
{
    int64_t C = desc->hidden_size, F = layer->intermediate_size, HD = desc->num_heads * layer->head_dim;
    const int64_t kv = layer->kv_source != layer - desc->layers ? 0 : layer->v_is_k ? 1 : 2;
    int64_t W = (desc->gated_attention ? 2 : 1) * HD + kv * layer->num_kv_heads * layer->head_dim;
    const int64_t I = desc->layer_inputs, in_C = I ? C : 0;
    const int64_t values = delta_values(&desc->delta); /* 0 without a delta rule, as its C */
    const int64_t delta_C = values ? C : 0;
    bool in_out = desc->weights_in_out, one_qkv = desc->fused_qkv, gated = mlp_is_gated(desc->mlp);
    shapes[LINEAR_QKV] =
        (struct linear_shape){one_qkv ? ROLE_QKV_W : ROLE_Q_W, one_qkv ? ROLE_QKV_B : ROLE_Q_B, W, C, in_out};
    shapes[LINEAR_O] = (struct linear_shape){ROLE_O_W, ROLE_O_B, C, HD, in_out};
    shapes[LINEAR_UP] = (struct linear_shape){gated ? ROLE_GATE_W : ROLE_UP_W, gated ? ROLE_GATE_B : ROLE_UP_B,
                                              gated ? 2 * F : F, C, in_out};
    shapes[LINEAR_DOWN] = (struct linear_shape){ROLE_DOWN_W, ROLE_DOWN_B, C, F, in_out};
    if (layer->sparse) {
        shapes[LINEAR_UP] = (struct linear_shape){ROLE_SHARED_GATE_W, ROLE_COUNT, 2 * F, F ? C : 0, false};
        shapes[LINEAR_DOWN] = (struct linear_shape){ROLE_SHARED_DOWN_W, ROLE_COUNT, F ? C : 0, F, false};
    }
    const int64_t E = layer->sparse ? desc->experts.count : 0, scales = layer->sparse && desc->experts.shared_gate;
    shapes[LINEAR_ROUTER] = (struct linear_shape){ROLE_ROUTER_W, ROLE_ROUTER_B, E, E ? C : 0, false};
    shapes[LINEAR_SHARED_SCALE] = (struct linear_shape){ROLE_SHARED_SCALE_W, ROLE_COUNT, scales, scales ? C : 0, false};
    shapes[LINEAR_DELTA_IN] =
        (struct linear_shape){ROLE_DELTA_QKV_W, ROLE_COUNT, delta_width(&desc->delta), delta_C, false};
    shapes[LINEAR_DELTA_O] = (struct linear_shape){ROLE_DELTA_O_W, ROLE_COUNT, delta_C, values, false};
    shapes[LINEAR_LAYER_IN] = (struct linear_shape){ROLE_LAYER_IN_W, ROLE_COUNT, desc->num_layers * I, in_C, false};
    shapes[LINEAR_IN_GATE] = (struct linear_shape){ROLE_IN_GATE_W, ROLE_COUNT, I, in_C, false};
    shapes[LINEAR_IN_OUT] = (struct linear_shape){ROLE_IN_OUT_W, ROLE_COUNT, in_C, I, false};
    const int64_t pooled = desc->pooler ? C : 0;
    shapes[LINEAR_POOLER] = (struct linear_shape){ROLE_POOLER_W, ROLE_POOLER_B, pooled, pooled, false};
    if (desc->num_labels > 0)
        shapes[LINEAR_HEAD] = (struct linear_shape){ROLE_SCORE_W, ROLE_SCORE_B, desc->num_labels, C, false};
    else /* the token embedding is stored (V, C) in every family */
        shapes[LINEAR_HEAD] =
            (struct linear_shape){desc->tied ? ROLE_WTE : ROLE_LM_HEAD, desc->head_bias ? ROLE_LM_HEAD_B : ROLE_COUNT,
                                  desc->vocab_size, C, false};
}

/* Products of a matrix's size that each token costs in training: forward; the gradient of its input, unless backward
 * has ended; that of the matrix, unless it is frozen. */
static int linear_passes(const struct tensor_table *table, int unit, enum tensor_role role)
{
    if (!table) return 3;
    const int head = tensor_table_head(table);
    const struct tensor_info *tensor = tensor_find(table, role == ROLE_WTE ? 0 : unit, role);
    return 1 + (unit == head || unit >= tensor_table_first_trained(table)) + (tensor && !tensor->frozen);
}

/* Elements of the matrices of a unit's adapters; of experts those that a token goes to. */
static double adapter_parameters(const struct model_desc *desc, const struct tensor_table *table, int unit)
{
    double sum = 0;
    for (int i = 0; table && i < table->units[unit].num_tensors; i++) {
        const struct tensor_info *tensor = &table->tensors[table->units[unit].first_tensor + i];
        const bool looked_up = tensor->role == ROLE_WTE && tensor->part == PART_LORA_A;
        const double share =
            role_is_expert(tensor->role) ? (double)desc->experts.per_token / (double)desc->experts.count : 1;
        sum += tensor->part != PART_BASE && !looked_up ? share * (double)tensor->numel : 0;
    }
    return sum + (table && table->units[unit].next ? adapter_parameters(desc, table, table->units[unit].next) : 0);
}

/* Whether the unit has the matrix: a block's, where it has attention or a delta rule; the head's; or unit 0's. */
static bool linear_in_unit(const struct model_desc *desc, int unit, int head, int which)
{
    if (which == LINEAR_LAYER_IN || unit == 0) return which == LINEAR_LAYER_IN && unit == 0;
    if (which >= LINEAR_HEAD || unit == head) return unit == head && which >= LINEAR_HEAD;
    const bool delta = desc->layers[unit - 1].delta;
    return delta ? which != LINEAR_QKV && which != LINEAR_O : which != LINEAR_DELTA_IN && which != LINEAR_DELTA_O;
}

/* Of the k experts that a token goes to. */
static double expert_flops(const struct model_desc *desc, const struct tensor_table *table, int unit)
{
    const struct experts_desc *experts = &desc->experts;
    return 2 * linear_passes(table, unit, ROLE_EXPERT_GATE_W) * 3 * (double)experts->per_token *
           (double)experts->inner_size * (double)desc->hidden_size;
}

/* Forward, of the delta rule itself. */
static double delta_flops(const struct model_desc *desc)
{
    const struct delta_desc *delta = &desc->delta;
    const struct delta_rule_fwd_args one = {
        .M = 1, .Hk = delta->key_heads, .Hv = delta->value_heads, .Dk = delta->key_dim, .Dv = delta->value_dim};
    return op_cost_delta_rule_fwd(&one).flops;
}

/* Outside of the blocks, where shapes do not depend on it, the first. */
static const struct layer_desc *layer_of_unit(const struct model_desc *desc, int unit)
{
    return &desc->layers[unit > 0 && unit <= desc->num_layers ? unit - 1 : 0];
}

double transformer_flops_per_token(const struct model_desc *desc, const struct tensor_table *table, int64_t seq_length)
{
    struct linear_shape shapes[LINEAR_COUNT];
    const int head = (int)desc->num_layers + 1, first = table ? tensor_table_first_trained(table) : 0;
    double flops = 0;
    for (int unit = 0; unit <= head; unit++) {
        const struct layer_desc *layer = layer_of_unit(desc, unit);
        const double heads = (double)(desc->num_heads * layer->head_dim) * (double)seq_length;
        transformer_linear_shapes(desc, layer, shapes);
        flops += 6 * adapter_parameters(desc, table, unit);
        if (unit > 0 && unit < head && layer->delta)
            flops += (unit >= first ? 3 : 1) * delta_flops(desc);
        else if (unit > 0 && unit < head) /* forward 2, backward 4 */
            flops += (unit >= first ? 6 : 2) * (desc->bidirectional ? 2 : 1) * heads;
        if (unit > 0 && unit < head && layer->sparse) flops += expert_flops(desc, table, unit);
        for (int i = 0; i < LINEAR_COUNT; i++) {
            const bool once = i == LINEAR_POOLER || (i == LINEAR_HEAD && desc->pooler); /* for a sample */
            if (!linear_in_unit(desc, unit, head, i)) continue;
            flops += 2 * linear_passes(table, unit, shapes[i].weight) * (once ? 1 / (double)seq_length : 1) *
                     (double)shapes[i].N * (double)shapes[i].K;
        }
    }
    return flops;
}

/* A norm's backward sums the gradient that it writes over rows: that of what the o or down matrix added, unless dropout
 * or a multiplier come between (norms of the branch come after dropout). So does the op that goes back through erf. */
static void new_find_biases(struct transformer *t)
{
    const bool dropped = t->config.dropout.residual > 0, scaled = t->config.desc->residual_multiplier != 1;
    const bool alone = t->norms_after && !t->post_norm, summed = alone || (!dropped && !scaled);
    t->bias_summed[LINEAR_UP] = t->config.desc->mlp == MLP_GELU_ERF;
    t->bias_summed[LINEAR_O] = t->bias_summed[LINEAR_DOWN] = summed;
}

/* Softmax does not see what a bias of k adds to all scores of a query: the gradient is 0 but for rounding, unless
 * something that differs between keys (RoPE, a norm) or is not linear (a soft cap) comes after. */
static bool k_bias_has_no_gradient(const struct model_desc *desc)
{
    return desc->rope.kind == ROPE_NONE && desc->local_rope.kind == ROPE_NONE && desc->qk_norm == QK_NORM_NONE &&
           desc->attention_softcap == 0;
}

/* GPUs multiply fast if sizes are multiples of 128. There the products of a tied head include the rows that follow its
 * matrix in unit 0, up to the next multiple (GPT-2). Their logits are ignored and their dlogits are 0: products that
 * add to gradients leave these rows; one that overwrites sets them to 0, and the embedding's gradients overwrite that.
 */
static void new_pad_vocabulary(struct transformer *t)
{
    const struct linear_shape *head = linear_of(t, 0, LINEAR_HEAD);
    const int64_t padded = round_up(t->V, VOCABULARY_ALIGN);
    if (t->device->kind != DEVICE_CUDA || head->weight != ROLE_WTE || t->config.desc->head_bias) return;
    const struct tensor_info *matrix = transformer_tensor(t, 0, ROLE_WTE);
    if (matrix->offset + padded * t->C > t->config.table->units[matrix->unit].numel) return;
    for (int unit = 0; unit < t->L + 2; unit++) t->linears[unit * LINEAR_COUNT + LINEAR_HEAD].N = padded;
}

static enum status check_gpu_heads(const struct model_desc *desc, struct error *err)
{
    for (int64_t i = 0; i < desc->num_layers; i++)
        if (desc->layers[i].head_dim > CUDA_MAX_HEAD_DIM)
            return error_set(err, STATUS_DEVICE,
                             "head_dim is %lld, but attention on a GPU supports at most %d; hint: train.device: cpu",
                             (long long)desc->layers[i].head_dim, (int)CUDA_MAX_HEAD_DIM);
    if (desc->delta.key_dim > DELTA_MAX_DIM || desc->delta.value_dim > DELTA_MAX_DIM)
        return error_set(err, STATUS_DEVICE,
                         "linear_key_head_dim is %lld and linear_value_head_dim %lld, but a GPU supports at most %d; "
                         "hint: train.device: cpu",
                         (long long)desc->delta.key_dim, (long long)desc->delta.value_dim, (int)DELTA_MAX_DIM);
    return STATUS_OK;
}

enum status transformer_new(const struct transformer_config *config, struct device *device,
                            struct transformer **transformer, struct error *err)
{
    const struct model_desc *desc = config->desc;
    const struct batch_limits *most = &config->batch;
    const enum dtype logits = config->settings.logits_dtype;
    ASSERT(tensor_table_head(config->table) == desc->num_layers + 1);
    ASSERT(desc->num_layers > 0 && most->max_tokens > 0 && most->max_seqs > 0 && most->max_seq > 0);
    ASSERT(config->logit_chunk >= 0 && config->inputs >= 0);
    *transformer = NULL;
    if (device->kind == DEVICE_CUDA) TRY(check_gpu_heads(desc, err));
    RELEASED(transformer_drop) struct transformer *t = memory_zeroed(1, sizeof *t);
    t->config = *config;
    if (!config->max_position) t->config.max_position = most->max_seq;
    ASSERT(most->max_seq <= t->config.max_position && t->config.max_position <= model_desc_longest(desc));
    t->logits_dtype = desc->num_labels ? DTYPE_F32 : logits == DTYPE_COUNT ? config->dtype : logits; /* labels: few */
    ASSERT(t->logits_dtype == DTYPE_F32 || t->logits_dtype == config->dtype);
    t->device = device;
    t->dtype = config->dtype;
    t->C = desc->hidden_size;
    t->I = desc->layer_inputs;
    t->H = desc->num_heads;
    t->V = desc->vocab_size;
    t->classes = desc->num_labels ? desc->num_labels : desc->vocab_size;
    t->L = desc->num_layers;
    for (int64_t i = 0; i < t->L; i++) t->sparse_layers += desc->layers[i].sparse;
    t->G = desc->gated_attention ? t->H : 0;
    t->qk_norm = desc->qk_norm != QK_NORM_NONE;
    ASSERT(t->qk_norm || (!desc->gated_attention && !desc->v_norm)); /* q and k lie apart in qkv */
    t->k_bias_free = k_bias_has_no_gradient(desc);
    t->norms_before = desc->norm_place == NORM_BEFORE || desc->norm_place == NORM_BOTH;
    t->norms_after = desc->norm_place != NORM_BEFORE;
    t->post_norm = desc->norm_place == NORM_AFTER_RESIDUAL;
    t->parallel = desc->residual != RESIDUAL_IN_TURN;
    t->second_norm = t->norms_before && desc->residual != RESIDUAL_PARALLEL_ONE_NORM;
    t->eps = (float)desc->norm_eps;
    t->embedding_scale =
        dtype_rounded((float)desc->embedding_multiplier, desc->embedding_rounds ? config->dtype : DTYPE_F32);
    t->blocks = memory_zeroed((size_t)desc->num_layers, sizeof *t->blocks);
    t->num_inputs = config->inputs ? config->inputs : 1;
    t->inputs = memory_zeroed((size_t)t->num_inputs, sizeof *t->inputs);
    t->linears = memory_zeroed((size_t)(t->L + 2) * LINEAR_COUNT, sizeof *t->linears);
    t->tensors = memory_alloc((size_t)(t->L + 2) * ROLE_COUNT * sizeof *t->tensors);
    for (int unit = 0; unit < t->L + 2; unit++) {
        transformer_linear_shapes(desc, layer_of_unit(desc, unit), &t->linears[unit * LINEAR_COUNT]);
        for (int role = 0; role < ROLE_COUNT; role++)
            t->tensors[unit * ROLE_COUNT + role] = tensor_find(config->table, unit, (enum tensor_role)role);
    }
    t->first_trained = config->training ? tensor_table_first_trained(config->table) : 0;
    new_find_biases(t);
    new_pad_vocabulary(t);
    t->graphs = config->graphs_by_block ? block_graphs_new(t->L) : NULL;
    TRY(adapter_find(t, err));
    *transformer = TAKEN(t);
    return STATUS_OK;
}

void transformer_free(struct transformer *t)
{
    if (!t) return;
    block_graphs_free(t->graphs);
    free(t->blocks);
    free(t->inputs);
    free(t->tensors);
    free(t->linears);
    free(t->adapters);
    free(t);
}

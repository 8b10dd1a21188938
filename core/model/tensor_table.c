/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_table.c: the rules that turn a model description into the tensor table, in the order of the flat range. */
#include "core/model/tensor_table.h"

#include "core/memory.h"
#include "core/round_up.h"
#include "core/training/philox.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum dim { DIM_1, DIM_V, DIM_P, DIM_C, DIM_3C, DIM_HD, DIM_KVD, DIM_D, DIM_F, DIM_W, DIM_2F, DIM_LABELS, DIM_S };

enum presence {
    ALWAYS,
    FUSED_QKV,
    SEPARATE_QKV,
    FUSED_GATE_UP,
    SEPARATE_GATE_UP,
    WITH_QKV_BIAS,
    WITH_O_BIAS,
    WITH_MLP_BIAS,
    WITH_HEAD_NORMS,
    WITH_PROJECTION_NORMS,
    NORMS_BEFORE,
    NORMS_BEFORE_ONLY,
    NORMS_AFTER,
    NORMS_BOTH,
    UNTIED,
    WITH_SCORE
};

enum tensor_trait {
    RESIDUAL = 1, /* its output is added to the residual stream: scale_residual_init applies */
    JOINED        /* follows the tensor before it without a gap: a fused group */
};

struct tensor_rule {
    enum tensor_role role;
    const char *name;
    enum dim rows, columns; /* columns DIM_1: one dimension */
    enum presence presence;
    enum tensor_init init;
    enum tensor_trait trait; /* or 0 */
};

struct unit_rules {
    const struct tensor_rule *rules;
    int count;
};

struct family_rules {
    const char *block_prefix; /* with the block's number */
    struct unit_rules embedding, block, head;
};

/* clang-format off */
static const struct tensor_rule GPT2_EMBEDDING[] = {
    /* role               name                                 rows      columns   presence        init          trait */
    {ROLE_WTE,            "transformer.wte.weight",            DIM_V,    DIM_C,    ALWAYS,         INIT_NORMAL,  0},
    {ROLE_WPE,            "transformer.wpe.weight",            DIM_P,    DIM_C,    ALWAYS,         INIT_NORMAL,  0},
};

static const struct tensor_rule GPT2_BLOCK[] = {
    {ROLE_NORM1_W,        "ln_1.weight",                       DIM_C,    DIM_1,    ALWAYS,         INIT_ONE,     0},
    {ROLE_NORM1_B,        "ln_1.bias",                         DIM_C,    DIM_1,    ALWAYS,         INIT_ZERO,    0},
    {ROLE_QKV_W,          "attn.c_attn.weight",                DIM_C,    DIM_3C,   ALWAYS,         INIT_NORMAL,  0},
    {ROLE_QKV_B,          "attn.c_attn.bias",                  DIM_3C,   DIM_1,    ALWAYS,         INIT_ZERO,    0},
    {ROLE_O_W,            "attn.c_proj.weight",                DIM_C,    DIM_C,    ALWAYS,         INIT_NORMAL,  RESIDUAL},
    {ROLE_O_B,            "attn.c_proj.bias",                  DIM_C,    DIM_1,    ALWAYS,         INIT_ZERO,    0},
    {ROLE_NORM2_W,        "ln_2.weight",                       DIM_C,    DIM_1,    ALWAYS,         INIT_ONE,     0},
    {ROLE_NORM2_B,        "ln_2.bias",                         DIM_C,    DIM_1,    ALWAYS,         INIT_ZERO,    0},
    {ROLE_UP_W,           "mlp.c_fc.weight",                   DIM_C,    DIM_F,    ALWAYS,         INIT_NORMAL,  0},
    {ROLE_UP_B,           "mlp.c_fc.bias",                     DIM_F,    DIM_1,    ALWAYS,         INIT_ZERO,    0},
    {ROLE_DOWN_W,         "mlp.c_proj.weight",                 DIM_F,    DIM_C,    ALWAYS,         INIT_NORMAL,  RESIDUAL},
    {ROLE_DOWN_B,         "mlp.c_proj.bias",                   DIM_C,    DIM_1,    ALWAYS,         INIT_ZERO,    0},
};

static const struct tensor_rule GPT2_HEAD[] = {
    {ROLE_FINAL_NORM_W,   "transformer.ln_f.weight",           DIM_C,    DIM_1,    ALWAYS,         INIT_ONE,     0},
    {ROLE_FINAL_NORM_B,   "transformer.ln_f.bias",             DIM_C,    DIM_1,    ALWAYS,         INIT_ZERO,    0},
    {ROLE_LM_HEAD,        "lm_head.weight",                    DIM_V,    DIM_C,    UNTIED,         INIT_NORMAL,  0},
    {ROLE_SCORE_W,        "score.weight",                      DIM_LABELS, DIM_C,  WITH_SCORE,     INIT_NORMAL,  0},
};

static const struct tensor_rule LLAMA_EMBEDDING[] = {
    {ROLE_WTE,            "model.embed_tokens.weight",         DIM_V,    DIM_C,    ALWAYS,         INIT_NORMAL,  0},
};

static const struct tensor_rule LLAMA_BLOCK[] = {
    {ROLE_NORM1_W,        "input_layernorm.weight",            DIM_C,    DIM_1,    NORMS_BEFORE,   INIT_ONE,     0},
    {ROLE_QKV_W,          "self_attn.qkv_proj.weight",         DIM_W,    DIM_C,    FUSED_QKV,      INIT_NORMAL,  0},
    {ROLE_Q_W,            "self_attn.q_proj.weight",           DIM_HD,   DIM_C,    SEPARATE_QKV,   INIT_NORMAL,  0},
    {ROLE_K_W,            "self_attn.k_proj.weight",           DIM_KVD,  DIM_C,    SEPARATE_QKV,   INIT_NORMAL,  JOINED},
    {ROLE_V_W,            "self_attn.v_proj.weight",           DIM_KVD,  DIM_C,    SEPARATE_QKV,   INIT_NORMAL,  JOINED},
    {ROLE_Q_B,            "self_attn.q_proj.bias",             DIM_HD,   DIM_1,    WITH_QKV_BIAS,  INIT_ZERO,    0},
    {ROLE_K_B,            "self_attn.k_proj.bias",             DIM_KVD,  DIM_1,    WITH_QKV_BIAS,  INIT_ZERO,    JOINED},
    {ROLE_V_B,            "self_attn.v_proj.bias",             DIM_KVD,  DIM_1,    WITH_QKV_BIAS,  INIT_ZERO,    JOINED},
    {ROLE_Q_NORM,         "self_attn.q_norm.weight",           DIM_D,    DIM_1,    WITH_HEAD_NORMS, INIT_ONE,    0},
    {ROLE_K_NORM,         "self_attn.k_norm.weight",           DIM_D,    DIM_1,    WITH_HEAD_NORMS, INIT_ONE,    0},
    {ROLE_Q_NORM,         "self_attn.q_norm.weight",           DIM_HD,   DIM_1,    WITH_PROJECTION_NORMS, INIT_ONE, 0},
    {ROLE_K_NORM,         "self_attn.k_norm.weight",           DIM_KVD,  DIM_1,    WITH_PROJECTION_NORMS, INIT_ONE, 0},
    {ROLE_O_W,            "self_attn.o_proj.weight",           DIM_C,    DIM_HD,   ALWAYS,         INIT_NORMAL,  RESIDUAL},
    {ROLE_O_B,            "self_attn.o_proj.bias",             DIM_C,    DIM_1,    WITH_O_BIAS,    INIT_ZERO,    0},
    {ROLE_POST1_W,        "post_attention_layernorm.weight",   DIM_C,    DIM_1,    NORMS_AFTER,    INIT_ONE,     0},
    {ROLE_NORM2_W,        "post_attention_layernorm.weight",   DIM_C,    DIM_1,    NORMS_BEFORE_ONLY, INIT_ONE,  0},
    {ROLE_NORM2_W,        "pre_feedforward_layernorm.weight",  DIM_C,    DIM_1,    NORMS_BOTH,     INIT_ONE,     0},
    {ROLE_POST2_W,        "post_feedforward_layernorm.weight", DIM_C,    DIM_1,    NORMS_AFTER,    INIT_ONE,     0},
    {ROLE_GATE_W,         "mlp.gate_up_proj.weight",           DIM_2F,   DIM_C,    FUSED_GATE_UP,  INIT_NORMAL,  0},
    {ROLE_GATE_W,         "mlp.gate_proj.weight",              DIM_F,    DIM_C,    SEPARATE_GATE_UP, INIT_NORMAL, 0},
    {ROLE_UP_W,           "mlp.up_proj.weight",                DIM_F,    DIM_C,    SEPARATE_GATE_UP, INIT_NORMAL, JOINED},
    {ROLE_GATE_B,         "mlp.gate_proj.bias",                DIM_F,    DIM_1,    WITH_MLP_BIAS,  INIT_ZERO,    0},
    {ROLE_UP_B,           "mlp.up_proj.bias",                  DIM_F,    DIM_1,    WITH_MLP_BIAS,  INIT_ZERO,    JOINED},
    {ROLE_DOWN_W,         "mlp.down_proj.weight",              DIM_C,    DIM_F,    ALWAYS,         INIT_NORMAL,  RESIDUAL},
    {ROLE_DOWN_B,         "mlp.down_proj.bias",                DIM_C,    DIM_1,    WITH_MLP_BIAS,  INIT_ZERO,    0},
};

static const struct tensor_rule BERT_EMBEDDING[] = {
    {ROLE_WTE,            "bert.embeddings.word_embeddings.weight",       DIM_V, DIM_C,  ALWAYS,     INIT_NORMAL,  0},
    {ROLE_WPE,            "bert.embeddings.position_embeddings.weight",   DIM_P, DIM_C,  ALWAYS,     INIT_NORMAL,  0},
    {ROLE_WSE,            "bert.embeddings.token_type_embeddings.weight", DIM_S, DIM_C,  ALWAYS,     INIT_NORMAL,  0},
    {ROLE_EMBED_NORM_W,   "bert.embeddings.LayerNorm.weight",             DIM_C, DIM_1,  ALWAYS,     INIT_ONE,     0},
    {ROLE_EMBED_NORM_B,   "bert.embeddings.LayerNorm.bias",               DIM_C, DIM_1,  ALWAYS,     INIT_ZERO,    0},
};

static const struct tensor_rule BERT_BLOCK[] = {
    {ROLE_Q_W,            "attention.self.query.weight",       DIM_HD,   DIM_C,    ALWAYS,         INIT_NORMAL,  0},
    {ROLE_K_W,            "attention.self.key.weight",         DIM_KVD,  DIM_C,    ALWAYS,         INIT_NORMAL,  JOINED},
    {ROLE_V_W,            "attention.self.value.weight",       DIM_KVD,  DIM_C,    ALWAYS,         INIT_NORMAL,  JOINED},
    {ROLE_Q_B,            "attention.self.query.bias",         DIM_HD,   DIM_1,    ALWAYS,         INIT_ZERO,    0},
    {ROLE_K_B,            "attention.self.key.bias",           DIM_KVD,  DIM_1,    ALWAYS,         INIT_ZERO,    JOINED},
    {ROLE_V_B,            "attention.self.value.bias",         DIM_KVD,  DIM_1,    ALWAYS,         INIT_ZERO,    JOINED},
    {ROLE_O_W,            "attention.output.dense.weight",     DIM_C,    DIM_HD,   ALWAYS,         INIT_NORMAL,  RESIDUAL},
    {ROLE_O_B,            "attention.output.dense.bias",       DIM_C,    DIM_1,    ALWAYS,         INIT_ZERO,    0},
    {ROLE_POST1_W,        "attention.output.LayerNorm.weight", DIM_C,    DIM_1,    ALWAYS,         INIT_ONE,     0},
    {ROLE_POST1_B,        "attention.output.LayerNorm.bias",   DIM_C,    DIM_1,    ALWAYS,         INIT_ZERO,    0},
    {ROLE_UP_W,           "intermediate.dense.weight",         DIM_F,    DIM_C,    ALWAYS,         INIT_NORMAL,  0},
    {ROLE_UP_B,           "intermediate.dense.bias",           DIM_F,    DIM_1,    ALWAYS,         INIT_ZERO,    0},
    {ROLE_DOWN_W,         "output.dense.weight",               DIM_C,    DIM_F,    ALWAYS,         INIT_NORMAL,  RESIDUAL},
    {ROLE_DOWN_B,         "output.dense.bias",                 DIM_C,    DIM_1,    ALWAYS,         INIT_ZERO,    0},
    {ROLE_POST2_W,        "output.LayerNorm.weight",           DIM_C,    DIM_1,    ALWAYS,         INIT_ONE,     0},
    {ROLE_POST2_B,        "output.LayerNorm.bias",             DIM_C,    DIM_1,    ALWAYS,         INIT_ZERO,    0},
};

static const struct tensor_rule BERT_HEAD[] = {
    {ROLE_POOLER_W,       "bert.pooler.dense.weight",          DIM_C,    DIM_C,    ALWAYS,         INIT_NORMAL,  0},
    {ROLE_POOLER_B,       "bert.pooler.dense.bias",            DIM_C,    DIM_1,    ALWAYS,         INIT_ZERO,    0},
    {ROLE_SCORE_W,        "classifier.weight",                 DIM_LABELS, DIM_C,  WITH_SCORE,     INIT_NORMAL,  0},
    {ROLE_SCORE_B,        "classifier.bias",                   DIM_LABELS, DIM_1,  WITH_SCORE,     INIT_ZERO,    0},
};

static const struct tensor_rule LLAMA_HEAD[] = {
    {ROLE_FINAL_NORM_W,   "model.norm.weight",                 DIM_C,    DIM_1,    ALWAYS,         INIT_ONE,     0},
    {ROLE_LM_HEAD,        "lm_head.weight",                    DIM_V,    DIM_C,    UNTIED,         INIT_NORMAL,  0},
    {ROLE_SCORE_W,        "score.weight",                      DIM_LABELS, DIM_C,  WITH_SCORE,     INIT_NORMAL,  0},
};

#define RULES(list) {list, COUNT_OF(list)}
static const struct family_rules
    GPT2_RULES = {"transformer.h.%d.", RULES(GPT2_EMBEDDING), RULES(GPT2_BLOCK), RULES(GPT2_HEAD)},
    LLAMA_RULES = {"model.layers.%d.", RULES(LLAMA_EMBEDDING), RULES(LLAMA_BLOCK), RULES(LLAMA_HEAD)},
    BERT_RULES = {"bert.encoder.layer.%d.", RULES(BERT_EMBEDDING), RULES(BERT_BLOCK), RULES(BERT_HEAD)};
/* clang-format on */

static int64_t tensor_dim(const struct model_desc *desc, enum dim dim)
{
    switch (dim) {
    case DIM_1: return 1;
    case DIM_V: return desc->vocab_size;
    case DIM_P: return desc->max_positions;
    case DIM_C: return desc->hidden_size;
    case DIM_3C: return 3 * desc->hidden_size;
    case DIM_HD: return desc->num_heads * desc->head_dim;
    case DIM_KVD: return desc->num_kv_heads * desc->head_dim;
    case DIM_D: return desc->head_dim;
    case DIM_F: return desc->intermediate_size;
    case DIM_LABELS: return desc->num_labels;
    case DIM_S: return desc->num_types;
    case DIM_W: return (desc->num_heads + 2 * desc->num_kv_heads) * desc->head_dim;
    case DIM_2F: return 2 * desc->intermediate_size;
    }
    BUG("dimension %d", (int)dim);
}

static bool tensor_is_present(const struct model_desc *desc, enum presence presence)
{
    switch (presence) {
    case ALWAYS: return true;
    case FUSED_QKV: return desc->fused_qkv;
    case SEPARATE_QKV: return !desc->fused_qkv;
    case FUSED_GATE_UP: return desc->fused_gate_up;
    case SEPARATE_GATE_UP: return !desc->fused_gate_up;
    case WITH_QKV_BIAS: return desc->qkv_bias;
    case WITH_O_BIAS: return desc->o_bias;
    case WITH_MLP_BIAS: return desc->mlp_bias;
    case WITH_HEAD_NORMS: return desc->qk_norm == QK_NORM_HEADS;
    case WITH_PROJECTION_NORMS: return desc->qk_norm == QK_NORM_PROJECTION;
    case NORMS_BEFORE: return desc->norm_place != NORM_AFTER;
    case NORMS_BEFORE_ONLY: return desc->norm_place == NORM_BEFORE;
    case NORMS_AFTER: return desc->norm_place != NORM_BEFORE;
    case NORMS_BOTH: return desc->norm_place == NORM_BOTH;
    case UNTIED: return !desc->tied && desc->num_labels == 0;
    case WITH_SCORE: return desc->num_labels > 0;
    }
    BUG("presence %d", (int)presence);
}

static void take_tensor(const struct tensor_table *table, struct unit_info *unit, struct tensor_info *tensor)
{
    tensor->offset = tensor->joined ? unit->numel : round_up(unit->numel, tensor_table_align(table));
    unit->numel = tensor->offset + tensor->numel;
    unit->num_tensors++;
}

/* Appends a unit and its tensors to the table, which has room for them. */
static void add_unit(struct tensor_table *table, const struct model_desc *desc, const char *unit_name,
                     const char *prefix, struct unit_rules rules)
{
    struct unit_info *unit = &table->units[table->num_units];
    snprintf(unit->name, sizeof unit->name, "%s", unit_name);
    unit->first_tensor = table->num_tensors;
    for (int i = 0; i < rules.count; i++) {
        const struct tensor_rule *rule = &rules.rules[i];
        if (!tensor_is_present(desc, rule->presence))
            continue;
        struct tensor_info *tensor = &table->tensors[table->num_tensors++];
        int n = snprintf(tensor->name, sizeof tensor->name, "%s%s", prefix, rule->name);
        ASSERT(n > 0 && n < (int)sizeof tensor->name);
        tensor->role = rule->role;
        tensor->unit = table->num_units;
        tensor->ndim = rule->columns == DIM_1 ? 1 : 2;
        tensor->shape[0] = tensor_dim(desc, rule->rows);
        tensor->shape[1] = tensor_dim(desc, rule->columns);
        tensor->numel = tensor->shape[0] * tensor->shape[1];
        tensor->joined = rule->trait == JOINED;
        tensor->number = table->num_tensors - 1;
        tensor->init = rule->init == INIT_ONE && desc->norm_offset == 1 ? INIT_ZERO : rule->init;
        tensor->init_std = rule->init == INIT_NORMAL ? desc->initializer_range : 0;
        if (rule->trait == RESIDUAL && desc->scale_residual_init)
            tensor->init_std /= sqrt(2.0 * (double)desc->num_layers);
        tensor->zero_row = rule->role == ROLE_WTE ? desc->padding_token : -1;
        table->num_params += tensor->numel;
        take_tensor(table, unit, tensor);
    }
    table->num_units++;
}

void tensor_table_build_for(const struct model_desc *desc, bool moment_blocks, struct tensor_table *table)
{
    memset(table, 0, sizeof *table);
    table->moment_blocks = moment_blocks;
    const struct family_rules *rules = desc->family == FAMILY_GPT2   ? &GPT2_RULES
                                       : desc->family == FAMILY_BERT ? &BERT_RULES
                                                                     : &LLAMA_RULES;
    size_t units = (size_t)desc->num_layers + 2;
    size_t tensors = (size_t)rules->embedding.count + (size_t)rules->head.count +
                     (size_t)desc->num_layers * (size_t)rules->block.count;
    table->units = memory_zeroed(units, sizeof *table->units);
    table->tensors = memory_zeroed(tensors, sizeof *table->tensors);
    add_unit(table, desc, "embedding", "", rules->embedding);
    for (int layer = 0; layer < desc->num_layers; layer++) {
        char name[32], prefix[64];
        snprintf(name, sizeof name, "block %d", layer);
        snprintf(prefix, sizeof prefix, rules->block_prefix, layer);
        add_unit(table, desc, name, prefix, rules->block);
    }
    add_unit(table, desc, "head", "", rules->head);
    ASSERT((size_t)table->num_units == units && (size_t)table->num_tensors <= tensors);
}

/* Appends those tensors of the old table's unit to one of the new table that are frozen, or those that are not. */
static void move_tensors(struct tensor_table *table, const struct tensor_table *old, int from, int to, bool frozen)
{
    struct unit_info *unit = &table->units[to];
    unit->first_tensor = table->num_tensors;
    for (int i = 0; i < old->units[from].num_tensors; i++) {
        const struct tensor_info *tensor = &old->tensors[old->units[from].first_tensor + i];
        ASSERT(!tensor->joined || tensor->frozen == tensor[-1].frozen);
        if (tensor->frozen != frozen)
            continue;
        struct tensor_info *moved = &table->tensors[table->num_tensors++];
        *moved = *tensor;
        moved->unit = to;
        table->frozen_params += frozen ? tensor->numel : 0;
        take_tensor(table, unit, moved);
    }
}

/* Appends those of `added` that belong to the unit; number: of the first one. */
static void add_tensors(struct tensor_table *table, int to, const struct tensor_info *added, int num_added, int number)
{
    for (int i = 0; i < num_added; i++) {
        if (added[i].unit != to)
            continue;
        struct tensor_info *tensor = &table->tensors[table->num_tensors++];
        *tensor = added[i];
        tensor->number = number + i;
        tensor->numel = tensor->shape[0] * tensor->shape[1];
        tensor->zero_row = -1;
        table->num_params += tensor->numel;
        take_tensor(table, &table->units[to], tensor);
    }
}

void tensor_table_freeze(struct tensor_table *table, bool (*is_frozen)(void *context, const struct tensor_info *tensor),
                         void *context, const struct tensor_info *added, int num_added)
{
    struct tensor_table old = *table;
    ASSERT(old.num_frozen == 0);
    table->units = memory_zeroed(2 * (size_t)old.num_units, sizeof *table->units);
    table->tensors = memory_zeroed((size_t)(old.num_tensors + num_added), sizeof *table->tensors);
    table->num_tensors = 0;
    for (int i = 0; i < old.num_tensors; i++)
        old.tensors[i].frozen = is_frozen(context, &old.tensors[i]);
    for (int u = 0; u < old.num_units; u++) {
        memcpy(table->units[u].name, old.units[u].name, sizeof old.units[u].name);
        move_tensors(table, &old, u, u, false);
        add_tensors(table, u, added, num_added, old.num_tensors);
    }
    for (int u = 0; u < old.num_units; u++) {
        struct unit_info *unit = &table->units[table->num_units];
        const int first = table->num_tensors;
        move_tensors(table, &old, u, table->num_units, true);
        if (table->num_tensors == first)
            continue;
        snprintf(unit->name, sizeof unit->name, "%.20s, frozen", old.units[u].name);
        table->units[u].frozen = table->num_units++;
        table->num_frozen++;
    }
    tensor_table_release(&old);
}

void tensor_table_release(struct tensor_table *table)
{
    free(table->units);
    free(table->stored);
    free(table->tensors);
    memset(table, 0, sizeof *table);
}

const struct tensor_info *tensor_find_part(const struct tensor_table *table, int unit, enum tensor_role role,
                                           enum tensor_part part)
{
    ASSERT(unit >= 0 && unit < table->num_units);
    const struct tensor_info *tensors = table->tensors + table->units[unit].first_tensor;
    for (int i = 0; i < table->units[unit].num_tensors; i++)
        if (tensors[i].role == role && tensors[i].part == part)
            return &tensors[i];
    return table->units[unit].frozen ? tensor_find_part(table, table->units[unit].frozen, role, part) : NULL;
}

const struct tensor_info *tensor_find(const struct tensor_table *table, int unit, enum tensor_role role)
{
    return tensor_find_part(table, unit, role, PART_BASE);
}

const struct tensor_info *tensor_at(const struct tensor_table *table, int unit, int64_t offset)
{
    ASSERT(unit >= 0 && unit < table->num_units && offset >= 0);
    const struct tensor_info *tensors = table->tensors + table->units[unit].first_tensor;
    for (int i = 0; i < table->units[unit].num_tensors; i++)
        if (offset < tensors[i].offset + tensors[i].numel)
            return offset >= tensors[i].offset ? &tensors[i] : NULL;
    return NULL;
}

/* In [-bound, bound), in steps of bound / 2^23. */
static float init_uniform(uint64_t seed, uint64_t stream, int64_t index, float bound)
{
    const int64_t bits = (int64_t)(philox_u64(seed, stream, (uint64_t)index) >> 40);
    return (float)(bits - (1 << 23)) * 0x1p-23f * bound;
}

void tensor_init_range(const struct tensor_table *table, int tensor, uint64_t seed, int64_t first, int64_t count,
                       float *out)
{
    ASSERT(tensor >= 0 && tensor < table->num_tensors);
    const struct tensor_info *info = &table->tensors[tensor];
    ASSERT(first >= 0 && count >= 0 && first + count <= info->numel);
    const uint64_t stream = 0x696e697400000000u /* "init" */ + (uint64_t)info->number;
    const float std = (float)info->init_std;
    if (info->init != INIT_NORMAL) {
        for (int64_t i = 0; i < count; i++)
            out[i] = info->init == INIT_UNIFORM ? init_uniform(seed, stream, first + i, std)
                     : info->init == INIT_ONE   ? 1.0f
                                                : 0.0f;
        return;
    }
    /* In pieces that stay in the cache between the generator and the scaling. */
    for (int64_t done = 0; done < count;) {
        int64_t n = count - done < 4096 ? count - done : 4096;
        philox_normal(seed, stream, first + done, n, out + done);
        for (int64_t i = done; i < done + n; i++)
            out[i] *= std;
        done += n;
    }
    if (info->zero_row >= 0) {
        int64_t begin = info->zero_row * info->shape[1], end = begin + info->shape[1];
        for (int64_t i = begin > first ? begin : first; i < end && i < first + count; i++)
            out[i - first] = 0.0f;
    }
}

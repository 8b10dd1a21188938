/* SPDX-License-Identifier: Apache-2.0 */
/* model_experts.c: the keys of mixtures of experts. */
#include "core/model/config_reader.h"

/* What families call these, and the defaults of transformers. */
static const struct expert_facts {
    enum model_family family;
    const char *count_keys[2], *inner_key; /* inner_key NULL: intermediate_size */
    int64_t count, per_token, inner;
    double aux_coef;
    bool normalizes, fused;
} EXPERT_FACTS[] = {
    {FAMILY_QWEN3_MOE, {"num_experts", "num_local_experts"}, "moe_intermediate_size", 128, 8, 768, 0.001, false, false},
    {FAMILY_QWEN2_MOE, {"num_experts", NULL}, "moe_intermediate_size", 60, 4, 1408, 0.001, false, false},
    {FAMILY_MIXTRAL, {"num_local_experts", "num_experts"}, NULL, 8, 2, 0, 0.001, true, false},
    {FAMILY_OLMOE, {"num_experts", "num_local_experts"}, NULL, 64, 8, 0, 0.01, false, false},
    {FAMILY_GRANITE_MOE, {"num_local_experts", NULL}, NULL, 8, 2, 0, 0.001, true, true},
    {FAMILY_GPT_OSS, {"num_local_experts", "num_experts"}, NULL, 128, 4, 0, 0.001, true, true},
    {FAMILY_GLM4_MOE, {"n_routed_experts", "num_local_experts"}, "moe_intermediate_size", 128, 8, 1408, 0, true, false},
};

/* The router of DeepSeek-V3, and a shared expert of n times an expert's size. */
static void read_sigmoid_router(struct config_reader *reader, struct experts_desc *experts)
{
    const int64_t shared = reader_int(reader, "n_shared_experts", 1, 0, 64);
    experts->sigmoid = true;
    experts->shared_size = shared * experts->inner_size;
    experts->scale = reader_positive(reader, "routed_scaling_factor", 1);
    experts->groups = reader_int(reader, "n_group", 1, 1, MAX_EXPERT_GROUPS);
    experts->top_groups = reader_int(reader, "topk_group", 1, 1, experts->groups);
    if (experts->count % experts->groups != 0 || experts->count / experts->groups < 2)
        reader_fail(reader, STATUS_DATA, "%" PRId64 " experts cannot be in n_group %" PRId64 " groups of 2 or more",
                    experts->count, experts->groups);
    else if (experts->per_token > experts->top_groups * (experts->count / experts->groups))
        reader_fail(reader, STATUS_DATA,
                    "num_experts_per_tok %" PRId64 " is more than the experts of topk_group %" PRId64 " groups",
                    experts->per_token, experts->top_groups);
}

void model_experts_read(struct config_reader *reader, struct model_desc *desc)
{
    struct experts_desc *experts = &desc->experts;
    const struct expert_facts *facts = EXPERT_FACTS;
    while (facts->family != desc->family) facts++;
    const int64_t count =
        facts->count_keys[1] ? reader_int(reader, facts->count_keys[1], facts->count, 1, MAX_EXPERTS) : facts->count;
    experts->count = reader_int(reader, facts->count_keys[0], count, 1, MAX_EXPERTS);
    experts->per_token = reader_int(reader, "num_experts_per_tok", facts->per_token, 1, experts->count);
    experts->inner_size = facts->inner_key ? reader_int(reader, facts->inner_key, facts->inner, 1, MAX_INTERMEDIATE)
                                           : desc->intermediate_size;
    experts->fused = facts->fused;
    experts->normalize = facts->normalizes;
    experts->scale = 1;
    if (desc->family == FAMILY_QWEN2_MOE) {
        experts->shared_size = reader_int(reader, "shared_expert_intermediate_size", 5632, 1, MAX_INTERMEDIATE);
        experts->shared_gate = true;
    }
    if (desc->family == FAMILY_GPT_OSS) {
        experts->interleaved = true;
        experts->limit = reader_positive(reader, "swiglu_limit", 7);
        experts->alpha = reader_positive(reader, "swiglu_alpha", 1.702);
    }
    if (facts->inner_key || desc->family == FAMILY_OLMOE)
        experts->normalize = reader_bool(reader, "norm_topk_prob", facts->normalizes);
    if (desc->family == FAMILY_GLM4_MOE) {
        read_sigmoid_router(reader, experts); /* transformers has no auxiliary loss for it */
        return;
    }
    const json_t *coef = reader_get(reader, "router_aux_loss_coef");
    char text[64];
    experts->aux_coef = coef ? json_number_value(coef) : facts->aux_coef;
    if (coef && !(json_is_number(coef) && experts->aux_coef >= 0))
        reader_fail(reader, STATUS_DATA, "router_aux_loss_coef must be a number, 0 or more, not %s",
                    reader_show(coef, text));
    experts->has_aux = reader_bool(reader, "output_router_logits", false);
}

enum status model_desc_set_router_losses(struct model_desc *desc, int aux, double aux_coef, double z_coef,
                                         struct error *err)
{
    struct experts_desc *experts = &desc->experts;
    const char *key = aux > 0        ? "output_router_logits"
                      : aux_coef > 0 ? "router_aux_loss_coef"
                      : z_coef > 0   ? "router_z_loss_coef"
                                     : NULL;
    if (key && (!experts->count || experts->sigmoid))
        return error_set(err, STATUS_USAGE, "model.%s: %s", key,
                         experts->count ? "routers with sigmoids (GLM-4) have no such loss"
                                        : "the model has no experts");
    if (aux >= 0) experts->has_aux = aux;
    if (aux_coef >= 0) experts->aux_coef = aux_coef;
    experts->z_coef = z_coef;
    return STATUS_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/model/transformer_adapter.h"
#include "gpu/model/transformer_inputs.h"
#include "gpu/model/transformer_layers.h"

static struct norm embedding_norm(const struct transformer *t)
{
    return (struct norm){ROLE_EMBED_NORM_W, ROLE_EMBED_NORM_B,       t->embedded, t->blocks[0].res1, t->embedded_mean,
                         t->embedded_rstd,  t->embedding_norm_weight};
}

enum status embedding_forward(const struct pass *pass, enum param_pass kind)
{
    const struct transformer *t = pass->transformer;
    struct unit unit;
    TRY(unit_acquire(pass, &unit, 0, kind));
    if (pass->M > 0) {
        void *out = t->embedded ? t->embedded : t->blocks[0].res1;
        PASS_OP(pass, embedding_fwd, .dtype = t->dtype, .M = pass->M, .C = t->C, .out = out,
                .tokens = pass->batch.tokens, .positions = pass->batch.positions, .types = pass->batch.types,
                .wte = unit_param(t, &unit, ROLE_WTE), .wpe = unit_param(t, &unit, ROLE_WPE),
                .wse = unit_param(t, &unit, ROLE_WSE), .scale = t->embedding_scale);
        adapter_embed(pass, &unit, out);
        if (t->embedded) norm_forward(pass, &unit, embedding_norm(t), NULL, NULL);
        if (t->embedding_norm_weight) /* for backward */
            PASS_OP(pass, cast, t->dtype, t->dtype, t->C, t->embedding_norm_weight,
                    unit_param(t, &unit, ROLE_EMBED_NORM_W));
        drop(pass, DROPOUT_EMBEDDING, 0, t->blocks[0].res1, t->blocks[0].res1);
        if (t->I) layer_inputs_forward(pass, &unit);
    }
    unit_release(pass, &unit);
    return STATUS_OK;
}

enum status embedding_backward(const struct pass *pass)
{
    const struct transformer *t = pass->transformer;
    const struct model_desc *desc = t->config.desc;
    struct unit unit = {.index = 0, .kind = PASS_BACKWARD};
    const bool acquires = t->embedding_adapter.a || t->I;
    if (acquires) TRY(unit_acquire(pass, &unit, 0, PASS_BACKWARD));
    TRY(unit_grads(pass, &unit));
    if (pass->M > 0) {
        if (t->I) layer_inputs_backward(pass, &unit);
        const void *dout = drop(pass, DROPOUT_EMBEDDING, 0, t->dres, t->dres);
        if (t->embedded) {
            norm_backward(pass, &unit, embedding_norm(t), t->dbranch, dout, NULL, (struct row_sums){0});
            dout = t->dbranch;
        }
        PASS_OP(pass, embedding_bwd, .dtype = t->dtype, .M = pass->M, .C = t->C, .V = t->V, .P = desc->max_positions,
                .S = desc->num_types, .dwte = unit_grad(t, &unit, ROLE_WTE), .dwpe = unit_grad(t, &unit, ROLE_WPE),
                .dwse = unit_grad(t, &unit, ROLE_WSE), .accumulate_wte = unit.to.adds || desc->tied,
                .accumulate_wpe = unit.to.adds, .accumulate_wse = unit.to.adds, .dout = dout,
                .tokens = pass->batch.tokens, .positions = pass->batch.positions, .types = pass->batch.types,
                .scale = t->embedding_scale, .padding = model_desc_untrained_token(desc));
        adapter_embed_backward(pass, &unit, dout);
    }
    if (acquires) unit_release(pass, &unit);
    return unit_ready(pass, &unit);
}

#include "gpu/model/transformer_embedding.h"

#include "gpu/model/transformer_layers.h"

enum status embedding_forward(const struct pass *pass, enum param_pass kind)
{
    const struct transformer *t = pass->transformer;
    struct unit unit;
    TRY(unit_acquire(pass, &unit, 0, kind));
    if (pass->M > 0) {
        struct embedding_fwd_args args = {
            .dtype = t->dtype,
            .M = pass->M,
            .C = t->C,
            .out = t->blocks[0].res1,
            .tokens = pass->batch.tokens,
            .positions = pass->batch.positions,
            .wte = unit_param(t, &unit, ROLE_WTE),
            .wpe = unit_param(t, &unit, ROLE_WPE),
            .scale = (float)t->config.desc->embedding_multiplier,
        };
        t->device->ops->embedding_fwd(pass->stream, &args);
        drop(pass, DROPOUT_EMBEDDING, 0, args.out, args.out);
    }
    unit_release(pass, &unit);
    return STATUS_OK;
}

enum status embedding_backward(const struct pass *pass)
{
    const struct transformer *t = pass->transformer;
    struct unit unit = {.index = 0, .kind = PASS_BACKWARD};
    TRY(unit_grads(pass, &unit));
    if (pass->M > 0) {
        struct embedding_bwd_args args = {
            .dtype = t->dtype,
            .M = pass->M,
            .C = t->C,
            .V = t->V,
            .P = t->config.desc->max_positions,
            .dwte = unit_grad(t, &unit, ROLE_WTE),
            .dwpe = unit_grad(t, &unit, ROLE_WPE),
            .accumulate_wte = unit.accumulate || t->config.desc->tied,
            .accumulate_wpe = unit.accumulate,
            .dout = drop(pass, DROPOUT_EMBEDDING, 0, t->dres, t->dres),
            .tokens = pass->batch.tokens,
            .positions = pass->batch.positions,
            .scale = (float)t->config.desc->embedding_multiplier,
        };
        t->device->ops->embedding_bwd(pass->stream, &args);
    }
    return unit_ready(pass, &unit);
}

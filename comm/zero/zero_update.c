/* zero_update.c: the optimizer's op on a range of a unit, on the device or, with offload, on the host. */
#include "comm/zero/zero_internal.h"

static void update_by_adam(const struct zero *z, const struct op_table *ops, const struct decay_range *range,
                           const struct update_place *place, struct stream *stream)
{
    const struct optimizer_settings *optimizer = &z->config.optimizer;
    const struct adam_args args = {
        .n = range->count,
        .master = place->master,
        .m = place->m,
        .v = place->v,
        .master_dtype = z->config.master_dtype,
        .moment_dtype = z->config.moment_dtype,
        .rounding = place->rounding,
        .grad = place->grad,
        .grad_dtype = place->grad_dtype,
        .step = place->step,
        .param = place->param,
        .param_dtype = z->config.dtype,
        .eps = (float)optimizer->eps,
        .weight_decay = range->decays ? (float)optimizer->weight_decay : 0,
        .adamw = optimizer->type != OPTIMIZER_ADAM,
    };
    ops->adam(stream, &args);
}

static void update_by_momentum(const struct zero *z, const struct op_table *ops, const struct decay_range *range,
                               const struct update_place *place, struct stream *stream)
{
    const struct optimizer_settings *optimizer = &z->config.optimizer;
    ASSERT(z->config.master_dtype == DTYPE_F32);
    const struct momentum_args args = {
        .rule = optimizer->type,
        .n = range->count,
        .master = place->master,
        .m = place->m,
        .grad = place->grad,
        .grad_dtype = place->grad_dtype,
        .step = place->step,
        .param = place->param,
        .param_dtype = z->config.dtype,
        .weight_decay = range->decays ? (float)optimizer->weight_decay : 0,
        .momentum = (float)optimizer->momentum,
        .dampening = (float)optimizer->dampening,
        .nesterov = optimizer->nesterov,
    };
    ops->momentum(stream, &args);
}

void zero_update_range(const struct zero *z, const struct op_table *ops, const struct decay_range *range,
                       const struct update_place *place, struct stream *stream)
{
    if (optimizer_moments(&z->config.optimizer) == 2)
        update_by_adam(z, ops, range, place, stream);
    else
        update_by_momentum(z, ops, range, place, stream);
}

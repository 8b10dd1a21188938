/* SPDX-License-Identifier: Apache-2.0 */
/* zero_update.c: the optimizer's op on ranges of a unit, on the device or, with offload, on the host. */
#include "comm/zero/zero_internal.h"

static void update_by_momentum(const struct zero *z, const struct op_table *ops, const struct adam_args *adam,
                               struct stream *stream)
{
    const struct optimizer_settings *optimizer = &z->config.optimizer;
    ASSERT(z->config.master_dtype == DTYPE_F32);
    RUN_OP(ops, momentum, stream, .rule = optimizer->type, .n = adam->n, .master = adam->master, .m = adam->m,
           .grad = adam->grad, .grad_dtype = adam->grad_dtype, .step = adam->step, .param = adam->param,
           .param_dtype = adam->param_dtype, .weight_decay = adam->weight_decay, .segments = adam->segments,
           .momentum = (float)optimizer->momentum, .dampening = (float)optimizer->dampening,
           .nesterov = optimizer->nesterov);
}

void zero_update(const struct zero *z, const struct op_table *ops, bool blocks, struct adam_args args,
                 struct stream *stream)
{
    const struct optimizer_settings *optimizer = &z->config.optimizer;
    args.master_dtype = z->config.master_dtype;
    args.moment_dtype = z->config.moment_dtype;
    args.grad_dtype = z->config.grad_dtype;
    args.param_dtype = z->config.dtype;
    args.eps = (float)optimizer->eps;
    args.adamw = optimizer->type != OPTIMIZER_ADAM;
    if (blocks)
        RUN_OP(ops, adam8, stream, .n = args.n, .master = args.master, .m = args.m, .v = args.v, .grad = args.grad,
               .grad_dtype = args.grad_dtype, .step = args.step, .param = args.param, .param_dtype = args.param_dtype,
               .eps = args.eps, .weight_decay = args.weight_decay, .segments = args.segments);
    else if (optimizer_moments(optimizer) == 2)
        ops->adam(stream, &args);
    else
        update_by_momentum(z, ops, &args, stream);
}

float zero_weight_decay(const struct zero *z, const struct decay_range *range)
{
    return range->decays ? (float)z->config.optimizer.weight_decay : 0;
}

void zero_update_joined(const struct zero *z, const struct decay_range *range, struct adam_args args,
                        struct stream *stream)
{
    const ptrdiff_t first = range - z->ranges, last = first + range->joined - 1;
    ASSERT(range->joined > 0);
    args.n = z->segments[last].end;
    args.weight_decay = zero_weight_decay(z, range);
    args.segments = range->joined > 1 ? &z->range_segments[first] : NULL;
    zero_update(z, z->device->ops, range->blocks, args, stream);
}

/* Whether the range after `range` lies beside it in every array, at a place where a segment may begin. */
static bool update_joins(const struct zero *z, int unit, const struct decay_range *first,
                         const struct decay_range *range)
{
    const struct decay_range *next = range + 1;
    if (range->blocks != next->blocks ||
        (z->config.table->moment_blocks && next->offset % z->config.layout->slice[unit] == 0))
        return false;
    return !range->matrix && !next->matrix && next->offset == range->offset + range->count &&
           (next->offset - first->offset) % DECAY_ALIGN == 0 &&
           (!z->muon.on || next->second == range->second + range->count);
}

void zero_join_ranges(struct zero *z)
{
    for (int u = 0; u < z->units; u++) {
        struct decay_range *first = z->unit[u].ranges;
        for (struct decay_range *range = first; range < z->unit[u + 1].ranges; range++) {
            range->joined = 0;
            if (range > z->unit[u].ranges && !update_joins(z, u, first, range - 1)) first = range;
            first->joined++;
            z->segments[range - z->ranges] =
                (struct decay_segment){range->offset + range->count - first->offset, zero_weight_decay(z, range)};
        }
    }
}

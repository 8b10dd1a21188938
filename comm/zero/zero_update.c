/* zero_update.c: the optimizer's op on ranges of a unit, on the device or, with offload, on the host. */
#include "comm/zero/zero_internal.h"

/* What an op of the optimizer updates. */
struct update_part {
    int64_t count;
    float weight_decay;
    const struct decay_segment *segments; /* not NULL: they have the weight decay */
};

static void update_by_adam(const struct zero *z, const struct op_table *ops, const struct update_part *part,
                           const struct update_operands *operands, struct stream *stream)
{
    const struct optimizer_settings *optimizer = &z->config.optimizer;
    const struct adam_args args = {
        .n = part->count,
        .master = operands->master,
        .m = operands->m,
        .v = operands->v,
        .master_dtype = z->config.master_dtype,
        .moment_dtype = z->config.moment_dtype,
        .rounding = operands->rounding,
        .grad = operands->grad,
        .grad_dtype = operands->grad_dtype,
        .step = operands->step,
        .param = operands->param,
        .param_dtype = z->config.dtype,
        .eps = (float)optimizer->eps,
        .weight_decay = part->weight_decay,
        .segments = part->segments,
        .adamw = optimizer->type != OPTIMIZER_ADAM,
    };
    ops->adam(stream, &args);
}

static void update_by_momentum(const struct zero *z, const struct op_table *ops, const struct update_part *part,
                               const struct update_operands *operands, struct stream *stream)
{
    const struct optimizer_settings *optimizer = &z->config.optimizer;
    ASSERT(z->config.master_dtype == DTYPE_F32);
    const struct momentum_args args = {
        .rule = optimizer->type,
        .n = part->count,
        .master = operands->master,
        .m = operands->m,
        .grad = operands->grad,
        .grad_dtype = operands->grad_dtype,
        .step = operands->step,
        .param = operands->param,
        .param_dtype = z->config.dtype,
        .weight_decay = part->weight_decay,
        .segments = part->segments,
        .momentum = (float)optimizer->momentum,
        .dampening = (float)optimizer->dampening,
        .nesterov = optimizer->nesterov,
    };
    ops->momentum(stream, &args);
}

static void update_part(const struct zero *z, const struct op_table *ops, const struct update_part *part,
                        const struct update_operands *operands, struct stream *stream)
{
    if (optimizer_moments(&z->config.optimizer) == 2)
        update_by_adam(z, ops, part, operands, stream);
    else
        update_by_momentum(z, ops, part, operands, stream);
}

static float decay_of(const struct zero *z, const struct decay_range *range)
{
    return range->decays ? (float)z->config.optimizer.weight_decay : 0;
}

void zero_update_range(const struct zero *z, const struct op_table *ops, const struct decay_range *range,
                       const struct update_operands *operands, struct stream *stream)
{
    const struct update_part part = {range->count, decay_of(z, range), NULL};
    update_part(z, ops, &part, operands, stream);
}

void zero_update_joined(const struct zero *z, const struct decay_range *range, const struct update_operands *operands,
                        struct stream *stream)
{
    const ptrdiff_t first = range - z->ranges, last = first + range->joined - 1;
    const struct update_part part = {z->segments[last].end, decay_of(z, range), &z->range_segments[first]};
    ASSERT(range->joined > 0);
    if (range->joined == 1)
        zero_update_range(z, z->device->ops, range, operands, stream);
    else
        update_part(z, z->device->ops, &part, operands, stream);
}

/* Whether the range after `range` lies beside it in every array, at a place where a segment may begin. */
static bool joins(const struct zero *z, const struct decay_range *first, const struct decay_range *range)
{
    const struct decay_range *next = range + 1;
    return !range->matrix && !next->matrix && next->offset == range->offset + range->count &&
           (next->offset - first->offset) % DECAY_ALIGN == 0 &&
           (!z->muon.on || next->second == range->second + range->count);
}

void zero_join_ranges(struct zero *z)
{
    for (int u = 0; u < z->units; u++) {
        struct decay_range *first = &z->ranges[z->first_range[u]];
        for (int i = z->first_range[u]; i < z->first_range[u + 1]; i++) {
            struct decay_range *range = &z->ranges[i];
            range->joined = 0;
            if (i == z->first_range[u] || !joins(z, first, range - 1))
                first = range;
            first->joined++;
            z->segments[i] = (struct decay_segment){range->offset + range->count - first->offset, decay_of(z, range)};
        }
    }
}

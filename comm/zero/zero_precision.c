/* zero_precision.c: gradients in other types than fp32: on their way to their owner (communication_data_type), and
 * where they are accumulated (grad_accum_dtype). A gradient is computed in fp32 and rounded in at most two places:
 *
 *     communication    each rank's contribution is rounded once; they are added up in fp32, in rank order
 *     the accumulator  in bf16: after a micro-batch's gradient, or sum over the ranks, was added to it in fp32
 *
 * With accumulators in bf16 gradients are computed in buckets. Stages 0 and 1 add those of all micro-batches but the
 * last to the accumulator, and in the last the accumulator to the bucket, so that the sum is reduced unrounded. With
 * one micro-batch a gradient is rounded in the same places at every stage.
 *
 * With world 1 products add the gradients of the blocks' matrices to the accumulator themselves (matrix_sums): in fp32,
 * rounded once. An embedding's, and a head's in chunks, are sums of several ops. */
#include "comm/zero/zero_internal.h"

void zero_comm_buffers_layout(struct zero *z, const int64_t room[SLOTS], struct arena *shared)
{
    for (int p = 0; p < SLOTS && zero_narrow_comm(z); p++)
        z->comm_buffers[p].memory = arena_take(shared, MEM_COMM, (size_t)room[p] * dtype_size(z->config.comm_dtype));
}

const void *zero_fill_comm_buffer(struct zero *z, int slot, int unit, const float *grads, struct stream *stream)
{
    struct comm_buffer *buffer = &z->comm_buffers[slot];
    struct accumulate_args args = {.dst_dtype = z->config.comm_dtype,
                                   .src_dtype = DTYPE_F32,
                                   .n = shard_padded(z->config.layout, unit),
                                   .dst = buffer->memory,
                                   .src = grads,
                                   .scale = zero_grad_factor(z)};
    stream_wait(stream, buffer->sent);
    z->device->ops->accumulate(stream, &args);
    return buffer->memory;
}

static void fold_range(struct zero *z, int unit, float *bucket, bool to_bucket, int64_t first, int64_t count,
                       struct stream *stream)
{
    void *accumulator = zero_grad(z, unit, first);
    struct accumulate_args args = {.dst_dtype = to_bucket ? DTYPE_F32 : z->config.grad_dtype,
                                   .src_dtype = to_bucket ? z->config.grad_dtype : DTYPE_F32,
                                   .n = count,
                                   .dst = to_bucket ? bucket + first : accumulator,
                                   .src = to_bucket ? accumulator : bucket + first,
                                   .scale = 1,
                                   .accumulate = z->micro > 0};
    z->device->ops->accumulate(stream, &args);
}

/* Those not zero_is_summed(), neighbours in one go. Gaps stay zero. */
static void fold_others(struct zero *z, int unit, float *bucket, struct stream *stream)
{
    const struct unit_info *info = &z->config.table->units[unit];
    const struct tensor_info *tensors = z->config.table->tensors + info->first_tensor;
    for (int t = 0; t < info->num_tensors; t++) {
        const int64_t first = tensors[t].offset;
        if (zero_is_summed(z, &tensors[t]))
            continue;
        while (t + 1 < info->num_tensors && !zero_is_summed(z, &tensors[t + 1]) &&
               tensors[t].offset + tensors[t].numel == tensors[t + 1].offset)
            t++;
        fold_range(z, unit, bucket, false, first, tensors[t].offset + tensors[t].numel - first, stream);
    }
}

void zero_fold_grads(struct zero *z, int unit, float *bucket, bool to_bucket, struct stream *stream)
{
    const bool summed = zero_gives_matrix_sums(z, unit);
    ASSERT(!to_bucket || !summed);
    if (summed)
        fold_others(z, unit, bucket, stream);
    else if (!to_bucket || z->micro > 0)
        fold_range(z, unit, bucket, to_bucket, 0, shard_padded(z->config.layout, unit), stream);
}

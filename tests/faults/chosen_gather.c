/* SPDX-License-Identifier: Apache-2.0 */
/* chosen_gather.c: a collective that depends on data, planted in instrumented builds, whose linker puts
 * __wrap_zero_verbs() in the place of zero_verbs().
 *
 * ZTRAIN_CHOSEN_GATHER=EXPERT: a rank whose tokens choose that expert gathers the first block once more, as a trainer
 * does that gathers an expert's parameters where it is used. */
#include "comm/zero/zero_internal.h"

enum { BLOCK = 1 };

const struct param_verbs *__real_zero_verbs(struct zero *zero);
const struct param_verbs *__wrap_zero_verbs(struct zero *zero);

static struct {
    struct zero *zero;
    struct op_table ops; /* the device's, with route below */
    void (*route)(struct stream *stream, const struct route_args *args);
    int expert;
} planted;

static void gather_again(struct zero *z)
{
    const size_t bytes = (size_t)shard_padded(z->config.layout, BLOCK) * dtype_size(z->config.dtype);
    void *memory;
    struct error err;
    if (device_alloc(z->device, bytes, &memory, &err) != STATUS_OK) abort();
    zero_gather(z, COMM_PARAMETERS, BLOCK, zero_param(z, BLOCK, zero_own(z, BLOCK)), memory, z->config.dtype);
    stream_sync(z->stream);
    device_free(z->device, memory, bytes);
}

static void route(struct stream *stream, const struct route_args *args)
{
    planted.route(stream, args);
    const size_t bytes = (size_t)(args->M * args->k) * sizeof *args->experts;
    int32_t *experts = memory_zeroed(1, bytes);
    bool chosen = false;
    stream_copy(stream, experts, args->experts, bytes);
    stream_sync(stream);
    for (int64_t i = 0; i < args->M * args->k; i++) chosen |= experts[i] == planted.expert;
    free(experts);
    if (chosen) gather_again(planted.zero);
}

const struct param_verbs *__wrap_zero_verbs(struct zero *zero)
{
    const char *expert = getenv("ZTRAIN_CHOSEN_GATHER");
    if (expert && planted.zero != zero) {
        planted.zero = zero;
        planted.ops = *zero->device->ops;
        planted.route = planted.ops.route;
        planted.expert = atoi(expert);
        planted.ops.route = route;
        zero->device->ops = &planted.ops;
    }
    return __real_zero_verbs(zero);
}

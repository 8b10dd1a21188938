/* ops_profile.c: time and work by op, measured by a table that wraps the device's own.
 *
 * While the profile is on, device->ops points at `profiled`, whose entries time the wrapped op between two
 * stream_sync() and add what it had to compute (FLOPs: multiply and add count as two; only ops with matrix products
 * have any) and the bytes that it must move at least once. One thread calls ops while the profile is on. */
#include "core/clock.h"
#include "core/memory.h"
#include "gpu/device_backend.h"
#include "gpu/ops.h"

#include <stdlib.h>
#include <string.h>

struct ops_profiler {
    const struct op_table *inner; /* the device's own table */
    struct op_profile entries[OPS_COUNT];
};

struct work {
    double flops, bytes;
};

static double size_of(enum dtype dtype)
{
    return (double)dtype_size(dtype);
}

/* ---- the work of each op ------------------------------------------------- */

static struct work work_embedding_fwd(const struct embedding_fwd_args *a)
{
    return (struct work){0, (double)a->M * (double)a->C * size_of(a->dtype) * (a->wpe ? 3 : 2)};
}

static struct work work_embedding_bwd(const struct embedding_bwd_args *a)
{
    double rows = (double)a->M * (double)a->C;
    double zeroed = (a->accumulate_wte ? 0.0 : (double)a->V) + (a->dwpe && !a->accumulate_wpe ? (double)a->P : 0.0);
    return (struct work){0, rows * size_of(a->dtype) + rows * 8 * (a->dwpe ? 2 : 1) + zeroed * (double)a->C * 4};
}

static struct work work_norm_fwd(const struct norm_fwd_args *a)
{
    return (struct work){0, (double)a->M * (double)a->C * size_of(a->dtype) * (a->delta ? 4 : 2)};
}

static struct work work_norm_bwd(const struct norm_bwd_args *a)
{
    return (struct work){0, (double)a->M * (double)a->C * size_of(a->dtype) * (a->dres ? 4 : 3)};
}

static struct work work_linear(enum dtype dtype, int64_t M, int64_t N, int64_t K, double output_bytes)
{
    double m = (double)M, n = (double)N, k = (double)K;
    return (struct work){2 * m * n * k, (m * n + n * k + m * k) * size_of(dtype) + output_bytes};
}

static struct work work_linear_fwd(const struct linear_fwd_args *a)
{
    return work_linear(a->dtype, a->M, a->N, a->K, a->gelu ? (double)a->M * (double)a->N * size_of(a->dtype) : 0);
}

static struct work work_linear_bwd_input(const struct linear_bwd_input_args *a)
{
    return work_linear(a->dtype, a->M, a->N, a->K, a->gelu_aux ? (double)a->M * (double)a->K * size_of(a->dtype) : 0);
}

static struct work work_linear_bwd_weight(const struct linear_bwd_weight_args *a)
{
    return work_linear(a->dtype, a->M, a->N, a->K, a->accumulate ? (double)a->N * (double)a->K * 4 : 0);
}

static struct work work_head_norm_fwd(const struct head_norm_fwd_args *a)
{
    return (struct work){0, (double)a->M * (double)(a->heads * a->D) * size_of(a->dtype) * 2};
}

static struct work work_head_norm_bwd(const struct head_norm_bwd_args *a)
{
    return (struct work){0, (double)a->M * (double)(a->heads * a->D) * size_of(a->dtype) * 3};
}

static struct work work_rope(const struct rope_args *a)
{
    return (struct work){0, (double)a->M * (double)(a->heads * a->D) * size_of(a->dtype) * 2};
}

/* Pairs of query and key that see each other, upper bound M · min(longest sequence, window), halved for causality. */
static double attention_pairs(int64_t M, int32_t max_seq, int64_t window)
{
    if (window > 0 && window < max_seq)
        return (double)M * (double)window;
    return (double)M * ((double)max_seq + 1) / 2;
}

static struct work work_attention_fwd(const struct attention_fwd_args *a)
{
    double pairs = attention_pairs(a->M, a->max_seq, a->window) * (double)(a->H * a->D);
    return (struct work){4 * pairs, (double)a->M * (double)(2 * (a->H + a->KV) * a->D) * size_of(a->dtype)};
}

static struct work work_attention_bwd(const struct attention_bwd_args *a)
{
    double pairs = attention_pairs(a->M, a->max_seq, a->window) * (double)(a->H * a->D);
    return (struct work){10 * pairs, (double)a->M * (double)(4 * (a->H + a->KV) * a->D) * size_of(a->dtype)};
}

static struct work work_swiglu_fwd(const struct swiglu_fwd_args *a)
{
    return (struct work){0, (double)a->M * (double)a->F * size_of(a->dtype) * 3};
}

static struct work work_swiglu_bwd(const struct swiglu_bwd_args *a)
{
    return (struct work){0, (double)a->M * (double)a->F * size_of(a->dtype) * 5};
}

static struct work work_cross_entropy(const struct cross_entropy_args *a)
{
    double n = (double)a->M * (double)a->V;
    return (struct work){0, n * size_of(a->logits_dtype) + (a->dlogits ? n * size_of(a->dtype) : 0)};
}

static struct work work_add(const struct add_args *a)
{
    return (struct work){0, (double)a->n * size_of(a->dtype) * 3};
}

static struct work work_cast(const struct cast_args *a)
{
    return (struct work){0, (double)a->n * (size_of(a->dst_dtype) + size_of(a->src_dtype))};
}

static struct work work_sumsq(const struct sumsq_args *a)
{
    return (struct work){0, (double)a->n * 4};
}

static struct work work_decide_step(const struct decide_step_args *a)
{
    return (struct work){0, (double)a->world * (a->units + 1) * 8};
}

static struct work work_find_nonfinite(const struct find_nonfinite_args *a)
{
    (void)a; /* nothing is read but in a step that is skipped */
    return (struct work){0, 0};
}

static struct work work_adam(const struct adam_args *a)
{
    return (struct work){0, (double)a->n * (28 + (a->param ? size_of(a->param_dtype) : 0))};
}

/* ---- the wrapping table -------------------------------------------------- */

static struct ops_profiler **profiler_of(struct device *device)
{
    return &((struct device_private *)device->private_)->profiler;
}

#define OPS_INDEX(name) INDEX_##name,
enum { OPS_LIST(OPS_INDEX) };

#define OPS_PROFILED(op)                                                           \
    static void profiled_##op(struct stream *stream, const struct op##_args *args) \
    {                                                                              \
        struct ops_profiler *profiler = *profiler_of(stream_device(stream));       \
        struct op_profile *entry = &profiler->entries[INDEX_##op];                 \
        struct work work = work_##op(args);                                        \
        stream_sync(stream);                                                       \
        double start = seconds_now();                                              \
        profiler->inner->op(stream, args);                                         \
        stream_sync(stream);                                                       \
        entry->seconds += seconds_now() - start;                                   \
        entry->calls++;                                                            \
        entry->flops += work.flops;                                                \
        entry->bytes += work.bytes;                                                \
    }
OPS_LIST(OPS_PROFILED)

#define OPS_PROFILED_MEMBER(op) .op = profiled_##op,
static const struct op_table profiled = {OPS_LIST(OPS_PROFILED_MEMBER)};

#define OPS_NAME(op) #op,
static const char *const names[] = {OPS_LIST(OPS_NAME)};

void ops_profile_enable(struct device *device, bool on)
{
    struct ops_profiler **profiler = profiler_of(device);
    if (on == (*profiler != NULL))
        return;
    if (on) {
        *profiler = memory_zeroed(1, sizeof **profiler);
        (*profiler)->inner = device->ops;
        device->ops = &profiled;
    } else {
        device->ops = (*profiler)->inner;
        free(*profiler);
        *profiler = NULL;
    }
}

int ops_profile_read(struct device *device, struct op_profile *out, int max)
{
    struct ops_profiler *profiler = *profiler_of(device);
    int count = 0;
    if (!profiler)
        return 0;
    for (int i = 0; i < OPS_COUNT && count < max; i++) {
        if (!profiler->entries[i].calls)
            continue;
        out[count] = profiler->entries[i];
        out[count++].name = names[i];
    }
    memset(profiler->entries, 0, sizeof profiler->entries);
    return count;
}

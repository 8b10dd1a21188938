/* ops_cpu.c: the choice of op table, and the workspace that its ops need. */
#include "gpu/ops_cpu.h"

extern const struct op_table ops_cpu_baseline;
#if defined(__x86_64__)
extern const struct op_table ops_cpu_avx2, ops_cpu_avx512;
#endif

const struct op_table *ops_cpu_table(enum cpu_isa isa)
{
#if defined(__x86_64__)
    if (isa == CPU_ISA_AVX512)
        return &ops_cpu_avx512;
    if (isa == CPU_ISA_AVX2)
        return &ops_cpu_avx2;
#endif
    (void)isa;
    return &ops_cpu_baseline;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

size_t op_workspace_bytes(struct device *device, const struct op_limits *l)
{
    size_t threads = (size_t)device->threads, bytes = 0;
    size_t widest = max_size((size_t)l->C, (size_t)l->D) + 16;
    bytes = max_size(bytes, threads * 2 * widest * sizeof(float));   /* norm_bwd */
    bytes = max_size(bytes, (size_t)l->max_tokens * sizeof(double)); /* cross_entropy */
    bytes = max_size(bytes, threads * (2 * (size_t)l->max_seq * (size_t)l->D + (size_t)l->D + 32) * sizeof(float));
    bytes = max_size(bytes, (size_t)3 * 1024 * 1024 * sizeof(float)); /* products */
    return scratch_size(bytes) + 256;
}

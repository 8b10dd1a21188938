/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cpu/ops_cpu.h"

#include "gpu/cpu/ops_cpu_scratch.h"
#include "gpu/cpu/ops_cpu_team.h"

const struct ops_cpu *ops_cpu_of(enum cpu_isa isa)
{
#if defined(__x86_64__)
    if (isa == CPU_ISA_AVX512) return &ops_cpu_avx512;
    if (isa == CPU_ISA_AVX2) return &ops_cpu_avx2;
#endif
    (void)isa;
    return &ops_cpu_baseline;
}

size_t ops_cpu_workspace_bytes(struct device *device, const struct op_limits *l)
{
    size_t threads = (size_t)device->threads, bytes = 0;
    size_t widest = (size_t)max64(max64(l->C, l->D), max64(l->max_head_norm, l->H)) + SUMS_GRAIN;
    bytes = max_size(bytes, ROW_PARTS_MAX * NORM_SUMS * widest * sizeof(float)); /* norm_bwd, attention_sink_bwd */
    bytes = max_size(bytes, (size_t)l->max_tokens * sizeof(double));             /* cross_entropy */
    if (l->KV > 0 && l->D > 0) {
        size_t packed = max_size((size_t)ATTENTION_UNIT_FLOATS(l->D, l->max_seq, l->H / l->KV), ATTENTION_BATCH_FLOATS);
        bytes = max_size(bytes, (threads * (size_t)ATTENTION_THREAD_FLOATS(l->D) + packed) * sizeof(float) + 128);
    }
    if (l->delta_rule.M > 0) {
        const struct delta_rule_fwd_args *a = &l->delta_rule;
        const size_t channels = (size_t)(2 * a->Hk * a->Dk + a->Hv * a->Dv + SUMS_GRAIN);
        const size_t sums = (size_t)(a->num_seqs * a->Hv * 2) * sizeof(double) + 64;
        bytes = max_size(bytes, ROW_PARTS_MAX * CONV_TAPS * channels * sizeof(float)); /* causal_conv_bwd */
        bytes = max_size(bytes, sums + threads * (size_t)delta_thread_floats(a, l->backward) * sizeof(float));
    }
    if (l->max_expert_rows > 0) bytes = max_size(bytes, threads * GROUPED_THREAD_FLOATS * sizeof(float));
    bytes = max_size(bytes, (size_t)GEMM_SCRATCH_FLOATS * sizeof(float));
    return scratch_size(bytes) + 256;
}

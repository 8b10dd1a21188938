/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_all_kernels.h: the ops of one instruction-set level. Each cpu_kernels_*.c names them OPS_CPU_LEVEL. */
#include "core/heartbeat.h"
#include "core/quantization/dequantize.h"
#include "gpu/cpu/device_cpu.h"
#include "gpu/cpu/kernels/cpu_vector.h"
#include "gpu/cpu/ops_cpu.h"
#include "gpu/cpu/ops_cpu_scratch.h"
#include "gpu/cpu/ops_cpu_team.h"
#include "gpu/decide_step.h"

/* Over `size` elements each thread does the last arguments, a statement, for its `part` of 0 … n-1, which is cut at
 * multiples of `grain`. OP_IN_PARTS: in op_NAME(), which it defines. */
#define IN_PARTS(size, n, grain, ...)                       \
    do {                                                    \
        const bool is_shared = (size) > WORTH_THREADS;      \
        _Pragma("omp parallel if (is_shared)")              \
        {                                                   \
            const struct range part = range_mine(n, grain); \
            __VA_ARGS__;                                    \
        }                                                   \
    } while (0)
#define OP_IN_PARTS(name, size, n, grain, ...)                                \
    static void op_##name(struct stream *stream, const struct name##_args *a) \
    {                                                                         \
        (void)stream;                                                         \
        heartbeat_beat();                                                     \
        IN_PARTS(size, n, grain, __VA_ARGS__);                                \
    }
#define OP_OF_ELEMENTS(name, ...) OP_IN_PARTS(name, a->n, a->n, 64, __VA_ARGS__)

/* In the order of their calls. */
/* clang-format off */
#include "gpu/cpu/kernels/cpu_embedding.h"
#include "gpu/cpu/kernels/cpu_pointwise.h"
#include "gpu/cpu/kernels/cpu_loss.h"
#include "gpu/cpu/kernels/cpu_optimizer.h"
#include "gpu/cpu/kernels/cpu_adam8.h"
#include "gpu/cpu/kernels/cpu_norm.h"
#include "gpu/cpu/kernels/cpu_gemm_units.h"
#include "gpu/cpu/kernels/cpu_gemm_amx.h"
#include "gpu/cpu/kernels/cpu_gemm_pack.h"
#include "gpu/cpu/kernels/cpu_gemm_micro.h"
#include "gpu/cpu/kernels/cpu_gemm.h"
#include "gpu/cpu/kernels/cpu_gemm_row.h"
#include "gpu/cpu/kernels/cpu_linear.h"
#include "gpu/cpu/kernels/cpu_grouped.h"
#include "gpu/cpu/kernels/cpu_experts.h"
#include "gpu/cpu/kernels/cpu_muon.h"
#include "gpu/cpu/kernels/cpu_attention.h"
#include "gpu/cpu/kernels/cpu_attention_decode.h"
#include "gpu/cpu/kernels/cpu_attention_sink.h"
#include "gpu/cpu/kernels/cpu_causal_conv.h"
#include "gpu/cpu/kernels/cpu_delta_rule.h"
#include "gpu/cpu/kernels/cpu_gemm_rates.h"
/* clang-format on */

#define OPS_CPU_MEMBER(op) .op = op_##op,
const struct ops_cpu OPS_CPU_LEVEL = {.table = {OPS_LIST(OPS_CPU_MEMBER)}, .micro_run = rates_run};

/* ops_cpu_table.h: puts the templates together into one instruction-set level's ops. Included once by each
 * ops_cpu_isa_*.c, which names them OPS_CPU_LEVEL. */
#include "gpu/cpu/ops_cpu.h"
#include "gpu/cpu/ops_cpu_vector.h"

#include "gpu/cpu/ops_cpu_pointwise.h"

#include "gpu/cpu/ops_cpu_norm.h"

#include "gpu/cpu/gemm_cpu_kernels.h"

#include "gpu/cpu/ops_cpu_linear.h"

#include "gpu/cpu/ops_cpu_attention.h"

#include "gpu/cpu/gemm_cpu_rates.h"

#define OPS_CPU_MEMBER(op) .op = op_##op,
extern const struct ops_cpu_level OPS_CPU_LEVEL;
const struct ops_cpu_level OPS_CPU_LEVEL = {.table = {OPS_LIST(OPS_CPU_MEMBER)}, .micro_run = micro_run};

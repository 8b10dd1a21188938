/* ops_cpu_table.h: puts the templates together into one instruction-set level's op table. Included once by each
 * ops_cpu_isa_*.c, which names the table OPS_CPU_TABLE. */
#include "gpu/ops_cpu.h"
#include "gpu/ops_cpu_vector.h"

#include "gpu/ops_cpu_pointwise.h"

#include "gpu/ops_cpu_norm.h"

#include "gpu/gemm_cpu_kernels.h"

#include "gpu/ops_cpu_linear.h"

#include "gpu/ops_cpu_attention.h"

#define OPS_CPU_MEMBER(op) .op = op_##op,
extern const struct op_table OPS_CPU_TABLE;
const struct op_table OPS_CPU_TABLE = {OPS_LIST(OPS_CPU_MEMBER)};

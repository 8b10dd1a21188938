/* ops_cpu_table.h: puts the templates together into one instruction-set level's ops. Included once by each
 * ops_cpu_isa_*.c, which names them OPS_CPU_LEVEL. */
#include "core/heartbeat.h"
#include "core/round_up.h"
#include "gpu/cpu/device_cpu_state.h"
#include "gpu/cpu/ops_cpu_level.h"
#include "gpu/cpu/ops_cpu_scratch.h"
#include "gpu/cpu/ops_cpu_team.h"
#include "gpu/cpu/ops_cpu_vector.h"

#include <stdatomic.h>

#include "gpu/cpu/ops_cpu_embedding.h"

#include "gpu/cpu/ops_cpu_pointwise.h"

#include "gpu/cpu/ops_cpu_loss.h"

#include "gpu/cpu/ops_cpu_optimizer.h"

#include "gpu/cpu/ops_cpu_norm.h"

#include "gpu/cpu/gemm_cpu_units.h"

#include "gpu/cpu/gemm_cpu_amx.h"

#include "gpu/cpu/gemm_cpu_pack.h"

#include "gpu/cpu/gemm_cpu_micro.h"

#include "gpu/cpu/gemm_cpu_product.h"

#include "gpu/cpu/gemm_cpu_row.h"

#include "gpu/cpu/ops_cpu_linear.h"

#include "gpu/cpu/ops_cpu_muon.h"

#include "gpu/cpu/ops_cpu_attention.h"

#include "gpu/cpu/ops_cpu_decode.h"

#include "gpu/cpu/gemm_cpu_rates.h"

#define OPS_CPU_MEMBER(op) .op = op_##op,
const struct ops_cpu_level OPS_CPU_LEVEL = {.table = {OPS_LIST(OPS_CPU_MEMBER)}, .micro_run = micro_run};

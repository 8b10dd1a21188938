/* cpu_all_kernels.h: puts the templates together into one instruction-set level's ops. Included once by each
 * cpu_kernels_*.c, which names them OPS_CPU_LEVEL. */
#include "core/heartbeat.h"
#include "core/round_up.h"
#include "gpu/cpu/device_cpu_state.h"
#include "gpu/cpu/kernels/cpu_vector.h"
#include "gpu/cpu/ops_cpu_level.h"
#include "gpu/cpu/ops_cpu_scratch.h"
#include "gpu/cpu/ops_cpu_team.h"

#include <stdatomic.h>

#include "gpu/cpu/kernels/cpu_embedding.h"

#include "gpu/cpu/kernels/cpu_pointwise.h"

#include "gpu/cpu/kernels/cpu_loss.h"

#include "gpu/cpu/kernels/cpu_optimizer.h"

#include "gpu/cpu/kernels/cpu_norm.h"

#include "gpu/cpu/kernels/cpu_gemm_units.h"

#include "gpu/cpu/kernels/cpu_gemm_amx.h"

#include "gpu/cpu/kernels/cpu_gemm_pack.h"

#include "gpu/cpu/kernels/cpu_gemm_micro.h"

#include "gpu/cpu/kernels/cpu_gemm.h"

#include "gpu/cpu/kernels/cpu_gemm_row.h"

#include "gpu/cpu/kernels/cpu_linear.h"

#include "gpu/cpu/kernels/cpu_muon.h"

#include "gpu/cpu/kernels/cpu_attention.h"

#include "gpu/cpu/kernels/cpu_attention_decode.h"

#include "gpu/cpu/kernels/cpu_gemm_rates.h"

#define OPS_CPU_MEMBER(op) .op = op_##op,
const struct ops_cpu_level OPS_CPU_LEVEL = {.table = {OPS_LIST(OPS_CPU_MEMBER)}, .micro_run = micro_run};

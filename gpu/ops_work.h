/* ops_work.h: the work of each op, computed from its arguments alone, for the profile and for plans.
 *
 * FLOPs are those of matrix products only; a multiply-add counts as two. Bytes are those that the op must read from and
 * write to the device's memory at least once, each operand in its dtype; repeated reads and scratch memory do not
 * count. */
#ifndef ZTRAIN_GPU_OPS_WORK_H
#define ZTRAIN_GPU_OPS_WORK_H

#include "gpu/ops.h"

struct op_work {
    double flops, bytes;
};

/* struct op_work ops_work_<op>(const struct <op>_args *args), for every op. */
#define OPS_WORK_DECLARE(op) struct op_work ops_work_##op(const struct op##_args *args);
OPS_LIST(OPS_WORK_DECLARE)
#undef OPS_WORK_DECLARE

#endif

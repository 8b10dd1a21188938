/* ops_work.h: what each op has to compute and to move, from its arguments alone: for the profile and for plans.
 *
 * FLOPs count the matrix products only, multiply and add as two. Bytes are those that have to cross the device's memory
 * at least once, each operand in its own dtype; what an implementation reads twice, or keeps in scratch memory, is not
 * counted. */
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

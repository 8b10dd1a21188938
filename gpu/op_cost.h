/* op_cost.h: the work of each op, computed from its arguments alone, for the profile and for plans.
 *
 * FLOPs are those of matrix products only; a multiply-add counts as two. Bytes are those that the op must read from and
 * write to the device's memory at least once, each operand in its dtype; repeated reads and scratch memory do not
 * count. */
#pragma once

#include "gpu/ops.h"

struct op_cost {
    double flops, bytes;
};

/* struct op_cost op_cost_<op>(const struct <op>_args *args), for every op. */
#define OP_COST_DECLARE(op) struct op_cost op_cost_##op(const struct op##_args *args);
OPS_LIST(OP_COST_DECLARE)
#undef OP_COST_DECLARE

/* SPDX-License-Identifier: Apache-2.0 */
/* op_cost.h: the work of each op by its arguments, for the profile and for plans. FLOPs are those of matrix products; a
 * multiply-add counts as two. Bytes are those that the op must read and write once, without scratch memory. */
#pragma once

#include "gpu/ops.h"

struct op_cost {
    double flops, bytes;
};

static inline double cost_size_of(enum dtype dtype)
{
    return (double)dtype_size(dtype);
}

/* struct op_cost op_cost_<op>(const struct <op>_args *args), for every op. */
#define OP_COST_DECLARE(op) struct op_cost op_cost_##op(const struct op##_args *args);
OPS_LIST(OP_COST_DECLARE)

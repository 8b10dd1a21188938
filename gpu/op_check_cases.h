/* op_check_cases.h: the cases of op_check.h, and what fills operands of a fixed meaning. */
#pragma once

#include "gpu/op_operands.h"

/* As a dtype of arguments: that with which the case is run. */
#define OP_CHECK_SAME DTYPE_COUNT

/* An op with arguments. A pointer to an operand that may be NULL is not NULL where there is such an operand: what it
 * points to does not matter, as memory takes its place. dlogits of cross_entropy may equal logits. */
struct op_check_case {
    union op_args args;
    unsigned dtypes;  /* bits: it is run with these; 0: all, which args.dtype becomes */
    float scale;      /* of random inputs; 0: 1 */
    double tolerance; /* of results that are not compared byte by byte; 0: by dtype; … */
    bool rounded;     /* … of sums of values which the op has rounded to the case's dtype: that one's */
    double unequal;   /* the share of a result's elements of 16 bits that may differ at all; 0: any */
    int64_t step;     /* of the step's state; 0: 3 */
    bool skipped;     /* the step is */
    bool uneven;      /* some inputs stand out; reports and elements are not finite */
};

struct op_check_cases {
    const struct op_check_case *all;
    int count;
};
extern const struct op_check_cases op_check_cases[OPS_COUNT]; /* in the order of OPS_LIST */

/* Writes the bytes of an operand of a fixed meaning: at most OP_CHECK_FIXED. */
enum { OP_CHECK_FIXED = 4096 };
void op_check_fill(const struct operand *operand, const struct op_check_case *c, int op, void *to);

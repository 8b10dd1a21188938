/* SPDX-License-Identifier: Apache-2.0 */
/* self_test_cases.h: the cases of self_test.h, and what fills operands of a fixed meaning. */
#pragma once

#include "gpu/op_operands.h"

/* As a dtype of arguments: that with which the case is run. */
#define SELF_TEST_SAME DTYPE_COUNT

/* An op with arguments. Only whether an operand is NULL matters: memory takes the pointer's place. */
struct self_test_case {
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

struct self_test_cases {
    const struct self_test_case *all;
    int count;
};
extern const struct self_test_cases self_test_cases[OPS_COUNT]; /* in the order of OPS_LIST */

/* Writes the bytes of an operand of a fixed meaning: at most SELF_TEST_FIXED. */
enum { SELF_TEST_FIXED = 4096 };
void self_test_fill(const struct operand *operand, const struct self_test_case *c, int op, void *to);

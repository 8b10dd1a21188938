/* SPDX-License-Identifier: Apache-2.0 */
/* op_operands.h: one table of what the pointers in the arguments of each op point to: dtype, shape, use. The cost of
 * ops (op_cost.h), the self-test (self_test.h) and the trials of kernels (cuda/autotune.h) derive from it. An op that
 * has no row does not build. */
#pragma once

#include "gpu/ops.h"

#define OP_ARGS_MEMBER(op) struct op##_args op;
union op_args {
    OPS_LIST(OP_ARGS_MEMBER)
};

#define OP_INDEX_OF(op) OP_##op,
enum { OPS_LIST(OP_INDEX_OF) };

void op_launch(struct stream *stream, int op, const union op_args *args);

const char *op_name(int op); /* "norm_fwd", …; op: its place in OPS_LIST */

enum operand_use {
    OPERAND_READ = 1,
    OPERAND_WRITTEN = 2,
    OPERAND_SIDE = 4,     /* small next to the others: its bytes do not count */
    OPERAND_MAYBE = 8,    /* the pointer may be NULL */
    OPERAND_POSITIVE = 16 /* its values are */
};

/* What an element is: at the offset `type - 1` of the arguments stands its dtype, or it is one of these. */
enum operand_type {
    OPERAND_DT = 1, /* args->dtype */
    OPERAND_F32 = -1,
    OPERAND_BF16 = -2,
    OPERAND_F64 = -3,
    OPERAND_INDEX = -4, /* int32 of a row: a token, a position, a type */
    OPERAND_FIRST = -5, /* int64 of an element */
    OPERAND_BYTE = -14, /* of codes */
    /* structs and arrays of a fixed meaning, which have no shape in the table */
    OPERAND_NUMBERS = -6, /* of dropout */
    OPERAND_STARTS = -7,  /* of sequences */
    OPERAND_TARGETS = -8,
    OPERAND_STATE = -9, /* of the step */
    OPERAND_SEGMENTS = -10,
    OPERAND_REPORTS = -11,
    OPERAND_SCHEDULE = -12,
    OPERAND_ENABLED = -13,
    OPERAND_MOMENTS = -15, /* blocks of moments in 8 bits */
    OPERAND_OFFSETS = -16, /* of experts' rows */
    OPERAND_TEACHER = -17  /* of each row, K tokens that rise */
};

struct operand {
    const char *name;
    int16_t member; /* offset of the pointer */
    int16_t use, type;
    int16_t dims[4]; /* the shape: offsets of int64 members, plus one; 0: no more */
    int16_t ld;     /* 0, or the same of the distance between rows, which are the first dimension; its value may be 0 */
    int16_t halves; /* 0, or what the shape is multiplied by, in halves */
    int16_t added;  /* 0, or the offset of a bool, plus one: a result that is read only if it is set */
};

struct op_operands {
    const struct operand *all;
    int count;
};
struct op_operands op_operands(int op);

/* Of an op's arguments: */
static inline void **operand_pointer(const struct operand *o, void *args)
{
    return (void **)((char *)args + o->member);
}

static inline bool operand_exists(const struct operand *o, const void *args)
{
    return !(o->use & OPERAND_MAYBE) || *operand_pointer(o, (void *)(uintptr_t)args);
}

/* The dtype of an operand that has one; else DTYPE_COUNT. */
enum dtype operand_dtype(const struct operand *o, const void *args);

/* Bytes of an element; 0 for those of a fixed meaning. */
size_t operand_element(const struct operand *o, const void *args);

/* Its rows are the first dimension, if it has several, and their parts the last one. */
int64_t operand_rows(const struct operand *o, const void *args);
int64_t operand_part(const struct operand *o, const void *args);

/* Elements of the shape; padded: with what lies between rows. */
int64_t operand_numel(const struct operand *o, const void *args, bool padded);

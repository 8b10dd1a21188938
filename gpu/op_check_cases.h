/* op_check_cases.h: what the two files of op_check.h share: a place where one device runs a case. */
#pragma once

#include "gpu/ops.h"

enum { OP_CHECK_BYTES = 4 << 20, OP_CHECK_RESULTS = 16 };

enum op_check_type {
    OP_CHECK_F32 = DTYPE_F32,
    OP_CHECK_BF16 = DTYPE_BF16,
    OP_CHECK_F16 = DTYPE_F16,
    OP_CHECK_DOUBLE = DTYPE_COUNT,
    OP_CHECK_BYTES_EQUAL
};

/* n elements in memory that are compared. */
struct op_check_result {
    size_t at; /* offset in memory */
    enum op_check_type type;
    int64_t n;
};

/* A case allocates its tensors, calls bed_load(), and then the op. Both devices do the same, so that their memory has
 * the same layout and begins with the same bytes. */
struct op_check_bed {
    struct device *device;
    struct stream *stream;
    char *memory; /* of the device: OP_CHECK_BYTES */
    char *image;  /* of the host: its bytes before the op, and then after it */
    size_t used;
    uint64_t random;
    enum dtype dtype;
    int variant;
    double tolerance; /* of results that are not compared byte by byte; 0: by type */
    double unequal;   /* the share of a result's elements of 16 bits that may differ at all; 0: any */
    struct op_check_result results[OP_CHECK_RESULTS];
    int count;
};

/* Runs a case up to its op, which is then enqueued. False: there is no such variant in this dtype. */
typedef bool (*op_check_case)(struct op_check_bed *bed);
extern const op_check_case op_check_cases[OPS_COUNT]; /* in the order of OPS_LIST */

/* ---- for the cases; all return addresses of the device ------------------- */

void *bed_bytes(struct op_check_bed *bed, const void *bytes, size_t size);              /* an input */
void *bed_input(struct op_check_bed *bed, enum dtype dtype, int64_t n, double scale);   /* random, ±scale */
void *bed_positive(struct op_check_bed *bed, enum dtype dtype, int64_t n);              /* random, 0.5 … 1.5 */
int32_t *bed_indices(struct op_check_bed *bed, int64_t n, int32_t below);               /* random */
void *bed_output(struct op_check_bed *bed, enum dtype dtype, int64_t n);                /* starts as NaN */
void *bed_changed(struct op_check_bed *bed, enum dtype dtype, int64_t n, double scale); /* random, and compared */
double *bed_double(struct op_check_bed *bed, double value);                             /* compared */
void bed_compare(struct op_check_bed *bed, const void *at, enum op_check_type type, int64_t n);

/* Sets element i of a tensor, before bed_load(). */
void bed_set(struct op_check_bed *bed, void *tensor, enum dtype dtype, int64_t i, double value);

/* The tolerance that values of a type have by themselves. */
double op_check_tolerance(enum op_check_type type);
void bed_load(struct op_check_bed *bed);

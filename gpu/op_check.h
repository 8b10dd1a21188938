/* op_check.h: every op of a device on small shapes, compared with the CPU device's op of the same name.
 *
 *     op_check.c        two devices side by side: memory, comparison
 *     op_check_cases.c  for each op its arguments, in several variants
 *     op_operands.c     what their pointers point to
 *
 * It finds a device, driver or library that computes something else: the variants take paths of kernels that arguments
 * choose (rows of several warps, tails of arrays, second tiles, …). It does not take the place of tests/ops, which
 * compares with a reference in double, and on many shapes. */
#pragma once

#include "gpu/op_operands.h"

struct op_checker;

/* Allocates memory on both devices: four MiB and the workspace. Both are borrowed. */
enum status op_checker_new(struct device *device, struct device *reference, struct op_checker **checker,
                           struct error *err);
void op_checker_free(struct op_checker *checker); /* may be NULL */

/* Runs an op in all its variants and types. `differs` gets "" if all results agree, else the first that does not: "in
 * bf16, variant 1: element 17 of 2560 is 0, where 1.25 is right". An error is that of the device. */
enum status op_check_run(struct op_checker *checker, int op, char *differs, size_t size, struct error *err);

/* SPDX-License-Identifier: Apache-2.0 */
/* self_test.h: the self-test of a device: every op on small shapes, compared with the CPU device's op of the same name.
 *
 *     self_test.c        two devices side by side: memory, comparison
 *     self_test_cases.c  for each op its arguments, in several variants
 *     op_operands.c      what their pointers point to
 *
 * The variants take the paths of kernels that arguments choose (rows of several warps, tails of arrays, second
 * tiles, …); tests/ops compares with a reference in double, and on many shapes. */
#pragma once

#include "gpu/op_operands.h"

struct self_test;

/* Allocates memory on both devices, which are borrowed: four MiB and the workspace. */
enum status self_test_new(struct device *device, struct device *reference, struct self_test **test, struct error *err);
void self_test_free(struct self_test *test); /* may be NULL */
RELEASER(self_test_drop, struct self_test, self_test_free)

/* Runs an op in all its variants and types. `differs` gets "" if all results agree, else the first that does not: "in
 * bf16, variant 1: element 17 of 2560 is 0, where 1.25 is right". An error is that of the device. */
enum status self_test_op(struct self_test *test, int op, char *differs, size_t size, struct error *err);

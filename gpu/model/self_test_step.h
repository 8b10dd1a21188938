/* SPDX-License-Identifier: Apache-2.0 */
/* self_test_step.h: a step of a small model as a graph, compared with the same step op by op. */
#pragma once

#include "gpu/device.h"

#include <stddef.h>

/* Takes a GPT-2 of two blocks through two bf16 steps, op by op, and captured once and launched twice. `differs` gets ""
 * if losses, gradients and weights have the same bits, else what is wrong. The device has graphs; an error is its own.
 */
enum status self_test_step(struct device *device, char *differs, size_t size, struct error *err);

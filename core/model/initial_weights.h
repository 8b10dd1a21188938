/* SPDX-License-Identifier: Apache-2.0 */
/* initial_weights.h: the initial values of a unit's flat range. */
#pragma once

#include "core/model/tensor_table.h"

/* out (count) = elements [begin, begin + count) of the unit; gaps and padding become 0. On all threads; beats. Each
 * element depends only on seed, tensor and index. */
void initial_weights_fill(const struct tensor_table *table, int unit, uint64_t seed, int64_t begin, int64_t count,
                          float *out);

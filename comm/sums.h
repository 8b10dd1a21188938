/* SPDX-License-Identifier: Apache-2.0 */
/* sums.h: adds up the ranks' contributions, always in rank order. */
#pragma once

#include "core/dtype.h"

/* "no rank" where the lowest of several ranks is wanted: larger than any rank */
enum { RANK_NONE = INT32_MAX };

/* `count` elements of dtype from or to fp32, rounded to nearest. */
void floats_from(float *out, const void *in, size_t count, enum dtype dtype);
void floats_to(void *out, const float *in, size_t count, enum dtype dtype);

/* What a sum does with the values of `out`: nothing, adds them at last, or begins with them. */
enum sum_start { SUM_ALONE, SUM_THEN_OUT, SUM_FROM_OUT };

/* out[i] = (in[0][i] + in[1][i] + …) [+ out[i]], or ((out[i] + in[0][i]) + in[1][i]) + …, i < count, computed in fp32
 * and rounded once to out_dtype; in[r] of dtype. out may be one of the inputs if the dtypes are equal. Returns the
 * lowest r whose in[r] holds a non-finite value, or RANK_NONE. */
int32_t sum_ranks(void *out, enum dtype out_dtype, const void *const *in, int ranks, size_t count, enum dtype dtype,
                  enum sum_start start);

/* SPDX-License-Identifier: Apache-2.0 */
/* round_up.h: sizes as multiples of a block, a page, a tile; the smaller and the larger of two. */
#pragma once

#include <stdint.h>

/* The smallest multiple of `multiple` (> 0) that is at least n (>= 0). */
static inline int64_t round_up(int64_t n, int64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

static inline int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

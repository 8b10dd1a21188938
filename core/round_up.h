/* SPDX-License-Identifier: Apache-2.0 */
/* round_up.h: sizes as multiples of a block, a page, a tile; the smaller, the larger, an order; GiB for messages. */
#pragma once

#include "core/status.h"

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

static inline size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* For qsort() of int64_t, or of structures that begin with one. */
static inline int compare_int64(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Blocks of `block` elements (> 0) that hold n (>= 0). */
static inline int64_t ceil_div(int64_t n, int64_t block)
{
    return (n + block - 1) / block;
}

static inline double in_gib(uint64_t bytes)
{
    return (double)bytes / (1 << 30);
}

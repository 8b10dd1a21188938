/* SPDX-License-Identifier: Apache-2.0 */
/* thin.h: rows of values by step, thinned as they come: any number of rows in bounded memory.
 *
 * Rows are collected in buckets of `per` rows. When all buckets are full, neighbours are merged and `per` doubles:
 *
 *     per 1   | 1 | 2 | 3 | 4 |      capacity 4
 *     per 2   | 1 2 | 3 4 | 5 6 | …
 *
 * No spike and no NaN is lost: a bucket keeps the extremes of each series, and counts values that are not finite. */
#pragma once

#include <stdint.h>

/* The values of one series in one bucket. */
struct thin_cell {
    double min, max, sum;       /* of the finite values */
    int64_t min_step, max_step; /* the first steps that have the extremes */
    int64_t count, bad;         /* finite values; values that are not finite */
};

struct thin_bucket {
    int64_t first, last; /* steps */
    int64_t rows;
};

struct thin {
    int num_series, capacity, count; /* count: buckets in use */
    int64_t per;                     /* rows of a full bucket */
    struct thin_bucket *buckets;     /* (capacity) owned */
    struct thin_cell *cells;         /* (capacity, num_series) owned */
};

/* capacity: even, at least 2; num_series: at most 64. */
void thin_init(struct thin *thin, int num_series, int capacity);
void thin_release(struct thin *thin);

/* Adds a row. values: (num_series); those whose bit of `present` is not set are absent. */
void thin_add(struct thin *thin, int64_t step, const double *values, uint64_t present);

/* Merges neighbours until at most `count` buckets are in use; count: at least 1. */
void thin_reduce(struct thin *thin, int count);

const struct thin_cell *thin_at(const struct thin *thin, int bucket, int series);

/* The mean of the finite values; NAN if there are none. */
double thin_mean(const struct thin_cell *cell);

/* All values of a series together. */
struct thin_cell thin_total(const struct thin *thin, int series);

/* Adds the values of `from` to those of `into`. */
void thin_join(struct thin_cell *into, const struct thin_cell *from);

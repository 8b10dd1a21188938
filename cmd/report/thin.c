/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/report/thin.h"

#include "core/memory.h"

void thin_init(struct thin *thin, int num_series, int capacity)
{
    ASSERT(num_series > 0 && num_series <= 64 && capacity >= 2 && capacity % 2 == 0);
    *thin = (struct thin){.num_series = num_series, .capacity = capacity, .per = 1};
    thin->buckets = memory_zeroed((size_t)capacity, sizeof *thin->buckets);
    thin->cells = memory_zeroed((size_t)capacity * (size_t)num_series, sizeof *thin->cells);
}

void thin_release(struct thin *thin)
{
    free(thin->buckets);
    free(thin->cells);
    *thin = (struct thin){.count = 0};
}

static struct thin_cell *cells_of(const struct thin *thin, int bucket)
{
    return thin->cells + (size_t)bucket * (size_t)thin->num_series;
}

void thin_join(struct thin_cell *into, const struct thin_cell *from)
{
    if (from->count && (!into->count || from->min < into->min)) {
        into->min = from->min;
        into->min_step = from->min_step;
    }
    if (from->count && (!into->count || from->max > into->max)) {
        into->max = from->max;
        into->max_step = from->max_step;
    }
    into->sum += from->sum;
    into->count += from->count;
    into->bad += from->bad;
}

/* Merges each two neighbours; an odd last bucket stays as it is, half full. */
static void halve(struct thin *thin)
{
    for (int i = 1; i < thin->count; i++) {
        struct thin_bucket *into = &thin->buckets[i / 2], *from = &thin->buckets[i];
        if (i % 2 == 0) {
            *into = *from;
            memcpy(cells_of(thin, i / 2), cells_of(thin, i), (size_t)thin->num_series * sizeof *thin->cells);
            continue;
        }
        into->last = from->last;
        into->rows += from->rows;
        for (int s = 0; s < thin->num_series; s++) thin_join(&cells_of(thin, i / 2)[s], &cells_of(thin, i)[s]);
    }
    thin->count = (thin->count + 1) / 2;
    thin->per *= 2;
}

void thin_reduce(struct thin *thin, int count)
{
    ASSERT(count >= 1);
    while (thin->count > count) halve(thin);
}

void thin_add(struct thin *thin, int64_t step, const double *values, uint64_t present)
{
    bool open = thin->count && thin->buckets[thin->count - 1].rows < thin->per;
    if (!open && thin->count == thin->capacity) {
        halve(thin);
        open = thin->buckets[thin->count - 1].rows < thin->per;
    }
    if (!open) {
        thin->buckets[thin->count] = (struct thin_bucket){.first = step};
        memset(cells_of(thin, thin->count), 0, (size_t)thin->num_series * sizeof *thin->cells);
        thin->count++;
    }
    struct thin_bucket *bucket = &thin->buckets[thin->count - 1];
    bucket->last = step;
    bucket->rows++;
    for (int s = 0; s < thin->num_series; s++) {
        const double x = values[s];
        struct thin_cell one = {.bad = 1};
        if (isfinite(x))
            one = (struct thin_cell){.min = x, .max = x, .sum = x, .min_step = step, .max_step = step, .count = 1};
        if (present >> s & 1) thin_join(&cells_of(thin, thin->count - 1)[s], &one);
    }
}

const struct thin_cell *thin_at(const struct thin *thin, int bucket, int series)
{
    ASSERT(bucket >= 0 && bucket < thin->count && series >= 0 && series < thin->num_series);
    return &cells_of(thin, bucket)[series];
}

double thin_mean(const struct thin_cell *cell)
{
    return cell->count ? cell->sum / (double)cell->count : NAN;
}

struct thin_cell thin_total(const struct thin *thin, int series)
{
    struct thin_cell all = {.count = 0};
    for (int b = 0; b < thin->count; b++) thin_join(&all, thin_at(thin, b, series));
    return all;
}

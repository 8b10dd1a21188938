/* SPDX-License-Identifier: Apache-2.0 */
#include "core/data/mixture.h"

#include "core/data/permute.h"

enum { MOST_DECIMALS = 9, TICK = 1 << 20 /* places between two signs of life */ };
static const double largest_sum = 0x1p40;

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

void interleave_init(struct interleave *interleave, const int64_t *amounts, int count)
{
    ASSERT(count > 0 && count <= INTERLEAVE_SOURCES);
    int64_t divisor = 0;
    *interleave = (struct interleave){.count = count};
    for (int s = 0; s < count; s++) {
        ASSERT(amounts[s] > 0 && amounts[s] <= INT64_C(1) << 61);
        divisor = common_divisor(amounts[s], divisor);
    }
    for (int s = 0; s < count; s++) {
        interleave->shares[s] = amounts[s] / divisor;
        interleave->period += interleave->shares[s];
        ASSERT(interleave->period <= INT64_C(1) << 61);
    }
}

static bool mixture_are_multiples(const double *weights, int count, double scale)
{
    double sum = 0;
    for (int s = 0; s < count; s++) {
        const double amount = weights[s] * scale;
        if (amount > largest_sum || fabs(amount - rint(amount)) > 1e-12 * amount) return false;
        sum += amount;
    }
    return sum <= largest_sum;
}

void interleave_weights(const double *weights, int count, int64_t *amounts)
{
    double scale = 1, sum = 0;
    int decimals = 0;
    while (decimals <= MOST_DECIMALS && !mixture_are_multiples(weights, count, scale)) {
        decimals++;
        scale *= 10;
    }
    for (int s = 0; s < count; s++) sum += weights[s];
    if (decimals > MOST_DECIMALS) scale = largest_sum / sum;
    for (int s = 0; s < count; s++) {
        const int64_t amount = llrint(weights[s] * scale);
        amounts[s] = amount > 0 ? amount : 1;
    }
}

static void begin_period(struct interleave_cursor *cursor, int64_t number)
{
    const struct interleave *order = cursor->order;
    cursor->place = number * order->period;
    for (int s = 0; s < order->count; s++) {
        cursor->taken[s] = number * order->shares[s];
        cursor->credit[s] = 0;
        cursor->deadline[s] = ceil_div(order->period, order->shares[s]);
    }
}

void interleave_begin(struct interleave_cursor *cursor, const struct interleave *order)
{
    memset(cursor, 0, sizeof *cursor);
    cursor->order = order;
    begin_period(cursor, 0);
}

int interleave_next(struct interleave_cursor *cursor)
{
    const struct interleave *order = cursor->order;
    int chosen = -1;
    for (int s = 0; s < order->count; s++) {
        cursor->credit[s] += order->shares[s];
        if (cursor->credit[s] > 0 && (chosen < 0 || cursor->deadline[s] < cursor->deadline[chosen]))
            chosen = s; /* its window is open */
    }
    ASSERT(chosen >= 0); /* the credits add up to `period` now, so that one is above 0 */
    cursor->place++;
    cursor->taken[chosen]++;
    cursor->credit[chosen] -= order->period;
    const int64_t in_period = (cursor->place - 1) % order->period + 1;
    cursor->deadline[chosen] = in_period + ceil_div(order->period - cursor->credit[chosen], order->shares[chosen]);
    if (in_period == order->period) begin_period(cursor, cursor->place / order->period);
    return chosen;
}

void interleave_seek(struct interleave_cursor *cursor, int64_t place)
{
    ASSERT(place >= 0);
    const int64_t period = place / cursor->order->period;
    if (place < cursor->place || period * cursor->order->period > cursor->place) begin_period(cursor, period);
    while (cursor->place < place) {
        interleave_next(cursor);
        if (cursor->place % TICK == 0) heartbeat_beat();
    }
}

int mixture_next(const struct mixture *mixture, struct interleave_cursor *at, int64_t *sample)
{
    const int s = interleave_next(at);
    const int64_t j = at->taken[s] - 1, size = mixture->sizes[s];
    *sample = j % size;
    if (mixture->shuffle) { /* each source by a seed of its own, or sources of one size would have one order */
        const uint64_t seed = mixture->seed + (uint64_t)s * UINT64_C(0x9e3779b97f4a7c15);
        *sample = (int64_t)permute_index((uint64_t)(j % size), (uint64_t)size, seed, (uint64_t)(j / size) + 1);
    }
    return s;
}

/* interleave.h: which of several sources each sample of a run comes from.
 *
 * Source s has shares[s] of every `period` samples, period being their sum. After t samples of the run it has given
 * floor or ceil of t · shares[s] / period, at every t: never a whole sample more or less than its share. This is the
 * periodic scheduling of one resource (Baruah et al., "Proportionate progress", 1996): sample j = 1, 2, … of source s
 * has a window of places, so that the bound holds if and only if it is given within the window
 *
 *     floor((j - 1) · period / shares[s]) + 1  …  ceil(j · period / shares[s])          (places count from 1)
 *
 * and at each place the source is chosen whose open window closes first (of several, the first source), which meets all
 * windows, as the shares add up to one sample a place. The order is a function of the shares alone, and repeats after
 * each period. Nothing is stored but a few integers for each source. Checkpoints rely on the order: it must never
 * change. */
#pragma once

#include "core/status.h"

#include <stdint.h>

enum { INTERLEAVE_SOURCES = 64 }; /* at most */

struct interleave {
    int count;                          /* sources */
    int64_t shares[INTERLEAVE_SOURCES]; /* above 0, without a common divisor */
    int64_t period;                     /* their sum */
};

/* Shares in the ratio of `amounts` (count): integers above 0 whose sum is at most 2^61. */
void interleave_init(struct interleave *interleave, const int64_t *amounts, int count);

/* Integers in the ratio of `weights` (count), finite and above 0: exactly, if all have at most nine decimals and their
 * sum is below 2^40 in units of the last one; else as multiples of 2^-40 of the sum. */
void interleave_weights(const double *weights, int count, int64_t *amounts);

/* A place in the order. No memory of its own: it may be copied. */
struct interleave_cursor {
    const struct interleave *order;       /* borrowed */
    int64_t place;                        /* samples of the run before it */
    int64_t taken[INTERLEAVE_SOURCES];    /* of each source, among them */
    int64_t credit[INTERLEAVE_SOURCES];   /* place · share - taken · period, in this period: between ± period */
    int64_t deadline[INTERLEAVE_SOURCES]; /* the last place of its next sample's window, in this period, from 1 */
};

void interleave_begin(struct interleave_cursor *cursor, const struct interleave *order);

/* The source of the sample at this place; moves the cursor past it. */
int interleave_next(struct interleave_cursor *cursor);

/* Moves the cursor to a place. It walks there from the beginning of the place's period or, if that is nearer, from
 * where it is: some nanoseconds a sample and source. Ticks progress. */
void interleave_seek(struct interleave_cursor *cursor, int64_t place);

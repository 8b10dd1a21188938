/* mixture.h: several sources that the samples of a run are taken from in turn.
 *
 * interleave.h names the source of each sample t = 0, 1, … of the run, so that each source has its share at any time.
 * Source s gives its samples pass by pass: its j-th one of the run, j = 0, 1, …, is perm[j mod N] of the N that it has,
 * perm a keyed permutation (of the seed, s and the pass j / N), identity without shuffle. A pass continues from one
 * epoch of the run to the next, and a source that has ended begins its next pass, so that each of its samples is given
 * equally often. */
#pragma once

#include "core/data/first_fit.h"
#include "core/data/interleave.h"
#include "core/data/label_set.h"
#include "core/data/token_set.h"

/* A source of samples. All members are borrowed. */
struct token_source {
    struct token_set *set;
    const struct label_set *labels; /* classification, else NULL */
    const struct first_fit *fit;    /* data.packing first_fit, else NULL */
};

/* The sources of a mixture, in the order of data.train. */
struct mixture {
    struct token_source sources[INTERLEAVE_SOURCES]; /* (order.count) */
    int64_t sizes[INTERLEAVE_SOURCES];               /* samples that each has, above 0 */
    struct interleave order;
    int64_t epoch_samples; /* of one epoch of the run, from all sources */
    uint64_t seed;
    bool shuffle;
};

/* Whether any source has a loss mask. A source without one counts every target. */
bool mixture_has_mask(const struct mixture *mixture);

/* Where a reader is in the samples of the run. */
struct mixture_cursor {
    const struct mixture *mixture; /* borrowed */
    struct interleave_cursor at;
};

void mixture_begin(struct mixture_cursor *cursor, const struct mixture *mixture);

/* Takes the next sample: its source, and its number in the source. */
int mixture_next(struct mixture_cursor *cursor, int64_t *sample);

/* Moves on, or back, to sample `t` of the run; on: interleave_next() for each sample between. */
void mixture_seek(struct mixture_cursor *cursor, int64_t t);

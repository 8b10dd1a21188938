/* SPDX-License-Identifier: Apache-2.0 */
/* mixture.h: several sources that the samples of a run come from in turn.
 *
 * Source s has shares[s] of every `period` samples; period is the sum of the shares. After t samples of the run it has
 * given floor or ceil of t · shares[s] / period. This is the periodic scheduling of one resource (Baruah et al.,
 * "Proportionate progress", 1996): sample j = 1, 2, … of source s has the window of places
 *
 *     floor((j - 1) · period / shares[s]) + 1  …  ceil(j · period / shares[s])          (places count from 1)
 *
 * and each place takes the source whose open window closes first (of several, the first source), which meets all
 * windows. The order follows from the shares and repeats after each period.
 *
 * A source gives its samples pass by pass: its j-th one, j = 0, 1, …, is perm[j mod N] of its N, perm a keyed
 * permutation (of the seed, s and the pass j / N), identity without shuffle. Passes do not end with epochs of the run.
 *
 * Checkpoints rely on the order: it must never change. */
#pragma once

#include "core/data/document_fit.h"
#include "core/data/label_set.h"
#include "core/data/teacher_file.h"

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

/* A place in the order; may be copied. */
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

/* Moves the cursor to a place, from its period's beginning or from here: nanoseconds a sample and source. Beats. */
void interleave_seek(struct interleave_cursor *cursor, int64_t place);

/* A source of samples; mixtures and streams borrow the members. */
struct token_source {
    struct token_set *set;
    struct label_set *labels;     /* classification, preferences: of the documents; else NULL */
    struct first_fit *fit;        /* data.packing first_fit, preferences: its samples instead of documents; else NULL */
    double *references;           /* owned (documents) preferences: log-probabilities by the reference; NULL: none */
    double *kl_references;        /* the same, KTO: of the mismatched samples */
    uint64_t fingerprint;         /* data_fingerprint.sampled of the set */
    struct teacher_file *teacher; /* borrowed; NULL: there is none */
};

/* The sources of a mixture, in the order of data.train. */
struct mixture {
    struct token_source sources[INTERLEAVE_SOURCES]; /* (order.count) */
    int64_t sizes[INTERLEAVE_SOURCES];               /* samples of each, above 0 */
    struct interleave order;
    int64_t epoch_samples; /* of one epoch of the run, from all sources */
    uint64_t seed;
    bool shuffle;
};

/* Takes the sample at the cursor, which is one of mixture->order: its source, and its number there. */
int mixture_next(const struct mixture *mixture, struct interleave_cursor *at, int64_t *sample);

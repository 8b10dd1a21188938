/* first_fit.h: whole documents packed into samples (data.packing: first_fit).
 *
 * Documents are taken in file order. Each goes to the first sample that has room for it; one that is longer than a
 * sample is cut. The result depends on the data and on the sample's length only, so it is the same on every rank and
 * after a resume. */
#pragma once

#include "core/data/token_set.h"

struct first_fit {
    uint32_t *documents; /* owned: numbers in the token set, sample by sample, rising within a sample */
    int64_t *starts;     /* (samples + 1) owned: where each sample's documents begin in `documents` */
    int64_t samples;
    int64_t tokens; /* in all samples */
};

/* Packs the documents of a set, without the empty ones, into samples of at most seq_length tokens. Reads the whole
 * index. While it works it takes up to 24 bytes for each document, 4 of which stay, and 8 for each sample. */
enum status first_fit_new(const struct token_set *set, int64_t seq_length, struct first_fit **fit, struct error *err);
void first_fit_free(struct first_fit *fit); /* may be NULL */

/* SPDX-License-Identifier: Apache-2.0 */
/* document_fit.h: how whole documents fit into samples: packed (first_fit) or one each, and what is cut off. */
#pragma once

#include "core/data/token_set.h"

/* Documents are taken in file order. Each goes to the first sample that has room for it; one that is longer than a
 * sample is cut. The result follows from the data and the sample's length, so ranks and resumed runs agree. */
struct first_fit {
    uint32_t *documents; /* owned: numbers in the token set, sample by sample, rising within a sample */
    int64_t *starts;     /* (samples + 1) owned: where each sample's documents begin in `documents` */
    int64_t samples;
    int64_t tokens; /* in all samples */
};

/* Packs the documents into samples of at most seq_length tokens. Takes up to 24 bytes a document, and keeps 4. */
enum status first_fit_new(const struct token_set *set, int64_t seq_length, struct first_fit **fit, struct error *err);

/* Samples of `group` documents side by side, 1 or 2, in file order, without those of which a document has more than
 * seq_length tokens, or fewer than two. STATUS_DATA: the last group is not whole. */
enum status whole_fit_new(const struct token_set *set, int64_t seq_length, int group, struct first_fit **fit,
                          struct error *err);

void first_fit_free(struct first_fit *fit); /* may be NULL */
RELEASER(first_fit_drop, struct first_fit, first_fit_free)

/* What is lost where samples take the first seq_length tokens of a document. */
struct cut_count {
    int64_t documents; /* longer than a sample */
    int64_t targets;   /* tokens that are cut off and whose prediction counts by the loss mask */
    bool target_left;  /* in some document a target is kept */
};

/* Reads the index and masks. Beats. Errors as for token_set_document() and token_set_read(). */
enum status cut_count(const struct token_set *set, int64_t seq_length, struct cut_count *count, struct error *err);

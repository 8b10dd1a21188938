/* SPDX-License-Identifier: Apache-2.0 */
/* data_summary.h: what a token set holds, counted: documents, tokens, lengths, labels. */
#pragma once

#include "core/data/label_set.h"

/* Lengths of documents, in tokens. A quantile is the smallest length that so many do not exceed. */
struct length_summary {
    int64_t least, median, p90, p99, most;
    int64_t longer; /* documents that are longer than a limit */
};

/* Sorts the lengths (count > 0) in place. limit 0: none. */
void length_summary_of(int64_t *lengths, int64_t count, int64_t limit, struct length_summary *summary);

struct data_summary {
    int64_t documents, tokens;
    int64_t largest_id;
    int64_t learned;   /* tokens whose prediction counts by the loss mask; without a mask all of them */
    int64_t unlearned; /* documents that have no such token */
    struct length_summary lengths;
};

/* Reads all tokens and masks. seq_length: limit of lengths. Errors: token_set_read(). */
enum status data_summary_read(const struct token_set *set, int64_t seq_length, struct data_summary *summary,
                              struct error *err);

/* (labels->classes) for free(): the documents of each label. */
int64_t *data_summary_labels(const struct label_set *labels);

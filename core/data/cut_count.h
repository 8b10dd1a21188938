/* cut_count.h: what is lost where documents are cut to the length of a sample (data.packing false and first_fit). */
#pragma once

#include "core/data/token_set.h"

struct cut_count {
    int64_t documents; /* longer than a sample */
    int64_t targets;   /* tokens that are cut off and whose prediction counts by the loss mask */
    bool target_left;  /* in some document a target is kept */
};

/* Counts over the documents of a set, of which samples take the first seq_length tokens. Reads the whole index, the
 * mask of what is cut off, and the mask of what is kept up to the first target. Ticks progress. Errors as for
 * token_set_document() and token_set_read_mask(). */
enum status cut_count(const struct token_set *set, int64_t seq_length, struct cut_count *count, struct error *err);

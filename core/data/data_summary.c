/* SPDX-License-Identifier: Apache-2.0 */
/* data_summary.c: one pass over the index for the lengths, one over tokens and masks. */
#include "core/data/data_summary.h"

enum { PIECE = 1 << 14 }; /* tokens that are read at a time */

/* The least of the sorted values that `percent` of them do not exceed. */
static int64_t data_summary_quantile(const int64_t *sorted, int64_t count, int percent)
{
    const int64_t whole = count / 100 * percent, rest = count % 100 * percent; /* count * percent could overflow */
    return sorted[whole + (rest + 99) / 100 - 1];
}

void length_summary_of(int64_t *lengths, int64_t count, int64_t limit, struct length_summary *summary)
{
    ASSERT(count > 0);
    qsort(lengths, (size_t)count, sizeof *lengths, compare_int64);
    *summary = (struct length_summary){.least = lengths[0],
                                       .median = data_summary_quantile(lengths, count, 50),
                                       .p90 = data_summary_quantile(lengths, count, 90),
                                       .p99 = data_summary_quantile(lengths, count, 99),
                                       .most = lengths[count - 1]};
    for (int64_t i = count - 1; limit && i >= 0 && lengths[i] > limit; i--) summary->longer++;
}

/* The document that a pass over the tokens has come to. */
struct document_walk {
    const int64_t *lengths; /* borrowed, in the order of the set */
    int64_t next, left;     /* the next document; tokens of this one that are still to come */
    bool learns;            /* a token of this one counts for the loss */
};

/* Documents without tokens have nothing to learn from either. */
static void data_summary_next_document(struct document_walk *at, struct data_summary *summary)
{
    while (at->left == 0 && at->next < summary->documents) {
        at->left = at->lengths[at->next++];
        at->learns = false;
        summary->unlearned += at->left == 0;
    }
}

static void data_summary_add(struct document_walk *at, const int32_t *tokens, const uint8_t *mask, int64_t count,
                             struct data_summary *summary)
{
    for (int64_t i = 0; i < count; i++) {
        data_summary_next_document(at, summary);
        if (tokens[i] > summary->largest_id) summary->largest_id = tokens[i];
        summary->learned += mask[i];
        at->learns |= mask[i];
        if (--at->left == 0) summary->unlearned += !at->learns;
    }
}

static enum status data_summary_read_tokens(const struct token_set *set, const int64_t *lengths,
                                            struct data_summary *summary, struct error *err)
{
    struct document_walk at = {.lengths = lengths};
    int32_t tokens[PIECE];
    uint8_t mask[PIECE];
    for (int64_t first = 0; first < summary->tokens; first += PIECE) {
        const int64_t count = summary->tokens - first < PIECE ? summary->tokens - first : PIECE;
        TRY(token_set_read(set, first, count, INT32_MAX, tokens, mask, err));
        data_summary_add(&at, tokens, mask, count, summary);
        heartbeat_beat();
    }
    data_summary_next_document(&at, summary);
    return STATUS_OK;
}

enum status data_summary_read(const struct token_set *set, int64_t seq_length, struct data_summary *summary,
                              struct error *err)
{
    *summary = (struct data_summary){.documents = token_set_documents(set), .tokens = token_set_tokens(set)};
    OWNED int64_t *lengths = memory_alloc((size_t)summary->documents * sizeof *lengths);
    int64_t first;
    for (int64_t i = 0; i < summary->documents; i++) TRY(token_set_document(set, i, &first, &lengths[i], err));
    TRY(data_summary_read_tokens(set, lengths, summary, err));
    length_summary_of(lengths, summary->documents, seq_length, &summary->lengths);
    return STATUS_OK;
}

int64_t *data_summary_labels(const struct label_set *labels)
{
    int64_t *counts = memory_zeroed((size_t)labels->classes, sizeof *counts);
    for (int64_t i = 0; i < labels->documents; i++) counts[labels->labels[i]]++;
    return counts;
}

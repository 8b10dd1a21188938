/* SPDX-License-Identifier: Apache-2.0 */
/* document_fit.c: the samples of first_fit are the leaves of a binary tree whose nodes hold the most room that any leaf
 * below them has: the first sample with enough room is found on the way down, to the left where possible. Samples that
 * were not begun have all their room and lie to the right of the others.
 *
 *              12                    room[1]: the root; children of i: 2 i and 2 i + 1
 *          5        12               a document of 4 tokens goes to the third leaf
 *        3   2    5    12 */
#include "core/data/document_fit.h"

struct packer {
    int32_t *length; /* (documents) tokens that are taken of each */
    int32_t *room;   /* (2 leaves) */
    uint32_t *where; /* (documents) the sample of each */
    int64_t leaves;  /* a power of two, at least the number of documents */
};

enum { TICK = 1 << 16 /* documents between two heartbeats */, PIECE = 1 << 16 /* bytes of a mask at a time */ };

static enum status document_fit_lengths(const struct token_set *set, int64_t seq_length, struct packer *packer,
                                        struct error *err)
{
    const int64_t count = token_set_documents(set);
    for (int64_t i = 0; i < count; i++) {
        int64_t first, length;
        TRY(token_set_document(set, i, &first, &length, err));
        packer->length[i] = (int32_t)(length < seq_length ? length : seq_length);
        if (i % TICK == 0) heartbeat_beat();
    }
    return STATUS_OK;
}

/* Takes `length` of the room of the first leaf that has so much, and returns the leaf. */
static int64_t document_fit_room(struct packer *packer, int32_t length)
{
    int64_t node = 1;
    while (node < packer->leaves) node = packer->room[2 * node] >= length ? 2 * node : 2 * node + 1;
    const int64_t leaf = node - packer->leaves;
    packer->room[node] -= length;
    while (node > 1) {
        node /= 2;
        const int32_t left = packer->room[2 * node], right = packer->room[2 * node + 1];
        packer->room[node] = left > right ? left : right;
    }
    return leaf;
}

static void place_documents(struct packer *packer, int64_t count, int64_t seq_length, struct first_fit *fit)
{
    for (int64_t i = 1; i < 2 * packer->leaves; i++) packer->room[i] = (int32_t)seq_length;
    for (int64_t i = 0; i < count; i++) {
        if (i % TICK == 0) heartbeat_beat();
        if (packer->length[i] == 0) continue;
        const int64_t sample = document_fit_room(packer, packer->length[i]);
        packer->where[i] = (uint32_t)sample;
        fit->tokens += packer->length[i];
        fit->samples = sample >= fit->samples ? sample + 1 : fit->samples;
    }
}

static void sort_by_sample(const struct packer *packer, int64_t count, struct first_fit *fit)
{
    for (int64_t i = 0; i < count; i++)
        if (packer->length[i] > 0) fit->starts[packer->where[i] + 1]++;
    for (int64_t s = 0; s < fit->samples; s++) fit->starts[s + 1] += fit->starts[s];
    const int64_t placed = fit->starts[fit->samples];
    for (int64_t i = count - 1; i >= 0; i--)
        if (packer->length[i] > 0) fit->documents[--fit->starts[packer->where[i] + 1]] = (uint32_t)i;
    for (int64_t s = 0; s < fit->samples; s++) /* until here, entry s + 1 is where sample s begins */
        fit->starts[s] = fit->starts[s + 1];
    fit->starts[fit->samples] = placed;
}

static void packer_release(struct packer *packer)
{
    free(packer->length);
    free(packer->where);
    free(packer->room);
}

enum status first_fit_new(const struct token_set *set, int64_t seq_length, struct first_fit **fit, struct error *err)
{
    ASSERT(seq_length > 0 && seq_length <= INT32_MAX);
    *fit = NULL;
    const int64_t count = token_set_documents(set);
    if (count > UINT32_MAX)
        return error_set(
            err, STATUS_DATA,
            "data.packing first_fit takes up to 2^32 documents, and there are %lld; hint: data.packing true",
            (long long)count);
    RELEASED(first_fit_drop) struct first_fit *new = memory_zeroed(1, sizeof *new);
    RELEASED(packer_release) struct packer packer = {.leaves = 1};
    while (packer.leaves < count) packer.leaves *= 2;
    packer.length = memory_alloc((size_t)count * sizeof *packer.length);
    packer.where = memory_alloc((size_t)count * sizeof *packer.where);
    packer.room = memory_alloc(2 * (size_t)packer.leaves * sizeof *packer.room);
    new->documents = memory_alloc((size_t)count * sizeof *new->documents);
    TRY(document_fit_lengths(set, seq_length, &packer, err));
    place_documents(&packer, count, seq_length, new);
    new->starts = memory_zeroed((size_t) new->samples + 1, sizeof *new->starts);
    sort_by_sample(&packer, count, new);
    *fit = TAKEN(new);
    return STATUS_OK;
}

enum status whole_fit_new(const struct token_set *set, int64_t seq_length, int group, struct first_fit **fit,
                          struct error *err)
{
    const int64_t count = token_set_documents(set);
    if (count % group || count > UINT32_MAX)
        return error_set(err, STATUS_DATA, "%lld documents are no pairs of a chosen and a rejected one",
                         (long long)count);
    RELEASED(first_fit_drop) struct first_fit *new = memory_zeroed(1, sizeof *new);
    new->documents = memory_alloc((size_t)count * sizeof *new->documents);
    new->starts = memory_zeroed((size_t)(count / group) + 1, sizeof *new->starts);
    for (int64_t i = 0; i < count; i += group) {
        int64_t tokens = 0;
        bool fits = true;
        for (int64_t d = i; d < i + group; d++) {
            int64_t first, length;
            TRY(token_set_document(set, d, &first, &length, err));
            fits = fits && length >= 2 && length <= seq_length;
            tokens += length;
            new->documents[new->samples *group + d - i] = (uint32_t)d;
        }
        if (i % TICK == 0) heartbeat_beat();
        if (!fits) continue;
        new->tokens += tokens;
        new->samples++;
        new->starts[new->samples] = new->samples *group;
    }
    *fit = TAKEN(new);
    return STATUS_OK;
}

void first_fit_free(struct first_fit *fit)
{
    if (!fit) return;
    free(fit->documents);
    free(fit->starts);
    free(fit);
}

/* Adds the targets among tokens [first, end) of the set; first_only: no more than one. */
static enum status document_fit_targets(const struct token_set *set, int64_t first, int64_t end, bool first_only,
                                        int64_t *targets, struct error *err)
{
    uint8_t mask[PIECE];
    if (!token_set_has_mask(set)) {
        *targets += end > first ? end - first : 0;
        return STATUS_OK;
    }
    for (; first < end && !(first_only && *targets); first += PIECE) {
        const int64_t count = end - first < PIECE ? end - first : PIECE;
        TRY(token_set_read(set, first, count, INT32_MAX, NULL, mask, err));
        for (int64_t i = 0; i < count; i++) *targets += mask[i];
        heartbeat_beat();
    }
    return STATUS_OK;
}

enum status cut_count(const struct token_set *set, int64_t seq_length, struct cut_count *count, struct error *err)
{
    *count = (struct cut_count){.documents = 0};
    for (int64_t i = 0; i < token_set_documents(set); i++) {
        int64_t first, length, kept = 0;
        TRY(token_set_document(set, i, &first, &length, err));
        const int64_t taken = length < seq_length ? length : seq_length;
        if (i % TICK == 0) heartbeat_beat();
        count->documents += length > taken;
        TRY(document_fit_targets(set, first + taken, first + length, false, &count->targets, err));
        if (!count->target_left) /* a document's first token is no target */
            TRY(document_fit_targets(set, first + 1, first + taken, true, &kept, err));
        count->target_left |= kept > 0;
    }
    return STATUS_OK;
}

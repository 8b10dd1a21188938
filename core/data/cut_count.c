#include "core/data/cut_count.h"

#include "core/heartbeat.h"

enum {
    PIECE = 1 << 16, /* bytes of a mask that are read at a time */
    TICK = 1 << 16   /* documents between two signs of life */
};

/* Adds the targets among tokens [first, end) of the set; first_only: no more than one. */
static enum status add_targets(const struct token_set *set, int64_t first, int64_t end, bool first_only,
                               int64_t *targets, struct error *err)
{
    uint8_t mask[PIECE];
    if (!token_set_has_mask(set)) {
        *targets += end > first ? end - first : 0;
        return STATUS_OK;
    }
    for (; first < end && !(first_only && *targets); first += PIECE) {
        const int64_t count = end - first < PIECE ? end - first : PIECE;
        TRY(token_set_read_mask(set, first, count, mask, err));
        for (int64_t i = 0; i < count; i++)
            *targets += mask[i];
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
        if (i % TICK == 0)
            heartbeat_beat();
        count->documents += length > taken;
        TRY(add_targets(set, first + taken, first + length, false, &count->targets, err));
        if (!count->target_left) /* a document's first token is no target */
            TRY(add_targets(set, first + 1, first + taken, true, &kept, err));
        count->target_left |= kept > 0;
    }
    return STATUS_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "core/text/bpe.h"

#include "core/memory.h"
#include "core/text/unicode.h"

/* ---- bytes as characters ------------------------------------------------- */

/* Printable ASCII and Latin-1, without the space and the soft hyphen. */
static bool bpe_stands_for_itself(uint32_t byte)
{
    return (byte > ' ' && byte < 127) || (byte > 160 && byte < 256 && byte != 173);
}

static void bpe_add_mapped(struct text *out, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const unsigned char byte = (unsigned char)bytes[i];
        uint32_t point = 256;
        for (uint32_t before = 0; before < byte; before++) point += !bpe_stands_for_itself(before);
        char text[UTF8_MAX];
        text_add(out, text, (size_t)utf8_put(bpe_stands_for_itself(byte) ? byte : point, text));
    }
}

static int bpe_byte_of(uint32_t point)
{
    if (bpe_stands_for_itself(point)) return (int)point;
    uint32_t substitute = 256;
    for (int byte = 0; byte < 256; byte++)
        if (!bpe_stands_for_itself((uint32_t)byte) && substitute++ == point) return byte;
    return -1;
}

void bpe_add_bytes(struct text *out, const char *text, size_t bytes)
{
    const size_t before = out->count;
    for (size_t at = 0; at < bytes;) {
        int length;
        const int byte = bpe_byte_of(utf8_at(text + at, &length));
        if (byte < 0) {
            out->count = before;
            text_add(out, text, bytes);
            return;
        }
        text_add(out, &(char){(char)byte}, 1);
        at += (size_t)length;
    }
}

/* ---- the tables ---------------------------------------------------------- */

void bpe_add_token(struct bpe *bpe, const char *text, size_t bytes, int32_t id)
{
    ASSERT(id >= 0 && id <= BPE_MAX_ID);
    text_table_add(&bpe->tokens, text, bytes)->value = id;
    if (id >= bpe->size) bpe->size = id + 1;
}

bool bpe_index(struct bpe *bpe, int32_t *twice)
{
    RELEASED(text_release) struct text mapped = {0};
    bpe->by_id = memory_zeroed((size_t)bpe->size + 1, sizeof *bpe->by_id);
    for (size_t i = 0; i < bpe->tokens.slots; i++) {
        const struct text_entry *entry = &bpe->tokens.entries[i];
        if (entry->value < 0) continue;
        *twice = entry->value;
        if (bpe->by_id[entry->value]) return false;
        bpe->by_id[entry->value] = entry;
    }
    for (int byte = 0; byte < 256; byte++) {
        mapped.count = 0;
        bpe_add_mapped(&mapped, &(char){(char)byte}, 1);
        bpe->byte_ids[byte] = text_table_find(&bpe->tokens, mapped.bytes, mapped.count);
    }
    return true;
}

const char *bpe_token(const struct bpe *bpe, int32_t id, size_t *bytes)
{
    if (id < 0 || id >= bpe->size || !bpe->by_id[id]) return NULL;
    *bytes = bpe->by_id[id]->bytes;
    return bpe->tokens.texts.bytes + bpe->by_id[id]->at;
}

void bpe_add_merge(struct bpe *bpe, int32_t left, int32_t right, int32_t result)
{
    const int32_t pair[] = {left, right};
    ASSERT(left >= 0 && right >= 0 && result >= 0 && bpe->results.count < INT32_MAX);
    text_table_add(&bpe->ranks, pair, sizeof pair)->value = (int32_t)bpe->results.count;
    token_list_add(&bpe->results, result);
}

static int32_t rank_of(const struct bpe *bpe, int32_t left, int32_t right)
{
    const int32_t pair[] = {left, right};
    return text_table_find(&bpe->ranks, pair, sizeof pair);
}

void bpe_release(struct bpe *bpe)
{
    text_table_release(&bpe->tokens);
    text_table_release(&bpe->ranks);
    token_list_release(&bpe->results);
    free(bpe->by_id);
    *bpe = (struct bpe){0};
}

/* ---- a word -------------------------------------------------------------- */

/* The word as a list that merges shorten: a merged symbol stays at the place of its left part. */
struct bpe_symbol {
    int32_t id; /* -1: it became part of its left neighbour */
    uint32_t before, after;
};
enum { NO_SYMBOL = UINT32_MAX };

/* A merge that was possible when it was found: of the symbol at `place` and the one after it. */
struct bpe_candidate {
    int32_t rank;
    uint32_t place;
};

void bpe_room_release(struct bpe_room *room)
{
    free(room->symbols);
    free(room->heap);
    text_release(&room->mapped);
    *room = (struct bpe_room){0};
}

static bool comes_first(struct bpe_candidate a, struct bpe_candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.place < b.place;
}

static void heap_push(struct bpe_candidate *heap, size_t *count, struct bpe_candidate candidate)
{
    size_t i = (*count)++;
    for (; i > 0 && comes_first(candidate, heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = candidate;
}

static struct bpe_candidate heap_pop(struct bpe_candidate *heap, size_t *count)
{
    struct bpe_candidate first = heap[0], last = heap[--*count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= *count) break;
        if (child + 1 < *count && comes_first(heap[child + 1], heap[child])) child++;
        if (!comes_first(heap[child], last)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return first;
}

static void offer(const struct bpe *bpe, struct bpe_room *room, size_t *count, uint32_t place)
{
    if (place == NO_SYMBOL || room->symbols[place].after == NO_SYMBOL) return;
    const struct bpe_symbol *symbol = &room->symbols[place];
    const int32_t rank = rank_of(bpe, symbol->id, room->symbols[symbol->after].id);
    if (rank >= 0) heap_push(room->heap, count, (struct bpe_candidate){.rank = rank, .place = place});
}

static void merge_symbols(const struct bpe *bpe, struct bpe_room *room, size_t symbols)
{
    size_t count = 0;
    for (size_t i = 0; i + 1 < symbols; i++) offer(bpe, room, &count, (uint32_t)i);
    while (count > 0) {
        struct bpe_candidate best = heap_pop(room->heap, &count);
        struct bpe_symbol *symbol = &room->symbols[best.place];
        if (symbol->id < 0 || symbol->after == NO_SYMBOL) continue;
        struct bpe_symbol *right = &room->symbols[symbol->after];
        const int32_t result = bpe->results.ids[best.rank], rank = rank_of(bpe, symbol->id, right->id);
        if (rank < 0 || bpe->results.ids[rank] != result) /* another merge has changed one of the two */
            continue;
        symbol->id = result;
        right->id = -1;
        symbol->after = right->after;
        if (symbol->after != NO_SYMBOL) room->symbols[symbol->after].before = best.place;
        offer(bpe, room, &count, symbol->before);
        offer(bpe, room, &count, best.place);
    }
}

static size_t split_bytes(const struct bpe *bpe, const char *word, size_t bytes, struct bpe_symbol *symbols)
{
    size_t count = 0;
    bool in_unknown = false;
    for (size_t i = 0; i < bytes; i++) {
        int32_t id = bpe->byte_ids[(unsigned char)word[i]];
        bool unknown = id < 0;
        if (unknown && (bpe->unknown < 0 || (in_unknown && bpe->fuse_unknown))) continue;
        in_unknown = unknown;
        symbols[count] = (struct bpe_symbol){.id = unknown ? bpe->unknown : id,
                                             .before = count ? (uint32_t)count - 1 : NO_SYMBOL,
                                             .after = (uint32_t)count + 1};
        count++;
    }
    if (count) symbols[count - 1].after = NO_SYMBOL;
    return count;
}

static bool whole_word(const struct bpe *bpe, const char *word, size_t n, struct bpe_room *room, struct token_list *out)
{
    room->mapped.count = 0;
    bpe_add_mapped(&room->mapped, word, n);
    int32_t id = text_table_find(&bpe->tokens, room->mapped.bytes, room->mapped.count);
    if (id >= 0) token_list_add(out, id);
    return id >= 0;
}

void bpe_encode(const struct bpe *bpe, const char *word, size_t bytes, struct bpe_room *room, struct token_list *out)
{
    ASSERT(bytes < UINT32_MAX);
    if (bytes == 0 || (bpe->ignore_merges && whole_word(bpe, word, bytes, room, out))) return;
    if (bytes > room->symbols_room) {
        room->symbols_room = 2 * bytes;
        room->symbols = memory_resize(room->symbols, room->symbols_room * sizeof *room->symbols);
        room->heap_room = 3 * room->symbols_room; /* a candidate for each pair, and two for each merge */
        room->heap = memory_resize(room->heap, room->heap_room * sizeof *room->heap);
    }
    size_t symbols = split_bytes(bpe, word, bytes, room->symbols);
    merge_symbols(bpe, room, symbols);
    for (size_t i = 0; i < symbols; i++)
        if (room->symbols[i].id >= 0) token_list_add(out, room->symbols[i].id);
}

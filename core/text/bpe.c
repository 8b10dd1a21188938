#include "core/text/bpe.h"

#include "core/memory.h"
#include "core/text/byte_level.h"
#include "core/text/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { FIRST_SLOTS = 1024 };

/* ---- the tables ---------------------------------------------------------- */

/* The slot of a text, or the free one where it would be. */
static size_t find_entry(const struct bpe *bpe, const char *text, size_t bytes)
{
    size_t mask = bpe->entry_slots - 1, slot = XXH3_64bits(text, bytes) & mask;
    for (;; slot = (slot + 1) & mask) {
        const struct bpe_entry *entry = &bpe->entries[slot];
        if (entry->id < 0 || (entry->bytes == bytes && memcmp(bpe->texts.bytes + entry->at, text, bytes) == 0))
            return slot;
    }
}

static void grow_entries(struct bpe *bpe)
{
    struct bpe_entry *old = bpe->entries;
    size_t old_slots = bpe->entry_slots;
    bpe->entry_slots = old_slots ? 2 * old_slots : FIRST_SLOTS;
    bpe->entries = memory_alloc(bpe->entry_slots * sizeof *bpe->entries);
    for (size_t i = 0; i < bpe->entry_slots; i++)
        bpe->entries[i].id = -1;
    for (size_t i = 0; i < old_slots; i++)
        if (old[i].id >= 0)
            bpe->entries[find_entry(bpe, bpe->texts.bytes + old[i].at, old[i].bytes)] = old[i];
    free(old);
}

bool bpe_add_token(struct bpe *bpe, const char *text, size_t bytes, int32_t id)
{
    ASSERT(id >= 0 && id <= BPE_MAX_ID && bytes <= UINT32_MAX);
    if (2 * (bpe->entry_count + 1) > bpe->entry_slots)
        grow_entries(bpe);
    size_t slot = find_entry(bpe, text, bytes);
    if (bpe->entries[slot].id >= 0)
        return false;
    bpe->entries[slot] = (struct bpe_entry){.at = bpe->texts.count, .bytes = (uint32_t)bytes, .id = id};
    text_add(&bpe->texts, text, bytes);
    bpe->entry_count++;
    if (id >= bpe->size)
        bpe->size = id + 1;
    return true;
}

bool bpe_index(struct bpe *bpe, int32_t *twice)
{
    free(bpe->by_id);
    bpe->by_id = memory_zeroed((size_t)bpe->size + 1, sizeof *bpe->by_id);
    for (size_t i = 0; i < bpe->entry_slots; i++) {
        int32_t id = bpe->entries[i].id;
        if (id >= 0 && bpe->by_id[id]) {
            *twice = id;
            return false;
        }
        if (id >= 0)
            bpe->by_id[id] = i + 1;
    }
    for (int byte = 0; byte < 256; byte++) {
        char text[UTF8_MAX];
        int bytes = utf8_put(byte_level_point((unsigned char)byte), text);
        bpe->byte_ids[byte] = bpe_find(bpe, text, (size_t)bytes);
    }
    return true;
}

int32_t bpe_find(const struct bpe *bpe, const char *text, size_t bytes)
{
    return bpe->entry_slots ? bpe->entries[find_entry(bpe, text, bytes)].id : -1;
}

const char *bpe_token(const struct bpe *bpe, int32_t id, size_t *bytes)
{
    if (id < 0 || id >= bpe->size || !bpe->by_id[id])
        return NULL;
    const struct bpe_entry *entry = &bpe->entries[bpe->by_id[id] - 1];
    *bytes = entry->bytes;
    return bpe->texts.bytes ? bpe->texts.bytes + entry->at : "";
}

static size_t merge_slot(const struct bpe *bpe, int32_t left, int32_t right)
{
    int32_t pair[2] = {left, right};
    size_t mask = bpe->merge_slots - 1, slot = XXH3_64bits(pair, sizeof pair) & mask;
    while (bpe->merges[slot].left >= 0 && (bpe->merges[slot].left != left || bpe->merges[slot].right != right))
        slot = (slot + 1) & mask;
    return slot;
}

static const struct bpe_merge *find_merge(const struct bpe *bpe, int32_t left, int32_t right)
{
    const struct bpe_merge *merge = bpe->merge_slots ? &bpe->merges[merge_slot(bpe, left, right)] : NULL;
    return merge && merge->left >= 0 ? merge : NULL;
}

static void grow_merges(struct bpe *bpe)
{
    struct bpe_merge *old = bpe->merges;
    size_t old_slots = bpe->merge_slots;
    bpe->merge_slots = old_slots ? 2 * old_slots : FIRST_SLOTS;
    bpe->merges = memory_alloc(bpe->merge_slots * sizeof *bpe->merges);
    for (size_t i = 0; i < bpe->merge_slots; i++)
        bpe->merges[i].left = -1;
    for (size_t i = 0; i < old_slots; i++)
        if (old[i].left >= 0)
            bpe->merges[merge_slot(bpe, old[i].left, old[i].right)] = old[i];
    free(old);
}

void bpe_add_merge(struct bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t result)
{
    ASSERT(left >= 0 && right >= 0 && result >= 0);
    if (2 * (bpe->merge_count + 1) > bpe->merge_slots)
        grow_merges(bpe);
    size_t slot = merge_slot(bpe, left, right);
    if (bpe->merges[slot].left < 0)
        bpe->merge_count++;
    bpe->merges[slot] = (struct bpe_merge){.left = left, .right = right, .rank = rank, .result = result};
}

void bpe_release(struct bpe *bpe)
{
    text_release(&bpe->texts);
    free(bpe->entries);
    free(bpe->by_id);
    free(bpe->merges);
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
    int32_t rank, result;
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
    for (; i > 0 && comes_first(candidate, heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = candidate;
}

static struct bpe_candidate heap_pop(struct bpe_candidate *heap, size_t *count)
{
    struct bpe_candidate first = heap[0], last = heap[--*count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= *count)
            break;
        if (child + 1 < *count && comes_first(heap[child + 1], heap[child]))
            child++;
        if (!comes_first(heap[child], last))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return first;
}

/* Puts the merge of the symbol at `place` with the one after it on the heap, if there is one. */
static void offer(const struct bpe *bpe, struct bpe_room *room, size_t *count, uint32_t place)
{
    if (place == NO_SYMBOL || room->symbols[place].after == NO_SYMBOL)
        return;
    const struct bpe_symbol *symbol = &room->symbols[place];
    const struct bpe_merge *merge = find_merge(bpe, symbol->id, room->symbols[symbol->after].id);
    if (merge)
        heap_push(room->heap, count,
                  (struct bpe_candidate){.rank = merge->rank, .result = merge->result, .place = place});
}

static void merge_symbols(const struct bpe *bpe, struct bpe_room *room, size_t symbols)
{
    size_t count = 0;
    for (size_t i = 0; i + 1 < symbols; i++)
        offer(bpe, room, &count, (uint32_t)i);
    while (count > 0) {
        struct bpe_candidate best = heap_pop(room->heap, &count);
        struct bpe_symbol *symbol = &room->symbols[best.place];
        if (symbol->id < 0 || symbol->after == NO_SYMBOL)
            continue;
        struct bpe_symbol *right = &room->symbols[symbol->after];
        const struct bpe_merge *merge = find_merge(bpe, symbol->id, right->id);
        if (!merge || merge->result != best.result) /* another merge has changed one of the two */
            continue;
        symbol->id = best.result;
        right->id = -1;
        symbol->after = right->after;
        if (symbol->after != NO_SYMBOL)
            room->symbols[symbol->after].before = best.place;
        offer(bpe, room, &count, symbol->before);
        offer(bpe, room, &count, best.place);
    }
}

/* A symbol for each byte; returns their number. */
static size_t split_bytes(const struct bpe *bpe, const char *word, size_t bytes, struct bpe_symbol *symbols)
{
    size_t count = 0;
    bool in_unknown = false;
    for (size_t i = 0; i < bytes; i++) {
        int32_t id = bpe->byte_ids[(unsigned char)word[i]];
        bool unknown = id < 0;
        if (unknown && (bpe->unknown < 0 || (in_unknown && bpe->fuse_unknown)))
            continue;
        in_unknown = unknown;
        symbols[count] = (struct bpe_symbol){.id = unknown ? bpe->unknown : id,
                                             .before = count ? (uint32_t)count - 1 : NO_SYMBOL,
                                             .after = (uint32_t)count + 1};
        count++;
    }
    if (count)
        symbols[count - 1].after = NO_SYMBOL;
    return count;
}

static bool whole_word(const struct bpe *bpe, const char *word, size_t bytes, struct bpe_room *room,
                       struct token_list *out)
{
    room->mapped.count = 0;
    byte_level_map(word, bytes, &room->mapped);
    int32_t id = bpe_find(bpe, room->mapped.bytes, room->mapped.count);
    if (id >= 0)
        token_list_add(out, id);
    return id >= 0;
}

void bpe_encode(const struct bpe *bpe, const char *word, size_t bytes, struct bpe_room *room, struct token_list *out)
{
    ASSERT(bytes < UINT32_MAX);
    if (bytes == 0 || (bpe->ignore_merges && whole_word(bpe, word, bytes, room, out)))
        return;
    if (bytes > room->symbols_room) {
        room->symbols_room = 2 * bytes;
        room->symbols = memory_resize(room->symbols, room->symbols_room * sizeof *room->symbols);
        room->heap_room = 3 * room->symbols_room; /* a candidate for each pair, and two for each merge */
        room->heap = memory_resize(room->heap, room->heap_room * sizeof *room->heap);
    }
    size_t symbols = split_bytes(bpe, word, bytes, room->symbols);
    merge_symbols(bpe, room, symbols);
    for (size_t i = 0; i < symbols; i++)
        if (room->symbols[i].id >= 0)
            token_list_add(out, room->symbols[i].id);
}

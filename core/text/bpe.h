/* bpe.h: byte-pair encoding: a vocabulary, and merges in the order of their rank.
 *
 * The vocabulary's texts are those of tokenizer.json: a byte is written as one character (byte_level.h), a space as Ġ.
 * Of the merges that a word allows, the one of the lowest rank comes first, and of several the leftmost. The pairs wait
 * in a heap, so that a word of n bytes takes O(n log n) steps. */
#pragma once

#include "core/text/text_buffer.h"

#include <stdbool.h>

enum { BPE_MAX_ID = (1 << 22) - 1 };

struct bpe_entry { /* a token of the vocabulary */
    size_t at;     /* of its text in `texts` */
    uint32_t bytes;
    int32_t id; /* -1: the slot is free */
};
struct bpe_merge {
    int32_t left, right; /* left -1: the slot is free */
    int32_t rank, result;
};

/* {0} is empty. Tables are open-addressed; their sizes are powers of two. Everything is owned. */
struct bpe {
    struct text texts; /* all tokens, one after the other */
    struct bpe_entry *entries;
    size_t entry_slots, entry_count;
    size_t *by_id; /* (size) slot of the entry + 1; 0: the id has no token; filled by bpe_index() */
    int32_t size;  /* the largest id + 1 */
    struct bpe_merge *merges;
    size_t merge_slots, merge_count;
    int32_t byte_ids[256]; /* the tokens of single bytes; -1: none */
    int32_t unknown;       /* the token of a byte without one; -1: it is left out */
    bool fuse_unknown;     /* one for several such bytes in a row */
    bool ignore_merges;    /* a word that is a token needs no merges */
};

/* Adds a token; false: its text was there before. */
bool bpe_add_token(struct bpe *bpe, const char *text, size_t bytes, int32_t id);

/* After the last token: fills by_id and byte_ids. false: two tokens have the id *twice. */
bool bpe_index(struct bpe *bpe, int32_t *twice);

/* Adds the merge of that rank; one of the same pair replaces it. Call after bpe_index(). */
void bpe_add_merge(struct bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t result);

void bpe_release(struct bpe *bpe);

/* The id of a text; -1: there is none. */
int32_t bpe_find(const struct bpe *bpe, const char *text, size_t bytes);

/* The text of an id, and its length; NULL: there is none. */
const char *bpe_token(const struct bpe *bpe, int32_t id, size_t *bytes);

/* Working memory of an encoding. {0} is empty. */
struct bpe_room {
    struct bpe_symbol *symbols;
    struct bpe_candidate *heap;
    size_t symbols_room, heap_room;
    struct text mapped;
};
void bpe_room_release(struct bpe_room *room);

/* Appends the tokens of a word, which is bytes of text (not mapped). */
void bpe_encode(const struct bpe *bpe, const char *word, size_t bytes, struct bpe_room *room, struct token_list *out);

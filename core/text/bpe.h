/* SPDX-License-Identifier: Apache-2.0 */
/* bpe.h: byte-pair encoding: a vocabulary, and merges in the order of their rank.
 *
 * The vocabulary's texts are those of tokenizer.json, where a byte is one character: the printable bytes of Latin-1
 * ('!' to '~', U+00A1 to U+00AC, U+00AE to U+00FF) stand for themselves, and the other 68 are U+0100 to U+0143 in their
 * order: a space is U+0120, Ġ.
 *
 * The merge of the lowest rank comes first, of several the leftmost; O(n log n) for a word of n bytes. */
#pragma once

#include "core/text_buffer.h"

enum { BPE_MAX_ID = (1 << 22) - 1 };

/* {0} is empty. Everything is owned. */
struct bpe {
    struct text_table tokens;        /* ids by text */
    const struct text_entry **by_id; /* (size) NULL: the id has no token; filled by bpe_index() */
    int32_t size;                    /* the largest id + 1 */
    struct text_table ranks;         /* of merges, by the two ids */
    struct token_list results;       /* what the merge of a rank makes */
    int32_t byte_ids[256];           /* the tokens of single bytes; -1: none */
    int32_t unknown;                 /* the token of a byte without one; -1: it is left out */
    bool fuse_unknown;               /* one for several such bytes in a row */
    bool ignore_merges;              /* a word that is a token needs no merges */
};

/* Adds a token, whose text is new. */
void bpe_add_token(struct bpe *bpe, const char *text, size_t bytes, int32_t id);

/* After the last token: fills by_id and byte_ids. false: two tokens have the id *twice. */
bool bpe_index(struct bpe *bpe, int32_t *twice);

/* Adds the merge of the next rank; one of the same pair replaces it. After bpe_index(). */
void bpe_add_merge(struct bpe *bpe, int32_t left, int32_t right, int32_t result);

void bpe_release(struct bpe *bpe);

/* The text of an id, and its length; NULL: there is none. */
const char *bpe_token(const struct bpe *bpe, int32_t id, size_t *bytes);

/* Appends the bytes of a token's text; with a character that stands for no byte, the text itself. */
void bpe_add_bytes(struct text *out, const char *text, size_t bytes);

/* Working memory of an encoding. {0} is empty. */
struct bpe_room {
    struct bpe_symbol *symbols;
    struct bpe_candidate *heap;
    size_t symbols_room, heap_room;
    struct text mapped;
};
void bpe_room_release(struct bpe_room *room);

/* Appends the tokens of a word, bytes of text (not mapped). */
void bpe_encode(const struct bpe *bpe, const char *word, size_t bytes, struct bpe_room *room, struct token_list *out);

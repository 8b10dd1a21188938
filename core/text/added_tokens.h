/* added_tokens.h: the tokens that are looked for in the text itself, before anything else: <|endoftext|> and its like.
 *
 * Two sets, as in `tokenizers`: tokens that are looked for in the text as it came, and those with "normalized": true,
 * which are looked for in what the normalizer has made of the rest. At each place the longest token counts. */
#pragma once

#include "core/text/tokenizer.h"

struct added_token {
    char *content; /* own; not empty */
    char *pattern; /* own; what is looked for and decoded: the content, normalized if `normalized` */
    size_t length; /* of the pattern */
    int32_t id;
    bool special;
    bool single_word;    /* not as a part of a word */
    bool lstrip, rstrip; /* takes the white space before, after it */
    bool normalized;
};

/* {0} is empty. */
struct added_tokens {
    struct added_token *items; /* own (room), in the order of the file */
    size_t count, room;
    /* For each set (0: as it came, 1: normalized) the items by their bytes, equal ones in order: those that begin with
     * byte b are order[set][first[set][b]] … order[set][first[set][b + 1] - 1]. */
    size_t *order[2];
    size_t first[2][257];
    size_t *by_id; /* own (count) the items by id */
};

/* Appends a token; the list owns content and pattern. */
void added_tokens_add(struct added_tokens *tokens, struct added_token token);

/* Sorts the tokens. Called once, after the last one was added. */
void added_tokens_index(struct added_tokens *tokens);

void added_tokens_release(struct added_tokens *tokens);

/* The token of an id; NULL: there is none. After added_tokens_index(). */
const struct added_token *added_tokens_by_id(const struct added_tokens *tokens, int32_t id);

/* A part of a text: a token, or the text between two of them (token NULL). */
struct added_part {
    const struct added_token *token;
    size_t start, end;
};

/* The walk over a text's parts: {.text, .count, .set, .no_special} is its beginning. */
struct added_walk {
    const char *text; /* UTF-8 */
    size_t count;
    int set;
    bool no_special;                   /* special tokens are text */
    size_t at;                         /* where the search goes on */
    size_t done;                       /* parts up to here were given */
    const struct added_token *pending; /* found, after the text before it was given */
    size_t pending_start, pending_end;
};

/* The next part; false: there is none. Parts of text are never empty. */
bool added_tokens_next(const struct added_tokens *tokens, struct added_walk *walk, struct added_part *part);

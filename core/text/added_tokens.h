/* SPDX-License-Identifier: Apache-2.0 */
/* added_tokens.h: the tokens that are looked for in the text before anything else: <|endoftext|> and its like. Two
 * sets, as in `tokenizers`: tokens that are looked for in the text as it came (0), and those with "normalized": true
 * (1), in what the normalizer has made of the rest. At each place the longest token counts. */
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

/* {0} is empty. Everything is owned. */
struct added_tokens {
    struct added_token *items; /* in the order of the file */
    size_t count;
    struct text_table by_content, by_id; /* indices of items */
    /* Two tries: nodes by the one before them and a byte; the roots are the numbers of the sets. */
    struct text_table edges;
    struct token_list ends; /* by node: the index of the first token that ends there, or -1 */
};

/* The list owns content and pattern. */
void added_tokens_add(struct added_tokens *tokens, struct added_token token);

void added_tokens_release(struct added_tokens *tokens);

/* The token of an id, of a content; NULL: there is none. */
const struct added_token *added_tokens_by_id(const struct added_tokens *tokens, int32_t id);
const struct added_token *added_tokens_by_content(const struct added_tokens *tokens, const char *content);

/* A part of a text: [start, end) up to a token, which may be empty, or to the end (token NULL). */
struct added_part {
    size_t start, end;
    const struct added_token *token;
};

/* The walk over a text's parts: {.text, .count, .set, .no_special} is its beginning. */
struct added_walk {
    const char *text; /* UTF-8 */
    size_t count;
    int set;
    bool no_special; /* special tokens are text */
    size_t at;       /* where the search goes on */
    size_t done;     /* parts up to here were given */
};

/* The next part; false: there is none. */
bool added_tokens_next(const struct added_tokens *tokens, struct added_walk *walk, struct added_part *part);

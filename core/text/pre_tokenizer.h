/* pre_tokenizer.h: cuts a text into the words that BPE works on. */
#pragma once

#include "core/text/pattern.h"
#include "core/text/text_buffer.h"

enum { CUT_STEPS = 8 };

/* Split, Digits, and ByteLevel's own expression: matches and the text between them are words. Without a pattern it is
 * ByteLevel's add_prefix_space: a space before a word that has none. */
struct cut {
    struct pattern *pattern; /* own */
    bool drop_matches;       /* behavior Removed: matches are left out, or with `invert` the text between them */
    bool drop_others;
};

/* The steps, one after the other; each cuts what the one before it has left. */
struct pre_tokenizer {
    struct cut cuts[CUT_STEPS];
    int count;
};
void pre_tokenizer_release(struct pre_tokenizer *cutter);

/* Where words go. */
typedef void word_taker(void *context, const char *word, size_t bytes);

/* Calls `take` for each word of a text (UTF-8) in its order; none is empty. */
enum status pre_tokenizer_run(const struct pre_tokenizer *cutter, const char *text, size_t bytes, word_taker *take,
                              void *context, struct error *err);

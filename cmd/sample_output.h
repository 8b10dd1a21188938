/* sample_output.h: the continuation on standard output, as it comes: text, or token ids with commas. Half a character
 * waits for its last byte; a terminal gets control characters other than line ends and tabs as \xNN. */
#pragma once

#include "core/text/tokenizer.h"

struct sample_output {
    const struct tokenizer *tokenizer; /* borrowed; NULL: ids are printed */
    struct text_stream stream;
    struct text text; /* owned: of the last token */
    int64_t count;    /* tokens so far */
};

/* Prints a token. `ends`: it is the one that ends the text, which ids show and text does not. STATUS_USAGE: standard
 * output cannot be written. */
enum status sample_output_token(struct sample_output *output, int64_t token, bool ends, struct error *err);

/* Prints what is left, and the end of the line. */
enum status sample_output_end(struct sample_output *output, struct error *err);

void sample_output_release(struct sample_output *output);

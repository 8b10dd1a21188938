/* unicode.h: what Unicode says about characters, in the versions that `tokenizers` has: 16 for categories, 9 for NFC.
 *
 * Tokens depend on the version: a letter that a table does not know is cut like a symbol. The data are those of
 * utf8proc (and, for expressions, of PCRE2), whose versions differ between systems; the characters that they may know
 * otherwise are listed here, so that tokens are the same everywhere. */
#pragma once

#include "core/text/text_buffer.h"

#include <stdbool.h>

/* The characters that came with Unicode 15 and 16, or that NFC treats otherwise since Unicode 10, by code point. */
struct unicode_run {
    uint32_t first, last;
    const char *category;
};
extern const struct unicode_run unicode_newer[];
extern const int unicode_newer_count;

/* The oldest version of Unicode that the libraries may have. */
enum { UNICODE_OLDEST = 14 };

/* Whether `name` is a general category ("Lu") or a group of them ("L"). */
bool unicode_is_category(const char *name);

/* The property White_Space: \s. */
bool unicode_is_space(uint32_t point);

/* Part of a word: \w, which is Alphabetic, marks, digits, connectors, joiners. */
bool unicode_is_word(uint32_t point);

/* Appends the normalization form C (UAX #15) of `text` (UTF-8) to `out`. O(n), also for one letter with a million
 * accents. */
void unicode_nfc(const char *text, size_t count, struct text *out);

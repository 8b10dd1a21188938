/* SPDX-License-Identifier: Apache-2.0 */
/* unicode.h: code points of UTF-8, and what Unicode says of them in the versions that `tokenizers` has: 16 for
 * categories, 9 for NFC. The data are utf8proc's (of expressions PCRE2's); what other versions have is listed here. */
#pragma once

#include "core/text_buffer.h"

enum { UTF8_MAX = 4 };

/* The length of the character at the start of `bytes`, and *point; if there is none: 0 if more bytes could make one of
 * these `count`, or minus the length of the longest part (1 … 3 bytes) that is to be replaced by one U+FFFD. */
int utf8_next(const unsigned char *bytes, size_t count, uint32_t *point);

/* Writes a code point; returns its length. */
int utf8_put(uint32_t point, char out[UTF8_MAX]);

/* The code point at the start of valid text, and its length. */
uint32_t utf8_at(const char *text, int *length);

/* The start of the character before `at` (> 0) in valid text. */
size_t utf8_back(const char *text, size_t at);

/* The place of the first byte that is not UTF-8; `count`: all is well. */
size_t utf8_check(const char *text, size_t count);

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

/* Appends the normalization form C (UAX #15) of `text` (UTF-8) to `out`. O(n), however many accents a letter has. */
void unicode_nfc(const char *text, size_t count, struct text *out);

/* utf8.h: code points of UTF-8, as the Unicode standard defines it: no overlong forms, no surrogates, at most U+10FFFF.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

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

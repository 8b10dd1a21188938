/* byte_level.h: bytes as characters, for the vocabularies of byte-level BPE.
 *
 * GPT-2's rule: the printable bytes of Latin-1 ('!' to '~', U+00A1 to U+00AC, U+00AE to U+00FF) stand for themselves,
 * and the other 68 become U+0100 to U+0143 in their order. So a space is U+0120, a newline U+010A. */
#pragma once

#include "core/text/text_buffer.h"

/* The character of a byte. */
uint32_t byte_level_point(unsigned char byte);

/* The byte of a character; -1: it stands for none. */
int byte_level_byte(uint32_t point);

/* Appends the characters of `bytes`. */
void byte_level_map(const char *bytes, size_t count, struct text *out);

/* Appends the bytes of a token's text; a text with a character that stands for no byte is taken as it is. */
void byte_level_unmap(const char *text, size_t bytes, struct text *out);

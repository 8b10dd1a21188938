/* SPDX-License-Identifier: Apache-2.0 */
/* printable.h: makes text from outside (file names, manifests, tensor names, messages of peers) safe for terminals,
 * which obey escape sequences, and logs: control characters (C0 with tab and newline, DEL, C1) and bytes that are not
 * UTF-8 are shown as \xNN. A backslash is not escaped. */
#pragma once

#include <stddef.h>
#include <stdio.h>

enum { PRINTABLE_SIZE = 1024 };

/* Returns `text` if all of it is printable, else its printable form in `buffer` (of `size` >= 8 bytes), which is cut
 * with "..." if it does not fit. */
const char *printable(const char *text, char *buffer, size_t size);

/* The same with a buffer that lives to the end of the enclosing block. */
#define PRINTABLE(text) printable((text), (char[PRINTABLE_SIZE]){0}, PRINTABLE_SIZE)

/* A word as a POSIX shell takes it, for free(): as it is, or in quotes. With bytes that are not printable it is $'…',
 * which bash, zsh and ksh know. */
char *shell_word(const char *text);

/* Prints a text of many lines in the same form, but line ends and tabs as they are. text: NUL-terminated after its
 * `bytes`, among which may be others; NULL if bytes is 0. */
void printable_put(FILE *out, const char *text, size_t bytes);

/* Prints `size` bytes of words in lines of `width` columns: the first begins with `begin`, the others with blanks. */
void wrapped_put(FILE *out, int width, const char *begin, const char *text, size_t size);

/* SPDX-License-Identifier: Apache-2.0 */
/* printable.h: makes text from outside safe for terminals, which obey escape sequences, and logs: control characters
 * (C0 with tab and newline, DEL, C1) and bytes that are not UTF-8 are shown as \xNN. A backslash is not escaped. */
#pragma once

#include "core/status.h"

enum { PRINTABLE_SIZE = 1024 };

/* `text` if it is printable, else its form in `buffer` (`size` >= 8 bytes), cut with "..." if it does not fit. */
const char *printable(const char *text, char *buffer, size_t size);

/* The same with a buffer that lives to the end of the enclosing block. */
#define PRINTABLE(text) printable((text), (char[PRINTABLE_SIZE]){0}, PRINTABLE_SIZE)

/* The end of a noun: "2 steps", "1 step". */
#define PLURAL(count) ((count) == 1 ? "" : "s")

/* A word as a POSIX shell takes it, for free(): plain or in quotes; $'…' (bash, zsh, ksh) if it is not printable. */
char *shell_word(const char *text);

/* Prints a text in this form, with its line ends and tabs. text: NUL after its `bytes`; NULL if bytes is 0. */
void printable_put(FILE *out, const char *text, size_t bytes);

/* Prints `size` bytes of words in lines of `width` columns: the first begins with `begin`, the others with blanks. */
void wrapped_put(FILE *out, int width, const char *begin, const char *text, size_t size);

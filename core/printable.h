/* printable.h: makes text from outside (file names, manifests, tensor names, messages of peers) safe for terminals and
 * logs.
 *
 * A terminal obeys escape sequences: a file name that has one could clear the screen, forge a line or rename the
 * window. So every byte that is not part of a printable character of UTF-8 is shown as \xNN: control characters (C0
 * with tab and newline, DEL, C1) and bytes that are not UTF-8. A backslash is not escaped. */
#pragma once

#include <stddef.h>

enum { PRINTABLE_SIZE = 1024 };

/* Returns `text` if all of it is printable, else its printable form in `buffer` (of `size` >= 8 bytes; a form that does
 * not fit is cut and ends with "..."). The result lives as long as both. */
const char *printable(const char *text, char *buffer, size_t size);

/* The same with a buffer that lives to the end of the enclosing block: printf("%s\n", PRINTABLE(name)); */
#define PRINTABLE(text) printable((text), (char[PRINTABLE_SIZE]){0}, PRINTABLE_SIZE)

/* SPDX-License-Identifier: Apache-2.0 */
/* size_text.h: a number of bytes as people write it: "300MiB", "80 GB", "1.5TiB", "1048576". */
#pragma once

#include "core/status.h"

/* The forms that size_parse() takes, for messages. */
#define SIZE_FORMS \
    "a number and KiB, MiB, GiB or TiB (powers of 1024) or KB, MB, GB or TB (powers of 1000), or a number of bytes"

/* Parses a size from one byte to below 2^63; a blank may precede the unit, a fraction of a byte is dropped. */
bool size_parse(const char *text, int64_t *bytes);

/* Writes the shortest text that size_parse() reads as exactly these bytes, and returns `text`. */
enum { SIZE_TEXT_MAX = 32 };
const char *size_format(int64_t bytes, char text[SIZE_TEXT_MAX]);

/* The same in the largest binary unit below them with one decimal, "79.6 GiB". */
const char *size_round(int64_t bytes, char text[SIZE_TEXT_MAX]);

/* The same for a block's lifetime: printf("%s", SIZE(round, bytes)). */
#define SIZE(kind, bytes) size_##kind((int64_t)(bytes), (char[SIZE_TEXT_MAX]){0})

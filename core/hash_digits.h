/* SPDX-License-Identifier: Apache-2.0 */
/* hash_digits.h: a 64-bit hash as text: 16 lower-case hexadecimal digits, as in manifests. */
#pragma once

#include "core/status.h"

enum { HASH_DIGITS = 16 };

struct hash_digits {
    char text[HASH_DIGITS + 1];
};

static inline struct hash_digits hash_digits(uint64_t hash)
{
    struct hash_digits digits;
    snprintf(digits.text, sizeof digits.text, "%016" PRIx64, hash);
    return digits;
}

/* Returns false, and leaves *hash, if the text is anything but 16 lower-case hexadecimal digits. */
static inline bool hash_digits_parse(const char *text, uint64_t *hash)
{
    if (strlen(text) != HASH_DIGITS || strspn(text, "0123456789abcdef") != HASH_DIGITS) return false;
    *hash = strtoull(text, NULL, 16);
    return true;
}

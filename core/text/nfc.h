/* nfc.h: Unicode's normalization form C (UAX #15), with the tables of unicode.h. */
#pragma once

#include "core/text/text_buffer.h"

/* Appends the NFC of `text` (UTF-8) to `out`. O(n), also for one letter with a million accents. */
void nfc_add(const char *text, size_t count, struct text *out);

/* nfc.h: Unicode's normalization form C (UAX #15), with the tables of unicode.h. */
#ifndef ZTRAIN_CORE_TEXT_NFC_H
#define ZTRAIN_CORE_TEXT_NFC_H

#include "core/text/text_buffer.h"

/* Appends the NFC of `text` (UTF-8) to `out`. O(n), also for one letter with a million accents. */
void nfc_add(const char *text, size_t count, struct text *out);

#endif

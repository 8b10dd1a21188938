#include "core/printable.h"

#include "core/status.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The number of bytes of the printable character at the beginning of `text`; 0: there is none. */
static size_t printable_length(const unsigned char *text)
{
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000}; /* the least code point that needs this many bytes */
    if (text[0] < 0x80)
        return text[0] >= 0x20 && text[0] != 0x7f ? 1 : 0;
    size_t length = text[0] >= 0xf0 ? 4 : text[0] >= 0xe0 ? 3 : 2;
    if (text[0] < 0xc2 || text[0] > 0xf4)
        return 0;
    unsigned point = text[0] & (0xffu >> (length + 1));
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) /* also at the text's end */
            return 0;
        point = point << 6 | (text[i] & 0x3fu);
    }
    bool surrogate = point >= 0xd800 && point <= 0xdfff, c1 = point < 0xa0;
    return point < least[length] || point > 0x10ffff || surrogate || c1 ? 0 : length;
}

static bool is_printable(const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c;) {
        size_t length = printable_length(c);
        if (!length)
            return false;
        c += length;
    }
    return true;
}

const char *printable(const char *text, char *buffer, size_t size)
{
    static const char cut[] = "...";
    ASSERT(size >= 8);
    if (is_printable(text))
        return text;
    size_t used = 0, cut_at = 0; /* cut_at: the dots still fit after this many bytes */
    for (const unsigned char *c = (const unsigned char *)text; *c;) {
        size_t length = printable_length(c), shown = length ? length : 4;
        if (used + sizeof cut <= size)
            cut_at = used;
        if (used + shown + 1 > size) {
            memcpy(buffer + cut_at, cut, sizeof cut);
            return buffer;
        }
        if (length)
            memcpy(buffer + used, c, length);
        else
            snprintf(buffer + used, size - used, "\\x%02x", *c);
        used += shown;
        c += length ? length : 1;
    }
    buffer[used] = 0;
    return buffer;
}

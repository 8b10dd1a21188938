#include "core/text/utf8.h"

/* The length of a character by its first byte, 0 for a byte that begins none, and the bounds of its second byte. */
static int character_length(unsigned char first, unsigned char *low, unsigned char *high)
{
    *low = 0x80, *high = 0xbf;
    if (first < 0x80)
        return 1;
    if (first < 0xc2 || first > 0xf4)
        return 0;
    if (first == 0xe0)
        *low = 0xa0; /* below are overlong forms */
    else if (first == 0xed)
        *high = 0x9f; /* surrogates */
    else if (first == 0xf0)
        *low = 0x90;
    else if (first == 0xf4)
        *high = 0x8f; /* above U+10FFFF */
    return first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

int utf8_next(const unsigned char *bytes, size_t count, uint32_t *point)
{
    unsigned char low, high;
    if (count == 0)
        return 0;
    int length = character_length(bytes[0], &low, &high);
    if (length <= 1) {
        *point = bytes[0];
        return length == 1 ? 1 : -1;
    }
    uint32_t value = bytes[0] & (0x7fu >> length);
    for (int i = 1; i < length; i++) {
        if ((size_t)i >= count)
            return 0;
        if (bytes[i] < (i == 1 ? low : 0x80) || bytes[i] > (i == 1 ? high : 0xbf))
            return -i;
        value = value << 6 | (bytes[i] & 0x3f);
    }
    *point = value;
    return length;
}

int utf8_put(uint32_t point, char out[UTF8_MAX])
{
    if (point < 0x80) {
        out[0] = (char)point;
        return 1;
    }
    int length = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--, point >>= 6)
        out[i] = (char)(0x80 | (point & 0x3f));
    out[0] = (char)((0xf00 >> length & 0xf0) | point);
    return length;
}

uint32_t utf8_at(const char *text, int *length)
{
    const unsigned char *bytes = (const unsigned char *)text;
    if (bytes[0] < 0x80) {
        *length = 1;
        return bytes[0];
    }
    int count = bytes[0] < 0xe0 ? 2 : bytes[0] < 0xf0 ? 3 : 4;
    uint32_t value = bytes[0] & (0x7fu >> count);
    for (int i = 1; i < count; i++)
        value = value << 6 | (bytes[i] & 0x3f);
    *length = count;
    return value;
}

size_t utf8_back(const char *text, size_t at)
{
    do
        at--;
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80);
    return at;
}

size_t utf8_check(const char *text, size_t count)
{
    size_t at = 0;
    while (at < count) {
        uint32_t point;
        int length = utf8_next((const unsigned char *)text + at, count - at, &point);
        if (length <= 0)
            break;
        at += (size_t)length;
    }
    return at;
}

#include "core/text/utf8.h"

#include <stdbool.h>
#include <string.h>
#include <utf8proc.h>

/* Whether more bytes can make a character of these: the least or the greatest that may follow do. */
static bool begins_character(const unsigned char *bytes, size_t count)
{
    static const int fills[] = {0x80, 0xbf};
    for (int i = 0; i < 2; i++) {
        unsigned char whole[UTF8_MAX];
        utf8proc_int32_t point;
        memset(whole, fills[i], sizeof whole);
        memcpy(whole, bytes, count);
        if (utf8proc_iterate(whole, sizeof whole, &point) > (utf8proc_ssize_t)count)
            return true;
    }
    return false;
}

int utf8_next(const unsigned char *bytes, size_t count, uint32_t *point)
{
    utf8proc_int32_t found;
    const utf8proc_ssize_t length = utf8proc_iterate(bytes, (utf8proc_ssize_t)count, &found);
    size_t part = 0;
    if (length > 0) {
        *point = (uint32_t)found;
        return (int)length;
    }
    while (part < count && part + 1 < UTF8_MAX && begins_character(bytes, part + 1))
        part++;
    return part == count ? 0 : part ? -(int)part : -1;
}

int utf8_put(uint32_t point, char out[UTF8_MAX])
{
    return (int)utf8proc_encode_char((utf8proc_int32_t)point, (utf8proc_uint8_t *)out);
}

uint32_t utf8_at(const char *text, int *length)
{
    utf8proc_int32_t point;
    *length = (int)utf8proc_iterate((const utf8proc_uint8_t *)text, -1, &point);
    return (uint32_t)point;
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

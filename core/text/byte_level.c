#include "core/text/byte_level.h"

#include "core/text/utf8.h"

#include <stdbool.h>

enum { FIRST_SUBSTITUTE = 0x100, BELOW_PRINTABLE = 33, DELETE = 127, LAST_CONTROL = 160, SOFT_HYPHEN = 173 };

static bool stands_for_itself(unsigned byte)
{
    return byte >= BELOW_PRINTABLE && !(byte >= DELETE && byte <= LAST_CONTROL) && byte != SOFT_HYPHEN;
}

uint32_t byte_level_point(unsigned char byte)
{
    if (stands_for_itself(byte))
        return byte;
    if (byte < BELOW_PRINTABLE)
        return FIRST_SUBSTITUTE + (uint32_t)byte;
    if (byte == SOFT_HYPHEN)
        return FIRST_SUBSTITUTE + BELOW_PRINTABLE + (LAST_CONTROL - DELETE + 1);
    return FIRST_SUBSTITUTE + BELOW_PRINTABLE + (uint32_t)(byte - DELETE);
}

int byte_level_byte(uint32_t point)
{
    if (point < 256)
        return stands_for_itself(point) ? (int)point : -1;
    uint32_t order = point - FIRST_SUBSTITUTE;
    if (order < BELOW_PRINTABLE)
        return (int)order;
    order -= BELOW_PRINTABLE;
    if (order <= LAST_CONTROL - DELETE)
        return (int)(DELETE + order);
    return order == LAST_CONTROL - DELETE + 1 ? SOFT_HYPHEN : -1;
}

void byte_level_map(const char *bytes, size_t count, struct text *out)
{
    for (size_t i = 0; i < count; i++) {
        char character[UTF8_MAX];
        text_add(out, character, (size_t)utf8_put(byte_level_point((unsigned char)bytes[i]), character));
    }
}

void byte_level_unmap(const char *text, size_t bytes, struct text *out)
{
    size_t before = out->count;
    for (size_t at = 0; at < bytes;) {
        int length, byte = byte_level_byte(utf8_at(text + at, &length));
        if (byte < 0) {
            out->count = before;
            text_add(out, text, bytes);
            return;
        }
        char value = (char)byte;
        text_add(out, &value, 1);
        at += (size_t)length;
    }
}

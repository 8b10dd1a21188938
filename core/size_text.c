/* SPDX-License-Identifier: Apache-2.0 */
#include "core/size_text.h"

/* Of two units that give texts of the same length, the first one is used. */
static const struct {
    const char *name;
    int64_t bytes;
} size_units[] = {
    {"TiB", INT64_C(1) << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"TB", INT64_C(1000000000000)},
    {"GB", 1000000000},        {"MB", 1000000},  {"KB", 1000},     {"kB", 1000},     {"B", 1}};

bool size_parse(const char *text, int64_t *bytes)
{
    char *end;
    int64_t unit = 1;
    /* strtod() takes blanks, signs, "inf" and hexadecimal numbers as well */
    if (*text < '0' || *text > '9' || text[1] == 'x' || text[1] == 'X') return false;
    double value = strtod(text, &end);
    const char *name = end;
    while (*name == ' ') name++;
    if (*name) {
        size_t i = 0;
        while (i < COUNT_OF(size_units) && strcmp(name, size_units[i].name) != 0) i++;
        if (i == COUNT_OF(size_units)) return false;
        unit = size_units[i].bytes;
    } else if (name != end) {
        return false;
    }
    if (end == text + strspn(text, "0123456789")) { /* may have more digits than a double */
        errno = 0;
        int64_t count = strtoll(text, NULL, 10), exact;
        if (errno || count == 0 || __builtin_mul_overflow(count, unit, &exact)) return false;
        *bytes = exact;
        return true;
    }
    value = floor(value * (double)unit);
    if (!(value >= 1 && value < 0x1p63)) return false;
    *bytes = (int64_t)value;
    return true;
}

const char *size_format(int64_t bytes, char text[SIZE_TEXT_MAX])
{
    snprintf(text, SIZE_TEXT_MAX, "%" PRId64, bytes);
    for (size_t i = 0; i < COUNT_OF(size_units); i++) {
        char other[SIZE_TEXT_MAX];
        if (bytes % size_units[i].bytes != 0) continue;
        snprintf(other, sizeof other, "%" PRId64 "%s", bytes / size_units[i].bytes, size_units[i].name);
        if (strlen(other) < strlen(text)) memcpy(text, other, sizeof other);
    }
    return text;
}

const char *size_round(int64_t bytes, char text[SIZE_TEXT_MAX])
{
    enum { BINARY = 4 };
    for (size_t i = 0; i < BINARY; i++)
        if (bytes >= size_units[i].bytes) {
            snprintf(text, SIZE_TEXT_MAX, "%.1f %s", (double)bytes / (double)size_units[i].bytes, size_units[i].name);
            return text;
        }
    snprintf(text, SIZE_TEXT_MAX, "%" PRId64 " bytes", bytes);
    return text;
}

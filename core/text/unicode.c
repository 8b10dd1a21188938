/* SPDX-License-Identifier: Apache-2.0 AND Unicode-3.0 */
#include "core/text/unicode.h"

#include "core/memory.h"

#include <utf8proc.h>

/* ---- UTF-8 --------------------------------------------------------------- */

/* Whether more bytes can make a character of these: the least or the greatest that may follow do. */
static bool utf8_begins_character(const unsigned char *bytes, size_t count)
{
    static const int fills[] = {0x80, 0xbf};
    for (int i = 0; i < 2; i++) {
        unsigned char whole[UTF8_MAX];
        utf8proc_int32_t point;
        memset(whole, fills[i], sizeof whole);
        memcpy(whole, bytes, count);
        if (utf8proc_iterate(whole, sizeof whole, &point) > (utf8proc_ssize_t)count) return true;
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
    while (part < count && part + 1 < UTF8_MAX && utf8_begins_character(bytes, part + 1)) part++;
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
    do at--;
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80);
    return at;
}

size_t utf8_check(const char *text, size_t count)
{
    size_t at = 0;
    while (at < count) {
        uint32_t point;
        int length = utf8_next((const unsigned char *)text + at, count - at, &point);
        if (length <= 0) break;
        at += (size_t)length;
    }
    return at;
}

/* From scripts/make-unicode-tables.py. */
/* clang-format off */
const struct unicode_run unicode_newer[] = {
    {0x7fd, 0x7fd, "Mn"}, {0x897, 0x89f, "Mn"}, {0x8ca, 0x8d3, "Mn"}, {0x9fe, 0x9fe, "Mn"}, {0xc3c, 0xc3c, "Mn"},
    {0xcf3, 0xcf3, "Mc"}, {0xd3b, 0xd3c, "Mn"}, {0xeba, 0xeba, "Mn"}, {0xece, 0xece, "Mn"}, {0x1715, 0x1715, "Mc"},
    {0x1abf, 0x1ace, "Mn"}, {0x1b4e, 0x1b4f, "Po"}, {0x1b7f, 0x1b7f, "Po"}, {0x1c89, 0x1c89, "Lu"},
    {0x1c8a, 0x1c8a, "Ll"}, {0x1df6, 0x1dfa, "Mn"}, {0x2427, 0x2429, "So"}, {0x2ffc, 0x2fff, "So"},
    {0x31e4, 0x31e5, "So"}, {0x31ef, 0x31ef, "So"}, {0xa7cb, 0xa7cc, "Lu"}, {0xa7cd, 0xa7cd, "Ll"},
    {0xa7da, 0xa7da, "Lu"}, {0xa7db, 0xa7db, "Ll"}, {0xa7dc, 0xa7dc, "Lu"}, {0xa82c, 0xa82c, "Mn"},
    {0x105c0, 0x105f3, "Lo"}, {0x10d24, 0x10d27, "Mn"}, {0x10d40, 0x10d49, "Nd"}, {0x10d4a, 0x10d4d, "Lo"},
    {0x10d4e, 0x10d4e, "Lm"}, {0x10d4f, 0x10d4f, "Lo"}, {0x10d50, 0x10d65, "Lu"}, {0x10d69, 0x10d6d, "Mn"},
    {0x10d6e, 0x10d6e, "Pd"}, {0x10d6f, 0x10d6f, "Lm"}, {0x10d70, 0x10d85, "Ll"}, {0x10d8e, 0x10d8f, "Sm"},
    {0x10eab, 0x10eac, "Mn"}, {0x10ec2, 0x10ec4, "Lo"}, {0x10efc, 0x10eff, "Mn"}, {0x10f46, 0x10f50, "Mn"},
    {0x10f82, 0x10f85, "Mn"}, {0x11070, 0x11070, "Mn"}, {0x1123f, 0x11240, "Lo"}, {0x11241, 0x11241, "Mn"},
    {0x1133b, 0x1133b, "Mn"}, {0x11380, 0x11389, "Lo"}, {0x1138b, 0x1138b, "Lo"}, {0x1138e, 0x1138e, "Lo"},
    {0x11390, 0x113b5, "Lo"}, {0x113b7, 0x113b7, "Lo"}, {0x113b8, 0x113ba, "Mc"}, {0x113bb, 0x113c0, "Mn"},
    {0x113c2, 0x113c2, "Mc"}, {0x113c5, 0x113c5, "Mc"}, {0x113c7, 0x113ca, "Mc"}, {0x113cc, 0x113cd, "Mc"},
    {0x113ce, 0x113ce, "Mn"}, {0x113cf, 0x113cf, "Mc"}, {0x113d0, 0x113d0, "Mn"}, {0x113d1, 0x113d1, "Lo"},
    {0x113d2, 0x113d2, "Mn"}, {0x113d3, 0x113d3, "Lo"}, {0x113d4, 0x113d5, "Po"}, {0x113d7, 0x113d8, "Po"},
    {0x113e1, 0x113e2, "Mn"}, {0x1145e, 0x1145e, "Mn"}, {0x116d0, 0x116e3, "Nd"}, {0x1171e, 0x1171e, "Mc"},
    {0x11839, 0x1183a, "Mn"}, {0x11930, 0x11930, "Mc"}, {0x11938, 0x11938, "Mc"}, {0x1193d, 0x1193d, "Mc"},
    {0x1193e, 0x1193e, "Mn"}, {0x11943, 0x11943, "Mn"}, {0x119e0, 0x119e0, "Mn"}, {0x11a34, 0x11a34, "Mn"},
    {0x11a47, 0x11a47, "Mn"}, {0x11a99, 0x11a99, "Mn"}, {0x11b00, 0x11b09, "Po"}, {0x11bc0, 0x11be0, "Lo"},
    {0x11be1, 0x11be1, "Po"}, {0x11bf0, 0x11bf9, "Nd"}, {0x11d42, 0x11d42, "Mn"}, {0x11d44, 0x11d45, "Mn"},
    {0x11d97, 0x11d97, "Mn"}, {0x11f00, 0x11f01, "Mn"}, {0x11f02, 0x11f02, "Lo"}, {0x11f03, 0x11f03, "Mc"},
    {0x11f04, 0x11f10, "Lo"}, {0x11f12, 0x11f33, "Lo"}, {0x11f34, 0x11f35, "Mc"}, {0x11f36, 0x11f3a, "Mn"},
    {0x11f3e, 0x11f3f, "Mc"}, {0x11f40, 0x11f40, "Mn"}, {0x11f41, 0x11f41, "Mc"}, {0x11f42, 0x11f42, "Mn"},
    {0x11f43, 0x11f4f, "Po"}, {0x11f50, 0x11f59, "Nd"}, {0x11f5a, 0x11f5a, "Mn"}, {0x1342f, 0x1342f, "Lo"},
    {0x13439, 0x1343f, "Cf"}, {0x13440, 0x13440, "Mn"}, {0x13441, 0x13446, "Lo"}, {0x13447, 0x13455, "Mn"},
    {0x13460, 0x143fa, "Lo"}, {0x16100, 0x1611d, "Lo"}, {0x1611e, 0x16129, "Mn"}, {0x1612a, 0x1612c, "Mc"},
    {0x1612d, 0x1612f, "Mn"}, {0x16130, 0x16139, "Nd"}, {0x16d40, 0x16d42, "Lm"}, {0x16d43, 0x16d6a, "Lo"},
    {0x16d6b, 0x16d6c, "Lm"}, {0x16d6d, 0x16d6f, "Po"}, {0x16d70, 0x16d79, "Nd"}, {0x16ff0, 0x16ff1, "Mc"},
    {0x18cff, 0x18cff, "Lo"}, {0x1b132, 0x1b132, "Lo"}, {0x1b155, 0x1b155, "Lo"}, {0x1cc00, 0x1ccef, "So"},
    {0x1ccf0, 0x1ccf9, "Nd"}, {0x1cd00, 0x1ceb3, "So"}, {0x1d2c0, 0x1d2d3, "No"}, {0x1df25, 0x1df2a, "Ll"},
    {0x1e030, 0x1e06d, "Lm"}, {0x1e08f, 0x1e08f, "Mn"}, {0x1e130, 0x1e136, "Mn"}, {0x1e2ae, 0x1e2ae, "Mn"},
    {0x1e2ec, 0x1e2ef, "Mn"}, {0x1e4d0, 0x1e4ea, "Lo"}, {0x1e4eb, 0x1e4eb, "Lm"}, {0x1e4ec, 0x1e4ef, "Mn"},
    {0x1e4f0, 0x1e4f9, "Nd"}, {0x1e5d0, 0x1e5ed, "Lo"}, {0x1e5ee, 0x1e5ef, "Mn"}, {0x1e5f0, 0x1e5f0, "Lo"},
    {0x1e5f1, 0x1e5fa, "Nd"}, {0x1e5ff, 0x1e5ff, "Po"}, {0x1f6dc, 0x1f6dc, "So"}, {0x1f774, 0x1f776, "So"},
    {0x1f77b, 0x1f77f, "So"}, {0x1f7d9, 0x1f7d9, "So"}, {0x1f8b2, 0x1f8bb, "So"}, {0x1f8c0, 0x1f8c1, "So"},
    {0x1fa75, 0x1fa77, "So"}, {0x1fa87, 0x1fa89, "So"}, {0x1fa8f, 0x1fa8f, "So"}, {0x1faad, 0x1faaf, "So"},
    {0x1fabb, 0x1fabf, "So"}, {0x1fac6, 0x1fac6, "So"}, {0x1face, 0x1facf, "So"}, {0x1fada, 0x1fadc, "So"},
    {0x1fadf, 0x1fadf, "So"}, {0x1fae8, 0x1fae9, "So"}, {0x1faf7, 0x1faf8, "So"}, {0x1fbcb, 0x1fbef, "So"},
    {0x2b739, 0x2b739, "Lo"}, {0x2ebf0, 0x2ee5d, "Lo"}, {0x31350, 0x323af, "Lo"},
};
/* clang-format on */
const int unicode_newer_count = COUNT_OF(unicode_newer);

/* ---- categories ---------------------------------------------------------- */

static int compare_with_run(const void *key, const void *entry)
{
    const uint32_t point = *(const uint32_t *)key;
    const struct unicode_run *run = entry;
    return point < run->first ? -1 : point > run->last;
}

static const struct unicode_run *find_newer(uint32_t point)
{
    return bsearch(&point, unicode_newer, COUNT_OF(unicode_newer), sizeof *unicode_newer, compare_with_run);
}

/* Like "Lu". */
static const char *unicode_category_of(uint32_t point)
{
    const struct unicode_run *newer = find_newer(point);
    return newer ? newer->category : utf8proc_category_string((utf8proc_int32_t)point);
}

bool unicode_is_category(const char *name)
{
    static const char names[] =
        "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cn Co Cs";
    return (strlen(name) == 1 && strchr("LMNPSZC", name[0])) ||
           (strlen(name) == 2 && !strchr(name, ' ') && strstr(names, name));
}

bool unicode_is_space(uint32_t point)
{
    return (point >= 9 && point <= 13) || point == 0x85 || unicode_category_of(point)[0] == 'Z';
}

bool unicode_is_word(uint32_t point)
{
    const char *category = unicode_category_of(point);
    return strchr("LM", category[0]) || strcmp(category, "Nd") == 0 || strcmp(category, "Nl") == 0 ||
           strcmp(category, "Pc") == 0 || point == 0x200c || point == 0x200d || /* joiners, circled letters */
           (point >= 0x24b6 && point <= 0x24e9) || (point >= 0x1f130 && point <= 0x1f149) ||
           (point >= 0x1f150 && point <= 0x1f169) || (point >= 0x1f170 && point <= 0x1f189);
}

/* ---- NFC ----------------------------------------------------------------- */

static int unicode_combining_class(utf8proc_int32_t point)
{
    return utf8proc_get_property(point)->combining_class;
}

/* Puts marks in the order of their classes; `spare` is as large as `count`. (utf8proc takes its square.) */
static void unicode_order_marks(utf8proc_int32_t *points, size_t count, utf8proc_int32_t *spare)
{
    size_t ordered = 0;
    int next;
    for (int class = 1; ordered < count; class = next) {
        next = 256;
        for (size_t i = 0; i < count; i++) {
            const int other = unicode_combining_class(points[i]);
            if (other == class)
                spare[ordered++] = points[i];
            else if (other > class && other < next)
                next = other;
        }
    }
    memcpy(points, spare, count * sizeof *points);
}

static void unicode_add_normal(utf8proc_int32_t *points, size_t count, utf8proc_int32_t *spare, struct text *out)
{
    for (size_t first = 0, end; first < count; first = end + (end == first)) {
        for (end = first; end < count && unicode_combining_class(points[end]);) end++;
        if (end > first + 1) unicode_order_marks(points + first, end - first, spare);
    }
    const utf8proc_ssize_t length =
        utf8proc_normalize_utf32(points, (utf8proc_ssize_t)count, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    for (utf8proc_ssize_t i = 0; i < length; i++) {
        char bytes[UTF8_MAX];
        text_add(out, bytes, (size_t)utf8_put((uint32_t)points[i], bytes));
    }
}

void unicode_nfc(const char *text, size_t count, struct text *out)
{
    enum { LONGEST = 4, PIECE = 4096 }; /* LONGEST: canonical decomposition */
    OWNED utf8proc_int32_t *points = NULL, *spare = NULL;
    size_t done = 0, room = 0;
    for (size_t at = 0; at < count;) {
        int length, boundary = 0;
        const uint32_t point = utf8_at(text + at, &length);
        const bool newer = find_newer(point); /* it stays as it is, where it is */
        if (newer || (done > PIECE && point < 128)) {
            unicode_add_normal(points, done, spare, out);
            done = 0;
        }
        if (done + LONGEST > room) {
            room = 2 * room + PIECE;
            points = memory_resize(points, room * sizeof *points);
            spare = memory_resize(spare, room * sizeof *spare);
        }
        if (newer)
            text_add(out, text + at, (size_t)length);
        else
            done += (size_t)utf8proc_decompose_char((utf8proc_int32_t)point, points + done, LONGEST, UTF8PROC_DECOMPOSE,
                                                    &boundary);
        at += (size_t)length;
    }
    unicode_add_normal(points, done, spare, out);
}

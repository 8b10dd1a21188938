#include "core/text/unicode.h"

#include <string.h>

static const char category_names[UNICODE_CATEGORIES][3] = {"Cn", "Cc", "Cf", "Co", "Cs", "Lu", "Ll", "Lt", "Lm", "Lo",
                                                           "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
                                                           "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp"};

enum unicode_category unicode_category(uint32_t point)
{
    int low = 0, high = unicode_category_count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (unicode_category_runs[middle] >> 5 <= point)
            low = middle;
        else
            high = middle;
    }
    return (enum unicode_category)(unicode_category_runs[low] & 31);
}

uint32_t unicode_categories_named(const char *name)
{
    uint32_t found = 0;
    size_t length = strlen(name);
    if (length < 1 || length > 2)
        return 0;
    for (int i = 0; i < UNICODE_CATEGORIES; i++)
        if (strncmp(category_names[i], name, length) == 0)
            found |= 1u << i;
    return found;
}

bool unicode_is_space(uint32_t point)
{
    return (point >= 9 && point <= 13) || point == ' ' || point == 0x85 || point == 0xa0 || point == 0x1680 ||
           (point >= 0x2000 && point <= 0x200a) || point == 0x2028 || point == 0x2029 || point == 0x202f ||
           point == 0x205f || point == 0x3000;
}

bool unicode_is_number(uint32_t point)
{
    if ((point >= 0x11de0 && point <= 0x11de9) ||
        (point >= 0x16ff4 && point <= 0x16ff6)) /* Unicode 17, as Rust has it */
        return true;
    enum unicode_category category = unicode_category(point);
    return category >= UNICODE_ND && category <= UNICODE_NO;
}

bool unicode_is_word(uint32_t point)
{
    enum unicode_category category = unicode_category(point);
    if ((category >= UNICODE_LU && category <= UNICODE_NL) || category == UNICODE_PC)
        return true;
    return point == 0x200c || point == 0x200d || (point >= 0x24b6 && point <= 0x24e9) || /* joiners, circled letters */
           (point >= 0x1f130 && point <= 0x1f149) || (point >= 0x1f150 && point <= 0x1f169) ||
           (point >= 0x1f170 && point <= 0x1f189);
}

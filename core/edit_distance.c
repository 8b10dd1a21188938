/* SPDX-License-Identifier: Apache-2.0 */
/* edit_distance.c: Damerau and Levenshtein's (no letter moves twice), over the last three rows of the table. */
#include "core/edit_distance.h"

#include "core/round_up.h"

enum { MAX_NAME = 64 };

int edit_distance(const char *a, const char *b)
{
    size_t na = strlen(a), nb = strlen(b);
    if (na > MAX_NAME || nb > MAX_NAME) return 99;
    int rows[3][MAX_NAME + 1]; /* rows i-2, i-1 and i of the table, in turn */
    for (size_t j = 0; j <= nb; j++) rows[0][j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int ca = tolower((unsigned char)a[i - 1]), cb = tolower((unsigned char)b[j - 1]);
            row[j] = (int)min64(above[j - 1] + (ca != cb), min64(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && ca == tolower((unsigned char)b[j - 2]) && cb == tolower((unsigned char)a[i - 2]))
                row[j] = (int)min64(row[j], above2[j - 2] + 1);
        }
    }
    return rows[na % 3][nb];
}

int edit_distance_limit(const char *text)
{
    return (int)min64(1 + (int)strlen(text) / 4, 4);
}

const char *nearest_name(const char *word, const char *const *names, size_t count)
{
    char name[64];
    const char *start = word + strspn(word, "-"), *nearest = NULL;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(start, "="), start);
    int least = edit_distance_limit(name) + 1;
    for (size_t i = 0; i < count; i++) {
        int distance = edit_distance(name, names[i]);
        if (distance < least) {
            least = distance;
            nearest = names[i];
        }
    }
    return nearest;
}

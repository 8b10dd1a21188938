#include "cmd/unknown_word.h"

#include "core/edit_distance.h"

#include <stdio.h>
#include <string.h>

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

enum status unknown_option(const char *command, const char *word, const char *const *names, size_t count,
                           struct error *err)
{
    const char *nearest = nearest_name(word, names, count);
    error_set(err, STATUS_USAGE, "unknown option '%s'", word);
    if (nearest)
        return error_hint(err, "did you mean --%s?", nearest);
    return error_hint(err, "ztrain %s%s--help lists the options", command, *command ? " " : "");
}

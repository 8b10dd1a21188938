#include "cmd/report/spec_differences.h"

#include "core/memory.h"

#include <string.h>

/* Whether a run has another value of the key than the first run. */
static bool differs(const struct watched_run *runs, int count, const char *key)
{
    const char *first = spec_pairs_find(&runs[0].spec, key);
    for (int r = 1; r < count; r++) {
        const char *other = spec_pairs_find(&runs[r].spec, key);
        if (!first != !other || (first && strcmp(first, other) != 0))
            return true;
    }
    return false;
}

static bool is_listed(const struct spec_differences *all, const char *key)
{
    for (int i = 0; i < all->count; i++)
        if (!strcmp(all->keys[i], key))
            return true;
    return !strcmp(key, "run.name") || !strcmp(key, "run.dir");
}

struct spec_differences spec_differences(const struct watched_run *runs, int count)
{
    struct spec_differences all = {.keys = NULL};
    for (int r = 0; r < count; r++)
        for (int i = 0; i < runs[r].spec.count; i++) {
            const char *key = runs[r].spec.items[i].key;
            if (!differs(runs, count, key) || is_listed(&all, key))
                continue;
            all.keys = memory_resize(all.keys, (size_t)(all.count + 1) * sizeof *all.keys);
            all.keys[all.count++] = key;
        }
    return all;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "core/spec/spec_pairs.h"

#include "core/fsutil.h"
#include "core/memory.h"
#include "core/spec/spec_tree.h"

#include <stdlib.h>
#include <string.h>

static void put_pair_value(FILE *out, const struct spec_node *node)
{
    const bool list = node->kind == NODE_LIST;
    if (!list && node->kind != NODE_MAPPING) {
        fputs(node->text, out);
        return;
    }
    fputc(list ? '[' : '{', out);
    for (const struct spec_node *child = node->first; child; child = child->next) {
        fputs(child == node->first ? "" : ", ", out);
        if (!list)
            fprintf(out, "%s: ", child->key);
        put_pair_value(out, child);
    }
    fputc(list ? ']' : '}', out);
}

/* The members of a mapping; prefix: its path, with a dot at its end, or "". */
static void add_pairs(struct spec_pairs *pairs, const struct spec_node *mapping, const char *prefix)
{
    for (const struct spec_node *node = mapping->first; node; node = node->next) {
        const bool section = node->kind == NODE_MAPPING;
        char *key = memory_printf("%s%s%s", prefix, node->key, section ? "." : "");
        if (section) {
            add_pairs(pairs, node, key);
            free(key);
            continue;
        }
        pairs->items = memory_resize(pairs->items, (size_t)(pairs->count + 1) * sizeof *pairs->items);
        struct spec_pair *pair = &pairs->items[pairs->count++];
        size_t bytes;
        pair->key = key;
        FILE *out = memory_stream(&pair->value, &bytes);
        put_pair_value(out, node);
        fclose(out);
    }
}

enum status spec_pairs_read(struct spec_pairs *pairs, const char *path, struct error *err)
{
    char *text;
    size_t bytes;
    struct spec_arena arena = {NULL};
    struct spec_context ctx = {.arena = &arena, .sources = &path, .num_sources = 1};
    *pairs = (struct spec_pairs){.count = 0};
    TRY(fs_read_file(path, SPEC_MAX_BYTES, STATUS_CHECKPOINT, &text, &bytes, err));
    const struct spec_node *root = spec_parse_yaml(&ctx, 0, text, bytes);
    const bool is_spec = root && root->kind == NODE_MAPPING;
    if (is_spec)
        add_pairs(pairs, root, "");
    spec_arena_release(&arena);
    free(text);
    return is_spec ? STATUS_OK : error_set(err, STATUS_CHECKPOINT, "'%s' is not a run spec", path);
}

void spec_pairs_release(struct spec_pairs *pairs)
{
    for (int i = 0; i < pairs->count; i++) {
        free(pairs->items[i].key);
        free(pairs->items[i].value);
    }
    free(pairs->items);
    *pairs = (struct spec_pairs){.count = 0};
}

const char *spec_pairs_find(const struct spec_pairs *pairs, const char *key)
{
    for (int i = 0; i < pairs->count; i++)
        if (!strcmp(pairs->items[i].key, key))
            return pairs->items[i].value;
    return NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "core/spec/spec_pairs.h"

#include "core/fsutil.h"
#include "core/memory.h"
#include "core/spec/spec_tree.h"

#include <stdlib.h>

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
static void add_pairs(json_t *pairs, const struct spec_node *mapping, const char *prefix)
{
    for (const struct spec_node *node = mapping->first; node; node = node->next) {
        const bool section = node->kind == NODE_MAPPING;
        char *key = memory_printf("%s%s%s", prefix, node->key, section ? "." : ""), *value = NULL;
        size_t bytes;
        if (section) {
            add_pairs(pairs, node, key);
        } else {
            FILE *out = memory_stream(&value, &bytes);
            put_pair_value(out, node);
            fclose(out);
            json_object_set_new(pairs, key, json_string(value));
        }
        free(value);
        free(key);
    }
}

enum status spec_pairs_read(json_t **pairs, const char *path, struct error *err)
{
    char *text;
    size_t bytes;
    struct spec_arena arena = {NULL};
    struct spec_context ctx = {.arena = &arena, .sources = &path, .num_sources = 1};
    *pairs = NULL;
    TRY(fs_read_file(path, SPEC_MAX_BYTES, STATUS_CHECKPOINT, &text, &bytes, err));
    const struct spec_node *root = spec_parse_yaml(&ctx, 0, text, bytes);
    if (root && root->kind == NODE_MAPPING)
        add_pairs(*pairs = json_object(), root, "");
    spec_arena_release(&arena);
    free(text);
    return *pairs ? STATUS_OK : error_set(err, STATUS_CHECKPOINT, "'%s' is not a run spec", path);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* spec_unknown_key.c: keys that the table does not have, and what to write instead.
 *
 * A name of another trainer leads to what its row in spec_foreign_names.c says. Any other is compared with the keys of
 * its section, then with those of other sections, where only a close likeness counts. No hint leads to a key or choice
 * that is refused. */
#include "core/edit_distance.h"
#include "core/spec/spec_keys.h"

#include <string.h>

static bool unknown_is_unavailable(const struct spec_key *key)
{
    return key->verdict == VERDICT_REFUSED || key->verdict == VERDICT_LATER;
}

/* "under 'data'", "at top level": the sections with a key of this name. NULL: none, or too many. `used`: by ztrain. */
static const char *sections_with(struct spec_context *ctx, const char *name, bool used)
{
    const char *found = NULL;
    int count = 0;
    for (const struct spec_key *key = spec_keys; key->path; key++) {
        if (strcmp(spec_key_leaf(key->path), name) != 0 || key->type == KEY_ALIAS || unknown_is_unavailable(key) ||
            (used && key->verdict != VERDICT_USED))
            continue;
        int length = (int)spec_key_section_length(key->path);
        const char *place = length ? spec_arena_printf(ctx->arena, "under '%.*s'", length, key->path) : "at top level";
        found = found ? spec_arena_printf(ctx->arena, "%s or %s", found, place) : place;
        count++;
    }
    return count <= 3 ? found : NULL;
}

enum {
    FEWEST_LETTERS = 3,    /* of a part that can be recognised */
    FARTHEST_ELSEWHERE = 2 /* edits that lead to a key of another section: more of them lead to another meaning */
};

static bool unknown_key_ends_with(const char *text, const char *word)
{
    size_t all = strlen(text), length = strlen(word);
    return length >= FEWEST_LETTERS && length < all && strcmp(text + all - length, word) == 0 &&
           text[all - length - 1] == '_';
}

/* The beginning of a key (seq_len of seq_length), its end (batch_size), or the key with words before it. A single word
 * is compared with the keys of the same section only. */
static bool unknown_is_part(const char *name, const char *key, bool same_section)
{
    if (!same_section && !strchr(name, '_'))
        return false;
    size_t length = strlen(name);
    return (length >= FEWEST_LETTERS && strncmp(name, key, length) == 0) || unknown_key_ends_with(key, name) ||
           (same_section && unknown_key_ends_with(name, key));
}

static const char *unknown_suggestion(struct spec_context *ctx, const char *name)
{
    const struct spec_foreign_name *foreign = spec_foreign_name_find(name);
    if (foreign && foreign->unlisted && foreign->use == FOREIGN_NOTHING)
        return NULL; /* a name of the run spec may be meant */
    if (!foreign || !foreign->key)
        return foreign ? foreign->note : NULL;
    return foreign->note ? spec_arena_printf(ctx->arena, "write %s (%s)", foreign->key, foreign->note)
                         : spec_arena_printf(ctx->arena, "write %s", foreign->key);
}

/* A single word, such as debug, may mean anything: it leads to no key of another section that has no effect here. */
static const char *hint_unknown(struct spec_context *ctx, const char *section, const char *name)
{
    const char *foreign = unknown_suggestion(ctx, name);
    if (foreign)
        return foreign;
    const char *places = sections_with(ctx, name, true);
    if (!places && strchr(name, '_'))
        places = sections_with(ctx, name, false);
    if (places)
        return spec_arena_printf(ctx->arena, "this key belongs %s", places);

    const struct spec_key *best = NULL;
    int best_distance = edit_distance_limit(name) + 1;
    for (int elsewhere = 0; elsewhere < 2 && !best; elsewhere++) {
        for (const struct spec_key *key = spec_keys; key->path; key++) {
            const char *leaf = spec_key_leaf(key->path);
            if (spec_key_in(key, section) != !elsewhere || key->type == KEY_ALIAS || unknown_is_unavailable(key) ||
                (elsewhere && !strchr(name, '_') && key->verdict != VERDICT_USED))
                continue;
            bool part = key->type != KEY_SECTION && unknown_is_part(name, leaf, !elsewhere);
            int distance = part ? 1 : edit_distance(name, leaf);
            if (distance < best_distance && (!elsewhere || distance <= FARTHEST_ELSEWHERE)) {
                best = key;
                best_distance = distance;
            }
        }
        if (best)
            return spec_arena_printf(ctx->arena, "did you mean '%s'?",
                                     elsewhere ? best->path : spec_key_leaf(best->path));
    }
    return "--help-spec lists the keys";
}

/* JSON has no comments, so that people write them as keys of their DeepSpeed file: "_comment", "//". */
static bool unknown_is_comment(struct spec_context *ctx, const struct spec_node *node)
{
    if (node->key_pos.source != 1 || !strchr("_/#", *node->key))
        return false;
    spec_notice(ctx, node->key_pos, "'%s' is taken as a comment", spec_show(ctx, node->key));
    return true;
}

void spec_find_unknown(struct spec_context *ctx, const struct spec_node *root, const struct spec_node *section,
                       const char *section_path)
{
    if (spec_is_unknown_territory(root, section_path))
        return;
    for (const struct spec_node *node = section->first; node; node = node->next) {
        const char *path = *section_path ? spec_arena_printf(ctx->arena, "%s.%s", section_path, node->key) : node->key;
        const struct spec_key *key = strchr(node->key, '.') ? NULL : spec_key_find(path);
        if (key && key->type == KEY_SECTION && node->kind == NODE_MAPPING)
            spec_find_unknown(ctx, root, node, path);
        if (!key && (node->removed || unknown_is_comment(ctx, node)))
            continue;
        if (key || ctx->errors.count == SPEC_MAX_PROBLEMS) {
            ctx->errors.dropped += !key;
            continue;
        }
        const char *where = *section_path ? spec_arena_printf(ctx->arena, " in '%s'", section_path) : "";
        const char *leave = node->key_pos.source == 1
                                ? spec_arena_printf(ctx->arena, "; --set %s=null leaves it out", spec_show(ctx, path))
                                : "";
        spec_error(ctx, node->key_pos, "unknown key '%s'%s; hint: %s%s", spec_show(ctx, node->key), where,
                   hint_unknown(ctx, section_path, node->key), leave);
    }
}

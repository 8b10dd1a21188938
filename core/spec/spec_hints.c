/* spec_hints.c: what to write instead of a wrong key: the hints of errors.
 *
 * A name that another trainer uses has a row in spec_names.c. Any other is compared with the keys of its section, then
 * with those of other sections, where only a close likeness counts. No hint leads to a key or choice that is refused.
 */
#include "core/edit_distance.h"
#include "core/spec/spec_keys.h"

#include <string.h>

/* ---- unknown keys -------------------------------------------------------- */

/* A hint does not lead to a key that is refused. */
static bool is_unavailable(const struct spec_key *key)
{
    return key->verdict == VERDICT_REFUSED || key->verdict == VERDICT_LATER;
}

/* "'data'", "'optimizer' or 'scheduler'", "at top level": the sections that have a key of exactly this name. NULL:
 * none, or too many. `used`: only keys that ztrain uses. */
static const char *sections_with(struct spec_context *ctx, const char *name, bool used)
{
    const char *found = NULL;
    int count = 0;
    for (int i = 0; i < spec_num_keys; i++) {
        const struct spec_key *key = &spec_keys[i];
        if (strcmp(spec_key_leaf(key->path), name) != 0 || key->type == KEY_ALIAS || is_unavailable(key) ||
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

/* Whether a text ends with an underscore and this word (or words). */
static bool ends_with_word(const char *text, const char *word)
{
    size_t all = strlen(text), length = strlen(word);
    return length >= FEWEST_LETTERS && length < all && strcmp(text + all - length, word) == 0 &&
           text[all - length - 1] == '_';
}

/* Whether a name is the beginning of a key (seq_len of seq_length), its end (batch_size of train_batch_size), or the
 * key with words before it (output_dir in run). A single word is compared with the keys of the same section only. */
static bool is_part(const char *name, const char *key, bool same_section)
{
    if (!same_section && !strchr(name, '_'))
        return false;
    size_t length = strlen(name);
    return (length >= FEWEST_LETTERS && strncmp(name, key, length) == 0) || ends_with_word(key, name) ||
           (same_section && ends_with_word(name, key));
}

/* The hint for a name that other trainers use, or NULL. */
static const char *foreign_suggestion(struct spec_context *ctx, const char *name)
{
    const struct spec_foreign_name *foreign = spec_foreign_name_find(name);
    if (!foreign || !foreign->key)
        return foreign ? foreign->note : NULL;
    return foreign->note ? spec_arena_printf(ctx->arena, "write %s (%s)", foreign->key, foreign->note)
                         : spec_arena_printf(ctx->arena, "write %s", foreign->key);
}

/* A single word, such as debug, may mean anything: it leads to no key of another section that has no effect here. */
static bool is_word(const char *name)
{
    return !strchr(name, '_');
}

const char *spec_hint_unknown(struct spec_context *ctx, const char *section, const char *name)
{
    const char *foreign = foreign_suggestion(ctx, name);
    if (foreign)
        return foreign;
    const char *places = sections_with(ctx, name, true);
    if (!places && !is_word(name))
        places = sections_with(ctx, name, false);
    if (places)
        return spec_arena_printf(ctx->arena, "this key belongs %s", places);

    const struct spec_key *best = NULL;
    int best_distance = edit_distance_limit(name) + 1;
    for (int elsewhere = 0; elsewhere < 2 && !best; elsewhere++) {
        for (int i = 0; i < spec_num_keys; i++) {
            const struct spec_key *key = &spec_keys[i];
            const char *leaf = spec_key_leaf(key->path);
            if (spec_key_in(key, section) != !elsewhere || key->type == KEY_ALIAS || is_unavailable(key) ||
                (elsewhere && is_word(name) && key->verdict != VERDICT_USED))
                continue;
            bool part = key->type != KEY_SECTION && is_part(name, leaf, !elsewhere);
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

/* ---- known keys ---------------------------------------------------------- */

const char *spec_hint_section(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    const char *member = node->kind == NODE_STRING && !spec_is_auto(node) ? "type" : "enabled";
    const struct spec_key *inner = spec_key_find(spec_arena_printf(ctx->arena, "%s.%s", key->path, member));
    if (!inner || (node->kind != NODE_STRING && node->kind != NODE_BOOL))
        return "--help-spec lists them";
    bool available = spec_choice_is_available(inner, node->text);
    return spec_arena_printf(ctx->arena, "write %s: {%s: %s}%s", key->path, member,
                             available ? spec_show(ctx, node->text) : inner->fallback,
                             available ? "" : ", or another one that --help-spec lists");
}

const char *spec_hint_missing(struct spec_context *ctx, const struct spec_key *key)
{
    return spec_arena_printf(ctx->arena, "%.*s", (int)strcspn(key->help, ";"), key->help);
}

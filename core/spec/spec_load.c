/* SPDX-License-Identifier: Apache-2.0 */
/* spec_load.c: reads the files, applies the overrides, and checks all at once, so that all errors come together. */
#include "core/model/model_folder.h"
#include "core/spec/spec_keys.h"

/* "tiny" for "runs/tiny.yaml" */
static char *loaded_name(struct spec_arena *arena, const char *path)
{
    const char *base = basename(path), *dot = strrchr(base, '.');
    bool yaml = dot && dot != base && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0);
    size_t length = yaml ? (size_t)(dot - base) : strlen(base);
    return length ? spec_arena_copy(arena, base, length) : spec_arena_copy(arena, "run", 3);
}

static void name_sources(struct spec_context *ctx, const char *path, const char *deepspeed,
                         const char *const *overrides, int num_overrides)
{
    ctx->num_sources = 2 + num_overrides;
    ctx->sources = spec_arena_alloc(ctx->arena, (size_t)ctx->num_sources * sizeof *ctx->sources);
    ctx->sources[0] = path;
    ctx->sources[1] = deepspeed ? deepspeed : "";
    for (int i = 0; i < num_overrides; i++) {
        const char *key = spec_arena_copy(ctx->arena, overrides[i], strcspn(overrides[i], "="));
        ctx->sources[2 + i] = spec_arena_printf(ctx->arena, "--set %s", spec_show(ctx, key));
    }
}

/* given: the source's text; NULL: it is a file. */
static struct spec_node *load_source(struct spec_context *ctx, int source, const char *given)
{
    static const char mark[] = "\xef\xbb\xbf"; /* of the byte order, as some editors write it */
    size_t size = given ? strlen(given) : 0;
    const char *text = given ? given : spec_read_file(ctx, source, &size);
    if (!text) return NULL;
    if (size >= 3 && memcmp(text, mark, 3) == 0) text += 3, size -= 3;
    struct spec_node *root =
        source == 1 ? spec_parse_json(ctx, source, text, size) : spec_parse_yaml(ctx, source, text, size);
    if (root && root->kind != NODE_MAPPING) {
        bool empty = root->kind == NODE_NULL && !*root->text;
        return spec_error(ctx, empty ? (struct spec_pos){source, 1, 1} : root->pos,
                          empty
                              ? "the file is empty; hint: --help-spec lists the keys"
                              : "the file must be a mapping: lines of 'key: value'; hint: --help-spec lists the keys");
    }
    return root;
}

/* Applies override `source` (2 + i), "a.b.c=VALUE"; "a.b.c=" unsets the key. */
static void load_override(struct spec_context *ctx, struct spec_node *root, int source, const char *assignment)
{
    struct spec_pos pos = {.source = source};
    const char *equals = strchr(assignment, '=');
    struct spec_node empty = {.kind = NODE_NULL, .text = "", .plain = true}, *value = &empty;
    json_auto_t *name = equals ? json_stringn(assignment, (size_t)(equals - assignment)) : NULL;
    if (!equals) {
        spec_error(ctx, pos, "no value; hint: write --set a.b.c=VALUE");
    } else if (!name) {
        spec_error(ctx, pos, "the key's name is not text in UTF-8");
    } else if (!equals[1] || (value = spec_parse_yaml(ctx, source, equals + 1, strlen(equals + 1)))) {
        value->pos = value->key_pos = pos;
        spec_override(ctx, root, assignment, value);
    }
}

/* The folder that a path or a model's name stands for, and that of a config.json; a path that is neither stays. */
static char *load_folder(struct spec_full *full, const char *name)
{
    char folder[FS_PATH_MAX];
    if (!name) return NULL;
    if (!model_folder_find(name, folder)) {
        if (strcmp(basename(name), "config.json") != 0 || !fs_exists(name)) return spec_arena_text(&full->arena, name);
        fs_parent(name, folder);
    }
    return spec_arena_text(&full->arena, folder);
}

static void load_folders(struct spec_full *full)
{
    struct run_spec *spec = &full->spec;
    spec->model.folder = load_folder(full, spec->model.pretrained ? spec->model.pretrained : spec->model.config_path);
    if (spec->model.tokenizer)
        spec->model.tokenizer_folder = load_folder(full, spec->model.tokenizer);
    else if (spec->model.folder && fs_is_dir(spec->model.folder))
        spec->model.tokenizer_folder = spec->model.folder;
}

static struct spec_full *load_new(const char *path)
{
    struct spec_full *full = spec_full_new();
    full->spec.path = spec_arena_text(&full->arena, path);
    return full;
}

static void load_adapters(struct spec_context *ctx, struct spec_full *first, const struct spec_node *root,
                          bool complete)
{
    const struct spec_node *list = spec_child(root, "peft"), *name = spec_find(root, "run.name");
    struct spec_full *full = first;
    for (const struct spec_node *item = list->first; item; item = item->next) {
        struct run_spec *spec = &full->spec;
        spec->run.group = name && name->kind == NODE_STRING ? spec_arena_text(&full->arena, name->text)
                                                            : loaded_name(&full->arena, spec->path);
        spec_check(ctx, full, spec_adapters_pick(ctx, root, item), complete);
        if (spec->run.dir) spec->run.dir = spec_arena_printf(&full->arena, "%s/%s", spec->run.dir, spec->run.group);
        if (item->next) spec->next = &(full = load_new(spec->path))->spec;
    }
}

static enum status load_sources(const char *path, const char *text, const char *deepspeed, const char *const *overrides,
                                int num_overrides, struct run_spec **spec, struct spec_report *report)
{
    RELEASED(spec_arena_release) struct spec_arena scratch = {0};
    struct spec_context ctx = {.arena = &scratch};
    struct spec_full *full = load_new(path);
    name_sources(&ctx, path, deepspeed, overrides, num_overrides);

    struct spec_node *root = load_source(&ctx, 0, text);
    struct spec_node *more = deepspeed ? load_source(&ctx, 1, NULL) : NULL;
    if (root) spec_normalise(&ctx, root);
    if (more) spec_normalise(&ctx, more);
    if (root && more) spec_merge(&ctx, root, more);
    for (int i = 0; root && i < num_overrides; i++) load_override(&ctx, root, 2 + i, overrides[i]);
    const struct spec_node *peft = spec_child(root, "peft");
    const bool complete = more || !deepspeed;
    if (!peft || peft->kind != NODE_LIST) {
        if (root) spec_check(&ctx, full, root, complete);
        if (!full->spec.run.name) full->spec.run.name = loaded_name(&full->arena, path);
    } else if (spec_adapters_check(&ctx, peft)) {
        load_adapters(&ctx, full, root, complete);
    }

    spec_problems_print(&ctx, &ctx.errors, &report->errors);
    spec_problems_print(&ctx, &ctx.notices, &report->notices);
    if (ctx.errors.count) spec_free(&full->spec);
    *spec = ctx.errors.count ? NULL : &full->spec;
    for (struct run_spec *each = *spec; each; each = each->next) load_folders(spec_full(each));
    return *spec ? STATUS_OK : STATUS_USAGE;
}

enum status spec_load(const char *path, const char *deepspeed, const char *const *overrides, int num_overrides,
                      struct run_spec **spec, struct spec_report *report)
{
    return load_sources(path, NULL, deepspeed, overrides, num_overrides, spec, report);
}

enum status spec_load_text(const char *path, const char *text, const char *const *overrides, int num_overrides,
                           struct run_spec **spec, struct spec_report *report)
{
    return load_sources(path, text, NULL, overrides, num_overrides, spec, report);
}

void spec_report_release(struct spec_report *report)
{
    string_list_release(&report->errors);
    string_list_release(&report->notices);
}

/* ---- a run.yaml as pairs ------------------------------------------------- */

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
        if (!list) fprintf(out, "%s: ", child->key);
        put_pair_value(out, child);
    }
    fputc(list ? ']' : '}', out);
}

/* The members of a mapping; prefix: its path, with a dot at its end, or "". */
static void add_pairs(json_t *pairs, const struct spec_node *mapping, const char *prefix)
{
    for (const struct spec_node *node = mapping->first; node; node = node->next) {
        const bool section = node->kind == NODE_MAPPING;
        OWNED char *key = memory_printf("%s%s%s", prefix, node->key, section ? "." : ""), *value = NULL;
        if (section) {
            add_pairs(pairs, node, key);
        } else {
            FILE *out = memory_stream(&value, NULL);
            put_pair_value(out, node);
            fclose(out);
            json_object_set_new(pairs, key, json_string(value));
        }
    }
}

enum status spec_pairs_read(json_t **pairs, const char *path, struct error *err)
{
    OWNED char *text = NULL;
    size_t bytes;
    RELEASED(spec_arena_release) struct spec_arena arena = {NULL};
    struct spec_context ctx = {.arena = &arena, .sources = &path, .num_sources = 1};
    *pairs = NULL;
    TRY(fs_read_file(path, SPEC_MAX_BYTES, STATUS_CHECKPOINT, &text, &bytes, err));
    const struct spec_node *root = spec_parse_yaml(&ctx, 0, text, bytes);
    if (root && root->kind == NODE_MAPPING) add_pairs(*pairs = json_object(), root, "");
    return *pairs ? STATUS_OK : error_set(err, STATUS_CHECKPOINT, "'%s' is not a run spec", path);
}

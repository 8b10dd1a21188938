/* SPDX-License-Identifier: Apache-2.0 */
/* spec_convert.c: reads other trainers' configurations, tells their kind, adds its defaults, and writes what the rules
 * of spec_convert_….c make of them. No key is lost without a word: each becomes one of the run spec, or a note. */
#include "core/spec/spec_convert_parts.h"

#include "core/kept_files.h"

/* 500_000 is a number. */
static void convert_underscores(struct spec_context *ctx, struct spec_node *node)
{
    if (!strchr(node->text, '_') || node->text[strspn(node->text, "0123456789_")] || *node->text == '_') return;
    char *digits = spec_arena_text(ctx->arena, node->text), *to = digits;
    for (const char *from = digits; *from; from++)
        if (*from != '_') *to++ = *from;
    *to = 0;
    node->text = digits;
    spec_yaml_plain(node);
}

/* The sources' readers know YAML 1.1: yes, no, on and off without quotes are truth values. */
static void convert_old_yaml(struct spec_context *ctx, struct spec_node *node)
{
    static const char *const words[] = {"no", "off", "yes", "on"};
    for (size_t i = 0; node->kind == NODE_STRING && node->plain && i < COUNT_OF(words); i++)
        if (strcasecmp(node->text, words[i]) == 0) {
            node->kind = NODE_BOOL;
            node->boolean = i >= 2;
        }
    if (node->kind == NODE_STRING && node->plain) convert_underscores(ctx, node);
    for (struct spec_node *child = node->first; child; child = child->next) convert_old_yaml(ctx, child);
}

static enum status convert_read(struct convert *c, const char *path, struct spec_node **root, struct error *err)
{
    struct spec_context ctx = {.arena = c->ctx->arena, .sources = &path, .num_sources = 1};
    size_t size;
    bool opened = true;
    OWNED char *file = any_file_read(path, SPEC_MAX_BYTES, &size, &opened);
    if (!file) return error_set(err, STATUS_USAGE, "cannot read '%s': %s", path, strerror(errno));
    if (size > SPEC_MAX_BYTES)
        return error_set(err, STATUS_USAGE, "'%s' is larger than %d MiB; hint: is this a configuration?", path,
                         SPEC_MAX_BYTES >> 20);
    const char *text = spec_arena_copy(ctx.arena, file, size);
    if (strncmp(text, "\xef\xbb\xbf", 3) == 0) text += 3, size -= 3;
    const bool json = text[strspn(text, " \t\r\n")] == '{';
    *root = json ? spec_parse_json(&ctx, 0, text, size) : spec_parse_yaml(&ctx, 0, text, size);
    if (*root && ctx.errors.count == 0 && (*root)->kind != NODE_MAPPING)
        spec_error(&ctx, (*root)->pos, "the file must be a mapping: lines of 'key: value'");
    if (ctx.errors.count == 0) {
        if (!json) convert_old_yaml(&ctx, *root);
        return STATUS_OK;
    }
    spec_problems_print(&ctx, &ctx.errors, c->errors);
    return error_set(err, STATUS_USAGE, "'%s' is not a configuration in YAML or JSON", path);
}

static bool convert_same(const struct spec_node *a, const struct spec_node *b)
{
    return a->kind == b->kind && a->text && b->text && strcmp(a->text, b->text) == 0;
}

static void convert_overlay(struct convert *c, struct spec_node *later, const char *path)
{
    for (struct spec_node *child = later->first, *next; child; child = next) {
        next = child->next;
        const struct spec_node *twin = spec_child(c->from, child->key);
        if (twin && !convert_same(twin, child))
            convert_note(c, "'%s': %s of '%s' counts, which comes after %s of '%s'", spec_show(c->ctx, child->key),
                         convert_show(c, child), path, convert_show(c, twin), c->ctx->sources[twin->key_pos.source]);
        if (twin) spec_unlink(c->from, twin);
        spec_attach(c->ctx, c->from, child);
    }
}

static bool convert_is_deepspeed(const struct spec_node *root)
{
    return spec_child(root, "zero_optimization") || spec_child(root, "train_micro_batch_size_per_gpu");
}

/* The last file is source 0, whose errors have lines. A DeepSpeed configuration among several: --deepspeed. */
static enum status convert_files(struct convert *c, struct error *err)
{
    const struct convert_request *request = c->request;
    for (int i = 0; i < request->num_files; i++) {
        struct spec_node *root = NULL;
        TRY(convert_check_input(c, request->files[i], err));
        TRY(convert_read(c, request->files[i], &root, err));
        if (request->num_files > 1 && !c->deepspeed && convert_is_deepspeed(root)) {
            c->deepspeed = request->files[i];
            continue;
        }
        convert_mark(root, i == request->num_files - 1 ? 0 : 2 + i);
        convert_overlay(c, root, request->files[i]);
    }
    return STATUS_OK;
}

/* ---- kinds --------------------------------------------------------------- */

/* The keys by which a kind is known. Arguments of TRL are Trainer's with a key of the second list. */
static const char *const convert_marks[CONVERT_KINDS][16] = {
    [CONVERT_TRAINER] = {"per_device_train_batch_size", "num_train_epochs", "model_name_or_path", "lr_scheduler_type",
                         "gradient_accumulation_steps", "save_strategy", "eval_strategy", "logging_steps", "save_steps",
                         "train_file", "dataset_name", "block_size", "per_device_eval_batch_size"},
    [CONVERT_SFT] = {"max_seq_length", "max_length", "packing", "packing_strategy", "assistant_only_loss",
                     "completion_only_loss", "dataset_text_field", "dataset_num_proc", "chat_template_path",
                     "padding_free", "use_peft", "dataset_train_split", "eval_packing"},
    [CONVERT_AXOLOTL] = {"base_model", "sequence_len", "micro_batch_size", "num_epochs", "sample_packing",
                         "val_set_size", "pretraining_dataset", "evals_per_epoch", "saves_per_epoch",
                         "dataset_prepared_path", "base_model_config"},
    [CONVERT_FACTORY] = {"stage", "finetuning_type", "cutoff_len", "template", "dataset_dir", "neat_packing",
                         "val_size", "plot_loss"},
};

static const char *const convert_names[CONVERT_KINDS] = {"Trainer", "TRL's SFT", "axolotl", "LLaMA-Factory"};

static int convert_marks_of(const struct spec_node *root, enum convert_kind kind)
{
    int count = 0;
    for (size_t i = 0; i < COUNT_OF(convert_marks[kind]) && convert_marks[kind][i]; i++)
        count += spec_child(root, convert_marks[kind][i]) != NULL;
    return count;
}

static const char *convert_near_mark(const struct spec_node *root)
{
    for (const struct spec_node *child = root->first; child; child = child->next)
        for (int kind = 0; kind < CONVERT_KINDS; kind++) {
            size_t count = 0;
            while (count < COUNT_OF(convert_marks[kind]) && convert_marks[kind][count]) count++;
            const char *near = nearest_name(child->key, convert_marks[kind], count);
            if (near) return near;
        }
    return NULL;
}

static enum status convert_no_kind(struct convert *c, const char *path, struct error *err)
{
    static const char kinds[] = "arguments of Trainer or TRL (per_device_train_batch_size, …), an axolotl "
                                "configuration (base_model, …) and one of LLaMA-Factory (finetuning_type, …)";
    if (convert_is_deepspeed(c->from))
        return error_set(err, STATUS_USAGE,
                         "'%s' is a DeepSpeed configuration or a run spec; hint: ztrain convert reads %s; a "
                         "configuration of DeepSpeed goes with --deepspeed",
                         path, kinds);
    if (spec_child(c->from, "model") && spec_child(c->from, "data"))
        return error_set(err, STATUS_USAGE, "'%s' is a run spec; hint: ztrain --config %s", path, path);
    const char *near = convert_near_mark(c->from);
    const struct spec_node *first = c->from->first;
    error_set(err, STATUS_USAGE, "'%s' is of an unknown kind: ztrain convert reads %s", path, kinds);
    if (near) return error_hint(err, "is a key of it %s?", near);
    return error_hint(err, "%s%s%s", first ? "its first key is '" : "it has no keys",
                      first ? spec_show(c->ctx, first->key) : "", first ? "'" : "");
}

static enum status convert_find_kind(struct convert *c, const char *path, struct error *err)
{
    const int axolotl = convert_marks_of(c->from, CONVERT_AXOLOTL), sft = convert_marks_of(c->from, CONVERT_SFT);
    const int factory = convert_marks_of(c->from, CONVERT_FACTORY);
    if (!axolotl && !factory && !sft && !convert_marks_of(c->from, CONVERT_TRAINER))
        return convert_no_kind(c, path, err);
    if (axolotl && axolotl == factory)
        return error_set(err, STATUS_USAGE,
                         "'%s' has as many keys of axolotl (%d) as of LLaMA-Factory; hint: convert them one by one",
                         path, axolotl);
    c->kind = axolotl > factory ? CONVERT_AXOLOTL : factory ? CONVERT_FACTORY : sft ? CONVERT_SFT : CONVERT_TRAINER;
    return STATUS_OK;
}

/* ---- defaults of the sources --------------------------------------------- */

#define TRAINERS (1u << CONVERT_TRAINER | 1u << CONVERT_SFT | 1u << CONVERT_FACTORY)
#define ALL_KINDS (TRAINERS | 1u << CONVERT_AXOLOTL)
#define ONLY(kind) (1u << CONVERT_##kind)

/* Of transformers 5, TRL 1.10, axolotl 0.18 and LLaMA-Factory 0.9.6. What axolotl leaves to Trainer has Trainer's. */
static const struct {
    unsigned kinds;
    const char *key, *value;
} convert_defaults[] = {
    {TRAINERS, "per_device_train_batch_size", "8"},
    {ONLY(AXOLOTL), "micro_batch_size", "1"},
    {ALL_KINDS, "gradient_accumulation_steps", "1"},
    {TRAINERS, "num_train_epochs", "3.0"},
    {ONLY(AXOLOTL), "num_epochs", "1.0"},
    {ONLY(TRAINER) | ONLY(FACTORY), "learning_rate", "5e-5"},
    {ONLY(SFT), "learning_rate", "2e-5"},
    {TRAINERS, "lr_scheduler_type", "linear"},
    {ONLY(AXOLOTL), "lr_scheduler", "cosine"},
    {TRAINERS, "optim", "adamw_torch"},
    {ONLY(AXOLOTL), "optimizer", "adamw_torch_fused"},
    {ALL_KINDS, "weight_decay", "0.0"},
    {ALL_KINDS, "adam_beta1", "0.9"},
    {ALL_KINDS, "adam_beta2", "0.999"},
    {ALL_KINDS, "adam_epsilon", "1e-8"},
    {ALL_KINDS, "max_grad_norm", "1.0"},
    {ALL_KINDS, "seed", "42"},
    {TRAINERS, "save_strategy", "steps"},
    {TRAINERS, "save_steps", "500"},
    {ONLY(AXOLOTL), "save_total_limit", "4"},
    {ONLY(TRAINER) | ONLY(FACTORY), "logging_steps", "500"},
    {ONLY(SFT), "logging_steps", "10"},
    {TRAINERS, "output_dir", "trainer_output"},
    {ONLY(AXOLOTL), "output_dir", "model-out"},
    {ONLY(TRAINER), "block_size", "1024"},
    {ONLY(SFT), "max_length", "1024"},
    {ONLY(AXOLOTL), "sequence_len", "512"},
    {ONLY(FACTORY), "cutoff_len", "2048"},
    {ONLY(SFT) | ONLY(FACTORY), "gradient_checkpointing", "true"},
    {ONLY(SFT), "bf16", "true"},
    {ONLY(AXOLOTL), "bf16", "auto"},
    {ONLY(FACTORY), "finetuning_type", "lora"},
};

static void convert_default(struct convert *c, const char *key, const char *value)
{
    const struct spec_node *node = spec_child(c->from, key);
    if (node && node->kind != NODE_NULL) return;
    if (node) spec_unlink(c->from, node);
    spec_attach(c->ctx, c->from, convert_scalar(c, key, value));
}

/* What must be a number. Any other value is left out before the defaults are added. */
static const char convert_numbers[] =
    "per_device_train_batch_size per_gpu_train_batch_size micro_batch_size batch_size gradient_accumulation_steps "
    "num_train_epochs num_epochs epochs max_steps max_train_steps max_iters train_iters learning_rate warmup_steps "
    "num_warmup_steps warmup_ratio cosine_min_lr_ratio weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm "
    "clip_grad_norm grad_clip seed save_steps save_total_limit saves_per_epoch eval_steps evals_per_epoch "
    "logging_steps log_every_n_steps validation_split_percentage test_split_size val_set_size val_size";

static void convert_check_numbers(struct convert *c)
{
    const char *numbers = convert_numbers;
    for (const char *name; (name = convert_word(c, &numbers));) {
        struct spec_node *node = spec_child(c->from, name);
        convert_unquote(node);
        const bool number = spec_is_number(node) && isfinite(node->real);
        if (!node || node->kind == NODE_NULL || (number && (node->real >= 0 || strcmp(node->key, "seed") != 0)))
            continue;
        if (number || convert_is_on(node)) convert_odd(c, node);
        spec_unlink(c->from, node);
    }
}

static void convert_add_defaults(struct convert *c)
{
    convert_check_numbers(c);
    for (size_t i = 0; i < COUNT_OF(convert_defaults); i++)
        if (convert_defaults[i].kinds & 1u << c->kind)
            convert_default(c, convert_defaults[i].key, convert_defaults[i].value);
    const struct spec_node *steps = spec_child(c->from, "warmup_steps");
    if (c->kind == CONVERT_AXOLOTL && (!steps || steps->kind == NODE_NULL)) convert_default(c, "warmup_ratio", "0.03");
}

/* ---- what no rule has taken ---------------------------------------------- */

/* Of two keys for one of the run spec the later one counts, and a default of the source only if there is no other. */
static void convert_copy(struct convert *c, const char *path, struct spec_node *node)
{
    const struct spec_node *set = spec_find(c->to, path);
    const bool given = convert_is_given(node);
    if (set && !given) return;
    if (set && convert_is_given(set) && !convert_same(set, node))
        convert_note(c, "'%s' %s counts, and not %s of another key", node->key, convert_show(c, node),
                     convert_show(c, set));
    convert_set(c, path, node);
}

static void convert_own(struct convert *c, const struct spec_key *key, struct spec_node *node)
{
    if (key->verdict == VERDICT_USED && key->size)
        convert_copy(c, key->path, node);
    else if (key->verdict == VERDICT_NOTICE)
        convert_nothing(c, node->key);
    else if (convert_is_on(node))
        convert_note(c, "'%s' is left out: %s", key->path, key->help);
}

static void convert_foreign(struct convert *c, const struct spec_foreign_name *row, struct spec_node *node)
{
    if (row->use == FOREIGN_COPY)
        convert_copy(c, row->key, node);
    else if (row->use == FOREIGN_MISSING && convert_is_on(node))
        convert_note(c, "'%s' %s: %s%s", node->key, convert_show(c, node), row->note ? row->note : "set ",
                     row->note ? "" : row->key);
    else if (row->use == FOREIGN_RULE && convert_is_on(node))
        convert_note(c, "'%s' %s is left out: it is no key of %s", node->key, convert_show(c, node),
                     convert_names[c->kind]);
    else if (convert_is_on(node))
        convert_nothing(c, node->key);
}

static void convert_rest(struct convert *c)
{
    for (struct spec_node *node = c->from->first; node; node = node->next) {
        const struct spec_foreign_name *row = spec_foreign_name_find(node->key);
        const struct spec_key *own = row || strchr(node->key, '.') ? NULL : spec_key_find(node->key);
        if (node->kind == NODE_NULL || strchr("_/#", *node->key)) continue; /* unset, or a comment */
        if (row)
            convert_foreign(c, row, node);
        else if (own)
            convert_own(c, own, node);
        else
            convert_note(c, "'%s' %s is left out: ztrain convert does not know it", spec_show(c->ctx, node->key),
                         convert_show(c, node));
    }
}

/* ---- the run spec -------------------------------------------------------- */

/* The values as {"path": value}, in the order of the table; what is wrong becomes a note and is left out. */
static json_t *convert_values(struct convert *c)
{
    static const char *const types[] = {"optimizer.type", "scheduler.type"};
    json_t *values = json_object();
    struct spec_full *full = spec_arena_alloc(c->ctx->arena, sizeof *full);
    RELEASED(string_list_release) struct string_list wrong = {0};
    for (size_t i = 0; i < COUNT_OF(types); i++) { /* spec_key_applies() tells by them whose a parameter is */
        const struct spec_key *key = spec_key_find(types[i]);
        json_t *type = spec_key_convert(c->ctx, key, spec_find(c->to, types[i]));
        if (type) spec_key_store(full, key, type);
    }
    full->spec.adapter.on = spec_find(c->to, "peft") != NULL;
    for (const struct spec_key *key = spec_keys; key->path; key++) {
        const struct spec_node *node = key->size ? spec_find(c->to, key->path) : NULL;
        if (!node || node->kind == NODE_NULL || !spec_key_applies(full, key)) continue;
        const bool is_auto = spec_is_auto(node) && key->flags & KEY_AUTO;
        json_t *value = is_auto ? json_string("auto") : spec_key_convert(c->ctx, key, node);
        if (value) json_object_set_new(values, key->path, value);
    }
    spec_problems_print(c->ctx, &c->ctx->errors, &wrong);
    for (int i = 0; i < wrong.count; i++) convert_note(c, "%s", wrong.items[i]);
    spec_arena_release(&full->arena);
    return values;
}

/* What ztrain would refuse: a note for each, so that a user need not try. */
static void convert_check(struct convert *c, const char *text, size_t size)
{
    const char *sources[] = {"run spec", ""};
    struct spec_context ctx = {.arena = c->ctx->arena, .sources = sources, .num_sources = 2};
    struct spec_full *full = spec_full_new();
    struct spec_node *root = spec_parse_yaml(&ctx, 0, text, size);
    if (root && root->kind == NODE_MAPPING) spec_check(&ctx, full, root, true);
    for (int i = 0; i < ctx.errors.count; i++)
        convert_note(c, "the run spec is not complete: %s", ctx.errors.items[i].text);
    struct error err;
    if (c->request->world && ctx.errors.count == 0 &&
        spec_resolve_batch(&full->spec, c->request->world, "--world", &err) != STATUS_OK)
        convert_note(c, "ztrain would refuse the run spec: %s", err.text);
    spec_free(&full->spec);
}

static enum status convert_all(struct convert *c, FILE *out, struct error *err)
{
    TRY(convert_files(c, err));
    TRY(convert_find_kind(c, c->ctx->sources[0], err));
    const struct spec_node *named = spec_child(c->from, "deepspeed");
    c->shards = c->deepspeed || (named && named->kind != NODE_NULL);
    convert_add_defaults(c);
    convert_model(c);
    convert_adapter(c);
    convert_length(c);
    convert_optimizer(c);
    convert_schedule(c);
    convert_precision(c);
    convert_memory(c);
    convert_checkpoints(c);
    convert_preferences(c);
    convert_data(c); /* before convert_evaluation() takes what it looks at */
    convert_evaluation(c);
    convert_output(c);
    if (c->kind == CONVERT_FACTORY) convert_take(c, "stage");
    struct spec_node *shards = convert_json(c, convert_take(c, "deepspeed"));
    convert_rest(c);
    TRY(convert_deepspeed(c, shards, err));
    convert_whole_batch(c);
    if (c->nothing) convert_note(c, "no meaning here: %s", c->nothing);
    json_auto_t *values = convert_values(c);
    OWNED char *text = NULL;
    size_t size = 0;
    FILE *memory = memory_stream(&text, &size);
    spec_write_values(values, memory);
    fclose(memory);
    convert_check(c, text, size);
    fwrite(text, 1, size, out);
    return STATUS_OK;
}

enum status spec_convert(const struct convert_request *request, FILE *out, struct string_list *notes,
                         struct string_list *errors, struct error *err)
{
    RELEASED(spec_arena_release) struct spec_arena arena = {0};
    struct spec_context ctx = {.arena = &arena, .num_sources = 2 + request->num_files};
    ASSERT(request->num_files > 0);
    ctx.sources = spec_arena_alloc(&arena, (size_t)ctx.num_sources * sizeof *ctx.sources);
    const char *last = request->files[request->num_files - 1];
    char folder[FS_PATH_MAX];
    ctx.sources[0] = last;
    ctx.sources[1] = "";
    for (int i = 0; i < request->num_files; i++) ctx.sources[2 + i] = request->files[i];
    fs_parent(last, folder);
    struct spec_node from = {.kind = NODE_MAPPING}, to = {.kind = NODE_MAPPING};
    struct convert c = {&ctx, .from = &from, .to = &to, .notes = notes, .folder = folder, .request = request};
    c.errors = errors;
    c.deepspeed = request->deepspeed;
    return convert_all(&c, out, err);
}

/* spec_check.c: checks a tree against the key table, in three passes.
 *
 * The first pass looks in the tree for keys that the table does not have (did you mean …?). The second goes through the
 * table and checks type, range and verdict of each value, stores it, and stores the default of each absent key. The
 * third applies the rules that tie keys together. A key that is wrong in one pass is left out of the next ones, so that
 * one mistake gives one line. */
#include "core/edit_distance.h"
#include "core/spec/spec_keys.h"

#include <math.h>
#include <string.h>

/* ---- unknown keys -------------------------------------------------------- */

static bool in_section(const struct spec_key *key, const char *section)
{
    size_t length = spec_key_section_length(key->path);
    return strlen(section) == length && strncmp(key->path, section, length) == 0;
}

/* "'data'", "'optimizer' or 'scheduler'", "at top level": the sections that have a key of exactly this name. NULL:
 * none, or too many. `used`: only keys that ztrain uses. */
static const char *sections_with(struct spec_context *ctx, const char *name, bool used)
{
    const char *found = NULL;
    int count = 0;
    for (int i = 0; i < spec_num_keys; i++) {
        const struct spec_key *key = &spec_keys[i];
        if (strcmp(spec_key_leaf(key->path), name) != 0 || key->type == KEY_ALIAS ||
            (used && key->verdict != VERDICT_USED))
            continue;
        int length = (int)spec_key_section_length(key->path);
        const char *place = length ? spec_arena_printf(ctx->arena, "under '%.*s'", length, key->path) : "at top level";
        found = found ? spec_arena_printf(ctx->arena, "%s or %s", found, place) : place;
        count++;
    }
    return count <= 3 ? found : NULL;
}

enum { FEWEST_LETTERS = 3 /* of a part that can be recognised */ };

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

static const char *suggestion(struct spec_context *ctx, const char *section, const char *name)
{
    const char *places = sections_with(ctx, name, true);
    if (!places)
        places = sections_with(ctx, name, false);
    if (places)
        return spec_arena_printf(ctx->arena, "this key belongs %s", places);

    const struct spec_key *best = NULL;
    int best_distance = edit_distance_limit(name) + 1;
    for (int elsewhere = 0; elsewhere < 2 && !best; elsewhere++) {
        for (int i = 0; i < spec_num_keys; i++) {
            const struct spec_key *key = &spec_keys[i];
            const char *leaf = spec_key_leaf(key->path);
            if (in_section(key, section) != !elsewhere || key->type == KEY_ALIAS)
                continue;
            int distance = is_part(name, leaf, !elsewhere) ? 1 : edit_distance(name, leaf);
            if (distance < best_distance) {
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

/* The rows of an optimizer's or scheduler's params do not apply to a type that ztrain does not have. */
static bool is_unknown_territory(const struct spec_node *root, const char *section)
{
    const char *type_path = strcmp(section, "optimizer.params") == 0   ? "optimizer.type"
                            : strcmp(section, "scheduler.params") == 0 ? "scheduler.type"
                                                                       : NULL;
    const struct spec_node *type = type_path ? spec_find(root, type_path) : NULL;
    if (!type || type->kind != NODE_STRING)
        return false;
    const struct spec_key *key = spec_key_find(type_path);
    for (const struct spec_choice *choice = key->choices; choice->name; choice++)
        if (choice->verdict == VERDICT_USED && spec_choice_is(key, choice, type->text))
            return false;
    return true;
}

static void find_unknown(struct spec_context *ctx, const struct spec_node *root, const struct spec_node *section,
                         const char *section_path)
{
    if (is_unknown_territory(root, section_path))
        return;
    for (const struct spec_node *node = section->first; node; node = node->next) {
        const char *path = *section_path ? spec_arena_printf(ctx->arena, "%s.%s", section_path, node->key) : node->key;
        const struct spec_key *key = strchr(node->key, '.') ? NULL : spec_key_find(path);
        if (key && key->type == KEY_SECTION && node->kind == NODE_MAPPING)
            find_unknown(ctx, root, node, path);
        if (key || ctx->errors.count == SPEC_MAX_PROBLEMS) {
            ctx->errors.dropped += !key;
            continue;
        }
        const char *where = *section_path ? spec_arena_printf(ctx->arena, " in '%s'", section_path) : "";
        spec_error(ctx, node->key_pos, "unknown key '%s'%s; hint: %s", spec_show(ctx, node->key), where,
                   suggestion(ctx, section_path, node->key));
    }
}

/* ---- values and verdicts ------------------------------------------------- */

/* A section of DeepSpeed's that ztrain lacks is on if anything in it is enabled, or if it has content but no switch. */
static void find_switches(const struct spec_node *node, bool *has_switch, bool *on)
{
    for (const struct spec_node *child = node->first; child; child = child->next) {
        if (child->key && strcmp(child->key, "enabled") == 0) {
            *has_switch = true;
            *on = *on || (child->kind == NODE_BOOL ? child->boolean : child->kind != NODE_NULL);
        }
        find_switches(child, has_switch, on);
    }
}

static bool foreign_is_on(const struct spec_node *node)
{
    bool has_switch = false, on = false;
    if (node->kind == NODE_NULL)
        return false;
    if (node->kind == NODE_BOOL)
        return node->boolean;
    if (node->kind != NODE_MAPPING)
        return true;
    find_switches(node, &has_switch, &on);
    return on || (!has_switch && node->count > 0);
}

/* Adds the message about a value that asks for something other than what ztrain does. */
static void apply_verdict(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    switch (key->verdict) {
    case VERDICT_USED:
    case VERDICT_SYNONYM:
    case VERDICT_PASSIVE: return;
    case VERDICT_LATER:
        spec_error(ctx, node->key_pos, "'%s' is not supported yet: %s; hint: remove it%s%s", key->path, key->help,
                   key->fallback ? " or leave it at " : "", key->fallback ? key->fallback : "");
        return;
    case VERDICT_REFUSED: spec_error(ctx, node->key_pos, "'%s' is not supported: %s", key->path, key->help); return;
    case VERDICT_NOTICE: spec_notice(ctx, node->key_pos, "'%s' has no effect here: %s", key->path, key->help); return;
    }
}

/* Converts, judges and stores the value at `node`; a wrong value leaves the default in place. */
static void check_value(struct spec_context *ctx, struct spec_full *full, const struct spec_key *key,
                        const struct spec_node *node)
{
    if (node->kind == NODE_NULL && (!key->fallback || key->verdict != VERDICT_USED))
        return; /* these have no value anyway */
    if (node->kind == NODE_STRING && strcmp(node->text, "auto") == 0 && key->type != KEY_STRING &&
        key->type != KEY_STRING_LIST && key->type != KEY_MODEL_CONFIG && key->type != KEY_ANY && !key->choices) {
        bool counts = key->verdict != VERDICT_PASSIVE && key->verdict != VERDICT_NOTICE;
        if (counts && !(key->flags & KEY_AUTO))
            spec_error(ctx, node->pos, "'%s' cannot be derived from \"auto\"; hint: write a value%s%s%s", key->path,
                       key->fallback ? " (default: " : "", key->fallback ? key->fallback : "",
                       key->fallback ? ")" : "");
        return;
    }
    json_t *value = spec_key_convert(ctx, key, node);
    if (!value)
        return;
    json_t *usual = spec_key_default(key);
    if (!usual || !json_equal(value, usual))
        apply_verdict(ctx, key, node);
    if (key->size)
        spec_key_store(full, key, value);
    json_decref(usual);
    json_decref(value);
}

/* The parameters of the schedule in use, for a hint. */
static const char *schedule_params(struct spec_context *ctx, enum schedule_type type)
{
    const char *names = "";
    for (int i = 0; i < spec_num_keys; i++)
        if (spec_keys[i].schedules & 1u << type && spec_keys[i].verdict == VERDICT_USED)
            names =
                spec_arena_printf(ctx->arena, "%s%s%s", names, *names ? ", " : "", spec_key_leaf(spec_keys[i].path));
    return names;
}

static void check_row(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root,
                      const struct spec_key *key)
{
    const struct spec_node *node = spec_find(root, key->path);
    enum schedule_type schedule = full->spec.scheduler.type;
    bool foreign_schedule = key->schedules && !(key->schedules & 1u << schedule);
    if (key->size && !foreign_schedule) {
        json_t *usual = spec_key_default(key);
        spec_key_store(full, key, usual);
        json_decref(usual);
    }
    if (!node && key->flags & KEY_REQUIRED) {
        spec_error(ctx, (struct spec_pos){0, 1, 1}, "'%s' is missing; hint: %s", key->path, key->help);
        return;
    }
    if (!node)
        return;
    const char *section = spec_arena_copy(ctx->arena, key->path, spec_key_section_length(key->path));
    if (is_unknown_territory(root, section))
        return;
    if (key->type == KEY_SECTION) {
        if (node->kind != NODE_MAPPING && node->kind != NODE_NULL)
            spec_error(ctx, node->pos,
                       "'%s' must be a section: keys with values, indented below it; hint: --help-spec lists them",
                       key->path);
    } else if (key->type == KEY_FOREIGN) {
        if (foreign_is_on(node))
            apply_verdict(ctx, key, node);
    } else if (foreign_schedule) {
        if (spec_find(root, "scheduler.type"))
            spec_error(ctx, node->key_pos, "'%s' is not a parameter of %s; hint: its parameters are %s", key->path,
                       schedule_name(schedule), schedule_params(ctx, schedule));
    } else if (key->type != KEY_ALIAS) {
        check_value(ctx, full, key, node);
        if (key->flags & KEY_REQUIRED && node->kind == NODE_NULL)
            spec_error(ctx, node->key_pos, "'%s' has no value; hint: %s", key->path, key->help);
    }
}

/* ---- rules that tie keys together ---------------------------------------- */

static bool is_true(const struct spec_node *root, const char *path)
{
    const struct spec_node *node = spec_find(root, path);
    return node && node->kind == NODE_BOOL && node->boolean;
}

static bool is_set(const struct spec_node *node)
{
    return node && node->kind != NODE_NULL;
}

static bool has_text(const struct spec_node *node, const char *text)
{
    return node && node->kind == NODE_STRING && strcmp(node->text, text) == 0;
}

/* The place of the later of two nodes, for a message about both. */
static struct spec_pos later_pos(const struct spec_node *a, const struct spec_node *b)
{
    struct spec_pos p = a->key_pos, q = b->key_pos;
    bool after = p.source != q.source ? p.source > q.source : p.line != q.line ? p.line > q.line : p.column > q.column;
    return after ? p : q;
}

static const struct spec_pos top = {0, 1, 1};

static void check_model(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    const struct spec_node *pretrained = spec_find(root, "model.pretrained"), *config = spec_find(root, "model.config");
    if (is_set(pretrained) && is_set(config))
        spec_error(
            ctx, later_pos(pretrained, config),
            "model.pretrained and model.config are both set; hint: keep pretrained to start from its weights, or "
            "config to start from random ones");
    else if (!is_set(pretrained) && !is_set(config))
        spec_error(ctx, top,
                   "'model.pretrained' or 'model.config' is missing; hint: name a Hugging Face folder, or a "
                   "config.json for random initial weights");
    const struct spec_node *set = is_set(pretrained) ? pretrained : is_set(config) ? config : NULL;
    if (set)
        snprintf(full->spec.model.where, sizeof full->spec.model.where, "%s", spec_pos_text(ctx, set->key_pos));
}

static void check_batch(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    const struct spec_node *train = spec_find(root, "train_batch_size"),
                           *micro = spec_find(root, "train_micro_batch_size_per_gpu"),
                           *accumulation = spec_find(root, "gradient_accumulation_steps");
    bool has_train = is_set(train) && !has_text(train, "auto"), has_micro = is_set(micro) && !has_text(micro, "auto");
    if (!has_train && !has_micro)
        spec_error(ctx, top,
                   "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided; hint: "
                   "train_batch_size is the number of samples per step over all ranks");
    const struct spec_node *first = has_train ? train : has_micro ? micro : accumulation;
    const char *where = spec_pos_text(ctx, first ? first->key_pos : top);
    full->batch_where = spec_arena_copy(&full->arena, where, strlen(where));
    full->given_batch[0] = full->spec.train_batch_size;
    full->given_batch[1] = full->spec.train_micro_batch_size_per_gpu;
    full->given_batch[2] = full->spec.gradient_accumulation_steps;
}

static void check_optimizer(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    const struct spec_node *mode = spec_find(root, "optimizer.params.adam_w_mode");
    if (full->spec.optimizer.type == OPTIMIZER_ADAM && full->adam_w_mode)
        full->spec.optimizer.type = OPTIMIZER_ADAMW;
    else if (full->spec.optimizer.type == OPTIMIZER_ADAMW && !full->adam_w_mode)
        spec_error(ctx, mode->key_pos, "AdamW without adam_w_mode is Adam; hint: set optimizer.type to Adam");
    if (full->spec.optimizer.beta1 >= 1 || full->spec.optimizer.beta2 >= 1)
        spec_error(ctx, spec_find(root, "optimizer.params.betas")->pos,
                   "'optimizer.params.betas' must be below 1; hint: [0.9, 0.999] is usual");
}

static void check_scheduler(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    const struct spec_node *scheduler = spec_find(root, "scheduler"), *type = spec_find(root, "scheduler.type");
    const struct schedule_spec *s = &full->spec.scheduler;
    if (scheduler && scheduler->count && !is_set(type)) {
        spec_error(ctx, top, "'scheduler.type' is missing; hint: Constant, Linear, Cosine, WarmupLR, …");
        return;
    }
    if (is_unknown_territory(root, "scheduler.params"))
        return;
    const struct spec_node *total = spec_find(root, "scheduler.params.total_num_steps");
    if ((s->type == SCHEDULE_WARMUP_DECAY_LR || s->type == SCHEDULE_WARMUP_COSINE_LR) && !is_set(total))
        spec_error(ctx, top,
                   "'scheduler.params.total_num_steps' is missing: %s needs it; hint: \"auto\" takes the run's "
                   "length",
                   schedule_name(s->type));
    const struct spec_node *warmup = spec_find(root, "scheduler.params.warmup_steps");
    if ((s->type == SCHEDULE_LINEAR || s->type == SCHEDULE_COSINE) && s->total_steps &&
        s->warmup_steps > s->total_steps)
        spec_error(ctx, warmup->pos,
                   "'scheduler.params.warmup_steps' %lld is more than total_steps %lld; hint: the "
                   "warm-up is part of the total",
                   (long long)s->warmup_steps, (long long)s->total_steps);
    const struct spec_node *min_lr = spec_find(root, "scheduler.params.min_lr");
    if ((s->type == SCHEDULE_LINEAR || s->type == SCHEDULE_COSINE) && is_set(min_lr) &&
        s->min_lr > full->spec.optimizer.lr)
        spec_notice(ctx, min_lr->pos,
                    "'scheduler.params.min_lr' %g is above 'optimizer.params.lr' %g: the learning rate rises to it",
                    s->min_lr, full->spec.optimizer.lr);
    full->given_total_steps = s->total_steps;
}

static void check_precision(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    if (is_true(root, "bf16.enabled") && is_true(root, "fp16.enabled"))
        spec_error(ctx, later_pos(spec_find(root, "bf16.enabled"), spec_find(root, "fp16.enabled")),
                   "bfloat16 and fp16 modes cannot be simultaneously enabled; hint: keep bf16");
    struct run_spec *spec = &full->spec;
    spec->dtype = full->bf16 ? DTYPE_BF16 : full->fp16 ? DTYPE_F16 : DTYPE_F32;
    spec->loss_scaler.dynamic = full->fp16 && full->static_loss_scale == 0;
    spec->initial_loss_scale = !full->fp16                 ? 1
                               : spec->loss_scaler.dynamic ? ldexp(1, (int)full->initial_scale_power)
                                                           : full->static_loss_scale;
    const struct spec_node *power = spec_find(root, "fp16.initial_scale_power");
    if (spec->loss_scaler.dynamic && spec->initial_loss_scale < spec->loss_scaler.min_scale && power)
        spec_error(ctx, power->pos, "'fp16.initial_scale_power' %lld begins below fp16.min_loss_scale %g",
                   (long long)full->initial_scale_power, spec->loss_scaler.min_scale);
}

static bool is_zero(const struct spec_node *node)
{
    return (node->kind == NODE_INT && node->integer == 0) || (node->kind == NODE_REAL && node->real == 0);
}

static void check_offload(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    const struct spec_node *optimizer = spec_find(root, "zero_optimization.offload_optimizer.device"),
                           *param = spec_find(root, "zero_optimization.offload_param.device");
    const struct spec_node *given_stage = spec_find(root, "zero_optimization.stage");
    int stage = full->spec.zero.stage;
    if (given_stage && given_stage->kind != NODE_NULL && stage == 0 && !is_zero(given_stage))
        return; /* the stage itself is wrong */
    if (is_set(optimizer) && !has_text(optimizer, "none") && stage == 0)
        spec_error(ctx, optimizer->key_pos,
                   "offload_optimizer needs zero_optimization stage 1, 2 or 3, not 0; hint: set stage");
    else if (has_text(optimizer, "nvme") && stage != 3)
        spec_error(
            ctx, optimizer->key_pos,
            "offload_optimizer to nvme needs zero_optimization stage 3, not %d; hint: use device cpu, or stage 3",
            stage);
    if (is_set(param) && !has_text(param, "none") && stage != 3)
        spec_error(ctx, param->key_pos,
                   "offload_param needs zero_optimization stage 3, not %d; hint: set stage 3, or use offload_optimizer",
                   stage);
}

static void check_names(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    const char *name = full->spec.run.name;
    if (name && (strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0))
        spec_error(ctx, spec_find(root, "run.name")->pos,
                   "'run.name' must be the name of a folder, not '%s'; hint: run.dir is the folder that holds it",
                   spec_show(ctx, name));
}

static void check_documents(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    const struct spec_node *length = spec_find(root, "data.seq_length");
    if (!full->spec.data.packing && full->spec.data.seq_length == 1 && is_set(length))
        spec_error(ctx, length->pos,
                   "'data.seq_length' 1 leaves no target if data.packing is false; hint: use 2 or more");
}

/* ---- the whole spec ------------------------------------------------------ */

/* Replaces old names by the new ones, and `zero_optimization: true` by stage 1. */
static void normalise(struct spec_context *ctx, struct spec_node *root)
{
    for (int i = 0; i < spec_num_keys; i++) {
        const struct spec_key *key = &spec_keys[i];
        struct spec_node *node = key->type == KEY_ALIAS ? spec_find(root, key->path) : NULL;
        if (!node)
            continue;
        size_t length = spec_key_section_length(key->path);
        struct spec_node *parent = length ? spec_find(root, spec_arena_copy(ctx->arena, key->path, length)) : root;
        const char *name = spec_key_leaf(key->fallback);
        bool twin = spec_child(parent, name) != NULL;
        node->key = name;
        if (twin) { /* both names are present: merged as if from two files */
            struct spec_node all = *parent;
            *parent = (struct spec_node){
                .kind = NODE_MAPPING, .pos = all.pos, .key_pos = all.key_pos, .key = all.key, .next = all.next};
            spec_merge(ctx, parent, &all);
        }
    }
    struct spec_node *zero = spec_child(root, "zero_optimization");
    if (zero && zero->kind == NODE_BOOL) {
        struct spec_node *stage = spec_arena_alloc(ctx->arena, sizeof *stage);
        *stage = (struct spec_node){.kind = NODE_INT,
                                    .pos = zero->pos,
                                    .key_pos = zero->key_pos,
                                    .key = "stage",
                                    .text = zero->text,
                                    .integer = zero->boolean,
                                    .real = zero->boolean};
        zero->kind = NODE_MAPPING;
        zero->first = zero->last = stage;
        zero->count = 1;
    }
}

void spec_check(struct spec_context *ctx, struct spec_full *full, struct spec_node *root, bool complete)
{
    normalise(ctx, root);
    find_unknown(ctx, root, root, "");
    full->spec.scheduler.warmup_max_lr = -1;
    for (int i = 0; i < spec_num_keys; i++)
        check_row(ctx, full, root, &spec_keys[i]);
    if (!complete) /* keys of the missing file could matter to these rules */
        return;
    check_model(ctx, full, root);
    check_batch(ctx, full, root);
    check_optimizer(ctx, full, root);
    check_scheduler(ctx, full, root);
    check_precision(ctx, full, root);
    check_offload(ctx, full, root);
    check_names(ctx, full, root);
    check_documents(ctx, full, root);
}

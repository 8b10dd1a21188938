/* spec_check.c: checks a tree against the key table, in three passes.
 *
 * The first pass looks in the tree for keys that the table does not have (did you mean …?). The second goes through the
 * table and checks type, range and verdict of each value, stores it, and stores the default of each absent key. The
 * third applies the rules that tie keys together. A key that is wrong in one pass is left out of the next ones, so that
 * one mistake gives one line. */
#include "core/fsutil.h"
#include "core/spec/spec_keys.h"

#include <math.h>
#include <string.h>

/* ---- unknown keys -------------------------------------------------------- */

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
        if ((choice->verdict == VERDICT_USED || choice->verdict == VERDICT_ALIAS) &&
            spec_choice_is(key, choice, type->text))
            return false;
    return true;
}

/* JSON has no comments, so that people write them as keys of their DeepSpeed file: "_comment", "//". */
static bool is_comment(struct spec_context *ctx, const struct spec_node *node)
{
    if (node->key_pos.source != 1 || !strchr("_/#", *node->key))
        return false;
    spec_notice(ctx, node->key_pos, "'%s' is taken as a comment", spec_show(ctx, node->key));
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
        if (!key && (node->removed || is_comment(ctx, node)))
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
                   spec_hint_unknown(ctx, section_path, node->key), leave);
    }
}

/* ---- values and verdicts ------------------------------------------------- */

/* A section of DeepSpeed's that ztrain lacks is on if anything in it is enabled, or if it has content but no switch. */
static void find_switches(const struct spec_node *node, bool *has_switch, bool *on)
{
    for (const struct spec_node *child = node->first; child; child = child->next) {
        if (child->key && strcmp(child->key, "enabled") == 0) {
            *has_switch = true;
            *on = *on || (child->kind == NODE_BOOL  ? child->boolean
                          : child->kind == NODE_INT ? child->integer != 0
                                                    : child->kind != NODE_NULL && !spec_is_auto(child));
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
    if (node->kind == NODE_INT)
        return node->integer != 0;
    if (node->kind != NODE_MAPPING)
        return true;
    find_switches(node, &has_switch, &on);
    return on || (!has_switch && node->count > 0);
}

/* Adds the message about a value that asks for a behaviour which ztrain does not have. */
static void apply_verdict(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node)
{
    switch (key->verdict) {
    case VERDICT_USED:
    case VERDICT_ALIAS:
    case VERDICT_SYNONYM: return;
    case VERDICT_LATER:
        spec_error(ctx, node->key_pos, "'%s' is not supported yet: %s; hint: remove it%s%s", key->path, key->help,
                   key->fallback ? " or leave it at " : "", key->fallback ? key->fallback : "");
        return;
    case VERDICT_REFUSED: spec_error(ctx, node->key_pos, "'%s' is not supported: %s", key->path, key->help); return;
    case VERDICT_NOTICE: spec_notice(ctx, node->key_pos, "'%s' has no effect here: %s", key->path, key->help); return;
    }
}

static bool has_choice(const struct spec_key *key, const char *name)
{
    for (const struct spec_choice *choice = key->choices; choice && choice->name; choice++)
        if (strcmp(choice->name, name) == 0)
            return true;
    return false;
}

/* Whether "auto" is not a value of the key: a text, or a choice of this name. */
static bool stands_for_another(const struct spec_key *key)
{
    return key->type != KEY_STRING && key->type != KEY_STRING_LIST && key->type != KEY_SOURCES &&
           key->type != KEY_PROMPTS && key->type != KEY_MODEL_CONFIG && key->type != KEY_ANY &&
           !has_choice(key, "auto");
}

static void check_auto(struct spec_context *ctx, struct spec_full *full, const struct spec_key *key,
                       const struct spec_node *node)
{
    if (!spec_auto_is_allowed(key)) {
        spec_error(ctx, node->pos, "'%s' cannot be derived from \"auto\"; hint: write a value%s%s%s", key->path,
                   key->fallback ? " (default: " : "", key->fallback ? key->fallback : "", key->fallback ? ")" : "");
        return;
    }
    if (key->flags & KEY_NEEDED) /* by the rule that needs it */
        return;
    if (key->size) {
        json_t *value = spec_auto_value(key);
        spec_key_store(full, key, value);
        json_decref(value);
    }
    spec_auto_record(full, key, NULL);
}

/* Converts, judges and stores the value at `node`; a wrong value leaves the default in place. */
static void check_value(struct spec_context *ctx, struct spec_full *full, const struct spec_key *key,
                        const struct spec_node *node)
{
    if (node->kind == NODE_NULL && (!key->fallback || key->verdict != VERDICT_USED || key->flags & KEY_NULL))
        return;                                             /* these have no value anyway */
    if (node->kind == NODE_NULL && node->pos.source == 1) { /* Python's None; an empty value in a run spec is a slip */
        spec_notice(ctx, node->pos, "'%s' is null and is taken as the default, %s", key->path, key->fallback);
        return;
    }
    if (spec_is_auto(node) && stands_for_another(key)) {
        check_auto(ctx, full, key, node);
        return;
    }
    struct spec_node bare = *node;
    if (node->pos.source == 1 && spec_is_quoted_value(key, node)) { /* DeepSpeed converts such text */
        bare.plain = true;
        spec_resolve_plain(&bare);
        spec_notice(ctx, node->pos, "'%s' is text in quotes and is taken as %s", key->path, node->text);
    }
    json_t *value = spec_key_convert(ctx, key, &bare);
    if (!value)
        return;
    json_t *usual = spec_key_default(key);
    if (!usual || !json_equal(value, usual))
        apply_verdict(ctx, key, node);
    if (key->size)
        spec_key_store(full, key, value);
    if (node->was_auto && stands_for_another(key))
        spec_auto_record(full, key, spec_pos_text(ctx, node->key_pos));
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

static const char *optimizer_params(struct spec_context *ctx, enum optimizer_type type)
{
    const char *names = "";
    for (int i = 0; i < spec_num_keys; i++) {
        const struct spec_key *key = &spec_keys[i];
        if (strncmp(key->path, "optimizer.params.", 17) == 0 && key->verdict == VERDICT_USED &&
            (!key->optimizers || key->optimizers & 1u << type))
            names = spec_arena_printf(ctx->arena, "%s%s%s", names, *names ? ", " : "", spec_key_leaf(key->path));
    }
    return names;
}

/* A parameter that the optimizer or scheduler in use does not have. "auto" asks for nothing, so it is left out. */
static void refuse_param(struct spec_context *ctx, const struct spec_key *key, const struct spec_node *node,
                         const char *type, const char *params)
{
    if (spec_is_auto(node))
        spec_notice(ctx, node->key_pos, "'%s' is \"auto\" and is left out: it is not a parameter of %s", key->path,
                    type);
    else
        spec_error(ctx, node->key_pos, "'%s' is not a parameter of %s; hint: its parameters are %s", key->path, type,
                   params);
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
        spec_error(ctx, (struct spec_pos){0, 1, 1}, "'%s' is missing; hint: %s", key->path,
                   spec_hint_missing(ctx, key));
        return;
    }
    if (!node)
        return;
    const char *section = spec_arena_copy(ctx->arena, key->path, spec_key_section_length(key->path));
    if (is_unknown_territory(root, section))
        return;
    if (key->type == KEY_SECTION) {
        if (node->kind != NODE_MAPPING && node->kind != NODE_NULL)
            spec_error(ctx, node->pos, "'%s' must be a section: keys with values, indented below it; hint: %s",
                       key->path, spec_hint_section(ctx, key, node));
    } else if (key->type == KEY_FOREIGN) {
        if (foreign_is_on(node))
            apply_verdict(ctx, key, node);
    } else if (foreign_schedule) {
        if (spec_find(root, "scheduler.type"))
            refuse_param(ctx, key, node, schedule_name(schedule), schedule_params(ctx, schedule));
    } else if (key->optimizers && !(key->optimizers & 1u << full->spec.optimizer.type)) {
        enum optimizer_type type = full->spec.optimizer.type;
        refuse_param(ctx, key, node, optimizer_name(type), optimizer_params(ctx, type));
    } else if (key->type != KEY_ALIAS) {
        check_value(ctx, full, key, node);
        if (key->flags & KEY_REQUIRED && node->kind == NODE_NULL)
            spec_error(ctx, node->key_pos, "'%s' has no value; hint: %s", key->path, spec_hint_missing(ctx, key));
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
    const struct spec_node *ignored = spec_find(root, "model.ignore_tensors");
    if (is_set(ignored) && !is_set(pretrained))
        spec_error(
            ctx, ignored->key_pos,
            "'model.ignore_tensors' needs model.pretrained: random weights have no files to leave tensors out of; "
            "hint: remove it");
    const struct spec_node *set = is_set(pretrained) ? pretrained : is_set(config) ? config : NULL;
    if (set)
        snprintf(full->spec.model.where, sizeof full->spec.model.where, "%s", spec_pos_text(ctx, set->key_pos));
}

static void check_task(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    const struct spec_node *task = spec_find(root, "model.task"), *labels = spec_find(root, "model.num_labels");
    if (full->spec.model.task == TASK_CAUSAL_LM && is_set(labels))
        spec_error(ctx, labels->key_pos,
                   "'model.num_labels' has no meaning with model.task causal_lm; hint: set model.task to "
                   "sequence_classification");
    if (full->spec.model.task == TASK_SEQUENCE_CLASSIFICATION && full->spec.data.packing)
        spec_error(
            ctx, task->key_pos,
            "'model.task' sequence_classification needs data.packing: false, as each document has a label; hint: "
            "set data.packing to false");
}

static void check_batch(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    const struct spec_node *train = spec_find(root, "train_batch_size"),
                           *micro = spec_find(root, "train_micro_batch_size_per_gpu"),
                           *accumulation = spec_find(root, "gradient_accumulation_steps");
    bool has_train = is_set(train) && !spec_is_auto(train), has_micro = is_set(micro) && !spec_is_auto(micro);
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

/* The learning rate has no default. A schedule that gives it for the whole run stands in. */
static void check_learning_rate(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    const struct spec_node *lr = spec_find(root, "optimizer.params.lr");
    const struct schedule_spec *s = &full->spec.scheduler;
    if (is_set(lr) && !spec_is_auto(lr))
        return;
    if (full->spec.optimizer.muon_lr > 0 && full->spec.optimizer.adam_lr > 0) { /* it would not be used */
        full->spec.optimizer.lr = full->spec.optimizer.muon_lr;
        return;
    }
    if ((s->type == SCHEDULE_WARMUP_LR || s->type == SCHEDULE_WARMUP_DECAY_LR) && s->warmup_max_lr >= 0) {
        full->spec.optimizer.lr = s->warmup_max_lr;
        if (lr)
            spec_auto_record(full, spec_key_find("optimizer.params.lr"), NULL);
        return;
    }
    spec_error(ctx, is_set(lr) ? lr->pos : top,
               "'optimizer.params.lr' is %s; hint: write optimizer: {params: {lr: 2e-5}} with your learning rate "
               "(Trainer's learning_rate) into the run spec, or --set optimizer.params.lr=2e-5",
               is_set(lr) ? "\"auto\", and the run spec does not set it" : "missing");
}

static void check_optimizer(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    const struct spec_node *mode = spec_find(root, "optimizer.params.adam_w_mode");
    if (full->spec.optimizer.type == OPTIMIZER_ADAM && full->adam_w_mode)
        full->spec.optimizer.type = OPTIMIZER_ADAMW;
    else if (full->spec.optimizer.type == OPTIMIZER_ADAMW && !full->adam_w_mode)
        spec_error(ctx, mode->key_pos, "AdamW without adam_w_mode is Adam; hint: set optimizer.type to Adam");
    const struct spec_node *nesterov = spec_find(root, "optimizer.params.nesterov");
    if (full->spec.optimizer.type == OPTIMIZER_SGD && full->spec.optimizer.nesterov &&
        (full->spec.optimizer.momentum == 0 || full->spec.optimizer.dampening != 0))
        spec_error(ctx, nesterov->key_pos,
                   "'optimizer.params.nesterov' needs momentum and no dampening, as in PyTorch; hint: set momentum, or "
                   "remove nesterov");
    if (full->spec.optimizer.beta1 >= 1 || full->spec.optimizer.beta2 >= 1)
        spec_error(ctx, spec_find(root, "optimizer.params.betas")->pos,
                   "'optimizer.params.betas' must be below 1; hint: [0.9, 0.999] is usual");
}

/* The schedule gives learning rates that are not relative to the optimizer's. */
static bool schedule_sets_lr(const struct schedule_spec *s)
{
    bool warms_up = s->type == SCHEDULE_WARMUP_LR || s->type == SCHEDULE_WARMUP_DECAY_LR;
    return s->type == SCHEDULE_ONE_CYCLE || s->type == SCHEDULE_LR_RANGE_TEST || (warms_up && s->warmup_max_lr >= 0);
}

/* The defaults of Muon's parameters, which are those of torch and DeepSpeed, and the rules for them. spec_write_yaml()
 * writes all of them, for the table has other defaults. */
static void check_muon(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    struct optimizer_settings *optimizer = &full->spec.optimizer;
    const struct spec_node *momentum = spec_find(root, "optimizer.params.momentum"),
                           *muon_lr = spec_find(root, "optimizer.params.muon_lr"),
                           *adam_lr = spec_find(root, "optimizer.params.adam_lr");
    if (optimizer->type != OPTIMIZER_MUON)
        return;
    if (!is_set(momentum))
        optimizer->momentum = 0.95;
    if (!is_set(spec_find(root, "optimizer.params.nesterov")))
        optimizer->nesterov = true;
    if (!is_set(spec_find(root, "optimizer.params.betas")))
        optimizer->beta2 = 0.95;
    if (!is_set(spec_find(root, "optimizer.params.eps")))
        optimizer->eps = 1e-10;
    if (optimizer->momentum >= 1)
        spec_error(ctx, momentum->pos, "'optimizer.params.momentum' of Muon must be below 1; hint: 0.95 is usual");
    if (optimizer->muon_lr == 0 && optimizer->adam_lr == 0)
        return;
    const struct spec_node *given = optimizer->muon_lr > 0 ? muon_lr : adam_lr;
    if (schedule_sets_lr(&full->spec.scheduler)) {
        spec_notice(ctx, given->key_pos,
                    "'optimizer.params.muon_lr' and adam_lr have no effect with this schedule, which sets the learning "
                    "rate of all parameters, as in DeepSpeed");
        optimizer->muon_lr = optimizer->adam_lr = 0;
    } else if (optimizer_base_lr(optimizer) == 0) {
        spec_error(ctx, given->key_pos,
                   "'optimizer.params.lr' is 0, so AdamW would not learn and Muon would; hint: set a learning rate");
    }
}

/* The parameters that a schedule cannot do without. */
static void check_required(struct spec_context *ctx, const struct spec_full *full, const struct spec_node *root)
{
    static const struct {
        enum schedule_type type;
        const char *path, *hint;
    } required[] = {
        {SCHEDULE_WARMUP_DECAY_LR, "scheduler.params.total_num_steps", "\"auto\" takes the run's length"},
        {SCHEDULE_WARMUP_COSINE_LR, "scheduler.params.total_num_steps", "\"auto\" takes the run's length"},
        {SCHEDULE_WSD, "scheduler.params.decay_steps", "a tenth of the run's steps is usual"},
        {SCHEDULE_ONE_CYCLE, "scheduler.params.cycle_min_lr", "the learning rate at the start of the cycle"},
        {SCHEDULE_ONE_CYCLE, "scheduler.params.cycle_max_lr", "the learning rate at the top of the cycle"},
    };
    for (size_t i = 0; i < COUNT_OF(required); i++)
        if (full->spec.scheduler.type == required[i].type && !is_set(spec_find(root, required[i].path)))
            spec_error(ctx, top, "'%s' is missing: %s needs it; hint: %s", required[i].path,
                       schedule_name(required[i].type), required[i].hint);
}

static void check_cycle(struct spec_context *ctx, const struct spec_full *full, const struct spec_node *root)
{
    const struct schedule_spec *s = &full->spec.scheduler;
    const struct spec_node *low = spec_find(root, "scheduler.params.cycle_min_mom");
    if (!s->cycle.momentum)
        return;
    if (full->spec.optimizer.type == OPTIMIZER_SGD)
        spec_notice(ctx, spec_find(root, "scheduler.type")->key_pos,
                    "OneCycle's momentum has no effect here: SGD has no betas, as in DeepSpeed");
    if (low && s->cycle.min_momentum > s->cycle.max_momentum)
        spec_error(ctx, low->key_pos,
                   "'scheduler.params.cycle_min_mom' %g is above cycle_max_mom %g; hint: beta1 is lowest at the top of "
                   "the cycle",
                   s->cycle.min_momentum, s->cycle.max_momentum);
    const struct spec_node *betas = spec_find(root, "optimizer.params.betas");
    if (is_set(betas))
        spec_notice(ctx, betas->key_pos,
                    "'optimizer.params.betas' has no effect with OneCycle, whose cycle_momentum sets both, as in "
                    "DeepSpeed; cycle_momentum: false keeps them");
}

/* The steps of the warm-up follow from its ratio; the key of the steps may be absent, 0 or "auto". */
static void check_warmup_ratio(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    const char *paths[] = {"scheduler.params.warmup_steps", "scheduler.params.warmup_num_steps"};
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        const struct spec_node *steps = spec_find(root, paths[i]);
        if (spec_is_auto(steps))
            spec_auto_origin(full, spec_key_find(paths[i]), "scheduler.params.warmup_ratio");
        else if (is_set(steps) && full->spec.scheduler.warmup_steps > 0)
            spec_error(ctx, later_pos(steps, spec_find(root, "scheduler.params.warmup_ratio")),
                       "%s and warmup_ratio are both set; hint: keep one of them", paths[i]);
    }
    full->spec.scheduler.warmup_steps = 0;
}

static void check_scheduler(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    const struct spec_node *scheduler = spec_find(root, "scheduler"), *type = spec_find(root, "scheduler.type");
    const struct schedule_spec *s = &full->spec.scheduler;
    if (scheduler && scheduler->count && !is_set(type)) {
        spec_error(ctx, top, "'scheduler.type' is missing; hint: Constant, Linear, Cosine, WSD, WarmupLR, …");
        return;
    }
    if (is_unknown_territory(root, "scheduler.params"))
        return;
    check_required(ctx, full, root);
    const struct spec_node *warmup = spec_find(root, "scheduler.params.warmup_steps");
    if ((s->type == SCHEDULE_LINEAR || s->type == SCHEDULE_COSINE) && s->total_steps &&
        s->warmup_steps > s->total_steps)
        spec_error(ctx, warmup->pos,
                   "'scheduler.params.warmup_steps' %lld is more than total_steps %lld; hint: the "
                   "warm-up is part of the total",
                   (long long)s->warmup_steps, (long long)s->total_steps);
    if (s->type == SCHEDULE_WSD && s->total_steps && s->decay_steps > s->total_steps - s->warmup_steps)
        spec_error(ctx, (warmup ? warmup : spec_find(root, "scheduler.params.decay_steps"))->key_pos,
                   "'scheduler.params.warmup_steps' %lld and decay_steps %lld are more than total_steps %lld; hint: "
                   "both are part of the total",
                   (long long)s->warmup_steps, (long long)s->decay_steps, (long long)s->total_steps);
    if (s->type == SCHEDULE_ONE_CYCLE)
        check_cycle(ctx, full, root);
    if (s->warmup_ratio > 0)
        check_warmup_ratio(ctx, full, root);
    const struct spec_node *min_lr = spec_find(root, "scheduler.params.min_lr");
    if ((s->type == SCHEDULE_LINEAR || s->type == SCHEDULE_COSINE || s->type == SCHEDULE_WSD) && is_set(min_lr) &&
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

/* What is computed twice must be able to repeat. */
static void check_interval(struct spec_context *ctx, const struct spec_full *full, const struct spec_node *root)
{
    if (full->spec.train.check_interval_steps > 0 && !full->spec.train.deterministic)
        spec_error(
            ctx, spec_find(root, "train.check_interval_steps")->pos,
            "'train.check_interval_steps' compares two computations bit for bit, and train.deterministic is false; "
            "hint: train.deterministic: true");
}

/* A factor below 1 would report nearly every step. */
static void check_spikes(struct spec_context *ctx, const struct spec_full *full, const struct spec_node *root)
{
    const double factor = full->spec.train.spike_factor;
    if (factor > 0 && factor < 1)
        spec_error(ctx, spec_find(root, "train.spike_factor")->pos,
                   "'train.spike_factor' %g is below 1: it multiplies the mean loss; hint: 2, or 0: off", factor);
}

static void check_logits(struct spec_context *ctx, const struct spec_full *full, const struct spec_node *root)
{
    const struct run_spec *spec = &full->spec;
    if (spec->train.logits_dtype == DTYPE_BF16 && spec->dtype != DTYPE_BF16)
        spec_error(ctx, spec_find(root, "train.logits_dtype")->pos,
                   "'train.logits_dtype' bf16 needs bf16.enabled; hint: use auto, the type that the run computes in");
}

/* States in bf16. Accumulators follow them, unless the spec gives their type. */
static void check_states(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    struct run_spec *spec = &full->spec;
    const struct spec_node *master = spec_find(root, "bf16.bf16_master_weights_and_grads"),
                           *moments = spec_find(root, "bf16.bf16_optimizer_states");
    if (spec->bf16_master && spec->dtype != DTYPE_BF16)
        spec_error(ctx, master->key_pos, "bf16_master_weights_and_grads needs bf16; hint: set bf16.enabled to true");
    if (spec->bf16_master && (optimizer_moments(&spec->optimizer) != 2 || spec->optimizer.type == OPTIMIZER_MUON))
        spec_error(ctx, master->key_pos,
                   "bf16_master_weights_and_grads is not supported yet with optimizer %s; hint: remove the key, or use "
                   "AdamW",
                   optimizer_name(spec->optimizer.type));
    if (spec->bf16_moments && !spec->bf16_master)
        spec_error(ctx, moments->key_pos,
                   "bf16_optimizer_states requires bf16_master_weights_and_grads; hint: set both");
    if (spec->bf16_master && !is_set(spec_find(root, "data_types.grad_accum_dtype")))
        spec->grad_accum_dtype = DTYPE_BF16;
}

/* The keys that scale gradients for their reduction matter in fp16 only: other types have the range of fp32. */
static void check_reduction(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    static const char *const scaling[] = {"prescale_gradients", "gradient_predivide_factor"};
    const struct run_spec *spec = &full->spec;
    const bool given[] = {spec->prescale_gradients, spec->gradient_predivide_factor != 1};
    for (int i = 0; i < 2; i++)
        if (given[i] && spec->communication_data_type != DTYPE_F16)
            spec_notice(
                ctx, spec_find(root, scaling[i])->key_pos,
                "'%s' has no effect here: communication_data_type is %s, in which no sum of gradients overflows",
                scaling[i], dtype_name(spec->communication_data_type));
    if (given[0] && given[1] && spec->communication_data_type == DTYPE_F16)
        spec_notice(
            ctx, spec_find(root, scaling[1])->key_pos,
            "'gradient_predivide_factor' has no effect here: prescale_gradients divides by the number of ranks");
}

static bool is_zero(const struct spec_node *node)
{
    return (node->kind == NODE_INT && node->integer == 0) || (node->kind == NODE_REAL && node->real == 0);
}

/* A key of offload that has no effect with the device that is set, and why. */
struct idle_key {
    const char *device, *path, *why;
};

static void check_idle_keys(struct spec_context *ctx, const struct spec_node *root)
{
    static const struct idle_key keys[] = {
        {"offload_optimizer.device none", "sub_group_size", "the optimizer updates a rank's slices one by one"},
        {"offload_optimizer.device none", "offload_optimizer.nvme_path", "nothing is on a disk"},
        {"offload_optimizer.device cpu", "offload_optimizer.nvme_path", "nothing is on a disk"},
        {"offload_param.device none", "offload_param.nvme_path", "nothing is on a disk"},
        {"offload_param.device cpu", "offload_param.nvme_path", "nothing is on a disk"},
        {"offload_optimizer.device cpu", "offload_optimizer.buffer_count", "all state is in host memory"},
        {"offload_optimizer.device cpu", "offload_optimizer.pipeline_read", "all state is in host memory"},
        {"offload_optimizer.device cpu", "offload_optimizer.pipeline_write", "all state is in host memory"},
        {"offload_param.device cpu", "offload_param.max_in_cpu", "all parameters are kept in host memory"},
        {"offload_param.device cpu", "offload_param.buffer_count",
         "parameters come up into the places of gathered blocks"},
        {"offload_param.device cpu", "offload_param.buffer_size",
         "parameters come up into the places of gathered blocks"},
    };
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        char path[96], device[96];
        const char *word = strrchr(keys[i].device, ' ') + 1;
        snprintf(path, sizeof path, "zero_optimization.%s", keys[i].path);
        snprintf(device, sizeof device, "zero_optimization.%.*s", (int)(word - 1 - keys[i].device), keys[i].device);
        const struct spec_node *node = spec_find(root, path), *where = spec_find(root, device);
        const bool matches = is_set(where) ? has_text(where, word) : strcmp(word, "none") == 0;
        if (matches && is_set(node) && !spec_is_auto(node))
            spec_notice(ctx, node->key_pos, "'%s' has no effect with device %s: %s", path, word, keys[i].why);
    }
}

static void check_pinning(struct spec_context *ctx, const struct spec_node *root, const char *section)
{
    const char *path = spec_arena_printf(ctx->arena, "zero_optimization.%s", section);
    const struct spec_node *parent = spec_find(root, path);
    const struct spec_node *device = spec_child(parent, "device"), *pins = spec_child(parent, "pin_memory");
    if (is_set(device) && !has_text(device, "none") && pins && pins->kind == NODE_BOOL && !pins->boolean)
        spec_notice(
            ctx, pins->key_pos,
            "'%s.pin_memory' is false: a GPU's copies from and to host memory pass through small pinned buffers, "
            "and the host copies each byte once more",
            path);
}

/* Muon's updates need whole matrices on the device. */
static void check_muon_offload(struct spec_context *ctx, const struct spec_full *full, const struct spec_node *root)
{
    static const char *const names[] = {"offload_optimizer", "offload_param"};
    const enum offload_device devices[] = {full->spec.zero.offload_optimizer.device,
                                           full->spec.zero.offload_param.device};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *path = spec_arena_printf(ctx->arena, "zero_optimization.%s.device", names[i]);
        const struct spec_node *device = spec_find(root, path);
        if (full->spec.optimizer.type == OPTIMIZER_MUON && devices[i] != OFFLOAD_NONE)
            spec_error(ctx, device ? device->key_pos : top,
                       "%s is not supported yet with optimizer Muon; hint: set its device to none, or use AdamW",
                       names[i]);
    }
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
        spec_error(
            ctx, optimizer->key_pos,
            "offload_optimizer needs zero_optimization stage 1, 2 or 3, not 0; hint: set zero_optimization.stage");
    else if (has_text(optimizer, "nvme") && stage != 3)
        spec_error(
            ctx, optimizer->key_pos,
            "offload_optimizer to nvme needs zero_optimization stage 3, not %d; hint: use device cpu, or stage 3",
            stage);
    bool early = is_set(param) && !has_text(param, "none") && stage != 3;
    if (early && param->pos.source == 1) { /* as in DeepSpeed */
        spec_notice(ctx, param->key_pos,
                    "'zero_optimization.offload_param' has no effect at stage %d, which does not shard parameters; "
                    "stage 3 does",
                    stage);
        full->spec.zero.offload_param.device = OFFLOAD_NONE;
    } else if (early)
        spec_error(ctx, param->key_pos,
                   "offload_param needs zero_optimization stage 3, not %d; hint: set stage 3, or use offload_optimizer",
                   stage);
    check_muon_offload(ctx, full, root);
    if (has_text(optimizer, "nvme") && !full->spec.zero.offload_optimizer.nvme_path)
        spec_error(ctx, optimizer->key_pos,
                   "offload_optimizer to nvme needs nvme_path; hint: a folder on a local disk");
    if (full->spec.zero.offload_param.device == OFFLOAD_NVME && !full->spec.zero.offload_param.nvme_path)
        spec_error(ctx, param->key_pos, "offload_param to nvme needs nvme_path; hint: a folder on a local disk");
    const struct spec_node *ratio = spec_find(root, "zero_optimization.offload_optimizer.ratio");
    if (ratio && is_zero(ratio) && is_set(optimizer) && !has_text(optimizer, "none"))
        spec_notice(ctx, ratio->key_pos, "'zero_optimization.offload_optimizer.ratio' is 0: nothing is offloaded");
    check_idle_keys(ctx, root);
    check_pinning(ctx, root, "offload_optimizer");
    check_pinning(ctx, root, "offload_param");
}

/* enabled alone is policy block, and a policy alone enables; only together can the two contradict each other. */
static void check_recompute(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    const struct spec_node *enabled = spec_find(root, "activation_checkpointing.enabled"),
                           *policy = spec_find(root, "activation_checkpointing.policy");
    enum recompute *recompute = &full->spec.recompute;
    if (!is_set(policy))
        *recompute = full->activation_checkpointing ? RECOMPUTE_BLOCK : RECOMPUTE_NONE;
    else if (*recompute != RECOMPUTE_NONE && is_set(enabled) && !full->activation_checkpointing)
        spec_error(ctx, later_pos(enabled, policy),
                   "activation_checkpointing.enabled is false, but its policy is %s; hint: remove enabled, or set "
                   "policy: none",
                   recompute_name(*recompute));
    full->activation_checkpointing = *recompute != RECOMPUTE_NONE;
    const struct spec_node *to_cpu = spec_find(root, "activation_checkpointing.cpu_checkpointing");
    if (full->spec.cpu_checkpointing && *recompute == RECOMPUTE_NONE && to_cpu->pos.source == 1) { /* as in DeepSpeed */
        spec_notice(ctx, to_cpu->key_pos,
                    "'activation_checkpointing.cpu_checkpointing' has no effect while activation_checkpointing.policy "
                    "is none");
        full->spec.cpu_checkpointing = false;
    } else if (full->spec.cpu_checkpointing && *recompute == RECOMPUTE_NONE)
        spec_error(
            ctx, spec_find(root, "activation_checkpointing.cpu_checkpointing")->key_pos,
            "activation_checkpointing.cpu_checkpointing needs activations that are computed again from the blocks' "
            "inputs; hint: set activation_checkpointing.policy to block");
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
    if (full->spec.model.task == TASK_CAUSAL_LM && full->spec.data.packing != SPEC_PACKING_CUT &&
        full->spec.data.seq_length == 1 && is_set(length))
        spec_error(ctx, length->pos,
                   "'data.seq_length' 1 leaves no target if data.packing is false or first_fit; hint: use 2 or more");
}

/* The length of a file's name without the ending of a text that is not tokenized yet (.jsonl, .csv.gz, …); 0: it has no
 * such ending. */
static size_t text_stem(const char *name)
{
    static const char *const packed[] = {".gz", ".zst"};
    static const char *const kinds[] = {".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt", ".parquet"};
    size_t length = strlen(name);
    for (size_t i = 0; i < COUNT_OF(packed); i++)
        if (fs_has_suffix(name, packed[i]))
            length -= strlen(packed[i]);
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        size_t end = strlen(kinds[i]);
        if (length > end && memcmp(name + length - end, kinds[i], end) == 0)
            return length - end;
    }
    return 0;
}

/* Refuses text where token shards are expected, with the line that makes them of it. */
static void check_shards(struct spec_context *ctx, const struct spec_full *full, const struct spec_node *root,
                         const char *key, const struct string_list *shards)
{
    const char *tokenizer = full->spec.model.tokenizer    ? full->spec.model.tokenizer
                            : full->spec.model.pretrained ? full->spec.model.pretrained
                                                          : "DIR";
    for (int i = 0; i < shards->count; i++) {
        const char *name = shards->items[i];
        int stem = (int)text_stem(name);
        if (stem == 0)
            continue;
        while (stem > 1 && strchr("*?[]", name[stem - 1])) /* a glob's shards need a name */
            stem--;
        spec_error(ctx, spec_find(root, key)->pos,
                   "'%s' names text, '%s', and not token shards; hint: run scripts/tokenize.py %s --output %.*s "
                   "--tokenizer %s (and --chat-template for conversations), then set %s: %.*s",
                   key, spec_show(ctx, name), name, stem, name, tokenizer, key, stem, name);
        return;
    }
}

/* ---- the whole spec ------------------------------------------------------ */

void spec_check(struct spec_context *ctx, struct spec_full *full, struct spec_node *root, bool complete)
{
    spec_normalise(ctx, root); /* overrides may have old names as well */
    find_unknown(ctx, root, root, "");
    full->spec.scheduler.warmup_max_lr = -1;
    for (int i = 0; i < spec_num_keys; i++)
        check_row(ctx, full, root, &spec_keys[i]);
    if (!complete) /* keys of the missing file could matter to these rules */
        return;
    check_model(ctx, full, root);
    check_task(ctx, full, root);
    check_batch(ctx, full, root);
    spec_auto_clipping(ctx, full, root);
    check_optimizer(ctx, full, root);
    check_learning_rate(ctx, full, root);
    check_muon(ctx, full, root);
    check_scheduler(ctx, full, root);
    check_precision(ctx, full, root);
    check_logits(ctx, full, root);
    check_interval(ctx, full, root);
    check_spikes(ctx, full, root);
    check_states(ctx, full, root);
    check_reduction(ctx, full, root);
    check_offload(ctx, full, root);
    check_recompute(ctx, full, root);
    check_names(ctx, full, root);
    check_documents(ctx, full, root);
    spec_check_choosing(ctx, full, root);
    spec_check_profiling(ctx, full, root);
    check_shards(ctx, full, root, "data.train", &full->spec.data.train);
    check_shards(ctx, full, root, "data.validation", &full->spec.data.validation);
}

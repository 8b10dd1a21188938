/* SPDX-License-Identifier: Apache-2.0 */
/* spec_auto_values.c: what "auto" stands for.
 *
 * As Trainer's arguments do, a value in the YAML file counts where the DeepSpeed file has "auto" (spec_merge).
 * Elsewhere a value follows from others or is the default; it is recorded, and printed with its origin once ranks,
 * model and data are known. Source: transformers 5.23, integrations/deepspeed.py and TrainingArguments. */
#include "core/spec/spec_keys.h"

#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

struct auto_rule {
    const char *path;
    const char *value; /* as YAML: where "auto" means another value than an absent key does; else NULL */
    const char *from;
    int square, factor; /* value = square/10 · hidden_size² + factor · hidden_size, unless both are 0 */
};

#define OPTIMIZER_DEFAULT "the optimizer's default"
#define NOT_SET "the run spec, which does not switch it on"
#define SIZES "the other batch sizes and the number of ranks"

static const struct auto_rule rules[] = {
    {"train_batch_size", NULL, SIZES, 0, 0},
    {"train_micro_batch_size_per_gpu", NULL, SIZES, 0, 0},
    {"gradient_accumulation_steps", NULL, SIZES, 0, 0},
    {"gradient_clipping", "1.0", "the default of Trainer's max_grad_norm", 0, 0},
    {"optimizer.params.lr", NULL, "scheduler.params.warmup_max_lr", 0, 0},
    {"optimizer.params.betas", NULL, OPTIMIZER_DEFAULT, 0, 0},
    {"optimizer.params.eps", NULL, OPTIMIZER_DEFAULT, 0, 0},
    {"optimizer.params.weight_decay", NULL, OPTIMIZER_DEFAULT, 0, 0},
    {"scheduler.params.warmup_num_steps", "0", "the default of Trainer's warmup_steps", 0, 0},
    {"scheduler.params.warmup_max_lr", NULL, "optimizer.params.lr", 0, 0},
    {"scheduler.params.total_num_steps", NULL, "the length of the run", 0, 0},
    {"scheduler.params.total_steps", NULL, "the length of the run", 0, 0},
    {"bf16.enabled", NULL, NOT_SET, 0, 0},
    {"fp16.enabled", NULL, NOT_SET, 0, 0},
    {"zero_optimization.reduce_bucket_size", NULL, "the model's hidden size, squared", 10, 0},
    {"zero_optimization.stage3_prefetch_bucket_size", NULL, "0.9 x the model's hidden size, squared", 9, 0},
    {"zero_optimization.stage3_param_persistence_threshold", NULL, "10 x the model's hidden size", 0, 10},
};

static const struct auto_rule *find_auto_rule(const char *path)
{
    for (size_t i = 0; i < COUNT_OF(rules); i++)
        if (strcmp(rules[i].path, path) == 0)
            return &rules[i];
    return NULL;
}

/* Keys of ztrain's, and those that need a decision, do not take "auto". */
bool spec_auto_is_allowed(const struct spec_key *key)
{
    return !spec_has_word("run.* model.* data.* train.* comm.* optimizer.type scheduler.type", key->path) &&
           !(spec_has_word("checkpoint.*", key->path) && key->verdict == VERDICT_USED);
}

json_t *spec_auto_value(const struct spec_key *key)
{
    const struct auto_rule *rule = find_auto_rule(key->path);
    if (!rule || !rule->value)
        return spec_key_default(key);
    struct spec_key other = *key;
    other.fallback = rule->value;
    return spec_key_default(&other);
}

struct spec_auto *spec_auto_record(struct spec_full *full, const struct spec_key *key, const char *from)
{
    const struct auto_rule *rule = find_auto_rule(key->path);
    struct spec_auto *filled = spec_arena_alloc(&full->arena, sizeof *filled), **link = &full->autos;
    const char *origin = from ? from : rule ? rule->from : "the default";
    filled->key = key;
    filled->was = "auto";
    filled->from = spec_arena_text(&full->arena, origin);
    filled->derived = !from && rule && (rule->square || rule->factor);
    while (*link)
        link = &(*link)->next;
    *link = filled;
    return filled;
}

void spec_auto_clipping(const struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    const struct spec_node *node = spec_find(root, "gradient_clipping");
    const bool deepspeed = *ctx->sources[1];
    if (!deepspeed || (node && node->kind != NODE_NULL))
        return;
    full->unset_clipping = true;
    full->spec.gradient_clipping = 1;
    struct spec_auto *filled =
        spec_auto_record(full, spec_key_find("gradient_clipping"), "DeepSpeed's default; 0 switches clipping off");
    filled->was = "unset";
}

void spec_auto_origin(struct spec_full *full, const struct spec_key *key, const char *from)
{
    for (struct spec_auto *filled = full->autos; filled; filled = filled->next)
        if (filled->key == key)
            filled->from = spec_arena_text(&full->arena, from);
}

bool spec_auto_is_derived(const struct spec_full *full, const struct spec_key *key)
{
    for (const struct spec_auto *filled = full->autos; filled; filled = filled->next)
        if (filled->key == key)
            return filled->derived;
    return false;
}

static int64_t from_hidden_size(const struct spec_key *key, int64_t hidden_size)
{
    const struct auto_rule *rule = find_auto_rule(key->path);
    return rule->square * hidden_size * hidden_size / 10 + rule->factor * hidden_size;
}

void spec_resolve_model(struct run_spec *spec, int64_t hidden_size)
{
    struct spec_full *full = spec_full(spec);
    ASSERT(hidden_size > 0 && hidden_size < 1 << 28);
    full->hidden_size = hidden_size;
    for (const struct spec_auto *filled = full->autos; filled; filled = filled->next) {
        if (!filled->derived || !filled->key->size)
            continue;
        spec_key_store(full, filled->key, json_integer(from_hidden_size(filled->key, hidden_size)));
    }
}

/* The value that "auto" has become, as text that the caller frees. */
static char *value_text(const struct spec_full *full, const struct spec_auto *filled)
{
    const struct schedule_spec *schedule = &full->spec.scheduler;
    const bool known = schedule->total_steps; /* else the steps of a ratio are not */
    const bool by_ratio =
        schedule->warmup_ratio > 0 && spec_has_word("warmup_steps warmup_num_steps", spec_key_leaf(filled->key->path));
    json_t *value = by_ratio            ? known ? json_integer(schedule_warmup(schedule)) : NULL
                    : filled->key->size ? spec_key_fetch(full, filled->key)
                    : filled->derived   ? json_integer(from_hidden_size(filled->key, full->hidden_size))
                                        : spec_auto_value(filled->key);
    if (!value && strcmp(spec_key_leaf(filled->key->path), "warmup_max_lr") == 0)
        value = json_real(full->spec.optimizer.lr);
    char *text = spec_json_text(value);
    json_decref(value);
    return text;
}

void spec_auto_print(const struct run_spec *spec, struct string_list *lines)
{
    const struct spec_full *full = spec_full(spec);
    for (const struct spec_auto *filled = full->autos; filled; filled = filled->next) {
        char *value = value_text(full, filled);
        char *line = memory_printf("%s: %s \u2192 %s, from %s%s", filled->key->path, filled->was, value, filled->from,
                                   filled->key->verdict == VERDICT_NOTICE ? " (it has no effect here)" : "");
        string_list_add(lines, line);
        free(line);
        free(value);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* spec_adapter_rules.c: the rules of `peft`, and what model.adapter says of it. */
#include "core/spec/adapter_config.h"
#include "core/spec/spec_keys.h"

/* Whether the file may have the key. */
static bool adapter_reads(const struct spec_key *key)
{
    return spec_adapter_has(key) && key->size && key->offset != offsetof(struct spec_full, spec.adapter.base_dtype);
}

/* Settings of the run; or all-linear, which PEFT's files have as names: tensors are compared when they are read. */
static bool adapter_may_differ(const struct spec_full *full, const struct spec_key *key)
{
    if (key->offset == offsetof(struct spec_full, spec.adapter.target_modules)) return full->spec.adapter.all_linear;
    return key->offset == offsetof(struct spec_full, spec.adapter.lora_dropout) ||
           key->offset == offsetof(struct spec_full, spec.adapter.ensure_weight_tying);
}

/* Whether the values are equal; of lists the order does not count: PEFT writes sets. */
static bool adapter_agrees(const json_t *a, const json_t *b)
{
    bool agrees = json_is_array(a) && json_array_size(a) == json_array_size(b);
    for (size_t i = 0; agrees && i < json_array_size(a); i++) {
        size_t k = 0;
        while (k < json_array_size(b) && !json_equal(json_array_get(a, i), json_array_get(b, k))) k++;
        agrees = k < json_array_size(b);
    }
    return agrees || a == b || json_equal(a, b);
}

/* Whether the spec leaves no key to its default, as the run.yaml of a run that has started. */
static bool adapter_is_whole(const struct spec_node *root)
{
    bool whole = true;
    for (const struct spec_key *key = spec_keys; key->path; key++)
        whole = whole && (!adapter_reads(key) || !key->fallback || spec_find(root, key->path));
    return whole;
}

/* The file's value of each key that the spec leaves out. */
static void adapter_merge(struct spec_context *ctx, struct spec_full *full, const struct spec_full *file,
                          const struct spec_node *root)
{
    for (const struct spec_key *key = spec_keys; key->path; key++) {
        if (!adapter_reads(key)) continue;
        const struct spec_node *node = spec_find(root, key->path);
        json_auto_t *there = spec_key_fetch(file, key), *here = node ? spec_key_fetch(full, key) : NULL;
        if (!node || node->kind == NODE_NULL) {
            spec_key_store(full, key, json_incref(there));
        } else if (!adapter_agrees(there, here) && !adapter_may_differ(full, key)) {
            OWNED char *was = spec_json_text(there), *now = spec_json_text(here);
            spec_error(ctx, node->pos, "'%s' is %s, and %s in the config of model.adapter; hint: remove it here",
                       key->path, now, was);
        }
    }
}

/* Gives `peft` what model.adapter's config says. The run.yaml of a run has it all, and needs no folder. */
static void adapter_from_folder(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    const char *folder = full->spec.model.adapter, *base = full->spec.model.pretrained;
    struct adapter_config config;
    struct error err;
    if (!folder || (!fs_exists(folder) && adapter_is_whole(root))) return;
    const struct spec_node *node = spec_find(root, "model.adapter");
    if (adapter_config_load(folder, &config, &err) != STATUS_OK) {
        spec_error(ctx, node->pos, "'model.adapter': %s%s", err.text,
                   err.cause != ENOENT
                       ? ""
                       : "; hint: it is a PEFT folder; ztrain export writes that of a run. A run that has "
                         "started needs it no more: --config RUN/run.yaml --resume RUN");
        return;
    }
    if (config.base_model && base && strcmp(basename(config.base_model), basename(base)) != 0)
        spec_notice(ctx, node->pos, "'model.adapter' was trained on '%s', and model.pretrained is '%s'",
                    spec_show(ctx, config.base_model), base);
    const char *task = config.task_type;
    config.full->peft_task = !task                          ? PEFT_TASK_AUTO
                             : strcmp(task, "SEQ_CLS") == 0 ? TASK_SEQUENCE_CLASSIFICATION
                                                            : TASK_CAUSAL_LM;
    if (task && strcmp(task, "SEQ_CLS") != 0 && strcmp(task, "CAUSAL_LM") != 0)
        spec_error(ctx, node->pos,
                   "'model.adapter': the adapter's task_type is %s, and ztrain has CAUSAL_LM and SEQ_CLS",
                   spec_show(ctx, task));
    full->spec.adapter.on = true;
    adapter_merge(ctx, full, config.full, root);
    adapter_config_release(&config);
}

/* What watches over a step of one model. */
static void check_several(struct spec_context *ctx, const struct run_spec *spec, const struct spec_node *root)
{
    static const char *const refused[] = {"comms_logger.enabled", "flops_profiler.enabled",
                                          "train.check_interval_steps"};
    const bool on[] = {spec->comms_logger.enabled, spec->flops_profiler.enabled, spec->train.check_interval_steps > 0};
    for (size_t i = 0; i < COUNT_OF(refused); i++)
        if (on[i])
            spec_error(ctx, spec_find(root, refused[i])->pos,
                       "'%s' is not supported with several adapters; hint: train one of them with it", refused[i]);
    if (strchr(spec->run.group, '/'))
        spec_error(ctx, spec_child(root, "peft")->pos,
                   "the 'run.name' of several adapters must be the name of a folder, not '%s'",
                   spec_show(ctx, spec->run.group));
}

void spec_adapter_check(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    const struct adapter_settings *adapter = &full->spec.adapter;
    const struct spec_node *blocks = spec_find(root, "peft.layers_to_transform");
    const struct spec_node *pattern = spec_find(root, "peft.layers_pattern");
    const enum model_task task = full->spec.model.task;
    adapter_from_folder(ctx, full, root);
    const struct spec_node *again = spec_find(root, "model.quantization_config.bnb_4bit_use_double_quant");
    if (again && full->spec.model.quantization.double_quant && !full->spec.model.load_in_4bit)
        spec_notice(ctx, again->key_pos, "'%s' has no effect without load_in_4bit", again->key);
    if (full->spec.run.group) check_several(ctx, &full->spec, root);
    if (!adapter->on) return;
    const struct spec_node *given = spec_find(root, "peft.task_type");
    const bool causal = task == TASK_CAUSAL_LM;
    if (full->peft_task != PEFT_TASK_AUTO && (full->peft_task == TASK_CAUSAL_LM) != causal)
        spec_error(ctx, given ? given->pos : spec_find(root, "model.adapter")->pos,
                   "'peft.task_type' does not agree with model.task, which is %s; hint: set model.task",
                   causal                ? "causal_lm"
                   : task == TASK_REWARD ? "reward"
                                         : "sequence_classification");
    if (adapter->num_layers_to_transform && blocks && (adapter->all_linear || adapter->target_modules.expression))
        spec_error(ctx, blocks->key_pos,
                   "'peft.layers_to_transform' needs a list of peft.target_modules, as in PEFT; hint: list them, or "
                   "name the blocks in the regular expression");
    if (adapter->layers_pattern.count && pattern && !blocks)
        spec_error(ctx, pattern->key_pos,
                   "'peft.layers_pattern' has no meaning without peft.layers_to_transform; hint: remove it");
}

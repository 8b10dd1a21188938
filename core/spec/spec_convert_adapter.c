/* SPDX-License-Identifier: Apache-2.0 */
/* spec_convert_adapter.c: adapters of another trainer, and the bits in which it keeps their base. */
#include "core/spec/spec_convert_parts.h"

/* Their names of keys of `peft`. `usual`: the source's default, where PEFT's is another. */
static const struct adapter_name {
    unsigned kinds;
    const char *name, *key, *usual;
} adapter_names[] = {
    {1u << CONVERT_AXOLOTL | 1u << CONVERT_SFT, "lora_r", "peft.r", NULL},
    {1u << CONVERT_FACTORY, "lora_rank", "peft.r", "8"},
    {1u << CONVERT_AXOLOTL | 1u << CONVERT_SFT | 1u << CONVERT_FACTORY, "lora_alpha", "peft.lora_alpha", NULL},
    {1u << CONVERT_AXOLOTL | 1u << CONVERT_SFT | 1u << CONVERT_FACTORY, "lora_dropout", "peft.lora_dropout", NULL},
    {1u << CONVERT_AXOLOTL | 1u << CONVERT_SFT, "lora_target_modules", "peft.target_modules", NULL},
    {1u << CONVERT_FACTORY, "lora_target", "peft.target_modules", "all"},
    {1u << CONVERT_AXOLOTL, "lora_target_parameters", "peft.target_parameters", NULL},
    {1u << CONVERT_AXOLOTL, "lora_exclude_modules", "peft.exclude_modules", NULL},
    {1u << CONVERT_AXOLOTL | 1u << CONVERT_SFT, "lora_modules_to_save", "peft.modules_to_save", NULL},
    {1u << CONVERT_FACTORY, "additional_target", "peft.modules_to_save", NULL},
    {1u << CONVERT_AXOLOTL, "lora_rank_pattern", "peft.rank_pattern", NULL},
    {1u << CONVERT_AXOLOTL, "lora_alpha_pattern", "peft.alpha_pattern", NULL},
    {1u << CONVERT_AXOLOTL, "peft_layers_to_transform", "peft.layers_to_transform", NULL},
    {1u << CONVERT_AXOLOTL, "peft_layers_pattern", "peft.layers_pattern", NULL},
    {1u << CONVERT_AXOLOTL, "peft_use_rslora", "peft.use_rslora", NULL},
    {1u << CONVERT_AXOLOTL, "peft_ensure_weight_tying", "peft.ensure_weight_tying", NULL},
    {1u << CONVERT_SFT | 1u << CONVERT_FACTORY, "use_rslora", "peft.use_rslora", NULL},
};

static void adapter_set(struct convert *c, const struct adapter_name *row, struct spec_node *node)
{
    const bool names = strcmp(row->key, "peft.target_modules") == 0 || strcmp(row->key, "peft.modules_to_save") == 0;
    const struct spec_node *only = node->kind == NODE_LIST && node->count == 1 ? node->first : node;
    if (names && only->text &&
        (strcmp(only->text, "all-linear") == 0 || (c->kind == CONVERT_FACTORY && strcmp(only->text, "all") == 0)))
        convert_set_text(c, row->key, "all-linear");
    else if (names && c->kind == CONVERT_FACTORY && node->kind == NODE_STRING)
        convert_set(c, row->key, convert_commas(c, node));
    else if (node->kind != NODE_LIST || node->count)
        convert_set(c, row->key, node);
}

static void adapter_keys(struct convert *c, bool on)
{
    for (size_t i = 0; i < COUNT_OF(adapter_names); i++) {
        const struct adapter_name *row = &adapter_names[i];
        struct spec_node *node = row->kinds & 1u << c->kind ? convert_take(c, row->name) : NULL;
        if (!on && convert_is_on(node))
            convert_nothing(c, row->name);
        else if (on && node)
            adapter_set(c, row, node);
        else if (on && row->usual && row->kinds & 1u << c->kind)
            adapter_set(c, row, convert_scalar(c, row->name, row->usual));
    }
}

/* Whether the targets have what is not among all linear ones: an embedding, the head, or an expression. */
static bool adapter_has_more(const struct spec_node *targets)
{
    static const char *const others[] = {"embed", "wte", "wpe", "head"};
    bool more = targets && targets->kind == NODE_STRING && strcmp(targets->text, "all-linear") != 0;
    for (const struct spec_node *name = targets ? targets->first : NULL; name; name = name->next)
        for (size_t i = 0; i < COUNT_OF(others); i++) more = more || (name->text && strstr(name->text, others[i]));
    return more;
}

static void adapter_all_linear(struct convert *c, bool on)
{
    const bool linear = c->kind == CONVERT_AXOLOTL && convert_take_switch(c, "lora_target_linear");
    const struct spec_node *listed = spec_find(c->to, "peft.target_modules");
    if (linear && !on) convert_nothing(c, "lora_target_linear");
    if (!linear || !on) return;
    if (adapter_has_more(listed))
        convert_note(c, "'lora_target_linear' true: all-linear counts, and not lora_target_modules; embedding and head "
                        "are not among them");
    convert_set_text(c, "peft.target_modules", "all-linear");
}

/* A trained adapter to go on from: its adapter_config.json gives the rest. */
static bool adapter_folder(struct convert *c)
{
    const char *name = c->kind == CONVERT_AXOLOTL ? "lora_model_dir" : "adapter_name_or_path";
    const char *folder = convert_take_text(c, name);
    const bool renewed = convert_take_switch(c, "create_new_adapter");
    if (!folder) return false;
    if (renewed || strchr(folder, ',')) {
        convert_note(c,
                     "'%s' %s is left out: it names adapters to merge into the base first; hint: PEFT's "
                     "merge_and_unload makes a folder for model.pretrained",
                     name, spec_show(c->ctx, folder));
        return false;
    }
    convert_set_text(c, "model.adapter", folder);
    return true;
}

/* The key that asks for fewer bits of the base; *four: 4 of bitsandbytes. NULL: none does. */
static const struct spec_node *adapter_bits(struct convert *c, bool *four)
{
    struct spec_node *load4 = convert_take(c, "load_in_4bit"), *load8 = convert_take(c, "load_in_8bit");
    struct spec_node *bits = convert_take(c, "quantization_bit");
    const struct spec_node *peft = c->kind == CONVERT_AXOLOTL ? convert_take_mapping(c, "peft") : NULL;
    const struct spec_node *dtype = convert_child(peft, "weight_dtype");
    const char *backend = convert_child_text(peft, "backend"), *method = convert_take_text(c, "quantization_method");
    const bool nf4 = dtype && dtype->text && strcmp(dtype->text, "nf4") == 0;
    convert_unquote(bits);
    convert_children(c, "peft", peft);
    *four = convert_is_on(load4) ||
            (bits && bits->kind == NODE_INT && bits->integer == 4 && (!method || strcmp(method, "bnb") == 0)) ||
            (nf4 && (!backend || strcmp(backend, "bnb") == 0));
    return convert_is_on(load4) ? load4 : convert_is_on(load8) ? load8 : convert_is_on(bits) ? bits : dtype;
}

/* Names of the type of the 4 bits and of double quantization, and whether that is on if no file says so. */
static const char *adapter_nested(struct convert *c, bool *nested)
{
    const struct spec_node *more = convert_take_mapping(c, "bnb_config_kwargs"); /* axolotl */
    const char *type = convert_take_text(c, c->kind == CONVERT_FACTORY ? "quantization_type" : "bnb_4bit_quant_type");
    const struct spec_node *twice =
        c->kind == CONVERT_FACTORY ? convert_take(c, "double_quantization") : convert_take(c, "use_bnb_nested_quant");
    const char *other = convert_child_text(more, "bnb_4bit_quant_type");
    const struct spec_node *again = convert_child(more, "bnb_4bit_use_double_quant");
    convert_children(c, "bnb_config_kwargs", more);
    twice = again ? again : twice;
    *nested = twice ? convert_truth(c, twice) : c->kind != CONVERT_SFT;
    return other ? other : type ? type : "nf4";
}

static void adapter_base(struct convert *c, bool on)
{
    bool four, nested;
    const struct spec_node *asked = adapter_bits(c, &four);
    const char *type = adapter_nested(c, &nested);
    if (!asked) return;
    const char *why =
        !on ? ", as all of them are trained" : ": the frozen base is kept in the type that the run computes in";
    if (!on || !four || strcmp(type, "nf4") != 0) {
        convert_note(c, "'%s' %s%s%s: weights are not quantized%s", asked->key, convert_show(c, asked),
                     on && four ? " with " : "", on && four ? type : "", why);
        return;
    }
    convert_set_yaml(c, "model.quantization_config.load_in_4bit", "true");
    convert_set_text(c, "model.quantization_config.bnb_4bit_quant_type", "nf4");
    convert_set_yaml(c, "model.quantization_config.bnb_4bit_use_double_quant", nested ? "true" : "false");
}

/* The key that asks for an adapter that is no LoRA, or freezes in another way; NULL: none. *on: it is LoRA. */
static const struct spec_node *adapter_other(struct convert *c, bool *on)
{
    struct spec_node *adapter = convert_take(c, "adapter"), *type = convert_take(c, "finetuning_type");
    const struct spec_node *asked = c->kind == CONVERT_FACTORY ? type : adapter;
    const bool peft = convert_take_switch(c, "use_peft");
    const char *name = asked && asked->text && convert_is_on(asked) ? asked->text : "full";
    *on = peft || strcmp(name, "lora") == 0 || strcmp(name, "qlora") == 0;
    return *on || strcmp(name, "full") == 0 ? NULL : asked;
}

void convert_adapter(struct convert *c)
{
    static const char *const sft[][2] = {{"peft.r", "16"}, {"peft.lora_alpha", "32"}, {"peft.lora_dropout", "0.05"}};
    bool on;
    const struct spec_node *other = adapter_other(c, &on);
    if (other)
        convert_note(c, "'%s' %s: all weights are trained; their learning rate is usually a tenth of an adapter's",
                     other->key, convert_show(c, other));
    const bool trained = on && adapter_folder(c);
    const struct spec_node *start = convert_take(c, "peft_init_lora_weights");
    if (on && !trained) convert_set_text(c, "peft.peft_type", "LORA");
    adapter_keys(c, on && !trained);
    const struct spec_node *rank = spec_find(c->to, "peft.r");
    for (size_t i = 0; i < COUNT_OF(sft) && on && !trained && c->kind == CONVERT_SFT; i++)
        if (!spec_find(c->to, sft[i][0])) convert_set_yaml(c, sft[i][0], sft[i][1]);
    if (on && !trained && c->kind == CONVERT_FACTORY && !spec_find(c->to, "peft.lora_alpha") && spec_is_number(rank))
        convert_set_yaml(c, "peft.lora_alpha", convert_text(c, "%.15g", 2 * rank->real));
    adapter_all_linear(c, on && !trained);
    if (on && !trained && start && start->kind == NODE_STRING) /* which changes the result */
        convert_note(c, "'%s' %s: A starts uniform, B as zeros", start->key, convert_show(c, start));
    adapter_base(c, on);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* spec_convert_preference.c: losses of preferences by the names of axolotl and LLaMA-Factory. */
#include "core/spec/spec_convert_parts.h"

static const struct {
    const char *word, *loss;
} losses[] = {{"dpo", "sigmoid"}, {"sigmoid", "sigmoid"}, {"hinge", "hinge"}, {"ipo", "ipo"},
              {"kto", "kto"},     {"orpo", "orpo"},       {"simpo", "simpo"}};

/* Names, the key, and the losses that read it (NULL: all). */
static const struct {
    const char *names, *key, *losses;
} values[] = {{"rl_beta dpo_beta pref_beta", "preference.beta", NULL},
              {"orpo_alpha", "preference.beta", "orpo"},
              {"dpo_label_smoothing", "preference.label_smoothing", "sigmoid simpo"},
              {"simpo_gamma", "preference.gamma", "simpo"},
              {"rpo_alpha pref_ftx", "preference.rpo_alpha", "sigmoid hinge ipo simpo"},
              {"cpo_alpha", "preference.rpo_alpha", "simpo"},
              {"kto_desirable_weight kto_chosen_weight", "preference.desirable_weight", "kto"},
              {"kto_undesirable_weight kto_rejected_weight", "preference.undesirable_weight", "kto"},
              {"ref_model", "preference.reference", "sigmoid hinge ipo kto"}};

static void convert_loss(struct convert *c, const char *loss)
{
    convert_set_yaml(c, "preference.loss", loss);
    c->prefers = true;
    if (c->kind == CONVERT_AXOLOTL && strcmp(loss, "simpo") == 0) /* TRL's default of cpo_alpha */
        convert_set_yaml(c, "preference.rpo_alpha", "1.0");
    for (size_t i = 0; i < COUNT_OF(values); i++) {
        if (values[i].losses && !strstr(values[i].losses, loss)) continue;
        const struct spec_node *node = convert_take_one(c, values[i].names);
        if (node && node->text) convert_set(c, values[i].key, node);
    }
}

void convert_preferences(struct convert *c)
{
    const struct spec_node *way = c->kind == CONVERT_AXOLOTL   ? convert_take(c, "rl")
                                  : c->kind == CONVERT_FACTORY ? spec_child(c->from, "stage")
                                                               : NULL;
    const bool rewards = c->kind == CONVERT_AXOLOTL && convert_take_switch(c, "reward_model");
    if (rewards || (way && spec_is_text(way, "rm"))) {
        convert_set_yaml(c, "model.task", "reward");
        c->prefers = true;
    }
    if (c->prefers || !convert_is_on(way) || spec_is_text(way, "sft") || spec_is_text(way, "pt")) return;
    const struct spec_node *named = spec_is_text(way, "dpo") ? convert_take(c, "pref_loss") : NULL;
    for (size_t i = 0; i < COUNT_OF(losses); i++)
        if (spec_is_text(named ? named : way, losses[i].word)) convert_loss(c, losses[i].loss);
    if (!c->prefers)
        convert_note(c, "'%s' %s is not here: the model is fine-tuned on the text", named ? "pref_loss" : way->key,
                     convert_show(c, named ? named : way));
}

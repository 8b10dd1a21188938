/* SPDX-License-Identifier: Apache-2.0 */
/* spec_convert_preference.c: losses of preferences by the names of axolotl and LLaMA-Factory. */
#include "core/spec/spec_convert_parts.h"

static const struct {
    const char *word, *loss;
} losses[] = {{"dpo", "sigmoid"}, {"sigmoid", "sigmoid"}, {"hinge", "hinge"}, {"ipo", "ipo"},
              {"kto", "kto"},     {"orpo", "orpo"},       {"simpo", "simpo"}};

static const struct {
    const char *names, *key;
} numbers[] = {{"rl_beta dpo_beta pref_beta orpo_alpha", "preference.beta"},
               {"dpo_label_smoothing", "preference.label_smoothing"},
               {"simpo_gamma", "preference.gamma"},
               {"rpo_alpha pref_ftx", "preference.rpo_alpha"},
               {"kto_desirable_weight kto_chosen_weight", "preference.desirable_weight"},
               {"kto_undesirable_weight kto_rejected_weight", "preference.undesirable_weight"},
               {"ref_model", "preference.reference"}};

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
        if (spec_is_text(named ? named : way, losses[i].word)) {
            convert_set_yaml(c, "preference.loss", losses[i].loss);
            c->prefers = true;
        }
    if (!c->prefers) {
        convert_note(c, "'%s' %s is not here: the model is fine-tuned on the text", named ? "pref_loss" : way->key,
                     convert_show(c, named ? named : way));
        return;
    }
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        const struct spec_node *node = convert_take_one(c, numbers[i].names);
        if (node && convert_is_on(node)) convert_set(c, numbers[i].key, node);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* spec_convert_training.c: the model, the length of the run, batches, optimizer and schedule of another trainer. */
#include "core/spec/spec_convert_parts.h"

#include "core/model/model_folder.h"

#include <math.h>
#include <string.h>

void convert_model(struct convert *c)
{
    struct spec_node *trained = convert_take(c, c->kind == CONVERT_AXOLOTL ? "base_model" : "model_name_or_path");
    struct spec_node *config = convert_take(c, c->kind == CONVERT_AXOLOTL ? "base_model_config" : "config_name");
    const bool scratch = convert_take_switch(c, "train_from_scratch");
    const struct spec_node *model = trained ? trained : config;
    if (!model || model->kind != NODE_STRING)
        return;
    if (trained && config && config->text && strcmp(config->text, trained->text) != 0)
        convert_note(c, "'%s' %s: config.json in the model folder counts instead", config->key,
                     convert_show(c, config));
    convert_set(c, trained && !scratch ? "model.pretrained" : "model.config", model);
    c->model = model->text;
    char folder[FS_PATH_MAX];
    if (!model_folder_find(model->text, folder) && !fs_exists(model->text)) {
        const bool name = model_folder_is_name(model->text);
        convert_note(c, "the model '%s' is not here%s%s", model->text, name ? ": hf download " : "",
                     name ? model->text : "");
    }
}

/* ---- length and batches -------------------------------------------------- */

static void training_batches(struct convert *c)
{
    const struct spec_node *micro =
        convert_take_one(c, "per_device_train_batch_size per_gpu_train_batch_size micro_batch_size");
    const struct spec_node *accumulation = convert_take(c, "gradient_accumulation_steps");
    const struct spec_node *total = convert_take(c, "batch_size"); /* axolotl's, of one GPU */
    if (total && micro && micro->kind == NODE_INT && micro->integer > 0 && total->kind == NODE_INT &&
        !convert_is_given(accumulation)) {
        const int64_t steps = total->integer / micro->integer;
        accumulation = convert_scalar(c, "batch_size", convert_text(c, "%lld", steps > 0 ? (long long)steps : 1));
    }
    if (micro)
        convert_set(c, "train_micro_batch_size_per_gpu", micro);
    if (accumulation)
        convert_set(c, "gradient_accumulation_steps", accumulation);
}

/* With --world the whole batch takes the place of the accumulation, unless a file has it. */
void convert_whole_batch(struct convert *c)
{
    const struct spec_node *micro = spec_find(c->to, "train_micro_batch_size_per_gpu");
    const struct spec_node *accumulation = spec_find(c->to, "gradient_accumulation_steps");
    int64_t whole;
    if (!c->world || spec_find(c->to, "train_batch_size") || !micro || micro->kind != NODE_INT || !accumulation ||
        accumulation->kind != NODE_INT || __builtin_mul_overflow(micro->integer, accumulation->integer, &whole) ||
        __builtin_mul_overflow(whole, (int64_t)c->world, &whole))
        return;
    convert_set_yaml(c, "train_batch_size", convert_text(c, "%lld", (long long)whole));
    convert_unset(c, "gradient_accumulation_steps");
}

void convert_length(struct convert *c)
{
    const struct spec_node *epochs = convert_take_one(c, "num_train_epochs num_epochs epochs");
    const struct spec_node *steps = convert_take_one(c, "max_steps max_train_steps max_iters train_iters");
    if (spec_is_number(steps) && steps->real > 0)
        convert_set(c, "train.max_steps", steps); /* it counts, and epochs do not */
    else if (epochs)
        convert_set(c, "train.epochs", epochs);
    training_batches(c);
}

/* ---- optimizer ----------------------------------------------------------- */

#define EIGHT_BITS "its states are in fp32 here, and not in 8 bits: the update is exact, and takes more memory"
#define TORCHAO "its states have torchao's 8 bits, and bitsandbytes rounds differently"
#define ADAMW_INSTEAD "is not here; AdamW takes its place, whose learning rate may have to be another"
static const struct {
    const char *names, *type, *note;
} optimizer_names[] = {
    {"adamw_torch adamw_torch_fused adamw_hf adamw adamw_apex_fused adamw_torch_xla adamw_torch_npu_fused paged_adamw "
     "paged_adamw_32bit optimi_adamw flash_adamw",
     "AdamW", NULL},
    {"adamw_8bit adamw_bnb_8bit paged_adamw_8bit", "AdamW8bit", TORCHAO},
    {"adamw_torch_8bit ao_adamw_8bit", "AdamW8bit", NULL},
    {"ao_adamw_fp8", "AdamW", EIGHT_BITS},
    {"adamw_torch_4bit ao_adamw_4bit", "AdamW", "its states are in fp32 here, and not in 4 bits"},
    {"lion lion_pytorch lion_32bit paged_lion_32bit flash_lion", "Lion", NULL},
    {"lion_8bit paged_lion_8bit", "Lion", EIGHT_BITS},
    {"sgd", "SGD", NULL},
    {"muon", "Muon", NULL},
};

static const char *training_optimizer(struct convert *c, const struct spec_node *node)
{
    const char *name = node ? convert_show(c, node) : "adamw_torch";
    for (size_t i = 0; i < COUNT_OF(optimizer_names); i++) {
        if (!spec_has_word(optimizer_names[i].names, name))
            continue;
        if (optimizer_names[i].note)
            convert_note(c, "'%s' %s: %s", node->key, name, optimizer_names[i].note);
        return optimizer_names[i].type;
    }
    convert_note(c, "'%s' %s " ADAMW_INSTEAD, node->key, convert_show(c, node));
    return "AdamW";
}

void convert_optimizer(struct convert *c)
{
    struct spec_node *given = convert_take(c, "optim"), *other = convert_take(c, "optimizer");
    struct spec_node *beta1 = convert_take(c, "adam_beta1"), *beta2 = convert_take(c, "adam_beta2");
    struct spec_node *eps = convert_take(c, "adam_epsilon");
    const struct spec_node *clip = convert_take_one(c, "max_grad_norm clip_grad_norm grad_clip");
    if (c->kind == CONVERT_AXOLOTL && other)
        given = other;
    c->optimizer = convert_is_given(given) ? given : NULL;
    if (clip) /* in every source, 0 and less mean that nothing is clipped */
        convert_set(c, "gradient_clipping", clip->real > 0 ? clip : convert_scalar(c, NULL, "0"));
    const bool wants_muon = convert_take_switch(c, "use_muon");
    const char *type = wants_muon ? "Muon" : training_optimizer(c, given);
    const bool muon = strcmp(type, "Muon") == 0, adam = strncmp(type, "AdamW", strlen("AdamW")) == 0;
    convert_set_text(c, "optimizer.type", type);
    /* Muon has defaults of its own for these, in every source */
    if (beta1 && beta2 && strcmp(type, "SGD") != 0 && (!muon || convert_is_given(beta1) || convert_is_given(beta2))) {
        struct spec_node *pair = convert_list(c);
        beta1->key = beta2->key = NULL;
        spec_attach(c->ctx, pair, beta1);
        spec_attach(c->ctx, pair, beta2);
        convert_set(c, "optimizer.params.betas", pair);
    }
    if (eps && (adam || (muon && convert_is_given(eps))))
        convert_set(c, "optimizer.params.eps", eps);
}

/* ---- schedule ------------------------------------------------------------ */

enum schedule_extra { EXTRA_NONE, EXTRA_MIN_LR, EXTRA_WSD, EXTRA_POLYNOMIAL, EXTRA_NO_WARMUP, EXTRA_CYCLES };

static const struct {
    const char *name, *type;
    enum schedule_extra extra;
} schedule_names[] = {
    {"linear", "Linear", EXTRA_NONE},
    {"cosine", "Cosine", EXTRA_MIN_LR},
    {"cosine_with_min_lr", "Cosine", EXTRA_MIN_LR},
    {"cosine_with_restarts", "Cosine", EXTRA_CYCLES},
    {"constant", "Constant", EXTRA_NO_WARMUP},
    {"constant_with_warmup", "Constant", EXTRA_NONE},
    {"polynomial", "Linear", EXTRA_POLYNOMIAL},
    {"warmup_stable_decay", "WSD", EXTRA_WSD},
};

static bool schedule_number(const struct spec_node *kwargs, const char *name, double *value)
{
    struct spec_node *node = spec_child(kwargs, name);
    convert_unquote(node);
    if (!spec_is_number(node))
        return false;
    node->taken = true;
    *value = node->real;
    return true;
}

static void schedule_set_real(struct convert *c, const char *path, double value)
{
    convert_set_yaml(c, path, convert_text(c, "%.15g", value));
}

/* min_lr, or a ratio of the learning rate. */
static void schedule_set_min_lr(struct convert *c, const struct spec_node *kwargs)
{
    double value;
    struct spec_node *ratio = convert_take(c, "cosine_min_lr_ratio");
    const struct spec_node *lr = spec_child(c->from, "learning_rate");
    const double rate = spec_is_number(lr) ? lr->real : 0;
    if (schedule_number(kwargs, "min_lr", &value))
        schedule_set_real(c, "scheduler.params.min_lr", value);
    else if (schedule_number(kwargs, "min_lr_rate", &value) || schedule_number(kwargs, "min_lr_ratio", &value))
        schedule_set_real(c, "scheduler.params.min_lr", value * rate);
    else if (spec_is_number(ratio))
        schedule_set_real(c, "scheduler.params.min_lr", ratio->real * rate);
}

static void schedule_set_extras(struct convert *c, enum schedule_extra extra, const struct spec_node *kwargs)
{
    double value;
    if (extra == EXTRA_MIN_LR || extra == EXTRA_WSD)
        schedule_set_min_lr(c, kwargs);
    if (extra == EXTRA_CYCLES && schedule_number(kwargs, "num_cycles", &value) && value != 1)
        convert_note(c, "'lr_scheduler_kwargs' num_cycles %g: Cosine has one cycle here", value);
    if (extra == EXTRA_POLYNOMIAL) {
        schedule_set_real(c, "scheduler.params.min_lr", schedule_number(kwargs, "lr_end", &value) ? value : 1e-7);
        if (schedule_number(kwargs, "power", &value) && value != 1)
            convert_note(c, "'lr_scheduler_kwargs' power %g: the decay is linear here", value);
    }
    if (extra == EXTRA_WSD) {
        if (schedule_number(kwargs, "num_decay_steps", &value))
            schedule_set_real(c, "scheduler.params.decay_steps", value);
        else
            convert_note(c, "'lr_scheduler_kwargs' has no num_decay_steps: set scheduler.params.decay_steps; a tenth "
                            "of the run's steps is usual");
        const struct spec_node *shape = convert_child(kwargs, "decay_type");
        if (shape)
            convert_set(c, "scheduler.params.decay_type", shape);
    }
}

static void schedule_set_warmup(struct convert *c, bool has_warmup)
{
    const struct spec_node *steps = convert_take_one(c, "num_warmup_steps warmup_steps");
    const struct spec_node *ratio = convert_take(c, "warmup_ratio");
    const bool by_steps = spec_is_number(steps) && steps->real > 0, by_ratio = spec_is_number(ratio) && ratio->real > 0;
    if (!has_warmup) {
        if ((by_steps && convert_is_given(steps)) || (by_ratio && convert_is_given(ratio)))
            convert_note(c, "'%s': the schedule 'constant' has no warm-up; constant_with_warmup has one",
                         by_steps ? "warmup_steps" : "warmup_ratio");
        return;
    }
    if (by_steps && by_ratio && convert_is_given(ratio) && convert_is_given(steps))
        convert_note(c, "'warmup_ratio' %s: warmup_steps %s counts", ratio->text, steps->text);
    if (by_steps && (!by_ratio || convert_is_given(steps)))
        convert_set(c, steps->real < 1 ? "scheduler.params.warmup_ratio" : "scheduler.params.warmup_steps", steps);
    else if (by_ratio)
        convert_set(c, "scheduler.params.warmup_ratio", ratio);
    if (by_ratio && !by_steps && !convert_is_given(ratio))
        convert_note(c, "no warm-up is given: 3%% of the steps, as in axolotl, which limits them to 100");
}

void convert_schedule(struct convert *c)
{
    struct spec_node *type = convert_take(c, "lr_scheduler_type"), *other = convert_take(c, "lr_scheduler");
    const struct spec_node *kwargs = convert_take_mapping(c, "lr_scheduler_kwargs");
    if (c->kind == CONVERT_AXOLOTL && other)
        type = other;
    c->schedule = convert_is_given(type) ? type : NULL;
    const char *name = type && type->text ? type->text : "";
    enum schedule_extra extra = EXTRA_NONE;
    const char *chosen = NULL;
    for (size_t i = 0; i < COUNT_OF(schedule_names); i++)
        if (strcmp(schedule_names[i].name, name) == 0) {
            chosen = schedule_names[i].type;
            extra = schedule_names[i].extra;
        }
    if (!chosen)
        convert_note(c, "'%s' %s is not here; Cosine takes its place", type ? type->key : "lr_scheduler_type",
                     type ? convert_show(c, type) : "");
    convert_set_text(c, "scheduler.type", chosen ? chosen : "Cosine");
    schedule_set_extras(c, extra, kwargs);
    convert_children(c, "lr_scheduler_kwargs", kwargs);
    schedule_set_warmup(c, extra != EXTRA_NO_WARMUP);
    struct spec_node *ratio = convert_take(c, "cosine_min_lr_ratio");
    if (convert_is_on(ratio))
        convert_note(c, "'cosine_min_lr_ratio' %s: the schedule is not cosine", convert_show(c, ratio));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* spec_convert_run.c: another trainer's model, length, optimizer, precision, memory, checkpoints, output. */
#include "core/spec/spec_convert_parts.h"

#include "core/model/model_folder.h"

void convert_model(struct convert *c)
{
    struct spec_node *trained = convert_take(c, c->kind == CONVERT_AXOLOTL ? "base_model" : "model_name_or_path");
    struct spec_node *config = convert_take(c, c->kind == CONVERT_AXOLOTL ? "base_model_config" : "config_name");
    const bool scratch = convert_take_switch(c, "train_from_scratch");
    const char *configs = "model_config overrides_of_model_config model_init_kwargs";
    if (convert_is_on(spec_child(c->from, "moe_aux_loss_coef")))
        convert_set_yaml(c, "model.output_router_logits", "true");
    for (const char *name; (name = convert_word(c, &configs));) { /* of them, these two are keys of the run spec */
        struct spec_node *all = spec_child(c->from, name), *one;
        while ((one = spec_child(all, "output_router_logits")) || (one = spec_child(all, "router_aux_loss_coef"))) {
            spec_unlink(all, one);
            spec_attach(c->ctx, c->from, one);
        }
    }
    const struct spec_node *model = trained ? trained : config;
    if (!model || model->kind != NODE_STRING) return;
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
    if (micro) convert_set(c, "train_micro_batch_size_per_gpu", micro);
    if (accumulation) convert_set(c, "gradient_accumulation_steps", accumulation);
}

/* With --world the whole batch takes the place of the accumulation, unless a file has it. */
void convert_whole_batch(struct convert *c)
{
    const struct spec_node *micro = spec_find(c->to, "train_micro_batch_size_per_gpu");
    const struct spec_node *accumulation = spec_find(c->to, "gradient_accumulation_steps");
    int64_t whole;
    if (!c->request->world || spec_find(c->to, "train_batch_size") || !micro || micro->kind != NODE_INT ||
        !accumulation || accumulation->kind != NODE_INT ||
        __builtin_mul_overflow(micro->integer, accumulation->integer, &whole) ||
        __builtin_mul_overflow(whole, (int64_t)c->request->world, &whole))
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
        if (!spec_has_word(optimizer_names[i].names, name)) continue;
        if (optimizer_names[i].note) convert_note(c, "'%s' %s: %s", node->key, name, optimizer_names[i].note);
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
    if (c->kind == CONVERT_AXOLOTL && other) given = other;
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
    if (eps && (adam || (muon && convert_is_given(eps)))) convert_set(c, "optimizer.params.eps", eps);
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
    if (!spec_is_number(node)) return false;
    node->taken = true;
    *value = node->real;
    return true;
}

static void schedule_set_real(struct convert *c, const char *path, double value)
{
    convert_set_yaml(c, path, convert_text(c, "%.15g", value));
}

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
    if (extra == EXTRA_MIN_LR || extra == EXTRA_WSD) schedule_set_min_lr(c, kwargs);
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
        if (shape) convert_set(c, "scheduler.params.decay_type", shape);
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
    if (c->kind == CONVERT_AXOLOTL && other) type = other;
    c->schedule = convert_is_given(type) ? type : NULL;
    const char *name = type && type->text ? type->text : "";
    size_t row = 0;
    while (row < COUNT_OF(schedule_names) && strcmp(schedule_names[row].name, name) != 0) row++;
    const char *chosen = row < COUNT_OF(schedule_names) ? schedule_names[row].type : NULL;
    const enum schedule_extra extra = chosen ? schedule_names[row].extra : EXTRA_NONE;
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

/* ---- precision ----------------------------------------------------------- */

/* "bf16", "fp16", or NULL: fp32. *weights: so are the weights themselves. */
static const char *run_precision(struct convert *c, bool *weights)
{
    struct spec_node *bf16 = convert_take(c, "bf16"), *fp16 = convert_take(c, "fp16");
    struct spec_node *mixed = convert_take(c, "mixed_precision");
    const struct spec_node *dtype = convert_take_one(c, "dtype torch_dtype");
    const bool bfloat16 = convert_take_switch(c, "bfloat16"), float16 = convert_take_switch(c, "float16");
    const bool pure = convert_take_switch(c, "pure_bf16");
    *weights = pure || bfloat16 || spec_is_text(bf16, "full");
    const bool half = convert_is_on(fp16) || float16 || spec_is_text(mixed, "fp16");
    if (*weights || spec_is_text(mixed, "bf16") || (convert_is_on(bf16) && (convert_is_given(bf16) || !half)))
        return "bf16";
    if (half) return "fp16";
    if (spec_is_text(dtype, "bfloat16") || spec_is_text(dtype, "torch.bfloat16")) {
        *weights = true;
        return "bf16";
    }
    if (spec_is_text(dtype, "float16") || spec_is_text(dtype, "torch.float16"))
        convert_note(c, "'%s' float16: the run computes in fp32; fp16.enabled: true computes in fp16", dtype->key);
    return NULL;
}

void convert_precision(struct convert *c)
{
    bool weights;
    const char *name = run_precision(c, &weights);
    const char *sums = convert_take_text(c, "gradient_accumulation_dtype");
    if (name) convert_set_yaml(c, convert_text(c, "%s.enabled", name), "true");
    if (weights)
        convert_set_yaml(c, "bf16.bf16_master_weights_and_grads", "true");
    else if (name && c->kind == CONVERT_AXOLOTL && !c->shards && !spec_find(c->to, "peft"))
        convert_note(c, "axolotl keeps the weights in %s; here AdamW updates fp32 weights%s", name,
                     strcmp(name, "bf16") == 0 ? "; bf16.bf16_master_weights_and_grads: true keeps bf16 ones" : "");
    if (sums) convert_set_text(c, "data_types.grad_accum_dtype", sums);
    convert_take(c, "fp32_allreduce"); /* the default */
}

/* ---- memory -------------------------------------------------------------- */

static struct spec_node *fsdp_child(struct convert *c, const struct spec_node *config, const char *key)
{
    struct spec_node *node = convert_child(config, key);
    return node ? node : convert_child(config, convert_text(c, "fsdp_%s", key));
}

static bool fsdp_has(const struct spec_node *fsdp, const struct spec_node *strategy, const char *part)
{
    bool found = (strategy && strategy->text && strcasestr(strategy->text, part)) ||
                 (fsdp && fsdp->text && strcasestr(fsdp->text, part));
    for (const struct spec_node *word = fsdp ? fsdp->first : NULL; word; word = word->next)
        found = found || (word->text && strcasestr(word->text, part));
    return found;
}

static void run_fsdp(struct convert *c)
{
    const struct spec_node *fsdp = convert_take(c, "fsdp"), *config = convert_take_mapping(c, "fsdp_config");
    const struct spec_node *strategy = fsdp_child(c, config, "sharding_strategy");
    const struct spec_node *reshards = fsdp_child(c, config, "reshard_after_forward");
    const bool offload = convert_truth(c, fsdp_child(c, config, "offload_params")) || fsdp_has(fsdp, NULL, "offload");
    const bool recompute = convert_truth(c, fsdp_child(c, config, "activation_checkpointing"));
    fsdp_child(c, config, "version");
    convert_take(c, "fsdp_version");
    convert_children(c, "fsdp_config", config);
    if (reshards && reshards->kind == NODE_STRING) /* FSDP 1 has the strategy there */
        strategy = reshards;
    if (strategy && !fsdp_has(NULL, strategy, "shard") && strategy != reshards) convert_odd(c, strategy);
    const bool gradients = fsdp_has(fsdp, strategy, "shard_grad_op") || fsdp_has(fsdp, strategy, "zero2") ||
                           (reshards && !convert_is_on(reshards));
    if (!(fsdp ? convert_is_on(fsdp) : c->kind == CONVERT_AXOLOTL && config && config->count)) return;
    if (recompute) convert_set_text(c, "activation_checkpointing.policy", "block");
    const bool whole = fsdp_has(fsdp, strategy, "no_shard");
    convert_set_yaml(c, "zero_optimization.stage", whole ? "0" : gradients ? "2" : "3");
    if (!offload || whole) return;
    convert_set_text(c, "zero_optimization.offload_optimizer.device", "cpu");
    if (!gradients) convert_set_text(c, "zero_optimization.offload_param.device", "cpu");
}

void convert_memory(struct convert *c)
{
    struct spec_node *recompute = convert_take(c, "gradient_checkpointing");
    struct spec_node *other = convert_take(c, "enable_activation_checkpointing");
    const bool offload = convert_take_switch(c, "activation_offloading"),
               also = convert_take_switch(c, "enable_activation_offloading");
    const bool off = convert_take_switch(c, "disable_gradient_checkpointing");
    const bool there = spec_is_text(recompute, "offload") || spec_is_text(recompute, "offload_disk");
    const bool wants = (there || convert_truth(c, recompute) || convert_truth(c, other)) && !off;
    const bool host = offload || also || there;
    if (wants || host) convert_set_text(c, "activation_checkpointing.policy", "block");
    if (host) convert_set_yaml(c, "activation_checkpointing.cpu_checkpointing", "true");
    run_fsdp(c);
    const bool shuffled = convert_take_switch(c, "disable_shuffling");
    struct spec_node *order = convert_take(c, "train_sampling_strategy");
    if (shuffled || spec_is_text(order, "sequential"))
        convert_set_yaml(c, "data.shuffle", "false");
    else if (spec_is_text(order, "group_by_length"))
        convert_note(c, "'train_sampling_strategy' group_by_length: the seed decides the order of the samples");
    if (convert_take_switch(c, "use_cpu")) convert_set_text(c, "train.device", "cpu");
    struct spec_node *seed = convert_take(c, "seed"), *data_seed = convert_take(c, "data_seed");
    if (seed) convert_set(c, "run.seed", seed);
    if (data_seed && data_seed->text && !spec_is_text(seed, data_seed->text))
        convert_note(c, "'data_seed' %s: run.seed is the seed of weights and order", convert_show(c, data_seed));
}

/* ---- checkpoints --------------------------------------------------------- */

/* An interval in steps: a number of them, or a share of a run of max_steps. 0: it is not known. */
static int64_t run_interval(struct convert *c, struct spec_node *node)
{
    const struct spec_node *length = spec_find(c->to, "train.max_steps");
    if (!spec_is_number(node) || !(node->real > 0) || node->real > 1e15) return 0;
    if (node->real >= 1) return (int64_t)node->real;
    return length && length->real <= 1e15 ? (int64_t)ceil(length->real * node->real) : 0;
}

static void run_set_interval(struct convert *c, const char *path, int64_t steps, const struct spec_node *source)
{
    struct spec_node *node = convert_scalar(c, source->key, convert_text(c, "%lld", (long long)steps));
    node->key_pos = source->key_pos;
    convert_set(c, path, node);
}

static void run_counted(struct convert *c, struct spec_node *steps, struct spec_node *per_epoch, const char *path,
                        const char *what)
{
    const int64_t interval = run_interval(c, steps);
    if (interval > 0)
        run_set_interval(c, path, interval, steps);
    else if (convert_is_given(steps) && (steps->real <= 0 || steps->real >= 1))
        convert_odd(c, steps);
    else if (convert_is_given(steps))
        convert_note(c,
                     "'%s' %s is a share of the run: each epoch ends with %s; set %s to a number of steps, which "
                     "--dry-run prints",
                     steps->key, convert_show(c, steps), what, path);
    else if (per_epoch && spec_is_number(per_epoch) && per_epoch->real > 1)
        convert_note(c,
                     "'%s' %s: each epoch ends with %s; for more set %s to a number of steps, which --dry-run prints "
                     "for an epoch",
                     per_epoch->key, convert_show(c, per_epoch), what, path);
}

void convert_checkpoints(struct convert *c)
{
    struct spec_node *strategy = convert_take(c, "save_strategy"), *steps = convert_take(c, "save_steps");
    struct spec_node *per_epoch = convert_take(c, "saves_per_epoch");
    struct spec_node *better = convert_take(c, "greater_is_better"), *most = convert_take(c, "save_total_limit");
    const char *metric = convert_take_text(c, "metric_for_best_model");
    const bool best = convert_take_switch(c, "load_best_model_at_end");
    const char *word = strategy && strategy->text ? strategy->text : "steps";
    if (c->kind == CONVERT_AXOLOTL && (!strategy || !convert_is_given(strategy)))
        word = steps ? "steps" : per_epoch && !convert_is_on(per_epoch) ? "no" : "epoch";
    const bool counted = strcmp(word, "steps") == 0, none = strcmp(word, "no") == 0 || strcmp(word, "false") == 0;
    const int64_t interval = counted ? run_interval(c, steps) : 0;
    if (counted || per_epoch) run_counted(c, steps, per_epoch, "checkpoint.interval_steps", "a checkpoint");
    if ((counted && interval > 0) || none || strcmp(word, "best") == 0)
        convert_set_yaml(c, "checkpoint.save_at_epoch_end", "false");
    if (most && most->real > 0) /* else all are kept, as here */
        convert_set(c, "checkpoint.keep_last", most);
    if (best || strcmp(word, "best") == 0) convert_set_yaml(c, "checkpoint.keep_best", "1");
    if (metric && best) convert_set_text(c, "checkpoint.metric", metric);
    if (better && metric && best) convert_set_text(c, "checkpoint.mode", convert_is_on(better) ? "max" : "min");
}

/* ---- evaluation, output -------------------------------------------------- */

/* A source that does not evaluate does not stop early either. */
static void run_no_evaluation(struct convert *c)
{
    static const char *const stops[] = {"early_stopping_patience", "early_stopping_steps", "early_stopping_threshold"};
    if (spec_find(c->to, "data.validation"))
        convert_note(
            c, "'eval_strategy' no: ztrain evaluates data.validation at each epoch's end; without it, it does not");
    for (size_t i = 0; i < COUNT_OF(stops); i++) {
        const struct spec_node *node = convert_take(c, stops[i]);
        if (convert_is_on(node))
            convert_note(c, "'%s' %s is left out: 'eval_strategy' is no", stops[i], convert_show(c, node));
    }
}

void convert_evaluation(struct convert *c)
{
    const struct spec_node *strategy = convert_take_one(c, "evaluation_strategy eval_strategy");
    struct spec_node *steps = convert_take(c, "eval_steps"), *per_epoch = convert_take(c, "evals_per_epoch");
    struct spec_node *logging = convert_take_one(c, "logging_steps log_every_n_steps");
    const bool counted = spec_is_text(strategy, "steps") || (c->kind == CONVERT_AXOLOTL && steps);
    if (convert_is_given(strategy) && !convert_is_on(strategy)) run_no_evaluation(c);
    if (counted || per_epoch)
        run_counted(c, steps || !counted ? steps : logging, per_epoch, "train.eval_interval_steps", "an evaluation");
    const int64_t lines = run_interval(c, logging);
    if (lines > 0 && convert_is_given(logging)) run_set_interval(c, "steps_per_print", lines, logging);
}

static void run_reports(struct convert *c)
{
    struct spec_node *report = convert_take(c, "report_to");
    const char *folder = convert_take_text(c, "logging_dir");
    bool board = spec_is_text(report, "tensorboard") || spec_is_text(report, "all");
    const char *service =
        report && report->kind == NODE_STRING && !board && convert_is_on(report) ? report->text : NULL;
    for (const struct spec_node *item = report ? report->first : NULL; item; item = item->next) {
        board = board || spec_is_text(item, "tensorboard");
        if (!spec_is_text(item, "tensorboard") && !spec_is_text(item, "none") && item->text) service = item->text;
    }
    if (service)
        convert_note(c, "'report_to' %s: nothing is sent while training; ztrain-wandb RUN sends a run's folder",
                     spec_show(c->ctx, service));
    if (board) convert_set_yaml(c, "tensorboard.enabled", "true");
    if (board && folder) convert_set_text(c, "tensorboard.output_path", folder);
}

/* The run's folder is output_dir: run.dir and run.name are its parts. */
void convert_output(struct convert *c)
{
    struct spec_node *folder = convert_take(c, "output_dir"), *name = convert_take(c, "run_name");
    run_reports(c);
    char parent[FS_PATH_MAX];
    const char *path = folder && folder->kind == NODE_STRING ? folder->text : "runs/run";
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    path = spec_arena_copy(c->ctx->arena, path, length);
    const char *base = basename(path);
    const bool named = name && name->text && *name->text && !strchr(name->text, '/') && !convert_is_given(folder);
    if (named || !*base || strcmp(base, ".") == 0 || strcmp(base, "..") == 0 || length >= sizeof parent) {
        convert_set_text(c, "run.dir", *path ? path : "runs");
        convert_set_text(c, "run.name", named ? name->text : "run");
        return;
    }
    fs_parent(path, parent);
    convert_set_text(c, "run.dir", spec_arena_text(c->ctx->arena, parent));
    convert_set_text(c, "run.name", base);
    if (name && convert_is_given(name)) convert_nothing(c, "run_name");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* spec_key_conflicts.c: the rules that tie keys together, and the values that follow from several keys. */
#include "core/spec/spec_keys.h"

struct rules {
    struct spec_context *ctx;
    struct spec_full *full;
    struct run_spec *spec; /* of full */
    const struct spec_node *root;
};

static const struct spec_pos top = {0, 1, 1};

/* The node of a key that is set; NULL: it is not, or to null. */
static const struct spec_node *find(const struct rules *r, const char *path)
{
    const struct spec_node *node = spec_find(r->root, path);
    return node && node->kind != NODE_NULL ? node : NULL;
}

static bool offloads(const struct spec_node *device)
{
    return device && !spec_is_text(device, "none");
}

static struct spec_pos conflict_later_pos(const struct spec_node *a, const struct spec_node *b)
{
    return spec_pos_compare(a->key_pos, b->key_pos) > 0 ? a->key_pos : b->key_pos;
}

/* A key whose value other keys do not allow. */
struct rule {
    bool broken;
    enum { AT_KEY, AT_VALUE } at; /* the place of the error */
    const char *path, *message;
};

static void apply_key_rules(const struct rules *r, const struct rule *rules, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct spec_node *node = rules[i].broken ? spec_find(r->root, rules[i].path) : NULL;
        if (rules[i].broken)
            spec_error(r->ctx, !node ? top : rules[i].at == AT_KEY ? node->key_pos : node->pos, "%s", rules[i].message);
    }
}

/* ---- model, data, run ---------------------------------------------------- */

static void check_model(const struct rules *r)
{
    const struct spec_node *pretrained = find(r, "model.pretrained"), *config = find(r, "model.config");
    const struct spec_node *set = pretrained ? pretrained : config;
    if (pretrained && config)
        spec_error(r->ctx, conflict_later_pos(pretrained, config),
                   "model.pretrained and model.config are both set; hint: keep pretrained to start from its weights, "
                   "or config to start from random ones");
    else if (!set)
        spec_error(r->ctx, top,
                   "'model.pretrained' or 'model.config' is missing; hint: name a Hugging Face folder, or a "
                   "config.json for random initial weights");
    const bool classifies = r->spec->model.task == TASK_SEQUENCE_CLASSIFICATION;
    const struct rule rules[] = {
        {!pretrained && find(r, "model.ignore_tensors"), AT_KEY, "model.ignore_tensors",
         "'model.ignore_tensors' needs model.pretrained: random weights have no files to leave tensors out of; hint: "
         "remove it"},
        {!classifies && find(r, "model.num_labels"), AT_KEY, "model.num_labels",
         "'model.num_labels' has no meaning with model.task causal_lm; hint: set model.task to "
         "sequence_classification"},
        {classifies && r->spec->data.packing, AT_KEY, "model.task",
         "'model.task' sequence_classification needs data.packing: false, as each document has a label; hint: set "
         "data.packing to false"},
        {!classifies && r->spec->data.packing != SPEC_PACKING_CUT && r->spec->data.seq_length == 1, AT_VALUE,
         "data.seq_length",
         "'data.seq_length' 1 leaves no target if data.packing is false or first_fit; hint: use 2 or more"},
    };
    apply_key_rules(r, rules, COUNT_OF(rules));
    const char *name = r->spec->run.name;
    if (name && (strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0))
        spec_error(r->ctx, find(r, "run.name")->pos,
                   "'run.name' must be the name of a folder, not '%s'; hint: run.dir is the folder that holds it",
                   spec_show(r->ctx, name));
    if (set) snprintf(r->spec->model.where, sizeof r->spec->model.where, "%s", spec_pos_text(r->ctx, set->key_pos));
}

size_t spec_text_stem(const char *name)
{
    static const char *const kinds[] = {".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt", ".parquet"};
    size_t length = strlen(name);
    length -= fs_has_suffix(name, ".gz") ? 3 : fs_has_suffix(name, ".zst") ? 4 : 0;
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        size_t end = strlen(kinds[i]);
        if (length > end && memcmp(name + length - end, kinds[i], end) == 0) return length - end;
    }
    return 0;
}

static void check_shards(const struct rules *r, const char *key, const struct string_list *shards)
{
    const char *tokenizer = r->spec->model.tokenizer    ? r->spec->model.tokenizer
                            : r->spec->model.pretrained ? r->spec->model.pretrained
                                                        : "DIR";
    for (int i = 0; i < shards->count; i++) {
        const char *name = shards->items[i];
        int stem = (int)spec_text_stem(name);
        if (stem == 0) continue;
        while (stem > 1 && strchr("*?[]", name[stem - 1])) /* a glob's shards need a name */
            stem--;
        spec_error(r->ctx, find(r, key)->pos,
                   "'%s' names text, '%s', and not token shards; hint: run ztrain-tokenize %s --output %.*s "
                   "--tokenizer %s (and --chat-template for conversations), then set %s: %.*s",
                   key, spec_show(r->ctx, name), name, stem, name, tokenizer, key, stem, name);
        return;
    }
}

static void check_batch(const struct rules *r)
{
    struct spec_full *full = r->full;
    const struct spec_node *train = find(r, "train_batch_size"), *micro = find(r, "train_micro_batch_size_per_gpu");
    const struct spec_node *first = train && !spec_is_auto(train)   ? train
                                    : micro && !spec_is_auto(micro) ? micro
                                                                    : NULL;
    if (!first) {
        spec_error(r->ctx, top,
                   "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided; hint: "
                   "train_batch_size is the number of samples per step over all ranks");
        return;
    }
    const char *where = spec_pos_text(r->ctx, first->key_pos);
    full->batch_where = spec_arena_text(&full->arena, where);
    full->given_batch[0] = r->spec->train_batch_size;
    full->given_batch[1] = r->spec->train_micro_batch_size_per_gpu;
    full->given_batch[2] = r->spec->gradient_accumulation_steps;
}

/* ---- optimizer and schedule ---------------------------------------------- */

/* The learning rate has no default. A schedule that gives it for the whole run stands in. */
static void check_learning_rate(const struct rules *r)
{
    struct optimizer_settings *optimizer = &r->spec->optimizer;
    const struct spec_node *lr = find(r, "optimizer.params.lr");
    const struct schedule_spec *s = &r->spec->scheduler;
    if (lr && !spec_is_auto(lr)) return;
    if (optimizer->muon_lr > 0 && optimizer->adam_lr > 0) { /* it would not be used */
        optimizer->lr = optimizer->muon_lr;
        return;
    }
    if ((s->type == SCHEDULE_WARMUP_LR || s->type == SCHEDULE_WARMUP_DECAY_LR) && s->warmup_max_lr >= 0) {
        optimizer->lr = s->warmup_max_lr;
        if (spec_find(r->root, "optimizer.params.lr"))
            spec_auto_record(r->full, spec_key_find("optimizer.params.lr"), NULL);
        return;
    }
    spec_error(r->ctx, lr ? lr->pos : top,
               "'optimizer.params.lr' is %s; hint: write optimizer: {params: {lr: 2e-5}} with your learning rate "
               "(Trainer's learning_rate) into the run spec, or --set optimizer.params.lr=2e-5",
               lr ? "\"auto\", and the run spec does not set it" : "missing");
}

/* Those of torch and DeepSpeed; the table has others, so that spec_write_yaml() writes all of them. */
static void set_muon_defaults(const struct rules *r)
{
    struct optimizer_settings *optimizer = &r->spec->optimizer;
    if (!find(r, "optimizer.params.momentum")) optimizer->momentum = 0.95;
    if (!find(r, "optimizer.params.nesterov")) optimizer->nesterov = true;
    if (!find(r, "optimizer.params.betas")) optimizer->beta2 = 0.95;
    if (!find(r, "optimizer.params.eps")) optimizer->eps = 1e-10;
}

static void check_muon_rates(const struct rules *r)
{
    struct optimizer_settings *optimizer = &r->spec->optimizer;
    const bool muon = optimizer->type == OPTIMIZER_MUON;
    if (!muon || (optimizer->muon_lr == 0 && optimizer->adam_lr == 0)) return;
    const struct spec_node *given =
        find(r, optimizer->muon_lr > 0 ? "optimizer.params.muon_lr" : "optimizer.params.adam_lr");
    const struct schedule_spec *s = &r->spec->scheduler;
    const bool warms_up = s->type == SCHEDULE_WARMUP_LR || s->type == SCHEDULE_WARMUP_DECAY_LR;
    if (s->type == SCHEDULE_ONE_CYCLE || s->type == SCHEDULE_LR_RANGE_TEST || (warms_up && s->warmup_max_lr >= 0)) {
        spec_notice(r->ctx, given->key_pos,
                    "'optimizer.params.muon_lr' and adam_lr have no effect with this schedule, which sets the learning "
                    "rate of all parameters, as in DeepSpeed");
        optimizer->muon_lr = optimizer->adam_lr = 0;
    } else if (optimizer_base_lr(optimizer) == 0) {
        spec_error(r->ctx, given->key_pos,
                   "'optimizer.params.lr' is 0, so AdamW would not learn and Muon would; hint: set a learning rate");
    }
}

static void check_optimizer(const struct rules *r)
{
    struct optimizer_settings *optimizer = &r->spec->optimizer;
    if (optimizer->type == OPTIMIZER_ADAM && r->full->adam_w_mode) optimizer->type = OPTIMIZER_ADAMW;
    check_learning_rate(r);
    if (optimizer->type == OPTIMIZER_MUON) set_muon_defaults(r);
    const struct rule rules[] = {
        {optimizer->type == OPTIMIZER_ADAMW && !r->full->adam_w_mode, AT_KEY, "optimizer.params.adam_w_mode",
         "AdamW without adam_w_mode is Adam; hint: set optimizer.type to Adam"},
        {optimizer->type == OPTIMIZER_SGD && optimizer->nesterov &&
             (optimizer->momentum == 0 || optimizer->dampening != 0),
         AT_KEY, "optimizer.params.nesterov",
         "'optimizer.params.nesterov' needs momentum and no dampening, as in PyTorch; hint: set momentum, or remove "
         "nesterov"},
        {optimizer->beta1 >= 1 || optimizer->beta2 >= 1, AT_VALUE, "optimizer.params.betas",
         "'optimizer.params.betas' must be below 1; hint: [0.9, 0.999] is usual"},
        {optimizer->type == OPTIMIZER_MUON && optimizer->momentum >= 1, AT_VALUE, "optimizer.params.momentum",
         "'optimizer.params.momentum' of Muon must be below 1; hint: 0.95 is usual"},
    };
    apply_key_rules(r, rules, COUNT_OF(rules));
    check_muon_rates(r);
}

static void check_required(const struct rules *r)
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
        if (r->spec->scheduler.type == required[i].type && !find(r, required[i].path))
            spec_error(r->ctx, top, "'%s' is missing: %s needs it; hint: %s", required[i].path,
                       schedule_name(required[i].type), required[i].hint);
}

static void check_cycle(const struct rules *r)
{
    const struct schedule_spec *s = &r->spec->scheduler;
    const struct spec_node *low = spec_find(r->root, "scheduler.params.cycle_min_mom"),
                           *betas = find(r, "optimizer.params.betas");
    if (s->type != SCHEDULE_ONE_CYCLE || !s->cycle.momentum) return;
    if (r->spec->optimizer.type == OPTIMIZER_SGD)
        spec_notice(r->ctx, spec_find(r->root, "scheduler.type")->key_pos,
                    "OneCycle's momentum has no effect here: SGD has no betas, as in DeepSpeed");
    if (low && s->cycle.min_momentum > s->cycle.max_momentum)
        spec_error(r->ctx, low->key_pos,
                   "'scheduler.params.cycle_min_mom' %g is above cycle_max_mom %g; hint: beta1 is lowest at the top of "
                   "the cycle",
                   s->cycle.min_momentum, s->cycle.max_momentum);
    if (betas)
        spec_notice(r->ctx, betas->key_pos,
                    "'optimizer.params.betas' has no effect with OneCycle, whose cycle_momentum sets both, as in "
                    "DeepSpeed; cycle_momentum: false keeps them");
}

/* The steps of the warm-up follow from its ratio; the key of the steps may be absent, 0 or "auto". */
static void check_warmup_ratio(const struct rules *r)
{
    static const char *const paths[] = {"scheduler.params.warmup_steps", "scheduler.params.warmup_num_steps"};
    struct schedule_spec *s = &r->spec->scheduler;
    for (size_t i = 0; s->warmup_ratio > 0 && i < COUNT_OF(paths); i++) {
        const struct spec_node *steps = find(r, paths[i]);
        if (spec_is_auto(steps))
            spec_auto_origin(r->full, spec_key_find(paths[i]), "scheduler.params.warmup_ratio");
        else if (steps && s->warmup_steps > 0)
            spec_error(r->ctx, conflict_later_pos(steps, spec_find(r->root, "scheduler.params.warmup_ratio")),
                       "%s and warmup_ratio are both set; hint: keep one of them", paths[i]);
    }
    if (s->warmup_ratio > 0) s->warmup_steps = 0;
}

static void check_schedule_steps(const struct rules *r)
{
    const struct schedule_spec *s = &r->spec->scheduler;
    const struct spec_node *warmup = spec_find(r->root, "scheduler.params.warmup_steps");
    if ((s->type == SCHEDULE_LINEAR || s->type == SCHEDULE_COSINE) && s->total_steps &&
        s->warmup_steps > s->total_steps)
        spec_error(r->ctx, warmup->pos,
                   "'scheduler.params.warmup_steps' %lld is more than total_steps %lld; hint: the warm-up is part of "
                   "the total",
                   (long long)s->warmup_steps, (long long)s->total_steps);
    if (s->type == SCHEDULE_WSD && s->total_steps && s->decay_steps > s->total_steps - s->warmup_steps)
        spec_error(r->ctx, (warmup ? warmup : spec_find(r->root, "scheduler.params.decay_steps"))->key_pos,
                   "'scheduler.params.warmup_steps' %lld and decay_steps %lld are more than total_steps %lld; hint: "
                   "both are part of the total",
                   (long long)s->warmup_steps, (long long)s->decay_steps, (long long)s->total_steps);
}

static void check_scheduler(const struct rules *r)
{
    const struct spec_node *scheduler = spec_find(r->root, "scheduler"), *min_lr = find(r, "scheduler.params.min_lr");
    const struct schedule_spec *s = &r->spec->scheduler;
    if (scheduler && scheduler->count && !find(r, "scheduler.type")) {
        spec_error(r->ctx, top, "'scheduler.type' is missing; hint: Constant, Linear, Cosine, WSD, WarmupLR, …");
        return;
    }
    if (spec_is_unknown_territory(r->root, "scheduler.params")) return;
    check_required(r);
    check_schedule_steps(r);
    check_cycle(r);
    check_warmup_ratio(r);
    if ((s->type == SCHEDULE_LINEAR || s->type == SCHEDULE_COSINE || s->type == SCHEDULE_WSD) && min_lr &&
        s->min_lr > r->spec->optimizer.lr)
        spec_notice(r->ctx, min_lr->pos,
                    "'scheduler.params.min_lr' %g is above 'optimizer.params.lr' %g: the learning rate rises to it",
                    s->min_lr, r->spec->optimizer.lr);
    r->full->given_total_steps = s->total_steps;
}

/* ---- precision ----------------------------------------------------------- */

static void check_precision(const struct rules *r)
{
    struct run_spec *spec = r->spec;
    const struct spec_full *full = r->full;
    const struct spec_node *bf16 = find(r, "bf16.enabled"), *fp16 = find(r, "fp16.enabled");
    if (spec_is_true(bf16) && spec_is_true(fp16))
        spec_error(r->ctx, conflict_later_pos(bf16, fp16),
                   "bfloat16 and fp16 modes cannot be simultaneously enabled; hint: keep bf16");
    spec->dtype = full->bf16 ? DTYPE_BF16 : full->fp16 ? DTYPE_F16 : DTYPE_F32;
    spec->loss_scaler.dynamic = full->fp16 && full->static_loss_scale == 0;
    spec->initial_loss_scale = !full->fp16                 ? 1
                               : spec->loss_scaler.dynamic ? ldexp(1, (int)full->initial_scale_power)
                                                           : full->static_loss_scale;
    const struct spec_node *power = spec_find(r->root, "fp16.initial_scale_power");
    if (spec->loss_scaler.dynamic && spec->initial_loss_scale < spec->loss_scaler.min_scale && power)
        spec_error(r->ctx, power->pos, "'fp16.initial_scale_power' %lld begins below fp16.min_loss_scale %g",
                   (long long)full->initial_scale_power, spec->loss_scaler.min_scale);
    if (spec->bf16_master && !find(r, "data_types.grad_accum_dtype")) /* accumulators follow the states */
        spec->grad_accum_dtype = DTYPE_BF16;
    const struct rule rules[] = {
        {spec->transformer.logits_dtype == DTYPE_BF16 && spec->dtype != DTYPE_BF16, AT_VALUE, "train.logits_dtype",
         "'train.logits_dtype' bf16 needs bf16.enabled; hint: use auto, the type that the run computes in"},
        {spec->bf16_master && spec->dtype != DTYPE_BF16, AT_KEY, "bf16.bf16_master_weights_and_grads",
         "bf16_master_weights_and_grads needs bf16; hint: set bf16.enabled to true"},
        {spec->bf16_moments && !spec->bf16_master, AT_KEY, "bf16.bf16_optimizer_states",
         "bf16_optimizer_states requires bf16_master_weights_and_grads; hint: set both"},
    };
    apply_key_rules(r, rules, COUNT_OF(rules));
    const enum optimizer_type type = spec->optimizer.type;
    if (spec->bf16_master && type != OPTIMIZER_ADAMW && type != OPTIMIZER_ADAM)
        spec_error(
            r->ctx, find(r, "bf16.bf16_master_weights_and_grads")->key_pos,
            "bf16_master_weights_and_grads is not supported yet with optimizer %s; hint: remove the key, or use AdamW",
            optimizer_name(spec->optimizer.type));
}

/* The keys that scale gradients for their reduction matter in fp16 only: other types have the range of fp32. */
static void check_reduction(const struct rules *r)
{
    static const char *const scaling[] = {"prescale_gradients", "gradient_predivide_factor"};
    const struct run_spec *spec = r->spec;
    const bool given[] = {spec->prescale_gradients, spec->gradient_predivide_factor != 1};
    const bool fp16 = spec->communication_data_type == DTYPE_F16;
    for (int i = 0; i < 2; i++)
        if (given[i] && !fp16)
            spec_notice(
                r->ctx, spec_find(r->root, scaling[i])->key_pos,
                "'%s' has no effect here: communication_data_type is %s, in which no sum of gradients overflows",
                scaling[i], dtype_name(spec->communication_data_type));
    if (given[0] && given[1] && fp16)
        spec_notice(
            r->ctx, spec_find(r->root, scaling[1])->key_pos,
            "'gradient_predivide_factor' has no effect here: prescale_gradients divides by the number of ranks");
}

/* ---- offload and recomputation ------------------------------------------- */

/* Keys of offload that have no effect with the device that is set, and why. */
static void check_idle_keys(const struct rules *r)
{
    static const struct {
        const char *section, *device, *key, *why;
    } keys[] = {
        {"offload_optimizer", "none", "sub_group_size", "the optimizer updates a rank's slices one by one"},
        {"offload_optimizer", "none", "offload_optimizer.nvme_path", "nothing is on a disk"},
        {"offload_optimizer", "cpu", "offload_optimizer.nvme_path", "nothing is on a disk"},
        {"offload_param", "none", "offload_param.nvme_path", "nothing is on a disk"},
        {"offload_param", "cpu", "offload_param.nvme_path", "nothing is on a disk"},
        {"offload_optimizer", "cpu", "offload_optimizer.buffer_count", "all state is in host memory"},
        {"offload_optimizer", "cpu", "offload_optimizer.pipeline_read", "all state is in host memory"},
        {"offload_optimizer", "cpu", "offload_optimizer.pipeline_write", "all state is in host memory"},
        {"offload_param", "cpu", "offload_param.max_in_cpu", "all parameters are kept in host memory"},
        {"offload_param", "cpu", "offload_param.buffer_count", "parameters come up into the places of gathered blocks"},
        {"offload_param", "cpu", "offload_param.buffer_size", "parameters come up into the places of gathered blocks"},
    };
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        const char *path = spec_arena_printf(r->ctx->arena, "zero_optimization.%s", keys[i].key);
        const struct spec_node *node = find(r, path), *zero = spec_find(r->root, "zero_optimization");
        const struct spec_node *device = spec_child(spec_child(zero, keys[i].section), "device");
        const bool none = !device || device->kind == NODE_NULL;
        const bool matches = none ? strcmp(keys[i].device, "none") == 0 : spec_is_text(device, keys[i].device);
        const char *usual = spec_key_find(path)->fallback; /* each key of an effective spec (run.yaml) may have it */
        const bool same = usual && node && node->text &&
                          (spec_is_text(node, usual) || (spec_is_number(node) && node->real == strtod(usual, NULL)));
        if (matches && node && !spec_is_auto(node) && !same)
            spec_notice(r->ctx, node->key_pos, "'%s' has no effect with device %s: %s", path, keys[i].device,
                        keys[i].why);
    }
}

static void check_offload_section(const struct rules *r, const char *section, enum offload_device used)
{
    const char *path = spec_arena_printf(r->ctx->arena, "zero_optimization.%s", section);
    const struct spec_node *parent = spec_find(r->root, path);
    const struct spec_node *device = spec_child(parent, "device"), *pins = spec_child(parent, "pin_memory");
    if (r->spec->optimizer.type == OPTIMIZER_MUON && used != OFFLOAD_NONE) /* its updates need whole matrices */
        spec_error(r->ctx, device ? device->key_pos : top,
                   "%s is not supported yet with optimizer Muon; hint: set its device to none, or use AdamW", section);
    if (device && device->kind != NODE_NULL && offloads(device) && pins && pins->kind == NODE_BOOL && !pins->boolean)
        spec_notice(r->ctx, pins->key_pos,
                    "'%s.pin_memory' is false: a GPU's copies from and to host memory pass through small pinned "
                    "buffers, and the host copies each byte once more",
                    path);
}

static void check_offload_param(const struct rules *r, const struct spec_node *param)
{
    const int stage = r->spec->zero.stage;
    if (!offloads(param) || stage == 3) return;
    if (param->pos.source != 1) {
        spec_error(r->ctx, param->key_pos,
                   "offload_param needs zero_optimization stage 3, not %d; hint: set stage 3, or use offload_optimizer",
                   stage);
        return;
    }
    spec_notice(
        r->ctx, param->key_pos, /* as in DeepSpeed */
        "'zero_optimization.offload_param' has no effect at stage %d, which does not shard parameters; stage 3 does",
        stage);
    r->spec->zero.offload_param.device = OFFLOAD_NONE;
}

static void check_offload(const struct rules *r)
{
    const struct spec_node *optimizer = find(r, "zero_optimization.offload_optimizer.device"),
                           *param = find(r, "zero_optimization.offload_param.device"),
                           *given_stage = find(r, "zero_optimization.stage"),
                           *ratio = spec_find(r->root, "zero_optimization.offload_optimizer.ratio");
    const int stage = r->spec->zero.stage;
    if (given_stage && stage == 0 && !(spec_is_number(given_stage) && given_stage->real == 0))
        return; /* the stage itself is wrong */
    if (offloads(optimizer) && stage == 0)
        spec_error(
            r->ctx, optimizer->key_pos,
            "offload_optimizer needs zero_optimization stage 1, 2 or 3, not 0; hint: set zero_optimization.stage");
    else if (spec_is_text(optimizer, "nvme") && stage != 3)
        spec_error(
            r->ctx, optimizer->key_pos,
            "offload_optimizer to nvme needs zero_optimization stage 3, not %d; hint: use device cpu, or stage 3",
            stage);
    check_offload_param(r, param);
    check_offload_section(r, "offload_optimizer", r->spec->zero.offload_optimizer.device);
    check_offload_section(r, "offload_param", r->spec->zero.offload_param.device);
    const struct rule rules[] = {
        {spec_is_text(optimizer, "nvme") && !r->spec->zero.offload_optimizer.nvme_path, AT_KEY,
         "zero_optimization.offload_optimizer.device",
         "offload_optimizer to nvme needs nvme_path; hint: a folder on a local disk"},
        {r->spec->zero.offload_param.device == OFFLOAD_NVME && !r->spec->zero.offload_param.nvme_path, AT_KEY,
         "zero_optimization.offload_param.device",
         "offload_param to nvme needs nvme_path; hint: a folder on a local disk"},
    };
    apply_key_rules(r, rules, COUNT_OF(rules));
    if (spec_is_number(ratio) && ratio->real == 0 && offloads(optimizer))
        spec_notice(r->ctx, ratio->key_pos, "'zero_optimization.offload_optimizer.ratio' is 0: nothing is offloaded");
    check_idle_keys(r);
}

/* enabled alone is policy block, and a policy alone enables; only together can the two contradict each other. */
static void check_recompute(const struct rules *r)
{
    const struct spec_node *enabled = find(r, "activation_checkpointing.enabled"),
                           *policy = find(r, "activation_checkpointing.policy"),
                           *to_cpu = spec_find(r->root, "activation_checkpointing.cpu_checkpointing");
    enum recompute *recompute = &r->spec->transformer.recompute;
    if (!policy)
        *recompute = r->full->activation_checkpointing ? RECOMPUTE_BLOCK : RECOMPUTE_NONE;
    else if (*recompute != RECOMPUTE_NONE && enabled && !r->full->activation_checkpointing)
        spec_error(r->ctx, conflict_later_pos(enabled, policy),
                   "activation_checkpointing.enabled is false, but its policy is %s; hint: remove enabled, or set "
                   "policy: none",
                   recompute_name(*recompute));
    r->full->activation_checkpointing = *recompute != RECOMPUTE_NONE;
    if (!r->spec->cpu_checkpointing || *recompute != RECOMPUTE_NONE) return;
    if (to_cpu->pos.source == 1) { /* as in DeepSpeed */
        spec_notice(
            r->ctx, to_cpu->key_pos,
            "'activation_checkpointing.cpu_checkpointing' has no effect while activation_checkpointing.policy is none");
        r->spec->cpu_checkpointing = false;
        return;
    }
    spec_error(r->ctx, to_cpu->key_pos,
               "activation_checkpointing.cpu_checkpointing needs activations that are computed again from the blocks' "
               "inputs; hint: set activation_checkpointing.policy to block");
}

/* ---- checks and evaluations during the run ------------------------------- */

static void check_steps(const struct rules *r)
{
    const double factor = r->spec->train.spike_factor;
    const struct rule rule = {r->spec->train.check_interval_steps > 0 && !r->spec->transformer.deterministic, AT_VALUE,
                              "train.check_interval_steps",
                              "'train.check_interval_steps' compares two computations bit for bit, and "
                              "train.deterministic is false; hint: train.deterministic: true"};
    apply_key_rules(r, &rule, 1);
    if (factor > 0 && factor < 1) /* nearly every step would be reported */
        spec_error(r->ctx, find(r, "train.spike_factor")->pos,
                   "'train.spike_factor' %g is below 1: it multiplies the mean loss; hint: 2, or 0: off", factor);
}

/* Keys with which a run's bits would depend on the number of ranks, or sums would be rounded to bf16. */
static void check_virtual_ranks(const struct rules *r)
{
    const struct run_spec *spec = r->spec;
    const bool set = spec->train.virtual_ranks > 0, rounds = set && spec->grad_accum_dtype == DTYPE_BF16;
    const struct spec_node *strict = find(r, "train.virtual_ranks_strict");
    const bool chosen = find(r, "data_types.grad_accum_dtype");
    const struct rule rules[] = {
        {rounds && chosen, AT_VALUE, "data_types.grad_accum_dtype",
         "'data_types.grad_accum_dtype' bf16 is refused with train.virtual_ranks, which adds gradients in fp32; hint: "
         "fp32, or remove virtual_ranks"},
        {rounds && !chosen, AT_VALUE, "bf16.bf16_master_weights_and_grads",
         "'bf16.bf16_master_weights_and_grads' accumulates gradients in bf16, and train.virtual_ranks adds them in "
         "fp32; hint: set data_types.grad_accum_dtype to fp32, or remove virtual_ranks"},
        {set && spec->comm.reduce_within_node, AT_VALUE, "comm.reduce_within_node",
         "'comm.reduce_within_node' is refused with train.virtual_ranks: it adds gradients in an order that depends on "
         "the nodes; hint: false, or remove virtual_ranks"},
        {set && !spec->transformer.deterministic, AT_VALUE, "train.deterministic",
         "'train.deterministic' false is refused with train.virtual_ranks: runs would agree to rounding only; hint: "
         "train.deterministic: true, or remove virtual_ranks"},
    };
    apply_key_rules(r, rules, COUNT_OF(rules));
    if (strict && !set && !spec->train.virtual_ranks_strict) /* true: as an effective spec has it */
        spec_notice(r->ctx, strict->key_pos, "'train.virtual_ranks_strict' has no effect without train.virtual_ranks");
}

/* A key that reads evaluations needs data for them if it is used, and in any case a metric that the task has. */
static void check_metric(const struct rules *r, const char *key, bool used, const char *metric_key,
                         enum eval_metric metric)
{
    const struct spec_node *named = spec_find(r->root, metric_key);
    if (used && !r->spec->data.validation.count)
        spec_error(
            r->ctx, spec_find(r->root, key)->key_pos,
            "'%s' needs evaluations, and data.validation is not set; hint: set it to a shard that is not in data.train",
            key);
    const enum preference_loss loss = r->spec->preference.loss;
    const bool pairs = (loss != PREFERENCE_NONE && loss != PREFERENCE_KTO) || r->spec->model.task == TASK_REWARD;
    if (metric == EVAL_METRIC_REWARDS && named && !pairs)
        spec_error(r->ctx, named->pos,
                   "'%s' %s is measured only on pairs: with preference.loss, but not kto, or model.task reward",
                   metric_key, eval_metric_name(metric));
    else if (metric != EVAL_METRIC_LOSS && metric != EVAL_METRIC_REWARDS && named &&
             r->spec->model.task != TASK_SEQUENCE_CLASSIFICATION)
        spec_error(r->ctx, named->pos,
                   "'%s' %s is measured only with model.task sequence_classification; hint: use eval_loss", metric_key,
                   eval_metric_name(metric));
}

static void check_evaluations(const struct rules *r)
{
    static const char *const others[] = {"train.early_stopping.metric", "train.early_stopping.min_delta"};
    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (find(r, others[i]) && !spec_find(r->root, "train.early_stopping.patience"))
            spec_error(r->ctx, find(r, others[i])->key_pos,
                       "'%s' needs train.early_stopping.patience: the number of evaluations without an improvement "
                       "after which the run ends",
                       others[i]);
    check_metric(r, "train.early_stopping.patience", r->spec->train.early_stopping.patience > 0,
                 "train.early_stopping.metric", r->spec->train.early_stopping.metric);
    check_metric(r, "checkpoint.keep_best", r->spec->checkpoint.keep_best > 0, "checkpoint.metric",
                 r->spec->checkpoint.metric);
}

static void check_distill(const struct rules *r)
{
    const struct run_spec *spec = r->spec;
    const struct distill_settings *distill = &spec->transformer.distill;
    const bool on = distill->logps != NULL;
    const struct rule rules[] = {
        {!on && (distill->temperature != 1 || distill->alpha != 0.5), AT_KEY, "distill",
         "'distill' needs distill.logps, a teacher's file; hint: ztrain score TEACHER --data PREFIX --top-k K makes "
         "it"},
        {on && (spec->model.task != TASK_CAUSAL_LM || spec->preference.loss != PREFERENCE_NONE), AT_KEY, "distill",
         "'distill' is for the loss of language models, without preference"},
        {on && spec->transformer.label_smoothing > 0, AT_VALUE, "train.label_smoothing",
         "'train.label_smoothing' does not go with distill: a teacher smooths by itself"},
        {on && spec->data.amount != SPEC_AMOUNT_NONE, AT_VALUE, "data.train",
         "'data.train': a teacher's file is of one source; hint: name shards without weights and epochs"},
    };
    apply_key_rules(r, rules, COUNT_OF(rules));
}

/* The losses that read a key of `preference`; 0: all but reward. */
#define PREFERENCE_BIT(name) (1u << PREFERENCE_##name)
static const struct {
    const char *key;
    unsigned losses;
} preference_readers[] = {
    {"preference.label_smoothing", PREFERENCE_BIT(SIGMOID) | PREFERENCE_BIT(ROBUST) | PREFERENCE_BIT(SIMPO)},
    {"preference.gamma", PREFERENCE_BIT(SIMPO)},
    {"preference.rpo_alpha", ~(PREFERENCE_BIT(KTO) | PREFERENCE_BIT(ORPO) | PREFERENCE_BIT(REWARD))},
    {"preference.desirable_weight", PREFERENCE_BIT(KTO)},
    {"preference.undesirable_weight", PREFERENCE_BIT(KTO)},
    {"preference.beta", ~PREFERENCE_BIT(REWARD)},
    {"preference.reference", ~(PREFERENCE_BIT(SIMPO) | PREFERENCE_BIT(ORPO) | PREFERENCE_BIT(REWARD))},
};

/* A key that the loss does not read may only have its default, which an effective spec has. */
static void check_preference_readers(const struct rules *r, enum preference_loss loss)
{
    for (size_t i = 0; i < COUNT_OF(preference_readers); i++) {
        const char *path = preference_readers[i].key;
        const struct spec_node *node = find(r, path);
        const struct spec_key *key = spec_key_find(path);
        const char *text = node && node->text ? node->text : "";
        const double value = strtod(text, NULL), usual = key->fallback ? strtod(key->fallback, NULL) : NAN;
        const bool own = loss == PREFERENCE_REWARD && value == 1 && strcmp(path, "preference.beta") == 0;
        if (!node || preference_readers[i].losses & 1u << loss) continue;
        if (value == usual || own || strcmp(text, "none") == 0) continue;
        spec_error(r->ctx, node->key_pos, "'%s' has no meaning with preference.loss %s; hint: remove it", path,
                   preference_name(loss));
    }
}

static void check_preference(const struct rules *r)
{
    struct preference_settings *p = &r->spec->preference;
    const bool rewards = r->spec->model.task == TASK_REWARD;
    const bool on = p->loss != PREFERENCE_NONE && p->loss != PREFERENCE_REWARD;
    const struct rule rules[] = {
        {p->loss == PREFERENCE_REWARD && !rewards, AT_VALUE, "preference.loss",
         "'preference.loss' reward is that of reward models; hint: model.task: reward"},
        {p->loss == PREFERENCE_NONE && !rewards && find(r, "preference") && !find(r, "preference.loss"), AT_KEY,
         "preference", "'preference' needs a loss; hint: preference.loss: sigmoid is DPO's"},
        {on && r->spec->model.task != TASK_CAUSAL_LM, AT_VALUE, "preference.loss",
         "'preference.loss': model.task reward has a loss of its own; hint: remove it, or set it to reward"},
        {p->loss == PREFERENCE_ROBUST && p->label_smoothing == 0.5, AT_VALUE, "preference.label_smoothing",
         "'preference.label_smoothing' of robust is below 0.5: with 0.5 no pair says anything"},
        {(on || rewards) && r->spec->transformer.label_smoothing > 0, AT_VALUE, "train.label_smoothing",
         "'train.label_smoothing' has no meaning with preferences; hint: preference.label_smoothing"},
        {(on || rewards) && r->spec->data.seq_length < 2, AT_VALUE, "data.seq_length",
         "'data.seq_length' 1 holds no answer; hint: use 2 or more"},
        {p->reference && strcmp(p->reference, "adapter-off") == 0 && !r->spec->adapter.on, AT_VALUE,
         "preference.reference",
         "'preference.reference' adapter-off, and there is no adapter; hint: remove it: the reference is the model "
         "that "
         "training starts from"},
        {p->loss == PREFERENCE_KTO && r->spec->train.virtual_ranks > 0, AT_KEY, "train.virtual_ranks",
         "'train.virtual_ranks' does not go with kto, whose KL is a mean over the micro-batches of all ranks at a "
         "time; hint: another loss, or no virtual ranks"},
    };
    apply_key_rules(r, rules, COUNT_OF(rules));
    if (rewards) {
        p->loss = PREFERENCE_REWARD;
        p->beta = 1;
    }
    if (p->loss != PREFERENCE_NONE) check_preference_readers(r, p->loss);
}

static void check_comms_logger(const struct rules *r)
{
    const struct string_list *names = &r->spec->comms_logger.prof_ops;
    for (int i = 0; i < names->count; i++)
        if (!spec_has_word("all_gather all_gather_into_tensor reduce_scatter reduce_scatter_tensor", names->items[i]))
            spec_error(r->ctx, find(r, "comms_logger.prof_ops")->pos,
                       "'comms_logger.prof_ops': there is no collective '%s' here; hint: all_gather and reduce_scatter "
                       "are all there are, an all-reduce consists of both",
                       spec_show(r->ctx, names->items[i]));
    if (r->spec->comms_logger.enabled && !r->spec->comms_logger.prof_all && names->count == 0)
        spec_notice(r->ctx, find(r, "comms_logger.prof_all")->key_pos,
                    "'comms_logger.prof_all' false without prof_ops records nothing, as in DeepSpeed");
}

void spec_apply_rules(struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    const struct rules rules = {ctx, full, &full->spec, root};
    check_model(&rules);
    spec_adapter_check(ctx, full, root);
    check_batch(&rules);
    spec_auto_clipping(ctx, full, root);
    check_optimizer(&rules);
    check_scheduler(&rules);
    check_precision(&rules);
    check_steps(&rules);
    check_virtual_ranks(&rules);
    check_reduction(&rules);
    check_offload(&rules);
    check_recompute(&rules);
    check_evaluations(&rules);
    check_preference(&rules);
    check_distill(&rules);
    check_comms_logger(&rules);
    check_shards(&rules, "data.train", &full->spec.data.train);
    check_shards(&rules, "data.validation", &full->spec.data.validation);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* spec_resolve.c: fills in what follows from the ranks, the data and the run that is resumed.
 *
 * train_batch_size = micro batch x accumulation x ranks (or virtual ranks; then nothing adapts). A resumed run keeps
 * its train_batch_size; its micro batch, if none is given, is at most as large as it was, for a rank's memory.
 *
 * "auto": a value in the YAML file counts (spec_merge); else it follows from others or is the default, and is printed
 * with its origin. Source: transformers 5.23, integrations/deepspeed.py and TrainingArguments. */
#include "core/spec/spec_keys.h"

/* ---- batch sizes --------------------------------------------------------- */

static int64_t batch_size_product(int64_t a, int64_t b)
{
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

static int64_t largest_batch(void)
{
    return (int64_t)spec_key_find("train_batch_size")->max;
}

/* "1, 2, 3, 6": the world sizes over which `batch` can be split in units of `unit`, smallest first. */
static void list_world_sizes(int64_t batch, int64_t unit, char *text, size_t size)
{
    enum { MOST = 24 };
    int64_t most = batch % unit ? 0 : batch / unit;
    int found = 0;
    text[0] = 0;
    for (int64_t world = 1; world <= most && world <= 4096 && found <= MOST; world++) {
        if (most % world) continue;
        size_t used = strlen(text);
        if (++found > MOST)
            snprintf(text + used, size - used, ", …");
        else
            snprintf(text + used, size - used, "%s%lld", used ? ", " : "", (long long)world);
    }
}

/* Adds a hint with values that fit: multiples of what all ranks take at a time. worlds_are: their name. */
static enum status hint_batch(struct error *err, const int64_t given[3], int64_t world, const char *worlds_are)
{
    const int64_t train = given[0], both = batch_size_product(given[1] ? given[1] : 1, given[2] ? given[2] : 1);
    const int64_t unit = batch_size_product(both, world), below = train / unit * unit;
    const int64_t per_rank = given[1] && given[2] ? batch_size_product(given[1], world) : 0;
    char sizes[256], worlds[300] = "";
    list_world_sizes(train, both, sizes, sizeof sizes);
    if (per_rank && sizes[0]) /* all three sizes determine the world size */
        snprintf(sizes, sizeof sizes, "%lld", (long long)(train / both));
    if (sizes[0]) snprintf(worlds, sizeof worlds, "; possible %s: %s", worlds_are, sizes);
    if (unit > largest_batch()) return error_hint(err, "make the micro batch or the accumulation smaller");
    if (per_rank && train % per_rank == 0)
        return error_hint(err, "set train_batch_size to %lld, or gradient_accumulation_steps to %lld%s",
                          (long long)unit, (long long)(train / per_rank), worlds);
    if (per_rank) return error_hint(err, "set train_batch_size to %lld, or remove it%s", (long long)unit, worlds);
    if (below > 0)
        return error_hint(err, "the nearest values of train_batch_size that fit are %lld and %lld%s", (long long)below,
                          (long long)(below + unit), worlds);
    return error_hint(err, "the smallest train_batch_size that fits is %lld%s", (long long)unit, worlds);
}

/* The ranks of the formula: *world becomes the number of virtual ranks, and *source their key. */
static enum status take_virtual_ranks(const struct run_spec *spec, int *world, const char **source, struct error *err)
{
    const int64_t virtual_ranks = spec->train.virtual_ranks;
    char divisors[256];
    if (!virtual_ranks) return STATUS_OK;
    if (virtual_ranks % *world) {
        list_world_sizes(virtual_ranks, 1, divisors, sizeof divisors);
        return error_set(err, STATUS_USAGE,
                         "train.virtual_ranks %lld cannot be divided among %d ranks (world size %d: %s); hint: "
                         "possible world sizes: %s",
                         (long long)virtual_ranks, *world, *world, *source, divisors);
    }
    *world = (int)virtual_ranks;
    *source = "train.virtual_ranks";
    return STATUS_OK;
}

enum status spec_resolve_batch(struct run_spec *spec, int world, const char *world_source, struct error *err)
{
    const char *worlds_are = spec->train.virtual_ranks ? "values of train.virtual_ranks" : "world sizes";
    ASSERT(world > 0);
    TRY(take_virtual_ranks(spec, &world, &world_source, err));
    const struct spec_full *full = spec_full(spec);
    const int64_t *given = full->given_batch;
    int64_t train = given[0], micro = given[1], accumulation = given[2];
    ASSERT(train || micro); /* spec_load() refuses a spec without either */
    if (!accumulation) accumulation = train && micro ? train / micro / world : 1;
    if (!micro) micro = train / world / accumulation;
    if (!train) train = batch_size_product(batch_size_product(micro, accumulation), world);
    char one_step[96] = "sample";
    if (given[1])
        snprintf(one_step, sizeof one_step, "micro batch of %lld", (long long)micro);
    else if (given[2])
        snprintf(one_step, sizeof one_step, "sample in each of %lld accumulation steps", (long long)accumulation);
    int64_t product = batch_size_product(batch_size_product(micro, accumulation), world);
    if (train > largest_batch()) /* a product; a given value has been checked already */
        return error_set(err, STATUS_USAGE,
                         "%s: train_micro_batch_size_per_gpu %lld * gradient_accumulation_steps %lld * world size %d "
                         "(from %s) is more than %lld samples; hint: make one of them smaller",
                         full->batch_where, (long long)micro, (long long)accumulation, world, world_source,
                         (long long)largest_batch());
    if (!micro || !accumulation) { /* DeepSpeed's sentence would name a 0 that is not in the spec */
        error_set(err, STATUS_USAGE,
                  "%s: train_batch_size %lld is less than one %s on each of %d ranks (world size %d: %s)",
                  full->batch_where, (long long)train, one_step, world, world, world_source);
        return hint_batch(err, given, world, worlds_are);
    }
    if (train != product) {
        error_set(err, STATUS_USAGE,
                  "%s: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
                  "gradient_acc_step * world_size %lld != %lld * %lld * %d (world size %d: %s)",
                  full->batch_where, (long long)train, (long long)micro, (long long)accumulation, world, world,
                  world_source);
        return hint_batch(err, given, world, worlds_are);
    }
    spec->train_batch_size = train;
    spec->train_micro_batch_size_per_gpu = micro;
    spec->gradient_accumulation_steps = accumulation;
    return STATUS_OK;
}

/* ---- batch sizes of a resumed run ---------------------------------------- */

static enum status resolve_virtual_resumed(struct run_spec *spec, int world, const char *source, const json_t *stored,
                                           struct error *err)
{
    const int64_t was_micro = json_integer_value(json_object_get(stored, "train_micro_batch_size_per_gpu")),
                  was_train = json_integer_value(json_object_get(stored, "train_batch_size")),
                  was_virtual = json_integer_value(json_object_get(stored, "train.virtual_ranks"));
    TRY(spec_resolve_batch(spec, world, source, err));
    const int64_t micro = spec->train_micro_batch_size_per_gpu;
    if (was_virtual != spec->train.virtual_ranks || was_train != spec->train_batch_size || micro == was_micro)
        return STATUS_OK; /* the first two: spec_compare() refuses them */
    return error_set(
        err, STATUS_USAGE,
        "'train_micro_batch_size_per_gpu' was %lld in the checkpoint and is %lld now: with train.virtual_ranks that "
        "would change the run; hint: set it back, or start a new run under another run.name",
        (long long)was_micro, (long long)micro);
}

enum status spec_resolve_batches(struct run_spec *first, int world, const char *world_source, struct error *err)
{
    for (struct run_spec *spec = first; spec; spec = spec->next)
        TRY(spec_resolve_batch(spec, world, world_source, err));
    return STATUS_OK;
}

enum status spec_resolve_batch_resumed(struct run_spec *spec, int world, const char *world_source, const json_t *stored,
                                       int stored_world, struct error *err)
{
    ASSERT(world > 0);
    const struct spec_full *full = spec_full(spec);
    const int64_t *given = full->given_batch;
    int64_t train = json_integer_value(json_object_get(stored, "train_batch_size"));
    int64_t was_micro = json_integer_value(json_object_get(stored, "train_micro_batch_size_per_gpu"));
    if (spec->train.virtual_ranks) return resolve_virtual_resumed(spec, world, world_source, stored, err);
    if (train < 1 || train > largest_batch() || was_micro < 1 || was_micro > largest_batch() ||
        (given[0] && given[0] != train)) /* another batch is another run, which spec_compare() refuses */
        return spec_resolve_batch(spec, world, world_source, err);
    /* as before, or the spec was changed on purpose and fits */
    if (world == stored_world && (given[1] || given[2]) &&
        spec_resolve_batch(spec, world, world_source, NULL) == STATUS_OK && spec->train_batch_size == train)
        return STATUS_OK;

    int64_t per_rank = train % world ? 0 : train / world, micro = given[1] ? given[1] : was_micro;
    if (!given[1] && per_rank) {
        micro = micro < per_rank ? micro : per_rank;
        while (per_rank % micro) micro--;
    }
    if (!per_rank || per_rank % micro) {
        char sizes[256], parts[64] = "over";
        list_world_sizes(train, given[1] ? given[1] : 1, sizes, sizeof sizes);
        if (given[1]) snprintf(parts, sizeof parts, "into micro batches of %lld on", (long long)micro);
        error_set(err, STATUS_USAGE,
                  "%s: the run's train_batch_size %lld cannot be split %s %d ranks (world size %d: %s)",
                  full->batch_where, (long long)train, parts, world, world, world_source);
        if (sizes[0]) return error_hint(err, "possible world sizes: %s", sizes);
        return error_hint(
            err, "train_micro_batch_size_per_gpu must divide train_batch_size; if you remove it, ztrain derives it");
    }
    spec->train_batch_size = train;
    spec->train_micro_batch_size_per_gpu = micro;
    spec->gradient_accumulation_steps = per_rank / micro;
    return STATUS_OK;
}

void spec_resolve_document_mask(struct run_spec *spec, bool has_masks)
{
    const bool matters = spec->data.packing != SPEC_PACKING_NONE && spec->model.task == TASK_CAUSAL_LM;
    if (spec->data.document_mask != SPEC_AUTO) return;
    spec_full(spec)->auto_document_mask = true;
    spec->data.document_mask = has_masks && matters ? SPEC_ON : SPEC_OFF;
}

bool spec_document_mask_was_auto(const struct run_spec *spec)
{
    return spec_full(spec)->auto_document_mask;
}

double spec_comm_factor(const struct run_spec *spec, int world)
{
    if (spec->communication_data_type != DTYPE_F16 || spec->prescale_gradients) return 1;
    return world / spec->gradient_predivide_factor;
}

/* ---- length of the run --------------------------------------------------- */

/* The steps of some passes over the data; those of a fraction are rounded up, as in Trainer. */
static int64_t resolve_steps_of_epochs(double epochs, int64_t steps_per_epoch)
{
    static const double slack = 1e-6; /* of a step: 0.1 is a little more than a tenth, and still 1 step of 10 */
    const double whole = floor(epochs), part = ceil((epochs - whole) * (double)steps_per_epoch - slack);
    int64_t steps;
    if (!(whole < 0x1p62) || __builtin_mul_overflow((int64_t)whole, steps_per_epoch, &steps) ||
        __builtin_add_overflow(steps, (int64_t)part, &steps))
        return INT64_MAX;
    return steps > 0 ? steps : 1;
}

int64_t spec_run_length(double epochs, int64_t max_steps, int64_t steps_per_epoch)
{
    if (epochs <= 0 && max_steps) return max_steps;
    const int64_t steps = resolve_steps_of_epochs(epochs > 0 ? epochs : 1, steps_per_epoch);
    return max_steps && max_steps < steps ? max_steps : steps;
}

int64_t spec_resolve_steps(struct run_spec *spec, int64_t steps_per_epoch)
{
    ASSERT(steps_per_epoch > 0);
    const int64_t steps = spec_run_length(spec->train.epochs, spec->train.max_steps, steps_per_epoch);
    if (!spec_full(spec)->given_total_steps) spec->scheduler.total_steps = steps;
    return steps;
}

void spec_resolve_resumed(struct run_spec *spec, const json_t *stored)
{
    struct spec_full *full = spec_full(spec);
    const json_t *was = json_object_get(stored, "gradient_clipping"), *type = json_object_get(stored, "scheduler.type");
    const double clipping = json_number_value(was);
    spec_resolve_document_mask(spec, json_is_true(json_object_get(stored, "data.document_mask")));
    was = json_object_get(stored, "model.train_pad_token");
    if (spec->model.train_pad_token == SPEC_AUTO && (!was || json_is_true(was))) /* without the key it was trained */
        spec->model.train_pad_token = SPEC_ON;
    if (full->unset_clipping && clipping != spec->gradient_clipping) {
        spec->gradient_clipping = clipping;
        spec_auto_origin(full, spec_key_find("gradient_clipping"), "the run as it began");
    }
    const bool same_type =
        json_is_string(type) && strcmp(json_string_value(type), schedule_name(spec->scheduler.type)) == 0;
    full->former_follows = same_type && !json_object_get(stored, "scheduler.params.total_steps") &&
                           !json_object_get(stored, "scheduler.params.total_num_steps");
    full->former_epochs = json_number_value(json_object_get(stored, "train.epochs"));
    full->former_max_steps = json_integer_value(json_object_get(stored, "train.max_steps"));
}

int64_t spec_former_steps(const struct run_spec *spec, int64_t steps_per_epoch)
{
    const struct spec_full *full = spec_full(spec);
    if (!full->former_follows || full->given_total_steps) return 0;
    return spec_run_length(full->former_epochs, full->former_max_steps, steps_per_epoch);
}

void spec_resolve_tokenizer_resumed(struct run_spec *spec, const char *checkpoint)
{
    if (spec->model.tokenizer_folder && !fs_is_dir(spec->model.tokenizer_folder))
        spec->model.tokenizer_folder = spec_arena_text(&spec_full(spec)->arena, checkpoint);
}

/* ---- "auto" -------------------------------------------------------------- */

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
        if (strcmp(rules[i].path, path) == 0) return &rules[i];
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
    if (!rule || !rule->value) return spec_key_default(key);
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
    while (*link) link = &(*link)->next;
    *link = filled;
    return filled;
}

void spec_auto_clipping(const struct spec_context *ctx, struct spec_full *full, const struct spec_node *root)
{
    const struct spec_node *node = spec_find(root, "gradient_clipping");
    if (!*ctx->sources[1] || (node && node->kind != NODE_NULL)) return;
    full->unset_clipping = true;
    full->spec.gradient_clipping = 1;
    static const char from[] = "DeepSpeed's default; 0 switches clipping off";
    spec_auto_record(full, spec_key_find("gradient_clipping"), from)->was = "unset";
}

void spec_auto_origin(struct spec_full *full, const struct spec_key *key, const char *from)
{
    for (struct spec_auto *filled = full->autos; filled; filled = filled->next)
        if (filled->key == key) filled->from = spec_arena_text(&full->arena, from);
}

bool spec_auto_is_derived(const struct spec_full *full, const struct spec_key *key)
{
    for (const struct spec_auto *filled = full->autos; filled; filled = filled->next)
        if (filled->key == key) return filled->derived;
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
    for (const struct spec_auto *filled = full->autos; filled; filled = filled->next)
        if (filled->derived && filled->key->size)
            spec_key_store(full, filled->key, json_integer(from_hidden_size(filled->key, hidden_size)));
}

/* The value that "auto" has become, as text that the caller frees. */
static char *value_text(const struct spec_full *full, const struct spec_auto *filled)
{
    const struct schedule_spec *schedule = &full->spec.scheduler;
    const bool known = schedule->total_steps; /* else the steps of a ratio are not */
    const bool by_ratio =
        schedule->warmup_ratio > 0 && spec_has_word("warmup_steps warmup_num_steps", spec_key_leaf(filled->key->path));
    json_auto_t *value = by_ratio            ? known ? json_integer(schedule_warmup(schedule)) : NULL
                         : filled->key->size ? spec_key_fetch(full, filled->key)
                         : filled->derived   ? json_integer(from_hidden_size(filled->key, full->hidden_size))
                                             : spec_auto_value(filled->key);
    if (!value && strcmp(spec_key_leaf(filled->key->path), "warmup_max_lr") == 0)
        value = json_real(full->spec.optimizer.lr);
    return spec_json_text(value);
}

void spec_auto_print(const struct run_spec *spec, struct string_list *lines)
{
    const struct spec_full *full = spec_full(spec);
    for (const struct spec_auto *filled = full->autos; filled; filled = filled->next) {
        OWNED char *value = value_text(full, filled);
        OWNED char *line =
            memory_printf("%s: %s \u2192 %s, from %s%s", filled->key->path, filled->was, value, filled->from,
                          filled->key->verdict == VERDICT_NOTICE ? " (it has no effect here)" : "");
        string_list_add(lines, line);
    }
}

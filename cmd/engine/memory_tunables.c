/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/engine/memory_tunables.h"

static const struct memory_tunable_value stages[] = {
    {"0", {"zero_optimization.stage=0"}, .price = 0},
    {"1", {"zero_optimization.stage=1"}, .price = 1},
    {"2", {"zero_optimization.stage=2"}, .price = 2},
    {"3", {"zero_optimization.stage=3"}, .price = 5},
};

/* `enabled` comes with the policy: enabled: false in the run spec would contradict it. */
#define POLICY_LINES(name)                                                               \
    {                                                                                    \
        "activation_checkpointing.enabled=true", "activation_checkpointing.policy=" name \
    }
static const struct memory_tunable_value recomputations[RECOMPUTE_COUNT] = {
    [RECOMPUTE_NONE] = {"none", {"activation_checkpointing.policy=none"}, .price = 0},
    [RECOMPUTE_NORMS] = {"norms", POLICY_LINES("norms"), .price = 1},
    [RECOMPUTE_MLP] = {"mlp", POLICY_LINES("mlp"), .price = 3},
    [RECOMPUTE_ATTENTION] = {"attention", POLICY_LINES("attention"), .price = 6},
    [RECOMPUTE_BLOCK] = {"block", POLICY_LINES("block"), .price = 9},
};

static const struct memory_tunable_value optimizer_places[] = {
    [OFFLOAD_NONE] = {"gpu", {"zero_optimization.offload_optimizer.device=none"}, .price = 0},
    [OFFLOAD_CPU] =
        {"host", {"zero_optimization.offload_optimizer.device=cpu"}, .price = 20, .moves = 4, .doubt = 0.02},
    [OFFLOAD_NVME] = {"nvme",
                      {"zero_optimization.offload_optimizer.device=nvme",
                       "zero_optimization.offload_optimizer.nvme_path="},
                      .price = 50,
                      .moves = 4,
                      .doubt = 0.05},
};

static const struct memory_tunable_value param_places[] = {
    [OFFLOAD_NONE] = {"gpu", {"zero_optimization.offload_param.device=none"}, .price = 0},
    [OFFLOAD_CPU] = {"host", {"zero_optimization.offload_param.device=cpu"}, .price = 30, .moves = 6, .doubt = 0.02},
    [OFFLOAD_NVME] = {"nvme",
                      {"zero_optimization.offload_param.device=nvme", "zero_optimization.offload_param.nvme_path="},
                      .price = 60,
                      .moves = 10,
                      .doubt = 0.05},
};

static const struct memory_tunable_value input_places[] = {
    {"gpu", {"activation_checkpointing.cpu_checkpointing=false"}, .price = 0},
    {"host", {"activation_checkpointing.cpu_checkpointing=true"}, .price = 15, .doubt = 0.02},
};

#define STATE_LINES(grads, master, moments)                                                 \
    {                                                                                       \
        "data_types.grad_accum_dtype=" grads, "bf16.bf16_master_weights_and_grads=" master, \
            "bf16.bf16_optimizer_states=" moments                                           \
    }
static const struct memory_tunable_value state_precisions[] = {
    {"-", STATE_LINES("fp32", "false", "false"), .price = 0},
    {"grads", STATE_LINES("bf16", "false", "false"), .price = 60, .rounds = true},
    {"w+g", STATE_LINES("bf16", "true", "false"), .price = 65, .rounds = true},
    {"all", STATE_LINES("bf16", "true", "true"), .price = 70, .rounds = true},
};

const struct memory_tunable memory_tunables[TUNABLE_COUNT] = {
    [TUNABLE_STAGE] = {"stage", COUNT_OF(stages), stages},
    [TUNABLE_RECOMPUTE] = {"recompute", COUNT_OF(recomputations), recomputations},
    [TUNABLE_OPTIMIZER] = {"optim", COUNT_OF(optimizer_places), optimizer_places},
    [TUNABLE_PARAM] = {"params", COUNT_OF(param_places), param_places},
    [TUNABLE_INPUTS] = {"inputs", COUNT_OF(input_places), input_places},
    [TUNABLE_STATES] = {"bf16", COUNT_OF(state_precisions), state_precisions},
};

/* ---- settings ------------------------------------------------------------ */

void memory_setting_of(const struct run_spec *spec, struct memory_setting *setting)
{
    const bool grads = spec->grad_accum_dtype == DTYPE_BF16;
    const int master = !grads ? -1 : spec->bf16_moments ? 3 : 2; /* -1: keys in no row of state_precisions */
    *setting = (struct memory_setting){.micro = spec->train_micro_batch_size_per_gpu,
                                       .values = {[TUNABLE_STAGE] = spec->zero.stage,
                                                  [TUNABLE_RECOMPUTE] = (int)spec->transformer.recompute,
                                                  [TUNABLE_OPTIMIZER] = (int)spec->zero.offload_optimizer.device,
                                                  [TUNABLE_PARAM] = (int)spec->zero.offload_param.device,
                                                  [TUNABLE_INPUTS] = spec->cpu_checkpointing,
                                                  [TUNABLE_STATES] = spec->bf16_master ? master : grads}};
}

/* The folder of a run spec that names none, as in DeepSpeed's examples. */
static char usual_disk[] = "/local_nvme";

static void set_tunable_place(struct offload_settings *offload, const struct offload_settings *other, int value)
{
    offload->device = (enum offload_device)value;
    if (value == OFFLOAD_NVME && !offload->nvme_path)
        offload->nvme_path = other->nvme_path ? other->nvme_path : usual_disk;
}

/* Samples of a step that the micro-batches of a rank, or of a virtual rank, divide among them. */
static int64_t tunable_samples(const struct run_spec *spec, int world)
{
    return spec->train_batch_size / (spec->train.virtual_ranks ? spec->train.virtual_ranks : world);
}

void memory_setting_apply(const struct memory_setting *setting, const struct run_spec *spec, int world,
                          struct run_spec *copy)
{
    const int *values = setting->values, states = values[TUNABLE_STATES];
    *copy = *spec;
    copy->train_micro_batch_size_per_gpu = setting->micro;
    copy->gradient_accumulation_steps = tunable_samples(spec, world) / setting->micro;
    copy->zero.stage = values[TUNABLE_STAGE];
    copy->transformer.recompute = (enum recompute)values[TUNABLE_RECOMPUTE];
    copy->cpu_checkpointing = values[TUNABLE_INPUTS] != 0;
    set_tunable_place(&copy->zero.offload_optimizer, &copy->zero.offload_param, values[TUNABLE_OPTIMIZER]);
    set_tunable_place(&copy->zero.offload_param, &copy->zero.offload_optimizer, values[TUNABLE_PARAM]);
    if (states < 0) return;
    copy->grad_accum_dtype = states >= 1 ? DTYPE_BF16 : DTYPE_F32;
    copy->bf16_master = states >= 2;
    copy->bf16_moments = states >= 3;
}

/* Whether ztrain runs this setting, and no other one means the same; asked: the spec's stage. */
static bool is_sensible(const struct memory_setting *s, const struct run_spec *spec, int world)
{
    const int stage = s->values[TUNABLE_STAGE], asked = spec->zero.stage;
    const int optimizer = s->values[TUNABLE_OPTIMIZER], param = s->values[TUNABLE_PARAM];
    const int least = param || optimizer == OFFLOAD_NVME ? 3 : optimizer ? 1 : 0;
    if (param == OFFLOAD_NVME && optimizer != OFFLOAD_NVME) /* which takes six times as much of host memory */
        return false;
    if (stage < least || (s->values[TUNABLE_INPUTS] && !s->values[TUNABLE_RECOMPUTE])) return false;
    const int states = s->values[TUNABLE_STATES];
    if (spec->optimizer.type == OPTIMIZER_MUON && (optimizer || param)) return false;
    const bool rounds = spec->optimizer.type == OPTIMIZER_ADAMW || spec->optimizer.type == OPTIMIZER_ADAM;
    if (states > 1 && !rounds) /* only AdamW and Adam round to bf16 weights */
        return false;
    if (states != 0 && (spec->dtype != DTYPE_BF16 || (states > 0 && spec->train.virtual_ranks))) return false;
    if (spec->train.virtual_ranks && stage == (asked == 2 ? 1 : 2)) /* stage 1 keeps gradients as stage 2 does */
        return false;
    if (world > 1) return true;
    if (optimizer == OFFLOAD_CPU && !param) /* stage 1 keeps gradients on the device */
        return stage == 1 || stage == (asked > 2 ? asked : 2);
    return stage == (asked > least ? asked : least); /* otherwise all stages of one rank are the same */
}

static bool next_tunables(const struct memory_setting *given, int64_t samples, struct memory_setting *s)
{
    for (int k = 0; k < TUNABLE_COUNT; k++) {
        if (given->values[k] < 0) continue;
        s->values[k] = (s->values[k] + 1) % memory_tunables[k].count;
        if (s->values[k] != 0) return true;
    }
    do s->micro++;
    while (s->micro <= samples && samples % s->micro != 0);
    return s->micro <= samples;
}

bool memory_setting_next(const struct run_spec *spec, int world, struct memory_setting *setting)
{
    struct memory_setting given;
    memory_setting_of(spec, &given);
    for (int k = 0; k < TUNABLE_COUNT && !setting->micro; k++) /* the first one comes after the last of micro 0 */
        setting->values[k] = given.values[k] < 0 ? -1 : memory_tunables[k].count - 1;
    while (next_tunables(&given, tunable_samples(spec, world), setting))
        if (is_sensible(setting, spec, world)) return true;
    return false;
}

static const struct memory_tunable_value *value_of(int k, int value)
{
    return value < 0 ? NULL : &memory_tunables[k].values[value];
}

/* How often the micro-batches of a step double a single one: log2 of their number. */
static int doublings(const struct memory_setting *setting, int64_t samples)
{
    int count = 0;
    for (int64_t micro_batches = samples / setting->micro; micro_batches > 1; micro_batches /= 2) count++;
    return count;
}

int memory_setting_price(const struct memory_setting *setting, const struct memory_setting *from, int64_t samples)
{
    const int now = doublings(setting, samples), before = doublings(from, samples);
    int price = 0;
    for (int k = 0; k < TUNABLE_COUNT; k++) {
        const struct memory_tunable_value *value = value_of(k, setting->values[k]);
        const bool turned = value && setting->values[k] != from->values[k];
        if (turned) price += 1 + value->price;
        if (value && (k != TUNABLE_OPTIMIZER || setting->values[TUNABLE_STAGE] >= 2)) /* else once in a step */
            price += value->moves * (turned ? now : now > before ? now - before : 0);
    }
    return price;
}

double memory_setting_doubt(const struct memory_setting *setting)
{
    double doubt = 0;
    for (int k = 0; k < TUNABLE_COUNT; k++)
        doubt += setting->values[k] < 0 ? 0 : value_of(k, setting->values[k])->doubt;
    return doubt;
}

bool memory_setting_uses_disk(const struct memory_setting *setting)
{
    return setting->values[TUNABLE_OPTIMIZER] == OFFLOAD_NVME || setting->values[TUNABLE_PARAM] == OFFLOAD_NVME;
}

bool memory_setting_rounds(const struct memory_setting *setting, const struct memory_setting *from)
{
    for (int k = 0; k < TUNABLE_COUNT; k++)
        if (setting->values[k] >= 0 && setting->values[k] != from->values[k] && value_of(k, setting->values[k])->rounds)
            return true;
    return false;
}

void memory_tunable_lines(int k, int value, const struct run_spec *copy, struct string_list *lines)
{
    const char *path =
        k == TUNABLE_OPTIMIZER ? copy->zero.offload_optimizer.nvme_path : copy->zero.offload_param.nvme_path;
    const struct memory_tunable_value *row = value_of(k, value);
    for (int i = 0; i < TUNABLE_LINES && row->lines[i]; i++) {
        const char *line = row->lines[i];
        char whole[4096];
        snprintf(whole, sizeof whole, "%s%s", line, line[strlen(line) - 1] == '=' ? path : "");
        string_list_add(lines, whole);
    }
}

void memory_setting_text(const struct memory_setting *setting, const struct memory_setting *from,
                         const struct run_spec *copy, char text[MEMORY_SETTING_TEXT])
{
    RELEASED(string_list_release) struct string_list lines = {0};
    text[0] = 0;
    if (setting->micro != from->micro)
        snprintf(text, MEMORY_SETTING_TEXT,
                 "train_micro_batch_size_per_gpu=%" PRId64 ", gradient_accumulation_steps=%" PRId64,
                 copy->train_micro_batch_size_per_gpu, copy->gradient_accumulation_steps);
    for (int k = 0; k < TUNABLE_COUNT; k++)
        if (setting->values[k] >= 0 && setting->values[k] != from->values[k])
            memory_tunable_lines(k, setting->values[k], copy, &lines);
    for (int i = 0; i < lines.count; i++) {
        const size_t used = strlen(text);
        snprintf(text + used, MEMORY_SETTING_TEXT - used, "%s%s", used ? ", " : "", lines.items[i]);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* init_spec.c: the run spec that `ztrain init` writes, with a reason at each choice. See init.h. */
#include "cmd/init.h"

/* Appends the name of a path's last part, without the ending of a shard or of JSON. */
static void init_add_name(char name[INIT_TEXT], const char *path)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    size_t end = strlen(path), used = strlen(name);
    if (fs_has_suffix(path, ".bin") || fs_has_suffix(path, ".idx"))
        end -= strlen(".bin");
    else if (fs_has_suffix(path, ".json"))
        end -= strlen(".json");
    while (end > 1 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    for (; begin < end && used < INIT_TEXT / 2; begin++)
        name[used++] = strchr(letters, path[begin]) ? path[begin] : '-';
    name[used] = '\0';
}

void init_run_name(const struct init *t, char name[INIT_TEXT])
{
    char folder[FS_PATH_MAX], data[INIT_TEXT] = "";
    snprintf(folder, sizeof folder, "%s", t->model);
    if (strcmp(basename(t->model), "config.json") == 0) fs_parent(t->model, folder);
    name[0] = '\0';
    init_add_name(name, strcmp(folder, ".") == 0 ? "model" : folder);
    init_add_name(data, t->data.items[0]);
    const size_t used = strlen(name);
    snprintf(name + used, INIT_TEXT - used, "-%s", data);
    if (name[0] == '.') name[0] = '_';
}

/* The next number from `least` on that is easily read: 1, 2 or 5 times a power of ten. */
static int64_t init_readable(double least)
{
    int64_t number = 1;
    for (int k = 0; (double)number < least; k++) number = k % 3 == 1 ? number / 2 * 5 : number * 2;
    return number;
}

/* "7.62 billion" */
static const char *init_count_text(int64_t count, char text[INIT_TEXT])
{
    if (count >= 1000000000)
        snprintf(text, INIT_TEXT, "%.3g billion", 1e-9 * (double)count);
    else if (count >= 1000000)
        snprintf(text, INIT_TEXT, "%.3g million", 1e-6 * (double)count);
    else
        snprintf(text, INIT_TEXT, "%" PRId64, count);
    return text;
}

/* ---- sections ------------------------------------------------------------ */

static void init_write_head(const struct init *t, FILE *out)
{
    const double seconds = t->choice.seconds;
    fprintf(out, "# Written by `ztrain init` for ");
    if (!t->cuda) {
        fprintf(out, "the CPU.\n");
        return;
    }
    fprintf(out, "%d x %s.\n", t->ranks, t->gpu.name);
    if (seconds > 0)
        fprintf(out,
                "# Estimated, not measured: %.3g s a step, %.0f tokens/s, %.2g hours in all; %.1f of the %.1f GiB of "
                "each GPU.\n",
                seconds, (double)(t->batch * t->seq_length) / seconds, (double)t->steps * seconds / 3600,
                in_gib(t->choice.device), in_gib((uint64_t)t->memory));
}

static void init_write_shards(FILE *out, const char *key, const struct string_list *shards)
{
    fprintf(out, "  %s:", key);
    for (int i = 0; i < shards->count; i++) {
        fputs(shards->count == 1 ? " " : "\n    - ", out);
        spec_write_string(out, shards->items[i]);
    }
}

static void init_write_model(const struct init *t, FILE *out)
{
    char name[INIT_TEXT], params[INIT_TEXT];
    init_run_name(t, name);
    fprintf(out, "run:\n  name: ");
    spec_write_string(out, name);
    fprintf(out, "  # the run's folder in runs/\nmodel:\n  %s: ", t->pretrained ? "pretrained" : "config");
    spec_write_string(out, t->model);
    fprintf(out, "  # %s parameters%s\n", init_count_text(t->params, params),
            t->method != INIT_FULL ? ", frozen"
            : t->pretrained        ? ", all of them trained"
                                   : " with random initial values");
    if (t->labels) fprintf(out, "  task: sequence_classification  # the data have labels\n");
    if (t->method == INIT_QLORA)
        fprintf(out,
                "  quantization_config:  # the frozen matrices%s in 4 bits, as in the QLoRA paper\n"
                "    load_in_4bit: true\n    bnb_4bit_quant_type: nf4\n    bnb_4bit_use_double_quant: true\n",
                t->desc.experts.count ? " but those of experts and routers" : "");
    if (t->method != INIT_FULL)
        fprintf(out,
                "peft:  # LoRA: %s parameters are trained\n"
                "  r: 16  # rank; a small one suffices for most data, more learns more\n"
                "  lora_alpha: 32  # twice r is usual: what the adapter adds is times lora_alpha / r\n"
                "  target_modules: all-linear  # all matrices of the blocks, as the QLoRA paper recommends\n",
                init_count_text(t->trained, params));
}

static void init_write_data(const struct init *t, FILE *out)
{
    const int64_t documents = token_set_documents(t->set);
    fprintf(out, "data:\n");
    init_write_shards(out, "train", &t->data);
    fprintf(out, "  # %" PRId64 " documents, %" PRId64 " tokens%s\n", documents, token_set_tokens(t->set),
            t->masked ? "; a loss mask says which are learned" : "");
    if (t->validation.count > 0) {
        init_write_shards(out, "validation", &t->validation);
        fputc('\n', out);
    }
    if (t->labels)
        fprintf(out,
                "  seq_length: %" PRId64 "  # the longest document has %" PRId64 " tokens\n"
                "  packing: false  # each document has a label\n",
                t->seq_length, t->longest);
    else if (t->masked)
        fprintf(out,
                "  seq_length: %" PRId64 "  # %" PRId64 " of %" PRId64
                " documents are longer and are cut; the longest has %" PRId64 "\n"
                "  packing: first_fit  # as many whole documents as fit\n"
                "  document_mask: true  # documents of a sample do not see each other\n",
                t->seq_length, t->cut.documents, documents, t->longest);
    else
        fprintf(out,
                "  seq_length: %" PRId64 "  # tokens of a sample; the model has %" PRId64 " positions\n"
                "  packing: true  # documents are joined end to end\n",
                t->seq_length, t->desc.max_positions);
}

static void init_write_training(const struct init *t, FILE *out)
{
    const int64_t interval = init_readable((double)t->steps / 10);
    /* ten minutes by the plan (writing takes time), in whole intervals of evaluations; 0: the run ends before */
    const double least = t->choice.seconds > 0 ? 600 / t->choice.seconds : 0;
    const int64_t rounded = interval * init_readable(least / (double)interval),
                  saves = rounded < t->steps ? rounded : 0;
    fprintf(out, "train:\n  device: %s\n  epochs: %.10g  # %" PRId64 " step%s in all\n", t->cuda ? "cuda" : "cpu",
            t->epochs, t->steps, PLURAL(t->steps));
    if (t->virtual_ranks)
        fprintf(out, "  virtual_ranks: %d  # the same bits on any number of %s that divides it\n", t->virtual_ranks,
                t->cuda ? "GPUs" : "ranks");
    if (t->flags.memory) fprintf(out, "  memory_limit: %" PRId64 "  # bytes of each GPU: --memory\n", t->memory);
    if (t->validation.count > 0) fprintf(out, "  eval_interval_steps: %" PRId64 "\n", interval);
    fprintf(out, "checkpoint:\n  interval_steps: %" PRId64 "  # ", saves);
    if (saves == 0)
        fprintf(out, "the end of each epoch has one\n");
    else if (saves != interval)
        fprintf(out, "ten minutes or more, by the plan; the end of an epoch has one too\n");
    else
        fprintf(out, "%" PRId64 " in the run; the end of an epoch has one too\n", t->steps / saves);
    fprintf(out, "  keep_last: 2  # each has about %s: weights and optimizer state in fp32\n",
            SIZE(round, 12 * t->trained));
    if (t->validation.count > 0) fprintf(out, "  keep_best: 1  # the one with the lowest eval_loss stays too\n");
    fprintf(out, "train_batch_size: %" PRId64 "  # samples of a step on all ranks: %" PRId64 " tokens\n", t->batch,
            t->batch * t->seq_length);
    fprintf(out, "train_micro_batch_size_per_gpu: %" PRId64 "  # %s\n", t->choice.setting.micro,
            t->cuda ? "the fastest that fits, by the plan" : "fits into the memory of this machine, by the plan");
}

static void init_write_optimizer(const struct init *t, FILE *out)
{
    const bool tunes = t->pretrained, adapts = t->method != INIT_FULL;
    fprintf(out, "gradient_clipping: 1.0\noptimizer:\n  type: AdamW\n  params:\n    lr: %.10g  # %s\n", t->lr,
            t->flags.lr ? "as asked for"
            : adapts    ? "usual for LoRA: ten times that of all weights"
            : tunes     ? "usual where all weights of a trained model are trained on"
                        : "usual for a small model from scratch");
    fprintf(out, "    betas: [0.9, %s]\n    weight_decay: %s\n", tunes ? "0.999" : "0.95",
            adapts  ? "0.0"
            : tunes ? "0.01"
                    : "0.1");
    fprintf(out,
            "scheduler:\n  type: Cosine\n  params:\n    warmup_steps: %" PRId64 "  # 3 %% of the run\n"
            "    min_lr: %.10g  # a tenth of lr\n",
            (3 * t->steps + 99) / 100, 0.1 * t->lr);
    fprintf(out, "steps_per_print: %d\n", t->steps < 100 ? 1 : 10);
}

/* ---- what the plan has chosen -------------------------------------------- */

static void init_write_precision(const struct init *t, FILE *out)
{
    const int states = t->choice.setting.values[TUNABLE_STATES];
    if (!t->cuda) return;
    fprintf(out, "bf16:\n  enabled: true\n");
    if (states >= 2)
        fprintf(out, "  bf16_master_weights_and_grads: true  # nothing fits with master weights in fp32\n");
    if (states >= 3) fprintf(out, "  bf16_optimizer_states: true\n");
    if (states >= 1) fprintf(out, "data_types:\n  grad_accum_dtype: bf16  # nothing fits with gradients in fp32\n");
}

static void init_write_stage(const struct init *t, FILE *out)
{
    static const char *const divided[] = {"each GPU has all of the model", "GPUs divide the optimizer state",
                                          "GPUs divide optimizer state and gradients",
                                          "GPUs divide optimizer state, gradients and parameters"};
    const int *values = t->choice.setting.values, stage = values[TUNABLE_STAGE];
    fprintf(out, "zero_optimization:\n  stage: %d  # %s%s\n", stage,
            t->ranks == 1 ? "there is one rank" : divided[stage], t->cuda ? "; by the plan" : "");
    if (values[TUNABLE_OPTIMIZER])
        fprintf(out, "  offload_optimizer:\n    device: cpu  # by the plan; a node needs %.1f GiB of host memory\n",
                in_gib(t->choice.node));
    if (values[TUNABLE_PARAM]) fprintf(out, "  offload_param:\n    device: cpu  # by the plan\n");
    if (values[TUNABLE_RECOMPUTE])
        fprintf(out,
                "activation_checkpointing:\n  enabled: true\n  policy: %s  # computed again in the backward pass, by "
                "the plan\n",
                recompute_name((enum recompute)values[TUNABLE_RECOMPUTE]));
    if (values[TUNABLE_INPUTS]) fprintf(out, "  cpu_checkpointing: true  # inputs of blocks wait in host memory\n");
}

char *init_spec(const struct init *t)
{
    char *text;
    FILE *out = memory_stream(&text, NULL);
    init_write_head(t, out);
    init_write_model(t, out);
    init_write_data(t, out);
    init_write_training(t, out);
    init_write_optimizer(t, out);
    init_write_precision(t, out);
    init_write_stage(t, out);
    fclose(out);
    return text;
}

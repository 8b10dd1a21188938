/* spec_unknown_key.c: keys that the table does not have, and what to write instead.
 *
 * A name of Hugging Face's Trainer and Accelerate, LLaMA-Factory, axolotl or torchtune has a row here, which is also in
 * docs/from-deepspeed.md. Any other is compared with the keys of its section, then with those of other sections, where
 * only a close likeness counts. No hint leads to a key or choice that is refused. */
#include "core/edit_distance.h"
#include "core/spec/spec_keys.h"

#include <string.h>

/* ---- names of other trainers --------------------------------------------- */

#define LORA "all weights are trained, and there are no adapters"
#define QUANTIZED "weights are not quantized"
#define TOKENIZE "data are tokenized beforehand, by scripts/tokenize.py"
#define BEST "`ztrain export RUN --best` takes the best checkpoint"
#define PACKING "first_fit, with data.document_mask: true, packs whole documents that do not see each other"
#define SERVICE "nothing is sent to a service while training; scripts/to_wandb.py RUN sends a run's folder"

const struct spec_foreign_name spec_foreign_names[] = {
    /* length of the run */
    {"num_train_epochs num_epochs epochs", "train.epochs", NULL},
    {"max_steps max_train_steps max_iters train_iters", "train.max_steps", NULL},
    {"max_steps_per_epoch", "train.max_steps", "it counts the steps of the whole run"},
    /* batches */
    {"per_device_train_batch_size per_gpu_train_batch_size micro_batch_size batch_size",
     "train_micro_batch_size_per_gpu", NULL},
    {"global_batch_size", "train_batch_size", NULL},
    {"per_device_eval_batch_size eval_batch_size", NULL, "evaluation takes the micro-batch of the training"},
    {"auto_find_batch_size", NULL, "`ztrain plan --fit` finds the micro-batch that fits"},
    /* learning rate and schedule */
    {"learning_rate", "optimizer.params.lr", NULL},
    {"lr_scheduler_type lr_scheduler", "scheduler.type", "linear is Linear, cosine is Cosine, constant is Constant"},
    {"warmup_steps num_warmup_steps", "scheduler.params.warmup_steps", NULL},
    {"warmup_ratio", "scheduler.params.warmup_ratio", "for every schedule with a warm-up"},
    {"cosine_min_lr_ratio", "scheduler.params.min_lr", "it is a learning rate, not a ratio"},
    {"lr_scheduler_kwargs", "scheduler.params", NULL},
    /* optimizer */
    {"optim", "optimizer.type", NULL},
    {"optim_args", "optimizer.params", NULL},
    {"weight_decay", "optimizer.params.weight_decay", NULL},
    {"adam_beta1 adam_beta2", "optimizer.params.betas", "it is a list of both: [0.9, 0.999]"},
    {"adam_epsilon", "optimizer.params.eps", NULL},
    {"max_grad_norm clip_grad_norm grad_clip", "gradient_clipping", NULL},
    {"label_smoothing_factor", "train.label_smoothing", NULL},
    /* checkpoints, evaluation, output */
    {"output_dir", "run.dir", "the run's folder in it is run.name"},
    {"run_name", "run.name", NULL},
    {"overwrite_output_dir", NULL, "a run folder with checkpoints is continued by --resume, and never overwritten"},
    {"save_steps", "checkpoint.interval_steps", NULL},
    {"saves_per_epoch", "checkpoint.interval_steps", "it is a number of steps; each epoch ends with a checkpoint"},
    {"save_total_limit", "checkpoint.keep_last", NULL},
    {"load_best_model_at_end", "checkpoint.keep_best", BEST},
    {"metric_for_best_model", "checkpoint.metric", "it is eval_loss, accuracy or f1"},
    {"greater_is_better", "checkpoint.mode", "it is min or max"},
    {"early_stopping_patience", "train.early_stopping.patience", NULL},
    {"early_stopping_threshold", "train.early_stopping.min_delta", NULL},
    {"save_strategy", "checkpoint.interval_steps", "it is a number of steps; each epoch ends with a checkpoint"},
    {"save_only_model", NULL, "checkpoints are whole; `ztrain export` writes the model alone"},
    {"resume_from_checkpoint", NULL, "--resume DIR continues from a checkpoint or a run folder"},
    {"eval_steps", "train.eval_interval_steps", NULL},
    {"evals_per_epoch eval_strategy evaluation_strategy", "train.eval_interval_steps",
     "it is a number of steps; each epoch ends with an evaluation"},
    {"do_train", NULL, "`ztrain --config` trains"},
    {"do_eval", "data.validation", "evaluation runs where there are validation data"},
    {"logging_steps log_every_n_steps", "steps_per_print", "metrics.jsonl has every step"},
    {"logging_dir", "tensorboard.output_path", "metrics.jsonl is in the run's folder"},
    {"logging_first_step", NULL, "the first step is always printed"},
    {"logging_strategy", "steps_per_print", "metrics.jsonl has every step"},
    {"report_to", "tensorboard.enabled", "nothing is sent to a service"},
    {"wandb_project wandb_entity wandb_name wandb_watch wandb_log_model", NULL, SERVICE},
    {"push_to_hub hub_model_id", NULL, "`ztrain export` writes a folder that you can upload"},
    {"plot_loss", NULL, "metrics.jsonl in the run's folder has the loss of every step"},
    /* model */
    {"model_name_or_path base_model", "model.pretrained", "a folder, or a name in the local Hugging Face cache"},
    {"config_name", "model.config", NULL},
    {"model_type", "model.config", "config.json has it"},
    {"torch_dtype dtype", "bf16.enabled", NULL},
    {"tf32", NULL, "products of fp32 values are computed in fp32"},
    {"flash_attention flash_attn xformers_attention attn_implementation", NULL,
     "attention never writes its matrix to memory"},
    {"gradient_checkpointing enable_activation_checkpointing", "activation_checkpointing.policy", "true is block"},
    {"enable_activation_offloading", "activation_checkpointing.cpu_checkpointing", "with policy block"},
    {"use_liger_kernel", NULL, "all kernels are ztrain's own"},
    {"torch_compile", NULL, "there are no Python modules to compile"},
    {"trust_remote_code", NULL, "no code is read from a model's folder"},
    /* data */
    {"dataset datasets train_file", "data.train", TOKENIZE},
    {"validation_file", "data.validation", TOKENIZE},
    {"val_size val_set_size", "data.validation", "scripts/tokenize.py --validation splits off a part"},
    {"cutoff_len sequence_len max_seq_len max_seq_length max_length model_max_length block_size", "data.seq_length",
     NULL},
    {"sample_packing neat_packing", "data.packing", PACKING},
    {"pad_to_sequence_len", "data.packing", "false: each document is a sample"},
    {"template chat_template", NULL,
     "scripts/tokenize.py --chat-template renders conversations with the model's template"},
    {"train_on_inputs", NULL, "scripts/tokenize.py writes which tokens are learned from"},
    {"tokenizer tokenizer_name", "model.tokenizer", TOKENIZE},
    {"tokenizer_type dataset_dir dataset_prepared_path", NULL, TOKENIZE},
    {"eval_dataset", "data.validation", TOKENIZE},
    {"max_samples", "train.max_steps", "it limits the steps, not the samples"},
    {"special_tokens preprocessing_num_workers overwrite_cache", NULL, TOKENIZE},
    {"dataloader_num_workers", NULL, "a thread reads the next batch ahead"},
    {"group_by_length", NULL, "the seed decides the order of the samples"},
    {"remove_unused_columns", NULL, TOKENIZE},
    /* the run */
    {"seed data_seed", "run.seed", NULL},
    {"device", "train.device", NULL},
    {"use_cpu", "train.device", "cpu"},
    {"ddp_timeout", "comm.timeout_seconds", "of a rank's silence, however long a step takes; 10 suffice as a rule"},
    {"local_rank", NULL, "srun or --local-gpus N starts the ranks"},
    {"deepspeed", NULL, "--deepspeed FILE names the DeepSpeed configuration"},
    {"fsdp fsdp_config", "zero_optimization.stage", "3 shards parameters as FSDP does"},
    {"ddp_find_unused_parameters", NULL, "every parameter is used"},
    {"stage", "zero_optimization.stage", "0 to 3; LLaMA-Factory's pt and sft differ in the data alone"},
    {"pure_bf16", "bf16.bf16_master_weights_and_grads", "with bf16.enabled"},
    {"gradient_accumulation_dtype", "data_types.grad_accum_dtype", NULL},
    {"fp32_allreduce", "communication_data_type", "fp32 is the default"},
    {"zero_stage", "zero_optimization.stage", NULL},
    {"offload_optimizer_device", "zero_optimization.offload_optimizer.device", NULL},
    {"offload_param_device", "zero_optimization.offload_param.device", NULL},
    {"mixed_precision", "bf16.enabled", NULL},
    {"zero3_init_flag", NULL, "weights are initialised slice by slice at every stage"},
    {"zero3_save_16bit_model", NULL, "`ztrain export` makes whole files from any checkpoint"},
    {"num_processes", NULL, "srun or --local-gpus N starts the ranks"},
    /* features that ztrain lacks */
    {"adapter finetuning_type use_peft lora_r lora_rank lora_alpha lora_dropout lora_target lora_target_modules "
     "lora_target_linear",
     NULL, LORA},
    {"load_in_8bit load_in_4bit quantization_bit", NULL, QUANTIZED},
    {"neftune_noise_alpha", NULL, "there is no noise on embeddings"},
};
const int spec_num_foreign_names = COUNT_OF(spec_foreign_names);

static bool unknown_key_has_word(const char *words, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = words; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, " ") == length && strncmp(at, word, length) == 0)
            return true;
    return false;
}

const struct spec_foreign_name *spec_foreign_name_find(const char *name)
{
    for (int i = 0; i < spec_num_foreign_names; i++)
        if (unknown_key_has_word(spec_foreign_names[i].names, name))
            return &spec_foreign_names[i];
    return NULL;
}

void spec_print_names(FILE *out)
{
    fputs("| their name | in a run spec | |\n|---|---|---|\n", out);
    for (int i = 0; i < spec_num_foreign_names; i++) {
        const struct spec_foreign_name *row = &spec_foreign_names[i];
        const char *tick = row->key ? "`" : "";
        for (const char *name = row->names; *name; name += strcspn(name, " "), name += *name == ' ')
            fprintf(out, "| `%.*s` | %s%s%s | %s |\n", (int)strcspn(name, " "), name, tick, row->key ? row->key : "-",
                    tick, row->note ? row->note : "");
    }
}

/* ---- hints --------------------------------------------------------------- */

static bool unknown_is_unavailable(const struct spec_key *key)
{
    return key->verdict == VERDICT_REFUSED || key->verdict == VERDICT_LATER;
}

/* "'data'", "'optimizer' or 'scheduler'", "at top level": the sections that have a key of exactly this name. NULL:
 * none, or too many. `used`: only keys that ztrain uses. */
static const char *sections_with(struct spec_context *ctx, const char *name, bool used)
{
    const char *found = NULL;
    int count = 0;
    for (int i = 0; i < spec_num_keys; i++) {
        const struct spec_key *key = &spec_keys[i];
        if (strcmp(spec_key_leaf(key->path), name) != 0 || key->type == KEY_ALIAS || unknown_is_unavailable(key) ||
            (used && key->verdict != VERDICT_USED))
            continue;
        int length = (int)spec_key_section_length(key->path);
        const char *place = length ? spec_arena_printf(ctx->arena, "under '%.*s'", length, key->path) : "at top level";
        found = found ? spec_arena_printf(ctx->arena, "%s or %s", found, place) : place;
        count++;
    }
    return count <= 3 ? found : NULL;
}

enum {
    FEWEST_LETTERS = 3,    /* of a part that can be recognised */
    FARTHEST_ELSEWHERE = 2 /* edits that lead to a key of another section: more of them lead to another meaning */
};

static bool unknown_key_ends_with(const char *text, const char *word)
{
    size_t all = strlen(text), length = strlen(word);
    return length >= FEWEST_LETTERS && length < all && strcmp(text + all - length, word) == 0 &&
           text[all - length - 1] == '_';
}

/* Whether a name is the beginning of a key (seq_len of seq_length), its end (batch_size of train_batch_size), or the
 * key with words before it (output_dir in run). A single word is compared with the keys of the same section only. */
static bool unknown_is_part(const char *name, const char *key, bool same_section)
{
    if (!same_section && !strchr(name, '_'))
        return false;
    size_t length = strlen(name);
    return (length >= FEWEST_LETTERS && strncmp(name, key, length) == 0) || unknown_key_ends_with(key, name) ||
           (same_section && unknown_key_ends_with(name, key));
}

static const char *unknown_suggestion(struct spec_context *ctx, const char *name)
{
    const struct spec_foreign_name *foreign = spec_foreign_name_find(name);
    if (!foreign || !foreign->key)
        return foreign ? foreign->note : NULL;
    return foreign->note ? spec_arena_printf(ctx->arena, "write %s (%s)", foreign->key, foreign->note)
                         : spec_arena_printf(ctx->arena, "write %s", foreign->key);
}

/* A single word, such as debug, may mean anything: it leads to no key of another section that has no effect here. */
static const char *hint_unknown(struct spec_context *ctx, const char *section, const char *name)
{
    const char *foreign = unknown_suggestion(ctx, name);
    if (foreign)
        return foreign;
    const char *places = sections_with(ctx, name, true);
    if (!places && strchr(name, '_'))
        places = sections_with(ctx, name, false);
    if (places)
        return spec_arena_printf(ctx->arena, "this key belongs %s", places);

    const struct spec_key *best = NULL;
    int best_distance = edit_distance_limit(name) + 1;
    for (int elsewhere = 0; elsewhere < 2 && !best; elsewhere++) {
        for (int i = 0; i < spec_num_keys; i++) {
            const struct spec_key *key = &spec_keys[i];
            const char *leaf = spec_key_leaf(key->path);
            if (spec_key_in(key, section) != !elsewhere || key->type == KEY_ALIAS || unknown_is_unavailable(key) ||
                (elsewhere && !strchr(name, '_') && key->verdict != VERDICT_USED))
                continue;
            bool part = key->type != KEY_SECTION && unknown_is_part(name, leaf, !elsewhere);
            int distance = part ? 1 : edit_distance(name, leaf);
            if (distance < best_distance && (!elsewhere || distance <= FARTHEST_ELSEWHERE)) {
                best = key;
                best_distance = distance;
            }
        }
        if (best)
            return spec_arena_printf(ctx->arena, "did you mean '%s'?",
                                     elsewhere ? best->path : spec_key_leaf(best->path));
    }
    return "--help-spec lists the keys";
}

/* JSON has no comments, so that people write them as keys of their DeepSpeed file: "_comment", "//". */
static bool unknown_is_comment(struct spec_context *ctx, const struct spec_node *node)
{
    if (node->key_pos.source != 1 || !strchr("_/#", *node->key))
        return false;
    spec_notice(ctx, node->key_pos, "'%s' is taken as a comment", spec_show(ctx, node->key));
    return true;
}

void spec_find_unknown(struct spec_context *ctx, const struct spec_node *root, const struct spec_node *section,
                       const char *section_path)
{
    if (spec_is_unknown_territory(root, section_path))
        return;
    for (const struct spec_node *node = section->first; node; node = node->next) {
        const char *path = *section_path ? spec_arena_printf(ctx->arena, "%s.%s", section_path, node->key) : node->key;
        const struct spec_key *key = strchr(node->key, '.') ? NULL : spec_key_find(path);
        if (key && key->type == KEY_SECTION && node->kind == NODE_MAPPING)
            spec_find_unknown(ctx, root, node, path);
        if (!key && (node->removed || unknown_is_comment(ctx, node)))
            continue;
        if (key || ctx->errors.count == SPEC_MAX_PROBLEMS) {
            ctx->errors.dropped += !key;
            continue;
        }
        const char *where = *section_path ? spec_arena_printf(ctx->arena, " in '%s'", section_path) : "";
        const char *leave = node->key_pos.source == 1
                                ? spec_arena_printf(ctx->arena, "; --set %s=null leaves it out", spec_show(ctx, path))
                                : "";
        spec_error(ctx, node->key_pos, "unknown key '%s'%s; hint: %s%s", spec_show(ctx, node->key), where,
                   hint_unknown(ctx, section_path, node->key), leave);
    }
}

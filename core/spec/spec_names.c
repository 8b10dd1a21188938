/* spec_names.c: what other trainers call what ztrain has, for the hint at an unknown key and for
 * docs/from-deepspeed.md.
 *
 * Names of Hugging Face's Trainer and Accelerate, LLaMA-Factory, axolotl and torchtune. A row either names the key of
 * the run spec to write instead, which is one that ztrain uses, or says why there is none. */
#include "core/spec/spec_keys.h"

#include <string.h>

#define LORA "all weights are trained, and there are no adapters"
#define QUANTIZED "weights are not quantized"
#define TOKENIZE "data are tokenized beforehand, by scripts/tokenize.py"
#define BEST "`ztrain export RUN --best` takes the best checkpoint"
#define PACKING "first_fit, with data.document_mask: true, packs whole documents that do not see each other"
#define SERVICE "nothing is sent to a service while training; scripts/to_wandb.py RUN sends a run's folder"

const struct spec_foreign_name spec_foreign_names[] = {
    /* length of the run */
    {"num_train_epochs", "train.epochs", NULL},
    {"num_epochs", "train.epochs", NULL},
    {"epochs", "train.epochs", NULL},
    {"max_steps", "train.max_steps", NULL},
    {"max_train_steps", "train.max_steps", NULL},
    {"max_iters", "train.max_steps", NULL},
    {"train_iters", "train.max_steps", NULL},
    {"max_steps_per_epoch", "train.max_steps", "it counts the steps of the whole run"},
    /* batches */
    {"per_device_train_batch_size", "train_micro_batch_size_per_gpu", NULL},
    {"per_gpu_train_batch_size", "train_micro_batch_size_per_gpu", NULL},
    {"micro_batch_size", "train_micro_batch_size_per_gpu", NULL},
    {"batch_size", "train_micro_batch_size_per_gpu", NULL},
    {"global_batch_size", "train_batch_size", NULL},
    {"per_device_eval_batch_size", NULL, "evaluation takes the micro-batch of the training"},
    {"eval_batch_size", NULL, "evaluation takes the micro-batch of the training"},
    {"auto_find_batch_size", NULL, "`ztrain plan --fit` finds the micro-batch that fits"},
    /* learning rate and schedule */
    {"learning_rate", "optimizer.params.lr", NULL},
    {"lr_scheduler_type", "scheduler.type", "linear is Linear, cosine is Cosine, constant is Constant"},
    {"lr_scheduler", "scheduler.type", "linear is Linear, cosine is Cosine, constant is Constant"},
    {"warmup_steps", "scheduler.params.warmup_steps", NULL},
    {"num_warmup_steps", "scheduler.params.warmup_steps", NULL},
    {"warmup_ratio", "scheduler.params.warmup_ratio", "for every schedule with a warm-up"},
    {"cosine_min_lr_ratio", "scheduler.params.min_lr", "it is a learning rate, not a ratio"},
    {"lr_scheduler_kwargs", "scheduler.params", NULL},
    /* optimizer */
    {"optim", "optimizer.type", NULL},
    {"optim_args", "optimizer.params", NULL},
    {"weight_decay", "optimizer.params.weight_decay", NULL},
    {"adam_beta1", "optimizer.params.betas", "it is a list of both: [0.9, 0.999]"},
    {"adam_beta2", "optimizer.params.betas", "it is a list of both: [0.9, 0.999]"},
    {"adam_epsilon", "optimizer.params.eps", NULL},
    {"max_grad_norm", "gradient_clipping", NULL},
    {"clip_grad_norm", "gradient_clipping", NULL},
    {"grad_clip", "gradient_clipping", NULL},
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
    {"evals_per_epoch", "train.eval_interval_steps", "it is a number of steps; each epoch ends with an evaluation"},
    {"eval_strategy", "train.eval_interval_steps", "it is a number of steps; each epoch ends with an evaluation"},
    {"evaluation_strategy", "train.eval_interval_steps", "it is a number of steps; each epoch ends with an evaluation"},
    {"do_train", NULL, "`ztrain --config` trains"},
    {"do_eval", "data.validation", "evaluation runs where there are validation data"},
    {"logging_steps", "steps_per_print", "metrics.jsonl has every step"},
    {"log_every_n_steps", "steps_per_print", "metrics.jsonl has every step"},
    {"logging_dir", "tensorboard.output_path", "metrics.jsonl is in the run's folder"},
    {"logging_first_step", NULL, "the first step is always printed"},
    {"logging_strategy", "steps_per_print", "metrics.jsonl has every step"},
    {"report_to", "tensorboard.enabled", "nothing is sent to a service"},
    {"wandb_project", NULL, SERVICE},
    {"wandb_entity", NULL, SERVICE},
    {"wandb_name", NULL, SERVICE},
    {"wandb_watch", NULL, SERVICE},
    {"wandb_log_model", NULL, SERVICE},
    {"push_to_hub", NULL, "`ztrain export` writes a folder that you can upload"},
    {"hub_model_id", NULL, "`ztrain export` writes a folder that you can upload"},
    {"plot_loss", NULL, "metrics.jsonl in the run's folder has the loss of every step"},
    /* model */
    {"model_name_or_path", "model.pretrained", "a folder, or a name in the local Hugging Face cache"},
    {"base_model", "model.pretrained", "a folder, or a name in the local Hugging Face cache"},
    {"config_name", "model.config", NULL},
    {"model_type", "model.config", "config.json has it"},
    {"torch_dtype", "bf16.enabled", NULL},
    {"dtype", "bf16.enabled", NULL},
    {"tf32", NULL, "products of fp32 values are computed in fp32"},
    {"flash_attention", NULL, "attention never writes its matrix to memory"},
    {"flash_attn", NULL, "attention never writes its matrix to memory"},
    {"xformers_attention", NULL, "attention never writes its matrix to memory"},
    {"attn_implementation", NULL, "attention never writes its matrix to memory"},
    {"gradient_checkpointing", "activation_checkpointing.policy", "true is block"},
    {"enable_activation_checkpointing", "activation_checkpointing.policy", "true is block"},
    {"enable_activation_offloading", "activation_checkpointing.cpu_checkpointing", "with policy block"},
    {"use_liger_kernel", NULL, "all kernels are ztrain's own"},
    {"torch_compile", NULL, "there are no Python modules to compile"},
    {"trust_remote_code", NULL, "no code is read from a model's folder"},
    /* data */
    {"dataset", "data.train", TOKENIZE},
    {"datasets", "data.train", TOKENIZE},
    {"train_file", "data.train", TOKENIZE},
    {"validation_file", "data.validation", TOKENIZE},
    {"val_size", "data.validation", "scripts/tokenize.py --validation splits off a part"},
    {"val_set_size", "data.validation", "scripts/tokenize.py --validation splits off a part"},
    {"cutoff_len", "data.seq_length", NULL},
    {"sequence_len", "data.seq_length", NULL},
    {"max_seq_len", "data.seq_length", NULL},
    {"max_seq_length", "data.seq_length", NULL},
    {"max_length", "data.seq_length", NULL},
    {"model_max_length", "data.seq_length", NULL},
    {"block_size", "data.seq_length", NULL},
    {"sample_packing", "data.packing", PACKING},
    {"neat_packing", "data.packing", PACKING},
    {"pad_to_sequence_len", "data.packing", "false: each document is a sample"},
    {"template", NULL, "scripts/tokenize.py --chat-template renders conversations with the model's template"},
    {"chat_template", NULL, "scripts/tokenize.py --chat-template renders conversations with the model's template"},
    {"train_on_inputs", NULL, "scripts/tokenize.py writes which tokens are learned from"},
    {"tokenizer", "model.tokenizer", TOKENIZE},
    {"tokenizer_name", "model.tokenizer", TOKENIZE},
    {"tokenizer_type", NULL, TOKENIZE},
    {"dataset_dir", NULL, TOKENIZE},
    {"dataset_prepared_path", NULL, TOKENIZE},
    {"eval_dataset", "data.validation", TOKENIZE},
    {"max_samples", "train.max_steps", "it limits the steps, not the samples"},
    {"special_tokens", NULL, TOKENIZE},
    {"preprocessing_num_workers", NULL, TOKENIZE},
    {"overwrite_cache", NULL, TOKENIZE},
    {"dataloader_num_workers", NULL, "a thread reads the next batch ahead"},
    {"group_by_length", NULL, "the seed decides the order of the samples"},
    {"remove_unused_columns", NULL, TOKENIZE},
    /* the run */
    {"seed", "run.seed", NULL},
    {"data_seed", "run.seed", NULL},
    {"device", "train.device", NULL},
    {"use_cpu", "train.device", "cpu"},
    {"ddp_timeout", "comm.timeout_seconds", "of a rank's silence, however long a step takes; 10 suffice as a rule"},
    {"local_rank", NULL, "srun or --local-gpus N starts the ranks"},
    {"deepspeed", NULL, "--deepspeed FILE names the DeepSpeed configuration"},
    {"fsdp", "zero_optimization.stage", "3 shards parameters as FSDP does"},
    {"fsdp_config", "zero_optimization.stage", "3 shards parameters as FSDP does"},
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
    {"adapter", NULL, LORA},
    {"finetuning_type", NULL, LORA},
    {"use_peft", NULL, LORA},
    {"lora_r", NULL, LORA},
    {"lora_rank", NULL, LORA},
    {"lora_alpha", NULL, LORA},
    {"lora_dropout", NULL, LORA},
    {"lora_target", NULL, LORA},
    {"lora_target_modules", NULL, LORA},
    {"lora_target_linear", NULL, LORA},
    {"load_in_8bit", NULL, QUANTIZED},
    {"load_in_4bit", NULL, QUANTIZED},
    {"quantization_bit", NULL, QUANTIZED},
    {"neftune_noise_alpha", NULL, "there is no noise on embeddings"},
};
const int spec_num_foreign_names = COUNT_OF(spec_foreign_names);

const struct spec_foreign_name *spec_foreign_name_find(const char *name)
{
    for (int i = 0; i < spec_num_foreign_names; i++)
        if (strcmp(spec_foreign_names[i].name, name) == 0)
            return &spec_foreign_names[i];
    return NULL;
}

void spec_print_names(FILE *out)
{
    fputs("| their name | in a run spec | |\n|---|---|---|\n", out);
    for (int i = 0; i < spec_num_foreign_names; i++) {
        const struct spec_foreign_name *name = &spec_foreign_names[i];
        const char *tick = name->key ? "`" : "";
        fprintf(out, "| `%s` | %s%s%s | %s |\n", name->name, tick, name->key ? name->key : "-", tick,
                name->note ? name->note : "");
    }
}

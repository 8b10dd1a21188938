/* SPDX-License-Identifier: Apache-2.0 */
/* spec_unknown_key.c: keys that the table does not have, and what to write instead.
 *
 * What Trainer, Accelerate, TRL, LLaMA-Factory, axolotl and torchtune call something has a row, which `ztrain convert`
 * reads, too. Any other is compared with the keys of its section, then with those of other sections, where only a close
 * likeness counts. No hint leads to a key or choice that is refused. */
#include "core/spec/spec_keys.h"

/* What is done with the name, and whether the table in docs/run-spec.md has it. */
#define COPY FOREIGN_COPY, false
#define RULE FOREIGN_RULE, false
#define NOTHING FOREIGN_NOTHING, false
#define MISSING FOREIGN_MISSING, false
#define UNLISTED(use) FOREIGN_##use, true

#define LORA "the adapter is LoRA on the base's own weights"
#define QUANTIZED "weights are not quantized"
#define TOKENIZE "data are tokenized beforehand, by ztrain-tokenize"
#define BEST "`ztrain export RUN --best` takes the best checkpoint"
#define PACKING "first_fit, with data.document_mask: true, packs whole documents that do not see each other"
#define SERVICE "nothing is sent to a service while training; ztrain-wandb RUN sends a run's folder"

const struct spec_foreign_name spec_foreign_names[] = {
    /* length of the run */
    {RULE, "num_train_epochs num_epochs epochs", "train.epochs", NULL},
    {RULE, "max_steps max_train_steps max_iters train_iters", "train.max_steps", NULL},
    {MISSING, "max_steps_per_epoch", "train.max_steps", "it counts the steps of the whole run"},
    /* batches */
    {RULE, "per_device_train_batch_size per_gpu_train_batch_size micro_batch_size batch_size",
     "train_micro_batch_size_per_gpu", NULL},
    {COPY, "global_batch_size", "train_batch_size", NULL},
    {NOTHING, "per_device_eval_batch_size eval_batch_size", NULL, "evaluation takes the micro-batch of the training"},
    {NOTHING, "auto_find_batch_size", NULL, "`ztrain plan --fit` finds the micro-batch that fits"},
    /* learning rate and schedule */
    {COPY, "learning_rate", "optimizer.params.lr", NULL},
    {RULE, "lr_scheduler_type lr_scheduler", "scheduler.type",
     "linear is Linear, cosine is Cosine, constant is Constant"},
    {RULE, "warmup_steps num_warmup_steps", "scheduler.params.warmup_steps", NULL},
    {RULE, "warmup_ratio", "scheduler.params.warmup_ratio", "for every schedule with a warm-up"},
    {RULE, "cosine_min_lr_ratio", "scheduler.params.min_lr", "it is a learning rate, not a ratio"},
    {RULE, "lr_scheduler_kwargs", "scheduler.params", NULL},
    /* optimizer */
    {RULE, "optim", "optimizer.type", NULL},
    {MISSING, "optim_args", "optimizer.params", NULL},
    {COPY, "weight_decay", "optimizer.params.weight_decay", NULL},
    {RULE, "adam_beta1 adam_beta2", "optimizer.params.betas", "it is a list of both: [0.9, 0.999]"},
    {RULE, "adam_epsilon", "optimizer.params.eps", NULL},
    {RULE, "max_grad_norm clip_grad_norm grad_clip", "gradient_clipping", NULL},
    {COPY, "label_smoothing_factor", "train.label_smoothing", NULL},
    /* checkpoints, evaluation, output */
    {RULE, "output_dir", "run.dir", "the run's folder in it is run.name"},
    {RULE, "run_name", "run.name", NULL},
    {NOTHING, "overwrite_output_dir", NULL,
     "a run folder with checkpoints is continued by --resume, and never overwritten"},
    {RULE, "save_steps", "checkpoint.interval_steps", NULL},
    {RULE, "saves_per_epoch", "checkpoint.interval_steps",
     "it is a number of steps; each epoch ends with a checkpoint"},
    {RULE, "save_total_limit", "checkpoint.keep_last", NULL},
    {RULE, "load_best_model_at_end", "checkpoint.keep_best", BEST},
    {RULE, "metric_for_best_model", "checkpoint.metric", "it is eval_loss, accuracy or f1"},
    {RULE, "greater_is_better", "checkpoint.mode", "it is min or max"},
    {COPY, "early_stopping_patience", "train.early_stopping.patience", NULL},
    {COPY, "early_stopping_threshold", "train.early_stopping.min_delta", NULL},
    {RULE, "save_strategy", "checkpoint.interval_steps", "it is a number of steps; each epoch ends with a checkpoint"},
    {NOTHING, "save_only_model", NULL, "checkpoints are whole; `ztrain export` writes the model alone"},
    {NOTHING, "resume_from_checkpoint", NULL, "--resume DIR continues from a checkpoint or a run folder"},
    {RULE, "eval_steps", "train.eval_interval_steps", NULL},
    {RULE, "evals_per_epoch eval_strategy evaluation_strategy", "train.eval_interval_steps",
     "it is a number of steps; each epoch ends with an evaluation"},
    {NOTHING, "do_train", NULL, "`ztrain --config` trains"},
    {NOTHING, "do_eval", "data.validation", "evaluation runs where there are validation data"},
    {RULE, "logging_steps log_every_n_steps", "steps_per_print", "metrics.jsonl has every step"},
    {RULE, "logging_dir", "tensorboard.output_path", "metrics.jsonl is in the run's folder"},
    {NOTHING, "logging_first_step", NULL, "the first step is always printed"},
    {NOTHING, "logging_strategy", "steps_per_print", "metrics.jsonl has every step"},
    {RULE, "report_to", "tensorboard.enabled", "nothing is sent to a service"},
    {NOTHING, "wandb_project wandb_entity wandb_name wandb_watch wandb_log_model", NULL, SERVICE},
    {NOTHING, "push_to_hub hub_model_id", NULL, "`ztrain export` writes a folder that you can upload"},
    {NOTHING, "plot_loss", NULL, "metrics.jsonl in the run's folder has the loss of every step"},
    /* model */
    {RULE, "model_name_or_path base_model", "model.pretrained", "a folder, or a name in the local Hugging Face cache"},
    {RULE, "config_name", "model.config", NULL},
    {NOTHING, "model_type", "model.config", "config.json has it"},
    {RULE, "torch_dtype dtype", "bf16.enabled", NULL},
    {NOTHING, "tf32", NULL, "products of fp32 values are computed in fp32"},
    {NOTHING, "flash_attention flash_attn xformers_attention attn_implementation", NULL,
     "attention never writes its matrix to memory"},
    {RULE, "gradient_checkpointing enable_activation_checkpointing", "activation_checkpointing.policy",
     "true is block"},
    {RULE, "enable_activation_offloading", "activation_checkpointing.cpu_checkpointing", "with policy block"},
    {NOTHING, "use_liger_kernel", NULL, "all kernels are ztrain's own"},
    {NOTHING, "torch_compile", NULL, "there are no Python modules to compile"},
    {NOTHING, "trust_remote_code", NULL, "no code is read from a model's folder"},
    /* data */
    {RULE, "dataset datasets train_file", "data.train", TOKENIZE},
    {RULE, "validation_file", "data.validation", TOKENIZE},
    {RULE, "val_size val_set_size", "data.validation", "ztrain-tokenize --validation splits off a part"},
    {COPY, "cutoff_len sequence_len max_seq_len max_seq_length max_length model_max_length block_size",
     "data.seq_length", NULL},
    {RULE, "sample_packing neat_packing", "data.packing", PACKING},
    {NOTHING, "pad_to_sequence_len", "data.packing", "false: each document is a sample"},
    {RULE, "template chat_template", NULL,
     "ztrain-tokenize --chat-template renders conversations with the model's template"},
    {RULE, "train_on_inputs", NULL, "ztrain-tokenize writes which tokens are learned from"},
    {RULE, "tokenizer tokenizer_name", "model.tokenizer", TOKENIZE},
    {NOTHING, "tokenizer_type dataset_dir dataset_prepared_path", NULL, TOKENIZE},
    {RULE, "eval_dataset", "data.validation", TOKENIZE},
    {RULE, "max_samples", "train.max_steps", "it limits the steps, not the samples"},
    {NOTHING, "special_tokens preprocessing_num_workers overwrite_cache", NULL, TOKENIZE},
    {NOTHING, "dataloader_num_workers", NULL, "a thread reads the next batch ahead"},
    {MISSING, "group_by_length", NULL, "the seed decides the order of the samples"},
    {NOTHING, "remove_unused_columns", NULL, TOKENIZE},
    /* the run */
    {RULE, "seed data_seed", "run.seed", NULL},
    {NOTHING, "device", "train.device", NULL},
    {RULE, "use_cpu", "train.device", "cpu"},
    {NOTHING, "ddp_timeout", "comm.timeout_seconds",
     "of a rank's silence, however long a step takes; 10 suffice as a rule"},
    {NOTHING, "local_rank", NULL, "srun or --local-gpus N starts the ranks"},
    {RULE, "deepspeed", NULL, "--deepspeed FILE names the DeepSpeed configuration"},
    {RULE, "fsdp fsdp_config", "zero_optimization.stage", "3 shards parameters as FSDP does"},
    {NOTHING, "ddp_find_unused_parameters", NULL, "every parameter is used"},
    {RULE, "stage", "zero_optimization.stage",
     "0 to 3; LLaMA-Factory's pt and sft differ in the data alone, dpo, kto and rm are preference.loss or model.task: "
     "reward"},
    {RULE, "rl pref_loss", "preference.loss", "dpo is sigmoid"},
    {RULE, "rl_beta dpo_beta pref_beta orpo_alpha", "preference.beta", NULL},
    {RULE, "dpo_label_smoothing", "preference.label_smoothing", NULL},
    {RULE, "simpo_gamma", "preference.gamma", NULL},
    {RULE, "rpo_alpha pref_ftx cpo_alpha", "preference.rpo_alpha", NULL},
    {RULE, "kto_desirable_weight kto_chosen_weight", "preference.desirable_weight", NULL},
    {RULE, "kto_undesirable_weight kto_rejected_weight", "preference.undesirable_weight", NULL},
    {RULE, "ref_model", "preference.reference", "a folder, or a file of ztrain score"},
    {RULE, "reward_model", "model.task", "reward"},
    {RULE, "pure_bf16", "bf16.bf16_master_weights_and_grads", "with bf16.enabled"},
    {RULE, "gradient_accumulation_dtype", "data_types.grad_accum_dtype", NULL},
    {RULE, "fp32_allreduce", "communication_data_type", "fp32 is the default"},
    {COPY, "zero_stage", "zero_optimization.stage", NULL},
    {COPY, "offload_optimizer_device", "zero_optimization.offload_optimizer.device", NULL},
    {COPY, "offload_param_device", "zero_optimization.offload_param.device", NULL},
    {RULE, "mixed_precision", "bf16.enabled", NULL},
    {NOTHING, "zero3_init_flag", NULL, "weights are initialised slice by slice at every stage"},
    {NOTHING, "zero3_save_16bit_model", NULL, "`ztrain export` makes whole files from any checkpoint"},
    {NOTHING, "num_processes", NULL, "srun or --local-gpus N starts the ranks"},
    {COPY, "expert_parallel_size expert_model_parallel_size ep_size", "moe.expert_parallel_size", NULL},
    /* adapters */
    {RULE, "adapter finetuning_type use_peft", "peft", "{} is PEFT's default LoRA"},
    {RULE, "lora_r lora_rank", "peft.r", NULL},
    {RULE, "lora_alpha", "peft.lora_alpha", NULL},
    {RULE, "lora_dropout", "peft.lora_dropout", NULL},
    {RULE, "lora_target lora_target_modules", "peft.target_modules", "all is all-linear"},
    {RULE, "lora_target_linear", "peft.target_modules", "all-linear"},
    {RULE, "lora_modules_to_save additional_target", "peft.modules_to_save", NULL},
    {RULE, "use_rslora peft_use_rslora", "peft.use_rslora", NULL},
    {RULE, "lora_model_dir adapter_name_or_path", "model.adapter", NULL},
    {RULE, "load_in_4bit quantization_bit", "model.quantization_config.load_in_4bit", "true; the 4 bits are nf4"},
    {RULE, "bnb_4bit_quant_type quantization_type", "model.quantization_config.bnb_4bit_quant_type", "nf4"},
    {RULE, "use_bnb_nested_quant double_quantization", "model.quantization_config.bnb_4bit_use_double_quant", NULL},
    /* features that ztrain lacks */
    {RULE, "load_in_8bit", NULL, "a frozen base has 16 or 4 bits: model.quantization_config"},
    {MISSING, "neftune_noise_alpha", NULL, "there is no noise on embeddings"},
    {UNLISTED(RULE), "base_model_config", "model.config", NULL},
    {UNLISTED(RULE), "tokenizer_config tokenizer_name_or_path", "model.tokenizer", NULL},
    {UNLISTED(RULE), "excess_length_strategy", "data.seq_length", "longer documents are cut"},
    {UNLISTED(RULE), "packing packing_strategy padding_free batch_flattening", "data.packing", PACKING},
    {UNLISTED(RULE), "train_from_scratch", "model.config", NULL},
    {UNLISTED(RULE), "use_muon", "optimizer.type", "Muon"},
    {UNLISTED(RULE), "disable_gradient_checkpointing activation_offloading", "activation_checkpointing.policy", NULL},
    {UNLISTED(RULE), "disable_shuffling", "data.shuffle", NULL},
    {UNLISTED(RULE), "train_sampling_strategy", "data.shuffle", NULL},
    {UNLISTED(COPY), "early_stopping_steps", "train.early_stopping.patience", NULL},
    {UNLISTED(COPY), "use_tensorboard", "tensorboard.enabled", NULL},
    {UNLISTED(RULE), "float16", "bf16.enabled", NULL},
    {UNLISTED(RULE), "pretraining_dataset test_datasets dataset_name train_split_name", "data.train", TOKENIZE},
    {UNLISTED(RULE),
     "dataset_text_field completion_only_loss assistant_only_loss dataset_train_split dataset_test_split "
     "dataset_config dataset_config_name validation_split_percentage test_split_size train_on_prompt mask_history "
     "chat_template_path chat_template_jinja default_system",
     NULL, TOKENIZE},
    /* features that ztrain lacks, and what happens instead */
    {UNLISTED(MISSING), "process_reward_model", NULL,
     "model.task: reward trains a reward model of whole answers (docs/preferences.md)"},
    {UNLISTED(MISSING),
     "relora peft use_dora peft_use_dora pissa_init peft_layer_replication "
     "peft_trainable_token_indices",
     NULL, LORA},
    {UNLISTED(RULE), "peft_init_lora_weights", NULL, LORA},
    {UNLISTED(MISSING), "rank", "peft.r", NULL},
    {UNLISTED(RULE), "lora_target_parameters", "peft.target_parameters", NULL},
    {UNLISTED(RULE), "lora_exclude_modules", "peft.exclude_modules", NULL},
    {UNLISTED(RULE), "lora_rank_pattern", "peft.rank_pattern", NULL},
    {UNLISTED(RULE), "lora_alpha_pattern", "peft.alpha_pattern", NULL},
    {UNLISTED(RULE), "peft_layers_to_transform", "peft.layers_to_transform", NULL},
    {UNLISTED(RULE), "peft_layers_pattern", "peft.layers_pattern", NULL},
    {UNLISTED(RULE), "peft_ensure_weight_tying", "peft.ensure_weight_tying", NULL},
    {UNLISTED(MISSING), "gptq qat quantization model_quantization_config fp8 use_onebitllms quantize_moe_experts", NULL,
     QUANTIZED},
    {UNLISTED(MISSING), "use_galore use_apollo use_badam use_adam_mini use_llama_pro lisa_n_layers mixture_of_depths",
     NULL, "the optimizer updates all weights in every step"},
    {UNLISTED(MISSING), "unfrozen_parameters freeze_trainable_layers freeze_trainable_modules", NULL,
     "weights are frozen by peft alone"},
    {UNLISTED(MISSING), "use_dft_loss use_asft_loss use_eaft_loss use_eaft", NULL, "the loss is the cross-entropy"},
    {UNLISTED(MISSING), "embedding_lr embedding_lr_scale lr_groups loraplus_lr_ratio", NULL,
     "all weights have one learning rate"},
    {UNLISTED(MISSING), "cosine_constant_lr_ratio lr_quadratic_warmup lr_div_factor jagged_restart_steps eta_min", NULL,
     "the schedule has no such part"},
    {UNLISTED(MISSING), "curriculum_sampling sample_packing_sequentially", NULL,
     "the seed decides the order of the samples"},
    {UNLISTED(MISSING), "hyper_parallel_cp_size context_parallel_size sequence_parallel_degree cp_size", NULL,
     "there is no sequence parallelism; activation_checkpointing makes room for long sequences"},
    {UNLISTED(COPY), "output_router_logits", "model.output_router_logits", NULL},
    {UNLISTED(COPY), "router_aux_loss_coef moe_aux_loss_coef", "model.router_aux_loss_coef", NULL},
    {UNLISTED(MISSING), "tensor_parallel_size pipeline_parallel_size", NULL,
     "weights are split by zero_optimization.stage: 3"},
    {UNLISTED(MISSING),
     "tokens added_tokens_overrides add_tokens add_special_tokens new_special_tokens_config resize_vocab "
     "resize_token_embeddings_to_32x",
     NULL, "the vocabulary is that of the model folder; add tokens there first"},
    {UNLISTED(MISSING), "rope_scaling overrides_of_model_config config_overrides model_init_kwargs", NULL,
     "config.json in the model folder decides"},
    {UNLISTED(MISSING), "loss_watchdog_threshold", NULL,
     "train.spike_factor reports a loss above a multiple of its mean"},
    {UNLISTED(MISSING), "max_train_samples max_eval_samples dataset_shard_num", NULL, "all of the data are read"},
    {UNLISTED(MISSING), "mix_strategy interleave_probs", NULL, "data.train takes weights: docs/mixtures.md"},
    {UNLISTED(MISSING), "use_pose", NULL, "positions are those of the tokens"},
    {UNLISTED(NOTHING), "full_determinism", NULL, "every run is deterministic"},
    {UNLISTED(MISSING), "model_config reinit_weights shrink_embeddings fix_untrained_tokens scaling_softmax", NULL,
     "weights and config.json are those of the model folder"},
    {UNLISTED(MISSING), "num_labels cls_model_config", "model.task",
     "sequence_classification trains a classifier: docs/classification.md"},
    {UNLISTED(MISSING), "trl ebft diffusion vllm use_mca use_megatron_bridge use_hyper_parallel use_kt", NULL,
     "the model is fine-tuned on the text, by ztrain alone"},
    {UNLISTED(MISSING), "selective_checkpointing layer_offloading", NULL,
     "activation_checkpointing.policy names what is computed again"},
    /* no meaning here; a star at the end of a name stands for all that begin so and have no row before */
    {UNLISTED(NOTHING),
     "per_gpu_eval_batch_size eval_* prediction_loss_only include_* batch_eval_metrics do_* label_names past_index "
     "jit_mode_eval use_ipex half_precision_backend fp16_* bf16_full_eval use_mps_device no_cuda dataloader_* "
     "length_column_name accelerator_config parallelism_config average_tokens_across_devices torch_* use_cache debug "
     "skip_memory_metrics log_level_replica log_on_each_node logging_* disable_tqdm project trackio_* "
     "use_legacy_prediction_loop ray_* split_batches mp_parameters sharded_ddp save_safetensors save_on_each_node "
     "save_first_step enable_jit_checkpoint ignore_data_skip auto_find_micro_batch "
     "restore_callback_states_from_checkpoint hub_* push_to_hub_* fsdp_* ddp ddp_* xpu_backend torchdynamo liger_* "
     "gradient_checkpointing_kwargs optim_target_modules dispatch_batches tpu_* dataset_* shuffle_* streaming "
     "streaming_* ignore_bias_buffers pad_token eos_token truncation_mode pad_to_multiple_of loss_type model_revision "
     "revision_of_model cache_dir use_fast_tokenizer token use_auth_token low_cpu_mem_usage keep_linebreaks bnb_* "
     "lora_* loraplus_* loftq_* peft_* oft_* pissa_* create_new_adapter merge_lora merge_method quantization_* gptq_* "
     "model_quantization_config_kwargs fp8_* upcast_* print_param_status relora_* lisa_* galore_* apollo_* badam_* "
     "qgalore_* dion_* came_* jagged_restart_* eaft_* asft_alpha pref_* ppo_* dpo_* kto_* simpo_* "
     "center_rewards_coefficient ref_model_* reward_model_* strict plugins trainer_cls tokenizer_* processor_* "
     "skip_prepare_dataset eot_tokens is_* preprocess_* push_dataset_to_hub hf_* ms_hub_token om_hub_token "
     "auto_resume_from_checkpoints sample_packing_* total_num_tokens total_supervised_tokens max_packed_sequence_len "
     "pretrain_* pretraining_sample_concatenation multipack_real_batches min_sample_len pose_* flash_* sdp_attention "
     "sdpa_varlen flex_* eager_attention sage_attention s2_attention fused_attn_kernel large_head_attention "
     "ring_attn_func heads_k_stride unsloth_* enable_liger_kernel cut_cross_entropy chunked_* tiled_mlp tiled_mlp_* "
     "use_kernels use_scattermoe use_sonicmoe experts_implementation deepcompile fp32_norms fp32_norm_classes "
     "device_map max_memory gpu_memory_limit world_size gc_* dp_shard_size dp_replicate_size loss_watchdog_patience "
     "profiler_* profile_modules enable_torch_profiler use_wandb wandb_* use_mlflow mlflow_* use_comet comet_* "
     "use_trackio use_swanlab swanlab_* use_ray use_otel_metrics otel_* gradio_* float32 buffer_size "
     "ignore_pad_token_for_loss tool_format enable_thinking preserve_thinking tokenized_path data_shared_file_system "
     "media_dir shift_attn use_unsloth use_unsloth_gc use_reentrant_gc use_kv_cache infer_* offload_folder "
     "split_special_tokens compute_accuracy predict_with_generate generation_* generate_samples num_generation_samples "
     "freeze_* image_* video_* audio_* use_audio_in_video crop_to_patches adapter_folder sortish_sampler "
     "vllm_* sglang_* kt_* export_*",
     NULL, "it has no meaning here"},
};
const int spec_num_foreign_names = COUNT_OF(spec_foreign_names);

const struct spec_foreign_name *spec_foreign_name_find(const char *name)
{
    for (int i = 0; i < spec_num_foreign_names; i++)
        if (spec_has_word(spec_foreign_names[i].names, name)) return &spec_foreign_names[i];
    return NULL;
}

/* ---- hints --------------------------------------------------------------- */

static bool unknown_is_unavailable(const struct spec_key *key)
{
    return key->verdict == VERDICT_REFUSED || key->verdict == VERDICT_LATER;
}

/* "under 'data'", "at top level": the sections with a key of this name. NULL: none, or too many. `used`: by ztrain. */
static const char *sections_with(struct spec_context *ctx, const char *name, bool used)
{
    const char *found = NULL;
    int count = 0;
    for (const struct spec_key *key = spec_keys; key->path; key++) {
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

/* The beginning of a key (seq_len), its end (batch_size), or with words before it. One word: same section only. */
static bool unknown_is_part(const char *name, const char *key, bool same_section)
{
    if (!same_section && !strchr(name, '_')) return false;
    size_t length = strlen(name);
    return (length >= FEWEST_LETTERS && strncmp(name, key, length) == 0) || unknown_key_ends_with(key, name) ||
           (same_section && unknown_key_ends_with(name, key));
}

static const char *unknown_suggestion(struct spec_context *ctx, const char *name)
{
    const struct spec_foreign_name *foreign = spec_foreign_name_find(name);
    if (foreign && foreign->unlisted && foreign->use == FOREIGN_NOTHING)
        return NULL; /* a name of the run spec may be meant */
    if (!foreign || !foreign->key) return foreign ? foreign->note : NULL;
    return foreign->note ? spec_arena_printf(ctx->arena, "write %s (%s)", foreign->key, foreign->note)
                         : spec_arena_printf(ctx->arena, "write %s", foreign->key);
}

/* A single word, such as debug, may mean anything: it leads to no key of another section that has no effect here. */
static const char *hint_unknown(struct spec_context *ctx, const char *section, const char *name)
{
    if (!strcmp(section, "peft") && spec_key_find(spec_arena_printf(ctx->arena, "peft.lora_%s", name)))
        return spec_arena_printf(ctx->arena, "did you mean 'lora_%s'?", name);
    const char *foreign = unknown_suggestion(ctx, name);
    if (foreign) return foreign;
    const char *places = sections_with(ctx, name, true);
    if (!places && strchr(name, '_')) places = sections_with(ctx, name, false);
    if (places) return spec_arena_printf(ctx->arena, "this key belongs %s", places);

    const struct spec_key *best = NULL;
    int best_distance = edit_distance_limit(name) + 1;
    for (int elsewhere = 0; elsewhere < 2 && !best; elsewhere++) {
        for (const struct spec_key *key = spec_keys; key->path; key++) {
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

void spec_find_unknown(struct spec_context *ctx, const struct spec_node *root, const struct spec_node *section,
                       const char *section_path)
{
    if (spec_is_unknown_territory(root, section_path)) return;
    for (const struct spec_node *node = section->first; node; node = node->next) {
        const char *path = *section_path ? spec_arena_printf(ctx->arena, "%s.%s", section_path, node->key) : node->key;
        const struct spec_key *key = strchr(node->key, '.') ? NULL : spec_key_find(path);
        if (key && key->type == KEY_SECTION && node->kind == NODE_MAPPING) spec_find_unknown(ctx, root, node, path);
        /* JSON has no comments, so that people write them as keys of their DeepSpeed file: "_comment", "//" */
        const bool comment = !key && node->key_pos.source == 1 && strchr("_/#", *node->key);
        if (comment && !node->removed)
            spec_notice(ctx, node->key_pos, "'%s' is taken as a comment", spec_show(ctx, node->key));
        if (comment || (!key && node->removed)) continue;
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

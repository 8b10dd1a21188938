/* SPDX-License-Identifier: Apache-2.0 */
/* spec_keys.c: the key table of the run spec, in the order in which it is documented and printed.
 *
 * DeepSpeed's keys are those of DeepSpeed 0.19. A value that asks for what ztrain does anyway is always accepted. */
#include "core/spec/spec_keys.h"

#include <strings.h>

#define FIELD(member) .offset = offsetof(struct spec_full, member), .size = sizeof(((struct spec_full *)0)->member)
#define S(name) (1u << SCHEDULE_##name)
#define O(name) (1u << OPTIMIZER_##name)
#define ADAMS (O(ADAMW) | O(ADAM))
#define OWN_SCHEDULES (S(CONSTANT) | S(LINEAR) | S(COSINE) | S(WSD))
#define WARMUP_SCHEDULES (S(WARMUP_LR) | S(WARMUP_DECAY_LR) | S(WARMUP_COSINE_LR))
#define ALL_WARMUPS (OWN_SCHEDULES | WARMUP_SCHEDULES)

#define SECTION(path_, help_) .path = path_, .type = KEY_SECTION, .help = help_
#define ALIAS(path_, target) .path = path_, .type = KEY_ALIAS, .fallback = target, .help = "old name of " target
#define ROW(verdict_, path_, type_, fallback_, help_) \
    .path = path_, .type = KEY_##type_, .verdict = VERDICT_##verdict_, .fallback = fallback_, .help = help_
#define USED(path_, type_, member, fallback_, resume_, help_) \
    ROW(USED, path_, type_, fallback_, help_), FIELD(member), .resume = RESUME_##resume_
/* a field that is called as its key */
#define SAME(path_, type_, ...) USED(#path_, type_, spec.path_, __VA_ARGS__)
/* parameters of these schedules or optimizers */
#define SCHEDULE(types, name, type_, member, fallback_, help_) \
    USED("scheduler.params." name, type_, spec.scheduler.member, fallback_, NOTICE, help_), .schedules = types
#define OPTIMIZER(types, name, type_, member, fallback_, help_) \
    USED("optimizer.params." name, type_, spec.optimizer.member, fallback_, NOTICE, help_), .optimizers = types
#define ZERO "zero_optimization."
#define BNB "model.quantization_config."
#define OFFLOAD_OPTIMIZER(name, type_, member, ...) \
    USED(ZERO "offload_optimizer." name, type_, spec.zero.offload_optimizer.member, __VA_ARGS__)
#define OFFLOAD_PARAM(name, type_, member, ...) \
    USED(ZERO "offload_param." name, type_, spec.zero.offload_param.member, __VA_ARGS__)
/* of peft */
#define PEFT(name, type_, member, ...) USED("peft." name, type_, spec.adapter.member, __VA_ARGS__)
#define NO_TYPE(name)                                                            \
    {                                                                            \
        name, 0, VERDICT_REFUSED, "the adapters are LoRA; hint: peft_type: LORA" \
    }
#define NO_INIT "A starts uniform and B as zeros; hint: remove the key"
#define NO_VARIANT "of LoRA there are plain LoRA and rsLoRA; hint: remove it"
/* keys without a field */
#define LATER(...) ROW(LATER, __VA_ARGS__)
#define NOTICE(...) ROW(NOTICE, __VA_ARGS__)
#define REFUSED(...) ROW(REFUSED, __VA_ARGS__)

/* what follows a type in parentheses: INT(least, most), CHOICE(names) */
#define KEY_INT(least, most) KEY_INT, .min = least, .max = most
#define KEY_REAL(least, most) KEY_REAL, .min = least, .max = most
#define KEY_REAL_PAIR(least, most) KEY_REAL_PAIR, .min = least, .max = most
#define KEY_ABOVE(least, most) KEY_REAL(least, most), .flags = KEY_ABOVE_MIN
#define KEY_WHOLE_ABOVE(least, most) KEY_REAL(least, most), .flags = KEY_ABOVE_MIN | KEY_WHOLE
#define KEY_PLACE KEY_STRING, .flags = KEY_PATH
#define KEY_PLACES KEY_STRING_LIST, .flags = KEY_PATH
/* of a type in parentheses: AUTO(INT(1, 5)) */
#define KEY_AUTO(type_) KEY_##type_, .flags = KEY_AUTO
#define KEY_ANY_CASE(type_) KEY_##type_, .flags = KEY_ANY_CASE
#define KEY_OR_NULL(type_) KEY_##type_, .flags = KEY_NULL
#define KEY_CHOICE(...) KEY_ONE_OF(((const struct spec_choice[]){__VA_ARGS__, {0}}))
#define KEY_ONE_OF(list) KEY_CHOICE, .choices = list

#define NO_SCALE "bf16 has the range of fp32 and needs no loss scale"
#define MAX_COUNT 1e15
#define MAX_BATCH 1e9
#define MAX_VIRTUAL_RANKS 4096
#define MAX_STAIRS 1e9

/* clang-format off */
#define NAME(name, value) {name, value, VERDICT_USED, NULL}
#define OTHER_NAME(name, meant) {name, 0, VERDICT_ALIAS, meant}
/* clang-format on */
#define OFFLOAD CHOICE(NAME("none", OFFLOAD_NONE), NAME("cpu", OFFLOAD_CPU), NAME("nvme", OFFLOAD_NVME))
#define METRIC                                                                                                      \
    CHOICE(NAME("eval_loss", EVAL_METRIC_LOSS), NAME("accuracy", EVAL_METRIC_ACCURACY), NAME("f1", EVAL_METRIC_F1), \
           NAME("rewards/accuracies", EVAL_METRIC_REWARDS),                                                         \
           OTHER_NAME("eval_rewards/accuracies", "rewards/accuracies"), OTHER_NAME("loss", "eval_loss"),            \
           OTHER_NAME("eval_accuracy", "accuracy"), OTHER_NAME("eval_f1", "f1"))
#define SWITCH CHOICE(NAME("auto", SPEC_AUTO), NAME("true", SPEC_ON), NAME("false", SPEC_OFF))

#define RECOMPUTE_CHOICE(name, word) {word, RECOMPUTE_##name, VERDICT_USED, NULL},
static const struct spec_choice recompute_choices[] = {
    RECOMPUTE_LIST(RECOMPUTE_CHOICE){0},
};

#define PREFERENCE_CHOICE(name, word) {word, PREFERENCE_##name, VERDICT_USED, NULL},
static const struct spec_choice preference_choices[] = {
    PREFERENCE_LOSS_LIST(PREFERENCE_CHOICE) OTHER_NAME("dpo", "sigmoid"),
    {0},
};

/* Lower case is accepted as well, as in DeepSpeed. Adam becomes AdamW unless adam_w_mode is false. */
static const struct spec_choice optimizer_choices[] = {
    NAME("AdamW", OPTIMIZER_ADAMW),
    NAME("Adam", OPTIMIZER_ADAM),
    NAME("Lion", OPTIMIZER_LION),
    NAME("SGD", OPTIMIZER_SGD),
    NAME("Muon", OPTIMIZER_MUON),
    NAME("AdamW8bit", OPTIMIZER_ADAMW8BIT),
    OTHER_NAME("FusedAdam", "AdamW"),
    OTHER_NAME("DeepSpeedCPUAdam", "AdamW"),
    OTHER_NAME("adamw_torch", "AdamW"),
    OTHER_NAME("adamw_torch_fused", "AdamW"),
    OTHER_NAME("adamw_hf", "AdamW"),
    OTHER_NAME("paged_adamw", "AdamW"),
    OTHER_NAME("paged_adamw_32bit", "AdamW"),
    OTHER_NAME("adamw_8bit", "AdamW8bit"),
    OTHER_NAME("adamw_bnb_8bit", "AdamW8bit"),
    OTHER_NAME("paged_adamw_8bit", "AdamW8bit"),
    OTHER_NAME("adamw_torch_8bit", "AdamW8bit"),
    OTHER_NAME("ao_adamw_8bit", "AdamW8bit"),
    {"Adagrad", 0, VERDICT_LATER, NULL},
    {"Lamb", 0, VERDICT_REFUSED, "layer-wise scaling needs whole tensors, and no rank has them; hint: use AdamW"},
    {"FusedLamb", 0, VERDICT_REFUSED, "layer-wise scaling needs whole tensors, and no rank has them; hint: use AdamW"},
    {"OneBitAdam", 0, VERDICT_REFUSED, "gradients are reduced exactly; hint: use AdamW"},
    {"ZeroOneAdam", 0, VERDICT_REFUSED, "gradients are reduced exactly; hint: use AdamW"},
    {"OneBitLamb", 0, VERDICT_REFUSED, "gradients are reduced exactly; hint: use AdamW"},
    {0}};

#define SCHEDULE_CHOICE(name, word) {word, SCHEDULE_##name, VERDICT_USED, NULL},
static const struct spec_choice scheduler_choices[] = {
    SCHEDULE_LIST(SCHEDULE_CHOICE){0},
};

const struct spec_key spec_keys[] = {
    /* ---- ztrain's -------------------------------------------------------- */
    {SECTION("run", "the run and its folder")},
    {SAME(run.name, STRING, NULL, SILENT,
          "the run's folder is run.dir/run.name; default: the spec's file name without .yaml")},
    {SAME(run.dir, PLACE, "runs", SILENT, "the folder in which each run has its own folder")},
    {SAME(run.seed, INT(0, 0x1p63), "1234", ERROR, "seed of the initial weights and of the order of the samples")},

    {SECTION("model", "the model to train; exactly one of pretrained and config must be set")},
    {SAME(model.pretrained, PLACE, NULL, CONTENTS,
          "the Hugging Face folder (config.json and safetensors) whose weights the training starts from; or the name "
          "of a model in the local Hugging Face cache, such as Qwen/Qwen2.5-0.5B (nothing is downloaded)")},
    {USED("model.config", MODEL_CONFIG, spec.model.config_path, NULL, CONTENTS,
          "a config.json, a folder that holds one, or its keys as a mapping; the initial weights are random"),
     .flags = KEY_PATH},
    {SAME(model.ignore_tensors, STRING_LIST, NULL, SILENT,
          "tensors in the files of model.pretrained to leave out: patterns of names, with * and ? as in a shell, "
          "[\"v_head.*\", \"*.k_scale\"]; the start prints what they leave out")},
    {SAME(model.tokenizer, PLACE, NULL, NOTICE,
          "the folder of the model's tokenizer, or a name in the local Hugging Face cache; its files go into each "
          "checkpoint and export, where `ztrain sample --prompt` reads them; default: the folder of model.pretrained, "
          "or of model.config if that names one")},
    {SAME(model.task,
          CHOICE(NAME("causal_lm", TASK_CAUSAL_LM), NAME("sequence_classification", TASK_SEQUENCE_CLASSIFICATION),
                 NAME("reward", TASK_REWARD)),
          "causal_lm", ERROR,
          "causal_lm: predict the next token; reward: give the chosen answer of each pair a higher reward than the "
          "rejected one (docs/preferences.md); sequence_classification: predict the label of each document; the head "
          "is that of transformers' …ForSequenceClassification, the labels come from ztrain-tokenize --label, and "
          "data.packing must be false")},
    {SAME(model.num_labels, INT(2, 1 << 20), NULL, ERROR,
          "the number of labels in sequence_classification; default: that of the model folder if it is a classifier, "
          "else that of the training data")},
    {SAME(model.dropout, REAL(0, 1), NULL, NOTICE,
          "the rate of every dropout that the model has in training; GPT-2 has it on embeddings, attention weights and "
          "residual branches, Phi-3 on the latter two, the others on attention weights; default: the rates in "
          "config.json (embd_pdrop, attn_pdrop, resid_pdrop; attention_dropout), 0 if it has none; 0: no dropout")},
    {SAME(
        model.train_pad_token, SWITCH, "auto", ERROR,
        "true: the embedding of config.json's pad_token_id is trained like the others; false: it gets no gradient from "
        "the input, as in transformers (a tied head still trains it); auto: false, or as the resumed run began")},
    {SAME(model.output_router_logits, SWITCH, "auto", NOTICE,
          "true: router_aux_loss_coef times the auxiliary loss of a mixture of experts is a part of what is minimized, "
          "as in transformers; auto: as config.json says")},
    {SAME(model.router_aux_loss_coef, REAL(0, 1e6), NULL, NOTICE,
          "the factor of the auxiliary loss, which keeps the experts' loads even; default: as config.json says")},
    {SAME(model.router_z_loss_coef, REAL(0, 1e6), "0", NOTICE,
          "the factor of the mean square of log(sum of exp(logits)) of the routers, which is a part of what is "
          "minimized")},
    {SAME(model.adapter, PLACE, NULL, NOTICE,
          "a folder with a PEFT adapter (adapter_config.json, adapter_model.safetensors) to start from; its config "
          "gives peft, which must not say otherwise")},

    {SECTION(
        "model.quantization_config",
        "the matrices of an adapter's base in 4 bits (QLoRA), with the names of transformers' BitsAndBytesConfig")},
    {USED(BNB "load_in_4bit", BOOL, spec.model.load_in_4bit, "false", ERROR,
          "quantizes the matrices of linear layers when they are read, to the bytes of bitsandbytes; needs peft")},
    {USED(BNB "bnb_4bit_quant_type",
          CHOICE(NAME("nf4", QUANTIZATION_NF4), {"fp4", 0, VERDICT_REFUSED, "4 bits are NF4; hint: nf4"}),
          spec.model.quantization.method, "nf4", ERROR,
          "the data type of 4 bits (fp4, transformers' default, is refused)")},
    {USED(BNB "bnb_4bit_use_double_quant", BOOL, spec.model.quantization.double_quant, "false", ERROR,
          "quantizes the scales too, to 8 bits")},
    {USED(BNB "bnb_4bit_compute_dtype",
          CHOICE(NAME("auto", DTYPE_COUNT), NAME("bfloat16", DTYPE_BF16), NAME("float16", DTYPE_F16),
                 NAME("float32", DTYPE_F32), OTHER_NAME("bf16", "bfloat16"), OTHER_NAME("fp16", "float16"),
                 OTHER_NAME("fp32", "float32")),
          spec.model.quantization.compute_dtype, "auto", ERROR,
          "the type in which the run computes, as bf16 and fp16 set it; another one is refused")},
    {USED(BNB "llm_int8_skip_modules", STRING_LIST, spec.model.quantization.skip, NULL, ERROR,
          "modules that are not quantized: how their names begin or end; default: the head")},
    {REFUSED(BNB "load_in_8bit", BOOL, "false", "there is no LLM.int8(); hint: load_in_4bit")},
    {NOTICE(BNB "bnb_4bit_quant_storage", ANY, "uint8", "codes are bytes")},
    {NOTICE(BNB "quant_method", ANY, "bitsandbytes", "load_in_4bit says it")},
    {NOTICE(BNB "llm_int8_threshold", ANY, "6.0", "it concerns 8 bits")},
    {NOTICE(BNB "llm_int8_has_fp16_weight", ANY, "false", "it concerns 8 bits")},
    {NOTICE(BNB "llm_int8_enable_fp32_cpu_offload", ANY, "false", "it concerns 8 bits")},

    {SECTION("peft", "an adapter (LoRA) on a frozen base, with PEFT's names and defaults; {}: all defaults; a list: "
                     "several adapters, each with a name")},
    {USED("peft.peft_type",
          CHOICE(NAME("LORA", 0), NO_TYPE("ADALORA"), NO_TYPE("BOFT"), NO_TYPE("IA3"), NO_TYPE("LOHA"), NO_TYPE("LOKR"),
                 NO_TYPE("LN_TUNING"), NO_TYPE("OFT"), NO_TYPE("PREFIX_TUNING"), NO_TYPE("PROMPT_TUNING"),
                 NO_TYPE("P_TUNING"), NO_TYPE("VERA"), NO_TYPE("XLORA")),
          peft_type, "LORA", ERROR,
          "each matrix W that is a target gets two small ones, and computes W x + scale B A x; only A and B are "
          "trained"),
     .flags = KEY_ANY_CASE},
    {PEFT("r", INT(1, 1 << 16), r, "8", ERROR, "the rank: rows of A, columns of B")},
    {PEFT("lora_alpha", WHOLE_ABOVE(0, MAX_COUNT), lora_alpha, "8", ERROR,
          "the scale of what A and B add is lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora")},
    {PEFT("lora_dropout", REAL(0, 1), lora_dropout, "0.0", NOTICE, "dropout of the input of A, in training")},
    {PEFT("use_rslora", BOOL, use_rslora, "false", ERROR, "rank-stabilized LoRA: the scale is lora_alpha / sqrt(r)")},
    {PEFT("target_modules", MODULES, target_modules, NULL, ERROR,
          "the matrices that get A and B: a list of names, each a module's name or its end ([q_proj, v_proj]); or a "
          "regular expression that matches whole names; or all-linear: all but the head; default: those that PEFT has "
          "for the model's family (q_proj and v_proj; c_attn of GPT-2; query and value of BERT)")},
    {PEFT("target_parameters", STRING_LIST, target_parameters, NULL, ERROR,
          "parameters of a model with experts that get A and B: a list of names, or of their ends; "
          "[experts.gate_up_proj, experts.down_proj]: each expert has an A and a B of its own; gate.weight is the "
          "router (router.weight of Granite and gpt-oss)")},
    {PEFT("exclude_modules", MODULES, exclude_modules, NULL, ERROR,
          "modules that get none: a list of names, or a regular expression")},
    {PEFT("modules_to_save", STRING_LIST, modules_to_save, NULL, ERROR,
          "modules that are trained as a whole, with weight and bias: all whose name ends like this; the head of a "
          "classifier is one in any case")},
    {PEFT("ensure_weight_tying", BOOL, ensure_weight_tying, "false", ERROR,
          "an embedding that is also the head (tie_word_embeddings) stays one matrix in modules_to_save")},
    {PEFT("rank_pattern", PATTERNS, rank_pattern, NULL, ERROR,
          "other ranks: {v_proj: 16}; a key is a regular expression for a module's name or what follows a dot in it, "
          "and the first that matches counts")},
    {PEFT("alpha_pattern", PATTERNS, alpha_pattern, NULL, ERROR,
          "lora_alpha of modules that a name or expression matches")},
    {PEFT("layers_to_transform", BLOCKS, layers_to_transform, NULL, ERROR,
          "the blocks that get A and B, one number or a list; needs a list of target_modules or none; unset: all")},
    {PEFT("layers_pattern", STRING_LIST, layers_pattern, NULL, ERROR,
          "the name before a block's number in names of modules (layers, h), for layers_to_transform; unset: any")},
    {PEFT("base_dtype",
          CHOICE(NAME("auto", DTYPE_COUNT), NAME("bf16", DTYPE_BF16), NAME("fp16", DTYPE_F16), NAME("fp32", DTYPE_F32),
                 OTHER_NAME("bfloat16", "bf16"), OTHER_NAME("float16", "fp16"), OTHER_NAME("float32", "fp32")),
          base_dtype, "auto", ERROR,
          "the type in which the frozen weights are kept; auto: the type that the run computes in; not a key of PEFT")},
    {USED("peft.task_type",
          CHOICE(NAME("auto", PEFT_TASK_AUTO), NAME("CAUSAL_LM", TASK_CAUSAL_LM),
                 NAME("SEQ_CLS", TASK_SEQUENCE_CLASSIFICATION)),
          peft_task, "auto", SILENT, "as model.task says: CAUSAL_LM or SEQ_CLS")},
    {REFUSED("peft.bias", STRING, "none",
             "the base's biases stay frozen; hint: bias: none, and modules_to_save trains whole modules")},
    {REFUSED("peft.init_lora_weights", ANY, "true", NO_INIT)},
    {REFUSED("peft.use_dora", BOOL, "false", "there is no DoRA; hint: remove it")},
    {REFUSED("peft.lora_bias", BOOL, "false", "B has no bias; hint: remove it")},
    {REFUSED("peft.trainable_token_indices", ANY, NULL,
             "single rows are not trained; hint: name the embedding in modules_to_save")},
    {REFUSED("peft.layer_replication", ANY, NULL, "blocks are not repeated; hint: remove it")},
    {REFUSED("peft.megatron_config", ANY, NULL, "there are no Megatron layers; hint: remove it")},
    {REFUSED("peft.loftq_config", ANY, "{}", NO_INIT)},
    {REFUSED("peft.eva_config", ANY, NULL, NO_INIT)},
    {REFUSED("peft.corda_config", ANY, NULL, NO_INIT)},
    {REFUSED("peft.lora_ga_config", ANY, NULL, NO_INIT)},
    {REFUSED("peft.velora_config", ANY, NULL, NO_VARIANT)},
    {REFUSED("peft.alora_invocation_tokens", ANY, NULL, NO_VARIANT)},
    {REFUSED("peft.use_qalora", BOOL, "false", NO_VARIANT)},
    {REFUSED("peft.monteclora_config", ANY, NULL, NO_VARIANT)},
    {REFUSED("peft.use_bdlora", ANY, NULL, NO_VARIANT)},
    {REFUSED("peft.arrow_config", ANY, NULL, NO_VARIANT)},
    {REFUSED("peft.kasa_config", ANY, NULL, NO_VARIANT)},
    {NOTICE("peft.fan_in_fan_out", BOOL, "false", "it follows from the model: true for GPT-2")},
    {NOTICE("peft.inference_mode", BOOL, "false", "a run trains")},
    {NOTICE("peft.base_model_name_or_path", ANY, NULL, "model.pretrained names the base")},
    {NOTICE("peft.revision", ANY, NULL, "model.pretrained names the base")},
    {NOTICE("peft.auto_mapping", ANY, NULL, "the model is known from its config")},
    {NOTICE("peft.peft_version", ANY, NULL, "PEFT itself is not used")},
    {NOTICE("peft.runtime_config", ANY, NULL, "PEFT itself is not used")},
    {NOTICE("peft.megatron_core", ANY, "megatron.core", "there are no Megatron layers")},
    {NOTICE("peft.qalora_group_size", INT(1, MAX_COUNT), "16", "there is no QA-LoRA")},

    {SECTION("data", "the token shards to train and evaluate on")},
    {SAME(data.train, SOURCES, NULL, CONTENTS,
          "a Megatron-LM prefix (.bin and .idx), an llm.c .bin file, a glob, or a list of these; the shards form one "
          "stream in this order (the matches of a glob are sorted); PREFIX.mask beside PREFIX.bin, a byte for each "
          "token, is the loss mask: only the prediction of tokens with 1 counts; or a mixture: a list of sources that "
          "samples are taken from in turn, with a weight ({path: A, weight: 2.0}: shares of all samples) or with "
          "epochs ({path: A, epochs: 0.5}: passes over the source in one epoch of the run): docs/mixtures.md"),
     .flags = KEY_REQUIRED | KEY_PATH},
    {SAME(data.validation, PLACES, NULL, NOTICE,
          "the token shards for evaluation, given in the same way; unset: no evaluation")},
    {SAME(data.seq_length, INT(1, 1 << 24), NULL, ERROR, "tokens per sample"), .flags = KEY_REQUIRED},
    {SAME(data.shuffle, BOOL, "true", ERROR,
          "shuffle the samples anew in each epoch; false: keep the order of the files")},
    {SAME(data.packing,
          CHOICE(NAME("true", SPEC_PACKING_CUT), NAME("false", SPEC_PACKING_NONE),
                 NAME("first_fit", SPEC_PACKING_FIRST_FIT)),
          "true", ERROR,
          "true: the documents are joined end to end and cut into samples; first_fit: a sample is filled with whole "
          "documents, each in the first sample with room for it, in file order; false: each document is one sample; "
          "first_fit and false cut documents to seq_length, and padding has no part in the loss")},
    {SAME(data.document_mask, SWITCH, "auto", ERROR,
          "true: attention stays within a document, positions begin anew in each, and the last token of a document "
          "predicts nothing; packing false always does so; auto: true if data.train has a loss mask (PREFIX.mask), "
          "else false; a resumed run keeps what it began with")},

    {SECTION("train", "the length of the run, evaluation, the device")},
    {SAME(train.epochs, WHOLE_ABOVE(0, MAX_COUNT), NULL, NOTICE,
          "passes over the training data; 0.5 ends the run after half the steps of an epoch, rounded up; default: 1, "
          "or as many as max_steps needs if that is set")},
    {SAME(train.max_steps, INT(1, MAX_COUNT), NULL, NOTICE,
          "optimizer steps; if epochs is set too, the run ends with whichever comes first")},
    {SAME(
        train.eval_interval_steps, INT(0, MAX_COUNT), "0", NOTICE,
        "steps between two evaluations, in addition to those at the end of each epoch and of the run; 0: only those")},
    {SAME(train.eval_batches, INT(0, MAX_COUNT), "0", NOTICE,
          "the largest number of batches of train_batch_size samples in an evaluation; 0: all validation data")},
    {SAME(train.device,
          CHOICE(NAME("auto", SPEC_DEVICE_AUTO), NAME("cpu", SPEC_DEVICE_CPU), NAME("cuda", SPEC_DEVICE_CUDA),
                 {"gpu", 0, VERDICT_SYNONYM, "cuda"}),
          "auto", NOTICE, "auto: CUDA if the machine has a GPU, else the CPU")},
    {SAME(train.cuda_graphs, SWITCH, "auto", SILENT,
          "capture a GPU's step once and launch it as one CUDA graph: the same bits with less work for the host; "
          "offload, cpu_checkpointing, comms_logger and ranks that share a GPU get a graph for each block's forward "
          "and backward; auto: do so if launching the kernels takes about as long as running them (small models); true "
          "is refused on the CPU device, with data.packing other than true, data.document_mask and --profile")},
    {SAME(train.sm_count_target, SWITCH, "auto", NOTICE,
          "matrix products leave 16 of a GPU's multiprocessors to NCCL (cublasLt's SM_COUNT_TARGET), 24 if all GPUs "
          "have compute capability 10; NCCL's collectives then use no more than these (maxCTAs of its communicator); "
          "auto: with several ranks over NCCL, stage 3, zero_optimization.overlap_comm and GPUs with six times as many "
          "on all ranks, never with one rank or train.virtual_ranks; true: with any stage, also with one rank, without "
          "overlap_comm and on smaller GPUs; true is refused on the CPU device, and if a rank's GPU has no more than "
          "these; no effect if ranks share a GPU; products with and without the limit may have other kernels, hence "
          "other bits")},
    {USED("train.deterministic", BOOL, spec.transformer.deterministic, "true", NOTICE,
          "false: the backward pass of attention by cuDNN adds the parts of its sums as they are ready, which is "
          "faster; then two runs, a resumed run, ranks and ZeRO stages agree to rounding, no longer bit for bit; it "
          "changes nothing on the CPU device, or if ztrain's own kernels compute attention")},
    {SAME(train.memory_limit, SIZE, NULL, SILENT,
          "the most device memory that a rank may take, on any device (300MiB, 80GiB, or a number of bytes); a plan "
          "that needs more ends the run before its first step (exit code 5) with what would fit; on a GPU the plan's "
          "reserve (CUDA's context, its libraries) counts too; it changes no result; unset: what the device has")},
    {USED("train.label_smoothing", REAL(0, 1), spec.transformer.label_smoothing, "0", NOTICE,
          "this share of each target's probability is spread evenly over the vocabulary; as in transformers' Trainer "
          "(label_smoothing_factor) and torch's cross_entropy; eval_loss is smoothed too, as in Trainer, and its "
          "perplexity is not that of the tokens")},
    {USED("train.logits_dtype",
          CHOICE(NAME("auto", DTYPE_COUNT), NAME("bf16", DTYPE_BF16), NAME("fp32", DTYPE_F32),
                 OTHER_NAME("bfloat16", "bf16"), OTHER_NAME("float32", "fp32")),
          spec.transformer.logits_dtype, "auto", NOTICE,
          "the type in which the head writes its logits, from which the loss is computed in fp32; auto: the type that "
          "the run computes in, as with transformers under autocast; fp32: twice the memory traffic, and a slower "
          "product of the head on a GPU; bf16 needs bf16.enabled; a classifier's logits are always fp32")},
    {USED("train.max_skipped_steps", INT(1, MAX_COUNT), spec.max_skipped_steps, "10", NOTICE,
          "end the run (exit code 7) after this many consecutive steps with non-finite gradients")},
    {SAME(train.virtual_ranks, INT(0, MAX_VIRTUAL_RANKS), "0", ERROR,
          "give a run the same bits on any number of ranks that divides this number; 0: its bits depend on the number "
          "of ranks; train_batch_size = virtual ranks x micro batch x accumulation; gradients, norms and losses are "
          "summed in the order of virtual ranks (docs/determinism.md)")},
    {SAME(train.virtual_ranks_strict, BOOL, "true", SILENT,
          "with virtual_ranks: refuse a CPU or GPU that cannot compute with the kernels that the run began with; "
          "false: continue with other bits, and metrics.jsonl records it")},
    {SAME(train.hash_interval_steps, INT(0, MAX_COUNT), "0", SILENT,
          "write a hash of the parameters into metrics.jsonl after every step whose number is a multiple of this; 0: "
          "none; each checkpoint records hashes all the same")},
    {SAME(train.check_interval_steps, INT(0, MAX_COUNT), "0", SILENT,
          "look for silent corruption in every step whose number is a multiple of this; 0: never; the gradients are "
          "computed twice and compared bit for bit, parameters and optimizer state are hashed after the update before "
          "it and before its own, and the ranks' copies are compared; a difference ends the run and names the rank; "
          "the step takes about twice as long, and no result changes")},
    {SAME(train.spike_factor, REAL(0, MAX_COUNT), "0", SILENT,
          "report a loss above this times the running mean of the losses, or a loss that is not finite; at least 1 (2 "
          "or 3 is usual), or 0: off; the report is a line of metrics.jsonl with the samples of that step, and a "
          "warning in the log; the run continues")},
    {SAME(train.samples, PROMPTS, NULL, SILENT,
          "prompts that the model continues at each evaluation, with the most probable tokens; texts (of a model with "
          "a tokenizer.json) or lists of token ids, [\"Stocks rose\", [15496, 995]]; the continuations are lines of "
          "metrics.jsonl; training is the same bit for bit with and without them")},
    {SAME(train.sample_tokens, INT(1, MAX_COUNT), "64", SILENT,
          "the largest number of tokens of such a continuation; prompt and continuation are at most data.seq_length")},

    {SECTION("train.early_stopping", "ends a run whose evaluations do not improve any more")},
    {SAME(train.early_stopping.patience, INT(0, MAX_COUNT), "0", SILENT,
          "end the run, with exit code 0, after this many evaluations in a row without an improvement on the best one; "
          "0: only epochs and max_steps end it")},
    {SAME(train.early_stopping.metric, METRIC, "eval_loss", SILENT,
          "the metric that has to improve: a lower eval_loss, or a classifier's higher accuracy or f1")},
    {SAME(train.early_stopping.min_delta, REAL(0, MAX_COUNT), "0", SILENT,
          "an improvement by no more than this does not count")},

    {SECTION("checkpoint", "when checkpoints are written and how many are kept")},
    {SAME(
        checkpoint.interval_steps, INT(0, MAX_COUNT), "0", SILENT,
        "steps between two checkpoints, in addition to those at the end of each epoch and of the run; 0: only those")},
    {SAME(checkpoint.keep_last, INT(0, MAX_COUNT), "0", SILENT,
          "keep this many newest checkpoints, epoch and step together; older ones stay if keep_best or "
          "keep_every_steps names them; 0: keep all")},
    {SAME(checkpoint.keep_best, INT(0, MAX_COUNT), "0", SILENT,
          "keep this many checkpoints with the best evaluations, however old they are; 0: none; a checkpoint follows "
          "an evaluation that is one of them, and the link checkpoints/best points at the best")},
    {SAME(checkpoint.metric, METRIC, "eval_loss", SILENT,
          "the metric by which keep_best and `ztrain export --best` choose; accuracy and f1 are a classifier's")},
    {SAME(checkpoint.mode, CHOICE(NAME("auto", EVAL_MODE_AUTO), NAME("min", EVAL_MODE_MIN), NAME("max", EVAL_MODE_MAX)),
          "auto", SILENT,
          "whether the least or the greatest value of the metric is the best; auto: min for eval_loss, else max")},
    {SAME(checkpoint.keep_every_steps, INT(0, MAX_COUNT), "0", SILENT,
          "write a checkpoint at each multiple of this many steps and keep it for good; 0: none")},
    {SAME(checkpoint.save_at_epoch_end, BOOL, "true", SILENT,
          "write a checkpoint at the end of each epoch; false: only where another key asks for one, and at the run's "
          "end")},
    {SAME(checkpoint.retry_seconds, REAL(0, 7 * 86400), "600", SILENT,
          "how long the run's last checkpoint is retried while the disk is full or fails; never past the end of the "
          "Slurm job; the last one is that at the run's end, or when it is asked to stop; an earlier checkpoint is "
          "retried for 30 s, then training continues without it")},
    {SAME(checkpoint.compression_level, INT(0, 22), "3", SILENT, "level of zstd; 0: no compression")},
    {NOTICE("checkpoint.load_universal", BOOL, "false", "every checkpoint loads at any world size and stage")},
    {NOTICE("checkpoint.tag_validation", ANY_CASE(CHOICE(NAME("Ignore", 0), NAME("Warn", 1), NAME("Fail", 2))), "Warn",
            "a checkpoint is named by its step or epoch, which is the same on all ranks")},
    {NOTICE("checkpoint.use_node_local_storage", BOOL, "false", "checkpoints go to the run's folder")},
    {SECTION("checkpoint.parallel_write", "how DeepSpeed divides the writing among ranks")},
    {NOTICE("checkpoint.parallel_write.pipeline_stage", BOOL, "false", "every rank writes its own shard")},
    {SECTION("checkpoint.writer", "DeepSpeed's checkpoint writer")},
    {USED("checkpoint.writer.decoupled", SWITCH, spec.checkpoint.decoupled, "auto", SILENT,
          "write checkpoints in the background: training waits only while a rank's slices are copied into host memory; "
          "the copy takes as many bytes as the slices have in fp32, from when the first checkpoint is due; the last "
          "checkpoint of a run waits, and so does one that is due while another is being written; auto: true if 80 % "
          "of the host memory suffices, also of what ulimit leaves, and nothing is offloaded to NVMe")},
    {NOTICE("checkpoint.writer.type", ANY, NULL, "there is one writer: shards compressed by zstd")},
    {NOTICE("checkpoint.writer.io_buffer_size", INT, NULL, "the writer chooses the size of its buffers")},
    {NOTICE("checkpoint.writer.io_buffer_double", BOOL, "true", "the writer chooses its buffers")},
    {NOTICE("checkpoint.writer.show_statistics", BOOL, "false",
            "metrics.jsonl has the bytes and seconds of each checkpoint")},
    {NOTICE("checkpoint.writer.data_parallel", ANY, NULL, "every rank writes its own shard")},

    {SECTION("comm", "communication among ranks")},
    {SAME(comm.timeout_seconds, ABOVE(0, 86400), "10", SILENT,
          "seconds without progress of a rank until it is named and the run ends; a long step makes progress")},
    {SAME(comm.io_timeout_seconds, ABOVE(0, 86400), "600", SILENT,
          "seconds that one call on a file (or into a library or driver) may take; until then the rank counts as "
          "alive; after that it is named with the file and the run ends")},
    {SAME(comm.interface, STRING, NULL, SILENT,
          "the network interface between the nodes: its name, or its network, such as 10.1.0.0/16, if names differ; "
          "unset: the interface whose address the other nodes reach; the ranks of one node communicate through shared "
          "memory")},
    {SAME(comm.reduce_within_node, BOOL, "false", NOTICE,
          "sum the gradients of each node before they cross the network: less traffic with several ranks per node; the "
          "results then depend on how the ranks are distributed over nodes")},

    /* ---- DeepSpeed's: batch sizes, clipping, output ---------------------- */
    {SAME(train_batch_size, AUTO(INT(1, MAX_BATCH)), NULL, ERROR,
          "samples per optimizer step over all ranks = micro batch x accumulation x ranks (or x train.virtual_ranks); "
          "two of the three sizes are enough, and so is only this one or the micro batch")},
    {SAME(train_micro_batch_size_per_gpu, AUTO(INT(1, MAX_BATCH)), NULL, NOTICE,
          "samples that a rank computes at a time")},
    {SAME(gradient_accumulation_steps, AUTO(INT(1, MAX_BATCH)), NULL, NOTICE,
          "micro batches of a rank, or of a virtual rank, per optimizer step; default: derived from the other two "
          "sizes, else 1")},
    {SAME(gradient_clipping, AUTO(REAL(0, 1e30)), "0", NOTICE,
          "the largest norm of all gradients together; 0: no clipping; auto: 1.0, as Trainer's max_grad_norm; unset, "
          "with --deepspeed: 1.0, as in DeepSpeed, and a resumed run keeps its value")},
    {SAME(steps_per_print, INT(1, MAX_COUNT), "10", SILENT, "steps between two progress lines in a log")},
    {SAME(wall_clock_breakdown, BOOL, "false", SILENT,
          "also print the time of data, forward, backward, reduce and optimizer")},
    {SAME(prescale_gradients, BOOL, "false", NOTICE,
          "with communication_data_type fp16: divide gradients by the number of ranks before they are rounded and "
          "reduced, not after it; fewer overflow and more underflow; no effect with fp32 and bf16")},
    {SAME(gradient_predivide_factor, ABOVE(0, MAX_BATCH), "1.0", NOTICE,
          "with communication_data_type fp16: divide gradients by this before they are rounded and reduced; by the "
          "rest of the number of ranks after it; no effect with prescale_gradients, fp32 and bf16")},
    {REFUSED("sparse_gradients", BOOL, "false",
             "the gradients of embeddings are dense and sharded like all others; hint: remove the key")},
    {NOTICE("dataloader_drop_last", BOOL, "true",
            "the rest of an epoch that does not fill a global batch is always left out, and the next epoch has a new "
            "order")},
    {SAME(communication_data_type,
          OR_NULL(CHOICE(NAME("fp32", DTYPE_F32), NAME("bf16", DTYPE_BF16), NAME("fp16", DTYPE_F16),
                         OTHER_NAME("float32", "fp32"), OTHER_NAME("bfloat16", "bf16"),
                         OTHER_NAME("bfp16", "bf16"), /* DeepSpeed's first spelling */
                         OTHER_NAME("float16", "fp16"))),
          "fp32", NOTICE,
          "the type in which ranks send their gradients: each contribution is rounded to it once, and the sum is fp32; "
          "NCCL adds up in this type")},
    {REFUSED("managed_gradient_accumulation", BOOL, "true",
             "a step is always the micro-batches of gradient_accumulation_steps; hint: remove the key")},
    {REFUSED("gradient_allreduce_op", ANY_CASE(CHOICE(NAME("mean", 0), NAME("sum", 1))), "mean",
             "a step has the mean gradient of its targets, with any number of ranks; hint: mean")},
    {NOTICE("seq_parallel_communication_data_type", ANY, NULL, "there is no sequence parallelism")},
    {NOTICE("disable_allgather", BOOL, "false", "parameters are gathered by all-gather")},
    {NOTICE("use_data_before_expert_parallelism", BOOL, "false", "a rank's tokens are its own")},
    {NOTICE("zero_allow_untested_optimizer", BOOL, "false", "every optimizer here runs at every stage")},
    {NOTICE("zero_force_ds_cpu_optimizer", BOOL, "true", "the optimizer is ztrain's own on every device")},
    {NOTICE("graph_harvesting", BOOL, "false", "the step is planned ahead anyway")},
    {NOTICE("disable_python_gc", BOOL, "false", "there is no Python")},
    {NOTICE("vocabulary_size", INT, NULL, "the model's config.json has it")},
    {NOTICE("log_level", ANY, NULL, "everything is logged; steps_per_print is the number of steps between two lines")},
    {NOTICE("log", ANY, NULL, "logs go to the terminal and to RUN/log, in the folder of the run")},
    {NOTICE("cuda_visible_devices", ANY, NULL, "the environment chooses the GPUs: CUDA_VISIBLE_DEVICES=0,1 ztrain …")},
    {NOTICE("load_universal_checkpoint", BOOL, "false", "every checkpoint loads at any world size and stage")},

    /* at top level they have no effect in DeepSpeed, but pages print them there */
    {ALIAS("grad_accum_dtype", "data_types.grad_accum_dtype")},
    {ALIAS("offload_optimizer", "zero_optimization.offload_optimizer")},
    {ALIAS("offload_param", "zero_optimization.offload_param")},
    {SECTION("data_types", "data types of gradients")},
    {USED("data_types.grad_accum_dtype",
          OR_NULL(CHOICE(NAME("fp32", DTYPE_F32), NAME("bf16", DTYPE_BF16), OTHER_NAME("float32", "fp32"),
                         OTHER_NAME("bfloat16", "bf16"),
                         {"fp16", 0, VERDICT_REFUSED,
                          "sums of gradients overflow in fp16; hint: use bf16, which has the range of fp32"})),
          spec.grad_accum_dtype, "fp32", NOTICE,
          "the type in which gradients are accumulated; bf16: 2 bytes a parameter instead of 4, rounded after each "
          "micro batch was added in fp32")},
    {REFUSED("data_types.param_dtype", ANY, NULL,
             "bf16.enabled and fp16.enabled choose the type of parameters; hint: remove the key")},
    {NOTICE("data_types.buffer_dtype", ANY, NULL, "angles of rotary embeddings are computed in fp32")},
    {NOTICE("data_types.keep_in_fp32_modules", ANY, "auto", "sums in norms, attention and the loss are fp32")},

    /* ---- optimizer ------------------------------------------------------- */
    {SECTION("optimizer", "the optimizer, with fp32 master weights and moments")},
    {SAME(optimizer.type, ANY_CASE(ONE_OF(optimizer_choices)), "AdamW", ERROR,
          "AdamW, or Adam, which is the same unless adam_w_mode is false; Lion (one moment); SGD (as torch.optim.SGD); "
          "Muon (as torch.optim.Muon) for the matrices of the blocks, with AdamW for everything else; AdamW8bit (as "
          "torchao's) for moments in 8 bits of tensors with 4,096 elements or more")},
    {SECTION("optimizer.params", "parameters of the optimizer")},
    {USED("optimizer.params.lr", REAL(0, 1e6), spec.optimizer.lr, NULL, NOTICE, "learning rate"),
     .flags = KEY_AUTO | KEY_NEEDED},
    {OPTIMIZER(ADAMS | O(LION) | O(MUON) | O(ADAMW8BIT), "betas", AUTO(REAL_PAIR(0, 1)), beta1, "[0.9, 0.999]",
               "decay rates of the first and second moments; Lion: of the average that gives the sign, and of the one "
               "that is kept; Muon: those of its AdamW, by default [0.9, 0.95], as in DeepSpeed")},
    {OPTIMIZER(ADAMS | O(MUON) | O(ADAMW8BIT), "eps", AUTO(REAL(1e-30, 1)), eps, "1e-8",
               "added to the square root of the second moment; Muon: that of its AdamW, by default 1e-10, as in "
               "DeepSpeed")}, /* 0 (also after rounding to fp32) divides 0 by 0 where a gradient is always 0 */
    {USED("optimizer.params.weight_decay", AUTO(REAL(0, 1e6)), spec.optimizer.weight_decay, "0", NOTICE,
          "weight decay; tensors of one dimension (biases, norms) are not decayed")},
    {USED("optimizer.params.weight_decay_all", BOOL, spec.optimizer.weight_decay_all, "false", NOTICE,
          "also decay tensors of one dimension, as DeepSpeed does")},
    {OPTIMIZER(ADAMS | O(MUON) | O(ADAMW8BIT), "bias_correction", BOOL, bias_correction, "true",
               "correct the bias of the moments in the first steps")},
    {OPTIMIZER(O(SGD) | O(MUON), "momentum", REAL(0, 1e6), momentum, "0",
               "SGD: 0: no momentum, and no state but the master weights; Muon: below 1, by default 0.95")},
    {OPTIMIZER(O(SGD), "dampening", REAL(-1e6, 1e6), dampening, "0",
               "the momentum takes up 1 - dampening of each gradient but the first")},
    {OPTIMIZER(O(SGD) | O(MUON), "nesterov", BOOL, nesterov, "false", "Nesterov's momentum; Muon: by default true")},
    {OPTIMIZER(O(MUON), "muon_lr", REAL(0, 1e6), muon_lr, "0",
               "learning rate of Muon's matrices; the schedule scales it as it scales lr; 0: lr")},
    {OPTIMIZER(O(MUON), "adam_lr", REAL(0, 1e6), adam_lr, "0",
               "learning rate of everything else, which the metrics show as lr; 0: lr")},
    {OPTIMIZER(O(MUON), "ns_steps", INT(1, 99), ns_steps, "5",
               "Newton-Schulz iterations that make an update orthogonal")},
    {OPTIMIZER(O(MUON), "adjust_lr_fn",
               CHOICE(NAME("original", ADJUST_ORIGINAL), NAME("match_rms_adamw", ADJUST_MATCH_RMS_ADAMW),
                      NAME("spectral_unclamped", ADJUST_SPECTRAL)),
               adjust_lr_fn, "original",
               "the learning rate of a matrix of (rows, columns), as it is stored, is multiplied by sqrt(max(1, rows / "
               "columns)); match_rms_adamw: by 0.2 sqrt(max(rows, columns)), for the lr and weight_decay of AdamW; "
               "spectral_unclamped: by sqrt(rows / columns)")},
    {NOTICE("optimizer.params.ns_method", CHOICE(NAME("standard", 0), NAME("gram", 1)), "standard",
            "the iteration is the standard one, in bf16; gram computes the same matrix but for rounding"),
     .optimizers = O(MUON)},
    {USED("optimizer.params.adam_w_mode", BOOL, adam_w_mode, "true", ERROR,
          "with type Adam, false adds the decay to the gradient (L2 regularization)"),
     .optimizers = ADAMS},
    {REFUSED("optimizer.params.amsgrad", BOOL, "false", "ztrain does not have AMSGrad; hint: set it to false")},
    {REFUSED("optimizer.params.max_grad_norm", ANY, NULL,
             "clipping is not an option of the optimizer; hint: use gradient_clipping at top level")},
    {NOTICE("optimizer.params.torch_adam", BOOL, "false", "the optimizer is ztrain's own")},
    {NOTICE("optimizer.params.legacy_fusion", BOOL, "false", "the update is one pass anyway")},
    {NOTICE("optimizer.legacy_fusion", BOOL, "false", "the update is one pass anyway")},

    /* ---- scheduler ------------------------------------------------------- */
    {SECTION("scheduler", "the schedule of the learning rate; skipped steps do not advance it")},
    {SAME(
        scheduler.type, ANY_CASE(ONE_OF(scheduler_choices)), "Constant", NOTICE,
        "Constant, Linear, Cosine, WSD: warm-up, stable, decay (step 1 is the first of the warm-up); the others are "
        "DeepSpeed's; WarmupLR, WarmupDecayLR and WarmupCosineLR run steps 1 and 2 at the minimum, as DeepSpeed does")},
    {SECTION("scheduler.params", "parameters of the schedule")},
    {SCHEDULE(OWN_SCHEDULES, "warmup_steps", AUTO(INT(0, MAX_COUNT)), warmup_steps, "0",
              "steps of the warm-up; step k of them runs at lr x k / warmup_steps")},
    {SCHEDULE(ALL_WARMUPS, "warmup_ratio", REAL(0, 1), warmup_ratio, "0",
              "the warm-up as a fraction of total_steps (of the run's length), rounded up, as in transformers' "
              "Trainer; 0: warmup_steps (warmup_num_steps) counts")},
    {SCHEDULE(S(LINEAR) | S(COSINE) | S(WSD), "total_steps", AUTO(INT(1, MAX_COUNT)), total_steps, NULL,
              "the step at which min_lr is reached; default: the length of the run")},
    {SCHEDULE(S(LINEAR) | S(COSINE) | S(WSD), "min_lr", REAL(0, 1e6), min_lr, "0", "learning rate at the end")},
    {SCHEDULE(S(WSD), "decay_steps", INT(1, MAX_COUNT), decay_steps, NULL,
              "steps of the decay from lr to min_lr, the last ones of total_steps; required")},
    {SCHEDULE(S(WSD), "decay_type",
              CHOICE(NAME("cosine", DECAY_COSINE), NAME("linear", DECAY_LINEAR), NAME("1-sqrt", DECAY_SQRT)),
              decay_type, "cosine", "shape of the decay; 1-sqrt falls with the square root of the steps")},
    {SCHEDULE(WARMUP_SCHEDULES, "warmup_num_steps", AUTO(INT(0, MAX_COUNT)), warmup_steps, "1000",
              "steps of the warm-up, at least 2 as in DeepSpeed; auto: 0, as Trainer's warmup_steps")},
    {SCHEDULE(WARMUP_SCHEDULES, "warmup_type", CHOICE(NAME("log", false), NAME("linear", true)), warmup_linear, "log",
              "shape of the warm-up")},
    {SCHEDULE(S(WARMUP_DECAY_LR) | S(WARMUP_COSINE_LR), "total_num_steps", AUTO(INT(1, MAX_COUNT)), total_steps, NULL,
              "steps until the end of the decay; required; auto: the length of the run")},
    {SCHEDULE(S(WARMUP_LR) | S(WARMUP_DECAY_LR), "warmup_min_lr", AUTO(REAL(0, 1e6)), warmup_min_lr, "0",
              "learning rate before the warm-up and at the end of the decay")},
    {SCHEDULE(S(WARMUP_LR) | S(WARMUP_DECAY_LR), "warmup_max_lr", AUTO(REAL(0, 1e6)), warmup_max_lr, NULL,
              "learning rate after the warm-up; default: the optimizer's lr")},
    {SCHEDULE(S(WARMUP_COSINE_LR), "warmup_min_ratio", REAL(0, 1), warmup_min_ratio, "0",
              "fraction of lr at the start of the warm-up")},
    {SCHEDULE(S(WARMUP_COSINE_LR), "cos_min_ratio", REAL(0, 1), cos_min_ratio, "1e-4", "fraction of lr at the end")},
    {SCHEDULE(S(ONE_CYCLE), "cycle_min_lr", REAL(0, 1e6), cycle.min_lr, NULL,
              "learning rate at the start and the end of the cycle; required")},
    {SCHEDULE(S(ONE_CYCLE), "cycle_max_lr", REAL(0, 1e6), cycle.max_lr, NULL,
              "learning rate at the top of the cycle; required")},
    {SCHEDULE(S(ONE_CYCLE), "decay_lr_rate", REAL(0, 1e6), cycle.decay_lr_rate, "0",
              "after the cycle, the learning rate is cycle_min_lr / (1 + decay_lr_rate x steps since then / "
              "decay_step_size)")},
    {SCHEDULE(S(ONE_CYCLE), "cycle_first_step_size", INT(1, MAX_STAIRS), cycle.first_steps, "2000",
              "steps in which the learning rate rises")},
    {SCHEDULE(S(ONE_CYCLE), "cycle_second_step_size", OR_NULL(INT(-1, MAX_STAIRS)), cycle.second_steps, "-1",
              "steps in which the learning rate falls; -1: as many as in which it rises")},
    {SCHEDULE(S(ONE_CYCLE), "cycle_first_stair_count", INT(0, MAX_STAIRS), cycle.first_stairs, "0",
              "stairs in which the learning rate rises; 0: in every step")},
    {SCHEDULE(S(ONE_CYCLE), "cycle_second_stair_count", OR_NULL(INT(-1, MAX_STAIRS)), cycle.second_stairs, "-1",
              "stairs in which the learning rate falls; 0: in every step; -1: as many as in which it rises")},
    {SCHEDULE(S(ONE_CYCLE), "decay_step_size", INT(0, MAX_COUNT), cycle.decay_steps, "0",
              "steps to which decay_lr_rate refers; 0: no decay after the cycle")},
    {SCHEDULE(S(ONE_CYCLE), "cycle_momentum", BOOL, cycle.momentum, "true",
              "DeepSpeed's momentum, not the optimizer's betas: beta1 between cycle_max_mom and cycle_min_mom; lowest "
              "when the learning rate is highest; beta2 is 0.99")},
    {SCHEDULE(S(ONE_CYCLE), "cycle_min_mom", REAL(0, 0.9999999), cycle.min_momentum, "0.8",
              "beta1 at the top of the cycle, and in step 1")},
    {SCHEDULE(S(ONE_CYCLE), "cycle_max_mom", REAL(0, 0.9999999), cycle.max_momentum, "0.9",
              "beta1 at the ends of the cycle, and after it")},
    {REFUSED("scheduler.params.decay_mom_rate", REAL(0, 1e6), "0",
             "beta1 would grow past 1 after the cycle; hint: leave it at 0"),
     .schedules = S(ONE_CYCLE)},
    {SCHEDULE(S(LR_RANGE_TEST), "lr_range_test_min_lr", REAL(0, 1e6), range_test.min_lr, "1e-3",
              "learning rate of step 1")},
    {SCHEDULE(S(LR_RANGE_TEST), "lr_range_test_step_size", INT(1, MAX_COUNT), range_test.step_size, "2000",
              "steps in which the learning rate grows by lr_range_test_step_rate times its start")},
    {SCHEDULE(S(LR_RANGE_TEST), "lr_range_test_step_rate", REAL(0, 1e6), range_test.step_rate, "1.0",
              "growth of the learning rate in lr_range_test_step_size steps, as a multiple of its start")},
    {SCHEDULE(S(LR_RANGE_TEST), "lr_range_test_staircase", BOOL, range_test.staircase, "false",
              "grow once every lr_range_test_step_size steps, not in every step")},
    {NOTICE("scheduler.params.last_batch_iteration", INT, "-1", "a resumed run takes its step from the checkpoint"),
     .schedules = ~OWN_SCHEDULES},

    /* ---- precision ------------------------------------------------------- */
    {SECTION("bf16", "parameters and activations in bf16, with fp32 master weights; without bf16 and fp16, ztrain "
                     "computes in fp32")},
    {USED("bf16.enabled", AUTO(BOOL), bf16, "false", ERROR, "compute in bf16; auto: false")},
    {NOTICE("bf16.check_grad_overflow", BOOL, "true", "gradients are always checked")},
    {NOTICE("bf16.immediate_grad_update", BOOL, "true", "gradients are always accumulated at once")},
    {USED("bf16.bf16_master_weights_and_grads", BOOL, spec.bf16_master, "false", NOTICE,
          "the parameters are the only copy of the weights, updated with stochastic rounding; 12 bytes a parameter "
          "instead of 18; gradients are accumulated in bf16 unless data_types.grad_accum_dtype is given")},
    {USED("bf16.bf16_optimizer_states", BOOL, spec.bf16_moments, "false", NOTICE,
          "Adam's moments in bf16 too, with stochastic rounding: 8 bytes a parameter; needs "
          "bf16_master_weights_and_grads")},
    {NOTICE("bf16.loss_scale", REAL, NULL, NO_SCALE)},
    {NOTICE("bf16.initial_scale_power", REAL, NULL, NO_SCALE)},
    {NOTICE("bf16.loss_scale_window", REAL, NULL, NO_SCALE)},
    {NOTICE("bf16.hysteresis", REAL, NULL, NO_SCALE)},
    {NOTICE("bf16.min_loss_scale", REAL, NULL, NO_SCALE)},
    {NOTICE("bf16.auto_cast", BOOL, "false", "inputs are token ids, which are not cast")},
    {ALIAS("bfloat16", "bf16")},
    {SECTION(
        "fp16",
        "parameters and activations in fp16, with fp32 master weights and a loss scale, which bf16 does not need")},
    {USED("fp16.enabled", AUTO(BOOL), fp16, "false", ERROR, "compute in fp16; auto: false")},
    {NOTICE("fp16.opt_level", ANY, NULL, "it is a level of Apex, which ztrain does not have")},
    {NOTICE("fp16.auto_cast", BOOL, "false", "inputs are token ids, which are not cast")},
    {USED("fp16.loss_scale", REAL(0, 0x1p60), static_loss_scale, "0", NOTICE, "a fixed loss scale; 0: dynamic")},
    {USED("fp16.initial_scale_power", INT(0, 64), initial_scale_power, "16", NOTICE,
          "a dynamic loss scale starts at 2 to this power")},
    {USED("fp16.loss_scale_window", INT(1, MAX_COUNT), spec.loss_scaler.window, "1000", NOTICE,
          "consecutive steps without overflow after which the loss scale doubles")},
    {USED("fp16.hysteresis", INT(1, 1e9), spec.loss_scaler.hysteresis, "2", NOTICE,
          "overflows after which the loss scale is halved")},
    {USED("fp16.consecutive_hysteresis", BOOL, spec.loss_scaler.consecutive_hysteresis, "false", NOTICE,
          "every step without overflow refills the hysteresis")},
    {USED("fp16.min_loss_scale", ABOVE(0, 0x1p60), spec.loss_scaler.min_scale, "1", NOTICE,
          "the smallest loss scale; an overflow there ends the run")},
    {LATER("fp16.fp16_master_weights_and_grads", BOOL, "false", "fp16 master weights")},
    {REFUSED("amp", FOREIGN, NULL, "Apex mixed precision; hint: use bf16: {enabled: true}")},
    {REFUSED("msamp", FOREIGN, NULL, "Microsoft's fp8 mixed precision; hint: use bf16: {enabled: true}")},
    {REFUSED("torch_autocast", FOREIGN, NULL, "PyTorch's automatic casts; hint: use bf16: {enabled: true}")},

    /* ---- ZeRO ------------------------------------------------------------ */
    {SECTION("zero_optimization", "which state is sharded over the ranks; true stands for stage 1")},
    {USED(ZERO "stage", INT(0, 3), spec.zero.stage, "0", NOTICE,
          "0: nothing is sharded; 1: the optimizer state; 2: also the gradients; 3: also the parameters")},
    {USED(ZERO "overlap_comm", BOOL, spec.zero.overlap_comm, "true", NOTICE, "overlap communication with computation")},
    {USED(ZERO "reduce_bucket_size", AUTO(INT(1, MAX_COUNT)), spec.zero.reduce_bucket_size, "5e8", NOTICE,
          "the largest number of elements that are reduced at once; auto: the model's hidden size, squared; NCCL needs "
          "no buffers for them, and always reduces the gradients of a block at once")},
    {USED(ZERO "allgather_bucket_size", INT(1, MAX_COUNT), spec.zero.allgather_bucket_size, "5e8", NOTICE,
          "the largest number of elements that are gathered at once; with NCCL always a block's")},
    {NOTICE(ZERO "stage3_prefetch_bucket_size", INT, "5e7", "stage 3 prefetches the whole next block")},
    {NOTICE(ZERO "stage3_param_persistence_threshold", INT, "1e5",
            "stage 3 gathers all tensors of a block at once, small and large ones")},
    {NOTICE(ZERO "stage3_max_live_parameters", INT, "1e9",
            "stage 3 holds two blocks and the embedding or the head at a time; `ztrain plan` prints the bytes")},
    {NOTICE(ZERO "stage3_max_reuse_distance", INT, "1e9",
            "stage 3 keeps a block until its memory is needed for the block after the next")},
    {NOTICE(ZERO "stage3_gather_16bit_weights_on_model_save", BOOL, "false",
            "`ztrain export` makes whole files from any checkpoint")},
    {ALIAS(ZERO "stage3_gather_fp16_weights_on_model_save", ZERO "stage3_gather_16bit_weights_on_model_save")},
    /* DeepSpeed accepts its fields' own names as well */
    {ALIAS(ZERO "gather_16bit_weights_on_model_save", ZERO "stage3_gather_16bit_weights_on_model_save")},
    {ALIAS(ZERO "prefetch_bucket_size", ZERO "stage3_prefetch_bucket_size")},
    {ALIAS(ZERO "param_persistence_threshold", ZERO "stage3_param_persistence_threshold")},
    {ALIAS(ZERO "model_persistence_threshold", ZERO "stage3_model_persistence_threshold")},
    {ALIAS(ZERO "max_live_parameters", ZERO "stage3_max_live_parameters")},
    {ALIAS(ZERO "max_reuse_distance", ZERO "stage3_max_reuse_distance")},
    {ALIAS(ZERO "module_granularity_threshold", ZERO "stage3_module_granularity_threshold")},
    {ALIAS(ZERO "use_all_reduce_for_fetch_params", ZERO "stage3_use_all_reduce_for_fetch_params")},
    {NOTICE(ZERO "contiguous_gradients", BOOL, "true", "gradients are always contiguous")},
    {NOTICE(ZERO "save_muon_momentum_buffer_in_memory", BOOL, "false", "Muon's momentum is in the device's memory")},
    {NOTICE(ZERO "reduce_scatter", BOOL, "true", "stages 1 to 3 always reduce-scatter")},
    {NOTICE(ZERO "round_robin_gradients", BOOL, "false", "every rank owns an equal slice of every unit")},
    {USED(ZERO "sub_group_size", INT(1, MAX_COUNT), spec.zero.sub_group_size, "2097152", SILENT,
          "elements that offload_optimizer updates at a time if they pass through buffers: with nvme, and with cpu on "
          "their way to the device; at most the default, which keeps host memory small (DeepSpeed's default is 1e9)")},
    {NOTICE(ZERO "use_multi_rank_bucket_allreduce", BOOL, "true", "buckets are reduce-scattered")},
    {NOTICE(ZERO "allgather_partitions", BOOL, "true", "parameters are gathered by all-gather")},
    {NOTICE(ZERO "ignore_unused_parameters", BOOL, "true", "every parameter is used")},
    {NOTICE(ZERO "memory_efficient_linear", BOOL, "true", "linear layers keep only what backward needs")},
    {NOTICE(ZERO "stage3_module_granularity_threshold", INT, "0", "parameters are gathered block by block")},
    {NOTICE(ZERO "stage3_model_persistence_threshold", INT, NULL, "stage 3 gathers all tensors of a block at once")},
    {NOTICE(ZERO "stage3_use_all_reduce_for_fetch_params", BOOL, "false", "parameters are gathered by all-gather")},
    {NOTICE(ZERO "elastic_checkpoint", BOOL, "false", "every checkpoint loads at any world size and stage")},
    {NOTICE(ZERO "fast_init", BOOL, "false", "weights are initialised in place, slice by slice")},
    {NOTICE(ZERO "load_from_fp32_weights", BOOL, "true", "checkpoints hold fp32 master weights")},
    {NOTICE(ZERO "override_module_apply", BOOL, "true", "there are no Python modules")},
    {NOTICE(ZERO "pipeline_loading_checkpoint", BOOL, "false", "ranks read their own slices")},
    {NOTICE(ZERO "log_trace_cache_warnings", BOOL, "false", "there is no trace: the order of gathers is planned")},
    {NOTICE(ZERO "enable_sanity_checks", BOOL, "false", "preconditions are always checked")},
    {NOTICE(ZERO "leaf_module", ANY, NULL, "parameters are gathered block by block")},
    {LATER(ZERO "zero_hpz_partition_size", INT, "1", "a secondary partition within a node (hpZ)")},
    {LATER(ZERO "zero_quantized_weights", BOOL, "false", "quantized gathers of parameters")},
    {LATER(ZERO "zero_quantized_nontrainable_weights", BOOL, "false", "quantized gathers of parameters")},
    {LATER(ZERO "zero_quantized_gradients", BOOL, "false", "quantized reductions of gradients")},
    {LATER(ZERO "mics_shard_size", INT, "-1", "sharding over a subset of the ranks (MiCS)")},
    {LATER(ZERO "mics_hierarchical_params_gather", BOOL, "false", "sharding over a subset of the ranks (MiCS)")},
    {NOTICE(ZERO "compute_grad_norm", BOOL, "true", "the norm of all gradients is always computed")},
    {NOTICE(ZERO "stage3_allgather_sequential", BOOL, "false", "stage 3 gathers all tensors of a block at once")},
    {ALIAS(ZERO "allgather_sequential", ZERO "stage3_allgather_sequential")},
    {NOTICE(ZERO "parameter_alignment", BOOL, "false", "slices of parameters are aligned anyway")},
    {REFUSED(ZERO "zeropp_loco_param", FOREIGN, NULL,
             "gradients are not quantized, and leave no error to feed back; hint: remove the section")},
    {ALIAS(ZERO "aio", "aio")}, /* tutorials print it there */
    {ALIAS(ZERO "cpu_offload", "zero_optimization.offload_optimizer")},
    {ALIAS(ZERO "cpu_offload_param", "zero_optimization.offload_param")},
    {ALIAS(ZERO "cpu_offload_params", "zero_optimization.offload_param")},
    {NOTICE(ZERO "cpu_offload_use_pin_memory", BOOL, "false",
            "offload_optimizer and offload_param have pin_memory, which is true unless it is set")},
    {REFUSED(ZERO "legacy_stage1", BOOL, "false", "stage 1 has one implementation; hint: remove the key")},
    {REFUSED(ZERO "zenflow", FOREIGN, NULL, "ZenFlow updates parameters late; hint: remove the section")},
    {REFUSED(ZERO "super_offload", BOOL, "false", "ztrain does not have SuperOffload; hint: remove the key")},
    {SECTION("zero_optimization.offload_optimizer", "where the optimizer state lives")},
    {OFFLOAD_OPTIMIZER(
        "device", OFFLOAD, device, "none", SILENT,
        "cpu: master weights, m and v are in host memory, where the CPU updates them (stages 1 to 3); nvme: they and "
        "the gradients are on a local disk and pass through host memory in pieces (stage 3 and nvme_path); gradients "
        "come down during backward, and parameters go up during the next forward; the bits are those of a run without "
        "offload; gradients that a GPU accumulates in bf16 agree to rounding")},
    {OFFLOAD_OPTIMIZER("ratio", REAL(0, 1), ratio, "1.0", SILENT,
                       "at least this fraction of the optimizer's state is in host memory: that of the last units, "
                       "which the next forward needs last")},
    {OFFLOAD_OPTIMIZER(
        "pin_memory", BOOL, pin_memory, "true", SILENT,
        "page-locked host memory, which a GPU reads by itself; false: ordinary memory, which the host copies first")},
    {OFFLOAD_OPTIMIZER("nvme_path", PLACE, nvme_path, NULL, SILENT,
                       "device nvme: a folder on a local disk, in which each rank has files without names while it "
                       "runs; jobs may share it")},
    {OFFLOAD_OPTIMIZER("buffer_count", INT(1, 1024), buffer_count, "4", SILENT,
                       "device nvme: buffers in host memory, each for master, m and v of sub_group_size elements; one "
                       "is in use, one is written, the others are read ahead; gradients have seven smaller ones")},
    {OFFLOAD_OPTIMIZER("pipeline_read", BOOL, pipeline_read, "true", SILENT,
                       "device nvme: pieces are read while earlier ones are updated (DeepSpeed's default is false)")},
    {OFFLOAD_OPTIMIZER("pipeline_write", BOOL, pipeline_write, "true", SILENT,
                       "device nvme: a piece is written while later ones are updated (DeepSpeed's default is false)")},
    {NOTICE(ZERO "offload_optimizer.fast_init", BOOL, "false", "the state is laid out in place")},
    {NOTICE(ZERO "offload_optimizer.cpuadam_cores_perc", REAL, NULL, "AdamW uses all threads of the rank")},
    {REFUSED(ZERO "offload_optimizer.super_offload", BOOL, "false",
             "ztrain does not have SuperOffload; hint: remove the key")},
    {SECTION("zero_optimization.offload_param", "where stage 3's parameters live")},
    {OFFLOAD_PARAM(
        "device", OFFLOAD, device, "none", NOTICE,
        "cpu: a rank keeps its slices of the parameters in host memory; each is copied to the device before its block "
        "is gathered; nvme: those beyond max_in_cpu are on a local disk, and each is read one block ahead")},
    {OFFLOAD_PARAM("nvme_path", PLACE, nvme_path, NULL, SILENT,
                   "device nvme: a folder on a local disk, as for offload_optimizer")},
    {OFFLOAD_PARAM(
        "pin_memory", BOOL, pin_memory, "true", SILENT,
        "page-locked host memory, which a GPU reads by itself; false: ordinary memory, which the host copies first")},
    {OFFLOAD_PARAM("buffer_count", INT(1, 1024), buffer_count, "5", SILENT,
                   "device nvme: buffers in host memory, each of buffer_size elements: one or two for each stream that "
                   "writes, the others to read; there is always one of each")},
    {OFFLOAD_PARAM(
        "max_in_cpu", INT(0, MAX_COUNT), max_in_cpu, "1e9", SILENT,
        "device nvme: a rank's own slices of the first units stay in host memory, up to this many elements")},
    {OFFLOAD_PARAM(
        "buffer_size", INT(1, MAX_COUNT), buffer_size, "4194304", SILENT,
        "device nvme: elements of a buffer, through which larger slices pass in pieces (DeepSpeed's default is 1e8)")},
    {SECTION("aio", "how offload to NVMe reads and writes")},
    {SAME(aio.block_size, INT(1, 1 << 30), "1048576", SILENT,
          "bytes of a transfer, rounded up to 4096; direct I/O if the file system takes it")},
    {SAME(aio.queue_depth, INT(1, 1024), "8", SILENT,
          "transfers in flight at a time for each file: in an io_uring, or each on a thread if the kernel refuses that "
          "(containers)")},
    {NOTICE("aio.intra_op_parallelism", INT, "1", "one io_uring has queue_depth transfers in flight")},
    {NOTICE("aio.thread_count", INT, "1", "one io_uring has queue_depth transfers in flight")},
    {NOTICE("aio.single_submit", BOOL, "false", "transfers that are ready are submitted together")},
    {NOTICE("aio.overlap_events", BOOL, "true", "transfers are submitted while others are in flight")},
    {NOTICE("aio.use_gds", BOOL, "false", "data pass through pinned host memory")},

    /* ---- memory, monitors ------------------------------------------------ */
    {SECTION("activation_checkpointing", "recomputation of activations in backward")},
    {USED("activation_checkpointing.enabled", BOOL, activation_checkpointing, "false", NOTICE,
          "true without a policy is policy block (DeepSpeed's section has no switch); false with a policy other than "
          "none is refused; default: true with such a policy")},
    {USED("activation_checkpointing.policy", ONE_OF(recompute_choices), spec.transformer.recompute, "none", SILENT,
          "the activations that backward computes again instead of keeping them, with the same bits; norms: the "
          "outputs of norms; mlp: also the activation between the MLP's products; attention: also q, k, v and the "
          "attention's output; block: everything but each block's input; a GPU may compute SwiGLU inside a product, "
          "but not with mlp and attention, which then agree with the other policies to rounding")},
    {USED("activation_checkpointing.cpu_checkpointing", BOOL, spec.cpu_checkpointing, "false", SILENT,
          "keep the blocks' inputs in host memory between forward and backward, with the same bits; needs a policy "
          "other than none")},
    {NOTICE("activation_checkpointing.partition_activations", BOOL, "false", "there is no tensor parallelism")},
    {NOTICE("activation_checkpointing.contiguous_memory_optimization", BOOL, "false",
            "activations are planned ahead in one arena")},
    {NOTICE("activation_checkpointing.number_checkpoints", INT, NULL, "every block is a checkpoint")},
    {NOTICE("activation_checkpointing.synchronize_checkpoint_boundary", BOOL, "false",
            "nothing waits at the boundary of a block")},
    {NOTICE("activation_checkpointing.profile", BOOL, "false", "wall_clock_breakdown shows forward and backward")},
    {NOTICE("memory_breakdown", BOOL, "false", "metrics.jsonl has the memory in use, `ztrain plan` prints its parts")},
    {NOTICE("dump_state", BOOL, "false", "the effective spec is always printed (with --dry-run, every key)")},
    {SECTION("timers", "DeepSpeed's timers")},
    {SECTION("timers.throughput", "DeepSpeed's throughput timer")},
    {NOTICE("timers.throughput.enabled", BOOL, "true", "metrics.jsonl always has tokens per second")},
    {NOTICE("timers.throughput.synchronized", BOOL, "true", "the time of a step is taken when the step ends")},
    {SECTION("comms_logger", "what the collectives cost")},
    {SAME(comms_logger.enabled, BOOL, "false", SILENT,
          "at the end, log the calls, bytes, time and bandwidth of the collectives by purpose and unit; also the rank "
          "that the others wait for; comms.json in the run's folder has the same; blocks, but not steps, are CUDA "
          "graphs then")},
    {SAME(comms_logger.verbose, BOOL, "false", SILENT, "also log each collective of rank 0, after its step")},
    {SAME(comms_logger.prof_all, BOOL, "true", SILENT, "record all collectives, not only those of prof_ops")},
    {SAME(comms_logger.prof_ops, STRING_LIST, NULL, SILENT,
          "with prof_all: false, the collectives to record: all_gather, reduce_scatter")},
    {SAME(comms_logger.debug, BOOL, "false", SILENT, "show each block by itself in the table")},
    /* names of DeepSpeed's own objects, with which its log prints these sections */
    {SECTION("comms_config", "what DeepSpeed's log calls the section of comms_logger")},
    {ALIAS("comms_config.comms_logger", "comms_logger")},
    {NOTICE("comms_config.comms_logger_enabled", BOOL, "true", "comms_logger has its own switch, enabled")},
    {SECTION("monitor_config", "what DeepSpeed's log calls the sections of its monitors")},
    {ALIAS("monitor_config.tensorboard", "tensorboard")},
    {ALIAS("monitor_config.csv_monitor", "csv_monitor")},
    {ALIAS("monitor_config.wandb", "wandb")},
    {ALIAS("monitor_config.comet", "comet")},
    {NOTICE("monitor_config.enabled", BOOL, "true", "each monitor has its own switch, enabled")},
    {SECTION("tensorboard", "metrics for TensorBoard")},
    {SAME(tensorboard.enabled, BOOL, "false", SILENT,
          "write event files for TensorBoard, with DeepSpeed's tags (Train/Samples/train_loss, lr) and further ones "
          "over the number of samples; a resumed run begins a new file")},
    {SAME(tensorboard.output_path, PLACE, NULL, SILENT,
          "the folder that gets the folder job_name; default: RUN/tensorboard, in the folder of the run")},
    {SAME(tensorboard.job_name, STRING, NULL, SILENT,
          "the name of the folder for the files in output_path, by default run.name; without output_path a folder in "
          "RUN/tensorboard, by default none")},
    {SECTION("csv_monitor", "metrics as CSV")},
    {SAME(csv_monitor.enabled, BOOL, "false", SILENT, "write a CSV file for each of these tags, as DeepSpeed does")},
    {SAME(csv_monitor.output_path, PLACE, NULL, SILENT,
          "the folder that gets the folder job_name; default: RUN/csv_monitor, in the folder of the run")},
    {SAME(csv_monitor.job_name, STRING, NULL, SILENT,
          "the name of the folder for the files in output_path, by default run.name; without output_path a folder in "
          "RUN/csv_monitor, by default none")},
    {NOTICE("wandb", FOREIGN, NULL,
            "nothing is sent to a service while training; ztrain-wandb RUN sends a run's folder")},
    {NOTICE("comet", FOREIGN, NULL, "nothing is sent to a service; metrics.jsonl in the run's folder has all metrics")},
    {SECTION("flops_profiler", "time and FLOP/s of one step")},
    {SAME(flops_profiler.enabled, BOOL, "false", SILENT,
          "profile one step: a table of the ops with time, FLOP/s, bytes/s and share of the peak, and tables of the "
          "modules, forward and backward; the step is slower, with the same bits")},
    {SAME(flops_profiler.profile_step, INT(1, MAX_COUNT), "1", SILENT,
          "the step; the first one also loads kernels and touches memory")},
    {SAME(flops_profiler.module_depth, INT(-1, MAX_COUNT), "-1", SILENT,
          "levels of the modules' tables: 0 the model, 1 embedding, blocks and head, 2 each block; -1: all")},
    {SAME(flops_profiler.top_modules, INT(1, MAX_COUNT), "1", SILENT,
          "modules of each level that are named for their parameters, MACs and time")},
    {SAME(flops_profiler.detailed, BOOL, "true", SILENT, "a row for each block")},
    {SAME(flops_profiler.output_file, PLACE, NULL, SILENT, "write the tables there instead of logging them")},
    {NOTICE("flops_profiler.recompute_fwd_factor", REAL, "0.0",
            "what activation_checkpointing computes again is counted as it runs")},

    /* ---- DeepSpeed's features that ztrain does not have ------------------ */
    {REFUSED("elasticity", FOREIGN, NULL,
             "the number of ranks does not change while a run trains; hint: remove the section, and restart with "
             "--resume auto on any number of ranks")},
    {REFUSED("autotuning", FOREIGN, NULL,
             "there is no autotuner; hint: `ztrain plan --fit` searches the fastest settings that fit into memory")},
    {REFUSED("compression_training", FOREIGN, NULL, "there is no compression of models; hint: remove the section")},
    {REFUSED("quantize_training", FOREIGN, NULL, "there is no quantized training; hint: remove the section")},
    {REFUSED("weight_quantization", FOREIGN, NULL, "there is no quantized training; hint: remove the section")},
    {REFUSED("pipeline", FOREIGN, NULL, "there is no pipeline parallelism; hint: use zero_optimization stage 3")},
    {REFUSED("tensor_parallel", FOREIGN, NULL, "there is no tensor parallelism; hint: use zero_optimization stage 3")},
    {REFUSED("expert_parallel", FOREIGN, NULL, "ztrain has it under another name; hint: moe.expert_parallel_size")},
    {SECTION("preference", "training on pairs of answers, or on answers with a label (docs/preferences.md)")},
    {SAME(preference.loss, ONE_OF(preference_choices), "none", ERROR,
          "the loss, by TRL's names; kto takes answers with a label, the others pairs")},
    {SAME(preference.beta, REAL(0, 1e6), "0.1", NOTICE,
          "how strongly the reference holds the model; of orpo the weight of the odds"),
     .flags = KEY_ABOVE_MIN},
    {SAME(preference.label_smoothing, REAL(0, 0.5), "0", NOTICE,
          "this share of the pairs counts as labelled the wrong way round; of sigmoid, robust and simpo")},
    {SAME(preference.gamma, REAL(0, 1e6), "0.5", NOTICE, "the margin of simpo")},
    {SAME(preference.rpo_alpha, REAL(0, 1e6), "0", NOTICE,
          "the factor of the chosen answers' cross-entropy, which is added to the loss")},
    {SAME(preference.desirable_weight, REAL(0, 1e6), "1", NOTICE, "the weight of desirable answers in kto")},
    {SAME(preference.undesirable_weight, REAL(0, 1e6), "1", NOTICE, "the same of undesirable ones")},
    {SAME(preference.reference, PLACE, NULL, ERROR,
          "whose log-probabilities answers are compared with: a file of ztrain score, a folder, adapter-off (the base "
          "of an adapter), or none; a folder is a model, a checkpoint or a run, and is scored before the first step; "
          "default: adapter-off with peft, else the model that training starts from; simpo and orpo have none")},
    {SECTION("distill", "a teacher's log-probabilities as a part of the loss (docs/preferences.md)")},
    {USED("distill.logps", PLACE, spec.transformer.distill.logps, NULL, NOTICE,
          "a file of ztrain score --top-k on data.train: what the teacher expects after each token")},
    {USED("distill.temperature", REAL(0, 1e3), spec.transformer.distill.temperature, "1", NOTICE,
          "of both distributions: above 1 it shows what the teacher holds for less probable"),
     .flags = KEY_ABOVE_MIN},
    {USED("distill.alpha", REAL(0, 1), spec.transformer.distill.alpha, "0.5", NOTICE,
          "the weight of T² · KL(teacher || student) in the loss; 1 - alpha is that of the cross-entropy")},
    {SECTION("moe", "mixtures of experts")},
    {USED("moe.expert_parallel_size", INT(1, MAX_COUNT), spec.expert_parallel_size, "1", NOTICE,
          "ranks that have all experts between them, each a part; it divides the number of ranks and that of experts; "
          "tokens travel to experts and back (docs/experts.md)")},
    {REFUSED("sequence_parallel_size", INT, "1",
             "there is no sequence parallelism; hint: remove the key; activation_checkpointing makes room for long "
             "sequences")},
    {NOTICE("data_parallel_size", INT, NULL, "every rank is data parallel")},
    {REFUSED("sequence_parallel", FOREIGN, NULL, "there is no sequence parallelism; hint: remove the section")},
    {REFUSED("curriculum_learning", FOREIGN, NULL,
             "the seed decides the order of the samples; hint: remove the section")},
    {REFUSED("data_efficiency", FOREIGN, NULL, "the seed decides the order of the samples; hint: remove the section")},
    {REFUSED("progressive_layer_drop", FOREIGN, NULL, "every layer is always trained; hint: remove the section")},
    {REFUSED("eigenvalue", FOREIGN, NULL, "eigenvalues are not computed; hint: remove the section")},
    {REFUSED("sparse_attention", FOREIGN, NULL,
             "attention is full, or windowed as in the model's config (sliding_window); hint: remove the section")},
    {REFUSED("hybrid_engine", FOREIGN, NULL, "no text is generated during training; hint: remove the section")},
    {NOTICE("compile", FOREIGN, NULL, "there are no Python modules to compile")},
    {REFUSED("nebula", FOREIGN, NULL, "checkpoints go to the run's folder; hint: remove the section")},
    {REFUSED("datastates_ckpt", FOREIGN, NULL, "checkpoints go to the run's folder; hint: remove the section")},
    {.path = NULL},
};

const struct spec_key *spec_key_find(const char *path)
{
    for (const struct spec_key *key = spec_keys; key->path; key++)
        if (strcmp(key->path, path) == 0) return key;
    return NULL;
}

size_t spec_key_section_length(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? (size_t)(dot - path) : 0;
}

const char *spec_key_leaf(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

bool spec_key_in(const struct spec_key *key, const char *section)
{
    size_t length = spec_key_section_length(key->path);
    return strlen(section) == length && strncmp(key->path, section, length) == 0;
}

bool spec_adapter_has(const struct spec_key *key)
{
    return spec_key_in(key, "peft");
}

bool spec_key_applies(const struct spec_full *full, const struct spec_key *key)
{
    return (full->spec.adapter.on || !spec_adapter_has(key)) &&
           (!key->schedules || key->schedules & 1u << full->spec.scheduler.type) &&
           (!key->optimizers || key->optimizers & 1u << full->spec.optimizer.type);
}

bool spec_choice_is(const struct spec_key *key, const struct spec_choice *choice, const char *text)
{
    return (key->flags & KEY_ANY_CASE ? strcasecmp(choice->name, text) : strcmp(choice->name, text)) == 0;
}

json_t *spec_choice_json(const char *name)
{
    if (strcmp(name, "true") == 0 || strcmp(name, "false") == 0) return json_boolean(*name == 't');
    return json_string(name);
}

bool spec_choice_is_available(const struct spec_key *key, const char *text)
{
    for (const struct spec_choice *choice = key->choices; choice && choice->name; choice++)
        if (spec_choice_is(key, choice, text))
            return choice->verdict == VERDICT_USED || choice->verdict == VERDICT_ALIAS;
    return !key->choices;
}

bool spec_is_unknown_territory(const struct spec_node *root, const char *section)
{
    const char *path = strcmp(section, "optimizer.params") == 0   ? "optimizer.type"
                       : strcmp(section, "scheduler.params") == 0 ? "scheduler.type"
                                                                  : NULL;
    const struct spec_node *type = path ? spec_find(root, path) : NULL;
    return type && type->kind == NODE_STRING && !spec_choice_is_available(spec_key_find(path), type->text);
}

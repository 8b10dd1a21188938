/* SPDX-License-Identifier: Apache-2.0 */
/* test_spec_refused.c: every error of the run spec's reader, with its place; hostile files. */
#include "tests/unit/fixtures/spec_case.h"

/* ---- refusals: one line per mistake, with its place ---------------------- */

struct bad_case {
    const char *text;      /* the whole spec */
    const char *lines[12]; /* fragments of the expected lines, in this order; there are no other lines */
};

static const struct bad_case bad_cases[] = {
    /* unknown keys */
    {BASE "train_bach_size: 8\n", {":4:1: unknown key 'train_bach_size'; hint: did you mean 'train_batch_size'?"}},
    {BASE "optimizer:\n  params: {leraning_rate: 1}\n  tpye: AdamW\n",
     {":5:12: unknown key 'leraning_rate' in 'optimizer.params'; hint: --help-spec lists the keys",
      ":6:3: unknown key 'tpye' in 'optimizer'; hint: did you mean 'type'?"}},
    {BASE "optimizer: {betas: [0.9, 0.95]}\n",
     {":4:13: unknown key 'betas' in 'optimizer'; hint: this key belongs under 'optimizer.params'"}},
    {BASE "train: {seq_length: 8}\n",
     {":4:9: unknown key 'seq_length' in 'train'; hint: this key belongs under 'data'"}},
    {BASE "train: {steps_per_print: 8}\n",
     {":4:9: unknown key 'steps_per_print' in 'train'; hint: this key belongs at "
      "top level"}},
    {BASE "run: {gradient_cliping: 1}\n",
     {":4:7: unknown key 'gradient_cliping' in 'run'; hint: did you mean "
      "'gradient_clipping'?"}},
    {BASE "zero_optimization: {Stage: 1, stgae: 2}\n",
     {":4:21: unknown key 'Stage' in 'zero_optimization'; hint: did you mean 'stage'?",
      ":4:31: unknown key 'stgae' in 'zero_optimization'; hint: did you mean 'stage'?"}},
    /* a part of the name */
    {"model: {pretrained: x}\ndata: {train: a, seq_length: 8, seq_len: 8}\ntrain_batch_size: 8\n",
     {"'seq_len' in 'data'; hint: did you mean 'seq_length'?"}},
    {BASE "our_16bit_model: 8\n", {"unknown key 'our_16bit_model'; hint: --help-spec lists the keys"}},
    {BASE "train_micro_batch_size: 8\n", {"did you mean 'train_micro_batch_size_per_gpu'?"}},
    {BASE "train: {batch_size: 8}\n",
     {"unknown key 'batch_size' in 'train'; hint: write train_micro_batch_size_per_gpu"}},
    {BASE "run: {output_dir: x, output: x}\n",
     {"'output_dir' in 'run'; hint: write run.dir (the run's folder in it is run.name)",
      "'output' in 'run'; hint: --help-spec"}},
    {BASE "expert_parallel_size: 2\n",
     {":4:1: unknown key 'expert_parallel_size'; hint: write moe.expert_parallel_size"}},
    {BASE "moe: {ep_size: 2}\n", {":4:7: unknown key 'ep_size' in 'moe'; hint: write moe.expert_parallel_size"}},
    {BASE "data.train: a\n", {":4:1: unknown key 'data.train'"}},
    {BASE "\"evil\\e[31m\\n\": 1\n", {":4:1: unknown key 'evil\\x1b[31m\\x0a'"}},
    {BASE "fp16: {enabled: false, loss_scal: 0}\n",
     {":4:24: unknown key 'loss_scal' in 'fp16'; hint: did you mean "
      "'loss_scale'?"}},
    {BASE "# é%TAG in a comment\nöööööööööööööööööööööööööööööööööööööööööööööööööööööööööööööööööööööööööö: 1\n",
     {":5:1: unknown key 'öööööööööööööööööööööööööööööö...'; hint: --help-spec lists the keys"}},
    {BASE "xääääääääääääääääääääääääääääääääääääääääää: 1\n",
     {":4:1: unknown key 'xäääääääääääääääääääääääääääää...'"}},
    /* types and ranges */
    {BASE "aio: {block_size: big}\n", {":4:19: 'aio.block_size' must be an integer from 1 to 1073741824, not 'big'"}},
    {BASE "run: {seed: 1e}\n", {":4:13: 'run.seed' must be an integer of at least 0, not '1e'"}},
    {BASE "run: {seed: -1}\n",
     {":4:13: 'run.seed' must be an integer of at least 0, not '-1'; hint: the default is "
      "1234"}},
    {BASE "run: {seed: 1.5}\n", {":4:13: 'run.seed' must be an integer of at least 0, not '1.5'"}},
    {BASE "run: {seed: 99999999999999999999}\n", {":4:13: 'run.seed' must be an integer of at least 0, not '9999"}},
    {BASE "run: {seed: '12'}\n",
     {":4:13: 'run.seed' must be an integer of at least 0, not '12'; hint: the quotes make it text; write 12"}},
    {BASE "run: {seed: '1 2'}\n", {"not '1 2'; hint: the default is 1234"}},
    {BASE "gradient_clipping: \"1e-3\"\n", {"not '1e-3'; hint: the quotes make it text; write 1e-3"}},
    {BASE "optimizer: {params: {betas: [0.9, '0.95']}}\n", {"hint: the quotes make it text; write 0.95"}},
    {BASE "wall_clock_breakdown: 'true'\n", {"not 'true'; hint: the quotes make it text; write true"}},
    {BASE "run: {seed: 0x10}\n", {":4:13: 'run.seed' must be"}},
    {BASE "run: {name: a/b}\n", {":4:13: 'run.name' must be the name of a folder, not 'a/b'; hint: run.dir"}},
    {BASE "run: {name: ..}\n", {":4:13: 'run.name' must be the name of a folder"}},
    {BASE "run: {name: true}\n", {":4:13: 'run.name' must be text, not 'true'"}},
    {BASE "run: {dir: ''}\n", {":4:12: 'run.dir' must be text, not ''"}},
    {BASE "run: 5\n", {":4:6: 'run' must be a section"}},
    {BASE "run: [5]\n", {":4:6: 'run' must be a section"}},
    {BASE "wall_clock_breakdown: yes\n",
     {":4:23: 'wall_clock_breakdown' must be true or false, not 'yes'; hint: the truth "
      "values of older YAML"}},
    {BASE "wall_clock_breakdown: {a: 1}\n", {":4:23: 'wall_clock_breakdown' must be true or false, not a mapping"}},
    {BASE "wall_clock_breakdown:\n", {":4:22: 'wall_clock_breakdown' must be true or false, not nothing"}},
    {BASE "zero_optimization: {stage: 4}\n",
     {":4:28: 'zero_optimization.stage' must be an integer from 0 to 3, not "
      "'4'"}},
    {BASE "gradient_clipping: .nan\n", {":4:20: 'gradient_clipping' must be a finite number, not '.nan'"}},
    {BASE "gradient_clipping: -.inf\n", {":4:20: 'gradient_clipping' must be a finite number, not '-.inf'"}},
    {BASE "gradient_clipping: 1e999\n", {":4:20: 'gradient_clipping' must be a finite number, not '1e999'"}},
    {BASE "gradient_clipping: -1\n", {":4:20: 'gradient_clipping' must be a number of at least 0, not '-1'"}},
    {BASE "run: {seed: auto}\n",
     {":4:13: 'run.seed' cannot be derived from \"auto\"; hint: write a value (default: 1234)"}},
    {BASE "checkpoint: {interval_steps: auto}\n", {":4:30: 'checkpoint.interval_steps' cannot be derived"}},
    {BASE "optimizer: {type: auto}\n", {":4:19: 'optimizer.type' cannot be derived from \"auto\""}},
    {BASE "scheduler: {type: auto}\n", {":4:19: 'scheduler.type' cannot be derived from \"auto\""}},
    {BASE "optimizer: {params: {lr: auto}}\n",
     {":4:26: 'optimizer.params.lr' is \"auto\", and the run spec does not set it; hint: write optimizer: {params: "
      "{lr: 2e-5}}"}},
    {BASE "scheduler: {type: WarmupLR, params: {warmup_max_lr: auto}} # lr:\n",
     {":1:1: 'optimizer.params.lr' is missing; hint: write optimizer: {params: {lr: 2e-5}}"}},
    {BASE "optimizer: {type: AdamW, params: {eps: 0}}\n",
     {":4:40: 'optimizer.params.eps' must be a number from 1e-30 to 1, not '0'"}},
    {BASE "comm: {timeout_seconds: 0}\n", {":4:25: 'comm.timeout_seconds' must be a number above 0 to 86400, not '0'"}},
    {BASE "train: {device: gpu}\n",
     {":4:17: 'train.device' must be auto, cpu or cuda, not 'gpu'; hint: did you mean 'cuda'?"}},
    {BASE "train: {device: cup}\n",
     {":4:17: 'train.device' must be auto, cpu or cuda, not 'cup'; hint: did you mean 'cpu'?"}},
    {BASE "train: {device: true}\n", {":4:17: 'train.device' must be auto, cpu or cuda, not 'true'"}},
    {BASE "train: {cuda_graphs: 1}\n", {":4:22: 'train.cuda_graphs' must be auto, true or false, not '1'"}},
    {BASE "train: {device: 1}\n", {":4:17: 'train.device' must be auto, cpu or cuda, not '1'"}},
    {BASE "train: {epochs: 0, max_steps: 0}\n",
     {":4:17: 'train.epochs' must be a number above 0, not '0'",
      ":4:31: 'train.max_steps' must be an integer of at least 1, not '0'"}},
    {BASE "train: {max_steps: 9223372036854775807}\n",
     {":4:20: 'train.max_steps' must be an integer from 1 to 1e+15, not '9223372036854775807'"}},
    {BASE "train: {max_steps: 1e30}\n", {":4:20: 'train.max_steps' must be an integer from 1 to 1e+15, not '1e30'"}},
    {BASE "checkpoint: {compression_level: 23}\n",
     {":4:33: 'checkpoint.compression_level' must be an integer from 0 to "
      "22"}},
    {BASE "optimizer: {params: {betas: 0.9}}\n", {":4:29: 'optimizer.params.betas' must be a list of two numbers"}},
    {BASE "optimizer: {params: {betas: [0.9, 1]}}\n", {":4:29: 'optimizer.params.betas' must be below 1"}},
    {BASE "optimizer: {params: {betas: [0.9, x]}}\n",
     {":4:35: 'optimizer.params.betas' must be a number from 0 to 1, "
      "not 'x'"}},
    {BASE "data_types: {grad_accum_dtype: int8}\n",
     {":4:32: 'data_types.grad_accum_dtype' must be fp32 or bf16, "
      "not 'int8'"}},
    {BASE "comms_logger: {prof_ops: [all_gather, all_reduce]}\n",
     {":4:26: 'comms_logger.prof_ops': there is no collective 'all_reduce' here; hint: all_gather and reduce_scatter"}},
    {BASE "comms_logger: {prof_ops: {all: 1}}\n",
     {":4:26: 'comms_logger.prof_ops' must be a name, or a list of names, not a mapping"}},
    {BASE "train: {deterministic: maybe}\n", {":4:24: 'train.deterministic' must be true or false, not 'maybe'"}},
    {BASE "train: {logits_dtype: bf16}\n", {":4:23: 'train.logits_dtype' bf16 needs bf16.enabled; hint: use auto"}},
    {BASE "train: {logits_dtype: fp16}\n", {":4:23: 'train.logits_dtype' must be auto, bf16 or fp32, not 'fp16'"}},
    /* virtual ranks: sums in fp32, in their order */
    {BASE "train: {virtual_ranks: 8}\ndata_types: {grad_accum_dtype: bf16}\n",
     {":5:32: 'data_types.grad_accum_dtype' bf16 is refused with train.virtual_ranks, which adds gradients in fp32; "
      "hint: fp32"}},
    {BASE "train: {virtual_ranks: 8}\nbf16: {enabled: true, bf16_master_weights_and_grads: true}\n",
     {":5:54: 'bf16.bf16_master_weights_and_grads' accumulates gradients in bf16, and train.virtual_ranks adds them in "
      "fp32; hint: set data_types.grad_accum_dtype to fp32"}},
    {BASE "train: {virtual_ranks: 8, deterministic: false}\ncomm: {reduce_within_node: true}\n",
     {":4:42: 'train.deterministic' false is refused with train.virtual_ranks: runs would agree to rounding only; "
      "hint: "
      "train.deterministic: true",
      ":5:28: 'comm.reduce_within_node' is refused with train.virtual_ranks: it adds gradients in an order that "
      "depends "
      "on the nodes; hint: false"}},
    {BASE "train: {virtual_ranks: 4097}\n", {":4:24: 'train.virtual_ranks' must be an integer from 0 to 4096"}},
    {BASE "train: {virtual_ranks: -1}\n", {":4:24: 'train.virtual_ranks' must be an integer from 0 to 4096"}},
    /* ztrain's own switches are not DeepSpeed's, which take 0 and 1 */
    {"model: {config: a}\ndata: {train: a, seq_length: 8, shuffle: 1}\ntrain_batch_size: 8\n",
     {":2:42: 'data.shuffle' must be true or false, not '1'"}},
    {BASE "wall_clock_breakdown: 2\n", {":4:23: 'wall_clock_breakdown' must be true or false, not '2'"}},
    {"model: {config: a, ignore_tensors: ['v_head.*']}\ndata: {train: a, seq_length: 8}\ntrain_batch_size: 8\n",
     {":1:20: 'model.ignore_tensors' needs model.pretrained"}},
    /* absent, or given twice */
    {"run: {name: a}\n",
     {":1:1: 'data.train' is missing; hint: ", ":1:1: 'data.seq_length' is missing; hint: ",
      ":1:1: 'model.pretrained' or 'model.config' is missing; hint: ",
      ":1:1: Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided"}},
    {"model: {config: a}\ndata: {train: , seq_length: 8}\ntrain_batch_size: 8\n", {":2:8: 'data.train' has no value"}},
    {"model: {config: a}\ndata: {train: a, seq_length: 1, packing: false}\ntrain_batch_size: 8\n",
     {":2:30: 'data.seq_length' 1 leaves no target if data.packing is false or first_fit; hint: use 2 or more"}},
    {"model: {pretrained: models/gpt2}\ndata: {train: [data/a, x/b.jsonl.gz], validation: 'v*.csv', seq_length: 8}\n"
     "train_batch_size: 8\n",
     {":2:15: 'data.train' names text, 'x/b.jsonl.gz', and not token shards; hint: run ztrain-tokenize "
      "x/b.jsonl.gz --output x/b --tokenizer models/gpt2 (and --chat-template for conversations), then set data.train: "
      "x/b",
      ":2:51: 'data.validation' names text, 'v*.csv', and not token shards; hint: run ztrain-tokenize v*.csv "
      "--output v --tokenizer models/gpt2"}},
    {"model: {config: a}\ndata: {train: [], seq_length: 8}\ntrain_batch_size: 8\n",
     {":2:15: 'data.train' must be a path, or a list of at least one path"}},
    {"model: {config: a}\ndata: {train: [{path: a, weight: 2.0}, b], seq_length: 8}\ntrain_batch_size: 8\n",
     {":2:40: 'data.train' is a mixture, so that each of its entries needs a path and a weight or epochs; hint: write "
      "{path: b, weight: 1}, or list only paths"}},
    {"model: {config: a}\ndata: {train: {path: a, weight: 2.0}, seq_length: 8}\ntrain_batch_size: 8\n",
     {":2:15: 'data.train' must be a path, or a list of paths or sources, not a mapping; hint: a mixture is a list"}},
    {"model: {config: a}\ndata:\n  seq_length: 8\n  train:\n  - {path: a, wieght: 2.0}\n  - {weight: 1}\n  - {path: "
     "c}\n"
     "  - {path: d, weight: 1, epochs: 1}\n  - {path: e, weight: 0}\n  - {path: f, weight: -1.5}\n"
     "  - {path: g, weight: .inf}\n  - {path: h, weight: much}\n  - {path: i, weight: 1e7}\n  - {path: [j], weight: "
     "1}\n"
     "  - {path: '', weight: 1}\ntrain_batch_size: 8\n",
     {":5:15: unknown key 'wieght' in a source of 'data.train'; hint: did you mean 'weight'?",
      ":6:5: a source of 'data.train' has no path; hint: write {path: …, weight: …}",
      ":7:5: a source of 'data.train' has neither a weight nor epochs; hint: weight: its share of the samples",
      ":8:5: a source of 'data.train' has both a weight and epochs",
      ":9:23: 'weight' of a source of 'data.train' must be a number above 0, up to 1000000; hint: leave out a source",
      ":10:23: 'weight' of a source of 'data.train' must be a number above 0",
      ":11:23: 'weight' of a source of 'data.train' must be a number above 0",
      ":12:23: 'weight' of a source of 'data.train' must be a number above 0",
      ":13:23: 'weight' of a source of 'data.train' must be a number above 0",
      ":14:12: the path of a source of 'data.train' must be one text",
      ":15:12: the path of a source of 'data.train' must be one text"}},
    {"model: {config: a}\ndata:\n  seq_length: 8\n  train:\n  - {path: a, weight: 2}\n  - {path: b, epochs: 1}\n"
     "  - {path: a, weight: 1}\n  - {path: x.jsonl, weight: 1}\ntrain_batch_size: 8\n",
     {":6:5: 'data.train' has a source with epochs after one with weight: the two do not mix",
      ":7:5: 'data.train' has the source 'a' twice; hint: name it once, with a larger weight"}},
    {"model: {config: a}\ndata: {train: [{path: x.jsonl, weight: 1}], seq_length: 8}\ntrain_batch_size: 8\n",
     {":2:15: 'data.train' names text, 'x.jsonl', and not token shards"}},
    {"model: {config: a}\ndata: {train: a, validation: [{path: a, weight: 2.0}], seq_length: 8}\ntrain_batch_size: 8\n",
     {":2:31: 'data.validation' cannot be a mixture of sources, as data.train can; hint: list only the paths"}},
    {"model: {config: a}\ndata: {train: [a, [b]], seq_length: 8}\ntrain_batch_size: 8\n",
     {":2:19: 'data.train' must be a path, or a list of paths, not a list"}},
    {"model: {config: a}\ndata: {train: a, seq_length: 8}\ngradient_accumulation_steps: 8\n",
     {":1:1: Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided"}},
    {"model: {config: a}\ndata: {train: a, seq_length: 8}\ntrain_batch_size: auto\n",
     {":1:1: Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided"}},
    {"model: {config: a, pretrained: b}\ndata: {train: a, seq_length: 8}\ntrain_batch_size: 1\n",
     {":1:20: model.pretrained and model.config are both set"}},
    {"model: {config: [a]}\ndata: {train: a, seq_length: 8}\ntrain_batch_size: 1\n",
     {":1:17: 'model.config' must be the path of a config.json, or its keys as a mapping, not a list"}},
    {"model: {config: {a: {b: .nan}}}\ndata: {train: a, seq_length: 8}\ntrain_batch_size: 1\n",
     {":1:25: .nan is not a finite number"}},
    {BASE "train_batch_size: 9\nrun: {seed: 1, seed: 2}\n",
     {":4:1: 'train_batch_size' is set twice: here and at ", ":5:16: 'seed' is set twice"}},
    {BASE "bf16: {enabled: true}\nbfloat16: {enabled: false}\n", {":5:12: 'bf16.enabled' is false here and true at "}},
    /* keys that do not go together */
    {BASE "bf16: {enabled: true}\nfp16: {enabled: true}\n",
     {":5:8: bfloat16 and fp16 modes cannot be simultaneously enabled; hint: "}},
    {BASE "fp16: {enabled: true, initial_scale_power: 3, min_loss_scale: 16}\n",
     {":4:44: 'fp16.initial_scale_power' 3 begins below fp16.min_loss_scale 16"}},
    {BASE "optimizer: {type: AdamW, params: {adam_w_mode: false}}\n", {":4:35: AdamW without adam_w_mode is Adam"}},
    {BASE "scheduler: {params: {warmup_steps: 3}}\n", {":1:1: 'scheduler.type' is missing"}},
    {BASE "scheduler: {type: Cosine, params: {warmup_num_steps: 3}}\n",
     {":4:36: 'scheduler.params.warmup_num_steps' is not a parameter of Cosine; hint: its parameters are warmup_steps, "
      "warmup_ratio, total_steps, min_lr"}},
    {BASE "scheduler: {type: Constant, params: {min_lr: 0}}\n",
     {":4:38: 'scheduler.params.min_lr' is not a parameter of Constant; hint: its parameters are warmup_steps"}},
    {BASE "scheduler: {type: Linear, params: {warmup_steps: 9, total_steps: 8}}\n",
     {":4:50: 'scheduler.params.warmup_steps' 9 is more than total_steps 8"}},
    {BASE "scheduler: {type: WarmupDecayLR, params: {}}\n",
     {":1:1: 'scheduler.params.total_num_steps' is missing: WarmupDecayLR needs it; hint: \"auto\""}},
    {BASE "scheduler: {type: warmuplr, params: {x: 1}}\n", {":4:38: unknown key 'x' in 'scheduler.params'"}},
    {BASE "scheduler: {type: Exponential, params: {x: 1}}\n",
     {":4:19: 'scheduler.type' must be Constant, Linear, Cosine, WSD, WarmupLR, WarmupDecayLR, WarmupCosineLR, "
      "OneCycle or LRRangeTest, not 'Exponential'"}},
    {BASE "activation_checkpointing: {enabled: false, policy: mlp}\n",
     {":4:44: activation_checkpointing.enabled is false, but its policy is mlp; hint: remove enabled"}},
    {BASE "activation_checkpointing: {policy: layers}\n",
     {":4:36: 'activation_checkpointing.policy' must be none, norms, mlp, attention or block, not 'layers'"}},
    {BASE "activation_checkpointing: {cpu_checkpointing: true}\n",
     {":4:28: activation_checkpointing.cpu_checkpointing needs activations that are computed again from the blocks' "
      "inputs; hint: set activation_checkpointing.policy to block"}},
    {BASE "zero_optimization: {stage: 2, offload_param: {device: cpu}}\n",
     {":4:47: offload_param needs zero_optimization stage 3, not 2"}},
    {BASE "zero_optimization: {stage: 2, offload_optimizer: {device: nvme}}\n",
     {":4:51: offload_optimizer to nvme needs zero_optimization stage 3, not 2",
      ":4:51: offload_optimizer to nvme needs nvme_path; hint: a folder on a local disk"}},
    {BASE "zero_optimization: {offload_optimizer: {device: cpu}}\n",
     {":4:41: offload_optimizer needs zero_optimization stage 1, 2 or 3, not 0"}},
    {BASE "zero_optimization: {stage: 7, offload_param: {device: nvme}}\n",
     {":4:28: 'zero_optimization.stage' must be an integer from 0 to 3"}},
    {BASE "zero_optimization: {stage: 3, offload_param: {device: nvme}}\n",
     {":4:47: offload_param to nvme needs nvme_path; hint: a folder on a local disk"}},
    {BASE "zero_optimization: {stage: 3, offload_optimizer: {buffer_count: 0}}\naio: {queue_depth: 0, block_size: 0}\n",
     {":4:65: 'zero_optimization.offload_optimizer.buffer_count' must be an integer from 1 to 1024, not '0'",
      ":5:20: 'aio.queue_depth' must be an integer from 1 to 1024, not '0'",
      ":5:35: 'aio.block_size' must be an integer from 1 to 1073741824, not '0'"}},
    {BASE "zero_optimization: {cpu_offload_param: true}\n",
     {":4:21: offload_param needs zero_optimization stage 3, not 0"}},
    {BASE "zero_optimization: {stage: 3, cpu_offload_param: true, offload_param: {device: none}}\n",
     {"'zero_optimization.offload_param.device' is "}},
    {BASE "zero_optimization: {cpu_offload_params: true, gather_16bit_weights_on_model_save: true}\n",
     {":4:21: offload_param needs zero_optimization stage 3, not 0"}},
    {BASE "zero_optimization: {stage: 3, cpu_offload_param: 2}\n",
     {"'zero_optimization.offload_param' must be a section"}},
    /* DeepSpeed's keys that need more than "not supported" */
    {BASE "optimizer: {type: Adagrad, params: {lr: 1, betas: [0.9, 0.99], whatever: 1}}\n",
     {":4:19: 'optimizer.type' Adagrad is not supported yet; hint: use AdamW, Adam, Lion, SGD, Muon or AdamW8bit"}},
    {BASE
     "optimizer: {type: Muon, params: {lr: 1, dampening: 0.1, ns_steps: 100, adjust_lr_fn: rms, ns_method: svd}}\n",
     {":4:41: 'optimizer.params.dampening' is not a parameter of Muon; hint: its parameters are lr, betas, eps, ",
      ":4:67: 'optimizer.params.ns_steps' must be an integer from 1 to 99, not '100'",
      ":4:86: 'optimizer.params.adjust_lr_fn' must be original, match_rms_adamw or spectral_unclamped, not 'rms'",
      ":4:102: 'optimizer.params.ns_method' must be standard or gram, not 'svd'"}},
    {BASE "optimizer: {type: Muon, params: {lr: 1, momentum: 1}}\n",
     {":4:51: 'optimizer.params.momentum' of Muon must be below 1; hint: 0.95 is usual"}},
    {BASE "optimizer: {type: Muon, params: {lr: 0, muon_lr: 1}}\n",
     {":4:41: 'optimizer.params.lr' is 0, so AdamW would not learn and Muon would"}},
    {BASE "optimizer: {params: {muon_lr: 0.1}}\n", {":4:22: 'optimizer.params.muon_lr' is not a parameter of AdamW"}},
    {BASE "optimizer: {type: Muon}\nzero_optimization: {stage: 1, offload_optimizer: {device: cpu}}\n",
     {":5:51: offload_optimizer is not supported yet with optimizer Muon; hint: set its device to none, or use AdamW"}},
    {BASE "optimizer: {type: Muon}\nzero_optimization: {stage: 3, offload_param: {device: cpu}}\n",
     {":5:47: offload_param is not supported yet with optimizer Muon; hint: set its device to none, or use AdamW"}},
    {BASE "optimizer: {type: Muon}\nzero_optimization: {stage: 3, offload_optimizer: {device: nvme, nvme_path: /d}}\n",
     {":5:51: offload_optimizer is not supported yet with optimizer Muon"}},
    {BASE "bf16: {enabled: true, bf16_master_weights_and_grads: true}\noptimizer: {type: Muon}\n",
     {":4:23: bf16_master_weights_and_grads is not supported yet with optimizer Muon"}},
    {BASE "optimizer: {type: SGD, params: {lr: 1, betas: [0.9, 0.99], nesterov: false}}\n",
     {":4:40: 'optimizer.params.betas' is not a parameter of SGD; hint: its parameters are lr, weight_decay, "
      "weight_decay_all, momentum, dampening, nesterov"}},
    {BASE "optimizer: {type: SGD, params: {nesterov: true}}\n",
     {":4:33: 'optimizer.params.nesterov' needs momentum and no dampening"}},
    {BASE "optimizer: {type: SGD, params: {nesterov: true, momentum: 0.9, dampening: 0.5}}\n",
     {":4:33: 'optimizer.params.nesterov' needs momentum and no dampening"}},
    {BASE "optimizer: {params: {momentum: 0.9}}\n",
     {":4:22: 'optimizer.params.momentum' is not a parameter of AdamW; hint: its parameters are lr, betas, "}},
    {BASE "bf16: {enabled: true, bf16_master_weights_and_grads: true}\noptimizer: {type: Lion}\n",
     {":4:23: bf16_master_weights_and_grads is not supported yet with optimizer Lion"}},
    {BASE "optimizer: {type: onebitadam, params: {freeze_step: 3}}\n",
     {":4:19: 'optimizer.type' OneBitAdam is not supported: gradients are reduced exactly; hint: use AdamW"}},
    {BASE "scheduler: {type: OneCycle, params: {cycle_min_lr: 1, decay_mom_rate: 0.1}}\n",
     {":1:1: 'scheduler.params.cycle_max_lr' is missing: OneCycle needs it; hint: ",
      ":4:55: 'scheduler.params.decay_mom_rate' is not supported: beta1 would grow past 1"}},
    {BASE "scheduler: {type: WSD, params: {warmup_steps: 3, warmup_ratio: 0.1}}\n",
     {":1:1: 'scheduler.params.decay_steps' is missing: WSD needs it; hint: ",
      ":4:50: scheduler.params.warmup_steps and warmup_ratio are both set"}},
    {BASE "scheduler: {type: WarmupLR, params: {warmup_num_steps: 3, warmup_ratio: 0.1}}\n",
     {":4:59: scheduler.params.warmup_num_steps and warmup_ratio are both set"}},
    {BASE "zero_optimization: {stage: 3, zero_hpz_partition_size: 8}\n",
     {":4:31: 'zero_optimization.zero_hpz_partition_size' is not supported yet: a secondary partition within a node "
      "(hpZ); hint: remove it or leave it at 1"}},
    /* one value where a section is due, as other trainers write it */
    {BASE "bf16: true\nactivation_checkpointing: true\nscheduler: cosine\nfp16: auto\n",
     {":4:7: 'bf16' must be a section: keys with values, indented below it; hint: write bf16: {enabled: true}",
      ":5:27: 'activation_checkpointing' must be a section: keys with values, indented below it; hint: write "
      "activation_checkpointing: {enabled: true}",
      ":6:12: 'scheduler' must be a section: keys with values, indented below it; hint: write scheduler: {type: "
      "cosine}",
      ":7:7: 'fp16' must be a section: keys with values, indented below it; hint: write fp16: {enabled: auto}"}},
    {BASE "quux: true\n", {":4:1: unknown key 'quux'; hint: --help-spec lists the keys"}},
    {BASE "scheduler: constant_with_warmup\n",
     {":4:12: 'scheduler' must be a section: keys with values, indented below it; hint: write scheduler: {type: "
      "Constant}, or another one that --help-spec lists"}},
    {"train_batch_size: 4\nmodel: {pretrained: m}\ndata: {seq_length: 8}\n",
     {":1:1: 'data.train' is missing; hint: a Megatron-LM prefix (.bin and .idx), an llm.c .bin file, a glob, or a "
      "list "
      "of these"}},
    {BASE "run: true\ntrain: fast\n",
     {":4:6: 'run' must be a section: keys with values, indented below it; hint: --help-spec lists them",
      ":5:8: 'train' must be a section"}},
    {BASE "scheduler: {type: WSD, params: {warmup_steps: 3, decay_steps: 7, total_steps: 9}}\n",
     {":4:33: 'scheduler.params.warmup_steps' 3 and decay_steps 7 are more than total_steps 9"}},
    {BASE "scheduler: {type: OneCycle, params: {cycle_min_lr: 0, cycle_max_lr: 1, cycle_min_mom: 0.9, "
          "cycle_max_mom: 0.8}}\n",
     {":4:72: 'scheduler.params.cycle_min_mom' 0.9 is above cycle_max_mom 0.8"}},
    {BASE "optimizer: {params: {max_grad_norm: 0}}\n",
     {":4:22: 'optimizer.params.max_grad_norm' is not supported: "
      "clipping is not an option of the optimizer; hint: use "
      "gradient_clipping"}},
    {BASE "compression_training: {weight_quantization: {shared_parameters: {enabled: true}}}\n",
     {":4:1: 'compression_training' is not supported"}},
    {BASE "pipeline: {stages: auto}\n", {":4:1: 'pipeline' is not supported"}},
    {BASE "amp: true\n", {":4:1: 'amp' is not supported"}},
    {BASE "elasticity: [1]\n", {":4:1: 'elasticity' is not supported"}},
    /* YAML */
    {"a: [1\n", {":2:1: not valid YAML: did not find expected ',' or ']'"}},
    {"a:\n\t- b\n", {":2:1: not valid YAML: found character that cannot start any token; hint: indent with blanks"}},
    {"a: 'b\n", {":2:1: not valid YAML: found unexpected end of stream"}},
    {"a: 1\n  b: 2\n", {":2:4: not valid YAML: mapping values are not allowed in this context"}},
    {"a: \"\xff\"\n", {":1:5: not a text file in UTF-8: invalid leading UTF-8 octet"}},
    {"ä: 1\nö: \xc3\n", {":2:5: not a text file in UTF-8: "}},
    {"a: \"\\ud800\"\n", {":1:7: not valid YAML: found invalid Unicode character escape code"}},
    {"a: \"b\\0c\"\n", {":1:4: a text contains a NUL character"}},
    {"a: &x [*x]\n", {":1:4: anchors, aliases and tags"}},
    {"a: *x\n", {":1:4: anchors, aliases and tags"}},
    {"a: !!python/object 1\n", {":1:4: anchors, aliases and tags"}},
    {"%TAG ! tag:example.com:\n---\na: 1\n", {":1:1: %TAG directives are not supported"}},
    {"a: {<<: {b: 1}}\n", {":1:5: merge keys ('<<') are not supported"}},
    {"a: 1\n---\nb: 2\n", {":2:1: the file has a second document"}},
    {"[a, b]: 1\n", {":1:1: a key must be a plain name"}},
    {"? {a: 1}\n: b\n", {":1:3: a key must be a plain name"}},
    {"'': 1\n", {":1:1: a key has no name"}},
    {"", {":1:1: the file is empty"}},
    {"# nothing\n", {":1:1: the file is empty"}},
    {"--- \n", {":1:1: the file is empty"}},
    {"- a\n", {":1:1: the file must be a mapping"}},
    {"null\n", {":1:1: the file must be a mapping"}},
};

static void expect_errors(const struct spec_report *report, const char *const *lines, size_t max_lines,
                          const char *about)
{
    size_t expected = 0;
    while (expected < max_lines && lines[expected]) expected++;
    bool good = (size_t)report->errors.count == expected;
    for (size_t i = 0; good && i < expected; i++) good = strstr(report->errors.items[i], lines[i]) != NULL;
    if (!good) {
        print_error("spec:\n%s\nexpected:\n", about);
        for (size_t i = 0; i < expected; i++) print_error("    %s\n", lines[i]);
        print_error("got:\n");
        print_lines(&report->errors);
        fail();
    }
}

static void test_bad_specs(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad_cases); i++) {
        struct run_spec *spec;
        struct spec_report report = {0};
        const char *text = bad_cases[i].text;
        assert_int_equal(load_case(text, NULL, 0, &spec, &report), STATUS_USAGE);
        assert_null(spec);
        expect_errors(&report, bad_cases[i].lines, COUNT_OF(bad_cases[i].lines), text);
        spec_report_release(&report);
    }
}

/* Every error of a spec comes out, sorted by its place. */
static void test_all_at_once(void **state)
{
    (void)state;
    static const struct bad_case all = {
        "run: {nme: x}\nmodel: {config: a}\ndata: {seq_length: x, train: a}\nzero_optimization: {stage: 9}\n"
        "optimizer: {type: SDG}\n",
        {":1:1: Either", ":1:7: unknown key 'nme'", ":3:20: 'data.seq_length'", ":4:28: 'zero_optimization.stage'",
         ":5:19: 'optimizer.type'"}};
    struct run_spec *spec;
    struct spec_report report = {0};
    assert_int_equal(load_case(all.text, NULL, 0, &spec, &report), STATUS_USAGE);
    expect_errors(&report, all.lines, COUNT_OF(all.lines), all.text);
    spec_report_release(&report);
}

/* ---- every key of DeepSpeed has its verdict ------------------------------ */

/* "--set path=value" on a good spec. */
static enum status load_with(const char *path, const char *value, struct spec_report *report)
{
    char set[512];
    const char *sets[] = {set};
    struct run_spec *spec;
    snprintf(set, sizeof set, "%s=%s", path, value);
    enum status status = load_case(BASE, sets, 1, &spec, report);
    spec_free(spec);
    return status;
}

/* A value that is not the row's default. */
static const char *other_value(const struct spec_key *key, char *buffer, size_t size)
{
    switch (key->type) {
    case KEY_BOOL: return strcmp(key->fallback, "true") == 0 ? "false" : "true";
    case KEY_INT:
    case KEY_REAL:
        snprintf(buffer, size, "%.15g", key->fallback ? strtod(key->fallback, NULL) + 1 : 3.0);
        return buffer;
    case KEY_CHOICE:
        for (const struct spec_choice *choice = key->choices; choice->name; choice++)
            if (strcmp(choice->name, key->fallback) != 0) return choice->name;
        return NULL;
    case KEY_FOREIGN: return "{enabled: true}";
    default: return "x";
    }
}

static void test_verdicts(void **state)
{
    (void)state;
    int seen[VERDICT_SYNONYM + 1] = {0};
    for (const struct spec_key *key = spec_keys; key->path; key++) {
        if (key->type == KEY_SECTION || key->type == KEY_ALIAS || key->verdict == VERDICT_USED) continue;
        if (key->schedules || key->optimizers) /* of a scheduler or an optimizer that the base does not have */
            continue;
        seen[key->verdict]++;
        char buffer[32], fragment[256];
        struct spec_report report = {0};
        enum status status = load_with(key->path, other_value(key, buffer, sizeof buffer), &report);
        bool refused = key->verdict == VERDICT_LATER || key->verdict == VERDICT_REFUSED;
        assert_int_equal(status, refused ? STATUS_USAGE : STATUS_OK);
        if (key->verdict == VERDICT_LATER || key->verdict == VERDICT_REFUSED) {
            snprintf(fragment, sizeof fragment, "--set %s: '%s' is not supported%s: ", key->path, key->path,
                     key->verdict == VERDICT_LATER ? " yet" : "");
            expect_line(&report.errors, fragment);
            expect_line(&report.errors, "; hint: ");
        } else if (key->verdict == VERDICT_NOTICE) {
            snprintf(fragment, sizeof fragment, "--set %s: '%s' has no effect here: ", key->path, key->path);
            expect_line(&report.notices, fragment);
            assert_int_equal(report.notices.count, 1);
        } else {
            assert_int_equal(report.notices.count, 0);
        }
        spec_report_release(&report);

        /* a value that requests what ztrain does is accepted without a notice; so is a section that is off */
        const char *usual = key->type == KEY_FOREIGN ? "{enabled: false, x: [1, 2]}" : key->fallback;
        if (!usual) continue;
        assert_int_equal(load_with(key->path, usual, &report), STATUS_OK);
        assert_int_equal(report.errors.count + report.notices.count, 0);
        spec_report_release(&report);
        assert_int_equal(load_with(key->path, "null", &report), STATUS_OK);
        assert_int_equal(report.errors.count + report.notices.count, 0);
        spec_report_release(&report);
    }
    assert_true(seen[VERDICT_LATER] > 6 && seen[VERDICT_NOTICE] > 40 && seen[VERDICT_REFUSED] > 20);
}

/* Keys from DeepSpeed configurations: none may be unknown. */
static void test_deepspeed_names(void **state)
{
    (void)state;
    static const char *const names[] = {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "dataloader_drop_last",
        "optimizer.type",
        "optimizer.params.lr",
        "optimizer.params.betas",
        "optimizer.params.muon_lr",
        "optimizer.params.adam_lr",
        "optimizer.params.momentum",
        "optimizer.params.ns_method",
        "zero_optimization.save_muon_momentum_buffer_in_memory",
        "optimizer.params.eps",
        "optimizer.params.weight_decay",
        "optimizer.params.bias_correction",
        "optimizer.params.adam_w_mode",
        "optimizer.params.amsgrad",
        "optimizer.params.torch_adam",
        "optimizer.params.legacy_fusion",
        "optimizer.params.max_grad_norm",
        "scheduler.type",
        "scheduler.params.warmup_min_lr",
        "scheduler.params.warmup_max_lr",
        "scheduler.params.warmup_num_steps",
        "scheduler.params.warmup_type",
        "scheduler.params.total_num_steps",
        "scheduler.params.warmup_min_ratio",
        "scheduler.params.cos_min_ratio",
        "scheduler.params.cycle_min_lr",
        "scheduler.params.cycle_max_lr",
        "scheduler.params.decay_lr_rate",
        "scheduler.params.cycle_first_step_size",
        "scheduler.params.cycle_second_step_size",
        "scheduler.params.cycle_first_stair_count",
        "scheduler.params.cycle_second_stair_count",
        "scheduler.params.decay_step_size",
        "scheduler.params.cycle_momentum",
        "scheduler.params.cycle_min_mom",
        "scheduler.params.cycle_max_mom",
        "scheduler.params.decay_mom_rate",
        "scheduler.params.lr_range_test_min_lr",
        "scheduler.params.lr_range_test_step_size",
        "scheduler.params.lr_range_test_step_rate",
        "scheduler.params.lr_range_test_staircase",
        "bf16.enabled",
        "bfloat16",
        "bf16.check_grad_overflow",
        "fp16.enabled",
        "fp16.loss_scale",
        "fp16.initial_scale_power",
        "fp16.loss_scale_window",
        "fp16.hysteresis",
        "fp16.consecutive_hysteresis",
        "fp16.min_loss_scale",
        "data_types.grad_accum_dtype",
        "communication_data_type",
        "bf16.bf16_master_weights_and_grads",
        "bf16.bf16_optimizer_states",
        "prescale_gradients",
        "gradient_predivide_factor",
        "gradient_clipping",
        "amp",
        "torch_autocast",
        "sparse_gradients",
        "zero_optimization.stage",
        "zero_optimization.contiguous_gradients",
        "zero_optimization.reduce_scatter",
        "zero_optimization.reduce_bucket_size",
        "zero_optimization.allgather_bucket_size",
        "zero_optimization.overlap_comm",
        "zero_optimization.round_robin_gradients",
        "zero_optimization.sub_group_size",
        "zero_optimization.offload_optimizer.device",
        "zero_optimization.offload_optimizer.nvme_path",
        "zero_optimization.offload_optimizer.pin_memory",
        "zero_optimization.offload_optimizer.buffer_count",
        "zero_optimization.offload_optimizer.pipeline_read",
        "zero_optimization.offload_optimizer.pipeline_write",
        "zero_optimization.offload_optimizer.ratio",
        "zero_optimization.offload_param.device",
        "zero_optimization.offload_param.nvme_path",
        "zero_optimization.offload_param.pin_memory",
        "zero_optimization.offload_param.buffer_count",
        "zero_optimization.offload_param.buffer_size",
        "zero_optimization.offload_param.max_in_cpu",
        "zero_optimization.stage3_prefetch_bucket_size",
        "zero_optimization.stage3_param_persistence_threshold",
        "zero_optimization.stage3_max_live_parameters",
        "zero_optimization.stage3_max_reuse_distance",
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
        "zero_optimization.zero_hpz_partition_size",
        "zero_optimization.zero_quantized_weights",
        "zero_optimization.zero_quantized_gradients",
        "zero_optimization.mics_shard_size",
        "zero_optimization.use_multi_rank_bucket_allreduce",
        "zero_optimization.ignore_unused_parameters",
        "zero_optimization.memory_efficient_linear",
        "zero_optimization.stage3_module_granularity_threshold",
        "zero_optimization.elastic_checkpoint",
        "zero_optimization.fast_init",
        "zero_optimization.cpu_offload",
        "zero_optimization.cpu_offload_param",
        "zero_optimization.legacy_stage1",
        "zero_optimization.zenflow",
        "zero_optimization.super_offload",
        "aio.block_size",
        "aio.queue_depth",
        "aio.single_submit",
        "activation_checkpointing.enabled",
        "activation_checkpointing.cpu_checkpointing",
        "activation_checkpointing.partition_activations",
        "steps_per_print",
        "wall_clock_breakdown",
        "memory_breakdown",
        "dump_state",
        "timers.throughput.enabled",
        "comms_logger.enabled",
        "tensorboard.enabled",
        "tensorboard.output_path",
        "tensorboard.job_name",
        "csv_monitor.enabled",
        "wandb",
        "comet",
        "flops_profiler.enabled",
        "flops_profiler.profile_step",
        "checkpoint.tag_validation",
        "checkpoint.writer.decoupled",
        "checkpoint.load_universal",
        "elasticity",
        "autotuning",
        "compression_training",
        "pipeline",
        "tensor_parallel",
        "curriculum_learning",
        "hybrid_engine",
        "nebula",
    };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (!spec_key_find(names[i])) print_error("no row for %s\n", names[i]);
        assert_non_null(spec_key_find(names[i]));
    }
}

/* ---- hostile files ------------------------------------------------------- */

static char *repeat(const char *unit, size_t count, const char *head, const char *tail)
{
    size_t n = strlen(unit), h = strlen(head), t = strlen(tail);
    char *text = malloc(h + n * count + t + 1);
    assert_non_null(text);
    memcpy(text, head, h);
    for (size_t i = 0; i < count; i++) memcpy(text + h + i * n, unit, n);
    memcpy(text + h + n * count, tail, t + 1);
    return text;
}

static void expect_refusal(const char *text, size_t size, const char *fragment)
{
    struct run_spec *spec;
    struct spec_report report = {0};
    assert_int_equal(spec_load(write_file("run.yaml", text, size), NULL, NULL, 0, &spec, &report), STATUS_USAGE);
    expect_line(&report.errors, fragment);
    assert_true(report.errors.count <= SPEC_MAX_PROBLEMS + 1);
    spec_report_release(&report);
}

static void test_hostile(void **state)
{
    (void)state;
    static const struct {
        const char *head, *unit, *tail;
        size_t count;
        const char *fragment;
    } cases[] = {
        {"a: ", "[", "", 1000000, "nested deeper than 64 levels"},
        {"a: ", "[\n", "", 1000000, "nested deeper than 64 levels"},
        {"", "{a: ", "", 1000000, "nested deeper than 64 levels"},
        {"", "- ", "", 100000, "nested deeper than 64 levels"},
        {"", "? ", "", 100000, "a key must be a plain name"},
        {"a: [", "b,", "]", 200000, "more than 100000 keys and values"},
        {"data: {train: [", "[],", "]}", 200000, "more than 100000 keys and values"},
        {"a: {", "b: 1,", "}", 200000, "'b' is set twice"},
        {"a: \"", "x", "\"", 3000000, "unknown key 'a'"},
        {"", "x", ": 1", 3000000, "not valid YAML"},
        {"a: &a [x]\nb: ", "&b [*a,", "", 1000, "anchors, aliases and tags"},
        {"%TAG !x! a\n", "%TAG !y! a\n", "---\na: 1\n", 100000, "%TAG directives are not supported"},
        {"# \xc2\x85", "%TAG !y! a\xc2\x85", "---\na: 1\n", 100000, "%TAG directives are not supported"},
        {"%YAML 1.1\n", "%YAML 1.1\n", "---\na: 1\n", 100000, "not valid YAML"},
        {"#", "#", "", 4000000, "the file is empty"},
        {"a: |\n", " x\n", "", 1000000, "unknown key 'a'"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char *text = repeat(cases[i].unit, cases[i].count, cases[i].head, cases[i].tail);
        expect_refusal(text, strlen(text), cases[i].fragment);
        free(text);
    }
    expect_refusal("a: \0 b\n", 7, ":1:4: not a text file in UTF-8: control characters are not allowed");
    expect_refusal("\x7f"
                   "ELF\x02\x01\x01\0\0\0",
                   10, ":1:1: not a text file in UTF-8");
    expect_refusal("\xff\xfe"
                   "a\0:\0",
                   6, ":1:1: not a text file in UTF-8"); /* UTF-16 */
}

/* Many different keys: a section has a limit; many errors: the number of lines has a limit. */
static void test_many_keys(void **state)
{
    (void)state;
    char *text = malloc(2000 * 16);
    assert_non_null(text);
    for (int count = 1000; count <= 2000; count += 1000) {
        size_t used = 0;
        for (int i = 0; i < count; i++) used += (size_t)sprintf(text + used, "key%d: 1\n", i);
        expect_refusal(text, used,
                       count == 1000 ? "run.yaml: and 805 more; hint: correct these first"
                                     : ":1025:10: a section has more than 1024 keys");
    }
    free(text);
}

static void test_unreadable_files(void **state)
{
    (void)state;
    struct run_spec *spec;
    struct spec_report report = {0};
    assert_int_equal(spec_load("/nonexistent/run.yaml", NULL, NULL, 0, &spec, &report), STATUS_USAGE);
    expect_line(&report.errors, "cannot open '/nonexistent/run.yaml': No such file or directory; hint: --config");
    spec_report_release(&report);
    assert_int_equal(spec_load(folder, NULL, NULL, 0, &spec, &report), STATUS_USAGE);
    expect_line(&report.errors, "': Is a directory; hint: ");
    spec_report_release(&report);
    assert_int_equal(spec_load("/dev/zero", NULL, NULL, 0, &spec, &report), STATUS_USAGE);
    expect_line(&report.errors, "/dev/zero:1:1: the file is larger than 4 MiB");
    spec_report_release(&report);
    const char *path = write_file("run.yaml", BASE, strlen(BASE));
    assert_int_equal(spec_load(path, "/nonexistent/ds.json", NULL, 0, &spec, &report), STATUS_USAGE);
    expect_line(&report.errors, "cannot open '/nonexistent/ds.json': No such file or directory; hint: --deepspeed");
    spec_report_release(&report);
}

/* ---- overrides and DeepSpeed's file -------------------------------------- */

static void test_bad_overrides(void **state)
{
    (void)state;
    static const struct {
        const char *set, *fragment;
    } cases[] = {
        {"train.max_steps", "--set train.max_steps: no value; hint: write --set a.b.c=VALUE"},
        {"=3", "--set : a part of the key's name is empty"},
        {"a..b=3", "--set a..b: a part of the key's name is empty"},
        {"train.max_step=3",
         "--set train.max_step: unknown key 'max_step' in 'train'; hint: did you mean 'max_steps'?"},
        {"train.max_steps=x", "--set train.max_steps: 'train.max_steps' must be an integer of at least 1, not 'x'"},
        {"train.max_steps=", "--set train_batch_size.x: 'train_batch_size' is set at"},
        {"zero_optimization.stage=[", "--set zero_optimization.stage: not valid YAML"},
        {"run.name=&a b", "--set run.name: anchors, aliases and tags"},
        {"model.config.a\xff=3", ": the key's name is not text in UTF-8"},
        {"model.config=y", "--set model.config: model.pretrained and model.config are both set"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        /* the second one is always wrong, because a value has no keys */
        const char *sets[] = {cases[i].set, "train_batch_size.x=1"};
        struct run_spec *spec;
        struct spec_report report = {0};
        const char *path = write_file("run.yaml", BASE, strlen(BASE));
        assert_int_equal(spec_load(path, NULL, sets, 2, &spec, &report), STATUS_USAGE);
        expect_line(&report.errors, cases[i].fragment);
        expect_line(&report.errors, "--set train_batch_size.x: 'train_batch_size' is set at");
        spec_report_release(&report);
    }
    char *deep = repeat("a.", 100, "", "a=1");
    const char *sets[] = {deep};
    struct run_spec *spec;
    struct spec_report report = {0};
    assert_int_equal(spec_load(write_file("run.yaml", BASE, strlen(BASE)), NULL, sets, 1, &spec, &report),
                     STATUS_USAGE);
    expect_line(&report.errors, "nested deeper than 64 levels");
    spec_report_release(&report);
    free(deep);
}

static void test_bad_deepspeed_file(void **state)
{
    (void)state;
    static const struct {
        const char *json, *fragment;
    } cases[] = {
        {"{\"train_batch_size\": 4}", "ds.json:1:2: 'train_batch_size' is 4 here and 8 at "},
        {"{\n \"gradient_clipping\": 1,\n \"gradient_clipping\": 2}", "ds.json:3:"},
        {"{\"a\": 1,}", "ds.json:1:2: unknown key 'a'"},
        {"train_batch_size: 4", "ds.json:1:1: 'train_batch_size' is 4 here and 8 at "},
        {"", "ds.json:1:1: the file is empty"},
        {"[]", "ds.json:1:1: the file must be a mapping"},
        {"3", "ds.json:1:2: not valid JSON or Hjson: no ':' after the key '3'"},
        {"{\"gradient_cliping\": 1}", "ds.json:1:2: unknown key 'gradient_cliping'; hint: did you mean"},
        {"{\"steps_per_print\": \"3 \"}", "ds.json:1:21: 'steps_per_print' must be an integer of at least 1, not '3 '"},
        {"{\"zap\": 3, \"fp16\": {\"scale\": 1}}",
         "ds.json:1:2: unknown key 'zap'; hint: --help-spec lists the keys; --set zap=null leaves it out"},
        {"{\"zap\": 3, \"fp16\": {\"scale\": 1}}", "; --set fp16.scale=null leaves it out"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct run_spec *spec;
        struct spec_report report = {0};
        assert_int_equal(load_deepspeed(BASE, cases[i].json, &spec, &report), STATUS_USAGE);
        expect_line(&report.errors, cases[i].fragment);
        spec_report_release(&report);
    }

    /* Keys are not called missing if the file cannot be read: only its error and those of single keys are reported. */
    struct run_spec *spec;
    struct spec_report report = {0};
    const char *rest = "model: {config: x}\ndata: {train: y, seq_length: 8}\ntrain: {epochs: none}\n";
    assert_int_equal(load_deepspeed(rest, "{\"train_batch_size\": 4", &spec, &report), STATUS_USAGE);
    assert_int_equal(report.errors.count, 2);
    expect_line(&report.errors, "'train.epochs' must be a number");
    expect_line(&report.errors, "not valid JSON");
    spec_report_release(&report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_specs),
        cmocka_unit_test(test_all_at_once),
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_deepspeed_names),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_many_keys),
        cmocka_unit_test(test_unreadable_files),
        cmocka_unit_test(test_bad_overrides),
        cmocka_unit_test(test_bad_deepspeed_file),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

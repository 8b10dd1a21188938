# SPDX-License-Identifier: Apache-2.0
"""`ztrain convert`: configurations of other trainers as run specs, and the notes on what they lose."""
import json
import os
import re
import subprocess
import sys

import pytest

from harness import FINISHED, LLAMA, ROOT, SEQUENCE, USAGE, ZTRAIN, to_yaml

TRAINER = {"model_name_or_path": "base", "train_file": "book.txt", "block_size": SEQUENCE, "output_dir": "results/clm",
           "per_device_train_batch_size": 4, "gradient_accumulation_steps": 3, "learning_rate": 3e-4, "num_train_epochs": 2,
           "warmup_steps": 5, "do_train": True, "logging_steps": 25, "dataloader_num_workers": 2}
SFT = {"model_name_or_path": "base", "dataset_name": "people/talks", "max_length": SEQUENCE, "packing": True,
       "assistant_only_loss": True, "per_device_train_batch_size": 2, "eval_strategy": "steps", "eval_steps": 20,
       "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}, "warmup_ratio": 0.05,
       "report_to": ["wandb", "tensorboard"]}
AXOLOTL = {"base_model": "base", "datasets": [{"path": "people/recipes", "type": "alpaca"},
                                              {"path": "talks.jsonl", "type": "chat_template", "field_messages": "turns"}],
           "val_set_size": 0.1, "sequence_len": SEQUENCE, "sample_packing": True, "micro_batch_size": 2,
           "gradient_accumulation_steps": 4, "num_epochs": 2, "optimizer": "adamw_bnb_8bit", "lr_scheduler": "cosine",
           "learning_rate": 2e-4, "warmup_ratio": 0.1, "weight_decay": 0.01, "bf16": True, "tf32": True,
           "gradient_checkpointing": True, "flash_attention": True, "saves_per_epoch": 1, "evals_per_epoch": 4,
           "output_dir": "./out/cook", "special_tokens": {"pad_token": "<pad>"}, "wandb_project": "kitchen", "adapter": None,
           "load_in_4bit": False}
FACTORY = {"model_name_or_path": "base", "stage": "sft", "do_train": True, "finetuning_type": "full", "dataset": "talks, recipes",
           "template": "llama3", "cutoff_len": SEQUENCE, "per_device_train_batch_size": 3, "lr_scheduler_type": "cosine",
           "learning_rate": 1e-4, "num_train_epochs": 1, "output_dir": "saves/chat", "save_steps": 50, "plot_loss": True,
           "bf16": True, "preprocessing_num_workers": 4, "overwrite_output_dir": True}
ZERO = {"stage": 3, "overlap_comm": False, "reduce_bucket_size": "auto", "offload_optimizer": {"device": "cpu"}}
DEEPSPEED = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
             "gradient_clipping": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": ZERO,
             "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
             "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_min_lr": "auto",
                                                               "warmup_max_lr": "auto", "warmup_num_steps": "auto"}}}
KINDS = {"trainer": TRAINER, "sft": SFT, "axolotl": AXOLOTL, "factory": FACTORY}


def read_yaml(text):
    """What ztrain writes: mappings in block style, values in one line or as items."""
    lines, root = text.splitlines(), {}
    stack = [(-1, root)]
    for at, line in enumerate(lines):
        indent, word = len(line) - len(line.lstrip()), line.strip()
        if word.startswith("- "):
            stack[-1][1].append(value_of(word[2:]))
            continue
        while stack[-1][0] >= indent:
            stack.pop()
        key, value = word.split(":", 1)
        if value.strip():
            stack[-1][1][key] = value_of(value.strip())
            continue
        inner = [] if at + 1 < len(lines) and lines[at + 1].strip().startswith("- ") else {}
        stack[-1][1][key] = inner
        stack.append((indent, inner))
    return root


def value_of(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


class Converted:
    def __init__(self, done):
        self.text, self.spec = done.out, read_yaml(done.out)
        self.notes = [line.removeprefix("note: ") for line in done.err.splitlines()]
        assert all(line.startswith("note: ") for line in done.err.splitlines()), done

    def note(self, *words):
        """The only note with these words."""
        found = [note for note in self.notes if all(word in note for word in words)]
        assert len(found) == 1, (words, self.notes)
        return found[0]


def write(folder, name, content):
    text = content if isinstance(content, str) else json.dumps(content) if name.endswith(".json") else to_yaml(content) + "\n"
    with open(folder.at(name), "w", encoding="utf-8") as f:
        f.write(text)
    return folder.at(name)


def convert(folder, content, *more, name="source.yaml"):
    return Converted(folder.ztrain("convert", write(folder, name, content), *more))


# --- what comes out ---------------------------------------------------------------------------------------------------

def test_trainer_arguments(folder):
    got = convert(folder, TRAINER)
    assert got.spec == {
        "run": {"name": "clm", "dir": "results", "seed": 42},
        "model": {"pretrained": "base"},
        "data": {"train": "data/book", "seq_length": SEQUENCE, "packing": True, "document_mask": False},
        "train": {"epochs": 2.0},
        "checkpoint": {"interval_steps": 500, "save_at_epoch_end": False},
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3, "gradient_clipping": 1.0, "steps_per_print": 25,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.0003, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}},
        "scheduler": {"type": "Linear", "params": {"warmup_steps": 5}},
    }
    assert got.note("the model 'base' is not here") and got.note("'book.txt' are not here")
    assert got.note("ztrain-tokenize book.txt --tokenizer base --output data/book")
    assert got.note("no meaning here") == "no meaning here: dataloader_num_workers"


def test_sft_arguments(folder):
    got = convert(folder, SFT)
    assert got.spec["data"] == {"train": "data/talks", "seq_length": SEQUENCE, "packing": "first_fit", "document_mask": True}
    assert got.spec["scheduler"] == {"type": "Cosine", "params": {"warmup_ratio": 0.05, "min_lr": 2e-6}}
    assert got.spec["optimizer"]["params"]["lr"] == 2e-5
    assert got.spec["bf16"] == {"enabled": True} and got.spec["activation_checkpointing"] == {"policy": "block"}
    assert got.spec["train"] == {"epochs": 3.0, "eval_interval_steps": 20} and got.spec["tensorboard"] == {"enabled": True}
    assert got.note("hf download people/talks --repo-type dataset --local-dir data/raw/talks")
    assert got.note("ztrain-tokenize data/raw/talks --chat-template --tokenizer base --output data/talks")
    assert got.note("'report_to' wandb") and got.note("the split 'test' is for evaluation")
    plain = convert(folder, {**SFT, "packing": False, "assistant_only_loss": False, "dataset_text_field": "story"})
    assert plain.spec["data"]["packing"] is False and "document_mask" not in plain.spec["data"]
    assert plain.note("ztrain-tokenize data/raw/talks --fields story --tokenizer")
    cut = convert(folder, {**SFT, "packing_strategy": "wrapped", "assistant_only_loss": False})
    assert cut.spec["data"]["packing"] is True and cut.spec["data"]["document_mask"] is False
    assert cut.note("TRL learns from every token without assistant_only_loss")
    pairs = convert(folder, {**SFT, "assistant_only_loss": False, "completion_only_loss": True})
    assert pairs.note("--completion prompt,completion")


def test_axolotl(folder):
    got = convert(folder, AXOLOTL)
    assert got.spec["run"] == {"name": "cook", "dir": "./out", "seed": 42}
    assert got.spec["data"] == {"train": ["data/recipes", "data/talks"],
                                "validation": ["data/recipes-validation", "data/talks-validation"],
                                "seq_length": SEQUENCE, "packing": "first_fit", "document_mask": True}
    assert got.spec["optimizer"]["type"] == "AdamW8bit" and got.spec["optimizer"]["params"]["weight_decay"] == 0.01
    assert got.spec["scheduler"] == {"type": "Cosine", "params": {"warmup_ratio": 0.1}}
    assert got.spec["checkpoint"] == {"keep_last": 4} and "train_batch_size" not in got.spec
    assert (got.spec["train_micro_batch_size_per_gpu"], got.spec["gradient_accumulation_steps"]) == (2, 4)
    assert got.note("'optimizer' adamw_bnb_8bit", "8 bits") and got.note("axolotl keeps the weights in bf16")
    assert got.note("'evals_per_epoch' 4", "train.eval_interval_steps")
    assert got.note("--completion instruction,input,output", "--output data/recipes --validation 0.1")
    assert got.note("ztrain-tokenize talks.jsonl --chat-template --fields turns")
    assert got.note("no meaning here") == "no meaning here: tf32, flash_attention, special_tokens, wandb_project"
    assert not [note for note in got.notes if "adapter" in note or "load_in_4bit" in note]


def test_factory(folder):
    os.mkdir(folder.at("data"))
    write(folder, "data/dataset_info.json", {
        "talks": {"file_name": "talks.json", "formatting": "sharegpt", "columns": {"messages": "chat"}},
        "recipes": {"hf_hub_url": "people/recipes", "columns": {"prompt": "dish", "response": "steps"}}})
    write(folder, "data/talks.json", "[]")
    got = convert(folder, FACTORY)
    assert got.spec["data"] == {"train": ["data/talks", "data/recipes"], "seq_length": SEQUENCE, "packing": False}
    assert got.spec["activation_checkpointing"] == {"policy": "block"}
    assert got.spec["checkpoint"] == {"interval_steps": 50, "save_at_epoch_end": False}
    assert got.note("ztrain-tokenize data/talks.json --chat-template --fields chat")
    assert got.note("--completion dish,steps") and got.note("'template' llama3")
    pretrain = convert(folder, {**FACTORY, "stage": "pt", "dataset": "wiki", "disable_gradient_checkpointing": True})
    assert pretrain.spec["data"]["packing"] is True and "activation_checkpointing" not in pretrain.spec
    assert pretrain.note("'wiki' is in no dataset_info.json here") and pretrain.note("ztrain-tokenize wiki --fields text")
    neat = convert(folder, {**FACTORY, "neat_packing": True, "val_size": 0.2})
    assert neat.spec["data"]["packing"] == "first_fit" and neat.spec["data"]["document_mask"] is True
    assert neat.spec["data"]["validation"] == ["data/talks-validation", "data/recipes-validation"]


def test_the_list_of_data_sets_beside_the_file(folder):
    os.makedirs(folder.at("there", "sets"))
    write(folder, "there/sets/dataset_info.json", {"talks": {"file_name": "talks.json"}})
    write(folder, "there/sets/talks.json", "[]")
    path = write(folder, "there/chat.yaml", {**FACTORY, "dataset": "talks", "dataset_dir": "sets", "deepspeed": "zero.json"})
    write(folder, "there/zero.json", DEEPSPEED)
    got = Converted(folder.ztrain("convert", path))
    assert got.note(f"ztrain-tokenize {folder.at('there', 'sets', 'talks.json')} --completion instruction,input,output")
    assert got.spec["zero_optimization"]["stage"] == 3
    write(folder, "there/sets/dataset_info.json", "[")
    assert Converted(folder.ztrain("convert", path)).note("dataset_info.json' is not a list of data sets")


def test_world_gives_the_whole_batch(folder):
    got = convert(folder, AXOLOTL, "--world", 8)
    assert got.spec["train_batch_size"] == 64 and got.spec["train_micro_batch_size_per_gpu"] == 2
    assert "gradient_accumulation_steps" not in got.spec


def test_out_writes_the_file(folder):
    done = folder.ztrain("convert", write(folder, "a.yaml", TRAINER), "--out", folder.at("run.yaml"))
    assert done.out == ""
    with open(folder.at("run.yaml"), encoding="utf-8") as f:
        assert f.read() == convert(folder, TRAINER).text
    folder.ztrain("convert", folder.at("a.yaml"), "--out", folder.at("none", "run.yaml"), expect=USAGE)


def test_out_replaces_only_by_force_and_never_an_input(folder):
    source, ds = write(folder, "a.yaml", TRAINER), write(folder, "ds.json", DEEPSPEED)
    there = write(folder, "run.yaml", "mine\n")
    done = folder.ztrain("convert", source, "--out", there, expect=USAGE)
    assert "is there already; hint: --force replaces it" in done.final_error and done.out == ""
    with open(there, encoding="utf-8") as f:
        assert f.read() == "mine\n"
    os.link(source, folder.at("again.yaml"))
    for out in (source, "again.yaml", ds):
        done = folder.ztrain("convert", source, "--deepspeed", ds, "--out", out, "--force", expect=USAGE)
        assert "the file is read" in done.final_error, done
    named = write(folder, "named.yaml", {**TRAINER, "deepspeed": "ds.json"})
    assert "the file is read" in folder.ztrain("convert", named, "--out", "ds.json", "--force", expect=USAGE).final_error
    folder.ztrain("convert", source, "--out", there, "--force")
    with open(there, encoding="utf-8") as f:
        assert f.read() == convert(folder, TRAINER, name="b.yaml").text
    folder.ztrain("convert", source, "--out", os.devnull)


def test_the_same_in_json(folder):
    assert convert(folder, AXOLOTL, name="source.json").spec == convert(folder, AXOLOTL).spec


def test_later_files_count(folder):
    first = write(folder, "first.yaml", TRAINER)
    got = convert(folder, {"learning_rate": 1e-3, "num_train_epochs": 2}, name="second.yaml")
    assert got.spec["optimizer"]["params"]["lr"] == 0.001
    both = Converted(folder.ztrain("convert", first, folder.at("second.yaml")))
    assert both.spec["optimizer"]["params"]["lr"] == 0.001 and both.spec["train_micro_batch_size_per_gpu"] == 4
    assert "second.yaml" in both.note("'learning_rate'", "first.yaml")
    assert not [note for note in both.notes if "'num_train_epochs'" in note]


# --- single keys ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("keys, path, value", [
    ({"max_steps": 100, "save_steps": 0.25}, ("checkpoint", "interval_steps"), 25),
    ({"max_steps": -1}, ("train", "epochs"), 2.0),
    ({"save_strategy": "no"}, ("checkpoint", "save_at_epoch_end"), False),
    ({"save_strategy": "epoch", "save_total_limit": 3}, ("checkpoint", "keep_last"), 3),
    ({"load_best_model_at_end": True, "metric_for_best_model": "accuracy", "greater_is_better": True}, ("checkpoint", "mode"), "max"),
    ({"warmup_steps": 0.2}, ("scheduler", "params", "warmup_ratio"), 0.2),
    ({"lr_scheduler_type": "constant_with_warmup"}, ("scheduler", "type"), "Constant"),
    ({"lr_scheduler_type": "polynomial"}, ("scheduler", "params", "min_lr"), 1e-7),
    ({"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 9}}, ("scheduler", "params", "decay_steps"), 9),
    ({"optim": "lion_32bit"}, ("optimizer", "type"), "Lion"),
    ({"optim": "sgd"}, ("optimizer", "type"), "SGD"),
    ({"adam_beta2": 0.95}, ("optimizer", "params", "betas"), [0.9, 0.95]),
    ({"max_grad_norm": 0.3}, ("gradient_clipping",), 0.3),
    ({"max_grad_norm": -1}, ("gradient_clipping",), 0.0),
    ({"clip_grad_norm": 0.5}, ("gradient_clipping",), 0.5),
    ({"num_train_epochs": "2"}, ("train", "epochs"), 2.0),
    ({"seed": "7"}, ("run", "seed"), 7),
    ({"seed": -1}, ("run", "seed"), 42),
    ({"adam_epsilon": "1e-6"}, ("optimizer", "params", "eps"), 1e-6),
    ({"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": '{"min_lr": "1e-5"}'}, ("scheduler", "params", "min_lr"), 1e-5),
    ({"fsdp": "no_shard offload"}, ("zero_optimization",), {"stage": 0}),
    ({"fsdp": "full_shard", "fsdp_config": '{"reshard_after_forward": false}'}, ("zero_optimization", "stage"), 2),
    ({"fsdp": "full_shard", "fsdp_config": {"fsdp_sharding_strategy": "SHARD_GRAD_OP"}}, ("zero_optimization", "stage"), 2),
    ({"fsdp": "full_shard", "fsdp_config": {"activation_checkpointing": True}}, ("activation_checkpointing", "policy"), "block"),
    ({"learning_rate": 3e-4, "optimizer.params.lr": 5}, ("optimizer", "params", "lr"), 3e-4),
    ({"train_file": "a" * 122 + "é" * 10 + ".txt"}, ("data", "train"), "data/" + "a" * 122 + "é" * 10),
    ({"label_smoothing_factor": 0.1}, ("train", "label_smoothing"), 0.1),
    ({"learning_rate": "1e-5"}, ("optimizer", "params", "lr"), 1e-5),
    ({"fp16": True}, ("fp16", "enabled"), True),
    ({"gradient_checkpointing": True}, ("activation_checkpointing", "policy"), "block"),
    ({"fsdp": "full_shard auto_wrap"}, ("zero_optimization", "stage"), 3),
    ({"fsdp": ["shard_grad_op", "offload"]}, ("zero_optimization", "offload_optimizer", "device"), "cpu"),
    ({"use_cpu": True}, ("train", "device"), "cpu"),
    ({"fsdp": "full_shard", "fsdp_config": {"offload_params": True}}, ("zero_optimization", "offload_param", "device"), "cpu"),
    ({"train_sampling_strategy": "sequential"}, ("data", "shuffle"), False),
    ({"mixed_precision": "bf16"}, ("bf16", "enabled"), True),
    ({"torch_dtype": "bfloat16"}, ("bf16", "bf16_master_weights_and_grads"), True),
    ({"model_name_or_path": None, "config_name": "sizes"}, ("model", "config"), "sizes"),
    ({"optim": "muon", "adam_beta1": 0.8}, ("optimizer", "params", "betas"), [0.8, 0.999]),
    ({"save_strategy": "best"}, ("checkpoint", "keep_best"), 1),
    ({"eval_strategy": "steps"}, ("train", "eval_interval_steps"), 25),
    ({"report_to": "tensorboard", "logging_dir": "boards"}, ("tensorboard", "output_path"), "boards"),
    ({"per_gpu_train_batch_size": 6, "per_device_train_batch_size": None}, ("train_micro_batch_size_per_gpu",), 6),
    ({"gradient_accumulation_dtype": "bf16"}, ("data_types", "grad_accum_dtype"), "bf16"),
    ({"output_dir": None, "run_name": "first"}, ("run", "name"), "first"),
    ({"tensorboard": True, "steps_per_print": 7, "logging_steps": None}, ("steps_per_print",), 7),
    ({"early_stopping_patience": 4}, ("train", "early_stopping", "patience"), 4),
    ({"do_eval": True, "validation_split_percentage": 10}, ("data", "validation"), "data/book-validation"),
    ({"validation_file": "held/out.txt"}, ("data", "validation"), "data/out"),
    ({"tokenizer_name": "words"}, ("model", "tokenizer"), "words"),
    ({"seed": 11, "data_seed": 11}, ("run", "seed"), 11),
    ({"output_dir": "..", "run_name": "first"}, ("run", "name"), "run"),
], ids=lambda value: next(iter(value)) if isinstance(value, dict) else "")
def test_a_key_of_trainer(folder, keys, path, value):
    found = convert(folder, {**TRAINER, **keys}).spec
    for part in path:
        found = found[part]
    assert found == value


@pytest.mark.parametrize("keys, words", [
    ({"neftune_noise_alpha": 5}, ("'neftune_noise_alpha' 5", "no noise")),
    ({"optim": "adafactor"}, ("'optim' adafactor", "AdamW takes its place")),
    ({"lr_scheduler_type": "reduce_lr_on_plateau"}, ("reduce_lr_on_plateau is not here", "Cosine takes its place")),
    ({"lr_scheduler_type": "constant"}, ("the schedule 'constant' has no warm-up",)),
    ({"save_steps": 0.1}, ("'save_steps' 0.1 is a share of the run", "checkpoint.interval_steps")),
    ({"group_by_length": True}, ("'group_by_length'", "order of the samples")),
    ({"data_seed": 3}, ("'data_seed' 3", "run.seed")),
    ({"adam_beta1": 7}, ("optimizer.params.betas",)),
    ({"learning_rate": "fast"}, ("'learning_rate' fast is left out",)),
    ({"max_steps": "abc"}, ("'max_steps' abc is left out",)),
    ({"warmup_steps": "abc"}, ("'warmup_steps' abc is left out",)),
    ({"optim": ["adafactor"]}, ("'optim' […]", "AdamW takes its place")),
    ({"gradient_checkpointing": "maybe"}, ("'gradient_checkpointing' maybe is left out",)),
    ({"seed": -1}, ("'seed' -1 is left out",)),
    ({"save_steps": 1e300}, ("'save_steps' 1e+300 is left out",)),
    ({"train_file": ["a.txt", "b.txt"]}, ("'train_file' […] is left out",)),
    ({"do_eval": True, "validation_split_percentage": "abc"}, ("'validation_split_percentage' abc is left out",)),
    ({"do_eval": True, "validation_split_percentage": 100}, ("'validation_split_percentage' 100 is left out",)),
    ({"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": 3, "foo": 1}}, ("'lr_scheduler_kwargs'", "num_cycles 3, foo 1")),
    ({"lr_scheduler_kwargs": "{num"}, ("'lr_scheduler_kwargs' {num is left out",)),
    ({"fsdp": "full_shard", "fsdp_config": {"use_orig_params": True}}, ("'fsdp_config'", "use_orig_params true")),
    ({"fsdp": "full_shard", "fsdp_config": {"sharding_strategy": "odd"}}, ("'sharding_strategy' odd",)),
    ({"optimizer.params.lr": 5}, ("'optimizer.params.lr' 5 is left out", "does not know it")),
    ({"run.dir": "/tmp/q"}, ("'run.dir' /tmp/q is left out",)),
    ({"steps_per_print": 7}, ("'steps_per_print' 7 counts, and not 25",)),
    ({"eval_strategy": "no", "validation_file": "held.txt"}, ("'eval_strategy' no", "at each epoch's end")),
    ({"eval_strategy": "no", "early_stopping_patience": 4}, ("'early_stopping_patience' 4 is left out",)),
    ({"train_file": "two\nlines.txt"}, ("ztrain-tokenize $'two\\012lines.txt' --tokenizer base --output data/two-lines",)),
    ({"mask_history": True}, ("'mask_history' true is left out: it is no key of Trainer",)),
    ({"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 3}}, ("num_cycles 3", "one cycle")),
    ({"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 2}}, ("power 2", "linear")),
    ({"train_sampling_strategy": "group_by_length"}, ("'train_sampling_strategy' group_by_length",)),
    ({"eval_strategy": "steps", "eval_steps": 0.2}, ("'eval_steps' 0.2 is a share of the run", "train.eval_interval_steps")),
    ({"config_name": "other"}, ("'config_name' other", "config.json in the model folder")),
    ({"color": "blue"}, ("'color' blue is left out", "does not know it")),
    ({"optim_args": "rank=4"}, ("'optim_args'", "set optimizer.params")),
    ({"deepspeed": "ds/zero3.json"}, ("'deepspeed' ds/zero3.json is not here",)),
    ({"lr_scheduler_type": "warmup_stable_decay"}, ("no num_decay_steps",)),
    ({"warmup_ratio": 0.1}, ("'warmup_ratio' 0.1: warmup_steps 5 counts",)),
    ({"resume_from_checkpoint": "out/checkpoint-5"}, ("no meaning here", "resume_from_checkpoint")),
    ({"sequence_parallel_size": 2}, ("'sequence_parallel_size' is left out",)),
    ({"model_name_or_path": None}, ("'model.pretrained' or 'model.config' is missing",)),
    ({"block_size": None}, ("no block_size is given", "1024")),
    ({"train_file": None}, ("'data.train' is missing",)),
    ({"torch_dtype": "float16"}, ("'torch_dtype' float16", "fp32")),
], ids=lambda value: next(iter(value)) if isinstance(value, dict) else "")
def test_a_note_on_a_key(folder, keys, words):
    assert convert(folder, {**TRAINER, **keys}).note(*words)


@pytest.mark.parametrize("keys, words", [
    ({"adapter": "llama-adapter"}, ("'adapter' llama-adapter", "all weights are trained")),
    ({"adapter": "lora", "load_in_8bit": True}, ("'load_in_8bit' true", "the frozen base is kept in the type")),
    ({"adapter": "lora", "lora_target_linear": True, "lora_target_modules": ["lm_head"]}, ("'lora_target_linear' true", "all-linear counts")),
    ({"adapter": "lora", "peft_use_dora": True}, ("'peft_use_dora' true", "the adapter is LoRA")),
    ({"adapter": "lora", "peft_init_lora_weights": "pissa"}, ("'peft_init_lora_weights' pissa", "A starts uniform")),
    ({"adapter": "lora", "loraplus_lr_ratio": 16}, ("'loraplus_lr_ratio' 16", "one learning rate")),
    ({"adapter": "lora", "lora_r": 0}, ("'peft.r' must be an integer from 1",)),
    ({"lora_r": 8, "lora_target_linear": True}, ("no meaning here", "lora_r", "lora_target_linear")),
    ({"adapter": "lora", "lora_model_dir": "out/one,out/two"}, ("'lora_model_dir' out/one,out/two is left out",)),
    ({"adapter": "lora", "lora_model_dir": "out/one"}, ("'model.adapter': cannot open 'out/one/adapter_config.json'",)),
    ({"load_in_4bit": True}, ("'load_in_4bit' true", "not quantized, as all")),
    ({"adapter": "lora", "peft": {"loftq_config": {"loftq_bits": 4}}}, ("'peft': left out", "loftq_config")),
    ({"rl": "grpo"}, ("'rl' grpo is not here", "fine-tuned on the text")),
    ({"rl": "dpo"}, ("ztrain-tokenize talks.jsonl --preference --tokenizer base",)),
    ({"chat_template": "chatml"}, ("'chat_template' chatml", "chat_template.jinja")),
    ({"train_on_inputs": True}, ("'train_on_inputs' true",)),
    ({"val_set_size": 500}, ("'val_set_size' 500 counts rows", "0.02")),
    ({"datasets": [{"path": "json", "data_files": ["x/1.jsonl", "x/2 b.jsonl"], "type": "completion"}]},
     ("ztrain-tokenize x/1.jsonl 'x/2 b.jsonl' --tokenizer base",)),
    ({"datasets": [{"path": "a.jsonl", "type": "completion", "split": "test", "shards": 4, "train_on_eos": "all"}]},
     ("'datasets'", "split test, shards 4, train_on_eos all")),
    ({"datasets": [{"path": "a.jsonl", "type": {"system_prompt": "Be brief"}}]}, ("'datasets'", "system_prompt Be brief")),
    ({"datasets": [{"path": "people/web", "data_files": "x.jsonl", "type": "completion"}]}, ("'datasets'", "path people/web")),
    ({"datasets": [{"path": "a.jsonl", "type": ["chat"]}]}, ("type […] is not here",)),
    ({"sample_packing": "maybe"}, ("'sample_packing' maybe is left out",)),
    ({"datasets": [{"path": "a.jsonl", "type": "oasst"}]}, ("type oasst is not here", "--chat-template")),
    ({"datasets": [{"path": "it's.jsonl", "type": "completion", "field": "body"}]}, (r"'it'\''s.jsonl' --fields body",)),
    ({"datasets": [{"type": "alpaca"}]}, ("'datasets' has a set without a path",)),
    ({"datasets": [{"path": "a.jsonl", "type": {"field_instruction": "ask", "field_output": "say", "format": "Q: {ask}"}}]},
     ("--completion ask,say",)),
    ({"excess_length_strategy": "drop"}, ("longer than sequence_len; here it is cut",)),
    ({"num_labels": 3}, ("'num_labels' 3", "classification.md")),
    ({"warmup_ratio": None}, ("no warm-up is given", "100")),
    ({"cosine_min_lr_ratio": 0.1, "lr_scheduler": "linear"}, ("'cosine_min_lr_ratio' 0.1",)),
], ids=lambda value: next(iter(value)) if isinstance(value, dict) else "")
def test_a_note_on_a_key_of_axolotl(folder, keys, words):
    assert convert(folder, {**AXOLOTL, **keys}).note(*words)


@pytest.mark.parametrize("kind, keys, section", [
    (AXOLOTL, {"rl": "dpo"}, {"loss": "sigmoid"}),
    (AXOLOTL, {"rl": "ipo", "rl_beta": 0.2}, {"loss": "ipo", "beta": 0.2}),
    (AXOLOTL, {"rl": "kto", "kto_desirable_weight": 0.5, "kto_undesirable_weight": 2.0},
     {"loss": "kto", "desirable_weight": 0.5, "undesirable_weight": 2.0}),
    (AXOLOTL, {"rl": "simpo", "simpo_gamma": 0.7}, {"loss": "simpo", "gamma": 0.7, "rpo_alpha": 1.0}),
    (AXOLOTL, {"rl": "simpo", "cpo_alpha": 0.2}, {"loss": "simpo", "rpo_alpha": 0.2}),
    (AXOLOTL, {"rl": "dpo", "rl_beta": 0.2, "orpo_alpha": 0.3, "dpo_label_smoothing": 0.1}, {"loss": "sigmoid", "beta": 0.2, "label_smoothing": 0.1}),
    (AXOLOTL, {"rl": "ipo", "dpo_label_smoothing": 0.1}, {"loss": "ipo"}),
    (FACTORY, {"stage": "dpo", "simpo_gamma": 0.5, "ref_model": "sft"}, {"loss": "sigmoid", "reference": "sft"}),
    (FACTORY, {"stage": "dpo", "pref_beta": 0.3, "pref_ftx": 0.1}, {"loss": "sigmoid", "beta": 0.3, "rpo_alpha": 0.1}),
    (FACTORY, {"stage": "dpo", "pref_loss": "orpo"}, {"loss": "orpo"}),
    (FACTORY, {"stage": "kto", "kto_chosen_weight": 0.5}, {"loss": "kto", "desirable_weight": 0.5}),
    (AXOLOTL, {"reward_model": True}, None),
    (FACTORY, {"stage": "rm"}, None),
])
def test_preferences(folder, kind, keys, section):
    got = convert(folder, {**kind, **keys})
    assert got.spec.get("preference") == section
    assert (got.spec["model"].get("task") == "reward") == (section is None)
    assert got.note("talks", "--preference --tokenizer base") and not any(word in str(got.notes) for word in ("--completion", "it is cut"))


@pytest.mark.parametrize("value, model", [(0.02, {"output_router_logits": True, "router_aux_loss_coef": 0.02}), (0, {"router_aux_loss_coef": 0.0}),
                                          (None, {})])
def test_the_loss_of_routers_in_factory(folder, value, model):
    assert convert(folder, {**FACTORY, "moe_aux_loss_coef": value}).spec["model"] == {"pretrained": "base", **model}


@pytest.mark.parametrize("keys, name", [({"rope_theta": 5}, "overrides_of_model_config"), ({}, "model_config")])
def test_what_else_changes_config_json_is_named(folder, keys, name):
    got = convert(folder, {**AXOLOTL, name: {**keys, "output_router_logits": False}})
    assert got.spec["model"]["output_router_logits"] is False and len([note for note in got.notes if name in note]) == len(keys)


@pytest.mark.parametrize("keys, words", [
    ({"finetuning_type": "freeze"}, ("'finetuning_type' freeze", "all weights are trained")),
    ({"finetuning_type": "lora", "quantization_bit": 8}, ("'quantization_bit' 8", "the frozen base is kept")),
    ({"finetuning_type": "lora", "quantization_bit": 4, "quantization_type": "fp4"}, ("'quantization_bit' 4 with fp4", "the frozen base is kept")),
    ({"finetuning_type": "lora", "quantization_bit": 4, "quantization_method": "hqq"}, ("'quantization_bit' 4", "the frozen base is kept")),
    ({"finetuning_type": "lora", "pissa_init": True}, ("'pissa_init' true", "the adapter is LoRA")),
    ({"finetuning_type": "lora", "create_new_adapter": True, "adapter_name_or_path": "out/one"}, ("'adapter_name_or_path' out/one is left out",)),
    ({"stage": "ppo"}, ("'stage' ppo is not here", "fine-tuned on the text")),
    ({"stage": "dpo"}, ("talks", "--preference --tokenizer base")),
    ({"max_samples": 100}, ("'max_samples' 100", "all of the data")),
    ({"train_on_prompt": True}, ("'train_on_prompt' true",)),
    ({"mask_history": True}, ("'mask_history' true",)),
    ({"pure_bf16": True, "bf16": None}, ("the model 'base' is not here",)),
], ids=lambda value: next(iter(value)) if isinstance(value, dict) else "")
def test_a_note_on_a_key_of_factory(folder, keys, words):
    got = convert(folder, {**FACTORY, **keys})
    assert got.note(*words)
    assert ("bf16_master_weights_and_grads" in got.text) == ("pure_bf16" in keys)


LORA = {"peft_type": "LORA"}
NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}


@pytest.mark.parametrize("kind, keys, base", [
    ("axolotl", {"adapter": "qlora", "load_in_4bit": True}, NF4),
    ("axolotl", {"adapter": "qlora", "load_in_4bit": True, "bnb_config_kwargs": {"bnb_4bit_use_double_quant": False}},
     {**NF4, "bnb_4bit_use_double_quant": False}),
    ("axolotl", {"adapter": "lora", "peft": {"backend": "bnb", "weight_dtype": "nf4"}}, NF4),
    ("factory", {"finetuning_type": "lora", "quantization_bit": 4}, NF4),
    ("factory", {"finetuning_type": "lora", "quantization_bit": 4, "double_quantization": False},
     {**NF4, "bnb_4bit_use_double_quant": False}),
    ("sft", {"use_peft": True, "load_in_4bit": True}, {**NF4, "bnb_4bit_use_double_quant": False}),
    ("sft", {"use_peft": True, "load_in_4bit": True, "use_bnb_nested_quant": True}, NF4),
], ids=lambda value: value if isinstance(value, str) else "")
def test_a_base_in_4_bits(folder, kind, keys, base):
    got = convert(folder, {**KINDS[kind], **keys})
    assert {**NF4, **got.spec["model"]["quantization_config"]} == base
    assert not [note for note in got.notes if "quantized" in note or "run spec is not complete" in note]


@pytest.mark.parametrize("kind, keys, peft", [
    ("axolotl", {"adapter": "lora", "lora_r": 32, "lora_alpha": 16, "lora_dropout": 0.05, "lora_target_linear": True},
     {"r": 32, "lora_alpha": 16, "lora_dropout": 0.05, "target_modules": "all-linear"}),
    ("axolotl", {"adapter": "qlora", "lora_r": 8, "lora_target_modules": ["q_proj", "v_proj"], "lora_modules_to_save": ["lm_head"],
                 "peft_use_rslora": True, "peft_layers_to_transform": [0, 1], "peft_layers_pattern": ["layers"]},
     {"r": 8, "target_modules": ["q_proj", "v_proj"], "modules_to_save": "lm_head", "use_rslora": True,
      "layers_to_transform": [0, 1], "layers_pattern": "layers"}),
    ("axolotl", {"adapter": "lora", "lora_target_linear": True, "lora_target_modules": ["gate_proj", "up_proj"]}, {"target_modules": "all-linear"}),
    ("axolotl", {"adapter": "lora", "lora_target_modules": ".*self_attn.*_proj", "lora_on_cpu": True}, {"target_modules": ".*self_attn.*_proj"}),
    ("factory", {"finetuning_type": None}, {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"}),
    ("factory", {"finetuning_type": "lora", "lora_rank": 64, "lora_target": "q_proj , v_proj", "additional_target": "embed_tokens,lm_head"},
     {"r": 64, "lora_alpha": 128, "target_modules": ["q_proj", "v_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}),
    ("sft", {"use_peft": True}, {"r": 16, "lora_alpha": 32, "lora_dropout": 0.05}),
    ("sft", {"use_peft": True, "lora_r": 4, "lora_target_modules": ["all-linear"], "use_rslora": True},
     {"r": 4, "lora_alpha": 32, "lora_dropout": 0.05, "target_modules": "all-linear", "use_rslora": True}),
], ids=lambda value: value if isinstance(value, str) else "")
def test_an_adapter(folder, kind, keys, peft):
    got = convert(folder, {**KINDS[kind], **keys})
    assert got.spec["peft"] == {**LORA, **peft}
    assert not [note for note in got.notes if "adapter" in note or "run spec is not complete" in note]


def test_an_adapter_to_go_on_from(folder):
    os.mkdir(folder.at("old"))
    write(folder, "old/adapter_config.json", {"peft_type": "LORA", "r": 4})
    got = convert(folder, {**AXOLOTL, "adapter": "lora", "lora_r": 16, "lora_model_dir": folder.at("old")})
    assert got.spec["model"]["adapter"] == folder.at("old") and "peft" not in got.spec
    assert got.note("no meaning here", "lora_r")


@pytest.mark.parametrize("keys, path, value", [
    ({"gradient_checkpointing": "offload"}, ("activation_checkpointing", "cpu_checkpointing"), True),
    ({"activation_offloading": True, "gradient_checkpointing": None}, ("activation_checkpointing", "policy"), "block"),
    ({"batch_size": 24, "gradient_accumulation_steps": None}, ("gradient_accumulation_steps",), 12),
    ({"cosine_min_lr_ratio": 0.1}, ("scheduler", "params", "min_lr"), 2e-5),
    ({"fsdp_config": {"reshard_after_forward": True}}, ("zero_optimization", "stage"), 3),
    ({"bf16": "full"}, ("bf16", "bf16_master_weights_and_grads"), True),
    ({"bf16": None, "fp16": True}, ("fp16", "enabled"), True),
    ({"test_datasets": [{"path": "held.jsonl", "type": "completion"}], "val_set_size": 0}, ("data", "validation"), "data/held"),
    ({"datasets": [{"path": "a", "data_files": ["x/part.jsonl"], "type": "completion"}], "val_set_size": 0}, ("data", "train"), "data/part"),
    ({"datasets": [{"path": "one/a.json"}, {"path": "two/a.json"}], "val_set_size": None}, ("data", "train"), ["data/a", "data/a-2"]),
    ({"saves_per_epoch": 0}, ("checkpoint", "save_at_epoch_end"), False),
    ({"save_steps": 40, "saves_per_epoch": None}, ("checkpoint", "interval_steps"), 40),
    ({"eval_steps": 30, "evals_per_epoch": None}, ("train", "eval_interval_steps"), 30),
    ({"expert_parallel_size": 4}, ("moe", "expert_parallel_size"), 4),
    ({"router_aux_loss_coef": 0.02}, ("model", "router_aux_loss_coef"), 0.02),
    ({"model_config": {"output_router_logits": True}}, ("model", "output_router_logits"), True),
    ({"overrides_of_model_config": {"output_router_logits": True, "router_aux_loss_coef": 0.02}}, ("model",),
     {"pretrained": "base", "output_router_logits": True, "router_aux_loss_coef": 0.02}),
], ids=lambda value: next(iter(value)) if isinstance(value, dict) else "")
def test_a_key_of_axolotl(folder, keys, path, value):
    found = convert(folder, {**AXOLOTL, **keys}).spec
    for part in path:
        found = found[part]
    assert found == value


@pytest.mark.parametrize("keys, word", [
    ({"test_split_size": "0.1; touch pwned"}, None), ({"test_split_size": "0.1"}, "--validation 0.1"),
    ({"test_split_size": 300}, "--validation 0.02"),
])
def test_a_share_is_a_number(folder, keys, word):
    got = convert(folder, {**SFT, **keys})
    command = got.note("which this makes").split("--output ")[1]
    assert command == "data/talks" + (f" {word}" if word else "")
    assert word or got.note("'test_split_size' 0.1; touch pwned is left out")


def test_no_checkpoint_is_deleted_if_the_source_keeps_all(folder):
    got = convert(folder, {**TRAINER, "save_total_limit": -1})
    assert "keep_last" not in got.spec["checkpoint"] and got.notes == convert(folder, TRAINER).notes


def test_no_evaluation_stops_no_run(folder):
    got = convert(folder, {**TRAINER, "eval_strategy": "no", "validation_file": "held.txt", "early_stopping_patience": 4})
    assert "early_stopping" not in got.spec["train"]


def test_the_list_of_data_sets_has_more(folder):
    os.mkdir(folder.at("data"))
    write(folder, "data/dataset_info.json", {"talks": {"file_name": "talks.json", "ms_hub_url": "a/b", "num_samples": 7,
                                                       "columns": {"prompt": "ask", "system": "sys"}}})
    got = convert(folder, {**FACTORY, "dataset": "talks"})
    assert got.note("'talks': left out", "system sys") and got.note("'talks': left out", "num_samples 7")
    assert not [note for note in got.notes if "ms_hub_url" in note]


def test_words_of_old_yaml(folder):
    """yes and no are truth values, and 2_000 is a number, as the other trainers read them."""
    text = to_yaml(AXOLOTL).replace("bf16: true", "bf16: yes").replace("sample_packing: true", "sample_packing: no")
    got = convert(folder, text.replace(f"sequence_len: {SEQUENCE}", "sequence_len: 2_000") + "\nmlflow_experiment_name: a\n")
    assert got.spec["bf16"] == {"enabled": True} and got.spec["data"]["packing"] is False and got.spec["data"]["seq_length"] == 2000
    assert "mlflow_experiment_name" in got.note("no meaning here")


def test_pretraining_of_axolotl(folder):
    keys = {key: value for key, value in AXOLOTL.items() if key not in ("datasets", "val_set_size")}
    got = convert(folder, {**keys, "pretraining_dataset": [{"path": "people/web", "text_column": "body"}], "max_steps": 9})
    assert got.spec["data"]["packing"] is True and got.spec["train"]["max_steps"] == 9
    assert got.note("ztrain-tokenize data/raw/web --fields body")


def test_a_dump_of_all_arguments(folder):
    """Arguments at their defaults, with null and empty values, cost no note."""
    dump = {**TRAINER, "optim": "adamw_torch", "fsdp": [], "deepspeed": None, "neftune_noise_alpha": None, "label_names": None,
            "push_to_hub": False, "tf32": None, "report_to": [], "torch_compile": False, "group_by_length": False, "_n_gpu": 1}
    assert convert(folder, dump, name="training_args.json").notes == convert(folder, TRAINER, name="training_args.json").notes


# --- DeepSpeed --------------------------------------------------------------------------------------------------------

def test_auto_takes_the_arguments(folder):
    ds = write(folder, "ds.json", DEEPSPEED)
    got = convert(folder, {**AXOLOTL, "deepspeed": "ds.json"})
    assert got.spec["zero_optimization"] == {"stage": 3, "overlap_comm": False, "reduce_bucket_size": "auto",
                                             "offload_optimizer": {"device": "cpu"}}
    assert got.spec["optimizer"]["params"]["lr"] == 0.0002 and got.spec["bf16"] == {"enabled": True}
    assert got.spec["scheduler"] == {"type": "WarmupDecayLR", "params": {
        "warmup_ratio": 0.1, "total_num_steps": "auto", "warmup_min_lr": "auto", "warmup_max_lr": "auto"}}
    assert got.note("'lr_scheduler' cosine: the schedule WarmupDecayLR of the DeepSpeed configuration counts")
    assert got.text == convert(folder, AXOLOTL, "--deepspeed", ds).text
    assert got.text == convert(folder, {**AXOLOTL, "deepspeed": DEEPSPEED}).text
    steps = convert(folder, {**TRAINER, "deepspeed": "ds.json"})
    assert steps.spec["scheduler"]["params"]["warmup_num_steps"] == 5


def test_values_of_deepspeed_count(folder):
    ds = write(folder, "ds.json", {**DEEPSPEED, "gradient_clipping": 0.5, "bf16": {"enabled": False}, "flops_profiler": {"enabled": True},
                                   "zero_optimization": {"stage": 2, "zero_quantized_weights": True, "round_robin_gradients": True, "stge": 1},
                                   "autotuning": {"enabled": True}, "wandb": {"enabled": True}, "_comment": "mine",
                                   "optimizer": {"type": "Lamb", "params": {"lr": "auto"}}, "scheduler": {"type": "Odd"}})
    got = convert(folder, {**AXOLOTL, "max_grad_norm": 1.0}, "--deepspeed", ds)
    assert got.spec["gradient_clipping"] == 0.5 and got.spec["flops_profiler"] == {"enabled": True}
    assert got.spec["zero_optimization"] == {"stage": 2} and got.spec["optimizer"]["type"] == "AdamW8bit"
    assert got.spec["scheduler"]["type"] == "Cosine"
    assert got.note("'gradient_clipping' is 0.5 in the DeepSpeed configuration, which counts, and 1.0 in the arguments")
    assert got.note("'zero_optimization.zero_quantized_weights' is left out")
    assert got.note("'autotuning' is left out") and got.note("unknown key 'stge'", "left out")
    assert got.note("'optimizer.type' Lamb is not here") and got.note("'scheduler.type' Odd is not here")
    assert "zero_optimization.round_robin_gradients, wandb" in got.note("no meaning here")
    other = write(folder, "other.json", {"optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}})
    changed = convert(folder, {**AXOLOTL, "optimizer": "lion_32bit"}, "--deepspeed", other)
    assert changed.spec["optimizer"] == {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}}
    assert changed.note("'optimizer' lion_32bit: the optimizer SGD of the DeepSpeed configuration counts")


@pytest.mark.parametrize("keys, ds, batch", [
    ({"gradient_accumulation_steps": None, "per_device_train_batch_size": 8},
     {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 2}}, (8, 256)),
    ({"gradient_accumulation_steps": None, "per_device_train_batch_size": 8}, {"train_micro_batch_size_per_gpu": 4}, (4, 32)),
    ({}, {"train_batch_size": "auto"}, (4, 96)),
])
def test_world_and_deepspeed(folder, keys, ds, batch):
    got = convert(folder, {**TRAINER, **keys}, "--world", 8, "--deepspeed", write(folder, "ds.json", ds))
    assert (got.spec["train_micro_batch_size_per_gpu"], got.spec["train_batch_size"]) == batch
    assert "gradient_accumulation_steps" not in got.spec and not [note for note in got.notes if "refuse" in note]


def test_a_batch_that_does_not_fit_the_ranks(folder):
    ds = write(folder, "ds.json", {"train_batch_size": 48})
    assert convert(folder, TRAINER, "--world", 8, "--deepspeed", ds).note("ztrain would refuse the run spec", "train_batch_size")


def test_one_precision(folder):
    """DeepSpeed's fp16 takes the place of bf16, which TRL and axolotl switch on by default."""
    ds = write(folder, "ds.json", {"fp16": {"enabled": True}, "bf16": {"enabled": "auto"}})
    for source in ({"model_name_or_path": "base", "train_file": "a.jsonl", "max_length": 512}, {**AXOLOTL, "bf16": None}):
        got = convert(folder, source, "--deepspeed", ds)
        assert got.spec["fp16"] == {"enabled": True} and "bf16" not in got.spec
        assert got.note("fp16 of the DeepSpeed configuration counts") and not [note for note in got.notes if "not complete" in note]


def test_a_configuration_as_json_in_a_string(folder):
    got = convert(folder, {**TRAINER, "deepspeed": json.dumps({"zero_optimization": {"stage": 2}})})
    assert got.spec["zero_optimization"] == {"stage": 2}


def test_the_whole_batch_of_deepspeed(folder):
    ds = write(folder, "ds.json", {"train_batch_size": 48})
    keys = {key: value for key, value in TRAINER.items() if key != "gradient_accumulation_steps"}
    got = convert(folder, keys, "--deepspeed", ds)
    assert got.spec["train_batch_size"] == 48 and got.spec["train_micro_batch_size_per_gpu"] == 4
    assert "gradient_accumulation_steps" not in got.spec


# --- refusals ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name, text, words", [
    ("a.yaml", "base_model: [1\n", ("a.yaml:2:1: not valid YAML",)),
    ("a.json", '{"base_model": }', ("a.json:1:", "is not a configuration in YAML or JSON")),
    ("a.yaml", "- base_model\n", ("must be a mapping",)),
    ("a.yaml", "", ("the file is empty",)),
    ("a.yaml", "{}\n", ("unknown kind", "it has no keys")),
    ("a.yaml", "base_modle: x\n", ("unknown kind", "is a key of it base_model?", "Trainer or TRL", "axolotl", "LLaMA-Factory")),
    ("a.yaml", "colour: blue\n", ("unknown kind", "its first key is 'colour'")),
    ("a.json", '{"zero_optimization": {"stage": 2}}', ("is a DeepSpeed configuration", "--deepspeed")),
    ("a.yaml", "model: {}\ndata: {}\n", ("is a run spec", "ztrain --config")),
    ("a.yaml", "base_model: a\nstage: sft\n", ("as many keys of axolotl (1) as of LLaMA-Factory",)),
    ("a.yaml", "base_model: a\nbase_model: b\n", ("is set twice",)),
])
def test_refusals(folder, name, text, words):
    done = folder.ztrain("convert", write(folder, name, text), expect=USAGE)
    assert done.out == "" and all(word in done.err for word in words), done


def test_what_is_not_there(folder):
    source = write(folder, "a.yaml", AXOLOTL)
    for arguments, words in (([], "no configuration was named"), (["none.yaml"], "cannot read 'none.yaml'"),
                             ([source, "--world", "0"], "--world must be a number"),
                             ([source, "--deepspeed", write(folder, "odd.json", '{"colour": 1}')], "it has none of its keys"),
                             ([source, "--deepspeed", write(folder, "half.json", '{"zero_optimization": ')],
                              "is not a DeepSpeed configuration")):
        done = folder.ztrain("convert", *arguments, expect=USAGE)
        assert words in done.final_error and done.out == "", done
    write(folder, "large.yaml", "#" * (5 << 20))
    assert "larger than 4 MiB" in folder.ztrain("convert", "large.yaml", expect=USAGE).final_error


# --- the spec is one --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("deepspeed", [False, True], ids=["alone", "ds_config"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_spec_trains(folder, kind, deepspeed):
    folder.data()
    write(folder, "ds.json", DEEPSPEED)
    got = convert(folder, KINDS[kind], *(["--deepspeed", folder.at("ds.json")] if deepspeed else []))
    path = write(folder, "run.yaml", got.text)
    sets = ["model.pretrained=null", f"model.config={json.dumps(LLAMA)}", f"data.train={folder.at('train')}", "data.validation=null",
            "train.max_steps=2", "train.epochs=null", "train.device=cpu", f"run.dir={folder.at('runs')}", "run.name=run"]
    arguments = ["--config", path] + [word for item in sets for word in ("--set", item)]
    folder.ztrain(*arguments, "--dry-run")
    folder.ztrain(*arguments)
    steps = folder.metrics().steps
    assert [row["step"] for row in steps] == [1, 2]


@pytest.mark.parametrize("source", ["trainer", "axolotl"])
def test_the_command_of_a_note_makes_the_data(folder, source):
    """As the note has it, but for the name of an installed program: a name that the shell has to quote, and a shard to train on."""
    if source == "trainer":
        name, content = "it's a book.txt", "\n\n".join(f"Chapter {n}. One comes after another." for n in range(60))
        keys = {**TRAINER, "train_file": name, "tokenizer_name": "byte", "do_eval": True}
    else:
        name = "recipes.jsonl"
        content = "\n".join(json.dumps({"instruction": f"Cook {n}", "input": "", "output": f"Stir {n} times."}) for n in range(60))
        keys = {**AXOLOTL, "datasets": [{"path": name, "type": "alpaca"}], "tokenizer_config": "byte"}
    write(folder, name, content)
    got = convert(folder, keys)
    command = got.note("which this makes: ztrain-tokenize").split("which this makes: ")[1]
    os.makedirs(folder.at("data"), exist_ok=True)
    subprocess.run(command.replace("ztrain-tokenize", f"{sys.executable} {ROOT}/scripts/tokenize.py", 1), shell=True, cwd=folder.path,
                   check=True, stdout=subprocess.DEVNULL)
    assert os.path.exists(folder.at(got.spec["data"]["train"] + ".mask")) == (source == "axolotl")
    sets = ["model.pretrained=null", "model.tokenizer=null", f"model.config={json.dumps({**LLAMA, 'vocab_size': 257})}",
            "train.max_steps=2", "train.device=cpu"]
    path = write(folder, "run.yaml", got.text)
    folder.ztrain("--config", path, *[word for item in sets for word in ("--set", item)])
    run = folder.at(got.spec["run"]["dir"], got.spec["run"]["name"])
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    assert [row["step"] for row in rows if "loss" in row] == [1, 2] and any("eval_loss" in row for row in rows)


def test_zero_is_that_of_the_configuration(folder):
    """The converted spec shards as the same arguments with --deepspeed do."""
    folder.data()
    write(folder, "ds.json", DEEPSPEED)
    sets = ["--set", "model.pretrained=null", "--set", f"model.config={json.dumps(LLAMA)}", "--set", f"data.train={folder.at('train')}",
            "--set", "train.device=cpu", "--set", "run.name=run"]
    alone, whole = (convert(folder, TRAINER, *more) for more in ([], ["--deepspeed", folder.at("ds.json")]))
    sections = []
    for text, more in ((whole.text, []), (alone.text.replace("scheduler:\n  type: Linear\n  params:\n    warmup_steps: 5\n", ""),
                                          ["--deepspeed", folder.at("ds.json")])):
        out = folder.ztrain("--config", write(folder, "run.yaml", text), *sets, *more, "--dry-run").out
        sections.append(re.search(r"^zero_optimization:\n(?:  .*\n)+", out, re.M).group())
    assert sections[0] == sections[1] and "stage: 3" in sections[0]


def test_a_closed_reader_is_an_error(folder):
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([ZTRAIN, "convert", write(folder, "a.yaml", AXOLOTL)], stdout=full, stderr=subprocess.PIPE,
                              check=False, timeout=60)
    assert done.returncode == USAGE != FINISHED and b"standard output" in done.stderr


def test_a_deepspeed_configuration_among_the_files(folder):
    source, shards = write(folder, "a.yaml", AXOLOTL), write(folder, "ds.json", '{"zero_optimization": {"stage": 3}}')
    for files in ([source, shards], [shards, source]):
        assert "zero_optimization:\n  stage: 3\n" in folder.ztrain("convert", *files).out
    assert "a configuration of DeepSpeed goes with --deepspeed" in folder.ztrain("convert", shards, expect=USAGE).final_error
    assert "--deepspeed none.json is not here: set zero_optimization.stage" in folder.ztrain("convert", source, "--deepspeed", "none.json").err

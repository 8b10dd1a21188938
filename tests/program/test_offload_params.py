# SPDX-License-Identifier: Apache-2.0
"""Stage 3 with its parameters in host memory: the numbers, and the files, of the same run without offload."""
import json

import pytest

from harness import GPT2, LLAMA, USAGE, plan_bytes

CPU = {"device": "cpu"}


def shape(dtype, more=None, offload=CPU):
    precision = {} if dtype == "fp32" else {dtype: {"enabled": True}}
    zero = {"stage": 3, **({"offload_param": offload} if offload else {})}
    return {"zero_optimization": zero, "train": {"epochs": 2, "eval_interval_steps": 2}, **precision, **(more or {})}


def exported(folder, name):
    folder.ztrain("export", folder.run_folder(name), "--out", folder.at(f"hf-{name}"), "--dtype", "fp32")
    with open(folder.at(f"hf-{name}", "model.safetensors"), "rb") as file:
        return file.read()


def same_run(folder, changes, ranks):
    plain = {**changes, "zero_optimization": {"stage": 3}}
    for name, spec in (("plain", plain), ("offload", changes)):
        folder.train(spec, name, ranks=ranks)
    assert folder.metrics("offload").numbers() == folder.metrics("plain").numbers()
    assert folder.metrics("offload").evaluations
    assert exported(folder, "offload") == exported(folder, "plain")


@pytest.mark.parametrize("dtype, ranks, model", [("fp32", 1, LLAMA), ("bf16", 2, GPT2), ("fp16", 4, LLAMA), ("fp32", 2, GPT2)])
def test_same_bits_as_without(folder, dtype, ranks, model):
    """With accumulation, and with evaluations between steps."""
    same_run(folder, shape(dtype, {"model": {"config": model}, "train_micro_batch_size_per_gpu": 1}), ranks)


@pytest.mark.long
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_same_bits_everywhere(folder, dtype, ranks, overlap):
    changes = shape(dtype, {"gradient_accumulation_steps": 1 if ranks == 2 else 3, "model": {"config": GPT2 if overlap else LLAMA}})
    changes["zero_optimization"]["overlap_comm"] = overlap
    same_run(folder, changes, ranks)


@pytest.mark.parametrize("dtype, ranks", [("fp32", 2), ("bf16", 1)])
def test_checkpoints_of_both_modes_load_in_the_other(folder, dtype, ranks):
    """A run that changes the mode with each resume has the numbers of one that never stopped."""
    train = {"epochs": 6, "eval_interval_steps": 5}
    folder.train({**shape(dtype, offload=None), "train": train}, "whole", ranks=ranks)
    resume = []
    for stop, mode in ((5, CPU), (11, None), (None, CPU)):
        sets = [] if stop is None else [f"train.max_steps={stop}", "train.epochs=null"]
        folder.train({**shape(dtype, offload=mode), "train": train}, "turns", ranks=ranks, more=resume, sets=sets)
        resume = ["--resume", folder.run_folder("turns")]
    turns, whole = folder.metrics("turns"), folder.metrics("whole")
    assert [(r["loss"], r["grad_norm"]) for r in turns.steps] == [(r["loss"], r["grad_norm"]) for r in whole.steps]
    assert exported(folder, "turns") == exported(folder, "whole")


def test_the_plan_has_the_bytes(folder):
    """Host memory holds the parameters; the device holds what is gathered."""
    spec = folder.spec(shape("bf16"))
    plan = folder.ztrain("plan", "--bytes", "--config", spec, "--world", 2).out
    device, host, _ = plan_bytes(plan).values()
    assert host["parameters"] > 0 == device["parameters"], plan


def test_keys_of_nvme_are_noticed(folder):
    """DeepSpeed's buffers belong to its files: with device cpu, each key has a notice."""
    buffers = {"max_in_cpu": 5e8, "buffer_count": 4, "buffer_size": 2e8}
    done = folder.ztrain("--config", folder.spec(shape("fp32", offload={**CPU, **buffers})), "--dry-run")
    for key in buffers:
        assert f"'zero_optimization.offload_param.{key}' has no effect " in done.out


def test_the_old_name(folder):
    """cpu_offload_param: true is offload_param.device cpu."""
    old = {"zero_optimization": {"stage": 3, "cpu_offload_param": True}}
    effective = folder.ztrain("--config", folder.spec(old), "--dry-run").out
    assert "offload_param:" in effective and "cpu_offload_param" not in effective
    old["zero_optimization"]["stage"] = 2
    folder.train(old, expect=USAGE)


BOTH = {"offload_optimizer": {"device": "cpu", "pin_memory": True}, "offload_param": {"device": "cpu", "pin_memory": True}}
AUTO = {key: "auto" for key in ("gradient_accumulation_steps", "gradient_clipping", "train_batch_size", "train_micro_batch_size_per_gpu")}
TYPICAL = {
    # Ray's templates for large language models
    "ray": {"fp16": {"enabled": False}, "bf16": {"enabled": True},
            "zero_optimization": {"stage": 3, **BOTH, "overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": "auto",
                                  "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",
                                  "gather_16bit_weights_on_model_save": True, "round_robin_gradients": True},
            **AUTO, "steps_per_print": 10, "wall_clock_breakdown": False},
    # transformers' example of stage 3
    "transformers": {"fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2,
                              "min_loss_scale": 1},
                     "bf16": {"enabled": "auto"},
                     "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
                     "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                                                                  "warmup_num_steps": "auto"}},
                     "zero_optimization": {"stage": 3, **BOTH, "overlap_comm": True, "contiguous_gradients": True, "sub_group_size": 1e9,
                                           "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
                                           "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9,
                                           "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": True},
                     **AUTO, "steps_per_print": 2000, "wall_clock_breakdown": False},
    # DeepSpeed's tutorial of ZeRO-Infinity, with its host memory
    "deepspeed": {"train_batch_size": 12, "fp16": {"enabled": True},
                  "zero_optimization": {"stage": 3, "contiguous_gradients": True, "stage3_max_live_parameters": 1e9,
                                        "stage3_max_reuse_distance": 1e9, "stage3_prefetch_bucket_size": 1e7,
                                        "stage3_param_persistence_threshold": 1e5, "reduce_bucket_size": 1e7, "sub_group_size": 1e9,
                                        "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}},
}


@pytest.mark.parametrize("name", TYPICAL)
def test_typical_configurations_train(folder, name):
    """Unchanged, next to a run spec that names the model, the data and the batch; with the numbers of no offload."""
    config = TYPICAL[name]
    rest = {"steps_per_print": None, "gradient_clipping": None if name == "deepspeed" else 1.0,
            "train_batch_size": None if name == "deepspeed" else 12, "scheduler": None}
    if name == "transformers":
        rest["bf16"] = {"enabled": True}
    for run in ("offload", "plain"):
        with open(folder.at(f"{run}.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        folder.train(rest, run, ranks=2, more=["--deepspeed", folder.at(f"{run}.json")])
        zero = {key: value for key, value in config["zero_optimization"].items() if not key.startswith("offload")}
        config = {**config, "zero_optimization": zero}
    assert folder.metrics("offload").numbers() == folder.metrics("plain").numbers()
    assert exported(folder, "offload") == exported(folder, "plain")

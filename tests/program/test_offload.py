# SPDX-License-Identifier: Apache-2.0
"""Offload to host memory changes where things are, and no bit: every run is compared with the same run without it."""
import os

import pytest

from harness import GPT2, LLAMA, USAGE, plan_bytes

TO_HOST = {"offload_optimizer": {"device": "cpu"}}
DTYPES = {"fp32": {}, "bf16": {"bf16": {"enabled": True}}, "fp16": {"fp16": {"enabled": True, "initial_scale_power": 20}}}


def outcome(folder, name, changes, ranks, offload, more=()):
    """Everything of a run that must repeat: numbers, warnings about skipped steps, and the exported fp32 weights."""
    zero = {**changes.get("zero_optimization", {}), **offload}
    done = folder.train({**changes, "zero_optimization": zero}, name=name, ranks=ranks, more=more)
    folder.ztrain("export", folder.run_folder(name), "--out", folder.at(f"hf-{name}"), "--dtype", "fp32")
    with open(folder.at(f"hf-{name}", "model.safetensors"), "rb") as f:
        weights = f.read()
    skipped = [line[line.index("non-finite"):] for line in done.err.splitlines() if "the step is skipped" in line]
    return folder.metrics(name).numbers(), skipped, weights


def compare(folder, changes, ranks, offload=TO_HOST):
    """Returns the warnings about skipped steps."""
    without = outcome(folder, "without", changes, ranks, {})
    with_it = outcome(folder, "with", changes, ranks, offload)
    assert with_it[0] == without[0] and with_it[1] == without[1]
    assert with_it[2] == without[2]
    return with_it[1]


def changes_of(stage, dtype, accumulation, model=LLAMA):
    return {"model": {"config": model}, "zero_optimization": {"stage": stage}, **DTYPES[dtype],
            "train": {"epochs": 2, "eval_interval_steps": 2}, "gradient_accumulation_steps": accumulation}


@pytest.mark.parametrize("stage, ranks, dtype, accumulation", [(1, 2, "bf16", 2), (2, 1, "fp16", 3), (3, 2, "fp32", 1)])
def test_optimizer_in_host_memory(folder, stage, ranks, dtype, accumulation):
    skipped = compare(folder, changes_of(stage, dtype, accumulation), ranks)
    assert bool(skipped) == (dtype == "fp16")


@pytest.mark.long
@pytest.mark.parametrize("ranks, stage, dtype", [
    (1, 1, "bf16"), (1, 2, "fp32"), (1, 3, "fp16"), (2, 1, "fp32"), (2, 2, "bf16"), (2, 3, "bf16"), (4, 1, "fp16"),
    (4, 2, "fp16"), (4, 3, "fp32")])
def test_optimizer_in_host_memory_everywhere(folder, stage, ranks, dtype):
    accumulation = 3 if (stage + ranks + len(dtype)) % 2 else 1
    compare(folder, changes_of(stage, dtype, accumulation, GPT2 if ranks == 2 else LLAMA), ranks)


@pytest.mark.long
@pytest.mark.parametrize("ratio, stage, ranks, dtype", [(0.2, 1, 1, "fp32"), (0.6, 2, 2, "fp16"), (0.3, 3, 4, "bf16")])
def test_a_part_of_the_optimizer_in_host_memory(folder, ratio, stage, ranks, dtype):
    offload = {"offload_optimizer": {"device": "cpu", "ratio": ratio}}
    compare(folder, changes_of(stage, dtype, 3 if ranks == 1 else 1), ranks, offload)


@pytest.mark.parametrize("into", [True, False], ids=["into", "out of"])
def test_checkpoints_of_either_mode_load_in_the_other(folder, into):
    changes = {**changes_of(2, "bf16", 1), "checkpoint": {"interval_steps": 3}}
    modes = [{}, TO_HOST] if into else [TO_HOST, {}]
    whole = outcome(folder, "whole", changes, 2, modes[0])
    checkpoint = os.path.join(folder.run_folder("whole"), "checkpoints", folder.checkpoints("whole")[0])
    resumed = outcome(folder, "resumed", changes, 2, modes[1], ["--resume", checkpoint])
    assert 0 < len(resumed[0]) < len(whole[0])
    assert resumed[0] == whole[0][-len(resumed[0]):] and resumed[2] == whole[2]


def planned(folder, changes):
    """Bytes by kind of memory, on the device and in host memory."""
    found = plan_bytes(folder.ztrain("plan", "--bytes", "--config", folder.spec(changes)).out)
    return found["device"], found["host"]


def test_the_plan_counts_host_memory(folder):
    """bf16 at stage 2: 12 bytes a parameter of state and 4 of gradients leave the device."""
    changes = {**changes_of(2, "bf16", 1), "checkpoint": {"writer": {"decoupled": False}}}
    device, nothing = planned(folder, changes)
    assert not nothing and device["optimizer"] == 3 * device["gradients"] > 0
    changes["zero_optimization"].update(TO_HOST)
    less, host = planned(folder, changes)
    assert less["optimizer"] == less["gradients"] == 0 and less["parameters"] == device["parameters"]
    assert host["optimizer"] == device["optimizer"] and host["gradients"] == device["gradients"]


def test_memory_is_pinned_in_any_case(folder):
    spec = folder.spec({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu", "pin_memory": False}}})
    done = folder.ztrain("plan", "--config", spec)
    assert "'zero_optimization.offload_optimizer.pin_memory' is false: a GPU's copies" in done.out + done.err


@pytest.mark.parametrize("zero, words", [
    ({"stage": 0, **TO_HOST}, "needs zero_optimization stage 1, 2 or 3"),
    ({"stage": 1, "offload_optimizer": {"device": "cpu", "ratio": 1.5}}, "ratio"),
])
def test_refused(folder, zero, words):
    assert words in folder.train({"zero_optimization": zero}, expect=USAGE).err

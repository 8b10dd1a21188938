# SPDX-License-Identifier: Apache-2.0
"""Planted flips of one bit: train.check_interval_steps finds them, names the rank, and no checkpoint has them.

On two ranks of emulated GPUs, and of the CPU device; instrumented builds have ZTRAIN_FLIP (comm/zero/zero_check.c). All
steps but the checked ones may be CUDA graphs.
"""
import json
import os
import re

import pytest

import harness
from harness import BROKEN, ROOT

STEP = 4
BASE = {"data": {"validation": None}, "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
        "train": {"epochs": None, "max_steps": 6, "check_interval_steps": 2}, "checkpoint": {"interval_steps": 1}}


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    monkeypatch.setattr(harness, "ZTRAIN", os.path.join(ROOT, "build", "emulation", "ztrain"))
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", os.path.join(ROOT, "build", "emulation", "gemm-cache"))
    monkeypatch.setenv("ZTRAIN_EMULATION_GPUS", "2")


def train(folder, device, stage, what, **more):
    changes = harness.merged(BASE, {"train": {"device": device}, "zero_optimization": {"stage": stage}})
    return folder.train(changes, ranks=2, env={"ZTRAIN_FLIP": f"{what}:1:{STEP}"}, **more)


def check_flip(folder, device, stage, what):
    done = train(folder, device, stage, what, expect=BROKEN)
    tensor = re.search(rf"ztrain: error: rank 1 on (\S+): step {STEP}: silent corruption: its {what} of (\S+) ", done.final_error)
    assert tensor and "no checkpoint is written; hint: " in done.final_error, done
    assert done.err.count("silent corruption") == 1
    assert folder.checkpoints() == [f"step-{step:08d}" for step in range(1, STEP)]
    (line,) = folder.metrics().kinds("corruption")
    assert line == {"corruption": what, "step": STEP, "rank": 1, "host": tensor.group(1), "tensor": tensor.group(2)}
    folder.ztrain("verify", folder.latest())


FEW = [("cpu", 0, "gradients"), ("cuda", 0, "parameters"), ("cpu", 3, "master"), ("cuda", 3, "exp_avg_sq")]


@pytest.mark.parametrize("device,stage,what", FEW)
def test_a_flip_is_found(folder, device, stage, what):
    check_flip(folder, device, stage, what)


@pytest.mark.parametrize("device,stage,what", [
    (device, stage, what) for device, stage in [("cpu", 0), ("cuda", 0), ("cuda", 1), ("cpu", 1), ("cuda", 2), ("cuda", 3)]
    for what in ("gradients", "parameters", "master", "exp_avg_sq") if (device, stage, what) not in FEW])
def test_more_flips_are_found(folder, device, stage, what):
    """Only with .ci/run --all."""
    check_flip(folder, device, stage, what)


def test_checked_steps_between_graphs_change_no_bit(folder):
    changes = harness.merged(BASE, {"train": {"device": "cuda", "cuda_graphs": True}, "zero_optimization": {"stage": 3}})
    folder.train(changes, name="checked", ranks=2)
    folder.train(changes, name="plain", ranks=2, sets=["train.check_interval_steps=0"])
    assert folder.metrics("checked").numbers() == folder.metrics("plain").numbers()
    launched = [row["step"] for row in folder.metrics("checked").steps if row["seconds"]["forward"] is None]
    assert launched == [3, 5]
    sums = []
    for name in ("checked", "plain"):
        with open(os.path.join(folder.latest(name), "manifest.json"), encoding="utf-8") as f:
            sums.append([file["index_checksum"] for file in json.load(f)["files"] if file["name"].startswith("rank-")])
    assert sums[0] == sums[1] and len(sums[0]) == 2

# SPDX-License-Identifier: Apache-2.0
"""Activations in host memory on emulated GPUs: the bits of the run that keeps them, in any order of the GPU's work.

Every run is also a search for missing events (tests/emulation/emulation.h); tests/unit/gpu/test_activation_store_cuda.c shows that
each of the store's events would be missed.
"""
import os

import pytest

import harness
from harness import LLAMA, ROOT

DEEP = {**LLAMA, "num_hidden_layers": 5}


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    monkeypatch.setattr(harness, "ZTRAIN", os.path.join(ROOT, "build", "emulation", "ztrain"))
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", os.path.join(ROOT, "build", "emulation", "gemm-cache"))


@pytest.mark.parametrize("order, ranks, stage", [("starve", 1, 0), ("random", 2, 3)])
def test_inputs_in_host_memory_change_nothing(folder, order, ranks, stage):
    changes = {"model": {"config": DEEP}, "data": {"seq_length": 8}, "train_batch_size": 4 * ranks,
               "gradient_accumulation_steps": 2, "zero_optimization": {"stage": stage}, "bf16": {"enabled": True},
               "train": {"epochs": None, "max_steps": 2, "eval_interval_steps": 1, "eval_batches": 1, "device": "cuda"}}
    away = {"activation_checkpointing": {"policy": "block", "cpu_checkpointing": True}}
    env = {"ZTRAIN_EMULATION_GPUS": str(ranks), "ZTRAIN_EMULATION_ORDER": order, "ZTRAIN_EMULATION_SEED": "5"}
    folder.train(harness.merged(changes, {"train": {"cuda_graphs": False}}), name="here", ranks=ranks, env=env)
    folder.train(harness.merged(changes, away), name="away", ranks=ranks, env=env)
    assert folder.metrics("away").numbers() == folder.metrics("here").numbers()

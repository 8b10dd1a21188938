# SPDX-License-Identifier: Apache-2.0
"""Activations that are computed again or lie in host memory between forward and backward: the same numbers, fewer bytes."""

import pytest

from harness import LLAMA, SEQUENCE, plan_bytes

DEEP = {**LLAMA, "num_hidden_layers": 7}    # more blocks than the three whose inputs stay on the device


def away(policy="block"):
    return {"activation_checkpointing": {"policy": policy, "cpu_checkpointing": True}}


@pytest.mark.parametrize("ranks, stage, dtype", [
    (1, 0, "fp32"), (2, 2, "bf16"),
    *(pytest.param(ranks, stage, dtype, marks=pytest.mark.long)
      for ranks in (1, 2, 4) for stage in (0, 1, 2, 3) for dtype in ("fp32", "bf16", "fp16")
      if ranks > 1 or stage == 0)])
def test_inputs_in_host_memory_change_nothing(folder, ranks, stage, dtype):
    """With two micro-batches of each rank and an evaluation after each step."""
    base = {"model": {"config": DEEP}, "zero_optimization": {"stage": stage}, "gradient_accumulation_steps": 2,
            "train": {"epochs": 1, "eval_interval_steps": 1}, **({} if dtype == "fp32" else {dtype: {"enabled": True}})}
    folder.train({**base, "train_batch_size": 8}, name="here", ranks=ranks)
    folder.train({**base, "train_batch_size": 8, **away()}, name="away", ranks=ranks)
    assert folder.metrics("away").numbers() == folder.metrics("here").numbers()


@pytest.mark.parametrize("policy", ["norms", "mlp", "attention"])
def test_inputs_in_host_memory_with_other_policies(folder, policy):
    base = {"model": {"config": DEEP}, "train": {"epochs": 1}, "data": {"packing": False}}
    folder.train(base, name="here")
    folder.train({**base, **away(policy)}, name="away")
    assert folder.metrics("away").numbers() == folder.metrics("here").numbers()


@pytest.mark.parametrize("blocks", [[2], [4, 6]])
def test_backward_that_ends_early(folder, blocks):
    """Inputs of blocks below the lowest adapter are not copied, and nothing writes over the next micro-batch's."""
    base = {"model": {"config": DEEP}, "peft": {"layers_to_transform": blocks}, "gradient_accumulation_steps": 4,
            "train_batch_size": 8, "train": {"epochs": 1}}
    folder.train(base, name="here")
    folder.train({**base, **away()}, name="away")
    assert folder.metrics("away").numbers() == folder.metrics("here").numbers()


def test_all_that_can_be_away(folder):
    """Inputs, the optimizer's state and stage 3's parameters in host memory at once."""
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    base = {"model": {"config": DEEP}, "train": {"epochs": 1}, "bf16": {"enabled": True}}
    folder.train({**base, "zero_optimization": {"stage": 3}}, name="here", ranks=2)
    folder.train({**base, "zero_optimization": zero, **away()}, name="away", ranks=2)
    assert folder.metrics("away").numbers() == folder.metrics("here").numbers()


def test_a_run_may_resume_with_its_inputs_elsewhere(folder):
    """Policies and places of activations belong to a process, not to a run: a change is not reported."""
    base = {"model": {"config": DEEP}, "train": {"max_steps": 4}, "checkpoint": {"interval_steps": 2}}
    folder.train(base, name="through")
    folder.train({**base, "train": {"max_steps": 2}, **away("mlp")}, name="first")
    done = folder.train({**base, **away()}, name="first", more=("--resume", folder.run_folder("first")))
    assert "cpu_checkpointing" not in done.err and "policy" not in done.err
    assert folder.metrics("first").losses == folder.metrics("through").losses


def test_the_plan_moves_the_inputs(folder):
    """Three inputs stay on the device; the other blocks' are host memory, whatever the ranks."""
    spec = folder.spec({"model": {"config": DEEP}, "activation_checkpointing": {"policy": "block"},
                        "checkpoint": {"writer": {"decoupled": False}}})
    plans = [plan_bytes(folder.ztrain("plan", "--bytes", "--config", spec, "--world", 2, "--set",
                                      f"activation_checkpointing.cpu_checkpointing={value}").out) for value in ("false", "true")]
    here, there = (plan["device"]["activations"] for plan in plans)
    host = plans[1]["host"]["activations"]
    assert not plans[0]["host"]
    assert here - there == host == 4 * 6 * SEQUENCE * DEEP["hidden_size"] * 4     # 4 blocks, a micro-batch of 6 samples

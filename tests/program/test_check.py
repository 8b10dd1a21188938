# SPDX-License-Identifier: Apache-2.0
"""train.check_interval_steps: a step that is computed twice has the same bits; what it costs where it is refused."""
import glob
import os
import zlib

import pytest

from harness import GPT2, LLAMA, USAGE

BASE = {"model": {"config": LLAMA}, "train": {"epochs": None, "max_steps": 5}, "checkpoint": {"compression_level": 0}}
DROPOUT = {**GPT2, "attn_pdrop": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1}
CPU = {"device": "cpu", "pin_memory": False}
CASES = {
    "0": (2, {"zero_optimization": {"stage": 0}}),
    "1-bf16-accumulation": (2, {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True},
                                "train_micro_batch_size_per_gpu": 2}),
    "2-muon-recompute": (2, {"zero_optimization": {"stage": 2}, "optimizer": {"type": "Muon"},
                             "activation_checkpointing": {"enabled": True}}),
    "3-dropout": (2, {"zero_optimization": {"stage": 3}, "model": {"config": DROPOUT}, "train_micro_batch_size_per_gpu": 3}),
    "3-offload": (2, {"zero_optimization": {"stage": 3, "offload_param": CPU, "offload_optimizer": CPU},
                      "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 3}),
    "alone-bf16-sums": (1, {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "bf16"},
                            "train_micro_batch_size_per_gpu": 2}),
    "alone-fp16-skips": (1, {"fp16": {"enabled": True, "initial_scale_power": 20}, "train_micro_batch_size_per_gpu": 4}),
}


def contents(folder, name):
    """Checksums of the ranks' states in the newest checkpoint."""
    files = sorted(glob.glob(os.path.join(os.path.realpath(folder.latest(name)), "rank-*")))
    assert files
    sums = []
    for path in files:
        with open(path, "rb") as f:
            sums.append(zlib.crc32(f.read()))
    return sums


@pytest.mark.parametrize("case", CASES)
def test_a_checked_step_has_the_same_bits(folder, case):
    ranks, changes = CASES[case]
    sets = [f"train.{key}={value}" for key, value in BASE["train"].items() if value]
    changes = {**BASE, **changes}
    folder.train(changes, name="plain", ranks=ranks, sets=sets)
    done = folder.train(changes, name="checked", ranks=ranks, sets=[*sets, "train.check_interval_steps=2"], more=["--verbose"])
    assert "each step whose number is a multiple of 2 is computed twice" in done.out + done.err
    assert folder.metrics("checked").numbers() == folder.metrics("plain").numbers()
    assert contents(folder, "checked") == contents(folder, "plain")
    if "fp16" in case:
        assert any(row["skipped"] for row in folder.metrics("checked").steps if row["step"] % 2 == 0)


def test_every_step_after_a_resume(folder):
    """The interval may change on a resume; the first step of a process is checked, too."""
    folder.train(BASE, name="plain", ranks=2, sets=["train.max_steps=4"])
    folder.train(BASE, name="run", ranks=2, sets=["train.max_steps=2", "train.check_interval_steps=1"])
    folder.train(BASE, name="run", ranks=2, sets=["train.max_steps=4", "train.check_interval_steps=3"],
                 more=["--resume", folder.run_folder()])
    assert [row["loss"] for row in folder.metrics().steps] == folder.metrics("plain").losses


def test_attention_in_any_order_is_refused(folder):
    done = folder.train({"train": {"check_interval_steps": 5, "deterministic": False}}, expect=USAGE)
    assert "'train.check_interval_steps' compares two computations bit for bit, and train.deterministic is false" in done.err

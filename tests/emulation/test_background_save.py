# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are written while emulated GPUs train on (checkpoint.writer.decoupled): the files of a run that waits for them."""
import filecmp
import os
import re

import pytest

import harness
import offload_case
from harness import Job, merged
from offload_case import away, changes_of, environment


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    offload_case.program(monkeypatch)


@pytest.mark.parametrize("precision, places, order", [("fp32", (), "starve"), ("bf16-states", ("cpu", "nvme"), "random")])
def test_the_rank_files_are_those_of_a_run_that_waits(folder, precision, places, order):
    """Two ranks; each checkpoint but the last is written from a copy, with the next steps under way."""
    changes, env = merged(changes_of(2, precision, 6), away(folder, *places)), environment(2, order)
    for name, decoupled in ("waits", False), ("run", True if places else "auto"):
        done = folder.train(merged(changes, {"checkpoint": {"writer": {"decoupled": decoupled}}}), name=name, ranks=2, env=env)
    assert done.out.count(", training waited for ") == 2
    assert folder.checkpoints() == folder.checkpoints("waits") == ["step-00000002", "step-00000004", "step-00000006"]
    for checkpoint in folder.checkpoints():
        for rank in "rank-00000.zst", "rank-00001.zst":
            files = [os.path.join(folder.run_folder(run), "checkpoints", checkpoint, rank) for run in ("run", "waits")]
            assert filecmp.cmp(*files, shallow=False)
    assert folder.metrics().numbers() == folder.metrics("waits").numbers()


def test_memory_that_cannot_be_pinned(folder):
    """auto saves without the copy on all ranks, with a line; true takes what CUDA allocates itself, which is not registered."""
    def train(decoupled, pins):
        changes = merged(changes_of(2, "fp32", 3), {"checkpoint": {"writer": {"decoupled": decoupled}}})
        return Job(folder, "--config", folder.spec(changes, f"pins-{pins}"), nodes=[0, 0], env=environment(2),
                   env_of={1: {"ZTRAIN_EMULATION_PINS": pins}}).train()
    done = train("auto", "200000")
    assert re.search(r"training waits for checkpoints \(checkpoint.writer.decoupled\): rank 1 has no memory for its copy of [\d.]+ KiB: "
                     r"cannot pin 0.00\d GiB of host memory, only 0.000 GiB: out of memory\n", done[0].out), done
    assert folder.checkpoints("pins-200000") == ["step-00000002", "step-00000003"]
    done = train(True, "0")
    assert ", training waited for " in done[0].out and "training waits for checkpoints" not in done[0].out, done
    with open(os.path.join(folder.run_folder("pins-0"), "log", "rank-00001.log"), encoding="utf-8") as f:
        assert "GiB of pinned host memory itself: cannot pin " in f.read()
    assert folder.metrics("pins-0").numbers() == folder.metrics("pins-200000").numbers()


ENDS = ({"train": {"eval_interval_steps": 1, "early_stopping": {"patience": 1, "min_delta": 100}}},
        {"train": {"max_skipped_steps": 1}, "optimizer": {"params": {"lr": 1e6, "weight_decay": 1.0}}})


@pytest.mark.parametrize("end, code", zip(ENDS, (harness.FINISHED, harness.DIVERGED)))
def test_a_run_that_ends_when_the_first_checkpoint_is_due(folder, end, code):
    """The memory of the copy is on its way: nothing waits for it, nothing is pinned, and both ranks end in order."""
    spec = folder.spec(merged(changes_of(2, "fp32", 6), end))
    done = folder.ztrain("--config", spec, "--local-gpus", 2, expect=code,
                         env=environment(2, ZTRAIN_EMULATION_PINS="200000", ZTRAIN_EMULATION_STATS="1"))
    assert "training waits for checkpoints" not in done.out and "step 2/6" in done.out, done
    assert folder.checkpoints() == (["step-00000002"] if code == harness.FINISHED else [])
    assert done.err.count(" collectives, ") == 2, done

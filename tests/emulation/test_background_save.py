"""Checkpoints that are written while emulated GPUs train on (checkpoint.writer.decoupled): the files of a run that waits for them."""
import filecmp
import os
import re

import pytest

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
    assert done.out.count(", of which training waited ") == 2
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
    assert ", of which training waited " in done[0].out and "training waits for checkpoints" not in done[0].out, done
    with open(os.path.join(folder.run_folder("pins-0"), "log", "rank-00001.log"), encoding="utf-8") as f:
        assert "GiB of pinned host memory itself: cannot pin " in f.read()
    assert folder.metrics("pins-0").numbers() == folder.metrics("pins-200000").numbers()

"""Checkpoints that are written while emulated GPUs train on (checkpoint.writer.decoupled): the files of a run that waits for them."""
import filecmp
import os

import pytest

import offload_case
from harness import merged
from offload_case import away, changes_of, environment


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    offload_case.program(monkeypatch)


@pytest.mark.parametrize("precision, places, order", [("fp32", (), "starve"), ("bf16-states", ("cpu", "nvme"), "random")])
def test_the_rank_files_are_those_of_a_run_that_waits(folder, precision, places, order):
    """Two ranks; each checkpoint but the last is written from a copy, with the next steps under way."""
    changes, env = merged(changes_of(2, precision, 6), away(folder, *places)), environment(2, order)
    for name, decoupled in ("waits", False), ("run", True):
        done = folder.train(merged(changes, {"checkpoint": {"writer": {"decoupled": decoupled}}}), name=name, ranks=2, env=env)
    assert done.out.count(", of which training waited ") == 2
    assert folder.checkpoints() == folder.checkpoints("waits") == ["step-00000002", "step-00000004", "step-00000006"]
    for checkpoint in folder.checkpoints():
        for rank in "rank-00000.zst", "rank-00001.zst":
            files = [os.path.join(folder.run_folder(run), "checkpoints", checkpoint, rank) for run in ("run", "waits")]
            assert filecmp.cmp(*files, shallow=False)
    assert folder.metrics().numbers() == folder.metrics("waits").numbers()

# SPDX-License-Identifier: Apache-2.0
"""Offload on emulated GPUs, alone and with NCCL: the bits of the run that keeps all on the device, in any order of its work.

No mode rounds elsewhere: the CPU's AdamW has the same explicit FMAs as the GPU's, the norm is summed on the device, and so are
micro-batches. Every run is also a search for missing events (tests/emulation/emulation.h), with an evaluation, a resume, and
two micro-batches in a step.
"""
import os

import pytest

import offload_case
from harness import Folder, merged
from offload_case import away, changes_of, environment, weights

STEPS = 4
PLACES = [("cpu", None), ("nvme", None), (None, "cpu"), (None, "nvme"), ("cpu", "cpu"), ("nvme", "nvme"), ("cpu", "nvme"),
          ("nvme", "cpu")]
ORDERS = ["starve", "random", "eager"]


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    offload_case.program(monkeypatch)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """(numbers, weights) of the runs without offload, each made once."""
    made = {}

    def outcome(ranks, precision):
        if (ranks, precision) not in made:
            folder = Folder(tmp_path_factory.mktemp("kept"))
            folder.train(changes_of(ranks, precision, STEPS), ranks=ranks, env=environment(ranks))
            made[ranks, precision] = folder.metrics().numbers(), weights(folder, "run")
        return made[ranks, precision]
    return outcome


def name_of(value):
    return f"{value[0]}-{value[1]}" if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("places", PLACES, ids=name_of)
def test_offload_changes_no_bit(folder, kept, places, ranks, precision):
    """The run stops half way and goes on from its checkpoint."""
    order = ORDERS[(PLACES.index(places) + ranks + len(precision[:2])) % len(ORDERS)]
    where, env = away(folder, *places), environment(ranks, order)
    folder.train(merged(changes_of(ranks, precision, STEPS // 2), where), ranks=ranks, env=env)
    done = folder.train(merged(changes_of(ranks, precision, STEPS), where), ranks=ranks, env=env,
                        more=["--resume", folder.run_folder()])
    assert ranks == 1 or "collectives: NCCL 2." in done.out
    numbers, bytes_ = kept(ranks, precision)
    assert folder.metrics().numbers() == numbers and any("eval_loss" in row for row in numbers)
    assert weights(folder, "run") == bytes_
    assert os.listdir(folder.at("disk")) == []


@pytest.mark.parametrize("order, ranks, stage, precision, params", [
    ("starve", 1, 2, "bf16", None), ("random", 2, 1, "fp16", None), ("random", 1, 3, "fp16", "nvme"), ("eager", 2, 2, "fp32", None)])
def test_other_stages_and_skipped_steps(folder, order, ranks, stage, precision, params):
    changes = merged(changes_of(ranks, precision, 4, accumulation=1), {"zero_optimization": {"stage": stage}})
    for name, more in (("here", {}), ("away", away(folder, "cpu", params))):
        done = folder.train(merged(changes, more), name=name, ranks=ranks, env=environment(ranks, order))
        assert ("the step is skipped" in done.err) == (precision == "fp16")
    assert folder.metrics("away").numbers() == folder.metrics("here").numbers()
    assert weights(folder, "away") == weights(folder, "here")


PIECES = {"sub_group_size": 2048, "offload_param": {"buffer_size": 2048}}  # several in each slice


@pytest.mark.parametrize("order, ranks, stage, precision, places", [
    ("starve", 1, 2, "bf16-grads", ("cpu", None)), ("eager", 1, 3, "bf16-states", ("nvme", "nvme")),
    ("random", 2, 3, "bf16-states", ("cpu", "nvme")), ("starve", 2, 3, "fp32", ("nvme", "nvme")),
    pytest.param("random", 1, 3, "bf16-grads", ("nvme", "cpu"), marks=pytest.mark.long),
    pytest.param("starve", 2, 1, "bf16-states", ("cpu", None), marks=pytest.mark.long),
    pytest.param("random", 1, 3, "bf16-states", (None, "cpu"), marks=pytest.mark.long)])
def test_states_in_bf16_and_pieces(folder, order, ranks, stage, precision, places):
    """Products of one rank that add to sums in bf16 have kernels of their own: here the library's first proposals, which add in the
    same order."""
    changes = merged(changes_of(ranks, precision, 3), {"zero_optimization": {"stage": stage}})
    kernels = {"ZTRAIN_GEMM_CACHE": ""} if ranks == 1 else {}
    pieces = PIECES if places[1] else {"sub_group_size": 2048}
    for name, more in (("here", {}), ("away", away(folder, *places, **pieces))):
        folder.train(merged(changes, more), name=name, ranks=ranks, env={**environment(ranks, order), **kernels})
    assert folder.metrics("away").numbers() == folder.metrics("here").numbers()
    assert weights(folder, "away") == weights(folder, "here")

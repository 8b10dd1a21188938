# SPDX-License-Identifier: Apache-2.0
"""The blocks of a step as graphs on the emulated GPU, where the step cannot be one: the bits of op by op, with fewer launches.

With an order of work in which a missing event is found (tests/emulation/emulation.h). Ranks that share a GPU: test_graphs.py.
"""
import re

import pytest

import harness
import offload_case
from harness import merged
from offload_case import away, changes_of, environment, weights

BY_BLOCK = "CUDA graphs: by block: "


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    offload_case.program(monkeypatch)
    monkeypatch.setenv("ZTRAIN_EMULATION_STATS", "1")


def graphs_of(done):
    """(graphs launched, operations in them)"""
    return tuple(map(int, re.search(r"(\d+) graphs of (\d+) operations", done.err).groups()))


def train(folder, changes, graphs, order="lazy", **more):
    return folder.train(merged(changes, {"train": {"cuda_graphs": graphs}}), name=str(graphs), env=environment(1, order), **more)


def test_offload_in_blocks(folder):
    """All state in host memory, two micro-batches: each block has a graph forward and two backward, which adds up in one of them."""
    changes = merged(changes_of(1, "bf16", 3), away(folder, "cpu", "cpu"))
    captured, plain = train(folder, changes, True, "starve"), train(folder, changes, False)
    assert BY_BLOCK in captured.out and "CUDA graphs: none: train.cuda_graphs is false" in plain.out
    assert folder.metrics("True").numbers() == folder.metrics("False").numbers()
    assert weights(folder, "True") == weights(folder, "False")
    assert graphs_of(plain) == (0, 0)
    # Three blocks: the forward of all micro-batches but the first, both backwards of all steps but the first
    graphs, operations = graphs_of(captured)
    assert graphs == 3 * (5 + 4) and operations > 8 * graphs


def test_inputs_in_host_memory(folder):
    """The copy of a block's input to host memory comes between two graphs of its forward."""
    away_inputs = {"activation_checkpointing": {"policy": "block", "cpu_checkpointing": True}, "zero_optimization": {"stage": 0}}
    changes = merged(changes_of(1, "fp16-later", 3, accumulation=1), away_inputs)
    captured = train(folder, changes, "auto", "random")
    train(folder, changes, False)
    assert BY_BLOCK in captured.out and graphs_of(captured)[0] == 3 * 3 * 2
    assert folder.metrics("auto").numbers() == folder.metrics("False").numbers()


def test_a_block_that_is_not_captured(folder, monkeypatch):
    """With auto, a warning says why, and the run continues op by op; true is an error."""
    changes = merged(changes_of(1, "bf16", 2, accumulation=1), away(folder, "cpu"))
    monkeypatch.setenv("ZTRAIN_EMULATION_NO_CAPTURE", "1")
    done = train(folder, changes, "auto")
    assert done.err.count("CUDA graphs: none: a graph cannot be captured") == 1 and graphs_of(done) == (0, 0)
    assert len(folder.metrics("auto").steps) == 2
    done = train(folder, changes, True, expect=harness.DEVICE)
    assert "a graph cannot be captured" in done.err and "train.cuda_graphs: false" in done.err


def test_the_plan_counts_launches(folder):
    """Those of a micro-batch more: the graphs of three blocks, instead of their operations."""
    spec = folder.spec(merged(changes_of(1, "bf16", 3), away(folder, "cpu", "cpu")))
    counts = {}
    for graphs in "true", "false":
        for micro in 2, 3:
            sets = f"train.cuda_graphs={graphs}", f"gradient_accumulation_steps={micro}", f"train_batch_size={2 * micro}"
            options = [word for setting in sets for word in ("--set", setting)]
            said = folder.ztrain("plan", "--speed", "--config", spec, *options).out
            counts[graphs, micro] = [int(re.search(rf"^  {line} +(\d+)", said, re.M).group(1))
                                     for line in ("launches", "launches by the host")]
    more = {graphs: [b - a for a, b in zip(counts[graphs, 2], counts[graphs, 3])] for graphs in ("true", "false")}
    assert more["true"][0] == more["false"][0] == more["false"][1]
    assert more["true"][1] < more["false"][1] - 3 * 2 * 8

# SPDX-License-Identifier: Apache-2.0
"""Steps with a loss mask as graphs on the emulated GPU: each step has another number of targets, and the bits are those of op by op."""
import pytest

import offload_case
from harness import SEQUENCE, merged, write_mask
from offload_case import changes_of, weights


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    offload_case.program(monkeypatch)


def test_loss_masks_in_graphs(folder):
    """With loss scaling, and a skipped step. The number of targets lies in device memory, so a graph divides the losses by that of its step."""
    folder.spec()  # makes the data
    write_mask(folder.at("train"), 40 * SEQUENCE + 1, lambda i: i * i % 7 < 1 + i // 24 % 5)
    changes = merged(changes_of(1, "fp16-later", 3), {"data": {"document_mask": False}, "zero_optimization": {"stage": 0},
                                                   "train": {"eval_interval_steps": 0}})
    for graphs in True, False:
        folder.train(merged(changes, {"train": {"cuda_graphs": graphs}}), name=str(graphs))
    captured, plain = folder.metrics("True"), folder.metrics("False")
    assert [row["seconds"]["forward"] is None for row in captured.steps] == [False, True, True]
    assert len({row["targets"] for row in captured.steps}) == 3
    assert captured.numbers() == plain.numbers() and weights(folder, "True") == weights(folder, "False")

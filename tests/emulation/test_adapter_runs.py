# SPDX-License-Identifier: Apache-2.0
"""Several adapters in one run (`peft` as a list) on emulated GPUs: each has the bits of a run of its own.

Every run is also a search for mistakes: a missing event, a race or a bad index ends it (tests/emulation/emulation.h).
"""
import os

import pytest

import harness
from harness import LLAMA, ROOT, merged
from test_adapters import base_of
from test_several_adapters import check_equal
from virtual_case import DTYPES


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    monkeypatch.setattr(harness, "ZTRAIN", os.path.join(ROOT, "build", "emulation", "ztrain"))
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", os.path.join(ROOT, "build", "emulation", "gemm-cache"))
    monkeypatch.setenv("ZTRAIN_EMULATION_GPUS", "2")


def test_each_has_the_bits_of_its_own_run(folder):
    """Other matrices, ranks, data and lengths; one has dropout and one block only, one is of an embedding and the head tied to it."""
    base_of(folder, merged(LLAMA, {"tie_word_embeddings": True, "num_hidden_layers": 2}))
    check_equal(folder, {"zero_optimization": {"stage": 3}, "train": {"device": "cuda"}, **DTYPES["bf16"]}, ranks=2)

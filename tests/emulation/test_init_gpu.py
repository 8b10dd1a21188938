# SPDX-License-Identifier: Apache-2.0
"""`ztrain init` on a machine with GPUs."""
import json
import os

import pytest

import harness
from harness import ROOT


@pytest.fixture(autouse=True)
def emulated(monkeypatch, tmp_path):
    monkeypatch.setattr(harness, "ZTRAIN", os.path.join(ROOT, "build", "emulation", "ztrain"))
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", str(tmp_path / "cache"))


def test_the_gpus_of_the_machine_are_taken(folder):
    folder.data()
    with open(folder.at("config.json"), "w", encoding="utf-8") as file:
        json.dump(harness.LLAMA, file)

    def init(gpus, *flags):
        return folder.ztrain("init", "--model", folder.at("config.json"), "--data", folder.at("train"), "--seq-length", harness.SEQUENCE,
                             "--out", "-", *flags, env={"ZTRAIN_EMULATION_GPUS": str(gpus)})
    done = init(4)
    assert "Written by `ztrain init` for 4 x NVIDIA H100" in done.out and "of the 4.0 GiB of each GPU" in done.out
    assert "this machine's GPU is not known, emulated GPU: the plan assumes an NVIDIA H100" in done.err
    assert "for 2 x NVIDIA L4" in init(4, "--gpus", 2, "--device", "l4").out
    none = init(0)
    assert "no --gpus, and no GPU here" in none.err and "device: cpu" in none.out

# SPDX-License-Identifier: Apache-2.0
"""train.virtual_ranks on emulated GPUs: one, two and four of them give the same bits, with sums over NCCL and through host
memory, op by op and as graphs, with offload. A planted wrong order of the sums gives others, so the comparison can fail.

Every run is also a search for mistakes: a missing event, a race or a bad index ends it (tests/emulation/emulation.h).
"""
import os

import pytest

import harness
from harness import DEVICE, GPT2, LLAMA, ROOT, merged
from virtual_case import WHOLE, prepared, result_of, spec_of, trained

SMALL = {"model": {"config": {**LLAMA, "num_hidden_layers": 2}}, "data": {"seq_length": 8},
         "train": {"device": "cuda", "eval_batches": 2}}
ORDERS = ("lazy", "random", "starve", "eager")


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    monkeypatch.setattr(harness, "ZTRAIN", os.path.join(ROOT, "build", "emulation", "ztrain"))
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", os.path.join(ROOT, "build", "emulation", "gemm-cache"))


def gpus(count, order="lazy", shared=False):
    """Each rank has its own, with NCCL between them, or all share one, and sums go through host memory."""
    env = {"ZTRAIN_EMULATION_GPUS": "1" if shared else str(count), "ZTRAIN_EMULATION_ORDER": order}
    return {**env, "ZTRAIN_SHARE_GPUS": "1"} if shared else env


def small_spec(folder, dtype, graphs, accumulation=2, changes=None):
    prepared(folder, 100)
    spec = merged(spec_of(4, accumulation, dtype=dtype, steps=3), merged(SMALL, changes or {}))
    return merged(spec, {"train": {"cuda_graphs": graphs}})


@pytest.mark.parametrize("dtype, stage, graphs", [
    case for number, case in enumerate((d, s, g) for d in ("bf16", "fp32", "fp16") for s in (0, 1, 2, 3) for g in (False, True))
    if WHOLE or number in (1, 4, 7, 20)])
def test_one_two_and_four_gpus(folder, dtype, stage, graphs):
    spec = small_spec(folder, dtype, graphs)
    one = trained(folder, merged(spec, {"train": {"cuda_graphs": not graphs}}), 1, 0, **gpus(1))
    for count, order in ((1, "random"), (2, "starve"), (4, "eager")):
        assert trained(folder, spec, count, stage, **gpus(count, order)) == one, f"{count} GPUs"


@pytest.mark.parametrize("count, stage, graphs", [(2, 0, True), (4, 2, False), (4, 3, False)])
def test_sums_through_host_memory(folder, count, stage, graphs):
    spec = small_spec(folder, "bf16", graphs)
    one = trained(folder, spec, 1, 0, **gpus(1))
    assert trained(folder, spec, count, stage, **gpus(count, shared=True)) == one


@pytest.mark.parametrize("stage, graphs, where", [(0, True, {}), (3, False, {}), (2, False, {"offload_optimizer": {"device": "cpu"}})])
def test_moments_in_8_bits(folder, stage, graphs, where):
    """Also where the CPU updates what the GPU does in the first run: both round in the same places."""
    adam8 = {"optimizer": {"type": "AdamW8bit"}, "model": {"config": {**LLAMA, "hidden_size": 64, "num_hidden_layers": 1}}}
    spec = small_spec(folder, "bf16", graphs, changes=adam8)
    one = trained(folder, spec, 1, 0, **gpus(1))
    assert trained(folder, merged(spec, {"zero_optimization": where}), 2, stage, **gpus(2, "random")) == one


@pytest.mark.parametrize("stage, where", [(1, {"offload_optimizer": {"device": "cpu"}}),
                                          (3, {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}})])
def test_offload(folder, stage, where):
    spec = small_spec(folder, "bf16", False)
    away = merged(spec, {"zero_optimization": where})
    one = trained(folder, away, 1, stage, **gpus(1))
    for count, shared in ((2, False), (4, False), (2, True)):
        assert trained(folder, away, count, stage, **gpus(count, "random", shared)) == one, f"{count} GPUs, shared: {shared}"


@pytest.mark.parametrize("changes", [
    {"communication_data_type": "bf16", "model": {"config": GPT2, "dropout": 0.1}},
    {"optimizer": {"type": "Muon", "params": {"lr": 1e-3, "muon_lr": 0.01}}},
    {"activation_checkpointing": {"policy": "block"}, "zero_optimization": {"reduce_bucket_size": 1500, "overlap_comm": False}},
], ids=["comm-bf16-dropout", "muon", "block-buckets"])
def test_features(folder, changes):
    spec = small_spec(folder, "bf16", True, 1, changes)
    one = trained(folder, spec, 1, 2, **gpus(1))
    for count, stage in ((2, 3), (4, 1)):
        assert trained(folder, spec, count, stage, **gpus(count, "random")) == one, f"{count} GPUs, stage {stage}"


def test_resumed_on_other_numbers_of_gpus(folder):
    spec = merged(small_spec(folder, "bf16", True), {"checkpoint": {"interval_steps": 1}, "train": {"eval_interval_steps": 1}})
    whole = trained(folder, spec, 4, 3, **gpus(4))
    resume = []
    for count, stage, steps in ((4, 3, 1), (1, 0, 2), (2, 2, 3)):
        folder.train(merged(spec, {"zero_optimization": {"stage": stage}}), ranks=count, more=resume, env=gpus(count),
                     sets=[f"train.max_steps={steps}"])
        resume = ["--resume", folder.run_folder()]
    assert result_of(folder, "run") == whole


def test_a_planted_wrong_order_is_found(folder):
    """The owner of a slice begins with the last rank's contribution. The ranks of the CPU device are not checked at the start."""
    spec = merged(small_spec(folder, "bf16", False), {"train": {"device": "cpu"}})
    one = trained(folder, spec, 1, 0)
    for stage in (0, 3):
        assert trained(folder, spec, 4, stage) == one
        wrong = trained(folder, spec, 4, stage, ZTRAIN_SUM_ORDER="reverse")
        assert wrong[1].keys() == one[1].keys() and all(wrong[1][name] != one[1][name] for name in one[1])
        assert [row.get("grad_norm") for row in wrong[0]] != [row.get("grad_norm") for row in one[0]]


def test_a_planted_wrong_order_is_found_at_the_start(folder):
    """Before a run on GPUs begins."""
    done = folder.train(small_spec(folder, "bf16", False), ranks=4, env={**gpus(4, shared=True), "ZTRAIN_SUM_ORDER": "reverse"},
                        expect=DEVICE)
    assert "an ordered reduce-scatter of 4 ranks in fp32 gave " in done.final_error and not folder.checkpoints()

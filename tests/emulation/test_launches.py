# SPDX-License-Identifier: Apache-2.0
"""What a micro-batch and a step launch on the emulated GPU, next to what `ztrain plan --speed` counts.

A kernel more for each block costs every step of a small model time.
"""
import re

import pytest

from test_training import ZTRAIN, finish

# Golden case: kernels and products (cublasLt's and cuDNN's) of a micro-batch, at most. Each has two blocks.
MOST = {"gpt2": (44, 27), "llama": (37, 27)}
# The kernels of a step of one micro-batch, at most: for each of the four units sums of squares (2) and the optimizer
STEP_MOST = {"gpt2": 59, "llama": 52}


def command_of(program, folder, case, name, max_steps, micro_batches, *settings):
    command = [*program, "--config", f"tests/golden/{case}/run.yaml"]
    for setting in ("train.device=cuda", f"run.dir={folder}", f"run.name={name}", "bf16.enabled=true",
                    f"train.max_steps={max_steps}", "train.cuda_graphs=false", "train.eval_interval_steps=0",
                    "train_micro_batch_size_per_gpu=1", f"gradient_accumulation_steps={micro_batches}",
                    f"train_batch_size={micro_batches}", *settings):
        command += ["--set", setting]
    return command


def counted(folder, case, *settings, steps=(1, 1), micro=(1, 2)):
    """(kernels, copies and fills, products) by which two runs of so many steps and micro-batches differ: those of a micro-batch."""
    counts = []
    for max_steps, micro_batches in zip(steps, micro):
        command = command_of([ZTRAIN], folder, case, f"{case}-{max_steps}-{micro_batches}", max_steps, micro_batches, *settings)
        said = finish(command, ZTRAIN_EMULATION_STATS="1", ZTRAIN_GEMM_CACHE="").stderr
        counts.append([int(n) for n in re.search(r"emulation: (\d+) kernels, (\d+) copies and fills, (\d+) products", said).groups()])
    return tuple(b - a for a, b in zip(*counts))


def launched(folder, case, *settings, **runs):
    kernels, _, products = counted(folder, case, *settings, **runs)
    return kernels, products


def planned(folder, case, micro_batches, *options, settings=()):
    """The launches of a step by `ztrain plan --speed`."""
    command = command_of([ZTRAIN, "plan", "--speed", *options], folder, case, case, 1, micro_batches, *settings)
    return int(re.search(r"^  launches +(\d+)$", finish(command).stdout, re.M).group(1))


@pytest.mark.parametrize("case", MOST)
def test_launches_of_a_micro_batch(tmp_path, case):
    """At most so many, and as many as the plan counts."""
    kernels, small, products = counted(tmp_path, case)
    assert 0 < kernels <= MOST[case][0] and 0 < products <= MOST[case][1], (kernels, products)
    assert kernels + small + products == planned(tmp_path, case, 2) - planned(tmp_path, case, 1), (kernels, small, products)


@pytest.mark.parametrize("case", MOST)
def test_launches_with_states_in_bf16(tmp_path, case):
    """Products add to sums of gradients in bf16; a kernel adds what is not of a block's matrices."""
    settings = "bf16.bf16_master_weights_and_grads=true", "bf16.bf16_optimizer_states=true"
    plans = [planned(tmp_path, case, micro_batches, settings=settings) for micro_batches in (1, 2)]
    assert sum(counted(tmp_path, case, *settings)) == plans[1] - plans[0]


def test_launches_with_bias_gradients_as_epilogues(tmp_path, monkeypatch):
    """A bias gradient that is added to that of the last micro-batch launches a kernel for it, instead of two for its sums."""
    monkeypatch.setenv("ZTRAIN_GEMM_EPILOGUES", "fused")
    options = "--assume", "fused-bias"
    fused = sum(counted(tmp_path, "gpt2"))
    assert fused == planned(tmp_path, "gpt2", 2, *options) - planned(tmp_path, "gpt2", 1, *options)
    unfused = planned(tmp_path, "gpt2", 2) - planned(tmp_path, "gpt2", 1)
    assert fused == unfused - 2 * 2 + 2  # qkv and up of two blocks; the sums of k, which are 0, are cleared


@pytest.mark.parametrize("case", STEP_MOST)
def test_launches_of_a_step(tmp_path, case):
    """The optimizer updates a unit in one launch, whatever parts of it have weight decay. The plan counts what a step launches."""
    step = counted(tmp_path, case, steps=(1, 2), micro=(1, 1))
    assert 0 < step[0] <= STEP_MOST[case], step
    assert sum(step) == planned(tmp_path, case, 1), step


def test_a_step_that_launches_more_is_found(tmp_path):
    """Norms that are computed again are launches that the limit does not have."""
    kernels, _ = launched(tmp_path, "llama", "activation_checkpointing.policy=norms")
    assert kernels > MOST["llama"][0]

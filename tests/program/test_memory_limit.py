# SPDX-License-Identifier: Apache-2.0
"""train.memory_limit: a plan that needs more ends with 5 before the first step and with settings that fit, a plan that needs
less changes nothing; sizes that are none are refused."""
import os
import re
import subprocess
import sys

import pytest

from harness import DEVICE, GPT2, LLAMA, MemoryGroup, USAGE, children, merged, plan_bytes, wait_for_steps, wait_until

STEPS = {"train": {"epochs": None, "max_steps": 2}, "data": {"validation": None}}


def planned(folder, *sets, ranks=1, kind="total"):
    """Bytes of device memory that a rank takes for a kind."""
    words = [word for s in sets for word in ("--set", s)]
    out = folder.ztrain("plan", "--bytes", "--config", folder.spec(), "--local-gpus", ranks, *words).out
    return plan_bytes(out)["device"][kind]


def refused(folder, limit, *sets, ranks=1):
    """The final error of a run with this cap, and the changes that they propose: [(["key=value", …], "12.3 MiB"), …]."""
    done = folder.train(STEPS, "capped", ranks=ranks, sets=[f"train.memory_limit={limit}", *sets], expect=DEVICE)
    assert "more than train.memory_limit" in done.err and "step 1" not in done.out
    assert not os.path.exists(folder.run_folder("capped"))
    proposals = re.findall(r"with ((?:[\w.]+=\w+(?:, )?)+) \(([\d.]+ \w+)\)", done.err.splitlines()[-1] if ranks == 1 else done.err)
    return done, [(lines.split(", "), size) for lines, size in proposals]


def test_a_cap_that_fits_changes_no_bit(folder):
    exact = planned(folder)
    folder.train(STEPS, "free")
    folder.train(STEPS, "capped", sets=[f"train.memory_limit={exact}"])
    assert folder.metrics("free").numbers() == folder.metrics("capped").numbers()
    with open(os.path.join(folder.run_folder("capped"), "run.yaml"), encoding="utf-8") as f:
        assert f'memory_limit: "{exact}"' in f.read()


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_proposals_fit(folder, ranks):
    total, activations = (planned(folder, ranks=ranks, kind=kind) for kind in ("total", "activations"))
    for limit in (total - 1, total - activations // 2):
        done, proposals = refused(folder, limit, ranks=ranks)
        assert f"{total} bytes" in done.err and proposals
        for lines, _ in proposals:
            assert planned(folder, *lines, ranks=ranks) <= limit
    sets = [f"train.memory_limit={limit}", *proposals[0][0]]
    folder.train(STEPS, "advised", ranks=ranks, sets=sets)
    assert len(folder.metrics("advised").steps) == 2


def test_the_micro_batch_comes_first(folder):
    """It costs no recomputation; the largest that fits is proposed, and what keeps the micro-batch is named as well."""
    six = planned(folder, "train_micro_batch_size_per_gpu=6")
    _, proposals = refused(folder, six, "train_micro_batch_size_per_gpu=12")
    assert proposals[0][0] == ["train_micro_batch_size_per_gpu=6", "gradient_accumulation_steps=2"]
    policies = [lines for lines, _ in proposals[1:]]
    assert all(not line.startswith("train_micro") for lines in policies for line in lines)


def test_what_fits_nowhere_is_named_with_the_least(folder):
    done = folder.train(STEPS, "capped", sets=["train.memory_limit=1KiB"], expect=DEVICE)
    least = re.search(r"the least is (\S.*) \(([\d.]+) (\w+)\)", done.err)
    size = planned(folder, *least.group(1).split(", "))
    assert size / 2**20 == pytest.approx(float(least.group(2)), abs=0.06) and least.group(3) == "MiB"


def test_plans_and_dry_runs_end_with_5_as_well(folder):
    for command in (["plan"], ["--dry-run"]):
        arguments = [w for w in command if w == "plan"] + ["--config", folder.spec(), "--set", "train.memory_limit=64KiB"]
        done = folder.ztrain(*arguments, *[w for w in command if w != "plan"], expect=DEVICE)
        assert "memory plan: rank 0 of 1" in done.out and "it fits with" in done.err or "the least is" in done.err


@pytest.mark.parametrize("size", ["300Mb", "80G", "-1GiB", "0", "[1]", "lots", "true", "1.5.5GiB"])
def test_texts_that_are_no_size_are_refused(folder, size):
    done = folder.train(sets=[f"train.memory_limit={size}"], expect=USAGE)
    assert "'train.memory_limit' must be a size such as 300MiB or 80GiB" in done.err and "powers of 1024" in done.err


@pytest.mark.parametrize("size, as_written", [("300MiB", "300MiB"), ("300 MB", "300MB"), ("2097152KiB", "2GiB"),
                                              ("1e9", "1GB"), ("1000000001", '"1000000001"'), ("1.5GiB", "1536MiB")])
def test_sizes_are_written_back_as_read(folder, size, as_written):
    out = folder.ztrain("--config", folder.spec(), "--dry-run", "--set", f"train.memory_limit={size}").out
    assert re.search(rf'^  memory_limit: "?{re.escape(as_written)}"?$', out, re.M)


ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # quick steps on busy cores as well

HUGE = {**LLAMA, "hidden_size": 16384, "intermediate_size": 65536, "num_hidden_layers": 200, "num_attention_heads": 128,
        "num_key_value_heads": 128}


def test_the_memory_of_a_node_is_planned(folder):
    """Ranks of a node times their host memory; next to the machine's where they are to run on this one."""
    offload = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    spec = folder.spec(offload)
    out = folder.ztrain("plan", "--config", spec, "--world", 4, "--local-gpus", 2).out
    assert re.search(r"memory of a node: 2 ranks x [\d.]+ MiB = [\d.]+ MiB of [\d.]+ [GT]iB$", out, re.M)
    out = folder.ztrain("plan", "--config", spec, "--world", 4, "--set", "train.device=cuda").out
    assert re.search(r"memory of a node: 4 ranks x [\d.]+ [KM]iB = [\d.]+ [KM]iB$", out, re.M)
    done = folder.ztrain("plan", "--config", folder.spec({"model": {"config": HUGE}}), "--local-gpus", 2)
    assert "the ranks of this node need" in done.err + done.out and "TiB of host memory" in done.err + done.out


# Larger than the cap: 9.4 million parameters in fp32 have 150 MB of parameters, gradients and optimizer state.
DEEP = {**LLAMA, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 48}
OFFLOAD = {"activation_checkpointing": {"policy": "block", "cpu_checkpointing": True}, "zero_optimization": {
    "stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}}


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_model_of_four_times_the_cap_trains_with_offload(folder, ranks):
    small = {**STEPS, "model": {"config": DEEP}, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3},
             "checkpoint": {"compression_level": 0}}
    spec = folder.spec(merged(small, OFFLOAD), "offloaded")
    out = folder.ztrain("plan", "--bytes", "--config", spec, "--local-gpus", ranks, env=ONE_THREAD).out
    cap = plan_bytes(out)["device"]["total"]
    states = 16 * int(re.search(r"(\d+) parameters$", out, re.M).group(1))
    assert states >= 4 * cap
    limit = [f"train.memory_limit={cap}"]
    refused_ = folder.train(small, "whole", ranks=ranks, sets=limit, expect=DEVICE, env=ONE_THREAD)
    assert "more than train.memory_limit" in refused_.err
    folder.train(small, "free", ranks=ranks, env=ONE_THREAD)
    folder.train(merged(small, OFFLOAD), "offloaded", ranks=ranks, sets=limit, env=ONE_THREAD)
    assert folder.metrics("offloaded").numbers() == folder.metrics("free").numbers()


def plan_of(folder, spec, ranks):
    return plan_bytes(folder.ztrain("plan", "--bytes", "--config", spec, "--local-gpus", ranks).out)["device"]["total"]


def killed_for_memory(folder, process, group):
    """Fills the group from another process, until the kernel kills a rank, which it does first."""
    ranks = children(process.pid)
    for pid in ranks:
        with open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as f:
            f.write("1000")
    code = "import time\nparts = []\nwhile True:\n    parts.append(bytearray(8 << 20))\n    time.sleep(0.01)"
    eater = subprocess.Popen([*group.prefix, sys.executable, "-c", code], start_new_session=True)
    folder.adopt(eater)
    wait_until(lambda: process.poll() is not None or len(children(process.pid)) < len(ranks), what="a rank's death")
    eater.kill()
    eater.wait()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_control_group_below_the_plan(folder, ranks):
    """It is refused before the memory is touched. (Where no group can be made only tests/unit sees it.)"""
    spec = folder.spec({**STEPS, "model": {"config": DEEP}})
    total = plan_of(folder, spec, ranks)
    group = MemoryGroup(ranks * total - (8 << 20))
    try:
        if not group.path:
            return
        done = folder.wait(folder.start("--config", spec, *(["--local-gpus", ranks] if ranks > 1 else []), prefix=group.prefix))
        assert done.code == DEVICE and f"({ranks * total} bytes) of host memory, more than the control group's limit" in done.err, done
        assert f"of {ranks} rank" in done.err and not os.path.exists(folder.run_folder())
    finally:
        group.close()


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_that_the_kernel_kills_for_its_group(folder, ranks):
    """The plan fits, but the ranks do not; another start would end alike."""
    spec = folder.spec({"train": {"epochs": None, "max_steps": 1000000}, "model": {"config": DEEP}, "train_micro_batch_size_per_gpu": 1})
    group = MemoryGroup(ranks * plan_of(folder, spec, ranks) + (256 << 20))
    try:
        if not group.path:
            return
        process = folder.start("--config", spec, "--local-gpus", ranks, "--max-restarts", 2, prefix=group.prefix, env=ONE_THREAD)
        wait_for_steps(folder, process, 1)
        killed_for_memory(folder, process, group)
        done = folder.wait(process)
        assert done.code == DEVICE and "restart 1" not in done.out, done
        assert re.search(r"was killed by signal 9 \(Killed\): it ran out of memory; the control group's limit is [\d.]+ MiB, and the "
                         rf"plans? of {ranks} ranks? takes? [\d.]+ MiB of it", done.err), done
    finally:
        group.close()


# --- advice that is followed ------------------------------------------------------------------------------------------

QWEN = {"model_type": "qwen2", "hidden_size": 96, "intermediate_size": 256, "num_attention_heads": 6, "num_key_value_heads": 2,
        "num_hidden_layers": 3, "vocab_size": 512, "rms_norm_eps": 1e-6, "max_position_embeddings": 128, "rope_theta": 1e4,
        "tie_word_embeddings": True}
MODELS = {"llama": {"model": {"config": DEEP}, "train_micro_batch_size_per_gpu": 6}, "gpt2": {"model": {"config": GPT2}},
          "qwen-bf16": {"model": {"config": QWEN}, "bf16": {"enabled": True}, "activation_checkpointing": {"enabled": False}}}


def advised(folder, spec, *more):
    """The settings that a plan over its cap proposes, as lists of lines; and the plan's exit code."""
    done = folder.wait(folder.start("plan", "--config", spec, *more, env={"CUDA_VISIBLE_DEVICES": "", **ONE_THREAD}))
    assert done.code in (0, DEVICE), done
    return [lines.split(", ") for lines in re.findall(r"with ((?:[\w.]+=\w+(?:, )?)+) \([\d.]+ \w+\)", done.err)], done


def follow(folder, spec, cap, *more):
    """Plans with a cap; each setting that is proposed plans within it. Returns the proposals."""
    cap_set = ["--set", f"train.memory_limit={cap}"]
    proposals, done = advised(folder, spec, *more, *cap_set)
    assert bool(proposals) == (done.code == DEVICE and "the least is" not in done.err), done
    if "the least is" not in done.err:
        for lines in proposals:
            sets = [word for line in lines for word in ("--set", line)]
            folder.ztrain("plan", "--config", spec, *more, *cap_set, *sets, env={"CUDA_VISIBLE_DEVICES": "", **ONE_THREAD})
    return proposals


@pytest.mark.parametrize("name", MODELS)
def test_what_is_advised_starts(folder, name):
    """Every proposal plans within the cap, and the one for the smallest cap trains."""
    changes = merged(STEPS, MODELS[name])
    spec = folder.spec(changes)
    total = plan_bytes(folder.ztrain("plan", "--bytes", "--config", spec).out)["device"]["total"]
    last = None
    for share in (0.95, 0.8, 0.6, 0.4):
        proposals = follow(folder, spec, int(share * total))
        last = (int(share * total), proposals[0]) if proposals else last
    folder.train(changes, "advised", sets=[f"train.memory_limit={last[0]}", *last[1]], env=ONE_THREAD)
    assert len(folder.metrics("advised").steps) == 2


GPU_1B = {"model": {"config": {**LLAMA, "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32,
                               "num_key_value_heads": 4, "num_hidden_layers": 22, "vocab_size": 32000,
                               "max_position_embeddings": 2048}},
          "data": {"seq_length": 2048}, "bf16": {"enabled": True}, "train": {"device": "cuda"}, "train_batch_size": 64,
          "train_micro_batch_size_per_gpu": 8}


@pytest.mark.parametrize("stage, world", [(0, 1), *(pytest.param(*case, marks=pytest.mark.long) for case in [(3, 1), (1, 2), (2, 4)])])
def test_advice_for_a_gpu_fits_and_is_not_slow(folder, stage, world):
    """Gradients and parameters that move in each micro-batch have their price: advice takes no more than twice the time of the
    fastest setting that fits."""
    spec = folder.spec(merged(GPU_1B, {"zero_optimization": {"stage": stage}}))
    more = ["--world", world]
    for cap in ("14GiB", "6GiB"):
        for lines in follow(folder, spec, cap, *more)[:1]:
            sets = [word for line in lines for word in ("--set", line)]
            speed = folder.ztrain("plan", "--speed", "--config", spec, *more, *sets).out
            fit = folder.ztrain("plan", "--fit", "--config", spec, *more, "--memory", cap).out
            step = float(re.search(r"^  total +[\d.]+ +([\d.]+)$", speed, re.M).group(1))
            fastest = float(re.search(r"^ 1[ =*] +([\d.]+) ", fit, re.M).group(1))
            assert step <= 2 * fastest, (cap, lines)

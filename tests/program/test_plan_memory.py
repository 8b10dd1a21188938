# SPDX-License-Identifier: Apache-2.0
"""`ztrain plan`: its table, next to the cap of the GPU, of the run spec or of --memory, and the host memory of a node."""
import re

import pytest

from harness import DEVICE, USAGE, merged, plan_bytes

LLAMA_1B = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 16384, "num_attention_heads": 32,
            "num_key_value_heads": 8, "num_hidden_layers": 4, "vocab_size": 32000, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096, "rope_theta": 5e5, "tie_word_embeddings": False}
BASE = {"model": {"config": LLAMA_1B}, "data": {"seq_length": 2048}, "bf16": {"enabled": True}, "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}, "train": {"device": "cuda"}}
AWAY = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}}


def plan(folder, *more, changes=None, expect=0):
    done = folder.ztrain("plan", "--config", folder.spec(merged(BASE, changes or {})), *more, expect=expect,
                         env={"CUDA_VISIBLE_DEVICES": ""})
    return done.out + done.err


def share(out):
    """Percent of the cap, the reserve included, and the cap."""
    found = re.search(r"^  ([\d.]+) % of (.*)$", out, re.M)
    return float(found.group(1)), found.group(2)


def test_the_share_is_that_of_the_cap(folder):
    device = plan_bytes(plan(folder, "--world", 8, "--bytes"))["device"]
    assert 0 < device["reserve"] < device["total"]
    caps = {(): (79.1 * 2**30, "the 79.1 GiB of NVIDIA H100 80GB HBM3, assumed"), ("--memory", "24GiB"): (24 * 2**30, "train.memory_limit 24GiB"),
            ("--set", "train.memory_limit=40GB"): (40e9, "train.memory_limit 40GB"),
            ("--device", "l40s"): (44.4 * 2**30, "the 44.4 GiB of NVIDIA L40S, assumed")}
    for option, (cap, name) in caps.items():
        percent, named = share(plan(folder, "--world", 8, *option))
        assert named == name
        assert percent == pytest.approx(100 * device["total"] / cap, abs=1)  # cuDNN's workspace depends on the GPU


def test_a_cap_above_the_gpu_is_named_and_changes_nothing(folder):
    for option in (("--memory", "80GiB"), ("--set", "train.memory_limit=90GB")):
        out = plan(folder, "--world", 8, *option)
        assert "more than the GPU's 79.1 GiB: the GPU's memory is the cap" in out and "% of the 79.1 GiB of NVIDIA H100" in out
    large = {"train_micro_batch_size_per_gpu": 64, "train": {"memory_limit": "200GiB"}}
    assert "of device memory on each rank, more than the GPU's" in plan(folder, changes=large, expect=DEVICE)


def test_more_than_the_cap_ends_with_5_and_with_what_fits(folder):
    out = plan(folder, "--memory", "20GiB", "--world", 1, expect=DEVICE)
    assert "more than train.memory_limit 20GiB" in out and "it fits with" in out


def size(text):
    number, unit = text.split()
    return float(number) * {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]


@pytest.mark.parametrize("stage, world, micros", [(0, 2, 32), (1, 4, 16), (2, 4, 16), (3, 8, 8)])
def test_virtual_ranks_are_planned_with_what_they_reduce(folder, stage, world, micros):
    """The micro-batches of a rank; stages 0 and 1 reduce after each of them, not once."""
    changes = {"train": {"virtual_ranks": 8}, "zero_optimization": {"stage": stage}}
    out = plan(folder, "--world", world, changes=changes)
    assert f"x gradient_accumulation_steps 8 x virtual_ranks 8; world size {world} (planned)" in out
    found = re.search(r"^virtual ranks: (\d+) on each rank, which computes (\d+) micro-batches a step and reduces (.*); without "
                      r"train.virtual_ranks (.*)$", out, re.M)
    assert (int(found.group(1)), int(found.group(2))) == (8 // world, micros)
    assert size(found.group(3)) / size(found.group(4)) == pytest.approx(micros if stage < 2 else 1, rel=0.1)
    assert "virtual ranks" not in plan(folder, "--world", world, changes={"zero_optimization": {"stage": stage}})


def test_one_rank_reduces_nothing(folder):
    out = plan(folder, "--world", 1, changes={"train": {"virtual_ranks": 4}, "zero_optimization": {"stage": 1}})
    assert "virtual ranks: 4 on each rank, which computes 64 micro-batches a step\n" in out


def test_the_ranks_divide_the_virtual_ranks(folder):
    out = plan(folder, "--world", 3, changes={"train": {"virtual_ranks": 8}}, expect=USAGE)
    assert "virtual_ranks 8 cannot be divided among 3 ranks (world size 3: --world); hint: possible world sizes: 1, 2, 4, 8" in out


def test_the_total_comes_first_and_is_the_sum_of_its_parts(folder):
    """In GiB as in bytes, on the device with the reserve; host memory is that of a rank, and of a node below the table."""
    more = ["--world", 8, "--local-gpus", 4]
    tables = plan_bytes(plan(folder, *more, "--bytes", changes=AWAY))
    for place in ("device", "host"):
        total, parts = tables[place]["total"], tables[place].copy()
        assert next(iter(parts)) == "total" and total == pytest.approx(sum(parts.values()) - total, abs=4096)
    assert all(tables["host"][kind] for kind in ("parameters", "gradients", "optimizer")) and tables["device"]["reserve"]
    out = plan(folder, *more, changes=AWAY)
    rows = re.findall(r"^  (\w+) +(\S+) +(\S+)$", out.split("GiB    ")[1].split("memory of a node")[0], re.M)
    assert [kind for kind, *_ in rows[:2]] == ["total", "parameters"] and "bytes" not in out
    for kind, device, host in rows:
        assert float(device) == pytest.approx(tables["device"][kind] / 2**30, abs=6e-4)
        assert float(host) == pytest.approx(tables["host"][kind] / 2**30, abs=6e-4)
    ranks, each, node = re.search(r"memory of a node: (\d+) ranks x ([\d.]+) GiB = ([\d.]+) GiB$", out, re.M).groups()
    assert int(ranks) == 4
    total = tables["host"]["total"] / 2**30
    assert float(each) == pytest.approx(total, abs=0.06) and float(node) == pytest.approx(4 * total, abs=0.06)


def test_activations_of_each_policy(folder):
    out, counted = plan(folder), plan(folder, "--bytes")
    gib, size = (dict(re.findall(r"(\w+) ([\d.]+)", re.search(r"policy, \w+ \(this spec: none\):\n  (.*)", text)[1]))
                 for text in (out, counted))
    assert list(size) == ["none", "norms", "mlp", "attention", "block"] == list(gib)
    assert int(size["none"]) == plan_bytes(counted)["device"]["activations"]
    assert all(float(gib[name]) == pytest.approx(int(size[name]) / 2**30, abs=6e-4) for name in size)


@pytest.mark.parametrize("arguments, words", [
    (["--memory", "80G"], "--memory: '80G' is not a size"), (["--device", "h1000"], "no GPU 'h1000' is known"),
    (["--speed", "--bytes"], "--bytes is an option of plan without --speed and --fit"), (["--fit", "--bytes"], "--bytes"),
    (["--speed", "--memory", "80GiB"], "--memory is an option of plan and plan --fit"),
    (["--node-memory", "80GiB"], "--node-memory is an option of plan --fit"), (["--link", "400Gbit"], "plan --speed and --fit")])
def test_wrong_questions_are_refused(folder, arguments, words):
    assert words in plan(folder, *arguments, expect=USAGE)


# --- DeepSpeed's estimators -------------------------------------------------------------------------------------------
# estimate_zero2_model_states_mem_needs (deepspeed/runtime/zero/stage_1_and_2.py) and estimate_zero3_model_states_mem_needs
# (deepspeed/runtime/zero/stage3.py), with additional_buffer_factor 1 and zero_init: bytes of a GPU and of a node's host memory.

def estimate_zero2(params, gpus_per_node, nodes, cpu_offload):
    gpus = nodes * gpus_per_node
    if cpu_offload:
        return 2 * params, params * max(4 * gpus, 16)
    return 4 * params + 16 * params / gpus, params * 4 * gpus_per_node


def estimate_zero3(params, largest_layer, gpus_per_node, nodes, cpu_offload, cpu_offload_params):
    largest, gpus = 4 * largest_layer, nodes * gpus_per_node
    if not cpu_offload:
        return largest + 18 * params / gpus, None
    if cpu_offload_params:
        return largest, 18 * params / nodes
    return largest + 2 * params / gpus, 16 * params / nodes


def states(folder, world, per_node, stage, optimizer, param):
    """The parameters, their largest layer, and the bytes of model states on a device and on a node."""
    zero = {"stage": stage, "offload_optimizer": {"device": optimizer}, "offload_param": {"device": param}}
    out = plan(folder, "--world", world, "--local-gpus", per_node, "--bytes", changes={"zero_optimization": zero})
    kinds = ("parameters", "gradients", "optimizer")
    device, host, _ = plan_bytes(out).values()
    params = int(re.search(r"(\d+) parameters$", out, re.M).group(1))
    return params, sum(device[kind] for kind in kinds), per_node * sum(host[kind] for kind in kinds)


@pytest.mark.parametrize("nodes, per_node", [(1, 1), (1, 8), (2, 4)])
@pytest.mark.parametrize("optimizer, param", [("none", "none"), ("cpu", "none"), ("cpu", "cpu")])
def test_stage_3_takes_what_deepspeed_estimates(folder, optimizer, param, nodes, per_node):
    params, device, host = states(folder, nodes * per_node, per_node, 3, optimizer, param)
    # DeepSpeed's 4 x the largest layer is a buffer, which ztrain counts as communication
    gpu, cpu = estimate_zero3(params, 0, per_node, nodes, optimizer == "cpu", param == "cpu")
    assert device == pytest.approx(gpu, rel=1e-3, abs=1e-3 * params)
    assert host == pytest.approx(cpu or 0, rel=1e-3)  # without offload DeepSpeed's host memory is that of loading the model


@pytest.mark.parametrize("nodes, per_node", [(1, 1), (1, 4), (2, 4)])
@pytest.mark.parametrize("offload", [False, True])
def test_stage_2_takes_what_deepspeed_estimates_or_less(folder, offload, nodes, per_node):
    gpus = nodes * per_node
    params, device, host = states(folder, gpus, per_node, 2, "cpu" if offload else "none", "none")
    gpu, cpu = estimate_zero2(params, per_node, nodes, offload)
    if offload:
        assert device == pytest.approx(gpu, rel=1e-3)
        # all ranks of a node; DeepSpeed counts the whole state on each node, and 4 bytes a parameter on every rank from 5 ranks on
        assert host == pytest.approx(16 * params / nodes, rel=1e-3) and host <= 1.001 * cpu
    else:
        # DeepSpeed's bf16 gradients are whole on each rank; ztrain's are divided as they are reduced
        assert device == pytest.approx(gpu - 2 * params, rel=1e-3) and host == 0


GPT2_1558M = {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 1600, "n_layer": 48, "n_head": 25}
LLAMA_8B = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
            "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 8192, "rope_theta": 5e5, "tie_word_embeddings": False}
# model, sequence length, micro batch, ranks, stage, percent of 80 GB at most, a micro batch that is too large
FITS = {
    "GPT-2 1558M": (GPT2_1558M, 1024, 16, 1, 0, 90, 24),
    "Llama 8B": (LLAMA_8B, 8192, 1, 8, 3, 90, 3),
}


@pytest.mark.parametrize("name", FITS)
def test_the_models_of_the_estimates_fit_into_80_gb(folder, name):
    """Without recomputation and offload, with the reserve; the steps are those of docs/plan-speed.md."""
    model, length, micro, ranks, stage, most, too_large = FITS[name]

    def planned(batch):
        spec = folder.spec({"model": {"config": model}, "data": {"seq_length": length}, "bf16": {"enabled": True},
                            "train_batch_size": 2 * batch * ranks, "train_micro_batch_size_per_gpu": batch,
                            "zero_optimization": {"stage": stage}, "train": {"device": "cuda"}}, "fits")
        return share(folder.ztrain("plan", "--config", spec, "--world", ranks, "--device", "h100").out)

    whole, cap = planned(micro)
    assert "79.1 GiB of NVIDIA H100" in cap and whole <= most
    assert planned(too_large)[0] > 100


def test_an_embedding_beyond_the_bucket_needs_no_memory_on_gpus(folder):
    """NCCL gathers and reduces whole slices in place: an embedding of 131 million elements costs the same with any bucket."""
    sizes = ("reduce_bucket_size", "allgather_bucket_size")
    outs = [plan(folder, "--world", 8, *(word for name in sizes for word in ("--set", f"zero_optimization.{name}={size}")))
            for size in (100000, 500000000)]
    assert outs[0] == outs[1] and re.search(r"^  communication +[1-9]", outs[0], re.M)

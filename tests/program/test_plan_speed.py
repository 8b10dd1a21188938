# SPDX-License-Identifier: Apache-2.0
"""`ztrain plan --speed`: estimates for GPUs that are not here, next to published speed and next to estimates made by hand.

LLM.Q (https://github.com/IST-DASLab/llmq) has published the speed of its own step on one H100 in bf16, here as MFU.
Against ztrain's, it keeps logits and gradients in bf16 and adds up bias gradients in other kernels; like ztrain's, its
attention repeats bit for bit. 524,288 tokens a step, sequences of 1024.
"""
import os
import re

import pytest

from harness import ROOT, USAGE, plan_bytes

LLMQ_STEP = "bf16-logits,bf16-gradients,fused-bias"
FP32_LOGITS = ["--set", "train.logits_dtype=fp32"]
LLMQ_TOKENS, LLMQ_LENGTH = 524288, 1024


def qwen(hidden, inner, heads, kv_heads, layers, vocabulary, tied):
    return {"model_type": "qwen2", "hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "num_hidden_layers": layers, "vocab_size": vocabulary, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 32768, "rope_theta": 1e6, "tie_word_embeddings": tied}


# model, micro batch, published MFU in percent, points that the estimate may differ by
LLMQ = {
    "0.5B": (qwen(896, 4864, 14, 2, 24, 151936, True), 32, 46.6, 2),
    "1.5B": (qwen(1536, 8960, 12, 2, 28, 151936, True), 16, 56.6, 2),
    "3B": (qwen(2048, 11008, 16, 2, 36, 151936, True), 8, 59.2, 2),
    "7B": (qwen(3584, 18944, 28, 4, 28, 152064, False), 4, 60.0, 4),
}

GPT2_124M = {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
GPT2_1558M = {**GPT2_124M, "n_embd": 1600, "n_layer": 48, "n_head": 25}
LLAMA_8B = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
            "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 8192, "rope_theta": 5e5, "tie_word_embeddings": False}
QWEN3_30B = {**qwen(2048, 6144, 32, 4, 48, 151936, False), "model_type": "qwen3_moe", "head_dim": 128, "num_experts": 128,
             "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}

# model, sequence length, micro batch, accumulation, ranks, stage; by hand, with fp32 logits: MFU at the ceiling, expected, in percent
BY_HAND = {
    "GPT-2 124M": (GPT2_124M, 1024, 32, 1, 1, 0, 56, 38),
    "GPT-2 1558M": (GPT2_1558M, 1024, 16, 32, 1, 0, 67, 51),
    "Llama 8B": (LLAMA_8B, 8192, 1, 8, 8, 3, 73, 59),
}


def plan(folder, model, length, micro, accumulation, world=1, stage=0, more=()):
    spec = folder.spec({"model": {"config": model}, "data": {"seq_length": length}, "bf16": {"enabled": True},
                        "train_batch_size": micro * accumulation * world, "train_micro_batch_size_per_gpu": micro,
                        "gradient_accumulation_steps": accumulation, "zero_optimization": {"stage": stage}}, "speed")
    return folder.ztrain("plan", "--speed", "--config", spec, "--world", world, *more).out


def mfu(out):
    """Returns the MFU at the ceiling and the expected one."""
    return [float(x) for x in re.search(r"^  MFU +([\d.]+)% +([\d.]+)%$", out, re.M).groups()]


def tokens(out):
    """Returns the expected tokens/s of all ranks."""
    return float(re.search(r"^  tokens/s +\d+ +(\d+)$", out, re.M)[1])


def row(out, kind):
    """Returns a row's milliseconds, at the ceiling and expected."""
    return [float(x) for x in re.search(rf"^  {re.escape(kind)} +([\d.]+) +([\d.]+) ", out, re.M).groups()]


@pytest.mark.parametrize("name", LLMQ)
def test_the_published_speed_of_another_trainer(folder, name):
    model, micro, published, tolerance = LLMQ[name]
    out = plan(folder, model, LLMQ_LENGTH, micro, LLMQ_TOKENS // LLMQ_LENGTH // micro, more=["--assume", LLMQ_STEP])
    assert "estimated and not measured" in out
    assert abs(mfu(out)[1] - published) <= tolerance, out


# LLM.Q's tokens/s by GPU and number of GPUs, with the settings of its step (its README and its folder benchmarks; repository of May
# 2026): model, micro batch, tokens/s, what backward computes again
OTHER_GPUS = {
    ("rtx4090", 1): [("0.5B", 16, 39842, "none"), ("1.5B", 4, 14070, "none"), ("3B", 4, 7006, "mlp")],
    ("rtx5090", 1): [("0.5B", 16, 55000, "none"), ("0.5B", 32, 48000, "block"), ("1.5B", 8, 17000, "block"), ("3B", 8, 8600, "block")],
    ("l40s", 1): [("0.5B", 16, 44000, "none"), ("1.5B", 8, 17000, "none"), ("3B", 4, 8900, "none")],
    ("h100", 1): [("0.5B", 32, 149000, "none"), ("1.5B", 16, 58800, "none"), ("3B", 8, 30900, "none")],
    ("rtx-pro6000", 1): [("0.5B", 32, 86200, "none"), ("3B", 16, 17185, "none"), ("7B", 8, 8079, "none")],
    ("rtx-pro6000", 8): [("1.5B", 32, 255000, "none")],
    ("h100", 8): [("0.5B", 32, 1165000, "none"), ("1.5B", 32, 457000, "none"), ("3B", 16, 239500, "none"), ("7B", 8, 112000, "none")],
}


@pytest.mark.parametrize("gpu, ranks", OTHER_GPUS)
def test_the_published_tokens_on_other_gpus(folder, gpu, ranks):
    for name, micro, published, policy in OTHER_GPUS[gpu, ranks]:
        out = plan(folder, LLMQ[name][0], LLMQ_LENGTH, micro, LLMQ_TOKENS // LLMQ_LENGTH // micro // ranks, ranks, min(ranks - 1, 1),
                   ["--device", gpu, "--assume", LLMQ_STEP, "--set", f"activation_checkpointing.policy={policy}"])
        assert tokens(out) == pytest.approx(published, rel=0.08 if ranks == 1 else 0.03), (name, micro, out)


def published(out):
    return re.search(r"^  nearest published +(\d+) \(tokens/s, measured: (.*), (.*) on (\d+ x .*); github.com/.*\)$", out, re.M).groups()


def test_the_nearest_published_figure_is_named(folder):
    """That of the same GPU, then of the nearest size (of a mixture: the active one) and number of GPUs; else that of the GPU with the
    nearest peak."""
    for model, world, device, expected in (
            (LLMQ["1.5B"][0], 1, "rtx4090", ("14070", "LLM.Q", "Qwen2.5 1.5B", "1 x rtx4090")),
            (LLMQ["3B"][0], 4, "l40s", ("35000", "LLM.Q", "Qwen2.5 3B", "4 x l40s")),
            (LLAMA_8B, 64, "h100", ("833792", "torchtitan", "Llama 3.1 8B", "128 x h100")),
            (GPT2_1558M, 8, "a100", ("164109", "llm-foundry", "MPT 1B", "8 x a100")),
            (qwen(2048, 12288, 16, 2, 36, 151936, True), 8, "h100", ("239500", "LLM.Q", "Qwen2.5 3B", "8 x h100")),
            (QWEN3_30B, 8, "h100", ("96320", "NeMo AutoModel", "Qwen3 30B A3B", "8 x h100")),
            (LLMQ["0.5B"][0], 1, "h200", ("149000", "LLM.Q", "Qwen2.5 0.5B", "1 x h100"))):
        assert published(plan(folder, model, 1024, 1, 1, world, 3, ["--device", device])) == expected


def test_eight_gpus_are_slower_than_eight_times_one(folder):
    """By 1.5 to 2.5 points of MFU, as LLM.Q's; without communication nothing is lost."""
    one, eight, free = (plan(folder, LLMQ["3B"][0], LLMQ_LENGTH, 16, LLMQ_TOKENS // LLMQ_LENGTH // 16 // ranks, ranks, stage,
                             ["--assume", LLMQ_STEP + more]) for ranks, stage, more in ((1, 0, ""), (8, 1, ""), (8, 1, ",no-communication")))
    assert 1.5 <= mfu(one)[1] - mfu(eight)[1] <= 2.5
    assert row(eight, "the slowest GPU")[1] > 0 and "the slowest GPU" not in one + free
    assert mfu(free)[1] == pytest.approx(mfu(one)[1], abs=0.2)


@pytest.mark.parametrize("name", BY_HAND)
def test_estimates_made_by_hand(folder, name):
    *step, ceiling, expected = BY_HAND[name]
    out = plan(folder, *step, more=FP32_LOGITS)
    assert abs(mfu(out)[0] - ceiling) <= 2 and abs(mfu(out)[1] - expected) <= 3, out


UNORDERED = ["--set", "train.deterministic=false"]
BF16_STATES = ["--set", "bf16.bf16_master_weights_and_grads=true", "--set", "bf16.bf16_optimizer_states=true"]
# model, sequence length, micro batch, accumulation, settings, MFU in percent that the step has at least: what is to be reached
# at 124M and 1558M, the published speed of another trainer at the others' shapes
GOALS = {
    "GPT-2 124M": (GPT2_124M, 1024, 128, 1, UNORDERED, 47),
    "GPT-2 1558M": (GPT2_1558M, 1024, 16, 32, UNORDERED, 57),
    "0.5B": (LLMQ["0.5B"][0], 1024, 32, 16, UNORDERED, 46.6),
    "1.5B": (LLMQ["1.5B"][0], 1024, 16, 32, UNORDERED, 56.6),
    "3B": (LLMQ["3B"][0], 1024, 8, 64, UNORDERED, 59.2),
    "7B": (LLMQ["7B"][0], 1024, 4, 128, BF16_STATES, 60.0),
}


@pytest.mark.parametrize("name", GOALS)
def test_estimates_of_the_goals(folder, name):
    """A change of the step that would lose one of them is noticed."""
    *step, more, least = GOALS[name]
    out = plan(folder, *step, more=more)
    assert mfu(out)[1] >= least, out


def test_what_computes_attention(folder):
    ragged = ("--device", "a100", "--set", "data.packing=false")
    assert "\nattention: forward by cuDNN, backward by cuDNN\n" in plan(folder, GPT2_124M, 1024, 8, 1)
    assert "backward by cuDNN with padding, or ztrain's kernels\n" in plan(folder, GPT2_124M, 1024, 8, 1, more=ragged)


def test_every_kind_of_op_has_its_time(folder):
    out = plan(folder, GPT2_124M, 1024, 32, 1, more=FP32_LOGITS)
    kinds = ("GEMM forward", "GEMM dgrad", "GEMM wgrad", "bias gradients", "attention forward", "attention backward", "norms",
             "head GEMMs", "cross-entropy", "embedding", "optimizer")
    for kind in kinds:
        at_ceiling, expected = row(out, kind)
        assert 0 < at_ceiling < expected, kind
    # 2 M parameters x tokens at 80 % of 989 TFLOP/s: 12 layers of 12 C^2 parameters
    assert row(out, "GEMM forward")[0] == pytest.approx(2 * 32768 * 12 * 12 * 768**2 / (0.8 * 989.4e12) * 1e3, rel=1e-3)
    overheads = [float(x) for x in re.findall(r"^ +([\d.]+)  .*--assume [a-z0-9-]+$", out, re.M)]
    assert "\n  overheads, in points of MFU, removed one at a time\n" in out
    assert len(overheads) >= 8 and overheads == sorted(overheads, reverse=True)
    assert "fp32 logits" in out and "--assume bf16-logits" in out


def test_an_overhead_that_is_assumed_away_is_gained(folder):
    plain = plan(folder, GPT2_124M, 1024, 32, 1, more=FP32_LOGITS)
    overhead = float(re.search(r"([\d.]+)  fp32 logits", plain).group(1))
    gained = plan(folder, GPT2_124M, 1024, 32, 1, more=[*FP32_LOGITS, "--assume", "bf16-logits"])
    assert mfu(gained)[1] - mfu(plain)[1] == pytest.approx(overhead, abs=0.11)
    assert "assumed: bf16-logits" in gained and "assumed: " not in plain


def exposed(folder, stage, *more):
    out = plan(folder, GPT2_1558M, 1024, 4, 2, world=8, stage=stage, more=more)
    link = re.search(r"^ +[\d.]+ (?:GB|Gbit)/s +([\d.]+) +([\d.]+) ", out, re.M)
    return [float(x) for x in link.groups()]


def test_communication_grows_with_stage_and_slower_links(folder):
    busy = [exposed(folder, stage)[0] for stage in (1, 2, 3)]
    assert busy == sorted(busy) and busy[0] > 0
    # 7/8 of fp32 gradients reduced (stage 2: of both micro-batches) and of bf16 parameters gathered, at 80 % of the link
    for stage, bytes_a_parameter in ((1, 4 + 2), (2, 2 * 4 + 2)):
        volume = 1.5576e9 * bytes_a_parameter * 7 / 8
        assert exposed(folder, stage, "--link", "1GB")[0] == pytest.approx(volume / (0.8 * 1e9) * 1e3, rel=0.01)
    fast, slow = exposed(folder, 3, "--link", "450GB"), exposed(folder, 3, "--link", "20GB")
    assert fast[1] < slow[1] and slow[0] > 20 * fast[0]
    nodes = exposed(folder, 3, "--local-gpus", 1, "--link", "100Gbit")
    assert nodes[0] > fast[0] and nodes[1] > fast[1]


def test_ordered_sums_have_a_price(folder):
    """Within a node that of their kernel, which reads 8 contributions in fp32 and adds them to the sum at some 2.6 TB/s. Across
    nodes each card brings the contributions of 8 of 16 ranks, where in a ring 8 cards share them."""
    prices = []
    for world, nodes in ((8, []), (16, ["--local-gpus", 8])):
        out = plan(folder, GPT2_1558M, 1024, 4, 2, world=world, more=[*nodes, "--set", f"train.virtual_ranks={world}"])
        ordered, own = re.search(r"ordered sums: ([\d.]+) ms of each step's reductions, hidden or not, instead of ([\d.]+) ms",
                                 out).groups()
        prices.append((float(ordered), float(own)))
    kernels = [2 * 1.5576e9 / world * (world * 4 + 8) / 2.6e12 * 1e3 for world in (8, 16)]
    assert prices[0][0] - prices[0][1] == pytest.approx(kernels[0], rel=0.15), prices
    network = 2 * 1.5576e9 * 4 * 8 / 16 / (0.8 * 50e9) * 1e3
    assert prices[1][0] == pytest.approx(network + kernels[1], rel=0.05) and prices[1][1] < prices[1][0] / 3, prices
    assert "ordered sums" not in plan(folder, GPT2_124M, 1024, 8, 2, world=8)


def test_a_step_that_does_not_fit_is_said(folder):
    out = plan(folder, GPT2_1558M, 1024, 32, 1, more=["--device", "l40s"])
    assert "does not fit" in out and "NVIDIA L40S, assumed" in out


@pytest.mark.parametrize("option, value, names", [("--device", "h1000", "h100"), ("--link", "fast", "400Gbit"),
                                                  ("--link", "-3GB", "400Gbit"), ("--assume", "magic", "bf16-logits")])
def test_what_is_not_known_is_refused(folder, option, value, names):
    done = folder.ztrain("plan", "--speed", "--config", folder.spec(), option, value, expect=USAGE)
    assert value in done.err and names in done.err


def test_all_kinds_of_steps_have_plans(folder):
    """Steps with recomputation, fp32, fp16, padding and several nodes."""
    base = plan(folder, GPT2_124M, 1024, 8, 2)
    spec = folder.spec({"model": {"config": GPT2_124M}, "data": {"seq_length": 1024}}, "other")
    many = ["train_batch_size=64", "train_micro_batch_size_per_gpu=64"]
    for changes in (["fp16.enabled=true"], ["activation_checkpointing.enabled=true"], ["data.packing=false"],
                    [*many, "data.packing=false"], [*many, "data.packing=first_fit"],
                    [*many, "data.packing=first_fit", "data.document_mask=true"], [*many, "data.document_mask=true"]):
        sets = [word for change in changes for word in ("--set", change)]
        out = folder.ztrain("plan", "--speed", "--config", spec, *sets).out
        assert "tokens/s" in out
    assert "ms" in base
    done = folder.ztrain("plan", "--speed", "--config", spec, "--world", 12, expect=USAGE)
    assert "multiple" in done.err


def test_recomputation_is_a_loss(folder):
    spec = folder.spec({"model": {"config": GPT2_124M}, "data": {"seq_length": 1024}, "bf16": {"enabled": True},
                        "activation_checkpointing": {"enabled": True}}, "recompute")
    out = folder.ztrain("plan", "--speed", "--config", spec).out
    overhead = float(re.search(r"([\d.]+)  activations that are computed again in backward", out).group(1))
    kept = folder.ztrain("plan", "--speed", "--config", spec, "--set", "activation_checkpointing.policy=none").out
    assert mfu(kept)[1] - mfu(out)[1] == pytest.approx(overhead, abs=0.11) and overhead > 3


@pytest.mark.parametrize("model", [GPT2_124M, {"model_type": "qwen3", "vocab_size": 50304, "hidden_size": 1024,
                                               "num_hidden_layers": 4, "num_attention_heads": 16, "head_dim": 128,
                                               "num_key_value_heads": 8, "intermediate_size": 3072}])
def test_each_policy_saves_bytes_and_costs_time(folder, model):
    """The table is the same under every policy, its rows are the steps of these policies, and the plan of memory agrees."""
    policies = ["none", "norms", "mlp", "attention", "block"]
    spec = folder.spec({"model": {"config": model}, "data": {"seq_length": 1024}, "bf16": {"enabled": True}}, "policies")
    tables = []
    for policy in policies:
        sets = ["--set", f"activation_checkpointing.policy={policy}", "--set", "train.device=cuda"]
        speed = folder.ztrain("plan", "--speed", "--config", spec, *sets).out
        table = {name: [float(x) for x in re.search(rf"\n  {name} +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)", speed).groups()]
                 for name in policies}
        total = float(re.search(r"\n  total +[\d.]+ +([\d.]+)", speed).group(1))
        assert table[policy][2] == pytest.approx(total, abs=2e-3)
        memory = folder.ztrain("plan", "--bytes", "--config", spec, *sets).out
        activations = plan_bytes(memory)["device"]["activations"]
        sizes = {name: int(re.search(rf"\W{name} (\d+)", memory.split("activation_checkpointing.policy")[1]).group(1)) for name in policies}
        assert sizes[policy] == activations
        assert (sizes["none"] - activations) / 2**20 == pytest.approx(table[policy][1], abs=0.11)
        tables.append(table)
    assert all(table == tables[0] for table in tables)
    for less, more in zip(policies, policies[1:]):
        assert tables[0][more][1] > tables[0][less][1] and tables[0][more][3] > tables[0][less][3]


def test_long_steps_are_continued_from_shorter_ones(folder):
    """A micro-batch of a step with 1000 takes as long as one of a step with 100; the optimizer's share goes."""
    hundred, thousand = (plan(folder, GPT2_124M, 1024, 4, n) for n in (100, 1000))
    for kind in ("GEMM wgrad", "norms", "launch gaps"):
        assert row(thousand, kind)[1] == pytest.approx(10 * row(hundred, kind)[1], rel=0.01), kind
    assert row(thousand, "optimizer")[1] == pytest.approx(row(hundred, "optimizer")[1], rel=1e-6)


def test_the_hours_and_the_cost_of_the_run(folder):
    """By the data if they are there, else by train.max_steps; without either the plan says what it lacks."""
    changes = {"train": {"device": "cuda", "epochs": 2}, "bf16": {"enabled": True}}

    def run_of(spec, *more):
        out = folder.ztrain("plan", "--speed", "--config", spec, "--world", 4, *more).out
        step = float(re.search(r"^  total +[\d.]+ +([\d.]+)$", out, re.M).group(1)) / 3.6e6
        found = re.search(r"^  the whole run +(\d+) steps, ([\d.]+) hours, ([\d.]+) GPU hours; ", out, re.M)
        return out, step, found and tuple(map(float, found.groups()))

    _, step, (steps, hours, gpu_hours) = run_of(folder.spec(changes, "data"))
    assert steps == 6 and hours == pytest.approx(6 * step, abs=6e-5) and gpu_hours == pytest.approx(24 * step, abs=6e-5)
    absent = {**changes, "data": {"train": folder.at("absent")}}
    endless = folder.spec({**absent, "train": {"device": "cuda", "epochs": None, "max_steps": 10**9}}, "steps")
    out, step, (steps, hours, gpu_hours) = run_of(endless, "--price", "2.5")
    assert steps == 1e9 and hours == pytest.approx(1e9 * step, rel=1e-2) and gpu_hours == pytest.approx(4 * hours, abs=0.3)
    assert float(re.search(r"^  its cost +([\d.]+), at 2.5 a GPU hour$", out, re.M).group(1)) == pytest.approx(2.5 * gpu_hours, rel=1e-3)
    out, _, found = run_of(folder.spec(absent, "absent"))
    assert not found and "the whole run: its steps are not known: no token shard" in out and "its cost" not in out


@pytest.mark.parametrize("price", ["0", "-1", "nan", "inf", "1e10", "2.5EUR", "cheap"])
def test_a_price_is_a_number(folder, price):
    done = folder.ztrain("plan", "--speed", "--price", price, "--config", folder.spec(), expect=USAGE)
    assert f"--price must be a number above 0, and at most 1e9, not '{price}'" in done.final_error
    done = folder.ztrain("plan", "--price", "2", "--config", folder.spec(), expect=USAGE)
    assert "--price is an option of plan --speed" in done.final_error


@pytest.mark.parametrize("arguments, hint", [(["--speed"], "ztrain plan --speed"), (["--bytes"], "--bytes is an option of plan"), (["--device", "cuda"], "train.device=cuda"),
                                             (["plan", "--link", "3GB"], "plan --speed")])
def test_options_of_the_plan_are_refused_elsewhere(folder, arguments, hint):
    done = folder.ztrain(*arguments, "--config", folder.spec(), expect=USAGE)
    assert hint in done.err


QWEN3_06B = {"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16,
             "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 28, "vocab_size": 151936, "rms_norm_eps": 1e-6,
             "max_position_embeddings": 40960, "rope_theta": 1e6, "tie_word_embeddings": True}
RECOMPUTED = ((GPT2_124M, 1024, 16, 8, 1, 0), (QWEN3_06B, 1024, 8, 8, 1, 0), (LLAMA_8B, 4096, 1, 8, 8, 3))


def page():
    with open(os.path.join(ROOT, "docs", "plan-speed.md"), encoding="utf-8") as f:
        return f.read()


def test_the_page_has_the_estimates_of_recomputation(folder):
    """docs/plan-speed.md: the step without it, and how much longer it gets; a column for each model."""
    rows = {name: re.search(rf"^\| {name} \| [\d.]+, [\d.]+ \| (.*) \|$", page(), re.M)[1].split(" | ")
            for name in ("none", "norms", "mlp", "attention", "block")}
    for column, step in enumerate(RECOMPUTED):
        times = {name: float(ms) for name, ms in re.findall(r"^  (\w+) +[\d.]+ +[\d.]+ +([\d.]+) +[\d.]+ +[\d.]+ %$",
                                                            plan(folder, *step), re.M)}
        for name, row_of_it in rows.items():
            more = 100 * (times[name] / times["none"] - 1)
            said = f"{times[name]:.0f} ms" if name == "none" else f"+{more:.{0 if more >= 10 else 1}f} %"
            assert row_of_it[column] == said, (name, column, times)


@pytest.mark.parametrize("optimizer, row_of_it", [("AdamW", "AdamW"), ("Muon", "Muon, ranks share the blocks")])
def test_the_page_has_the_estimates_of_muon(folder, optimizer, row_of_it):
    spec = folder.spec({"model": {"config": LLAMA_8B}, "data": {"seq_length": 4096}, "bf16": {"enabled": True},
                        "train_batch_size": 128, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3},
                        "optimizer": {"type": optimizer}, "activation_checkpointing": {"enabled": True, "policy": "norms"}})
    out = folder.ztrain("plan", "--speed", "--config", spec, "--world", 8).out
    total = float(re.search(r"^  total +[\d.]+ +([\d.]+)$", out, re.M)[1])
    seconds = [ms / 1000 for ms in (total, row(out, "optimizer")[1], row(out, "exposed transfers")[1])]
    said = f"| {row_of_it} | {seconds[0]:.2f} | {seconds[1]:.3f} | {seconds[2]:.3f} | "
    line, = [line for line in page().splitlines() if line.startswith(said)]
    assert line.endswith(f" {mfu(out)[1]:.1f} % |"), (line, out)

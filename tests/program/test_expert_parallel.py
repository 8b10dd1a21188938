# SPDX-License-Identifier: Apache-2.0
"""Experts that groups of ranks share (moe.expert_parallel_size): the numbers of a run without to rounding, the same bits at every stage,
checkpoints that do not know of it, ranks without tokens."""
import json
import os
import re

import pytest

from harness import LLAMA, USAGE, documents, merged, write_megatron
from test_experts import MODELS, QWEN3, numbers
from test_models import tensors_of
from test_skewed_routing import GPT_OSS as CHOOSING, by_group, changed_model, write_groups

SETTINGS = {
    "plain": {}, "bf16": {"bf16": {"enabled": True}}, "fp16": {"fp16": {"enabled": True, "initial_scale_power": 8}},
    "block": {"activation_checkpointing": {"policy": "block"}}, "mlp": {"activation_checkpointing": {"policy": "mlp"}},
    "two": {"gradient_accumulation_steps": 2},
    "narrow": {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "bf16"}, "communication_data_type": "bf16",
               "gradient_accumulation_steps": 2},
}
TOLERANCE = {"bf16": 1e-2, "fp16": 5e-3, "narrow": 1e-2}
OFFLOADS = [{}, {"offload_optimizer": {"device": "cpu"}}, {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
            {"offload_param": {"device": "cpu"}}]


def changes_of(model, parts, more=None, stage=0, zero=None, steps=4):
    return merged({"model": {"config": {**MODELS[model], "output_router_logits": True}}, "gradient_accumulation_steps": 1,
                   "train_batch_size": None, "train_micro_batch_size_per_gpu": 2, "train": {"epochs": None, "max_steps": steps},
                   "zero_optimization": {"stage": stage, **(zero or {})}, "moe": {"expert_parallel_size": parts}}, more or {})


def near(a, b, tolerance, end=3):
    """In halves rounding changes choices of experts, and with them norms."""
    halves = tolerance > 1e-4
    for one, other in zip(a, b, strict=True):
        assert one[0] == pytest.approx(other[0], rel=tolerance)
        assert one[1:end] == pytest.approx(other[1:end], rel=20 * tolerance if halves else tolerance)
        assert one[3]["load"] == pytest.approx(other[3]["load"], abs=0.03 if halves else 1e-6)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("model", MODELS)
def test_numbers_are_those_without_to_rounding(folder, model, setting):
    for ranks, stage in ((2, 0), (4, 3)):
        for parts in (1, 2):
            folder.train(changes_of(model, parts, SETTINGS[setting], stage), f"run-{ranks}-{stage}-{parts}", ranks=ranks)
        near(numbers(folder, f"run-{ranks}-{stage}-2"), numbers(folder, f"run-{ranks}-{stage}-1"), TOLERANCE.get(setting, 2e-5))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("ranks, parts", [(2, 2), (4, 2), (3, 3)])
def test_every_stage_and_place_has_the_same_bits(folder, model, ranks, parts):
    found = []
    for stage, zero in [(0, {}), (1, {}), (2, OFFLOADS[1]), *((3, zero) for zero in OFFLOADS)]:
        name = f"run-{len(found)}"
        out = folder.train(changes_of(model, parts, {}, stage, zero), name, ranks=ranks).out
        (gathered, of_gathers), (reduced, of_reductions) = re.findall(r"(\d+) bytes \(theory (\d+)\)", out)[:2]
        assert gathered == of_gathers and reduced == of_reductions
        folder.ztrain("export", folder.run_folder(name), "--out", folder.at(name), "--dtype", "fp32")
        found.append((numbers(folder, name), tensors_of(folder.at(name))))
    assert all(other == found[0] for other in found[1:])


@pytest.mark.parametrize("model", MODELS)
def test_a_checkpoint_goes_on_with_any_number_of_parts(folder, model):
    """Without the auxiliary loss, which is of a micro-batch."""
    def changes(parts, stage, steps, micro=2):
        return changes_of(model, parts, {"model": {"config": MODELS[model]}, "train_micro_batch_size_per_gpu": micro}, stage, steps=steps)

    folder.train(changes(2, 3, 5), "whole", ranks=2)
    folder.train(changes(2, 3, 2), "parts", ranks=2)
    folder.train(changes(2, 1, 5), "parts", ranks=2, more=["--resume", "auto"])
    assert numbers(folder, "parts") == numbers(folder, "whole")
    folder.train(changes(2, 3, 2), "others", ranks=2)
    folder.train(changes(1, 0, 3, micro=1), "others", ranks=4, more=["--resume", "auto"])
    folder.train(changes(2, 2, 5, micro=1), "others", ranks=4, more=["--resume", "auto"])
    near(numbers(folder, "others"), numbers(folder, "whole"), 2e-5, end=2)


@pytest.mark.parametrize("policy", ["none", "mlp", "block"])
@pytest.mark.parametrize("model", MODELS)
def test_ranks_without_tokens_serve_the_others(folder, model, policy):
    """Documents of one sample: in the last batch of an evaluation, and of an epoch, some ranks have none."""
    found = []
    for parts in (1, 2, 4) if model != "gpt_oss" and MODELS[model].get("num_experts", 6) % 4 == 0 else (1, 2):
        name = f"run-{parts}"
        folder.train(changes_of(model, parts, {"train": {"epochs": 1, "max_steps": None, "eval_interval_steps": 3},
                                               "activation_checkpointing": {"policy": policy}}, 3), name, ranks=4)
        found.append([row["eval_loss"] for row in folder.metrics(name).rows if "eval_loss" in row] + folder.metrics(name).losses)
        assert len(found[-1]) > 3
    for other in found[1:]:
        assert other == pytest.approx(found[0], rel=2e-5)


@pytest.mark.parametrize("micros", [1, 2])
@pytest.mark.parametrize("ranks, parts", [(2, 2), (4, 2)])
def test_training_on_documents_without_tokens(folder, ranks, parts, micros):
    """A rank whose document is of one token, which predicts nothing, has gradients of its experts nevertheless, and only of these."""
    write_megatron(folder.at("train"), [document if i % 5 < 2 else [0] for i, document in enumerate(documents(60))])
    folder.data(10, seed=2, name="validation")
    more = {"data": {"packing": False}, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": micros,
            "model": {"config": QWEN3}, "train": {"epochs": 1, "max_steps": None}}
    for stage, zero in [(0, {}), (1, {}), (2, {}), (3, {}), (3, OFFLOADS[2])]:
        for size in (1, parts):
            folder.train(changes_of("qwen3_moe", size, more, stage, zero), f"run-{size}-{stage}-{len(zero)}", ranks=ranks)
        near(numbers(folder, f"run-{parts}-{stage}-{len(zero)}"), numbers(folder, f"run-1-{stage}-{len(zero)}"), 2e-5, end=2)


def test_an_adapter_of_attention_beside_shared_experts(folder):
    found = []
    for ranks, parts, stage in ((2, 1, 0), (2, 2, 0), (2, 2, 3)):
        name = f"run-{parts}-{stage}"
        folder.train(changes_of("qwen3_moe", parts, {"peft": {"peft_type": "LORA", "r": 4, "target_modules": ["q_proj", "v_proj"]}}, stage),
                     name, ranks=ranks)
        found.append(numbers(folder, name))
    near(found[1], found[0], 3e-6)
    assert found[2] == found[1]


@pytest.mark.parametrize("ranks, parts", [(2, 2), (4, 2), (4, 4)])
def test_routing_changes_no_collective(folder, ranks, parts):
    """Tokens that go to the experts of another rank, of the own, or all to one: the same collectives and bytes, and the numbers of a
    run without."""
    spec = merged(changed_model(folder, {**CHOOSING, "num_experts_per_tok": 1}, by_group),
                  {"data": {"shuffle": False}, "train": {"epochs": 1}, "train_batch_size": ranks, "gradient_accumulation_steps": 1,
                   "comms_logger": {"enabled": True}, "optimizer": {"params": {"lr": 1e-4}}, "zero_optimization": {"stage": 3}})
    calls = []
    for name, group_of in (("own", lambda i: i % ranks), ("other", lambda i: (i + 1) % ranks), ("one", lambda i: 3)):
        write_groups(folder, group_of)
        folder.train(merged(spec, {"moe": {"expert_parallel_size": parts}}), name, ranks=ranks)
        with open(os.path.join(folder.run_folder(name), "comms.json"), encoding="utf-8") as f:
            calls.append([(row["collective"], row["for"], row["unit"], row["calls"], row["bytes"]) for row in json.load(f)["collectives"]])
        folder.train(spec, f"{name}-without", ranks=ranks)
        assert folder.metrics(name).losses == pytest.approx(folder.metrics(f"{name}-without").losses, rel=3e-6)
    assert calls[1:] == calls[:1] * 2 and any(purpose == "tokens" for _, purpose, *_ in calls[0])


@pytest.mark.parametrize("ranks, parts, more, words", [
    (2, 2, {"model": {"config": LLAMA}}, "the model has no experts"),
    (3, 2, {}, "'moe.expert_parallel_size' 2 on 3 ranks: it does not divide the number of ranks"),
    (1, 2, {}, "2 on 1 rank: it does not divide the number of ranks; hint: --set moe.expert_parallel_size=1 trains without"),
    (4, 4, {}, "does not divide the number of experts"),
    (2, 2, {"optimizer": {"type": "Muon"}}, "Muon updates whole matrices"),
    (2, 2, {"train": {"virtual_ranks": 2}, "gradient_accumulation_steps": None, "train_batch_size": 4}, "train.virtual_ranks promises"),
    (2, 2, {"peft": {"peft_type": "LORA", "target_parameters": ["experts.down_proj"]}}, "the adapter has tensors of experts"),
    (2, 2, {"model": {"config": {**QWEN3, "moe_intermediate_size": 10, "num_experts": 2, "hidden_size": 40}}}, "no multiple of 64"),
])
def test_what_does_not_go_with_it_is_refused(folder, ranks, parts, more, words):
    done = folder.train(changes_of("qwen3_moe", parts, more), ranks=ranks, expect=USAGE)
    assert words in done.err

# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts: the losses of their routers, loads, and that no bit depends on ranks, stages or a resume."""
import json
import math
import os
import re

import pytest

from harness import LLAMA, ROOT, USAGE
from test_models import tensors_of

GOLDEN = os.path.join(ROOT, "tests", "golden")

QWEN3 = {**LLAMA, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 3, "num_experts": 6,
         "num_experts_per_tok": 2, "moe_intermediate_size": 12, "norm_topk_prob": True, "mlp_only_layers": [1]}
QWEN2 = {**QWEN3, "model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"], "shared_expert_intermediate_size": 20}
GPT_OSS = {**QWEN3, "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "num_local_experts": 6, "head_dim": 8,
           "sliding_window": 5}
for key in ("num_experts", "moe_intermediate_size", "mlp_only_layers", "norm_topk_prob", "attention_bias"):
    GPT_OSS.pop(key, None)
MODELS = {"qwen3_moe": QWEN3, "qwen2_moe": QWEN2, "gpt_oss": GPT_OSS}
SETTINGS = {
    "plain": {}, "bf16": {"bf16": {"enabled": True}},
    "block": {"activation_checkpointing": {"policy": "block"}}, "mlp": {"activation_checkpointing": {"policy": "mlp"}},
    "offload": {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
    "muon": {"optimizer": {"type": "Muon", "params": {"lr": 1e-3}}},
}


def numbers(folder, name):
    rows = folder.metrics(name).rows
    return [(row["loss"], row["grad_norm"], row["aux_loss"], row["experts"]) for row in rows if "grad_norm" in row]


def changes_of(model, more, stage=0, virtual=4, steps=4):
    zero = {"zero_optimization": {**more.get("zero_optimization", {}), "stage": stage}}
    return {**more, **zero, "model": {"config": {**MODELS[model], "output_router_logits": True}},
            "gradient_accumulation_steps": None, "train": {"virtual_ranks": virtual, "epochs": None, "max_steps": steps},
            "train_batch_size": 8, "train_micro_batch_size_per_gpu": 1}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("model", MODELS)
def test_the_bits_are_the_same_on_any_number_of_ranks_and_at_any_stage(folder, model, setting):
    found = []
    for ranks, stage in ((1, 0 if setting != "offload" else 1), (1, 2), (2, 2), (2, 3), (4, 1)):
        folder.train(changes_of(model, SETTINGS[setting], stage), f"run-{ranks}-{stage}", ranks=ranks)
        found.append(numbers(folder, f"run-{ranks}-{stage}"))
    assert len(found[0]) == 4 and all(other == found[0] for other in found[1:])


@pytest.mark.parametrize("model", MODELS)
def test_recomputation_and_offload_change_no_bit(folder, model):
    found = []
    for setting in ("plain", "block", "mlp", "offload"):
        folder.train(changes_of(model, SETTINGS[setting], 2), setting, ranks=2)
        found.append(numbers(folder, setting))
    assert found[1:] == found[:1] * 3


@pytest.mark.parametrize("model", MODELS)
def test_a_resumed_run_has_the_bits_of_one_that_goes_on(folder, model):
    folder.train({**changes_of(model, {}, 3, steps=5)}, "whole", ranks=2)
    folder.train({**changes_of(model, {}, 3, steps=2)}, "parts", ranks=2)
    folder.train({**changes_of(model, {}, 1, steps=5)}, "parts", more=["--resume", "auto"])
    assert numbers(folder, "parts") == numbers(folder, "whole")


def test_loads_are_shares_of_all_choices(folder):
    folder.train(changes_of("qwen3_moe", {}))
    for _, _, aux, experts in numbers(folder, "run"):
        assert len(experts["load"]) == 6 and sum(experts["load"]) == pytest.approx(1, abs=1e-5) and experts["dropped"] == 0
        assert experts["max_load"] == max(experts["load"])
        assert experts["entropy"] == pytest.approx(-sum(x * math.log(x) for x in experts["load"] if x), rel=1e-4)
        assert 1 <= aux < 2 * 6  # k if all are even


def test_the_z_loss_is_that_of_switch_transformers(folder):
    with open(os.path.join(GOLDEN, "router_z_loss.json"), encoding="utf-8") as f:
        want = json.load(f)
    place = os.path.join(GOLDEN, "qwen3-moe-aux")
    spec = os.path.join(place, "run.yaml")
    for ranks in (1, 2):
        sets = {"run.dir": folder.at("runs"), "run.name": f"run-{ranks}", "model.pretrained": place, "data.train": f"{place}/train",
                "data.validation": f"{place}/validation", "model.output_router_logits": "false",
                "model.router_z_loss_coef": want["coefficient"]}
        folder.ztrain("--config", spec, "--local-gpus", ranks, *sum((["--set", f"{k}={v}"] for k, v in sets.items()), []))
        rows = [row for row in folder.metrics(f"run-{ranks}").rows if "grad_norm" in row]
        assert [row["loss"] for row in rows] == pytest.approx(want["loss"], abs=1e-6)
        assert [row["grad_norm"] for row in rows] == pytest.approx(want["grad_norm"], rel=2e-6)


def test_the_spec_wins_over_the_config(folder):
    """The same coefficient in the spec and in config.json; another coefficient, or none, changes the norm of the
    gradient. The start says whether the loss is minimized."""
    changes = changes_of("qwen3_moe", {})
    inside = {**QWEN3, "output_router_logits": True, "router_aux_loss_coef": 0.3}
    found, said = {}, {}
    for name, model in {"config": {"config": inside}, "alone": {"config": QWEN3, "router_aux_loss_coef": 0.3},
                        "spec": {"config": QWEN3, "output_router_logits": True, "router_aux_loss_coef": 0.3},
                        "off": {"config": inside, "output_router_logits": False}, "none": {"config": QWEN3}}.items():
        said[name] = re.findall("model: aux_loss: (.*)", folder.train({**changes, "model": model}, name).out)
        found[name] = numbers(folder, name)
    assert found["config"] == found["spec"] and found["off"] == found["none"] == found["alone"] != found["config"]
    assert said["config"] == said["spec"] == ["minimized x 0.3"]
    assert said["off"] == said["none"] == ["watched only; model.output_router_logits: true minimizes it"]
    assert said["alone"] == ["watched only, and model.router_aux_loss_coef has no effect; model.output_router_logits: true minimizes it"]


@pytest.mark.parametrize("model, key, words", [
    (LLAMA, "output_router_logits=true", "model.output_router_logits: the model has no experts"),
    (LLAMA, "router_z_loss_coef=0.1", "model.router_z_loss_coef: the model has no experts"),
    ({**QWEN3, "model_type": "glm4_moe", "architectures": None}, "router_aux_loss_coef=0.1", "routers with sigmoids"),
])
def test_losses_that_a_model_does_not_have_are_refused(folder, model, key, words):
    config = {k: v for k, v in model.items() if v is not None}
    done = folder.train({"model": {"config": config}}, sets=[f"model.{key}"], expect=USAGE)
    assert words in done.final_error


def test_a_bias_of_routers_keeps_its_precision(folder):
    """GLM-4's bias of the choice is read and exported in fp32 from a run in bf16; states in bf16, which would round it, are refused."""
    place = os.path.join(GOLDEN, "glm4-moe")
    changes = {"model": {"config": None, "pretrained": place}, "data": {"train": f"{place}/train", "validation": None, "seq_length": 8},
               "train": {"epochs": None, "max_steps": 2}, "bf16": {"enabled": True}}
    folder.train(changes)
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("hf"), "--dtype", "bf16")
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    assert tensors_of(folder.at("hf"))[name] == tensors_of(place)[name]
    done = folder.train({**changes, "bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, "narrow", expect=USAGE)
    assert "e_score_correction_bias, needs fp32" in done.err

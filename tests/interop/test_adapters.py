# SPDX-License-Identifier: Apache-2.0
"""What ztrain exports of an adapter, PEFT loads, with the same loss; what PEFT saves, ztrain starts from. Needs peft beside what
test_transformers.py needs; tests/golden/check_adapters.py compares training."""
import json

import peft
import pytest
import torch

from harness import SEQUENCE
from test_transformers import FAMILIES, load, loss_of, validation_batch

pytestmark = pytest.mark.interop

ADAPTERS = {
    "gpt2": {"r": 3, "target_modules": ["wte", "c_attn", "c_fc"], "modules_to_save": ["ln_f"]},
    "llama": {"r": 4, "target_modules": "all-linear", "modules_to_save": ["lm_head"], "use_rslora": True},
    "qwen2": {"r": 4, "target_modules": ["q_proj", "down_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    "phi3": {"r": 2, "target_modules": r".*\.(qkv|gate_up)_proj", "rank_pattern": {"qkv_proj": 5}},
    "gemma3": {"r": 4, "target_modules": ["embed_tokens", "o_proj"], "alpha_pattern": {"o_proj": 24}},
}


def based(folder, family):
    """A run spec's changes: the family's adapter on an exported base."""
    folder.train({"model": {"config": FAMILIES[family]}, "train": {"epochs": 1}}, "base")
    folder.ztrain("export", folder.run_folder("base"), "--out", folder.at("base"), "--dtype", "fp32")
    return {"model": {"config": None, "pretrained": folder.at("base")}, "train": {"epochs": 3},
            "optimizer": {"params": {"lr": 0.02}}, "zero_optimization": {"stage": 3}}


@pytest.mark.parametrize("family", ADAPTERS)
def test_an_export_loads_with_the_same_loss(folder, family):
    """And a merged folder has PEFT's merged weights, but for a tied pair that PEFT merges into one."""
    changes = based(folder, family)
    folder.train({**changes, "peft": ADAPTERS[family]}, ranks=2)
    want = folder.metrics().evaluations[-1]["eval_loss"]
    rows = validation_batch(folder)
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("adapter"))
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("merged"), "--merge", "--dtype", "fp32")
    before = loss_of(load(folder.at("base"), torch.float32), rows)
    model = peft.PeftModel.from_pretrained(load(folder.at("base"), torch.float32), folder.at("adapter"))
    assert abs(loss_of(model, rows) - want) < 1e-5 < abs(before - want)
    merged = load(folder.at("merged"), torch.float32)
    assert abs(loss_of(merged, rows) - want) < 1e-5
    if family not in ("gpt2", "gemma3"):
        ours, theirs = merged.state_dict(), model.merge_and_unload().state_dict()
        assert all(torch.allclose(ours[name], tensor, rtol=0, atol=1e-6) for name, tensor in theirs.items())


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_folder_that_peft_saved_starts_a_run(folder, family):
    changes = based(folder, family)
    rows = validation_batch(folder)
    assert rows.shape[1] == SEQUENCE + 1
    model = peft.get_peft_model(load(folder.at("base"), torch.float32), peft.LoraConfig(task_type="CAUSAL_LM", **ADAPTERS[family]))
    torch.manual_seed(5)
    for p in model.parameters():
        if p.requires_grad:
            p.data += 0.1 * torch.randn(p.shape)
    model.save_pretrained(folder.at("adapter"))
    folder.train({**changes, "model": {**changes["model"], "adapter": folder.at("adapter")}}, ranks=2,
                 sets=["train.max_steps=1", "train.eval_interval_steps=1", "optimizer.params.lr=1e-30"])
    assert abs(folder.metrics().evaluations[-1]["eval_loss"] - loss_of(model, rows)) < 1e-5
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("again"))
    with open(folder.at("adapter", "adapter_config.json"), encoding="utf-8") as f:
        theirs = json.load(f)
    with open(folder.at("again", "adapter_config.json"), encoding="utf-8") as f:
        ours = json.load(f)
    kept = ("peft_type", "task_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "fan_in_fan_out", "bias")
    assert {key: ours[key] for key in kept} == {key: theirs[key] for key in kept}

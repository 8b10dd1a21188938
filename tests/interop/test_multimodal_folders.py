# SPDX-License-Identifier: Apache-2.0
"""Multimodal folders that transformers saves: ztrain computes the loss of text that transformers computes, before and after training,
as the whole model and as an adapter for PEFT. tests/program/test_multimodal.py has what needs no transformers."""
import json
import os

import peft
import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from harness import VOCABULARY, read_safetensors
from test_transformers import loss_of, validation_batch

pytestmark = pytest.mark.interop

TEXT = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.1, "pad_token_id": None,
        "bos_token_id": None, "eos_token_id": None}
TOWER = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
QWEN = {"depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 32}
TOKENS = {"image_token_id": 58, "video_token_id": 57, "vision_start_token_id": 56, "vision_end_token_id": 55}
CONFIGS = {
    "gemma3": {"text_config": {**TEXT, "head_dim": 16, "sliding_window": 9, "query_pre_attn_scalar": 12, "layer_types": [
        "sliding_attention", "full_attention"]}, "vision_config": TOWER, "mm_tokens_per_image": 4, "image_token_index": 58,
        "boi_token_index": 57, "eoi_token_index": 56},
    "gemma4": {"text_config": {**TEXT, "head_dim": 16, "global_head_dim": 24, "sliding_window": 9, "num_kv_shared_layers": 2,
                               "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2,
                               "hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": 64, "pad_token_id": 0},
               "vision_config": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
                                 "num_key_value_heads": 2, "head_dim": 8, "patch_size": 4}, "audio_config": None, "image_token_id": 63,
               "video_token_id": 62},
    "qwen2_vl": {"text_config": {**TEXT, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}, "tie_word_embeddings": True,
                 "vision_config": {"depth": 1, "embed_dim": 16, "num_heads": 2, "hidden_size": 32, "mlp_ratio": 2}, **TOKENS},
    "qwen2_5_vl": {"text_config": {**TEXT, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}},
                   "vision_config": {**QWEN, "fullatt_block_indexes": [0]}, **TOKENS},
    "qwen3_vl": {"text_config": {**TEXT, "head_dim": 16, "rope_parameters": {
        "rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True, "rope_theta": 5e6}}, "tie_word_embeddings": True,
        "vision_config": {**QWEN, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}, **TOKENS},
    "mistral3": {"text_config": {**TEXT, "model_type": "mistral", "head_dim": 16}, "tie_word_embeddings": False,
                 "vision_config": {**TOWER, "model_type": "pixtral", "head_dim": 8}, "image_token_index": 58},
    "qwen3_5": {"text_config": {**TEXT, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                                "linear_key_head_dim": 8, "linear_value_head_dim": 12, "full_attention_interval": 2},
                "tie_word_embeddings": False, "vision_config": {**QWEN, "num_position_embeddings": 16}, **TOKENS},
    "ministral3": {"text_config": {**TEXT, "model_type": "ministral3", "head_dim": 16, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1}},
        "tie_word_embeddings": False, "vision_config": {**TOWER, "model_type": "pixtral", "head_dim": 8}, "image_token_index": 58},
    "llava": {"text_config": {**TEXT, "model_type": "llama"}, "vision_config": {**TOWER, "model_type": "clip_vision_model"},
              "image_token_index": 58},
    "llava_next": {"text_config": {**TEXT, "model_type": "mistral"}, "vision_config": {**TOWER, "model_type": "clip_vision_model"},
                   "image_token_index": 58, "image_grid_pinpoints": [[28, 28]]},
    "internvl": {"text_config": {**TEXT, "model_type": "qwen3", "head_dim": 16}, "tie_word_embeddings": False,
                 "vision_config": {**TOWER, "image_size": [28, 28], "patch_size": [14, 14]}, "image_token_id": 58},
}


def make(folder, kind, **save):
    torch.manual_seed(5)
    model = AutoModelForImageTextToText.from_config(AutoConfig.for_model({"ministral3": "mistral3"}.get(kind, kind), **CONFIGS[kind]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(folder.at("hf"), **save)


def load(path):
    model, report = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32, output_loading_info=True)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[problem], f"{problem}: {report[problem]}"
    return model


def tensors_of(path):
    found = {}
    for file in os.listdir(path):
        if file.endswith(".safetensors"):
            found.update(read_safetensors(os.path.join(path, file)))
    return found


def is_text(name):
    """Of the tensors that are trained, so without the scalars of Gemma 4's layers."""
    return not name.endswith("layer_scalar") and name.startswith(
        ("model.language_model.", "language_model.", "model.layers.", "model.norm.", "model.embed_tokens.", "lm_head."))


@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "sharded"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_the_loss_is_that_of_transformers(folder, kind, sharded):
    make(folder, kind, **({"max_shard_size": "20KB"} if sharded else {}))
    changes = {"model": {"config": None, "pretrained": folder.at("hf")}, "zero_optimization": {"stage": 3}}
    folder.train({**changes, "train": {"max_steps": 1}, "optimizer": {"params": {"lr": 1e-20, "weight_decay": 0.0}}}, "still", ranks=2)
    rows = validation_batch(folder)
    before = loss_of(load(folder.at("hf")), rows)
    assert abs(folder.metrics("still").evaluations[-1]["eval_loss"] - before) < 1e-5
    folder.ztrain("export", folder.run_folder("still"), "--out", folder.at("same"))
    assert tensors_of(folder.at("same")) == tensors_of(folder.at("hf"))
    with open(folder.at("hf", "config.json"), encoding="utf-8") as f, open(folder.at("same", "config.json"), encoding="utf-8") as g:
        assert json.load(f) == json.load(g)

    folder.train({**changes, "train": {"epochs": 2}})
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("trained"))
    want = folder.metrics().evaluations[-1]["eval_loss"]
    assert abs(loss_of(load(folder.at("trained")), rows) - want) < 1e-5 < abs(want - before)
    was, now = tensors_of(folder.at("hf")), tensors_of(folder.at("trained"))
    assert set(was) == set(now)
    assert all((was[name] != now[name]) == is_text(name) for name in was)


@pytest.mark.parametrize("kind", ["gemma3", "gemma4", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "mistral3"])
def test_an_adapter_loads_in_peft_with_the_same_loss(folder, kind):
    make(folder, kind)
    folder.train({"model": {"config": None, "pretrained": folder.at("hf")}, "train": {"epochs": 3},
                  "optimizer": {"params": {"lr": 0.02}}, "peft": {"r": 4, "target_modules": "all-linear"}})
    want = folder.metrics().evaluations[-1]["eval_loss"]
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("adapter"))
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("merged"), "--merge")
    rows, base = validation_batch(folder), load(folder.at("hf"))
    before = loss_of(base, rows)
    model = peft.PeftModel.from_pretrained(base, folder.at("adapter"))
    assert not [name for name, _ in model.named_modules() if "lora_A" in name and "vis" in name]
    assert abs(loss_of(model, rows) - want) < 1e-5 < abs(before - want)
    assert abs(loss_of(load(folder.at("merged")), rows) - want) < 1e-5

    # and back: what PEFT saves has the same values
    model.save_pretrained(folder.at("saved"))
    folder.train({"model": {"config": None, "pretrained": folder.at("hf"), "adapter": folder.at("saved")}, "train": {"max_steps": 1},
                  "optimizer": {"params": {"lr": 1e-20, "weight_decay": 0.0}}}, "again")
    assert abs(folder.metrics("again").evaluations[-1]["eval_loss"] - want) < 1e-5

# SPDX-License-Identifier: Apache-2.0
"""The adapters that ztrain exports, PEFT loads, with the same loss, and merges into the same bytes; those that PEFT saves, ztrain
continues from and samples.

Needs torch, transformers and peft: .ci/run makes a virtual environment for it.
"""
import json
import os
import struct

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model

from harness import DATA, GPT2, LLAMA, SEQUENCE, USAGE, VOCABULARY, read_safetensors

pytestmark = pytest.mark.interop

TIED = {**LLAMA, "tie_word_embeddings": True}
PHI3 = {**LLAMA, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "pad_token_id": None, "bos_token_id": None,
        "eos_token_id": None}
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = {  # config, dtype of the base's files, peft
    "llama": (LLAMA, "bfloat16", {"r": 4, "lora_alpha": 8, "target_modules": LINEAR}),
    "llama-fp32": (LLAMA, "float32", {"r": 3, "lora_alpha": 5, "use_rslora": True, "target_modules": "all-linear"}),
    "llama-fp16": (LLAMA, "float16", {"r": 4, "target_modules": ["q_proj", "down_proj"], "rank_pattern": {"q_proj": 2},
                                      "alpha_pattern": {"down_proj": 32}}),
    "llama-embeddings": (LLAMA, "bfloat16", {"r": 4, "lora_alpha": 32, "target_modules": ["embed_tokens", "lm_head", "q_proj"],
                                             "modules_to_save": ["norm"]}),
    "llama-head": (LLAMA, "bfloat16", {"r": 4, "target_modules": ["v_proj"], "modules_to_save": ["lm_head"]}),
    "tied": (TIED, "bfloat16", {"r": 4, "lora_alpha": 32, "target_modules": ["embed_tokens", "q_proj"]}),
    "gpt2": (GPT2, "float32", {"r": 4, "lora_alpha": 16, "target_modules": ["c_attn", "c_proj", "c_fc"]}),
    "gpt2-embeddings": (GPT2, "bfloat16", {"r": 4, "lora_alpha": 16, "target_modules": ["wte", "c_attn"]}),
    "phi3": (PHI3, "bfloat16", {"r": 4, "lora_alpha": 16, "target_modules": ["qkv_proj", "gate_up_proj"]}),
}


def make_base(folder, config, dtype):
    torch.manual_seed(5)
    kind = getattr(transformers, config["architectures"][0])
    kind(kind.config_class(**config)).to(getattr(torch, dtype)).save_pretrained(folder.at("base"))
    return kind


def loss_of(model, folder):
    with open(folder.at("validation.bin"), "rb") as f:
        raw = f.read()
    tokens = struct.unpack(f"<{len(raw) // 2}H", raw)
    rows = torch.tensor([tokens[i:i + SEQUENCE + 1] for i in range(0, len(tokens) - SEQUENCE, SEQUENCE)])
    with torch.no_grad():
        logits = model.float().eval()(rows[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), rows[:, 1:].reshape(-1)).item()


def same_tensors(ours, theirs):
    """Compares the weights of two folders, byte by byte; those that a tied model repeats are no difference."""
    assert set(ours) <= set(theirs), set(ours) ^ set(theirs)
    different = [name for name in ours if ours[name] != theirs[name]]
    assert not different, different


def merges_like_peft(folder, kind, adapter, merged):
    """Whether the merged folder is the same as PEFT's, byte by byte."""
    base = kind.from_pretrained(folder.at("base"), dtype="auto")
    PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(folder.at("peft-merged"))
    same_tensors(read_safetensors(os.path.join(merged, "model.safetensors")),
                 read_safetensors(folder.at("peft-merged", "model.safetensors")))


@pytest.mark.parametrize("case", CASES)
def test_peft_loads_and_merges_an_export(folder, case):
    config, dtype, peft = CASES[case]
    kind = make_base(folder, config, dtype)
    done = folder.train({"model": {"config": None, "pretrained": folder.at("base")}, "peft": peft,
                         "optimizer": {"params": {"lr": 0.03}}})
    said = folder.ztrain("export", folder.run_folder(), "--out", folder.at("adapter")).out
    assert ("vLLM refuses" in said) == ("modules_to_save" in peft), said
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("merged"), "--merge")
    theirs = PeftModel.from_pretrained(kind.from_pretrained(folder.at("base"), dtype="auto").float(), folder.at("adapter"))
    found = folder.metrics().evaluations[-1]["eval_loss"]
    assert loss_of(theirs, folder) == pytest.approx(found, abs=2e-5), done
    for name, (kept, _, _) in read_safetensors(folder.at("adapter", "adapter_model.safetensors")).items():
        assert kept == "F32", name
    merges_like_peft(folder, kind, folder.at("adapter"), folder.at("merged"))
    again = kind.from_pretrained(folder.at("merged"), dtype="auto")
    assert again.dtype == getattr(torch, dtype)

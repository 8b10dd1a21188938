# SPDX-License-Identifier: Apache-2.0
"""A folder that transformers saves in 4 bits loads, and ztrain gives the unquantized model the same bytes: as a base both have one
hash, and an adapter on them the same bits. PEFT merges into what bitsandbytes decodes, as ztrain does.

Needs torch, transformers and bitsandbytes: .ci/run makes a virtual environment for it.
"""
import json
import os
import struct

import bitsandbytes.functional
import pytest
import torch
import transformers

from harness import LLAMA, merged, read_safetensors

pytestmark = pytest.mark.interop

CONFIG = {**LLAMA, "hidden_size": 64, "intermediate_size": 128}


@pytest.fixture(name="saved", params=[("bfloat16", True), ("float32", False), ("float16", True)], ids=["bf16", "fp32", "fp16"])
def saved_folders(folder, request):
    """The dtype and whether scales are quantized; the folders `plain` and `four`."""
    dtype, double = request.param
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**CONFIG)).to(getattr(torch, dtype))
    model.save_pretrained(folder.at("plain"))
    settings = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double)
    four = transformers.AutoModelForCausalLM.from_pretrained(folder.at("plain"), quantization_config=settings, device_map="cpu")
    four.save_pretrained(folder.at("four"))
    return double, four


def trained(folder, name, changes):
    spec = {"model": {"config": None, "pretrained": folder.at(name)}, "peft": {"r": 4}, "train": {"epochs": None, "max_steps": 2}}
    folder.train(merged(spec, changes), name)
    with open(os.path.join(folder.latest(name), "manifest.json"), encoding="utf-8") as f:
        base = json.load(f)["base"]["hash"]
    return base, folder.metrics(name).losses


def test_both_are_the_same_base(folder, saved):
    quantized = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": saved[0]}
    assert trained(folder, "four", {}) == trained(folder, "plain", {"model": {"quantization_config": quantized}})


def test_merging_decodes_as_bitsandbytes(folder, saved):
    """B is zero before the first step counts: with a learning rate of 0 the merged matrices are the decoded ones."""
    trained(folder, "four", {"optimizer": {"params": {"lr": 0.0}}})
    folder.ztrain("export", folder.run_folder("four"), "--merge", "--dtype", "fp32", "--out", folder.at("merged"))
    tensors = read_safetensors(folder.at("merged", "model.safetensors"))
    compared = 0
    for name, module in saved[1].named_modules():
        if hasattr(module, "weight") and hasattr(module.weight, "quant_state"):
            values = bitsandbytes.functional.dequantize_4bit(module.weight.data, module.weight.quant_state).float().flatten().tolist()
            assert tensors[f"{name}.weight"][2] == struct.pack(f"<{len(values)}f", *values), name
            compared += 1
    assert compared == 7 * CONFIG["num_hidden_layers"]

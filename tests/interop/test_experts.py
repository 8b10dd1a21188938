# SPDX-License-Identifier: Apache-2.0
"""Folders of mixtures of experts in other forms than transformers saves: in MXFP4, with the names of transformers' memory, and with
a layer for further tokens. test_transformers.py has those that it saves.

Needs torch, transformers, bitsandbytes and safetensors: .ci/run makes a virtual environment for it.
"""
import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from harness import DATA, read_safetensors
from test_quantized_folders import trained
from test_transformers import FAMILIES

pytestmark = pytest.mark.interop

MXFP4 = {"quant_method": "mxfp4",
         "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
STILL = {"optimizer": {"params": {"lr": 0.0, "weight_decay": 0.0}}, "train": {"max_steps": 1, "epochs": None}}


def saved(folder, family, dtype=torch.float32, **keys):
    """The tensors that transformers saves of a new model."""
    torch.manual_seed(4)
    keys = {**FAMILIES[family], **keys}
    config = transformers.CONFIG_MAPPING[keys.pop("model_type")](**keys)
    model = AutoModelForCausalLM.from_config(config).to(dtype)
    model.save_pretrained(folder.at("hf"))
    return model, load_file(folder.at("hf", "model.safetensors"))


def rewritten(folder, tensors, **keys):
    save_file(tensors, folder.at("hf", "model.safetensors"), metadata={"format": "pt"})
    with open(folder.at("hf", "config.json"), encoding="utf-8") as f:
        config = {**json.load(f), **keys}
    with open(folder.at("hf", "config.json"), "w", encoding="utf-8") as f:
        json.dump({key: value for key, value in config.items() if value is not None}, f)


def exported(folder, *options, changes=None, ranks=2):
    """Trains at a learning rate of 0, and reads the export."""
    run = folder.train({"model": {"config": None, "pretrained": folder.at("hf")}, "zero_optimization": {"stage": 3}, **STILL,
                        **(changes or {})}, ranks=ranks)
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("out"), *options)
    return run, read_safetensors(folder.at("out", "model.safetensors"))


def packed(values):
    return values.contiguous().flatten().view(torch.uint8).numpy().tobytes()


@pytest.fixture(name="quantized")
def mxfp4_folder(folder):
    """As the Hub's: no dtype in the config, every code, and exponents of many sizes."""
    _, tensors = saved(folder, "gpt_oss", torch.bfloat16, hidden_size=64, intermediate_size=96)
    draw = torch.Generator().manual_seed(1)
    for name in [name for name in tensors if name.endswith("_proj") and ".experts." in name]:
        count, rows, columns = tensors.pop(name).shape  # (in, out): the codes are (out, in)
        tensors[f"{name}_blocks"] = torch.randint(256, (count, columns, rows // 32, 16), generator=draw, dtype=torch.uint8)
        tensors[f"{name}_scales"] = torch.randint(110, 126, (count, columns, rows // 32), generator=draw, dtype=torch.uint8)
    rewritten(folder, tensors, quantization_config=MXFP4, dtype=None)
    return tensors


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("changes", [{}, {"peft": {"r": 2, "target_modules": ["q_proj"]}}], ids=["full", "lora"])
def test_mxfp4_is_decoded_as_transformers_does(folder, quantized, dtype, changes):
    settings = transformers.Mxfp4Config(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(folder.at("hf"), dtype=torch.bfloat16, quantization_config=settings)
    _, tensors = exported(folder, "--dtype", dtype, *(["--merge"] if changes else []), changes=changes)
    want = {name: values.float() if dtype == "fp32" else values for name, values in model.state_dict().items()}
    assert set(tensors) == set(want) and len(quantized) > len(want)
    for name, values in want.items():
        ours = torch.frombuffer(bytearray(tensors[name][2]), dtype=values.dtype).reshape(tensors[name][1])
        assert torch.equal(ours, values), name
        assert not changes or packed(ours) == packed(values), name  # a step adds 0 to -0
    with open(folder.at("out", "config.json"), encoding="utf-8") as f:
        assert "quantization_config" not in json.load(f)
    AutoModelForCausalLM.from_pretrained(folder.at("out"))


def test_damaged_mxfp4(folder, quantized):
    name = "model.layers.1.mlp.experts.down_proj"
    spec = {"model": {"config": None, "pretrained": folder.at("hf")}, **STILL}
    rewritten(folder, {**quantized, f"{name}_scales": torch.full_like(quantized[f"{name}_scales"], 255)})
    assert f"tensor '{name}' has a NaN or an infinity" in folder.train(spec, expect=DATA).err
    rewritten(folder, {key: values for key, values in quantized.items() if key != f"{name}_scales"})
    assert f"'{name}': a tensor of the quantized matrix is missing (_scales)" in folder.train(spec, expect=DATA).err


@pytest.mark.parametrize("family", ["qwen2_moe", "granitemoe"])
def test_bitsandbytes_leaves_experts_alone(folder, family):
    """Its folder and the unquantized one are the same base."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}
    saved(folder, family, torch.bfloat16, **sizes)
    settings = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    four = AutoModelForCausalLM.from_pretrained(folder.at("hf"), quantization_config=settings, device_map="cpu")
    four.save_pretrained(folder.at("four"))
    quantized = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    targets = {"peft": {"target_modules": ["q_proj", "v_proj"]}}
    assert trained(folder, "four", targets) == trained(folder, "hf", {**targets, "model": {"quantization_config": quantized}})


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen2_moe", "mixtral", "olmoe", "granitemoe", "glm4_moe"])
def test_names_of_memory_are_read(folder, family):
    """transformers' from_pretrained() takes either; what is exported has the names that it saves."""
    model, tensors = saved(folder, family)
    memory = {name: values.contiguous() for name, values in model.state_dict().items()}
    assert set(memory) != set(tensors)
    rewritten(folder, memory)
    _, ours = exported(folder, "--dtype", "fp32")
    assert {name: parts[2] for name, parts in ours.items()} == {name: packed(values) for name, values in tensors.items()}
    shape = dict(memory)
    shape.update({name: values[:, :-1].contiguous() for name, values in memory.items() if name.endswith("experts.down_proj")})
    rewritten(folder, shape)
    spec = {"model": {"config": None, "pretrained": folder.at("hf")}, **STILL}
    assert "but config.json asks for" in folder.train(spec, "other", expect=DATA).err


def test_a_layer_for_further_tokens_is_left_out(folder):
    """As in GLM-4.5's folders, whose routers transformers keeps in fp32."""
    _, tensors = saved(folder, "glm4_moe", torch.bfloat16)
    further = {name.replace("layers.2.", "layers.3."): values.clone() for name, values in tensors.items() if ".layers.2." in name}
    further.update({"model.layers.3.eh_proj.weight": torch.zeros(32, 64), "model.layers.3.shared_head.norm.weight": torch.ones(32)})
    rewritten(folder, {**tensors, **further}, num_nextn_predict_layers=1)
    run, ours = exported(folder, "--dtype", "bf16")
    assert f"left out the layer for further tokens in '{folder.at('hf')}': {len(further)} tensors" in run.out
    want = {name: values.float() if ".gate." in name else values for name, values in tensors.items()}
    assert ours == {name: ({torch.float32: "F32", torch.bfloat16: "BF16"}[values.dtype], list(values.shape), packed(values))
                    for name, values in want.items()}

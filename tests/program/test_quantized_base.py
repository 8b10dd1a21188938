# SPDX-License-Identifier: Apache-2.0
"""An adapter on a base that is kept in 4 or 8 bits, or in another type: the bits are those of a run on a folder with the values that
the codes stand for. tests/unit compares codes and values with bitsandbytes and transformers."""
import json
import math
import os
import random
import shutil
import struct

import pytest

from harness import CHECKPOINT, DATA, GPT2, LLAMA, USAGE, merged, plan_bytes, read_safetensors
from virtual_case import DTYPES, numbers_of

MODEL = {**LLAMA, "intermediate_size": 64}
PEFT = {"r": 4, "target_modules": "all-linear", "modules_to_save": ["layers.1.input_layernorm"]}
QLORA = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
       -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
       0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
WEIGHTS = "model.safetensors"


# ---- folders -----------------------------------------------------------------------------------------------------------

def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bf16(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return struct.unpack("<f", struct.pack("<I", (bits + 0x7fff + (bits >> 16 & 1)) >> 16 << 16))[0]


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def write_tensors(folder, tensors, config):
    """{name: (dtype, shape, bytes)}"""
    os.makedirs(folder, exist_ok=True)
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, WEIGHTS), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    return folder


def base_of(folder, config=MODEL, name="base"):
    """A folder with random weights in fp32."""
    if not os.path.exists(folder.at(name)):
        folder.train({"model": {"config": config}, "train": {"epochs": None, "max_steps": 1}}, "made")
        folder.ztrain("export", folder.run_folder("made"), "--out", folder.at(name), "--dtype", "fp32")
        shutil.rmtree(folder.run_folder("made"))
    return folder.at(name)


def is_linear(name):
    return "_proj.weight" in name


def with_values(folder, name, change):
    """The base with change(tensor's name, floats) in place of each tensor."""
    with open(os.path.join(base_of(folder), "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    tensors = {}
    for tensor, (dtype, shape, data) in read_safetensors(os.path.join(base_of(folder), WEIGHTS)).items():
        values = change(tensor, list(struct.unpack(f"<{len(data) // 4}f", data)))
        tensors[tensor] = (dtype, shape, floats(values))
    return write_tensors(folder.at(name), tensors, config)


def nf4_values(values):
    """Through NF4 and back."""
    middles, out = [f32(f32(a + b) / 2) for a, b in zip(NF4, NF4[1:])], []
    for at in range(0, len(values), 64):
        block = values[at:at + 64]
        scale = max(map(abs, block))
        whole = len(block) == 64
        for x in block:
            scaled = f32(x * f32(1 / scale)) if whole else f32(x / scale)
            out.append(f32(NF4[sum(scaled > middle for middle in middles)] * scale))
    return out


def stored(method, draw, shape):
    """Random codes and scales of a matrix: ({ending: tensor}, values)."""
    rows, cols = shape
    count = rows * cols
    if method == "fp8":
        codes = [draw.randrange(127) + 128 * draw.randrange(2) for _ in range(count)]
        across, down = math.ceil(cols / 128), math.ceil(rows / 128)
        scales = [f32(draw.uniform(0.0005, 0.001)) for _ in range(across * down)]
        sizes = [(code & 7) * 2.0 ** -9 if code & 127 < 8 else (8 + (code & 7)) * 2.0 ** ((code >> 3 & 15) - 10) for code in codes]
        values = [f32((-size if code & 128 else size) * scales[i // cols // 128 * across + i % cols // 128])
                  for i, (code, size) in enumerate(zip(codes, sizes))]
        return {"": ("F8_E4M3", shape, bytes(codes)), "_scale_inv": ("F32", [down, across], floats(scales))}, values
    codes = [draw.randrange(16) for _ in range(count)]
    if method == "mxfp4":
        packed = bytes(low | high << 4 for low, high in zip(codes[::2], codes[1::2]))
        exponents = [draw.randrange(120, 126) for _ in range(count // 32)]
        values = [FP4[code] * 2.0 ** (exponents[i // 32] - 127) for i, code in enumerate(codes)]
        return {"_blocks": ("U8", [rows, cols // 32, 16], packed), "_scales": ("U8", [rows, cols // 32], bytes(exponents))}, values
    packed = bytes(high << 4 | low for high, low in zip(codes[::2], codes[1::2]))
    blocks = math.ceil(count / 64)
    numbers = [draw.randrange(256) for _ in range(blocks)]
    spread = [f32(draw.uniform(0.02, 0.04)) for _ in range(math.ceil(blocks / 256))]
    places = sorted(f32(draw.uniform(-1, 1)) for _ in range(256))
    offset = f32(0.1)
    scales = [f32(f32(places[number] * spread[i // 256]) + offset) for i, number in enumerate(numbers)]
    state = json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": shape, "nested_blocksize": 256,
                        "nested_dtype": "float32", "nested_offset": offset}).encode()
    parts = {"": ("U8", [count // 2, 1], packed), ".absmax": ("U8", [blocks], bytes(numbers)), ".quant_map": ("F32", [16], floats(NF4)),
             ".nested_absmax": ("F32", [len(spread)], floats(spread)), ".nested_quant_map": ("F32", [256], floats(places)),
             ".quant_state.bitsandbytes__nf4": ("U8", [len(state)], state)}
    return parts, [bf16(f32(NF4[code] * scales[i // 64])) for i, code in enumerate(codes)]


CONFIGS = {"nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
                   "bnb_4bit_use_double_quant": True, "llm_int8_skip_modules": ["lm_head"]},
           "fp8": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
           "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}


def quantized_pair(folder, method):
    """A folder whose matrices have random codes, and one with their values."""
    draw, quantized, values = random.Random(7), {}, {}
    for name, tensor in read_safetensors(os.path.join(base_of(folder), WEIGHTS)).items():
        values[name] = quantized[name] = tensor
        if is_linear(name):
            parts, numbers = stored(method, draw, tensor[1])
            del quantized[name]
            quantized.update({name + ending: part for ending, part in parts.items()})
            values[name] = ("F32", tensor[1], floats(numbers))
    with open(os.path.join(base_of(folder), "config.json"), encoding="utf-8") as f:
        config = {**json.load(f), "dtype": "bfloat16"}
    config.pop("torch_dtype", None)
    return (write_tensors(folder.at("quantized"), quantized, {**config, "quantization_config": CONFIGS[method]}),
            write_tensors(folder.at("values"), values, config))


def lora(pretrained, changes=None):
    spec = {"model": {"config": None, "pretrained": pretrained}, "peft": PEFT, "train": {"epochs": None, "max_steps": 3},
            "gradient_accumulation_steps": 1, "optimizer": {"params": {"lr": 0.02}}}
    return merged(spec, changes or {})


def result(folder, changes, name, **more):
    folder.train(changes, name, **more)
    return result_of(folder, name)


def result_of(folder, name):
    out = folder.at(f"export-{name}")
    folder.ztrain("export", folder.run_folder(name), "--out", out)
    with open(os.path.join(out, "adapter_model.safetensors"), "rb") as f:
        return numbers_of(folder, name), f.read()


PLACES = {"stage0": (1, {"stage": 0}, "none"), "stage1": (2, {"stage": 1}, "block"), "stage2": (3, {"stage": 2}, "none"),
          "stage3": (2, {"stage": 3}, "block"),
          "offloaded": (3, {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}, "attention")}


def placed(place, dtype):
    return {"zero_optimization": place[1], "activation_checkpointing": {"policy": place[2]}, **DTYPES[dtype]}


# ---- the same bits -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_quantizing_at_load_has_the_bits_of_the_values(folder, dtype, place):
    values = with_values(folder, "values", lambda name, x: nf4_values(x) if is_linear(name) else x)
    changes = placed(place, dtype)
    expected = result(folder, lora(values, changes), "values", ranks=place[0])
    assert expected == result(folder, lora(base_of(folder), {**changes, "model": {"quantization_config": QLORA}}), "run", ranks=place[0])
    assert expected != result(folder, lora(base_of(folder), changes), "other", ranks=place[0])


@pytest.mark.parametrize("method", CONFIGS)
@pytest.mark.parametrize("place, dtype", [("stage0", "fp32"), ("stage3", "bf16"), ("offloaded", "fp32")])
def test_a_quantized_folder_has_the_bits_of_its_values(folder, method, place, dtype):
    ranks = PLACES[place][0]
    quantized, values = quantized_pair(folder, method)
    changes = placed(PLACES[place], dtype)
    assert result(folder, lora(quantized, changes), "run", ranks=ranks) == result(folder, lora(values, changes), "values", ranks=ranks)


@pytest.mark.parametrize("dtype, size", [("BF16", 2), ("F32", 4)])
def test_codes_of_another_dtype_are_the_same_bytes(folder, dtype, size):
    """As bitsandbytes saves them with bnb_4bit_quant_storage."""
    quantized, _ = quantized_pair(folder, "nf4")
    other = spoil(folder, "other", lambda tensors: tensors.update(
        {name: (dtype, [shape[0] // size, 1], data) for name, (_, shape, data) in tensors.items() if is_linear(name) and name.endswith("weight")}))
    assert result(folder, lora(quantized), "run") == result(folder, lora(other), "other")


@pytest.mark.parametrize("place", ["stage1", "stage3"])
def test_a_base_in_another_type(folder, place):
    values = with_values(folder, "values", lambda name, x: [bf16(v) for v in x] if "layers.1.input_layernorm" not in name else x)
    changes, ranks = placed(PLACES[place], "fp32"), PLACES[place][0]
    expected = result(folder, lora(values, changes), "values", ranks=ranks)
    assert expected == result(folder, lora(base_of(folder), {**changes, "peft": {"base_dtype": "bf16"}}), "run", ranks=ranks)


def test_a_base_of_initial_values(folder):
    changes = {"model": {"pretrained": None, "config": MODEL, "quantization_config": {**QLORA, "bnb_4bit_use_double_quant": True}}}
    found = [result(folder, lora(None, {**changes, "zero_optimization": {"stage": stage}}), f"run-{stage}", ranks=2) for stage in (0, 3)]
    assert found[0] == found[1]


def test_a_resumed_run_has_the_same_bits(folder):
    changes = lora(base_of(folder), {"model": {"quantization_config": {**QLORA, "bnb_4bit_use_double_quant": True}},
                                     "zero_optimization": {"stage": 3}})
    whole = result(folder, changes, "whole", ranks=2)
    folder.train(changes, "cut", ranks=2, sets=["train.max_steps=2"])
    folder.train(changes, "cut", ranks=2, more=["--resume", folder.run_folder("cut")])
    assert whole[1] == result_of(folder, "cut")[1]


def test_a_resume_on_another_base_is_refused(folder):
    changes = {"model": {"quantization_config": QLORA}}
    folder.train(lora(base_of(folder), changes), sets=["train.max_steps=2"])
    other = with_values(folder, "other", lambda name, x: [-v for v in x] if "layers.1.self_attn.q_proj" in name else x)
    os.rename(folder.at("base"), folder.at("kept"))
    os.rename(other, folder.at("base"))
    done = folder.train(lora(folder.at("base"), changes), ranks=2, more=["--resume", folder.run_folder()], expect=CHECKPOINT)
    assert "was trained on another base" in done.final_error, done
    shutil.rmtree(folder.at("base"))
    os.rename(folder.at("kept"), folder.at("base"))
    folder.train(lora(folder.at("base"), changes), ranks=3, more=["--resume", folder.run_folder()])


def test_the_plan_has_the_bytes(folder):
    """4 bits and a scale for 64 of them, instead of 4 bytes; one decoded block comes on top."""
    def parameters(changes):
        spec = folder.spec(lora(base_of(folder), changes))
        return plan_bytes(folder.ztrain("plan", "--bytes", "--config", spec).out)["device"]["parameters"]
    linear, blocks = 3 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32), 3
    saved = parameters({}) - parameters({"model": {"quantization_config": QLORA}})
    assert abs(saved - linear * (4 - 4 / blocks - 0.5 - 1 / 16)) < 4096


def test_skipped_names_without_a_module_are_said(folder):
    skip = {**QLORA, "llm_int8_skip_modules": ["lm_head", "model.layers.1", "q_proj", "qproj"]}
    done = folder.train(lora(base_of(folder), {"model": {"quantization_config": skip}}), ranks=2)
    assert done.out.count("matches no module") == 1
    assert "'llm_int8_skip_modules': 'qproj' matches no module of this llama model, and has no effect" in done.out
    tied = base_of(folder, {**MODEL, "tie_word_embeddings": True}, "tied")
    done = folder.train(lora(tied, {"model": {"quantization_config": {**QLORA, "llm_int8_skip_modules": ["lm_head"]}}}), "tied")
    assert "matches no module" not in done.out


# ---- errors ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("changes, code, words", [
    ({"peft": None}, USAGE, "weights in 4 bits cannot be trained; hint: peft"),
    ({"model": {"quantization_config": {"bnb_4bit_quant_type": "fp4"}}}, USAGE, "4 bits are NF4; hint: nf4"),
    ({"model": {"quantization_config": {"load_in_8bit": True}}}, USAGE, "there is no LLM.int8()"),
    ({"model": {"quantization_config": {"bnb_4bit_compute_dtype": "float16"}}}, USAGE,
     "bnb_4bit_compute_dtype is fp16, and the run computes in fp32"),
    ({"model": {"pretrained": None, "config": GPT2}}, USAGE, "the matrices of gpt2 are (in, out), and are not quantized"),
], ids=["peft", "fp4", "8bit", "dtype", "gpt2"])
def test_what_is_refused(folder, changes, code, words):
    spec = lora(base_of(folder), {"model": {"quantization_config": QLORA}})
    assert words in folder.train(merged(spec, changes), expect=code).err


def spoil(folder, name, change):
    """The quantized folder with change(tensors) done to its tensors."""
    tensors = read_safetensors(os.path.join(folder.at("quantized"), WEIGHTS))
    change(tensors)
    with open(os.path.join(folder.at("quantized"), "config.json"), encoding="utf-8") as f:
        return write_tensors(folder.at(name), tensors, json.load(f))


MATRIX = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize("method, change, words", [
    ("nf4", lambda t: t.pop(MATRIX + ".absmax"), f"'{MATRIX}': a tensor of the quantized matrix is missing (.absmax)"),
    ("nf4", lambda t: t.pop(MATRIX), f"tensor '{MATRIX}' is missing"),
    ("nf4", lambda t: t.update({MATRIX: ("U8", [8, 1], bytes(8))}), "another size than its shape asks for (codes)"),
    ("nf4", lambda t: t.update({MATRIX + ".quant_map": ("F32", [16], floats(range(16)))}), "are not those of nf4 (.quant_map)"),
    ("nf4", lambda t: t.update({MATRIX + ".quant_state.bitsandbytes__nf4": ("U8", [2], b"{}")}), "blocks of 64 weights"),
    ("nf4", lambda t: t.update({MATRIX + ".nested_absmax": ("F32", [1], floats([math.nan]))}), f"tensor '{MATRIX}' has a NaN or an infinity"),
    ("fp8", lambda t: t.update({MATRIX: ("F8_E4M3", [32, 32], b"\x7f" * 1024)}), f"tensor '{MATRIX}' has a NaN or an infinity"),
    ("fp8", lambda t: t.update({MATRIX: ("F32", [32, 32], bytes(4096))}), f"tensor '{MATRIX}' is not quantized"),
    ("mxfp4", lambda t: t.pop(MATRIX + "_scales"), f"'{MATRIX}': a tensor of the quantized matrix is missing (_scales)"),
], ids=["scales", "codes", "size", "map", "state", "nan", "fp8-nan", "plain", "exponents"])
def test_damaged_folders(folder, method, change, words):
    quantized_pair(folder, method)
    assert words in folder.train(lora(spoil(folder, "spoilt", change)), expect=DATA).err


@pytest.mark.parametrize("stage, ranks", [(0, 1), (3, 2)])
def test_experts_in_fp8(folder, stage, ranks):
    """A router is not quantized, whether the config lists it or not."""
    base_of(folder, {**MODEL, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4,
                     "num_experts_per_tok": 2, "moe_intermediate_size": 32})
    changes = {"zero_optimization": {"stage": stage}, "peft": {"target_modules": ["q_proj", "v_proj"]}}
    losses = []
    for pretrained in quantized_pair(folder, "fp8"):
        folder.train(lora(pretrained, changes), "run", ranks=ranks)
        losses.append(folder.metrics().losses)
        shutil.rmtree(folder.run_folder("run"))
    assert losses[0] == losses[1] and len(losses[0]) == 3


@pytest.mark.parametrize("model, words", [
    ({**MODEL, "intermediate_size": 63}, "has 63 columns; in 4 bits they are a multiple of 2"),
    (GPT2, "the matrices of gpt2 are (in, out), and are not quantized"),
], ids=["columns", "gpt2"])
def test_matrices_that_are_not_read(folder, model, words):
    base_of(folder, model)
    quantized, _ = quantized_pair(folder, "nf4")
    assert words in folder.ztrain("sample", quantized, "--prompt-tokens", "1", expect=USAGE).err


def test_configs_that_are_not_read(folder):
    quantized_pair(folder, "nf4")
    for quantization, words in (({"quant_method": "gptq"}, "quant_method 'gptq' is not read"),
                                ({**CONFIGS["nf4"], "bnb_4bit_quant_type": "fp4"}, "bnb_4bit_quant_type 'fp4' is not read"),
                                ({**CONFIGS["nf4"], "load_in_4bit": False}, "bitsandbytes in 8 bits is not read"),
                                ({**CONFIGS["fp8"], "weight_block_size": [64, 64]}, "weight_block_size [64,64] is not read"),
                                ({**CONFIGS["fp8"], "fmt": "e5m2"}, "fmt 'e5m2' is not read")):
        with open(folder.at("quantized", "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        with open(folder.at("quantized", "config.json"), "w", encoding="utf-8") as f:
            json.dump({**config, "quantization_config": quantization}, f)
        assert words in folder.train(lora(folder.at("quantized")), expect=USAGE).err


# ---- what is read again ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("method", [*CONFIGS, "load", "base_dtype", "initial"])
def test_merging_and_sampling_use_the_values(folder, method):
    """As of a run on the values, in every byte; the merged folder is not quantized."""
    if method in CONFIGS:
        first, second = quantized_pair(folder, method)
        changes = {}
    else:
        first = base_of(folder)
        change = {"load": lambda name, x: nf4_values(x) if is_linear(name) else x}.get(method, lambda name, x: x)
        second = with_values(folder, "values", change)
        changes = {"load": {"model": {"quantization_config": QLORA}}, "base_dtype": {"peft": {"base_dtype": "fp16"}},
                   "initial": {"model": {"pretrained": None, "config": MODEL, "quantization_config": QLORA}}}[method]
    folder.train(lora(first, changes))
    if method in CONFIGS or method == "load":
        folder.train(lora(second), "values")
    merged_files = []
    for name in ("run", "values") if method in CONFIGS or method == "load" else ("run",):
        folder.ztrain("export", folder.run_folder(name), "--merge", "--dtype", "fp32", "--out", folder.at(f"merged-{name}"))
        merged_files.append(read_safetensors(folder.at(f"merged-{name}", WEIGHTS)))
        said = folder.ztrain("sample", folder.run_folder(name), "--prompt-tokens", "1,2,3", "--max-tokens", "8").out
        again = folder.ztrain("sample", folder.at(f"merged-{name}"), "--prompt-tokens", "1,2,3", "--max-tokens", "8").out
        assert said == again
        with open(folder.at(f"merged-{name}", "config.json"), encoding="utf-8") as f:
            assert "quantization_config" not in json.load(f)
    assert all(other == merged_files[0] for other in merged_files)

# SPDX-License-Identifier: Apache-2.0
"""Families of models, end to end: an import and an export without training in between changes no byte of a tensor; what is
not supported is refused by name."""
import json
import os
import re
import shutil
import struct

import pytest

from harness import DATA, ROOT, USAGE, write_safetensors

GOLDEN = os.path.join(ROOT, "tests", "golden")
FAMILIES = ["qwen3-yarn", "phi3", "granite", "smollm3", "olmo2", "gemma2", "gemma3", "olmo3", "glm", "glm4", "ministral3", "gptj",
            "gpt-neox", "phi", "cohere", "cohere2", "starcoder2", "exaone4", "seed-oss",
            "qwen3.5", "gemma4", "gemma4-kv", "phi3-longrope", "dynamic-rope",
            "qwen3-moe", "qwen2-moe", "mixtral", "olmoe", "granitemoe", "gpt-oss", "glm4-moe"]


def tensors_of(folder):
    """{name: (dtype, shape, bytes)} of a folder's model.safetensors."""
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        raw = f.read()
    (size,) = struct.unpack_from("<Q", raw)
    header, start = json.loads(raw[8:8 + size]), 8 + size
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], raw[start + entry["data_offsets"][0]:start + entry["data_offsets"][1]])
            for name, entry in header.items()}


def bf16(raw):
    return [struct.unpack("<f", b"\0\0" + raw[i:i + 2])[0] for i in range(0, len(raw), 2)]


@pytest.mark.parametrize("case", FAMILIES)
def test_a_round_trip_without_training_keeps_every_byte(folder, case):
    """The rate is so small that no weight changes, not even one that is 0."""
    place = os.path.join(GOLDEN, case)
    folder.train({"model": {"config": None, "pretrained": place}, "train": {"max_steps": 1},
                  "data": {"train": f"{place}/train", "validation": None, "seq_length": 8},
                  "optimizer": {"params": {"lr": 1e-50, "weight_decay": 0.0}}, "zero_optimization": {"stage": 3}}, ranks=2)
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("hf"), "--dtype", "bf16")
    assert tensors_of(folder.at("hf")) == tensors_of(place)
    with open(os.path.join(place, "config.json"), encoding="utf-8") as f:
        before = json.load(f)
    with open(folder.at("hf", "config.json"), encoding="utf-8") as f:
        after = json.load(f)
    assert {key: after[key] for key in before} == before and set(after) - set(before) <= {"dtype"}


def plan_of(folder, model, *options):
    spec = folder.spec({"model": {"config": model}, "data": {"seq_length": 2048}, "bf16": {"enabled": True},
                        "train_batch_size": 1, "zero_optimization": {"stage": 3}}, "plan")
    return folder.ztrain("plan", *options, "--config", spec).out


def milliseconds(out, kind):
    """A row of plan --speed: at the ceiling, expected."""
    return [float(x) for x in re.search(rf"^  {kind} +([\d.]+) +([\d.]+) ", out, re.M).groups()]


# transformers' defaults, which are those of a published model: its number of parameters; its layers, heads and their size
DEFAULTS = {"gemma2": (2614341888, 26, 8, 256), "gemma3_text": (2628658432, 26, 8, 256)}


@pytest.mark.parametrize("family", DEFAULTS)
def test_plans_of_the_published_size(folder, family):
    """Parameters, and FLOPs of attention counted by hand: 4 for each pair of tokens and column, 80 % of 989 TFLOP/s."""
    parameters, layers, heads, size = DEFAULTS[family]
    assert f"{parameters} parameters" in plan_of(folder, {"model_type": family})
    ceiling, expected = milliseconds(plan_of(folder, {"model_type": family}, "--speed"), "attention forward")
    flops = layers * 4 * (2048 * 2049 / 2) * heads * size
    assert ceiling == pytest.approx(flops / (0.8 * 989.4e12) * 1e3, rel=2e-3)
    assert expected > ceiling


@pytest.mark.parametrize("gpu, own", [("h100", False), ("a100", True)])
def test_a_soft_cap_is_planned_at_the_speed_of_what_computes_it(folder, gpu, own):
    model = {"model_type": "gemma2", "head_dim": 128}
    capped = plan_of(folder, model, "--speed", "--device", gpu)
    free = plan_of(folder, {**model, "attn_logit_softcapping": None}, "--speed", "--device", gpu)
    by_cudnn = "\nattention: forward by cuDNN, backward by cuDNN\n"
    by_own = "\nattention: forward by cuDNN, backward by ztrain's kernels: cuDNN has no plan of it on this GPU\n"
    assert (by_own if own else by_cudnn) in capped and by_cudnn in free
    price = r"^ztrain's kernels for attention: a step takes about \d+ % longer than with cuDNN's$"
    assert bool(re.search(price, capped, re.M)) == own and not re.search(price, free, re.M)
    assert milliseconds(capped, "attention forward") == milliseconds(free, "attention forward")


def test_windows_that_differ_by_layer_are_planned_apart(folder):
    out = plan_of(folder, {"model_type": "gemma3_text", "sliding_window": 512}, "--speed")
    assert "\nattention of 22 layers (heads of 256, window 512): forward by cuDNN, backward by cuDNN\n" in out
    assert "\nattention of 4 layers (heads of 256, no window): forward by cuDNN, backward by cuDNN\n" in out


def test_a_lora_folder_is_refused_by_name(folder):
    os.mkdir(folder.at("adapter"))
    with open(folder.at("adapter", "adapter_config.json"), "w", encoding="utf-8") as f:
        json.dump({"peft_type": "LORA"}, f)
    done = folder.train({"model": {"config": None, "pretrained": folder.at("adapter")}}, expect=USAGE)
    assert "holds a LoRA adapter (adapter_config.json), not a model; hint: model.adapter takes it" in done.err


def test_an_adapter_beside_a_whole_model_is_refused(folder):
    place = os.path.join(GOLDEN, "llama")
    shutil.copytree(place, folder.at("both"))
    with open(folder.at("both", "adapter_config.json"), "w", encoding="utf-8") as f:
        json.dump({"peft_type": "LORA", "base_model_name_or_path": "base"}, f)
    changes = {"model": {"config": None, "pretrained": folder.at("both")}, "data": {"seq_length": 8}}
    done = folder.train(changes, more=["--dry-run"], expect=DATA)
    assert "holds a model and a LoRA adapter (adapter_config.json)" in done.final_error and "hint: model.adapter" in done.final_error


def test_other_names_and_extra_tensors(folder):
    """Names without the prefix give the same run; tensors that the model does not have are named, or left out by name."""
    place = os.path.join(GOLDEN, "llama")
    with open(os.path.join(place, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    tensors = {name: (shape, struct.unpack(f"<{len(raw) // 4}f", raw) if dtype == "F32" else bf16(raw))
               for name, (dtype, shape, raw) in tensors_of(place).items()}
    flat = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    extra = {**tensors, "v_head.summary.weight": ([2], [1.0, 2.0]), "model.layers.0.self_attn.k_scale": ([1], [1.0])}
    changes = {"data": {"train": f"{place}/train", "validation": None, "seq_length": 8}, "train": {"max_steps": 1, "epochs": None}}
    ignore = ["v_head.*", "*.k_scale", "nothing.*"]
    for name, content, ignored in (("whole", tensors, None), ("flat", flat, None), ("extra", extra, ignore)):
        os.mkdir(folder.at(name))
        write_safetensors(folder.at(name, "model.safetensors"), content)
        with open(folder.at(name, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        model = {"config": None, "pretrained": folder.at(name), **({"ignore_tensors": ignored} if ignored else {})}
        if ignored:
            done = folder.train({**changes, "model": {**model, "ignore_tensors": None}}, name=name, expect=DATA)
            assert "tensor 'v_head.summary.weight' is not part of this model (the first of 2)" in done.final_error
            assert "model.ignore_tensors: ['v_head.summary.*']" in done.final_error
        done = folder.train({**changes, "model": model}, name=name, ranks=2 if ignored else 1)
        assert (f"leaves out 2 tensors of '{folder.at(name)}': v_head.summary.weight, model.layers.0.self_attn.k_scale"
                in done.out) == bool(ignored)
        assert folder.metrics(name).losses == pytest.approx(folder.metrics("whole").losses, rel=1e-6)


def test_an_adapter_beside_a_config_has_no_weights(folder):
    shutil.copytree(os.path.join(GOLDEN, "phi3"), folder.at("adapter"))
    os.rename(folder.at("adapter", "model.safetensors"), folder.at("adapter", "adapter_model.safetensors"))
    done = folder.train({"model": {"config": None, "pretrained": folder.at("adapter")}}, expect=DATA)
    assert "no weights" in done.err and "LoRA adapter" in done.err


@pytest.mark.parametrize("model_type, kind", [("llama4", "a mixture of experts (MoE)"), ("deepseek_v3", "a model with multi-head latent attention (MLA)"), ("mllama", "a multimodal model")])
def test_kinds_of_models_are_refused_by_name(folder, model_type, kind):
    done = folder.train({"model": {"config": {"model_type": model_type}}}, expect=USAGE)
    assert f"model_type '{model_type}' is {kind}, which is not supported" in done.err


def test_an_unknown_model_type_gets_the_list(folder):
    done = folder.train({"model": {"config": {"model_type": "mamba"}}}, expect=USAGE)
    assert "'mamba' is not supported; hint: gpt2, llama, mistral, qwen2, qwen3, phi3, granite" in done.err


PAD = os.path.join(GOLDEN, "llama-pad")  # whose data have token 53, the config's pad_token_id


def pad_row(folder, name):
    folder.ztrain("export", folder.run_folder(name), "--out", folder.at(f"hf-{name}"), "--dtype", "bf16")
    kind, (_, width), raw = tensors_of(folder.at(f"hf-{name}"))["model.embed_tokens.weight"]
    assert kind == "BF16"
    return raw[53 * width * 2:54 * width * 2]


def test_the_embedding_of_the_padding_token(folder):
    """It is trained on request only, and a resumed run goes on as it began."""
    def train(name, more=(), **changes):
        return folder.train({"model": {"config": None, "pretrained": PAD, **changes}, "train": {"max_steps": 4},
                             "data": {"train": f"{PAD}/train", "validation": None, "seq_length": 16},
                             "optimizer": {"params": {"lr": 1e-2, "weight_decay": 0.0}}, "checkpoint": {"interval_steps": 2}},
                            name, more=more).out

    assert "pad_token_id 53: its embedding gets no gradient from the input" in train("usual")
    assert "pad_token_id 53: its embedding is trained like the others" in train("trained", train_pad_token=True)
    first = pad_row(folder, "usual")
    assert first == tensors_of(PAD)["model.embed_tokens.weight"][2][53 * 48:54 * 48] != pad_row(folder, "trained")
    assert folder.metrics("usual").numbers() != folder.metrics("trained").numbers()
    whole = folder.metrics("trained").numbers()
    resumed = train("trained", more=["--resume", folder.at("runs", "trained", "checkpoints", "step-00000002")])
    assert "is trained like the others" in resumed and folder.metrics("trained").numbers() == whole
    back = folder.ztrain("--config", os.path.join(folder.run_folder("usual"), "run.yaml"), "--set", "model.train_pad_token=true", "--resume",
                         folder.run_folder("usual"), expect=USAGE)
    assert "'model.train_pad_token' was false in the checkpoint and is true now" in back.err


@pytest.mark.parametrize("case, what", [("phi3-longrope", "long_factor"), ("dynamic-rope", "dynamic NTK's base for this length")])
def test_rope_that_depends_on_the_length(folder, case, what):
    """The start says what applies beyond the original length, for the whole run."""
    place = os.path.join(GOLDEN, case)
    for length in (16, 20):
        out = folder.train({"model": {"config": None, "pretrained": place}, "train": {"max_steps": 1},
                            "data": {"train": f"{place}/train", "validation": None, "seq_length": length}}, f"at-{length}").out
        said = f"model: data.seq_length {length} is beyond the original 16 positions: RoPE has {what}"
        assert (said in out) == (length > 16)
    done = folder.ztrain("sample", place, "--prompt-tokens", ",".join(map(str, range(18))), "--max-tokens", "3")
    assert len(done.out.split(",")) == 3


def test_only_dynamic_rope_goes_beyond_the_models_positions(folder):
    place = os.path.join(GOLDEN, "phi3-longrope")
    done = folder.train({"model": {"config": None, "pretrained": place},
                         "data": {"train": f"{place}/train", "validation": None, "seq_length": 33}}, expect=USAGE)
    assert "data.seq_length 33 is longer than the model's 32 positions" in done.final_error


SKIPPED = {"gpt-neox": ["gpt_neox.layers.0.attention.bias", "gpt_neox.layers.1.attention.masked_bias"],
           "gptj": ["transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"], "qwen3.5": ["mtp.fc.weight"],
           "gemma4": ["model.layers.3.self_attn.k_proj.weight", "model.layers.6.self_attn.v_norm.weight"]}


@pytest.mark.parametrize("case", SKIPPED)
def test_tensors_that_transformers_skips_are_skipped(folder, case):
    """Masks as tensors, in old files; the layers for further tokens; GPT-NeoX's head under the module's name; keys of
    layers that read those of others. A layer's scalar that is not there is 1."""
    source = os.path.join(GOLDEN, case)
    shutil.copytree(source, folder.at("hf"))
    tensors = tensors_of(source)
    header, blob = {}, b""
    for name, (dtype, shape, raw) in {**tensors, **{name: ("F32", [1], bytes(4)) for name in SKIPPED[case]}}.items():
        if name.endswith("layer_scalar") and raw == b"\x80?":
            continue
        header[name.replace("embed_out", "lm_head")] = {"dtype": dtype, "shape": shape, "data_offsets": [len(blob), len(blob) + len(raw)]}
        blob += raw
    text = json.dumps(header).encode()
    with open(folder.at("hf", "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + blob)
    folder.train({"model": {"config": None, "pretrained": folder.at("hf")}, "train": {"max_steps": 1},
                  "data": {"train": f"{source}/train", "validation": None, "seq_length": 16},
                  "optimizer": {"params": {"lr": 1e-20, "weight_decay": 0.0}}})
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("out"), "--dtype", "bf16")
    assert tensors_of(folder.at("out")) == tensors


@pytest.mark.parametrize("case", ["gpt-neox", "gptj", "phi", "seed-oss"])
def test_language_models_become_classifiers(folder, case):
    """The head and its bias are left out; a folder without the head lacks the names' first part."""
    source = os.path.join(GOLDEN, case)
    labels = os.path.join(GOLDEN, "classify-llama")
    prefix = {"gpt-neox": "gpt_neox.", "gptj": "transformer."}.get(case, "model.")
    changes = {"data": {"train": f"{labels}/train", "validation": None, "seq_length": 16, "packing": False},
               "train": {"max_steps": 2, "epochs": None}}
    losses = []
    for kind in ("whole", "base"):
        shutil.copytree(source, folder.at(kind))
        if kind == "base":
            config = json.loads(open(os.path.join(source, "config.json"), encoding="utf-8").read())
            config["architectures"] = [config["architectures"][0].replace("ForCausalLM", "Model")]
            with open(folder.at(kind, "config.json"), "w", encoding="utf-8") as f:
                json.dump(config, f)
            header, blob = {}, b""
            for name, (dtype, shape, raw) in tensors_of(source).items():
                if name.startswith(prefix):
                    header[name.removeprefix(prefix)] = {"dtype": dtype, "shape": shape, "data_offsets": [len(blob), len(blob) + len(raw)]}
                    blob += raw
            text = json.dumps(header).encode()
            with open(folder.at(kind, "model.safetensors"), "wb") as f:
                f.write(struct.pack("<Q", len(text)) + text + blob)
        folder.train({**changes, "model": {"config": None, "pretrained": folder.at(kind), "task": "sequence_classification",
                                           "num_labels": 3}}, kind)
        losses.append(folder.metrics(kind).losses)
    assert losses[0] == losses[1]

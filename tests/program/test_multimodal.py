# SPDX-License-Identifier: Apache-2.0
"""Folders of models that take images too: their text model trains as a text folder does, to the bit, and an export has
every other tensor as it came. The folders are made of the golden cases' text models; tests/interop has transformers' own."""
import json
import os
import random
import re
import shutil
import struct

import pytest

from harness import CHECKPOINT, DATA, FINISHED, ROOT, USAGE, read_safetensors

GOLDEN = os.path.join(ROOT, "tests", "golden")
VISION = {"blocks.0.attn.qkv.weight": ("BF16", [6, 5]), "blocks.0.attn.qkv.bias": ("F32", [6]),
          "patch_embed.proj.weight": ("F16", [2, 3, 1, 2, 2]), "position_ids": ("I64", [1, 3]), "scale": ("U8", []),
          "none": ("F32", [0, 4])}
WIDTH = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "U8": 1}

# model_type: the golden case of its text model, the names of its tensors (text, head, the rest), what its config has
KINDS = {
    "gemma3": ("gemma3", "language_model.model.", "language_model.", "vision_tower.", {"text_config": "gemma3_text"}),
    "gemma4": ("gemma4", "model.language_model.", "", "model.vision_tower.", {"text_config": "gemma4_text"}),
    "qwen2_5_vl": ("qwen2", "model.", "", "visual.", {"flat": True}),
    "qwen2_vl": ("qwen2", "model.", "", "visual.", {"text_config": "qwen2_vl_text"}),
    "qwen3_vl": ("qwen3", "model.language_model.", "", "model.visual.", {"text_config": "qwen3_vl_text"}),
    "qwen3_5": ("qwen3.5", "model.language_model.", "", "model.visual.", {"text_config": "qwen3_5_text"}),
    "mistral3": ("mistral-window", "language_model.model.", "language_model.", "vision_tower.", {"text_config": "mistral"}),
    "llava": ("llama", "language_model.model.", "language_model.", "multi_modal_projector.", {"text_config": "llama"}),
    "llava_next": ("mistral-window", "model.language_model.", "", "model.vision_tower.", {"text_config": "mistral"}),
    "internvl": ("qwen3", "language_model.model.", "language_model.", "vision_tower.", {"text_config": "qwen3"}),
}
MROPE = {"qwen2_5_vl": {"type": "mrope", "mrope_section": [1, 1, 0]},
         "qwen3_vl": {"rope_type": "default", "mrope_section": [1, 1, 2], "mrope_interleaved": True}}


def write_tensors(path, tensors):
    """{name: (dtype, shape, bytes)}"""
    header, blob = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(blob), len(blob) + len(raw)]}
        blob += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + blob)


def read_json(*path):
    with open(os.path.join(*path), encoding="utf-8") as f:
        return json.load(f)


def multimodal_config(kind):
    case, _, _, _, how = KINDS[kind]
    text = read_json(GOLDEN, case, "config.json")
    tied = text.pop("tie_word_embeddings", False)
    class_name = text.pop("architectures")[0].replace("CausalLM", "ConditionalGeneration")
    rope = MROPE.get(kind)
    if rope:
        text["rope_theta"] = text.get("rope_theta") or text.pop("rope_parameters")["rope_theta"]
        text["rope_scaling"] = rope
    whole = {"model_type": kind, "architectures": [class_name], "vision_config": {"model_type": "some", "hidden_size": 6},
             "image_token_id": 9, "tie_word_embeddings": tied, "dtype": "bfloat16"}
    if how.get("flat"):
        return {**text, **whole}
    return {**whole, "text_config": {**text, "model_type": how["text_config"], "dtype": "bfloat16"}}


def make_multimodal(place, kind):
    """Returns {name: (dtype, shape, bytes)} of all of it, and the names that are not the text model's."""
    case, text, head, rest, _ = KINDS[kind]
    source, tensors, random_bytes = os.path.join(GOLDEN, case), {}, random.Random(5)
    os.makedirs(place)
    items = read_safetensors(os.path.join(source, "model.safetensors")).items()
    vision = {}
    for name, (dtype, shape) in VISION.items():
        size = WIDTH[dtype]
        for n in shape:
            size *= n
        vision[rest + name] = (dtype, shape, random_bytes.randbytes(size))
    tensors.update(list(vision.items())[:2])  # between, before and after those of the text
    for name, entry in items:
        tensors[text + name[len("model."):] if name.startswith("model.") else head + name] = entry
    tensors.update(vision)
    write_tensors(os.path.join(place, "model.safetensors"), tensors)
    with open(os.path.join(place, "config.json"), "w", encoding="utf-8") as f:
        json.dump(multimodal_config(kind), f)
    return tensors, set(vision)


def resume(folder, expect=FINISHED):
    return folder.ztrain("--config", os.path.join(folder.run_folder(), "run.yaml"), "--resume", folder.run_folder(), "--set",
                         "train.max_steps=4", expect=expect)


def run_of(folder, place, kind, name, ranks=2, expect=FINISHED, **changes):
    data = os.path.join(GOLDEN, KINDS[kind][0])
    spec = {"model": {"config": None, "pretrained": place}, "train": {"max_steps": 3},
            "data": {"train": f"{data}/train", "validation": None, "seq_length": 8},
            "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}
    for key, value in changes.items():
        spec[key] = {**spec[key], **value} if isinstance(value, dict) and key in spec else value
    return folder.train(spec, name=name, ranks=ranks, expect=expect)


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_trains_as_a_text_folder_and_the_rest_passes(folder, kind):
    place = folder.at("model")
    tensors, rest = make_multimodal(place, kind)
    run = run_of(folder, place, kind, "whole")
    assert f"{len(rest)} other tensors" in run.out + run.err
    run_of(folder, os.path.join(GOLDEN, KINDS[kind][0]), kind, "text")
    losses = [folder.metrics(name).losses for name in ("whole", "text")]
    assert losses[0] == losses[1] and len(losses[0]) == 3

    folder.ztrain("export", folder.run_folder("whole"), "--out", folder.at("hf"))
    folder.ztrain("export", folder.run_folder("text"), "--out", folder.at("hf-text"))
    after = read_safetensors(folder.at("hf", "model.safetensors"))
    text = read_safetensors(folder.at("hf-text", "model.safetensors"))
    assert set(after) == set(tensors)
    assert all(after[name] == tensors[name] for name in rest)
    _, prefix, head, _, _ = KINDS[kind]
    for name, entry in text.items():
        assert after[prefix + name[len("model."):] if name.startswith("model.") else head + name] == entry
    assert after[prefix + "embed_tokens.weight"] != tensors[prefix + "embed_tokens.weight"]  # it was trained
    assert read_json(folder.at("hf"), "config.json") == multimodal_config(kind)


@pytest.mark.parametrize("kind", ["gemma3", "qwen2_5_vl"])
def test_a_round_trip_without_training_keeps_every_byte(folder, kind):
    place = folder.at("model")
    tensors, _ = make_multimodal(place, kind)
    run_of(folder, place, kind, "run", optimizer={"type": "AdamW", "params": {"lr": 1e-30, "weight_decay": 0.0}})
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("hf"))
    assert read_safetensors(folder.at("hf", "model.safetensors")) == tensors
    run_of(folder, folder.at("hf"), kind, "again")  # an export is such a folder again
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("wide"), "--dtype", "fp32")
    wide = read_safetensors(folder.at("wide", "model.safetensors"))
    assert {wide[name][0] for name in tensors if "embed_tokens" in name} == {"F32"}
    assert all(wide[name] == entry for name, entry in tensors.items() if "vis" in name)
    config = read_json(folder.at("wide"), "config.json")
    assert config["dtype"] == "float32" and config.get("text_config", {"dtype": "float32"})["dtype"] == "float32"


def test_plan_inspect_and_sample_take_such_a_folder(folder):
    place = folder.at("model")
    make_multimodal(place, "qwen3_vl")
    run_of(folder, place, "qwen3_vl", "run")
    spec = folder.spec({"model": {"config": None, "pretrained": place}, "data": {"seq_length": 8}}, "plan")
    text = folder.spec({"model": {"config": None, "pretrained": os.path.join(GOLDEN, "qwen3")}, "data": {"seq_length": 8}}, "plan")
    assert folder.ztrain("plan", "--config", spec).out == folder.ztrain("plan", "--config", text).out
    out = folder.ztrain("inspect", folder.run_folder()).out
    assert re.search(rf"base +{place}, hash [0-9a-f]+", out) and "adapter" not in out
    sampled = [folder.ztrain("sample", what, "--prompt-tokens", "5,6,7", "--max-tokens", "4", "--dtype", "fp32").out
               for what in (place, os.path.join(GOLDEN, "qwen3"), folder.run_folder())]
    assert sampled[0] == sampled[1] and sampled[2]


def test_a_moved_folder_is_named_and_a_changed_one_is_refused(folder):
    place = folder.at("model")
    tensors, _ = make_multimodal(place, "gemma3")
    run_of(folder, place, "gemma3", "run")
    os.rename(place, folder.at("moved"))
    gone = folder.ztrain("export", folder.run_folder(), "--out", folder.at("hf"), expect=DATA)
    assert "multimodal" in gone.final_error and place in gone.final_error and "--base" in gone.final_error
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("hf"), "--base", folder.at("moved"))
    assert set(read_safetensors(folder.at("hf", "model.safetensors"))) == set(tensors)

    def changed(name, entry):
        write_tensors(folder.at("moved", "model.safetensors"), {**tensors, name: entry})
        return folder.ztrain("export", folder.run_folder(), "--out", folder.at("hf"), "--base", folder.at("moved"),
                             expect=CHECKPOINT).final_error
    os.rename(folder.at("moved", "model.safetensors"), folder.at("weights"))
    empty = folder.ztrain("export", folder.run_folder(), "--out", folder.at("hf"), "--base", folder.at("moved"), expect=DATA)
    assert "no weights" in empty.final_error
    name = "vision_tower.blocks.0.attn.qkv.weight"
    dtype, shape, raw = tensors[name]
    assert "have the hash" in changed(name, (dtype, shape, bytes([raw[0] ^ 1]) + raw[1:]))
    changed(name, (dtype, shape[::-1], raw))
    os.rename(folder.at("moved"), place)
    assert "another base" in resume(folder, CHECKPOINT).final_error
    write_tensors(os.path.join(place, "model.safetensors"), tensors)
    resume(folder)
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("hf"))
    refused = folder.ztrain("export", folder.run_folder(), "--out", place, expect=USAGE)
    assert "base of the multimodal model" in refused.final_error
    assert "--merge" in folder.ztrain("export", folder.run_folder(), "--out", folder.at("hf"), "--merge",
                                      expect=USAGE).final_error


@pytest.mark.parametrize("kind", ["gemma3", "qwen2_5_vl"])
def test_an_adapter_is_of_the_text_and_a_merge_has_the_rest(folder, kind):
    place, case = folder.at("model"), os.path.join(GOLDEN, KINDS[kind][0])
    tensors, rest = make_multimodal(place, kind)
    peft = {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "down_proj"]}
    run_of(folder, place, kind, "whole", peft=peft)
    run_of(folder, case, kind, "text", peft=peft)
    losses = [folder.metrics(name).losses for name in ("whole", "text")]
    assert losses[0] == losses[1]
    folder.ztrain("export", folder.run_folder("whole"), "--out", folder.at("adapter"))
    names = set(read_safetensors(folder.at("adapter", "adapter_model.safetensors")))
    assert "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight" in names
    targets = read_json(folder.at("adapter"), "adapter_config.json")["target_modules"]
    assert "model.language_model.layers.1.mlp.down_proj" in targets and len(targets) == 4

    for name in ("whole", "text"):
        folder.ztrain("export", folder.run_folder(name), "--merge", "--out", folder.at(f"merged-{name}"))
    merged = read_safetensors(folder.at("merged-whole", "model.safetensors"))
    text = read_safetensors(folder.at("merged-text", "model.safetensors"))
    assert set(merged) == set(tensors) and all(merged[name] == tensors[name] for name in rest)
    _, prefix, head, _, _ = KINDS[kind]
    for name, entry in text.items():
        assert merged[prefix + name[len("model."):] if name.startswith("model.") else head + name] == entry

    # an adapter as PEFT wrote it with transformers 4 starts a run as well
    old = {name.replace("model.model.language_model.", "model.language_model.model."): entry for name, entry in
           read_safetensors(folder.at("adapter", "adapter_model.safetensors")).items()}
    write_tensors(folder.at("adapter", "adapter_model.safetensors"), old)
    run_of(folder, place, kind, "from-adapter", model={"adapter": folder.at("adapter")})

    # one that changes the layers of images as well does not
    first = next(name for name in old if "lora_A" in name)
    write_tensors(folder.at("adapter", "adapter_model.safetensors"), {**old, "base_model.model.vision_tower.q_proj.lora_A.weight": old[first]})
    done = run_of(folder, place, kind, "from-images", model={"adapter": folder.at("adapter")}, expect=DATA)
    assert "ztrain adapts the text model only" in done.err


def test_an_untied_head_of_a_merge_is_the_text_models(folder):
    place = folder.at("model")
    tensors, _ = make_multimodal(place, "gemma3")
    run_of(folder, place, "gemma3", "run", peft={"r": 2, "target_modules": ["embed_tokens"]})
    folder.ztrain("export", folder.run_folder(), "--merge", "--out", folder.at("hf"))
    merged, config = read_safetensors(folder.at("hf", "model.safetensors")), read_json(folder.at("hf"), "config.json")
    assert merged["lm_head.weight"] == tensors["language_model.model.embed_tokens.weight"]
    assert config["tie_word_embeddings"] is False and config["text_config"]["tie_word_embeddings"] is False
    run_of(folder, folder.at("hf"), "gemma3", "again")


def with_config(folder, kind, change):
    make_multimodal(folder.at("model"), kind)
    config = multimodal_config(kind)
    change(config)
    with open(folder.at("model", "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    return folder.spec({"model": {"config": None, "pretrained": folder.at("model")}, "data": {"seq_length": 8}}, "run")


@pytest.mark.parametrize("kind, code, words, change", [
    ("gemma3", USAGE, "ForConditionalGeneration", lambda c: c.update(architectures=["Gemma3ForSequenceClassification"])),
    ("gemma3", USAGE, "quantization_config", lambda c: c.update(quantization_config={"quant_method": "fp8"})),
    ("gemma3", USAGE, "quantization_config", lambda c: c["text_config"].update(quantization_config={"quant_method": "fp8"})),
    ("gemma3", DATA, "text_config must be an object", lambda c: c.pop("text_config")),
    ("gemma3", DATA, "text_config: hidden_size must be an integer", lambda c: c["text_config"].update(hidden_size="x")),
    ("qwen2_5_vl", DATA, "config.json: hidden_size must be an integer", lambda c: c.update(hidden_size="x")),
    ("internvl", USAGE, "'qwen3_moe' is a mixture of experts", lambda c: c["text_config"].update(model_type="qwen3_moe")),
])
def test_what_is_not_supported_is_refused(folder, kind, code, words, change):
    spec = with_config(folder, kind, change)
    assert words in folder.ztrain("plan", "--config", spec, expect=code).final_error


def test_random_weights_and_classifiers_are_refused(folder):
    spec = with_config(folder, "gemma3", lambda c: None)
    config = json.dumps(multimodal_config("gemma3"))
    random_weights = folder.spec({"model": {"config": json.loads(config)}, "data": {"seq_length": 8}}, "random")
    assert "model.pretrained" in folder.ztrain("plan", "--config", random_weights, expect=USAGE).final_error
    classifier = folder.ztrain("plan", "--config", spec, "--set", "model.task=sequence_classification", "--set",
                               "model.num_labels=2", "--set", "data.packing=false", expect=USAGE)
    assert "gemma3" in classifier.final_error


def test_an_unknown_tensor_of_the_text_is_refused_and_may_be_left_out(folder):
    place = folder.at("model")
    tensors, rest = make_multimodal(place, "gemma3")
    extra = {"language_model.model.layers.0.self_attn.q_proj.k_scale": ("F32", [1], bytes(4))}
    write_tensors(os.path.join(place, "model.safetensors"), {**tensors, **extra})
    spec = folder.spec({"model": {"config": None, "pretrained": place}, "data": {"seq_length": 8}}, "run")
    assert "k_scale" in folder.ztrain("--config", spec, "--dry-run", expect=DATA).final_error
    left = run_of(folder, place, "gemma3", "left", model={"ignore_tensors": ["*.k_scale", "vision_tower.none"]})
    assert f"{len(rest) - 1} other tensors" in left.out + left.err
    folder.ztrain("export", folder.run_folder("left"), "--out", folder.at("hf"))
    assert set(read_safetensors(folder.at("hf", "model.safetensors"))) == set(tensors) - {"vision_tower.none"}
    long = "vision_tower." + "x" * 300
    write_tensors(os.path.join(place, "model.safetensors"), {**tensors, long: ("U8", [1], b"1")})
    assert "letters" in folder.ztrain("--config", spec, "--dry-run", expect=DATA).final_error


def test_several_files_have_an_index(folder):
    """The folder's own files do not matter: the text in one, the rest in another."""
    place = folder.at("model")
    tensors, rest = make_multimodal(place, "qwen3_vl")
    os.unlink(os.path.join(place, "model.safetensors"))
    parts = {"model-00001-of-00002.safetensors": {n: e for n, e in tensors.items() if n in rest},
             "model-00002-of-00002.safetensors": {n: e for n, e in tensors.items() if n not in rest}}
    for file, part in parts.items():
        write_tensors(os.path.join(place, file), part)
    with open(os.path.join(place, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"weight_map": {name: file for file, part in parts.items() for name in part}}, f)
    run_of(folder, place, "qwen3_vl", "run", optimizer={"type": "AdamW", "params": {"lr": 1e-30, "weight_decay": 0.0}})
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("hf"))
    assert read_safetensors(folder.at("hf", "model.safetensors")) == tensors
    shutil.rmtree(place)

# SPDX-License-Identifier: Apache-2.0
"""The files of adapters: checkpoints without their base, which is read again, compared, moved and missed; exports of an adapter and
of the merged model. tests/interop/test_adapter_files.py compares them with PEFT."""
import json
import os
import re
import shutil
import signal
import struct

import pytest

import test_quantized_base as quantized
from harness import BadDisk, CHECKPOINT, DATA, USAGE, merged, read_safetensors, wait_for_steps, wait_until, write_safetensors

PEFT = {"r": 4, "lora_alpha": 8, "target_modules": ["embed_tokens", "q_proj", "down_proj", "lm_head"], "modules_to_save": ["norm"]}
PROMPT = ("--prompt-tokens", "3,5,7", "--max-tokens", 12, "--dtype", "fp32")


def base_of(folder):
    """A folder with random weights in bf16, the same ones each time."""
    if not os.path.exists(folder.at("base")):
        folder.train({"train": {"epochs": None, "max_steps": 1}}, "made-base")
        folder.ztrain("export", folder.run_folder("made-base"), "--out", folder.at("base"), "--dtype", "bf16")
    return folder.at("base")


def lora(folder, changes=None):
    return merged({"model": {"config": None, "pretrained": base_of(folder)}, "peft": PEFT,
                   "optimizer": {"params": {"lr": 0.02}}}, changes or {})


def manifest(folder, name="run"):
    with open(os.path.join(folder.latest(name), "manifest.json"), encoding="utf-8") as f:
        return json.load(f)


def change_weight(folder, name):
    """Another value of one weight of the base."""
    path = folder.at("base", "model.safetensors")
    with open(path, "r+b") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        f.seek(8 + length + json.loads(f.read(length))[name]["data_offsets"][0])
        f.write(struct.pack("<H", 0x3f80))


# ---- checkpoints -------------------------------------------------------------------------------------------------------

def test_a_checkpoint_names_its_base(folder):
    folder.train(lora(folder, {"zero_optimization": {"stage": 3}}), ranks=2)
    found = manifest(folder)
    assert found["format_version"] == 4 and found["adapter"]["r"] == 4 and found["adapter"]["peft_type"] == "LORA"
    assert found["base"]["folder"] == folder.at("base") and found["base"]["seed"] == 7
    said = folder.ztrain("inspect", folder.run_folder(), "--tensors").out
    trained = [t for t in found["tensors"] if not found["units"][t["unit"]].get("frozen")]
    count = sum(t["shape"][0] * (t["shape"] + [1])[1] for t in trained)
    assert f"\nadapter      LORA, r 4: {count} of these parameters, in {len(trained)} tensors\n" in said
    assert f"\nbase         {folder.at('base')}, hash {found['base']['hash']}\n" in said
    assert "lm_head.lora_A.weight" in said and "q_proj.weight" not in said
    folder.ztrain("verify", folder.run_folder())
    assert "step" in folder.ztrain("report", folder.run_folder()).out
    for name, ranks, stage, dtype in (("other", 3, 0, "bf16"), ("one", 1, 2, "fp16")):
        folder.train(lora(folder, {"zero_optimization": {"stage": stage}, dtype: {"enabled": True}}), name, ranks=ranks)
        assert manifest(folder, name)["base"] == found["base"]


@pytest.mark.parametrize("before, after", [((1, 0), (3, 3)), ((3, 2), (2, 1))])
def test_a_resume_on_other_ranks(folder, before, after):
    """before, after: ranks, stage. What a checkpoint holds, the next one begins with."""
    folder.train(lora(folder, {"zero_optimization": {"stage": before[1]}, "train": {"epochs": 1}}), ranks=before[0])
    first = exported(folder)
    folder.train(lora(folder, {"zero_optimization": {"stage": after[1]}, "train": {"epochs": None, "max_steps": 4},
                               "optimizer": {"params": {"lr": 0.0, "weight_decay": 0.0}}}),
                 ranks=after[0], more=["--resume", folder.run_folder()])
    assert len(folder.metrics().steps) == 4 and exported(folder) == first


def exported(folder, name="run"):
    shutil.rmtree(folder.at("out"), ignore_errors=True)
    folder.ztrain("export", folder.run_folder(name), "--out", folder.at("out"))
    return read_safetensors(folder.at("out", "adapter_model.safetensors"))


def test_a_base_of_initial_values(folder):
    """There is no folder: the seed gives the same base again, and another seed another one."""
    changes = {"peft": PEFT}
    folder.train(changes, "whole")
    folder.train(merged(changes, {"train": {"epochs": 1}}))
    assert "folder" not in manifest(folder)["base"]
    folder.train(changes, more=["--resume", folder.run_folder()])
    assert folder.metrics().numbers() == folder.metrics("whole").numbers()
    said = folder.ztrain("inspect", folder.run_folder()).out
    assert "\nbase         initial values with run.seed 7, hash " in said
    sample = folder.ztrain("sample", folder.run_folder(), *PROMPT).out
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("merged"), "--merge")
    assert folder.ztrain("sample", folder.at("merged"), *PROMPT).out == sample
    done = folder.ztrain("sample", folder.run_folder(), *PROMPT, "--base", folder.at("merged"), expect=USAGE)
    assert "were initial values with run.seed 7" in done.final_error


@pytest.mark.parametrize("ranks", [1, 2])
def test_another_base_is_refused(folder, ranks):
    """The folder has the same name and the same config, and one other weight. Both hashes are named."""
    folder.train(lora(folder, {"train": {"epochs": 1}}), ranks=ranks)
    was = manifest(folder)["base"]["hash"]
    change_weight(folder, "model.layers.2.self_attn.k_proj.weight")
    for arguments in (["--config", folder.spec(lora(folder)), "--resume", folder.run_folder(), "--local-gpus", ranks],
                      ["sample", folder.run_folder(), *PROMPT],
                      ["export", folder.run_folder(), "--out", folder.at("merged"), "--merge"]):
        done = folder.ztrain(*arguments, expect=CHECKPOINT)
        words = re.search(f"was trained on another base: the frozen weights of {folder.at('base')} have the hash ([0-9a-f]+), and "
                          "those it was trained on ([0-9a-f]+); hint: the weights in this folder have changed since", done.final_error)
        assert words and words.group(2) == was != words.group(1), done
    assert not os.path.exists(folder.at("merged"))
    assert folder.checkpoints() == ["epoch-0001"]
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("adapter"))  # needs no base


def test_a_weight_that_is_trained_may_differ(folder):
    """It is in the checkpoint."""
    folder.train(lora(folder), "whole")
    folder.train(lora(folder, {"train": {"epochs": 1}}))
    change_weight(folder, "model.norm.weight")
    folder.train(lora(folder), more=["--resume", folder.run_folder()])
    assert folder.metrics().numbers() == folder.metrics("whole").numbers()


def test_a_base_that_is_damaged_or_missing(folder):
    folder.train(lora(folder, {"train": {"epochs": 1}}))
    spec, resume = folder.spec(lora(folder)), ("--resume", folder.run_folder())
    sample = folder.ztrain("sample", folder.run_folder(), *PROMPT).out
    path = folder.at("base", "model.safetensors")
    whole = os.path.getsize(path)
    shutil.copy(path, folder.at("kept"))
    os.truncate(path, whole - 1)
    for arguments in (["--config", spec, *resume], ["sample", folder.run_folder(), *PROMPT],
                      ["export", folder.run_folder(), "--out", folder.at("merged"), "--merge"]):
        assert "is truncated" in folder.ztrain(*arguments, expect=DATA).final_error
    shutil.copy(folder.at("kept"), path)
    os.rename(folder.at("base"), folder.at("moved"))
    for command in (["sample", folder.run_folder(), *PROMPT], ["export", folder.run_folder(), "--out", folder.at("merged"), "--merge"]):
        done = folder.ztrain(*command, expect=DATA)
        assert f"is not there: '{folder.at('base')}'; hint: --base DIR" in done.final_error, done
    assert folder.ztrain("sample", folder.run_folder(), "--base", folder.at("moved"), *PROMPT).out == sample
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("merged"), "--merge", "--base", folder.at("moved"))
    assert folder.ztrain("sample", folder.at("merged"), *PROMPT).out == sample


def test_tensors_that_are_left_out_of_the_base(folder):
    """model.ignore_tensors counts for whoever reads the base later."""
    tensors = read_safetensors(os.path.join(base_of(folder), "model.safetensors"))
    write_safetensors(folder.at("base", "model.safetensors"),
                      {name: (shape, [value for (value,) in struct.iter_unpack("<f", b"".join(b"\0\0" + raw[i:i + 2]
                       for i in range(0, len(raw), 2)))]) for name, (_, shape, raw) in tensors.items()} | {"extra.weight": ([2], [1, 2])})
    folder.train(lora(folder, {"model": {"ignore_tensors": ["extra.*"]}}))
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("merged"), "--merge")
    found = read_safetensors(folder.at("merged", "model.safetensors"))
    assert found.keys() == tensors.keys() and {dtype for dtype, _, _ in found.values()} == {"F32"}
    assert folder.ztrain("sample", folder.at("merged"), *PROMPT).out == folder.ztrain("sample", folder.run_folder(), *PROMPT).out


def test_a_kill_in_a_save_leaves_the_checkpoint_before_it(folder):
    disk = BadDisk(folder)
    folder.train(lora(folder, {"train": {"epochs": 4}}), "whole")
    folder.train(lora(folder, {"train": {"epochs": 1}}))
    disk.fails("write hold manifest.json")
    process = folder.start("--config", folder.spec(lora(folder, {"train": {"epochs": 4}})), "--resume", folder.run_folder(),
                           env=disk.env)
    top = os.path.join(folder.run_folder(), "checkpoints")
    wait_for_steps(folder, process, 4)
    wait_until(lambda: any(name.startswith(".tmp-") for name in os.listdir(top)), what="the save's files")
    os.killpg(process.pid, signal.SIGKILL)
    folder.wait(process)
    disk.works()
    assert folder.checkpoints() == ["epoch-0001"]
    done = folder.train(lora(folder, {"train": {"epochs": 4}}), more=["--resume", folder.run_folder()])
    assert "/epoch-0001 at step 3" in done.out
    assert folder.metrics().numbers() == folder.metrics("whole").numbers()
    assert exported(folder) == exported(folder, "whole")


def test_replay(folder):
    folder.train(lora(folder, {"train": {"hash_interval_steps": 1}}), ranks=2)
    done = folder.ztrain("replay", folder.run_folder(), "--step", 6, "--local-gpus", 2)
    assert "the replay is the same as the record" in done.out and "the state of checkpoint epoch-0002" in done.out
    change_weight(folder, "model.layers.2.self_attn.k_proj.weight")
    done = folder.ztrain("replay", folder.run_folder(), "--step", 6, "--local-gpus", 2, expect=CHECKPOINT)
    assert "was trained on another base" in done.final_error


def test_an_export_does_not_replace_the_base(folder):
    """ztrain has exported it, too."""
    folder.train(lora(folder))
    for more in ([], ["--merge"]):
        done = folder.ztrain("export", folder.run_folder(), "--out", folder.at("base"), *more, expect=USAGE)
        assert "/base' is the base of the adapter; hint: --out names another folder" in done.final_error
    shutil.move(folder.at("base"), folder.at("moved"))
    done = folder.ztrain("export", folder.run_folder(), "--out", folder.at("moved"), "--merge", "--base", folder.at("moved"), expect=USAGE)
    assert "is the base of the adapter" in done.final_error


def test_patterns_that_vllm_does_not_read(folder):
    folder.train(lora(folder, {"peft": {"rank_pattern": {"q_proj": 2}}}))
    assert "by patterns, which vLLM does not read: --merge" in folder.ztrain("export", folder.run_folder(), "--out", folder.at("adapter")).out


def test_an_adapter_goes_on_with_another_dropout(folder):
    """It is no part of the adapter."""
    folder.train(lora(folder))
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("adapter"))
    folder.train(lora(folder, {"model": {"adapter": folder.at("adapter")}, "peft": {"lora_dropout": 0.1}}), "more")
    done = folder.train(lora(folder, {"model": {"adapter": folder.at("adapter")}, "peft": {"target_modules": "all-linear"}}), "wide",
                        expect=DATA)
    assert "adapter_model.safetensors" in done.err and "lora_" in done.err
    done = folder.train(lora(folder, {"model": {"adapter": folder.at("adapter")}, "peft": {"r": 2}}), "other", expect=USAGE)
    assert "'peft.r' is 2, and 4 in the config of model.adapter" in done.err


def test_all_linear_goes_on(folder):
    """PEFT's file has the names of the modules."""
    wide = {"peft": {"target_modules": "all-linear", "modules_to_save": None}}
    folder.train(lora(folder, wide))
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("adapter"))
    folder.train(lora(folder, merged(wide, {"model": {"adapter": folder.at("adapter")}})), "more")


# ---- bases in few bits -------------------------------------------------------------------------------------------------

NF4 = {"load_in_4bit": True}
KEPT = {  # how the run keeps its base
    "bf16": {"peft": {"base_dtype": "bf16"}},
    "fp32": {"peft": {"base_dtype": "fp32"}, "bf16": {"enabled": True}},
    "nf4": {"model": {"quantization_config": NF4}, "bf16": {"enabled": True}},
    "nf4-double": {"model": {"quantization_config": {**NF4, "bnb_4bit_use_double_quant": True}}},
    "nf4-skip": {"model": {"quantization_config": {**NF4, "llm_int8_skip_modules": ["lm_head", "v_proj"]}}},
}
SAMPLES = {"train": {"epochs": 1, "samples": [[3, 5, 7]], "sample_tokens": 12}}


def samples_as_it_did(folder, *options, name="run"):
    """Whether `ztrain sample` says what the run said itself at its last evaluation."""
    said = folder.metrics(name).kinds("sample")[-1]["tokens"]
    return folder.ztrain("sample", folder.run_folder(name), *PROMPT[:4], "--device", "cpu", *options).out == \
        ",".join(map(str, said)) + "\n"


@pytest.mark.parametrize("kept", KEPT)
def test_a_base_that_is_kept_otherwise(folder, kept):
    """sample computes with the base as the run kept it; --merge takes the folder's weights, or what the codes of quantized ones
    stand for; another base is refused."""
    changes = merged(merged(lora(folder), KEPT[kept]), SAMPLES)
    changes["peft"]["target_modules"] = ["q_proj", "down_proj"]
    folder.train(changes, ranks=2)
    assert samples_as_it_did(folder)
    folder.train(merged(changes, {"train": {"epochs": 2}}), more=["--resume", folder.run_folder()])
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("merged"), "--merge")
    before, after = (read_safetensors(folder.at(place, "model.safetensors")) for place in ("base", "merged"))
    name = "model.layers.{}.self_attn.{}_proj.weight"
    assert after[name.format(1, "q")] != before[name.format(1, "q")]
    assert (after[name.format(1, "k")] != before[name.format(1, "k")]) == kept.startswith("nf4")
    change_weight(folder, name.format(2, "k"))
    for command in (["sample", folder.run_folder(), *PROMPT], ["export", folder.run_folder(), "--out", folder.at("other"), "--merge"]):
        assert "was trained on another base" in folder.ztrain(*command, expect=CHECKPOINT).final_error


@pytest.mark.parametrize("method", quantized.CONFIGS)
def test_a_quantized_folder(folder, method):
    """Its merged model is that of the same weights in bf16, and has no quantization."""
    place, values = quantized.quantized_pair(folder, method)
    changes = merged(quantized.lora(place), merged(SAMPLES, {"train": {"epochs": None}}))
    folder.train(changes)
    assert samples_as_it_did(folder)
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("merged"), "--merge", "--dtype", "bf16")
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("adapter"))
    with open(folder.at("merged", "config.json"), encoding="utf-8") as f:
        assert "quantization_config" not in json.load(f)
    changes = merged(changes, {"model": {"pretrained": values, "adapter": folder.at("adapter")}, "peft": None,
                               "optimizer": {"params": {"lr": 0.0}}})
    folder.train(changes, "values")
    folder.ztrain("export", folder.run_folder("values"), "--out", folder.at("same"), "--merge", "--dtype", "bf16")
    ours, same = (read_safetensors(folder.at(place, "model.safetensors")) for place in ("merged", "same"))
    assert ours.keys() == same.keys() and [name for name in ours if ours[name] != same[name]] == []


# ---- exports -----------------------------------------------------------------------------------------------------------

def test_exports_take_each_others_place(folder):
    """A folder holds an adapter or a model, never the files of both; other files stay."""
    folder.train(lora(folder))
    out = folder.at("out")
    folder.ztrain("export", folder.run_folder(), "--out", out)
    with open(os.path.join(out, "README.md"), "w", encoding="utf-8") as f:
        f.write("mine\n")
    assert sorted(os.listdir(out)) == ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    folder.ztrain("export", folder.run_folder(), "--out", out, "--merge")
    assert sorted(os.listdir(out)) == ["README.md", "config.json", "model.safetensors"]
    done = folder.ztrain("export", folder.run_folder(), "--out", out, "--dtype", "bf16")
    assert "is replaced" in done.out and "exported the adapter of " in done.out and done.out.endswith(" in bf16\n"), done
    assert sorted(os.listdir(out)) == ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    assert {dtype for dtype, _, _ in read_safetensors(os.path.join(out, "adapter_model.safetensors")).values()} == {"BF16"}


def test_an_adapter_of_another_program_is_not_replaced(folder):
    folder.train(lora(folder))
    os.mkdir(folder.at("out"))
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        with open(folder.at("out", name), "w", encoding="utf-8") as f:
            f.write("{}")
    done = folder.ztrain("export", folder.run_folder(), "--out", folder.at("out"), expect=USAGE)
    assert "holds a model that ztrain did not export" in done.final_error


def test_options_of_adapters_on_a_whole_model(folder):
    base_of(folder)
    for option in (["--merge"], ["--base", folder.at("base")]):
        done = folder.ztrain("export", folder.run_folder("made-base"), "--out", folder.at("out"), *option, expect=USAGE)
        assert f"{option[0]} is for runs with an adapter" in done.final_error
    for place in (folder.run_folder("made-base"), folder.at("base")):
        done = folder.ztrain("sample", place, "--base", folder.at("base"), *PROMPT, expect=USAGE)
        assert "--base is for adapters" in done.final_error
    folder.train(lora(folder))
    done = folder.ztrain("export", folder.run_folder(), "--out", folder.at("out"), "--base", folder.at("base"), expect=USAGE)
    assert "--base is the model that --merge reads" in done.final_error


def test_adapters_of_16_bits(folder):
    """A run in bf16 samples as its export, in the same dtype."""
    folder.train(lora(folder, {"bf16": {"enabled": True}}))
    assert {dtype for dtype, _, _ in exported(folder).values()} == {"F32"}
    prompt = (*PROMPT[:-1], "bf16")
    assert folder.ztrain("sample", folder.run_folder(), *prompt).out == folder.ztrain("sample", folder.at("out"), *prompt).out


def test_a_model_beside_an_adapter_is_refused(folder):
    """The hint names model.adapter."""
    folder.train(lora(folder))
    exported(folder)
    done = folder.train({"model": {"config": None, "pretrained": folder.at("out")}}, "second", expect=USAGE)
    assert "holds a LoRA adapter" in done.final_error and "hint: model.adapter takes it" in done.final_error
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(folder.at("out", name), folder.at("base", name))
    done = folder.train({"model": {"config": None, "pretrained": folder.at("base")}}, "second", expect=DATA)
    assert "holds a model and a LoRA adapter" in done.final_error and "hint: model.adapter" in done.final_error
    os.remove(folder.at("base", "model.safetensors"))
    done = folder.train({"model": {"config": None, "pretrained": folder.at("base")}}, "second", expect=DATA)
    assert "model.adapter takes its folder" in done.final_error

# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as files: damage of every kind is found and located, and exports hold the trained weights."""
import json
import os
import random
import shlex
import shutil
import struct
import subprocess

import pytest

from harness import CHECKPOINT, DATA, GPT2, LLAMA, SLOWNESS, USAGE, ZTRAIN, read_safetensors


def files_of(checkpoint):
    return sorted(name for name in os.listdir(checkpoint) if os.path.isfile(os.path.join(checkpoint, name)))


def flip(path, offset, bit):
    with open(path, "r+b") as f:
        f.seek(offset)
        byte = f.read(1)[0]
        f.seek(offset)
        f.write(bytes([byte ^ (1 << bit)]))


def zero(path, offset, length):
    with open(path, "r+b") as f:
        f.seek(offset)
        f.write(bytes(length))


@pytest.fixture
def checkpoint(folder):
    folder.train({"train": {"epochs": 1}, "zero_optimization": {"stage": 3}}, ranks=2)
    return folder.latest()


def test_a_whole_checkpoint_is_verified_and_described(folder, checkpoint):
    assert files_of(checkpoint) == ["manifest.json", "rank-00000.zst", "rank-00001.zst"]
    for place in (checkpoint, folder.run_folder(), os.path.join(folder.run_folder(), "checkpoints", "latest")):
        folder.ztrain("verify", place)
    done = folder.ztrain("inspect", checkpoint)
    assert "step 3, end of epoch 1, 3 optimizer steps" in done.out
    done = folder.ztrain("inspect", checkpoint, "--tensors")
    assert "model.layers.2.self_attn.k_proj.weight" in done.out


@pytest.mark.long  # an instrumented build has memory of its own
def test_an_export_holds_a_part_of_the_model(folder):
    """The weights are 128 MB. The export has the address space of the program, which a build with kernels for many GPUs
    makes large, and 64 MB, of which libraries take most."""
    folder.train({"model": {"config": {**GPT2, "vocab_size": 500000, "n_embd": 64, "n_layer": 1, "n_head": 1}},
                  "train": {"max_steps": 1}, "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
                  "train_batch_size": 1})
    limited = f"ulimit -v {(os.path.getsize(ZTRAIN) + 64_000_000) // 1024}; exec {shlex.quote(ZTRAIN)} export {shlex.quote(folder.run_folder())}"
    out = folder.at("exported")
    subprocess.run(["sh", "-c", f"{limited} --out {shlex.quote(out)} --dtype fp32"], check=True, timeout=60 * SLOWNESS,
                   env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert os.path.getsize(os.path.join(out, "model.safetensors")) > 100e6


@pytest.mark.parametrize("name", ["manifest.json", "rank-00000.zst", "rank-00001.zst"])
def test_every_kind_of_damage_is_found(folder, checkpoint, name):
    path, copy = os.path.join(checkpoint, name), folder.at("copy")
    shutil.copyfile(path, copy)
    size = os.path.getsize(path)
    rng = random.Random(size)
    offsets = {0, 1, 7, 8, size // 2, size - 1} | {rng.randrange(size) for _ in range(20)}
    damages = [(f"bit of byte {at} flipped", lambda at=at: flip(path, at, rng.randrange(8))) for at in sorted(offsets)]
    damages += [(f"cut to {keep} bytes", lambda keep=keep: os.truncate(path, keep))
                for keep in (0, 1, size // 3, size - 1)]
    damages += [("a byte more", lambda: open(path, "ab").write(b"\0")),
                ("zeroed in the middle", lambda: zero(path, size // 3, 64)),
                ("all zeros", lambda: zero(path, 0, size)),
                ("missing", lambda: os.remove(path)),
                ("a folder", lambda: (os.remove(path), os.mkdir(path)))]
    for what, damage in damages:
        damage()
        done = folder.ztrain("verify", checkpoint, expect=CHECKPOINT)
        assert name in done.final_error, f"{what}: {done}"
        if os.path.isdir(path):
            os.rmdir(path)
        shutil.copyfile(copy, path)
    folder.ztrain("verify", checkpoint)


def test_damage_is_found_while_resuming_and_exporting(folder, checkpoint):
    path = os.path.join(checkpoint, "rank-00001.zst")
    zero(path, os.path.getsize(path) // 20, os.path.getsize(path) * 9 // 10)
    for arguments in (["export", checkpoint, "--out", folder.at("hf"), "--dtype", "fp32"],
                      ["--config", folder.spec({"train": {"epochs": 2}}), "--resume", checkpoint]):
        done = folder.ztrain(*arguments, expect=CHECKPOINT)
        assert "rank-00001.zst" in done.final_error, done
    assert not os.path.exists(folder.at("hf", "model.safetensors"))
    assert not os.path.exists(folder.at("hf", "config.json"))


def test_an_export_of_a_run_takes_the_newest_valid_checkpoint(folder):
    folder.train({"train": {"epochs": 2}})
    top = os.path.join(folder.run_folder(), "checkpoints")
    flip(f"{top}/epoch-0002/rank-00000.zst", 200, 3)
    done = folder.ztrain("export", folder.run_folder(), "--out", folder.at("hf"))
    assert "epoch-0002" in done.err and "epoch-0001" in done.out


def test_files_swapped_between_checkpoints_are_found(folder):
    folder.train({"train": {"epochs": 2}})
    top = os.path.join(folder.run_folder(), "checkpoints")
    shutil.copyfile(f"{top}/epoch-0001/rank-00000.zst", f"{top}/epoch-0002/rank-00000.zst")
    done = folder.ztrain("verify", f"{top}/epoch-0002", expect=CHECKPOINT)
    assert "rank-00000.zst" in done.final_error


def test_a_folder_without_a_manifest(folder):
    os.makedirs(folder.at("void"))
    for place in ("void", "nowhere"):
        done = folder.ztrain("verify", folder.at(place), expect=CHECKPOINT)
        assert place in done.final_error


@pytest.mark.parametrize("level", [0, 1, 19])
def test_compression_levels(folder, level):
    folder.train({"train": {"epochs": 1}, "checkpoint": {"compression_level": level}})
    folder.ztrain("verify", folder.run_folder())
    folder.train({"train": {"epochs": 2}, "checkpoint": {"compression_level": 3}}, more=["--resume", folder.run_folder()])


@pytest.mark.parametrize("model", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_an_export_is_a_hugging_face_folder(folder, model):
    folder.train({"train": {"epochs": 1}, "model": {"config": model}})
    for dtype, code, size in (("fp32", "F32", 4), ("bf16", "BF16", 2)):
        out = folder.at(f"hf-{dtype}")
        folder.ztrain("export", folder.run_folder(), "--out", out, "--dtype", dtype)
        with open(os.path.join(out, "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        assert config["model_type"] == model["model_type"] and config["architectures"] == model["architectures"]
        assert {"fp32": "float32", "bf16": "bfloat16"}[dtype] in (config.get("torch_dtype"), config.get("dtype"))
        tensors = read_safetensors(os.path.join(out, "model.safetensors"))
        first = "transformer.wte.weight" if model is GPT2 else "model.embed_tokens.weight"
        assert tensors[first][0] == code and tensors[first][1] == [61, 32]
        for name, (got, shape, raw) in tensors.items():
            count = 1
            for extent in shape:
                count *= extent
            assert got == code and len(raw) == count * size, name
    wide = read_safetensors(folder.at("hf-fp32", "model.safetensors"))[first][2]
    narrow = read_safetensors(folder.at("hf-bf16", "model.safetensors"))[first][2]
    for i in range(0, 200, 2):
        (value,) = struct.unpack("<f", wide[2 * i:2 * i + 4])
        (short,) = struct.unpack("<f", b"\0\0" + narrow[i:i + 2])
        assert abs(value - short) <= abs(value) * 2 ** -8


@pytest.mark.parametrize("dtype, bound", [("fp32", 0.0), ("bf16", 0.01)])
def test_an_export_can_be_trained_further(folder, dtype, bound):
    """Evaluating the exported model gives the loss that the run ended with."""
    folder.train({"train": {"epochs": 3}}, ranks=2)
    last = folder.metrics().evaluations[-1]["eval_loss"]
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("hf"), "--dtype", dtype)
    folder.train({"model": {"config": None, "pretrained": folder.at("hf")}, "train": {"epochs": 1},
                  "optimizer": {"params": {"lr": 1e-12, "weight_decay": 0.0}}}, name="further")
    assert abs(folder.metrics("further").evaluations[-1]["eval_loss"] - last) <= bound + 1e-6


def test_the_same_weights_whatever_the_stage_and_world(folder):
    for name, ranks, stage in (("a", 1, 0), ("b", 3, 3)):
        folder.train({"train": {"max_steps": 1}, "optimizer": {"params": {"lr": 1e-30}},
                      "zero_optimization": {"stage": stage}}, name=name, ranks=ranks)
        folder.ztrain("export", folder.run_folder(name), "--out", folder.at(f"hf-{name}"), "--dtype", "fp32")
    assert read_safetensors(folder.at("hf-a", "model.safetensors")) == read_safetensors(folder.at("hf-b", "model.safetensors"))


def test_tokenizer_files_travel_with_the_model(folder):
    folder.train({"train": {"epochs": 1}}, name="seed")
    folder.ztrain("export", folder.run_folder("seed"), "--out", folder.at("hf"), "--dtype", "fp32")
    names = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
    for name in names:
        with open(folder.at("hf", name), "w", encoding="utf-8") as f:
            f.write('{"made": "for a test"}\n')
    folder.train({"train": {"epochs": 1}, "model": {"config": None, "pretrained": folder.at("hf")}})
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("out"), "--dtype", "bf16")
    for name in names:
        with open(folder.at("out", name), encoding="utf-8") as f:
            assert "made" in f.read()


def test_a_tokenizer_that_cannot_be_copied_is_known_before_training(folder):
    folder.train({"train": {"epochs": 1}}, name="seed")
    folder.ztrain("export", folder.run_folder("seed"), "--out", folder.at("hf"), "--dtype", "fp32")
    os.symlink("nowhere", folder.at("hf", "tokenizer.json"))
    changes = {"train": {"epochs": 1}, "model": {"config": None, "pretrained": folder.at("hf")}}
    for ranks in (1, 2):
        done = folder.train(changes, ranks=ranks, name=f"run-{ranks}", expect=DATA)
        assert folder.at("hf", "tokenizer.json") in done.final_error, done
        assert not os.path.exists(folder.run_folder(f"run-{ranks}") + "/metrics.jsonl")
    assert folder.at("hf", "tokenizer.json") in folder.train(changes, more=("--dry-run",), expect=DATA).final_error
    os.remove(folder.at("hf", "tokenizer.json"))
    folder.train(changes)


def test_export_does_not_overwrite_what_is_not_its_own(folder, checkpoint):
    os.makedirs(folder.at("taken"))
    with open(folder.at("taken", "model-00001-of-00002.safetensors"), "w", encoding="utf-8") as f:
        f.write("another model's")
    done = folder.ztrain("export", checkpoint, "--out", folder.at("taken"), "--dtype", "fp32", expect=USAGE)
    assert folder.at("taken") in done.final_error
    assert os.listdir(folder.at("taken")) == ["model-00001-of-00002.safetensors"]
    for again in range(2):      # it replaces its own export, with a notice
        done = folder.ztrain("export", checkpoint, "--out", folder.at("mine"), "--dtype", "fp32")
        assert ("is replaced" in done.out + done.err) == bool(again)
    file = folder.at("mine", "plain")
    with open(file, "w", encoding="utf-8") as f:
        f.write("a file")
    done = folder.ztrain("export", checkpoint, "--out", file, "--dtype", "fp32", expect=USAGE)
    assert f"'{file}' is a file, not a folder" in done.final_error

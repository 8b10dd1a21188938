# SPDX-License-Identifier: Apache-2.0
"""The folder of an export: whole or absent, whatever is killed, and of one writer."""
import json
import os
import signal

import pytest

from harness import DATA, BadDisk, FINISHED, USAGE, read_safetensors, wait_until

DTYPES = {"fp32": ("float32", "F32"), "bf16": ("bfloat16", "BF16")}


@pytest.fixture
def run(folder):
    folder.train({"train": {"max_steps": 1, "epochs": None}, "data": {"validation": None}})
    return folder.run_folder()


def whole(out):
    """The dtype of an export, whose config.json and weights agree."""
    with open(os.path.join(out, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    tensors = read_safetensors(os.path.join(out, "model.safetensors"))
    (found,) = {code for code, _, _ in tensors.values()}
    name = config.get("torch_dtype") or config.get("dtype")
    assert (name, found) in DTYPES.values() and len(tensors) == 30
    return found


def held(folder, run, disk, call="fsync", dtype="fp32"):
    """An export that waits in the middle of its weights."""
    disk.fails(f"{call} hold model.safetensors")
    process = folder.start("export", run, "--out", folder.at("hf"), "--dtype", dtype, env=disk.env)
    wait_until(lambda: os.path.exists(folder.at(".hf.ztrain-export", "new", "model.safetensors")), what="the weights")
    return process


def names(folder):
    return sorted(name for name in os.listdir(folder.at()) if "hf" in name)


def test_of_two_exports_into_one_folder_one_is_refused(folder, run):
    disk = BadDisk(folder)
    for earlier in (False, True):
        first = held(folder, run, disk, dtype="bf16" if earlier else "fp32")
        done = folder.ztrain("export", run, "--out", folder.at("hf") + "/", expect=USAGE)
        assert "in use by another export" in done.final_error and f"process {first.pid}" in done.final_error, done
        assert os.path.exists(folder.at("hf")) == earlier and (not earlier or whole(folder.at("hf")) == "F32")
        disk.works()
        assert folder.wait(first).code == FINISHED
        assert names(folder) == ["hf"] and whole(folder.at("hf")) == ("BF16" if earlier else "F32")


def test_a_storm_of_exports_leaves_a_whole_one(folder, run):
    for _ in range(3):
        storm = [folder.start("export", run, "--out", folder.at("hf"), "--dtype", dtype) for dtype in ("fp32", "bf16") * 3]
        done = [folder.wait(process) for process in storm]
        assert FINISHED in [one.code for one in done] and {one.code for one in done} <= {FINISHED, USAGE}, done
        assert names(folder) == ["hf"] and whole(folder.at("hf"))


@pytest.mark.parametrize("earlier", [False, True])
def test_a_killed_export_leaves_what_was_there(folder, run, earlier):
    disk = BadDisk(folder)
    if earlier:
        folder.ztrain("export", run, "--out", folder.at("hf"), "--dtype", "bf16")
        with open(folder.at("hf", "README.md"), "w", encoding="utf-8") as f:
            f.write("mine")
    process = held(folder, run, disk)
    process.send_signal(signal.SIGKILL)
    folder.wait(process)
    assert os.path.exists(folder.at("hf")) == earlier and (not earlier or whole(folder.at("hf")) == "BF16")
    folder.ztrain("export", run, "--out", folder.at("hf"), "--dtype", "fp32")
    assert names(folder) == ["hf"] and whole(folder.at("hf")) == "F32" and os.path.exists(folder.at("hf", "README.md")) == earlier


def test_a_full_disk_leaves_what_was_there(folder, run):
    disk = BadDisk(folder)
    folder.ztrain("export", run, "--out", folder.at("hf"), "--dtype", "bf16")
    for line in ("write ENOSPC new/model.safetensors", "fsync EIO new/", "mkdir EACCES .hf.ztrain-export", "open EROFS new/config.json"):
        disk.fails(line)
        done = folder.ztrain("export", run, "--out", folder.at("hf"), "--dtype", "fp32", env=disk.env, expect=DATA)
        assert ".hf.ztrain-export" in done.final_error, done
        assert names(folder) == ["hf"] and whole(folder.at("hf")) == "BF16"


def test_a_folder_keeps_its_rights(folder, run):
    for name in ("empty", "earlier"):
        os.mkdir(folder.at(name))
    folder.ztrain("export", run, "--out", folder.at("earlier"))
    for name in ("empty", "earlier"):
        os.chmod(folder.at(name), 0o2750)
        folder.ztrain("export", run, "--out", folder.at(name))
        assert os.stat(folder.at(name)).st_mode & 0o7777 == 0o2750

"""The ranks' copies of the model are compared: these tests change a rank's memory while it trains."""
import glob
import os
import re
import struct

import pytest

from harness import DIVERGED, children, read_safetensors, wait_for_steps

UNMOVED = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-30, "weight_decay": 0.0}}}  # weights stay as they began


def flip_a_bit(pid, pattern, instead=None):
    """Flips a bit at the first place in the process's private memory that holds the pattern, or writes bytes there."""
    with open(f"/proc/{pid}/maps", encoding="ascii") as maps, open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for line in maps:
            begin, end, rights, inode = re.match(r"(\w+)-(\w+) (\S+) \S+ \S+ (\d+)", line).groups()
            if not rights.startswith("rw") or inode != "0":
                continue
            size = int(end, 16) - int(begin, 16)
            if size > 1 << 30:  # a sanitizer's shadow
                continue
            memory.seek(int(begin, 16))
            try:
                at = memory.read(size).find(pattern)
            except OSError:
                continue
            if at >= 0:
                memory.seek(int(begin, 16) + at)
                memory.write(instead or bytes([pattern[0] ^ 1]))
                return True
    return False


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_flipped_bit_stops_the_run_before_its_checkpoint(folder, dtype):
    changes = {**UNMOVED, "zero_optimization": {"stage": 0}, "train": {"epochs": None, "max_steps": 1},
               "bf16": {"enabled": dtype == "bf16"}}
    folder.train(changes, name="first")
    folder.ztrain("export", folder.run_folder("first"), "--out", folder.at("weights"), "--dtype", "fp32")
    weights = read_safetensors(glob.glob(folder.at("weights", "*.safetensors"))[0])
    name = next(n for n in weights if "down_proj" in n)
    pattern = weights[name][2][:256]

    changes["train"] = {"epochs": None, "max_steps": 1000000}
    changes["checkpoint"] = {"interval_steps": 50, "keep_last": 2}
    process = folder.start("--config", folder.spec(changes), "--local-gpus", 2)
    wait_for_steps(folder, process, 60)
    kept = folder.checkpoints()
    assert kept
    victim = next(pid for pid in children(process.pid) if b"ZTRAIN_LOCAL_RANK=1\0" in
                  open(f"/proc/{pid}/environ", "rb").read() + b"\0")
    assert flip_a_bit(victim, pattern)
    done = folder.wait(process)
    assert done.code == DIVERGED, done
    kind = "master" if dtype == "bf16" else "parameters"
    assert re.search(rf"the ranks' copies of the model have drifted apart: rank 1 on \S+ holds other {kind} of "
                     rf"{re.escape(name)} than rank 0 on \S+; no checkpoint is written; hint: ", done.err), done
    assert done.err.count("drifted apart") == 1
    assert folder.ztrain("why", folder.run_folder()).out.startswith("Rank 1 on ")
    stop = int(re.search(r"step (\d+): the ranks' copies", done.err).group(1))
    (line,) = folder.metrics().kinds("corruption")
    assert (line["corruption"], line["step"], line["rank"], line["tensor"]) == (kind, stop, 1, name)
    assert f"step-{stop:08d}" not in folder.checkpoints() and folder.checkpoints()
    folder.ztrain("verify", folder.latest())
    assert not [n for n in os.listdir(os.path.dirname(folder.latest())) if n.startswith(".tmp")]


def test_the_rank_with_the_first_non_finite_value_is_named(folder):
    """A NaN that appears in the parameters of one rank makes its gradients NaNs, and no other's."""
    changes = {**UNMOVED, "zero_optimization": {"stage": 0}, "train": {"epochs": None, "max_steps": 1}}
    folder.train(changes, name="first")
    folder.ztrain("export", folder.run_folder("first"), "--out", folder.at("weights"), "--dtype", "fp32")
    weights = read_safetensors(glob.glob(folder.at("weights", "*.safetensors"))[0])
    pattern = weights[next(n for n in weights if "down_proj" in n)][2][:256]
    changes["train"] = {"epochs": None, "max_steps": 1000000, "max_skipped_steps": 3}
    changes["checkpoint"] = {"save_at_epoch_end": False}
    process = folder.start("--config", folder.spec(changes), "--local-gpus", 3)
    wait_for_steps(folder, process, 3)
    victim = next(pid for pid in children(process.pid) if b"ZTRAIN_LOCAL_RANK=1\0" in
                  open(f"/proc/{pid}/environ", "rb").read() + b"\0")
    assert flip_a_bit(victim, pattern, struct.pack("<f", float("nan")))
    done = folder.wait(process)
    assert done.code == DIVERGED, done
    said = " ".join(folder.ztrain("why", folder.run_folder()).out.split())
    step = next(row["step"] for row in folder.metrics().steps if row["skipped"])
    assert re.match(rf"Rank 1 on \S+ \(process {victim}\) had the first non-finite value, in step {step}\b", said), said

# SPDX-License-Identifier: Apache-2.0
"""The ranks' copies of the model are compared: these tests change a rank's memory while it trains."""
import glob
import os
import re
import signal
import struct
import time

import pytest

from harness import DIVERGED, children, read_safetensors, state_of, wait_for_checkpoint, wait_for_steps, wait_until

UNMOVED = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-30, "weight_decay": 0.0}}}  # weights stay as they began


def places(pid, memory, pattern):
    """Addresses in the process's private memory that hold the pattern."""
    with open(f"/proc/{pid}/maps", encoding="ascii") as maps:
        for line in maps:
            begin, end, rights, inode = re.match(r"(\w+)-(\w+) (\S+) \S+ \S+ (\d+)", line).groups()
            begin, size = int(begin, 16), int(end, 16) - int(begin, 16)
            if not rights.startswith("rw") or inode != "0" or size > 1 << 30:  # the last is a sanitizer's shadow
                continue
            memory.seek(begin)
            try:
                content = memory.read(size)
            except OSError:
                continue
            at = content.find(pattern)
            while at >= 0:
                yield begin + at
                at = content.find(pattern, at + len(pattern))


def stop_between_saves(folder, pid):
    """Stops the process at a moment when no checkpoint is being written: what is flipped in memory then is not on its way to
    a file between the computation of its checksum and the write."""
    checkpoints = os.path.join(folder.run_folder(), "checkpoints")

    def stopped():
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: {state_of(f"{pid}/task/{thread}") for thread in os.listdir(f"/proc/{pid}/task")} == {"T"},
                   what="the stop of all threads")
        if not os.path.isdir(checkpoints) or not [n for n in os.listdir(checkpoints) if n.startswith(".tmp")]:
            return True
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.02)
        return False

    wait_until(stopped, what="a moment without a save")


def flip_a_bit(folder, pid, pattern, instead=None):
    """Flips a bit at each place in the process's private memory that holds the pattern, or writes bytes there: one of them is
    the parameters, others may be copies for a checkpoint, which would go unnoticed."""
    stop_between_saves(folder, pid)
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        found = list(places(pid, memory, pattern))
        for place in found:
            memory.seek(place)
            memory.write(instead or bytes([pattern[0] ^ 1]))
    os.kill(pid, signal.SIGCONT)
    return len(found)


@pytest.mark.parametrize("dtype, ranks", [("fp32", 2), ("bf16", 3)])
def test_a_flipped_bit_stops_the_run_before_its_checkpoint(folder, dtype, ranks):
    """Two copies that differ accuse nobody; of three, the odd one is named."""
    changes = {**UNMOVED, "zero_optimization": {"stage": 0}, "train": {"epochs": None, "max_steps": 1},
               "bf16": {"enabled": dtype == "bf16"}}
    folder.train(changes, name="first")
    folder.ztrain("export", folder.run_folder("first"), "--out", folder.at("weights"), "--dtype", "fp32")
    weights = read_safetensors(glob.glob(folder.at("weights", "*.safetensors"))[0])
    name = next(n for n in weights if "down_proj" in n)
    pattern = weights[name][2][:256]

    changes["train"] = {"epochs": None, "max_steps": 1000000}
    changes["checkpoint"] = {"interval_steps": 50, "keep_last": 2}
    process = folder.start("--config", folder.spec(changes), "--local-gpus", ranks)
    wait_for_checkpoint(folder, process)
    victim = next(pid for pid in children(process.pid) if b"ZTRAIN_LOCAL_RANK=1\0" in
                  open(f"/proc/{pid}/environ", "rb").read() + b"\0")
    assert flip_a_bit(folder, victim, pattern)
    done = folder.wait(process)
    assert done.code == DIVERGED, done
    kind = "master" if dtype == "bf16" else "parameters"
    odd = (rf"ranks 0 \(on \S+\) and 1 \(on \S+\) hold different {kind} of {re.escape(name)}, and nobody knows which of them is "
           "right" if ranks == 2 else rf"rank 1 on \S+ holds other {kind} of {re.escape(name)} than rank 0 on \S+")
    assert re.search(rf"the ranks' copies of the model have drifted apart: {odd}; no checkpoint is written; hint: ", done.err), done
    assert done.err.count("drifted apart") == 1
    said = " ".join(folder.ztrain("why", folder.run_folder()).out.split())
    found = "The job has failed, and no rank stands out in the records. " if ranks == 2 else rf"Rank 1 on \S+ \(process {victim}\) "
    assert re.match(found, said) and re.search(odd, said), said
    stop = int(re.search(r"step (\d+): the ranks' copies", done.err).group(1))
    (line,) = folder.metrics().kinds("corruption")
    assert (line["corruption"], line["step"], line["tensor"]) == (kind, stop, name)
    assert line["ranks"] == [0, 1] and "host" not in line if ranks == 2 else line["rank"] == 1 and line["host"]
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
    assert flip_a_bit(folder, victim, pattern, struct.pack("<f", float("nan")))
    done = folder.wait(process)
    assert done.code == DIVERGED, done
    said = " ".join(folder.ztrain("why", folder.run_folder()).out.split())
    step = next(row["step"] for row in folder.metrics().steps if row["skipped"])
    assert re.match(rf"Rank 1 on \S+ \(process {victim}\) had the first non-finite value, in step {step}\b", said), said

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint costs training on this machine: GPT-2 124M (AdamW, fp32, one rank on the CPU). Standard library only.

    scripts/bench-save.py                       the stall with checkpoint.writer.decoupled false and true, the throughput of the
                                                writer, steps beside a save against others, and a plain memory copy of the state
    scripts/bench-save.py --peers PYTHON        and torch.distributed.checkpoint, synchronous and asynchronous, with a state of
                                                the same tensors; PYTHON belongs to an environment with torch
    scripts/bench-save.py --tiny                a model of 0.1M parameters: whether the script works

All of them take turns within each round, and the median over the rounds is printed, so that all see the same minutes of the
machine and of its disk. Figures of different machines, or of different hours, cannot be compared.
"""
import argparse
import ctypes
import json
import os
import random
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GPT2 = {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
TINY = {"model_type": "gpt2", "vocab_size": 512, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 2}
STATES = 3  # master weights, exp_avg, exp_avg_sq


def numels(config):
    """The tensors of the model."""
    h, found = config["n_embd"], [config["vocab_size"] * config["n_embd"], config["n_positions"] * config["n_embd"]]
    for _ in range(config["n_layer"]):
        found += [h, h, 3 * h * h, 3 * h, h * h, h, h, h, 4 * h * h, 4 * h, 4 * h * h, h]
    return found + [h, h]


def write_tokens(prefix, count, vocabulary):
    rng = random.Random(1)
    tokens = [min(int(rng.paretovariate(0.6)), vocabulary) - 1 for _ in range(count)]
    with open(prefix + ".bin", "wb") as f:
        f.write(struct.pack(f"<{count}H", *tokens))
    with open(prefix + ".idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<iq2q", count, 0, 0, 1))


def train(options, top, config, decoupled):
    """One run with a checkpoint after step options.interval, which is not its last one. Returns what that one cost."""
    name = "beside" if decoupled else "waits"
    spec = {"run": {"name": name, "dir": top}, "model": {"config": config},
            "data": {"train": f"{top}/tokens", "seq_length": 64}, "train": {"max_steps": options.steps, "device": "cpu"},
            "train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
            "checkpoint": {"interval_steps": options.interval, "save_at_epoch_end": False, "keep_every_steps": 0,
                           "compression_level": options.level, "writer": {"decoupled": decoupled}}}
    path = f"{top}/{name}.json"  # JSON is YAML
    with open(path, "w", encoding="utf-8") as f:
        json.dump(spec, f)
    done = subprocess.run([options.ztrain, "--config", path], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"ztrain ends with {done.returncode}: {done.stderr}")
    with open(f"{top}/{name}/metrics.jsonl", encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    saved = next(row for row in rows if "checkpoint" in row)
    whole = float(re.search(r"^checkpoint .* MB in ([0-9.]+) s", done.stdout, re.M)[1])
    where = next(i for i, row in enumerate(rows) if "checkpoint" in row)
    steps = [(i, row["seconds"]["step"]) for i, row in enumerate(rows) if "loss" in row and row["step"] > 2]
    beside = [seconds for i, seconds in steps if rows[i]["step"] > saved["step"] and i < where]
    others = [seconds for i, seconds in steps if rows[i]["step"] <= saved["step"] or i > where]
    shutil.rmtree(f"{top}/{name}")
    return {"stall": saved["seconds_stalled"], "total": whole, "bytes": saved["bytes"],
            "step": statistics.median(others), "step_beside": statistics.median(beside) if beside else None}


class MemoryCopy:
    """A copy of as many bytes as the state has, between memory that has been touched."""

    def __init__(self, size):
        self.size, self.source, self.target = size, ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
        ctypes.memset(self.source, 1, size)
        ctypes.memset(self.target, 2, size)

    def seconds(self):
        began = time.monotonic()
        ctypes.memmove(self.target, self.source, self.size)
        return time.monotonic() - began


def report(rounds, size):
    def median(*path):
        values = [row.get(path[0], {}).get(path[1]) for row in rounds]
        values = [value for value in values if value is not None]
        return statistics.median(values) if values else None

    def line(what, stall, total=None, stored=None, more=""):
        if stall is None:
            return
        rate = f"{size / total / 1e6:7.0f} MB/s" if total else " " * 12
        ratio = f"{stored / size:5.3f} of the state" if stored else ""
        print(f"{what:44} stall {stall:8.3f} s {f'whole {total:7.2f} s' if total else ' ' * 15} {rate} {ratio} {more}".rstrip())
    print(f"state: {size / 1e9:.3f} GB; medians of {len(rounds)} rounds; rates are of the state")
    copy = median("copy", "stall")
    line("plain memory copy", copy)
    for name in "waits", "beside":
        step, beside = median(name, "step"), median(name, "step_beside")
        more = f"step {step:.3f} s" + (f", beside the save {beside:.3f} s" if beside else "")
        line(f"ztrain, decoupled {'true' if name == 'beside' else 'false'}", median(name, "stall"), median(name, "total"),
             median(name, "bytes"), more)
    print(f"ztrain's stall with decoupled: {median('beside', 'stall') / copy:.2f} x the plain copy")
    line("torch.distributed.checkpoint.save", median("torch", "sync"), median("torch", "sync"), median("torch", "bytes"))
    line("torch.distributed.checkpoint.async_save", median("torch", "async_stall"), median("torch", "async_total"),
         median("torch", "bytes"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ztrain", default=os.path.join(ROOT, "build", "ztrain"))
    parser.add_argument("--peers", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--interval", type=int, default=10, help="the step after which the measured checkpoint is due")
    parser.add_argument("--steps", type=int, default=19, help="of a run: less than two intervals")
    parser.add_argument("--level", type=int, default=3, help="checkpoint.compression_level")
    parser.add_argument("--dir", help="where checkpoints are written (default: the system's folder for temporary files)")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    config = TINY if options.tiny else GPT2
    size = STATES * 4 * sum(numels(config))
    top = tempfile.mkdtemp(prefix="ztrain-save-", dir=options.dir)
    peer = None
    try:
        write_tokens(f"{top}/tokens", 100000, config["vocab_size"])
        rounds, copy = [], MemoryCopy(size)
        for _ in range(options.rounds):
            row = {"copy": {"stall": statistics.median(copy.seconds() for _ in range(5))}}
            row["waits"], row["beside"] = train(options, top, config, False), train(options, top, config, True)
            if options.peers:
                peer = subprocess.run([options.peers, os.path.join(ROOT, "scripts", "bench_save_torch.py"), top, "2",
                                       *map(str, numels(config))], capture_output=True, text=True, check=False)
                if peer.returncode:
                    sys.exit(f"torch ends with {peer.returncode}: {peer.stderr}")
                row["torch"] = json.loads(peer.stdout.splitlines()[-1])  # the first one warms up
            rounds.append(row)
        report(rounds, size)
    finally:
        shutil.rmtree(top, ignore_errors=True)


if __name__ == "__main__":
    main()

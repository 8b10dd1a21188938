#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the optimizer of offload with PyTorch's and with what the memory can do, in one run.

    scripts/bench-offload.py [--rounds 10] [--threads N]

Each round measures all four, one after the other, on 20 million parameters; the best round of each counts, as another
program may have had the machine in the others:

    ztrain    AdamW with its bf16 copy of the parameters, one pass (the op `adam`, by ops-test)
    PyTorch   torch.optim.AdamW(fused=True), then the cast of the parameters to bf16
    copy      a copy between two halves of as much memory as AdamW uses, in huge pages as ztrain's: the memory's bandwidth, as
              bytes read and bytes written

AdamW reads master, m, v and the gradient and writes master, m, v and the bf16 parameter: 30 bytes a parameter. Bandwidths are
those bytes by the time, whatever a cache line that is written costs in addition. Needs PyTorch and build/ops-test.
"""
import argparse
import mmap
import os
import re
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OPS_TEST = os.path.join(ROOT, "build", "ops-test")
PARAMETERS, BYTES, HALF = 20_000_000, 30, 180_000_000
LINE = re.compile(rf"^adam bf16 M=0 N={PARAMETERS} +([\d.]+) ms", re.M)


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def ztrain(threads):
    """Seconds of one update."""
    command = [OPS_TEST, "perf", "--op", "adam", "--dtype", "bf16", "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    match = LINE.search(done.stdout)
    if not match:
        sys.exit(f"{' '.join(command)} has no line for {PARAMETERS} parameters:\n{done.stdout}")
    return float(match.group(1)) / 1e3


class Torch:
    """PyTorch's update and cast, and a copy, on memory that has been touched."""

    def __init__(self, torch):
        self.master = torch.nn.Parameter(torch.randn(PARAMETERS))
        self.master.grad = torch.randn(PARAMETERS)
        self.params = torch.zeros(PARAMETERS, dtype=torch.bfloat16)
        self.optimizer = torch.optim.AdamW([self.master], lr=1e-3, weight_decay=0.1, fused=True)
        memory = mmap.mmap(-1, 2 * HALF)
        memory.madvise(mmap.MADV_HUGEPAGE)
        self.source, self.copied = torch.frombuffer(memory, dtype=torch.float32).zero_().chunk(2)
        self.update()

    def update(self):
        self.optimizer.step()
        self.params.copy_(self.master.detach())

    def copy(self):
        self.copied.copy_(self.source)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(arguments.threads)
    peer = Torch(torch)
    times = {"ztrain": [], "PyTorch": [], "copy": []}
    for _ in range(arguments.rounds):
        times["ztrain"].append(ztrain(arguments.threads))
        times["PyTorch"].append(min(seconds(peer.update) for _ in range(3)))
        times["copy"].append(min(seconds(peer.copy) for _ in range(10)))
    moved = {"ztrain": BYTES * PARAMETERS, "PyTorch": BYTES * PARAMETERS, "copy": 2 * HALF}
    best = {name: moved[name] / min(of) for name, of in times.items()}
    print(f"PyTorch {torch.__version__}, {arguments.threads} threads, best of {arguments.rounds} rounds")
    print(f"{'':10}{'ms':>8}{'GB/s':>8}{'of a copy':>12}")
    for name, of in times.items():
        print(f"{name:10}{1e3 * min(of):8.1f}{best[name] / 1e9:8.1f}{100 * best[name] / best['copy']:10.0f} %")
    print(f"ztrain takes {min(times['ztrain']) / min(times['PyTorch']):.2f} of PyTorch's time")


if __name__ == "__main__":
    main()

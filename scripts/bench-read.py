#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast ztrain reads a checkpoint, next to the disk and next to zstd and the checksums alone.

    scripts/bench-read.py CHECKPOINT [--ztrain BINARY …] [--threads 1,2] [--rounds 5]

A round measures in turn: dd's reading of the largest rank file from the disk (its cached pages are dropped first,
posix_fadvise), `ztrain verify` with the file in memory, which is zstd and checksums, and `ztrain verify` from the disk.
Prints medians over the rounds, in MB/s of the file, and the median of verify's rate next to the slower of the other two
in the same round. Several binaries are measured in the same rounds. The machine should be idle.
"""
import argparse
import os
import statistics
import subprocess
import time


def drop(paths):
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def cache(paths):
    for path in paths:
        with open(path, "rb", buffering=0) as f:
            while f.read(1 << 20):
                pass


def timed(command, **how):
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **how)
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--ztrain", nargs="+", default=["build/ztrain"])
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    files = [entry.path for entry in os.scandir(options.checkpoint) if entry.name.endswith(".zst")]
    largest, size = max(files, key=os.path.getsize), sum(map(os.path.getsize, files)) / 1e6
    rates = {}
    for _ in range(options.rounds):
        drop(files)
        disk = os.path.getsize(largest) / 1e6 / timed(["dd", f"if={largest}", "of=/dev/null", "bs=1M", "status=none"])
        rates.setdefault("disk", []).append(disk)
        for threads in options.threads.split(","):
            env = dict(os.environ, OMP_NUM_THREADS=threads, OMP_WAIT_POLICY="passive")
            for binary in options.ztrain:
                verify = [binary, "verify", options.checkpoint]
                name = f"{binary}, {threads} threads"
                cache(files)
                warm = size / timed(verify, env=env)
                drop(files)
                cold = size / timed(verify, env=env)
                rates.setdefault(f"{name}: in memory", []).append(warm)
                rates.setdefault(f"{name}: from disk", []).append(cold)
                rates.setdefault(f"{name}: from disk, % of the slower", []).append(100 * cold / min(disk, warm))
    for name, values in rates.items():
        print(f"{name:60} {statistics.median(values):8.0f}   ({min(values):.0f} … {max(values):.0f})")


if __name__ == "__main__":
    main()

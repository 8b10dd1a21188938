#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a start, a save and the commands cost in a run folder with many checkpoints of many ranks.

    make all build/tests/bench_checkpoints && scripts/bench-checkpoints.py [--ranks 512] [--count 200] [--build build]

Trains a small model of 32 blocks for COUNT steps, writes its state as COUNT checkpoints of RANKS ranks
(tests/bench/bench_checkpoints.c) and measures in a copy of that folder: what rank 0 does for a start and for saves, the
program's start with --resume on one rank, and `ztrain inspect`, `report` and `verify`. Prints the seconds of a
run by itself, and the files opened, the stats and the bytes read of another one under strace. Needs strace.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "program"))

from harness import LLAMA, Folder  # noqa: E402

CALLS = "open,openat,stat,lstat,newfstatat,statx,access,read,pread64,preadv,write"
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")


class Counts:
    def __init__(self):
        self.manifests = self.ranks = self.stats = self.bytes = 0


def sections(log):
    """The counts of each section of a strace log, by its name; before the first mark: ""."""
    now, found = "", {"": Counts()}
    with open(log, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            mark = re.search(r'write\(1, "== (.*)\\n"', line)
            if mark:
                now = mark[1]
                found.setdefault(now, Counts())
            count(found[now], line)
    return found


def count(counts, line):
    call = re.search(r"(\w+)\((.*)\) += (\d+)", line)
    resumed = re.search(r"<\.\.\. (\w+) resumed>.*= (\d+)", line)
    if resumed and resumed[1] in ("read", "pread64", "preadv"):
        counts.bytes += int(resumed[2])
    if not call or resumed:
        return
    name, arguments, result = call.groups()
    if name.startswith("open"):
        counts.manifests += "manifest.json" in arguments
        counts.ranks += ".zst" in arguments
    elif name in ("read", "pread64", "preadv"):
        counts.bytes += int(result)
    elif "stat" in name or name == "access":
        counts.stats += "checkpoints" in arguments


def run(command, log=None):
    traced = ["strace", "-f", "-qq", "-s", "4096", "-e", f"trace={CALLS}", "-o", log] if log else []
    begin = time.perf_counter()
    done = subprocess.run([*traced, *command], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begin
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout, seconds


class Place:
    def __init__(self, options, path):
        self.options = options
        self.folder = Folder(path)
        self.run = self.folder.run_folder()
        self.clean = self.folder.at("clean")
        self.log = self.folder.at("strace.log")
        self.config = None

    def make(self):
        changes = {"model": {"config": dict(LLAMA, num_hidden_layers=32)},
                   "train": {"epochs": 1000, "max_steps": self.options.count},
                   "checkpoint": {"interval_steps": self.options.count, "retry_seconds": 10}}
        self.config = self.folder.spec(changes)
        run([self.options.ztrain, "--config", self.config])
        top = os.path.join(self.run, "checkpoints")
        source = self.folder.at("source")
        shutil.move(os.path.realpath(os.path.join(top, "latest")), source)
        shutil.rmtree(top)
        print(run([self.options.bench, "make", source, top, str(self.options.ranks), str(self.options.count)])[0], end="")
        os.symlink(max(os.listdir(top)), os.path.join(top, "latest"))
        subprocess.run(["cp", "-al", self.run, self.clean], check=True)

    def renew(self):
        """The run folder as it was made. Its small files are copies, the rank files links."""
        shutil.rmtree(self.run)
        subprocess.run(["cp", "-al", self.clean, self.run], check=True)
        metrics = os.path.join(self.run, "metrics.jsonl")
        shutil.copy(metrics, metrics + ".copy")
        os.replace(metrics + ".copy", metrics)
        shutil.rmtree(self.folder.at("work"), ignore_errors=True)
        os.mkdir(self.folder.at("work"))

    def command(self, name, command):
        self.renew()
        _, seconds = run(command)
        self.renew()
        run(command, self.log)
        row(name, seconds, sections(self.log)[""])

    def inside(self):
        command = [self.options.bench, "measure", os.path.join(self.run, "checkpoints"), self.folder.at("work")]
        self.renew()
        said, _ = run(command)
        self.renew()
        run(command, self.log)
        counts = sections(self.log)
        for name, seconds in re.findall(r"== (.*)\n== -\n([\d.]+) s", said):
            row(name, float(seconds), counts[name])
        print(*re.findall(r"\d+ bytes of memory", said))


def row(name, seconds, counts):
    print(f"| {name} | {seconds:.3f} | {counts.manifests} | {counts.ranks} | {counts.stats} | {counts.bytes / 1e6:.2f} |",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--build", default="build")
    parser.add_argument("--folder", help="where the files are made; default: a temporary folder")
    parser.add_argument("--verify", action="store_true", help="measure verify RUN as well, which reads everything")
    options = parser.parse_args()
    options.ztrain = os.path.join(options.build, "ztrain")
    options.bench = os.path.join(options.build, "tests", "bench_checkpoints")
    with tempfile.TemporaryDirectory(dir=options.folder) as path:
        place = Place(options, path)
        place.make()
        print("| | seconds | manifests opened | rank files opened | stats | MB read |\n|---|---|---|---|---|---|")
        place.inside()
        train = [options.ztrain, "--config", place.config, "--set", f"train.max_steps={options.count}", "--resume", place.run]
        place.command("ztrain --resume, one rank", train)
        place.command("the same with --dry-run", [*train, "--dry-run"])
        place.command("ztrain inspect RUN", [options.ztrain, "inspect", place.run])
        place.command("ztrain report RUN", [options.ztrain, "report", place.run])
        if options.verify:
            place.command("ztrain verify RUN", [options.ztrain, "verify", place.run])


if __name__ == "__main__":
    main()

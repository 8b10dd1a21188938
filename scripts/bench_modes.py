#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed and memory of ways to train that give the same bits: GPT-2 124M or a model of your own. Standard library only.

    scripts/bench_modes.py                                    the policies of recomputation, and inputs in host memory
    scripts/bench_modes.py NAME:KEY=VALUE,KEY=VALUE …         modes of your own; the others are compared with the first
    scripts/bench_modes.py --model config.json --case bf16-256 --ranks 2 --stage 3

All modes are started once and take short turns, while the others are stopped (SIGSTOP), so all of them see the same minutes of the
machine: compare the rows of one run, not those of two. The rate of a mode is compared with the first one's of the same turn, and the
median over turns is printed. The bytes are those of the plan, on each rank. The output is a table in Markdown.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess

import bench

POLICIES = [f"{name}:activation_checkpointing.policy={name}" for name in ("none", "norms", "mlp", "attention", "block")]
POLICIES.append("block, inputs in host memory:activation_checkpointing.policy=block,activation_checkpointing.cpu_checkpointing=true")


def cpu_seconds(session):
    """CPU time of all processes of a session so far."""
    ticks = 0
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as f:
                fields = f.read().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12]) if int(fields[3]) == session else 0
        except (FileNotFoundError, ProcessLookupError):
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def turn(ours, steps, by_cpu_time):
    """Tokens/s of one turn."""
    started, done = cpu_seconds(ours.process.pid), len(ours.lines())
    rates = ours.ask(steps)
    if not by_cpu_time:
        return statistics.median(rates)
    return ours.tokens * (len(ours.lines()) - done) / (cpu_seconds(ours.process.pid) - started)


def parse(mode):
    name, _, settings = mode.partition(":")
    return name, [setting for setting in settings.split(",") if setting]


def planned(arguments, top, dtype, length, settings):
    """Bytes of one rank by the plan: of activations, of all device memory, of host memory, on a disk."""
    line, _ = bench.command(arguments.ztrain, top, "plan", dtype, length, 1, 1000000, arguments.stage)
    line = [line[0], "plan", *line[1:], "--bytes", "--world", str(arguments.ranks)]
    for setting in settings:
        line += ["--set", setting]
    out = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True, timeout=600).stdout
    places, activations, total = (re.search(rf"\n  {row} +(.*)", out).group(1).split() for row in ("bytes", "activations", "total"))
    of_place = dict(zip(places, map(int, total)))
    return int(activations[0]), of_place["device"], of_place.get("host", 0), of_place.get("disk", 0)


def main():
    bench.end_with_finally()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modes", nargs="*", metavar="NAME:KEY=VALUE,…")
    parser.add_argument("--ztrain", default=f"{bench.ROOT}/build/ztrain")
    parser.add_argument("--model", help="a config.json, or a folder with one (default: GPT-2 124M)")
    parser.add_argument("--case", default="bf16-256", metavar="DTYPE-T")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--stage", type=int, default=0)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--cpu-time", action="store_true",
                        help="tokens per second of CPU time, for a busy machine; best with OMP_NUM_THREADS=1")
    parser.add_argument("--steps", type=int, default=bench.TURN_STEPS, help="counted steps in a turn")
    arguments = parser.parse_args()
    arguments.ztrain = os.path.abspath(arguments.ztrain)
    modes = [parse(mode) for mode in arguments.modes or POLICIES]
    dtype, length = arguments.case.split("-")[0], int(arguments.case.split("-")[1])
    if arguments.model:
        path = arguments.model if arguments.model.endswith(".json") else os.path.join(arguments.model, "config.json")
        with open(path, encoding="utf-8") as f:
            bench.VOCABULARY = min(bench.VOCABULARY, json.load(f)["vocab_size"])
        modes = [(name, [f"model.config={os.path.abspath(arguments.model)}", *settings]) for name, settings in modes]

    top = f"{bench.ROOT}/build/bench-modes"
    shutil.rmtree(top, ignore_errors=True)
    os.makedirs(top)
    bench.write_tokens(f"{top}/tokens", 200000)
    sizes = [planned(arguments, top, dtype, length, settings) for _, settings in modes]
    running, rates = [], [[] for _ in modes]
    try:
        for i, (_, settings) in enumerate(modes):
            running.append(bench.Ours(arguments.ztrain, top, dtype, length, arguments.ranks, arguments.stage, f"mode-{i}", settings))
        for _ in range(arguments.turns):
            for i, ours in enumerate(running):
                rates[i].append(turn(ours, arguments.steps, arguments.cpu_time))
    finally:
        for ours in running:
            ours.end()
    shutil.rmtree(top, ignore_errors=True)

    print(f"{dtype}, batch {bench.BATCH} x {length} tokens, {arguments.ranks} rank(s), ZeRO stage {arguments.stage}; "
          f"{arguments.turns} turns of {arguments.steps} steps; {os.cpu_count()} cores"
          f"{'; rates of CPU time' if arguments.cpu_time else ''}\n")
    print("| mode | activations, MiB | device, MiB | host, MiB | disk, MiB | tokens/s | next to the first |")
    print("|---|---|---|---|---|---|---|")
    for (name, _), (activations, total, host, disk), mine in zip(modes, sizes, rates):
        ratios = [rate / first for rate, first in zip(mine, rates[0])]
        mib = 1 / 2 ** 20
        print(f"| {name} | {activations * mib:.1f} | {total * mib:.1f} | {host * mib:.1f} | {disk * mib:.1f} | "
              f"{statistics.median(mine):.0f} | "
              f"{statistics.median(ratios):.3f} |")


if __name__ == "__main__":
    main()

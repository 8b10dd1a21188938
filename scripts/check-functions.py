#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks three rules of CONTRIBUTING.md in the sources of the five floors: scripts/check-functions.py [ROOT]

- A function has at most 60 lines, from the first line of its head to its closing brace.
- Only cmd/main.c ends the process. The files of EXITS may, for the reason given there.
- Memory comes from core/memory.h, whose failure ends the process. What scales with the model or the data comes from
  malloc(), in the files of ALLOCATIONS, and its failure is an error that names the size.

Prints every breach as file:line: message, and exits 1 if there is one.
"""
import os
import re
import sys

FLOORS = ("core", "gpu", "comm", "ckpt", "cmd")
SUFFIXES = (".c", ".h", ".cu", ".cuh")
LINES = 60
# File: calls that end the process, and why main cannot.
EXITS = {
    "cmd/main.c": (2, "the end of every command"),
    "cmd/run/places.c": (1, "the child that has asked the driver"),
    "cmd/run/stop_signal.c": (1, "a signal handler: the user presses Ctrl-C a second time"),
    "cmd/supervise/supervise.c": (2, "between fork and exec: the supervisor is gone, or exec fails"),
    "cmd/train/rank_main.c": (2, "the watchdog's thread, when the rank is blocked; a save that never ends still uses what a return would free"),
    "comm/launch/launcher_store.c": (1, "the thread that hears of the job's end, when the rank is blocked in a call"),
    "core/memory.c": (1, "a thread that is refused memory has nobody to tell; a library that calls exit()"),
    "core/status.c": (2, "a failed ASSERT: nothing may run after it"),
}
# File: calls of the C library's allocators, and what they are for.
ALLOCATIONS = {
    "ckpt/huggingface/safetensors.c": (1, "a header whose size a file gives"),
    "cmd/sample.c": (2, "a unit's parameters"),
    "core/memory.c": (3, "core/memory.h itself"),
    "core/storage/uncached_read.c": (1, "aligned buffers for direct I/O"),
    "gpu/cuda/autotune.c": (2, "results of the largest op, for comparison"),
    "gpu/model/transformer_layout.c": (1, "angles of all positions"),
}
TEXT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)  # comments and literals
EXIT = re.compile(r"(?<![\w.>])(?:exit|_exit|_Exit|quick_exit|abort)\(")
ALLOCATION = re.compile(r"(?<![\w.>])(?:malloc|calloc|realloc|reallocarray|aligned_alloc|posix_memalign|strdup|strndup|v?asprintf)\(")
# Calls that only the files of a table make, as often as it says.
COUNTED = (
    ("EXITS", EXITS, EXIT, "ends the process", "return a status"),
    ("ALLOCATIONS", ALLOCATIONS, ALLOCATION, "allocates by itself", "call core/memory.h"),
)
HEAD_ENDS = re.compile(r"^[}#]|[;}]$")  # a line above a function that is none of its head's


def blank(match):
    """Spaces in place of a comment or literal; its line ends stay."""
    return re.sub(r"[^\n]", " ", match.group(0))


def functions(lines):
    """(name, first line, last line) of each function of a source without comments, counted from 1."""
    opened = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            opened = number
        elif line.startswith("}") and opened:
            first = opened
            while first > 1 and lines[first - 2].strip() and not HEAD_ENDS.search(lines[first - 2].rstrip()):
                first -= 1
            head = re.sub(r"(?:__launch_bounds__|__attribute__)\(.*?\)+(?= )", "", " ".join(lines[first - 1:opened - 1]))
            names = re.findall(r"(\w+)\(", head)
            yield names[0] if names else "?", first, number
            opened = None


def check(path, text):
    """Breaches of one file."""
    code = TEXT.sub(blank, text)
    breaches = [f"{path}:{first}: {name}() has {last - first + 1} lines, at most {LINES} were expected"
                for name, first, last in functions(code.split("\n")) if last - first >= LINES]
    for name, table, call, does, instead in COUNTED:
        lines = [code.count("\n", 0, match.start()) + 1 for match in call.finditer(code)]
        allowed = table.get(path, (0, ""))[0]
        if len(lines) > allowed:
            breaches.append(f"{path}:{lines[-1]}: this file {does} in {len(lines)} places, {allowed} were expected; "
                            f"hint: {instead}, or give the reason in the table {name} of scripts/check-functions.py")
        elif len(lines) < allowed:
            breaches.append(f"{path}:1: this file {does} in {len(lines)} places, {name} of scripts/check-functions.py "
                            f"allows {allowed}; hint: lower that number")
    return breaches


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paths = sorted(os.path.relpath(os.path.join(folder, name), root) for floor in FLOORS
                   for folder, _, names in os.walk(os.path.join(root, floor)) for name in names if name.endswith(SUFFIXES))
    if not paths:
        print(f"check-functions: no source files under {root}; hint: name the repository's root")
        sys.exit(2)
    breaches = [f"{path}:1: {name} of scripts/check-functions.py names this file, but it is not there"
                for name, table, *_ in COUNTED for path in table if path not in paths]
    for path in paths:
        with open(os.path.join(root, path), encoding="utf-8") as f:
            breaches += check(path, f.read())
    for breach in breaches:
        print(breach)
    if not breaches:
        print(f"the functions of {len(paths)} files have at most {LINES} lines; {len(EXITS)} files end the process, "
              f"{len(ALLOCATIONS)} allocate by themselves")
    sys.exit(bool(breaches))


if __name__ == "__main__":
    main()

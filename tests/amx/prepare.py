#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program or library as a CPU with AMX sees it: prepare.py FILE COPY

Copies FILE and replaces its `cpuid` by `ud2` and its `xgetbv` by `ud1 eax, eax`, which tests/amx/amx.c answers. Where these
instructions are, is taken from objdump. Standard library only; x86-64 only.
"""
import re
import shutil
import struct
import subprocess
import sys

REPLACED = {"cpuid": (b"\x0f\xa2", b"\x0f\x0b"), "xgetbv": (b"\x0f\x01\xd0", b"\x0f\xb9\xc0")}


def segments(elf):
    """(address, file offset, size) of each loaded segment: ELF64's program headers."""
    offset, = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    for i in range(count):
        kind, _, place, address, _, length = struct.unpack_from("<IIQQQQ", elf, offset + i * size)
        if kind == 1:
            yield address, place, length


def prepare(source, target):
    """Returns how many instructions were replaced."""
    listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", source], stdout=subprocess.PIPE, text=True, check=True)
    found = re.findall(r"^\s*([0-9a-f]+):\s+(cpuid|xgetbv)\s*$", listing.stdout, re.MULTILINE)
    with open(source, "rb") as file:
        elf = bytearray(file.read())
    parts = list(segments(elf))
    for text, name in found:
        address = int(text, 16)
        before, after = REPLACED[name]
        place, = [offset + address - start for start, offset, size in parts if start <= address < start + size]
        assert elf[place:place + len(before)] == before, f"{source}: no {name} at {text}"
        elf[place:place + len(before)] = after
    with open(target, "wb") as file:
        file.write(elf)
    shutil.copymode(source, target)
    return len(found)


if __name__ == "__main__":
    print(prepare(sys.argv[1], sys.argv[2]), "instructions replaced")

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what a binary for other machines needs: scripts/check-dist.py BINARY --glibc VERSION

It may need the libraries of glibc and no others, and of glibc nothing newer than VERSION. Other libraries are linked into it or
opened at run time. Prints the glibc that it needs; every breach goes to stderr, and the exit status is 1. It needs binutils (readelf).
"""
import argparse
import os
import re
import subprocess
import sys

GLIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2"}


def readelf(option, binary):
    done = subprocess.run(["readelf", option, "--wide", binary], env={**os.environ, "LC_ALL": "C"}, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0 or "Error:" in done.stderr:
        sys.exit(f"check-dist: '{binary}' cannot be read: {done.stderr.strip()}")
    return done.stdout


def number(version):
    return tuple(map(int, version.split(".")))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", metavar="BINARY")
    parser.add_argument("--glibc", metavar="VERSION", required=True, help="the newest glibc that it may need, such as 2.31")
    arguments = parser.parse_args()
    dynamic, versions = readelf("--dynamic", arguments.binary), readelf("--version-info", arguments.binary)
    libraries = set(re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic))
    breaches = [f"it needs the library {name}" for name in sorted(libraries - GLIBC)]
    breaches += [f"it has a search path for libraries, {path}" for path in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic)]
    named = set(re.findall(r"Name: (GLIBC_\S+)", versions))
    needed = {name.removeprefix("GLIBC_") for name in named if re.fullmatch(r"GLIBC_[0-9.]+", name)}
    breaches += [f"it needs the inner symbols {name}" for name in sorted(named - {f"GLIBC_{version}" for version in needed})]
    if "libc.so.6" not in libraries or not needed:
        breaches.append("it is not linked dynamically with glibc")
    newest = max(needed, key=number, default="0")
    if number(newest) > number(arguments.glibc):
        breaches.append(f"it needs glibc {newest}, and may need {arguments.glibc} at most; hint: scripts/packaging/sysroot.sh")
    for breach in breaches:
        print(f"check-dist: {arguments.binary}: {breach}", file=sys.stderr)
    if breaches:
        sys.exit(1)
    print(f"{arguments.binary} needs glibc {newest} and no other library")


if __name__ == "__main__":
    main()

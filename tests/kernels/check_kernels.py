#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds what the compiler made of the CUDA kernels: registers, spills, occupancy, 16-byte accesses, on compute capability 9.0.

    tests/kernels/check_kernels.py             the objects of build/obj/gpu/cuda against tests/kernels/limits.txt
    tests/kernels/check_kernels.py --write     writes what they are now into the table: look at its diff
    tests/kernels/check_kernels.py --planted   kernels with planted faults (planted.cu): each must be found

No kernel spills or has a stack. The kernels of the table, which move the bytes of a step, have limits as well (the table's head
explains its columns). Reads objects made by nvcc (`make` where there is one), with NVIDIA's cuobjdump and nvdisasm: from PATH or
the toolkit, else from their packages on PyPI, which are kept in build/nvidia-tools. The last line is 'N passed, M failed'.
"""
import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TABLE = os.path.join(ROOT, "tests", "kernels", "limits.txt")
TOOLS = os.path.join(ROOT, "build", "nvidia-tools")
PACKAGES = ["nvidia-cuda-cuobjdump==13.4.92", "nvidia-cuda-nvdisasm==13.4.92"]
ARCHITECTURE = "sm_90a"
# Of a multiprocessor of that architecture (CUDA C++ programming guide): limits, and units of allocation
WARPS, BLOCKS, REGISTERS, SHARED = 64, 32, 65536, 233472
REGISTERS_UNIT, SHARED_UNIT, SHARED_RESERVED = 256, 128, 1024
ACCESS = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ +)?(?:LDG|STG|LDGSTS|LD|ST)\.(\S+)", re.M)  # of global memory


class Kernel:
    """What one kernel became: registers a thread, bytes of stack and of shared memory a block, its accesses."""

    def __init__(self, name, registers, stack, shared):
        self.name, self.registers, self.stack, self.shared = name, registers, stack, shared
        self.wide = self.narrow = 0  # accesses of 16 bytes, of fewer

    def warps(self, threads):
        """Warps that are resident on a multiprocessor with blocks of `threads` threads."""
        warps = -(-threads // 32)
        unit = -(-self.registers * 32 // REGISTERS_UNIT) * REGISTERS_UNIT
        shared = max(-(-self.shared // SHARED_UNIT) * SHARED_UNIT, SHARED_RESERVED)
        by_registers = REGISTERS // 4 // unit * 4 // warps  # each quarter of the multiprocessor has a quarter of them
        return min(WARPS // warps, BLOCKS, by_registers, SHARED // shared) * warps


# --- the tools --------------------------------------------------------------------------------------------------------

def fetch_tools():
    candidates = [os.environ.get("ZTRAIN_PYTHON"), os.path.join(ROOT, "build", "venv", "bin", "python"), sys.executable]
    pythons = [p for p in candidates if p and shutil.which(p) and not subprocess.run(
        [p, "-m", "pip", "--version"], capture_output=True, check=False).returncode]
    with tempfile.TemporaryDirectory() as top:
        if not pythons:
            subprocess.run([sys.executable, "-m", "venv", f"{top}/venv"], check=True)
            pythons = [f"{top}/venv/bin/python"]
        subprocess.run([pythons[0], "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "-d", top, *PACKAGES],
                       check=True)
        for wheel in glob.glob(f"{top}/*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if "/bin/" in name:
                        path = os.path.join(TOOLS, os.path.basename(name))
                        os.makedirs(TOOLS, exist_ok=True)
                        with open(path, "wb") as f:
                            f.write(archive.read(name))
                        os.chmod(path, 0o755)


def tool(name):
    places = [os.environ.get("PATH", ""), os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin"), TOOLS]
    found = shutil.which(name, path=":".join(places))
    if not found:
        fetch_tools()
        found = shutil.which(name, path=TOOLS)
    return found or sys.exit(f"check_kernels: there is no {name}; hint: add the folder of CUDA's tools to PATH")


def compiler():
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def release():
    """Of nvcc, as in the head of the table, because the numbers of registers are those of a release."""
    said = subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=True).stdout if compiler() else ""
    found = re.search(r"release (\d+\.\d+)", said)
    return found.group(1) if found else "unknown"


def output(*command, cwd=None):
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd).stdout


# --- what the objects hold --------------------------------------------------------------------------------------------

def readable(names):
    """cross_entropy_kernel<bf16, float, 8> for each symbol."""
    lines = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    short = {"(anonymous namespace)::": "", "__nv_bfloat16": "bf16", "__half": "f16", "void ": ""}
    found = {}
    for name, line in zip(names, lines):
        for old, new in short.items():
            line = line.replace(old, new)
        found[name] = line.split("(")[0]
    return found


def kernels_of(path):
    """The kernels of an object for ARCHITECTURE, by readable name."""
    usage = output(tool("cuobjdump"), "--dump-resource-usage", "-arch", ARCHITECTURE, path)
    rows = re.findall(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", usage)
    names = readable([row[0] for row in rows])
    kernels = {row[0]: Kernel(names[row[0]], int(row[1]), int(row[2]) + int(row[4]), int(row[3])) for row in rows}
    with tempfile.TemporaryDirectory() as top:
        output(tool("cuobjdump"), "-xelf", ARCHITECTURE, os.path.abspath(path), cwd=top)
        for cubin in glob.glob(f"{top}/*.cubin"):
            for name, code in re.findall(r"^\.text\.(\S+):\n(.*?)(?=^//-----|\Z)", output(tool("nvdisasm"), "-c", cubin), re.M | re.S):
                for kind in ACCESS.findall(code):
                    wide = "128" in kind.split(".")
                    kernels[name].wide += wide
                    kernels[name].narrow += not wide
    return {kernel.name: kernel for kernel in kernels.values()}


# --- the table --------------------------------------------------------------------------------------------------------

HEAD = """\
# What tests/kernels/check_kernels.py holds; its --write rewrites the numbers after `threads` (look at the diff).
# Made by nvcc {release} for {architecture}: with another release only stacks and accesses are compared.
#
# threads     of a block in a usual launch (norms: rows of 1024 elements; norm_bwd<..., 2, ...>, whose threads hold two vectors of
#             a row: the longest rows)
# registers   a thread, at most
# warps       that a multiprocessor holds at the same time, of 64, at least
# narrow      accesses of global memory below 16 bytes in its code, at most: scalars of a row, and the ends of arrays. A new one
#             may be a loop that lost its 16-byte accesses. Each kernel has at least one access of 16 bytes. "-": its lanes
#             read neighbouring elements, so that a warp's access is wide.
"""


def read_table(text):
    """The release of nvcc and the rows: kernel, threads, registers, warps, narrow."""
    made = re.search(r"^# Made by nvcc (\S+)", text, re.M)
    rows = [line.rsplit(None, 4) for line in text.splitlines() if line and not line.startswith(("#", "kernel "))]
    return made.group(1) if made else None, [(row[0].strip(), *(None if n == "-" else int(n) for n in row[1:])) for row in rows]


def write_table(rows, kernels):
    lines = [f"{'kernel':<46} {'threads':>8} {'registers':>10} {'warps':>6} {'narrow':>7}"]
    for name, threads, *_, narrow in rows:
        kernel = kernels.get(name) or sys.exit(f"check_kernels: no kernel '{name}': take its row out of {TABLE}, or correct it")
        lines.append(f"{name:<46} {threads:>8} {kernel.registers:>10} {kernel.warps(threads):>6} {'-' if narrow is None else kernel.narrow:>7}")
    with open(TABLE, "w", encoding="utf-8") as f:
        f.write(HEAD.format(release=release(), architecture=ARCHITECTURE) + "\n" + "\n".join(lines) + "\n")


def compare(kernels, rows, same_release):
    """Messages about what is beyond the table."""
    wrong = [f"{kernel.name}: {kernel.stack} bytes of stack or spills" for kernel in kernels.values() if kernel.stack]
    for name, threads, registers, warps, narrow in rows:
        kernel = kernels.get(name)
        if not kernel:
            wrong.append(f"{name}: there is no such kernel")
            continue
        if same_release and kernel.registers > registers:
            wrong.append(f"{name}: {kernel.registers} registers, at most {registers}")
        if same_release and kernel.warps(threads) < warps:
            wrong.append(f"{name}: {kernel.warps(threads)} warps on a multiprocessor, at least {warps}")
        if narrow is None:
            continue
        if kernel.narrow > narrow:
            wrong.append(f"{name}: {kernel.narrow} accesses below 16 bytes, at most {narrow}")
        if not kernel.wide:
            wrong.append(f"{name}: no access of 16 bytes")
    return wrong


PLANTED = """\
good_kernel 256 32 48 0
narrow_kernel 256 64 16 0
half_kernel 256 64 16 0
registers_kernel 256 32 16 100
occupancy_kernel 256 255 64 100
spill_kernel 256 255 8 100
gone_kernel 256 255 8 100
"""
FAULTS = {"narrow_kernel": "no access of 16 bytes", "half_kernel": "accesses below 16 bytes", "registers_kernel": "registers, at most",
          "occupancy_kernel": "warps on a multiprocessor", "spill_kernel": "bytes of stack", "gone_kernel": "no such kernel"}


def check_planted():
    with tempfile.TemporaryDirectory() as top:
        subprocess.run([compiler() or sys.exit("check_kernels: --planted needs nvcc"), "-std=c++17", "-O3", f"-arch={ARCHITECTURE}", "-c",
                        os.path.join(ROOT, "tests", "kernels", "planted.cu"), "-o", f"{top}/planted.o"], check=True)
        wrong = compare(kernels_of(f"{top}/planted.o"), read_table(PLANTED)[1], True)
    missed = [f"{name}: its fault was not found" for name, word in FAULTS.items()
              if not any(said.startswith(f"{name}: ") and word in said for said in wrong)]
    return missed + [said for said in wrong if said.startswith("good_kernel")], len(FAULTS) + 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", default=os.path.join(ROOT, "build", "obj", "gpu", "cuda"), help="folder of nvcc's objects")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--planted", action="store_true")
    arguments = parser.parse_args()
    if arguments.planted:
        wrong, count = check_planted()
    else:
        sources = sorted(glob.glob(os.path.join(ROOT, "gpu", "cuda", "*", "*.cu")))
        kernels = {}
        for source in sources:
            kernels.update(kernels_of(os.path.join(arguments.objects, os.path.relpath(source, os.path.join(ROOT, "gpu", "cuda"))[:-3] + ".o")))
        with open(TABLE, encoding="utf-8") as f:
            made, rows = read_table(f.read())
        if arguments.write:
            write_table(rows, kernels)
            return
        if made != release():
            print(f"registers and warps are left out: the table was made by nvcc {made}, and this is {release()}")
        wrong, count = compare(kernels, rows, made == release()), len(kernels) + len(rows)
    for said in wrong:
        print(said)
    if wrong and not arguments.planted:
        print("hint: after a change that was meant, tests/kernels/check_kernels.py --write")
    print(f"{count - len(wrong)} passed, {len(wrong)} failed")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""The CPU device on a CPU with AMX.

Where the CPU has AMX, the programs run as they are. Elsewhere tests/amx/amx.c emulates it, and counts the products of tiles.
The emulation needs a CPU with AVX-512.
"""
import json
import os
import re
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from prepare import prepare  # noqa: E402


with open("/proc/cpuinfo", encoding="ascii") as cpuinfo:
    FLAGS = set(cpuinfo.read().split())
BF16 = "avx512_bf16" in FLAGS
REAL = {"amx_tile", "amx_bf16"} <= FLAGS


class Machine:
    """ztrain and ops-test as a CPU with AMX runs them."""

    def __init__(self, folder):
        self.folder, self.count = folder, os.path.join(folder, "count")
        self.preloaded = {} if REAL else {"LD_PRELOAD": os.path.join(BUILD, "amx", "libamx.so")}
        for name in ("ztrain", "ops-test"):
            if REAL:
                os.symlink(os.path.join(BUILD, name), os.path.join(folder, name))
            else:
                assert prepare(os.path.join(BUILD, name), os.path.join(folder, name)) > 0

    def execute(self, command, cores=None, **environment):
        """The output of a command; ends the test if it fails. self.products: how many products of tiles each process of
        ours made in it, as the emulation counts them."""
        if os.path.exists(self.count):
            os.remove(self.count)
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
                                preexec_fn=lambda: os.sched_setaffinity(0, cores or os.sched_getaffinity(0)),
                                env={**os.environ, "ZTRAIN_AMX_COUNT": self.count, **environment})
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
        if not REAL:
            with open(self.count, encoding="ascii") as file:
                self.products = [int(line.split()[1]) for line in file]
        return result.stdout + result.stderr

    def run(self, name, *arguments, **more):
        """One of our programs."""
        return self.execute([os.path.join(self.folder, name), *arguments], **self.preloaded, **more)


@pytest.fixture(scope="module", name="machine")
def fixture_machine(tmp_path_factory):
    return Machine(str(tmp_path_factory.mktemp("amx")))


def golden(case):
    return os.path.join(ROOT, "tests", "golden", case, "run.yaml")


def losses(folder):
    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
        return [(line["step"], line["loss"], line["grad_norm"]) for line in map(json.loads, file) if "loss" in line]


def test_doctor(machine):
    text = machine.run("ztrain", "doctor")
    more = ["avx512_bf16"] * BF16 + ["amx_bf16"]
    assert re.search(rf"instruction sets +{', '.join(['avx512', *more])}", text)
    assert re.search(rf"cpu device +avx512 with {' and '.join(more)} kernels, GEMM: fp32 builtin, bf16 builtin \(amx, ", text)
    assert re.search(r"bf16 products +amx \d+, .*widen \d+ GFLOP/s a core; in use: amx, (dot|widen)\n", text)


def test_products(machine):
    """All products of the op tests, against float64."""
    text = machine.run("ops-test", "test", "--op", "linear", "--dtype", "bf16")
    assert re.search(r"^[1-9]\d* passed, 0 failed$", text, re.MULTILINE)
    assert REAL or machine.products[0] > 100000


@pytest.mark.parametrize("arguments", [("--stage", "0", "--ranks", "1", "--case", "gpt2-padded", "--case", "qwen3"),
                                       ("--stage", "3", "--ranks", "2")], ids=["one rank", "ZeRO-3 on two"])
def test_golden(machine, arguments):
    """What transformers computed."""
    script = os.path.join(machine.folder, "golden")
    with open(script, "w", encoding="utf-8") as file:
        preload = "".join(f"{name}={value} " for name, value in machine.preloaded.items())
        file.write(f"#!/bin/sh\n{preload}exec {machine.folder}/ztrain \"$@\"\n")
    os.chmod(script, 0o755)
    text = machine.execute(["tests/golden/check_golden.py", "--ztrain", script, "--dtype", "bf16", *arguments])
    passed = re.search(r"^([1-9]\d*) passed, 0 failed$", text, re.MULTILINE)
    assert passed, text
    assert REAL or sum(products > 1000 for products in machine.products) >= int(arguments[3]) * int(passed[1])


def test_bits_do_not_depend_on_threads(machine, tmp_path):
    """There are as many threads as cores that may be used."""
    cores, seen = os.sched_getaffinity(0), []
    for some in ({min(cores)}, cores):
        machine.run("ztrain", "--config", golden("gpt2"), "--set", f"run.dir={tmp_path}", "--set", "bf16.enabled=true",
                    "--set", f"run.name={len(some)}", "--set", "train.max_steps=4", cores=some)
        seen.append(losses(tmp_path / str(len(some))))
    assert len(seen[0]) == 4 and seen[0] == seen[-1]


def test_resume(machine, tmp_path):
    """Bit for bit, as everywhere."""
    common = ["--config", golden("gpt2"), "--set", f"run.dir={tmp_path}", "--set", "bf16.enabled=true"]
    machine.run("ztrain", *common, "--set", "run.name=whole")
    machine.run("ztrain", *common, "--set", "run.name=cut", "--set", "train.max_steps=3")
    machine.run("ztrain", *common, "--set", "run.name=cut", "--resume", str(tmp_path / "cut"))
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")


def test_less_than_amx_may_be_asked_for(machine):
    text = machine.run("ops-test", "test", "--op", "linear_fwd", "--dtype", "bf16", ZTRAIN_CPU_ISA="avx2")
    assert "avx2 kernels" in text and (REAL or machine.products == [0])

# SPDX-License-Identifier: Apache-2.0
"""Whose fault it is that work on a GPU has failed: NVML's word, a self-test in a new process, or else software (cmd/engine/gpu_fault.c).

The planted fault comes with a kernel that a run reaches and the self-test does not, unless it shall fault as well.
"""
import os
import re
import socket
import subprocess

import pytest

import harness
from harness import BROKEN, DEVICE, PEER, ROOT, USAGE

HOST = socket.gethostname()
LATE, EARLY = 900, 100  # the self-test has about 610 kernels
ILLEGAL, MISALIGNED, LAUNCH, ASSERT = 700, 716, 719, 710
SOFTWARE = "a fault of software, not of this node: NVML reports no Xid of the hardware and no ECC error, and a self-test in a new process passes"


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    monkeypatch.setattr(harness, "ZTRAIN", os.path.join(ROOT, "build", "emulation", "ztrain"))
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", "")


def spec_of(folder):
    return folder.spec({"data": {"validation": None}, "train_batch_size": 4, "train_micro_batch_size_per_gpu": 1,
                        "train": {"epochs": None, "max_steps": 1000000, "device": "cuda", "cuda_graphs": False}})


def failed(folder, code, at, nvml, expect, **env):
    env = {"ZTRAIN_EMULATION_FAILS": f"{code}@{at}", **({"ZTRAIN_EMULATION_NVML": nvml} if nvml else {}), **env}
    return folder.ztrain("--config", spec_of(folder), env=env, expect=expect).final_error


@pytest.mark.parametrize("code, name, nvml", [
    (ILLEGAL, "cudaErrorIllegalAddress", "xid=79"), (LAUNCH, "cudaErrorLaunchFailure", "ecc=2"), (ASSERT, "cudaErrorAssert", "lost=1"),
])
def test_nvml_has_the_reason(folder, code, name, nvml):
    """No self-test is run then."""
    reason = {"xid=79": "Xid 79", "ecc=2": "uncorrectable ECC errors: 2", "lost=1": "that the GPU is lost"}[nvml]
    final = failed(folder, code, EARLY, nvml, BROKEN, ZTRAIN_EMULATION_LOSES="adam")
    assert re.search(rf"^ztrain: error: rank 0 on {HOST}: GPU 0 \(emulated GPU\): .* \({name}\): the GPU is broken: NVML reports {reason}; hint: dmesg",
                     final), final


def test_a_self_test_that_faults(folder):
    """As well as the run: the GPU is broken, unless the same happens on another node (tests/program/test_train_sbatch.py)."""
    final = failed(folder, MISALIGNED, EARLY, "xid=43", BROKEN)
    assert f"rank 0 on {HOST}: GPU 0 (emulated GPU): " in final and "(cudaErrorMisalignedAddress): the GPU is broken: its " \
        "self-test in a new process fails: the check of norm_bwd: GPU 0 (emulated GPU): " in final and final.count("hint: ") == 1, final
    why = " ".join(folder.ztrain("why", folder.run_folder()).out.split())
    assert "ended the job with an error of its own." in why and "its self-test in a new process fails" in why, why


def ranks(folder, nvml, own, expect):
    """The output of both ranks, and of why, after a fault of rank 1's GPU."""
    done = harness.Job(folder, "--config", spec_of(folder), nodes=[0, 0], env_of={1: own},
                       env={"ZTRAIN_EMULATION_GPUS": "2", "ZTRAIN_EMULATION_NVML": nvml}).train(expect)
    assert f"error: rank 1 on {HOST}: " in done[1].err and "illegal memory access was encountered" in done[1].err, done[1]
    assert f"rank 1 on {HOST} ended: " in done[0].err, done[0]
    why = " ".join(folder.ztrain("why", folder.run_folder()).out.split())
    assert re.search(rf"Rank 1 on {HOST} \(process \d+\) ended the job", why), why
    return done[1].err, why


def test_a_right_self_test(folder):
    """31 is an Xid that programs cause."""
    err, why = ranks(folder, "xid=31", {"ZTRAIN_EMULATION_FAILS": f"{ILLEGAL}@{LATE}"}, PEER)
    assert f" (cudaErrorIllegalAddress): {SOFTWARE}; hint: resume, and report this message" in err, err
    assert "; CUDA_LAUNCH_BLOCKING=1 makes it name the call" in err and err.count("hint: ") == 1, err
    assert "ended the job: work on its GPU failed, by a fault of software, not of its node." in why, why
    assert f'Rank 1 ended with exit code 6: "rank 1 on {HOST}: GPU ' in why and "(cudaErrorIllegalAddress): a fault of software" in why, why


def test_nccl_finds_it_first(folder):
    err, why = ranks(folder, "xid=48", {"ZTRAIN_EMULATION_NCCL": "fault=60"}, BROKEN)
    words = "Cuda failure 700 'an illegal memory access was encountered': the GPU is broken: NVML reports Xid 48; hint: dmesg has"
    assert words in err and "the GPU is broken: NVML reports Xid 48" in why, (err, why)


def test_what_gpu_check_asks_a_real_gpu():
    """ops-test fault; here the self-test has the planted fault, too."""
    for code, nvml, right in ((ILLEGAL, "xid=31", 2), (LAUNCH, "events=none", 0)):
        done = subprocess.run([os.path.join(ROOT, "build", "emulation", "ops-test"), "fault", "--device", "cuda"], capture_output=True,
                              text=True, check=False, env={**os.environ, "ZTRAIN_EMULATION_FAILS": f"{code}@1", "ZTRAIN_EMULATION_NVML": nvml})
        lines = done.stdout.splitlines()[1:]
        assert done.returncode == 1 and [line.split()[0] for line in lines] == ["passed"] * right + ["FAILED"] * (3 - right), done.stdout
        assert "a self-test in a new process: ztrain: error: the check of " in lines[2], done.stdout
        assert ("NVML has events, and blames no hardware: it has no events" in lines[1]) == (not right), done.stdout


def test_the_number_of_a_gpu(folder):
    two = {"ZTRAIN_EMULATION_GPUS": "2"}
    assert "cannot open GPU 2: this process sees 2" in folder.ztrain("doctor", "--gpu-test", "--gpu=2", env=two, expect=DEVICE).err
    for wrong in (["--gpu", "0"], ["--gpu-test", "--gpu", "first"]):
        assert "doctor --gpu N is the number of a GPU, with --gpu-test" in folder.ztrain("doctor", *wrong, expect=USAGE).err

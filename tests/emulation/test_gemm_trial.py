"""Kernels of matrix products on trial: one that faults is named and left out, one that is refused is left out, and choices are
not kept from a GPU that is throttled."""
import os

import pytest

import harness
from harness import ROOT, USAGE


@pytest.fixture(autouse=True)
def emulated(monkeypatch, tmp_path):
    monkeypatch.setattr(harness, "ZTRAIN", os.path.join(ROOT, "build", "emulation", "ztrain"))
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", str(tmp_path / "cache"))


def spec_of(folder, name="run"):
    return folder.spec({"data": {"validation": None}, "train_batch_size": 4, "train_micro_batch_size_per_gpu": 2,
                        "train": {"epochs": None, "max_steps": 1, "device": "cuda"}}, name)


def cache():
    folder = os.environ["ZTRAIN_GEMM_CACHE"]
    return {name.split(".txt")[1]: open(os.path.join(folder, name), encoding="utf-8").read()
            for name in os.listdir(folder) if name.startswith("gemm-")}


def test_a_kernel_that_faults_is_left_out(folder):
    dies = {"ZTRAIN_EMULATION_GEMM": "dies"}
    folder.ztrain("--config", spec_of(folder, "first"), env=dies, expect=99)
    noted = cache()[".trial"]
    done = folder.ztrain("--config", spec_of(folder, "second"), env=dies)
    words = noted.split(" ", 1)[1].strip()
    assert f"a process ended while it tried a kernel for the matrix product {words}: that kernel is left out" in done.err, done
    assert cache()[".faulty"] == noted and ".trial" not in cache()
    again = {**dies, "ZTRAIN_GEMM_MEASURE": "again"}
    done = folder.ztrain("--config", spec_of(folder, "third"), env=again)
    assert "a process ended" not in done.err and "measured " in done.out
    assert "measured " not in folder.ztrain("--config", spec_of(folder, "fourth"), env=dies).out


def test_a_kernel_that_is_refused_is_left_out(folder):
    done = folder.ztrain("--config", spec_of(folder), env={"ZTRAIN_EMULATION_GEMM": "refuses"})
    assert "measured " in done.out and ".faulty" not in cache() and ".trial" not in cache(), done


def test_a_throttled_gpu_keeps_no_choice(folder):
    done = folder.ztrain("--config", spec_of(folder), env={"ZTRAIN_EMULATION_NVML": "throttle=32"})
    assert "the GPU is throttled (hot (driver)): the kernels chosen for " in done.err and "" not in cache(), done
    capped = {"ZTRAIN_EMULATION_NVML": "throttle=4"}  # a power cap is usual
    assert "throttled" not in folder.ztrain("--config", spec_of(folder, "capped"), env=capped).err and "" in cache()


def test_a_wrong_word_is_refused(folder):
    done = folder.ztrain("--config", spec_of(folder), env={"ZTRAIN_GEMM_MEASURE": "yes"}, expect=USAGE)
    assert "ZTRAIN_GEMM_MEASURE must be again, not 'yes'" in done.err

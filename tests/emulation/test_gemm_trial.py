# SPDX-License-Identifier: Apache-2.0
"""Kernels of matrix products on trial: one that faults is named and left out, one that is refused is left out, and choices are
not kept from a GPU that is throttled."""
import ctypes
import os
import struct

import pytest

import harness
from harness import GPT2, ROOT, USAGE


@pytest.fixture(autouse=True)
def emulated(monkeypatch, tmp_path):
    monkeypatch.setattr(harness, "ZTRAIN", os.path.join(ROOT, "build", "emulation", "ztrain"))
    monkeypatch.setattr(harness, "OPTIONS_OF_RUNS", ["--verbose"])
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", str(tmp_path / "cache"))


WAY_FIELD = 22  # after the key's, before the algorithm's


def xxh64(data, seed):
    """The hash of the notes on kernels (gpu/autotune_cache.c)."""
    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH64.restype = ctypes.c_uint64
    return library.XXH64(data, ctypes.c_size_t(len(data)), ctypes.c_uint64(seed))


def spec_of(folder, name="run"):
    return folder.spec({"data": {"validation": None}, "train_batch_size": 4, "train_micro_batch_size_per_gpu": 2,
                        "train": {"epochs": None, "max_steps": 1, "device": "cuda"}}, name)


def cache():
    folder = os.environ["ZTRAIN_GEMM_CACHE"]
    return {name.split(".txt")[1]: open(os.path.join(folder, name), encoding="utf-8").read()
            for name in os.listdir(folder) if name.startswith("gemm-")}


def note_fault(line, folder):
    """As if the kernel of a line of a product had faulted on this machine."""
    key = struct.pack(f"{WAY_FIELD - 1}q", *map(int, line[1:WAY_FIELD]))
    algorithm = struct.pack("8Q", *(int(line[WAY_FIELD + 1][i:i + 16], 16) for i in range(0, 128, 16)))
    with open(os.path.join(folder, "gemm-emulated-GPU-130100.txt.faulty"), "a", encoding="utf-8") as f:
        f.write(f"{xxh64(algorithm, xxh64(key, 0)):016x} m 1 n 1 k 1\n")


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


def test_a_kernel_that_has_faulted_here_is_not_taken_from_the_run_folder(folder, monkeypatch, tmp_path):
    """The run has computed with it on another machine."""
    folder.ztrain("--config", spec_of(folder))
    kernels = os.path.join(folder.run_folder("run"), "kernels-emulated-GPU.txt")
    with open(kernels, encoding="utf-8") as f:
        before = [line.split() for line in f if line.startswith("gemm ")]
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", str(tmp_path / "other"))
    os.makedirs(tmp_path / "other")
    for line in before:
        note_fault(line, tmp_path / "other")
    done = folder.ztrain("--config", spec_of(folder), "--resume", folder.run_folder("run"), "--set", "train.max_steps=2")
    assert "those that the run has computed with" in done.out and "measured " in done.out, done
    with open(kernels, encoding="utf-8") as f:
        after = {tuple(line.split()[1:WAY_FIELD]): line.split()[WAY_FIELD + 1] for line in f if line.startswith("gemm ")}
    assert all(after[tuple(line[1:WAY_FIELD])] != line[WAY_FIELD + 1] for line in before)


def test_a_run_says_that_it_cannot_take_its_kernels(folder):
    folder.ztrain("--config", spec_of(folder))
    done = folder.ztrain("--config", spec_of(folder), "--resume", folder.run_folder("run"), "--set", "train.max_steps=2",
                         env={"ZTRAIN_GEMM_CACHE": ""})
    assert "cannot use the run's kernels in " in done.err and "there is no folder for choices of kernels" in done.err, done


def test_a_kernel_that_is_refused_is_left_out(folder):
    done = folder.ztrain("--config", spec_of(folder), env={"ZTRAIN_EMULATION_GEMM": "refuses"})
    assert "measured " in done.out and ".faulty" not in cache() and ".trial" not in cache(), done


def test_a_throttled_gpu_keeps_no_choice(folder):
    done = folder.ztrain("--config", spec_of(folder), env={"ZTRAIN_EMULATION_NVML": "throttle=32"})
    assert "the GPU is throttled (driver's heat limit): the kernels chosen for " in done.err and "" not in cache(), done
    capped = {"ZTRAIN_EMULATION_NVML": "throttle=4"}  # a power cap is usual
    assert "throttled" not in folder.ztrain("--config", spec_of(folder, "capped"), env=capped).err and "" in cache()


def test_a_wrong_word_is_refused(folder):
    done = folder.ztrain("--config", spec_of(folder), env={"ZTRAIN_GEMM_MEASURE": "yes"}, expect=USAGE)
    assert "ZTRAIN_GEMM_MEASURE must be again, not 'yes'" in done.err


# ---- with the epilogue, or without it and with a kernel ----

UNTIMED, FUSED, UNFUSED = range(3)
EPILOGUES = BIAS, GELU_AUX_BIAS, DGELU, BGRADA = 1, 3, 4, 5  # of GPT-2's products
EPILOGUE_FIELD = 12


def entries(kind, name=""):
    """The fields of the lines of a kind: products or attention."""
    return [line.split() for line in cache()[name].splitlines()[3:] if line.startswith(kind + " ")]


def ways(name=""):
    """The ways of the products in the cache by their epilogue."""
    found = {}
    for fields in entries("gemm", name):
        found.setdefault(int(fields[EPILOGUE_FIELD]), set()).add(int(fields[WAY_FIELD]))
    assert set(found) == {0, *EPILOGUES} and found[0] == {UNTIMED}, found
    return set.union(*(found[epilogue] for epilogue in EPILOGUES))


def trained(folder, name, **env):
    """What a run of two micro-batches in bf16 computed, and what it said."""
    model = {**GPT2, "n_embd": 16, "n_head": 2, "n_layer": 1, "n_positions": 8}
    spec = folder.spec({"model": {"config": model}, "data": {"validation": None, "seq_length": 8}, "bf16": {"enabled": True},
                        "train_batch_size": 2, "train_micro_batch_size_per_gpu": 1,
                        "train": {"epochs": None, "max_steps": 1, "device": "cuda"}}, name)
    done = folder.ztrain("--config", spec, env={"ZTRAIN_GPU_TEST": "never", **env})
    return folder.metrics(name).numbers(), done


def test_the_faster_way_is_kept_and_obeyed(folder, tmp_path, monkeypatch):
    """Both ways give the same within rounding. The cache decides between them, whatever would be faster today; a way that was
    forced is not kept."""
    fast, done = trained(folder, "fast", ZTRAIN_EMULATION_EPILOGUES="fast")
    assert "measured " in done.out and "epilogue" not in done.err and ways() == {FUSED}, done
    again, done = trained(folder, "again", ZTRAIN_EMULATION_EPILOGUES="slow")
    assert again == fast and "measured " not in done.out and ways() == {FUSED}, done
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", str(tmp_path / "other"))
    forced, done = trained(folder, "forced", ZTRAIN_EMULATION_EPILOGUES="slow", ZTRAIN_GEMM_EPILOGUES="fused")
    assert "measured " in done.out and ways() == {UNTIMED}, done
    slow, done = trained(folder, "slow", ZTRAIN_EMULATION_EPILOGUES="slow")
    assert "measured " in done.out and ways() == {UNFUSED} and slow != forced, done
    for numbers in (fast, forced):
        step, other = numbers[0], slow[0]
        assert step["loss"] == pytest.approx(other["loss"], rel=2e-3)
        assert step["grad_norm"] == pytest.approx(other["grad_norm"], rel=2e-2)


def test_a_wrong_epilogue_is_named_and_left_out(folder):
    found, done = trained(folder, "wrong", ZTRAIN_EMULATION_EPILOGUES="wrong")
    for name in ("a bias", "a bias and GELU", "GELU's slope", "bias gradients"):
        assert f" with {name} as its epilogue computes something else than without (element " in done.err, done
    assert ways() == {UNFUSED}
    assert trained(folder, "right", ZTRAIN_GEMM_EPILOGUES="unfused")[0] == found


def test_a_wrong_way_is_refused(folder):
    done = folder.ztrain("--config", spec_of(folder), env={"ZTRAIN_GEMM_EPILOGUES": "yes"}, expect=USAGE)
    assert "ZTRAIN_GEMM_EPILOGUES must be fused or unfused, not 'yes'" in done.err

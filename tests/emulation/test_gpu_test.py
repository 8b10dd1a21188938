# SPDX-License-Identifier: Apache-2.0
"""The self-test of a GPU finds planted faults of the emulated one: a run does without what has an alternative, else it ends with 5."""
import os
import re

import pytest

import harness
from harness import DEVICE, ROOT, USAGE

FUSED = "fused epilogues of matrix products"


@pytest.fixture(autouse=True)
def emulated(monkeypatch, tmp_path):
    monkeypatch.setattr(harness, "ZTRAIN", os.path.join(ROOT, "build", "emulation", "ztrain"))
    monkeypatch.setattr(harness, "OPTIONS_OF_RUNS", ["--verbose"])
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ZTRAIN_GPU_TEST", raising=False)


def spec_of(folder, name="run", **train):
    changes = {"data": {"validation": None}, "train_batch_size": 4, "train_micro_batch_size_per_gpu": 2,
               "bf16": {"enabled": True}, "train": {"epochs": None, "max_steps": 1, "device": "cuda", **train}}
    return folder.spec(changes, name)


def test_every_check_has_a_line(folder):
    out = folder.ztrain("doctor", "--gpu-test", "--gpu", "1", env={"ZTRAIN_EMULATION_GPUS": "2"}).out
    assert "GPU 1 of 2" in out
    with open(os.path.join(ROOT, "gpu", "ops.h"), encoding="utf-8") as f:
        ops = re.findall(r"X\((\w+)\)", f.read().split("#define OPS_LIST(X)")[1].split("#define")[0])
    assert len(ops) > 20
    for op in ops:
        assert re.search(rf"^  op {op} +right$", out, re.M), (op, out)
    assert re.search(r"^  a captured step +right$", out, re.M) and "WRONG" not in out and "do without" not in out, out


def test_takes_two_seconds_by_what_it_does(folder):
    """Assumed costs (docs/cuda.md) of what the emulated GPU counts: a kernel and a product are loaded when they first run."""
    done = folder.ztrain("doctor", "--gpu-test", env={"ZTRAIN_EMULATION_STATS": "1"})
    assert re.search(r"^  time +\d+\.\d s$", done.out, re.M), done.out
    kernels, copies, products, waits = map(int, re.search(
        r"emulation: (\d+) kernels, (\d+) copies and fills, (\d+) products, .* (\d+) waits", done.err).groups())
    seconds = 1e-3 * kernels + 5e-3 * products + 5e-5 * (copies + waits)
    assert 0.1 < seconds <= 2, (kernels, copies, products, waits)
    with open(os.path.join(ROOT, "docs", "cuda.md"), encoding="utf-8") as f:
        page = " ".join(f.read().split())
    written = re.search(r"the emulated GPU counts about (\d+) kernels, (\d+) products and ([\d,]+) copies and waits", page).groups()
    for count, text in zip((kernels, products, copies + waits), written):
        assert abs(count - int(text.replace(",", ""))) <= 0.1 * count, (count, text)


def test_no_gpu(folder):
    done = folder.ztrain("doctor", "--gpu-test", env={"ZTRAIN_EMULATION_GPUS": "0"}, expect=DEVICE)
    assert "doctor --gpu-test: there is no GPU to test: the NVIDIA driver shows no GPU" in done.err
    done = folder.ztrain("doctor", "--gpu-tset", expect=USAGE)
    assert "--gpu-tset" in done.err
    done = folder.ztrain("doctor", "--gpu-test", "now", expect=USAGE)
    assert "doctor: unexpected argument 'now'" in done.err
    assert "usage: ztrain doctor" in folder.ztrain("doctor", "--gpu-test", "--help").out


def test_doctor_and_libraries(folder):
    """A folder that is not there is named once; a missing library with its package."""
    done = folder.ztrain("doctor", env={"ZTRAIN_CUDA_LIBRARIES": f"/nowhere:{folder.path}"})
    assert done.err.count("ZTRAIN_CUDA_LIBRARIES: there is no folder ") == done.err.count("'/nowhere'") == 1, done
    for file, package in (("libcudnn.so.9", "nvidia-cudnn-cu13"), ("libnccl.so.2", "libnccl2")):
        done = folder.ztrain("doctor", env={"ZTRAIN_EMULATION_WITHOUT": file})
        line, = [line for line in done.out.splitlines() if "cannot open " in line and file in line]
        assert package in line and "there is no folder" not in done.err, done


def test_a_wrong_op_ends_the_run(folder):
    lost = {"ZTRAIN_EMULATION_LOSES": "adam"}
    done = folder.ztrain("doctor", "--gpu-test", env=lost, expect=DEVICE)
    assert re.search(r"^  op adam +WRONG: in fp32, variant 0: element \d+ of \d+ is ", done.out, re.M), done
    assert re.search(r"^  op muon_update +right$", done.out, re.M), done
    done = folder.ztrain("--config", spec_of(folder), env=lost, expect=DEVICE)
    assert "the self-test of emulated GPU failed: op adam: in fp32, variant 0: element " in done.err, done
    assert "`ztrain doctor --gpu-test` shows every check" in done.err and not folder.checkpoints()


def test_a_wrong_epilogue_is_left_out(folder):
    """By all ranks, also if one of them alone finds it, and without a new test the next time."""
    wrong = {"ZTRAIN_EMULATION_EPILOGUES": "wrong"}
    done = folder.ztrain("doctor", "--gpu-test", env=wrong, expect=DEVICE)
    out = done.out
    assert f"error: the self-test of emulated GPU found wrong results with {FUSED}, which runs do without; hint: " in done.err, done
    assert re.search(rf"^  op linear_fwd +WRONG: in .*\n  op linear_fwd without {FUSED} +right$", out, re.M), out
    assert re.search(rf"^  runs do without +{FUSED}$", out, re.M), out
    warning = f"the self-test of emulated GPU found wrong results with {FUSED}: the run does without, and is slower"
    right = folder.ztrain("--config", spec_of(folder, "right"))
    assert "GPU self-test: " in right.out and warning not in right.err
    assert "GPU self-test: " not in folder.ztrain("--config", spec_of(folder, "again")).out
    job = harness.Job(folder, "--config", spec_of(folder, "first"), nodes=[0, 0], env={"ZTRAIN_EMULATION_GPUS": "2"},
                      env_of={1: {**wrong, "ZTRAIN_GPU_TEST": "always"}})
    assert warning in job.train()[0].err
    with open(os.path.join(os.environ["ZTRAIN_GEMM_CACHE"], "gpu-test-emulated-GPU.txt"), encoding="utf-8") as f:
        assert sorted(line.split()[1] for line in f) == ["0", "0", "1"]  # alone; two ranks, which have NCCL as well
    job = harness.Job(folder, "--config", spec_of(folder, "second"), nodes=[0, 0], env={"ZTRAIN_EMULATION_GPUS": "2"})
    done = job.train()
    assert warning in done[0].err and "GPU self-test: " not in done[0].out


def test_a_wrong_graph_is_left_out(folder):
    wrong = {"ZTRAIN_EMULATION_GRAPH_LOSES": "adam"}
    done = folder.ztrain("doctor", "--gpu-test", env=wrong, expect=DEVICE)
    out = done.out
    assert "found wrong results with CUDA graphs, which runs do without" in done.err, done
    assert re.search("WRONG: a captured step of a small model has .* than the same step op by op", out), out
    done = folder.ztrain("--config", spec_of(folder, cuda_graphs="auto"), env=wrong)
    assert "found wrong results with CUDA graphs: the run does without" in done.err, done
    done = folder.ztrain("--config", spec_of(folder, "demanded", cuda_graphs=True), env=wrong, expect=DEVICE)
    assert "train.cuda_graphs is true, but in the self-test of emulated GPU a captured step differed" in done.err, done


def test_tf32_is_right(folder):
    assert "WRONG" not in folder.ztrain("doctor", "--gpu-test", env={"ZTRAIN_CUDA_TF32": "1"}).out


def other_build(path):
    """Copies the binary, with another build ID, as if its kernels had changed."""
    with open(harness.ZTRAIN, "rb") as f:
        program = bytearray(f.read())
    note = program.find(b"\x14\0\0\0\x03\0\0\0GNU\0")  # 20 bytes follow
    assert note > 0
    program[note + 12] ^= 1
    with open(path, "wb") as f:
        f.write(program)
    os.chmod(path, 0o755)
    return path


def test_what_a_record_is_valid_for(folder, tmp_path, monkeypatch):
    """Products of the same kind, the same build; of a line that was cut off, no more than that one is lost."""
    names = iter(range(100))

    def tests(**env):
        return "GPU self-test: " in folder.ztrain("--config", spec_of(folder, f"run-{next(names)}"), env=env).out

    path = os.path.join(os.environ["ZTRAIN_GEMM_CACHE"], "gpu-test-emulated-GPU.txt")
    assert tests() and not tests()
    assert tests(ZTRAIN_CUDA_TF32="1") and not tests(ZTRAIN_CUDA_TF32="1") and not tests()
    with open(path, encoding="utf-8") as f:
        first, second = f.readlines()
    with open(path, "w", encoding="utf-8") as f:
        f.write(first + second[:20])
    assert not tests() and tests(ZTRAIN_CUDA_TF32="1") and not tests(ZTRAIN_CUDA_TF32="1")
    with open(path, "w", encoding="utf-8") as f:
        f.write(first[:-1])
    assert tests() and not tests()
    monkeypatch.setattr(harness, "ZTRAIN", other_build(tmp_path / "ztrain"))
    assert tests() and not tests()


def test_the_test_can_be_left_out(folder):
    lost = {"ZTRAIN_EMULATION_LOSES": "muon_update", "ZTRAIN_GPU_TEST": "never"}
    assert "GPU self-test" not in folder.ztrain("--config", spec_of(folder), env=lost).out
    done = folder.ztrain("--config", spec_of(folder, "other"), env={"ZTRAIN_GPU_TEST": "sometimes"}, expect=USAGE)
    assert "ZTRAIN_GPU_TEST must be never or always, not 'sometimes'" in done.err

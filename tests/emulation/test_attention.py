# SPDX-License-Identifier: Apache-2.0
"""Attention on the emulated GPU, through the emulated cuDNN and through ztrain's kernels.

They check which of the two is used, and that every reason not to use cuDNN leads to ztrain's kernels and a line in the log.
"""
import glob
import json
import os
import re
import subprocess
from ctypes.util import find_library

import pytest

from test_training import FEW

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EMULATION = os.path.join(ROOT, "build", "emulation")
ADDRESS = os.path.join(EMULATION, "address")
OPS = [(EMULATION, "cudnn", ()), (EMULATION, "own", ()), (ADDRESS, "own", ("--dtype", "bf16"))]
if os.environ.get("ZTRAIN_TEST_WHOLE"):
    OPS = [(folder, way, ()) for folder in (EMULATION, ADDRESS) for way in ("cudnn", "own")]


def run(command, code=0, **environment):
    """Returns stdout and stderr; fails the test if the program ends with another code."""
    environment.setdefault("ZTRAIN_GEMM_CACHE", os.path.join(EMULATION, "gemm-cache"))
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False,
                            env={**os.environ, **environment})
    output = result.stdout + result.stderr
    assert result.returncode == code, output[-6000:]
    return output


def golden(case, *arguments, **environment):
    return run(["tests/golden/check_golden.py", "--ztrain", os.path.join(EMULATION, "ztrain"), "--case", case,
                "--set", "train.device=cuda", *arguments], **environment)


def train(folder, *settings, code=0, case="qwen3", **environment):
    """One step of a small model with shared key/value heads, in bf16 unless the settings say otherwise."""
    command = [os.path.join(EMULATION, "ztrain"), "--config", f"tests/golden/{case}/run.yaml", "--verbose"]
    for setting in ("train.device=cuda", f"run.dir={folder}", "run.name=run", "bf16.enabled=true", "train.max_steps=1",
                    *settings):
        command += ["--set", setting]
    return run(command, code, **environment)


def config_like(folder, case, **changes):
    """Returns the path of a golden model's config.json with changes."""
    with open(os.path.join(ROOT, "tests", "golden", case, "config.json"), encoding="utf-8") as file:
        config = {**json.load(file), **changes}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder / "config.json"


@pytest.mark.parametrize("folder, way, more", OPS, ids=[f"{way}-{os.path.basename(folder)}" for folder, way, _ in OPS])
def test_ops(folder, way, more):
    """Next to .ci/run's tests of all other ops."""
    output = run([os.path.join(folder, "ops-test"), "test", "--device", "cuda", "--op", "attention", *more],
                 ZTRAIN_CUDA_ATTENTION=way)
    assert re.search(r"^[1-9]\d* passed, 0 failed$", output, re.M)
    if way == "own":
        assert "attention: ztrain's kernels, as ZTRAIN_CUDA_ATTENTION=own asks for" in output
    else:
        assert int(re.search(r"attention: cuDNN for (\d+) of \d+ shapes", output)[1]) >= 20


@pytest.mark.parametrize("case", ["llama-bias", "llama3-rope", "qwen3"])
def test_golden_through_cudnn(case):
    golden(case, "--dtype", "bf16", *FEW, ZTRAIN_CUDA_ATTENTION="cudnn")


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_golden_with_own_kernels(dtype):
    golden("qwen3", "--dtype", dtype, *FEW, ZTRAIN_CUDA_ATTENTION="own")


def test_says_that_cudnn_is_used(tmp_path):
    output = train(tmp_path)
    for direction in ("forward", "backward"):
        assert re.search(rf"attention {direction}, bf16, \d+ x \d+ tokens, .*: cuDNN \d+\.\d+\.\d+, engine 3", output)


# fault of the library: the reason in the log
FAULTS = {
    "none": r"has no plan: it proposes no engine",
    "greedy": r"has no plan: it would need [\d.]+ GiB of workspace",
    "old": r"cuDNN 9\.1\.0 is older than 9\.6",
    "broken": r"cuDNN cannot run its plan: .*it was asked to fail",
    "restless": r"cuDNN's (out|dq) does not repeat bit for bit",
    "wrong": r"cuDNN's (out|dq) differs from what ztrain's kernels compute",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_falls_back(tmp_path, fault):
    output = train(tmp_path, ZTRAIN_EMULATION_CUDNN=fault)
    for direction in ("forward", "backward"):
        assert re.search(rf"attention {direction}, bf16, .*: ztrain's kernels: .*{FAULTS[fault]}", output), output
    advice = "does it find libnvrtc" if fault == "none" else r"a newer cuDNN may compute it \(PyPI's nvidia-cudnn-cu1\d\); "
    check_price("warning: ", rf".*{FAULTS[fault]}.*; hint: {advice}", output)


def test_failure_in_a_step():
    """After the trial, a failure is an error of the device, which names the op and the workaround."""
    for direction, op in (("forward", "fwd"), ("backward", "bwd")):
        output = run([os.path.join(EMULATION, "ops-test"), "test", "--device", "cuda", "--op",
                      f"attention_{op} bf16 M=100 "], code=1, ZTRAIN_EMULATION_CUDNN="broken")
        assert re.search(rf"attention, {direction}: cuDNN: .*it was asked to fail; hint: ZTRAIN_CUDA_ATTENTION", output)


def test_in_pieces(tmp_path):
    """A plan that needs a large workspace computes the sequences of a micro-batch one after the other."""
    settings = ("run.name=run", "train.max_steps=2")
    whole = train(tmp_path / "whole", *settings)
    pieces = train(tmp_path / "pieces", *settings, ZTRAIN_EMULATION_CUDNN="large")
    assert "in 1 piece\n" in whole
    assert pieces.count("12.0 MiB of workspace, in 2 pieces") == 2
    files = [(tmp_path / name / "run" / "metrics.jsonl").read_text(encoding="utf-8") for name in ("whole", "pieces")]
    losses = [re.findall(r'"loss": ?([^,}]+)', text) for text in files]
    assert losses[0] == losses[1] and len(losses[0]) >= 2
    run([os.path.join(EMULATION, "ops-test"), "test", "--device", "cuda", "--op", "attention", "--dtype", "bf16"],
        ZTRAIN_EMULATION_CUDNN="large")


def test_without_the_library(tmp_path):
    absent = {"ZTRAIN_EMULATION_WITHOUT": "libcudnn.so.9"}
    output = train(tmp_path / "without", **absent)
    assert re.search(r"attention forward, bf16, .*: ztrain's kernels: cannot open cuDNN", output)
    check_price("warning: ", "cannot open cuDNN .*; PyPI's package is nvidia-cudnn-cu13 or .*; hint: install cuDNN ", output)
    output = train(tmp_path / "demanded", code=5, ZTRAIN_CUDA_ATTENTION="cudnn", **absent)
    assert "ZTRAIN_CUDA_ATTENTION asks for cuDNN: cannot open cuDNN libcudnn.so.9" in output


def test_warns_where_cudnn_was_asked_for(tmp_path):
    output = train(tmp_path, ZTRAIN_EMULATION_CUDNN="none", ZTRAIN_CUDA_ATTENTION="cudnn")
    assert re.search(r"warning: .*attention forward, bf16", output)


def test_fp32_is_for_own_kernels(tmp_path):
    output = train(tmp_path, "bf16.enabled=false")
    check_price("", r"cuDNN computes attention in 16 bits only; hint: bf16: \{enabled: true\}", output)


@pytest.mark.parametrize("setting", ["data.packing=true", "data.packing=false"])
def test_soft_cap(tmp_path, setting):
    settings = (setting, "model.pretrained=null", f"model.config={config_like(tmp_path, 'gemma2', head_dim=8)}")
    output = train(tmp_path / "cudnn", *settings, case="gemma2")
    assert len(re.findall(r"attention (?:for|back)ward, bf16, .*: cuDNN .*, engine 3", output)) == 4, output
    train(tmp_path / "own", *settings, case="gemma2", ZTRAIN_CUDA_ATTENTION="own")
    values = [[float(x) for x in losses(tmp_path / name)] for name in ("cudnn", "own")]
    assert values[0] == pytest.approx(values[1], rel=2e-3)


@pytest.mark.parametrize("setting", ["data.packing=true", "data.packing=false"])
def test_windows_that_differ_by_layer(tmp_path, setting):
    """Each has its plans, and the layers whose window cuDNN refuses are priced."""
    settings = (setting, "model.pretrained=null", f"model.config={config_like(tmp_path, 'gemma3', head_dim=8)}")
    output = train(tmp_path / "all", *settings, case="gemma3")
    for direction in ("forward", "backward"):
        for window in ("", ", window 5"):
            assert re.search(rf"attention {direction}, bf16, .* heads of \d+, \d+ of keys{window}: cuDNN .*, engine 3", output), output
    assert "runs on ztrain's kernels" not in output
    output = train(tmp_path / "some", *settings, case="gemma3", ZTRAIN_EMULATION_CUDNN="unwindowed")
    assert re.search(r"attention forward, bf16, .* of keys: cuDNN", output), output
    check_price("warning: ", ".*no engine takes a window; hint: a newer cuDNN", output, r" of \d layers? \(heads of \d+, window 5\)")
    values = [[float(x) for x in losses(tmp_path / name)] for name in ("all", "some")]
    assert values[0] == pytest.approx(values[1], rel=2e-3)


def test_price_of_odd_heads(tmp_path):
    check_price("", "cuDNN computes heads whose size is a multiple of 8", train(tmp_path, case="gemma3"))


def test_price_of_documents_of_any_length(tmp_path):
    """Micro-batches of documents have fewer tokens than samples of the same number: one each."""
    output = train(tmp_path, "data.packing=false", "train_batch_size=48", "train_micro_batch_size_per_gpu=48",
                   "bf16.enabled=false")
    check_price("", r"cuDNN computes attention in 16 bits only", output)


def check_price(level, why, output, layers=""):
    """The line about ztrain's kernels for attention; of tiny models, whose time goes into gaps, they are not many percent."""
    assert re.search(rf"{level}attention{layers} runs on ztrain's kernels, not on cuDNN's; by `ztrain plan --speed`, a step takes "
                      rf"(?:about \d+|less than 1) % longer for it \(on an H100\): {why}", output), output


def losses(folder):
    return re.findall(r'"loss": ?([^,}]+)', (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8"))


RAGGED = ("data.packing=false", "train.max_steps=2")


def test_sequences_of_different_lengths(tmp_path):
    """They go through one plan, in as many pieces as it takes, with the same bits whatever the size of a piece."""
    output = train(tmp_path / "whole", *RAGGED)
    for direction in ("forward", "backward"):
        assert re.search(rf"attention {direction}, bf16, sequences of up to \d+ tokens, .*: cuDNN .*, \d+ at a time", output)
    output = train(tmp_path / "single", *RAGGED, ZTRAIN_EMULATION_CUDNN="large")
    assert output.count("12.0 MiB of workspace, 1 at a time") == 2, output
    assert losses(tmp_path / "whole") == losses(tmp_path / "single") and len(losses(tmp_path / "whole")) >= 2


@pytest.mark.parametrize("fault", ["wrong", "restless"])
def test_trial_of_ragged_sequences(tmp_path, fault):
    output = train(tmp_path, *RAGGED, ZTRAIN_EMULATION_CUDNN=fault)
    for direction in ("forward", "backward"):
        assert re.search(rf"attention {direction}, bf16, .*: ztrain's kernels: .*{FAULTS[fault]}", output), output


@pytest.mark.parametrize("way", ["padded", "own"])
def test_ragged_without_a_plan(tmp_path, way):
    """Copies of the sequences are computed as dense ones, unless ztrain's kernels are faster; the choice is kept."""
    faults = {"ZTRAIN_EMULATION_CUDNN": "dense", "ZTRAIN_EMULATION_ENGINE": "pieces",
              "ZTRAIN_GEMM_CACHE": str(tmp_path / "cache") if way == "own" else ""}
    which = {"padded": r"cuDNN .*, padded; ztrain's kernels where padding is more than a quarter",
             "own": "ztrain's kernels: they are faster than cuDNN with padding"}[way]
    output = train(tmp_path / "first", *RAGGED, **faults)
    assert re.search(rf"attention backward, bf16, sequences of .*: {which}", output), output
    assert "attention runs on ztrain's kernels" not in output
    if way == "own":
        output = train(tmp_path / "again", *RAGGED, **faults)
        assert re.search(rf"attention backward, bf16, .*: {which}", output) and "measured cuDNN" not in output, output
        return
    train(tmp_path / "own", *RAGGED, ZTRAIN_CUDA_ATTENTION="own")
    values = [[float(x) for x in losses(tmp_path / name)] for name in ("first", "own")]
    assert values[0] == pytest.approx(values[1], rel=2e-3)


@pytest.mark.parametrize("setting", ["data.packing=true", "data.packing=false"])
def test_unordered(tmp_path, setting):
    """The first engine, whose bits do not repeat, is taken for backward, but never where its results are wrong."""
    settings = (setting, "train.deterministic=false")
    output = train(tmp_path / "unordered", *settings)
    assert "the backward pass of attention by cuDNN adds in any order" in output
    assert re.search(r"attention forward, bf16, .*: cuDNN \d+\.\d+\.\d+, engine 3", output)
    assert re.search(r"attention backward \(unordered\), bf16, .*: cuDNN \d+\.\d+\.\d+, engine 1", output)
    output = train(tmp_path / "wrong", *settings, ZTRAIN_EMULATION_CUDNN="wrong")
    assert re.search(rf"attention backward \(unordered\), .*: ztrain's kernels: {FAULTS['wrong']}", output)


# GPU and version: the engine that is known for it
LISTED = {"B200": (5, {"ZTRAIN_EMULATION_MAJOR": "10"}), "H200": (6, {"ZTRAIN_EMULATION_CUDNN_VERSION": "92600"})}


@pytest.mark.parametrize("gpu", LISTED)
def test_listed_engine(tmp_path, gpu):
    """Backward takes the engine that cuDNN does not propose, in its form of the graph, with the same values."""
    engine, environment = LISTED[gpu][0], {**LISTED[gpu][1], "ZTRAIN_GEMM_CACHE": ""}
    for name, settings in (("whole", ("train.max_steps=2",)), ("ragged", RAGGED)):
        output = train(tmp_path / name, *settings, **environment)
        assert re.search(r"attention forward, bf16, .*: cuDNN \d+\.\d+\.\d+, engine 3", output)
        assert re.search(rf"attention backward, bf16, .*: cuDNN \d+\.\d+\.\d+, engine {engine}", output), output
        train(tmp_path / f"usual-{name}", *settings)
        assert losses(tmp_path / name) == losses(tmp_path / f"usual-{name}")
    if gpu == "B200":
        output = train(tmp_path / "unordered", "train.deterministic=false", **environment)
        assert re.search(r"attention backward \(unordered\), bf16, .*, engine 1", output), output


@pytest.mark.parametrize("gpu, fault", [("B200", "absent"), ("H200", "uncompiled"), ("H200", "restless"), ("B200", "wrong")])
def test_listed_engine_that_fails(tmp_path, gpu, fault):
    """One that has no plan is passed over; one that the trial refuses gives way to cuDNN's own, whose workspace is larger."""
    environment = {**LISTED[gpu][1], "ZTRAIN_EMULATION_NAMED": fault, "ZTRAIN_GEMM_CACHE": str(tmp_path / "cache")}
    output = train(tmp_path / "first", ZTRAIN_EMULATION_CUDNN="medium", **environment)
    assert re.search(r"attention backward, bf16, .*: cuDNN \d+\.\d+\.\d+, engine 3, (12|6)\.0 MiB", output), output
    refused = rf"warning: attention backward: .*{FAULTS.get(fault)}; cuDNN's own choice is tried, with 12\.0 MiB"
    assert bool(re.search(refused, output)) == (fault in FAULTS), output
    assert "runs on ztrain's kernels" not in output
    chosen = re.search(r"attention backward, bf16, .*", output)[0]
    output = train(tmp_path / "cached", ZTRAIN_EMULATION_CUDNN="medium", **environment)
    assert chosen in output and "cuDNN's own choice is tried" not in output and "measured cuDNN" not in output, output
    assert losses(tmp_path / "first") == losses(tmp_path / "cached")
    if fault == "wrong":  # more than the matrix products' workspace of 64 MiB
        limit = int((float(re.search(r"^  total +([\d.]+)", output, re.M)[1]) + 0.001) * 2**30)
        output = train(tmp_path / "limited", f"train.memory_limit={limit}", code=5, ZTRAIN_EMULATION_CUDNN="heavy", **environment)
        assert re.search(r"the plan needs [\d.]+ MiB .* of device memory on each rank, more than train\.memory_limit", output), output


def test_no_memory_for_a_trial(tmp_path):
    """Then ztrain's kernels compute: cuDNN's own choice would need more."""
    output = train(tmp_path, ZTRAIN_EMULATION_CUDNN="medium", ZTRAIN_EMULATION_REFUSES="100000-200000", ZTRAIN_EMULATION_MAJOR="10",
                   ZTRAIN_GEMM_CACHE="")
    assert re.search("attention backward, bf16, .*: ztrain's kernels: the GPU has too little memory to verify", output), output
    assert "cuDNN's own choice is tried" not in output


def test_unordered_has_no_effect_on_own_kernels(tmp_path):
    output = train(tmp_path, "train.deterministic=false", "bf16.enabled=false")
    assert "train.deterministic: false has no effect on ztrain's kernels for attention" in output


@pytest.mark.parametrize("setting, fault", [("data.packing=true", "large"), ("data.packing=false", "")])
def test_dropout_of_the_weights(tmp_path, setting, fault):
    """cuDNN reads the same numbers as ztrain's kernels, whatever the size of a piece; an evaluation is without."""
    runs = {"cudnn": {"ZTRAIN_EMULATION_CUDNN": fault}, "own": {"ZTRAIN_CUDA_ATTENTION": "own"}}
    outputs = {name: train(tmp_path / name, setting, "model.dropout=0.2", **more) for name, more in runs.items()}
    for shape in ("forward", r"forward \(dropout\)", r"backward \(dropout\)"):
        assert re.search(rf"attention {shape}, bf16, .*: cuDNN \d+\.\d+\.\d+, engine 3", outputs["cudnn"]), outputs["cudnn"]
    values = [[float(x) for x in losses(tmp_path / name)] for name in runs]
    assert len(values[0]) >= 1 and values[0] == pytest.approx(values[1], rel=2e-3)


def test_dropout_on_trial(tmp_path):
    """A kernel that reads weights of hidden keys, which nothing has written, is refused."""
    settings = ("model.pretrained=null", f"model.config={config_like(tmp_path, 'qwen3', max_position_embeddings=288)}",
                "model.dropout=0.2", "data.seq_length=288", "train_batch_size=1", "train_micro_batch_size_per_gpu=1",
                "data.validation=null", "train.eval_interval_steps=0")
    output = train(tmp_path / "whole", *settings, ZTRAIN_EMULATION_CUDNN="whole")
    assert re.search(r"attention forward, bf16, 1 x 288 tokens, .*: cuDNN", output), output
    for direction in ("forward", "backward"):
        assert re.search(rf"attention {direction} \(dropout\), .*: ztrain's kernels: {FAULTS['wrong']}", output), output


def test_dropout_of_all_weights(tmp_path):
    output = train(tmp_path, "model.dropout=1")
    check_price("", "dropout drops every weight", output)


def test_unknown_way(tmp_path):
    output = train(tmp_path, code=2, ZTRAIN_CUDA_ATTENTION="flash")
    assert "ZTRAIN_CUDA_ATTENTION must be own or cudnn, not 'flash'" in output


def missing_of_cudnn():
    """The part of cuDNN that this machine lacks, without asking ztrain, whose search is under test; None: nothing."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    homes = [home for home in homes if home]
    headers = [f"{home}/include" for home in homes] + ["/usr/local/include", "/usr/include", "/usr/include/*-linux-gnu"]
    libraries = [f"{home}/lib64" for home in homes] + os.environ.get("LD_LIBRARY_PATH", "").split(":")
    if not any(glob.glob(f"{folder}/cudnn.h") for folder in headers):
        return "header"
    if not any(glob.glob(f"{folder}/libcudnn.so.*") for folder in libraries) and not find_library("cudnn"):
        return "library"
    return None


def test_plans_of_the_real_library():
    """The real cuDNN understands ztrain's graphs, and compiles kernels for a GPU that the machine does not have."""
    output = run([os.path.join(EMULATION, "cudnn-plans"), "H200"])
    missing = missing_of_cudnn()
    if "left out" in output and missing:
        pytest.skip(f"no {missing} of cuDNN on this machine: {output.strip()}")
    assert output.count("H200 forward") == output.count("H200 backward") >= 9, output
    assert output.rstrip().endswith("as it should be"), output
    made = [line for line in output.splitlines() if "MiB of workspace" in line]
    assert all(re.search(r" MiB of workspace, \w+ \([0-9a-f]{16}\)$", line) for line in made), output
    # the description of the GPU says too little for products: theirs may be kernels for an older one
    assert all("sm90" in line for line in made if "product" not in line), output
    check_workspaces(output)


@pytest.mark.parametrize("library, gpus", [("", ("B200",)), ("venv", ("B200", "H200"))])
def test_listed_engines_of_the_real_library(library, gpus):
    """The real cuDNN makes plans of the engines that ztrain lists, for ztrain's graphs: kernels for the GPU, without T x T."""
    packages = glob.glob(os.path.join(ROOT, "build", "venv", "lib", "python3*", "site-packages"))
    if library and not glob.glob(os.path.join(packages[0] if packages else "/absent", "nvidia", "cudnn")):
        pytest.skip("no cuDNN of PyTorch's in build/venv on this machine")
    output = run([os.path.join(EMULATION, "cudnn-plans"), "--listed", *gpus],
                 **({"ZTRAIN_CUDA_LIBRARIES": packages[0]} if library else {}))
    if "left out" in output and (library or missing_of_cudnn()):
        pytest.skip(f"no cuDNN on this machine: {output.strip()}")
    kernels = re.findall(r"(\w+) backward .*: listed engine [56], ([\d.]+) MiB of workspace, \w+_(sm\d+)_", output)
    assert len(kernels) == 3 * len(gpus), output
    assert {(gpu, kernel) for gpu, _, kernel in kernels} == {(gpu, {"B200": "sm100", "H200": "sm90"}[gpu]) for gpu in gpus}
    assert max(float(mib) for _, mib, _ in kernels) <= 256


def check_workspaces(output):
    """Forward needs none; backward, whose bits repeat, at most a 16-bit T x T for each head and dk, dv for each query head:
    what the plan of a run without a GPU counts (gpu/cuda/cuda_reserve.c) and pieces of the batch divide."""
    row = re.compile(r"H200 (\w+) +\w+, (\d+) x (\d+) tokens, (\d+) heads of (\d+), \d+ of keys, window \d+(?:, \w+)*: engine \d+, ([\d.]+) MiB of workspace")
    rows = [(found[0], *map(int, found[1:5]), float(found[5])) for found in row.findall(output)]
    models = {(16, 1024, 25, 64), (32, 1024, 14, 64), (1, 8192, 32, 128), (8, 1024, 12, 64)}
    for way in ("forward", "backward"):
        assert models <= {found[1:5] for found in rows if found[0] == way}, output
    for way, batch, length, heads, width, mib in rows:
        padded = -(-length // 128) * 128
        most = 0 if way == "forward" else 2 * batch * heads * padded * (padded + 2 * width)
        assert mib <= most / 2**20 + 0.1, (way, batch, length, heads, width, mib)

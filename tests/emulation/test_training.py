# SPDX-License-Identifier: Apache-2.0
"""The whole program on the emulated GPU: golden cases, resuming bit for bit, any order of work. Ranks: test_ranks.py.

Every run is also a search for mistakes: a missing event, a race or a bad index ends it (tests/emulation/emulation.h).
"""
import json
import os
import re
import shutil
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ZTRAIN = os.path.join(ROOT, "build", "emulation", "ztrain")
ADDRESS = os.path.join(ROOT, "build", "emulation", "address", "ztrain")
CASES = sorted(name for name in os.listdir(os.path.join(ROOT, "tests", "golden"))
               if os.path.exists(os.path.join(ROOT, "tests", "golden", name, "expected.json")))


FEW = [] if os.environ.get("ZTRAIN_TEST_WHOLE") else ["--steps", "4"]


def finish(command, **environment):
    environment.setdefault("ZTRAIN_GEMM_CACHE", os.path.join(ROOT, "build", "emulation", "gemm-cache"))
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900,
                            env={**os.environ, **environment})
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return result


def run(command, **environment):
    return finish(command, **environment).stdout


def golden(case, *arguments, ztrain=ZTRAIN, **environment):
    return run(["tests/golden/check_golden.py", "--ztrain", ztrain, "--case", case, "--set", "train.device=cuda",
                *arguments], **environment)


def train(folder, name, *settings, resume=None, case="llama"):
    """(rows of metrics.jsonl, {file name: bytes} of the exported weights) of a run of a golden case."""
    command = [ZTRAIN, "--config", f"tests/golden/{case}/run.yaml"]
    for setting in ("train.device=cuda", f"run.dir={folder}", f"run.name={name}", *settings):
        command += ["--set", setting]
    run(command + (["--resume", resume] if resume else []))
    run([ZTRAIN, "export", f"{folder}/{name}", "--out", f"{folder}/{name}-hf"])
    with open(f"{folder}/{name}/metrics.jsonl", encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    weights = {}
    for file in os.listdir(f"{folder}/{name}-hf"):
        if file.endswith(".safetensors"):
            with open(f"{folder}/{name}-hf/{file}", "rb") as f:
                weights[file] = f.read()
    return rows, weights


@pytest.mark.parametrize("case", ["gpt2", "gemma2"])
def test_generation(case):
    """The first tokens of transformers' generate: products of one row, and attention over kept keys and values."""
    with open(os.path.join(ROOT, "tests", "golden", "generate.json"), encoding="utf-8") as f:
        expected = next(c for c in json.load(f)["cases"] if c["case"] == case and len(c["prompt"]) > 1)
    prompt = ",".join(map(str, expected["prompt"]))
    said = run([ZTRAIN, "sample", f"tests/golden/{case}", "--prompt-tokens", prompt, "--max-tokens", "6", "--dtype", "fp32",
                "--device", "cuda"])
    assert said.strip() == ",".join(map(str, expected["tokens"][:6]))


@pytest.mark.parametrize("case", CASES)
def test_golden(case):
    """Four steps, of which all but the first are graphs, and an evaluation; of two cases all eight steps and the final weights."""
    golden(case, *(() if case in ("gpt2", "llama") else FEW))


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_golden_in_16_bits(dtype):
    golden("gpt2", "--dtype", dtype, *FEW)


def test_documents_in_16_bits():
    """Documents of many lengths take ztrain's attention, and a sample that is one whole document cuDNN's."""
    golden("qwen3-documents", "--dtype", "bf16", *FEW)


def test_golden_with_sanitized_kernels():
    golden("qwen3", *FEW, ztrain=ADDRESS)


def test_adapters():
    """LoRA on every matrix of the blocks, and of embedding and head; alone and on two GPUs, whole and sharded."""
    run(["tests/golden/check_adapters.py", "--ztrain", ZTRAIN, "--adapter", "dropout", "--adapter", "embedding-tied", "--stage", "0,3",
         "--ranks", "1,2", "--dtype", "bf16", *FEW, "--set", "train.device=cuda"], ZTRAIN_EMULATION_GPUS="2")


@pytest.mark.parametrize("case", ["sigmoid-rpo", "kto", "reward", "distill-top-8"])
def test_preferences(case):
    """Losses of pairs, whose rows go to the host and back, rewards, and rows with a teacher."""
    run(["tests/golden/check_preferences.py", "--ztrain", ZTRAIN, "--case", case, "--set", "train.device=cuda"])


@pytest.fixture(scope="module")
def lazily(tmp_path_factory):
    return train(tmp_path_factory.mktemp("lazy"), "lazy", "train.max_steps=2")


@pytest.mark.parametrize("order, seed", [("starve", "1"), ("random", "2"), ("random", "3"), ("eager", "4")])
def test_same_bits_in_any_order(tmp_path, monkeypatch, lazily, order, seed):
    monkeypatch.setenv("ZTRAIN_EMULATION_ORDER", order)
    monkeypatch.setenv("ZTRAIN_EMULATION_SEED", seed)
    other = train(tmp_path, order, "train.max_steps=2")
    assert [row.get("loss") for row in other[0]] == [row.get("loss") for row in lazily[0]]
    assert other[1] == lazily[1]


def test_replay(tmp_path):
    """A step is collected while the next one computes: also a replay's last one, which nothing follows."""
    rows, _ = train(tmp_path, "run", "train.max_steps=5", "train.hash_interval_steps=2", "checkpoint.interval_steps=1",
                    "train.eval_interval_steps=0")
    hashes = {row["step"]: row["hash"] for row in rows if "hash" in row}
    assert sorted(hashes) == [2, 4]
    for step in (4, 2):
        with open(tmp_path / "run" / "checkpoints" / f"step-{step:08d}" / "manifest.json", encoding="utf-8") as f:
            assert json.load(f)["hashes"]["parameters"] == hashes[step]
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step-{step:08d}")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000003")
    for step in (5, 3):
        said = run([ZTRAIN, "replay", f"{tmp_path}/run", "--step", str(step)])
        assert f"is the same as the record: {step - 1} of {step - 1} steps" in said, said
        assert re.search(rf"^ +{step} .* same$", said, re.M), said


@pytest.mark.parametrize("case, policies", [("gpt2", ["mlp"]), ("qwen3", ["mlp", "attention"])])
def test_recomputation_changes_no_bit(tmp_path, case, policies):
    settings = ["train.max_steps=1", "train.cuda_graphs=false", "bf16.enabled=true"]
    kept = train(tmp_path, "kept", *settings, case=case)
    for policy in policies:
        again = train(tmp_path, policy, *settings, f"activation_checkpointing.policy={policy}", case=case)
        assert [row.get("loss") for row in again[0]] == [row.get("loss") for row in kept[0]], policy
        assert again[1] == kept[1], policy


def test_resume_bit_for_bit(tmp_path):
    through, weights = train(tmp_path, "through", "train.max_steps=6", "checkpoint.interval_steps=3")
    checkpoints = sorted(os.listdir(tmp_path / "through" / "checkpoints"))
    first = next(name for name in checkpoints if name.startswith("step"))
    resumed, same_weights = train(tmp_path, "resumed", "train.max_steps=6",
                                  resume=str(tmp_path / "through" / "checkpoints" / first))
    losses = {row["step"]: row["loss"] for row in through if "loss" in row}
    for row in resumed:
        if "loss" in row:
            assert losses[row["step"]] == row["loss"]
    assert [row["step"] for row in resumed if "loss" in row] == [4, 5, 6]
    assert same_weights == weights

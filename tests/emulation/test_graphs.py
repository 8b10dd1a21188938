# SPDX-License-Identifier: Apache-2.0
"""Steps as CUDA graphs on the emulated GPU: the same bits as op by op, and a clear message where they cannot be captured.

Models of the golden cases' size get graphs by themselves, so test_training.py tests them as well. In a launch the nodes
run in any order that their dependencies allow, and every missing dependency is found.
"""
import json
import os
import re
import subprocess

import pytest

from test_training import FEW, ROOT, ZTRAIN, golden, train

TWO_MICRO_BATCHES = "train_micro_batch_size_per_gpu=6"


def ztrain(*arguments, status=0, **environment):
    """The output of a run that must end with that exit code."""
    environment.setdefault("ZTRAIN_GEMM_CACHE", os.path.join(ROOT, "build", "emulation", "gemm-cache"))
    done = subprocess.run([ZTRAIN, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=900,
                          env={**os.environ, **environment})
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def short_run(folder, *settings, arguments=(), status=0):
    command = ["--config", "tests/golden/llama/run.yaml", "--verbose", *arguments]
    for setting in ("train.device=cuda", f"run.dir={folder}", "run.name=short", "train.max_steps=3", TWO_MICRO_BATCHES,
                    *settings):
        command += ["--set", setting]
    return ztrain(*command, status=status)


def graph_steps(rows):
    """The steps that were launched as graphs: their parts have no times."""
    return [row["step"] for row in rows if "loss" in row and row["seconds"]["forward"] is None]


def numbers(rows):
    kept = ("step", "loss", "grad_norm", "lr", "loss_scale", "skipped", "eval_loss", "train_loss")
    return [{key: row[key] for key in kept if key in row} for row in rows if "checkpoint" not in row]


@pytest.mark.parametrize("settings", [
    (TWO_MICRO_BATCHES, "fp16.enabled=true", "fp16.initial_scale_power=20"),  # the first steps are skipped
    ("train_micro_batch_size_per_gpu=2", "zero_optimization.stage=2", "bf16.enabled=true", "train.eval_interval_steps=2",
     "checkpoint.interval_steps=3"),
    ("train_micro_batch_size_per_gpu=12", "activation_checkpointing.enabled=true", "gradient_clipping=0.1"),
], ids=["fp16", "bf16", "fp32"])
def test_graphs_change_no_bit(tmp_path, settings):
    graphs, weights = train(tmp_path, "graphs", "train.max_steps=5", "train.cuda_graphs=true", *settings)
    plain, same_weights = train(tmp_path, "plain", "train.max_steps=5", "train.cuda_graphs=false", *settings)
    assert graph_steps(graphs) == [2, 3, 4, 5] and graph_steps(plain) == []
    assert numbers(graphs) == numbers(plain)
    assert weights == same_weights


def test_golden_without_graphs():
    golden("gpt2", *FEW, "--set", "train.cuda_graphs=false")


def test_same_bits_in_any_order(tmp_path, monkeypatch):
    settings = ("train.max_steps=3", "train.cuda_graphs=true", TWO_MICRO_BATCHES)
    reference = train(tmp_path, "lazy", *settings)
    for order, seed in ("starve", "1"), ("random", "2"), ("eager", "4"):
        monkeypatch.setenv("ZTRAIN_EMULATION_ORDER", order)
        monkeypatch.setenv("ZTRAIN_EMULATION_SEED", seed)
        other = train(tmp_path, order, *settings)
        assert numbers(other[0]) == numbers(reference[0]) and other[1] == reference[1]


@pytest.mark.parametrize("stage", ["0", "1", "2", "3"])
def test_collectives_in_graphs(tmp_path, monkeypatch, stage):
    """NCCL's collectives are captured with the events between the streams; an evaluation between steps gathers by itself."""
    monkeypatch.setenv("ZTRAIN_EMULATION_GPUS", "2")
    rows = {}
    for graphs in "true", "false":
        settings = {"run.name": f"graphs-{graphs}", "train.cuda_graphs": graphs, "zero_optimization.stage": stage,
                    "train.max_steps": "4", "train.eval_interval_steps": "2", "train_micro_batch_size_per_gpu": "3",
                    "zero_optimization.reduce_bucket_size": "4096", "bf16.enabled": "true"}
        said = short_run(tmp_path, *(f"{key}={value}" for key, value in settings.items()),
                         arguments=["--local-gpus", "2"])
        gathered, theory = re.search(r"gathered (\d+) bytes \(theory (\d+)\)", said).groups()
        assert gathered == theory
        with open(tmp_path / f"graphs-{graphs}" / "metrics.jsonl", encoding="utf-8") as f:
            rows[graphs] = [json.loads(line) for line in f]
    assert graph_steps(rows["true"]) == [2, 3, 4] and graph_steps(rows["false"]) == []
    assert numbers(rows["true"]) == numbers(rows["false"])


def test_a_measured_step_is_no_graph(tmp_path, monkeypatch):
    """A step with flops_profiler and --trace runs op by op between two graphs, with the same bits; so do ranks with comms_logger."""
    monkeypatch.setenv("ZTRAIN_EMULATION_GPUS", "2")
    rows, path = {}, tmp_path / "trace.json"
    settings = ("train.max_steps=4", "train.cuda_graphs=true", "zero_optimization.stage=1", "train_micro_batch_size_per_gpu=3")
    profiler = ("flops_profiler.enabled=true", "flops_profiler.profile_step=3")
    more = {"plain": ([], []), "measured": (profiler, ["--trace", str(path), "--trace-steps", "3-3"]),
            "logged": (["comms_logger.enabled=true", "train.cuda_graphs=auto"], [])}
    for name, (keys, options) in more.items():
        said = short_run(tmp_path, *settings, f"run.name={name}", *keys, arguments=["--local-gpus", "2", *options])
        assert ("fwd MACs: " in said) == (name == "measured")
        with open(tmp_path / name / "metrics.jsonl", encoding="utf-8") as f:
            rows[name] = [json.loads(line) for line in f]
    assert numbers(rows["plain"]) == numbers(rows["measured"]) == numbers(rows["logged"])
    assert [graph_steps(rows[name]) for name in more] == [[2, 3, 4], [2, 4], []]
    with open(path, encoding="utf-8") as f:
        work = [event for event in json.load(f)["traceEvents"] if event["ph"] == "X"]
    assert {(event["pid"], event["tid"]) for event in work} == {(rank, row) for rank in range(2) for row in range(3)}
    assert {"forward", "linear_fwd", "all_gather parameters", "step 3"} <= {event["name"] for event in work}
    with open(tmp_path / "logged" / "comms.json", encoding="utf-8") as f:
        assert json.load(f)["steps"] == 4


def test_resume_in_graphs(tmp_path):
    plain, weights = train(tmp_path, "plain", "train.max_steps=6", "checkpoint.interval_steps=3", TWO_MICRO_BATCHES,
                           "train.cuda_graphs=false")
    first = min(os.listdir(tmp_path / "plain" / "checkpoints"), key=lambda name: (not name.startswith("step"), name))
    resumed, same_weights = train(tmp_path, "resumed", "train.max_steps=6", "train.cuda_graphs=true", TWO_MICRO_BATCHES,
                                  resume=str(tmp_path / "plain" / "checkpoints" / first))
    assert graph_steps(resumed) == [5, 6]
    assert numbers(resumed)[-3:] == numbers(plain)[-3:] and same_weights == weights


def test_where_graphs_cannot_be(tmp_path, monkeypatch):
    wanted = "train.cuda_graphs=true"
    assert "with data.packing other than true" in short_run(tmp_path, wanted, "data.packing=false", status=2)
    assert "--profile times each op" in short_run(tmp_path, wanted, arguments=["--profile"], status=2)
    monkeypatch.setenv("ZTRAIN_SHARE_GPUS", "1")
    said = short_run(tmp_path, wanted, "train_micro_batch_size_per_gpu=3", "run.name=shared", arguments=["--local-gpus", "2"])
    assert "CUDA graphs: by block: " in said and "ranks that share a GPU" in said
    assert "the CPU device has none" in short_run(tmp_path, wanted, "train.device=cpu", status=2)
    said = short_run(tmp_path, "wall_clock_breakdown=true")
    assert "CUDA graphs: by block: " in said and "wall_clock_breakdown" in said and "forward" in said


def test_a_capture_that_fails(tmp_path, monkeypatch):
    """With auto, the log has the reasons, and the run continues by block, and if that fails as well op by op."""
    with monkeypatch.context() as patch:
        patch.setenv("ZTRAIN_EMULATION_NO_CAPTURE", "1")
        failed, weights = train(tmp_path, "failed", "train.max_steps=3", TWO_MICRO_BATCHES)
        said = short_run(tmp_path)
        refused = short_run(tmp_path, "run.name=refused", "train.cuda_graphs=true", status=5)
    assert "CUDA graphs: by block, not by step: a graph cannot be captured" in said
    assert "CUDA graphs: none: a graph cannot be captured" in said
    assert "a graph cannot be captured" in refused and "train.cuda_graphs: false" in refused
    plain, same_weights = train(tmp_path, "plain", "train.max_steps=3", TWO_MICRO_BATCHES, "train.cuda_graphs=false")
    assert graph_steps(failed) == [] and numbers(failed) == numbers(plain) and weights == same_weights


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_step_that_is_not_captured_has_blocks_that_are(tmp_path, monkeypatch, ranks):
    """As where a version of NCCL cannot be captured."""
    monkeypatch.setenv("ZTRAIN_EMULATION_GPUS", ranks)
    monkeypatch.setenv("ZTRAIN_EMULATION_STATS", "1")
    settings = ("train.max_steps=5", "train.eval_interval_steps=2", "train_micro_batch_size_per_gpu=3", "zero_optimization.stage=3")
    rows = {}
    for name, graphs in ("blocks", "auto"), ("plain", "false"):
        with monkeypatch.context() as patch:
            patch.setenv("ZTRAIN_EMULATION_NO_CAPTURE", "steps")
            said = short_run(tmp_path, f"run.name={name}", f"train.cuda_graphs={graphs}", *settings,
                             arguments=["--local-gpus", ranks] if ranks != "1" else [])
        with open(tmp_path / name / "metrics.jsonl", encoding="utf-8") as f:
            rows[name] = [json.loads(line) for line in f]
        launched = [int(count) for count in re.findall(r"(\d+) graphs of \d+ operations", said)]
        assert all(count > 8 if name == "blocks" else count == 0 for count in launched) and launched, said
        assert said.count("CUDA graphs: by block, not by step: ") == (int(ranks) if name == "blocks" else 0), said
    assert numbers(rows["blocks"]) == numbers(rows["plain"]) and graph_steps(rows["blocks"]) == []

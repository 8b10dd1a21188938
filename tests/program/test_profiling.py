# SPDX-License-Identifier: Apache-2.0
"""comms_logger, flops_profiler, --trace: what they show is what the run has done, and its numbers are those of a run without."""
import json
import os
import re

import pytest

from harness import BadDisk, FINISHED, SEQUENCE, USAGE, VOCABULARY
from test_experts import QWEN3

TWO = ["--local-gpus", "2"]
SHORT = {"train": {"max_steps": 3, "epochs": None}, "data": {"validation": None}}


def with_changes(**sections):
    return {**SHORT, **sections}


def comms_of(folder, name="run"):
    with open(os.path.join(folder.run_folder(name), "comms.json"), encoding="utf-8") as f:
        return json.load(f)


def volume(out):
    """Bytes that a rank gathers and reduces in a step, by theory."""
    found = re.search(r"gathered \d+ bytes \(theory (\d+)\), reduced \d+ bytes \(theory (\d+)\)", out)
    return {"all_gather": int(found[1]), "reduce_scatter": int(found[2])}


def total(comms, collective, **where):
    return sum(row["bytes"] for row in comms["collectives"] if row["collective"] == collective
               and all(row[key] == value for key, value in where.items()))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_collectives_are_those_of_the_stage(folder, stage):
    """Of S bytes in all, each of N ranks sends (N-1)/N: that is what the theory counts."""
    changes = with_changes(zero_optimization={"stage": stage})
    plain = folder.train(changes, name="plain", more=TWO)
    done = folder.train({**changes, "comms_logger": {"enabled": True, "debug": stage == 3, "verbose": stage == 3}}, more=TWO)
    assert folder.metrics().numbers() == folder.metrics("plain").numbers()
    assert not os.path.exists(os.path.join(folder.run_folder("plain"), "comms.json"))
    comms, theory = comms_of(folder), volume(plain.out)
    assert comms["steps"] == 3 and comms["world"] == 2 and comms["skipped"] == 0
    for collective, bytes_of_step in theory.items():
        assert total(comms, collective) / 2 == 3 * bytes_of_step, collective
    parameters = int(re.search(r"(\d+) parameters", plain.out)[1])
    gradients = total(comms, "reduce_scatter", **{"for": "gradients"})
    assert 0 <= gradients / (3 * 4 * parameters) - 1 < 0.2  # fp32, and some padding
    assert (total(comms, "all_gather", **{"for": "gradients"}) == gradients) == (stage == 0)
    assert (total(comms, "all_gather", **{"for": "parameters"}) > 0) == (stage > 0)
    assert {row["unit"] for row in comms["collectives"]} == {"-", "embedding", "block 0", "block 1", "block 2", "head"}
    for row in comms["collectives"]:
        assert row["calls"] > 0 and row["seconds"] >= row["waited_seconds"] >= 0
        assert row["busbw_gb_per_s"] == pytest.approx(row["algbw_gb_per_s"] / 2)
        assert row["algbw_gb_per_s"] == pytest.approx(
            row["bytes"] / max(row["seconds"] - row["waited_seconds"], 1e-30) / 1e9, rel=1e-3, abs=1e-3)
    assert re.search(r"^\[0\] reduce_scatter +gradients +embedding +3 ", done.out, re.M)
    assert bool(re.search(r"^\[0\] \w+ +gradients +blocks +9 ", done.out, re.M)) == (stage != 3)
    assert bool(re.search(r"^\[0\] \w+ +gradients +block 2 +3 ", done.out, re.M)) == (stage == 3)
    assert "the others waited longest for rank " in done.out
    lines = re.findall(r"comm op: (\w+) \| for: (\w+) \| unit: [\w -]+ \| time \(ms\): [\d.]+ \| bytes: \d+ ", done.out)
    assert len(lines) == (sum(row["calls"] for row in comms["collectives"]) if stage == 3 else 0)


def test_units_of_experts_are_their_blocks(folder):
    changes = with_changes(model={"config": QWEN3}, zero_optimization={"stage": 3}, comms_logger={"enabled": True})
    out = folder.train(changes, more=TWO).out
    rows = re.findall(r"^(?:\[0\] )?(all_gather|reduce_scatter) +(\w+) +(\S.*?) +(\d+) +(\S+) ", out, re.M)
    assert {unit for *_, unit, _, _ in rows} == {"-", "embedding", "blocks", "head"}
    sums = [row for row in rows if row[2] == "blocks"]
    assert len(sums) == len({row[:2] for row in sums}) > 1
    for collective, purpose, _, calls, megabytes in sums:
        of = [row for row in comms_of(folder)["collectives"] if (row["collective"], row["for"]) == (collective, purpose)
              and row["unit"].startswith("block ")]
        assert int(calls) == sum(row["calls"] for row in of) and any(row["unit"] == "block 2, down" for row in of)
        assert float(megabytes) == pytest.approx(sum(row["bytes"] for row in of) / 1e6, rel=1e-3)


def test_prof_ops_chooses_collectives(folder):
    logger = {"enabled": True, "prof_all": False, "prof_ops": ["reduce_scatter_tensor"]}
    folder.train(with_changes(comms_logger=logger), more=TWO)
    assert {row["collective"] for row in comms_of(folder)["collectives"]} == {"reduce_scatter"}


def test_one_rank_has_no_collectives(folder):
    done = folder.train(with_changes(comms_logger={"enabled": True}))
    assert "comms_logger: a single rank has no collectives" in done.out
    assert not os.path.exists(os.path.join(folder.run_folder(), "comms.json"))


def test_a_table_that_cannot_be_written_costs_a_warning(folder):
    disk = BadDisk(folder)
    disk.fails("write ENOSPC comms.json")
    done = folder.train(with_changes(comms_logger={"enabled": True}), more=TWO, env=disk.env)
    assert done.code == FINISHED and "comms.json is not written" in done.err


# --- flops_profiler, --profile ----------------------------------------------------------------------------------------

OP = re.compile(r"^(?:\[0\] )?(\w+) +(\d+) +([\d.]+) +([\d.]+)% +([\d.e+-]+) +([\d.]+) +([\d.e+-]+) +([\d.]+) +(-|[\d.]+%)$", re.M)
MODULE = re.compile(r"^(?:\[0\] )?(model|embedding|blocks|block \d+|head) +(\d+) +([\d.e+-]+) +([\d.]+) +[\d.]+ +([\d.]+) +[\d.]+ +([\d.]+) +([\d.]+)%$", re.M)
MATRICES = 3 * (64 * 32 + 32 * 32 + 112 * 32 + 32 * 56) + VOCABULARY * 32  # of LLAMA


def profiled(**more):
    return with_changes(flops_profiler={"enabled": True, "profile_step": 2, **more})


def ops_of(text):
    return {row[0]: {"calls": int(row[1]), "seconds": float(row[2]), "share": float(row[3]), "gflop": float(row[4])}
            for row in OP.findall(text)}


def modules_of(text):
    return {row[0]: {"params": int(row[1]), "gmacs": float(row[2]), "forward": float(row[3]), "backward": float(row[4])}
            for row in MODULE.findall(text)}


@pytest.mark.parametrize("stage", [0, 3])
def test_a_profiled_step(folder, stage):
    changes = with_changes(zero_optimization={"stage": stage}, gradient_accumulation_steps=2)
    folder.train(changes, name="plain", more=TWO)
    done = folder.train({**changes, **profiled(top_modules=2)}, more=TWO)
    assert folder.metrics().numbers() == folder.metrics("plain").numbers()
    assert done.out.count("flops_profiler: step 2, rank 0 of 2") == 1
    ops, modules = ops_of(done.out), modules_of(done.out)
    tokens = 12 * SEQUENCE / 2
    assert ops["linear_fwd"]["gflop"] == pytest.approx(2e-9 * MATRICES * tokens, rel=1e-3)
    assert ops["linear_fwd"]["calls"] == 2 * (4 * 3 + 1)  # micro-batches x (q, k and v are one)
    assert sum(op["share"] for op in ops.values()) == pytest.approx(100, abs=1.5)
    parameters = int(re.search(r"(\d+) parameters", done.out)[1])
    assert list(modules) == ["model", "embedding", "block 0", "block 1", "block 2", "head"]
    assert modules["model"]["params"] == parameters == sum(m["params"] for m in modules.values()) / 2
    assert modules["block 0"]["gmacs"] == modules["block 2"]["gmacs"] > 0
    assert sum(m["gmacs"] for m in modules.values()) / 2 == pytest.approx(modules["model"]["gmacs"], rel=1e-2)
    assert all(m["forward"] >= 0 and m["backward"] >= 0 for m in modules.values())
    forward = float(re.search(r"fwd MACs: +([\d.]+) GMACs", done.out)[1])
    assert forward == pytest.approx(modules["model"]["gmacs"], rel=1e-2)
    assert f"params of model:        {parameters}\n" in done.out
    assert re.search(r"depth 1: top 2 in params: blocks: \d+, head: \d+\n", done.out)
    assert re.search(r"depth 2: top 2 in fwd MACs: block 0: \d+, block 1: \d+\n", done.out)


def test_modules_by_depth_in_a_file(folder):
    """Resumed before the step, which recomputes its blocks; with --profile the run's table counts all steps of the process."""
    path = folder.at("profile.txt")
    first = {**SHORT["train"], "max_steps": 1}
    policy = {"activation_checkpointing": {"policy": "block"}}
    folder.train({**profiled(), **policy, "train": {**first, "max_steps": 3}, "checkpoint": {"interval_steps": 1}})
    resumed = {**profiled(profile_step=3, module_depth=1, detailed=False, output_file=path), **policy}
    done = folder.train(resumed, more=["--profile", "--resume", folder.at("runs", "run", "checkpoints", "step-00000001")])
    assert f"flops_profiler: {path} has the tables of step 3" in done.out
    with open(path, encoding="utf-8") as f:
        text = f.read()
    assert list(modules_of(text)) == ["model", "embedding", "blocks", "head"]
    assert "depth 1: top 1 in fwd latency: " in text and "depth 2" not in text
    step, run = ops_of(text), ops_of(done.out)
    assert step["adam"]["calls"] * 2 == run["adam"]["calls"]
    assert step["linear_fwd"]["calls"] * 2 == run["linear_fwd"]["calls"] > step["linear_bwd_input"]["calls"] * 2


def test_a_step_that_does_not_come_and_a_file_that_cannot_be(folder):
    done = folder.train(profiled(profile_step=9))
    assert "profile_step 9 is not among the steps 1 to 3" in done.err and "fwd MACs" not in done.out
    done = folder.train(profiled(output_file=folder.at("no", "such", "folder", "x")), name="other")
    assert "the tables are logged: " in done.err and "fwd MACs" in done.out


# --- --trace ----------------------------------------------------------------------------------------------------------

HOST, COMPUTE, COMMUNICATION = range(3)


def trace_of(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)["traceEvents"]


def expect_nesting(events):
    """Of two pieces of work in a row, one is over before the other begins, or one is within the other. In ns."""
    open_until = []
    times = sorted((round(1e3 * e["ts"]), -round(1e3 * e["dur"])) for e in events)
    for start, length in times:
        assert start >= 0 and length <= 0
        while open_until and open_until[-1] <= start:
            open_until.pop()
        assert not open_until or start - length <= open_until[-1]
        open_until.append(start - length)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_trace(folder, stage):
    path = folder.at("trace.json")
    changes = with_changes(zero_optimization={"stage": stage}, comms_logger={"enabled": True})
    folder.train(with_changes(zero_optimization={"stage": stage}), name="plain", more=TWO)
    done = folder.train(changes, more=[*TWO, "--trace", path, "--trace-steps", "1-3"])
    assert folder.metrics().numbers() == folder.metrics("plain").numbers()
    assert f"--trace: {path} has steps 1 to 3" in done.out
    events = trace_of(path)
    work = [e for e in events if e["ph"] == "X"]
    assert {e["ph"] for e in events} == {"X", "M"} and {e["pid"] for e in work} == {0, 1}
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names[1, COMPUTE] == "compute stream" and names[0, COMMUNICATION] == "communication stream"
    for rank in range(2):
        rows = [[e for e in work if e["pid"] == rank and e["tid"] == row] for row in range(3)]
        for row in rows:
            expect_nesting(row)
        for phase in ("forward", "head", "backward", "reduce", "optimizer", "backward block 2"):
            assert sum(e["name"] == phase and e["cat"] == "phase" for e in rows[COMPUTE]) == 3, phase
        assert sum(e["name"] == "linear_fwd" for e in rows[COMPUTE]) == 3 * 13
        assert {e["args"].get("unit") for e in rows[COMPUTE] if e["name"] == "attention_fwd"} == {f"block {i}" for i in range(3)}
        assert [e["name"] for e in rows[HOST] if e["name"].startswith("step ")] == ["step 1", "step 2", "step 3"]
        assert {"wait for data", "wait for step 2", "checkpoint of step 3"} <= {e["name"] for e in rows[HOST]}
        for collective in ("all_gather", "reduce_scatter"):  # both count all collectives of the three steps
            of_rank = sum(e["args"]["bytes"] for e in rows[COMMUNICATION] if e["name"].startswith(collective))
            assert of_rank == total(comms_of(folder), collective) == 2 * 3 * volume(done.out)[collective]


def test_three_steps_are_traced_unless_others_are_asked_for(folder):
    """Of one rank, with an evaluation among them; the file cannot always be written."""
    path, full = folder.at("trace.json"), folder.at("full.json")
    os.symlink("/dev/full", full)
    longer = {"train": {"max_steps": 6, "epochs": None}, "flops_profiler": {"enabled": True, "profile_step": 4}}
    done = folder.train(longer, more=["--trace", path])
    assert f"--trace: {path} has steps 3 to 5" in done.out and "fwd MACs" in done.out
    work = [e for e in trace_of(path) if e["ph"] == "X"]
    assert {"evaluation", "evaluation after step 3", "step 4"} <= {e["name"] for e in work}
    assert {e["tid"] for e in work} == {HOST, COMPUTE}
    expect_nesting([e for e in work if e["tid"] == COMPUTE])
    for name, file, why in (("full", full, "No space left on device"), ("none", folder.at("no", "x.json"), "No such file or directory")):
        done = folder.train(SHORT, name=name, more=["--trace", file])
        assert f"--trace: '{file}' is not written: {why}" in done.err
    done = folder.train(SHORT, name="later", more=["--trace", path, "--trace-steps", "7"])
    assert f"none of the steps 7 to 7 was run, and '{path}' is not written" in done.err


@pytest.mark.parametrize("options, words", [
    (["--trace-steps", "1-2"], "--trace-steps needs --trace FILE"),
    (["--trace", "x", "--trace-steps", "5-3"], "--trace-steps must be a range of steps such as 10-12, not '5-3'"),
    (["--trace", "x", "--trace-steps", "0"], "not '0'"), (["--trace", "x", "--trace-steps", "1-2x"], "not '1-2x'")])
def test_steps_that_are_none(folder, options, words):
    assert words in folder.ztrain("--config", folder.spec(), *options, expect=USAGE).err

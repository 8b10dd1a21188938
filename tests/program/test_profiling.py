"""comms_logger: its tables have what the run has done, and the numbers are those of a run without it."""
import json
import os
import re

import pytest

from harness import BadDisk, FINISHED

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
    assert {row["unit"] for row in comms["collectives"]} == {"-", "embedding", "block 1", "block 2", "block 3", "head"}
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

# SPDX-License-Identifier: Apache-2.0
"""Hashes of the parameters and of checkpoints, and `ztrain replay`, which computes steps of a run again."""
import json
import os

VIRTUAL = {"train": {"epochs": 2, "virtual_ranks": 4, "hash_interval_steps": 2}, "train_micro_batch_size_per_gpu": 3,
           "zero_optimization": {"stage": 0}}


def hashes(folder, name="run", checkpoint="epoch-0002"):
    with open(os.path.join(folder.run_folder(name), "checkpoints", checkpoint, "manifest.json"), encoding="utf-8") as f:
        manifest = json.load(f)
    return manifest["hashes"]


def test_hashes_do_not_depend_on_ranks_and_stage(folder):
    for name, ranks, stage, sets in (("one", 1, 0, ()), ("two", 2, 3, ("train.hash_interval_steps=3",)), ("four", 4, 2, ())):
        folder.train({**VIRTUAL, "zero_optimization": {"stage": stage}}, name, ranks=ranks, sets=sets)
    one, four = folder.metrics("one"), folder.metrics("four")
    assert one.numbers() == four.numbers()
    assert [row["step"] for row in one.steps if "hash" in row] == [2, 4, 6]
    assert [row["step"] for row in folder.metrics("two").steps if "hash" in row] == [3, 6]
    for checkpoint, step in (("epoch-0001", 3), ("epoch-0002", 6)):
        assert hashes(folder, "one", checkpoint) == hashes(folder, "two", checkpoint) == hashes(folder, "four", checkpoint)
        assert hashes(folder, "two", checkpoint)["parameters"] == folder.metrics("two").steps[step - 1]["hash"]
    assert sorted(hashes(folder, "one")) == ["exp_avg", "exp_avg_sq", "parameters"]
    said = folder.ztrain("inspect", folder.run_folder("two")).out
    assert "on 2 ranks, 4 virtual ranks\n" in said and f"\nhashes       parameters {hashes(folder, 'two')['parameters']}\n" in said


def test_hashes_survive_a_resume_and_readers(folder):
    folder.train({**VIRTUAL, "csv_monitor": {"enabled": True, "output_path": folder.at("csv"), "job_name": "run"}}, ranks=2)
    whole = folder.metrics().numbers()
    folder.train({**VIRTUAL, "train": {**VIRTUAL["train"], "epochs": 2}},
                 more=["--resume", folder.at("runs", "run", "checkpoints", "epoch-0001")])
    assert folder.metrics().numbers() == whole
    assert "step" in folder.ztrain("report", folder.run_folder()).out


def test_hashes_of_other_optimizers_and_dtypes(folder):
    """bf16 states arrive as floats; an optimizer with one moment has two hashes."""
    for name, ranks, changes in (("a", 1, {"zero_optimization": {"stage": 1}}),
                                 ("b", 2, {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}})):
        folder.train({**VIRTUAL, **changes, "bf16": {"enabled": True}, "optimizer": {"type": "Lion", "params": {"lr": 1e-3}}},
                     name, ranks=ranks)
    assert hashes(folder, "a") == hashes(folder, "b") and sorted(hashes(folder, "a")) == ["exp_avg", "parameters"]
    assert folder.metrics("a").numbers() == folder.metrics("b").numbers()

# SPDX-License-Identifier: Apache-2.0
"""Dropout: against transformers with the same masks, at any stage and world size, through recomputation and resume."""
import json
import os
import shutil

import pytest

from harness import GPT2, ROOT, USAGE

with open(os.path.join(ROOT, "tests", "golden", "dropout.json"), encoding="utf-8") as file:
    GOLDEN = json.load(file)
CASES = {case["case"]: case for case in GOLDEN["cases"]}
RATES = {"resid_pdrop": 0.1, "embd_pdrop": 0.2, "attn_pdrop": 0.3}
DROPS = {"model": {"config": {**GPT2, **RATES}}}
LLAMA_DROPS = {"model": {"dropout": 0.25}}


def golden_run(folder, name, *more, ranks=1, out="golden"):
    case = os.path.join(ROOT, "tests", "golden", name)
    sets = [f"run.dir={folder.at('runs')}", f"run.name={out}", f"model.pretrained={case}", f"data.train={case}/train",
            f"data.validation={case}/validation", *more]
    arguments = ["--config", os.path.join(case, "run.yaml")] + (["--local-gpus", ranks] if ranks > 1 else [])
    folder.ztrain(*arguments, *(word for setting in sets for word in ("--set", setting)))
    with open(os.path.join(folder.run_folder(out), "metrics.jsonl"), encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def assert_golden(rows, case):
    steps = [row for row in rows if "loss" in row]
    assert len(steps) == len(case["loss"])
    assert max(abs(row["loss"] - loss) for row, loss in zip(steps, case["loss"])) < 1e-5
    assert max(abs(row["grad_norm"] / norm - 1) for row, norm in zip(steps, case["grad_norm"])) < 5e-5
    evaluations = {str(row["step"]): row["eval_loss"] for row in rows if "eval_loss" in row}
    assert all(abs(evaluations[step] - loss) < 1e-5 for step, loss in case["eval_loss"].items())


@pytest.mark.parametrize("name, ranks, stage", [("gpt2", 1, 0), ("gpt2", 3, 3), ("llama", 2, 1)])
def test_losses_are_those_of_transformers_with_the_same_masks(folder, name, ranks, stage):
    """Evaluations are without dropout."""
    rows = golden_run(folder, name, f"model.dropout={GOLDEN['rate']}", f"zero_optimization.stage={stage}",
                      "train_micro_batch_size_per_gpu=2", ranks=ranks)
    assert_golden(rows, CASES[name])


def test_a_rate_in_config_json_applies_and_model_dropout_overrides_it(folder):
    hub = folder.at("hub")
    shutil.copytree(os.path.join(ROOT, "tests", "golden", "gpt2"), hub)
    with open(os.path.join(hub, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    config.update({key: GOLDEN["rate"] for key in CASES["gpt2"]["keys"]})
    with open(os.path.join(hub, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    assert_golden(golden_run(folder, "gpt2", f"model.pretrained={hub}"), CASES["gpt2"])
    off = golden_run(folder, "gpt2", f"model.pretrained={hub}", "model.dropout=0", out="off")
    absent = golden_run(folder, "gpt2", out="absent")
    assert [row["loss"] for row in off if "loss" in row] == [row["loss"] for row in absent if "loss" in row]


def test_an_absent_rate_that_transformers_would_apply_is_named(folder):
    done = folder.train({"model": {"config": {k: v for k, v in GPT2.items() if k != "attn_pdrop"}}},
                        sets=["train.max_steps=1"])
    assert "model: dropout: config.json does not have attn_pdrop, so nothing is dropped there" in done.out + done.err


@pytest.mark.parametrize("changes", [DROPS, LLAMA_DROPS], ids=["gpt2", "llama"])
def test_stages_and_policies_have_the_same_bits(folder, changes):
    losses = []
    for number, more in enumerate([{"zero_optimization": {"stage": 0}}, {"zero_optimization": {"stage": 3}},
                                   *({"activation_checkpointing": {"policy": policy}, "zero_optimization": {"stage": 2}}
                                     for policy in ("norms", "mlp", "attention", "block"))]):
        folder.train({**changes, **more}, f"run-{number}", ranks=2)
        losses.append(folder.metrics(f"run-{number}").losses)
    assert all(other == losses[0] for other in losses)


@pytest.mark.parametrize("data", [{"packing": False}, {"document_mask": True}], ids=["padded", "document-mask"])
def test_documents_of_different_lengths_keep_their_masks_at_any_world_size(folder, data):
    """Each sample has its masks wherever it is computed; sums are added in another order."""
    losses = []
    for ranks, micro in ((1, 12), (1, 3), (2, 2), (3, 1)):
        name = f"run-{ranks}-{micro}"
        folder.train({**DROPS, "data": data, "train_micro_batch_size_per_gpu": micro,
                      "optimizer": {"params": {"lr": 1e-5}}}, name, ranks=ranks)
        losses.append(folder.metrics(name).losses)
    for other in losses[1:]:
        assert max(abs(a - b) for a, b in zip(losses[0], other)) < 2e-6


def test_a_resumed_run_has_the_same_bits(folder):
    folder.train(DROPS, "whole", ranks=2)
    folder.train(DROPS, "cut", ranks=2, sets=["train.max_steps=2"])
    folder.train({**DROPS, "zero_optimization": {"stage": 3}}, "cut", ranks=2, more=["--resume", folder.run_folder("cut")])
    assert folder.metrics("cut").losses == folder.metrics("whole").losses
    folder.train(DROPS, "seed", ranks=2, sets=["run.seed=8", "train.max_steps=1"])
    assert folder.metrics("seed").losses[0] != folder.metrics("whole").losses[0]


def test_a_rate_above_one_is_refused(folder):
    done = folder.train({"model": {"dropout": 1.5}}, expect=USAGE)
    assert "'model.dropout' must be a number from 0 to 1" in done.err

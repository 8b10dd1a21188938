# SPDX-License-Identifier: Apache-2.0
"""train.label_smoothing against transformers' LabelSmoother."""
import json
import os

from harness import ROOT, USAGE

with open(os.path.join(ROOT, "tests", "golden", "label_smoothing.json"), encoding="utf-8") as file:
    GOLDEN = json.load(file)


def test_losses_are_those_of_trainer(folder):
    """Documents of different lengths, padded; the evaluation is smoothed as in Trainer."""
    case = os.path.join(ROOT, "tests", "golden", GOLDEN["case"])
    sets = [f"run.dir={folder.at('runs')}", f"model.pretrained={case}", f"data.train={case}/train",
            f"data.validation={case}/validation", f"train.label_smoothing={GOLDEN['label_smoothing']}"]
    folder.ztrain("--config", os.path.join(case, "run.yaml"), *(word for setting in sets for word in ("--set", setting)))
    metrics = folder.metrics(GOLDEN["case"])
    assert len(metrics.losses) == len(GOLDEN["loss"])
    assert max(abs(a - b) for a, b in zip(metrics.losses, GOLDEN["loss"])) < 1e-5
    with open(os.path.join(folder.run_folder(GOLDEN["case"]), "metrics.jsonl"), encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    evaluations = {str(row["step"]): row["eval_loss"] for row in rows if "eval_loss" in row}
    assert evaluations.keys() == GOLDEN["eval_loss"].keys()
    assert all(abs(evaluations[step] - loss) < 1e-5 for step, loss in GOLDEN["eval_loss"].items())


def test_a_share_above_one_is_refused(folder):
    done = folder.train({"train": {"label_smoothing": 1.1}}, expect=USAGE)
    assert "'train.label_smoothing' must be a number from 0 to 1" in done.err

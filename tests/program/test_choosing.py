# SPDX-License-Identifier: Apache-2.0
"""The checkpoints that a run keeps for their evaluations, and a run that ends when these do not improve any more."""
import json
import os
import re
import signal

import pytest

from harness import CHECKPOINT, REQUEUE, USAGE, read_safetensors, wait_for_steps

STEPS = 36


def eager(folder, changes):
    """It learns 24 samples by heart in 18 epochs of two steps, so that the loss on others falls and then rises."""
    folder.data(24, seed=5, name="few")
    return {"optimizer": {"params": {"lr": 0.05}}, "data": {"train": folder.at("few")}, **changes,
            "train": {"epochs": 18, "eval_interval_steps": 1, **changes.get("train", {})}}


def best_steps(rows, count):
    return sorted(row["step"] for row in sorted(rows, key=lambda row: (row["eval_loss"], row["step"]))[:count])


def step_of(checkpoint):
    with open(os.path.join(checkpoint, "manifest.json"), encoding="utf-8") as f:
        return json.load(f)["position"]["step"]


def kept_steps(folder, name="run"):
    return sorted(step_of(os.path.join(folder.run_folder(name), "checkpoints", one)) for one in folder.checkpoints(name))


def test_the_best_and_every_nth_checkpoint_stay(folder):
    keep = {"checkpoint": {"keep_last": 1, "keep_best": 3, "keep_every_steps": 10, "save_at_epoch_end": False}}
    folder.train(eager(folder, keep))
    rows = folder.metrics().evaluations
    best = best_steps(rows, 3)
    assert len(rows) == STEPS and max(best) < STEPS - 4
    assert kept_steps(folder) == sorted({10, 20, 30, STEPS} | set(best))
    link = os.path.join(folder.run_folder(), "checkpoints", "best")
    assert step_of(link) == best_steps(rows, 1)[0] and os.readlink(link) in folder.checkpoints()
    # in two parts, cut anywhere, the same ones stay
    half = folder.train(eager(folder, {**keep, "train": {"max_steps": 17}}), name="parts")
    assert "epoch 9 so far, 1 of its 2 steps  train_loss" in half.out
    part = folder.metrics("parts").kinds("epoch_part")
    assert part == [{"epoch_part": 9, "step": 17, "train_loss": part[0]["train_loss"]}]
    assert part[0]["train_loss"] == pytest.approx(folder.metrics().losses[16], rel=1e-6)
    folder.train(eager(folder, keep), name="parts", more=("--resume", folder.run_folder("parts")))
    assert folder.metrics("parts").numbers() == folder.metrics().numbers()
    assert kept_steps(folder, "parts") == kept_steps(folder)
    # the best one goes out, and not the newest
    folder.ztrain("export", folder.run_folder(), "--best", "--out", folder.at("best"))
    folder.ztrain("export", link, "--out", folder.at("link"))
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("newest"))
    best, link, newest = (read_safetensors(folder.at(name, "model.safetensors")) for name in ("best", "link", "newest"))
    assert best == link and best != newest


def test_where_nothing_was_evaluated_there_is_no_best(folder):
    folder.train({"train": {"epochs": 1}, "data": {"validation": None}})
    done = folder.ztrain("export", folder.run_folder(), "--best", "--out", folder.at("out"), expect=CHECKPOINT)
    assert "was written after an evaluation with eval_loss; hint: checkpoint.keep_best" in done.final_error
    done = folder.ztrain("export", os.path.join(folder.run_folder(), "checkpoints", "latest"), "--best", "--out",
                         folder.at("out"), expect=USAGE)
    assert "is one checkpoint" in done.final_error


def test_a_run_ends_when_it_no_longer_improves(folder):
    whole = folder.train(eager(folder, {}), name="whole", ranks=2)
    assert "ends early" not in whole.out
    losses = [row["eval_loss"] for row in folder.metrics("whole").evaluations]
    best, since, end = losses[0], 0, None
    for step, loss in enumerate(losses[1:], 2):
        best, since = (loss, 0) if loss < best else (best, since + 1)
        if since == 4:
            end = step
            break
    assert end and end < STEPS
    patient = {"train": {"early_stopping": {"patience": 4}}, "checkpoint": {"keep_last": 1, "keep_best": 1}}
    done = folder.train(eager(folder, patient), ranks=2)
    said = f"the run ends early, after step {end} of 36: eval_loss has not improved on {best:.4f} in 4 evaluations"
    assert said in done.out and f"finished: {end} steps" in done.out, done
    metrics = folder.metrics()
    assert len(metrics.steps) == end
    assert metrics.kinds("early_stop") == [{"early_stop": "eval_loss", "step": end, "best": best,
                                            "evaluations": 4}]
    assert kept_steps(folder) == sorted({end, end - 4})
    seen = folder.ztrain("inspect", folder.run_folder()).out
    assert "ended early  eval_loss has not improved on" in seen and "evaluation   eval_loss " in seen
    # it stays ended, and goes on with more patience
    again = folder.train(eager(folder, patient), more=("--resume", folder.run_folder()), ranks=2)
    assert f"nothing to do: the run has ended early, after step {end} of 36" in again.out
    patient["train"]["early_stopping"]["patience"] = 100
    folder.train(eager(folder, patient), more=("--resume", folder.run_folder()), ranks=2)
    assert len(folder.metrics().steps) == 36


def test_scores_of_other_data_do_not_compare(folder):
    """The run goes on with other validation data, on which every loss is higher."""
    patient = {"train": {"early_stopping": {"patience": 6}}, "checkpoint": {"keep_last": 1, "keep_best": 1}}
    easy = eager(folder, {**patient, "data": {"train": folder.at("few"), "validation": folder.at("few")}})
    folder.train({**easy, "train": {**easy["train"], "max_steps": 12}})
    assert step_of(os.path.join(folder.run_folder(), "checkpoints", "best")) == 12
    folder.train({**eager(folder, patient), "train": {**eager(folder, patient)["train"], "max_steps": 18}},
                 more=("--resume", folder.run_folder()))
    rows = folder.metrics().evaluations
    assert min(row["eval_loss"] for row in rows[12:]) > rows[11]["eval_loss"] and not folder.metrics().kinds("early_stop")
    best = 12 + best_steps([{**row, "step": row["step"] - 12} for row in rows[12:]], 1)[0]
    assert step_of(os.path.join(folder.run_folder(), "checkpoints", "best")) == best
    assert "best evaluation: after step" in folder.train(
        {**eager(folder, patient), "train": {**eager(folder, patient)["train"], "max_steps": 18}},
        more=("--resume", folder.run_folder())).out


def test_an_early_end_at_the_last_step_is_one(folder):
    losses = [row["eval_loss"] for row in
              (folder.train(eager(folder, {}), name="whole"), folder.metrics("whole"))[1].evaluations]
    end = next(k for k in range(5, STEPS) if min(losses[k - 4:k]) >= min(losses[:k - 4]))
    patient = {"train": {"early_stopping": {"patience": 4}, "max_steps": end}}
    folder.train(eager(folder, patient))
    patient["train"].pop("max_steps")
    done = folder.train(eager(folder, patient), more=("--resume", folder.run_folder()))
    assert f"nothing to do: the run has ended early, after step {end} of {STEPS}" in done.out


def test_an_early_end_has_its_margin(folder):
    patient = {"train": {"early_stopping": {"patience": 2, "min_delta": 0.5}}}
    done = folder.train(eager(folder, patient))
    assert re.search(r"eval_loss has not improved on [0-9.]+ by more than 0.5 in 2 evaluations", done.out), done
    seen = folder.ztrain("inspect", folder.run_folder()).out
    assert re.search(r"ended early  eval_loss has not improved on [0-9.]+ by more than 0.5 in 2 evaluations", seen), seen


def test_export_names_the_checkpoints_that_it_cannot_compare(folder):
    folder.train(eager(folder, {"checkpoint": {"keep_last": 2, "keep_best": 2}}))
    best = os.path.realpath(os.path.join(folder.run_folder(), "checkpoints", "best"))
    with open(os.path.join(best, "rank-00000.zst"), "r+b") as f:
        f.seek(200)
        f.write(b"????")
    done = folder.ztrain("export", folder.run_folder(), "--best", "--out", folder.at("out"), expect=CHECKPOINT)
    assert "; hint: without --best the newest one is taken" in done.final_error, done
    os.remove(os.path.join(best, "manifest.json"))
    done = folder.ztrain("export", folder.run_folder(), "--best", "--out", folder.at("out"))
    assert f"{os.path.basename(best)}' is not used: " in done.err and "exported" in done.out


def test_a_resumed_run_goes_on_counting(folder):
    """Stopped on request somewhere, it ends after the same step as a run that was not."""
    patient = eager(folder, {"train": {"early_stopping": {"patience": 4, "min_delta": 0.001}}})
    whole = folder.train(patient, name="whole")
    if folder.metrics("whole").kinds("early_stop"):
        assert re.search("has not improved on [0-9.]+ by more than 0.001 in 4 evaluations", whole.out), whole
    process = folder.start("--config", folder.spec(patient))
    wait_for_steps(folder, process, 3)
    process.send_signal(signal.SIGTERM)
    done = folder.wait(process)
    if done.code == REQUEUE:
        folder.train(patient, more=("--resume", folder.run_folder()))
    assert folder.metrics().numbers() == folder.metrics("whole").numbers()


@pytest.mark.parametrize("changes, words", [
    ({"checkpoint": {"keep_best": 1}, "data": {"validation": None}}, "'checkpoint.keep_best' needs evaluations"),
    ({"train": {"early_stopping": {"patience": 2}}, "data": {"validation": None}},
     "'train.early_stopping.patience' needs evaluations"),
    ({"train": {"early_stopping": {"min_delta": 0.1}}}, "'train.early_stopping.min_delta' needs train.early_stopping.patience"),
    ({"checkpoint": {"keep_best": 1, "metric": "f1"}}, "'checkpoint.metric' f1 is measured only with model.task "
                                                       "sequence_classification"),
    ({"checkpoint": {"mode": "higher"}}, "checkpoint.mode"),
])
def test_specs_that_ask_for_what_is_not_measured(folder, changes, words):
    done = folder.train(changes, expect=USAGE)
    assert words in done.err, done

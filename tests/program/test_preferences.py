# SPDX-License-Identifier: Apache-2.0
"""Preferences: pairs, references, evaluations, resumes; `ztrain score`; reward models; what is refused. TRL's figures are in
tests/golden."""
import json
import os
import re
import shutil
import struct
import subprocess

import pytest

from harness import CHECKPOINT, DATA, ROOT, SEQUENCE, SLOWNESS, USAGE, ZTRAIN, read_safetensors, write_megatron, write_pairs

STEPS = {"train": {"max_steps": 6}, "train_batch_size": 4}
LOSSES = ["sigmoid", "ipo", "hinge", "robust", "apo_zero", "apo_down", "kto", "simpo", "orpo"]
REFERENCES = LOSSES[:7]


@pytest.fixture
def pairs(folder):
    write_pairs(folder)
    write_pairs(folder, "validation", 7, seed=2)
    return folder


@pytest.fixture
def start(pairs):
    """A folder of a model that a run may start from."""
    write_megatron(pairs.at("text"), [[1 + i % 60 for i in range(400)]])
    pairs.train({"data": {"train": pairs.at("text"), "validation": None}, "train": {"max_steps": 3}, "train_batch_size": 4}, name="text")
    pairs.ztrain("export", pairs.run_folder("text"), "--out", pairs.at("hf"))
    return pairs


def preferring(loss="sigmoid", **more):
    return {**STEPS, "model": {"config": None, "pretrained": more.pop("pretrained")} if "pretrained" in more else {},
            "preference": {"loss": loss, **more}}


def lines(folder, name="run"):
    with open(os.path.join(folder.run_folder(name), "metrics.jsonl"), encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def numbers(folder, name="run"):
    """What must repeat bit for bit."""
    return [{key: row[key] for key in row if "/" in key or key in ("loss", "grad_norm", "kl", "step")} for row in lines(folder, name)
            if "loss" in row]


@pytest.mark.parametrize("loss", LOSSES)
def test_learns(pairs, loss):
    pairs.train(preferring(loss), sets=["train.max_steps=30", "optimizer.params.lr=0.01", "train_batch_size=10", "data.shuffle=false"])
    rows = numbers(pairs)
    assert rows[-1]["rewards/margins"] > rows[0]["rewards/margins"] + 0.01 and rows[-1]["loss"] < rows[0]["loss"]
    assert ("kl" in rows[0]) == (loss == "kto") and ("rewards/accuracies" in rows[0]) == (loss != "kto")
    evaluations = [row for row in lines(pairs) if "eval_loss" in row]
    assert evaluations[-1]["eval_samples"] == (14 if loss == "kto" else 7) and "perplexity" not in evaluations[-1]


def test_a_separable_set_is_learned(pairs):
    pairs.train(preferring(), sets=["train.max_steps=60", "optimizer.params.lr=0.01", "train_batch_size=20",
                                    "checkpoint.metric=rewards/accuracies", "checkpoint.keep_best=1"])
    assert numbers(pairs)[-1]["rewards/accuracies"] == 1
    assert "rewards/accuracies" in pairs.ztrain("report", pairs.run_folder()).out


def test_a_run_ends_early_by_accuracies(pairs):
    """Once all pairs are told apart, no evaluation is better: the run ends, and the best checkpoint is that of the first of them."""
    changes = {**preferring(), "train": {"epochs": 100}}
    done = pairs.train(changes, sets=["optimizer.params.lr=0.01", "train_batch_size=20", "train.early_stopping.patience=2",
                                      "train.early_stopping.metric=rewards/accuracies", "checkpoint.metric=rewards/accuracies",
                                      "checkpoint.keep_best=1"])
    evaluations = [(row["step"], row["rewards/accuracies"]) for row in lines(pairs) if "eval_loss" in row]
    best = max(accuracy for _, accuracy in evaluations)
    first = next(step for step, accuracy in evaluations if accuracy == best)
    assert numbers(pairs)[-1]["step"] == evaluations[-1][0] == first + 2 < 100, evaluations
    assert f"best evaluation: after step {first}," in done.out
    assert f"(step {first})" in pairs.ztrain("export", pairs.run_folder(), "--best", "--out", pairs.at("best")).out


@pytest.mark.parametrize("loss", ["sigmoid", "kto", "apo_zero"])
def test_beta_to_zero(start, loss):
    """Without beta there is nothing to learn: the loss is that of equal answers, and the gradient vanishes with beta."""
    rows = []
    for name, beta in ("small", 1e-3), ("smaller", 1e-5):
        start.train(preferring(loss, pretrained=start.at("hf"), beta=beta), name=name)
        rows.append(numbers(start, name))
    assert rows[1][0]["loss"] == pytest.approx({"sigmoid": 0.693147, "kto": 0.5, "apo_zero": 1}[loss], abs=1e-5)
    assert rows[1][0]["grad_norm"] == pytest.approx(1e-2 * rows[0][0]["grad_norm"], rel=1e-2) and rows[0][0]["grad_norm"] > 0


def test_a_file_a_folder_and_the_start_are_the_same_reference(start):
    start.ztrain("score", start.at("hf"), "--data", start.at("train"), "--out", start.at("train.logps"))
    start.ztrain("score", start.at("hf"), "--data", start.at("validation"), "--out", start.at("validation.logps"), "--local-gpus", 2,
                 "--set", "zero_optimization.stage=3")
    start.train(preferring(pretrained=start.at("hf")), name="start")
    start.train(preferring(pretrained=start.at("hf"), reference=start.at("train.logps")), name="file")
    start.train(preferring(pretrained=start.at("hf"), reference=start.at("hf")), name="folder")
    assert numbers(start, "file") == numbers(start, "folder") == numbers(start, "start")
    evaluations = [[row for row in lines(start, name) if "eval_loss" in row] for name in ("start", "file")]
    assert evaluations[0] == evaluations[1]
    assert numbers(start, "start")[0]["rewards/margins"] == 0
    # a run is a reference, too; with an adapter it is exported first
    start.train(preferring(pretrained=start.at("hf"), reference=start.run_folder("text")), name="run")
    assert numbers(start, "run") == numbers(start, "start")


@pytest.mark.parametrize("loss", ["sigmoid", "kto", "orpo"])
def test_a_resumed_run_continues_bit_for_bit(start, loss):
    changes = preferring(loss, pretrained=start.at("hf"))
    start.train(changes, name="whole")
    start.train(changes, name="part", sets=["train.max_steps=4"])
    start.train(changes, name="part", more=["--resume", start.run_folder("part")])
    assert numbers(start, "part") == numbers(start, "whole")
    # without what was scored the reference is scored again, with its own weights
    start.train(changes, name="again", sets=["train.max_steps=4"])
    shutil.rmtree(os.path.join(start.run_folder("again"), "references"), ignore_errors=True)
    start.train(changes, name="again", more=["--resume", start.run_folder("again")])
    assert numbers(start, "again") == numbers(start, "whole")


def test_ranks_stages_and_virtual_ranks(start):
    changes = preferring(pretrained=start.at("hf"), rpo_alpha=0.5, label_smoothing=0.1)
    start.train(changes, name="one")
    for ranks, stage, more in (2, 3, []), (2, 2, ["gradient_accumulation_steps=2"]), (1, 0, ["gradient_accumulation_steps=4"]):
        name = f"r{ranks}-s{stage}"
        start.train(changes, name=name, ranks=ranks, sets=[f"zero_optimization.stage={stage}", *more])
        for a, b in zip(numbers(start, "one"), numbers(start, name)):
            assert all(abs(a[key] - b[key]) <= 1e-5 + 1e-4 * abs(a[key]) for key in a), (a, b)
    start.train(changes, name="v1", sets=["train.virtual_ranks=2"])
    start.train(changes, name="v2", ranks=2, sets=["train.virtual_ranks=2"])
    assert numbers(start, "v1") == numbers(start, "v2")


def test_adapters_have_their_base_as_the_reference(start):
    changes = {**preferring(pretrained=start.at("hf")), "peft": {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": "all-linear"}}
    start.train(changes, name="off")
    start.train({**changes, "preference": {"loss": "sigmoid", "reference": start.at("hf")}}, name="folder")
    assert numbers(start, "off") == numbers(start, "folder") and numbers(start, "off")[0]["rewards/margins"] == 0
    # an adapter that has learned is compared with its base
    start.ztrain("export", start.run_folder("off"), "--out", start.at("lora"))
    more = {**changes, "model": {**changes["model"], "adapter": start.at("lora")}}
    start.train(more, name="more", sets=["preference.reference=adapter-off"])
    assert numbers(start, "more")[0]["rewards/margins"] != 0
    start.ztrain("score", start.run_folder("off"), "--data", start.at("train"), "--out", start.at("off.logps"), "--adapter-off")
    start.ztrain("score", start.at("hf"), "--data", start.at("train"), "--out", start.at("hf.logps"))
    start.ztrain("score", start.run_folder("off"), "--data", start.at("train"), "--out", start.at("on.logps"))
    content = [open(start.at(name), "rb").read()[32:] for name in ("off.logps", "hf.logps", "on.logps")]
    assert content[0] == content[1] != content[2]


def test_mismatched_answers_from_a_file(start):
    changes = preferring("kto", pretrained=start.at("hf"))
    start.train(changes, name="scored", sets=["data.shuffle=true"])
    for name in "train", "validation":
        start.ztrain("score", start.at("hf"), "--data", start.at(name), "--out", start.at(f"{name}.logps"), "--mismatched", 4,
                     "--set", f"data.seq_length={SEQUENCE}")
    start.train({**changes, "preference": {"loss": "kto", "reference": start.at("train.logps")}}, name="file")
    assert numbers(start, "file") == numbers(start, "scored")
    done = start.train({**changes, "preference": {"loss": "kto", "reference": start.at("train.logps")}}, name="x", expect=DATA,
                       sets=["train_batch_size=6"])
    assert f"for micro-batches of 4 and samples of up to {SEQUENCE} tokens, and the run has 6 and {SEQUENCE}" in done.err


def test_a_run_keeps_its_references(start):
    """A copy of the file: a resume compares with the same numbers whatever has become of it. A replay writes nothing."""
    changes = preferring(pretrained=start.at("hf"), reference=start.at("train.logps"))
    for name in "train", "validation":
        start.ztrain("score", start.at("hf"), "--data", start.at(name), "--out", start.at(f"{name}.logps"))
    start.train(changes, name="whole")
    start.train(changes, name="part", sets=["train.max_steps=4"])
    os.remove(start.at("train.logps"))
    start.train(changes, name="part", more=["--resume", start.run_folder("part")])
    assert numbers(start, "part") == numbers(start, "whole")
    replay = ["replay", start.run_folder("part"), "--step", 6]
    assert "the same" in start.ztrain(*replay).out
    references = os.path.join(start.run_folder("part"), "references")
    os.remove(os.path.join(references, "0.logps"))
    assert "a replay writes nothing" in start.ztrain(*replay, expect=CHECKPOINT).err
    assert os.listdir(references) == ["1.logps"]


def test_what_is_wrong_with_a_reference_shows_before_a_run_begins(start):
    changes = preferring(pretrained=start.at("hf"), reference=start.at("hf"))
    start.train(changes, more=["--dry-run"])
    for reference, words in ("nowhere", "neither a file nor a folder"), (start.at("train.bin"), "hint: ztrain score writes log-probabilities"):
        changes["preference"]["reference"] = reference
        assert words in start.train(changes, more=["--dry-run"], expect=USAGE if reference == "nowhere" else DATA).err
        assert words in start.train(changes, expect=USAGE if reference == "nowhere" else DATA).err
        assert not os.path.exists(start.run_folder())
    start.ztrain("score", start.at("hf"), "--data", start.at("train"), "--out", start.at("train.logps"))
    changes["preference"]["reference"] = start.at("train.logps")
    done = start.train(changes, more=["--dry-run"], expect=DATA)
    assert f"there is no '{start.at('validation.logps')}' for data.validation" in done.err and "hint: ztrain score MODEL" in done.err


def test_pairs_without_a_preference_are_noticed(pairs):
    with open(pairs.at("train.labels.json"), "w", encoding="utf-8") as f:
        json.dump({"id2label": {"0": "rejected", "1": "chosen"}}, f)
    words = "holds preferred and rejected answers, and without preference.loss both are learned"
    assert words in pairs.train(STEPS).err and words not in pairs.train(preferring(), name="dpo").err


def test_an_adapter_is_not_scored_without_its_base(start):
    os.makedirs(start.at("lora"))
    with open(start.at("lora", "adapter_config.json"), "w", encoding="utf-8") as f:
        f.write("{}")
    done = start.ztrain("score", start.at("lora"), "--data", start.at("train"), "--out", start.at("x.logps"), expect=USAGE)
    assert "is an adapter, which is scored with its base; hint: name its run" in done.err


def test_a_run_yaml_is_a_run_spec(pairs):
    for loss in "none", "sigmoid", "kto", "orpo":
        changes = preferring(loss) if loss != "none" else STEPS
        pairs.train(changes, name=loss)
        pairs.ztrain("--config", os.path.join(pairs.run_folder(loss), "run.yaml"), "--dry-run", "--resume", pairs.run_folder(loss))
    pairs.train({**STEPS, "model": {"task": "reward"}}, name="reward")
    pairs.ztrain("--config", os.path.join(pairs.run_folder("reward"), "run.yaml"), "--dry-run", "--resume", pairs.run_folder("reward"))
    pairs.ztrain("score", pairs.run_folder("none"), "--data", pairs.at("train"), "--out", pairs.at("x.logps"))
    assert "has a label instead of a next token" in pairs.ztrain(
        "score", pairs.run_folder("reward"), "--data", pairs.at("train"), "--out", pairs.at("y.logps"), expect=USAGE).err


def test_other_weights_at_the_same_place_are_scored_again(start):
    changes = preferring(pretrained=start.at("hf"))
    start.train(changes, sets=["train.max_steps=1", "checkpoint.save_at_epoch_end=false"])
    shutil.rmtree(os.path.join(start.run_folder(), "checkpoints"))
    start.train({"data": {"train": start.at("text"), "validation": None}, "train": {"max_steps": 6}, "train_batch_size": 4}, name="more")
    shutil.rmtree(start.at("hf"))
    start.ztrain("export", start.run_folder("more"), "--out", start.at("hf"))
    start.train(changes, sets=["train.max_steps=1"])
    assert numbers(start)[0]["rewards/margins"] == 0


def test_long_pairs_are_left_out(pairs):
    docs = write_pairs(pairs, pairs=20, longest=2 * SEQUENCE)
    left = sum(max(map(len, docs[i:i + 2])) <= SEQUENCE for i in range(0, 40, 2))
    done = pairs.train(preferring(), sets=["train_batch_size=2"])
    assert f"data.train: {20 - left} of 20 pairs are left out" in done.out and f"{left} samples" in done.out


def test_score_goes_on_where_it_was_interrupted(start):
    whole, part = start.at("whole.logps"), start.at("part.logps")
    done = start.ztrain("score", start.at("hf"), "--data", start.at("train"), "--out", whole, "--per-document")
    assert done.out.count("document ") == 40 and "perplexity" in done.out
    content = open(whole, "rb").read()
    with open(part, "wb") as f:
        f.write(content[:32 + 8 * 11] + b"\xff" * (len(content) - 32 - 8 * 11))
    assert "scoring 29 of 40" in start.ztrain("score", start.at("hf"), "--data", start.at("train"), "--out", part).out
    assert open(part, "rb").read() == content
    for place in 8, 16:  # of another set, of another model
        with open(part, "wb") as f:
            f.write(content[:place] + b"x" * 8 + content[place + 8:])
        done = start.ztrain("score", start.at("hf"), "--data", start.at("train"), "--out", part, expect=USAGE)
        assert "is of other data or of another model" in done.err


def test_reward_models(start):
    changes = {**STEPS, "model": {"task": "reward", "config": None, "pretrained": start.at("hf")}}
    start.train(changes, sets=["train.max_steps=40", "optimizer.params.lr=0.01", "train_batch_size=10"])
    rows = numbers(start)
    assert rows[-1]["rewards/accuracies"] == 1 and "logps/chosen" not in rows[0] and rows[-1]["loss"] < 0.3
    start.ztrain("export", start.run_folder(), "--out", start.at("out"))
    config = json.load(open(start.at("out", "config.json"), encoding="utf-8"))
    assert config["architectures"] == ["LlamaForSequenceClassification"] and len(config["id2label"]) == 1
    assert read_safetensors(start.at("out", "model.safetensors"))["score.weight"]
    # its folder is a start as well
    start.train({**changes, "model": {"task": "reward", "config": None, "pretrained": start.at("out")}}, name="more")
    assert numbers(start, "more")[0]["loss"] < rows[0]["loss"]
    done = start.train({"model": {"task": "sequence_classification", "config": None, "pretrained": start.at("out")},
                        "data": {"packing": False}}, name="bad", expect=USAGE)
    assert "a classifier with 1 label is not supported" in done.err


@pytest.mark.parametrize("changes, code, words", [
    ({"preference": {"beta": 0.2}}, USAGE, "'preference' needs a loss"),
    ({"preference": {"loss": "ipo", "label_smoothing": 0.1}}, USAGE, "'preference.label_smoothing' has no meaning with preference.loss ipo"),
    ({"preference": {"loss": "robust", "label_smoothing": 0.5}}, USAGE, "'preference.label_smoothing' of robust is below 0.5"),
    ({"preference": {"loss": "sigmoid"}, "train": {"label_smoothing": 0.1}}, USAGE, "'train.label_smoothing' has no meaning"),
    ({"preference": {"loss": "orpo", "reference": "x"}}, USAGE, "'preference.reference' has no meaning with preference.loss orpo"),
    ({"preference": {"loss": "kto", "rpo_alpha": 1}}, USAGE, "'preference.rpo_alpha' has no meaning with preference.loss kto"),
    ({"preference": {"loss": "kto"}, "train": {"virtual_ranks": 1}}, USAGE, "'train.virtual_ranks' does not go with kto"),
    ({"preference": {"loss": "reward"}}, USAGE, "hint: model.task: reward"),
    ({"preference": {"rpo_alpha": 1}, "model": {"task": "reward"}}, USAGE, "'preference.rpo_alpha' has no meaning"),
    ({"preference": {"loss": "sigmoid"}, "model": {"task": "reward"}}, USAGE, "model.task reward has a loss of its own"),
    ({"preference": {"loss": "sigmoid", "reference": "nowhere"}}, USAGE, "'nowhere' is neither a file nor a folder"),
    ({"preference": {"loss": "sigmoid", "reference": "adapter-off"}}, USAGE, "there is no adapter"),
    ({"checkpoint": {"metric": "rewards/accuracies"}}, USAGE, "measured only on pairs"),
], ids=range(13))
def test_wrong_specs(pairs, changes, code, words):
    changes = {**changes, "preference": {**changes.get("preference", {})}} if "preference" in changes else changes
    assert words in pairs.train({**STEPS, **changes, "train": {**STEPS["train"], **changes.get("train", {})}}, expect=code).err


def test_wrong_data(pairs):
    write_pairs(pairs, labels=[1, 0, 0, 1] * 10)
    assert "document 2 has the label 0, expected 1, chosen" in pairs.train(preferring(), expect=DATA).err
    pairs.train(preferring("kto"))
    os.remove(pairs.at("train.mask"))
    assert "has no loss masks" in pairs.train(preferring(), name="b", expect=DATA).err
    write_pairs(pairs)
    with open(pairs.at("x.logps"), "wb") as f:
        f.write(b"ztlogps\x01" + bytes(24) + bytes(8 * 39))
    done = pairs.train(preferring(reference=pairs.at("x.logps")), name="b", expect=DATA)
    assert "expected 352 for 40 documents" in done.err
    with open(pairs.at("x.logps"), "wb") as f:
        f.write(bytes(352))
    assert "has no log-probabilities" in pairs.train(preferring(reference=pairs.at("x.logps")), name="b", expect=DATA).err


def score(folder, *more, model=None, data="train", out="x.logps", **expect):
    return folder.ztrain("score", model or folder.at("hf"), "--data", folder.at(data), "--out", folder.at(out), *more, **expect)


def test_a_file_goes_on_with_other_ranks_and_no_other_model(start):
    score(start)
    content = open(start.at("x.logps"), "rb").read()
    with open(start.at("x.logps"), "r+b") as f:  # as after a kill
        f.seek(32 + 8 * 20)
        f.write(b"\xff" * 8 * 20)
    assert "scoring 20 of 40" in score(start, "--local-gpus", 2, "--set", "zero_optimization.stage=3").out
    assert open(start.at("x.logps"), "rb").read() == content
    with open(start.at("hf", "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    with open(start.at("hf", "config.json"), "w", encoding="utf-8") as f:
        json.dump({**config, "rms_norm_eps": 0.3}, f)
    assert "is of other data or of another model" in score(start, expect=USAGE).err
    score(start, out="y.logps")
    done = start.train(preferring(pretrained=start.at("hf"), reference=start.run_folder("text")), expect=USAGE)
    assert "is of another model than this run's: its 'rms_norm_eps' differs" in done.err


def test_a_teacher_that_was_interrupted_is_finished(start):
    write_megatron(start.at("lines"), [[1 + (i + k) % 60 for i in range(20)] for k in range(20)])
    score(start, "--top-k", 3, data="lines", out="t")
    content, row = open(start.at("t"), "rb").read(), 3 * 6
    assert content[40:44] != bytes(4) and len(content) == 40 + 400 * row
    with open(start.at("t"), "r+b") as f:
        f.seek(40 + 105 * row)
        f.write(bytes(50 * row))
    assert "scoring 15 of 20" in score(start, "--top-k", 3, data="lines", out="t").out
    assert open(start.at("t"), "rb").read() == content
    changes = {"data": {"train": start.at("lines"), "validation": None, "packing": False}, "distill": {"logps": start.at("t")}, **STEPS,
               "train_batch_size": 1}
    assert "hint: data.document_mask: true" in start.train({**changes, "data": {**changes["data"], "packing": True}}, expect=USAGE).err
    assert "--top-k 100, and the model has 61 tokens" in score(start, "--top-k", 100, data="lines", out="u", expect=USAGE).err
    assert not os.path.exists(start.at("u"))
    assert "without --mismatched" in score(start, "--top-k", 3, "--mismatched", 2, data="lines", out="u", expect=USAGE).err
    start.train(changes, name="checked", sets=["train.check_interval_steps=1", "train_batch_size=8", "train_micro_batch_size_per_gpu=2"])  # the step twice
    with open(start.at("t"), "r+b") as f:  # V of its header
        f.seek(36)
        f.write(struct.pack("<i", 60))
    assert "is of a vocabulary of 60 tokens, and the model has 61" in start.train(changes, expect=USAGE).err


def test_a_reward_model_of_a_base_without_padding_is_resumed(start):
    with open(start.at("hf", "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    config.pop("pad_token_id", None)
    with open(start.at("hf", "config.json"), "w", encoding="utf-8") as f:
        json.dump({**config, "eos_token_id": 3}, f)
    changes = {**STEPS, "model": {"task": "reward", "config": None, "pretrained": start.at("hf")}}
    start.train(changes, name="whole")
    start.train(changes, name="part", sets=["train.max_steps=4"])
    start.train(changes, name="part", more=["--resume", start.run_folder("part")])
    assert numbers(start, "part") == numbers(start, "whole")


def test_a_branch_compares_with_what_its_run_began_with(start):
    changes = preferring(pretrained=start.at("hf"))
    start.train(changes, name="whole", sets=["checkpoint.interval_steps=3", "checkpoint.keep_last=5"])
    shutil.rmtree(start.at("hf"))
    start.ztrain("export", start.run_folder("whole"), "--out", start.at("hf"))  # now it is another model
    checkpoint = os.path.join(start.run_folder("whole"), "checkpoints", "step-00000003")
    start.train(changes, name="branch", more=["--resume", checkpoint])
    assert numbers(start, "branch") == numbers(start, "whole")[3:]
    done = start.train({**changes, "preference": {"loss": "sigmoid", "reference": start.at("hf")}}, name="whole",
                       more=["--resume", start.run_folder("whole")], expect=USAGE)
    assert "'preference.reference' was" in done.err


def test_nothing_to_score_is_said(start):
    assert "has no document of 2 to 24 tokens" in score(start, "--set", "data.seq_length=24", data="text", expect=DATA).err
    os.makedirs(start.at("empty"))
    assert "has neither a config.json nor a run.yaml" in score(start, model=start.at("empty"), expect=USAGE).err


def test_kto_wants_two_answers(pairs):
    assert "compares an answer with another one's prompt" in pairs.train(preferring("kto"), sets=["train_batch_size=1"], expect=USAGE).err


def test_the_page(tmp_path):
    """docs/preferences.md from start to end, and what it promises."""
    with open(os.path.join(ROOT, "docs", "preferences.md"), encoding="utf-8") as f:
        blocks = re.findall(r"^```bash\n(.*?)^```$", f.read(), re.S | re.M)
    (tmp_path / "build").mkdir()
    os.symlink(ZTRAIN, tmp_path / "build" / "ztrain")
    os.symlink(os.path.join(ROOT, "scripts"), tmp_path / "scripts")
    out = ""
    for block in blocks:
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", block], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=120 * SLOWNESS, check=False)
        assert done.returncode == 0, f"{block}\n{done.stdout[-2000:]}"
        out += done.stdout
    assert re.search(r"you fool\n.*, sir\n", out), out
    runs = [(tmp_path / "build" / "prefer" / name / "checkpoints" / "epoch-0002" / "rank-00000.zst").read_bytes() for name in ("dpo", "file")]
    assert runs[0] == runs[1]

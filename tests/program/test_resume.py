# SPDX-License-Identifier: Apache-2.0
"""Interrupting and resuming: the numbers of an interrupted run are those of a run that was left alone."""
import json
import os
import random
import re
import shutil
import signal

import pytest

from harness import (BadDisk, CHECKPOINT, DATA, DIVERGED, FINISHED, GPT2, LLAMA, REQUEUE, SEQUENCE, USAGE, Metrics,
                     count_lines, wait_for_steps, wait_until)

LONG_RUN = {"train": {"epochs": 16, "eval_interval_steps": 5}, "train_micro_batch_size_per_gpu": 3}


def interrupted_to_the_end(folder, spec, ranks, name, seed, stops):
    """Runs a spec to its end, interrupting it `stops` times after a random number of further steps."""
    rng = random.Random(seed)
    more = ["--local-gpus", ranks] if ranks > 1 else []
    metrics = os.path.join(folder.run_folder(name), "metrics.jsonl")
    resume, done_steps = [], 0
    interruptions = 0
    while True:
        process = folder.start("--config", spec, *more, *resume)
        if interruptions < stops:
            wait_for_steps(folder, process, done_steps + rng.randrange(1, 8), name)
            if process.poll() is None:
                process.send_signal(rng.choice([signal.SIGUSR1, signal.SIGTERM, signal.SIGINT]))
        done = folder.wait(process)
        if done.code == FINISHED:
            return interruptions
        assert done.code == REQUEUE and "error" not in done.err, done
        interruptions += 1
        done_steps = len(Metrics(folder.run_folder(name)).steps)
        assert count_lines(metrics)
        resume = ["--resume", folder.run_folder(name)]


@pytest.mark.long
@pytest.mark.parametrize("model, changes, ranks", [
    (LLAMA, {}, 1),
    (GPT2, {"zero_optimization": {"stage": 1}}, 2),
    (LLAMA, {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}, 2),
], ids=["llama-fp32", "gpt2-stage1", "llama-stage3-bf16"])
def test_interrupted_at_random_steps(folder, model, changes, ranks):
    changes = {**LONG_RUN, **changes, "model": {"config": model}}
    whole, cut = folder.spec(changes, "whole"), folder.spec(changes, "cut")
    folder.ztrain("--config", whole, *(["--local-gpus", ranks] if ranks > 1 else []))
    assert interrupted_to_the_end(folder, cut, ranks, "cut", seed=ranks, stops=4) >= 1
    assert folder.metrics("cut").numbers() == folder.metrics("whole").numbers()
    for name in ("whole", "cut"):
        folder.ztrain("export", folder.run_folder(name), "--out", folder.at(f"hf-{name}"), "--dtype", "fp32")
    with open(folder.at("hf-whole", "model.safetensors"), "rb") as a, open(folder.at("hf-cut", "model.safetensors"), "rb") as b:
        assert a.read() == b.read()


@pytest.mark.long
def test_from_every_checkpoint_of_a_run(folder):
    """Checkpoints in the middle of an epoch are among them; the spec names another run folder, so nothing is cut off."""
    changes = {"train": {"epochs": 3, "eval_interval_steps": 2}, "checkpoint": {"interval_steps": 1}}
    folder.train(changes, name="whole")
    whole = folder.metrics("whole").numbers()
    for checkpoint in folder.checkpoints("whole")[:-1]:
        path = os.path.join(folder.run_folder("whole"), "checkpoints", checkpoint)
        done = folder.train(changes, name=f"from-{checkpoint}", more=["--resume", path])
        assert checkpoint in done.out
        metrics = folder.metrics(f"from-{checkpoint}")
        (resumed,) = metrics.kinds("resumed_from")
        assert resumed["resumed_from"].rstrip("/").endswith(checkpoint)
        tail = metrics.numbers()
        assert tail == whole[-len(tail):], checkpoint
        assert tail[0]["step"] in (resumed["step"], resumed["step"] + 1)


@pytest.mark.parametrize("ranks, stage", [(1, 0), (3, 3), (4, 1), (2, 2)])
def test_another_world_size_and_stage(folder, ranks, stage):
    changes = {"train": {"epochs": 4}, "train_micro_batch_size_per_gpu": 1, "checkpoint": {"interval_steps": 5}}
    folder.train({**changes, "zero_optimization": {"stage": 3}}, name="whole", ranks=2)
    checkpoint = os.path.join(folder.run_folder("whole"), "checkpoints", "step-00000005")
    done = folder.train({**changes, "zero_optimization": {"stage": stage}}, name="other", ranks=ranks,
                        more=["--resume", checkpoint])
    whole, other = folder.metrics("whole"), folder.metrics("other")
    assert [row["step"] for row in other.steps] == list(range(6, 13))
    assert other.losses == pytest.approx(whole.losses[5:], abs=2e-6)
    if ranks != 2:
        assert "world" in done.out.lower() or "ranks" in done.out.lower()


def test_metrics_of_later_steps_and_a_torn_line_are_cut_off(folder):
    changes = {"train": {"epochs": 2}, "checkpoint": {"interval_steps": 2, "keep_last": 50}}
    folder.train(changes)
    want = folder.metrics().numbers()
    top = folder.run_folder()
    for name in folder.checkpoints():
        if name not in ("step-00000002", "epoch-0001"):
            shutil.rmtree(os.path.join(top, "checkpoints", name))
    with open(os.path.join(top, "metrics.jsonl"), "a", encoding="utf-8") as f:
        f.write('{"step": 7, "epoch": 3, "lo')
    folder.train(changes, more=["--resume", top])
    metrics = folder.metrics()
    assert metrics.numbers() == want
    assert [row["step"] for row in metrics.kinds("resumed_from")] == [3]


def test_a_finished_run_has_nothing_left_to_do(folder):
    folder.train()
    before = folder.metrics().numbers()
    folder.train(more=["--resume", folder.run_folder()])
    assert folder.metrics().numbers() == before
    # and continues where the spec now asks for more steps
    done = folder.train({"train": {"epochs": 3}}, more=["--resume", folder.run_folder()])
    assert len(folder.metrics().steps) == 9
    assert "epochs" in done.out
    folder.train({"train": {"epochs": 3}}, name="whole")
    assert folder.metrics().losses == folder.metrics("whole").losses


@pytest.mark.parametrize("key, change, values", [
    ("seed", {"run": {"seed": 8}}, ("7", "8")),
    ("seq_length", {"data": {"seq_length": 16}}, ("24", "16")),
    ("train_batch_size", {"train_batch_size": 6}, ("12", "6")),
    ("train", {}, ("train", "other")),
    ("model", {"model": {"config": {**LLAMA, "intermediate_size": 64}}}, ("56", "64")),
], ids=["seed", "seq_length", "batch", "data", "model"])
def test_what_would_silently_change_the_run_is_refused(folder, key, change, values):
    folder.train({"train": {"epochs": 1}})
    if key == "train":
        folder.data(30, seed=9, name="other")
        change = {"data": {"train": folder.at("other")}}
    done = folder.train(change, more=["--resume", folder.run_folder()], expect=USAGE)
    assert key in done.err, done
    for value in values:
        assert value in done.err, done


def test_other_data_at_the_same_place_are_refused(folder):
    folder.train({"train": {"max_steps": 2}})
    for name in ("train.bin", "train.idx"):
        shutil.move(folder.at(name), folder.at("kept-" + name))
    folder.data(seed=5)  # as many samples
    done = folder.train({"train": {"max_steps": 4}}, more=["--resume", folder.run_folder()], expect=DATA)
    assert "holds other data" in done.final_error and "step-00000002" in done.final_error
    for name in ("train.bin", "train.idx"):
        shutil.move(folder.at("kept-" + name), folder.at(name))
    with open(folder.at("train.bin"), "r+b") as file:  # one token, far from the first ones
        file.seek(-2, os.SEEK_END)
        last = file.read()
        file.seek(-2, os.SEEK_END)
        file.write(bytes((last[0] ^ 1, last[1])))
    folder.train({"train": {"max_steps": 4}}, more=["--resume", folder.run_folder()], expect=DATA)
    with open(folder.at("train.bin"), "r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(last)
    folder.train({"train": {"max_steps": 4}}, more=["--resume", folder.run_folder()])


@pytest.mark.parametrize("ranks", [1, 2])
def test_data_and_model_that_were_moved(folder, ranks):
    """They were moved to another file system, say; only their contents count."""
    model = write_config(folder, LLAMA)
    folder.train({**model, "train": {"epochs": 2}}, name="whole", ranks=ranks)
    folder.train({**model, "train": {"max_steps": 2, "epochs": 2}}, ranks=ranks)
    os.makedirs(folder.at("elsewhere"))
    for name in ("train.bin", "train.idx", "model"):
        shutil.move(folder.at(name), folder.at("elsewhere", name))
    moved = {"model": {"config": folder.at("elsewhere", "model")}, "data": {"train": folder.at("elsewhere", "train")},
             "train": {"epochs": 2}}
    for more in (["--dry-run"], []):
        done = folder.train(moved, ranks=ranks, more=["--resume", folder.run_folder(), *more])
        for key in ("data.train", "model.config"):
            assert re.search(f"'{key}' was .* in the checkpoint and is .*elsewhere.* now", done.out), done
    assert folder.metrics().losses == folder.metrics("whole").losses
    nowhere = {**moved, "data": {"train": folder.at("nowhere")}}
    done = folder.train(nowhere, ranks=ranks, more=["--resume", folder.run_folder()], expect=USAGE)
    assert "'data.train' was" in done.final_error, done


def write_config(folder, config):
    """Writes the config.json for random weights: its text may change, its path does not."""
    os.makedirs(folder.at("model"), exist_ok=True)
    with open(folder.at("model", "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    return {"model": {"config": folder.at("model")}}


@pytest.mark.parametrize("more", [[], ["--dry-run"]], ids=["train", "dry-run"])
def test_a_changed_model_at_the_same_path_is_refused(folder, more):
    folder.train({**write_config(folder, LLAMA), "train": {"epochs": 1}})
    more = ["--resume", folder.run_folder(), *more]
    changes = write_config(folder, {**LLAMA, "rope_theta": 500000.0, "rms_norm_eps": 1e-5})
    done = folder.train(changes, more=more, expect=USAGE)
    assert "'rope_theta' of the model was 10000.0 in the checkpoint and is 500000.0 now" in done.err, done
    assert "'rms_norm_eps' of the model was 1e-6 in the checkpoint and is 1e-5 now" in done.err, done
    assert "2 differences" in done.final_error and "hint: set it back" in done.final_error
    # the differences of model and spec together
    done = folder.train({**changes, "run": {"seed": 8}}, more=more, expect=USAGE)
    assert "3 differences" in done.final_error and "'run.seed' was 7" in done.err, done
    # a folder without its model is an error, unless the spec has changed as well
    os.remove(folder.at("model", "config.json"))
    assert "config.json" in folder.train(changes, more=more, expect=DATA).final_error
    assert "'run.seed' was 7" in folder.train({**changes, "run": {"seed": 8}}, more=more, expect=USAGE).final_error
    write_config(folder, LLAMA)
    folder.train(changes, more=more)


def test_a_changed_pretrained_model_is_refused(folder):
    folder.train({"train": {"epochs": 1}}, name="first")
    folder.ztrain("export", folder.run_folder("first"), "--out", folder.at("hf"), "--dtype", "fp32")
    changes = {"model": {"config": None, "pretrained": folder.at("hf")}}
    folder.train({**changes, "train": {"epochs": 1}})
    path = folder.at("hf", "config.json")
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    with open(path, "w", encoding="utf-8") as f:
        json.dump({**config, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 8}, f)
    done = folder.train(changes, ranks=2, more=["--resume", folder.run_folder()], expect=USAGE)
    for line in ('\'model_type\' of the model was "llama" in the checkpoint and is "mistral" now',
                 "'sliding_window' of the model was unset in the checkpoint and is 8 now"):
        assert done.err.count(line + ":") >= 1, done


def test_a_pretrained_model_may_move_but_not_become_another(folder):
    """A base model and a fine-tuned one have equal configs, but folders of different names."""
    folder.train({"train": {"epochs": 1}}, name="first")
    folder.ztrain("export", folder.run_folder("first"), "--out", folder.at("hub", "base"), "--dtype", "fp32")
    shutil.copytree(folder.at("hub", "base"), folder.at("hub", "base-instruct"))
    shutil.copytree(folder.at("hub", "base"), folder.at("scratch", "base"))

    def of(*place):
        return {"model": {"config": None, "pretrained": os.path.join(folder.at(*place), "")}, "train": {"epochs": 1}}
    folder.train(of("hub", "base"))
    resume = ["--resume", folder.run_folder()]
    done = folder.train(of("hub", "base-instruct"), more=resume, expect=USAGE)
    assert "'model.pretrained' was" in done.final_error and "1 difference" in done.final_error, done
    done = folder.train({"train": {"epochs": 1}}, more=resume, expect=USAGE)
    assert "'model.pretrained' was" in done.err, done
    done = folder.train(of("scratch", "base"), more=resume)
    assert re.search("'model.pretrained' was .*hub.* in the checkpoint and is .*scratch.* now", done.out), done


def test_the_same_model_in_other_words_is_accepted(folder):
    changes = {"train": {"epochs": 2}}
    folder.train({**write_config(folder, LLAMA), "train": {"epochs": 1}})
    other = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    other.update(rope_parameters={"rope_type": "default", "rope_theta": 10000}, dtype="float32", bos_token_id=1,
                 initializer_range=0.2)
    done = folder.train({**write_config(folder, other), **changes}, more=["--resume", folder.run_folder()])
    assert "of the model" not in done.out + done.err, done
    folder.train({"train": {"epochs": 2}}, name="whole")
    assert folder.metrics().losses == folder.metrics("whole").losses


def test_what_may_change_is_printed(folder):
    folder.train({"train": {"epochs": 1}})
    done = folder.train({"optimizer": {"params": {"lr": 1e-4}}, "train_micro_batch_size_per_gpu": 4},
                        more=["--resume", folder.run_folder()])
    assert "lr" in done.out and "0.003" in done.out and "0.0001" in done.out
    assert [row["lr"] for row in folder.metrics().steps] == [3e-3] * 3 + [1e-4] * 3
    assert "world size" not in done.out
    done = folder.train({"train": {"epochs": 3}}, ranks=2, more=["--verbose", "--resume", folder.run_folder()])
    assert "the world size was 1 in the checkpoint and is 2 now" in done.out, done


def test_a_dry_run_looks_at_the_checkpoint(folder):
    folder.train({"train": {"epochs": 1}})
    spec = folder.spec({"train": {"epochs": 2}})
    done = folder.ztrain("--config", spec, "--resume", folder.run_folder(), "--dry-run")
    assert "'train.epochs' was 1 in the checkpoint and is 2 now" in done.out and "epoch-0001 at step 3" in done.out
    folder.ztrain("--config", spec, "--resume", folder.at("nowhere"), "--dry-run", expect=CHECKPOINT)
    done = folder.ztrain("--config", spec, "--set", "run.seed=2", "--resume", folder.run_folder(), "--dry-run", expect=USAGE)
    assert "run.seed" in done.final_error


def test_nothing_is_printed_where_nothing_changed(folder):
    changes = {"train": {"epochs": 2}, "scheduler": {"type": "Cosine", "params": {"warmup_steps": 1}}}
    folder.train(changes)
    os.rename(folder.run_folder() + "/checkpoints/epoch-0002", folder.at("aside"))
    done = folder.train(changes, more=["--resume", folder.run_folder()])
    assert "in the checkpoint" not in done.out + done.err, done


def test_skipped_steps_are_counted_across_a_resume(folder):
    """A run that is resumed among non-finite gradients ends as the uninterrupted one did."""
    changes = {"train": {"epochs": 20}, "optimizer": {"params": {"lr": 1e6, "weight_decay": 1.0}},
               "checkpoint": {"interval_steps": 4}}
    folder.train(changes, name="whole", expect=DIVERGED)
    whole = folder.metrics("whole").numbers()
    for checkpoint in ("step-00000004", "step-00000008"):
        path = os.path.join(folder.run_folder("whole"), "checkpoints", checkpoint)
        folder.train(changes, name=f"from-{checkpoint}", more=["--resume", path], expect=DIVERGED)
        tail = folder.metrics(f"from-{checkpoint}").numbers()
        assert tail == whole[-len(tail):] and len(tail) < len(whole)


def test_nothing_to_resume_from(folder):
    os.makedirs(folder.at("empty"))
    for place in (folder.at("empty"), folder.at("nowhere")):
        done = folder.train(more=["--resume", place], expect=CHECKPOINT)
        assert place in done.final_error


def names_in(folder, *place):
    return sorted(os.listdir(os.path.join(folder.run_folder(), *place)))


def killed_after_branching(folder, run, branch):
    """Trains 22 steps, then from step 9 on with another learning rate, and is killed at step 12 before a checkpoint."""
    folder.spec()
    folder.data(400)  # one epoch has 33 steps
    folder.train({**run, "train": {"max_steps": 22}, "checkpoint": {"interval_steps": 9}})
    nine = os.path.join(folder.run_folder(), "checkpoints", "step-00000009")
    disk = BadDisk(folder)
    disk.fails("pread slow train.bin")  # the epoch's end, with its checkpoint, is seconds after step 12
    process = folder.start("--config", folder.spec({**branch, "train": {"epochs": 1000}}), "--resume", nine, env=disk.env)
    path = os.path.join(folder.run_folder(), "metrics.jsonl")

    def at_step_12():
        assert process.poll() is None
        with open(path, encoding="utf-8") as f:
            text = f.read()
        return "resumed_from" in text and '"step":12' in text.partition("resumed_from")[2]
    wait_until(at_step_12)
    process.kill()
    process.wait()


@pytest.mark.long
def test_a_run_has_one_history(folder):
    """A kill after a resume from further back does not bring the abandoned history back; its name does."""
    changes = {"optimizer": {"params": {"lr": 1e-3}}}
    killed_after_branching(folder, {}, changes)
    assert names_in(folder, "checkpoints") == ["latest", "step-00000009", "step-00000018.aside-1",
                                               "step-00000022.aside-1"]
    assert os.path.basename(folder.latest()) == "step-00000009"
    changes["train"] = {"max_steps": 24}
    done = folder.train(changes, more=["--resume", folder.run_folder()])
    assert "step-00000009 at step 9, epoch 1" in done.out, done
    metrics = folder.metrics()
    assert [row["step"] for row in metrics.steps] == list(range(1, 25))
    assert [row["lr"] for row in metrics.steps] == [3e-3] * 9 + [1e-3] * 15
    said = folder.ztrain("inspect", folder.run_folder()).out
    assert "step 24," in said and "  step-00000022.aside-1        step 22, " in said, said

    # the history that was left, by name: its checkpoint and its lines come back, and the steps that the run did meanwhile go aside
    aside = os.path.join(folder.run_folder(), "checkpoints", "step-00000022.aside-1")
    back = {"train": {"max_steps": 26}}
    before = everything_in(folder.run_folder())
    done = folder.train(back, more=["--resume", aside, "--dry-run"])
    assert "would rename" in done.out and "step-00000024' as 'step-00000024.aside-" in done.out, done
    assert everything_in(folder.run_folder()) == before
    done = folder.train(back, more=["--resume", aside])
    assert "step-00000022 at step 22, epoch 1" in done.out, done
    assert [row["lr"] for row in folder.metrics().steps] == [3e-3] * 26
    folder.train({**back, "checkpoint": {"interval_steps": 9}}, name="whole")
    assert folder.metrics().losses == folder.metrics("whole").losses
    names = names_in(folder, "checkpoints")
    assert [name for name in names if "aside" not in name] == ["latest", "step-00000009", "step-00000022",
                                                               "step-00000026"]
    (other,) = [name for name in names if name.startswith("step-00000024.aside-")]
    with open(os.path.join(folder.run_folder(), "metrics.jsonl." + other.rpartition("-")[2]), encoding="utf-8") as f:
        assert [row["lr"] for row in map(json.loads, f) if "loss" in row] == [3e-3] * 9 + [1e-3] * 15


@pytest.mark.long
def test_a_copy_of_a_checkpoint_is_a_course_as_well(folder):
    """The user made it under a name that ztrain does not write; the run folder is resumed from it."""
    folder.train({"train": {"epochs": 3}, "checkpoint": {"keep_last": 1}})
    top, copy = os.path.join(folder.run_folder(), "checkpoints"), os.path.join(folder.run_folder(), "good")
    folder.train({"train": {"epochs": 2}}, name="other")
    shutil.copytree(folder.latest("other"), copy)
    done = folder.train({"train": {"epochs": 2}}, more=["--resume", copy])
    assert "nothing to do" in done.out, done
    assert names_in(folder, "checkpoints") == ["epoch-0002", "epoch-0003.aside-1", "latest"]
    done = folder.train({"train": {"epochs": 3}}, more=["--resume", folder.run_folder()])
    assert f"resumed from {top}/epoch-0002 at step 6" in done.out, done
    assert len(folder.metrics().steps) == 9 and os.path.isdir(os.path.join(copy))


def test_metrics_that_were_damaged_or_lost(folder):
    """One damaged line costs that line, and the line of the last checkpoint, lost by a kill, is added."""
    folder.train({"train": {"max_steps": 5}})
    path = os.path.join(folder.run_folder(), "metrics.jsonl")
    with open(path, encoding="utf-8") as f:
        lines = f.read().splitlines(keepends=True)
    lost = json.loads(lines[-1])
    assert os.path.basename(lost["checkpoint"]) == "step-00000005"
    lines[1] = lines[1][:40] + "\0\0\0\0" + lines[1][44:]
    damaged = "".join(lines[:-1])
    with open(path, "w", encoding="utf-8") as f:
        f.write(damaged)
    done = folder.train({"train": {"max_steps": 6}}, more=["--resume", folder.run_folder()])
    assert done.err.count("line 2 is damaged") == 1, done
    metrics = folder.metrics()
    assert [row["step"] for row in metrics.steps] == [1, 3, 4, 5, 6]
    (added,) = [row for row in metrics.kinds("checkpoint") if row["step"] == 5]
    assert added == {**lost, "seconds_stalled": None, "seconds_total": None}
    with open(path + ".1", encoding="utf-8") as f:
        assert f.read() == damaged
    # nothing has to be left out: no further file
    folder.train({"train": {"max_steps": 6}}, more=["--resume", folder.run_folder()])
    assert not os.path.exists(path + ".2")


def test_hints_that_lead_somewhere(folder):
    folder.train({"train": {"epochs": 1}})
    top = os.path.join(folder.run_folder(), "checkpoints")
    os.rename(os.path.join(top, "epoch-0001"), os.path.join(top, "epoch-0001.aside-1"))
    done = folder.train(expect=USAGE)
    assert "all of them were moved aside: ztrain inspect" in done.final_error, done
    done = folder.ztrain("inspect", folder.run_folder(), expect=CHECKPOINT)
    assert f"set aside: no resume of the run takes them; --resume {top}/NAME" in done.out and "  epoch-0001.aside-1           step 3, " in done.out, done
    done = folder.train(more=["--resume", folder.run_folder()], expect=CHECKPOINT)
    assert f"hint: '{top}/epoch-0001.aside-1' of step 3 was moved aside and can be named" in done.final_error, done
    done = folder.ztrain("verify", folder.run_folder(), expect=CHECKPOINT)
    assert f"hint: ztrain inspect {top} lists the 1 that is set aside" in done.final_error, done
    folder.train(more=["--resume", os.path.join(top, "epoch-0001.aside-1")])
    assert len(folder.metrics().steps) == 6
    for name in ("epoch-0001", "epoch-0002"):
        os.truncate(os.path.join(top, name, "manifest.json"), 100)
    done = folder.train(more=["--resume", os.path.join(top, "epoch-0002")], expect=CHECKPOINT)
    assert "hint: --resume RUN, the run folder, takes its newest checkpoint that is whole" in done.final_error, done
    done = folder.train(more=["--resume", folder.run_folder()], expect=CHECKPOINT)
    assert "; hint: another run.name starts a new run" in done.final_error, done


def everything_in(path):
    """{file: bytes} below a folder, without logs and links."""
    found = {}
    for place, _, names in os.walk(path):
        for name in names:
            whole = os.path.join(place, name)
            if os.path.basename(place) != "log" and not os.path.islink(whole):
                with open(whole, "rb") as f:
                    found[os.path.relpath(whole, path)] = f.read()
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_another_runs_checkpoint_does_not_overwrite_a_run(folder, ranks):
    folder.train({"train": {"epochs": 1}}, name="a")
    folder.train({"train": {"epochs": 1}}, name="b")
    before = everything_in(folder.run_folder("b"))
    os.symlink(folder.run_folder("b"), folder.at("link"))
    for place in (folder.run_folder("a"), os.path.join(folder.run_folder("a"), "checkpoints", "epoch-0001")):
        for more in ([], ["--dry-run"]):
            done = folder.train({"train": {"epochs": 2}}, name="b", ranks=ranks, more=["--resume", place, *more],
                                expect=USAGE)
            assert done.err.count("ztrain: error: ") == 1 and "already holds checkpoints, and --resume names one that " \
                "lies elsewhere; hint: --resume" in done.final_error, done
    assert everything_in(folder.run_folder("b")) == before
    # the same folder by another path is not another folder
    folder.train({"train": {"epochs": 2}}, name="b", ranks=ranks, more=["--resume", folder.at("link")])
    assert len(folder.metrics("b").steps) == 6


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_moved_run_folder_is_continued_where_it_is(folder, ranks):
    folder.train({"train": {"epochs": 1}})
    os.mkdir(folder.at("archive"))
    moved = folder.at("archive", "kept")
    os.rename(folder.run_folder(), moved)
    changes = {"train": {"epochs": 2}}
    done = folder.train(changes, ranks=ranks, more=["--resume", moved, "--dry-run"])
    assert f"run folder: {moved}\nthe run was moved there: " in done.out, done
    folder.train(changes, ranks=ranks, more=["--resume", moved])
    done = folder.train({"train": {"epochs": 3}}, ranks=ranks,
                        more=["--resume", os.path.join(moved, "checkpoints", "epoch-0002")])
    assert f"the run folder was moved: the run continues in {moved}" in done.out, done
    assert not os.path.exists(folder.run_folder())
    assert sorted(os.listdir(os.path.join(moved, "checkpoints"))) == ["epoch-0001", "epoch-0002", "epoch-0003", "latest"]
    with open(os.path.join(moved, "metrics.jsonl"), encoding="utf-8") as f:
        assert [row["step"] for row in map(json.loads, f) if "loss" in row] == list(range(1, 10))
    # a spec with another name branches off into a separate folder
    done = folder.train({"train": {"epochs": 2}}, name="other",
                        more=["--resume", os.path.join(moved, "checkpoints", "epoch-0001")])
    assert [row["step"] for row in folder.metrics("other").steps] == [4, 5, 6]


def test_newer_damaged_checkpoints_are_passed_over(folder):
    changes = {"train": {"epochs": 2}, "checkpoint": {"interval_steps": 2}}
    folder.train(changes)
    want = folder.metrics().numbers()
    top = os.path.join(folder.run_folder(), "checkpoints")
    with open(os.path.join(top, "epoch-0002", "rank-00000.zst"), "r+b") as f:
        f.seek(os.path.getsize(f.name) // 2)
        byte = f.read(1)
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte[0] ^ 16]))
    os.truncate(os.path.join(top, "step-00000004", "manifest.json"), 100)
    done = folder.train(changes, more=["--resume", folder.run_folder()])
    assert "epoch-0002" in done.err and "step-00000004" in done.err
    assert [row["step"] for row in folder.metrics().kinds("resumed_from")] == [3]
    assert folder.metrics().numbers() == want
    folder.ztrain("verify", os.path.join(top, "epoch-0002"))


def test_position_is_in_the_manifest(folder):
    folder.train({"train": {"epochs": 1}})
    with open(os.path.join(folder.latest(), "manifest.json"), encoding="utf-8") as f:
        manifest = json.load(f)
    assert '"step": 3' in json.dumps(manifest)
    assert manifest and SEQUENCE * 36 in json.loads(json.dumps(list(flatten(manifest))))


def flatten(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from flatten(item)
    else:
        yield value

# SPDX-License-Identifier: Apache-2.0
"""Hashes of the parameters and of checkpoints, and `ztrain replay`, which computes steps of a run again."""
import json
import math
import os
import re
import shutil
import signal

import pytest

from harness import BadDisk, CHECKPOINT, DIVERGED, FINISHED, Job, REQUEUE, USAGE, wait_for_steps, wait_until

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


def contents(folder, name="run"):
    """{file: (bytes, time of the last change)} of everything below a run folder."""
    found = {}
    for top, folders, files in os.walk(folder.run_folder(name)):
        for file in files + folders:
            path = os.path.join(top, file)
            found[path] = (os.lstat(path).st_mtime_ns, b"" if os.path.isdir(path) else open(path, "rb").read())
    return found


def replay(folder, step, *more, name="run", expect=FINISHED):
    """Replays up to a step; nothing in the run folder may change."""
    before = contents(folder, name)
    done = folder.ztrain("replay", folder.run_folder(name), "--step", step, *more, expect=expect)
    assert contents(folder, name) == before
    return done


def rows(done):
    """What the table says of each step: {step: (loss, hash or "-", "same", "none" or "differs")}."""
    found = re.findall(r"^(?:\[0\] )? +(\d+)  (\S+) +\S+ +(\w{16}|-) +(\w+)$", done.out, re.M)
    return {int(step): (loss, digits, verdict) for step, loss, digits, verdict in found}


def rewrite(folder, step, change, name="run"):
    """Changes the line of a step in metrics.jsonl."""
    path = os.path.join(folder.run_folder(name), "metrics.jsonl")
    with open(path, encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    for line in lines:
        if line["step"] == step and "loss" in line:
            change(line)
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines)


def flip_byte(path):
    with open(path, "r+b") as f:
        f.seek(500)
        byte = f.read(1)[0]
        f.seek(500)
        f.write(bytes([byte ^ 8]))


def test_replay_on_any_number_of_ranks(folder):
    folder.train({**VIRTUAL, "train": {**VIRTUAL["train"], "epochs": 3}, "zero_optimization": {"stage": 2}}, ranks=2)
    steps = folder.metrics().steps
    for ranks, stage in ((1, 2), (2, 0), (4, 3)):
        done = replay(folder, 6, "--local-gpus", ranks, "--set", f"zero_optimization.stage={stage}")
        assert rows(done) == {step: (f"{steps[step - 1]['loss']:.9g}", steps[step - 1].get("hash", "-"), "same") for step in (4, 5, 6)}
        assert "3 of 3 steps, 2 hashes of the parameters, the state of checkpoint epoch-0002\n" in done.out
    done = replay(folder, 8)
    assert sorted(rows(done)) == [7, 8] and "2 of 2 steps, 1 hash of the parameters\n" in done.out
    assert "cannot be divided among 3 ranks" in replay(folder, 8, "--local-gpus", 3, expect=USAGE).err


def test_replay_by_a_launcher_on_two_nodes(folder):
    folder.train(VIRTUAL, ranks=1)
    before = contents(folder)
    ended = Job(folder, "replay", folder.run_folder(), "--step", 6).wait()
    assert [done.code for done in ended] == [FINISHED] * 4, ended
    assert sorted(rows(ended[0])) == [4, 5, 6] and contents(folder) == before
    rewrite(folder, 5, lambda line: line.update(loss=1.5))
    ended = Job(folder, "replay", folder.run_folder(), "--step", 6).wait()
    assert [done.code for done in ended] == [DIVERGED] * 4, ended


def test_replay_without_virtual_ranks(folder):
    """On the number of ranks that the checkpoint has, and on no other."""
    folder.train({"train": {"epochs": 3}, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}, ranks=2)
    done = replay(folder, 6, "--local-gpus", 2)
    assert sorted(rows(done)) == [4, 5, 6] and "3 of 3 steps, the state of checkpoint epoch-0002\n" in done.out
    done = replay(folder, 6, expect=USAGE)
    assert "cannot be replayed on 1 rank (alone): these steps were computed on 2 ranks; hint: --local-gpus 2" in done.err
    folder.train({"train": {"epochs": 4}, "bf16": {"enabled": True}}, more=["--resume", folder.run_folder()])
    done = replay(folder, 11)  # resumed on one rank from the two ranks' checkpoint
    assert sorted(rows(done)) == [10, 11] and "2 of 2 steps\n" in done.out
    assert "the state of checkpoint epoch-0004\n" in replay(folder, 12).out
    assert "computed on 1 rank; hint" in replay(folder, 12, "--local-gpus", 2, expect=USAGE).err
    assert "the state of checkpoint epoch-0003\n" in replay(folder, 9, "--local-gpus", 2).out


def test_replay_of_a_run_that_was_resumed(folder):
    """Without checkpoints between; a step whose line was lost has none to be compared with."""
    folder.train({**VIRTUAL, "checkpoint": {"save_at_epoch_end": False, "interval_steps": 2}})
    shutil.rmtree(folder.at("runs", "run", "checkpoints", "step-00000004"))
    folder.train({**VIRTUAL, "train": {**VIRTUAL["train"], "epochs": 4}}, ranks=4, more=["--resume", folder.run_folder()])
    assert sorted(rows(replay(folder, 6))) == [3, 4, 5, 6]
    rewrite(folder, 5, lambda line: line.pop("loss"))
    done = replay(folder, 6)
    assert rows(done)[5][2] == "none" and "3 of 4 steps" in done.out
    rewrite(folder, 7, lambda line: line.pop("loss"))
    assert "has no line of this step" in replay(folder, 7, expect=USAGE).err


def test_replay_from_a_checkpoint_before_its_evaluation(folder):
    """A run was stopped in the evaluation at the end of an epoch. The replay leaves it out, and begins the next epoch."""
    folder.spec()
    folder.data(600, seed=3, name="much")
    disk = BadDisk(folder)
    spec = folder.spec({**VIRTUAL, "data": {"validation": folder.at("much")}})
    disk.fails("pread slow much.bin")
    process = folder.start("--config", spec, env={"OMP_NUM_THREADS": "1", **disk.env})
    wait_for_steps(folder, process, 3)
    process.send_signal(signal.SIGTERM)
    assert folder.wait(process).code == REQUEUE and folder.checkpoints() == ["step-00000003"]
    folder.ztrain("--config", spec, "--resume", folder.run_folder())
    shutil.rmtree(folder.at("runs", "run", "checkpoints", "epoch-0001"))
    done = replay(folder, 6)
    assert "from " + folder.at("runs", "run", "checkpoints", "step-00000003") in done.out
    assert sorted(rows(done)) == [4, 5, 6] and "the state of checkpoint epoch-0002\n" in done.out


def test_replay_of_a_run_that_was_resumed_on_other_ranks(folder):
    """Without virtual ranks the lines of resumes say who has computed the steps after the last checkpoint."""
    folder.spec()
    folder.data(600, seed=3, name="much")
    spec = {"train": {"epochs": 2}, "data": {"validation": folder.at("much")}}
    folder.train({**spec, "train": {"epochs": 1}}, ranks=3)
    disk = BadDisk(folder)
    disk.fails("pread slow much.bin")
    process = folder.start("--config", folder.spec(spec), "--local-gpus", 2, "--resume", folder.run_folder(), env=disk.env)
    wait_for_steps(folder, process, 6)
    os.killpg(process.pid, signal.SIGKILL)
    folder.wait(process)
    assert folder.checkpoints() == ["epoch-0001"]
    assert sorted(rows(replay(folder, 6, "--local-gpus", 2))) == [4, 5, 6]
    assert "computed on 2 ranks" in replay(folder, 6, "--local-gpus", 3, expect=USAGE).err
    folder.train(spec, more=["--resume", folder.run_folder()])
    folder.train({**spec, "train": {"epochs": 3}}, ranks=2, more=["--resume", folder.run_folder()])
    shutil.rmtree(folder.at("runs", "run", "checkpoints", "epoch-0002"))
    for ranks in (1, 2):
        done = replay(folder, 9, "--local-gpus", ranks, expect=USAGE)
        assert "steps 4 to 9 were not all computed on one number of ranks; hint: only a run with train.virtual_ranks" in done.err


def test_replay_of_a_run_that_diverged(folder):
    """The replay is the same, and so is the end of the run."""
    folder.train({**VIRTUAL, "optimizer": {"type": "SGD", "params": {"lr": 1e6}}, "gradient_clipping": 0.0,
                  "train": {**VIRTUAL["train"], "max_skipped_steps": 2, "hash_interval_steps": 1},
                  "checkpoint": {"interval_steps": 1}}, ranks=2, expect=DIVERGED)
    last = folder.metrics().steps[-1]
    loss = "nan" if last["loss"] is None else f"{last['loss']:.9g}"  # by the kernels, as is the step: 3 to 5
    assert last["skipped"]
    assert rows(replay(folder, last["step"])) == {last["step"]: (loss, last["hash"], "same")}


def test_replay_finds_what_differs(folder):
    folder.train(VIRTUAL)
    loss, norm, rate, digits = (folder.metrics().steps[4 - 1][key] for key in ("loss", "grad_norm", "lr", "hash"))
    more = ["--local-gpus", 2]
    for key, value, was, words in (
            ("loss", math.nextafter(loss, 9), loss, f"step 4 differs from the run's record: loss is {loss:.17g} in the replay, and "),
            ("grad_norm", 0.5, norm, f"grad_norm is {norm:.17g} in the replay, and 0.5 in "),
            ("lr", 0.5, rate, f"lr is {rate:.17g} in the replay, and 0.5 in "),
            ("loss", None, loss, f"loss is {loss:.17g} in the replay, and nan in "),
            ("hash", "0123456789abcdef", digits, f"the hash of the parameters is {digits} in the replay, and 0123456789abcdef in ")):
        rewrite(folder, 4, lambda line: line.update({key: value}))
        done = replay(folder, 6, *more, expect=DIVERGED)
        assert words in done.err and rows(done)[4][2] == "differs" and 5 not in rows(done), done
        rewrite(folder, 4, lambda line: line.update({key: was}))
        more = []
    assert rows(replay(folder, 6))[4][2] == "same"
    # the learning rate decides the second step's loss, and the first step's hash
    assert "step 4 differs" in replay(folder, 6, "--set", "optimizer.params.lr=1e-3", expect=DIVERGED).err
    folder.train({**VIRTUAL, "run": {"seed": 8}}, "other")
    where = folder.at("runs", "run", "checkpoints", "epoch-0002")
    shutil.rmtree(where)
    shutil.copytree(folder.at("runs", "other", "checkpoints", "epoch-0002"), where)
    done = replay(folder, 6, expect=DIVERGED)
    assert "step 6 differs from the run's record: the hash of parameters after it (checkpoint epoch-0002) is " in done.err
    assert hashes(folder)["parameters"] in done.err and rows(done)[6][2] == "same"


def test_replay_begins_at_a_whole_checkpoint(folder):
    folder.train({**VIRTUAL, "train": {**VIRTUAL["train"], "epochs": 3}})
    flip_byte(folder.at("runs", "run", "checkpoints", "epoch-0002", "rank-00000.zst"))
    done = replay(folder, 8)
    assert sorted(rows(done)) == [4, 5, 6, 7, 8] and "checkpoint epoch-0002 is passed over: " in done.err + done.out
    os.remove(folder.at("runs", "run", "checkpoints", "epoch-0002", "manifest.json"))
    done = replay(folder, 8)
    assert sorted(rows(done)) == [4, 5, 6, 7, 8] and "checkpoint epoch-0002 is passed over: " in done.err + done.out
    done = replay(folder, 3, expect=CHECKPOINT)
    assert "no valid checkpoint of a step before 3; hint: its oldest one is of step 3" in done.err
    flip_byte(folder.at("runs", "run", "checkpoints", "epoch-0001", "rank-00000.zst"))
    assert "no valid checkpoint of a step before 8" in replay(folder, 8, "--local-gpus", 2, expect=CHECKPOINT).err
    os.remove(folder.at("runs", "run", "metrics.jsonl"))
    assert "metrics.jsonl'" in replay(folder, 12, expect=CHECKPOINT).err


def test_replay_of_nothing(folder):
    folder.train({**VIRTUAL, "train": {**VIRTUAL["train"], "epochs": 1}})
    for step in (99, 10 ** 15):  # no memory is taken for what the run has not computed
        assert f"--step {step}: " in replay(folder, step, expect=USAGE).err
    for words, code, said in ((("--step", "4"), USAGE, "has no line of this step"),
                              ((), USAGE, "no step was named"),
                              (("--step", "0"), USAGE, "--step must be a number from 1 to"),
                              (("--step", "3", "--local-gpus", "65"), USAGE, "--local-gpus must be a number from 1 to 64"),
                              (("--step", "3", "--resume", "x"), USAGE, "unknown option '--resume'")):
        assert said in folder.ztrain("replay", folder.run_folder(), *words, expect=code).err
    part = folder.at("runs", "run", "checkpoints", "epoch-0001")
    assert "epoch-0001' is not a run folder: it has no run.yaml" in folder.ztrain("replay", part, "--step", 3, expect=CHECKPOINT).err
    assert "there is no run folder" in folder.ztrain("replay", folder.at("runs", "none"), "--step", 3, expect=CHECKPOINT).err
    assert "no run folder was named" in folder.ztrain("replay", "--step", 3, expect=USAGE).err


@pytest.mark.parametrize("ranks", [1, 2])
def test_replay_that_is_stopped(folder, ranks):
    """It ends after the step with 75; what it has printed is true, and nothing is left."""
    folder.train({**VIRTUAL, "train": {"epochs": None, "max_steps": 120, "virtual_ranks": 4},
                  "checkpoint": {"save_at_epoch_end": False, "interval_steps": 20}})
    for name in folder.checkpoints()[1:-1]:
        shutil.rmtree(folder.at("runs", "run", "checkpoints", name))
    before = contents(folder)
    process = folder.start("replay", folder.run_folder(), "--step", 120, "--local-gpus", ranks)
    wait_until(lambda: rows(folder.said(process)), 30, "the first step")
    process.send_signal(signal.SIGINT)
    done = folder.wait(process)
    assert done.code == REQUEUE and "the replay was stopped after step " in done.out, done
    assert "interrupted: the replay stops after this step; a second Ctrl-C ends it at once\n" in done.err, done
    assert 0 < len(rows(done)) < 100 and {row[2] for row in rows(done).values()} == {"same"}
    assert contents(folder) == before

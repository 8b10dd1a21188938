# SPDX-License-Identifier: Apache-2.0
"""--resume auto: one command to start and to continue. --max-restarts: the supervisor starts the ranks again."""
import glob
import json
import os
import signal

import pytest

from harness import BadDisk, CHECKPOINT, FINISHED, LLAMA, PEER, REQUEUE, USAGE, children, wait_for_checkpoint, wait_for_steps, \
    wait_until

LONG = {"train": {"epochs": None, "max_steps": 1000000}, "checkpoint": {"interval_steps": 5, "keep_last": 2}}


def test_one_command_to_start_and_to_continue(folder):
    auto = ("--resume", "auto")
    plan = folder.train(more=(*auto, "--dry-run")).out
    assert "would resume" not in plan
    folder.train({"train": {"epochs": 1}}, more=auto)
    assert not folder.metrics().kinds("resumed_from")
    assert "would resume from" in folder.train({"train": {"epochs": 2}}, more=(*auto, "--dry-run")).out
    folder.train({"train": {"epochs": 2}}, more=auto, ranks=2)
    assert [row["step"] for row in folder.metrics().kinds("resumed_from")] == [3]
    again = folder.train({"train": {"epochs": 2}}, more=auto)
    assert "nothing to do: the run of 6 steps is complete" in again.out
    # the newest valid one: a damaged one is passed over
    with open(os.path.join(folder.latest(), "rank-00000.zst"), "r+b") as f:
        f.truncate(100)
    done = folder.train({"train": {"epochs": 2}}, more=auto)
    assert "epoch-0002' is not used" in done.err and "resumed from" in done.out and len(folder.metrics().steps) == 6


def test_ranks_share_the_verification(folder):
    """A fault that another rank than the first finds in the newest checkpoint counts as one that rank 0 finds."""
    disk, run = BadDisk(folder), folder.run_folder()
    spec = {"train": {"epochs": 3}, "checkpoint": {"retry_seconds": 0.3}}
    folder.train({"train": {"epochs": 2}}, ranks=2)
    disk.fails("pread EIO epoch-0002/rank-00001.zst")
    done = folder.train(spec, ranks=2, more=("--resume", run), env=disk.env, expect=CHECKPOINT)
    assert "rank 1 on " in done.final_error and "epoch-0002/rank-00001.zst' at offset 0: " in done.final_error, done
    assert "make '" in done.final_error and "is not used" not in done.err, done
    disk.works()
    with open(os.path.join(folder.latest(), "rank-00001.zst"), "r+b") as f:
        f.seek(os.path.getsize(f.name) // 2)
        byte = f.read(1)
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte[0] ^ 1]))
    done = folder.train(spec, ranks=4, more=("--resume", run))
    assert done.err.count("epoch-0002' is not used: '") == 1 and "/rank-00001.zst' is damaged at offset " in done.err, done
    assert [row["step"] for row in folder.metrics().kinds("resumed_from")] == [3]
    assert "epoch-0002.damaged-1" in os.listdir(os.path.join(run, "checkpoints"))


def test_a_start_that_was_killed_before_its_first_checkpoint(folder):
    process = folder.start("--config", folder.spec(LONG), "--resume", "auto", "--set", "checkpoint.interval_steps=0")
    wait_for_steps(folder, process, 3)
    process.kill()
    folder.wait(process)
    folder.train({"train": {"epochs": 1}}, more=("--resume", "auto"))
    assert [row["step"] for row in folder.metrics().steps] == [1, 2, 3]


def test_checkpoints_that_cannot_be_listed_are_not_none(folder):
    """A run must not begin anew over them; nor may `ztrain verify` take a folder of checkpoints for one."""
    disk = BadDisk(folder)
    folder.train({"train": {"epochs": 1}})
    disk.fails("opendir EACCES checkpoints")
    for more in ((), ("--resume", "auto")):
        done = folder.train({"train": {"epochs": 2}}, more=more, env=disk.env, expect=CHECKPOINT)
        assert "cannot list the checkpoints in" in done.final_error, done
    disk.works()
    os.symlink(".", os.path.join(folder.run_folder(), "checkpoints", "step-00000090"))
    done = folder.ztrain("verify", folder.run_folder(), expect=CHECKPOINT)
    assert "step-00000090: '" in done.out and "is a folder of checkpoints" in done.out, done
    os.unlink(os.path.join(folder.run_folder(), "checkpoints", "step-00000090"))
    folder.train({"train": {"epochs": 2}}, more=("--resume", "auto"), env=disk.env)
    assert [row["step"] for row in folder.metrics().kinds("resumed_from")] == [3]


def has_gained(folder):
    """Whether there is a checkpoint that the start before this one did not have."""
    metrics = folder.metrics()
    before = [row["step"] for row in metrics.kinds("restart")]
    return any(row["step"] > max(before, default=0) for row in metrics.kinds("checkpoint"))


def kill_rank(process, rank=1):
    os.kill(sorted(children(process.pid))[rank], signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize("more", [(), ("--resume", "auto")])
def test_the_ranks_are_started_again(folder, more):
    """Twice a rank is killed; the run ends with the numbers of one that was not disturbed."""
    spec, disk = {**LONG, "train": {"epochs": None, "max_steps": 60}}, BadDisk(folder)
    folder.train(spec, "whole", ranks=2)
    disk.fails("pread slow train.bin")  # so that it does not end before it is killed
    process = folder.start("--config", folder.spec(spec), "--local-gpus", 2, "--max-restarts", 3, *more, env=disk.env)
    for number in (1, 2):
        wait_for_steps(folder, process, 4 * number)
        wait_until(lambda: has_gained(folder), what="a checkpoint")
        kill_rank(process)
        wait_until(lambda n=number: f"restart {n} of 3 from step " in folder.said(process).out, what="the restart")
        wait_until(lambda n=number: folder.said(process).out.count("resumed from") == n, what="the resume")
    disk.works()
    done = folder.wait(process)
    assert done.code == FINISHED, done
    metrics = folder.metrics()
    restarts = metrics.kinds("restart")
    assert [row["restart"] for row in restarts] == [1, 2] and {row["exit_code"] for row in restarts} == {PEER}
    assert all("was killed by signal 9" in row["cause"] and row["step"] >= 3 for row in restarts)
    assert metrics.numbers() == folder.metrics("whole").numbers()


def test_it_gives_up_when_no_step_was_gained(folder):
    """A step that kills its rank each time."""
    slow = {**LONG, "checkpoint": {"save_at_epoch_end": False}}
    process = folder.start("--config", folder.spec(slow), "--local-gpus", 2, "--max-restarts", 5)
    wait_for_steps(folder, process, 5)
    kill_rank(process)
    wait_until(lambda: "restart 1 of 5, again from where the run began, as the ranks have ended with exit code 6: rank 1 on"
               in folder.said(process).out, what="the restart")
    wait_until(lambda: folder.said(process).out.count("run folder ") >= 2, what="the second start")
    wait_for_steps(folder, process, 5)
    kill_rank(process)
    done = folder.wait(process)
    assert done.code == PEER and "the ranks are not started again: restart 1 has gained no checkpoint, the newest " \
                                 "one is still none; hint: a shorter checkpoint.interval_steps" in done.err, done
    last = folder.metrics().kinds("gave_up")
    assert [(row["gave_up"], row["step"], row["exit_code"]) for row in last] == [(1, 0, PEER)] and "killed by signal 9" in last[0]["cause"]
    text = folder.ztrain("report", folder.run_folder(), env={"COLUMNS": "180"}).out
    assert "  failed      exit code 6: rank 1 on" in text and "was killed by signal 9" in text, text


def read(path):
    with open(path, "rb") as f:
        return f.read()


def write(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


@pytest.mark.parametrize("more, in_folder", [((), False), (("--resume", "auto"), True)], ids=["edited", "gone"])
def test_restarted_ranks_use_the_spec_of_the_start(folder, more, in_folder):
    """Whatever happens to the run spec, to DeepSpeed's file and to the model's config.json, or its folder, while the run
    lives."""
    os.mkdir(folder.at("model"))
    config = write(folder.at("model", "config.json"), json.dumps(LLAMA))
    model = folder.at("model") if in_folder else config
    deepspeed = write(folder.at("ds.json"), '{"gradient_clipping": 0.7}')
    spec = folder.spec({**LONG, "model": {"config": model}, "gradient_clipping": None})
    process = folder.start("--config", spec, "--deepspeed", deepspeed, "--set", "optimizer.params.lr=0.001", "--local-gpus", 2,
                           "--max-restarts", 1, *more)
    wait_for_steps(folder, process, 8)
    wait_for_checkpoint(folder, process, after=4)
    before = read(os.path.join(folder.run_folder(), "run.yaml"))
    write(spec, "run: {name: other}\ntrain: [")
    write(config, json.dumps({**LLAMA, "hidden_size": 64}))
    if in_folder:
        os.rename(model, folder.at("elsewhere"))
    os.remove(deepspeed)
    kill_rank(process)
    wait_until(lambda: process.poll() is not None or "resumed from" in folder.said(process).out, what="the resume")
    process.send_signal(signal.SIGTERM)
    done = folder.wait(process)
    assert done.code == REQUEUE and "restart 1 of 1 from step " in done.out, done
    assert read(os.path.join(folder.run_folder(), "run.yaml")) == before
    assert os.listdir(folder.at("runs")) == ["run"]


def failed_once(folder, disk, *lines):
    """A supervisor whose rank was killed, once it is at one of these lines."""
    process = folder.start("--config", folder.spec(LONG), "--local-gpus", 2, "--max-restarts", 3, env=disk.env)
    wait_for_steps(folder, process, 8)
    wait_for_checkpoint(folder, process, after=4)
    disk.fails(*lines)
    kill_rank(process)
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_signals_wait_for_the_supervisor_that_is_executed(folder, number):
    disk = BadDisk(folder)
    process = failed_once(folder, disk, "start hold restart")
    wait_until(lambda: b"ZTRAIN_RESTART=" in read(f"/proc/{process.pid}/environ"), what="the restart")
    process.send_signal(signal.SIGQUIT)
    process.send_signal(number)
    disk.works()
    done = folder.wait(process)
    assert done.code == REQUEUE and "restart 1 of 3 from step" in done.out and "stopped on request after step" in done.out, done


def test_a_signal_between_a_failure_and_the_restart(folder):
    """The ranks are not started again, and the run can be resumed."""
    disk = BadDisk(folder)
    process = failed_once(folder, disk, "opendir hold checkpoints")
    wait_until(lambda: not children(process.pid), what="the end of the ranks")
    process.send_signal(signal.SIGTERM)
    disk.works()
    done = folder.wait(process)
    assert done.code == REQUEUE and "stopped on request: the ranks are not started again; continue with --resume" in done.out, done
    folder.train({"train": {"epochs": None, "max_steps": 5}}, more=("--resume", folder.run_folder()))


@pytest.mark.long
def test_a_run_that_was_asked_to_stop_is_not_started_again(folder):
    """A rank is killed while it writes the checkpoint of a stop."""
    disk = BadDisk(folder)
    process = folder.start("--config", folder.spec(LONG), "--local-gpus", 2, "--max-restarts", 3, env=disk.env)
    wait_for_steps(folder, process, 6)
    disk.fails("fsync hold rank-0000")
    wait_until(lambda: glob.glob(os.path.join(folder.run_folder(), "checkpoints", ".tmp-*")), what="a checkpoint that waits")
    process.send_signal(signal.SIGINT)
    wait_until(lambda: "a second Ctrl-C ends it at once" in folder.said(process).err, what="the supervisor's answer")
    kill_rank(process)
    disk.works()
    done = folder.wait(process)
    assert done.code == PEER and "restart" not in done.out.replace(folder.path, ""), done


@pytest.mark.long
def test_what_no_restart_mends(folder):
    process = folder.start("--config", folder.spec(LONG), "--local-gpus", 2, "--max-restarts", 1)
    wait_for_steps(folder, process, 8)
    wait_for_checkpoint(folder, process, after=4)
    kill_rank(process)
    wait_until(lambda: folder.said(process).out.count("resumed from") == 1, what="the resume")
    wait_for_steps(folder, process, 30)
    kill_rank(process)
    done = folder.wait(process)
    assert done.code == PEER and "not started again: --max-restarts 1 has been used up" in done.err, done
    (last,) = folder.metrics().kinds("gave_up")
    assert last["gave_up"] == 1 and last["step"] >= 5 and "killed by signal 9" in last["cause"]
    wild = {"train": {"epochs": 20}, "optimizer": {"params": {"lr": 1e6, "weight_decay": 1.0}}}
    done = folder.train(wild, "wild", more=("--max-restarts", 3), ranks=2, expect=7)
    assert "restart 1 of" not in done.out
    assert "-nan" not in done.out and "the run has no checkpoint" not in done.final_error
    done = folder.train({**wild, "checkpoint": {"save_at_epoch_end": False}}, "lost", ranks=2, expect=7)
    assert "hint: the run has no checkpoint: start it again as it was started, but with a lower learning rate" in done.final_error
    for more in ((), ("--best",)):
        words = folder.ztrain("export", folder.run_folder("lost"), "--out", folder.at("out"), *more, expect=CHECKPOINT).final_error
        assert "holds no checkpoint yet; hint: a run writes one every checkpoint.interval_steps, at the end of an epoch" in words
    process = folder.start("--config", folder.spec(LONG, "asked"), "--local-gpus", 2, "--max-restarts", 3)
    wait_for_steps(folder, process, 3, name="asked")
    process.send_signal(signal.SIGTERM)
    assert folder.wait(process).code == REQUEUE
    one = folder.latest("asked")
    done = folder.train(LONG, "asked", more=("--max-restarts", 3, "--resume", one), ranks=2, expect=USAGE)
    assert "--max-restarts continues from the newest checkpoint, and --resume names" in done.final_error
    done = folder.train(LONG, "alone", more=("--max-restarts", 3), expect=USAGE)
    assert "--max-restarts needs --local-gpus N" in done.final_error

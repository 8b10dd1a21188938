"""Stopping on request, and being killed at any instant."""
import os
import random
import signal
import time

import pytest

from harness import (PEER, REQUEUE, SLOWNESS, children, session_members, shared_memory_files, wait_for_steps,
                     wait_until)

ENDLESS = {"train": {"epochs": None, "max_steps": 1000000}}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1], ids=lambda n: n.name)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_signal_ends_the_step_writes_a_checkpoint_and_exits_75(folder, number, ranks):
    spec = folder.spec(ENDLESS)
    process = folder.start("--config", spec, *(["--local-gpus", ranks] if ranks > 1 else []))
    wait_for_steps(folder, process, 3)
    process.send_signal(number)
    done = folder.wait(process, 20)
    assert done.code == REQUEUE, done
    last = folder.metrics().steps[-1]["step"]
    assert folder.metrics().kinds("checkpoint")[-1]["step"] == last
    folder.ztrain("verify", folder.run_folder())
    assert session_members(process.pid) == []


def test_a_signal_to_the_whole_group_counts_once(folder):
    """As a terminal's ctrl-c or a batch system does it: supervisor and ranks all get it."""
    process = folder.start("--config", folder.spec(ENDLESS), "--local-gpus", 2)
    wait_for_steps(folder, process, 3)
    os.killpg(process.pid, signal.SIGINT)
    assert folder.wait(process, 20).code == REQUEUE
    folder.ztrain("verify", folder.run_folder())


@pytest.mark.long
def test_killed_at_any_instant(folder):
    """50 times: the whole job is killed while it writes a checkpoint every step; what `latest` names, and the newest
    valid one, are whole each time, and the run goes on from there."""
    rng = random.Random(3)
    spec = folder.spec({**ENDLESS, "checkpoint": {"interval_steps": 1, "keep_last": 2}})
    resume, steps = [], 0
    top = os.path.join(folder.run_folder(), "checkpoints")
    for instant in range(50):
        ranks = ["--local-gpus", 2] if instant % 5 == 4 else []
        process = folder.start("--config", spec, *ranks, *resume)
        before = os.readlink(os.path.join(top, "latest")) if resume else None
        wait_until(lambda: process.poll() is not None or
                   (os.path.islink(os.path.join(top, "latest")) and os.readlink(os.path.join(top, "latest")) != before),
                   what="a further checkpoint")
        assert process.poll() is None, folder.said(process)
        time.sleep(rng.random() * 0.06 * SLOWNESS)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        wait_until(lambda: not session_members(process.pid), 5, "the end of every rank")
        folder.ztrain("verify", folder.latest())
        resume = ["--resume", folder.run_folder()]
        step = int(os.path.basename(folder.latest()).split("-")[1]) * (3 if "epoch" in folder.latest() else 1)
        assert step > steps
        steps = step
    # what was interrupted leaves nothing that would pile up
    done = folder.ztrain("--config", spec, *resume, "--set", f"train.max_steps={steps + 3}")
    assert done.code == 0
    left = [name for name in os.listdir(top) if name.startswith(".tmp")]
    assert left == []
    assert [row["step"] for row in folder.metrics().steps] == list(range(1, steps + 4))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT], ids=lambda n: n.name)
def test_a_rank_that_dies_is_named_and_ends_the_job(folder, number):
    before = shared_memory_files()
    process = folder.start("--config", folder.spec(ENDLESS), "--local-gpus", 3)
    wait_for_steps(folder, process, 2)
    victim = children(process.pid)[1]
    started = time.monotonic()
    os.kill(victim, number)
    done = folder.wait(process, 20)
    assert time.monotonic() - started < 5 * SLOWNESS
    assert done.code == PEER, done
    assert "rank 1" in done.err and os.uname().nodename in done.err
    assert number.name in done.err or f"signal {int(number)}" in done.err, done
    assert session_members(process.pid) == []
    assert shared_memory_files() == before


def test_a_rank_that_stands_still_is_named(folder):
    process = folder.start("--config", folder.spec({**ENDLESS, "comm": {"timeout_seconds": 2}}), "--local-gpus", 2)
    wait_for_steps(folder, process, 2)
    victim = children(process.pid)[1]
    os.kill(victim, signal.SIGSTOP)
    done = folder.wait(process, 15)
    assert done.code == PEER, done
    assert "rank 1" in done.err
    wait_until(lambda: not session_members(process.pid), 5, "the end of every rank")


@pytest.mark.parametrize("when", ["early", "training"])
def test_a_supervisor_that_is_killed_leaves_nothing(folder, when):
    before = shared_memory_files()
    process = folder.start("--config", folder.spec(ENDLESS), "--local-gpus", 3)
    if when == "training":
        wait_for_steps(folder, process, 2)
    else:
        wait_until(lambda: len(children(process.pid)) == 3, what="three ranks")
    process.kill()
    process.wait()
    wait_until(lambda: not session_members(process.pid), 5, "the end of every rank")
    assert shared_memory_files() == before


def test_a_signal_before_the_first_step_still_ends_the_run(folder):
    process = folder.start("--config", folder.spec(ENDLESS), "--local-gpus", 2)
    wait_until(lambda: len(children(process.pid)) == 2, what="two ranks")
    process.send_signal(signal.SIGTERM)
    done = folder.wait(process, 20)
    assert done.code in (REQUEUE, -signal.SIGTERM, 128 + signal.SIGTERM), done
    assert session_members(process.pid) == []

# SPDX-License-Identifier: Apache-2.0
"""Stopping on request, and being killed at any instant."""
import fcntl
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import termios
import threading
import time

import pytest

from harness import (BadDisk, FINISHED, Job, INTERRUPTED, PEER, REQUEUE, SLOWNESS, USAGE, ZTRAIN, children, count_lines,
                     nothing_new_in_shared_memory, session_members, shared_memory_files, wait_for_checkpoint, wait_for_steps,
                     wait_for_words, wait_until)

ENDLESS = {"train": {"epochs": None, "max_steps": 1000000}}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP],
                         ids=lambda n: n.name)
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


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("step, steps", [(2, 4), (3, 6), (3, 3)], ids=["in an epoch", "an epoch's end", "the run's end"])
def test_an_evaluation_is_broken_off_and_done_when_the_run_continues(folder, ranks, step, steps):
    """In the end the numbers, that evaluation's and the epoch's among them, are those of a run that was left alone."""
    folder.spec()
    folder.data(600, seed=3, name="much")
    disk = BadDisk(folder)
    changes = {"train": {"epochs": None, "max_steps": steps, "eval_interval_steps": step},
               "data": {"validation": folder.at("much")}}
    several = ["--local-gpus", ranks] if ranks > 1 else []
    spec = folder.spec(changes)
    folder.ztrain("--config", folder.spec(changes, "whole"), *several, env=ONE_THREAD)
    disk.fails("pread slow much.bin")  # an evaluation takes seconds
    process = folder.start("--config", spec, *several, env={**ONE_THREAD, **disk.env})
    wait_for_steps(folder, process, step)
    process.send_signal(signal.SIGTERM)
    done = folder.wait(process, 60)
    assert done.code == REQUEUE and re.search(rf"after step {step} of {steps}, (before|in) its evaluation", done.out), done
    assert not folder.metrics().evaluations and folder.metrics().steps[-1]["step"] == step
    assert folder.metrics().kinds("checkpoint")[-1]["step"] == step
    folder.ztrain("--config", spec, *several, "--resume", folder.run_folder(), env=ONE_THREAD)
    assert len(folder.metrics().evaluations) >= 1
    assert folder.metrics().numbers() == folder.metrics("whole").numbers()
    # at an epoch's end there are two checkpoints of this step now, and the run continues from the one that ends the epoch
    first, last = f"step-{step:08}", f"epoch-{step // 3:04}" if step % 3 == 0 else f"step-{step:08}"
    for name in set(folder.checkpoints()) - {first, last}:
        shutil.rmtree(os.path.join(folder.run_folder(), "checkpoints", name))
    done = folder.ztrain("--config", spec, *several, "--resume", folder.run_folder(), env=ONE_THREAD)
    assert f"/{last} at step {step}" in done.out, done
    assert folder.metrics().numbers() == folder.metrics("whole").numbers()
    # as after a kill in or after the evaluation: it is done again, and not reported twice
    folder.ztrain("--config", spec, *several, "--resume", os.path.join(folder.run_folder(), "checkpoints", first),
                  env=ONE_THREAD)
    assert folder.metrics().numbers() == folder.metrics("whole").numbers()


def test_an_evaluation_longer_than_a_job_is_done_in_parts(folder):
    """Each start does some of it. Its result is that of a run that was left alone, bit for bit with as many ranks; a part of
    other validation data does not count."""
    folder.spec()
    folder.data(3000, seed=3, name="much")  # an evaluation takes many seconds of a slow disk
    disk = BadDisk(folder)
    changes = {"train": {"epochs": None, "max_steps": 2}, "data": {"validation": folder.at("much")}}
    spec = folder.spec(changes)
    folder.ztrain("--config", folder.spec(changes, "whole"), "--local-gpus", 2, env=ONE_THREAD)
    disk.fails("pread slow much.bin")

    def part(ranks, *more, words=None):
        process = folder.start("--config", spec, "--local-gpus", ranks, *more, env={**ONE_THREAD, **disk.env})
        if words:
            wait_for_words(folder, process, words)
        else:
            wait_for_steps(folder, process, 2)
        process.send_signal(signal.SIGTERM)
        done = folder.wait(process)
        assert done.code == REQUEUE, done
        found = re.search(r"is broken off: (\d+) of \d+ samples are done", done.out)
        return int(found[1]) if found else 0  # the signal may come right before the evaluation

    resume = ["--resume", folder.run_folder()]
    first = part(2)
    second = part(2, *resume, words=f"continues: {first} of" if first else "resumed from")
    assert first < second
    shutil.copytree(folder.run_folder(), folder.at("kept"))
    third = part(1, *resume, words=f"continues: {second} of")  # another number of ranks
    assert second < third
    disk.works()
    done = folder.ztrain("--config", spec, *resume, env=ONE_THREAD)
    assert f"continues: {third} of" in done.out, done
    whole, alike = folder.metrics("whole").evaluations[-1], folder.metrics().evaluations
    assert len(alike) == 1 and alike[0]["eval_tokens"] == whole["eval_tokens"]
    assert alike[0]["eval_loss"] == pytest.approx(whole["eval_loss"], rel=1e-12)

    shutil.rmtree(folder.run_folder())
    shutil.copytree(folder.at("kept"), folder.run_folder())
    folder.ztrain("--config", spec, *resume, "--local-gpus", 2, env=ONE_THREAD)
    assert folder.metrics().numbers() == folder.metrics("whole").numbers()

    shutil.rmtree(folder.run_folder())
    shutil.copytree(folder.at("kept"), folder.run_folder())
    with open(folder.at("much.bin"), "r+b") as file:  # one token, far from the first ones
        file.seek(-2, os.SEEK_END)
        last = file.read()
        file.seek(-2, os.SEEK_END)
        file.write(bytes((last[0] ^ 1, last[1])))
    done = folder.ztrain("--config", spec, *resume, env=ONE_THREAD)
    assert "begins anew: the validation data are others" in done.out, done
    assert folder.metrics().evaluations[-1]["eval_tokens"] == whole["eval_tokens"]


def test_a_signal_to_the_whole_group_counts_once(folder):
    """A terminal's ctrl-c and batch systems signal the supervisor and all ranks."""
    process = folder.start("--config", folder.spec(ENDLESS), "--local-gpus", 2)
    wait_for_steps(folder, process, 3)
    os.killpg(process.pid, signal.SIGINT)
    assert folder.wait(process, 20).code == REQUEUE
    folder.ztrain("verify", folder.run_folder())


@pytest.mark.parametrize("ranks, stage", [(1, 0), (2, 0), (2, 1), (2, 2), (2, 3)])
@pytest.mark.long
def test_a_stop_within_a_step(folder, ranks, stage):
    """The stop does not wait for the remaining micro-batches: the state before the step is saved, and the run that continues
    from it equals an uninterrupted run bit for bit. An existing checkpoint of that step is not written again."""
    disk, several = BadDisk(folder), ["--local-gpus", ranks] if ranks > 1 else []
    folder.spec()
    folder.data(2 * 64 * ranks, seed=3, name="much")
    env = {**disk.env, "OMP_NUM_THREADS": "1"}
    changes = {"train": {"epochs": None, "max_steps": 2}, "data": {"train": folder.at("much"), "validation": None},
               "train_batch_size": 64 * ranks, "train_micro_batch_size_per_gpu": 1,
               "zero_optimization": {"stage": stage}}
    folder.ztrain("--config", folder.spec(changes, "whole"), *several, env=env)
    for step in (0, 1):
        resume = ["--resume", folder.run_folder()] if step else []
        if step:
            folder.ztrain("--config", folder.spec({**changes, "train": {"max_steps": 1, "epochs": None}}), *several,
                          *resume, env=env)
        before = folder.checkpoints()
        disk.fails("pread slow much.bin")
        process = folder.start("--config", folder.spec(changes), *several, *resume, env=env)
        wait_until(lambda: "resumed from" in folder.said(process).out if resume
                   else os.path.exists(os.path.join(folder.run_folder(), "metrics.jsonl")), what="the first step")
        time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        done = folder.wait(process, 20)
        disk.works()
        assert done.code == REQUEUE and f"stopped on request after step {step} of 2" in done.out, done
        assert [row["step"] for row in folder.metrics().steps] == [1][:step]
        assert folder.checkpoints() == (before or ["step-00000000"])
        assert ("checkpoint /" in done.out) == (step == 0), done
        folder.ztrain("verify", folder.run_folder())
    folder.ztrain("--config", folder.spec(changes), *several, "--resume", folder.run_folder(), env=env)
    assert folder.metrics().numbers() == folder.metrics("whole").numbers()


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_second_ctrl_c_ends_at_once(folder, ranks):
    """The first one announces it. Earlier checkpoints stay; nothing more is saved. One rank by itself is left out of the
    instrumented builds: the thread sanitizer holds signals back while fsync lasts, as it does here."""
    disk = BadDisk(folder)
    disk.fails("fsync hold /.tmp-")
    process = folder.start("--config", folder.spec(ENDLESS), *(["--local-gpus", ranks] if ranks > 1 else []),
                           env=disk.env)
    wait_for_steps(folder, process, 2)
    os.killpg(process.pid, signal.SIGINT)
    os.killpg(process.pid, signal.SIGINT)  # the same keystroke, delivered twice
    wait_until(lambda: "a second Ctrl-C ends it at once" in folder.said(process).err, what="the first one's answer")
    for rank in children(process.pid):  # a batch system signals all processes, and the supervisor passes it on as well
        os.kill(rank, signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    done = folder.wait(process, 20)
    assert done.code == INTERRUPTED, done
    assert done.err.count("interrupted a second time: ended at once, without a checkpoint") == 1, done
    assert session_members(process.pid) == [] and not folder.checkpoints()
    verdict = folder.ztrain("why", folder.run_folder()).out
    assert "was interrupted: its process is" in " ".join(verdict.split()) and "memory" not in verdict, verdict


@pytest.mark.long
@pytest.mark.parametrize("ranks, level", [(1, 0), (2, 3)])
def test_killed_at_any_instant(folder, ranks, level):
    """The whole job is killed while it evaluates and writes a checkpoint every step, half of the times anywhere from
    its start on. Each time the newest checkpoint is whole; in the end the numbers are those of a run that was not killed."""
    rng = random.Random(3 + ranks)
    several = ["--local-gpus", ranks] if ranks > 1 else []
    settings = {**ENDLESS, "checkpoint": {"interval_steps": 1, "keep_last": 2, "compression_level": level},
                "zero_optimization": {"stage": 3}}
    settings["train"] = {**ENDLESS["train"], "eval_interval_steps": 2}
    spec, resume, kills = folder.spec(settings), [], 0
    for instant in range(30):
        before = folder.checkpoints()
        process = folder.start("--config", spec, *several, *resume)
        if instant % 2 == 0:
            wait_until(lambda: process.poll() is not None or folder.checkpoints() != before,
                       what="a further checkpoint")
        time.sleep(rng.random() * 0.1 * SLOWNESS)
        kills += process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        wait_until(lambda: not session_members(process.pid), 5, "the end of every rank")
        folder.ztrain("verify", folder.run_folder())
        folder.ztrain("verify", folder.latest())
        resume = ["--resume", folder.run_folder()]
    assert kills == 30
    # interrupted saves leave no files that would pile up
    kind, number = os.path.basename(folder.latest()).split("-")
    end = f"train.max_steps={int(number) * {'epoch': 3, 'step': 1}[kind] + 5}"
    folder.ztrain("--config", spec, *several, *resume, "--set", end)
    left = [name for _, folders, files in os.walk(folder.run_folder()) for name in folders + files if ".tmp" in name]
    assert left == []
    folder.ztrain("--config", folder.spec({**settings, "checkpoint": {}}, "whole"), *several, "--set", end)
    assert folder.metrics().numbers() == folder.metrics("whole").numbers()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT], ids=lambda n: n.name)
def test_a_rank_that_dies_is_named_and_ends_the_job(folder, number):
    before = shared_memory_files()
    process = folder.start("--config", folder.spec(ENDLESS), "--local-gpus", 3)
    wait_for_steps(folder, process, 2)
    victim = children(process.pid)[1]
    started = time.monotonic()
    os.kill(victim, number)
    done = folder.wait(process, 20)
    assert time.monotonic() - started < 30 * SLOWNESS
    assert done.code == PEER, done
    assert "rank 1" in done.err and os.uname().nodename in done.err
    assert number.name in done.err or f"signal {int(number)}" in done.err, done
    assert session_members(process.pid) == []
    nothing_new_in_shared_memory(before)


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
    nothing_new_in_shared_memory(before)


def test_a_signal_before_the_first_step_still_ends_the_run(folder):
    process = folder.start("--config", folder.spec(ENDLESS), "--local-gpus", 2)
    wait_until(lambda: len(children(process.pid)) == 2, what="two ranks")
    process.send_signal(signal.SIGTERM)
    done = folder.wait(process, 20)
    assert done.code in (REQUEUE, -signal.SIGTERM, 128 + signal.SIGTERM), done
    assert session_members(process.pid) == []


def catches(pid, number):
    """Whether the process has a handler for this signal by now."""
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        caught = next(line for line in f if line.startswith("SigCgt"))
    return int(caught.split()[1], 16) >> (number - 1) & 1


def test_a_signal_while_the_supervisor_still_reads_the_spec_is_not_lost(folder):
    spec = folder.spec(ENDLESS)
    with open(spec, "a", encoding="utf-8") as f:
        f.write("# takes a while to read\n" * 40000)
    process = folder.start("--config", spec, "--local-gpus", 2)
    while not catches(process.pid, signal.SIGTERM):
        pass
    process.send_signal(signal.SIGTERM)
    assert folder.wait(process, 20).code == REQUEUE


@pytest.mark.parametrize("number, ranks", [(signal.SIGHUP, 1), (signal.SIGHUP, 2), (signal.SIGTSTP, 2)])
def test_what_was_ignored_stays_ignored(folder, number, ranks):
    """Under nohup the end of the terminal does not stop the run."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        process = folder.start("--config", folder.spec(ENDLESS), *(["--local-gpus", ranks] if ranks > 1 else []))
    finally:
        signal.signal(number, before)
    wait_for_steps(folder, process, 2)
    process.send_signal(number)
    steps = len(folder.metrics().steps)
    wait_for_steps(folder, process, steps + 20)
    assert process.poll() is None, folder.said(process)
    process.send_signal(signal.SIGTERM)
    assert folder.wait(process, 20).code == REQUEUE


def test_the_ends_of_ranks_are_seen_where_the_caller_ignores_sigchld(folder):
    """In a process that ignores SIGCHLD the kernel reaps the children."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        process = folder.start("--config", folder.spec(), "--local-gpus", 2)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert folder.wait(process, 20).code == FINISHED


def test_a_restart_waits_for_the_run_folder_of_a_killed_run(folder):
    """The lock is held by a rank, which may outlive its supervisor for a moment."""
    os.makedirs(folder.run_folder())
    lock = os.open(os.path.join(folder.run_folder(), "lock"), os.O_RDWR | os.O_CREAT)
    fcntl.lockf(lock, fcntl.LOCK_EX)
    process = folder.start("--config", folder.spec(), "--local-gpus", 2)
    time.sleep(0.5)
    assert process.poll() is None, folder.said(process)
    os.close(lock)
    assert folder.wait(process, 20).code == FINISHED
    assert not os.path.exists(os.path.join(folder.run_folder(), "owner"))


def test_a_run_folder_belongs_to_one_run(folder):
    """A second run is refused while the first lives, and takes over at once when the first was killed."""
    process = folder.start("--config", folder.spec({**ENDLESS, "checkpoint": {"interval_steps": 2, "keep_last": 2}}))
    wait_for_checkpoint(folder, process)
    done = folder.train(ENDLESS, more=("--resume", folder.run_folder()), expect=USAGE)
    assert f"in use by another run (host {socket.gethostname()}, process {process.pid}" in done.final_error, done
    folder.ztrain("--config", folder.spec(ENDLESS), "--resume", folder.run_folder(), "--dry-run")  # takes no lock
    process.kill()
    folder.wait(process, 20)
    assert os.path.exists(os.path.join(folder.run_folder(), "owner"))
    again = folder.start("--config", folder.spec(ENDLESS), "--resume", folder.run_folder())
    wait_until(lambda: "resumed from" in folder.said(again).out, 20, "the resume")
    assert "waiting up to" not in folder.said(again).out
    again.send_signal(signal.SIGTERM)
    assert folder.wait(again, 20).code == REQUEUE


def test_a_run_whose_folder_was_taken_over_publishes_nothing_more(folder):
    """The run stands for one on a node that was cut off while its job was requeued elsewhere. It saves only when it is asked
    to: a save that had read the owner before the folder was taken over would still be published."""
    process = folder.start("--config", folder.spec({**ENDLESS, "checkpoint": {"save_at_epoch_end": False}}), "--local-gpus", 2)
    wait_for_steps(folder, process, 2)
    members = session_members(process.pid)
    for pid in members:
        os.kill(pid, signal.SIGSTOP)
    published = folder.checkpoints()
    owner = os.path.join(folder.run_folder(), "owner")
    with open(owner, encoding="utf-8") as f:
        record = json.load(f)
    with open(owner + ".new", "w", encoding="utf-8") as f:
        json.dump({**record, "nonce": "00", "host": "elsewhere"}, f)
    os.rename(owner + ".new", owner)
    for pid in members:
        os.kill(pid, signal.SIGCONT)
    process.send_signal(signal.SIGTERM)  # asks for a checkpoint
    done = folder.wait(process, 20)
    assert done.code == USAGE and "another job has taken over this run folder" in done.final_error, done
    assert "(host elsewhere, process" in done.final_error
    assert folder.checkpoints() == published
    with open(owner, encoding="utf-8") as f:
        assert json.load(f)["host"] == "elsewhere"


def test_a_run_spec_torn_by_a_kill_does_not_stay_for_ever(folder):
    torn = os.path.join(folder.run_folder(), "run.yaml.tmp-1")
    os.makedirs(folder.run_folder())
    with open(torn, "w", encoding="utf-8") as f:
        f.write("run:")
    folder.train({"train": {"epochs": None, "max_steps": 1}})
    assert not os.path.exists(torn)


def test_two_runs_in_one_folder(folder):
    """The second is refused, and leaves no word in the logs of the first."""
    process = folder.start("--config", folder.spec(ENDLESS), "--local-gpus", 2)
    wait_for_steps(folder, process, 2)
    done = folder.train(expect=USAGE, ranks=2)
    assert "in use by another run" in done.final_error or "already holds checkpoints" in done.final_error
    with open(os.path.join(folder.run_folder(), "log", "rank-00001.log"), encoding="utf-8") as f:
        assert "has failed" not in f.read()
    process.send_signal(signal.SIGTERM)
    assert folder.wait(process, 20).code == REQUEUE
    folder.ztrain("verify", folder.run_folder())


WORDY = {**ENDLESS, "wall_clock_breakdown": True}  # two lines a step
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # quick steps on busy cores as well
UNREAD = 300  # steps whose lines fit neither in a small pipe nor in the queue


def start_ranks(folder, way, spec, stdout):
    """Starts one rank, two under a supervisor or two of a launcher, with rank 0's output (the supervisor's) to stdout;
    returns all processes."""
    if way == "launcher":
        return Job(folder, "--config", spec, nodes=[0, 0], env=ONE_THREAD, stdout_of={0: stdout}).ranks
    several = ["--local-gpus", 2] if way == "supervisor" else []
    return [folder.start("--config", spec, *several, env=ONE_THREAD, stdout=stdout)]


@pytest.mark.long
@pytest.mark.parametrize("way", ["one rank", "supervisor", "launcher"])
def test_output_without_a_reader_stops_nothing(folder, way):
    """Steps continue, and a signal still ends them with a checkpoint."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    processes = start_ranks(folder, way, folder.spec(WORDY), writer)
    os.close(writer)
    wait_for_steps(folder, processes[0], UNREAD)
    processes[0].send_signal(signal.SIGTERM)
    for process in processes:
        assert process.wait(20 * SLOWNESS) == REQUEUE, folder.said(process)
    os.close(reader)
    folder.ztrain("verify", folder.run_folder())
    assert folder.metrics().kinds("checkpoint")[-1]["step"] == folder.metrics().steps[-1]["step"] >= UNREAD


@pytest.mark.long
@pytest.mark.parametrize("way", ["one rank", "supervisor"])
def test_a_reader_that_comes_back_is_told_how_much_is_missing(folder, way):
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    process, = start_ranks(folder, way, folder.spec(WORDY), writer)
    os.close(writer)
    wait_for_steps(folder, process, UNREAD)
    lines = []
    with open(reader, encoding="utf-8") as output:
        for line in output:
            lines.append(line)
            if "were dropped" in line:
                break
        process.send_signal(signal.SIGTERM)
        lines += output
    assert process.wait(20 * SLOWNESS) == REQUEUE, folder.said(process)
    notices = [line for line in lines if re.fullmatch(
        r"ztrain: warning: \d+ lines of output were dropped: the reader paused\n", line)]
    assert notices, lines[-5:]
    assert "stopped on request after step" in lines[-1], lines[-5:]
    shown = [int(step) for line in lines for step in re.findall(r"step (\d+)/", line)]
    last = folder.metrics().steps[-1]["step"]
    assert shown == sorted(set(shown)) and shown[-1] <= last  # a slow reader may miss the last steps as well
    dropped = sum(int(line.split()[2]) for line in notices)
    told = len([line for line in lines if "step " in line and "/1000000" in line or "seconds: step" in line])
    assert told + dropped >= 2 * last
    with open(os.path.join(folder.run_folder(), "log", "rank-00000.log"), encoding="utf-8") as f:
        assert sum("grad_norm" in line for line in f) == last  # the log file has them all


@pytest.mark.long
def test_a_terminal_on_hold_stops_nothing(folder):
    """After ctrl-S training continues, and a signal ends it; after ctrl-Q the terminal shows the progress."""
    keyboard, terminal = os.openpty()
    shown = []
    threading.Thread(target=read_all, args=(keyboard, shown), daemon=True).start()
    process = subprocess.Popen([ZTRAIN, "--config", folder.spec({**ENDLESS, "comm": {"timeout_seconds": 1}}),
                                "--local-gpus", "2"], stdout=terminal, start_new_session=True)
    folder.adopt(process)
    os.close(terminal)
    wait_for_steps(folder, process, 3)
    os.write(keyboard, b"\x13")
    wait_for_steps(folder, process, count_lines(os.path.join(folder.run_folder(), "metrics.jsonl")) + UNREAD)
    os.write(keyboard, b"\x11")
    steps = count_lines(os.path.join(folder.run_folder(), "metrics.jsonl"))
    wait_until(lambda: any(int(step) > steps for step in re.findall(rb"step (\d+)/", b"".join(shown))),
               what="a step on the terminal")
    os.write(keyboard, b"\x13")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20 * SLOWNESS) == REQUEUE


def test_progress_on_a_narrow_terminal(folder):
    """The line is renewed and never wraps; the log file has plain lines."""
    keyboard, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    shown = []
    reader = threading.Thread(target=read_all, args=(keyboard, shown), daemon=True)
    reader.start()
    spec = folder.spec({"steps_per_print": 1})
    assert subprocess.run([ZTRAIN, "--config", spec], stdout=terminal, timeout=60 * SLOWNESS).returncode == FINISHED
    os.close(terminal)
    reader.join(20)
    text = b"".join(shown).decode()
    lines = [part.split("\r")[0] for part in text.split("\r\033[K")[1:]]
    steps = len(folder.metrics().steps)
    assert len(lines) == steps and all(line.startswith("step ") and "left" in line for line in lines), text
    assert max(map(len, lines)) < 60
    with open(os.path.join(folder.run_folder(), "log", "rank-00000.log"), encoding="utf-8") as f:
        assert sum("grad_norm" in line for line in f) == steps


def read_all(descriptor, into=None):
    try:
        while piece := os.read(descriptor, 65536):
            if into is not None:
                into.append(piece)
    except OSError:  # the other end of a pseudo-terminal is closed
        pass


def test_a_rank_that_never_joins_is_named(folder):
    process = folder.start("--config", folder.spec({**ENDLESS, "comm": {"timeout_seconds": 1}}), "--local-gpus", 3)
    while not children(process.pid):
        pass
    os.kill(children(process.pid)[0], signal.SIGSTOP)
    done = folder.wait(process, 20)
    assert done.code == PEER, done
    assert f"rank 0 on {os.uname().nodename}" in done.err
    assert session_members(process.pid) == []

# SPDX-License-Identifier: Apache-2.0
"""`ztrain why`: the flight records of a run name the rank that was planted."""
import os
import re
import signal

import pytest

from harness import (BadDisk, CHECKPOINT, DIVERGED, FINISHED, PEER, REQUEUE, SLOWNESS, USAGE, children, free_port, state_of,
                     wait_for_steps, wait_for_words, wait_until)

ENDLESS = {"train": {"epochs": None, "max_steps": 1000000}}
HOST = os.uname().nodename
TIMEOUT = max(2, SLOWNESS)  # seconds


def why(folder, *arguments, expect=FINISHED):
    """What it says: the paragraph in one line, and the table's row of each rank."""
    done = folder.ztrain("why", folder.run_folder(), *arguments, expect=expect)
    paragraph = " ".join(done.out.split("\n\n")[1 if done.out.startswith("records of") else 0].split())
    rows = {int(row[1]): row[2] for row in re.finditer(r"^[ *] +(\d+)  (.*)$", done.out, re.M)}
    return paragraph, rows, done


def records(folder):
    """Paths of the run's records, below its folder flight/."""
    top = os.path.join(folder.run_folder(), "flight")
    return sorted(os.path.relpath(os.path.join(where, name), top) for where, _, names in os.walk(top) for name in names
                  if name.endswith(".ring"))


def begun(folder, *options, env=None, changes=None, steps=4):
    """A run, of two ranks unless the options say otherwise, that has made some steps, and whose ranks have records."""
    before = len(records(folder))
    process = folder.start("--config", folder.spec({**ENDLESS, **(changes or {})}), *(options or ("--local-gpus", 2)), env=env)
    wait_for_steps(folder, process, steps)
    wait_until(lambda: len(records(folder)) == before + (1 if options and "--local-gpus" not in options else 2), what="records")
    return process


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_is_named_with_what_it_did_last(folder, victim):
    process = begun(folder)
    pid = children(process.pid)[victim]
    os.kill(pid, signal.SIGKILL)
    assert folder.wait(process, 20).code == PEER
    paragraph, rows, _ = why(folder)
    assert paragraph.startswith(f"Rank {victim} on {HOST} (process {pid}) was killed"), paragraph
    assert "signal 9" in paragraph and "It was in the " in paragraph
    assert f"gone; written by rank {1 - victim}" in rows[victim] and "failed" in rows[1 - victim]


def test_a_stopped_rank_is_named_while_the_run_waits_and_afterwards(folder):
    process = begun(folder, changes={"comm": {"timeout_seconds": TIMEOUT}})
    victim = children(process.pid)[1]
    os.kill(victim, signal.SIGSTOP)
    wait_until(lambda: state_of(victim) == "T", what="the stop")
    paragraph, rows, _ = why(folder)
    assert paragraph.startswith(f"Rank 1 on {HOST} (process {victim}) stood still: its process was stopped"), paragraph
    wait_until(lambda: "stopped; written by rank 0" in why(folder)[1][1], what="the record that rank 0 writes")
    os.kill(victim, signal.SIGKILL)
    assert folder.wait(process, 20).code == PEER
    paragraph, rows, _ = why(folder)
    assert paragraph.startswith(f"Rank 1 on {HOST} (process {victim}) stood still: its process was stopped"), paragraph
    assert re.search(r"Rank 0 waited in the [a-z-]+ \d+", paragraph) and "has been silent" in paragraph
    assert "stopped; written by rank 0" in rows[1]


def test_a_single_rank_that_is_killed_leaves_its_record(folder):
    process = begun(folder, "--set", "steps_per_print=1")
    process.kill()
    process.wait()
    paragraph, rows, _ = why(folder, "--rank", 0)
    assert paragraph.startswith(f"Rank 0 on {HOST} (process {process.pid}) was killed"), paragraph
    assert "gone" in rows[0]


@pytest.mark.long
def test_a_data_read_that_hangs_is_a_slow_step_and_then_names_the_rank_and_the_file(folder):
    disk = BadDisk(folder)
    limits = {"comm": {"timeout_seconds": TIMEOUT, "io_timeout_seconds": 1.5 * TIMEOUT}}
    process = begun(folder, changes=limits, env=disk.env, steps=9)  # which are more than three without an evaluation between
    disk.fails("pread hold train.bin")
    done = folder.wait(process, 30)
    assert done.code == PEER
    assert re.search(r"step \d+ has taken \S+ s so far, the steps before it took \S+ s; hint: ztrain why RUN", done.err), done
    paragraph, _, _ = why(folder)
    assert re.match(rf"Rank [01] on {HOST} \(process \d+\) ended the job with an error of its own\.", paragraph), paragraph
    assert f"in reading '{folder.at('train.bin')}'" in paragraph and "data wait" in paragraph, paragraph


def test_sigquit_writes_the_records_and_the_run_goes_on(folder):
    process = begun(folder)
    process.send_signal(signal.SIGQUIT)
    wait_for_words(folder, process, "SIGQUIT: the ranks' flight records are in")
    wait_until(lambda: len(records(folder)) == 2, what="both records")
    steps = len(folder.metrics().steps)
    wait_for_steps(folder, process, steps + 3)
    _, rows, done = why(folder, "--rank", 1)  # on a busy machine a rank may be slow, which it says then
    assert sorted(rows) == [0, 1] and all("running" in row for row in rows.values()), done
    assert re.search(r"rank 1, the last 40 of its \d+ entries", done.out)
    assert re.search(r"^  \d\d:\d\d:\d\d\.\d{3} +(\d+\.\d{3} ms|not over)  \S.* \(step \d+", done.out, re.M), done
    process.send_signal(signal.SIGTERM)
    assert folder.wait(process, 20).code == REQUEUE
    assert len(records(folder)) == 2  # they were asked for
    assert "ended in order" in why(folder)[1][0]
    assert why(folder)[0].startswith("The run ended in order at ")


def test_sigquit_before_the_ranks_have_met_ends_nothing(folder):
    env = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
           "MASTER_PORT": str(free_port()), "ZTRAIN_JOB_SECRET": "5a" * 32}
    process = folder.start("--config", folder.spec(), env=env)

    def catches():
        with open(f"/proc/{process.pid}/status", encoding="ascii") as f:
            return int(re.search(r"SigCgt:\s+(\w+)", f.read()).group(1), 16) >> (signal.SIGQUIT - 1) & 1

    wait_until(catches, what="the handler")
    process.send_signal(signal.SIGQUIT)
    process.terminate()
    assert folder.wait(process, 20).code not in (-signal.SIGQUIT, FINISHED)


def test_divergence_is_told_with_its_first_step(folder):
    spec = folder.spec({"optimizer": {"params": {"lr": 1e6, "weight_decay": 1.0}}, "train": {"epochs": 20}})
    folder.ztrain("--config", spec, "--local-gpus", 2, expect=DIVERGED)
    first = next(row["step"] for row in folder.metrics().steps if row["skipped"])
    paragraph, _, _ = why(folder)
    assert re.match(rf"Rank 0 on {HOST} \(process \d+\) had the first non-finite value, in step {first}\b", paragraph), paragraph
    assert "steps in a row had non-finite gradients" in paragraph


def test_a_run_that_ends_in_order_leaves_nothing(folder):
    folder.ztrain("--config", folder.spec({"train": {"epochs": 1}}), "--local-gpus", 2)
    assert not os.path.exists(os.path.join(folder.run_folder(), "flight"))
    assert "there are no flight records" in why(folder, expect=CHECKPOINT)[2].err
    assert "there is no run folder" in folder.ztrain("why", folder.run_folder() + "-nowhere", expect=CHECKPOINT).err
    assert "there are no flight records" in why(folder, "--start", "yesterday", expect=CHECKPOINT)[2].err


def test_an_earlier_start_keeps_its_records(folder):
    """The order of starts is that of their counts, whatever the clock says."""
    top = os.path.join(folder.run_folder(), "flight")
    starts = []
    for number in (1, 2):
        process = begun(folder, "--local-gpus", 2, *(["--resume", "auto"]))
        os.kill(children(process.pid)[1], signal.SIGKILL)
        assert folder.wait(process, 20).code == PEER
        os.remove(os.path.join(folder.run_folder(), "metrics.jsonl"))
        (made,) = {os.path.dirname(path) for path in records(folder)} - set(starts)
        assert re.fullmatch(rf"000{number}-\d{{8}}-\d{{6}}-\d{{3}}", made)
        starts.append(f"000{number}-{3000 - number}1231-235959-999")
        os.rename(os.path.join(top, made), os.path.join(top, starts[-1]))
    assert "no start 'nine' in" in (done := why(folder, "--start", "nine", expect=CHECKPOINT)[2]).err and starts[1] in done.err
    assert f"records of the start {starts[1]}; of the one before it: --start {starts[0]}\n" in why(folder)[2].out
    os.makedirs(os.path.join(top, "0003-20200101-000000-000"))  # left by a start that wrote nothing
    assert (f"records of the start {starts[1]}; the newer start 0003-20200101-000000-000 has left none; of the one before it: "
            f"--start {starts[0]}\n") in why(folder)[2].out
    assert why(folder, "--start", starts[0])[0].startswith("Rank 1 on")


def test_what_a_kill_left_half_made_is_ignored_and_deleted_by_the_next_start(folder):
    top = os.path.join(folder.run_folder(), "flight")
    for name in ["20200101-000000-000/rank-00001.ring.tmp-9472", "20200102-000000-000/rank-00000.ring.tmp-7",
                 "20200102-000000-000/rank-00000.ring"]:
        os.makedirs(os.path.dirname(os.path.join(top, name)), exist_ok=True)
        with open(os.path.join(top, name), "wb") as f:
            f.write(b"ztrain-flight")
        if name.endswith("9472"):
            assert "there are no flight records" in why(folder, expect=CHECKPOINT)[2].err
    folder.train({"train": {"epochs": None, "max_steps": 1}})
    assert sorted(os.listdir(top)) == ["20200102-000000-000", "ended"]
    assert os.listdir(os.path.join(top, "20200102-000000-000")) == ["rank-00000.ring"]


def test_a_run_that_has_ended_in_order_since_it_failed_says_so(folder):
    process = begun(folder)
    os.kill(children(process.pid)[1], signal.SIGKILL)
    assert folder.wait(process, 20).code == PEER
    top = os.path.join(folder.run_folder(), "flight")
    (failed,) = os.listdir(top)
    os.rename(os.path.join(top, failed), os.path.join(top, "20200101-000000-000"))
    folder.train({"train": {"epochs": None, "max_steps": 1}}, name="run", more=("--resume", "auto"))
    assert sorted(os.listdir(top)) == ["20200101-000000-000", "ended"]
    with open(os.path.join(top, "ended"), encoding="utf-8") as f:
        start = f.read().split()[0]
    paragraph, rows, _ = why(folder)
    assert re.match(rf"The run ended in order at \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d \(start {start}\)\. ", paragraph), paragraph
    assert paragraph.endswith("The records are of a start before it: --start 20200101-000000-000 reads them.") and not rows
    assert "add --start NAME" in why(folder, "--rank", 1, expect=USAGE)[2].err
    assert why(folder, "--start", "20200101-000000-000", "--rank", 1)[0].startswith("Rank 1 on")
    os.makedirs(os.path.join(top, "9999-20200101-000000-000"))  # a start that has begun
    assert "A newer start, 9999-20200101-000000-000, has left no records." in why(folder)[0]
    for torn in ("", start, f"{start} 17"):
        with open(os.path.join(top, "ended"), "w", encoding="utf-8") as f:
            f.write(torn)
        assert why(folder)[0].startswith("Rank 1 on")


def test_a_full_disk_is_a_warning(folder):
    disk = BadDisk(folder)
    disk.fails("pwrite ENOSPC flight/")
    done = folder.ztrain("--config", folder.spec({"train": {"epochs": 1}}), env=disk.env)
    assert "cannot be written, training continues without it: No space left on device" in done.err, done
    assert not records(folder)


def test_damaged_records_are_left_out(folder):
    process = begun(folder)
    os.kill(children(process.pid)[1], signal.SIGKILL)
    folder.wait(process, 20)
    top = os.path.join(folder.run_folder(), "flight")
    with open(os.path.join(top, records(folder)[0]), "r+b") as f:
        f.truncate(6000)
    paragraph, rows, done = why(folder)
    assert "a record is left out" in done.err and paragraph.startswith("Rank 1 on") and rows[0] == "no record"
    with open(os.path.join(top, records(folder)[1]), "wb") as f:
        f.write(os.urandom(200000))
    assert "is not a flight record" in why(folder, expect=CHECKPOINT)[2].err


@pytest.mark.parametrize("arguments, words", [
    ([], "no run was named"), (["a", "b"], "one run at a time"), (["--rank", "-1", "a"], "--rank must be a number from 0"),
    (["--start"], "--start needs a value"), (["--ranks"], "unknown option '--ranks'")])
def test_usage(folder, arguments, words):
    assert words in folder.ztrain("why", *arguments, expect=USAGE).err


if SLOWNESS > 1:  # instrumented builds have the faults

    def test_a_slow_rank_is_named(folder):
        """The others wait half a second for it in each step."""
        process = folder.start("--config", folder.spec({**ENDLESS, "checkpoint": {"save_at_epoch_end": False}}), "--local-gpus", 2,
                               env={"ZTRAIN_STEP_FAULT": "1:1:500"})
        wait_for_steps(folder, process, 5)
        wait_until(lambda: re.match(rf"Rank 1 on {HOST} \(process \d+\) is slow: ", why(folder)[0]), what="the slow rank's name")

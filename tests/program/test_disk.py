# SPDX-License-Identifier: Apache-2.0
"""A disk or file server that fails for a while (bad_disk.c): it ends no run, and costs nothing that could be saved."""
import errno
import json
import os
import shutil
import signal
import time

import pytest

from harness import (BadDisk, CHECKPOINT, FINISHED, Job, REQUEUE, SLOWNESS, USAGE, merged, wait_for_steps, wait_for_words,
                     wait_until)

pytestmark = pytest.mark.long

LONG = {"train": {"epochs": None, "max_steps": 1000000}, "checkpoint": {"interval_steps": 4}}
WAITS = {"checkpoint": {"writer": {"decoupled": False}}}  # training waits for checkpoints; test_background_save.py has the others


def several(ranks):
    return ["--local-gpus", ranks] if ranks > 1 else []


def leftovers(folder):
    return [name for _, folders, files in os.walk(folder.run_folder()) for name in folders + files if ".tmp" in name]


@pytest.mark.parametrize("ranks, line", [(1, "write ENOSPC .zst"), (2, "fsync EIO rank-00001.zst"),
                                         (2, "mkdir ESTALE /.tmp-"), (1, "open EIO checkpoints/..")])
def test_a_checkpoint_is_tried_again(folder, ranks, line):
    """After several attempts the checkpoint is written, and the numbers are those of a run on a good disk."""
    disk, short = BadDisk(folder), {**WAITS, "train": {"epochs": 2}}
    folder.ztrain("--config", folder.spec(short, "whole"), *several(ranks))
    disk.fails(line)
    process = folder.start("--config", folder.spec(short), *several(ranks), env=disk.env)
    wait_for_words(folder, process, "warning: rank 0 on" if ranks > 1 else "warning: ")
    wait_for_words(folder, process, "the checkpoint of step 3 is tried again for ")
    disk.works()
    done = folder.wait(process)
    assert done.code == FINISHED and "wrote the checkpoint" in done.out, done
    assert "could not be written" not in done.err and not leftovers(folder)
    assert folder.checkpoints() == ["epoch-0001", "epoch-0002"]
    folder.ztrain("verify", folder.run_folder())
    assert folder.metrics().numbers() == folder.metrics("whole").numbers()


def test_training_goes_on_without_a_checkpoint_but_does_not_end_without(folder):
    disk = BadDisk(folder)
    impatient = {"train": {"epochs": 2}, "checkpoint": {"retry_seconds": 0.5, "keep_last": 1, "interval_steps": 1}}
    folder.train({**impatient, "train": {"epochs": None, "max_steps": 2}})
    disk.fails("write ENOSPC rank-0000")
    done = folder.ztrain("--config", folder.spec(impatient), "--resume", folder.run_folder(), env=disk.env,
                         expect=CHECKPOINT)
    for step in (3, 4, 5):
        assert f"the checkpoint of step {step} could not be written, training continues without it: " in done.err, done
    assert "No space left on device; hint: free space there" in done.final_error and ".tmp-" in done.final_error
    assert [row["step"] for row in folder.metrics().steps] == [1, 2, 3, 4, 5, 6]
    assert folder.checkpoints() == ["step-00000002"] and not leftovers(folder)
    folder.ztrain("verify", folder.run_folder())


@pytest.mark.parametrize("ranks, line", [(1, "mkdir EACCES /.tmp-"), (1, "open EROFS checkpoints/.tmp-"),
                                         (2, "write EFBIG rank-00001")])
def test_no_disk_error_ends_a_run_before_its_last_step(folder, ranks, line):
    """Neither a permission, a limit nor a read-only file system ends it; at the end a hint names the step to continue from."""
    disk = BadDisk(folder)
    impatient = {"train": {"epochs": 2}, "checkpoint": {"retry_seconds": 0.5, "interval_steps": 1}}
    folder.train({**impatient, "train": {"epochs": None, "max_steps": 4}}, ranks=ranks)
    disk.fails(line)
    done = folder.ztrain("--config", folder.spec(impatient), *several(ranks), "--resume", folder.run_folder(), env=disk.env,
                         expect=CHECKPOINT)
    assert "the checkpoint of step 5 could not be written, training continues without it: " in done.err, done
    assert "the checkpoint of step 6, the last one of this start, could not be written in " in done.final_error, done
    assert " s, nor could 1 before it: " in done.final_error, done
    assert f"--resume {folder.run_folder()} continues from step 4, its newest checkpoint" in done.final_error, done
    assert [row["step"] for row in folder.metrics().steps] == [1, 2, 3, 4, 5, 6]
    folder.train(impatient, ranks=ranks, more=["--resume", folder.run_folder()])


def test_an_owner_file_that_cannot_be_read_for_a_while_ends_no_run(folder):
    """Before it publishes a checkpoint, a run reads who owns the folder."""
    disk = BadDisk(folder)
    process = folder.start("--config", folder.spec(LONG), env=disk.env)
    wait_for_steps(folder, process, 2)
    disk.fails("open EIO /owner")
    wait_for_words(folder, process, "is tried again for 30 s: cannot open '")
    disk.works()
    wait_until(lambda: "wrote the checkpoint" in folder.said(process).out, what="another attempt")
    process.send_signal(signal.SIGTERM)
    assert folder.wait(process).code == REQUEUE
    folder.ztrain("verify", folder.run_folder())


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_stop_while_a_checkpoint_is_tried_again(folder, ranks):
    """The checkpoint becomes the run's last one, for which the run waits longer."""
    disk = BadDisk(folder)
    disk.fails("write EDQUOT .zst")
    process = folder.start("--config", folder.spec(merged(LONG, WAITS)), *several(ranks), env=disk.env)
    wait_for_words(folder, process, "the checkpoint of step 3 is tried again for ")
    process.send_signal(signal.SIGTERM)
    disk.works()
    done = folder.wait(process)
    assert done.code == REQUEUE and "stopped on request after step 3" in done.out, done
    assert folder.checkpoints() == ["epoch-0001"] and folder.metrics().steps[-1]["step"] == 3


@pytest.mark.parametrize("line", ["pread EIO train.bin", "pread ESTALE validation.bin"])
def test_data_that_cannot_be_read_for_a_while_ends_no_run(folder, line):
    disk = BadDisk(folder)
    process = folder.start("--config", folder.spec(LONG), env=disk.env)
    wait_for_steps(folder, process, 2)
    disk.fails(line)
    wait_for_words(folder, process, "reading is tried again for 30 s: cannot read '")
    disk.works()
    wait_for_steps(folder, process, len(folder.metrics().steps) + 3)
    process.send_signal(signal.SIGTERM)
    assert folder.wait(process).code == REQUEUE
    folder.ztrain("verify", folder.run_folder())


@pytest.mark.parametrize("part, error", [("manifest.json", "EIO"), ("rank-00000.zst", "ESTALE"), ("manifest.json", "EACCES")])
def test_what_cannot_be_read_is_not_damaged(folder, part, error):
    """A resume waits for the disk, and then takes the newest checkpoint, or ends: it does not go back in time."""
    disk = BadDisk(folder)
    folder.train({"train": {"epochs": 2}})
    disk.fails(f"pread {error} epoch-0002/{part}")
    process = folder.start("--config", folder.spec({"train": {"epochs": 3}}), "--resume", folder.run_folder(),
                           env=disk.env)
    wait_for_words(folder, process, "warning: reading is tried again for 30 s: cannot read '")
    disk.works()
    done = folder.wait(process)
    assert done.code == FINISHED and "/epoch-0002 at step 6" in done.out, done
    disk.fails(f"pread {error} epoch-0003/{part}")
    done = folder.ztrain("--config", folder.spec({"train": {"epochs": 4}, "checkpoint": {"retry_seconds": 0.5}}),
                         "--resume", folder.run_folder(), env=disk.env, expect=CHECKPOINT)
    assert f"epoch-0003/{part}' at offset 0: " in done.final_error and "damaged" not in done.err, done
    assert "is not used" not in done.err
    disk.works()
    os.remove(os.path.join(folder.latest(), part))  # that is damage
    done = folder.ztrain("--config", folder.spec({"train": {"epochs": 3}}), "--resume", folder.run_folder())
    assert "/epoch-0002 at step 6" in done.out and "is not used" in done.err, done


def test_what_a_resume_turns_away_from_is_not_damaged_where_the_disk_does_not_say_what_was_named(folder):
    disk = BadDisk(folder)
    folder.train({"train": {"epochs": 2}})
    first = os.path.join(folder.run_folder(), "checkpoints", "epoch-0001")
    disk.fails("access EIO epoch-0001/manifest.json")
    folder.ztrain("--config", folder.spec({"train": {"epochs": 2}}), "--resume", first, env=disk.env)
    assert sorted(os.listdir(os.path.dirname(first))) == ["epoch-0001", "epoch-0002", "epoch-0002.aside-1", "latest"]


def test_verify_calls_nothing_damaged_that_it_cannot_read(folder):
    disk = BadDisk(folder)
    folder.train({"train": {"epochs": 2}})
    disk.fails("pread EIO epoch-0001/rank-00000.zst")
    done = folder.ztrain("verify", folder.run_folder(), env=disk.env, expect=CHECKPOINT)
    assert "unread   " in done.out and "damaged" not in done.out + done.err, done
    assert "1 of 2 checkpoints cannot be read: " in done.final_error and "Input/output error" in done.final_error, done
    with open(os.path.join(folder.latest(), "rank-00000.zst"), "r+b") as f:
        f.truncate(100)
    done = folder.ztrain("verify", folder.run_folder(), env=disk.env, expect=CHECKPOINT)
    assert "unread   " in done.out and "1 of 2 checkpoints damaged: " in done.final_error, done


def test_an_old_checkpoint_that_cannot_be_read_is_not_needed(folder):
    """Its name shows that it is older than the one that is taken. One that may be newer is not skipped."""
    disk, run = BadDisk(folder), folder.run_folder()
    spec = {"train": {"epochs": 2}, "checkpoint": {"interval_steps": 1, "retry_seconds": 0.5}}
    checkpoints = os.path.join(run, "checkpoints")
    folder.train(spec)  # step-00000001, 2, 4 and 5, epoch-0001 and 2
    for name in "step-00000002", "epoch-0001":
        disk.fails(f"open EACCES {name}/manifest.json")
        for arguments in ["inspect", run], ["export", run, "--out", os.path.join(folder.path, "out-" + name)], \
                ["--dry-run", "--config", folder.spec(spec), "--resume", run]:
            done = folder.ztrain(*arguments, env=disk.env)
            assert "epoch-0002" in done.out + done.err and name not in done.err, done
        assert f"\n  {name} " in folder.ztrain("inspect", run, env=disk.env).out
        done = folder.ztrain("verify", run, env=disk.env, expect=CHECKPOINT)
        assert done.out.count("ok       ") == 5 and f"unread   {checkpoints}/{name}: cannot open" in done.out, done
        assert "1 of 6 checkpoints cannot be read: " in done.final_error, done
        done = folder.ztrain("--config", folder.spec({**spec, "train": {"epochs": None, "max_steps": 7}}), "--resume", run,
                             env=disk.env)
        assert "resumed from" in done.out and "tried again" not in done.err, done
        disk.works()
        shutil.rmtree(run)
        folder.train(spec)
    disk.fails("open EACCES epoch-0002/manifest.json")  # newer than step-00000005, of the same epoch
    for arguments in ["inspect", run], ["--config", folder.spec(spec), "--resume", run]:
        done = folder.ztrain(*arguments, env=disk.env, expect=CHECKPOINT)
        assert f"; hint: make '{checkpoints}/epoch-0002' readable, or name an older checkpoint: " \
               f"'{checkpoints}/step-00000005' is of step 5" in done.final_error, done
    done = folder.ztrain("--config", folder.spec(spec), "--resume", checkpoints + "/step-00000004", env=disk.env)
    assert "damaged" not in done.err, done
    assert {"epoch-0002.aside-1", "step-00000005.aside-1", "epoch-0002"} <= set(os.listdir(checkpoints))


def test_metrics_that_waited_do_not_go_into_the_file_of_another_job(folder):
    """A node was cut off; its job was requeued elsewhere, where nothing had to be cut from metrics.jsonl."""
    disk = BadDisk(folder)
    process = folder.start("--config", folder.spec({**LONG, "checkpoint": {}}), env=disk.env)
    wait_for_steps(folder, process, 2)
    disk.fails("write EIO metrics.jsonl")
    wait_for_words(folder, process, "metrics.jsonl': Input/output error; its lines are kept in memory")
    owner, metrics = (os.path.join(folder.run_folder(), name) for name in ("owner", "metrics.jsonl"))
    with open(owner, encoding="utf-8") as f:
        record = json.load(f)
    with open(owner + ".new", "w", encoding="utf-8") as f:
        json.dump({**record, "nonce": "00", "host": "elsewhere"}, f)
    os.rename(owner + ".new", owner)
    time.sleep(0.3 * SLOWNESS)  # an attempt that asked for the owner just before the change fails while the disk still does
    with open(metrics, "rb") as f:
        before = f.read()
    disk.works()
    done = folder.wait(process)
    assert done.code == USAGE and "another job has taken over this run folder" in done.final_error, done
    with open(metrics, "rb") as f:
        assert f.read() == before


# Where reading fails: as the shards are loaded, by one rank and by the second of two, and as the second opens what the first
# has found.
UNREADABLE = [(1, "pread EIO epoch-0002/rank-00000.zst"), (2, "open ESTALE epoch-0002/rank-00001.zst"),
              (2, "pread EIO epoch-0002/manifest.json"), (2, "stat ESTALE epoch-0002/manifest.json")]


def resume_of_two(folder, disk, ranks, *options):
    """The ranks that continue from epoch-0002; of two, the second has the bad disk."""
    arguments = ["--config", folder.spec({"train": {"epochs": 3}}), "--resume",
                 os.path.join(folder.run_folder(), "checkpoints", "epoch-0002"), *options]
    return Job(folder, *arguments, nodes=[0] * ranks, env_of={ranks - 1: disk.env})


@pytest.mark.parametrize("ranks, line", UNREADABLE)
def test_each_rank_reads_again(folder, ranks, line):
    disk = BadDisk(folder)
    folder.train({"train": {"epochs": 3}}, name="whole", ranks=ranks)
    folder.train({"train": {"epochs": 2}}, ranks=ranks)
    disk.fails(line)
    job = resume_of_two(folder, disk, ranks)
    wait_for_words(folder, job.ranks[-1], "reading is tried again for 30 s: cannot ")
    disk.works()
    job.train()
    assert folder.metrics().numbers() == folder.metrics("whole").numbers()


@pytest.mark.parametrize("ranks, line", UNREADABLE[:3])
def test_reading_again_has_an_end(folder, ranks, line):
    """A resume gives up after checkpoint.retry_seconds, or when it is asked to stop; then nothing has changed."""
    disk = BadDisk(folder)
    folder.train({"train": {"epochs": 2}}, ranks=ranks)
    metrics = folder.metrics().numbers()
    disk.fails(line)
    done = resume_of_two(folder, disk, ranks, "--set", "checkpoint.retry_seconds=0.5").train(CHECKPOINT)
    words = done[-1].final_error
    assert line.split()[-1] in words and os.strerror(getattr(errno, line.split()[1])) in words, done
    assert "damaged" not in done[-1].err
    job = resume_of_two(folder, disk, ranks)
    wait_for_words(folder, job.ranks[-1], "reading is tried again for 30 s: ")
    for rank in job.ranks:
        rank.send_signal(signal.SIGTERM)
    done = job.train(REQUEUE)
    assert "stopped on request while reading was tried again" in done[-1].err and "ztrain: error" not in done[-1].err, done
    assert folder.metrics().numbers() == metrics and folder.checkpoints() == ["epoch-0001", "epoch-0002"]


def test_metrics_wait_for_the_disk(folder):
    disk = BadDisk(folder)
    process = folder.start("--config", folder.spec({**LONG, "checkpoint": {"keep_last": 1}}), env=disk.env)
    wait_for_steps(folder, process, 2)
    disk.fails("write ENOSPC metrics.jsonl")
    wait_for_words(folder, process, "metrics.jsonl': No space left on device; its lines are kept in memory")
    disk.works()
    wait_for_words(folder, process, "metrics.jsonl' can be written again")
    process.send_signal(signal.SIGTERM)
    assert folder.wait(process).code == REQUEUE
    steps = [row["step"] for row in folder.metrics().steps]
    assert steps == list(range(1, len(steps) + 1))

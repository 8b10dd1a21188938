# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are written while training goes on (checkpoint.writer.decoupled)."""
import json
import os
import shutil
import signal
import subprocess

import pytest

from harness import (ZTRAIN, plan_bytes, BadDisk, CHECKPOINT, DEVICE, DIVERGED, FINISHED, Job, PEER, REQUEUE, merged, wait_for_steps,
                     wait_for_words, wait_until)

pytestmark = pytest.mark.long

BESIDE = {"checkpoint": {"writer": {"decoupled": True}}}
ENDLESS = {**BESIDE, "train": {"epochs": None, "max_steps": 1000000}}  # a checkpoint after each third step


def several(ranks):
    return ["--local-gpus", ranks] if ranks > 1 else []


def contents(checkpoint):
    """The bytes of each file; of the manifest only what does not tell how the checkpoint was written."""
    files = {}
    for name in sorted(os.listdir(checkpoint)):
        with open(os.path.join(checkpoint, name), "rb") as f:
            files[name] = f.read()
    manifest = json.loads(files["manifest.json"])
    for key in "checkpoint.writer.decoupled", "run.name":
        manifest["spec"].pop(key, None)
    for key in "checksum", "time":
        manifest.pop(key, None)
    return {**files, "manifest.json": manifest}


def checkpoint(folder, name, run="run"):
    return os.path.join(folder.run_folder(run), "checkpoints", name)


def lines_of_checkpoints(folder):
    return [(os.path.basename(row["checkpoint"]), row["step"]) for row in folder.metrics().kinds("checkpoint")]


def leftovers(folder):
    return [name for _, folders, files in os.walk(folder.run_folder()) for name in folders + files if ".tmp" in name]


@pytest.mark.parametrize("ranks, changes", [(1, {}), (2, {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}})])
def test_the_files_and_the_numbers_are_those_of_a_run_that_waits(folder, ranks, changes):
    every = {**changes, "train": {"epochs": 2}, "checkpoint": {"interval_steps": 1, "keep_last": 4}}
    beside = {**every, "checkpoint": {**every["checkpoint"], **BESIDE["checkpoint"]}}
    folder.train(every, name="waits", ranks=ranks)
    done = folder.train(beside, ranks=ranks)
    assert ", training waited for " in done.out, done
    names = ["epoch-0001", "step-00000004", "step-00000005", "epoch-0002"]
    assert folder.checkpoints() == folder.checkpoints("waits") == names
    for name in names:
        assert contents(checkpoint(folder, name)) == contents(checkpoint(folder, name, "waits"))
    assert folder.metrics().numbers() == folder.metrics("waits").numbers()
    assert sorted(lines_of_checkpoints(folder), key=lambda line: line[1]) == lines_of_checkpoints(folder) == [
        ("step-00000001", 1), ("step-00000002", 2), ("epoch-0001", 3), ("step-00000004", 4), ("step-00000005", 5),
        ("epoch-0002", 6)]
    folder.train(beside, name="again", ranks=ranks, more=["--resume", checkpoint(folder, "step-00000004")])
    assert contents(checkpoint(folder, "epoch-0002", "again"))["rank-00000.zst"] == \
        contents(checkpoint(folder, "epoch-0002"))["rank-00000.zst"]


def test_training_goes_on_meanwhile_and_a_stop_waits(folder):
    """The disk stands still during the first save: training comes as far as the second, which has to wait."""
    disk = BadDisk(folder)
    disk.fails("write hold rank-00001.zst")
    process = folder.start("--config", folder.spec(ENDLESS), *several(2), env=disk.env)
    wait_for_steps(folder, process, 6)
    assert not folder.checkpoints() and not lines_of_checkpoints(folder)
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: process.poll() is None and leftovers(folder), what="the save to go on")
    disk.works()
    done = folder.wait(process)
    assert done.code == REQUEUE and "stopped on request after step 6 of " in done.out, done
    assert folder.checkpoints() == ["epoch-0001", "epoch-0002"] and not leftovers(folder)
    rows = [row for row in folder.metrics().rows if "loss" in row or "checkpoint" in row]
    assert [("loss" in row, row["step"]) for row in rows] == [(True, step) for step in range(1, 7)] + [(False, 3), (False, 6)]
    assert rows[-2]["seconds_stalled"] < rows[-1]["seconds_stalled"]
    folder.ztrain("verify", folder.run_folder())


def test_a_kill_during_the_save_leaves_the_checkpoint_before_it(folder):
    disk = BadDisk(folder)
    folder.train({**BESIDE, "train": {"epochs": 4}}, name="whole")
    folder.train({**BESIDE, "train": {"epochs": 1}})
    disk.fails("write hold manifest.json")
    process = folder.start("--config", folder.spec({**BESIDE, "train": {"epochs": 4}}), "--resume", folder.run_folder(),
                           env=disk.env)
    wait_for_steps(folder, process, 8)
    wait_until(lambda: leftovers(folder), what="the save's files")
    os.killpg(process.pid, signal.SIGKILL)
    folder.wait(process)
    disk.works()
    assert folder.checkpoints() == ["epoch-0001"] and leftovers(folder)
    done = folder.train({**BESIDE, "train": {"epochs": 4}}, more=["--resume", folder.run_folder()])
    assert "/epoch-0001 at step 3" in done.out and not leftovers(folder), done
    assert folder.metrics().numbers() == folder.metrics("whole").numbers()
    assert contents(checkpoint(folder, "epoch-0004"))["rank-00000.zst"] == \
        contents(checkpoint(folder, "epoch-0004", "whole"))["rank-00000.zst"]


@pytest.mark.parametrize("ranks, line", [(1, "write ENOSPC .zst"), (2, "fsync EIO rank-00001.zst")])
def test_a_save_that_fails_is_tried_again_from_the_copy(folder, ranks, line):
    """Training has gone on, so that the copy is older than the state."""
    disk = BadDisk(folder)
    folder.train({**BESIDE, "train": {"epochs": 2}}, name="whole", ranks=ranks)
    disk.fails(line)
    process = folder.start("--config", folder.spec(ENDLESS), *several(ranks), env=disk.env)
    wait_for_words(folder, process, "the checkpoint of step 3 is tried again for ")
    wait_for_steps(folder, process, 4)
    disk.works()
    wait_until(lambda: folder.checkpoints(), what="the checkpoint")
    process.send_signal(signal.SIGTERM)
    done = folder.wait(process)
    assert done.code == REQUEUE and "wrote the checkpoint" in done.out, done
    assert "could not be written" not in done.err and not leftovers(folder)
    for rank in range(ranks):
        name = f"rank-0000{rank}.zst"
        assert contents(checkpoint(folder, "epoch-0001"))[name] == contents(checkpoint(folder, "epoch-0001", "whole"))[name]
    folder.ztrain("verify", folder.run_folder())


def test_training_goes_on_without_a_checkpoint_but_does_not_end_without(folder):
    disk = BadDisk(folder)
    impatient = {"train": {"epochs": 2},
                 "checkpoint": {**BESIDE["checkpoint"], "retry_seconds": 0.5, "keep_last": 1, "interval_steps": 1}}
    folder.train({**impatient, "train": {"epochs": None, "max_steps": 2}})
    disk.fails("write ENOSPC rank-0000")
    done = folder.ztrain("--config", folder.spec(impatient), "--resume", folder.run_folder(), env=disk.env,
                         expect=CHECKPOINT)
    for step in 3, 4, 5:
        assert f"the checkpoint of step {step} could not be written, training continues without it: " in done.err, done
    assert "the checkpoint of step 6, the last one of this start, could not be written in " in done.final_error, done
    assert [row["step"] for row in folder.metrics().steps] == [1, 2, 3, 4, 5, 6]
    assert folder.checkpoints() == ["step-00000002"] and not leftovers(folder)


def test_the_plan_has_the_copy(folder):
    """3 states of fp32 on each rank, in the host memory; where they do not fit, the run waits for its checkpoints or refuses."""
    def plan(decoupled, limit=None, expect=FINISHED):
        changes = {"checkpoint": {"writer": {"decoupled": decoupled}}, "train": {"memory_limit": limit} if limit else {}}
        return folder.ztrain("plan", "--bytes", "--config", folder.spec(changes), expect=expect)
    total = plan_bytes(plan(False).out)["device"]["total"]
    copy = plan_bytes(plan(True).out)["host"]["snapshot"]
    assert "snapshot" not in plan(False).out and plan("auto").out == plan(True).out
    assert plan_bytes(plan(True).out)["device"]["total"] == total
    assert "\n  snapshot " in plan(True, total + copy).out
    done = plan("auto", total + copy - 1)
    assert "snapshot" not in done.out and "training waits for checkpoints (checkpoint.writer.decoupled): " in done.out, done
    done = plan(True, total + copy - 1, expect=DEVICE)
    assert f"({copy} bytes) of each rank's state in host memory does not fit into train.memory_limit" in done.final_error, done


def test_the_memory_of_the_copy_is_taken_when_a_checkpoint_is_due(folder):
    """3 states of 7.3 million parameters in fp32."""
    model = {"model_type": "gpt2", "vocab_size": 8000, "n_positions": 16, "n_embd": 512, "n_layer": 1, "n_head": 8}

    def peak(decoupled, interval):
        changes = {"model": {"config": model}, "data": {"validation": None, "seq_length": 16}, "train_batch_size": 2,
                   "checkpoint": {"interval_steps": interval, "compression_level": 1, "writer": {"decoupled": decoupled}},
                   "train": {"epochs": None, "max_steps": 2}}
        ranks = subprocess.Popen([ZTRAIN, "--config", folder.spec(changes, f"{decoupled}-{interval}")], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(ranks.pid, 0)
        ranks.returncode = os.waitstatus_to_exitcode(status)
        assert ranks.returncode == FINISHED
        return usage.ru_maxrss * 1024
    before, after, at_once = peak("auto", 5), peak("auto", 1), peak(True, 5)
    assert min(after, at_once) - before > 0.75 * 12 * 7.3e6


def test_a_limit_of_the_process_counts(folder):
    """auto makes no copy that ulimit -v would not leave room for: whatever the limit is, the run is whole."""
    model = {"model_type": "gpt2", "vocab_size": 8000, "n_positions": 16, "n_embd": 512, "n_layer": 1, "n_head": 8}
    spec = folder.spec({"model": {"config": model}, "data": {"validation": None, "seq_length": 16}, "train_batch_size": 2,
                        "train": {"epochs": None, "max_steps": 1}})

    def train(limit, *more):
        command = f'ulimit -v {limit}; exec "$0" "$@"'
        return subprocess.run(["bash", "-c", command, ZTRAIN, "--config", spec, *more], capture_output=True, text=True, check=False)
    waits = "training waits for checkpoints (checkpoint.writer.decoupled): the host memory does not suffice for a copy of "
    limit, said = 1250000, False
    while not said and limit > 400000:
        limit = limit * 4 // 5
        done = train(limit)
        assert done.returncode == FINISHED, done
        said = waits in done.stdout
        shutil.rmtree(folder.run_folder())
    assert said and "the memory limit of its process (ulimit -v, ulimit -d)" in done.stdout, done
    done = train(limit // 2, "--set", "checkpoint.writer.decoupled=true")
    assert done.returncode == DEVICE and "does not fit into the memory limit of its process" in done.stderr, done


@pytest.mark.parametrize("ranks, changes", [
    (1, {"checkpoint": {"keep_best": 1, "keep_last": 1}, "train": {"eval_interval_steps": 1}}),
    (2, {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}),
    (2, {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/dev/shm"}}})])
def test_the_best_checkpoints_and_offloaded_state(folder, ranks, changes):
    spec = merged({"train": {"epochs": 2}, "checkpoint": {"interval_steps": 2}}, changes)
    folder.train(spec, name="waits", ranks=ranks)
    folder.train(merged(spec, BESIDE), ranks=ranks)
    names = folder.checkpoints()
    assert names == folder.checkpoints("waits") and names
    for name in names:
        assert contents(checkpoint(folder, name)) == contents(checkpoint(folder, name, "waits"))
    links = [{link: os.readlink(checkpoint(folder, link, run)) for link in ("latest", "best")
              if os.path.islink(checkpoint(folder, link, run))} for run in ("run", "waits")]
    assert links[0] == links[1] and "latest" in links[0]


def test_ranks_of_several_nodes(folder):
    folder.train({"train": {"epochs": 2}}, name="waits", ranks=2)
    Job(folder, "--config", folder.spec({**BESIDE, "train": {"epochs": 2}}), nodes=[0, 1]).train()
    assert folder.checkpoints() == ["epoch-0001", "epoch-0002"]
    for name in folder.checkpoints():
        for rank in "rank-00000.zst", "rank-00001.zst":
            assert contents(checkpoint(folder, name))[rank] == contents(checkpoint(folder, name, "waits"))[rank]


@pytest.mark.parametrize("stuck", [0, 1])
def test_a_rank_that_dies_during_the_save(folder, stuck):
    """Rank 1 is killed while the disk of one of them stands still: the other ends soon, even if its own writer cannot."""
    disk = BadDisk(folder)
    folder.train({"train": {"epochs": 1}}, ranks=2)
    job = Job(folder, "--config", folder.spec({**ENDLESS, "comm": {"timeout_seconds": 20}}), "--resume", folder.run_folder(),
              nodes=[0, 0], env=disk.env)
    wait_for_steps(folder, job.ranks[0], 4)
    disk.fails(f"write hold rank-0000{stuck}.zst")
    wait_until(lambda: leftovers(folder), what="a save")
    os.kill(job.ranks[1].pid, signal.SIGKILL)
    done = folder.wait(job.ranks[0])
    assert done.code == PEER and "rank 1" in done.final_error, done
    disk.works()
    folder.wait(job.ranks[1])
    folder.ztrain("verify", folder.run_folder())


def test_a_run_that_diverges_completes_the_save(folder):
    disk = BadDisk(folder)
    wild = {"train": {"epochs": None, "max_steps": 1000, "max_skipped_steps": 2}, "optimizer": {"params": {"lr": 1e6, "weight_decay": 1.0}},
            "checkpoint": {**BESIDE["checkpoint"], "save_at_epoch_end": False, "keep_every_steps": 2}}
    disk.fails("write hold rank-00000.zst")
    process = folder.start("--config", folder.spec(wild), *several(2), env=disk.env)
    wait_for_words(folder, process, "the step is skipped (2 in a row, 2 end the run")
    disk.works()
    assert folder.wait(process).code == DIVERGED
    assert folder.checkpoints() == ["step-00000002"] and not leftovers(folder)
    folder.ztrain("verify", folder.run_folder())

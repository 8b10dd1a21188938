# SPDX-License-Identifier: Apache-2.0
"""Offload to a local disk: the numbers of the same run without it, files that end with their run, disks that are full,
slow or fail, and a model that is larger than the memory of the machine."""
import os
import re
import shutil
import signal
import subprocess

import pytest

from harness import (plan_bytes, BROKEN, BadDisk, DEVICE, FINISHED, GPT2, MemoryGroup, REQUEUE, ROOT, SLOWNESS, USAGE, ZTRAIN,
                     count_lines, wait_for_checkpoint, wait_for_steps, wait_until)


def several(ranks):
    return ["--local-gpus", ranks] if ranks > 1 else []


def nvme(folder, changes=None, params=True, **keys):
    """Changes of a spec that put everything on a disk."""
    os.makedirs(folder.at("disk"), exist_ok=True)
    where = {"device": "nvme", "nvme_path": folder.at("disk")}
    offload = {"stage": 3, "offload_optimizer": {**where, **keys}}
    if params:
        offload["offload_param"] = {**where, "max_in_cpu": 0}
    return {**(changes or {}), "zero_optimization": offload, "aio": {"block_size": 8192, "queue_depth": 4}}


def left_on_disk(folder):
    return sorted(os.listdir(folder.at("disk")))


@pytest.mark.parametrize("ranks, changes, engine", [
    (1, {}, "io_uring"),
    (2, {"bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 2}, "threads"),
], ids=["fp32", "bf16-2-ranks-threads"])
def test_the_numbers_are_those_of_a_run_without_offload(folder, ranks, changes, engine):
    """With evaluations, an interruption, a resume with offload, and one without."""
    changes = {**changes, "train": {"epochs": 3, "eval_interval_steps": 2}, "checkpoint": {"interval_steps": 2}}
    folder.train({**changes, "zero_optimization": {"stage": 3}}, name="whole", ranks=ranks)
    short = nvme(folder, {**changes, "train": {"epochs": None, "max_steps": 4, "eval_interval_steps": 2}})
    done = folder.train(short, name="disk", ranks=ranks, env={"ZTRAIN_AIO": engine}, more=["--verbose"])
    assert re.search(rf"optimizer: [0-9.]+ [KMG]iB in '{folder.at('disk')}', .*{engine}|{engine}", done.out)
    assert engine.split("_")[-1] in done.out and left_on_disk(folder) == []
    folder.train(nvme(folder, changes), name="disk", ranks=ranks, more=["--resume", folder.run_folder("disk")])
    assert folder.metrics("disk").numbers() == folder.metrics("whole").numbers()
    checkpoint = os.path.join(folder.run_folder("disk"), "checkpoints", "step-00000004")
    folder.train({**changes, "zero_optimization": {"stage": 1}}, name="other", ranks=ranks, more=["--resume", checkpoint])
    assert folder.metrics("other").losses[-1] == pytest.approx(folder.metrics("whole").losses[-1], abs=1e-6)
    assert left_on_disk(folder) == []


LONG = {"train": {"epochs": None, "max_steps": 1000000}, "checkpoint": {"interval_steps": 1}}


def test_two_jobs_share_a_disk_and_a_killed_one_leaves_nothing(folder):
    alive = folder.start("--config", folder.spec(nvme(folder, LONG), "alive"))
    killed = folder.start("--config", folder.spec(nvme(folder, LONG), "killed"))
    wait_for_steps(folder, alive, 1, "alive")
    wait_for_steps(folder, killed, 1, "killed")
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert left_on_disk(folder) == []
    folder.train(nvme(folder, {"train": {"epochs": None, "max_steps": 2}}), name="next")
    wait_for_steps(folder, alive, 3, "alive")
    alive.send_signal(signal.SIGTERM)
    assert folder.wait(alive).code == REQUEUE
    assert left_on_disk(folder) == []


def test_a_full_disk_is_an_error_at_the_start(folder):
    disk = BadDisk(folder)
    disk.fails("fallocate ENOSPC ztrain-offload-")
    done = folder.train(nvme(folder), expect=DEVICE, env=disk.env)
    assert "cannot reserve" in done.final_error and "No space left on device; hint: " in done.final_error, done
    assert re.search(r"hint: the disk has [0-9.]+ [KMGT]iB free", done.final_error) and left_on_disk(folder) == []
    assert not folder.checkpoints()


@pytest.mark.parametrize("more", [[], ["--dry-run"]], ids=["run", "dry-run"])
def test_a_missing_folder_is_an_error_and_is_not_made(folder, more):
    """An empty mount point would put the files on the disk of the system."""
    changes = nvme(folder)
    os.rmdir(folder.at("disk"))
    done = folder.ztrain("--config", folder.spec(changes), *more, expect=DEVICE)
    assert f"cannot use nvme_path '{folder.at('disk')}': No such file or directory; hint: mount the disk, or make the folder" in done.err
    assert not os.path.exists(folder.at("disk"))
    folder.ztrain("plan", "--config", folder.spec(changes))  # for another machine


def test_a_path_without_files_has_a_notice(folder):
    for device in ({}, {"device": "none"}, {"device": "cpu"}):
        where = {**device, "nvme_path": "/nowhere"}
        changes = {"zero_optimization": {"stage": 3, "offload_optimizer": where, "offload_param": where}}
        done = folder.ztrain("--config", folder.spec(changes), "--dry-run")
        for section in ("offload_optimizer", "offload_param"):
            words = f"'zero_optimization.{section}.nvme_path' has no effect with device {device.get('device', 'none')}: nothing is on a disk"
            assert words in done.out, done


def test_an_effective_spec_has_no_notices_of_offload(folder):
    """run.yaml has every key, those without effect with their defaults; another value of such a key has a notice."""
    for name, device, idle in (("a", "none", "sub_group_size=4096"), ("b", "cpu", "offload_param.max_in_cpu=5")):
        where = {"device": device}
        folder.train({"zero_optimization": {"stage": 3, "offload_optimizer": where, "offload_param": where}}, name)
        spec = os.path.join(folder.run_folder(name), "run.yaml")
        sets = ["--set", "run.name=other"]
        assert "has no effect" not in folder.ztrain("--config", spec, "--dry-run", *sets).out
        said = folder.ztrain("--config", spec, "--dry-run", *sets, "--set", f"zero_optimization.{idle}").out
        assert f"'zero_optimization.{idle.split('=')[0]}' has no effect with device {device}: " in said


def test_host_memory_does_not_grow_with_the_model(folder):
    """GPT-2 and one with 16 times its parameters: the plan's host memory but for the slice that checkpoints read."""
    planned = []
    for width, layers in ((768, 12), (3072, 12)):
        model = {**GPT2, "vocab_size": 50257, "n_positions": 1024, "n_embd": width, "n_layer": layers, "n_head": width // 64}
        spec = folder.spec({**nvme(folder), "model": {"config": model}, "bf16": {"enabled": True}})
        done = folder.ztrain("plan", "--bytes", "--config", spec)
        host = plan_bytes(done.out)["host"]
        host.pop("total")
        assert host.pop("workspace") < 4 * (50257 + 1024) * width + (16 << 10), done
        planned.append(host)
    assert planned[0] == planned[1] and sum(planned[0].values()) < 200 << 20, planned


@pytest.mark.parametrize("ranks, line", [(1, "pwrite ENOSPC -optimizer-"), (2, "pread EIO -optimizer-")])
def test_a_disk_that_fails_ends_the_run_and_no_checkpoint(folder, ranks, line):
    disk = BadDisk(folder)
    env = {**disk.env, "ZTRAIN_AIO": "threads"}
    job = folder.start("--config", folder.spec(nvme(folder, LONG)), *several(ranks), env=env)
    wait_for_checkpoint(folder, job)
    disk.fails(line)
    done = folder.wait(job)
    assert done.code == BROKEN, done
    assert re.search(r"ztrain: error: .*cannot (read|write) '[^']*/ztrain-offload-0000\d-optimizer-\w+' at offset \d+: ", done.err), done
    assert left_on_disk(folder) == []
    folder.ztrain("verify", folder.run_folder())
    disk.works()
    steps = len(folder.metrics().steps) + 3
    folder.train(nvme(folder, {"train": {"epochs": None, "max_steps": steps}}), ranks=ranks, more=["--resume", folder.run_folder()])
    folder.train({"train": {"epochs": None, "max_steps": steps}, "zero_optimization": {"stage": 3}}, name="whole", ranks=ranks)
    assert folder.metrics().losses == folder.metrics("whole").losses


@pytest.mark.long
@pytest.mark.skipif(SLOWNESS > 1, reason="a sanitizer's run time has to be the first library")
def test_a_slow_disk_is_no_silent_rank(folder):
    library = folder.at("slow_files.so")
    subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", library,
                    os.path.join(ROOT, "tests/program/slow_files.c"), "-ldl"], check=True)
    env = {"LD_PRELOAD": library, "SLOW_RANK": "1", "SLOW_CALL": "pread", "SLOW_FILE": "-optimizer-", "SLOW_SECONDS": "3",
           "ZTRAIN_AIO": "threads"}
    spec = folder.spec(nvme(folder, {"comm": {"timeout_seconds": 1}, "train": {"epochs": 1}}, buffer_count=1))
    done = folder.wait(folder.start("--config", spec, "--local-gpus", 2, env=env), 60)
    assert done.code == FINISHED and done.seconds >= 3, done


@pytest.mark.parametrize("changes, words", [
    ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"}}}, "needs zero_optimization stage 3"),
    ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}}, "nvme_path"),
    ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "nvme_path"),
])
def test_a_spec_without_stage_or_path_is_refused(folder, changes, words):
    done = folder.train(changes, expect=USAGE)
    assert words in done.err, done


def sizes_of(job):
    """Bytes of the files of offload, which have no names."""
    files = [f"/proc/{job.pid}/fd/{number}" for number in os.listdir(f"/proc/{job.pid}/fd")]
    return [os.stat(file).st_size for file in files if "/ztrain-offload-" in os.readlink(file)]


@pytest.mark.long
def test_a_model_larger_than_the_memory(folder):
    """Master weights, m and v alone are larger than the memory that the run may have: 300 MiB, or $ZTRAIN_TEST_LARGER_THAN_MEMORY,
    a number of GiB or 'free' for what the machine has. That takes minutes, and one and a half times that memory on the disk."""
    chosen = os.environ.get("ZTRAIN_TEST_LARGER_THAN_MEMORY")
    with open("/proc/meminfo", encoding="utf-8") as facts:
        free = int(re.search(r"MemAvailable: +(\d+)", facts.read())[1]) << 10
    memory = 300 << 20 if not chosen else free if chosen == "free" else int(float(chosen) * (1 << 30))
    width = 256 if memory < 1 << 30 else 768 if memory < 8 << 30 else 2048
    block = 12 * width * width
    layers = memory // (12 * block) + 1
    model = {**GPT2, "n_embd": width, "n_layer": layers, "n_head": width // 64}
    spec = folder.spec({**nvme(folder, LONG), "model": {"config": model}, "train_batch_size": 1, "checkpoint": None, "aio": None})
    group = MemoryGroup(memory)
    try:
        with open(folder.at("out"), "wb") as out:
            job = subprocess.Popen([*group.prefix, ZTRAIN, "--config", spec], stdout=out, stderr=out, cwd=folder.path,
                                   start_new_session=True)
        folder.adopt(job)
        path = os.path.join(folder.run_folder(), "metrics.jsonl")
        try:
            wait_until(lambda: count_lines(path) >= 3 or job.poll() is not None, 3000 if chosen else 120, "two steps")
            with open(folder.at("out"), encoding="utf-8") as out:
                assert job.poll() is None and len(folder.metrics().steps) >= 2, out.read()[-3000:]
            assert max(sizes_of(job)) > memory
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
            shutil.rmtree(folder.at("disk"), ignore_errors=True)
    finally:
        group.close()

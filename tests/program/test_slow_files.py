# SPDX-License-Identifier: Apache-2.0
"""Ranks whose file system is slow, or hangs: calls on files that take longer than comm.timeout_seconds."""
import os
import subprocess

import pytest

from harness import FINISHED, PEER, ROOT, SLOWNESS, session_members, wait_until

pytestmark = [pytest.mark.long, pytest.mark.skipif(SLOWNESS > 1, reason="a sanitizer's run time has to be the first library")]


@pytest.fixture(name="slow")
def slow_library(folder):
    """The environment in which one call of one rank is slow."""
    library = folder.at("slow_files.so")
    subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library,
                    os.path.join(ROOT, "tests/program/slow_files.c"), "-ldl"], check=True)

    def environment(rank, call, file, seconds):
        return {"LD_PRELOAD": library, "SLOW_RANK": str(rank), "SLOW_CALL": call, "SLOW_FILE": file,
                "SLOW_SECONDS": str(seconds)}
    return environment


def test_a_slow_file_system_is_no_dead_peer(folder, slow):
    cases = [(1, "pread", "train.bin"), (0, "fsync", "metrics.jsonl"), (0, "write", "metrics.jsonl"),
             (1, "close", "rank-00001.zst"), (0, "write", "manifest.json")]
    jobs = []
    for number, (rank, call, file) in enumerate(cases):
        spec = folder.spec({"comm": {"timeout_seconds": 1}, "train": {"epochs": 1}}, name=f"run{number}")
        jobs.append(folder.start("--config", spec, "--local-gpus", 2, env=slow(rank, call, file, 3)))
    for case, job in zip(cases, jobs):
        done = folder.wait(job, 60)
        assert done.code == FINISHED, (case, done)
        assert done.seconds >= 3, (case, "it was not slow")


def test_a_file_system_that_hangs_is_named(folder, slow):
    spec = folder.spec({"comm": {"io_timeout_seconds": 1}})
    job = folder.start("--config", spec, "--local-gpus", 2, env=slow(1, "pread", "train.bin", 600))
    done = folder.wait(job, 30)
    assert done.code == PEER, done
    host = os.uname().nodename
    words = f"no progress for 1 s in reading '{folder.at('train.bin')}' (comm.io_timeout_seconds)"
    assert f"ztrain: error: rank 1 on {host}: {words}" in done.err, done
    assert f"rank 1 on {host} ended: {words}" in done.err, done
    wait_until(lambda: not session_members(job.pid), 5, "the end of every rank")

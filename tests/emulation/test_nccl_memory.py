# SPDX-License-Identifier: Apache-2.0
"""Memory that NCCL reads and writes at its place: registered and deregistered in balance, with the same losses as without;
what takes the other way; reductions that are due together; and the end of a job that no abort of NCCL's can end.

The emulated NCCL ends a run whose ranks use windows at different places, which frees what is registered, or which groups
collectives that depend on each other (tests/emulation/emulation_nccl.cc)."""
import os
import re
import signal
import time

import pytest

import harness
from harness import BROKEN, DEVICE, PEER, ROOT, SLOWNESS, USAGE, Job, wait_for_steps

TWO = {"ZTRAIN_EMULATION_GPUS": "2", "ZTRAIN_EMULATION_STATS": "1"}
WINDOW, REGISTERED, PLAIN = "in place, as a window", "in place", "through buffers of its own: "


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    monkeypatch.setattr(harness, "ZTRAIN", os.path.join(ROOT, "build", "emulation", "ztrain"))
    monkeypatch.setattr(harness, "OPTIONS_OF_RUNS", ["--verbose"])
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", "")


def spec_of(folder, name, changes=None):
    base = {"data": {"validation": None}, "train_batch_size": 4, "train_micro_batch_size_per_gpu": 1,
            "comm": {"timeout_seconds": 5}, "train": {"epochs": None, "max_steps": 2, "device": "cuda"}}
    return folder.spec(harness.merged(base, changes or {}), name)


def train(folder, name, stage, expect=harness.FINISHED, changes=None, **env):
    config = spec_of(folder, name, harness.merged({"zero_optimization": {"stage": stage}}, changes or {}))
    return folder.ztrain("--config", config, "--local-gpus", 2, env={**TWO, **env}, expect=expect)


def counts(done):
    """Of each rank: registered, deregistered, collectives in windows and on copy engines, groups, collectives in them."""
    rows = re.findall(r"emulation: NCCL: (\d+) registered, (\d+) deregistered, (\d+) collectives in windows, (\d+) on copy "
                      r"engines, (\d+) groups of (\d+)", done.err)
    assert len(rows) == 2 and rows[0] == rows[1], done.err
    return [int(x) for x in rows[0]]


@pytest.mark.parametrize("stage", [1, 3])
def test_both_ways_give_the_same_losses(folder, stage):
    """At stages 1 and 3 every gather of parameters runs on copy engines."""
    done = train(folder, "window", stage)
    registered, deregistered, in_windows, on_engines, _, _ = counts(done)
    assert WINDOW in done.out and registered == deregistered == 1 and 2 * 4 < on_engines < in_windows, done
    plain = train(folder, "plain", stage, ZTRAIN_NCCL_MEMORY="plain")
    assert PLAIN + "ZTRAIN_NCCL_MEMORY is plain\n" in plain.out
    assert counts(plain)[:4] == [0, 0, 0, 0]
    assert folder.metrics("plain").numbers() == folder.metrics("window").numbers()


@pytest.mark.parametrize("way, env", [
    (PLAIN + "NCCL 2.19 is the first that can do without", {"ZTRAIN_EMULATION_LACKS": "ncclMemAlloc"}),
    (PLAIN + "it registers none", {"ZTRAIN_EMULATION_NCCL": "no-register"}),
    (REGISTERED, {"ZTRAIN_EMULATION_NCCL": "no-window"}),
    (REGISTERED, {"ZTRAIN_EMULATION_NCCL": "version=22304"})])
def test_what_an_older_nccl_or_gpu_lacks(folder, way, env):
    done = train(folder, "run", 2, changes={"train": {"max_steps": 1}}, **env)
    registered = int(way == REGISTERED)
    assert re.search(f"collectives: NCCL moves [0-9.]+ MiB of parameters and gradients {way}\n", done.out), done
    assert counts(done)[:4] == [registered, registered, 0, 0], done


@pytest.mark.parametrize("own, way, registered", [
    ({"ZTRAIN_EMULATION_NCCL": "no-memory"}, PLAIN + "it gives no memory of its own", [0, 0]),
    ({"ZTRAIN_NCCL_MEMORY": "plain"}, PLAIN + "another rank cannot do without", [0, 0]),
    ({"ZTRAIN_EMULATION_NCCL": "no-window"}, REGISTERED, [2, 1])])
def test_one_rank_that_cannot_decides_for_all(folder, own, way, registered):
    job = Job(folder, "--config", spec_of(folder, "run", {"train": {"max_steps": 1}}), nodes=[0, 0], env=TWO, env_of={1: own})
    done = job.train()
    assert f"parameters and gradients {way}\n" in done[0].out, done
    for one, count in zip(done, registered):
        assert f"NCCL: {count} registered, {count} deregistered, 0 collectives in windows" in one.err, done


def test_what_is_refused(folder):
    done = train(folder, "word", 1, expect=USAGE, ZTRAIN_NCCL_MEMORY="yes")
    assert "ZTRAIN_NCCL_MEMORY must be plain, not 'yes'" in done.err
    done = train(folder, "bad", 1, expect=PEER, ZTRAIN_EMULATION_NCCL="bad-window")
    assert "NCCL: cannot register memory: " in done.err and "; hint: ZTRAIN_NCCL_MEMORY=plain does without; " in done.err, done
    done = train(folder, "container", 1, expect=DEVICE, ZTRAIN_EMULATION_NCCL="bad-window=cuda")
    assert "'operation not supported'; hint: ZTRAIN_NCCL_MEMORY=plain does without; " in done.err, done
    done = train(folder, "sums", 1, expect=DEVICE, ZTRAIN_EMULATION_NCCL="forgets=window")
    assert "nccl-tests shows which, and ZTRAIN_NCCL_MEMORY=plain in the environment avoids " in done.err, done


def test_short_reductions_are_one_group(folder):
    """All units of this model are short: at stage 1 they are one group, at stage 2 the head goes with the last block, and the
    first block with the embedding. One micro-batch; a step."""
    changes = {"train_batch_size": 2, "train": {"max_steps": 1}}
    units = 2 + harness.LLAMA["num_hidden_layers"]
    assert counts(train(folder, "one", 1, changes=changes))[4:] == [1, units]
    assert counts(train(folder, "zero", 0, changes=changes))[4:] == [2, 2 * units]
    assert counts(train(folder, "two", 2, changes=changes))[4:] == [2, 4]


ENDLESS = {"train": {"max_steps": 1000000, "cuda_graphs": False}, "zero_optimization": {"stage": 3}}


def test_a_gather_that_no_abort_ends(folder):
    """A copy engine waits for a dead peer for good: the process ends itself, with the peer's name."""
    endless = harness.merged(ENDLESS, {"comm": {"timeout_seconds": 2}})
    job = Job(folder, "--config", spec_of(folder, "run", endless), nodes=[0, 0],
              env={**TWO, "ZTRAIN_EMULATION_NCCL": "engines"})
    wait_for_steps(folder, job.ranks[0], 4)
    os.kill(job.ranks[1].pid, signal.SIGKILL)
    started = time.monotonic()
    done = folder.wait(job.ranks[0], 30)
    assert time.monotonic() - started < 30 * SLOWNESS, done
    assert done.code == PEER and re.search(r"rank 1 on \S+ \(process \d+\) died", done.final_error), done


def test_a_rank_that_ends_itself_has_the_code_of_the_job(folder):
    """The GPU of its peer has failed, which no restart on the same nodes cures."""
    spec = spec_of(folder, "run", harness.merged(ENDLESS, {"comm": {"timeout_seconds": 2}}))
    done = Job(folder, "--config", spec, nodes=[0, 0], env=TWO, env_of={0: {"ZTRAIN_EMULATION_NCCL": "stays"},
                                                                      1: {"ZTRAIN_EMULATION_FAILS": "214@400"}}).train(BROKEN)
    assert re.search(r"error: rank 0 on \S+ rank 1 on \S+ ended: .* uncorrectable ECC error", done[0].err), done
    assert "emulation: " in done[1].err and "emulation: " not in done[0].err, done

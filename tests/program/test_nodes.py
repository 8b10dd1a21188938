# SPDX-License-Identifier: Apache-2.0
"""Life and death of ranks that a launcher starts on several nodes: here processes with torchrun's variables, whose
GROUP_RANK makes two nodes of one machine. Slurm's own part is in tests/cluster."""
import os
import re
import resource
import signal
import time

import pytest

from harness import (CHECKPOINT, DATA, DIVERGED, FINISHED, NODES, PEER, REQUEUE, SLOWNESS, USAGE, Job,
                     wait_for_steps, wait_for_words)

ENDLESS = {"train": {"epochs": None, "max_steps": 1000000}}
TIMEOUT = 4


def spec_of(folder, changes=None, name="run"):
    return folder.spec({"comm": {"timeout_seconds": TIMEOUT}, "train_micro_batch_size_per_gpu": 3, **(changes or {})},
                       name)


@pytest.mark.parametrize("nodes", [NODES, [0, 1, 0, 1], [0, 1, 1, 2]], ids=["2x2", "in-turn", "1+2+1"])
def test_losses_of_local_ranks_bit_for_bit(folder, nodes):
    changes = {"zero_optimization": {"stage": 3}}
    Job(folder, "--config", spec_of(folder, changes, "nodes"), nodes=nodes).train()
    folder.ztrain("--config", spec_of(folder, changes, "local"), "--local-gpus", 4)
    assert folder.metrics("nodes").numbers() == folder.metrics("local").numbers()


# --- errors -----------------------------------------------------------------------------------------------------------

def said_once(done, words):
    """The words are in one rank's final error, and no other rank prints anything."""
    speakers = [rank for rank, d in enumerate(done) if "error" in d.err]
    assert len(speakers) == 1 and words in done[speakers[0]].final_error, done
    return speakers[0]


def test_an_error_that_all_find_is_said_by_rank_0(folder):
    spec = spec_of(folder)
    done = Job(folder, "--config", spec, "--set", "model.no_such_key=1").train(USAGE)
    assert said_once(done, "1 error in the run spec") == 0 and "no_such_key" in done[0].err
    done = Job(folder, "--no-such-option").train(USAGE)
    assert said_once(done, "no-such-option") == 0
    done = Job(folder, "--config", spec, "--set", f"data.train=[{folder.at('nothing')}]").train(DATA)
    assert said_once(done, "nothing") == 0
    done = Job(folder, "--config", spec, "--set", "train_batch_size=13").train(USAGE)
    assert said_once(done, "13 != 3 * 1 * 4 (world size 4: ") == 0
    done = Job(folder, "--config", spec, "--resume", folder.at("nowhere")).train(CHECKPOINT)
    assert said_once(done, "nowhere") == 0
    wild = {"train": {"epochs": 20}, "optimizer": {"params": {"lr": 1e6, "weight_decay": 1.0}}}
    done = Job(folder, "--config", spec_of(folder, wild)).train(DIVERGED)
    assert said_once(done, "non-finite gradients") == 0


def test_an_error_of_one_rank_ends_all(folder):
    spec = spec_of(folder)
    done = Job(folder, "--config", spec, arguments_of={3: ["--config", folder.at("absent.yaml")]}).train(USAGE)
    assert said_once(done, "absent.yaml") == 3
    other = spec_of(folder, {"run": {"name": "run", "dir": folder.at("runs"), "seed": 8}})
    done = Job(folder, "--config", spec, arguments_of={2: ["--config", other]}).train(USAGE)
    assert "rank 2 on" in done[0].err and said_once(done, "has another run spec or other options than rank 0") == 0


def test_terminated_before_the_ranks_have_met(folder):
    job = Job(folder, "--config", spec_of(folder), nodes=[0, 1], absent=[1])
    time.sleep(0.5 * SLOWNESS)
    started = time.monotonic()
    job.ranks[0].terminate()
    assert job.wait()[0].code == -signal.SIGTERM
    assert time.monotonic() - started < 20 * SLOWNESS


def test_the_network_carries_the_bytes_of_theory(folder):
    """Two nodes of two ranks: of a gather every rank sends its slice to the other node once, of a reduction its part of
    the slices of both ranks there. What a rank gathers, or gives to a reduction, in a step are three slices."""
    def lines_of(name):
        job = Job(folder, "--config", spec_of(folder, {"zero_optimization": {"stage": 1},
                                                       "run": {"name": name, "dir": folder.at("runs"), "seed": 7}}))
        said = "".join(done.out + done.err for done in job.train()).splitlines()
        numbers = {what: [[int(n) for n in re.findall(r"\d+", line[line.index(what):])] for line in said if what in line]
                   for what in ("communication of a step", "over the network")}
        return numbers["communication of a step"], numbers["over the network"]

    steps, network = lines_of("one")
    assert network and len(network) == len(steps)
    for (gathered, _, reduced, _), (sent, theory_sent, received, theory_received) in zip(steps, network):
        assert sent == theory_sent and received == theory_received
        a_step = gathered // 3 + 2 * (reduced // 3)
        count = len(folder.metrics("one").steps)
        assert count * a_step <= sent <= (count + 2) * a_step  # and the bytes of a start, an end and an evaluation
    assert lines_of("two") == (steps, network)  # nothing depends on time


def test_a_run_folder_that_is_not_shared(folder):
    away = folder.at("away")
    os.mkdir(away)
    spec = spec_of(folder, {"run": {"name": "run", "dir": "runs", "seed": 7}})
    done = Job(folder, "--config", spec, cwd_of={1: away}).train(USAGE)
    assert said_once(done, "run folder 'runs/run' is not the one of rank 0") == 2
    assert "run.dir has to lie on a file system that all nodes share" in done[2].err
    assert [name for name in os.listdir(folder.at("runs", "run", "log")) if "shared" in name] == []


# --- ranks that go ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("rank", [0, 1, 2, 3])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda n: n.name)
def test_a_rank_that_is_killed_or_stopped_is_named(folder, rank, number):
    job = Job(folder, "--config", spec_of(folder, ENDLESS))
    wait_for_steps(folder, job.ranks[0], 3)
    job.ranks[rank].send_signal(number)
    start = time.monotonic()
    others = [r for r in range(4) if r != rank]
    done = {r: folder.wait(job.ranks[r], 20) for r in others}
    assert time.monotonic() - start < (TIMEOUT + 30) * SLOWNESS
    for r in others:
        assert done[r].code == PEER, done
        assert done[r].err.count("ztrain: error: ") == 1, done
        assert f"rank {r} on " in done[r].final_error and f": rank {rank} on " in done[r].final_error, done
        assert ("died" if number == signal.SIGKILL else "silent") in done[r].final_error, done
    if number == signal.SIGSTOP:
        job.ranks[rank].send_signal(signal.SIGKILL)
    job.wait()
    said = " ".join(folder.ztrain("why", folder.run_folder()).out.split())
    assert re.match(rf"Rank {rank} on \S+ \(process {job.ranks[rank].pid}\) (was killed|stood still)", said), said


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_rank_that_fails_alone_gives_its_code_to_all(folder, rank):
    """The rank cannot write any more: rank 0 fails with its metrics, in the middle of a step; another one with its part of a
    checkpoint, which all hear of in order and without which training continues until it is the run's last."""
    job = Job(folder, "--config", spec_of(folder, {**ENDLESS, "checkpoint": {"retry_seconds": 0.5}}))
    wait_for_steps(folder, job.ranks[0], 3)
    most = 200000 if rank == 0 else 0  # more than a checkpoint's part, less than metrics.jsonl will soon be
    resource.prlimit(job.ranks[rank].pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    if rank != 0:
        wait_for_words(folder, job.ranks[0], "could not be written, training continues without it")
        for one in job.ranks:
            one.send_signal(signal.SIGTERM)
    done = job.wait(30)
    assert len({d.code for d in done}) == 1 and done[0].code not in (FINISHED, REQUEUE, PEER), done
    if rank == 0:
        assert "metrics.jsonl" in done[0].final_error, done
        assert all("rank 0 on" in d.final_error and "metrics.jsonl" in d.final_error for d in done), done
    else:
        assert said_once(done, f"rank {rank} on ") == 0 and f"rank-{rank:05d}" in done[0].final_error, done


# --- stopping in time -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM], ids=lambda n: n.name)
@pytest.mark.parametrize("ranks", [[2], [0, 1, 2, 3]], ids=["one", "all"])
def test_a_signal_stops_all_after_the_same_step(folder, number, ranks):
    job = Job(folder, "--config", spec_of(folder, ENDLESS))
    wait_for_steps(folder, job.ranks[0], 3)
    for rank in ranks:
        job.ranks[rank].send_signal(number)
    done = job.train(REQUEUE)
    assert "stopped on request" in done[0].out and all("error" not in d.err for d in done)
    last = folder.metrics().steps[-1]["step"]
    assert folder.metrics().kinds("checkpoint")[-1]["step"] == last
    folder.ztrain("verify", folder.run_folder())


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_end_of_the_jobs_time(folder, ranks):
    """A checkpoint is made ahead of it, without a signal."""
    end = time.time() + (16 if SLOWNESS == 1 else 30)  # less than it takes to start would be no job's time
    done = folder.train(ENDLESS, ranks=ranks, expect=REQUEUE, more=["--verbose"],
                        env={"SLURM_JOB_ID": "77", "SLURM_JOB_END_TIME": str(int(end))})
    assert time.time() < end
    assert "job 77 ends at" in done.out and "stopped before the job's end" in done.out
    last = folder.metrics().steps[-1]["step"]
    assert folder.metrics().kinds("checkpoint")[-1]["step"] == last
    folder.ztrain("verify", folder.run_folder())


# --- another world size -----------------------------------------------------------------------------------------------

def test_the_global_batch_stays_at_any_world_size(folder):
    changes = {"train": {"epochs": 4}, "train_micro_batch_size_per_gpu": None, "checkpoint": {"interval_steps": 1}}
    folder.ztrain("--config", spec_of(folder, {**changes, "run": {"name": "whole", "dir": folder.at("runs"), "seed": 7}}),
                  "--local-gpus", 2)
    steps, resume = 0, []
    for nodes in ([0, 1], [0, 1, 1, 0], [0, 0, 1], [0, 1]):
        steps += 3
        job = Job(folder, "--config", spec_of(folder, changes), "--set", f"train.max_steps={steps}", *resume,
                  nodes=nodes)
        done = job.train()
        resume = ["--resume", folder.run_folder()]
        assert "train_batch_size 12 = " in done[0].out
    whole, parts = folder.metrics("whole"), folder.metrics()
    assert [row["step"] for row in parts.steps] == list(range(1, 13))
    assert parts.losses == pytest.approx(whole.losses, abs=2e-6)
    assert [row["tokens"] for row in parts.steps] == [row["tokens"] for row in whole.steps]
    done = Job(folder, "--config", spec_of(folder, changes), *resume, nodes=[0, 0, 0, 1, 1]).train(USAGE)
    assert said_once(done, "possible world sizes: 1, 2, 3, 4, 6, 12") == 0

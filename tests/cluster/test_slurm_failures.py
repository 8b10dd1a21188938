# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with a rank, a node, the network or the step: it ends soon and everywhere, the message names the
culprit, and the run continues from its newest checkpoint as if nothing had happened."""
import os
import re
import signal
import time

import pytest

from cluster_harness import ENDLESS, LONG, PAUSE, TWO_BY_TWO, blamed
from harness import DATA, FINISHED, PEER, REQUEUE, SLOWNESS, ZTRAIN, wait_until

SECRET = {"ZTRAIN_JOB_SECRET": "a7" * 32}
KILLED = 128 + signal.SIGKILL  # srun's code is the largest of its tasks' codes
SOON = 15 * SLOWNESS  # from the failure to the end of every process
PASSED_ON = 30  # srun may wait for its node's answer (MessageTimeout, 10 s) before it passes on what ranks have said


def start(folder, mpi="pmi2", env=None, more=(), options=TWO_BY_TWO):
    """Four ranks on two nodes, training, with a whole checkpoint: the process of srun and {rank: process id}."""
    process = folder.srun(options, "--config", folder.spec(LONG), *more, mpi=mpi,
                          env={**PAUSE, **(env or {}), **(SECRET if mpi == "none" else {})})
    ranks = folder.all_ranks(4)
    folder.wait_for_step(30, process=process)
    folder.wait_for_checkpoint(process=process)
    return process, ranks


def ends_soon(folder, process, since):
    """Checks that srun and all ranks end in time; returns their output."""
    done = folder.wait(process, 30)
    folder.wait_for_none()
    assert time.monotonic() - since < SOON, done
    return done


def told_of(rank, words):
    """The first words of `ztrain why`, a pattern; the process has another number there than here, where a node is a machine."""
    return rf"Rank {rank} on \S+ \(process \d+\) {words}"


def resumes_without_loss(folder, options=TWO_BY_TWO):
    """Resumes to the end; the numbers are those of an uninterrupted run."""
    assert folder.whole_checkpoints(), "no checkpoint to resume from"
    process = folder.srun(options, "--config", folder.spec(LONG), "--resume", folder.run_folder())
    done = folder.wait(process, 90)
    assert done.code == FINISHED, done
    assert folder.metrics().numbers() == folder.reference(LONG, 4, "reference")


@pytest.mark.parametrize("victim", [0, 3])  # every place on a node: tests/program/test_nodes.py
def test_a_rank_is_killed(folder, victim):
    process, ranks = start(folder)
    began = time.monotonic()
    os.kill(ranks[victim], signal.SIGKILL)
    done = ends_soon(folder, process, began)
    assert done.code in (PEER, KILLED), done
    assert blamed(done.err) == {(victim, f"n{victim // 2}")}, done
    assert re.match(told_of(victim, "was killed"), folder.why()), folder.why()
    resumes_without_loss(folder)


@pytest.mark.parametrize("mpi, victim", [("pmix", 2), ("none", 1)])
def test_a_rank_is_killed_under_the_other_launchers(folder, mpi, victim):
    process, ranks = start(folder, mpi)
    began = time.monotonic()
    os.kill(ranks[victim], signal.SIGKILL)
    done = ends_soon(folder, process, began)
    assert done.code in (PEER, KILLED), done
    assert blamed(done.err) == {(victim, f"n{victim // 2}")}, done
    assert re.match(told_of(victim, "was killed"), folder.why()), folder.why()


@pytest.mark.parametrize("mpi, victim", [("pmi2", 0), ("pmi2", 3), ("pmix", 2), ("none", 1)])
def test_a_rank_stands_still(folder, mpi, victim):
    process, ranks = start(folder, mpi)
    began = time.monotonic()
    os.kill(ranks[victim], signal.SIGSTOP)
    done = ends_soon(folder, process, began)
    assert done.code == PEER, done
    assert blamed(done.err) == {(victim, f"n{victim // 2}")}, done
    assert re.match(told_of(victim, "stood still: its process was stopped"), folder.why()), folder.why()
    if mpi == "pmi2" and victim == 3:
        resumes_without_loss(folder)


def test_a_slow_rank_is_named(folder):
    """Rank 0 rests in each step, and the others wait for it, also those of the other node."""
    process = folder.srun(TWO_BY_TWO, "--config", folder.spec(ENDLESS), env={"ZTRAIN_TEST_PAUSE": "400"})
    folder.wait_for_step(4, process=process)
    wait_until(lambda: re.match(told_of(0, "is slow: it was the last to come in "), folder.why()), what="the slow rank's name")
    os.kill(folder.cluster.target(process), signal.SIGUSR1)
    assert folder.wait(process, 20).code == REQUEUE


@pytest.mark.parametrize("victim, code", [(1, 0), (2, 0), (3, 3), (0, 3)])
def test_a_rank_leaves_without_a_word(folder, victim, code):
    """With 0 srun notices no error, with or without -K: the other ranks end the step."""
    told = folder.at("leave")
    process, _ = start(folder, env={"ZTRAIN_TEST_LEAVE": told})
    began = time.monotonic()
    with open(told + ".new", "w", encoding="ascii") as f:
        f.write(f"{victim} {code}\n")
    os.rename(told + ".new", told)
    done = ends_soon(folder, process, began)
    assert done.code == PEER, done
    assert blamed(done.err) == {(victim, f"n{victim // 2}")}, done
    assert re.match(told_of(victim, "was killed"), folder.why()), folder.why()
    if (victim, code) == (2, 0):
        resumes_without_loss(folder)


def test_a_rank_never_arrives(folder):
    """The others give up after the start's time limit (10 s and a little for each rank) instead of waiting forever."""
    steps, spoken = [], 0
    for mpi, victim in (("pmi2", 0), ("pmi2", 3), ("pmix", 3), ("none", 0), ("none", 3)):
        program = ["sh", "-c", 'if [ "$SLURM_PROCID" = "$0" ]; then sleep 60; fi; exec "$@"', victim, ZTRAIN]
        steps.append(folder.srun(TWO_BY_TWO, "--config", folder.spec(LONG, f"{mpi}-{victim}"), mpi=mpi, program=program,
                                 env=SECRET if mpi == "none" else {}))
    for process in steps:
        done = folder.wait(process, 40)
        assert done.code not in (FINISHED, REQUEUE), done
        assert re.search(r"ztrain: error: rank \d on n\d: .* s", done.err), done
        assert done.seconds < 10 + SOON
        spoken += len(re.findall(r"^ztrain: error: ", done.err, re.M))
    assert 5 <= spoken <= 12, spoken  # one rank of each node, unless it is much ahead of the others
    folder.wait_for_none(10)


def test_a_node_is_set_down(folder):
    process, _ = start(folder)
    began = time.monotonic()
    folder.cluster.do("scontrol", "update", "nodename=n1", "state=down", "reason=test")
    done = folder.wait(process, 30)
    folder.wait_for_none(10)
    assert time.monotonic() - began < SOON
    assert "FINISHED" not in done.out and "finished:" not in done.out
    folder.cluster.resume()
    resumes_without_loss(folder)


@pytest.mark.apart
def test_a_node_loses_power(folder):
    process, _ = start(folder)
    began = time.monotonic()
    folder.cluster.power_off(1)
    wait_for_ranks_end(folder, began)
    names = wait_until(lambda: blamed(folder.said(process).err), PASSED_ON, "the final error")
    assert names <= {(2, "n1"), (3, "n1")}, folder.said(process)
    assert re.match(r"Rank [23] on n1 ", folder.why()), folder.why()
    folder.cluster.ask("scancel", "--full", *folder.cluster.ask("squeue", "-h", "-o", "%A").split())
    folder.cluster.power_on(1)
    folder.cluster.resume()
    folder.wait(process, 40)
    resumes_without_loss(folder)


@pytest.mark.apart
def test_a_link_is_cut(folder):
    process, _ = start(folder)
    began = time.monotonic()
    folder.cluster.machines.cut(1)
    try:
        wait_for_ranks_end(folder, began)
        # what the ranks on n1 have said has no way here
        names = wait_until(lambda: blamed(folder.said(process).err), PASSED_ON, "the final error")
        assert {host for _, host in names} == {"n1"}, folder.said(process)
    finally:
        folder.cluster.machines.mend(1)
    folder.wait(process, 60)
    folder.cluster.cancel_all()
    resumes_without_loss(folder)


def wait_for_ranks_end(folder, began):
    """Every rank on every node has ended in time, whether or not Slurm can reach it."""
    while left := folder.ranks():
        assert time.monotonic() - began < SOON, f"still there: {left}"
        time.sleep(0.05)


def test_scancel(folder):
    process, _ = start(folder)
    began = time.monotonic()
    folder.cluster.do("scancel", *folder.cluster.do("squeue", "-h", "-o", "%A").split())
    done = ends_soon(folder, process, began)
    assert "finished:" not in done.out
    resumes_without_loss(folder)


def test_srun_is_asked_to_end(folder):
    """SIGTERM to srun kills the tasks at once: steps since the newest checkpoint are repeated."""
    process, _ = start(folder)
    began = time.monotonic()
    os.kill(folder.cluster.target(process), signal.SIGTERM)
    done = ends_soon(folder, process, began)
    assert done.code != FINISHED, done
    resumes_without_loss(folder)


def test_srun_is_killed(folder):
    process, _ = start(folder)
    began = time.monotonic()
    os.kill(folder.cluster.target(process), signal.SIGKILL)
    process.wait()
    job = folder.cluster.ask("squeue", "-h", "-o", "%A").split()
    if job:
        folder.cluster.ask("scancel", *job)
    folder.wait_for_none(SOON)
    assert time.monotonic() - began < SOON
    resumes_without_loss(folder)


def test_usr1_to_srun(folder):
    """srun passes it on; the ranks finish the step, write a checkpoint and end with 75."""
    process, _ = start(folder)
    os.kill(folder.cluster.target(process), signal.SIGUSR1)
    done = folder.wait(process, 20)
    assert done.code == REQUEUE and "stopped on request" in done.out, done
    folder.wait_for_none()
    resumes_without_loss(folder)


def test_usr1_from_scancel(folder):
    process, _ = start(folder)
    folder.cluster.do("scancel", "--signal=USR1", *folder.cluster.do("squeue", "-h", "-o", "%A").split())
    done = folder.wait(process, 20)
    assert done.code == REQUEUE, done
    folder.wait_for_none()
    resumes_without_loss(folder)


def test_an_error_of_one_rank_ends_all_with_its_code(folder):
    """Rank 3 cannot read the data; every report is of a data error, not of a lost peer."""
    hidden = folder.at("elsewhere")
    os.mkdir(hidden)
    program = ["sh", "-c", 'if [ "$SLURM_PROCID" = 3 ]; then cd "$0"; fi; exec "$@"', hidden, ZTRAIN]
    spec = folder.spec({**LONG, "data": {"train": "train", "validation": None}})
    process = folder.srun(f"{TWO_BY_TWO} --chdir={folder.path}", "--config", spec, program=program)
    done = folder.wait(process, 30)
    assert done.code == DATA, done
    assert "rank 3 on n1: no token shard 'train'" in done.err, done
    folder.wait_for_none()

"""scripts/slurm/train.sbatch: whatever Slurm does with a job, it goes on as if nothing had been."""
import os
import re
import signal
import time

import pytest

from cluster_harness import LONG, TWO_BY_TWO, finishes, restarts, start_job as start, state, wait_for_end
from harness import FINISHED, SLOWNESS, wait_until


def test_from_the_first_step_to_the_last(folder):
    job = start(folder)
    finishes(folder, job, restarted=0)
    assert "start 1 on n[0-1]: 4 tasks, from the beginning" in folder.job_output(job)


def test_usr1_saves_and_requeues(folder):
    job = start(folder)
    folder.cluster.do("scancel", "--signal=USR1", "--batch", job)
    finishes(folder, job)
    said = folder.job_output(job)
    assert "stopped on request after step" in said and "back into the queue, restart 1" in said
    assert re.search(r"start 2 on .*: 4 tasks, resuming, newest checkpoint at step \d+", said)


def test_preemption(folder):
    """A job of higher priority wants the nodes: a checkpoint at the notice, then the queue."""
    job = start(folder, TWO_BY_TWO + " -p low")
    began = time.monotonic()
    urgent = folder.cluster.submit("-p", "main", "-N", "2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
    wait_until(lambda: not folder.ranks(), 15, "the end of the ranks")
    assert time.monotonic() - began < 15 * SLOWNESS
    assert wait_for_end(folder, urgent) == ("COMPLETED", 0)
    finishes(folder, job)


def test_requeued_by_an_administrator(folder):
    """At once, and for later: requeuehold and release."""
    job = start(folder)
    folder.cluster.do("scontrol", "requeue", job)
    wait_until(lambda: not folder.ranks(), 20, "the end of the ranks")
    wait_until(lambda: len(folder.ranks()) == 4, 40, "the restart")
    folder.cluster.do("scontrol", "requeuehold", job)
    wait_until(lambda: not folder.ranks() and state(folder, job) == "PENDING", 20, "the queue")
    assert "put back" not in folder.job_output(job)
    folder.cluster.do("scontrol", "release", job)
    finishes(folder, job, restarted=2)


def test_a_node_is_set_down(folder):
    """Slurm puts the job back into the queue by itself."""
    job = start(folder)
    folder.cluster.do("scontrol", "update", "nodename=n1", "state=down", "reason=test")
    wait_until(lambda: not folder.ranks(), 15, "the end of the ranks")
    folder.cluster.resume()
    finishes(folder, job)


def test_a_rank_is_killed(folder):
    job = start(folder)
    os.kill(folder.ranks()[3], signal.SIGKILL)
    finishes(folder, job)
    assert "rank 3" in folder.job_output(job)


@pytest.mark.nodes(4)
def test_bad_nodes_are_kept_off(folder):
    """A node that is drained while a job runs there lets it go on; the next start is elsewhere. ExcNodeList is for a job
    that waits, --exclude for a new one."""
    job = start(folder)
    assert folder.cluster.job(job)["NodeList"] == "n[0-1]"
    with pytest.raises(RuntimeError, match="no longer pending"):
        folder.cluster.do("scontrol", "update", f"JobId={job}", "ExcNodeList=n0")
    folder.cluster.do("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=test")
    folder.wait_for_step(folder.steps_done() + 10)
    assert state(folder, job) == "RUNNING" and restarts(folder, job) == 0
    folder.cluster.do("scancel", "--signal=USR1", "--batch", job)
    wait_until(lambda: state(folder, job) == "PENDING", 20, "the queue")
    folder.cluster.do("scontrol", "update", f"JobId={job}", "ExcNodeList=n0")
    wait_until(lambda: len(folder.ranks()) == 4, 40, "the next start")
    assert folder.cluster.job(job)["NodeList"] == "n[2-3]"
    finishes(folder, job)
    again = folder.sbatch(f"{TWO_BY_TWO} --exclude=n2", "--config", folder.spec(LONG))
    assert wait_for_end(folder, again) == ("COMPLETED", FINISHED), folder.job_output(again)[-3000:]
    assert folder.cluster.job(again)["NodeList"] == "n[0,3]"
    folder.cluster.resume()


@pytest.mark.nodes(4)
def test_fewer_nodes_and_more_nodes(folder):
    """The global batch and the order of samples stay: the same losses to rounding, whatever the number of ranks."""
    job = start(folder, "--nodes=2-4 --exclusive", env={"TASKS_PER_NODE": "2"})
    assert len(folder.ranks()) == 8
    folder.cluster.do("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    wait_until(lambda: len(folder.ranks()) == 6, 40, "a start on three nodes")
    step = folder.steps_done()
    folder.wait_for_step(step + 20)
    folder.cluster.resume()
    folder.cluster.do("scontrol", "requeue", job)
    wait_until(lambda: len(folder.ranks()) == 8, 40, "a start on four nodes")
    assert wait_for_end(folder, job) == ("COMPLETED", FINISHED), folder.job_output(job)[-3000:]
    expected, found = folder.reference(LONG, 2, "reference"), folder.metrics().numbers()
    assert [row["step"] for row in found] == [row["step"] for row in expected]
    for mine, theirs in zip(found, expected):
        if "loss" in mine:
            assert mine["loss"] == pytest.approx(theirs["loss"], rel=2e-3) and mine["tokens"] == theirs["tokens"], mine
    folder.wait_for_none()


def test_cancelled_is_cancelled(folder):
    job = start(folder)
    began = time.monotonic()
    folder.cluster.do("scancel", job)
    assert wait_for_end(folder, job)[0] == "CANCELLED"
    folder.wait_for_none()
    assert time.monotonic() - began < 15 * SLOWNESS
    assert restarts(folder, job) == 0

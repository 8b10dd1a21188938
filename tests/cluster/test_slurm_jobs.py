# SPDX-License-Identifier: Apache-2.0
"""scripts/slurm/train.sbatch: whatever Slurm does with a job, it continues as if nothing had happened."""
import getpass
import os
import signal
import time

from cluster_harness import ENDLESS, PAUSE, TWO_BY_TWO, finishes, restarts, start_job as start, state, wait_for_end
from harness import REQUEUE, SLOWNESS, USAGE, wait_until


def test_from_the_first_step_to_the_last(folder):
    job = start(folder)
    finishes(folder, job, restarted=0)
    assert "start 1 on n[0-1]: 4 tasks, from the beginning" in folder.job_output(job)


def test_preemption(folder):
    """A job of higher priority takes the nodes: the run writes a checkpoint at the notice and is requeued."""
    job = start(folder, TWO_BY_TWO + " -p low")
    began = time.monotonic()
    urgent = folder.cluster.submit("-p", "main", "-N", "2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
    wait_until(lambda: not folder.ranks(), 15, "the end of the ranks")
    assert time.monotonic() - began < 15 * SLOWNESS
    assert wait_for_end(folder, urgent) == ("COMPLETED", 0)
    finishes(folder, job)


def test_requeued_by_an_administrator(folder):
    """The job is requeued at once, and for later with requeuehold and release."""
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


def test_cancelled_is_cancelled(folder):
    job = start(folder)
    began = time.monotonic()
    folder.cluster.do("scancel", job)
    assert wait_for_end(folder, job)[0] == "CANCELLED"
    folder.wait_for_none()
    assert time.monotonic() - began < 15 * SLOWNESS
    assert restarts(folder, job) == 0


def test_two_jobs_on_two_nodes_in_one_folder(folder):
    """The second is refused, and the first trains on; after its end the folder is free at once."""
    spec = folder.spec(ENDLESS)
    first = folder.srun("-N 1 -n 1 -w n0", "--config", spec, env=PAUSE)
    folder.wait_for_step(25, process=first)
    second = folder.wait(folder.srun("-N 1 -n 1 -w n1", "--config", spec, "--resume", folder.run_folder()), 45)
    assert second.code == USAGE and "in use by another run (host " in second.final_error, second
    assert ", job " in second.final_error, second
    folder.wait_for_step(folder.steps_done() + 10, process=first)
    folder.cluster.do("scancel", "--signal=USR1", "--user=" + getpass.getuser())
    assert folder.wait(first, 30).code == REQUEUE
    assert not os.path.exists(os.path.join(folder.run_folder(), "owner"))
    again = folder.srun("-N 1 -n 1 -w n1", "--config", spec, "--resume", folder.run_folder(), env=PAUSE)
    folder.wait_for_step(folder.steps_done() + 5, process=again)
    assert "waiting up to" not in folder.said(again).out

# SPDX-License-Identifier: Apache-2.0
"""scripts/slurm/train.sbatch: a job's next start on other nodes, on fewer and on more; four nodes."""
import re

import pytest

from cluster_harness import LONG, TWO_BY_TWO, finishes, restarts, start_job as start, state, wait_for_end
from harness import FINISHED, wait_until

pytestmark = pytest.mark.nodes(4)


def test_usr1_saves_and_requeues_and_bad_nodes_are_kept_off(folder):
    """A node that is drained while a job runs there lets it finish; the next start is elsewhere. ExcNodeList is for a job
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
    said = folder.job_output(job)
    assert "stopped on request after step" in said and "back into the queue, restart 1" in said
    assert re.search(r"start 2 on .*: 4 tasks, resuming, newest checkpoint at step \d+", said)
    again = folder.sbatch(f"{TWO_BY_TWO} --exclude=n2", "--config", folder.spec(LONG))
    assert wait_for_end(folder, again) == ("COMPLETED", FINISHED), folder.job_output(again)[-3000:]
    assert folder.cluster.job(again)["NodeList"] == "n[0,3]"
    folder.cluster.resume()


def test_a_job_that_waits_is_given_more_nodes(folder):
    short = {**LONG, "train": {"epochs": None, "max_steps": 4}}
    job = folder.sbatch(f"{TWO_BY_TWO} --hold", "--config", folder.spec(short))
    folder.cluster.do("scontrol", "update", f"JobId={job}", "NumNodes=3-3", "NumTasks=6")
    folder.cluster.do("scontrol", "release", job)
    assert wait_for_end(folder, job) == ("COMPLETED", FINISHED), folder.job_output(job)[-3000:]
    assert "6 ranks on 3 nodes" in folder.job_output(job)


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


def test_virtual_ranks_go_on_with_what_the_job_gets(folder):
    """8 ranks on four nodes, after the loss of one 4 on two of the three, then 8 again: the bits of a run of one rank."""
    virtual = {**LONG, "train": {**LONG["train"], "virtual_ranks": 8}}
    job = start(folder, "--nodes=2-4 --exclusive", virtual, env={"TASKS_PER_NODE": "2"})
    assert len(folder.ranks()) == 8
    folder.cluster.do("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    words = "going on with 4 of 6 tasks, on 2 of 3 nodes: train.virtual_ranks 8 cannot be divided among 6"
    wait_until(lambda: words in folder.job_output(job), 40, "a start on three nodes")
    wait_until(lambda: len(folder.ranks()) == 4, 20, "four ranks")
    step = folder.steps_done()
    folder.wait_for_step(step + 20)
    folder.cluster.resume()
    folder.cluster.do("scontrol", "requeue", job)
    wait_until(lambda: len(folder.ranks()) == 8, 40, "a start on four nodes")
    assert wait_for_end(folder, job) == ("COMPLETED", FINISHED), folder.job_output(job)[-3000:]
    assert folder.metrics().numbers() == folder.reference(virtual, 1, "reference")
    assert [row["ranks"] for row in folder.metrics().kinds("resumed_from")] == [4, 8], folder.job_output(job)[-3000:]
    folder.wait_for_none()

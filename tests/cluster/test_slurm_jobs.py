"""scripts/slurm/train.sbatch: whatever Slurm does with a job, it ends as documented or goes on as if nothing had been."""
import os
import re
import signal
import time

import pytest

from cluster_harness import ENDLESS, LONG, PAUSE
from harness import CHECKPOINT, DATA, FINISHED, LLAMA, PEER, SLOWNESS, USAGE, ZTRAIN, wait_until
from slurm_lab import environment_of, marked, program_of

TWO_BY_TWO = "-N 2 --ntasks-per-node=2"


def state(folder, job):
    return folder.cluster.job(job).get("JobState", "")


def restarts(folder, job):
    return int(folder.cluster.job(job).get("Restarts", 0))


def wait_for_end(folder, job, seconds=60):
    """The job has left the queue for good; (state, exit code)."""
    def ended():
        found = folder.cluster.job(job)
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
        return found.get("JobState") in over and found
    found = wait_until(ended, seconds, f"the end of job {job}")
    return found["JobState"], int(found["ExitCode"].split(":")[0])


def start(folder, options=TWO_BY_TWO, changes=LONG, name="run", env=None, step=30):
    """A job that has done some steps."""
    job = folder.sbatch(options, "--config", folder.spec(changes, name), env={**PAUSE, **(env or {})})
    wait_until(lambda: folder.steps_done(name) >= step, 30, f"step {step}")
    return job


def finishes(folder, job, ranks=4, restarted=1):
    """The job ends well, after so many restarts, with the numbers of a run that was left alone."""
    ended = wait_for_end(folder, job)
    assert ended == ("COMPLETED", FINISHED), folder.job_output(job)[-3000:]
    assert restarts(folder, job) == restarted, folder.job_output(job)[-3000:]
    assert folder.metrics().numbers() == folder.reference(LONG, ranks, "reference")
    folder.wait_for_none()


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
    job = start(folder)
    folder.cluster.do("scontrol", "requeue", job)
    finishes(folder, job)


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


# --- what a restart does not mend -------------------------------------------------------------------------------------

def test_errors_that_would_come_again_end_the_job(folder):
    """Four jobs at a time: a bad spec, bad data, bad checkpoints, a run that never gets anywhere."""
    jobs = {}
    stage_seven = {**LONG, "zero_optimization": {"stage": 7}}
    jobs["spec"] = folder.sbatch(TWO_BY_TWO, "--config", folder.spec(stage_seven, "spec"))
    small = {"model": {"config": {**LLAMA, "vocab_size": 20}}}
    jobs["data"] = folder.sbatch(TWO_BY_TWO, "--config", folder.spec({**LONG, **small}, "data"))

    folder.train({**LONG, "train": {"epochs": None, "max_steps": 20}}, name="damaged")
    for where, _, names in os.walk(os.path.join(folder.run_folder("damaged"), "checkpoints")):
        for name in names:
            if name.endswith(".zst"):
                os.truncate(os.path.join(where, name), 100)
    jobs["checkpoint"] = folder.sbatch(TWO_BY_TWO, "--config", folder.spec(LONG, "damaged"))

    fruitless = folder.at("fruitless.sh")
    with open(fruitless, "w", encoding="utf-8") as f:
        f.write(f'#!/bin/sh\ncase "$*" in inspect*|*--dry-run*) exec {ZTRAIN} "$@" ;; esac\nexit 6\n')
    os.chmod(fruitless, 0o755)
    jobs["fruitless"] = folder.sbatch(TWO_BY_TWO, "--config", folder.spec(LONG, "fruitless"),
                                      env={"ZTRAIN": fruitless, "MAX_IDLE": "1"})

    ends = {name: wait_for_end(folder, job) for name, job in jobs.items()}
    said = {name: folder.job_output(job) for name, job in jobs.items()}
    assert ends == {"spec": ("FAILED", USAGE), "data": ("FAILED", DATA), "checkpoint": ("FAILED", CHECKPOINT),
                    "fruitless": ("FAILED", PEER)}, said
    assert {name: restarts(folder, job) for name, job in jobs.items()} == \
        {"spec": 0, "data": 0, "checkpoint": 0, "fruitless": 1}
    assert "without a checkpoint after step 0: the job ends" in said["fruitless"]
    folder.wait_for_none()


# --- signals at any time, and the time limit --------------------------------------------------------------------------

def batch_shell(folder, job):
    """The process id of the job's script once it catches USR1."""
    for pid in marked("SLURM_JOB_ID", str(job)):
        if program_of(pid) in ("slurm_script", "bash") and "SLURM_STEP_ID" not in environment_of(pid):
            with open(f"/proc/{pid}/status", encoding="ascii") as f:
                caught = next(line for line in f if line.startswith("SigCgt"))
            if int(caught.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1:
                return pid
    return None


def test_usr1_while_the_job_starts(folder):
    """At whatever moment it comes, the job is put back into the queue and finishes in its next life."""
    jobs = {}
    for delay in (0, 0.05, 0.15, 0.3, 0.6):
        name = f"after-{delay}"
        jobs[name] = folder.sbatch("-N 2 --ntasks-per-node=1", "--config", folder.spec(LONG, name), env=PAUSE)
        shell = wait_until(lambda: batch_shell(folder, jobs[name]), 20, "the script's trap")
        time.sleep(delay)
        os.kill(shell, signal.SIGUSR1)
    expected = folder.reference(LONG, 2, "reference")
    for name, job in jobs.items():
        assert wait_for_end(folder, job, 90) == ("COMPLETED", FINISHED), folder.job_output(job)[-3000:]
        assert restarts(folder, job) == 1, folder.job_output(job)[-3000:]
        assert folder.metrics(name).numbers() == expected, name
    folder.wait_for_none()


def test_time_limit(folder):
    """Two jobs at a time, a minute each. One is told by Slurm some seconds before and requeues; the other, srun alone,
    is told nothing: it knows when the time is over."""
    told = folder.sbatch("-N 2 --ntasks-per-node=1 --time=1 --signal=B:USR1@15",
                         "--config", folder.spec(ENDLESS, "told"), env=PAUSE)
    alone = folder.srun("-N 2 --ntasks-per-node=1 --time=1", "--config", folder.spec(ENDLESS, "alone"), env=PAUSE)
    done = folder.wait(alone, 75)
    assert done.code == 75, done
    assert done.seconds < 62
    assert folder.checkpoints("alone")
    folder.ztrain("verify", folder.run_folder("alone"))

    wait_until(lambda: restarts(folder, told) == 1, 30, "the restart")
    assert "stopped on request after step" in folder.job_output(told)
    step = folder.steps_done("told")
    folder.wait_for_step(step + 5, "told")
    folder.cluster.do("scancel", told)
    wait_for_end(folder, told)
    folder.wait_for_none()
    steps = [row["step"] for row in folder.metrics("told").steps]
    assert steps == list(range(1, len(steps) + 1))


def test_the_folder_of_a_run_is_found(folder):
    """The script asks --dry-run for it; names with blanks, too."""
    done = folder.ztrain("--config", folder.spec(name="a run"), "--dry-run")
    assert f"run folder: {folder.run_folder('a run')}\n" in done.out

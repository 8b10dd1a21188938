# SPDX-License-Identifier: Apache-2.0
"""scripts/slurm/train.sbatch: the ends of a job: errors that a restart does not fix, signals at any time, time limits."""
import os
import signal
import time

from cluster_harness import ENDLESS, LONG, PAUSE, TWO_BY_TWO, restarts, wait_for_end
from harness import CHECKPOINT, DATA, FINISHED, LLAMA, PEER, USAGE, ZTRAIN, wait_until
from slurm_lab import environment_of, marked, program_of


# --- what a restart does not fix -------------------------------------------------------------------------------------

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
    """Two jobs at a time, a minute each. Slurm signals one some seconds before, and it requeues; the other, srun alone,
    gets no signal: it knows when the time is over."""
    told = folder.sbatch("-N 2 --ntasks-per-node=1 --time=1 --signal=B:USR1@15",
                         "--config", folder.spec(ENDLESS, "told"), env=PAUSE)
    alone = folder.srun("-N 2 --ntasks-per-node=1 --time=1", "--config", folder.spec(ENDLESS, "alone"), env=PAUSE)
    done = folder.wait(alone, 75)
    assert done.code == 75, done
    assert done.seconds < 62
    assert folder.checkpoints("alone")
    folder.ztrain("verify", folder.run_folder("alone"))

    wait_until(lambda: restarts(folder, told) >= 1, 30, "the restart")
    assert "stopped on request after step" in folder.job_output(told)
    step = folder.steps_done("told")
    folder.wait_for_step(step + 5, "told")
    folder.cluster.do("scancel", told)
    wait_for_end(folder, told)
    folder.wait_for_none()
    steps = [row["step"] for row in folder.metrics("told").steps]
    assert steps == list(range(1, len(steps) + 1))


def test_the_folder_of_a_run_is_found(folder):
    """The script takes it from --dry-run; names may have blanks."""
    done = folder.ztrain("--config", folder.spec(name="a run"), "--dry-run")
    assert f"run folder: {folder.run_folder('a run')}\n" in done.out

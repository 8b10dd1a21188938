"""scripts/slurm/train.sbatch without a Slurm: srun, squeue and scontrol are scripts of ours. With one: tests/cluster."""
import os
import subprocess

import pytest

from harness import FINISHED, PEER, ROOT, USAGE, ZTRAIN

SCRIPT = os.path.join(ROOT, "scripts", "slurm", "train.sbatch")
COMMANDS = {
    # the ranks are a supervisor's here: the script's srun line is 'options… ztrain arguments…'
    "srun": '[ -z "$SRUN_CODE" ] || exit "$SRUN_CODE"; while [ "$1" != "$ZTRAIN" ]; do shift; done; exec "$@" --local-gpus "$SLURM_NTASKS"',
    "squeue": 'echo "${STATE:-RUNNING}"',
    "scontrol": 'echo "$*" >>"$CALLS"',
    "sleep": "exit 0",
}


@pytest.fixture
def job(folder):
    """job(tasks, spec): runs the script as a job with so many tasks."""
    programs = folder.at("programs")
    os.mkdir(programs)
    for name, body in COMMANDS.items():
        with open(os.path.join(programs, name), "w", encoding="utf-8") as f:
            f.write(f"#!/bin/sh\n{body}\n")
        os.chmod(os.path.join(programs, name), 0o755)

    def run(tasks, *arguments, env=None):
        slurm = {"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": str(tasks),
                 "SLURM_JOB_NODELIST": "n1", "ZTRAIN": ZTRAIN, "CALLS": folder.at("calls"),
                 "SLURM_JOB_END_TIME": "4000000000", "PATH": programs + os.pathsep + os.environ["PATH"], **(env or {})}
        return subprocess.run(["bash", SCRIPT, *arguments], env={**os.environ, **slurm}, cwd=folder.path,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
    return run


BATCH = {"train_batch_size": 12, "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 4}


def test_all_batch_keys_given_and_another_number_of_tasks(folder, job):
    """Accumulation adapts when the run goes on, whatever the spec said for the first number of tasks."""
    done = job(1, "--config", folder.spec({**BATCH, "train": {"epochs": 1}}))
    assert done.returncode == FINISHED, done.stdout
    done = job(2, "--config", folder.spec({**BATCH, "train": {"epochs": 2}}), env={"SLURM_RESTART_COUNT": "1"})
    assert done.returncode == FINISHED, done.stdout
    assert "not equal" not in done.stdout, done.stdout
    assert len(folder.metrics().steps) == 6


def test_a_split_that_cannot_be(folder, job):
    first = job(2, "--config", folder.spec(BATCH))
    assert first.returncode == USAGE and "train_batch_size is not equal" in first.stdout, first.stdout
    assert "set train_batch_size to 24, or gradient_accumulation_steps to 2; possible world sizes: 1" in first.stdout
    done = job(1, "--config", folder.spec({**BATCH, "train": {"epochs": 1}}))
    assert done.returncode == FINISHED, done.stdout
    done = job(3, "--config", folder.spec({**BATCH, "train": {"epochs": 2}}), env={"SLURM_RESTART_COUNT": "1"})
    assert done.returncode == USAGE and "possible world sizes: 1, 2, 4" in done.stdout, done.stdout
    assert not os.path.exists(folder.at("calls")), "put back into the queue"


def test_srun_ends_with_0_and_the_run_is_not_finished(folder, job):
    """As after the loss of a node: what counts is a checkpoint of the last step."""
    spec = folder.spec({**BATCH, "train": {"epochs": 1}})
    done = job(1, "--config", spec, env={"SRUN_CODE": "0"})
    assert done.returncode == PEER and "there is no checkpoint of the last step, 3" in done.stdout, done.stdout
    assert "requeue 17" in open(folder.at("calls"), encoding="utf-8").read()
    done = job(1, "--config", spec)
    assert done.returncode == FINISHED and "finished: the checkpoint of step 3 is there" in done.stdout, done.stdout
    done = job(1, "--config", spec, env={"SRUN_CODE": "0"})  # submitted again: it is finished
    assert done.returncode == FINISHED, done.stdout


def test_two_jobs_with_one_run(folder, job):
    """The second one leaves the folder, and the first one's record in it, alone."""
    spec = folder.spec({**BATCH, "train": {"epochs": 1}})
    assert job(1, "--config", spec).returncode == FINISHED
    record = os.path.join(folder.run_folder(), "slurm-job")
    with open(record, encoding="utf-8") as f:
        before = f.read()
    assert before.split()[0] == "17"
    for state in ("RUNNING", "PENDING"):
        done = job(1, "--config", spec, env={"SLURM_JOB_ID": "18", "STATE": state})
        assert done.returncode == USAGE and f"belongs to job 17, which is {state}" in done.stdout, done.stdout
        with open(record, encoding="utf-8") as f:
            assert f.read() == before
    done = job(1, "--config", spec, env={"SLURM_JOB_ID": "18", "STATE": "COMPLETED"})
    assert done.returncode == FINISHED, done.stdout
    with open(record, encoding="utf-8") as f:
        assert f.read().split()[0] == "18"


def test_slurm_ends_the_start_itself(folder, job):
    """Requeued by an administrator or after the loss of a node, as well as cancelled: the script does nothing."""
    done = job(1, "--config", folder.spec({**BATCH, "train": {"epochs": 1}}),
               env={"SRUN_CODE": "137", "STATE": "COMPLETING"})
    assert done.returncode == PEER, done.stdout
    assert "Slurm ends this start by itself (COMPLETING): requeued, cancelled or out of time" in done.stdout
    assert not os.path.exists(folder.at("calls")), "put back into the queue"

# SPDX-License-Identifier: Apache-2.0
"""What the tests on several machines are written with: runs under srun, sbatch and torchrun's variables, which process
is which rank, references to compare with.

All processes of a test have RUN_MARK in their environment, so that processes that it leaves on any node are found.
"""
import os
import re
import signal
import subprocess
import time

from harness import FINISHED, LLAMA, ROOT, SLOWNESS, ZTRAIN, Folder, wait_for_checkpoint, wait_until
from slurm_lab import environment_of, marked, program_of

RUN_MARK = "ZTRAIN_TEST_RUN"
TRAIN_SBATCH = os.path.join(ROOT, "scripts", "slurm", "train.sbatch")

# A global batch that 1, 2, 3, 4, 6 and 8 ranks can share.
BATCH = {"train_batch_size": 24, "train_micro_batch_size_per_gpu": 1}
# A run to be interrupted: with PAUSE it takes some seconds. It writes checkpoints to resume from, and does no evaluations.
LONG = {**BATCH, "train": {"epochs": None, "max_steps": 200}, "data": {"validation": None},
        "checkpoint": {"interval_steps": 20, "keep_last": 3}, "comm": {"timeout_seconds": 3}}
PAUSE = {"ZTRAIN_TEST_PAUSE": "40"}
TWO_BY_TWO = "-N 2 --ntasks-per-node=2"
ENDLESS = {**LONG, "train": {"epochs": None, "max_steps": 1000000}}


class ClusterFolder(Folder):
    """A test's folder whose runs are started on a cluster."""

    def __init__(self, path, preload, cluster=None):
        super().__init__(path)
        self.cluster = cluster
        # Threads that wait for others do not take the cores from them: there are more ranks than cores.
        self.environment = {RUN_MARK: self.path, "LD_PRELOAD": preload, "OMP_WAIT_POLICY": "passive", "ZTRAIN": ZTRAIN}

    def spec(self, changes=None, name="run"):
        if not os.path.exists(self.at("train.bin")):
            self.data(24 * 400)  # no epoch's end, with its checkpoint, in the runs that are interrupted
            self.data(24, seed=2, name="validation")
        return super().spec(changes, name)

    def launch(self, machine, command, env=None):
        """Starts a command on a machine; said() and wait() know it."""
        number = len(self.processes)
        with open(self.at(f"{number}.out"), "wb") as out, open(self.at(f"{number}.err"), "wb") as err:
            process = machine.popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, start_new_session=True,
                                    env={**self.environment, **(env or {})})
        process.number, process.started = number, time.monotonic()
        self.processes.append(process)
        return process

    def srun(self, options, *arguments, mpi="pmi2", env=None, program=(ZTRAIN,)):
        """Starts srun; options: "-N 2 --ntasks-per-node=2"."""
        command = ["srun", "-K", f"--mpi={mpi}", *options.split(), *program, *map(str, arguments)]
        return self.launch(self.cluster.head, command, {**self.cluster.environment, **(env or {})})

    def sbatch(self, options, *arguments, env=None):
        """Submits train.sbatch; returns the job's number. Its output: job_output()."""
        environment = {**self.environment, **(env or {})}
        assignments = ",".join(["ALL", *(f"{key}={value}" for key, value in environment.items())])
        return self.cluster.submit(f"--export={assignments}", f"--output={self.at('job-%j.out')}",
                                   f"--chdir={self.path}", *options.split(), TRAIN_SBATCH, *arguments)

    def job_output(self, job):
        try:
            with open(self.at(f"job-{job}.out"), encoding="utf-8", errors="replace") as f:
                return f.read()
        except FileNotFoundError:
            return ""

    def ranks(self):
        """{rank: process id} of this test's living ranks."""
        found = {}
        for pid in marked(RUN_MARK, self.path):
            variables = environment_of(pid)
            rank = variables.get("RANK", variables.get("SLURM_PROCID"))
            started = "SLURM_STEP_ID" in variables or "RANK" in variables  # a batch script also has SLURM_PROCID
            if rank is not None and started and program_of(pid) == "ztrain":
                found[int(rank)] = pid
        return found

    def all_ranks(self, count, seconds=20):
        return wait_until(lambda: (found := self.ranks()) and len(found) == count and found, seconds, f"{count} ranks")

    def left_behind(self):
        """What of this test is still running, on any node."""
        return {pid: program_of(pid) for pid in marked(RUN_MARK, self.path)}

    def wait_for_none(self, seconds=15):
        """No process of the test is left on any node."""
        end = time.monotonic() + seconds * SLOWNESS
        while left := self.left_behind():
            assert time.monotonic() < end, f"processes are left: {left}"
            time.sleep(0.05)

    def end_all(self):
        """Kills what is left."""
        for pid in self.left_behind():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def reference(self, changes, ranks, name):
        """The numbers of an uninterrupted run of local ranks."""
        if not os.path.exists(self.run_folder(name)):
            self.train(changes, name=name, ranks=ranks, env={"OMP_WAIT_POLICY": "passive"})
        return self.metrics(name).numbers()

    def why(self):
        """What `ztrain why` says of the run, in one line."""
        return " ".join(self.ztrain("why", self.run_folder()).out.split())

    def steps_done(self, name="run"):
        """How many steps metrics.jsonl has."""
        try:
            with open(os.path.join(self.run_folder(name), "metrics.jsonl"), "rb") as f:
                return f.read().count(b'"loss"')
        except FileNotFoundError:
            return 0

    def wait_for_step(self, step, name="run", process=None, seconds=30):
        """Waits until this many steps are done; the process must be alive until then."""
        def there():
            assert process is None or process.poll() is None, self.said(process)
            return self.steps_done(name) >= step
        wait_until(there, seconds, f"step {step}")

    def wait_for_checkpoint(self, name="run", process=None):
        """Waits until the run has a whole checkpoint, from which it resumes whatever happens to it now."""
        return wait_for_checkpoint(self, process, name=name)


def blamed(text):
    """{(rank, host)} that errors name as lost, each in the words of another rank: 'rank 1 on n0: rank 2 on n1 …'."""
    words = re.findall(r"ztrain: error: rank (\d+) on (\S+): rank (\d+) on (\S+) ", text)
    return {(int(rank), host) for speaker, _, rank, host in words if speaker != rank}


# --- jobs of train.sbatch --------------------------------------------------------------------------------------------

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


def start_job(folder, options=TWO_BY_TWO, changes=LONG, name="run", env=None, step=30):
    """A job that has done some steps and has a whole checkpoint."""
    job = folder.sbatch(options, "--config", folder.spec(changes, name), env={**PAUSE, **(env or {})})
    folder.wait_for_step(step, name)
    folder.wait_for_checkpoint(name)
    return job


def finishes(folder, job, ranks=4, restarted=1):
    """The job ends well, after this many restarts, with the numbers of an uninterrupted run."""
    ended = wait_for_end(folder, job)
    assert ended == ("COMPLETED", FINISHED), folder.job_output(job)[-3000:]
    assert restarts(folder, job) == restarted, folder.job_output(job)[-3000:]
    assert folder.metrics().numbers() == folder.reference(LONG, ranks, "reference")
    folder.wait_for_none()


__all__ = ["BATCH", "ClusterFolder", "ENDLESS", "FINISHED", "LLAMA", "LONG", "PAUSE", "TRAIN_SBATCH", "TWO_BY_TWO",
           "blamed", "finishes", "restarts", "start_job", "state", "wait_for_end"]

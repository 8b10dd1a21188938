# SPDX-License-Identifier: Apache-2.0
"""scripts/slurm/train.sbatch without a Slurm: srun, squeue and scontrol are scripts of this test. tests/cluster has a real one."""
import os
import signal
import subprocess
import time

import pytest

from harness import BadDisk, BROKEN, FINISHED, PEER, REQUEUE, ROOT, USAGE, ZTRAIN, wait_for_steps

SCRIPT = os.path.join(ROOT, "scripts", "slurm", "train.sbatch")
COMMANDS = {
    # the ranks are a supervisor's here: the script's srun line is 'options… ztrain arguments…'
    # NOTICE: Slurm's signal comes as the step begins
    "srun": 'if [ -n "$NOTICE" ]; then trap "" USR1; kill -USR1 $PPID; /bin/sleep 0.3; exit 75; fi; [ -z "$SRUN_CODE" ] || exit "$SRUN_CODE"; while [ "$1" != "$ZTRAIN" ]; do echo "srun: $1"; case $1 in --ntasks=*) tasks=${1#*=} ;; esac; shift; done; "$@" --local-gpus "$tasks"; exit "${LAST_CODE:-$?}"',
    "squeue": 'echo "${STATE:-RUNNING}"',
    # NODES: those of the partition, one a line with its state
    "scontrol": 'case "$1 $2" in "show hostnames") echo "$3" | tr , "\\n" ;; "show job") echo "JobId=17 NumNodes=1-1 Partition=main ExcNodeList=${EXCLUDED:-(null)} x" ;; *) echo "$*" >>"$CALLS" ;; esac',
    "sinfo": 'echo "$NODES"',
    "sleep": "exit 0",
}


@pytest.fixture
def job(folder):
    """job(tasks, spec): runs the script as a job with this many tasks."""
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
    """Accumulation adapts when the run continues, whatever the spec sets for the first number of tasks."""
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


@pytest.mark.parametrize("nodes, per_node, virtual, tasks, used", [
    (3, 2, 4, 4, 2), (3, 1, 4, 2, 2), (2, 3, 4, 4, 2), (3, None, 4, 2, 2), (2, 2, 4, 4, 2), (1, 4, 3, 3, 1)])
def test_virtual_ranks_and_more_tasks_than_divide_them(folder, job, nodes, per_node, virtual, tasks, used):
    """The job goes on with the most tasks that do, with the same bits, from the start and after a restart."""
    spec = {"train": {"epochs": 2, "virtual_ranks": virtual}}
    folder.train(spec, "whole")
    slurm = {"SLURM_JOB_NUM_NODES": str(nodes), **({"TASKS_PER_NODE": str(per_node)} if per_node else {})}
    got = nodes * (per_node or 1)
    words = f"going on with {tasks} of {got} tasks{f', on {used} of {nodes} nodes' if used != nodes else ''}: train.virtual_ranks " \
        f"{virtual} cannot be divided among {got}\n"
    for restarts, epochs in enumerate((1, 2)):
        changes = {"train": {**spec["train"], "epochs": epochs}}
        done = job(nodes, "--config", folder.spec(changes), env={**slurm, "SLURM_RESTART_COUNT": str(restarts)})
        assert done.returncode == FINISHED and (words in done.stdout) == (got != tasks), done.stdout
        assert f"srun: --nodes={used}\nsrun: --ntasks={tasks}\n" in done.stdout, done.stdout
        assert f"ranks: {tasks} (" in done.stdout, done.stdout
    assert folder.metrics().numbers() == folder.metrics("whole").numbers()


def test_virtual_ranks_and_another_error(folder, job):
    """Only the division is mended, and what the plan refuses then ends the job."""
    spec = folder.spec({"train": {"virtual_ranks": 4}, "train_micro_batch_size_per_gpu": 2})
    done = job(3, "--config", spec)
    assert done.returncode == USAGE and "going on with 2 of 3 tasks" in done.stdout, done.stdout
    assert "train_batch_size" in done.stdout and not calls(folder), done.stdout


def test_more_tasks_than_a_supervisor_starts(folder, job):
    """A job of 65 tasks and more is planned all the same; here its ranks are a supervisor's, which refuses them."""
    folder.spec()
    folder.data(140)
    done = job(66, "--config", folder.spec({"train_batch_size": 132}))
    assert done.returncode == USAGE and "66 tasks, from the beginning" in done.stdout, done.stdout


def test_srun_ends_with_0_and_the_run_is_not_finished(folder, job):
    """This happens after the loss of a node; only a checkpoint of the last step counts as the end."""
    spec = folder.spec({**BATCH, "train": {"epochs": 1}})
    done = job(1, "--config", spec, env={"SRUN_CODE": "0"})
    assert done.returncode == PEER and "there is no valid checkpoint of the last step, 3" in done.stdout, done.stdout
    assert "requeue 17" in open(folder.at("calls"), encoding="utf-8").read()
    done = job(1, "--config", spec)
    assert done.returncode == FINISHED and "finished: the checkpoint of step 3 is there" in done.stdout, done.stdout
    done = job(1, "--config", spec, env={"SRUN_CODE": "0"})  # submitted again: it is finished
    assert done.returncode == FINISHED, done.stdout


def test_srun_ends_with_0_and_the_last_evaluation_is_to_be_done(folder, job):
    folder.spec()
    folder.data(600, seed=3, name="much")
    disk = BadDisk(folder)
    disk.fails("pread slow much.bin")  # the evaluation takes seconds
    spec = folder.spec({**BATCH, "train": {"epochs": 1}, "data": {"validation": folder.at("much")}})
    process = folder.start("--config", spec, env=disk.env)
    wait_for_steps(folder, process, 3)
    process.send_signal(signal.SIGTERM)
    assert folder.wait(process).code == REQUEUE
    assert "tokens, before its evaluation\n" in folder.ztrain("inspect", folder.run_folder()).out
    done = job(1, "--config", spec, env={"SRUN_CODE": "0"})
    assert done.returncode == PEER and "of the last step, 3, but one before its evaluation" in done.stdout, done.stdout
    done = job(1, "--config", spec)
    assert done.returncode == FINISHED and "finished: the checkpoint of step 3 is there" in done.stdout, done.stdout
    assert len(folder.metrics().evaluations) == 1 and "before" not in folder.ztrain("inspect", folder.run_folder()).out


def test_a_run_that_ends_early_is_finished(folder, job):
    spec = folder.spec({**BATCH, "train": {"epochs": 2, "eval_interval_steps": 1,
                                           "early_stopping": {"patience": 1, "min_delta": 100}}})
    for again in (False, True):
        done = job(1, "--config", spec)
        assert done.returncode == FINISHED, done.stdout
        assert "finished: the checkpoint of step 2 is there; the run has ended early: eval_loss has not improved on" \
            in done.stdout, done.stdout
        assert ("nothing to do: the run has ended early" in done.stdout) == again


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
    """If it was requeued by an administrator or after the loss of a node, or cancelled, the script does nothing."""
    done = job(1, "--config", folder.spec({**BATCH, "train": {"epochs": 1}}),
               env={"SRUN_CODE": "137", "STATE": "COMPLETING"})
    assert done.returncode == PEER, done.stdout
    assert "Slurm ends this start by itself (COMPLETING): requeued, cancelled or out of time" in done.stdout
    assert not os.path.exists(folder.at("calls")), "put back into the queue"


ONE_EPOCH = {**BATCH, "train": {"epochs": 1}}


def calls(folder):
    if not os.path.exists(folder.at("calls")):
        return ""
    with open(folder.at("calls"), encoding="utf-8") as f:
        return f.read()


def test_srun_does_not_get_ztrain_going(folder, job):
    """A first start ends the job; a later one, which may have got a bad node, counts as one without a checkpoint."""
    spec = folder.spec(ONE_EPOCH)
    for code in (1, 126, 127):
        done = job(1, "--config", spec, env={"SRUN_CODE": str(code)})
        assert done.returncode == code and "was lost" not in done.stdout, done.stdout
        assert f"srun did not start ztrain (it ended with {code}), which a restart does not fix" in done.stdout
    assert not calls(folder), "put back into the queue"
    done = job(1, "--config", spec, env={"SRUN_CODE": "1", "SLURM_RESTART_COUNT": "1"})
    assert done.returncode == 1 and "back into the queue, restart 2" in done.stdout, done.stdout
    # the same code after ztrain has begun
    os.remove(folder.at("calls"))
    for epochs in (1, 2):  # from the beginning, and resumed
        done = job(1, "--config", folder.spec({**BATCH, "train": {"epochs": epochs}}), env={"LAST_CODE": "1"})
        assert done.returncode == PEER and "a rank or a node was lost (srun ended with 1)" in done.stdout, done.stdout
    assert "requeue 17" in calls(folder)


def broken(folder, host, words, ended=""):
    """The log of a rank whose GPU or memory has failed, and an older word about another node."""
    os.makedirs(os.path.join(folder.run_folder(), "log"), exist_ok=True)
    with open(os.path.join(folder.run_folder(), "log", "rank-00001.log"), "w", encoding="utf-8") as f:
        f.write("2001-01-01T00:00:00.000Z ztrain: error: rank 1 on n3: GPU 0 (H100): a copy: ECC\n"
                f"2999-01-01T00:00:00.000Z ztrain: error: rank 1 on {host}{ended}: {words}\n"
                f"2999-01-01T00:00:00.000Z ztrain: error: rank 0 on n1 has another run spec\n")


@pytest.mark.parametrize("excluded, nodes, words, update", [
    ("(null)", "n1 mix\nn2 mix\nn3 idle\nn4 drain", "the job stays off n2", "update JobId=17 ExcNodeList=n2\n"),
    ("n4", "n1 mix\nn2 mix\nn3 idle\nn4 idle", "the job stays off n2,n4", "update JobId=17 ExcNodeList=n2,n4\n"),
    ("(null)", "n2 alloc\nn3 down*", "warning: the job may return to n2, whose GPU or memory failed: only 0 other nodes", ""),
])
def test_a_node_whose_gpu_failed(folder, job, excluded, nodes, words, update):
    spec = folder.spec(ONE_EPOCH)
    broken(folder, "n2.cluster.example", "step 4: silent corruption: its gradients of wte" if excluded == "n4" else
           "GPU 0 (H100): a copy: ECC")
    done = job(1, "--config", spec, env={"SRUN_CODE": "8", "SLURM_JOB_NODELIST": "n1,n2", "EXCLUDED": excluded,
                                         "NODES": nodes})
    assert done.returncode == BROKEN and "a GPU, its driver or memory failed on n2; back into the queue" in done.stdout, done
    assert words in done.stdout, done.stdout
    assert calls(folder).startswith("requeue 17\n" + update) and calls(folder).count("update") == 3 * bool(update)


ILLEGAL = "GPU 0 (H100): a copy: an illegal memory access was encountered (cudaErrorIllegalAddress): "
MISALIGNED = "GPU 0 (H100): a copy: misaligned address (cudaErrorMisalignedAddress): "
SOFTWARE, WRONG, XID = ("a fault of software, not of this node: NVML", "the GPU is broken: its self-test in a new process fails",
                        "the GPU is broken: NVML reports Xid 79")
NCCL = "NCCL: an all-gather: unhandled cuda error: Cuda failure 700 'an illegal memory access was encountered': "
ONE = "a fault of software, not of a node: work on a GPU of n2 failed with 'an illegal memory access was encountered'; back"
BOTH = "software is at fault, not the nodes: GPUs of n1,n2 failed with 'an illegal memory access was encountered'; hint: report"


@pytest.mark.parametrize("first, second, code, words, update", [
    (None, ILLEGAL + SOFTWARE, 6, ONE, ""),
    (None, ILLEGAL + WRONG, 8, "failed on n2; back", "ExcNodeList=n2\n"),
    (ILLEGAL + SOFTWARE, ILLEGAL + SOFTWARE, 6, BOTH, ""),
    (ILLEGAL + WRONG, NCCL + WRONG, 8, BOTH, "ExcNodeList=\n"),  # n1, which the first start had left out, may return
    (ILLEGAL + XID, ILLEGAL + XID, 8, "failed on n2; back", "ExcNodeList=n2,n1\n"),
    (ILLEGAL + WRONG, MISALIGNED + WRONG, 8, "failed on n2; back", "ExcNodeList=n2,n1\n"),
], ids=["software", "self-test", "software-twice", "self-test-twice", "xid-twice", "another-fault"])
def test_whose_fault(folder, job, first, second, code, words, update):
    """Two nodes with one fault, for which NVML has no reason, are not left out, even if their self-tests have failed."""
    spec, excluded = folder.spec(ONE_EPOCH), "(null)"
    env = {"SRUN_CODE": str(code), "SLURM_JOB_NODELIST": "n1,n2", "NODES": "n1 mix\nn2 mix\nn3 idle\nn4 idle", "MAX_IDLE": "9"}
    if first:
        broken(folder, "n1", first)
        job(1, "--config", spec, env=env)
        excluded = "n1" if "ExcNodeList=n1\n" in calls(folder) else excluded
        assert (excluded == "n1") == (code == 8), calls(folder)
        os.remove(folder.at("calls"))
    broken(folder, "n2", second, " ended")
    done = job(1, "--config", spec, env={**env, "EXCLUDED": excluded, "SLURM_RESTART_COUNT": str(int(bool(first)))})
    assert done.returncode == code and words in done.stdout, done.stdout
    assert calls(folder).startswith("requeue 17\n" + ("update JobId=17 " + update) * bool(update)), calls(folder)
    assert calls(folder).count("update") == 3 * bool(update), calls(folder)


def test_the_limit_of_idle_starts(folder, job):
    spec = folder.spec(ONE_EPOCH)
    done = job(1, "--config", spec, env={"SRUN_CODE": "6", "MAX_IDLE": "0"})
    assert done.returncode == PEER and " 1 start in a row without a checkpoint after step 0" in done.stdout, done.stdout
    assert not calls(folder)
    job(1, "--config", spec, env={"SRUN_CODE": "6", "MAX_IDLE": "1"})
    done = job(1, "--config", spec, env={"SRUN_CODE": "6", "MAX_IDLE": "1", "SLURM_RESTART_COUNT": "1"})
    assert done.returncode == PEER and " 2 starts in a row without a checkpoint after step 0" in done.stdout, done.stdout


def test_what_the_script_refuses(folder, job):
    spec = folder.spec(ONE_EPOCH)
    for options in (["--resume", folder.run_folder()], [f"--resume={folder.run_folder()}"]):
        done = job(1, "--config", spec, *options)
        assert done.returncode == USAGE and "--resume is set by this script" in done.stdout, done.stdout
    done = job(1, "--config", spec, env={"ZTRAIN": folder.at("nothing")})
    assert done.returncode == 127 and f"no program '{folder.at('nothing')}' on" in done.stdout, done.stdout
    assert "hint: ZTRAIN=/path/to/ztrain" in done.stdout
    assert not os.path.exists(folder.run_folder())


def test_left_over_variables_of_a_rank(folder, job):
    done = job(1, "--config", folder.spec(ONE_EPOCH), env={"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"})
    assert done.returncode == FINISHED, done.stdout


def test_the_last_checkpoint(folder, job):
    """With a checkpoint past the last step, or a damaged one, the script names it; it accepts only a valid one."""
    assert job(1, "--config", folder.spec(BATCH)).returncode == FINISHED
    done = job(1, "--config", folder.spec({**BATCH, "train": {"epochs": None, "max_steps": 4}}))
    assert done.returncode == FINISHED, done.stdout
    assert "finished: the checkpoint of step 6 is there; the spec's last step is 4" in done.stdout, done.stdout
    newest = os.path.join(folder.run_folder(), "checkpoints", folder.checkpoints()[-1])
    with open(os.path.join(newest, "rank-00000.zst"), "r+b") as f:
        f.seek(200)
        f.write(b"damaged")
    done = job(1, "--config", folder.spec(BATCH), env={"SRUN_CODE": "0"})
    assert done.returncode == PEER and "there is no valid checkpoint of the last step, 6" in done.stdout, done.stdout


def test_a_notice_as_long_as_the_time_limit(folder, job):
    spec = folder.spec({**BATCH, "train": {"epochs": 1000}})
    for left, warned in ((110, True), (36000, False)):
        done = job(1, "--config", spec, env={"NOTICE": "1", "SLURM_JOB_END_TIME": str(int(time.time()) + left)})
        assert "the step is asked for a checkpoint" in done.stdout, done.stdout
        assert done.stdout.count("hint: a longer --time, or a shorter notice") == warned, done.stdout


def test_after_a_resume_by_hand_from_further_back(folder, job):
    """A resume by hand ended before its first checkpoint: the job continues from there, not on the history that was left."""
    folder.train({**ONE_EPOCH, "checkpoint": {"interval_steps": 1}})
    first = os.path.join(folder.run_folder(), "checkpoints", "step-00000001")
    lower = {"optimizer": {"params": {"lr": 1e-3}}}
    folder.train({**BATCH, **lower, "train": {"max_steps": 1}}, more=["--resume", first])
    done = job(1, "--config", folder.spec({**ONE_EPOCH, **lower}))
    assert done.returncode == FINISHED and "resuming, newest checkpoint at step 1 " in done.stdout, done.stdout
    assert [(row["step"], row["lr"]) for row in folder.metrics().steps] == [(1, 3e-3), (2, 1e-3), (3, 1e-3)]

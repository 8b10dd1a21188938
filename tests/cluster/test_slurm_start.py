# SPDX-License-Identifier: Apache-2.0
"""srun ztrain: ranks found through each of Slurm's ways, and the same numbers as local ranks, bit for bit."""
import os
import re
import subprocess
import time

import pytest

from cluster_harness import BATCH
from harness import FINISHED, USAGE, ZTRAIN

SECRET = "5f" * 32
SHORT = {**BATCH, "train": {"epochs": None, "max_steps": 4}, "comm": {"timeout_seconds": 10}}


def run_and_compare(folder, options, ranks, changes=SHORT, mpi="pmi2", name="run"):
    """Trains under srun; the numbers must be those of as many local ranks. Returns its output."""
    expected = folder.reference(changes, ranks, f"{name}-reference")
    secret = {"ZTRAIN_JOB_SECRET": SECRET} if mpi == "none" else {}
    process = folder.srun(options, "--config", folder.spec(changes, name), mpi=mpi, env=secret)
    done = folder.wait(process, 60)
    assert done.code == FINISHED, done
    assert folder.metrics(name).numbers() == expected
    folder.wait_for_none()
    return done


LAYOUTS = [pytest.param(options, ranks, marks=pytest.mark.nodes(nodes), id=f"{nodes}-nodes-{ranks}-ranks")
           for nodes, options, ranks in [(2, "-N 2 --ntasks-per-node=1", 2), (2, "-N 2 --ntasks-per-node=2", 4),
                                         (2, "-N 2 --ntasks-per-node=4", 8), (4, "-N 4 --ntasks-per-node=1", 4),
                                         (4, "-N 4 --ntasks-per-node=2", 8), (4, "-N 2 --ntasks-per-node=1", 2)]]


@pytest.mark.parametrize("mpi", ["pmi2", "pmix", "none"])
@pytest.mark.parametrize("options, ranks", LAYOUTS)
def test_every_launcher_on_every_layout(folder, options, ranks, mpi):
    done = run_and_compare(folder, options, ranks, {**SHORT, "zero_optimization": {"stage": 3}}, mpi)
    # The choice is printed.
    said = re.search(r"^ranks: (\d+) \((.*?)\);", done.out, re.M)
    assert said and int(said[1]) == ranks, done
    assert f"srun --mpi={mpi}" in said[2], done


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_every_stage(folder, stage):
    run_and_compare(folder, "-N 2 --ntasks-per-node=2", 4, {**SHORT, "zero_optimization": {"stage": stage}})


@pytest.mark.parametrize("options, ranks", [("-N 2 -n 4 --distribution=cyclic", 4), ("-N 1 -n 3", 3),
                                            ("-N 2 -n 3 --distribution=plane=2", 3)],
                         ids=["alternating", "one-node", "unequal"])
def test_where_the_ranks_are_changes_no_bit(folder, options, ranks):
    run_and_compare(folder, options, ranks, {**SHORT, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}})


def test_bytes_sent_are_those_of_theory(folder):
    done = run_and_compare(folder, "-N 2 --ntasks-per-node=2", 4, {**SHORT, "zero_optimization": {"stage": 3}})
    counted = re.findall(r"(gathered|reduced) (\d+) bytes \(theory (\d+)\)", done.out)
    assert len(counted) >= 2 and all(count == theory for _, count, theory in counted), done


def test_sixty_four_ranks_start_quickly(folder):
    changes = {**BATCH, "train_batch_size": 64, "train": {"epochs": None, "max_steps": 1},
               "data": {"validation": None}, "zero_optimization": {"stage": 1}}
    began = time.monotonic()
    process = folder.srun("-N 2 --ntasks-per-node=32", "--config", folder.spec(changes))
    folder.wait_for_step(1, process=process, seconds=20)
    assert time.monotonic() - began < 20
    assert folder.wait(process, 60).code == FINISHED


# --- what cannot be right is refused, and the hint is the srun line that is -------------------------------------------

def test_ranks_that_do_not_know_of_each_other(folder):
    """Under --mpi=none every task would be a lone rank 0: without the job's secret that is an error."""
    done = folder.wait(folder.srun("-N 2 --ntasks-per-node=1", "--config", folder.spec(SHORT), mpi="none"), 30)
    assert done.code == USAGE, done
    assert "ZTRAIN_JOB_SECRET" in done.err and "srun --mpi=pmi2" in done.err
    assert not os.path.exists(os.path.join(folder.run_folder(), "metrics.jsonl"))
    folder.wait_for_none()


@pytest.mark.parametrize("stale", ["PMI_FD=77 PMI_RANK=0 PMI_SIZE=2", "PMI_FD=77"],
                         ids=["of-another-step", "alone"])
def test_a_stale_pmi_fd(folder, stale):
    """PMI_FD is inherited from a process that has long ended, say through an interactive shell in a step."""
    command = f"{stale} exec {ZTRAIN} --config {folder.spec(SHORT)}"
    done = folder.wait(folder.srun("-N 1 -n 1", "-c", command, program=["sh"], mpi="none"), 30)
    assert done.code == USAGE, done
    assert "PMI_" in done.err and "srun --mpi=pmi2" in done.err


TRACES = ["PMI_FD", "PMI_RANK", "PMI_SIZE", "PMIX_RANK", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS",
          "SLURM_STEP_TASKS_PER_NODE", "SLURM_GTIDS"]


@pytest.mark.parametrize("mpi", ["pmi2", "pmix", "none"])
def test_half_of_a_steps_environment(folder, mpi):
    """While there is a trace of a step with two tasks, none of them takes itself for a rank alone."""
    command = f"env -0 >{folder.at('env')}.$SLURM_PROCID"
    done = folder.wait(folder.srun("-N 1 -n 2", "-c", command, program=["sh"], mpi=mpi), 30)
    assert done.code == 0, done
    for rank in range(2):
        with open(folder.at(f"env.{rank}"), encoding="utf-8") as f:
            step = dict(entry.split("=", 1) for entry in f.read().split("\0") if "=" in entry)
        step.pop("LD_PRELOAD")
        traces = [name for name in TRACES if name in step]
        assert len(traces) >= 4, step
        numbers = [*traces, "PMI_JOBID", "PMIX_NAMESPACE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_NPROCS",
                   "SLURM_LOCALID"]
        for gone in [*([name] for name in traces), *([n for n in numbers if n != name] for name in traces)]:
            left = {name: value for name, value in step.items() if name not in gone}
            said = subprocess.run([ZTRAIN, "doctor"], env=left, capture_output=True, text=True, check=False).stdout
            ranks = re.search(r"^ *ranks +(.*)$", said, re.M)
            assert ranks and re.match(rf"refused: |this is rank {rank} of 2", ranks[1]), (gone, said)


def test_a_task_without_its_numbers(folder):
    """A script between srun and ztrain has unset them."""
    command = f"unset SLURM_PROCID SLURM_NTASKS PMI_FD PMI_RANK PMI_SIZE; exec {ZTRAIN} --config {folder.spec(SHORT)}"
    done = folder.wait(folder.srun("-N 1 -n 2", "-c", command, program=["sh"]), 30)
    assert done.code == USAGE, done
    assert "SLURM_STEP_NUM_TASKS is set and SLURM_PROCID is not" in done.err, done
    assert "srun --mpi=pmi2 -n 2" in done.err and not os.path.exists(folder.run_folder()), done


def test_variables_of_which_some_fit(folder):
    """RANK=0 contradicts srun on three of four ranks; they send the error to the one that it does not."""
    process = folder.srun("-N 2 --ntasks-per-node=2", "--config", folder.spec(SHORT),
                          env={"RANK": "0", "WORLD_SIZE": "4"})
    done = folder.wait(process, 30)
    assert done.code == USAGE, done
    assert "the environment contradicts itself: RANK=0, WORLD_SIZE=4, but" in done.err
    assert not os.path.exists(folder.run_folder()), done


# --- said once, by a rank that has a name -----------------------------------------------------------------------------

def errors(done):
    return re.findall(r"^ztrain: error: (.*)$", done.err, re.M)


@pytest.mark.apart
@pytest.mark.parametrize("mpi, name, codes", [("pmi2", "libpmi2.so.0", [USAGE]),
                                              ("pmix", "libpmix.so.2", [USAGE, 128 + 9, 128 + 15])])
def test_a_library_that_one_node_lacks(folder, mpi, name, codes):
    """The others learn of it through PMI-2; PMIx has no way for that, so srun ends them."""
    lacking = folder.at("lacking")
    os.mkdir(lacking)
    with open(os.path.join(lacking, name), "w", encoding="ascii") as f:
        f.write("no library")
    command = f'[ $SLURM_NODEID = 0 ] || export LD_LIBRARY_PATH={lacking}; exec "$@"'
    done = folder.wait(folder.srun("-N 2 --ntasks-per-node=2", "-c", command, "sh", ZTRAIN, "--config",
                                   folder.spec(SHORT), program=["sh"], mpi=mpi), 40)
    assert done.code in codes, done
    assert len(errors(done)) == 1, done
    assert re.search(rf"^ztrain: error: rank [23] on n1: cannot open {name}", done.err, re.M), done
    folder.wait_for_none()


def test_an_interface_that_no_node_has(folder):
    """All ranks find it out before they have met: one prints it."""
    done = folder.wait(folder.srun("-N 2 --ntasks-per-node=2", "--config", folder.spec(SHORT), "--set",
                                   "comm.interface=none0"), 30)
    assert done.code == USAGE and len(errors(done)) == 1 and "rank 0 on" in done.err and "none0" in done.err, done


@pytest.mark.apart
def test_a_network_that_does_not_join_the_nodes(folder):
    """docker0 is there on both and joins no machines: one rank of each node prints so, in addresses that people know."""
    done = folder.wait(folder.srun("-N 2 --ntasks-per-node=2", "--config", folder.spec(SHORT), "--set",
                                   "comm.interface=docker0"), 30)
    assert done.code == USAGE and len(errors(done)) == 2, done
    assert all("(172.17.0.1/16) and node" in error for error in errors(done)), done


def test_a_batch_script_is_not_a_rank(folder):
    """SLURM_PROCID, SLURM_NTASKS, … are set there as well. Without srun, ztrain trains alone only if it is asked to."""
    script, command = folder.at("alone.sh"), f"{ZTRAIN} --config {folder.spec(SHORT)}"
    with open(script, "w", encoding="utf-8") as f:
        f.write(f"#!/bin/sh\n{command} --dry-run || exit 1\n{command}\necho code $?\n"
                f"{command} --local-gpus 1 && touch {folder.at('done')}\n")
    output = f"--output={folder.at('job-%j.out')}"
    job = folder.cluster.submit("--wait", "-N", "2", "--ntasks-per-node=2", output, script)
    said = folder.job_output(job)
    assert os.path.exists(folder.at("done")), said
    assert "code 2\n" in said and "hint: srun --mpi=pmi2 -N 2 --ntasks-per-node=2 ztrain" in said, said
    assert folder.metrics().numbers() == folder.reference(SHORT, 1, "reference")


def test_local_ranks_inside_a_step(folder):
    """Two of two nodes with separate local ranks would be two runs in one folder."""
    process = folder.srun("-N 2 --ntasks-per-node=1", "--config", folder.spec(SHORT), "--local-gpus", 2)
    done = folder.wait(process, 30)
    assert done.code == USAGE, done
    assert "--local-gpus" in done.err


def test_a_rank_that_ends_late(folder):
    """All fail together; srun -K terminates the later one, which still ends with the common code."""
    source, late = folder.at("late.c"), folder.at("late.so")
    with open(source, "w", encoding="utf-8") as f:
        f.write("#include <unistd.h>\n"
                "__attribute__((destructor)) static void late(void) { for (int i = 0; i < 20; i++) usleep(100000); }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", late, source], check=True)
    command = f"[ $SLURM_PROCID = 0 ] || export LD_PRELOAD={late}; exec {ZTRAIN} --config {folder.spec(SHORT)} --world 2"
    done = folder.wait(folder.srun("-N 2 --ntasks-per-node=1", "-c", command, program=["sh"]), 30)
    assert done.code == USAGE, done

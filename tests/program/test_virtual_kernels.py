# SPDX-License-Identifier: Apache-2.0
"""With train.virtual_ranks the CPU's kernels follow from the CPU. A run that cannot keep them is refused, or says so in its
metrics."""
import shutil

import pytest

from harness import FINISHED, USAGE, Job, cpu_levels

pytestmark = pytest.mark.long

VIRTUAL = {"train": {"virtual_ranks": 2}}
STOP = ["train.max_steps=3", "train.epochs=null"]
ISA = "ZTRAIN_CPU_ISA"


@pytest.fixture(name="two")
def two_levels():
    """Two levels of this CPU, the lower first."""
    has = cpu_levels()
    if len(has) == 1:
        pytest.skip("this CPU has one level of instruction sets only")
    return has[-2:]


def first_steps(folder, level):
    """A run of one rank that stops after three steps, and the same without a stop."""
    folder.train(VIRTUAL, "whole", env={ISA: level})
    folder.train(VIRTUAL, "run", env={ISA: level}, sets=STOP)


def resume(folder, sets=(), expect=FINISHED, more=(), **env):
    settings = [word for setting in sets for word in ("--set", setting)]
    return folder.ztrain("--config", folder.spec(VIRTUAL, "run"), "--verbose", "--resume", folder.run_folder(), *settings, *more,
                         expect=expect, env=env)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_better_cpu_keeps_the_kernels(folder, two, ranks):
    first_steps(folder, two[0])
    done = resume(folder, more=["--local-gpus", ranks])
    assert f"the run continues with the {two[0]} kernels that it began with; this CPU has {two[1]}" in done.out, done
    assert "hint: ZTRAIN_CPU_ISA" not in done.out and "other bits" not in done.out
    assert folder.metrics().numbers() == folder.metrics("whole").numbers()
    assert not folder.metrics().kinds("kernels_changed")


def test_another_cpu_is_refused(folder, two):
    """An explicit level is another CPU: without these instructions, or with others than the run's."""
    for before, now in [two, two[::-1]]:
        first_steps(folder, before)
        done = resume(folder, expect=USAGE, **{ISA: now})
        assert "with train.virtual_ranks a run keeps its kernels: this one began on " in done.final_error, done
        assert f"(isa: {before}, now {now}" in done.final_error and "hint: train.virtual_ranks_strict: false continues" in done.final_error
        assert len(folder.metrics().steps) == 3 and not folder.metrics().kinds("resumed_from")
        folder.ztrain("--config", folder.spec(VIRTUAL, "run"), "--resume", folder.run_folder(), env={ISA: before})
        assert folder.metrics().numbers() == folder.metrics("whole").numbers()
        for name in ("run", "whole"):
            shutil.rmtree(folder.run_folder(name))


def test_another_cpu_goes_on_if_it_may(folder, two):
    low, high = two
    first_steps(folder, high)
    done = resume(folder, ["train.virtual_ranks_strict=false"], **{ISA: low})
    assert f"computed with other kernels or libraries (isa: {high}, now {low}" in done.out, done
    line, = folder.metrics().kinds("kernels_changed")
    assert line["kernels_changed"].startswith(f"isa: {high}, now {low}") and line["step"] == 3, line
    assert folder.metrics().numbers() != folder.metrics("whole").numbers()
    assert "finished, step 6 of 6" in folder.ztrain("report", folder.run_folder()).out
    resume(folder, ["train.epochs=3"], **{ISA: low})  # the kernels of the last checkpoint
    assert len(folder.metrics().kinds("kernels_changed")) == 1


def test_a_rank_on_another_cpu_is_refused(folder, two):
    low, high = two
    first_steps(folder, high)
    job = Job(folder, "--config", folder.spec(VIRTUAL, "run"), "--resume", folder.run_folder(), nodes=[0, 1],
              env_of={0: {ISA: ""}, 1: {ISA: low}})
    first, _ = job.train(USAGE)
    assert f"all ranks compute with {low} kernels instead of {high}" in first.err and "rank 1 on " in first.err, first
    assert f"(isa: {high}, now {low}" in first.final_error, first


def test_new_runs_of_unlike_ranks_record_what_all_have(folder, two):
    low, high = two
    Job(folder, "--config", folder.spec(VIRTUAL, "run"), nodes=[0, 1], env_of={0: {ISA: high}, 1: {ISA: low}}).train()
    folder.train(VIRTUAL, "low", ranks=2, env={ISA: low})
    assert folder.metrics().numbers() == folder.metrics("low").numbers()
    assert f'isa: "{low}"' in folder.ztrain("inspect", folder.run_folder()).out


def test_bf16_is_multiplied_by_the_cpus_type(folder):
    """Nothing is measured: whatever the load, the instruction is the same."""
    with open("/proc/cpuinfo", encoding="ascii") as file:
        flags = file.read().split()
    dot = "avx512_bf16" in flags and "amx_bf16" not in flags
    done = folder.train({**VIRTUAL, "bf16": {"enabled": True}}, sets=STOP, env={"ZTRAIN_CPU_BF16": ""})
    record = folder.ztrain("inspect", folder.run_folder()).out
    assert f'bf16_products: "{"dot" if dot else "widen"}"' in record, done

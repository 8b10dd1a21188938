# SPDX-License-Identifier: Apache-2.0
"""With train.virtual_ranks no timing chooses a GPU's kernels: new runs agree whatever is faster today, at any number of ranks, at
any stage and with any policy of recomputation. A run that cannot keep its kernels is refused, or says so in its metrics."""
import os
import shutil

import pytest

import harness
from harness import DEVICE, FINISHED, GPT2, USAGE, Job
import test_gemm_trial
import test_swiglu
from test_gemm_trial import FUSED, UNFUSED, UNTIMED

emulated = test_swiglu.emulated  # the fixture: this GPU, without a self-test, and a folder for choices
EPILOGUE_FIELD, WAY_FIELD, SM_FIELD = test_gemm_trial.EPILOGUE_FIELD, test_gemm_trial.WAY_FIELD, 16
ENGINE = 2  # word of a choice of attention
ORDINARY, SECOND = 3, 4  # engines of the emulated cuDNN
MODELS = {"gpt2": {**GPT2, "n_embd": 16, "n_head": 2, "n_layer": 1, "n_positions": 8}, "llama": test_swiglu.LLAMA}
FAST, SLOW = ({f"ZTRAIN_EMULATION_{what}": word for what in ("EPILOGUES", "ENGINE", "SWIGLU")} for word in ("fast", "slow"))


def spec_of(folder, name, model="gpt2", changes=None):
    base = {"model": {"config": MODELS[model]}, "data": {"validation": None, "seq_length": 8}, "bf16": {"enabled": True},
            "train_batch_size": 4, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1},
            "train": {"epochs": None, "max_steps": 2, "device": "cuda", "virtual_ranks": 2}}
    return folder.spec(harness.merged(base, changes or {}), name)


def kernels(folder, name):
    """The kernels in the run's folder: lines of products and of attention."""
    with open(os.path.join(folder.run_folder(name), "kernels-emulated-GPU.txt"), encoding="utf-8") as f:
        return [line.split() for line in f if line.startswith(("gemm ", "attention "))]


def trained(folder, name, model="gpt2", changes=None, ranks=1, more=(), expect=FINISHED, **env):
    """What a run computed, with which kernels, and what it said."""
    done = folder.ztrain("--config", spec_of(folder, name, model, changes), "--local-gpus", ranks, *more, expect=expect,
                         env={"ZTRAIN_EMULATION_GPUS": "2", **env})
    if expect != FINISHED:
        return None, None, done
    chosen = kernels(folder, name)
    assert "measured " not in done.out and {line[-2] for line in chosen} == {"0.00"}, done  # microseconds
    return folder.metrics(name).numbers(), sorted(chosen), done


@pytest.mark.parametrize("model", MODELS)
def test_what_is_faster_decides_nothing(folder, tmp_path, monkeypatch, model):
    first, chosen, _ = trained(folder, "first", model, **FAST)
    ways = {int(line[EPILOGUE_FIELD]): int(line[WAY_FIELD]) for line in chosen if line[0] == "gemm"}
    assert ways == ({0: UNTIMED} if model == "llama" else {0: UNTIMED, 1: FUSED, 3: FUSED, 4: FUSED, 5: UNFUSED}), ways
    assert {int(line[-3][16 * ENGINE:16 * ENGINE + 16], 16) for line in chosen if line[0] == "attention"} == {ORDINARY}
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", str(tmp_path / "other"))
    assert trained(folder, "second", model, **SLOW)[:2] == (first, chosen)
    assert not os.path.exists(tmp_path / "other") or not [n for n in os.listdir(tmp_path / "other") if n.endswith(".txt")]


def test_the_folder_of_measured_kernels_does_not_count(folder):
    free = {"train": {"virtual_ranks": 0}, "train_batch_size": 2}
    done = folder.ztrain("--config", spec_of(folder, "measured", changes=free), env={**FAST, "ZTRAIN_EMULATION_EPILOGUES": "slow"})
    assert "measured " in done.out
    before = test_gemm_trial.cache()[""]
    first, chosen, _ = trained(folder, "first")
    assert kernels(folder, "measured") != chosen and test_gemm_trial.cache()[""] == before
    assert trained(folder, "second", ZTRAIN_GEMM_CACHE="")[:2] == (first, chosen)
    done = trained(folder, "third", expect=USAGE, ZTRAIN_GEMM_MEASURE="again")[2]
    assert "ZTRAIN_GEMM_MEASURE is 'again', but with train.virtual_ranks no kernel is measured; hint: unset it" in done.final_error


@pytest.mark.parametrize("stage", [0, 3])
def test_ranks_and_stages_have_the_same_kernels(folder, stage):
    first, chosen, _ = trained(folder, "first")
    stages = {"zero_optimization": {"stage": stage}}
    for ranks in (1, 2):
        env = {"ZTRAIN_EMULATION_SMS": "132", "ZTRAIN_EMULATION_SM_TARGET": "0"}
        numbers, others, _ = trained(folder, f"ranks-{ranks}", changes=stages, ranks=ranks, **env)
        assert numbers == first and others == chosen


def test_a_limit_of_multiprocessors_holds_at_any_number_of_ranks(folder):
    on = {"train": {"sm_count_target": True}}
    env = {"ZTRAIN_EMULATION_SMS": "132", "ZTRAIN_EMULATION_SM_TARGET": "116"}
    first, chosen, _ = trained(folder, "one", changes=on, **env)
    assert {line[SM_FIELD] for line in chosen if line[0] == "gemm"} == {"116"}
    assert trained(folder, "two", changes=on, ranks=2, **env)[:2] == (first, chosen)
    done = trained(folder, "shared", changes=on, ranks=2, **{**env, "ZTRAIN_EMULATION_GPUS": "1", "ZTRAIN_SHARE_GPUS": "1"})
    assert done[:2] == (first, chosen), done[2]
    done = trained(folder, "one", more=["--resume", folder.run_folder("one"), "--set", "train.max_steps=3"], expect=USAGE)[2]
    assert "multiprocessors_left: 16, now none" in done.final_error, done


def test_policies_of_recomputation_agree(folder):
    """Also where SwiGLU would be faster inside a product, or is asked for there."""
    numbers = {}
    for policy in ("none", "mlp", "attention", "block"):
        numbers[policy] = trained(folder, policy, "llama", {"activation_checkpointing": {"policy": policy}}, **FAST)[0]
    assert all(found == numbers["none"] for found in numbers.values()), numbers
    env = {**FAST, "ZTRAIN_GEMM_EPILOGUES": "fused"}
    assert trained(folder, "forced", "llama", **env)[0] == numbers["none"]


def test_the_first_engine_that_is_right_is_taken(folder):
    """Whatever comes after it is not tried; one that faulted is left out."""
    chosen = trained(folder, "first", ZTRAIN_EMULATION_ENGINE="dies")[1]
    done = trained(folder, "wrong", ZTRAIN_EMULATION_ENGINE="wrong")
    assert done[1] == chosen and "is left out" not in done[2].err, done[2]


def test_too_little_memory_for_a_trial_is_an_error(folder):
    size = "60000-100000"  # of the trial of attention
    done = trained(folder, "run", "llama", expect=DEVICE, ZTRAIN_EMULATION_REFUSES=size)[2]
    assert "the GPU has too little memory to verify kernels, and with train.virtual_ranks their choice" in done.final_error, done


def resume(folder, expect=FINISHED, sets=(), **env):
    words = [word for setting in ("train.max_steps=3", *sets) for word in ("--set", setting)]
    return folder.ztrain("--config", spec_of(folder, "run"), "--resume", folder.run_folder("run"), *words, expect=expect, env=env)


@pytest.mark.parametrize("env, words", [({"ZTRAIN_EMULATION_DRIVER": "13010"}, "driver: "),
                                        ({"ZTRAIN_CUDA_ATTENTION": "own"}, "ZTRAIN_CUDA_ATTENTION: none, now own"),
                                        ({"ZTRAIN_GEMM_EPILOGUES": "unfused"}, "ZTRAIN_GEMM_EPILOGUES: none, now unfused"),
                                        ({"ZTRAIN_EMULATION_EPILOGUES": "wrong", "ZTRAIN_GPU_TEST": "always"},
                                         "avoids: none, now fused epilogues of matrix products")],
                         ids=["driver", "attention", "epilogues", "self-test"])
def test_another_machine_is_refused_or_noted(folder, env, words):
    trained(folder, "run")
    done = resume(folder, USAGE, **env)
    assert "this one began on emulated GPU, and this emulated GPU lacks them (" in done.final_error
    assert words in done.final_error and "hint: train.virtual_ranks_strict: false continues" in done.final_error, done
    resume(folder, sets=["train.virtual_ranks_strict=false"], **env)
    line, = folder.metrics("run").kinds("kernels_changed")
    assert words in line["kernels_changed"] and line["step"] == 2, line


def test_a_resumed_run_keeps_its_kernels(folder):
    whole = trained(folder, "whole", changes={"train": {"max_steps": 3}})[0]
    trained(folder, "run")
    shutil.rmtree(os.environ["ZTRAIN_GEMM_CACHE"])
    before = kernels(folder, "run")
    done = resume(folder, **SLOW)
    assert "those that the run has computed with" in done.out and kernels(folder, "run") == before, done
    assert folder.metrics("run").numbers() == whole


def test_a_kernel_that_is_lost_is_refused_or_noted(folder):
    """One of the run's has faulted on this machine."""
    trained(folder, "run")
    os.makedirs(os.environ["ZTRAIN_GEMM_CACHE"], exist_ok=True)
    line = next(line for line in kernels(folder, "run") if line[0] == "gemm")
    test_gemm_trial.note_fault(line, os.environ["ZTRAIN_GEMM_CACHE"])
    done = resume(folder, USAGE)
    words = f"lost_kernel: none, now the matrix product m {line[1]} n {line[2]} k {line[3]}"
    assert words in done.final_error, done
    done = resume(folder, sets=["train.virtual_ranks_strict=false"])
    noted, = folder.metrics("run").kinds("kernels_changed")
    assert noted["kernels_changed"] == words, noted
    resume(folder, sets=["train.max_steps=4"])
    assert len(folder.metrics("run").kinds("kernels_changed")) == 1


def test_unlike_ranks_are_refused_or_noted(folder):
    own = {1: {"ZTRAIN_EMULATION_DRIVER": "13010"}}
    for strict, expect in ((True, USAGE), (False, FINISHED)):
        spec = spec_of(folder, "run", changes={"train": {"virtual_ranks_strict": strict}})
        done = Job(folder, "--config", spec, nodes=[0, 0], env={"ZTRAIN_EMULATION_GPUS": "2"}, env_of=own).train(expect)
        said = done[0].final_error if strict else done[0].err
        assert "rank 1 on " in said and "compute with different hardware or libraries (driver: " in said, done
    line, = folder.metrics("run").kinds("kernels_changed")
    assert "rank 1 on " in line["kernels_changed"] and line["step"] == 0, line

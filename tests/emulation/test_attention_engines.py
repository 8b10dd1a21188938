# SPDX-License-Identifier: Apache-2.0
"""cuDNN's engines for attention: the fastest is kept in the file of choices and obeyed, one that is wrong, faults or needs too much
workspace is left out; so is the number of pieces of a micro-batch chosen."""
import os
import re

from harness import GPT2, Job
import test_gemm_trial
from test_gemm_trial import FUSED, cache, entries, ways

emulated = test_gemm_trial.emulated  # the fixture: this GPU, and a folder for the choices
ORDINARY, SECOND = 3, 4  # engines of the emulated cuDNN
PIECE, ENGINE, KERNEL = 0, 2, 3  # words of a choice
MODEL = {**GPT2, "n_embd": 16, "n_head": 2, "n_layer": 1, "n_positions": 8}


def trained(folder, name, engine, code=0, **env):
    """What one step in bf16 computed, and what it said. engine: of ZTRAIN_EMULATION_ENGINE."""
    spec = folder.spec({"model": {"config": MODEL}, "data": {"validation": None, "seq_length": 8}, "bf16": {"enabled": True},
                        "train_batch_size": 2, "train_micro_batch_size_per_gpu": 2,
                        "train": {"epochs": None, "max_steps": 1, "device": "cuda"}}, name)
    done = folder.ztrain("--config", spec, expect=code,
                         env={"ZTRAIN_GPU_TEST": "never", "ZTRAIN_EMULATION_ENGINE": engine, **env})
    return folder.metrics(name).numbers() if code == 0 else None, done


def engines_of(done):
    """The engines that the log names, forward and backward."""
    found = [int(number) for number in re.findall(r"attention (?:forward|backward), bf16, .*: cuDNN [\d.]+, engine (\d+)", done.out)]
    assert len(found) == 2, done
    return set(found)


def choices():
    """Of each shape in the file of choices: the words of its algorithm."""
    return [[int(line[-3][i:i + 16], 16) for i in range(0, 64, 16)] for line in entries("attention")]


def test_the_fastest_engine_is_kept_and_obeyed(folder):
    fast, done = trained(folder, "fast", "fast")
    assert engines_of(done) == {SECOND} and "measured cuDNN's engines for 2 shapes of attention in " in done.out, done
    assert [choice[ENGINE] for choice in choices()] == [SECOND, SECOND]
    again, done = trained(folder, "again", "slow")
    assert engines_of(done) == {SECOND} and "measured" not in done.out and again == fast, done
    done = trained(folder, "slow", "slow", ZTRAIN_GEMM_MEASURE="again")[1]
    assert engines_of(done) == {ORDINARY} and "measured cuDNN's engines for 2 shapes" in done.out, done
    assert [choice[ENGINE] for choice in choices()] == [ORDINARY, ORDINARY]


def test_a_wrong_engine_is_left_out(folder):
    done = trained(folder, "wrong", "wrong")[1]
    assert engines_of(done) == {ORDINARY}
    for direction, result in (("forward", "out"), ("backward", "dq")):
        assert re.search(rf"attention {direction}, 2 x 8 tokens, 2 heads of 8, engine 4, 2 sequences at a time is left out: cuDNN's "
                         rf"{result} differs from what ztrain's kernels compute", done.err), done


def test_an_engine_that_faults_is_left_out(folder):
    trained(folder, "first", "dies", code=99)
    noted = cache()[".trial"]
    done = trained(folder, "second", "dies", code=99)[1]  # the other direction's
    words = noted.split(" ", 1)[1].strip()
    assert f"a process ended while it tried a kernel for {words}: that kernel is left out from now on" in done.err, done
    assert words.startswith("attention ") and "engine 4" in words and cache()[".faulty"] == noted
    done = trained(folder, "third", "dies")[1]
    assert engines_of(done) == {ORDINARY} and ".trial" not in cache(), done
    assert len(cache()[".faulty"].splitlines()) == 2


def test_a_choice_names_a_kernel(folder):
    """Not a place among the proposals, nor an engine, which has several kernels."""
    twin, done = trained(folder, "twin", "twin")
    chosen = choices()
    assert engines_of(done) == {ORDINARY} and "measured cuDNN's engines for 2 shapes of attention in " in done.out, done
    elsewhere, done = trained(folder, "elsewhere", "twin", ZTRAIN_EMULATION_CUDNN="few")
    assert elsewhere == twin and choices() == chosen and "measured " not in done.out, done
    done = trained(folder, "cousin", "cousin")[1]  # in the same place, with the same engine
    assert "measured cuDNN's engines for 2 shapes of attention in " in done.out, done
    assert [choice[ENGINE] for choice in choices()] == [ORDINARY, ORDINARY]
    assert all(choice[KERNEL] != before[KERNEL] for choice, before in zip(choices(), chosen, strict=True))


def test_no_kernel_is_tried_twice(folder):
    done = trained(folder, "same", "same")[1]
    assert engines_of(done) == {ORDINARY} and "measured cuDNN's engines" not in done.out, done


def test_an_engine_beyond_the_planned_workspace_is_not_tried(folder):
    done = trained(folder, "hungry", "hungry")[1]
    assert engines_of(done) == {ORDINARY} and "measured cuDNN" not in done.out, done


def forget_attention():
    path, = (os.path.join(os.environ["ZTRAIN_GEMM_CACHE"], name) for name in os.listdir(os.environ["ZTRAIN_GEMM_CACHE"])
             if name.startswith("gemm-") and name.endswith(".txt"))
    with open(path, encoding="utf-8") as file:
        lines = file.readlines()
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(line for line in lines if not line.startswith("attention "))


def test_the_number_of_pieces_is_timed(folder):
    """With the same bits, whatever the number is."""
    pieces, done = trained(folder, "pieces", "pieces", ZTRAIN_EMULATION_CUDNN="medium")
    assert done.out.count("6.0 MiB of workspace, in 2 pieces") == 2 and "measured cuDNN's engines for 2 shapes" in done.out, done
    assert [choice[PIECE] for choice in choices()] == [1, 1]
    forget_attention()
    whole, done = trained(folder, "whole", "whole", ZTRAIN_EMULATION_CUDNN="medium")
    assert done.out.count("12.0 MiB of workspace, in 1 piece\n") == 2 and pieces == whole, done


def test_a_throttled_gpu_keeps_no_engine(folder):
    done = trained(folder, "hot", "fast", ZTRAIN_EMULATION_NVML="throttle=32")[1]
    assert "the GPU is throttled (driver's heat limit): the engines chosen for 2 shapes of attention are not kept" in done.err, done
    assert engines_of(done) == {SECOND} and "" not in cache(), os.listdir(os.environ["ZTRAIN_GEMM_CACHE"])


def test_products_and_attention_are_kept_apart(folder):
    """A GPU that is throttled while it is measured for one of the two keeps what it has chosen for the other, and says so."""
    done = trained(folder, "products", "fast", ZTRAIN_EMULATION_NVML="throttle=32,until=2")[1]
    assert "the kernels chosen for " in done.err and "the fastest are kept in " in done.out, done
    assert [choice[ENGINE] for choice in choices()] == [SECOND, SECOND] and not entries("gemm")
    forget_attention()
    done = trained(folder, "attention", "fast", ZTRAIN_EMULATION_NVML="throttle=32,from=2")[1]
    assert "the engines chosen for 2 shapes" in done.err and "their kernels are kept in " in done.out, done
    assert not choices() and entries("gemm")


def test_ranks_take_the_choices_of_rank_0(folder, tmp_path):
    """Also where they have folders of their own, as on other machines; there they measure nothing."""
    spec = folder.spec({"model": {"config": MODEL}, "data": {"validation": None, "seq_length": 8}, "bf16": {"enabled": True},
                        "train_batch_size": 4, "train_micro_batch_size_per_gpu": 2,
                        "train": {"epochs": None, "max_steps": 1, "device": "cuda"}}, "ranks")
    own = {0: {"ZTRAIN_EMULATION_ENGINE": "fast", "ZTRAIN_EMULATION_EPILOGUES": "fast"},
           1: {"ZTRAIN_EMULATION_ENGINE": "slow", "ZTRAIN_EMULATION_EPILOGUES": "slow", "ZTRAIN_GEMM_CACHE": str(tmp_path / "other")}}
    Job(folder, "--config", spec, nodes=[0, 0], env={"ZTRAIN_GPU_TEST": "never", "ZTRAIN_EMULATION_GPUS": "2"}, env_of=own).train()
    assert [choice[ENGINE] for choice in choices()] == [SECOND, SECOND] and ways() == {FUSED}
    assert not [name for name in os.listdir(tmp_path / "other") if name.endswith(".txt")]

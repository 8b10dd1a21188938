# SPDX-License-Identifier: Apache-2.0
"""train.sm_count_target: products leave multiprocessors to NCCL, and NCCL takes no more. The emulated libraries end a run
whose products or communicator have another limit than the test says."""
import os
import socket

import pytest

import harness
from harness import FINISHED, ROOT, USAGE, Job

SAID = "matrix products use 116 of the GPU's 132 multiprocessors and leave 16 to NCCL"
TARGET_FIELD = 16


@pytest.fixture(autouse=True)
def emulated(monkeypatch, tmp_path):
    monkeypatch.setattr(harness, "ZTRAIN", os.path.join(ROOT, "build", "emulation", "ztrain"))
    monkeypatch.setattr(harness, "OPTIONS_OF_RUNS", ["--verbose"])
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", str(tmp_path / "cache"))


def spec_of(folder, name, changes=None):
    base = {"data": {"validation": None}, "train_batch_size": 2, "train_micro_batch_size_per_gpu": 1,
            "train": {"epochs": None, "max_steps": 1, "device": "cuda"}, "zero_optimization": {"stage": 3}}
    return folder.spec(harness.merged(base, changes or {}), name)


def environment(ranks, sms, target, ctas, major=9):
    """In which every product has this SM_COUNT_TARGET, and the communicator these maxCTAs (0: none)."""
    return {"ZTRAIN_EMULATION_GPUS": str(ranks), "ZTRAIN_EMULATION_SMS": str(sms),
            "ZTRAIN_EMULATION_SM_TARGET": str(target), "ZTRAIN_EMULATION_CTAS": str(ctas),
            "ZTRAIN_EMULATION_MAJOR": str(major)}


def train(folder, ranks, target, ctas, name, sms=132, changes=None, more=(), **arguments):
    """A step in such an environment."""
    return folder.ztrain("--config", spec_of(folder, name, changes), "--local-gpus", ranks, *more,
                         env=environment(ranks, sms, target, ctas), **arguments)


def train_unlike(folder, name, limits, changes=None, expect=FINISHED):
    """A step of two ranks; limits: of each rank, its multiprocessors, SM_COUNT_TARGET, maxCTAs and capability."""
    env_of = {rank: environment(2, *limit) for rank, limit in enumerate(limits)}
    return Job(folder, "--config", spec_of(folder, name, changes), nodes=[0, 0], env_of=env_of).train(expect)


def targets():
    """The targets of the choices in the cache."""
    folder = os.environ["ZTRAIN_GEMM_CACHE"]
    name, = [name for name in os.listdir(folder) if name.endswith(".txt")]
    with open(os.path.join(folder, name), encoding="utf-8") as f:
        return {int(line.split()[TARGET_FIELD]) for line in f if line.startswith("gemm ")}


def test_ranks_over_nccl_are_limited_and_one_rank_is_not(folder):
    """Also: the choices of one are not those of the other, and are taken again where they fit."""
    done = train(folder, 2, 116, 16, "two")
    assert done.out.count(SAID) == 1 and targets() == {116}, done
    done = train(folder, 1, 0, 0, "one")
    assert SAID not in done.out and "measured " in done.out and targets() == {0, 116}, done
    assert "measured " not in train(folder, 2, 116, 16, "again").out


def test_what_auto_does_not_limit(folder):
    off = {"train": {"sm_count_target": False}}
    apart = {"zero_optimization": {"overlap_comm": False}}
    whole = {"zero_optimization": {"stage": 2}}
    for name, changes, sms in (("off", off, 132), ("small", {}, 82), ("apart", apart, 132), ("whole", whole, 132)):
        assert "to NCCL" not in train(folder, 2, 0, 0, name, sms, changes).out


def test_true_limits_one_rank_and_is_refused_where_it_cannot_be(folder):
    on = {"train": {"sm_count_target": True}}
    assert SAID in train(folder, 1, 116, 0, "one", changes=on).out
    done = train(folder, 1, 0, 0, "tiny", 16, on, expect=USAGE)
    assert "emulated GPU has only 16 multiprocessors, and NCCL gets 16" in done.err
    done = train(folder, 1, 0, 0, "cpu", changes=on, more=["--set", "train.device=cpu"], expect=USAGE)
    assert "train.sm_count_target is true, but the CPU device has no multiprocessors" in done.err


def test_unlike_gpus_are_all_limited_or_none_is(folder):
    """NCCL computes the channels of a communicator from each rank's own maxCTAs: the smallest GPU decides for all."""
    for name, limits in (("small", [(132, 0, 0), (84, 0, 0)]), ("first", [(84, 0, 0), (132, 0, 0)]),
                         ("large", [(132, 116, 16), (100, 84, 16)])):
        done = train_unlike(folder, name, limits)
        assert (SAID in done[0].out) == (name == "large"), done


def test_capability_10_gets_24_blocks_if_all_ranks_have_it(folder):
    said = "matrix products use 124 of the GPU's 148 multiprocessors and leave 24 to NCCL"
    assert said in train_unlike(folder, "alike", [(148, 124, 24, 10)] * 2)[0].out
    train_unlike(folder, "unlike", [(148, 132, 16, 10), (132, 116, 16, 9)])


def test_true_is_refused_on_all_ranks_for_one_small_gpu(folder):
    words = f"rank 1 on {socket.gethostname()}: emulated GPU has only 16 multiprocessors, and NCCL gets 16; hint: auto"
    done = train_unlike(folder, "tiny", [(132, 116, 16), (16, 0, 0)], {"train": {"sm_count_target": True}}, USAGE)
    assert [words in d.err for d in done] == [True, False], done


def test_true_has_no_effect_where_ranks_share_a_gpu(folder):
    shared = {**environment(1, 132, 0, 0), "ZTRAIN_SHARE_GPUS": "1"}
    words = "train.sm_count_target: true has no effect: ranks share a GPU"
    for target in (True, "auto"):
        spec = spec_of(folder, f"shared-{target}", {"train": {"sm_count_target": target}})
        done = folder.ztrain("--config", spec, "--local-gpus", 2, env=shared)
        assert done.out.count(words) == (target is True) and "to NCCL" not in done.out, done

"""train.sm_count_target: products leave multiprocessors to NCCL, and NCCL takes no more. The emulated libraries end a run
whose products or communicator have another limit than the test says."""
import os

import pytest

import harness
from harness import ROOT, USAGE

SAID = "matrix products use 116 of the GPU's 132 multiprocessors and leave 16 to NCCL"
TARGET_FIELD = 16


@pytest.fixture(autouse=True)
def emulated(monkeypatch, tmp_path):
    monkeypatch.setattr(harness, "ZTRAIN", os.path.join(ROOT, "build", "emulation", "ztrain"))
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", str(tmp_path / "cache"))


def train(folder, ranks, target, ctas, name, sms=132, changes=None, more=(), **arguments):
    """A step in which every product has this SM_COUNT_TARGET, and the communicator these maxCTAs (0: none)."""
    base = {"data": {"validation": None}, "train_batch_size": 2, "train_micro_batch_size_per_gpu": 1,
            "train": {"epochs": None, "max_steps": 1, "device": "cuda"}, "zero_optimization": {"stage": 3}}
    env = {"ZTRAIN_EMULATION_GPUS": str(ranks), "ZTRAIN_EMULATION_SMS": str(sms), "ZTRAIN_EMULATION_SM_TARGET": str(target),
           "ZTRAIN_EMULATION_CTAS": str(ctas)}
    spec = folder.spec(harness.merged(base, changes or {}), name)
    return folder.ztrain("--config", spec, "--local-gpus", ranks, *more, env=env, **arguments)


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

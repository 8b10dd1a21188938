"""SwiGLU inside matrix products, by cuDNN: taken where it is faster and computes the same, by the same file of choices."""
import os

import pytest

import harness
from harness import ROOT

UNTIMED, FUSED, UNFUSED = range(3)
EPILOGUES = FORWARD, BACKWARD = 7, 8
EPILOGUE_FIELD, WAY_FIELD = 12, 21
LLAMA = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1,
         "num_hidden_layers": 2, "vocab_size": 64, "rms_norm_eps": 1e-5, "max_position_embeddings": 8,
         "tie_word_embeddings": False}


@pytest.fixture(autouse=True)
def emulated(monkeypatch, tmp_path):
    monkeypatch.setattr(harness, "ZTRAIN", os.path.join(ROOT, "build", "emulation", "ztrain"))
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ZTRAIN_GPU_TEST", "never")


def trained(folder, name, model=None, dtype="bf16", more=(), **env):
    """What a run of two micro-batches computed, and what it said."""
    spec = folder.spec({"model": {"config": {**LLAMA, **(model or {})}}, "data": {"validation": None, "seq_length": 8},
                        dtype: {"enabled": True}, "train_batch_size": 2, "train_micro_batch_size_per_gpu": 1,
                        "train": {"epochs": None, "max_steps": 2, "device": "cuda"}}, name)
    done = folder.ztrain("--config", spec, *more, env=env)
    return folder.metrics(name).numbers(), done


def ways():
    """The ways of products with SwiGLU in the cache, by their epilogue."""
    folder = os.environ["ZTRAIN_GEMM_CACHE"]
    name, = [name for name in os.listdir(folder) if name.endswith(".txt")]
    with open(os.path.join(folder, name), encoding="utf-8") as f:
        lines = [line.split() for line in f if line.startswith("gemm ")]
    return {int(line[EPILOGUE_FIELD]): int(line[WAY_FIELD]) for line in lines if int(line[EPILOGUE_FIELD]) in EPILOGUES}


def close(some, others):
    for step, other in zip(some, others, strict=True):
        assert step["loss"] == pytest.approx(other["loss"], rel=2e-3)
        assert step["grad_norm"] == pytest.approx(other["grad_norm"], rel=2e-2)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_faster_way_is_kept_and_obeyed(folder, tmp_path, monkeypatch, dtype):
    fast, done = trained(folder, "fast", dtype=dtype, ZTRAIN_EMULATION_SWIGLU="fast")
    assert "measured " in done.out and ways() == {FORWARD: FUSED, BACKWARD: FUSED}, done
    again, done = trained(folder, "again", dtype=dtype, ZTRAIN_EMULATION_SWIGLU="slow")
    assert again == fast and "measured " not in done.out, done
    graph, done = trained(folder, "graph", dtype=dtype, more=["--set", "train.cuda_graphs=true"])
    assert graph == fast, done
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", str(tmp_path / "other"))
    slow, done = trained(folder, "slow", dtype=dtype, ZTRAIN_EMULATION_SWIGLU="slow")
    assert ways() == {FORWARD: UNFUSED, BACKWARD: UNFUSED} and slow != fast, done
    close(fast, slow)


def test_what_computes_something_else_is_named_and_left_out(folder):
    found, done = trained(folder, "wrong", ZTRAIN_EMULATION_SWIGLU="wrong")
    assert done.err.count("with SwiGLU inside by cuDNN's engine 3 computes something else than without (element ") == 2, done
    assert ways() == {FORWARD: UNFUSED, BACKWARD: UNFUSED}
    close(found, trained(folder, "right", ZTRAIN_GEMM_EPILOGUES="unfused")[0])


def test_an_engine_that_dies_is_left_out_next_time(folder):
    trained_once = {"ZTRAIN_EMULATION_SWIGLU": "fast", "ZTRAIN_EMULATION_ENGINE": "dies"}
    with pytest.raises(AssertionError):
        trained(folder, "dies", **trained_once)
    for attempt in range(6):  # forward, backward, attention: one engine more is known each time
        try:
            found, done = trained(folder, f"lives{attempt}", **trained_once)
            break
        except AssertionError:
            continue
    assert attempt < 5 and ways() == {FORWARD: FUSED, BACKWARD: FUSED}, done
    close(found, trained(folder, "without", ZTRAIN_GEMM_EPILOGUES="unfused")[0])


@pytest.mark.parametrize("model", [{"mlp_bias": True}, {"intermediate_size": 20}], ids=["bias", "odd"])
def test_what_cannot_be_fused_is_computed(folder, model):
    found, done = trained(folder, "some", model, ZTRAIN_EMULATION_SWIGLU="fast")
    assert FORWARD not in ways() and len(found) == 2, done


def test_policies_keep_their_bits(folder, tmp_path, monkeypatch):
    """The emulated product hands up to SwiGLU before it is rounded. Policies that compute SwiGLU again, from the rounded up, have
    no such product in forward; so the bits are those of one of two groups."""
    def under(policy, way=""):
        numbers, done = trained(folder, policy + way, more=["--set", f"activation_checkpointing.policy={policy}"],
                                ZTRAIN_EMULATION_SWIGLU="fast", ZTRAIN_GEMM_EPILOGUES=way)
        return numbers, ways(), done
    again, inside, done = under("mlp")
    assert inside == {BACKWARD: FUSED}, done
    assert under("attention")[0] == again
    none, inside, done = under("none")
    assert inside == {FORWARD: FUSED, BACKWARD: FUSED} and none != again, done
    assert [under(policy)[0] for policy in ("norms", "block")] == [none, none]
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", str(tmp_path / "other"))
    outside = under("none", "unfused")[0]
    assert [under(policy, "unfused")[0] for policy in ("norms", "mlp", "attention", "block")] == 4 * [outside]


def test_without_cudnn_there_is_no_such_way(folder):
    trained(folder, "none", ZTRAIN_EMULATION_SWIGLU="fast", ZTRAIN_EMULATION_CUDNN="none")
    assert ways() == {}

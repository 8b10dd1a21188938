# SPDX-License-Identifier: Apache-2.0
"""SwiGLU inside matrix products, by cuDNN: taken where it is faster and computes the same, by the same file of choices."""
import datetime
import fcntl
import glob
import json
import os
import re

import pytest

import harness
from harness import BROKEN, FINISHED, ROOT, Job, children, wait_until

UNTIMED, FUSED, UNFUSED = range(3)
EPILOGUES = FORWARD, BACKWARD = 7, 8
EPILOGUE_FIELD, WAY_FIELD = 12, 22
LLAMA = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1,
         "num_hidden_layers": 2, "vocab_size": 64, "rms_norm_eps": 1e-5, "max_position_embeddings": 8,
         "tie_word_embeddings": False}
REASON = {"ZTRAIN_EMULATION_NVML": "xid=79"}  # of a fault: the GPU is broken, without a self-test (test_gpu_fault.py)


@pytest.fixture(autouse=True)
def emulated(monkeypatch, tmp_path):
    monkeypatch.setattr(harness, "ZTRAIN", os.path.join(ROOT, "build", "emulation", "ztrain"))
    monkeypatch.setattr(harness, "OPTIONS_OF_RUNS", ["--verbose"])
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ZTRAIN_GPU_TEST", "never")


def spec_of(folder, name, model=None, dtype="bf16", **changes):
    return folder.spec({"model": {"config": {**LLAMA, **(model or {})}}, "data": {"validation": None, "seq_length": 8},
                        **({} if dtype == "fp32" else {dtype: {"enabled": True}}), "train_batch_size": 2,
                        "train_micro_batch_size_per_gpu": 1,
                        "train": {"epochs": None, "max_steps": 2, "device": "cuda"}, **changes}, name)


def trained(folder, name, model=None, dtype="bf16", more=(), **env):
    """What a run of two micro-batches computed, and what it said."""
    done = folder.ztrain("--config", spec_of(folder, name, model, dtype), *more, env=env)
    return folder.metrics(name).numbers(), done


def cache(kind):
    """The text of the file of choices (".txt") or of one next to it (".txt.faulty"); None: there is none."""
    folder = os.environ["ZTRAIN_GEMM_CACHE"]
    names = [name for name in os.listdir(folder) if name.startswith("gemm-") and name.endswith(kind)]
    return open(os.path.join(folder, names[0]), encoding="utf-8").read() if names else None


def entries():
    """The fields of the products with SwiGLU in the cache, by their epilogue."""
    lines = [line.split() for line in cache(".txt").splitlines() if line.startswith("gemm ")]
    return {int(line[EPILOGUE_FIELD]): line for line in lines if int(line[EPILOGUE_FIELD]) in EPILOGUES}


def ways():
    """The ways of products with SwiGLU in the cache, by their epilogue."""
    return {epilogue: int(line[WAY_FIELD]) for epilogue, line in entries().items()}


def close(some, others):
    for step, other in zip(some, others, strict=True):
        assert step["loss"] == pytest.approx(other["loss"], rel=2e-3)
        assert step["grad_norm"] == pytest.approx(other["grad_norm"], rel=2e-2)


def alike(some, others):
    """Whether two runs have computed SwiGLU in the same way, while kernels of other products may have added in another order."""
    return all(step["loss"] == pytest.approx(other["loss"], rel=1e-8) for step, other in zip(some, others, strict=True))


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_faster_way_is_kept_and_obeyed(folder, tmp_path, monkeypatch, dtype):
    fast, done = trained(folder, "fast", dtype=dtype, ZTRAIN_EMULATION_SWIGLU="fast")
    assert "measured " in done.out and ways() == {FORWARD: FUSED, BACKWARD: FUSED}, done
    assert re.findall(r"SwiGLU (.*ward), \w+, 8 x 24: inside the matrix product, by cuDNN [\d.]+, engine 3\n", done.out) == [
        "forward", "backward"], done
    again, done = trained(folder, "again", dtype=dtype, ZTRAIN_EMULATION_SWIGLU="slow")
    assert again == fast and "measured " not in done.out, done
    graph, done = trained(folder, "graph", dtype=dtype, more=["--set", "train.cuda_graphs=true"])
    assert graph == fast, done
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", str(tmp_path / "other"))
    slow, done = trained(folder, "slow", dtype=dtype, ZTRAIN_EMULATION_SWIGLU="slow")
    assert ways() == {FORWARD: UNFUSED, BACKWARD: UNFUSED} and slow != fast, done
    assert f"SwiGLU forward, {dtype}, 8 x 24: a kernel of its own\n" in done.out, done
    close(fast, slow)


MIXTURE = {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8,
           "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}


def test_products_of_experts_go_the_faster_way(folder, tmp_path, monkeypatch):
    def by_cudnn(done):
        return re.findall(r"a product of 4 experts, bf16, (\d+ x \d+): cuDNN [\d.]+, engine 3\n", done.out)
    fast, done = trained(folder, "fast", MIXTURE, ZTRAIN_EMULATION_SWIGLU="fast")
    assert by_cudnn(done) == ["16 x 48", "16 x 16", "16 x 16", "16 x 24"], done
    graph, done = trained(folder, "graph", MIXTURE, more=["--set", "train.cuda_graphs=true"])
    assert graph == fast and len(by_cudnn(done)) == 4, done
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", str(tmp_path / "slow"))
    slow, done = trained(folder, "slow", MIXTURE, ZTRAIN_EMULATION_SWIGLU="slow")
    assert "a product of 4 experts, bf16, 16 x 24: a kernel of its own\n" in done.out, done
    assert slow != fast
    close(fast, slow)
    forced, done = trained(folder, "forced", MIXTURE, ZTRAIN_GEMM_EPILOGUES="fused")
    assert alike(forced, fast) and len(by_cudnn(done)) == 4, done
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", str(tmp_path / "wrong"))
    wrong, done = trained(folder, "wrong", MIXTURE, ZTRAIN_EMULATION_SWIGLU="wrong")
    assert "of experts by cuDNN's proposal 2, engine 3 computes something else than without (element " in done.err, done
    assert alike(wrong, slow) and not by_cudnn(done)


def test_what_computes_something_else_is_named_and_left_out(folder):
    found, done = trained(folder, "wrong", ZTRAIN_EMULATION_SWIGLU="wrong")
    words = "with SwiGLU inside by cuDNN's proposal 2, engine 3 computes something else than without (element "
    assert done.err.count(words) == 2, done
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


def test_an_engine_that_faults_is_left_out_next_time(folder):
    """The calls after the fault fail, and do not make the process forget which engine was on trial."""
    faults = {"ZTRAIN_EMULATION_SWIGLU": "faults", **REASON}
    for attempt in range(2):  # forward, backward
        done = folder.ztrain("--config", spec_of(folder, f"faults{attempt}"), env=faults, expect=BROKEN)
        assert "by cuDNN's proposal 2, engine 3, on trial (start again: it is left out then): GPU 0 " in done.err, done
        assert cache(".trial"), done
    found, done = trained(folder, "lives", **faults)
    assert len(cache(".faulty").splitlines()) == 2 and cache(".trial") is None and ways() == {}, done
    assert found == trained(folder, "without", ZTRAIN_GEMM_EPILOGUES="unfused")[0]


def test_an_engine_that_is_refused_is_left_out(folder, monkeypatch):
    refused = {"ZTRAIN_EMULATION_SWIGLU": "fast", "ZTRAIN_EMULATION_CUDNN": "broken"}
    found, done = trained(folder, "refused", **refused)
    assert done.err.count("engine 3 is refused when it runs (") == 2 and cache(".trial") is None, done
    assert ways() == {FORWARD: UNFUSED, BACKWARD: UNFUSED} and cache(".faulty") is None
    assert "refused when it runs" not in trained(folder, "again", **refused)[1].err
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", "/proc/nowhere")
    assert alike(trained(folder, "unwritable", **refused)[0], found)


def test_an_engine_whose_bits_do_not_repeat_is_left_out(folder):
    done = trained(folder, "restless", ZTRAIN_EMULATION_SWIGLU="fast", ZTRAIN_EMULATION_CUDNN="restless")[1]
    assert done.err.count("with SwiGLU inside by cuDNN's proposal 2, engine 3 gives other bits each time (") == 2, done
    assert ways() == {FORWARD: UNFUSED, BACKWARD: UNFUSED}


NO_MEMORY = "the GPU has too little memory to try cuDNN's products"
WIDE = {"intermediate_size": 96}
SMALL = {"ZTRAIN_EMULATION_REFUSES": f"{(64 << 20) + 13000}-{(64 << 20) + 60000}"}  # bytes of scratch memory: those of the larger trials


def test_too_little_memory_for_the_trial_is_said(folder):
    found, done = trained(folder, "small", WIDE, ZTRAIN_EMULATION_SWIGLU="fast", **SMALL)
    assert NO_MEMORY in done.err and ways() == {}, done
    assert found == trained(folder, "without", WIDE, ZTRAIN_GEMM_EPILOGUES="unfused", **SMALL)[0]


@pytest.mark.parametrize("first", [SMALL, {"ZTRAIN_EMULATION_CUDNN": "none"}], ids=["memory", "proposals"])
def test_no_rank_chooses_alone(folder, first):
    """What rank 0 cannot try, no other rank tries, although they could."""
    job = Job(folder, "--config", spec_of(folder, "ranks", WIDE, zero_optimization={"stage": 2}), nodes=[0, 0],
              env={"ZTRAIN_EMULATION_GPUS": "2", "ZTRAIN_EMULATION_SWIGLU": "fast"}, env_of={0: first, 1: {}})
    ranks = job.wait()
    assert [rank.code for rank in ranks] == [FINISHED, FINISHED] and ways() == {}, ranks
    assert (NO_MEMORY in ranks[0].err) == (first is SMALL) and NO_MEMORY not in ranks[1].err, ranks


def test_a_file_of_its_own_is_no_choice_of_a_rank(folder, tmp_path):
    """Rank 0 could not try, although rank 1 could once, on a machine of its own."""
    other = {"ZTRAIN_GEMM_CACHE": str(tmp_path / "other"), "ZTRAIN_EMULATION_SWIGLU": "fast"}
    assert "inside the matrix product" in trained(folder, "before", **other)[1].out
    Job(folder, "--config", spec_of(folder, "ranks", zero_optimization={"stage": 2}), nodes=[0, 0],
        env={"ZTRAIN_EMULATION_GPUS": "2"}, env_of={0: {"ZTRAIN_EMULATION_CUDNN": "none"}, 1: other}).train()
    for rank in range(2):
        with open(os.path.join(folder.run_folder("ranks"), "log", f"rank-0000{rank}.log"), encoding="utf-8") as log:
            assert log.read().count("8 x 24: a kernel of its own") == 2


def test_a_way_that_is_forced_is_taken(folder, monkeypatch):
    """Whatever the cache has, and without one."""
    fused = trained(folder, "fused", ZTRAIN_GEMM_EPILOGUES="fused")[0]
    unfused = trained(folder, "unfused", ZTRAIN_GEMM_EPILOGUES="unfused")[0]
    assert not alike(fused, unfused) and ways() == {}
    assert trained(folder, "slow", ZTRAIN_EMULATION_SWIGLU="slow")[0] == unfused
    assert ways() == {FORWARD: UNFUSED, BACKWARD: UNFUSED}
    assert trained(folder, "forced", ZTRAIN_GEMM_EPILOGUES="fused")[0] == fused
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", "")
    assert alike(trained(folder, "uncached", ZTRAIN_GEMM_EPILOGUES="fused")[0], fused)
    assert alike(trained(folder, "usual")[0], unfused)


def test_a_way_that_is_forced_leaves_faulty_engines_out(folder):
    for attempt in range(2):
        folder.ztrain("--config", spec_of(folder, f"faults{attempt}"), env={"ZTRAIN_EMULATION_SWIGLU": "faults", **REASON},
                      expect=BROKEN)
    forced = trained(folder, "forced", ZTRAIN_EMULATION_SWIGLU="faults", ZTRAIN_GEMM_EPILOGUES="fused")[0]
    assert forced == trained(folder, "unfused", ZTRAIN_GEMM_EPILOGUES="unfused")[0]
    trained(folder, "another", ZTRAIN_EMULATION_ENGINE="fast", ZTRAIN_GEMM_EPILOGUES="fused")  # the next proposal


def kernels():
    """The words of the choices in the file: the engine and the kernel."""
    return {epilogue: (int(line[-3][:16], 16), line[-3][16:32]) for epilogue, line in entries().items()}


def test_a_choice_names_a_kernel(folder):
    """Not a place among the proposals, nor an engine, which has several kernels."""
    def under(name, engine, **env):
        numbers, done = trained(folder, name, ZTRAIN_EMULATION_SWIGLU="fast", ZTRAIN_EMULATION_ENGINE=engine, **env)
        return numbers, "measured " in done.out, kernels()
    twin, _, chosen = under("twin", "twin")
    assert {engine for engine, _ in chosen.values()} == {3}
    assert under("elsewhere", "twin", ZTRAIN_EMULATION_CUDNN="few") == (twin, False, chosen)
    _, measured, others = under("cousin", "cousin")  # in the same place, with the same engine
    assert measured and all(others[epilogue][1] != chosen[epilogue][1] for epilogue in EPILOGUES)
    assert {engine for engine, _ in others.values()} == {3}


def test_no_kernel_is_tried_twice(folder):
    done = trained(folder, "same", ZTRAIN_EMULATION_SWIGLU="wrong", ZTRAIN_EMULATION_ENGINE="same")[1]
    assert done.err.count("computes something else than without") == 2, done
    done = trained(folder, "twin", ZTRAIN_EMULATION_SWIGLU="wrong", ZTRAIN_EMULATION_ENGINE="twin", ZTRAIN_GEMM_MEASURE="again")[1]
    assert done.err.count("computes something else than without") == 4, done


def test_versions_of_cudnn_keep_their_choices(folder):
    fast = trained(folder, "fast", ZTRAIN_EMULATION_SWIGLU="fast")[0]
    old = {"ZTRAIN_EMULATION_CUDNN": "old", "ZTRAIN_EMULATION_SWIGLU": "slow"}
    assert "measured " in trained(folder, "old", **old)[1].out
    found, done = trained(folder, "back", ZTRAIN_EMULATION_SWIGLU="slow")
    assert found == fast and "measured " not in done.out, done
    assert "measured " not in trained(folder, "forth", **old)[1].out


def test_a_rank_without_the_kernel_of_rank_0_says_so(folder):
    job = Job(folder, "--config", spec_of(folder, "ranks", zero_optimization={"stage": 2}), nodes=[0, 0],
              env={"ZTRAIN_EMULATION_GPUS": "2", "ZTRAIN_EMULATION_SWIGLU": "fast"},
              env_of={0: {"ZTRAIN_EMULATION_ENGINE": "twin"}, 1: {"ZTRAIN_EMULATION_ENGINE": "cousin"}})
    ranks = job.wait()
    assert ranks[1].err.count("this rank cannot take the kernel by which rank 0 computes the matrix product") == 2, ranks
    assert "this rank cannot take" not in ranks[0].err, ranks


def has_open(process, path):
    """Whether a process of that job has the file open."""
    links = [link for pid in [process.pid, *children(process.pid)] for link in glob.glob(f"/proc/{pid}/fd/*")]
    return any(os.path.realpath(link) == path for link in links)


def test_the_kernels_of_rank_0_are_compiled_without_the_lock(folder, tmp_path):
    """Another rank of rank 1's machine may hold it meanwhile."""
    other = {"ZTRAIN_GEMM_CACHE": str(tmp_path / "other")}
    trained(folder, "before", ZTRAIN_GEMM_EPILOGUES="unfused", **other)
    name, = [name for name in os.listdir(tmp_path / "other") if name.endswith(".txt.lock")]
    path = os.path.realpath(tmp_path / "other" / name)
    with open(path, "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        job = Job(folder, "--config", spec_of(folder, "ranks", zero_optimization={"stage": 2}), nodes=[0, 0],
                  env={"ZTRAIN_EMULATION_GPUS": "2", "ZTRAIN_EMULATION_SWIGLU": "fast"}, env_of={0: {}, 1: other})
        wait_until(lambda: has_open(job.ranks[1], path), what="rank 1 waits for the lock")
        released = datetime.datetime.now(datetime.timezone.utc)
    job.train()
    with open(os.path.join(folder.run_folder("ranks"), "log", "rank-00001.log"), encoding="utf-8") as log:
        line, = [line for line in log if "took rank 0's ways of 2 products that cuDNN may compute" in line]
    assert datetime.datetime.fromisoformat(line.split()[0].replace("Z", "+00:00")) <= released
    assert ways() == {FORWARD: FUSED, BACKWARD: FUSED}


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


def test_a_resume_chooses_for_sizes_that_are_new(folder, tmp_path, monkeypatch):
    """It takes the run's kernels from the run folder, which has none for another micro-batch."""
    trained(folder, "run", ZTRAIN_EMULATION_SWIGLU="fast")
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", str(tmp_path / "other"))
    resume = ["--resume", folder.run_folder("run"), "--set", "train.max_steps=3"]
    done = trained(folder, "run", more=[*resume, "--set", "train_micro_batch_size_per_gpu=2"], ZTRAIN_EMULATION_SWIGLU="fast")[1]
    assert "those that the run has computed with" in done.out and ways() == {FORWARD: FUSED, BACKWARD: FUSED}, done


def test_a_resume_that_cannot_take_a_kernel_says_so_and_hands_on_another_way(folder, tmp_path, monkeypatch):
    trained(folder, "run", ZTRAIN_EMULATION_SWIGLU="fast")
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", str(tmp_path / "other"))
    resume = ["--resume", folder.run_folder("run"), "--set", "train.max_steps=3"]
    done = trained(folder, "run", more=resume, ZTRAIN_EMULATION_SWIGLU="fast", ZTRAIN_EMULATION_CUDNN="none")[1]
    assert done.err.count("this rank cannot take the kernel by which the run has computed the matrix product m 24 ") == 2, done
    last = {}
    with open(os.path.join(folder.run_folder("run"), "kernels-emulated-GPU.txt"), encoding="utf-8") as f:
        for line in map(str.split, f):
            if line[0] == "gemm" and int(line[EPILOGUE_FIELD]) in EPILOGUES:
                last[int(line[EPILOGUE_FIELD])] = int(line[WAY_FIELD])  # of two choices for one product the later counts
    assert last == {FORWARD: UNFUSED, BACKWARD: UNFUSED}


OWN = {"ZTRAIN_CUDA_ATTENTION": "own"}


def test_opening_cudnn_is_not_silence(folder):
    Job(folder, "--config", spec_of(folder, "slow", zero_optimization={"stage": 2}, comm={"timeout_seconds": 2}), nodes=[0, 0],
        env={"ZTRAIN_EMULATION_GPUS": "2", **OWN}, env_of={1: {"ZTRAIN_EMULATION_SLOW": "cudnnCreate"}}).train()


@pytest.mark.parametrize("model, dtype, env, opens", [
    ({}, "bf16", {}, True),
    ({"mlp_bias": True}, "bf16", {}, True),  # backward of down
    ({"intermediate_size": 20}, "bf16", {}, False),
    ({}, "fp32", {}, False),
    ({}, "bf16", {"ZTRAIN_GEMM_EPILOGUES": "unfused"}, False),
    ({}, "bf16", {"ZTRAIN_GEMM_CACHE": ""}, False),
    ({}, "bf16", {"ZTRAIN_GEMM_CACHE": "", "ZTRAIN_GEMM_EPILOGUES": "fused"}, True),
])
def test_cudnn_is_opened_where_it_can_be_used(folder, model, dtype, env, opens):
    trained(folder, "some", model, dtype, **OWN, **env)
    with open(os.path.join(folder.run_folder("some"), "checkpoints", "step-00000002", "manifest.json"), encoding="utf-8") as f:
        machine = json.load(f)["machine"]
    assert ("cuDNN" in machine) == opens, machine


def test_without_cudnn_there_is_no_such_way(folder):
    none = {"ZTRAIN_EMULATION_SWIGLU": "fast", "ZTRAIN_EMULATION_CUDNN": "none"}
    done = trained(folder, "none", **none)[1]
    assert ways() == {} and "measured " in done.out, done
    assert "measured " not in trained(folder, "again", **none)[1].out  # there is nothing to measure

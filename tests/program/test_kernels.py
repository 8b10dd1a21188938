# SPDX-License-Identifier: Apache-2.0
"""All ranks of a job compute with the same kernels on the CPU."""
import re

import pytest

from harness import FINISHED, USAGE, ZTRAIN, Job, cpu_levels, wait_for_steps

pytestmark = pytest.mark.long

BOTH = [0, 1]  # two ranks, each on its own node


def of_two(folder, name, first, second, stage=0, expect=FINISHED, variable="ZTRAIN_CPU_ISA", **more):
    spec = folder.spec({"zero_optimization": {"stage": stage}, "train": {"epochs": 1}, **more}, name)
    words_of = {rank: {variable: word} for rank, word in enumerate((first, second))}
    return Job(folder, "--config", spec, "--verbose", nodes=BOTH, env_of=words_of).train(expect)


def test_ranks_on_other_cpus_compute_alike(folder):
    has = cpu_levels()
    if len(has) == 1:
        pytest.skip("this CPU has one level of instruction sets only")
    low, high = has[-2], has[-1]
    of_two(folder, "low", low, low)
    of_two(folder, "high", high, high)
    assert folder.metrics("low").losses != folder.metrics("high").losses  # or nothing is shown
    for name, first, second in [("mixed", high, low), ("turned", low, high)]:
        done = of_two(folder, name, first, second)
        assert folder.metrics(name).numbers() == folder.metrics("low").numbers()
        one, other = (1, 0) if first == high else (0, 1)
        said = re.findall(r"warning: .*all ranks compute with .*", done[0].err)
        assert len(said) == 1 and f"with {low} kernels instead of {high}" in said[0], done[0]
        assert re.search(rf"rank {one} on \S+ supports no more \(because of its CPU, or of ZTRAIN_CPU_ISA there\), rank {other} on \S+ would support the latter", said[0]), said
        assert "all ranks compute" not in done[1].err
        assert f"{low} kernels" in done[0].out


def needs_bf16():
    with open("/proc/cpuinfo", encoding="ascii") as file:
        if "avx512_bf16" not in file.read().split():
            pytest.skip("this CPU has no instruction for bf16 to choose")


def test_ranks_multiply_bf16_alike(folder):
    """If some rank widens the numbers, all do."""
    needs_bf16()
    how = {"variable": "ZTRAIN_CPU_BF16", "bf16": {"enabled": True}}
    for word in ("widen", "dot"):
        of_two(folder, word, word, word, **how)
    assert folder.metrics("widen").losses != folder.metrics("dot").losses
    done = of_two(folder, "mixed", "dot", "widen", **how)
    assert folder.metrics("mixed").numbers() == folder.metrics("widen").numbers()
    assert len(re.findall(r"warning: .*all ranks multiply matrices with .* bf16 builtin \(widen\): rank 0 on \S+ would "
                          r"use .* bf16 builtin \(dot\), rank 1 on \S+ .* bf16 builtin \(widen\)", done[0].err)) == 1, done[0]


def test_a_word_that_is_no_level_is_an_error(folder):
    done = of_two(folder, "run", "baseline", "zzz", expect=USAGE)
    assert "ZTRAIN_CPU_ISA must be baseline, avx2 or avx512, not 'zzz'" in done[1].final_error, done
    assert "error" not in done[0].err
    for name, value, legal in [("ISA", "zzz", "baseline, avx2 or avx512"), ("GEMM", "onednn", "builtin"),
                               ("BF16", "fast", "widen or dot")]:
        done = folder.ztrain("--config", folder.spec(), "--dry-run", env={f"ZTRAIN_CPU_{name}": value}, expect=USAGE)
        assert f"ZTRAIN_CPU_{name} must be {legal}, not '{value}'" in done.final_error


OTHERWISE = "the checkpoint was computed with other kernels or libraries"


def test_a_resumed_run_keeps_its_kernels(folder):
    has = cpu_levels()
    if len(has) == 1:
        pytest.skip("this CPU has one level of instruction sets only")
    low, high = has[-2], has[-1]
    at = {level: {"ZTRAIN_CPU_ISA": level} for level in (low, high)}
    folder.train(name="whole", env=at[low])
    folder.train(name="run", env=at[low], sets=["train.max_steps=3", "train.epochs=null"])
    assert f'isa: "{low}"' in folder.ztrain("inspect", folder.run_folder()).out
    spec = folder.spec(name="run")
    resumed = folder.ztrain("--config", spec, "--resume", folder.run_folder())
    assert f"the run continues with the {low} kernels that it began with" in resumed.out, resumed
    assert OTHERWISE not in resumed.out
    assert folder.metrics().numbers()[-5:] == folder.metrics("whole").numbers()[-5:]

    back = folder.run_folder() + "/checkpoints/epoch-0001"
    other = folder.ztrain("--config", folder.spec(name="other"), "--resume", back, env=at[high])
    assert f"{OTHERWISE} (isa: {low}, now {high}" in other.out, other
    assert "that it began with" not in other.out


@pytest.mark.parametrize("word, other", [("widen", "dot"), ("dot", "widen")])
def test_a_resumed_run_multiplies_bf16_as_before(folder, word, other):
    needs_bf16()
    env, sets = {"ZTRAIN_CPU_BF16": word}, ["bf16.enabled=true"]
    folder.train(name="whole", env=env, sets=sets)
    folder.train(name="run", env=env, sets=[*sets, "train.max_steps=3", "train.epochs=null"])
    assert f'bf16_products: "{word}"' in folder.ztrain("inspect", folder.run_folder()).out
    spec = folder.spec({"bf16": {"enabled": True}}, name="run")
    resumed = folder.ztrain("--config", spec, "--verbose", "--resume", folder.run_folder())
    assert f"({word})" in resumed.out and OTHERWISE not in resumed.out, resumed
    assert folder.metrics().numbers()[-5:] == folder.metrics("whole").numbers()[-5:]
    back = folder.run_folder() + "/checkpoints/epoch-0001"
    forced = folder.ztrain("--config", folder.spec({"bf16": {"enabled": True}}, name="other"), "--resume", back,
                           env={"ZTRAIN_CPU_BF16": other})
    assert f"bf16_products: {word}, now {other}" in forced.out, forced


def test_threads_change_no_bit(folder):
    model = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 256, "hidden_size": 128,
             "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 32, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
             "tie_word_embeddings": False, "hidden_act": "silu"}
    for threads in ("1", "3"):
        folder.train({"model": {"config": model}, "train": {"epochs": 1}}, name=threads, env={"OMP_NUM_THREADS": threads})
    assert folder.metrics("1").numbers() == folder.metrics("3").numbers()


WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@pytest.mark.parametrize("given, found", [({}, {"GOMP_SPINCOUNT", "KMP_BLOCKTIME"}), ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY"})],
                         ids=["default", "a user's setting"])
def test_threads_that_wait_sleep_soon(folder, monkeypatch, given, found):
    """The run time of OpenMP reads how long threads spin when it is loaded, so the program has to start with the setting."""
    for name in WAITING:
        monkeypatch.delenv(name, raising=False)
    process = folder.start("--config", folder.spec({"train": {"epochs": None, "max_steps": 1000000}}), env=given)
    wait_for_steps(folder, process, 1)
    with open(f"/proc/{process.pid}/environ", encoding="utf-8") as environ, open(f"/proc/{process.pid}/comm", encoding="utf-8") as comm:
        assert {entry.split("=")[0] for entry in environ.read().split("\0")} & set(WAITING) == found
        assert comm.read() == "ztrain\n"
    process.kill()


def test_a_program_of_the_dynamic_linker(folder, monkeypatch):
    """There /proc/self/exe is the linker."""
    for name in WAITING:
        monkeypatch.delenv(name, raising=False)
    with open(ZTRAIN, "rb") as f:
        linker = re.search(rb"/lib[\w/.-]*/ld-linux[\w.-]*", f.read(4096)).group().decode()
    done = folder.wait(folder.start("version", prefix=(linker,)))
    assert done.code == FINISHED and done.out.startswith("ztrain "), done

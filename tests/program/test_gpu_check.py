# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu-check.sh without a GPU: its parts that run and judge programs on the CPU device, and what it makes of what stand-ins of
programs print."""
import argparse
import importlib.util
import json
import os
import re
import shutil
import stat
import subprocess
import sys

import pytest

import harness


def check(folder, *arguments):
    """A folder with ztrain and an ops-test that does nothing; `arguments` follow --build."""
    build = folder.at("build")
    os.makedirs(build, exist_ok=True)
    for name, program in (("ztrain", os.path.abspath(harness.ZTRAIN)), ("ops-test", "/bin/true")):
        if not os.path.lexists(os.path.join(build, name)):
            os.symlink(program, os.path.join(build, name))
    return subprocess.run(["scripts/gpu-check.sh", "--build", build, *arguments], cwd=harness.ROOT, capture_output=True,
                          text=True, timeout=120 * harness.SLOWNESS)


def test_a_part_of_its_own(folder):
    done = check(folder, "--device", "cpu", "--out", folder.at("out"), "virtual", "resume")
    assert done.returncode == 0 and done.stdout.endswith("2 passed, 0 failed\n"), done.stdout + done.stderr
    with open(folder.at("out/SUMMARY"), encoding="utf-8") as f:
        text = f.read()
    assert re.search(r"^virtual ranks: 8 runs of \d+ rows; the same ", text, re.M)
    assert re.search(r"^resume: \d+ rows; the same after a resume$", text, re.M)


def script(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write("#!/bin/bash\n" + text)
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)


def stand_ins(folder, *builds):
    """A copy of the script, next to build folders with programs that say what they are."""
    shutil.copytree(os.path.join(harness.ROOT, "scripts"), folder.at("tree/scripts"), dirs_exist_ok=True)
    for build in builds:
        for name in ("ztrain", "ops-test"):
            script(folder.at(f"tree/{build}/{name}"), f"echo this is {build}/{name}\n")


def check_tree(folder, *arguments, path=None, **environment):
    """`path`: instead of PATH, with programs that the script shall not find elsewhere."""
    return subprocess.run([folder.at("tree/scripts/gpu-check.sh"), *arguments], capture_output=True, text=True,
                          env={**os.environ, **({"PATH": path} if path else {}), **environment}, timeout=120 * harness.SLOWNESS)


def test_the_build_folder_is_the_one_that_exists(folder):
    """README: make gpu-build && scripts/gpu-check.sh. The hint names a target that makes what is looked for."""
    stand_ins(folder)
    done = check_tree(folder, "ops")
    assert done.returncode == 2 and done.stderr == "gpu-check: no build/ztrain; hint: make gpu-build, or --build DIR\n", done.stderr
    with open(os.path.join(harness.ROOT, "Makefile"), encoding="utf-8") as f:
        assert "BUILD=build/gpu CUDA=1 STATIC_LIBRARIES=1 build/gpu/ztrain build/gpu/ops-test" in f.read()
    stand_ins(folder, "build")
    assert "this is build/ops-test" in check_tree(folder, "ops").stdout
    script(folder.at("tree/build/gpu/ztrain"), "")  # a build that is not complete
    assert "this is build/ops-test" in check_tree(folder, "ops").stdout
    stand_ins(folder, "build/gpu")
    assert "this is build/gpu/ops-test" in check_tree(folder, "ops").stdout
    assert "this is build/ops-test" in check_tree(folder, "--build", folder.at("tree/build"), "ops").stdout


def test_the_commands_of_the_documents(folder):
    for name in ("README.md", "docs/gpu-log.md"):
        with open(os.path.join(harness.ROOT, name), encoding="utf-8") as f:
            text = f.read()
        assert "`make gpu-build && scripts/gpu-check.sh`" in text, name
        for words in re.findall(r"`scripts/gpu-check\.sh ([^`…]*)`", text):
            stand_ins(folder, "build")
            assert check_tree(folder, *words.split(), "--help").returncode == 0 or set(words.split()) <= set(parts()), words


def parts():
    with open(os.path.join(harness.ROOT, "scripts", "gpu-check.sh"), encoding="utf-8") as f:
        return re.search(r"^all=\((.*)\)$", f.read(), re.M).group(1).split()


def limits(to_come, elapsed, seconds, name, sanitizer=True):
    """The limit of a part after so many seconds."""
    with open(os.path.join(harness.ROOT, "scripts", "gpu-check.sh"), encoding="utf-8") as f:
        text = f.read()
    kept = re.search(r"^declare -A kept=\(.*?^\)$", text, re.M | re.S).group(0)
    function = re.search(r"^limit_of\(\) \{.*?^\}$", text, re.M | re.S).group(0)
    none = "" if sanitizer else "kept[memcheck]=0 kept[racecheck]=0\n"
    words = f"{kept}\n{none}{function}\nto_come=({' '.join(to_come)}) seconds={seconds} SECONDS={elapsed}\nlimit_of {name}; echo $REPLY"
    return int(subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=True).stdout)


def test_the_limits_are_those_of_ten_minutes():
    with open(os.path.join(harness.ROOT, "scripts", "gpu-check.sh"), encoding="utf-8") as f:
        text = f.read()
    table = re.search(r"^declare -A kept=\((.*?)^\)$", text, re.M | re.S).group(1)
    kept = {name: int(value) for name, value in re.findall(r"\[([a-z0-9-]+)\]=(\d+)", table)}
    seconds = int(re.search(r"^build=.* seconds=(\d+)$", text, re.M).group(1))
    runs = dict(re.findall(r'\[([a-z]+)\]="?([a-z0-9 -]+?)"?(?= \[|\n)', re.search(r"^declare -A runs_of=\((.*?)^\)$", text, re.M | re.S).group(1)))
    order = [name for part in parts() for name in runs[part].split()]
    assert sorted(order) == sorted(kept) and sum(kept.values()) <= seconds <= 580
    assert parts()[:5] == ["doctor", "ops", "golden", "ranks", "bench"] and parts()[-1] == "sanitizer"
    # whatever is left unused goes to the parts that follow, and what these need stays
    after = sum(kept[name] for name in order[order.index("bench") + 1:])
    assert limits(order, 100, seconds, "bench") == seconds - 100 - after
    assert limits(order, 100, seconds, "bench", sanitizer=False) == seconds - 100 - after + 90
    assert limits(order, 400, seconds, "bench") == kept["bench"] and limits(order, 540, seconds, "bench") == seconds - 540
    assert limits(order, 0, seconds, "gpu-test") < kept["gpu-test"] + 10
    assert limits(["bench"], 1, seconds, "bench") == seconds - 1


DOCTOR = """gpu
  driver            580.65.06 (NVML 13)
  gpu 0             NVIDIA H100 80GB HBM3, 79.6 GiB (79.1 GiB available)
                    SMs at 345 of 1980 MHz, memory at 2619 MHz, 31 degrees, 70 of 700 W, throttled: no
  cublasLt          13.1.0 (built with 13.1.0)  /usr/lib/libcublasLt.so.13
  cuDNN             9.19.0 (built with 9.19.0)  /usr/lib/libcudnn.so.9
  NCCL              not found
  cuda device       NVIDIA H100 80GB HBM3; GPU 0 of 1, compute capability 9.0, driver for CUDA 13.0, cublasLt 13.1.0
  products bf16     650.0 TFLOP/s, 65.7 % of the data sheet's 989
"""
SELF_TEST = """gpu test
  op embedding_fwd         right
  op norm_bwd              {norm}
  a captured step          right
  time              1.4 s
"""
BENCH = """qwen2.5-7b      T=1024 B=4 x 128, deterministic: left out: does not fit: it needs 146.8 GiB
torch: left out: there is no torch for python3; hint: pip install torch
gpt2-124m-b128  T=1024 B=128 x 4, deterministic: false: ztrain 580000 tokens/s MFU 46.8 %, expected 591001 (47.7 %), ratio 0.98; goal 47 % on an H100: missed; 41.0 GiB, 5 steps
    ms of a micro-batch     measured  expected   ratio
    products                   40.000    39.000    1.03
    off by more than 15 %: norms (1.25 of the expected time)
gpt2-124m-b128  T=1024 B=128 x 4, deterministic: ztrain 540000 tokens/s MFU unknown; 41.0 GiB, 5 steps
gpt2-1558m      T=1024 B=16 x 32, deterministic: not measured: out of time: it takes about 30 s, 12 are left
qwen2.5-0.5b    torch: not measured: out of time: it takes about 54 s, 12 are left
gpt2-124m       torch: ztrain 500000, torch 400000 tokens/s, ratio 1.25; torch 30.0 GiB
2 passed, 0 failed
"""


def stand_in_gpu(folder, norm="right"):
    """Programs that print what they would on a GPU, in the tree and in a PATH of their own."""
    stand_ins(folder, "build")
    for name, text in (("doctor", DOCTOR), ("gpu-test", SELF_TEST.format(norm=norm)), ("bench", BENCH)):
        with open(folder.at(f"{name}.txt"), "w", encoding="utf-8") as f:
            f.write(text)
    script(folder.at("tree/build/ztrain"), f"""case "$*" in
doctor) cat {folder.at("doctor.txt")} ;;
*--gpu-test) cat {folder.at("gpu-test.txt")}; ! grep -q WRONG {folder.at("gpu-test.txt")} || exit 5 ;;
*) echo "a step" ;;
esac
""")
    script(folder.at("bin/python3"), f"""case "$*" in
*gpu_bench.py*) cat {folder.at("bench.txt")} ;;
*) exec {sys.executable} "$@" ;;
esac
""")
    return folder.at("bin") + ":/usr/bin:/bin"


def summary_of(folder):
    with open(folder.at("out/SUMMARY"), encoding="utf-8") as f:
        return f.read()


def test_the_summary_has_what_an_entry_of_the_log_needs(folder):
    path = stand_in_gpu(folder)
    script(folder.at("bin/compute-sanitizer"), 'echo "========= ERROR SUMMARY: 0 errors"\n')
    done = check_tree(folder, "--out", folder.at("out"), "doctor", "bench", "sanitizer", path=path)
    text = summary_of(folder)
    assert done.returncode == 0 and done.stdout.endswith(text + "6 passed, 0 failed\n"), done.stdout + done.stderr
    assert re.match(r"gpu-check of 20\d\d-\d\d-\d\d, commit .*, programs of build, train.device=cuda, \d+ s\n", text), text
    for line in ("GPU: NVIDIA H100 80GB HBM3, 79.6 GiB; driver 580.65.06 (NVML 13)", "libraries: cublasLt 13.1.0; cuDNN 9.19.0",
                 "self-test: 3 checks right, 1.4 s", "passed: gpu-test (1); doctor (1); bench (2); memcheck (1); racecheck (1)", "failed: nothing",
                 "left out: nothing", "memcheck: ERROR SUMMARY: 0 errors", "racecheck: ERROR SUMMARY: 0 errors",
                 "products bf16 650.0 TFLOP/s, 65.7 % of the data sheet's 989", "    off by more than 15 %: norms (1.25 of the expected time)",
                 "torch: left out: there is no torch for python3; hint: pip install torch"):
        assert line in text.splitlines(), text
    assert "    products" not in text and len(text.splitlines()) < 40
    entry = text.splitlines()[-8:]
    assert re.fullmatch(r"## 20\d\d-\d\d-\d\d, .+", entry[0]) and entry[1] == "", entry
    assert entry[2:7] == ["- GPU: NVIDIA H100 80GB HBM3, 79.6 GiB; driver 580.65.06 (NVML 13); cublasLt 13.1.0; cuDNN 9.19.0",
                          "- self-test: 3 checks right, 1.4 s",
                          "- passed: gpu-test (1); doctor (1); bench (2); memcheck (1); racecheck (1)",
                          "- failed: nothing; left out: nothing",
                          "- bits: memcheck: ERROR SUMMARY: 0 errors; racecheck: ERROR SUMMARY: 0 errors"]
    assert entry[7] == ("- figures: qwen2.5-7b deterministic left out: does not fit; "
                        "gpt2-124m-b128 deterministic: false 580000 tokens/s, MFU 46.8 % (expected 47.7 %); "
                        "gpt2-124m-b128 deterministic 540000 tokens/s, MFU unknown; gpt2-124m torch ratio 1.25; "
                        "out of time: gpt2-1558m deterministic, qwen2.5-0.5b torch")


def test_the_summary_of_one_part_names_the_gpu_too(folder):
    path = stand_in_gpu(folder)
    done = check_tree(folder, "--out", folder.at("out"), "bench", path=path)
    assert done.returncode == 0 and "GPU: NVIDIA H100 80GB HBM3, 79.6 GiB; driver 580.65.06" in summary_of(folder)
    assert "self-test: not run" in summary_of(folder)


def test_the_summary_names_what_the_self_test_found(folder):
    path = stand_in_gpu(folder, norm="WRONG: 3e-2 off")
    done = check_tree(folder, "--out", folder.at("out"), "doctor", path=path)
    assert done.returncode == 1
    assert "self-test: op norm_bwd WRONG: 3e-2 off\n" in summary_of(folder) and "failed: gpu-test (1 of 1)" in summary_of(folder)


def test_the_summary_says_why_a_part_failed(folder):
    path = stand_in_gpu(folder)
    script(folder.at("tree/build/ops-test"), "sleep 60\n")
    done = check_tree(folder, "--out", folder.at("out"), "--seconds", "6", "ops", path=path)
    assert done.returncode == 1, done.stdout
    text = summary_of(folder)
    assert re.search(r"^failed: ops \(over [56] s\); ops-own-attention \(1 of 1\); fault \(1 of 1\)$", text, re.M), text
    assert "\nops-own-attention: left out: no time left\n" in text
    script(folder.at("tree/build/ops-test"), "echo a table; echo ops-test: no memory; exit 5\n")
    check_tree(folder, "--out", folder.at("out"), "perf", path=path)
    assert "failed: perf (1 of 1); perf-own-attention (1 of 1)\n" in summary_of(folder)
    assert "\nperf: ops-test: no memory\n" in summary_of(folder), summary_of(folder)
    script(folder.at("tree/build/ops-test"), "printf 'FAIL rope\\nok   add\\n1 passed, 1 failed\\n'; exit 1\n")
    check_tree(folder, "--out", folder.at("out"), "ops", path=path)
    assert "failed: ops (1 of 2); ops-own-attention (1 of 2); fault (1 of 2)\n" in summary_of(folder) and "\nops: FAIL rope\n" in summary_of(folder)
    assert "ok   add" not in summary_of(folder)


def test_a_missing_sanitizer_is_neither_pass_nor_failure(folder):
    path = stand_in_gpu(folder)
    done = check_tree(folder, "--out", folder.at("out"), "doctor", "sanitizer", path=path, CUDA_HOME=folder.at("none"))
    assert done.returncode == 0 and done.stdout.endswith("\n2 passed, 0 failed\n"), done.stdout + done.stderr
    assert done.stdout.count("left out: no compute-sanitizer (hint: ") == 2 and "pip install nvidia-cuda-sanitizer-api" in done.stdout
    text = summary_of(folder)
    assert "left out: memcheck: no compute-sanitizer; racecheck: no compute-sanitizer\n" in text and "failed: nothing" in text
    # as PyPI's package has it
    script(folder.at("packages/nvidia/cu13/bin/compute-sanitizer"), 'echo "========= ERROR SUMMARY: 0 errors"\n')
    done = check_tree(folder, "--out", folder.at("out"), "sanitizer", path=path, PYTHONPATH=folder.at("packages"))
    assert done.returncode == 0 and done.stdout.endswith("2 passed, 0 failed\n"), done.stdout + done.stderr


def test_nccl_has_time_where_there_are_two_gpus(folder):
    """In the tree the golden runs are a stand-in that prints its way."""
    path = stand_in_gpu(folder)
    script(folder.at("tree/tests/golden/check_golden.py"), 'echo "way: $ZTRAIN_NCCL_MEMORY $*"; echo "1 passed, 0 failed"\n')
    for gpus in (1, 2):
        script(folder.at("bin/nvidia-smi"), f'[ "$1" != -L ] || for i in {{1..{gpus}}}; do echo "GPU $i: a GPU"; done\n')
        done = check_tree(folder, "--out", folder.at("out"), "bench", "nccl", path=path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert ("left out: nccl: one GPU; nccl-plain: one GPU" in summary_of(folder)) == (gpus == 1)
        assert re.findall(r"^way: (\w*) .*--ranks 2", done.stdout, re.M) == ["", "plain"][: 2 * (gpus - 1)]
    with open(os.path.join(harness.ROOT, "scripts", "gpu-check.sh"), encoding="utf-8") as f:
        more = {name: int(value) for name, value in re.findall(r"\[([a-z-]+)\]=(\d+)", re.search(r"kept\+=\((.*)\)", f.read()).group(1))}
    assert more["nccl"] >= 30 and more["nccl-plain"] >= 15 and more["nccl"] + more["nccl-plain"] + more["bench"] <= 150


def test_a_benchmark_without_time_has_not_passed(folder):
    done = check(folder, "--device", "cpu", "--out", folder.at("out"), "--seconds", "30", "doctor", "bench")
    assert done.returncode == 0 and done.stdout.endswith("1 passed, 0 failed\n"), done.stdout + done.stderr
    assert "GPU: no GPU\n" in summary_of(folder) or os.path.exists("/dev/nvidia0")
    assert "passed: doctor (1)\n" in summary_of(folder) and "out of time: gpt2-124m-b128 deterministic: false, " in summary_of(folder)


def test_the_summary_is_of_this_run_and_names_what_failed(folder):
    out = folder.at("out")
    assert check(folder, "--device", "cpu", "--out", out, "ops").returncode == 0
    done = check(folder, "--device", "cpu", "--out", out, "--seconds", "1", "doctor")
    assert done.returncode == 1 and done.stdout.endswith("0 passed, 1 failed\n")
    summary = summary_of(folder)
    assert "ops" not in summary and "doctor: left out: no time left" in summary and "failed: doctor (1 of 1)" in summary


def test_options(folder):
    for arguments, words in ((["--out"], "--out needs a value"), (["doctor", "tpyo"], "no part 'tpyo'"),
                             (["--nosuch"], "no option '--nosuch'")):
        done = check(folder, *arguments)
        assert done.returncode == 2 and words in done.stderr and "=== doctor" not in done.stdout, done.stderr


# --- the benchmark ----------------------------------------------------------------------------------------------------

def load_bench():
    spec = importlib.util.spec_from_file_location("gpu_bench", os.path.join(harness.ROOT, "scripts", "gpu_bench.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


H100 = "NVIDIA H100 80GB HBM3"


def bench(folder, cases, *arguments, ztrain=harness.ZTRAIN):
    with open(folder.at("cases.json"), "w", encoding="utf-8") as f:
        json.dump(cases, f)
    return subprocess.run([sys.executable, "scripts/gpu_bench.py", "--cases", folder.at("cases.json"), "--device", "cpu", "--tokens", "128",
                           "--seconds", "0", "--gpu", H100, "--out", folder.at("."), "--ztrain", ztrain, *arguments],
                          cwd=harness.ROOT, capture_output=True, text=True, timeout=120 * harness.SLOWNESS)


TINY = {"model": {**harness.GPT2, "n_positions": 64}, "length": 32, "batch": 2}
HUGE = {"model": {**harness.GPT2, "n_embd": 16384, "n_layer": 200, "n_head": 128, "n_positions": 1024}, "length": 1024, "batch": 64}


def tasks_on_an_h100(module, folder, **changes):
    arguments = argparse.Namespace(cases=module.CASES, ztrain=os.path.abspath(harness.ZTRAIN), out=folder.at("."), device="cuda",
                                   gpu=H100, tokens=module.TOKENS, seconds=4, **changes)
    module.torch_is_missing = lambda _: None
    return module.tasks_of(arguments, folder.at("."))


def names(tasks):
    return [task.name + (" torch" if task.torch else " deterministic" if task.deterministic else "") for task in tasks]


@pytest.mark.long  # the plan takes terabytes of addresses, which a sanitizer does not have
def test_what_does_not_fit_is_no_pass(folder):
    """By the plan, which starts no run; and by ztrain, where the plan has more memory or does not know the GPU."""
    done = bench(folder, {"huge": HUGE, "small-memory": {**TINY, "settings": {"train.memory_limit": "1MiB"}}, "tiny": TINY})
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[-1] == "2 passed, 0 failed", done.stdout + done.stderr
    for variant, line in (("deterministic: false", lines[0]), ("deterministic", lines[1])):
        assert re.match(rf"huge +T=1024 B=64 x 1, {variant}: left out: does not fit: it needs [\d.]+ GiB", line), done.stdout
    assert not any(name.startswith("bench-huge") for name in os.listdir(folder.at("."))), "a run was started"
    assert re.search(r"small-memory +T=32 B=2 x 2, deterministic: left out: does not fit: .*MiB.* \(the plan says that it fits\)", done.stdout)
    done = bench(folder, {"huge": HUGE}, "--gpu", "NVIDIA T4")
    assert done.returncode == 0 and done.stdout.endswith("0 passed, 0 failed\n"), done.stdout + done.stderr
    assert re.search(r"huge .*deterministic: left out: does not fit: .*GiB", done.stdout)


def test_a_case_runs_in_both_variants(folder):
    done = bench(folder, {"tiny": {**TINY, "llmq": 46.6, "goal": 47}})
    assert done.returncode == 0 and done.stdout.endswith("2 passed, 0 failed\n"), done.stdout + done.stderr
    expected = []
    for variant in ("deterministic: false", "deterministic"):
        # a step has 128 tokens in micro-batches of 64; the plan's H100 is not as slow, or fast, as this CPU
        row = re.search(rf"^tiny +T=32 B=2 x 2, {variant}: ztrain \d+ tokens/s MFU \w+.*, expected (\d+) \([\d.]+ %\), ratio [\d.]+",
                        done.stdout, re.M)
        assert row, done.stdout
        expected.append(row.group(1))
    assert expected[0] != expected[1], "the plan does not know the variants"
    assert done.stdout.count("; LLM.Q 46.6 % on an H100") == done.stdout.count("; goal 47 % on an H100") == 2
    for kind in ("products", "attention backward", "norms", "cross-entropy", "optimizer (a step)"):
        assert len(re.findall(rf"^    {re.escape(kind)} +[\d.]+ +[\d.]+", done.stdout, re.M)) == 2, kind
    assert done.stdout.count("off by more than 15 %: ") == 2


def test_ops_are_timed_after_a_warm_up(folder):
    """Kernels are loaded in the first step, and would make small kinds look slow."""
    module = load_bench()
    seen = []

    def watch(run, line, *_):
        seen.append(dict(word.split("=", 1) for word in line if "=" in word))
        return "exit 1: no run"
    module.Run.watch = watch
    tasks = {task.name: task for task in tasks_on_an_h100(module, folder) if not task.deterministic and not task.torch}
    for name in ("gpt2-1558m", "qwen2.5-7b-bf16"):
        module.measure(argparse.Namespace(cases=module.CASES), tasks[name], True, 1, 500)
    short, long = seen
    assert short["flops_profiler.enabled"] == "true" and int(short["flops_profiler.profile_step"]) >= 3
    assert int(long["flops_profiler.profile_step"]) >= 2 and tasks["qwen2.5-7b-bf16"].step(1) > module.NO_WARM_UP


def test_a_ztrain_that_ends_fails(folder):
    done = bench(folder, {"tiny": TINY}, ztrain="/bin/false")
    assert done.returncode == 1 and done.stdout.endswith("0 passed, 2 failed\n"), done.stdout + done.stderr
    assert "exit 1" in done.stdout


def test_a_gpu_of_which_nothing_is_expected(folder):
    done = bench(folder, {"tiny": TINY}, "--gpu", "NVIDIA T4")
    assert done.returncode == 0 and "expected of" in done.stdout and ", expected" not in done.stdout, done.stdout + done.stderr


def test_time_that_does_not_suffice_is_no_pass(folder):
    done = bench(folder, {"tiny": TINY}, "--limit", "3")
    assert done.returncode == 0 and done.stdout.endswith("0 passed, 0 failed\n"), done.stdout + done.stderr
    assert len(re.findall(r"^tiny .*: not measured: out of time: it takes about \d+ s, \d+ are left$", done.stdout, re.M)) == 2


def test_a_missing_pytorch_is_said():
    module = load_bench()
    module.importlib.util.find_spec = lambda name: None if name == "transformers" else name
    try:
        assert "there is no transformers for " in module.torch_is_missing(argparse.Namespace(device="cuda"))
        module.importlib.util.find_spec = lambda name: name
        assert module.torch_is_missing(argparse.Namespace(device="cuda")) is None
    finally:
        importlib.reload(importlib.util)


def test_the_goals_come_first(folder):
    """What an H100 would be expected to have time for. Everything, PyTorch in one case, within ten minutes; the goals, LLM.Q's shapes
    and PyTorch in what the other parts of gpu-check leave; the goals alone in less."""
    module = load_bench()
    tasks = tasks_on_an_h100(module, folder)
    assert "qwen2.5-7b" not in names(tasks) and "qwen2.5-7b-bf16" in names(tasks)  # 80 GB
    fast = ["gpt2-124m-b128", "gpt2-1558m", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b-bf16", "gpt2-124m"]
    chosen = names(module.schedule(tasks, 545))
    assert set(chosen) == {*fast, *(f"{name} deterministic" for name in fast), "gpt2-124m torch"}
    assert chosen[:8] == [*fast, "gpt2-124m torch"]
    assert names(module.schedule(tasks, 350))[:8] == [*fast, "gpt2-124m torch"]
    assert names(module.schedule(tasks, 60)) == fast[:2]
    assert not module.schedule(tasks, 10)
    # a GPU that is half as fast gets fewer cases, and what is estimated to take longest is left out first
    slow = names(module.schedule(tasks, 350, 2))
    assert slow[:2] == fast[:2] and len(slow) < 10
    for left in (60, 350, 565):
        began, cost = set(), 0
        for task, ops in module.schedule(tasks, left).items():
            cost += task.cost(1, task.name not in began) + ops * task.step(1)
            began.add(task.name)
        assert cost <= left


def test_the_order_in_which_cases_are_measured(folder, capsys):
    """With a clock that goes on as the plan expects. PyTorch keeps its time while its case is not yet measured; what is not measured is named."""
    module = load_bench()
    tasks_on_an_h100(module, folder)
    arguments = argparse.Namespace(cases=module.CASES, ztrain=os.path.abspath(harness.ZTRAIN), out=folder.at("."), device="cuda", gpu=H100,
                                   tokens=module.TOKENS, seconds=4)
    clock, order = [0.0], []

    def spend(task, timed):
        clock[0] += task.cost(1, task.name not in [name for name, _ in order]) + timed * task.step(1)
        order.append((task.name, "torch" if task.torch else task.deterministic))

    def measure(_, task, timed, *__):
        spend(task, timed)
        return (False, None) if task.name == "qwen2.5-3b" else (True, task.expected["tokens/s"])
    module.measure, module.compare_with_torch = measure, lambda _, __, task, *___: spend(task, False)
    module.time = argparse.Namespace(monotonic=lambda: clock[0])
    for left in (320, 560, 1000):
        clock[0], order[:] = 0.0, []
        results = module.measure_all(arguments, folder.at("."), left)
        out = capsys.readouterr().out
        assert clock[0] <= left and order[0] == ("gpt2-124m-b128", False), (left, order)
        measured = [name for name, kind in order if kind is False]
        assert measured == [name for name in module.CASES if name != "qwen2.5-7b"]
        assert (out.count(module.OUT_OF_TIME) == 0) == (left == 1000), out
        assert results.count(False) >= 1  # 3B, of which nothing is compared with PyTorch
        assert ("qwen2.5-3b", "torch") not in order
        assert left < 560 or ("gpt2-124m", "torch") in order, out
        assert left < 1000 or "qwen2.5-3b      torch: left out: there is no speed of ztrain's" in out, out


def test_published_figures_have_a_verdict_on_the_h100_only():
    module = load_bench()
    assert module.next_to(47.2, H100, "goal", 47, "reached", "missed") == "; goal 47 % on an H100: reached"
    assert module.next_to(46.9, H100, "goal", 47, "reached", "missed") == "; goal 47 % on an H100: missed"
    assert module.next_to(47.2, "NVIDIA B200", "goal", 47, "reached", "missed") == "; goal 47 % on an H100"
    assert module.next_to(None, H100, "LLM.Q", 46.6, "ahead", "behind") == "; LLM.Q 46.6 % on an H100"
    assert {name: case.llmq for name, case in module.CASES.items() if case.llmq} == {
        "qwen2.5-0.5b": 46.6, "qwen2.5-1.5b": 56.6, "qwen2.5-3b": 59.2, "qwen2.5-7b-bf16": 60.0}
    assert {name: case.goal for name, case in module.CASES.items() if case.goal} == {"gpt2-124m-b128": 47, "gpt2-1558m": 57}


def test_kinds_that_are_off_are_named(capsys):
    module = load_bench()
    expected = {"GEMM forward": 40.0, "GEMM dgrad": 40.0, "GEMM wgrad": 40.0, "head GEMMs": 20.0, "norms": 8.0, "optimizer": 10.0}
    seconds = {"linear_fwd": 0.050, "linear_bwd_input": 0.050, "linear_bwd_weight": 0.050, "norm_fwd": 0.006, "norm_bwd": 0.004, "adam": 0.007}
    rows = module.by_kind(expected, seconds, 4)
    module.print_kinds(rows)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "    off by more than 15 %: norms (1.25 of the expected time), optimizer (0.70 of the expected time)"
    assert dict((kind, measured) for kind, measured, _ in rows)["norms"] == 2.5 and rows[-1][:2] == ("optimizer", 7.0)


def test_the_cases_have_plans(folder):
    """Each kind of op of each case has an expected time, and together they are the step; no goal is above what the plan expects."""
    module = load_bench()
    arguments = argparse.Namespace(cases=module.CASES, ztrain=os.path.abspath(harness.ZTRAIN), out=folder.at("."), device="cuda")
    for name, case in module.CASES.items():
        run = module.Run(arguments, folder.at("."), name, module.TOKENS // (case.length * case.batch), deterministic=False)
        assert run.accumulation * case.length * case.batch == module.TOKENS
        planned = module.plan(run, H100)
        rows = {kind: sum(planned["rows"].get(row, 0) for row in rows) for kind, (rows, _) in module.KINDS.items()}
        assert all(rows[kind] > 0 for kind in rows if kind != "RoPE" or case.model["model_type"] == "qwen2"), (name, rows)
        step = (sum(rows.values()) + planned["rows"].get("launch gaps", 0)) / 1e3
        assert abs(module.TOKENS / step / planned["tokens/s"] - 1) < 0.01, (name, rows)
        assert planned["mfu"] >= (case.goal or 0) and bool(planned["no fit"]) == (name == "qwen2.5-7b"), name


def test_the_gpu_is_the_one_that_the_runs_take(folder):
    module = load_bench()
    arguments = argparse.Namespace(ztrain=os.path.abspath(harness.ZTRAIN), out=folder.at("."), device="cpu")
    assert isinstance(module.gpu_name(arguments, folder.at(".")), str)

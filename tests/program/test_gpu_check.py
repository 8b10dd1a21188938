"""scripts/gpu-check.sh without a GPU: its parts that run and judge programs, on the CPU device."""
import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys

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
    done = check(folder, "--device", "cpu", "--out", folder.at("out"), "resume")
    assert done.returncode == 0 and done.stdout.endswith("1 passed, 0 failed\n"), done.stdout + done.stderr
    assert "the same after a resume" in done.stdout


def test_the_summary_is_of_this_run_and_names_what_failed(folder):
    out = folder.at("out")
    assert check(folder, "--device", "cpu", "--out", out, "ops").returncode == 0
    done = check(folder, "--device", "cpu", "--out", out, "--seconds", "1", "doctor")
    assert done.returncode == 1 and done.stdout.endswith("0 passed, 1 failed\n")
    with open(os.path.join(out, "SUMMARY"), encoding="utf-8") as f:
        summary = f.read()
    assert "## ops" not in summary and "left out: no time left" in summary and "failed: doctor" in summary


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
        row = re.search(rf"^tiny +T=32 B=2 x 2, {variant}: ztrain \d+ tokens/s MFU \w+.*, expected (\d+) \([\d.]+ %\), ratio [\d.]+", done.stdout, re.M)
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
    chosen = names(module.schedule(tasks, 565))
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

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


def bench(folder, cases, *arguments, ztrain=harness.ZTRAIN):
    with open(folder.at("cases.json"), "w", encoding="utf-8") as f:
        json.dump(cases, f)
    return subprocess.run([sys.executable, "scripts/gpu_bench.py", "--cases", folder.at("cases.json"), "--device", "cpu", "--tokens", "128",
                           "--seconds", "0", "--gpu", "NVIDIA H100 80GB HBM3", "--out", folder.at("."), "--ztrain", ztrain, *arguments],
                          cwd=harness.ROOT, capture_output=True, text=True, timeout=120 * harness.SLOWNESS)


TINY = [{**harness.GPT2, "n_positions": 64}, 32, 2]
HUGE = [{**harness.GPT2, "n_embd": 16384, "n_layer": 200, "n_positions": 1024}, 1024, 64]


def test_what_does_not_fit_is_no_pass(folder):
    done = bench(folder, {"huge": HUGE, "tiny": TINY})
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[-1] == "1 passed, 0 failed", done.stdout + done.stderr
    assert re.match(r"huge +T=1024 +B=64 x 1: left out: does not fit: .*GiB", lines[0]), done.stdout
    # a step has 128 tokens in micro-batches of 64; the plan's H100 is not as slow, or fast, as this CPU
    assert re.match(r"tiny +T=32 +B=2 x 2: ztrain \d+ tokens/s MFU \w+, expected \d+, ratio [\d.]+", lines[1]), done.stdout
    for kind in ("products", "attention backward", "norms", "cross-entropy", "optimizer (a step)"):
        assert re.search(rf"^    {re.escape(kind)} +[\d.]+ +[\d.]+", done.stdout, re.M), kind
    assert "off by more than 15 %: " in lines[-2]


def test_a_ztrain_that_ends_fails(folder):
    done = bench(folder, {"tiny": TINY}, ztrain="/bin/false")
    assert done.returncode == 1 and done.stdout.endswith("0 passed, 1 failed\n"), done.stdout + done.stderr
    assert "exit 1" in done.stdout


def test_a_gpu_of_which_nothing_is_expected(folder):
    done = bench(folder, {"tiny": TINY}, "--gpu", "NVIDIA T4")
    assert done.returncode == 0 and "expected of" in done.stdout and ", expected" not in done.stdout, done.stdout + done.stderr


def test_kinds_that_are_off_are_named(capsys):
    module = load_bench()
    expected = {"GEMM forward": 40.0, "GEMM dgrad": 40.0, "GEMM wgrad": 40.0, "head GEMMs": 20.0, "norms": 8.0, "optimizer": 10.0}
    per = module.PROFILED * module.PROFILED_MICRO_BATCHES / 4e3  # seconds of a run for a millisecond of a step's plan
    seconds = {"linear_fwd": 50 * per, "linear_bwd_input": 50 * per, "linear_bwd_weight": 50 * per, "norm_fwd": 6 * per, "norm_bwd": 4 * per,
               "adam": 0.7 * 10 * module.PROFILED / 1e3}
    module.print_kinds(module.by_kind(expected, seconds))
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "    off by more than 15 %: norms (1.25 of the expected time), optimizer (0.70 of the expected time)"


def test_the_cases_have_plans(folder):
    """Each kind of op of each case has an expected time, and together they are the step."""
    module = load_bench()
    arguments = argparse.Namespace(cases=module.CASES, ztrain=harness.ZTRAIN, out=folder.at("."), device="cuda")
    for name, (model, length, batch) in module.CASES.items():
        run = module.Run(arguments, folder.at("."), name, module.TOKENS // (length * batch))
        assert run.accumulation * length * batch == module.TOKENS
        planned = module.plan(run, "NVIDIA H100 80GB HBM3")
        rows = {kind: sum(planned["rows"].get(row, 0) for row in rows) for kind, (rows, _) in module.KINDS.items()}
        assert all(rows[kind] > 0 for kind in rows if kind != "RoPE" or model["model_type"] == "qwen2"), (name, rows)
        step = (sum(rows.values()) + planned["rows"].get("launch gaps", 0)) / 1e3
        assert abs(module.TOKENS / step / planned["tokens/s"] - 1) < 0.01, (name, rows)

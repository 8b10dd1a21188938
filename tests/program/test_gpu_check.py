"""scripts/gpu-check.sh without a GPU: its parts that run and judge programs, on the CPU device."""
import os
import subprocess

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

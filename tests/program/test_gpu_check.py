"""scripts/gpu-check.sh without a GPU: a part that is none of a program's own runs and judges, on the CPU device."""
import os
import subprocess

import harness


def test_a_part_of_its_own(folder):
    build = folder.at("build")
    os.mkdir(build)
    os.symlink(os.path.abspath(harness.ZTRAIN), os.path.join(build, "ztrain"))
    os.symlink("/bin/true", os.path.join(build, "ops-test"))
    done = subprocess.run(["scripts/gpu-check.sh", "--device", "cpu", "--build", build, "--out", folder.at("out"), "resume"],
                          cwd=harness.ROOT, capture_output=True, text=True, timeout=120 * harness.SLOWNESS)
    assert done.returncode == 0 and done.stdout.endswith("1 passed, 0 failed\n"), done.stdout + done.stderr
    assert "the same after a resume" in done.stdout

# SPDX-License-Identifier: Apache-2.0
"""Experts that ranks share, on GPUs of their own: tokens travel over NCCL, and steps are graphs. The numbers are transformers'."""
import os
import subprocess
import sys

import pytest

from test_training import ROOT, ZTRAIN

CHECK = os.path.join(ROOT, "tests", "golden", "check_golden.py")


NARROW = ["--set", "bf16.bf16_master_weights_and_grads=true", "--set", "communication_data_type=bf16"]


@pytest.mark.parametrize("dtype, stage, graphs, more", [("fp32", 3, "true", []), ("bf16", 1, "true", []), ("bf16", 3, "false", NARROW)])
@pytest.mark.parametrize("ranks", [2, 4])
def test_numbers_are_those_of_transformers(ranks, dtype, stage, graphs, more):
    done = subprocess.run([sys.executable, CHECK, "--ztrain", ZTRAIN, "--case", "olmoe", "--mode", "shared-experts", "--ranks", str(ranks),
                           "--stage", str(stage), "--dtype", dtype, "--steps", "4", "--set", "train.device=cuda",
                           "--set", f"train.cuda_graphs={graphs}", *more],
                          env={**os.environ, "ZTRAIN_EMULATION_GPUS": str(ranks)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=300, check=False)
    assert done.returncode == 0 and "1 passed, 0 failed" in done.stdout, done.stdout

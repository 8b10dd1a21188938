# SPDX-License-Identifier: Apache-2.0
"""Ranks that stop at random moments, for less than comm.timeout_seconds, and go on. That changes which rank waits for which, and in
which collective; no bit depends on it."""
import os
import random
import signal
import time

import pytest

from harness import REQUEUE, children, wait_for_steps
from test_experts import GPT_OSS, numbers
from virtual_case import WHOLE

SECONDS = 120 if WHOLE else 4
CHANGES = {"model": {"config": {**GPT_OSS, "num_experts_per_tok": 1, "output_router_logits": True}}, "zero_optimization": {"stage": 3},
           "train_batch_size": 12, "gradient_accumulation_steps": 2, "checkpoint": {"interval_steps": 20, "save_at_epoch_end": False}}


def pause(rng, pids):
    """Some of the ranks, for less than a collective or longer than a step, and not at quite the same time."""
    chosen = rng.sample(pids, rng.randint(1, len(pids)))
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in chosen:
            os.kill(pid, number)
            time.sleep(rng.choice((0, 0, 0.001, 0.004)))
        time.sleep(rng.choice((0, 0.0005, 0.002, 0.01, 0.05)))


@pytest.mark.parametrize("ranks", [2, 3])
def test_pauses_change_no_bit(folder, ranks):
    """A mixture of experts at stage 3, next to a run of as many steps without pauses."""
    rng = random.Random(ranks)
    process = folder.start("--config", folder.spec({**CHANGES, "train": {"epochs": None, "max_steps": 1000000}}, "paused"),
                           "--local-gpus", ranks)
    wait_for_steps(folder, process, 2, "paused")
    assert process.poll() is None, folder.said(process)
    pids, count, end = children(process.pid), 0, time.monotonic() + SECONDS
    while time.monotonic() < end:
        pause(rng, pids)
        count += 1
    process.send_signal(signal.SIGTERM)
    done = folder.wait(process)
    found = numbers(folder, "paused")
    assert done.code == REQUEUE and count > 2 * SECONDS and len(found) > SECONDS, done
    folder.train({**CHANGES, "train": {"epochs": None, "max_steps": len(found)}}, "undisturbed", ranks=ranks, seconds=2 * SECONDS)
    assert numbers(folder, "undisturbed") == found

# SPDX-License-Identifier: Apache-2.0
"""train.spike_factor: a loss that stands out is a line with the samples of its step, and changes nothing."""
import json
import os
import random

from harness import SEQUENCE, USAGE, VOCABULARY, write_mask, write_megatron

STRANGE = 17  # the step whose two samples are noise
CHANGES = {"train": {"epochs": 1, "max_steps": 19, "spike_factor": 2.0}, "train_batch_size": 2, "data": {"shuffle": False},
           "optimizer": {"params": {"lr": 2e-2}}, "checkpoint": {"interval_steps": 14, "compression_level": 0}}


def lines(folder, name):
    with open(os.path.join(folder.run_folder(name), "metrics.jsonl"), encoding="utf-8") as f:
        return [line for line in f if "loss_spike" in line]


def test_a_step_of_noise(folder):
    """Data of one token, which the model soon knows, and two samples of noise."""
    noise = random.Random(3)
    tokens = [noise.randrange(VOCABULARY) if i // SEQUENCE in (32, 33) else 5 for i in range(40 * SEQUENCE + 1)]
    folder.spec()
    write_megatron(folder.at("train"), [tokens])
    done = folder.train(CHANGES)
    (line,) = lines(folder, "run")
    spike = json.loads(line)
    steps = {row["step"]: row for row in folder.metrics().steps}
    assert spike["step"] == STRANGE and spike["epoch"] == 1 and spike["loss_spike"] == 2
    assert spike["spike_loss"] == steps[STRANGE]["loss"] and spike["spike_grad_norm"] == steps[STRANGE]["grad_norm"]
    before = [steps[step]["loss"] for step in range(1, STRANGE)]
    assert abs(spike["mean_loss"] - sum(before) / len(before)) < 1e-9
    assert spike["samples"] == [32, 33]
    assert f"step {STRANGE}: the loss" in done.err + done.out

    losses = folder.metrics().losses
    folder.train(CHANGES, name="off", sets=["train.spike_factor=0"])
    assert folder.metrics("off").losses == losses and not lines(folder, "off")

    resumed = os.path.join(folder.run_folder(), "checkpoints", "step-00000014")
    folder.train(CHANGES, more=["--resume", resumed])
    assert lines(folder, "run") == [line]
    folder.ztrain("report", folder.run_folder())


def test_a_step_without_targets_is_no_spike(folder):
    folder.spec()
    write_mask(folder.at("train"), 40 * SEQUENCE + 1, lambda i: not 22 * SEQUENCE <= i <= 24 * SEQUENCE)
    done = folder.train(CHANGES)
    (empty,) = [row for row in folder.metrics().steps if row["targets"] == 0]
    assert empty["step"] == 12 and not lines(folder, "run"), done
    assert "finite" not in done.err + done.out


def test_a_factor_below_one_is_refused(folder):
    done = folder.train({"train": {"spike_factor": 0.5}}, expect=USAGE)
    assert "'train.spike_factor' 0.5 is below 1" in done.err

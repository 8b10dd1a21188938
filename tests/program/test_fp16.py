# SPDX-License-Identifier: Apache-2.0
"""Training in fp16: the loss scale finds its way, is counted as DeepSpeed counts it, and survives a resume."""
import pytest

from harness import DIVERGED, GPT2, LLAMA

FP16 = {"enabled": True}


def losses(folder, changes, name, ranks=1):
    folder.train({"train": {"epochs": 3}, **changes}, name=name, ranks=ranks)
    return folder.metrics(name).losses


@pytest.mark.parametrize("model", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_fp16_follows_fp32(folder, model):
    wide = losses(folder, {"model": {"config": model}}, "wide")
    half = losses(folder, {"model": {"config": model}, "fp16": FP16}, "half")
    assert half == pytest.approx(wide, rel=5e-3) and half != wide
    steps = folder.metrics("half").steps
    assert all(row["loss_scale"] == 65536 and not row["skipped"] for row in steps)


@pytest.mark.long
def test_stages_give_the_same_bits(folder):
    seen = [losses(folder, {"fp16": FP16, "zero_optimization": {"stage": stage}}, f"stage{stage}", ranks=2)
            for stage in range(4)]
    assert seen[0] == seen[1] == seen[2] == seen[3]


def test_a_fixed_scale(folder):
    losses(folder, {"fp16": {**FP16, "loss_scale": 128}}, "fixed")
    assert {row["loss_scale"] for row in folder.metrics("fixed").steps} == {128}


def test_the_scale_doubles_after_the_window(folder):
    losses(folder, {"fp16": {**FP16, "initial_scale_power": 4, "loss_scale_window": 3}}, "growing")
    # DeepSpeed counts one clean step more before the first doubling
    assert [row["loss_scale"] for row in folder.metrics("growing").steps] == [16, 16, 16, 16, 32, 32, 32, 64, 64]


@pytest.mark.long
def test_overflows_are_skipped_until_the_scale_fits(folder):
    done = folder.train({"train": {"epochs": None, "max_steps": 40}, "fp16": {**FP16, "initial_scale_power": 40}})
    steps = folder.metrics().steps
    skipped = [row["skipped"] for row in steps]
    count = skipped.index(False)
    assert count > 3 and sum(skipped) < count + 8  # at its limit the scale is met by an overflow now and then
    # the first overflow takes the hysteresis, every other one halves
    assert [row["loss_scale"] for row in steps[:count + 1]] == [2.0**40] + [2.0**(40 - k) for k in range(count)]
    assert (done.err + done.out).count("the step is skipped (loss scale") == sum(skipped)
    assert len({row["lr"] for row in steps}) == 1 and steps[-1]["loss"] < steps[0]["loss"]


def test_an_overflow_at_the_floor_ends_the_run(folder):
    done = folder.train({"train": {"epochs": None, "max_steps": 40},
                         "fp16": {**FP16, "initial_scale_power": 40, "min_loss_scale": 2.0**39}}, expect=DIVERGED)
    assert "overflow in fp16 at the smallest loss scale" in done.err


@pytest.mark.long
def test_resume_goes_on_with_the_scale(folder):
    fp16 = {**FP16, "initial_scale_power": 33, "loss_scale_window": 2}
    folder.train({"train": {"epochs": None, "max_steps": 40}, "fp16": fp16}, name="whole")
    done = folder.train({"train": {"epochs": None, "max_steps": 9}, "fp16": fp16}, name="cut", expect=DIVERGED)
    assert "all 9 steps were skipped" in done.final_error and "a smaller fp16.initial_scale_power, or more steps" in done.final_error
    folder.train({"train": {"epochs": None, "max_steps": 40}, "fp16": fp16}, name="cut", more=["--resume", folder.run_folder("cut")])
    whole, cut = folder.metrics("whole"), folder.metrics("cut")
    assert len({row["loss_scale"] for row in whole.steps}) > 3
    assert [(r["loss"], r["grad_norm"], r["loss_scale"], r["skipped"]) for r in cut.steps] == \
        [(r["loss"], r["grad_norm"], r["loss_scale"], r["skipped"]) for r in whole.steps]

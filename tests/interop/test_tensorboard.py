# SPDX-License-Identifier: Apache-2.0
"""tensorboard.enabled: the `tensorboard` package reads the event files, also those of a run that was killed and resumed."""
import os
import signal

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from harness import wait_for_steps, wait_until

pytestmark = pytest.mark.interop

TAGS = {"Train/Samples/train_loss", "Train/Samples/lr", "Train/Samples/grad_norm", "Train/Samples/tokens_per_s",
        "Train/Samples/step_seconds", "Eval/Samples/eval_loss", "Eval/Samples/perplexity"}


def read(folder, name="run"):
    events = EventAccumulator(os.path.join(folder.run_folder(name), "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return events


def check(events, metrics):
    """The curves are those of metrics.jsonl, over the number of samples."""
    assert TAGS <= set(events.Tags()["scalars"]) <= TAGS | {"Train/Samples/mfu"}
    for tag, key, rows in (("Train/Samples/train_loss", "loss", metrics.steps), ("Train/Samples/lr", "lr", metrics.steps),
                           ("Eval/Samples/eval_loss", "eval_loss", metrics.evaluations)):
        curve = events.Scalars(tag)
        assert [event.step for event in curve] == [12 * row["step"] for row in rows]
        assert [event.value for event in curve] == [pytest.approx(row[key], rel=1e-6) for row in rows]


def test_the_package_reads_what_a_run_has_written(folder):
    folder.train({"train": {"epochs": 3}, "tensorboard": {"enabled": True}})
    events = read(folder)
    check(events, folder.metrics())
    text, = events.Tensors("run_spec/text_summary") if "run_spec/text_summary" in events.Tags()["tensors"] \
        else events.Tensors("run_spec")
    assert b"train_batch_size: 12" in text.tensor_proto.string_val[0]
    assert events.SummaryMetadata("run_spec").plugin_data.plugin_name == "text"


def test_a_resume_drops_what_it_repeats(folder):
    spec = {"train": {"epochs": None, "max_steps": 1000000}, "checkpoint": {"interval_steps": 4, "save_at_epoch_end": False},
            "tensorboard": {"enabled": True}}
    process = folder.start("--config", folder.spec(spec))
    wait_for_steps(folder, process, 6)
    wait_until(lambda: folder.metrics().kinds("checkpoint"), what="a checkpoint")
    process.send_signal(signal.SIGKILL)
    folder.wait(process)
    folder.train({**spec, "train": {"epochs": 200}, "checkpoint": {"interval_steps": 300}}, more=("--resume", folder.run_folder()))
    check(read(folder), folder.metrics())

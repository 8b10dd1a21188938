# SPDX-License-Identifier: Apache-2.0
"""tensorboard and csv_monitor: what they write is what metrics.jsonl has. tests/interop has the `tensorboard` package."""
import csv
import os
import struct

import pytest

from harness import BadDisk, FINISHED, wait_for_steps, wait_for_words, REQUEUE

BOTH = {"tensorboard": {"enabled": True}, "csv_monitor": {"enabled": True}}


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    crc ^= 0xffffffff
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def fields(data):
    """The members of a protobuf message as (number, value)."""
    at, found = 0, []
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(key & 7)
            if size is None:
                size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        found.append((key >> 3, value))
    return found


def events_of(path):
    """The events of a file: (step, what), where what is a version, "start", or {tag: value}."""
    with open(path, "rb") as f:
        data = f.read()
    at, found = 0, []
    while at < len(data):
        length, = struct.unpack_from("<Q", data, at)
        assert crc32c(data[at:at + 8]) == struct.unpack_from("<I", data, at + 8)[0]
        event = data[at + 12:at + 12 + length]
        assert crc32c(event) == struct.unpack_from("<I", data, at + 12 + length)[0]
        at += 16 + length
        members = dict(fields(event))
        if 5 in members:
            values = [dict(fields(value)) for _, value in fields(members[5])]
            what = {v[1].decode(): struct.unpack("<f", v[2])[0] if 2 in v else v[8] for v in values}
        else:
            what = members[3].decode() if 3 in members else "start"
        found.append((members.get(2, 0), what))
    return found


def event_files(folder, *where):
    place = os.path.join(folder.run_folder(), *(where or ("tensorboard",)))
    return sorted((os.path.join(place, name) for name in os.listdir(place)), key=os.path.getmtime)


def rows_of(folder, name, place="csv_monitor"):
    with open(os.path.join(folder.run_folder(), place, name), newline="", encoding="utf-8") as f:
        return list(csv.reader(f))


def test_events_and_rows_are_the_metrics(folder):
    done = folder.train({"train": {"epochs": 2}, **BOTH}, more=["--verbose"])
    for words in ("TensorBoard: events are written to {}/tensorboard\n", "csv_monitor: rows are written to {}/csv_monitor\n"):
        assert words.format(folder.run_folder()) in done.out, done
    metrics, (path,) = folder.metrics(), event_files(folder)
    events = events_of(path)
    assert events[0] == (0, "brain.Event:2") and events[1] == (12, "start")
    assert b"train_batch_size: 12" in events[2][1]["run_spec"]
    losses = [(step, what["Train/Samples/train_loss"]) for step, what in events[3:] if "Train/Samples/train_loss" in what]
    assert losses == [(12 * row["step"], pytest.approx(row["loss"], rel=1e-6)) for row in metrics.steps]
    evaluated = [(step, what) for step, what in events[3:] if "Eval/Samples/eval_loss" in what]
    assert [step for step, _ in evaluated] == [36, 72]
    assert evaluated[1][1]["Eval/Samples/perplexity"] == pytest.approx(metrics.evaluations[1]["perplexity"], rel=1e-6)
    assert "Train/Samples/loss_scale" not in events[3][1]
    rows = rows_of(folder, "Train_Samples_train_loss.csv")
    assert rows[0] == ["step", "train_loss"]
    assert [(int(step), float(loss)) for step, loss in rows[1:]] == [(12 * row["step"], row["loss"]) for row in metrics.steps]
    assert rows_of(folder, "Train_Samples_lr.csv")[1] == ["12", "0.003"]
    with open(os.path.join(folder.run_folder(), "csv_monitor", "Train_Samples_lr.csv"), "rb") as f:
        assert f.read().startswith(b"step,lr\r\n12,0.003\r\n")  # as Python's csv writes it


def test_a_resumed_run_goes_on_in_both(folder):
    spec = {"train": {"epochs": None, "max_steps": 8}, "checkpoint": {"interval_steps": 2}, **BOTH}
    folder.train({**spec, "train": {"max_steps": 5, "epochs": None}})
    back = os.path.join(folder.run_folder(), "checkpoints", "step-00000002")
    folder.train(spec, more=("--resume", back), ranks=2)
    first, second = map(events_of, event_files(folder))
    assert len(first) > 6 and second[1] == (3 * 12, "start")
    rows = rows_of(folder, "Train_Samples_train_loss.csv")
    assert [(int(step), float(loss)) for step, loss in rows[1:]] == \
        [(12 * row["step"], row["loss"]) for row in folder.metrics().steps]
    assert [int(step) for step, _ in rows[1:]] == [12 * k for k in range(1, 9)]


def test_a_new_run_appends_to_the_rows_of_another(folder):
    place = {"csv_monitor": {"enabled": True, "output_path": folder.at("logs"), "job_name": "both"}}
    for name in ("one", "two"):
        folder.train({"train": {"epochs": 1}, **place}, name)
    rows = rows_of(folder, "Train_Samples_lr.csv", folder.at("logs", "both"))
    assert [row[0] for row in rows] == ["step", "12", "24", "36", "12", "24", "36"]


def test_places_of_their_own(folder):
    place = {"enabled": True, "output_path": folder.at("logs"), "job_name": "one"}
    folder.train({"train": {"epochs": 1}, "tensorboard": place, "csv_monitor": {**place, "job_name": None}})
    assert len(os.listdir(folder.at("logs", "one"))) == 1
    assert "Train_Samples_lr.csv" in os.listdir(folder.at("logs", "run"))
    folder.train({"train": {"epochs": 1}, "csv_monitor": {"enabled": True, "job_name": "one"}}, "job")
    assert "Train_Samples_lr.csv" in os.listdir(os.path.join(folder.run_folder("job"), "csv_monitor", "one"))


def test_a_monitor_that_cannot_write_ends_no_run(folder):
    disk = BadDisk(folder)
    process = folder.start("--config", folder.spec({"train": {"epochs": None, "max_steps": 1000000}, **BOTH}), env=disk.env)
    wait_for_steps(folder, process, 2)
    disk.fails("write ENOSPC tfevents", "write EIO Train_Samples_lr.csv")
    wait_for_words(folder, process, "No space left on device; no further events are written for TensorBoard, and "
                                    "metrics.jsonl has all metrics")
    wait_for_words(folder, process, "Input/output error; csv_monitor writes no further rows")
    disk.works()
    process.terminate()
    assert folder.wait(process).code == REQUEUE
    with open(folder.at("file"), "w", encoding="utf-8"):
        pass
    done = folder.train({"train": {"epochs": 1}, "csv_monitor": {"enabled": True, "output_path": folder.at("file")}}, "blocked")
    assert done.code == FINISHED and "csv_monitor writes no further rows" in done.err

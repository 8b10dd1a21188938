# SPDX-License-Identifier: Apache-2.0
"""scripts/to_wandb.py with the real package, without a network: what its offline folder holds is what metrics.jsonl has."""
import glob
import json
import os
import signal
import struct
import subprocess
import sys

import pytest
from wandb.proto import wandb_internal_pb2

from harness import count_lines, REQUEUE, SLOWNESS, wait_for_steps, wait_until

pytestmark = pytest.mark.interop

SCRIPT = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "scripts", "to_wandb.py")
ENVIRONMENT = {**os.environ, "WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
BLOCK, FILE_HEAD, HEAD = 32768, 7, 7
FULL, LAST = 1, 4


def records(folder):
    """The records of an offline run: a log of blocks, in which a record may be in several pieces (LevelDB's format)."""
    path, = glob.glob(folder.at("wandb", "offline-run-*", "run-*.wandb"))
    with open(path, "rb") as file:
        data = file.read()
    at, whole, found = FILE_HEAD, b"", []
    while at + HEAD <= len(data):
        if BLOCK - at % BLOCK < HEAD:
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + HEAD:at + HEAD + length]
        at += HEAD + length
        if kind in (FULL, LAST):
            found.append(wandb_internal_pb2.Record.FromString(whole))
            whole = b""
    return found


def history(found):
    """{samples: {name: value}}"""
    rows = {}
    for record in found:
        if record.WhichOneof("record_type") == "history":
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            step = items.pop("_step", record.history.step.num)
            assert step not in rows and step > max(rows, default=-1)
            rows[step] = {name: value for name, value in items.items() if not name.startswith("_")}
    return rows


def expected(metrics):
    rows = {}
    for row in metrics.steps:
        rows[12 * row["step"]] = {f"Train/Samples/{name}": row[key] for name, key in
                                  (("train_loss", "loss"), ("lr", "lr"), ("grad_norm", "grad_norm"), ("tokens_per_s", "tokens_per_s"),
                                   ("mfu", "mfu")) if row[key] is not None}
        rows[12 * row["step"]]["Train/Samples/step_seconds"] = row["seconds"]["step"]
    for row in metrics.evaluations:
        rows[12 * row["step"]].update({f"Eval/Samples/{key}": row[key] for key in ("eval_loss", "perplexity")})
    return rows


def start(folder, *arguments):
    return subprocess.Popen([sys.executable, SCRIPT, folder.run_folder(), "--offline", *arguments], cwd=folder.path, env=ENVIRONMENT,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


def finish(process):
    said, _ = process.communicate(timeout=120 * SLOWNESS)
    assert process.returncode == 0, said
    return said


def test_a_run_is_sent_with_its_spec_under_tensorboards_names(folder):
    folder.train({"train": {"epochs": 3}, "csv_monitor": {"enabled": True}, "wandb": {"enabled": True}})
    said = finish(start(folder, "--project", "tests", "--name", "first"))
    found = records(folder)
    assert history(found) == expected(folder.metrics())
    assert "rows sent" in said and "left out" not in said
    names = {os.path.splitext(name)[0] for name in os.listdir(os.path.join(folder.run_folder(), "csv_monitor"))}
    assert names == {name.replace("/", "_") for row in history(found).values() for name in row}
    run, = (record.run for record in found if record.WhichOneof("record_type") == "run")
    assert (run.project, run.display_name) == ("tests", "first")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["train_batch_size"] == 12 and config["optimizer"]["params"]["lr"] == 3e-3
    assert config["optimizer"]["params"]["eps"] == 1e-8  # written as 1e-08, which YAML 1.1 takes for text


def test_a_run_is_followed_to_its_end(folder):
    process = folder.start("--config", folder.spec({"train": {"epochs": None, "max_steps": 1000000}}))
    wait_for_steps(folder, process, 1)
    watcher = start(folder, "--watch", "--interval", "0.1", "--patience", "0.5")
    folder.adopt(watcher)
    wait_until(lambda: glob.glob(folder.at("wandb", "offline-run-*", "run-*.wandb")), 60, "the beginning of the watch")
    wait_for_steps(folder, process, count_lines(os.path.join(folder.run_folder(), "metrics.jsonl")) + 20)
    process.send_signal(signal.SIGTERM)
    assert folder.wait(process).code == REQUEUE
    finish(watcher)
    assert history(records(folder)) == expected(folder.metrics())

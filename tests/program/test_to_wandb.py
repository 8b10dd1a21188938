# SPDX-License-Identifier: Apache-2.0
"""scripts/to_wandb.py without wandb: following metrics.jsonl, what is sent in which order, errors. tests/interop has the package."""
import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys

from harness import REQUEUE, wait_for_steps

SCRIPT = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "scripts", "to_wandb.py")
MODULE = importlib.util.spec_from_file_location("to_wandb", SCRIPT)
to_wandb = importlib.util.module_from_spec(MODULE)
MODULE.loader.exec_module(to_wandb)


class FakeRun:
    def __init__(self, step=0):
        self.step, self.rows = step, []

    def log(self, values, step):
        self.rows.append((step, values))


def step_line(step, loss=1.0, **more):
    return {"step": step, "loss": loss, "lr": 0.1, "seconds": {"step": 0.5}, "mfu": None, **more}


def put(path, rows, end="\n"):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:-1]) + json.dumps(rows[-1]) + end, encoding="utf-8")


def sent_by(rows, scaled=False, begin=0):
    run = FakeRun(begin)
    sender = to_wandb.Sender(run, 4, scaled)
    for row in rows:
        sender.take(row)
    return run.rows, sender.repeated


def test_lines_are_read_once_and_only_when_they_are_complete(tmp_path):
    path, follower = tmp_path / "metrics.jsonl", to_wandb.Follower(tmp_path)
    assert list(follower.rows()) == []
    put(path, [step_line(1), step_line(2)], end="")
    assert [row["step"] for row in follower.rows()] == [1]
    with open(path, "a", encoding="utf-8") as file:
        file.write("\n" + json.dumps(step_line(3)) + "\n{torn\n[]\n" + json.dumps(step_line(4)))
    assert [row["step"] for row in follower.rows()] == [2, 3]
    assert follower.damaged == 2
    assert list(follower.rows()) == []


def test_a_file_that_a_resume_has_replaced_is_read_to_its_end_and_then_the_new_one(tmp_path):
    path, follower = tmp_path / "metrics.jsonl", to_wandb.Follower(tmp_path)
    put(path, [step_line(1), step_line(2)])
    assert [row["step"] for row in follower.rows()] == [1, 2]
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(step_line(3)) + "\n")
    os.rename(path, tmp_path / "metrics.jsonl.1")
    assert [row["step"] for row in follower.rows()] == [3]
    put(path, [step_line(1), {"resumed_from": "x", "step": 1}, step_line(2, loss=7.0)])
    assert [row["step"] for row in follower.rows()] == [1, 1, 2]
    put(tmp_path / "new", [step_line(1)])
    os.replace(tmp_path / "new", path)
    assert [row["step"] for row in follower.rows()] == [1]


def test_steps_go_forward_only_and_nothing_is_sent_twice():
    rows = [step_line(1), step_line(2), {"step": 2, "eval_loss": 3.0, "perplexity": 20.0}, step_line(3), {"resumed_from": "x", "step": 2},
            {"step": 2, "eval_loss": 3.0}, step_line(3, loss=9.0), step_line(4), {"checkpoint": "x", "step": 4}, {"epoch_end": 1, "step": 4},
            {"step": 4, "eval_loss": 2.5, "accuracy": 0.5, "f1": None}]
    sent, repeated = sent_by(rows)
    assert [step for step, _ in sent] == [4, 8, 8, 12, 16, 16] and repeated == 2
    assert sent[2][1] == {"Eval/Samples/eval_loss": 3.0, "Eval/Samples/perplexity": 20.0}
    assert sent[3][1] == {"Train/Samples/train_loss": 1.0, "Train/Samples/lr": 0.1, "Train/Samples/step_seconds": 0.5}
    assert sent[5][1] == {"Eval/Samples/eval_loss": 2.5, "Eval/Samples/accuracy": 0.5}


def test_what_wandb_has_already_and_what_is_not_finite_is_left_out():
    sent, repeated = sent_by([step_line(1), step_line(2, loss=None, loss_scale=8.0)], scaled=True, begin=5)
    assert sent == [(8, {"Train/Samples/lr": 0.1, "Train/Samples/loss_scale": 8.0, "Train/Samples/step_seconds": 0.5})] and repeated == 1
    assert "Train/Samples/loss_scale" not in sent_by([step_line(1, loss_scale=1.0)])[0][0][1]


def test_numbers_that_no_float_has_are_left_out():
    sent, _ = sent_by([step_line(1, loss=10**400, grad_norm=-10**309, mfu=7, tokens_per_s=True)])
    assert sent == [(4, {"Train/Samples/lr": 0.1, "Train/Samples/mfu": 7, "Train/Samples/step_seconds": 0.5})]


def test_real_numbers_are_those_of_yaml_1_2():
    for text in ("1e-05", "1E5", "-3e+2", "1.5", "1.", ".5", "+.5e3", "2.5e-7", "1.e2"):
        assert to_wandb.REAL.match(text) and isinstance(float(text), float), text
    for text in ("1", "08", "1e", "e5", ".", ".e5", "1e5x", "1_0.5", "1.2.3", "-", "", "12:30", "0x1e5", "1e-05 m"):
        assert not to_wandb.REAL.match(text), text


def test_run_yaml_is_waited_for_while_the_process_is_there(tmp_path, monkeypatch):
    alive, naps = iter([True, True, True, False]), []

    def sleep(seconds):
        naps.append(seconds)
        if len(naps) == 2:
            (tmp_path / "run.yaml").write_text("{}", encoding="utf-8")

    monkeypatch.setattr(to_wandb, "is_running", lambda _: next(alive))
    monkeypatch.setattr(to_wandb, "time", argparse.Namespace(sleep=sleep))
    arguments = argparse.Namespace(run=str(tmp_path), watch=True, interval=5)
    to_wandb.wait_for_config(arguments)
    assert naps == [5, 5]
    (tmp_path / "run.yaml").unlink()
    to_wandb.wait_for_config(argparse.Namespace(run=str(tmp_path), watch=False, interval=5))
    assert naps == [5, 5]
    to_wandb.wait_for_config(arguments)  # it ends without one
    assert naps == [5, 5, 5] and next(alive, None) is None


def test_a_run_is_seen_while_it_lasts(folder):
    spec = folder.spec({"train": {"epochs": None, "max_steps": 1000000}})
    process = folder.start("--config", spec)
    wait_for_steps(folder, process, 1)
    assert to_wandb.is_running(folder.run_folder())
    process.send_signal(signal.SIGTERM)
    assert folder.wait(process).code == REQUEUE
    assert not to_wandb.is_running(folder.run_folder())


def test_a_run_that_was_killed_is_over(folder):
    process = folder.start("--config", folder.spec({"train": {"epochs": None, "max_steps": 1000000}}))
    wait_for_steps(folder, process, 1)
    process.send_signal(signal.SIGKILL)
    folder.wait(process)
    assert os.path.exists(os.path.join(folder.run_folder(), "owner"))
    assert not to_wandb.is_running(folder.run_folder())


def test_an_owner_elsewhere_is_alive_as_long_as_it_renews_its_file(tmp_path):
    owner = {"host": "elsewhere", "boot": "another", "pid_space": "x", "pid": 1, "began": 1, "period": 10}
    (tmp_path / "owner").write_text(json.dumps(owner), encoding="utf-8")
    assert to_wandb.is_running(tmp_path)
    os.utime(tmp_path / "owner", (1, 1))
    assert not to_wandb.is_running(tmp_path)
    (tmp_path / "owner").write_text("{", encoding="utf-8")
    assert not to_wandb.is_running(tmp_path)


def test_ranks_that_are_started_again_are_waited_for(tmp_path, monkeypatch):
    path, clock, states = tmp_path / "metrics.jsonl", iter(range(0, 1000, 10)), iter([True, False, False, True, False, False, False, False])
    put(path, [step_line(1)])

    def is_running(_):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(step_line(path.read_bytes().count(b"\n") + 1)) + "\n")
        return next(states)

    monkeypatch.setattr(to_wandb, "is_running", is_running)
    monkeypatch.setattr(to_wandb, "time", argparse.Namespace(monotonic=lambda: next(clock), sleep=lambda seconds: None))
    arguments = argparse.Namespace(run=str(tmp_path), watch=True, interval=5, patience=30)
    run = FakeRun()
    to_wandb.follow(arguments, to_wandb.Follower(tmp_path), to_wandb.Sender(run, 1, False))
    assert [step for step, _ in run.rows] == list(range(1, 9)) and next(states) is False


def call(*arguments, path=""):
    done = subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": str(path)})
    return done.returncode, done.stderr


def test_errors(tmp_path):
    code, said = call(tmp_path / "absent")
    assert code == 3 and "there is no run folder" in said
    code, said = call(tmp_path)
    assert code == 3 and "has no metrics.jsonl" in said
    code, said = call(tmp_path, "--interval", "0")
    assert code == 2 and "--interval" in said
    code, said = call(tmp_path, "--patience", "nan")
    assert code == 2 and "--patience" in said
    put(tmp_path / "metrics.jsonl", [step_line(1)])
    for package in ("yaml", "wandb"):
        (tmp_path / f"{package}.py").write_text("raise ImportError\n", encoding="utf-8")
    code, said = call(tmp_path, path=tmp_path)
    assert code == 2 and "pip install wandb" in said


YAML = """class YAMLError(Exception): pass
class SafeLoader: add_implicit_resolver = print
def load(file, loader): return eval(file.read())
"""


def test_run_yaml_has_to_name_the_batch(tmp_path):
    put(tmp_path / "metrics.jsonl", [step_line(1)])
    (tmp_path / "yaml.py").write_text(YAML, encoding="utf-8")
    for text, part in (("{}", "no train_batch_size"), ("{'train_batch_size': 0}", "no train_batch_size"), (b"\xff", "cannot read")):
        (tmp_path / "run.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        code, said = call(tmp_path, path=tmp_path)
        assert code == 3 and part in said, said

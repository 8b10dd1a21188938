"""ztrain report: the summary in the terminal, the page, and what they make of damaged files."""
import os
import sys

import pytest

from harness import CHECKPOINT, ROOT, USAGE

sys.path.insert(0, os.path.join(ROOT, "scripts"))
from demo_runs import Demo, demos  # noqa: E402

UTF8 = {"LC_ALL": "C.UTF-8", "COLUMNS": "110"}


def demo(folder, name="demo", steps=60, **more):
    """The folder of an invented run."""
    return Demo(name, steps, 0.001, 3.0, 50_000, 7, **more).write(folder.at("runs"))


def append(run, text):
    with open(os.path.join(run, "metrics.jsonl"), "a", encoding="utf-8") as f:
        f.write(text)


def test_the_summary_of_a_trained_run(folder):
    folder.train({"train": {"max_steps": 6, "eval_interval_steps": 3, "epochs": 9}, "data": {"validation": folder.data(20, 2, "val")}})
    text = folder.ztrain("report", folder.run_folder(), env=UTF8).out
    title, metrics = text.splitlines()[0], folder.metrics()
    assert title == f"run  finished, step 6 of 6 (100.0 %), epoch {metrics.steps[-1]['epoch']}", text
    best = min(metrics.evaluations, key=lambda line: line["eval_loss"])
    assert f"eval_loss {best['eval_loss']:.4f} after step {best['step']}" in text
    assert "llama, " in text and "parameters, fp32 on 1 rank\n" in text
    loss = next(line for line in text.splitlines() if line.startswith("  loss")).split()
    losses = metrics.losses
    assert loss[1:4] == [f"{x:.4f}" for x in (losses[-1], min(losses), max(losses))] and len(loss[4]) == 6
    assert set(loss[4]) <= set("▁▂▃▄▅▆▇█")


@pytest.mark.parametrize("env, blocks", [({"LC_ALL": "C.UTF-8", "TERM": "xterm"}, True), ({"LC_ALL": "C", "TERM": "xterm"}, False),
                                         ({"LC_ALL": "C.UTF-8", "TERM": "dumb"}, False)], ids=["utf-8", "ascii", "dumb"])
def test_what_the_terminal_can_show(folder, env, blocks):
    runs = [demo(folder), demo(folder, "other", 40)]
    for arguments in (runs[:1], runs):
        text = folder.ztrain("report", *arguments, env={**env, "COLUMNS": "90"}).out
        assert ("█" in text) == blocks and text.isascii() != blocks
        assert "\033" not in text and max(map(len, text.splitlines())) <= 90, text


def test_a_table_of_several_runs(folder):
    runs = [each.write(folder.at("runs"), 30 if each.name == "wide" else None) for each in demos(60)]
    text = folder.ztrain("report", *runs, env=UTF8).out
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert rows["small-lr"][1:3] == ["finished", "60"] and rows["wide"][1:3] == ["stopped", "30"]
    assert rows["optimizer.params.lr"][1:] == ["0.0003", "0.001", "0.0006"] and rows["zero_optimization.stage"][1:] == ["1", "1", "2"]
    assert "run.name" not in text and "train.epochs" not in text


def test_damaged_lines_are_left_out(folder):
    run = demo(folder)
    append(run, 'garbage\n{"step": "x"}\n{"step":61,"epoch":1,"loss":null}\n{"step":62,"lo')
    done = folder.ztrain("report", run, env=UTF8)
    assert "step 61 of 60" in done.out and "×" in done.out
    assert "2 damaged lines are left out, the first is line" in done.err and done.err.count("\n") == 1


def test_hostile_text_is_shown_as_text(folder):
    run = demo(folder, "a\033[2Jb")
    append(run, '{"step":60,"sample":0,"prompt":"\\u001b]0;x\\u0007","text":"\\n\\u009b"}\n')
    for runs in ([run], [run, demo(folder, "c")]):
        text = folder.ztrain("report", *runs, env=UTF8).out
        assert "\033" not in text and "\x07" not in text and "\x9b" not in text and "a\\x1b[2Jb" in text, text


def test_former_files_are_named(folder):
    run = demo(folder)
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as f:
        lines = f.readlines()
    for number, text in ((1, lines), (2, lines[20:40])):
        with open(os.path.join(run, f"metrics.jsonl.{number}"), "w", encoding="utf-8") as f:
            f.writelines(text)
    text = folder.ztrain("report", run, env=UTF8).out
    assert "metrics.jsonl.1: a part that a resume left, up to step 60" in text and "metrics.jsonl.2: an earlier run" in text


def test_errors(folder):
    empty, garbage = folder.at("empty"), folder.at("garbage")
    for path in (empty, garbage):
        os.mkdir(path)
    append(garbage, "no\nJSON\n")
    for arguments, code, words in (
            ([], USAGE, "no run was named"),
            (["--ouch", empty], USAGE, "unknown option"),
            ([folder.at("absent")], CHECKPOINT, "there is no folder"),
            ([empty], CHECKPOINT, "has no metrics.jsonl"),
            ([garbage], CHECKPOINT, "has no sound line"),
            ([demo(folder), empty], CHECKPOINT, "has no metrics.jsonl")):
        done = folder.ztrain("report", *arguments, expect=code)
        assert words in done.last_words and not done.out


def test_a_run_without_a_step_or_a_spec(folder):
    run = folder.at("young")
    os.mkdir(run)
    append(run, "")
    done = folder.ztrain("report", run, env=UTF8)
    assert "young  over, no step yet" in done.out and "run.yaml" in done.err

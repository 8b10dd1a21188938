# SPDX-License-Identifier: Apache-2.0
"""ztrain report: the summary in the terminal, the page, and what they make of damaged files."""
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import unicodedata

import pytest

from harness import CHECKPOINT, FINISHED, INTERRUPTED, ROOT, USAGE, ZTRAIN, BadDisk, wait_for_words, wait_until

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


def width_of(line):
    """Columns of a terminal: two for a wide character, none for a combining one."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


@pytest.mark.parametrize("columns", [40, 52, 60, 71])
def test_no_line_is_wider_than_a_narrow_terminal(folder, columns):
    """COLUMNS below 40 counts as 40. The values of three runs stand below their keys where there is no room beside."""
    runs = [each.write(folder.at("runs"), 30 if each.name == "wide" else None) for each in demos(60)]
    append(runs[1], '{"step":60,"sample":1,"prompt":"One\\nline","text":"and\\tanother\\r\\none"}\n'
                    '{"step":60,"sample":2,"prompt":"中文","text":"' + "天地玄黄e\u0301" * 20 + '"}\n')
    for arguments in (runs[1:2], runs[:2], runs):
        for wanted in {columns, 7 if columns == 40 else columns}:
            text = folder.ztrain("report", *arguments, env={**UTF8, "COLUMNS": str(wanted)}).out
            assert max(map(width_of, text.splitlines())) <= columns, text
            assert "large-lr" in text and "\\x0" not in text
    assert ("\n  large-lr: 0.001\n" in text) == (columns < 60)
    text = folder.ztrain("report", runs[1], env={**UTF8, "COLUMNS": str(columns)}).out
    assert "checkpoint" in text and ("highest" in text) == (columns >= 60) and "█" in text
    assert "    One line → and another  one\n" in text


def test_a_table_of_several_runs(folder):
    runs = [each.write(folder.at("runs"), 30 if each.name == "wide" else None) for each in demos(60)]
    text = folder.ztrain("report", *runs, env=UTF8).out
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert rows["small-lr"][1:3] == ["finished", "60"] and rows["wide"][1:3] == ["stopped", "30"]
    assert rows["optimizer.params.lr"][1:] == ["0.0003", "0.001", "0.0006"] and rows["zero_optimization.stage"][1:] == ["1", "1", "2"]
    assert "run.name" not in text and "train.epochs" not in text


def test_averages_are_those_of_all_steps_together(folder):
    """Tokens by seconds, in which a slow step counts for as long as it took, not the mean of the steps' rates."""
    runs = []
    for name, slow in (("uneven", 9.1), ("even", 0.5)):
        runs.append(folder.at(name))
        os.mkdir(runs[-1])
        for step in range(1, 11):
            took = slow if step == 4 else 0.1
            append(runs[-1], json.dumps({"step": step, "loss": 2, "tokens": 1000 * step, "tokens_per_s": 1000 / took, "mfu": 0.05 / took,
                                         "seconds": {"step": took}}) + "\n")
    assert "10.00 k tokens in 0:10 of steps, 1.00 k tokens/s on average" in folder.ztrain("report", runs[0], env=UTF8).out
    rows = [line for line in folder.ztrain("report", *runs, env=UTF8).out.splitlines() if " 0:" in line]
    assert re.search(r" 1.00 k  +5\.0 % ", rows[0]) and re.search(r" 7\.14 k  +35\.7 % ", rows[1]), rows
    made = page_of(folder, runs[0])[1]["runs"][0]
    assert made["rate"] == 1000 and made["mfu"] == 0.05


def test_a_long_prompt_leaves_room_for_its_continuation(folder):
    run = demo(folder, steps=20)
    with open(os.path.join(run, "metrics.jsonl"), "w", encoding="utf-8") as f:
        f.write('{"step":1,"loss":2}\n' + "".join(json.dumps({"step": 1, "sample": 1, "prompt": prompt, "text": text}) + "\n" for prompt, text in (
            ("日本語" * 30 + "the end", "goes on and on" * 9), ("a" * 50 + " middle", "short"), ("all of it", "as it is"))))
    for env, dots in ((UTF8, "…"), ({**UTF8, "LC_ALL": "C"}, "~")):
        text = folder.ztrain("report", run, env={**env, "COLUMNS": "60"}).out
        arrow = "→" if dots == "…" else "->"
        first, second, third = text.split("samples after step 1\n")[1].splitlines()
        assert first.startswith("    " + dots) and re.search(rf"the end {arrow} goes on and on.*{dots}$", first) and width_of(first) <= 60, text
        assert width_of(first.split(f" {arrow} ")[0]) <= 4 + 28 + 1
        assert second.endswith(f"aaa middle {arrow} short") and (dots in second) == (width_of(second) == 60), second
        assert third == f"    all of it {arrow} as it is"


def test_a_reader_that_has_seen_enough(folder):
    """As `ztrain report | head`: no message."""
    end, begin = os.pipe()
    os.close(end)
    done = subprocess.run([ZTRAIN, "report", demo(folder)], stdout=begin, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(begin)
    assert done.returncode == -signal.SIGPIPE and not done.stderr, done


def test_damaged_lines_are_left_out(folder):
    run = demo(folder)
    append(run, 'garbage\n{"step": "x"}\n{"step":61,"epoch":1,"loss":null}\n{"step":62,"lo')
    done = folder.ztrain("report", run, env=UTF8)
    assert "step 61 of 60" in done.out and "×" in done.out
    assert "2 damaged lines are left out, the first is line" in done.err and done.err.count("\n") == 1


def test_hostile_text_is_shown_as_text(folder):
    run = demo(folder, "a\033[2Jb")
    append(run, '{"step":60,"sample":1,"prompt":"\\u001b]0;x\\u0007","text":"\\n\\u009b"}\n')
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
            ([demo(folder), empty], CHECKPOINT, "has no metrics.jsonl"),
            ([os.path.join(garbage, "metrics.jsonl")], CHECKPOINT, f"metrics.jsonl' is a file; hint: its folder: ztrain report {garbage}")):
        done = folder.ztrain("report", *arguments, expect=code)
        assert words in done.final_error and not done.out


def test_a_run_without_a_step_or_a_spec(folder):
    run = folder.at("young")
    os.mkdir(run)
    append(run, "")
    done = folder.ztrain("report", run, env=UTF8)
    assert "young  over, no step yet" in done.out and "run.yaml" in done.err


# --- the page ---------------------------------------------------------------------------------------------------------

def page_of(folder, *runs, name="page.html"):
    """The text of the page, and the data in it."""
    done = folder.ztrain("report", *runs, "--out", folder.at(name))
    assert not done.out
    with open(folder.at(name), encoding="utf-8") as f:
        text = f.read()
    return text, json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S).group(1))


def test_the_page_has_the_numbers(folder):
    run = demo(folder, spike=30)
    append(run, "garbage\n")
    data = page_of(folder, run)[1]
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as f:
        rows = [json.loads(line) for line in f if line.startswith("{")]
    steps, evals = ([row for row in rows if key in row] for key in ("loss", "eval_loss"))
    made = data["runs"][0]
    series = made["steps"]["series"]
    assert made["steps"]["first"] == made["steps"]["last"] == [row["step"] for row in steps] and made["steps"]["per"] == 1
    for name, values in (("loss", [row["loss"] for row in steps]), ("lr", [row["lr"] for row in steps]),
                         ("forward", [row["seconds"]["forward"] for row in steps]), ("host", [row["memory_bytes"]["host"] for row in steps])):
        assert series[name]["mean"] == pytest.approx(values, rel=1e-5) and not series[name]["bad"] and "low" not in series[name]
    assert series["grad_norm"]["bad"] == [[i, 1] for i, row in enumerate(steps) if row["grad_norm"] is None] != []
    assert made["evals"]["series"]["eval_loss"]["mean"] == pytest.approx([row["eval_loss"] for row in evals], rel=1e-5)
    assert made["best"] == pytest.approx(min(row["eval_loss"] for row in evals), rel=1e-5) and made["state"] == "finished"
    assert made["totals"]["checkpoint"] == 15 and made["totals"]["restart"] == 1 and made["damaged"] == 1
    assert [event["step"] for event in made["events"] if event["kind"] == "skipped step"] == [3, 5, 30]
    assert len(made["samples"]) == 30 and made["samples"][0]["prompt"] == "The committee said on Monday"


def test_the_page_is_one_file_that_needs_no_network(folder):
    text = page_of(folder, demo(folder), demo(folder, "other"))[0]
    assert not re.search(r"https?:|\bsrc=|@import|url\((?!#)|<link(?! rel=\"icon\" href=\"data:,\")", text)
    assert "default-src 'none'" in text and text.count("<script") == 2 == text.count("</script")
    assert os.listdir(folder.at()).count("page.html") == 1 and not [name for name in os.listdir(folder.at()) if "tmp" in name]


def test_hostile_text_stays_in_the_data(folder):
    evil = "</script><script>alert(1)</script><!--<script>]]>&\"'\\\u2028"
    run = demo(folder, evil.replace("/", "\\"))
    append(run, json.dumps({"step": 60, "sample": 1, "prompt": evil, "text": evil}) + "\n")
    append(run, json.dumps({"step": 60, "checkpoint": "a/b" + evil.replace("/", "\\"), "bytes": 1}) + "\n")
    with open(os.path.join(run, "run.yaml"), "a", encoding="utf-8") as f:
        f.write("evil: " + json.dumps(evil) + "\n")
    text, data = page_of(folder, run, demo(folder, "other"))
    assert text.count("<script") == 2 == text.count("</script") and "<!--" not in text
    assert data["runs"][0]["samples"][-1]["text"] == evil == dict((key, value) for key, value, _ in data["differences"])["evil"]
    assert "<script>" in data["runs"][0]["name"]


def test_many_runs_share_the_room_of_the_page(folder):
    run = Demo("long", 5000, 0.001, 3.0, 1000, 1, spike=3001).write(folder.at("runs"))
    lines = open(os.path.join(run, "metrics.jsonl"), encoding="utf-8").read().splitlines()
    top = max(json.loads(line)["loss"] for line in lines if '"loss"' in line and 2990 < json.loads(line)["step"] < 3100)
    runs = [run, *(shutil.copytree(run, folder.at("runs", f"long-{number}")) for number in range(11))]
    text, data = page_of(folder, *runs)
    assert len(text) < 3_500_000
    for made in data["runs"]:
        steps = made["steps"]
        assert steps["per"] == 16 and 256 < len(steps["last"]) <= 512
        spike = next(i for i, last in enumerate(steps["last"]) if last >= 3001)
        assert max(steps["series"]["loss"]["high"][spike:spike + 8]) == pytest.approx(top, rel=1e-5)


@pytest.mark.parametrize("out, code, words", [("absent/page.html", CHECKPOINT, "page.html"), ("runs", CHECKPOINT, "is a folder"),
                                              ("", USAGE, "--out needs a value")], ids=["no folder", "a folder", "no name"])
def test_a_page_that_cannot_be_written(folder, out, code, words):
    run = demo(folder)
    done = folder.ztrain("report", run, "--out", folder.at(out) if out else "", expect=code)
    assert words in done.final_error
    assert sorted(os.listdir(run)) == ["metrics.jsonl", "run.yaml"]


@pytest.mark.parametrize("more", [[], ["--watch"]], ids=["once", "watch"])
def test_a_folder_takes_no_page(folder, more):
    done = folder.ztrain("report", demo(folder), "--out", folder.at(), *more, expect=CHECKPOINT)
    assert "is a folder; hint: name a file in it, --out " + folder.at("report.html") in done.final_error


def test_the_same_run_is_shown_once(folder):
    run = demo(folder)
    os.symlink(run, folder.at("link"))
    done = folder.ztrain("report", run, folder.at("link"), run + "/", env=UTF8)
    assert done.err.count("is the same run as") == 2 and done.out.startswith("demo  finished, step 60")


def test_a_page_goes_through_a_link_and_into_a_pipe(folder):
    """What is at the path stays what it is; --watch, which replaces pages, takes no pipe."""
    run = demo(folder)
    os.symlink("target.html", folder.at("link.html"))
    assert page_of(folder, run, name="link.html")[0] and os.path.islink(folder.at("link.html")) and os.path.isfile(folder.at("target.html"))
    os.mkfifo(folder.at("pipe"))
    assert "pipe" in folder.ztrain("report", run, "--out", folder.at("pipe"), expect=CHECKPOINT).final_error
    assert "--watch" in folder.ztrain("report", run, "--out", folder.at("pipe"), "--watch", expect=CHECKPOINT).final_error
    reader = subprocess.Popen(["cat", folder.at("pipe")], stdout=subprocess.PIPE)
    holder = os.open(folder.at("pipe"), os.O_WRONLY)  # waits for the reader
    folder.ztrain("report", run, "--out", folder.at("pipe"))
    os.close(holder)
    assert b"</html>" in reader.communicate()[0] and stat.S_ISFIFO(os.stat(folder.at("pipe")).st_mode)


@pytest.mark.parametrize("more", [[], ["--watch"]], ids=["once", "watch"])
def test_a_page_replaces_no_file_of_a_run(folder, more):
    """By any spelling, of this run or another; nor any other file that is not a page."""
    run, other = demo(folder), demo(folder, "other")
    os.makedirs(os.path.join(run, "checkpoints", "step-00000060"))
    manifest = os.path.join(run, "checkpoints", "step-00000060", "manifest.json")
    notes = folder.at("notes.md")
    for path in (manifest, notes):
        with open(path, "w", encoding="utf-8") as f:
            f.write("{}")
    os.symlink(os.path.join(run, "run.yaml"), folder.at("link.html"))
    os.symlink(run, folder.at("runs", "door"))
    os.symlink(os.path.join(run, "owner"), folder.at("new"))
    before = {path: open(path, "rb").read() for path in (manifest, notes, *(os.path.join(one, name) for one in (run, other)
                                                                            for name in ("metrics.jsonl", "run.yaml")))}
    for path in [*before, folder.at("link.html"), folder.at("runs", "door", "metrics.jsonl"), folder.at("runs", ".", "demo", "..", "demo", "run.yaml")]:
        assert "is not a page, and would be replaced" in folder.ztrain("report", run, "--out", path, *more, expect=USAGE).final_error
    lock = os.path.join(run, "lock")  # a run holds it, and it is empty
    open(lock, "w", encoding="utf-8").close()
    assert "would be a file of the run" in folder.ztrain("report", run, "--out", lock, *more, expect=USAGE).final_error
    assert os.path.getsize(lock) == 0
    for path in (os.path.join(run, "owner"), folder.at("new"), os.path.join(run, "checkpoints", "latest")):
        assert "would be a file of the run" in folder.ztrain("report", run, "--out", path, *more, expect=USAGE).final_error
        assert not os.path.exists(path)
    lock = os.path.join(run, "lock")  # which is empty
    open(lock, "w", encoding="utf-8").close()
    assert "would be a file of the run" in folder.ztrain("report", run, "--out", lock, *more, expect=USAGE).final_error
    assert all(open(path, "rb").read() == text for path, text in before.items())
    empty = folder.at("empty")
    open(empty, "w", encoding="utf-8").close()
    for path in (os.path.join(run, "report.html"), os.path.join(run, "report.html"), empty, empty):
        folder.ztrain("report", run, "--out", path, *more)


def test_damaged_lines_with_extreme_values(folder):
    run = demo(folder)
    for step, loss in enumerate((-1.7e308, 1.7e308, -1.7e308), start=61):
        append(run, json.dumps({"step": step, "loss": loss, "tokens": 1e300, "seconds": {"step": 1.5e308}}) + "\n")
    text = folder.ztrain("report", run, env=UTF8).out
    assert "11574074074 d 1:46:40" in text and "step 63 of 60" in text
    assert "nan" not in text and page_of(folder, run)[1]["runs"][0]["seconds"] == 1e15


def test_the_loads_of_experts(folder):
    """Entropy and largest load as curves, and all loads of the last step; a damaged line may have anything in their place."""
    run = demo(folder)
    for step, load in enumerate(([0.7, 0.1, 0.1, 0.1], [0.4, 0.3, 0.2, 0.1]), start=61):
        experts = {"entropy": 1.28 if step == 62 else 0.94, "max_load": load[0], "dropped": 0, "load": load}
        append(run, json.dumps({"step": step, "loss": 2, "experts": experts}) + "\n")
    text = folder.ztrain("report", run, env=UTF8).out
    assert re.search(r"^  load entropy +1\.2800 +0\.9400 +1\.2800 ", text, re.M) and re.search(r"^  largest load +40\.0 %", text, re.M)
    assert "of 4 experts: 10 % to 40 %, even 25 %, entropy 1.2800 of 1.3863, none dropped\n" in re.sub(r"\s*\n {14}", " ", text)
    made = page_of(folder, run)[1]["runs"][0]
    assert made["load"] == [0.4, 0.3, 0.2, 0.1] and made["steps"]["series"]["entropy"]["mean"][-2:] == [0.94, 1.28]
    append(run, '{"step":63,"loss":2,"experts":{"load":["</script>",null,-1e308]}}\n')
    assert "of 3 experts: -inf %" in folder.ztrain("report", run, env=UTF8).out
    assert page_of(folder, run)[1]["runs"][0]["load"] == ["</script>", None, -1e308]
    append(run, '{"step":64,"loss":2}\n')
    assert "last loads" not in folder.ztrain("report", run, env=UTF8).out and "load" not in page_of(folder, run)[1]["runs"][0]


# --- watching ---------------------------------------------------------------------------------------------------------

def begin(run):
    """Makes the run one that goes on, on another machine: its owner file was refreshed just now. Returns the file."""
    path = os.path.join(run, "owner")
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"nonce": "0" * 32, "host": "elsewhere", "boot": "another", "pid_space": "another", "pid": 1, "began": 1, "cluster": "",
                   "job": "", "step": "", "restarts": 0, "locked": False, "period": 3600.0}, f)
    return path


def watch(folder, *runs):
    """Starts watching; returns the process and a function that reads the page's data."""
    process = folder.start("report", *runs, "--out", folder.at("page.html"), "--watch", "--interval", "0.1")

    def data():
        try:
            with open(folder.at("page.html"), encoding="utf-8") as f:
                return json.loads(re.search(r'id="data">(.*?)</script>', f.read(), re.S).group(1))
        except FileNotFoundError:
            return {"runs": [{"step": 0}]}
    return process, data


def test_watching_ends_with_the_run(folder):
    run = demo(folder)
    owner = begin(run)
    process, data = watch(folder, run, demo(folder, "old"))
    wait_until(lambda: data()["runs"][0]["step"] == 60, what="the first page")
    assert data()["reload"] == 0.1 and [made["state"] for made in data()["runs"]] == ["running", "finished"]
    append(run, '{"step":61,"loss":2.5}\n{"step":62,"lo')
    wait_until(lambda: data()["runs"][0]["step"] == 61, what="the second page")
    append(run, 'ss":2.25}\n')
    os.unlink(owner)
    done = folder.wait(process)
    assert done.code == FINISHED and "demo: finished, step 62\n" in done.out and not done.err
    assert data()["reload"] == 0 and data()["runs"][0]["loss"] == 2.25 and data()["runs"][0]["state"] == "finished"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_watching(folder, number):
    run = demo(folder)
    begin(run)
    process, data = watch(folder, run)
    wait_until(lambda: data()["runs"][0]["step"] == 60, what="the first page")
    os.kill(process.pid, number)
    done = folder.wait(process)
    assert done.code == INTERRUPTED and not done.err and data()["reload"] == 0
    assert not [name for name in os.listdir(folder.at()) if name.startswith("page.html.")]


def test_watching_bears_a_disk_that_is_full_for_a_while(folder):
    run, disk = demo(folder), BadDisk(folder)
    owner = begin(run)
    disk.fails("write ENOSPC page.html")
    process = folder.start("report", run, "--out", folder.at("page.html"), "--watch", "--interval", "0.1", env=disk.env)
    wait_for_words(folder, process, "the page is tried again for 30 s: cannot write")
    disk.works()
    wait_until(lambda: os.path.exists(folder.at("page.html")), what="the page")
    os.unlink(owner)
    done = folder.wait(process)
    assert done.code == FINISHED and done.err.count("tried again") == 1
    disk.fails("write ENOSPC page.html")
    done = folder.ztrain("report", run, "--out", folder.at("page.html"), env=disk.env, expect=CHECKPOINT)
    assert "No space left" in done.final_error and "tried again" not in done.err


def test_watching_a_run_that_is_over_writes_one_page(folder):
    process, data = watch(folder, demo(folder))
    done = folder.wait(process)
    assert done.code == FINISHED and done.out == "demo: finished, step 60\n" and data()["reload"] == 0


@pytest.mark.parametrize("arguments, words", [(["--watch"], "--watch writes a page"), (["--out", "x", "--interval", "1"], "an option of --watch"),
                                              (["--out", "x", "--watch", "--interval", "0"], "0.1 to 86400"),
                                              (["--out", "x", "--watch", "--interval=soon"], "not 'soon'")], ids=["out", "watch", "0", "soon"])
def test_wrong_options_of_watching(folder, arguments, words):
    assert words in folder.ztrain("report", demo(folder), *arguments, expect=USAGE).final_error

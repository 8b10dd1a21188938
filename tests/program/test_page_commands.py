# SPDX-License-Identifier: Apache-2.0
"""The commands of the pages, run as they are written: each line that is indented by four blanks and begins with one of PROGRAMS, in
the page's order, in a folder with a tiny model, its data and a finished run. What stands in REPLACED is replaced before; what
stands in NOT_RUN is not run here. tests/interop/test_pages.py runs the pages with bash blocks."""
import json
import os
import re
import shutil
import subprocess

import pytest

from harness import LLAMA, ROOT, SLOWNESS, ZTRAIN, Metrics, merged, to_yaml
from test_sample import byte_tokenizer

PAGES = ("README", "adapters", "checkpoint-format", "classification", "convert", "cuda", "determinism", "environment", "failures", "fine-tuning",
         "from-deepspeed", "glossary", "memory", "mixtures", "models", "operations", "plan-speed", "resuming", "run-folder", "run-spec", "run-spec-checkpoint",
         "run-spec-data", "run-spec-deepspeed", "run-spec-model", "run-spec-monitors", "run-spec-names", "run-spec-optimizer",
         "run-spec-refused", "run-spec-train", "run-spec-zero", "sampling", "slurm", "watching")

PROGRAMS = r"ztrain|ztrain-tokenize|ztrain-wandb|scripts/\S+|jq|tail|kill|for|cmp|export|srun|sbatch|scancel|scontrol|apptainer|docker"
COMMAND = re.compile(rf" {{4}}((?:[A-Z_]+=\S+ )?(?:{PROGRAMS}) .*?)(?: {{2,}}.*)?$")

NOT_RUN = {
    r"(srun|sbatch|scancel|scontrol) ": "clusters: tests/cluster has a Slurm",
    r"docker |apptainer ": "containers",
    r"replay runs/run --step 5000": "steps that the tiny run does not have: tests/program/test_replay.py",
    r"doctor --gpu-test": "a GPU: tests/emulation/test_gpu_test.py",
    r"ztrain-wandb|scripts/to_wandb.py": "the package wandb: tests/interop/test_wandb.py",
    r"--chat-template": "the packages tokenizers and jinja2: tests/interop/test_pages.py",
}

BASH_BLOCKS = " build/"  # what a page's bash blocks make: tests/interop/test_pages.py runs these pages

# Begins a run, sends it a signal, and expects its exit code.
SIGNALLED = """ztrain --config run.yaml --set run.name={0} --set train.epochs=1000000 & pid=$!
until [ -s runs/{0}/metrics.jsonl ]; do kill -0 $pid; sleep 0.05; done
kill -{1} $pid
wait $pid || [ $? = {2} ]"""

# Sizes that the tiny model does not have, ranks that this machine does not have, what stands for something of the reader's.
REPLACED = {
    r"--local-gpus (4|8|16)": "--local-gpus 2",
    r"--tokenizer MODEL": "--tokenizer byte",
    r"MODEL|Qwen/Qwen2.5-0.5B": "model",
    r"15496,995,11": "15,95,11",
    r"--trace-steps 10-12": "--trace-steps 2-3",
    r"train.max_steps=100\b": "train.max_steps=2",
    r"profile_step=5": "profile_step=2",
    r"comm.interface=ib0": "comm.interface=lo",
    r"tail -f": "tail",
    r"why runs/run": "why runs/killed",
    r"kill -TERM PID": SIGNALLED.format("stopped", "TERM", 75),
}

# Pages whose first yaml block is a part of the run spec, and what is replaced in it.
SECTIONS = {
    "mixtures": ("data", {"1024": "24"}),
    "sampling": ("train", {"train:": "train:\n  device: cpu\n  epochs: 1", "100": "2", "15496, 995": "15, 95", "64": "4"}),
}


def read(page):
    with open(os.path.join(ROOT, "docs", f"{page}.md"), encoding="utf-8") as f:
        return f.read()


def commands(page):
    """The page's commands, without the comments behind them."""
    text = re.sub(r"^```.*?^```$", "", read(page), flags=re.S | re.M)
    return [found[1] for line in text.splitlines() if (found := COMMAND.match(line))]


def is_run(command):
    return BASH_BLOCKS not in command and not any(re.search(pattern, command) for pattern in NOT_RUN)


def replaced(command):
    for pattern, words in REPLACED.items():
        command = re.sub(pattern, lambda _, words=words: words, command)
    return command


def section(page):
    """(name, text) of the part of the run spec that the page shows."""
    name, changes = SECTIONS[page]
    text = re.search(r"^```yaml\n(.*?)^```$", read(page), re.S | re.M)[1]
    assert text.startswith(f"{name}:\n")
    for words, others in changes.items():
        assert words in text, f"{page}: {words}"
        text = text.replace(words, others)
    return name, text


SPEC = {"model": {"pretrained": "model"},
        "data": {"train": "data/code", "validation": "data/prose", "seq_length": 24}, "train": {"epochs": 1, "device": "cpu"},
        "train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}}}


def write_spec(path, page):
    spec, text = dict(SPEC), ""
    if page in SECTIONS:
        name, text = section(page)
        del spec[name]
    with open(path, "w", encoding="utf-8") as f:
        f.write(to_yaml(spec) + "\n" + text)


def run(command, folder, seconds=60):
    path = f"{folder}/bin:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", check=False, timeout=seconds * SLOWNESS, env={**os.environ, "PATH": path, "HOME": str(folder)})
    assert done.returncode == 0, f"{command}\nexit {done.returncode}\n{done.stdout[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """What the pages suppose: ztrain on the PATH, data, a run that is over and one that was killed, a model, a ds_config, rows with labels."""
    folder = tmp_path_factory.mktemp("reader")
    for name in ("bin", "data", "tokenizer"):
        (folder / name).mkdir()
    os.symlink(ZTRAIN, folder / "bin" / "ztrain")
    os.symlink(os.path.join(ROOT, "scripts", "tokenize.py"), folder / "bin" / "ztrain-tokenize")
    for name in ("scripts", "configs"):
        os.symlink(os.path.join(ROOT, name), folder / name)
    (folder / "tokenizer" / "tokenizer.json").write_text(json.dumps(byte_tokenizer()), encoding="utf-8")
    rows = "text,sentiment\n" + "Stocks rose on Monday.,good\nStocks fell on Tuesday.,bad\n" * 16
    (folder / "reviews.csv").write_text(rows, encoding="utf-8")
    (folder / "axolotl.yaml").write_text("base_model: model\nsequence_len: 24\nmicro_batch_size: 2\nlearning_rate: 1e-5\n"
                                         "datasets:\n  - {path: reviews.jsonl, type: completion}\n", encoding="utf-8")
    (folder / "pairs.jsonl").write_text("".join(json.dumps({"prompt": f"{i} and 1? ", "chosen": str(i + 1), "rejected": str(i)}) + "\n"
                                                for i in range(40)), encoding="utf-8")
    (folder / "ds_config.json").write_text('{"zero_optimization": {"stage": 2}}', encoding="utf-8")
    for name in ("code", "prose", "chats"):
        run(f"scripts/tokenize.py reviews.csv --tokenizer byte --output data/{name}", folder)
    first = {**SPEC, "model": {"config": merged(LLAMA, {"vocab_size": 257}), "tokenizer": "tokenizer"}}
    (folder / "first.yaml").write_text(to_yaml(first), encoding="utf-8")
    run("ztrain --config first.yaml && ztrain export runs/first --out model", folder)
    write_spec(folder / "run.yaml", None)
    run("ztrain --config run.yaml", folder)
    run(SIGNALLED.format("killed", "KILL", 137), folder)
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_commands_of(base, tmp_path, page):
    folder = tmp_path / "reader"
    shutil.copytree(base, folder, symlinks=True)
    write_spec(folder / "run.yaml", page)
    for command in filter(is_run, commands(page)):
        if "jq " in command and not shutil.which("jq"):
            break  # a reader without jq gets no further either
        if re.match(r"(\S+=\S+ )?ztrain --config", command) and not re.search("--(resume|dry-run)", command):
            shutil.rmtree(folder / "runs" / "run", ignore_errors=True)  # the reader's run is a new one
        if command.startswith(("ztrain init", "ztrain convert")) and (folder / "run.yaml").exists():
            os.remove(folder / "run.yaml")  # which it writes
        run(replaced(command), folder)
    if page == "sampling":
        shutil.rmtree(folder / "runs")
        run("ztrain --config run.yaml", folder)
        assert {row["sample"] for row in Metrics(folder / "runs" / "run").kinds("sample")} == {1, 2}


def test_what_is_declared_is_used():
    every = [command for page in PAGES for command in commands(page)]
    assert all(commands(page) for page in PAGES)
    for pattern in NOT_RUN:
        assert any(re.search(pattern, command) for command in every), pattern
    for pattern in REPLACED:
        assert any(re.search(pattern, command) for command in filter(is_run, every)), pattern

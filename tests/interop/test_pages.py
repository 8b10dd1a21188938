# SPDX-License-Identifier: Apache-2.0
"""The pages that begin with data and end with a model in transformers, command by command: what they promise comes out."""
import os
import re
import shlex
import subprocess
import sys

import pytest

from harness import ROOT, SLOWNESS, ZTRAIN

pytestmark = pytest.mark.interop

SETUP = ("-m venv", "pip install")  # lines that make the Python environment, whose place this one takes


def blocks(page, kind):
    """The page's blocks of a kind, ```KIND; "": blocks of what is printed."""
    with open(os.path.join(ROOT, "docs", page), encoding="utf-8") as file:
        found = re.findall(r"^```(\w*)\n(.*?)^```$", file.read(), re.S | re.M)
    return [text for its_kind, text in found if its_kind == kind]


def commands(page):
    """The page's commands, block by block."""
    lines = ("\n".join(line for line in block.splitlines() if not any(words in line for words in SETUP))
             for block in blocks(page, "bash"))
    return [block.replace("build/venv/bin/python", sys.executable) for block in lines if block.strip()]


def follow(page, tmp_path):
    """Runs a page's commands in a folder that looks like a source tree after `make`. What each block prints."""
    (tmp_path / "build").mkdir()
    os.symlink(ZTRAIN, tmp_path / "build" / "ztrain")
    os.symlink(os.path.join(ROOT, "scripts"), tmp_path / "scripts")
    printed = []
    for block in commands(page):
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", block], cwd=tmp_path, capture_output=True, text=True,
                              timeout=120 * SLOWNESS)
        assert done.returncode == 0, f"{block}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        printed.append(done.stdout)
    assert sorted(os.listdir(tmp_path)) == ["build", "scripts"]  # nothing is left in the source tree
    return printed


# The words of fine-tuning.md's first command that stand for the reader's files, and what the page has made.
READERS = {"ztrain-tokenize": "scripts/tokenize.py", " chats.jsonl": " build/chat/chats.jsonl",
           " MODEL": " build/chat/tokenizer", " data/": " build/chat/own-"}


def run_opening(page, tmp_path):
    """Runs the command that the page opens with. What it prints."""
    with open(os.path.join(ROOT, "docs", page), encoding="utf-8") as file:
        command = re.search(r"^ {4}(.*)$", file.read(), re.M)[1]
    for words, others in READERS.items():
        assert words in command, words
        command = command.replace(words, others)
    return subprocess.run([sys.executable, *shlex.split(command)], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True,
                          timeout=120 * SLOWNESS).stdout


def promised_lines(page):
    """The lines of the blocks that show what is printed, but those in which ... stands for something."""
    return [line for block in blocks(page, "") for line in block.splitlines() if line and "…" not in line]


def check_promises(page, printed):
    """Each line that the page shows is printed. Losses depend on the processor's instructions, so digits after a point may differ."""
    def shape(line):
        return re.sub(r"\.\d+", ".0", line)
    lines = {shape(line) for text in printed for line in text.splitlines()}
    for line in promised_lines(page):
        assert shape(line) in lines, f"{page} promises '{line}'; printed:\n" + "".join(printed)


def test_fine_tuning(tmp_path):
    printed = follow("fine-tuning.md", tmp_path)
    check_promises("fine-tuning.md", printed)
    assert printed[-2].strip() == "After seven comes eight.<|im_end|>"
    assert printed[-1].strip() == "After seven comes eight."
    assert "build/chat/own-chats.bin" in run_opening("fine-tuning.md", tmp_path)


def test_classification(tmp_path):
    printed = follow("classification.md", tmp_path)
    check_promises("classification.md", printed)
    printed = [text.splitlines() for text in printed]
    assert ["is our boat ready -> question", "our boat is ready -> statement"] in printed
    assert printed[-1] == ["is the boat ready the plan is new -> question first",
                           "the boat is ready is the plan new -> statement first"]


def test_adapters(tmp_path):
    check_promises("adapters.md", follow("adapters.md", tmp_path))


def test_from_deepspeed(tmp_path):
    printed = follow("from-deepspeed.md", tmp_path)
    check_promises("from-deepspeed.md", printed)
    assert {"model.safetensors", "tokenizer.json"} <= set(os.listdir(tmp_path / "build" / "moving" / "tuned"))

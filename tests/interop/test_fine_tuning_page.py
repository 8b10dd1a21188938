"""docs/fine-tuning.md, command by command: the tiny model learns its conversations and answers in transformers."""
import os
import re
import subprocess
import sys

import pytest

from harness import ROOT, SLOWNESS, ZTRAIN

pytestmark = pytest.mark.interop


def commands(page):
    """The page's bash blocks, without the lines that make the Python environment, as this one takes its place."""
    with open(os.path.join(ROOT, "docs", page), encoding="utf-8") as file:
        blocks = re.findall(r"```bash\n(.*?)```", file.read(), re.S)
    lines = ("\n".join(line for line in block.splitlines() if "-m venv" not in line and "pip install" not in line)
             for block in blocks)
    return [block.replace("build/chat-venv/bin/python", sys.executable) for block in lines if block.strip()]


def test_the_page_word_by_word(tmp_path):
    (tmp_path / "build").mkdir()
    os.symlink(ZTRAIN, tmp_path / "build" / "ztrain")
    os.symlink(os.path.join(ROOT, "scripts"), tmp_path / "scripts")
    printed = []
    for block in commands("fine-tuning.md"):
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", block], cwd=tmp_path, capture_output=True, text=True,
                              timeout=120 * SLOWNESS)
        assert done.returncode == 0, f"{block}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        printed.append(done.stdout)
    assert "\u27e6After nine comes ten.<|im_end|>\u27e7" in "".join(printed)
    assert printed[-1].strip() == "After seven comes eight.<|im_end|>"

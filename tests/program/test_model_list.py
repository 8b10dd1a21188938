# SPDX-License-Identifier: Apache-2.0
"""The table of models in docs/models.md is what the program says, and scripts/check-model-list.py notices where it is not."""
import os
import shutil
import subprocess
import sys

from harness import ROOT, SLOWNESS

SCRIPT = os.path.join(ROOT, "scripts", "check-model-list.py")


def check(*options):
    return subprocess.run([sys.executable, SCRIPT, *map(str, options)], capture_output=True, text=True, timeout=120 * SLOWNESS)


def test_the_page_says_what_the_program_does():
    done = check()
    assert done.returncode == 0, done.stderr
    assert "of 20 models" in done.stdout


def test_a_table_that_differs_is_named_and_corrected(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "tests" / "configs").mkdir(parents=True)
    for name in ("openai-community--gpt2.json", "facebook--opt-125m.json"):
        shutil.copy(os.path.join(ROOT, "tests", "configs", name), tmp_path / "tests" / "configs")
    page, text = tmp_path / "docs" / "models.md", "# Models\n\n## Twenty models\n\nText.\n\n{}\n## Next\n"
    page.write_text(text.format("| model |\n|---|\n"))
    done = check(tmp_path)
    assert done.returncode == 1 and "| openai-community/gpt2 | `gpt2` | 124 million |" in done.stderr and "--write" in done.stderr
    assert check("--write", tmp_path).returncode == 0 and check(tmp_path).returncode == 0
    assert "| facebook/opt-125m | `opt` | refused: model_type 'opt' is not supported |" in page.read_text()
    assert page.read_text().endswith("|\n\n## Next\n")
    page.write_text("# Models\n")
    assert "no section" in check(tmp_path).stderr
    (tmp_path / "tests" / "configs" / "bad.json").write_text('{"model_type": 5}')
    assert check(tmp_path).returncode == 1

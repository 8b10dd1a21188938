# SPDX-License-Identifier: Apache-2.0
"""Help, version, doctor, and the documents that are made from the binary."""
import os
import re
import subprocess
import sys

import pytest

from harness import ROOT, USAGE, ZTRAIN


def test_help_names_every_command_and_exit_code(folder):
    for arguments in (["--help"], ["-h"]):
        text = folder.ztrain(*arguments).out
        for word in ("--config", "--resume", "--local-gpus", "--set", "--dry-run", "plan", "data", "export", "verify", "inspect",
                     "report", "why", "replay", "doctor", "version", "75"):
            assert word in text, word


def test_help_of_the_run_spec(folder):
    text = folder.ztrain("--help-spec").out
    for key in ("seq_length", "train_batch_size", "weight_decay_all", "timeout_seconds", "stage3_prefetch_bucket_size"):
        assert key in text, key


def stored_pages():
    """{name: (what is written by hand, the tables)} of docs/run-spec*.md."""
    pages = {}
    for name in os.listdir(os.path.join(ROOT, "docs")):
        if name.startswith("run-spec"):
            with open(os.path.join(ROOT, "docs", name), encoding="utf-8") as f:
                prose, mark, tables = f.read().partition(f"<!-- {name}:")
            pages[name] = prose, mark + tables
    return pages


def printed_pages():
    """{name: text} of the tables of the run spec's pages."""
    made = subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "spec-pages.py"), ZTRAIN], stdout=subprocess.PIPE, text=True,
                          check=True, timeout=60)
    parts = re.split(r"^(?=<!-- run-spec)", made.stdout, flags=re.M)
    assert parts[0] == ""
    return {part.split()[1].rstrip(":"): part for part in parts[1:]}


def test_the_pages_of_the_run_spec_are_up_to_date():
    stored = stored_pages()
    tables = {name: text for name, (_, text) in stored.items()}
    assert tables == printed_pages(), "docs/run-spec*.md are not what the binary prints; hint: make doc"
    assert all(prose.startswith("# The run spec") for prose, _ in stored.values())


def test_every_key_of_the_run_spec_is_on_one_short_page(folder):
    pages = printed_pages()
    first = pages.pop("run-spec.md")
    assert all(f"({name}" in first for name in pages)
    used = re.findall(r"^([a-z_0-9.]+)  \(", folder.ztrain("--help-spec").out, flags=re.M)
    unused = re.findall(r"^([a-z_0-9.]+)$", folder.ztrain("--help-spec").out, flags=re.M)
    assert len(used) > 200 and len(unused) > 40
    for key in used + unused:
        assert len([name for name, text in pages.items() if f"\n| `{key}` | " in text]) == 1, key
    for name, (prose, tables) in stored_pages().items():
        assert name == "run-spec.md" or len((prose + tables).split()) <= 2000, name


def test_no_word_of_an_explanation_is_lost_on_the_pages(folder):
    """The cell has the first clauses of a long explanation, the list below the table has the others."""
    plain = folder.ztrain("--help-spec").out.split("cuda_graphs  (")[1].split("\ntrain.sm_count")[0]
    clauses = [clause.strip() for clause in " ".join(plain.split("\n", 1)[1].split()).split("; ")]
    page = printed_pages()["run-spec-train.md"]
    row = re.search(r"^\| `train.cuda_graphs` \|.*\| (.*) \|$", page, flags=re.M)[1]
    rest = page.split("\n`train.cuda_graphs`:\n\n")[1].split("\n\n")[0]
    assert [row, *(" ".join(item.split()) for item in rest.removeprefix("- ").split("\n- "))] == clauses and len(clauses) > 2


def test_version(folder):
    with open(os.path.join(ROOT, "core", "version.h"), encoding="utf-8") as f:
        version = f.read().split('ZTRAIN_VERSION "')[1].split('"')[0]
    for arguments in (["version"], ["--version"]):
        text = folder.ztrain(*arguments).out
        assert text.startswith("ztrain") and version in text.splitlines()[0]
        for library in ("libyaml", "jansson", "zstd", "xxHash", "libsodium", "liburing", "PCRE2", "utf8proc"):
            assert library in text


def test_doctor(folder):
    text = folder.ztrain("doctor").out
    for word in ("cpu", "instruction sets", "cores", "memory", "available", "libyaml", "srun", "device: auto"):
        assert word in text, word
    assert re.search(r"bf16 products +(amx \d+, )?(dot \d+, )?widen \d+ GFLOP/s a core; in use: (dot|widen|amx, (dot|widen))\n", text), text
    assert "device: auto      takes c" in text
    assert "none found" not in text or "hint: where there is a GPU, install NVIDIA's driver" in text
    assert "no CUDA backend" not in text or "hint: for GPUs, build ztrain where nvcc is installed" in text


def test_help_of_commands(folder):
    for command in ("plan", "convert", "data", "export", "verify", "inspect", "report", "why", "replay", "doctor", "version"):
        assert f"ztrain {command}" in folder.ztrain(command, "--help").out


@pytest.mark.parametrize("arguments", [["--help"], ["version"], ["--help-spec"], ["plan", "--config"], ["--dry-run", "--config"]],
                         ids=lambda value: value[0])
def test_output_that_cannot_be_written_is_an_error(folder, arguments):
    spec = [folder.spec()] if arguments[-1] == "--config" else []
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([ZTRAIN, *arguments, *spec], stdout=full, stderr=subprocess.PIPE, check=False, timeout=60)
    assert done.returncode == USAGE and b"standard output" in done.stderr, done

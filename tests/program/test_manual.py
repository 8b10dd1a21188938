# SPDX-License-Identifier: Apache-2.0
"""The man page and the completion for bash that scripts/make-manual.py makes from the binary, and their installation."""
import os
import re
import shutil
import subprocess
import sys

import pytest

from harness import ROOT, ZTRAIN


def made(folder):
    subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "make-manual.py"), ZTRAIN, str(folder)], check=True, timeout=60)
    return folder / "man" / "man1" / "ztrain.1", folder / "bash-completion" / "completions" / "ztrain"


@pytest.fixture(scope="module")
def manual(tmp_path_factory):
    return made(tmp_path_factory.mktemp("share"))


def ask(*arguments):
    return subprocess.run([ZTRAIN, *arguments], stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout


def test_the_man_page_has_every_option_command_and_key(manual):
    text = manual[0].read_text(encoding="utf-8").replace("\\-", "-")
    options = re.findall(r"^  (--[a-z-]+) ", ask("--help"), flags=re.M)
    assert len(options) > 8
    for name in options:
        assert f"\\fB{name}\\fR" in text, name
    for name in ("plan", "data", "export", "verify", "inspect", "report", "sample", "why", "replay", "doctor", "version"):
        assert text.count(f".SS {name}\n") == 1
    plan = text.split(".SS plan\n")[1].split(".SS ")[0]
    assert "the GiB that a run needs on each rank" in plan and "Estimates the time of a step" in plan
    for code in ("0", "2", "75", "130"):
        assert f"\n\\fB{code}\\fR\n" in text
    assert "\\fBZTRAIN_GEMM_CACHE\\fR" in text and f'"ztrain {ask("version").split()[1]}"' in text


def test_the_man_page_has_every_key_of_the_run_spec_by_section(manual):
    spec = manual[0].read_text(encoding="utf-8").replace("\\-", "-").split(".SH RUN SPEC")[1].split(".SH ")[0]
    used = re.findall(r"^([a-z_0-9.]+)  \((?!only)", ask("--help-spec").split("\nDeepSpeed's keys that")[0], flags=re.M)
    found = [name if section == "At top level" else f"{section}.{name}"
             for section, names in re.findall(r"\.TP\n\\fB(.*)\\fR\n.*\n\.br\n(.*)", spec)
             for name in re.findall(r"\\fB(.*?)\\fR", names)]
    assert len(used) > 100 and sorted(found) == sorted(used)


def test_the_man_page_is_shorter_than_that_of_git(manual):
    assert len(manual[0].read_text(encoding="utf-8").split()) < 4500  # git(1) has about 7,500


def test_the_man_page_is_set_without_a_warning(manual):
    if not shutil.which("groff"):
        return  # a machine without groff has no manual pages either
    done = subprocess.run(["groff", "-man", "-Tascii", "-ww", "-z", str(manual[0])], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False, timeout=60)
    assert done.returncode == 0 and done.stdout == "", done.stdout


def complete(manual, line, cwd="/", breaks=" \t\n=:"):
    """The words that bash would offer at the end of the line."""
    script = """compopt() { :; }
. "$1"
COMP_LINE=$2 COMP_POINT=${#2} COMP_WORDBREAKS=$3
_ztrain
printf '%s\\n' "${COMPREPLY[@]}"
"""
    done = subprocess.run(["bash", "-uc", script, "bash", str(manual[1]), line, breaks], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False, cwd=cwd, timeout=60)
    assert done.stderr == "", done
    return [word for word in done.stdout.split("\n") if word]


def test_completion(manual, tmp_path):
    def offered(line, **more):
        return complete(manual, line, cwd=tmp_path, **more)

    (tmp_path / "run.yaml").touch()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "runs").mkdir()
    assert {"plan", "export", "verify", "--config", "--resume"} <= set(offered("ztrain "))
    assert offered("ztrain ver") == ["verify", "version"] and offered("ztrain --local") == ["--local-gpus"]
    assert offered("ztrain --config ") == ["run.yaml", "runs"] and offered("ztrain --resume ru") == ["runs"]
    assert offered("ztrain --config=run.") == ["run.yaml"]
    assert offered("ztrain --config run.yaml --set train.max_s") == ["train.max_steps=", "train.max_skipped_steps="]
    assert offered("ztrain plan --set zero_optimization.st") == ["zero_optimization.stage="]
    assert offered("ztrain --set train.device=c") == ["cpu", "cuda"]
    assert offered("ztrain --set train.device=c", breaks=" \t\n") == ["train.device=cpu", "train.device=cuda"]
    assert offered("ztrain --set bf16.enabled=") == ["true", "false", "auto"] and offered("ztrain --set run.seed=") == []
    assert offered("ztrain export --") == ["--base", "--best", "--dtype", "--force", "--help", "--merge", "--out"] and offered("ztrain export --dtype b") == ["bf16"]
    assert offered("ztrain verify ") == ["runs"] and offered("ztrain --world ") == []
    assert offered("ztrain pl") == ["plan"] and offered("ztrain plan --re") == []
    assert offered("ztrain plan --he") == ["--help"] and offered("ztrain plan --local") == ["--local-gpus"]
    assert offered("ztrain plan --speed --device h") == ["h100", "h100-pcie", "h100-nvl", "h200"]
    assert offered("ztrain plan --speed --assume fused") == ["fused-bias", "fused-gelu", "fused-swiglu"]
    assert offered("ztrain plan --speed --link ") == []


def test_install(tmp_path):
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    build = os.path.relpath(os.path.dirname(ZTRAIN), ROOT)
    done = subprocess.run(["make", "-C", ROOT, "-s", "-o", "all", "-o", f"{build}/ztrain", f"BUILD={build}", f"DESTDIR={tmp_path}", "PREFIX=/usr",
                           "install"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=env, timeout=120)
    assert done.returncode == 0 and done.stdout == "", done.stdout
    share = tmp_path / "usr" / "share"
    for path in ("man/man1/ztrain.1", "bash-completion/completions/ztrain", "ztrain/scripts/tokenize.py", "doc/ztrain/README.md",
                 "doc/ztrain/CHANGELOG.md", "doc/ztrain/docs/glossary.md", "doc/ztrain/docs/operations.md"):
        assert (share / path).stat().st_size > 0, path
    assert "config: /usr/share/ztrain/configs/models/" in (share / "ztrain" / "configs" / "gpt2-124m.yaml").read_text(encoding="utf-8")
    assert not (share / "ztrain" / "configs" / "quickstart.yaml").exists()  # scripts/quickstart.sh makes its data
    installed = subprocess.run([tmp_path / "usr" / "bin" / "ztrain", "--version"], stdout=subprocess.PIPE, text=True, check=True)
    assert installed.stdout.startswith("ztrain ")

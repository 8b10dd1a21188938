# SPDX-License-Identifier: Apache-2.0
"""Installing, removing and packing: what `make install`, `uninstall`, `dist` and `deb` put where, and that it works elsewhere."""
import os
import re
import shutil
import subprocess
import sys
import tarfile

import pytest

from harness import ROOT, ZTRAIN

BUILD = os.path.relpath(os.path.dirname(ZTRAIN), ROOT)
OUTSIDE_MAKE = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}


def version():
    with open(os.path.join(ROOT, "core", "version.h"), encoding="utf-8") as f:
        return re.search(r'#define ZTRAIN_VERSION "(.*)"', f.read())[1]


def make(folder, *words):
    """make with the binary that is there. Its outputs are not made anew."""
    done = subprocess.run(["make", "-C", ROOT, "-s", "-o", "all", "-o", f"{BUILD}/ztrain", f"BUILD={BUILD}", f"DESTDIR={folder}", "PREFIX=/usr",
                           *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=OUTSIDE_MAKE, timeout=120)
    assert done.returncode == 0, done.stdout
    return done.stdout


def run(*command, code=0, **options):
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=60,
                          **options)
    assert done.returncode == code, done.stdout
    return done.stdout


def files_below(folder):
    return sorted(os.path.join(where, name) for where, _, names in os.walk(folder) for name in names)


def test_the_commands_work_after_the_prefix_was_moved(tmp_path):
    assert make(tmp_path / "first", "install") == ""
    (tmp_path / "first" / "usr").rename(tmp_path / "moved")
    path = {**os.environ, "PATH": f"{tmp_path}/moved/bin:{os.environ['PATH']}"}
    (tmp_path / "in.txt").write_text("one\n\ntwo\n", encoding="utf-8")
    run("ztrain-tokenize", tmp_path / "in.txt", "--output", tmp_path / "out", "--tokenizer", "byte", "--workers", 2, env=path)
    assert (tmp_path / "out.bin").stat().st_size == 2 * (3 + 3 + 2)
    assert run("ztrain-tokenize", "--help", env=path).startswith("usage: ztrain-tokenize ")
    assert "\n  ztrain-tokenize book.txt --output" in run("ztrain-tokenize", "--help", env=path)
    assert "ztrain-wandb: there is no run folder 'nothing'" in run("ztrain-wandb", "nothing", env=path, code=3)
    assert run("ztrain", "--version", env=path).startswith("ztrain ")
    assert (tmp_path / "moved" / "share" / "doc" / "ztrain" / "LICENSE").exists()


def test_the_script_in_the_source_tree_calls_itself_by_its_own_name():
    script = os.path.join(ROOT, "scripts", "tokenize.py")
    said = run(sys.executable, script, "--help")
    assert said.startswith("usage: tokenize.py ") and "\n  tokenize.py book.txt" in said and "ztrain-tokenize" not in said


def test_uninstall_removes_what_install_put_there_and_nothing_else(tmp_path):
    theirs = tmp_path / "usr" / "share" / "ztrain" / "configs" / "mine.yaml"
    make(tmp_path, "install")
    assert len(files_below(tmp_path)) > 50
    cache = tmp_path / "usr" / "share" / "ztrain" / "scripts" / "tokenization" / "__pycache__"
    cache.mkdir(exist_ok=True)
    (cache / "errors.cpython-311.pyc").touch()
    theirs.touch()
    assert make(tmp_path, "uninstall") == ""
    assert files_below(tmp_path) == [str(theirs)]
    theirs.unlink()
    make(tmp_path, "install")
    make(tmp_path, "uninstall")
    left = {os.path.relpath(folder, tmp_path) for folder, _, _ in os.walk(tmp_path)}
    assert files_below(tmp_path) == [] and left == {".", "usr", "usr/bin", "usr/share", "usr/share/man", "usr/share/man/man1"}
    make(tmp_path, "uninstall")  # again


def test_the_version_is_the_same_everywhere():
    assert run(ZTRAIN, "--version") .split()[:2] == ["ztrain", version()]
    with open(os.path.join(ROOT, "CITATION.cff"), encoding="utf-8") as f:
        cited = f.read()
    assert f"\nversion: {version()}\n" in cited
    with open(os.path.join(ROOT, "CHANGELOG.md"), encoding="utf-8") as f:
        newest, dated = re.search(r"^## ([0-9.]+)\n\n(\S+)", f.read(), re.M).groups()
    with open(os.path.join(ROOT, "docs", "install.md"), encoding="utf-8") as f:
        assert set(re.findall(r"ztrain[-_@]([0-9]+\.[0-9]+\.[0-9]+)", f.read())) == {version()}
    assert newest == version() and f"\ndate-released: {dated}\n" in cited


# --- check-dist.py ----------------------------------------------------------------------------------------------------

def check_dist(binary, glibc, code):
    return run(sys.executable, os.path.join(ROOT, "scripts", "check-dist.py"), binary, "--glibc", glibc, code=code)


@pytest.fixture
def linked(tmp_path):
    """Links a program with these flags."""
    def link(*flags, program="int main(void) { return 0; }"):
        subprocess.run(["gcc", "-x", "c", "-", "-o", tmp_path / "program", "-Wl,--no-as-needed", *flags], input=program, text=True, check=True)
        return tmp_path / "program"
    return link


def test_a_binary_that_needs_glibc_only(linked):
    binary = linked("-lm")
    assert re.fullmatch(r"\S+/program needs glibc 2\.[0-9]+ and no other library\n", check_dist(binary, "2.99", 0))


@pytest.mark.parametrize("flags, glibc, message", [
    (["-lzstd"], "2.99", "it needs the library libzstd.so.1"),
    ([], "2.1", "may need 2.1 at most; hint: scripts/packaging/sysroot.sh"),
    (["-Wl,-rpath,/opt/lib"], "2.99", "it has a search path for libraries, /opt/lib"),
    (["-static-pie"], "2.99", "it is not linked dynamically with glibc"),
], ids=["another library", "a newer glibc", "rpath", "static"])
def test_a_binary_that_needs_more(linked, flags, glibc, message):
    assert message in check_dist(linked(*flags), glibc, 1)


def test_a_file_that_is_no_binary(tmp_path):
    (tmp_path / "text").write_text("no ELF", encoding="utf-8")
    assert "cannot be read" in check_dist(tmp_path / "text", "2.31", 1)


# --- make dist and make deb -------------------------------------------------------------------------------------------

def built_with(word):
    """Whether this build was compiled with a flag; None if that is not known."""
    try:
        with open(os.path.join(ROOT, BUILD, "settings"), encoding="utf-8") as f:
            return word in f.read()
    except FileNotFoundError:
        return None


# A binary with CUDA takes its time to compress: .ci/run compilers runs these tests with a build that has none.
PLAIN = built_with("-DZTRAIN_CUDA=1") is False and not built_with("-fsanitize") and shutil.which("dpkg-deb")


def packs(test):
    """Packages are made of a plain build without CUDA, on Debian or Ubuntu: elsewhere it is no test."""
    return test if PLAIN else None


def pack(*words, code=0):
    """make dist or make deb, linked from the objects that are there."""
    done = subprocess.run(["make", "-C", ROOT, "-s", "-o", f"{BUILD}/settings", "-o", f"{BUILD}/ztrain", "-o", "all", "CUDA=0", f"BUILD={BUILD}",
                           *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=OUTSIDE_MAKE, timeout=120)
    assert done.returncode == code, done.stdout
    return done.stdout


@packs
def test_the_tarball_is_whole_and_the_same_each_time(tmp_path):
    name = f"ztrain-{version()}-linux-x86_64"
    tarball = os.path.join(ROOT, BUILD, f"{name}.tar.gz")
    said = pack("dist")
    needs = re.search(r"needs glibc (2\.[0-9]+) and no other library", said)[1]
    with open(tarball, "rb") as f:
        first = f.read()
    pack("dist")
    with open(tarball, "rb") as f:
        assert f.read() == first
    with tarfile.open(tarball) as archive:
        members = archive.getmembers()
        assert {(m.uid, m.gid, m.uname) for m in members} == {(0, 0, "")} and all(m.name.split("/")[0] == name for m in members)
        archive.extractall(tmp_path)
    top = tmp_path / name
    assert run(top / "bin" / "ztrain", "--version") .split()[:2] == ["ztrain", version()]
    assert run(top / "bin" / "ztrain-tokenize", "--help").startswith("usage: ztrain-tokenize")
    share = top / "share" / "ztrain"
    assert "config: configs/models/" in (share / "configs" / "gpt2-124m.yaml").read_text(encoding="utf-8")
    assert run(top / "bin" / "ztrain", "plan", "--config", "configs/gpt2-124m.yaml", "--memory", "80GiB", "--world", 2, cwd=share)
    assert f"glibc {needs} or newer" in (top / "INSTALL").read_text(encoding="utf-8")
    licences = sorted(os.listdir(top / "share" / "doc" / "ztrain" / "licences"))
    assert len(licences) == 9 and "libpcre2-dev.txt" in licences and "libgcc" in licences[0], licences
    assert (top / "LICENSE").exists() and (top / "NOTICE").exists()


@packs
def test_a_tarball_that_would_need_more_is_not_made():
    assert "may need 2.2 at most" in pack("dist", "DIST_GLIBC=2.2", code=2)


@packs
def test_a_package_is_not_made_of_what_clang_compiled():
    assert pack("dist", "CC=clang", code=2).startswith("make: packages have gcc's OpenMP inside, which clang's objects do not use; hint: CC=gcc\n")


@packs
def test_a_package_without_the_licence_of_a_library_is_not_made(tmp_path, linked):
    shutil.copy(linked(), tmp_path / "ztrain")
    (tmp_path / "stage" / "bin").mkdir(parents=True)
    (tmp_path / "ztrain").rename(tmp_path / "stage" / "bin" / "ztrain")
    (tmp_path / "dpkg-query").write_text("#!/bin/sh\necho no-such-package: /lib/libgomp.a\n", encoding="utf-8")
    (tmp_path / "dpkg-query").chmod(0o755)
    said = run(os.path.join(ROOT, "scripts", "packaging", "package.sh"), "tarball", tmp_path / "stage", "2.99", tmp_path, code=1,
               env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert said.endswith("there is no licence of no-such-package, which is inside the binary; hint: pack on Debian or Ubuntu\n")
    assert not list(tmp_path.glob("*.tar.gz"))


@packs
def test_the_debian_package(tmp_path):
    needs = re.search(r"needs glibc (2\.[0-9]+)", pack("deb"))[1]
    package = os.path.join(ROOT, BUILD, f"ztrain_{version()}_amd64.deb")
    fields = run("dpkg-deb", "--field", package)
    for line in ("Package: ztrain", f"Version: {version()}", "Architecture: amd64", f"Depends: libc6 (>= {needs})"):
        assert f"{line}\n" in fields, fields
    assert "@" not in fields and re.search(r"^Installed-Size: [0-9]+$", fields, re.M)
    run("dpkg-deb", "--extract", package, tmp_path)
    assert run(tmp_path / "usr" / "bin" / "ztrain", "--version") .split()[:2] == ["ztrain", version()]
    assert run(tmp_path / "usr" / "bin" / "ztrain-tokenize", "--help").startswith("usage: ztrain-tokenize")
    assert "Apache License 2.0" in (tmp_path / "usr" / "share" / "doc" / "ztrain" / "copyright").read_text(encoding="utf-8")
    assert (tmp_path / "usr" / "share" / "man" / "man1" / "ztrain.1.gz").exists()
    configured = (tmp_path / "usr" / "share" / "ztrain" / "configs" / "gpt2-124m.yaml").read_text(encoding="utf-8")
    assert "config: /usr/share/ztrain/configs/models/" in configured
    owners = run("dpkg-deb", "--contents", package)
    assert all(" root/root " in line for line in owners.splitlines())


def test_another_kind_of_package_is_refused(tmp_path):
    """Refused before anything is packed: the stage is empty."""
    said = run(os.path.join(ROOT, "scripts", "packaging", "package.sh"), "rpm", tmp_path, "2.36", tmp_path, code=2)
    assert said == "package.sh: unknown kind 'rpm'; hint: tarball or deb\n"

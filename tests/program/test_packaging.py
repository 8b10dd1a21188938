# SPDX-License-Identifier: Apache-2.0
"""The recipes in scripts/packaging: what they name is there. Containers, conda and Spack themselves are not needed.

Files that a recipe copies exist, the targets and variables that it gives to make too, Debian's packages are in apt's lists (where
there are any), and the version is that of core/version.h.
"""
import glob
import importlib.util
import os
import re
import subprocess
import sys
import types

import pytest

from harness import ROOT

FOLDER = os.path.join(ROOT, "scripts", "packaging")
LIBRARIES = ("libyaml", "jansson", "zstd", "xxhash", "libsodium", "liburing", "pcre2", "utf8proc")  # in Spack's words
CONDA = {"libyaml": "yaml", "utf8proc": "libutf8proc"}


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def version():
    return re.search(r'#define ZTRAIN_VERSION "(.*)"', read("core", "version.h"))[1]


def recipe(*path):
    return read("scripts", "packaging", *path)


MAKEFILE = read("Makefile")
TARGETS = {name for line in re.findall(r"^([a-z][a-z -]*):", MAKEFILE, re.M) for name in line.split()}


def check_make(words):
    """The words after `make`: options, VARIABLE=VALUE and targets, all of them known to the Makefile. Returns the targets."""
    targets = [word for word in words if "=" not in word and not word.startswith("-")]
    assert set(targets) <= TARGETS, targets
    for variable in (word.split("=")[0] for word in words if "=" in word and not word.startswith("-")):
        assert re.search(rf"\$\({variable}\)|\b{variable}\b", MAKEFILE), variable
    return targets


def commands(text):
    """The shell commands of a RUN or a section, one for each &&, line and pipe."""
    return [part.split() for part in re.split(r"&&|\n|;", text.replace("\\\n", " ")) if part.strip()]


def check_commands(text):
    for words in commands(text):
        if words[0] == "make":
            check_make([word.strip('"') for word in words[1:]])
        elif words[0].startswith("scripts/"):
            assert os.access(os.path.join(ROOT, words[0]), os.X_OK), words
        elif words[:2] == ["apt-get", "install"]:
            yield from (word for word in words[2:] if re.fullmatch(r"[a-z][a-z0-9+.-]+", word))


def check_debian_packages(packages):
    """On Debian 12 whose apt has lists."""
    if "VERSION_CODENAME=bookworm" in read("/etc/os-release") and glob.glob("/var/lib/apt/lists/*_main_*Packages*"):
        said = subprocess.run(["apt-cache", "policy", *packages], stdout=subprocess.PIPE, text=True, check=True).stdout
        assert set(re.findall(r"^(\S+):\n.*\n  Candidate: [^(]", said, re.M)) == set(packages), said


# --- containers -------------------------------------------------------------------------------------------------------

def stages(text):
    """[(image, name, instructions)] of a Dockerfile."""
    joined = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", text, flags=re.M))
    found = []
    for line in filter(None, joined.split("\n")):
        word, rest = line.split(" ", 1)
        if word == "FROM":
            image, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()
            found.append((image, name, []))
        else:
            found[-1][2].append((word, rest))
    return found


def test_the_dockerfile():
    found = stages(recipe("Dockerfile"))
    assert [name for _, name, _ in found] == ["build-cpu", "build-cuda", "cpu", "cuda"]
    packages, seen = [], set()
    for image, name, instructions in found:
        assert re.fullmatch(r"debian:12-slim|nvidia/cuda:13\.0\.1-(devel|cudnn-runtime)-ubuntu24\.04", image)
        for word, rest in instructions:
            assert word in ("WORKDIR", "COPY", "RUN", "ENV", "ENTRYPOINT", "CMD"), word
            if word == "COPY" and rest.startswith("--from="):
                assert re.match(r"--from=(\S+) ", rest)[1] in seen, rest
                assert re.search(r" /src/build/\S+\.deb ", rest)
            if word == "RUN":
                packages += [package for package in check_commands(rest) if "t64" not in package]
        seen.add(name)
    assert {"python3", "python3-venv", "libpmi2-0"} <= set(packages)
    check_debian_packages(packages)
    ignored = recipe("Dockerfile.dockerignore").split()
    assert {".git", "build"} <= set(ignored) and not set(ignored) & set(os.listdir(ROOT)) - {".git", "build", "runs"}


def test_the_definition_for_apptainer():
    text = recipe("apptainer.def")
    sections = dict(re.findall(r"^%(\w+)\n(.*?)(?=^%|\Z)", text, re.M | re.S))
    assert set(sections) == {"arguments", "files", "post", "environment", "runscript", "test"}
    copied = [line.split() for line in sections["files"].strip().split("\n")]
    for source, target in copied:
        assert os.path.exists(os.path.join(ROOT, source)) and target == f"/src/{source}", source
    needed = {name for name in os.listdir(ROOT) if not name.startswith(".") and name not in ("build", "runs")}
    tracked = subprocess.run(["git", "-C", ROOT, "ls-files"], stdout=subprocess.PIPE, text=True, check=False).stdout
    if tracked:
        needed &= {name.split("/")[0] for name in tracked.split()}
    assert {source for source, _ in copied} == needed
    packages = list(check_commands(sections["post"].replace("{{ cuda }}", "0")))
    assert "python3-venv" in packages
    check_debian_packages(packages)
    arguments = dict(line.strip().split("=") for line in sections["arguments"].strip().split("\n"))
    assert set(re.findall(r"\{\{ (\w+) \}\}", text)) == set(arguments) == {"base", "cuda"}


# --- conda ------------------------------------------------------------------------------------------------------------

def test_the_recipe_for_conda(tmp_path):
    text = recipe("conda", "meta.yaml")
    assert f'{{% set version = "{version()}" %}}' in text
    host, run = (re.search(rf"^  {part}:\n((?:    - .*\n)+)", text, re.M)[1] for part in ("host", "run"))
    names = {line.split()[1] for line in host.strip().split("\n")}
    assert names == {CONDA.get(name, name) for name in LIBRARIES}
    assert host in run.replace("    - python >=3.9\n", "") and "python" in run
    for name in re.findall(r"^    - ([A-Z]+)$", text, re.M):
        assert os.path.exists(os.path.join(ROOT, name)), name
    # build.sh with a make that writes down what it is called with
    (tmp_path / "make").write_text(f'#!/bin/sh\nfor word; do echo "$word"; done >> {tmp_path}/calls; echo --- >> {tmp_path}/calls\n')
    (tmp_path / "make").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CC": "some-cc", "PREFIX": "/some/prefix", "CPU_COUNT": "3", "CFLAGS": "-O3"}
    subprocess.run([os.path.join(FOLDER, "conda", "build.sh")], env=env, check=True)
    build, install = (call.split("\n") for call in (tmp_path / "calls").read_text().strip().split("\n---")[:2])
    assert check_make(list(filter(None, build))) == ["all", "manual"] and check_make(list(filter(None, install))) == ["install"]
    assert "CFLAGS=-O3 -isystem /some/prefix/include" in build and "PREFIX=/some/prefix" in install and "CC=some-cc" in install
    # Other settings in the second call would compile everything again.
    assert {word for word in build if "=" in word} == {word for word in install if "=" in word}


# --- Spack ------------------------------------------------------------------------------------------------------------

class Spec:
    """As much of a Spack spec as the recipe asks for."""
    def __init__(self, *variants):
        self.variants = variants
        self.prefix = types.SimpleNamespace(bin=types.SimpleNamespace(nvcc="/cuda/bin/nvcc"))

    def satisfies(self, variant):
        return variant in self.variants

    def __getitem__(self, name):
        assert name == "cuda"
        return self


@pytest.fixture
def spack_recipe(monkeypatch):
    """The recipe with directives that write down what they are called with: (module, {directive: [arguments]})."""
    called = {name: [] for name in ("license", "version", "depends_on", "conflicts", "make")}
    package = types.ModuleType("spack.package")
    for name, calls in called.items():
        setattr(package, name, lambda *words, _calls=calls, **options: _calls.append((words, options)))
    package.MakefilePackage, package.CudaPackage = type("MakefilePackage", (), {}), type("CudaPackage", (), {})
    monkeypatch.setitem(sys.modules, "spack", types.ModuleType("spack"))
    monkeypatch.setitem(sys.modules, "spack.package", package)
    found = importlib.util.spec_from_file_location("ztrain_for_spack", os.path.join(FOLDER, "spack", "packages", "ztrain", "package.py"))
    module = importlib.util.module_from_spec(found)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found.loader.exec_module(module)
    return module, called


def test_the_recipe_for_spack(spack_recipe):
    module, called = spack_recipe
    assert called["version"] == [((version(),), {})] and called["license"] == [(("Apache-2.0",), {})]
    needed = {words[0].split("@")[0] for words, options in called["depends_on"] if not options}
    assert needed == set(LIBRARIES)
    for variants, cuda in ((), "CUDA=0"), (("+cuda",), "CUDA=1"):
        called["make"].clear()
        ztrain = module.Ztrain()
        ztrain.spec, ztrain.prefix = Spec(*variants), "/some/prefix"
        ztrain.build(ztrain.spec, ztrain.prefix)
        ztrain.install(ztrain.spec, ztrain.prefix)
        (build, _), (install, _) = called["make"]
        assert check_make(build) == ["all", "manual"] and check_make(install) == ["install"]
        assert cuda in build and "PREFIX=/some/prefix" in install
        assert {word for word in build if "=" in word} == {word for word in install if "=" in word}
    assert "namespace: ztrain" in recipe("spack", "repo.yaml") and f"ztrain@{version()}" in read("docs", "install.md")


# --- what the lists have in common ------------------------------------------------------------------------------------

def test_every_list_of_libraries_is_the_same():
    """The Makefile's, install-deps.sh's for apt, dnf, conda and Spack, and those whose licences a package carries."""
    linked = re.search(r"^LIBRARIES = (.*)$", MAKEFILE, re.M)[1].split()
    short = {"yaml": "libyaml", "sodium": "libsodium", "uring": "liburing", "pcre2-8": "pcre2"}
    assert {short.get(name, name) for name in linked} == set(LIBRARIES)
    script = read("scripts", "install-deps.sh")
    apt = {f"lib{name.removeprefix('lib')}-dev" for name in LIBRARIES}
    rpms = {{"zstd": "libzstd"}.get(name, name) + "-devel" for name in LIBRARIES}
    assert apt <= set(re.search(r"^packages=\((.*?)\)", script, re.M | re.S)[1].split())
    assert rpms <= set(re.search(r"local rpms=\((.*?)\)", script, re.S)[1].split())
    assert apt <= set(re.search(r"^packages=\((.*?)\)", recipe("package.sh"), re.M | re.S)[1].split())
    assert apt <= set(re.search(r"dpkg-query -L (.*) \|", recipe("sysroot.sh"))[1].split())
    conda, spack = (re.search(rf"^ +{word} .*$", script, re.M)[0].split() for word in ("micromamba create", "spack install"))
    assert {CONDA.get(name, name) for name in LIBRARIES} <= set(conda) and set(LIBRARIES) == set(spack[2:])
    assert all(name in read("docs", "install.md") for name in conda[4:])

# SPDX-License-Identifier: Apache-2.0
"""The scripts that keep the repository in order find breaches; those that build and install name the next step."""
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from harness import ROOT, session_members, wait_until

FLOORS = ("core", "gpu", "comm", "ckpt", "cmd")


def run_check(script, root):
    done = subprocess.run([sys.executable, os.path.join(ROOT, "scripts", script), str(root)],
                          stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout


def check_layers(root):
    return run_check("check-layers.py", root)


@pytest.fixture
def house(tmp_path):
    for floor in FLOORS:
        shutil.copytree(os.path.join(ROOT, floor), tmp_path / floor)
    return tmp_path


def append(path, text):
    with open(path, "a", encoding="utf-8") as f:
        f.write(text + "\n")


def test_the_floors_are_kept(house):
    code, out = check_layers(house)
    assert code == 0, out


LONG = ["static void told(void)", "{"] + ["    log_info(\"{\");"] * 57 + ["}"]


def test_functions_are_short_and_return(house):
    append(house / "core" / "log.c", "\n".join(LONG))
    code, out = run_check("check-functions.py", house)
    assert code == 0, out
    append(house / "core" / "log.c", "\n".join(LONG[:2] + LONG[2:3] + LONG[2:]))
    append(house / "core" / "io.c", "/* exit(1) */ static void told(void)\n{\n    log_info(\"exit(1)\");\n    _exit(1);\n}")
    append(house / "core" / "retry.c", "static char *kept;\nstatic void keep(void)\n{\n    free(kept);\n    kept = strdup(\"malloc(1)\");\n}")
    os.unlink(house / "comm" / "launch" / "launcher_store.c")
    code, out = run_check("check-functions.py", house)
    lines = out.splitlines()
    assert code == 1 and len(lines) == 4, out
    assert any("core/log.c" in line and "told() has 61 lines, at most 60" in line for line in lines), out
    assert any("core/io.c" in line and "ends the process in 1 places, 0 were expected" in line for line in lines), out
    assert any("core/retry.c" in line and "allocates by itself in 1 places, 0 were expected" in line for line in lines), out
    assert any("comm/launch/launcher_store.c" in line and "it is not there" in line for line in lines), out


def test_an_include_upwards(house):
    append(house / "core" / "log.c", '#include "cmd/command_line.h"')
    code, out = check_layers(house)
    assert code == 1 and "core/log.c" in out and "floor above" in out


BREACHES = {
    "a room above": ("comm/launch/bootstrap.c", '#include "comm/comm.h"', "includes 'comm/comm.h' from a room that is not below it"),
    "two devices": ("gpu/cpu/device_cpu.c", '#include "gpu/cuda/ops_cuda.h"', "includes 'gpu/cuda/ops_cuda.h' from a room"),
    "a closed room": ("comm/zero/zero.c", '#include "gpu/cuda/ops_cuda.h"', "is inside gpu/cuda/, which is not open to this file"),
    "a circle of headers": ("core/status.h", '#include "core/log.h"', "includes go in a circle: core/log.h -> core/status.h"),
    "a circle of calls": ("core/io.c", "\nvoid io_told(struct error *err)\n{\n    log_error(err);\n}",
                          "core/io.c -> log_error() in core/log.c -> "),
    "a table in a circle": ("core/io.c", "\nvoid *io_told(void)\n{\n    void *f = log_error;\n    return f;\n}", "log_error() in core/log.c"),
    "a callback in a circle": ("core/io.c", "\nvoid io_told(void)\n{\n    memory_set_final_error(log_error);\n}", "log_error() in core/log.c"),
    "an inline function in a circle": ("core/status.h", "static inline void io_told(struct error *err)\n{\n    log_error(err);\n}", "log_error() in core/log.c"),
    "a macro in a circle": ("core/status.h", "#define IO_TOLD(err) log_error(err)", "log_error() in core/log.c"),
    "a circle by a function with a pointer's type": (
        "core/memory.c", "\nstruct dirent *memory_told(DIR *folder)\n{\n    return io_readdir(folder);\n}", "memory_opendir() in core/memory.c"),
    "an include between < and > upwards": ("core/log.c", "#include <cmd/command_line.h>", "floor above"),
    "a file in no room": ("gpu/devices/tpu.c", "", "'gpu/devices' is not a room"),
    "a file name twice": ("gpu/log.c", "", "file name 'log.c' occurs more than once: core/log.c, gpu/log.c"),
    "an include of nothing": ("gpu/device.c", '#include "device.h"', "hint: write it as \"gpu/device.h\""),
    "a long ruler": ("core/log.c", f"/* {'-' * 80} the end\n */", "a ruler between sections is one line of 80 columns"),
    "a wrapped row": ("core/log.c", "/* Sizes:\n *     score     T x T values a\n * head      launches   1.5 us */", "has wrapped a row of a table"),
    "damaged code": ("core/log.c", "f(piece<pieces; piece += pieces> 1);", "clang-format took a comparison for a template"),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_is_found(house, breach):
    path, text, message = BREACHES[breach]
    (house / path).parent.mkdir(exist_ok=True)
    append(house / path, text)
    code, out = check_layers(house)
    assert code == 1 and path in out and message in out, out


def test_a_static_function_of_many_files(house):
    for room in ("core", "gpu", "comm"):
        append(house / room / f"new_{room}.c", "static int ask_again(void)\n{\n    return 0;\n}")
        assert check_layers(house)[0] == (room == "comm")
    assert "static function 'ask_again' exists in 3 files: comm/new_comm.c, core/new_core.c, gpu/new_gpu.c" in check_layers(house)[1]


# --- check-docs.py ----------------------------------------------------------------------------------------------------

def check_docs(root):
    done = subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "check-docs.py"), str(root)],
                          stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout


@pytest.fixture
def pages(tmp_path):
    """A house of one room, with its pages."""
    for folder in ("core", "docs", "tests/unit"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "core" / "log.h").write_text("/* log.h: lines; tests/unit/test_*.c tries them */\n", encoding="utf-8")
    (tmp_path / "tests" / "unit" / "test_log.c").write_text('#include "core/log.h"\n', encoding="utf-8")
    (tmp_path / "tests" / "test_log.py").write_text("def test_a_full_log():\n    pass\n", encoding="utf-8")
    (tmp_path / "docs" / "README.md").write_text(
        "# Pages\n\nThis is the [list](architecture.md).\n\n    pytest tests/test_log.py -k full\n", encoding="utf-8")
    (tmp_path / "README.md").write_text("Rooms: core/\n", encoding="utf-8")
    (tmp_path / "docs" / "architecture.md").write_text(
        "# Rooms\n\nThis page has the rooms:\n\n    ls core/   # log.h\n\n[core/log.h](../core/log.h), [above](#rooms), core/NAME.c\n",
        encoding="utf-8")
    return tmp_path


def test_pages_that_name_what_is_there(pages):
    code, out = check_docs(pages)
    assert code == 0 and out == "3 pages and the comments of 3 files name files that exist\n", out


@pytest.mark.parametrize("file, text, message", [
    ("docs/architecture.md", "see core/lock.h", "docs/architecture.md:8: there is no 'core/lock.h'"),
    ("docs/architecture.md", "as lock.c does", "docs/architecture.md:8: no file is called 'lock.c'"),
    ("docs/architecture.md", "[x](operations.md#signals)", "the link 'operations.md#signals' leads nowhere"),
    ("docs/architecture.md", "[x](#signals)", "'docs/architecture.md' has no heading for '#signals'"),
    ("docs/architecture.md", "`pytest -q tests/test_log.py -q -k empty`",
     "docs/architecture.md:8: no test of tests/test_log.py has 'empty' in its name"),
    ("docs/signals.md", "# Signals", "docs/README.md:1: the page 'signals.md' is missing"),
    ("core/log.h", "/* opened by\n * log_file.c */", "core/log.h:3: no file is called 'log_file.c'"),
    ("core/spec/spec.h", "/* keys */", "docs/architecture.md:1: the room 'core/spec/' is missing"),
    ("ckpt/data.h", "/* tokens */", "README.md:1: the floor 'ckpt/' is missing"),
], ids=lambda value: value.split()[0])
def test_pages_that_name_what_is_not_there(pages, file, text, message):
    (pages / file).parent.mkdir(exist_ok=True)
    append(pages / file, text)
    code, out = check_docs(pages)
    assert code == 1 and message in out, out


OPENED = "This page says it:\n\n    ztrain version\n"


@pytest.mark.parametrize("text", ["# T\n\n" + OPENED, "<!-- made -->\n# T\n\n" + OPENED, "# T\n\nIt says it.\n\n```bash\nztrain version\n```\n",
                                  "# T\n\n`ztrain` says it.\n\n`ztrain version`\n", "# T\n\n" + "It says it.\n" * 8 + "\n    ztrain version\n"])
def test_a_page_that_opens_with_what_it_is_for_and_a_command(pages, text):
    (pages / "docs" / "architecture.md").write_text(text + "\ncore/\n", encoding="utf-8")
    assert check_docs(pages)[0] == 0


@pytest.mark.parametrize("text", ["# T\n\n    ztrain version\n\nIt says it.\n", "# T\n\nIt says it.\n\n```yaml\na: b\n```\n",
                                  "# T\n\nIt says `ztrain version`.\n", "# T\n\n" + "It says it.\n" * 9 + "\n    ztrain version\n"])
def test_a_page_that_opens_otherwise(pages, text):
    (pages / "docs" / "architecture.md").write_text(text + "\ncore/\n", encoding="utf-8")
    code, out = check_docs(pages)
    assert code == 1 and out == ("docs/architecture.md:1: the first 12 lines are not a title, what the page is for, and a command\n"), out


def test_the_longest_cell_of_a_table(pages):
    row = "| `a \\| b` | [two words](../core/log.h) {} |\n"
    append(pages / "docs" / "architecture.md", "| key | |\n|---|---|\n" + row.format("word " * 23))
    assert check_docs(pages)[0] == 0
    append(pages / "docs" / "architecture.md", row.format("word " * 24))
    code, out = check_docs(pages)
    assert code == 1 and "docs/architecture.md:12: a cell has 26 words, more than 25: '[two words](../core/log.h) word word" in out, out


# --- check-licence.py -------------------------------------------------------------------------------------------------

LICENCE = "SPDX-License-Identifier: Apache-2.0"
SOURCES = {
    "core/a.c": "/* a.c: words */\nint a;\n",
    "core/a.h": f"/* {LICENCE} */\n/* a.h */\n",
    "core/text/unicode.c": "int rows;\n",
    "gpu/b.cu": "// b\n",
    "scripts/c.py": '#!/usr/bin/env python3\n"""What it does."""\nSAID = "# SPDX-License-Identifier: MIT"\n',
    "scripts/d.sh": "#!/usr/bin/env bash\n# usage: d.sh\nset -e\n# not the opening\n",
    "Makefile": "# help\nall:\n",
    ".ci/run": "#!/bin/sh\n",
    "configs/e.yaml": "model: {}\n",
    "docs/page.md": "# A page\n",
    "build/made.c": "int made;\n",
    "tests/fuzz/corpus/fuzz_spec/f.yaml": "model: {}\n",
}
LACKING = [".ci/run", "Makefile", "configs/e.yaml", "core/a.c", "core/text/unicode.c", "gpu/b.cu", "scripts/c.py", "scripts/d.sh"]


def check_licence(root, *options):
    done = subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "check-licence.py"), *options, str(root)],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def test_every_source_says_its_licence():
    assert check_licence(ROOT)[0] == 0


@pytest.fixture
def planted(tmp_path):
    for path, text in SOURCES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    return tmp_path


def test_files_without_a_licence_are_listed_and_given_one(planted):
    code, out = check_licence(planted)
    assert code == 1 and sorted(line.split(":")[0] for line in out.splitlines()) == sorted(LACKING), out
    assert "core/text/unicode.c: no line says 'SPDX-License-Identifier: Apache-2.0 AND Unicode-3.0'" in out
    assert check_licence(planted, "--write") == (0, "9 sources say their licence\n") == check_licence(planted)
    now = {path: (planted / path).read_text(encoding="utf-8") for path in SOURCES}
    assert now["core/a.c"] == f"/* {LICENCE} */\n{SOURCES['core/a.c']}"
    assert now["scripts/d.sh"] == f"#!/usr/bin/env bash\n# usage: d.sh\n# {LICENCE}\nset -e\n# not the opening\n"
    assert now["scripts/c.py"].startswith(f'#!/usr/bin/env python3\n# {LICENCE}\n"""What')
    assert now["configs/e.yaml"] == f"# {LICENCE}\nmodel: {{}}\n" and now["Makefile"] == f"# help\n# {LICENCE}\nall:\n"
    for path in set(SOURCES) - set(LACKING):
        assert now[path] == SOURCES[path], path
    check_licence(planted, "--write")
    assert now == {path: (planted / path).read_text(encoding="utf-8") for path in SOURCES}


def test_another_licence_is_not_overwritten(planted):
    (planted / "core" / "a.h").write_text("/* SPDX-License-Identifier: MIT */\n", encoding="utf-8")
    code, out = check_licence(planted, "--write")
    assert code == 1 and out == "core/a.h: its licence is MIT, and Apache-2.0 was expected\n"


def test_a_root_without_sources(tmp_path):
    code, out = check_licence(tmp_path)
    assert code == 1 and "there is no source in" in out


# --- make and install-deps.sh -----------------------------------------------------------------------------------------

HEADERS = ("yaml.h", "jansson.h", "zstd.h", "xxhash.h", "sodium.h", "liburing.h", "pcre2.h", "utf8proc.h")


OUTSIDE_MAKE = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}


def make(tmp_path, compiler, target="all"):
    done = subprocess.run(["make", "-C", ROOT, "-j2", "CUDA=0", f"CC={compiler}", f"BUILD={tmp_path}/build",
                           target.format(build=tmp_path / "build")],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=120,
                          env=OUTSIDE_MAKE)
    assert done.returncode == 2, done
    return done.stderr


@pytest.mark.parametrize("missing", [("xxhash.h",), ("yaml.h", "sodium.h"), HEADERS], ids=" ".join)
def test_make_names_the_missing_headers_and_the_way_to_them(tmp_path, missing):
    (tmp_path / "include").mkdir()
    for header in set(HEADERS) - set(missing):
        (tmp_path / "include" / header).touch()
    err = make(tmp_path, f"gcc -nostdinc -isystem {tmp_path}/include")
    assert err.startswith(f"make: headers are missing: {' '.join(missing)}; hint: scripts/install-deps.sh installs them\n")
    assert "fatal error" not in err


def test_other_flags_compile_anew(tmp_path):
    target = f"{tmp_path}/obj/core/clock.o"

    def compiles(*settings):
        done = subprocess.run(["make", "-C", ROOT, "CUDA=0", f"BUILD={tmp_path}", *settings, target], check=True,
                              stdout=subprocess.PIPE, text=True, timeout=120, env=OUTSIDE_MAKE)
        return "clock.c" in done.stdout
    assert compiles() and not compiles() and not compiles("WERROR=1")
    assert compiles("CFLAGS=-DWORD='\"with a space\"'") and not compiles("CFLAGS=-DWORD='\"with a space\"'")
    assert compiles()


def test_make_without_a_compiler_and_without_cmocka(tmp_path):
    assert "there is no C compiler 'gccc'; hint: scripts/install-deps.sh" in make(tmp_path, "gccc")
    (tmp_path / "include").mkdir()
    for header in HEADERS:
        (tmp_path / "include" / header).touch()
    err = make(tmp_path, f"gcc -nostdinc -isystem {tmp_path}/include", "{build}/headers-tests")
    assert "headers are missing: cmocka.h; hint: scripts/install-deps.sh --test" in err


# A machine that lacks one package, and whose apt is busy as long as the file `busy` is there.
FAKES = {
    "dpkg-query": """case "$*" in *libxxhash-dev*) exit 1 ;; *) printf installed ;; esac""",
    "apt-cache": "echo '  Candidate: 1.0'",
    "apt-get": """echo "$*" >> apt-calls
[ ! -e busy ] || { echo 'E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 77 (unattended-upgr)'
                   echo 'E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process using it?'
                   exit 100; }
[ ! -e broken ] || { echo 'E: Unable to correct problems, you have held broken packages.'; exit 100; }""",
    "sleep": "rm busy",
    "id": "[ -e user ] && echo 1000 || echo 0",
    "sudo": """[ ! -e refused ] || { echo "sudo: you may not" >&2; exit 1; }; echo "sudo $*" >> sudo-calls; "$@" """,
}


@pytest.fixture
def machine(tmp_path):
    (tmp_path / "bin").mkdir()
    for name, script in FAKES.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def install(**env):
        return subprocess.run([os.path.join(ROOT, "scripts", "install-deps.sh")], cwd=tmp_path, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False, timeout=60,
                              env={**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", **env})
    return tmp_path, install


def test_packages_are_installed_next_to_another_apt(machine):
    path, install = machine
    (path / "busy").touch()
    done = install()
    assert done.returncode == 0, done
    assert "waiting for it, up to 600 s (Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 77" in done.stdout
    calls = (path / "apt-calls").read_text(encoding="utf-8").splitlines()
    assert len(calls) == 2 and calls[0] == calls[1] and calls[0].endswith("libxxhash-dev")


def test_the_wait_for_another_apt_has_an_end_and_other_errors_none(machine):
    path, install = machine
    (path / "busy").touch()
    done = install(INSTALL_DEPS_PATIENCE="0")
    assert done.returncode == 1 and done.stderr.count("process 77") == 1 and (path / "busy").exists()
    assert "hint: try again when it is done" in done.stderr
    (path / "busy").unlink()
    (path / "broken").touch()
    done = install()
    assert done.returncode == 1 and "held broken packages" in done.stderr and "waiting" not in done.stdout


def test_a_user_whose_sudo_is_refused_gets_the_advice_for_those_without_root(machine):
    path, install = machine
    (path / "user").touch()
    (path / "refused").touch()
    done = install()
    assert done.returncode == 1 and not (path / "apt-calls").exists() and done.stdout == "", done
    assert done.stderr.startswith("sudo: you may not\ninstall-deps.sh: cannot install packages: sudo failed; "
                                  "hint: have these installed: libxxhash-dev\nwithout root, take the tarball")
    assert "micromamba create" in done.stderr and "apt-get" not in done.stderr
    (path / "refused").unlink()
    done = install()
    assert done.returncode == 0, done
    calls = (path / "sudo-calls").read_text(encoding="utf-8").splitlines()
    assert calls[0] == "sudo true" and len(calls) == 2 and calls[1].endswith("libxxhash-dev")


# A machine of Fedora's family: rpm has all packages but two, and dnf's repositories lack utf8proc-devel until `crb enable`.
DNF_FAKES = {
    "rpm": """case "$2" in xxhash-devel | utf8proc-devel | libcmocka-devel) exit 1 ;; esac""",
    "dnf": """echo "dnf $*" >> calls
case "$*" in *"list utf8proc-devel") [ -e enabled ] ;; *"install epel-release") [ ! -e offline ] ;; esac""",
    "crb": "echo \"crb $*\" >> calls; touch enabled",
    "id": "[ -e user ] && echo 1000 || echo 0",
}


@pytest.fixture
def dnf_machine(tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("bash", "env", "sed", "touch", "dirname"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    for name, script in DNF_FAKES.items():
        (tmp_path / "bin" / name).write_text(f"#!{shutil.which('sh')}\n{script}\n", encoding="utf-8")
        (tmp_path / "bin" / name).chmod(0o755)

    def install(*options):
        done = subprocess.run([os.path.join(ROOT, "scripts", "install-deps.sh"), *options], cwd=tmp_path, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False, timeout=60, env={"PATH": f"{tmp_path}/bin"})
        calls = (tmp_path / "calls").read_text(encoding="utf-8").splitlines() if (tmp_path / "calls").exists() else []
        return done, calls
    return tmp_path, install


def test_dnf_installs_what_is_missing_and_enables_the_repositories(dnf_machine):
    _, install = dnf_machine
    done, calls = install("--test")
    assert done.returncode == 0, done
    assert calls[-3:] == ["dnf -q -y install epel-release", "crb enable",
                          "dnf -q -y install --setopt=install_weak_deps=False xxhash-devel utf8proc-devel libcmocka-devel"]
    assert done.stdout == ("enabling EPEL and CRB for utf8proc-devel\n"
                           "installing xxhash-devel utf8proc-devel libcmocka-devel\n")


def test_dnf_leaves_the_repositories_alone_if_they_have_all(dnf_machine):
    path, install = dnf_machine
    (path / "enabled").touch()
    done, calls = install()
    assert done.returncode == 0 and "EPEL" not in done.stdout, done
    assert calls == ["dnf -q list xxhash-devel", "dnf -q list utf8proc-devel",
                     "dnf -q -y install --setopt=install_weak_deps=False xxhash-devel utf8proc-devel"]
    (path / "bin" / "rpm").write_text(f"#!{shutil.which('sh')}\n", encoding="utf-8")
    assert install()[0].stdout == "all packages are installed\n" and install("--check", "--slurm", "--quiet")[0].stdout == ""
    assert len(install()[1]) == 3


def test_dnf_without_the_repositories_or_without_root(dnf_machine):
    path, install = dnf_machine
    (path / "offline").touch()
    done, _ = install()
    assert done.returncode == 1 and "no repository of dnf has 'utf8proc-devel', and EPEL could not be enabled" in done.stderr
    assert "tarball of 'make dist'" in done.stderr and "installing" not in done.stdout
    (path / "user").touch()
    done, _ = install()
    assert done.returncode == 1 and "neither root nor sudo; hint: have these installed: xxhash-devel utf8proc-devel\n" in done.stderr
    assert "micromamba create" in done.stderr and "docs/install.md has the rest" in done.stderr
    (path / "bin" / "dnf").unlink()
    done, _ = install()
    assert done.returncode == 1 and "neither apt-get nor dnf here" in done.stderr and "spack install" in done.stderr


# --- the quick start --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("script, first", [("scripts/quickstart.sh", "From a fresh machine to a trained and exported model"),
                                           ("tests/run-cluster.sh", "Tests on several machines: ")])
def test_help_is_printed_and_nothing_is_run(tmp_path, script, first):
    with open(os.path.join(ROOT, script), encoding="utf-8") as f:
        comment = [line[2:] for line in f.read().split("# SPDX")[0].splitlines()[1:]]
    for option in ("-h", "--help"):
        for folder, path in ((ROOT, script), (tmp_path, os.path.join(ROOT, script))):
            done = subprocess.run([path, option], cwd=folder, stdout=subprocess.PIPE, text=True, check=False, timeout=20)
            assert done.returncode == 0 and done.stdout.splitlines() == comment and done.stdout.startswith(first), done


def test_the_quick_start_refuses_other_options():
    done = subprocess.run(["scripts/quickstart.sh", "--quick"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "quickstart.sh: unknown option '--quick'; hint: see --help\n")


def test_the_quick_start_announces_how_long_each_part_takes():
    """.ci/run runs it; this test checks that every part announces its duration and the time so far."""
    with open(os.path.join(ROOT, "scripts", "quickstart.sh"), encoding="utf-8") as f:
        lines = f.read().splitlines()
    parts = [line for line in lines if line.startswith('say "')]
    assert [re.match(r'say "(\d)\. [^"]+" "[^"]*(second|minute)[^"]*"$', line)[1] for line in parts] == list("1234567")
    (say,) = [line for line in lines if line.startswith("say()")]
    done = subprocess.run(["bash", "-c", f'{say}; SECONDS=75; say "1. packages" "a minute"'], stdout=subprocess.PIPE,
                          text=True, check=True)
    assert done.stdout == "\n==> 1. packages (a minute; 1:15 so far)\n"


FAKE_MAKE = """#!/bin/sh
case "$*" in *--no-print-directory*count-objects*) echo "3 1" && exit ;; esac
mkdir -p build/obj/core && touch build/obj/core/old.o && sleep 0.1 && touch build/settings && sleep 0.1
touch build/obj/core/a.o build/obj/core/b.o && touch make.runs && sleep "${SECONDS_OF_BUILD:-1.5}"
exit 2
"""


def build_of_quick_start(folder):
    """The command that builds as the quick start does, and its environment, with a make that compiles two of three files."""
    with open(os.path.join(ROOT, "scripts", "quickstart.sh"), encoding="utf-8") as f:
        functions = re.search(r"^count_compiled\(\).*?^\}\n", f.read(), re.M | re.S)[0]
    (folder / "make").write_text(FAKE_MAKE, encoding="utf-8")
    (folder / "make").chmod(0o755)
    return ["bash", "-euo", "pipefail", "-c", f"{functions}\nbuild; echo not reached"], {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def test_the_quick_start_shows_how_far_the_build_is(tmp_path):
    """On a terminal, where the build takes more than a second and fails."""
    command, env = build_of_quick_start(tmp_path)
    master, terminal = os.openpty()
    done = subprocess.run(command, stdout=terminal, check=False, cwd=tmp_path, env=env)
    os.close(terminal)
    said = os.read(master, 65536).decode()
    os.close(master)
    assert done.returncode == 2 and "1 of the 3 files take nvcc minutes; CUDA=0 scripts/quickstart.sh leaves it out" in said, said
    assert "\r2 of 3 files compiled; 0:01" in said and "not reached" not in said, said
    counted = subprocess.run(["make", "-C", ROOT, "-s", "--no-print-directory", "CUDA=0", "count-objects"], stdout=subprocess.PIPE, text=True,
                             check=True)
    assert re.fullmatch(r"\d{3} 0\n", counted.stdout), counted.stdout


def test_an_interrupt_ends_the_build_of_the_quick_start(tmp_path):
    """As Ctrl-C of a terminal reaches all processes in the foreground; a shell that is about to start one may miss it."""
    command, env = build_of_quick_start(tmp_path)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=tmp_path, env={**env, "SECONDS_OF_BUILD": "600"},
                          start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) as build:
        try:
            wait_until((tmp_path / "make.runs").exists, 10, "a make")
            while build.poll() is None:
                os.killpg(build.pid, signal.SIGINT)
                time.sleep(0.1)
            assert build.returncode == -signal.SIGINT
            wait_until(lambda: not session_members(build.pid), 10, "the end of make")
        finally:
            for pid in session_members(build.pid):
                os.kill(pid, signal.SIGKILL)

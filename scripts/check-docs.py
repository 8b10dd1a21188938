#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that pages and comments name files that exist: scripts/check-docs.py [ROOT]

A path that begins with a top-level folder (core/log.h, tests/faults/, scripts/*.sh) is a file, a folder or a pattern that
matches; a link in a page leads to a page, and its #anchor to a heading of it. A bare file name in a comment (wire.h) is the
name of a file in the tree or a system header. A command of a page, FILE.py -k WORD, names a test: WORD is a part of the name of a
test function or class in FILE.py. docs/README.md names every page of docs/; README.md names every floor, docs/architecture.md
every room. A page of docs/ opens with a sentence and a command; a cell of a table in it has at most 25 words.
Prints every breach as file:line: message, and exits 1 if there is one.
"""
import glob
import os
import re
import sys

FLOORS = ("core", "gpu", "comm", "ckpt", "cmd")
TOP = FLOORS + ("configs", "scripts", "docs", "tests", r"\.ci")
PATH = re.compile(r"(?<![\w./$~<{*-])((?:%s)/[\w.*/-]*)" % "|".join(TOP))
LINK = re.compile(r"\]\(([^)\s]+)\)")
BARE = re.compile(r"(?<![\w./*<%-])([A-Za-z_]\w*\.(?:c|h|cu|cuh|cc|py|sh|mk))\b(?![(/])")
SELECTED = re.compile(r"(\S+\.py)(?: [^`|]*?)? -k (\w+)(?=`|$)")
TEST = re.compile(r"^ *(?:def (test_\w+)|class (Test\w+))", re.M)
HEADING = re.compile(r"^#+ +(.*)")
COMMAND = re.compile(r" {4}\S|```bash$|`[^`]+`$")  # indented, fenced, or a line of its own
OPENING_LINES, CELL_WORDS = 12, 25
CODE = (".c", ".h", ".cu", ".cuh", ".cc")
SCRIPTS = (".py", ".sh", ".sbatch", ".mk", ".yaml")
# Names of other programs' files, and x, which stands for any file; so does a word in capitals (test_MODULE.c).
FOREIGN = {"llm.c", "cuda_runtime.h", "cuda_pipeline.h", "x.cu"}
ANY = re.compile(r"(?<![A-Z])(?!README|CHANGELOG|CONTRIBUTING|SECURITY)[A-Z]{3,}|/x\.\w+$")


def tree(root):
    """All paths of the repository, without what git would ignore."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [n for n in folders if n not in ("build", "runs", "__pycache__", ".git", ".pytest_cache")]
        found += [os.path.relpath(os.path.join(folder, n), root) for n in names]
    return sorted(found)


def anchor(heading):
    """The anchor that a heading has on the common hosts of Markdown."""
    text = re.sub(r"[`*]|\[|\]\([^)]*\)", "", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(path):
    with open(path, encoding="utf-8") as f:
        return {anchor(m.group(1)) for line in f if (m := HEADING.match(line))}


def comments(path, lines):
    """[(line number, text)] of a source's comments, or of the whole of a page."""
    if path.endswith(".md"):
        return list(enumerate(lines, 1))
    if not path.endswith(CODE):
        return [(i, line[line.index("#"):]) for i, line in enumerate(lines, 1) if re.search(r"(^|\s)#", line)]
    found, inside = [], False
    for i, line in enumerate(lines, 1):
        text = line if inside else ""
        if not inside and "/*" in line:
            text, inside = line[line.index("/*"):], True
        elif not inside and "//" in line:
            text = line[line.index("//"):]
        if inside and "*/" in line:
            inside = line.rindex("/*") > line.rindex("*/") if "/*" in line else False
        if text:
            found.append((i, text))
    return found


def exists(root, path):
    """Whether a path of a page is there: a file, a folder, a pattern that matches, or a module named without its suffix."""
    path = path.rstrip(".-")
    full = os.path.join(root, path)
    return bool(glob.glob(full) or glob.glob(full + ".[ch]"))


def check_links(root, path, number, line):
    for target in LINK.findall(line):
        if "://" in target:
            continue
        file, _, name = target.partition("#")
        full = os.path.normpath(os.path.join(root, os.path.dirname(path), file)) if file else os.path.join(root, path)
        if not os.path.exists(full):
            yield f"{path}:{number}: the link '{target}' leads nowhere"
        elif name and full.endswith(".md") and name not in anchors(full):
            yield f"{path}:{number}: '{file or path}' has no heading for '#{name}'"


def check_selections(root, path, number, line):
    """pytest FILE.py -k WORD selects a test."""
    for file, word in SELECTED.findall(line):
        full = os.path.join(root, file)
        if os.path.exists(full):
            with open(full, encoding="utf-8") as f:
                tests = TEST.findall(f.read())
            if not any(word.lower() in (function or group).lower() for function, group in tests):
                yield f"{path}:{number}: no test of {file} has '{word}' in its name"


def check_opening(page, lines):
    """The title, a sentence that says what the page is for, and a command, in the first lines; a comment may stand above."""
    while lines and (lines[0].startswith("<!--") or not lines[0]):
        lines = lines[1:]
    said = False
    for line in lines[1:OPENING_LINES]:
        if COMMAND.match(line):
            if not said:
                break
            return
        said = said or bool(line) and line[0] not in "#|-<>!"
    yield f"{page}:1: the first {OPENING_LINES} lines are not a title, what the page is for, and a command"


def check_cells(page, lines):
    for number, line in enumerate(lines, 1):
        for cell in re.split(r"(?<!\\)\|", line)[1:-1] if line.startswith("|") else []:
            words = len(LINK.sub("]", cell).split())
            if words > CELL_WORDS:
                yield f"{page}:{number}: a cell has {words} words, more than {CELL_WORDS}: '{cell.strip()[:40]}…'"


def check(root):
    paths = tree(root)
    names = {os.path.basename(p) for p in paths}
    pages = [p for p in paths if p.endswith(".md")]
    sources = [p for p in paths if p.endswith(CODE + SCRIPTS) or os.path.basename(p) == "Makefile" or p == ".ci/run"]
    breaches = []
    for path in pages + sources:
        with open(os.path.join(root, path), encoding="utf-8") as f:
            lines = f.read().split("\n")
        if path.startswith("docs/") and path.endswith(".md"):
            breaches += check_opening(path, lines)
            breaches += check_cells(path, lines)
        for number, text in comments(path, lines):
            if path.endswith(".md"):
                breaches += check_links(root, path, number, text)
                breaches += check_selections(root, path, number, text)
                text = LINK.sub("]", text)
            for name in PATH.findall(text):
                if not ANY.search(name) and not exists(root, name):
                    breaches.append(f"{path}:{number}: there is no '{name.rstrip('.-')}'")
            if path.endswith(CODE) or path.endswith(".md"):
                for name in BARE.findall(text):
                    if name not in names | FOREIGN and not ANY.search(name) and not os.path.exists(f"/usr/include/{name}"):
                        breaches.append(f"{path}:{number}: no file is called '{name}'")
    breaches += check_index(root, pages, paths)
    return breaches, len(pages), len(sources)


def check_index(root, pages, paths):
    with open(os.path.join(root, "docs", "README.md"), encoding="utf-8") as f:
        index = f.read()
    for page in pages:
        folder, name = os.path.split(page)
        if folder == "docs" and name != "README.md" and f"({name})" not in index:
            yield f"docs/README.md:1: the page '{name}' is missing"
    rooms = {os.path.dirname(p) for p in paths if p.startswith(tuple(floor + "/" for floor in FLOORS))}
    for picture, what, places in (("README.md", "floor", {room.split("/")[0] for room in rooms}), ("docs/architecture.md", "room", rooms)):
        with open(os.path.join(root, picture), encoding="utf-8") as f:
            text = f.read()
        for room in sorted(places):
            if not re.search(rf"(?<![\w/]){room}/(?![\w])", text):
                yield f"{picture}:1: the {what} '{room}/' is missing"


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    breaches, pages, sources = check(root)
    for breach in breaches:
        print(breach)
    if not breaches:
        print(f"{pages} pages and the comments of {sources} files name files that exist")
    sys.exit(bool(breaches))


if __name__ == "__main__":
    main()

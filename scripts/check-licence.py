#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every source says under which licence it is: scripts/check-licence.py [--write] [ROOT]

Sources in C, C++, CUDA, Python and shell, makefiles, YAML and the recipes of containers have a line

    SPDX-License-Identifier: Apache-2.0

in a comment. Lists the files that lack it or name another licence, and exits 1 if there is one. --write adds missing lines: in C to
the top, elsewhere below the comment that opens the file, because scripts print that comment by its line numbers.
"""
import argparse
import os
import re
import sys

LICENCE = "Apache-2.0"
OTHERS = {"core/text/unicode.c": "Apache-2.0 AND Unicode-3.0"}  # has rows of the Unicode Character Database: NOTICE
C = (".c", ".h", ".cc", ".cu", ".cuh")
HASH = (".py", ".sh", ".sbatch", ".mk", ".yaml", ".yml", ".def", "Makefile", "Dockerfile", ".ci/run")
LEFT_OUT = {".git", "build", "runs", "__pycache__", ".pytest_cache", "tests/fuzz/corpus"}  # the last: inputs, byte by byte
LINE = re.compile(r"^(?:/\*|#) SPDX-License-Identifier: (.+?)(?: \*/)?$", re.M)


def sources(root):
    """Paths of the sources, relative to root, sorted."""
    for folder, folders, names in os.walk(root):
        here = os.path.relpath(folder, root)
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT and os.path.normpath(os.path.join(here, name)) not in LEFT_OUT)
        for name in sorted(names):
            path = os.path.normpath(os.path.join(here, name))
            if path.endswith(C + HASH) and not os.path.islink(os.path.join(root, path)):
                yield path


def with_line(path, text, licence):
    if path.endswith(C):
        return f"/* SPDX-License-Identifier: {licence} */\n{text}"
    opening = re.match(r"(?:#.*\n)*", text).end()
    return f"{text[:opening]}# SPDX-License-Identifier: {licence}\n{text[opening:]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="add the lines that are missing")
    parser.add_argument("root", metavar="ROOT", nargs="?", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    arguments = parser.parse_args()
    count = breaches = 0
    for path in sources(arguments.root):
        count += 1
        licence = OTHERS.get(path, LICENCE)
        with open(os.path.join(arguments.root, path), encoding="utf-8", newline="") as f:
            text = f.read()
        said = LINE.findall(text)
        if not said and arguments.write:
            with open(os.path.join(arguments.root, path), "w", encoding="utf-8", newline="") as f:
                f.write(with_line(path, text, licence))
        elif not said:
            print(f"{path}: no line says 'SPDX-License-Identifier: {licence}'; hint: scripts/check-licence.py --write")
            breaches += 1
        elif said != [licence]:
            print(f"{path}: its licence is {', '.join(said)}, and {licence} was expected")
            breaches += 1
    if count == 0:
        sys.exit(f"check-licence: there is no source in '{arguments.root}'")
    if breaches:
        sys.exit(1)
    print(f"{count} sources say their licence")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Checks the floors of the house: core <- gpu <- comm <- ckpt <- cmd.

A file includes its own floor and floors below it, never above; includes never go in a circle; a file name occurs once on
the floors. Prints every breach as file:line: message, and exits 1 if there is one.
"""
import os
import re
import sys

FLOORS = ["core", "gpu", "comm", "ckpt", "cmd"]
SUFFIXES = (".c", ".h", ".cu", ".cuh")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def sources(root):
    """Paths of all source files of the floors, relative to root, sorted."""
    found = []
    for floor in FLOORS:
        for folder, _, names in os.walk(os.path.join(root, floor)):
            found += [os.path.relpath(os.path.join(folder, n), root) for n in names if n.endswith(SUFFIXES)]
    return sorted(found)


def includes(root, path):
    """[(line number, included path)] of the quoted includes of a file."""
    with open(os.path.join(root, path), encoding="utf-8") as f:
        return [(i, m.group(1)) for i, line in enumerate(f, 1) if (m := INCLUDE.match(line))]


def circle(graph):
    """A list of files that include each other in a circle, first = last, or None."""
    done, trail = set(), []

    def visit(node):
        if node in trail:
            return trail[trail.index(node):] + [node]
        if node in done:
            return None
        trail.append(node)
        for following in graph.get(node, ()):
            if found := visit(following):
                return found
        trail.pop()
        done.add(node)
        return None

    for node in sorted(graph):
        if found := visit(node):
            return found
    return None


def check(root):
    breaches, graph, by_name = [], {}, {}
    paths = sources(root)
    known = set(paths)
    for path in paths:
        floor = FLOORS.index(path.split(os.sep)[0])
        by_name.setdefault(os.path.basename(path), []).append(path)
        for line, target in includes(root, path):
            if target not in known:
                beside = os.path.normpath(os.path.join(os.path.dirname(path), target))
                hint = f"; hint: write it as \"{beside}\"" if beside in known else ""
                breaches.append(f"{path}:{line}: included file '{target}' is on no floor{hint}")
                continue
            if FLOORS.index(target.split("/")[0]) > floor:
                breaches.append(f"{path}:{line}: {FLOORS[floor]}/ includes '{target}' from a floor above it")
            graph.setdefault(path, []).append(target)
    if found := circle(graph):
        breaches.append(f"{found[0]}:1: includes go in a circle: {' -> '.join(found)}")
    for name, places in sorted(by_name.items()):
        if len(places) > 1:
            breaches.append(f"{places[1]}:1: file name '{name}' occurs more than once: {', '.join(places)}")
    return breaches, len(paths)


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    breaches, count = check(root)
    for breach in breaches:
        print(breach)
    if not count:
        print(f"check-layers: no source files under {root}; hint: name the repository's root")
        sys.exit(2)
    if not breaches:
        print(f"{count} files keep to the floors {' <- '.join(FLOORS)}")
    sys.exit(bool(breaches))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the order of the house (docs/architecture.md): its floors, the rooms inside them, and what may call what.

- A file includes its own room and the rooms below it, never one above: ROOMS names for each room those that it may use.
- A room that is a device's inside is open to a few files only: DOORS names them.
- Neither includes nor calls go in a circle. A call is a use of a function that another file defines, also by way of an
  inline function or a macro of a header, or by its address.
- A file name occurs once in the house, a static function's name in two files at most: a third one needs a prefix, or
  the function is shared.
- clang-format left comments and code readable: rulers are one line of 80 columns, and operators have their spaces.

Prints every breach as file:line: message, and exits 1 if there is one.
"""
import os
import re
import sys

# Room: the rooms that its files may include, in addition to its own.
CORE = ["core", "core/training", "core/model", "core/metrics", "core/flight", "core/spec", "core/data", "core/storage", "core/text",
        "core/quantization"]
CUDA = ["gpu/cuda", "gpu/cuda/attention", "gpu/cuda/gemm"]
GPU = ["gpu", "gpu/cpu", "gpu/cpu/kernels", *CUDA, "gpu/simulate", "gpu/open", "gpu/model"]
COMM = ["comm/wire", "comm/launch", "comm/control", "comm", "comm/zero"]
CKPT = ["ckpt", "ckpt/huggingface"]
BELOW_CMD = CORE + GPU + COMM + CKPT
ROOMS = {
    "core": [],
    "core/training": ["core"],
    "core/model": ["core", "core/training", "core/quantization"],
    "core/metrics": ["core", "core/training"],
    "core/flight": ["core"],
    "core/spec": ["core", "core/training", "core/model", "core/metrics", "core/quantization"],
    "core/data": ["core", "core/training"],
    "core/storage": ["core", "core/training"],
    "core/text": ["core"],
    "core/quantization": ["core"],
    "gpu": CORE,
    "gpu/cpu": CORE + ["gpu"],
    "gpu/cpu/kernels": CORE + ["gpu", "gpu/cpu"],
    "gpu/cuda": CORE + ["gpu"],
    "gpu/cuda/gemm": CORE + ["gpu", "gpu/cuda"],
    "gpu/cuda/attention": CORE + ["gpu", "gpu/cuda"],
    "gpu/cuda/ops": CORE + ["gpu", *CUDA],
    "gpu/simulate": CORE + ["gpu", "gpu/cuda"],
    "gpu/open": CORE + ["gpu", "gpu/cpu", "gpu/cuda", "gpu/simulate"],
    "gpu/model": CORE + ["gpu"],
    "comm/wire": CORE + GPU,
    "comm/launch": CORE + GPU + ["comm/wire"],
    "comm/control": CORE + GPU + ["comm/wire", "comm/launch"],
    "comm": CORE + GPU + ["comm/wire", "comm/launch", "comm/control"],
    "comm/zero": CORE + GPU + ["comm/wire", "comm/launch", "comm/control", "comm"],
    "ckpt": CORE + GPU + COMM,
    "ckpt/huggingface": CORE + GPU + COMM + ["ckpt"],
    "cmd/engine": BELOW_CMD,
    "cmd/run": BELOW_CMD + ["cmd/engine"],
    "cmd/observe": BELOW_CMD + ["cmd/engine", "cmd/run"],
    "cmd/save": BELOW_CMD + ["cmd/engine", "cmd/run", "cmd/observe"],
    "cmd/supervise": BELOW_CMD + ["cmd/run"],
    "cmd/train": BELOW_CMD + ["cmd/engine", "cmd/run", "cmd/observe", "cmd/save"],
    "cmd/report": BELOW_CMD + ["cmd/run"],
    "cmd": BELOW_CMD + ["cmd/engine", "cmd/run", "cmd/observe", "cmd/save", "cmd/supervise", "cmd/train", "cmd/report"],
}
# A closed room, with the rooms in it: what files of other rooms may include of it.
DOORS = {
    "gpu/cuda": {
        "gpu/open/device_open.c": ["device_cuda_open.h"],
        "gpu/simulate/simulated_device.c": ["cuda_workspace.h"],
        "gpu/simulate/gemm_estimate.c": ["cuda_workspace.h"],
        "gpu/simulate/op_estimate.c": ["cuda_workspace.h"],
        "comm/transport_nccl.c": ["device_cuda.h", "cuda_libraries.h"],
        "comm/transport_gpu.h": ["cuda_libraries.h"],
        "cmd/doctor.c": ["cuda_library_info.h", "nvml.h"],
        "cmd/engine/machine_record.c": ["cuda_library_info.h"],
        "cmd/engine/gpu_fault.c": ["nvml.h"],
        "cmd/engine/memory_limit.c": ["nvml.h"],
        "cmd/engine/memory_plan.h": ["cuda_reserve.h"],
    },
    "gpu/cpu": {
        "gpu/open/device_open.c": ["device_cpu.h", "ops_cpu.h"],
        "gpu/open/device_open.h": ["cpu_kernels.h"],
        "cmd/doctor.c": ["cpuid.h", "cpu_bf16.h", "device_cpu.h"],
        "cmd/run/run_state.h": ["cpu_kernels.h"],
        "cmd/engine/machine_record.h": ["cpu_kernels.h"],
        "cmd/engine/machine_record.c": ["cpu_bf16.h", "device_cpu.h"],
    },
}
# The file that assembles a room's parts may include the rooms in it.
ASSEMBLERS = {"gpu/cuda/device_cuda.c": ["attention_cudnn.h", "gemm_cuda.h"]}
NAMESAKES = 2  # files with a static function of one name
SUFFIXES = (".c", ".h", ".cu", ".cuh")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
COMMENT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
ATTRIBUTE = r"(?:__attribute__\(\([^\n]*\)\) )?"
DEFINITION = re.compile(rf"^(?!typedef|struct \w+\s*$){ATTRIBUTE}([A-Za-z][\w \t*]*?)\b(\w+)\(([^;{{}}]*)\)\n\{{", re.M)
WRAPPER = re.compile(r"^SLOW_CALL\([^,]+, (\w+),", re.M)  # a function that core/io.c defines by a macro
DECLARATION = re.compile(r"^[A-Za-z_][\w \t*]*\b\w+\([^;{}]*;", re.M)
MACRO = re.compile(r"^\s*#\s*define\s+(\w+)\(", re.M)
# A call; or a function's address: in a table, as an argument.
USE = re.compile(r"(?<![\w.>])([A-Za-z_]\w*)(?=\()|[=(,{]\s*&?([a-z_]\w*)(?=\s*[,;)}])")
RULER_COLUMNS = 80
TABLE_ROW, SPILLED_ROW = re.compile(r"^ ?/?\* {3,}\S"), re.compile(r"^ ?\* \S.{0,60}\S {3,}\S")


def sources(root):
    """Paths of all source files of the house, relative to root, sorted."""
    found = []
    for floor in sorted({room.split("/")[0] for room in ROOMS}):
        for folder, _, names in os.walk(os.path.join(root, floor)):
            found += [os.path.relpath(os.path.join(folder, n), root) for n in names if n.endswith(SUFFIXES)]
    return sorted(found)


def blank(match):
    """Spaces in place of a comment or literal; its line ends stay."""
    return re.sub(r"[^\n]", " ", match.group(0))


def path_between(graph, start, end):
    """The shortest way from start to end as a list of files, or None."""
    before, todo = {start: None}, [start]
    while todo:
        node = todo.pop(0)
        for following in sorted(graph.get(node, ())):
            if following == end:
                way = [end]
                while node is not None:
                    way.append(node)
                    node = before[node]
                return way[::-1]
            if following not in before:
                before[following] = node
                todo.append(following)
    return None


def circles(graph):
    """For each group of files that depend on each other the shortest circle through its first file, first = last."""
    found, known = [], set()
    for node in sorted(graph):
        if node not in known and (way := path_between(graph, node, node)):
            found.append(way)
            known |= {other for other in graph if path_between(graph, node, other) and path_between(graph, other, node)}
    return found


class House:
    def __init__(self, root):
        self.root, self.paths, self.breaches = root, sources(root), []
        self.text = {}
        for path in self.paths:
            with open(os.path.join(root, path), encoding="utf-8") as f:
                self.text[path] = f.read()
        self.code = {path: COMMENT.sub(blank, text) for path, text in self.text.items()}

    def breach(self, path, line, message):
        self.breaches.append(f"{path}:{line}: {message}")

    def includes(self, path):
        """(line number, included path) of the includes of a file, those in <> only if they are the house's."""
        for i, line in enumerate(self.text[path].split("\n"), 1):
            match = INCLUDE.match(line)
            if match and (match.group(1) or match.group(2) in self.text):
                yield i, match.group(1) or match.group(2)

    def check_rooms(self):
        for path in self.paths:
            if os.path.dirname(path) not in ROOMS:
                self.breach(path, 1, f"'{os.path.dirname(path)}' is not a room; hint: the table ROOMS in scripts/check-layers.py")

    def check_includes(self):
        graph, known = {}, set(self.paths)
        for path in self.paths:
            room = os.path.dirname(path)
            for line, target in self.includes(path):
                if target not in known:
                    neighbour = os.path.normpath(os.path.join(room, target))
                    hint = f"; hint: write it as \"{neighbour}\"" if neighbour in known else ""
                    self.breach(path, line, f"included file '{target}' is in no room{hint}")
                    continue
                graph.setdefault(path, set()).add(target)
                self.check_include(path, line, room, target)
        for found in circles(graph):
            self.breach(found[0], 1, f"includes go in a circle: {' -> '.join(found)}")

    def check_include(self, path, line, room, target):
        other, name = os.path.dirname(target), os.path.basename(target)
        if other == room or room not in ROOMS or name in ASSEMBLERS.get(path, ()):
            return
        closed = next((door for door in DOORS if (other + "/").startswith(door + "/")), None)
        if other not in ROOMS[room]:
            what = "a floor above it" if other.split("/")[0] != room.split("/")[0] else "a room that is not below it"
            self.breach(path, line, f"{room}/ includes '{target}' from {what}")
        elif closed and not (room + "/").startswith(closed + "/") and name not in DOORS[closed].get(path, ()):
            self.breach(path, line, f"'{target}' is inside {closed}/, which is not open to this file; "
                                    "hint: the table DOORS in scripts/check-layers.py")

    def check_names(self):
        places = {}
        for path in self.paths:
            places.setdefault(os.path.basename(path), []).append(path)
        for name, found in sorted(places.items()):
            if len(found) > 1:
                self.breach(found[1], 1, f"file name '{name}' occurs more than once: {', '.join(found)}")

    def definitions(self):
        """{function: file} of what other files can call: functions with external linkage, and of headers inline functions
        and macros; {function: {file: line}} of the static ones."""
        public, static = {}, {}
        for path in self.paths:
            for match in DEFINITION.finditer(self.code[path]):
                line = self.code[path].count("\n", 0, match.start()) + 1
                if "static" in match.group(1).split():
                    static.setdefault(match.group(2), {}).setdefault(path, line)
                if path.endswith((".h", ".cuh")) or "static" not in match.group(1).split():
                    public[match.group(2)] = path
            public.update({name: path for name in WRAPPER.findall(self.code[path])})
            if path.endswith((".h", ".cuh")):
                public.update((match.group(1), path) for match in MACRO.finditer(self.code[path]))
        return public, static

    def uses(self, path):
        """Names of the functions that a file calls or enters into a table."""
        code = DECLARATION.sub(blank, self.code[path])
        return {match.group(1) or match.group(2) for match in USE.finditer(code)}

    def check_calls(self):
        public, static = self.definitions()
        for name, found in sorted(static.items()):
            if len(found) > NAMESAKES:
                path = sorted(found)[NAMESAKES]
                self.breach(path, found[path], f"static function '{name}' exists in {len(found)} files: {', '.join(sorted(found))}")
        graph = {}
        for path in self.paths:
            graph[path] = {public[name] for name in self.uses(path)
                           if name in public and public[name] != path and path not in static.get(name, {})}
        for path in self.paths:  # a header that calls its own .c file is one thing with it
            for own in graph[path] if path.endswith(".h") else ():
                if own == path[:-2] + ".c":
                    graph[own].discard(path)
        for found in circles(graph):
            way = found[0]
            for caller, called in zip(found, found[1:]):
                way += f" -> {min(name for name in self.uses(caller) if public.get(name) == called)}() in {called}"
            self.breach(found[0], 1, f"calls go in a circle: {way}")

    def check_layout(self):
        """Damage that clang-format does to comments and code."""
        for path in self.paths:
            lines = self.text[path].split("\n")
            for i, line in enumerate(lines, 1):
                if re.match(r"\s*/\* ?-{3,}", line):
                    if not line.rstrip().endswith("*/") or len(line) != RULER_COLUMNS:
                        self.breach(path, i, f"a ruler between sections is one line of {RULER_COLUMNS} columns")
                if i > 1 and TABLE_ROW.match(lines[i - 2]) and SPILLED_ROW.match(line):
                    self.breach(path, i, "clang-format has wrapped a row of a table or picture; hint: shorten the row, or "
                                         "/* clang-format off */")
            for i, line in enumerate(self.code[path].split("\n"), 1):
                if re.search(r"\w<\w+; \w+ [+-]= \w+>", line):
                    self.breach(path, i, "clang-format took a comparison for a template; hint: /* clang-format off */")

    def check(self):
        for check in (self.check_rooms, self.check_includes, self.check_names, self.check_calls, self.check_layout):
            check()
        return self.breaches


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    house = House(root)
    for breach in house.check():
        print(breach)
    if not house.paths:
        print(f"check-layers: no source files under {root}; hint: name the repository's root")
        sys.exit(2)
    if not house.breaches:
        print(f"{len(house.paths)} files keep to {len(ROOMS)} rooms: no include goes upwards, neither includes nor calls in a circle")
    sys.exit(bool(house.breaches))


if __name__ == "__main__":
    main()

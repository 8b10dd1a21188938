#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/run-spec*.md, on standard output: scripts/spec-pages.py ZTRAIN

Reads `ZTRAIN --help-spec --json`. The tables of a page begin with a line that names its file; what stands above that line there is
written by hand. `make doc` puts the tables into the pages.
"""
import json
import subprocess
import sys

CELL_WORDS = 25  # of a cell, at most: the other clauses of a longer explanation are in a list below the table
WIDTH = 100
TOP_LEVEL = "At top level"
TOP_LEVEL_HELP = "sizes of batches, clipping, output"
# File: sections whose keys are on the page, in this order.
PAGES = {
    "run-spec-model.md": ["model", "moe", "peft", "preference", "distill"],
    "run-spec-data.md": ["data"],
    "run-spec-train.md": ["run", "train", TOP_LEVEL],
    "run-spec-optimizer.md": ["optimizer", "scheduler", "bf16", "fp16", "data_types"],
    "run-spec-zero.md": ["zero_optimization", "aio", "activation_checkpointing"],
    "run-spec-checkpoint.md": ["checkpoint", "comm"],
    "run-spec-monitors.md": ["comms_logger", "flops_profiler", "tensorboard", "csv_monitor"],
}
# File: what it has, for the index.
OTHERS = {
    "run-spec-deepspeed.md": "keys of DeepSpeed and PEFT without effect here",
    "run-spec-refused.md": "keys of DeepSpeed and PEFT that are errors",
    "run-spec-names.md": "names of Trainer, Accelerate, LLaMA-Factory, axolotl, torchtune",
}


def clauses(text):
    """The parts of a text between each "; " outside parentheses."""
    found, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and text.startswith("; ", i):
            found.append(text[start:i])
            start = i + 2
    return found + [text[start:]]


def cell_and_rest(key):
    """The clauses of a key's explanation that its cell holds, as a text, and the others."""
    parts = clauses(key["help"])
    kept = 1
    types = len(key["types"].split(", ")) if key["types"] else 0
    while kept < len(parts) and types + len("; ".join(parts[:kept + 1]).split()) <= CELL_WORDS:
        kept += 1
    return "; ".join(parts[:kept]), parts[kept:]


def wrapped(begin, text):
    lines, line = [], begin
    for word in text.split(" "):
        if len(line.encode()) > len(begin) and len(line.encode()) + 1 + len(word.encode()) > WIDTH:
            lines.append(line)
            line = " " * len(begin)
        line += (" " if len(line.encode()) > len(begin) else "") + word
    return "\n".join(lines + [line])


def cell(text):
    return text.replace("|", "\\|")


def section_of(key):
    return key["key"].split(".")[0] if "." in key["key"] else TOP_LEVEL


class Table:
    def __init__(self, ztrain):
        whole = json.loads(subprocess.run([ztrain, "--help-spec", "--json"], stdout=subprocess.PIPE, check=True).stdout)
        self.keys, self.names = whole["keys"], whole["names"]
        self.help = {key["key"]: key["help"] for key in self.keys if key["kind"] == "section"} | {TOP_LEVEL: TOP_LEVEL_HELP}

    def index(self):
        yield "\n## The sections\n\n| section | |\n|---|---|"
        for page, sections in PAGES.items():
            for section in sections:
                yield f"| [{section}]({page}#{section.lower().replace(' ', '-')}) | {self.help[section]} |"
        for page, about in OTHERS.items():
            yield f"| [{page}]({page}) | {about} |"

    def section(self, section):
        text = self.help[section]
        yield f"\n## {section}\n\n{text[0].upper()}{text[1:]}.\n\n| key | value | default | resume | |\n|---|---|---|---|---|"
        rows = [key for key in self.keys if key["kind"] == "used" and section_of(key) == section]
        for key in rows:
            types = key["types"] + ": " if key["types"] else ""
            yield (f"| `{key['key']}` | {key['value']} | {key['default']} | {key['resume']} | "
                   f"{types}{cell(cell_and_rest(key)[0])} |")
        for key in rows:
            rest = cell_and_rest(key)[1]
            if rest:
                yield f"\n`{key['key']}`:\n"
                yield from (wrapped("- ", clause) for clause in rest)

    def verdict(self, verdict, title, about):
        yield f"\n## {title}\n\n{about}\n\n| key | accepted | |\n|---|---|---|"
        for key in self.keys:
            if key["verdict"] == verdict and key["kind"] not in ("section", "alias"):
                accepted = "enabled: false" if key["kind"] == "foreign" else "any" if verdict == "notice" else key["fallback"] or "-"
                yield f"| `{key['key']}` | {accepted} | {cell(key['help'])} |"

    def other(self, page):
        if page == "run-spec-deepspeed.md":
            yield from self.verdict("notice", "No effect here", "If the value differs from the default, a notice gives the reason why it "
                                                                "has no effect.")
            yield "\n## Old names\n"
            yield from (f"- `{key['key']}`: now `{key['fallback']}`" for key in self.keys if key["kind"] == "alias")
        elif page == "run-spec-refused.md":
            yield from self.verdict("refused", "Refused", "Switching one on is an error, which gives the reason.")
            yield from self.verdict("later", "Not supported yet", "Any value but the accepted one is an error.")
            yield "\n## Other values\n"
            yield from (f"- `{key['key']}: {name}`: {why}" for key in self.keys for name, why in key["refused"].items())
        else:
            yield "\n## Names\n\n| their name | in a run spec | |\n|---|---|---|"
            for row in self.names:
                for name in row["names"].split(" "):
                    key = f"`{row['key']}`" if row["key"] else "-"
                    yield f"| `{name}` | {key} | {row['note'] or ''} |"


def main():
    if len(sys.argv) != 2:
        sys.exit("spec-pages.py: one argument is needed; hint: scripts/spec-pages.py build/ztrain")
    table = Table(sys.argv[1])
    for page in ["run-spec.md", *PAGES, *OTHERS]:
        print(f"<!-- {page}: what follows is made by `make doc` from the key table in core/spec/spec_keys.c -->")
        for section in PAGES.get(page, []):
            print("\n".join(table.section(section)))
        if page not in PAGES:
            print("\n".join(table.index() if page == "run-spec.md" else table.other(page)))


if __name__ == "__main__":
    main()

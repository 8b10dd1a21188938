#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of docs/models.md is what ztrain says of models that are downloaded much: scripts/check-model-list.py [--write] [ROOT]

`ztrain plan` gets each config.json of tests/configs, without weights, in a folder of its own. The table has the parameters that it
would train, or the reason for which it refuses the model. Exits 1 where the page differs; --write corrects it. The program is $ZTRAIN
(default: build/ztrain).
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
SECTION = re.compile(r"(^## Twenty models\n.*?\n\n)((?:\|[^\n]*\n)+)", re.M | re.S)
SPEC = ("run: {{name: list}}\nmodel: {{pretrained: {}}}\ndata: {{train: none, seq_length: 128}}\ntrain: {{device: cpu}}\n"
        "train_batch_size: 1\nbf16: {{enabled: true}}\noptimizer: {{type: AdamW, params: {{lr: 1.0e-5}}}}\n")


def row_of(ztrain, path):
    """The row of the table for a config.json."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (("config.json", text), ("run.yaml", SPEC.format(json.dumps(folder)))):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                f.write(content)
        done = subprocess.run([ztrain, "plan", "--config", os.path.join(folder, "run.yaml")], capture_output=True, text=True, timeout=300)
    params = re.search(r"^memory plan: .* (\d+) parameters(?:, \d+ of them active .*)?$", done.stdout, re.M)
    refusal = re.search(r"^ztrain: error: .*?config\.json: (.*?)(?:; hint: .*)?$", done.stderr, re.M)
    if done.returncode == 0 and params:
        says = f"{int(params.group(1)) / 1e6:,.0f} million"
    elif done.returncode and refusal:
        says = f"refused: {refusal.group(1)}"
    else:
        sys.exit(f"{path}: ztrain plan ended with {done.returncode}: {done.stderr}")
    name = os.path.basename(path).removesuffix(".json").replace("--", "/")
    return f"| {name} | `{json.loads(text)['model_type']}` | {says} |\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="correct the table")
    parser.add_argument("root", metavar="ROOT", nargs="?", default=HERE)
    arguments = parser.parse_args()
    configs, page = os.path.join(arguments.root, "tests", "configs"), os.path.join(arguments.root, "docs", "models.md")
    ztrain = os.path.abspath(os.path.join(HERE, os.environ.get("ZTRAIN", "build/ztrain")))
    rows = [row_of(ztrain, os.path.join(configs, name)) for name in sorted(os.listdir(configs), key=str.lower) if name.endswith(".json")]
    with open(page, encoding="utf-8") as f:
        text = f.read()
    found = SECTION.search(text)
    if not found:
        sys.exit(f"{page}: no section 'Twenty models' with a table")
    table = "| model | model_type | trained parameters |\n|---|---|---|\n" + "".join(rows)
    if found.group(2) == table:
        print(f"docs/models.md says of {len(rows)} models what ztrain does")
    elif arguments.write:
        with open(page, "w", encoding="utf-8") as f:
            f.write(text[:found.start(2)] + table + text[found.end(2):])
    else:
        missing = [row for row in table.splitlines() if row not in found.group(2).splitlines()]
        sys.exit("docs/models.md: the table of models differs; hint: scripts/check-model-list.py --write\n" + "\n".join(missing))


if __name__ == "__main__":
    main()

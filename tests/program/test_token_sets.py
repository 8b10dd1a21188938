# SPDX-License-Identifier: Apache-2.0
"""The files of a token shard belong together: tokenize.py killed at each rename, files of two runs, files that are missing."""
import json
import os
import shutil
import subprocess
import sys

import pytest

from harness import DATA, LLAMA, ROOT, write_mask

SCRIPT = os.path.join(ROOT, "scripts", "tokenize.py")
APART = "do not belong together"
BYTES = {"model": {"config": {**LLAMA, "vocab_size": 257}}}
LABELS = (".bin", ".idx", ".types", ".labels", ".labels.json")

# In each copy of the folder "old" tokenize.py is killed one removal or rename later, until it comes to its end.
KILLER = """
import importlib.util, itertools, os, shutil, signal, sys
spec = importlib.util.spec_from_file_location("tokenizer_script", sys.argv[1])
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
sys.argv = sys.argv[1:]
def killed_at(left, call):
    def made(*arguments):
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)
    return made
for number in itertools.count():
    shutil.copytree("old", str(number))
    child = os.fork()
    if child == 0:
        left = itertools.count(number, -1)
        os.replace, os.unlink = killed_at(left, os.replace), killed_at(left, os.unlink)
        os.chdir(str(number))
        os._exit(script.main())
    if os.waitpid(child, 0)[1] != signal.SIGKILL:
        break
"""


def tokenize(folder, rows, *arguments, prefix="s"):
    """Tokenizes rows in a folder, which it makes."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "rows.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    command = [sys.executable, SCRIPT, "rows.jsonl", "--output", prefix, "--tokenizer", "byte", *arguments]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)


def files(folder):
    """{name: bytes} of the shards' files in it."""
    found = {}
    for name in os.listdir(folder):
        if name.startswith("s") and ".tmp-" not in name:
            with open(os.path.join(folder, name), "rb") as file:
                found[name] = file.read()
    return found


def complaint(folder, train, validation=None):
    """What a dry run says of the data, or "" if it takes them."""
    data = {"train": train, "validation": validation or train, "packing": True}
    done = folder.wait(folder.start("--config", folder.spec({**BYTES, "data": data}), "--dry-run"))
    assert done.code in (0, DATA), done
    lines = [line for line in (done.out + done.err).splitlines() if line.startswith("data: ") or done.code]
    return "\n".join(lines)


def completions(text, count=60):
    return [{"prompt": f"{text}{i}"[: 8 + i % 3], "completion": f"{i} {text}"[: 12 - i % 3]} for i in range(count)]


def test_a_tokenizer_that_was_killed_leaves_no_mixture(folder):
    """At any rename: the old set, the new one, or a refusal. Sizes agree, and the old set has a mask that the new one lacks."""
    arguments = ["--validation", "0.3"]
    tokenize(folder.at("old"), completions("some words"), "--completion", "prompt,completion", *arguments)
    tokenize(folder.at("new"), completions("other text"), "--fields", "prompt,completion", *arguments)
    old, new = files(folder.at("old")), files(folder.at("new"))
    assert len(old) == 6 and len(new) == 4
    shutil.copy(folder.at("new", "rows.jsonl"), folder.at("old"))
    subprocess.run([sys.executable, "-c", KILLER, SCRIPT, "rows.jsonl", "--output", "s", "--tokenizer", "byte",
                    "--fields", "prompt,completion", *arguments], cwd=folder.path, check=True, capture_output=True, timeout=120)
    seen = []
    while os.path.exists(folder.at(str(len(seen)))):
        place = folder.at(str(len(seen)))
        left, said = files(place), complaint(folder, os.path.join(place, "s"), os.path.join(place, "s-validation"))
        seen.append("old" if left == old else "new" if left == new else "between")
        assert bool(said) == (seen[-1] == "between"), (seen, said)
        assert not said or "the .idx file is missing" in said, said
    assert seen[0] == "old" and seen[-1] == "new" and seen.count("between") > 6
    assert not [name for name in os.listdir(place) if ".tmp-" in name]


def pairs(words, names):
    return [{"a": words[i % 3][: 4 + i % 2], "b": words[i % 4][: 5 - i % 2], "label": names[i % 3 and 1]} for i in range(40)]


@pytest.fixture(name="twins", scope="module")
def fixture_twins(tmp_path_factory):
    """Two labelled sets of pairs whose files have the same sizes and other contents."""
    place = tmp_path_factory.mktemp("twins")
    for name, rows in (("one", pairs(["abcdef", "ghijkl", "mnopqr", "stuvwx"], ["bad", "fine"])),
                       ("two", [{**row, "a": row["a"][:-1], "b": "." + row["b"]}
                                for row in pairs(["ABCDEF", "GHIJKL", "MNOPQR", "STUVWX"], ["low", "high"])])):
        tokenize(str(place / name), rows, "--label", "label", "--fields", "a,b")
    one, two = files(str(place / "one")), files(str(place / "two"))
    assert sorted(one) == sorted("s" + end for end in LABELS)
    assert all(len(one[name]) == len(two[name]) and one[name] != two[name] for name in one if name != "s.labels")
    return place


@pytest.mark.parametrize("end", [end for end in LABELS if end != ".labels"])
def test_a_file_of_another_run(folder, twins, end):
    for name in os.listdir(twins / "one"):
        shutil.copy(twins / ("two" if name == "s" + end else "one") / name, folder.path)
    said = complaint(folder, folder.at("s"))
    assert APART in said and folder.at("s.idx") in said and (end == ".idx" or folder.at("s" + end) in said)


def test_labels_that_were_changed(folder, twins):
    for name in os.listdir(twins / "one"):
        shutil.copy(twins / "one" / name, folder.path)
    assert not complaint(folder, folder.at("s"))
    with open(folder.at("s.labels"), "r+b") as file:
        file.write(b"\1")
    assert APART in complaint(folder, folder.at("s"))


def test_a_set_is_copied_whole(folder):
    """Its mask must be there; a mask that was made for a set without one may be."""
    tokenize(folder.path, completions("some words"), "--completion", "prompt,completion")
    os.remove(folder.at("s.mask"))
    done = folder.train({**BYTES, "data": {"train": folder.at("s"), "validation": None}}, expect=DATA)
    assert f"'{folder.at('s.mask')}' is missing" in done.final_error and "; hint: copy all files" in done.final_error
    tokenize(folder.path, completions("some words"), "--fields", "prompt,completion")
    assert not complaint(folder, folder.at("s"))
    write_mask(folder.at("s"), os.path.getsize(folder.at("s.bin")) // 2, lambda i: i % 2)
    assert not complaint(folder, folder.at("s"))


def test_every_byte_counts(folder):
    """More than one block of 64 KiB; the damage is one bit of a token that stays within the vocabulary."""
    tokenize(folder.path, [{"text": "abcdefgh" * 900} for _ in range(20)])
    size = os.path.getsize(folder.at("s.bin"))
    assert size > 3 << 16
    for place in (0, 150000, size - 4):
        with open(folder.at("s.bin"), "r+b") as file:
            file.seek(place)
            byte = file.read(1)
            file.seek(place)
            file.write(bytes([byte[0] ^ 1]))
            file.flush()
            said = complaint(folder, folder.at("s"))
            assert APART in said and f"bytes {place >> 16 << 16} to " in said, said
            file.seek(place)
            file.write(byte)
    assert not complaint(folder, folder.at("s"))


def test_temporary_names_are_unique(tmp_path):
    """Two writers with one process number, as in two containers on a shared file system."""
    code = """
import os, sys
sys.path.append(sys.argv[1])
from tokenization.shards import Shard, publish
os.getpid = lambda: 7
one, two = Shard("s", 257, ".mask"), Shard("s", 257, ".mask")
for shard, token in ((one, b"1"), (two, b"2")):
    shard.add(2000 * (token + b"\\0"), [2000], 2000 * b"\\1")
publish([one])
publish([two])
one.discard()
two.discard()
print(open("s.bin", "rb").read() == 2000 * b"2\\0", sorted(os.listdir()))
Shard("s" * 250, 257, ".mask")
"""
    done = subprocess.run([sys.executable, "-c", code, os.path.dirname(SCRIPT)], cwd=tmp_path, capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.stdout == "True ['s.bin', 's.idx', 's.mask']\n" and "too long" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["s.bin", "s.idx", "s.mask"]


def test_a_dangling_mask_is_no_absent_one(folder):
    folder.spec()
    os.symlink("nowhere", folder.at("train.mask"))
    done = folder.train(expect=DATA)
    assert f"cannot open '{folder.at('train.mask')}'" in done.final_error

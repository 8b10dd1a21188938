# SPDX-License-Identifier: Apache-2.0
"""core/text and scripts/tokenization against the Rust package `tokenizers` and transformers: random texts, with the tokenizers
of tests/text, token for token."""
import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import sys
import unicodedata

import pytest
from tokenizers import Tokenizer

pytestmark = pytest.mark.interop

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TEXT = os.path.join(ROOT, "tests", "text")
TOOL = os.path.join(ROOT, "build", "tokens-of")
NAMES = ["gpt2", "llama3", "qwen2", "mixed", "o200k", "holes"]
PIECES = ["the", " the", "'s", "'LL", "  ", "\n", "\r\n", "\t", " \n", "12", "3456", "\u0301", "\u0323", "\u200d", "\ufe0f", "👍🏽", "한", "\u1112\u1161",
          "ß", "\u017f", "É", "e\u0301", "字", "ا", "<l>", "<r>", "<lr>", "[MASK]", "<|endoftext|>", "<|eot_id|>", "_", "-", "(", "/", "ab", "Q"]
OLD = unicodedata.ucd_3_2_0  # characters that no version of the package can lack


def random_text(rng):
    def piece():
        kind = rng.random()
        if kind < 0.6:
            return rng.choice(PIECES)
        point = rng.randint(1, 0x7f) if kind < 0.75 else rng.randint(0x80, 0x33ff) if kind < 0.95 else rng.randint(0x10000, 0x2ffff)
        known = OLD.category(chr(point)) == unicodedata.category(chr(point)) and OLD.category(chr(point)) not in ("Cn", "Cs")
        return chr(point) if known else " "
    return "".join(piece() for _ in range(rng.randint(1, 60)))


def ask(folder, texts):
    """(ids with special tokens, ids without, decoded text) of each text, by core/text."""
    asked = b"".join(b"%d\n%s" % (len(t.encode()), t.encode()) for t in texts)
    done = subprocess.run([TOOL, folder], input=asked, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answers, said, at = [], done.stdout, 0
    for _ in texts:
        end = said.index(b"\n", at)
        special, plain, count = said[at:end].split(b"|")
        answers.append(([int(i) for i in special.split()], [int(i) for i in plain.split()], said[end + 1:end + 1 + int(count)].decode()))
        at = end + 2 + int(count)
    assert at == len(said)
    return answers


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_the_package(name):
    rng, folder = random.Random(name), os.path.join(TEXT, name)
    texts = [random_text(rng) for _ in range(1500)] + ["x" * 20000, " " * 20000, "ab " * 5000]
    package = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    for text, (special, plain, decoded) in zip(texts, ask(folder, texts)):
        assert special == package.encode(text).ids, repr(text)
        assert plain == package.encode(text, add_special_tokens=False).ids, repr(text)
        assert decoded == package.decode(plain, skip_special_tokens=False), repr(text)


@pytest.mark.parametrize("name", ["qwen2", "mixed", "o200k"])
def test_characters_are_those_of_the_package(name):
    """Every 41st code point, and the ends of the runs that core/text/unicode.c lists. (0 of all 1.1 million differed.)"""
    with open(os.path.join(ROOT, "core", "text", "unicode.c"), encoding="utf-8") as file:
        runs = re.findall(r'\{(0x\w+), (0x\w+), "', file.read())
    assert len(runs) > 100
    ends = {point for first, last in runs for point in (int(first, 16) - 1, int(first, 16), int(last, 16), int(last, 16) + 1)}
    points = sorted(ends | {c for c in range(1, 0x110000, 41) if not 0xd800 <= c < 0xe000})
    texts = [f"a{c} {c}1{c}{c} e\u0301{c}\u0316\u0301'the{c}" for c in map(chr, points)]
    package = Tokenizer.from_file(os.path.join(TEXT, name, "tokenizer.json"))
    expected = package.encode_batch(texts, add_special_tokens=False)
    different = [hex(c) for c, (_, plain, _), e in zip(points, ask(os.path.join(TEXT, name), texts), expected) if plain != e.ids]
    assert not different


# ---- folders, as AutoTokenizer reads them ----

END, START, STOP, THINK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"


def token(content, **flags):
    return {"content": content, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True, **flags}


# name: (the tokenizer of tests/text that has the vocabulary, whether tokenizer.json stays, {file: keys}); ADDED are tokens after
# the vocabulary, whose first id is that of the first one.
ADDED = [token(END), token(START), token(STOP), token(THINK, special=False, lstrip=True), token("[X]", rstrip=True, normalized=True)]
FOLDERS = {
    "gpt2": ("gpt2", False, {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"}}),
    "gpt2-by-model": ("gpt2", False, {"config.json": {"model_type": "gpt2"}, "tokenizer_config.json": {"model_max_length": 1024}}),
    "gpt2-begins": ("gpt2", False, {"tokenizer_config.json": {
        "tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": True, "add_bos_token": True, "pad_token": "<pad>",
        "bos_token": {"__type": "AddedToken", **token(END, normalized=True)}}}),
    "codegen": ("gpt2", False, {"tokenizer_config.json": {"tokenizer_class": "CodeGenTokenizer", "add_bos_token": True}}),
    "neox": ("gpt2", False, {"tokenizer_config.json": {"tokenizer_class": "GPTNeoXTokenizerFast", "add_eos_token": True}}),
    "qwen2": ("qwen2", False, {"tokenizer_config.json": {
        "tokenizer_class": "Qwen2Tokenizer", "eos_token": STOP, "unk_token": None, "additional_special_tokens": [START, "<new>"],
        "added_tokens_decoder": ADDED}}),
    "qwen2-space": ("qwen2", False, {"tokenizer_config.json": {"tokenizer_class": "Qwen2TokenizerFast", "add_prefix_space": True,
                                                               "image_token": "<image>", "added_tokens_decoder": ADDED[:3]}}),
    "qwen3-legacy": ("qwen2", False, {"config.json": {"model_type": "qwen3"}, "added_tokens.json": ADDED[:4],
                                      "special_tokens_map.json": {"eos_token": token(STOP), "additional_special_tokens": [START]}}),
    "split": ("qwen2", False, {"tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer", "split_special_tokens": True,
                                                         "added_tokens_decoder": ADDED}}),
    "json": ("llama3", True, {"tokenizer_config.json": {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": STOP, "pad_token": "<pad>", "extra_special_tokens": ["[Y]"],
        "added_tokens_decoder": [token("<|eot_id|>", rstrip=True)] + ADDED[1:]}}),
    "json-legacy": ("llama3", True, {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|eot_id|>"},
                                     "special_tokens_map.json": {"eos_token": "[EOS]"}, "added_tokens.json": [token("[EOS]")]}),
    "json-split": ("llama3", True, {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "split_special_tokens": True}}),
    "json-space": ("llama3", True, {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True}}),
    "gpt2-json-space": ("gpt2", True, {"config.json": {"model_type": "gpt2"}, "tokenizer_config.json": {"add_prefix_space": True}}),
    "qwen2-json-space": ("qwen2", True, {"tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": True}}),
}


def make_folder(folder, base, whole, files):
    with open(os.path.join(TEXT, base, "tokenizer.json"), encoding="utf-8") as file:
        parts = json.load(file)
    folder.mkdir()
    if whole:
        shutil.copy(os.path.join(TEXT, base, "tokenizer.json"), folder)
    else:
        merges = [m if isinstance(m, str) else " ".join(m) for m in parts["model"]["merges"]]
        (folder / "vocab.json").write_text(json.dumps(parts["model"]["vocab"]))
        (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(m + "\n" for m in merges))
    known = {**parts["model"]["vocab"], **({t["content"]: t["id"] for t in parts["added_tokens"]} if whole else {})}

    def numbered(tokens):
        fresh = iter(range(max(known.values()) + 1, 1 << 20))
        return [(known[t["content"]] if t["content"] in known else next(fresh), t) for t in tokens]

    for name, keys in files.items():
        if name == "added_tokens.json":
            keys = {t["content"]: i for i, t in numbered(keys)}
        elif "added_tokens_decoder" in keys:
            keys = {**keys, "added_tokens_decoder": {str(i): t for i, t in reversed(numbered(keys["added_tokens_decoder"]))}}
        (folder / name).write_text(json.dumps(keys))
    return str(folder)


def tokenizer_module():
    """scripts/tokenization/tokenizer.py. (scripts/ stays off the path: its tokenize.py has the name of a standard module.)"""
    if "tokenization" not in sys.modules:
        folder = os.path.join(ROOT, "scripts", "tokenization")
        found = importlib.util.spec_from_file_location("tokenization", os.path.join(folder, "__init__.py"),
                                                       submodule_search_locations=[folder])
        sys.modules["tokenization"] = importlib.util.module_from_spec(found)
        found.loader.exec_module(sys.modules["tokenization"])
    return importlib.import_module("tokenization.tokenizer")


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_are_read_as_by_transformers(tmp_path, name):
    from transformers import AutoTokenizer
    rng, folder = random.Random(name), make_folder(tmp_path / name, *FOLDERS[name])
    special = [END, START, STOP, THINK, "[X]", "[Y]", "<pad>", "<new>", "<image>", "<|padding|>", "<|eot_id|>", "[EOS]"]
    texts = [rng.choice(special).join((random_text(rng), random_text(rng))) for _ in range(100)] + [" ".join(special), "a2024\ne\u0301"]
    oracle = AutoTokenizer.from_pretrained(folder)
    ours = tokenizer_module().FolderTokenizer(folder, None if oracle.eos_token else "a", False)
    encoded = [list(ids) for ids in ours.encode([text.encode() for text in texts])]
    for text, (whole, plain, _), ids in zip(texts, ask(folder, texts), encoded):
        assert plain == oracle(text, add_special_tokens=False)["input_ids"], repr(text)
        assert whole == oracle(text)["input_ids"], repr(text)
        assert ids == plain, repr(text)
    before, after = ours.own
    assert before + encoded[0] + after == oracle(texts[0])["input_ids"] and ours.vocabulary == len(oracle)
    assert not oracle.eos_token or ours.end == oracle.eos_token_id

"""core/text against the Rust package `tokenizers`: random texts, with the tokenizers of tests/text, token for token."""
import os
import random
import subprocess
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

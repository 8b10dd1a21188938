# SPDX-License-Identifier: Apache-2.0
"""scripts/tokenize.py: inputs, documents, vocabularies, the split, the shards' bytes, errors and exit codes."""
import gzip
import hashlib
import json
import os
import pty
import random
import signal
import struct
import subprocess
import sys
import time

import pytest

SCRIPT = os.path.join(os.path.dirname(__file__), "..", "..", "scripts", "tokenize.py")
END = 256


def tokenize(*arguments, code=0, **options):
    command = [sys.executable, SCRIPT, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == code, done.stderr
    if code:
        lines = done.stderr.strip().splitlines()
        assert lines[-1].startswith("ztrain-tokenize: error: ") and "Traceback" not in done.stderr
    return done.stderr if code else done.stdout


def check_digests(prefix, found):
    """What follows Megatron-LM's lists in the index: the sizes of the set's files, and a digest of each block of them."""
    names = [f"{prefix}{end}" for end in (".bin", ".mask", ".types", ".labels", ".labels.json")]
    sizes = [os.path.getsize(name) if os.path.exists(name) else 0 for name in names]
    expected = b"ztrain\0\1" + struct.pack("<5Q", *sizes)
    for name in filter(os.path.exists, names):
        with open(name, "rb") as file:
            content = file.read()
        expected += b"".join(hashlib.blake2b(content[at : at + 65536], digest_size=16).digest()
                             for at in range(0, len(content), 65536))
    assert found == expected


def read_shard(prefix):
    """Returns the documents of a shard, and checks every field of its index."""
    with open(f"{prefix}.idx", "rb") as file:
        idx = file.read()
    with open(f"{prefix}.bin", "rb") as file:
        tokens = file.read()
    magic, version, code, count, entries = struct.unpack_from("<9sQBQQ", idx)
    assert (magic, version, entries) == (b"MMIDIDX\0\0", 1, count + 1)
    size, letter = {8: (2, "H"), 4: (4, "i")}[code]
    check_digests(prefix, idx[34 + 12 * count + 8 * entries :])
    lengths = struct.unpack_from(f"<{count}i", idx, 34)
    pointers = struct.unpack_from(f"<{count}q", idx, 34 + 4 * count)
    assert struct.unpack_from(f"<{entries}q", idx, 34 + 12 * count) == tuple(range(entries))
    assert len(tokens) == size * sum(lengths)
    documents, position = [], 0
    for length, pointer in zip(lengths, pointers):
        assert pointer == position
        documents.append(list(struct.unpack_from(f"<{length}{letter}", tokens, position)))
        position += length * size
    return documents


def texts(prefix):
    """Returns the documents of a shard of the byte vocabulary, as bytes."""
    documents = read_shard(prefix)
    assert all(document[-1] == END and END not in document[:-1] for document in documents)
    return [bytes(document[:-1]) for document in documents]


def write(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def byte_run(tmp_path, *inputs, arguments=()):
    tokenize(*inputs, "--output", tmp_path / "out", "--tokenizer", "byte", *arguments)
    return texts(tmp_path / "out")


TEXT = b"\xef\xbb\xbffirst line\r\nsecond line\n\n \t\n\nthird \xc3\xa9 \xff\n\n\nlast without end"


@pytest.mark.parametrize("unit, expected", [
    (None, [b"first line\nsecond line", b"third \xc3\xa9 \xff", b"last without end"]),
    ("paragraph", [b"first line\nsecond line", b"third \xc3\xa9 \xff", b"last without end"]),
    ("line", [b"first line", b"second line", b" \t", b"third \xc3\xa9 \xff", b"last without end"]),
    ("file", [TEXT[3:]]),
])
def test_documents_of_text(tmp_path, unit, expected):
    arguments = ("--document", unit) if unit else ()
    assert byte_run(tmp_path, write(tmp_path / "in.txt", TEXT), arguments=arguments) == expected
    assert byte_run(tmp_path, write(tmp_path / "in.gz", gzip.compress(TEXT)), arguments=arguments) == expected


def test_jsonl(tmp_path):
    rows = [{"text": "one", "title": "A"}, {"text": "", "title": None}, {"text": "two\nlines \U0001f600", "title": 3.5},
            {"text": "\ud800", "title": True}]
    path = write(tmp_path / "in.jsonl", "\n\n".join(json.dumps(row) for row in rows))
    assert byte_run(tmp_path, path) == [b"one", "two\nlines \U0001f600".encode(), b"?"]
    expected = [b"A one", "3.5 two\nlines \U0001f600".encode(), b"true ?"]
    assert byte_run(tmp_path, path, arguments=("--fields", "title,text")) == expected


def test_csv(tmp_path):
    rows = b'class,title,text\r\n3,"Fears, ""of"" it",two\n4,plain,"a\nb"\n\n5,,\xff\n'
    path = write(tmp_path / "in.csv", rows)
    assert byte_run(tmp_path, path) == [b"two", b"a\nb", b"\xff"]
    expected = [b'Fears, "of" it two', b"plain a\nb", b" \xff"]
    assert byte_run(tmp_path, path, arguments=("--fields", "title, text")) == expected
    assert byte_run(tmp_path, path, arguments=("--fields", "3,1"))[:2] == [b"text class", b"two 3"]
    path = write(tmp_path / "in.tsv", b"text\tother\none\t1\n")
    assert byte_run(tmp_path, path) == [b"one"]


def test_folder(tmp_path):
    folder = tmp_path / "in"
    (folder / "b").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    write(folder / "c.txt", "three")
    write(folder / "b" / "x.h", "two")
    write(folder / "a.jsonl", '{"text": "one"}')
    write(folder / ".hidden" / "no.txt", "no")
    write(folder / ".no.txt", "no")
    write(folder / "program", b"\x7fELF\0\0")
    (folder / "dangling").symlink_to("nowhere")
    out = tokenize(folder, "--output", tmp_path / "new" / "out", "--tokenizer", "byte")
    assert texts(tmp_path / "new" / "out") == [b"one", b"three", b"two"]
    assert "1 binary" in out and "vocab_size 257" in out and "3 documents, 14 tokens" in out


def many_lines(tmp_path, count=60000):
    generator = random.Random(1)
    lines = [b"%d %x" % (i, generator.getrandbits(4 * generator.randrange(1, 80))) for i in range(count)]
    return lines, write(tmp_path / "many.txt", b"\n".join(lines))


def test_workers_and_split(tmp_path):
    lines, path = many_lines(tmp_path)
    results = []
    for workers in (1, 3):
        tokenize(path, "--output", tmp_path / "w", "--tokenizer", "byte", "--document", "line", "--validation", "0.05",
                 "--workers", workers)
        results.append((texts(tmp_path / "w"), texts(tmp_path / "w-validation")))
    assert results[0] == results[1]
    train, validation = results[0]
    assert 0.04 * len(lines) < len(validation) < 0.06 * len(lines)
    side = set(validation)
    assert train == [line for line in lines if line not in side]
    assert validation == [line for line in lines if line in side]
    # the split follows a document, wherever it stands, and a larger share holds the smaller one
    lines.reverse()
    write(path, b"\n".join(lines))
    tokenize(path, "--output", tmp_path / "w", "--tokenizer", "byte", "--document", "line", "--validation", "0.1")
    assert side < set(texts(tmp_path / "w-validation"))
    assert sorted(os.listdir(tmp_path)) == ["many.txt", "w-validation.bin", "w-validation.idx", "w.bin", "w.idx"]


def test_a_validation_set_of_an_earlier_run(tmp_path):
    path = write(tmp_path / "in.txt", "one\n\ntwo")
    arguments = [path, "--output", tmp_path / "s", "--tokenizer", "byte"]
    assert "earlier run" not in tokenize(*arguments)
    assert "earlier run" not in tokenize(*arguments, "--validation", "0.5")
    assert f"{tmp_path / 's'}-validation.bin belongs to an earlier run" in tokenize(*arguments)


def test_neither_side_is_empty(tmp_path):
    path = write(tmp_path / "in.txt", "one\n\ntwo")
    for share in ("1e-9", "0.999999999"):
        tokenize(path, "--output", tmp_path / "s", "--tokenizer", "byte", "--validation", share)
        assert sorted(texts(tmp_path / "s") + texts(tmp_path / "s-validation")) == [b"one", b"two"]
        assert len(texts(tmp_path / "s")) == 1


def bpe_folder(folder, merges=(("h", "e"), ("l", "l"), ("he", "ll"), ("\u0120", "w")), padding=0):
    """A byte-level BPE of GPT-2's kind: 256 bytes, the merges, <|endoftext|>."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    names = letters + [a + b for a, b in merges] + [f"<pad{i}>" for i in range(padding)] + ["<|endoftext|>"]
    folder.mkdir()
    write(folder / "vocab.json", json.dumps({name: i for i, name in enumerate(names)}))
    write(folder / "merges.txt", "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    return {name: i for i, name in enumerate(names)}


@pytest.mark.interop
def test_bpe_folder(tmp_path):
    ids = bpe_folder(tmp_path / "bpe")
    path = write(tmp_path / "in.txt", b"hello world\n\nw\xff")
    out = tokenize(path, "--output", tmp_path / "o", "--tokenizer", tmp_path / "bpe")
    world = [ids["hell"], ids["o"], ids["\u0120w"], *(ids[c] for c in "orld"), ids["<|endoftext|>"]]
    replaced = [ids["w"], ids["\u00ef"], ids["\u00bf"], ids["\u00bd"], ids["<|endoftext|>"]]
    assert read_shard(tmp_path / "o") == [world, replaced]
    assert f"vocab_size {len(ids)}" in out and "not UTF-8  1 documents" in out
    # more than 65,536 ids: int32
    ids = bpe_folder(tmp_path / "wide", padding=65536)
    tokenize(path, "--output", tmp_path / "o", "--tokenizer", tmp_path / "wide")
    assert read_shard(tmp_path / "o")[0][-1] == ids["<|endoftext|>"] > 65535


@pytest.mark.interop
def test_tokenizer_json_folder(tmp_path):
    import tokenizers
    folder = tmp_path / "hf"
    folder.mkdir()
    names = {name: i for i, name in enumerate(["<unk>", "one", "two", "<s>", "</s>", "<stop>"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(names, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 3)])
    tokenizer.enable_truncation(1)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(folder / "tokenizer.json"))
    path = write(tmp_path / "in.txt", "one two one")

    def end(*arguments):
        tokenize(path, "--output", tmp_path / "o", "--tokenizer", folder, *arguments)
        (document,) = read_shard(tmp_path / "o")
        assert document[:-1] == [3, 1, 2, 1]  # the tokenizer's own first token
        return document[-1]

    assert end() == names["</s>"]  # by its common name
    write(folder / "config.json", '{"eos_token_id": 3}')
    assert end() == 3
    write(folder / "generation_config.json", '{"eos_token_id": [5, 4]}')
    assert end() == 5
    write(folder / "special_tokens_map.json", '{"eos_token": "</s>"}')
    assert end() == 4
    write(folder / "tokenizer_config.json", '{"eos_token": {"content": "<stop>"}}')
    assert end() == 4  # special_tokens_map.json comes first, unless the other file has all added tokens
    write(folder / "tokenizer_config.json", '{"eos_token": {"content": "<stop>"}, "added_tokens_decoder": {}}')
    assert end() == 5
    added = {"7": {"content": "<new>", "special": True}, "6": {"content": "<more>"}}
    write(folder / "tokenizer_config.json", json.dumps({"eos_token": "<new>", "added_tokens_decoder": added}))
    assert end() == 7
    assert end("--end-of-text", "two") == 2
    out = ("--output", tmp_path / "o", "--tokenizer", folder)
    assert "not in the vocabulary" in tokenize(path, *out, "--end-of-text", "x", code=2)
    write(folder / "tokenizer_config.json", json.dumps({"added_tokens_decoder": {"9": {"content": "<new>"}}}))
    assert "gives the token '<new>' the id 9, and after its vocabulary and the tokens before it the next id is 6" in tokenize(
        path, *out, code=3)
    write(folder / "tokenizer_config.json", json.dumps({"added_tokens_decoder": {"6": "<new>"}}))
    assert "are not ids with tokens" in tokenize(path, *out, code=3)
    write(folder / "tokenizer_config.json", "[]")
    assert "tokenizer_config.json" in tokenize(path, *out, code=3)
    write(folder / "tokenizer_config.json", "{}")
    write(folder / "tokenizer.json", '{"model": ')
    assert "cannot read the tokenizer" in tokenize(path, *out, code=3)


@pytest.mark.interop
def test_folders_that_are_not_read_say_what_converts_them(tmp_path):
    folder, path = tmp_path / "bpe", write(tmp_path / "in.txt", "one")
    out = (path, "--output", tmp_path / "o", "--tokenizer", folder)
    bpe_folder(folder)
    write(folder / "tokenizer_config.json", '{"tokenizer_class": "RobertaTokenizerFast"}')
    words = tokenize(*out, code=2)
    assert "merges.txt of a RobertaTokenizer," in words and f'AutoTokenizer.from_pretrained("{folder}")' in words
    (folder / "merges.txt").unlink()
    assert "neither tokenizer.json nor vocab.json and merges.txt" in tokenize(*out, code=3)
    write(folder / "tokenizer.model", "")
    words = tokenize(*out, code=3)
    assert "its tokenizer.model is not read; hint: python3 -c" in words and '.save_pretrained("NEW")' in words
    assert "hint: hf download org/none" in tokenize(path, "--output", tmp_path / "o", "--tokenizer", "org/none", code=3)


def read_mask(prefix):
    with open(f"{prefix}.mask", "rb") as file:
        return list(file.read())


def test_completions_of_bytes(tmp_path):
    path = write(tmp_path / "in.jsonl", '{"p": "2+2=", "c": "\u00e94"}\n{"p": "x", "c": ""}\n{"p": "", "c": "y"}\n{"p": "", "c": ""}\n'
                 '{"p": "z", "c": null}')
    out = tokenize(path, "--output", tmp_path / "o", "--tokenizer", "byte", "--completion", "p,c")
    assert texts(tmp_path / "o") == ["2+2=\u00e94".encode(), b"x", b"y"]
    assert read_mask(tmp_path / "o") == [0] * 4 + [1] * 4 + [0, 1] + [1, 1]
    assert "left out   2 empty" in out and "7 of them learned from" in out and "2+2=\u27e6\u00e94" in out
    # without its end of text, the completion that is empty leaves nothing to learn
    out = tokenize(path, "--output", tmp_path / "o", "--tokenizer", "byte", "--completion", "p,c", "--special", "none")
    assert read_mask(tmp_path / "o") == [0] * 4 + [1] * 3 + [1] and "dropped    1 documents" in out
    # three fields, as Alpaca's data have them: the second may be empty
    write(path, '{"p": "Add.", "i": "2, 2", "c": "4"}\n{"p": "Go", "i": null, "c": "ok"}')
    tokenize(path, "--output", tmp_path / "o", "--tokenizer", "byte", "--completion", "p,i,c")
    assert texts(tmp_path / "o") == [b"Add.\n2, 24", b"Gook"]
    assert read_mask(tmp_path / "o") == [0] * 9 + [1, 1] + [0, 0, 1, 1, 1]
    # messages need a template
    write(path, '{"p": [{"role": "user", "content": "a"}], "c": [{"role": "assistant", "content": "b"}]}')
    error = tokenize(path, "--output", tmp_path / "o", "--tokenizer", "byte", "--completion", "p,c", code=2)
    assert "the byte vocabulary has no chat template" in error
    # a shard without a mask leaves none of an earlier one
    tokenize(write(tmp_path / "in.txt", "text"), "--output", tmp_path / "o", "--tokenizer", "byte")
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl", "in.txt", "o.bin", "o.idx"]


def test_documents_are_cut(tmp_path):
    path = write(tmp_path / "in.txt", "abcdef\nab\nabc")
    arguments = ("--output", tmp_path / "o", "--tokenizer", "byte", "--document", "line", "--max-length", 4)
    assert "truncated  1 documents, to 4 tokens" in tokenize(path, *arguments)
    assert read_shard(tmp_path / "o") == [list(b"abcd"), [*b"ab", END], [*b"abc", END]]


def test_json_arrays(tmp_path):
    path = write(tmp_path / "in.json", ' [{"text": "one"},\n {"text": "two"}]')
    assert byte_run(tmp_path, path) == [b"one", b"two"]
    path = write(tmp_path / "in.json.gz", gzip.compress(b'[{"text": "one"}]'))
    assert byte_run(tmp_path, path) == [b"one"]
    out = ("--output", tmp_path / "o", "--tokenizer", "byte")
    assert "in.json' element 2: no field 'text'" in tokenize(
        write(tmp_path / "in.json", '[{"text": "a"}, {}]'), *out, code=3)
    assert "in.json': not JSON" in tokenize(write(tmp_path / "in.json", '[{"text": "a"}'), *out, code=3)


def test_pointers_of_git_lfs(tmp_path):
    pointer = "version https://git-lfs" + ".example/spec/v1\noid sha256:00\nsize 3\n"
    for name in ("in.txt", "in.jsonl", "in.parquet", "in.gz"):
        error = tokenize(write(tmp_path / name, pointer), "--output", tmp_path / "o", "--tokenizer", "byte", code=3)
        assert name in error and "Git LFS pointer" in error and "git lfs pull" in error


@pytest.mark.parametrize("package, arguments", [
    ("pyarrow", ["in.parquet", "--tokenizer", "byte"]), ("zstandard", ["in.jsonl.zst", "--tokenizer", "byte"]),
    ("tokenizers", ["in.txt", "--tokenizer", "hf"])])
def test_packages_that_are_missing(tmp_path, package, arguments):
    (tmp_path / "absent").mkdir()
    (tmp_path / "hf").mkdir()
    write(tmp_path / "hf" / "tokenizer.json", "{}")
    for name in (package, "compression"):  # Python 3.14 has zstd
        write(tmp_path / "absent" / f"{name}.py", "raise ImportError")
    write(tmp_path / "in.parquet", b"PAR1\0PAR1")
    write(tmp_path / "in.txt", "text")
    write(tmp_path / "in.jsonl.zst", b"\x28\xb5\x2f\xfd\0")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "absent")}
    error = tokenize(*arguments, "--output", "o", code=2, cwd=tmp_path, env=environment)
    assert error.startswith("ztrain-tokenize: error: ") and f"'{package}'" in error
    assert error.endswith(f"; hint: pip install {package}, in a venv whose bin is on PATH (docs/install.md)\n"), error


@pytest.mark.interop
def test_parquet(tmp_path):
    import pyarrow
    import pyarrow.parquet
    rows = [{"text": f"number {i}", "n": i} for i in range(3000)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "in.parquet", row_group_size=700)
    assert byte_run(tmp_path, tmp_path / "in.parquet") == [row["text"].encode() for row in rows]
    assert byte_run(tmp_path, tmp_path, arguments=("--fields", "n"))[:2] == [b"0", b"1"]  # a folder
    talk = [{"p": "a", "c": "b"}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(talk), tmp_path / "in.parquet")
    assert byte_run(tmp_path, tmp_path / "in.parquet", arguments=("--completion", "p,c")) == [b"ab"]
    out = ("--output", tmp_path / "o", "--tokenizer", "byte")
    assert "no field 'text'; it has: p, c" in tokenize(tmp_path / "in.parquet", *out, code=3)
    assert "cannot read" in tokenize(write(tmp_path / "in.parquet", b"PAR1 damaged"), *out, code=3)


@pytest.mark.interop
def test_zstd(tmp_path):
    import zstandard
    frames = zstandard.compress(b"one\n\ntwo") + zstandard.compress(b"\n\nthree")
    assert byte_run(tmp_path, write(tmp_path / "in.zst", frames)) == [b"one", b"two", b"three"]
    path = write(tmp_path / "in.jsonl.zst", zstandard.compress(b'{"text": "one"}'))
    assert byte_run(tmp_path, path) == [b"one"]
    out = ("--output", tmp_path / "o", "--tokenizer", "byte")
    assert "in.zst" in tokenize(write(tmp_path / "in.zst", frames[:4] + b"not zstd"), *out, code=3)


@pytest.mark.parametrize("arguments", [
    [], ["in.txt"], ["in.txt", "--output", "o"], ["in.txt", "--tokenizer", "byte"],
    *(["in.txt", "--output", "o", "--tokenizer", "byte", *more] for more in (
        ["--validation", "1"], ["--validation", "-0.1"], ["--validation", "nan"], ["--validation", "x"],
        ["--workers", "0"], ["--document", "page"], ["--fields", "text"], ["--fields", "a,,b"], ["--fields", "a,2"],
        ["--fields", "0"], ["--end-of-text", "x"], ["--unknown"], ["--chat-template"], ["--completion", "text"],
        ["--completion", "text,text", "--fields", "text"], ["--special", "all"], ["--special", "bos"],
        ["--max-length", "1"], ["--completion", "text,text"], ["--completion", "a,b,c,d"])),
    ["in.csv", "--output", "o", "--tokenizer", "byte", "--completion", "1,2"],
    ["in.csv", "--output", "o", "--tokenizer", "x", "--completion", "text,text", "--chat-template"],
    ["in.txt", "--output", "o.bin", "--tokenizer", "byte"], ["in.txt", "--output", "o/", "--tokenizer", "byte"],
    ["in.csv", "--output", "o", "--tokenizer", "byte", "--document", "line"],
])
def test_usage(tmp_path, arguments):
    write(tmp_path / "in.txt", "text")
    write(tmp_path / "in.csv", "text\nx\n")
    tokenize(*arguments, code=2, cwd=tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["in.csv", "in.txt"]


@pytest.mark.parametrize("name, data, arguments, words", [
    ("no.txt", None, [], ["cannot open", "no.txt"]),
    ("in.txt", b"a\0b", [], ["not text", "in.txt"]),
    ("in.txt", b"", [], ["no text"]),
    ("in.txt", b"\n\n \n", [], ["no text"]),
    ("in.txt", b"one", ["--validation", "0.5"], ["cannot be split"]),
    ("in.gz", b"\x1f\x8b not gzip", [], ["in.gz"]),
    ("in.gz", gzip.compress(b"text" * 100)[:-9], [], ["in.gz"]),
    ("in.jsonl", b'{"text": "a"}\n{"text": ', [], ["in.jsonl' line 2", "not JSON"]),
    ("in.jsonl", b"[" * 100000, [], ["in.jsonl' line 1", "not JSON"]),
    ("in.jsonl", b'\xff{"text": "a"}', [], ["in.jsonl' line 1", "not JSON"]),
    ("in.jsonl", b"[1]", [], ["in.jsonl' line 1", "JSON object"]),
    ("in.jsonl", b'{"body": "a", "id": 1}', [], ["no field 'text'", "body, id", "--fields"]),
    ("in.jsonl", b'{"text": ["a"]}', [], ["line 1: field 'text' is a list"]),
    ("in.jsonl", b'{"messages": [], "id": 1}', [], ["no field 'text'", "messages, id", "hint: --chat-template"]),
    ("in.jsonl", b'{"prompt": "a", "completion": "b"}', [], ["no field 'text'", "hint: --completion prompt,completion"]),
    ("in.jsonl", b'{"prompt": "a", "chosen": "b", "rejected": "c"}', [], ["no field 'text'", "hint: --preference"]),
    ("in.jsonl", b'{"m": [{"role": "user"}]}', ["--fields", "m"], ["field 'm' is a list, expected text; hint: --chat-template"]),
    ("in.jsonl", b'{"conversations": []}', ["--completion", "p,c"], ["no field 'p'", "hint: --chat-template"]),
    ("in.csv", b"a,b\n1,2\n", [], [
        "no column 'text'", "a, b", "hint: name others, as in --fields a,b; if this row is no header, numbers: --fields 1,2"]),
    ("in.csv", b"id,the title,body\n1,2,3\n", [], ["--fields 'the title,body'", "--fields 2,3"]),
    ("in.csv", b"text,kind\n1,2\n", ["--label", "class"], ["no column 'class'", "as in --label kind", "numbers: --label 2"]),
    ("in.csv", b"", [], ["no column 'text'", "empty"]),
    ("in.csv", b"text,b\n1,2\n3\n", ["--fields", "b"], ["in.csv' line 3", "1 columns, expected at least 2"]),
    ("in.csv", b'text\n"open\n', [], ["in.csv' line 2"]),
    ("in.txt", b"text", ["--tokenizer", "none"], ["no tokenizer folder 'none'", "byte"]),
    ("in.txt", b"text", ["--tokenizer", "."], ["neither tokenizer.json nor"]),
])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_data_errors(tmp_path, name, data, arguments, words, workers):
    if data is not None:
        write(tmp_path / name, data)
    arguments = ["--output", "o", "--tokenizer", "byte", "--workers", workers, *arguments]
    error = tokenize(name, *arguments, code=3, cwd=tmp_path)
    assert error.count("\n") == 1
    assert all(word in error for word in words), error
    assert os.listdir(tmp_path) == ([name] if data is not None else [])  # nothing half-written


def test_errors_in_folders(tmp_path):
    (tmp_path / "in").mkdir()
    assert "no text file" in tokenize("in", "--output", "o", "--tokenizer", "byte", code=3, cwd=tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "regular file" in tokenize("pipe", "--output", "o", "--tokenizer", "byte", code=3, cwd=tmp_path)
    write(tmp_path / "file", "text")
    assert "cannot write" in tokenize("file", "--output", "file/o", "--tokenizer", "byte", code=3, cwd=tmp_path)


def test_a_failure_amid_many_batches_leaves_the_old_shard(tmp_path):
    lines, _ = many_lines(tmp_path, 20000)
    good = b"\n".join(b'{"text": "%s"}' % line for line in lines)
    path = write(tmp_path / "in.jsonl", good)
    arguments = (path, "--output", tmp_path / "o", "--tokenizer", "byte", "--workers", 2)
    tokenize(*arguments)
    before = (tmp_path / "o.bin").read_bytes()
    write(path, good + b"\n{")
    assert "line 20001" in tokenize(*arguments, code=3)
    assert (tmp_path / "o.bin").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl", "many.txt", "o.bin", "o.idx"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(tmp_path, number):
    write(tmp_path / "in.txt", b"some words in a line\n\n" * 3000000)
    command = [sys.executable, SCRIPT, "in.txt", "--output", "o", "--tokenizer", "byte", "--workers", "2"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while len(os.listdir(tmp_path)) == 1:
        time.sleep(0.01)
    time.sleep(0.3)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert "interrupted, nothing written" in error and "Traceback" not in error
    assert os.listdir(tmp_path) == ["in.txt"]


def test_workers_end_with_a_killed_tokenizer(tmp_path):
    """The kernel kills it so where memory is short."""
    write(tmp_path / "in.txt", b"some words in a line\n\n" * 3000000)
    command = [sys.executable, SCRIPT, "in.txt", "--output", "o", "--tokenizer", "byte", "--workers", "3"]
    # the workers hold the pipe as well
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True)
    while len(os.listdir(tmp_path)) == 1:
        time.sleep(0.01)
    time.sleep(0.3)
    process.kill()
    try:
        process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def test_a_bar_on_a_terminal_only(tmp_path):
    _, path = many_lines(tmp_path, 200000)
    main, other = pty.openpty()
    command = [sys.executable, SCRIPT, path, "--output", tmp_path / "o", "--tokenizer", "byte", "--document", "line"]
    process = subprocess.Popen(list(map(str, command)), stderr=other, stdout=subprocess.DEVNULL)
    os.close(other)
    seen = b""
    try:
        while chunk := os.read(main, 4096):
            seen += chunk
    except OSError:  # the other end is closed
        pass
    assert process.wait() == 0
    assert b"\r[" in seen and b"tokens/s" in seen
    assert tokenize(path, "--output", tmp_path / "o", "--tokenizer", "byte").count("\r") == 0


def test_it_hides_no_module_of_python(tmp_path):
    """The script has the name of a standard module, which tracebacks and many other modules import."""
    code = f"import runpy, sys; sys.argv = ['tokenize.py', '--help']; sys.path.insert(0, {os.path.dirname(SCRIPT)!r})\n"
    code += f"try: runpy.run_path({SCRIPT!r}, run_name='__main__')\nexcept SystemExit: pass\n"
    code += "import tokenize; assert hasattr(tokenize, 'tok_name')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "vocab_size 257" in done.stdout
    # a script in the same folder, which has that folder in front of its path
    code = f"import sys; sys.path.insert(0, {os.path.dirname(SCRIPT)!r})\n"
    code += "import inspect, tokenize, traceback, linecache\n"
    code += "assert hasattr(tokenize, 'tok_name') and linecache.tokenize is tokenize"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

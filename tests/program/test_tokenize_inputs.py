# SPDX-License-Identifier: Apache-2.0
"""scripts/tokenize.py: the files that people have (compressions, tables, folders of data sets), odd terminals and machines."""
import bz2
import datetime
import decimal
import gzip
import json
import lzma
import os
import resource
import shutil
import signal
import subprocess
import sys

import pytest

from harness import children, wait_until
from test_tokenize import SCRIPT, byte_run, many_lines, texts, tokenize, write

OUT = ("--output", "o", "--tokenizer", "byte")
COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def test_compressions(tmp_path):
    inputs = [write(tmp_path / f"in.jsonl{end}", compress(b'{"text": "%s"}\n' % end.encode()) + compress(b'{"text": "more"}'))
              for end, compress in COMPRESS.items()]
    assert byte_run(tmp_path, *inputs) == [b".gz", b"more", b".bz2", b"more", b".xz", b"more"]
    for path in inputs:
        write(path, path.read_bytes()[:-9])
        assert path.name in tokenize(path, *OUT, code=3, cwd=tmp_path)


def test_names_that_promise_another_compression(tmp_path):
    write(tmp_path / "a.jsonl", gzip.compress(b'{"text": "packed"}'))
    write(tmp_path / "b.csv.gz", "text\nplain\n")
    write(tmp_path / "c.txt.bz2", lzma.compress(b"other"))
    write(tmp_path / "empty.txt.xz", "")
    out = tokenize("a.jsonl", "b.csv.gz", "c.txt.bz2", "empty.txt.xz", *OUT, cwd=tmp_path)
    assert texts(tmp_path / "o") == [b"packed", b"plain", b"other"]
    assert "misnamed   'b.csv.gz', 'c.txt.bz2': " in out


def test_text_is_cut_at_blank_lines(tmp_path):
    write(tmp_path / "in.txt", "one\ntwo\n\nthree\n")
    assert "cut        text at blank lines, into 2 documents; hint: --document" in tokenize("in.txt", *OUT, cwd=tmp_path)
    assert "hint" not in tokenize("in.txt", *OUT, "--document", "paragraph", cwd=tmp_path)
    assert "blank lines" not in tokenize("in.txt", *OUT, "--document", "line", cwd=tmp_path)


MARKED = 'kind\ttext\n0\t"Yes," she said\n1\t"all of it"\n0\t5" wide\n'


def test_quotation_marks_in_tsv(tmp_path):
    path = write(tmp_path / "in.tsv", MARKED)
    assert byte_run(tmp_path, path) == [b'"Yes," she said', b'"all of it"', b'5" wide']
    out = tokenize(path, *OUT, "--completion", "kind,text", cwd=tmp_path)
    assert texts(tmp_path / "o")[1] == b'1"all of it"' and "quoting    1 rows of .tsv" in out
    assert "quoting" not in tokenize(path, *OUT, "--quoting", "none", cwd=tmp_path)
    error = tokenize(path, *OUT, "--quoting", "minimal", code=3, cwd=tmp_path)
    assert "in.tsv' line 2: " in error
    path = write(tmp_path / "in.tsv", 'text\tid\n"a\nb ""c"""\t1\n')
    assert "line 2: 1 columns, expected at least 2; hint: --quoting minimal" in tokenize(
        path, *OUT, "--fields", "id", code=3, cwd=tmp_path)
    assert byte_run(tmp_path, path, arguments=("--quoting", "minimal")) == [b'a\nb "c"']
    path = write(tmp_path / "in.csv", 'text\n"a\n')
    assert byte_run(tmp_path, path, arguments=("--quoting", "none")) == [b'"a']
    path = write(tmp_path / "in.tsv", '"text"\t"id"\n"a"\t"1"\n')
    assert "hint: --quoting minimal" in tokenize(path, *OUT, code=3, cwd=tmp_path)
    assert "--quoting goes with" in tokenize(write(tmp_path / "in.txt", "a"), *OUT, "--quoting", "none", code=2, cwd=tmp_path)


@pytest.mark.parametrize("form", [
    ["--fields", "a"], ["--label", "b", "--fields", "a"], ["--completion", "b,a"], ["--fields", "1"]], ids=" ".join)
def test_lines_of_errors_in_csv(tmp_path, form):
    write(tmp_path / "in.csv", 'a,b\n\n"two\nlines",1\nx,2\n"a mark" too much,3\nz,4\n')
    assert "in.csv' line 6: " in tokenize("in.csv", *OUT, *form, code=3, cwd=tmp_path)
    write(tmp_path / "in.csv", 'a,b\n1,2\n"never closed,1\nx,2\ny,3\n')
    assert "in.csv' line 3: " in tokenize("in.csv", *OUT, *form, code=3, cwd=tmp_path)


def test_folders_of_data_sets(tmp_path):
    folder = tmp_path / "set"
    (folder / "data").mkdir(parents=True)
    write(folder / "README.md", "# A card\n")
    write(folder / "dataset_infos.json", "{}")
    write(folder / "LICENSE", "Permission is granted")
    write(folder / "data" / "train.jsonl", '{"text": "row"}\n')
    out = tokenize("set", *OUT, cwd=tmp_path)
    assert texts(tmp_path / "o") == [b"Permission is granted", b"row"]
    assert "left out   'set/README.md', 'set/dataset_infos.json': no data" in out
    out = tokenize("set", *OUT, "--fields", "text", cwd=tmp_path)
    assert texts(tmp_path / "o") == [b"row"] and "'set/LICENSE'" in out
    assert byte_run(tmp_path, folder / "README.md") == [b"# A card"]  # named, it is an input like others
    os.mkdir(folder / "dev")
    for name in ("train-0.jsonl", "Test-0.jsonl", "dev/0.jsonl", "latest.jsonl"):
        write(folder / name, '{"text": "a"}')
    out = tokenize("set", *OUT, cwd=tmp_path)
    assert "taken      'set/Test-0.jsonl', 'set/dev/0.jsonl': not for training" in out
    assert "taken" not in tokenize("set/dev", *OUT, cwd=tmp_path)
    shutil.rmtree(folder / "dev")
    for name in ("train-0.jsonl", "Test-0.jsonl", "latest.jsonl"):
        os.unlink(folder / name)
    # of text a README.md is a part, unless it begins as a card does
    os.unlink(folder / "data" / "train.jsonl")
    assert byte_run(tmp_path, folder) == [b"Permission is granted", b"# A card"]
    write(folder / "README.md", "---\nlicense: mit\n---\n")
    assert byte_run(tmp_path, folder) == [b"Permission is granted"]


def test_folders_with_several_splits(tmp_path):
    for split in ("train", "test"):
        (tmp_path / "set" / split).mkdir(parents=True)
        write(tmp_path / "set" / split / "data.jsonl", '{"text": "%s"}' % split)
    write(tmp_path / "set" / "dataset_dict.json", '{"splits": ["train", "test"]}')
    assert "'set' holds 2 data sets: train, test; hint: name one of them: set/train" in tokenize(
        "set", *OUT, code=2, cwd=tmp_path)
    assert byte_run(tmp_path, tmp_path / "set" / "test") == [b"test"]
    write(tmp_path / "set" / "dataset_dict.json", "[")  # of something else
    assert byte_run(tmp_path, tmp_path / "set") == [b"test", b"train"]


@pytest.mark.parametrize("text", ["[" * 3000, '{"a":' * 3000, "[" * 3000 + "]" * 3000])
def test_deep_brackets(tmp_path, text):
    for row in (text, '{"text": %s}' % text):
        assert "in.jsonl' line 1: " in tokenize(write(tmp_path / "in.jsonl", row), *OUT, code=3, cwd=tmp_path)


# --- documents that are too long --------------------------------------------------------------------------------------

def run_with_limit(limit, *arguments, cwd):
    """Runs the script with another limit on the bytes of a line or document."""
    code = (f"import importlib.util, sys\nsys.argv = ['tokenize.py', *{list(map(str, arguments))!r}]\n"
            f"found = importlib.util.spec_from_file_location('script', {SCRIPT!r})\n"
            "script = importlib.util.module_from_spec(found)\nfound.loader.exec_module(script)\n"
            f"import tokenization.inputs\ntokenization.inputs.LONGEST = {limit}\nsys.exit(script.main())")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=cwd)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_lines_and_documents_beyond_the_limit(tmp_path):
    write(tmp_path / "in.txt", "short\n\n" + "x" * 900 + "\n" + "y" * 200)
    write(tmp_path / "in.jsonl", '{"text": "a"}\n{"text": "%s"}\n' % ("x" * 1000))
    assert run_with_limit(1000, "in.jsonl", *OUT, cwd=tmp_path) == (
        3, "ztrain-tokenize: error: 'in.jsonl' line 2 is longer than 1,000 bytes; hint: cut it into several documents\n")
    assert run_with_limit(800, "in.txt", *OUT, "--document", "line", cwd=tmp_path)[1].startswith(
        "ztrain-tokenize: error: 'in.txt' line 3 is longer than 800 bytes")
    for unit in ("paragraph", "file"):
        code, error = run_with_limit(1000, "in.txt", *OUT, "--document", unit, cwd=tmp_path)
        assert code == 3 and "a document of 'in.txt' is longer than 1,000 bytes" in error
    assert run_with_limit(1200, "in.txt", *OUT, cwd=tmp_path) == (0, "")


def test_too_little_memory(tmp_path):
    write(tmp_path / "in.jsonl", b'{"text": "%s"}' % (b"x" * (100 << 20)))
    error = tokenize("in.jsonl", *OUT, "--workers", "1", code=3, cwd=tmp_path,
                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20)))
    assert "out of memory" in error and os.listdir(tmp_path) == ["in.jsonl"]


# --- streams and machines ---------------------------------------------------------------------------------------------

def shell(command, tmp_path, code=0):
    command = command.replace("TOKENIZE", f"{sys.executable} {SCRIPT}")
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == code and "Traceback" not in done.stderr and "Exception" not in done.stderr, done
    return done


@pytest.mark.parametrize("streams", ["2>&-", ">&-", "<&- >&- 2>&-", "| true", "2>&1 | true"])
def test_streams_that_lead_nowhere(tmp_path, streams):
    write(tmp_path / "in.jsonl", '{"p": "a", "c": "%s"}\n{"p": "b", "c": "d"}' % ("é" * 5000))  # the sample is shown
    shell(f"TOKENIZE in.jsonl --output o --tokenizer byte --completion p,c {streams}", tmp_path)
    assert texts(tmp_path / "o") == [b"a" + "é".encode() * 5000, b"bd"]
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl", "o.bin", "o.idx", "o.mask"]


def test_errors_without_a_reader(tmp_path):
    shell("TOKENIZE --help | true", tmp_path)
    shell("TOKENIZE none.txt --output o --tokenizer byte 2>&-", tmp_path, code=3)
    write(tmp_path / "in.txt", "a")
    done = shell("TOKENIZE in.txt --output o --tokenizer byte > /dev/full", tmp_path, code=3)
    assert "cannot write to standard output: No space left on device" in done.stderr and texts(tmp_path / "o") == [b"a"]


def test_a_locale_without_the_characters(tmp_path):
    write(tmp_path / "in.jsonl", '{"p": "a", "c": "é"}')
    done = shell("LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 TOKENIZE in.jsonl --output o --tokenizer byte --completion p,c",
                 tmp_path)
    assert "a\\u27e6\\xe9\\u27e7" in done.stdout.replace("<256>", "")


def test_machines_without_semaphores(tmp_path):
    """As where /dev/shm is read-only."""
    lines, path = many_lines(tmp_path)
    (tmp_path / "site").mkdir()
    write(tmp_path / "site" / "sitecustomize.py",
          "import _multiprocessing\nclass SemLock(_multiprocessing.SemLock):\n"
          "    def __new__(cls, *_): raise OSError(30, 'Read-only file system')\n_multiprocessing.SemLock = SemLock\n")
    tokenize(path, *OUT, "--document", "line", "--workers", 2, cwd=tmp_path,
             env={**os.environ, "PYTHONPATH": str(tmp_path / "site")})
    assert texts(tmp_path / "o") == lines


def test_a_worker_that_dies(tmp_path):
    write(tmp_path / "in.txt", b"some words in a line\n\n" * 3000000)
    process = subprocess.Popen([sys.executable, SCRIPT, "in.txt", *OUT, "--workers", "2"], cwd=tmp_path, stderr=subprocess.PIPE,
                               text=True, start_new_session=True)
    os.kill(wait_until(lambda: children(process.pid), what="workers")[0], signal.SIGKILL)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 3 and "a worker process died" in error and "Traceback" not in error
    assert os.listdir(tmp_path) == ["in.txt"]


def test_names_from_outside_are_escaped(tmp_path):
    error = tokenize(write(tmp_path / "in.csv", "\033[2Jname,b\n1,2\n"), *OUT, code=3, cwd=tmp_path)
    assert "\033" not in error and "\\x1b[2Jname, b" in error
    error = tokenize(write(tmp_path / "in.csv", "x" * 100000 + ",y\n1,2\n"), *OUT, code=3, cwd=tmp_path)
    assert "xxx…, y; hint" in error and len(error) < 500
    write(tmp_path / "new\nline\u202e.txt", "text")
    error = tokenize(write(tmp_path / "new\nline\u202e.jsonl", "{"), *OUT, code=3, cwd=tmp_path)
    assert error.count("\n") == 1 and "'new\\nline\\u202e.jsonl'" in error.replace(str(tmp_path) + "/", "")


# --- what needs packages ----------------------------------------------------------------------------------------------

@pytest.mark.interop
def test_columns_of_tables_that_are_not_text(tmp_path):
    import pyarrow
    import pyarrow.parquet
    table = pyarrow.table({
        "bytes": [b"spark \xc3\xa9", b"not \xff"], "day": [datetime.date(2024, 2, 29)] * 2,
        "time": [datetime.datetime(2024, 2, 29, 12, 30)] * 2, "price": [decimal.Decimal("1.50"), decimal.Decimal("-2.00")],
        "whole": pyarrow.array([decimal.Decimal(10**37), decimal.Decimal(0)], pyarrow.decimal128(38, 0)),
        "nano": pyarrow.array([1, 2], pyarrow.timestamp("ns")), "word": pyarrow.array(["a", "b"]).dictionary_encode(),
        "list": [[1], []], "nothing": [None, None]})
    pyarrow.parquet.write_table(table, tmp_path / "in.parquet")
    path = tmp_path / "in.parquet"

    def run(fields, *more):
        return byte_run(tmp_path, path, arguments=("--fields", fields, *more))

    assert run("bytes,day") == ["spark é 2024-02-29".encode(), b"not \xff 2024-02-29"]
    assert run("time,price,nothing,word") == [b"2024-02-29 12:30:00 1.50  a", b"2024-02-29 12:30:00 -2.00  b"]
    for label, shown in (("day", "1 (2024-02-29: 2)"), ("whole", "2 (0: 1, 1" + "0" * 37 + ": 1)"), ("bytes", "not \ufffd: 1")):
        assert shown in tokenize(path, *OUT, "--fields", "word", "--label", label, cwd=tmp_path)
    assert "the label 'price' is \"1.50\", expected" in tokenize(
        path, *OUT, "--fields", "word", "--label", "price", code=3, cwd=tmp_path)
    assert "row 1: field 'list' is a list" in tokenize(path, *OUT, "--fields", "list", code=3, cwd=tmp_path)
    old = pyarrow.table({"text": ["a"], "when": pyarrow.array([10**9], pyarrow.date32())})  # a year that Python does not know
    pyarrow.parquet.write_table(old, path)
    assert byte_run(tmp_path, path) == [b"a"]
    assert "cannot read" in tokenize(path, *OUT, "--fields", "when", code=3, cwd=tmp_path)
    twice = pyarrow.table([["a"], ["b"]], names=["text", "text"])
    pyarrow.parquet.write_table(twice, path)
    assert byte_run(tmp_path, path) == [b"a"]


@pytest.mark.interop
def test_arrow(tmp_path):
    import pyarrow
    import pyarrow.parquet
    folder = tmp_path / "saved"
    folder.mkdir()
    tables = {name: pyarrow.table({"text": [f"{name} {i}" for i in range(3)]}) for name in ("b", "a", "cache")}
    for name, table in tables.items():
        with pyarrow.ipc.new_stream(str(folder / f"{name}.arrow"), table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    write(folder / "dataset_info.json", "{}")
    write(folder / "state.json", json.dumps({"_data_files": [{"filename": "b.arrow"}, {"filename": "a.arrow"}]}))
    assert byte_run(tmp_path, folder) == [b"b 0", b"b 1", b"b 2", b"a 0", b"a 1", b"a 2"]
    with pyarrow.ipc.new_file(str(tmp_path / "in.arrow"), tables["a"].schema) as file:
        file.write_table(tables["a"])
    assert byte_run(tmp_path, tmp_path / "in.arrow") == [b"a 0", b"a 1", b"a 2"]
    packed = write(tmp_path / "in.arrow.gz", gzip.compress((folder / "a.arrow").read_bytes()))
    assert byte_run(tmp_path, packed) == [b"a 0", b"a 1", b"a 2"]
    pyarrow.parquet.write_table(tables["b"], tmp_path / "in.parquet")
    packed = write(tmp_path / "in.parquet.xz", lzma.compress((tmp_path / "in.parquet").read_bytes()))
    assert byte_run(tmp_path, packed) == [b"b 0", b"b 1", b"b 2"]
    os.unlink(folder / "a.arrow")
    assert "state.json' names 'a.arrow', which is not there" in tokenize(folder, *OUT, code=3, cwd=tmp_path)
    whole = (folder / "b.arrow").read_bytes()
    for data in (b"", b"ARROW1\0\0", b"nonsense" * 9, whole[:200], whole[:-60]):
        assert "cannot read 'in.arrow" in tokenize("in.arrow", *OUT, code=3, cwd=write(tmp_path / "in.arrow", data).parent)


@pytest.mark.interop
def test_zstd_with_a_long_window_or_cut_off(tmp_path):
    import zstandard
    long = zstandard.ZstdCompressionParameters.from_level(3, window_log=27 + 3, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=long).compressobj()  # its length is not in it
    skipped = b"\x5a\x2a\x4d\x18\x03\0\0\0abc"
    whole = skipped + compressor.compress(b"one\n\n") + compressor.flush() + zstandard.compress(b"two" * 50000)
    path = write(tmp_path / "in.txt.zst", whole)
    assert byte_run(tmp_path, path) == [b"one", b"two" * 50000]
    assert byte_run(tmp_path, write(tmp_path / "in.txt", whole)) == [b"one", b"two" * 50000]
    for cut in (9, len(skipped) + 8, len(whole) - 1):
        assert "in.txt.zst" in tokenize(write(path, whole[:cut]), *OUT, code=3, cwd=tmp_path)


def chat_folder(folder, template):
    """A folder with a tokenizer of one word, and a chat template."""
    import tokenizers
    folder.mkdir()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "</s>": 1}, unk_token="<unk>"))
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder / "chat_template.jinja", template)


@pytest.mark.interop
def test_conversations_that_are_odd(tmp_path):
    chat_folder(tmp_path / "chat", "{% for m in messages %}{{ m.role }} {{ m.content }} {{ tools | tojson }}{% endfor %}")
    arguments = ("in.jsonl", "--output", "o", "--tokenizer", "chat", "--chat-template")
    deep = "[" * 900 + "]" * 900  # Python reads it, and writes it or not, whatever it has called by then
    write(tmp_path / "in.jsonl", '{"messages": [{"role": "assistant", "content": "a"}], "tools": %s}' % deep)
    done = subprocess.run([sys.executable, SCRIPT, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 3) and "Traceback" not in done.stderr
    for row, words in (('{"messages": "%s"}' % ("[" * 3000), "line 1: 'messages' is text, and not JSON"),
                       ('{"messages": [], "tools": "%s"}' % ("[" * 3000), "line 1: 'tools' is text, and not JSON"),
                       ('{"messages": [{"role": "\\u001b[31mbot", "content": "a"}]}', "\\x1b[31mbot")):
        error = tokenize(*arguments, code=3, cwd=write(tmp_path / "in.jsonl", row).parent)
        assert words in error and "\033" not in error


@pytest.mark.interop
def test_a_template_that_loops_ends_at_a_signal(tmp_path):
    loops = "{% for i in range(90000) %}" * 4 + "{% set x = i %}" + "{% endfor %}" * 4
    chat_folder(tmp_path / "chat", loops)
    write(tmp_path / "in.jsonl", '{"messages": [{"role": "user", "content": "a"}]}')
    process = subprocess.Popen([sys.executable, SCRIPT, "in.jsonl", "--output", "o", "--tokenizer", "chat", "--chat-template",
                                "--workers", "1"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(lambda: children(process.pid), what="a worker")
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 143 and "interrupted, nothing written" in error and "Traceback" not in error
    assert sorted(os.listdir(tmp_path)) == ["chat", "in.jsonl"]

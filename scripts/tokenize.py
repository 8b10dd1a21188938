#!/usr/bin/env python3
"""Turns text and conversations into token shards for ztrain: PREFIX.bin and PREFIX.idx (Megatron-LM's format), and for
conversations PREFIX.mask, which says what is learned from.

One process reads the inputs and cuts them into documents. It sends batches of documents to several worker processes, which
tokenize them and sort them into training and validation, and writes the results in order. At most a few batches per worker
are under way, so memory stays bounded however large the inputs are (the length of each document, 4 bytes, is kept until the
index is written). Everything is written under temporary names and renamed at the end, so a shard that exists is whole.

It needs Python 3.9 or newer and the standard library only; the package `tokenizers` if --tokenizer names a folder, `jinja2`
for chat templates (chat_template.py, beside this file), `pyarrow` for parquet, `zstandard` for .zst files.
"""
import os
import sys

# A module of the standard library has this file's name, and many others import it: keep this folder off the path, and if a
# neighbouring script has imported this file instead of that module, replace it by the right one.
sys.path[:] = [p for p in sys.path if os.path.realpath(p or ".") != os.path.dirname(os.path.realpath(__file__))]
if __name__ == "tokenize":
    import importlib

    del sys.modules["tokenize"]
    importlib.import_module("tokenize")

import argparse
import array
import collections
import concurrent.futures
import csv
import gzip
import hashlib
import importlib.util
import io
import itertools
import json
import multiprocessing
import signal
import struct
import threading
import time
import zlib

USAGE, DATA = 2, 3  # exit codes, those of ztrain

DESCRIPTION = """\
Turn text into token shards for ztrain: PREFIX.bin and PREFIX.idx (Megatron-LM's format), and, with --validation,
PREFIX-validation.bin and .idx. Conversations and completions get a loss mask as well, PREFIX.mask, and documents with
--label their labels, PREFIX.labels."""

DETAILS = """\
inputs
  The end of a file's name determines its kind (each may be followed by .gz or .zst):
    .jsonl .ndjson .json   an object on each line, each one document; or a JSON array of them
    .csv .tsv              a row is a document
    .parquet               a row is a document
    any other              text, cut by --document
  A folder stands for all files in it and below, sorted by name; hidden and binary files in it are skipped.

documents
  Empty documents are left out. In text files a document is
    --document paragraph   the text between blank lines (the default)
    --document line        a line
    --document file        a whole file
  In jsonl, csv and parquet files --fields chooses the fields that are the text, joined by a blank:
    --fields title,description   names: keys of the objects, or columns that the csv file's first row names
    --fields 2,3                 numbers: columns from 1 of a csv file without such a row
  Without --fields the text is the field "text".
  --max-length N cuts documents after N tokens.

conversations
  --chat-template takes the field "messages" of each object, a list of {"role": "user", "content": "…"} ("conversations"
  with "from" and "value" works as well; --fields names another), renders it with the chat template of the tokenizer folder
  (chat_template.jinja, or chat_template in tokenizer_config.json), and marks in PREFIX.mask what the assistant said: by the
  template's {% generation %} blocks if it has them, else all turns of the role "assistant" with the token that ends them.
  "tools" and "documents" of an object go to the template. Conversations in which the assistant says nothing are dropped.
  --completion PROMPT,COMPLETION names two fields; the document is one after the other, and the completion with the
  end-of-text token is what is learned from.
  A sample is shown at the end, with what is learned from in green (or between ⟦ and ⟧).

labels
  --label COLUMN is for classification (model.task: sequence_classification): each row is a document with a label, and
  --fields names one text or a pair of texts (default: text); --label 1 --fields 2,3 are columns of a csv file without names. Labels are the numbers from 0 on, or else texts, which are
  sorted and numbered; PREFIX.labels has the number of each document, PREFIX.labels.json the names. A document has the
  special tokens that the tokenizer adds to a text or a pair, and no others; PREFIX.types has the segment of each token of
  a pair. --max-length cuts the longer text first and keeps the special tokens. --labels-from PREFIX gives a second file,
  such as the validation data, the numbers of the first.

special tokens
  --special auto   what the tokenizer itself adds to a text, and the end-of-text token after each document if that is not
                   among it; with --chat-template nothing: the template has them (the default)
  --special none   nothing; bos, eos, both: the one that begins a text, the end-of-text token, or both, once

tokenizers
  byte   256 bytes and the end-of-text token 256 (vocab_size 257); no files are needed
  DIR    a Hugging Face folder with tokenizer.json, or with vocab.json and merges.txt (GPT-2's kind); needs the Python
         package "tokenizers". The end-of-text token is the folder's eos token; --end-of-text names another.
  NAME   a model in the local Hugging Face cache, such as Qwen/Qwen2.5-0.5B; nothing is downloaded
  The summary at the end has the smallest vocab_size that the model needs. Tokens are stored as uint16 where the
  vocabulary has at most 65,536 entries, as int32 otherwise.

validation
  --validation 0.02 puts about 2 % of the documents into PREFIX-validation instead of PREFIX. A hash of its text decides
  for each document, so every run decides alike, and equal documents are never on both sides.

examples
  scripts/tokenize.py book.txt --output data/book --tokenizer byte --validation 0.05
  scripts/tokenize.py /usr/include --output data/headers --tokenizer byte --document file
  scripts/tokenize.py ag_news.csv --fields 2,3 --output data/news --tokenizer models/gpt2 --validation 0.02
  scripts/tokenize.py chats.jsonl --chat-template --output data/chats --tokenizer models/llama-instruct
  scripts/tokenize.py mrpc.jsonl --label label --fields sentence1,sentence2 --output data/mrpc --tokenizer models/bert
  scripts/tokenize.py part-*.jsonl.gz --fields text --output data/web --tokenizer models/llama --workers 16

exit codes
  0 done; 2 wrong usage (or the package is missing); 3 an input or tokenizer cannot be read or is damaged;
  130 or 143 interrupted by SIGINT or SIGTERM
"""

BATCH_BYTES = 1 << 20  # of text in a batch, which goes to one worker
BATCH_DOCUMENTS = 4096
MAX_DOCUMENT = 2**31 - 1  # tokens; the index has 32 bits for it
LFS_POINTER = b"version https://git-lfs"
EOS_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<|im_end|>", "<eos>", "[EOS]", "<|eot_id|>")


class Failure(Exception):
    """What is wrong, in one line, and the exit code that it has."""

    def __init__(self, code, message):
        super().__init__(code, message)
        self.code, self.message = code, message


class Interrupt:
    """SIGINT and SIGTERM, noticed between batches: an exception out of a signal handler could leave the process pool
    with a lock held, and its shutdown would wait forever. A second signal ends the process at once."""

    number = 0

    def notice(self, number, _):
        self.number = number
        signal.signal(number, signal.SIG_DFL)

    def check(self):
        if self.number:
            raise Failure(128 + self.number, "interrupted, nothing written")


interrupt = Interrupt()


# ---- inputs: files to documents -----------------------------------------------------------------------------------


def kind_of(path):
    end = os.path.splitext(bare_name(path))[1]
    return {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "csv",
            ".parquet": "parquet"}.get(end, "text")


def bare_name(path):
    """The name in lower case, without the ending of a compression."""
    name = path.lower()
    for end in (".gz", ".zst"):
        if name.endswith(end):
            return name[: -len(end)]
    return name


def refuse_pointer(path, start):
    if start.startswith(LFS_POINTER):
        raise Failure(DATA, f"'{path}' is a Git LFS pointer, not the file that it stands for; hint: git lfs pull")


def is_binary(path):
    if kind_of(path) == "parquet":
        return False
    try:
        with open_input(path) as file:
            return b"\0" in file.read(8192)
    except (OSError, EOFError, zlib.error):
        return False  # reading it will report the error
    except zstd_errors():
        return False


def find_files(inputs):
    """The files that `inputs` stand for, in order: [(path, bytes)]; and how many binary ones were skipped."""
    files, skipped = [], 0
    for name in inputs:
        if os.path.isdir(name):
            for folder, folders, names in os.walk(name):
                folders[:] = sorted(d for d in folders if not d.startswith("."))
                for path in (os.path.join(folder, n) for n in sorted(names) if not n.startswith(".")):
                    if not os.path.isfile(path):
                        continue
                    if is_binary(path):
                        skipped += 1
                    else:
                        files.append((path, os.path.getsize(path)))
        elif not os.path.exists(name):
            raise Failure(DATA, f"cannot open '{name}': no such file or folder")
        elif not os.path.isfile(name):
            raise Failure(DATA, f"'{name}' is not a regular file")
        elif is_binary(name):
            raise Failure(DATA, f"'{name}' is not text: it has zero bytes")
        else:
            files.append((name, os.path.getsize(name)))
    if not files:
        raise Failure(DATA, "no text file in " + ", ".join(f"'{name}'" for name in inputs))
    return files, skipped


def zstd_module():
    """A module with ZstdFile or ZstdDecompressor: that of Python 3.14, or the package zstandard; None: there is none."""
    for name in ("compression.zstd", "zstandard"):
        try:
            return importlib.import_module(name)
        except ImportError:
            pass
    return None


def zstd_errors():
    return getattr(zstd_module(), "ZstdError", ())


def open_input(path, raw=None):
    raw = raw or open(path, "rb")
    if path.lower().endswith(".gz"):
        return gzip.GzipFile(fileobj=raw)
    if not path.lower().endswith(".zst"):
        return raw
    module = zstd_module()
    if module is None:
        raise Failure(USAGE, f"'{path}' needs the Python package 'zstandard'; hint: pip install zstandard")
    if hasattr(module, "ZstdFile"):
        return io.BufferedReader(module.ZstdFile(raw))
    return io.BufferedReader(module.ZstdDecompressor().stream_reader(raw, read_across_frames=True))


def text_documents(file, unit):
    """Cuts a text (bytes) into documents."""
    if unit == "file":
        yield file.read()
        return
    paragraph = []
    for line in file:
        line = line.rstrip(b"\r\n")
        if unit == "line":
            yield line
        elif line.strip():
            paragraph.append(line)
        elif paragraph:
            yield b"\n".join(paragraph)
            paragraph = []
    if paragraph:
        yield b"\n".join(paragraph)


def field_text(value, where):
    if value is None:
        return ""
    if isinstance(value, (dict, list)):
        raise Failure(DATA, f"{where} is a {'list' if isinstance(value, list) else 'JSON object'}, expected text")
    return value if isinstance(value, str) else json.dumps(value)


def json_rows(file, path):
    """Yields (place, object) for each line, or for each element if the file is one array."""
    if bare_name(path).endswith(".json") and file.peek(1024).lstrip()[:1] == b"[":
        try:
            rows = json.loads(file.read())
        except (ValueError, RecursionError) as error:
            raise Failure(DATA, f"'{path}': not JSON ({error}); expected an array of objects, or an object on each line")
        for number, row in enumerate(rows, 1):
            yield f"'{path}' element {number}", row
        return
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            yield f"'{path}' line {number}", json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Failure(DATA, f"'{path}' line {number}: not JSON ({error}); expected an object on each line")


def parquet_rows(file, path, advance):
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise Failure(USAGE, f"'{path}' needs the Python package 'pyarrow'; hint: pip install pyarrow")
    try:
        table = pyarrow.parquet.ParquetFile(file)
        number, total = 0, table.metadata.num_rows
        for batch in table.iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
                yield f"'{path}' row {number}", row
            advance(number / max(total, 1))
    except pyarrow.ArrowException as error:
        raise Failure(DATA, f"cannot read '{path}': {' '.join(str(error).split())}")


def csv_rows(file, path):
    """Yields (place, {column: text}) of a csv file whose first row has names."""
    csv.field_size_limit(2**31 - 1)
    text = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="")
    rows = csv.DictReader(text, delimiter="\t" if bare_name(path).endswith(".tsv") else ",", strict=True)
    try:
        for row in rows:
            yield f"'{path}' line {rows.line_num}", row
    except csv.Error as error:
        raise Failure(DATA, f"'{path}' line {rows.line_num}: {error}")


def check_row(where, row, fields, option):
    if not isinstance(row, dict):
        raise Failure(DATA, f"{where}: expected a JSON object")
    for field in fields:
        if field not in row:
            raise Failure(DATA, f"{where}: no field '{field}'; it has: "
                                + (", ".join(list(map(str, row))[:12]) or "none") + f"; hint: {option}")


def row_documents(rows, fields):
    """The texts of rows of any kind."""
    for where, row in rows:
        check_row(where, row, fields, "--fields NAME,NAME")
        texts = [field_text(row[f], f"{where}: field '{f}'") for f in fields]
        text = " ".join(texts) if any(texts) else ""  # a document of blanks only is left out
        yield text.encode("utf-8", "replace")  # JSON can hold half a surrogate pair, UTF-8 cannot


def completion_documents(rows, fields):
    """Pairs as JSON: [prompt, completion]."""
    for where, row in rows:
        check_row(where, row, fields, "--completion PROMPT,COMPLETION")
        yield json.dumps([field_text(row[f], f"{where}: field '{f}'") for f in fields]).encode()


def label_documents(rows, fields, label):
    """Rows with a label as JSON: [label, text] or [label, text, text]."""
    for where, row in rows:
        check_row(where, row, [label], "--label NAME")
        check_row(where, row, fields, "--fields NAME or NAME,NAME")
        value = row[label]
        if isinstance(value, bool) or not isinstance(value, (int, str)) or value == "":
            raise Failure(DATA, f"{where}: the label '{label}' is {json.dumps(value)}, expected text or a whole number")
        yield json.dumps([str(value)] + [field_text(row[f], f"{where}: field '{f}'") for f in fields]).encode()


CHAT_MEMBERS = ("tools", "documents", "chat_template_kwargs")


def chat_documents(rows, field):
    """Conversations as JSON: [place, {"messages": …, "tools": …}]. field None: messages, or conversations."""
    for where, row in rows:
        name = field or ("messages" if not isinstance(row, dict) or "messages" in row else "conversations")
        check_row(where, row, [name if field or name in row else "messages"], "--fields NAME")
        chat = {"messages": row[name]}
        for member in CHAT_MEMBERS:
            chat[member] = row.get(member)
        for member, value in chat.items():  # data sets of one schema hold such values as text
            if isinstance(value, str):
                try:
                    chat[member] = json.loads(value)
                except ValueError:
                    raise Failure(DATA, f"{where}: '{member}' is text, and not JSON")
        if not isinstance(chat["messages"], list):
            raise Failure(DATA, f"{where}: '{name}' is not a list of messages")
        yield json.dumps([where, chat], default=str).encode()


def csv_columns(file, path, fields):
    """(place, texts) of rows whose columns are named by the first row or, if fields are numbers, counted from 1."""
    csv.field_size_limit(2**31 - 1)
    tabs = bare_name(path).endswith(".tsv")
    text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
    rows = csv.reader(text, delimiter="\t" if tabs else ",", strict=True)
    columns = [int(f) - 1 for f in fields] if all(f.isdecimal() for f in fields) else None
    try:
        if columns is None:
            header = next(rows, [])
            for field in fields:
                if field not in header:
                    raise Failure(DATA, f"'{path}': no column '{field}' in the first row: "
                                        + (", ".join(header[:12]) or "it is empty")
                                        + "; hint: --fields NAME,NAME, or column numbers where there is no header")
            columns = [header.index(f) for f in fields]
        for row in rows:
            if not row:
                continue
            if len(row) <= max(columns):
                raise Failure(DATA, f"'{path}' line {rows.line_num}: {len(row)} columns, expected at least "
                                    f"{max(columns) + 1}")
            yield f"'{path}' line {rows.line_num}", [row[c] for c in columns]
    except csv.Error as error:
        raise Failure(DATA, f"'{path}' line {rows.line_num}: {error}")


def csv_documents(file, path, fields):
    for _, texts in csv_columns(file, path, fields):
        yield (" ".join(texts) if any(texts) else "").encode("utf-8", "surrogateescape")


def csv_label_documents(file, path, fields, label):
    """What label_documents gives, for columns by number."""
    columns = [label, *fields]
    rows = ((where, dict(enumerate(texts))) for where, texts in csv_columns(file, path, columns))
    return label_documents(rows, range(1, len(columns)), 0)


def documents_of(file, path, args, advance):
    """The documents of an open file, in the form that the encoder takes (Encoder.read)."""
    kind = kind_of(path)
    if kind == "text":
        if args.form != "text":
            raise Failure(USAGE, f"'{path}' is text; --chat-template, --completion and --label take .jsonl, .json, .csv and .parquet")
        return text_documents(file, args.document)
    if kind == "csv" and args.form == "text":
        return csv_documents(file, path, args.fields)
    if kind == "csv" and args.form == "label" and args.label.isdecimal():
        return csv_label_documents(file, path, args.fields, args.label)
    rows = {"jsonl": json_rows, "csv": csv_rows}[kind](file, path) if kind != "parquet" else parquet_rows(file, path, advance)
    if args.form == "chat":
        return chat_documents(rows, args.fields[0] if args.fields_given else None)
    if args.form == "label":
        return label_documents(rows, args.fields, args.label)
    return (completion_documents if args.form == "completion" else row_documents)(rows, args.fields)


def documents(files, args, progress):
    """All documents of all files."""
    for path, size in files:
        try:
            with open(path, "rb") as raw:
                refuse_pointer(path, raw.peek(len(LFS_POINTER)))
                file = open_input(path, raw)
                if file.peek(3)[:3] == b"\xef\xbb\xbf":  # a byte order mark is not text
                    file.read(3)
                through = kind_of(path) == "parquet"  # it is not read from its beginning to its end

                def advance(share):
                    progress.position = progress.done + int(share * size)

                for document in documents_of(file, path, args, advance):
                    if not through:
                        progress.position = progress.done + raw.tell()
                    yield document
        except zstd_errors() as error:
            raise Failure(DATA, f"cannot read '{path}': {error}")
        except (OSError, EOFError, zlib.error) as error:
            raise Failure(DATA, f"cannot read '{path}': {getattr(error, 'strerror', None) or error}")
        progress.done += size
        progress.position = progress.done


def batches(items):
    batch, size = [], 0
    for item in items:
        interrupt.check()
        batch.append(item)
        size += len(item)
        if size >= BATCH_BYTES or len(batch) >= BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


# ---- tokenizers ---------------------------------------------------------------------------------------------------


class ByteTokenizer:
    """A token per byte."""

    vocabulary, end, begin, replaced = 257, 256, None, 0
    own = ([], [])  # tokens that the tokenizer itself puts before and after a text
    special_texts = ()

    def encode(self, texts):
        """Token arrays of documents, without the end-of-text token."""
        for text in texts:
            wide = bytearray(2 * len(text))
            wide[0 if sys.byteorder == "little" else 1 :: 2] = text
            ids = array.array("H")
            ids.frombytes(wide)
            yield ids

    def encode_labelled(self, rows, special, max_length):
        """(token array, segment of each token, whether it was cut) of [text] or [text, text]: the end-of-text token stands
        between two texts."""
        for row in rows:
            texts = [text.encode("utf-8", "replace") for text in row]
            between = [self.end] if special and len(texts) == 2 else []
            whole = sum(map(len, texts)) + len(between)
            while max_length and sum(map(len, texts)) + len(between) > max_length:  # the longer one, else the last one
                longest = 0 if len(texts) == 1 or len(texts[0]) > len(texts[1]) else 1
                texts[longest] = texts[longest][:-1]
            ids = array.array("H", itertools.chain(texts[0], between, *texts[1:]))
            first = len(texts[0]) + len(between)
            yield ids, bytes(first) + bytes([1]) * (len(ids) - first), len(ids) < whole

    def encode_marked(self, texts, spans):
        """(token array, mask) of each text (str), whose spans of characters (start, end) have 1 in the mask."""
        for text, marked in zip(texts, spans):
            mask, whole = bytearray(), text.encode("utf-8", "replace")
            for start, end in marked:
                first, last = (len(text[:n].encode("utf-8", "replace")) for n in (start, end))
                mask += bytes(first - len(mask)) + b"\1" * (last - first)
            yield next(self.encode([whole])), mask + bytes(len(whole) - len(mask))

    @staticmethod
    def decode(ids):
        return bytes(i for i in ids if i < 256).decode("utf-8", "replace") + "<256>" * (256 in ids)


class FolderTokenizer:
    """A tokenizer of Hugging Face's `tokenizers` package."""

    replaced = 0  # documents that were not UTF-8

    def __init__(self, folder, end_of_text, labelled):
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the worker processes are the parallelism
        try:
            import tokenizers
        except ImportError:
            raise Failure(USAGE, "--tokenizer DIR needs the Python package 'tokenizers'; hint: pip install tokenizers")
        whole, vocab, merges = (os.path.join(folder, n) for n in ("tokenizer.json", "vocab.json", "merges.txt"))
        for path in (whole, vocab, merges):
            if os.path.exists(path):
                with open(path, "rb") as file:
                    refuse_pointer(path, file.read(len(LFS_POINTER)))
        try:
            if os.path.exists(whole):
                self.tokenizer = tokenizers.Tokenizer.from_file(whole)
                self.tokenizer.no_truncation()
                self.tokenizer.no_padding()
            else:
                self.tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(vocab, merges))
                self.tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        except Exception as error:  # the package raises plain Exception
            raise Failure(DATA, f"cannot read the tokenizer in '{folder}': {' '.join(str(error).split())}")
        ids = self.tokenizer.get_vocab(with_added_tokens=True)
        self.vocabulary = max(ids.values(), default=-1) + 1
        if labelled:  # its own post-processor adds the special tokens, to pairs as well
            self.end, self.own, self.begin = None, ([], []), None
            return
        self.end = self.end_token(folder, ids, end_of_text)
        self.own = self.own_tokens(folder)
        begin = self.configured(folder, "bos_token")
        self.begin = ids.get(begin, self.own[0][0] if self.own[0] else None)
        added = self.tokenizer.get_added_tokens_decoder().values()
        self.special_texts = tuple(token.content for token in added if token.special)

    def own_tokens(self, folder):
        """The tokens that the tokenizer puts before and after a text. From here on it leaves them to the caller, and the
        offsets of its tokens are exact: some post-processors leave blanks out of them."""
        bare = self.tokenizer.encode("a", add_special_tokens=False).ids
        whole = self.tokenizer.encode("a").ids
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                self.tokenizer.post_processor = None
                return whole[:start], whole[start + len(bare) :]
        raise Failure(DATA, f"the tokenizer in '{folder}' changes a text when it adds special tokens; hint: --special none")

    @staticmethod
    def configured(folder, key):
        try:
            with open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8") as file:
                value = json.load(file).get(key)
        except (OSError, ValueError, AttributeError, RecursionError):
            return None
        return value.get("content") if isinstance(value, dict) else value

    def encode_labelled(self, rows, special, max_length):
        """(token array, segment of each token, whether it was cut) of [text] or [text, text], as the tokenizer's own
        post-processor puts them together."""
        if max_length:
            try:
                self.tokenizer.enable_truncation(max_length, strategy="longest_first")
            except Exception as error:  # too short for the special tokens
                raise Failure(USAGE, f"--max-length {max_length}: {' '.join(str(error).split())}")
        rows = [[text.encode("utf-8", "replace").decode() for text in row] for row in rows]
        texts = [tuple(row) if len(row) == 2 else row[0] for row in rows]
        for encoding in self.tokenizer.encode_batch(texts, add_special_tokens=special):
            types = bytes(encoding.type_ids)
            if types.strip(b"\0").strip(b"\1"):
                raise Failure(DATA, "the tokenizer's token types are not 0 in the first text and 1 in the second, which is "
                                    "not supported")
            yield array.array("i", encoding.ids), types, bool(encoding.overflowing)

    def encode_marked(self, texts, spans):
        """(token array, mask) of each text (str): a token has 1 in the mask if any of its characters is in a span."""
        texts = [text.encode("utf-8", "replace").decode() for text in texts]
        for encoding, marked in zip(self.tokenizer.encode_batch(texts, add_special_tokens=False), spans):
            mask, i = bytearray(len(encoding.ids)), 0
            for position, (start, end) in enumerate(encoding.offsets):
                while i < len(marked) and marked[i][1] <= start:
                    i += 1
                mask[position] = i < len(marked) and start < marked[i][1] and end > marked[i][0]
            yield array.array("i", encoding.ids), mask

    def decode(self, ids):
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    @staticmethod
    def end_token(folder, ids, name):
        if name is not None:
            if name not in ids:
                raise Failure(USAGE, f"--end-of-text '{name}' is not in the vocabulary of '{folder}'")
            return ids[name]
        for file, key in (("tokenizer_config.json", "eos_token"), ("special_tokens_map.json", "eos_token"),
                          ("generation_config.json", "eos_token_id"), ("config.json", "eos_token_id")):
            path = os.path.join(folder, file)
            if not os.path.exists(path):
                continue
            try:
                with open(path, encoding="utf-8") as opened:
                    value = json.load(opened).get(key)
            except (OSError, ValueError, AttributeError, RecursionError) as error:
                raise Failure(DATA, f"cannot read '{path}': {error}")
            if isinstance(value, dict):
                value = value.get("content")
            if isinstance(value, list) and value:
                value = value[0]
            if isinstance(value, str) and value in ids:
                return ids[value]
            if type(value) is int and 0 <= value < max(ids.values()) + 1:
                return value
        for name in EOS_NAMES:
            if name in ids:
                return ids[name]
        raise Failure(DATA, f"the tokenizer in '{folder}' names no end-of-text token; hint: --end-of-text TOKEN")

    def encode(self, texts):
        decoded = []
        for text in texts:
            try:
                decoded.append(text.decode())
            except UnicodeDecodeError:
                decoded.append(text.decode("utf-8", "replace"))
                self.replaced += 1
        for encoding in self.tokenizer.encode_batch(decoded, add_special_tokens=False):
            yield array.array("i", encoding.ids)


def find_folder(name):
    """A tokenizer folder, or the folder of a model in the local Hugging Face cache."""
    if os.path.isdir(name):
        return name
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface")
    cache = os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")
    model = os.path.join(cache, "models--" + name.replace("/", "--"))
    try:
        with open(os.path.join(model, "refs", "main"), encoding="ascii") as file:
            revision = file.read().strip()
    except (OSError, ValueError):
        raise Failure(DATA, f"no tokenizer folder '{name}', and no model of that name in the local cache '{cache}'; "
                            "hint: --tokenizer byte needs none")
    folder = os.path.join(model, "snapshots", revision)
    if not os.path.isdir(folder):
        raise Failure(DATA, f"the local cache names the snapshot '{folder}', which does not exist; hint: download the model again")
    return folder


def open_tokenizer(name, end_of_text, labelled=False):
    if name == "byte":
        if end_of_text is not None:
            raise Failure(USAGE, "--end-of-text goes with a tokenizer folder; the byte vocabulary's is 256")
        return ByteTokenizer()
    name = find_folder(name)
    have = [n for n in ("tokenizer.json", "vocab.json", "merges.txt") if os.path.exists(os.path.join(name, n))]
    if "tokenizer.json" not in have and len(have) < 2:
        raise Failure(DATA, f"'{name}' has neither tokenizer.json nor vocab.json and merges.txt")
    return FolderTokenizer(name, end_of_text, labelled)


# ---- work on a batch (in the workers) -----------------------------------------------------------------------------


def load_chat_template(folder):
    """The ChatTemplate of a folder, and its module: chat_template.py, beside this file."""
    path = os.path.join(os.path.dirname(os.path.realpath(__file__)), "chat_template.py")
    found = importlib.util.spec_from_file_location("chat_template", path)
    module = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
        return module, module.ChatTemplate(folder)
    except FileNotFoundError:
        raise Failure(USAGE, f"--chat-template needs '{path}'")
    except ImportError:
        raise Failure(USAGE, "--chat-template needs the Python package 'jinja2', 3.1 or newer; hint: pip install jinja2")
    except module.ChatError as error:
        raise Failure(DATA, str(error))


ROLE = "role "  # begins the name of the count of conversations without anything to learn in which a role speaks


def role_names(key):
    """The names of counts for the roles of a conversation, which is given as JSON."""
    roles = {message.get("role", message.get("from")) for message in json.loads(key)["messages"] if isinstance(message, dict)}
    return {ROLE + str(role)[:32] for role in roles}


def roles_shown(counts):
    """"; the roles in them: bot, user", as those conversations have them for which role_names() was called."""
    roles = sorted(name[len(ROLE):] for name in counts if name.startswith(ROLE))
    return "; the roles in them: " + ", ".join(roles[:8]) + ", …" * (len(roles) > 8) if roles else ""


class Encoder:
    """Tokenizes batches and sorts the documents into training (0) and validation (1)."""

    def __init__(self, args):
        self.tokenizer = open_tokenizer(args.tokenizer, args.end_of_text, args.form == "label")
        self.add_special = args.special != "none"
        self.typecode = typecode(self.tokenizer.vocabulary)
        self.threshold = int(args.validation * 2**64)
        self.form, self.max_length = args.form, args.max_length
        if self.form == "chat":
            self.module, self.template = load_chat_template(find_folder(args.tokenizer))
        self.before, self.after = self.special(args.special)

    def special(self, wanted):
        """The tokens to put before and after a document that does not have them."""
        if wanted in ("bos", "both") and self.tokenizer.begin is None:
            raise Failure(USAGE, f"--special {wanted}: the tokenizer has no token that begins a text")
        begin, end = [self.tokenizer.begin], [self.tokenizer.end]
        if self.form == "label":
            return [], []
        if wanted == "auto" and self.form != "chat":
            before, after = self.tokenizer.own
            return before, after if end[0] in after else after + end
        return {"auto": ([], []), "none": ([], []), "bos": (begin, []), "eos": ([], end), "both": (begin, end)}[wanted]

    def read_chat(self, item):
        where, row = json.loads(item)
        try:
            text, spans = self.template.render(row, self.tokenizer.special_texts) if row["messages"] else ("", [])
        except self.module.ChatError as error:
            raise Failure(DATA, f"{where}: {error}")
        return json.dumps(row).encode(), text, spans

    @staticmethod
    def read_completion(item):
        prompt, completion = json.loads(item)
        return item, prompt + completion, [(len(prompt), len(prompt) + len(completion))]

    def tokens_of(self, items):
        """(what decides the side, tokens, mask or None, whether the mask counts the end-of-text token) of each item: text as
        bytes, or JSON as chat_documents and completion_documents make it."""
        if self.form == "text":
            for text, ids in zip(items, self.tokenizer.encode(items)):
                yield text, ids, None, False
            return
        read = self.read_chat if self.form == "chat" else self.read_completion
        found = [read(item) for item in items]
        encoded_texts = self.tokenizer.encode_marked([text for _, text, _ in found], [spans for _, _, spans in found])
        for (key, text, spans), (ids, mask) in zip(found, encoded_texts):
            yield key, ids, mask, bool(spans) and spans[-1][1] >= len(text.rstrip())

    def completed(self, ids, mask, ends):
        """The document with its special tokens, cut to the length that is allowed."""
        before, after = self.before, self.after
        if before and list(ids[: len(before)]) == before:
            before = []
        if after and list(ids[-len(after) :]) == after:
            after = []
        whole = array.array(self.typecode, before)
        whole.extend(ids if ids.typecode == self.typecode else array.array(self.typecode, ids))
        whole.extend(array.array(self.typecode, after))
        if mask is not None:
            mask = bytes(len(before)) + bytes(mask) + bytes([ends] * len(after))
        if self.max_length and len(whole) > self.max_length:
            return whole[: self.max_length], mask and mask[: self.max_length], True
        return whole, mask, False

    def encode_labels(self, items):
        """What encode() gives, for rows with labels: the third part has the segments, a fourth the labels."""
        parts = [(array.array(self.typecode), array.array("i"), bytearray(), []) for _ in range(2)]
        counts, rows = collections.Counter(), [json.loads(item) for item in items]
        texts = [row[1:] for row in rows]
        found = self.tokenizer.encode_labelled(texts, self.add_special, self.max_length)
        for (label, *_), text, (ids, types, cut) in zip(rows, texts, found):
            if not ids:
                counts["empty"] += 1
                continue
            counts["truncated"] += cut
            tokens, lengths, segments, labels = parts[self.side(json.dumps(text).encode())]
            tokens.extend(array.array(self.typecode, ids))
            lengths.append(len(ids))
            segments.extend(types)
            labels.append(label)
        for tokens, *_ in parts:
            if sys.byteorder == "big":
                tokens.byteswap()
        return [(tokens.tobytes(), lengths, bytes(types), labels) for tokens, lengths, types, labels in parts], counts, None

    def sample(self, ids, mask):
        """[(whether it is learned from, text)] of the parts of a document."""
        parts, first = [], 0
        for learned, run in itertools.groupby(mask):
            last = first + len(list(run))
            parts.append((bool(learned), self.tokenizer.decode(ids[first:last])))
            first = last
        return parts

    def side(self, text):
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return 1 if int.from_bytes(digest, "little") < self.threshold else 0

    def encode(self, items):
        """[(token bytes, document lengths, mask), the same for validation]; counts of documents; a sample or None"""
        if self.form == "label":
            return self.encode_labels(items)
        parts = [(array.array(self.typecode), array.array("i"), bytearray()) for _ in range(2)]
        counts, sample, replaced = collections.Counter(), None, self.tokenizer.replaced
        for key, ids, mask, ends in self.tokens_of(items):
            if not ids:
                counts["empty"] += 1
                continue
            ids, mask, cut = self.completed(ids, mask, ends)
            counts["truncated"] += cut
            if len(ids) > MAX_DOCUMENT:
                raise Failure(DATA, f"a document of {len(ids):,} tokens is too long; hint: --document paragraph")
            if mask is not None and not any(mask):
                counts["dropped"] += 1
                counts.update(role_names(key) if self.form == "chat" else [])
                continue
            tokens, lengths, masks = parts[self.side(key)]
            tokens.extend(ids)
            lengths.append(len(ids))
            if mask is not None:
                masks.extend(mask)
                sample = sample or self.sample(ids, mask)
        for tokens, _, _ in parts:
            if sys.byteorder == "big":
                tokens.byteswap()
        counts["not UTF-8"] = self.tokenizer.replaced - replaced
        return [(tokens.tobytes(), lengths, bytes(masks)) for tokens, lengths, masks in parts], counts, sample


def typecode(vocabulary):
    return "H" if vocabulary <= 65536 else "i"


worker = None  # the Encoder of a worker process


def end_with_parent():
    multiprocessing.parent_process().join()
    os._exit(1)


def start_worker(args):
    global worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=end_with_parent, daemon=True).start()  # even if it was killed and cannot end them
    worker = Encoder(args)


def work(texts):
    return worker.encode(texts)


def encoded(args, encoder, found):
    """Yields what Encoder.encode gives for each batch, in order."""
    first = list(itertools.islice(found, 2))
    found = itertools.chain(first, found)
    if args.workers == 1 or len(first) < 2:  # not worth a process
        yield from map(encoder.encode, found)
        return
    with concurrent.futures.ProcessPoolExecutor(args.workers, initializer=start_worker, initargs=(args,)) as pool:
        pending = collections.deque()
        try:
            for batch in found:
                pending.append(pool.submit(work, batch))
                if len(pending) >= 3 * args.workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except concurrent.futures.process.BrokenProcessPool:
            raise Failure(DATA, "a worker process died (out of memory?); hint: fewer --workers")
        finally:
            for future in pending:
                future.cancel()


# ---- shards -------------------------------------------------------------------------------------------------------


class Labels:
    """The labels of all documents, and their numbers once all are known."""

    def __init__(self, prefix):
        self.known = {}  # label: its place in the order of appearance
        self.fixed = self.read_names(prefix + ".labels.json") if prefix else None

    @staticmethod
    def read_names(path):
        try:
            with open(path, encoding="utf-8") as file:
                names = json.load(file)["id2label"]
            return [names[str(i)] for i in range(len(names))]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Failure(DATA, f"--labels-from: cannot read '{path}': {error}; hint: it has the names of labels that are texts")

    def place(self, label):
        return self.known.setdefault(label, len(self.known))

    def numbers(self):
        """(the number of each label in its place, the names or None if they are numbers from 0 on)"""
        names = list(self.known)
        if self.fixed:
            for name in names:
                if name not in self.fixed:
                    raise Failure(DATA, f"label '{name}' is not among those of --labels-from: {', '.join(self.fixed[:12])}")
            return [self.fixed.index(name) for name in names], self.fixed
        whole = all(name.removeprefix("-").isdecimal() for name in names)
        if whole and min(map(int, names)) < 0:
            raise Failure(DATA, f"label {min(map(int, names))}: numbers from 0 on are labels; hint: leave out the rows without one")
        if whole and min(map(int, names)) == 0:
            return [int(name) for name in names], None
        ordered = sorted(names, key=int if whole else None)
        return [ordered.index(name) for name in names], ordered


class LabelledShard:
    """What --label adds to a Shard: PREFIX.labels, and PREFIX.labels.json if the labels have names."""

    ENDS = (".labels", ".labels.json", ".types")

    def __init__(self, prefix, labels):
        self.prefix, self.labels = prefix, labels
        self.places = array.array("i")

    def add(self, labels):
        self.places.extend(map(self.labels.place, labels))

    def take_last(self):
        return [list(self.labels.known)[self.places.pop()]]

    def write(self, temporary):
        """Writes the files that there are under temporary names, which it adds to `temporary`."""
        numbers, names = self.labels.numbers()
        texts = {".labels": struct.pack(f"<{len(self.places)}i", *(numbers[place] for place in self.places))}
        if names:
            id2label = {str(i): name for i, name in enumerate(names)}
            texts[".labels.json"] = (json.dumps({"id2label": id2label}, indent=1, ensure_ascii=False) + "\n").encode()
        for end, text in texts.items():
            path = f"{self.prefix}{end}.tmp-{os.getpid()}"
            temporary[end] = path
            with open(path, "wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())


class Shard:
    """PREFIX.bin, PREFIX.idx and, if there is `beside` (".mask" or ".types"), a file with a byte for each token, under
    temporary names until publish(). labels: a Labels, or None."""

    def __init__(self, prefix, vocabulary, beside, labels=None):
        self.prefix = prefix
        self.token_bytes = array.array(typecode(vocabulary)).itemsize
        self.lengths = array.array("i")
        self.tokens = 0
        self.learned = 0  # tokens whose mask is 1
        ends = ((beside,) if beside else ()) + (".bin", ".idx")  # a mask that is too new for its .bin is refused
        self.beside, self.labelled = beside, LabelledShard(prefix, labels) if labels else None
        self.temporary = {end: f"{prefix}{end}.tmp-{os.getpid()}" for end in ends}
        self.bin = open(self.temporary[".bin"], "w+b")
        self.mask = open(self.temporary[beside], "w+b") if beside else None

    def add(self, token_bytes, lengths, mask, labels=()):
        if self.labelled:
            self.labelled.add(labels)
        self.bin.write(token_bytes)
        self.lengths.extend(lengths)
        self.tokens += len(token_bytes) // self.token_bytes
        if self.mask:
            self.mask.write(mask)
            self.learned += sum(mask)

    def take_last(self):
        """Takes the last document out again."""
        length = self.lengths.pop()
        self.tokens -= length
        mask = self.cut(self.mask, self.tokens) if self.mask else b""
        self.learned -= sum(mask)
        labels = self.labelled.take_last() if self.labelled else ()
        return self.cut(self.bin, self.tokens * self.token_bytes), array.array("i", [length]), mask, labels

    @staticmethod
    def cut(file, position):
        file.seek(position)
        last = file.read()
        file.seek(position)
        file.truncate()
        return last

    def publish(self):
        count = len(self.lengths)
        if self.labelled:
            self.labelled.write(self.temporary)
        with open(self.temporary[".idx"], "wb") as idx:
            idx.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8 if self.token_bytes == 2 else 4, count, count + 1))
            for first in range(0, count, 65536):
                part = self.lengths[first : first + 65536]
                idx.write(struct.pack(f"<{len(part)}i", *part))
            pointer = 0
            for first in range(0, count, 65536):
                part = []
                for length in self.lengths[first : first + 65536]:
                    part.append(pointer)
                    pointer += length * self.token_bytes
                idx.write(struct.pack(f"<{len(part)}q", *part))
            for first in range(0, count + 1, 65536):
                last = min(first + 65536, count + 1)
                idx.write(struct.pack(f"<{last - first}q", *range(first, last)))
            for file in (self.bin, idx, *([self.mask] if self.mask else [])):
                file.flush()
                os.fsync(file.fileno())
        self.close()
        for end, path in self.temporary.items():
            os.replace(path, self.prefix + end)
        for end in (".mask", *LabelledShard.ENDS):
            if end not in self.temporary and os.path.exists(self.prefix + end):
                os.unlink(self.prefix + end)  # an earlier shard's

    def close(self):
        self.bin.close()
        if self.mask:
            self.mask.close()

    def discard(self):
        self.close()
        for path in self.temporary.values():
            if os.path.exists(path):
                os.unlink(path)


# ---- progress and summary -----------------------------------------------------------------------------------------


class Progress:
    """A bar on a terminal, otherwise a plain line every ten seconds; on standard error."""

    def __init__(self, total):
        self.total, self.done, self.position = total, 0, 0
        self.start = self.shown = time.monotonic()
        self.terminal = sys.stderr.isatty()

    def show(self, tokens, force=False):
        now = time.monotonic()
        if not force and now - self.shown < (0.1 if self.terminal else 10):
            return
        self.shown = now
        share = min(1.0, self.position / self.total) if self.total else 1.0
        seconds = now - self.start
        left = seconds / share - seconds if share > 0 else 0
        line = f"{share:4.0%}  {tokens:,} tokens  {tokens / max(seconds, 1e-3):,.0f} tokens/s  {left:.0f} s left"
        if self.terminal:
            bar = "#" * int(share * 30)
            print(f"\r[{bar:<30}] {line}\033[K", end="", file=sys.stderr, flush=True)
        else:
            print(f"tokenize: {line}", file=sys.stderr, flush=True)

    def clear(self):
        if self.terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def summary(name, shard):
    kind = "uint16" if shard.token_bytes == 2 else "int32"
    masked = shard.beside == ".mask"
    learned = f", {shard.learned:,} of them learned from ({shard.learned / shard.tokens:.1%})" if masked else ""
    print(f"{name:<10} {len(shard.lengths):,} documents, {shard.tokens:,} tokens ({kind}){learned}: {shard.prefix}.bin, .idx"
          + "".join(f", {end}" for end in shard.temporary if end not in (".bin", ".idx")))


def summary_labels(labels, shards):
    """The number of documents of each label, over all shards."""
    numbers, names = labels.numbers()
    counts = collections.Counter(numbers[place] for shard in shards for place in shard.labelled.places)
    most = max(counts) + 1 if not names else len(names)
    shown = [f"{names[i] if names else i}: {counts[i]:,}" for i in range(min(most, 12))]
    print(f"labels     {most} ({', '.join(shown)}{', …' if most > 12 else ''})")
    if names and labels.fixed is None and all(name.isdecimal() for name in names):
        print(f"numbered   the labels {names[0]} … {names[-1]} from 0 on; their names stay")


SAMPLE_CHARACTERS = 2000


def show_sample(parts):
    """Prints a document with what is learned from in green, or between brackets where there is no terminal."""
    begin, end, dim, plain = ("\033[32m", "\033[0m", "\033[2m", "\033[0m") if sys.stdout.isatty() else ("⟦", "⟧", "", "")
    print("sample     " + ("in green" if sys.stdout.isatty() else "between ⟦ and ⟧") + " is what is learned from:")
    left = SAMPLE_CHARACTERS
    for learned, text in parts:
        shown = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text[:left])
        left -= len(shown)
        print(begin + shown + end if learned else dim + shown + plain, end="")
        if left <= 0:
            print(" …", end="")
            break
    print()


# ---- the program --------------------------------------------------------------------------------------------------


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="tokenize.py",
        description=DESCRIPTION,
        epilog=DETAILS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("inputs", metavar="INPUT", nargs="+", help="text, jsonl or csv file, or a folder of such files")
    parser.add_argument("--output", metavar="PREFIX", required=True, help="writes PREFIX.bin and PREFIX.idx")
    parser.add_argument("--tokenizer", metavar="byte|DIR", required=True,
                        help="byte, or a Hugging Face tokenizer folder")
    parser.add_argument("--fields", metavar="LIST", help="fields of jsonl, csv and parquet (default: text)")
    parser.add_argument("--chat-template", action="store_true",
                        help="render messages with the tokenizer folder's chat template, and write a loss mask")
    parser.add_argument("--completion", metavar="LIST", help="two fields: a prompt, and the completion to learn")
    parser.add_argument("--label", metavar="COLUMN", help="the field with the label of each row, for classification")
    parser.add_argument("--labels-from", metavar="PREFIX", help="number the labels as in this shard")
    parser.add_argument("--special", choices=("auto", "none", "bos", "eos", "both"), default="auto",
                        help="special tokens around each document (default: auto)")
    parser.add_argument("--max-length", metavar="N", type=int, default=0, help="cut documents after N tokens")
    parser.add_argument("--document", choices=("line", "paragraph", "file"),
                        help="what one document of a text file is (default: paragraph)")
    parser.add_argument("--validation", metavar="SHARE", type=float, default=0.0,
                        help="share of the documents for PREFIX-validation (default: 0, none)")
    parser.add_argument("--workers", metavar="N", type=int, default=len(os.sched_getaffinity(0)),
                        help="processes (default: one per core)")
    parser.add_argument("--end-of-text", metavar="TOKEN", help="end-of-text token of a tokenizer folder")
    args = parser.parse_args(arguments)

    args.fields_given, args.document_given = args.fields is not None, args.document is not None
    args.document = args.document or "paragraph"
    args.form = ("chat" if args.chat_template else "completion" if args.completion is not None
                 else "label" if args.label is not None else "text")
    if args.chat_template and args.completion is not None:
        parser.error("--chat-template and --completion are two forms of data: choose one")
    if args.label is not None and args.form != "label":
        parser.error("--label does not go with --chat-template and --completion")
    if args.labels_from and args.form != "label":
        parser.error("--labels-from goes with --label")
    if args.form == "label" and args.special not in ("auto", "none"):
        parser.error("--special: with --label auto or none")
    if args.form == "label" and args.end_of_text is not None:
        parser.error("--end-of-text: with --label documents have the tokenizer's own special tokens only")
    if args.completion is not None and args.fields_given:
        parser.error("--completion names the fields; --fields does not go with it")
    if args.chat_template and args.tokenizer == "byte":
        parser.error("--chat-template: the byte vocabulary has no chat template; name a tokenizer folder")
    args.fields = [field.strip() for field in (args.completion or args.fields or "text").split(",")]
    if args.form == "completion" and len(args.fields) != 2:
        parser.error("--completion: two fields, PROMPT,COMPLETION")
    if args.form == "chat" and len(args.fields) != 1:
        parser.error("--fields: with --chat-template one field, the messages")
    if args.form == "label" and (len(args.fields) > 2 or not args.label):
        parser.error("--fields: with --label one text, or a pair of texts")
    if args.max_length < 0 or args.max_length == 1:
        parser.error("--max-length: at least 2")
    if not all(args.fields):
        parser.error("--fields: an empty name")
    numbers = [field.isdecimal() for field in args.fields]
    if args.form == "label" and any(numbers + [args.label.isdecimal()]):
        if not all(numbers + [args.label.isdecimal()]) or not args.fields_given or args.label == "0":
            parser.error("--label, --fields: names, or column numbers from 1 of csv files without a first row of names")
    elif any(numbers) and args.form != "text":
        parser.error("column numbers go with plain text only; name the fields")
    if any(numbers) and not all(numbers):
        parser.error("--fields: names or column numbers, not both")
    if all(numbers) and min(map(int, args.fields)) < 1:
        parser.error("--fields: columns are counted from 1")
    if not 0 <= args.validation < 1:
        parser.error("--validation: a share from 0 up to, not including, 1 (0.02 for two percent)")
    if args.workers < 1:
        parser.error("--workers: at least 1")
    if os.path.basename(args.output) == "":
        parser.error(f"--output: '{args.output}' is a folder; expected a prefix such as {args.output or 'data/'}train")
    if args.output.endswith((".bin", ".idx", ".mask", ".labels")):
        parser.error("--output: a prefix, without .bin, .idx or .mask")
    return args


def run(args):
    files, skipped = find_files(args.inputs)
    kinds = {kind_of(path) for path, _ in files}
    if args.fields_given and kinds == {"text"}:
        raise Failure(USAGE, "--fields goes with .jsonl, .csv and .parquet inputs, and there is none")
    if args.document_given and "text" not in kinds:
        raise Failure(USAGE, "--document goes with text inputs, and there is none; each object or row is a document")
    encoder = Encoder(args)
    progress = Progress(sum(size for _, size in files))
    folder = os.path.dirname(args.output)
    shards, counts, sample = [], collections.Counter(), None
    labels = Labels(args.labels_from) if args.form == "label" else None
    beside = ".types" if labels and len(args.fields) == 2 else ".mask" if args.form in ("chat", "completion") else None
    try:
        if folder:
            os.makedirs(folder, exist_ok=True)
        for prefix in [args.output] + [args.output + "-validation"] * (args.validation > 0):
            shards.append(Shard(prefix, encoder.tokenizer.vocabulary, beside, labels))
        for parts, some, example in encoded(args, encoder, batches(documents(files, args, progress))):
            for shard, part in zip(shards, parts):
                shard.add(*part)
            counts.update(some)
            sample = sample or example
            progress.show(sum(shard.tokens for shard in shards))
            interrupt.check()
        progress.clear()
        total = sum(len(shard.lengths) for shard in shards)
        if total == 0 and counts["dropped"]:
            raise Failure(DATA, f"nothing to learn from in {counts['dropped']:,} documents: "
                                + ("the assistant says nothing in them" if args.form == "chat" else "no completion")
                                + ", or --max-length cuts it off" + roles_shown(counts))
        if total == 0:
            raise Failure(DATA, "the inputs hold no text")
        if len(shards) == 2:
            if total == 1:
                raise Failure(DATA, "one document cannot be split; hint: --document paragraph, or no --validation")
            train, validation = shards  # neither may end up empty
            if not validation.lengths:
                validation.add(*train.take_last())
            elif not train.lengths:
                train.add(*validation.take_last())
        for shard in shards:
            shard.publish()
    except OSError as error:
        raise Failure(DATA, f"cannot write '{args.output}': {error.strerror or error}")
    finally:
        for shard in shards:
            shard.discard()

    for name, shard in zip(("train", "validation"), shards):
        summary(name, shard)
    if labels:
        summary_labels(labels, shards)
    if counts["empty"] or skipped:
        print(f"left out   {counts['empty']:,} empty documents, {skipped:,} binary files")
    if counts["dropped"]:
        print(f"dropped    {counts['dropped']:,} documents with nothing to learn from{roles_shown(counts)}")
    if counts["truncated"]:
        print(f"truncated  {counts['truncated']:,} documents, to {args.max_length:,} tokens")
    if counts["not UTF-8"]:
        print(f"not UTF-8  {counts['not UTF-8']:,} documents: U+FFFD stands for each wrong byte")
    if len(shards) == 1 and os.path.exists(args.output + "-validation.bin"):
        print(f"left       {args.output}-validation.bin belongs to an earlier run: its documents may be in {args.output} as well")
    vocabulary, end = encoder.tokenizer.vocabulary, encoder.tokenizer.end
    if sample:
        show_sample(sample)
    named = "" if end is None else f", end-of-text token {end}"
    print(f"vocabulary {vocabulary:,} ids{named}: the model needs vocab_size {vocabulary} or more")


def main():
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt.notice)
    try:
        run(parse(sys.argv[1:]))
    except Failure as failure:
        print(f"tokenize: error: {failure.message}", file=sys.stderr)
        return failure.code
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Turns text into token shards for ztrain: PREFIX.bin and PREFIX.idx (Megatron-LM's format).

One process reads the inputs and cuts them into documents. It sends batches of documents to several worker processes, which
tokenize them and sort them into training and validation, and writes the results in order. At most a few batches per worker
are under way, so memory stays bounded however large the inputs are (the length of each document, 4 bytes, is kept until the
index is written). Everything is written under temporary names and renamed at the end, so a shard that exists is whole.

It needs Python 3.9 or newer and the standard library only, and the package `tokenizers` if --tokenizer names a folder.
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
PREFIX-validation.bin and .idx."""

DETAILS = """\
inputs
  The end of a file's name determines its kind (each may be followed by .gz):
    .jsonl .ndjson .json   an object on each line, each one document
    .csv .tsv              a row is a document
    any other              text, cut by --document
  A folder stands for all files in it and below, sorted by name; hidden and binary files in it are skipped.

documents
  Each document is followed by the end-of-text token. Empty documents are left out. In text files a document is
    --document paragraph   the text between blank lines (the default)
    --document line        a line
    --document file        a whole file
  In jsonl and csv files --fields chooses the fields that are the text, joined by a blank:
    --fields title,description   names: keys of the objects, or columns that the csv file's first row names
    --fields 2,3                 numbers: columns from 1 of a csv file without such a row
  Without --fields the text is the field "text".

tokenizers
  byte   256 bytes and the end-of-text token 256 (vocab_size 257); no files are needed
  DIR    a Hugging Face folder with tokenizer.json, or with vocab.json and merges.txt (GPT-2's kind); needs the Python
         package "tokenizers". The end-of-text token is the folder's eos token; --end-of-text names another.
  The summary at the end has the smallest vocab_size that the model needs. Tokens are stored as uint16 where the
  vocabulary has at most 65,536 entries, as int32 otherwise.

validation
  --validation 0.02 puts about 2 % of the documents into PREFIX-validation instead of PREFIX. A hash of its text decides
  for each document, so every run decides alike, and equal documents are never on both sides.

examples
  scripts/tokenize.py book.txt --output data/book --tokenizer byte --validation 0.05
  scripts/tokenize.py /usr/include --output data/headers --tokenizer byte --document file
  scripts/tokenize.py ag_news.csv --fields 2,3 --output data/news --tokenizer models/gpt2 --validation 0.02
  scripts/tokenize.py part-*.jsonl.gz --fields text --output data/web --tokenizer models/llama --workers 16

exit codes
  0 done; 2 wrong usage (or the package is missing); 3 an input or tokenizer cannot be read or is damaged;
  130 or 143 interrupted by SIGINT or SIGTERM
"""

BATCH_BYTES = 1 << 20  # of text in a batch, which goes to one worker
BATCH_DOCUMENTS = 4096
MAX_DOCUMENT = 2**31 - 1  # tokens; the index has 32 bits for it
EOS_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<|im_end|>", "<eos>", "[EOS]", "<|eot_id|>")


class Failure(Exception):
    """What is wrong, in one line, and the exit code that it has."""

    def __init__(self, code, message):
        super().__init__(code, message)
        self.code, self.message = code, message


class Interrupt:
    """SIGINT and SIGTERM, noticed between batches: an exception out of a signal handler could leave the process pool
    with a lock held, and its shutdown would wait for ever. A second signal ends the process at once."""

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
    name = path.lower()
    if name.endswith(".gz"):
        name = name[:-3]
    end = os.path.splitext(name)[1]
    return {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "csv"}.get(end, "text")


def is_binary(path):
    try:
        with open_input(path) as file:
            return b"\0" in file.read(8192)
    except (OSError, EOFError, zlib.error):
        return False  # reading it will report the error


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


def open_input(path, raw=None):
    raw = raw or open(path, "rb")
    return gzip.GzipFile(fileobj=raw) if path.lower().endswith(".gz") else raw


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


def jsonl_documents(file, path, fields):
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Failure(DATA, f"'{path}' line {number}: not JSON ({error}); expected an object on each line")
        if not isinstance(row, dict):
            raise Failure(DATA, f"'{path}' line {number}: expected a JSON object")
        for field in fields:
            if field not in row:
                raise Failure(DATA, f"'{path}' line {number}: no field '{field}'; it has: "
                                    + (", ".join(list(row)[:12]) or "none") + "; hint: --fields NAME,NAME")
        texts = [field_text(row[f], f"'{path}' line {number}: field '{f}'") for f in fields]
        text = " ".join(texts) if any(texts) else ""  # a document of blanks only is left out
        yield text.encode("utf-8", "replace")  # JSON can hold half a surrogate pair, UTF-8 cannot


def csv_documents(file, path, fields):
    csv.field_size_limit(2**31 - 1)
    name = path.lower()
    tabs = name.endswith((".tsv", ".tsv.gz"))
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
            texts = [row[c] for c in columns]
            yield (" ".join(texts) if any(texts) else "").encode("utf-8", "surrogateescape")
    except csv.Error as error:
        raise Failure(DATA, f"'{path}' line {rows.line_num}: {error}")


def documents(files, args, progress):
    """All documents of all files, as UTF-8 (text files: as they are)."""
    for path, size in files:
        try:
            with open(path, "rb") as raw:
                file = open_input(path, raw)
                if file.peek(3)[:3] == b"\xef\xbb\xbf":  # a byte order mark is not text
                    file.read(3)
                kind = kind_of(path)
                if kind == "text":
                    found = text_documents(file, args.document)
                elif kind == "jsonl":
                    found = jsonl_documents(file, path, args.fields)
                else:
                    found = csv_documents(file, path, args.fields)
                for document in found:
                    progress.position = progress.done + raw.tell()
                    yield document
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

    vocabulary, end, replaced = 257, 256, 0

    def encode(self, texts):
        """Token arrays of documents, without the end-of-text token."""
        for text in texts:
            wide = bytearray(2 * len(text))
            wide[0 if sys.byteorder == "little" else 1 :: 2] = text
            ids = array.array("H")
            ids.frombytes(wide)
            yield ids


class FolderTokenizer:
    """A tokenizer of Hugging Face's `tokenizers` package."""

    replaced = 0  # documents that were not UTF-8

    def __init__(self, folder, end_of_text):
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the worker processes are the parallelism
        try:
            import tokenizers
        except ImportError:
            raise Failure(USAGE, "--tokenizer DIR needs the Python package 'tokenizers'; hint: pip install tokenizers")
        whole, vocab, merges = (os.path.join(folder, n) for n in ("tokenizer.json", "vocab.json", "merges.txt"))
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
        self.end = self.end_token(folder, ids, end_of_text)

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


def open_tokenizer(name, end_of_text):
    if name == "byte":
        if end_of_text is not None:
            raise Failure(USAGE, "--end-of-text goes with a tokenizer folder; the byte vocabulary's is 256")
        return ByteTokenizer()
    have = [n for n in ("tokenizer.json", "vocab.json", "merges.txt") if os.path.exists(os.path.join(name, n))]
    if not os.path.isdir(name):
        raise Failure(DATA, f"no tokenizer folder '{name}'; hint: --tokenizer byte needs none")
    if "tokenizer.json" not in have and len(have) < 2:
        raise Failure(DATA, f"'{name}' has neither tokenizer.json nor vocab.json and merges.txt")
    return FolderTokenizer(name, end_of_text)


# ---- work on a batch (in the workers) -----------------------------------------------------------------------------


class Encoder:
    """Tokenizes batches and sorts the documents into training (0) and validation (1)."""

    def __init__(self, args):
        self.tokenizer = open_tokenizer(args.tokenizer, args.end_of_text)
        self.typecode = typecode(self.tokenizer.vocabulary)
        self.threshold = int(args.validation * 2**64)

    def side(self, text):
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return 1 if int.from_bytes(digest, "little") < self.threshold else 0

    def encode(self, texts):
        """[(token bytes, document lengths), the same for validation]; documents that were empty; that were not UTF-8"""
        parts = [(array.array(self.typecode), array.array("i")) for _ in range(2)]
        empty, replaced = 0, self.tokenizer.replaced
        for text, ids in zip(texts, self.tokenizer.encode(texts)):
            if not ids:
                empty += 1
                continue
            if len(ids) >= MAX_DOCUMENT:
                raise Failure(DATA, f"a document of {len(ids):,} tokens is too long; hint: --document paragraph")
            tokens, lengths = parts[self.side(text)]
            tokens.extend(ids if ids.typecode == self.typecode else array.array(self.typecode, ids))
            tokens.append(self.tokenizer.end)
            lengths.append(len(ids) + 1)
        for tokens, lengths in parts:
            if sys.byteorder == "big":
                tokens.byteswap()
        return [(tokens.tobytes(), lengths) for tokens, lengths in parts], empty, self.tokenizer.replaced - replaced


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


class Shard:
    """PREFIX.bin and PREFIX.idx under temporary names until publish()."""

    def __init__(self, prefix, vocabulary):
        self.prefix = prefix
        self.token_bytes = array.array(typecode(vocabulary)).itemsize
        self.lengths = array.array("i")
        self.tokens = 0
        self.temporary = {end: f"{prefix}{end}.tmp-{os.getpid()}" for end in (".bin", ".idx")}
        self.bin = open(self.temporary[".bin"], "w+b")

    def add(self, token_bytes, lengths):
        self.bin.write(token_bytes)
        self.lengths.extend(lengths)
        self.tokens += len(token_bytes) // self.token_bytes

    def take_last(self):
        """Takes the last document out again."""
        length = self.lengths.pop()
        self.tokens -= length
        self.bin.seek(self.tokens * self.token_bytes)
        last = self.bin.read()
        self.bin.seek(self.tokens * self.token_bytes)
        self.bin.truncate()
        return last, array.array("i", [length])

    def publish(self):
        count = len(self.lengths)
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
            for file in (self.bin, idx):
                file.flush()
                os.fsync(file.fileno())
        self.bin.close()
        for end, path in self.temporary.items():
            os.replace(path, self.prefix + end)

    def discard(self):
        self.bin.close()
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
    print(f"{name:<10} {len(shard.lengths):,} documents, {shard.tokens:,} tokens ({kind}): {shard.prefix}.bin, .idx")


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
    parser.add_argument("--fields", metavar="LIST", help="fields of jsonl and csv (default: text)")
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
    args.fields = [field.strip() for field in (args.fields or "text").split(",")]
    if not all(args.fields):
        parser.error("--fields: an empty name")
    numbers = [field.isdecimal() for field in args.fields]
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
    if args.output.endswith((".bin", ".idx")):
        parser.error("--output: a prefix, without .bin or .idx")
    return args


def run(args):
    files, skipped = find_files(args.inputs)
    kinds = {kind_of(path) for path, _ in files}
    if args.fields_given and kinds == {"text"}:
        raise Failure(USAGE, "--fields goes with .jsonl and .csv inputs, and there is none")
    if args.document_given and "text" not in kinds:
        raise Failure(USAGE, "--document goes with text inputs, and there is none; each object or row is a document")
    encoder = Encoder(args)
    progress = Progress(sum(size for _, size in files))
    folder = os.path.dirname(args.output)
    shards, empty, replaced = [], 0, 0
    try:
        if folder:
            os.makedirs(folder, exist_ok=True)
        for prefix in [args.output] + [args.output + "-validation"] * (args.validation > 0):
            shards.append(Shard(prefix, encoder.tokenizer.vocabulary))
        for parts, no_text, no_utf8 in encoded(args, encoder, batches(documents(files, args, progress))):
            for shard, part in zip(shards, parts):
                shard.add(*part)
            empty += no_text
            replaced += no_utf8
            progress.show(sum(shard.tokens for shard in shards))
            interrupt.check()
        progress.clear()
        total = sum(len(shard.lengths) for shard in shards)
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
    if empty or skipped:
        print(f"left out   {empty:,} empty documents, {skipped:,} binary files")
    if replaced:
        print(f"not UTF-8  {replaced:,} documents: U+FFFD stands for each wrong byte")
    if len(shards) == 1 and os.path.exists(args.output + "-validation.bin"):
        print(f"left       {args.output}-validation.bin belongs to an earlier run: its documents may be in {args.output} as well")
    vocabulary, end = encoder.tokenizer.vocabulary, encoder.tokenizer.end
    print(f"vocabulary {vocabulary:,} ids, end-of-text token {end}: the model needs vocab_size {vocabulary} or more")


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

# SPDX-License-Identifier: Apache-2.0
"""Which files the inputs stand for, and what is in them once their compression is taken off."""
import gzip
import importlib
import io
import json
import os
import re
import sys
import zlib

from .errors import DATA, Failure, USAGE, hint_to_install, listed

LFS_POINTER = b"version https://git-lfs"
KINDS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "csv", ".parquet": "table",
         ".arrow": "table", ".feather": "table"}
# The end of a compressed file's name, and the bytes that the file begins with.
COMPRESSIONS = {".gz": re.compile(rb"\x1f\x8b"), ".bz2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
                ".xz": re.compile(rb"\xfd7zXZ\0"), ".zst": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")}
# Files of a data set that hold no rows; datasets.load_dataset leaves them out as well.
DESCRIPTIONS = ("config.json", "dataset_dict.json", "dataset_info.json", "dataset_infos.json")
# In the path of a file that is not for training, as datasets.load_dataset sorts files into splits.
HELD_OUT = re.compile(r"(^|[-._ \d/])(validation|valid|dev|val|test|testing|eval|evaluation)([-._ \d/]|$)", re.IGNORECASE)


def compression_of_name(path):
    return next((end for end in COMPRESSIONS if path.lower().endswith(end)), "")


def compression_of(start):
    """The compression of a file that begins with these bytes; "": none."""
    return next((end for end, magic in COMPRESSIONS.items() if magic.match(start)), "")


def bare_name(path):
    """The name in lower case, without the end that a compression has."""
    return path.lower().removesuffix(compression_of_name(path))


def kind_of(path):
    return KINDS.get(os.path.splitext(bare_name(path))[1], "text")


def refuse_pointer(path, start):
    if start.startswith(LFS_POINTER):
        raise Failure(DATA, f"'{path}' is a Git LFS pointer, not the file that it stands for; hint: git lfs pull")


# --- compressions -----------------------------------------------------------------------------------------------------

def import_for(path, name, hint=""):
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Failure(USAGE, f"'{path}' needs the Python module '{name}'{hint}")


class ZstdFile(io.RawIOBase):
    """Frames of zstd, read by the package zstandard, whose own reader takes a file that is cut off for a whole one."""

    LONGEST_WINDOW = 2**31  # zstd --long=31

    def __init__(self, raw, package):
        super().__init__()
        self.raw, self.package = raw, package
        self.frame, self.compressed, self.plain = None, b"", b""

    def readable(self):
        return True

    def readinto(self, buffer):
        while not self.plain:
            self.compressed = self.compressed or self.raw.read(1 << 14)
            if not self.compressed:
                if self.frame:
                    raise EOFError("the compressed file ends in the middle of a frame")
                return 0
            self.frame = self.frame or self.package.ZstdDecompressor(max_window_size=self.LONGEST_WINDOW).decompressobj()
            self.plain = memoryview(self.frame.decompress(self.compressed))
            self.compressed = self.frame.unused_data if self.frame.eof else b""
            self.frame = None if self.frame.eof else self.frame
        count = min(len(buffer), len(self.plain))
        buffer[:count], self.plain = self.plain[:count], self.plain[count:]
        return count


def open_zstd(path, raw):
    """With Python's own module, where there is one (3.14), or the package zstandard."""
    try:
        module = importlib.import_module("compression.zstd")
    except ImportError:
        return io.BufferedReader(ZstdFile(raw, import_for(path, "zstandard", hint_to_install("zstandard"))))
    return io.BufferedReader(module.ZstdFile(raw, options={module.DecompressionParameter.window_log_max: 31}))


def open_input(path, raw):
    """The file `raw` without its compression; the bytes that it begins with tell which one, whatever the name is."""
    compression = compression_of(raw.peek(16))
    if compression == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if compression == ".bz2":
        return import_for(path, "bz2").BZ2File(raw)
    if compression == ".xz":
        return import_for(path, "lzma").LZMAFile(raw)
    return open_zstd(path, raw) if compression == ".zst" else raw


def read_errors():
    """What reading a file can raise: the modules for compressions have exceptions of their own."""
    names = (("lzma", "LZMAError"), ("compression.zstd", "ZstdError"), ("zstandard", "ZstdError"))
    own = [getattr(sys.modules[module], name) for module, name in names if module in sys.modules]
    return (OSError, EOFError, zlib.error, *own)


# --- inputs -----------------------------------------------------------------------------------------------------------

class Found:
    """The files that the inputs stand for, in order, and what there is to say about them at the end."""

    def __init__(self):
        self.files = []  # (path, bytes)
        self.binary = 0  # files of folders that are not text
        self.left_out = []  # paths in folders that are not data
        self.held_out = []  # paths in folders beside training data that say validation or test
        self.misnamed = []  # paths whose names promise another compression
        self.answers = None  # what answers are labelled in preference data, and the place that told it
        self.cut = 0  # documents of text files
        self.marked = 0  # rows of .tsv files with a field between quotation marks

    def paired(self):
        """Whether two answers are a pair, whose documents stay together."""
        return self.answers is not None and "chosen" in self.answers[0]


def is_binary(path):
    if kind_of(path) == "table":
        return False
    try:
        with open(path, "rb") as raw:
            return b"\0" in open_input(path, raw).read(8192)
    except read_errors():
        return False  # reading it will report the error


def read_description(path):
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
        return value if isinstance(value, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}


def saved_files(folder, names):
    """The names of the data files in a folder that save_to_disk of the package datasets wrote; None: it wrote none there."""
    splits = read_description(os.path.join(folder, "dataset_dict.json")).get("splits") if "dataset_dict.json" in names else None
    if isinstance(splits, list) and len(splits) > 1:
        raise Failure(USAGE, f"'{folder}' holds {len(splits)} data sets: {listed(splits)}; "
                             f"hint: name one of them: {os.path.join(folder, str(splits[0]))}")
    files = read_description(os.path.join(folder, "state.json")).get("_data_files") if "state.json" in names else None
    if not isinstance(files, list):
        return None
    found = [str(file.get("filename")) for file in files if isinstance(file, dict)]
    for name in found:
        if name not in names:
            raise Failure(DATA, f"'{os.path.join(folder, 'state.json')}' names '{name}', which is not there")
    return found


def files_below(top):
    """The paths of a folder's files, sorted by name, without hidden ones."""
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        saved = saved_files(folder, names)
        for name in sorted(name for name in names if not name.startswith(".")) if saved is None else saved:
            if os.path.isfile(os.path.join(folder, name)):
                yield os.path.join(folder, name)


def is_card(path):
    """Whether a README.md describes a data set: it begins with properties in YAML."""
    try:
        with open(path, "rb") as file:
            return file.read(4) in (b"---\n", b"---\r")
    except OSError:
        return False  # reading it will report the error


def add_folder(found, top, rows_only):
    """rows_only: text files are left out where there are files of rows."""
    paths = list(files_below(top))
    rows = [path for path in paths if kind_of(path) != "text" and os.path.basename(path) not in DESCRIPTIONS]
    held_out = [path for path in rows if HELD_OUT.search(os.path.relpath(path, top))]
    found.held_out += held_out if len(held_out) < len(rows) else []
    for path in paths:
        name, text = os.path.basename(path), kind_of(path) == "text"
        if name in DESCRIPTIONS or text and rows and rows_only or name == "README.md" and (rows or is_card(path)):
            found.left_out.append(path)
        elif is_binary(path):
            found.binary += 1
        else:
            found.files.append((path, os.path.getsize(path)))


def find_files(inputs, rows_only):
    """A Found, of files and folders. rows_only: the command line speaks of fields, which text has not."""
    found = Found()
    for name in inputs:
        if os.path.isdir(name):
            add_folder(found, name, rows_only)
        elif not os.path.exists(name):
            raise Failure(DATA, f"cannot open '{name}': no such file or folder")
        elif not os.path.isfile(name):
            raise Failure(DATA, f"'{name}' is not a regular file")
        elif is_binary(name):
            raise Failure(DATA, f"'{name}' is not text: it has zero bytes")
        else:
            found.files.append((name, os.path.getsize(name)))
    if not found.files:
        raise Failure(DATA, "no text file in " + ", ".join(f"'{name}'" for name in inputs))
    return found

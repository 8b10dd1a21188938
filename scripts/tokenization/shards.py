# SPDX-License-Identifier: Apache-2.0
"""From tokens to the files of a shard, which get their names when all is written."""
import array
import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import struct

from .errors import DATA, Failure, interrupt, listed, shortened
from .tokenizer import typecode

COMPANIONS = (".mask", ".types", ".labels", ".labels.json")  # files that lie beside .bin and .idx in some forms of data
SET_MAGIC, SET_BLOCK = b"ztrain\0\1", 1 << 16  # core/data/shard_file.h
MOST_LABELS = 2**31 - 1  # PREFIX.labels has 32 bits for a number
MOST_NAME_BYTES = 16 << 20  # that ztrain reads from PREFIX.labels.json
WHOLE = re.compile(r"(-?[0-9]{1,18})(\.0*)?")


def whole_number(label):
    """The number that a label is, or None: it is a text."""
    found = WHOLE.fullmatch(label)
    return int(found[1]) if found else None


class Labels:
    """The labels of all documents, and their numbers once all are known."""

    def __init__(self, fixed=None):
        """fixed: the names of all labels in order, if they are known"""
        self.known = {}  # label: its place in the order of appearance
        self.fixed = fixed

    @classmethod
    def of_shard(cls, prefix):
        """Labels with the names of another shard."""
        path = prefix + ".labels.json"
        try:
            with open(path, encoding="utf-8") as file:
                names = json.load(file)["id2label"]
            return cls([names[str(i)] + "" for i in range(len(names))])  # texts, or a TypeError
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise Failure(DATA, f"--labels-from: cannot read '{path}': {error}; hint: it has the names of labels that are texts")

    def place(self, label):
        return self.known.setdefault(label, len(self.known))

    def numbers(self):
        """(the number of each label in its place, the names or None if they are numbers from 0 on)"""
        keys = [whole_number(name) for name in self.known]
        if self.fixed:
            return self.fixed_numbers(keys), self.fixed
        if None in keys:
            keys = list(self.known)
        elif min(keys) < 0:
            raise Failure(DATA, f"label {min(keys)}: numbers from 0 on are labels; hint: leave out the rows without one")
        elif min(keys) == 0 and max(keys) < MOST_LABELS:
            return keys, None
        names = dict(zip(reversed(keys), reversed(list(self.known))))  # of 1 and 1.0 the one that came first
        ordered = sorted(names)
        number = {key: i for i, key in enumerate(ordered)}
        return [number[key] for key in keys], [names[key] for key in ordered]

    def fixed_numbers(self, keys):
        number = {whole_number(name): i for i, name in enumerate(self.fixed)}
        number.update((name, i) for i, name in enumerate(self.fixed))
        found = [number.get(name, None if key is None else number.get(key)) for name, key in zip(self.known, keys)]
        if None in found:
            name = list(self.known)[found.index(None)]
            raise Failure(DATA, f"label '{shortened(name)}' is not among those of --labels-from: {listed(self.fixed)}")
        return found


class LabelledShard:
    """What --label adds to a Shard: PREFIX.labels, and PREFIX.labels.json if the labels have names."""

    def __init__(self, labels):
        self.labels = labels
        self.places = array.array("i")

    def add(self, labels):
        self.places.extend(map(self.labels.place, labels))

    def take_last(self):
        return [list(self.labels.known)[self.places.pop()]]

    def contents(self):
        """The bytes of each file, by the end of its name."""
        numbers, names = self.labels.numbers()
        texts = {".labels": struct.pack(f"<{len(self.places)}i", *(numbers[place] for place in self.places))}
        if names:
            id2label = {str(i): name for i, name in enumerate(names)}
            texts[".labels.json"] = (json.dumps({"id2label": id2label}, indent=1, ensure_ascii=False) + "\n").encode()
            if len(texts[".labels.json"]) > MOST_NAME_BYTES:
                raise Failure(DATA, f"the names of {len(names):,} labels take {len(texts['.labels.json']):,} bytes, expected at "
                                    f"most {MOST_NAME_BYTES:,}; hint: is --label the column of the labels?")
        return texts


class Shard:
    """PREFIX.bin, PREFIX.idx and, if there is `beside` (".mask" or ".types"), a file with a byte for each token, under
    temporary names until publish(). labels: a Labels, or None."""

    def __init__(self, prefix, vocabulary, beside, labels=None):
        self.prefix = prefix
        self.token_bytes = array.array(typecode(vocabulary)).itemsize
        self.lengths = array.array("i")
        self.tokens = 0
        self.learned = 0  # tokens whose mask is 1
        self.files = {}  # the end of a name: its file; its name is a temporary one
        self.beside, self.labelled = beside, LabelledShard(labels) if labels else None
        try:
            self.bin = self.create(".bin")
            self.mask = self.create(beside) if beside else None
        except OSError:
            self.discard()
            raise

    def create(self, end):
        """A new file under a name that no other process has, be it in another container with the same numbers."""
        file = open(f"{self.prefix}{end}.tmp-{os.getpid()}-{secrets.token_hex(8)}", "x+b")
        self.files[end] = file
        return file

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

    def finish(self):
        """Writes what is left to write, all to the disk."""
        for end, text in (self.labelled.contents() if self.labelled else {}).items():
            self.create(end).write(text)
        idx = self.create(".idx")
        self.write_lists(idx)
        self.write_digests(idx)
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())

    def write_lists(self, idx):
        count = len(self.lengths)
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

    def write_digests(self, idx):
        """Appends what shows that the other files are of this run: their sizes, and a digest of each block of them."""
        files = [self.files.get(end) for end in (".bin", *COMPANIONS)]
        sizes = [file.seek(0, os.SEEK_END) if file else 0 for file in files]
        idx.write(SET_MAGIC + struct.pack(f"<{len(sizes)}Q", *sizes))
        for file in filter(None, files):
            file.seek(0)
            while block := file.read(SET_BLOCK):
                idx.write(hashlib.blake2b(block, digest_size=16).digest())
                interrupt.check()

    def discard(self):
        """Closes the files, and removes those that have no other name yet."""
        for file in self.files.values():
            with contextlib.suppress(OSError):  # a full disk, again
                file.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file.name)


def sync_folders(shards):
    """Makes the names in the shards' folder last, so that a loss of power keeps their order."""
    for folder in {os.path.dirname(shard.prefix) or "." for shard in shards}:
        try:
            number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(number)
            finally:
                os.close(number)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):  # some folders cannot be synced
                raise


def publish(shards):
    """Gives the files their names. An earlier shard's .idx goes first and the new one comes last: after a kill in between
    there is no .idx, and ztrain refuses the shard."""
    for shard in shards:
        shard.finish()
    for shard in shards:
        remove(shard.prefix + ".idx")
    sync_folders(shards)
    for shard in shards:
        for end in COMPANIONS:
            if end not in shard.files:
                remove(shard.prefix + end)  # an earlier shard's
        for end, file in shard.files.items():
            if end != ".idx":
                os.replace(file.name, shard.prefix + end)
    sync_folders(shards)
    for shard in shards:
        os.replace(shard.files[".idx"].name, shard.prefix + ".idx")
    sync_folders(shards)


def remove(path):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)

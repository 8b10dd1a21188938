"""From tokens to the files of a shard, which get their names when all is written."""
import array
import json
import os
import re
import struct

from .errors import DATA, Failure, listed, shortened
from .tokenizer import typecode

MOST_LABELS = 2**31 - 1  # PREFIX.labels has 32 bits for a number
MOST_NAME_BYTES = 16 << 20  # that ztrain reads from PREFIX.labels.json
WHOLE = re.compile(r"(-?[0-9]{1,18})(\.0*)?")


def whole_number(label):
    """The number that a label is, or None: it is a text."""
    found = WHOLE.fullmatch(label)
    return int(found[1]) if found else None


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
            return [names[str(i)] + "" for i in range(len(names))]  # texts, or a TypeError
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
            if len(texts[".labels.json"]) > MOST_NAME_BYTES:
                raise Failure(DATA, f"the names of {len(names):,} labels take {len(texts['.labels.json']):,} bytes, expected at "
                                    f"most {MOST_NAME_BYTES:,}; hint: is --label the column of the labels?")
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

# SPDX-License-Identifier: Apache-2.0
"""From text to tokens: a token for each byte, or the tokenizer of a Hugging Face folder."""
import array
import contextlib
import itertools
import json
import math
import os
import sys

from .errors import DATA, Failure, USAGE
from .tokenizer_folder import TokenizerFolder, read_object

EOS_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<|im_end|>", "<eos>", "[EOS]", "<|eot_id|>")


def without_blank(part):
    """A part of a tokenizer, as its JSON, that puts no blank before a text."""
    if isinstance(part, list):
        return [without_blank(one) for one in part if one.get("type") != "Prepend"]
    if part.get("type") == "Prepend":
        return None
    none = {"prepend_scheme": "never", "add_prefix_space": False}
    return {key: without_blank(value) if key in ("normalizers", "pretokenizers") else none.get(key, value) for key, value in part.items()}


class ByteTokenizer:
    """A token per byte."""

    vocabulary, end, begin, replaced = 257, 256, None, 0
    own = ([], [])  # tokens that the tokenizer itself puts before and after a text
    special_texts = ()

    def encode(self, texts):
        """Token arrays of without the end-of-text token."""
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
            if 0 < max_length < whole:
                texts = self.cut(texts, max_length - len(between))
            ids = array.array("H", itertools.chain(texts[0], between, *texts[1:]))
            first = len(texts[0]) + len(between)
            yield ids, bytes(first) + bytes([1]) * (len(ids) - first), len(ids) < whole

    @staticmethod
    def cut(texts, room):
        """One or two texts that take `room` bytes together: what is too much comes off the longer one, or off both."""
        shorter = min(map(len, texts))
        if len(texts) == 1:
            return [texts[0][:room]]
        if 2 * shorter > room:
            return [texts[0][: (room + 1) // 2], texts[1][: room // 2]]
        return [text[: room - shorter] if len(text) > shorter else text for text in texts]

    def joined(self, names, special):
        """How encode_labelled puts a pair together, with names for its texts."""
        return " <256> ".join(names) if special else " ".join(names)

    def encode_marked(self, texts, spans):
        """(token array, mask) of each text (str), whose spans of characters (start, end) have 1 in the mask."""
        for text, marked in zip(texts, spans):
            mask, whole = bytearray(), text.encode("utf-8", "replace")
            for start, end in marked:
                first, last = (len(text[:n].encode("utf-8", "replace")) for n in (start, end))
                mask += bytes(first - len(mask)) + b"\1" * (last - first)
            yield next(self.encode([whole])), mask + bytes(len(whole) - len(mask))

    def encode_pairs(self, pairs):
        """(token array, mask) of each [prompt, completion], whose completion has 1 in the mask."""
        for prompt, completion in pairs:
            prompt, completion = (text.encode("utf-8", "replace") for text in (prompt, completion))
            yield next(self.encode([prompt + completion])), bytes(len(prompt)) + b"\1" * len(completion)

    @staticmethod
    def decode(ids):
        return bytes(i for i in ids if i < 256).decode("utf-8", "replace") + "<256>" * (256 in ids)


class FolderTokenizer:
    """A tokenizer of Hugging Face's `tokenizers` package."""

    replaced = 0  # documents that were not UTF-8

    def __init__(self, folder, end_of_text, labelled):
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the worker processes are the parallelism
        whole = TokenizerFolder(folder)
        self.tokenizer, named = whole.tokenizer, whole.named
        ids = self.tokenizer.get_vocab(with_added_tokens=True)
        self.vocabulary = max(ids.values(), default=-1) + 1
        if labelled:  # its own post-processor adds the special tokens, to pairs as well
            self.end, self.own, self.begin = None, ([], []), None
            return
        self.end = self.end_token(folder, ids, end_of_text, named)
        self.own = self.own_tokens(folder)
        self.begin = ids.get(named.get("bos_token"), self.own[0][0] if self.own[0] else None)
        added = self.tokenizer.get_added_tokens_decoder().values()
        self.special_texts = tuple(token.content for token in added if token.content.strip())

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

    def joined(self, names, special):
        """How encode_labelled puts a pair together, with names for its texts."""
        encoding, parts = self.tokenizer.encode("a", "b", add_special_tokens=special), []
        for token, text in zip(encoding.tokens, encoding.sequence_ids):
            if text is None or not parts or parts[-1] != names[text]:
                parts.append(token if text is None else names[text])
        return " ".join(parts)

    def encode_marked(self, texts, spans):
        """(token array, mask) of each text (str): a token has 1 in the mask if any of its characters is in a span."""
        texts = [text.encode("utf-8", "replace").decode() for text in texts]
        for encoding, marked in zip(self.tokenizer.encode_batch(texts, add_special_tokens=False), spans):
            mask, rest, first, last = bytearray(len(encoding.ids)), iter(marked), 0, 0
            for position, (start, end) in enumerate(encoding.offsets):
                while last <= start:
                    first, last = next(rest, (math.inf, math.inf))
                if end > first:
                    mask[position] = 1
            yield array.array("i", encoding.ids), mask

    def encode_pairs(self, pairs):
        """(token array, mask) of each [prompt, completion], whose completion has 1 in the mask. No token has characters of
        both: each is tokenized by itself, a completion without the blank that some tokenizers put before a text."""
        pairs = [[text.encode("utf-8", "replace").decode() for text in pair] for pair in pairs]
        first = self.tokenizer.encode_batch([prompt or completion for prompt, completion in pairs], add_special_tokens=False)
        with self.no_blank_before():
            second = self.tokenizer.encode_batch([completion if prompt else "" for prompt, completion in pairs],
                                                 add_special_tokens=False)
        for (prompt, _), begin, end in zip(pairs, first, second):
            learned = b"\0" if prompt else b"\1"
            yield array.array("i", begin.ids + end.ids), learned * len(begin.ids) + b"\1" * len(end.ids)

    @contextlib.contextmanager
    def no_blank_before(self):
        """The tokenizer puts no blank before a text meanwhile, as Llama 2's does."""
        whole = self.tokenizer.normalizer, self.tokenizer.pre_tokenizer
        bare = json.loads(type(self.tokenizer)(type(self.tokenizer.model)()).to_str())  # without a vocabulary
        for name, part in zip(("normalizer", "pre_tokenizer"), whole):
            bare[name] = without_blank(json.loads(part.__getstate__())) if part else None
        bare = self.tokenizer.from_str(json.dumps(bare))
        self.tokenizer.normalizer, self.tokenizer.pre_tokenizer = bare.normalizer, bare.pre_tokenizer
        try:
            yield
        finally:
            self.tokenizer.normalizer, self.tokenizer.pre_tokenizer = whole

    def decode(self, ids):
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    @staticmethod
    def end_token(folder, ids, name, named):
        if name is not None:
            if name not in ids:
                raise Failure(USAGE, f"--end-of-text '{name}' is not in the vocabulary of '{folder}'")
            return ids[name]
        if "eos_token" in named:
            return ids[named["eos_token"]]
        for file in ("generation_config.json", "config.json"):
            value = read_object(folder, file).get("eos_token_id")
            if isinstance(value, list) and value:
                value = value[0]
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
                            f"hint: hf download {name} fetches a model of that name; --tokenizer byte needs none")
    folder = os.path.join(model, "snapshots", revision)
    if not os.path.isdir(folder):
        raise Failure(DATA, f"the local cache names the snapshot '{folder}', which does not exist; hint: hf download {name}")
    return folder


def open_tokenizer(name, end_of_text, labelled=False):
    if name == "byte":
        if end_of_text is not None:
            raise Failure(USAGE, "--end-of-text goes with a tokenizer folder; the byte vocabulary's is 256")
        return ByteTokenizer()
    return FolderTokenizer(find_folder(name), end_of_text, labelled)


def typecode(vocabulary):
    return "H" if vocabulary <= 65536 else "i"

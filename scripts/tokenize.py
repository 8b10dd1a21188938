#!/usr/bin/env python3
"""Turns text and conversations into token shards for ztrain: PREFIX.bin and PREFIX.idx (Megatron-LM's format), and for
conversations PREFIX.mask, which says what is learned from.

One process reads the inputs and cuts them into documents. It sends batches of documents to several worker processes, which
tokenize them and sort them into training and validation, and writes the results in order. At most a few batches per worker
are under way, so memory stays bounded however large the inputs are (the length of each document, 4 bytes, is kept until the
index is written). Everything is written under temporary names and renamed at the end, so a shard that exists is whole.

The parts are in the folder `tokenization` beside this file. It needs Python 3.9 or newer and the standard library only; the
package `tokenizers` if --tokenizer names a folder, `jinja2` for chat templates, `pyarrow` for parquet, `zstandard` for .zst
files.
"""
import importlib
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.realpath(__file__))

# A module of the standard library has this file's name, and many others import it: keep this folder off the path, and if a
# neighbouring script has imported this file instead of that module, replace it by the right one.
sys.path[:] = [p for p in sys.path if os.path.realpath(p or ".") != HERE]
if __name__ == "tokenize":
    del sys.modules["tokenize"]
    importlib.import_module("tokenize")


def load_parts():
    """The package `tokenization`, although its folder is not on the path."""
    folder = os.path.join(HERE, "tokenization")
    found = importlib.util.spec_from_file_location("tokenization", os.path.join(folder, "__init__.py"),
                                                   submodule_search_locations=[folder])
    package = importlib.util.module_from_spec(found)
    sys.modules["tokenization"] = package
    try:
        found.loader.exec_module(package)
    except FileNotFoundError:
        sys.exit(f"tokenize: error: there is no folder '{folder}'; hint: copy it along with tokenize.py")


load_parts()

import collections
import signal

from tokenization.encode import LOST, REFUSED, Encoder, first_of, roles_shown
from tokenization.errors import DATA, USAGE, Failure, interrupt
from tokenization.inputs import batches, documents, find_files, kind_of
from tokenization.options import parse
from tokenization.progress import Progress, show_sample, summary, summary_labels
from tokenization.shards import Labels, Shard
from tokenization.workers import encoded


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
        if counts[REFUSED] * 10 > counts["conversations"]:
            raise Failure(DATA, f"{counts[REFUSED]:,} of {counts['conversations']:,} conversations cannot be used, more than a "
                                f"tenth; the first: {first_of(REFUSED, counts)}")
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
    if counts[REFUSED]:
        print(f"left out   {counts[REFUSED]:,} of {counts['conversations']:,} conversations; the first: "
              + first_of(REFUSED, counts))
    if counts[LOST]:
        print(f"not shown  {counts[LOST]:,} conversations have texts that the chat template does not render; the first: "
              + first_of(LOST, counts))
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

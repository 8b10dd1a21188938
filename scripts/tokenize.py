#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns text and conversations into token shards for ztrain: PREFIX.bin and PREFIX.idx (Megatron-LM's format), and for
conversations PREFIX.mask, which says what is learned from; for labelled documents PREFIX.labels.

One process reads the inputs and cuts them into documents. It sends batches of documents to several worker processes, which
tokenize them and sort them into training and validation, and writes the results in order. At most a few batches per worker
are under way, so memory stays bounded however large the inputs are (the length of each document, 4 bytes, is kept until the
index is written). Everything is written under temporary names and renamed at the end, so a shard that exists is whole.

The parts are in the folder `tokenization` beside this file. It needs Python 3.9 or newer and the standard library only; the
package `tokenizers` if --tokenizer names a folder, `jinja2` for chat templates, `pyarrow` for parquet and Arrow, `zstandard`
for .zst files before Python 3.14.
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
        sys.exit(f"ztrain-tokenize: error: there is no folder '{folder}'; hint: copy it along with tokenize.py")


load_parts()

import collections
import contextlib
import signal

from tokenization.encode import LOST, REFUSED, Encoder, first_of, roles_shown
from tokenization.errors import DATA, USAGE, Failure, interrupt
from tokenization.files import find_files, kind_of
from tokenization.inputs import batches, documents
from tokenization.options import parse
from tokenization.progress import (Progress, close_streams, complain, dropped_lines, open_streams, say, show_sample,
                                   summary, summary_inputs, summary_labels, summary_preferences)
from tokenization.shards import Labels, Shard, publish
from tokenization.workers import encoded


def check_kinds(args, files):
    """Options that go with some kinds of files only."""
    kinds = {kind_of(path) for path, _ in files}
    if args.fields_given and kinds == {"text"}:
        raise Failure(USAGE, "--fields goes with .jsonl, .csv, .parquet and .arrow inputs, and there is none")
    if args.document_given and "text" not in kinds:
        raise Failure(USAGE, "--document goes with text inputs, and there is none; each object or row is a document")
    if args.quoting and "csv" not in kinds:
        raise Failure(USAGE, "--quoting goes with .csv and .tsv inputs, and there is none")


def run(args):
    found = find_files(args.inputs, args.fields_given or args.form != "text")
    check_kinds(args, found.files)
    encoder = Encoder(args)
    progress = Progress(sum(size for _, size in found.files))
    folder = os.path.dirname(args.output)
    shards, counts, sample = [], collections.Counter(), None
    labels = Labels.of_shard(args.labels_from) if args.labels_from else Labels() if args.form in ("label", "preference") else None
    beside = ".mask" if args.form in ("chat", "completion", "preference") else None
    if args.form == "label" and len(args.fields) == 2:
        beside = ".types"
    try:
        if folder:
            os.makedirs(folder, exist_ok=True)
        for prefix in [args.output] + [args.output + "-validation"] * (args.validation > 0):
            shards.append(Shard(prefix, encoder.tokenizer.vocabulary, beside, labels))
        with contextlib.closing(encoded(args, encoder, batches(documents(found, args, progress)))) as results:
            for parts, some, example in results:
                for shard, part in zip(shards, parts):
                    shard.add(*part)
                counts.update(some)
                sample = sample or example
                progress.show(sum(shard.tokens for shard in shards))
                interrupt.check()
        progress.clear()
        if counts[REFUSED] * 10 > counts["conversations"]:
            raise Failure(DATA, f"{counts[REFUSED]:,} of {counts['conversations']:,} {noun(args)} cannot be used, more "
                                f"than a tenth; the first: {first_of(REFUSED, counts)}")
        total = sum(len(shard.lengths) for shard in shards)
        if args.form == "preference" and found.answers:
            labels.fixed = list(found.answers[0])
            if total == 0:
                raise Failure(DATA, "nothing to learn from; dropped: " + "; ".join(dropped_lines(found.paired(), counts)))
        if total == 0 and counts["dropped"]:
            raise Failure(DATA, f"nothing to learn from in {counts['dropped']:,} documents: "
                                + ("the assistant says nothing in them" if args.form == "chat" else "no completion")
                                + ", or --max-length cuts it off" + roles_shown(counts))
        if total == 0:
            raise Failure(DATA, "the inputs hold no text")
        if len(shards) == 2:
            leave_none_empty(*shards, total, 2 if found.paired() else 1)
        publish(shards)
    except OSError as error:
        raise Failure(DATA, f"cannot write '{args.output}': {error.strerror or error}")
    finally:
        for shard in shards:
            shard.discard()
    try:
        report(args, encoder, shards, labels, found, counts, sample)
    except BrokenPipeError:
        pass  # who reads it has gone
    except OSError as error:
        raise Failure(DATA, f"cannot write to standard output: {error.strerror}; the shards are whole")


def noun(args):
    return "rows" if args.form == "preference" else "conversations"


def leave_none_empty(train, validation, total, together):
    """Moves documents so that both shards have some. together: documents that stay together"""
    if total == together:
        raise Failure(DATA, ("one document cannot be split; hint: --document paragraph, or no --validation" if together == 1
                             else "one pair cannot be split; hint: no --validation"))
    source, target = (train, validation) if not validation.lengths else (validation, train)
    if not target.lengths:
        for document in reversed([source.take_last() for _ in range(together)]):
            target.add(*document)


def report(args, encoder, shards, labels, found, counts, sample):
    """What was written, and what became of the inputs."""
    for name, shard in zip(("train", "validation"), shards):
        summary(name, shard)
    if args.form == "preference":
        summary_preferences(labels, shards, found.paired(), counts)
    elif labels:
        summary_labels(labels, shards)
    if counts[REFUSED]:
        say(f"left out   {counts[REFUSED]:,} of {counts['conversations']:,} {noun(args)}; the first: {first_of(REFUSED, counts)}")
    if counts[LOST]:
        say(f"not shown  {counts[LOST]:,} conversations have texts that the chat template does not render; the first: "
            + first_of(LOST, counts))
    if args.form == "label" and len(args.fields) == 2:
        names = [f"column {field}" if field.isdecimal() else field for field in args.fields]
        say(f"joined     {encoder.tokenizer.joined(names, encoder.add_special)}")
    summary_inputs(args, found, counts)
    if counts["dropped"]:
        say(f"dropped    {counts['dropped']:,} documents with nothing to learn from{roles_shown(counts)}")
    if counts["truncated"]:
        say(f"truncated  {counts['truncated']:,} documents, to {args.max_length:,} tokens")
    if counts["not UTF-8"]:
        say(f"not UTF-8  {counts['not UTF-8']:,} documents: U+FFFD stands for each wrong byte")
    if len(shards) == 1 and os.path.exists(args.output + "-validation.bin"):
        say(f"left       {args.output}-validation.bin belongs to an earlier run: its documents may be in {args.output} as well")
    vocabulary, end = encoder.tokenizer.vocabulary, encoder.tokenizer.end
    if sample:
        show_sample(*sample)
    named = "" if end is None else f", end-of-text token {end}"
    say(f"vocabulary {vocabulary:,} ids{named}: the model needs vocab_size {vocabulary} or more")
    sys.stdout.flush()


def main():
    open_streams()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt.notice)
    try:
        run(parse(sys.argv[1:]))
    except Failure as failure:
        complain(failure.message)
        return failure.code
    except MemoryError:
        complain("out of memory; hint: shorter documents, or fewer --workers")
        return DATA
    except RecursionError:
        complain("a value of the inputs is nested too deeply")
        return DATA
    except BrokenPipeError:
        pass  # who reads --help has gone
    except OSError as error:
        complain(f"cannot open '{error.filename}': {error.strerror}" if error.filename else str(error))
        return DATA
    finally:
        close_streams()
    return 0


if __name__ == "__main__":
    sys.exit(main())

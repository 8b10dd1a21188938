# SPDX-License-Identifier: Apache-2.0
"""What the terminal shows while shards are written, and after it. A terminal or reader that has gone is no failure: the shards
are what counts."""
import collections
import math
import os
import sys
import time

from .errors import printable, shortened
from .preferences import DROPPED, MERGED
from .shards import whole_number


def open_streams():
    """Standard streams that the caller closed lead nowhere; a file that is opened would get their number otherwise."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # what the locale cannot write


def close_streams():
    """Python flushes the streams at its end, and must not fail then."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def complain(message):
    try:
        print(f"ztrain-tokenize: error: {printable(message)}", file=sys.stderr, flush=True)
    except OSError:
        pass


def say(line):
    print(printable(line))


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
        self.put(f"\r[{'#' * int(share * 30):<30}] {line}\033[K" if self.terminal else f"ztrain-tokenize: {line}\n")

    def clear(self):
        if self.terminal:
            self.put("\r\033[K")

    def put(self, text):
        try:
            print(text, end="", file=sys.stderr, flush=True)
        except OSError:
            self.shown, self.terminal = math.inf, False  # nobody reads it any more


def summary(name, shard):
    kind = "uint16" if shard.token_bytes == 2 else "int32"
    masked = shard.beside == ".mask"
    learned = f", {shard.learned:,} of them learned from ({shard.learned / shard.tokens:.1%})" if masked else ""
    say(f"{name:<10} {len(shard.lengths):,} documents, {shard.tokens:,} tokens ({kind}){learned}: {shard.prefix}.bin, .idx"
        + "".join(f", {end}" for end in shard.files if end not in (".bin", ".idx")))


def summary_inputs(args, found, counts):
    """What became of the inputs: files that are no data, texts that were cut into documents."""
    if found.cut and args.document == "paragraph":
        say(f"cut        text at blank lines, into {found.cut:,} documents"
            + "; hint: --document line or file cuts otherwise" * (not args.document_given))
    if found.marked:
        say(f"quoting    {found.marked:,} rows of .tsv have a field between quotation marks, which stay; hint: --quoting minimal "
            "takes them off")
    if counts["empty"] or found.binary:
        say(f"left out   {counts['empty']:,} empty documents, {found.binary:,} binary files")
    for paths, what in ((found.left_out, "left out   {}: no data; hint: name such a file to take it"),
                        (found.held_out, "taken      {}: not for training, by the name; hint: name the files to train on instead"),
                        (found.misnamed, "misnamed   {}: not compressed as the name says, and read as it is")):
        if paths:
            say(what.format(", ".join(f"'{path}'" for path in paths[:4]) + f" and {len(paths) - 4:,} more" * (len(paths) > 4)))


def summary_labels(labels, shards):
    """The number of documents of each label, over all shards."""
    numbers, names = labels.numbers()
    counts = collections.Counter(numbers[place] for shard in shards for place in shard.labelled.places)
    most = max(counts) + 1 if not names else len(names)
    shown = [f"{shortened(names[i]) if names else i}: {counts[i]:,}" for i in range(min(most, 12))]
    say(f"labels     {most:,} ({', '.join(shown)}{', …' if most > 12 else ''})")
    if names and labels.fixed is None and all(whole_number(name) is not None for name in names):
        say(f"numbered   the labels {names[0]} … {names[-1]} from 0 on; their names stay")


def dropped_lines(paired, counts):
    """["3 pairs: why they are left out"] of preference data."""
    found = sorted((name[len(DROPPED):], count) for name, count in counts.items() if name.startswith(DROPPED))
    return [f"{count:,} {'pair' if paired else 'example'}{'s' * (count != 1)}: {why}" for why, count in found]


def summary_preferences(labels, shards, paired, counts):
    """The number of pairs, or of documents of each label, and what is left out."""
    places = collections.Counter(place for shard in shards for place in shard.labelled.places)
    found = {name: places[place] for name, place in labels.known.items()}
    if paired:
        say(f"pairs      {found['chosen']:,}: a chosen document, then the rejected one")
    else:
        say("examples   " + ", ".join(f"{found.get(name, 0):,} {name}" for name in reversed(labels.fixed)))
    for line in dropped_lines(paired, counts):
        say(f"dropped    {line}")
    if counts[MERGED]:
        say(f"merged     {counts[MERGED]:,} prompts have other tokens at the end when an answer follows: the answer begins there")


SAMPLE_CHARACTERS = 2000


def show_sample(label, what, parts):
    """Prints a document, [(whether it is marked, text)], with what is marked in green, or between brackets where there is no
    terminal. label, what: its label and what the mark stands for, or None."""
    colours = sys.stdout.isatty()
    begin, end, dim, plain = ("\033[32m", "\033[0m", "\033[2m", "\033[0m") if colours else ("⟦", "⟧", "", "")
    facts = [] if label is None else [f"labelled {shortened(label)}"]
    facts += [] if what is None else [("in green" if colours else "between ⟦ and ⟧") + f" is {what}"]
    say(f"sample     {'; '.join(facts)}:")
    left = SAMPLE_CHARACTERS
    for marked, text in parts:
        shown = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text[:left])
        left -= len(shown)
        print(begin + shown + end if marked else dim + shown + plain, end="")
        if left <= 0:
            print(" …", end="")
            break
    print()

"""What the terminal shows while shards are written, and after it."""
import collections
import sys
import time


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

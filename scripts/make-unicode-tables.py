#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the rows of unicode_newer in core/text/unicode.c: characters that the Rust package `tokenizers` may know otherwise
than the Unicode libraries of a system.

The package's regular expressions have the categories of Unicode 16, its NFC is that of Unicode 9. Python's `unicodedata` stands
for the oldest libraries (Unicode 14, as in Python 3.11).

    scripts/make-unicode-tables.py    (takes a minute; needs the Python package tokenizers)
"""
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = "Cn Cc Cf Co Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp".split()
POINTS = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]


def members(pattern, text):
    """The code points that match a pattern."""
    pieces = pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str(text)
    return set(POINTS).difference(*({ord(c) for c in piece} for piece, _ in pieces))


def categories():
    """{code point: category} of the package."""
    text = "".join(map(chr, POINTS))
    return {c: name for name in CATEGORIES for c in members(r"\p{%s}" % name, text)}


def unknown_to_nfc():
    """The code points with a class or a decomposition of which the package's NFC knows nothing, and what these consist of."""
    nfd, low, high, found = normalizers.NFD(), "\u0334", "\u0345", set()  # classes 1 and 240
    for c in POINTS:
        char, parts = chr(c), unicodedata.decomposition(chr(c)).split()
        if unicodedata.combining(char) and nfd.normalize_str(char + low) == char + low and nfd.normalize_str(high + char) == high + char:
            found.add(c)
        if parts and not parts[0].startswith("<") and nfd.normalize_str(char) == char:
            found |= {c, int(parts[-1], 16)}
    return found


def main():
    assert unicodedata.unidata_version == "14.0.0", "this Python has another version of Unicode than 14"
    named = categories()
    listed = unknown_to_nfc()
    listed |= {c for c in POINTS if named.get(c, "Cn") != unicodedata.category(chr(c))}
    runs = []
    for c in sorted(listed):
        if runs and runs[-1][1] == c - 1 and runs[-1][2] == named.get(c, "Cn"):
            runs[-1][1] = c
        else:
            runs.append([c, c, named.get(c, "Cn")])
    line = "   "
    for first, last, name in runs:
        row = ' {%#x, %#x, "%s"},' % (first, last, name)
        if len(line) + len(row) > 120:
            print(line)
            line = "   "
        line += row
    print(line)


if __name__ == "__main__":
    main()

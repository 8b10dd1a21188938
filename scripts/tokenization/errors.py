# SPDX-License-Identifier: Apache-2.0
"""How scripts/tokenize.py ends early: with a message and an exit code, or by a signal between two batches. And how texts from
outside are shown in messages."""
import signal

USAGE, DATA = 2, 3  # exit codes, those of ztrain


def printable(text):
    """Text from outside as a terminal may show it: control characters and the like become escapes."""
    return text if text.isprintable() else "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shortened(text, length=60):
    return text if len(text) <= length else text[: length - 1] + "…"


def listed(names):
    """Names as a message has them."""
    return shortened(", ".join(shortened(str(name)) for name in list(names)[:12]), 240)


def hint_to_install(package):
    """Debian's pip refuses outside a venv, and a venv's Python runs ztrain-tokenize only if it is the first on PATH."""
    return f"; hint: pip install {package}, in a venv whose bin is on PATH (docs/install.md)"


class Failure(Exception):
    """What is wrong, in one line, and the exit code that it has."""

    def __init__(self, code, message):
        super().__init__(code, message)
        self.code, self.message = code, message


class Interrupt:
    """SIGINT and SIGTERM, noticed between batches: an exception out of a signal handler could leave the process pool
    with a lock held, and its shutdown would wait forever. A second signal ends the process at once."""

    number = 0

    def notice(self, number, _):
        self.number = number
        signal.signal(number, signal.SIG_DFL)

    def check(self):
        if self.number:
            raise Failure(128 + self.number, "interrupted, nothing written")


interrupt = Interrupt()

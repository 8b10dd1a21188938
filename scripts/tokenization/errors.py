"""How scripts/tokenize.py ends early: with a message and an exit code, or by a signal between two batches."""
import signal

USAGE, DATA = 2, 3  # exit codes, those of ztrain


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

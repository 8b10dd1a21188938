# SPDX-License-Identifier: Apache-2.0
"""Every system call on the run's files fails once, with each error that it may have, or moves half of its bytes; and the
process is killed at every one of them, and at random instants.

A failure is survived if the run ends as it always does, or with a documented code and final error; every checkpoint that it
had published is whole; after a resume the numbers of all steps are those of an unbroken run; and nothing is left in the folder
of offload to nvme, of which the sweeps break the calls that concern it.
"""
import errno
import os
import random
import re
import signal
import subprocess
import time

from lab import (BESIDE, BROKEN, CHECKPOINT, DATA, DEVICE, ENVIRONMENT, FINISHED, PREFERENCES, TO_DISK, USAGE, Metrics, Sweep, differences,
                 state_of)

BREAKER = "call_breaker"
ERRORS = {
    "open": ("EIO", "ESTALE", "EINTR", "EMFILE", "EACCES"),
    "read": ("EIO", "ESTALE", "EINTR", "half"),
    "write": ("EIO", "ENOSPC", "ESTALE", "EINTR", "half"),
    "sync": ("EIO", "ENOSPC", "ESTALE"),
    "close": ("EIO", "ENOSPC", "EINTR"),
    "rename": ("EIO", "ENOSPC", "ESTALE"),
    "mkdir": ("EIO", "ENOSPC", "EACCES"),
    "remove": ("EIO", "EACCES"),
    "link": ("EIO", "ENOSPC"),
    "truncate": ("EIO", "EINTR"),
    "stat": ("EIO", "ESTALE", "EACCES"),
    "list": ("EIO", "ESTALE"),
    "lock": ("ENOLCK", "EIO", "EINTR"),
    "seek": ("EIO",),
    "reserve": ("EIO", "ENOSPC", "EINTR", "EOPNOTSUPP"),
}
ALLOWED = (USAGE, DATA, CHECKPOINT, DEVICE)
START = ["--config", "run.yaml"]
RESUME = [*START, "--resume", "runs/run"]
# Of these runs only calls on some paths are broken: the others are those of any run
PATHS = [(TO_DISK, "(^|/)disk($|/)"), (PREFERENCES, "/references($|/)")]


class Breaker:
    """Runs commands with one call broken. The templates: nothing yet, and a run that has stopped half way."""

    def __init__(self, sweep, options, more=()):
        self.sweep, self.more = sweep, more
        self.breaker = os.path.join(options.faults, BREAKER)
        self.exists = os.access(self.breaker, os.X_OK)
        whole = sweep.new_place()
        whole.clear()
        done = whole.run([*START, *more])
        assert done.code == FINISHED, done.err
        self.wanted = state_of(whole)
        half = sweep.new_place()
        half.clear()
        done = half.run([*START, "--set", "train.max_steps=2"])
        assert done.code == FINISHED, done.err
        self.half = half.path

    def run(self, place, number, action, arguments):
        """Returns how the command ended, and whether the call was broken."""
        log = place.path + ".calls"
        result = place.run(arguments, before=[self.breaker, log, str(number), str(action)])
        with open(log, encoding="utf-8", errors="replace") as f:
            return result, [line.rstrip("\n") for line in f]

    def calls(self, template, arguments):
        """(number, kind, path) of the calls of an unbroken command."""
        place = self.sweep.new_place(template)
        place.clear()
        result, lines = self.run(place, 0, 0, arguments)
        assert result.code == FINISHED, result.err
        calls = [(int(n), kind, path) for n, kind, path in (line.split(" ", 2) for line in lines)]
        wanted = [path for more, path in PATHS if more and list(self.more[:len(more)]) == more]
        return [call for call in calls if re.search(wanted[0], call[2])] if wanted else calls

    def at_the_end(self, place):
        """Brings the run to its end; returns the reason why it is wrong, or None."""
        fault = place.finish(self.more)
        if fault:
            return fault
        got = state_of(place)
        if got.get("metrics.jsonl") != self.wanted["metrics.jsonl"]:
            return f"other numbers: {got.get('metrics.jsonl')}"[:300]
        last = [key for key in differences(self.wanted, got) if key.startswith("checkpoints/epoch-0002/rank")]
        return f"another last checkpoint: {last}" if last else None


def run_errors(options):
    sweep = Sweep("calls", options)
    plain, beside, disk, prefers = (Breaker(sweep, options, more) for more in ((), BESIDE, TO_DISK, PREFERENCES))
    if not plain.exists:
        print("calls: left out: call_breaker is built on x86-64 only")
        return sweep

    def part(name, breaker, template, arguments, share):
        calls, allowed = breaker.calls(template, arguments), (FINISHED, *ALLOWED, *((BROKEN,) if breaker is disk else ()))
        cases = [(n, kind, path, error) for n, kind, path in calls for error in ERRORS[kind]]

        def check(place, case):
            number, kind, path, error = case
            place.template = template
            place.clear()
            result, lines = breaker.run(place, number, error if error == "half" else getattr(errno, error), arguments)
            if "hit" not in lines:
                return ""
            where = f" [{error} of {kind} '{re.sub('^.*place-[0-9]+/', '', path)}']"
            if result.code not in allowed:
                return f"exit {result.code}: {result.err[-300:]}{where}"
            if result.code != FINISHED and not result.final_error:
                return f"exit {result.code} without final error{where}"
            if result.code == FINISHED and Metrics(place.at("runs/run")).numbers() != breaker.wanted["metrics.jsonl"]:
                return f"exit 0 with other numbers: {result.err[-300:]}{where}"
            fault = breaker.at_the_end(place)
            return fault and f"after exit {result.code} ({result.err[-200:].strip()}): {fault}{where}"
        sweep.run(f"{name} ({len(calls)} calls)", sweep.sample(cases, share), check)
    for name, breaker, template, arguments, share in (
            ("train", plain, sweep.template, START, 0.12), ("resume", plain, plain.half, RESUME, 0.12),
            ("beside", beside, sweep.template, [*START, *BESIDE], 0.06), ("nvme", disk, sweep.template, [*START, *TO_DISK], 0.03),
            ("preferences", prefers, sweep.template, [*START, *PREFERENCES], 0.15)):
        if not options.only or options.only in name:
            part(name, breaker, template, arguments, share)
    sweep.close()
    return sweep


def run_kills(options):
    sweep = Sweep("kills", options)
    ranks = ["--local-gpus", "2"]
    alone, both, disk, beside, both_beside, prefers = (
        Breaker(sweep, options, more) for more in ((), ranks, TO_DISK, BESIDE, [*ranks, *BESIDE], [*PREFERENCES, *ranks]))

    def at_calls(name, breaker, template, arguments, share):
        calls = breaker.calls(template, arguments)

        def check(place, case):
            number, action, _ = case
            place.template = template
            place.clear()
            result, lines = breaker.run(place, number, action, arguments)
            if "hit" not in lines:
                return ""
            if action == "kill" and result.code not in (128 + 9, -9):
                return f"exit {result.code}: {result.err[-300:]}"
            if action == "one" and result.code != 128 + 9 and not result.final_error:
                return f"exit {result.code} without final error"
            return breaker.at_the_end(place)
        actions = ("kill", "one") if ranks[0] in arguments else ("kill",)
        cases = [(n, action, f"{kind} {path}") for n, kind, path in calls for action in actions]
        sweep.run(f"{name} ({len(calls)} calls)", sweep.sample(cases, share), check)

    def at_random(name, breaker, count):
        """Kills the command again and again, each time within the time of a whole run, until it ends by itself."""
        place, began = sweep.new_place(), time.monotonic()
        place.clear()
        assert place.run([*START, *breaker.more]).code == FINISHED
        longest = time.monotonic() - began

        def check(place, case):
            place.template = sweep.template
            place.clear()
            instants, kills = random.Random(case), 0
            for _ in range(6):
                more = ["--resume", "runs/run"] if place.has_checkpoints() else []
                process = subprocess.Popen([place.ztrain, *START, *breaker.more, *more], cwd=place.path,
                                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                           start_new_session=True, env={**os.environ, **ENVIRONMENT})
                try:
                    process.wait(instants.uniform(0.01, longest))
                    break
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    kills += 1
            fault = breaker.at_the_end(place)
            return fault if kills or fault else ""
        sweep.run(name, [sweep.random.randrange(1 << 30) for _ in range(count)], check)
    if alone.exists:
        for name, breaker, template, arguments, share in (
                ("train", alone, sweep.template, START, 0.2), ("resume", alone, alone.half, RESUME, 0.2),
                ("two ranks", both, sweep.template, [*START, *ranks], 0.03),
                ("beside", beside, sweep.template, [*START, *BESIDE], 0.1),
                ("beside, two ranks", both_beside, sweep.template, [*START, *ranks, *BESIDE], 0.02),
                ("nvme", disk, sweep.template, [*START, *TO_DISK], 0.06),
                ("preferences, two ranks", prefers, sweep.template, [*START, *PREFERENCES, *ranks], 0.3)):
            if not options.only or options.only in name:
                at_calls(name, breaker, template, arguments, share)
    else:
        print("kills: at system calls: left out: call_breaker is built on x86-64 only")
    count = 400 if options.all else 40
    if not options.only or options.only in "random instants":
        at_random("at random instants", alone, count)
        at_random("two ranks, at random instants", both, count // 5)
    if not options.only or options.only in "beside, at random instants":
        at_random("beside, at random instants", both_beside, count // 5)
    if not options.only or options.only in "nvme, at random instants":
        at_random("nvme, at random instants", disk, count // 8)
    sweep.close()
    return sweep

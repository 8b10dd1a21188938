#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sends a run's metrics to Weights & Biases: the trainer itself has no network beyond its ranks.

    ztrain-wandb RUN [--project NAME] [--entity NAME] [--name NAME] [--id ID] [--offline] [--watch]
                 [--interval SECONDS] [--patience SECONDS]

make install puts it on the PATH under this name; in the source tree it is scripts/to_wandb.py.

RUN is a run folder. What metrics.jsonl has goes under the names that TensorBoard's event files use (Train/Samples/train_loss, …,
Eval/Samples/eval_loss, …), over the number of samples; the effective spec, run.yaml, becomes the run's config. Nothing in the run
folder is changed.

--watch     goes on while the run lasts, and ends with it. A resume, which may replace metrics.jsonl by a shorter file, does not
            interrupt it. Steps only go forward there, so what a resumed run repeats is not sent again
--id        the run's id at wandb: with the id of an earlier call the same run is continued there, and what it has is left out
--offline   writes a folder wandb/offline-run-… in the current folder, which `wandb sync` sends later from a machine with a network
--interval  seconds between two looks at metrics.jsonl (5)
--patience  with --watch: for how many seconds the run's process may be gone until the run counts as over (30), because ranks that
            --max-restarts starts again need a moment

It needs the Python package wandb (pip install wandb), and without --offline a login (wandb login, or WANDB_API_KEY).

Exit codes: 0 done; 2 wrong usage, or the package is missing; 3 the run folder cannot be read; 130 ended by Ctrl-C, after what was
read has been sent.
"""
import argparse
import json
import math
import os
import re
import socket
import sys
import time

USAGE, DATA, INTERRUPTED = 2, 3, 130
TRAIN = (("train_loss", "loss"), ("lr", "lr"), ("loss_scale", "loss_scale"), ("grad_norm", "grad_norm"),
         ("tokens_per_s", "tokens_per_s"), ("mfu", "mfu"))
EVAL = ("eval_loss", "perplexity", "accuracy", "f1")
# A real number in YAML 1.2, which is what ztrain writes: 1e-05 is none in YAML 1.1, which PyYAML reads, but text.
REAL = re.compile(r"[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)$")
SILENT_PERIODS = 4  # of an owner on another machine: then it is gone


class Failure(Exception):
    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


# ---- the run folder -------------------------------------------------------------------------------------------------


def read_config(folder):
    """run.yaml as a dict; {} without one."""
    try:
        import yaml  # wandb brings it along
    except ImportError:
        raise Failure(USAGE, "this needs the Python package 'wandb'; hint: pip install wandb") from None

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", REAL, list("-+.0123456789"))
    try:
        with open(os.path.join(folder, "run.yaml"), encoding="utf-8") as file:
            config = yaml.load(file, Loader)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise Failure(DATA, f"cannot read '{folder}/run.yaml': {' '.join(str(error).split())}") from None
    return config if isinstance(config, dict) else {}


def first_line(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""


def own_process(owner):
    """Whether the owner runs on this machine, where /proc shows it."""
    boot = first_line("/proc/sys/kernel/random/boot_id")
    same = owner["boot"] == boot if owner["boot"] and boot else owner["host"] == socket.gethostname()
    try:
        return same and owner["pid_space"] == os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


def is_alive(owner):
    """Whether the process with the owner's number is the one that wrote it."""
    fields = first_line(f"/proc/{owner['pid']}/stat").rpartition(")")[2].split()
    return len(fields) > 19 and fields[0] not in "ZX" and owner["began"] in (0, int(fields[19]))


def is_running(folder):
    """Whether a process trains in the folder: it writes `owner` there, renews it, and deletes it at its end."""
    path = os.path.join(folder, "owner")
    try:
        with open(path, encoding="utf-8") as file:
            owner = json.load(file)
        if own_process(owner):
            return is_alive(owner)
        return time.time() - os.stat(path).st_mtime < SILENT_PERIODS * owner["period"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def wait_for_config(arguments):
    """With --watch: a process that has just begun in the folder has still to write run.yaml."""
    path = os.path.join(arguments.run, "run.yaml")
    while arguments.watch and not os.path.exists(path) and is_running(arguments.run):
        time.sleep(arguments.interval)


class Follower:
    """The lines of metrics.jsonl as they come, each once for each file: a resume may put another file in its place, whose
    lines, too, come from the beginning. The former one is read to its end first."""

    def __init__(self, folder):
        self.path, self.file, self.rest, self.damaged = os.path.join(folder, "metrics.jsonl"), None, b"", 0

    def replaced(self):
        try:
            now, then = os.stat(self.path), os.fstat(self.file.fileno())
        except OSError:
            return False  # between two names
        return (now.st_dev, now.st_ino) != (then.st_dev, then.st_ino)

    def rows(self):
        """The objects of all complete lines that were not read before."""
        while True:
            if not self.file:
                try:
                    self.file, self.rest = open(self.path, "rb"), b""
                except FileNotFoundError:
                    return
                except OSError as error:
                    raise Failure(DATA, f"cannot read '{self.path}': {error.strerror}") from None
            replaced = self.replaced()  # before the last look at the former file
            yield from self.more()
            if not replaced:
                return
            self.file.close()
            self.file = None

    def more(self):
        while piece := self.file.read(1 << 20):
            *lines, self.rest = (self.rest + piece).split(b"\n")
            for line in lines:
                try:
                    row = json.loads(line)
                except ValueError:
                    row = None
                if isinstance(row, dict):
                    yield row
                else:
                    self.damaged += 1


# ---- to wandb -------------------------------------------------------------------------------------------------------


def scalars(row, scaled):
    """What a line has for wandb: (kind, {name: value}), or None; the names are those of TensorBoard's event files."""
    if "eval_loss" in row:
        return "eval", {f"Eval/Samples/{key}": row[key] for key in EVAL if is_finite(row.get(key))}
    if "loss" not in row or not isinstance(row.get("seconds"), dict):
        return None
    values = {f"Train/Samples/{name}": row[key] for name, key in TRAIN
              if is_finite(row.get(key)) and (scaled or key != "loss_scale")}
    if is_finite(row["seconds"].get("step")):
        values["Train/Samples/step_seconds"] = row["seconds"]["step"]
    return "train", values


def is_finite(value):
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer that is no float
        return False


class Sender:
    """Logs rows in the order of samples, which is wandb's step and never goes back."""

    def __init__(self, run, batch, scaled):
        self.run, self.batch, self.scaled = run, batch, scaled
        self.begin = run.step  # of a run that is continued: what is below is there
        self.sent, self.last, self.repeated = 0, {}, 0

    def take(self, row):
        found = scalars(row, self.scaled)
        step = row.get("step")
        if not found or not isinstance(step, int):
            return
        kind, values = found
        samples = step * self.batch
        if not values:
            return
        if samples < max(self.begin, max(self.last.values(), default=0)) or samples <= self.last.get(kind, -1):
            self.repeated += 1
            return
        self.last[kind] = samples
        self.run.log(values, step=samples)
        self.sent += 1


def follow(arguments, follower, sender):
    """Sends what there is, and with --watch what comes until the run is over."""
    seen = time.monotonic()
    while True:
        now = time.monotonic()  # before the lines are read, so that none is missed at the end
        if arguments.watch and is_running(arguments.run):
            seen = now
        for row in follower.rows():
            sender.take(row)
        if not arguments.watch or now - seen >= arguments.patience:
            return
        time.sleep(arguments.interval)


def send(arguments, run, sender):
    follower = Follower(arguments.run)
    try:
        follow(arguments, follower, sender)
    finally:
        run.finish()
        print(f"ztrain-wandb: {sender.sent} rows sent"
              + (f", {sender.repeated} left out that a resume repeats or wandb has" if sender.repeated else "")
              + (f", {follower.damaged} damaged lines left out" if follower.damaged else ""))


def start(arguments, config):
    here = os.path.dirname(os.path.realpath(__file__))  # its tokenize.py would be taken for Python's
    sys.path[:] = [place for place in sys.path if os.path.realpath(place) != here]
    try:
        import wandb
    except ImportError:
        raise Failure(USAGE, "this needs the Python package 'wandb'; hint: pip install wandb") from None
    name = arguments.name or config.get("run", {}).get("name") or os.path.basename(os.path.abspath(arguments.run))
    try:
        return wandb.init(project=arguments.project, entity=arguments.entity, name=name, id=arguments.id, config=config,
                          resume="allow" if arguments.id and not arguments.offline else None,
                          mode="offline" if arguments.offline else None,
                          settings=wandb.Settings(console="off", disable_git=True, x_disable_stats=True))
    except wandb.errors.Error as error:
        raise Failure(USAGE, f"wandb: {' '.join(str(error).split())}; hint: --offline needs neither network nor login") from None


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS)
    parser.add_argument("run", metavar="RUN", help="the run folder")
    parser.add_argument("--project", default="ztrain", help="(ztrain)")
    parser.add_argument("--entity")
    parser.add_argument("--name", help="(the run's)")
    parser.add_argument("--id")
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--watch", action="store_true")
    parser.add_argument("--interval", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--patience", type=float, default=30.0, metavar="SECONDS")
    arguments = parser.parse_args()
    if not arguments.patience >= 0:
        raise Failure(USAGE, "--patience is 0 seconds or more")
    if not 0.05 <= arguments.interval <= 3600:
        raise Failure(USAGE, "--interval is 0.05 to 3600 seconds")
    return arguments


def main():
    arguments = parse()
    if not os.path.isdir(arguments.run):
        raise Failure(DATA, f"there is no run folder '{arguments.run}'")
    if not os.path.exists(os.path.join(arguments.run, "metrics.jsonl")) and not (arguments.watch and is_running(arguments.run)):
        raise Failure(DATA, f"'{arguments.run}' has no metrics.jsonl; hint: RUN is the folder of a run, such as runs/NAME")
    wait_for_config(arguments)
    config = read_config(arguments.run)
    batch = config.get("train_batch_size")
    if not isinstance(batch, int) or batch <= 0:
        raise Failure(DATA, f"'{arguments.run}/run.yaml' has no train_batch_size")
    run = start(arguments, config)
    scaled = isinstance(config.get("fp16"), dict) and config["fp16"].get("enabled") is True
    send(arguments, run, Sender(run, batch, scaled))


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        print(f"ztrain-wandb: {failure}", file=sys.stderr)
        sys.exit(failure.code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)

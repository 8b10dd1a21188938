# SPDX-License-Identifier: Apache-2.0
"""The common parts of the sweeps: a tiny run in its own folder, its state in a form that can be compared, workers.

Every sweep does the same: it records how an unbroken run ends, breaks one run at a time in every way of its kind, and checks
whether that run ended in an allowed way and can be brought to the unbroken run's end.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "program"))

from harness import LLAMA, SEQUENCE, Folder, Metrics, to_yaml, write_pairs  # noqa: E402

FINISHED, USAGE, DATA, CHECKPOINT, DEVICE, PEER, BROKEN = 0, 2, 3, 4, 5, 6, 8
SECONDS = 120  # a run takes less than a second: one that takes this long hangs
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "ZTRAIN_CPU_GEMM": "builtin", "ZTRAIN_CPU_BF16": "widen", "ZTRAIN_GEMM_CACHE": "",
               "HOME": "/nonexistent", "ZTRAIN_AIO": "threads"}  # whose transfers are system calls that can be broken

SPEC = {
    "run": {"name": "run", "dir": "runs", "seed": 7},
    "model": {"config": {**LLAMA, "num_hidden_layers": 1}},
    "data": {"train": "train", "validation": "validation", "seq_length": SEQUENCE},
    "train": {"epochs": 2, "device": "cpu"},
    "train_batch_size": 12,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 3, "warmup_type": "linear"}},
    "checkpoint": {"interval_steps": 2, "keep_last": 1, "keep_best": 1, "writer": {"decoupled": False}},
}


def settings(**places):
    """Options that put the optimizer's state and the parameters to 'cpu' or 'nvme', there in the folder disk."""
    chosen = ["zero_optimization.stage=3", "aio.block_size=8192", "aio.queue_depth=1"]
    for what, device in places.items():
        chosen.append(f"zero_optimization.offload_{what}.device={device}")
        if device == "nvme":
            chosen.append(f"zero_optimization.offload_{what}.nvme_path=disk")
    return [word for setting in chosen for word in ("--set", setting)]


TO_HOST = settings(optimizer="cpu", param="cpu")
TO_DISK = [*settings(optimizer="nvme", param="nvme"), "--set", "zero_optimization.offload_param.max_in_cpu=0"]


BESIDE = ["--set", "checkpoint.writer.decoupled=true"]  # checkpoints are written beside the training

# A reference is scored before the first step
PREFERENCES = [word for setting in ("preference.loss=sigmoid", "data.train=pairs", "data.validation=few-pairs")
               for word in ("--set", setting)]


class Result:
    """A command that has ended. code: its exit status; -N: killed by signal N; None: it hung and was ended."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def final_error(self):
        return [line for line in self.err.splitlines() if "ztrain: error: " in line]


class Place:
    """One worker's folder; commands run in it and name everything by relative paths, so that their output and files are the
    same in every place."""

    def __init__(self, ztrain, template, path):
        self.ztrain, self.template, self.path = ztrain, template, path

    def at(self, *names):
        return os.path.join(self.path, *names)

    def clear(self):
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.copytree(self.template, self.path, symlinks=True)

    def run(self, arguments, env=None, before=()):
        process = subprocess.Popen([*before, self.ztrain, *arguments], cwd=self.path, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                                   env={**os.environ, **ENVIRONMENT, **(env or {})})
        try:
            out, err = process.communicate(timeout=SECONDS)
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            (out, err), code = process.communicate(), None
        return Result(code, out.decode(errors="replace"), err.decode(errors="replace"))

    def train(self, *more, spec="run.yaml", env=None, before=()):
        return self.run(["--config", spec, *more], env, before)

    def has_checkpoints(self):
        top = self.at("runs/run/checkpoints")
        return os.path.isdir(top) and any(n.startswith(("step-", "epoch-")) for n in os.listdir(top))

    def finish(self, more=()):
        """Brings the run to its end, however it was broken. Returns None, or a text with the fault."""
        if self.has_checkpoints():
            verified = self.run(["verify", "runs/run"])
            if verified.code != FINISHED:
                return f"verify ends with {verified.code}: {verified.out}{verified.err}"
        done = self.train(*more, *(["--resume", "runs/run"] if self.has_checkpoints() else []))
        if done.code != FINISHED:
            return f"the resume ends with {done.code}: {done.err}"
        # A run that is stopped between a file's making and the loss of its name leaves the empty file.
        left = [name for name in os.listdir(self.at("disk")) if os.path.getsize(self.at("disk", name))]
        return f"runs leave {left} in the folder of offload" if left else None


def digest_of(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def manifest_of(path):
    """A manifest without the members that differ between two equal runs."""
    with open(path, encoding="utf-8") as f:
        manifest = json.load(f)
    for volatile in ("time", "checksum"):
        manifest.pop(volatile, None)
    return manifest


def state_of(place, top="runs/run"):
    """All that a run leaves, without times: {file: contents}."""
    top, state = place.at(top), {}
    for folder, folders, names in os.walk(top):
        for name in sorted(names) + [n for n in folders if os.path.islink(os.path.join(folder, n))]:
            path = os.path.join(folder, name)
            key = os.path.relpath(path, top)
            if os.path.islink(path):
                state[key] = os.readlink(path)
            elif name == "metrics.jsonl":
                state[key] = Metrics(folder).numbers()
            elif name.startswith("metrics.jsonl"):
                state[key] = "a former one, as it was"
            elif name == "manifest.json":
                state[key] = manifest_of(path)
            elif not key.startswith("log/") and "owner" not in name and "lock" not in name:
                state[key] = digest_of(path)
    return state


def differences(wanted, got):
    """The names of what differs between two states."""
    return sorted(key for key in wanted.keys() | got.keys() if wanted.get(key) != got.get(key))


def make_template(path):
    """The folder that every place begins as: data, run specs, and an empty disk."""
    os.mkdir(os.path.join(path, "disk"))
    folder = Folder(path)
    folder.data(24, seed=1)
    folder.data(4, seed=2, name="validation")
    write_pairs(folder, "pairs", 24)
    write_pairs(folder, "few-pairs", 4, seed=2)
    with open(folder.at("run.yaml"), "w", encoding="utf-8") as f:
        f.write(to_yaml(SPEC) + "\n")


class Sweep:
    """Counts the injected faults and their outcomes; runs cases on as many workers as there are cores.

    check(place, case): None where it was survived, else what is wrong."""

    def __init__(self, name, options):
        self.name, self.options = name, options
        self.injected = self.survived = 0
        self.lock = threading.Lock()
        self.random = random.Random(options.seed)
        self.scratch = tempfile.mkdtemp(prefix=f"ztrain-{name}-", dir=options.scratch)
        self.template = os.path.join(self.scratch, "template")
        os.mkdir(self.template)
        make_template(self.template)
        self.local = threading.local()
        self.places = 0

    def new_place(self, template=None):
        with self.lock:
            self.places += 1
            number = self.places
        return Place(self.options.ztrain, template or self.template, os.path.join(self.scratch, f"place-{number}"))

    def place(self):
        if not hasattr(self.local, "place"):
            self.local.place = self.new_place()
        return self.local.place

    def sample(self, cases, share):
        """All cases of a whole sweep; of a sampled one about share of them, at least one."""
        cases = list(cases)
        if self.options.all or not cases:
            return cases
        return self.random.sample(cases, max(1, min(len(cases), round(share * len(cases)))))

    def run(self, label, cases, check):
        injected = survived = 0
        faults = {}

        def one(case):
            try:
                return case, check(self.place(), case)
            except Exception as error:  # a broken check is a failed case
                return case, f"{type(error).__name__}: {error}"
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            for case, fault in pool.map(one, cases):
                if fault == "":  # nothing was injected: the run was over before
                    continue
                injected += 1
                survived += fault is None
                if fault:
                    faults.setdefault(fault, []).append(case)
        for fault, broken in list(faults.items())[:self.options.show]:
            print(f"FAIL {self.name}: {label}: {len(broken)} times, first {broken[0]}: {fault}", flush=True)
        print(f"{self.name}: {label}: {injected} injected, {survived} survived", flush=True)
        self.injected += injected
        self.survived += survived

    def close(self):
        print(f"{self.name}: {self.injected} injected, {self.survived} survived", flush=True)
        if not self.options.keep:
            shutil.rmtree(self.scratch, ignore_errors=True)


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--ztrain", default=os.path.join(ROOT, "build", "ztrain"))
    parser.add_argument("--faults", help="the folder of the preloaded libraries (default: faults, next to ztrain)")
    parser.add_argument("--all", action="store_true", help="every case, not a sample")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--scratch", help="where runs are made (default: the system's folder for temporary files)")
    parser.add_argument("--keep", action="store_true", help="leave the runs there")
    parser.add_argument("--show", type=int, default=20, help="print at most this many kinds of failures of a part")
    parser.add_argument("--only", help="only parts whose name has this in it")
    return parser

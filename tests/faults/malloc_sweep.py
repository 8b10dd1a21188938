# SPDX-License-Identifier: Apache-2.0
"""Every request for memory fails once, and from there on for good: sqlite's out-of-memory test.

A failure is survived if the command ends with 5 and a message about memory, or ends as it always does, with the same
output and the same files; every checkpoint that it had published until then is whole, and the run can be finished.
"""
import json
import os
import re
import struct
import subprocess

from lab import BESIDE, DEVICE, FINISHED, PREFERENCES, TO_DISK, TO_HOST, Sweep, differences, state_of

LIBRARY = "failing_malloc.so"

# for convert: keys that are taken, that have no meaning, and that cost a note
SOURCE = {"base_model": "words", "datasets": [{"path": "tales.jsonl", "type": "completion"}], "sequence_len": 64,
          "sample_packing": True, "val_set_size": 0.1, "micro_batch_size": 2, "num_epochs": 1, "optimizer": "adamw_bnb_8bit",
          "learning_rate": 1e-4, "lr_scheduler": "cosine", "bf16": True, "adapter": "lora", "tf32": True}
DEEPSPEED = {"train_batch_size": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2, "round_robin_gradients": True}}


def commands(sweep):
    """name -> (template, arguments, what it writes). The templates are made by the commands themselves, unbroken."""
    fresh = sweep.new_place()
    fresh.clear()
    done = fresh.train()
    assert done.code == FINISHED, done.err
    exported = fresh.run(["export", "runs/run", "--out", "model"])
    assert exported.code == FINISHED, exported.err
    half = sweep.new_place()
    half.clear()
    done = half.train("--set", "train.max_steps=2")
    assert done.code == FINISHED, done.err
    source = sweep.new_place()
    source.clear()
    for file, content in (("source.yaml", SOURCE), ("ds.json", DEEPSPEED)):
        with open(source.at(file), "w", encoding="utf-8") as f:
            json.dump(content, f)
    start = ["--config", "run.yaml"]
    pretrained = ["--set", "model.pretrained=model", "--set", "model.config=null"]
    return {
        "train": (sweep.template, start),
        "two ranks": (sweep.template, [*start, "--local-gpus", "2"]),
        "beside": (sweep.template, [*start, *BESIDE]),
        "resume": (half.path, [*start, "--resume", "runs/run"]),
        "offload": (sweep.template, [*start, *TO_HOST]),
        "nvme": (sweep.template, [*start, *TO_DISK]),
        "preferences": (sweep.template, [*start, *PREFERENCES]),
        "import": (fresh.path, [*start, *pretrained, "--set", "run.name=tuned", "--set", "train.max_steps=1"]),
        "dry run": (sweep.template, [*start, "--dry-run"]),
        "dry resume": (half.path, [*start, "--dry-run", "--resume", "runs/run"]),
        "plan": (sweep.template, ["plan", *start, "--world", "2"]),
        "data": (sweep.template, ["data", "train", "--seq-length", "8", "--show", "2"]),
        "convert": (source.path, ["convert", "source.yaml", "--deepspeed", "ds.json"]),
        "export": (fresh.path, ["export", "runs/run", "--out", "out"]),
        "verify": (fresh.path, ["verify", "runs/run"]),
        "inspect": (fresh.path, ["inspect", "runs/run", "--tensors"]),
        "help-spec": (sweep.template, ["--help-spec"]),
        "doctor": (sweep.template, ["doctor"]),
        "version": (sweep.template, ["version"]),
    }


SILENT = re.compile(r"bf16 products .*|ztrain-offload-[\w-]+|(took|ran for) [0-9:]+( ms)?|[0-9.]+ (tokens/s|m?s\b|GFLOP/s|GB/s|MB/s|MiB|GiB)|[0-9:]+ left|[^:]*shared object file.*")


def outcome_of(place, name, result):
    """What must be the same, however often: output without times, files without dates."""
    kinds = ("runs/run", "runs/tuned", "out")
    state = {}
    for top in kinds:
        if os.path.isdir(place.at(top)):
            state[top] = state_of(place, top)
    out = re.sub(SILENT, "…", result.out)
    return {"output": sorted(out.splitlines()), "warnings": re.sub(SILENT, "…", result.err), **state}


OWN_WORDS = re.compile(r"std::bad_alloc|cannot allocate memory for thread-local data|failed to register TLS destructor|^out of memory$",
                       re.M)


class MallocSweep:
    def __init__(self, options):
        self.sweep = Sweep("malloc", options)
        self.library = os.path.join(options.faults, LIBRARY)

    def environment(self, rank, **more):
        env = {"LD_PRELOAD": self.library, **more}
        if rank is not None:
            env["ZTRAIN_FAIL_RANK"] = rank
        return env

    def stacks(self, template, arguments, rank):
        """One request from every place in the program that makes some: the first, and of all of them their number."""
        place = self.sweep.new_place(template)
        place.clear()
        trace = place.path + ".trace"
        result = place.run(arguments, self.environment(rank, ZTRAIN_FAIL_TRACE=trace))
        assert result.code == FINISHED, result.err
        with open(trace, "rb") as f:
            raw = f.read()
        hashes = struct.unpack(f"<{len(raw) // 8}Q", raw)
        first = {}
        for number, stack in enumerate(hashes, 1):
            first.setdefault(stack, number)
        return sorted(first.values()), len(hashes)

    def part(self, name, template, arguments, rank=None, share=1.0):
        sweep = self.sweep
        place = sweep.new_place(template)
        place.clear()
        unbroken = place.run(arguments)
        assert unbroken.code == FINISHED, unbroken.err
        wanted = outcome_of(place, name, unbroken)
        first, total = self.stacks(template, arguments, rank)

        def check(place, case):
            at, ever = case
            place.template = template
            place.clear()
            log = place.path + ".log"
            if os.path.exists(log):
                os.unlink(log)
            more = {"ZTRAIN_FAIL_EVER": "1"} if ever else {}
            result = place.run(arguments, self.environment(rank, ZTRAIN_FAIL_AT=str(at), ZTRAIN_FAIL_LOG=log, **more))
            if not os.path.exists(log):
                return ""
            fault = self.judge(place, name, result, wanted)
            where = fault and self.where(log)
            if fault and name == "doctor" and ("memory_dlopen" in where or "describe_version" in where):
                return None  # CUDA's libraries end the process in their own way: their constructors, and cuDNN when it opens its parts
            return fault and f"{fault} [{where}]"
        # from each place of the program once; a whole sweep has every single request as well
        once = [(n, False) for n in (range(1, total + 1) if sweep.options.all else first)]
        ever = [(n, True) for n in first]
        sweep.run(f"{name} ({total} requests from {len(first)} places)", sweep.sample(once, share) + sweep.sample(ever, share),
                  check)

    def judge(self, place, name, result, wanted):
        if name == "doctor" and (OWN_WORDS.search(result.err) or "does not open" in result.out):
            return None  # a library that it looks at has ended the process in its own way; or it reports the failure
        if result.code == FINISHED:
            got = outcome_of(place, name, result)
            wrong = differences(wanted, got)
            for top in wrong:
                if isinstance(wanted.get(top), dict) and isinstance(got.get(top), dict):
                    wrong = wrong + [f"{top}/{n}" for n in differences(wanted[top], got[top])]
            if wrong == ["warnings"] and set(wanted["warnings"].splitlines()) <= set(got["warnings"].splitlines()):
                return None  # it prints more: a warning about something that it can do without
            return f"exit 0, but not the same: {', '.join(wrong)} {result.err[-300:]}" if wrong else None
        if result.code != DEVICE:
            return f"exit {result.code}: {result.err[-300:]}"
        said = " ".join(result.final_error).lower()
        if not any(word in said for word in ("memory", "thread")):
            return f"exit 5, but memory is not named: {result.err[-300:]}"
        if name == "resume" and not place.has_checkpoints():
            return "the checkpoint that it was resumed from is gone"
        if name == "nvme":
            return place.finish(TO_DISK)
        if name in ("train", "resume", "offload", "beside") and place.has_checkpoints():
            verified = place.run(["verify", "runs/run"])
            if verified.code != FINISHED:
                return f"a damaged checkpoint: {verified.out}{verified.err}"
        return None

    def where(self, log):
        """The functions that a failure came from."""
        with open(log, encoding="ascii") as f:
            addresses = f.readline().split()[3:]
        found = subprocess.run(["addr2line", "-fsp", "-e", self.sweep.options.ztrain, *addresses], capture_output=True,
                               text=True, check=False).stdout.splitlines()
        return " < ".join(line.replace(" at ", " ") for line in found if "?? " not in line)[:200]


def run(options):
    whole = MallocSweep(options)
    for name, (template, arguments) in commands(whole.sweep).items():
        if options.only and options.only not in name:
            continue
        if name == "two ranks":
            for rank in ("-", "0", "1"):
                whole.part(f"{name}, in {'the supervisor' if rank == '-' else 'rank ' + rank}", template, arguments, rank, 0.03)
        else:
            # doctor opens CUDA's libraries, with a great many requests, each time
            share = {"doctor": 0.005, "offload": 0.04, "nvme": 0.04, "beside": 0.06, "preferences": 0.04}.get(name, 0.12)
            whole.part(name, template, arguments, share=share)
    whole.sweep.close()
    return whole.sweep

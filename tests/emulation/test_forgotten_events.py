# SPDX-License-Identifier: Apache-2.0
"""Events that offload relies on, each left out once: the emulation reports the missing event, or the numbers are others.

The lines come from the source, so a wait that is added needs no line here. In the emulated build a line of comm/zero forgets its
stream_wait() or event_record() if ZTRAIN_EMULATION_FORGETS names it (forgetful_wait.h).
"""
import os
import re

import pytest

import offload_case
from harness import FINISHED, Folder, ROOT, merged
from offload_case import away, changes_of, environment, weights

REPORT = 98  # tests/emulation/emulation.h
STEPS = 3
# name: ranks, precision, micro-batches, places of the optimizer's state and of the parameters, further keys of ZeRO
MODES = {
    "state": (1, "bf16", 2, ("cpu", None), {"stage": 2}),
    "state-2": (2, "fp32", 2, ("cpu", None), {"stage": 2}),
    "head-2": (2, "fp32", 2, ("cpu", None), {"stage": 2, "offload_optimizer": {"ratio": 0.02}}),
    "params": (1, "fp32", 2, (None, "cpu"), {}),
    "params-2": (2, "bf16", 1, (None, "cpu"), {}),
    "both-2": (2, "bf16", 2, ("cpu", "cpu"), {}),
    "whole-2": (2, "bf16", 1, ("cpu", None), {"stage": 1}),
    "skipped": (1, "fp16-later", 1, ("cpu", None), {"stage": 2}),
    "disk": (1, "bf16", 1, ("nvme", "nvme"), {}),
    "disk-params": (1, "bf16", 2, (None, "nvme"), {}),
}
EXEMPT = {
    # No data need it: overlap_comm false asks for streams that do not overlap.
    "zero_offload_params.c:param_d2h:stream_wait:2",
    # Whatever is brought up is acquired and released, or updated and lowered, in every pass of the transformer; the wait is for a
    # caller that stops in between.
    "zero_offload_params.c:await_params_staging:stream_wait:1",
    # Only the tensor that the warning about a skipped step names depends on it, and an overflow reaches the first unit, which has
    # one tensor. tests/unit/comm/zero/test_zero_offload.c poisons another tensor, but on the CPU device.
    "zero_offload.c:zero_offload_begin_update:event_record:2",
}
ORDERS = [("starve", 5), ("eager", 5), ("random", 5), ("random", 6), ("random", 7), ("random", 8)]


def places_of(file):
    """{"FUNCTION:CALL:N": line}"""
    found, function = {}, ""
    with open(os.path.join(ROOT, "comm", "zero", file), encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            begins = re.match(r"[a-z][^;]*?(\w+)\(", line)
            function = begins[1] if begins else function
            for call in re.findall(r"\b(stream_wait|event_record)\(", line):
                same = sum(key.startswith(f"{function}:{call}:") for key in found)
                found[f"{function}:{call}:{same + 1}"] = number
    return found


PLACES = {f"{file}:{key}": f"{file}:{line}" for file in ("zero_offload.c", "zero_offload_params.c")
          for key, line in places_of(file).items()}
assert EXEMPT <= set(PLACES), EXEMPT - set(PLACES)


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    offload_case.program(monkeypatch)


def train(folder, mode, order, seed=5, **more):
    """Returns the finished process, however it ended."""
    ranks, precision, accumulation, where, zero = MODES[mode]
    changes = merged(changes_of(ranks, precision, STEPS, accumulation), away(folder, *where, **zero))
    arguments = ["--config", folder.spec(changes), *(["--local-gpus", ranks] if ranks > 1 else [])]
    return folder.wait(folder.start(*arguments, env=environment(ranks, order, seed, **more)), 60)


def outcome_of(folder, done):
    """All that must repeat: numbers, the final weights, the tensor that each warning about a skipped step names."""
    skipped = [line[line.index("non-finite"):] for line in done.err.splitlines() if "the step is skipped" in line]
    return folder.metrics().numbers(), weights(folder, "run"), skipped


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The outcome of each mode with all of its events."""
    made = {}

    def outcome(mode):
        if mode not in made:
            folder = Folder(tmp_path_factory.mktemp(mode))
            done = train(folder, mode, "lazy")
            assert done.code == FINISHED, done
            made[mode] = outcome_of(folder, done)
        return made[mode]
    return outcome


def search(path, place, unbroken):
    """Whether the loss of this line's work shows in a mode; and the runs that came to the line."""
    what = 1 if place.startswith("zero_offload_params.c") else 0
    modes, reached = [mode for mode in MODES if MODES[mode][3][what]], []
    for order, seed in ORDERS:
        for mode in list(modes):
            folder = Folder(path / f"{mode}-{order}-{seed}")
            os.mkdir(folder.path)
            done = train(folder, mode, order, seed, ZTRAIN_EMULATION_FORGETS=place)
            if f"emulation: forgotten: {place}" not in done.err:
                modes.remove(mode)
                continue
            reached.append(f"{mode} {order} {seed}")
            if done.code == REPORT or "missing event" in done.err or "assertion failed" in done.err:
                return True, reached
            if done.code == FINISHED and outcome_of(folder, done) != unbroken(mode):
                return True, reached
    return False, reached


@pytest.mark.parametrize("name", [name for name in PLACES if name not in EXEMPT])
def test_a_forgotten_event_is_found(tmp_path, unbroken, name):
    found, reached = search(tmp_path, PLACES[name], unbroken)
    assert reached, "no mode comes here"
    assert found, f"its loss shows in none of {reached}"

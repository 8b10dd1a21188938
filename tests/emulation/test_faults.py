# SPDX-License-Identifier: Apache-2.0
"""The emulated GPU catches planted mistakes: tests/emulation/faults.cu has a program for each.

Each program is run with its mistake, and must be stopped with a message that names it, and without, and must succeed. The
first build finds all of them (the shadow); the build with AddressSanitizer in the kernels finds those that need no shadow.
"""
import os
import re
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHADOW = os.path.join(ROOT, "build", "emulation", "faults")
ADDRESS = os.path.join(ROOT, "build", "emulation", "address", "faults")

# name: (the shadow's message, the message of AddressSanitizer or the run time without a shadow; None: no message)
EXPECTED = {
    "barrier": (r"missing barrier: kernel block_reverse.* 'row', in tests/emulation/faults.cu:\d+", None),
    "barrier-rounds": (r"missing barrier: kernel block_rounds.* writes .*'row'.*thread \d+ read", None),
    "warp-barrier": (r"missing barrier: kernel warp_reverse", None),
    "divergent": (r"divergent barrier: threads 0 to 127 wait .*; threads 128 to 255 have left",) * 2,
    "divergent-branches": (r"divergent barrier: .*faults.cu:\d+, others wait .*faults.cu:\d+; in kernel",) * 2,
    "shuffle-after-exit": (r"divergent barrier: __shfl_xor_sync .*lane 5 .* has left the kernel",) * 2,
    "global-index": (r"out of bounds: kernel global_index, block \(1, 0, 0\), thread \(0, 0, 0\) .*offset 1024 of "
                     r"allocation 1 \(1024 bytes\), in tests/emulation/faults.cu:\d+",) * 2,
    "arena-index": (r"out of bounds: kernel global_index.*offset 128 ", r"AddressSanitizer: use-after-poison"),
    "shared-index": (r"out of bounds: kernel shared_index.*\(byte 1024 of 'row', which has 1024\)",
                     r"AddressSanitizer: use-after-poison"),
    "dynamic-index": (r"out of bounds: kernel dynamic_index.*\(byte -4 of 'dynamic shared memory', which has 1024\)",
                      r"AddressSanitizer: use-after-poison"),
    "between-blocks": (r"race between blocks: kernel between_blocks.* writes ", None),
    "misaligned": (r"misaligned: kernel misaligned.* writes 16 bytes", r"misaligned address"),
    "no-atomic": (r"missing barrier: kernel counted.*allocation 2 \(4 bytes\)", None),
    "host-pointer": (r"kernel touches host memory: kernel add_one", None),
    "host-touch": (r"host code touched device memory: offset 12 of allocation 1 .*faults.cu:\d+",) * 2,
    "uninitialised": (r"uninitialised memory: kernel add_one.* reads .* allocation 2", None),
    "freed": (r"out of bounds: kernel add_one.*memory that is not allocated", r"AddressSanitizer: use-after-poison"),
    "event": (r"missing event: kernel (set|add_one).*which kernel (set|add_one) of fault \(number 1 on stream \d\) (read|wrote); "
              r"no event or synchronisation orders stream \d after stream \d", None),
    "event-overwrite": (r"missing event: (cudaMemset|kernel add_one).*which (cudaMemset|kernel add_one)", None),
    "event-early": (r"missing event: .*a copy on the device \(1024 bytes\) \(number 1 on stream 2\)", None),
    "graph-event": (r"missing event: kernel (set|add_one).*which kernel (set|add_one)", None),
    "graph-unjoined": (r"capturing stream has unjoined work",) * 2,
    "graph-outside": (r"missing event: kernel (set|add_one).*which kernel (set|add_one)", None),
    "graph-isolation": (r"dependency created on uncaptured work in another stream",) * 2,
    "graph-waits": (r"operation not permitted when stream is capturing",) * 2,
    "pinned-read-early": (r"host code touched pinned memory before its copy had run: byte 28 of a copy to it",) * 2,
    "pinned-written-early": (r"host code touched pinned memory before its copy had run: byte 28 of a copy from it",) * 2,
    "pinned-between-copies": (r"missing event: a copy to the device \(8192 bytes\) .* reads byte 0 of pinned memory, which a copy "
                              r"from the device",) * 2,
    "pageable-read-early": (r"the result is not a number",) * 2,
    "pageable-written-early": (r"the host changed the memory of a copy to the device",) * 2,
    "host-function-touches": (r"host code touched device memory: offset 0 of allocation 1",) * 2,
    "host-function-calls": (r"a host function calls cudaFree",) * 2,
    "leak": (r"1 allocations were never freed",) * 2,
    "copy-too-long": (r"out of bounds: a copy to the device of 1028 bytes",) * 2,
    "bytes-twice": (r"moved 2, touched 1, shared 0\n", None),
}


def run(program, *arguments, **environment):
    return subprocess.run([program, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120,
                          env={**os.environ, **environment})


def test_every_program_is_here():
    assert run(SHADOW).stdout.split() == list(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("flavour", ["shadow", "address"])
def test_mistake_is_caught(name, flavour):
    program, expected = (SHADOW, EXPECTED[name][0]) if flavour == "shadow" else (ADDRESS, EXPECTED[name][1])
    right = run(program, name, "--right")
    assert right.returncode == 0, right.stderr
    wrong = run(program, name)
    if expected:
        assert wrong.returncode != 0
        assert re.search(expected, wrong.stderr), wrong.stderr
    else:
        assert wrong.returncode == 0, wrong.stderr


# A missing event is found in every order of execution, because vector clocks do not depend on it.
@pytest.mark.parametrize("order", ["lazy", "starve", "random", "eager"])
@pytest.mark.parametrize("name", ["event", "event-overwrite", "event-early", "graph-event", "graph-outside"])
def test_missing_event_in_any_order(name, order):
    for seed in "1", "2", "3":
        environment = {"ZTRAIN_EMULATION_ORDER": order, "ZTRAIN_EMULATION_SEED": seed}
        assert run(SHADOW, name, "--right", **environment).returncode == 0
        wrong = run(SHADOW, name, **environment)
        assert re.search(EXPECTED[name][0], wrong.stderr), wrong.stderr

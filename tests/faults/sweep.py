#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks tiny runs on purpose: tests/faults/sweep.py [--all] [SWEEP…]; tests/faults/README.md describes the sweeps."""
import os
import sys

import call_sweep
import lab
import malloc_sweep
import power_sweep

SWEEPS = {"malloc": malloc_sweep.run, "calls": call_sweep.run_errors, "kills": call_sweep.run_kills,
          "power": power_sweep.run}


def main():
    parser = lab.arguments(__doc__)
    parser.add_argument("sweeps", nargs="*", help=", ".join(SWEEPS))
    options = parser.parse_args()
    options.ztrain = os.path.abspath(options.ztrain)
    options.faults = os.path.abspath(options.faults or os.path.join(os.path.dirname(options.ztrain), "faults"))
    for name in options.sweeps:
        if name not in SWEEPS:
            parser.error(f"no sweep '{name}'; hint: {', '.join(SWEEPS)}")
    done = [SWEEPS[name](options) for name in options.sweeps or SWEEPS]
    injected, survived = sum(s.injected for s in done), sum(s.survived for s in done)
    print(f"injected {injected}, survived {survived}")
    print(f"{survived} passed, {injected - survived} failed")
    sys.exit(0 if injected and survived == injected else 1)


if __name__ == "__main__":
    main()

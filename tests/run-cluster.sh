#!/usr/bin/env bash
# Tests on several machines: tests/run-cluster.sh [PYTEST-OPTION…]    e.g.  tests/run-cluster.sh -k preempt
# Installs what is missing (scripts/install-deps.sh --slurm), builds, then runs tests/cluster: a Slurm of two and of four
# nodes is brought up and down on this machine (tests/cluster/slurm_lab.py). What this machine does not allow is reported
# in a line with the reason and counts as failed. The last line is 'N passed, M failed'.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
export BUILD=${BUILD:-build}
export ZTRAIN=$BUILD/ztrain

scripts/install-deps.sh --slurm --quiet || exit 1
python=
for candidate in "${PYTHON:-python3}" /usr/bin/python3; do
    "$candidate" -c 'import pytest' 2>/dev/null && python=$candidate && break
done
[ -n "$python" ] || { echo "run-cluster.sh: no Python here has pytest; hint: scripts/install-deps.sh --test" && exit 1; }
make -s -j"$(nproc)" all || exit 1
exec "$python" -m pytest -q -p no:cacheprovider --durations=10 tests/cluster "$@"

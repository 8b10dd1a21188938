#!/usr/bin/env bash
# Tests on several machines: tests/run-cluster.sh [PYTEST-OPTION…]    e.g.  tests/run-cluster.sh -k preempt
# Installs missing packages (scripts/install-deps.sh --slurm), builds, then runs tests/cluster: it starts and stops Slurm
# clusters of two and of four nodes on this machine (tests/cluster/slurm_lab.py). Without options the files run at
# the same time, each with its own cluster (the longest in two halves with one each), because they mostly wait. A test that this machine does not allow is reported
# with the reason and counts as failed. The last line is 'N passed, M failed'; logs are in build/log.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
case ${1-} in -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.." || exit 1
export BUILD=${BUILD:-build}
export ZTRAIN=$BUILD/ztrain
logs=${LOGS:-$BUILD/log}
mkdir -p "$logs"

scripts/install-deps.sh --slurm --quiet || exit 1
python=
for candidate in "${PYTHON:-python3}" /usr/bin/python3; do
    "$candidate" -c 'import pytest' 2>/dev/null && python=$candidate && break
done
[ -n "$python" ] || { echo "run-cluster.sh: no Python here has pytest; hint: scripts/install-deps.sh --test" && exit 1; }
make -s -j"$(nproc)" all || exit 1

tests=("$python" -m pytest -q -rs -p no:cacheprovider --durations=5)
[ $# = 0 ] || exec "${tests[@]}" tests/cluster "$@"

longest=tests/cluster/test_slurm_failures.py
calls=("$longest --shard 1/2" "$longest --shard 2/2")
for file in tests/cluster/test_*.py; do
    [ "$file" = $longest ] || calls+=("$file --shard 1/1")
done

# log_of FILE --shard K/N
log_of() { echo "$logs/$(basename "$1" .py)-${3%/*}.log"; }

pids=() code=0 sum="0 0"
trap 'kill "${pids[@]}" 2>/dev/null' EXIT
for call in "${calls[@]}"; do
    read -ra words <<<"$call"
    "${tests[@]}" "${words[@]}" >"$(log_of "${words[@]}")" 2>&1 &
    pids+=($!)
done
for pid in "${pids[@]}"; do
    wait "$pid" || code=1
done
for call in "${calls[@]}"; do
    read -ra words <<<"$call"
    log=$(log_of "${words[@]}")
    echo "=== $call"
    grep -vE '^[0-9]+ passed, [0-9]+ failed$' "$log"
    counted=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$log" | tail -1)
    sum=$(awk -v sum="$sum" '{split(sum, s); print s[1] + $1, s[2] + $3}' <<<"${counted:-0 passed, 1 failed}")
done
echo "${sum% *} passed, ${sum#* } failed"
exit $code

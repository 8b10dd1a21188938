#!/usr/bin/env bash
# Every test that needs no GPU and no cluster: scripts/test.sh [--quick] [--sample N]
#
# Installs missing packages and builds. Then it checks floors and rooms, and runs C tests, op tests, golden cases, products on an
# emulated AMX, and whole-program tests (tests/README.md).
# The last line is 'N passed, M failed'; the exit status is 0 if M is 0. Logs are in build/log.
#
#   --quick              fewer golden combinations, no long whole-program tests (for instrumented builds)
#   --sample N           one in N of the whole-program tests, chosen by their names and $ZTRAIN_SAMPLE_SEED
#   SANITIZE=address     in the environment: builds and tests build/address (or thread)
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

quick=0 sample=1
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=1 ;;
    --sample)
        [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || { echo "test.sh: --sample takes a number" >&2 && exit 2; }
        sample=$2
        shift
        ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0" && exit 2 ;;
    esac
    shift
done

sanitize=${SANITIZE:-}
build=${BUILD:-build${sanitize:+/$sanitize}}
export BUILD=$build
export LOGS=$build/log
export ZTRAIN=$build/ztrain
mkdir -p "$LOGS"
. scripts/parts.sh

# Sanitizers stop at the first report, with an exit code that no test expects.
export ASAN_OPTIONS=exitcode=99:abort_on_error=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}
export LSAN_OPTIONS=suppressions=$PWD/tests/sanitizers/lsan.supp:print_suppressions=0${LSAN_OPTIONS:+:$LSAN_OPTIONS}
export TSAN_OPTIONS=exitcode=99:halt_on_error=1:second_deadlock_stack=1:suppressions=$PWD/tests/sanitizers/tsan.supp${TSAN_OPTIONS:+:$TSAN_OPTIONS}
[ -z "$sanitize" ] || export ZTRAIN_TEST_SLOWNESS=${ZTRAIN_TEST_SLOWNESS:-8}

# Finds a Python that has pytest: the one on PATH, or the system's.
python=
find_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" /usr/bin/python3; do
        if "$candidate" -c 'import pytest' 2>/dev/null; then
            python=$candidate
            return
        fi
    done
    return 1
}

scripts/install-deps.sh --test --quiet || exit 1
find_python || { echo "test.sh: no Python here has pytest; hint: scripts/install-deps.sh --test" && exit 1; }

# The whole-program tests, in four quarters side by side, because much of their time is waiting. Arguments: pytest's.
program() {
    local tests=("$python" -m pytest -q -p no:cacheprovider "$@" tests/program)
    part_parallel program-1 1800 "${tests[@]}" --shard 1/4
    part_parallel program-2 1800 "${tests[@]}" --shard 2/4
    part_parallel program-3 1800 "${tests[@]}" --shard 3/4
    part program-4 1800 "${tests[@]}" --shard 4/4
    parts_join program-1 program-2 program-3
}

jobs=$(nproc) # of golden runs twice as many go side by side, since ranks wait for one another
part build 900 make -s -j"$jobs" SANITIZE="$sanitize" all all-tests "$build/ops-test" || { parts_end && exit 0 || exit 1; }
[ -n "$sanitize" ] || part layers 60 scripts/check-layers.py
part unit 900 tests/run-unit.sh "$build"
if [ "$sanitize" != thread ]; then # that build has no OpenMP: its ops run on one thread
    part ops 900 "$build/ops-test" test
    part ops-gradients 900 "$build/ops-test" grad
    [ -n "$sanitize" ] || part ops-threads 900 "$build/ops-test" threads # the large cases take a sanitizer too long
fi
if [ $quick = 1 ]; then
    part golden 900 tests/golden/check_golden.py --jobs $((2 * jobs)) --ztrain "$ZTRAIN" --stage 3 --ranks 2
    program --sample "$sample" -m 'not long and not interop'
else
    part golden-one-rank 600 tests/golden/check_golden.py --jobs $((2 * jobs)) --ztrain "$ZTRAIN" --dtype fp32,bf16
    part golden-stages 900 tests/golden/check_golden.py --jobs $((2 * jobs)) --ztrain "$ZTRAIN" --stage 0,1,2,3 --ranks 2
    part golden-ranks 900 tests/golden/check_golden.py --jobs $((2 * jobs)) --ztrain "$ZTRAIN" --stage 3 --ranks 3,6 --dtype bf16
    if grep -qsw avx512_bf16 /proc/cpuinfo; then # the parts so far used one of two instructions for bf16, these use the other
        other='widen'
        "$ZTRAIN" doctor | grep 'in use: .*dot' >/dev/null || other='dot'
        part "ops-linear-$other" 120 env ZTRAIN_CPU_BF16="$other" "$build/ops-test" test --dtype bf16 --op linear
        part "ops-attention-$other" 120 env ZTRAIN_CPU_BF16="$other" "$build/ops-test" test --dtype bf16 --op attention
        part "golden-$other" 120 env ZTRAIN_CPU_BF16="$other" tests/golden/check_golden.py --jobs $((2 * jobs)) --ztrain "$ZTRAIN" --dtype bf16
    fi
    if grep -qsw avx512vl /proc/cpuinfo; then
        part amx-build 60 make -s "$build/amx/libamx.so"
        part amx 900 "$python" -m pytest -q -p no:cacheprovider tests/amx
    else
        echo "amx: left out: its emulation needs a CPU with AVX-512"
    fi
    program --sample "$sample" -m 'not interop'
fi
parts_end

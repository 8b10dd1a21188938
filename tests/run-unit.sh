#!/usr/bin/env bash
# Runs the C test programs of a build, each within a time limit: tests/run-unit.sh [BUILD [PATTERN]]
# Prints what failed in full, one line for what passed, and 'N passed, M failed' last.
set -uo pipefail
build=${1:-build} pattern=${2:-test_*}
limit=${UNIT_SECONDS:-300}
passed=0 failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

for program in "$build"/tests/$pattern; do
    case $program in *.d) continue ;; esac
    [ -x "$program" ] || continue
    timeout -k 5 "$limit" "$program" >"$log" 2>&1
    code=$?
    good=$(sed -n 's/.*\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log" | awk '{n += $1} END {print n + 0}')
    bad=$(sed -n 's/.*\[  FAILED  \] \([0-9]*\) test.*/\1/p' "$log" | awk '{n += $1} END {print n + 0}')
    # A program that crashed, hung or was stopped by a sanitizer has failed, whatever it counted.
    [ $code = 0 ] || [ "$bad" -gt 0 ] || bad=1
    [ "$good" -gt 0 ] || [ "$bad" -gt 0 ] || bad=1
    passed=$((passed + good)) failed=$((failed + bad))
    if [ "$bad" -gt 0 ]; then
        echo "FAIL $(basename "$program") (exit $code):"
        tail -40 "$log"
    else
        echo "ok   $(basename "$program") $good"
    fi
done
[ $((passed + failed)) -gt 0 ] || { echo "no test programs in $build/tests; hint: make all-tests" && failed=1; }
echo "$passed passed, $failed failed"
[ $failed = 0 ]

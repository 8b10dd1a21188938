#!/usr/bin/env bash
# Runs the C test programs of a build, each with a time limit: tests/run-unit.sh [BUILD [PATTERN]]
# It runs twice as many at a time as there are cores, as many of them wait, the longest first. It prints the output of a program that failed, one line with
# its seconds for one that passed, and 'N passed, M failed' last.
# UNIT_REPEATS=N in the environment: up to N programs that failed run once more, alone. Their first output is printed whatever becomes
# of them, and a line 'failed once, was repeated: NAME', which scripts/parts.sh repeats at the end.
# UNIT_SAMPLE=N in the environment: one program in N, chosen by its name and $ZTRAIN_SAMPLE_SEED.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
build=${1:-build} pattern=${2:-test_*}
limit=${UNIT_SECONDS:-600} repeats=${UNIT_REPEATS:-0} sample=${UNIT_SAMPLE:-1}
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} # spinning threads take the cores from the other programs
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# Leaves 'GOOD BAD' in $results/NAME.count, and the text to be printed in $results/NAME.said.
run() {
    local name code good bad started=$SECONDS
    name=$(basename "$1")
    timeout -k 5 "$limit" "$1" >"$results/$name.log" 2>&1
    code=$?
    good=$(sed -n 's/.*\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$results/$name.log" | awk '{n += $1} END {print n + 0}')
    bad=$(sed -n 's/.*\[  FAILED  \] \([0-9]*\) test.*/\1/p' "$results/$name.log" | awk '{n += $1} END {print n + 0}')
    # A program that crashed, hung or was stopped by a sanitizer has failed, whatever it counted.
    [ $code = 0 ] || [ "$bad" -gt 0 ] || bad=1
    [ "$good" -gt 0 ] || [ "$bad" -gt 0 ] || bad=1
    if [ "$bad" -gt 0 ]; then
        { echo "FAIL $name (exit $code):" && tail -40 "$results/$name.log"; } >"$results/$name.said"
    else
        echo "ok   $name $good ($((SECONDS - started)) s)" >"$results/$name.said"
    fi
    echo "$good $bad" >"$results/$name.count"
}

longest=(transformer comm zero_frozen checkpoint checkpoint_damage zero_offload_precision zero_nvme launchers)
programs=() others=()
for program in "$build"/tests/$pattern; do
    case $program in *.d) continue ;; esac
    [ -x "$program" ] || continue
    name=$(basename "$program")
    if [ "$sample" -gt 1 ]; then
        read -r sum _ < <(cksum <<<"$name${ZTRAIN_SAMPLE_SEED:-}")
        [ $((sum % sample)) = 0 ] || continue
    fi
    [[ " ${longest[*]} " == *" ${name#test_} "* ]] && programs+=("$program") || others+=("$program")
done
programs+=(${others[@]+"${others[@]}"})
[ ${#programs[@]} -gt 0 ] || { echo "no test programs in $build/tests; hint: make all-tests" && echo "0 passed, 1 failed" && exit 1; }

for program in "${programs[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge $((2 * $(nproc))) ]; do wait -n; done
    run "$program" &
done
wait
passed=0 failed=0
for program in "${programs[@]}"; do
    name=$(basename "$program")
    cat "$results/$name.said"
    read -r good bad <"$results/$name.count"
    if [ "$bad" -gt 0 ] && [ "$repeats" -gt 0 ]; then
        repeats=$((repeats - 1))
        run "$program"
        echo "failed once, was repeated: $name"
        cat "$results/$name.said"
        read -r good bad <"$results/$name.count"
    fi
    passed=$((passed + good)) failed=$((failed + bad))
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]

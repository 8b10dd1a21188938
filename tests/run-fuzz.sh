#!/usr/bin/env bash
# Runs each fuzz target of a build for some seconds: tests/run-fuzz.sh [BUILD [SECONDS]]
# It starts from the inputs in tests/fuzz/corpus/TARGET and runs those that once broke the target, tests/fuzz/regressions/TARGET,
# first. Inputs that break it now are left in BUILD/fuzz/found. As many targets run at a time as there are cores.
# Prints 'N passed, M failed' last.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
build=${1:-build/fuzzer} seconds=${2:-10}
found=$build/fuzz/found
mkdir -p "$found"

# Leaves what is to be printed in $found/NAME.said; its first word is 'ok' or 'FAIL'.
run() {
    local name log work folder seeds=()
    name=$(basename "$1")
    log=$found/$name.log work=$build/fuzz/corpus/$name
    mkdir -p "$work"
    for folder in tests/fuzz/corpus/"$name" tests/fuzz/regressions/"$name"; do
        [ ! -d "$folder" ] || seeds+=("$folder")
    done
    # leaks count as well; the memory bound is that of the parsers and the sanitizer's share
    if timeout -k 5 $((seconds + 120)) "$1" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=2048 \
        -artifact_prefix="$found/$name-" -print_final_stats=1 "$work" ${seeds[@]+"${seeds[@]}"} >"$log" 2>&1; then
        echo "ok   $name $(sed -n 's/stat::number_of_executed_units: */runs /p' "$log")"
    else
        echo "FAIL $name: see $log"
        grep -E 'ztrain: bug|ERROR|SUMMARY|runtime error|Test unit written' "$log" | head -10
    fi >"$found/$name.said"
}

targets=()
for target in "$build"/fuzz/fuzz_*; do
    case $target in *.d) continue ;; esac
    [ ! -x "$target" ] || targets+=("$target")
done
[ ${#targets[@]} -gt 0 ] || { echo "no fuzz targets in $build/fuzz; hint: make fuzz" && echo "0 passed, 1 failed" && exit 1; }
rm -f "$found"/*.said
for target in "${targets[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
    run "$target" &
done
wait
passed=0 failed=0
for target in "${targets[@]}"; do
    said=$found/$(basename "$target").said
    cat "$said"
    if grep -q '^ok ' "$said"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]

#!/usr/bin/env bash
# Runs each fuzz target of a build for some seconds: tests/run-fuzz.sh [BUILD [SECONDS]]
# It starts from the inputs in tests/fuzz/corpus/TARGET and runs those that once broke the target, tests/fuzz/regressions/TARGET,
# first. Inputs that break it now are left in BUILD/fuzz/found. Prints 'N passed, M failed' last.
set -uo pipefail
build=${1:-build/fuzzer} seconds=${2:-10}
passed=0 failed=0
found=$build/fuzz/found
mkdir -p "$found"

for target in "$build"/fuzz/fuzz_*; do
    case $target in *.d) continue ;; esac
    [ -x "$target" ] || continue
    name=$(basename "$target")
    log=$found/$name.log
    work=$build/fuzz/corpus/$name
    mkdir -p "$work"
    seeds=()
    for folder in tests/fuzz/corpus/"$name" tests/fuzz/regressions/"$name"; do
        [ ! -d "$folder" ] || seeds+=("$folder")
    done
    # leaks count as well; the memory bound is that of the parsers and the sanitizer's share
    if timeout -k 5 $((seconds + 120)) "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -artifact_prefix="$found/$name-" -print_final_stats=1 "$work" ${seeds[@]+"${seeds[@]}"} >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "ok   $name $(sed -n 's/stat::number_of_executed_units: */runs /p' "$log")"
    else
        failed=$((failed + 1))
        echo "FAIL $name: see $log"
        grep -E 'ztrain: bug|ERROR|SUMMARY|runtime error|Test unit written' "$log" | head -10
    fi
done
[ $((passed + failed)) -gt 0 ] || { echo "no fuzz targets in $build/fuzz; hint: make fuzz" && failed=1; }
echo "$passed passed, $failed failed"
[ $failed = 0 ]

# shellcheck shell=bash
# parts.sh: runs the parts of a test run and adds them up. Sourced by scripts/test.sh and .ci/run.
#
#   part NAME SECONDS COMMAND…   runs COMMAND with a time limit; its output goes to the screen and to $LOGS/NAME.log. If the
#                                output has lines 'N passed, M failed', the last of them is the part's count; any other
#                                part counts as one test. A part that exits non-zero has failed, whatever it counted.
#                COMMAND may be a function, which sees exported variables only.
#   part_parallel NAME SECONDS COMMAND…   starts a single-threaded program, which runs while the following parts run
#   parts_join [NAME…]           waits for these programs, or for all, and counts them
#   parts_end                    prints the tests that failed once and were repeated (tests/conftest.py), and the sum as the
#                                last line; returns the exit status of the whole run
# SPDX-License-Identifier: Apache-2.0

parts_passed=0 parts_failed=0 parts_broken=() parts_parallel=() parts_repeated=()
LOGS=${LOGS:-build/log}
mkdir -p "$LOGS"

# OpenMP's threads sleep while they wait. By default they spin, which takes the cores from the other processes of a test: with that,
# a tiny model costs up to fifty times as much on a busy machine. No result depends on it.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

# Sets REPLY to the seconds of CPU time that the children of this shell have used so far.
cpu_seconds() {
    local stat
    read -ra stat <"/proc/$BASHPID/stat"
    REPLY=$(((stat[15] + stat[16]) / 100)) # cutime and cstime (proc(5)), in ticks, of which there are 100 a second
}

# Counts a part from its log. Arguments: name, exit code, seconds that it took, seconds that it had, seconds of all cores.
part_count() {
    local name=$1 log=$LOGS/$1.log code=$2 took=$3 seconds=$4 cpu=$5 good bad line
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$log" | tail -1)
    if [ -n "$line" ]; then
        read -r good _ bad _ <<<"$line"
        if [ "$code" != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
    elif [ "$code" = 0 ]; then
        good=1 bad=0
    else
        good=0 bad=1
    fi
    parts_passed=$((parts_passed + good)) parts_failed=$((parts_failed + bad))
    mapfile -t -O ${#parts_repeated[@]} parts_repeated < <(grep '^failed once, was repeated: ' "$log")
    if [ "$bad" != 0 ]; then
        parts_broken+=("$name")
        echo "--- $name FAILED (exit $code$([ "$code" != 124 ] || echo ": over $seconds s")): $log"
    fi
    echo "--- $name: $took s, $cpu s of CPU time"
    [ "$bad" = 0 ]
}

part() {
    local name=$1 seconds=$2 started=$SECONDS cpu code
    shift 2
    cpu_seconds && cpu=$REPLY
    echo "=== $name"
    if declare -F "$1" >/dev/null; then # timeout runs programs only
        export -f "${1?}"
        set -- bash -c '"$@"' "$1" "$@"
    fi
    timeout -k 10 "$seconds" "$@" 2>&1 | tee "$LOGS/$name.log"
    code=${PIPESTATUS[0]}
    cpu_seconds
    part_count "$name" "$code" $((SECONDS - started)) "$seconds" $((REPLY - cpu))
}

part_parallel() {
    local name=$1 seconds=$2
    shift 2
    {
        timeout -k 10 "$seconds" "$@" >"$LOGS/$name.log" 2>&1
        local code=$?
        cpu_seconds
        echo "$code $SECONDS $REPLY" >"$LOGS/$name.end"
    } &
    parts_parallel+=("$name $seconds $SECONDS $!")
}

parts_join() {
    local name seconds started pid code ended cpu failed=0 others=()
    for one in ${parts_parallel[@]+"${parts_parallel[@]}"}; do
        read -r name seconds started pid <<<"$one"
        [ $# = 0 ] || [[ " $* " == *" $name "* ]] || { others+=("$one") && continue; }
        wait "$pid"
        read -r code ended cpu <"$LOGS/$name.end"
        echo "=== $name (in parallel with others)"
        cat "$LOGS/$name.log"
        part_count "$name" "$code" $((ended - started)) "$seconds" "$cpu" || failed=1
    done
    parts_parallel=(${others[@]+"${others[@]}"})
    return $failed
}

parts_end() {
    [ ${#parts_repeated[@]} = 0 ] || printf '%s\n' "${parts_repeated[@]}" | sort -u
    if [ ${#parts_broken[@]} -gt 0 ]; then
        echo "failed: ${parts_broken[*]}"
    fi
    echo "$parts_passed passed, $parts_failed failed"
    [ "$parts_failed" = 0 ] && [ "$parts_passed" -gt 0 ]
}

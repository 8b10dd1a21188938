# shellcheck shell=bash
# parts.sh: runs the parts of a test run and adds them up. Sourced by scripts/test.sh and .ci/run.
#
#   part NAME SECONDS COMMAND…   runs COMMAND within the time, its output to the screen and to $LOGS/NAME.log. A part
#                                whose output has a line 'N passed, M failed' counts as so many tests (the last such
#                                line), any other as one. A part that exits non-zero has failed, whatever it counted.
#                COMMAND may be a function, which sees exported variables only.
#   parts_end                    the sum as the last line; the exit status to leave with

parts_passed=0 parts_failed=0 parts_broken=()
LOGS=${LOGS:-build/log}
mkdir -p "$LOGS"

part() {
    local name=$1 seconds=$2 code good bad line started=$SECONDS
    shift 2
    local log=$LOGS/$name.log
    echo "=== $name"
    if declare -F "$1" >/dev/null; then # timeout runs programs only
        export -f "${1?}"
        set -- bash -c '"$@"' "$1" "$@"
    fi
    timeout -k 10 "$seconds" "$@" 2>&1 | tee "$log"
    code=${PIPESTATUS[0]}
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
    if [ "$bad" != 0 ]; then
        parts_broken+=("$name")
        echo "--- $name FAILED (exit $code$([ "$code" != 124 ] || echo ": over $seconds s")): $log"
    fi
    echo "--- $name: $((SECONDS - started)) s"
    [ "$bad" = 0 ]
}

parts_end() {
    if [ ${#parts_broken[@]} -gt 0 ]; then
        echo "failed: ${parts_broken[*]}"
    fi
    echo "$parts_passed passed, $parts_failed failed"
    [ "$parts_failed" = 0 ] && [ "$parts_passed" -gt 0 ]
}

#!/usr/bin/env bash
# Everything that only a machine with an NVIDIA GPU can show: scripts/gpu-check.sh [OPTION…] [PART…]
#
#   doctor      the self-test of the GPU; GPU, driver, libraries, measured ceilings
#   ops         every op against its float64 reference, in fp32, bf16 and fp16; attention also with ztrain's own kernels; what is
#               left of a GPU after an illegal address
#   golden      every golden case in fp32 (without TF32), bf16 and fp16; some also without cuDNN
#   ranks       2 and 4 ranks on one GPU, ZeRO stages 0 to 3
#   bench       GPT-2 124M and 1558M, and LLM.Q's shapes (Qwen2.5 0.5B to 7B), in steps of 524,288 tokens: tokens/s and each kind of
#               op next to what `ztrain plan --speed` expects, and PyTorch's tokens/s, if it is there. The goals come first; what does not
#               fit, or has no time left, is named and has not passed. Alone it has all the time, which suffices for every case on an H100
#   virtual     4 virtual ranks (train.virtual_ranks) on 1, 2 and 4 ranks that share a GPU, at stages 0 to 3: the same numbers bit for
#               bit; with two GPUs also over NCCL
#   resume      interrupted and resumed: the same numbers bit for bit
#   graphs      steps as CUDA graphs and op by op: the same numbers bit for bit, and the speed-up
#   nccl        2 ranks over NCCL, ZeRO stages 0 to 3, in registered memory and without; left out where there is one GPU
#   perf        the large ops: GB/s, TFLOP/s, share of the measured ceilings; attention with cuDNN and without
#   sanitizer   compute-sanitizer's memcheck and racecheck on a small run; left out where there is no such program
#
#   --build DIR   the folder of ztrain and ops-test (default: build/gpu if it has them, else build); `make gpu-build` builds build/gpu
#                 with the small libraries linked statically, so that it can be copied to a machine that has only CUDA and Python
#   --out DIR     logs, tables and metrics (default: build/gpu-check)
#   --device KEY  train.device (default: cuda; cpu only shows that this script works)
#   --seconds N   for all parts together (default: 575, for less than ten minutes); a part for which no time is left has failed
#   --quick       fewer golden cases, shorter turns of the benchmark
#
# ztrain also finds CUDA's libraries in Python's site-packages (docs/cuda.md). The last line is 'N passed, M failed'; SUMMARY in
# the output folder has in short what an entry of docs/gpu-log.md needs, and such an entry.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
from=$PWD
cd "$(dirname "$0")/.." || exit 1
build='' out=build/gpu-check device=cuda quick='' seconds=575
all=(doctor ops golden ranks bench virtual resume graphs nccl perf sanitizer)
fail() {
    echo "gpu-check: $1; hint: --help" >&2
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
    --build | --out | --device | --seconds)
        [ -n "${2-}" ] || fail "$1 needs a value"
        declare "${1#--}=$2"
        case $1:$2 in --build:[!/]* | --out:[!/]*) declare "${1#--}=$from/$2" ;; esac # relative to the caller's folder
        shift 2
        ;;
    --quick) quick=1 && shift ;;
    -h | --help) sed -n '2,/^set /p' "$0" | sed -n '/SPDX/!s/^# \{0,1\}//p' && exit 0 ;;
    -*) fail "no option '$1'" ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || set -- "${all[@]}"
for name in "$@"; do
    [[ " ${all[*]} " == *" $name "* ]] || fail "no part '$name'"
done
has_programs() { [ -x "$1/ztrain" ] && [ -x "$1/ops-test" ]; }
[ -n "$build" ] || { has_programs build/gpu && build=build/gpu; } || build=build
for program in ztrain ops-test; do
    [ -x "$build/$program" ] || {
        echo "gpu-check: no $build/$program; hint: make gpu-build, or --build DIR" >&2
        exit 2
    }
done
mkdir -p "$out"
export LOGS=$out/log
. scripts/parts.sh

python=$(command -v python3)
# Parts that are functions see exported variables; the parts ranks and resume have several ranks on one GPU; the choices of GEMM
# kernels are kept with the results.
export build device python ZTRAIN_SHARE_GPUS=1
case $out in /*) ;; *) out=$PWD/$out ;; esac
export ZTRAIN_GEMM_CACHE=${ZTRAIN_GEMM_CACHE:-$out/gemm-cache}
unset ZTRAIN_CUDA_TF32 # fp32 means fp32 here
processors=$(nproc) # each run takes more than half a GiB of the GPU
golden=(tests/golden/check_golden.py --ztrain "$build/ztrain" --set "train.device=$device" --jobs "$((processors < 8 ? processors : 8))")

# What each part runs, and the seconds that are kept for each of these; together less than --seconds. What one does not need goes to
# those after it.
declare -A runs_of=(
    [doctor]="gpu-test doctor" [ops]="ops ops-own-attention fault" [golden]="golden golden-own-attention" [ranks]="ranks ranks-4" [bench]=bench
    [virtual]=virtual [resume]=resume [graphs]=graphs [nccl]="nccl nccl-plain" [perf]="perf perf-own-attention" [sanitizer]="memcheck racecheck"
)
declare -A kept=(
    [gpu-test]=20 [doctor]=20 [ops]=45 [ops-own-attention]=15 [fault]=20 [golden]=50 [golden-own-attention]=15 [ranks]=30 [ranks-4]=20 [bench]=150 [virtual]=30
    [resume]=20 [graphs]=15 [nccl]=0 [nccl-plain]=0 [perf]=25 [perf-own-attention]=10 [memcheck]=45 [racecheck]=45
)
export gpus
gpus=$(nvidia-smi -L 2>/dev/null | grep -c ^GPU)
[ "$gpus" -lt 2 ] || kept+=([nccl]=40 [nccl-plain]=20 [bench]=90)
to_come=()
for name in "$@"; do
    read -ra names <<<"${runs_of[$name]}"
    to_come+=("${names[@]}")
done

# NVIDIA's compute-sanitizer: on the path, in a toolkit, or in Python's site-packages; or no such program.
find_sanitizer() {
    local folder program
    sanitizer_program=$(command -v compute-sanitizer) && return
    while read -r folder; do
        for program in "$folder"/bin/compute-sanitizer "$folder"/nvidia/*/bin/compute-sanitizer; do
            [ ! -x "$program" ] || { sanitizer_program=$program && return; }
        done
    done < <(printf '%s\n' "${CUDA_HOME:-/usr/local/cuda}" && "$python" -c 'import sys; print(*sys.path, sep="\n")')
    return 1
}
export sanitizer_program=''
if ! find_sanitizer; then
    kept[memcheck]=0 kept[racecheck]=0
fi

# Sets REPLY to the seconds that NAME may take: all that is left, except for what is kept for those after it.
limit_of() {
    local left=$((seconds - SECONDS)) later=0 at=0 name
    while [ "${to_come[at]}" != "$1" ]; do at=$((at + 1)); done
    for name in "${to_come[@]:at+1}"; do later=$((later + ${kept[$name]})); done
    REPLY=$((left - later))
    [ "$REPLY" -ge "${kept[$1]}" ] || REPLY=${kept[$1]}
    REPLY=$((REPLY < left ? REPLY : left))
}

# gpu_part NAME COMMAND… runs it within its time limit, and notes what SUMMARY says of it.
logs=() passed=() failed=() left_out=()
gpu_part() {
    local name=$1 good=$parts_passed bad=$parts_failed began=$SECONDS limit
    shift
    limit_of "$name" && limit=$REPLY
    logs+=("$LOGS/$name.log")
    if [ "$limit" -lt 5 ]; then
        part "$name" 5 bash -c 'echo "left out: no time left"; exit 1'
    else
        part "$name" "$limit" "$@"
    fi
    good=$((parts_passed - good)) bad=$((parts_failed - bad))
    if [ "$bad" -gt 0 ]; then
        if [ "$limit" -ge 5 ] && [ $((SECONDS - began)) -ge "$limit" ]; then
            failed+=("$name (over $limit s)")
        else
            failed+=("$name ($bad of $((good + bad)))")
        fi
    elif [ "$good" -gt 0 ]; then
        passed+=("$name ($good)")
    fi
}

# no_part NAME WHY HINT: neither passed nor failed.
no_part() {
    echo "=== $1"
    echo "left out: $2 ($3)"
    left_out+=("$1: $2")
}

# small_command CASE FOLDER: $run becomes the command that trains a golden case in bf16, with its run folder in FOLDER.
small_command() {
    local case=tests/golden/$1
    run=("$build/ztrain" --config "$case/run.yaml" --verbose --set "run.dir=$2" --set "model.pretrained=$case"
        --set "data.train=$case/train" --set "data.validation=$case/validation" --set "train.device=$device"
        --set bf16.enabled=true)
}
export -f small_command # for the parts that are functions

# Two runs of one spec, one of them interrupted after step 3, have equal losses, norms and evaluations.
resume() {
    local top run
    top=$(mktemp -d) || return
    small_command qwen3 "$top" # its heads suit cuDNN
    run+=(--set zero_optimization.stage=2 --set checkpoint.interval_steps=1)
    "${run[@]}" --set run.name=whole --local-gpus 2 &&
        "${run[@]}" --set run.name=cut --set train.max_steps=3 --local-gpus 2 &&
        "${run[@]}" --set run.name=cut --local-gpus 2 --resume "$top/cut" &&
        "$python" - "$top" <<'PYTHON'
import json
import sys

def numbers(name):
    with open(f"{sys.argv[1]}/{name}/metrics.jsonl", encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    return [{k: row[k] for k in ("step", "loss", "grad_norm", "lr", "eval_loss") if k in row}
            for row in rows if "loss" in row or "eval_loss" in row]

whole = numbers("whole")
cut = [row for row in numbers("cut") if "eval_loss" not in row or row["step"] != 3]  # a run evaluates where it ends
print(f"{len(whole)} rows; {'the same' if whole == cut else 'DIFFERENT'} after a resume")
sys.exit(whole != cut)
PYTHON
    local code=$?
    rm -rf "$top"
    return $code
}

# Runs of one spec on other numbers of ranks, at other stages, have equal losses, norms and evaluations.
virtual() {
    local top run code pair share
    top=$(mktemp -d) || return
    small_command qwen3 "$top"
    run+=(--set train.virtual_ranks=4 --set train_batch_size=8 --set train_micro_batch_size_per_gpu=1)
    for pair in 1-0 1-3 2-0 2-1 2-2 2-3 4-0 4-3; do
        for share in 1 0; do # 0: over NCCL
            [ "$share" = 1 ] || { [ "${pair%-*}" -gt 1 ] && [ "${pair%-*}" -le "$gpus" ]; } || continue
            ZTRAIN_SHARE_GPUS=$share CUDA_VISIBLE_DEVICES=$([ "$share" = 0 ] && seq -s, 0 $((gpus - 1)) || echo 0) \
                "${run[@]}" --set "run.name=$pair-$share" --local-gpus "${pair%-*}" --set "zero_optimization.stage=${pair#*-}" || return
        done
    done
    "$python" - "$top" <<'PYTHON'
import json
import os
import sys

def numbers(name):
    with open(f"{sys.argv[1]}/{name}/metrics.jsonl", encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    return [{k: row[k] for k in ("step", "loss", "grad_norm", "lr", "eval_loss") if k in row}
            for row in rows if "loss" in row or "eval_loss" in row]

runs = {name: numbers(name) for name in sorted(os.listdir(sys.argv[1]))}
first = runs["1-0-1"]
others = [name for name, rows in runs.items() if rows != first]
print(f"virtual ranks: {len(runs)} runs of {len(first)} rows; {'DIFFERENT: ' + ' '.join(others) if others else 'the same'} (ranks-stage-shared)")
sys.exit(bool(others) or not first)
PYTHON
    code=$?
    rm -rf "$top"
    return $code
}

# A run whose kernels are shorter than their launches has equal numbers as graphs and op by op; prints the ratio of their speeds.
graphs() {
    local top run
    top=$(mktemp -d) || return
    small_command qwen3 "$top" # its heads suit cuDNN
    run+=(--set train.max_steps=200 --set train.eval_interval_steps=100 --set checkpoint.writer.decoupled=false) # nothing beside the steps
    "${run[@]}" --set run.name=graphs --set "train.cuda_graphs=$([ "$device" = cpu ] && echo auto || echo true)" &&
        "${run[@]}" --set run.name=plain --set train.cuda_graphs=false &&
        "$python" - "$top" <<'PYTHON'
import json
import statistics
import sys

def rows_of(name):
    with open(f"{sys.argv[1]}/{name}/metrics.jsonl", encoding="utf-8") as f:
        return [json.loads(line) for line in f]

def numbers(rows):
    return [{k: row[k] for k in ("step", "loss", "grad_norm", "lr", "eval_loss") if k in row}
            for row in rows if "loss" in row or "eval_loss" in row]

def milliseconds(rows):
    return 1e3 * statistics.median(row["seconds"]["step"] for row in rows if "loss" in row and row["step"] > 10)

graphs, plain = rows_of("graphs"), rows_of("plain")
same = numbers(graphs) == numbers(plain)
a, b = milliseconds(graphs), milliseconds(plain)
print(f"graphs: {'the same numbers' if same else 'DIFFERENT numbers'}; {a:.3f} ms a step, op by op {b:.3f} ms, ratio {b / a:.2f}")
sys.exit(not same)
PYTHON
    local code=$?
    rm -rf "$top"
    return $code
}

# Two small runs under one of compute-sanitizer's tools, one with odd rows and GELU, one with RoPE, SwiGLU and cuDNN.
sanitizer() {
    local tool=$1 case top run code=0
    top=$(mktemp -d) || return
    for case in gpt2 qwen3; do
        small_command "$case" "$top"
        "$sanitizer_program" --tool "$tool" --error-exitcode 9 "${run[@]}" --set train.max_steps=2 || code=$?
    done
    rm -rf "$top"
    return $code
}

started=$(date -u +%F)
for name in "$@"; do
    case $name in
    doctor)
        [ "$device" = cpu ] || gpu_part gpu-test "$build/ztrain" doctor --gpu-test
        gpu_part doctor "$build/ztrain" doctor
        ;;
    ops)
        gpu_part ops "$build/ops-test" test --device "$device"
        gpu_part ops-own-attention env ZTRAIN_CUDA_ATTENTION=own "$build/ops-test" test --device "$device" --op attention
        [ "$device" = cpu ] || gpu_part fault "$build/ops-test" fault --device "$device"
        ;;
    perf)
        gpu_part perf "$build/ops-test" perf --device "$device"
        gpu_part perf-own-attention env ZTRAIN_CUDA_ATTENTION=own "$build/ops-test" perf --device "$device" --op attention
        ;;
    golden)
        gpu_part golden "${golden[@]}" --dtype fp32,bf16,fp16 ${quick:+--case gpt2 --case llama}
        gpu_part golden-own-attention env ZTRAIN_CUDA_ATTENTION=own "${golden[@]}" --dtype bf16,fp16 --case qwen3 --case llama-bias
        ;;
    ranks)
        gpu_part ranks "${golden[@]}" --ranks 2 --stage 0,1,2,3 --dtype bf16 --case gpt2 --case qwen3
        gpu_part ranks-4 "${golden[@]}" --ranks 4 --stage 0,1,2,3 --dtype fp32 --case llama
        ;;
    virtual) gpu_part virtual virtual ;;
    resume) gpu_part resume resume ;;
    graphs) gpu_part graphs graphs ;;
    nccl)
        if [ "$gpus" -ge 2 ]; then
            two=(env ZTRAIN_SHARE_GPUS=0 "${golden[@]}" --ranks 2 --stage "0,1,2,3" --case llama --dtype)
            gpu_part nccl "${two[@]}" fp32,bf16
            gpu_part nccl-plain env ZTRAIN_NCCL_MEMORY=plain "${two[@]}" bf16
        else
            no_part nccl "one GPU" "it needs two" && no_part nccl-plain "one GPU" "it needs two"
        fi
        ;;
    sanitizer)
        for tool in memcheck racecheck; do
            if [ -n "$sanitizer_program" ]; then
                gpu_part $tool sanitizer $tool
            else
                no_part $tool "no compute-sanitizer" \
                    "hint: $python -m pip install nvidia-cuda-sanitizer-api, for CUDA 12 with -cu12 behind it; the CUDA Toolkit has it, too"
            fi
        done
        ;;
    bench)
        limit_of bench # the benchmark names the cases for which it has no time
        gpu_part bench "$python" scripts/gpu_bench.py --ztrain "$build/ztrain" --out "$out" --limit "$((REPLY - 10))" \
            --device "$device" ${quick:+--seconds 1}
        ;;
    esac
done

# ---- SUMMARY ----------------------------------------------------------------------------------------------------------------------

# list WORD…: "WORD; WORD", or "nothing".
list() {
    local text
    text=$(printf '%s; ' "$@")
    text=${text%; }
    echo "${text:-nothing}"
}

# log_of NAME PATTERN: the lines of a part's log that match, if it ran this time.
log_of() {
    [[ " ${logs[*]-} " != *" $LOGS/$1.log "* ]] || grep -hE "$2" "$LOGS/$1.log"
}

# Of `ztrain doctor`, on one line: GPUs and driver; the libraries with their versions.
describe_gpu() {
    if grep -qE '^  gpu [0-9]' "$1"; then
        sed -nE 's/^  gpu [0-9]+ +([^,]+, [^(]*[^ (]).*/\1/p' "$1" | sort | uniq -c | sed -E 's/^ *1 //; s/^ *([0-9]+) /\1 x /'
        sed -nE 's/^  driver +([0-9].*)/driver \1/p' "$1"
    else # NVML is missing
        sed -nE 's/^  cuda device +([^;]+); .*, (driver for CUDA [0-9.]+).*/\1; \2/p' "$1"
    fi
}
describe_libraries() { sed -nE 's/^  (cublasLt|cuDNN|NCCL|NVRTC) +([0-9][0-9.]*) .*/\1 \2/p' "$1"; }

# The result of the self-test.
describe_self_test() {
    local log=$LOGS/gpu-test.log wrong
    [[ " ${logs[*]-} " == *" $log "* ]] || { echo "not run" && return; }
    wrong=$(grep -E ' WRONG: |runs do without|error: ' "$log" | sed -E 's/^ +//; s/  +/ /g')
    [ -z "$wrong" ] || { mapfile -t lines <<<"$wrong" && list "${lines[@]}" && return; }
    [[ " ${failed[*]-} " != *" gpu-test "* ]] || { echo "not finished: $(tail -n 1 "$log")" && return; }
    echo "$(grep -cE ' right$' "$log") checks right, $(sed -nE 's/^  time +//p' "$log")"
}

# What the parts whose numbers must repeat, and compute-sanitizer, said last.
describe_bits() {
    log_of virtual '^virtual ranks: '
    log_of resume 'after a resume$' | sed 's/^/resume: /'
    log_of graphs '^graphs: '
    log_of memcheck 'ERROR SUMMARY' | sed -E 's/^=+ */memcheck: /' | uniq # one for each run
    log_of racecheck 'RACECHECK SUMMARY|ERROR SUMMARY' | sed -E 's/^=+ */racecheck: /' | uniq
}

# Why a part failed: what it marked, or else the last thing that it said.
describe_failures() {
    local name
    for name in ${failed[@]+"${failed[@]%% *}"}; do
        { grep -hE '^(FAIL|FAILED)|^left out: |WRONG: ' "$LOGS/$name.log" || grep -h . "$LOGS/$name.log" | tail -n 1; } | sed "s/^/$name: /"
    done 2>&1 | cut -c 1-300 | head -n 20
}

# The benchmark's lines, shorter; in one what there was no time for.
describe_figures() {
    local late
    local case='^([^ ]+) .*, (deterministic|deterministic: false): ztrain ([0-9]+) tokens.s MFU ([^,;]+)'
    log_of bench '^[^ ]' | sed -nE -e "s/$case, expected [0-9]+ \(([^)]*)\).*/\1 \2 \3 tokens\/s, MFU \4 (expected \5)/p; t" \
        -e "s/$case;.*/\1 \2 \3 tokens\/s, MFU \4/p; t" \
        -e 's/^([^ ]+) .*, (deterministic|deterministic: false): (left out: does not fit).*/\1 \2 \3/p; t' \
        -e 's/^([^ ]+) +torch: .*(ratio [0-9.]+).*/\1 torch \2/p'
    late=$(log_of bench ': not measured: out of time' | sed -nE -e 's/^([^ ]+) .*, (deterministic.*): not measured.*/\1 \2/p; t' \
        -e 's/^([^ ]+) +torch: .*/\1 torch/p' | paste -sd ',' | sed 's/,/, /g')
    [ -z "$late" ] || echo "out of time: $late"
}

about=$LOGS/doctor.log
if [[ " ${logs[*]-} " != *" $about "* ]]; then # a summary without the GPU's name is of no use
    about=$LOGS/about.log
    timeout 30 "$build/ztrain" doctor >"$about" 2>&1
fi
commit=$(git rev-parse --short HEAD 2>/dev/null || "$build/ztrain" --version | sed -nE '1s/ +/ /p')
[ -z "$(git status --porcelain --untracked-files=no 2>/dev/null)" ] || commit="$commit with changes"
mapfile -t gpus < <(describe_gpu "$about")
mapfile -t versions < <(describe_libraries "$about")
mapfile -t bits < <(describe_bits)
mapfile -t figures < <(describe_figures)
gpu=$(list "${gpus[@]:-no GPU}") libraries=$(list ${versions[@]+"${versions[@]}"}) self_test=$(describe_self_test)
good=$(list ${passed[@]+"${passed[@]}"}) bad=$(list ${failed[@]+"${failed[@]}"}) out_of_it=$(list ${left_out[@]+"${left_out[@]}"})
{
    echo "gpu-check of $started, commit $commit, programs of $build, train.device=$device, $SECONDS s"
    echo "GPU: $gpu"
    echo "libraries: $libraries"
    echo "self-test: $self_test"
    echo "passed: $good"
    echo "failed: $bad"
    echo "left out: $out_of_it"
    [ ${#bits[@]} = 0 ] || printf '%s\n' "${bits[@]}"
    grep -hE '^  (products|attention|copy)|throttled: ' "$about" | sed -E 's/^ +//; s/  +/ /g'
    describe_failures
    log_of bench '^[^ ].*: |^    (off|by kind)'
    echo "an entry for docs/gpu-log.md:"
    printf '%s\n' "## $started, $commit" "" "- GPU: $gpu; $libraries" "- self-test: $self_test" "- passed: $good" \
        "- failed: $bad; left out: $out_of_it" "- bits: $(list ${bits[@]+"${bits[@]}"})" \
        "- figures: $(list ${figures[@]+"${figures[@]}"})"
} >"$out/SUMMARY"
cat "$out/SUMMARY"
parts_end

#!/usr/bin/env bash
# Everything that only a machine with an NVIDIA GPU can show: scripts/gpu-check.sh [OPTION…] [PART…]
#
#   doctor      the self-test of the GPU; GPU, driver, libraries, measured ceilings
#   ops         every op against its float64 reference, in fp32, bf16 and fp16; attention also with ztrain's own kernels
#   perf        the large ops: GB/s, TFLOP/s, share of the measured ceilings; attention with cuDNN and without
#   golden      every golden case in fp32 (without TF32), bf16 and fp16; some also without cuDNN
#   ranks       2 and 4 ranks on one GPU, ZeRO stages 0 to 3
#   resume      interrupted and resumed: the same numbers bit for bit
#   graphs      steps as CUDA graphs and op by op: the same numbers bit for bit, and the speed-up
#   sanitizer   compute-sanitizer's memcheck and racecheck on a small run
#   bench       GPT-2 124M and 1558M, and LLM.Q's shapes (Qwen2.5 0.5B to 7B), in steps of 524,288 tokens: tokens/s and each kind of
#               op next to what `ztrain plan --speed` expects, and PyTorch's tokens/s, if it is there. What does not fit is left out
#
#   --build DIR   the folder of ztrain and ops-test (default: build/gpu if it has them, else build); `make gpu-build` builds build/gpu
#                 with the small libraries linked statically, so that it can be copied to a machine that has only CUDA and Python
#   --out DIR     logs, tables and metrics (default: build/gpu-check)
#   --device KEY  train.device (default: cuda; cpu only shows that this script works)
#   --seconds N   for all parts together (default: 530); a part for which no time is left has failed
#   --quick       fewer golden cases, shorter turns of the benchmark
#
# ztrain also finds CUDA's libraries in Python's site-packages (docs/cuda.md). The last line is 'N passed, M failed'; SUMMARY in
# the output folder has the tables of this run.
set -uo pipefail
from=$PWD
cd "$(dirname "$0")/.." || exit 1
build='' out=build/gpu-check device=cuda quick='' seconds=530
all=(doctor ops perf golden ranks resume graphs sanitizer bench)
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
    -h | --help) sed -n '2,/^set /p' "$0" | sed -n 's/^# \{0,1\}//p' && exit 0 ;;
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
golden=(tests/golden/check_golden.py --ztrain "$build/ztrain" --set "train.device=$device")

# Runs a part within its time limit and the time that is left for all of them.
logs=()
gpu_part() {
    local left=$((seconds - SECONDS)) limit=$2
    [ "$limit" -le "$left" ] || limit=$left
    logs+=("$LOGS/$1.log")
    if [ "$limit" -lt 5 ]; then
        part "$1" 5 bash -c 'echo "left out: no time left"; exit 1'
    else
        part "$1" "$limit" "${@:3}"
    fi
}

# small_command CASE FOLDER: $run becomes the command that trains a golden case in bf16, with its run folder in FOLDER.
small_command() {
    local case=tests/golden/$1
    run=("$build/ztrain" --config "$case/run.yaml" --set "run.dir=$2" --set "model.pretrained=$case"
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

# A run whose kernels are shorter than their launches has equal numbers as graphs and op by op; prints the ratio of their speeds.
graphs() {
    local top run
    top=$(mktemp -d) || return
    small_command qwen3 "$top" # its heads suit cuDNN
    run+=(--set train.max_steps=200 --set train.eval_interval_steps=100)
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
    command -v compute-sanitizer >/dev/null || {
        echo "no compute-sanitizer on this machine; hint: it comes with the CUDA Toolkit; add its folder to PATH"
        return 1
    }
    top=$(mktemp -d) || return
    for case in gpt2 qwen3; do
        small_command "$case" "$top"
        compute-sanitizer --tool "$tool" --error-exitcode 9 "${run[@]}" --set train.max_steps=2 || code=$?
    done
    rm -rf "$top"
    return $code
}

for name in "$@"; do
    case $name in
    doctor)
        [ "$device" = cpu ] || gpu_part gpu-test 60 "$build/ztrain" doctor --gpu-test
        gpu_part doctor 60 "$build/ztrain" doctor
        ;;
    ops)
        gpu_part ops 120 "$build/ops-test" test --device "$device"
        gpu_part ops-own-attention 60 env ZTRAIN_CUDA_ATTENTION=own "$build/ops-test" test --device "$device" --op attention
        ;;
    perf)
        gpu_part perf 120 "$build/ops-test" perf --device "$device"
        gpu_part perf-own-attention 60 env ZTRAIN_CUDA_ATTENTION=own "$build/ops-test" perf --device "$device" --op attention
        ;;
    golden)
        gpu_part golden 120 "${golden[@]}" --dtype fp32,bf16,fp16 ${quick:+--case gpt2 --case llama}
        gpu_part golden-own-attention 60 env ZTRAIN_CUDA_ATTENTION=own "${golden[@]}" --dtype bf16,fp16 --case qwen3 \
            --case llama-bias
        ;;
    ranks)
        gpu_part ranks 120 "${golden[@]}" --ranks 2 --stage 0,1,2,3 --dtype bf16 --case gpt2 --case qwen3
        gpu_part ranks-4 90 "${golden[@]}" --ranks 4 --stage 0,1,2,3 --dtype fp32 --case llama
        ;;
    resume) gpu_part resume 60 resume ;;
    graphs) gpu_part graphs 60 graphs ;;
    sanitizer)
        gpu_part memcheck 90 sanitizer memcheck
        gpu_part racecheck 90 sanitizer racecheck
        ;;
    bench)
        left=$((seconds - SECONDS)) # the benchmark leaves out cases for which it has no time
        gpu_part bench 300 "$python" scripts/gpu_bench.py --ztrain "$build/ztrain" --out "$out" \
            --limit "$((left < 290 ? left - 10 : 280))" --device "$device" ${quick:+--seconds 1}
        ;;
    esac
done
{
    echo "# $(date -u +%F) $(git rev-parse --short HEAD 2>/dev/null)"
    for log in "${logs[@]}"; do
        echo "## $(basename "$log" .log)"
        if [ "$(basename "$log")" = bench.log ]; then
            cat "$log"
            continue
        fi
        grep -hE "passed, |^(FAIL|FAILED)|ratio|GB/s|TFLOP/s|ceiling|^attention|left out" "$log"
    done
    [ ${#parts_broken[@]} = 0 ] || echo "failed: ${parts_broken[*]}"
} >"$out/SUMMARY"
cat "$out/SUMMARY"
parts_end

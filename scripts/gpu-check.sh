#!/usr/bin/env bash
# Everything that only a machine with an NVIDIA GPU can show: scripts/gpu-check.sh [OPTION…] [PART…]
#
#   doctor      what is there: GPU, driver, libraries, measured ceilings
#   ops         every op against its float64 reference, in fp32, bf16 and fp16; attention with ztrain's own kernels, too
#   perf        the large ops: GB/s, TFLOP/s, share of the measured ceilings; attention through cuDNN and without
#   golden      every golden case in fp32 (without TF32), bf16 and fp16; some without cuDNN, too
#   ranks       2 and 4 ranks on the one GPU, ZeRO stages 0 to 3
#   resume      interrupted and resumed: the same numbers bit for bit
#   graphs      steps as CUDA graphs and op by op: the same numbers bit for bit, how much faster
#   sanitizer   compute-sanitizer's memcheck and racecheck on a small run
#   bench       GPT-2 124M and 1.5B, a Llama 1B and 8B shape beside PyTorch, alternating, as ratios
#
#   --build DIR   where ztrain and ops-test are (default: build); `make gpu-build` makes them with the small libraries
#                 linked statically, so that the folder can be carried to a machine that has only CUDA and Python
#   --out DIR     logs, tables and metrics (default: build/gpu-check)
#   --device KEY  train.device (default: cuda; cpu only shows that this script works)
#   --quick       smaller ops and fewer cases
#
# All parts together take less than 9 minutes on one H200. Where CUDA's libraries lie in Python's site-packages, they are
# found there. The last line is 'N passed, M failed'; SUMMARY in the output folder holds the tables.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
build=build out=build/gpu-check device=cuda quick=
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=$2 && shift 2 ;;
    --out) out=$2 && shift 2 ;;
    --device) device=$2 && shift 2 ;;
    --quick) quick=1 && shift ;;
    -h | --help) sed -n '2,/^set /p' "$0" | sed -n 's/^# \{0,1\}//p' && exit 0 ;;
    -*) echo "gpu-check: no option '$1'; hint: --help" >&2 && exit 2 ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || set -- doctor ops perf golden ranks resume graphs sanitizer bench
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
packages=$("$python" -c 'import glob, os, site
for top in site.getsitepackages():
    print(":".join(sorted(glob.glob(os.path.join(top, "nvidia", "*", "lib")))), end=":")' 2>/dev/null)
export LD_LIBRARY_PATH=$packages${LD_LIBRARY_PATH:-}
# parts that are functions see what is exported; ranks and resume have several ranks on one GPU; the choices of GEMM kernels stay with the results
export build device python ZTRAIN_SHARE_GPUS=1
export ZTRAIN_GEMM_CACHE=${ZTRAIN_GEMM_CACHE:-$PWD/$out/gemm-cache}
golden=(tests/golden/check_golden.py --ztrain "$build/ztrain" --set "train.device=$device")

# Two runs of one spec, one of them interrupted after step 3: equal losses, norms and evaluations.
resume() {
    local top case=tests/golden/llama
    top=$(mktemp -d) || return
    local run=("$build/ztrain" --config "$case/run.yaml" --set "run.dir=$top" --set "model.pretrained=$case"
        --set "data.train=$case/train" --set "data.validation=$case/validation" --set "train.device=$device"
        --set bf16.enabled=true --set zero_optimization.stage=2 --set checkpoint.interval_steps=1)
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

# A run whose kernels are shorter than their launches, as graphs and op by op: equal numbers, and the ratio of their speeds.
graphs() {
    local top case=tests/golden/llama
    top=$(mktemp -d) || return
    local run=("$build/ztrain" --config "$case/run.yaml" --set "run.dir=$top" --set "model.pretrained=$case"
        --set "data.train=$case/train" --set "data.validation=$case/validation" --set "train.device=$device"
        --set bf16.enabled=true --set train.max_steps=200 --set train.eval_interval_steps=100)
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

# A small run under one of compute-sanitizer's tools.
sanitizer() {
    local tool=$1 case=tests/golden/gpt2 top code
    command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer on this machine" && return 1; }
    top=$(mktemp -d) || return
    compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/ztrain" --config "$case/run.yaml" --set "run.dir=$top" \
        --set run.name=small --set "model.pretrained=$case" --set "data.train=$case/train" \
        --set "data.validation=$case/validation" --set "train.device=$device" --set train.max_steps=2 --set bf16.enabled=true
    code=$?
    rm -rf "$top"
    return $code
}

for name in "$@"; do
    case $name in
    doctor) part doctor 60 "$build/ztrain" doctor ;;
    ops)
        part ops 120 "$build/ops-test" test --device "$device"
        part ops-own-attention 60 env ZTRAIN_CUDA_ATTENTION=own "$build/ops-test" test --device "$device" --op attention
        ;;
    perf)
        part perf 90 "$build/ops-test" perf --device "$device"
        part perf-own-attention 60 env ZTRAIN_CUDA_ATTENTION=own "$build/ops-test" perf --device "$device" --op attention
        ;;
    golden)
        part golden 120 "${golden[@]}" --dtype fp32,bf16,fp16 ${quick:+--case gpt2 --case llama}
        part golden-own-attention 60 env ZTRAIN_CUDA_ATTENTION=own "${golden[@]}" --dtype bf16,fp16 --case qwen3 \
            --case llama-bias
        ;;
    ranks)
        part ranks 120 "${golden[@]}" --ranks 2 --stage 0,1,2,3 --dtype bf16 --case gpt2 --case qwen3
        part ranks-4 60 "${golden[@]}" --ranks 4 --stage 0,3 --dtype fp32 --case llama
        ;;
    resume) part resume 60 resume ;;
    graphs) part graphs 60 graphs ;;
    sanitizer)
        part memcheck 90 sanitizer memcheck
        part racecheck 90 sanitizer racecheck
        ;;
    bench) part bench 300 "$python" scripts/gpu_bench.py --ztrain "$build/ztrain" --out "$out" --limit 280 \
        ${quick:+--seconds 10} ;;
    *) echo "gpu-check: no part '$name'; hint: --help" >&2 && exit 2 ;;
    esac
done
{
    echo "# $(date -u +%F) $(git rev-parse --short HEAD 2>/dev/null)"
    grep -hE "passed, |^(FAIL|FAILED)|ratio|GB/s|TFLOP/s|ceiling|^attention" "$LOGS"/*.log 2>/dev/null
} >"$out/SUMMARY"
cat "$out/SUMMARY"
parts_end

#!/usr/bin/env bash
# Compares ztrain with PyTorch and DeepSpeed on this machine, alternating in one run, as ratios: scripts/bench-peers.sh [OPTION…]
#
# Makes a virtual environment in build/venv (a few GB), builds ztrain, and runs scripts/bench.py: PyTorch compiled, then
# DeepSpeed with two ranks at ZeRO-3. Other options go to bench.py (--case bf16-256, --turns N). It takes about half an hour.
#   --torch, --deepspeed       only this peer
#   --lora                     only PEFT: both train LoRA adapters
#   --as-installed             without preloading the libraries that make PyTorch's memory and threads faster
#   $ZTRAIN_PYTHON             a Python that already has torch and transformers
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
torch=1 deepspeed=1 tuned=1 options=()
for argument in "$@"; do
    case $argument in
    --torch) deepspeed=0 ;;
    --deepspeed) torch=0 ;;
    --lora) deepspeed=0 options+=(--lora) ;;
    --as-installed) tuned=0 ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0" && exit 0 ;;
    *) options+=("$argument") ;;
    esac
done

scripts/install-deps.sh --bench --quiet
make -s -j"$(nproc)"
python=${ZTRAIN_PYTHON:-build/venv/bin/python}
if [ -z "${ZTRAIN_PYTHON:-}" ]; then
    scripts/make-venv.sh build/venv --bench
fi

# PyTorch is fast on a CPU with an allocator that keeps its pages and with Intel's OpenMP run time.
preload=()
if [ $tuned = 1 ]; then
    for library in /usr/lib/*/libtcmalloc_minimal.so.4; do
        [ ! -e "$library" ] || preload+=("$library")
    done
    openmp=$(find "$(dirname "$python")/../lib" -name libiomp5.so 2>/dev/null | head -1 || true)
    [ -z "$openmp" ] || preload+=("$(realpath "$openmp")")
fi
ZTRAIN_BENCH_PRELOAD=$(IFS=:; echo "${preload[*]}")
export ZTRAIN_BENCH_PRELOAD
[ $tuned = 0 ] || [ ${#preload[@]} = 2 ] || echo "bench-peers.sh: preloading only '$ZTRAIN_BENCH_PRELOAD': PyTorch may be slower than it could be" >&2

[ $torch = 0 ] || scripts/bench.py --peers "$python" ${options[@]+"${options[@]}"}
[ $deepspeed = 0 ] || scripts/bench.py --peers "$python" --deepspeed ${options[@]+"${options[@]}"}

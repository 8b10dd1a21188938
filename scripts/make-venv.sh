#!/usr/bin/env bash
# Makes a Python virtual environment with PyTorch, transformers, PEFT, TRL, bitsandbytes, TensorBoard and wandb: scripts/make-venv.sh DIR [--bench]
# Tests that compare with them need it, and with --bench scripts/bench-peers.sh does (also DeepSpeed and the libraries that make
# PyTorch fast on a CPU). ztrain itself does not. Downloads a few GB and takes minutes, unless the environment exists.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,4s/^# \{0,1\}//p' "$0" && exit 2; }
venv=$1 bench=${2:-}
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
packages=(torch transformers peft bitsandbytes safetensors tokenizers numpy pytest jinja2 pyarrow zstandard tensorboard trl wandb)
[ "$bench" != --bench ] || packages+=(deepspeed intel-openmp setuptools)
"$venv/bin/python" -m pip install -q --disable-pip-version-check "${packages[@]}"
"$venv/bin/python" -c 'import torch, transformers; print("torch", torch.__version__, "transformers", transformers.__version__)'

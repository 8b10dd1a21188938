#!/usr/bin/env bash
# Compiles what includes CUDA's headers against those of CUDA 12.4, without making objects: scripts/check-cuda12.sh [--fetch]
#
# Host sources (C) are compiled as the Makefile compiles them, the .cu files as tests/emulation does, since the packages have no
# nvcc. The headers are those of NVIDIA's packages on PyPI, kept in build/cuda12/include; the first call downloads them (400 MB, of
# which 6 MB are kept). cuDNN's and NCCL's are the same for CUDA 12 and 13: they are taken from the toolkit of this machine, and
# where it has none, the sources compile without them. The last line is 'N passed, M failed'.
#
#   --fetch     only downloads
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
case ${1-} in '' | --fetch) ;; *) sed -n '2,9s/^# \{0,1\}//p' "$0" && exit 2 ;; esac
packages=(nvidia-cuda-runtime-cu12==12.4.127 nvidia-cuda-nvcc-cu12==12.4.131 nvidia-nvtx-cu12==12.4.127 nvidia-cublas-cu12==12.4.5.8)
top=build/cuda12
include=$top/include

fetch() {
    local python
    rm -rf "$top" && mkdir -p "$top/packages" || return
    for python in "${ZTRAIN_PYTHON:-}" build/venv/bin/python python3; do
        [ -n "$python" ] && "$python" -m pip --version >/dev/null 2>&1 && break
        python=
    done
    if [ -z "$python" ]; then
        python3 -m venv "$top/venv" || return
        python=$top/venv/bin/python
    fi
    "$python" -m pip download -q --disable-pip-version-check --no-deps -d "$top/packages" "${packages[@]}" &&
        "$python" - "$top" <<'PYTHON'
import glob
import os
import sys
import zipfile

for wheel in glob.glob(f"{sys.argv[1]}/packages/*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            _, found, rest = name.partition("/include/")
            if found and rest and not rest.endswith("/"):
                path = f"{sys.argv[1]}/include.new/{rest}"
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as f:
                    f.write(archive.read(name))
PYTHON
    local code=$?
    rm -rf "$top/packages" "$top/venv"
    [ $code = 0 ] && mv "$top/include.new" "$include"
}

if [ ! -d "$include" ]; then
    fetch || { echo "check-cuda12: the headers of ${packages[*]} could not be had" && echo "0 passed, 1 failed" && exit 1; }
fi
[ "${1-}" != --fetch ] || exit 0
for folder in "${CUDA_HOME:-/usr/local/cuda}/include" /usr/include /usr/include/*-linux-gnu; do
    for header in "$folder"/cudnn*.h "$folder"/nccl.h; do
        [ ! -f "$header" ] || [ -e "$include/$(basename "$header")" ] || ln -s "$header" "$include/"
    done
done

passed=0 failed=0
# syntax FILE COMMAND…: counts it, and prints its first messages if it fails.
syntax() {
    local file=$1 said
    if said=$("${@:2}" -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DZTRAIN_CUDA=1 -I. -isystem "$include" -fopenmp -Wall -Wextra -Werror \
        -fsyntax-only "$file" 2>&1); then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "$file does not compile against CUDA 12's headers:"
        head -8 <<<"$said"
    fi
}
grep -q 'CUBLAS_VER_MAJOR 12' "$include/cublasLt.h" "$include/cublas_api.h" || {
    echo "check-cuda12: the headers in $include are not those of CUDA 12" && exit 1
}
for file in $(find gpu/cuda -name '*.c') $(grep -lrE --include='*.c' --exclude-dir=cuda '^ *#( *include <(cu|nv|nccl)|.*ZTRAIN_CUDA)' core gpu comm ckpt cmd); do
    syntax "$file" "${CC:-gcc}" -std=c11 -Wshadow -Wstrict-prototypes -Wmissing-prototypes
done
for file in gpu/cuda/*/*.cu; do
    syntax "$file" "${CXX:-g++}" -x c++ -std=c++17 -DZTRAIN_EMULATION=1 -Itests/emulation -Wno-unknown-pragmas
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]

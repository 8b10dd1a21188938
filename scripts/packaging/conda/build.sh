#!/usr/bin/env bash
# conda-build calls it with CC, PREFIX, CPU_COUNT and the flags of the environment.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
settings=(CC="$CC" CUDA=0 PREFIX="$PREFIX" CFLAGS="${CFLAGS:-} -isystem $PREFIX/include"
    LDFLAGS="${LDFLAGS:-} -L$PREFIX/lib -Wl,-rpath,$PREFIX/lib")
make -j"${CPU_COUNT:-2}" "${settings[@]}" all manual
make "${settings[@]}" install

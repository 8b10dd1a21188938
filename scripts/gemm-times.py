#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/unit/fixtures/gemm_times.h: times of matrix products by NVIDIA's offline model, which gpu/simulate/gemm_estimate.c is fitted to.

Needs the package nvidia-matmul-heuristics from PyPI, which needs no GPU:
    python3 -m venv build/venv && build/venv/bin/pip install nvidia-matmul-heuristics==0.1.0.27
    build/venv/bin/python scripts/gemm-times.py > tests/unit/fixtures/gemm_times.h
"""
import os
import sys

import nvMatmulHeuristics as heuristics

LAYOUT = heuristics.NvMatmulHeuristicsMatmulLayout.TN_ROW_MAJOR  # times do not depend on it
PRECISIONS = {"TST": 2, "TSS": 4}  # bf16 operands; bytes of an element of the output
CANDIDATES = 8
# hidden, MLP's output and input, width of q | k | v, tokens of a micro-batch, columns of logits, rows of their chunks (the last one
# may be shorter) on an H100 with logits in bf16; tests/unit/gpu/simulate/test_op_estimate.c asks the program for its products, and fails if one of
# them is not in the table
MODELS = {
    "GPT-2 124M": (768, 3072, 3072, 2304, 32768, 50304, (11008, 10752)),
    "GPT-2 124M, 128 sequences": (768, 3072, 3072, 2304, 131072, 50304, (13184, 12416)),
    "GPT-2 1558M": (1600, 6400, 6400, 4800, 16384, 50304, (8192,)),
    "Llama 8B": (4096, 28672, 14336, 6144, 8192, 128256, (4096,)),
    "Qwen2.5 0.5B": (896, 9728, 4864, 1152, 32768, 151936, (4096,)),
    "Qwen2.5 1.5B": (1536, 17920, 8960, 2048, 16384, 151936, (4096,)),
    "Qwen2.5 3B": (2048, 22016, 11008, 2560, 8192, 151936, (4096,)),
    "Qwen2.5 7B": (3584, 37888, 18944, 4608, 4096, 152064, (4096,)),
}


def shapes():
    """(M, N, K) of the products of the models, forward and both backward ones."""
    found = set()
    for hidden, up, inner, qkv, tokens, columns, chunks in MODELS.values():
        for m, n, k in ((tokens, qkv, hidden), (tokens, hidden, hidden), (tokens, up, hidden), (tokens, hidden, inner),
                        *((rows, columns, hidden) for rows in chunks)):
            found |= {(m, n, k), (m, k, n), (n, k, m)}
    return sorted(found)


def seconds(model, descriptor, m, n, k):
    """Of the fastest kernel for the product or its transpose."""
    times = [c["runtime"] for a, b in ((m, n), (n, m)) for c in model.get_with_mnk(a, b, k, LAYOUT, CANDIDATES, descriptor)]
    return min(t for t in times if t > 0)


def main():
    print("/* gemm_times.h: microseconds of products of bf16 on an H100 SXM by NVIDIA's offline model (nvidia-matmul-heuristics\n"
          " * 0.1.0.27, CUTLASS 3). Written by scripts/gemm-times.py. */")
    print("/* clang-format off */")
    print("static const struct gemm_time {\n    int64_t M, N, K;\n    int out_bytes;\n    double us;\n} gemm_times[] = {")
    kept = []  # freeing a model crashes the library
    for precision, out_bytes in PRECISIONS.items():
        model = heuristics.NvMatmulHeuristicsInterface(heuristics.NvMatmulHeuristicsTarget.CUTLASS3, precision,
                                                       flags=heuristics.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING)
        kept.append(model)
        descriptor = model.createHardwareDescriptor()
        model.setHardwarePredefinedGpu(descriptor, heuristics.NvMatmulHeuristicsNvidiaGpu.H100_SXM)
        model.loadInternalDiscoverySet(LAYOUT, descriptor)
        for m, n, k in shapes():
            print(f"    {{{m}, {n}, {k}, {out_bytes}, {1e6 * seconds(model, descriptor, m, n, k):.1f}}},")
    print("};\n/* clang-format on */")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_quantized.py tests/unit/fixtures/golden_quantized.h: writes matrices, their NF4 codes and scales by bitsandbytes, and
the values of codes in NF4, FP8 and MXFP4 by bitsandbytes, torch and transformers.

Needs torch (with vectors of 256 bits), bitsandbytes and transformers."""
import sys

import bitsandbytes
import bitsandbytes.functional as functional
import torch
import transformers
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

# rows, columns, spread of the rows' scales; the last ones: scales that fill no vector, and many
SHAPES = [(2, 48), (5, 100), (3, 1024), (130, 258), (96, 1024), (1, 64), (41, 1027)]


def matrix(number, rows, cols):
    """Values of many sizes that C computes too: by a generator of 64 bits, times powers of two."""
    state, values = number + 1, []
    for i in range(rows * cols):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        draw = (state >> 32) - 2**31
        values.append(float(draw) * 2.0 ** (-31 - (i // cols) % 5))
    x = torch.tensor(values, dtype=torch.float64).to(torch.bfloat16 if number % 2 else torch.float32).reshape(rows, cols)
    if number == 3:
        x[0, :64] = 0  # a block of zeros
    return x


def array(f, kind, name, values):
    f.write(f"static const {kind} {name}[] = {{{', '.join(map(str, values))}}};\n")


def bits(x):
    x = x.flatten()
    return [v & (0xffffffff if x.element_size() == 4 else 0xffff)
            for v in x.view(torch.int32 if x.element_size() == 4 else torch.int16).tolist()]


def fnv(data):
    """A hash of many bytes."""
    value = 14695981039346656037
    for byte in data:
        value = (value ^ byte) * 1099511628211 % 2**64
    return f"UINT64_C({value})"


def hash_of(x):
    return fnv(x.contiguous().flatten().view(torch.uint8).numpy().tobytes())


def values_of(codes, absmax, state, x):
    """The values of codes. bitsandbytes' kernel for CPUs takes another block's scale for some elements if blocks end inside of its
    vectors, which start with each row; its kernels for GPUs do not."""
    pairs = torch.stack([codes.flatten() >> 4, codes.flatten() & 15], dim=1).flatten()[:x.numel()].long()
    values = (state.code[pairs] * absmax.repeat_interleave(state.blocksize)[:x.numel()]).to(x.dtype).reshape(x.shape)
    if x.shape[1] % state.blocksize == 0:
        assert torch.equal(values, functional.dequantize_4bit(codes, state))
    return values


def write_nf4(f):
    rows = []
    for number, (r, c) in enumerate(SHAPES):
        x = matrix(number, r, c)
        codes, state = functional.quantize_4bit(x, quant_type="nf4", compress_statistics=False)
        nested_codes, nested = functional.quantize_4bit(x, quant_type="nf4", compress_statistics=True)
        assert torch.equal(codes, nested_codes) and nested.state2.blocksize == 256
        nested_scales = functional.dequantize_blockwise(nested.absmax, nested.state2) + nested.offset
        values = values_of(codes, nested_scales, nested, x)
        rows.append(f"{{{r}, {c}, {number % 2}, 0x{bits(nested.offset.reshape(1))[0]:08x}, {hash_of(x)}, {hash_of(codes)}, "
                    f"{hash_of(state.absmax)}, {hash_of(nested.absmax)}, {hash_of(nested.state2.absmax)},\n     "
                    f"{hash_of(values_of(codes, state.absmax, state, x))}, {hash_of(values)}, {hash_of(values.half())}}}")
    f.write("/* rows, columns, whether in bf16, offset; hashes of bytes: the matrix, codes, scales, scale codes, nested scales; "
            "values by scales and by codes of\n * scales, in its dtype; the latter in fp16 */\n"
            "struct golden_nf4 {\n    int rows, cols, bf16;\n    uint32_t offset;\n"
            "    uint64_t matrix, codes, scales, scale_codes, nested_scales, values, nested_values, halves;\n};\n"
            "static const struct golden_nf4 golden_nf4[] = {\n    " + ",\n    ".join(rows) + "};\n")


def write_values(f):
    codes = torch.arange(256, dtype=torch.uint8)
    array(f, "uint32_t", "golden_fp8", [f"0x{v:08x}" for v in bits(codes.view(torch.float8_e4m3fn).float())])
    blocks = codes.reshape(1, 16, 1, 16).to(torch.uint8)  # rows of 32 values
    exponents = torch.tensor([[[e] for e in (0, 1, 100, 126, 127, 128, 129, 130, 131, 140, 150, 200, 230, 240, 250, 251)]],
                             dtype=torch.uint8)
    array(f, "uint8_t", "golden_mxfp4_exponents", exponents.flatten().tolist())
    for name, dtype in (("floats", torch.float32), ("halves", torch.bfloat16)):
        values = convert_moe_packed_tensors(blocks, exponents, dtype=dtype)  # (1, 32, 16): transposed
        array(f, f"uint{values.element_size() * 8}_t", f"golden_mxfp4_{name}", bits(values[0].t().contiguous()))


def main(path):
    torch.set_num_threads(1)
    assert torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"), "the offset depends on the vectors"
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"/* SPDX-License-Identifier: Apache-2.0 */\n/* Matrices in 4 and 8 bits: bitsandbytes {bitsandbytes.__version__}, "
                f"torch {torch.__version__}, transformers {transformers.__version__}; written by\n"
                " * tests/golden/make_quantized.py. Floats are bits. */\n/* clang-format off */\n#include <stdint.h>\n")
        write_nf4(f)
        write_values(f)
        f.write("/* clang-format on */\n")


if __name__ == "__main__":
    main(sys.argv[1])

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_dynamic_map.py tests/unit/fixtures/golden_dynamic_map.h: writes the dynamic 8-bit maps of torchao, after a check that
those of bitsandbytes are the same, and the codes that both give to values near the middle between two of the map.

Needs torch, torchao and bitsandbytes."""
import sys

import bitsandbytes.functional
import torch
import torchao
from torchao.optim.quant_utils import create_dynamic_map, quantize_8bit_with_qmap


def bits(values):
    return ", ".join(f"0x{value & 0xffffffff:08x}" for value in values.view(torch.int32).tolist())


def probes(values):
    """The middles between neighbours as fp32 has them, the floats beside those, and values over the whole range."""
    middles = ((values[1:].double() + values[:-1].double()) / 2).float()
    above, below = (torch.nextafter(middles, torch.tensor(end)) for end in (9.0, -9.0))
    spread = torch.linspace(float(values[0]), 1, 301) ** 3
    return torch.cat([middles, above, below, spread, torch.tensor([-1.0, 0.0, 1.0])])


def bitsandbytes_codes(x, values):
    """One block, whose absolute maximum, 1, is the last value."""
    codes, absmax = torch.ops.bitsandbytes.quantize_blockwise(torch.cat([x, torch.ones(1)]), values, 4096)
    assert absmax.tolist() == [1.0]
    return codes[:-1]


def main(path):
    torch.set_num_threads(1)
    with open(path, "w", encoding="utf-8") as f:
        f.write("/* SPDX-License-Identifier: Apache-2.0 */\n"
                f"/* The dynamic 8-bit maps, and codes of values between -1 and 1: torchao {torchao.__version__}, bitsandbytes "
                f"{bitsandbytes.__version__};\n * written by tests/golden/make_dynamic_map.py. Floats are bits. */\n"
                "/* clang-format off */\n#include <stdint.h>\n")
        for name, signed in (("signed", True), ("unsigned", False)):
            values = torch.tensor(create_dynamic_map(signed), dtype=torch.float32)
            assert torch.equal(values, bitsandbytes.functional.create_dynamic_map(signed))
            x = probes(values)
            f.write(f"static const uint32_t golden_{name}_map[256] = {{{bits(values)}}};\n"
                    f"static const uint32_t golden_{name}_values[] = {{{bits(x)}}};\n"
                    f"static const uint8_t golden_{name}_codes[] = {{{', '.join(map(str, quantize_8bit_with_qmap(x, values).tolist()))}}};\n")
            if signed:
                f.write("static const uint8_t golden_grid_codes[] = "
                        f"{{{', '.join(map(str, bitsandbytes_codes(x, values).tolist()))}}};\n")
        f.write("/* clang-format on */\n")


if __name__ == "__main__":
    main(sys.argv[1])

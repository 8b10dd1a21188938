#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_adam8.py tests/unit/fixtures/golden_adam8.h: writes what torchao's AdamW8bit has of a tensor of 4,096 elements after 20
steps with gradients by formula: weights, codes and scales of the first two blocks, whose gradients differ in size.

Needs torch and torchao, on a CPU with FMA. torch.compile is switched off: the oracle is what the operations say one by one.
Square roots, on which the weights depend, are rounded correctly: torch's own are those of MKL, and CPUs differ in them."""
import sys

import torch
import torchao
from torchao.optim import AdamW8bit

STEPS, NUMEL, BLOCK, KEPT = 20, 4096, 256, 512


def numbers(salt):
    """-0.5 … 0.5 by a hash of the element, exact in fp32."""
    mixed = (torch.arange(NUMEL, dtype=torch.int64) * 2654435761 + salt * 40503) % 2**32
    mixed = (mixed ^ (mixed >> 15)) * 2246822519 % 2**32
    return ((mixed >> 8).double() / 2**24 - 0.5).float()


def gradient(step):
    """Every element's sign and size change; the second block's are small, and its first element's largest."""
    g = numbers(step) * 2.0 ** -(step % 5)
    g[BLOCK:2 * BLOCK] *= 2.0**-20
    g[BLOCK] = -(2.0**-18)
    return g


def bits(values):
    return ", ".join(f"0x{value & 0xffffffff:08x}" for value in values.view(torch.int32).tolist())


def main(path):
    torch.compile = lambda function, **_: function
    sqrt = torch.Tensor.sqrt
    torch.Tensor.sqrt = lambda x: sqrt(x.double()).float()
    torch.set_num_threads(1)
    weights = torch.nn.Parameter(numbers(1000))
    optimizer = AdamW8bit([weights], lr=1e-2, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
    for step in range(1, STEPS + 1):
        weights.grad = gradient(step)
        optimizer.step()
    state = optimizer.state[weights]
    with open(path, "w", encoding="utf-8") as f:
        f.write("/* SPDX-License-Identifier: Apache-2.0 */\n"
                f"/* The first two blocks of a tensor after {STEPS} steps of AdamW8bit: torchao {torchao.__version__}, torch "
                f"{torch.__version__};\n * written by tests/golden/make_adam8.py. Floats are bits. */\n"
                "/* clang-format off */\n#include <stdint.h>\n"
                f"enum {{ GOLDEN_ADAM8_STEPS = {STEPS}, GOLDEN_ADAM8_NUMEL = {NUMEL}, GOLDEN_ADAM8_KEPT = {KEPT} }};\n"
                f"static const uint32_t golden_adam8_weights[] = {{{bits(weights.detach()[:KEPT])}}};\n")
        for name, moment in (("m", state["exp_avg"]), ("v", state["exp_avg_sq"])):
            f.write(f"static const uint8_t golden_adam8_{name}[] = {{{', '.join(map(str, moment.codes[:KEPT].tolist()))}}};\n"
                    f"static const uint32_t golden_adam8_{name}_scales[] = {{{bits(moment.scale[:KEPT // BLOCK])}}};\n")
        f.write("/* clang-format on */\n")


if __name__ == "__main__":
    main(sys.argv[1])

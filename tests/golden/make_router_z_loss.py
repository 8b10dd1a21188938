#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes router_z_loss.json: losses and gradient norms of the case qwen3-moe-aux with Switch Transformer's z loss of
the routers in the place of the auxiliary loss: the mean over tokens and layers of log(sum of exp(logits))²."""
import json
import pathlib
import sys

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import make_golden as golden  # noqa: E402


def loss_sum(model, x, y, _views=None):
    golden.keep_doubles(model)
    out = model(input_ids=x, use_cache=False, output_router_logits=True)
    model.aux_loss = torch.logsumexp(torch.cat([rows.double() for rows in out.router_logits]), -1).square().mean()
    return torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), y.flatten(), reduction="sum",
                                             ignore_index=golden.NO_TARGET)


def main():
    golden.loss_sum, golden.check_loss = loss_sum, lambda *_: None
    case = golden.Case("qwen3-moe-aux")
    run = golden.train(case, torch.float64)
    (HERE / "router_z_loss.json").write_text(
        json.dumps({"coefficient": case.coefficient, "loss": run["loss"], "grad_norm": run["norm"]}, indent=1) + "\n")


if __name__ == "__main__":
    main()

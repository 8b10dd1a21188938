#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_label_smoothing.py: writes label_smoothing.json: losses and evaluations of the case gpt2-padded, in float64, with
the LabelSmoother of transformers' Trainer, which is checked against torch's cross_entropy with label_smoothing."""
import json

import make_golden
import torch
import transformers
from make_golden import HERE, NO_TARGET, Case
from transformers.trainer_pt_utils import LabelSmoother

SMOOTHING = 0.1


def loss_sum(model, x, y):
    logits = model(input_ids=x, use_cache=False).logits
    targets = int((y != NO_TARGET).sum())
    loss = LabelSmoother(SMOOTHING, NO_TARGET)({"logits": logits}, y, num_items_in_batch=targets) * targets
    same = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum", ignore_index=NO_TARGET,
                                             label_smoothing=SMOOTHING)
    assert abs(loss.item() - same.item()) < 1e-6 * abs(same.item())  # LabelSmoother sums in float32
    return loss


if __name__ == "__main__":
    torch.set_num_threads(1)
    make_golden.loss_sum = loss_sum
    run = make_golden.train(Case("gpt2-padded"), torch.float64)
    out = {"case": "gpt2-padded", "transformers": transformers.__version__, "label_smoothing": SMOOTHING,
           "loss": run["loss"], "eval_loss": run["eval"]}
    (HERE / "label_smoothing.json").write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")

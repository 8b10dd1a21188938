#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_dropout.py: writes dropout.json: losses, gradient norms and evaluations of two golden cases with dropout, in float64.

transformers' models are in training mode, and torch's dropout is replaced by one with the same rate whose mask is that of
core/training/dropout.h, so that places, backward and masks are all compared. Needs what make_golden.py needs."""
import json

import make_golden
import numpy as np
import torch
import transformers
from make_golden import BATCH, HERE, NO_TARGET, Case

RATE, SEED = 0.2, 1234
THRESHOLD = int(RATE * 65536 + 0.5)
KEEPS = torch.nn.functional.dropout
EMBEDDING, ATTENTION, ATTENTION_OUTPUT, MLP_OUTPUT = range(4)


def philox(key, counter):
    """Philox4x32-10 of arrays: 8 arrays of 16 bits."""
    x = [np.asarray(c, np.uint64) for c in counter]
    low = np.uint64(0xffffffff)
    for r in range(10):
        k0, k1 = (np.uint64((k + r * c) & 0xffffffff) for k, c in zip(key, (0x9e3779b9, 0xbb67ae85)))
        p0, p1 = np.uint64(0xd2511f53) * x[0], np.uint64(0xcd9e8d57) * x[2]
        x = [(p1 >> np.uint64(32)) ^ x[1] ^ k0, p1 & low, (p0 >> np.uint64(32)) ^ x[3] ^ k1, p0 & low]
    return [word >> np.uint64(16 * half) & np.uint64(0xffff) for word in x for half in (0, 1)]


def mask(kind, layer, shape, first_sample, T):
    """Factors of a tensor (samples, T, columns), or with ATTENTION (samples, heads, T, T)."""
    domain = SEED ^ 0x64726f706f757421
    key = (domain & 0xffffffff, domain >> 32 ^ (layer << 8 | kind))
    sample = np.arange(first_sample, first_sample + shape[0], dtype=np.uint64)
    if kind == ATTENTION:
        heads, q, k = np.arange(shape[1]), np.arange(T), np.arange(T)
        number = (sample * np.uint64(T))[:, None, None, None]
        a = (k // 4)[None, None, None, :] | heads[None, :, None, None] << 22
        b = (q // 2)[None, None, :, None]
        element = np.broadcast_to(q[:, None] % 2 * 4 + k[None, :] % 4, shape)
    else:
        column = np.arange(shape[2])
        number = (sample[:, None] * np.uint64(T) + np.arange(T, dtype=np.uint64)[None, :])[:, :, None]
        a, b = (column // 8)[None, None, :], np.zeros((1, 1, 1))
        element = np.broadcast_to(column % 8, shape)
    counter = [np.broadcast_to(c, shape).astype(np.uint64) for c in (number & np.uint64(0xffffffff), number >> np.uint64(32), a, b)]
    bits = np.choose(element, philox(key, counter))
    return torch.from_numpy(np.where(bits < THRESHOLD, 0.0, 65536 / (65536 - THRESHOLD)))


class Masks:
    """In the order of transformers' calls."""

    def __init__(self, case):
        self.T, self.layers = case.T, 2
        gpt2 = case.family == "gpt2"
        self.order = [(EMBEDDING, 0)] if gpt2 else []
        for layer in range(1, self.layers + 1):
            self.order += [(kind, layer) for kind in ((ATTENTION, ATTENTION_OUTPUT, MLP_OUTPUT) if gpt2 else (ATTENTION,))]

    def begin(self, first_sample):
        self.first_sample, self.calls = first_sample, iter(self.order)

    def dropout(self, x, p=0.5, training=True, inplace=False):
        if not training:
            return x
        assert p == RATE
        kind, layer = next(self.calls)
        return x * mask(kind, layer, tuple(x.shape), self.first_sample, self.T).to(x.dtype)


def run(name):
    case = Case(name)
    keys = ["resid_pdrop", "embd_pdrop", "attn_pdrop"] if case.family == "gpt2" else ["attention_dropout"]
    case.config.update({key: RATE for key in keys})
    masks, seen = Masks(case), {"step": 0}

    def loss_sum(model, x, y):
        training = x.shape[0] == BATCH
        model.train(training)
        masks.begin(seen["step"] * BATCH)
        seen["step"] += training
        logits = model(input_ids=x, use_cache=False).logits
        assert not training or next(masks.calls, None) is None, "not every mask was asked for"
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum", ignore_index=NO_TARGET)

    make_golden.loss_sum = loss_sum
    torch.nn.functional.dropout = masks.dropout
    out = make_golden.train(case, torch.float64)
    torch.nn.functional.dropout = KEEPS
    print(f"{name}: loss {out['loss'][0]:.4f} -> {out['loss'][-1]:.4f}")
    return {"case": name, "keys": keys, "loss": out["loss"], "grad_norm": out["norm"], "eval_loss": out["eval"]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    cases = [run("gpt2"), run("llama")]
    text = json.dumps({"transformers": transformers.__version__, "rate": RATE, "cases": cases}, indent=1)
    (HERE / "dropout.json").write_text(text + "\n", encoding="utf-8")

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_optimizers.py: writes optimizers.json: the losses of 50 steps of the case llama with each optimizer, in float64.

    python3 make_optimizers.py [OPTIMIZER ...]        makes these anew and leaves the others as they are in the file

Needs torch beside what make_golden.py needs, and lion-pytorch for Lion. SGD and Muon are torch.optim's, Lion that of
lion-pytorch. `strays`: how far the same run in float32 strays from these losses. An optimizer with a "case" ran on
another one than llama."""
import json
import sys

import torch
from make_golden import BATCH, HERE, STEPS, Case, loss_sum

LONG = 50
DECAY = 0.1


def lion(groups):
    import lion_pytorch
    return lion_pytorch.Lion(groups, lr=3e-4, betas=(0.9, 0.99))


# The name, the run spec's section `optimizer`, the optimizer of a list of parameter groups.
OPTIMIZERS = [
    ("Lion", {"type": "Lion", "params": {"lr": 3e-4, "betas": [0.9, 0.99], "weight_decay": DECAY}}, lion),
    ("SGD", {"type": "SGD", "params": {"lr": 0.05, "weight_decay": DECAY}}, lambda groups: torch.optim.SGD(groups, lr=0.05)),
    ("SGD with momentum",
     {"type": "SGD", "params": {"lr": 0.02, "weight_decay": DECAY, "momentum": 0.9, "dampening": 0.3}},
     lambda groups: torch.optim.SGD(groups, lr=0.02, momentum=0.9, dampening=0.3)),
    ("SGD with Nesterov's momentum",
     {"type": "SGD", "params": {"lr": 0.01, "weight_decay": DECAY, "momentum": 0.8, "nesterov": True}},
     lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.8, nesterov=True)),
]
# The same for Muon: the case, the arguments of torch.optim.Muon, those of AdamW. The matrices of the blocks are Muon's.
MUON = [
    ("Muon", "llama",
     {"type": "Muon", "params": {"lr": 2e-3, "muon_lr": 0.02, "weight_decay": DECAY}},
     dict(lr=0.02), dict(lr=2e-3, betas=(0.9, 0.95), eps=1e-10)),
    ("Muon without Nesterov's momentum", "gpt2",
     {"type": "Muon", "params": {"lr": 3e-3, "adam_lr": 2e-3, "weight_decay": DECAY, "momentum": 0.9, "nesterov": False,
                                 "ns_steps": 3, "adjust_lr_fn": "match_rms_adamw", "betas": [0.9, 0.99], "eps": 1e-6}},
     dict(lr=3e-3, momentum=0.9, nesterov=False, ns_steps=3, adjust_lr_fn="match_rms_adamw"),
     dict(lr=2e-3, betas=(0.9, 0.99), eps=1e-6)),
]


def groups_of(named):
    """Tensors of one dimension are not decayed."""
    params = [p for _, p in named]
    return [{"params": [p for p in params if p.dim() > 1], "weight_decay": DECAY},
            {"params": [p for p in params if p.dim() == 1], "weight_decay": 0.0}]


class MuonAndAdamW:
    def __init__(self, model, muon, adamw):
        def matrix(name, p):
            return p.dim() == 2 and (".layers." in name or ".h." in name)
        named = list(model.named_parameters())
        matrices = [p for name, p in named if matrix(name, p)]
        self.both = [torch.optim.Muon(matrices, weight_decay=DECAY, **muon),
                     torch.optim.AdamW(groups_of([(n, p) for n, p in named if not matrix(n, p)]), **adamw)]

    def zero_grad(self):
        for optimizer in self.both:
            optimizer.zero_grad()

    def step(self):
        for optimizer in self.both:
            optimizer.step()


def losses(case, make, dtype):
    """make: the optimizer of a model"""
    model = case.model().to(dtype)
    params = list(model.parameters())
    optimizer = make(model)
    out = []
    for step in range(LONG):
        x, y = case.samples(case.train, step % STEPS * BATCH, BATCH)
        loss = loss_sum(model, x, y) / y.numel()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.sqrt(sum(p.grad.double().square().sum() for p in params)).item()
        if norm > case.clip:
            for p in params:
                p.grad *= case.clip / (norm + 1e-6)
        optimizer.step()
        out.append(loss.item())
    return out


def entry(name, case, section, make):
    exact, single = (losses(Case(case), make, dtype) for dtype in (torch.float64, torch.float32))
    strays = max(abs(a - b) for a, b in zip(exact, single))
    print(f"{name}: loss {exact[0]:.4f} -> {exact[-1]:.4f}, strays {strays:.1e}")
    return {"name": name, **({"case": case} if case != "llama" else {}), "optimizer": section, "strays": strays,
            "loss": exact}


def main(wanted):
    path = HERE / "optimizers.json"
    kept = {case["name"]: case for case in json.loads(path.read_text(encoding="utf-8"))["cases"]} if wanted else {}
    cases = [(name, "llama", section, lambda model, make=make: make(groups_of(list(model.named_parameters()))))
             for name, section, make in OPTIMIZERS]
    cases += [(name, case, section, lambda model, muon=muon, adamw=adamw: MuonAndAdamW(model, muon, adamw))
              for name, case, section, muon, adamw in MUON]
    made = [entry(*case) if not wanted or case[0] in wanted else kept[case[0]] for case in cases]
    text = json.dumps({"case": "llama", "torch": torch.__version__, "cases": made}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])

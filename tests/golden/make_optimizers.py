#!/usr/bin/env python3
"""make_optimizers.py: writes optimizers.json: the losses of 50 steps of the case llama with each optimizer, in float64.

Needs torch and lion-pytorch beside what make_golden.py needs. SGD is torch.optim's, Lion that of lion-pytorch.
`strays`: how far the same run in float32 strays from these losses."""
import json

import lion_pytorch
import torch
from make_golden import BATCH, HERE, STEPS, Case, loss_sum

LONG = 50
DECAY = 0.1
# The name, the run spec's section `optimizer`, the optimizer of a list of parameter groups.
OPTIMIZERS = [
    ("Lion", {"type": "Lion", "params": {"lr": 3e-4, "betas": [0.9, 0.99], "weight_decay": DECAY}},
     lambda groups: lion_pytorch.Lion(groups, lr=3e-4, betas=(0.9, 0.99))),
    ("SGD", {"type": "SGD", "params": {"lr": 0.05, "weight_decay": DECAY}}, lambda groups: torch.optim.SGD(groups, lr=0.05)),
    ("SGD with momentum",
     {"type": "SGD", "params": {"lr": 0.02, "weight_decay": DECAY, "momentum": 0.9, "dampening": 0.3}},
     lambda groups: torch.optim.SGD(groups, lr=0.02, momentum=0.9, dampening=0.3)),
    ("SGD with Nesterov's momentum",
     {"type": "SGD", "params": {"lr": 0.01, "weight_decay": DECAY, "momentum": 0.8, "nesterov": True}},
     lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.8, nesterov=True)),
]


def losses(case, make, dtype):
    model = case.model().to(dtype)
    params = list(model.parameters())
    optimizer = make([{"params": [p for p in params if p.dim() > 1], "weight_decay": DECAY},
                      {"params": [p for p in params if p.dim() == 1], "weight_decay": 0.0}])
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


def main():
    case, cases = Case("llama"), []
    for name, section, make in OPTIMIZERS:
        exact, single = (losses(case, make, dtype) for dtype in (torch.float64, torch.float32))
        strays = max(abs(a - b) for a, b in zip(exact, single))
        cases.append({"name": name, "optimizer": section, "strays": strays, "loss": exact})
        print(f"{name}: loss {exact[0]:.4f} -> {exact[-1]:.4f}, strays {strays:.1e}")
    text = json.dumps({"case": "llama", "torch": torch.__version__, "cases": cases}, indent=1)
    (HERE / "optimizers.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

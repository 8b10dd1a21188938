#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_rates.py tests/unit/fixtures/golden_rates.h: writes 50 learning rates of each schedule, as DeepSpeed and transformers have them.

Needs torch, transformers and deepspeed (its schedules are plain Python). A schedule of DeepSpeed's is stepped as its
engine does: after each optimizer step. Of a schedule of transformers', step k takes the factor at index k (Trainer takes
that at k - 1: its first step has rate 0 with a warm-up; ztrain's step 1 is the first of the warm-up; WSD's warm-up starts
at min_lr there and at 0 here)."""
import sys
from types import SimpleNamespace

import deepspeed
import torch
import transformers
from deepspeed.runtime.lr_schedules import LRRangeTest, OneCycle
from transformers import TrainingArguments, optimization

STEPS, LR = 50, 1e-3


def optimizer():
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=LR, betas=(0.9, 0.999))


def deepspeed_rates(kind, params):
    adam = optimizer()
    schedule, rates, betas = kind(adam, **params), [], []
    for _ in range(STEPS):
        rates.append(adam.param_groups[0]["lr"])
        betas.append(adam.param_groups[0]["betas"])
        adam.step()
        schedule.step()
    return rates, [beta for beta, _ in betas] if kind is OneCycle else []


def transformers_rates(make):
    factor = make(optimizer()).lr_lambdas[0]
    return [LR * factor(k) for k in range(1, STEPS + 1)], []


def warmup(ratio, steps):
    """transformers 5: warmup_steps below 1 is the former warmup_ratio."""
    return TrainingArguments.get_warmup_steps(SimpleNamespace(warmup_steps=ratio), steps)


def wsd(decay_type, warmup_steps, decay_steps, total, min_ratio=0.0):
    return transformers_rates(lambda adam: optimization.get_wsd_schedule(
        adam, num_warmup_steps=warmup_steps, num_decay_steps=decay_steps, num_training_steps=total,
        decay_type=decay_type, min_lr_ratio=min_ratio))


CYCLE = dict(cycle_min_lr=1e-4, cycle_max_lr=1e-3)
CASES = [
    (".type = SCHEDULE_WSD, .warmup_steps = 5, .decay_steps = 12, .total_steps = 45", wsd("cosine", 5, 12, 45)),
    (".type = SCHEDULE_WSD, .warmup_steps = 0, .decay_steps = 12, .total_steps = 45, .decay_type = DECAY_LINEAR, "
     ".min_lr = 1e-4", wsd("linear", 0, 12, 45, 0.1)),
    (".type = SCHEDULE_WSD, .warmup_steps = 0, .decay_steps = 40, .total_steps = 50, .decay_type = DECAY_SQRT",
     wsd("1-sqrt", 0, 40, 50)),
    (".type = SCHEDULE_WSD, .warmup_ratio = 0.15, .decay_steps = 10, .total_steps = 50, .decay_type = DECAY_LINEAR",
     wsd("linear", warmup(0.15, 50), 10, 50)),
    (".type = SCHEDULE_LINEAR, .warmup_ratio = 0.07, .total_steps = 50",
     transformers_rates(lambda adam: optimization.get_linear_schedule_with_warmup(adam, warmup(0.07, 50), 50))),
    (".type = SCHEDULE_COSINE, .warmup_ratio = 0.3, .total_steps = 50",
     transformers_rates(lambda adam: optimization.get_scheduler(
         "cosine_with_min_lr", adam, warmup(0.3, 50), 50, {"min_lr": 0.0}))),
    (".type = SCHEDULE_CONSTANT, .warmup_ratio = 0.1, .total_steps = 50",
     transformers_rates(lambda adam: optimization.get_constant_schedule_with_warmup(adam, warmup(0.1, 50)))),
    (".type = SCHEDULE_ONE_CYCLE, .cycle = {.min_lr = 1e-4, .max_lr = 1e-3, .first_steps = 10, .second_steps = -1, "
     ".second_stairs = -1, .momentum = true, .min_momentum = 0.8, .max_momentum = 0.9}",
     deepspeed_rates(OneCycle, dict(CYCLE, cycle_first_step_size=10))),
    (".type = SCHEDULE_ONE_CYCLE, .cycle = {.min_lr = 1e-4, .max_lr = 1e-3, .first_steps = 7, .second_steps = 12, "
     ".first_stairs = 3, .second_stairs = 5, .decay_lr_rate = 0.5, .decay_steps = 4, .momentum = true, "
     ".min_momentum = 0.85, .max_momentum = 0.95}",
     deepspeed_rates(OneCycle, dict(CYCLE, cycle_first_step_size=7, cycle_second_step_size=12,
                                    cycle_first_stair_count=3, cycle_second_stair_count=5, decay_lr_rate=0.5,
                                    decay_step_size=4, cycle_min_mom=0.85, cycle_max_mom=0.95))),
    (".type = SCHEDULE_LR_RANGE_TEST, .range_test = {.min_lr = 1e-4, .step_rate = 5, .step_size = 6}",
     deepspeed_rates(LRRangeTest, dict(lr_range_test_min_lr=1e-4, lr_range_test_step_rate=5.0,
                                       lr_range_test_step_size=6))),
    (".type = SCHEDULE_LR_RANGE_TEST, .range_test = {.min_lr = 1e-4, .step_rate = 0.5, .step_size = 6, "
     ".staircase = true}",
     deepspeed_rates(LRRangeTest, dict(lr_range_test_min_lr=1e-4, lr_range_test_step_rate=0.5,
                                       lr_range_test_step_size=6, lr_range_test_staircase=True))),
]

out = open(sys.argv[1], "w", encoding="utf-8")


def say(line):
    print(line, file=out)  # DeepSpeed logs to stdout


say(f"/* Learning rates (and OneCycle's beta1) of steps 1 to {STEPS}, from DeepSpeed {deepspeed.__version__.strip()} and "
      f"transformers\n * {transformers.__version__}; written by tests/golden/make_rates.py. The optimizer's lr is {LR}. "
      "*/")
say("/* clang-format off */")
say(f"enum {{ GOLDEN_STEPS = {STEPS} }};")
say("static const struct {\n    struct schedule_spec schedule;\n    double rates[GOLDEN_STEPS], "
      "beta1[GOLDEN_STEPS];\n} golden_rates[] = {")
for spec, (rates, betas) in CASES:
    rows = [", ".join(f"{x:.15g}" for x in numbers) for numbers in (rates, betas)]
    say(f"    {{{{{spec}}},\n     {{{rows[0]}}},\n     {{{rows[1] or 0}}}}},")
say("};\n/* clang-format on */")

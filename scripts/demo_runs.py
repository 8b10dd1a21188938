#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes run folders with invented curves, for pictures and tests of `ztrain report`: scripts/demo_runs.py FOLDER [STEPS].

The lines have the fields that core/metrics/metrics.c writes; the numbers come from formulas and a seeded generator, and no model was
trained. FOLDER gets small-lr, large-lr and wide: with evaluations, checkpoints, a resume, a restart, skipped steps, samples.
"""
import json
import math
import os
import random
import sys

SPEC = """run:
  name: {name}
  dir: runs
  seed: 1234
model:
  config: configs/models/{model}.json
data:
  train: [data/articles]
  seq_length: 1024
train:
  epochs: 2
  max_steps: {steps}
  eval_interval_steps: {every}
checkpoint:
  interval_steps: {every}
  metric: eval_loss
  mode: auto
train_batch_size: {batch}
optimizer:
  type: AdamW
  params:
    lr: {lr}
    betas: [0.9, 0.95]
zero_optimization:
  stage: {stage}
"""
PROMPTS = ["The committee said on Monday", "Shares of the company"]
WORDS = ("that it the a new plan of to for market would be after report and more year than before in week by quarter rose fell "
         "investors said government talks").split()


class Demo:
    """The curves of one run. loss(t) for t in [0, 1]; rate: tokens/s; parts: the shares of a step's time."""

    def __init__(self, name, steps, lr, floor, rate, seed, model="gpt2-124m", batch=64, stage=1, spike=None):
        self.name, self.steps, self.lr, self.floor, self.rate, self.spike = name, steps, lr, floor, rate, spike
        self.random = random.Random(seed)
        self.spec = {"name": name, "steps": steps, "lr": lr, "model": model, "batch": batch, "stage": stage, "every": max(1, steps // 15)}
        self.tokens_per_step = batch * 1024

    def loss(self, step):
        t = step / self.steps
        mean = self.floor + (10.9 - self.floor) * (0.82 * math.exp(-t * 55) + 0.18 * math.exp(-t * 4.5))
        if self.spike and 0 <= step - self.spike < self.steps // 40:
            mean += 2.4 * math.exp(-(step - self.spike) / (self.steps / 160))
        return mean + self.random.gauss(0, 0.055)

    def lr_at(self, step):
        warmup = max(1, self.steps // 20)
        return self.lr * step / warmup if step < warmup else self.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / (self.steps - warmup))))

    def step_line(self, step):
        noise = self.random.gauss
        slow = 0.62 if self.random.random() < 0.004 else 1
        rate = self.rate * slow * (1 + noise(0, 0.012))
        seconds = self.tokens_per_step / rate
        spiking = self.spike and 0 <= step - self.spike < 6
        norm = abs((0.35 + 4 * math.exp(-step / self.steps * 40)) * math.exp(noise(0, 0.16))) * (22 if spiking else 1)
        skipped = bool(self.spike) and step in (3, 5, self.spike)
        loss = self.loss(step)
        return {"step": step, "epoch": 1 + 2 * (step - 1) // self.steps, "loss": loss, "grad_norm": None if skipped else norm,
                "lr": self.lr_at(step), "loss_scale": 65536.0, "skipped": skipped, "tokens": step * self.tokens_per_step,
                "targets": self.tokens_per_step, "tokens_per_s": rate, "mfu": rate / 2.4e6,
                "memory_bytes": {"device": 31_400_000_000, "host": 5_200_000_000 + 400_000 * min(step, 2000)},
                "seconds": {"step": seconds, "data": 0.004 * seconds, "forward": 0.29 * seconds, "backward": 0.55 * seconds,
                            "reduce": 0.08 * seconds, "optimizer": 0.05 * seconds,
                            "checkpoint": 1.9 * seconds if (step - 1) % self.spec["every"] == 0 and step > 1 else 0.0}}

    def sample_lines(self, step):
        for i, prompt in enumerate(PROMPTS, 1):
            words = [self.random.choice(WORDS) for _ in range(14)]
            yield {"step": step, "epoch": 1, "sample": i, "prompt": prompt, "text": " " + " ".join(words) + "."}

    def lines(self, last):
        every = self.spec["every"]
        for step in range(1, last + 1):
            yield self.step_line(step)
            if step % every == 0 or step == self.steps:
                loss = self.floor + 0.04 + (10.9 - self.floor) * 0.2 * math.exp(-step / self.steps * 4.5) + max(0, step / self.steps - 0.8) * 0.2
                yield {"step": step, "epoch": 1, "eval_loss": loss, "perplexity": math.exp(loss), "eval_tokens": 102400}
                yield from self.sample_lines(step)
                yield {"checkpoint": f"runs/{self.name}/checkpoints/step-{step:08d}", "step": step, "bytes": 1490000000, "seconds_stalled": 0.4}
            if step == self.steps // 2:
                yield {"epoch_end": 1, "step": step, "train_loss": self.loss(step)}
            if self.spike and step == every * 6:
                yield {"resumed_from": f"runs/{self.name}/checkpoints/step-{step:08d}", "step": step}
            if self.spike and step == every * 11:
                yield {"restart": 1, "step": step, "exit_code": 6, "cause": "rank 3 on gpu07 was killed by signal 9"}

    def write(self, folder, last=None):
        """Writes the run up to step `last`. Returns its folder."""
        run = os.path.join(folder, self.name)
        os.makedirs(run, exist_ok=True)
        with open(os.path.join(run, "run.yaml"), "w", encoding="utf-8") as f:
            f.write(SPEC.format(**self.spec))
        with open(os.path.join(run, "metrics.jsonl"), "w", encoding="utf-8") as f:
            for line in self.lines(last or self.steps):
                f.write(json.dumps(line, separators=(",", ":")) + "\n")
        return run


def demos(steps=3000):
    """The three runs of the pictures."""
    return [Demo("small-lr", steps, 0.0003, 3.12, 412_000, 1),
            Demo("large-lr", steps, 0.001, 3.31, 418_000, 2, spike=int(steps * 0.38)),
            Demo("wide", steps, 0.0006, 2.93, 236_000, 3, model="llama-350m", stage=2)]


def main():
    folder, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3000
    for i, demo in enumerate(demos(steps)):
        print(demo.write(folder, int(steps * 0.71) if i == 2 else None))


if __name__ == "__main__":
    main()

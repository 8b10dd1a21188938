#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peer that scripts/bench.py compares with: transformers' GPT-2 124M in PyTorch, with PEFT's LoRA, or in DeepSpeed at ZeRO-3;
or the model of a config.json, in PyTorch.

Reads a number of steps from each line of standard input, does them, and answers with a line of JSON: the seconds of each
step and the peak memory. The settings are the fastest for PyTorch on a CPU: sdpa, torch.compile, fused AdamW with
the clip factor folded in through its grad_scale; scripts/bench-peers.sh preloads tcmalloc and Intel's OpenMP.
"""
import argparse
import json
import resource
import sys
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

VOCABULARY = 50257
CLIP = 1.0


def build(arguments):
    torch.manual_seed(1)
    if arguments.config:
        with open(arguments.config, encoding="utf-8") as f:
            config = AutoConfig.for_model(**json.load(f))
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
        model.set_experts_implementation(arguments.experts)
        return model.train()
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=1024, n_embd=768, n_layer=12, n_head=12, attn_pdrop=0.0,
                        embd_pdrop=0.0, resid_pdrop=0.0, use_cache=False)
    config._attn_implementation = "sdpa"
    model = GPT2LMHeadModel(config)
    model.train()
    return model


def adapted(arguments, model):
    """LoRA on every matrix of the blocks; the frozen weights are stored in the type of compute, A and B in fp32."""
    import peft
    config = peft.LoraConfig(r=arguments.lora, lora_alpha=2 * arguments.lora, target_modules="all-linear", fan_in_fan_out=True)
    return peft.get_peft_model(model.bfloat16() if arguments.dtype == "bf16" else model, config)


def torch_step(arguments):
    model = build(arguments)
    if arguments.lora:
        model = adapted(arguments, model)
    trained = [p for p in model.parameters() if p.requires_grad]
    decayed = [p for p in trained if p.dim() > 1]
    plain = [p for p in trained if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
                                  lr=1e-5, fused=True)
    forward = torch.compile(model) if arguments.compile else model

    def step(tokens):
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.dtype == "bf16"):
            loss = forward(input_ids=tokens, labels=tokens).loss
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in trained])
        # the optimizer divides gradients by grad_scale, so clipping costs no extra pass
        optimizer.grad_scale = torch.clamp((norm + 1e-6) / CLIP, min=1.0)
        optimizer.found_inf = torch.zeros(())
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss.item()
    return step


def deepspeed_step(arguments):
    import deepspeed
    deepspeed.init_distributed(dist_backend="gloo")
    settings = {
        "train_micro_batch_size_per_gpu": arguments.batch,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "weight_decay": 0.1}},
        "gradient_clipping": CLIP,
        "bf16": {"enabled": arguments.dtype == "bf16"},
        "zero_optimization": {"stage": 3},
        "steps_per_print": 1000000,
    }
    model = build(arguments)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)

    def step(tokens):
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        return loss.item()
    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], required=True)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--deepspeed", action="store_true")
    parser.add_argument("--lora", type=int, default=0, metavar="RANK")
    parser.add_argument("--config", metavar="FILE", help="of the model, instead of GPT-2")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--experts", metavar="IMPLEMENTATION", help="eager, grouped_mm, batched_mm: of its experts")
    arguments = parser.parse_args()
    step = deepspeed_step(arguments) if arguments.deepspeed else torch_step(arguments)
    generator = torch.Generator().manual_seed(2)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            tokens = torch.randint(arguments.vocabulary, (arguments.batch, arguments.length), generator=generator)
            started = time.monotonic()
            step(tokens)
            seconds.append(time.monotonic() - started)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"seconds": seconds, "memory": memory}), flush=True)


if __name__ == "__main__":
    main()

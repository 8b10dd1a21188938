#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make generate.json: what transformers' generate answers, greedily, to a few prompts with the golden models.

    python3 make_generate.py [CASE ...]     (packages: torch, transformers, safetensors) CASE: only these anew

It generates in float64. `margin` is the smallest distance of the two highest logits along the way, in a mixture of
experts also of the last expert that is chosen from the next; it tells in which dtypes the same tokens can be expected; a prompt whose margin is below LEAST is replaced by another one. `eos` is the
token that ends the text, where the case has one: the prompt then stops before its tokens are there.
"""
import json
import math
import pathlib
import sys

import torch
import transformers
from make_golden import Routing

HERE = pathlib.Path(__file__).resolve().parent
CASES = ["gpt2", "gpt2-inner", "llama", "llama-bias", "llama3-rope", "linear-rope", "mistral-window", "qwen2", "qwen3",
         "qwen3-yarn", "phi3", "granite", "smollm3", "olmo2", "gemma2", "gemma3", "olmo3",
         "glm", "glm4", "ministral3", "gptj", "gpt-neox", "gpt-neox-in-turn", "phi", "cohere", "cohere2", "starcoder2", "exaone4",
         "seed-oss", "qwen3.5", "gemma4", "gemma4-kv", "phi3-longrope", "dynamic-rope", "qwen3-moe", "qwen3-moe-aux", "qwen2-moe",
         "mixtral", "olmoe", "granitemoe", "gpt-oss", "gpt-oss-aux", "glm4-moe"]
LEAST = 2e-3
PROMPTS = (1, 7)  # tokens
BEYOND = {"phi3-longrope": (20,)}  # these begin beyond RoPE's original length, to which the others keep


def load(name):
    folder = HERE / name
    config = transformers.AutoConfig.from_pretrained(folder)
    config._attn_implementation = config._experts_implementation = "eager"
    return transformers.AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float64).eval()


def generate(model, prompt, count, eos=None):
    model.routing.gap = math.inf
    out = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                         max_new_tokens=count, do_sample=False, eos_token_id=eos, pad_token_id=0,
                         return_dict_in_generate=True, output_logits=True)
    best = [logits[0].topk(2).values for logits in out.logits]
    return out.sequences[0, len(prompt):].tolist(), min(model.routing.gap, *((a - b).item() for a, b in best))


def main():
    torch.manual_seed(0)
    wanted = sys.argv[1:] or CASES
    found = []
    if sys.argv[1:]:
        found = [case for case in json.loads((HERE / "generate.json").read_text())["cases"] if case["case"] not in wanted]
    for name in wanted:
        model = load(name)
        model.generation_config.eos_token_id = None
        model.routing = Routing(model)
        most, vocab = model.config.max_position_embeddings, model.config.vocab_size
        original = min(most, getattr(model.config, "original_max_position_embeddings", most))
        for length in PROMPTS + BEYOND.get(name, ()):
            context = original if length < original else most
            while True:
                prompt = torch.randint(vocab, (length,)).tolist()
                tokens, margin = generate(model, prompt, context - length)
                if margin >= LEAST:
                    break
            case = {"case": name, "prompt": prompt, "tokens": tokens, "margin": margin}
            if length > 1:  # the text ends with the token that comes last for the first time
                case["eos"] = tokens[max(tokens.index(t) for t in tokens)]
                case["ended"] = generate(model, prompt, context - length, case["eos"])[0]
            found.append(case)
            print(name, length, f"{margin:.4f}", tokens[:6], flush=True)
    lines = ",\n  ".join(json.dumps(case) for case in found)
    text = f'{{"transformers": "{transformers.__version__}", "torch": "{torch.__version__}", "cases": [\n  {lines}\n]}}\n'
    (HERE / "generate.json").write_text(text)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

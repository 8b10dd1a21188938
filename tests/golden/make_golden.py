#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the golden cases of this folder with Hugging Face transformers.

    python3 make_golden.py [CASE ...]        (packages: torch, transformers, safetensors, numpy)

A case is a tiny model, a few steps of training, and what came out, computed in float64:

    config.json, model*.safetensors    the model to start from; its weights are exact in bf16
    train, validation .bin + .idx      tokens, as Megatron-LM stores them
    run.yaml                           the run spec, to be used from the repository's root
    expected.json                      losses, norms, rates, evaluations; `rounding`: how far the same run strays from
                                       them in float32, and in bf16 with float32 master weights
    grads_step1.safetensors            gradient of step 1's mean loss, before clipping
    final.safetensors                  the weights after the last step

Sizes are odd on purpose (heads of 5, vocabularies of 101), so that the remainders of every loop are met. Everything
follows from the seeds, for one version of the packages.
"""
import json
import math
import pathlib
import struct
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
NULL = object()  # a key of config.json whose value is null
STEPS, BATCH, EVAL_EVERY, EVAL_SAMPLES = 8, 12, 4, 5
NO_TARGET = -100


def gpt2(**changes):
    return dict(vocab_size=101, n_positions=20, n_embd=20, n_layer=2, n_head=4, activation_function="gelu_new",
                layer_norm_epsilon=1e-5) | changes


def llama(**changes):
    return dict(vocab_size=97, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6,
                num_key_value_heads=2, max_position_embeddings=32, rms_norm_eps=1e-6, rope_theta=10000.0,
                tie_word_embeddings=False) | changes


def rope(kind, theta, **more):
    return {"rope_type": kind, "rope_theta": theta, **more}


SLIDING, FULL = "sliding_attention", "full_attention"


def gemma4(**changes):
    return llama(num_attention_heads=4, num_key_value_heads=2, head_dim=10, sliding_window=5, rope_theta=None,
                 rms_norm_eps=1e-2, tie_word_embeddings=True, rope_parameters={
                     FULL: rope("proportional", 1e3, partial_rotary_factor=0.5), SLIDING: rope("default", 50.0)}) | changes


LONGROPE = llama(num_attention_heads=3, num_key_value_heads=1, pad_token_id=NULL, rope_theta=None, tie_word_embeddings=True,
                 original_max_position_embeddings=16, rope_parameters=rope(
                     "longrope", 1e4, short_factor=[1.0, 1.2, 1.5], long_factor=[1.3, 2.5, 4.0], partial_rotary_factor=0.75,
                     original_max_position_embeddings=16))

# What is not DEFAULTS below. GPT-2's eps is large because its key biases have no gradient but rounding, which Adam with
# a small eps would turn into full steps.
CASES = {
    "gpt2": dict(family="gpt2", config=gpt2(), T=16, micro=2, eps=1e-6, hub_names=True, store=torch.float32),
    "gpt2-inner": dict(family="gpt2", config=gpt2(n_embd=24, n_head=2, n_inner=40), T=20, micro=4, eps=1e-6, clip=0.0,
                       schedule=dict(type="Linear", warmup_steps=2, total_steps=10, min_lr=1e-4)),
    "gpt2-padded": dict(family="gpt2", config=gpt2(vocab_size=131, n_embd=16, n_layer=2), T=18, micro=3, eps=1e-6,
                        padded=True),
    "llama": dict(family="llama", config=llama(), T=16, micro=1, style=4, betas=[0.9, 0.95],
                  schedule=dict(type="Cosine", warmup_steps=3, total_steps=8, min_lr=2e-4)),
    "llama-bias": dict(family="llama", config=llama(attention_bias=True, mlp_bias=True, num_attention_heads=3,
                                                    num_key_value_heads=1, head_dim=8, tie_word_embeddings=True),
                       T=12, micro=6, decay_all=True),
    "llama3-rope": dict(family="llama", T=32, micro=1, shards=2, clip=0.0, config=llama(
        num_attention_heads=3, num_key_value_heads=3, head_dim=8, intermediate_size=36, max_position_embeddings=64,
        tie_word_embeddings=True, rope_theta=None,
        rope_parameters=rope("llama3", 5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=16))),
    "linear-rope": dict(family="llama", T=24, micro=2, style=4, config=llama(
        num_attention_heads=2, num_key_value_heads=1, head_dim=10, rope_theta=None,
        rope_parameters=rope("linear", 1e4, factor=4.0))),
    "mistral-window": dict(family="mistral", T=24, micro=4, style=4, clip=0.5, config=llama(
        num_attention_heads=4, num_key_value_heads=1, sliding_window=5)),
    "qwen2": dict(family="qwen2", T=16, micro=3, style=4, config=llama(
        hidden_size=28, num_attention_heads=7, num_key_value_heads=1, intermediate_size=36, rope_theta=1e6,
        tie_word_embeddings=True, use_sliding_window=False)),
    "qwen3": dict(family="qwen3", T=16, micro=2, config=llama(
        hidden_size=20, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=36,
        tie_word_embeddings=True, rope_theta=None, rope_parameters=rope("default", 1e6), attention_bias=False)),
    "llama-mask": dict(family="llama", config=llama(), T=16, micro=2, masked=True),
    "qwen2-mask-padded": dict(family="qwen2", T=18, micro=3, masked=True, padded=True, config=llama(
        hidden_size=28, num_attention_heads=7, num_key_value_heads=1, intermediate_size=36, rope_theta=1e6,
        tie_word_embeddings=True, use_sliding_window=False)),
    "qwen3-yarn": dict(family="qwen3", T=24, micro=2, style=4, config=llama(
        hidden_size=20, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=36, rope_theta=None,
        rope_parameters=rope("yarn", 1e4, factor=4.0, original_max_position_embeddings=8),
        use_sliding_window=True, sliding_window=6, layer_types=["full_attention", "sliding_attention"])),
    "phi3": dict(family="phi3", T=16, micro=3, config=llama(
        num_attention_heads=3, num_key_value_heads=1, pad_token_id=NULL, rope_theta=None,
        rope_parameters=rope("default", 1e4, partial_rotary_factor=0.75))),
    "granite": dict(family="granite", T=16, micro=2, config=llama(
        tie_word_embeddings=True, embedding_multiplier=6.0, attention_multiplier=0.3, residual_multiplier=0.22,
        logits_scaling=2.0)),
    "smollm3": dict(family="smollm3", T=16, micro=4, style=4, config=llama(
        num_attention_heads=4, num_key_value_heads=1, pad_token_id=NULL, rope_theta=5e4, no_rope_layers=[1, 0],
        tie_word_embeddings=True)),
    "qwen3-documents": dict(family="qwen3", T=24, micro=3, masked=True, apart=True, config=llama(
        hidden_size=20, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=36,
        tie_word_embeddings=True, rope_theta=None, rope_parameters=rope("default", 1e6), attention_bias=False)),
    "olmo2": dict(family="olmo2", T=16, micro=2, config=llama(
        num_attention_heads=4, num_key_value_heads=2, pad_token_id=NULL)),
    "gemma2": dict(family="gemma2", T=24, micro=2, style=4, scale_mean=0, config=llama(
        num_attention_heads=4, num_key_value_heads=2, head_dim=10, pad_token_id=NULL, sliding_window=5,
        query_pre_attn_scalar=6, attn_logit_softcapping=1.5, final_logit_softcapping=2.5, tie_word_embeddings=True)),
    "gemma3": dict(family="gemma3_text", T=24, micro=3, scale_mean=0, config=llama(
        num_attention_heads=4, num_key_value_heads=2, head_dim=10, pad_token_id=NULL, sliding_window=5, rope_theta=None,
        layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=6, final_logit_softcapping=2.5,
        rope_parameters={"full_attention": rope("linear", 1e6, factor=4.0), "sliding_attention": rope("default", 50.0)},
        tie_word_embeddings=True)),
    "olmo3": dict(family="olmo3", T=24, micro=2, style=4, config=llama(
        num_attention_heads=4, num_key_value_heads=2, pad_token_id=NULL, sliding_window=5, rope_theta=None,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={"full_attention": rope("yarn", 5e5, factor=4.0, original_max_position_embeddings=8),
                         "sliding_attention": rope("default", 5e5)})),
    "glm": dict(family="glm", T=16, micro=3, eps=1e-6, config=llama(
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, pad_token_id=NULL, attention_bias=True, rope_theta=None,
        rope_parameters=rope("default", 1e4, partial_rotary_factor=0.5))),
    "glm4": dict(family="glm4", T=16, micro=2, style=4, eps=1e-6, config=llama(
        num_attention_heads=3, num_key_value_heads=1, head_dim=12, pad_token_id=NULL, attention_bias=True,
        partial_rotary_factor=0.5)),
    "ministral3": dict(family="ministral3", T=24, micro=2, config=llama(
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, pad_token_id=NULL, rope_theta=None,
        rope_parameters=rope("yarn", 1e4, factor=4.0, original_max_position_embeddings=8, llama_4_scaling_beta=0.5,
                             mscale=1.0, mscale_all_dim=1.0))),
    "gptj": dict(family="gptj", T=18, micro=4, eps=1e-6, config=gpt2(n_head=2, rotary_dim=6, tie_word_embeddings=False)),
    "gpt-neox": dict(family="gpt_neox", T=18, micro=2, eps=1e-6, rename={"lm_head.": "embed_out."}, config=llama(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=None, rms_norm_eps=None, layer_norm_eps=1e-5,
        rope_theta=None, rope_parameters=rope("default", 1e4, partial_rotary_factor=0.5), hidden_act="gelu")),
    "gpt-neox-in-turn": dict(family="gpt_neox", T=16, micro=3, eps=1e-6, rename={"lm_head.": "embed_out."}, config=llama(
        hidden_size=32, num_attention_heads=2, num_key_value_heads=None, rms_norm_eps=None, layer_norm_eps=1e-5,
        rope_theta=None, rope_parameters=rope("default", 1e4, partial_rotary_factor=0.25), hidden_act="gelu_new",
        use_parallel_residual=False)),
    "phi": dict(family="phi", T=16, micro=3, style=4, eps=1e-6, config=llama(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=None, layer_norm_eps=1e-5,
        partial_rotary_factor=0.5, hidden_act="gelu_new")),
    "cohere": dict(family="cohere", T=16, micro=2, config=llama(
        num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=None, layer_norm_eps=1e-5, pad_token_id=NULL,
        logit_scale=0.5, tie_word_embeddings=True, attention_bias=True)),
    "cohere2": dict(family="cohere2", T=24, micro=3, config=llama(
        num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=None, layer_norm_eps=1e-5, pad_token_id=NULL,
        logit_scale=0.25, tie_word_embeddings=True, sliding_window=5,
        layer_types=["sliding_attention", "full_attention"])),
    "starcoder2": dict(family="starcoder2", T=24, micro=2, style=4, eps=1e-6, config=llama(
        rms_norm_eps=None, norm_epsilon=1e-5, sliding_window=7, tie_word_embeddings=True, hidden_act="gelu_pytorch_tanh")),
    "exaone4": dict(family="exaone4", T=24, micro=4, config=llama(
        num_attention_heads=4, num_key_value_heads=2, sliding_window=5,
        layer_types=["sliding_attention", "full_attention"])),
    "seed-oss": dict(family="seed_oss", T=16, micro=2, config=llama(
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, pad_token_id=NULL, attention_bias=True,
        attention_out_bias=True)),
    "qwen3.5": dict(family="qwen3_5_text", T=72, micro=3, scale_mean=0, config=llama(
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=80, rope_theta=None,
        rope_parameters=rope("default", 1e4, partial_rotary_factor=0.5), linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=6, linear_value_head_dim=5, layer_types=["linear_attention", "full_attention"])),
    "llama-pad": dict(family="llama", T=16, micro=2, seed=700, config=llama(pad_token_id=53)),
    "qwen2-pad": dict(family="qwen2", T=16, micro=3, seed=710, style=4, config=llama(
        hidden_size=28, num_attention_heads=7, num_key_value_heads=1, pad_token_id=45, tie_word_embeddings=True,
        use_sliding_window=False)),
    "phi3-longrope": dict(family="phi3", T=24, micro=3, seed=720, style=4, config=LONGROPE),
    "phi3-longrope-short": dict(family="phi3", T=16, micro=2, seed=730, config=LONGROPE),
    "dynamic-rope": dict(family="llama", T=24, micro=2, seed=740, config=llama(
        max_position_embeddings=16, rope_theta=None, rope_parameters=rope("dynamic", 1e4, factor=3.0))),
    "gemma4": dict(family="gemma4_text", T=24, micro=3, seed=750, eps=1e-6, scale_mean=0.5,
                   scalars=[1.0, 0.875, 1.125, 0.75, 1.25, 0.9375, 1.0], config=gemma4(
        num_hidden_layers=7, layer_types=[SLIDING, SLIDING, FULL, SLIDING, FULL, SLIDING, FULL], num_kv_shared_layers=4,
        use_double_wide_mlp=True, hidden_size_per_layer_input=8, vocab_size_per_layer_input=101,
        per_layer_config={i: {"head_dim": 12} for i in (2, 4, 6)}, final_logit_softcapping=2.5)),
    "gemma4-kv": dict(family="gemma4_text", T=24, micro=2, seed=760, eps=1e-6, scale_mean=0.8, scalars=[0.75, 1.25, 0.875], config=gemma4(
        num_hidden_layers=3, layer_types=[SLIDING, FULL, FULL], attention_k_eq_v=True, num_global_key_value_heads=1,
        global_head_dim=16, hidden_size_per_layer_input=0, attention_bias=True, use_bidirectional_attention="vision")),
}
DEFAULTS = dict(lr=2e-3, betas=[0.9, 0.999], eps=1e-8, decay=0.1, clip=1.0, schedule=dict(type="Constant"),
                padded=False, hub_names=False, store=torch.bfloat16, shards=1, style=5, decay_all=False, masked=False, apart=False,
                scale_mean=1, rename={}, scalars=[])


class Case:
    def __init__(self, name):
        self.name = name
        self.seed = 100 + 10 * list(CASES).index(name)
        for key, value in (DEFAULTS | CASES[name]).items():
            setattr(self, key, value)
        self.config = {k: None if v is NULL else v for k, v in self.config.items() if v is not None}
        self.train, self.validation = self.documents()
        self.masks = {id(part): self.mask(part) for part in (self.train, self.validation)} if self.masked else {}

    def documents(self):
        """Documents from a noisy chain of tokens, so that there is something to learn. Packed: together exactly what
        the run uses. Padded: one for each sample, from one token up to beyond T."""
        rng = np.random.default_rng(self.seed)
        vocab = self.config["vocab_size"]
        follow = rng.permutation(vocab)

        def document(length):
            ids = [int(rng.integers(vocab))]
            while len(ids) < length:
                ids.append(int(follow[ids[-1]]) if rng.random() < 0.7 else int(rng.integers(vocab)))
            return ids

        def part(samples):
            if self.padded:
                return [document(int(rng.integers(1, 2 * self.T))) for _ in range(samples)]
            left, out = samples * self.T + 1, []
            if self.apart and samples == EVAL_SAMPLES:  # evaluation takes a last, shorter window as well
                left -= self.T - 7
            while left:
                out.append(document(min(left, int(rng.integers(3, 60)))))
                left -= len(out[-1])
            return out

        return part(STEPS * BATCH), part(EVAL_SAMPLES)

    def mask(self, documents):
        """A byte for each token, 1 if its prediction counts: turns in alternation, as in a chat; some documents have none."""
        rng = np.random.default_rng(self.seed + 1)

        def turns(length):
            counts, answer = [], False
            while len(counts) < length:
                counts += [int(answer)] * int(rng.integers(1, 9))
                answer = not answer
            return counts[:length] if rng.random() < 0.9 else [0] * length

        return [turns(len(document)) for document in documents]

    def samples(self, documents, first, count):
        """Inputs and targets (count, T); targets of padding, and those that the mask leaves out, are NO_TARGET."""
        x = torch.zeros(count, self.T, dtype=torch.long)
        y = torch.full((count, self.T), NO_TARGET)
        stream = None if self.padded else sum(documents, [])
        masks = self.masks.get(id(documents))
        counts = None if self.padded or not masks else sum(masks, [])
        for row in range(count):
            i = first + row
            tokens = documents[i][:self.T] if self.padded else stream[i * self.T:(i + 1) * self.T + 1]
            n = len(tokens) if self.padded else self.T
            y[row, :len(tokens) - 1] = torch.tensor(tokens[1:])
            x[row, :len(tokens[:self.T])] = torch.tensor(tokens[:self.T])
            if masks:
                kept = torch.tensor(masks[i][1:n] if self.padded else counts[i * self.T + 1:(i + 1) * self.T + 1])
                y[row, :len(kept)][kept == 0] = NO_TARGET
            if self.apart:  # the first token of a document is no target
                number = self.numbers(documents)[i * self.T:(i + 1) * self.T + 1]
                y[row, :len(number) - 1][number[1:] != number[:-1]] = NO_TARGET
        return x, y

    @staticmethod
    def numbers(documents):
        """The document of each token."""
        return torch.tensor([number for number, document in enumerate(documents) for _ in document])

    def views(self, documents, first, count):
        """What transformers takes so that the documents of a window do not see each other: the mask of attention
        (count, 1, T, T) and positions (count, T) that begin anew in each."""
        mask = torch.full((count, 1, self.T, self.T), float("-inf"))
        positions = torch.zeros(count, self.T, dtype=torch.long)
        for row in range(count):
            number = self.numbers(documents)[(first + row) * self.T:(first + row + 1) * self.T]
            number = torch.cat([number, torch.arange(self.T - len(number)) + 10 ** 6])  # filler: each by itself
            same = (number[:, None] == number[None, :]).tril()
            mask[row, 0][same] = 0.0
            positions[row] = same.sum(1) - 1
        return dict(attention_mask=mask, position_ids=positions)

    def model(self):
        """Weights well above the usual 0.02, so that every bias, norm and gate shows in the loss."""
        torch.manual_seed(self.seed)
        config = transformers.AutoConfig.for_model(self.family, **self.config)
        config._attn_implementation = "eager"
        model = self.auto_class().from_config(config).float().eval()
        random = torch.Generator().manual_seed(self.seed)
        for name, p in model.named_parameters():
            normal = torch.randn(p.shape, generator=random)
            scale = p.dim() == 1 and name.endswith("weight")
            p.data = (self.scale_mean + 0.2 * normal if scale else (0.1 if p.dim() == 1 else 0.15) * normal).bfloat16().float()
        for value, buffer in zip(self.scalars, self.buffers(model).values()):
            buffer.fill_(value)
        return model

    def buffers(self, model):
        """The scalars of layers, which are not trained."""
        return {n: b for n, b in model.named_buffers() if n.endswith("layer_scalar")}

    def stored(self, name):
        """The name of a parameter in files, where transformers renames it while it loads."""
        for inside, outside in self.rename.items():
            name = name.replace(inside, outside)
        return name

    def auto_class(self):
        return transformers.AutoModelForCausalLM

    def rate(self, step):
        s = self.schedule
        warmup, least = s.get("warmup_steps", 0), s.get("min_lr", 0.0)
        if step <= warmup:
            return self.lr * step / warmup
        if s["type"] == "Constant":
            return self.lr
        x = min(1.0, (step - warmup) / (s["total_steps"] - warmup))
        left = 1 - x if s["type"] == "Linear" else 0.5 * (1 + math.cos(math.pi * x))
        return least + (self.lr - least) * left


class Doubles:
    """torch for a module in a run in float64: what it computes in float32 by name is computed in float64."""
    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


NARROW = {"qwen3_5_text": "qwen3_5", "gemma4_text": "gemma4"}


def keep_doubles(model):
    if model.config.model_type in NARROW:
        exact, name = model.dtype == torch.float64, NARROW[model.config.model_type]
        sys.modules[f"transformers.models.{name}.modeling_{name}"].torch = Doubles() if exact else torch
        torch.Tensor.float = torch.Tensor.double if exact else FLOAT


FLOAT = torch.Tensor.float


def loss_sum(model, x, y, views=None):
    keep_doubles(model)
    more = {n: t.to(model.dtype) if t.is_floating_point() else t for n, t in (views or {}).items()}
    logits = model(input_ids=x, use_cache=False, **more).logits
    if logits.dtype == torch.bfloat16:
        logits = logits.float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum", ignore_index=NO_TARGET)


def check_loss(case, model, x, y, targets, loss, views):
    """The loss as transformers' Trainer computes it: over the micro-batches of an accumulated step, each with labels -100
    where there is no target, divided by num_items_in_batch, the targets of the whole step."""
    theirs = 0.0
    for i in range(0, BATCH, case.micro):
        rows = y[i:i + case.micro]
        theirs += model(input_ids=x[i:i + case.micro], labels=rows, shift_labels=rows, use_cache=False,
                        **{n: t[i:i + case.micro].to(x.dtype if n == "position_ids" else model.dtype)
                           for n, t in views.items()},
                        num_items_in_batch=torch.tensor(targets)).loss.item()
    assert abs(theirs - loss) < 1e-5, (theirs, loss)


def adamw(case, step, master, grads, m, v):
    beta1, beta2 = case.betas
    for name, w in master.items():
        g, rate = grads[name], case.rate(step)
        m[name] = beta1 * m[name] + (1 - beta1) * g
        v[name] = beta2 * v[name] + (1 - beta2) * g * g
        if w.dim() > 1 or case.decay_all:
            w -= rate * case.decay * w
        w -= rate * (m[name] / (1 - beta1 ** step)) / ((v[name] / (1 - beta2 ** step)).sqrt() + case.eps)


def train(case, dtype):
    """The run in one precision: parameters and activations in `dtype`, master weights in float32 at least."""
    model = case.model().to(dtype)
    high = torch.float64 if dtype == torch.float64 else torch.float32
    params = dict(model.named_parameters())
    master = {n: p.detach().to(high).clone() for n, p in params.items()}
    m = {n: torch.zeros_like(w) for n, w in master.items()}
    v = {n: torch.zeros_like(w) for n, w in master.items()}
    micro = case.micro if dtype == torch.bfloat16 else BATCH
    out = dict(loss=[], norm=[], rate=[], eval={})
    for step in range(1, STEPS + 1):
        x, y = case.samples(case.train, (step - 1) * BATCH, BATCH)
        views = case.views(case.train, (step - 1) * BATCH, BATCH) if case.apart else {}
        targets = int((y != NO_TARGET).sum())
        grads = {n: torch.zeros_like(w) for n, w in master.items()}
        loss = 0.0
        for i in range(0, BATCH, micro):
            part = loss_sum(model, x[i:i + micro], y[i:i + micro], {n: t[i:i + micro] for n, t in views.items()}) / targets
            loss += part.item()
            for (n, _), g in zip(params.items(), torch.autograd.grad(part, list(params.values()))):
                grads[n] += g
        if case.masked and dtype == torch.float64:
            check_loss(case, model, x, y, targets, loss, views)
        norm = math.sqrt(sum(g.double().square().sum().item() for g in grads.values()))
        if step == 1:
            out["grads"] = {n: g.clone() for n, g in grads.items()}
        if case.clip and norm > case.clip:
            grads = {n: g * (case.clip / (norm + 1e-6)) for n, g in grads.items()}
        with torch.no_grad():
            adamw(case, step, master, grads, m, v)
            for n, p in params.items():
                p.copy_(master[n])
            out["loss"].append(loss)
            out["norm"].append(norm)
            out["rate"].append(case.rate(step))
            if step % EVAL_EVERY == 0:
                x, y = case.samples(case.validation, 0, EVAL_SAMPLES)
                views = case.views(case.validation, 0, EVAL_SAMPLES) if case.apart else {}
                out["eval"][step] = loss_sum(model, x, y, views).item() / int((y != NO_TARGET).sum())
    return out | dict(final=master)


def relative(a, b):
    """Distance of two sets of tensors in units of the second's length: the worst tensor's, and of all together."""
    far = {n: (a[n].double() - b[n].double()).norm().item() for n in b}
    size = {n: b[n].double().norm().item() for n in b}
    together = math.hypot(*far.values()) / math.hypot(*size.values())
    return max(far[n] / max(size[n], 1e-30) for n in b), together


def rounding(run, exact):
    loss = [abs(a - b) for a, b in zip(run["loss"], exact["loss"])]
    grad, grad_all = relative(run["grads"], exact["grads"])
    return dict(loss=max(loss), loss_1=loss[0], loss_mean=sum(loss) / len(loss), grad_1=grad, grad_1_all=grad_all,
                final=relative(run["final"], exact["final"])[0])


def write_tokens(prefix, documents):
    tokens = np.array(sum(documents, []), "<u2")
    sizes = np.array([len(d) for d in documents], "<i4")
    pointers = (np.cumsum(sizes) - sizes).astype("<i8") * 2
    tokens.tofile(f"{prefix}.bin")
    with open(f"{prefix}.idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(sizes), len(sizes) + 1))
        f.write(sizes.tobytes() + pointers.tobytes() + np.arange(len(sizes) + 1, dtype="<i8").tobytes())


def write_mask(prefix, masks):
    pathlib.Path(f"{prefix}.mask").write_bytes(bytes(sum(masks, [])))


def write_config(case, model, folder):
    """config.json as transformers 5 writes it, or (style 4) with transformers 4's names; without what is default."""
    full = model.config.to_dict()
    keep = set(case.config) | {"model_type", "tie_word_embeddings", "rope_parameters", "hidden_act"}
    config = {k: full.get(k, case.config.get(k)) for k in keep if k in full or k in case.config}
    config["architectures"] = [type(model).__name__]
    if case.style == 4 and "rope_parameters" in config:
        rope_parameters = config.pop("rope_parameters")
        rope_parameters = dict(rope_parameters.get("full_attention", rope_parameters))  # transformers 4 has no second one
        config["rope_theta"] = rope_parameters.pop("rope_theta")
        if rope_parameters["rope_type"] != "default":
            config["rope_scaling"] = rope_parameters
        config["torch_dtype"] = str(case.store).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def write_model(case, model, folder):
    named = dict(model.named_parameters()) | case.buffers(model)
    tensors = {case.stored(n): p.detach().to(case.store).contiguous() for n, p in named.items()}
    if case.hub_names:  # as the first GPT-2 files are: without prefix, with the causal mask as a tensor
        P = case.config["n_positions"]
        tensors = {n.removeprefix("transformer."): t for n, t in tensors.items()}
        for layer in range(case.config["n_layer"]):
            tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, P, P).tril()
    if case.shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(tensors)
    files = [f"model-{i + 1:05d}-of-{case.shards:05d}.safetensors" for i in range(case.shards)]
    where = {n: files[i * case.shards // len(names)] for i, n in enumerate(names)}
    for file in files:
        save_file({n: tensors[n] for n in names if where[n] == file}, folder / file, metadata={"format": "pt"})
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def write_spec(case, folder):
    place = f"tests/golden/{case.name}"
    params = {k: v for k, v in case.schedule.items() if k != "type"}
    apart = "\n  document_mask: true" if case.apart else ""
    lines = f"""\
run:
  name: {case.name}
  dir: runs
  seed: 1234
model:
  pretrained: {place}
data:
  train: {place}/train
  validation: {place}/validation
  seq_length: {case.T}
  shuffle: false
  packing: {str(not case.padded).lower()}{apart}
train:
  max_steps: {STEPS}
  eval_interval_steps: {EVAL_EVERY}
  device: cpu
checkpoint:
  interval_steps: {STEPS}
train_batch_size: {BATCH}
train_micro_batch_size_per_gpu: {case.micro}
gradient_clipping: {case.clip}
optimizer:
  type: AdamW
  params: {{lr: {case.lr}, betas: {case.betas}, eps: {case.eps}, weight_decay: {case.decay}, \
weight_decay_all: {str(case.decay_all).lower()}}}
scheduler: {{type: {case.schedule["type"]}, params: {json.dumps(params).replace('"', "")}}}
zero_optimization: {{stage: 0}}
steps_per_print: 1
"""
    (folder / "run.yaml").write_text(lines)


def make(name):
    case, folder = Case(name), HERE / name
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    model = case.model()
    write_config(case, model, folder)
    write_model(case, model, folder)
    write_tokens(folder / "train", case.train)
    write_tokens(folder / "validation", case.validation)
    if case.masked:
        write_mask(folder / "train", case.masks[id(case.train)])
        write_mask(folder / "validation", case.masks[id(case.validation)])
    write_spec(case, folder)
    exact, single, half = (train(case, d) for d in (torch.float64, torch.float32, torch.bfloat16))
    expected = {
        "case": name, "torch": torch.__version__, "transformers": transformers.__version__,
        "loss": exact["loss"], "grad_norm": exact["norm"], "lr": exact["rate"], "eval_loss": exact["eval"],
        "rounding": {"fp32": rounding(single, exact), "bf16": rounding(half, exact)},
        "grad_norms_1": {case.stored(n): g.norm().item() for n, g in exact["grads"].items()},
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    for kind, file in (("grads", "grads_step1"), ("final", "final")):
        tensors = {case.stored(n): t.float().contiguous() for n, t in exact[kind].items()}
        if kind == "final":
            tensors |= {n: t.float() for n, t in case.buffers(model).items()}
        save_file(tensors, folder / f"{file}.safetensors", metadata={"format": "pt"})
    size = sum(f.stat().st_size for f in folder.iterdir()) // 1024
    r32, r16 = expected["rounding"]["fp32"], expected["rounding"]["bf16"]
    print(f"{name:15s} {size:4d} KiB  loss {exact['loss'][0]:.4f} -> {exact['loss'][-1]:.4f}  "
          f"fp32 loss {r32['loss']:.1e} grad {r32['grad_1']:.1e} final {r32['final']:.1e}  "
          f"bf16 loss {r16['loss']:.1e} grad {r16['grad_1']:.1e} final {r16['final']:.1e}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for wanted in sys.argv[1:] or CASES:
        make(wanted)

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
    grads_step1.safetensors            gradient of what step 1 minimizes, before clipping
    final.safetensors                  the weights after the last step

Mixtures of experts also have in expected.json, under `routing`, how often a router chose, how close its closest choice
was, and how many choices are others in float32 and in bf16. With output_router_logits a step minimizes loss +
router_aux_loss_coef · aux_loss, where aux_loss is the mean over the step's micro-batches of `micro_batch` samples.

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
from transformers.core_model_loading import revert_weight_conversion

HERE = pathlib.Path(__file__).resolve().parent
NULL = object()  # a key of config.json whose value is null
STEPS, BATCH, EVAL_EVERY, EVAL_SAMPLES = 8, 12, 4, 5
NO_TARGET = -100
OTHERS = 4  # runs of a mixture of experts in bf16 that round otherwise


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


def experts(count, chosen, **changes):
    return llama(num_attention_heads=4, num_key_value_heads=2, num_experts=count, num_experts_per_tok=chosen,
                 moe_intermediate_size=10) | changes


YARN = rope("yarn", 1e4, factor=4.0, original_max_position_embeddings=8, beta_fast=32.0, beta_slow=1.0, truncate=False)
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
    "qwen3-moe": dict(family="qwen3_moe", T=16, micro=2, seed=10364, eps=1e-6, style=4, config=experts(
        8, 3, head_dim=8, norm_topk_prob=True)),
    "qwen3-moe-aux": dict(family="qwen3_moe", T=16, micro=1, seed=1135, eps=1e-6, config=experts(
        None, 2, num_local_experts=9, num_hidden_layers=4, decoder_sparse_step=2, head_dim=6, output_router_logits=True,
        router_aux_loss_coef=0.02)),
    "qwen2-moe": dict(family="qwen2_moe", T=16, micro=3, seed=1233, eps=1e-6, style=4, config=experts(
        10, 4, num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[3], shared_expert_intermediate_size=14,
        qkv_bias=True, tie_word_embeddings=True)),
    "mixtral": dict(family="mixtral", T=16, micro=2, seed=1308, eps=1e-6, config=experts(
        None, 2, num_local_experts=8, moe_intermediate_size=None, intermediate_size=12, num_key_value_heads=1)),
    "olmoe": dict(family="olmoe", T=16, micro=4, seed=1425, eps=1e-6, style=4, config=experts(
        16, 4, moe_intermediate_size=None, intermediate_size=6, pad_token_id=1)),
    "granitemoe": dict(family="granitemoe", T=16, micro=2, seed=1529, eps=1e-6, config=experts(
        None, 3, num_local_experts=8, moe_intermediate_size=None, intermediate_size=10, tie_word_embeddings=True,
        embedding_multiplier=6.0, attention_multiplier=0.3, residual_multiplier=0.4, logits_scaling=2.0)),
    "granitemoe-aux": dict(family="granitemoe", T=18, micro=3, seed=1620, eps=1e-6, padded=True, style=4, config=experts(
        None, 2, num_local_experts=8, moe_intermediate_size=None, intermediate_size=10, embedding_multiplier=3.0,
        attention_multiplier=0.4, residual_multiplier=0.7, logits_scaling=0.5, output_router_logits=True,
        router_aux_loss_coef=0.02)),
    "gpt-oss": dict(family="gpt_oss", T=24, micro=3, seed=2429, eps=1e-6, style=4, wider={"sinks": 5.0}, config=experts(
        None, 3, num_local_experts=8, moe_intermediate_size=None, intermediate_size=10, head_dim=8, sliding_window=5,
        swiglu_limit=0.8, rope_theta=None, rope_parameters=YARN)),
    "gpt-oss-aux": dict(family="gpt_oss", T=24, micro=2, seed=2063, eps=1e-6, wider={"sinks": 5.0}, config=experts(
        None, 4, num_local_experts=9, moe_intermediate_size=None, intermediate_size=10, head_dim=6, sliding_window=7,
        swiglu_limit=1.1, swiglu_alpha=1.3, attention_bias=False, layer_types=[FULL, SLIDING], rope_theta=None,
        rope_parameters=YARN | {"truncate": True}, output_router_logits=True, router_aux_loss_coef=0.02)),
    "glm4-moe": dict(family="glm4_moe", T=16, micro=2, seed=1948, eps=1e-6, style=4, config=experts(
        None, 3, n_routed_experts=12, num_hidden_layers=3, head_dim=8, first_k_dense_replace=1, n_group=2, topk_group=1,
        routed_scaling_factor=1.5, n_shared_experts=1, use_qk_norm=True, attention_bias=True, num_nextn_predict_layers=0,
        partial_rotary_factor=0.5)),
}
DEFAULTS = dict(lr=2e-3, betas=[0.9, 0.999], eps=1e-8, decay=0.1, clip=1.0, schedule=dict(type="Constant"),
                padded=False, hub_names=False, store=torch.bfloat16, shards=1, style=5, decay_all=False, masked=False, apart=False,
                scale_mean=1, rename={}, scalars=[], wider={})


class Case:
    kernels = "eager", "eager"  # of attention and experts; the latter's loop multiplies each expert's rows by its matrix
    noise = None  # the seed of routers' noise

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
        (count, 1, T, T) and positions (count, T) that begin anew in each. Of padded samples with an auxiliary loss: the
        tokens that it counts (count, T)."""
        if self.coefficient and self.padded:
            lengths = torch.tensor([len(document) for document in documents[first:first + count]])
            return dict(attention_mask=(torch.arange(self.T) < lengths[:, None]).long())
        if not self.apart:
            return {}
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
        """Weights well above the usual 0.02, so that every bias, norm and gate shows in the loss. Biases of the choice differ
        by less than bf16 tells apart there: transformers has them in float32 in each model."""
        torch.manual_seed(self.seed)
        config = transformers.AutoConfig.for_model(self.family, **self.config)
        config._attn_implementation, config._experts_implementation = self.kernels
        model = self.auto_class().from_config(config).float().eval()
        random = torch.Generator().manual_seed(self.seed)
        for name, p in model.named_parameters():
            normal = torch.randn(p.shape, generator=random)
            scale = p.dim() == 1 and name.endswith("weight")
            normal *= self.wider.get(name.split(".")[-1], 1.0)
            p.data = (self.scale_mean + 0.2 * normal if scale else (0.1 if p.dim() == 1 else 0.15) * normal).bfloat16().float()
        buffers = self.buffers(model)
        for value, buffer in zip(self.scalars or [None] * len(buffers), buffers.values()):
            buffer.copy_(torch.tensor(value) if value else 32 + 0.1 * torch.randn(buffer.shape, generator=random))
        return model

    def buffers(self, model):
        """What is stored but not trained: the scalars of layers, and the biases by which experts are chosen."""
        return {n: b for n, b in model.named_buffers() if n.endswith(("layer_scalar", "e_score_correction_bias"))}

    def stored(self, model, tensors):
        """Tensors of the model's parameters by their names in files, where transformers renames them while it loads; the
        experts of a layer are one parameter, and most families' files have one tensor of each."""
        if "num_experts_per_tok" in self.config:
            return {n: t.contiguous().clone() for n, t in revert_weight_conversion(model, tensors).items()}
        out = {}
        for name, tensor in tensors.items():
            for inside, outside in self.rename.items():
                name = name.replace(inside, outside)
            out[name] = tensor
        return out

    def round_otherwise(self, seed):
        """Makes models that add in another order, and whose routers' inputs are as if they were rounded otherwise."""
        self.kernels, self.noise = ("eager" if self.family == "gpt_oss" else "sdpa", "batched_mm"), seed

    @property
    def coefficient(self):
        """Of the auxiliary loss in what is minimized; 0: without that loss."""
        return self.config.get("router_aux_loss_coef", 0) if self.config.get("output_router_logits") else 0

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


def model_in(case, dtype):
    """The case's model in `dtype`, but what transformers keeps in float32 in a model in bf16."""
    model = case.model()
    kept = {n: t.data.clone() for n, t in (*model.named_parameters(), *model.named_buffers()) if stays_wide(model, n)}
    model.to(dtype)
    for name, value in kept.items() if dtype == torch.bfloat16 else ():
        place, _, last = name.rpartition(".")
        getattr(model.get_submodule(place), last).data = value
    return model


def stays_wide(model, name):
    return any(part in name for part in getattr(model, "_keep_in_fp32_modules_strict", None) or ())


class Doubles:
    """torch for a module in a run in float64: what it computes in float32 by name is computed in float64."""
    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


NARROW = {"qwen3_5_text": "qwen3_5", "gemma4_text": "gemma4"} | {name: name for name in (
    "qwen3_moe", "qwen2_moe", "mixtral", "olmoe", "granitemoe", "gpt_oss", "glm4_moe")}


def keep_doubles(model):
    if model.config.model_type in NARROW:
        exact, name = model.dtype == torch.float64, NARROW[model.config.model_type]
        sys.modules[f"transformers.models.{name}.modeling_{name}"].torch = Doubles() if exact else torch
        torch.Tensor.float = torch.Tensor.double if exact else FLOAT


FLOAT = torch.Tensor.float


def loss_sum(model, x, y, views=None):
    keep_doubles(model)
    more = {n: t.to(model.dtype) if t.is_floating_point() else t for n, t in (views or {}).items()}
    out = model(input_ids=x, use_cache=False, **more)
    logits, model.aux_loss = out.logits, getattr(out, "aux_loss", None)
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
                        **{n: t[i:i + case.micro].to(model.dtype if t.is_floating_point() else x.dtype)
                           for n, t in views.items()},
                        num_items_in_batch=torch.tensor(targets)).loss.item()
    assert abs(theirs - loss) < 1e-5, (theirs, loss)


class Routing:
    """What the routers of a model choose: the experts of each token, in order, and the smallest distance of the last
    one that is chosen, or of the last group, from the next."""

    def __init__(self, model, noise=None):
        self.chosen, self.gap, self.counts = {}, math.inf, True
        self.random = torch.Generator().manual_seed(noise or 0)
        for name, module in model.named_modules():
            if type(module).__name__.lower().endswith("topkrouter"):
                module.register_forward_hook(lambda router, _, out, name=name: self.note(name, router, out))
                if noise is not None:
                    module.register_forward_pre_hook(self.shake)

    def shake(self, _, inputs):
        """The router's input, changed by about the last place of bf16."""
        return (inputs[0] * (1 + 2 ** -8 * torch.randn(inputs[0].shape, generator=self.random)).to(inputs[0].dtype),)

    def note(self, name, router, out):
        logits, _, experts = out
        if not self.counts:
            return
        self.chosen.setdefault(name, []).append(experts.sort().values)
        choice = logits.detach()
        if hasattr(router, "e_score_correction_bias"):
            choice = choice.sigmoid() + router.e_score_correction_bias
            groups = choice.view(len(choice), router.num_group, -1)
            ranked = groups.topk(2).values.sum(-1).sort(descending=True)
            if router.topk_group < router.num_group:
                self.keep_gap(ranked.values, router.topk_group)
            rows = torch.arange(len(choice))[:, None]
            choice = groups[rows, ranked.indices[:, :router.topk_group]].flatten(1)
        self.keep_gap(choice.sort(descending=True).values, router.top_k)

    def keep_gap(self, ranked, count):
        self.gap = min(self.gap, (ranked[:, count - 1] - ranked[:, count]).min().item())

    def decisions(self):
        return torch.cat([torch.cat(rows) for rows in self.chosen.values()]) if self.chosen else torch.zeros(0, 1)


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
    model = model_in(case, dtype)
    routing = Routing(model, case.noise)
    high = torch.float64 if dtype == torch.float64 else torch.float32
    params = dict(model.named_parameters())
    master = {n: p.detach().to(high).clone() for n, p in params.items()}
    m = {n: torch.zeros_like(w) for n, w in master.items()}
    v = {n: torch.zeros_like(w) for n, w in master.items()}
    micro = case.micro if dtype == torch.bfloat16 or case.coefficient else BATCH
    out = dict(loss=[], norm=[], rate=[], eval={}, aux=[])
    for step in range(1, STEPS + 1):
        x, y = case.samples(case.train, (step - 1) * BATCH, BATCH)
        views = case.views(case.train, (step - 1) * BATCH, BATCH)
        targets = int((y != NO_TARGET).sum())
        grads = {n: torch.zeros_like(w) for n, w in master.items()}
        loss = aux = 0.0
        for i in range(0, BATCH, micro):
            part = loss_sum(model, x[i:i + micro], y[i:i + micro], {n: t[i:i + micro] for n, t in views.items()}) / targets
            loss += part.item()
            if case.coefficient:
                aux += model.aux_loss.item() * micro / BATCH
                part = part + case.coefficient * model.aux_loss * micro / BATCH
            for (n, _), g in zip(params.items(), torch.autograd.grad(part, list(params.values()))):
                grads[n] += g
        if (case.masked or case.coefficient) and dtype == torch.float64:
            routing.counts = False
            check_loss(case, model, x, y, targets, loss + case.coefficient * aux * BATCH / micro, views)
            routing.counts = True
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
            out["aux"].append(aux)
            out["rate"].append(case.rate(step))
            if step % EVAL_EVERY == 0:
                x, y = case.samples(case.validation, 0, EVAL_SAMPLES)
                views = case.views(case.validation, 0, EVAL_SAMPLES)
                out["eval"][step] = loss_sum(model, x, y, views).item() / int((y != NO_TARGET).sum())
    return out | dict(final=master, routing=routing)


def relative(a, b):
    """Distance of two sets of tensors in units of the second's length: the worst tensor's, and of all together."""
    far = {n: (a[n].double() - b[n].double()).norm().item() for n in b}
    size = {n: b[n].double().norm().item() for n in b}
    together = math.hypot(*far.values()) / math.hypot(*size.values())
    return max(far[n] / size[n] for n in b if size[n]), together


def rounding(run, exact):
    loss = [abs(a - b) for a, b in zip(run["loss"], exact["loss"])]
    grad, grad_all = relative(run["grads"], exact["grads"])
    strays = dict(loss=max(loss), loss_1=loss[0], loss_mean=sum(loss) / len(loss), grad_1=grad, grad_1_all=grad_all,
                  final=relative(run["final"], exact["final"])[0])
    aux = [abs(a - b) for a, b in zip(run["aux"], exact["aux"])]
    return strays | (dict(aux_loss=max(aux)) if any(exact["aux"]) else {})


def furthest(strays):
    """The largest of several runs' figures."""
    return {key: max(one[key] for one in strays) for key in strays[0]}


def routing(case, exact, runs):
    """What expected.json has of the choices and the auxiliary loss of a mixture of experts."""
    chosen = exact["routing"].decisions()
    if not len(chosen):
        return {}
    flips = {dtype: max(int((run["routing"].decisions() != chosen).any(1).sum()) for run in made) for dtype, made in runs.items()}
    out = {"routing": {"choices": len(chosen), "gap": exact["routing"].gap, "flips": flips}}
    return out | (dict(aux_loss=exact["aux"], micro_batch=case.micro) if case.coefficient else {})


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
    tensors = case.stored(model, {n: p.detach().to(torch.float32 if stays_wide(model, n) else case.store).contiguous()
                                  for n, p in named.items()})
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
    runs = {"fp32": [single], "bf16": [half]}
    if exact["routing"].chosen:  # which tokens go elsewhere in bf16 is a matter of chance
        for noise in range(OTHERS):
            case.round_otherwise(noise)
            runs["bf16"].append(train(case, torch.bfloat16))
    for run in (exact, *sum(runs.values(), [])):
        run |= {kind: case.stored(model, run[kind]) for kind in ("grads", "final")}
    expected = {
        "case": name, "torch": torch.__version__, "transformers": transformers.__version__,
        "loss": exact["loss"], "grad_norm": exact["norm"], "lr": exact["rate"], "eval_loss": exact["eval"],
        "rounding": {dtype: furthest([rounding(run, exact) for run in made]) for dtype, made in runs.items()},
        "grad_norms_1": {n: g.norm().item() for n, g in exact["grads"].items()},
    } | routing(case, exact, runs)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    for kind, file in (("grads", "grads_step1"), ("final", "final")):
        tensors = {n: t.float().contiguous() for n, t in exact[kind].items()}
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

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make tests/golden/names/FAMILY.json: what transformers builds from a config.json.

    python3 tests/golden/make_names.py [OUTDIR]        (packages: torch, transformers)

Each file is a list of cases: a config as it may stand in a config.json (keys left out, both dialects), and what
transformers makes of it: names and shapes of all parameters, RoPE's inverse frequencies, the sliding window of each
layer, the norm's epsilon, whether the head is tied, soft caps; layers with experts, how many experts there are and how
many a token goes to, and names and shapes that these have in files. Models are built on the meta device: no weights are computed.
"""
import json
import os
import random
import sys

import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, CONFIG_MAPPING
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

CASES = 10
FAMILIES = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "phi3", "granite", "smollm3", "olmo2", "olmo3", "bert", "gemma2",
            "gemma3_text", "glm", "glm4", "ministral3", "gptj", "gpt_neox", "phi", "cohere", "cohere2", "starcoder2", "exaone4",
            "seed_oss", "qwen3_5_text", "gemma4_text", "qwen3_moe", "qwen2_moe", "mixtral", "olmoe", "granitemoe", "gpt_oss",
            "glm4_moe")
EXPERTS = FAMILIES[-7:]
LAYER_NORM = {"gptj": "layer_norm_epsilon", "gpt_neox": "layer_norm_eps", "phi": "layer_norm_eps", "cohere": "layer_norm_eps",
              "cohere2": "layer_norm_eps", "starcoder2": "norm_epsilon"}
YARN = {"factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def gpt2(r, i):
    heads = r.choice([1, 2, 4, 6])
    config = {"n_embd": heads * r.choice([5, 8, 16]), "n_head": heads, "n_layer": r.randint(1, 3),
              "vocab_size": r.randint(50, 600)}
    if i % 2:
        config["n_positions"] = r.randint(8, 80)
    if i % 3 == 1:
        config["n_inner"] = r.choice([None, 40, 72])
    if i % 4 == 3:
        config["tie_word_embeddings"] = False
    if i % 5 == 2:          # the general names of the same sizes
        config = {{"n_embd": "hidden_size", "n_head": "num_attention_heads"}.get(k, k): v for k, v in config.items()}
    return config


def bert(r, i):
    """A classifier: BERT is trained as nothing else."""
    heads = r.choice([1, 2, 4])
    config = {"architectures": ["BertForSequenceClassification"], "hidden_size": heads * r.choice([5, 8]),
              "num_attention_heads": heads, "num_hidden_layers": r.randint(1, 3), "intermediate_size": r.randint(20, 90),
              "vocab_size": r.randint(50, 600), "max_position_embeddings": r.choice([16, 40]), "num_labels": 2 + i % 3}
    if i % 2:
        config["type_vocab_size"] = [1, 3][i // 2 % 2]
    if i % 3 == 1:
        config["layer_norm_eps"] = 1e-5
    return config


def rope(r, i, family, config):
    theta = r.choice([10000.0, 500000.0, 1e6, 250])
    scaling = [None, {"type": "linear", "factor": 4.0}, dict(LLAMA3, rope_type="llama3"),
               {"rope_type": "linear", "factor": 2}][i % 4]
    if i % 4 == 3 and family != "llama":
        scaling = [dict(YARN, type="yarn"), dict(YARN, type="yarn", beta_fast=8, beta_slow=2, truncate=False),
                   dict(YARN, type="yarn", mscale=0.7, mscale_all_dim=1.2), dict(YARN, type="yarn", attention_factor=1.5)][i // 4]
    if family == "phi3":
        scaling = None
    if i % 3 == 0:          # transformers 5
        config["rope_parameters"] = dict(scaling or {"rope_type": "default"}, rope_theta=theta)
        if "type" in config["rope_parameters"]:
            config["rope_parameters"]["rope_type"] = config["rope_parameters"].pop("type")
        config["dtype"] = "bfloat16"
    elif i % 3 == 1:        # transformers 4
        config.update(rope_theta=theta, rope_scaling=scaling, torch_dtype="float16")
    elif scaling:
        config["rope_scaling"] = scaling


def llama_like(r, i, family):
    kv = r.choice([1, 2, 3])
    heads = kv * r.choice([1, 2, 4])
    config = {"hidden_size": heads * r.choice([8, 16] if family == "phi3" else [8, 16, 22]), "num_attention_heads": heads,
              "num_hidden_layers": r.randint(1, 3), "intermediate_size": r.randint(20, 90),
              "vocab_size": r.randint(50, 600), "num_key_value_heads": kv,
              "tie_word_embeddings": bool(i % 2), "max_position_embeddings": r.choice([64, 100, 256])}
    if i % 5 == 4 and family not in ("mistral", "gemma2", "gemma3_text", "gemma4_text", "glm", "glm4", "ministral3", "qwen3_5_text", "starcoder2",
                                        "exaone4", "qwen3_moe", "qwen2_moe", "mixtral", "gpt_oss", "glm4_moe"):
        config["num_key_value_heads"] = None
    if i % 4 == 1:
        del config["tie_word_embeddings"]
    if i % 3 == 2 and family not in ("qwen2", "phi3") or family in ("gemma2", "gemma3_text", "gemma4_text"):
        config["head_dim"] = r.choice([4, 10, 24])
    if i % 2:
        config["rms_norm_eps"] = 1e-5
    if family in ("llama", "granite", "smollm3"):
        config.update([{}, {"attention_bias": True}, {"mlp_bias": True}, {"attention_bias": True, "mlp_bias": True}][i % 4])
    if family in ("qwen3", "olmo2", "olmo3") and i % 2:
        config["attention_bias"] = True
    if family in ("mistral", "phi3"):
        config.update([{}, {"sliding_window": None}, {"sliding_window": 7}][i % 3])
    if family in ("phi3", "smollm3", "olmo2", "olmo3"):
        config["pad_token_id"] = None
    if family == "phi3" and i % 2:
        config["partial_rotary_factor"] = [0.5, 0.75][i // 2 % 2]
    if family == "granite":
        config.update([{"attention_multiplier": 0.015625}, {}][i % 2])
    if family == "smollm3":
        layers = config["num_hidden_layers"]
        config.update([{}, {"no_rope_layers": [0, 1, 0, 1][:layers]}, {"no_rope_layer_interval": 2},
                       {"use_sliding_window": True, "sliding_window": 9, "no_rope_layer_interval": 2},
                       {"use_sliding_window": True, "sliding_window": 9,
                        "layer_types": ["sliding_attention"] + ["full_attention"] * (layers - 1)}][i % 5])
    if family in ("qwen2", "qwen3"):
        config.update([{}, {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0},
                       {"use_sliding_window": False, "sliding_window": 9},
                       {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
                       {"use_sliding_window": True, "layer_types": ["sliding_attention"] * config["num_hidden_layers"]},
                       {"use_sliding_window": True, "sliding_window": None}][i % 6])
    if family in LAYER_NORM and config.pop("rms_norm_eps", None):
        config[LAYER_NORM[family]] = 1e-6
    if family in ("cohere", "cohere2", "exaone4", "phi", "gpt_neox", "starcoder2"):
        config.pop("head_dim", None)
    if family in EXPERTS:
        experts(i, family, config)
        rope(r, i, family, config)
        return config
    own = {"glm": glm, "glm4": glm, "ministral3": ministral3, "gpt_neox": gpt_neox, "phi": phi, "cohere": cohere,
           "cohere2": cohere, "starcoder2": starcoder2, "exaone4": exaone4, "seed_oss": seed_oss, "qwen3_5_text": qwen3_5,
           "gemma4_text": gemma4}.get(family)
    if own:
        own(i, config)
        if family not in ("ministral3", "gpt_neox", "gemma4_text"):
            rope(r, i, family, config)
        return config
    if family == "gemma2":
        layers = config["num_hidden_layers"]
        config.update([{}, {"query_pre_attn_scalar": 64, "sliding_window": 9},
                       {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True},
                       {"attn_logit_softcapping": 20.0, "final_logit_softcapping": 15.0},
                       {"layer_types": ["full_attention"] + ["sliding_attention"] * (layers - 1)}][i % 5])
    if family == "gemma3_text":
        gemma3(i, config)
    elif family == "olmo3":
        olmo3(i, config)
    else:
        rope(r, i, family, config)
    return config


def gptj(r, i):
    config = gpt2(r, i)
    heads = config["n_head"] if "n_head" in config else config["num_attention_heads"]
    config["n_embd"] = heads * [8, 12, 16][i % 3]
    config.pop("hidden_size", None)
    config["rotary_dim"] = [4, 8, 6][i % 3]
    if i % 4 == 2:
        config["rope_theta"] = 5.0
    return config


def glm(i, config):
    config.update(pad_token_id=None, head_dim=[16, 8, 24][i % 3])
    config.update([{}, {"attention_bias": False}, {"partial_rotary_factor": 0.25}, {"partial_rotary_factor": 1.0}][i % 4])


def ministral3(i, config):
    config.update(pad_token_id=None)
    config["rope_parameters"] = dict(YARN, rope_type="yarn", rope_theta=[1e6, 1e4][i % 2], llama_4_scaling_beta=0.1,
                                     **[{}, {"mscale": 1.0, "mscale_all_dim": 1.0, "max_position_embeddings": 64}][i // 2 % 2])
    config.update([{}, {"sliding_window": None}, {"sliding_window": 7}][i % 3])


def gpt_neox(i, config):
    del config["num_key_value_heads"]
    config["hidden_size"] = config["num_attention_heads"] * 8
    config.update([{"rope_theta": 3.0, "partial_rotary_factor": 0.5}, {"attention_bias": False, "rotary_pct": 0.5}, {"use_parallel_residual": False, "rotary_pct": 1.0},
                   {"rotary_emb_base": 250, "hidden_act": "gelu_new"},
                   {"rope_scaling": {"type": "linear", "factor": 2.0}},
                   {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.75}}][i % 6])


def phi(i, config):
    config["hidden_size"] = config["num_attention_heads"] * [8, 16][i % 2]
    config.update([{}, {"partial_rotary_factor": 0.25}, {"hidden_act": "gelu"}][i % 3])


def cohere(i, config):
    config.update(pad_token_id=None, hidden_size=config["num_attention_heads"] * [8, 16][i % 2])
    config.update([{}, {"attention_bias": True}, {"logit_scale": 0.5}, {"sliding_window": 9, "sliding_window_pattern": 2},
                   {"sliding_window": 9, "layer_types": ["full_attention"] * config["num_hidden_layers"]}][i % 5])


def starcoder2(i, config):
    config.update([{}, {"use_bias": False}, {"sliding_window": 7}, {"hidden_act": "gelu"}][i % 4])


def exaone4(i, config):
    layers = ["full_attention"] * config["num_hidden_layers"]
    config.update([{}, {"sliding_window": 9, "sliding_window_pattern": 2},
                   {"sliding_window": None, "sliding_window_pattern": None, "layer_types": layers},
                   {"sliding_window_pattern": "LLLG", "layer_types": ["sliding_attention", *layers[1:]]}][i % 4])


def qwen3_5(i, config):
    config.update(head_dim=[8, 16, 24][i % 3], partial_rotary_factor=[0.25, 0.5][i % 2], linear_num_key_heads=2,
                  linear_num_value_heads=[2, 4, 6][i % 3], linear_key_head_dim=[8, 12][i % 2], linear_value_head_dim=10)
    layers = config["num_hidden_layers"]
    config.update([{}, {"full_attention_interval": 2}, {"attention_bias": True, "linear_conv_kernel_dim": 3},
                   {"layer_types": ["full_attention"] + ["linear_attention"] * (layers - 1)}][i % 4])


def gemma4(i, config):
    """Sizes of their own in full layers, keys and values of layers before, inputs of layers; and the two RoPEs."""
    full, sliding = "full_attention", "sliding_attention"
    config.update([{"sliding_window": 9}, {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "global_head_dim": 16},
                   {"num_hidden_layers": 6, "layer_types": [sliding, full] * 3, "num_kv_shared_layers": 3,
                    "use_double_wide_mlp": True, "hidden_size_per_layer_input": 5, "num_global_key_value_heads": 1},
                   {"attention_bias": True, "hidden_size_per_layer_input": 0, "final_logit_softcapping": 15.0},
                   {"layer_types": [full] * 2, "num_hidden_layers": 2, "vocab_size_per_layer_input": 777,
                    "per_layer_config": {j: {"head_dim": 12, "num_key_value_heads": 1} for j in (0, 1)}}][i % 5])
    config.update([{}, {"rope_parameters": {full: {"rope_type": "proportional", "rope_theta": 5e5, "factor": 2.0},
                                            sliding: {"rope_type": "default", "rope_theta": 1e3}}},
                   {"rope_parameters": {full: {"rope_type": "default", "rope_theta": 5e5},
                                        sliding: {"rope_type": "proportional", "rope_theta": 1e3, "partial_rotary_factor": 0.5}}},
                   ][i % 3])


def experts(i, family, config):
    """Both names of the number of experts, layers with and without experts, and what families have of their own."""
    layers, chosen = config["num_hidden_layers"], {"num_experts_per_tok": [1, 2, 3][i % 3]}
    named = {"granitemoe": "num_local_experts", "glm4_moe": "n_routed_experts", "qwen2_moe": "num_experts"}.get(family)
    config.update(chosen | {named or ["num_experts", "num_local_experts"][i % 2]: [3, 4, 6][i // 2 % 3]})
    if family in ("qwen3_moe", "qwen2_moe"):
        config.update([{}, {"mlp_only_layers": [0]}, {"decoder_sparse_step": 2}, {"mlp_only_layers": [1], "decoder_sparse_step": 1},
                       {"decoder_sparse_step": 3, "mlp_only_layers": None}][i % 5], moe_intermediate_size=[10, 13][i % 2])
    if family == "qwen3_moe":
        config.update([{}, {"use_sliding_window": True, "sliding_window": 9}, {"sliding_window": 9}, {"attention_bias": True}][i % 4])
    elif family == "qwen2_moe":
        config.update([{}, {"use_sliding_window": True, "sliding_window": 9}, {"qkv_bias": False},
                       {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2},
                       {"use_sliding_window": True, "sliding_window": 9, "layer_types": ["sliding_attention"] * layers}][i % 5],
                      shared_expert_intermediate_size=[12, 17][i % 2])
    elif family == "mixtral":
        config.update([{"head_dim": None}, {"sliding_window": None}, {"sliding_window": 7}, {"head_dim": 10}][i % 4])
    elif family == "olmoe":
        config.pop("head_dim", None)
        config.update([{}, {"attention_bias": True}, {"pad_token_id": None}][i % 3])
    elif family == "granitemoe":
        config.update([{"attention_multiplier": 0.015625}, {}, {"attention_bias": True}][i % 3])
    elif family == "gpt_oss":
        config.update([{"sliding_window": 9}, {"attention_bias": False}, {"layer_types": ["full_attention"] * layers},
                       {"layer_types": ["full_attention"] + ["sliding_attention"] * (layers - 1)}][i % 4])
    else:
        config.update([{}, {"attention_bias": True}, {"partial_rotary_factor": 0.25}, {"partial_rotary_factor": 1.0}][i % 4],
                      head_dim=[16, 8, 24][i % 3], moe_intermediate_size=10, n_shared_experts=[1, 2][i % 2])
        config.update([{}, {"use_qk_norm": True}, {"first_k_dense_replace": 0}, {"first_k_dense_replace": 2}][i // 2 % 4])
        if i % 3 == 1:
            config.update(n_group=2, topk_group=1, n_routed_experts=6)


def seed_oss(i, config):
    config.update(pad_token_id=None)
    config.update([{}, {"attention_bias": False}, {"attention_out_bias": True}, {"mlp_bias": True}][i % 4])


def gemma3(i, config):
    """Windows and the two RoPEs, in both dialects."""
    layers = config["num_hidden_layers"]
    config.update([{}, {"query_pre_attn_scalar": 64, "sliding_window": 9, "sliding_window_pattern": 2},
                   {"final_logit_softcapping": 15.0, "attention_bias": True},
                   {"layer_types": ["full_attention"] + ["sliding_attention"] * (layers - 1)},
                   {"layer_types": ["full_attention"] * layers}][i % 5])
    config.update([{}, {"rope_theta": 5e5, "rope_local_base_freq": 250.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
                   {"rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                                        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}},
                   {"rope_local_base_freq": 500.0, "rope_scaling": dict(YARN, rope_type="yarn")},
                   {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e5},
                                        "sliding_attention": dict(LLAMA3, rope_type="llama3", rope_theta=2e4)}},
                   {"rope_theta": 2e6, "rope_parameters": {"full_attention": None,
                                                           "sliding_attention": dict(YARN, rope_type="yarn")}}][i % 6])


def olmo3(i, config):
    """The same; rope_scaling is of the layers without a window."""
    layers = config["num_hidden_layers"]
    config.update([{}, {"sliding_window": 9}, {"layer_types": ["full_attention"] + ["sliding_attention"] * (layers - 1)}][i % 3])
    config.update([{}, {"rope_theta": 1e4}, {"rope_theta": 2e6, "rope_scaling": dict(YARN, rope_type="yarn")},
                   {"rope_parameters": {"full_attention": dict(YARN, rope_type="yarn", rope_theta=5e5),
                                        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}][i % 4])


def put_frequencies(out, family, cfg, rotary_class):
    if family == "gptj":
        inv_freq = 1.0 / (10000 ** (torch.arange(0, cfg.rotary_dim, 2, dtype=torch.int64) / cfg.rotary_dim))
        out["inv_freq"] = [float(x) for x in inv_freq.double()]
        out["rope_factor"] = 1.0
        return
    if family not in ("gemma3_text", "olmo3", "gemma4_text"):
        rotary = rotary_class(cfg)
        out["inv_freq"] = [float(x) for x in rotary.inv_freq.double()]
        out["rope_factor"] = rotary.attention_scaling
        if cfg.rope_parameters["rope_type"] in ("dynamic", "longrope"):  # of a sequence beyond the original length
            rotary(torch.zeros(1), torch.arange(5050)[None])
            out["beyond"] = {"length": 5050, "inv_freq": [float(x) for x in rotary.inv_freq.double()]}
        return
    if family == "gemma4_text":  # both, also where a model has one
        cfg.allow_global_per_layer_attribute_access = True
        for prefix, kind in (("", "full_attention"), ("local_", "sliding_attention")):
            size = cfg.per_layer_config[kind] if kind in cfg.layer_types else cfg
            make = rotary_class.compute_default_rope_parameters
            if cfg.rope_parameters[kind]["rope_type"] == "proportional":
                make = ROPE_INIT_FUNCTIONS["proportional"]
            inv_freq, out[f"{prefix}rope_factor"] = make(size, torch.device("cpu"), layer_type=kind)
            out[f"{prefix}inv_freq"] = [float(x) for x in inv_freq.double()]
        return
    types, cfg.layer_types = cfg.layer_types, ["full_attention", "sliding_attention"]  # both, also where a model has one
    rotary, cfg.layer_types = rotary_class(cfg), types
    for prefix, kind in (("", "full_attention"), ("local_", "sliding_attention")):
        out[f"{prefix}inv_freq"] = [float(x) for x in getattr(rotary, f"{kind}_inv_freq").double()]
        out[f"{prefix}rope_factor"] = getattr(rotary, f"{kind}_attention_scaling")


# RoPE that depends on the length of the longest sequence, "dynamic" and "longrope", as Phi-3 and Phi-4-mini have it
BEYOND = {
    "llama": [{"rope_scaling": {"type": "dynamic", "factor": 2.5}},
              {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "factor": 6.0, "original_max_position_embeddings": 20,
                                   "short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [1.0, 3.5, 5.0, 9.0]}}],
    "phi3": [{"rope_scaling": {"type": "su", "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 7.5, 8],
                                "original_max_position_embeddings": 30},
              "original_max_position_embeddings": 20},
             {"rope_scaling": {"type": "yarn", "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 7.5, 8]}},
             {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "attention_factor": 1.2, "partial_rotary_factor": 0.75,
                                  "short_factor": [1, 1.1, 1.2], "long_factor": [1.5, 2.0, 7.5]},
              "original_max_position_embeddings": 30}],
}


def case(family, config):
    config = dict(config, model_type=family)
    cfg = CONFIG_MAPPING[family].from_dict(json.loads(json.dumps(config)))
    auto = AutoModelForSequenceClassification if family == "bert" else AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(cfg)
    out = {"config": config, "tied": cfg.tie_word_embeddings and family != "bert",
           "tensors": {n: list(p.shape)
                       for n, p in model.named_parameters()}}     # tied ones are there once
    if family in EXPERTS:
        state = {n: t for n, t in (*model.named_parameters(), *model.named_buffers()) if not n.endswith("inv_freq")}
        out["tensors"] = {n: list(t.shape) for n, t in revert_weight_conversion(model, state).items()}
        mlps = [getattr(layer, "mlp", None) or layer.block_sparse_moe for layer in model.model.layers]
        out["sparse"] = [hasattr(mlp, "experts") for mlp in mlps]
        out["experts"] = [cfg.num_local_experts if hasattr(cfg, "num_local_experts") else cfg.num_experts, cfg.num_experts_per_tok]
    if family == "gemma4_text":
        out["tensors"] |= {n: [1] for n, _ in model.named_buffers() if n.endswith("layer_scalar")}
    if family == "gpt2":
        out["eps"] = cfg.layer_norm_epsilon
    elif family == "bert":
        out["eps"] = cfg.layer_norm_eps
    else:
        out["eps"] = getattr(cfg, LAYER_NORM.get(family, "rms_norm_eps"))
        inside = getattr(model, model.base_model_prefix)
        put_frequencies(out, family, cfg, type(inside.rotary_emb))
        if family in ("gptj", "gpt_neox"):
            return out
        if family == "qwen3_5_text":
            out["delta"] = [kind == "linear_attention" for kind in cfg.layer_types]
            return out
        out["scale"] = model.model.layers[0].self_attn.scaling
        if family in ("gemma2", "gemma3_text", "gemma4_text"):
            out["embedding"] = model.model.embed_tokens.scalar_embed_scale
            out["softcaps"] = [getattr(cfg, "attn_logit_softcapping", None), cfg.final_logit_softcapping]
        if family == "smollm3":
            out["no_rope"] = [not x for x in cfg.no_rope_layers]
        if family == "cohere2" or (family == "exaone4" and cfg.sliding_window):
            out["no_rope"] = [kind == "full_attention" for kind in cfg.layer_types]
        if family == "cohere":
            return out
        window = cfg.sliding_window if family not in ("llama", "granite", "olmo2", "glm", "glm4", "phi", "seed_oss", "olmoe",
                                                      "granitemoe", "glm4_moe") else None
        types = getattr(cfg, "layer_types", None)
        out["windows"] = [window if types is None or types[i] == "sliding_attention" else None
                          for i in range(cfg.num_hidden_layers)]
    return out


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "names")
    for family in FAMILIES:
        r = random.Random(family)
        own = {"gpt2": gpt2, "gptj": gptj, "bert": bert}.get(family)
        configs = [own(r, i) if own else llama_like(r, i, family) for i in range(CASES)]
        # almost everything left to the defaults
        configs.append({"n_layer": 1} if family in ("gpt2", "gptj") else {"num_hidden_layers": 1})
        if family == "glm4_moe":  # by default its heads have 42 2/3 elements
            configs[-1]["head_dim"] = 128
        configs += [dict(hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=20, vocab_size=50,
                         max_position_embeddings=5000, pad_token_id=None, **more) for more in BEYOND.get(family, ())]
        if family == "bert":
            configs[-1]["architectures"] = ["BertForSequenceClassification"]
        cases = [case(family, c) for c in configs]
        with open(f"{folder}/{family}.json", "w") as f:
            f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")


main()

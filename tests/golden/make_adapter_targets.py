#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make tests/golden/adapter_targets.json: which modules PEFT changes for a LoraConfig.

    python3 tests/golden/make_adapter_targets.py [FILE]        (packages: torch, transformers, peft)

A list of models, each a config.json and its cases: keys of LoraConfig, and what get_peft_model() makes of them. That is
"error": true, or the modules with A and B, each with rank and scale, and the parameters that are trained as a whole. A
parameter with A and B (target_parameters) has its own name.
Names are written with the number of the block as *, if all blocks have the same.
"""
import json
import os
import re
import sys
import warnings

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, CONFIG_MAPPING

GPT2 = {"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 2, "vocab_size": 20, "n_positions": 8}
BERT = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "hidden_size": 8, "num_attention_heads": 2,
        "num_hidden_layers": 2, "intermediate_size": 12, "vocab_size": 20, "max_position_embeddings": 8, "num_labels": 3}


def llama(family, tied=False, **others):
    return {"model_type": family, "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2,
            "intermediate_size": 12, "vocab_size": 20, "max_position_embeddings": 16, "pad_token_id": 0, "head_dim": 4,
            "tie_word_embeddings": tied, **others}


ALL = [{}, {"target_modules": "all-linear"}]
LISTS = [
    {"target_modules": ["q_proj", "up_proj", "absent"], "r": 4, "lora_alpha": 16},
    {"target_modules": ["v_proj"], "use_rslora": True, "r": 16},
    {"target_modules": ["proj"]},
    {"target_modules": ["model.layers.1.mlp.down_proj", "k_proj"]},
    {"target_modules": ["self_attn.o_proj", "lm_head"]},
    {"target_modules": ["embed_tokens", "q_proj"]},
    {"target_modules": ["input_layernorm", "q_proj"]},
    {"target_modules": ["mlp"]},
    {"target_modules": r".*\.(q|v)_proj"},
    {"target_modules": r"model\.layers\.1\..*_proj"},
    {"target_modules": r".*\.q_pro"},
    {"target_modules": r"model\.layers\.0\..*"},
    {"target_modules": r".*(?P<which>gate|up)_proj"},
    {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1]},
    {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": 0},
    {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": []},
    {"target_modules": ["q_proj"], "layers_to_transform": [0, 1], "layers_pattern": "layers"},
    {"target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": ["blocks", "layer."]},
    {"target_modules": ["q_proj"], "layers_to_transform": [7]},
    {"target_modules": ["model.layers.0.self_attn.q_proj", "v_proj"], "layers_to_transform": [1]},
    {"layers_to_transform": 1},
    {"target_modules": "all-linear", "layers_to_transform": [0]},
    {"target_modules": "ALL-LINEAR", "exclude_modules": ["gate_proj", "layers.0.mlp.up_proj"]},
    {"target_modules": "all-linear", "exclude_modules": r".*\.layers\.1\..*"},
    {"target_modules": ["q_proj"], "exclude_modules": ["q_proj"]},
    {"target_modules": ["q_proj", "v_proj"], "exclude_modules": ["proj", "absent"]},
    {"target_modules": ["q_proj"], "modules_to_save": ["norm"]},
    {"target_modules": ["q_proj"], "modules_to_save": ["model.norm", "mlp"]},
    {"target_modules": "all-linear", "modules_to_save": ["self_attn", "absent"]},
    {"target_modules": "all-linear", "modules_to_save": ["layers.0"]},
    {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
    {"target_modules": "all-linear", "modules_to_save": ["lm_head"]},
    {"target_modules": "all-linear", "rank_pattern": {"v_proj": 2, r"layers\.0\.mlp\..*": 3, "mlp.down_proj": 5, "absent": 6},
     "alpha_pattern": {"q_proj": 1.5, ".*v_proj": 32}},
    {"target_modules": ["q_proj", "v_proj"], "rank_pattern": {"proj": 2, "^model.layers.1.self_attn.q_proj": 3, "q|v_proj": 4},
     "alpha_pattern": {"1.self_attn.v_proj": 7}, "use_rslora": True},
]
TIED = [{"target_modules": ["q_proj", "lm_head"]}, {"target_modules": ["embed_tokens"]}, {"target_modules": "all-linear"},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "norm"], "ensure_weight_tying": True}]
CONV = [*ALL, {"target_modules": ["c_proj"], "r": 2}, {"target_modules": ["mlp.c_proj", "c_fc"], "layers_to_transform": [0]},
        {"target_modules": ["wte", "wpe", "c_attn"]}, {"target_modules": r"transformer\.h\.\d+\.attn\.c_.*"},
        {"target_modules": ["attn"]}, {"target_modules": ["c_attn"], "modules_to_save": ["ln_f", "mlp"]},
        {"target_modules": ["c_attn"], "modules_to_save": ["ln_1"], "rank_pattern": {"h.0.attn.c_attn": 3}}]
# Of mixtures of experts, targets that are no experts; where a family is not among PLAIN_EXPERTS, PEFT makes of the names of an expert's
# matrices, and of all-linear, adapters on the parameters of all experts.
EXPERTS = {"qwen3_moe": dict(num_experts=3, num_experts_per_tok=2, moe_intermediate_size=6, mlp_only_layers=[0]),
           "qwen2_moe": dict(num_experts=3, num_experts_per_tok=2, moe_intermediate_size=6, shared_expert_intermediate_size=6),
           "mixtral": dict(num_local_experts=3), "olmoe": dict(num_experts=3, num_experts_per_tok=2),
           "granitemoe": dict(num_local_experts=3), "gpt_oss": dict(num_local_experts=3, num_experts_per_tok=2),
           "glm4_moe": dict(n_routed_experts=3, num_experts_per_tok=2, moe_intermediate_size=6, num_nextn_predict_layers=0)}
ON_EXPERTS = [
    *({"target_modules": names} for names in (["gate_proj"], ["up_proj", "w1"], ["gate_proj", "up_proj", "down_proj"], ["w1", "w2", "w3"], ["gate"], ["gate", "w3"],
                                              ["experts"], ["router"], ["down_proj"], ["mlp.down_proj", "model.layers.1.mlp.gate"], ["shared_expert_gate", "q_proj"])),
    *({"target_modules": expression, "r": 4} for expression in (r".*\.1\.self_attn\.q_proj", r".*experts.*", r".*\.experts\.up_proj|.*gate_proj", r".*proj", r".*(w1|w3)", r".*mlp\..*",
                                                                r".*gate_up_proj|.*k_proj", "q_proj")),
    {"target_modules": "all-linear", "r": 4, "lora_alpha": 3, "use_rslora": True, "exclude_modules": ["self_attn.q_proj", "experts"]},
    {"target_modules": "all-linear", "lora_dropout": 0.1},
    {"target_modules": ["gate_proj", "up_proj", "q_proj"], "rank_pattern": {"experts.gate_up_proj": 3}},
    {"target_modules": ["w1", "w3"], "r": 4, "alpha_pattern": {"mlp.experts.gate_up_proj": 5}, "use_rslora": True},
    *({"target_parameters": names} for names in (["gate_up_proj"], ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"], ["model.layers.1.mlp.experts.down_proj", "router.weight"],
                                                 ["gate.weight"], ["nothing"], ["weight"], ["down_proj.weight", "experts.down_proj"])),
    {"target_parameters": ["gate_up_proj"], "lora_dropout": 0.1}, {"target_parameters": ["nothing"], "target_modules": ["q_proj"]},
    {"target_parameters": ["experts.down_proj", "q_proj.weight"], "target_modules": ["k_proj"], "layers_to_transform": [0], "exclude_modules": ["experts"]},
    {"target_parameters": ["q_proj.weight"], "target_modules": ["q_proj"]},
    {"target_parameters": ["experts.gate_up_proj", "down_proj"], "r": 6, "lora_alpha": 4, "use_rslora": True,
     "rank_pattern": {"gate_up_proj": 2, "layers.1.mlp.experts.down_proj": 3}, "alpha_pattern": {"experts.down_proj": 7}},
    {"target_parameters": ["gate_up_proj"], "modules_to_save": ["experts"]},
]
BESIDE_EXPERTS = [{"target_modules": ["q_proj", "v_proj"], "r": 4}, {"target_modules": r".*\.[ko]_proj"},
                  {"target_modules": ["q_proj"], "modules_to_save": ["norm"]}]
HEADS = [*ALL, {"target_modules": ["dense"]}, {"target_modules": ["query"], "modules_to_save": ["pooler"]},
         {"target_modules": ["query", "classifier"]}, {"target_modules": "all-linear", "modules_to_save": ["LayerNorm"]},
         {"target_modules": ["value", "key"], "layers_to_transform": [1]}, {"target_modules": ["word_embeddings", "query"]}]
MODELS = [
    (llama("llama"), [*ALL, *LISTS]), (llama("llama", True), TIED), (llama("llama", attention_bias=True, mlp_bias=True),
    [{"target_modules": ["o_proj"], "modules_to_save": ["down_proj"]}, {"target_modules": ["o_proj"], "modules_to_save": ["mlp"]}]),
    (GPT2, CONV), (dict(GPT2, num_labels=2, pad_token_id=0, architectures=["GPT2ForSequenceClassification"]), [*ALL, {"target_modules": ["c_fc", "score"]}]),
    (BERT, HEADS),
    (llama("llama", num_labels=3, architectures=["LlamaForSequenceClassification"]), [*ALL, {"target_modules": ["q_proj"], "modules_to_save": ["norm"]}]),
    *((llama(name), ALL) for name in ("mistral", "qwen2", "qwen3", "granite", "smollm3", "olmo2")),
    (llama("phi3"), [*ALL, {"target_modules": ["qkv_proj", "gate_up_proj"]}]),
    *((llama(name, True), ALL) for name in ("gemma2", "gemma3_text")),
    *((llama(name), ALL) for name in ("olmo3", "glm", "glm4", "ministral3", "phi", "cohere", "cohere2", "starcoder2", "exaone4", "seed_oss")),
    (dict(GPT2, model_type="gptj", rotary_dim=4), ALL), (llama("gpt_neox", intermediate_size=32, rotary_pct=0.5), ALL),
    (llama("qwen3_5_text", partial_rotary_factor=0.5, linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=4, linear_value_head_dim=4,
           layer_types=["linear_attention", "full_attention"]), ALL),
    (llama("gemma4_text", True, hidden_size_per_layer_input=4, vocab_size_per_layer_input=20, global_head_dim=8, num_kv_shared_layers=1,
           num_hidden_layers=3, layer_types=["sliding_attention", "full_attention", "full_attention"]), ALL),
    *((llama(name, **experts), [*ALL, *BESIDE_EXPERTS, *ON_EXPERTS]) for name, experts in EXPERTS.items()),
]


def short(names, layers):
    """{name: value} with one entry for all blocks, where each of them has it with the same value."""
    starred = {}
    for name, value in names.items():
        starred.setdefault(re.sub(r"(\.(?:layers|h|layer)\.)\d+(?=\.)", r"\1*", name), []).append((name, value))
    out = {}
    for star, items in starred.items():
        if "*" in star and len(items) == layers and len({str(value) for _, value in items}) == 1:
            out[star] = items[0][1]
        else:
            out.update(items)
    return dict(sorted(out.items()))


def outcome(config, case):
    torch.manual_seed(1)
    classifies = "architectures" in config
    loader = AutoModelForSequenceClassification if classifies else AutoModelForCausalLM
    settings = CONFIG_MAPPING[config["model_type"]](**{k: v for k, v in config.items() if k not in ("model_type", "architectures")})
    model = loader.from_config(settings)
    layers = config.get("n_layer", config.get("num_hidden_layers"))
    try:
        model = get_peft_model(model, LoraConfig(task_type="SEQ_CLS" if classifies else "CAUSAL_LM", **json.loads(json.dumps(case))))
    except (ValueError, TypeError):
        return {"error": True}
    lora, saved = {}, {}
    for name, module in model.base_model.model.named_modules():
        ranks = getattr(module, "r", None)
        if isinstance(ranks, dict) and "default" in ranks:
            if hasattr(module, "parameter_name"):
                name = name.replace(".base_layer", "") + "." + module.parameter_name
            lora[name] = [ranks["default"], round(module.scaling["default"], 12)]
    for name, parameter in model.base_model.model.named_parameters():
        if parameter.requires_grad and ".modules_to_save.default" in name:
            saved[name.replace(".modules_to_save.default", "")] = True
    return {"lora": short(lora, layers), "saved": list(short(saved, layers))}


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "adapter_targets.json")
    warnings.simplefilter("ignore")
    with open(path, "w", encoding="utf-8") as f:
        f.write("[\n")
        for i, (config, cases) in enumerate(MODELS):
            f.write(f'{{"config": {json.dumps(config)}, "cases": [\n')
            lines = [json.dumps({"peft": case, **outcome(config, case)}) for case in cases]
            f.write(",\n".join(lines) + "\n]}" + (",\n" if i + 1 < len(MODELS) else "\n"))
        f.write("]\n")


if __name__ == "__main__":
    main()

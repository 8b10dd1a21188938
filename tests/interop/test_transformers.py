# SPDX-License-Identifier: Apache-2.0
"""What ztrain exports, transformers loads, with the same loss; what transformers saves, ztrain loads, with the same loss.

Needs torch and transformers: .ci/run makes a virtual environment for it.
"""
import json
import os
import struct

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from harness import GPT2, LLAMA, SEQUENCE, VOCABULARY, read_safetensors

pytestmark = pytest.mark.interop

LLAMA3_ROPE = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 16}
NO_IDS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
LAYER_NORM = {k: v for k, v in LLAMA.items() if k != "rms_norm_eps"}
NEOX = {**{k: v for k, v in LAYER_NORM.items() if k != "num_key_value_heads"}, "model_type": "gpt_neox",
        "architectures": ["GPTNeoXForCausalLM"], "hidden_act": "gelu"}
EXPERTS = {**LLAMA, "moe_intermediate_size": 12, "num_experts_per_tok": 2, **NO_IDS}
FAMILIES = {
    "gpt2": GPT2,
    "gpt2-inner": {**GPT2, "n_inner": 72},
    "llama": LLAMA,
    "llama-biases": {**LLAMA, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "llama3-rope": {**LLAMA, "rope_scaling": LLAMA3_ROPE},
    "linear-rope": {**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "mistral": {**LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 9},
    "qwen2": {**LLAMA, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True},
    "qwen3": {**LLAMA, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 16},
    "phi3": {**LLAMA, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": 0.5,
             "pad_token_id": None, "bos_token_id": None, "eos_token_id": None},
    "granite": {**LLAMA, "model_type": "granite", "architectures": ["GraniteForCausalLM"], "embedding_multiplier": 6.0,
                "attention_multiplier": 0.3, "residual_multiplier": 0.22, "logits_scaling": 2.0},
    "smollm3": {**LLAMA, "model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 0, 1],
                "pad_token_id": None, "bos_token_id": None, "eos_token_id": None},
    "olmo2": {**LLAMA, "model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"], "attention_bias": True,
              "pad_token_id": None, "bos_token_id": None, "eos_token_id": None},
    "olmo3": {**LLAMA, "model_type": "olmo3", "architectures": ["Olmo3ForCausalLM"], "sliding_window": 9,
              "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
              "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
              "pad_token_id": None, "bos_token_id": None, "eos_token_id": None},
    "gemma2": {**LLAMA, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "head_dim": 16, "sliding_window": 9,
               "query_pre_attn_scalar": 12, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0,
               "tie_word_embeddings": True, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None},
    "gemma3": {**LLAMA, "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "head_dim": 16,
               "sliding_window": 9, "sliding_window_pattern": 2, "query_pre_attn_scalar": 12, "final_logit_softcapping": 5.0,
               "rope_theta": 1e6, "rope_local_base_freq": 100.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0},
               "tie_word_embeddings": True, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None},
    "glm": {**LLAMA, "model_type": "glm", "architectures": ["GlmForCausalLM"], "head_dim": 16, **NO_IDS},
    "glm4": {**LLAMA, "model_type": "glm4", "architectures": ["Glm4ForCausalLM"], "head_dim": 16, **NO_IDS},
    "ministral3": {**LLAMA, "model_type": "ministral3", "architectures": ["Ministral3ForCausalLM"], "head_dim": 16, **NO_IDS,
                   "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "llama_4_scaling_beta": 0.5,
                                       "original_max_position_embeddings": 8}},
    "gptj": {**GPT2, "model_type": "gptj", "architectures": ["GPTJForCausalLM"], "rotary_dim": 6},
    "gpt_neox": {**NEOX, "rotary_pct": 0.5},
    "gpt_neox-in-turn": {**NEOX, "rotary_pct": 1.0, "use_parallel_residual": False, "hidden_act": "gelu_new"},
    "phi": {**LAYER_NORM, "model_type": "phi", "architectures": ["PhiForCausalLM"], "partial_rotary_factor": 0.5,
            "hidden_act": "gelu_new"},
    "cohere": {**LAYER_NORM, "model_type": "cohere", "architectures": ["CohereForCausalLM"], "logit_scale": 0.5, **NO_IDS},
    "cohere2": {**LAYER_NORM, "model_type": "cohere2", "architectures": ["Cohere2ForCausalLM"], "logit_scale": 0.5,
                "sliding_window": 9, "sliding_window_pattern": 2, **NO_IDS},
    "starcoder2": {**LAYER_NORM, "model_type": "starcoder2", "architectures": ["Starcoder2ForCausalLM"], "sliding_window": 9,
                   "hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5, "tie_word_embeddings": True},
    "exaone4": {**LLAMA, "model_type": "exaone4", "architectures": ["Exaone4ForCausalLM"], "sliding_window": 9,
                "sliding_window_pattern": 2},
    "seed_oss": {**LLAMA, "model_type": "seed_oss", "architectures": ["SeedOssForCausalLM"], "head_dim": 16,
                 "attention_out_bias": True, **NO_IDS},
    "qwen3.5": {**LLAMA, "model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], "head_dim": 16,
                "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
                "full_attention_interval": 2},
    "gemma4": {**LLAMA, "model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"], "head_dim": 16, "global_head_dim": 24,
               "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
               "sliding_window": 9, "hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": 64, "rope_theta": None,
               "use_double_wide_mlp": True, "tie_word_embeddings": True, **NO_IDS},
    "qwen3_moe": {**EXPERTS, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 16, "num_experts": 5,
                  "mlp_only_layers": [1], "norm_topk_prob": True},
    "qwen2_moe": {**EXPERTS, "model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"], "num_experts": 5,
                  "shared_expert_intermediate_size": 20},
    "mixtral": {**EXPERTS, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 5},
    "olmoe": {**EXPERTS, "model_type": "olmoe", "architectures": ["OlmoeForCausalLM"], "num_experts": 5},
    "granitemoe": {**EXPERTS, "model_type": "granitemoe", "architectures": ["GraniteMoeForCausalLM"], "num_local_experts": 5,
                   "embedding_multiplier": 6.0, "attention_multiplier": 0.3, "residual_multiplier": 0.22, "logits_scaling": 2.0},
    "gpt_oss": {**EXPERTS, "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "num_local_experts": 5, "head_dim": 16,
                "sliding_window": 9},
    "glm4_moe": {**EXPERTS, "model_type": "glm4_moe", "architectures": ["Glm4MoeForCausalLM"], "n_routed_experts": 6, "n_group": 3,
                 "topk_group": 2, "use_qk_norm": True, "routed_scaling_factor": 1.5},
    "yarn": {**LLAMA, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True,
             "sliding_window": 9, "max_window_layers": 1,
             "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
}


def validation_batch(folder):
    with open(folder.at("validation.bin"), "rb") as f:
        raw = f.read()
    tokens = struct.unpack(f"<{len(raw) // 2}H", raw)
    rows = [tokens[i:i + SEQUENCE + 1] for i in range(0, len(tokens) - SEQUENCE, SEQUENCE)]
    return torch.tensor(rows)


def loss_of(model, rows):
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=rows[:, :-1]).logits.double()
        return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), rows[:, 1:].reshape(-1)).item()


def load(path, dtype):
    model, report = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, output_loading_info=True,
                                                         attn_implementation="eager")
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[kind], f"{kind}: {report[kind]}"
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_an_export_loads_with_the_same_loss(folder, family):
    folder.train({"model": {"config": FAMILIES[family]}, "train": {"epochs": 3}, "zero_optimization": {"stage": 3}}, ranks=2)
    want = folder.metrics().evaluations[-1]["eval_loss"]
    rows = validation_batch(folder)
    for dtype, torch_dtype, bound in (("fp32", torch.float32, 1e-5), ("bf16", torch.float32, 2e-2)):
        out = folder.at(f"hf-{dtype}")
        folder.ztrain("export", folder.run_folder(), "--out", out, "--dtype", dtype)
        assert abs(loss_of(load(out, torch_dtype), rows) - want) < bound
    assert AutoConfig.from_pretrained(folder.at("hf-bf16")).dtype == torch.bfloat16


@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "sharded bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_saves_is_read_with_the_same_loss(folder, family, sharded):
    torch.manual_seed(5)
    keys = dict(FAMILIES[family])
    config = transformers.CONFIG_MAPPING[keys["model_type"]](**{k: v for k, v in keys.items() if k != "model_type"})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    if sharded:
        model = model.to(torch.bfloat16)
        model.save_pretrained(folder.at("hf"), max_shard_size="20KB")
        assert os.path.exists(folder.at("hf", "model.safetensors.index.json"))
    else:
        model.save_pretrained(folder.at("hf"))
    folder.train({"model": {"config": None, "pretrained": folder.at("hf")}, "train": {"max_steps": 1},
                  "optimizer": {"params": {"lr": 1e-20, "weight_decay": 0.0}}}, ranks=2)
    # read again, because .to(bfloat16) has rounded RoPE's frequencies as well, which no file holds
    want = loss_of(load(folder.at("hf"), torch.float32), validation_batch(folder))
    assert abs(folder.metrics().evaluations[-1]["eval_loss"] - want) < 1e-5


def test_a_model_saved_without_its_head_is_read_with_the_same_loss(folder):
    """Its tensors lack the prefix "model."."""
    torch.manual_seed(6)
    keys = {k: v for k, v in FAMILIES["qwen2"].items() if k != "model_type"}
    transformers.AutoModel.from_config(transformers.Qwen2Config(**keys)).save_pretrained(folder.at("hf"))
    assert "embed_tokens.weight" in read_safetensors(folder.at("hf", "model.safetensors"))
    folder.train({"model": {"config": None, "pretrained": folder.at("hf")}, "train": {"max_steps": 1},
                  "optimizer": {"params": {"lr": 1e-20, "weight_decay": 0.0}}})
    want = loss_of(load(folder.at("hf"), torch.float32), validation_batch(folder))
    assert abs(folder.metrics().evaluations[-1]["eval_loss"] - want) < 1e-5


def test_initial_weights_are_drawn_as_transformers_draws_them(folder):
    """Standard deviations of the kinds of tensors, of a model large enough to measure them."""
    keys = {**GPT2, "n_embd": 128, "n_layer": 4, "vocab_size": 1000, "initializer_range": 0.02}
    folder.train({"model": {"config": keys}, "train": {"max_steps": 1}, "optimizer": {"params": {"lr": 1e-20}}})
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("hf"), "--dtype", "fp32")
    ours = load(folder.at("hf"), torch.float32).state_dict()
    with open(folder.at("hf", "config.json"), encoding="utf-8") as f:
        config = transformers.GPT2Config(**json.load(f))
    theirs = AutoModelForCausalLM.from_config(config).state_dict()
    assert set(ours) == set(theirs)
    for name, values in theirs.items():
        assert ours[name].shape == values.shape
        assert ours[name].mean().item() == pytest.approx(values.mean().item(), abs=2e-3), name
        assert ours[name].std().item() == pytest.approx(values.std().item(), rel=0.1, abs=1e-6), name

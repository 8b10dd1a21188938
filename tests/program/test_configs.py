# SPDX-License-Identifier: Apache-2.0
"""The run specs in configs/ are complete: each dry-runs from the repository's root. Where one names files that users
bring (weights, token shards), small stand-ins with the same shape are put in their place."""
import json
import os
import re
import struct

import pytest

from harness import FINISHED, ROOT, plan_bytes, write_megatron

CONFIGS = sorted(name for name in os.listdir(os.path.join(ROOT, "configs")) if name.endswith(".yaml"))

# config.json of the published weights that a spec names
PRETRAINED = {
    "models/gpt2": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50257, "n_ctx": 1024,
                    "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "activation_function": "gelu_new",
                    "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "layer_norm_epsilon": 1e-5,
                    "initializer_range": 0.02, "summary_type": "cls_index", "bos_token_id": 50256, "eos_token_id": 50256},
    "models/bert-base-uncased": {"model_type": "bert", "architectures": ["BertForMaskedLM"],
                                 "attention_probs_dropout_prob": 0.1, "gradient_checkpointing": False,
                                 "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
                                 "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-12,
                                 "max_position_embeddings": 512, "num_attention_heads": 12, "num_hidden_layers": 12,
                                 "pad_token_id": 0, "position_embedding_type": "absolute", "type_vocab_size": 2,
                                 "use_cache": True, "vocab_size": 30522},
    "models/qwen2.5-0.5b": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 151936,
                            "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
                            "num_attention_heads": 14, "num_key_value_heads": 2, "hidden_act": "silu",
                            "max_position_embeddings": 32768, "max_window_layers": 24, "rms_norm_eps": 1e-6,
                            "rope_theta": 1000000.0, "sliding_window": 32768, "use_sliding_window": False,
                            "tie_word_embeddings": True, "torch_dtype": "bfloat16", "attention_dropout": 0.0,
                            "initializer_range": 0.02, "use_cache": True, "use_mrope": False},
    "models/qwen2.5-7b": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 152064,
                          "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
                          "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_act": "silu",
                          "max_position_embeddings": 32768, "max_window_layers": 28, "rms_norm_eps": 1e-6,
                          "rope_theta": 1000000.0, "sliding_window": 131072, "use_sliding_window": False,
                          "tie_word_embeddings": False, "torch_dtype": "bfloat16", "attention_dropout": 0.0,
                          "bos_token_id": 151643, "eos_token_id": 151645, "initializer_range": 0.02, "use_cache": True},
    "models/qwen3-8b": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": False,
                        "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
                        "initializer_range": 0.02, "intermediate_size": 12288, "max_position_embeddings": 40960,
                        "max_window_layers": 36, "num_attention_heads": 32, "num_hidden_layers": 36,
                        "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 1000000,
                        "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
                        "use_cache": True, "use_sliding_window": False, "vocab_size": 151936},
    "models/qwen3-30b-a3b": {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False,
                             "attention_dropout": 0.0, "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645,
                             "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
                             "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
                             "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": True,
                             "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
                             "num_key_value_heads": 4, "output_router_logits": False, "rms_norm_eps": 1e-6, "rope_scaling": None,
                             "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": None,
                             "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
                             "use_sliding_window": False, "vocab_size": 151936},
    "models/llama-3.3-70b": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "attention_bias": False,
                             "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 8192,
                             "initializer_range": 0.02, "intermediate_size": 28672, "max_position_embeddings": 131072,
                             "mlp_bias": False, "num_attention_heads": 64, "num_hidden_layers": 80,
                             "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
                             "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                                              "original_max_position_embeddings": 8192, "rope_type": "llama3"},
                             "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
                             "vocab_size": 128256},
}
# millions of parameters that the plan must come to
MILLIONS = {"quickstart.yaml": (1, 3), "gpt2-124m.yaml": (124, 125), "llama-1b.yaml": (1235, 1237),
            "agnews-gpt2.yaml": (124, 125), "agnews-qwen2.5-0.5b.yaml": (494, 495),
            "llama-70b-lora.yaml": (70760, 70762), "qwen3-8b-qlora.yaml": (8234, 8236),
            "qwen3-30b-a3b.yaml": (30532, 30533), "qwen2.5-7b-dpo.yaml": (7615, 7616),
            "mrpc-bert.yaml": (109, 110), "mrpc-gpt2.yaml": (124, 125)}


def prepare(folder, name):
    """Makes stand-ins for the files that the spec's comments ask the user to fetch; returns --set options that point there."""
    with open(os.path.join(ROOT, "configs", name), encoding="utf-8") as f:
        text = f.read()
    sets = []
    for key in ("train", "validation"):
        if re.search(rf"^  {key}: \S+", text, re.M):
            classifier, pairs = "task: sequence_classification" in text, "preference:" in text
            length, count = 100 if classifier else 6000, 400 if pairs else 200
            write_megatron(folder.at(key), [[1 + i % 200 for i in range(length)]] * count)
            if classifier or pairs:
                with open(folder.at(f"{key}.labels"), "wb") as f:
                    f.write(struct.pack(f"<{count}i", *((i + pairs) % 2 for i in range(count))))
            if pairs:
                with open(folder.at(f"{key}.mask"), "wb") as f:
                    f.write((bytes(1000) + b"\1" * (length - 1000)) * count)
            sets += ["--set", f"data.{key}={folder.at(key)}"]
    if match := re.search(r"^  pretrained: (\S+)", text, re.M):
        os.makedirs(folder.at("model"))
        with open(folder.at("model", "config.json"), "w", encoding="utf-8") as f:
            json.dump(PRETRAINED[match.group(1)], f)
        sets += ["--set", f"model.pretrained={folder.at('model')}"]
    return sets


def test_the_list_is_complete():
    assert CONFIGS == sorted(MILLIONS)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_dry_run(folder, name, ranks):
    path = os.path.join(ROOT, "configs", name)
    sets = prepare(folder, name)
    more = ["--local-gpus", ranks] if ranks > 1 else []
    # specs name their model configs relative to the repository's root
    os.symlink(os.path.join(ROOT, "configs"), folder.at("configs"))
    done = folder.ztrain("--config", path, "--dry-run", *more, *sets, expect=FINISHED)
    assert "warning" not in done.err
    assert "learning rates" in done.out and "parameters" in done.out


@pytest.mark.parametrize("name", CONFIGS)
def test_the_plan_has_the_right_size(folder, name):
    """The plan has the number of parameters that the model is known for."""
    os.symlink(os.path.join(ROOT, "configs"), folder.at("configs"))
    done = folder.ztrain("plan", "--config", os.path.join(ROOT, "configs", name), "--world", 4,
                         *prepare(folder, name), "--set", "zero_optimization.stage=3")
    low, high = MILLIONS[name]
    found = re.search(r"(\d+) parameters", done.out)
    assert found, done
    assert low <= int(found.group(1)) / 1e6 <= high, done


@pytest.mark.parametrize("name, device, ranks", [("llama-70b-lora.yaml", "h100", 8), ("qwen3-8b-qlora.yaml", "rtx4090", 1),
                                                 ("qwen3-30b-a3b.yaml", "h100", 8), ("qwen2.5-7b-dpo.yaml", "h100", 8)])
def test_a_run_fits_the_cards_that_its_spec_names(folder, name, device, ranks):
    done = folder.ztrain("plan", "--bytes", "--config", os.path.join(ROOT, "configs", name), "--device", device, "--world", ranks,
                         *prepare(folder, name))
    card = {"h100": 79.1, "rtx4090": 23.5}[device] * 2 ** 30
    assert 0.5 * card < plan_bytes(done.out)["device"]["total"] < card


def test_plans_count_what_a_token_meets(folder):
    plan = ["plan", "--config", os.path.join(ROOT, "configs", "qwen3-30b-a3b.yaml"), "--world", 8, *prepare(folder, "qwen3-30b-a3b.yaml")]
    assert "30532122624 parameters, 3353032704 of them active (8 of 128 experts)" in folder.ztrain(*plan).out
    speed = folder.ztrain(*plan, "--speed").out
    routing, mfu = (float(re.search(words, speed).group(1)) for words in (r"expert routing +\S+ +(\S+)", r"MFU +\S+ +(\S+)%"))
    assert routing > 0 and 5 < mfu < 60, speed  # of all experts it would be ten times as much
    assert float(re.search(r"tokens/s +\S+ +(\S+)", speed).group(1)) >= 8 * 18000, speed  # the best published: 12,040


def test_a_pair_is_planned_as_two_answers(folder):
    """Time and tokens of DPO's step are those of text with twice the batch; a reference that is scored comes on top."""
    plan = ["plan", "--speed", "--config", os.path.join(ROOT, "configs", "qwen2.5-7b-dpo.yaml"), "--world", 8,
            *prepare(folder, "qwen2.5-7b-dpo.yaml")]
    pairs = folder.ztrain(*plan).out
    text = folder.ztrain(*plan, "--set", "preference.loss=none", "--set", "checkpoint.metric=eval_loss", "--set", "train_batch_size=256",
                         "--set", "train_micro_batch_size_per_gpu=2", "--set", "data.packing=false").out
    speeds = [float(re.search(r"tokens/s +\S+ +(\S+)", out).group(1)) for out in (pairs, text)]
    assert speeds[0] == pytest.approx(speeds[1], rel=0.03)
    assert "of 1 x 2 x 8192 tokens" in pairs and "of 2 x 8192 tokens" in text
    assert "scoring the reference" in pairs and "scoring" not in text
    assert "rewards" not in folder.ztrain(*plan[:1], "--fit", *plan[2:]).err


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "quickstart.yaml"])
def test_without_the_files_a_run_says_what_is_missing(folder, name):
    os.symlink(os.path.join(ROOT, "configs"), folder.at("configs"))
    done = folder.wait(folder.start("--config", os.path.join(ROOT, "configs", name), "--set", "train.device=cpu"))
    assert done.code in (2, 3), done
    assert "data/" in done.final_error or "models/" in done.final_error, done

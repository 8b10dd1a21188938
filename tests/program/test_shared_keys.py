# SPDX-License-Identifier: Apache-2.0
"""Gemma 4's last layers read keys and values of layers before, and all layers inputs of unit 0: what these keep, and the gradients
that they add up, must not depend on stages, ranks, recomputation or offload."""

import pytest

from harness import LLAMA
from test_gated_delta import numbers

S, F = "sliding_attention", "full_attention"
MODEL = {**LLAMA, "model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"], "num_hidden_layers": 7, "head_dim": 16,
         "hidden_activation": "gelu_pytorch_tanh", "global_head_dim": 24, "num_global_key_value_heads": 1, "sliding_window": 9,
         "layer_types": [S, F, S, F, S, F, F], "hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": 70,
         "tie_word_embeddings": True, "pad_token_id": 3}
MODEL = {key: value for key, value in MODEL.items() if key not in ("rope_theta", "hidden_act")}
KINDS = {
    "shared": {"num_kv_shared_layers": 4, "use_double_wide_mlp": True},
    "k is v": {"attention_k_eq_v": True, "hidden_size_per_layer_input": 0},
    "both": {"attention_k_eq_v": True, "num_kv_shared_layers": 3, "attention_dropout": 0.1},
}
SETTINGS = {
    "plain": {}, "bf16": {"bf16": {"enabled": True}}, "fp16": {"fp16": {"enabled": True, "initial_scale_power": 8}},
    **{policy: {"activation_checkpointing": {"policy": policy}} for policy in ("norms", "mlp", "attention", "block")},
    "inputs": {"activation_checkpointing": {"policy": "block", "cpu_checkpointing": True}},
    "offload": {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
    "unclipped": {"gradient_clipping": 0.0, "optimizer": {"params": {"weight_decay_all": True}}},
}


def changes_of(kind, more, stage=0, virtual=4):
    zero = {"zero_optimization": {**more.get("zero_optimization", {}), "stage": stage}}
    return {**more, **zero, "model": {"config": {**MODEL, **KINDS[kind]}}, "gradient_accumulation_steps": None,
            "train": {"virtual_ranks": virtual, "epochs": None, "max_steps": 4}, "train_batch_size": 8,
            "train_micro_batch_size_per_gpu": 1}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_bits_are_the_same_on_any_number_of_ranks_and_at_any_stage(folder, kind, setting):
    found = []
    for ranks, stage in ((1, 0 if setting != "offload" else 1), (1, 2), (2, 2), (2, 3), (4, 1)):
        folder.train(changes_of(kind, SETTINGS[setting], stage), f"run-{ranks}-{stage}", ranks=ranks)
        found.append(numbers(folder, f"run-{ranks}-{stage}"))
    assert len(found[0]) == 4 and all(other == found[0] for other in found[1:])


@pytest.mark.parametrize("kind", KINDS)
def test_recomputation_and_offload_change_no_bit(folder, kind):
    found = {}
    for setting in ("plain", "norms", "mlp", "attention", "block", "inputs", "offload"):
        folder.train(changes_of(kind, SETTINGS[setting], 2), setting, ranks=2)
        found[setting] = numbers(folder, setting)
    assert all(found[setting] == found["plain"] for setting in found)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_that_are_checked_and_a_resumed_run(folder, kind):
    plain = changes_of(kind, {}, 2, virtual=None)
    folder.train(plain, "plain", ranks=2)
    folder.train({**plain, "train": {**plain["train"], "check_interval_steps": 1}}, "checked", ranks=2)
    assert numbers(folder, "checked") == numbers(folder, "plain")
    folder.train({**plain, "train": {**plain["train"], "max_steps": 2}}, "again", ranks=2)
    folder.train(plain, "again", ranks=2, more=["--resume", folder.run_folder("again")])
    assert numbers(folder, "again")[-2:] == numbers(folder, "plain")[-2:]

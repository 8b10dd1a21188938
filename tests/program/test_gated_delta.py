# SPDX-License-Identifier: Apache-2.0
"""Qwen 3.5's blocks have two layouts: gradients, their norms and gaps must not depend on which block came before in a bucket."""
import pytest

from harness import LLAMA, write_mask, write_megatron

MODEL = {**LLAMA, "model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], "num_hidden_layers": 4, "head_dim": 16,
         "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 6, "linear_value_head_dim": 5}
L, F = "linear_attention", "full_attention"
ORDERS = {"as published": [L, L, L, F], "in turn": [F, L, F, L]}
SETTINGS = {
    "plain": {}, "bf16": {"bf16": {"enabled": True}},
    "block": {"activation_checkpointing": {"policy": "block"}},
    "offload": {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
}


def numbers(folder, name):
    rows = folder.metrics(name).rows
    return [(row["loss"], row["grad_norm"]) for row in rows if "grad_norm" in row]


def changes_of(order, more, stage=0, virtual=4):
    zero = {"zero_optimization": {**more.get("zero_optimization", {}), "stage": stage}}
    return {**more, **zero, "model": {"config": {**MODEL, "layer_types": ORDERS[order]}}, "gradient_accumulation_steps": None,
            "train": {"virtual_ranks": virtual, "epochs": None, "max_steps": 4}, "train_batch_size": 8,
            "train_micro_batch_size_per_gpu": 1}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("order", ORDERS)
def test_the_bits_are_the_same_on_any_number_of_ranks_and_at_any_stage(folder, order, setting):
    found = []
    for ranks, stage in ((1, 0 if setting != "offload" else 1), (1, 2), (2, 2), (2, 3), (4, 1)):
        folder.train(changes_of(order, SETTINGS[setting], stage), f"run-{ranks}-{stage}", ranks=ranks)
        found.append(numbers(folder, f"run-{ranks}-{stage}"))
    assert len(found[0]) == 4 and all(other == found[0] for other in found[1:])


@pytest.mark.parametrize("order", ORDERS)
def test_recomputation_and_offload_change_no_bit(folder, order):
    found = []
    for setting in ("plain", "block", "offload"):
        folder.train(changes_of(order, SETTINGS[setting], 2), setting, ranks=2)
        found.append(numbers(folder, setting))
    assert found[1] == found[0] and found[2] == found[0]


@pytest.mark.parametrize("order", ORDERS)
def test_steps_that_are_checked_and_narrow_reductions(folder, order):
    """A step that is computed twice has the same sums; reductions in fp16 leave nothing in the gaps."""
    plain = changes_of(order, {}, 2, virtual=None)
    folder.train(plain, "plain", ranks=2)
    folder.train({**plain, "train": {**plain["train"], "check_interval_steps": 1}}, "checked", ranks=2)
    assert numbers(folder, "checked") == numbers(folder, "plain")
    folder.train({**plain, "communication_data_type": "fp16"}, "narrow", ranks=2)
    for (loss, norm), (want, length) in zip(numbers(folder, "narrow"), numbers(folder, "plain")):
        assert abs(loss - want) < 2e-3 and abs(norm / length - 1) < 0.03


@pytest.mark.parametrize("first", [1, 63, 64, 65])
def test_documents_of_a_sample_do_not_see_each_other(folder, first):
    """The loss of a second document is the same behind any first one of its length; without the mask it is not."""
    second = [(7 * i + 3) % 59 for i in range(97 - first)]
    losses = {}
    for masked in (True, False):
        for step in (5, 11):
            prefix = folder.at(f"documents-{step}")
            write_megatron(prefix, [[(step * i + step) % 59 for i in range(first)], second])
            write_mask(prefix, 97, lambda i: i > first)
            changes = {"model": {"config": {**MODEL, "layer_types": ORDERS["as published"], "max_position_embeddings": 96}},
                       "data": {"train": prefix, "validation": prefix, "seq_length": 96, "document_mask": masked},
                       "train": {"epochs": None, "max_steps": 1}, "train_batch_size": 1, "train_micro_batch_size_per_gpu": 1,
                       "gradient_accumulation_steps": None, "optimizer": {"params": {"lr": 1e-20}}}
            folder.train(changes, f"run-{masked}-{step}")
            losses[masked, step] = folder.metrics(f"run-{masked}-{step}").losses[0]
    assert losses[True, 5] == losses[True, 11] and losses[False, 5] != losses[False, 11]

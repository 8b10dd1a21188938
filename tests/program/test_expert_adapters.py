# SPDX-License-Identifier: Apache-2.0
"""LoRA on experts and routers: what test_adapters.py and its neighbours have of other matrices. tests/golden/check_adapters.py compares
the numbers with PEFT's."""
import json

import pytest

from harness import LLAMA, USAGE, documents, merged, write_megatron
from test_adapters import ADAPTER, OFFLOAD, base_of, exported, lora, numbers_of, peft_cases, result, weights
from test_quantized_base import QLORA, floats, nf4_values, write_tensors
from virtual_case import DTYPES, digest_of

QWEN2 = {**LLAMA, "model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"], "num_experts": 5, "num_experts_per_tok": 2,
         "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40, "mlp_only_layers": [0], "num_hidden_layers": 2}
QWEN3 = {**{key: value for key, value in QWEN2.items() if "shared" not in key}, "model_type": "qwen3_moe",
         "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 8}
MIXTRAL = {**{key: value for key, value in QWEN3.items() if key != "num_experts"}, "model_type": "mixtral", "num_local_experts": 5,
           "architectures": ["MixtralForCausalLM"]}
BOTH = ["experts.gate_up_proj", "experts.down_proj"]
PEFT = {"peft_type": "LORA", "r": 3, "lora_alpha": 7, "target_parameters": [*BOTH, "gate.weight"],
        "target_modules": ["v_proj", "shared_expert.gate_proj", "shared_expert_gate"], "rank_pattern": {"down_proj": 2}}


def on_experts(folder, changes=None, adapter=None, config=QWEN2):
    return lora(folder, changes, PEFT if adapter is None else adapter, config)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [1, 3])
def test_stages_and_places_have_the_same_bits(folder, dtype, ranks):
    places = [{"stage": 0}, {"stage": 2}, {"stage": 3, "offload_param": {"device": "cpu"}, **OFFLOAD}]
    runs = [result(folder, on_experts(folder, {"zero_optimization": zero, "gradient_accumulation_steps": 1, **DTYPES[dtype]}), f"run-{i}",
                   ranks=ranks) for i, zero in enumerate(places)]
    assert all(other == runs[0] for other in runs[1:])


def test_a_rank_without_tokens_sends_no_gradient(folder):
    """One unit of a block's experts has adapters, the other has none."""
    write_megatron(folder.at("train"), [document if i % 4 < 3 else [0] for i, document in enumerate(documents(40))])
    folder.data(10, seed=2, name="validation")
    changes = {"data": {"packing": False, "shuffle": False}, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": None,
               "train_batch_size": 2, "train": {"max_steps": 8, "epochs": None}}
    found = []
    for ranks, stage in ((1, 0), (2, 0), (2, 2)):
        name = f"run-{ranks}-{stage}"
        folder.train(on_experts(folder, {**changes, "zero_optimization": {"stage": stage}},
                                {"peft_type": "LORA", "r": 3, "target_modules": ["q_proj"], "target_parameters": [BOTH[1]]}), name, ranks=ranks)
        found.append(folder.metrics(name).losses)
    assert found[1] == pytest.approx(found[0], rel=1e-6) and found[2] == pytest.approx(found[0], rel=1e-6)


def test_recomputation_changes_no_bit(folder):
    runs = [result(folder, on_experts(folder, {"activation_checkpointing": {"policy": policy}, "zero_optimization": {"stage": 3}}),
                   f"run-{policy}", ranks=2) for policy in ("none", "norms", "mlp", "attention", "block")]
    assert all(other == runs[0] for other in runs[1:])


def test_muon_takes_each_experts_matrices(folder):
    changes = {"gradient_accumulation_steps": 1, "optimizer": {"type": "Muon"}}
    runs = [result(folder, on_experts(folder, merged(changes, {"zero_optimization": {"stage": stage}})), f"run-{stage}", ranks=2)
            for stage in (0, 3)]
    assert runs[0] == runs[1]


def test_virtual_ranks(folder):
    found = []
    for ranks in (1, 2):
        folder.train(on_experts(folder, {"train": {"virtual_ranks": 2}, "gradient_accumulation_steps": None, "train_batch_size": 8,
                                         "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}), f"run-{ranks}", ranks=ranks)
        found.append((numbers_of(folder, f"run-{ranks}"), digest_of(folder.latest(f"run-{ranks}"))[0], weights(folder, f"run-{ranks}")))
    assert found[0] == found[1]


def test_a_resumed_run_has_the_same_bits(folder):
    changes = on_experts(folder, {"gradient_accumulation_steps": 1, "optimizer": {"type": "AdamW8bit"}})
    whole = result(folder, changes, "whole", ranks=2)
    folder.train(changes, "cut", ranks=2, sets=["train.max_steps=2", "zero_optimization.stage=1"])
    folder.train(changes, "cut", ranks=2, more=["--resume", folder.run_folder("cut")], sets=["zero_optimization.stage=3"])
    assert (numbers_of(folder, "cut"), weights(folder, "cut")) == whole


def test_fresh_adapters_begin_at_the_bases_loss(folder):
    """In files A is (r E, in) and B (out, r E), with PEFT's names: gate_up_proj has the inner of two wrappers."""
    still = ["train.max_steps=1", "optimizer.params.lr=0"]
    folder.train(merged(on_experts(folder), {"peft": None}), "base", sets=still[:1])
    folder.train(on_experts(folder), sets=still)
    assert folder.metrics().losses == folder.metrics("base").losses
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("adapter"))
    tensors = peft_cases.golden.read_safetensors(folder.at("adapter", ADAPTER[1]))
    sizes = {"experts.base_layer.lora_A": [15, 32], "experts.base_layer.lora_B": [48, 15], "experts.lora_A": [10, 24],
             "experts.lora_B": [32, 10], "gate.lora_A": [3, 32], "gate.lora_B": [5, 3]}
    for name, shape in sizes.items():
        assert tensors[f"base_model.model.model.layers.1.mlp.{name}.weight"][0] == shape
    with open(folder.at("adapter", ADAPTER[0]), encoding="utf-8") as f:
        assert sorted(json.load(f)["target_parameters"]) == ["mlp.experts.down_proj", "mlp.experts.gate_up_proj", "mlp.gate.weight"]


@pytest.mark.parametrize("config, adapter", [(QWEN2, None), (QWEN3, {"r": 2, "target_modules": "all-linear"})], ids=["qwen2", "qwen3"])
def test_an_export_starts_another_run(folder, config, adapter):
    """And the merged folder has its loss and its samples."""
    folder.train(on_experts(folder, {}, adapter, config))
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("adapter"))
    again = on_experts(folder, {"model": {"adapter": folder.at("adapter")}, "peft": None}, adapter, config)
    folder.train(again, "again", ranks=2, sets=["train.max_steps=1", "optimizer.params.lr=0", "zero_optimization.stage=3"])
    assert exported(folder, "again") == exported(folder)
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("merged"), "--merge", "--dtype", "fp32")
    folder.train(merged(again, {"model": {"pretrained": folder.at("merged"), "adapter": None}}), "after",
                 sets=["train.max_steps=1", "optimizer.params.lr=0", "train.eval_interval_steps=1"])
    ours, theirs = (folder.metrics(name).evaluations[-1]["eval_loss"] for name in ("run", "after"))
    assert abs(ours - theirs) < 1e-5
    said = [folder.ztrain("sample", place, "--prompt-tokens", "3,4,5", "--max-tokens", "12", "--device", "cpu", "--dtype", "fp32").out
            for place in (folder.run_folder(), folder.at("merged"), base_of(folder, config))]
    assert said[0] == said[1] != said[2]


def test_several_on_one_base(folder):
    items = {"experts": {"r": 2, "target_parameters": BOTH}, "beside": {"r": 3, "target_modules": ["q_proj", "shared_expert_gate"]},
             "router": {"r": 2, "target_parameters": ["gate.weight", "experts.down_proj"], "target_modules": ["shared_expert.down_proj"]}}
    changes = {"gradient_accumulation_steps": 1, "zero_optimization": {"stage": 3}}
    together = {**on_experts(folder, changes), "peft": [{"name": name, **item} for name, item in items.items()]}
    folder.train(together, "all", ranks=2)
    for name, item in items.items():
        folder.train(on_experts(folder, changes, item), name, ranks=2)
        assert (numbers_of(folder, f"all/{name}"), weights(folder, f"all/{name}")) == (numbers_of(folder, name), weights(folder, name))


def test_experts_and_routers_are_not_quantized(folder):
    """As with bitsandbytes, which quantizes linear layers."""
    def is_linear(name):
        return name.endswith(("_proj.weight", "expert_gate.weight")) and ".experts." not in name
    base = peft_cases.golden.read_safetensors(base_of(folder, QWEN2) + "/model.safetensors")
    with open(base_of(folder, QWEN2) + "/config.json", encoding="utf-8") as f:
        config = json.load(f)
    values = write_tensors(folder.at("values"), {name: ("F32", shape, floats(nf4_values(x) if is_linear(name) else x))
                                                 for name, (shape, x) in base.items()}, config)
    expected = result(folder, on_experts(folder, {"model": {"pretrained": values}}), "values")
    changes = {"model": {"quantization_config": QLORA}}
    assert expected == result(folder, on_experts(folder, changes), "run")
    assert expected == result(folder, on_experts(folder, merged(changes, {"zero_optimization": {"stage": 3}})), "shards", ranks=1)


@pytest.mark.parametrize("config, change, words", [
    (QWEN2, {"lora_dropout": 0.1}, "'peft.lora_dropout' is for modules, and 'model.layers.1.mlp.gate.weight' is a parameter"),
    (QWEN2, {"target_parameters": ["norm.weight"]}, "matches 'model.norm.weight', which is not a matrix of products; hint: [experts.gate_up_proj"),
    (QWEN2, {"target_parameters": ["v_proj.weight"]}, "is both in peft.target_modules and in peft.target_parameters"),
    (QWEN2, {"target_parameters": ["none"], "target_modules": ["w1"]}, "hint: experts are parameters: target_parameters: [experts.gate_up"),
    (QWEN2, {"target_modules": ["gate"]}, "matches 'model.layers.1.mlp.gate', which is not a matrix"),
    (QWEN2, {"modules_to_save": ["experts"]}, "'peft.modules_to_save' has 'model.layers.1.mlp.experts', which holds 'model.layers.1.mlp.experts"
     ".gate_up_proj': experts are not saved"),
    (MIXTRAL, {"modules_to_save": ["gate"]}, "which holds 'model.layers.0.mlp.gate.weight': this matrix is not saved"),
    (QWEN2, {"modules_to_save": ["gate"]}, "which holds 'model.layers.1.mlp.gate.weight': this matrix is not saved"),  # it has an A and a B
    (QWEN3, {"target_modules": ["up_proj"]}, "has up_proj without gate_proj, which are one parameter of the experts, gate_up_proj"),
    (LLAMA, {}, "'peft.target_parameters' is for models with experts; hint: name modules in target_modules"),
])
def test_what_cannot_be_is_refused_before_the_start(folder, config, change, words):
    done = folder.train(on_experts(folder, {}, {**PEFT, **change}, config), more=["--dry-run"], expect=USAGE)
    assert words in done.err, done

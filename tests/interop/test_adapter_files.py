# SPDX-License-Identifier: Apache-2.0
"""The adapters that ztrain exports, PEFT loads, with the same loss, and merges into the same bytes; those that PEFT saves, ztrain
continues from and samples.

Needs torch, transformers and peft: .ci/run makes a virtual environment for it.
"""
import json
import os
import struct

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model

from harness import DATA, GPT2, LLAMA, SEQUENCE, USAGE, VOCABULARY, read_safetensors, write_megatron

pytestmark = pytest.mark.interop

TIED = {**LLAMA, "tie_word_embeddings": True}
PHI3 = {**LLAMA, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "pad_token_id": None, "bos_token_id": None,
        "eos_token_id": None}
QWEN3_MOE = {**LLAMA, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 2,
             "moe_intermediate_size": 24, "head_dim": 8, "mlp_only_layers": [0]}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2}
GRANITE_MOE = {**MIXTRAL, "model_type": "granitemoe", "architectures": ["GraniteMoeForCausalLM"]}
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = {  # config, dtype of the base's files, peft
    "llama": (LLAMA, "bfloat16", {"r": 4, "lora_alpha": 8, "target_modules": LINEAR}),
    "llama-fp32": (LLAMA, "float32", {"r": 3, "lora_alpha": 5, "use_rslora": True, "target_modules": "all-linear"}),
    "llama-fp16": (LLAMA, "float16", {"r": 4, "target_modules": ["q_proj", "down_proj"], "rank_pattern": {"q_proj": 2},
                                      "alpha_pattern": {"down_proj": 32}}),
    "llama-embeddings": (LLAMA, "bfloat16", {"r": 4, "lora_alpha": 32, "target_modules": ["embed_tokens", "lm_head", "q_proj"],
                                             "modules_to_save": ["norm"]}),
    "llama-head": (LLAMA, "bfloat16", {"r": 4, "target_modules": ["v_proj"], "modules_to_save": ["lm_head"]}),
    "tied": (TIED, "bfloat16", {"r": 4, "lora_alpha": 32, "target_modules": ["embed_tokens", "q_proj"]}),
    "tied-head": (TIED, "bfloat16", {"r": 4, "lora_alpha": 32, "target_modules": ["lm_head", "q_proj"]}),
    "tied-save": (TIED, "bfloat16", {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"],
                                     "ensure_weight_tying": True}),
    "gpt2": (GPT2, "float32", {"r": 4, "lora_alpha": 16, "target_modules": ["c_attn", "c_proj", "c_fc"]}),
    "gpt2-embeddings": (GPT2, "bfloat16", {"r": 4, "lora_alpha": 16, "target_modules": ["wte", "c_attn"]}),
    "experts": (QWEN3_MOE, "bfloat16", {"r": 3, "target_parameters": ["experts.gate_up_proj", "experts.down_proj", "mlp.down_proj.weight"]}),
    "experts-all-linear": (QWEN3_MOE, "float32", {"r": 2, "lora_alpha": 6, "target_modules": "all-linear"}),
    "experts-mixtral": (MIXTRAL, "float16", {"r": 4, "target_modules": ["w1", "w3", "gate", "v_proj"], "rank_pattern": {"gate.weight": 2}}),
    "experts-granite": (GRANITE_MOE, "bfloat16", {"r": 4, "target_modules": ["v_proj"], "use_rslora": True,
                                                  "target_parameters": ["layers.1.block_sparse_moe.experts.down_proj", "router.weight"]}),
    "phi3": (PHI3, "bfloat16", {"r": 4, "lora_alpha": 16, "target_modules": ["qkv_proj", "gate_up_proj"]}),
}


def make_base(folder, config, dtype):
    torch.manual_seed(5)
    kind = getattr(transformers, config["architectures"][0])
    kind(kind.config_class(**config)).to(getattr(torch, dtype)).save_pretrained(folder.at("base"))
    return kind


def loss_of(model, folder):
    with open(folder.at("validation.bin"), "rb") as f:
        raw = f.read()
    tokens = struct.unpack(f"<{len(raw) // 2}H", raw)
    rows = torch.tensor([tokens[i:i + SEQUENCE + 1] for i in range(0, len(tokens) - SEQUENCE, SEQUENCE)])
    with torch.no_grad():
        logits = model.float().eval()(rows[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), rows[:, 1:].reshape(-1)).item()


def save_adapter(folder, kind, peft):
    """An adapter as PEFT saves it, with values everywhere; returns the model."""
    model = get_peft_model(kind.from_pretrained(folder.at("base"), dtype="auto").float(),
                           LoraConfig(**peft, task_type="CAUSAL_LM"))
    torch.manual_seed(9)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.copy_(torch.randn_like(weight) * 0.2)
    model.save_pretrained(folder.at("theirs"))
    return model


def merges_like_peft(folder, kind, changed):
    """Whether the merged folder is the same as PEFT's, byte by byte. An adapter on a tied matrix: PEFT changes the embedding and the
    head, ztrain only `changed`, and leaves the other one as it was."""
    base = kind.from_pretrained(folder.at("base"), dtype="auto")
    PeftModel.from_pretrained(base, folder.at("adapter")).merge_and_unload().save_pretrained(folder.at("peft-merged"))
    ours, theirs, before = (read_safetensors(folder.at(place, "model.safetensors")) for place in ("merged", "peft-merged", "base"))
    if changed:
        embedding = next(name for name in before if name.endswith(("embed_tokens.weight", "wte.weight")))
        (name,) = {"lm_head.weight", embedding} - {changed}
        assert ours.pop(name) == before[embedding]
        assert ours.pop(changed) == theirs.pop(embedding)
    assert ours.keys() == theirs.keys() and [name for name in ours if ours[name] != theirs[name]] == []


@pytest.mark.parametrize("case", CASES)
def test_peft_loads_and_merges_an_export(folder, case):
    config, dtype, peft = CASES[case]
    kind = make_base(folder, config, dtype)
    done = folder.train({"model": {"config": None, "pretrained": folder.at("base")}, "peft": peft,
                         "optimizer": {"params": {"lr": 0.03}}})
    said = folder.ztrain("export", folder.run_folder(), "--out", folder.at("adapter")).out
    assert ("vLLM refuses" in said) == ("modules_to_save" in peft), said
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("merged"), "--merge")
    theirs = PeftModel.from_pretrained(kind.from_pretrained(folder.at("base"), dtype="auto").float(), folder.at("adapter"))
    found = folder.metrics().evaluations[-1]["eval_loss"]
    assert loss_of(theirs, folder) == pytest.approx(found, abs=2e-5), done
    for name, (kept, _, _) in read_safetensors(folder.at("adapter", "adapter_model.safetensors")).items():
        assert kept == "F32", name
    tied = {"tied": "model.embed_tokens.weight", "tied-head": "lm_head.weight", "gpt2-embeddings": "transformer.wte.weight"}
    merges_like_peft(folder, kind, tied.get(case))
    again = kind.from_pretrained(folder.at("merged"), dtype="auto")
    assert again.dtype == getattr(torch, dtype)
    assert loss_of(again, folder) == pytest.approx(found, abs={"float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}[dtype])


@pytest.mark.parametrize("case", CASES)
def test_a_run_continues_from_an_adapter_of_peft(folder, case):
    config, dtype, peft = CASES[case]
    kind = make_base(folder, config, dtype)
    theirs = save_adapter(folder, kind, peft)
    folder.train({"model": {"config": None, "pretrained": folder.at("base"), "adapter": folder.at("theirs")},
                  "train": {"epochs": None, "max_steps": 1}, "optimizer": {"params": {"lr": 0.0, "weight_decay": 0.0}}})
    assert folder.metrics().evaluations[-1]["eval_loss"] == pytest.approx(loss_of(theirs, folder), abs=2e-5)
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("ours"))
    ours = read_safetensors(folder.at("ours", "adapter_model.safetensors"))
    saved = read_safetensors(folder.at("theirs", "adapter_model.safetensors"))
    assert ours == {name: value for name, value in saved.items() if not name.endswith(".base_layer.weight")}


def test_sample_reads_an_adapter_of_peft(folder):
    config, dtype, peft = CASES["llama"]
    kind = make_base(folder, config, dtype)
    theirs = save_adapter(folder, kind, peft).eval()
    ids = theirs.generate(input_ids=torch.tensor([[3, 5, 7]]), max_new_tokens=12, do_sample=False)[0, 3:].tolist()
    arguments = ("--prompt-tokens", "3,5,7", "--max-tokens", 12, "--dtype", "fp32")
    assert folder.ztrain("sample", folder.at("theirs"), *arguments).out.strip() == ",".join(map(str, ids))
    os.rename(folder.at("base"), folder.at("moved"))
    done = folder.ztrain("sample", folder.at("theirs"), *arguments, expect=DATA)
    assert "is not there" in done.final_error and "--base DIR" in done.final_error
    done = folder.ztrain("sample", folder.at("theirs"), "--base", folder.at("moved"), *arguments)
    assert done.out.strip() == ",".join(map(str, ids))
    done = folder.ztrain("sample", folder.at("theirs"), "--best", *arguments, expect=USAGE)
    assert "is a PEFT folder" in done.final_error


BERT = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": VOCABULARY, "hidden_size": 32,
        "intermediate_size": 56, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
        "initializer_range": 0.1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 3}
CLASSIFIERS = {  # the base's config
    "llama": {**LLAMA, "architectures": ["LlamaForSequenceClassification"], "num_labels": 3, "pad_token_id": 0},
    "llama-new-head": {**LLAMA, "pad_token_id": 0},
    "bert": BERT,
}


@pytest.mark.parametrize("case", CLASSIFIERS)
def test_a_classifier(folder, case):
    """Its head is trained as a whole, and is a part of the adapter."""
    config = CLASSIFIERS[case]
    make_base(folder, config, "float32")
    for name, count in (("train", 36), ("validation", 31)):
        documents = [[1 + (i * 7 + k) % 60 for k in range(1 + i % SEQUENCE)] for i in range(count)]
        write_megatron(folder.at(name), documents)
        with open(folder.at(name + ".labels"), "wb") as f:
            f.write(struct.pack(f"<{count}i", *(len(document) % 3 for document in documents)))
    folder.train({"model": {"task": "sequence_classification", "config": None, "pretrained": folder.at("base")},
                  "data": {"packing": False}, "peft": {"r": 4}, "optimizer": {"params": {"lr": 0.03}}})
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("adapter"))
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("merged"), "--merge")
    with open(folder.at("adapter", "adapter_config.json"), encoding="utf-8") as f:
        assert json.load(f)["task_type"] == "SEQ_CLS"
    kind = transformers.AutoModelForSequenceClassification
    base = kind.from_pretrained(folder.at("base"), num_labels=3)
    model = PeftModel.from_pretrained(base, folder.at("adapter")).eval()
    ids = torch.zeros(31, SEQUENCE, dtype=torch.long)
    for row, document in enumerate(documents):
        ids[row, :len(document)] = torch.tensor(document)
    with torch.no_grad():
        logits = model(ids, attention_mask=(ids != 0).long()).logits
    targets = torch.tensor([len(document) % 3 for document in documents])
    loss = torch.nn.functional.cross_entropy(logits, targets).item()
    assert folder.metrics().evaluations[-1]["eval_loss"] == pytest.approx(loss, abs=2e-5)
    merged = kind.from_pretrained(folder.at("merged")).eval()
    model = model.merge_and_unload().state_dict()
    for name, weight in merged.state_dict().items():
        assert torch.equal(weight, model[name]), name
    assert "is a classifier's adapter" in folder.ztrain("sample", folder.at("adapter"), "--prompt-tokens", 1, expect=USAGE).final_error

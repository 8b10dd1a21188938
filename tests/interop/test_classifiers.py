# SPDX-License-Identifier: Apache-2.0
"""A classifier that ztrain exports, transformers loads without missing keys and predicts with alike; and the other way round.

Needs torch and transformers: .ci/run makes a virtual environment for it.
"""
import json
import os
import struct

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForSequenceClassification

from harness import GPT2, LLAMA, SEQUENCE, write_megatron

pytestmark = pytest.mark.interop

FAMILIES = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "phi3": {**LLAMA, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": 0.5},
    "smollm3": {**LLAMA, "model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"], "no_rope_layer_interval": 2},
    "gemma2": {**LLAMA, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "head_dim": 16, "sliding_window": 9,
               "attn_logit_softcapping": 2.0, "final_logit_softcapping": 0.5, "bos_token_id": None, "eos_token_id": None},
    "gemma3": {**LLAMA, "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "head_dim": 16,
               "sliding_window": 9, "sliding_window_pattern": 2, "bos_token_id": None, "eos_token_id": None},
    "qwen3": {**LLAMA, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 16},
}
BERT = {"model_type": "bert", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 3,
        "num_attention_heads": 4, "max_position_embeddings": 64, "initializer_range": 0.1, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0}
FAMILIES["bert"] = BERT
TASK = {"task": "sequence_classification"}


def write_documents(folder, name, count, seed):
    """Documents of 1 to SEQUENCE tokens other than 0, which pads, with one of three labels."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, SEQUENCE + 1, (count,), generator=random).tolist()
    docs = [torch.randint(1, 60, (n,), generator=random).tolist() for n in lengths]
    labels = [sum(doc) % 3 for doc in docs]
    write_megatron(folder.at(name), docs)
    with open(folder.at(name + ".labels"), "wb") as f:
        f.write(struct.pack(f"<{count}i", *labels))
    return docs, labels


def scores(model, docs, labels):
    """Mean loss, accuracy, and the share of samples that rounding may predict otherwise, on right-padded documents."""
    ids = torch.zeros(len(docs), SEQUENCE, dtype=torch.long)
    for row, doc in enumerate(docs):
        ids[row, :len(doc)] = torch.tensor(doc)
    with torch.no_grad():
        logits = model(ids, attention_mask=(ids != 0).long()).logits
    targets, best = torch.tensor(labels), logits.topk(2).values
    ties = (best[:, 0] - best[:, 1] < 1e-4).float().mean().item()
    accuracy = (logits.argmax(-1) == targets).float().mean().item()
    return torch.nn.functional.cross_entropy(logits, targets).item(), accuracy, ties


def load(path):
    model, info = AutoModelForSequenceClassification.from_pretrained(path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model.eval()


def last_evaluation(folder, name="run"):
    with open(os.path.join(folder.run_folder(name), "metrics.jsonl"), encoding="utf-8") as f:
        return [row for row in map(json.loads, f) if "eval_loss" in row][-1]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_export_loads_and_predicts_alike(folder, family):
    write_documents(folder, "train", 36, seed=1)
    docs, labels = write_documents(folder, "validation", 31, seed=2)
    folder.train({"model": {**TASK, "config": {**FAMILIES[family], "pad_token_id": 0}}, "data": {"packing": False}})
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("out"))
    loss, accuracy, ties = scores(load(folder.at("out")), docs, labels)
    row = last_evaluation(folder)
    assert abs(row["eval_loss"] - loss) < 1e-5 and abs(row["accuracy"] - accuracy) <= ties + 1e-6


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_what_transformers_saves_is_read(folder, family):
    """A learning rate of nearly 0 leaves the weights as they were read."""
    write_documents(folder, "train", 36, seed=1)
    docs, labels = write_documents(folder, "validation", 31, seed=2)
    torch.manual_seed(5)
    config = {k: v for k, v in FAMILIES[family].items() if k != "architectures"}
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(**config, pad_token_id=0, num_labels=3)).eval()
    model.save_pretrained(folder.at("saved"))
    folder.train({"model": {**TASK, "config": None, "pretrained": folder.at("saved")}, "data": {"packing": False},
                  "optimizer": {"params": {"lr": 1e-12, "weight_decay": 0.0}}})
    loss, accuracy, ties = scores(model, docs, labels)
    row = last_evaluation(folder)
    assert abs(row["eval_loss"] - loss) < 1e-5 and abs(row["accuracy"] - accuracy) <= ties + 1e-6


@pytest.mark.parametrize("name", ["BertModel", "BertForMaskedLM", "BertForPreTraining"])
def test_folders_of_pretraining_are_starts(folder, name):
    """The blocks are those that transformers saved, to a learning rate of nearly 0; the export has nothing missing."""
    write_documents(folder, "train", 36, seed=1)
    docs, labels = write_documents(folder, "validation", 31, seed=2)
    torch.manual_seed(6)
    model = getattr(transformers, name)(AutoConfig.for_model(**BERT))
    model.save_pretrained(folder.at("saved"))
    folder.train({"model": {**TASK, "config": None, "pretrained": folder.at("saved")}, "data": {"packing": False},
                  "optimizer": {"params": {"lr": 1e-12, "weight_decay": 0.0}}})
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("out"))
    exported = load(folder.at("out"))
    body = model if name == "BertModel" else model.bert
    for key, value in body.state_dict().items():
        assert torch.allclose(exported.bert.state_dict()[key], value, atol=1e-6), key
    assert (name == "BertForMaskedLM") == (body.pooler is None)
    loss, _, _ = scores(exported, docs, labels)
    assert abs(last_evaluation(folder)["eval_loss"] - loss) < 1e-5

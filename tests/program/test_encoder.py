# SPDX-License-Identifier: Apache-2.0
"""BERT as a classifier: the same losses at every stage and with every way of saving memory, folders of pretraining, refusals."""
import json
import os
import random
import struct

import pytest

from harness import DATA, SEQUENCE, USAGE, VOCABULARY, read_safetensors, write_megatron

BERT = {"model_type": "bert", "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 4,
        "num_attention_heads": 4, "max_position_embeddings": 32, "initializer_range": 0.1, "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1}
TASK = {"model": {"task": "sequence_classification", "config": BERT}, "data": {"packing": False}}


def spec(config=None, pretrained=None, **changes):
    model = {"pretrained": pretrained, "config": None} if pretrained else {"config": {**BERT, **(config or {})}}
    return {**TASK, "model": {**TASK["model"], **model}, **changes}


def write_pairs(folder, name, count, seed):
    """Documents of two texts whose tokens modulo 3 are mostly their label."""
    rng = random.Random(seed)
    labels = [rng.randrange(3) for _ in range(count)]
    docs = [[(rng.randrange(1, 12) * 3 + label) if rng.random() < 0.8 else rng.randrange(1, VOCABULARY)
             for _ in range(rng.randrange(2, SEQUENCE + 1))] for label in labels]
    write_megatron(folder.at(name), docs)
    with open(folder.at(f"{name}.labels"), "wb") as f:
        f.write(struct.pack(f"<{count}i", *labels))
    with open(folder.at(f"{name}.types"), "wb") as f:
        for doc in docs:
            first = rng.randrange(1, len(doc) + 1)
            f.write(bytes([0] * first + [1] * (len(doc) - first)))


@pytest.fixture
def pairs(folder):
    write_pairs(folder, "train", 48, seed=1)
    write_pairs(folder, "validation", 19, seed=2)
    return folder


def numbers(folder, name):
    metrics = folder.metrics(name)
    return metrics.losses, [(row["eval_loss"], row["accuracy"], row["f1"]) for row in metrics.evaluations]


MEMORY = {
    "stage 1": (["zero_optimization.stage=1"], 2),
    "stage 2": (["zero_optimization.stage=2"], 2),
    "stage 3": (["zero_optimization.stage=3"], 2),
    "offload": (["zero_optimization.stage=3", "zero_optimization.offload_optimizer.device=cpu",
                 "zero_optimization.offload_param.device=cpu"], 2),
    **{policy: ([f"activation_checkpointing.policy={policy}"], 2) for policy in ("norms", "mlp", "attention", "block")},
    "inputs": (["activation_checkpointing.policy=block", "activation_checkpointing.cpu_checkpointing=true"], 2),
}


def test_saving_memory_changes_no_bit_and_types_matter(pairs):
    """With dropout in all of its places."""
    pairs.train(spec(), name="whole", ranks=2)
    whole = numbers(pairs, "whole")
    assert len(whole[0]) > 2 and len(set(whole[0])) == len(whole[0]) and whole[1]
    for name, (sets, ranks) in MEMORY.items():
        pairs.train(spec(), name=name.replace(" ", "-"), ranks=ranks, sets=sets)
        assert numbers(pairs, name.replace(" ", "-")) == whole, name
    # a dropped rate, and a text without its second part, give other losses
    pairs.train(spec({"classifier_dropout": 0.0}), name="head", ranks=2)
    assert numbers(pairs, "head")[0][0] != whole[0][0]
    os.unlink(pairs.at("train.types"))
    pairs.train(spec(), name="single", ranks=2)
    assert numbers(pairs, "single")[0][0] != whole[0][0]


def test_a_resumed_run_continues_bit_for_bit(pairs):
    two = {"train": {"epochs": 2}}
    pairs.train(spec(**two), name="whole")
    pairs.train(spec(train={"epochs": 2, "max_steps": 5}), name="part")
    pairs.train(spec(**two), name="part", more=["--resume", pairs.run_folder("part")])
    assert numbers(pairs, "part")[0] == numbers(pairs, "whole")[0]
    assert numbers(pairs, "part")[1][-1] == numbers(pairs, "whole")[1][-1]
    done = pairs.train(spec({"hidden_act": "gelu_new"}, **two), name="part", more=["--resume", pairs.run_folder("part")],
                       expect=USAGE)
    assert "hidden_act" in done.err and "gelu_new" in done.err


def write_as(path, tensors):
    """Writes {name: (dtype, shape, bytes)} as a safetensors file."""
    header, blob = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(blob), len(blob) + len(raw)]}
        blob += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + blob)


def test_folders_of_pretraining_are_starts(pairs):
    """BertForPreTraining as bert-base-uncased is: old names of norms, heads of pretraining; BertModel without prefix;
    BertForMaskedLM, which has no pooler."""
    pairs.train(spec(train={"max_steps": 1}), name="first")
    pairs.ztrain("export", pairs.run_folder("first"), "--out", pairs.at("hf"))
    full = read_safetensors(pairs.at("hf", "model.safetensors"))
    with open(pairs.at("hf", "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    assert config["architectures"] == ["BertForSequenceClassification"]
    for key in ("id2label", "label2id"):
        del config[key]
    body = {n: t for n, t in full.items() if n.startswith("bert.")}
    head = {"cls.predictions.bias": ("F32", [4], bytes(16)), "cls.seq_relationship.weight": ("F32", [2, 32], bytes(256)),
            "bert.embeddings.position_ids": ("I64", [1, 32], bytes(256))}
    old = {n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
           for n, t in body.items()}
    folders = {"BertForPreTraining": {**old, **head}, "BertModel": {n.removeprefix("bert."): t for n, t in body.items()},
               "BertForMaskedLM": {**{n: t for n, t in body.items() if ".pooler." not in n}, **head}}
    losses, said = {}, {}
    for name, tensors in folders.items():
        os.makedirs(pairs.at(name + "-hf"))
        with open(pairs.at(name + "-hf", "config.json"), "w", encoding="utf-8") as f:
            json.dump({**config, "architectures": [name]}, f)
        write_as(pairs.at(name + "-hf", "model.safetensors"), tensors)
        done = pairs.train(spec(pretrained=pairs.at(name + "-hf")), name=name)
        losses[name], said[name] = pairs.metrics(name).losses, done.out
        assert "the head 'classifier' starts from random values" in done.out
    assert losses["BertForPreTraining"] == losses["BertModel"] != losses["BertForMaskedLM"]
    assert "left out the heads of pretraining" in said["BertForPreTraining"] and "2 tensors" in said["BertForPreTraining"]
    assert "left out" not in said["BertModel"] and "has no pooler" not in said["BertModel"]
    assert "has no pooler: 'bert.pooler' starts from random values" in said["BertForMaskedLM"]
    adapter = {**spec(pretrained=pairs.at("BertForMaskedLM-hf")), "peft": {"r": 2}}
    done = pairs.train(adapter, name="adapter", expect=DATA)
    assert "has no pooler, and a random one would be frozen; hint: peft.modules_to_save: [pooler]" in done.err
    pairs.train({**adapter, "peft": {"r": 2, "modules_to_save": ["pooler"]}}, name="adapter")
    # an unknown tensor is still an error, and a classifier's folder must have its head
    write_as(pairs.at("BertModel-hf", "model.safetensors"), {**folders["BertModel"], "other.weight": ("F32", [1], bytes(4))})
    done = pairs.train(spec(pretrained=pairs.at("BertModel-hf")), name="other", expect=DATA)
    assert "tensor 'other.weight' is not part of this model" in done.err
    write_as(pairs.at("hf", "model.safetensors"), {n: t for n, t in full.items() if n != "classifier.bias"})
    done = pairs.train(spec(pretrained=pairs.at("hf")), name="lost", expect=DATA)
    assert "tensor 'classifier.bias' is missing" in done.err


def test_what_is_refused(pairs):
    done = pairs.train({"model": {"config": BERT}}, expect=USAGE)
    assert "model_type 'bert' looks both ways, so it cannot be trained as a causal language model" in done.err
    assert "hint: model.task: sequence_classification" in done.err
    done = pairs.train(spec({"type_vocab_size": 1}), expect=DATA)
    assert "the data hold pairs of texts, but the model has one token type" in done.err
    done = pairs.train(spec({"max_position_embeddings": 8}), expect=USAGE)
    assert "longer than the model's 8 positions" in done.err


def test_the_plan_walks_through_the_model(pairs):
    path = pairs.spec(spec())
    out = pairs.ztrain("plan", "--config", path, "--speed", "--device", "h100", "--set", "bf16.enabled=true").out
    assert "attention forward" in out and "head GEMMs" in out and "norms" in out
    assert "looking both ways" not in out, "cuDNN's plans are bidirectional as well"

# SPDX-License-Identifier: Apache-2.0
"""ztrain sample: what a trained model says next, against transformers' generate (tests/golden/generate.json)."""
import json
import os
import re
import shutil
import struct

import pytest

from harness import CHECKPOINT, DATA, DEVICE, LLAMA, ROOT, USAGE

GOLDEN = os.path.join(ROOT, "tests", "golden")
with open(os.path.join(GOLDEN, "generate.json"), encoding="utf-8") as golden:
    CASES = json.load(golden)["cases"]
HALF = 0.05  # logits that differ by more than this are in the same order in bf16


def commas(tokens):
    return ",".join(map(str, tokens))


def sample(folder, model, prompt, *more, **expectations):
    done = folder.ztrain("sample", model, "--prompt-tokens", commas(prompt), "--device", "cpu", *more, **expectations)
    return done.out if done.code else [int(token) for token in done.out.strip().split(",")]


@pytest.mark.parametrize("name", sorted({case["case"] for case in CASES}))
def test_greedy_as_transformers_generates(folder, name):
    model = os.path.join(GOLDEN, name)
    for case in (case for case in CASES if case["case"] == name):
        # to the end of the context, where RoPE does not depend on the number of tokens
        most = len(case["tokens"]) if name in ("phi3-longrope", "dynamic-rope") else 1000
        for dtype in ["fp32"] + ["bf16"] * (case["margin"] > HALF):
            assert sample(folder, model, case["prompt"], "--max-tokens", most, "--dtype", dtype) == case["tokens"]


def test_a_text_ends_with_the_end_token(folder):
    case = next(case for case in CASES if case["case"] == "llama" and "eos" in case)
    model = folder.at("model")
    shutil.copytree(os.path.join(GOLDEN, "llama"), model)
    config = os.path.join(model, "config.json")
    with open(config, encoding="utf-8") as f:
        keys = json.load(f)

    def ends(where, value):
        with open(os.path.join(model, where), "w", encoding="utf-8") as f:
            json.dump({**(keys if where == "config.json" else {}), "eos_token_id": value}, f)
        return sample(folder, model, case["prompt"], "--max-tokens", 1000)

    assert ends("config.json", case["eos"]) == case["ended"] and len(case["ended"]) < len(case["tokens"])
    assert ends("generation_config.json", [case["tokens"][1], 3]) == case["tokens"][:2]  # this file is the one that counts
    assert ends("generation_config.json", None) == case["tokens"]
    with open(os.path.join(model, "generation_config.json"), "w", encoding="utf-8") as f:
        f.write('{"eos_token_id": "</s>"}')
    done = folder.ztrain("sample", model, "--prompt-tokens", "1", expect=DATA)
    assert "generation_config.json: eos_token_id must be a token id or a list of them" in done.final_error


def test_checkpoints_runs_and_exports(folder):
    """The same tokens from a run of two ranks, from one of its checkpoints, and from its export; in the run's dtype."""
    folder.train({"train": {"epochs": 1}, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}, ranks=2)
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("export"), "--dtype", "fp32")
    tokens = sample(folder, folder.run_folder(), [5, 6, 7], "--max-tokens", 12)
    assert len(tokens) == 12
    assert sample(folder, folder.latest(), [5, 6, 7], "--max-tokens", 12) == tokens
    assert sample(folder, folder.run_folder(), [5, 6, 7], "--max-tokens", 12, "--best") == tokens
    assert sample(folder, folder.at("export"), [5, 6, 7], "--max-tokens", 12, "--dtype", "bf16") == tokens
    # one byte of the weights is wrong
    shard = os.path.join(folder.latest(), "rank-00001.zst")
    with open(shard, "r+b") as f:
        f.seek(-40, os.SEEK_END)
        byte = f.read(1)
        f.seek(-40, os.SEEK_END)
        f.write(bytes([byte[0] ^ 1]))
    assert "rank-00001" in folder.ztrain("sample", folder.latest(), "--prompt-tokens", "1", expect=CHECKPOINT).final_error


BYTES = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))  # those that stand for themselves
END = 256


def byte_tokenizer():
    """A tokenizer.json whose tokens are the 256 bytes, in the alphabet of GPT-2, and an end-of-text token."""
    others = iter(range(256, 512))
    vocabulary = {chr(byte if byte in BYTES else next(others)): byte for byte in range(256)}
    end = {"id": END, "content": "<|end|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
           "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
            "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary, "merges": []}}


def test_text_both_ways(folder):
    """Through the tokenizer.json of a Hugging Face folder, and of a run that began with it; draws give bytes of any kind."""
    config = {**LLAMA, "vocab_size": 260, "eos_token_id": END}
    folder.train({"model": {"config": config}, "train": {"max_steps": 1}}, name="first")
    model = folder.at("model")
    folder.ztrain("export", folder.run_folder("first"), "--out", model)
    text, more = "Zür \u2603", ("--device", "cpu", "--max-tokens", 40, "--temperature", 1.5)
    ids = commas(text.encode())
    words = folder.ztrain("sample", model, "--prompt", text, *more, expect=USAGE).final_error  # it has no tokenizer yet
    assert "has no tokenizer.json; hint: --prompt-tokens 1,2,3 takes token ids" in words
    with open(os.path.join(model, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(byte_tokenizer(), f)
    with open(os.path.join(model, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"model_max_length": int(1e30)}, f)  # as save_pretrained writes it
    folder.train({"model": {"config": None, "pretrained": model}, "train": {"max_steps": 1}, "optimizer": {"params": {"lr": 0}}})
    for seed in range(3):
        tokens = folder.ztrain("sample", model, "--prompt-tokens", ids, *more, "--seed", seed).out.strip()
        raw = bytes(token for token in map(int, tokens.split(",")) if token < 256)
        for place in (model, folder.run_folder()):
            process = folder.start("sample", place, "--prompt", text, *more, "--seed", seed)
            assert folder.wait(process).code == 0
            with open(folder.at(f"{process.number}.out"), "rb") as f:
                assert f.read() == raw.decode("utf-8", "replace").encode() + b"\n"
    last = raw[0]
    drawn = folder.ztrain("sample", model, "--prompt-tokens", ids, *more, "--seed", 2)
    assert str(last) in drawn.out
    words = folder.ztrain("sample", model, "--prompt", "", expect=USAGE).final_error
    assert "the prompt is empty, and the model has no bos_token_id to begin from; hint: give it a text" in words
    with open(os.path.join(model, "config.json"), encoding="utf-8") as f:
        keys = json.load(f)
    with open(os.path.join(model, "config.json"), "w", encoding="utf-8") as f:
        json.dump({**keys, "bos_token_id": 65}, f)
    empty, same = (folder.ztrain("sample", model, "--prompt", text, *more, "--seed", 1).out for text in ("", "A"))
    assert empty == same != "\n"
    with open(os.path.join(model, "config.json"), "w", encoding="utf-8") as f:
        json.dump({**keys, "eos_token_id": last}, f)
    assert folder.ztrain("sample", model, "--prompt", text, *more, "--seed", 2).out == "\n"  # the end token is no text
    words = folder.ztrain("sample", model, "--prompt", "a" * 80, expect=USAGE).final_error
    assert "the prompt has 80 tokens, and the model's context of 64" in words
    with open(os.path.join(model, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump({**byte_tokenizer(), "model": {"type": "WordPiece", "vocab": {}}}, f)
    assert "WordPiece" in folder.ztrain("sample", model, "--prompt", "a", expect=USAGE).final_error
    done = folder.ztrain("sample", model, "--prompt-tokens", ids, *more, "--seed", 2)
    assert drawn.out.startswith(done.out.strip()) and not drawn.err, "a tokenizer that is read costs no notice"
    assert re.fullmatch("ztrain: warning: .*WordPiece.*; the continuation is printed as token ids\n", done.err), done


def test_draws_follow_the_settings(folder):
    model = os.path.join(GOLDEN, "llama")
    greedy = sample(folder, model, [1, 2])
    drawn = sample(folder, model, [1, 2], "--temperature", 1.5, "--seed", 3)
    assert drawn == sample(folder, model, [1, 2], "--temperature=1.5", "--seed=3") != greedy
    assert drawn != sample(folder, model, [1, 2], "--temperature", 1.5, "--seed", 4)
    assert sample(folder, model, [1, 2], "--top-k", 1) == sample(folder, model, [1, 2], "--top-p", 1e-6) == greedy
    assert sample(folder, model, [1, 2], "--temperature", 1e-3) == greedy


REFUSED = [
    (("--prompt-tokens", "1,97"), "token 97 of the prompt is not in the model's vocabulary: ids are 0 to 96"),
    (("--prompt-tokens", "1,-2"), "token ids with commas expected"),
    (("--prompt-tokens", "1,,2"), "token ids with commas expected"),
    (("--prompt-tokens", ""), "--prompt-tokens needs a value"),
    (("--prompt-tokens", commas(range(32))), "the model's context of 32 has no room for one more; hint: shorten"),
    (("--prompt-tokens", "1", "--top-p", "1.5"), "--top-p must be above 0 and at most 1, not '1.5'"),
    (("--prompt-tokens", "1", "--top-p", "0"), "--top-p must be above 0"),
    (("--prompt-tokens", "1", "--top-k", "-1"), "--top-k must be a whole number from 0"),
    (("--prompt-tokens", "1", "--temperature", "-1"), "--temperature must be 0 (greedy) or higher"),
    (("--prompt-tokens", "1", "--temperature", "nan"), "--temperature must be 0 (greedy) or higher"),
    (("--prompt-tokens", "1", "--temperature", "0", "--top-k", "3"), "have no effect with it"),
    (("--prompt-tokens", "1", "--max-tokens", "0"), "--max-tokens must be a whole number from 1"),
    (("--prompt-tokens", "1", "--device", "tpu"), "--device must be auto, cpu or cuda"),
    (("--prompt-tokens", "1", "--dtype", "int8"), "--dtype must be fp32, bf16 or fp16"),
    (("--prompt-tokens", "1", "--best"), "--best is for runs"),
    (("--prompt-token", "1"), "unknown option '--prompt-token'; hint: did you mean --prompt-tokens"),
    (("--prompt-tokens", "1", "--prompt", "a"), "--prompt and --prompt-tokens are two prompts"),
    (("--prompt", "a"), "has no tokenizer.json; hint: --prompt-tokens 1,2,3"),
    ((), "the prompt is missing"),
]


@pytest.mark.parametrize("words, message", REFUSED)
def test_refusals(folder, words, message):
    assert message in folder.ztrain("sample", os.path.join(GOLDEN, "llama"), *words, expect=USAGE).final_error


def test_folders_that_cannot_be_sampled(folder):
    def refused(model, expect):
        return folder.ztrain("sample", model, "--prompt-tokens", "1", "--device", "cpu", expect=expect).final_error

    assert "is a classifier" in refused(os.path.join(GOLDEN, "classify-llama"), USAGE)
    assert "is a classifier" in refused(os.path.join(GOLDEN, "classify-bert"), USAGE)
    bert = folder.at("bert")
    os.mkdir(bert)
    with open(os.path.join(GOLDEN, "classify-bert", "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    for key in ("id2label", "label2id", "num_labels"):
        config.pop(key, None)
    with open(os.path.join(bert, "config.json"), "w", encoding="utf-8") as f:
        json.dump({**config, "architectures": ["BertModel"]}, f)
    assert "is a bert model, which looks both ways" in refused(bert, USAGE)
    assert "is not a folder" in refused(folder.at("absent"), USAGE)
    assert "is neither a checkpoint" in refused(folder.path, CHECKPOINT)
    damaged = folder.at("damaged")
    shutil.copytree(os.path.join(GOLDEN, "llama"), damaged)
    with open(os.path.join(damaged, "model.safetensors"), "r+b") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        f.truncate(8 + length + 100)
    assert "model.safetensors" in refused(damaged, DATA)
    os.remove(os.path.join(damaged, "config.json"))
    assert "has safetensors, but no config.json" in refused(damaged, DATA)


def test_a_gpu_that_is_not_there(folder):
    words = folder.ztrain("sample", os.path.join(GOLDEN, "llama"), "--prompt-tokens", "1", "--device", "cuda",
                          expect=DEVICE, env={"CUDA_VISIBLE_DEVICES": ""}).final_error
    assert "--device cuda" in words

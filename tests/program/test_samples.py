# SPDX-License-Identifier: Apache-2.0
"""train.samples: what the model that trains says at each evaluation."""
import json
import os
import re
import signal

import pytest

from harness import LLAMA, REQUEUE, USAGE, plan_bytes, wait_for_words
from test_sample import END, byte_tokenizer, commas

IDS = [[5, 6, 7], [9]]
CHANGES = {"train": {"epochs": 1, "eval_interval_steps": 2, "samples": IDS, "sample_tokens": 8}}


def lines(folder, name="run"):
    return folder.metrics(name).kinds("sample")


def losses(folder, name="run"):
    metrics = folder.metrics(name)
    return metrics.losses, [row["eval_loss"] for row in metrics.evaluations], [row["grad_norm"] for row in metrics.steps]


def test_the_same_at_every_stage_and_training_unchanged(folder):
    """At steps 2 and 3, each prompt; what `ztrain sample` says of the checkpoint; losses as without samples, bit for bit."""
    folder.train({**CHANGES, "train": {**CHANGES["train"], "samples": None}}, name="without", ranks=2)
    done = folder.train({**CHANGES, "zero_optimization": {"stage": 0}}, ranks=2)
    expected = lines(folder)
    assert [(row["step"], row["epoch"], row["sample"], row["prompt_tokens"]) for row in expected] == [
        (step, 1, number + 1, ids) for step in (2, 3) for number, ids in enumerate(IDS)]
    assert all(len(row["tokens"]) == 8 and set(row) == {"step", "epoch", "sample", "prompt_tokens", "tokens"} for row in expected)
    assert f"step 3  sample 1: {commas(expected[2]['tokens'])}" in done.out
    assert losses(folder) == losses(folder, "without")
    for number, ids in enumerate(IDS):
        said = folder.ztrain("sample", folder.run_folder(), "--prompt-tokens", commas(ids), "--max-tokens", 8, "--device", "cpu")
        assert said.out == commas(expected[2 + number]["tokens"]) + "\n"
    for name, zero in (("two", {"stage": 2}), ("three", {"stage": 3}),
                       ("host", {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}})):
        folder.train({**CHANGES, "zero_optimization": zero}, name=name, ranks=2)
        assert lines(folder, name) == expected and losses(folder, name)[1] == losses(folder)[1]


def test_recomputation_and_one_rank(folder):
    more = {"activation_checkpointing": {"policy": "block"}, "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 2}
    folder.train({**CHANGES, **more})
    folder.train({**CHANGES, **more, "zero_optimization": {"stage": 3}}, name="three")
    assert len(lines(folder)) == 4 and lines(folder) == lines(folder, "three")


def test_a_resumed_run_has_each_line_once(folder):
    changes = {**CHANGES, "train": {**CHANGES["train"], "epochs": 2}, "checkpoint": {"interval_steps": 2}}
    folder.train(changes)
    folder.train({**changes, "train": {**changes["train"], "max_steps": 4}}, name="parts")
    folder.train(changes, name="parts", more=("--resume", folder.run_folder("parts")))
    assert [row["step"] for row in lines(folder)] == [2, 2, 3, 3, 4, 4, 6, 6]
    assert lines(folder, "parts") == lines(folder) and losses(folder) == losses(folder, "parts")
    # other samples, and none, may follow a resume
    folder.train({**changes, "train": {**changes["train"], "samples": [[1]], "epochs": 3}}, name="parts",
                 more=("--resume", folder.run_folder("parts")))
    assert lines(folder, "parts")[-1]["prompt_tokens"] == [1]


def test_text_ends_with_the_end_token(folder):
    config = {**LLAMA, "vocab_size": 260, "eos_token_id": END}
    folder.train({"model": {"config": config}, "train": {"max_steps": 1}}, name="first")
    model = folder.at("model")
    folder.ztrain("export", folder.run_folder("first"), "--out", model)
    changes = {"model": {"config": None, "pretrained": model}, "train": {"epochs": 1, "samples": ["Zürich", [65, 66]]}}
    words = folder.train(changes, expect=USAGE).final_error
    assert "train.samples: '" in words and "has no tokenizer.json; hint: give prompts as lists of token ids" in words
    with open(os.path.join(model, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(byte_tokenizer(), f)
    folder.train(changes)
    text, ids = lines(folder)
    assert text["prompt"] == "Zürich" and isinstance(text["text"], str) and ids["prompt_tokens"] == [65, 66]
    said = folder.ztrain("sample", folder.run_folder(), "--prompt", "Zürich", "--max-tokens", 17, "--device", "cpu")
    first = ids["tokens"][0]
    words = folder.train({**changes, "train": {"samples": ["x", ""]}}, name="empty", expect=USAGE).final_error
    assert "train.samples: prompt 2: it is empty, and the model has no bos_token_id to begin from; hint: give it a text" in words
    assert said.out.replace("\0", " ") == text["text"] + "\n" and len(ids["tokens"]) == 22  # data.seq_length is 24
    with open(os.path.join(model, "generation_config.json"), "w", encoding="utf-8") as f:
        json.dump({"eos_token_id": [first, 3], "bos_token_id": 65}, f)
    folder.train({**changes, "train": {"epochs": 1, "samples": ["", [65, 66], "A"]}}, name="ends")
    empty, ids, same = lines(folder, "ends")
    assert ids["tokens"] == [first] and empty["prompt"] == "" and empty["text"] == same["text"]


REFUSED = [
    ({"samples": [[1, 61]]}, "train.samples: prompt 1: token 61 is not in the model's vocabulary: ids are 0 to 60"),
    ({"samples": [[1], [1] * 24]}, "train.samples: prompt 2: 24 tokens leave no room in data.seq_length 24"),
    ({"samples": ["text", ""]}, "train.samples has a text, and the model has no tokenizer; hint: set model.tokenizer, or give prompts as lists"),
]


@pytest.mark.parametrize("changes, message", REFUSED)
def test_refusals(folder, changes, message):
    assert message in folder.train({"train": changes}, expect=USAGE).final_error


@pytest.mark.parametrize("value", ["[[]]", "[[1, x]]", "[-1]", "5", "[{a: 1}]"])
def test_malformed_prompts(folder, value):
    done = folder.train({}, sets=[f"train.samples={value}"], expect=USAGE)
    assert "'train.samples' must be a list of prompts, each a text or a list of token ids" in done.err


def test_the_plan_has_their_memory(folder):
    def total(changes):
        return plan_bytes(folder.ztrain("plan", "--bytes", "--config", folder.spec({"train": changes})).out)["device"]["activations"]

    cache = 2 * LLAMA["num_hidden_layers"] * (3 + 8) * LLAMA["num_key_value_heads"] * 8 * 4
    assert cache <= total({"samples": IDS, "sample_tokens": 8}) - total({}) <= cache + 256


def test_a_stop_leaves_out_the_samples_that_are_left(folder):
    """The run ends soon, says so, and continues with the next step."""
    prompts = [[5, 6, 7]] * 8000  # they would take a quarter of a minute, and longer under load
    spec = folder.spec({"train": {**CHANGES["train"], "samples": prompts, "sample_tokens": 20}})
    process = folder.start("--config", spec)
    wait_for_words(folder, process, "step 2  sample 1: ")
    process.send_signal(signal.SIGTERM)
    done = folder.wait(process)
    assert done.code == REQUEUE, done
    first = int(re.search(r"step 2: the stop leaves out the samples (\d+) to 8000", done.out)[1])
    assert len(lines(folder)) == first - 1 > 0
    folder.ztrain("--config", spec, "--resume", folder.run_folder(), "--set", "train.samples=[[9]]")
    assert [row["step"] for row in lines(folder)] == [2] * (first - 1) + [3]

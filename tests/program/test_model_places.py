# SPDX-License-Identifier: Apache-2.0
"""Where a run finds its model and tokenizer: model.tokenizer, the local Hugging Face cache, the home folder."""
import json
import os
import shutil

from harness import DATA, LLAMA, USAGE
from test_sample import END, byte_tokenizer

CONFIG = {**LLAMA, "vocab_size": 260, "eos_token_id": END}
SHORT = {"train": {"epochs": None, "max_steps": 1}, "data": {"validation": None}}


def put(path, value):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)


def say(folder, place, **expectations):
    return folder.ztrain("sample", place, "--prompt", "Zürich", "--max-tokens", 5, "--device", "cpu", **expectations).out


def test_a_model_from_a_config_keeps_its_tokenizer(folder):
    """model.tokenizer goes into checkpoints and exports; a resume takes it from the checkpoint where its folder is gone."""
    put(folder.at("tok", "tokenizer.json"), byte_tokenizer())
    put(folder.at("tok", "tokenizer_config.json"), {"eos_token": "<|end|>"})
    put(folder.at("tok", "additional_chat_templates", "tool_use.jinja"), "{{ tools }}")
    changes = {**SHORT, "model": {"config": CONFIG, "tokenizer": folder.at("tok")}}
    folder.train(changes)
    said = say(folder, folder.run_folder())
    shutil.move(folder.at("tok"), folder.at("gone"))
    for more in ((), ("--dry-run",)):
        words = folder.train(changes, name="new", more=more, expect=DATA).final_error
        assert f"model.tokenizer: '{folder.at('tok')}' is no folder with a tokenizer.json" in words
    folder.train({**SHORT, "model": {"config": CONFIG}}, name="bare")
    longer = {**changes, "train": {"max_steps": 2}}
    words = folder.train(longer, name="bare", more=("--resume", folder.run_folder("bare")), expect=DATA).final_error
    assert f"model.tokenizer: '{folder.at('tok')}' is no folder" in words  # its checkpoint has none either
    folder.train({**changes, "train": {"max_steps": 2, "samples": ["Zürich"]}}, more=("--resume", folder.run_folder()))
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("hf"), "--dtype", "fp32")
    assert say(folder, folder.at("hf")) == say(folder, folder.run_folder()) != ""
    for name in ("tokenizer.json", "tokenizer_config.json", "additional_chat_templates/tool_use.jinja"):
        with open(folder.at("hf", name), "rb") as carried, open(folder.at("gone", name), "rb") as original:
            assert carried.read() == original.read()
    # a folder that model.config names has its tokenizer beside config.json
    put(folder.at("model", "config.json"), CONFIG)
    put(folder.at("model", "generation_config.json"), {"bos_token_id": 7})
    shutil.copy(folder.at("gone", "tokenizer.json"), folder.at("model"))
    for name, place in (("a", "model"), ("b", "model/config.json")):
        folder.train({**SHORT, "model": {"config": folder.at(place)}}, name=name)
        assert say(folder, folder.run_folder(name)) == said
        assert os.path.exists(folder.at(folder.latest(name), "generation_config.json"))


def test_names_of_the_local_cache(folder):
    folder.train({**SHORT, "model": {"config": CONFIG}}, name="first")
    place = folder.at("hub", "models--org--tiny", "snapshots", "0123abc")
    folder.ztrain("export", folder.run_folder("first"), "--out", place, "--dtype", "fp32")
    put(os.path.join(place, "tokenizer.json"), byte_tokenizer())
    os.makedirs(folder.at("hub", "models--org--tiny", "refs"))
    with open(folder.at("hub", "models--org--tiny", "refs", "main"), "w", encoding="utf-8") as file:
        file.write("0123abc")
    env = {"HF_HUB_CACHE": folder.at("hub")}
    changes = {**SHORT, "model": {"config": None, "pretrained": "org/tiny"}, "optimizer": {"params": {"lr": 0}}}
    done = folder.train(changes, env=env, more=["--verbose"])
    assert f"model: org/tiny is in {place}" in done.out + done.err
    assert say(folder, "org/tiny", env=env) == say(folder, folder.run_folder()) == say(folder, place)
    words = folder.train({**changes, "model": {"config": None, "pretrained": "org/none"}}, env=env, name="none", expect=DATA).final_error
    assert "no folder 'org/none'" in words and words.endswith("hint: correct the path, or download the model: hf download org/none")
    os.remove(os.path.join(place, "model.safetensors"))  # as where only the tokenizer was downloaded
    assert "hf download NAME" in folder.train(changes, env=env, name="part", expect=DATA).final_error
    assert "hf download org/none" in folder.ztrain("sample", "org/none", "--prompt", "a", env=env, expect=USAGE).final_error


def test_the_home_folder_in_paths(folder):
    """In the file, in --set, and on the way into the run's own record of its spec."""
    folder.data()
    home = {"HOME": folder.path}
    changes = {**SHORT, "run": {"dir": "~/mine"}, "data": {"train": "~/train", "validation": None}}
    folder.train(changes, env=home)
    with open(folder.at("mine", "run", "run.yaml"), encoding="utf-8") as file:
        assert f"train: {folder.at('train')}" in file.read().replace("'", "").replace('"', "")
    done = folder.train(changes, env=home, sets=("run.dir=~/other",), more=("--dry-run",))
    assert f"run folder: {folder.at('other')}/run" in done.out
    assert not os.path.exists(folder.at("~"))

# SPDX-License-Identifier: Apache-2.0
"""`ztrain init`: the run spec that it writes, by flags and by answers on a terminal, and what it refuses."""
import json
import os
import pty
import re
import subprocess

import pytest

from harness import (DATA, DEVICE, GPT2, LLAMA, PATIENCE, SEQUENCE, SLOWNESS, USAGE, VOCABULARY, ZTRAIN, documents, write_mask, write_megatron)
from test_classification import write_labelled
from test_experts import QWEN3
from test_sample import byte_tokenizer

QWEN_7B = {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4,
           "num_hidden_layers": 28, "vocab_size": 152064, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "rope_theta": 1e6,
           "tie_word_embeddings": False}


def put_model(folder, name, config):
    os.makedirs(folder.at(name), exist_ok=True)
    with open(folder.at(name, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)


@pytest.fixture
def place(folder):
    """A folder with a tiny model without weights, a large one, text shards with validation data, and shards with a mask."""
    put_model(folder, "tiny", LLAMA)
    put_model(folder, "7b", QWEN_7B)
    folder.data(40, name="text")
    folder.data(10, seed=2, name="text-validation")
    docs = documents(200)
    write_megatron(folder.at("chats"), docs)
    write_mask(folder.at("chats"), sum(map(len, docs)), lambda i: i % 3)
    return folder


def init(folder, *flags, model="tiny", data="text", **expectations):
    return folder.ztrain("init", "--model", folder.at(model), "--data", folder.at(data), *flags, **expectations)


def written(folder, *flags, name="run.yaml", **inputs):
    """The written spec as {"a.b": "value"}, without comments; each section in block style."""
    init(folder, *flags, "--out", folder.at(name), **inputs)
    with open(folder.at(name), encoding="utf-8") as file:
        text = file.read()
    values, path = {}, []
    for line in text.splitlines():
        if found := re.match(r"( *)([a-z0-9_]+):(?: ([^#]*?))?(?:  #.*)?$", line):
            path[len(found[1]) // 2:] = [found[2]]
            if found[3]:
                values[".".join(path)] = found[3]
    return values


def step_seconds(text):
    return float(re.search(r"# Estimated, not measured: ([\d.e+-]+) s a step", text)[1])


# ---- the spec --------------------------------------------------------------------------------------------------------

def test_the_spec_is_taken_by_a_dry_run_and_trains(place):
    spec = written(place, "--seq-length", SEQUENCE, "--batch", 4, "--epochs", 2, "--lr", "0.003")
    assert spec["model.config"] == place.at("tiny") and spec["run.name"] == "tiny-text"
    assert spec["data.train"] == place.at("text") and spec["data.validation"] == place.at("text-validation")
    assert (spec["train_batch_size"], spec["train.device"], spec["optimizer.params.lr"]) == ("4", "cpu", "0.003")
    assert spec["scheduler.type"] == "Cosine" and spec["gradient_clipping"] == "1.0" and "bf16.enabled" not in spec
    assert spec["data.packing"] == "true" and spec["checkpoint.keep_best"] == "1"
    assert int(spec["train.eval_interval_steps"]) == int(spec["checkpoint.interval_steps"])
    dry = place.ztrain("--config", place.at("run.yaml"), "--dry-run")
    assert "steps: 20 in all, 10 an epoch" in dry.out and "warning" not in dry.err
    place.ztrain("--config", place.at("run.yaml"), "--set", "train.max_steps=2", "--set", f"run.dir={place.at('runs')}")
    assert [row["step"] for row in place.metrics("tiny-text").steps] == [1, 2]


def test_virtual_ranks_let_the_run_move(place):
    """The spec that was written for one rank runs on four, with the same losses."""
    spec = written(place, "--seq-length", SEQUENCE, "--batch", 16)
    assert (spec["train.virtual_ranks"], spec["train_micro_batch_size_per_gpu"]) == ("8", "2")
    losses = {}
    for ranks in (1, 4):
        place.ztrain("--config", place.at("run.yaml"), "--local-gpus", ranks, "--set", "train.max_steps=2", "--set", f"run.name=on-{ranks}",
                     "--set", f"run.dir={place.at('runs')}")
        losses[ranks] = [(row["loss"], row["grad_norm"]) for row in place.metrics(f"on-{ranks}").steps]
    assert len(losses[1]) == 2 and losses[1] == losses[4]


@pytest.mark.parametrize("batch, virtual", [(1, None), (5, "5"), (11, None), (12, "6"), (16, "8")])
def test_virtual_ranks_divide_the_batch(place, batch, virtual):
    spec = written(place, "--batch", batch, "--seq-length", 24)
    assert spec.get("train.virtual_ranks") == virtual
    place.ztrain("--config", place.at("run.yaml"), "--dry-run")


@pytest.mark.parametrize("gpus, batch, virtual", [(1, 64, "8"), (3, 48, "6"), (4, 64, "8"), (5, 40, "5"), (8, 64, "8"), (16, 64, "16")])
def test_virtual_ranks_are_a_multiple_of_the_gpus(place, gpus, batch, virtual):
    write_megatron(place.at("large"), documents(6000, longest=60))
    spec = written(place, "--gpus", gpus, "--batch", batch, "--seq-length", 2048, model="7b", data="large")
    assert spec["train.virtual_ranks"] == virtual
    place.ztrain("plan", "--config", place.at("run.yaml"), "--world", gpus)


def test_virtual_ranks_are_left_out_if_they_cost_much(place):
    """The parts of a tiny batch: launches take most of their time."""
    done = init(place, "--gpus", 1, "--batch", 12, "--seq-length", 24, "--out", "-")
    (more,) = re.findall(r"train\.virtual_ranks is left out: by the plan it takes (\d+) % more time", done.err)
    assert int(more) >= 10
    assert "virtual_ranks:" not in done.out


def test_trained_weights_are_trained_on(place):
    """By path and by name; what the folder lacks is an error before a spec is written."""
    place.train({"train": {"epochs": None, "max_steps": 1}, "data": {"validation": None}})
    hub = place.at("hub", "models--org--little")
    place.ztrain("export", place.run_folder(), "--out", os.path.join(hub, "snapshots", "0a1b"), "--dtype", "fp32")
    os.makedirs(os.path.join(hub, "refs"))
    with open(os.path.join(hub, "refs", "main"), "w", encoding="ascii") as file:
        file.write("0a1b")
    done = place.ztrain("init", "--model", "org/little", "--data", place.at("text"), "--out", place.at("run.yaml"),
                        env={"HF_HUB_CACHE": place.at("hub")})
    assert "from scratch" not in done.err
    with open(place.at("run.yaml"), encoding="utf-8") as file:
        text = file.read()
    assert "\n  pretrained: org/little  # " in text and "\n    lr: 2e-05  # " in text and "name: little-text" in text
    place.ztrain("--config", place.at("run.yaml"), "--dry-run", env={"HF_HUB_CACHE": place.at("hub")})
    put_model(place, "hub/models--org--little/snapshots/0a1b", {**LLAMA, "intermediate_size": 64})
    done = place.ztrain("init", "--model", os.path.join(hub, "snapshots", "0a1b"), "--data", place.at("text"), "--out", "-", expect=DATA)
    assert "mlp.gate_proj.weight" in done.final_error and done.out == ""


def trained_folder(place):
    place.train({"train": {"epochs": None, "max_steps": 1}, "data": {"validation": None}})
    place.ztrain("export", place.run_folder(), "--out", place.at("trained"), "--dtype", "fp32")


def test_an_adapter_on_trained_weights(place):
    """A learning rate for adapters, and memory for what is trained."""
    trained_folder(place)
    spec = written(place, "--method", "lora", model="trained")
    assert (spec["peft.r"], spec["peft.lora_alpha"], spec["peft.target_modules"]) == ("16", "32", "all-linear")
    assert (spec["optimizer.params.lr"], spec["optimizer.params.weight_decay"]) == ("0.0002", "0.0")
    dry = place.ztrain("--config", place.at("run.yaml"), "--dry-run").out
    with open(place.at("run.yaml"), encoding="utf-8") as file:
        text = file.read()
    (said,) = re.findall(r"peft:  # LoRA: (\d+) parameters are trained", text)
    assert "parameters, frozen" in text and 0 < int(said) < 100000, (text, dry)
    spec = written(place, "--force", "--method", "qlora", model="trained")
    assert spec["model.quantization_config.load_in_4bit"] == "true" and spec["peft.r"] == "16" and spec["optimizer.params.lr"] == "0.0002"
    place.ztrain("--config", place.at("run.yaml"), "--dry-run")
    full = written(place, "--force", model="trained")
    assert "peft.r" not in full and full["optimizer.params.lr"] == "2e-05"
    spec = written(place, "--force", "--method", "LoRA", "--gpus", 8, "--lr", "1e-3", model="trained")
    assert spec["peft.r"] == "16" and spec["optimizer.params.lr"] == "0.001" and spec["train.device"] == "cuda"
    place.ztrain("plan", "--config", place.at("run.yaml"), "--world", 8)


def test_documents_with_a_mask_are_packed_whole(place):
    spec = written(place, data="chats")
    assert (spec["data.packing"], spec["data.document_mask"], spec["train.epochs"]) == ("first_fit", "true", "3")
    assert "train.eval_interval_steps" not in spec and "data.validation" not in spec
    assert spec["data.seq_length"] == "64"  # all of the model's positions: four documents of 30 tokens ask for more
    assert "200 documents in" in place.ztrain("--config", place.at("run.yaml"), "--dry-run").out
    put_model(place, "wide", {**LLAMA, "max_position_embeddings": 32768})
    assert written(place, "--force", data="chats", model="wide")["data.seq_length"] == "256"
    docs = documents(20, longest=2000)
    write_megatron(place.at("long"), docs)
    write_mask(place.at("long"), sum(map(len, docs)), lambda i: True)
    mean = sum(map(len, docs)) / len(docs)
    length = int(written(place, "--force", data="long", model="wide")["data.seq_length"])
    assert 4 * mean <= length < 8 * mean and length > max(map(len, docs))


def test_documents_with_labels_train_a_classifier(place):
    write_labelled(place, "mood", 50, seed=1, longest=20)
    spec = written(place, data="mood")
    assert (spec["model.task"], spec["data.packing"], spec["data.seq_length"]) == ("sequence_classification", "false", "32")
    place.ztrain("--config", place.at("run.yaml"), "--dry-run")
    done = init(place, "--seq-length", 10, "--out", "-", data="mood", expect=USAGE)
    assert re.search(r"--seq-length: a document has \d+ tokens, and 10 is the most; hint: ztrain-tokenize --max-length 10", done.final_error)
    put_model(place, "sorter", {**LLAMA, "architectures": ["LlamaForSequenceClassification"], "num_labels": 2})
    assert "text.bin' has no labels" in init(place, "--out", "-", model="sorter", expect=DATA).final_error


def test_several_shards_are_a_list(place):
    place.data(20, seed=3, name="more, text")
    place.ztrain("init", "--model", place.at("tiny"), "--data", place.at("text.bin"), "--data", place.at("more, text"), "--out",
                 place.at("run.yaml"))
    dry = place.ztrain("--config", place.at("run.yaml"), "--dry-run").out
    assert f"train: [{place.at('text.bin')}, \"{place.at('more, text')}\"]" in dry
    assert f"validation: {place.at('text-validation')}" in dry.replace("[", "").replace("]", "")


def test_standard_output_has_the_spec_and_nothing_else(place):
    done = init(place, "--out", "-", "--validation", place.at("chats"))
    with open(place.at("piped.yaml"), "w", encoding="utf-8") as file:
        file.write(done.out)
    place.ztrain("--config", place.at("piped.yaml"), "--dry-run")
    assert f"validation: {place.at('chats')}\n" in done.out
    assert re.findall(r"^  (ztrain .*)  #", done.err, re.M) == ["ztrain --config run.yaml --dry-run", "ztrain --config run.yaml",
                                                                "ztrain report runs/tiny-text"]


# ---- the plan --------------------------------------------------------------------------------------------------------

def test_settings_for_gpus_are_those_of_the_plan(place):
    """--fit puts the written spec first, and says that it is the spec; without --device an H100 is assumed."""
    done = init(place, "--gpus", 8, "--seq-length", 2048, "--batch", 8, "--out", place.at("run.yaml"), model="7b", data="large",
                expect=DATA)
    assert "large" in done.final_error
    docs = documents(6000, longest=60)
    write_megatron(place.at("large"), docs)
    spec = written(place, "--gpus", 8, "--seq-length", 2048, "--batch", 64, model="7b", data="large")
    assert int(spec["zero_optimization.stage"]) >= 1 and spec["bf16.enabled"] == "true" and spec["train.device"] == "cuda"
    assert spec["checkpoint.interval_steps"] == "0"  # the run is over within ten minutes
    many = written(place, "--gpus", 8, "--seq-length", 2048, "--batch", 64, "--epochs", 1000, "--force", model="7b", data="large")
    with open(place.at("run.yaml"), encoding="utf-8") as file:
        assert int(many["checkpoint.interval_steps"]) * step_seconds(file.read()) > 590  # of a time with three digits
    fit = place.ztrain("plan", "--fit", "--config", place.at("run.yaml"), "--world", 8).out
    (first,) = re.findall(r"^ *1=.*$", fit, re.M)
    assert "= this spec" in fit and first, fit
    plan = place.ztrain("plan", "--config", place.at("run.yaml"), "--world", 8, "--memory", "79GiB").out
    assert "x virtual_ranks 8; world size 8" in plan
    place.ztrain("--config", place.at("run.yaml"), "--dry-run", "--local-gpus", 8)
    place.ztrain("--config", place.at("run.yaml"), "--dry-run")
    done = init(place, "--gpus", 16, "--batch", 16, "--seq-length", 24, "--out", "-", data="text")
    assert "no --device: the plan assumes an NVIDIA H100 80GB HBM3 with 79.1 GiB" in done.err
    assert "srun --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 ztrain --config run.yaml" in done.err


def test_offload_is_chosen_where_it_makes_the_model_fit(place):
    spec = written(place, "--gpus", 1, "--memory", "60GiB", model="7b", data="chats")
    assert spec["zero_optimization.offload_optimizer.device"] == "cpu"
    place.ztrain("plan", "--config", place.at("run.yaml"), "--memory", "60GiB")
    done = init(place, "--gpus", 1, "--device", "h100", "--memory", "60GiB", "--out", "-", model="7b", data="chats")
    assert "offload to the CPU" in done.err and "no --device" not in done.err
    done = init(place, "--gpus", 1, "--memory", "4GiB", "--out", place.at("none.yaml"), model="7b", data="chats", expect=DEVICE)
    assert "a rank needs at least" in done.final_error and "offload_optimizer.device=cpu" in done.final_error
    assert "has 4.0 GiB; hint: " in done.final_error and not os.path.exists(place.at("none.yaml"))


def test_a_faster_gpu_takes_less_time(place):
    times = [step_seconds(init(place, "--device", device, "--out", "-", model="7b", data="chats").out) for device in ("h100", "a100")]
    assert times[0] < times[1]


def test_more_memory_than_the_gpu_has_is_noted(place):
    done = init(place, "--device", "l4", "--memory", "80GiB", "--out", "-")
    assert "--memory 80GiB is more than an l4 has: the plan takes its 22.0 GiB" in done.err


# ---- refusals --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("flags, words", [
    (["--method", "lora"], "--method: an adapter needs trained weights below it, and '"),
    (["--method", "dpo"], "--method: 'dpo' is not known; hint: full, lora or qlora"),
    (["--gpus", "two"], "--gpus must be a number from 0 to 65536, not 'two'"), (["--gpus", "9"], "--gpus: 9 GPUs are not whole nodes"),
    (["--gpus", "2", "--device", "cpu"], "--gpus: 2 GPUs were asked for, and --device cpu; hint: "),
    (["--gpus", "0", "--device", "h100"], "--device: 'h100' is a GPU, and --gpus is 0"),
    (["--device", "tpu"], "--device: no GPU 'tpu' is known; hint: one of h100"),
    (["--memory", "80GiB"], "--memory: it is the memory of each GPU"), (["--gpus", "1", "--memory", "much"], "--memory: 'much' is not a size"),
    (["--seq-length", "65"], "--seq-length must be a number from 2 to 64, not '65'"), (["--batch", "0"], "--batch must be a number from 1 to"),
    (["--gpus", "4", "--batch", "6"], "--batch: 6 samples of a step are not a multiple of 4 GPUs; hint: 8 is the next one"),
    (["--gpus", "64"], "samples of 64 tokens, fewer than the 64 that a step needs; hint: a shorter --seq-length"),
    (["--epochs", "0"], "--epochs must be a number above 0"), (["--lr", "inf"], "--lr must be a number above 0"),
    (["--out", "none/run.yaml"], "--out none/run.yaml: there is no folder 'none'"), (["--out", ""], "--out needs a value"),
    (["chats"], "unexpected argument 'chats'"), (["--lora"], "unknown option '--lora'")])
def test_wrong_flags_are_refused(place, flags, words):
    done = init(place, *flags, expect=USAGE)
    assert words in done.final_error and not os.path.exists(place.at("run.yaml"))


def test_qlora_of_gpt2_leads_to_lora(place):
    place.train({"model": {"config": GPT2}, "train": {"epochs": None, "max_steps": 1}, "data": {"validation": None}})
    place.ztrain("export", place.run_folder(), "--out", place.at("gpt2"))
    done = init(place, "--method", "qlora", model="gpt2", expect=USAGE)
    assert "--method: the matrices of gpt2 are (in, out), and are not quantized; hint: lora" in done.final_error


@pytest.mark.parametrize("model, words", [(LLAMA, "matrices in 4 bits"), (QWEN3, "matrices but those of experts and routers in 4 bits")])
def test_qlora_says_which_matrices_it_quantizes(place, model, words):
    place.train({"model": {"config": model}, "train": {"epochs": None, "max_steps": 1}, "data": {"validation": None}})
    place.ztrain("export", place.run_folder(), "--out", place.at("trained"))
    written(place, "--method", "qlora", model="trained")
    with open(place.at("run.yaml"), encoding="utf-8") as file:
        assert f"# the frozen {words}, as in the QLoRA paper" in file.read()
    place.ztrain("--config", place.at("run.yaml"), "--dry-run")


def test_a_file_is_replaced_only_by_force(place):
    with open(place.at("run.yaml"), "w", encoding="ascii") as file:
        file.write("mine")
    done = init(place, expect=USAGE)
    assert "'run.yaml' is there already; hint: --force" in done.final_error
    with open(place.at("run.yaml"), encoding="ascii") as file:
        assert file.read() == "mine"
    init(place, "--force")
    place.ztrain("--config", place.at("run.yaml"), "--dry-run")


def test_a_file_that_cannot_be_written_is_an_error(place):
    os.mkdir(place.at("folder.yaml"))
    assert "folder.yaml" in init(place, "--force", "--out", place.at("folder.yaml"), expect=USAGE).final_error


def test_inputs_that_are_not_there_are_named(place):
    assert "--model is missing; hint: ztrain init --model DIR" in place.ztrain("init", expect=USAGE).final_error
    done = place.ztrain("init", "--model", place.at("tiny"), expect=USAGE)
    assert "--data is missing" in done.final_error
    done = init(place, model="nowhere", expect=DATA)
    assert "--model: there is no folder" in done.final_error
    done = init(place, data="nowhere", expect=DATA)
    assert "--data: " in done.final_error and "nowhere" in done.final_error and "; hint: " in done.final_error
    done = init(place, "--validation", place.at("nowhere"), expect=DATA)
    assert "--validation: " in done.final_error and "nowhere" in done.final_error
    done = init(place, "--validation", place.at("text"), expect=DATA)
    assert "text.bin' is in the training data too" in done.final_error
    put_model(place, "small", {**LLAMA, "vocab_size": 20})
    assert "--data: " in init(place, model="small", expect=DATA).final_error
    put_model(place, "bert", {"model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": VOCABULARY, "hidden_size": 32,
                              "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 64})
    assert "--data: " in init(place, model="bert", expect=USAGE).final_error
    assert "is not text in UTF-8" in place.ztrain("init", "--model", b"\xff".decode(errors="surrogateescape"), expect=USAGE).final_error


@pytest.mark.parametrize("name, line, options", [
    ("chats.jsonl", {"messages": []}, " --chat-template"), ("chats.jsonl", {"conversations": []}, " --chat-template"),
    ("pairs.jsonl", {"prompt": "a", "completion": "b"}, " --completion prompt,completion"), ("text.jsonl", {"text": "messages"}, ""),
    ("my text.txt", None, ""), ("it's.csv", None, ""), ("rows.parquet", None, ""), ("folder", None, "")])
def test_text_is_refused_with_the_command_that_makes_shards(place, name, line, options):
    if name == "folder":
        os.mkdir(place.at(name))
    else:
        with open(place.at(name), "w", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n" if line else "words\n")
    with open(place.at("tiny", "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(byte_tokenizer(), file)

    def quoted(path):
        return "'" + path.replace("'", "'\\''") + "'" if set(path) & set(" '") else path
    done = init(place, data=name, expect=DATA)
    prefix = quoted(place.at(name if name == "folder" else name.rsplit(".", 1)[0]))
    assert (f"hint: ztrain-tokenize {quoted(place.at(name))} --output {prefix} --tokenizer {place.at('tiny')}{options}; then --data {prefix}"
            in done.final_error)


def test_text_without_a_file_or_a_tokenizer(place):
    assert "there is no file" in init(place, data="none.jsonl", expect=DATA).final_error
    with open(place.at("some.txt"), "w", encoding="ascii") as file:
        file.write("words")
    assert "--tokenizer DIR;" in init(place, data="some.txt", expect=DATA).final_error


def test_a_sample_length_that_learns_nothing_is_refused(place):
    docs = [[1] * 40 for _ in range(20)]
    write_megatron(place.at("late"), docs)
    write_mask(place.at("late"), 800, lambda i: i % 40 > 30)
    done = init(place, "--seq-length", 16, "--out", "-", data="late", expect=USAGE)
    assert "--seq-length: 16 cuts off all tokens that are learned: documents have up to 40 tokens" in done.final_error


def test_a_mask_that_learns_nothing_is_refused(place):
    docs = documents(200)
    write_megatron(place.at("chats"), docs)
    write_mask(place.at("chats"), sum(map(len, docs)), lambda i: False)
    assert "the loss mask of the data lets no token be learned" in init(place, "--out", "-", data="chats", expect=DATA).final_error


def test_a_config_alone_has_no_weights(place):
    done = init(place, "--out", "-", model="tiny/config.json")
    assert "config.json' is a config.json: the run trains from scratch" in done.err and "config: " in done.out


def test_a_glob_that_matches_the_validation_data_too(place):
    done = init(place, "--out", "-", data="text*")
    assert "text-validation.bin' is trained on too: --data matches it" in done.err and "validation:" not in done.out
    assert "trained on too" not in init(place, "--out", "-", data="text-validation").err


def test_a_tilde_that_no_shell_has_replaced(place):
    done = place.ztrain("init", "--model", place.at("tiny"), "--data", "~text", expect=USAGE)
    assert "'~text' begins with ~, which a run spec takes for a home folder; hint: ./~text" in done.final_error


def test_the_memory_is_a_limit_of_the_run(place):
    assert written(place, "--gpus", 1, "--memory", "2GiB")["train.memory_limit"] == str(2 << 30)


def test_a_short_run_has_whole_words(place):
    init(place, "--batch", 8, "--epochs", "1e-9", "--out", place.at("run.yaml"))
    with open(place.at("run.yaml"), encoding="utf-8") as file:
        text = file.read()
    assert "# 1 step in all" in text and "interval_steps: 0  # the end of each epoch has one" in text, text


# ---- questions -------------------------------------------------------------------------------------------------------

def asked(folder, answers, *flags, env=None):
    """Runs init on a terminal with these lines of input, the last of which may be None: Ctrl-D. Returns (exit code, the
    terminal's text)."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([ZTRAIN, "init", *flags], stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs, cwd=folder.path,
                               start_new_session=True, env={**os.environ, **(env or {})})
    os.close(theirs)
    text = b""
    try:
        for answer in [*answers, ""]:
            while not re.search(rb": $", text):
                text += os.read(ours, 4096)
            os.write(ours, b"\x04" if answer is None else answer.encode() + b"\n")
            text += b"\n"
    except OSError:  # the other end is closed: it has ended
        pass
    code = process.wait(PATIENCE * SLOWNESS)
    try:
        while more := os.read(ours, 4096):
            text += more
    except OSError:
        pass
    os.close(ours)
    return code, text.decode().replace("\r\n", "\n")


def test_questions_about_what_flags_leave_open(place):
    code, text = asked(place, ["~/tiny", place.at("text"), "8", "a100", "2"], env={"HOME": place.path})
    assert code == 0 and "Model (a folder" in text and "Kind of GPU [h100]: " in text and "Epochs [1]: " in text, text
    with open(place.at("run.yaml"), encoding="utf-8") as file:
        spec = file.read()
    assert f"config: {place.at('tiny')}  #" in spec and "epochs: 2  #" in spec and "8 x NVIDIA A100-SXM4-80GB" in spec
    place.ztrain("--config", place.at("run.yaml"), "--dry-run")
    code, text = asked(place, ["", ""], "--force", "--model", place.at("tiny"), "--data", place.at("text"))
    assert code == 0 and "Model" not in text and "GPUs (0: the CPU) [0]: " in text and "Kind of GPU" not in text
    with open(place.at("run.yaml"), encoding="utf-8") as file:
        assert "device: cpu" in file.read()
    code, text = asked(place, [], "--force", "--model", place.at("tiny"), "--data", place.at("text"), "--gpus", "1", "--device", "l4",
                       "--epochs", "1")
    assert code == 0 and "[" not in text


def test_the_question_of_the_method(place):
    trained_folder(place)
    code, text = asked(place, ["dora", "lora", "0", "1"], "--model", place.at("trained"), "--data", place.at("text"))
    assert code == 0 and text.count("Method (full, lora or qlora) [full]: ") == 2 and "'dora' is not known" in text, text
    with open(place.at("run.yaml"), encoding="utf-8") as file:
        assert "target_modules: all-linear" in file.read()


def test_a_wrong_answer_is_asked_again(place):
    code, text = asked(place, [place.at("tiny"), place.at("nothing"), place.at("text"), "some", "0", "1"])
    assert code == 0 and text.count("Data (the prefix of token shards): ") == 2 and "a number from" in text, text
    os.remove(place.at("run.yaml"))
    code, text = asked(place, [place.at("tiny"), "a", "b", place.at("nothing.txt")])
    assert code == USAGE and "3 answers to the question 'Data (the prefix of token shards)' were wrong" in text
    assert "there is no file" in text and not os.path.exists(place.at("run.yaml"))


def test_the_end_of_input_is_no_answer(place):
    code, text = asked(place, [place.at("tiny"), None])
    assert code == USAGE and "the input ended at the question 'Data (the prefix of token shards)'" in text, text
    assert not os.path.exists(place.at("run.yaml"))


def test_help(place):
    text = place.ztrain("init", "--help").out
    for flag in ("model", "data", "validation", "gpus", "device", "memory", "method", "seq-length", "batch", "epochs", "lr", "out", "force"):
        assert f"\n  --{flag}" in text

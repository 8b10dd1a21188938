# SPDX-License-Identifier: Apache-2.0
"""model.task: sequence_classification: training, evaluation, resume and export of classifiers; wrong data and specs."""
import json
import os
import random
import struct
import subprocess
import sys

import pytest

from harness import DATA, GPT2, LLAMA, SEQUENCE, USAGE, VOCABULARY, read_safetensors, write_mask, write_megatron

TASK = {"model": {"task": "sequence_classification"}, "data": {"packing": False}}


def with_task(**changes):
    return {"model": {**TASK["model"], **changes.pop("model", {})}, "data": {**TASK["data"], **changes.pop("data", {})},
            **changes}


def write_labelled(folder, name, count, seed, classes=3, longest=SEQUENCE, names=None):
    """Documents whose tokens modulo `classes` are mostly their label."""
    rng = random.Random(seed)
    labels = [rng.randrange(classes) for _ in range(count)]
    docs = [[(rng.randrange(1, 12) * classes + label) if rng.random() < 0.8 else rng.randrange(1, VOCABULARY)
             for _ in range(rng.randrange(1, longest + 1))] for label in labels]
    write_megatron(folder.at(name), docs)
    with open(folder.at(f"{name}.labels"), "wb") as f:
        f.write(struct.pack(f"<{count}i", *labels))
    if names:
        with open(folder.at(f"{name}.labels.json"), "w", encoding="utf-8") as f:
            json.dump({"id2label": {str(i): n for i, n in enumerate(names)}}, f)
    return docs, labels


@pytest.fixture
def labelled(folder):
    write_labelled(folder, "train", 50, seed=1, names=["sad", "so-so", "happy"])
    write_labelled(folder, "validation", 29, seed=2, names=["sad", "so-so", "happy"])
    return folder


def evaluations(folder, name="run"):
    with open(os.path.join(folder.run_folder(name), "metrics.jsonl"), encoding="utf-8") as f:
        return [row for row in map(json.loads, f) if "eval_loss" in row]


def test_learns_names_labels_and_evaluates_each_sample_once(labelled):
    done = labelled.train(with_task(train={"epochs": 4}))
    rows = evaluations(labelled)
    assert all(set(row) == {"step", "epoch", "eval_loss", "accuracy", "f1", "eval_samples"} for row in rows)
    assert all(row["eval_samples"] == 29 for row in rows)
    assert rows[-1]["eval_loss"] < rows[0]["eval_loss"] and rows[-1]["accuracy"] > 0.5
    assert "accuracy" in done.out and "perplexity" not in done.out
    labelled.train(with_task(train={"epochs": 4}), name="two", ranks=2,
                   sets=["zero_optimization.stage=3", "train_micro_batch_size_per_gpu=2"])
    for one, two in zip(rows, evaluations(labelled, "two")):
        assert abs(one["eval_loss"] - two["eval_loss"]) < 1e-4 and two["eval_samples"] == 29
        assert one["accuracy"] == two["accuracy"] and one["f1"] == two["f1"]
    labelled.ztrain("export", labelled.run_folder(), "--out", labelled.at("out"))
    with open(labelled.at("out", "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    assert config["architectures"] == ["LlamaForSequenceClassification"]
    assert config["id2label"] == {"0": "sad", "1": "so-so", "2": "happy"}
    assert config["label2id"] == {"sad": 0, "so-so": 1, "happy": 2}
    tensors = read_safetensors(labelled.at("out", "model.safetensors"))
    assert "score.weight" in tensors and "lm_head.weight" not in tensors


@pytest.mark.parametrize("end", [".labels", ".labels.json", ".types"])
def test_a_dangling_link_is_no_absent_file(labelled, end):
    if os.path.exists(labelled.at("train" + end)):
        os.remove(labelled.at("train" + end))
    os.symlink("nowhere", labelled.at("train" + end))
    done = labelled.train(with_task(), expect=DATA)
    assert f"cannot open '{labelled.at('train' + end)}'" in done.final_error


def test_a_loss_mask_is_not_used(labelled):
    changes = with_task(train={"epochs": 1})
    assert "loss masks" not in labelled.train(changes).err
    write_mask(labelled.at("train"), os.path.getsize(labelled.at("train.bin")) // 2, lambda i: False)
    assert "the loss masks beside data.train are not used" in labelled.train(changes, name="masked", more=["--dry-run"]).err


@pytest.mark.parametrize("model", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_starts_from_a_language_model(folder, model):
    folder.data()
    folder.data(10, seed=2, name="validation")
    tied = {**model, "tie_word_embeddings": True, "eos_token_id": 0}
    folder.train({"model": {"config": tied}, "train": {"epochs": 1}}, name="lm")
    folder.ztrain("export", folder.run_folder("lm"), "--out", folder.at("lm-hf"))
    write_labelled(folder, "train", 36, seed=1)
    write_labelled(folder, "validation", 7, seed=2)
    pretrained = with_task(model={"config": None, "pretrained": folder.at("lm-hf")})
    done = folder.train(pretrained, name="c")
    assert "the head 'score' starts from random values" in done.out
    folder.ztrain("export", folder.run_folder("c"), "--out", folder.at("c-hf"))
    with open(folder.at("c-hf", "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    assert config["pad_token_id"] == 0 and len(config["id2label"]) == 3
    # the classifier's folder is a start as well; nothing is random then, and it learns on
    more = with_task(model={"config": None, "pretrained": folder.at("c-hf")})
    done = folder.train(more, name="d")
    assert "starts from random values" not in done.out
    assert folder.metrics("d").losses[0] < folder.metrics("c").losses[0]
    done = folder.train({"model": {"config": None, "pretrained": folder.at("c-hf")}}, name="e", expect=USAGE)
    assert "the model is a classifier, and model.task is causal_lm; hint: model.task: sequence_classification" in done.err


def test_a_resumed_run_continues_bit_for_bit(labelled):
    labelled.train(with_task(train={"epochs": 2}), name="whole")
    labelled.train(with_task(train={"epochs": 2, "max_steps": 5}), name="part")
    labelled.train(with_task(train={"epochs": 2}), name="part", more=["--resume", labelled.run_folder("part")])
    assert labelled.metrics("part").losses == labelled.metrics("whole").losses
    assert evaluations(labelled, "part")[-1] == evaluations(labelled, "whole")[-1]


@pytest.mark.parametrize("changes, code, words", [
    ({"model": {"task": "sequence_classification"}}, USAGE,
     "'model.task' sequence_classification needs data.packing: false"),
    ({"model": {"num_labels": 3}}, USAGE, "'model.num_labels' has no meaning with model.task causal_lm"),
    (with_task(model={"num_labels": 1}), USAGE, "model.num_labels"),
    (with_task(model={"num_labels": 2}), DATA, "the data have 3 labels, the model has 2"),
    (with_task(data={"seq_length": 8}), DATA, "more than data.seq_length 8; hint: ztrain-tokenize --max-length 8"),
], ids=["packing", "task", "one", "labels", "length"])
def test_wrong_specs(labelled, changes, code, words):
    done = labelled.train(changes, expect=code)
    assert words in done.err, done


def test_wrong_data(labelled):
    with open(labelled.at("validation.labels.json"), "w", encoding="utf-8") as f:
        json.dump({"id2label": {"0": "happy", "1": "so-so", "2": "sad"}}, f)
    done = labelled.train(with_task(), expect=USAGE)
    assert "the data name their labels otherwise than the model's id2label" in done.err
    os.unlink(labelled.at("validation.labels"))
    done = labelled.train(with_task(), expect=DATA)
    assert "validation.bin' has no labels" in done.err and "ztrain-tokenize --label" in done.err
    with open(labelled.at("train.labels"), "wb") as f:
        f.write(bytes(4 * 50))
    os.unlink(labelled.at("train.labels.json"))
    done = labelled.train(with_task(), expect=DATA)
    assert "all documents of data.train have the label 0" in done.err
    os.unlink(labelled.at("train.labels"))
    done = labelled.train(with_task(), expect=DATA)
    assert "train.bin' has no labels" in done.err


# --- scripts/tokenize.py --label --------------------------------------------------------------------------------------

SCRIPT = os.path.join(os.path.dirname(__file__), "..", "..", "scripts", "tokenize.py")
PAIRS = [("hello world", "hi", "same"), ("a", "bcdefgh", "other"), ("xyz", "q", "same"), ("", "r", "none")]


def tokenize(folder, *arguments, code=0):
    done = subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, timeout=60,
                          cwd=folder.path)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def write_rows(folder, name, rows):
    with open(folder.at(name), "w", encoding="utf-8") as f:
        for first, second, label in rows:
            f.write(json.dumps({"first": first, "second": second, "label": label}) + "\n")


def read_labelled(folder, prefix):
    """[(tokens, types, label)] of a shard's documents; types None: there is no file of them."""
    with open(folder.at(prefix + ".idx"), "rb") as f:
        idx = f.read()
    count, wide = struct.unpack_from("<Q", idx, 18)[0], idx[17] == 4
    lengths = struct.unpack_from(f"<{count}i", idx, 34)
    tokens, types, labels = (open(folder.at(prefix + end), "rb").read() if os.path.exists(folder.at(prefix + end)) else None
                             for end in (".bin", ".types", ".labels"))
    ids = struct.unpack(f"<{sum(lengths)}{'i' if wide else 'H'}", tokens)
    assert types is None or len(types) == len(ids)
    numbers, made, start = struct.unpack(f"<{count}i", labels), [], 0
    for length, number in zip(lengths, numbers):
        made.append((list(ids[start:start + length]), types and list(types[start:start + length]), number))
        start += length
    return made


def test_tokenize_pairs_of_bytes(folder):
    write_rows(folder, "x.jsonl", PAIRS)
    out = tokenize(folder, "x.jsonl", "--label", "label", "--fields", "first,second", "--output", "x", "--tokenizer", "byte",
                   "--max-length", 6)
    assert read_labelled(folder, "x") == [
        ([*b"hel", 256, *b"hi"], [0, 0, 0, 0, 1, 1], 2), ([*b"a", 256, *b"bcde"], [0, 0, 1, 1, 1, 1], 1),
        ([*b"xyz", 256, *b"q"], [0, 0, 0, 0, 1], 2), ([256, *b"r"], [0, 1], 0)]
    with open(folder.at("x.labels.json"), encoding="utf-8") as f:
        assert json.load(f) == {"id2label": {"0": "none", "1": "other", "2": "same"}}
    assert "3 (none: 1, other: 1, same: 2)" in out and "truncated  2 documents, to 6 tokens" in out
    assert "joined     first <256> second\n" in out
    assert "sample     labelled same; between \u27e6 and \u27e7 is the second text:\nhel<256>\u27e6hi\u27e7\n" in out
    # a second file with fewer labels gets the numbers of the first; single texts have no types
    write_rows(folder, "y.jsonl", PAIRS[:1])
    out = tokenize(folder, "y.jsonl", "--label", "label", "--fields", "second", "--output", "y", "--tokenizer", "byte",
                   "--labels-from", "x")
    assert "joined" not in out and "sample     labelled same:\nhi\n" in out
    assert read_labelled(folder, "y") == [([*b"hi"], None, 2)]
    write_rows(folder, "z.jsonl", [("a", "b", "unheard")])
    err = tokenize(folder, "z.jsonl", "--label", "label", "--fields", "first", "--output", "z", "--tokenizer", "byte",
                   "--labels-from", "x", code=DATA)
    assert "label 'unheard' is not among those of --labels-from: none, other, same" in err
    # a shard made again as text keeps no labels
    tokenize(folder, "x.jsonl", "--fields", "first", "--output", "x", "--tokenizer", "byte")
    assert not any(os.path.exists(folder.at("x" + end)) for end in (".labels", ".labels.json", ".types"))


@pytest.mark.parametrize("labels, numbers, names", [
    ([0, 2, 1, 2], [0, 2, 1, 2], None), (["10", "9", "1", "9"], [2, 1, 0, 1], ["1", "9", "10"]), (["0", "3"], [0, 3], None),
    (["no", "1", "Ä"], [1, 0, 2], ["1", "no", "Ä"]), ([True, False, True], [1, 0, 1], ["false", "true"]),
    ([2.0, 0, -0.0, 1], [2, 0, 0, 1], None), (["1.0", "3.0", "1"], [0, 1, 0], ["1.0", "3.0"]), (["0", 0, "0."], [0, 0, 0], None),
    ([0, True], [0, 1], ["0", "true"]), (["4.5", "5.0"], [0, 1], ["4.5", "5.0"]), ([0, 2**31], [0, 1], ["0", "2147483648"]),
    (["9" * 5000, "0"], [1, 0], ["0", "9" * 5000]), ([1e300, 1], [1, 0], ["1", str(int(1e300))]), (["-", "²"], [0, 1], ["-", "²"]),
], ids=["numbers", "from one", "text of numbers", "text", "truth", "whole floats", "floats as text", "equal", "mixed", "stars",
        "too large", "digits", "huge", "odd"])
def test_tokenize_numbers_labels(folder, labels, numbers, names):
    write_rows(folder, "x.jsonl", [(f"text {i}", "", label) for i, label in enumerate(labels)])
    tokenize(folder, "x.jsonl", "--label", "label", "--fields", "first", "--output", "x", "--tokenizer", "byte")
    assert [label for _, _, label in read_labelled(folder, "x")] == numbers
    assert os.path.exists(folder.at("x.labels.json")) == (names is not None)
    if names:
        with open(folder.at("x.labels.json"), encoding="utf-8") as f:
            assert json.load(f)["id2label"] == {str(i): name for i, name in enumerate(names)}


def test_tokenize_columns_by_number(folder):
    with open(folder.at("x.csv"), "w", encoding="utf-8") as f:
        f.write('3,"a, b",c\n1,d,"e ""f"""\n3,é,h\n')
    out = tokenize(folder, "x.csv", "--label", "1", "--fields", "2,3", "--output", "x", "--tokenizer", "byte")
    assert read_labelled(folder, "x") == [
        ([*b"a, b", 256, *b"c"], [0] * 5 + [1], 1), ([*b"d", 256, *b'e "f"'], [0, 0, 1, 1, 1, 1, 1], 0),
        ([*"é".encode(), 256, *b"h"], [0, 0, 0, 1], 1)]
    assert "numbered   the labels 1 … 3 from 0 on; their names stay" in out
    for wrong in (["--label", "1"], ["--label", "first", "--fields", "2"], ["--label", "0", "--fields", "2"]):
        err = tokenize(folder, "x.csv", *wrong, "--output", "x", "--tokenizer", "byte", code=USAGE)
        assert "column numbers from 1 of csv files without a first row of names" in err


def test_tokenize_takes_time_in_proportion(folder):
    """A hundred thousand labels, and texts of which nearly all is cut off."""
    rows = [("text", "", f"name {i}") for i in range(100000)] + [("a" * 1000000, "b" * 1000000, "name 7")]
    write_rows(folder, "x.jsonl", rows)
    out = tokenize(folder, "x.jsonl", "--label", "label", "--fields", "first,second", "--output", "x", "--tokenizer", "byte",
                   "--max-length", 8)
    with open(folder.at("x.labels"), "rb") as labels, open(folder.at("x.bin"), "rb") as tokens:
        numbers = struct.unpack("<100001i", labels.read())
        assert struct.unpack("<8H", tokens.read()[-16:]) == (*b"aaaa", 256, *b"bbb")
    assert numbers[:3] == (0, 1, 11112) and numbers[-1] == 66667
    assert "labels     100,000 (name 0: 1, name 1: 1, name 10: 1, " in out


def test_tokenize_numbers_labels_as_another_file(folder):
    """Labels that are the same number have the same name; names on the terminal are escaped and short."""
    write_rows(folder, "x.jsonl", [("a", "", "1.0"), ("b", "", "5.0"), ("c", "", "3")])
    tokenize(folder, "x.jsonl", "--label", "label", "--fields", "first", "--output", "x", "--tokenizer", "byte")
    write_rows(folder, "y.jsonl", [("a", "", 5), ("b", "", 3.0), ("c", "", "1.00")])
    tokenize(folder, "y.jsonl", "--label", "label", "--fields", "first", "--output", "y", "--tokenizer", "byte", "--labels-from", "x")
    assert [label for _, _, label in read_labelled(folder, "y")] == [2, 1, 0]
    write_rows(folder, "z.jsonl", [("a", "", "\033]0;title\a" + "x" * 500), ("\033[1mbold", "", "y")])
    out = tokenize(folder, "z.jsonl", "--label", "label", "--fields", "first", "--output", "z", "--tokenizer", "byte")
    assert "\033" not in out and "\\x1b]0;title\\x07" in out and "x" * 100 not in out
    with open(folder.at("z.labels.json"), "w", encoding="utf-8") as f:
        f.write('{"id2label": {"0": 5}}')
    assert "cannot read 'z.labels.json'" in tokenize(folder, "z.jsonl", "--label", "label", "--fields", "first", "--output", "z",
                                                     "--tokenizer", "byte", "--labels-from", "z", code=DATA)


@pytest.mark.parametrize("rows, options, code, words", [
    ([("a", "b", None)], [], DATA, "the label 'label' is null, expected text, a whole number, true or false"),
    ([("a", "b", 0.5)], [], DATA, "the label 'label' is 0.5"),
    ([("a", "b", float("nan"))], [], DATA, "the label 'label' is NaN"),
    ([("a", "b", float("inf"))], [], DATA, "the label 'label' is Infinity"),
    ([("a", "b", ["long" * 999])], [], DATA, "…, expected text, a whole number"),
    ([("a", "b", "\033[31mred")], ["--labels-from", "names"], DATA, "label '\\x1b[31mred' is not among those of --labels-from: 0"),
    ([("a", "b", f"{i:06}" * 1000) for i in range(3000)], [], DATA, "the names of 3,000 labels take 18,"),
    ([("a", "b", -1), ("b", "b", 0)], [], DATA, "label -1: numbers from 0 on are labels"),
    (PAIRS, ["--label", "lable"], DATA, "no field 'lable'; it has: first, second, label"),
    (PAIRS, ["--special", "eos"], USAGE, "--special: with --label auto or none"),
    (PAIRS, ["--fields", "first,second,label"], USAGE, "--fields: with --label one text, or a pair of texts"),
    (PAIRS, ["--labels-from", "nowhere"], DATA, "cannot read 'nowhere.labels.json'"),
], ids=["null", "real", "nan", "inf", "list", "escaped", "names", "negative", "field", "special", "three", "labels-from"])
def test_tokenize_refuses(folder, rows, options, code, words):
    write_rows(folder, "x.jsonl", rows)
    with open(folder.at("names.labels.json"), "w", encoding="utf-8") as f:
        f.write('{"id2label": {"0": "0"}}')
    assert words in tokenize(folder, "x.jsonl", "--label", "label", "--fields", "first", "--output", "x", "--tokenizer",
                             "byte", *options, code=code)


@pytest.mark.interop
def test_tokenize_pairs_as_the_tokenizer_puts_them_together(folder):
    import tokenizers

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefgh"]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    os.makedirs(folder.at("tokenizer"))
    tokenizer.save(folder.at("tokenizer", "tokenizer.json"))
    rows = [("a b c d e", "f g", 0), ("a", "b c d e f g h", 1), ("a b", "c", 0), ("a b c d", "e f g h", 1)]
    write_rows(folder, "x.jsonl", rows)
    out = tokenize(folder, "x.jsonl", "--label", "label", "--fields", "first,second", "--output", "x", "--tokenizer", "tokenizer",
                   "--max-length", 8)
    assert "joined     [CLS] first [SEP] second [SEP]\n" in out and "[CLS] a b c [SEP]\u27e6f g [SEP]\u27e7" in out
    out = tokenize(folder, "x.jsonl", "--label", "label", "--fields", "first,second", "--output", "y", "--tokenizer", "tokenizer",
                   "--special", "none")
    assert "joined     first second\n" in out and "a b c d e\u27e6f g\u27e7" in out
    a = 4  # the ids of a … h are 4 … 11
    assert read_labelled(folder, "x") == [
        ([2, a, a + 1, a + 2, 3, a + 5, a + 6, 3], [0] * 5 + [1] * 3, 0), ([2, a, 3, *range(a + 1, a + 5), 3], [0] * 3 + [1] * 5, 1),
        ([2, a, a + 1, 3, a + 2, 3], [0] * 4 + [1] * 2, 0), ([2, a, a + 1, 3, a + 4, a + 5, a + 6, 3], [0] * 4 + [1] * 4, 1)]
    tokenize(folder, "x.jsonl", "--label", "label", "--fields", "first", "--output", "x", "--tokenizer", "tokenizer",
             "--max-length", 4)
    assert read_labelled(folder, "x")[0] == ([2, a, a + 1, 3], None, 0)

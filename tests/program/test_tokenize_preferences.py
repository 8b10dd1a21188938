# SPDX-License-Identifier: Apache-2.0
"""scripts/tokenize.py --preference: pairs of texts and texts with a label, what is dropped, and wrong data."""
import json
import os
import struct

import pytest

from test_tokenize import END, read_mask, read_shard, tokenize, write

OUT = ("--output", "o", "--tokenizer", "byte", "--preference")


def prepare(tmp_path, rows, *arguments, code=0):
    """What was printed."""
    if isinstance(rows, list):
        write(tmp_path / "in.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return tokenize("in.jsonl" if isinstance(rows, list) else rows, *OUT, *arguments, code=code, cwd=tmp_path)


def answers(prefix):
    """[(prompt, answer with <end>, name of the label)] of each document."""
    mask, data = read_mask(prefix), open(f"{prefix}.labels", "rb").read()
    with open(f"{prefix}.labels.json", encoding="utf-8") as file:
        names = json.load(file)["id2label"]
    found, position = [], 0
    for ids, label in zip(read_shard(prefix), struct.unpack(f"<{len(data) // 4}i", data)):
        bits, position = list(mask[position : position + len(ids)]), position + len(ids)
        assert bits == sorted(bits) and all(i < 256 for i in ids[:-1])
        first = bits.index(1)
        found.append((bytes(ids[:first]).decode(), bytes(i for i in ids[first:] if i < 256).decode() + "<end>" * (ids[-1] == END),
                      names[str(label)]))
    return found


PAIR = {"prompt": "The sky is", "chosen": " blue.", "rejected": " red."}
TWO = [("The sky is", " blue.<end>", "chosen"), ("The sky is", " red.<end>", "rejected")]


@pytest.mark.parametrize("row", [
    PAIR, {"chosen": "The sky is blue.", "rejected": "The sky is red."}, {**PAIR, "id": 3, "score_chosen": 0.5, "label": 1},
    {**PAIR, "messages": None, "question": "?"}])
def test_pairs(tmp_path, row):
    out = prepare(tmp_path, [row, {"prompt": "1 + 1 = ", "chosen": 2, "rejected": "3"}])
    assert answers(tmp_path / "o") == TWO + [("1 + 1 = ", "2<end>", "chosen"), ("1 + 1 = ", "3<end>", "rejected")]
    assert "pairs      2: " in out and "dropped" not in out and "labelled chosen" in out and "The sky is⟦ blue.<256>⟧" in out
    prepare(tmp_path, [row], "--special", "none")
    assert [answer for _, answer, _ in answers(tmp_path / "o")] == [" blue.", " red."]


def test_prompts_that_both_answers_begin_with(tmp_path):
    """As TRL's extract_prompt: a blank belongs to the answers, and so does the last character of the shorter one."""
    prepare(tmp_path, [{"chosen": one, "rejected": other} for one, other in (("a b", "a c"), ("ab", "abc"), ("axy", "azy"))])
    assert [text for _, text, _ in answers(tmp_path / "o")] == [" b<end>", " c<end>", "b<end>", "bc<end>", "xy<end>", "zy<end>"]
    assert "dropped    1 pair: no prompt that both begin with\n" in prepare(tmp_path, [PAIR, {"chosen": "x ", "rejected": "y"}])


def test_examples_with_a_label(tmp_path):
    rows = [{"prompt": "The sky is", "completion": f" {i}", "label": label} for i, label in enumerate(
        [True, False, 1, 0, 1.0, 0.0, "true", "False", "1", "0"])]
    out = prepare(tmp_path, rows)
    assert answers(tmp_path / "o") == [("The sky is", f" {i}<end>", ("desirable", "undesirable")[i % 2]) for i in range(10)]
    assert "examples   5 desirable, 5 undesirable\n" in out and "pairs" not in out
    prepare(tmp_path, [{"q": "a", "a": "b", "good": 0}], "--fields", "q,a", "--label", "good")
    assert answers(tmp_path / "o") == [("a", "b<end>", "undesirable")]  # of one kind, and still the names of both


def test_columns_of_tables(tmp_path):
    write(tmp_path / "in.csv", "prompt,rejected,chosen,id\nThe sky is, red., blue.,1\n")
    prepare(tmp_path, "in.csv")
    assert answers(tmp_path / "o") == TWO
    write(tmp_path / "in.tsv", "q\tgood\tbad\nThe sky is\t blue.\t red.\n")
    prepare(tmp_path, "in.tsv", "--fields", "q,good,bad")
    assert answers(tmp_path / "o") == TWO
    write(tmp_path / "in.csv", "prompt,completion,label\na,b,True\na,c,0\n")
    prepare(tmp_path, "in.csv")
    assert answers(tmp_path / "o") == [("a", "b<end>", "desirable"), ("a", "c<end>", "undesirable")]
    write(tmp_path / "in.json", json.dumps([PAIR]))
    prepare(tmp_path, "in.json")
    assert answers(tmp_path / "o") == TWO


def test_what_is_dropped_is_counted(tmp_path):
    rows = [{**PAIR, "chosen": PAIR["rejected"]}, {**PAIR, "chosen": None}, {**PAIR, "rejected": " \n"}, PAIR, {**PAIR, "chosen": "x" * 6}]
    out = prepare(tmp_path, rows, "--max-length", 17)
    assert answers(tmp_path / "o") == TWO + [("The sky is", "xxxxxx<end>", "chosen"), TWO[1]]
    assert "dropped    2 pairs: an answer is empty\ndropped    1 pair: chosen and rejected are equal\n" in out and "longer" not in out
    out = prepare(tmp_path, rows + [{**PAIR, "rejected": "x" * 7}], "--max-length", 17)
    assert len(answers(tmp_path / "o")) == 4 and "dropped    1 pair: longer than 17 tokens\n" in out


def test_long_examples_are_dropped(tmp_path):
    rows = [{"prompt": "p" * i, "completion": "c", "label": 1} for i in range(3, 9)]
    out = prepare(tmp_path, rows, "--max-length", 7)
    assert [len(prompt) for prompt, _, _ in answers(tmp_path / "o")] == [3, 4, 5]
    assert "dropped    3 examples: longer than 7 tokens\n" in out
    error = prepare(tmp_path, rows, "--max-length", 2, code=3)
    assert "nothing to learn from; dropped: 6 examples: longer than 2 tokens" in error


def test_pairs_stay_together(tmp_path):
    rows = [{"prompt": f"{i // 2} is", "chosen": f" {i}", "rejected": " no"} for i in range(3000)]
    for workers in (1, 2):
        prepare(tmp_path, rows, "--validation", "0.2", "--workers", workers)
        train, validation = answers(tmp_path / "o"), answers(tmp_path / "o-validation")
        assert len(train) + len(validation) == 6000 and 800 < len(validation) < 1600
        for some in (train, validation):
            assert [name for *_, name in some] == ["chosen", "rejected"] * (len(some) // 2)
            assert all(one[0] == other[0] for one, other in zip(some[::2], some[1::2]))
        assert not {prompt for prompt, *_ in train} & {prompt for prompt, *_ in validation}
    prepare(tmp_path, rows[:4], "--validation", "1e-9")
    assert len(answers(tmp_path / "o")) == 6 and [answer for _, answer, _ in answers(tmp_path / "o-validation")] == [" 3<end>", " no<end>"]
    assert "one pair cannot be split" in prepare(tmp_path, rows[:1], "--validation", "0.5", code=3)


@pytest.mark.parametrize("rows, arguments, code, words", [
    ([PAIR, {"prompt": "a", "better": "b"}], [], 3, ["'in.jsonl' line 2: its columns are of no form of preference data; it has: prompt, better; hint: --fields"]),
    ([{"prompt": "a", "completion": "b"}], [], 3, ["line 1: its columns", "prompt, completion"]),
    ([PAIR, {"prompt": "a", "completion": "b", "label": 1}], [], 3, ["line 2 is of another form than 'in.jsonl' line 1: pairs"]),
    ([{"prompt": "a", "completion": "b", "label": 2}], [], 3, ["line 1: the label 'label' is 2, expected true, false, 1 or 0"]),
    ([{"prompt": "a", "completion": "b", "label": None}], [], 3, ["line 1: the label 'label' is null, expected"]),
    ([{"prompt": "a", "completion": "b", "kto_tag": "good"}], [], 3, ['the label \'kto_tag\' is "good", expected']),
    ([PAIR], ["--fields", "prompt,chosen,worse"], 3, ["line 1: no field 'worse'; it has: prompt, chosen, rejected"]),
    ([PAIR], ["--fields", "prompt,chosen", "--label", "good"], 3, ["line 1: no field 'good'"]),
    ([{"question": "a", "chosen": "b", "rejected": "c"}], [], 2, ["--preference with messages in the fields: the byte vocabulary has no chat template"]),
    ([{"prompt": [{"role": "user", "content": "a"}], "chosen": "b", "rejected": "c"}], [], 2, ["no chat template; name a tokenizer folder"]),
    ([[1]], [], 3, ["line 1: expected a JSON object"]),
    ([PAIR], ["--fields", "a"], 2, ["PROMPT,CHOSEN,REJECTED or CHOSEN,REJECTED"]),
    ([PAIR], ["--fields", "a,b,c", "--label", "d"], 2, ["with --label PROMPT,COMPLETION"]),
    ([PAIR], ["--fields", "1,2,3"], 2, ["column numbers"]),
    ([PAIR], ["--completion", "a,b"], 2, ["--preference and --completion are two forms of data"]),
    ([PAIR], ["--labels-from", "o"], 2, ["--labels-from goes with --label"]),
    ([PAIR], ["--chat-template"], 2, ["the byte vocabulary has no chat template"]),
])
def test_what_is_refused(tmp_path, rows, arguments, code, words):
    error = prepare(tmp_path, rows, *arguments, code=code)
    assert all(word in error for word in words), error
    assert os.listdir(tmp_path) == ["in.jsonl"]


def test_text_files_are_refused(tmp_path):
    write(tmp_path / "in.txt", "text")
    assert "'in.txt' is text; --chat-template, --completion, --preference and --label take" in prepare(tmp_path, "in.txt", code=2)

# SPDX-License-Identifier: Apache-2.0
"""scripts/tokenize.py --preference: tokens and masks are those of TRL's DPOTrainer and KTOTrainer, but texts of a prompt and an
answer are tokenized apart."""
import csv
import json
import struct
import types

import datasets
import pytest
import test_chat
import tokenizers
from trl import data_utils
from trl.trainer import dpo_trainer as dpo, kto_trainer as kto
from test_chat import CHATML, GEMMA, LLAMA3, PREFILLED, TALK, bare, make_folder, prepare

pytestmark = pytest.mark.interop

ASK, SAY, BAD = TALK[0], "Eight legs; über 8.", "Four. 数"


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


USER, GOOD, WRONG = turn("user", ASK), turn("assistant", SAY), turn("assistant", BAD)
SYSTEM = turn("system", "Be brief.")
FIRST = [turn("user", TALK[2]), turn("assistant", TALK[3])]


def trl(fast, rows, max_length=None):
    """[(tokens, mask)] of each document by TRL: of pairs the chosen one, then the rejected one."""
    args = types.SimpleNamespace(dataset_num_proc=None, max_length=max_length, truncation_mode="keep_start", per_device_train_batch_size=1)
    trainer = types.SimpleNamespace(_tokenizer=fast, calculate_KL=False, desirable_weight=1, undesirable_weight=1)
    kind = dpo.DPOTrainer if "chosen" in rows[0] else kto.KTOTrainer
    found = []
    for row in kind._prepare_dataset(trainer, datasets.Dataset.from_list(rows), fast, args, "eval"):
        for name in ("chosen_ids", "rejected_ids") if "chosen_ids" in row else ("completion_ids",):
            found.append((row["prompt_ids"] + row[name], [0] * len(row["prompt_ids"]) + [1] * len(row[name])))
    return found


def texts_of(row):
    """(prompt, answer) of each document."""
    row = row if "prompt" in row else data_utils.extract_prompt(row)
    return [(row["prompt"], row[name]) for name in ("chosen", "rejected", "completion") if name in row]


def apart(fast, kind, rows):
    """[(tokens, mask)] of each document by the Hugging Face tokenizer on the prompt, then on the answer."""
    found = []
    for prompt, answer in (pair for row in rows for pair in texts_of(row)):
        before = fast(prompt)["input_ids"]  # with a begin if the tokenizer puts one
        first = fast.backend_tokenizer.pre_tokenizer
        if kind == "pieces" and prompt:  # no blank before what does not begin a text
            fast.backend_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never")
        ids = fast(answer, add_special_tokens=False)["input_ids"] + [fast.eos_token_id] * (not answer.endswith(fast.eos_token))
        fast.backend_tokenizer.pre_tokenizer = first
        found.append((before + ids, [0] * len(before) + [1] * len(ids)))
    return found


def spans(fast, row):
    """Whether a token of the prompt with any answer has characters of both."""
    return any(start < len(prompt) < end for prompt, answer in texts_of(row)
               for start, end in fast(prompt + answer, return_offsets_mapping=True)["offset_mapping"])


def labels(tmp_path):
    data = (tmp_path / "o.labels").read_bytes()
    names = json.loads((tmp_path / "o.labels.json").read_text())["id2label"]
    return [names[str(i)] for i in struct.unpack(f"<{len(data) // 4}i", data)]


TEXTS = [
    [{"prompt": "How many?", "chosen": " Eight legs", "rejected": " Four."}, {"prompt": "a", "chosen": " Ä ", "rejected": "ß</s>"},
     {"prompt": "How many? ", "chosen": "Eight", "rejected": "legs"}, {"prompt": "a spi", "chosen": "der", "rejected": "x"}],
    [{"chosen": "How many? Eight legs", "rejected": "How many? Four."}, {"chosen": "ab", "rejected": "abc"},
     {"chosen": "How many legs", "rejected": "How many lies"}],
    [{"prompt": "How many?", "completion": " Eight", "label": True}, {"prompt": "", "completion": " Four.", "label": False},
     {"prompt": "a spi", "completion": "der", "label": True}],
]
TALKS = [
    [{"prompt": [USER], "chosen": [GOOD], "rejected": [WRONG]}, {"prompt": [*FIRST, USER], "chosen": [GOOD], "rejected": [WRONG, *FIRST, WRONG]}],
    [{"chosen": [USER, GOOD], "rejected": [USER, WRONG]}, {"chosen": [*FIRST, USER, GOOD], "rejected": [*FIRST, USER, WRONG]},
     {"chosen": [USER, GOOD], "rejected": [USER, GOOD, USER, WRONG]}],
    [{"prompt": [USER], "completion": [GOOD], "label": True}, {"prompt": [*FIRST, USER], "completion": [WRONG], "label": False}],
]


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
@pytest.mark.parametrize("rows", TEXTS, ids=["explicit", "implicit", "single"])
def test_texts(tmp_path, rows, kind):
    fast = make_folder(tmp_path / "hf", CHATML, kind)
    documents, out = prepare(tmp_path, tmp_path / "hf", rows, "--preference")
    assert documents == apart(fast, kind, rows) and "merged" not in out
    spanned = [spans(fast, row) for row in rows for _ in texts_of(row)]
    assert any(spanned) and [one != other for one, other in zip(documents, trl(fast, rows))] == spanned
    names = [("undesirable", "desirable")[row["label"]] for row in rows if "label" in row]
    assert labels(tmp_path) == (names or ["chosen", "rejected"] * len(rows))


CHANGED = """{%- set all %}{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}{% endset %}{{- all | upper }}
{%- if add_generation_prompt %}{{- '<S>ASSISTANT: ' }}{%- endif %}"""  # nobody can tell by its loop who says what
TEMPLATES = {"chatml": CHATML, "bare": bare(CHATML), "llama3": LLAMA3, "gemma": GEMMA, "prefilled": PREFILLED, "changed": CHANGED}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("rows", TALKS, ids=["explicit", "implicit", "single"])
def test_conversations(tmp_path, rows, template):
    fast = make_folder(tmp_path / "hf", template)
    documents, out = prepare(tmp_path, tmp_path / "hf", rows, "--preference")
    assert documents == trl(fast, rows)
    assert ("merged" in out) == (template == PREFILLED)


def test_tools_and_other_values(tmp_path):
    fast = make_folder(tmp_path / "hf", LLAMA3.replace("{{- bos_token }}", "{{- bos_token }}{{- mood }}"))
    tools = [{"type": "function", "function": {"name": "count"}}]
    rows = [{"prompt": [USER], "chosen": [GOOD], "rejected": [WRONG], "tools": tools, "chat_template_kwargs": {"mood": "calm "}}]
    documents, out = prepare(tmp_path, tmp_path / "hf", rows, "--preference")
    assert documents == trl(fast, rows) and "calm" in out and "count" in out
    as_text = [{**rows[0], "tools": json.dumps(tools)}]
    assert prepare(tmp_path, tmp_path / "hf", as_text, "--preference")[0] == documents
    make_folder(tmp_path / "chatml", CHATML)
    assert "line 1: the tools" in prepare(tmp_path, tmp_path / "chatml", rows, "--preference")[1]


PAIR = {"prompt": [USER], "chosen": [GOOD], "rejected": [WRONG]}
WITH_SYSTEM = {**PAIR, "prompt": [SYSTEM, USER]}
LONGER = {**PAIR, "prompt": [*FIRST, USER]}
SHARED = {"conversations": [{"from": "human", "value": ASK}], "chosen": {"from": "gpt", "value": SAY}, "rejected": {"from": "gpt", "value": BAD}}
ANSWERED = {"prompt": [USER], "completion": [GOOD]}


@pytest.mark.parametrize("row, same", [
    # chat_template.default and .argilla_chat
    ({"messages": [USER], "chosen": GOOD, "rejected": WRONG}, PAIR),
    ({"messages": ASK, "chosen": SAY, "rejected": BAD}, PAIR),
    ({"messages": [*FIRST, USER], "chosen": [GOOD], "rejected": [WRONG]}, LONGER),
    ({"messages": [USER, GOOD], "prompt": ASK, "chosen": [USER, GOOD], "rejected": [USER, WRONG]}, PAIR),
    ({"conversation": [USER], "chosen": [GOOD], "rejected": [WRONG]}, PAIR),
    # chatml.intel, .argilla, .icr, .ultra, .prompt_pairs, and the like of llama3
    ({"system": "Be brief.", "question": ASK, "chosen": SAY, "rejected": BAD}, WITH_SYSTEM),
    ({"system": "", "question": ASK, "chosen": SAY, "rejected": BAD}, PAIR),
    ({"instruction": ASK, "chosen_response": SAY, "rejected_response": BAD}, PAIR),
    ({"system": "Be brief.", "input": ASK, "chosen": SAY, "rejected": BAD, "generations": ["x"]}, WITH_SYSTEM),
    ({"system": "Be brief.", "prompt": ASK, "chosen": [USER, GOOD], "rejected": [USER, WRONG]}, WITH_SYSTEM),
    ({"system": "Be brief.", "prompt": ASK, "chosen": SAY, "rejected": BAD}, WITH_SYSTEM),
    # zephyr.nectar
    ({"prompt": ASK, "answers": [{"answer": "x", "rank": 2.0}, {"answer": BAD, "rank": 3}, {"answer": SAY, "rank": 1}]}, PAIR),
    ({"prompt": f"\n\nHuman: {TALK[2]}\n\nAssistant: {TALK[3]}\n\nHuman: {ASK}\n\nAssistant: ",
      "answers": [{"answer": SAY, "rank": 1}, {"answer": BAD, "rank": 2}]}, LONGER),
    # LLaMA-Factory
    (SHARED, PAIR),
    ({**SHARED, "system": "Be brief."}, WITH_SYSTEM),
    ({"instruction": "How many", "input": "legs?", "chosen": SAY, "rejected": BAD}, {**PAIR, "prompt": [turn("user", "How many\nlegs?")]}),
    ({"instruction": ASK, "input": "", "history": [[TALK[2], TALK[3]]], "chosen": SAY, "rejected": BAD}, LONGER),
    # examples with a label
    ({"prompt": ASK, "completion": SAY, "kto_tag": True}, ANSWERED),
    ({"instruction": ASK, "completion": SAY, "label": "true"}, ANSWERED),
    ({"input": ASK, "completion": SAY, "label": 1}, ANSWERED),
    ({"question": ASK, "completion": SAY, "label": 1.0, "system": "Be brief."}, {**ANSWERED, "prompt": [SYSTEM, USER]}),
    ({"instruction": ASK, "input": "", "output": SAY, "kto_tag": True}, ANSWERED),
    ({"conversations": [SHARED["conversations"][0], SHARED["chosen"]], "kto_tag": True}, ANSWERED),
    ({"messages": [*FIRST, USER, GOOD], "label": True}, {**ANSWERED, "prompt": [*FIRST, USER]}),
    ({"completion": [USER, GOOD], "label": True}, ANSWERED),
])
def test_other_forms(tmp_path, row, same):
    """Forms of axolotl and LLaMA-Factory are read as TRL's conversations that say the same."""
    fast = make_folder(tmp_path / "hf", CHATML)
    documents, _ = prepare(tmp_path, tmp_path / "hf", [row], "--preference")
    assert documents == trl(fast, [{**same, "label": True} if "completion" in same else same])
    assert labels(tmp_path) == (["desirable"] if "completion" in same else ["chosen", "rejected"])


def test_fields_that_are_named(tmp_path):
    fast = make_folder(tmp_path / "hf", CHATML)

    def run(row, *arguments):
        return prepare(tmp_path, tmp_path / "hf", [row], "--preference", *arguments)[0]

    row = {"q": ASK, "yes": " 8", "no": " 4", "good": False}
    plain = {"prompt": ASK, "chosen": " 8", "rejected": " 4"}
    assert run(row, "--fields", "q,yes,no") == trl(fast, [plain])
    assert run({"yes": ASK + " 8", "no": ASK + " 4"}, "--fields", "yes,no") == trl(fast, [plain])
    assert run(row, "--fields", "q,no", "--label", "good") == trl(fast, [plain])[1:] and labels(tmp_path) == ["undesirable"]
    assert run({**plain, "chosen": SAY, "rejected": BAD}, "--chat-template") == trl(fast, [PAIR])
    assert run({"q": ASK, "yes": SAY, "no": BAD}, "--fields", "q,yes,no", "--chat-template") == trl(fast, [PAIR])
    assert run({"talk": [USER], "yes": GOOD, "no": WRONG}, "--fields", "talk,yes,no") == trl(fast, [PAIR])
    assert run({"completion": SAY, "prompt": ASK, "label": 0, "good": 1}, "--label", "good", "--chat-template") == trl(
        fast, [{**ANSWERED, "label": True}]) and labels(tmp_path) == ["desirable"]


def test_special_tokens(tmp_path):
    fast = make_folder(tmp_path / "hf", LLAMA3, "pieces")  # it puts a begin before a text
    begin, end = fast.bos_token_id, fast.eos_token_id
    row = {"prompt": "a", "chosen": " Ä", "rejected": " ß"}

    def run(row, special):
        return prepare(tmp_path, tmp_path / "hf", [row], "--preference", "--special", special)[0]

    (ids, mask), _ = run(row, "auto")
    assert ids[0] == begin and ids[-1] == end and ids.count(begin) == ids.count(end) == 1 and mask[-1] == 1
    assert run(row, "none")[0] == (ids[1:-1], mask[1:-1]) and run(row, "eos")[0] == (ids[1:], mask[1:])
    (ids, mask), _ = run(PAIR, "auto")
    assert ids[0] == begin and end not in ids
    assert run(PAIR, "both")[0] == (ids + [end], mask + [1]) and run(PAIR, "none")[0] == (ids, mask)


def test_pairs_that_are_too_long(tmp_path):
    fast = make_folder(tmp_path / "hf", CHATML)
    rows = [{**PAIR, "rejected": [turn("assistant", BAD * n)]} for n in (1, 20, 2)]
    whole = trl(fast, rows)
    limit = max(len(ids) for ids, _ in whole[4:])
    documents, out = prepare(tmp_path, tmp_path / "hf", rows, "--preference", "--max-length", limit)
    assert documents == whole[:2] + whole[4:] and f"dropped    1 pair: longer than {limit} tokens\n" in out
    assert "longer than 5 tokens" in prepare(tmp_path, tmp_path / "hf", rows, "--preference", "--max-length", 5, code=3)


def test_tables(tmp_path):
    """A row of a table has nulls where other rows have members."""
    import pyarrow
    import pyarrow.parquet
    fast = make_folder(tmp_path / "hf", CHATML)
    rows = [{**PAIR, "chosen": [{**GOOD, "name": "x"}]}, {**PAIR, "prompt": [{**USER, "name": "y"}]}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "in.parquet")
    prepare(tmp_path, tmp_path / "hf", rows, "--preference")
    expected = (tmp_path / "o.bin").read_bytes()
    test_chat.tokenize(tmp_path / "in.parquet", "--output", tmp_path / "o", "--tokenizer", tmp_path / "hf", "--preference")
    assert (tmp_path / "o.bin").read_bytes() == expected
    assert trl(fast, [PAIR]) * 2 == prepare(tmp_path, tmp_path / "hf", rows, "--preference")[0]


def test_messages_of_csv_are_json(tmp_path):
    fast = make_folder(tmp_path / "hf", CHATML)
    with open(tmp_path / "in.csv", "w", newline="") as file:
        csv.writer(file).writerows([PAIR, [json.dumps(value) for value in PAIR.values()], ["[1]", "[2]", "[3]"]])
    test_chat.tokenize(tmp_path / "in.csv", "--output", tmp_path / "o", "--tokenizer", tmp_path / "hf", "--preference")
    whole = trl(fast, [PAIR]) + trl(fast, [{"prompt": "[1]", "chosen": "[2]", "rejected": "[3]"}])
    data = (tmp_path / "o.bin").read_bytes()
    assert list(struct.unpack(f"<{len(data) // 2}H", data)) == [i for ids, _ in whole for i in ids]


@pytest.mark.parametrize("row, words", [
    ({"prompt": [USER], "chosen": "x", "rejected": [3]}, "line 1: message 2 is not a JSON object"),
    ({"prompt": [{"text": "a"}], "chosen": "x", "rejected": "y"}, "line 1: message 1 has no 'role' that is text; it has: text"),
    ({"completion": "x", "kto_tag": 1}, "line 1: it has no prompt"),
    ({"prompt": "x", "answers": [{"text": "a"}]}, "line 1: 'answers' is no list of objects with 'answer' and 'rank'"),
    ({"prompt": "x", "answers": [{"answer": 3, "rank": 1}, {"answer": 4, "rank": 2}]}, "line 1: 'answers' is no list of objects"),
    ({"instruction": "x", "history": [3], "chosen": "x", "rejected": "y"}, "line 1: 'history' is no list of pairs of texts"),
    ({"chosen": "Are", "rejected": "Ass", "system": "x"}, "line 1: it has no prompt"),
    ({"chosen": [USER, GOOD], "rejected": [turn("user", "?"), WRONG]}, "dropped: 1 pair: no prompt that both begin with"),
    ({"prompt": [USER], "chosen": [turn("assistant", " ")], "rejected": [WRONG]}, "dropped: 1 pair: an answer is empty"),
])
def test_what_cannot_be_used(tmp_path, row, words):
    make_folder(tmp_path / "hf", CHATML)
    assert words in prepare(tmp_path, tmp_path / "hf", [row], "--preference", code=3)


def test_workers_and_validation(tmp_path):
    """Neither the split nor the bytes depend on the number of workers, and pairs stay together."""
    make_folder(tmp_path / "hf", CHATML)
    rows = [{"prompt": [turn("user", f"{i // 2} {ASK}")], "chosen": [GOOD], "rejected": [WRONG]} for i in range(5000)]
    files = [f"o{side}.{end}" for side in ("", "-validation") for end in ("bin", "idx", "mask", "labels")]
    seen = []
    for workers in (1, 2):
        prepare(tmp_path, tmp_path / "hf", rows, "--preference", "--validation", "0.1", "--workers", workers)
        seen.append([(tmp_path / file).read_bytes() for file in files])
    assert seen[0] == seen[1] and set(struct.iter_unpack("<2i", seen[0][7])) == {(1, 0)} and len(seen[0][7]) % 16 == 0

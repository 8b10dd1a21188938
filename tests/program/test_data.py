# SPDX-License-Identifier: Apache-2.0
"""ztrain data: counts and lengths of token shards, and documents with what is learned."""
import json
import os
import pty
import subprocess

from harness import DATA, ROOT, USAGE, ZTRAIN, documents, write_llmc, write_mask, write_megatron
from test_token_sets import tokenize

LABELLED = [{"text": "good", "label": "up"}] * 3 + [{"text": "bad \u001b[2J", "label": "down"}]
PAIRS = [{"prompt": "Größe?", "completion": " 12 m"}, {"prompt": "a", "completion": "b\nc"}]


def facts(text):
    """{first word of a line: its rest} of what comes before the documents."""
    lines = text.split("\n\n")[0].splitlines()
    return {line.split()[0]: line.split(None, 1)[1] for line in lines}


def test_counts_and_lengths(folder):
    docs = [[1] * n for n in [7] * 10 + [9] * 80 + [30] * 9 + [400]]
    docs[3][2] = 61
    write_megatron(folder.at("a"), docs[:50])
    write_megatron(folder.at("b"), docs[50:])
    done = facts(folder.ztrain("data", folder.at("[ab]"), "--seq-length", 30).out)
    total = sum(map(len, docs))
    assert done["documents"] == "100 in 2 shards" and done["tokens"] == f"{total:,}"
    assert done["vocabulary"] == "largest id 61: the model needs vocab_size 62 or more"
    assert done["lengths"] == "min 7, median 9, 90 % 9, 99 % 30, max 400"
    assert done["seq_length"] == "30: 1 document (1.0 %) is longer"
    first_fit = 10 + (10 * 7 + 80 * 9 + 29) // 30  # the long ones have a sample each; the others fill theirs, or nearly
    packed, words = done["epoch"].split(": ")[1].split(", "), ["true", "first_fit", "false"]
    counts = {word: int(text.split()[-1]) for word, text in zip(words, packed)}
    assert counts["true"] == (total - 1) // 30 and counts["false"] == 100
    assert first_fit <= counts["first_fit"] <= first_fit + 4
    assert "learned" not in done and "labels" not in done and "epoch" not in facts(folder.ztrain("data", folder.at("a")).out)
    write_llmc(folder.at("c.bin"), [5, 6, 7])
    assert facts(folder.ztrain("data", folder.at("c.bin")).out)["documents"] == "1 in 1 shard"


def test_what_is_learned_is_marked(folder):
    tokenize(folder.at("chat"), PAIRS, "--completion", "prompt,completion")
    shard = folder.at("chat", "s")
    done = folder.ztrain("data", shard, "--show", 9, "--tokenizer", "byte")
    assert facts(done.out)["learned"].startswith("10 tokens (52.6 %) by the loss mask") and not done.err
    assert "what stands between ⟦ and ⟧ is learned" in done.out
    assert done.out.endswith("document 1: 14 tokens\nGröße?⟦ 12 m<256>⟧\n\ndocument 2: 5 tokens\na⟦b\nc<256>⟧\n")
    ids = folder.ztrain("data", shard, "--show", 1).out
    assert ids.endswith("document 1: 14 tokens\n71 114 195 182 195 159 101 63 ⟦32 49 50 32 109 256⟧\n") and "document 2" not in ids
    write_mask(shard, 19, lambda i: i == 2)
    os.unlink(shard + ".idx")
    write_megatron(shard, [[71] * 14, [98] * 5])
    text = folder.ztrain("data", shard, "--show", 2).out
    assert " by the loss mask; nothing in 1 document\n" in text
    assert "71 71 ⟦71⟧ 71" in text and text.endswith("98 98 98 98 98\n")


def test_a_terminal_has_colours(folder):
    tokenize(folder.at("chat"), PAIRS, "--completion", "prompt,completion")
    for colours, environment in (True, {}), (False, {"NO_COLOR": "1"}):
        main, other = pty.openpty()
        command = [ZTRAIN, "data", folder.at("chat", "s"), "--show", "1", "--tokenizer", "byte"]
        subprocess.run(command, stdout=other, check=True, timeout=60, env={**os.environ, "TERM": "xterm", **environment})
        os.close(other)
        text = os.read(main, 1 << 16).decode()
        os.close(main)
        assert ("?\033[32m 12 m<256>\033[0m" in text) == colours and ("⟦ 12 m<256>⟧" in text) != colours


def test_labels_and_pairs(folder):
    tokenize(folder.at("one"), LABELLED, "--label", "label", "--fields", "text")
    done = folder.ztrain("data", folder.at("one", "s"), "--show", 4, "--tokenizer", "byte").out
    assert facts(done)["labels"] == "2" and facts(done)["up"] == "3 (75.0 %)" and facts(done)["down"] == "1 (25.0 %)"
    assert "label up\ngood" in done and "label down\nbad \\x1b[2J" in done and "\x1b" not in done and "types" not in done
    tokenize(folder.at("two"), [{"a": "x", "b": "y", "label": 1}, {"a": "x", "b": "z", "label": 0}], "--label", "label", "--fields", "a,b")
    assert facts(folder.ztrain("data", folder.at("two", "s")).out)["types"] == "2 documents of two texts"


PREFERENCES = [{"prompt": "Größe?", "chosen": " 12 m", "rejected": " 9"}, {"prompt": "ab", "chosen": "c\nd", "rejected": "c"},
               {"prompt": "", "chosen": "x", "rejected": "y"}]


def test_pairs_of_answers(folder):
    tokenize(folder.at("pairs"), PREFERENCES, "--preference")
    shard = folder.at("pairs", "s")
    done = folder.ztrain("data", shard, "--show", 9, "--tokenizer", "byte").out
    assert facts(done)["pairs"] == "3: a chosen document, then the rejected one" and facts(done)["documents"] == "6 in 1 shard"
    assert "labels" not in facts(done)
    assert done.endswith("\npair 1: 14 and 11 tokens\nGröße?\nchosen\n⟦ 12 m<256>⟧\nrejected\n⟦ 9<256>⟧\n"
                         "\npair 2: 6 and 4 tokens\nab\nchosen\n⟦c\nd<256>⟧\nrejected\n⟦c<256>⟧\n"
                         "\npair 3: 2 and 2 tokens\nchosen\n⟦x<256>⟧\nrejected\n⟦y<256>⟧\n")
    assert "\n97 98\nchosen\n⟦99 10 100 256⟧\nrejected\n⟦99 256⟧\n" in folder.ztrain("data", shard, "--show", 2).out
    with open(shard + ".labels", "r+b") as f:  # no longer pairs
        f.write(bytes(4))
    os.unlink(shard + ".idx")
    write_megatron(shard, [[1] * n for n in (14, 11, 6, 4, 2, 2)])
    write_mask(shard, 39, lambda i: i % 2)
    done = facts(folder.ztrain("data", shard).out)
    assert done["labels"] == "2" and done["rejected"] == "4 (66.7 %)" and "pairs" not in done


def test_long_pairs_are_cut(folder):
    tokenize(folder.at("long"), [{"prompt": "p", "chosen": "c" * 5000, "rejected": "r"}], "--preference")
    done = folder.ztrain("data", folder.at("long", "s"), "--show", 1, "--tokenizer", "byte").out
    assert done.endswith("c⟧\n… 906 more tokens\nrejected\n⟦r<256>⟧\n")


def test_answers_with_a_label(folder):
    tokenize(folder.at("kto"), [{"prompt": "a", "completion": "b", "label": i < 2} for i in range(3)], "--preference")
    done = folder.ztrain("data", folder.at("kto", "s"), "--show", 1, "--tokenizer", "byte").out
    assert facts(done)["desirable"] == "2 (66.7 %)" and facts(done)["undesirable"] == "1 (33.3 %)" and "pairs" not in facts(done)
    assert done.endswith("document 1: 3 tokens, label desirable\na⟦b<256>⟧\n")


def test_many_labels_are_cut(folder):
    docs = documents(30)
    write_megatron(folder.at("many"), docs)
    with open(folder.at("many.labels"), "wb") as f:
        f.write(b"".join(i.to_bytes(4, "little") for i in range(30)))
    text = folder.ztrain("data", folder.at("many"), "--show", 1).out
    assert "\n  LABEL_19 " in text and "LABEL_20" not in text and "… and labels 20 to 29\n" in text and "label LABEL_0\n" in text
    write_megatron(folder.at("none"), docs)
    done = folder.ztrain("data", folder.at("many"), folder.at("none"), expect=DATA)
    assert "none.bin' has no labels" in done.final_error


def test_a_long_document_is_cut(folder):
    write_megatron(folder.at("long"), [[3] * 5000])
    assert folder.ztrain("data", folder.at("long"), "--show", 1).out.endswith(" 3 3\n… 904 more tokens\n")


def test_a_reader_may_leave_early(folder):
    write_megatron(folder.at("many"), documents(900, longest=400))
    command = f"'{ZTRAIN}' data '{folder.at('many')}' --show 900 | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "documents   900 in 1 shard\n" and done.stderr == ""


def test_a_hugging_face_tokenizer(folder):
    with open(os.path.join(ROOT, "tests", "text", "encodings.json"), encoding="utf-8") as f:
        cases = json.load(f)
    number = cases["texts"].index("Hello, world!")
    write_megatron(folder.at("text"), [cases["gpt2"]["encodings"][number]])
    shown = folder.ztrain("data", folder.at("text"), "--show", 1, "--tokenizer", os.path.join(ROOT, "tests", "text", "gpt2")).out
    assert shown.endswith("tokens\nHello, world!\n")


def test_refusals(folder):
    write_megatron(folder.at("a"), documents(3))
    for arguments, code, words in (
            ([], USAGE, "no shard was named; hint: ztrain data PREFIX --show 3"),
            ([folder.at("none")], DATA, "no token shard"),
            ([folder.at("a"), "--show", "0"], USAGE, "--show must be a number from 1 to 1000, not '0'"),
            ([folder.at("a"), "--seq-length", "8k"], USAGE, "--seq-length must be a number from 1 to 2147483647, not '8k'"),
            ([folder.at("a"), "--tokenizer", "byte"], USAGE, "hint: --show 3"),
            ([folder.at("a"), "--show", "1", "--tokenizer", folder.path], USAGE,
             "hint: without --tokenizer, documents are printed as token ids")):
        assert words in folder.ztrain("data", *arguments, expect=code).final_error, arguments
    with open(folder.at("a.bin"), "r+b") as f:
        f.truncate(10)
    assert "a.bin" in folder.ztrain("data", folder.at("a"), expect=DATA).final_error


def test_text_is_not_read_as_shards(folder):
    with open(folder.at("chats.jsonl"), "w", encoding="utf-8") as f:
        f.write("{}")
    done = folder.ztrain("data", folder.at("chats.jsonl"), expect=DATA)
    assert "chats.jsonl' is text, and not token shards; hint: ztrain-tokenize makes shards of it: --output " in done.final_error

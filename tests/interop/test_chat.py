"""scripts/tokenize.py --chat-template: the tokens and masks are those of transformers' apply_chat_template."""
import json
import os
import re
import struct
import subprocess
import sys

import pytest
import tokenizers
import transformers

pytestmark = pytest.mark.interop

SCRIPT = os.path.join(os.path.dirname(__file__), "..", "..", "scripts", "tokenize.py")
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "[INST]",
           "[/INST]", "<start_of_turn>", "<end_of_turn>"]

# Written for these tests in the style of the families' templates.
CHATML = """{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}
{%- else %}{{- m.content + '<|im_end|>' }}{%- endif %}{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
LLAMA3 = """{{- bos_token }}
{%- if tools is not none and tools %}{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' + tools | tojson + '<|eot_id|>' }}{%- endif %}
{%- for m in messages %}
{{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' }}
{%- if m['role'] == 'assistant' %}{% generation %}{{ m['content'] | trim + '<|eot_id|>' }}{% endgeneration %}
{%- else %}{{- m['content'] | trim + '<|eot_id|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""
MISTRAL = """{{- bos_token }}
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('roles must alternate') }}{%- endif %}
{%- if m.role == 'user' %}{{- '[INST] ' + m.content + ' [/INST]' }}
{%- else %}{% generation %}{{ ' ' + m.content + eos_token }}{% endgeneration %}{%- endif %}
{%- endfor %}"""
GEMMA = """{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'system' %}{{- raise_exception('no system role') }}{%- endif %}
{%- set role = 'model' if m.role == 'assistant' else m.role %}
{{- '<start_of_turn>' + role + '\\n' }}
{%- if role == 'model' %}{% generation %}{{ m.content | trim + '<end_of_turn>' }}{% endgeneration %}
{%- else %}{{- m.content | trim + '<end_of_turn>' }}{%- endif %}{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"""
TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "mistral": MISTRAL, "gemma": GEMMA}

TALK = ["How many legs has a spider?", "  Eight legs; über 8, naïve 数 🕷 ok. ", "And\n\na cat?", "Four.", "Ä?", "ß "]
CHATS = [[{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(TALK[:n])]
         for n in (2, 3, 4, 6)]


def bare(template):
    return re.sub(r"\{% (end)?generation %\}", "", template)


def make_folder(path, template, kind="bytes", trim=False):
    """A tokenizer folder that transformers saved, with a vocabulary made from the texts above."""
    model = tokenizers.models.BPE(unk_token=None if kind == "bytes" else "<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    if kind == "bytes":  # as GPT-2's, Llama 3's and Qwen's
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
        tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=trim)
    else:  # as SentencePiece's
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")
        tokenizer.decoder = tokenizers.decoders.Metaspace(prepend_scheme="first")
        alphabet = sorted(set("".join(TALK) + "▁\n[]{}\":,"))
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>"] + SPECIAL, initial_alphabet=alphabet,
                                             show_progress=False)
    tokenizer.train_from_iterator(TALK * 3 + ["user assistant model system"] * 3, trainer)
    if kind != "bytes":
        first = tokenizer.token_to_id("<s>")
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", first)])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.chat_template = template
    fast.save_pretrained(str(path))
    return fast


def tokenize(*arguments, code=0):
    done = subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    return done.stderr if code else done.stdout


def prepare(tmp_path, folder, rows, *arguments, code=0):
    """[(tokens, mask)] of each document, and what was printed."""
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tokenize(tmp_path / "in.jsonl", "--output", tmp_path / "o", "--tokenizer", folder, *arguments, code=code)
    if code:
        return out
    idx, tokens, mask = ((tmp_path / f"o.{end}").read_bytes() for end in ("idx", "bin", "mask"))
    (count,) = struct.unpack_from("<Q", idx, 18)
    documents, position = [], 0
    for length in struct.unpack_from(f"<{count}i", idx, 34):
        ids = struct.unpack_from(f"<{length}H", tokens, 2 * position)
        documents.append((list(ids), list(mask[position:position + length])))
        position += length
    assert position == len(mask) == len(tokens) // 2
    return documents, out


def theirs(fast, chats, **more):
    """[(tokens, mask)] by transformers."""
    found = [fast.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True, **more) for chat in chats]
    return [(one["input_ids"], one["assistant_masks"]) for one in found]


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_marks_are_those_of_transformers(tmp_path, name, kind):
    fast = make_folder(tmp_path / "hf", TEMPLATES[name], kind)
    documents, out = prepare(tmp_path, tmp_path / "hf", [{"messages": chat} for chat in CHATS], "--chat-template")
    assert documents == theirs(fast, CHATS)
    assert all(0 < sum(mask) < len(mask) for _, mask in documents)
    assert "⟦" in out and "Four." not in out.split("⟧")[0]


@pytest.mark.parametrize("name", TEMPLATES)
def test_roles_give_what_marks_give(tmp_path, name):
    """A template without marks: the assistant's turns with the token that ends them, as the marks of these tests have them."""
    fast = make_folder(tmp_path / "marked", TEMPLATES[name])
    make_folder(tmp_path / "bare", bare(TEMPLATES[name]))
    documents, _ = prepare(tmp_path, tmp_path / "bare", [{"messages": chat} for chat in CHATS], "--chat-template")
    assert documents == theirs(fast, CHATS)


def test_blanks_that_offsets_leave_out(tmp_path):
    """Some tokenizers count a word's blank to no token: transformers' mask is 0 then where a turn begins with one."""
    fast = make_folder(tmp_path / "whole", MISTRAL)
    make_folder(tmp_path / "trimmed", MISTRAL, trim=True)
    documents, _ = prepare(tmp_path, tmp_path / "trimmed", [{"messages": chat} for chat in CHATS], "--chat-template")
    assert documents == theirs(fast, CHATS)


def test_where_a_template_is(tmp_path):
    fast = make_folder(tmp_path / "hf", LLAMA3)
    config = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    tools = [{"type": "function", "function": {"name": "legs", "description": "<&>"}}]
    expected = theirs(fast, CHATS, tools=tools)
    rows = [{"messages": chat, "tools": tools} for chat in CHATS]
    (tmp_path / "hf" / "chat_template.jinja").unlink(missing_ok=True)
    shapes = [LLAMA3, [{"name": "default", "template": MISTRAL}, {"name": "tool_use", "template": LLAMA3}],
              [{"name": "any", "template": LLAMA3}]]
    for shape in shapes:
        (tmp_path / "hf" / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": shape}))
        assert prepare(tmp_path, tmp_path / "hf", rows, "--chat-template")[0] == expected
    (tmp_path / "hf" / "chat_template.jinja").write_text(LLAMA3)
    (tmp_path / "hf" / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": MISTRAL}))
    assert prepare(tmp_path, tmp_path / "hf", rows, "--chat-template")[0] == expected


def test_other_shapes_of_conversations(tmp_path):
    fast = make_folder(tmp_path / "hf", CHATML)
    chat = CHATS[1]
    shared = [{"from": {"user": "human", "assistant": "gpt"}[m["role"]], "value": m["content"]} for m in chat]
    rows = [{"conversations": shared}, {"messages": json.dumps(chat), "tools": None},
            {"messages": [{**m, "tool_calls": None} for m in chat]}]
    assert prepare(tmp_path, tmp_path / "hf", rows, "--chat-template")[0] == theirs(fast, [chat] * 3)
    assert prepare(tmp_path, tmp_path / "hf", [{"talk": chat}], "--chat-template", "--fields", "talk")[0] == theirs(fast, [chat])


@pytest.mark.parametrize("template, row, words", [
    (MISTRAL, {"messages": CHATS[0][1:]}, ["line 1", "roles must alternate"]),
    (GEMMA, {"messages": [{"role": "system", "content": "x"}]}, ["line 1", "no system role"]),
    (CHATML, {"messages": [{"content": "x"}]}, ["line 1", "message 1 has no 'role'", "content"]),
    (CHATML, {"messages": ["x"]}, ["message 1 is not a JSON object"]),
    (CHATML, {"messages": "x"}, ["'messages' is text, and not JSON"]),
    (CHATML, {"messages": {"role": "user"}}, ["not a list of messages"]),
    (CHATML, {"text": "x"}, ["no field 'messages'", "text"]),
    (CHATML, {"messages": CHATS[0][:1]}, ["nothing to learn from", "the assistant says nothing"]),
    (CHATML, {"messages": []}, ["no text"]),
    ("{{ messages[0].content.__class__.__mro__ }}", {"messages": CHATS[0]}, ["chat template refuses"]),
    ("{% for m in messages %}", {"messages": CHATS[0]}, ["chat template", "is wrong"]),
    (bare(CHATML).replace("+ m.role", "+ m.role + (messages | length) | string"), {"messages": CHATS[2]},
     ["line 1", "message 2 cannot be found", "generation"]),
    (None, {"messages": CHATS[0]}, ["no chat template", "chat_template.jinja"]),
])
def test_what_cannot_be_rendered(tmp_path, template, row, words):
    make_folder(tmp_path / "hf", template)
    error = prepare(tmp_path, tmp_path / "hf", [row], "--chat-template", code=3)
    assert all(word in error for word in words), error
    assert not (tmp_path / "o.bin").exists()


def test_special_tokens(tmp_path):
    """auto: what the tokenizer adds to a text, and the end of text; with a template only what the template has."""
    fast = make_folder(tmp_path / "hf", CHATML, "pieces")
    begin, end = fast.bos_token_id, fast.eos_token_id
    (tmp_path / "in.txt").write_text("a cat")
    text = fast("a cat", add_special_tokens=False)["input_ids"]
    assert fast("a cat")["input_ids"] == [begin, *text]
    (turn,) = theirs(fast, CHATS[:1])
    for special, first, last in (("auto", [begin], [end]), ("none", [], []), ("bos", [begin], []), ("eos", [], [end]),
                                 ("both", [begin], [end])):
        tokenize(tmp_path / "in.txt", "--output", tmp_path / "t", "--tokenizer", tmp_path / "hf", "--special", special)
        raw = (tmp_path / "t.bin").read_bytes()
        assert list(struct.unpack(f"<{len(raw) // 2}H", raw)) == [*first, *text, *last]
        first, last = ([], []) if special == "auto" else (first, last)
        documents, _ = prepare(tmp_path, tmp_path / "hf", [{"messages": CHATS[0]}], "--chat-template", "--special", special)
        assert documents == [([*first, *turn[0], *last], [0] * len(first) + turn[1] + [1] * len(last))]
    make_folder(tmp_path / "llama", LLAMA3, "pieces")  # its template begins with the token that the tokenizer adds
    documents, _ = prepare(tmp_path, tmp_path / "llama", [{"messages": CHATS[0]}], "--chat-template", "--special", "both")
    assert documents[0][0].count(begin) == 1 and documents[0][0][-1] == end


def test_completions(tmp_path):
    fast = make_folder(tmp_path / "hf", CHATML)
    documents, out = prepare(tmp_path, tmp_path / "hf", [{"q": "How many?", "a": " Eight 数"}], "--completion", "q,a")
    prompt, whole = fast("How many?")["input_ids"], fast("How many? Eight 数")["input_ids"]
    assert whole[:len(prompt)] == prompt
    assert documents == [(whole + [fast.eos_token_id], [0] * len(prompt) + [1] * (len(whole) - len(prompt) + 1))]
    assert "How many?⟦ Eight 数" in out


def test_long_conversations_are_cut(tmp_path):
    make_folder(tmp_path / "hf", CHATML)
    rows = [{"messages": chat} for chat in CHATS]
    whole, _ = prepare(tmp_path, tmp_path / "hf", rows, "--chat-template")
    limit = whole[0][1].index(1) + 2  # the first one's answer has begun
    documents, out = prepare(tmp_path, tmp_path / "hf", rows, "--chat-template", "--max-length", limit)
    assert documents == [(ids[:limit], mask[:limit]) for ids, mask in whole]
    assert "truncated  4 documents" in out
    assert "cuts it off" in prepare(tmp_path, tmp_path / "hf", rows, "--chat-template", "--max-length", 3, code=3)


def test_roles_of_other_names_are_named(tmp_path):
    """A conversation without an assistant is dropped, and the summary says who speaks in it."""
    make_folder(tmp_path / "hf", bare(CHATML))
    bot = {"messages": [{"role": "user", "content": TALK[0]}, {"role": "bot", "content": TALK[3]}]}
    shared = {"messages": [{"from": "human", "value": TALK[0]}, {"from": "model", "value": TALK[3]}]}
    _, out = prepare(tmp_path, tmp_path / "hf", [{"messages": CHATS[0]}, bot, shared], "--chat-template")
    assert "dropped    2 documents with nothing to learn from; the roles in them: bot, human, model, user\n" in out
    error = prepare(tmp_path, tmp_path / "hf", [bot], "--chat-template", code=3)
    assert "the assistant says nothing in them, or --max-length cuts it off; the roles in them: bot, user" in error


def test_a_model_of_the_local_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    model = tmp_path / "home" / "hub" / "models--some--model"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("abc123")
    fast = make_folder(model / "snapshots" / "abc123", CHATML)
    documents, _ = prepare(tmp_path, "some/model", [{"messages": CHATS[0]}], "--chat-template")
    assert documents == theirs(fast, CHATS[:1])
    assert "models--" not in prepare(tmp_path, "some/other", [{"messages": CHATS[0]}], "--chat-template", code=3)


def test_validation_and_workers(tmp_path):
    """The split and the bytes do not depend on the number of workers."""
    make_folder(tmp_path / "hf", CHATML)
    rows = [{"messages": [{"role": "user", "content": f"{i} {TALK[0]}"}, {"role": "assistant", "content": TALK[3]}]}
            for i in range(9000)]
    files = [f"o{side}.{end}" for side in ("", "-validation") for end in ("bin", "idx", "mask")]
    seen = []
    for workers in (1, 2):
        prepare(tmp_path, tmp_path / "hf", rows, "--chat-template", "--validation", "0.1", "--workers", workers)
        seen.append([(tmp_path / file).read_bytes() for file in files])
    assert seen[0] == seen[1] and 600 < (struct.unpack_from("<Q", seen[0][4], 18)[0]) < 1200

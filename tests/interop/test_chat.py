# SPDX-License-Identifier: Apache-2.0
"""scripts/tokenize.py --chat-template: the tokens and masks are those of transformers' apply_chat_template."""
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time

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

# Templates that write a turn in another way when others follow it.
THINKING = """{%- set last = namespace(user=0) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set last.user = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' %}{% generation %}
{%- if loop.index0 > last.user and (loop.last or m.reasoning_content) %}
{{- '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' }}
{%- endif %}{{- m.content }}
{%- for call in m.tool_calls or [] %}{{- '[INST]' + call.function.name + call.function.arguments | tojson }}{%- endfor %}
{{- '<|im_end|>' }}{% endgeneration %}
{%- else %}{{- m.content + '<|im_end|>' }}{%- endif %}{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
END_ONCE = """{%- for m in messages %}{{- '<start_of_turn>' + m.role + '\\n' }}
{%- if m.role == 'assistant' %}{% generation %}{{- m.content + '<end_of_turn>' + ('\\n' if loop.last else '') }}{% endgeneration %}
{{- '' if loop.last else '\\n' }}{%- else %}{{- m.content + '<end_of_turn>\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>assistant\\n' }}
{%- elif messages[-1].role == 'assistant' %}{% generation %}{{- eos_token }}{% endgeneration %}
{%- else %}{{- eos_token }}{%- endif %}"""
PREFILLED = """{{- bos_token }}{%- for m in messages %}{%- if m.role == 'assistant' %}{{- '[/INST]' }}
{%- generation %}{{- m.content.split('</think>')[-1] + eos_token }}{%- endgeneration %}
{%- else %}{{- '[INST]' + m.content }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '[/INST]<think>\\n' }}{%- endif %}"""
SYSTEM_LAST = """{%- set first = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' %}
{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}
{%- for m in messages if m.role != 'system' %}
{%- if m.role != 'assistant' %}{{- '[INST] ' + (first if m == users[-1] else '') + m.content + '[/INST]' }}
{%- else %}{% generation %}{{- ' ' + m.content + eos_token }}{% endgeneration %}{%- endif %}{%- endfor %}"""
CHANGING = {"thinking": THINKING, "end once": END_ONCE, "prefilled": PREFILLED, "system last": SYSTEM_LAST}

TALK = ["How many legs has a spider?", "  Eight legs; über 8, naïve 数 🕷 ok. ", "And\n\na cat?", "Four.", "Ä?", "ß "]
CHATS = [[{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(TALK[:n])]
         for n in (2, 3, 4, 6)]


def bare(template):
    return re.sub(r"\{%-? (end)?generation %\}", "", template)


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


@pytest.mark.parametrize("name", CHANGING)
def test_turns_that_change_when_others_follow(tmp_path, name):
    """Each is learned as the template writes it in the whole conversation."""
    fast = make_folder(tmp_path / "marked", CHANGING[name])
    make_folder(tmp_path / "bare", bare(CHANGING[name]))
    call = {"type": "function", "function": {"name": "count", "arguments": {"legs": 8}}}
    chats = CHATS + [[{"role": "system", "content": "Be kind."}] + CHATS[3], [
        CHATS[0][0], {"role": "assistant", "content": "<b>", "reasoning_content": "spiders", "tool_calls": [call]},
        {"role": "tool", "content": "8"}, {"role": "assistant", "content": "Eight <think>"}]]
    documents, out = prepare(tmp_path, tmp_path / "bare", [{"messages": chat} for chat in chats], "--chat-template")
    assert documents == theirs(fast, chats)
    assert ("not shown" in out) == (name != "thinking")  # the call


def test_an_end_that_the_next_turn_begins_with(tmp_path):
    """The token that ends a turn is learned wherever the template writes it."""
    marked = """{%- for m in messages %}{%- if m.role == 'user' %}{{- '[INST]' + m.content + '<|im_start|>' }}
{%- else %}{% generation %}{{- m.content + ('' if loop.last else '[INST]') }}{% endgeneration %}{%- endif %}{%- endfor %}"""
    marked = marked.replace("{{- '[INST]' +", "{{- ('[INST]' if loop.first else '') +")
    plain = """{%- for m in messages %}{{- '[INST]' + m.content + '<|im_start|>' if m.role == 'user' else m.content }}{%- endfor %}"""
    make_folder(tmp_path / "plain", plain)
    documents, _ = prepare(tmp_path, tmp_path / "plain", [{"messages": chat} for chat in CHATS], "--chat-template")
    assert documents == theirs(make_folder(tmp_path / "marked", marked), CHATS)


@pytest.mark.parametrize("before, after", [
    ("{%- for m in messages %}", "{%- for i in range(messages | length) %}{%- set m = messages[i] %}"),
    ("{%- for m in messages %}", "{%- for m in messages %}{%- if m is none %}{%- break %}{%- endif %}"),
    (bare(CHATML), "{%- macro all() %}" + bare(CHATML) + "{%- endmacro %}{{- all() }}")])
def test_other_ways_through_the_messages(tmp_path, before, after):
    fast = make_folder(tmp_path / "hf", CHATML)
    make_folder(tmp_path / "bare", bare(CHATML).replace(before, after))
    documents, _ = prepare(tmp_path, tmp_path / "bare", [{"messages": chat} for chat in CHATS], "--chat-template")
    assert documents == theirs(fast, CHATS)


def muted(turn, *numbers):
    """A document of theirs() whose assistant's turns of these numbers are not learned."""
    ids, mask = turn
    starts = [i for i, (a, b) in enumerate(zip([0] + mask, mask)) if a < b]
    return ids, [bit and starts.index(max(s for s in starts if s <= i)) not in numbers for i, bit in enumerate(mask)]


@pytest.mark.parametrize("template", [CHATML, bare(CHATML)])
def test_turns_that_are_not_learned(tmp_path, template):
    fast = make_folder(tmp_path / "marked", CHATML)
    make_folder(tmp_path / "hf", template)
    chat = CHATS[3]
    rows = [{"messages": [{**m, **more} if i in (1, 5) else m for i, m in enumerate(chat)]}
            for more in ({"weight": 0}, {"train": False}, {"weight": 1, "train": True})]
    rows += [{"prompt": chat[:3], "completion": chat[3:], "system": "Be kind."}]
    expected = theirs(fast, [chat] * 3 + [[{"role": "system", "content": "Be kind."}, *chat]])
    expected = [muted(expected[0], 0, 2), muted(expected[1], 0, 2), expected[2], muted(expected[3], 0)]
    assert prepare(tmp_path, tmp_path / "hf", rows, "--chat-template")[0] == expected
    rows = rows[3:] * 10 + [{"prompt": chat[:3], "completion": None}]
    documents, out = prepare(tmp_path, tmp_path / "hf", rows, "--completion", "prompt,completion")
    assert documents == expected[3:] * 10 and "left out   1 of 11 conversations" in out and "'completion' is null" in out


def test_the_assistant_begins(tmp_path):
    """Also where a template wants to know its first message, and writes a text of its own before it."""
    greeting = [{"role": "assistant", "content": "Ask me."}, *CHATS[0]]
    own = CHATML.replace("{{- '<|im_start|>' + m.role", "{%- if loop.first %}{{- '<|im_start|>system\\nok<|im_end|>\\n' }}{%- endif %}"
                         "{{- '<|im_start|>' + m.role")
    for i, template in enumerate((CHATML, "{%- if messages[0].role %}{%- endif %}" + own, LLAMA3)):
        fast = make_folder(tmp_path / f"marked{i}", template)
        make_folder(tmp_path / f"bare{i}", bare(template))
        assert prepare(tmp_path, tmp_path / f"bare{i}", [{"messages": greeting}], "--chat-template")[0] == theirs(fast, [greeting])
    chats = [[{"role": "system", "content": "s"}, *greeting]]  # a text that the assistant's turn has as well
    apart = "{{- messages[0].content }}" + CHATML.replace("messages %}", "messages if m.role != 'system' %}")
    fast = make_folder(tmp_path / "apart", apart)
    make_folder(tmp_path / "bare", bare(apart))
    assert prepare(tmp_path, tmp_path / "bare", [{"messages": chats[0]}], "--chat-template")[0] == theirs(fast, chats)


def test_conversations_are_left_out_and_counted(tmp_path):
    make_folder(tmp_path / "hf", MISTRAL)
    good = {"messages": CHATS[0]}
    rows = [good] * 19 + [{"messages": CHATS[0][1:]}, {"messages": None}]
    documents, out = prepare(tmp_path, tmp_path / "hf", rows, "--chat-template")
    assert len(documents) == 19
    assert f"left out   2 of 21 conversations; the first: '{tmp_path}/in.jsonl' line 20: the chat template refuses it: roles" in out
    error = prepare(tmp_path, tmp_path / "hf", rows[2:] + rows[-1:], "--chat-template", code=3)
    assert "3 of 20 conversations cannot be used, more than a tenth; the first: " in error and "line 18: " in error
    assert not (tmp_path / "o.bin.tmp").exists()


def test_names_of_reasoning(tmp_path):
    fast = make_folder(tmp_path / "hf", THINKING)
    chats = [[CHATS[0][0], {"role": "assistant", "content": "8", **named}] for named in (
        {"reasoning": "a"}, {"thinking": "b"}, {"thinking": "c", "reasoning_content": "d"}, {"thinking": None, "reasoning": "e"})]
    documents, _ = prepare(tmp_path, tmp_path / "hf", [{"messages": chat} for chat in chats], "--chat-template")
    assert documents == theirs(fast, chats)
    assert len({len(ids) for ids, _ in documents}) == 1


def test_calls_of_shared_conversations(tmp_path):
    """ShareGPT's function_call and observation: calls where the template writes calls, else what the data say."""
    call, plain = '{"name": "count", "arguments": {"legs": 8}}', "count the legs"
    fast = make_folder(tmp_path / "hf", THINKING)
    row = [("human", "How many?"), ("function_call", call), ("observation", "8"), ("function_call", plain), ("gpt", "Eight.")]
    rows = [{"conversations": [{"from": a, "value": b} for a, b in row], "tools": ""}]
    said = {"role": "assistant", "content": ""}
    chat = [{"role": "user", "content": "How many?"},
            {**said, "tool_calls": [{"type": "function", "function": json.loads(call)}]}, {"role": "tool", "content": "8"},
            {**said, "content": plain}, {**said, "content": "Eight."}]
    assert prepare(tmp_path, tmp_path / "hf", rows, "--chat-template")[0] == theirs(fast, [chat])
    fast = make_folder(tmp_path / "plain", CHATML)
    chat[1] = {**said, "content": call}
    documents, out = prepare(tmp_path, tmp_path / "plain", rows, "--chat-template")
    assert documents == theirs(fast, [chat]) and "not shown" not in out


def test_nulls_of_a_schema(tmp_path):
    """Parquet gives each call the arguments of all others, as null; those of jsonl are the row's own."""
    import pyarrow
    import pyarrow.parquet
    fast = make_folder(tmp_path / "hf", THINKING)
    chats = [[{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [
        {"function": {"name": "f", "arguments": arguments}}]}] for arguments in ({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}}, {"e": [4]})]
    (tmp_path / "in").mkdir()
    rows = [{"messages": chat} for chat in chats]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "in" / "rows.parquet")
    tokenize(tmp_path / "in", "--output", tmp_path / "p", "--tokenizer", tmp_path / "hf", "--chat-template")
    assert prepare(tmp_path, tmp_path / "hf", rows, "--chat-template")[0] == theirs(fast, chats)
    for end in ("bin", "idx", "mask"):
        assert (tmp_path / f"p.{end}").read_bytes() == (tmp_path / f"o.{end}").read_bytes()
    chats[0][1]["tool_calls"][0]["function"]["arguments"]["a"] = None
    assert prepare(tmp_path, tmp_path / "hf", rows, "--chat-template")[0] == theirs(fast, chats)


def test_texts_that_are_not_rendered(tmp_path):
    make_folder(tmp_path / "hf", bare(CHATML).replace("messages %}", "messages if m.role != 'system' %}", 1))
    rows = [{"messages": CHATS[0]}, {"messages": CHATS[0], "system": "Be\x1b[31m kind."}, {"messages": CHATS[0], "tools": [{"name": "f"}]}]
    _, out = prepare(tmp_path, tmp_path / "hf", rows, "--chat-template")
    assert "not shown  2 conversations have texts that the chat template does not render; the first: " in out
    assert "line 2: message 1, role system\n" in out
    function = {"name": "count", "arguments": "{}"}
    for call in ({"tool_calls": [{"function": function}]}, {"function_call": function}):
        rows = [{"messages": [{"role": "user", "content": "Do count."}, {"role": "assistant", "content": "", **call}]}]
        _, out = prepare(tmp_path, tmp_path / "hf", rows, "--chat-template")
        assert "line 1: message 2, role assistant\n" in out  # the user's word is not the call


def test_a_template_without_end(tmp_path):
    make_folder(tmp_path / "hf", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
    (tmp_path / "in.jsonl").write_text(json.dumps({"messages": CHATS[0]}))
    command = [sys.executable, SCRIPT, "in.jsonl", "--output", "o", "--tokenizer", "hf", "--chat-template"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while len(os.listdir(tmp_path)) == 2:
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 143 and "interrupted, nothing written" in error
    assert sorted(os.listdir(tmp_path)) == ["hf", "in.jsonl"]


def test_a_worker_that_begins_late(tmp_path):
    """The first one has the result before the second has set its signals."""
    make_folder(tmp_path / "hf", CHATML)
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\nforks = []\n"
        "os.register_at_fork(before=lambda: forks.append(1), after_in_child=lambda: time.sleep(5 * (len(forks) - 1)))")
    (tmp_path / "in.jsonl").write_text(json.dumps({"messages": CHATS[0]}))
    command = [sys.executable, SCRIPT, "in.jsonl", "--output", "o", "--tokenizer", "hf", "--chat-template", "--workers", "2"]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=True, timeout=4.5 + 10)


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
    make_folder(tmp_path / "several", {"default": GEMMA, "tool_use": LLAMA3})
    assert (tmp_path / "several" / "additional_chat_templates" / "tool_use.jinja").exists()
    assert prepare(tmp_path, tmp_path / "several", rows, "--chat-template")[0] == expected
    for row in rows:
        row["tools"] = []
    assert prepare(tmp_path, tmp_path / "several", rows, "--chat-template")[0] == theirs(make_folder(tmp_path / "gemma", GEMMA), CHATS)


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
    (CHATML, {"messages": CHATS[0], "tools": {"name": "f"}}, ["'tools' is not a list of JSON objects"]),
    (CHATML, {"messages": CHATS[0], "chat_template_kwargs": [1]}, ["'chat_template_kwargs' is not a JSON object"]),
    (CHATML, {"messages": CHATS[0], "chat_template_kwargs": {"messages": 1}}, ["cannot set 'messages'"]),
    (CHATML, {"messages": CHATS[0], "chat_template_kwargs": {"self": 1, "bos_token": []}, "x": 1, "documents": 3},
     ["'documents' is not a list"]),
    (CHATML, {"messages": [{"role": "assistant", "content": "x", "weight": 0.5}]}, ["message 1 has the weight 0.5"]),
    (CHATML, {"messages": [{"role": "assistant", "content": "x", "train": "false"}]}, ['message 1 has the train "false"', "true or"]),
    (bare(CHATML).replace("{%- for", "{%- set all %}{%- for", 1) + "{%- endset %}{{- all | trim }}", {"messages": CHATS[0]},
     ["changes what its loops have written", "generation"]),
    (CHATML, {"text": "x"}, ["no field 'messages'", "text"]),
    (CHATML, {"messages": CHATS[0][:1]}, ["nothing to learn from", "the assistant says nothing"]),
    (CHATML, {"messages": []}, ["no text"]),
    ("{{ messages[0].content.__class__.__mro__ }}", {"messages": CHATS[0]}, ["chat template refuses"]),
    ("{% for m in messages %}", {"messages": CHATS[0]}, ["chat template", "is wrong"]),
    (bare(CHATML).replace("+ m.role", "+ m.role + (messages | length) | string"), {"messages": CHATS[2]},
     ["line 1", "message 2 cannot be told apart", "generation"]),
    (bare(CHATML).replace("messages %}", "messages if m.role != 'tool' %}").replace("m.content", "m.content + (loop.nextitem or m).content"),
     {"messages": [*CHATS[0], {"role": "tool", "content": "8"}]}, ["message 2 cannot be told apart"]),
    (CHATML.replace("m in messages %}", "i in range(messages | length) %}{%- set m = messages[i] %}"),
     {"messages": [*CHATS[0], {**CHATS[0][1], "weight": 0}]}, ["message 3, which is not learned, cannot be told apart"]),
    (CHATML.replace("{%- for m in messages %}", "{%- for m in messages %}{%- endfor %}{%- for i in range(messages | length) %}"
                    "{%- set m = messages[i] %}"),
     {"messages": [*CHATS[0][:1], {**CHATS[0][1], "weight": 0}, *CHATS[0]]}, ["message 2, which is not learned, cannot be told apart"]),
    (bare(CHATML).replace("messages %}", "messages if m.role != 'tool' %}").replace("m.content", "m.content + (messages[2:] | map(attribute='content') | list | tojson)"),
     {"messages": [*CHATS[0], {"role": "tool", "content": [{"type": "text", "text": "a\n8"}]}]},
     ["message 2 cannot be told apart"]),
    (bare(CHATML).replace("messages %}", "messages[1:] %}").replace("m.content", "(messages[0].content if loop.first else '') + m.content"),
     {"messages": [{"role": "system", "content": "Be kind."}, CHATS[0][1]]}, ["message 2 cannot be told apart"]),
    ("{%- for m in messages[::2] %}{{- m.content + '[INST]' + messages[2 * loop.index0 + 1].content }}{%- endfor %}",
     {"messages": CHATS[2]}, ["message 2 cannot be told apart"]),
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
    # no token has a part of both, and the completion has no blank that is not there
    blanks = {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}, "pre_tokenizer": None}
    prefix = {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}}
    for kind, parts in (("bytes", {}), ("pieces", {}), ("pieces", blanks), ("bytes", prefix)):
        make_folder(tmp_path / kind, CHATML, kind)
        whole = json.loads((tmp_path / kind / "tokenizer.json").read_text())
        (tmp_path / kind / "tokenizer.json").write_text(json.dumps({**whole, **parts}))
        fast = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / kind)
        tokens = fast.tokenize("spider")
        ((ids, mask),), _ = prepare(tmp_path, tmp_path / kind, [{"q": "a spi", "a": "der"}], "--completion", "q,a", "--special", "none")
        prompt = [token for token, bit in zip(ids, mask) if not bit]
        assert len(tokens) < 4 and prompt == fast("a spi", add_special_tokens=False)["input_ids"]
        assert fast.decode(ids).strip() == "a spider" and fast.decode(ids[len(prompt):]) == "der" and mask[len(prompt):] == [1] * len(ids[len(prompt):])


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

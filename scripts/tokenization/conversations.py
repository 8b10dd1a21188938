# SPDX-License-Identifier: Apache-2.0
"""From a row of data to a conversation: messages as chat templates take them, and which of them are not learned.

Rows come in three forms: `messages` with role and content, ShareGPT's `conversations` with from and value, and a `prompt`
and a `completion` that are both lists of messages. The fields of BESIDE go to the template with them. A row of another form is
a ChatError: it is left out, and counted."""
import json

FORMS = (("messages",), ("conversations",), ("prompt", "completion"))
BESIDE = ("tools", "documents", "chat_template_kwargs")
SHARED_ROLES = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"}  # of ShareGPT's "from"
REASONING = ("reasoning_content", "thinking", "reasoning")  # the names that transformers reads, in this order
RESERVED = ("messages", "tools", "documents", "add_generation_prompt")  # what chat_template_kwargs cannot set


class ChatError(Exception):
    """The reason why a conversation or a template cannot be used, in one line."""


def is_messages(value):
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and bool({"role", "from"} & value[0].keys())


def form_of(row):
    """The names of the fields that hold a row's conversation, or None."""
    found = [names for names in FORMS if all(name in row for name in names)]
    return next((names for names in found if all(row[name] is not None for name in names)), found[0] if found else None)


def option_for(row):
    """The option of tokenize.py for the conversation or the pair of answers that a row has, or None."""
    if "chosen" in row and "rejected" in row:
        return "--preference"
    names = form_of(row)
    if names == ("prompt", "completion") and not is_messages(row["completion"]):
        return "--completion prompt,completion"
    return names and "--chat-template"


def without_nulls(value):
    """The value without members that are null, at any depth: a file with one schema for all rows gives each row the
    members of all others."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def parsed(name, value):
    """The value of a field, which data of one schema hold as text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else None
    except (ValueError, RecursionError):
        raise ChatError(f"'{name}' is text, and not JSON") from None


def calls_in(value):
    """The calls of ShareGPT's function_call, which are JSON in a text; None: the text is something else."""
    try:
        calls = json.loads(value)
    except (TypeError, ValueError, RecursionError):
        return None
    calls = calls if isinstance(calls, list) else [calls]
    if not calls or not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        return None
    return [{"type": "function", "function": call} for call in calls]


def shared_message(message, takes_calls):
    """A message of ShareGPT's form as {role, content}, with its other members."""
    kind, value = message["from"], message.get("value")
    others = {key: member for key, member in message.items() if key not in ("from", "value")}
    calls = calls_in(value) if kind == "function_call" and takes_calls else None
    said = {"content": "", "tool_calls": calls} if calls else {"content": value}
    return {**others, "role": SHARED_ROLES.get(kind, kind), **said}


def clean_message(message, number, takes_calls):
    """A message as transformers gives it to a template: without members that are null, its reasoning under the names that
    templates read."""
    if not isinstance(message, dict):
        raise ChatError(f"message {number} is not a JSON object")
    if message.get("role") is None and isinstance(message.get("from"), str):
        message = shared_message(message, takes_calls)
    message = {key: value for key, value in message.items() if value is not None}
    if not isinstance(message.get("role"), str):
        raise ChatError(f"message {number} has no 'role' that is text; it has: {', '.join(message) or 'nothing'}")
    reasoning = next((message[name] for name in REASONING if name in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def is_muted(message, number):
    """Whether a message says that it is not to be learned: "weight": 0, as OpenAI's files have it, or "train": false."""
    for name, values in (("weight", "0 or 1"), ("train", "true or false")):
        value = message.get(name, 1)
        if value not in (0, 1):
            raise ChatError(f"message {number} has the {name} {json.dumps(value)[:40]}, expected {values}")
        if value == 0:
            return True
    return False


def checked_beside(row):
    """What the template gets beside the messages."""
    for name in ("tools", "documents"):
        value = row.get(name)
        if value is not None and not (isinstance(value, list) and all(isinstance(one, dict) for one in value)):
            raise ChatError(f"'{name}' is not a list of JSON objects")
    kwargs = row.get("chat_template_kwargs") or {}
    if not isinstance(kwargs, dict):
        raise ChatError("'chat_template_kwargs' is not a JSON object")
    for name in RESERVED:
        if name in kwargs:
            raise ChatError(f"'chat_template_kwargs' cannot set '{name}'")
    return {**kwargs, "tools": row.get("tools") or None, "documents": row.get("documents")}


class Conversation:
    """What a chat template renders.

    messages: of {"role": …, "content": …, …}
    beside:   {"tools": …, "documents": …} and what chat_template_kwargs has
    muted:    the numbers, from 0, of the assistant's messages that are not learned
    key:      bytes that are equal for equal rows"""

    def __init__(self, names, row, takes_calls):
        """names: the fields of the row that hold messages; those of the last one are learned"""
        row = {name: value if name == "system" else parsed(name, value) for name, value in row.items()}
        self.beside = checked_beside(row)
        self.key = self.key_of(names, row)
        self.messages, self.muted = [], set()
        for name in names:
            messages = row.get(name)
            if not isinstance(messages, list):
                raise ChatError(f"'{name}' is " + ("null" if messages is None else "not a list of messages"))
            for message in messages:
                self.add(message, takes_calls, name != names[-1])
        system = row.get("system")
        if self.messages and self.messages[0]["role"] != "system" and isinstance(system, (str, list)) and system:
            self.messages.insert(0, {"role": "system", "content": system})
            self.muted = {number + 1 for number in self.muted}

    @staticmethod
    def key_of(names, row):
        messages = {name if len(names) > 1 else "messages": row.get(name) for name in names}
        system = {"system": row["system"]} if row.get("system") else {}
        return json.dumps({**messages, **{name: row.get(name) for name in BESIDE}, **system}).encode()

    def add(self, message, takes_calls, muted):
        number = len(self.messages)
        message = clean_message(message, number + 1, takes_calls)
        self.messages.append(message)
        if message["role"] == "assistant" and (is_muted(message, number + 1) or muted):
            self.muted.add(number)

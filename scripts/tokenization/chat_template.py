"""Chat templates: renders messages as transformers' apply_chat_template does, and finds what an assistant said.

A template is a Jinja program that came with a model, so it runs in Jinja's sandbox, sees nothing but plain JSON values, and
has the functions that transformers gives it: raise_exception, strftime_now, the filter tojson, and the block
{% generation %}, which marks the assistant's words.
"""
import contextlib
import datetime
import json
import os
import re

MARKS = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
OLDEST_JINJA = (3, 1)  # its sandbox has what is used here


class ChatError(Exception):
    """The reason why a conversation or a template cannot be used, in one line."""


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ChatError(f"cannot read '{path}': {error}") from error
    return value if isinstance(value, dict) else {}


def special_tokens(folder):
    """{"bos_token": "<s>", …} as a template sees them."""
    found = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        values = read_json(os.path.join(folder, name))
        for key in SPECIAL:
            value = values.get(key)
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                found[key] = value
    return found


def find_templates(folder):
    """{name: text} of a tokenizer folder: chat_template.jinja counts, else tokenizer_config.json's chat_template, which is a
    text or a list of named ones."""
    path = os.path.join(folder, "chat_template.jinja")
    if os.path.exists(path):
        try:
            with open(path, encoding="utf-8") as file:
                return {"default": file.read()}
        except (OSError, UnicodeDecodeError) as error:
            raise ChatError(f"cannot read '{path}': {error}") from error
    value = read_json(os.path.join(folder, "tokenizer_config.json")).get("chat_template")
    if isinstance(value, str):
        return {"default": value}
    templates = {}
    for entry in value if isinstance(value, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str):
            templates[entry["name"]] = entry["template"]
    if not templates:
        raise ChatError(f"'{folder}' has no chat template, neither chat_template.jinja nor chat_template in "
                        "tokenizer_config.json; hint: take the folder of the model's instruct version, or write "
                        "chat_template.jinja")
    return templates


def make_environment():
    """Jinja's sandbox with what templates expect, set up as transformers does it."""
    try:
        import jinja2
        import jinja2.ext
        import jinja2.sandbox
    except ImportError:
        raise ImportError("jinja2") from None
    if tuple(int(n) for n in jinja2.__version__.split(".")[:2]) < OLDEST_JINJA:
        raise ImportError("jinja2")

    class Generation(jinja2.ext.Extension):
        """{% generation %} … {% endgeneration %}: notes where its text begins and ends."""

        tags = {"generation"}

        def __init__(self, environment):
            super().__init__(environment)
            environment.extend(record=self.record)
            self.blocks = self.spans = None

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("note"), [], [], body).set_lineno(line)

        def note(self, caller):
            text = caller()
            if self.blocks is not None:
                start = sum(map(len, self.blocks))
                self.spans.append((start, start + len(text)))
            return text

        @contextlib.contextmanager
        def record(self, blocks, spans):
            self.blocks, self.spans = blocks, spans
            try:
                yield
            finally:
                self.blocks = self.spans = None

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


class ChatTemplate:
    """The template of a tokenizer folder. ImportError: the package jinja2 is missing or too old."""

    def __init__(self, folder):
        self.environment, self.special = make_environment(), special_tokens(folder)
        self.compiled, self.marked = {}, {}
        for name, text in find_templates(folder).items():
            try:
                self.compiled[name] = self.environment.from_string(text)
            except Exception as error:  # jinja2.TemplateSyntaxError and others
                raise ChatError(f"the chat template '{name}' of '{folder}' is wrong: {one_line(error)}") from error
            self.marked[name] = MARKS.search(text) is not None

    def choose(self, tools):
        if tools and "tool_use" in self.compiled:
            return "tool_use"
        if "default" in self.compiled:
            return "default"
        if len(self.compiled) == 1:
            return next(iter(self.compiled))
        raise ChatError("the folder has several chat templates and none named 'default': " + ", ".join(self.compiled))

    def run(self, name, row, messages, prompt):
        blocks, spans = [], []
        values = {**self.special, **(row.get("chat_template_kwargs") or {})}
        try:
            with self.environment.record(blocks, spans):
                for block in self.compiled[name].generate(messages=messages, tools=row.get("tools"),
                                                          documents=row.get("documents"),
                                                          add_generation_prompt=prompt, **values):
                    blocks.append(block)
        except Exception as error:  # a template may raise anything
            raise ChatError(f"the chat template refuses it: {one_line(error)}") from error
        return "".join(blocks), spans

    def render(self, row, special_ends):
        """The text of a conversation and the spans (start, end) of its characters that the assistant said. special_ends:
        special tokens, one of which may end a turn."""
        messages = clean_messages(row)
        name = self.choose(row.get("tools"))
        text, spans = self.run(name, row, messages, False)
        if not self.marked[name]:
            spans = [self.turn(name, row, messages, i, text, special_ends)
                     for i, message in enumerate(messages) if message["role"] == "assistant"]
        return text, [(start, end) for start, end in spans if end > start]

    def turn(self, name, row, messages, i, text, special_ends):
        """Where message i, the assistant's, is in the text: between the renderings of the messages before it, with the
        prompt to generate, and of those up to it. Blanks after the token that ends the turn are left out."""
        before = self.run(name, row, messages[:i], True)[0] if i else self.run_empty(name, row)
        after, _ = self.run(name, row, messages[: i + 1], False)
        if not after.startswith(before) or not text.startswith(after):
            raise ChatError(
                f"message {i + 1} cannot be found: the chat template renders the first {i + 1} messages differently when "
                "others follow; hint: enclose the assistant's text in the template in {% generation %} and {% endgeneration %}")
        said = after[len(before):]
        bare = said.rstrip()
        if any(bare.endswith(end) for end in special_ends):
            said = bare
        return len(before), len(before) + len(said)

    def run_empty(self, name, row):
        try:
            return self.run(name, row, [], True)[0]
        except ChatError as error:
            raise ChatError("the conversation begins with the assistant, and the chat template renders nothing before that; "
                            "hint: begin with a user's or system message") from error


def one_line(error):
    return " ".join(str(error).split()) or type(error).__name__


SHARED_ROLES = {"human": "user", "gpt": "assistant"}  # of ShareGPT's "from"


def clean_messages(row):
    """The messages as transformers passes them on: members that are null are left out. ShareGPT's {from, value} becomes
    {role, content}."""
    messages = []
    for number, message in enumerate(row["messages"], 1):
        if not isinstance(message, dict):
            raise ChatError(f"message {number} is not a JSON object")
        if "role" not in message and isinstance(message.get("from"), str):
            message = {"role": SHARED_ROLES.get(message["from"], message["from"]), "content": message.get("value")}
        message = {key: value for key, value in message.items() if value is not None}
        if not isinstance(message.get("role"), str):
            raise ChatError(f"message {number} has no 'role'; it has: {', '.join(message) or 'nothing'}")
        messages.append(message)
    return messages

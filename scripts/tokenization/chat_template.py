# SPDX-License-Identifier: Apache-2.0
"""Chat templates: renders messages as transformers' apply_chat_template does, and finds what an assistant said.

A template is a Jinja program that came with a model, so it runs in Jinja's sandbox, sees nothing but plain JSON values, and
has the functions that transformers gives it: raise_exception, strftime_now, the filter tojson, and the block
{% generation %}, which marks the assistant's words.

A template without such blocks says nothing about its text. But it goes through the messages in a loop, so each loop of a
template is compiled with calls that write marks between the texts when a conversation is rendered a second time: which
message the loop is at, and where it ends. Without its marks that text has to be the first one.

    <|user|>one<|end|><|assistant|>1<|end|></s>      the text
    0                 1                      -       the message that each part comes from; -: none
                                  [......]..         what is learned: not the prompt to generate, but what ends the turn
"""
import datetime
import json
import os
import re
import secrets

from .conversations import ChatError
from .tokenizer_folder import NAMES, read_object

MARKS = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
OLDEST_JINJA = (3, 1)  # its sandbox has what is used here
TAG = r"<[^<>\s]+>"  # <think>, whether it is a token or not
THINK = re.compile("</?think>")


def special_tokens(folder):
    """{"bos_token": "<s>", …} as a template sees them."""
    found = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        values = read_object(folder, name)
        for key in NAMES:
            value = values.get(key)
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                found[key] = value
    return found


def template_files(folder):
    """{name: path} of the templates that are files of a tokenizer folder."""
    paths, more = {"default": os.path.join(folder, "chat_template.jinja")}, os.path.join(folder, "additional_chat_templates")
    for name in sorted(os.listdir(more)) if os.path.isdir(more) else []:
        if name.endswith(".jinja"):
            paths[name.removesuffix(".jinja")] = os.path.join(more, name)
    return {name: path for name, path in paths.items() if os.path.exists(path)}


def find_templates(folder):
    """{name: text} of a tokenizer folder: chat_template.jinja and additional_chat_templates/NAME.jinja count, else
    tokenizer_config.json's chat_template, which is a text or a list of named ones."""
    templates = {}
    for name, path in template_files(folder).items():
        try:
            with open(path, encoding="utf-8") as file:
                templates[name] = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise ChatError(f"cannot read '{path}': {error}") from error
    if templates:
        return templates
    value = read_object(folder, "tokenizer_config.json").get("chat_template")
    if isinstance(value, str):
        return {"default": value}
    for entry in value if isinstance(value, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str):
            templates[entry["name"]] = entry["template"]
    if not templates:
        raise ChatError(f"'{folder}' has no chat template, neither chat_template.jinja nor chat_template in "
                        "tokenizer_config.json; hint: take the folder of the model's instruct version, or write "
                        "chat_template.jinja")
    return templates


class Marks:
    """Knows which message a loop is at, and {% generation %} … {% endgeneration %}. Marks are texts, so that they stay in their
    places where a template collects a text before it writes it."""

    nonce = secrets.token_hex(8)
    pattern = re.compile(f"\0{nonce}(\\d*)(\\+?)\0")  # the message's number, if any; + in a generation block

    def start(self, messages):
        """Before a rendering. messages: those to mark; None: no marks."""
        self.marking, self.known = messages is not None, {id(one): i for i, one in enumerate(messages or ())}
        self.owner, self.outer, self.blocks = None, [], 0

    def mark(self):
        return f"\0{self.nonce}{'' if self.owner is None else self.owner}{'+' * (self.blocks > 0)}\0" * self.marking

    def generation(self, caller):
        self.blocks += 1
        begin, text = self.mark(), caller()
        self.blocks -= 1
        return begin + text + self.mark()

    def enter(self):
        self.outer.append(self.owner)

    def step(self, value):
        """A loop's next value."""
        if id(value) not in self.known:
            return ""
        self.owner = self.known[id(value)]
        return self.mark()

    def leave(self):
        inner, self.owner = self.owner, self.outer.pop()
        return "" if inner == self.owner else self.mark()


def make_marker(jinja2):
    """Marks as an extension of Jinja, whose methods a template calls."""
    nodes = jinja2.nodes

    class Marker(Marks, jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("generation"), [], [], body).set_lineno(line)

        def instrument(self, node):
            """Puts the calls of enter(), step() and leave() before, into and after each loop below a node."""
            for name, value in list(node.iter_fields()):
                if isinstance(value, list):
                    setattr(node, name, [part for child in value for part in self.parts_of(child)])
            for child in node.iter_child_nodes():
                self.instrument(child)

        def parts_of(self, node):
            if not isinstance(node, nodes.For) or not isinstance(node.target, nodes.Name):
                return [node]
            target = nodes.Name(node.target.name, "load")
            node.body.insert(0, nodes.Output([self.call_method("step", [target])]))
            return [nodes.ExprStmt(self.call_method("enter")), node, nodes.Output([self.call_method("leave")])]

    return Marker


def make_environment():
    """(Jinja's sandbox with what templates expect, set up as transformers does it; its Marker)"""
    try:
        import jinja2
        import jinja2.ext
        import jinja2.sandbox
    except ImportError:
        raise ImportError("jinja2") from None
    if tuple(int(n) for n in jinja2.__version__.split(".")[:2]) < OLDEST_JINJA:
        raise ImportError("jinja2")

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    marker = make_marker(jinja2)
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[marker, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    return environment, environment.extensions[marker.identifier]


class ChatTemplate:
    """The template of a tokenizer folder. ImportError: the package jinja2 is missing or too old."""

    def __init__(self, folder, special_texts):
        """special_texts: the tokenizer's special tokens, one of which may end a turn"""
        self.environment, self.marker = make_environment()
        self.environment.globals["strftime_now"] = lambda form: self.now.strftime(form)
        self.values, self.special_texts = special_tokens(folder), special_texts
        specials = [re.escape(text) for text in sorted(special_texts, key=len, reverse=True)]
        self.special = re.compile("|".join(specials) or "(?!)")
        self.tag = re.compile("(" + "|".join([*specials, TAG]) + ")")
        self.compiled, self.marked, templates = {}, {}, find_templates(folder)
        for name, text in templates.items():
            try:
                tree = self.environment.parse(text)
                self.marker.instrument(tree)
                self.compiled[name] = {False: self.environment.from_string(text), True: self.environment.from_string(tree)}
            except Exception as error:  # jinja2.TemplateSyntaxError and others
                raise ChatError(f"the chat template '{name}' of '{folder}' is wrong: {one_line(error)}") from error
            self.marked[name] = MARKS.search(text) is not None
        self.takes_calls = any("tool_calls" in text for text in templates.values())

    def choose(self, tools):
        if tools and "tool_use" in self.compiled:
            return "tool_use"
        if "default" in self.compiled:
            return "default"
        if len(self.compiled) == 1:
            return next(iter(self.compiled))
        raise ChatError("the folder has several chat templates and none named 'default': " + ", ".join(self.compiled))

    def run(self, beside, messages, prompt, marked=False):
        """The text of messages. prompt: with what makes a model answer; marked: with marks"""
        values = {**self.values, **beside, "messages": messages, "add_generation_prompt": prompt}
        compiled = self.compiled[self.choose(beside["tools"])][marked]
        self.marker.start(messages if marked else None)
        try:
            return compiled.render(values)
        except Exception as error:  # a template may raise anything
            raise ChatError(f"the chat template refuses it: {one_line(error)}") from error

    def render(self, conversation):
        """The text of a conversation; the spans (start, end) of its characters that are learned, which is what the assistant
        said, with the token that ends its turn; and what the text lacks (Rendering.lost)."""
        self.now = datetime.datetime.now()
        found = Rendering(self, conversation)
        if not found.apart:
            raise ChatError("the chat template changes what its loops have written, so that nobody can tell who says what" + HINT)
        if self.marked[self.choose(conversation.beside["tools"])]:
            spans = found.blocks()
        else:
            spans = [found.turn(i) for i, message in enumerate(conversation.messages)
                     if message["role"] == "assistant" and i not in conversation.muted]
        return found.text, sorted((start, end) for start, end in spans if end > start), found.lost()

    def render_answers(self, conversations, count):
        """The text of the `count` messages with which all these conversations begin, and of what makes a model answer; the text
        of each conversation; what one of them lacks."""
        self.now = datetime.datetime.now()
        found = [Rendering(self, conversation) for conversation in conversations]
        return found[0].run(found[0].messages[:count], True), [one.text for one in found], next(
            filter(None, (one.lost() for one in found)), None)


class Rendering:
    """A text, and from which message each part of it comes.

    parts: [(start, end, number of the message or None, whether a generation block wrote it)], in order, of the whole text
    apart: whether the parts are known; otherwise there is one, of no message"""

    def __init__(self, template, conversation):
        self.template, self.messages, self.muted = template, conversation.messages, conversation.muted
        self.beside, self.parts = conversation.beside, []
        self.text = self.run(self.messages, False)
        position, owner, inside = 0, None, False
        pieces = template.marker.pattern.split(template.run(self.beside, self.messages, False, marked=True))
        for text, number, block in zip(pieces[::3], pieces[1::3] + [""], pieces[2::3] + [""]):
            self.parts.append((position, position + len(text), owner, inside))
            position, owner, inside = position + len(text), int(number) if number else None, bool(block)
        self.apart = "".join(pieces[::3]) == self.text
        if not self.apart:
            self.parts = [(0, len(self.text), None, False)]
        self.seen = {owner for start, end, owner, _ in self.parts if owner is not None and self.text[start:end].strip()}

    def run(self, messages, prompt):
        return self.template.run(self.beside, messages, prompt)

    def blocks(self):
        """The spans of the generation blocks, without those of messages that are not learned."""
        spans, last = [], None
        for start, end, owner, inside in self.parts:
            last = owner if owner in self.seen else last
            if inside and self.muted and owner is None and last != len(self.messages) - 1:
                raise ChatError(f"message {min(self.muted) + 1}, which is not learned, cannot be told apart from the others: the chat "
                                "template does not loop over the messages")
            if inside and (last if owner is None else owner) not in self.muted:
                spans.append((start, end))  # a block after the loop belongs to the last message
        return spans

    def turn(self, i):
        """What message i, the assistant's, has in the text, from its first word to the token that ends its turn; blanks
        after that token are left out."""
        start, end = self.region(i)
        if start == end:
            return start, end
        start = self.after_prompt(i, start, end)
        rest = self.text[end:]
        if i == len(self.messages) - 1 and rest.strip() and not self.template.special.sub("", rest).strip():
            end = len(self.text)  # a token that ends the conversation, such as Phi-3's
        bare = self.text[start:end].rstrip()
        if any(bare.endswith(special) for special in self.template.special_texts):
            end = start + len(bare)
        elif following := self.template.special.match(self.text, end):
            end = following.end()  # a token that the next turn begins with
        return start, end

    def region(self, i):
        """What the template's loop wrote for message i."""
        if not self.seen:
            return self.between(i)
        own = [(start, end) for start, end, owner, _ in self.parts if owner == i and self.text[start:end].strip()]
        if not own:
            if any(map(self.has, texts_in(self.messages[i].get("content")))):
                raise self.not_apart(i)  # another message's round wrote it
            return 0, 0
        start, end = own[0][0], own[-1][1]
        for first, last, owner, _ in self.parts:
            if start <= first and last <= end and owner != i and self.text[first:last].strip():
                raise self.not_apart(i)
        if any(self.mixed_in(number, i, self.text[start:end]) for number in self.unseen_beside(i)):
            raise self.not_apart(i)
        return start, end

    def unseen_beside(self, i):
        """The messages without a round of their own that a template may write into the turn of message i: a system text, and
        the answers of the tools that it calls."""
        for number, message in enumerate(self.messages):
            if number not in self.seen and (number > i or message["role"] != "tool"):
                yield number
            elif number > i:
                break

    def mixed_in(self, number, i, said):
        """Whether a turn has a text of another message, be it by chance; an earlier one's has to be more than what the assistant
        and the tokens have of it."""
        for text in texts_in(self.messages[number].get("content")):
            count = max(said.count(text), said.count(in_json(text)))
            if count and number < i:
                count -= "\0".join([*texts_in(self.messages[i]), *self.template.special.findall(said)]).count(text)
            if count > 0:
                return True
        return False

    def between(self, i):
        """The same by renderings of the messages up to this one, for a template without a loop over them."""
        ends = []
        for messages in (self.messages[:i], self.messages[: i + 1]):
            try:
                text = self.run(messages, False)
            except ChatError:
                raise self.not_apart(i) from None
            if not self.text.startswith(text):
                raise self.not_apart(i)
            ends.append(len(text))
        return tuple(ends)

    def not_apart(self, i):
        return ChatError(f"message {i + 1} cannot be told apart from the rest of what the chat template writes" + HINT)

    def after_prompt(self, i, start, end):
        """Where the assistant's words begin in [start, end): after what the template writes to make a model answer."""
        try:
            prompt = self.run(self.messages[:i], True)
        except ChatError:  # it refuses the beginning of the conversation
            return self.after_pieces(i, start, end)
        if start <= len(prompt) <= end and self.text.startswith(prompt):
            return len(prompt)
        return self.after_pieces(i, start, end)

    def after_pieces(self, i, start, end):
        """The same where a prompt is not the beginning of the conversation. A token of it, such as <think>, may be absent from
        the conversation. Before the first message a template may write a text of its own, such as <s>."""
        pieces = self.prompt_pieces(i)
        whole, said = "".join(pieces), self.text[start:end]
        if whole and whole in said and not any(number < i for number in self.seen):
            return start + said.index(whole) + len(whole)
        position = end - len(said.lstrip()) if pieces else start
        for piece in pieces:
            if not self.text.startswith(piece, position, end):
                if piece.strip() and not self.template.tag.fullmatch(piece):
                    raise self.not_apart(i)
                break
            position += len(piece)
        return position

    def prompt_pieces(self, i):
        """What a prompt adds to the messages before message i, or to any question, cut at tokens."""
        for messages in (self.messages[:i], [{"role": "user", "content": "?"}]):
            try:
                bare, prompted = (self.pieces(self.run(messages, prompt)) for prompt in (False, True))
            except ChatError:
                continue
            same = 0
            while same < min(len(bare), len(prompted)) and bare[same] == prompted[same]:
                same += 1
            return self.pieces("".join(prompted[same:]).lstrip())
        raise self.not_apart(i)

    def pieces(self, text):
        return [piece for piece in self.template.tag.split(text) if piece]

    def lost(self):
        """What of a conversation its text does not have, in words, or None. Only the last message's reasoning has to be there."""
        if not all(self.has(name) for name in names_of(self.beside["tools"])):
            return "the tools"
        for number, message in enumerate(self.messages, 1):
            texts = [message[name] for name in ("reasoning_content", "content") if isinstance(message.get(name), str)]
            said = THINK.split("<think>".join(texts))
            said = said if number == len(self.messages) else said[-1:]
            turn = [self.text[start:end] for start, end, owner, _ in self.parts if owner == number - 1 or not self.seen]
            calls = names_of(message.get("tool_calls")) + names_of([message.get("function_call")])  # OpenAI's former name
            if not all(name in "".join(turn) for name in calls) or not all(self.has(text.strip()) for text in said):
                return f"message {number}, role {message['role']}"
        return None

    def has(self, text):
        return text in self.text or in_json(text) in self.text


HINT = "; hint: enclose the assistant's text in the template in {% generation %} and {% endgeneration %}"


def names_of(functions):
    """The names in a list of tools or of calls."""
    found = [one.get("function", one) for one in functions if isinstance(one, dict)] if isinstance(functions, list) else []
    return [one["name"] for one in found if isinstance(one, dict) and isinstance(one.get("name"), str)]


def in_json(text):
    return json.dumps(text, ensure_ascii=False)[1:-1]


def texts_in(content):
    """The texts in a message or in its content, which may be a list of parts, or a tool's answer as JSON."""
    if isinstance(content, (dict, list)):
        parts = content if isinstance(content, list) else [value for key, value in content.items() if key != "type"]
        return [text for part in parts for text in texts_in(part)]
    text = content if isinstance(content, str) else json.dumps(content)
    return [text.strip()] if content is not None and text.strip() else []


def one_line(error):
    return " ".join(str(error).split()) or type(error).__name__

# SPDX-License-Identifier: Apache-2.0
"""What is done with a batch of documents: tokens, masks or labels, cut, and sorted into training and validation."""
import array
import collections
import hashlib
import itertools
import json
import sys

from .chat_template import ChatTemplate
from .conversations import BESIDE, ChatError, Conversation
from .errors import DATA, Failure, USAGE, hint_to_install, printable
from .preferences import ANOTHER_PROMPT, DROPPED, EMPTY, EQUAL, MERGED, Dropped, names_of, read_example
from .tokenizer import find_folder, open_tokenizer, typecode

MAX_DOCUMENT = 2**31 - 1  # tokens; the index has 32 bits for it


ROLE = "role "  # begins the name of the count of conversations without anything to learn in which a role speaks
REFUSED, LOST = "refused", "lost"  # conversations that are left out, and those whose texts are not all rendered


def note(counts, kind, text):
    """Counts a conversation of a kind, and keeps the first one's text as the name of a count."""
    counts[kind] += 1
    if counts[kind] == 1:
        counts[f"{kind}: {text}"] = 1


def first_of(kind, counts):
    return printable(next(name for name in counts if name.startswith(kind + ": "))[len(kind) + 2:])


def role_names(key):
    """The names of counts for the roles of a conversation, which is given as JSON."""
    row = json.loads(key)
    messages = row.get("messages", row.get("completion"))
    roles = {message.get("role", message.get("from")) for message in messages if isinstance(message, dict)}
    return {ROLE + str(role)[:32] for role in roles}


def roles_shown(counts):
    """"; the roles in them: bot, user", as those conversations have them for which role_names() was called."""
    roles = sorted(printable(name[len(ROLE):]) for name in counts if name.startswith(ROLE))
    return "; the roles in them: " + ", ".join(roles[:8]) + ", …" * (len(roles) > 8) if roles else ""


def load_chat_template(folder, special_texts, option):
    try:
        return ChatTemplate(folder, special_texts)
    except ImportError:
        raise Failure(USAGE, f"{option} needs the Python package 'jinja2', 3.1 or newer" + hint_to_install("jinja2"))
    except ChatError as error:
        raise Failure(DATA, printable(str(error)))


def is_conversation(item):
    """Whether an item is what inputs.conversation() makes, not a pair of completion_documents."""
    return item.startswith(b"{")


def common_length(one, other):
    """How many tokens two arrays begin with that are the same."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(i for i in range(shorter) if one[i] != other[i])


class Parts:
    """What a batch adds to the shards of training (0) and validation (1): each side's tokens, lengths of documents, bytes
    beside the tokens, and labels, as Shard.add() takes them."""

    def __init__(self, typecode):
        self.typecode = typecode
        self.sides = [(array.array(typecode), array.array("i"), bytearray(), []) for _ in range(2)]

    def add(self, side, ids, beside, label=None):
        tokens, lengths, more, labels = self.sides[side]
        tokens.extend(ids if isinstance(ids, array.array) and ids.typecode == self.typecode else array.array(self.typecode, ids))
        lengths.append(len(ids))
        more.extend(beside or b"")
        if label is not None:
            labels.append(label)

    def take(self):
        for tokens, *_ in self.sides:
            if sys.byteorder == "big":
                tokens.byteswap()
        return [(tokens.tobytes(), lengths, bytes(beside), labels) for tokens, lengths, beside, labels in self.sides]


class Encoder:
    """Tokenizes batches and sorts the documents into training (0) and validation (1)."""

    def __init__(self, args):
        self.tokenizer = open_tokenizer(args.tokenizer, args.end_of_text, args.form == "label")
        self.add_special = args.special != "none"
        self.typecode = typecode(self.tokenizer.vocabulary)
        self.threshold = int(args.validation * 2**64)
        self.form, self.max_length = args.form, args.max_length
        self.folder, self.template = args.tokenizer, None
        if self.form == "chat":
            self.load_template("--chat-template")
        self.around = {chat: self.special(args.special, chat) for chat in (False, True)}

    def special(self, wanted, chat):
        """The tokens to put before and after a document that does not have them."""
        if wanted in ("bos", "both") and self.tokenizer.begin is None:
            raise Failure(USAGE, f"--special {wanted}: the tokenizer has no token that begins a text")
        begin, end = [self.tokenizer.begin], [self.tokenizer.end]
        if self.form == "label":
            return [], []
        if wanted == "auto" and not chat:
            before, after = self.tokenizer.own
            return before, after if end[0] in after else after + end
        return {"auto": ([], []), "none": ([], []), "bos": (begin, []), "eos": ([], end), "both": (begin, end)}[wanted]

    def load_template(self, option):
        if self.folder == "byte":
            raise Failure(USAGE, f"{option}: the byte vocabulary has no chat template; name a tokenizer folder")
        self.template = load_chat_template(find_folder(self.folder), self.tokenizer.special_texts, option)

    def read_conversation(self, row, names, place, counts):
        """(what decides the side, text, spans of what is learned) of what inputs.conversation() gives"""
        if self.template is None:
            self.load_template("--completion with messages in the fields")
        conversation = Conversation(names, row, self.template.takes_calls)
        if not conversation.messages:
            return conversation.key, "", []
        text, spans, lost = self.template.render(conversation)
        if lost:
            note(counts, LOST, f"{place}: {lost}")
        return conversation.key, text, spans

    def chats_of(self, items, counts):
        """What tokens_of() gives for conversations. Those that cannot be used are left out, and counted."""
        found = []
        for item in map(json.loads, items):
            counts["conversations"] += 1
            try:
                found.append(self.read_conversation(**item, counts=counts))
            except ChatError as error:
                note(counts, REFUSED, f"{item['place']}: {error}")
            except RecursionError:
                note(counts, REFUSED, f"{item['place']}: its values are nested too deeply")
        encoded_texts = self.tokenizer.encode_marked([text for _, text, _ in found], [spans for _, _, spans in found])
        for (key, text, spans), (ids, mask) in zip(found, encoded_texts):
            yield key, ids, mask, bool(spans) and spans[-1][1] >= len(text.rstrip())

    def tokens_of(self, items, counts):
        """(what decides the side, tokens, mask or None, whether the mask counts the end-of-text token) of each item: text as
        bytes, or JSON as chat_documents and completion_documents make it."""
        if self.form == "text":
            for text, ids in zip(items, self.tokenizer.encode(items)):
                yield text, ids, None, False
        elif self.form == "chat":
            yield from self.chats_of(items, counts)
        else:
            for chats, some in itertools.groupby(items, is_conversation):
                some = list(some)
                if chats:
                    yield from self.chats_of(some, counts)
                    continue
                for item, (ids, mask) in zip(some, self.tokenizer.encode_pairs(map(json.loads, some))):
                    yield item, ids, mask, True

    def completed(self, ids, mask, ends, chat):
        """The document with its special tokens, cut to the length that is allowed."""
        before, after = self.around[chat]
        if before and list(ids[: len(before)]) == before:
            before = []
        if after and list(ids[-len(after) :]) == after:
            after = []
        whole = array.array(self.typecode, before)
        whole.extend(ids if ids.typecode == self.typecode else array.array(self.typecode, ids))
        whole.extend(array.array(self.typecode, after))
        if mask is not None:
            mask = bytes(len(before)) + bytes(mask) + bytes([ends] * len(after))
        if self.max_length and len(whole) > self.max_length:
            return whole[: self.max_length], mask and mask[: self.max_length], True
        return whole, mask, False

    def encode_labels(self, items):
        """What encode() gives, for rows with labels: the third part has the segments, a fourth the labels."""
        parts = Parts(self.typecode)
        counts, sample, rows = collections.Counter(), None, [json.loads(item) for item in items]
        texts = [row[1:] for row in rows]
        found = self.tokenizer.encode_labelled(texts, self.add_special, self.max_length)
        for (label, *_), text, (ids, types, cut) in zip(rows, texts, found):
            if not ids:
                counts["empty"] += 1
                continue
            if len(ids) > MAX_DOCUMENT:
                raise Failure(DATA, f"a document of {len(ids):,} tokens is too long; hint: --max-length")
            counts["truncated"] += cut
            sample = sample or (label, "the second text" if len(text) == 2 else None, self.parts(ids, types))
            parts.add(self.side(json.dumps(text).encode()), ids, types, label)
        return parts.take(), counts, sample

    def read_answers(self, item, counts):
        """(whether a chat template rendered them, what decides the side, the prompt, the texts of the answers, which a chat
        template renders behind the prompt) of what inputs.preference_documents() gives"""
        row, place = item["row"], item["place"]
        prompt, answers = read_example(row, item["form"])
        key = json.dumps(prompt).encode()  # all answers to a prompt are on one side
        if isinstance(prompt, str):
            return False, key, prompt, answers
        if self.template is None:
            self.load_template("--preference with messages in the fields")
        beside = {name: row[name] for name in (*BESIDE, "system") if name in row}
        whole = [Conversation(("prompt", "answer"), {**beside, "prompt": prompt, "answer": answer}, self.template.takes_calls)
                 for answer in answers]
        prompt, texts, lost = self.template.render_answers(whole, len(whole[0].messages) - len(answers[0]))
        if lost:
            note(counts, LOST, f"{place}: {lost}")
        return True, key, prompt, texts

    def answers_of(self, items, counts):
        """((item, whether a chat template rendered it, what decides the side), tokens of the prompt, tokens of the prompt with
        each answer) of each item. Texts of prompts and answers are tokenized apart."""
        found, pairs, texts = [], [], []
        for item in map(json.loads, items):
            counts["conversations"] += 1
            try:
                chat, key, prompt, answers = self.read_answers(item, counts)
                found.append((item, chat, key))
                if chat:
                    texts += [text.encode("utf-8", "replace") for text in (prompt, *answers)]
                else:
                    pairs += [(prompt, answer) for answer in answers]
            except Dropped as reason:
                counts[f"{DROPPED}{reason}"] += 1
            except ChatError as error:
                note(counts, REFUSED, f"{item['place']}: {error}")
            except RecursionError:
                note(counts, REFUSED, f"{item['place']}: its values are nested too deeply")
        rendered, apart = self.tokenizer.encode(texts), self.tokenizer.encode_pairs(pairs)
        for one in found:
            item, chat, _ = one
            if chat:
                yield one, next(rendered), [next(rendered) for _ in item["labels"]]
                continue
            answers, masks = zip(*[next(apart) for _ in item["labels"]])
            yield one, answers[0][: masks[0].count(0)], answers

    def marked(self, chat, prompt, answers, counts):
        """[(tokens, mask)] of answers. An answer is what follows the tokens that the prompt has by itself. A token of a
        conversation that has characters of both belongs to the answer, as in TRL."""
        same = min(common_length(prompt, ids) for ids in answers)
        if len(prompt) > 0 and same == 0:
            raise Dropped(ANOTHER_PROMPT)
        found = [self.completed(ids, bytes(same) + b"\1" * (len(ids) - same), True, chat) for ids in answers]
        if any(cut for *_, cut in found):
            raise Dropped(f"longer than {self.max_length:,} tokens")
        if not all(any(mask) for _, mask, _ in found):
            raise Dropped(EMPTY)
        if len(found) == 2 and found[0][0] == found[1][0]:
            raise Dropped(EQUAL)
        counts[MERGED] += same < len(prompt)
        return [(ids, mask) for ids, mask, _ in found]

    def encode_preferences(self, items):
        """What encode() gives, for pairs of answers and for answers with a label: a fourth part has the names of the labels."""
        parts, counts, sample = Parts(self.typecode), collections.Counter(), None
        for (item, chat, key), prompt, answers in self.answers_of(items, counts):
            try:
                documents = self.marked(chat, prompt, answers, counts)
            except Dropped as reason:
                counts[f"{DROPPED}{reason}"] += 1
                continue
            for (ids, mask), label in zip(documents, item["labels"]):
                if len(ids) > MAX_DOCUMENT:
                    raise Failure(DATA, f"a document of {len(ids):,} tokens is too long; hint: --max-length")
                name = names_of(item["form"])[label]
                parts.add(self.side(key), ids, mask, name)
                sample = sample or (name, "what is learned from", self.parts(ids, mask))
        return parts.take(), counts, sample

    def parts(self, ids, mask):
        """[(whether it is marked, text)] of the parts of a document."""
        parts, first = [], 0
        for learned, run in itertools.groupby(mask):
            last = first + len(list(run))
            parts.append((bool(learned), self.tokenizer.decode(ids[first:last])))
            first = last
        return parts

    def side(self, text):
        if not self.threshold:
            return 0
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return 1 if int.from_bytes(digest, "little") < self.threshold else 0

    def encode(self, items):
        """[(token bytes, document lengths, mask, labels), the same for validation]; counts of documents; a sample (what
        show_sample takes) or None"""
        if self.form == "label":
            return self.encode_labels(items)
        if self.form == "preference":
            return self.encode_preferences(items)
        parts = Parts(self.typecode)
        counts, sample, replaced = collections.Counter(), None, self.tokenizer.replaced
        for key, ids, mask, ends in self.tokens_of(items, counts):
            if not ids:
                counts["empty"] += 1
                continue
            chat = self.form != "text" and is_conversation(key)
            ids, mask, cut = self.completed(ids, mask, ends, chat)
            counts["truncated"] += cut
            if len(ids) > MAX_DOCUMENT:
                raise Failure(DATA, f"a document of {len(ids):,} tokens is too long; hint: --document paragraph")
            if mask is not None and not any(mask):
                counts["dropped"] += 1
                counts.update(role_names(key) if chat else [])
                continue
            parts.add(self.side(key), ids, mask)
            if mask is not None:
                sample = sample or (None, "what is learned from", self.parts(ids, mask))
        counts["not UTF-8"] = self.tokenizer.replaced - replaced
        return parts.take(), counts, sample

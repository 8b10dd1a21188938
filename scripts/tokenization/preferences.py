# SPDX-License-Identifier: Apache-2.0
"""From a row of preference data to a prompt and its answers: a chosen and a rejected one, or one with a label.

The columns tell the form: those of TRL's data, and of axolotl's and LLaMA-Factory's. Texts in TRL's columns stay texts. Texts
in columns that are named after a turn, such as `question` and `instruction`, become messages for the chat template.

    prompt | chosen | rejected              texts, or lists of messages; without `prompt` the answers begin with it
    prompt | completion | label             the same for single answers
    messages | chosen | rejected            messages, and an answer that is a message, a list of them or a text
    system | question | chosen | rejected   texts, and so are instruction, input, chosen_response, …
    prompt | answers                        several answers, each with its rank"""
import decimal
import json
import re

from .conversations import ChatError, is_messages
from .errors import DATA, Failure, shortened

PAIR, SINGLE = ("rejected", "chosen"), ("undesirable", "desirable")  # the names of the labels 0 and 1
TALKS = ("messages", "conversations", "conversation")
PROMPTS = ("prompt", *TALKS, "question", "instruction", "input")  # the first one that a row has is taken
ANSWERS = (("chosen", "rejected"), ("chosen_response", "rejected_response"))
RANKED = "answers"
COMPLETIONS = ("completion", "output", "response", *TALKS)  # the last message of TALKS is the answer
LABELS = ("label", "kto_tag")
PLAIN = {("prompt", "chosen", "rejected"), ("prompt", "completion"), ("chosen", "rejected")}  # TRL's
OPENING_ROLES = ("system", "user", "human")
TRUTH = {"true": 1, "1": 1, "false": 0, "0": 0}
SPEAKER = re.compile(r"(?:^|\n\n)(Human|Assistant):\s?")

DROPPED = "dropped: "  # begins the name of the count of pairs or examples that are left out for a reason
MERGED = "merged"  # conversations in which an answer's first token has the end of the prompt

EMPTY, EQUAL = "an answer is empty", "chosen and rejected are equal"
NO_PROMPT, ANOTHER_PROMPT = "no prompt that both begin with", "the prompt has other tokens from the first on when an answer follows"


class Dropped(Exception):
    """Why an example is left out that has nothing wrong in it."""


# --- columns ----------------------------------------------------------------------------------------------------------

def form_of(row, fields, label, turns):
    """How the columns of a row are read, or None. fields: their names in order if they are given, label: that of --label,
    turns: texts become messages in any form"""
    if fields:
        answers = fields[-1:] if label else fields[-2:]
        return {"prompt": fields[: -len(answers)], "answers": answers, "label": label, "turns": turns}
    prompt = [name for name in PROMPTS if name in row]
    answers = next((list(names) for names in ANSWERS if all(name in row for name in names)), None)
    if not answers and prompt and isinstance(row.get(RANKED), list):
        return {"prompt": prompt, "answers": [RANKED], "label": None, "turns": True}
    if answers:
        label = None
    else:
        label = label or next((name for name in LABELS if name in row), None)
        answers = [name for name in COMPLETIONS if name in row][:1]
        prompt = [] if answers and answers[0] in TALKS else prompt
        if not label or not answers:
            return None
    plain = tuple(prompt[:1] + answers) in PLAIN and label != "kto_tag" and "system" not in row
    return {"prompt": prompt, "answers": answers, "label": label, "turns": turns or not plain}


def columns_of(form):
    """The columns whose values read_example() takes."""
    return [*form["prompt"], *form["answers"], *(["input", "history"] if "instruction" in form["prompt"] else [])]


def names_of(form):
    """The names of the labels of a row's answers."""
    return SINGLE if form["label"] else PAIR


def truth(value, where):
    """A label: 1 or 0."""
    if isinstance(value, (float, decimal.Decimal)) and value in (0, 1):
        value = int(value)
    found = TRUTH.get(str(value).strip().lower())
    if found is None:
        raise Failure(DATA, f"{where} is {shortened(json.dumps(value, default=str))}, expected true, false, 1 or 0")
    return found


# --- values -----------------------------------------------------------------------------------------------------------

def dialogue(text):
    """The messages of a text in which "Human:" and "Assistant:" speak in turn, or the one message that it is."""
    before, *parts = SPEAKER.split(text)
    if before.strip() or not parts:
        return [{"role": "user", "content": text}]
    messages = [{"role": "user" if who == "Human" else "assistant", "content": said.strip()}
                for who, said in zip(parts[::2], parts[1::2])]
    return messages if messages[-1]["content"] else messages[:-1]


def ranked_pair(answers):
    """The best of several answers and the worst."""
    try:
        ordered = sorted(answers, key=lambda one: float(one["rank"]))
        if float(ordered[0]["rank"]) < float(ordered[-1]["rank"]):
            return [ordered[0]["answer"] + "", ordered[-1]["answer"] + ""]  # texts, or a TypeError
    except (TypeError, KeyError, ValueError, IndexError):
        raise ChatError(f"'{RANKED}' is no list of objects with 'answer' and 'rank'") from None
    raise Dropped(EQUAL)


def prompt_of(row, names):
    """(name, value) of the prompt: the first of these columns that is not null."""
    name = next((name for name in names if row.get(name) is not None), None)
    value = row.get(name)
    if name in TALKS:
        value = talk_of(value)
    if name == "instruction" and isinstance(value, str):
        value = "\n".join(part for part in (value, row.get("input")) if isinstance(part, str) and part)
        turns = history_of(talk_of(row.get("history")) or [])
        value = turns + [{"role": "user", "content": value}] if turns else value
    return name, value


def talk_of(value):
    """A list that may be JSON in a text, as a csv file has it."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
        return found if isinstance(found, list) else value
    except (ValueError, RecursionError):
        return value


def history_of(turns):
    """The messages of the pairs [question, answer] that come before an instruction."""
    try:
        return [{"role": role, "content": text} for asked, said in turns for role, text in (("user", asked), ("assistant", said))]
    except (TypeError, ValueError):
        raise ChatError("'history' is no list of pairs of texts") from None


def is_whole(answer):
    """Whether an answer is a conversation that begins with its prompt."""
    first = answer[0] if is_messages(answer) else {}
    return first.get("role", first.get("from")) in OPENING_ROLES


def says_something(answer):
    """Whether any message or the text has more than blanks."""
    if isinstance(answer, str):
        return bool(answer.strip())
    values = [value for one in answer for key, value in (one.items() if isinstance(one, dict) else [("", one)])
              if key not in ("role", "from", "name", "weight", "train")]
    return any(value.strip() if isinstance(value, str) else value for value in values)


def split(answers):
    """(prompt, answers without it) of answers that begin with their prompt, as TRL's extract_prompt finds it: up to the first
    character or message that differs, and one more of them for the answer if none does. The last message is a single answer."""
    same = len(answers[0]) - 1
    if len(answers) == 2:
        same = next((i for i, (one, other) in enumerate(zip(*answers)) if one != other), min(map(len, answers)) - 1)
        same -= same > 0 and answers[0][same - 1] == " "
    if same <= 0:
        raise Dropped(NO_PROMPT)
    return answers[0][:same], [answer[same:] for answer in answers]


def messages_of(value, role):
    return [{"role": role, "content": value}] if isinstance(value, str) else [value] if isinstance(value, dict) else value


def is_implicit(name, prompt, answers):
    """Whether the answers are conversations that begin with the prompt, whatever else the row has."""
    if prompt is None:
        return True
    if not all(map(is_whole, answers)):
        return False
    return isinstance(prompt, str) or name in TALKS or all(answer[: len(prompt)] == prompt for answer in answers)


def read_example(row, form):
    """(prompt, answers) of a row: texts, or lists of messages. The chosen answer is the first."""
    name, prompt = prompt_of(row, form["prompt"])
    answers = [talk_of(row.get(one)) if one in TALKS else row.get(one) for one in form["answers"]]
    if form["answers"] == [RANKED]:
        answers, prompt = ranked_pair(answers[0]), dialogue(prompt) if isinstance(prompt, str) else prompt
    if not all(answer and says_something([answer] if isinstance(answer, dict) else answer) for answer in answers):
        raise Dropped(EMPTY)
    if len(answers) == 2 and answers[0] == answers[1]:
        raise Dropped(EQUAL)
    if all(isinstance(one, str) for one in (*answers, prompt or "")) and not (form["turns"] and prompt is not None):
        if prompt is None and (form["turns"] or len(answers) == 1):
            raise ChatError("it has no prompt")
        return (prompt, answers) if prompt is not None else split(answers)
    answers = [messages_of(answer, "assistant") for answer in answers]
    if is_implicit(name, prompt, answers):
        return split(answers)
    return messages_of(prompt, "user"), answers

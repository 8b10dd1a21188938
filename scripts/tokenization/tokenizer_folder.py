# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a Hugging Face folder, put together as transformers' AutoTokenizer does it: tokenizer.json, or else
vocab.json and merges.txt with what belongs to the folder's class, and the special tokens that tokenizer_config.json adds."""
import json
import os
import shlex

from .errors import DATA, Failure, USAGE, hint_to_install
from .files import LFS_POINTER, refuse_pointer

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
QWEN2_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
END = "<|endoftext|>"

# What vocab.json and merges.txt do not say: (whether texts become NFC, the expression that cuts words, where it is not
# GPT-2's, and the special tokens that the folder does not name).
GPT2 = (False, None, {"bos_token": END, "eos_token": END, "unk_token": END})
CLASSES = {"GPT2Tokenizer": GPT2, "CodeGenTokenizer": GPT2,
           "GPTNeoXTokenizer": (True, None, {**GPT2[2], "pad_token": "<|padding|>"}),
           "Qwen2Tokenizer": (True, QWEN2_WORDS, {"eos_token": END, "unk_token": END, "pad_token": END})}
MODEL_TYPES = {"gpt2": "GPT2Tokenizer", "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer"}

FOREIGN = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tiktoken.model", "tekken.json", "vocab.txt")


def convert_hint(folder):
    command = f'from transformers import AutoTokenizer; AutoTokenizer.from_pretrained({json.dumps(folder)}).save_pretrained("NEW")'
    return f"hint: python3 -c {shlex.quote(command)} writes a tokenizer.json, and --tokenizer NEW takes it"


def read_object(folder, name):
    """A JSON object of the folder; {}: there is no such file."""
    path = os.path.join(folder, name)
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise Failure(DATA, f"cannot read '{path}': {error}")
    if not isinstance(value, dict):
        raise Failure(DATA, f"cannot read '{path}': it is not a JSON object")
    return value


def text_of(token):
    """The text of a token, which may be given with its properties; None: it is no token."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) and token else None


class TokenizerFolder:
    """`tokenizer`, of the package `tokenizers`; `named`: {"eos_token": its text, …}."""

    def __init__(self, folder):
        self.folder = folder
        self.config = read_object(folder, "tokenizer_config.json")
        whole, vocabulary, merges = (os.path.join(folder, name) for name in ("tokenizer.json", "vocab.json", "merges.txt"))
        have = [path for path in (whole, vocabulary, merges) if os.path.exists(path)]
        for path in have:
            with open(path, "rb") as file:
                refuse_pointer(path, file.read(len(LFS_POINTER)))
        if whole not in have and len(have) < 2:
            self.refuse()
        try:
            import tokenizers as package
        except ImportError:
            raise Failure(USAGE, "--tokenizer DIR needs the Python package 'tokenizers'" + hint_to_install("tokenizers"))
        self.package, defaults = package, {}
        if whole in have:
            self.tokenizer = self.load(lambda: package.Tokenizer.from_file(whole))
            self.set_prefix_space()
            self.tokenizer.no_truncation()
            self.tokenizer.no_padding()
        else:
            normal, words, defaults = self.parts_of_class()
            self.tokenizer = self.load(lambda: package.Tokenizer(package.models.BPE.from_file(vocabulary, merges)))
            self.put_together(normal, words)
        self.add_tokens(defaults)
        if whole not in have:
            self.surround()
        if self.config.get("split_special_tokens") is True:
            self.tokenizer.encode_special_tokens = True

    def load(self, read):
        try:
            return read()
        except Exception as error:  # the package raises plain Exception
            raise Failure(DATA, f"cannot read the tokenizer in '{self.folder}': {' '.join(str(error).split())}")

    def refuse(self):
        other = next((name for name in FOREIGN if os.path.exists(os.path.join(self.folder, name))), None)
        if other:
            raise Failure(DATA, f"'{self.folder}' has no tokenizer.json, and its {other} is not read; {convert_hint(self.folder)}")
        raise Failure(DATA, f"'{self.folder}' has neither tokenizer.json nor vocab.json and merges.txt")

    def class_name(self, otherwise):
        """The name of the folder's class, or of its model's; `otherwise`: nothing names one."""
        model = read_object(self.folder, "config.json")
        name, kind = self.config.get("tokenizer_class") or model.get("tokenizer_class"), model.get("model_type")
        if not name:
            name = otherwise if kind is None else MODEL_TYPES.get(kind, f"model of type {kind}")
        return str(name)[: -len("Fast")] if str(name).endswith("Fast") else str(name)

    def set_prefix_space(self):
        """Beside a tokenizer.json a class has its say about a space before a text; the file has all else."""
        space = self.config.get("add_prefix_space")
        if not isinstance(space, bool) or self.class_name(None) not in CLASSES:
            return
        parts = json.loads(self.tokenizer.to_str())
        cut = parts["pre_tokenizer"] or {}
        for cut in (cut, *cut.get("pretokenizers", ())):
            if "add_prefix_space" in cut:
                cut["add_prefix_space"] = space
        self.tokenizer = self.load(lambda: self.package.Tokenizer.from_str(json.dumps(parts)))

    # ---- vocab.json and merges.txt ----

    def parts_of_class(self):
        """The entry of CLASSES that the folder names; without any name GPT-2's."""
        name = self.class_name("GPT2Tokenizer")
        parts = CLASSES.get(name)
        if parts is None:
            raise Failure(USAGE, f"'{self.folder}' has vocab.json and merges.txt of a {name}, which are read with a tokenizer.json "
                                 f"only; {convert_hint(self.folder)}")
        return parts

    def put_together(self, normal, words):
        package, space = self.package, self.config.get("add_prefix_space") is True
        cut = package.pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=words is None)
        if words:
            split = package.pre_tokenizers.Split(package.Regex(words), "isolated")
            cut = package.pre_tokenizers.Sequence([split, cut])
        self.tokenizer.pre_tokenizer = cut
        self.tokenizer.decoder = package.decoders.ByteLevel()
        if normal:
            self.tokenizer.normalizer = package.normalizers.NFC()

    def surround(self):
        """Puts the tokens before and after a text for which the folder asks."""
        before, after = ([self.named[key]] if self.config.get(f"add_{key}") is True and key in self.named else []
                         for key in ("bos_token", "eos_token"))
        single, second = ([f"{token}:{i}" for token in before] + [f"${'AB'[i]}:{i}"] + [f"{token}:{i}" for token in after]
                          for i in (0, 1))
        special = [(token, self.tokenizer.token_to_id(token)) for token in {*before, *after}]
        self.tokenizer.post_processor = self.load(lambda: self.package.processors.TemplateProcessing(
            single=single, pair=single + second, special_tokens=special))

    # ---- special tokens ----

    def add_tokens(self, defaults):
        """Adds the tokens of added_tokens_decoder (or of added_tokens.json and special_tokens_map.json), and the special ones
        that have a name. `tokenizers` gives them the ids of the vocabulary, or the next ones."""
        known = {token.content for token in self.tokenizer.get_added_tokens_decoder().values()}
        config, legacy = {**defaults, **self.config}, "added_tokens_decoder" not in self.config
        if legacy:
            config.update(read_object(self.folder, "special_tokens_map.json"))
        special = self.special_tokens(config)
        declared = {text: token for text, token in self.declared(legacy, special).items() if not (legacy and text in known)}
        tokens = [self.added(text, token, text in special or token.get("special") is True) for text, token in declared.items()]
        tokens += [self.added(text, token if isinstance(token, dict) else {}, True)
                   for text, token in special.items() if text not in known and text not in declared]
        new = {text for text in declared if self.tokenizer.token_to_id(text) is None}
        self.tokenizer.add_tokens(tokens)
        for text in new:
            number, given = self.tokenizer.token_to_id(text), declared[text]["id"]
            if number != given:
                raise Failure(DATA, f"'{self.folder}' gives the token {text!r} the id {given}, and after its vocabulary and the tokens "
                                    f"before it the next id is {number}")

    def special_tokens(self, config):
        """{text: token} of the special tokens that are named; notes their names."""
        keys = [*NAMES, *(key for key in config if key.endswith("_token") and key not in NAMES)]
        named = {key: config[key] for key in keys if text_of(config.get(key))}
        more = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
        if isinstance(more, dict):
            named.update((key, token) for key, token in more.items() if text_of(token))
            more = []
        self.named = {key: text_of(token) for key, token in named.items()}
        tokens = {}
        for token in [*named.values(), *(more if isinstance(more, list) else [])]:
            if text_of(token):
                tokens.setdefault(text_of(token), token)
        return tokens

    def declared(self, legacy, special):
        """{text: its properties and "id"} of the tokens to which the folder gives an id, in the order of the ids."""
        if legacy:
            items = [(number, {"content": text, "special": text in special})
                     for text, number in read_object(self.folder, "added_tokens.json").items()]
        else:
            items = self.config["added_tokens_decoder"] or {}
            items = items.items() if isinstance(items, dict) else [(items, None)]
        try:
            tokens = [{**token, "id": int(number)} for number, token in items if token["content"] != ""]
        except (KeyError, TypeError, ValueError):
            raise Failure(DATA, f"the added tokens of '{self.folder}' are not ids with tokens: added_tokens_decoder in "
                                "tokenizer_config.json, or added_tokens.json")
        return {token["content"]: token for token in sorted(tokens, key=lambda token: token["id"])}

    def added(self, text, token, special):
        flags = {key: token.get(key) is True for key in ("lstrip", "rstrip", "single_word")}
        normalized = token.get("normalized")
        if normalized is None:
            normalized = not token.get("special", special)
        return self.package.AddedToken(text, special=special, normalized=normalized is True, **flags)

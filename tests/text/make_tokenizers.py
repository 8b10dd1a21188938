#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the tokenizers of this folder, and encodings.json with what `tokenizers` does with them: an oracle for core/text.

Each is a small byte-level BPE, trained on text that is made here, with the components of a published tokenizer: the same
pre-tokenizer (its regular expression is what tells them apart), normalizer, post-processor, decoder and kinds of added
tokens. The vocabularies are small, so that rare characters fall apart into bytes.

    tests/text/make_tokenizers.py    (needs the Python package tokenizers)
"""
import json
import os
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
          r"|\s+(?!\S)|\s+")

WORDS = """the of and to in is it that was for on are with as be at have from this not but by they his her she he you we or an
will would there their what all about which when one can said do if out up so them then some more time very into just over
Tokenizer's don't won't I'll we've you're HE'D it's 1 12 123 2024 3.14 1,000 naïve café Zürich straße Ελληνικά Москва 東京
한국어 हिन्दी العربية עברית ไทย 👍🏽 é ñ ü ö ß œ “quoted” – … x = y+1; printf("%d\\n", i); if (a[i] != NULL) { return -1; }""".split()


def training_text(seed=7, lines=2500):
    """Lines of words in the frequencies of a language, with the layout of prose and code."""
    rng = random.Random(seed)
    for _ in range(lines):
        words = [WORDS[min(int(rng.expovariate(0.06)), len(WORDS) - 1)] for _ in range(rng.randint(3, 14))]
        yield rng.choice(["", "", "", "    ", "\t"]) + rng.choice([" ", " ", " ", "  "]).join(words) + rng.choice([".", "!", "\n", "\r\n", ""])


def train(tokenizer, size, special):
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(training_text(), trainer)
    return tokenizer


def split(expression, more=()):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(expression), "isolated"), *more,
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def special(*contents, **flags):
    return [AddedToken(content, special=True, normalized=False, **flags) for content in contents]


def gpt2():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    train(tokenizer, 700, ["<|endoftext|>"])
    return tokenizer


def llama3():
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = split(LLAMA3)
    train(tokenizer, 700, [])
    tokenizer.add_special_tokens(special("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                                         "<|eot_id|>"))
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
        special_tokens=[("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))])])
    return tokenizer


def qwen2():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split(QWEN2)
    train(tokenizer, 700, [])
    tokenizer.add_special_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False, normalized=False),
                          AddedToken("</tool_call>", special=False, normalized=False)])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def mixed():
    """What the three do not have: Digits, add_prefix_space, added tokens of every kind, NFC in added tokens, an end token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=True)])
    train(tokenizer, 500, [])
    tokenizer.add_tokens([AddedToken("the", single_word=True), AddedToken("<l>", lstrip=True, normalized=False),
                          AddedToken("<r>", rstrip=True), AddedToken("<lr>", lstrip=True, rstrip=True, normalized=False),
                          AddedToken("<l><r>", normalized=False), AddedToken("cafe\u0301"), AddedToken("\u00fcber", normalized=False),
                          AddedToken("  ", normalized=False), AddedToken("Ġx", normalized=False)])
    tokenizer.add_special_tokens(special("[CLS]", "[SEP]") + special("[MASK]", lstrip=True, single_word=True))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("[CLS]", "[SEP]")])
    return tokenizer


def o200k():
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = split(O200K)
    return train(tokenizer, 450, [])


def holes():
    """A vocabulary that lacks most bytes, which become the unknown token, one for several in a row."""
    vocabulary = {t: i for i, t in enumerate(["<unk>", "a", "b", "c", "Ġ", "ab", "Ġab", "abc"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b"), ("Ġ", "ab"), ("ab", "c")], unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(CL100K), "removed", invert=True), pre_tokenizers.ByteLevel(False, use_regex=False)])
    return tokenizer


MADE = {"gpt2": gpt2, "llama3": llama3, "qwen2": qwen2, "mixed": mixed, "o200k": o200k, "holes": holes}

TEXTS = [
    "", " ", "  ", "   ", "\n", "\n\n\n", "\r\n", " \n ", "a\u00a0b", "a\u3000\u3000b\u2028c\u2029d\u0085e\x0b\x0c\x1cf", "\t\tx  \t y \r\r\n z ",
    "trailing   ", "   leading", "a  b   c    d", "\u200b zero\u200bwidth \ufeff BOM", "nul\x01\x02\x7f",
    "Hello, world!", "I'll don't HE'S we'Ve IT'S 'twas 's'S'\u017f 'LL'll 'K\u212a can't've \u2019s", "'''s''re''", "it's's's",
    "0 12 345 6789 1234567890 3.14159 1,000,000 ½ ²³ ٣٤٥ Ⅷ ৪৫ 𝟙𝟚 ①②", "x1y22z333 v2.0-rc1", "2024-11-23T12:50:04Z",
    "e\u0301 \u00e9 a\u0323\u0302 \u1ead A\u030a \u212b \u0344 \u0958 \u2126 \ufb1d q\u0307\u0323", "\u0301\u0301 leading marks", "a" + "\u0301\u0316" * 40,
    "\u1112\u1161\u11ab\u1100\u1173\u11af 한글 \uac00\u11a8 \uac01\u11a8 \u1100\uac00", "o\u0338\u0301 \u00f8\u0301 \u01fe",
    "👍🏽👩‍👩‍👧‍👦 🏳️‍🌈 🇨🇭 ❤️ ☃ 1️⃣", "שלום עולם \u202eabc\u202c العَرَبِيَّة", "हिन्दी नमस्ते தமிழ் ไทยไม่มีเว้นวรรค ខ្មែរ", "漢字かな交じり文、句読点。「括弧」", "ﬁ ﬂ ß ſ İ ı ŉ ǰ",
    "\u0378 \u0ff0\ufdd0 \U0001fffe \U000e0001\U000f0000 \U0010ffff", "\u1e9e\u1c89\U00010d40\U00016d40\u0897 new", "\u09be\u09c7\u09be \u0bc6\u0bbe \U00011131\U00011127",
    "<|endoftext|>", "a<|endoftext|>b <|endoftext|> <|endoftext|><|endoftext|", "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>",
    "<|im_start|>system\nYou are <|im_end|>\n<tool_call>{}</tool_call><tool_call", "the other the. the_ (the) 1the the\u0301 the<l> bathe", "a  <l>  b  <r>  c  <lr>  d",
    "<l><r> <l> <r><lr><lr>  <lr>", "café cafe\u0301 über u\u0308ber caf\u00e9s", "[MASK] a[MASK] [MASK]b  [MASK]  [CLS]x[SEP]", "Ġx Ġ Ċ ĉ Ā", "unk abc ab  abcab zzz ab☃c",
    "camelCaseWords HTTPServer XMLHttpRequest iPhone's ÀÉÎõü ǅ ʰʱ ªº snake_case CONSTANT_NAME/path\n/x",
    "if (a[i] != NULL) {\n\treturn -1;  // done\n}\r\n\r\n    for (;;) { x += 1; }", "https://example.org/a?b=c&d=%20#e", "a" * 300, "ab" * 150, " " * 70 + "x", "\n" * 40, "!?" * 50, "=" * 33,
]


def decodings(tokenizer):
    """Ids that are no text by themselves: half characters, bytes that are no UTF-8, special tokens, ids without a token."""
    ids = {t: i for t, i in tokenizer.get_vocab().items()}
    byte = dict(zip(list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256)),
                    map(chr, list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256)))))
    rest = [b for b in range(256) if b not in byte]
    byte.update({b: chr(256 + i) for i, b in enumerate(rest)})
    rows = []
    for data in (b"\xf0\x9f", b"\xe2\x98a", b"\x80\x81", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf", b"\xf0\x9f\x91\x8d\xe2", b"a\xffb\xfe",
                 b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xe2\x82\xe2\x82\xac", b"\x00\t\n"):
        row = [ids[byte[b]] for b in data if byte[b] in ids]
        if row:
            rows.append(row)
    rng = random.Random(5)
    size = max(ids.values())
    rows += [[rng.randint(0, size + 3) for _ in range(12)] for _ in range(12)]
    return [[row, tokenizer.decode(row, skip_special_tokens=False), tokenizer.decode(row, skip_special_tokens=True)] for row in rows]


def main():
    cases = {}
    for name, make in MADE.items():
        tokenizer = make()
        tokenizer.decoder = decoders.ByteLevel()
        folder = os.path.join(HERE, name)
        os.makedirs(folder, exist_ok=True)
        text = json.loads(tokenizer.to_str())
        if name in ("gpt2", "mixed"):  # the older notation
            text["model"]["merges"] = [" ".join(merge) for merge in text["model"]["merges"]]
        with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
            json.dump(text, file, ensure_ascii=False, separators=(",", ":"))
            file.write("\n")
        tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        cases[name] = {"encodings": [tokenizer.encode(t).ids for t in TEXTS],
                       "plain": [tokenizer.encode(t, add_special_tokens=False).ids for t in TEXTS],
                       "decoded": [tokenizer.decode(tokenizer.encode(t).ids, skip_special_tokens=True) for t in TEXTS],
                       "decodings": decodings(tokenizer)}
    with open(os.path.join(HERE, "encodings.json"), "w", encoding="ascii") as file:
        file.write('{"texts": [\n' + ",\n".join(json.dumps(t) for t in TEXTS) + "\n]")
        for name, case in cases.items():
            file.write(f',\n"{name}": {{')
            file.write(",\n".join(f'"{key}": [\n' + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "]"
                                  for key, rows in case.items()) + "}")
        file.write("}\n")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""The command line of scripts/tokenize.py, and the text of its --help."""
import argparse
import os
import sys

from .errors import USAGE

DESCRIPTION = """\
Turn text into token shards for ztrain: PREFIX.bin and PREFIX.idx (Megatron-LM's format), and, with --validation,
PREFIX-validation.bin and .idx. Conversations and completions get a loss mask as well, PREFIX.mask, and documents with
--label their labels, PREFIX.labels. Pairs of answers for preference training get both."""

DETAILS = """\
inputs
  The end of a file's name determines its kind (each may be followed by .gz, .bz2, .xz or .zst; a file's first bytes tell
  whether it is compressed):
    .jsonl .ndjson .json   an object on each line, each one document; or a JSON array of them
    .csv .tsv              a row is a document
    .parquet .arrow        a row is a document (also .feather)
    any other              text, cut by --document
  A folder stands for all files in it and below, sorted by name; hidden and binary files in it are skipped. In the folder of a
  data set README.md and dataset_info.json are left out, and so is any text where --fields, --label and the like ask for rows.
  Rows of all its splits are taken; a line names the files that are called validation, test or the like.
  A folder that datasets.save_to_disk wrote is read as it was written; if it holds several splits, name one of them.

documents
  Empty documents are left out. In text files a document is
    --document paragraph   the text between blank lines (the default)
    --document line        a line
    --document file        a whole file
  In files of the other kinds --fields chooses the fields that are the text, joined by a blank:
    --fields title,description   names: keys of the objects, or columns that the csv file's first row names
    --fields 2,3                 numbers: columns from 1 of a csv file without such a row
  Without --fields the text is the field "text".
  Bytes are taken as UTF-8, dates and decimal numbers as they are usually written.
  --quoting minimal: fields of .csv and .tsv may stand between quotation marks (the default for .csv); --quoting none: a mark
  is a character like others (the default for .tsv, because most such data, as GLUE's, are written so).
  --max-length N cuts documents after N tokens.

conversations
  --chat-template takes the field "messages" of each object, a list of {"role": "user", "content": "…"}; or ShareGPT's
  "conversations" with "from" and "value"; or "prompt" and "completion", two such lists (the completion's turns are learned);
  --fields names another field. It renders them with the chat template of the tokenizer folder (chat_template.jinja with
  additional_chat_templates, or chat_template in tokenizer_config.json), and marks in PREFIX.mask what the assistant said: by
  the template's {% generation %} blocks if it has them, else all turns of the role "assistant" with the token that ends them.
  A turn with "weight": 0 or "train": false is not learned. "tools", "documents", "chat_template_kwargs" and a "system" text
  of an object go to the template. Conversations in which the assistant says nothing are dropped. Those that the template
  refuses, and those whose turns cannot be told apart, are left out and counted; more than a tenth of them: exit 3.
  --completion PROMPT,COMPLETION names two fields; the document is one after the other, each tokenized by itself, and the
  completion with the end-of-text token is what is learned from. Two lists of messages are rendered as --chat-template does.
  --completion instruction,input,output, as Alpaca's data have them: the prompt is the first, and the second below it if it is
  not empty.
  A sample is shown at the end, with what is learned from in green (or between ⟦ and ⟧).

preferences
  --preference is for DPO and its relatives: each row has a prompt, a chosen and a rejected answer. They become two neighbouring
  documents, the prompt with the chosen answer and the prompt with the rejected one. For KTO each row has a prompt, a completion
  and a label (true or false, 1 or 0), and becomes one document. The answer is learned from, with the token that ends it
  (PREFIX.mask). PREFIX.labels has 1 for chosen or desirable documents and 0 for the others, PREFIX.labels.json these names.
  The columns tell the form of the data:
    prompt, chosen, rejected      texts, each tokenized by itself as --completion does; or lists of messages for the chat
                                  template. The prompt is what both answers begin with, as TRL finds it, if it has no column.
    prompt, completion, label     the same for KTO. A completion of messages has its prompt before the last one, if there is no
                                  column for it.
    messages, chosen, rejected    messages, and answers that are a message, a list of them or a text; "conversations" with "from"
                                  and "value" are ShareGPT's. With label or kto_tag the last message is the answer.
    question, chosen, rejected    texts that become turns of a conversation. So do instruction (with history before it and input
                                  below it), input, chosen_response, rejected_response, and a prompt beside a "system" text; for
                                  KTO completion, output or response with label or kto_tag.
    prompt, answers               several answers with ranks: the best one is chosen, the worst rejected.
  --fields PROMPT,CHOSEN,REJECTED or CHOSEN,REJECTED names other columns; for KTO --fields PROMPT,COMPLETION --label COLUMN.
  --chat-template makes turns of texts in any form. "tools", "documents", "chat_template_kwargs" and a "system" text of an object
  go to the template. A template's answer begins where the tokens that the prompt has by itself end, as in TRL. Pairs and
  examples are dropped, and counted, if an answer is empty, both are equal or a document has more than --max-length tokens.

labels
  --label COLUMN is for classification (model.task: sequence_classification): each row is a document with a label, and
  --fields names one text or a pair of texts (default: text); --label 1 --fields 2,3 are columns of a csv file without names.
  Labels are the numbers from 0 on (1.0 is 1), or else texts (true and false are), which are sorted and numbered;
  PREFIX.labels has the number of each document, PREFIX.labels.json the names. A document has the special tokens that the
  tokenizer adds to a text or a pair, and no others; how a pair is joined is shown at the end, with a sample. PREFIX.types has
  the segment of each token of a pair. --max-length cuts the longer text first and keeps the special tokens. --labels-from
  PREFIX gives a second file, such as the validation data, the numbers of the first.

special tokens
  --special auto   what the tokenizer itself adds to a text, and the end-of-text token after each document if that is not
                   among it; after a chat template nothing: the template has them (the default)
  --special none   nothing; bos, eos, both: the one that begins a text, the end-of-text token, or both, once

tokenizers
  byte   256 bytes and the end-of-text token 256 (vocab_size 257); no files are needed
  DIR    a Hugging Face folder with tokenizer.json, or with vocab.json and merges.txt of the classes GPT2Tokenizer,
         Qwen2Tokenizer, GPTNeoXTokenizer and CodeGenTokenizer; tokenizer_config.json adds special tokens, as in
         transformers. Needs the Python package "tokenizers". The end-of-text token is the folder's eos token;
         --end-of-text names another.
  NAME   a model in the local Hugging Face cache, such as Qwen/Qwen2.5-0.5B; nothing is downloaded
  The summary at the end has the smallest vocab_size that the model needs. Tokens are stored as uint16 where the
  vocabulary has at most 65,536 entries, as int32 otherwise.

validation
  --validation 0.02 puts about 2 % of the documents into PREFIX-validation instead of PREFIX. A hash of its text decides
  for each document, so every run decides alike, and equal documents are never on both sides. With --preference it is a hash
  of the prompt.

examples
  ztrain-tokenize book.txt --output data/book --tokenizer byte --validation 0.05
  ztrain-tokenize /usr/include --output data/headers --tokenizer byte --document file
  ztrain-tokenize ag_news.csv --fields 2,3 --output data/news --tokenizer models/gpt2 --validation 0.02
  ztrain-tokenize chats.jsonl --chat-template --output data/chats --tokenizer models/llama-instruct
  ztrain-tokenize alpaca.json --completion instruction,input,output --output data/alpaca --tokenizer models/llama
  ztrain-tokenize ultrafeedback.parquet --preference --output data/pairs --tokenizer models/llama-instruct --max-length 2048
  ztrain-tokenize mrpc.jsonl --label label --fields sentence1,sentence2 --output data/mrpc --tokenizer models/bert
  ztrain-tokenize part-*.jsonl.gz --fields text --output data/web --tokenizer models/llama --workers 16

exit codes
  0 done; 2 wrong usage (or the package is missing); 3 an input or tokenizer cannot be read or is damaged, or more than a tenth
  of the conversations cannot be used;
  130 or 143 interrupted by SIGINT or SIGTERM
"""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        """As all other errors of the program begin, whatever its file is called."""
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"ztrain-tokenize: error: {message}\n")


def parse(arguments):
    name = os.path.basename(sys.argv[0])  # tokenize.py, or ztrain-tokenize after an installation
    parser = Parser(
        prog=name,
        description=DESCRIPTION,
        epilog=DETAILS.replace("ztrain-tokenize", name),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("inputs", metavar="INPUT", nargs="+", help="text, jsonl, csv, parquet or arrow file, or a folder of such files")
    parser.add_argument("--output", metavar="PREFIX", required=True, help="writes PREFIX.bin and PREFIX.idx")
    parser.add_argument("--tokenizer", metavar="byte|DIR", required=True,
                        help="byte, or a Hugging Face tokenizer folder")
    parser.add_argument("--fields", metavar="LIST", help="fields of jsonl, csv, parquet and arrow (default: text)")
    parser.add_argument("--chat-template", action="store_true",
                        help="render messages with the tokenizer folder's chat template, and write a loss mask")
    parser.add_argument("--completion", metavar="LIST", help="fields: a prompt, maybe an input, and the completion to learn")
    parser.add_argument("--preference", action="store_true",
                        help="pairs of a chosen and a rejected answer, or answers with a label (DPO, KTO and the like)")
    parser.add_argument("--label", metavar="COLUMN", help="the field with the label of each row, for classification or KTO")
    parser.add_argument("--labels-from", metavar="PREFIX", help="number the labels as in this shard")
    parser.add_argument("--special", choices=("auto", "none", "bos", "eos", "both"), default="auto",
                        help="special tokens around each document (default: auto)")
    parser.add_argument("--max-length", metavar="N", type=int, default=0, help="cut documents after N tokens (--preference: drop pairs of longer ones)")
    parser.add_argument("--document", choices=("line", "paragraph", "file"),
                        help="what one document of a text file is (default: paragraph)")
    parser.add_argument("--quoting", choices=("minimal", "none"),
                        help="quotation marks in .csv and .tsv (default: minimal for .csv, none for .tsv)")
    parser.add_argument("--validation", metavar="SHARE", type=float, default=0.0,
                        help="share of the documents for PREFIX-validation (default: 0, none)")
    parser.add_argument("--workers", metavar="N", type=int, default=len(os.sched_getaffinity(0)),
                        help="processes (default: one per core)")
    parser.add_argument("--end-of-text", metavar="TOKEN", help="end-of-text token of a tokenizer folder")
    args = parser.parse_args(arguments)

    args.fields_given, args.document_given = args.fields is not None, args.document is not None
    args.document = args.document or "paragraph"
    args.form = ("preference" if args.preference else "chat" if args.chat_template
                 else "completion" if args.completion is not None else "label" if args.label is not None else "text")
    if args.completion is not None and args.form != "completion":
        other = "--preference" if args.preference else "--chat-template"
        parser.error(f"{other} and --completion are two forms of data: choose one")
    if args.label is not None and args.form not in ("label", "preference"):
        parser.error("--label does not go with --chat-template and --completion")
    if args.labels_from and args.form != "label":
        parser.error("--labels-from goes with --label")
    if args.form == "label" and args.special not in ("auto", "none"):
        parser.error("--special: with --label auto or none")
    if args.form == "label" and args.end_of_text is not None:
        parser.error("--end-of-text: with --label documents have the tokenizer's own special tokens only")
    if args.completion is not None and args.fields_given:
        parser.error("--completion names the fields; --fields does not go with it")
    if args.chat_template and args.tokenizer == "byte":
        parser.error("--chat-template: the byte vocabulary has no chat template; name a tokenizer folder")
    args.fields = [field.strip() for field in (args.completion or args.fields or "text").split(",")]
    if args.form == "completion" and len(args.fields) not in (2, 3):
        parser.error("--completion: PROMPT,COMPLETION or PROMPT,INPUT,COMPLETION")
    if args.form == "chat" and len(args.fields) != 1:
        parser.error("--fields: with --chat-template one field, the messages")
    if args.form == "preference" and args.fields_given and len(args.fields) not in ((1, 2) if args.label else (2, 3)):
        parser.error("--fields: with --preference PROMPT,CHOSEN,REJECTED or CHOSEN,REJECTED, with --label PROMPT,COMPLETION")
    if args.label == "":
        parser.error("--label: an empty name")
    if args.form == "label" and (len(args.fields) > 2 or not args.label):
        parser.error("--fields: with --label one text, or a pair of texts")
    if args.max_length < 0 or args.max_length == 1:
        parser.error("--max-length: at least 2")
    if not all(args.fields):
        parser.error("--fields: an empty name")
    numbers = [field.isdecimal() for field in args.fields]
    if args.form == "label" and any(numbers + [args.label.isdecimal()]):
        if not all(numbers + [args.label.isdecimal()]) or not args.fields_given or args.label == "0":
            parser.error("--label, --fields: names, or column numbers from 1 of csv files without a first row of names")
    elif any(numbers) and args.form != "text":
        parser.error("column numbers go with plain text only; name the fields")
    if any(numbers) and not all(numbers):
        parser.error("--fields: names or column numbers, not both")
    if all(numbers) and min(map(int, args.fields)) < 1:
        parser.error("--fields: columns are counted from 1")
    if not 0 <= args.validation < 1:
        parser.error("--validation: a share from 0 up to, not including, 1 (0.02 for two percent)")
    if args.workers < 1:
        parser.error("--workers: at least 1")
    if os.path.basename(args.output) == "":
        parser.error(f"--output: '{args.output}' is a folder; expected a prefix such as {args.output or 'data/'}train")
    if args.output.endswith((".bin", ".idx", ".mask", ".labels")):
        parser.error("--output: a prefix, without .bin, .idx or .mask")
    return args

# SPDX-License-Identifier: Apache-2.0
"""From files to documents: bytes of text, or JSON where more than a text belongs to one."""
import csv
import decimal
import functools
import io
import json
import math
import shlex

from . import conversations, preferences
from .errors import DATA, Failure, USAGE, hint_to_install, interrupt, listed, shortened
from .files import (LFS_POINTER, bare_name, compression_of, compression_of_name, import_for, kind_of, open_input, read_errors,
                    refuse_pointer)

BATCH_BYTES = 1 << 20  # of text in a batch, which goes to one worker
BATCH_DOCUMENTS = 4096
LONGEST = 2**31 - 1  # bytes of a line or document


def refuse_longer(text, where):
    if len(text) > LONGEST:
        raise Failure(DATA, f"{where} is longer than {LONGEST:,} bytes; hint: cut it into several documents")


def lines_of(file, path):
    for number, line in enumerate(iter(functools.partial(file.readline, LONGEST + 1), b""), 1):
        refuse_longer(line, f"'{path}' line {number}")
        yield line


def text_documents(file, path, unit):
    """Cuts a text (bytes) into documents."""
    if unit == "file":
        yield file.read(LONGEST + 1)
        return
    paragraph = []
    for line in lines_of(file, path):
        line = line.rstrip(b"\r\n")
        if unit == "line":
            yield line
        elif line.strip():
            paragraph.append(line)
        elif paragraph:
            yield b"\n".join(paragraph)
            paragraph = []
    if paragraph:
        yield b"\n".join(paragraph)


# --- values -----------------------------------------------------------------------------------------------------------

def to_bytes(text):
    """Text in UTF-8. Bytes of a file that are not UTF-8 stay as they are; half a surrogate pair, which JSON can hold and UTF-8
    cannot, becomes "?"."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def clean(text):
    """The text as UTF-8 can hold it, with U+FFFD for each wrong byte."""
    return to_bytes(text).decode("utf-8", "replace")


def field_text(value, where):
    """A value of JSON, or of a table's column (bytes, a date, a decimal, …), as text."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, (dict, list)):
        raise Failure(DATA, f"{where} is a {'list' if isinstance(value, list) else 'JSON object'}, expected text"
                            + "; hint: --chat-template" * conversations.is_messages(value))
    return json.dumps(value) if isinstance(value, (bool, int, float)) else str(value)


def label_text(value, where):
    """A label as text: a whole number without its point, true and false as JSON spells them."""
    if isinstance(value, (float, decimal.Decimal)) and math.isfinite(value) and int(value) == value:
        value = int(value)
    if value in (None, "") or isinstance(value, (float, decimal.Decimal, dict, list)):
        raise Failure(DATA, f"{where} is {shortened(json.dumps(value, default=str))}, expected text, a whole number, true or "
                            "false; hint: leave out the rows without one")
    return clean(field_text(value, where))


# --- rows -------------------------------------------------------------------------------------------------------------

def json_rows(file, path):
    """Yields (place, object) for each line, or for each element if the file is one array."""
    if bare_name(path).endswith(".json") and file.peek(1024).lstrip()[:1] == b"[":
        try:
            rows = json.loads(file.read())
        except (ValueError, RecursionError) as error:
            raise Failure(DATA, f"'{path}': not JSON ({error}); expected an array of objects, or an object on each line")
        for number, row in enumerate(rows, 1):
            yield f"'{path}' element {number}", row
        return
    for number, line in enumerate(lines_of(file, path), 1):
        if not line.strip():
            continue
        try:
            yield f"'{path}' line {number}", json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Failure(DATA, f"'{path}' line {number}: not JSON ({error}); expected an object on each line")


def table_batches(pyarrow, file, path):
    """(record batch, share of the rows that are read by then, or None) of parquet, or of Arrow's files and streams."""
    if bare_name(path).endswith(".parquet"):
        table, done = import_for(path, "pyarrow.parquet").ParquetFile(file), 0
        for batch in table.iter_batches(batch_size=1024):
            done += batch.num_rows
            yield batch, done / max(table.metadata.num_rows, 1)
    elif file.peek(6).startswith(b"ARROW1"):
        table = pyarrow.ipc.open_file(file)
        for number in range(table.num_record_batches):
            yield table.get_batch(number), (number + 1) / table.num_record_batches
    else:
        for batch in pyarrow.ipc.open_stream(file):
            yield batch, None


def table_rows(file, path, wanted, advance):
    """Yields (place, {column: value}) with the columns that are wanted, or with all."""
    pyarrow = import_for(path, "pyarrow", hint_to_install("pyarrow"))
    number = 0
    try:
        for batch, share in table_batches(pyarrow, file, path):
            names = batch.schema.names
            if wanted and set(wanted) <= set(names):
                batch = batch.select([names.index(name) for name in wanted])
            for row in batch.to_pylist():
                number += 1
                yield f"'{path}' row {number}", row
            advance(share)
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise Failure(DATA, f"cannot read '{path}' after row {number}: {' '.join(str(error).split())}")


def csv_lines(rows, path):
    """Yields (line in which the row begins, row) of a csv reader."""
    while True:
        line = rows.line_num + 1
        try:
            yield line, next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise Failure(DATA, f"'{path}' line {line}: {error}")


def columns_hint(header, option):
    """How the last columns of a first row are named and, in case it is no header, numbered."""
    last = range(max(0, len(header) - (2 if option == "--fields" else 1)), len(header))
    names, numbers = ",".join(shortened(header[i]) for i in last), ",".join(str(i + 1) for i in last)
    return (f"; hint: name others, as in {option} {shlex.quote(names)}; if this row is no header, numbers: {option} {numbers}"
            if names else "")


def csv_columns(header, path, wanted, label, hint):
    """{name: place in a row} of the columns that are wanted, or of all that the first row names. label: of them that of --label"""
    columns = {name: place for place, name in reversed(list(enumerate(header)))}
    for name in wanted or []:
        if name not in columns:
            raise Failure(DATA, f"'{path}': no column '{name}' in the first row: " + (listed(header) or "it is empty")
                                + (hint or columns_hint(header, "--label" if name == label else "--fields")))
    return {name: columns[name] for name in wanted} if wanted else columns


def csv_rows(file, path, wanted, label, quoting, found):
    """Yields (place, {column: text}) with the columns that are wanted, or with all. The first row names them or, if those that
    are wanted are numbers, they are counted from 1."""
    csv.field_size_limit(LONGEST)
    tabs = bare_name(path).endswith(".tsv")
    rule = csv.QUOTE_NONE if quoting == "none" or quoting is None and tabs else csv.QUOTE_MINIMAL
    text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
    rows = csv_lines(csv.reader(text, delimiter="\t" if tabs else ",", strict=True, quoting=rule), path)
    if wanted and all(name.isdecimal() for name in wanted):
        columns = {name: int(name) - 1 for name in wanted}
    else:
        header = next(rows, (1, []))[1]
        marked = rule == csv.QUOTE_NONE and any(is_marked(name) for name in header)
        columns = csv_columns(header, path, wanted, label, "; hint: --quoting minimal" if marked else "")
    needed = max(columns.values(), default=0) + 1
    for line, row in rows:
        if row and len(row) < needed:
            raise Failure(DATA, f"'{path}' line {line}: {len(row)} columns, expected at least {needed}"
                                + "; hint: --quoting minimal, if a text has line ends" * (tabs and quoting is None))
        if row:
            found.marked += tabs and quoting is None and any(is_marked(row[place]) for place in columns.values())
            yield f"'{path}' line {line}", {name: row[place] for name, place in columns.items()}


def is_marked(text):
    return len(text) > 1 and text[0] == text[-1] == '"'


# --- documents --------------------------------------------------------------------------------------------------------

def check_row(where, row, fields, option, forms=False):
    """Refuses a row without these fields. forms: hints at the option for another form of data that it has"""
    if not isinstance(row, dict):
        raise Failure(DATA, f"{where}: expected a JSON object")
    for field in fields:
        if field not in row:
            option = forms and conversations.option_for(row) or option
            raise Failure(DATA, f"{where}: no field '{field}'; it has: "
                                + (listed(row) or "none") + f"; hint: {option}")


def row_documents(rows, fields):
    """The texts of rows of any kind."""
    for where, row in rows:
        check_row(where, row, fields, "--fields NAME,NAME", forms=True)
        texts = [to_bytes(field_text(row[f], f"{where}: field '{f}'")) for f in fields]
        yield b" ".join(texts) if any(texts) else b""  # a document of blanks only is left out


def conversation(where, names, row, schema, **more):
    """What Encoder.read_conversation() takes, as JSON: {"row": {field: value}, "names": of the fields with messages, "place": …}
    and what is in `more`. schema: all rows have the same one, which may be where their nulls come from"""
    found = {name: row[name] for name in (*names, *conversations.BESIDE, "system") if name in row}
    try:
        found = conversations.without_nulls(found) if schema else found
        return json.dumps({"row": found, "names": names, "place": where, **more},
                          default=functools.partial(field_text, where=where)).encode()
    except RecursionError:
        raise Failure(DATA, f"{where}: its values are nested too deeply")


def completion_documents(rows, fields, schema):
    """Pairs as JSON, [prompt, completion], or what conversation() gives where one is a list of messages. Of three fields
    the second is the input that belongs to the first, as in Alpaca's data. A row whose completion is null becomes empty."""
    for where, row in rows:
        check_row(where, row, fields, "--completion PROMPT,COMPLETION", forms=True)
        if len(fields) == 2 and any(isinstance(row[field], list) for field in fields):
            yield conversation(where, fields, row, schema)
            continue
        *prompt, completion = (clean(field_text(row[f], f"{where}: field '{f}'")) for f in fields)
        yield json.dumps(["", ""] if row[fields[-1]] is None else ["\n".join(filter(None, prompt)), completion]).encode()


def label_documents(rows, fields, label):
    """Rows with a label as JSON: [label, text] or [label, text, text]."""
    for where, row in rows:
        check_row(where, row, [label], "--label NAME")
        check_row(where, row, fields, "--fields NAME or NAME,NAME")
        texts = [clean(field_text(row[f], f"{where}: field '{f}'")) for f in fields]
        yield json.dumps([label_text(row[label], f"{where}: the label '{label}'"), *texts]).encode()


def chat_documents(rows, field, schema):
    """What conversation() gives for each row. field: the one with the messages; None: those of conversations.FORMS"""
    for where, row in rows:
        check_row(where, row, [], "")
        names = [field] if field else conversations.form_of(row) or ["messages"]
        check_row(where, row, names, "--fields NAME")
        yield conversation(where, names, row, schema)


def preference_documents(rows, args, kind, found):
    """What conversation() gives for each row, with its form and the numbers of its answers' labels."""
    fields = args.fields if args.fields_given else []
    for where, row in rows:
        check_row(where, row, fields, "--fields PROMPT,CHOSEN,REJECTED")
        form = preferences.form_of(row, fields, args.label, args.chat_template)
        if not form:
            raise Failure(DATA, f"{where}: its columns are of no form of preference data; it has: {listed(row) or 'none'}; "
                                "hint: --fields PROMPT,CHOSEN,REJECTED, or --fields PROMPT,COMPLETION --label COLUMN")
        names = preferences.names_of(form)
        found.answers, first = found.answers or (names, where), found.answers
        if names != found.answers[0]:
            raise Failure(DATA, f"{where} is of another form than {first[1]}: pairs and examples with a label cannot be in one shard")
        labels = [1, 0]
        if form["label"]:
            check_row(where, row, [form["label"]], "--label NAME")
            labels = [preferences.truth(row[form["label"]], f"{where}: the label '{form['label']}'")]
        columns = preferences.columns_of(form)
        values = {name: row[name] for name in (*columns, "system") if name in row}
        if kind == "csv":  # messages are JSON there
            values.update((name, talk) for name, talk in zip(values, map(preferences.talk_of, values.values()))
                          if conversations.is_messages(talk))
        texts = {name: clean(field_text(value, where)) for name, value in values.items()
                 if value is not None and not isinstance(value, (list, dict))}
        yield conversation(where, columns, {**row, **values, **texts}, kind == "table", form=form, labels=labels)


def documents_of(file, path, args, found, advance):
    """The documents of an open file, in the form that the encoder takes (Encoder.read)."""
    kind = kind_of(path)
    if kind == "text":
        if args.form != "text":
            raise Failure(USAGE, f"'{path}' is text; --chat-template, --completion, --preference and --label take .jsonl, "
                                 ".json, .csv, .tsv, .parquet and .arrow")
        return text_documents(file, path, args.document)
    wanted = list(dict.fromkeys(args.fields + [args.label] * (args.form == "label"))) if args.form in ("text", "label") else None
    if kind == "csv":
        rows = csv_rows(file, path, wanted, args.label, args.quoting, found)
    else:
        rows = json_rows(file, path) if kind == "jsonl" else table_rows(file, path, wanted, advance)
    if args.form == "chat":
        return chat_documents(rows, args.fields[0] if args.fields_given else None, kind == "table")
    if args.form == "preference":
        return preference_documents(rows, args, kind, found)
    if args.form == "completion":
        return completion_documents(rows, args.fields, kind == "table")
    return label_documents(rows, args.fields, args.label) if args.form == "label" else row_documents(rows, args.fields)


def open_documents(raw, path, found):
    """The open file without its compression and without a byte order mark."""
    start = raw.peek(len(LFS_POINTER))
    refuse_pointer(path, start)
    if start and compression_of_name(path) not in ("", compression_of(start)):
        found.misnamed.append(path)
    file = open_input(path, raw)
    if kind_of(path) == "table":  # it is read from several places
        return raw if file is raw else io.BufferedReader(io.BytesIO(file.read()))
    if file.peek(3)[:3] == b"\xef\xbb\xbf":
        file.read(3)
    return file


def documents(found, args, progress):
    """All documents of all files."""
    for path, size in found.files:
        try:
            with open(path, "rb") as raw:
                def advance(share=None):
                    progress.position = progress.done + (raw.tell() if share is None else int(share * size))

                kind = kind_of(path)
                for document in documents_of(open_documents(raw, path, found), path, args, found, advance):
                    refuse_longer(document, f"a document of '{path}'")
                    found.cut += kind == "text"
                    if kind != "table":
                        advance()
                    yield document
        except read_errors() as error:
            raise Failure(DATA, f"cannot read '{path}': {getattr(error, 'strerror', None) or error}")
        progress.done += size
        progress.position = progress.done


def batches(items):
    batch, size = [], 0
    for item in items:
        interrupt.check()
        batch.append(item)
        size += len(item)
        if size >= BATCH_BYTES or len(batch) >= BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch

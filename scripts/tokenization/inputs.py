"""From the files that a command line names to documents: bytes of text, or JSON where more than a text belongs to one."""
import csv
import gzip
import importlib
import io
import json
import os
import zlib

from . import conversations
from .errors import DATA, Failure, USAGE, interrupt

BATCH_BYTES = 1 << 20  # of text in a batch, which goes to one worker
BATCH_DOCUMENTS = 4096
LFS_POINTER = b"version https://git-lfs"


def kind_of(path):
    end = os.path.splitext(bare_name(path))[1]
    return {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "csv",
            ".parquet": "parquet"}.get(end, "text")


def bare_name(path):
    """The name in lower case, without the ending of a compression."""
    name = path.lower()
    for end in (".gz", ".zst"):
        if name.endswith(end):
            return name[: -len(end)]
    return name


def refuse_pointer(path, start):
    if start.startswith(LFS_POINTER):
        raise Failure(DATA, f"'{path}' is a Git LFS pointer, not the file that it stands for; hint: git lfs pull")


def is_binary(path):
    if kind_of(path) == "parquet":
        return False
    try:
        with open_input(path) as file:
            return b"\0" in file.read(8192)
    except (OSError, EOFError, zlib.error):
        return False  # reading it will report the error
    except zstd_errors():
        return False


def find_files(inputs):
    """The files that `inputs` stand for, in order: [(path, bytes)]; and how many binary ones were skipped."""
    files, skipped = [], 0
    for name in inputs:
        if os.path.isdir(name):
            for folder, folders, names in os.walk(name):
                folders[:] = sorted(d for d in folders if not d.startswith("."))
                for path in (os.path.join(folder, n) for n in sorted(names) if not n.startswith(".")):
                    if not os.path.isfile(path):
                        continue
                    if is_binary(path):
                        skipped += 1
                    else:
                        files.append((path, os.path.getsize(path)))
        elif not os.path.exists(name):
            raise Failure(DATA, f"cannot open '{name}': no such file or folder")
        elif not os.path.isfile(name):
            raise Failure(DATA, f"'{name}' is not a regular file")
        elif is_binary(name):
            raise Failure(DATA, f"'{name}' is not text: it has zero bytes")
        else:
            files.append((name, os.path.getsize(name)))
    if not files:
        raise Failure(DATA, "no text file in " + ", ".join(f"'{name}'" for name in inputs))
    return files, skipped


def zstd_module():
    """A module with ZstdFile or ZstdDecompressor: that of Python 3.14, or the package zstandard; None: there is none."""
    for name in ("compression.zstd", "zstandard"):
        try:
            return importlib.import_module(name)
        except ImportError:
            pass
    return None


def zstd_errors():
    return getattr(zstd_module(), "ZstdError", ())


def open_input(path, raw=None):
    raw = raw or open(path, "rb")
    if path.lower().endswith(".gz"):
        return gzip.GzipFile(fileobj=raw)
    if not path.lower().endswith(".zst"):
        return raw
    module = zstd_module()
    if module is None:
        raise Failure(USAGE, f"'{path}' needs the Python package 'zstandard'; hint: pip install zstandard")
    if hasattr(module, "ZstdFile"):
        return io.BufferedReader(module.ZstdFile(raw))
    return io.BufferedReader(module.ZstdDecompressor().stream_reader(raw, read_across_frames=True))


def text_documents(file, unit):
    """Cuts a text (bytes) into documents."""
    if unit == "file":
        yield file.read()
        return
    paragraph = []
    for line in file:
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


def field_text(value, where):
    if value is None:
        return ""
    if isinstance(value, (dict, list)):
        raise Failure(DATA, f"{where} is a {'list' if isinstance(value, list) else 'JSON object'}, expected text"
                            + "; hint: --chat-template" * conversations.is_messages(value))
    return value if isinstance(value, str) else json.dumps(value)


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
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            yield f"'{path}' line {number}", json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Failure(DATA, f"'{path}' line {number}: not JSON ({error}); expected an object on each line")


def parquet_rows(file, path, advance):
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise Failure(USAGE, f"'{path}' needs the Python package 'pyarrow'; hint: pip install pyarrow")
    try:
        table = pyarrow.parquet.ParquetFile(file)
        number, total = 0, table.metadata.num_rows
        for batch in table.iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
                yield f"'{path}' row {number}", row
            advance(number / max(total, 1))
    except pyarrow.ArrowException as error:
        raise Failure(DATA, f"cannot read '{path}': {' '.join(str(error).split())}")


def csv_rows(file, path):
    """Yields (place, {column: text}) of a csv file whose first row has names."""
    csv.field_size_limit(2**31 - 1)
    text = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="")
    rows = csv.DictReader(text, delimiter="\t" if bare_name(path).endswith(".tsv") else ",", strict=True)
    try:
        for row in rows:
            yield f"'{path}' line {rows.line_num}", row
    except csv.Error as error:
        raise Failure(DATA, f"'{path}' line {rows.line_num}: {error}")


def check_row(where, row, fields, option, forms=False):
    """Refuses a row without these fields. forms: hints at the option for another form of data that it has"""
    if not isinstance(row, dict):
        raise Failure(DATA, f"{where}: expected a JSON object")
    for field in fields:
        if field not in row:
            option = forms and conversations.option_for(row) or option
            raise Failure(DATA, f"{where}: no field '{field}'; it has: "
                                + (", ".join(list(map(str, row))[:12]) or "none") + f"; hint: {option}")


def row_documents(rows, fields):
    """The texts of rows of any kind."""
    for where, row in rows:
        check_row(where, row, fields, "--fields NAME,NAME", forms=True)
        texts = [field_text(row[f], f"{where}: field '{f}'") for f in fields]
        text = " ".join(texts) if any(texts) else ""  # a document of blanks only is left out
        yield text.encode("utf-8", "replace")  # JSON can hold half a surrogate pair, UTF-8 cannot


def conversation(where, names, row, schema):
    """What Encoder.read_conversation() takes, as JSON: {"row": {field: value}, "names": of the fields with messages, "place": …}.
    schema: all rows have the same one, which may be where their nulls come from"""
    found = {name: row[name] for name in (*names, *conversations.BESIDE, "system") if name in row}
    try:
        found = conversations.without_nulls(found) if schema else found
        return json.dumps({"row": found, "names": names, "place": where}, default=str).encode()
    except RecursionError:
        raise Failure(DATA, f"{where}: its values are nested too deeply")


def completion_documents(rows, fields, schema):
    """Pairs as JSON, [prompt, completion], or what conversation() gives where the two are lists of messages. Of three fields
    the second is the input that belongs to the first, as in Alpaca's data."""
    for where, row in rows:
        check_row(where, row, fields, "--completion PROMPT,COMPLETION", forms=True)
        if len(fields) == 2 and all(isinstance(row[field], list) for field in fields):
            yield conversation(where, fields, row, schema)
            continue
        *prompt, completion = (field_text(row[f], f"{where}: field '{f}'") for f in fields)
        yield json.dumps(["\n".join(filter(None, prompt)), completion]).encode()


def label_documents(rows, fields, label):
    """Rows with a label as JSON: [label, text] or [label, text, text]."""
    for where, row in rows:
        check_row(where, row, [label], "--label NAME")
        check_row(where, row, fields, "--fields NAME or NAME,NAME")
        value = row[label]
        if isinstance(value, bool) or not isinstance(value, (int, str)) or value == "":
            raise Failure(DATA, f"{where}: the label '{label}' is {json.dumps(value)}, expected text or a whole number")
        yield json.dumps([str(value)] + [field_text(row[f], f"{where}: field '{f}'") for f in fields]).encode()


def chat_documents(rows, field, schema):
    """What conversation() gives for each row. field: the one with the messages; None: those of conversations.FORMS"""
    for where, row in rows:
        check_row(where, row, [], "")
        names = [field] if field else conversations.form_of(row) or ["messages"]
        check_row(where, row, names, "--fields NAME")
        yield conversation(where, names, row, schema)


def csv_columns(file, path, fields):
    """(place, texts) of rows whose columns are named by the first row or, if fields are numbers, counted from 1."""
    csv.field_size_limit(2**31 - 1)
    tabs = bare_name(path).endswith(".tsv")
    text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
    rows = csv.reader(text, delimiter="\t" if tabs else ",", strict=True)
    columns = [int(f) - 1 for f in fields] if all(f.isdecimal() for f in fields) else None
    try:
        if columns is None:
            header = next(rows, [])
            for field in fields:
                if field not in header:
                    raise Failure(DATA, f"'{path}': no column '{field}' in the first row: "
                                        + (", ".join(header[:12]) or "it is empty")
                                        + "; hint: --fields NAME,NAME, or column numbers where there is no header")
            columns = [header.index(f) for f in fields]
        for row in rows:
            if not row:
                continue
            if len(row) <= max(columns):
                raise Failure(DATA, f"'{path}' line {rows.line_num}: {len(row)} columns, expected at least "
                                    f"{max(columns) + 1}")
            yield f"'{path}' line {rows.line_num}", [row[c] for c in columns]
    except csv.Error as error:
        raise Failure(DATA, f"'{path}' line {rows.line_num}: {error}")


def csv_documents(file, path, fields):
    for _, texts in csv_columns(file, path, fields):
        yield (" ".join(texts) if any(texts) else "").encode("utf-8", "surrogateescape")


def csv_label_documents(file, path, fields, label):
    """What label_documents gives, for columns by number."""
    columns = [label, *fields]
    rows = ((where, dict(enumerate(texts))) for where, texts in csv_columns(file, path, columns))
    return label_documents(rows, range(1, len(columns)), 0)


def documents_of(file, path, args, advance):
    """The documents of an open file, in the form that the encoder takes (Encoder.read)."""
    kind = kind_of(path)
    if kind == "text":
        if args.form != "text":
            raise Failure(USAGE, f"'{path}' is text; --chat-template, --completion and --label take .jsonl, .json, .csv and .parquet")
        return text_documents(file, args.document)
    if kind == "csv" and args.form == "text":
        return csv_documents(file, path, args.fields)
    if kind == "csv" and args.form == "label" and args.label.isdecimal():
        return csv_label_documents(file, path, args.fields, args.label)
    rows = {"jsonl": json_rows, "csv": csv_rows}[kind](file, path) if kind != "parquet" else parquet_rows(file, path, advance)
    if args.form == "chat":
        return chat_documents(rows, args.fields[0] if args.fields_given else None, kind == "parquet")
    if args.form == "completion":
        return completion_documents(rows, args.fields, kind == "parquet")
    return label_documents(rows, args.fields, args.label) if args.form == "label" else row_documents(rows, args.fields)


def documents(files, args, progress):
    """All documents of all files."""
    for path, size in files:
        try:
            with open(path, "rb") as raw:
                refuse_pointer(path, raw.peek(len(LFS_POINTER)))
                file = open_input(path, raw)
                if file.peek(3)[:3] == b"\xef\xbb\xbf":  # a byte order mark is not text
                    file.read(3)
                through = kind_of(path) == "parquet"  # it is not read from its beginning to its end

                def advance(share):
                    progress.position = progress.done + int(share * size)

                for document in documents_of(file, path, args, advance):
                    if not through:
                        progress.position = progress.done + raw.tell()
                    yield document
        except zstd_errors() as error:
            raise Failure(DATA, f"cannot read '{path}': {error}")
        except (OSError, EOFError, zlib.error) as error:
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

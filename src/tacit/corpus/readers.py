"""Records out of files: each has a user, some texts, perhaps a value to order by, and a line.

Nothing is dropped here: a record without a user or a text is passed on as such, so that the caller
can count it.  What cannot be read at all is refused in one sentence that names file and line.

Delimited text and JSON are read with Python's own parsers, not with Arrow's: a text may be of any
length and hold line ends, quotes or any character, a bad row must be named by its line, and the
hashing of each record costs more than its parsing.
"""

from __future__ import annotations

import codecs
import csv
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tacit.corpus.files import FORMATS, InputFile, InputStream, opened
from tacit.privacy.checks import argument

# The first of these that a file has, in any case, is taken for the column of the user, the text.
_USER_NAMES = (
    "user user_id userid author author_id sender sender_id speaker speaker_id nick nickname"
    " username user_name screen_name handle account participant person client_id uid from name"
).split()
_TEXT_NAMES = (
    "text texts body message messages content utterance utterances comment post tweet msg"
    " sentence sentences line query document raw"
).split()
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_MOST_FIELD_BYTES = 1 << 28
_MOST_LISTED = 30  # columns in a message, and letters of each
_MOST_LETTERS = 1000  # of all columns in a message
_SAMPLE = 100  # lines of JSON looked at to learn the names of the columns


@dataclass(frozen=True)
class ReadOptions:
    """How files are written, besides their format.

    quotes: whether quotes in delimited text enclose a field; else they are part of the text.
    whole_files: whether a text file is one text; else each of its lines is one.
    delimiter: what divides fields; None for that of the format.
    encoding: of everything but Parquet.
    """

    quotes: bool = True
    whole_files: bool = False
    delimiter: str | None = None
    encoding: str = "utf-8"

    @classmethod
    def of(
        cls, format: str, quotes: bool, whole_files: bool, delimiter: str | None, encoding: str
    ) -> ReadOptions:
        """The options for files of a format; one that they cannot have is refused."""
        if delimiter is not None:
            delimiter = {"tab": "\t", "\\t": "\t"}.get(delimiter, delimiter)
            if format not in _DELIMITERS:
                raise ValueError(
                    f"{argument('delimiter')} is for CSV and TSV, and the input is"
                    f" {FORMATS[format]}"
                )
            if len(delimiter) != 1 or delimiter in '\r\n"':
                raise ValueError(
                    f"{argument('delimiter')} must be one character such as ';', or tab, got"
                    f" {delimiter!r}"
                )
        try:
            name = codecs.lookup(encoding).name
            "".encode(name)  # not all codecs are of text
        except (LookupError, ValueError):
            raise ValueError(
                f"{argument('encoding')} must be such as utf-8, latin-1, cp1252 or utf-16, got"
                f" {encoding!r}"
            ) from None
        if name != "utf-8" and format == "parquet":
            raise ValueError(
                f"{argument('encoding')} is for text, and Parquet is always UTF-8: leave it out"
            )
        return cls(quotes, whole_files, delimiter, name)


class InputRecord(NamedTuple):
    """One row, or one line with several texts; None or blank is what was missing."""

    user: str | None
    texts: Sequence[str | None]
    order: str | None
    line: int


def _column(
    role: str, name: str | None, guesses: Sequence[str], names: Sequence[str], path: Path
) -> str:
    """The column for a role, guessed if it has no name yet; the file must have it exactly once."""
    # A file without a header has people's text there, and as many columns as it likes.
    listed = ", ".join(repr(name[:_MOST_LISTED]) for name in names[:_MOST_LISTED]) or "none"
    if len(listed) > _MOST_LETTERS:  # letters that nobody sees are spelled out
        listed = f"{listed[:_MOST_LETTERS]}..."
    if len(names) > _MOST_LISTED:
        listed += f" and {len(names) - _MOST_LISTED} others"
    if name is None:
        lower = {name.strip().lower(): name for name in reversed(names)}
        name = next((lower[guess] for guess in guesses if guess in lower), None)
        if name is None:
            raise ValueError(
                f"{str(path)!r} has no column whose name says that it is the {role}: name one"
                f" with {argument(f'{role}_column')}; its columns are {listed}"
            )
    if name not in names:
        raise ValueError(
            f"{str(path)!r} has no column {name!r} for the {role}; its columns are {listed}"
        )
    if list(names).count(name) > 1:
        raise ValueError(f"{str(path)!r} has more than one column {name!r}")
    return name


@dataclass
class Reader:
    """Reads the records of files of one format, one file after the other.

    user, text, order: names of columns; without a name the columns of the user and the text are
        guessed from the first file, and there is no order.
    scratch: a folder to unpack a compressed Parquet file in.
    position: how far in the file on disk the reader has got, in bytes.
    """

    user: str | None
    text: str | None
    order: str | None
    scratch: Path
    options: ReadOptions = ReadOptions()
    position: int = 0
    _first: tuple[list[str], Path] | None = None

    def records(self, file: InputFile) -> Iterator[InputRecord]:
        """The records of a file."""
        with opened(file.path) as stream:
            if file.format == "parquet":
                yield from self._parquet(file, stream)
            else:
                lines = stream.lines(self.options.encoding)
                for count, record in enumerate(self._from_lines(file, lines)):
                    if not count % 256:
                        self.position = stream.raw.tell()
                    yield record
            self.position = file.size

    def _from_lines(self, file: InputFile, lines: Iterator[str]) -> Iterator[InputRecord]:
        """The records of a file that is read line by line: all formats but Parquet."""
        match file.format:
            case "jsonl":
                return self._json(file.path, lines)
            case "text":
                return self._text(file, lines)
        delimiter = self.options.delimiter or _DELIMITERS[file.format]
        return self._csv(file.path, lines, delimiter)

    def _choose(self, names: list[str], path: Path, exact: bool) -> list[str]:
        """The columns of the user, the text and perhaps the order in a file with these columns.

        `exact` refuses a file with other columns than the first one.
        """
        if self._first is None:
            self._first = (names, path)
        elif exact and set(self._first[0]) != set(names):
            odd = sorted(set(self._first[0]) ^ set(names))
            raise ValueError(
                f"{str(self._first[1])!r} and {str(path)!r} have different columns: only one of"
                f" them has {', '.join(map(repr, odd))}"
            )
        # Guesses are made once: all files are read by the columns of the first.
        self.user = _column("user", self.user, _USER_NAMES, names, path)
        self.text = _column("text", self.text, _TEXT_NAMES, names, path)
        if self.user == self.text:
            raise ValueError(f"user_column and text_column are both {self.user!r}")
        if self.order is None:
            return [self.user, self.text]
        return [self.user, self.text, _column("order", self.order, [], names, path)]

    def _csv(self, path: Path, lines: Iterator[str], delimiter: str) -> Iterator[InputRecord]:
        """Delimited text with a header; every row must have as many fields as the header."""
        csv.field_size_limit(_MOST_FIELD_BYTES)
        rows = csv.reader(
            lines,
            delimiter=delimiter,
            strict=True,
            quoting=csv.QUOTE_MINIMAL if self.options.quotes else csv.QUOTE_NONE,
        )
        hint = (
            "it is cut short, or its quotes are part of the text (then say no quotes)"
            if self.options.quotes
            else "it is cut short, or its fields are quoted"
        )
        try:
            header = next((row for row in rows if row), [])
            user, text, *order = map(header.index, self._choose(header, path, exact=True))
            for row in rows:
                if not row:
                    continue
                if len(row) != len(header):
                    raise ValueError(
                        f"line {rows.line_num} of {str(path)!r} has {len(row)} fields, and the"
                        f" header has {len(header)}: {hint}"
                    )
                value = (row[order[0]] or None) if order else None
                yield InputRecord(row[user], (row[text],), value, rows.line_num)
        except csv.Error as problem:
            raise ValueError(
                f"line {rows.line_num} of {str(path)!r} cannot be read ({problem}): {hint}"
            ) from None

    def _json(self, path: Path, lines: Iterator[str]) -> Iterator[InputRecord]:
        """JSON Lines: an object per line, whose text may be a list of texts.

        Objects need not have the same fields: the columns are those of the first hundred.
        """
        objects = _objects(path, lines)
        sample = list(islice(objects, _SAMPLE))
        if not sample:
            raise ValueError(f"{str(path)!r} is empty")
        names = list(dict.fromkeys(name for _, value in sample for name in value))
        columns = self._choose(names, path, exact=False)
        for line, value in chain(sample, objects):
            yield _checked(map(value.get, columns), line, f"line {line} of {str(path)!r}")

    def _parquet(self, file: InputFile, stream: InputStream) -> Iterator[InputRecord]:
        """A Parquet file, which may be compressed as a whole besides."""
        source = file.path
        if stream.raw.peek(4)[:4] != b"PAR1":
            # Parquet is read from its end, so what is compressed as a whole is unpacked.
            source = self.scratch / "input.parquet"
            with source.open("wb") as unpacked:
                shutil.copyfileobj(stream.data, unpacked)
        try:
            yield from self._parquet_rows(file, source)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as problem:
            if isinstance(problem, OSError) and problem.errno is not None:
                raise
            raise ValueError(
                f"{str(file.path)!r} is not a whole Parquet file: it is cut short, damaged or"
                " something else"
            ) from None
        finally:
            if source != file.path:
                source.unlink(missing_ok=True)

    def _parquet_rows(self, file: InputFile, source: Path) -> Iterator[InputRecord]:
        """The rows of `source`, which is the file or what was unpacked from it.

        A column is read from all over the file, so the position is estimated by the rows.
        """
        path, row = repr(str(file.path)), 0
        with pq.ParquetFile(source) as table:
            columns = self._choose(list(table.schema_arrow.names), file.path, exact=True)
            for batch in table.iter_batches(batch_size=4096, columns=columns):
                self.position = file.size * row // table.metadata.num_rows
                try:
                    values = [batch.column(name).to_pylist() for name in columns]
                except UnicodeDecodeError:
                    raise ValueError(
                        f"rows {row + 1} to {row + len(batch)} of {path} are not all UTF-8"
                    ) from None
                for one in zip(*values, strict=True):
                    row += 1
                    yield _checked(one, row, f"row {row} of {path}")

    def _text(self, file: InputFile, lines: Iterator[str]) -> Iterator[InputRecord]:
        """A user's file: each line that is not blank is a text, in the order of the file."""
        if self.options.whole_files:
            yield InputRecord(file.user, ("".join(lines).strip("\r\n"),), None, 1)
            return
        is_blank = True
        for number, line in enumerate(lines, 1):
            if line.strip():
                is_blank = False
                yield InputRecord(file.user, (line.rstrip("\r\n"),), str(number), number)
        if is_blank:
            yield InputRecord(file.user, (None,), None, 1)


def _objects(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON Lines file, with the number of each one's line."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise ValueError(
                f"line {number} of {str(path)!r} is not JSON: each line must be one object, such as"
                ' {"user": "a", "text": "b"}'
            ) from None
        if not isinstance(value, dict):
            raise ValueError(
                f"line {number} of {str(path)!r} is JSON, but not an object such as"
                ' {"user": "a", "text": "b"}'
            )
        yield number, value


def _checked(values: Iterable[Any], line: int, where: str) -> InputRecord:
    """A record of a user, a text or a list of them, and perhaps an order, if they have that type.

    `where` names the record in what is refused.
    """
    user, text, *order = values
    if user is not None and (isinstance(user, bool) or not isinstance(user, (str, int))):
        raise ValueError(
            f"{where} has a user of type {type(user).__name__}: it must be text or a whole number"
        )
    texts = (text or [None]) if isinstance(text, list) else [text]
    for value in texts:
        if value is not None and not isinstance(value, str):
            raise ValueError(
                f"{where} has a text of type {type(value).__name__}: it must be text or a list of"
                " texts"
            )
    name = None if user is None else str(user)
    try:
        "".join([name or "", *(value for value in texts if value)]).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where} is not UTF-8: it has half of a surrogate pair") from None
    value = order[0] if order else None
    return InputRecord(name, texts, None if value is None else str(value), line)

"""Records out of files: each has a user, some texts, perhaps a place in an order, and a line.

Nothing is dropped here: a record without a user or a text is passed on as such, so that whoever
reads can count it.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tacit.corpus.columns import Columns, check_same
from tacit.corpus.files import ByteStream, InputFile, opened, text_lines

MAX_FIELD = 1 << 28
_SAMPLE = 100  # lines of JSON looked at to learn the names of the columns


class Record(NamedTuple):
    """One row, or one line with several texts; None or blank is what was missing."""

    user: str | None
    texts: Sequence[str | None]
    order: str | None
    line: int


@dataclass
class Reader:
    """Reads the records of files of one format, one file after the other."""

    columns: Columns
    scratch: Path
    quotes: bool = True
    whole_files: bool = False
    position: int = 0
    _first: tuple[list[str], Path] | None = None
    _share: float = 0.0  # of the rows of a Parquet file, which is not read from front to end

    def records(self, file: InputFile) -> Iterator[Record]:
        """The records of a file; `position` says how far in the file on disk it has got."""
        with opened(file.path) as stream:
            for count, record in enumerate(self._records(file, stream)):
                if not count % 256:
                    columnar = file.format == "parquet"
                    self.position = int(self._share * file.size) if columnar else stream.position
                yield record
            self.position = file.size

    def _records(self, file: InputFile, stream: ByteStream) -> Iterator[Record]:
        if file.format == "parquet":
            return self._parquet(file.path, stream)
        lines = text_lines(stream, file.path)
        if file.format == "jsonl":
            return self._json(file.path, lines)
        if file.format == "text":
            return self._text(file, lines)
        return self._csv(file.path, lines, "," if file.format == "csv" else "\t")

    def _chosen(self, names: list[str], path: Path, exact: bool) -> Columns:
        if self._first is None:
            self._first = (names, path)
        elif exact:
            check_same(*self._first, names, path)
        # Guesses are made once: all files are read by the columns of the first.
        self.columns = self.columns.among(names, path)
        return self.columns

    def _csv(self, path: Path, lines: Iterator[str], delimiter: str) -> Iterator[Record]:
        csv.field_size_limit(MAX_FIELD)
        rows = csv.reader(
            lines,
            delimiter=delimiter,
            strict=True,
            quoting=csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE,
        )
        try:
            header = next((row for row in rows if row), [])
            columns = self._chosen(header, path, exact=True)
            user, text = header.index(str(columns.user)), header.index(str(columns.text))
            order = None if columns.order is None else header.index(columns.order)
            for row in rows:
                if not row:
                    continue
                if len(row) != len(header):
                    raise ValueError(
                        f"line {rows.line_num} of {str(path)!r} has {len(row)} fields, and the"
                        f" header has {len(header)}: {_hint(self.quotes)}"
                    )
                place = None if order is None else row[order] or None
                yield Record(row[user], (row[text],), place, rows.line_num)
        except csv.Error as problem:
            raise ValueError(
                f"line {rows.line_num} of {str(path)!r} cannot be read ({problem}):"
                f" {_hint(self.quotes)}"
            ) from None

    def _json(self, path: Path, lines: Iterator[str]) -> Iterator[Record]:
        objects = _objects(path, lines)
        sample = list(islice(objects, _SAMPLE))
        if not sample:
            raise ValueError(f"{str(path)!r} is empty")
        names = list(dict.fromkeys(name for _, value in sample for name in value))
        columns = self._chosen(names, path, exact=False)
        for line, value in chain(sample, objects):
            where = f"line {line} of {str(path)!r}"
            text = value.get(str(columns.text))
            texts = text if isinstance(text, list) else [text]
            order = None if columns.order is None else value.get(columns.order)
            yield Record(
                _user(value.get(str(columns.user)), where),
                [_text(text, where) for text in texts] or [None],
                None if order is None else str(order),
                line,
            )

    def _parquet(self, path: Path, stream: ByteStream) -> Iterator[Record]:
        source = self.scratch / "input.parquet"
        try:
            if stream.data.peek(4)[:4] == b"PAR1" and path.suffix not in (".gz", ".zst", ".zstd"):
                source = path
            else:  # Parquet is read from its end, so what is compressed as a whole is unpacked
                with source.open("wb") as unpacked:
                    shutil.copyfileobj(stream.data, unpacked)
            yield from self._parquet_rows(path, source)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as problem:
            if isinstance(problem, OSError) and problem.errno is not None:
                raise
            raise ValueError(
                f"{str(path)!r} is not a whole Parquet file: it is cut short, damaged or something"
                " else"
            ) from None
        finally:
            if source != path:
                source.unlink(missing_ok=True)

    def _parquet_rows(self, path: Path, source: Path) -> Iterator[Record]:
        with pq.ParquetFile(source) as table:
            columns = self._chosen(list(table.schema_arrow.names), path, exact=True)
            row = 0
            names = [name for name in (columns.user, columns.text, columns.order) if name]
            for batch in table.iter_batches(batch_size=4096, columns=names):
                self._share = row / table.metadata.num_rows
                try:
                    users = batch.column(columns.user).to_pylist()
                    texts = batch.column(columns.text).to_pylist()
                    orders = batch.column(columns.order).to_pylist() if columns.order else None
                except UnicodeDecodeError:
                    raise ValueError(
                        f"rows {row + 1} to {row + len(batch)} of {str(path)!r} are not all UTF-8"
                    ) from None
                for place, (user, text) in enumerate(zip(users, texts, strict=True)):
                    row += 1
                    where = f"row {row} of {str(path)!r}"
                    values = text if isinstance(text, list) else [text]
                    order = None if orders is None else orders[place]
                    yield Record(
                        _user(user, where),
                        [_text(value, where) for value in values] or [None],
                        None if order is None else str(order),
                        row,
                    )

    def _text(self, file: InputFile, lines: Iterator[str]) -> Iterator[Record]:
        """A user's file: each line that is not blank is a text, in the order of the file."""
        if self.whole_files:
            yield Record(file.user, ("".join(lines).strip("\r\n"),), None, 1)
            return
        found = False
        for number, line in enumerate(lines, 1):
            if text := line.rstrip("\r\n") if line.strip() else "":
                found = True
                yield Record(file.user, (text,), str(number), number)
        if not found:
            yield Record(file.user, (None,), None, 1)


def _hint(quotes: bool) -> str:
    if quotes:
        return "it is cut short, or its quotes are part of the text (then say no quotes)"
    return "it is cut short, or its fields are quoted"


def _objects(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, dict[str, Any]]]:
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


def _user(value: Any, where: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError(
            f"{where} has a user of type {type(value).__name__}: it must be text or a whole number"
        )
    return _encodable(str(value), where)


def _text(value: Any, where: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(
            f"{where} has a text of type {type(value).__name__}: it must be text or a list of texts"
        )
    return _encodable(value, where)


def _encodable(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where} is not UTF-8: it has half of a surrogate pair") from None
    return text

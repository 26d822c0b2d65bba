"""Files of utterances, one at a time: three parallel files, JSON Lines, or CSV; any may be gzip.

Every mistake is one sentence that names the file, the line, and what would be right.  Nothing is
kept of a file but the utterances that the caller keeps; equal tokens and tag sequences are shared.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from sys import intern
from typing import Any

from tacit.corpus.files import opened
from tacit.tasks.nlu.data import Utterance
from tacit.tasks.nlu.slots import checked_tags

TOKENS, TAGS, INTENT, USER = "seq.in", "seq.out", "label", "user"
COLUMNS = ("tokens", "tags", "intent")
OPTIONAL = ("user", "fold")
# NLU-EVAL's other columns.  Any other name is refused: it may be a misspelt "user", and then the
# users' privacy would silently be the privacy of single utterances.
UNUSED = ("answerid", "scenario", "annotation", "raw")

Row = tuple[Utterance, str | None]  # and its fold, where the file has that column


def folder_utterances(folder: Path) -> Iterator[Utterance]:
    """Lines of seq.in, seq.out and label, and of `user` where there is such a file."""
    paths = [_present(folder, name) for name in (TOKENS, TAGS, INTENT)]
    users = _found(folder, USER)
    if users is not None:
        paths.append(users)
    lines = zip_longest(*(_lines(path) for path in paths))
    for number, row in enumerate(lines, 1):
        if None in row:
            _refuse_uneven(paths, row, number, lines)
        words, tags, intent, *user = row
        try:
            who = user[0].strip() if user else None
            utterance = _utterance(words.split(), tags.split(), intent.strip(), who)
        except ValueError as problem:
            raise _located(problem, number, paths[0]) from None
        yield utterance


def json_rows(path: Path, user_column: str | None = None) -> Iterator[Row]:
    """Objects with tokens and tags (lists of strings) and intent; perhaps user and fold."""
    has_user: bool | None = None
    checked: list[str] = []  # the columns of the line before
    for number, line in enumerate(_lines(path), 1):
        try:
            record = _parsed(line)
            if list(record) != checked:
                _check_columns(record, user_column)
                checked = list(record)
            utterance = _utterance(
                _strings(record, "tokens"),
                _strings(record, "tags"),
                _intent(record),
                _name(record, user_column or "user"),
            )
            if has_user is None:
                has_user = utterance.user is not None
            if has_user != (utterance.user is not None):
                raise ValueError(
                    f"there is {'no' if has_user else 'a'} user, unlike in the lines before: give"
                    " all utterances one, or none"
                )
            fold = _name(record, "fold")
        except ValueError as problem:
            raise _located(problem, number, path) from None
        yield utterance, fold


def csv_rows(path: Path, user_column: str | None = None) -> Iterator[Row]:
    """Columns tokens and tags (separated by blanks) and intent; perhaps user and fold."""
    header: list[str] = []
    for number, fields in _table(path):
        try:
            if not header:
                header = [name.strip() for name in fields]
                if len(set(header)) != len(header):
                    raise ValueError(f"a column is named twice in {','.join(header)}")
                _check_columns(dict.fromkeys(header), user_column)
                continue
            if len(fields) != len(header):
                raise ValueError(
                    f"there are {len(fields)} fields: give {len(header)}, as in the first line"
                )
            record = dict(zip(header, fields, strict=True))
            utterance = _utterance(
                record["tokens"].split(),
                record["tags"].split(),
                record["intent"].strip(),
                _name(record, user_column or "user"),
            )
            fold = _name(record, "fold")
        except ValueError as problem:
            raise _located(problem, number, path) from None
        yield utterance, fold


def _utterance(
    words: Sequence[str], tags: Sequence[str], intent: str, user: str | None
) -> Utterance:
    shared = checked_tags(tuple(map(intern, tags)))
    return Utterance(tuple(map(intern, words)), shared, intern(intent), user)


def _located(problem: ValueError, number: int, path: Path) -> ValueError:
    return ValueError(f"line {number} of {str(path)!r}: {problem}")


def _lines(path: Path) -> Iterator[str]:
    # Each file in a generator of its own, so that a damaged one is blamed and not its neighbour.
    with opened(path) as stream:
        yield from stream.lines()


def _table(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The records of a CSV file, each with the number of its last line."""
    reader = csv.reader(_lines(path), strict=True)
    try:
        for fields in reader:
            yield reader.line_num, fields
    except csv.Error as problem:
        wrong = ValueError(f"not CSV ({problem}): quote fields that hold commas or quotes")
        raise _located(wrong, reader.line_num, path) from None


def _found(folder: Path, name: str) -> Path | None:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    return None


def _present(folder: Path, name: str) -> Path:
    path = _found(folder, name)
    if path is None:
        raise ValueError(
            f"{str(folder)!r} has no {name} (nor {name}.gz): give {TOKENS}, {TAGS} and {INTENT},"
            " one line in each for each utterance"
        )
    return path


def _refuse_uneven(
    paths: Sequence[Path],
    row: Sequence[str | None],
    number: int,
    rest: Iterator[tuple[str | None, ...]],
) -> None:
    lengths = [number - (line is None) for line in row]
    for more in rest:
        for place, line in enumerate(more):
            lengths[place] += line is not None
    counts = ", ".join(f"{path.name} {count}" for path, count in zip(paths, lengths, strict=True))
    short = paths[lengths.index(min(lengths))]
    raise ValueError(
        f"{str(short)!r} has no line {min(lengths) + 1} (lines: {counts}): give each utterance one"
        " line in each file"
    )


def _parsed(line: str) -> dict[str, Any]:
    if not line.strip():
        raise ValueError("the line is blank: write an utterance on each")
    try:
        record: Any = json.loads(line)
        if "\\u" in line:
            json.dumps(record, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"not JSON text ({problem}): write one object on each line") from None
    if not isinstance(record, dict):
        raise ValueError('no object: write {"tokens": [...], "tags": [...], "intent": ...}')
    return record


def _check_columns(record: Mapping[str, Any], user_column: str | None) -> None:
    needed = (*COLUMNS, user_column) if user_column else COLUMNS
    for name in needed:
        if name not in record:
            raise ValueError(f"there is no column {name!r}: the columns are {', '.join(needed)}")
    for name in record:
        if name not in {*needed, *OPTIONAL, *UNUSED}:
            raise ValueError(
                f"the column {name!r} is unknown: the columns are {', '.join(COLUMNS)} and perhaps"
                f" {' and '.join(OPTIONAL)}"
            )


def _strings(record: Mapping[str, Any], column: str) -> list[str]:
    value = record[column]
    if not isinstance(value, list) or not set(map(type, value)) <= {str}:
        raise ValueError(f'"{column}" must be a list of strings, got {value!r}')
    return value


def _intent(record: Mapping[str, Any]) -> str:
    value = record["intent"]
    if not isinstance(value, str):
        raise ValueError(f'"intent" must be a string, got {value!r}')
    return value.strip()


def _name(record: Mapping[str, Any], column: str) -> str | None:
    """A user or a fold, if there is one: a string, or a whole number written as one."""
    value = record.get(column)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise ValueError(f'"{column}" must be a name or a whole number, got {value!r}')
    return intern(str(value).strip())

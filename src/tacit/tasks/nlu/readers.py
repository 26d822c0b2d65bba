"""A set of utterances by its name or path, however it is laid out, split as it is asked for.

    FOLDER/{train,valid,test}/{seq.in,seq.out,label}   ATIS, SNIPS; perhaps a file `user` as well
    FOLDER/{seq.in,seq.out,label}                      the same without parts
    FILE.jsonl                                         tokens, tags, intent; NLU-EVAL
    FILE.csv                                           the same columns, tokens separated by blanks
    generated, or generated:utterances=5000,seed=1     made from templates; see `generated`

Any file may be compressed with gzip.  A column `fold` divides a file: into parts, if its values are
train, valid and test, else for cross-validation.

Every mistake is one sentence that names the file, the line, and what would be right.  Files are
read one line at a time; equal tokens and tag sequences are stored once.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, zip_longest
from pathlib import Path
from sys import intern
from typing import Any

from tacit.corpus.files import opened
from tacit.tasks.nlu.data import PARTS, NLUData, Utterance, checked_tags
from tacit.tasks.nlu.generated import generated_utterances

_SPLITS = ("usual", "paper")
_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv")
_TOKENS, _TAGS, _INTENT, _USER = "seq.in", "seq.out", "label", "user"
_COLUMNS = ("tokens", "tags", "intent")
_OPTIONAL = ("user", "fold")
# NLU-EVAL's other columns.  Any other name is refused: it may be a misspelt "user", and then the
# users' privacy would silently be the privacy of single utterances.
_UNUSED = ("answerid", "scenario", "annotation", "raw")

_Row = tuple[Utterance, str | None]  # an utterance, and its fold where the file has that column
_Record = tuple[int, dict[str, Any]]  # a line's number, and its fields by column


def load_nlu(
    name_or_path: str | Path = "generated",
    *,
    split: str = "usual",
    test_fold: str | int | None = None,
    together: bool = False,
    user_column: str | None = None,
    unseen_intents: str = "refuse",
) -> NLUData:
    """Read a set of utterances.

    Args:
        name_or_path: a folder, a file, or "generated" with options; see the module.
        split: "usual" is the set's own split or, where it has none, the paper's; "paper" is the
            paper's 45:5:50 by digest.
        test_fold: the fold to test on, of a set with folds.
        together: whether equal utterances are on the same side of the paper's split.
        user_column: the column that says who spoke, if it is not called "user".
        unseen_intents: "refuse" or "keep" intents that are not in train; see `NLUData`.

    Raises:
        ValueError: if the set is missing or malformed, or the arguments do not fit it.
    """
    if split not in _SPLITS:
        raise ValueError(f"split must be one of {', '.join(_SPLITS)}, got {split!r}")
    named = str(name_or_path)
    path = Path(named)
    if named.partition(":")[0] == "generated":
        name, folds = "generated", {"": generated_utterances(named)}
    elif path.is_dir():
        name, folds = path.resolve().name, _folder(path, user_column)
    elif path.exists():
        plain = path.name.removesuffix(".gz")
        suffix = Path(plain).suffix
        if suffix not in _SUFFIXES:
            raise ValueError(
                f"{named!r} is not a set of utterances: give a folder, or a file that ends in"
                " .jsonl or .csv (or these with .gz)"
            )
        name = plain.removesuffix(suffix)
        folds = _by_fold(_rows(path, user_column), named)
    else:
        raise ValueError(f"there is no set {named!r}: name a folder, a file, or generated")
    if test_fold is not None and (split != "usual" or "" in folds or set(folds) <= set(PARTS)):
        raise ValueError(f"test_fold is for the usual split of a set with folds, got {test_fold!r}")
    if split == "paper" or "" in folds:
        every = chain.from_iterable(folds.values())
        return NLUData.by_digest(name, every, together=together, unseen_intents=unseen_intents)
    if together:
        raise ValueError("together is for the paper's split, not for a set's own")
    if set(folds) <= set(PARTS):
        return NLUData.of_parts(name, folds, unseen_intents=unseen_intents)
    fold = None if test_fold is None else str(test_fold)
    return NLUData.by_fold(name, folds, fold, unseen_intents=unseen_intents)


@contextmanager
def _in_line(number: int, path: Path) -> Iterator[None]:
    """Name file and line in a mistake that the block raises."""
    try:
        yield
    except ValueError as problem:
        raise ValueError(f"line {number} of {str(path)!r}: {problem}") from None


def _folder_utterances(folder: Path) -> Iterator[Utterance]:
    """Lines of seq.in, seq.out and label, and of `user` where there is such a file."""
    paths = [_file_in(folder, name) for name in (_TOKENS, _TAGS, _INTENT)]
    if any((folder / name).is_file() for name in (_USER, f"{_USER}.gz")):
        paths.append(_file_in(folder, _USER))
    lines = zip_longest(*(_lines(path) for path in paths))
    for number, row in enumerate(lines, 1):
        if None in row:
            raise ValueError(
                f"{str(paths[row.index(None)])!r} has no line {number}, which another file of the"
                " folder has: give each utterance one line in each file"
            )
        words, tags, intent, *user = row
        with _in_line(number, paths[0]):
            who = user[0].strip() if user else None
            utterance = _utterance(words.split(), tags.split(), intent.strip(), who)
        yield utterance


def _folder(folder: Path, user_column: str | None) -> dict[str, list[Utterance]]:
    """The utterances of a folder by part; all under "" where there are no parts."""
    if user_column is not None:
        raise ValueError("user_column is for JSON Lines and CSV: in a folder write a file `user`")
    if not any((folder / part).is_dir() for part in PARTS):
        return {"": list(_folder_utterances(folder))}
    for part in PARTS:
        if not (folder / part).is_dir():
            raise ValueError(
                f"{str(folder)!r} has no folder {part}: give all of {', '.join(PARTS)}, or the"
                " files without parts"
            )
    return {part: list(_folder_utterances(folder / part)) for part in PARTS}


def _by_fold(rows: Iterable[_Row], named: str) -> dict[str, list[Utterance]]:
    """The utterances of a file by fold; all under "" where there are no folds."""
    folds: dict[str, list[Utterance]] = {}
    for number, (utterance, fold) in enumerate(rows, 1):
        folds.setdefault(fold or "", []).append(utterance)
        if "" in folds and len(folds) > 1:
            raise ValueError(
                f"utterance {number} of {named!r} {'has a' if fold else 'has no'} fold, unlike"
                " those before: give all utterances one, or none"
            )
    if not folds:
        raise ValueError(f"{named!r} has no utterance: give one in each line")
    return folds


def _rows(path: Path, user_column: str | None = None) -> Iterator[_Row]:
    """The utterances of a JSON Lines or CSV file, each with its fold."""
    is_csv = path.name.removesuffix(".gz").endswith(".csv")
    records = _csv_records(path, user_column) if is_csv else _json_records(path)
    has_user: bool | None = None
    checked: list[str] = []  # the columns of the line before
    for number, record in records:
        with _in_line(number, path):
            if list(record) != checked:
                _check_columns(record, user_column)
                checked = list(record)
            utterance = _utterance(
                _strings(record, "tokens"),
                _strings(record, "tags"),
                _text(record, "intent"),
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
        yield utterance, fold


def _json_records(path: Path) -> Iterator[_Record]:
    """The objects of a JSON Lines file: tokens and tags are lists of strings."""
    for number, line in enumerate(_lines(path), 1):
        with _in_line(number, path):
            record = _parsed(line)
        yield number, record


def _csv_records(path: Path, user_column: str | None) -> Iterator[_Record]:
    """The records below the header of a CSV file, with their tokens and tags split."""
    rows = csv.reader(_lines(path), strict=True)
    header: list[str] = []
    while True:
        try:
            fields = next(rows, None)
        except csv.Error as problem:
            with _in_line(rows.line_num, path):
                raise ValueError(
                    f"not CSV ({problem}): quote fields that hold commas or quotes"
                ) from None
        if fields is None:
            return
        with _in_line(rows.line_num, path):
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
        record: dict[str, Any] = dict(zip(header, fields, strict=True))
        yield rows.line_num, record | {name: record[name].split() for name in ("tokens", "tags")}


def _utterance(
    words: Sequence[str], tags: Sequence[str], intent: str, user: str | None
) -> Utterance:
    shared = checked_tags(tuple(map(intern, tags)))
    return Utterance(tuple(map(intern, words)), shared, intern(intent), user)


def _lines(path: Path) -> Iterator[str]:
    # Each file in a generator of its own, so that a damaged one is blamed and not its neighbour.
    with opened(path) as stream:
        yield from stream.lines()


def _file_in(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise ValueError(
        f"{str(folder)!r} has no {name} (nor {name}.gz): give {_TOKENS}, {_TAGS} and {_INTENT},"
        " one line in each for each utterance"
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
    needed = (*_COLUMNS, user_column) if user_column else _COLUMNS
    for name in needed:
        if name not in record:
            raise ValueError(f"there is no column {name!r}: the columns are {', '.join(needed)}")
    for name in record:
        if name not in {*needed, *_OPTIONAL, *_UNUSED}:
            raise ValueError(
                f"the column {name!r} is unknown: the columns are {', '.join(_COLUMNS)} and perhaps"
                f" {' and '.join(_OPTIONAL)}"
            )


def _strings(record: Mapping[str, Any], column: str) -> list[str]:
    value = record[column]
    if not isinstance(value, list) or not set(map(type, value)) <= {str}:
        raise ValueError(f'"{column}" must be a list of strings, got {value!r}')
    return value


def _text(record: Mapping[str, Any], column: str) -> str:
    if not isinstance(value := record[column], str):
        raise ValueError(f'"{column}" must be a string, got {value!r}')
    return value.strip()


def _name(record: Mapping[str, Any], column: str) -> str | None:
    """A user or a fold, if there is one: a string, or a whole number written as one."""
    value = record.get(column)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise ValueError(f'"{column}" must be a name or a whole number, got {value!r}')
    return intern(str(value).strip())

"""A set of utterances by its name or path, however it is laid out, split as it is asked for.

    FOLDER/{train,valid,test}/{seq.in,seq.out,label}   ATIS, SNIPS; perhaps a file `user` as well
    FOLDER/{seq.in,seq.out,label}                      the same without parts
    FILE.jsonl                                         tokens, tags, intent; NLU-EVAL
    FILE.csv                                           the same columns, tokens separated by blanks
    generated, or generated:utterances=5000,seed=1     made from templates; see `generated`

A column `fold` divides a file: into parts, if its values are train, valid and test, else for
cross-validation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

from tacit.tasks.nlu.data import PARTS, NLUData, Utterance
from tacit.tasks.nlu.generated import distinct_utterances, generated_options
from tacit.tasks.nlu.readers import Row, csv_rows, folder_utterances, json_rows
from tacit.tasks.nlu.splits import fold_split, given_split, hash_split

SPLITS = ("usual", "paper")
_READERS: dict[str, Callable[[Path, str | None], Iterator[Row]]] = {
    ".jsonl": json_rows,
    ".ndjson": json_rows,
    ".json": json_rows,
    ".csv": csv_rows,
}


def load_nlu(
    name_or_path: str | Path = "generated",
    *,
    split: str = "usual",
    test_fold: str | int | None = None,
    together: bool = False,
    user_column: str | None = None,
    unseen_intents: str = "refuse",
) -> NLUData:
    """Read a set.  The usual split is the set's own; where it has none, the paper's 45:5:50."""
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    given = str(name_or_path)
    path = Path(given)
    if given.partition(":")[0] == "generated":
        name, folds = "generated", {"": distinct_utterances(generated_options(given))}
    elif path.is_dir():
        name, folds = path.resolve().name, _folder(path, user_column)
    elif path.exists():
        reader = _READERS.get(_suffix(path))
        if reader is None:
            raise ValueError(
                f"{given!r} is not a set of utterances: give a folder, or a file that ends in"
                " .jsonl or .csv (or these with .gz)"
            )
        name, folds = _stem(path), _by_fold(reader(path, user_column), given)
    else:
        raise ValueError(f"there is no set {given!r}: name a folder, a file, or generated")
    if test_fold is not None and (split != "usual" or "" in folds or set(folds) <= set(PARTS)):
        raise ValueError(f"test_fold is for the usual split of a set with folds, got {test_fold!r}")
    if split == "paper" or "" in folds:
        every = chain.from_iterable(folds.values())
        return hash_split(name, every, together=together, unseen_intents=unseen_intents)
    if together:
        raise ValueError("together is for the paper's split, not for a set's own")
    if set(folds) <= set(PARTS):
        return given_split(name, folds, unseen_intents=unseen_intents)
    fold = None if test_fold is None else str(test_fold)
    return fold_split(name, folds, fold, unseen_intents=unseen_intents)


def _folder(folder: Path, user_column: str | None) -> dict[str, list[Utterance]]:
    if user_column is not None:
        raise ValueError("user_column is for JSON Lines and CSV: in a folder write a file `user`")
    if not any((folder / part).is_dir() for part in PARTS):
        return {"": list(folder_utterances(folder))}
    for part in PARTS:
        if not (folder / part).is_dir():
            raise ValueError(
                f"{str(folder)!r} has no folder {part}: give all of {', '.join(PARTS)}, or the"
                " files without parts"
            )
    return {part: list(folder_utterances(folder / part)) for part in PARTS}


def _by_fold(rows: Iterable[Row], given: str) -> dict[str, list[Utterance]]:
    folds: dict[str, list[Utterance]] = {}
    for number, (utterance, fold) in enumerate(rows, 1):
        folds.setdefault(fold or "", []).append(utterance)
        if "" in folds and len(folds) > 1:
            raise ValueError(
                f"utterance {number} of {given!r} {'has a' if fold else 'has no'} fold, unlike"
                " those before: give all utterances one, or none"
            )
    if not folds:
        raise ValueError(f"{given!r} has no utterance: give one in each line")
    return folds


def _suffix(path: Path) -> str:
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(_suffix(path)) or path.name

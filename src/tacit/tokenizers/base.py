"""The base models that come with tacit, by name: `base:en`, or `base` for short.

A base is a folder as `tacit model pretrain` writes it: weights that were trained on public text,
the tokenizer they were trained with, and how both were made.  Its name stands in an experiment and
in a ledger, where a path would name a machine.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

from tacit.privacy import trusted

DEFAULT = "base:en"
_NAME = "base"


def path_of(source: str) -> Path:
    """The folder of a base model, for the name of one; else the path that `source` is.

    Raises:
        ValueError: if there is no base model for the language, or the path is a pipe or a device.
    """
    if (name := base_name(source)) is not None:
        return _folder() / name.removeprefix(f"{_NAME}:")
    path = Path(source)
    if not source:  # names nothing, and not the working directory either
        return path
    if path.is_dir():
        trusted.refuse_irregular_in(path)
    else:
        trusted.refuse_irregular(path)
    return path


def base_name(source: str) -> str | None:
    """The full name of a base model, such as "base:en" for "base"; None if `source` names none."""
    name, _, language = source.partition(":")
    if name != _NAME or Path(source).exists():
        return None
    if source == _NAME:
        return DEFAULT
    if language not in languages():
        known = ", ".join(f"{_NAME}:{each}" for each in languages())
        raise ValueError(f"there is no base model {source!r}; there is {known}")
    return source


@cache
def languages() -> tuple[str, ...]:
    """The languages that there is a base model for."""
    return tuple(sorted(each.name for each in _folder().iterdir() if each.is_dir()))


def _folder() -> Path:
    return Path(str(files("tacit"))) / "public" / "base"

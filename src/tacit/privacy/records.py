"""Records: frozen dataclasses that are checked when they are made, and written as JSON objects.

A field's type is the only place that says what it may hold and how it is read back:

    epsilon: Positive                          # a finite number above 0
    rounds: Annotated[int, at_least(1)] | None # or nothing
    head: Head                                 # another record, itself a JSON object

So everything that a ledger rests on is refused in one way if it is wrong, wherever it comes from.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Self

from tacit.privacy import checks
from tacit.privacy.visible import one_line

_Check = Callable[[str, Any], object]

Positive = Annotated[float, checks.positive]
NonNegative = Annotated[float, checks.non_negative]
Probability = Annotated[float, checks.probability]
OpenUnit = Annotated[float, checks.open_unit]


def at_least(bound: int) -> _Check:
    """The check of a whole number with a lower bound."""
    return functools.partial(checks.whole, at_least=bound)


def one_of(*known: str) -> _Check:
    """The check of a word that must be one of a few."""

    def check(name: str, value: str) -> None:
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")

    return check


def _matching(what: str, pattern: str) -> _Check:
    """The check of text that a regular expression must match from end to end."""

    def check(name: str, value: object) -> None:
        if not isinstance(value, str) or not re.fullmatch(pattern, value, re.DOTALL):
            raise ValueError(f"{name} must be {what}, got {value!r}")

    return check


def _bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r}")


def _name(name: str, value: object) -> None:
    """The check of a name, which is shown to people."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be text that is not empty, got {value!r}")
    one_line(name, value, LONGEST_TEXT)


LONGEST_TEXT = 10_000  # characters; the name of a public input may be a path
Count = Annotated[int, at_least(0)]
Text = Annotated[str, _name]
Digest = Annotated[str, _matching("lower-case hexadecimal digits", "[0-9a-f]+")]
_PLAIN: dict[Any, _Check] = {bool: _bool, str: _matching("text", ".*")}


class Record:
    """The base of such a dataclass.

    `title` is what errors call it, and `prefix` stands before its fields' names in errors.
    """

    title: ClassVar[str] = "a record"
    prefix: ClassVar[str] = ""

    def __post_init__(self) -> None:
        own: type = type(self)
        for name, check in _checks(own):
            check(f"{self.prefix}{name}", getattr(self, name))

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON types; `from_json` is the inverse."""
        own: type = type(self)
        return {name: _plain(getattr(self, name)) for name in _readers(own)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The record that `to_json` wrote; `ValueError` for anything else."""
        own: type = cls
        readers = _readers(own)
        if not isinstance(data, Mapping) or data.keys() != readers.keys():
            got = sorted(data) if isinstance(data, Mapping) else data
            raise ValueError(f"{cls.title} needs the fields {sorted(readers)}, got {got}")
        return cls(**{name: read(data[name]) for name, read in readers.items()})


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical_json(data: Any) -> str:
    """One spelling per value, so that equal data have equal hashes; NaN is refused."""
    return _CANONICAL.encode(data)


def _plain(value: Any) -> Any:
    """A field's value as JSON types."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, enum.Enum):
        return value.value
    return value.to_json() if hasattr(value, "to_json") else value


def _hints(cls: type) -> dict[str, Any]:
    """The type of each field, with its checks."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


@functools.cache
def _checks(cls: type) -> list[tuple[str, _Check]]:
    """The checks of a record's fields, by the fields' names."""
    return [(name, check) for name, hint in _hints(cls).items() if (check := _check(hint))]


def _check(hint: Any) -> _Check | None:
    """The check of a field of this type; None where reading it is check enough."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        check = _check(typing.get_args(hint)[0])
        return check and functools.partial(_optional, check)
    metadata = getattr(hint, "__metadata__", ())
    return metadata[0] if metadata else None


def _optional(check: _Check, name: str, value: object) -> None:
    if value is not None:
        check(name, value)


@functools.cache
def _readers(cls: type) -> dict[str, Callable[[Any], Any]]:
    """How each field of a record is made of JSON types."""
    return {name: _reader(hint) for name, hint in _hints(cls).items()}


def _reader(hint: Any) -> Callable[[Any], Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        read_one = str if arguments[0] is str else _reader(arguments[0])
        return lambda values: tuple(read_one(value) for value in values)
    if origin in (types.UnionType, typing.Union):
        read = _reader(arguments[0])
        return lambda value: None if value is None else read(value)
    if hasattr(hint, "from_json"):
        return typing.cast(Callable[[Any], Any], hint.from_json)
    is_enum = isinstance(hint, type) and issubclass(hint, enum.Enum)
    return hint if is_enum else lambda value: value

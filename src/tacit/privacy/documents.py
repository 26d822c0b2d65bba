"""Our own JSON and TOML, read back from files that may have been cut off, edited or exchanged.

Whatever tacit keeps as text is read here, with a shape that says what it must hold:

    class Result(TypedDict):
        ending: str
        epsilon: dict[str, float | None]

    result = read_json(path, Result)

A shape is a type: `bool`, `int`, `float`, `str`, `Any`, a `Literal`, a `TypedDict` (further keys
are allowed), lists and dictionaries of shapes, a list of so many as a `tuple` has, and unions.
Numbers are finite.  Anything else is a `DamagedFile`, which names the file and the field; so is
text that is not UTF-8, or that is nested deeper than any file of ours.

Ledgers are read by `ledger_lines`, which also verifies that nothing was changed.
"""

from __future__ import annotations

import functools
import json
import os
import reprlib
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tacit.privacy import trusted

T = TypeVar("T")

_BLOCK = 1 << 16  # bytes that are read at once from the end of a file
_MOST_DOTS = 1000  # in a key of TOML, or in a list of numbers
DEEPEST = 64  # a list in a list counts 2; ours have at most 8
_PLAIN: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    str: "text",
    dict: "an object",
    list: "a list",
    type(None): "null",
}
_Misfit = tuple[tuple[str, ...], str]  # the names that lead to a field, and what is wrong with it
_Check = Callable[[Any], _Misfit | None]


class DamagedFile(ValueError):
    """A file that does not hold what tacit writes to it: which one, and what is wrong."""

    def __init__(self, where: object, what: str) -> None:
        super().__init__(f"{where} is damaged: {what}")


def parse_json(data: str | bytes, where: object) -> Any:
    """The value of a JSON text, which `where` names in errors.

    What passes for JSON in Python and is none is refused too: NaN, and half of a surrogate pair.
    """
    try:
        text = data if isinstance(data, str) else data.decode()
        value = _DECODER.decode(text)
        if "\\u" in text and "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
        if text.count("[") + text.count("{") > DEEPEST:
            _refuse_depth(value)
    except UnicodeDecodeError:
        raise DamagedFile(where, "it is not UTF-8") from None
    except UnicodeEncodeError:
        raise DamagedFile(where, "it has half of a surrogate pair, which is no text") from None
    except RecursionError:
        raise DamagedFile(where, "it is nested too deeply") from None
    except ValueError as error:
        raise DamagedFile(where, f"it is not JSON ({error})") from None
    return value


def parse_toml(data: str | bytes, where: object) -> dict[str, Any]:
    """The tables of a TOML text, which `where` names in errors."""
    try:
        text = data if isinstance(data, str) else data.decode()
        if any(
            part.count(".") > _MOST_DOTS for line in text.split("\n") for part in line.split("=")
        ):
            raise RecursionError  # the time that a dotted key takes grows with its square
        tables = tomllib.loads(text)
        _refuse_depth(tables)
    except UnicodeDecodeError:
        raise ValueError(f"{where} is not UTF-8") from None
    except RecursionError:
        raise ValueError(f"{where} is not TOML that can be used: it is nested too deeply") from None
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{where} is not TOML: {error}") from None
    return tables


def read_json(path: Path, shape: type[T]) -> T:
    """What a JSON file holds; `FileNotFoundError` if there is none."""
    return fitted(parse_json(trusted.read_bytes(path), path), shape, path)


def read_lines(path: Path, shape: type[T]) -> list[T]:
    """All complete rows of a JSON Lines file; none if the file does not exist."""
    return list(each_line(path, shape))


def each_line(path: Path, shape: type[T]) -> Iterator[T]:
    """The same rows one after the other, so that a long file is never in memory as a whole."""
    if not path.exists():
        return
    with trusted.open_regular(path) as file:
        where = _Line(path)
        for where.number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):  # it was never written to its end
                return
            yield fitted(parse_json(line, where), shape, where)


@dataclass
class _Line:
    """Which line it is, in words that are made only if they are wanted."""

    path: Path
    number: int = 0

    def __str__(self) -> str:
        return f"line {self.number} of {self.path}"


def last_line(path: Path, shape: type[T]) -> T | None:
    """The last complete row of a JSON Lines file, or None; it is read from the file's end."""
    if not path.exists():
        return None
    with trusted.open_regular(path) as file:
        start, tail = file.seek(0, os.SEEK_END), b""
        while start and tail.count(b"\n") < 2:  # the end of the row, and that of the one above
            start = max(start - max(_BLOCK, len(tail)), 0)
            file.seek(start)
            tail = file.read()
    *lines, _ = tail.split(b"\n")
    try:
        return fitted(parse_json(lines[-1], path), shape, path) if lines else None
    except DamagedFile:
        return read_lines(path, shape)[-1]  # which raises, and says in which line


def fitted(value: Any, shape: type[T], where: object) -> T:
    """The value itself if it has that shape; else `DamagedFile` names the field that has not."""
    if (misfit := _check_of(typing.cast(Any, shape))(value)) is not None:
        path, what = misfit
        raise DamagedFile(where, f"{'.'.join(path) or 'it'} {what}")
    return typing.cast(T, value)


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _refuse_depth(value: Any) -> None:
    """Raise `RecursionError` for what is nested too deeply for whoever goes through it later."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return
    raise RecursionError


@functools.cache
def _check_of(shape: Any) -> _Check:
    """The check of a shape, made once: files may have very many rows."""
    origin, arguments = typing.get_origin(shape), typing.get_args(shape)
    if shape is Any:
        return _check_nothing
    if shape is float:
        return _check_float
    if origin in (types.UnionType, typing.Union):
        return _check_union([_check_of(one) for one in arguments])
    if origin is typing.Literal:
        words = f"must be one of {', '.join(map(str, arguments))}"
        return lambda value: (
            None if type(value) is str and value in arguments else _misfit(words, value)
        )
    if typing.is_typeddict(shape):
        return _check_fields(shape)
    if origin in (dict, list):
        return _check_items(origin, _check_of(arguments[-1]))
    if origin is tuple:
        return _check_row([_check_of(one) for one in arguments])
    words = f"must be {_PLAIN[shape]}"
    return lambda value: None if type(value) is shape else _misfit(words, value)


def _misfit(what: str, value: Any) -> _Misfit:
    return (), f"{what}, got {reprlib.repr(value)}"


def _below(name: object, misfit: _Misfit | None) -> _Misfit | None:
    """The same, seen from the object or list that has it under a name."""
    return misfit and ((str(name), *misfit[0]), misfit[1])


def _check_nothing(_: Any) -> _Misfit | None:
    return None


def _check_float(value: Any) -> _Misfit | None:
    if type(value) in (float, int) and abs(value) <= sys.float_info.max:
        return None
    return _misfit("must be a finite number", value)


def _check_union(checks: Sequence[_Check]) -> _Check:
    """The first shape is the one that is missed, where none is met."""

    def check(value: Any) -> _Misfit | None:
        misfits = []
        for one in checks:
            if (misfit := one(value)) is None:
                return None
            misfits.append(misfit)
        return misfits[0]

    return check


def _check_fields(shape: Any) -> _Check:
    hints = typing.get_type_hints(shape, include_extras=True)
    # `__required_keys__` does not see through annotations that are text.
    free = {name for name, hint in hints.items() if typing.get_origin(hint) is typing.NotRequired}
    checks = {
        name: _check_of(typing.get_args(hint)[0] if name in free else hint)
        for name, hint in hints.items()
    }
    required, is_object = shape.__required_keys__ - free, _check_of(dict)

    def check(value: Any) -> _Misfit | None:
        if (misfit := is_object(value)) is not None:
            return misfit
        for name in sorted(required - value.keys()):
            return (name,), "is missing"
        for name, one in checks.items():
            if name in value and (misfit := one(value[name])) is not None:
                return _below(name, misfit)
        return None

    return check


def _check_row(checks: Sequence[_Check]) -> _Check:
    words = f"must be a list of {len(checks)}"

    def check(value: Any) -> _Misfit | None:
        if type(value) is not list or len(value) != len(checks):
            return _misfit(words, value)
        misfits = enumerate(one(part) for one, part in zip(checks, value, strict=True))
        return next((_below(name, misfit) for name, misfit in misfits if misfit), None)

    return check


def _check_items(container: Any, check_one: _Check) -> _Check:
    is_container = _check_of(container)
    if check_one is _check_nothing:
        return is_container

    def check(value: Any) -> _Misfit | None:
        if (misfit := is_container(value)) is not None:
            return misfit
        for name, one in value.items() if container is dict else enumerate(value):
            if (misfit := check_one(one)) is not None:
                return _below(name, misfit)
        return None

    return check

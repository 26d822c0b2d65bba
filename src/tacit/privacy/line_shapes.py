"""Lines that differ from an earlier one in hashes and numbers alone, read without parsing them.

A ledger has a line for each round, and most are alike: to parse each of 100,000 lines and to spell
it again takes many times as long as to hash it.  So a line is cut at its `hash`, `previous`,
`index` and `round`.  If all that is between them stood like this in a line that was parsed and
found to be canonical JSON, then this line is canonical, too, and says the same but for these four.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_NAMES = ("hash", "previous", "index", "round")
_CUTS = re.compile(rb'("hash":"|"previous":"|"index":|"round":)([0-9a-f]+)')
_DIGITS = 18  # at most, of a number
_MOST = 256  # shapes that are remembered: a ledger with more has hardly two lines alike

_Path = tuple[str, ...]  # the keys on the way to a value


@dataclass(frozen=True)
class _Shape:
    """What all lines of a shape say, and where each of the values that differ belongs."""

    fields: dict[str, Any]
    paths: tuple[_Path, ...]
    inner: frozenset[_Path]  # the objects inside of `fields` that hold such a value
    is_text: tuple[bool, ...]

    def filled(self, values: list[bytes]) -> dict[str, Any] | None:
        """The fields of the line with these values; None if one is not what its place holds."""
        fields = self.fields.copy()
        holders = {(): fields}
        for path in self.inner:
            holders[path] = fields[path[0]] = fields[path[0]].copy()
        for path, is_text, value in zip(self.paths, self.is_text, values, strict=True):
            if is_text:
                holders[path[:-1]][path[-1]] = value.decode()
            elif value.isdigit() and len(value) <= _DIGITS and (value[0] != 48 or len(value) == 1):
                holders[path[:-1]][path[-1]] = int(value)
            else:
                return None
        return fields


class LineShapes:
    """The shapes of the lines that were parsed last."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[bytes, ...], _Shape] = {}

    def read(self, line: bytes) -> dict[str, Any] | None:
        """The fields of a line of a known shape, which is canonical JSON; None for any other.

        What is the same in all of its lines is the same object in what is returned for each.
        """
        parts = _CUTS.split(line)
        values = parts[2::3]
        del parts[2::3]
        shape = self._shapes.get(tuple(parts))
        return None if shape is None else shape.filled(values)

    def learn(self, line: bytes, fields: dict[str, Any]) -> None:
        """Remember the shape of a line that was parsed, and is canonical."""
        parts = _CUTS.split(line)
        values = [value.decode() for value in parts[2::3]]
        del parts[2::3]
        found = list(_values(fields, ()))
        # Only if each cut is one of these values and the other way round does the rest stay as it
        # is, whatever stands there.
        if [str(value) for _, value in found] != values:
            return
        paths = tuple(path for path, _ in found)
        if any(len(path) > 2 for path in paths):
            return
        if len(self._shapes) >= _MOST:
            self._shapes.clear()
        inner = frozenset(path[:-1] for path in paths if path[:-1])
        is_text = tuple(isinstance(value, str) for _, value in found)
        self._shapes[tuple(parts)] = _Shape(fields.copy(), paths, inner, is_text)


def _values(fields: dict[str, Any], path: _Path) -> Iterator[tuple[_Path, Any]]:
    """The values that may differ, with the way to each, in the order in which they are written."""
    for name, value in fields.items():
        if name in _NAMES:
            yield (*path, name), value
        elif isinstance(value, dict):
            yield from _values(value, (*path, name))
        elif isinstance(value, list):  # lines with objects in a list are few, and always parsed
            yield from (((), None) for one in value if isinstance(one, dict | list))

"""The parts of a plan as JSON.

A part (sampler, clipper, estimator, ...) is a record whose fields are public facts, so a plan can
be printed, hashed and read back.  A part is written with its kind, by which it is read; a subclass
of `PlanPart` with a kind of its own is known by being defined.  Equal parts have equal JSON: a
whole number is written without a fraction whether it was given as 20 or as 20.0.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from tacit.privacy.records import Record

_EXACT_INTEGERS = 2.0**53
_KNOWN: dict[str, type[PlanPart]] = {}  # by kind


@dataclass(frozen=True)
class PlanPart(Record):
    """One public choice of a plan, named by its `kind`; its fields are checked by their types."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        """Make the part known; two parts of one kind would be read as each other."""
        if "kind" in vars(cls):
            assert cls.kind not in _KNOWN, f"two parts of a plan have the kind {cls.kind!r}"
            _KNOWN[cls.kind] = cls

    def to_json(self) -> dict[str, Any]:
        """The kind and all fields as JSON types; `from_json` is the inverse."""
        fields = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {"kind": self.kind} | fields

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The part that `to_json` wrote; `ValueError` for an unknown kind or for other fields."""
        part = _read(data)
        if not isinstance(part, cls):
            raise ValueError(f"expected the JSON of a {cls.kind!r}, got {part!r}")
        return part


def _plain(value: Any) -> Any:
    """A value of a part's field as JSON types only."""
    if isinstance(value, PlanPart):
        return value.to_json()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, numbers.Real):
        number = float(value)
        whole = number.is_integer() and abs(number) < _EXACT_INTEGERS
        return int(number) if whole else number
    raise ValueError(f"a plan holds numbers, names and parts only, got {value!r}")


def _read(data: Any) -> Any:
    """The inverse of `_plain`.  An unknown kind, or other fields than its own, fail closed."""
    if isinstance(data, list):
        return tuple(_read(item) for item in data)
    if not isinstance(data, Mapping):
        return data
    kind = str(data.get("kind"))
    if kind not in _KNOWN:
        raise ValueError(f"unknown part {kind!r} in a plan; known are {', '.join(sorted(_KNOWN))}")
    fields = {name: _read(item) for name, item in data.items() if name != "kind"}
    expected = {f.name for f in dataclasses.fields(_KNOWN[kind])}
    if set(fields) != expected:
        raise ValueError(f"{kind!r} needs the fields {sorted(expected)}, got {sorted(fields)}")
    return _KNOWN[kind](**fields)

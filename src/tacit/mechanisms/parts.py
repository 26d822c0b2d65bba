"""The parts of a plan as JSON.

A part (sampler, clipper, estimator, ...) is a frozen dataclass whose fields are public facts, so a
plan can be printed, hashed and read back.  Equal parts have equal JSON: a whole number is written
without a fraction whether it was given as 20 or as 20.0.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

_EXACT_INTEGERS = 2.0**53


@dataclass(frozen=True)
class PlanPart:
    """One public choice of a plan, named by its `kind`."""

    kind: ClassVar[str]


def kinds() -> dict[str, type[PlanPart]]:
    """All parts that have been defined so far and have a kind of their own, by that kind.

    A new sampler, noise or clipper is known to `from_json` by being a subclass; two parts of one
    kind would be read as each other, so they are refused.
    """
    known: dict[str, type[PlanPart]] = {}
    pending: list[type[PlanPart]] = [PlanPart]
    while pending:
        part = pending.pop()
        pending += part.__subclasses__()
        if "kind" in vars(part):
            assert part.kind not in known, f"two parts of a plan have the kind {part.kind!r}"
            known[part.kind] = part
    return known


def to_json(value: Any) -> Any:
    """A part, or a value of one of its fields, as JSON types only."""
    if isinstance(value, PlanPart):
        fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": value.kind} | fields
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, numbers.Real):
        number = float(value)
        whole = number.is_integer() and abs(number) < _EXACT_INTEGERS
        return int(number) if whole else number
    raise ValueError(f"a plan holds numbers, names and parts only, got {value!r}")


def from_json(data: Any, known: Mapping[str, type[PlanPart]]) -> Any:
    """The inverse of `to_json`.  An unknown kind, or other fields than its own, fail closed."""
    if isinstance(data, list):
        return tuple(from_json(item, known) for item in data)
    if not isinstance(data, Mapping):
        return data
    kind = str(data.get("kind"))
    if kind not in known:
        raise ValueError(f"unknown part {kind!r} in a plan; known are {', '.join(sorted(known))}")
    fields = {name: from_json(item, known) for name, item in data.items() if name != "kind"}
    expected = {f.name for f in dataclasses.fields(known[kind])}
    if set(fields) != expected:
        raise ValueError(f"{kind!r} needs the fields {sorted(expected)}, got {sorted(fields)}")
    return known[kind](**fields)

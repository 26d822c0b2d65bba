"""Conditions on an audit's figures under which a release must not happen: a gate for CI."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_GATE = re.compile(r"\s*([a-z_]+)\s*(>=|<=|>|<)\s*([-+0-9.eE]+)\s*")
_GATES: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "memorized": lambda found: _most(found, "memorized"),
    "memorized_rs": lambda found: _most(found, "memorized_rs"),
    "memorized_bs": lambda found: _most(found, "memorized_bs"),
    "exposure": lambda found: max(
        (row["exposure"] for row in _all_rows(found) if row["exposure"] is not None), default=None
    ),
    "membership_auc": lambda found: (found.get("membership_auc") or {}).get("value"),
    # Of all tries at the run: a weaker one must not open a gate that an earlier one closed.
    "empirical_epsilon": lambda found: (found["empirical_epsilon"] or {}).get(
        "highest_lower_bound"
    ),
}


@dataclass(frozen=True)
class Gate:
    """A condition under which a release must not happen, such as "memorized>0"."""

    name: str
    comparison: str
    limit: float

    @classmethod
    def parse(cls, text: str) -> Gate:
        matched = _GATE.fullmatch(text)
        names = ", ".join(_GATES)
        if matched is None or matched[1] not in _GATES:
            raise ValueError(
                f"--fail-if {text!r} must be a figure, a comparison and a number, such as"
                f' "memorized>0"; the figures are {names}'
            )
        try:
            return cls(matched[1], matched[2], float(matched[3]))
        except ValueError:
            raise ValueError(f"--fail-if {text!r} ends with no number: {matched[3]!r}") from None

    def fails(self, figures: dict[str, Any]) -> bool:
        """Whether it holds; a figure that the audit does not have is refused, not passed."""
        value = _GATES[self.name](figures)
        if value is None:
            raise ValueError(
                f"--fail-if {self}: this audit has no figure {self.name}; run what measures it"
            )
        compare: dict[str, Callable[[float], bool]] = {
            ">": lambda x: x > self.limit,
            ">=": lambda x: x >= self.limit,
            "<": lambda x: x < self.limit,
            "<=": lambda x: x <= self.limit,
        }
        return compare[self.comparison](value)

    def __str__(self) -> str:
        return f"{self.name}{self.comparison}{self.limit:g}"


def _all_rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [*found["rows"], *(found["phrases"] or [])]


def _most(found: dict[str, Any], name: str) -> float | None:
    rows = _all_rows(found)
    if not rows:
        return None
    methods = ["memorized_rs", "memorized_bs"] if name == "memorized" else [name]
    return float(sum(any(row[method] for method in methods) for row in rows))

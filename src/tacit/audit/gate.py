"""Conditions on an audit's figures under which a release must not happen: a gate for CI.

The figures are those of `AuditFindings.figures` for a language model, and of
`MembershipResult.gate_figures` for a model of intents and slots.  A gate on a figure that the audit
did not measure raises, since passing it would say that the figure is low.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_Figures = Mapping[str, Any]

_GATE = re.compile(r"\s*([a-z_]+)\s*(>=|<=|>|<)\s*([-+0-9.eE]+)\s*")
_COMPARISONS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_GATES: dict[str, Callable[[_Figures], float | None]] = {
    "memorized": lambda figures: _memorized(figures, "memorized_rs", "memorized_bs"),
    "memorized_rs": lambda figures: _memorized(figures, "memorized_rs"),
    "memorized_bs": lambda figures: _memorized(figures, "memorized_bs"),
    "exposure": lambda figures: max(
        (row["exposure"] for row in _rows(figures) if row["exposure"] is not None), default=None
    ),
    "membership_auc": lambda figures: (figures.get("membership_auc") or {}).get("value"),
    # Of all tries at the run: a weaker one must not open a gate that an earlier one closed.
    "empirical_epsilon": lambda figures: (figures.get("empirical_epsilon") or {}).get(
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
        """A gate from text such as "memorized>0"; `ValueError` if it is none."""
        matched = _GATE.fullmatch(text)
        if matched is None or matched[1] not in _GATES:
            raise ValueError(
                f"--fail-if {text!r} must be a figure, a comparison and a number, such as"
                f' "memorized>0"; the figures are {", ".join(_GATES)}'
            )
        try:
            return cls(matched[1], matched[2], float(matched[3]))
        except ValueError:
            raise ValueError(f"--fail-if {text!r} ends with no number: {matched[3]!r}") from None

    def fails(self, figures: _Figures) -> bool:
        """Whether the condition holds; a figure that the audit does not have is refused."""
        value = _GATES[self.name](figures)
        if value is None:
            raise ValueError(
                f"--fail-if {self}: this audit has no figure {self.name}; run what measures it"
            )
        return bool(_COMPARISONS[self.comparison](value, self.limit))

    def __str__(self) -> str:
        return f"{self.name}{self.comparison}{self.limit:g}"


def _rows(figures: _Figures) -> list[dict[str, Any]]:
    """All canaries and phrases that were looked for."""
    return [*figures.get("rows", ()), *(figures.get("phrases") or ())]


def _memorized(figures: _Figures, *methods: str) -> float | None:
    """How many came out by at least one of the methods; None if nothing was looked for."""
    rows = _rows(figures)
    return float(sum(any(row[method] for method in methods) for row in rows)) if rows else None

"""What a verification found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.privacy.ledger_lines import Head


class Remark(str):
    """Something that could not be checked, and why: no difference."""

    __slots__ = ()


@dataclass(frozen=True)
class Checked:
    """One check: what was held against what, and what came of it."""

    name: str
    what: str
    differences: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def as_row(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "name": self.name,
            "what": self.what,
            "differences": list(self.differences),
            "remarks": list(self.remarks),
        }


@dataclass(frozen=True)
class Findings:
    """All checks of a run or a bundle.  `claim` and `head` are None without a ledger to trust."""

    path: Path
    kind: str
    checks: tuple[Checked, ...]
    claim: str | None = None
    head: Head | None = None

    @property
    def differences(self) -> tuple[str, ...]:
        """Each of them once."""
        return tuple(dict.fromkeys(one for check in self.checks for one in check.differences))

    @property
    def remarks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one for check in self.checks for one in check.remarks))

    def as_row(self) -> dict[str, Any]:
        """Under the names that scripts rely on."""
        return {
            "path": str(self.path),
            "kind": self.kind,
            "verified": not self.differences,
            "differences": list(self.differences),
            "checks": [check.as_row() for check in self.checks],
            "claim": self.claim,
            "head": self.head.to_json() if self.head else None,
        }

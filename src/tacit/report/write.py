"""Where a report goes: the page, and beside it the same facts as JSON.

Guarantee: both are whole before either is written, and each takes the place of an earlier one in
one step, so that a failure leaves the earlier report.  An internal report is readable by its owner
only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.privacy import durable
from tacit.report.common_facts import KIND
from tacit.report.page import render

ENDINGS = (".html", ".htm")


@dataclass(frozen=True)
class Target:
    """The page's file, and the facts' file beside it."""

    page: Path

    def __post_init__(self) -> None:
        if self.page.suffix.lower() not in ENDINGS:
            raise ValueError(f"--out must end in {' or '.join(ENDINGS)}, got {str(self.page)!r}")
        if not self.page.absolute().parent.is_dir():
            raise ValueError(f"--out {str(self.page)!r} is in a folder that does not exist")
        if self.page.is_dir():
            raise ValueError(f"--out {str(self.page)!r} is a folder; name a file")
        is_ours = self.facts.name == "report.json" or _is_report(self.facts)
        if self.facts.exists() and not is_ours:
            raise ValueError(
                f"--out {str(self.page)!r} would replace {self.facts.name} beside it, which is not"
                " a report; choose another name"
            )

    @property
    def facts(self) -> Path:
        return self.page.with_suffix(".json")

    def write(self, facts: Mapping[str, Any]) -> None:
        """Both files."""
        page = render(facts).encode()
        data = (json.dumps(facts, indent=1, allow_nan=False) + "\n").encode()
        mode = 0o600 if facts["internal"] else 0o644
        durable.write_whole(self.facts, data, mode=mode)
        durable.write_whole(self.page, page, mode=mode)


def _is_report(path: Path) -> bool:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, OSError):
        return False
    return isinstance(found, dict) and found.get("kind") == KIND

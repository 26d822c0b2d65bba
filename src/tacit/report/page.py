"""The page: facts and charts put into a template with everything inline, and written to a file.

Guarantee: the page needs no network and runs no script.  Every text that is put into it is escaped,
since some of it comes from a corpus.  The page and the facts beside it are whole before either is
written, and each replaces an earlier one in one step, so that a failure leaves the earlier report.
An internal report is readable by its owner only.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tacit.privacy import durable
from tacit.privacy.claims import format_delta, format_epsilon, format_number
from tacit.privacy.documents import read_json
from tacit.privacy.visible import visible
from tacit.report.facts import KIND, report_on
from tacit.report.figures import Facts, epsilon_chart, short

_ENDINGS = (".html", ".htm")
_TABLE_ROWS = 8  # at most, of what a chart shows in full


@dataclass(frozen=True)
class Target:
    """Where a report goes: the page's file, and beside it the facts' file.

    A name that is no page's, or that would replace something else than a report, is refused.
    """

    page: Path

    def __post_init__(self) -> None:
        if self.page.suffix.lower() not in _ENDINGS:
            raise ValueError(f"--out must end in {' or '.join(_ENDINGS)}, got {str(self.page)!r}")
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
        """The same facts as JSON."""
        return self.page.with_suffix(".json")

    def write(self, facts: Facts) -> None:
        """Write both files; the facts come first, so that no page is without them."""
        page = render(facts).encode()
        data = (json.dumps(facts, indent=1, allow_nan=False) + "\n").encode()
        mode = durable.PRIVATE if facts["internal"] else durable.SHARED
        durable.write_whole(self.facts, data, mode=mode)
        durable.write_whole(self.page, page, mode=mode)


def _is_report(path: Path) -> bool:
    """Whether a file holds the facts of a report, so that another report may replace it."""
    try:
        return read_json(path, dict[str, Any]).get("kind") == KIND
    except (ValueError, OSError):
        return False


def render(facts: Facts) -> str:
    """The whole page as HTML: a function of the facts alone, so that it can be made again."""
    template = _environment().get_template(report_on(facts["task"]).template)
    return template.render(**facts, charts=_draw(facts))


def _draw(facts: Facts) -> dict[str, Facts]:
    """All charts by name; one that has nothing to show is left out."""
    task = report_on(facts["task"])
    charts = {"epsilon": epsilon_chart(facts["epsilon"]), **task.charts(facts)}
    return {name: chart for name, chart in charts.items() if chart is not None}


@functools.cache
def _environment() -> Environment:
    """The templates of this folder, and how they write numbers."""
    environment = Environment(
        loader=PackageLoader("tacit.report", "."),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,  # a fact that is missing is a mistake and no empty cell
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "epsilon": lambda value: format_epsilon(math.inf if value is None else value),
        "delta": format_delta,
        "number": lambda value: "-" if value is None else format_number(value),
        "figure": _figure,
        "tenths": lambda value: "-" if value is None else f"{value:.1f}",
        "percent": lambda value: "-" if value is None else f"{100 * value:.2f}%",
        "yes_no": lambda value: "yes" if value else "no",
        "ranges": _ranges,
        "some": _some,
        "short": short,
        "px": lambda value: f"{round(value, 1):g}",
    }
    return environment


def _shown(value: Any) -> Any:
    """What a template puts out: text with all of it visible, and what it has made as it is."""
    return visible(value, lines=True) if type(value) is str else value


def _figure(value: float | None) -> str:
    """Four digits, or all of a number that still reads well."""
    if value is None:
        return "-"
    if abs(value) < 9999.5:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3e}"


def _ranges(numbers: list[int]) -> str:
    """Numbers in words, with those that follow each other as one range: 3, 40 to 79."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if run[1:] else f"{run[0]}" for run in runs)


def _some(rows: Sequence[Any]) -> list[Any]:
    """As many of the rows as a table has room for, evenly, with the first and the last."""
    last, steps = len(rows) - 1, min(len(rows), _TABLE_ROWS) - 1
    return [rows[round(index * last / max(steps, 1))] for index in range(steps + 1)]

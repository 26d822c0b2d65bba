"""The table of docs/results/hostile.md, from the figures of a session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[3] / "docs" / "results" / "hostile.md"
_BEGIN, _END = "<!-- measured: begin -->", "<!-- measured: end -->"
_NAMES = {
    "damaged": "commands on damaged files",
    "lines": "command lines",
    "kills": "kill -9, and again",
    "parsers": "inputs of parsers, changed at random",
    "guided": "inputs of parsers, guided by coverage",
}


def write(figures: Path, page: Path = PAGE) -> None:
    """Put the figures between the marks of the page."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(_BEGIN)
    _, after = rest.split(_END)
    measured = table(json.loads(figures.read_text()))
    page.write_text(f"{before}{_BEGIN}\n\n{measured}\n{_END}{after}", encoding="utf-8")


def table(figures: dict[str, Any]) -> str:
    """A line for each kind of case, and the failures by cause."""
    minutes = figures["total_seconds"] / 60
    lines = [
        f"{minutes:.0f} minutes, seed {figures['seed']}.",
        "",
        "| what | cases | of kinds | seconds | slowest case | failures |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for kind, name in _NAMES.items():
        if kind in figures["cases"]:
            slowest = figures["slowest"].get(kind)
            lines.append(
                f"| {name} | {figures['cases'][kind]:,} | {len(figures['kinds'][kind])} |"
                f" {figures['seconds'][kind]:,.0f} |"
                f" {'' if slowest is None else f'{slowest:.1f} s'} |"
                f" {sum(figures['failures'].get(kind, {}).values()):,} |"
            )
    causes: dict[str, int] = {}
    for counts in figures["failures"].values():
        for cause, count in counts.items():
            causes[cause] = causes.get(cause, 0) + count
    if causes:
        lines += ["", "| failure | cases |", "|---|---:|"]
        for cause, count in sorted(causes.items(), key=lambda pair: -pair[1]):
            plain = cause.replace("|", "\\|").replace("<", "&lt;")
            lines.append(f"| {plain} | {count:,} |")
    return "\n".join(lines) + "\n"

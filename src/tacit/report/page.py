"""The page: facts and charts put into the template, with everything inline.

Guarantee: the page needs no network and runs no script.  Every text that is put into it is escaped,
since some of them come from a corpus.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tacit.privacy.claims import format_delta, format_epsilon, format_number
from tacit.report import charts, nlu_charts
from tacit.report.facts import LANGUAGE_MODEL
from tacit.report.nlu_facts import NLU_MODEL

TABLE_ROWS = 8  # of what a chart shows in full
WHOSE_TEXT = {
    "people": "people's, each with their own",
    "iid": "people's, mixed among made-up users: nobody is protected",
    "synthetic": "nobody's: it is made up",
}
PAYERS = {
    "same": "the same people: it is in the claim",
    "beside": "others of the same corpus: the larger epsilon is claimed for everybody",
    "elsewhere": "other people, whom the claim leaves out",
}


@dataclass(frozen=True)
class View:
    """How a kind of run is shown: a template that extends page.html, and its charts by name."""

    template: str
    draw: Callable[[Mapping[str, Any]], dict[str, Markup]]


VIEWS = {
    LANGUAGE_MODEL: View("language.html", charts.draw),
    NLU_MODEL: View("nlu.html", nlu_charts.draw),
}


def render(facts: Mapping[str, Any]) -> str:
    """The whole page as HTML."""
    view = VIEWS[facts["of"]]
    return (
        _environment()
        .get_template(view.template)
        .render(
            **facts,
            charts=view.draw(facts),
            whose=WHOSE_TEXT,
            payers=PAYERS,
            epsilon_rows=_some(_epsilon_rows(facts["epsilon"])),
            metric_rows=_some(facts["metrics"]),
        )
    )


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tacit.report", "."),
        autoescape=True,
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
        "perplexity_of": lambda metrics: charts.perplexity_of(metrics)[0],
    }
    return environment


def _figure(value: float | None) -> str:
    """Four digits, or all of a number that still reads well."""
    if value is None:
        return "-"
    if abs(value) < 9999.5:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3e}"


def _epsilon_rows(facts: Mapping[str, Any] | None) -> list[tuple[int, list[float | None]]]:
    """What the chart of epsilon shows, row by row."""
    if facts is None:
        return []
    columns = zip(*(curve["epsilon"] for curve in facts["curves"]), strict=True)
    return [(after, list(row)) for after, row in zip(facts["after"], columns, strict=True)]


def _some(rows: list[Any]) -> list[Any]:
    """At most so many of the rows, evenly, with the first and the last."""
    if len(rows) <= TABLE_ROWS:
        return rows
    last = len(rows) - 1
    return [rows[round(number * last / (TABLE_ROWS - 1))] for number in range(TABLE_ROWS)]

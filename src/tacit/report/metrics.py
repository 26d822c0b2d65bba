"""metrics.jsonl as a report has it: checked line by line, and thinned to what a page can show.

A chart is some 300 pixels wide, and a run may be measured a hundred thousand times.  What is left
out lies between points that are drawn: the curve has the same ends, peaks and dips.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from tacit.audit import results
from tacit.privacy import documents
from tacit.runs.directory import RunDirectory

MOST_ROWS = 1000  # of the metrics, in a report

_Row = TypeVar("_Row")


def read(kind: type[_Row], directory: RunDirectory) -> list[_Row]:
    """All rows as this dataclass; one that is damaged is refused in one sentence."""
    file = directory.metrics_file
    return [results.check(kind, row, file) for row in documents.each_line(file, dict[str, Any])]


def thinned(
    rows: Sequence[_Row],
    columns: Sequence[Callable[[_Row], float | None]],
    most: int = MOST_ROWS,
) -> list[_Row]:
    """At most so many of the rows, in order: all of them if they are no more than that.

    Kept are the first, the last, and of equally long stretches those with the least and the
    greatest value of each column, so of all rows, too.  A column gives a row's value in it.
    """
    if len(rows) <= most:
        return list(rows)
    edges = np.linspace(0, len(rows), (most - 2) // (2 * len(columns)) + 1).astype(int)
    kept = {0, len(rows) - 1}
    for column in columns:
        values = np.array(list(map(column, rows)), float)  # None becomes NaN
        for start, end in pairwise(edges.tolist()):
            stretch = values[start:end]
            if not np.isnan(stretch).all():
                kept |= {start + int(np.nanargmin(stretch)), start + int(np.nanargmax(stretch))}
    return [rows[index] for index in sorted(kept)]

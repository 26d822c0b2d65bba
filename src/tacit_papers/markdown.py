"""Tables as Markdown: how the papers' tables are kept in files.

A bar inside of a cell is escaped, so that names of users' files cannot break a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table whose first `left` columns are text, and whose other columns are numbers."""
    rule = ["---"] * left + ["---:"] * (len(headings) - left)
    return "\n".join(map(_line, [headings, rule, *rows]))


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |"

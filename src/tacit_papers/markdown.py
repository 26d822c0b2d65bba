"""Tables as Markdown: how the papers' tables are kept in files.

What a name of a user's file has in it is text in a cell, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tacit.privacy.visible import markdown


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table whose first `left` columns are text, and whose other columns are numbers."""
    rule = ["---"] * left + ["---:"] * (len(headings) - left)
    return "\n".join(map(_line, [headings, rule, *rows]))


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(map(markdown, texts))} |"

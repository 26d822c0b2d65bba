"""A terminal, or the log that stands for one, on which people's text does nothing but be read.

Guarantee: every text that is printed on it passes `visible`, and nothing in it is taken for rich's
markup or for an emoji code.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from tacit.privacy.visible import visible


class Terminal(Console):
    """rich's console for text as it is, in paragraphs and in the cells and titles of tables."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Where rich makes something to print of any text."""
        return super().render_str(visible(text, lines=True), **options)

"""Causes that are known and being mended: a part of a failure's words, and what will mend it.

A failure with such a part does not fail the usual tests.  The list is empty when all is well.
"""

from __future__ import annotations

KNOWN: dict[str, str] = {
    "RecursionError in": "our JSON and TOML is read in one place, which knows of deep nesting",
    "waits for over 20 seconds": "only regular files are read: a FIFO is refused",
    "OverflowError in": "main turns every exception into one sentence",
    "KeyError in": "results are read with schemas",
    "AttributeError in": "results are read with schemas",
    "TypeError in": "results are read with schemas",
    "after a kill of": "partial names are fixed, and what a killed command left is cleared",
    "a control character is printed": "people's text and names are escaped where they are printed",
}


def is_known(failure: str) -> bool:
    """Whether a failure's cause is in the list."""
    return any(part in failure for part in KNOWN)

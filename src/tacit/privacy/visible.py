r"""Text that somebody else wrote, as it may be shown: nothing in it acts, and all of it is seen.

A name in a recipe, a sentence of a corpus or a message that quotes a file may hold characters that
are no letters: escape sequences that a terminal obeys, overrides that turn around the words beside
them, line breaks that begin a line of their own, and marks that nobody sees.  They are shown as
Python spells them, such as \x1b or \u202e.

There is one way for each kind of output, and each is used where all output of that kind passes:

    terminal, log     `visible`, by `cli.output` and `runs.terminal`
    report            `visible`, then HTML's own escapes, by `report.page`
    card, table       `markdown`, by `runs.card` and `tacit_papers.markdown`
    picture           `visible`, and no mathematics, by `cli.plots`

JSON needs neither, since it spells such characters by itself.
"""

from __future__ import annotations

import re
import unicodedata

# Control characters; bidirectional and other invisible marks; ends of lines and of paragraphs;
# halves of characters, which have no bytes.
_UNSEEN = {"Cc", "Cf", "Zl", "Zp", "Cs"}

# What Markdown as GitHub reads it would make code, emphasis, a link, a cell, a formula, a tag, a
# character or an address of.  An underline inside of a word is one.
_ACTS_IN_MARKDOWN = re.compile(
    r"[\\`*\[\]|~$@]|(?<!\w)_|_(?!\w)|<(?=[A-Za-z/!?])|&(?=[#A-Za-z])|:(?=//)|(?<=www)\.", re.I
)


def visible(text: str, *, lines: bool = False) -> str:
    """The text with what cannot be seen spelled out; `lines` keeps line breaks and tabs."""
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(letter if letter in kept else _spelled(letter) for letter in text)


def _spelled(letter: str) -> str:
    """A character as it is shown: itself, if that can be seen."""
    if unicodedata.category(letter) not in _UNSEEN:
        return letter
    return letter.encode("unicode_escape").decode("ascii")


def markdown(text: str) -> str:
    """Markdown, in one line, that reads as the text."""
    return _ACTS_IN_MARKDOWN.sub(_escaped, visible(text))


def _escaped(sign: re.Match[str]) -> str:
    # Not all that read Markdown know a backslash before the two that HTML has words for.
    return {"<": "&lt;", "&": "&amp;"}.get(sign[0], f"\\{sign[0]}")


def one_line(name: str, text: str, most: int) -> str:
    """The text itself if it is one line of what can be seen, and not longer than `most`.

    Raises:
        ValueError: naming what it is the text of, for any other.
    """
    if len(text) > most:
        raise ValueError(f"{name} must have at most {most:,} characters, got {len(text):,}")
    if visible(text) != text:
        raise ValueError(
            f"{name} must be one line without control, bidirectional or invisible characters, got"
            f" {text[:200]!r}"
        )
    return text

"""Rows of tokenizers as a table: for a terminal, for scripts, for a file to keep.

The columns are those of Bagdasaryan et al. 2022, Tables 1 and 2; the notes say what they mean.
Perplexity and accuracy are per word, since tokens differ from tokenizer to tokenizer.  A dictionary
predicts UNK for what it does not have; its perplexity is marked, because it is of an easier task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from tacit.cli import output
from tacit.privacy.claims import PROJECTED, format_delta, format_epsilon
from tacit.runs.figures import UNK_COMPETES
from tacit.tokenizers.tokenizer import Kind
from tacit_papers.bagdasaryan2022.rows import TokenizerRow
from tacit_papers.markdown import markdown_table

HEADERS = (
    "Tokenizer",
    "Type",
    "Learnt from",
    "OOV %",
    "Tokens per word",
    "KLD",
    "Word acc. %",
    f"Word acc. % {UNK_COMPETES}",
    "Perp. per word",
    "Epsilon",
    "Projected epsilon",
)
_TYPES: dict[Kind, str] = {
    "word": "Word-level",
    "bpe": "BPE",
    "wordpiece": "WordPiece",
    "char": "Characters",
}


def gap_closed(rows: Sequence[TokenizerRow], worst: str, best: str) -> dict[str, float]:
    """(worst - x) / (worst - best) in perplexity per word, for each row x: 0 and 1 are those two.

    Rows that leave words out are left out: their perplexity is of an easier task.
    """
    complete = {
        row.name: row.perplexity_per_word
        for row in rows
        if row.perplexity_per_word is not None and not row.oov
    }
    for end in (worst, best):
        if not math.isfinite(complete.get(end, math.inf)):
            raise ValueError(
                f"there is no row {end!r} with a perplexity of all words, but"
                f" {', '.join(map(repr, complete)) or 'none at all'}"
            )
    gap = complete[worst] - complete[best]
    if not gap > 0:
        raise ValueError(
            f"there is no gap to close: {worst!r} has a perplexity per word of"
            f" {complete[worst]:.2f} and {best!r} one of {complete[best]:.2f}"
        )
    return {name: (complete[worst] - value) / gap for name, value in complete.items()}


def gap_note(rows: Sequence[TokenizerRow], worst: str, best: str) -> str:
    """The shares of the gap as a sentence, or why there are none."""
    try:
        shares = gap_closed(rows, worst, best)
    except ValueError as why:
        return f"Gap closed: {why}."
    between = [f"{name} {share:.0%}" for name, share in shares.items() if name not in (worst, best)]
    return (
        f"Share of the gap in perplexity per word, from {worst} to {best}, that is closed:"
        f" {', '.join(between) or 'there is no other row'}."
    )


def cells(row: TokenizerRow) -> list[str]:
    """A row as text, in the order of HEADERS."""
    return [
        row.name,
        _TYPES[row.kind],
        row.data,
        f"{100 * row.oov:.1f}",
        f"{row.tokens_per_word:.2f}",
        "-" if row.kld is None else f"{row.kld:.3f}",
        _share(row.word_accuracy),
        _share(row.word_accuracy_unk_competes),
        _perplexity(row),
        _actual(row),
        "-" if row.projected_epsilon is None else _at(row.projected_epsilon, row.projected_delta),
    ]


def table(rows: Sequence[TokenizerRow]) -> Table:
    """The figures for a terminal; `notes` say what they mean, `sources` where words are from.

    There is room for one word accuracy: the paper's.
    """
    shown = [header for header in _headers(rows) if header not in ("Learnt from", "Word acc. %")]
    by_header = [dict(zip(HEADERS, cells(row), strict=True)) for row in rows]
    figures = [[row[header] for header in shown] for row in by_header]
    numbers = [f">{header}" for header in shown[2:]]
    return output.table(*shown[:2], *numbers, rows=figures, compact=True)


def sources(rows: Sequence[TokenizerRow]) -> Table:
    """What each tokenizer was learnt from: too long to stand beside the figures."""
    texts = [(row.name, row.data) for row in rows]
    return output.table(HEADERS[0], HEADERS[2], rows=texts, compact=True)


def as_json(rows: Sequence[TokenizerRow]) -> list[dict[str, Any]]:
    """The rows for scripts; what is not a number is null."""
    return [
        {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in asdict(row).items()
        }
        for row in rows
    ]


def markdown(rows: Sequence[TokenizerRow], more: Sequence[str] = ()) -> str:
    """The table, what its figures mean, and what else is to be said: a file to keep."""
    headers = _headers(rows)
    texts = [cells(row)[: len(headers)] for row in rows]
    return "\n\n".join([markdown_table(headers, texts, left=3), *notes(rows), *more]) + "\n"


def notes(rows: Sequence[TokenizerRow]) -> list[str]:
    """What the figures mean, and the whole claim behind each epsilon."""
    counts = sorted({row.words for row in rows})
    said = [
        f"Measured on {' or '.join(f'{count:,}' for count in counts)} words of test users, who are"
        " in no training on their corpus; a punctuation mark is a word, too.  A word is right if"
        " each of its tokens is the first choice in turn.  KLD: from the reference's words to those"
        " that the tokenizer was learnt from, in nats.",
    ]
    if any(row.has_model for row in rows):
        said.append(
            "If UNK competes, it may be a first choice and is a mistake: the paper's word accuracy."
            "  Otherwise the choices are the model's tokens without it.  A word with UNK in it is a"
            " mistake in both."
        )
        said.append(
            "Epsilon is user-level, of the whole run and of what its tokenizer cost, whichever of"
            " its rounds was measured."
        )
    if len(counts) > 1:
        said.append("The rows were not measured on the same words, so they do not compare.")
    if any(row.oov and row.has_model for row in rows):
        said.append(
            "* Predicts UNK for the words that it does not have, which is easier than to spell"
            " them: this perplexity compares with none of a tokenizer that has them all."
        )
    if _is_projected(rows):
        said.append(f"Projected epsilon: {PROJECTED}.")
    claims: dict[str, list[str]] = {}
    for row in rows:
        for claim in filter(None, (row.claim, row.projected_claim)):
            claims.setdefault(claim, []).append(row.name)
    return said + [f"{', '.join(names)}: {claim}" for claim, names in claims.items()]


def _headers(rows: Sequence[TokenizerRow]) -> Sequence[str]:
    """Without the last column where nothing is in it."""
    return HEADERS if _is_projected(rows) else HEADERS[:-1]


def _is_projected(rows: Sequence[TokenizerRow]) -> bool:
    return any(row.projected_epsilon is not None for row in rows)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def _perplexity(row: TokenizerRow) -> str:
    """With a star where words that the tokenizer does not have were predicted as UNK."""
    if row.perplexity_per_word is None:
        return "-"
    return f"{row.perplexity_per_word:,.1f}{'*' if row.oov else ''}"


def _actual(row: TokenizerRow) -> str:
    """The epsilon of the run; users of a synthetic view are not people, so they have no claim."""
    if not row.has_model:
        return "-"
    if row.synthetic_users:
        return "no claim"
    return "unknown" if row.delta is None else _at(row.epsilon, row.delta)


def _at(epsilon: float | None, delta: float | None) -> str:
    if epsilon is None or delta is None:
        return "infinity"
    return f"{format_epsilon(epsilon)} at {format_delta(delta)}"

"""What is declared to be public must not be the people's own text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tacit.corpus import installation, people
from tacit.corpus.files import sha256_of
from tacit.corpus.lines import LineSketch, count_found
from tacit.corpus.source import UserCorpus
from tacit.corpus.store import Corpus

MOST_SHARED = 0.01  # of the corpus's lines that are looked for
LEAST_SHARED = 3  # lines: fewer may be a coincidence, however small the corpus is


def refuse_private(name: str, path: Path | None, lines: Iterable[str], corpus: UserCorpus) -> None:
    """Raise if a "public" text is a file that the corpus's people's text came in, or has it in it.

    It has, if more than 1% of the lines sampled from the corpus, and at least 3, are among its
    lines; only lines of at least five words are looked for.  A generated corpus is nobody's text,
    and everything passes.
    """
    if not isinstance(corpus, Corpus) or not corpus.about_people:
        return
    if path is not None and sha256_of(path) in corpus.input_digests | people.known_inputs(
        corpus.identity
    ):
        raise ValueError(
            f"{name} cannot be declared public: {str(path)!r} is a file that was ingested as these"
            " people's text"
        )
    samples = [(corpus.line_sketch(), corpus.line_key)]
    everything = people.known_lines(corpus.identity)
    if len(everything):
        samples.append((everything, installation.secret()))
    _refuse_lines(name, samples, lines, "the corpus's own texts")


def refuse_known(name: str, path: Path, lines: Iterable[str]) -> None:
    """The same for text of anybody whose text was ever ingested here, where no corpus is named."""
    inputs, sketches = people.everybody_known()
    if sha256_of(path) in inputs:
        raise ValueError(
            f"{name} cannot be declared public: {str(path)!r} is a file that was ingested as"
            " people's text"
        )
    samples = [(sketch, installation.secret()) for sketch in sketches]
    _refuse_lines(name, samples, lines, "people's texts that were ingested here")


def _refuse_lines(
    name: str, samples: list[tuple[LineSketch, bytes]], lines: Iterable[str], whose: str
) -> None:
    for (sample, _), found in zip(samples, count_found(samples, lines), strict=True):
        if found >= LEAST_SHARED and found > MOST_SHARED * len(sample):
            raise ValueError(
                f"{name} cannot be declared public: {found:,} of {len(sample):,} lines looked for"
                f" from {whose} are in it (at most {MOST_SHARED:.0%} may be)"
            )


def refuse_private_origin(name: str, origin: str, corpus: UserCorpus) -> None:
    """Raise if what something was learnt from, by its digest in `origin`, is the people's text."""
    if not isinstance(corpus, Corpus) or not corpus.about_people:
        return
    for digest in corpus.input_digests | people.known_inputs(corpus.identity):
        if digest[:16] in origin:
            raise ValueError(
                f"{name} cannot be declared public: it was learnt from a file that was ingested as"
                " these people's text"
            )

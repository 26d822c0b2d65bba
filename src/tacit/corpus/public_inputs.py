"""What is declared to be public must not be the people's own text.

A tokenizer or a starting model may be learnt from public text without any cost to the people of a
corpus.  These checks refuse such a declaration where the "public" text is a file that was ingested,
or has the people's lines in it.  They catch mistakes; they cannot prove that a text is public.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tacit.corpus import people
from tacit.corpus.files import sha256_of
from tacit.corpus.sketches import LineSketch, count_found
from tacit.corpus.source import UserCorpus
from tacit.corpus.store import Corpus

MOST_SHARED = 0.01  # of the corpus's lines that are looked for
LEAST_SHARED = 3  # lines: fewer may be a coincidence, however small the corpus is


def refuse_private(name: str, path: Path | None, lines: Iterable[str], corpus: UserCorpus) -> None:
    """Raise if a "public" text is a file that the corpus's people's text came in, or has it in it.

    The text has it if more than 1% of the lines sampled from the corpus, and at least 3, are among
    its lines; only lines of at least five words are looked for.  A generated corpus is about no
    people, and everything passes.
    """
    if not isinstance(corpus, Corpus) or not corpus.about_people:
        return
    if path is not None and sha256_of(path) in _inputs_of(corpus):
        raise ValueError(
            f"{name} cannot be declared public: {str(path)!r} is a file that was ingested as these"
            " people's text"
        )
    samples = [(corpus.line_sketch(), corpus.line_key)]
    if group := people.known_group(corpus.identity):
        samples.append((group.lines, people.secret()))
    _refuse_lines(name, samples, lines, "the corpus's own texts")


def refuse_known(name: str, path: Path, lines: Iterable[str]) -> None:
    """The same where no corpus is named: all text counts that was ever ingested here."""
    groups = people.known_groups()
    if sha256_of(path) in {digest for group in groups for digest in group.inputs}:
        raise ValueError(
            f"{name} cannot be declared public: {str(path)!r} is a file that was ingested as"
            " people's text"
        )
    samples = [(group.lines, people.secret()) for group in groups]
    _refuse_lines(name, samples, lines, "people's texts that were ingested here")


def refuse_private_origin(name: str, origin: str, corpus: UserCorpus) -> None:
    """Raise if `origin`, which names digests of what something was learnt from, names a file that
    the corpus's people's text came in.
    """
    if not isinstance(corpus, Corpus) or not corpus.about_people:
        return
    if any(digest[:16] in origin for digest in _inputs_of(corpus)):
        raise ValueError(
            f"{name} cannot be declared public: it was learnt from a file that was ingested as"
            " these people's text"
        )


def _inputs_of(corpus: Corpus) -> set[str]:
    """The SHA-256 of all files that text of a corpus's people came in, as far as is known here.

    These are the files of this corpus and of every other one of the same people.
    """
    group = people.known_group(corpus.identity)
    return {*corpus.input_digests, *(group.inputs if group else ())}


def _refuse_lines(
    name: str, samples: Sequence[tuple[LineSketch, bytes]], lines: Iterable[str], whose: str
) -> None:
    samples = [(sketch, key) for sketch, key in samples if len(sketch)]
    for (sketch, _), count in zip(samples, count_found(samples, lines), strict=True):
        if count >= LEAST_SHARED and count > MOST_SHARED * len(sketch):
            raise ValueError(
                f"{name} cannot be declared public: {count:,} of {len(sketch):,} lines looked for"
                f" from {whose} are in it (at most {MOST_SHARED:.0%} may be)"
            )

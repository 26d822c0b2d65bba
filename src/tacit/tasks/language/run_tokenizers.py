"""The tokenizers of a run directory: one, or more if the experiment switches them.

    tokenizer.json            the current one
    tokenizer.ledger.jsonl    what it has cost, if it was learnt from people's text
    tokenizers/first/         the one the run began with, where it is to be switched
    tokenizers/round-000060/  the one from that round on, with the words that it was learnt from

Whenever a switch is interrupted, each of them is in one place at least: a checkpoint names its
tokenizer by fingerprint, and is looked up in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tacit.privacy import durable
from tacit.tokenizers.history import (
    OF_A_RUN,
    WORDS,
    History,
    LearntTokenizer,
    read_words,
    write_words,
)
from tacit.tokenizers.tokenizer import FILE_NAME, Tokenizer

PREFIX = OF_A_RUN


def begin(folder: Path, learnt: LearntTokenizer, *, switches: bool) -> None:
    """Write the first tokenizer of a run, with what is known of it."""
    learnt.tokenizer.save(folder / FILE_NAME)
    if learnt.words is not None:
        write_words(folder / f"{PREFIX}{WORDS}", learnt.words)
    if learnt.history is not None:
        learnt.history.write(folder, PREFIX)
    if switches:
        LearntTokenizer(learnt.tokenizer).save(_others(folder) / "first")


def learnt(folder: Path, fingerprint: str) -> LearntTokenizer:
    """The tokenizer that a checkpoint was made with, and all that is known of it."""
    words = words_behind(folder, fingerprint)
    return LearntTokenizer(by_fingerprint(folder, fingerprint), words, history(folder))


def history(folder: Path) -> History | None:
    """What the tokenizer that the run began with has cost; None if it was a public one."""
    return History.read(folder, PREFIX)


def by_fingerprint(folder: Path, fingerprint: str) -> Tokenizer:
    """The tokenizer that a checkpoint was made with."""
    current = Tokenizer.load(folder / FILE_NAME)
    if current.fingerprint == fingerprint:
        return current
    for kept in sorted(_others(folder).glob("[!.]*")):
        if (other := Tokenizer.load(kept)).fingerprint == fingerprint:
            return other
    raise ValueError(
        f"{(folder / FILE_NAME)} is not the tokenizer that the run was trained with"
        f" (fingerprint {current.fingerprint[:12]}, not {fingerprint[:12]})"
    )


def learnt_for(folder: Path, round: int) -> LearntTokenizer | None:
    """The tokenizer of a switch before a round; None if it was not learnt yet."""
    kept = _of_round(folder, round)
    return LearntTokenizer.load(kept) if kept.is_dir() else None


def keep(folder: Path, learnt: LearntTokenizer, round: int) -> None:
    """Keep the tokenizer of a switch before a round."""
    learnt.save(_of_round(folder, round))


def use(folder: Path, tokenizer: Tokenizer) -> None:
    """Let tokenizer.json be this one, which is kept elsewhere too."""
    data = tokenizer.to_json().encode()
    if (folder / FILE_NAME).read_bytes() != data:
        durable.write_whole((folder / FILE_NAME), data)


def words_behind(folder: Path, fingerprint: str) -> Mapping[str, float] | None:
    """How often each word was in the text that a tokenizer was learnt from, if that is known."""
    for kept in _others(folder).glob("round-*"):
        if Tokenizer.load(kept).fingerprint == fingerprint:
            return read_words(kept / WORDS)
    return read_words(folder / f"{PREFIX}{WORDS}")


def _others(folder: Path) -> Path:
    return folder / "tokenizers"


def _of_round(folder: Path, round: int) -> Path:
    return _others(folder) / f"round-{round:06d}"

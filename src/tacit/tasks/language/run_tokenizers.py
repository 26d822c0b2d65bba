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

from tacit.privacy import durable as files
from tacit.runs.directory import RunDirectory
from tacit.tokenizers.folder import (
    OF_A_RUN,
    WORDS,
    History,
    LearntTokenizer,
    read_words,
    write_words,
)
from tacit.tokenizers.tokenizer import Tokenizer

PREFIX = OF_A_RUN


def begin(directory: RunDirectory, learnt: LearntTokenizer, *, switches: bool) -> None:
    """Write the first tokenizer of a run, with what is known of it."""
    learnt.tokenizer.save(directory.tokenizer_file)
    if learnt.words is not None:
        write_words(directory.path / f"{PREFIX}{WORDS}", learnt.words)
    if learnt.history is not None:
        learnt.history.write(directory.path, PREFIX)
    if switches:
        LearntTokenizer(learnt.tokenizer).save(_folder(directory) / "first")


def history(directory: RunDirectory) -> History | None:
    """What the tokenizer that the run began with has cost; None if it was a public one."""
    return History.read(directory.path, PREFIX)


def by_fingerprint(directory: RunDirectory, fingerprint: str) -> Tokenizer:
    """The tokenizer that a checkpoint was made with."""
    current = Tokenizer.load(directory.tokenizer_file)
    if current.fingerprint == fingerprint:
        return current
    for folder in sorted(_folder(directory).glob("[!.]*")):
        if (other := Tokenizer.load(folder)).fingerprint == fingerprint:
            return other
    raise ValueError(
        f"{directory.tokenizer_file} is not the tokenizer that the run was trained with"
        f" (fingerprint {current.fingerprint[:12]}, not {fingerprint[:12]})"
    )


def learnt_for(directory: RunDirectory, round: int) -> LearntTokenizer | None:
    """The tokenizer of a switch before a round; None if it was not learnt yet."""
    folder = _of_round(directory, round)
    return LearntTokenizer.load(folder) if folder.is_dir() else None


def keep(directory: RunDirectory, learnt: LearntTokenizer, round: int) -> None:
    """Keep the tokenizer of a switch before a round."""
    learnt.save(_of_round(directory, round))


def use(directory: RunDirectory, tokenizer: Tokenizer) -> None:
    """Let tokenizer.json be this one, which is kept elsewhere too."""
    data = tokenizer.to_json().encode()
    if directory.tokenizer_file.read_bytes() != data:
        files.replace(directory.tokenizer_file, data)


def words_behind(directory: RunDirectory, fingerprint: str) -> Mapping[str, float] | None:
    """How often each word was in the text that a tokenizer was learnt from, if that is known."""
    for folder in _folder(directory).glob("round-*"):
        if Tokenizer.load(folder).fingerprint == fingerprint:
            return read_words(folder / WORDS)
    return read_words(directory.path / f"{PREFIX}{WORDS}")


def _folder(directory: RunDirectory) -> Path:
    return directory.path / "tokenizers"


def _of_round(directory: RunDirectory, round: int) -> Path:
    return _folder(directory) / f"round-{round:06d}"

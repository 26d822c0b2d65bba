"""A tokenizer with its history: what it was learnt from, and what that cost the people whose it is.

    tokenizer.json  the tokenizer, as any HuggingFace user can load it
    words.tsv.gz    how often each word was in the text it was learnt from
    origin.json     whose text it tells about, directly or through a model
    ledger.jsonl    every release that it was computed from

The last two are there only for a tokenizer that was learnt from people's text under differential
privacy.  Without them nobody could say what a model that uses it may claim, so training refuses it.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.privacy import durable
from tacit.privacy.ledger import Head, Ledger
from tacit.tokenizers.build import most_frequent
from tacit.tokenizers.tokenizer import FILE_NAME, Tokenizer

ORIGIN, LEDGER, WORDS = "origin.json", "ledger.jsonl", "words.tsv.gz"


@dataclass(frozen=True)
class Origin:
    """Whose text a tokenizer tells about."""

    how: str  # in words
    tokenizer: str  # its fingerprint
    corpus: str  # the identity of the corpus's people
    split: str  # by which identity of the corpus its users are cut into parts
    part: str  # which part of its users, such as "1/2"; "" for all
    head: Head  # of the ledger that says what was released
    excluded: tuple[str, ...] = ()  # whom else it tells about, as a claim says it

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"head": self.head.to_json(), "excluded": list(self.excluded)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Origin:
        read = {"head": Head.from_json(data["head"]), "excluded": tuple(data["excluded"])}
        return cls(**{**data, **read})


@dataclass(frozen=True)
class History:
    """Whose text a tokenizer tells about, and every release that it was computed from."""

    origin: Origin
    ledger: Ledger

    @property
    def is_private(self) -> bool:
        return self.ledger.composition().is_private

    def write(self, folder: Path, prefix: str = "") -> None:
        """Both files; of the ledger as much as the tokenizer was learnt from."""
        text = json.dumps(self.origin.to_json(), indent=1) + "\n"
        durable.create(folder / f"{prefix}{ORIGIN}", text.encode(), mode=0o644)
        lines = self.ledger.path.read_bytes().split(b"\n")[: 1 + self.origin.head.entries]
        data = b"".join(line + b"\n" for line in lines)
        durable.create(folder / f"{prefix}{LEDGER}", data, mode=0o644)

    @classmethod
    def read(cls, folder: Path, prefix: str = "") -> History | None:
        """What `write` wrote, or None if there is nothing; damage is refused."""
        file = folder / f"{prefix}{ORIGIN}"
        if not file.is_file():
            return None
        try:
            origin = Origin.from_json(json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file} is damaged: {error}") from None
        return cls(origin, Ledger.read(folder / f"{prefix}{LEDGER}", origin.head))


@dataclass(frozen=True)
class LearntTokenizer:
    """A tokenizer and, where they are known, the words behind it and its history."""

    tokenizer: Tokenizer
    words: Mapping[str, float] | None = None
    history: History | None = None

    @property
    def needs_history(self) -> bool:
        """Whether what it cost has to be known before anything is claimed."""
        return self.tokenizer.provenance.startswith(("private: ", "post-processing: "))

    @property
    def why_void(self) -> str | None:
        """Why no guarantee holds for a model that uses it, or None if one may."""
        if self.history is not None and not self.history.is_private:
            return f"it was learnt without noise ({self.history.origin.how})"
        return self.tokenizer.why_void

    def save(self, folder: str | Path) -> Path:
        """Write the folder, whole or not at all; one that exists is refused."""
        folder = Path(folder)
        if folder.exists():
            raise ValueError(f"{folder} exists already; name a new folder for the tokenizer")
        partial = durable.partial_of(folder)
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            self.tokenizer.save(partial / FILE_NAME)
            if self.words is not None:
                write_words(partial / WORDS, self.words)
            if self.history is not None:
                self.history.write(partial)
            os.rename(partial, folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        durable.sync_directory(folder.parent)
        return folder

    @classmethod
    def load(cls, path: str | Path) -> LearntTokenizer:
        """From its folder, or from tokenizer.json in it; a history of another one is refused."""
        path = Path(path)
        folder, tokenizer = path if path.is_dir() else path.parent, Tokenizer.load(path)
        history = History.read(folder)
        if history is not None and history.origin.tokenizer != tokenizer.fingerprint:
            raise ValueError(f"{folder / ORIGIN} is about another tokenizer than the one beside it")
        return cls(tokenizer, read_words(folder / WORDS), history)


def write_words(path: Path, words: Mapping[str, float]) -> None:
    """Words with their counts, the most frequent first; the same ones make the same bytes."""
    lines = [f"{word}\t{words[word]:g}\n" for word in most_frequent(words)]
    durable.create(path, gzip.compress("".join(lines).encode(), mtime=0), mode=0o644)


def read_words(path: Path) -> dict[str, float] | None:
    """The counts of words.tsv.gz; None without the file."""
    if not path.is_file():
        return None
    try:
        # A word may hold any character but white space, and Python knows more ends of lines.
        lines = gzip.decompress(path.read_bytes()).decode().removesuffix("\n").split("\n")
        return {word: float(count) for word, count in (line.split("\t") for line in lines if line)}
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None

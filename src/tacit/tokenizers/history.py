"""A tokenizer with its history: what it was learnt from, and what that cost the people whose it is.

    tokenizer.json  the tokenizer, as any HuggingFace user can load it
    words.tsv.gz    how often each word was in the text it was learnt from
    ledger.jsonl    every release that it was computed from; the last entry names the tokenizer

The ledger is there only for a tokenizer that was learnt from people's text under differential
privacy.  Without it nobody could say what a model that uses it may claim, so training refuses it.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tacit.corpus.files import opened
from tacit.privacy import durable
from tacit.privacy.events import PostProcessing
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Charge, Head, Header, LedgerError
from tacit.tokenizers.build import most_frequent
from tacit.tokenizers.tokenizer import FILE_NAME, Tokenizer

LEDGER, WORDS = "ledger.jsonl", "words.tsv.gz"
OF_A_RUN = "tokenizer."  # what the files of a tokenizer begin with where a model is beside it
TOKENIZER = "tokenizer"  # the kind of a ledger's entry about one


@dataclass(frozen=True)
class History:
    """Every release that a tokenizer was computed from, in a ledger that ends with the tokenizer.

    Whose text it tells about is in the ledger's header; how it was learnt is in the last entry.
    """

    data: bytes
    ledger: Ledger

    @classmethod
    def of(
        cls, released: Ledger, head: Head, tokenizer: Tokenizer, how: str, round: int = 0
    ) -> History:
        """The releases up to a head, closed by an entry for the tokenizer learnt from them."""
        lines = released.path.read_bytes().split(b"\n")[: 1 + head.entries]
        data = b"".join(line + b"\n" for line in lines)
        ledger = Ledger(released.path, data, head)
        learnt = Charge(TOKENIZER, round, 0, PostProcessing(how), tokenizer.fingerprint)
        return cls.of_bytes(data + ledger.line_of(learnt), released.path)

    @classmethod
    def of_bytes(cls, data: bytes, path: Path) -> History:
        """A history from its ledger's bytes; one that names no tokenizer is refused."""
        ledger = Ledger(path, data)
        last = ledger.entries[-1] if ledger.entries else None
        if last is None or last.kind != TOKENIZER or not isinstance(last.event, PostProcessing):
            raise LedgerError(f"{path} does not end with the tokenizer that it is about")
        return cls(data, ledger)

    @property
    def header(self) -> Header:
        return self.ledger.header

    @property
    def how(self) -> str:
        """How the tokenizer was learnt, in words."""
        event = self.ledger.entries[-1].event
        assert isinstance(event, PostProcessing)
        return event.reason

    @property
    def tokenizer(self) -> str:
        """The tokenizer's fingerprint."""
        return self.ledger.entries[-1].plan_hash

    @property
    def released(self) -> Head:
        """The head before the tokenizer's own entry: where the ledger of those releases was."""
        return Head(len(self.ledger.entries) - 1, self.ledger.hashes[-2])

    @property
    def is_private(self) -> bool:
        return self.ledger.composition().is_private

    @classmethod
    def read(cls, folder: Path, prefix: str = "") -> History | None:
        """The history in a folder, or None if there is none; damage is refused."""
        file = folder / f"{prefix}{LEDGER}"
        return cls.of_bytes(file.read_bytes(), file) if file.is_file() else None


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
            return f"it was learnt without noise ({self.history.how})"
        return self.tokenizer.why_void

    def save(self, folder: str | Path) -> Path:
        """Write the folder, whole or not at all; one that exists is refused."""
        folder = Path(folder)
        if folder.exists():
            raise ValueError(f"{folder} exists already; name a new folder for the tokenizer")
        durable.make_folder(folder.parent, mode=durable.SHARED_FOLDER)
        with durable.whole_folder(folder) as partial:
            self.write(partial)
        return folder

    def write(self, folder: Path, prefix: str = "") -> None:
        """Write its files into a folder; the names of all but tokenizer.json get the prefix."""
        self.tokenizer.save(folder / FILE_NAME)
        if self.words is not None:
            _write_words(folder / f"{prefix}{WORDS}", self.words)
        if self.history is not None:
            durable.write_whole(folder / f"{prefix}{LEDGER}", self.history.data, new=True)

    @classmethod
    def load(cls, path: str | Path) -> LearntTokenizer:
        """From its folder, or from tokenizer.json in it; a history of another one is refused."""
        path = Path(path)
        folder, tokenizer = path if path.is_dir() else path.parent, Tokenizer.load(path)
        history = None
        if cls(tokenizer).needs_history:  # in a run or a bundle it has a name of its own
            is_named = (folder / f"{OF_A_RUN}{LEDGER}").is_file()
            history = History.read(folder, OF_A_RUN if is_named else "")
        if history is not None and history.tokenizer != tokenizer.fingerprint:
            raise ValueError(f"{folder / LEDGER} is about another tokenizer than the one beside it")
        return cls(tokenizer, read_words(folder / WORDS), history)


def _write_words(path: Path, words: Mapping[str, float]) -> None:
    """Words with their counts, the most frequent first; the same ones make the same bytes."""
    lines = [f"{word}\t{words[word]:g}\n" for word in most_frequent(words)]
    durable.write_whole(path, gzip.compress("".join(lines).encode(), mtime=0), new=True)


def read_words(path: Path) -> dict[str, float] | None:
    """The counts of words.tsv.gz; None without the file."""
    if not path.is_file():
        return None
    with opened(path) as file:
        data = file.data.read()
    try:
        # A word may hold any character but white space, and Python knows more ends of lines.
        lines = data.decode().removesuffix("\n").split("\n")
        return {word: float(count) for word, count in (line.split("\t") for line in lines if line)}
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None

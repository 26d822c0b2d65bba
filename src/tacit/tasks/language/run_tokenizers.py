"""The tokenizers of a run: the one it has, and those it had before a switch or will have after one.

    tokenizer.json            the current one
    tokenizer.ledger.jsonl    what it has cost, if it was learnt from people's text
    tokenizers/first/         the one the run began with, where it is to be switched
    tokenizers/round-000060/  the one from that round on, with the words that it was learnt from

A checkpoint names its tokenizer by fingerprint, which is looked up in all of these, so an
interrupted switch loses none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tacit.privacy import durable
from tacit.tokenizers.history import (
    OF_A_RUN,
    WORDS,
    History,
    LearntTokenizer,
    read_words,
)
from tacit.tokenizers.tokenizer import FILE_NAME, Tokenizer


@dataclass(frozen=True)
class RunTokenizers:
    """The tokenizers in the folder of a run."""

    folder: Path

    def begin(self, learnt: LearntTokenizer, *, switches: bool) -> None:
        """Write the first tokenizer of a run, with what is known of it."""
        learnt.write(self.folder, OF_A_RUN)
        if switches:
            LearntTokenizer(learnt.tokenizer).save(self._others / "first")

    def learnt(self, fingerprint: str) -> LearntTokenizer:
        """The tokenizer that a checkpoint was made with, and all that is known of it."""
        words = self.words_behind(fingerprint)
        return LearntTokenizer(self.by_fingerprint(fingerprint), words, self.history)

    @property
    def history(self) -> History | None:
        """What the tokenizer that the run began with has cost; None if it was a public one."""
        return History.read(self.folder, OF_A_RUN)

    def by_fingerprint(self, fingerprint: str) -> Tokenizer:
        """The tokenizer that a checkpoint was made with."""
        file = self.folder / FILE_NAME
        current = Tokenizer.load(file)
        if current.fingerprint == fingerprint:
            return current
        for kept in sorted(self._others.glob("[!.]*")):
            if (other := Tokenizer.load(kept)).fingerprint == fingerprint:
                return other
        raise ValueError(
            f"{file} is not the tokenizer that the run was trained with"
            f" (fingerprint {current.fingerprint[:12]}, not {fingerprint[:12]})"
        )

    def words_behind(self, fingerprint: str) -> Mapping[str, float] | None:
        """How often each word was in the text that a tokenizer was learnt from, if it is known."""
        for kept in self._others.glob("round-*"):
            if Tokenizer.load(kept).fingerprint == fingerprint:
                return read_words(kept / WORDS)
        return read_words(self.folder / f"{OF_A_RUN}{WORDS}")

    def learnt_for(self, round: int) -> LearntTokenizer | None:
        """The tokenizer of a switch before a round; None if it was not learnt yet."""
        kept = self._of_round(round)
        durable.clear_beside(kept)
        return LearntTokenizer.load(kept) if kept.is_dir() else None

    def keep(self, learnt: LearntTokenizer, round: int) -> None:
        """Keep the tokenizer of a switch before a round."""
        learnt.save(self._of_round(round))

    def use(self, tokenizer: Tokenizer) -> None:
        """Let tokenizer.json be this one, which is kept elsewhere too."""
        data = tokenizer.to_json().encode()
        if (self.folder / FILE_NAME).read_bytes() != data:
            durable.write_whole(self.folder / FILE_NAME, data)

    @property
    def _others(self) -> Path:
        return self.folder / "tokenizers"

    def _of_round(self, round: int) -> Path:
        return self._others / f"round-{round:06d}"

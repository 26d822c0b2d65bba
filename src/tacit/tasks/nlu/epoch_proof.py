"""What is on record of an attempt at an epoch: what it began with, and what came out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class EpochProof:
    """Two HMACs in hexadecimal, in one line of `private/releases.jsonl`.

    `beginning` is over plan, weights and utterances, and is on the disk before the ledger's entries
    of the epoch.  `outcome` is over the digests of all of its steps, and is on the disk before its
    checkpoint, with which the epoch leaves the process.
    """

    beginning: str
    outcome: str | None = None

    @classmethod
    def read(cls, text: str) -> Self:
        beginning, _, outcome = text.partition(" ")
        return cls(beginning, outcome or None)

    def __str__(self) -> str:
        return self.beginning if self.outcome is None else f"{self.beginning} {self.outcome}"

    def contradicts(self, outcome: str) -> bool:
        """Whether the same attempt has had another outcome, which may have been seen."""
        return self.outcome not in (None, outcome)

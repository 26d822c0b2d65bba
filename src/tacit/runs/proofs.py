"""What each release was made from: an HMAC per (leg, attempt), in the run's private folder.

Guarantee (design rule 6): noise is drawn again for an attempt only if sum, plan and model are those
it was first drawn for.  The proof is on the disk before the ledger's entry, and that before the
noise.  So an entry without a matching proof means that something changed, and the leg needs a new
attempt; a proof without an entry means that no noise was drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tacit.privacy import durable


@dataclass(frozen=True)
class LegProof:
    """Two HMACs in hexadecimal.

    `beginning` is over all that a leg's releases are made from, and is on the disk before they are
    charged.  `outcome` is over what came out of a leg of several steps, and is on the disk before
    its checkpoint, with which the leg leaves the process; a round has none, since its outcome
    follows from its beginning.
    """

    beginning: str = ""
    outcome: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """The proof of a line's field `hmac`."""
        beginning, _, outcome = text.partition(" ")
        return cls(beginning, outcome or None)

    def __str__(self) -> str:
        return self.beginning if self.outcome is None else f"{self.beginning} {self.outcome}"


class Proofs:
    """The file of proofs, `private/releases.jsonl`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._proofs = {
            (row["leg"], row["attempt"]): LegProof.parse(row["hmac"])
            for row in durable.read_lines(path)
        }

    def read(self, leg: int, attempt: int) -> LegProof:
        """The proof that was recorded last for an attempt; an empty one if there is none."""
        return self._proofs.get((leg, attempt), LegProof())

    def record(self, leg: int, attempt: int, proof: LegProof) -> None:
        """Remember what is about to be released; synced when it returns."""
        if self._proofs.get((leg, attempt)) != proof:
            row = {"leg": leg, "attempt": attempt, "hmac": str(proof)}
            durable.append_line(self.path, row, mode=0o600)
            self._proofs[leg, attempt] = proof

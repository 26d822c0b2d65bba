"""What each release was made from: an HMAC per (round, attempt), in the run's private folder.

Guarantee (design rule 6): noise is drawn again for an attempt only if the sum, the plan and the
model are those it was first drawn for.  The HMAC is on the disk before the ledger's entry, and
that before the noise.  So an entry without a matching HMAC means that something changed, and the
round needs a new attempt; an HMAC without an entry means that no noise was drawn.
"""

from __future__ import annotations

from pathlib import Path

from tacit.privacy import durable


class Releases:
    """The file of HMACs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        durable.keep_lines(path)  # a torn line is from before its ledger entry
        self._proofs = {
            (row["round"], row["attempt"]): str(row["hmac"]) for row in durable.read_lines(path)
        }

    def proof(self, round: int, attempt: int) -> str | None:
        """The HMAC that was recorded last for an attempt."""
        return self._proofs.get((round, attempt))

    def record(self, round: int, attempt: int, proof: str) -> None:
        """Remember what is about to be released."""
        if self._proofs.get((round, attempt)) == proof:
            return
        row = {"round": round, "attempt": attempt, "hmac": proof}
        durable.append_line(self.path, row, mode=0o600)
        self._proofs[round, attempt] = proof

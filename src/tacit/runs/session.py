"""A run while it is being trained: what is charged, recorded and kept, and in which files.

What has to happen in which order (design rule 6) is in `train.step`; how a leg is computed is the
task's `Trainer`.  Between the two, a session decides whether noise may be drawn:

    prepare   the trainer computes what the leg's releases are made from, and a proof of it
    charge    proof, people's ledger and run's ledger are synced, in this order, or nothing is drawn
    run       the trainer draws the noise, which is keyed by the proof, and takes its steps
    accept    the outcome is on record, and is the one on record if there was one
    save      a checkpoint, synced: the leg may be seen from now on

So a process may die anywhere.  Whatever is repeated is repeated with the same noise on the same
sum, or charged again with fresh noise: never the same noise on another sum.  `Proofs` are what this
rests on.  The proof of an attempt is on the disk before the ledger's entry, and that before the
noise: an entry without a matching proof means that something changed, and the leg needs a new
attempt; a proof without an entry means that no noise was drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from tacit.privacy import documents, durable
from tacit.privacy.accountants import accountant_named
from tacit.privacy.ledger import Ledger
from tacit.runs.checkpoints import Checkpoint
from tacit.runs.directory import RunDirectory
from tacit.tasks import AnyExperiment
from tacit.tasks.task import Pending, Row, Trainer, TrainingData


@dataclass(frozen=True)
class TrainingProgress:
    """What an observer is told, while a leg is computed and after it.

    `of` may be the realised size of a cohort, which is private: a screen may show a bar of it, and
    a log must not have it.
    """

    leg: int  # legs done
    legs: int
    done: int  # users of the cohort, or steps of the epoch, that are done
    of: int  # private if it is a cohort's size: for the operator's eyes only
    metrics: Row | None  # the last ones


Observer = Callable[[TrainingProgress], None]


class _Proof(TypedDict):
    """A line of `private/releases.jsonl`."""

    leg: int
    attempt: int
    hmac: str


class Proofs:
    """What each attempt at a leg was made from: `private/releases.jsonl`.

    Of each attempt there are two HMACs in hexadecimal.  The *beginning* is over all that the leg's
    releases are made from, and is on the disk before they are charged.  The *outcome* is over what
    came out of a leg of several steps, and is on the disk before its checkpoint, with which the leg
    leaves the process; a round has none, since its outcome follows from its beginning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        rows = documents.read_lines(path, _Proof)  # a torn line is from before its ledger entry
        self._hmacs = {(row["leg"], row["attempt"]): row["hmac"] for row in rows}

    def read(self, leg: int, attempt: int) -> tuple[str, str]:
        """Beginning and outcome as recorded last; empty if there is none."""
        beginning, _, outcome = self._hmacs.get((leg, attempt), "").partition(" ")
        return beginning, outcome

    def beginning(self, leg: int, attempt: int) -> bytes | None:
        """What an attempt was made from, as a proof; None if it is not on record."""
        return bytes.fromhex(self.read(leg, attempt)[0]) or None

    def record(self, leg: int, attempt: int, beginning: str, outcome: str = "") -> None:
        """Remember what is about to be released; synced when it returns."""
        hmac = f"{beginning} {outcome}".rstrip()
        if self._hmacs.get((leg, attempt)) != hmac:
            row = {"leg": leg, "attempt": attempt, "hmac": hmac}
            durable.append_line(self._path, row)
            self._hmacs[leg, attempt] = hmac


class Session:
    """One run, open for training.

    It holds the ledger's lock until `close`.  `renew` makes the trainer that goes on at a
    checkpoint: once at the beginning, and again where a trainer says that it ends (a language
    model's tokenizer is switched, so that model, users and engine are other ones).
    """

    def __init__(
        self,
        directory: RunDirectory,
        experiment: AnyExperiment,
        data: TrainingData,
        ledger: Ledger,
        renew: Callable[[Checkpoint], Trainer],
    ) -> None:
        last = directory.checkpoints.read()
        directory.forget_after(last.leg, experiment.leg_name)
        self.experiment = experiment
        self.leg = last.leg
        self.observer: Observer | None = None
        self._directory = directory
        self._data = data
        self._ledger = ledger
        self._renew = renew
        self._proofs = Proofs(directory.private / "releases.jsonl")
        self._rows = directory.metrics()
        self._attempts = _charged_attempts(ledger)
        self._void: set[tuple[int, int]] = set()  # (leg, attempt) with another outcome on record
        self.trainer = renew(last)

    def legs(self) -> Iterator[int]:
        """The legs that are left; where a trainer ends, the next is made from its checkpoint."""
        while self.leg < self.experiment.legs:
            if self.leg >= self.trainer.end:
                self.evaluate_if_due()
                self.trainer.close()
                self.trainer = self._renew(self._directory.checkpoints.read())
            yield self.leg

    def last_attempt(self) -> int:
        """The latest attempt at this leg that was charged, or 0: where a resumed run looks."""
        numbers = self.trainer.numbers(self.leg)
        return max((max(self._attempts[n]) for n in numbers if n in self._attempts), default=0)

    def charge(self, pending: Pending) -> bool:
        """Charge a leg, and return whether its noise may be drawn.

        Guarantee: True only if the attempt was never charged, or was charged for exactly this
        proof: then noise and release are the same as before.  Proof, people's ledger and the run's
        own ledger are on the disk when it returns.
        """
        attempt = (pending.leg, pending.attempt)
        beginning = pending.proof.hex()
        recorded, _ = self._proofs.read(*attempt)
        uncharged = [
            release
            for release in pending.releases
            if release.attempt not in self._attempts.get(release.round, ())
        ]
        is_known = len(uncharged) < len(pending.releases)
        if attempt in self._void or (is_known and recorded != beginning):
            return False
        if recorded != beginning:
            self._proofs.record(*attempt, beginning)
        self._ledger.charge(uncharged)
        for release in uncharged:
            self._attempts.setdefault(release.round, set()).add(release.attempt)
        return True

    def accept(self, pending: Pending, outcome: bytes | None) -> bool:
        """Whether what came out of a leg may be released; if so, the leg is done.

        A repeated attempt with another outcome than the one on record is void: the first outcome
        may have been seen, on another machine say, before its checkpoint was lost.
        """
        if outcome is not None:
            attempt = (pending.leg, pending.attempt)
            beginning, recorded = self._proofs.read(*attempt)
            if recorded not in ("", outcome.hex()):
                self._void.add(attempt)
                return False
            self._proofs.record(*attempt, beginning, outcome.hex())
        self.leg += 1
        return True

    def save(self, attempt: int) -> None:
        """Write a checkpoint of this moment; drop old ones that the experiment does not keep.

        Private diagnostics of the leg go to `private/diagnostics.jsonl`, after the checkpoint: to
        lose them costs nothing.
        """
        checkpoints = self._directory.checkpoints
        checkpoints.write(self.leg, self.trainer.state(self.leg), self._ledger.head)
        checkpoints.prune(self.experiment.keeps_checkpoint)
        if (row := self.trainer.diagnostics()) is not None:
            leg = {self.experiment.leg_name: self.leg, "attempt": attempt}
            finite = {name: _finite(value) for name, value in row.items()}
            durable.append_line(self._directory.diagnostics_file, leg | finite)

    def evaluate_if_due(self, *, now: bool = False) -> None:
        """Append held-out metrics of this moment to metrics.jsonl, once."""
        row = self.trainer.evaluate(self.leg, self._rows, self.epsilon, now=now)
        if row is not None:
            durable.append_line(self._directory.metrics_file, row)
            self._rows.append(row)
        self.tell(0, 0)

    def epsilon(self) -> float | None:
        """What the legs so far have cost; None if that is infinite."""
        composition = self._ledger.composition()
        if not composition.is_private:
            return None
        if not composition.costly():
            return 0.0
        accountant = accountant_named(self.experiment.privacy.accountant or "pld")
        return _finite(accountant.epsilon(composition, self._ledger.header.delta))

    def tell(self, done: int, of: int) -> None:
        """Let the observer know how far the current leg is."""
        if self.observer is not None:
            last = self._rows[-1] if self._rows else None
            self.observer(TrainingProgress(self.leg, self.experiment.legs, done, of, last))

    def close(self) -> None:
        """Release the ledger's lock and the worker processes, whatever happened."""
        self._ledger.close()
        self.trainer.close()
        self._data.leave_copy()


def _charged_attempts(ledger: Ledger) -> dict[int, set[int]]:
    """The attempts that this branch has charged, by the number of the release."""
    attempts: dict[int, set[int]] = {}
    for entry in ledger.entries:
        if entry.kind == "round" and entry.branch == ledger.header.branch:
            attempts.setdefault(entry.round, set()).add(entry.attempt)
    return attempts


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

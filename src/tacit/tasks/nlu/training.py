"""Training an intent and slot model: an experiment in, a run directory out.

    from tacit.tasks.nlu.training import NluExperiment, train

    run = train(NluExperiment(...), "runs/first")
    print(run.guarantee().claim)

An epoch is: charge the ledger for all of its steps; run them (`steps.Stepper.run`); save.  Nothing
of an epoch leaves the process before its checkpoint, so the steps in between are released together.
A run that was killed goes on with `resume=True`, repeats the epoch that it was in with the same
draws and the same noise, and ends with the same bits.  If anything else comes out of the repetition
than the first time, it is thrown away, and the epoch is charged and drawn afresh.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.privacy import durable
from tacit.privacy.budget import BudgetExceeded
from tacit.privacy.ledger import Charge
from tacit.runs.checkpoints import Checkpoint
from tacit.tasks.nlu import model_files
from tacit.tasks.nlu.directory import NluDirectory
from tacit.tasks.nlu.epoch_proof import EpochProof
from tacit.tasks.nlu.experiment import NluExperiment
from tacit.tasks.nlu.opening import Job, Opened, created, ended_without_result, resumed
from tacit.tasks.nlu.predictions import evaluate
from tacit.tasks.nlu.ranks import STOP, Ranks, Workers
from tacit.tasks.nlu.run import NluRun
from tacit.tasks.nlu.steps import Stepper

__all__ = ["NluExperiment", "Progress", "train"]


@dataclass(frozen=True)
class Progress:
    """What an observer is told."""

    epoch: int  # epochs done
    epochs: int
    step: int  # of the epoch that is running
    steps: int
    metrics: dict[str, Any] | None  # the last ones


Observer = Callable[[Progress], None]


def train(
    experiment: NluExperiment | None,
    run: str | Path,
    *,
    resume: bool = False,
    observer: Observer | None = None,
    keep_key: bool = False,
) -> NluRun:
    """Train to the end, and return the run; with `resume` go on with the one that is there."""
    if resume and (ending := ended_without_result(experiment, run)):
        return _finished(run, ending, keep_key=False)
    session = Session(
        resumed(experiment, run) if resume else created(experiment or NluExperiment(), run),
        observer,
    )
    try:
        ending = loop(session)
        session.workers.dismiss()
    finally:
        session.close()
    return _finished(run, ending, keep_key=keep_key)


def _finished(run: str | Path, ending: str, *, keep_key: bool) -> NluRun:
    """The end of a run: first the key goes, then what may fail is written."""
    directory = NluDirectory.open(run)
    if not keep_key:
        directory.destroy_key()
    done = NluRun.open(run)
    directory.finish(done.summary(ending) | {"key_kept": keep_key})
    return done


def loop(session: Session) -> str:
    """All epochs; says why it ended."""
    session.evaluate_if_due()
    while not session.is_complete:
        try:
            attempt = session.charge()
        except BudgetExceeded as stop:
            return str(stop)
        if session.run_epoch(attempt):
            session.save()
            session.evaluate_if_due()
    return "complete"


def serve(job: Job, ranks: Ranks) -> None:
    """What every worker but rank 0 does, until it is told to stop."""
    stepper, before = job.stepper(), STOP
    while (epoch := ranks.told()) != STOP:
        attempt = ranks.told()
        if epoch == before:  # what came out of it was not what is on record
            stepper.go_back()
        stepper.run(_steps(job, epoch), job.streams(attempt), ranks, None)
        before = epoch


class Session:
    """A run while it is being trained: the state that an epoch changes, and how it is kept."""

    def __init__(self, opened: Opened, observer: Observer | None) -> None:
        self.opened = opened
        self.epoch = opened.job.epoch
        self._observer = observer
        self._releases = opened.directory.releases()
        self._rows = opened.directory.metrics()
        self._void: set[tuple[int, int]] = set()  # (epoch, attempt) with another outcome on record
        self._stepper: Stepper = opened.job.stepper()
        self.workers = Workers(opened.experiment.training.workers, serve, opened.job)

    @property
    def is_complete(self) -> bool:
        return self.epoch >= self.opened.experiment.training.epochs

    def charge(self) -> int:
        """The attempt at this epoch, with every release of it in the ledger and on the disk.

        Guarantee (design rule 6): an attempt is repeated only if plan, model and utterances are
        those that it was charged for, and what comes out of it is released only if it is what came
        out of it the first time (`run_epoch`).
        """
        proof, attempt = self._proof(), self._last_attempt()
        if attempt is None:
            attempt = 0
        elif not self._is_charged():
            attempt += 1  # something changed since: all is drawn afresh, and charged again
        if self._recorded(attempt).beginning != proof:
            self._releases.record(self.epoch, attempt, str(EpochProof(proof)))
        charged = self._charged()
        plan_hash = self.opened.experiment.fingerprint
        self.opened.ledger.charge(
            [
                Charge("round", step, attempt, event, plan_hash)
                for step, event in self._stepper.method.charges(self._steps)
                if (step, attempt) not in charged
            ]
        )
        return attempt

    def run_epoch(self, attempt: int) -> bool:
        """All steps, in all workers; whether what came out of them may be released.

        The outcome is on the disk before anything of the epoch leaves the process.  If it is not
        the one that is there already, from before the epoch's checkpoint was lost (on another
        machine, say), all is put back to the epoch's beginning, and the attempt is void.
        """
        ranks, streams = self.workers.ranks, self.opened.job.streams(attempt)
        ranks.tell(self.epoch)
        ranks.tell(attempt)
        outcome = self._stepper.run(self._steps, streams, ranks, self._tell).hex()
        recorded = self._recorded(attempt)
        if recorded.contradicts(outcome):
            self._void.add((self.epoch, attempt))
            self._stepper.go_back()
            return False
        proof = str(EpochProof(recorded.beginning, outcome))
        self._releases.record(self.epoch, attempt, proof)
        self.epoch += 1
        return True

    def save(self) -> None:
        """A checkpoint of this moment; of those before it the last one is kept."""
        checkpoints, opened = self.opened.directory.checkpoints, self.opened
        try:
            data = model_files.to_bytes(opened.job.stored)
        except ValueError as error:
            raise ValueError(
                f"the training diverged in epoch {self.epoch}: {error}; lower the learning rate"
            ) from error
        file = checkpoints.model_file(self.epoch)
        checkpoints.write(
            data,
            Checkpoint(
                self.epoch,
                file,
                self._stepper.state(),
                (),
                0,
                opened.ledger.head,
                opened.experiment.fingerprint,
            ),
        )
        checkpoints.prune(lambda epoch: False)

    def evaluate_if_due(self) -> None:
        """Metrics on valid, once for each epoch that is due."""
        evaluation, valid = self.opened.experiment.evaluation, self.opened.data.valid
        due = self.is_complete or self.epoch % evaluation.every == 0
        if not due or not valid or any(row["round"] == self.epoch for row in self._rows):
            self._tell(0, 0)
            return
        stored = self.opened.job.stored
        chosen = valid[: evaluation.max_utterances]
        found = evaluate(stored.model, stored.encoder, stored.labels, chosen)
        row = {"round": self.epoch, **found.as_row()}
        durable.append_line(self.opened.directory.metrics_file, row)
        self._rows.append(row)
        self._tell(0, 0)

    def close(self) -> None:
        """Whatever happened: nothing is held."""
        self.opened.ledger.close()
        self.workers.end()

    @property
    def _steps(self) -> range:
        return _steps(self.opened.job, self.epoch)

    def _charged(self) -> set[tuple[int, int]]:
        """(step, attempt) of what the ledger has of this epoch."""
        steps = self._steps
        return {
            (entry.round, entry.attempt)
            for entry in self.opened.ledger.entries
            if entry.kind == "round" and entry.round in steps
        }

    def _last_attempt(self) -> int | None:
        return max((attempt for _, attempt in self._charged()), default=None)

    def _is_charged(self) -> bool:
        """Whether the last attempt at this epoch can be made again for what it was charged."""
        attempt = self._last_attempt()
        if attempt is None or (self.epoch, attempt) in self._void:
            return False
        return self._recorded(attempt).beginning == self._proof()

    def _recorded(self, attempt: int) -> EpochProof:
        """What is on record of an attempt at this epoch."""
        return EpochProof.read(self._releases.proof(self.epoch, attempt) or "")

    def _proof(self) -> str:
        """HMAC over all that the epoch's releases are made from."""
        job, flat = self.opened.job, self._stepper.gradients.flat
        weights = flat.weights.detach().numpy()
        return job.key.hmac(
            self.opened.experiment.fingerprint.encode(),
            hashlib.sha256(weights.tobytes()).digest(),
            self.opened.data.fingerprint.encode(),
        ).hex()

    def _tell(self, step: int, steps: int) -> None:
        if self._observer is not None:
            last = self._rows[-1] if self._rows else None
            epochs = self.opened.experiment.training.epochs
            self._observer(Progress(self.epoch, epochs, step, steps, last))


def _steps(job: Job, epoch: int) -> range:
    in_epoch = job.epoch_steps
    return range(epoch * in_epoch, (epoch + 1) * in_epoch)

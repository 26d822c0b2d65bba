"""Training an intent and slot model: a leg is an epoch of steps.

An epoch is charged as a whole before its first step, and nothing of it leaves the process before
its checkpoint, so its steps are released together.  A run that was killed repeats the epoch with
the same draws and the same noise, and ends with the same bits.  If anything else comes out of the
repetition than the first time, it is thrown away, and the epoch is charged and drawn afresh.

The steps are taken by `training.workers` processes side by side: this one, which alone writes
files, and others that it sends a `TrainingJob`, from this machine or from torchrun.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

from tacit.engines.engine import available_cores
from tacit.engines.launch import Launch
from tacit.engines.ranks import Ranks
from tacit.engines.teams import Team, team_for
from tacit.mechanisms.layer_scaling import LayerScaling
from tacit.mechanisms.method import Indices
from tacit.privacy.ledger_lines import Charge
from tacit.privacy.randomness import RunKey
from tacit.tasks.nlu import plan, scaling
from tacit.tasks.nlu.encoding import EncodedUtterances, encode
from tacit.tasks.nlu.experiment import NluExperiment
from tacit.tasks.nlu.ghost_clipping import AT_ONCE, GhostClipping
from tacit.tasks.nlu.gradients import FlatModel, UtteranceGradients
from tacit.tasks.nlu.models import NluModel
from tacit.tasks.nlu.predictions import evaluate
from tacit.tasks.nlu.steps import AttemptStreams, Stepper
from tacit.tasks.nlu.utterances import Utterances
from tacit.tasks.task import Advance, Opened, Pending, Row, State

STOP = -1  # what the other ranks are told after the last epoch


@dataclass(frozen=True)
class TrainingJob:
    """All that a worker process needs; `Ranks.send` sends it whole.

    `optimizer` is the optimizer's state at the last checkpoint, and `units` are the indices of each
    user's utterances, None where the unit is an utterance.
    """

    experiment: NluExperiment
    model: NluModel
    optimizer: dict[str, NDArray[Any]]
    scaling: LayerScaling
    utterances: EncodedUtterances
    units: Sequence[Indices] | None
    key: RunKey
    branch: str

    @property
    def unit_count(self) -> int:
        """The number of units, utterances or users, to train on."""
        return len(self.utterances) if self.units is None else len(self.units)

    def stepper(self) -> Stepper:
        """This worker's part, with the weights and the optimizer of the last checkpoint."""
        training, flat = self.experiment.training, FlatModel(self.model.model)
        clipping = self.clipping(flat) if training.method == "dp-sgd" else None
        return Stepper(
            plan.method_of(self.experiment, self.scaling, self.unit_count),
            UtteranceGradients(flat, self.utterances, self.units, clipping),
            training,
            training.epochs * plan.epoch_steps(self.experiment, self.unit_count),
            self.optimizer,
        )

    def clipping(self, flat: FlatModel) -> GhostClipping:
        """How DP-SGD clips single utterances' gradients."""
        by_one = self.experiment.training.examples == "one-by-one"
        return GhostClipping(flat, 1 if by_one else AT_ONCE)

    def steps(self, epoch: int) -> range:
        """The steps of an epoch, counted from the beginning of the training."""
        in_epoch = plan.epoch_steps(self.experiment, self.unit_count)
        return range(epoch * in_epoch, (epoch + 1) * in_epoch)

    def streams(self, attempt: int) -> AttemptStreams:
        """The random streams of an attempt at an epoch."""
        return AttemptStreams(self.key, self.branch, attempt)

    def serve(self, ranks: Ranks) -> None:
        """Take the steps of each epoch that rank 0 asks for, until it says `STOP`."""
        threads = torch.get_num_threads()
        torch.set_num_threads(threads_each(ranks.size))
        stepper, before = self.stepper(), STOP
        while (epoch := ranks.told()) != STOP:
            attempt = ranks.told()
            if epoch == before:  # what came out of it was not what is on record
                stepper.go_back()
            stepper.run(self.steps(epoch), self.streams(attempt), ranks, None)
            before = epoch
        torch.set_num_threads(threads)


class NluTrainer:
    """Rank 0 of the workers: see the module, and `tasks.task.Trainer`."""

    def __init__(self, opened: Opened) -> None:
        experiment: NluExperiment = opened.experiment
        utterances: Utterances = opened.data
        model, factors = NluModel.load(opened.last.model_file), scaling.read(opened.folder)
        scaling.refuse_others(factors, opened.last)
        self._experiment = experiment
        self._valid = utterances.data.valid[: experiment.evaluation.max_utterances]
        self._fingerprint = utterances.data.fingerprint
        self._job = TrainingJob(
            experiment,
            model,
            opened.last.arrays,
            factors,
            encode(model.encoder, model.labels, utterances.data.train),
            utterances.units(experiment),
            opened.key,
            opened.ledger.header.branch,
        )
        self._stepper = self._job.stepper()
        self._threads = torch.get_num_threads()
        self._team = _team(experiment.training.workers)
        self._ranks: Ranks | None = None

    @property
    def end(self) -> int:
        return self._experiment.training.epochs

    def numbers(self, leg: int) -> range:
        return self._job.steps(leg)

    def prepare(self, leg: int, attempt: int, advance: Advance) -> Pending:
        """The charges of all steps of an epoch, and a proof of what it begins with.

        The proof is an HMAC of the experiment, the weights and the utterances; what comes out of
        the epoch is proved by `run`.
        """
        weights = self._stepper.gradients.flat.weights.detach().numpy()
        proof = self._job.key.hmac(
            self._experiment.fingerprint.encode(),
            hashlib.sha256(weights.tobytes()).digest(),
            self._fingerprint.encode(),
        )
        charges = self._stepper.method.charges(self._job.steps(leg))
        fingerprint = self._experiment.fingerprint
        releases = [Charge("round", step, attempt, event, fingerprint) for step, event in charges]
        return Pending(leg, attempt, proof, releases)

    def run(self, pending: Pending, advance: Advance) -> bytes:
        """Take the steps of the epoch with all workers; a proof of what came out of them."""
        ranks = self._joined()
        ranks.tell(pending.leg)
        ranks.tell(pending.attempt)
        steps, streams = self._job.steps(pending.leg), self._job.streams(pending.attempt)
        return self._stepper.run(steps, streams, ranks, advance)

    def go_back(self) -> None:
        self._stepper.go_back()

    def state(self, leg: int) -> State:
        """The model's file and the optimizer's state, for a checkpoint."""
        try:
            model = self._job.model.to_bytes()
        except ValueError as error:
            raise ValueError(
                f"the training diverged in epoch {leg}: {error}; lower the learning rate"
            ) from error
        facts = {
            "experiment": self._experiment.fingerprint,
            scaling.FACT: scaling.digest(self._job.scaling),
        }
        return State(model, self._stepper.state(), facts)

    def evaluate(
        self, leg: int, rows: Sequence[Row], epsilon: Callable[[], float | None], *, now: bool
    ) -> Row | None:
        """Metrics on valid; None if they are not due, or are in `rows` already."""
        due = now or leg >= self.end or leg % self._experiment.evaluation.every == 0
        if not due or not self._valid or (rows and rows[-1]["epoch"] == leg):
            return None
        return {"epoch": leg, **evaluate(self._job.model, self._valid).as_row()}

    def diagnostics(self) -> Row | None:
        return None

    def close(self) -> None:
        """Dismiss the other workers if they wait for the next epoch, and let go of them."""
        if self._ranks is not None and self._stepper.is_between_epochs:
            self._ranks.end_service(STOP)
        self._team.end()
        torch.set_num_threads(self._threads)

    def _joined(self) -> Ranks:
        """All workers, once they are there and have the job."""
        if self._ranks is None:
            workers = self._experiment.training.workers
            torch.set_num_threads(threads_each(workers))
            self._ranks = self._team.ranks() if workers > 1 else Ranks(None, 0, 1)
            if workers > 1:
                self._ranks.send(self._job)
        return self._ranks


def threads_each(size: int) -> int:
    """The number of threads for each of `size` processes that share this machine's cores.

    It is at most what torch would use by itself.
    """
    return max(1, min(torch.get_num_threads(), available_cores() // size))


def _team(workers: int) -> Team:
    """As many processes as the experiment asks for; torchrun must have started that many."""
    launched = Launch.of_this_process().size
    if launched not in (1, workers):
        raise ValueError(
            f"training.workers is {workers}, and torchrun started {launched} processes: the noise"
            " is split among the workers, so both must be the same number"
        )
    return team_for(workers)

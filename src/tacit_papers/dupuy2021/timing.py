"""How long a step of each method takes, as a factor of plain SGD's (Dupuy et al. 2021, Table 2).

The methods take turns of a few steps, all with the same workers, model and utterances, and the
factor is the median over the turns of a method's time over SGD's in the same turn: other programs
then slow both.  An epoch's time is that of its steps.  Nothing is released and nothing is kept.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

import torch

from tacit.engines.ranks import Ranks
from tacit.engines.teams import Children
from tacit.mechanisms.layer_scaling import LayerScaling
from tacit.models.base import require
from tacit.privacy.randomness import RunKey
from tacit.tasks.nlu import plan
from tacit.tasks.nlu.data import NLUData
from tacit.tasks.nlu.encoding import Labels, encode
from tacit.tasks.nlu.experiment import NluExperiment
from tacit.tasks.nlu.ghost_clipping import GhostClipping
from tacit.tasks.nlu.gradients import FlatModel
from tacit.tasks.nlu.models import NluModel, initial_encoder, initial_model
from tacit.tasks.nlu.trainer import STOP, TrainingJob, threads_each
from tacit.tasks.nlu.utterances import Utterances

_BASELINE = "sgd"
_OPACUS = "dp-sgd-opacus"


class OpacusJob(TrainingJob):
    """A training whose single gradients are written out by Opacus, instead of ghost clipping."""

    def clipping(self, flat: FlatModel) -> GhostClipping:
        """Opacus's way to clip."""
        from tacit_papers.dupuy2021.opacus_gradients import OpacusGradients

        return OpacusGradients(flat)


@dataclass(frozen=True)
class Turns:
    """A training for timing, a few steps at a time; other workers are sent it whole."""

    job: TrainingJob
    steps: int

    @property
    def epoch_steps(self) -> int:
        """The steps of an epoch."""
        return len(self.job.steps(0))

    def range_of(self, turn: int) -> range:
        """The steps of a turn; after the end of the training it begins anew."""
        whole = self.job.experiment.training.epochs * self.epoch_steps
        start = turn * self.steps % max(1, whole - self.steps + 1)
        return range(start, start + self.steps)

    def serve(self, ranks: Ranks) -> None:
        """Run turns until told to stop: what every worker but rank 0 does."""
        torch.set_num_threads(threads_each(ranks.size))
        stepper, turn = self.job.stepper(), 0
        while ranks.told() != STOP:
            stepper.run(self.range_of(turn), self.job.streams(0), ranks, None)
            turn += 1


@dataclass(frozen=True)
class Timing:
    """How long one method takes."""

    name: str
    step_seconds: float  # median
    epoch_seconds: float
    factor: float  # of SGD's time per epoch
    turns: int
    steps: int  # timed in all

    def as_row(self) -> dict[str, float | int | str]:
        """The timing for scripts."""
        return asdict(self)


def time_methods(
    experiments: Mapping[str, NluExperiment],
    data: NLUData,
    *,
    turns: int = 5,
    steps: int = 10,
    with_opacus: bool = False,
    tell: Callable[[str, int, int], None] | None = None,
) -> list[Timing]:
    """Time each experiment's steps in turns; one of the experiments has to be `sgd`.

    Args:
        experiments: by name; each keeps its workers for all of its turns.
        data: the utterances that all of them are timed on.
        turns: how often each has its turn; the first, which is not timed, comes on top.
        steps: the steps of a turn.
        with_opacus: whether the variant "dp-sgd" is timed once more, with Opacus's gradients.
        tell: is told whose turn begins, which one it is, and of how many.
    """
    if _BASELINE not in experiments:
        raise ValueError(f"timing needs a variant {_BASELINE!r} to compare with")
    jobs = {name: job_for(one, data) for name, one in experiments.items()}
    if with_opacus:
        if "dp-sgd" not in jobs:
            raise ValueError("Opacus needs a variant 'dp-sgd' to compute in its way")
        require("opacus", extra="nlu", what="timing Opacus")
        jobs[_OPACUS] = OpacusJob(**vars(jobs["dp-sgd"]))
    contestants = {name: _Contestant(job, steps) for name, job in jobs.items()}
    try:
        for contestant in contestants.values():  # memory is set aside, and caches are filled
            contestant.turn()
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        for turn in range(turns):
            for name, contestant in contestants.items():
                if tell is not None:
                    tell(name, turn, turns)
                seconds[name].append(contestant.turn())
    finally:
        for contestant in contestants.values():
            contestant.end()
    per_epoch = {
        name: [each * contestants[name].epoch_steps for each in turn_seconds]
        for name, turn_seconds in seconds.items()
    }
    return [
        Timing(
            name,
            statistics.median(seconds[name]),
            statistics.median(per_epoch[name]),
            statistics.median(
                own / base for own, base in zip(per_epoch[name], per_epoch[_BASELINE], strict=True)
            ),
            turns,
            turns * steps,
        )
        for name in contestants
    ]


class _Contestant:
    """A method with its workers, which run a few steps whenever it is its turn."""

    def __init__(self, job: TrainingJob, steps: int) -> None:
        self._turns = Turns(job, steps)
        self.epoch_steps = self._turns.epoch_steps
        self._stepper = self._turns.job.stepper()
        workers = job.experiment.training.workers
        self._team = Children(workers)
        self._ranks = Ranks(None, 0, 1)
        if workers > 1:
            self._ranks = self._team.ranks()
            self._ranks.send(self._turns)
        self._turn = 0

    def turn(self) -> float:
        """Run one turn; return the seconds a step took."""
        threads = torch.get_num_threads()
        torch.set_num_threads(threads_each(self._ranks.size))
        self._ranks.tell(0)
        began = time.perf_counter()
        steps = self._turns.range_of(self._turn)
        self._stepper.run(steps, self._turns.job.streams(0), self._ranks, None)
        self._turn += 1
        seconds = time.perf_counter() - began
        torch.set_num_threads(threads)
        return seconds / len(steps)

    def end(self) -> None:
        """Stop the workers."""
        self._team.end()


def job_for(experiment: NluExperiment, data: NLUData) -> TrainingJob:
    """A job without a run directory: for timing, never for a release."""
    encoder, utterances = initial_encoder(experiment, data), Utterances(data, "")
    experiment = plan.resolved(experiment, utterances)
    labels = Labels(experiment.data.intents, experiment.data.tags)
    job = TrainingJob(
        experiment,
        NluModel(initial_model(experiment, encoder, labels), encoder, labels),
        {},
        LayerScaling.none((1,)),
        encode(encoder, labels, data.train),
        utterances.units(experiment),
        RunKey.generate(),
        "main",
    )
    sizes = job.stepper().gradients.flat.sizes
    return replace(job, scaling=LayerScaling.by_size(sizes))

"""What a training asks of a task, whatever that is: data, a beginning, and a trainer.

A run is a list of *legs*: releases that are charged together, computed, and checkpointed.  A leg of
a language model is a round; a leg of an intent and slot model is an epoch of steps.  `train.step`
goes through a leg in the order that makes a guarantee hold; a `Trainer` does each part of it.

Nothing in a task knows about run directories.  It is given a folder for files of its own, and hands
out bytes and arrays to be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from tacit.corpus.people_ledger import PeopleLedger
from tacit.privacy.budget import Budget
from tacit.privacy.events import Composition, Event
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Charge, Header
from tacit.privacy.randomness import RunKey

if TYPE_CHECKING:
    from tacit.engines.engine import Engine

Arrays = dict[str, NDArray[Any]]
Row = dict[str, Any]  # metrics, as one line of metrics.jsonl
Announce = Callable[[str, int, int], None]  # what is being prepared, how much is done, of how much
MakeEngine = Callable[[Any], "Engine"]  # what computes cohorts, for the model that a run has
Advance = Callable[[int, int], None]  # how much of a leg is done, of how much


class TrainingData(Protocol):
    """People's text, as an experiment looks at it."""

    @property
    def people(self) -> str:
        """The id of the people whose text it is; empty if it is about nobody."""
        ...

    def is_of(self, experiment: Any) -> bool:
        """Whether this is the data, or data of the same people, that a run was started on."""
        ...

    def commitment(self, key: RunKey) -> str:
        """A digest that changes with the text, and says nothing about it without a secret."""
        ...

    def ledger(self) -> PeopleLedger | None:
        """The ledger of the people; None if it is about nobody."""
        ...

    def leave_copy(self) -> None:
        """Let the data carry what is known of its people, in case it is moved elsewhere."""
        ...


def header_of(experiment: Any, **declared: Any) -> Header:
    """The header of a run's ledger as far as an experiment decides it, whatever the data are.

    `declared` are further fields of `Header`.  The run's id and the experiment's digest are filled
    in when the run is started.
    """
    privacy, budget = experiment.privacy, None
    if privacy.budget_epsilon is not None:
        budget = Budget(privacy.budget_epsilon, privacy.delta, privacy.accountant or "pld")
    return Header(
        run_id="not started",
        delta=privacy.delta,
        budget=budget,
        simulation=experiment.seed is not None,
        **declared,
    )


@dataclass(frozen=True)
class State:
    """What a checkpoint keeps: the model as a file's bytes, and what the next leg needs."""

    model: bytes
    arrays: Arrays = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LastState:
    """A checkpoint as it is read back."""

    leg: int
    model_file: Path
    arrays: Arrays
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Inherited:
    """Legs that are done before a run begins, and the entries of a ledger that paid for them."""

    ledger: Ledger
    entries: int
    leg: int = 0

    @property
    def spent(self) -> Composition:
        """All that was released before the run begins."""
        return Composition.of(entry.event for entry in self.ledger.entries[: self.entries])


@dataclass(frozen=True)
class ParentRun:
    """The run that a branch leaves: its folder, its experiment, and where it is left."""

    folder: Path
    experiment: Any
    last: LastState
    inherited: Inherited


@dataclass(frozen=True)
class Beginning:
    """A run before its first leg.

    `releases` are charged first; `write` then puts the task's own files into the run's folder, and
    may draw noise that the releases have paid for.
    """

    experiment: Any  # with every value filled in
    header: Header  # without the run's id and the experiment's digest
    state: State
    write: Callable[[Path], None]
    releases: Sequence[Charge] = ()
    first_events: Sequence[Event] = ()  # of the first leg, as far as they are known
    inherited: Inherited | None = None


@dataclass(frozen=True)
class Opened:
    """A run that is open for training, as a trainer is given it."""

    folder: Path
    experiment: Any
    data: Any
    ledger: Ledger
    key: RunKey
    last: LastState
    engine: MakeEngine | None = None
    announce: Announce | None = None
    recorded: Callable[[int, int], bytes | None] = lambda leg, attempt: None  # an attempt's proof

    @property
    def private(self) -> Path:
        """The folder for what must never be shared."""
        return self.folder / "private"


@dataclass(frozen=True)
class Pending:
    """A leg that is about to be released: what it is made from, and what it costs."""

    leg: int
    attempt: int
    proof: bytes  # HMAC over all that the releases are made from
    releases: Sequence[Charge]


class Trainer(Protocol):
    """Computes one leg after another."""

    @property
    def end(self) -> int:
        """The leg before which it has to be made anew from the last checkpoint."""
        ...

    def numbers(self, leg: int) -> range:
        """The numbers that the ledger has, or will have, for the releases of a leg."""
        ...

    def prepare(self, leg: int, attempt: int, advance: Advance) -> Pending:
        """Compute what has to be known before the leg is charged; nothing is released by it."""
        ...

    def run(self, pending: Pending, advance: Advance) -> bytes | None:
        """Draw the noise, and take the step or steps.

        Returns a proof of what came out where that is not determined by `pending.proof`.
        """
        ...

    def go_back(self) -> None:
        """Undo the last `run`: what came out of it is not what is on record."""
        ...

    def state(self, leg: int) -> State:
        """What a checkpoint after `leg` legs keeps; `ValueError` if the weights are not finite."""
        ...

    def evaluate(
        self, leg: int, rows: Sequence[Row], epsilon: Callable[[], float | None], *, now: bool
    ) -> Row | None:
        """Metrics after `leg` legs, on text that is not trained on.

        None if they are not due (`now` makes them so), or are in `rows`, the metrics so far.
        `epsilon` computes what the run has cost.
        """
        ...

    def diagnostics(self) -> Row | None:
        """Private figures of the last leg, for the operator's eyes only."""
        ...

    def close(self) -> None:
        """Let go of worker processes."""
        ...


class Task(Protocol):
    """A kind of training: a module with these functions; `tasks.task_of` finds it."""

    def load(self, experiment: Any, announce: Announce | None) -> Any:
        """The experiment's data (`TrainingData`), held against its digests."""
        ...

    def refuse_early(self, experiment: Any, data: Any, run: Path) -> None:
        """Raise for what can be known to be wrong before any work; `run` does not exist yet."""
        ...

    def begin(
        self, experiment: Any, data: Any, key: RunKey, announce: Announce | None
    ) -> Beginning:
        """A new run; whatever would void its guarantee is refused before any work."""
        ...

    def branch(self, experiment: Any, data: Any, key: RunKey, parent: ParentRun) -> Beginning:
        """A run that goes on from another one's model, with its own key and noise."""
        ...

    def resolve(
        self, experiment: Any, data: Any, last: LastState, inherited: Inherited | None
    ) -> Any:
        """The experiment as a run that was started with it holds it."""
        ...

    def open_trainer(self, opened: Opened) -> Trainer:
        """The trainer that goes on at the last checkpoint."""
        ...

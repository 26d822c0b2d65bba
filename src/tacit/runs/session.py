"""A run while it is being trained: the state that a round changes, and how it gets to the disk.

What has to happen in which order (design rule 6) is in `train.step`; each part of it is here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.config.experiment import Experiment
from tacit.engines.engine import Engine
from tacit.evaluation.accuracy import metrics
from tacit.evaluation.held_out import HeldOutTexts
from tacit.evaluation.predictors import as_predictor
from tacit.evaluation.scores import score
from tacit.evaluation.words import word_metrics
from tacit.federated.cohort import Diagnostics, Job, Task
from tacit.federated.server import normalised
from tacit.mechanisms.clipping import ClipState
from tacit.mechanisms.fixed_point import Contribution
from tacit.mechanisms.plan import Release
from tacit.models import weights as model_files
from tacit.models.base import LanguageModel, from_vector_
from tacit.privacy import durable
from tacit.privacy.accountants import accountant_named
from tacit.privacy.events import canonical_json
from tacit.privacy.ledger import Charge, Ledger
from tacit.privacy.randomness import RunKey
from tacit.privacy.stream import Stream
from tacit.runs.checkpoints import Checkpoint
from tacit.runs.directory import RunDirectory
from tacit.tasks.language.assembly import ServerOptimizer
from tacit.tasks.language.people import People

SMOOTHED = (
    "accuracy_top1",
    "accuracy_top3",
    "accuracy_top5",
    "perplexity",
    "word_accuracy",
    "perplexity_per_word",
)


@dataclass(frozen=True)
class HeldOut:
    """Test users' texts as tokens, and which tokens are special."""

    texts: HeldOutTexts
    bos: int
    unk: int | None

    def row(self, model: LanguageModel) -> dict[str, Any]:
        """Metrics of tokens, and those of words, which compare across tokenizers."""
        scores = score(as_predictor(model), self.texts.sequences, never=self.unk)
        words = word_metrics(scores, self.texts.owners, unk=self.unk).as_row()
        compared = {name: words[name] for name in ("word_accuracy", "perplexity_per_word")}
        return metrics(scores, bos=self.bos, unk=self.unk).as_row() | compared


@dataclass(frozen=True)
class Progress:
    """What an observer is told, while a cohort is computed and after each round."""

    round: int  # rounds done
    rounds: int
    users: int  # of the cohort being computed; private, for the operator's eyes only
    cohort: int
    metrics: dict[str, Any] | None  # the last ones


Observer = Callable[[Progress], None]


@dataclass
class Session:
    """One run, open for training."""

    directory: RunDirectory
    experiment: Experiment
    people: People
    tasks: tuple[Task, ...]  # one per phase
    server: ServerOptimizer
    model: LanguageModel
    held_out: HeldOut
    engine: Engine
    ledger: Ledger
    key: RunKey
    trained_on: tuple[str, ...]
    tokenizer: str
    weights: NDArray[np.float32]
    optimizer: dict[str, NDArray[Any]]
    clip_state: ClipState
    round: int
    end: int  # the round after which the tokenizer is switched, or the last
    just_switched: bool  # whether this round begins in another tokenizer than the last one ended in
    observer: Observer | None = None

    def __post_init__(self) -> None:
        self._releases = self.directory.releases()
        self._accountant = accountant_named(self.experiment.privacy.accountant or "pld")
        self._rows = self.directory.metrics()

    @property
    def task(self) -> Task:
        """What the current round computes."""
        return self.tasks[self.experiment.phase_of(self.round)]

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to do in this tokenizer."""
        return self.round >= self.end

    @property
    def is_complete(self) -> bool:
        return self.round >= self.experiment.rounds

    def job(self, attempt: int) -> Job:
        """What this round's users are given."""
        branch = self.ledger.header.branch
        return Job(self.weights, self.clip_state, self.key, branch, self.round, attempt)

    def cohort(self, attempt: int) -> list[int]:
        """Who takes part in this round."""
        stream = self.key.stream(
            branch=self.ledger.header.branch, round=self.round, attempt=attempt, purpose="cohort"
        )
        return [int(user) for user in self.task.plan.cohort(len(self.task.users), stream)]

    def last_attempt(self) -> int:
        """The latest attempt at this round that was charged, or 0: where a resumed run looks."""
        return max((attempt for attempt in self._charged()), default=0)

    def proof(self, attempt: int, total: Contribution) -> bytes:
        """HMAC over all that a release is made from; its noise is keyed by it.

        So the same sum gets the same noise again, and any other sum independent noise, whatever
        was copied, restored, edited or raced.  The round is in it as well: equal sums of two
        rounds must not show by equal noise.
        """
        public = [
            self.task.plan.hash(),
            list(self.clip_state.norms),
            self.ledger.header.branch,
            self.round,
            attempt,
        ]
        return self.key.hmac(
            canonical_json(public).encode(),
            self.key.digest(_bytes(self.weights)),
            self.key.digest(_bytes(total.update)),
            str(total.weight).encode(),
            total.bits.tobytes(),
        )

    def may_release(self, attempt: int, proof: bytes) -> bool:
        """Whether noise may be drawn for a sum; if so, the release is charged and on the disk.

        Guarantee: True only if the attempt was never charged, or was charged for exactly this
        proof: then the noise is the same, and so is the release.
        """
        if attempt in self._charged():
            return self._releases.proof(self.round, attempt) == proof.hex()
        plan = self.task.plan
        self._releases.record(self.round, attempt, proof.hex())
        self.ledger.charge(
            [
                Charge(
                    kind="round",
                    round=self.round,
                    attempt=attempt,
                    event=plan.event(),
                    plan_hash=plan.hash(),
                    estimator=plan.estimator_name,
                )
            ]
        )
        return True

    def noise(self, proof: bytes, purpose: str) -> Stream:
        """The noise of the release with this proof."""
        return self.key.hiding_stream(proof, purpose)

    def _charged(self) -> list[int]:
        branch = self.ledger.header.branch
        return [
            entry.attempt
            for entry in reversed(self.ledger.entries)
            if entry.kind == "round" and entry.branch == branch and entry.round == self.round
        ]

    def apply(self, release: Release) -> None:
        """The server's step, and unit norms after the noise; then the next round begins."""
        moved, self.optimizer = self.server.apply(self.weights, release.average, self.optimizer)
        self.weights = normalised(self.model, moved)
        phase = self.experiment.phase_of(self.round)
        self.round += 1
        self.just_switched = False
        self.clip_state = release.clip_state
        if not self.is_complete and self.experiment.phase_of(self.round) != phase:
            self.clip_state = self.task.plan.initial_clip_state()

    def save(self) -> None:
        """A checkpoint of this moment; those that nobody needs any more go."""
        from_vector_(self.model, self.weights)
        try:
            data = model_files.to_bytes(self.model, trained_on=self.trained_on)
        except ValueError as error:
            raise ValueError(
                f"the training diverged in round {self.round}: {error}; lower a learning rate"
            ) from error
        checkpoints = self.directory.checkpoints
        checkpoints.write(
            data,
            Checkpoint(
                round=self.round,
                model_file=checkpoints.model_file(self.round),
                optimizer=self.optimizer,
                clip_norms=self.clip_state.norms,
                clip_round=self.clip_state.round,
                head=self.ledger.head,
                tokenizer=self.tokenizer,
            ),
        )
        checkpoints.prune(self.experiment.keeps_checkpoint)

    def note(self, attempt: int, cohort: Sequence[int], diagnostics: Diagnostics) -> None:
        """Internal diagnostics of the round just done: private, and never in a release."""
        row = {
            "round": self.round,
            "attempt": attempt,
            "cohort": len(cohort),
            **asdict(diagnostics),
        }
        finite = {k: v if math.isfinite(v) else None for k, v in row.items()}
        durable.append_line(self.directory.diagnostics_file, finite, mode=0o600)

    def evaluate_if_due(self, *, now: bool = False) -> None:
        """Held-out metrics of this round, once."""
        every = self.experiment.evaluation.every
        due = now or self.is_done or self.just_switched or self.round % every == 0
        mark = {"switched": True} if self.just_switched else {}
        if not due or any(self._is_of_now(row) for row in self._rows):
            return
        from_vector_(self.model, self.weights)
        row: dict[str, Any] = {"round": self.round, **mark, **self.held_out.row(self.model)}
        recent = [*self._in_this_tokenizer(), row][-self.experiment.evaluation.smooth :]
        for name in SMOOTHED:
            values = [past[name] for past in recent if past[name] is not None]
            row[f"{name}_smoothed"] = sum(values) / len(values) if values else None
        row["epsilon"] = self.epsilon()
        row["clip_norm"] = _finite(self.clip_state.total_norm)
        durable.append_line(self.directory.metrics_file, row)
        self._rows.append(row)

    def _in_this_tokenizer(self) -> list[dict[str, Any]]:
        """The rows since the last switch: figures of other tokens do not average with these."""
        switches = [place for place, row in enumerate(self._rows) if row.get("switched")]
        return [] if self.just_switched else self._rows[switches[-1] if switches else 0 :]

    def _is_of_now(self, row: dict[str, Any]) -> bool:
        """Whether a row was measured at this round, in this tokenizer."""
        return bool(row["round"] == self.round and row.get("switched", False) == self.just_switched)

    def epsilon(self) -> float | None:
        """What the rounds so far have cost; None if that is infinite."""
        composition = self.ledger.composition()
        if not composition.is_private:
            return None
        if not composition.costly():
            return 0.0
        return _finite(self._accountant.epsilon(composition, self.ledger.header.delta))

    def tell(self, cohort: int, users: int) -> None:
        """Let the observer know where we are."""
        if self.observer is not None:
            last = self._rows[-1] if self._rows else None
            self.observer(Progress(self.round, self.experiment.rounds, users, cohort, last))

    def close(self) -> None:
        """Whatever happened: nothing is held."""
        self.ledger.close()
        self.engine.close()
        self.people.leave_copy()


def _bytes(values: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(values).data.cast("B")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

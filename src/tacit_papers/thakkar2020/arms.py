"""One arm of a secret-sharer grid: an optimizer, an order of the data, and a batch size.

The optimizers of Thakkar et al. 2020: of records, SGD, momentum and Adam (Tables 1 and 4); of
users, FedAvg (Table 1), FedAvg with clipping only (Table 6), with clipping and noise (DP-FedAvg,
Tables 2 and 5), and FedAvg with Adam (Table 4), which here is the server's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tacit.tasks.language.central_sgd import RecordTraining, scaled_rate

if TYPE_CHECKING:
    from tacit.config.experiment import Experiment
    from tacit_papers.thakkar2020.grid import Grid

ArmKind = Literal["sgd", "momentum", "adam", "fedavg", "fedavg+clip", "dp-fedavg", "fedavg+adam"]
Data = Literal["iid", "non-iid"]
RECORDS = ("sgd", "momentum", "adam")


@dataclass(frozen=True)
class Arm:
    """What is trained; the grid says the rest."""

    optimizer: ArmKind
    data: Data
    batch: int  # records a step, or users a round
    label: str = ""
    rounds: int | None = None
    epochs: float | None = None
    steps: int | None = None
    learning_rate: float | None = None
    experiment: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        """The name of its folder."""
        parts = [self.optimizer.replace("+", "-"), self.data, str(self.batch), self.label]
        return "-".join(part for part in parts if part)

    @property
    def is_federated(self) -> bool:
        return self.optimizer not in RECORDS

    @property
    def unit(self) -> str:
        return "users" if self.is_federated else "records"

    def changed(self, common: Experiment, grid: Grid) -> Experiment:
        """The experiment of this arm.  Of one that trains on records: whose text, and the model."""
        view = {"view": "iid" if self.data == "iid" else "users"}
        found = common.changed(name=f"{grid.name}/{self.name}", corpus=view)
        if not self.is_federated:
            return found
        if self.rounds is not None:
            found = found.changed(rounds=self.rounds)
        silent = {"noise_multiplier": None, "noise_stddev": None}
        plan: dict[str, Any] = {"cohort": float(self.batch), **silent}
        privacy: dict[str, Any] = {"target_epsilon": None}
        if self.optimizer in ("fedavg+clip", "dp-fedavg"):
            plan |= {"clipping": "flat", "clip_norm": grid.private.clip_norm}
        else:
            plan |= {"clipping": "none"}
        if self.optimizer == "dp-fedavg":
            plan["noise_multiplier"] = grid.private.noise_multiplier
            if grid.private.noise_multiplier is None:
                privacy["target_epsilon"] = _target(grid)
        found = found.changed(plan=plan, privacy=privacy)
        if self.optimizer == "fedavg+adam":
            found = found.changed(server=grid.adam.model_dump())
        return found.changed(**self.experiment) if self.experiment else found

    def record_training(self, grid: Grid, seed: int) -> RecordTraining:
        """How this arm trains on records."""
        given = grid.records
        steps, epochs = self.steps, self.epochs
        if steps is None and epochs is None:
            steps, epochs = given.steps, given.epochs
        return RecordTraining(
            optimizer=self.optimizer,  # type: ignore[arg-type]
            order=self.data,
            learning_rate=self.learning_rate or self._rate(grid),
            batch=self.batch,
            epochs=None if steps is not None else epochs,
            steps=steps,
            momentum=given.momentum,
            unroll=given.unroll,
            seed=seed,
        )

    def _rate(self, grid: Grid) -> float:
        given = grid.records
        if self.optimizer == "adam":
            return given.adam_learning_rate
        at_32 = given.learning_rate
        if self.optimizer == "momentum":
            at_32 = given.momentum_learning_rate or at_32
        return scaled_rate(at_32, self.batch)


def _target(grid: Grid) -> float:
    if grid.private.target_epsilon is None:
        raise ValueError(
            f"{grid.name} has an arm of dp-fedavg and no noise for it: give"
            " private.noise_multiplier or private.target_epsilon"
        )
    return grid.private.target_epsilon

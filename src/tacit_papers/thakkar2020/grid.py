"""A secret-sharer grid as a TOML file: one base experiment, and the arms that are compared on it.

    base = "demo"                      # a recipe of tacit train, and its variant if it has any
    variant = "fedavg"

    [experiment.audit.canaries]        # over the base: what all arms have in common
    per_cell = 4

    [[arms]]                           # each combination of data and batch is an arm
    optimizer = "sgd"                  # of records: sgd, momentum, adam
    data = ["iid", "non-iid"]
    batch = [32, 64]                   # records a step

    [[arms]]
    optimizer = "dp-fedavg"            # of users: fedavg, fedavg+clip, dp-fedavg, fedavg+adam
    data = ["non-iid"]
    batch = [500]                      # users a round

A grid may extend another; its arms take the place of the other's.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Self

import tomli_w
from pydantic import Field, model_validator

from tacit.config import recipes
from tacit.config.experiment import Experiment, Server
from tacit.config.recipes import Shelf
from tacit.config.sections import (
    About,
    Complete,
    NotNegative,
    Positive,
    Section,
    Share,
    Whole,
    merge,
)
from tacit.tasks.language.central_sgd import ADAM_RATE, MOMENTUM, SGD_RATE
from tacit_papers.thakkar2020.arms import RECORDS, Arm, ArmKind, Data


class RecordSettings(Section):
    """How records are trained on; `learning_rate` is SGD's at 32 records, larger batches follow."""

    learning_rate: Positive = SGD_RATE
    momentum_learning_rate: Positive | None = None  # at 32 records; None: as SGD's
    adam_learning_rate: Positive = ADAM_RATE  # at any batch size
    momentum: Annotated[float, Field(ge=0, lt=1)] = MOMENTUM
    unroll: Whole = 20
    epochs: Positive | None = None
    steps: Whole | None = None  # if given, instead of epochs


class PrivateSettings(Section):
    """S of the arms that clip, and the noise of dp-fedavg: z, or else what a target asks for."""

    clip_norm: Positive = 0.2
    noise_multiplier: NotNegative | None = None
    target_epsilon: Positive | None = None  # unless a noise multiplier is given


class Projection(Section):
    """A population and a cohort at which dp-fedavg's noise on the average would mean more."""

    population: Whole
    cohort: Whole
    delta: Share | None = None  # None: the arm's at its own population, else population^-1.1
    rounds: Whole | None = None  # None: those of the arm


class ExtractionSettings(Section):
    """How canaries are looked for; see tacit.audit.extraction."""

    samples: Whole = 2_000_000
    beam_width: Whole = 5
    top: Whole = 5
    ranks: bool = True  # exposure as well
    rank_budget: Whole = 1000  # a standard error of about 0.07 bits where ranks are sampled
    controls: Whole = 100  # phrases that were never planted
    ranked_controls: Annotated[int, Field(ge=0, strict=True)] = 20  # of these, with exposure


class ArmList(Section):
    """Arms that have an optimizer in common: one for each pair of data and batch."""

    optimizer: ArmKind
    data: tuple[Data, ...]
    batch: tuple[Whole, ...]
    label: str = ""  # behind the arms' names, where those would be the same
    rounds: Whole | None = None  # of users
    epochs: Positive | None = None  # of records
    steps: Whole | None = None
    learning_rate: Positive | None = None  # of records, at this very batch size
    experiment: dict[str, Any] = Field({})  # of users: over the grid's experiment

    @model_validator(mode="after")
    def _fits_its_unit(self) -> Self:
        wrong = ("rounds", "experiment") if self.optimizer in RECORDS else _OF_RECORDS
        for name in wrong:
            if getattr(self, name):
                unit = "records" if self.optimizer in RECORDS else "users"
                raise ValueError(f"{name} has no meaning for {self.optimizer}, which trains {unit}")
        return self

    def arms(self) -> list[Arm]:
        own = {name: getattr(self, name) for name in ("rounds", *_OF_RECORDS, "experiment")}
        return [
            Arm(self.optimizer, data, batch, label=self.label, **own)
            for data in self.data
            for batch in self.batch
        ]


_OF_RECORDS = ("epochs", "steps", "learning_rate")


class Grid(Complete):
    """Everything that decides about a secret-sharer table, but for its seeds."""

    name: str = "secret-sharer"
    about: About = About()
    base: str = "demo"
    variant: str | None = None
    experiment: dict[str, Any] = Field({})  # over the base
    records: RecordSettings = RecordSettings()
    private: PrivateSettings = PrivateSettings()
    adam: Server = Server(optimizer="adam", learning_rate=1e-4, beta2=0.999, stabiliser=1e-8)
    projection: Projection | None = None
    extraction: ExtractionSettings = ExtractionSettings()
    arms: tuple[ArmList, ...] = ()

    @model_validator(mode="after")
    def _has_arms(self) -> Self:
        names = [arm.name for arm in self.all_arms()]
        if not names:
            raise ValueError("there are no arms; add [[arms]] with optimizer, data and batch")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"the arm {twice} is there twice; give one of them a label")
        is_endless = self.records.epochs is None and self.records.steps is None
        for arm in self.all_arms():
            if not arm.is_federated and is_endless and arm.epochs is None and arm.steps is None:
                raise ValueError(f"records.epochs or records.steps is missing for {arm.name}")
        return self

    def all_arms(self) -> list[Arm]:
        return [arm for listed in self.arms for arm in listed.arms()]

    def chosen(self, patterns: Sequence[str]) -> list[Arm]:
        """The arms of these names or patterns such as sgd-*; all of them without any."""
        arms = self.all_arms()
        for pattern in patterns:
            if not any(fnmatchcase(arm.name, pattern) for arm in arms):
                known = ", ".join(arm.name for arm in arms)
                raise ValueError(f"{self.name} has no arm {pattern!r}; it has {known}")
        wanted = patterns or ["*"]
        return [arm for arm in arms if any(fnmatchcase(arm.name, p) for p in wanted)]

    def common(self) -> Experiment:
        """What all arms have in common: the base and what the grid lays over it."""
        base = recipes.load(self.base, (), self.variant).only(self.variant)
        found = base.changed(**merge(self.experiment, {"name": self.name}))
        if found.audit.canaries is None:
            raise ValueError(
                f"{self.name} plants no canaries: give experiment.audit.canaries, such as"
                " per_cell = 4"
            )
        return found

    def to_toml(self) -> str:
        """Every value, with the base written out."""
        data = self.model_dump(mode="json", exclude_none=True)
        data["experiment"] = self.common().model_dump(mode="json", exclude_none=True)
        return tomli_w.dumps(data)


GRIDS = Shelf(Grid, "secret-sharer")

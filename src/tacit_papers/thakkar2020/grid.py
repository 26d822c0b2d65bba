"""A secret-sharer grid as a recipe: one base experiment, and the arms that are compared on it.

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

A grid is read like any recipe: it may extend another, whose arms its own replace, and `--set` works
on it.  The optimizers are those of Thakkar et al. 2020: of records, SGD, momentum and Adam (Tables
1 and 4); of users, FedAvg (Table 1), FedAvg with clipping only (Table 6), with clipping and noise
(DP-FedAvg, Tables 2 and 5), and FedAvg with Adam (Table 4), which here is the server's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, Self

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
from tacit.privacy.projection import Projection
from tacit_papers.thakkar2020.pooled_sgd import (
    ADAM_RATE,
    MOMENTUM,
    SGD_RATE,
    RecordTraining,
    scaled_rate,
)

_RECORDS = ("sgd", "momentum", "adam")
_OF_RECORDS = ("epochs", "steps", "learning_rate")  # keys that only arms on records have
_OF_USERS = ("rounds", "experiment")


class _Records(Section):
    """How records are trained on; `learning_rate` is SGD's at 32 records, larger batches follow."""

    learning_rate: Positive = SGD_RATE
    momentum_learning_rate: Positive | None = None  # at 32 records; None: as SGD's
    adam_learning_rate: Positive = ADAM_RATE  # at any batch size
    momentum: Annotated[float, Field(ge=0, lt=1)] = MOMENTUM
    unroll: Whole = 20
    epochs: Positive | None = None
    steps: Whole | None = None  # if given, instead of epochs


class _Private(Section):
    """S of the arms that clip, and the noise of dp-fedavg: z, or else what a target asks for."""

    clip_norm: Positive = 0.2
    noise_multiplier: NotNegative | None = None
    target_epsilon: Positive | None = None  # unless a noise multiplier is given


class _LargerTraining(Section):
    """A population and a cohort at which dp-fedavg's noise on the average would mean more."""

    population: Whole
    cohort: Whole
    delta: Share | None = None  # None: the arm's at its own population, else population^-1.1
    rounds: Whole | None = None  # None: those of the arm

    def as_projection(self) -> Projection:
        """The same for `Guarantee.projected`."""
        return Projection(**self.model_dump())


class ExtractionSettings(Section):
    """How canaries are looked for; see tacit.audit.extraction."""

    samples: Whole = 2_000_000
    beam_width: Whole = 5
    top: Whole = 5
    ranks: bool = True  # exposure as well
    rank_budget: Whole = 1000  # a standard error of about 0.07 bits where ranks are sampled
    controls: Whole = 100  # phrases that were never planted
    ranked_controls: Annotated[int, Field(ge=0, strict=True)] = 20  # of these, with exposure


class _ArmList(Section):
    """Arms that have an optimizer in common: one for each pair of data and batch."""

    optimizer: Literal[
        "sgd", "momentum", "adam", "fedavg", "fedavg+clip", "dp-fedavg", "fedavg+adam"
    ]
    data: tuple[Literal["iid", "non-iid"], ...]
    batch: tuple[Whole, ...]
    # Behind the arms' names, where those would be the same; an arm's folder is called so.
    label: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{0,100}$")] = ""
    rounds: Whole | None = None  # of users
    epochs: Positive | None = None  # of records
    steps: Whole | None = None
    learning_rate: Positive | None = None  # of records, at this very batch size
    experiment: dict[str, Any] = Field(default={})  # of users: over the grid's experiment

    @property
    def is_federated(self) -> bool:
        """Whether a step takes whole users; else it takes records, whoever wrote them."""
        return self.optimizer not in _RECORDS

    @model_validator(mode="after")
    def _fits_its_unit(self) -> Self:
        """Refuse what only arms of the other kind have a use for."""
        for name in _OF_RECORDS if self.is_federated else _OF_USERS:
            if getattr(self, name):
                unit = "users" if self.is_federated else "records"
                raise ValueError(f"{name} has no meaning for {self.optimizer}, which trains {unit}")
        return self


@dataclass(frozen=True)
class Arm:
    """One training of a grid: an optimizer, an order of the data, and a batch size."""

    own: _ArmList  # what it was listed with
    data: Literal["iid", "non-iid"]
    batch: int  # records a step, or users a round

    @property
    def name(self) -> str:
        """The name of its folder, such as dp-fedavg-non-iid-500."""
        parts = [self.own.optimizer.replace("+", "-"), self.data, str(self.batch), self.own.label]
        return "-".join(part for part in parts if part)

    @property
    def optimizer(self) -> str:
        """As the grid's file spells it."""
        return self.own.optimizer

    @property
    def is_federated(self) -> bool:
        """Whether a step takes whole users."""
        return self.own.is_federated

    @property
    def unit(self) -> str:
        """What a batch counts."""
        return "users" if self.is_federated else "records"


class Grid(Complete):
    """Everything that decides about a secret-sharer table, but for its seeds."""

    name: str = "secret-sharer"
    about: About = About()
    base: str = "demo"
    variant: str | None = None
    experiment: dict[str, Any] = Field(default={})  # over the base
    # FedAvg without clipping is the average of users by how much text they have, as in footnote 1
    # of the paper; else it is as the experiment says.  Arms that clip have 1/(qN): Algorithm 1.
    weigh_by_data: bool = False
    records: _Records = _Records()
    private: _Private = _Private()
    adam: Server = Server(optimizer="adam", learning_rate=1e-4, beta2=0.999, stabiliser=1e-8)
    projection: _LargerTraining | None = None
    extraction: ExtractionSettings = ExtractionSettings()
    arms: tuple[_ArmList, ...] = ()

    @model_validator(mode="after")
    def _has_arms(self) -> Self:
        """Refuse a grid without arms, with two of one name, or with an endless one."""
        count = sum(len(listed.data) * len(listed.batch) for listed in self.arms)
        if count > recipes.MOST_EXPERIMENTS:
            raise ValueError(
                f"there are {count:,} arms, and a grid may have at most"
                f" {recipes.MOST_EXPERIMENTS:,}"
            )
        names = [arm.name for arm in self.all_arms()]
        if not names:
            raise ValueError("there are no arms; add [[arms]] with optimizer, data and batch")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"the arm {twice} is there twice; give one of them a label")
        for arm in self.all_arms():
            lengths = (arm.own.epochs, arm.own.steps, self.records.epochs, self.records.steps)
            if not arm.is_federated and not any(lengths):
                raise ValueError(f"records.epochs or records.steps is missing for {arm.name}")
        return self

    def parts(self) -> list[str]:
        """The names of its arms."""
        return [arm.name for arm in self.all_arms()]

    def all_arms(self) -> list[Arm]:
        """Every combination of data and batch, in the order of the file."""
        return [
            Arm(listed, data, batch)
            for listed in self.arms
            for data in listed.data
            for batch in listed.batch
        ]

    def chosen(self, patterns: Sequence[str]) -> list[Arm]:
        """The arms of these names or patterns such as sgd-*; all of them without any."""
        arms = self.all_arms()
        for pattern in patterns:
            if not any(fnmatchcase(arm.name, pattern) for arm in arms):
                known = ", ".join(arm.name for arm in arms)
                raise ValueError(f"{self.name} has no arm {pattern!r}; it has {known}")
        return [arm for arm in arms if any(fnmatchcase(arm.name, p) for p in patterns or ["*"])]

    def common(self) -> Experiment:
        """What all arms have in common: the base and what the grid lays over it."""
        base = recipes.load(self.base, (), self.variant).only(self.variant)
        common = base.changed(**merge(self.experiment, {"name": self.name}))
        if common.audit.canaries is None:
            raise ValueError(
                f"{self.name} plants no canaries: give experiment.audit.canaries, such as"
                " per_cell = 4"
            )
        return common

    def experiment_of(self, arm: Arm, common: Experiment) -> Experiment:
        """The experiment of an arm: `common` with its data, its batch and its optimizer.

        Of an arm on records it says only whose text and which model; `record_training` says how.
        What the arm lists under `experiment` wins over everything else.
        """
        view = "iid" if arm.data == "iid" else "users"
        experiment = common.changed(name=f"{self.name}/{arm.name}", corpus={"view": view})
        if not arm.is_federated:
            return experiment
        plan: dict[str, Any] = {
            "cohort": float(arm.batch),
            "noise_multiplier": None,
            "noise_stddev": None,
            "clipping": "none",
        }
        target = None
        if self.weigh_by_data and arm.optimizer in ("fedavg", "fedavg+adam"):
            # n_k counts tokens, of which nobody has more than the cap: w_k is exactly n_k / cap.
            cap = float(common.corpus.max_tokens_per_user)
            plan |= {"estimator": "true-average", "user_weight_cap": cap}
        if arm.optimizer in ("fedavg+clip", "dp-fedavg"):
            clip_norm = self.private.clip_norm
            plan |= {"clipping": "flat", "clip_norm": clip_norm, "noise_multiplier": 0.0}
        if arm.optimizer == "dp-fedavg":
            plan["noise_multiplier"] = self.private.noise_multiplier
            target = self._target_epsilon()
        changes: dict[str, Any] = {"plan": plan, "privacy": {"target_epsilon": target}}
        if arm.optimizer == "fedavg+adam":
            changes["server"] = self.adam.model_dump()
        if arm.own.rounds is not None:
            changes["rounds"] = arm.own.rounds
        return experiment.changed(**changes).changed(**arm.own.experiment)

    def _target_epsilon(self) -> float | None:
        """The epsilon that dp-fedavg's noise is solved for; None if the grid gives the noise."""
        if self.private.noise_multiplier is not None:
            return None
        if self.private.target_epsilon is None:
            raise ValueError(
                f"{self.name} has an arm of dp-fedavg and no noise for it: give"
                " private.noise_multiplier or private.target_epsilon"
            )
        return self.private.target_epsilon

    def record_training(self, arm: Arm, seed: int) -> RecordTraining:
        """How an arm trains on records; what it does not say itself, the grid says for all."""
        records, own = self.records, arm.own
        length = own if own.steps is not None or own.epochs is not None else records
        if arm.optimizer == "adam":
            rate = records.adam_learning_rate
        elif arm.optimizer == "momentum":
            rate = scaled_rate(records.momentum_learning_rate or records.learning_rate, arm.batch)
        else:
            rate = scaled_rate(records.learning_rate, arm.batch)
        return RecordTraining(
            optimizer=arm.optimizer,  # type: ignore[arg-type]
            order=arm.data,
            learning_rate=own.learning_rate or rate,
            batch=arm.batch,
            epochs=None if length.steps is not None else length.epochs,
            steps=length.steps,
            momentum=records.momentum,
            unroll=records.unroll,
            seed=seed,
        )

    def to_toml(self) -> str:
        """Every value, with the base written out."""
        data = self.model_dump(mode="json", exclude_none=True)
        data["experiment"] = self.common().model_dump(mode="json", exclude_none=True)
        return tomli_w.dumps(data)


GRIDS = Shelf(Grid, "secret-sharer")

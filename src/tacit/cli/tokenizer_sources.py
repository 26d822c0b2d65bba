"""Where a tokenizer can come from: one function for each source of `tacit tokenizer train`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tacit.cli import tokenizer_options as options

if TYPE_CHECKING:
    from tacit.evaluation.sampling import Sampling
    from tacit.runs.learning import Shape, Terms, Users
    from tacit.tokenizers.history import LearntTokenizer


@dataclass(frozen=True)
class Order:
    """What is to be learnt, and how; a source uses the options that it has."""

    source: str  # a run, a text or a corpus
    shape: Shape
    terms: Terms
    part: str
    tokens: int
    sampling: Sampling
    epsilon: float
    words: int | None  # of each user; None: as the method has it
    candidates: str
    threshold: float | None
    tell: Callable[[int, int], None]

    @property
    def users(self) -> Users:
        from tacit.runs.learning import Users

        return Users.of(self.source, self.part)

    @property
    def releasing_users(self) -> Users:
        """The users, if something can be released about them: refused here, it costs nothing."""
        from tacit.tokenizers import word_counts

        users, trial = self.users, bytes(word_counts.KEY_SIZE)
        word_counts.check_users(users.source, self.terms.population_of(users), trial)
        if self.shape.kind == "word":  # a dictionary needs room for punctuation, too
            from tacit.privacy.events import PureDP

            found = word_counts.WordCounts({"a": 1.0}, (PureDP(self.epsilon),), "a trial")
            found.tokenizer(self.shape.kind, self.shape.size)
        return users


def _sampled(order: Order) -> LearntTokenizer:
    from tacit.runs import learning

    run, round = options.run_at(order.source)
    return learning.sampled(
        run,
        round,
        order.shape,
        options.key_of(order.terms.seed),
        tokens=order.tokens,
        sampling=order.sampling,
        progress=order.tell,
    )


def _public(order: Order) -> LearntTokenizer:
    from tacit.runs import learning

    return learning.public(order.source, order.shape)


def _oracle(order: Order) -> LearntTokenizer:
    from tacit.runs import learning

    return learning.oracle(order.users, order.shape)


def _heavy_hitters(order: Order) -> LearntTokenizer:
    from tacit.runs import learning
    from tacit.tokenizers.heavy_hitters import HeavyHitters

    words = order.words or HeavyHitters.words_per_user
    method = HeavyHitters(order.epsilon, words, threshold=order.threshold)
    users = order.releasing_users
    return learning.heavy_hitters(users, order.candidates, order.shape, method, order.terms)


def _partition_selection(order: Order) -> LearntTokenizer:
    from tacit.runs import learning
    from tacit.tokenizers.partition_selection import PartitionSelection

    users = order.releasing_users
    words = order.words or PartitionSelection.words_per_user
    method = PartitionSelection.for_budget(order.epsilon, order.terms.delta_of(users), words)
    return learning.partition_selection(users, order.shape, method, order.terms)


@dataclass(frozen=True)
class Source:
    """Where a tokenizer can come from, and the options that mean something there."""

    learn: Callable[[Order], LearntTokenizer]
    options: tuple[str, ...] = ()


_RELEASE = ("--part", "--population", "--epsilon", "--delta", "--words", "--seed")
SOURCES: dict[str, Source] = {
    "--from": Source(_sampled, (*options.SAMPLING, "--seed")),
    "--public": Source(_public),
    "--heavy-hitters": Source(_heavy_hitters, (*_RELEASE, "--candidates", "--threshold")),
    "--partition-selection": Source(_partition_selection, _RELEASE),
    "--oracle": Source(_oracle, ("--part",)),
}


def source_in(given: list[str]) -> str:
    """The one source that is named; an option that would be ignored with it is refused."""
    named = [flag for flag in SOURCES if flag in given]
    if len(named) != 1:
        got = f", got {' and '.join(named)}" if named else ""
        raise ValueError(f"name one source of the tokenizer: {', '.join(SOURCES)}{got}")
    [flag] = named
    for option in given:
        owners = [name for name, source in SOURCES.items() if option in source.options]
        if owners and flag not in owners:
            raise ValueError(f"{option} is for {' and '.join(owners)}; leave it out with {flag}")
    return flag

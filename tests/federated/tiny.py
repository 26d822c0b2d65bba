"""Users, models and plans so small that a slow oracle is fast enough."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacit.federated.cohort import CohortJob, CohortTask
from tacit.mechanisms.clipping import FlatClip
from tacit.mechanisms.estimators import FixedDenominator
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.samplers import PoissonSampler
from tacit.models.base import LanguageModel, to_vector
from tacit.models.registry import build
from tacit.privacy.randomness import RunKey

BOS, EOS, VOCABULARY = 0, 1, 30
KEY = RunKey.from_seed(4)
SIZES = {
    "lstm": {"embedding_size": 6, "cells": 5},
    "cifg": {"embedding_size": 6, "cells": 5},
    "cifg-projected": {"embedding_size": 6, "cells": 5},
    "gru": {"embedding_size": 6, "cells": 5},
    "lstm-14m": {"embedding_size": 6, "cells": 5, "layers": 2},
    "transformer-14m": {"embedding_size": 8, "heads": 2, "feed_forward": 8, "layers": 2},
}


@dataclass(frozen=True)
class ListedUsers:
    """Users from a list of arrays."""

    lists: tuple[np.ndarray, ...]
    names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.lists)

    def tokens(self, index: int) -> np.ndarray:
        return self.lists[index]

    def key(self, index: int) -> str:
        return self.names[index] if self.names else f"{index:032x}"


def texts(count: int, seed: int, longest: int = 7) -> np.ndarray:
    """So many texts of one user, BOS to EOS, in which words tend to follow their neighbours."""
    random = np.random.default_rng(seed)
    tokens: list[int] = []
    for _ in range(count):
        first = random.integers(2, VOCABULARY)
        words = (first - 2 + random.integers(0, 3, random.integers(1, longest)).cumsum()) % 28 + 2
        tokens += [BOS, *words, EOS]
    return np.array(tokens, np.uint16)


def few_users() -> ListedUsers:
    """Of all sizes, with nothing, with BOS alone, and with a single target."""
    lists = [texts(count, seed) for seed, count in enumerate((6, 1, 3, 9))]
    lists += [np.array([], np.uint16), np.array([BOS], np.uint16), np.array([BOS, 5], np.uint16)]
    return ListedUsers(tuple(lists))


def small(name: str = "lstm", vocab_size: int = VOCABULARY, **overrides) -> LanguageModel:
    return build(name, vocab_size, seed=1, **(SIZES[name] | overrides))


def plan(**fields) -> RoundPlan:
    defaults = dict(
        population=20,
        sampler=PoissonSampler(0.5),
        clipper=FlatClip(0.5),
        estimator=FixedDenominator(20.0),
    )
    return RoundPlan(**(defaults | fields))


def job(model: LanguageModel, one_plan: RoundPlan, round: int = 0) -> CohortJob:
    return CohortJob(to_vector(model), one_plan.initial_clip_state(), KEY, "main", round)


def task(one_plan: RoundPlan, update, users=None) -> CohortTask:
    return CohortTask(one_plan, update, BOS, users or few_users())


def stream(purpose: str = "test", round: int = 0):
    return KEY.stream(branch="main", round=round, attempt=0, purpose=purpose)

"""Canary clients: made-up users whose traces in a released model measure its privacy.

A canary client trains on nothing.  Whenever it is drawn it brings the same update: a random
direction of its own, ten times as long as the clip norm, so that a clip that is missing shows.  It
passes the same sampler, clip, weight, integers and noise as everybody else, and adds
clip_norm * direction to the sum.  Where users take turns it does too, in the group that follows
from its name as theirs do from their ids.  A fair coin says whether it takes part at all; those
that do not are absent from the users, and their directions serve as the comparison.  (With a clip
per layer it is each layer's part that is cut to its norm, so that a canary may weigh less than the
bound allows: what is concluded stays valid and is less sharp.)

What an auditor looks at is the cosine between each direction and the change of the released model.
A direction that was not used is uniform and independent of the change, so its cosine has mean 0 and
variance 1/n exactly, whatever the change, and is nearly N(0, 1/n) where n, the number of values the
directions live in, is large.

Where to look: the final weights minus the first ones are what everybody sees.  On values that the
server only ever adds to (plain or momentum SGD), that change is linear in the releases.  Word
vectors that are brought back to unit norm after every round are not, so their part of a canary is
bent and partly lost.  `_free_coordinates` names the others, and as `support` makes the directions
live there alone.  All of the clip norm is then spent where it can be seen, which is a choice that
an attacker has too, and n is the size of the support.  Correlated noise needs no other look: of its
rounds the final weights show the sum alone, in which most of the noise has been taken back.  (What
the rounds show one by one is a matter of `tests/audit/repeated_runs.py`.)

Coins and directions come from streams under a secret that follows from the run's own key.  An audit
means something only if nobody could know the coins beforehand: an author of the training could
otherwise treat those clients differently, and a second run with the same coins would be no second
piece of evidence.  The run key is destroyed when the run ends, and the audit comes later, so the
secret is kept in the run's private folder; it is an HMAC under the run key and gives nothing of it
away.  The ledger commits to it before the first round.  A simulation's key is made from its seed,
so its coins can be repeated.  Directions are made when they are asked for: 500 of 1.35 million
values would be 2.7 GB.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.config.experiment import Experiment
from tacit.federated.cohort import CohortUsers
from tacit.federated.user_update import Tokens, UserResult
from tacit.mechanisms.estimators import UserWeighting
from tacit.mechanisms.planning import TURNS
from tacit.models.base import (
    LanguageModel,
    from_vector_,
    frozen_kept,
    layer_sizes,
    parameter_count,
    to_vector,
)
from tacit.privacy.ledger import Ledger
from tacit.privacy.randomness import RunKey
from tacit.privacy.stream import Stream
from tacit.tasks.language.canaries import commit, committed

COINS_FILE = "canary-coins"  # in the private folder of a run: what `RunKey.save` writes
COMMITTED = "coins"  # the kind of the ledger's entry whose plan_hash is the commitment
LENGTH = 10.0  # of an update that is not clipped yet, in clip norms
FEWEST_CLIENTS = 20  # with fewer, even guesses that are all right show next to nothing

# No tokenizer has such tokens, so that training on a canary client is refused.
_NO_TEXT = np.array([-1, -1])

# One who comes or goes changes nobody else's chances, and is hidden by what the claim is about.
_SAMPLINGS = ("poisson", *TURNS)

Ranges = tuple[tuple[int, int], ...]


def coins_of(key: RunKey) -> RunKey:
    """The coins' secret of the run that has this key."""
    return RunKey(key.hmac(b"canary coins"), is_simulation=key.is_simulation)


def commitment(coins: RunKey) -> str:
    """What a ledger may say of the coins before training: it binds them and tells nothing."""
    return coins.hmac(b"commitment").hex()


def keep_coins(folder: Path, key: RunKey, ledger: Ledger) -> RunKey:
    """The coins' secret of a run that is about to be trained, kept for its audit and committed to.

    A file that says something else than the run's key is refused: it would be another run's.
    """
    coins, kept = coins_of(key), read_coins(folder)
    if kept is None:
        coins.save(folder / "private" / COINS_FILE)
    elif kept != coins:
        raise ValueError(
            f"{folder / 'private' / COINS_FILE} does not belong to the key of {folder}"
        )
    what = "a commitment to which canary clients take part"
    commit(ledger, COMMITTED, commitment(coins), what)
    return coins


def read_coins(folder: Path) -> RunKey | None:
    """The coins' secret that a run keeps; None if it keeps none."""
    path = folder / "private" / COINS_FILE
    return RunKey.load(path) if path.exists() else None


def coins_of_run(folder: Path, ledger: Ledger) -> RunKey:
    """The coins that a run was trained with, held against its ledger.

    Other coins than those of the training would show nothing, and so pass every gate.
    """
    path, coins = folder / "private" / COINS_FILE, read_coins(folder)
    if coins is None:
        raise ValueError(
            f"{path} is missing, so it is not known which canary clients took part in {folder},"
            " and nothing can be concluded from them"
        )
    if committed(ledger, COMMITTED) != [commitment(coins)]:
        raise ValueError(
            f"{path} does not hold coins that the ledger of {folder} committed to before the"
            " training"
        )
    return coins


@dataclass(frozen=True)
class CanaryClients:
    """`count` of them, for updates of `dimension` values under the clip norm S of the first round.

    `key` is the secret that coins and directions are drawn from.  `support` are the ranges (first,
    end) of values, in increasing order, in which directions are not zero.
    """

    count: int
    dimension: int
    clip_norm: float
    key: RunKey = field(repr=False)
    support: Ranges

    @classmethod
    def of(cls, experiment: Experiment, model: LanguageModel, key: RunKey) -> CanaryClients | None:
        """The canary clients that an experiment asks for; None if it asks for none.

        Raises:
            ValueError: if there are too few to show anything, or the plan does not treat them as it
                treats users who are drawn by chance and clipped.
        """
        count, plan = experiment.audit.canary_clients, experiment.plan
        if count is None:
            return None
        if plan.sampling not in _SAMPLINGS or plan.clipping == "none":
            raise ValueError(
                f"audit.canary_clients needs plan.sampling = {' or '.join(map(repr, _SAMPLINGS))},"
                f" and a clip norm, got sampling = {plan.sampling!r} and clipping ="
                f" {plan.clipping!r}"
            )
        if any("sampling" in phase.plan or "clipping" in phase.plan for phase in experiment.phases):
            raise ValueError(
                "audit.canary_clients needs the same sampling and clipping in all phases"
            )
        if count < FEWEST_CLIENTS:
            raise ValueError(
                f"audit.canary_clients must be at least {FEWEST_CLIENTS} to show anything, got"
                f" {count}"
            )
        norm = plan.clip_norm or math.hypot(*(plan.layer_clip_norms or ()))
        return cls(count, parameter_count(model), norm, key, _free_coordinates(model))

    @property
    def degrees(self) -> int:
        """n: in how many values the directions live."""
        return sum(end - first for first, end in self.support)

    @cached_property
    def included(self) -> NDArray[np.bool_]:
        """The coins: who takes part in the training.  Only the scoring of guesses may read it."""
        return self._stream("coins").integers(2, self.count).astype(np.bool_)

    @cached_property
    def takes_part(self) -> tuple[int, ...]:
        """The numbers of those that take part, in increasing order."""
        return tuple(np.flatnonzero(self.included).tolist())

    def direction(self, number: int) -> NDArray[np.float64]:
        """A uniformly random unit vector of the `degrees` values of the support."""
        values = self._stream("direction", number).normal(self.degrees)
        values /= math.sqrt(float(np.dot(values, values)))
        return values

    def update(self, number: int) -> NDArray[np.float32]:
        """What this canary client brings to every round that it is drawn for."""
        values = (LENGTH * self.clip_norm) * self.direction(number)
        update = np.zeros(self.dimension, np.float32)
        start = 0
        for first, end in self.support:
            update[first:end] = values[start : start + end - first]
            start += end - first
        return update

    def on_support(self, vector: NDArray[Any]) -> NDArray[np.float64]:
        """The values of a vector where directions are not zero."""
        if vector.shape != (self.dimension,):
            raise ValueError(
                f"the vector must have one dimension of {self.dimension} values, got shape"
                f" {list(vector.shape)}"
            )
        return np.concatenate([vector[first:end] for first, end in self.support], dtype=np.float64)

    def cosines(
        self, change: NDArray[Any], progress: Callable[[int], None] | None = None
    ) -> NDArray[np.float64]:
        """Between each canary client's direction, included or not, and a change of the model.

        One direction is in memory at a time; `progress` is told how many are done.
        """
        seen = self.on_support(change)
        length = math.sqrt(float(np.dot(seen, seen)))
        if not (math.isfinite(length) and length > 0):
            raise ValueError(
                "change must be finite and not all zero where the canaries are, got a norm of"
                f" {length}"
            )
        result = np.empty(self.count)
        for number in range(self.count):
            result[number] = float(np.dot(self.direction(number), seen)) / length
            if progress is not None:
                progress(number + 1)
        return result

    def _stream(self, purpose: str, index: int = 0) -> Stream:
        return self.key.stream(
            branch="canary clients", round=0, attempt=0, purpose=purpose, index=index
        )


@dataclass(frozen=True)
class WithCanaryClients:
    """Users, and after them the canary clients whose coin said yes.

    Every canary client has weight 1: it comes with as many examples as `weighting` asks for.
    """

    users: CohortUsers
    clients: CanaryClients
    weighting: UserWeighting

    def __len__(self) -> int:
        return len(self.users) + len(self.clients.takes_part)

    @property
    def least_population(self) -> int:
        """What the declared population must not be below, however the coins fall."""
        return len(self.users) + self.clients.count

    def tokens(self, index: int) -> Tokens:
        return self.users.tokens(index) if index < len(self.users) else _NO_TEXT

    def key(self, index: int) -> str:
        number = self._canary(index)
        return self.users.key(index) if number is None else f"canary client {number}"

    def brought(self, index: int) -> UserResult | None:
        """The result of a user who brings one; None of a user with texts to train on."""
        number = self._canary(index)
        if number is None:
            return None
        examples = math.ceil(self.weighting.user_weight_cap or 1)
        return UserResult(self.clients.update(number), examples, loss=0.0, steps=0)

    def _canary(self, index: int) -> int | None:
        beyond = index - len(self.users)
        return None if beyond < 0 else self.clients.takes_part[beyond]


def _free_coordinates(model: LanguageModel) -> Ranges:
    """The parameter vectors that `normalise_` leaves alone, as ranges of the flat vector.

    Found by trying, so that it holds for models of the user's own; the model is left as it was.
    """
    before = to_vector(model)
    probe = np.float32(2) * before + np.float32(1)
    from_vector_(model, probe)
    with frozen_kept(model):
        model.normalise_()
    moved = to_vector(model) != probe
    from_vector_(model, before)
    ranges: list[tuple[int, int]] = []
    end = 0
    for size in layer_sizes(model):
        first, end = end, end + size
        if moved[first:end].any():
            continue
        if ranges and ranges[-1][1] == first:
            first = ranges.pop()[0]
        ranges.append((first, end))
    if not ranges:
        raise ValueError("the model restricts all of its parameters, so no support is free")
    return tuple(ranges)

"""How large users' updates are, measured on public text: what to clip at.

The clip norm S is a public constant, so it must not be computed from the people to be protected.
Public text is cut into users that do not exist, each with as many tokens as a real one may have,
and these compute the experiment's own user update, without clipping.  Updates shrink as a model
learns, so they are measured at the start and again after some rounds of plain averaging.

McMahan et al. 2018, section 2: nearly all updates should be smaller than S, but a larger S needs
more noise, so S is tuned.  The median of the norms is the beginning that Abadi et al. 2016 name.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.federated.server import ServerOptimizer, normalised
from tacit.federated.user_update import FedAvg, FedSGD, Tokens
from tacit.kernels.local_sgd import LocalSGD, Weights
from tacit.models.base import LanguageModel, layer_sizes, to_vector
from tacit.privacy.randomness import RunKey

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
_SMALLEST_SHARE = 1e-3  # of the whole: a layer that hardly moves still needs a norm above 0

Progress = Callable[[int, int], None]  # user updates done, of how many


@dataclass(frozen=True)
class Norms:
    """Norms of the updates of some users, over all parameters and by layer."""

    round: int  # rounds of averaging before they were measured
    layers: tuple[str, ...]
    by_layer: NDArray[np.float64]  # [users, layers]

    @property
    def overall(self) -> NDArray[np.float64]:
        """The norm of each user's whole update: sqrt(sum_j |update_j|^2)."""
        whole: NDArray[np.float64] = np.sqrt((self.by_layer**2).sum(1))
        return whole

    def quantiles(self) -> dict[float, float]:
        """The overall norms at `QUANTILES`."""
        return {q: float(np.quantile(self.overall, q)) for q in QUANTILES}

    def layer_medians(self) -> dict[str, float]:
        """The median norm of each layer's updates, by the layer's name."""
        medians = np.median(self.by_layer, axis=0)
        return {name: float(value) for name, value in zip(self.layers, medians, strict=True)}

    @property
    def suggested(self) -> float:
        """S for flat clipping: the median, in two digits."""
        return _two_digits(float(np.median(self.overall)))

    @property
    def suggested_by_layer(self) -> tuple[float, ...]:
        """S_j for per-layer clipping: the layers' medians, in two digits."""
        least = _SMALLEST_SHARE * float(np.median(self.overall))
        return tuple(_two_digits(max(value, least)) for value in self.layer_medians().values())


def pseudo_users(
    texts: Sequence[Sequence[int]], tokens_per_user: int, count: int
) -> list[NDArray[np.int64]]:
    """`count` users of `tokens_per_user` tokens each, made of consecutive texts.

    They are spread evenly over all the text, which has to be long enough for them.
    """
    made: list[NDArray[np.int64]] = []
    current: list[int] = []
    for text in texts:
        current += text
        if len(current) >= tokens_per_user:
            made.append(np.array(current[:tokens_per_user], np.int64))
            current = []
    if len(made) < count:
        raise ValueError(
            f"the public text is too short: it makes {len(made)} users of {tokens_per_user:,}"
            f" tokens, and {count} are needed; give more text or lower corpus.max_tokens_per_user"
        )
    chosen = np.linspace(0, len(made) - 1, count).round().astype(int)
    return [made[index] for index in chosen]


def measured(
    model: LanguageModel,
    update: FedAvg | FedSGD,
    server: ServerOptimizer,
    sgd: LocalSGD,
    users: Sequence[NDArray[np.int64]],
    *,
    bos: int,
    rounds: int,
    cohort: int,
    progress: Progress | None = None,
) -> list[Norms]:
    """Norms at the start and after `rounds` rounds, of users that took no part in those.

    The first `rounds * cohort` users are averaged over, in turn; the rest are measured.
    """
    if not len(users) > rounds * cohort:
        raise ValueError(
            f"users must be more than rounds * cohort = {rounds * cohort}, got {len(users)}"
        )
    if isinstance(update, FedAvg):
        update = dataclasses.replace(update, clip_each_step=False)
    # Spread: neighbours in the text go to different parts.
    order = np.random.default_rng(0).permutation(len(users))
    trained, tested = order[: rounds * cohort], order[rounds * cohort :]
    total, done = 2 * len(tested) + len(trained), 0
    key = RunKey.from_seed(0)  # public text: there is no user to protect

    def updated(user: int, round: int, start: Weights) -> NDArray[np.float32]:
        nonlocal done
        stream = key.stream(branch="clip", round=round, attempt=0, purpose=f"user {user}")
        tokens: Tokens = users[user]
        result = update.run(sgd, start, tokens, bos=bos, stream=stream, clip=lambda x: x)
        done += 1
        if progress is not None:
            progress(done, total)
        return result.update

    weights = to_vector(model)
    results = [_norms(model, 0, [updated(int(user), 0, weights) for user in tested])]
    state = server.initial(len(weights))
    for round in range(rounds):
        part = trained[round * cohort : (round + 1) * cohort]
        average = np.mean([updated(int(user), round, weights) for user in part], axis=0)
        if not np.isfinite(average).all():
            raise ValueError(_diverged(round))
        weights, state = server.apply(weights, average.astype(np.float64), state)
        weights = normalised(model, weights)
    if rounds:
        again = [updated(int(user), rounds, weights) for user in tested]
        results.append(_norms(model, rounds, again))
    return results


def _norms(model: LanguageModel, round: int, updates: Sequence[NDArray[np.float32]]) -> Norms:
    """The norm of each layer of each update, in float64."""
    names = tuple(name for name, _ in model.parameter_vectors())
    cuts = np.cumsum(layer_sizes(model))[:-1]
    rows = [
        [float(np.linalg.norm(block.astype(np.float64))) for block in np.split(update, cuts)]
        for update in updates
    ]
    by_layer = np.array(rows)
    if not np.isfinite(by_layer).all():
        raise ValueError(_diverged(round))
    return Norms(round, names, by_layer)


def _diverged(round: int) -> str:
    """The error message for updates that are not finite."""
    return (
        f"after {round} rounds a user's update without clipping is not finite: lower"
        " update.learning_rate"
    )


def _two_digits(value: float) -> float:
    """Rounded to two significant digits; a clip norm need not be more exact than that."""
    if not value > 0:
        return value
    return float(round(value, 1 - math.floor(math.log10(value))))

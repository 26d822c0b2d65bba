"""What users' updates look like on public text: their sizes, and how much of them they share.

The clip norm S is a public constant, and so is all that a plan is chosen by: neither may be
computed from the people to be protected.  Public text is cut into users that do not exist, each
with as many tokens as a real one may have, and these compute the experiment's own update without
clipping.

What users share is the *signal*, the mean update mu.  An average over a cohort of C has the rest of
their updates as sampling error, and the mechanism's noise of sigma on each of d parameters:

    |average|^2 = |mu|^2 + (|update|^2 - |mu|^2) / C + sigma^2 d          (in expectation)

so that |mu| beside sigma sqrt(d) says whether a round can learn anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tacit.config.experiment import Experiment
from tacit.federated.user_update import FedAvg, FedSGD
from tacit.kernels.local_sgd import LocalSGD, Weights, local_sgd_for
from tacit.models.base import LanguageModel, from_vector_, to_vector
from tacit.privacy.randomness import RunKey
from tacit.tasks.language import assembly
from tacit.tasks.task import Announce
from tacit.tokenizers.tokenizer import Tokenizer

_CHARACTERS = 20  # of a text are read for each token that is needed: more than words are long

MadeUpUser = NDArray[np.int64]


@dataclass(frozen=True)
class PublicUpdates:
    """The updates of some made-up users, by their inner products with one another."""

    products: NDArray[np.float64]  # [users, users]

    @property
    def norms(self) -> NDArray[np.float64]:
        """The norm of each user's update, before clipping."""
        norms: NDArray[np.float64] = np.sqrt(np.diagonal(self.products))
        return norms

    @property
    def clip_norm(self) -> float:
        """S as Abadi et al. 2016 propose it: the median of the norms, in two digits."""
        return float(f"{np.median(self.norms):.2g}")

    def average_norm(self, clip_norm: float | None = None) -> float:
        """The norm of the average update of these users, each clipped to `clip_norm` if given."""
        return float(np.sqrt(self._clipped(clip_norm).mean()))

    def signal(self, clip_norm: float | None = None) -> float:
        """|mu|: the norm of the average over ever more users like these, an estimate.

        The mean over pairs of different users is unbiased for |mu|^2.  Where it is not positive,
        no signal shows among so few, and the estimate is 0.
        """
        products = self._clipped(clip_norm)
        count = len(products)
        square = (products.sum() - np.trace(products)) / (count * (count - 1))
        return float(np.sqrt(max(square, 0.0)))

    def _clipped(self, clip_norm: float | None) -> NDArray[np.float64]:
        """The inner products after clipping."""
        if clip_norm is None:
            return self.products
        factors = np.minimum(1.0, clip_norm / np.maximum(self.norms, 1e-300))
        clipped: NDArray[np.float64] = self.products * np.outer(factors, factors)
        return clipped


def measure_updates(
    experiment: Experiment,
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    users: int = 64,
    announce: Announce = lambda what, done, of: None,
) -> PublicUpdates:
    """The updates of made-up users of public text, from a model that is left as it is.

    The experiment's corpus is never opened.  All updates are held at once, so memory grows with
    `users` times the parameters that are trained: 350 MB for 64 users of a model of 1.35 million.

    Args:
        experiment: whose user update is computed, on as many tokens as it takes from one user.
        model: where the users start.
        tokenizer: the model's.
        texts: public texts, in their order; neighbours go to one user.
        users: how many users to make, at least 2.
        announce: told how many users are done, of how many.

    Raises:
        ValueError: if the text is too short for so many users, or an update is not finite.
    """
    if users < 2:
        raise ValueError(f"users must be at least 2, got {users}")
    people = made_up_users(texts, tokenizer.encode, experiment.corpus.max_tokens_per_user, users)
    computing = MadeUpCohort(model, assembly.user_update(experiment), people, tokenizer.bos)
    start = to_vector(model)
    updates = np.empty((users, len(start)), np.float32)
    try:
        for user, update in enumerate(computing.updates(range(users), 0, start)):
            updates[user] = update
            announce("users' updates on public text", user + 1, users)
    finally:
        from_vector_(model, start)
    return PublicUpdates((updates @ updates.T).astype(np.float64))


def made_up_users(
    texts: Sequence[str],
    encode: Callable[[str], Sequence[int]],
    tokens_per_user: int,
    count: int,
) -> list[MadeUpUser]:
    """`count` users of `tokens_per_user` tokens each, made of consecutive texts.

    They are spread evenly over all the text, and no text is in two of them.  Only what they need is
    tokenized.
    """
    starts = np.linspace(0, len(texts), count + 1).astype(int).tolist()
    users = []
    for start, end in pairwise(starts):
        tokens: list[int] = []
        for text in texts[start:end]:
            tokens += encode(text[: _CHARACTERS * tokens_per_user])
            if len(tokens) >= tokens_per_user:
                users.append(np.array(tokens[:tokens_per_user], np.int64))
                break
    if len(users) < count:
        raise ValueError(
            f"the public text is too short: of {count} users, {len(users)} have {tokens_per_user:,}"
            " tokens; give more text or lower corpus.max_tokens_per_user"
        )
    return users


class MadeUpCohort:
    """Computes the updates of made-up users, without clipping."""

    def __init__(
        self,
        model: LanguageModel,
        update: FedAvg | FedSGD,
        users: Sequence[MadeUpUser],
        bos: int,
    ) -> None:
        if isinstance(update, FedAvg):
            update = dataclasses.replace(update, clip_each_step=False)
        self._sgd: LocalSGD = local_sgd_for(model)
        self._update, self._users, self._bos = update, users, bos
        self._key = RunKey.from_seed(0)  # public text: there is no user to protect

    def updates(self, indices: Iterable[int], round: int, start: Weights) -> Iterator[Weights]:
        """The updates of these users from the weights `start`; `round` is for their streams."""
        for user in indices:
            stream = self._key.stream(branch="clip", round=round, attempt=0, purpose=f"user {user}")
            result = self._update.run(
                self._sgd, start, self._users[user], bos=self._bos, stream=stream, clip=_no_clip
            )
            if not np.isfinite(result.update).all():
                raise ValueError(
                    f"after {round} rounds a user's update without clipping is not finite: lower"
                    " update.learning_rate"
                )
            yield result.update


def _no_clip(update: NDArray[np.float64]) -> NDArray[np.float64]:
    return update

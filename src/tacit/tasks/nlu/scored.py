"""What a model says of utterances, as plain numbers: all that an attack on it gets to see.

Computed from people's text, members' among it, so internal to whoever holds that text (design
rule 5): it belongs in `private/` and in no report for others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_ROUNDING = 1e-3  # of probabilities that were computed in float32, over a few hundred intents


@dataclass(frozen=True, eq=False)
class Scored:
    """Of n utterances, each by a model with the same I intents.

    A log-likelihood is NaN where the model does not know a label of the utterance: an intent or a
    tag that was not in its training.  Its other scores are as good as anybody's.
    """

    intents: Floats  # [n, I] probabilities
    tokens: tuple[Floats, ...]  # of each utterance, per token: the likeliest tag's CRF marginal
    log_likelihood: Floats  # [n] log p(the true intent) + log p(the true tags), natural

    def __post_init__(self) -> None:
        # Copied, so that nobody changes what was checked.
        object.__setattr__(self, "intents", np.array(self.intents, dtype=np.float64))
        tokens = tuple(np.array(each, dtype=np.float64) for each in self.tokens)
        object.__setattr__(self, "tokens", tokens)
        likelihood = np.array(self.log_likelihood, dtype=np.float64)
        object.__setattr__(self, "log_likelihood", likelihood)
        self._check_sizes()
        self._check_values()

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """[n]: whether the model knows all labels of the utterance."""
        return ~np.isnan(self.log_likelihood)

    def only(self, indices: npt.NDArray[Any] | Iterable[int]) -> Scored:
        """Some of the utterances, by their places or by a mask, in the order asked for."""
        chosen = indices if isinstance(indices, np.ndarray) else np.array(list(indices), np.int64)
        places = np.arange(len(self))[chosen]
        return Scored(
            self.intents[places],
            tuple(self.tokens[place] for place in places.tolist()),
            self.log_likelihood[places],
        )

    def _check_sizes(self) -> None:
        count = len(self.tokens)
        if self.intents.ndim != 2 or len(self.intents) != count or not self.intents.shape[1]:
            raise ValueError(
                f"intents must have a row of probabilities for each of the {count} utterances,"
                f" got the shape {self.intents.shape}"
            )
        if self.log_likelihood.shape != (count,):
            raise ValueError(
                f"log_likelihood must have a number for each of the {count} utterances, got the"
                f" shape {self.log_likelihood.shape}"
            )
        for place, each in enumerate(self.tokens):
            if each.ndim != 1 or not each.size:
                raise ValueError(
                    f"tokens of utterance {place} must be a list of at least one score, got the"
                    f" shape {each.shape}"
                )

    def _check_values(self) -> None:
        inside = (self.intents >= 0) & (self.intents <= 1 + _ROUNDING)
        rows = inside.all(axis=1) & (np.abs(self.intents.sum(axis=1) - 1) <= _ROUNDING)
        if not rows.all():
            place = int(np.argmin(rows))
            raise ValueError(
                f"intents of utterance {place} must be probabilities that add up to 1, got"
                f" {_summary(self.intents[place])}"
            )
        every = np.concatenate(self.tokens) if self.tokens else np.empty(0)
        if not ((every >= 0) & (every <= 1 + _ROUNDING)).all():
            place = next(
                place
                for place, each in enumerate(self.tokens)
                if not ((each >= 0) & (each <= 1 + _ROUNDING)).all()
            )
            raise ValueError(
                f"tokens of utterance {place} must be probabilities, got"
                f" {_summary(self.tokens[place])}"
            )
        wrong = np.isinf(self.log_likelihood) | (self.log_likelihood > _ROUNDING)
        if wrong.any():
            place = int(np.argmax(wrong))
            raise ValueError(
                f"log_likelihood of utterance {place} must be a finite number of at most 0, or NaN"
                f" where a label is unknown, got {self.log_likelihood[place]}"
            )


def _summary(values: Floats) -> str:
    return f"numbers from {values.min():g} to {values.max():g} with the sum {values.sum():g}"

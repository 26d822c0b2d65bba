"""What the shadow attack sees of an utterance: its sorted scores (Dupuy et al. 2021, section 4.2).

The attack is learnt on a shadow model and used on another, of another corpus with other intents
and tags.  So a feature must mean the same for both:

- sorted scores have no names: the third feature is how likely the third-likeliest intent is,
  whichever that is;
- their number is fixed.  Of the intents the likeliest few are taken, in descending order; a model
  with fewer gives those that it lacks the probability 0, which is what it holds of them.  Of the
  tokens, the few that the model is least sure of are taken, in ascending order, and the few that it
  is surest of, in descending order; the score of a token is the marginal probability of its
  likeliest tag.  Where an utterance has fewer tokens, the missing ones are taken to be certain
  (1): they add no doubt, as in the product over the tokens;
- the mean score over all tokens, and the intents' entropy in units of its greatest value log I, say
  what the lists cut off, for any length and any number of intents;
- probabilities are taken to the scale log(p / (1 - p)), since models tell members by 0.999 against
  0.99 and this order is kept; beyond 1e-6 from 0 and 1 it is cut, where float32 is only rounding.

What does not carry over is how sure a model is in general: the shadow should be trained as the
target was.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacit.privacy import checks
from tacit.tasks.nlu.scored import Floats, Scored

_NEAREST = 1e-6


@dataclass(frozen=True)
class SortedScores:
    """How many of the sorted scores: the likeliest intents, the least and the most sure tokens."""

    intents: int = 3
    least: int = 5
    most: int = 2

    def __post_init__(self) -> None:
        checks.whole("intents", self.intents, at_least=1)
        checks.whole("least", self.least, at_least=1)
        checks.whole("most", self.most)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the features, in their order."""
        return (
            *(f"intent {place}" for place in range(1, self.intents + 1)),
            "intent entropy",
            *(f"least sure token {place}" for place in range(1, self.least + 1)),
            *(f"most sure token {place}" for place in range(1, self.most + 1)),
            "mean of tokens",
        )

    def of(self, scored: Scored) -> Floats:
        """[n, features]; a row is a function of its utterance alone."""
        tokens = np.ones((len(scored), self.least + self.most))
        means = np.empty(len(scored))
        for row, each in enumerate(scored.tokens):
            ordered = np.sort(each)
            low, high = ordered[: self.least], ordered[::-1][: self.most]
            tokens[row, : len(low)] = low
            tokens[row, self.least : self.least + len(high)] = high
            means[row] = each.mean()
        return np.column_stack(
            [
                _log_odds(self._likeliest(scored.intents)),
                _entropy(scored.intents),
                _log_odds(tokens),
                _log_odds(means),
            ]
        )

    def _likeliest(self, intents: Floats) -> Floats:
        ordered = np.sort(intents, axis=1)[:, ::-1][:, : self.intents]
        return np.pad(ordered, ((0, 0), (0, self.intents - ordered.shape[1])))


def _entropy(intents: Floats) -> Floats:
    """In units of log I, from 0 to 1; a model with one intent has none."""
    inside = np.where(intents > 0, intents, 1.0)
    found: Floats = -(inside * np.log(inside)).sum(axis=1) / np.log(max(intents.shape[1], 2))
    return found


def _log_odds(probabilities: Floats) -> Floats:
    inside = np.clip(probabilities, _NEAREST, 1 - _NEAREST)
    found: Floats = np.log(inside) - np.log1p(-inside)
    return found

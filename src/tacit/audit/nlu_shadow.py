"""The shadow attack (Shokri et al. 2017, as in Dupuy et al. 2021, section 4.2).

A shadow model is trained on a corpus of the attacker's own, so it is known who its members are.  A
classifier learns to tell them from non-members by their sorted scores, and is then used on the
scores of the model under attack.  It needs no label of an utterance, and there is one classifier
for all classes, since another corpus has other ones.

Features.  The classifier is used on a model of another corpus with other intents and tags, so a
feature must mean the same for both:

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

The classifier is one hidden layer of rectified units (none: logistic regression) on standardised
features, fitted by full-batch AdamW to the mean of both sides' log-losses.  A part of each side is
held out, and the weights are those of the step at which the loss on it was least.  It is
deterministic: rows are put into an order of their own before anything is drawn, so that neither the
order of the utterances nor the global random state plays a part.

What does not carry over is how sure a model is in general: the shadow should be trained as the
target was.  Features are standardised by the shadow's utterances.  If the target is less sure of
everything (it was trained for less long, or with noise), its features lie where the classifier
learnt nothing, and the attack is weaker than it could be.  An attacker who holds the utterances in
question needs no label to see that: `rescaled` standardises by these instead.  The paper does not
speak of it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from tacit.audit.roc import Floats
from tacit.federated.cohort import one_thread
from tacit.tasks.nlu.predictions import Scored

# How the classifier is fitted: the same for every target.
_LEARNING_RATE = 0.01
_WEIGHT_DECAY = 0.01
_PATIENCE = 50  # steps without a lesser held-out loss, after which it stops
_HELD_OUT = 0.25  # of each side

_NEAREST = 1e-6  # to 0 and 1, of a probability on the scale of log-odds


@dataclass(frozen=True, eq=False)
class Shadow:
    """What a shadow model says of what it was trained on and of what it was not."""

    name: str  # the corpus, for the record
    members: Scored
    non_members: Scored

    def __post_init__(self) -> None:
        for side in ("members", "non_members"):
            if not len(getattr(self, side)):
                raise ValueError(
                    f"the shadow {self.name} has no {side.replace('_', '-')}: score some utterances"
                    " of its train as members and of its test as non-members"
                )


def _sorted_scores(scored: Scored, *, intents: int = 3, least: int = 5, most: int = 2) -> Floats:
    """[n, features]: what the classifier sees; a row is a function of its utterance alone.

    In order: the likeliest `intents`, the entropy of all, the `least` and the `most` sure tokens,
    and the mean over the tokens.
    """
    tokens = np.ones((len(scored), least + most))
    means = np.empty(len(scored))
    for row, each in enumerate(scored.tokens):
        ordered = np.sort(each)
        low, high = ordered[:least], ordered[::-1][:most]
        tokens[row, : len(low)] = low
        tokens[row, least : least + len(high)] = high
        means[row] = each.mean()
    likeliest = np.sort(scored.intents, axis=1)[:, ::-1][:, :intents]
    likeliest = np.pad(likeliest, ((0, 0), (0, intents - likeliest.shape[1])))
    return np.column_stack(
        [_log_odds(likeliest), _entropy(scored.intents), _log_odds(tokens), _log_odds(means)]
    )


def _entropy(intents: Floats) -> Floats:
    """In units of log I, from 0 to 1; a model with one intent has none."""
    inside = np.where(intents > 0, intents, 1.0)
    entropy: Floats = -(inside * np.log(inside)).sum(axis=1) / np.log(max(intents.shape[1], 2))
    return entropy


def _log_odds(probabilities: Floats) -> Floats:
    inside = np.clip(probabilities, _NEAREST, 1 - _NEAREST)
    odds: Floats = np.log(inside) - np.log1p(-inside)
    return odds


@dataclass(frozen=True, eq=False)
class _Classifier:
    """x -> log-odds of being a member, up to a constant: (x - mean) / scale through a network."""

    mean: Floats
    scale: Floats
    network: nn.Module
    step: int  # the one that was kept
    held_out_loss: float  # log 2 is that of a coin

    @classmethod
    def fit(
        cls,
        members: Floats,
        non_members: Floats,
        *,
        hidden: int = 16,
        steps: int = 500,
        seed: int = 0,
    ) -> _Classifier:
        """Learn from features of members and of non-members, [n, features] each.

        `hidden` is the number of rectified units, and 0 is logistic regression.
        """
        _check_rows(members, non_members)
        stream = np.random.default_rng(seed)
        sides = [_divided(side, stream) for side in (members, non_members)]
        mean, scale = _standardisation(np.concatenate([learnt for learnt, _ in sides]))

        def ready(part: int) -> tuple[Tensor, Tensor]:
            rows = [torch.from_numpy((side[part] - mean) / scale) for side in sides]
            labels = [torch.full((len(side),), 1.0 - number) for number, side in enumerate(rows)]
            return torch.cat(rows), torch.cat(labels).double()

        # From the seed alone: the global random state is neither used nor changed.
        with torch.random.fork_rng(devices=()), one_thread():
            torch.manual_seed(seed)
            features = members.shape[1]
            hidden_layer = [nn.Linear(features, hidden), nn.ReLU()] if hidden else []
            network = nn.Sequential(*hidden_layer, nn.Linear(hidden or features, 1)).double()
            step, loss = _descend(network, ready(0), ready(1), steps)
        return cls(mean, scale, network, step, loss)

    def scores(self, features: Floats) -> Floats:
        """[n]: higher for likelier members."""
        with torch.no_grad():
            values = self.network(torch.from_numpy((features - self.mean) / self.scale))
        scores: Floats = values[:, 0].numpy()
        return scores


@dataclass(frozen=True, eq=False)
class ShadowAttack:
    """A classifier of sorted scores, ready to be used on any model."""

    classifier: _Classifier

    @classmethod
    def train(cls, shadows: Sequence[Shadow]) -> ShadowAttack:
        """Learn from one or several shadows, each with as many members as non-members."""
        if not shadows:
            raise ValueError("there is no shadow model to learn from; give at least one")
        drawn = [_balanced(shadow) for shadow in shadows]
        members, non_members = (np.concatenate(side) for side in zip(*drawn, strict=True))
        return cls(_Classifier.fit(members, non_members))

    def scores(self, scored: Scored) -> Floats:
        """[n]: higher for likelier members; that of an utterance depends on it alone."""
        return self.classifier.scores(_sorted_scores(scored))

    def rescaled(self, *pool: Scored) -> ShadowAttack:
        """The same, standardised by utterances of the target, members or not."""
        mean, scale = _standardisation(np.concatenate([_sorted_scores(each) for each in pool]))
        return ShadowAttack(replace(self.classifier, mean=mean, scale=scale))


def _balanced(shadow: Shadow) -> tuple[Floats, Floats]:
    """Features of as many members as non-members, drawn from a stream of their own."""
    sides = [_sorted_scores(side) for side in (shadow.members, shadow.non_members)]
    count = min(map(len, sides))
    stream = np.random.default_rng(0)
    # Sorted first, so that the order in which the utterances came plays no part.
    drawn = [side[np.lexsort(side.T)][stream.permutation(len(side))[:count]] for side in sides]
    return drawn[0], drawn[1]


def _standardisation(rows: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each feature; 1 for one that is constant but for rounding."""
    mean, scale = rows.mean(axis=0), rows.std(axis=0)
    return mean, np.where(scale > 1e-12 * np.abs(mean), scale, 1.0)


def _descend(
    network: nn.Module, train: tuple[Tensor, Tensor], held_out: tuple[Tensor, Tensor], steps: int
) -> tuple[int, float]:
    """Leave the network with the least held-out loss: at which step that was, and the loss."""

    def log_loss(rows: Tensor, labels: Tensor) -> Tensor:
        """The mean of both sides' log-losses."""
        scores = network(rows)[:, 0]
        each = nn.functional.binary_cross_entropy_with_logits(scores, labels, reduction="none")
        return (each[labels > 0].mean() + each[labels == 0].mean()) / 2

    optimizer = torch.optim.AdamW(
        network.parameters(), lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY
    )
    best, best_step, best_loss = copy.deepcopy(network.state_dict()), 0, math.inf
    for step in range(steps + 1):
        with torch.no_grad():
            loss = float(log_loss(*held_out))
        if loss < best_loss:
            best, best_step, best_loss = copy.deepcopy(network.state_dict()), step, loss
        if step - best_step >= _PATIENCE:
            break
        optimizer.zero_grad()
        log_loss(*train).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    network.load_state_dict(best)
    return best_step, best_loss


def _divided(rows: Floats, stream: np.random.Generator) -> tuple[Floats, Floats]:
    """Rows to learn from and rows held out, at least one of each."""
    ordered = rows[np.lexsort(rows.T)]
    held_out = min(max(round(_HELD_OUT * len(rows)), 1), len(rows) - 1)
    drawn = ordered[stream.permutation(len(rows))]
    return drawn[held_out:], drawn[:held_out]


def _check_rows(members: Floats, non_members: Floats) -> None:
    for name, side in (("members", members), ("non-members", non_members)):
        if len(side) < 2:
            raise ValueError(
                f"the shadow has {len(side)} {name} to learn from: at least 2 are needed, one to"
                " hold out"
            )
        if not np.isfinite(side).all():
            raise ValueError(f"a feature of the shadow's {name} is not a finite number")
    rows, features = len(members) + len(non_members), members.shape[1]
    if rows < features:
        raise ValueError(
            f"the shadow has {rows} utterances, fewer than the {features} features to learn from:"
            " score more utterances, or take fewer features"
        )

"""A small classifier of members against non-members, learnt from a shadow model's scores.

One hidden layer of rectified units (none: logistic regression) on standardised features, fitted
by full-batch AdamW to the mean of both sides' log-losses.  A part of each side is held out, and
the weights are those of the step at which the loss on it was least.

It is deterministic: rows are put into an order of their own before anything is drawn, so that
neither the order of the utterances nor the global random state plays a part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from tacit.privacy import checks
from tacit.tasks.nlu.scored import Floats


@dataclass(frozen=True)
class ClassifierSettings:
    """How the classifier is fitted; the same for every target."""

    hidden: int = 16
    learning_rate: float = 0.01
    weight_decay: float = 0.01
    steps: int = 500
    patience: int = 50  # steps without a lesser held-out loss, after which it stops
    held_out: float = 0.25
    seed: int = 0

    def __post_init__(self) -> None:
        checks.whole("hidden", self.hidden)
        checks.whole("steps", self.steps, at_least=1)
        checks.whole("patience", self.patience, at_least=1)
        checks.whole("seed", self.seed)
        checks.positive("learning_rate", self.learning_rate)
        checks.non_negative("weight_decay", self.weight_decay)
        checks.open_unit("held_out", self.held_out)


@dataclass(frozen=True, eq=False)
class Classifier:
    """x -> log-odds of being a member, up to a constant: (x - mean) / scale through the layers."""

    mean: Floats
    scale: Floats
    layers: tuple[tuple[Floats, Floats], ...]  # weights [in, out] and biases [out]
    step: int  # the one that was kept
    held_out_loss: float  # log 2 is that of a coin

    def scores(self, features: Floats) -> Floats:
        """[n]: higher for likelier members."""
        values = (features - self.mean) / self.scale
        for place, (weight, bias) in enumerate(self.layers):
            values = (np.maximum(values, 0) if place else values) @ weight + bias
        found: Floats = values[:, 0]
        return found


def fitted(members: Floats, non_members: Floats, settings: ClassifierSettings) -> Classifier:
    """Learn from features of members and of non-members, [n, features] each."""
    _check(members, non_members)
    stream = np.random.default_rng(settings.seed)
    sides = [_divided(side, settings.held_out, stream) for side in (members, non_members)]
    mean, scale = standardisation(np.concatenate([kept for kept, _ in sides]))

    def ready(part: int) -> tuple[Tensor, Tensor]:
        rows = [torch.from_numpy((side[part] - mean) / scale) for side in sides]
        labels = [torch.full((len(side),), 1.0 - place) for place, side in enumerate(rows)]
        return torch.cat(rows), torch.cat(labels).double()

    layers, step, loss = _descend(ready(0), ready(1), settings)
    return Classifier(mean, scale, layers, step, loss)


def standardisation(rows: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each feature; 1 for one that is constant but for rounding."""
    mean, scale = rows.mean(axis=0), rows.std(axis=0)
    return mean, np.where(scale > 1e-12 * np.abs(mean), scale, 1.0)


def _descend(
    train: tuple[Tensor, Tensor], held_out: tuple[Tensor, Tensor], settings: ClassifierSettings
) -> tuple[tuple[tuple[Floats, Floats], ...], int, float]:
    """The layers with the least held-out loss, at which step, and that loss."""
    parameters = _initial(train[0].shape[1], settings)
    optimizer = torch.optim.AdamW(
        parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    best, best_step, best_loss = [each.detach().clone() for each in parameters], 0, math.inf
    for step in range(settings.steps + 1):
        with torch.no_grad():
            loss = float(_loss(parameters, held_out))
        if loss < best_loss:
            best = [each.detach().clone() for each in parameters]
            best_step, best_loss = step, loss
        if step - best_step >= settings.patience:
            break
        optimizer.zero_grad()
        _loss(parameters, train).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    arrays = [each.numpy() for each in best]
    return tuple(zip(arrays[::2], arrays[1::2], strict=True)), best_step, best_loss


def _initial(features: int, settings: ClassifierSettings) -> list[Tensor]:
    """Weights and biases in turn; weights uniform within 1 / sqrt(inputs), biases 0."""
    generator = torch.Generator().manual_seed(settings.seed)
    sizes = [features, *([settings.hidden] if settings.hidden else []), 1]
    found: list[Tensor] = []
    for inputs, outputs in pairwise(sizes):
        weight = torch.empty(inputs, outputs, dtype=torch.float64)
        bound = 1 / math.sqrt(inputs)
        found += [
            weight.uniform_(-bound, bound, generator=generator).requires_grad_(),
            torch.zeros(outputs, dtype=torch.float64, requires_grad=True),
        ]
    return found


def _loss(parameters: list[Tensor], rows: tuple[Tensor, Tensor]) -> Tensor:
    """The log-loss with either side counting one half."""
    values, labels = rows
    for place, (weight, bias) in enumerate(zip(parameters[::2], parameters[1::2], strict=True)):
        values = (values.relu() if place else values) @ weight + bias
    each = nn.functional.binary_cross_entropy_with_logits(values[:, 0], labels, reduction="none")
    return (each[labels > 0].mean() + each[labels == 0].mean()) / 2


def _divided(rows: Floats, share: float, stream: np.random.Generator) -> tuple[Floats, Floats]:
    """Rows to learn from and rows held out, at least one of each."""
    ordered = rows[np.lexsort(rows.T)]
    held_out = min(max(round(share * len(rows)), 1), len(rows) - 1)
    drawn = ordered[stream.permutation(len(rows))]
    return drawn[held_out:], drawn[:held_out]


def _check(members: Floats, non_members: Floats) -> None:
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

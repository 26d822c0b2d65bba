"""Draws the next token of many texts at once, from their logits and one number in [0, 1) each.

Of the tokens in order of their ids, the first whose cumulative probability is above the number is
taken.  At 10,000 words every pass over the [texts, vocabulary] array counts, so there
are few, and all in place.

Guarantees.  A token's probability is as exact as a float32 logit can make it: off by a relative
1e-7 or so per unit of its logit divided by the temperature.  One of probability 0 is never taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tacit.evaluation.decoder import Output

LOG2_E = math.log2(math.e)

_SMALLEST_TEMPERATURE = 1e-30  # below, float32 has no reciprocal; the first choice has it all


@dataclass(frozen=True)
class Choice:
    """How the next token is chosen, by temperature and top-k; a `banned` token never is."""

    banned: Tensor
    temperature: float = 1.0  # 0 takes the first choice every time
    top_k: int | None = None  # fewer than there are tokens

    def __call__(self, output: Output, uniform: Tensor) -> Tensor:
        """One token per row, from a number in [0, 1) for each.

        Raises `ValueError` if a row has no finite largest logit, as broken weights give.
        """
        temperature = max(self.temperature, _SMALLEST_TEMPERATURE)
        if self.temperature > 0 and self.top_k is None:
            powers = output.powers(LOG2_E / temperature)
            if powers is not None:
                return _draw(powers.index_fill_(1, self.banned, 0), uniform)
        logits = output.logits()
        logits = logits if logits.dtype == torch.float64 else logits.to(torch.float32)
        logits.index_fill_(1, self.banned, -torch.inf)
        largest = logits.amax(1, keepdim=True)
        if not torch.isfinite(largest).all():
            raise ValueError("the model's logits are not finite numbers: its weights are broken")
        if self.temperature == 0:
            # Of equal logits the first: numpy promises so, torch does not.
            return torch.from_numpy(logits.numpy().argmax(1))
        if self.top_k is not None:
            _keep_first_choices(logits, self.top_k)
        # The maximum goes first: a small temperature must not make infinities of all.
        return _draw(logits.sub_(largest).mul_(LOG2_E / temperature).exp2_(), uniform)


def _keep_first_choices(logits: Tensor, k: int) -> None:
    """Set all but the k first choices of each row to -inf, in place.

    Of equal logits the smaller id is first.  numpy finds the k-th largest value of a row in a fifth
    of the time that torch takes.
    """
    values = np.partition(logits.numpy(), -k, axis=1)
    edge = torch.from_numpy(values[:, -k, np.newaxis].copy())
    # A tie reaches over the edge where the largest value behind it equals that at the edge.
    tied = np.flatnonzero(values[:, :-k].max(axis=1) == values[:, -k])
    if len(tied):
        rows, edges = logits[tied], edge[tied]
        equal = rows == edges
        left = k - (rows > edges).sum(1, keepdim=True)
        rows[equal & (equal.cumsum(1) > left)] = -torch.inf
        logits[tied] = rows
    logits.masked_fill_(logits < edge, -torch.inf)


def _draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """Column j of each row with probability weights[j] / total, from a number in [0, 1).

    A cumulative sum over all columns, in float64 as it has to be, costs several times the model
    itself.  So columns form blocks, as many as each has columns.  First a block is chosen by
    float64 cumulative sums over their float32 sums, then a column within that block alone.
    """
    columns = weights.shape[1]
    size = math.isqrt(columns)
    whole = columns - columns % size
    sums = weights[:, :whole].view(len(weights), -1, size).sum(2)
    if whole < columns:
        sums = torch.cat([sums, weights[:, whole:].sum(1, keepdim=True)], dim=1)
    block, within = _locate(sums, uniform)
    column = (block * size).unsqueeze(1) + torch.arange(size)
    if whole < columns:
        inside = weights.gather(1, column.clamp(max=columns - 1)).masked_fill(column >= columns, 0)
    else:
        inside = weights.gather(1, column)
    return block * size + _locate(inside, within)[0]


def _locate(weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """The column whose share of the total holds each number, and where in it, in [0, 1)."""
    cumulative = weights.cumsum(1, dtype=torch.float64)
    total = cumulative[:, -1:]
    # Kept below the total, so that rounding never goes to a weight of 0 behind the last above 0.
    target = torch.minimum(uniform.unsqueeze(1) * total, torch.nextafter(total, 0 * total))
    column = torch.searchsorted(cumulative, target, right=True)
    weight = weights.gather(1, column)
    within = (target - cumulative.gather(1, column) + weight) / weight
    return column.squeeze(1), within.squeeze(1).clamp(0, 1 - 2**-53)

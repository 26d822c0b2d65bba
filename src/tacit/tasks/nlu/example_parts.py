"""Gradients of single utterances by one parameter tensor, in a form that is never written out.

By a weight matrix the gradient of an utterance is a sum over its T tokens, G = sum_t d_t x_t', so
with T far below the matrix's sides its norm is found from products of tokens alone,

    |G|^2 = sum_s,t (d_s . d_t) (x_s . x_t)

(Goodfellow 2015 for T = 1; Li et al. 2022, "ghost clipping"), and a weighted sum over utterances is
one matrix product over all of their tokens (Bu et al. 2023, "book-keeping").

Guarantee: all is computed in float64 from tensors that are float32.  Where terms of both signs may
cancel, the most that rounding can take away is put on top, so that `squares` is no less than the
exact square norm but for a relative error below (n + 1) 2^-52 for n values.  What is put on top
depends on the utterance's own tokens, and not on how far the longest of a batch made it be padded;
sums over tokens go from the first to the last, so that zeros behind them change no bit.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

_UNIT = 2.0**-52

# Values of a weight matrix up to which the gradients by it are written out for their norms.
_SMALL = 1 << 12


class Part(abc.ABC):
    """For each of B utterances the gradient by the same parameter tensor."""

    @abc.abstractmethod
    def squares(self) -> Tensor:
        """|G_b|^2: [B], float64; not finite if anything in G_b is not."""

    @abc.abstractmethod
    def add_(self, total: Tensor, factors: Tensor) -> None:
        """total += sum_b factors_b G_b, of the parameter's shape and in float64."""

    @abc.abstractmethod
    def only(self, chosen: Tensor) -> Self:
        """Of these utterances, by a mask [B]."""


@dataclass(frozen=True)
class Whole(Part):
    """Written out after all, for what is small: [B, ...]."""

    values: Tensor

    def squares(self) -> Tensor:
        return self.values.flatten(1).double().square().sum(dim=1)

    def add_(self, total: Tensor, factors: Tensor) -> None:
        total.view(-1).addmv_(self.values.flatten(1).double().t(), factors)

    def only(self, chosen: Tensor) -> Self:
        return type(self)(self.values[chosen])


@dataclass(frozen=True)
class Products(Part):
    """sum_t d_t x_t' with `left` d [B, T, O] and `right` x [B, T, I]."""

    left: Tensor
    right: Tensor

    def squares(self) -> Tensor:
        d, x = self.left.double(), self.right.double()
        O, I = d.shape[2], x.shape[2]  # noqa: E741
        if O * I <= _SMALL:
            found = (d.transpose(1, 2) @ x).square().sum(dim=(1, 2))
        else:
            pairs = (d @ d.transpose(1, 2)) * (x @ x.transpose(1, 2))
            found = _in_order(pairs.flatten(1)).clamp(min=0)
        largest = _in_order(d.norm(dim=2) * x.norm(dim=2))
        return found + (O + I + _tokens(d).square()) * _UNIT * largest.square()

    def add_(self, total: Tensor, factors: Tensor) -> None:
        d, x = self.left.flatten(0, 1), self.right.flatten(0, 1)
        rows = d.any(dim=1).nonzero().squeeze(1)  # of padding all are zeros
        weights = factors.repeat_interleave(self.left.shape[1])[rows]
        weighted = d[rows].double() * weights[:, None]
        total.view(d.shape[1], x.shape[1]).addmm_(weighted.t(), x[rows].double())

    def only(self, chosen: Tensor) -> Self:
        return type(self)(self.left[chosen], self.right[chosen])


@dataclass(frozen=True)
class Rows(Part):
    """Of a table of vectors: row `ids` [B, T] gets `values` [B, T, D]."""

    ids: Tensor
    values: Tensor

    def squares(self) -> Tensor:
        B, values = len(self.ids), self.values.double()
        width = int(self.ids.max()) + 1
        keys = torch.arange(B)[:, None] * width + self.ids
        cells, of_key = torch.unique(keys, return_inverse=True)
        sums = values.new_zeros(len(cells), values.shape[2])
        sums.index_add_(0, of_key.flatten(), values.flatten(0, 1))
        found = values.new_zeros(B).index_add_(0, cells // width, sums.square().sum(dim=1))
        largest = _in_order(values.norm(dim=2))
        return found + _tokens(values) * _UNIT * largest.square()

    def add_(self, total: Tensor, factors: Tensor) -> None:
        weighted = self.values.double() * factors[:, None, None]
        total.index_add_(0, self.ids.flatten(), weighted.flatten(0, 1))

    def only(self, chosen: Tensor) -> Self:
        return type(self)(self.ids[chosen], self.values[chosen])


def _in_order(values: Tensor) -> Tensor:
    """The sum over the last dimension from its first value to its last."""
    return values.cumsum(dim=-1)[..., -1]


def _tokens(values: Tensor) -> Tensor:
    """How many of an utterance's tokens have anything but zeros: [B], float64."""
    return values.any(dim=2).sum(dim=1).double()

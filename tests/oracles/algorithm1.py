"""Algorithm 1 of McMahan et al. 2018, line by line and slowly, in float64.

One piece of text at a time: no batches of tensors, no padding, no masks, no integers.  Of tacit it
uses nothing but the model that it is given.  What the algorithm draws (batches, noise) is given as
functions and the cohorts as lists, so that a test can hand in the draws of the fast path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

Vector = np.ndarray
Piece = list[int]  # at most unroll + 1 tokens; each but the first is predicted from those before
ClipFn = Callable[[Vector], Vector]


# The user's data.


def pieces_of_stream(tokens: Sequence[int], unroll: int, bos: int) -> list[Piece]:
    """The stream in steps of `unroll`, each piece with the token before its first target."""
    pieces, start = [], 0
    while start + 1 < len(tokens):
        pieces.append([int(token) for token in tokens[start : start + unroll + 1]])
        start += unroll
    return [piece for piece in pieces if targets_in([piece], bos)]


def pieces_of_texts(tokens: Sequence[int], unroll: int, bos: int) -> list[Piece]:
    """Every text by itself in steps of `unroll`; a text begins with BOS."""
    texts: list[Piece] = []
    for token in tokens:
        if token == bos or not texts:
            texts.append([])
        texts[-1].append(int(token))
    return [piece for text in texts for piece in pieces_of_stream(text, unroll, bos)]


def targets_in(pieces: list[Piece], bos: int) -> int:
    """How many examples these are: tokens to predict, of which BOS is none."""
    return sum(token != bos for piece in pieces for token in piece[1:])


# The loss and its gradient.


@dataclass
class Loss:
    """l(theta; b), the mean over the examples of a batch, for a float64 model."""

    model: torch.nn.Module
    bos: int
    parameters: list[torch.nn.Parameter] = field(init=False)

    def __post_init__(self) -> None:
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        assert all(p.dtype == torch.float64 for p in self.parameters)

    def gradient(self, theta: Vector, batch: list[Piece]) -> Vector:
        self._set(theta)
        total = torch.zeros((), dtype=torch.float64)
        for piece in batch:
            logits, _ = self.model(torch.tensor([piece[:-1]]))
            for scores, target in zip(logits[0], piece[1:], strict=True):
                if target != self.bos:
                    total = total + torch.logsumexp(scores, 0) - scores[target]
        mean = total / targets_in(batch, self.bos)
        gradients = torch.autograd.grad(mean, self.parameters, allow_unused=True)
        return np.concatenate(
            [
                np.zeros(p.numel()) if g is None else g.numpy().ravel()
                for p, g in zip(self.parameters, gradients, strict=True)
            ]
        )

    def project(self, theta: Vector) -> Vector:
        """Word vectors of norm 1, where the model asks for that."""
        if not getattr(getattr(self.model, "embedding", None), "unit_norm", False):
            return theta
        projected, start = theta.copy(), 0
        for parameter in self.parameters:
            end = start + parameter.numel()
            if parameter is self.model.embedding.weight:
                rows = projected[start:end].reshape(parameter.shape)
                for word, row in enumerate(rows):
                    rows[word] = row / math.sqrt(sum(value**2 for value in row))
            start = end
        return projected

    def _set(self, theta: Vector) -> None:
        start = 0
        with torch.no_grad():
            for parameter in self.parameters:
                end = start + parameter.numel()
                parameter.copy_(torch.from_numpy(theta[start:end].copy()).view_as(parameter))
                start = end
        assert start == len(theta)


# ClipFn.


def pi(update: Vector, S: float) -> Vector:
    """Equation 1: update * min(1, S / |update|)."""
    norm = math.sqrt(math.fsum(value**2 for value in update))
    return update * min(1.0, S / norm) if norm > 0 else update


def flat_clip(S: float) -> ClipFn:
    return lambda update: pi(update, S)


def per_layer_clip(norms: Sequence[float], layers: Sequence[int]) -> ClipFn:
    def clip(update: Vector) -> Vector:
        parts, start = [], 0
        for S_j, size in zip(norms, layers, strict=True):
            parts.append(pi(update[start : start + size], S_j))
            start += size
        assert start == len(update)
        return np.concatenate(parts)

    return clip


def no_clip(update: Vector) -> Vector:
    return update


def aware_of_weight(clip: ClipFn, w_k: float) -> ClipFn:
    """The update whose multiple by w_k is clipped (footnote 3)."""
    return lambda update: clip(w_k * update) / w_k if w_k > 0 else update


# UserUpdate.


@dataclass
class FedAvg:
    """UserUpdateFedAvg; `order(n)` is the order of an epoch's n pieces."""

    E: int
    B: int
    eta: float
    greedy: bool
    penalty: float = 0.0

    def __call__(
        self, loss: Loss, pieces: list[Piece], theta_0: Vector, clip: ClipFn, order=range
    ) -> Vector:
        theta = theta_0
        for _ in range(self.E):
            ordered = [pieces[place] for place in order(len(pieces))] if pieces else []
            batches = [ordered[i : i + self.B] for i in range(0, len(ordered), self.B)]
            for b in batches:
                slope = loss.gradient(theta, b) + self.penalty * (theta - theta_0)
                theta = loss.project(theta - self.eta * slope)
                if self.greedy:
                    theta = theta_0 + clip(theta - theta_0)
        return clip(theta - theta_0)


@dataclass
class FedSGD:
    """UserUpdateFedSGD; `order(n)` are the pieces that a batch is chosen from, in order."""

    B: int | None
    eta: float

    def __call__(
        self, loss: Loss, pieces: list[Piece], theta_0: Vector, clip: ClipFn, order=range
    ) -> Vector:
        if not pieces:
            return np.zeros_like(theta_0)
        b = pieces
        if self.B is not None and len(pieces) > self.B:
            b = [pieces[place] for place in list(order(len(pieces)))[: self.B]]
        return clip(-self.eta * loss.gradient(theta_0, b))


# The main loop.


@dataclass
class Algorithm1:
    """`W_min` chooses the clipped estimator, and `w_hat=None` gives every user a weight of 1."""

    q: float
    z: float
    S: float
    clip: ClipFn
    user_update: FedAvg | FedSGD
    loss: Loss
    w_hat: float | None = None
    W_min: float | None = None
    weight_aware: bool = False

    def w(self, pieces: list[Piece]) -> float:
        n_k = targets_in(pieces, self.loss.bos)
        return 1.0 if self.w_hat is None else min(n_k / self.w_hat, 1.0)

    def W(self, users: list[list[Piece]]) -> float:
        return sum(self.w(pieces) for pieces in users)

    def round(
        self,
        theta: Vector,
        users: list[list[Piece]],
        cohort: Sequence[int],
        noise: Callable[[float, int], Vector],
        order: Callable[[int], Callable[[int], Sequence[int]]] = lambda k: range,
    ) -> Vector:
        """theta^{t+1}; `order(k)` is what user k draws."""
        weighted_sum, weight_sum = np.zeros_like(theta), 0.0
        for k in cohort:
            w_k = self.w(users[k])
            clip = aware_of_weight(self.clip, w_k) if self.weight_aware else self.clip
            delta_k = self.user_update(self.loss, users[k], theta, clip, order(k))
            weighted_sum = weighted_sum + w_k * delta_k
            weight_sum += w_k
        if self.W_min is None:
            delta = weighted_sum / (self.q * self.W(users))
            sigma = self.z * self.S / (self.q * self.W(users)) if self.z else 0.0
        else:
            delta = weighted_sum / max(self.q * self.W_min, weight_sum)
            sigma = 2 * self.z * self.S / (self.q * self.W_min) if self.z else 0.0
        return theta + delta + (noise(sigma, len(theta)) if self.z else 0.0)

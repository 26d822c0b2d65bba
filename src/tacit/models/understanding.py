"""The contract of models of intents and slots, and the CRF over tags that all of them end in.

The loss of an utterance is the sum of two (Dupuy et al. 2021, section 4.2): the cross entropy of
its intent, and the negative log-likelihood of its tags under a linear-chain CRF (Lafferty et al.
2001).  For a sequence of T tokens with emissions e_t(k), the tags y_1 ... y_T have the probability

    p(y) = exp(s(y)) / Z,   s(y) = start(y_1) + sum_t e_t(y_t) + sum_t A(y_t-1, y_t) + end(y_T)

with Z the sum of exp(s) over all sequences of tags, which the forward recursion finds in T steps:
alpha_t(k) = e_t(k) + log sum_j exp(alpha_t-1(j) + A(j, k)).

Guarantee (design rule 8): what is computed for an utterance depends on that utterance and on the
parameters alone.  Sequences of different lengths stand side by side; what stands at positions
without a token has no effect, neither on a value nor on a gradient, and there are no batch
statistics.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from tacit.models.base import check_size

# exp(-60) is far above what float32 rounds to zero, so below this spread no sum can vanish.
_SAFE_SPREAD = 60.0


class LinearChainCrf(nn.Module):
    """The chain's own parameters; they begin at zero, where every sequence is as likely."""

    def __init__(self, tags: int) -> None:
        super().__init__()
        check_size("tags", tags)
        self.tags = tags
        self.start = nn.Parameter(torch.zeros(tags))
        self.transitions = nn.Parameter(torch.zeros(tags, tags))  # from the row to the column
        self.end = nn.Parameter(torch.zeros(tags))

    def forward(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """log p of each sequence of tags: [B], of emissions [B, T, K], tags and mask [B, T].

        The tokens of every row come first, and there is at least one.
        """
        self._check(emissions, mask)
        emissions = emissions.masked_fill(~mask[..., None], 0.0)
        return self._score(emissions, tags.masked_fill(~mask, 0), mask) - self._log_z(
            emissions, mask
        )

    @torch.no_grad()
    def decode(self, emissions: Tensor, mask: Tensor) -> list[list[int]]:
        """The likeliest sequence of tags of each row (Viterbi)."""
        self._check(emissions, mask)
        emissions = emissions.masked_fill(~mask[..., None], 0.0)
        stay = torch.arange(self.tags)
        best = self.start + emissions[:, 0]
        origins = []
        for step in range(1, mask.shape[1]):
            scores, origin = (best[:, :, None] + self.transitions).max(dim=1)
            is_token = mask[:, step, None]
            best = torch.where(is_token, scores + emissions[:, step], best)
            origins.append(torch.where(is_token, origin, stay))
        tag = (best + self.end).argmax(dim=1, keepdim=True)
        path = [tag]
        for origin in reversed(origins):
            tag = origin.gather(1, tag)
            path.append(tag)
        rows: list[list[int]] = torch.cat(path[::-1], dim=1).tolist()
        return [row[:length] for row, length in zip(rows, mask.sum(1).tolist(), strict=True)]

    def marginals(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """p(y_t = k) of each token: [B, T, K], with zeros where there is no token.

        It is the derivative of log Z by e_t(k), so it needs no backward recursion of its own.
        """
        self._check(emissions, mask)
        with torch.enable_grad():
            inputs = emissions.detach().masked_fill(~mask[..., None], 0.0).requires_grad_()
            [marginals] = torch.autograd.grad(self._log_z(inputs, mask).sum(), inputs)
        return marginals

    def _score(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """s(y); all tags are valid ones, and emissions are 0 where there is no token."""
        emitted = emissions.gather(2, tags[..., None]).squeeze(2).sum(1)
        moved = (self.transitions[tags[:, :-1], tags[:, 1:]] * mask[:, 1:]).sum(1)
        last = tags.gather(1, mask.sum(1, keepdim=True) - 1).squeeze(1)
        return self.start[tags[:, 0]] + emitted + moved + self.end[last]

    def _log_z(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """log Z by the forward recursion.

        The sum over j of exp(alpha(j) + A(j, k)) is a matrix product, much faster than a table of
        all pairs for each row, once what is largest is taken out of both factors.  That loses
        nothing unless transitions into one tag are far apart; then the table is made.
        """
        largest = self.transitions.detach().amax(dim=0)
        spread = (largest - self.transitions.detach().amin(dim=0)).amax()
        factors = torch.exp(self.transitions - largest) if spread <= _SAFE_SPREAD else None
        alpha = self.start + emissions[:, 0]
        for step in range(1, mask.shape[1]):
            if factors is None:
                reached = torch.logsumexp(alpha[:, :, None] + self.transitions, dim=1)
            else:
                top = alpha.detach().amax(dim=1, keepdim=True)
                reached = torch.log(torch.exp(alpha - top) @ factors) + top + largest
            alpha = torch.where(mask[:, step, None], reached + emissions[:, step], alpha)
        return torch.logsumexp(alpha + self.end, dim=1)

    def _check(self, emissions: Tensor, mask: Tensor) -> None:
        """Raise `ValueError` unless the shapes are [B, T, K] and [B, T], T at least 1."""
        if emissions.shape != (*mask.shape, self.tags) or mask.dim() != 2 or not mask.shape[1]:
            raise ValueError(
                f"emissions must have the shape [batch, time, {self.tags}] and mask [batch, time],"
                f" time at least 1, got {list(emissions.shape)} and {list(mask.shape)}"
            )


def crf_grad_sample(
    crf: LinearChainCrf, emissions: Tensor, tags: Tensor, mask: Tensor, weights: Tensor
) -> dict[str, Tensor]:
    """The gradient of w_b log p_b for each sequence b, by the names of the CRF's parameters.

    Each has the shape [B, ...]; `backward` would give only their sum.  `weights` [B] are the
    derivatives of the loss by log p_b.
    """
    values = {name: value.detach() for name, value in crf.named_parameters()}
    with torch.device("meta"):
        bare = LinearChainCrf(crf.tags)  # without the hooks of `crf`, which must not be called

    def weighted(
        values: dict[str, Tensor], emissions: Tensor, tags: Tensor, mask: Tensor, weight: Tensor
    ) -> Tensor:
        alone = (emissions[None], tags[None], mask[None])
        log_p: Tensor = weight * functional_call(bare, values, alone)[0]
        return log_p

    of_each = vmap(grad(weighted), in_dims=(None, 0, 0, 0, 0))
    gradients: dict[str, Tensor] = of_each(values, emissions, tags, mask, weights)
    return gradients


@dataclass(frozen=True)
class UtteranceBatch:
    """Utterances side by side; the first dimension of every tensor counts them."""

    inputs: dict[str, Tensor]  # what the model reads: its encoder and it agree on the names
    mask: Tensor  # [B, T] bool: where there is a token; there is one at the start of each row
    tags: Tensor  # [B, T] int64; 0 where there is no token
    intents: Tensor  # [B] int64

    def __len__(self) -> int:
        return len(self.mask)


@dataclass(frozen=True)
class UtteranceScores:
    """Scores of the intents and the tags of a batch."""

    intents: Tensor  # [B, I] logits
    emissions: Tensor  # [B, T, K]: of each token and tag, for the CRF


class UnderstandingModel(nn.Module, abc.ABC):
    """A network with an intent layer and a CRF over tags."""

    config: Any  # its sizes: a frozen dataclass with a `kind`, `intents` and `tags`
    crf: LinearChainCrf

    @abc.abstractmethod
    def scores(self, inputs: dict[str, Tensor], mask: Tensor) -> UtteranceScores:
        """The scores of utterances, whose labels need not be known."""

    def forward(self, batch: UtteranceBatch) -> Tensor:
        """The loss of each utterance: [B]."""
        scores = self.scores(batch.inputs, batch.mask)
        intent = functional.cross_entropy(scores.intents, batch.intents, reduction="none")
        # Called as a module, so that hooks on it (per-example gradients) see the call.
        slots: Tensor = self.crf(scores.emissions, batch.tags, batch.mask)
        return intent - slots

    @torch.no_grad()
    def decode(self, inputs: dict[str, Tensor], mask: Tensor) -> tuple[Tensor, list[list[int]]]:
        """The likeliest intent of each utterance, and its likeliest sequence of tags.

        The intents are indices [B]; the tags are one list for each utterance, as long as it has
        tokens.
        """
        scores = self.scores(inputs, mask)
        return scores.intents.argmax(dim=1), self.crf.decode(scores.emissions, mask)

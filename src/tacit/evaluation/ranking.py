"""Where the target stands among a model's choices, and which choices come first.

One order everywhere: larger logit first, and of equal logits the smaller token id.  So a model
that ties (an untrained one, a unigram) is scored the same on every machine, and a target's rank is
below k exactly if the target is among `top_k`.
"""

from __future__ import annotations

import torch
from torch import Tensor

SORTING_PAYS = 32  # targets of one row; below, counting for each is faster


def log_probs_and_ranks(
    logits: Tensor, targets: Tensor, scratch: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """log p(target) and the target's rank (0 is the first choice), one of each per row.

    The rank is counted, not sorted: the number of larger logits, plus equal ones of smaller id.
    A row with NaN predicts nothing: its log-probability is -inf and its rank is the last.
    `scratch`, of the shape and type of `logits`, saves an allocation as large as the logits.
    """
    if is_repeated(logits):
        return _of_one_row(logits[0], targets)
    if scratch is None:
        scratch = torch.empty_like(logits)
    ranks = _counted_ranks(logits, targets, scratch)
    log_probs = torch.log_softmax(logits, 1, out=scratch).gather(1, targets.unsqueeze(1))
    return _without_nan(log_probs.squeeze(1), ranks, logits.shape[1])


def _counted_ranks(logits: Tensor, targets: Tensor, scratch: Tensor) -> Tensor:
    column = targets.unsqueeze(1)
    target_logits = logits.gather(1, column)
    # Comparisons are written as 0.0 and 1.0, whose sums are exact up to 2^24 and much faster
    # than counting booleans.
    larger = torch.gt(logits, target_logits, out=scratch).sum(1)
    at_least = torch.ge(logits, target_logits, out=scratch).sum(1)
    ranks = larger.to(torch.int64)
    tied = torch.nonzero(at_least > larger + 1).squeeze(1)
    if len(tied):
        equal = logits[tied] == target_logits[tied]
        earlier = torch.arange(logits.shape[1]) < column[tied]
        ranks[tied] += (equal & earlier).sum(1)
    return ranks


def is_before(token: int, logits: Tensor, targets: Tensor) -> Tensor:
    """1 in each row where `token` stands before the target, else 0."""
    theirs = logits[:, token]
    ours = logits.gather(1, targets.unsqueeze(1)).squeeze(1)
    return ((theirs > ours) | ((theirs == ours) & (targets > token))).to(torch.int64)


def is_repeated(logits: Tensor) -> bool:
    """Is it one row expanded to many, as a bigram gives for all places after the same token?"""
    return logits.shape[0] > 1 and logits.stride(0) == 0


def _of_one_row(row: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The same for many targets of one row: one softmax, and one sort where that is cheaper."""
    if len(targets) < SORTING_PAYS:
        repeated = row.expand(len(targets), -1)
        ranks = _counted_ranks(repeated, targets, torch.empty(repeated.shape, dtype=row.dtype))
    else:
        places = torch.empty_like(row, dtype=torch.int64)
        places[torch.argsort(row, descending=True, stable=True)] = torch.arange(len(row))
        ranks = places[targets]
    return _without_nan(torch.log_softmax(row, 0)[targets], ranks, len(row))


def _without_nan(log_probs: Tensor, ranks: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    log_probs = log_probs.to(torch.float64)
    broken = torch.isnan(log_probs)
    log_probs[broken] = -torch.inf
    ranks[broken] = vocab_size - 1
    return log_probs, ranks


def top_k(logits: Tensor, k: int) -> Tensor:
    """Token ids of the k first choices of each row, in order."""
    k = min(k, logits.shape[1])
    if is_repeated(logits):
        return top_k(logits[:1], k).expand(len(logits), -1)
    values, ids = torch.topk(logits, k, dim=1)
    # `topk` breaks ties as it likes.  Where one reaches over the edge, sort the row in full.
    cut = torch.nonzero((logits >= values[:, -1:]).sum(1) > k).squeeze(1)
    if len(cut):
        order = torch.sort(logits[cut], dim=1, descending=True, stable=True).indices[:, :k]
        ids[cut] = order
        values[cut] = logits[cut].gather(1, order)
    by_id = torch.argsort(ids, dim=1)
    ids, values = ids.gather(1, by_id), values.gather(1, by_id)
    return ids.gather(1, torch.argsort(values, dim=1, descending=True, stable=True))

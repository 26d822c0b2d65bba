"""One predictor's scores for every target: all token metrics are sums over these.

One order of a model's choices holds everywhere: larger logit first, and of equal logits the smaller
token id.  So a model that ties (an untrained one, a unigram) is scored the same on every machine,
and a target's rank is below k exactly if the target is among `top_k`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.evaluation.predictors import (
    Chunk,
    IntArray,
    NetworkPredictor,
    Predictor,
    Tokens,
    all_targets,
    as_arrays,
    evaluating,
    first_positions,
)


@dataclass(frozen=True)
class Scores:
    """Per target, in the order of the text: what it was, how probable, and its rank."""

    targets: IntArray
    log_probs: npt.NDArray[np.float64]  # natural logarithms
    ranks: IntArray  # 0: the predictor's first choice
    first: IntArray  # where each sequence's targets begin; one more entry than sequences


def score(predictor: Predictor, sequences: Sequence[Tokens], *, never: int | None = None) -> Scores:
    """Score every token but the first of every sequence, given all tokens before it.

    The token `never`, if there is one, is not among the choices: it takes no rank from the others.

    Equal to scoring each sequence by itself.  The order of the results is the order of the
    input, whatever order the predictor works in, so sums over them do not depend on batching.
    """
    arrays = as_arrays(sequences, predictor.vocab_size)
    targets = all_targets(arrays)
    scores = Scores(
        targets,
        np.full(len(targets), np.nan),
        np.full(len(targets), -1, dtype=np.int64),
        first_positions(arrays),
    )
    if isinstance(predictor, NetworkPredictor):
        with evaluating(predictor.model):
            _in_parallel(predictor.batches(arrays), scores, never)
    else:
        _fill(predictor.chunks(arrays), scores, never)
    assert (scores.ranks >= 0).all(), "the predictor left out targets"
    return scores


def _fill(chunks: Iterator[Chunk], scores: Scores, never: int | None) -> None:
    """Write the scores of some chunks to their positions."""
    scratch = torch.empty(0)
    with torch.no_grad():
        for chunk in chunks:
            rows = len(chunk.positions)
            if not _is_repeated(chunk.logits) and len(scratch) < rows:
                scratch = torch.empty_like(chunk.logits)
            targets = torch.from_numpy(scores.targets[chunk.positions])
            log_probs, ranks = _log_probs_and_ranks(chunk.logits, targets, scratch[:rows])
            if never is not None:
                ranks -= _is_before(never, chunk.logits, targets)
            scores.log_probs[chunk.positions] = log_probs.numpy()
            scores.ranks[chunk.positions] = ranks.numpy()


def _in_parallel(batches: Sequence[Iterator[Chunk]], scores: Scores, never: int | None) -> None:
    """One batch per core, rather than all cores on each small product.

    No core waits for another, which it would after every operation, and the arithmetic is that of
    one core: the figures do not depend on how many there are.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        _fill(chain.from_iterable(batches), scores, never)
        return
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            jobs = [pool.submit(_fill, batch, scores, never) for batch in batches]
            try:
                for job in jobs:
                    job.result()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    finally:
        torch.set_num_threads(threads)


def _log_probs_and_ranks(
    logits: Tensor, targets: Tensor, scratch: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """log p(target) and the target's rank (0 is the first choice), one of each per row.

    The rank is counted, not sorted: the number of larger logits, plus equal ones of smaller id.
    A row with NaN predicts nothing: its log-probability is -inf and its rank is the last.
    `scratch`, of the shape and type of `logits`, saves an allocation as large as the logits.
    """
    if _is_repeated(logits):
        return _of_one_row(logits[0], targets)
    if scratch is None:
        scratch = torch.empty_like(logits)
    ranks = _counted_ranks(logits, targets, scratch)
    log_probs = torch.log_softmax(logits, 1, out=scratch).gather(1, targets.unsqueeze(1))
    return _without_nan(log_probs.squeeze(1), ranks, logits.shape[1])


def top_k(logits: Tensor, k: int) -> Tensor:
    """Token ids of the k first choices of each row, in order."""
    k = min(k, logits.shape[1])
    if _is_repeated(logits):
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


def _is_before(token: int, logits: Tensor, targets: Tensor) -> Tensor:
    """1 in each row where `token` stands before the target, else 0."""
    own = logits[:, token]
    target = logits.gather(1, targets.unsqueeze(1)).squeeze(1)
    return ((own > target) | ((own == target) & (targets > token))).to(torch.int64)


def _is_repeated(logits: Tensor) -> bool:
    """Is it one row expanded to many, as a bigram gives for all targets after the same token?"""
    return logits.shape[0] > 1 and logits.stride(0) == 0


def _of_one_row(row: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """`_log_probs_and_ranks` for many targets of one row: one softmax and one sort."""
    rank_of = torch.empty_like(row, dtype=torch.int64)
    rank_of[torch.argsort(row, descending=True, stable=True)] = torch.arange(len(row))
    return _without_nan(torch.log_softmax(row, 0)[targets], rank_of[targets], len(row))


def _without_nan(log_probs: Tensor, ranks: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    log_probs = log_probs.to(torch.float64)
    broken = torch.isnan(log_probs)
    log_probs[broken] = -torch.inf
    ranks[broken] = vocab_size - 1
    return log_probs, ranks

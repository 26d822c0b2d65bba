"""One predictor's scores for every target: all token metrics are sums over these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch

from tacit.evaluation.network import NetworkPredictor, evaluating
from tacit.evaluation.predictors import (
    Chunk,
    IntArray,
    Predictor,
    Tokens,
    all_targets,
    as_arrays,
    first_positions,
)
from tacit.evaluation.ranking import is_before, is_repeated, log_probs_and_ranks


@dataclass(frozen=True)
class Scores:
    """Per target, in the order of the text: what it was, how probable, and its rank."""

    targets: IntArray
    log_probs: npt.NDArray[np.float64]  # natural logarithms
    ranks: IntArray  # 0: the predictor's first choice
    first: IntArray  # where each sequence's targets begin; one more entry than sequences

    def of(self, sequence: int) -> slice:
        """Where the targets of one sequence are."""
        return slice(int(self.first[sequence]), int(self.first[sequence + 1]))


def score(predictor: Predictor, sequences: Sequence[Tokens], *, never: int | None = None) -> Scores:
    """Score every token but the first of every sequence, given all tokens before it.

    The token `never`, if there is one, is nobody's choice: it takes no rank from the others.

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
    """Write the scores of some chunks to their places."""
    scratch = torch.empty(0)
    with torch.no_grad():
        for chunk in chunks:
            rows = len(chunk.positions)
            if not is_repeated(chunk.logits) and len(scratch) < rows:
                scratch = torch.empty_like(chunk.logits)
            wanted = torch.from_numpy(scores.targets[chunk.positions])
            log_probs, ranks = log_probs_and_ranks(chunk.logits, wanted, scratch[:rows])
            if never is not None:
                ranks -= is_before(never, chunk.logits, wanted)
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

"""One predictor's scores for every target: all token metrics are sums over these.

The targets of a sequence are all its tokens but the first.  A *position* counts targets through
all sequences in their order, so that logits may come in any order and in pieces of any size.  What
predicts is a model, or a baseline that looks at the last token only.

At 10,000 words almost all the time of a model goes into the [targets, vocabulary] logits and their
softmax, so batches are made around them: sequences of similar length side by side, and as few steps
at a time as fill one piece that stays in the cache.  A model that carries a state gets a text in
such pieces; one that does not gets it whole.  Rows whose text has ended leave the batch; what is
padded is masked.  Logits that are inner products with tied word vectors are computed here rather
than by the model: for what counts alone, and always into the same memory.

One order of a model's choices holds everywhere: larger logit first, and of equal logits the smaller
token id.  So a model that ties (an untrained one, a unigram) is scored the same on every machine,
and a target's rank is below k exactly if the target is among `top_k`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tacit.kernels.scoring import log_probs_and_ranks
from tacit.models.base import LanguageModel, State
from tacit.models.layers import TiedEmbedding, TiedModel

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Tokens = Sequence[int] | npt.NDArray[np.integer[Any]]
# Positions [n] and what a model gives for them: logits [n, vocab_size], or what scores words.
Chunk = tuple[IntArray, Tensor]
_Forward = Callable[[Tensor, State], tuple[Tensor, State]]

_ROWS = 128  # logits of this many targets at a time: 5 MB at 10,000 words
_WHOLE_TEXTS = 4  # times as many where texts are given whole, or only one or two would fit
_REPORT_SECONDS = 0.1

_Result = TypeVar("_Result")


class Baseline(Protocol):
    """What predicts the next token by the last one alone."""

    @property
    def vocab_size(self) -> int:
        """How many tokens it knows."""
        ...

    def score_targets(
        self, contexts: IntArray, targets: IntArray, never: int | None = None
    ) -> tuple[FloatArray, IntArray, IntArray]:
        """The log-probability and two ranks of each target after the token before it.

        Ranks are those of this module's order of choices: first without the token `never`, then
        among all tokens.
        """
        ...


Predictor = LanguageModel | Baseline


@dataclass(frozen=True)
class Scores:
    """Per target, in the order of the text: what it was, how probable, and its ranks."""

    targets: IntArray
    log_probs: FloatArray  # natural logarithms
    ranks: IntArray  # 0: the predictor's first choice, of all tokens but `never`
    ranks_of_all: IntArray  # 0: the most probable of all tokens
    first: IntArray  # where each sequence's targets begin; one more entry than sequences


def score(predictor: Predictor, sequences: Sequence[Tokens], *, never: int | None = None) -> Scores:
    """Score every token but the first of every sequence, given all tokens before it.

    The token `never`, if there is one, is not among the choices: in `ranks` it takes no rank from
    the others, and in `ranks_of_all` it competes with them.

    Equal to scoring each sequence by itself.  The order of the results is the order of the
    input, whatever order the predictor works in, so sums over them do not depend on batching.
    """
    arrays = as_arrays(sequences, vocab_size_of(predictor))
    contexts, targets = pairs(arrays)
    first = _first_positions(arrays)
    if not isinstance(predictor, LanguageModel):
        return Scores(targets, *predictor.score_targets(contexts, targets, never), first)
    ranks, of_all = np.full((2, len(targets)), -1, dtype=np.int64)
    scores = Scores(targets, np.full(len(targets), np.nan), ranks, of_all, first)
    tied = _as_tied(predictor)
    embedding = None if tied is None else tied.embedding
    waiting = _batches(predictor, predictor if tied is None else tied.outputs, arrays)
    jobs = [partial(_fill, batch, embedding, scores, never) for batch in waiting]
    with evaluating(predictor):
        in_threads(jobs, torch.get_num_threads())
    assert (scores.ranks >= 0).all(), "the model left out targets"
    return scores


def vocab_size_of(predictor: Predictor) -> int:
    """How many tokens it knows."""
    known = predictor.config if isinstance(predictor, LanguageModel) else predictor
    return known.vocab_size


def as_arrays(sequences: Sequence[Tokens], vocab_size: int) -> list[IntArray]:
    """The sequences as integer arrays, or `ValueError` if one holds a token out of range."""
    arrays = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    for index, array in enumerate(arrays):
        if array.ndim != 1:
            raise ValueError(f"sequence {index} must be a flat list of token ids")
        if array.size and not (array.min() >= 0 and array.max() < vocab_size):
            worst = int(array.max()) if array.max() >= vocab_size else int(array.min())
            raise ValueError(
                f"sequence {index} holds token {worst}, and the model knows tokens 0 to"
                f" {vocab_size - 1}: the tokenizer does not fit the model"
            )
    return arrays


def pairs(sequences: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """The token before each target, and the targets, in the order of their positions."""
    none = np.empty(0, np.int64)
    contexts = np.concatenate([none, *(sequence[:-1] for sequence in sequences)])
    return contexts, np.concatenate([none, *(sequence[1:] for sequence in sequences)])


def _first_positions(sequences: Sequence[IntArray]) -> IntArray:
    """The position of each sequence's first target, and behind them the number of targets."""
    counts = [max(len(sequence) - 1, 0) for sequence in sequences]
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model without dropout; afterwards it is in the mode that it was in."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def in_threads(
    jobs: Sequence[Callable[[], _Result]],
    threads: int,
    report: Callable[[], None] = lambda: None,
    cancel: Callable[[], None] = lambda: None,
) -> list[_Result]:
    """The results of all jobs, one job per thread at a time.

    Each is computed in the arithmetic of one thread: no core waits for another, which it would
    after every operation, and results do not depend on how many there are.  The caller's thread
    only waits and calls `report`, so that Ctrl-C reaches it.  If something goes wrong, jobs that
    have not begun are dropped, and `cancel` may tell the others to stop.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            try:
                futures = [pool.submit(job) for job in jobs]
                waiting = set(futures)
                while waiting:
                    report()
                    ready, waiting = wait(waiting, _REPORT_SECONDS, FIRST_EXCEPTION)
                    for future in ready:
                        future.result()
                report()
            except BaseException:
                cancel()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    finally:
        torch.set_num_threads(before)
    return [future.result() for future in futures]


def batches(model: LanguageModel, sequences: Sequence[IntArray]) -> list[Iterator[Chunk]]:
    """Logits of all targets, batch by batch, to be computed while the model is `evaluating`.

    Each batch may run in a thread of its own.  Batching changes no row's result.
    """
    return _batches(model, model, sequences)


def _batches(
    model: LanguageModel, forward: _Forward, sequences: Sequence[IntArray]
) -> list[Iterator[Chunk]]:
    """What `forward` gives for all targets, batch by batch, in the pieces that fit the model."""
    first = _first_positions(sequences)
    by_length = sorted(
        (index for index, sequence in enumerate(sequences) if len(sequence) > 1),
        key=lambda index: (-len(sequences[index]), index),
    )
    result, start = [], 0
    while start < len(by_length):
        longest = len(sequences[by_length[start]]) - 1
        rows = _ROWS if model.carries_state else max(1, _WHOLE_TEXTS * _ROWS // longest)
        batch = by_length[start : start + rows]
        texts = [sequences[index] for index in batch]
        result.append(_batch(forward, model.carries_state, texts, first[batch]))
        start += rows
    return result


def _batch(
    forward: _Forward, carries_state: bool, batch: list[IntArray], first: IntArray
) -> Iterator[Chunk]:
    """What `forward` gives for a batch that is sorted by falling length."""
    lengths = np.array([len(sequence) - 1 for sequence in batch])
    inputs = np.zeros((len(batch), lengths[0]), np.int64)  # what is padded is never read
    for row, sequence in enumerate(batch):
        inputs[row, : lengths[row]] = sequence[:-1]
    tokens = torch.from_numpy(inputs)
    state: State = None
    start = 0
    while start < lengths[0]:
        alive = int((lengths > start).sum())
        steps = int(lengths[0])
        if carries_state:
            steps = min(max(1, _ROWS // alive), steps - start)
            state = None if state is None else tuple(part[:alive] for part in state)
        with torch.no_grad():  # not around a yield: the caller's mode is the caller's
            vectors, state = forward(tokens[:alive, start : start + steps], state)
        times = np.arange(start, start + steps)
        rows, columns = np.nonzero(times < lengths[:alive, None])
        flat = vectors.flatten(0, 1)
        if len(rows) < len(flat):
            flat = flat[torch.from_numpy(rows * steps + columns)]
        positions = first[rows] + times[columns]
        for part in range(0, len(rows), _ROWS):
            piece = slice(part, part + _ROWS)
            yield positions[piece], flat[piece]
        start += steps


def _as_tied(model: LanguageModel) -> TiedModel | None:
    """The model, if its logits are the products of its outputs with its word vectors.

    They are not where a class of one's own, or whoever holds the model, changed what logits are.
    """
    if not isinstance(model, TiedModel) or type(model.embedding) is not TiedEmbedding:
        return None
    as_defined = getattr(model.forward, "__func__", None) is TiedModel.forward
    return model if as_defined else None


def _fill(
    chunks: Iterator[Chunk], embedding: TiedEmbedding | None, scores: Scores, never: int | None
) -> None:
    """Write the scores of some chunks to their positions."""
    scratch = torch.empty(0)
    with torch.no_grad():
        for positions, vectors in chunks:
            logits = vectors
            if embedding is not None:
                if len(scratch) < len(vectors):
                    scratch = vectors.new_empty(len(vectors), len(embedding.weight))
                logits = embedding.score(vectors, out=scratch[: len(vectors)])
            targets = torch.from_numpy(scores.targets[positions])
            log_probs, ranks, of_all = log_probs_and_ranks(logits, targets, never)
            scores.log_probs[positions] = log_probs.numpy()
            scores.ranks[positions] = ranks.numpy()
            scores.ranks_of_all[positions] = of_all.numpy()


def top_k(logits: Tensor, k: int) -> Tensor:
    """Token ids of the k first choices of each row, in order."""
    k = min(k, logits.shape[1])
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

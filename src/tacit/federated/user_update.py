"""What a user computes in a round (McMahan et al. 2018, Algorithm 1: the two UserUpdates).

Guarantee: an update is a function of the user's own tokens, the released weights, public constants
and the user's own stream.  It is not bounded yet: the plan's `contribution` clips it, also after
greedy clipping, whose last float32 rounding may exceed S.  An update that is not finite is handed
on as it is, and the plan counts it as zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from tacit.kernels.local_sgd import LocalSGD, LocalSteps, Weights
from tacit.kernels.rows import Layout, TokenRows, check_layout, rows_of
from tacit.kernels.sampled_softmax import SampledSoftmax
from tacit.privacy.records import NonNegative, Positive, Record, at_least
from tacit.privacy.stream import Stream

Tokens = NDArray[np.integer[Any]]
Clip = Callable[[NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True)
class UserResult:
    """What a user computed, private until it is clipped, summed and noised.

    `update` is theta - theta^0, `examples` is n_k, `loss` the mean training loss over all of the
    user's `steps` local steps.
    """

    update: NDArray[np.float32]
    examples: int
    loss: float
    steps: int


@dataclass(frozen=True, kw_only=True)
class FedAvg(Record):
    """E epochs of SGD over batches of B rows; the update is theta - theta^0.

    `clip_each_step` is "greedy" clipping: theta <- theta^0 + ClipFn(theta - theta^0) after every
    step, as Algorithm 1 prints it; otherwise the update is clipped once, at the end.
    `update_penalty` is lambda in a local loss with lambda/2 |theta - theta^0|^2 added to it.
    With `shuffle` every epoch has an order of rows of its own, otherwise that of the text.
    With `sampled_softmax` the softmax of every step is over some of the words only.
    `tokens_per_round` is how much of its text a user reads in one round; see `stretch`.
    """

    learning_rate: Positive
    local_epochs: Annotated[int, at_least(1)] = 1
    batch_size: Annotated[int, at_least(1)] = 8
    unroll: Annotated[int, at_least(1)] = 10
    clip_each_step: bool = False
    update_penalty: NonNegative = 0.0
    rows: Annotated[Layout, check_layout] = "stream"
    shuffle: bool = False
    sampled_softmax: SampledSoftmax | None = None
    tokens_per_round: Annotated[int, at_least(2)] | None = None

    def run(
        self, sgd: LocalSGD, start: Weights, tokens: Tokens, *, bos: int, stream: Stream, clip: Clip
    ) -> UserResult:
        """This user's update from the released weights `start`; `clip` is the round's ClipFn."""
        rows = rows_of(tokens, unroll=self.unroll, bos=bos, layout=self.rows)
        examples, steps, seen, loss_sum = rows.examples, 0, 0, 0.0
        room = np.empty(start.shape) if self.clip_each_step else None
        local = _steps(self.sampled_softmax, sgd, start, rows, stream)
        batches = self.batches(rows, stream)
        for loss, count in local.steps(batches, self.learning_rate, penalty=self.update_penalty):
            steps, seen, loss_sum = steps + 1, seen + count, loss_sum + loss
            # Once theta is not finite nothing brings it back, and a clip would hide it.
            if not math.isfinite(loss) and not np.isfinite(local.weights()).all():
                break
            if room is not None:
                weights = local.weights()
                clipped = greedy_clip(weights, start, clip, room)
                if clipped is None:
                    break
                if clipped is not weights:
                    local.set_weights(clipped)
        update = local.update() if steps else np.zeros_like(start)
        return UserResult(update, examples, loss_sum / max(seen, 1), steps)

    def batches(self, rows: TokenRows, stream: Stream) -> Iterator[TokenRows]:
        """The rows of each local step, epoch after epoch."""
        for _ in range(self.local_epochs if len(rows) else 0):
            order = stream.permutation(len(rows)) if self.shuffle else None
            for first in range(0, len(rows), self.batch_size):
                batch = slice(first, first + self.batch_size)
                yield rows.take(batch if order is None else order[batch])


@dataclass(frozen=True, kw_only=True)
class FedSGD(Record):
    """One gradient at theta^0: the update is -eta times the gradient of the mean loss of a batch.

    The batch is all of the user's rows, or `batch_size` of them drawn from the user's stream.  The
    user counts by all of its examples either way.  Nothing is projected: the server does that.
    """

    learning_rate: Positive
    batch_size: Annotated[int, at_least(1)] | None = None
    unroll: Annotated[int, at_least(1)] = 10
    rows: Annotated[Layout, check_layout] = "stream"
    sampled_softmax: SampledSoftmax | None = None
    tokens_per_round: Annotated[int, at_least(2)] | None = None

    def run(
        self, sgd: LocalSGD, start: Weights, tokens: Tokens, *, bos: int, stream: Stream, clip: Clip
    ) -> UserResult:
        """This user's update from the released weights `start`."""
        rows = rows_of(tokens, unroll=self.unroll, bos=bos, layout=self.rows)
        if not len(rows):
            return UserResult(np.zeros_like(start), 0, 0.0, 0)
        batch = self.batch(rows, stream)
        local = _steps(self.sampled_softmax, sgd, start, batch, stream)
        loss = local.step(batch, self.learning_rate, project=False)
        return UserResult(local.update(), rows.examples, loss / batch.examples, 1)

    def batch(self, rows: TokenRows, stream: Stream) -> TokenRows:
        """The rows that the gradient is computed on."""
        if self.batch_size is None or len(rows) <= self.batch_size:
            return rows
        return rows.take(stream.subset(len(rows), self.batch_size))


def stretch(tokens: Tokens, length: int | None, stream: Stream) -> Tokens:
    """`length` tokens in a row, from anywhere in the user's text; all of a shorter one.

    A round costs as much privacy however much of its text a user reads.  So with little time it is
    better to ask more users for less each: the noise on the average falls with their number.  The
    stretch is another one each round, drawn from the user's own stream.
    """
    if length is None or len(tokens) <= length:
        return tokens
    first = int(stream.integers(len(tokens) - length + 1, 1)[0])
    return tokens[first : first + length]


def _steps(
    sampled: SampledSoftmax | None, sgd: LocalSGD, start: Weights, rows: TokenRows, stream: Stream
) -> LocalSteps:
    """Local steps from `start`: of the whole model, or of the candidates of a sampled softmax."""
    if sampled is not None and len(rows):
        return sampled.of(sgd, start, rows, stream)
    sgd.load(start)
    return sgd


def greedy_clip(
    weights: Weights, start: Weights, clip: Clip, room: NDArray[np.float64]
) -> Weights | None:
    """theta^0 + ClipFn(theta - theta^0); None if theta is not finite.

    `weights` itself if it is within the bound.  `room` is where the difference is computed: fresh
    memory for every step would double the time.
    """
    update = np.subtract(weights, start, out=room)
    if not np.isfinite(update).all():
        return None
    clipped = clip(update)
    # A clipper hands back what is within its bound.
    return weights if clipped is update else start + clipped.astype(np.float32)

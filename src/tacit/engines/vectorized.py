"""Many users at once on one device: for accelerators, which one user's small products leave idle.

Users take slots.  In every step each slot is given the next batch of its user; a slot whose user is
done goes to the next in the cohort, so that users of different sizes do not wait for each other.
What a batch lacks of the full shape is padding that is masked, and so is a slot without a user.

Results agree with `SerialEngine` to rounding, not in every bit, which is why `kernel` differs.

Guarantee (isolation): what is computed in a slot depends on its user alone; weights, losses and
batch are all set anew for the next one.  A product's last bits may depend on its shape, so shapes
are made of public constants: the slots from the memory and the expected cohort, the rows from the
batch size, the time from the unroll.  Neither others' text nor the realised cohort has a part in
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.federated.cohort import (
    CohortJob,
    CohortSum,
    CohortTask,
    Progress,
    clip_function,
    sum_results,
)
from tacit.federated.user_update import FedAvg, FedSGD, UserResult, greedy_clip
from tacit.kernels.local_sgd import Weights
from tacit.kernels.rows import TokenRows, rows_of
from tacit.kernels.stacked import StackedModel
from tacit.privacy import checks

# Of FedSGD, which may take all rows of a user in one batch: this many at a time.
LARGEST_PIECE = 32


class VectorizedEngine:
    """As many users at once as `memory_bytes` of the device hold, by an estimate."""

    def __init__(
        self,
        model: Any,
        device: str | torch.device = "cpu",
        memory_bytes: int = 2**30,
    ) -> None:
        self._memory_bytes = checks.whole("memory_bytes", memory_bytes, at_least=1)
        self._device = usable_device(device)
        self._model = StackedModel(model, self._device)
        self._bytes_per_user: dict[tuple[int, int], int] = {}

    @property
    def kernel(self) -> str:
        """The version of torch and the device; no other kernel gives the same bits."""
        where = str(self._device)
        if self._device.type == "cuda":
            where = torch.cuda.get_device_name(self._device)
        return f"torch {torch.__version__}, vectorized on {where}"

    def sum(
        self, task: CohortTask, job: CohortJob, users: Sequence[int], progress: Progress = None
    ) -> CohortSum:
        """The sum over these users, in the order in which they are done."""
        return sum_results(task, job, self.results(task, job, users), progress)

    def close(self) -> None:
        """Nothing: there are no other processes."""

    def users_at_once(self, task: CohortTask) -> int:
        """How many slots there are: no more than the memory holds, nor than a cohort needs."""
        shape = _shape(task.update)
        if shape not in self._bytes_per_user:
            self._bytes_per_user[shape] = self._model.bytes_per_user(*shape)
        each = self._bytes_per_user[shape]
        if self._memory_bytes < each:
            raise ValueError(
                f"memory_bytes must be at least {each}, which one user of this model takes with"
                f" batches of {shape[0]} rows, got {self._memory_bytes}"
            )
        return min(self._memory_bytes // each, max(1, math.ceil(task.plan.expected_cohort)))

    def results(
        self, task: CohortTask, job: CohortJob, users: Sequence[int]
    ) -> Iterator[tuple[int, UserResult]]:
        """Each user and its result, not yet clipped, in the order in which they are done."""
        update, model = task.update, self._model
        if update.sampled_softmax is not None:
            raise ValueError(
                "the vectorized engine has no sampled softmax; leave out update.sampled_negatives,"
                " or use another engine"
            )
        if job.weights.shape != (sum(model.sizes),):
            raise ValueError(
                f"weights must be one flat vector of {sum(model.sizes)} values, got shape"
                f" {list(job.weights.shape)}"
            )
        training = []
        for user in users:
            if (brought := task.brought(user)) is None:
                training.append(user)
            else:
                yield user, brought
        slots = _Slots(self.users_at_once(task), job.weights, model)
        penalty = update.update_penalty if isinstance(update, FedAvg) else 0.0
        waiting = (_User(task, job, user, model.vocab_size) for user in training)
        while True:
            batch = _Batch(len(slots.users), *_shape(update), task.bos)
            yield from slots.fill(batch, waiting)
            if not any(slots.users):
                return
            slots.losses += model.descend_(
                slots.theta,
                *batch.on(self._device),
                update.learning_rate,
                at=slots.start if isinstance(update, FedSGD) else None,
                pull=(slots.start, update.learning_rate * penalty) if penalty else None,
            )
            if isinstance(update, FedAvg):
                model.project_(slots.theta)
                if update.clip_each_step:
                    slots.clip()


class _Slots:
    """Which user is trained in each slot, at which weights, and the summed losses so far."""

    def __init__(self, count: int, weights: Weights, model: StackedModel) -> None:
        self.users: list[_User | None] = [None] * count
        self.start = torch.from_numpy(weights.copy()).to(model.device, model.dtype)
        self.theta = self.start.repeat(count, 1)
        self.losses = torch.zeros(count, device=model.device)
        self._weights, self._room = weights, np.empty(weights.shape)

    def fill(self, batch: _Batch, waiting: Iterator[_User]) -> Iterator[tuple[int, UserResult]]:
        """Every slot's next piece, of its user or of one who waits; results of those done."""
        for slot in range(len(self.users)):
            user = self.users[slot]
            piece = None if user is None else next(user.pieces, None)
            while piece is None:
                if user is not None:
                    result = user.result(self.theta[slot], self.losses[slot], self._weights)
                    yield user.index, result
                user = self.users[slot] = next(waiting, None)
                if user is None:
                    break
                self.theta[slot] = self.start
                self.losses[slot] = 0
                piece = next(user.pieces, None)
            if user is not None and piece is not None:
                batch.put(slot, piece, user.take(piece))

    def clip(self) -> None:
        """Greedy clipping: on the CPU and by the plan's own clipper, as everywhere."""
        for user, row in zip(self.users, self.theta, strict=True):
            if user is None:
                continue
            weights = _weights(row)
            clipped = greedy_clip(weights, self._weights, user.clip, self._room)
            if clipped is None:
                user.pieces = iter(())  # it is not finite and ends here
            elif clipped is not weights:
                row.copy_(torch.from_numpy(clipped))


class _User:
    """Batches that are still to come, and what is needed for the result."""

    def __init__(self, task: CohortTask, job: CohortJob, index: int, vocab_size: int) -> None:
        update = task.update
        self.index = index
        stream = job.stream(task.users.key(index))
        tokens = task.read(index, stream)
        rows = rows_of(tokens, unroll=update.unroll, bos=task.bos, layout=update.rows)
        self.examples, self.steps, self.seen = rows.examples, 0, 0
        self.clip = clip_function(task, job, tokens)
        self._whole: int | None = None  # targets of the one batch that comes in pieces
        self.pieces: Iterator[TokenRows] = iter(())
        if not len(rows):
            return
        rows.check_tokens(vocab_size)
        if isinstance(update, FedAvg):
            self.pieces = update.batches(rows, stream)
        else:
            batch = update.batch(rows, stream)
            self._whole = batch.examples
            firsts = range(0, len(batch), LARGEST_PIECE)
            self.pieces = (batch.take(slice(first, first + LARGEST_PIECE)) for first in firsts)

    def take(self, piece: TokenRows) -> int:
        """Over how many targets the gradient of this piece, now to be trained on, is averaged."""
        self.steps += 1
        self.seen += piece.examples
        return self._whole or max(piece.examples, 1)

    def result(self, theta: Tensor, loss: Tensor, start: Weights) -> UserResult:
        """The update of this user, whose weights are now `theta`, and the mean loss on the way."""
        if not self.steps:
            return UserResult(np.zeros_like(start), self.examples, 0.0, 0)
        update = _weights(theta) - start
        steps = self.steps if self._whole is None else 1
        return UserResult(update, self.examples, float(loss) / max(self.seen, 1), steps)


def _weights(row: Tensor) -> Weights:
    """A copy of one user's row of theta, on the CPU."""
    return row.to("cpu", torch.float32, copy=True).numpy()


class _Batch:
    """One batch for every slot, made in the memory of the CPU and brought to the device whole."""

    def __init__(self, slots: int, rows: int, time: int, bos: int) -> None:
        tokens = torch.full((slots, rows, time), bos)
        self._parts = (tokens, tokens.clone(), torch.zeros_like(tokens, dtype=torch.bool))
        self._counts = torch.ones(slots)

    def put(self, slot: int, piece: TokenRows, count: int) -> None:
        """Give a slot this piece, whose gradient is averaged over `count` targets."""
        rows, time = piece.mask.shape
        pieces = (piece.inputs, piece.targets, piece.mask)
        for whole, part in zip(self._parts, pieces, strict=True):
            whole[slot, :rows, :time] = part
        self._counts[slot] = count

    def on(self, device: torch.device) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """Inputs, targets and mask of all slots, and their counts, on the device."""
        inputs, targets, mask = (part.to(device) for part in self._parts)
        return (inputs, targets, mask), self._counts.to(device)


def _shape(update: FedAvg | FedSGD) -> tuple[int, int]:
    """Rows and time of what a slot is given in one step."""
    if isinstance(update, FedAvg):
        return update.batch_size, update.unroll
    return min(update.batch_size or LARGEST_PIECE, LARGEST_PIECE), update.unroll


def usable_device(device: str | torch.device) -> torch.device:
    """The device, if this machine and this torch have it; else raise `ValueError`."""
    try:
        usable = torch.device(device)
        torch.empty(0, device=usable)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(f"device must be one that torch has here, got '{device}': {why}") from None
    return usable

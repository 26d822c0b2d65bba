"""A user's tokens as rows to train on, each read from a fresh state, and batches of them.

A row has `unroll` positions; each has an input and the token that follows it as target.  Two
layouts cut the tokens into rows:

- "stream": all tokens of the user as one stream.  A user of 1,600 tokens and an unroll of 10 makes
  160 rows, in batches of 8 the 20 local steps of McMahan et al. 2018.
- "texts": each text by itself, so that no row holds the end of one text and the start of another.

BOS is never a target: that a text begins is not to be predicted.  All other tokens behind
the first are a target exactly once, in either layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.privacy import checks
from tacit.privacy.records import one_of

Layout = Literal["stream", "texts"]
check_layout = one_of(*get_args(Layout))


@dataclass(frozen=True)
class TokenRows:
    """Inputs and targets, int64, and which targets count, all of shape [rows, time], on the CPU.

    They are cut in NumPy: on arrays as small as these a call of torch costs more than its work.
    """

    inputs: Tensor
    targets: Tensor
    mask: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    @cached_property
    def examples(self) -> int:
        """How many targets count."""
        return int(np.count_nonzero(self.mask.numpy()))

    def take(self, which: slice | NDArray[np.int64]) -> TokenRows:
        """Some of the rows, as wide as the longest of them needs."""
        mask = self.mask.numpy()[which]
        width = _width_of(mask)
        inputs, targets = (part.numpy()[which, :width] for part in (self.inputs, self.targets))
        return TokenRows(*(torch.from_numpy(part) for part in (inputs, targets, mask[:, :width])))

    def check_tokens(self, vocab_size: int) -> None:
        """Raise `ValueError` for ids outside of the vocabulary, before they index into a model."""
        _check_ids("inputs", self.inputs.numpy(), vocab_size)
        _check_ids("targets", self.targets.numpy(), vocab_size)


def _check_ids(name: str, ids: NDArray[np.int64], vocab_size: int) -> None:
    if ids.dtype != np.int64:
        raise ValueError(f"{name} must be int64, got {ids.dtype}")
    # As if they had no sign, so that a negative one is too large as well.
    if ids.size and not ids.view(np.uint64).max() < vocab_size:
        raise ValueError(
            f"{name} must be tokens from 0 to {vocab_size - 1}, got {ids.min()} to {ids.max()}: the"
            " tokenizer does not fit the model"
        )


def rows_of(
    tokens: NDArray[np.integer[Any]], *, unroll: int, bos: int, layout: Layout
) -> TokenRows:
    """The rows of one user.  What is padded is BOS and masked; no row is without a target."""
    checks.whole("unroll", unroll, at_least=1)
    check_layout("layout", layout)
    tokens = tokens.astype(np.int64)
    is_target = tokens[1:] != bos
    positions = np.arange(len(is_target))
    if layout == "texts":
        starts = np.maximum.accumulate(np.where(tokens == bos, np.arange(len(tokens)), 0))
        positions = np.flatnonzero(is_target)
        columns = (positions - starts[positions]) % unroll
    else:
        columns = positions % unroll
    rows = np.cumsum(columns == 0) - 1
    shape = (int(rows[-1]) + 1 if len(rows) else 0, unroll)
    inputs, targets, mask = np.full(shape, bos), np.full(shape, bos), np.zeros(shape, np.bool_)
    inputs[rows, columns] = tokens[positions]
    targets[rows, columns] = tokens[positions + 1]
    mask[rows, columns] = is_target[positions]
    used = mask.any(axis=1)
    return TokenRows(*(torch.from_numpy(part[used]) for part in (inputs, targets, mask)))


def _width_of(mask: NDArray[np.bool_]) -> int:
    """How many columns there are up to the last in which something counts."""
    if mask.size and mask[:, -1].any():  # nearly always
        return int(mask.shape[1])
    columns = np.flatnonzero(mask.any(axis=0))
    return int(columns[-1]) + 1 if len(columns) else 0


@dataclass(frozen=True)
class Batch:
    """Rows as the hand-written steps take them: time first, and only what counts.

    Tokens are int64 and contiguous, and all of them are in the vocabulary.
    """

    inputs: Tensor  # [steps * rows], time first
    targets: Tensor  # [examples], only those that count
    positions: Tensor | None  # of the targets among the inputs; None if all count
    rows: int
    steps: int

    @classmethod
    def of(cls, rows: TokenRows, vocab_size: int) -> Batch:
        """Drops the steps after the last that counts; refuses tokens outside of the vocabulary."""
        mask, positions = rows.mask.numpy(), None
        steps = _width_of(mask)
        inputs = rows.inputs.numpy()[:, :steps].T.ravel()
        targets = rows.targets.numpy()[:, :steps].T.ravel()
        if rows.examples < mask.size:
            positions = np.flatnonzero(mask[:, :steps].T)
            targets = targets[positions]
        _check_ids("inputs", inputs, vocab_size)
        _check_ids("targets", targets, vocab_size)
        return cls(
            torch.from_numpy(inputs),
            torch.from_numpy(targets),
            None if positions is None else torch.from_numpy(positions),
            mask.shape[0],
            steps,
        )

"""A user's tokens as rows to train on, each read from a fresh state.

A row has `unroll` places; each place has an input and the token that follows it as target.  Two
layouts cut the tokens into rows:

- "stream": all tokens of the user as one stream.  A user of 1,600 tokens and an unroll of 10 makes
  160 rows, in batches of 8 the 20 local steps of McMahan et al. 2018.
- "texts": each text by itself, so that no row holds the end of one text and the start of another.

BOS is never a target, because nobody has to predict that a text begins.  All other tokens behind
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

Layout = Literal["stream", "texts"]


@dataclass(frozen=True)
class Rows:
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

    def take(self, which: slice | NDArray[np.int64]) -> Rows:
        """Some of the rows, as wide as the longest of them needs."""
        mask = self.mask.numpy()[which]
        width = width_of(mask)
        inputs, targets = (part.numpy()[which, :width] for part in (self.inputs, self.targets))
        return Rows(*(torch.from_numpy(part) for part in (inputs, targets, mask[:, :width])))


def rows_of(tokens: NDArray[np.integer[Any]], *, unroll: int, bos: int, layout: Layout) -> Rows:
    """The rows of one user.  What is padded is BOS and masked; no row is without a target."""
    checks.whole("unroll", unroll, at_least=1)
    check_layout("layout", layout)
    tokens = tokens.astype(np.int64)
    is_target = tokens[1:] != bos
    places = np.arange(len(is_target))
    if layout == "texts":
        starts = np.maximum.accumulate(np.where(tokens == bos, np.arange(len(tokens)), 0))
        places = np.flatnonzero(is_target)
        columns = (places - starts[places]) % unroll
    else:
        columns = places % unroll
    rows = np.cumsum(columns == 0) - 1
    shape = (int(rows[-1]) + 1 if len(rows) else 0, unroll)
    inputs, targets, mask = np.full(shape, bos), np.full(shape, bos), np.zeros(shape, np.bool_)
    inputs[rows, columns] = tokens[places]
    targets[rows, columns] = tokens[places + 1]
    mask[rows, columns] = is_target[places]
    used = mask.any(axis=1)
    return Rows(*(torch.from_numpy(part[used]) for part in (inputs, targets, mask)))


def width_of(mask: NDArray[np.bool_]) -> int:
    """How many columns there are up to the last in which something counts."""
    if mask.size and mask[:, -1].any():  # nearly always
        return int(mask.shape[1])
    columns = np.flatnonzero(mask.any(axis=0))
    return int(columns[-1]) + 1 if len(columns) else 0


def check_layout(name: str, value: str) -> None:
    """One of the layouts."""
    if value not in get_args(Layout):
        raise ValueError(f"{name} must be one of {', '.join(get_args(Layout))}, got {value!r}")

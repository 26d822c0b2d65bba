"""How probable each target is, and its ranks, from one row of logits per target.

There are two ranks, found in one pass: among all words, and among the words that may be chosen,
which are all but one word `never` (in evaluation UNK).

There are two forms.  In torch, logits are read and written by five operations, one after the other.
In C++, built on first use, a row is read while it is in the cache: once for its largest logit and
the words that stand before the target, and once for the sum of exponentials.  Ranks are the same in
both, because they are counted from the same logits; log-probabilities agree to rounding.
`TACIT_KERNEL=torch` chooses torch, as it does for the training step.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from tacit.privacy import native

SOURCE = native.Source(
    "scoring",
    tuple(Path(__file__).with_name(file) for file in ("scoring.cpp", "kernel_vectors.h")),
    # As for the training step: only a product and a sum may become one rounding.
    tuple(
        "-std=gnu++17 -O3 -march=native -ffp-contract=fast -fno-math-errno -fno-trapping-math"
        " -fno-exceptions -fno-rtti -fPIC -shared".split()
    ),
    ("tacit_score",),
)

_Function = Callable[..., None]

_BUILDING = threading.Lock()  # evaluation asks in several threads, and one build is enough
_WORTH_A_BUILD = 1000  # words; fewer take no time in either form


def log_probs_and_ranks(
    logits: Tensor, targets: Tensor, never: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """log p(target) in float64, and two ranks of the target (0: the first), one of each per row.

    The first rank is among all words but `never`, which takes no rank from the others; the second
    is among all words.  A rank is the number of larger logits, plus equal ones of smaller id.  A
    row with NaN predicts nothing: its log-probability is -inf and its rank among all is the last.
    """
    function = None
    if logits.shape[1] >= _WORTH_A_BUILD and _can_be_read(logits, targets, never):
        with _BUILDING:
            function = _in_cpp()
    if function is None:
        return _in_torch(logits, targets, never)
    return _call(function, logits, targets, never)


def _can_be_read(logits: Tensor, targets: Tensor, never: int | None) -> bool:
    """May C++ be given this memory?  What is out of range is left to torch, which says so."""
    return (
        logits.dtype == torch.float32
        and logits.device.type == targets.device.type == "cpu"
        and logits.stride(1) == 1
        and targets.dtype == torch.int64
        and len(targets) == len(logits) > 0
        and int(targets.min()) >= 0
        and int(targets.max()) < logits.shape[1]
        and (never is None or 0 <= never < logits.shape[1])
    )


def _call(
    function: _Function, logits: Tensor, targets: Tensor, never: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    rows, words = logits.shape
    targets = targets.contiguous()
    log_probs = torch.empty(rows, dtype=torch.float64)
    ranks, ranks_of_all = torch.empty((2, rows), dtype=torch.int64)
    function(
        logits.data_ptr(),
        rows,
        words,
        logits.stride(0),
        targets.data_ptr(),
        -1 if never is None else never,
        log_probs.data_ptr(),
        ranks.data_ptr(),
        ranks_of_all.data_ptr(),
    )
    return log_probs, ranks, ranks_of_all


def _in_torch(
    logits: Tensor, targets: Tensor, never: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """`log_probs_and_ranks` in torch alone."""
    scratch = torch.empty_like(logits)
    of_all = _counted_ranks(logits, targets, scratch)
    log_probs = torch.log_softmax(logits, 1, out=scratch).gather(1, targets.unsqueeze(1))
    log_probs, of_all = _without_nan(log_probs.squeeze(1), of_all, logits.shape[1])
    ranks = of_all if never is None else of_all - _is_before(never, logits, targets)
    return log_probs, ranks, of_all


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


def _without_nan(log_probs: Tensor, ranks: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    log_probs = log_probs.to(torch.float64)
    broken = torch.isnan(log_probs)
    log_probs[broken] = -torch.inf
    ranks[broken] = vocab_size - 1
    return log_probs, ranks


@functools.cache
def _in_cpp() -> _Function | None:
    """The C++ form, or None if it does not build or disagrees with torch."""
    if os.environ.get("TACIT_KERNEL") == "torch":
        return None
    library = native.build(SOURCE)
    if library is None:
        return None
    function = library.functions.tacit_score
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [pointer, number, number, number, pointer, number, *[pointer] * 3]
    function.restype = None
    return function if _agrees(function) else None


def _agrees(function: _Function) -> bool:
    """Whether a C++ function agrees with torch, on rows with ties and on rows that predict nothing.

    A compiler can be told (by `CXX`, say) to do strange things to floats.
    """
    rows, words = 32, 1003
    generator = torch.Generator().manual_seed(0)
    logits = torch.empty(rows, words).normal_(std=4.0, generator=generator)
    logits[::2] = logits[::2].round()
    targets = torch.randint(words, (rows,), generator=generator)
    logits[0, -1], logits[1, 7], logits[2] = torch.nan, torch.inf, -torch.inf
    logits[3, int(targets[3])] = -torch.inf
    expected, *expected_ranks = _in_torch(logits, targets, 2)
    log_probs, *ranks = _call(function, logits, targets, 2)
    close = torch.allclose(log_probs, expected, rtol=1e-5, atol=1e-5)
    return close and all(map(torch.equal, ranks, expected_ranks))

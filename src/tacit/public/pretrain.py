"""Public pre-training: any language model, on text that is nobody's secret, with plain SGD or Adam.

McMahan et al. 2018, appendix B: "an initial model trained with standard (non-private) algorithms on
the public data ... can then be further refined by continuing with differentially-private training".

Texts of similar length are read side by side, `unroll` tokens a step, and rows whose text has ended
leave the batch.  A model that carries a state keeps it from step to step of a text, without its
history (truncated back-propagation); one that does not sees windows of `unroll` tokens.  Every text
begins with a fresh state, and BOS is never a target: what is trained is what is scored.  Streams of
joined texts would need no padding at all, but a model trained on those has hardly ever seen the
beginning of a text without a state from some other text before it, and predicts badly there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.models.base import LanguageModel, State, detached
from tacit.models.base import loss as summed_loss
from tacit.public.steps import (
    Outcome,
    Settings,
    Watching,
    batches_by_length,
    run_steps,
)

LONGEST = 1000  # tokens; what is longer is cut, so that one book does not end up alone in a batch

Text = Sequence[int] | npt.NDArray[np.integer[Any]]


def pretrain(
    model: LanguageModel,
    texts: Sequence[Text],
    settings: Settings,
    *,
    bos: int,
    **watching: Unpack[Watching],
) -> Outcome:
    """Train the model in place on tokenised texts, each BOS ... EOS.

    It is left in training mode.  `watching` is as for `run_steps`.
    """
    pieces = [piece for text in texts for piece in _cut(text, model.config.vocab_size)]
    targets = sum(int((piece[1:] != bos).sum()) for piece in pieces)
    if not targets:
        raise ValueError("there is nothing to train on: the texts have no tokens to predict")
    parameters = [values for _, values in model.parameter_vectors()]
    kind = torch.optim.SGD if settings.optimizer == "sgd" else torch.optim.Adam
    state: State = None
    model.train()

    def loss(window: _Window) -> tuple[Tensor, int]:
        nonlocal state
        state = None if window.begins or not model.carries_state else window.carry(state)
        logits, state = model(window.inputs, state)
        total, count = summed_loss(logits, window.targets, window.mask)
        return total / count.clamp(min=1), int(count)

    epochs = range(math.ceil(settings.epochs))
    return run_steps(
        (window for n in epochs for window in _epoch(pieces, settings, bos, n)),
        loss,
        kind(parameters, lr=settings.learning_rate),
        settings,
        math.ceil(settings.epochs * targets),
        after_step=model.normalise_,
        **watching,
    )


@dataclass(frozen=True)
class _Window:
    """One step of training: the next few tokens of the first rows of a batch.

    `mask` says which targets count: not those behind the end of a text, and never BOS.  The first
    window of a batch `begins` it: there is no state yet.
    """

    inputs: Tensor  # [rows, steps]
    targets: Tensor
    mask: Tensor
    begins: bool

    def carry(self, state: State) -> State:
        """The state of the rows that are left, without its history."""
        assert state is not None
        return detached(tuple(part[: len(self.inputs)] for part in state))


def windows(pieces: Sequence[npt.NDArray[np.int64]], unroll: int, bos: int) -> Iterator[_Window]:
    """The windows of a batch of texts that are sorted by falling length, `unroll` tokens a step."""
    lengths = np.array([len(piece) for piece in pieces])
    tokens = np.full((len(pieces), lengths[0]), bos)
    for row, piece in enumerate(pieces):
        tokens[row, : len(piece)] = piece
    joined = torch.from_numpy(tokens)
    for start in range(0, lengths[0] - 1, unroll):
        rows = int((lengths - 1 > start).sum())
        end = min(start + unroll, int(lengths[0]) - 1)
        targets = joined[:rows, start + 1 : end + 1]
        # Padding is BOS, which is never a target.
        yield _Window(joined[:rows, start:end], targets, targets != bos, start == 0)


def _epoch(
    pieces: Sequence[npt.NDArray[np.int64]], settings: Settings, bos: int, number: int
) -> Iterator[_Window]:
    """All windows of one pass over the texts; each pass has an order of its own."""
    lengths = np.array([len(piece) for piece in pieces])
    generator = np.random.default_rng([settings.seed, number])
    for chosen in batches_by_length(lengths, settings.batch, generator):
        yield from windows([pieces[index] for index in chosen], settings.unroll, bos)


def _cut(text: Text, vocab_size: int) -> Iterator[npt.NDArray[np.int64]]:
    """Pieces of at most LONGEST targets; each begins with the last token of the one before."""
    tokens = np.asarray(text, dtype=np.int64)
    if tokens.size and not (tokens.min() >= 0 and tokens.max() < vocab_size):
        raise ValueError(
            f"a text holds the tokens {tokens.min()} to {tokens.max()}, and the model knows 0 to"
            f" {vocab_size - 1}: the tokenizer does not fit the model"
        )
    for start in range(0, len(tokens) - 1, LONGEST):
        yield tokens[start : start + LONGEST + 1]

"""Public pre-training: any model, on text that is nobody's secret, with plain SGD or Adam.

McMahan et al. 2018, appendix B: "an initial model trained with standard (non-private) algorithms on
the public data ... can then be further refined by continuing with differentially-private training".
Nothing here protects anybody.

Texts of similar length are read side by side, `unroll` tokens a step.  A model that carries a
state keeps it from step to step of a text, without its history (truncated back-propagation); one
that does not sees windows of `unroll` tokens.  Every text begins with a fresh state, and BOS is
never a target: what is trained is what is scored.

With the same seed, threads and machine a run gives the same model, unless it is cut by `minutes`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.models.base import LanguageModel, State, detached
from tacit.models.base import loss as summed_loss
from tacit.public.steps import Observers, Outcome, Point, Progress, Settings, Stepped, run_steps

__all__ = ["Measure", "Outcome", "Point", "Progress", "Settings", "carried", "pretrain"]

Measure = Callable[[LanguageModel], Mapping[str, Any]]


def pretrain(
    model: LanguageModel,
    texts: Sequence[Text],
    settings: Settings,
    *,
    bos: int,
    measure: Measure | None = None,
    progress: Callable[[Progress], None] | None = None,
    on_point: Callable[[Point], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Train the model in place on tokenised texts, each BOS ... EOS.  It is left in training mode.

    `measure` is called every `measure_every` steps and at the end, with the model, and its figures
    (held-out perplexity, say) become points of the curve; its time does not count as training.
    `on_point` is given each point as soon as there is one.
    """
    batches = TextBatches(
        texts,
        batch=settings.batch,
        unroll=settings.unroll,
        seed=settings.seed,
        vocab_size=model.config.vocab_size,
        bos=bos,
    )
    optimizer = _optimizer(model, settings)
    state: State = None
    model.train()

    def step(window: Window, rate: float) -> Stepped:
        nonlocal state
        state = None if window.begins or not model.carries_state else carried(state, window)
        loss, count, state = _step(model, optimizer, rate, window, state, settings.clip_norm)
        return Stepped(loss, count, count)

    return run_steps(
        _windows(batches, settings),
        step,
        settings,
        math.ceil(settings.epochs * batches.targets),
        Observers(None if measure is None else lambda: measure(model), progress, on_point, clock),
    )


def _windows(batches: TextBatches, settings: Settings) -> Iterator[Window]:
    """One epoch after the other."""
    for epoch in range(math.ceil(settings.epochs)):
        yield from batches.epoch(epoch)


def carried(state: State, window: Window) -> State:
    """The state of the rows that are left, without its history."""
    assert state is not None
    return detached(tuple(part[: len(window.inputs)] for part in state))


def _optimizer(model: LanguageModel, settings: Settings) -> torch.optim.Optimizer:
    parameters = [values for _, values in model.parameter_vectors()]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=settings.learning_rate)
    return torch.optim.Adam(parameters, lr=settings.learning_rate)


def _step(
    model: LanguageModel,
    optimizer: torch.optim.Optimizer,
    rate: float,
    window: Window,
    state: State,
    clip_norm: float,
) -> tuple[float, int, State]:
    """One step of the optimizer; the mean loss before it, over how many targets, and the state."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    logits, state = model(window.inputs, state)
    total, count = summed_loss(logits, window.targets, window.mask)
    mean = total / count.clamp(min=1)
    optimizer.zero_grad()
    mean.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_([values for _, values in model.parameter_vectors()], clip_norm)
    optimizer.step()
    model.normalise_()
    return mean.item(), int(count), state


# Texts side by side for training: every text from a fresh state, as it will be scored.
#
# Texts of similar length go into one batch, so that little is padded, and a batch is read `unroll`
# tokens a step (truncated back-propagation).  Rows whose text has ended leave the batch.  Streams
# of
# joined texts would need no padding at all, but a model trained on those has hardly ever seen the
# beginning of a text without a state from some other text before it, and predicts badly there.

LONGEST = 1000  # tokens; what is longer is cut, so that one book does not end up alone in a batch
POOL = 64  # batches among which texts are sorted by length

Text = Sequence[int] | npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Window:
    """One step of training: the next few tokens of the first rows of a batch."""

    inputs: Tensor  # [rows, steps]
    targets: Tensor
    mask: Tensor  # which targets count: not those behind the end of a text, and never BOS
    begins: bool  # the first window of its batch: there is no state yet


class TextBatches:
    """Texts cut, grouped and shuffled by a seed; every target once per epoch."""

    def __init__(
        self,
        texts: Sequence[Text],
        *,
        batch: int,
        unroll: int,
        seed: int,
        vocab_size: int,
        bos: int,
    ) -> None:
        self.batch, self.unroll, self.seed, self.bos = batch, unroll, seed, bos
        self.pieces = [piece for text in texts for piece in _cut(text, vocab_size)]
        self.targets = sum(int((piece[1:] != bos).sum()) for piece in self.pieces)
        if not self.targets:
            raise ValueError("there is nothing to train on: the texts have no tokens to predict")

    def epoch(self, number: int) -> Iterator[Window]:
        """All windows of one pass over the texts."""
        generator = np.random.default_rng([self.seed, number])
        order = generator.permutation(len(self.pieces))
        for start in range(0, len(order), POOL * self.batch):
            pool = order[start : start + POOL * self.batch]
            lengths = np.array([len(self.pieces[index]) for index in pool])
            by_length = pool[np.argsort(-lengths, kind="stable")]
            for place in generator.permutation(-(-len(pool) // self.batch)):
                chosen = by_length[place * self.batch : (place + 1) * self.batch]
                pieces = [self.pieces[index] for index in chosen]
                yield from windows(pieces, self.unroll, self.bos)


def windows(pieces: Sequence[npt.NDArray[np.int64]], unroll: int, bos: int) -> Iterator[Window]:
    """A batch of texts that are sorted by falling length, `unroll` tokens a step."""
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
        yield Window(joined[:rows, start:end], targets, targets != bos, start == 0)


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

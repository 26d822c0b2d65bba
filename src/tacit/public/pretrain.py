"""Public pre-training: any language model, on text that is nobody's secret, with plain SGD or Adam.

McMahan et al. 2018, appendix B: "an initial model trained with standard (non-private) algorithms on
the public data ... can then be further refined by continuing with differentially-private training".

Texts of similar length are read side by side, `unroll` tokens a step, and rows whose text has ended
leave the batch.  A model that carries a state keeps it from step to step of a text, without its
history (truncated back-propagation); one that does not sees windows of `unroll` tokens.  Every text
begins with a fresh state, and BOS is never a target: what is trained is what is scored.  Streams of
joined texts would need no padding at all, but a model trained on those has hardly ever seen the
beginning of a text without a state from some other text before it, and predicts badly there.

Nothing here protects anybody.  With the same seed, threads and machine a training gives the same
model, unless it is cut by `minutes`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from tacit.models.base import LanguageModel, State, check_share, detached, refuse_context
from tacit.models.base import loss as summed_loss
from tacit.models.layers import TiedModel
from tacit.privacy.records import Count, Positive, Record, at_least, one_of
from tacit.public.sampled_words import WordSampler

LONGEST = 1000  # tokens; what is longer is cut, so that one book does not end up alone in a batch
_FINAL_SHARE = 0.05  # of the learning rate, at the end of the cosine
_DECAY = 0.01  # of AdamW, times the learning rate
_POOL = 64  # batches among which texts are sorted by length

Text = Sequence[int] | npt.NDArray[np.integer[Any]]
_Batch = TypeVar("_Batch")


@dataclass(frozen=True)
class Settings(Record):
    """How to train; the defaults suit the 1.35M LSTM on a few million words.

    `unroll` is the number of tokens that a step reads of each text.  `epochs` or `minutes` ends the
    training, whichever comes first.
    """

    optimizer: Annotated[str, one_of("adam", "sgd")] = "adam"
    learning_rate: Positive = 5e-3
    schedule: Annotated[str, one_of("constant", "cosine")] = "cosine"
    warmup_steps: Count = 100
    clip_norm: Positive = 1.0
    batch: Annotated[int, at_least(1)] = 32
    unroll: Annotated[int, at_least(1)] = 20
    epochs: Positive = 1.0
    minutes: Positive | None = None
    seed: Count = 0


@dataclass(frozen=True)
class LanguageSettings(Settings):
    """How `tacit model pretrain` trains: several times as many tokens a second.

    `sampled_words` are the words that a step scores besides its own (`tacit.public.sampled_words`);
    None, or half of the vocabulary, scores all of them.  `dropout` is as in `TiedModel.outputs`.
    `bfloat16` multiplies in half the precision: faster where the processor knows it.
    The defaults suit the 1.35M LSTM on ten million words.
    """

    optimizer: Annotated[str, one_of("adamw", "adam", "sgd")] = "adamw"
    learning_rate: Positive = 4e-3
    warmup_steps: Count = 200
    batch: Annotated[int, at_least(1)] = 96
    unroll: Annotated[int, at_least(1)] = 40
    dropout: Annotated[float, check_share] = 0.1
    sampled_words: Annotated[int, at_least(1)] | None = 1200
    bfloat16: bool = False


@dataclass(frozen=True)
class StepReport:
    """A training after one of its steps.

    `share` is how much of the work is done, by tokens or by time, whichever is further.
    """

    step: int
    tokens: int  # targets trained on so far
    seconds: float
    share: float
    learning_rate: float
    loss: float  # the mean over the step's own targets
    targets: int
    ran_out_of_time: bool  # with tokens left to train on


def pretrain(
    model: LanguageModel,
    texts: Sequence[Text],
    settings: Settings,
    *,
    bos: int,
    progress: Callable[[StepReport], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> StepReport:
    """Train the model in place on tokenised texts, each BOS ... EOS; it is left in training mode.

    `progress` is told of every step; the time that it takes does not count as training.  Returns
    the last step.
    """
    refuse_context(model.config)
    pieces = [piece for text in texts for piece in _cut(text, model.config.vocab_size)]
    targets = sum(int((piece[1:] != bos).sum()) for piece in pieces)
    if not targets:
        raise ValueError("there is nothing to train on: the texts have no tokens to predict")
    mean_loss = _loss_of(model, pieces, settings)
    half = isinstance(settings, LanguageSettings) and settings.bfloat16
    state: State = None
    model.train()

    def loss(window: _Window) -> tuple[Tensor, int]:
        nonlocal state
        state = None if window.begins or not model.carries_state else window.carry(state)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            mean, state = mean_loss(window, state)
        return mean, int(window.mask.sum())

    epochs = range(math.ceil(settings.epochs))
    return run_steps(
        (window for n in epochs for window in _epoch(pieces, settings, bos, n)),
        loss,
        _optimizer(model, settings),
        settings,
        math.ceil(settings.epochs * targets),
        after_step=model.normalise_,
        progress=progress,
        clock=clock,
    )


def _loss_of(
    model: LanguageModel, pieces: Sequence[npt.NDArray[np.int64]], settings: Settings
) -> Callable[[_Window, State], tuple[Tensor, State]]:
    """What maps a window and the state before it to the mean loss and the state after it."""

    def exact(window: _Window, state: State) -> tuple[Tensor, State]:
        logits, state = model(window.inputs, state)
        total, count = summed_loss(logits, window.targets, window.mask)
        return total / count.clamp(min=1), state

    if not isinstance(settings, LanguageSettings):
        return exact
    dropout, words = settings.dropout, settings.sampled_words
    if words is not None and 2 * words >= model.config.vocab_size:
        words = None
    if not dropout and words is None:
        return exact
    if not isinstance(model, TiedModel):
        raise ValueError("dropout and sampled_words are for the models of tacit; leave them out")
    tied, sampler = model, None
    if words is not None:
        targets = np.concatenate([piece[1:] for piece in pieces])
        sampler = WordSampler(np.bincount(targets, minlength=model.config.vocab_size), words)

    def fast(window: _Window, state: State) -> tuple[Tensor, State]:
        outputs, state = tied.outputs(window.inputs, state, dropout=dropout)
        kept, targets = outputs[window.mask], window.targets[window.mask]
        if not len(targets):  # nothing but padding
            return outputs.sum() * 0.0, state
        if sampler is not None:
            return sampler.loss(kept, targets, tied.embedding), state
        return functional.cross_entropy(tied.embedding.score(kept), targets), state

    return fast


def begin_with_frequencies_(model: LanguageModel, texts: Sequence[Text], bos: int) -> None:
    """Set the output bias to the log frequency of each word in the texts; without one, nothing.

    A model need not learn then, step by step, that "the" is more frequent than "thorax".
    """
    bias = model.embedding.output_bias if isinstance(model, TiedModel) else None
    if bias is None:
        return
    counts = np.ones(model.config.vocab_size)
    for text in texts:
        np.add.at(counts, np.asarray(text[1:], dtype=np.int64), 1.0)
    counts[bos] = 1.0
    with torch.no_grad():
        bias.copy_(torch.from_numpy(np.log(counts / counts.sum())))


def _optimizer(model: LanguageModel, settings: Settings) -> torch.optim.Optimizer:
    """The optimizer that is asked for; its rate is set before every step.

    AdamW lets the weights of products decay and leaves word vectors and biases alone: rare words
    would fade between two steps that they are in.
    """
    parameters = dict(model.parameter_vectors())
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters.values())
    if settings.optimizer == "adam":
        return torch.optim.Adam(parameters.values())
    decays = {
        name
        for name, values in parameters.items()
        if values.dim() > 1 and not name.startswith("embedding.")
    }
    groups = [
        {
            "params": [parameters[name] for name in parameters if (name in decays) == chosen],
            "weight_decay": decay,
        }
        for chosen, decay in ((True, _DECAY), (False, 0.0))
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], betas=(0.9, 0.99))


def run_steps(
    batches: Iterable[_Batch],
    loss: Callable[[_Batch], tuple[Tensor, int]],
    optimizer: torch.optim.Optimizer,
    settings: Settings,
    tokens: int,
    *,
    after_step: Callable[[], object] = lambda: None,
    progress: Callable[[StepReport], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> StepReport:
    """Step after step, each at the rate that is due, until `tokens` or minutes are over.

    `loss` returns a batch's mean loss and its number of targets.  `progress` and `clock` are as for
    `pretrain`; returns the last step.
    """
    done, seconds, share, last, began = 0, 0.0, 0.0, None, clock()
    for step, batch in enumerate(batches):
        if share >= 1:
            break
        rate = _learning_rate(settings, step, share)
        with own_randomness(settings.seed, step):
            mean, count = loss(batch)
            _descend(optimizer, mean, rate, settings.clip_norm)
            after_step()
        value = mean.item()
        if not math.isfinite(value):
            raise ValueError(
                f"the loss is {value} at step {step + 1}: lower the learning rate"
                f" (it is {settings.learning_rate:g})"
            )
        done, seconds = done + count, seconds + clock() - began
        time_share = seconds / (60 * settings.minutes) if settings.minutes else 0.0
        share = max(done / tokens, time_share)
        is_late = share >= 1 and done < tokens
        last = StepReport(step + 1, done, seconds, share, rate, value, count, is_late)
        if progress is not None:
            progress(last)
        began = clock()
    assert last is not None
    return last


def _descend(optimizer: torch.optim.Optimizer, loss: Tensor, rate: float, clip_norm: float) -> None:
    """One step of the optimizer down the gradient, whose norm is clipped first."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    parameters = [value for group in optimizer.param_groups for value in group["params"]]
    torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
    optimizer.step()


def batches_by_length(
    lengths: npt.NDArray[np.int64], batch: int, generator: np.random.Generator
) -> Iterator[npt.NDArray[np.int64]]:
    """All indices in a random order, `batch` at a time, those of similar length together.

    Within a batch the longest comes first, so that little is padded.
    """
    order = generator.permutation(len(lengths))
    for start in range(0, len(order), _POOL * batch):
        pool = order[start : start + _POOL * batch]
        by_length = pool[np.argsort(-lengths[pool], kind="stable")]
        for number in generator.permutation(-(-len(pool) // batch)):
            yield by_length[number * batch : (number + 1) * batch]


@contextmanager
def own_randomness(seed: int, step: int) -> Iterator[None]:
    """Dropout by the seed and the step, whatever else draws from the global generator.

    The global generator is afterwards as it was before.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed((seed * 1_000_003 + step) % 2**63)
        yield


def _learning_rate(settings: Settings, step: int, share: float) -> float:
    """Linear warm-up; then constant, or half a cosine over the share of the work that is done."""
    warm = min(1.0, (step + 1) / (settings.warmup_steps + 1))
    if settings.schedule == "constant":
        return settings.learning_rate * warm
    falling = 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))
    return settings.learning_rate * warm * (_FINAL_SHARE + (1 - _FINAL_SHARE) * falling)


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

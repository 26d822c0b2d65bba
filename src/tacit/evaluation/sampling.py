"""A corpus drawn from a model: SAMPLETOKENS and SAMPLE of Bagdasaryan et al. 2022, Algorithm 1.

t_next ~ p(t | s) until EOS, from s = [BOS], until the corpus has its size.  The work is cut into
lanes, each with a generator of its own that is derived from the key, and a lane into slots.  The
slots of a lane form one batch.  When a slot's text ends, the slot begins another, so that the
batch stays full.  Once the lane has its share of tokens no text is begun any more, and all that
were begun are finished: to drop them would favour short texts, for the longer a text, the more
likely it is unfinished at any time.

Guarantees.  The texts are a function of the model, the key, the size and the settings, and not of
the number of threads: lanes and slots follow from the size, and each lane is computed in the
arithmetic of one thread.  Whether a text is begun depends on other texts only, so each is a fair
draw.  In float32 a token's probability is off by a relative 1e-7 or so per unit that its logit
(divided by the temperature) is below the largest; one of probability 0 is never taken.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from tacit.evaluation.network import evaluating
from tacit.evaluation.ranking import top_k as first_choices
from tacit.models.base import LanguageModel, State
from tacit.models.recurrent import GatedLayer, RecurrentModel
from tacit.tokenizers.tokenizer import Tokenizer

LANES, SLOTS = 16, 128
WHOLE_TEXTS = 1_024  # tokens side by side where a model reads its texts whole at every step
LANE_TOKENS, SLOT_TOKENS = 16_384, 128  # at least so many for each, or there are fewer of them
HOPELESS = 1_000  # texts ended with less than a hundredth as many tokens: it only says EOS

_SMALLEST_TEMPERATURE = 1e-30  # below, float32 has no reciprocal; the first choice has it all
_REPORT_SECONDS = 0.1

IntArray = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]  # tokens sampled, tokens wanted


def _check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


@dataclass(frozen=True)
class Sampling:
    """How text is drawn.  Temperature 0 takes the first choice every time."""

    temperature: float = 1.0
    top_k: int | None = None
    max_length: int = 100  # tokens; what is longer is cut there

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise ValueError(
                f"temperature must be a finite number of at least 0, got {self.temperature}"
            )
        if self.top_k is not None:
            _check_count("top_k", self.top_k)
        _check_count("max_length", self.max_length)


DEFAULT = Sampling()


def sample_texts(
    model: LanguageModel,
    tokenizer: Tokenizer,
    key: bytes,
    *,
    tokens: int,
    sampling: Sampling = DEFAULT,
    threads: int | None = None,
    progress: Progress | None = None,
) -> list[str]:
    """At least `tokens` tokens of text without UNK; what has no text (only EOS) is left out.

    Byte-level tokens that do not make valid UTF-8 together are decoded to U+FFFD.
    """
    if tokenizer.vocab_size != model.config.vocab_size:
        raise ValueError(
            f"the model has {model.config.vocab_size} tokens and the tokenizer"
            f" {tokenizer.vocab_size}: the tokenizer does not fit the model"
        )
    found = sample_tokens(
        model,
        key,
        tokens=tokens,
        bos=tokenizer.bos,
        eos=tokenizer.eos,
        forbidden=() if tokenizer.unk is None else (tokenizer.unk,),
        sampling=sampling,
        threads=threads,
        progress=progress,
    )
    return [text for text in map(tokenizer.decode, found) if text]


def sample_tokens(
    model: LanguageModel,
    key: bytes,
    *,
    tokens: int,
    bos: int,
    eos: int,
    forbidden: Collection[int] = (),
    sampling: Sampling = DEFAULT,
    threads: int | None = None,
    progress: Progress | None = None,
) -> list[list[int]]:
    """Texts without their BOS and EOS, of at least `tokens` tokens in all.

    A text may be empty.  BOS is never sampled, nor is what is `forbidden`.  `progress` is called
    in the caller's thread.  `threads` changes the speed only; by default it is that of torch.
    """
    _check(model, key, tokens, (bos, eos, *forbidden), {*forbidden, bos}, threads)
    choice = Choice(torch.tensor(sorted({*forbidden, bos})), sampling)
    count = min(LANES, max(1, tokens // LANE_TOKENS))
    quotas = [(tokens + lane) // count for lane in range(count)]
    lanes = [
        Lane(model, choice, _generator(key, lane), quota, bos, eos)
        for lane, quota in enumerate(quotas)
    ]

    def report() -> None:
        if progress is not None:
            progress(sum(lane.done for lane in lanes), tokens)

    with evaluating(model):
        return _in_parallel(lanes, threads or torch.get_num_threads(), report)


@dataclass(frozen=True)
class Choice:
    """Takes a token per row from logits that it may overwrite."""

    banned: Tensor
    sampling: Sampling

    def __call__(self, logits: Tensor, uniform: Tensor) -> Tensor:
        """Of the tokens in order of their ids, the first at which the cumulative probability is
        above the row's number."""
        logits = logits if logits.dtype == torch.float64 else logits.to(torch.float32)
        logits.index_fill_(1, self.banned, -torch.inf)
        temperature, top_k = self.sampling.temperature, self.sampling.top_k
        if temperature != 1:
            largest = logits.amax(1, keepdim=True)
            _check_finite(largest)
            if temperature == 0:
                return first_choices(logits, 1).squeeze(1)
            # The maximum goes first: a small temperature must not make infinities of all.
            logits.sub_(largest).div_(max(temperature, _SMALLEST_TEMPERATURE))
        if top_k is None or top_k >= logits.shape[1]:
            return draw(torch.softmax(logits, 1), uniform)
        kept = first_choices(logits, top_k).sort(1).values
        drawn = draw(torch.softmax(logits.gather(1, kept), 1), uniform)
        return kept.gather(1, drawn.unsqueeze(1)).squeeze(1)


def draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """Column j of each row with probability weights[j] / total, from a number in [0, 1).

    A cumulative sum over all columns, in float64 as it has to be, costs several times the model
    itself.  So columns form blocks, as many as each has columns.  First a block is chosen by
    float64 cumulative sums over their float32 sums, then a column within that block alone.
    """
    rows, columns = weights.shape
    size = math.isqrt(columns)
    whole = columns - columns % size
    sums = weights[:, :whole].view(rows, -1, size).sum(2)
    if whole < columns:
        sums = torch.cat([sums, weights[:, whole:].sum(1, keepdim=True)], dim=1)
    block, within = _place(sums, uniform)
    column = (block * size).unsqueeze(1) + torch.arange(size)
    inside = weights.gather(1, column.clamp(max=columns - 1)).masked_fill(column >= columns, 0)
    return block * size + _place(inside, within)[0]


def _place(weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Whose share of the total holds the number, and where in that share it is, in [0, 1)."""
    cumulative = weights.to(torch.float64).cumsum(1)
    total = cumulative[:, -1:]
    _check_finite(total)
    # Kept below the total, so that rounding never goes to a weight of 0 behind the last above 0.
    wanted = torch.minimum(uniform.unsqueeze(1) * total, torch.nextafter(total, 0 * total))
    place = torch.searchsorted(cumulative, wanted, right=True)
    weight = weights.gather(1, place)
    within = (wanted - cumulative.gather(1, place) + weight) / weight
    return place.squeeze(1), within.squeeze(1).clamp(0, 1 - 2**-53)


class Lane:
    """A share of the corpus: `quota` tokens, in slots that are computed together.

    A row is a slot that has a text; the arrays have one entry per row.
    """

    def __init__(
        self,
        model: LanguageModel,
        choice: Choice,
        generator: np.random.Generator,
        quota: int,
        bos: int,
        eos: int,
    ) -> None:
        self.done = 0  # tokens so far; only grows, so that another thread may read it
        self._model, self._choice, self._generator = model, choice, generator
        self._quota, self._bos, self._eos = quota, bos, eos
        self._longest = choice.sampling.max_length
        self._slots = _slots(model, quota, self._longest)
        self._slot = np.arange(self._slots)
        self._number = np.arange(self._slots)  # of the row's text, in the order of beginning
        self._lengths = np.zeros(self._slots, np.int64)
        self._texts = np.empty((self._slots, self._longest), np.int64)
        self._ended: dict[int, list[int]] = {}

    def run(self, stop: threading.Event) -> list[list[int]]:
        """The texts in the order of beginning; when `stop` is set, soon and only some of them."""
        tokens, begun = np.full(self._slots, self._bos), np.arange(self._slots)
        with torch.no_grad():
            walk = walk_of(self._model, self._slots, self._longest)
            while len(self._slot) and not stop.is_set():
                logits = walk.advance(torch.from_numpy(tokens), torch.from_numpy(begun))
                # Drawn for every slot, also where no text is left: a slot's numbers are its own.
                uniform = self._generator.random(self._slots)[self._slot]
                tokens = self._choice(logits, torch.from_numpy(uniform)).numpy()
                begun = self._take(tokens)
                if self.done < self._quota:
                    self._begin(begun)
                    tokens[begun] = self._bos
                else:
                    left = np.delete(np.arange(len(tokens)), begun)
                    tokens, begun = tokens[left], begun[:0]
                    self._keep(left)
                    walk.keep(torch.from_numpy(left))
        return [text for _, text in sorted(self._ended.items())]

    def _take(self, tokens: IntArray) -> IntArray:
        """Append a token to each row's text; the rows whose text is over."""
        said = tokens != self._eos
        self._texts[np.arange(len(tokens)), self._lengths] = tokens
        self._lengths += said
        self.done += int(said.sum())
        over = np.flatnonzero(~said | (self._lengths == self._longest))
        for row in over:
            text = self._texts[row, : self._lengths[row]]
            self._ended[int(self._number[row])] = text.tolist()
        if len(self._ended) >= HOPELESS and 100 * self.done < len(self._ended):
            raise ValueError(
                f"the model says almost nothing but EOS ({self.done} tokens in"
                f" {len(self._ended):,} texts), so that the corpus would never fill: train it"
                " longer, or sample at another temperature"
            )
        return over

    def _begin(self, rows: IntArray) -> None:
        """A new text in each of the rows."""
        first = len(self._ended) + len(self._slot) - len(rows)
        self._number[rows] = np.arange(first, first + len(rows))
        self._lengths[rows] = 0

    def _keep(self, rows: IntArray) -> None:
        """Go on with these rows only."""
        self._slot, self._number = self._slot[rows], self._number[rows]
        self._lengths, self._texts = self._lengths[rows], self._texts[rows]


class Walk(Protocol):
    """A model that reads one token more per row at each call."""

    def advance(self, tokens: Tensor, begun: Tensor) -> Tensor:
        """Logits after these tokens, the caller's to overwrite; the rows `begun` are at BOS."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""


def walk_of(model: LanguageModel, rows: int, longest: int) -> Walk:
    """The fastest way through the model that gives what its own `forward` would."""
    if isinstance(model, RecurrentModel) and type(model).forward is RecurrentModel.forward:
        return RecurrentWalk(model, rows)
    return StateWalk(model) if model.carries_state else WholeTextWalk(model, rows, longest)


class RecurrentWalk:
    """Stacks the gates' kernels once, which `forward` does at every call."""

    def __init__(self, model: RecurrentModel, rows: int) -> None:
        self._model = model
        self._layers: list[tuple[GatedLayer, Tensor, Tensor, Tensor]] = []
        inputs = model.config.embedding_size  # without the context behind it, which is zero
        for layer in model.layers:
            assert isinstance(layer, GatedLayer)
            kernel = torch.cat([getattr(layer, f"{gate}_kernel") for gate in layer.gates])
            bias = torch.cat([getattr(layer, f"{gate}_bias") for gate in layer.gates])
            recurrent = kernel[:, layer.inputs :].t().contiguous()
            self._layers.append((layer, kernel[:, :inputs].contiguous(), bias, recurrent))
            inputs = layer.cells
        zero = model.embedding.weight.new_zeros(rows, model.config.cells)
        self._state = [(zero,) * model.layer.state_tensors for _ in self._layers]

    def advance(self, tokens: Tensor, begun: Tensor) -> Tensor:
        vectors = self._model.embedding(tokens)
        for place, (layer, kernel, bias, recurrent) in enumerate(self._layers):
            before = tuple(part.index_fill(0, begun, 0) for part in self._state[place])
            after = layer.step(functional.linear(vectors, kernel, bias), recurrent, before)
            self._state[place], vectors = after, after[0]
        return self._model.embedding.score(self._model.projection(vectors))

    def keep(self, rows: Tensor) -> None:
        self._state = [tuple(part[rows] for part in state) for state in self._state]


class StateWalk:
    """Any model with a state.  Only the model knows the state before BOS, so the one behind it,
    the same for all texts, is kept from the first call."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._state: State = None
        self._first: tuple[Tensor, ...] = ()

    def advance(self, tokens: Tensor, begun: Tensor) -> Tensor:
        scores, after = self._model(tokens.unsqueeze(1), self._state)
        assert after is not None
        now = (scores[:, -1], *after)
        if self._state is None:
            self._first = tuple(part[:1].clone() for part in now)
        now = tuple(
            part.index_copy(0, begun, first.expand(len(begun), *first.shape[1:]))
            for part, first in zip(now, self._first, strict=True)
        )
        self._state = now[1:]
        return now[0]

    def keep(self, rows: Tensor) -> None:
        assert self._state is not None
        self._state = tuple(part[rows] for part in self._state)


class WholeTextWalk:
    """A model without a state reads each text from its beginning at every step.

    Shorter texts have padding behind them, which no logit before it depends on.
    """

    def __init__(self, model: LanguageModel, rows: int, longest: int) -> None:
        self._model = model
        self._texts = torch.zeros(rows, longest, dtype=torch.int64)
        self._last = torch.full((rows,), -1)

    def advance(self, tokens: Tensor, begun: Tensor) -> Tensor:
        rows = torch.arange(len(tokens))
        self._last = (self._last + 1).index_fill_(0, begun, 0)
        self._texts[rows, self._last] = tokens
        scores, _ = self._model(self._texts[:, : int(self._last.max()) + 1])
        return scores[rows, self._last]

    def keep(self, rows: Tensor) -> None:
        self._texts, self._last = self._texts[rows], self._last[rows]


def _in_parallel(lanes: list[Lane], threads: int, report: Callable[[], None]) -> list[list[int]]:
    """The texts of all lanes, a lane per thread at a time.

    The caller's thread only waits and reports, so that Ctrl-C reaches it; the others then stop
    after the step that they are at.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    stop = threading.Event()
    try:
        with ThreadPoolExecutor(threads) as pool:
            try:
                jobs = [pool.submit(lane.run, stop) for lane in lanes]
                waiting = set(jobs)
                while waiting:
                    report()
                    ready, waiting = wait(waiting, _REPORT_SECONDS, FIRST_EXCEPTION)
                    for job in ready:
                        job.result()
                report()
            except BaseException:
                stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    finally:
        torch.set_num_threads(before)
    return [text for job in jobs for text in job.result()]


def _slots(model: LanguageModel, quota: int, longest: int) -> int:
    slots = min(SLOTS, max(1, quota // SLOT_TOKENS))
    return slots if model.carries_state else min(slots, max(1, WHOLE_TEXTS // longest))


def _generator(key: bytes, lane: int) -> np.random.Generator:
    """The generator of a lane; nobody gets from one to another, or back to the key."""
    digest = hashlib.sha256(b"tacit sampling 1\n" + lane.to_bytes(4) + key).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest)))


def _check_finite(values: Tensor) -> None:
    if not torch.isfinite(values).all():
        raise ValueError("the model's logits are not finite numbers: its weights are broken")


def _check(
    model: LanguageModel,
    key: bytes,
    tokens: int,
    used: tuple[int, ...],
    banned: set[int],
    threads: int | None,
) -> None:
    if not (isinstance(key, bytes) and key):
        raise ValueError("key must be bytes, at least one")  # never shown: it may be a secret
    _check_count("tokens", tokens)
    if threads is not None:
        _check_count("threads", threads)
    for token in used:
        if not 0 <= token < model.config.vocab_size:
            raise ValueError(
                f"token {token} is not among the model's {model.config.vocab_size}: the tokenizer"
                " does not fit the model"
            )
    if len(banned) >= model.config.vocab_size:
        raise ValueError("forbidden leaves no token to sample")

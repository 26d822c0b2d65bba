"""A corpus drawn from a model: SAMPLETOKENS and SAMPLE of Bagdasaryan et al. 2022, Algorithm 1.

t_next ~ p(t | s) until EOS, from s = [BOS], until the corpus has its size.  The work is cut into
lanes, each with its share of the tokens and a generator of its own that is derived from the key.

In a lane many texts are drawn side by side, each in a slot of one batch.  When a slot's text ends,
the slot begins another, so that the batch stays full.  Once the lane has its share of tokens no
text is begun any more, and all that were begun are finished: to drop them would favour short texts,
for the longer a text, the more likely it is unfinished at any time.

Guarantees.  The texts are a function of the model, the key, the size and the settings, and not of
the number of threads: lanes and their slots follow from the size and the model, and each lane is
computed in the arithmetic of one thread.  Whether a text is begun depends on other texts only, so
each is a fair draw, and so is each of its tokens (`tacit.evaluation.sampling`).
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.evaluation.decoder import Output, decoder_for, most_rows
from tacit.evaluation.scoring import evaluating, in_threads
from tacit.models.base import LanguageModel
from tacit.privacy import checks
from tacit.privacy.records import NonNegative, Record, at_least
from tacit.tokenizers.tokenizer import Tokenizer

_LANES = 16
_LANE_TOKENS = 16_384  # the least share of a lane; for less there are fewer lanes
_SLOTS = 256
_SLOT_TOKENS = 128  # the least share of a slot; for less there are fewer slots
_HOPELESS = 1_000  # texts ended with less than a hundredth as many tokens: it only says EOS
_NO_CHARACTER = "\ufffd"  # stands in decoded text for bytes that are no character

_LOG2_E = math.log2(math.e)
_SMALLEST_TEMPERATURE = 1e-30  # below, float32 has no reciprocal; the first choice has it all

_IntArray = npt.NDArray[np.int64]
_Progress = Callable[[int, int], None]  # tokens sampled so far, tokens to sample


@dataclass(frozen=True)
class Sampling(Record):
    """How text is drawn.

    Probabilities are softmax(logits / temperature) over the `top_k` first choices, or over all
    tokens without it.  Temperature 0 takes the first choice every time.
    """

    temperature: NonNegative = 1.0
    top_k: Annotated[int, at_least(1)] | None = None
    max_length: Annotated[int, at_least(1)] = 100  # tokens; what is longer is cut there

    def choose(self, output: Output, banned: Tensor, uniform: Tensor) -> Tensor:
        """The next token of each row, from a number in [0, 1) for each; none that is `banned`.

        `top_k` must be below the number of tokens.  Raises `ValueError` if a row has no finite
        largest logit, as broken weights give.
        """
        temperature = max(self.temperature, _SMALLEST_TEMPERATURE)
        if self.temperature > 0 and self.top_k is None:
            powers = output.powers(_LOG2_E / temperature)
            if powers is not None:
                return _draw(powers.index_fill_(1, banned, 0), uniform)
        logits = output.logits()
        logits = logits if logits.dtype == torch.float64 else logits.to(torch.float32)
        logits.index_fill_(1, banned, -torch.inf)
        largest = logits.amax(1, keepdim=True)
        if not torch.isfinite(largest).all():
            raise ValueError("the model's logits are not finite numbers: its weights are broken")
        if self.temperature == 0:
            # Of equal logits the first: numpy promises so, torch does not.
            return torch.from_numpy(logits.numpy().argmax(1))
        if self.top_k is not None:
            _keep_first_choices(logits, self.top_k)
        # The maximum goes first: a small temperature must not make infinities of all.
        return _draw(logits.sub_(largest).mul_(_LOG2_E / temperature).exp2_(), uniform)


DEFAULT = Sampling()


def sample_texts(
    model: LanguageModel,
    tokenizer: Tokenizer,
    key: bytes,
    *,
    tokens: int,
    sampling: Sampling = DEFAULT,
    threads: int | None = None,
    progress: _Progress | None = None,
) -> list[str]:
    """At least `tokens` tokens of text without UNK; a text without any token is left out.

    Byte-level tokens that do not make valid UTF-8 together are decoded to U+FFFD.  That is left
    out as well: it was never written, and would become a word of a tokenizer made from the texts.
    """
    sampled = sample_tokens(
        model,
        tokenizer,
        key,
        tokens=tokens,
        sampling=sampling,
        threads=threads,
        progress=progress,
    )
    texts = (tokenizer.decode(text).replace(_NO_CHARACTER, "") for text in sampled)
    return [text for text in texts if text]


def sample_tokens(
    model: LanguageModel,
    tokenizer: Tokenizer,
    key: bytes,
    *,
    tokens: int,
    sampling: Sampling = DEFAULT,
    threads: int | None = None,
    progress: _Progress | None = None,
) -> list[list[int]]:
    """Texts without their BOS and EOS, of at least `tokens` tokens in all.

    A text may be empty.  BOS and UNK are never sampled.  `progress` is called in the caller's
    thread.  `threads` changes the speed only; by default it is that of torch.
    """
    vocab_size = model.config.vocab_size
    if tokenizer.vocab_size != vocab_size:
        raise ValueError(
            f"the model has {vocab_size} tokens and the tokenizer {tokenizer.vocab_size}: the"
            " tokenizer does not fit the model"
        )
    if not (isinstance(key, bytes) and key):
        raise ValueError("key must be bytes, at least one")  # never shown: it may be a secret
    checks.whole("tokens", tokens, at_least=1)
    if threads is not None:
        checks.whole("threads", threads, at_least=1)
    if sampling.top_k is not None and sampling.top_k >= vocab_size:
        sampling = replace(sampling, top_k=None)  # it cuts nothing off
    count = min(_LANES, max(1, tokens // _LANE_TOKENS))
    quotas = [(tokens + lane) // count for lane in range(count)]
    lanes = [
        _Lane(model, tokenizer, sampling, _generator(key, lane), quota)
        for lane, quota in enumerate(quotas)
    ]

    def report() -> None:
        if progress is not None:
            progress(sum(lane.done for lane in lanes), tokens)

    stop = threading.Event()  # the lanes then stop after the step that they are at
    with evaluating(model):
        jobs = [partial(lane.run, stop) for lane in lanes]
        texts = in_threads(jobs, threads or torch.get_num_threads(), report, stop.set)
    return list(chain.from_iterable(texts))


class _Lane:
    """A share of the corpus: `quota` tokens, in slots that are computed together.

    A row is a slot that has a text; the arrays have one entry per row.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        sampling: Sampling,
        generator: np.random.Generator,
        quota: int,
    ) -> None:
        self.done = 0  # tokens so far; only grows, so that another thread may read it
        self._model, self._sampling, self._generator = model, sampling, generator
        self._bos, self._eos, self._quota = tokenizer.bos, tokenizer.eos, quota
        unk = () if tokenizer.unk is None else (tokenizer.unk,)
        self._banned = torch.tensor(sorted({*unk, tokenizer.bos}))
        self._longest = longest = sampling.max_length
        self._slots = min(_SLOTS, max(1, quota // _SLOT_TOKENS), most_rows(model, longest))
        self._slot = np.arange(self._slots)
        self._number = np.arange(self._slots)  # of the row's text, in the order of beginning
        self._lengths = np.zeros(self._slots, np.int64)
        self._texts = np.empty((self._slots, self._longest), np.int64)
        self._ended: dict[int, list[int]] = {}

    def run(self, stop: threading.Event) -> list[list[int]]:
        """The texts in the order of beginning; when `stop` is set, soon and only some of them."""
        tokens, begun = np.full(self._slots, self._bos), np.arange(self._slots)
        decoder = decoder_for(self._model, self._slots, longest=self._longest)
        with torch.no_grad():
            while len(self._slot) and not stop.is_set():
                decoder.advance(torch.from_numpy(tokens), torch.from_numpy(begun))
                # Drawn for every slot, also where no text is left: a slot's numbers are its own.
                uniform = self._generator.random(self._slots)[self._slot]
                tokens = self._sampling.choose(
                    decoder.output, self._banned, torch.from_numpy(uniform)
                ).numpy()
                begun = self._append(tokens)
                if self.done < self._quota:
                    self._begin(begun)
                    tokens[begun] = self._bos
                elif len(begun):
                    left = np.delete(np.arange(len(tokens)), begun)
                    tokens, begun = tokens[left], begun[:0]
                    self._keep(left)
                    decoder = decoder.take(torch.from_numpy(left))
        return [text for _, text in sorted(self._ended.items())]

    def _append(self, tokens: _IntArray) -> _IntArray:
        """Append a token to each row's text; the rows whose text is over."""
        said = tokens != self._eos
        self._texts[np.arange(len(tokens)), self._lengths] = tokens
        self._lengths += said
        self.done += int(said.sum())
        over = np.flatnonzero(~said | (self._lengths == self._longest))
        for row in over:
            text = self._texts[row, : self._lengths[row]]
            self._ended[int(self._number[row])] = text.tolist()
        if len(self._ended) >= _HOPELESS and 100 * self.done < len(self._ended):
            raise ValueError(
                f"the model says almost nothing but EOS ({self.done} tokens in"
                f" {len(self._ended):,} texts), so that the corpus would never fill: train it"
                " longer, or sample at another temperature"
            )
        return over

    def _begin(self, rows: _IntArray) -> None:
        """A new text in each of the rows."""
        first = len(self._ended) + len(self._slot) - len(rows)
        self._number[rows] = np.arange(first, first + len(rows))
        self._lengths[rows] = 0

    def _keep(self, rows: _IntArray) -> None:
        """Go on with these rows only."""
        self._slot, self._number = self._slot[rows], self._number[rows]
        self._lengths, self._texts = self._lengths[rows], self._texts[rows]


def _generator(key: bytes, lane: int) -> np.random.Generator:
    """The generator of a lane, by a hash: one lane's tells nothing of another's, or of the key."""
    digest = hashlib.sha256(b"tacit sampling 1\n" + lane.to_bytes(4) + key).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest)))


def _keep_first_choices(logits: Tensor, k: int) -> None:
    """Set all but the k first choices of each row to -inf, in place.

    Of equal logits the smaller id is first.  numpy finds the k-th largest value of a row in a fifth
    of the time that torch takes.
    """
    values = np.partition(logits.numpy(), -k, axis=1)
    edge = torch.from_numpy(values[:, -k, np.newaxis].copy())
    # A tie reaches over the edge where the largest value behind it equals that at the edge.
    tied = np.flatnonzero(values[:, :-k].max(axis=1) == values[:, -k])
    if len(tied):
        rows, edges = logits[tied], edge[tied]
        equal = rows == edges
        left = k - (rows > edges).sum(1, keepdim=True)
        rows[equal & (equal.cumsum(1) > left)] = -torch.inf
        logits[tied] = rows
    logits.masked_fill_(logits < edge, -torch.inf)


def _draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """Column j of each row with probability weights[j] / total, from a number in [0, 1).

    A cumulative sum over all columns, in float64 as it has to be, costs several times the model
    itself.  So columns form blocks, as many as each has columns.  First a block is chosen by
    float64 cumulative sums over their float32 sums, then a column within that block alone.
    """
    columns = weights.shape[1]
    size = math.isqrt(columns)
    whole = columns - columns % size
    sums = weights[:, :whole].view(len(weights), -1, size).sum(2)
    if whole < columns:
        sums = torch.cat([sums, weights[:, whole:].sum(1, keepdim=True)], dim=1)
    block, within = _locate(sums, uniform)
    column = (block * size).unsqueeze(1) + torch.arange(size)
    if whole < columns:
        inside = weights.gather(1, column.clamp(max=columns - 1)).masked_fill(column >= columns, 0)
    else:
        inside = weights.gather(1, column)
    return block * size + _locate(inside, within)[0]


def _locate(weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """The column whose share of the total holds each number, and where in it, in [0, 1)."""
    cumulative = weights.cumsum(1, dtype=torch.float64)
    total = cumulative[:, -1:]
    # Kept below the total, so that rounding never goes to a weight of 0 behind the last above 0.
    target = torch.minimum(uniform.unsqueeze(1) * total, torch.nextafter(total, 0 * total))
    column = torch.searchsorted(cumulative, target, right=True)
    weight = weights.gather(1, column)
    within = (target - cumulative.gather(1, column) + weight) / weight
    return column.squeeze(1), within.squeeze(1).clamp(0, 1 - 2**-53)

"""A corpus drawn from a model: SAMPLETOKENS and SAMPLE of Bagdasaryan et al. 2022, Algorithm 1.

t_next ~ p(t | s) until EOS, from s = [BOS], until the corpus has its size.  The work is cut into
lanes, each with a generator of its own that is derived from the key.

Guarantees.  The texts are a function of the model, the key, the size and the settings, and not of
the number of threads: lanes and their slots follow from the size and the model, and each lane is
computed in the arithmetic of one thread.  Each text is a fair draw (`lanes`), and so is each of
its tokens (`draws`).
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
import torch

from tacit.evaluation.draws import Choice
from tacit.evaluation.lanes import Lane
from tacit.evaluation.network import evaluating
from tacit.models.base import LanguageModel
from tacit.tokenizers.tokenizer import Tokenizer

LANES = 16
LANE_TOKENS = 16_384  # at least so many for each, or there are fewer of them
NO_CHARACTER = "\ufffd"  # in the place of bytes that are none

_REPORT_SECONDS = 0.1

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

    Byte-level tokens that do not make valid UTF-8 together are decoded to U+FFFD.  That is left
    out as well: nobody wrote it, and it would become a word of a tokenizer made from the texts.
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
    texts = (tokenizer.decode(text).replace(NO_CHARACTER, "") for text in found)
    return [text for text in texts if text]


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
    banned = torch.tensor(sorted({*forbidden, bos}))
    top_k = sampling.top_k
    if top_k is not None and top_k >= model.config.vocab_size:
        top_k = None  # cuts nothing off
    choice = Choice(banned, sampling.temperature, top_k)
    count = min(LANES, max(1, tokens // LANE_TOKENS))
    quotas = [(tokens + lane) // count for lane in range(count)]
    lanes = [
        Lane(model, choice, _generator(key, lane), quota, bos, eos, sampling.max_length)
        for lane, quota in enumerate(quotas)
    ]

    def report() -> None:
        if progress is not None:
            progress(sum(lane.done for lane in lanes), tokens)

    with evaluating(model):
        return _in_parallel(lanes, threads or torch.get_num_threads(), report)


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


def _generator(key: bytes, lane: int) -> np.random.Generator:
    """The generator of a lane; nobody gets from one to another, or back to the key."""
    digest = hashlib.sha256(b"tacit sampling 1\n" + lane.to_bytes(4) + key).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest)))


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

"""Tokens sampled per second from the 1.35M LSTM at 10,000 words, beside one text at a time.

Nothing is trained.  The weights are the initial ones, except that the projection's bias points to
the vector of EOS, so that texts have about 20 tokens, as messages do.  "One at a time" is the
obvious loop over texts and tokens in the same process, with torch on one thread and on all; the
faster of these is compared.  All take turns, and the figures are medians.
Tokens are counted without EOS.  Per second of the processor is printed too, since other programs
slow that much less than the clock.  `--quick` is a look that takes a few seconds.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from tacit.evaluation.sampling import Sampling, sample_tokens
from tacit.models.base import LanguageModel, parameter_count
from tacit.models.recurrent import RecurrentModel
from tacit.models.registry import build
from tacit.tokenizers.build import word_level
from tacit.tokenizers.tokenizer import Tokenizer

WORDS = 10_000
LENGTH = 20
BOS, EOS, UNK = 0, 1, 2


def talkative() -> LanguageModel:
    """The initial model with a chance of EOS of about 1 in LENGTH + 1 at every step."""
    model = build("lstm", WORDS)
    assert isinstance(model, RecurrentModel)
    with torch.no_grad():
        end = model.embedding.weight[EOS]
        # The other words' scores move by <bias, vector>, about normal: exp(variance / 2) each.
        size = math.log(WORDS / LENGTH)
        model.projection.bias.copy_((size + size**2 / (2 * len(end))) * end)
    return model


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    tokens: int = 200_000  # batched
    texts: int = 15  # one at a time
    repeats: int = 3


QUICK = Size(tokens=40_000, texts=3, repeats=1)


@functools.cache
def _words() -> Tokenizer:
    """A dictionary with BOS, EOS and UNK first."""
    return word_level(f"word{id}" for id in range(WORDS - 3))


def batched(model: LanguageModel, threads: int, size: Size, repeat: int) -> tuple[int, int]:
    """Texts and tokens."""
    texts = sample_tokens(
        model,
        _words(),
        repeat.to_bytes(1),
        tokens=size.tokens,
        threads=threads,
    )
    return len(texts), sum(map(len, texts))


def one_at_a_time(model: LanguageModel, threads: int, size: Size, repeat: int) -> tuple[int, int]:
    """The same, each text by itself; BOS and EOS are not counted."""
    generator = torch.Generator().manual_seed(repeat)
    torch.set_num_threads(threads)
    return size.texts, sum(one_text(model, generator) for _ in range(size.texts))


@torch.no_grad()
def one_text(model: LanguageModel, generator: torch.Generator) -> int:
    """Draw one text token by token; how many tokens it has."""
    token, state = torch.tensor([[BOS]]), None
    for length in range(Sampling().max_length):
        logits, state = model(token, state)
        probs = torch.softmax(logits[:, -1].index_fill(1, torch.tensor([BOS, UNK]), -math.inf), 1)
        token = torch.multinomial(probs, 1, generator=generator)
        if int(token) == EOS:
            return length
    return Sampling().max_length


def rates(action: Callable[[], tuple[int, int]]) -> tuple[float, float, float]:
    """Tokens per second of the clock and of the processor, and per text."""
    clock, processor = time.perf_counter(), time.process_time()
    texts, tokens = action()
    clock, processor = time.perf_counter() - clock, time.process_time() - processor
    return tokens / clock, tokens / processor, tokens / texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a look that takes a few seconds")
    size = QUICK if parser.parse_args().quick else Size()
    model = talkative()
    cores = len(os.sched_getaffinity(0))
    ways: dict[str, Callable[[int], tuple[int, int]]] = {
        f"batched, {cores} threads": partial(batched, model, cores, size),
        "one at a time, 1 thread": partial(one_at_a_time, model, 1, size),
        f"one at a time, {cores} threads": partial(one_at_a_time, model, cores, size),
    }
    print(
        f"{parameter_count(model):,} parameters, {size.tokens:,} tokens batched and {size.texts}"
        f" texts one at a time, median of {size.repeats}, load {os.getloadavg()[0]:.1f}"
    )
    measured: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    for repeat in range(size.repeats):
        for name, way in ways.items():
            measured[name].append(rates(partial(way, repeat)))
            print(f"  {name}: {measured[name][-1][0]:,.0f} tokens/s", flush=True)
    medians = {}
    for name, results in measured.items():
        clock, processor, length = map(statistics.median, zip(*results, strict=True))
        medians[name] = clock
        print(
            f"{name}: {clock:,.0f} tokens/s, {processor:,.0f} per second of the processor,"
            f" {length:.1f} tokens per text"
        )
    several, *single = medians.values()
    print(f"batched on {cores} cores is {several / max(single):.0f} times as fast as one at a time")


if __name__ == "__main__":
    main()

"""Seconds to look for 90 canaries among 2,000,000 random suffixes each, beside the naive method.

The 1.35M LSTM at 10,000 words is first trained on texts of the chitchat corpus with the canaries
planted among them: as often as `COPIES` says, in turn, so that some are memorized, some nearly so,
and some not at all.  Then every canary gets its verdict, on one thread and on two.

Two naive methods are measured on a sample of the suffixes, in the same run: one scores every
suffix as a whole text, and a better one goes on from the state behind the canary's prefix and
takes the first words' scores from one row.  Seconds of the processor are printed beside those of
the clock, since other programs only ever slow the clock.
"""

from __future__ import annotations

import os
import time

import numpy as np
import torch
from torch import Tensor

from tacit.audit.random_sampling import SAMPLES, SuffixTree, count_likelier
from tacit.audit.suffixes import SuffixScorer
from tacit.corpus.builtin import chitchat_records
from tacit.models.base import LanguageModel
from tacit.models.registry import build
from tacit.public.pretrain import Settings, pretrain
from tacit.tokenizers.build import learn

WORDS = 10_000
CANARIES = 90
COPIES = (0, 1, 2, 3, 4, 6, 8, 16, 32)
TEXTS = 3_000
EPOCHS = 2
THREADS = (1, 2)
NAIVE_SUFFIXES = 4_000
BATCH = 256


def trained(canaries: list[tuple[int, ...]], rng: np.random.Generator) -> LanguageModel:
    """A model that sees canary i as often as COPIES[i mod 9] in every pass over the texts."""
    texts = [text for texts in chitchat_records().values() for text in texts]
    tokenizer = learn("word", texts, WORDS)
    assert tokenizer.vocab_size == WORDS
    tokens = [np.array(ids) for ids in tokenizer.encode_batch(texts[:TEXTS])]
    for index, canary in enumerate(canaries):
        planted = np.array([tokenizer.bos, *canary, tokenizer.eos])
        tokens += [planted] * COPIES[index % len(COPIES)]
    model = build("lstm", WORDS)
    order = rng.permutation(len(tokens))
    done = pretrain(
        model, [tokens[index] for index in order], Settings(epochs=EPOCHS), bos=tokenizer.bos
    )
    print(f"trained for {done.seconds:.0f} s on {len(tokens):,} texts, {done.tokens:,} tokens")
    return model


def naive(model: LanguageModel, prefix: tuple[int, ...], suffixes: np.ndarray, bos: int) -> float:
    """Seconds to score the suffixes as whole texts."""
    start = time.perf_counter()
    begin = torch.tensor([bos, *prefix])
    with torch.no_grad():
        for batch in torch.from_numpy(suffixes).split(BATCH):
            texts = torch.cat([begin.expand(len(batch), -1), batch[:, :-1]], dim=1)
            costs(model(texts)[0][:, len(prefix) :], batch)
    return time.perf_counter() - start


def shared(model: LanguageModel, prefix: tuple[int, ...], suffixes: np.ndarray, bos: int) -> float:
    """The same from the state behind the prefix, with the first words' scores from one row."""
    start = time.perf_counter()
    with torch.no_grad():
        first, state = model(torch.tensor([[bos, *prefix]]))
        assert state is not None
        first_costs = -torch.log_softmax(first[0, -1], 0)
        for batch in torch.from_numpy(suffixes).split(BATCH):
            repeated = tuple(part.expand(len(batch), -1).contiguous() for part in state)
            logits = model(batch[:, :-1], repeated)[0]
            first_costs[batch[:, 0]] + costs(logits, batch[:, 1:])
    return time.perf_counter() - start


def costs(logits: Tensor, words: Tensor) -> Tensor:
    """The summed -log p of the words."""
    chosen = torch.log_softmax(logits, 2).gather(2, words.unsqueeze(2))
    return -chosen.squeeze(2).sum(1)


def verdicts(
    model: LanguageModel, canaries: list[tuple[int, ...]], rng: np.random.Generator
) -> tuple[list[tuple[bool, float]], list[float]]:
    """Is each canary memorized, with which log-perplexity; and when that was known.

    The clock starts before the suffixes are drawn.
    """
    start = time.perf_counter()
    scorer = SuffixScorer(model, bos=0, candidates=np.arange(3, WORDS))
    tree = SuffixTree.random(SAMPLES, 3, scorer.candidates, rng)
    results, clock = [], [time.perf_counter() - start]
    for canary in canaries:
        split = scorer.split(canary, 2)
        results.append((not count_likelier(scorer, tree, split), scorer.log_perplexity(split)))
        clock.append(time.perf_counter() - start)
    return results, clock


def print_results(results: list[tuple[bool, float]]) -> None:
    for index, copies in enumerate(COPIES):
        group = results[index :: len(COPIES)]
        surprise = " ".join(f"{log_perplexity:.1f}" for _, log_perplexity in group)
        count = sum(memorized for memorized, _ in group)
        print(f"{copies:4} copies: {count:2} of {len(group)} memorized; {surprise} nats")


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    canaries = [tuple(row) for row in rng.integers(3, WORDS, (CANARIES, 5)).tolist()]
    model = trained(canaries, rng)
    sample = rng.integers(3, WORDS, (NAIVE_SUFFIXES, 3))
    for threads in THREADS:
        torch.set_num_threads(threads)
        processor = time.process_time()
        results, clock = verdicts(model, canaries, np.random.default_rng(1))
        processor = time.process_time() - processor
        if threads == THREADS[0]:
            print_results(results)
        total, load = clock[-1], os.getloadavg()[0]
        print(
            f"{threads} threads, load {load:.1f}: {CANARIES} canaries, {SAMPLES:,} suffixes in"
            f" {total:.1f} s ({processor:.1f} s of the processor); {clock[0]:.1f} s to draw them,"
            f" at most {max(np.diff(clock)):.1f} s for a canary"
        )
        for name, method in (("whole texts", naive), ("from the prefix's state", shared)):
            method(model, canaries[0][:2], sample[:BATCH], 0)
            before = time.process_time()
            each = method(model, canaries[0][:2], sample, 0) / NAIVE_SUFFIXES
            busy = (time.process_time() - before) / NAIVE_SUFFIXES
            suffixes = SAMPLES * CANARIES
            print(
                f"  naive, {name}: {each * 1e6:.0f} us a suffix ({busy * 1e6:.0f} of the"
                f" processor), {each * suffixes:,.0f} s for all: {each * suffixes / total:,.0f}"
                f" times as long ({busy * suffixes / processor:,.0f} times by the processor)"
            )


if __name__ == "__main__":
    main()

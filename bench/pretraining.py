"""Tokens per second of public pre-training: all words against sampled ones, in one process.

The 1.35M LSTM at 10,000 words, one thread, on made-up texts with Zipf's frequencies.  Seconds are
those of the processor, so that other work on the machine does not decide; the ways take turns.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from tacit.models.registry import build
from tacit.public.pretrain import LanguageSettings, Settings, pretrain

WORDS, TEXTS, ROUNDS = 10_000, 400, 2
WAYS = {
    "all words, 32 x 20": Settings(epochs=0.3),
    "sampled words, 96 x 40": LanguageSettings(),
    "sampled words, bfloat16": LanguageSettings(bfloat16=True),
}


def texts() -> list[np.ndarray]:
    """Texts of 10 to 120 tokens, whose words have the frequencies of Zipf's law."""
    generator = np.random.default_rng(0)
    law = 1 / np.arange(1, WORDS - 1)
    lengths = generator.integers(10, 120, TEXTS)
    made = [2 + generator.choice(WORDS - 2, size, p=law / law.sum()) for size in lengths]
    return [np.concatenate([[0], words, [1]]) for words in made]


def main() -> None:
    torch.set_num_threads(1)
    corpus = texts()
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(ROUNDS):
        for name, settings in WAYS.items():
            is_sampled = isinstance(settings, LanguageSettings)
            sizes = {"unit_norm": False, "output_bias": True} if is_sampled else {}
            model = build("lstm", WORDS, **sizes)
            began = time.process_time()
            done = pretrain(model, corpus, settings, bos=0)
            rates[name].append(done.tokens / (time.process_time() - began))
    slow = np.median(rates[next(iter(WAYS))])
    for name, measured in rates.items():
        rate = np.median(measured)
        print(f"{name:26} {rate:8,.0f} tokens a processor second, {rate / slow:4.1f} times")


if __name__ == "__main__":
    main()

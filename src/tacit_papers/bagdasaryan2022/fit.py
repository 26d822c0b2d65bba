r"""How well a tokenizer fits texts: OOV, tokens per word, and the divergence of its words.

The divergence says how far the words that a tokenizer is learnt from are from the users' words
(Bagdasaryan et al. 2022, section 5.3): "computed from the unigram counts [...] over the top 10,000
words from the training data and with add-1 smoothing".  With W these words of the reference, n
their number, and c, d the counts in the reference and in the other text,

    KLD = \sum_{w in W} p(w) log(p(w) / q(w)),    p(w) = (c(w) + 1) / (n + \sum_{u in W} c(u)),

q(w) likewise from d, in nats.  The paper leaves open what happens to other words: here both
distributions are over W and nothing else, so that they sum to 1, the divergence is at least 0 and
finite, and it is 0 for the reference itself.

Two things to know when comparing.  Add-1 pulls a short text towards the uniform distribution, so
that a small sample of the very same source is not at 0; texts of about the same length compare.
And what the other text says besides W costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tacit.privacy import checks
from tacit.tokenizers.build import most_frequent
from tacit.tokenizers.normalisation import strings
from tacit.tokenizers.tokenizer import Tokenizer

TOP_WORDS = 10_000


@dataclass(frozen=True)
class Fit:
    """Counts over texts; BOS and EOS are not among the tokens."""

    texts: int
    words: int
    tokens: int
    unknown_words: int

    @property
    def oov_share(self) -> float:
        """The share of words with UNK in them; 0 without words."""
        return self.unknown_words / self.words if self.words else 0.0

    @property
    def tokens_per_word(self) -> float:
        """1 for a dictionary; 0 without words."""
        return self.tokens / self.words if self.words else 0.0


def fit(tokenizer: Tokenizer, texts: Iterable[str]) -> Fit:
    """How many words, tokens and out-of-dictionary words the texts have."""
    count = words = tokens = unknown = 0
    for text in strings(texts):
        ids, owners = tokenizer.word_ids(text)
        count += 1
        words += max(owners) + 1
        tokens += len(ids) - 2
        unknown += len(
            {owner for id, owner in zip(ids, owners, strict=True) if id == tokenizer.unk}
        )
    return Fit(count, words, tokens, unknown)


def kl_divergence(
    reference: Mapping[str, float], other: Mapping[str, float], top: int = TOP_WORDS
) -> float:
    """The divergence, in nats, from the reference's counts of words to the other's.

    Of equally frequent words, the smaller code points are among the top ones.
    """
    checks.whole("top", top, at_least=1)
    words = most_frequent(_occurring("reference", reference), top)
    counts = _occurring("other", other)
    p_total = len(words) + math.fsum(reference[word] for word in words)
    q_total = len(words) + math.fsum(counts.get(word, 0.0) for word in words)
    terms = []
    for word in words:
        p = (reference[word] + 1) / p_total
        q = (counts.get(word, 0.0) + 1) / q_total
        terms.append(p * math.log(p / q))
    return max(math.fsum(terms), 0.0)  # rounding could leave it a hair below


def _occurring(name: str, counts: Mapping[str, float]) -> dict[str, float]:
    """The words that occur at all; `ValueError` if none does.  No message quotes a word."""
    for count in counts.values():
        if not (count >= 0 and math.isfinite(count)):
            raise ValueError(
                f"the counts of {name} must be finite and at least 0, got {count}: set an estimate"
                " below 0 to 0"
            )
    occurring = {word: count for word, count in counts.items() if count > 0}
    if not occurring:
        raise ValueError(f"{name} has no words to compare")
    return occurring

"""How much of people's text a tokenizer does not know, before anything is trained.

A model that answers "unknown" for most words has a fine perplexity and is worth nothing.  The share
is measured on test users, who are not protected: nothing is learnt here about training users.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

from tacit.corpus.source import UserCorpus
from tacit.evaluation.held_out import held_out_texts
from tacit.tokenizers import languages
from tacit.tokenizers.normalisation import count_words
from tacit.tokenizers.public import is_unspaced
from tacit.tokenizers.tokenizer import Tokenizer

WARN_ABOVE, REFUSE_ABOVE = 0.2, 0.5
_LOOKED_AT = 10_000  # words and ends of test users' texts
_ENOUGH = 2_000  # tokens whose share stands for itself; of fewer, chance is taken off it
_DEVIATIONS = 2.576  # of the normal law: one time in 200 chance alone does more
_COMMON_WORDS = 1_000  # of a language, to recognise it by


@dataclass(frozen=True)
class Unknown:
    """How many of the tokens that were looked at are unknown."""

    count: int
    tokens: int

    @property
    def rate(self) -> float:
        return self.count / self.tokens if self.tokens else 0.0

    @property
    def at_least(self) -> float:
        """The share that is certain: of few tokens, the lower end of Wilson's interval.

        With z deviations and n tokens of which a share p is unknown (Wilson 1927),
        (p + z^2/2n - z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n).
        """
        if self.tokens >= _ENOUGH or not self.tokens:
            return self.rate
        n, p, z = self.tokens, self.rate, _DEVIATIONS
        spread = z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
        return (p + z**2 / (2 * n) - spread) / (1 + z**2 / n)


def unknown_tokens(corpus: UserCorpus, tokenizer: Tokenizer) -> Unknown:
    """The test users' tokens, and those of them that the tokenizer does not know.

    Ends of texts do not count: they are always known, and a text without spaces is one word.
    """
    if tokenizer.unk is None:
        return Unknown(0, 0)
    sequences = held_out_texts(corpus.test, tokenizer, _LOOKED_AT).sequences
    ends = (tokenizer.bos, tokenizer.eos)
    tokens = [token for sequence in sequences for token in sequence if token not in ends]
    return Unknown(tokens.count(tokenizer.unk), len(tokens))


def check_unknown_rate(corpus: UserCorpus, tokenizer: Tokenizer) -> None:
    """Warn if a fifth of test users' tokens is unknown, and refuse if half of them is.

    A handful of names in little text is no reason for either: what counts then is the share that
    is left when chance is allowed for.  Corpora that are about nobody are not looked at: nothing
    can be spent on them.
    """
    if not corpus.about_people:
        return
    unknown = unknown_tokens(corpus, tokenizer)
    if not unknown.at_least > WARN_ABOVE:
        return
    sentence = (
        f"the tokenizer ({tokenizer.provenance}) does not know {unknown.rate:.0%} of the test"
        f" users' words and marks: {_suggestion(corpus, tokenizer)}"
    )
    if unknown.at_least > REFUSE_ABOVE:
        raise ValueError(f"{sentence}; at most {REFUSE_ABOVE:.0%} may be unknown")
    warnings.warn(sentence, stacklevel=2)


def _suggestion(corpus: UserCorpus, tokenizer: Tokenizer) -> str:
    """What would fit the test users' text better: BPE, and the list of the language it is in."""
    texts = [text for user in range(min(len(corpus.test), 50)) for text in corpus.test.texts(user)]
    pieces = "take tokenizer.kind=bpe, which knows every text"
    if is_unspaced(texts):
        return f"it has no spaces between words; {pieces}, with tokenizer.source=wordfreq:zh or :ja"
    counts = count_words(texts)
    known = {
        language: sum(counts[word] for word in languages.common_words(language, _COMMON_WORDS))
        for language in languages.known()
        if language not in languages.UNSPACED
    }
    best = max(known, key=lambda language: known[language])
    name = f"wordfreq:{best}"
    if tokenizer.provenance.endswith(name):
        return f"{pieces}, or a larger tokenizer.size"
    return f"take tokenizer.source={name}, or {pieces.removeprefix('take ')}"

"""How frequent tokens are in public text, or in a language."""

from __future__ import annotations

import pytest

from tacit.tasks.language.people import public_frequencies
from tacit.tokenizers.public import PublicSource


def test_the_frequencies_of_a_language_are_those_of_its_list():
    source = PublicSource("wordfreq:ms")
    tokenizer = source.tokenizer("word", 2000)
    counts = public_frequencies(tokenizer, "wordfreq:ms")
    words = source.word_weights()
    first, later = "yang", "sekolah"
    ratio = counts[tokenizer.token_id(first)] / counts[tokenizer.token_id(later)]
    assert ratio == pytest.approx(words[first] / words[later], rel=0.05)
    assert counts.min() >= 1
    # A text of a list has twenty words, so that one token in 21 is an end.
    assert counts[tokenizer.eos] / counts.sum() == pytest.approx(1 / 21, rel=0.05)

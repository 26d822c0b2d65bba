"""How well a tokenizer fits texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.tokenizers import build
from tacit_papers.bagdasaryan2022.fit import Fit, fit
from tests.tokenizers.fakes import KINDS, texts, tokenizer


def test_figures_by_hand():
    ours = build.word_level(["the", "cat"])
    assert fit(ours, ["The cat!", "", "a cat"]) == Fit(texts=3, words=5, tokens=5, unknown_words=2)
    assert fit(ours, ["The cat!"]).oov_share == pytest.approx(1 / 3)
    assert fit(build.learn("char", list("catdog"), 1000), ["cat dogs"]) == Fit(1, 2, 8, 1)
    assert fit(build.learn("bpe", [], 258), ["cat dögs"]) == Fit(1, 2, 9, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_no_words_give_zeros(kind):
    nothing = fit(tokenizer(kind), ["", " "])
    assert (nothing.oov_share, nothing.tokens_per_word) == (0, 0)


@given(st.lists(texts, max_size=4))
def test_all_kinds_count_the_same_words(lines):
    [_] = {fit(tokenizer(kind), lines).words for kind in KINDS}
    assert fit(tokenizer("word"), lines).tokens == fit(tokenizer("word"), lines).words
    assert fit(tokenizer("bpe"), lines).unknown_words == 0

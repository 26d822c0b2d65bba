"""Every target is trained on once per epoch, from a fresh state, and padding never counts."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.models.registry import build
from tacit.public import pretrain as pretraining
from tacit.public.pretrain import Settings

BOS = 0
TEXTS = st.lists(
    st.lists(st.integers(0, 9), min_size=0, max_size=30), min_size=1, max_size=20
).filter(lambda texts: any(token != BOS for text in texts for token in text[1:]))


def pieces_of(texts) -> list:
    return [piece for text in texts for piece in pretraining._cut(text, 10)]


def epoch(texts, number=0, *, batch=3, unroll=4, seed=0) -> list:
    """The windows of one epoch."""
    pieces = pieces_of(texts)
    settings = Settings(batch=batch, unroll=unroll, seed=seed)
    return list(pretraining._epoch(pieces, settings, BOS, number))


def pairs_of(texts) -> Counter:
    return Counter((v, w) for text in texts for v, w in itertools.pairwise(text) if w != BOS)


@given(TEXTS, st.integers(1, 5), st.integers(1, 7), st.integers(0, 3))
def test_every_target_comes_once_with_the_token_before_it(texts, batch, unroll, number):
    found: Counter = Counter()
    for window in epoch(texts, number, batch=batch, unroll=unroll):
        assert 1 <= window.inputs.shape[0] <= batch
        assert 1 <= window.inputs.shape[1] <= unroll
        found.update(
            zip(
                window.inputs[window.mask].tolist(),
                window.targets[window.mask].tolist(),
                strict=True,
            )
        )
    assert found == pairs_of(texts)


@given(TEXTS, st.integers(1, 5), st.integers(1, 7))
def test_rows_carry_on_where_the_window_before_ended(texts, batch, unroll):
    rows: list[list[int]] = []
    whole = []
    for window in epoch(texts, batch=batch, unroll=unroll):
        if window.begins:
            whole += rows
            rows = [[token] for token in window.inputs[:, 0].tolist()]
        assert len(window.inputs) <= len(rows)
        for row in range(len(window.inputs)):
            assert window.inputs[row, 0] == rows[row][-1]
            rows[row] += window.targets[row].tolist()
    whole += rows
    # Up to padding, which is BOS, the rows are the texts.
    stripped = sorted(np.trim_zeros(np.array(row), "b").tolist() for row in whole)
    given_texts = (np.trim_zeros(np.array(text), "b").tolist() for text in texts if len(text) > 1)
    assert stripped == sorted(given_texts)


def test_the_order_is_the_seed_s_and_every_epoch_has_its_own():
    texts = np.random.default_rng(0).integers(1, 10, (40, 6)).tolist()

    def first(seed, number):
        return epoch(texts, number, seed=seed)[0].inputs

    assert torch.equal(first(1, 0), first(1, 0))
    assert not torch.equal(first(1, 0), first(2, 0))
    assert not torch.equal(first(1, 0), first(1, 1))


def test_a_long_text_is_cut_and_loses_no_target(monkeypatch):
    monkeypatch.setattr(pretraining, "LONGEST", 4)
    text = [BOS, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert sorted(piece.tolist() for piece in pieces_of([text])) == [
        [BOS, 1, 2, 3, 4],
        [4, 5, 6, 7, 8],
        [8, 9],
    ]


@pytest.mark.parametrize("texts", [[], [[]], [[5]], [[BOS, BOS]]])
def test_nothing_to_predict_is_refused(texts):
    model = build("lstm", 10, embedding_size=4, cells=4)
    with pytest.raises(ValueError, match="there is nothing to train on"):
        pretraining.pretrain(model, texts, Settings(), bos=BOS)


def test_a_tokenizer_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="holds the tokens 0 to 10, and the model knows 0 to 9"):
        pieces_of([[BOS, 10]])

"""Every target is trained on once per epoch, from a fresh state, and padding never counts."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.public import pretrain as batches
from tacit.public.pretrain import TextBatches

BOS = 0
TEXTS = st.lists(
    st.lists(st.integers(0, 9), min_size=0, max_size=30), min_size=1, max_size=20
).filter(lambda texts: any(token != BOS for text in texts for token in text[1:]))


def made(texts, *, batch=3, unroll=4, seed=0) -> TextBatches:
    return TextBatches(texts, batch=batch, unroll=unroll, seed=seed, vocab_size=10, bos=BOS)


def pairs_of(texts) -> Counter:
    return Counter((v, w) for text in texts for v, w in itertools.pairwise(text) if w != BOS)


@given(TEXTS, st.integers(1, 5), st.integers(1, 7), st.integers(0, 3))
def test_every_target_comes_once_with_the_token_before_it(texts, batch, unroll, epoch):
    batches_of_texts = made(texts, batch=batch, unroll=unroll)
    found: Counter = Counter()
    for window in batches_of_texts.epoch(epoch):
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
    assert batches_of_texts.targets == sum(found.values())


@given(TEXTS, st.integers(1, 5), st.integers(1, 7))
def test_rows_carry_on_where_the_window_before_ended(texts, batch, unroll):
    rows: list[list[int]] = []
    whole = []
    for window in made(texts, batch=batch, unroll=unroll).epoch(0):
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

    def first(seed, epoch):
        return next(made(texts, seed=seed).epoch(epoch)).inputs

    assert torch.equal(first(1, 0), first(1, 0))
    assert not torch.equal(first(1, 0), first(2, 0))
    assert not torch.equal(first(1, 0), first(1, 1))


def test_a_long_text_is_cut_and_loses_no_target(monkeypatch):
    monkeypatch.setattr(batches, "LONGEST", 4)
    text = [BOS, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    made_of_it = made([text])
    assert sorted(piece.tolist() for piece in made_of_it.pieces) == [
        [BOS, 1, 2, 3, 4],
        [4, 5, 6, 7, 8],
        [8, 9],
    ]
    assert made_of_it.targets == 9


@pytest.mark.parametrize("texts", [[], [[]], [[5]], [[BOS, BOS]]])
def test_nothing_to_predict_is_refused(texts):
    with pytest.raises(ValueError, match="there is nothing to train on"):
        made(texts)


def test_a_tokenizer_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="holds the tokens 0 to 10, and the model knows 0 to 9"):
        made([[BOS, 10]])

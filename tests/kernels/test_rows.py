"""A user's tokens as rows."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.kernels.rows import rows_of
from tests.federated.tiny import BOS
from tests.oracles import algorithm1 as oracle

LAYOUTS = ("stream", "texts")
tokens_lists = st.lists(st.integers(0, 5), max_size=60)  # 0 is BOS, at the start or not
unrolls = st.integers(1, 12)
layouts = st.sampled_from(LAYOUTS)


def rows(tokens, unroll, layout, dtype=np.uint16):
    return rows_of(np.array(tokens, dtype), unroll=unroll, bos=BOS, layout=layout)


@given(tokens_lists, unrolls, layouts)
def test_every_token_but_bos_and_the_first_is_a_target_exactly_once(tokens, unroll, layout):
    made = rows(tokens, unroll, layout)
    expected = [token for token in tokens[1:] if token != BOS]
    assert made.targets[made.mask].tolist() == expected  # in order, too
    assert made.examples == len(expected)


@given(tokens_lists, unrolls, layouts)
def test_rows_are_the_oracles_pieces(tokens, unroll, layout):
    cut = oracle.pieces_of_stream if layout == "stream" else oracle.pieces_of_texts
    made = rows(tokens, unroll, layout)
    pieces = cut(tokens, unroll, BOS)
    assert len(made) == len(pieces)
    for inputs, targets, mask, piece in zip(
        made.inputs, made.targets, made.mask, pieces, strict=True
    ):
        length = len(piece) - 1
        assert inputs[:length].tolist() == piece[:-1]
        assert targets[:length].tolist() == piece[1:]
        assert mask.tolist() == [t != BOS for t in piece[1:]] + [False] * (unroll - length)


@given(tokens_lists, unrolls, layouts)
def test_bos_is_never_a_target_and_no_row_is_without_one(tokens, unroll, layout):
    made = rows(tokens, unroll, layout)
    assert not (made.targets[made.mask] == BOS).any()
    assert made.mask.any(dim=1).all()
    assert made.inputs.shape == made.targets.shape == made.mask.shape == (len(made), unroll)
    assert (made.inputs.dtype, made.mask.dtype) == (torch.int64, torch.bool)


@given(tokens_lists, unrolls)
def test_in_the_layout_of_texts_no_row_has_tokens_of_two_texts(tokens, unroll):
    made = rows(tokens, unroll, "texts")
    for inputs, mask in zip(made.inputs, made.mask, strict=True):
        used = inputs[: int(mask.sum())]
        assert mask[: len(used)].all()
        assert not (used[1:] == BOS).any()  # BOS is at the start or nowhere


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tokens", [[], [0], [7], [0, 0], [0, 0, 0, 0]])
def test_without_a_target_there_are_no_rows(tokens, layout):
    made = rows(tokens, 3, layout)
    assert len(made) == 0
    assert made.examples == 0


def test_the_papers_user_makes_twenty_batches():
    made = rows(np.arange(1600) % 90 + 1, 10, "stream")
    assert len(made) == 160
    assert made.examples == 1599


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int32, np.int64])
def test_tokens_may_be_of_any_integer_type(dtype):
    made = rows([0, 3, 4, 1], 2, "stream", dtype)
    assert made.inputs.tolist() == [[0, 3], [4, 0]]
    assert made.targets.tolist() == [[3, 4], [1, 0]]


@given(tokens_lists, unrolls, layouts, st.data())
def test_some_of_the_rows_keep_their_targets_and_lose_only_padding(tokens, unroll, layout, data):
    made = rows(tokens, unroll, layout)
    chosen = data.draw(st.lists(st.integers(0, max(len(made) - 1, 0)), unique=True))
    chosen = chosen if len(made) else []
    some = made.take(np.array(chosen, np.int64))
    width = some.inputs.shape[1]
    assert torch.equal(some.inputs, made.inputs[chosen, :width])
    assert torch.equal(some.targets, made.targets[chosen, :width])
    assert not made.mask[chosen, width:].any()
    assert width == 0 or some.mask[:, -1].any()
    assert torch.equal(made.take(slice(0, 2)).inputs, made.take(np.arange(len(made))[:2]).inputs)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=60), unrolls)
def test_both_layouts_have_the_same_targets(tokens, unroll):
    counts = [
        Counter(made.targets[made.mask].tolist())
        for made in (rows(tokens, unroll, layout) for layout in LAYOUTS)
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("unroll", "layout", "message"),
    [
        (0, "stream", "unroll must be at least 1, got 0"),
        (2.5, "stream", "unroll must be a whole number, got 2.5"),
        (3, "lines", "layout must be one of stream, texts, got 'lines'"),
    ],
)
def test_bad_settings_are_named(unroll, layout, message):
    with pytest.raises(ValueError, match=message):
        rows([0, 1, 2], unroll, layout)

"""What clipped sums of gradients are made of: twins, norms without gradients, factors."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from tacit.models.understanding import LinearChainCrf, crf_grad_sample
from tacit.tasks.nlu.ghost_clipping import (
    Whole,
    _clip_factors,
    _Products,
    _TableRows,
    _twin_of,
    _TwinLstm,
)


@given(
    squares=st.lists(
        st.floats(1e-60, 1e60) | st.sampled_from([0.0, math.nan, math.inf]), min_size=1, max_size=6
    ),
    clip_norm=st.floats(1e-6, 1e6),
)
def test_factors_bring_norms_to_the_clip_norm_and_never_above(squares, clip_norm):
    finite, factors = _clip_factors(torch.tensor(squares, dtype=torch.float64), 1000, clip_norm)
    kept = [square for square in squares if math.isfinite(square)]
    assert finite.tolist() == [math.isfinite(square) for square in squares]
    for square, factor in zip(kept, factors.tolist(), strict=True):
        assert 0 < factor <= 1
        assert Fraction(factor) ** 2 * Fraction(square) <= Fraction(clip_norm) ** 2
        assert factor == pytest.approx(min(1.0, clip_norm / math.sqrt(square or 1e-99)), rel=1e-12)


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 5)),
    hidden=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_a_twin_of_an_lstm_computes_the_same_on_the_same_memory(shape, hidden, seed):
    torch.manual_seed(seed)
    lstm = nn.LSTM(shape[2], hidden, batch_first=True).double()
    values = torch.randn(shape, dtype=torch.float64)
    twin = _twin_of(nn.ModuleList([lstm]))[0][0]
    torch.testing.assert_close(twin(values)[0], lstm(values)[0], rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        lstm.weight_hh_l0 *= 0.5
        lstm.bias_ih_l0 += 1.0
    torch.testing.assert_close(twin(values)[0], lstm(values)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"num_layers": 2},
        {"bidirectional": True},
        {"proj_size": 2},
        {"batch_first": False},
        {"bias": False},
    ],
)
def test_a_twin_of_another_kind_of_lstm_is_refused(options):
    with pytest.raises(ValueError, match="an LSTM must have one layer, one direction"):
        _TwinLstm(nn.LSTM(3, 4, **{"batch_first": True, **options}))


@settings(max_examples=30)
@given(
    B=st.integers(1, 4),
    T=st.integers(1, 7),
    K=st.integers(1, 5),
    spread=st.sampled_from([1.0, 200.0]),
    seed=st.integers(0, 99),
)
def test_the_crf_gives_the_gradient_of_each_sequence(B, T, K, spread, seed):
    generator = torch.Generator().manual_seed(seed)
    crf = LinearChainCrf(K).double()
    with torch.no_grad():
        for values in crf.parameters():
            values.normal_(std=spread, generator=generator)
    emissions = torch.randn(B, T, K, generator=generator, dtype=torch.float64)
    tags = torch.randint(K, (B, T), generator=generator)
    lengths = torch.randint(1, T + 1, (B, 1), generator=generator)
    mask = torch.arange(T) < lengths
    weights = torch.randn(B, generator=generator, dtype=torch.float64)
    found = crf_grad_sample(crf, emissions, tags, mask, weights)
    for row in range(B):
        cut = (slice(row, row + 1), slice(int(lengths[row])))
        loss = weights[row] * crf(emissions[cut], tags[cut], mask[cut]).sum()
        alone = torch.autograd.grad(loss, list(crf.parameters()))
        for (name, _), expected in zip(crf.named_parameters(), alone, strict=True):
            torch.testing.assert_close(found[name][row], expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=40)
@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 6), st.integers(1, 6)),
    seed=st.integers(0, 99),
)
@example(sizes=(2, 2, 40, 50), seed=0)  # few tokens, so that no matrix is written out
@example(sizes=(2, 60, 3, 4), seed=0)
def test_parts_have_the_norms_and_sums_of_what_they_stand_for(sizes, seed):
    B, T, O, I = sizes  # noqa: E741
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(B, T, side, generator=generator) for side in (O, I))
    ids = torch.randint(I, (B, T), generator=generator)
    factors = torch.rand(B, generator=generator, dtype=torch.float64)
    written = torch.einsum("bto,bti->boi", left.double(), right.double())
    rows = torch.zeros(B, I, O, dtype=torch.float64)
    for b in range(B):
        for t in range(T):
            rows[b, ids[b, t]] += left[b, t].double()
    for part, expected in [
        (_Products(left, right), written),
        (_TableRows(ids, left), rows),
        (Whole(written), written),
    ]:
        squares = expected.square().flatten(1).sum(dim=1)
        torch.testing.assert_close(part.squares(), squares, rtol=1e-8, atol=1e-12)
        total = torch.ones(expected.shape[1:], dtype=torch.float64)
        part.add_(total, factors)
        summed = 1 + torch.einsum("b...,b->...", expected, factors)
        torch.testing.assert_close(total, summed, rtol=1e-12, atol=1e-12)
        chosen = torch.arange(B) % 2 == 0
        torch.testing.assert_close(part.only(chosen).squares(), part.squares()[chosen])


@given(
    T=st.integers(2, 6),
    sides=st.sampled_from([(30, 40), (3, 4)]),
    tiny=st.sampled_from([1e-2, 1e-5, 1e-7, 0.0]),
    seed=st.integers(0, 999),
)
def test_norms_of_tokens_that_cancel_are_not_underestimated(T, sides, tiny, seed):
    rng = np.random.default_rng(seed)
    left, right = (np.repeat(rng.normal(size=(1, side)), T, axis=0) for side in sides)
    right[0] *= 1 - T  # all add up to nothing
    right += tiny * rng.normal(size=right.shape)
    d, x = left.astype(np.float32), right.astype(np.float32)
    written = (d[:, :, None].astype(np.longdouble) * x[:, None, :]).sum(axis=0)
    truth = (written**2).sum()
    found = _Products(torch.from_numpy(d)[None], torch.from_numpy(x)[None]).squares().item()
    assert found >= truth * (1 - np.longdouble(2) ** -52)
    if tiny >= 1e-5:
        assert found == pytest.approx(float(truth), rel=0.02)


def test_norms_in_float32_would_be_underestimated():
    """What the test above has to be able to see."""
    rng = np.random.default_rng(0)
    low = 0
    for _ in range(50):
        d = torch.from_numpy(rng.normal(size=30)).float().repeat(2, 1)
        x = torch.from_numpy(rng.normal(size=40)).float()
        x = torch.stack([x, -x + 1e-4 * torch.from_numpy(rng.normal(size=40)).float()])
        in_float32 = ((d @ d.t()) * (x @ x.t())).sum().clamp(min=0).item()
        low += in_float32 < 0.9 * _Products(d[None], x[None]).squares().item()
    assert low > 5

"""Drawn tokens follow their probabilities, whichever way these are computed."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.evaluation.decoder import Output, _TiedHead
from tacit.evaluation.sampling import _LOG2_E, Sampling, _draw, _keep_first_choices
from tacit.evaluation.scoring import top_k
from tacit.models.layers import TiedConfig, TiedEmbedding


@pytest.mark.parametrize("columns", [1, 2, 3, 7, 50, 101])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_share_of_each_column_is_its_weight_to_a_millionth(columns, dtype):
    weights = torch.softmax(
        4 * torch.randn(1, columns, generator=torch.Generator().manual_seed(columns)), 1
    ).to(dtype)
    # Where each share ends: 60 bisections of [0, 1) for all columns at once.
    low, high = torch.zeros(columns, dtype=torch.float64), torch.ones(columns, dtype=torch.float64)
    for _ in range(60):
        middle = (low + high) / 2
        beyond = _draw(weights.expand(columns, -1), middle) > torch.arange(columns)
        low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
    shares = torch.diff(low, prepend=torch.zeros(1, dtype=torch.float64))
    exact = weights[0].double() / weights.double().sum()
    torch.testing.assert_close(shares, exact, rtol=1e-6, atol=1e-15)


def test_with_many_columns_the_middle_of_each_share_draws_its_column():
    logits = 2 * torch.randn(10_007, generator=torch.Generator().manual_seed(0))
    weights = torch.softmax(logits, 0)
    cumulative = weights.double().cumsum(0) / weights.double().sum()
    middles = cumulative - weights.double() / 2
    likely = torch.nonzero(weights > 2e-6).squeeze(1)
    assert len(likely) > 8_000
    for some in likely.split(500):
        assert torch.equal(_draw(weights.expand(len(some), -1), middles[some]), some)


@given(
    st.lists(st.sampled_from([0.0, 1e-45, 1e-30, 1e-9, 0.1, 1.0]), min_size=1, max_size=30).filter(
        any
    ),
    st.one_of(st.sampled_from([0.0, 1 - 2**-53, 1 - 2**-30, 2**-60]), st.floats(0, 1 - 2**-53)),
)
def test_what_has_no_weight_is_never_drawn(weights, uniform):
    row = torch.tensor([weights], dtype=torch.float32)
    drawn = int(_draw(row, torch.tensor([uniform], dtype=torch.float64)))
    assert 0 <= drawn < len(weights)
    assert row[0, drawn] > 0


@given(
    st.lists(st.sampled_from([-math.inf, -2.0, 0.0, 0.5, 3.0]), min_size=2, max_size=12),
    st.integers(1, 11),
)
def test_the_first_choices_are_those_of_the_ranking_ties_included(row, k):
    k = min(k, len(row) - 1)
    # A second row without ties, since rows with and without are treated apart.
    logits = torch.tensor([row, [float(-token) for token in range(len(row))]])
    cut = logits.clone()
    _keep_first_choices(cut, k)
    kept = torch.zeros_like(logits, dtype=torch.bool).scatter(1, top_k(logits, k), True)
    assert torch.equal(cut, logits.masked_fill(~kept, -math.inf))


def tied(words=4_321, size=16, rows=40, *, length=1.0, bias=True):
    """A head and vectors; more than one tile of words, the last not full."""
    generator = torch.Generator().manual_seed(1)
    embedding = TiedEmbedding(TiedConfig(words, size, output_bias=bias), generator)
    with torch.no_grad():
        embedding.weight.mul_(length)
        if embedding.output_bias is not None:
            embedding.output_bias.copy_(torch.randn(words, generator=generator))
    return embedding, 3 * torch.randn(rows, size, generator=generator)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("scale", [_LOG2_E, 0.5, 3.0])
def test_powers_are_those_of_the_logits_to_a_millionth(scale, bias):
    embedding, vectors = tied(bias=bias)
    with torch.no_grad():
        output = Output(vectors, _TiedHead(embedding))
        exact = embedding.double().score(vectors.double())
        embedding.float()
        torch.testing.assert_close(output.logits().double(), exact, rtol=0, atol=3e-6)
        found = output.powers(scale)
        # A float32 logit is itself off by 1e-7 or so per unit of its size, here up to 16.
        torch.testing.assert_close(found.double(), torch.exp2(scale * exact), rtol=1e-5, atol=0)
        relative = found.double() / torch.exp2(scale * exact) - 1
        assert relative.square().mean().sqrt() < 1e-6


@pytest.mark.parametrize("bias", [True, False])
def test_no_logit_is_beyond_the_bound_and_powers_beyond_floats_are_refused(bias):
    embedding, vectors = tied(bias=bias)
    with torch.no_grad():
        head = _TiedHead(embedding)
        largest = embedding.score(vectors).abs().max()
        bound = head.bound(vectors)
        assert largest < bound < 3 * largest
        assert Output(vectors, head).powers(99.9 / bound) is not None
        assert Output(vectors, head).powers(100.1 / bound) is None
        for wrong in (math.nan, math.inf):
            broken = vectors.clone()
            broken[3, 2] = wrong
            assert Output(broken, head).powers(1e-9) is None
            with pytest.raises(ValueError, match="its weights are broken"):
                Sampling().choose(Output(broken, head), torch.tensor([0]), torch.rand(len(broken)))


@pytest.mark.parametrize("length", [1.0, 30.0], ids=["powers", "too-large-for-powers"])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("k", [None, 5])
def test_both_ways_through_a_model_draw_the_same(length, temperature, k):
    embedding, vectors = tied(length=length)
    uniform = torch.rand(40, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    sampling, banned = Sampling(temperature, k), torch.tensor([0, 7])
    with torch.no_grad():
        output = Output(vectors, _TiedHead(embedding))
        assert (output.powers(_LOG2_E / temperature) is None) == (length > 1)
        fast = sampling.choose(output, banned, uniform)
        plain = sampling.choose(Output(embedding.score(vectors)), banned, uniform)
        exact = embedding.double().score(vectors.double())
    exact[:, [0, 7]] = -math.inf
    if k is not None:
        exact = exact.masked_fill(exact < exact.topk(k).values[:, -1:], -math.inf)
    slow = (torch.softmax(exact / temperature, 1).cumsum(1) <= uniform[:, None]).sum(1)
    assert torch.equal(fast, slow)
    assert torch.equal(plain, slow)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_what_is_banned_is_not_taken_though_it_has_all_the_weight(temperature):
    embedding, vectors = tied(words=9, bias=True)
    with torch.no_grad():
        embedding.output_bias[:] = torch.tensor([20.0, 20.0, *[-20.0] * 7])
        output = Output(vectors, _TiedHead(embedding))
        for uniform in (0.0, 0.5, 1 - 2**-53):
            row = torch.full((40,), uniform, dtype=torch.float64)
            assert Sampling(temperature).choose(output, torch.tensor([0, 1]), row).min() > 1
